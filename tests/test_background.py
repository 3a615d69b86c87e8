"""The package's own threads: whoever waits for one waits no longer than it says."""

from __future__ import annotations

import threading
from functools import partial

from di_store.runtime.background import Background, Bell


def test_joining_ends_at_its_deadline() -> None:
    """However short it is, and wherever in the wait it passes."""
    goes_on = threading.Event()
    background = Background(partial(goes_on.wait, 60))
    background.start()
    while not background.lives():
        pass
    assert not any(background.join(1e-9) for _ in range(20_000))
    goes_on.set()
    assert background.join(60)


def test_a_bell_rings_for_one_wait() -> None:
    bell = Bell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.has_rung()
    assert bell.wait(60)
    assert not bell.has_rung()
    assert not bell.wait(1e-9)
    threading.Timer(0.01, bell.ring).start()
    assert bell.wait(60)
