"""The package's own threads: whoever waits for one waits no longer than it says."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import FrameType
from typing import Any

import pytest

from di_store.runtime.background import Background, Wakeup


def test_waiting_ends_at_its_deadline() -> None:
    """However short it is, and wherever in the wait it passes."""
    assert not any(Wakeup().wait(1e-9) for _ in range(20_000))
    wakeup = Wakeup()
    assert not any(wakeup.wait(number % 50 * 1e-6) for number in range(2_000))


def test_a_wakeup_propagates_exceptions_of_signal_handlers() -> None:
    def wake_in_a_handler(frame: FrameType, event: str, _: Any) -> Any:
        if (
            frame.f_code is Wakeup.wake.__code__
            and event == "line"
            and frame.f_lineno > frame.f_code.co_firstlineno + 2
        ):
            raise RuntimeError("of a handler")
        return wake_in_a_handler

    sys.settrace(wake_in_a_handler)
    try:
        with pytest.raises(RuntimeError, match="of a handler"):
            Wakeup().wake()
    finally:
        sys.settrace(None)


def test_joining_ends_at_its_deadline() -> None:
    goes_on = threading.Event()
    background = Background(partial(goes_on.wait, 60))
    background.start()
    while not background.lives():
        pass
    assert not any(background.join(number * 1e-6) for number in range(1_000))
    goes_on.set()
    assert background.join(60)


def test_a_wakeup_ends_one_wait() -> None:
    wakeup = Wakeup()
    assert not wakeup.wait(0)
    wakeup.wake()
    wakeup.wake()
    assert wakeup.is_pending()
    assert wakeup.wait(60)
    assert not wakeup.is_pending()
    assert not wakeup.wait(1e-9)
    threading.Timer(0.01, wakeup.wake).start()
    assert wakeup.wait(60)
