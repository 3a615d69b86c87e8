"""Mutants of the sources, and what runs the tests on each: see docs/testing.md."""
