"""Mutants of what keeps a store whole: deaths, stopped processes, liveness, memory limits, waits, foreign bytes."""

from __future__ import annotations

from mutants.mutant import Mutant

KILLS = "tests/crash/test_kills.py"
STOPS = "tests/crash/test_stops.py"
LIVENESS = "tests/crash/test_liveness.py"
FORK = "tests/crash/test_fork.py"

DEATHS = [
    Mutant(
        "undo-not-rolled-back",
        "kills",
        "  core_.undo.roll_back();\n",
        "  header_.undo.count.store(0);\n",
        ("native:test_table_kills",),
    ),
    Mutant(
        "half-a-group-stays",
        "kills",
        "if (groups.on()) free_members(*this, slot);",
        "",
        ("tests/test_groups.py", "tests/test_groups_killed.py"),
    ),
    Mutant(
        "the-killed-end-groups-of-others",
        "kills",
        "  undo_.set(ring_->value[place], value);\n  undo_.set(header_.ended_count, count + 1);\n",
        "  ring_->value[place] = value;\n  header_.ended_count = count + 1;\n",
        ("tests/test_groups_killed.py::test_a_kill_ends_no_group_that_was_rolled_back",),
    ),
    Mutant(
        "late-values-look-behind-their-item",
        "kills",
        "    if (i != 0) at = row_after(heap(), at, 1);\n",
        "    if (i != 0) at = row_after(heap(), at, 1);\n    static_cast<void>(row_after(heap(), at, 1));\n",
        ("tests/test_late_columns.py::test_the_rows_behind_an_item_may_be_gone",),
    ),
    Mutant(
        "late-values-of-the-dead-wake-nobody",
        "kills",
        "  end_waits();\n",
        "",
        ("tests/test_late_columns.py",),
    ),
    Mutant(
        "table-not-rebuilt-after-a-death",
        "kills",
        "core.lock.needs_recovery() || core.undo.pending()",
        "core.undo.pending()",
        ("native:test_table_kills",),
    ),
    Mutant(
        "heap-not-rebuilt-after-a-death",
        "kills",
        "    if (heap.lock.needs_recovery()) HeapRecovery(heap).rebuild();\n",
        "",
        ("native:test_heap_kills",),
    ),
    Mutant(
        "draws-of-the-dead-not-given-back",
        "kills",
        "end_draw(entry.ref.load(), true);",
        "end_draw(entry.ref.load(), false);",
        (
            "tests/test_loader.py::test_a_killed_learners_prefetched_batches_are_given_back",
            "tests/test_once.py::test_once_over_three_learners_one_killed_inside_sample",
        ),
    ),
    Mutant(
        "draws-of-the-dead-stay-counted",
        "kills",
        "      core_.undo.set(header_.total_samples, header_.total_samples - 1);\n",
        "",
        ("native:test_table_kills", "tests/test_loader.py::test_a_killed_learners_prefetched_batches_are_given_back"),
    ),
    Mutant(
        "chunks-of-the-dead-stay-open",
        "kills",
        "    chunks_.close_held(index);\n  } else",
        "  } else",
        ("native:test_table_kills", "native:test_reaper"),
    ),
    Mutant(
        "uses-of-a-second-table-in-the-first-ones",
        "kills",
        "heap.chunk_memory.uses_at(chunk, k);",
        "heap.chunk_memory.uses_at(chunk, 0);",
        ("tests/test_check.py::test_check_repairs_what_a_descriptor_tells_of_a_chunk",),
    ),
    Mutant(
        "pins-of-the-dead-stay",
        "kills",
        'DI_FAULT("reap.unpin_between");\n    objects_.unpin(index);\n',
        'DI_FAULT("reap.unpin_between");\n',
        ("native:test_heap_kills", "native:test_reaper"),
    ),
    Mutant(
        "objects-of-dead-putters-stay",
        "kills",
        "    heap_.free_descriptor(index, true);\n  }\n}\n\nvoid Sweeper::settle_dropped",
        "  }\n}\n\nvoid Sweeper::settle_dropped",
        ("native:test_heap_kills", "tests/test_pains_07_leftovers.py::test_clients_killed_in_the_middle_of_put"),
    ),
    Mutant(
        "entries-count-few-chunks",
        "kills",
        "u64{chunks} << 12",
        "u64{chunks & 0x7ffu} << 12",
        ("tests/test_long_runs.py",),
    ),
    Mutant(
        "the-mark-is-no-part-of-the-undo",
        "kills",
        "undo.set(mark.word, mark_word(seq, done, done == total));",
        "static_cast<void>(undo), mark.word.store(mark_word(seq, done, done == total));",
        ("tests/crash/test_session_marks.py",),
    ),
    Mutant(
        "a-mark-of-a-dropped-table-is-believed",
        "kills",
        " && table.generation.load(std::memory_order_acquire) == mark.generation;\n",
        ";\n",
        ("tests/test_session_marks.py",),
    ),
    Mutant(
        "the-writer-before-goes-on",
        "kills",
        "  if (mark(table).owner.load(std::memory_order_acquire) != claimed_[table].owner)",
        "  if (!mark_is_used(mark(table).owner.load(std::memory_order_acquire)))",
        ("tests/test_session_marks.py",),
    ),
]

STOPPED = [
    Mutant(
        "culprit-not-named",
        "stops",
        'name_ + " is held by " + who, who);',
        'name_ + " is held by another process");',
        ("native:test_locks", f"{STOPS}::test_a_stopped_putter_in_the_heap"),
    ),
    Mutant(
        "stopped-owner-is-robbed",
        "stops",
        "|| is_dead(client, holder);",
        '|| is_dead(client, holder) || describe_client(client.memory, holder).find("stopped") != std::string::npos;',
        ("native:test_locks", f"{STOPS}::test_a_stopped_learner_holds_its_table_only"),
    ),
    Mutant(
        "waits-with-a-lock-in-hand-last",
        "stops",
        "const Deadline until = nested ? deadline.at_most(kNestedNs) : deadline;",
        "const Deadline until = deadline;",
        ("tests/crash/test_deadlines.py",),
    ),
    Mutant(
        "asks-for-the-interpreter-with-a-lock-in-hand",
        "stops",
        "left_ = t_blocking_depth++ == 0 && !t_in_hand.any() && ",
        "left_ = t_blocking_depth++ == 0 && ",
        ("tests/crash/test_interpreter_lock.py",),
    ),
    Mutant(
        "ledger-grows-without-limit",
        "stops",
        "const u32 made = heap_.maker.grow_ledger(deadline);",
        "const u32 made = heap_.maker.grow_ledger(deadline.over() ? deadline : Deadline::none());",
        ("tests/crash/test_deadlines.py",),
    ),
    Mutant(
        "who-fills-a-slice-counts-as-dead",
        "kills",
        "filler != 0 && owner_gone(heap_.client, filler)",
        "filler != 0",
        ("tests/test_filled_slices.py",),
    ),
    Mutant(
        "ended-fills-stay",
        "kills",
        "== kFillEnded) settle_filled(slice, true);",
        "== ~u32{0}) settle_filled(slice, true);",
        ("tests/test_filled_slices.py",),
    ),
    Mutant(
        "pages-that-come-back-are-not-counted",
        "kills",
        "  if (missing == 0 && !give_back) return;",
        "  if (!give_back) return;",
        ("tests/test_filled_slices.py",),
    ),
    Mutant(
        "ledger-blocks-that-come-together-lack-room",
        "stops",
        "  reserve_room();  // again",
        "  // again",
        ("tests/test_ledger_growth.py",),
    ),
    Mutant(
        "stopped-reader-is-not-waited-for",
        "stops",
        "    if (reader == kNone) break;\n",
        "    break;\n",
        ("native:test_reaper",),
    ),
]

ALIVE = [
    Mutant(
        "a-file-without-a-head-is-a-store",
        "liveness",
        "found.announced = begun && magic != kBeingMade;",
        "found.announced = magic != kBeingMade;",
        ("native:test_reaper",),
    ),
    Mutant(
        "record-lock-not-asked",
        "liveness",
        "  if (os::byte_is_locked(memory.fd(), kClientLockBase + slot)) return false;\n",
        "",
        (f"{LIVENESS}::test_another_pid_namespace",),
    ),
    Mutant(
        "a-lost-lock-is-a-death",
        "liveness",
        "  if (!is_near(memory, slot)) return os::pid_namespace() != 0;\n",
        "  if (client.state.load() != 0) return true;\n",
        (f"{LIVENESS}::test_who_lost_its_lock_is_not_dead",),
    ),
    Mutant(
        "start-time-not-compared",
        "liveness",
        "if (!found.lives || (started != 0 && found.start_time != started)) return true;",
        "if (!found.lives || (started != 0 && started == 1)) return true;",
        ("native:test_reaper",),
    ),
    Mutant(
        "exec-not-seen",
        "liveness",
        "return os::has_mapped(client.pid.load(), memory.file_name()) == 0;",
        "return false;",
        (f"{LIVENESS}::test_exec",),
    ),
    Mutant(
        "own-descriptor-not-checked",
        "liveness",
        "  if (!has_descriptor())\n    throw Error(Code::kStoreClosed,\n",
        "  if (fd() < 0)\n    throw Error(Code::kStoreClosed,\n",
        (f"{LIVENESS}::test_foreign_descriptors_are_refused",),
    ),
    Mutant(
        "fork-keeps-the-parents-slot",
        "liveness",
        "  begin_child();\n  ledger().begin_child();\n",
        "  end_foreign();\n  return;\n",
        (f"{FORK}::test_views_stay_true_in_both",),
    ),
    Mutant(
        "fork-repeats-no-pins",
        "liveness",
        "    ledger().repeat_pins(Deadline::in(kChildPatienceNs));\n"
        "  } catch (...) {  // what could not be repeated is kept in another way\n  }\n  keep_inherited(*this);\n",
        "  } catch (...) {\n  }\n",
        (f"{FORK}::test_views_stay_true_in_both", f"{FORK}::test_the_parent_ends_first"),
    ),
    Mutant(
        "a-failed-look-is-a-death",
        "liveness",
        "  if (!found.known) return false;\n",
        "",
        (f"{LIVENESS}::test_nobody_is_dead_because_the_asker_has_no_descriptor_left",),
    ),
    Mutant(
        "nobody-found-for-want-of-descriptors",
        "liveness",
        "  if (errno != 0 && errno != ENOENT && errno != ESRCH && errno != EACCES && errno != EPERM)",
        "  if (errno == EFAULT)",
        ("tests/test_doors.py::test_no_second_store_of_a_name_when_descriptors_run_out",),
    ),
    Mutant(
        "what-a-child-cannot-pin-changes",
        "liveness",
        "    if (!os::make_private(at, bytes)) pin.ref = kLost;\n",
        "    (void)pin, (void)at, (void)bytes;\n",
        (f"{FORK}::test_a_child_without_room_keeps_its_views",),
    ),
    Mutant(
        "mutexes-stay-locked-in-a-child",
        "liveness",
        "  ledger().renew_mutex();\n",
        "",
        (f"{FORK}::test_garbage_is_collected_in_a_child_before_any_hook",),
    ),
    Mutant(
        "a-child-takes-handles-for-its-own",
        "liveness",
        "return !is_foreign() && generation == fork_generation_;",
        "return generation == fork_generation_;",
        (f"{FORK}::test_garbage_is_collected_in_a_child_before_any_hook",),
    ),
    Mutant(
        "the-end-takes-itself-for-a-daemon",
        "liveness",
        "  in_python([state] { PyEval_RestoreThread(state); });\n",
        "  while (ending()) os::sleep_ns(1'000'000'000);\n  in_python([state] { PyEval_RestoreThread(state); });\n",
        ("tests/test_exit.py::test_a_destructor_at_the_end_may_copy_without_the_gil",),
    ),
    Mutant(
        "the-end-unwinds-frames-of-the-core",
        "liveness",
        "    if (!returned) park();\n",
        "",
        ("tests/test_exit.py::test_the_end_with_threads_in_python_that_the_core_called",),
    ),
    Mutant(
        "after-a-sub-interpreter-every-thread-has-the-gil",
        "liveness",
        "return has_gil() ? PyEval_SaveThread() : nullptr;",
        "return PyGILState_Check() ? PyEval_SaveThread() : nullptr;",
        ("tests/test_exit.py::test_a_long_copy_that_waits_for_a_lock_where_there_was_a_sub_interpreter",),
    ),
    Mutant(
        "the-end-parks-threads-that-wait",
        "liveness",
        "    if _ending and me != threading.main_thread().ident:\n",
        "    if _ending and me != threading.main_thread().ident:\n        threading.Event().wait()\n",
        ("tests/test_exit.py::test_an_exit_handler_registered_before_may_wait_for_threads",),
    ),
    Mutant(
        "an-interrupt-leaves-the-loader-asleep",
        "liveness",
        "        if self._sleeps:\n",
        "        if False:\n",
        ("tests/test_interrupts.py::test_a_loader_that_was_interrupted_goes_on",),
    ),
    Mutant(
        "names-without-a-lock",
        "liveness",
        "const Flock result = flock_until(file.get(), path_, deadline);",
        "const Flock result = (void(flock_until), Flock::kLocked);",
        ("tests/crash/test_open_race.py::test_two_open_one_name_at_once",),
    ),
]

LIMITS = [
    Mutant(
        "headroom-not-asked",
        "cgroup",
        "  if (headroom >= bytes) return true;\n",
        "  if (headroom >= bytes || bytes != 0) return true;\n",
        ("tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill",),
    ),
    Mutant(
        "unused-pages-are-kept-from-headers",
        "cgroup",
        "moves == kMostMoves || heap.move_pages(kSliceBytes, false, deadline) == 0",
        "moves == kMostMoves || moves == 0",
        ("tests/cluster/test_pods.py::test_a_pod_with_little_memory",),
    ),
    Mutant(
        "batch-buffers-do-not-ask-for-memory",
        "cgroup",
        "  if (os::memory_for_buffers() >= bytes) return true;\n",
        "  if (os::memory_for_buffers() >= bytes || bytes != 0) return true;\n",
        ("tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill",),
    ),
    Mutant(
        "many-processes-fill-the-margin",
        "cgroup",
        "std::clamp(share, kLeastPieceBytes, kPieceBytes)",
        "std::max(share, kPieceBytes)",
        ("tests/crash/test_cgroup.py::test_many_learners_leave_a_margin",),
    ),
    Mutant(
        "unused-buffers-keep-their-addresses",
        "cgroup",
        "  return data == nullptr && BufferPool::give_back_unused() ? os::map_private(bytes) : data;\n",
        "  return data;\n",
        ("tests/crash/test_cgroup.py::test_unused_buffers_give_back_addresses",),
    ),
    Mutant(
        "a-refused-batch-keeps-its-draws",
        "cgroup",
        "    end_draws(draws, false);\n    throw;\n",
        "    (void)draws;\n    throw;\n",
        ("tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill",),
    ),
    Mutant(
        "no-margin-below-the-limit",
        "cgroup",
        "return std::max<u64>(u64{64} << 20, limit / 50);",
        "return limit - limit;",
        ("native:test_os_memory", "tests/crash/test_cgroup.py::test_a_typed_error_and_no_kill"),
    ),
]

WAITS = [
    Mutant(
        "a-short-view-pays-for-a-long-one",
        "standstill",
        "      past[i] = std::max(past[i], all);\n",
        "      past[i] = reached_[i];\n",
        ("tests/test_streams.py::test_a_short_table_beside_long_episodes_keeps_its_items",),
    ),
    Mutant(
        "open-chunks-are-short-of-items",
        "standstill",
        "own + std::max(own, open) + block",
        "own + own + block",
        ("tests/test_streams.py",),
    ),
    Mutant(
        "insert-announces-nothing",
        "standstill",
        "  core.commit();\n  core.items_came().signal(samples_allowed(limiter_in_force(header_), "
        "static_cast<i64>(header_.size), kMaxClients));\n",
        "  core.commit();\n",
        ("tests/test_wakes.py",),
    ),
    Mutant(
        "draw-announces-no-room",
        "standstill",
        "  if (may_insert(header_.limiter, size)) set->made_room = true;\n",
        "",
        ("tests/test_wakes.py",),
    ),
    Mutant(
        "give-back-announces-nothing",
        "standstill",
        "    if (give_back) core_.items_came().signal(kMaxClients);\n",
        "",
        ("tests/test_wakes.py",),
    ),
    Mutant(
        "used-up-items-stay-in-the-queue",
        "standstill",
        "if (core_.uses.used_up(item)) {",
        "if (drawn.uses > header_.max_times_sampled) {",
        ("tests/test_limiter_model.py::test_a_queue_of_one_feeds_whole_batches",),
    ),
    Mutant(
        "band-narrower-than-one-operation",
        "standstill",
        "width = max(centre * self.tolerance, self.ratio, 1.0)",
        "width = centre * self.tolerance",
        ("tests/test_limiter_model.py::test_nothing_that_is_accepted_stands_still",),
    ),
    Mutant(
        "min-size-above-capacity-accepted",
        "standstill",
        "elif limiter.bounds.min_size > capacity:",
        "elif limiter.bounds.min_size > 2 * capacity:",
        ("tests/test_limiters.py", "tests/test_bad_input.py::test_settings_that_cannot_work"),
    ),
    Mutant(
        "changed-limiter-counts-on",
        "standstill",
        "  state.inserts = state.queue != 0 ? size + held : std::min(size, state.min_size);\n",
        "  (void)size;\n",
        (
            "tests/test_limiter_model.py::test_the_ratio_changes_under_load",
            "tests/test_reading.py::test_a_changed_limiter_over_a_full_table_lets_both_sides_move",
        ),
    ),
]

FOREIGN = [
    Mutant(
        "a-foreign-pickle-is-loaded",
        "foreign",
        "        if self.foreign is not None:\n            raise pickle_refused()\n",
        "",
        ("tests/test_foreign.py::test_a_pickle_is_refused", "tests/test_foreign.py::test_the_mark_travels"),
    ),
    Mutant(
        "classes-of-foreign-values-are-imported",
        "foreign",
        "sys.modules.get(name)",
        '__import__(name, fromlist=["it"])',
        ("tests/test_foreign.py::test_a_module_that_is_not_loaded",),
    ),
]

MUTANTS = [*DEATHS, *STOPPED, *ALIVE, *LIMITS, *WAITS, *FOREIGN]
