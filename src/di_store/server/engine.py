"""Mooncake's transfer engine: reads from the memory of another agent directly into this agent's store.

The package is the extra ``[rdma]``. Only agents have an engine. It starts threads, which would be missing after a fork.
It listens at ports of its own, on all addresses of the machine, and requires no token there: anybody who reaches these
ports may read and write registered memory. So only payloads are registered, each only while it is read from or into.

There is another reason not to register the whole arena: pages of freed blocks go back to the system, and an RDMA device
would keep using the old pages. The pages of a payload stay: its block is pinned, or a draft.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from di_store.base.dtypes import Array
from di_store.client.bulk import PayloadRoom
from di_store.runtime.waits import logger

OWN = "tcp"
BULK_KINDS = (OWN, "mooncake-tcp", "rdma")
"""How payloads may come: over connections of ours, or by an engine."""
DEVICES = "/sys/class/infiniband"
"""The RDMA devices of this machine, a folder each."""
LOOK_SECONDS = 0.1
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.0001, 0.005  # between two looks whether a transfer has ended
_DONE, _FAILED = 1, -1  # of `transfer_check_status`: final, nothing is written any more
_SETTINGS = {"MC_LOG_LEVEL": "ERROR", "MC_HANDSHAKE_CONNECT_TIMEOUT": "3"}


class EngineFailed(Exception):
    """The engine has not transferred the bytes, for the reason in the text. It has stopped writing."""


class EngineOffer(msgspec.Struct, array_like=True, frozen=True):
    """The place from which an engine may read a payload.

    Attributes:
        engine: HOST:PORT of the engine that has the payload.
        at: address of the payload in that engine's process.
    """

    engine: str
    at: int


class _TransferEngine(Protocol):
    """The methods of Mooncake's class of that name that are used here.

    Calls that return an `int` but no state: 0 is success.
    """

    def initialize(self, host: str, metadata: str, protocol: str, devices: str, /) -> int: ...
    def get_rpc_port(self) -> int: ...
    def register_memory(self, at: int, size: int, /) -> int: ...
    def unregister_memory(self, at: int, /) -> int: ...
    def batch_transfer_async_read(self, peer: str, to: list[int], at: list[int], sizes: list[int], /) -> int: ...
    def transfer_check_status(self, batch: int, /) -> int: ...


class Engine:
    """The engine of an agent. Thread-safe.

    Attributes:
        kind: one of `BULK_KINDS` except `OWN`. Engines of different kinds do not understand each other.
    """

    def __init__(self, kind: str, host: str) -> None:
        """Set the state; starts nothing. `host`: this machine's address for other machines."""
        self.kind = kind
        self._host = host
        self._lock = threading.Lock()
        self._native: _TransferEngine | None = None  # under _lock until it is set, then it stays
        self._missing: str | None = None  # why it cannot be used; None: that was not tried yet. Under _lock
        self._registered: dict[int, int] = {}  # by address, how many use it. Under _registering
        self._registering = threading.Lock()

    def missing(self) -> str:
        """The reason why the engine cannot be used; "": it can.

        The first call starts the engine; a failure is logged.
        """
        with self._lock:
            if self._missing is None:
                try:
                    self._native = _started(self.kind, self._host)
                    self._missing = ""
                except EngineFailed as error:
                    self._missing = f"node {self._host} has no engine: {error}"
                    logger.warning("--bulk %s cannot be used, objects are sent over TCP: %s", self.kind, error)
            return self._missing

    @contextlib.contextmanager
    def registered(self, payload: Array) -> Iterator[EngineOffer]:
        """Let the engine read or write a payload during the block. The payload stays pinned.

        Raises:
            EngineFailed: the engine cannot use it.
        """
        native, at = self._started(), payload.ctypes.data
        with self._registering:
            count = self._registered.get(at, 0)
            if not count and native.register_memory(at, len(payload)):
                raise EngineFailed(f"the engine cannot register {len(payload)} bytes")
            self._registered[at] = count + 1
        try:
            yield EngineOffer(f"{self._host}:{native.get_rpc_port()}", at)
        finally:
            with self._registering:
                self._registered[at] -= 1
                if not self._registered[at]:
                    del self._registered[at]
                    native.unregister_memory(at)

    def read(self, offer: EngineOffer, room: PayloadRoom, go_on: Callable[[], None]) -> None:
        """Read the payload that another engine offers. The bytes are not checked.

        Args:
            offer: the offer of that engine's agent.
            room: kept until the engine has stopped writing, even if this call ends earlier.
            go_on: called ten times a second meanwhile; may raise, which ends the call.

        Raises:
            EngineFailed: the bytes did not arrive.
        """
        failed: list[str] = []
        ended = threading.Event()

        def run() -> None:
            try:
                self._read(offer, room)
            except EngineFailed as error:
                failed.append(str(error))
            except Exception as error:  # whatever the module raises for an odd address
                failed.append(f"{type(error).__name__}: {error}")
            finally:
                ended.set()

        threading.Thread(target=run, name="di-store engine", daemon=True).start()
        while not ended.wait(LOOK_SECONDS):
            go_on()
        if failed:
            raise EngineFailed(failed[0])

    def _read(self, offer: EngineOffer, room: PayloadRoom) -> None:
        """Runs in a thread of its own, because `batch_transfer_async_read` may wait for a connection.

        It does not use `transfer_sync_read`, which polls without a pause, and may still write after it has given up.
        """
        native = self._started()
        with self.registered(room.payload) as own:
            batch = native.batch_transfer_async_read(offer.engine, [own.at], [offer.at], [len(room.payload)])
            if not batch:
                raise EngineFailed(f"the engine at {offer.engine} cannot be reached")
            pause = _SHORTEST_SECONDS
            while (state := native.transfer_check_status(batch)) not in (_DONE, _FAILED):
                time.sleep(pause)
                pause = min(1.1 * pause, _LONGEST_SECONDS)
        if state == _FAILED:
            raise EngineFailed(f"a transfer from the engine at {offer.engine} failed")

    def _started(self) -> _TransferEngine:
        if (why := self.missing()) or self._native is None:
            raise EngineFailed(why)
        return self._native


def _started(kind: str, host: str) -> _TransferEngine:
    """A new engine.

    Raises:
        EngineFailed: the package, a library that it needs, or a device is missing.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    protocol = "rdma" if kind == "rdma" else "tcp"
    if protocol == "tcp":
        os.environ["MC_FORCE_TCP"] = "1"  # else it takes RDMA wherever there is a device
    elif not os.path.isdir(DEVICES) or not os.listdir(DEVICES):
        raise EngineFailed("this machine has no RDMA device")  # it would take TCP without a word
    try:
        made: _TransferEngine = importlib.import_module("mooncake.engine").TransferEngine()
    except ImportError as error:
        raise EngineFailed(f"{error}; pip install 'di-store[rdma]' (docs/machines.md)") from None
    if made.initialize(host, "P2PHANDSHAKE", protocol, ""):
        raise EngineFailed(f"Mooncake's engine does not start with protocol {protocol!r}; its messages are above")
    return made
