"""The calls that a client may make, by name. Each is one call of the public interface.

Arguments come from another machine. They are decoded without running any of that machine's code. The calls check them
like those of any program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from di_store.base import config
from di_store.base.errors import TableNotFound, shown
from di_store.checkpoint.store.durable import made
from di_store.layout.shape import UNLIMITED
from di_store.objects.refs import Ref, split_ids
from di_store.policy.limiters import limiter_from_plain
from di_store.policy.options import checked_again
from di_store.policy.samplers import sampler_to_plain
from di_store.policy.settings import again
from di_store.protocol.values import Call
from di_store.replay.batch import key_array
from di_store.replay.incomplete import found_incomplete
from di_store.replay.lease import Lease
from di_store.replay.serving import handle_of, local_of
from di_store.replay.table import Table
from di_store.runtime.waits import lock_seconds
from di_store.server.backups import BACKUP_CALLS
from di_store.server.peer import Peer


def refs_of(ids: Any) -> list[Ref]:
    """Ids of 20 bytes each as refs."""
    if not isinstance(ids, list):
        raise TypeError(f"ids={shown(ids)}: give a list of ids")
    return [Ref(each) for each in ids]


def _wait(peer: Peer, ids: Any, num_returns: int, timeout: float | None) -> list[list[bytes]]:
    done, pending = peer.store.wait(refs_of(ids), num_returns, timeout)
    return [[ref.raw for ref in done], [ref.raw for ref in pending]]


def _keys(peer: Peer, start: Any, n: int) -> list[bytes]:
    return [ref.raw for ref in peer.store.keys(None if start is None else Ref(start), n)]


def described(table: Table) -> dict[str, Any]:
    """The current description of a table, as a client needs it."""
    handle = handle_of(table)
    schema = None if handle.opaque else handle.schema
    capacity = handle.native.capacity
    return {
        "name": table.name,
        "identity": handle.identity,
        "settings": handle.settings.to_text(),
        "schema": None if schema is None else schema.to_plain(),
        "sampler": sampler_to_plain(table.sampler),
        "capacity": None if capacity >= UNLIMITED else capacity,
        "size": len(table),
    }


def _create(peer: Peer, name: Any, settings: str, exist_ok: bool, timeout: float | None) -> dict[str, Any]:
    wanted = checked_again(again(settings))
    return described(peer.handles.keep(Table(made(peer.session, name, wanted, exist_ok, timeout))))


def _table(peer: Peer, name: Any, timeout: float | None) -> dict[str, Any]:
    return described(peer.handles.open(name, timeout))


def _drop(peer: Peer, name: Any, timeout: float | None, identity: str = "") -> None:
    """`identity`: only the table with this identity, if it still has the name."""
    if identity and handle_of(peer.handles.open(name, 0)).identity != identity:
        raise TableNotFound(f"table {shown(name)} was dropped, and another table has its name now")
    peer.store.drop_table(name, timeout=timeout)


def _goodbye(peer: Peer) -> None:
    """The client closes its handle: the agent keeps nothing for the client once its connections have ended."""
    peer.leaving = True


def _newest(peer: Peer, name: str, version: int) -> None:
    """Note the version of the weights that the client has got: the client's rows carry it from now on."""
    if not isinstance(name, str) or not isinstance(version, int):
        raise TypeError("expected a name and a version")
    peer.session.versions[name] = version


STORE_CALLS: dict[str, Callable[..., Any]] = {
    "hello": lambda peer: None,
    "goodbye": _goodbye,
    "contains": lambda peer, id: peer.store.contains(Ref(id)),
    "delete": lambda peer, ids: peer.store.delete(refs_of(ids)),
    "delete_each": lambda peer, ids: bytes(peer.store.delete(Ref(raw)) for raw in split_ids(ids)),
    "keys": _keys,
    "wait": _wait,
    "resize": lambda peer, **given: peer.store.resize(**given),
    "stats": lambda peer: peer.store.stats(),
    "check": lambda peer, repair: peer.store.check(repair),
    "sync": lambda peer, timeout: peer.store.sync(timeout=timeout),
    "create_table": _create,
    "table": _table,
    "drop_table": _drop,
    "mix": lambda peer, **given: peer.handles.mix(**given),
    "update_mixed": lambda peer, mixture, **given: peer.handles.mixture(mixture).update_priorities(**given),
    "note_version": _newest,
    **BACKUP_CALLS,
}


def _blobs(peer: Peer, table: Table, value: Any) -> Any:
    return peer.blobs(value) if handle_of(table).opaque else value


def _insert(peer: Peer, table: Table, value: Any, priority: Any, timeout: float | None) -> Any:
    return table.insert(_blobs(peer, table, value), priority=priority, timeout=timeout)


def _extend(peer: Peer, table: Table, batch: Any, priority: Any, timeout: float | None) -> Any:
    return table.extend(_blobs(peer, table, batch), priority=priority, timeout=timeout)


_LARGEST = 2**64 - 1


def _lease(table: Table, keys: Any, number: Any) -> Lease:
    return Lease(local_of(table), config.count("number", number, minimum=0, maximum=_LARGEST), key_array(keys))


def _ack(peer: Peer, table: Table, keys: Any, number: Any, timeout: float | None) -> int:
    return table.ack(_lease(table, keys, number), timeout=timeout)


def _ack_uncounted(peer: Peer, table: Table, keys: Any, number: Any, timeout: float | None) -> int:
    return table.ack(_lease(table, keys, number), counts=False, timeout=timeout)


def _give_back(peer: Peer, table: Table, keys: Any, number: Any, timeout: float | None) -> int:
    return table.give_back(_lease(table, keys, number), timeout=timeout)


def _extend_lease(peer: Peer, table: Table, keys: Any, number: Any, seconds: Any, timeout: float | None) -> int:
    return _lease(table, keys, number).extend(seconds, timeout=timeout)


def _update(peer: Peer, table: Table, keys: Any, lease: Any = None, **given: Any) -> int:
    """`lease`: number of the draw whose leases are acknowledged; None: none are."""
    return table.update(keys if lease is None else _lease(table, keys, lease), ack=lease is not None, **given)


def _configure(peer: Peer, table: Table, limiter: Any = None, **given: Any) -> None:
    table.configure(limiter=None if limiter is None else limiter_from_plain(limiter), **given)


TABLE_CALLS: dict[str, Callable[..., Any]] = {
    "describe": lambda peer, table: described(table),
    "len": lambda peer, table: len(table),
    "insert": _insert,
    "extend": _extend,
    "keys": lambda peer, table, **given: table.keys(**given),
    "at": lambda peer, table, **given: table.at(**given),
    "positions": lambda peer, table, **given: table.positions(**given),
    "incomplete": lambda peer, table, timeout: list(found_incomplete(handle_of(table), lock_seconds(timeout))),
    "ack": _ack,
    "ack_uncounted": _ack_uncounted,
    "give_back": _give_back,
    "extend_lease": _extend_lease,
    "update": _update,
    "update_priorities": lambda peer, table, **given: table.update_priorities(**given),
    "delete": lambda peer, table, **given: table.delete(**given),
    "reset": lambda peer, table, **given: table.reset(**given),
    "resize": lambda peer, table, **given: table.resize(**given),
    "configure": _configure,
    "finish": lambda peer, table, **given: table.finish(**given),
    "stats": lambda peer, table: table.stats(),
    "follow_gone": lambda peer, table, number, timeout: peer.handles.follow(number, table, timeout),
    "gone_since": lambda peer, table, number, turn: peer.handles.left(number, turn, reasons=False),
    "gone_with_reasons": lambda peer, table, number, turn: peer.handles.left(number, turn, reasons=True),
}


def run(peer: Peer, call: Call, arguments: Any) -> Any:
    """Make one call. Returns the call's result, or raises its error."""
    method, target = call.method, call.target
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise TypeError("received a call without named arguments")
    if not target:
        if method not in STORE_CALLS:
            raise TypeError(f"a store has no call {method!r}: is the agent older than this client?")
        return STORE_CALLS[method](peer, **arguments)
    if method not in TABLE_CALLS:
        raise TypeError(f"a table has no call {method!r}: is the agent older than this client?")
    return TABLE_CALLS[method](peer, peer.handles.table(target, call.table), **arguments)
