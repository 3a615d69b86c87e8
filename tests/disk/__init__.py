"""Stores with a disk tier."""
