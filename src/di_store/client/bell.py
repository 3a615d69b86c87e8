"""How a thread waits for another one without holding a lock."""

from __future__ import annotations

import threading


class Bell:
    """Wakes the thread that waits for it, or that will wait.

    Unlike a `Condition` or an `Event` it holds no lock around a wait. If a signal handler raises in the middle, no lock
    stays locked, and none is released twice.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread, now or at its next `wait`."""
        try:
            self._silence.release()
        except RuntimeError:
            pass  # it was rung, and nobody has waited since

    def wait(self, seconds: float) -> None:
        """Return when it rings, or has rung since the last wait; at the latest after that many seconds."""
        self._silence.acquire(timeout=seconds)
