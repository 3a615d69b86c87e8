"""What the store costs as things grow: `python -m bench.scale`; `bench/README.md` says what each part does."""
