"""Mutants of what users of other systems suffered from, of handles, and of bad input."""

from __future__ import annotations

from mutants.mutant import Mutant

BAD = "tests/test_bad_input.py"

PAINS = [
    Mutant(
        "tables-beyond-the-budget",
        "pain-2",
        "wanted - arena.available(least, seconds) - held.memory\n",
        "min(0, arena.available(least, seconds))\n",
        ("tests/test_table.py::test_a_table_beyond_the_budget_is_refused_at_once",),
    ),
    Mutant(
        "a-queue-without-bound",
        "pain-3",
        "return lead(state, state.inserts + count, state.samples) <= state.max_diff;",
        "return state.queue != 0 || lead(state, state.inserts + count, state.samples) <= state.max_diff;",
        ("native:test_limiter", "tests/test_pains_03_back_pressure.py"),
    ),
    Mutant(
        "viewed-objects-are-never-freed",
        "pain-4",
        '      DI_FAULT("heap.unpin_between");\n      objects_.unpin(ledger_descriptor(what));\n',
        '      DI_FAULT("heap.unpin_between");\n',
        ("tests/test_pains_04_flat_line.py::test_each_object_deleted_after_use",),
    ),
    Mutant(
        "pages-do-not-move",
        "pain-5",
        "some = holes_only ? reclaim.from_holes(&cursor) : reclaim.some(&cursor);",
        "some = holes_only ? reclaim.from_holes(&cursor) : 0;",
        ("native:test_blocks", "tests/test_pains_05_fragmentation.py"),
    ),
    Mutant(
        "holes-are-not-memory",
        "pain-5",
        "  return got != 0 ? got : from_holes(cursor);\n",
        "  return got;\n",
        ("tests/test_pains_05_fragmentation.py::test_holes_that_a_table_leaves_serve_objects",),
    ),
    Mutant(
        "pages-of-smaller-tables-stay",
        "pain-5",
        "heap.free_bytes.load() <= ahead_bytes(heap) + kSliceBytes ? 0 :",
        "heap.free_bytes.load() != 0 ? 0 :",
        ("tests/test_growth.py::test_a_smaller_table_gives_pages_back",),
    ),
    Mutant(
        "the-last-slice-is-none",
        "pain-5",
        "cover_slice(slice + run - 1);",
        "cover_slice(slice + run);",
        ("tests/test_last_slice.py",),
    ),
    Mutant(
        "stores-in-dev-shm",
        "pain-6",
        "int fd = memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);\n",
        'int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);\n  if (fd >= 0 && flags != 0) {\n'
        "    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;\n  }\n",
        ("tests/test_pains_06_dev_shm.py",),
    ),
    Mutant(
        "files-stay-in-the-folder",
        "pain-7",
        "  unlink(path_.c_str());\n",
        "",
        ("tests/test_pains_07_leftovers.py::test_everybody_killed",),
    ),
    Mutant(
        "stores-in-crash-dumps",
        "pain-7",
        "  madvise(at, mapped, MADV_DONTDUMP);\n",
        "",
        ("tests/test_pains_07_leftovers.py::test_a_crash_dump_leaves_the_store_out",),
    ),
    Mutant(
        "waits-give-no-reason",
        "pain-8",
        'return Timeout(f"{self._what} did not come through{waited}", reason, self._suspect(), holder=self._holder)',
        'return Timeout(f"{self._what} did not come through{waited}", "", self._suspect(), holder=self._holder)',
        ("tests/test_pains_08_waits.py",),
    ),
    Mutant(
        "any-stopped-process-is-the-culprit",
        "pain-8",
        "concerned = None if table is None else set(table.concerned())",
        "concerned = None",
        ("tests/test_waits.py",),
    ),
    Mutant(
        "long-waits-are-silent",
        "pain-8",
        "        if time.monotonic() < self._log_at:\n            return\n",
        "        return\n",
        ("tests/test_pains_08_waits.py::test_a_line_in_the_log",),
    ),
    Mutant(
        "gone-learners-are-waited-for",
        "pain-8",
        "if (drew && client.state.load() != static_cast<u32>(ClientState::kFree) && !is_dead(self, slot)) ++count;",
        "if (drew || client.state.load() != static_cast<u32>(ClientState::kFree)) ++count;",
        ("tests/test_waits.py::test_an_insert_ends_when_its_learners_have_gone",),
    ),
    Mutant(
        "draws-search-leaf-by-leaf",
        "pain-14",
        "    find_pass(targets + done, std::min(kFindPass, count - done), slots + done);\n",
        "    for (u32 i = done; i < std::min(count, done + kFindPass); ++i) {\n"
        "      double rest = targets[i];\n"
        "      for (slots[i] = 0; slots[i] + 1 < slots_ && rest >= levels_[0].values[slots[i]]; ++slots[i])\n"
        "        rest -= levels_[0].values[slots[i]];\n"
        "    }\n",
        ("tests/test_pains_14_size.py::test_a_hundred_times_the_items",),
    ),
    Mutant(
        "one-batch-ahead-and-no-more",
        "pain-14",
        "        while len(self._queue) <= self._prefetch and",
        "        while len(self._queue) <= 1 and",
        ("tests/test_pains_14_size.py::test_prefetch_keeps_so_many_ready",),
    ),
    Mutant(
        "put-copies-twice",
        "pain-15",
        "        if id is None and ttl is None and durability is _MEMORY and",
        "        value = __import__('copy').deepcopy(value)\n"
        "        if id is None and ttl is None and durability is _MEMORY and",
        ("tests/test_pains_15_copies.py::test_one_copy_in_and_none_out",),
    ),
    Mutant(
        "views-over-writable-pages",
        "pain-15",
        "arena->readonly_at(found.offset, found.bytes)",
        "arena->at(found.offset, found.bytes)",
        ("tests/test_pains_15_copies.py::test_writing_past_the_flag_faults",),
    ),
    Mutant(
        "views-are-not-pinned",
        "pain-16",
        '  object.word.fetch_add(1);\n  DI_FAULT("heap.pinned");\n',
        '  DI_FAULT("heap.pinned");\n',
        ("native:test_heap", "tests/test_torn.py::test_views_of_objects_stay_while_the_arena_is_reused"),
    ),
    Mutant(
        "torn-late-values",
        "pain-16",
        "if (late.words[row].word.load(std::memory_order_relaxed) == before) return;",
        "return;",
        ("tests/test_late_columns.py::test_no_value_is_torn",),
    ),
    Mutant(
        "drawn-rows-are-not-held",
        "pain-16",
        "  core_.chunks.use(drawn.chunk, drawn.chunks, kUseOfReader);\n"
        "  LedgerEntry& ledger = arena_.ledger().entry(number);\n",
        "  drawn.chunks = 0;\n  LedgerEntry& ledger = arena_.ledger().entry(number);\n",
        ("native:test_table_kills", "tests/test_torn.py"),
    ),
    Mutant(
        "search-lands-beside-the-item",
        "pain-17",
        "  std::fill_n(slots, count, 0u);\n",
        "  std::fill_n(slots, count, 0u);\n  rest[0] *= 0.5;\n",
        ("native:test_slot_sets", "tests/test_laws.py::test_prioritized_draws_follow_p_to_the_alpha"),
    ),
    Mutant(
        "pinned-bytes-counted-twice",
        "pain-20",
        "  if (word_pins(word) == 0) add_bytes(heap_.memory.heap_header().pinned_bytes, bytes);\n",
        "  add_bytes(heap_.memory.heap_header().pinned_bytes, bytes);\n",
        ("tests/test_pains_20_numbers.py::test_bytes_by_owner",),
    ),
    Mutant(
        "the-first-slots-stand-for-all",
        "pain-20",
        "scaled((start + done) * kStep, core_.items.slots())",
        "(start + done + 0 * kStep) % core_.items.slots()",
        ("tests/test_bytes_logical.py::test_a_large_table_is_estimated",),
    ),
    Mutant(
        "waiters-not-listed",
        "pain-20",
        "  record_->owner.store(token_, std::memory_order_release);  // pairs",
        "  // pairs",
        ("tests/test_pains_20_numbers.py::test_every_waiter_is_listed",),
    ),
    Mutant(
        "waits-as-old-as-the-last-one",
        "pain-20",
        "  record_->since_ns.store(since_ns_, std::memory_order_relaxed);",
        "  if (record_->since_ns.load() == 0) record_->since_ns.store(since_ns_);",
        ("tests/test_waits.py::test_the_age_of_a_wait_is_that_of_the_call_in_progress",),
    ),
    Mutant(
        "a-wait-inside-a-call-has-a-record-of-its-own",
        "pain-20",
        "  inside_ = is_ours();",
        "  inside_ = false;",
        ("tests/crash/test_shown_waits.py",),
    ),
    Mutant(
        "a-lock-is-no-reason-between-two-looks",
        "pain-20",
        "  else if (is_ours() && given_up_ == t_given_up)",
        "  else if (is_ours())",
        ("tests/crash/test_shown_waits.py",),
    ),
]

HANDLES = [
    Mutant(
        "pickled-table-of-another-store",
        "handles",
        "(self._session.name, self._name, self._session.readonly)",
        '("another", self._name, self._session.readonly)',
        ("tests/crash/test_fork.py::test_handles_pass_to_processes",),
    ),
    Mutant(
        "handles-forget-that-they-only-read",
        "handles",
        "return loaded, (Store, self.name, self._session.readonly)",
        "return loaded, (Store, self.name, False)",
        ("tests/test_bad_objects.py::test_handles_that_only_read_travel_as_such",),
    ),
    Mutant(
        "loader-keeps-its-draws",
        "handles",
        "        self.draws.give_back()\n",
        "        self.draws.deliver()\n",
        ("tests/test_loader.py::test_close_gives_back_what_was_drawn_ahead",),
    ),
    Mutant(
        "inherited-loader-draws-on",
        "handles",
        "        if self._pid != os.getpid():\n            raise StoreClosed(\n",
        "        if self._pid < 0:\n            raise StoreClosed(\n",
        ("tests/test_loader.py::test_a_loader_is_closed_in_a_fork",),
    ),
    Mutant(
        "inherited-generator-draws-on",
        "handles",
        "        if self._pid != os.getpid():",
        "        if self._pid < 0:",
        ("tests/crash/test_fork_lines.py::test_a_fork_while_a_thread_draws_random_numbers",),
    ),
]

REFUSED = [
    Mutant(
        "chunks-as-large-as-they-say",
        "input",
        '  if (with_body.raw_bytes / kMostUnpacked > with_body.stored_bytes) damaged("the size of a chunk");\n',
        "",
        ("tests/checkpoint/test_store_lengths.py",),
    ),
    Mutant(
        "arrays-as-large-as-they-say",
        "input",
        "if sum(sizes) > self._head.payload_bytes:",
        "if sum(sizes) < 0:",
        ("tests/checkpoint/test_damage.py",),
    ),
    Mutant(
        "nan-priority-accepted",
        "input",
        "priority == 0 || (priority >= least && priority <= most)",
        "priority == 0 || !(priority < least || priority > most)",
        (f"{BAD}::test_priorities_must_be_finite_and_not_negative",),
    ),
    Mutant(
        "priorities-of-any-size",
        "input",
        "sampler != SamplerKind::kPrioritized || alpha == 0",
        "alpha >= 0",
        ("tests/test_extreme_priorities.py",),
    ),
    Mutant(
        "meta-takes-whole-slices",
        "pain-5",
        "if (use != BlockUse::kMeta || !choice.found || choice.spare_bytes == 0) return choice;",
        "if (use != BlockUse::kMeta || !choice.found || choice.spare_bytes <= kSliceBytes) return choice;",
        ("tests/test_room.py::test_pages_that_a_deleted_object_leaves_are_not_those_of_tables",),
    ),
    Mutant(
        "freed-meta-stays-charged",
        "pain-5",
        "kind == ObjectKind::kMeta && block_class",
        "kind == ObjectKind::kChunk && block_class",
        ("tests/test_room.py::test_dropped_tables_leave_no_pages_to_the_store",),
    ),
    Mutant(
        "a-resize-undoes-another",
        "model",
        "self.native.resize(*size, seen, seconds)",
        "(self.native.resize(*size, (int((n := self.native.stats())['capacity']), *held_reserve(n)[:2]), seconds)"
        " or True)",
        ("tests/test_streams.py::test_no_resize_undoes_another",),
    ),
    Mutant(
        "columns-are-declared-for-the-old-capacity",
        "model",
        "if capacity != before:\n",
        "if capacity < 0:\n",
        ("tests/test_resize_meets.py::test_a_resize_while_the_columns_are_declared",),
    ),
    Mutant(
        "names-run-together",
        "model",
        "if (at.hash == hash && same && read_layout_text(arena, i) == text) return i;",
        "if (at.hash == hash && read_layout_text(arena, i) == text) return i;",
        ("tests/test_layouts.py::test_columns_whose_names_together_are_the_same_stay_apart",),
    ),
    Mutant(
        "open-chunks-grow-with-the-capacity",
        "pain-5",
        "max(0, held.open_bytes - alone.open_bytes)\n",
        "round(max(0, held.open_bytes - alone.open_bytes) * share)\n",
        ("tests/test_streams.py::test_what_lanes_have_open_does_not_grow_with_the_capacity",),
    ),
    Mutant(
        "a-resize-forgets-how-a-stream-cuts",
        "pain-5",
        "        if 0 < block < min(alone.chunk_block, kept.chunk_block):\n",
        "        if 0 > block:\n",
        ("tests/test_streams.py::test_a_resize_keeps_the_descriptors_of_a_stream_with_small_chunks",),
    ),
    Mutant(
        "steps-left-out-in-silence",
        "input",
        "    if (counted && !known) left_out_ += unmade();\n",
        "",
        ("tests/test_left_out.py::test_steps_without_a_final_observation_are_counted",),
    ),
    Mutant(
        "one-value-that-cannot-be-loaded-costs-the-batch",
        "input",
        "            if draws is not None and error.places:\n",
        "            if False:\n",
        ("tests/test_unloadable.py::test_where_draws_use_items_up_one_value_costs_one_item",),
    ),
    Mutant(
        "resize-below-what-the-limiter-needs",
        "input",
        "    if wanted < least:\n",
        "    if wanted < 0:\n",
        (f"{BAD}::test_resize_below_need_changes_nothing",),
    ),
    Mutant(
        "a-repeated-observation-may-differ",
        "input",
        "  const ColumnLayout& column = layout.columns[index];\n"
        "  const u8* record = records_ + u64{row} * layout.record_bytes;\n  switch",
        "  const ColumnLayout& column = layout.columns[index];\n"
        "  const u8* record = records_ + u64{row} * layout.record_bytes;\n"
        "  if (record != nullptr) return true;\n  switch",
        (f"{BAD}::test_a_repeated_observation_must_equal_the_stored_one",),
    ),
    Mutant(
        "half-of-put-many-stays",
        "input",
        "partial(_write, value, raw)))\n",
        "partial(_write, value, raw)))\n        written[-1].seal()\n",
        ("tests/test_bad_objects.py", "tests/test_objects.py", "tests/test_bad_store.py"),
    ),
    Mutant(
        "published-before-there-is-room",
        "input",
        "state_.made[i].reserve(state_.pending[i].size());\n",
        "state_.made[i].shrink_to_fit();\n",
        ("tests/test_allocations.py",),
    ),
    Mutant(
        "judged-after-staging",
        "input",
        "  if (state_.several || !limits_.few_items(call)) limits_.refuse_what_never_fits(call, write, deadline);\n",
        "",
        ("tests/test_refused_whole.py",),
    ),
    Mutant(
        "damaged-header-accepted",
        "input",
        "  if (!sound) throw",
        "  if (!sound && slices == 0) throw",
        ("tests/test_bad_header.py",),
    ),
    Mutant(
        "stores-of-anybody",
        "input",
        "  if (!mine) {",
        "  if (!mine && mine) {",
        ("tests/test_doors.py::test_the_owner_of_a_memory_file_is_compared_before_a_byte_of_it_is_read",),
    ),
    Mutant(
        "chains-without-an-end",
        "input",
        "if (left_-- == 0) [[unlikely]]",
        "if (left_ == ~0ull) [[unlikely]]",
        ("native:test_circles", "tests/test_bad_ledger.py"),
    ),
    Mutant(
        "groups-without-an-end",
        "input",
        "for (u32 i = 1; i < answers; ++i) {",
        "for (; slot != kNone;) {",
        ("native:test_circles",),
    ),
    Mutant(
        "late-columns-lie-anywhere",
        "input",
        "if (words > bytes ||",
        "if (",
        ("native:test_damaged_places",),
    ),
    Mutant(
        "any-block-is-a-tables-own",
        "input",
        "entry.owner != owner ||",
        "",
        ("native:test_damaged_places",),
    ),
    Mutant(
        "blocks-of-any-number",
        "input",
        "== within && at.block < blocks_in(at.cls));",
        "== within);",
        ("native:test_damaged_places",),
    ),
    Mutant(
        "folder-of-anybody",
        "input",
        "  if (info.st_uid != geteuid()) {\n    refuse_folder(folder,",
        "  if (false) {\n    refuse_folder(folder,",
        ("native:test_os_find", "tests/test_bad_store.py::test_a_folder_of_another_user"),
    ),
]

MUTANTS = [*PAINS, *HANDLES, *REFUSED]
