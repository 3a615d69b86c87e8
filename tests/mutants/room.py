"""Mutants of who gets how much of memory and disk together."""

from __future__ import annotations

from mutants.mutant import Mutant

ROOM = "tests/test_disk_room.py"

TIERS = [
    Mutant(
        "chunks-of-a-larger-table-have-no-room",
        "disk",
        "std::max(table.reserve_wanted.load(), table.used_bytes.load())",
        "table.reserve_wanted.load()",
        ("tests/test_resize_meets.py::test_a_smaller_table_keeps_its_newest_items",),
    ),
    Mutant(
        "an-import-evicts-what-it-has-imported",
        "disk",
        " || is_being_imported(header_.limiter);",
        ";",
        ("tests/test_import_room.py::test_what_was_imported_does_not_go_for_what_follows",),
    ),
    Mutant(
        "rows-of-an-import-stay-in-memory",
        "disk",
        "self._raw_rows(later[later < written]).tolist() or [self._end]",
        "[0]",
        ("tests/test_import_room.py::test_rows_that_memory_does_not_hold_go_to_disk",),
    ),
    Mutant(
        "items-go-though-files-are-half-dead",
        "disk",
        "    if (files != RoomMaker::Emptied::kNothing) return files == RoomMaker::Emptied::kDone;\n",
        "    (void)files;\n",
        (f"{ROOM}::test_tables_of_several_writers_hold_their_capacity",),
    ),
    Mutant(
        "items-go-though-another-process-empties-files",
        "disk",
        "return waited == BodyMover::Await::kLater ? Emptied::kLater : Emptied::kNothing;",
        "return Emptied::kNothing;",
        (f"{ROOM}::test_a_table_that_is_drawn_from_all_the_time_holds_its_capacity",),
    ),
    Mutant(
        "chunks-on-disk-end-at-no-page",
        "disk",
        "std::max(rows / shrink, records / kSlack)",
        "std::max(rows / shrink, 0 * records / kSlack)",
        (f"{ROOM}::test_chunks_that_end_amid_a_page_hold_their_capacity",),
    ),
    Mutant(
        "files-have-no-room-for-heads",
        "disk",
        "(chunks + chunks / 16)",
        "(chunks + chunks / 64)",
        (f"{ROOM}::test_chunks_with_large_heads_hold_their_capacity",),
    ),
    Mutant(
        "heads-of-smaller-chunks-take-no-memory",
        "disk",
        "table.held_bytes, 0); missing != 0) return missing;",
        "table.held_bytes, 0); missing != 0 && reserve.bytes > own.bytes)\n    return missing;",
        (f"{ROOM}::test_smaller_chunks_whose_heads_do_not_fit_are_refused",),
    ),
    Mutant(
        "slots-take-no-room-from-rows",
        "disk",
        "    total = needed.in_tiers + needed.meta_bytes\n",
        "    total = needed.in_tiers\n",
        (f"{ROOM}::test_the_largest_table_holds_its_capacity",),
    ),
    Mutant(
        "slots-of-others-take-no-room-from-rows",
        "disk",
        "slots = heap.meta_bytes;",
        "slots = 0;",
        (f"{ROOM}::test_slots_that_a_table_has_are_no_room_for_its_rows",),
    ),
    Mutant(
        "held-objects-take-room-once",
        "disk",
        "  return heap.object_bytes + away + twice;\n",
        "  return heap.object_bytes + away + 0 * twice;\n",
        (f"{ROOM}::test_a_table_beside_objects_that_are_held_holds_its_capacity",),
    ),
    Mutant(
        "objects-take-the-room-of-tables-that-were-there",
        "disk",
        "again ? left : left",
        "left",
        (f"{ROOM}::test_tables_are_made_again_beside_objects_that_came_later",),
    ),
    Mutant(
        "rows-on-disk-are-room-for-slots",
        "disk",
        "Claims(memory, tiers)",
        "Claims(has + tiers, tiers)",
        (f"{ROOM}::test_the_first_rows_are_refused_before_their_columns_are_declared",),
    ),
    Mutant(
        "rows-do-not-leave-for-a-table",
        "disk",
        "    total += budget.own_claim(i) - in_memory(memory, reserve_of(table));\n",
        "",
        (f"{ROOM}::test_rows_of_others_leave_memory_for_a_table",),
    ),
    Mutant(
        "no-page-is-left-for-ledgers",
        "disk",
        "limit() - std::min(limit(), kOwnPages);",
        "limit();",
        (f"{ROOM}::test_rows_that_fill_all_there_is_can_be_read",),
    ),
    Mutant(
        "a-store-that-ends-is-attached",
        "disk",
        "if (arena->tiered() && has_ended(",
        "if (false && has_ended(",
        ("tests/crash/test_last_leaves.py::test_who_comes_too_late_finds_none",),
    ),
    Mutant(
        "who-only-looks-keeps-the-files",
        "disk",
        "          os::may_write(holder))",
        "          true)",
        ("tests/test_disk.py::test_who_only_looks_keeps_no_files",),
    ),
    Mutant(
        "who-comes-while-it-ends-is-not-seen",
        "disk",
        "if (is_soon_last(store, self)) return true;",
        "return true;",
        ("tests/crash/test_last_leaves.py::test_who_has_come_in_time_keeps_the_store",),
    ),
]
