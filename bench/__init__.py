"""Benchmarks, one file per question; run as modules from the repository root (``python -m bench``)."""
