"""What is looked at while everybody stands still: every byte has its owner, nothing is torn, nothing is left over."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
from crash.board import check_transitions, check_windows

import di_store
from soak.figures import STORE, Process, Reading, file_bytes, is_kept, machine_shmem
from soak.scene import Scene, check_limiter
from soak.stamps import FLEETING, VAULT, all_refs, check_notes, check_object, size_of

PREFETCHED = 64 * 5
"""Draws that a loader may hold undelivered: those ahead and the one in its thread's hands."""
WEIGHTS = 4
"""Versions of weights that may be kept; they are objects without an id to list."""
UNCOUNTED = 1 << 20
"""Bytes by which the memory file may differ from what the store counts: pages touched behind a commit's back."""
OVERHEAD = 1.35
"""Bytes an object may take for one of its own, at most, beside a constant."""


def roll_call(scene: Scene) -> Reading:
    """Assemble, look at everything, let go on."""
    scene.assemble()
    gc.collect()
    store = scene.store
    clients = len([member for member in scene.members.values() if member.role != "visitor"]) + 1
    scene.until_none(lambda: unsettled(scene, clients))
    findings = store.check(repair=False)
    assert findings == [], findings
    scene.level()
    listed, kept, payload = check_objects(store)
    check_tables(scene)
    assert set(store.stats()["tables"]) == {"replay", "windows", "notes", "queue"}
    stats = store.stats()
    assert stats["live"] + stats["pinned"] + stats["pending"] + stats["free"] == stats["memory"], stats
    assert stats["committed"] <= stats["budget"], stats
    scene.until_none(lambda: uncounted(store))
    stats = store.stats()
    reading = Reading(
        scene.seconds,
        {name: Process.take(pid) for name, pid in scene.steady().items()},
        {name: int(stats[name]) for name in STORE},
        int(stats["objects"]),
        listed,
        kept,
        payload,
        file_bytes(os.getpid(), store.name),
        machine_shmem(),
    )
    scene.go_on()
    return reading


def uncounted(store: Any) -> str:
    """Memory that is there and not counted, or the other way round. The thread of a process may be filling a slice."""
    blocks, counted = file_bytes(os.getpid(), store.name), store.stats()["committed"]
    return "" if abs(blocks - counted) <= UNCOUNTED else f"{blocks:,} bytes are there, {counted:,} are counted"


def unsettled(scene: Scene, clients: int, weights: int = WEIGHTS) -> str:
    """Who is still attached though dead, what is still read, what has outlived its time; "" when all is settled."""
    arena: Any = scene.store._backend.session.arena
    arena.reap()
    while arena.chore():
        pass
    stats = scene.store.stats()
    if len(stats["clients"]) != clients:
        return f"{clients} clients and no more: {stats['clients']}"
    if stats["pinned"] or stats["pending"]:
        return f"nothing to be pinned: {stats['pinned']} pinned, {stats['pending']} pending, {stats['clients']}"
    refs = all_refs(scene.store)
    if any(int(ref.id[:2], 16) == FLEETING for ref in refs):
        return "objects to go whose time is over"
    unlisted = stats["objects"] - len(refs)
    return f"{unlisted} unlisted objects to go" if unlisted > weights else ""


def check_objects(store: Any) -> tuple[int, int, int]:
    """Every object is whole, and their bytes are those that the store counts.

    Returns:
        How many there are, how many of them nobody will delete, bytes of them all.
    """
    refs = all_refs(store)
    for ref in refs:
        check_object(store.get(ref), ref.id)
    stats = store.stats()
    payload = sum(size_of(ref) for ref in refs)
    assert payload <= stats["live_objects_bytes"] <= OVERHEAD * payload + (2 << 20), (payload, stats)
    kept = [ref for ref in refs if is_kept(ref)]
    assert sum(int(ref.id[:2], 16) == VAULT for ref in kept) == 16, "an object is lost"
    return len(refs), len(kept), payload


def check_tables(scene: Scene) -> None:
    """Every item of every table is whole, counts agree, limiters are in their bands."""
    loaders = sum(member.role == "loader" for member in scene.members.values())
    for name, check in (("replay", check_transitions), ("windows", check_windows), ("notes", check_notes)):
        table = scene.store.table(name)
        table.resize(table.stats()["capacity"])  # ends what a killed administrator left half-way
        keys, stats = table.keys(), table.stats()
        assert len(keys) == len(table) == len(set(keys.tolist())) == stats["size"], name
        assert stats["size"] <= stats["capacity"], name
        assert stats["held"] <= (PREFETCHED * loaders if name == "replay" else 0), (name, stats["held"])
        for first in range(0, len(keys), 1024):
            batch = table.peek(keys[first : first + 1024])
            assert np.asarray(batch.live).all(), name
            check(batch.data)
    for name in ("replay", "queue"):
        check_limiter(scene.store.table(name).stats(), PREFETCHED * loaders + 16)


def end(scene: Scene) -> None:
    """With everybody gone and everything deleted the store is as it was, but for its own growth; then it is gone."""
    store, name = scene.store, scene.store.name
    scene.stop()
    scene.until_none(lambda: unsettled(scene, 1))
    assert store.check() == []
    for table in list(store.stats()["tables"]):
        store.drop_table(table)
    while refs := store.keys():
        store.delete(refs)
    store.publish("policy", None, keep=1)  # the weights stay until a newer version comes
    gc.collect()
    scene.until_none(lambda: unsettled(scene, 1, weights=0))
    assert store.check() == []
    stats, baseline = store.stats(), scene.baseline
    names = ("objects", "live_objects_bytes", "pinned", "pending", "chunk_pages", "object_pages", "reserved")
    left = {each: stats[each] for each in names}
    assert left == dict.fromkeys(left, 0), left
    assert stats["live"] == stats["meta"] + stats["fixed"], stats
    growth = stats["live"] - baseline["live"]
    assert growth <= 0.03 * scene.terms.memory, f"the store's own bytes grew by {growth:,}"
    store.close()
    assert name not in [found.name for found in di_store.list_stores()]
    folder = os.environ["DI_STORE_DIR"]
    left_files = [entry for entry in os.listdir(folder) if name in entry]
    assert left_files == [], left_files
