"""Inserts and samples per second, from two successive reports."""

from __future__ import annotations

import time
from collections.abc import Iterable

from di_store.observe.report import StoreReport


class Rates:
    """Computes inserts and samples per second of every table, between the previous `add` and this one."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], tuple[float, int]] = {}

    def add(self, found: Iterable[StoreReport]) -> None:
        """Set ``inserts_per_second`` and ``samples_per_second`` of every table; None: there is no earlier report."""
        now = time.monotonic()
        seen: dict[tuple[str, str, str], tuple[float, int]] = {}
        for each in found:
            for table in each["tables"]:
                counts = {"inserts": table["inserts"], "samples": table["samples"]}
                rates = {}
                for counter, count in counts.items():
                    key = (f"{each['name']}:{each['uuid']}", table["name"], counter)
                    seen[key] = (now, count)
                    rates[counter] = self._rate(key, now, count)
                table["inserts_per_second"], table["samples_per_second"] = rates["inserts"], rates["samples"]
        self._seen = seen

    def _rate(self, key: tuple[str, str, str], now: float, count: int) -> float | None:
        before = self._seen.get(key)
        if before is None or now <= before[0] or count < before[1]:  # seen for the first time, reset, or made again
            return None
        return (count - before[1]) / (now - before[0])
