"""Threads that read and write the files of checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

THREADS = 4
"""One copies bytes and computes their checksums while others wait for the disk. Four are enough for disks that want
several requests at once."""

Part = TypeVar("Part")


def with_helpers(parts: Iterable[Part], work: Callable[[Iterator[Part]], None], threads: int) -> None:
    """Call `work` in this thread and in helper threads, if these can be started: not while the interpreter ends.

    Each call takes its parts from its argument, one by one. After one has failed, there are no more parts.
    """
    waiting, lock = iter(parts), threading.Lock()
    failed: list[BaseException] = []

    def following() -> Iterator[Part]:
        while True:
            with lock:
                if failed:
                    return
                try:
                    part = next(waiting)
                except StopIteration:
                    return
            yield part

    def guarded() -> None:
        try:
            work(following())
        except BaseException as error:  # raised by the thread that waits for it, whatever its type
            failed.append(error)

    helpers = [threading.Thread(target=guarded, daemon=True) for _ in range(threads - 1)]
    try:
        for helper in helpers:
            helper.start()
    except RuntimeError:
        pass
    except BaseException as error:  # Ctrl-C
        failed.append(error)
    guarded()
    for helper in helpers:
        while helper.is_alive():
            try:
                helper.join()
            except BaseException as error:  # Ctrl-C: they end with the part that each is at
                failed.append(error)
    try:
        if failed:
            raise failed[0]
    finally:
        failed.clear()  # an error keeps its frames, and they the list: all would stay until the collector comes
