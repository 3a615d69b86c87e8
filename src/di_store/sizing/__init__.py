"""Estimates the memory, disk and drive speed that tables will need, before there is a store."""
