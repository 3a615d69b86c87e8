"""Helpers for every part of the package: errors, sizes, nested names, element types, checks of arguments."""
