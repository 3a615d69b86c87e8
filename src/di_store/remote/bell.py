"""How a thread waits for another one without holding a lock."""

from __future__ import annotations

import threading


class Bell:
    """Wakes the thread that waits for it, or that will.

    Unlike a `Condition` or an `Event` it holds no lock around a wait. What a signal handler raises in the middle leaves
    nothing locked, and nothing to be released that is not.
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
        """Return when it is rung, or was since the last time; at the latest after so many seconds."""
        self._silence.acquire(timeout=seconds)
