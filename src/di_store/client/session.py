"""The state that all handles of one remote store in this process share. All handles end with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from multiprocessing import context
from typing import Any, TypeVar

from di_store.base.errors import StoreClosed, StoreError
from di_store.client.address import Address, client_context, token_for
from di_store.client.agent_client import CONNECT_SECONDS, AgentClient
from di_store.client.channel import Channel, Seconds
from di_store.client.pipe import settle
from di_store.runtime.deadline import Deadline

H = TypeVar("H")


class RemoteSession:
    """The channel, and the handles that end with it. Thread-safe.

    Attributes:
        channel: channel to the agent.
        staging: None: only `prefetch` limits the loaders of a remote store.
        kept: batches of interrupted `sample` calls, which the next call returns (`drawing.sampled`).
    """

    staging = None

    def __init__(self, channel: Channel, tls: Any) -> None:
        self.channel = channel
        self.tls = tls  # as `connect` was given it
        self.abroad: Callable[[str], tuple[Any, ...]] | None = None
        """How a table of a cluster pickles, given its name; None: a table pickles with the address of its store."""
        self.near_versions: dict[str, int] | None = None
        """The versions in this machine's store, if a cluster's weights are read there; None: the agent's versions are
        read."""
        self.kept: dict[Any, Any] = {}
        self._met = False
        self._followers: dict[int, tuple[weakref.ref[Any], Callable[[Any, StoreError], None]]] = {}

    @property
    def versions(self) -> dict[str, int]:
        """The version of each name of weights that this process last got from `latest`."""
        return self.channel.client.versions if self.near_versions is None else self.near_versions

    @property
    def name(self) -> str:
        """Name of the store, as the agent has said; before that, as the address has it."""
        client = self.channel.client
        return client.welcome.store if client.agent else client.address.store

    def pickled(self) -> tuple[Any, ...]:
        """The data with which another process connects. A token goes only to processes that this one starts."""
        spawning = context.get_spawning_popen() is not None
        token = self.channel.token if spawning else None
        tls = self.tls if isinstance(self.tls, (str, bool)) else None
        return str(self.channel.address), token, tls, self.channel.allow_pickle

    @classmethod
    def of(cls, pickled: Any) -> RemoteSession:
        """A session of this process, from the data of `pickled`."""
        address, token, tls, allow_pickle = pickled
        return cls.connect(address, token, tls, allow_pickle, CONNECT_SECONDS)

    @classmethod
    def connect(
        cls, address: str, token: Any, tls: Any, allow_pickle: bool, timeout: Seconds, what: str | None = None
    ) -> RemoteSession:
        """A session with the store at an address.

        Args:
            address: address of the store.
            token: as in `di_store.connect`.
            tls: as in `di_store.connect`.
            allow_pickle: as in `di_store.connect`.
            timeout: in seconds; None: no limit.
            what: name of the call that needs it, for errors.

        Raises:
            As `di_store.connect`.
        """
        deadline = Deadline.of(timeout)
        while True:
            session = cls.at(address, token, tls, allow_pickle)
            channel = session.channel
            known = channel.client.agent != b""
            try:
                session.meet(deadline, what)
                return session
            except BaseException as error:  # also Ctrl-C: no session is returned that would end it
                channel.close(StoreClosed(f"{channel.address} was not reached"))
                if not known or not isinstance(error, StoreClosed):
                    raise
                # what this process knew of the address is a store that is gone

    @classmethod
    def at(cls, address: str, token: Any, tls: Any, allow_pickle: bool) -> RemoteSession:
        """A session with the store at an address, which its first call connects to. As `connect` otherwise."""
        where = Address.parse(address)
        given, context = token_for(where, token), client_context(tls)
        tls = os.fspath(tls) if isinstance(tls, os.PathLike) else tls
        return cls(Channel(AgentClient.shared(where, given, tls, allow_pickle, context), allow_pickle), tls)

    def meet(self, timeout: Seconds, what: str | None = None) -> None:
        """Have the agent answer, unless it has answered this session before. `what`: name of the call, for errors."""
        if not self._met:
            self.call("hello", timeout=timeout, what=what or f"connect to {self.channel.address}")
            self._met = True

    def tell_version(self, name: str, timeout: Seconds) -> None:
        """Tell the agent which version of the weights this process last got. Inserted rows carry it."""
        client = self.channel.client
        version, agent, reported = self.versions.get(name, -1), client.agent, client.reported
        if reported.get(name) != (agent, version) and (version >= 0 or name in reported):
            self.channel.call("note_version", {"name": name, "version": version}, timeout=timeout, what="insert")
            reported[name] = agent, version

    def call(self, method: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        """As `Channel.call`."""
        return self.channel.call(method, arguments, **options)

    def ended(self) -> bool:
        """Whether `close` was called."""
        return self.channel.closed is not None

    def is_over(self) -> bool:
        """Whether `close` was called, or another store has taken the place of its own."""
        return self.ended() or self.channel.client.ended is not None

    def follow(self, handle: H, end: Callable[[H, StoreError], None]) -> None:
        """Call ``end(handle, why)`` when the session ends; the session does not keep the handle alive."""
        key, known = id(handle), self._followers
        known[key] = weakref.ref(handle, lambda _: known.pop(key, None)), end
        if self.ended():
            self.close()
            self.channel.check_open()

    def close(self) -> None:
        """End the session and all its handles."""
        why = StoreClosed(
            f"this handle of store {self.name!r} at {self.channel.node} was closed",
            remedy="di_store.connect(address) gives a new one",
        )
        for reference, end in list(self._followers.values()):
            if (handle := reference()) is not None:
                end(handle, why)
        settle(self.channel)
        self.channel.close(why)
