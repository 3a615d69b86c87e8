"""What the store costs as things grow: items, capacity, objects, processes, writers, tables on a stream, row shapes.

``python -m bench.scale`` from the repository root; ``bench/README.md`` says what each part does and what it includes.
"""
