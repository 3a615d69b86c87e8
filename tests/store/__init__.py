"""Stores of this machine."""
