"""Part "tables": one stream that is written into several tables."""

from __future__ import annotations

from itertools import repeat

import di_store
from bench.kit import time_calls, turns
from bench.scale.elements import EPISODE_ROWS, make_table, row, rows
from bench.scale.figures import Figure, Options, Takes, say

COUNTS = (1, 2, 4, 8, 16)
CAPACITY, SERIES = 100_000, "prioritized"


def tables(options: Options) -> list[Figure]:
    """One writer for each number of tables. All tables of a writer have the same rows, which are stored once."""
    takes, capacity = Takes("tables"), max(10_000, int(CAPACITY * options.scale))
    writers: dict[int, di_store.Writer] = {}
    with di_store.open(memory="1GiB") as store:
        for count in COUNTS:
            say(f"tables: {count}")
            before = store.stats()
            made = [make_table(store, f"{count}-{number}", capacity, SERIES, lanes=1) for number in range(count)]
            writers[count] = writer = store.writer(made)
            for _ in range(capacity // EPISODE_ROWS):
                writer.extend(rows(EPISODE_ROWS))
            after = store.stats()
            stored, slots = ((after[key] - before[key]) / capacity for key in ("chunk_pages", "meta"))
            takes.add(SERIES, count, "rows stored", stored, "B/row")
            takes.add(SERIES, count, "slots and trees", slots, "B/row")
            takes.add(SERIES, count, "slots and trees, each table", slots / count, "B/row")
        for count in turns(COUNTS, options.rounds):
            time_calls(writers[count].append, repeat(row()), options.seconds / 10)
            taken = time_calls(writers[count].append, repeat(row()), options.seconds)
            takes.latencies(SERIES, count, "append", taken)
            takes.add(SERIES, count, "append p50, each table", takes.last(SERIES, count, "append p50") / count, "µs")
        for writer in writers.values():
            writer.close()
    return takes.figures()
