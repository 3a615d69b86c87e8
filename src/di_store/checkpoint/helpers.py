"""Threads that read and write the files of checkpoints."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

THREADS = 4
"""One copies bytes and computes their checksums while others wait for the disk. Four are enough for disks that want
several requests at once."""

Part = TypeVar("Part")


def with_helpers(parts: Iterable[Part], work: Callable[[Iterator[Part]], None], threads: int) -> None:
    """Call `work` in this thread and in helper threads, if these can be started: not while the interpreter ends.

    Each call takes its parts from its argument, one by one. After one has failed, there are no more parts. When this
    function ends, in whatever way, no call has a part or gets another.
    """
    waiting, changed, working, pid = iter(parts), threading.Condition(), 0, os.getpid()
    failed: list[BaseException] = []

    def following() -> Iterator[Part]:
        while True:
            with changed:
                if failed:
                    return
                try:
                    part = next(waiting)
                except StopIteration:
                    return
            yield part

    def help_out() -> None:
        nonlocal working
        with changed:
            working += 1
        try:
            work(following())
        except BaseException as error:  # raised by the thread that waits for it, whatever its type
            failed.append(error)
        finally:
            with changed:
                working -= 1
                changed.notify_all()

    helpers = [threading.Thread(target=help_out, daemon=True) for _ in range(threads - 1)]
    try:
        with suppress(RuntimeError):
            for helper in helpers:
                helper.start()
        work(following())
    except BaseException as error:  # also Ctrl-C
        failed.append(error)
    finally:
        # Counts the helpers itself: a join() that Ctrl-C interrupts takes a thread that still runs for one that has
        # ended (CPython's issue 90882). A child that was forked meanwhile has none of them.
        while os.getpid() == pid:
            try:
                with changed:
                    while working:
                        changed.wait()
                    waiting = iter(())  # for a helper that begins only now
                for helper in filter(threading.Thread.is_alive, helpers):
                    helper.join()
                break
            except BaseException as error:  # Ctrl-C: they end with the part that each is at
                failed.append(error)
    try:
        if failed:
            raise failed[0]
    finally:
        failed.clear()  # an error keeps its frames, and they the list: all would stay until the collector comes
