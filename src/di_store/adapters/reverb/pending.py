"""Items that wait for their tables.

The call that creates an item inserts it if the table's limiter allows it. Otherwise the item waits in a queue, and so
do all later items of the same writer: a thread inserts them in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from di_store.adapters.reverb.errors import DeadlineExceededError
from di_store.adapters.reverb.served import ServedTable

_STEP_SECONDS = 0.1
"""How long the thread waits for a limiter before it looks whether the writer was closed."""


class Sender:
    """Inserts the items of one writer."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ServedTable, dict[str, Any], float]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self._closed = False

    def send(self, table: ServedTable, row: dict[str, Any], priority: float) -> None:
        """Insert an item, or queue it. The arrays of `row` may be overwritten afterwards."""
        if not self._waiting and table.insert(row, priority, 0.0):
            return
        item = table, {"form": row["form"], "item": row["item"].copy()}, priority
        with self._changed:
            self._check()
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reverb writer", daemon=True)
                self._thread.start()

    def wait(self, most: int, timeout: float | None) -> None:
        """Wait until at most this many items wait.

        Raises:
            DeadlineExceededError: more items still wait after `timeout` seconds (None: no limit).
        """
        if not self._waiting and self._failed is None:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while len(self._waiting) > most and self._failed is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceededError(f"{len(self._waiting)} items still waited after {timeout} s")
                self._changed.wait(left)
            self._check()

    def close(self) -> None:
        """Accept no more items, and drop those that wait."""
        self._closed = True
        self._waiting.clear()

    def _check(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _run(self) -> None:
        while True:
            try:
                table, row, priority = self._waiting[0]
                done = table.insert(row, priority, _STEP_SECONDS)
            except IndexError:
                done = False
            except Exception as error:  # raised in the program by its next call
                self._waiting.clear()
                self._failed, done = error, False
            with self._changed:
                if done and self._waiting:
                    self._waiting.popleft()
                if not self._waiting or self._closed:
                    self._thread = None
                    self._changed.notify_all()
                    return
                self._changed.notify_all()
