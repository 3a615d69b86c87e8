"""Measures costs as sizes and counts grow: `python -m bench.scale`; `bench/README.md` says what each part does."""
