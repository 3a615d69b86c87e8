"""Which role reaches which fault point, and how often it may have passed it before it is killed there."""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent.parent / "native"

OFTEN, SELDOM, FEW, ONCE = 300, 8, 4, 1
"""The largest count a fault is armed with."""

REACHED_BY: dict[str, tuple[tuple[str, ...], int]] = {
    "arena.before_claim": (("attacher",), SELDOM),
    "arena.after_claim": (("attacher",), SELDOM),
    "arena.before_commit": (("hoarder", "tabler"), SELDOM),
    "blocks.after_punch": (("resizer",), SELDOM),
    "fork.pin_between": (("forker",), FEW),
    "heap.chunk_closed": (("writer", "producer"), SELDOM),
    "heap.detached": (("writer", "learner", "consumer"), SELDOM),
    "heap.freed": (("objects", "publisher", "tabler"), OFTEN),
    "heap.index_grown": (("hoarder",), ONCE),
    "heap.ledger_before_link": (("hoarder",), ONCE),
    "heap.make_after_state": (("objects", "writer", "tabler"), SELDOM),
    "heap.make_before_state": (("objects", "writer", "tabler"), SELDOM),
    "heap.meta_made": (("hoarder",), ONCE),
    "heap.need_ended": (("writer", "producer"), SELDOM),
    "heap.pinned": (("objects",), OFTEN),
    "heap.publish_before_seal": (("publisher",), SELDOM),
    "heap.publish_sealed": (("publisher",), SELDOM),
    "heap.published": (("publisher",), SELDOM),
    "heap.rebuild_middle": (("reaper",), ONCE),
    "heap.sealed": (("objects", "hoarder"), OFTEN),
    "heap.segment_linked": (("hoarder",), ONCE),
    "heap.unpin_between": (("objects", "hoarder"), OFTEN),
    "layout.before_count": (("tabler",), SELDOM),
    "put.before_copy": (("objects", "hoarder"), OFTEN),
    "put.before_seal": (("objects", "hoarder"), OFTEN),
    "sample.before_copy": (("learner", "consumer", "loader"), SELDOM),
    "sample.before_deliver": (("learner", "consumer", "loader"), SELDOM),
    "table.create_blocks": (("tabler",), SELDOM),
    "table.create_state": (("tabler",), SELDOM),
    "table.draw_item": (("learner", "consumer", "loader"), OFTEN),
    "table.drop_generation": (("tabler",), SELDOM),
    "table.drop_state": (("tabler",), SELDOM),
    "table.grow_before_fill": (("tabler",), SELDOM),
    "table.grow_copied": (("tabler",), SELDOM),
    "table.grow_made": (("tabler",), SELDOM),
    "table.grow_linked": (("tabler",), SELDOM),
    "table.insert_before_state": (("writer", "producer"), OFTEN),
    "table.insert_item": (("writer", "producer"), OFTEN),
    "table.rebuild_middle": (("reaper",), ONCE),
    "table.keys_between": (("learner",), ONCE),
    "table.settle_item": (("learner", "consumer", "loader"), OFTEN),
    "table.take_copied": (("learner",), SELDOM),
    "table.take_drawn": (("learner",), SELDOM),
    "table.update_middle": (("learner",), SELDOM),
    "undo.after_commit": (("writer", "learner", "producer", "consumer", "loader"), OFTEN),
    "undo.between": (("writer", "learner", "producer", "consumer", "loader"), OFTEN),
    "undo.before_commit": (("writer", "learner", "producer", "consumer", "loader"), OFTEN),
    "weights.announced": (("publisher",), SELDOM),
    "writer.between_slices": (("writer",), ONCE),
    "writer.chunk_opened": (("writer", "producer"), SELDOM),
    "writer.published": (("writer", "producer"), OFTEN),
}

IN_TABLE = ("undo.before_commit", "table.draw_item", "table.insert_item", "table.update_middle", "table.settle_item")
IN_HEAP = ("heap.make_before_state", "heap.make_after_state", "heap.freed", "heap.unpin_between", "heap.sealed")
OUTSIDE = ("put.before_copy", "put.before_seal", "sample.before_copy", "sample.before_deliver", "undo.after_commit")

REACHED_SETTLING: dict[str, tuple[tuple[str, ...], int]] = {
    "heap.chunk_closed": (OUTSIDE, ONCE),
    "heap.rebuild_middle": (IN_HEAP, ONCE),
    "lock.before_takeover": (IN_TABLE + IN_HEAP, ONCE),
    "reap.before_free": (OUTSIDE + IN_TABLE, ONCE),
    "reap.begun": (OUTSIDE + IN_HEAP, ONCE),
    "reap.draw_before_commit": (OUTSIDE + IN_TABLE, SELDOM),
    "reap.owned_settled": (OUTSIDE, ONCE),
    "reap.unpin_between": (OUTSIDE + IN_HEAP, FEW // 2),
    "table.rebuild_middle": (IN_TABLE, ONCE),
    "table.rolled_back": (IN_TABLE, ONCE),
    "undo.after_commit": (OUTSIDE, ONCE),
}
"""Points that are met by who comes after a death: where the dead one died for it, and the largest count."""

REACHED_ELSEWHERE = {
    "arena.before_magic",
    "os.find_holders",
    "fork.pin_copied",
    "groups.ended",
    "late.before_show",
    "late.item_went_on",
    "leases.end_item",
    "leases.linked",
    "leases.made",
    "sessions.free",
    "sessions.hand_over",
    "table.insert_answer",
    "marks.claim",
    "marks.set",
    "snapshot.taken",
    "restore.link_counted",
    "restore.before_adopt",
    "segment.before_write",
    "segment.body_written",
    "segment.footer_written",
    "segment.written",
    "folder.after_epoch",
    "folder.before_epoch",
    "pieces.head",
    "pieces.sync",
    "pieces.write",
    "sample.portion_read",
    "tier.before_commit",
    "tier.claimed",
    "tier.committed",
    "tier.dropped",
    "table.lost_item",
    "tier.file_forgotten",
    "tier.lost_marked",
    "tier.packed",
    "tier.before_move",
    "tier.move_claimed",
    "tier.move_written",
    "tier.moved",
    "tier.segment_renamed",
    "tier.segment_sealed",
    "tier.segment_taken",
    "tier.written",
    "heap.body_unlinked",
    "durable.noted",
    "durable.synced",
    "log.appended",
    "log.before_seal",
    "log.bytes_written",
    "log.copied",
    "log.file_made",
    "log.file_taken",
    "log.forgotten",
    "log.marked",
    "log.marks_taken",
    "log.settled",
    "log.synced",
    "heap.block_given",
    "heap.block_taken",
    "heap.bytes_dropped",
    "objects.noted",
    "objects.written",
    "get.loaded",
    "arena.looked_at",
    "looks.opened",
    "arena.ending",
} | {f"chores.{point}" for point in ("charged", "chosen", "committed", "collapsed")}
"""Points with tests of their own: who creates a store (test_open_race.py), who fills slices (test_filled_slices.py), a
forked child that has no room for its pins (test_fork.py), who updates late columns (test_late_columns.py),
who inserts into a table of groups (test_groups_killed.py), who takes and ends leases
(tests/replay/test_leases_killed.py), who does so
for a client's session (tests/native/test_leases.cc), who writes for a remote writer
(test_session_marks.py), who moves chunks to disk (test_disk_kills.py), who meets
lost rows (test_disk_damage.py), who leaves as the last (test_last_leaves.py), who looks which
stores there are (test_disk.py), who puts durable objects
(tests/checkpoint/test_durable_kills.py), who drops and loads
objects (test_objects_away_kills.py); of segments, folders
and pieces tests/native/test_segments.cc,
test_tier_folder.cc and tests/checkpoint/test_tree_kills.py."""

# An item drawn before one of these is given back, so a consumer killed there loses nothing.
BEFORE_DELIVERY = {
    "sample.before_copy",
    "sample.before_deliver",
    "table.draw_item",
    "table.settle_item",
    "arena.before_commit",
}


def all_points() -> set[str]:
    """Every kill point written in the core's sources."""
    return {
        name for path in NATIVE.rglob("*.cc") for name in re.findall(r'DI_FAULT\("([a-z_.]+)"\)', path.read_text())
    } | {name for path in NATIVE.rglob("*.h") for name in re.findall(r'DI_FAULT\("([a-z_.]+)"\)', path.read_text())}
