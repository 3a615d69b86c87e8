"""Threads that help a call end with it, also when Ctrl-C comes at the worst moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from di_store.checkpoint.helpers import with_helpers


def test_all_parts_are_done_once() -> None:
    done: list[int] = []
    with_helpers(range(1_000), done.extend, 4)
    assert sorted(done) == list(range(1_000))


def _waits(thread: int) -> bool:
    """Whether a thread waits in the module `threading`."""
    return sys._current_frames()[thread].f_code.co_filename == threading.__file__


def test_ctrl_c_while_a_failed_call_waits_for_a_helper() -> None:
    """The call goes on waiting, and the helper takes no further part."""
    main, handled, ended = threading.get_ident(), threading.Event(), threading.Event()
    taken: list[int] = []
    failing: list[bool] = []
    outlived: list[bool] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        handled.set()
        raise KeyboardInterrupt

    def work(parts: Iterator[int]) -> None:
        if threading.get_ident() == main:
            while not taken:
                os.sched_yield()
            failing.append(True)
            raise KeyError
        for part in parts:
            taken.append(part)
            if not handled.is_set():
                while not (failing and _waits(main)):
                    os.sched_yield()
                signal.pthread_kill(main, signal.SIGALRM)
                assert handled.wait(60)
            outlived.append(ended.wait(0.2))

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyError):
            with_helpers(range(5), work, 2)
        ended.set()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert taken == [0]
    assert outlived == [False]


def test_ctrl_c_before_a_helper_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper may begin later: it finds no part."""
    late: list[threading.Thread] = []
    taken: list[int] = []

    def start(thread: threading.Thread) -> None:
        late.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        with_helpers(range(5), taken.extend, 2)
    monkeypatch.undo()
    late[0].start()
    late[0].join()
    assert taken == []
