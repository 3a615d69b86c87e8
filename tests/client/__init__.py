"""Stores on another machine, as a program has them."""
