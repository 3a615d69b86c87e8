"""Waits and background threads."""
