"""Watches for new versions of weights: one thread checks for all waiting clients."""

from __future__ import annotations

import threading
import time
from typing import Any

from di_store.base.errors import StoreError
from di_store.objects.weights import check_name
from di_store.session import Session

TELL_SECONDS = 1.0
"""How often a client hears that nothing is new."""
LOOK_SECONDS = 0.005
"""Seconds between two looks at the newest versions. Not the store's own wait: each `put` would wake it."""
MOST_NAMES = 1000


class VersionWatch:
    """The watch of one agent. Thread-safe. Its thread runs while clients wait, and ends a little later."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._changed = threading.Condition()
        self._newest: dict[str, int] = {}  # of each name of `_asked`, as of the last look. Both under `_changed`
        self._asked: dict[str, float] = {}  # when a client last asked for the name
        self._runs = False
        self._stopped = False

    def news(self, known: Any) -> dict[str, int]:
        """The newest versions that a client does not know, by name; 0: none was published.

        Returns once there is such a version, and after `TELL_SECONDS` at the latest without one.

        Args:
            known: by name, the version that the client knows; -1: it knows of none.

        Raises:
            StoreClosed: the store was removed. TypeError, ValueError: the argument has no names and versions.
        """
        _check(known)
        with self._changed:
            self._asked.update(dict.fromkeys(known, time.monotonic()))
            self._look()
            if not self._runs:
                threading.Thread(target=self._run, name="di-store versions", daemon=True).start()
                self._runs = True
            self._changed.wait_for(lambda: self._stopped or self._unknown(known), TELL_SECONDS)
            return self._unknown(known)

    def stop(self) -> None:
        """Stop, because the agent ends: waiting calls return."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _unknown(self, known: dict[str, int]) -> dict[str, int]:
        newest = self._newest
        return {name: newest[name] for name, version in known.items() if newest.get(name, version) != version}

    def _look(self) -> bool:
        """Read the newest versions. Whether a version has changed. Under `_changed`."""
        arena = self._session.arena
        arena.enter()
        found = {name: arena.newest(name) for name in self._asked}
        changed = found != self._newest
        self._newest = found
        return changed

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._changed:
                since = time.monotonic() - 2 * TELL_SECONDS
                self._asked = {name: at for name, at in self._asked.items() if at > since}
                try:
                    if self._stopped or not self._asked:
                        self._runs = False
                        return
                    if self._look():
                        self._changed.notify_all()
                except StoreError:  # the store was removed: the next call of each client says so
                    self._runs = False
                    return


def _check(known: Any) -> None:
    if not isinstance(known, dict) or not all(type(each) is int for each in known.values()):
        raise TypeError("expected version numbers by name")
    if len(known) > MOST_NAMES:
        raise ValueError(f"versions of {len(known)} names: a client can wait for at most {MOST_NAMES}")
    for name in known:
        check_name(name)
