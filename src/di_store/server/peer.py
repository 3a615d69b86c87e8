"""One client process as the agent sees it: its handles, draws and answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from di_store.broadcast.chains import Chains
from di_store.objects.access import Objects
from di_store.replay.batch import Blob, mark_foreign
from di_store.server.answers import Answers
from di_store.server.draws import HeldDraws
from di_store.server.engine import Engine
from di_store.server.handles import Handles
from di_store.server.leases import ClientLeases
from di_store.server.push import ObjectPush
from di_store.server.version_watch import VersionWatch
from di_store.session import Session
from di_store.store.handle import Store
from di_store.store.local import LocalStore


@dataclass(frozen=True)
class AgentParts:
    """What all clients of an agent share.

    Attributes:
        chains: weights of its groups.
        push: objects that are sent ahead.
        versions: clients wait there for new versions of weights.
        engine: lends payloads to other agents; None: the agent was started without an engine.
    """

    chains: Chains
    push: ObjectPush
    versions: VersionWatch
    engine: Engine | None


@dataclass
class Peer:
    """One client process: all of its connections share it.

    Attributes:
        link: 16 bytes that name the process.
        name: name of the process, for people.
        trusted: whether values that it pickles may be loaded here (`--allow-pickle`).
        parts: of the agent.
        connections: number of open connections.
        heard: time of the last data from the client, `time.monotonic()`.
        leaving: whether the client has said goodbye.
        handles: its handles, by number or name.
        draws: draws that the client has not received.
        leases: leases of batches that it has received.
        answers: answers that the client may ask for again.
    """

    link: bytes
    name: str
    session: Session
    trusted: bool
    parts: AgentParts
    connections: int = 0
    heard: float = field(default_factory=time.monotonic)
    writers: dict[bytes, Any] = field(default_factory=dict)
    leaving: bool = False

    def __post_init__(self) -> None:
        self.store = Store(LocalStore(self.session))
        self.objects = Objects(self.session)
        self.handles = Handles(self.store)
        self.draws = HeldDraws()
        self.leases = ClientLeases(self.session, self.link)
        self.answers = Answers()

    def is_needed(self) -> bool:
        """Whether the client would miss any of this state if it came back now, as it does after a broken connection."""
        missed = len(self.answers) or len(self.handles) or self.leases.any
        return bool(self.writers or (not self.leaving and missed))

    def let_go(self, numbers: list[int]) -> None:
        """Forget the handles and draws with these numbers, which the client has dropped."""
        for number in numbers:
            self.handles.let_go(number)
            self.draws.let_go(number)

    def blobs(self, value: Any) -> Any:
        """Encoded values of an opaque table, or nested lists of them, marked as coming from elsewhere.

        Raises:
            TypeError: the values have another form.
        """
        if isinstance(value, list):
            return [self.blobs(each) for each in value]
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 1 or len(value) < 8:
            raise TypeError("received a value of an opaque table that is not encoded")
        if self.trusted:
            return Blob(value)
        marked = value.copy()
        mark_foreign(marked)
        return Blob(marked)

    def end(self) -> None:
        """Clean up after a client that has ended: give its draws back, and close its handles and writers."""
        try:
            self.draws.give_back_all()
            for writer in list(self.writers.values()):
                writer.end()
        finally:
            self.store.close()
