"""Mutants of what outlives its store: durable objects and weights, and checkpoints beside writers."""

from __future__ import annotations

from mutants.mutant import Mutant

OBJECTS, KILLS, DAMAGE = (f"tests/checkpoint/test_durable_{name}.py" for name in ("objects", "kills", "damage"))
AWAY = "tests/test_objects_away.py"
WRITERS = "tests/checkpoint/test_store_writers.py"

DURABLE = [
    Mutant(
        "records-of-objects-are-not-verified",
        "durable",
        "record.crc == of(record, offset);",
        "record.crc != 1;",
        (f"{DAMAGE}::test_flipped_bits", f"{DAMAGE}::test_files_that_are_not_its_own"),
    ),
    Mutant(
        "bytes-of-objects-are-not-verified",
        "durable",
        "    if (crc32c(from, extra + bytes) != record_.body_crc) return false;\n",
        "",
        (f"{DAMAGE}::test_flipped_bits",),
    ),
    Mutant(
        "put-does-not-wait-for-the-drive",
        "durable",
        "  pending.sync();\n",
        "",
        (f"{OBJECTS}::test_a_drive_that_fails",),
    ),
    Mutant(
        "pinned-objects-leave",
        "objects-away",
        "  return word_pins(word) != 0 ? Look::kRead : Look::kMayGo;\n",
        "  return Look::kMayGo;\n",
        (f"{AWAY}::test_arrays_keep_their_objects",),
    ),
    Mutant(
        "objects-from-disk-are-not-verified",
        "objects-away",
        "  if (crc32c(to.data(), to.size()) != record.body_crc) throw damaged();\n",
        "",
        (f"{AWAY}::test_a_damaged_record_costs_its_object",),
    ),
    Mutant(
        "ledgers-find-no-room-on-disk",
        "objects-away",
        "    if (heap_.room_maker == nullptr || !heap_.room_maker->make_room(kSliceBytes, deadline, &why)) break;\n",
        "    break;\n",
        ("tests/test_ledger_growth.py::test_blocks_find_room_where_objects_fill_memory",),
    ),
    Mutant(
        "nothing-leaves-for-a-table",
        "objects-away",
        "    if (free + removable < wanted) return free + removable;\n",
        "    return free;\n",
        (f"{AWAY}::test_a_table_finds_room",),
    ),
    Mutant(
        "logs-stay-in-the-page-cache",
        "objects-away",
        "  if (leaving_ > kCachedBytes) file_->drop_cache(0, leaving_ - kCachedBytes);\n",
        "",
        ("tests/test_log_cache.py",),
    ),
    Mutant(
        "what-is-read-once-takes-memory",
        "objects-away",
        "const bool enters = (found.flags & kFlagRead) != 0 ||",
        "const bool enters = true ||",
        (f"{AWAY}::test_the_second_reader_brings_it_into_memory",),
    ),
    Mutant(
        "what-came-in-leaves-at-once",
        "objects-away",
        "  heap_.descriptor(*out).flags |= kFlagRead;\n  ends_.pin(*out, entry);",
        "  heap_.descriptor(*out).flags &= ~kFlagRead;\n  ends_.pin(*out, entry);",
        ("tests/test_objects_return.py::test_what_is_read_regularly_comes_in",),
    ),
    Mutant(
        "reads-of-long-ago-count",
        "objects-away",
        "    object.flags &= ~kFlagRead;\n    return Look::kStays;",
        "    return Look::kStays;",
        (f"{AWAY}::test_a_read_of_long_ago_does_not_count",),
    ),
    Mutant(
        "objects-take-the-room-of-rows",
        "objects-away",
        "  const u64 rows = std::max(segments, least_disk(reserved_in_tiers(heap_.memory), 0));\n",
        "  const u64 rows = 0 * segments;\n",
        (f"{AWAY}::test_a_table_keeps_its_room_on_disk",),
    ),
    Mutant(
        "checkpoints-hold-objects-to-their-end",
        "objects-away",
        "            if (page != ChunkFile::kFull) snapshot.release_objects(first, count);\n",
        "",
        (f"{AWAY}::test_a_checkpoint_lets_go_what_it_has_written",),
    ),
    Mutant(
        "logs-are-sealed-before-their-records-count",
        "durable",
        "  if (found == open_.end() || found->second.records != 0 || found->second.bytes == 0) return false;\n",
        "  if (found == open_.end() || found->second.bytes == 0) return false;\n",
        (f"{OBJECTS}::test_a_large_call_beside_deletions",),
    ),
    Mutant(
        "records-of-the-dead-count",
        "durable",
        "if (!named) own.mark(place, kMarkVoid);",
        "",
        (f"{KILLS}::test_what_the_dead_put_does_not_come_back",),
    ),
    Mutant(
        "the-last-record-of-an-id-counts",
        "durable",
        "if (record.number < seen.number || (record.number == seen.number && (!deleted || seen.deleted))) {",
        "if (false) {",
        (f"{KILLS}::test_the_newest_record_counts",),
    ),
    Mutant(
        "what-was-deleted-comes-back",
        "durable",
        "if (deleted || (",
        "if ((",
        (f"{OBJECTS}::test_objects_come_back",),
    ),
    Mutant(
        "durable-versions-leave-with-the-others",
        "durable",
        "if (version != entry.durable.load()) retire(index, version);",
        "retire(index, version);",
        (f"{OBJECTS}::test_weights_come_back",),
    ),
    Mutant(
        "a-sync-counts-before-it-is-done",
        "durable",
        "!dirty(log).compare_exchange_weak(found, mine)) {",
        "!dirty(log).compare_exchange_weak(found, 0)) {",
        ("tests/crash/test_disk_faults.py::test_a_sync_counts_once_it_is_done",),
    ),
    Mutant(
        "entries-of-others-are-taken-for-own",
        "store-checkpoint",
        "if (!all && heap_",
        "if (heap_",
        (f"{WRITERS}::test_the_store_stays_sound",),
    ),
    Mutant(
        "checkpoints-write-what-comes-meanwhile",
        "store-checkpoint",
        "return false;",
        "{}",
        (f"{WRITERS}::test_rows_that_came_later_are_not_written",),
    ),
    Mutant(
        "checkpoints-write-other-tables",
        "store-checkpoint",
        "if (tables.empty()) return true;",
        "return true;",
        (f"{WRITERS}::test_what_is_not_durable_is_not_written",),
    ),
]
