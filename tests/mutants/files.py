"""Mutants of what is written to disk, and of its forms."""

from __future__ import annotations

from mutants.mutant import Mutant

FOLDER = "tests/checkpoint"

DAMAGE = "tests/test_disk_damage.py::"

LOST = [
    Mutant(
        "lost-rows-keep-their-items",
        "disk",
        "if (item.is(ItemState::kFree) || !needs_lost(item)) continue;",
        "if (item.is(ItemState::kFree) || !needs_lost(item) || item.row() % 2 == 0) continue;",
        (DAMAGE + "test_lost_rows_cost_their_items",),
    ),
    Mutant(
        "items-that-end-in-a-lost-chunk-stay",
        "disk",
        "core_.chunks.covered(chunk, item.row(), item.rows())",
        "1u",
        (DAMAGE + "test_lost_rows_cost_their_items",),
    ),
    Mutant(
        "a-check-of-the-disk-reads-no-heads",
        "disk",
        "if ((read.tag & 1) == kHead) return is_record(body, headers_.at({body.file, body.incarnation}), pages);",
        "if ((read.tag & 1) == kHead) return true;",
        (DAMAGE + "test_check_reads_all_files",),
    ),
    Mutant(
        "a-check-of-the-disk-believes-what-it-reads",
        "disk",
        "return verify_pages(body.crcs, read.offset / kPageBytes - body.page, pages);",
        "return !body.crcs.empty();",
        (DAMAGE + "test_check_reads_all_files",),
    ),
    Mutant(
        "damage-is-told-each-time",
        "disk",
        "        _warned = True\n",
        "        _warned = False\n",
        (DAMAGE + "test_lost_rows_cost_their_items",),
    ),
    Mutant(
        "a-batch-of-lost-rows-is-left-out",
        "disk",
        "        self._queue[0] = first.again()\n",
        "        self._queue.popleft()\n",
        (DAMAGE + "test_loaders_go_on",),
    ),
    Mutant(
        "rows-that-were-not-read-count-as-exported",
        "disk",
        "if (!read) list.forget_call();",
        "",
        (DAMAGE + "test_exports_leave_them_out",),
    ),
]

TIER = [
    Mutant(
        "items-go-though-readers-keep-their-bodies",
        "disk",
        "kept_.store(Kept::kByReaders, std::memory_order_relaxed);",
        "kept_.store(Kept::kNot, std::memory_order_relaxed);",
        ("tests/test_disk_ahead.py::test_items_do_not_go_for_room_that_readers_keep",),
    ),
    Mutant(
        "batches-ahead-hold-what-is-copied",
        "disk",
        "    end_copied(draws_, gather_.open());\n",
        "",
        ("tests/test_disk_ahead.py::test_batches_ahead_leave_memory_to_the_writer",),
    ),
    Mutant(
        "batches-ahead-have-no-budget",
        "disk",
        "return limit is None or sum(",
        "return True or sum(",
        ("tests/test_disk_ahead.py::test_the_budget_holds_fewer_batches_ahead_and_says_so_once",),
    ),
    Mutant(
        "a-batch-is-read-in-one-piece",
        "disk",
        "const u64 most = kPortionBytes;",
        "const u64 most = ~u64{0} >> 1;",
        ("tests/test_disk_portions.py::test_a_large_batch_is_unpacked_in_little_memory",),
    ),
    Mutant(
        "bytes-from-disk-not-checked",
        "disk",
        "    if (!verify_pages(extent.of->checksums, read.offset / kPageBytes - extent.of->first_page, pages))"
        " return false;\n",
        "",
        ("tests/test_disk_damage.py::test_lost_rows_cost_their_items",),
    ),
    Mutant(
        "bodies-dropped-under-readers",
        "disk",
        "is_read(heap_, chunk) ? Keeps::kReaders : Keeps::kNothing",
        "is_read(heap_, chunk) && false ? Keeps::kReaders : Keeps::kNothing",
        ("tests/test_disk.py::test_a_stopped_reader_keeps_its_rows",),
    ),
    Mutant(
        "new-bodies-take-the-room-of-moves",
        "disk-forward",
        "use_ == For::kMoves ? 0 : usual",
        "0 * usual",
        ("tests/test_disk_forward.py::test_rows_that_leave_in_random_order_find_room",),
    ),
    Mutant(
        "what-leaves-soon-is-moved",
        "disk-forward",
        "{ return uid <= soon; }",
        "{ return uid <= soon && uid == 0; }",
        ("tests/test_disk_forward.py::test_rows_that_leave_in_order_are_hardly_moved",),
    ),
    Mutant(
        "the-write-budget-is-not-asked",
        "disk-forward",
        "return paid < now ? 0 : paid - now + 1;",
        "return paid < now ? 0 : paid * 0;",
        ("tests/test_disk_forward.py::test_the_write_budget_makes_inserts_wait",),
    ),
    Mutant(
        "items-go-though-the-budget-comes-back",
        "disk-forward",
        "        kept_.store(Kept::kByBudget, std::memory_order_relaxed);\n",
        "        kept_.store(Kept::kNot, std::memory_order_relaxed);\n",
        ("tests/test_disk_forward.py::test_the_write_budget_makes_inserts_wait",),
    ),
    Mutant(
        "no-body-leaves-for-the-machine",
        "disk",
        "  return heap_.room_maker != nullptr && heap_.room_maker->make_room(bytes, deadline, why);\n",
        "  return false;\n",
        ("tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill",),
    ),
    Mutant(
        "nothing-goes-for-pages",
        "disk",
        "          *short_table = heap_.budget.evictable(request.tables, 0);\n",
        "",
        ("tests/test_disk.py::test_items_go_when_files_are_full_of_dead_rows",),
    ),
    Mutant(
        "a-body-is-linked-twice",
        "disk",
        "      if (request.body_block != 0) return MakeResult::kAgain;\n",
        "",
        ("tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill",),
    ),
    Mutant(
        "the-table-of-blocks-may-end-behind-the-head",
        "disk",
        "  if (packs.plan.blocks() > (head.size() - ends) / sizeof(u32)) throw damaged();\n",
        "",
        ("native:test_packing",),
    ),
    Mutant(
        "blocks-are-read-at-the-place-of-rows",
        "disk",
        "  to->stored_from = begins;\n",
        "  to->stored_from = to->from;\n",
        ("tests/test_disk_packed.py::test_all_kinds_of_columns_come_back",),
    ),
    Mutant(
        "pages-of-bodies-are-not-verified",
        "tier",
        "page < pages",
        "page < 0",
        ("native:test_crc32c", "native:test_read_pool"),
    ),
    Mutant(
        "headers-of-records-are-not-verified",
        "tier",
        " || record.crc != crc_of(record, segment.crc)",
        "",
        ("native:test_segments_fuzz",),
    ),
    Mutant(
        "heads-of-records-are-not-verified",
        "tier",
        "!there || crc32c(head.data(), head.size(), header_.crc) != record.head_crc",
        "!there",
        ("native:test_segments_fuzz",),
    ),
    Mutant(
        "records-follow-no-order",
        "tier",
        " || record.page != walk->end_page",
        "",
        ("native:test_segments",),
    ),
    Mutant(
        "stores-share-a-folder",
        "tier",
        "lock_exclusive",
        "lock_shared",
        ("native:test_tier_folder",),
    ),
    Mutant(
        "stores-on-shared-filesystems",
        "tier",
        "found.network",
        "found.kind.empty()",
        ("native:test_tier_folder",),
    ),
    Mutant(
        "children-write-segments",
        "tier",
        "pid_ != os::pid()",
        "pid_ == 0",
        ("native:test_segments",),
    ),
    Mutant(
        "reads-go-on-behind-their-end",
        "tier",
        "if (!is_done()) {",
        "if (batch_->pid == 0) {",
        ("native:test_read_pool",),
    ),
]

STORES = [
    Mutant(
        "what-is-drawn-most-goes-first",
        "disk",
        "return !hot && !held_up",
        "return !held_up",
        ("tests/test_disk.py::test_what_is_drawn_stays_in_memory",),
    ),
    Mutant(
        "disks-shrink-below-what-tables-need",
        "disk",
        "capacity < least",
        "capacity == 0",
        ("tests/test_disk.py::test_the_disk_grows_and_shrinks_in_use",),
    ),
    Mutant(
        "files-of-checkpoints-are-used-again",
        "store-checkpoint",
        "again && (os::names_of(path) > 1 ||",
        "again && (os::names_of(path) > 9 ||",
        ("tests/checkpoint/test_store_later.py::test_linked_files_keep_their_bytes",),
    ),
    Mutant(
        "files-are-linked-until-the-disk-is-full",
        "store-checkpoint",
        "linked + rest + rest / kSlackShare > header.capacity.load()",
        "linked - own > header.capacity.load()",
        ("tests/checkpoint/test_store_links.py",),
    ),
    Mutant(
        "linked-files-stay-in-the-folder",
        "store-checkpoint",
        "const bool linked = (file.number & kLinkedFile) != 0;",
        "const bool linked = false;",
        ("tests/checkpoint/test_store_links.py",),
    ),
    Mutant(
        "restored-chunks-get-new-uids",
        "store-checkpoint",
        "plan.uid != 0 ? plan.uid : ++arena.heap_header().next_uid",
        "++arena.heap_header().next_uid",
        ("tests/checkpoint/test_store_links.py",),
    ),
    Mutant(
        "restored-sets-in-another-order",
        "store-checkpoint",
        "for (const u32 slot : order) set.insert(slot, true);",
        "for (const u32 slot : wanted) set.insert(slot, true);",
        ("tests/checkpoint/test_store.py",),
    ),
    Mutant(
        "draws-under-way-stay-drawn",
        "store-checkpoint",
        "for (const u64 key : image.draws) {",
        "for (const u64 key : std::vector<u64>{}) {",
        ("tests/checkpoint/test_store.py::test_draws_under_way_are_given_back",),
    ),
]

MUTANTS = [
    *TIER,
    *LOST,
    *STORES,
    Mutant(
        "pieces-are-not-verified",
        "checkpoint",
        "crc32c(to, piece.bytes) == crcs_[piece.number]",
        "true",
        ("native:test_pieces", f"{FOLDER}/test_damage.py::test_every_flipped_byte_is_noticed"),
    ),
    Mutant(
        "unpacked-blocks-may-be-short",
        "checkpoint",
        "size != to.size()",
        "ZSTD_isError(size)",
        ("native:test_packing",),
    ),
    Mutant(
        "an-answer-to-an-older-call-counts",
        "checkpoint",
        "given is not None and given.call == called",
        "given is not None",
        (f"{FOLDER}/test_save_load.py::test_answers_to_an_older_call_do_not_count",),
    ),
    Mutant(
        "the-file-of-another-save-is-taken",
        "checkpoint",
        "crc != part.crc or ",
        "",
        (f"{FOLDER}/test_damage.py::test_the_file_of_another_save",),
    ),
    Mutant(
        "the-checkpoint-before-goes-first",
        "checkpoint",
        "        run(writer)\n",
        '        folder.remove("manifest.json")\n        run(writer)\n',
        (f"{FOLDER}/test_kills.py::test_killed_at_every_step",),
    ),
]
