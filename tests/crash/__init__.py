"""Processes that die, stop, fork and race, for real; what the others then find is checked from outside."""
