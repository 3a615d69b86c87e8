"""Sends objects to other nodes before these nodes ask for them.

The agent of the machine where an object was put notifies the agents of the other nodes in the background. Each of them
copies the object as a reader would (`di_store.client.copying`): it leaves as much room free, the copy stays as long,
and concurrent readers wait for the same copy. Sending ahead is a hint: an object that cannot be sent or copied is
copied by its first reader.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from di_store.base.errors import (
    CapacityError,
    NodeUnavailable,
    ObjectExists,
    ObjectNotFound,
    StoreClosed,
    StoreError,
    StoreFull,
)
from di_store.broadcast.note import check_addresses
from di_store.broadcast.other_agents import OtherAgents
from di_store.client.bulk import OWN_TCP, Bulk
from di_store.client.copying import SLOWEST_BYTES, head_of, make_copy
from di_store.objects.refs import Ref
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import logger
from di_store.session import Session

MOST_WAITING = 1024
"""The most objects that wait to be sent or copied. Further ones are left to their first reader."""
SILENT_SECONDS = 5.0
"""For how long a node that did not answer is told of nothing."""
_TELLERS, _COPIERS = 4, 2
_SOURCE_SECONDS = 5.0  # that the source has to answer, beside the time for the bytes


class _Workers:
    """A few threads that make calls in their order. Thread-safe. They are started when they are first needed."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, name)
        self._name = name
        self._room = threading.Semaphore(MOST_WAITING)

    def add(self, job: Callable[[], None]) -> bool:
        """Have a call made soon; False: too many calls wait."""
        if not self._room.acquire(blocking=False):
            return False
        with contextlib.suppress(RuntimeError):  # the agent ends
            self._pool.submit(self._run, job)
        return True

    def stop(self) -> None:
        """End the threads after their current calls; waiting calls are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Callable[[], None]) -> None:
        self._room.release()
        try:
            job()
        except StoreClosed:
            pass  # the agent ends
        except Exception as error:  # whatever a stranger's answer leads to: the next job is another one
            logger.warning("%s: %s: %s", self._name, type(error).__name__, error)


class ObjectPush:
    """Both sides of sending ahead in one agent: notifies other agents of objects, and copies objects when notified.

    Thread-safe.
    """

    def __init__(self, session: Session, agents: OtherAgents, bulk: Bulk = OWN_TCP) -> None:
        """Set the state; starts no thread.

        `session` and `agents` are those of `Chains`; `bulk`: the transport of large payloads.
        """
        self._session = session
        self._bulk = bulk
        self._agents = agents
        self._tellers = _Workers(_TELLERS, "di-store ahead")
        self._copiers = _Workers(_COPIERS, "di-store copy")
        self._lock = threading.Lock()
        self._silent: dict[str, float] = {}  # by address, when it may be told again. Under _lock
        self._stopped = False
        self._behind = False  # whether the log says that too many wait; only for that

    def send(self, id: Any, members: Any, own: Any) -> None:
        """Notify the agents at these addresses of an object of this store; `own`: this store's address.

        Returns at once.
        """
        raw, [source] = Ref(id).raw, check_addresses([own])
        for member in check_addresses(members):
            if not self._is_silent(member):
                self._queue(self._tellers, partial(self._tell, member, raw, source))

    def copy(self, id: Any, source: Any) -> None:
        """Copy an object from the store at an address into this store. Returns at once."""
        raw = Ref(id).raw
        [address] = check_addresses([source])
        self._queue(self._copiers, partial(self._copy, raw, address))

    def copy_now(self, id: Any, source: Any, timeout: float | None) -> bool:
        """Copy an object from the store at an address into this store, for a process that waits for it.

        Returns False if that store does not answer this agent; the process itself may be able to reach it.

        Raises:
            As `make_copy`. ObjectNotFound: the object is gone.
        """
        raw, deadline = Ref(id).raw, Deadline(timeout)
        [address] = check_addresses([source])
        try:
            far = self._agents.at(address)
            far.meet(deadline.sooner(_SOURCE_SECONDS))
            head, total = head_of(far, raw, deadline.left)
            make_copy(self._session, far, raw, head, total, deadline, self._bulk)
        except (NodeUnavailable, StoreClosed):
            return False
        return True

    def stop(self) -> None:
        """Stop, because the agent ends."""
        self._stopped = True
        self._tellers.stop()
        self._copiers.stop()

    def _queue(self, workers: _Workers, job: Callable[[], None]) -> None:
        if workers.add(job):
            self._behind = False
        elif not self._behind:
            self._behind = True
            logger.warning(
                "%d objects already wait to be sent ahead: further objects are copied only when they are read",
                MOST_WAITING,
            )

    # -- telling ------------------------------------------------------------------------------------------------

    def _is_silent(self, member: str) -> bool:
        with self._lock:
            return time.monotonic() < self._silent.get(member, 0.0)

    def _tell(self, member: str, raw: bytes, source: str) -> None:
        if self._is_silent(member) or self._stopped:
            return
        try:
            self._agents.ask(member, "copy_ahead", {"id": raw, "source": source})
        except (StoreError, TypeError, ValueError) as error:  # TypeError: an older agent has no such call
            with self._lock:
                self._silent[member] = time.monotonic() + SILENT_SECONDS
            logger.warning("no objects are sent ahead to %s for %.0f s: %s", member, SILENT_SECONDS, error)

    # -- copying ------------------------------------------------------------------------------------------------

    def _copy(self, raw: bytes, address: str) -> None:
        if self._stopped or self._session.arena.contains(raw, _SOURCE_SECONDS):
            return
        try:
            far = self._agents.at(address)
            far.meet(_SOURCE_SECONDS)
            head, total = head_of(far, raw, _SOURCE_SECONDS)
            make_copy(self._session, far, raw, head, total, _SOURCE_SECONDS + total / SLOWEST_BYTES, self._bulk)
        except (ObjectExists, ObjectNotFound, StoreFull, CapacityError):
            pass  # a reader was faster; it was deleted; or there is no room, and readers will say so
        except StoreError as error:
            if not self._stopped:
                logger.warning("object %s was not copied ahead from %s: %s", raw.hex(), address, error.message)
