"""Errors, sizes, nested names."""
