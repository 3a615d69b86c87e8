"""Measures the figures of the quick workloads: in this process, in rounds, with memcpy before each round."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import di_store
from di_store.workloads.crew import CrewMember, Phase
from di_store.workloads.load import Load

COPY_BUFFER_BYTES = 128 << 20
MIN_COPY_BYTES, MAX_COPY_BYTES = 64 << 10, 16 << 20
COPY_SECONDS = 0.1
WARM_UP_SHARE = 0.1
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured case.

    Attributes: workload, case: name of the measurement.
        calls: number of timed calls, over all rounds.
        items_per_second: median over the rounds; a call handles one item, or a batch.
        microseconds: duration of one call, by percentile ("p50", …), over all rounds; reading the clock costs about 0.1
            of them.
        bytes_per_item: payload moved for one item; 0 if a call moves no payload.
        gigabytes_per_second: payload moved, median over the rounds; None if a call moves no payload.
        memcpy_gigabytes_per_second: numpy copying cold memory in blocks of about the same size, on one thread, in the
            same run; median over the rounds.
        memcpy_share: speed relative to memcpy; None if a call moves no payload.
    """

    workload: str
    case: str
    calls: int
    items_per_second: float
    microseconds: dict[str, float]
    bytes_per_item: int
    gigabytes_per_second: float | None
    memcpy_gigabytes_per_second: float
    memcpy_share: float | None


class Meter:
    """Takes figures.

    Args:
        seconds: duration of one round.
        rounds: of every case.
    """

    def __init__(self, *, seconds: float = 0.5, rounds: int = 3) -> None:
        self.seconds = seconds
        self.rounds = rounds
        self._source = np.ones(COPY_BUFFER_BYTES, np.uint8)
        self._target = np.full(COPY_BUFFER_BYTES, 2, np.uint8)

    def take(self, workload: str, load: Load, store: di_store.Store) -> Figure:
        """Time the calls that `load` makes as fast as possible, by its one process, on an empty store."""
        load.create_tables(store)
        member = CrewMember(store, load, load.roles[0], 0)
        ((label,),) = load.most
        warm_up, phase = (Phase(self.seconds * share, {label: None}, False) for share in (WARM_UP_SHARE, 1.0))
        first = member.run(warm_up, time.monotonic())
        tally = first.tallies[label]
        bytes_per_item = round(tally.bytes_per_second / tally.elements_per_second)
        bytes_per_call = round(bytes_per_item * tally.done / len(first.spent[label]))
        copies, rates, taken = [], [], []
        for _ in range(self.rounds):
            copies.append(self.copy_bytes_per_second(bytes_per_call) / 1e9)
            outcome = member.run(phase, time.monotonic())
            taken.append(outcome.spent[label])
            rates.append(outcome.tallies[label].done * 1e9 / float(taken[-1].sum()))
        member.close()
        every = np.concatenate(taken) / 1e3
        rate, copied = float(np.median(rates)), float(np.median(copies))
        return Figure(
            workload=workload,
            case=load.name,
            calls=len(every),
            items_per_second=rate,
            microseconds={f"p{q:g}": float(np.percentile(every, q)) for q in PERCENTILES},
            bytes_per_item=bytes_per_item,
            gigabytes_per_second=rate * bytes_per_item / 1e9 if bytes_per_item else None,
            memcpy_gigabytes_per_second=copied,
            memcpy_share=rate * bytes_per_item / 1e9 / copied if bytes_per_item else None,
        )

    def copy_bytes_per_second(self, size_bytes: int) -> float:
        """Speed of numpy's copy of memory that no cache holds, in blocks of about that size."""
        block = min(max(size_bytes, MIN_COPY_BYTES), MAX_COPY_BYTES)
        copied = 0
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < COPY_SECONDS or not copied:
            for at in range(0, COPY_BUFFER_BYTES - block + 1, block):
                np.copyto(self._target[at : at + block], self._source[at : at + block])
                copied += block
        return copied / elapsed
