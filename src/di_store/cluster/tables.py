"""The tables of a cluster. A table's entry in the directory holds its nodes and its settings.

The entry is written before the shards are made. If a process dies in between, the next process that opens the table
makes the missing shards. A drop first marks the entry as dropped, and removes it last.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import msgspec

from di_store.base.errors import NodeUnavailable, StoreError, TableExists, TableNotFound, Timeout
from di_store.checkpoint.store import durable
from di_store.client.table import create_remote, open_remote
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import TABLE, TableEntry, call_name, packed, unpacked
from di_store.cluster.directory_entries import keep_entry, own_entries
from di_store.cluster.node import Node
from di_store.cluster.shards.division import LOCAL, shard_settings
from di_store.cluster.shards.parts import Parts
from di_store.cluster.shards.shard import Shard, wait_for_one
from di_store.cluster.shards.sharded_table import ShardedTable
from di_store.policy.settings import Settings
from di_store.replay.local_table import local_table
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import LEAST_SECONDS, PAUSE_SECONDS, Deadline
from di_store.runtime.waits import Wait, lock_seconds, logger
from di_store.session import Session

UNDO_SECONDS = 10.0
"""Time for undoing what could not be made as a whole."""
_UNDO_WAIT_SECONDS = 0.1
"""How long a call waits after its deadline until this is undone; a thread continues with it."""


class ClusterTables:
    """Implements the calls of a `ClusterStore` that concern tables."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session  # of the store on this machine

    def create(
        self,
        name: str,
        settings: Settings,
        nodes: list[Node],
        exist_ok: bool,
        deadline: Deadline,
        draw: str = LOCAL,
    ) -> TableBackend:
        """Make a table with one shard on each of the nodes.

        Args:
            name: unique in the cluster.
            settings: settings of the whole table.
            nodes: nodes that get a shard.
            exist_ok: return an equal table of that name.
            deadline: of the call.
            draw: "local" or "mass": how learners draw from shards.

        Raises:
            As `Store.create_table`. NodeUnavailable: the directory or one of the nodes does not answer.
        """
        for number in range(len(nodes)):
            _settings_of(
                settings, len(nodes), number, draw
            )  # what cannot be divided is refused before anything is made
        while True:
            if (known := self._entry(name, deadline)) is None:
                try:
                    adopted = self._adopted(name, nodes, exist_ok, deadline)
                except TableExists:
                    if self._entry(name, deadline) is None:
                        raise
                    continue  # another process has made it for the cluster meanwhile
                uuids = tuple(each.uuid for each in nodes)
                entry = TableEntry(settings.to_text(), uuids, draw, maker=adopted or call_name())
                if not self._cluster.directory.swap(_key(name), None, packed(entry), deadline.another()):
                    continue  # another process was faster
                try:
                    return self._made(name, entry, nodes, () if adopted else entry.shards, deadline)
                except TableNotFound:  # it was dropped as soon as it was there
                    if deadline.left == 0:
                        raise
                    continue
            if not exist_ok:
                raise TableExists(f"the cluster already has a table {name!r}")
            if difference := _difference(known, settings, len(nodes), draw):
                raise _other_settings(name, difference)
            try:
                return self._existing(name, known, settings, deadline)
            except TableNotFound:
                if deadline.left == 0:
                    raise  # dropped meanwhile, again and again

    def _existing(self, name: str, known: TableEntry, settings: Settings, deadline: Deadline) -> TableBackend:
        """The table of an entry, unless its first step has declared other columns than the given ones."""
        found = self._open(name, known, deadline)
        if settings.schema is not None:
            columns = found.schema(deadline.another())
            if difference := Settings.from_text(known.settings).difference(settings, columns):
                raise _other_settings(name, difference)
        return found

    def _made(
        self, name: str, entry: TableEntry, nodes: list[Node], given_up: tuple[str, ...], deadline: Deadline
    ) -> TableBackend:
        """Make the shards of an entry that this call wrote.

        If one fails, the shards of `given_up` and the entry are removed.
        """
        try:
            made = [self._make(node, name, entry, deadline.another()) for node in nodes]
            return self._joined(name, entry, made)
        except BaseException:  # also Ctrl-C: all parts are made, or none
            undo = threading.Thread(target=self._undo, args=(name, entry, given_up), name="di-store undo", daemon=True)
            undo.start()
            seconds = deadline.left
            undo.join(UNDO_SECONDS if seconds is None else max(seconds, _UNDO_WAIT_SECONDS))
            raise

    def _undo(self, name: str, entry: TableEntry, given_up: tuple[str, ...]) -> None:
        dropped = msgspec.structs.replace(entry, shards=given_up, dropped=True)
        with contextlib.suppress(StoreError):  # whoever finds the entry goes on
            if self._cluster.directory.swap(_key(name), packed(entry), packed(dropped), UNDO_SECONDS):
                self._finish_drop(name, dropped, Deadline(UNDO_SECONDS))

    def _adopted(self, name: str, nodes: list[Node], exist_ok: bool, deadline: Deadline) -> str:
        """The identity of a table that the node's store has for itself, and that `exist_ok` makes the cluster's.

        Raises:
            TableExists: the table exists, and may not be taken.
        """
        found = ""
        for node in nodes:
            try:
                own = self._shard(node, name, "", deadline.another())
            except TableNotFound:
                continue
            if not exist_ok or len(nodes) > 1:
                raise TableExists(
                    f"the store of node {node.name} already has its own table {name!r}",
                    remedy=(
                        "exist_ok=True adds a table with equal settings to the cluster; or choose another "
                        "name, or drop the table there"
                    ),
                )
            found = own.identity
        return found

    def open(self, name: str, deadline: Deadline) -> TableBackend:
        """The table of that name, of the cluster or of this store alone.

        Raises:
            TableNotFound: it does not exist in time. NodeUnavailable: its node does not answer, or is lost.
        """
        arena = self._session.arena
        with Wait(arena, deadline.left, f"table {name!r}") as wait:
            while True:
                if (found := self._found(name, deadline)) is not None:
                    return found
                if deadline.left == 0:
                    raise TableNotFound(f"neither the cluster nor this store has a table {name!r}")
                wait.sleep(PAUSE_SECONDS, "nobody has created it yet", arena.wait_table, arena.room_seq())

    def _found(self, name: str, deadline: Deadline) -> TableBackend | None:
        """The table of that name now; None: there is none."""
        try:
            entry = self._entry(name, deadline)
        except NodeUnavailable:  # what lies here needs no directory
            known = self._session.arena.table(name)
            if known is None or known.taken_over:
                raise
            return self._open_here(self._session, name)
        if entry is not None:
            return self._open(name, entry, deadline)
        if self._session.arena.table(name) is not None:
            return local_table(self._session, name, 0)
        return None

    def drop(self, name: str, deadline: Deadline) -> None:
        """Drop a table with all its shards. Shards on lost nodes are forgotten.

        Raises:
            TableNotFound: there is no such table. NodeUnavailable: the directory or a node does not answer.
        """
        while (entry := self._entry(name, deadline)) is not None:
            dropped = msgspec.structs.replace(entry, dropped=True)
            if self._cluster.directory.swap(_key(name), packed(entry), packed(dropped), deadline.another()):
                self._finish_drop(name, dropped, deadline)
                return
        if self._session.arena.table(name) is None:
            raise TableNotFound(f"neither the cluster nor this store has a table {name!r}")
        self._session.writable().drop_table(name, lock_seconds(deadline.left))

    def take_over(
        self, name: str, was: TableEntry, uuids: Sequence[str], entries_lost: bool, timeout: float | None
    ) -> bool:
        """Register in the directory that this node has the shard of a lost node.

        False: the name belongs to another table by now.

        Args:
            name: name of the table, which this store has.
            was: the table's entry that the lost node kept.
            uuids: uuids of the stores that had the shard.
            entries_lost: whether the directory's entries were lost with the node; then a missing entry has no meaning.
            timeout: seconds; None: no limit.

        Raises:
            NodeUnavailable: the directory, or this node's agent, does not answer.
        """
        deadline, here = Deadline(timeout), self._cluster.here
        while True:
            stored = self._cluster.directory.read(_key(name), deadline.left)
            if stored is None and not entries_lost:
                return False  # it was dropped
            known = was if stored is None else unpacked(stored, TableEntry)
            if known.maker != was.maker or known.dropped:
                return False
            shards = tuple(here.uuid if each in uuids else each for each in known.shards)
            if here.uuid not in shards:
                return False
            entry = msgspec.structs.replace(known, shards=shards)
            for uuid in sorted(shards, key=lambda each: each != here.uuid):
                self._keep_elsewhere(uuid, name, entry, deadline.left)
            same = stored == packed(entry)
            if same or self._cluster.directory.swap(_key(name), stored, packed(entry), deadline.left):
                return True

    def _keep_elsewhere(self, uuid: str, name: str, entry: TableEntry, timeout: float | None) -> None:
        """Have a node of a table keep its entry, which has changed. An unreachable node keeps the old entry."""
        node = self._cluster.by_uuid(uuid, timeout)
        if node is None:
            return
        what = f"directory entry of table {name!r}"
        try:
            keep_entry(self._cluster.sessions, node, _key(name), packed(_kept(entry)), timeout, what=what)
        except NodeUnavailable:
            if node == self._cluster.here:
                raise

    # -- the directory ------------------------------------------------------------------------------------------

    def _entry(self, name: str, deadline: Deadline) -> TableEntry | None:
        """The entry of a table; an unfinished drop is finished first."""
        while (stored := self._cluster.directory.read(_key(name), deadline.another())) is not None:
            entry = unpacked(stored, TableEntry)
            if not entry.dropped:
                return entry
            self._finish_drop(name, entry, deadline)
        return None

    def _finish_drop(self, name: str, entry: TableEntry, deadline: Deadline) -> None:
        """Drop the shards of an entry marked as dropped: only these tables, not later ones of the same name."""
        there = {node.uuid for node in self._cluster.nodes(deadline.another())} if len(entry.shards) > 1 else set()
        first = sorted(entry.shards, key=lambda each: each not in there)  # those that are lost take all the time
        for at, uuid in enumerate(first):
            least = LEAST_SECONDS if uuid in there or len(first) == 1 else 0.0  # however many are lost
            if (node := self._cluster.awaited(uuid, deadline.step(len(first) - at, least=least))) is None:
                continue
            step = deadline.step(len(first) - at, least=least)
            try:
                self._drop_shard(node, name, entry.maker, step)
                what, kept = f"drop_table({name!r})", packed(_kept(entry))
                keep_entry(self._cluster.sessions, node, _key(name), None, step, what=what, only=kept)
            except NodeUnavailable as error:  # should it come back, the table is its own store's
                logger.warning("table %r was removed from the directory: %s", name, error.message)
        self._cluster.directory.swap(_key(name), packed(entry), None, deadline.another())

    # -- shards -------------------------------------------------------------------------------------------------

    def _open(self, name: str, entry: TableEntry, deadline: Deadline) -> TableBackend:
        """The table of an entry. A table in parts may lack the shards of nodes that do not answer."""
        if len(entry.shards) == 1:
            return self._open_shard(name, entry, entry.shards[0], deadline)
        shards = self._shards(name, entry, [None] * len(entry.shards))
        for shard in shards:  # all at once; one that is silent for a look goes on being opened, for later calls
            shard.open_ahead(deadline)
        failed: list[StoreError] = []
        look = deadline.another().sooner(0.0)
        for shard in shards:
            try:
                shard.table(look)
            except (NodeUnavailable, Timeout) as error:
                failed.append(error)
        if len(failed) == len(shards):
            if deadline.late():
                raise failed[0]
            wait_for_one(shards, deadline)
        return self._in_parts(name, entry, shards)

    def _open_here(self, session: Session, name: str) -> TableBackend:
        """A table with a part in this store, without the directory: the node keeps the table's entry."""
        here = local_table(session, name, 0)
        stored = own_entries(session).get(_key(name))
        entry = None if stored is None else unpacked(stored, TableEntry)
        if entry is None or len(entry.shards) == 1 or entry.maker != here.identity:
            return here
        return self._joined(name, entry, [here if uuid == session.uuid else None for uuid in entry.shards])

    def _open_shard(self, name: str, entry: TableEntry, uuid: str, deadline: Deadline) -> TableBackend:
        """The shard of one node."""
        own = uuid == self._cluster.here.uuid  # what lies here needs no directory
        node = self._cluster.here if own else self._cluster.awaited(uuid, deadline)
        if node is None:
            raise NodeUnavailable(
                f"table {name!r} lies on node {uuid[:12]}, which is gone or does not answer",
                remedy="drop_table() removes it if the node does not come back",
            )
        try:
            return self._shard(node, name, entry.maker, deadline.another())
        except TableNotFound:  # whoever was to make it has died, or is at it
            if self._entry(name, deadline) != entry:
                raise
            return self._make(node, name, entry, deadline.another())

    def _joined(self, name: str, entry: TableEntry, found: Sequence[TableBackend | None]) -> TableBackend:
        """The shards of a table as one handle; None in place of a shard: it is opened when its node answers."""
        if len(found) == 1 and found[0] is not None:
            return found[0]
        return self._in_parts(name, entry, self._shards(name, entry, found))

    def _shards(self, name: str, entry: TableEntry, found: Sequence[TableBackend | None]) -> list[Shard]:
        """The shards of a table in parts, with these open handles."""

        def opened(uuid: str, timeout: float | None) -> TableBackend:
            return self._open_shard(name, entry, uuid, Deadline(timeout))

        pairs = enumerate(zip(entry.shards, found, strict=True))
        return [Shard(number, uuid, opened, table) for number, (uuid, table) in pairs]

    def _in_parts(self, name: str, entry: TableEntry, shards: list[Shard]) -> TableBackend:
        session, abroad, here = self._session, self._cluster.sessions.abroad, self._cluster.here.uuid
        assert abroad is not None
        parts = Parts(session, name, Settings.from_text(entry.settings), entry.draw, here, shards)
        return ShardedTable(parts, abroad(name))

    def _is_here(self, node: Node) -> bool:
        return node.uuid == self._session.uuid

    def _shard(self, node: Node, name: str, identity: str, deadline: Deadline) -> TableBackend:
        """The table of a node that has this name, and identity if one is given; TableNotFound if it has none."""
        if self._is_here(node):
            found: TableBackend = local_table(self._session, name, 0)
        else:
            with self._cluster.sessions.calling(node, deadline) as session:
                found = open_remote(session, name, deadline, 0)
        if identity not in ("", found.identity):
            raise TableNotFound(f"node {node.name} has another table {name!r}, which is not part of the cluster")
        return found

    def _make(self, node: Node, name: str, entry: TableEntry, deadline: Deadline) -> TableBackend:
        """Make the shard of a node, if nobody has yet, and have the node keep the table's entry."""
        whole = Settings.from_text(entry.settings)
        settings = _settings_of(whole, len(entry.shards), entry.shards.index(node.uuid), entry.draw)
        settings = msgspec.structs.replace(settings, made=entry.maker)
        if self._is_here(node):
            made: TableBackend = durable.made(self._session, name, settings, True, deadline.left)
        else:
            with self._cluster.sessions.calling(node, deadline) as session:
                made = create_remote(session, name, settings, True, deadline)
        if made.identity != entry.maker:
            raise TableExists(f"the store of node {node.name} already has its own table {name!r}")
        what = f"create_table({name!r}): its directory entry"
        keep_entry(self._cluster.sessions, node, _key(name), packed(_kept(entry)), deadline, what=what)
        return made

    def _drop_shard(self, node: Node, name: str, identity: str, deadline: Deadline) -> None:
        try:
            if self._is_here(node):
                self._shard(node, name, identity, deadline)
                self._session.writable().drop_table(name, lock_seconds(deadline.left))
            else:
                with self._cluster.sessions.calling(node, deadline) as session:
                    arguments = {"name": name, "timeout": deadline.left, "identity": identity}
                    # It may be done twice: there is one table of that identity. So an agent that is killed meanwhile
                    # leaves no part behind, which its node would keep as its own, and the name with it.
                    session.call("drop_table", arguments, timeout=deadline, what=f"drop_table({name!r})", once=False)
        except TableNotFound:
            pass


def _settings_of(whole: Settings, shards: int, number: int, draw: str) -> Settings:
    """The settings of a shard; for a table in one piece, the unchanged settings."""
    return whole if shards == 1 else shard_settings(whole, shards, number, draw)


def _difference(known: TableEntry, settings: Settings, shards: int, draw: str) -> str:
    """The settings that differ from those of an existing table, as text; "" if none does."""
    if (len(known.shards) > 1) != (shards > 1):
        return f"it has {len(known.shards)} shards there"
    draws = f"draw={draw!r} was given, the table has {known.draw!r}" if shards > 1 and known.draw != draw else ""
    made = Settings.from_text(known.settings)
    # Columns that a first step has declared are not in the entry: they are compared once the table is open.
    rest = made.difference(settings, settings.schema if made.schema is None else made.schema)
    return "; ".join(filter(None, (draws, rest)))


def _other_settings(name: str, difference: str) -> TableExists:
    return TableExists(f"table {name!r} exists with other settings: {difference}")


def _kept(entry: TableEntry) -> TableEntry:
    """The form of an entry that a node keeps: that of an existing table."""
    return msgspec.structs.replace(entry, dropped=False)


def _key(name: str) -> str:
    return TABLE + name
