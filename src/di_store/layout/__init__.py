"""Turns users' settings into the core's numbers: the layout of rows, and the memory that a table needs."""
