"""Mutants of what is stored and drawn: episodes, samplers, limiters, keys, views."""

from __future__ import annotations

from mutants.mutant import Mutant

AUTO = "tests/test_autoreset.py::test_transitions_equal_single_environments"
LAWS = "tests/test_laws.py"
MODEL = "tests/test_model_based.py"

EPISODES = [
    Mutant(
        "an-observation-taken-for-a-step",
        "model",
        "if (listed.id != wanted.id || (wanted.whole && !listed.whole)) return false;",
        "if (listed.id != wanted.id) return false;",
        ("tests/test_export.py::test_a_step_that_an_earlier_piece_took_for_an_observation",),
    ),
    Mutant(
        "restored-rows-begin-their-episode",
        "model",
        "    at.begin_raw = at.raw - given.step;\n",
        "    at.begin_raw = at.raw;\n",
        ("tests/test_export.py::test_a_table_comes_back_as_the_model_has_it",),
    ),
    Mutant(
        "reset-row-taken-for-a-step",
        "autoreset",
        "  at.skip = plan.autoreset == Autoreset::kNextStep;\n",
        "  at.skip = false;\n",
        (AUTO,),
    ),
    Mutant(
        "final-observation-ignored",
        "autoreset",
        "const bool given = !call.final_given.empty() && call.final_given[u64{t} * count + l] != 0;",
        "const bool given = false;",
        (AUTO,),
    ),
    Mutant(
        "first-observation-not-kept",
        "autoreset",
        "at.first = std::move(first);",
        "at.first = nullptr;",
        ("tests/test_final_observations.py", AUTO),
    ),
    Mutant(
        "truncation-taken-for-termination",
        "autoreset",
        "at.terminated = terminated;",
        "at.terminated = true;",
        (AUTO,),
    ),
    Mutant(
        "dropped-observation-ignored",
        "autoreset",
        "      if (wanted[c]) final[c] = call.columns[c];\n",
        "",
        (AUTO, "tests/test_autoreset.py"),
    ),
    Mutant(
        "windows-cross-episodes",
        "autoreset",
        "if (!spec_.cross_episodes || steps_ == 0) {",
        "if (steps_ == 0) {",
        ("native:test_windows", "tests/test_autoreset.py::test_sequences_and_episodes_equal_single_environments"),
    ),
    Mutant(
        "random-rest-left-out",
        "model",
        "if (start_ + spec_.time() <= stop || padded) emit(",
        "if (padded) emit(",
        ("native:test_windows", "tests/test_random_starts.py"),
    ),
    Mutant(
        "every-draw-gives-the-first-window",
        "laws",
        "u64{span.pick} * starts >> 32",
        "0",
        ("tests/test_random_starts.py",),
    ),
]

DRAWS = [
    Mutant(
        "alpha-applied-twice",
        "laws",
        "power(priority, header_.alpha)};",
        "power(priority, header_.alpha * header_.alpha)};",
        (f"{LAWS}::test_prioritized_draws_follow_p_to_the_alpha",),
    ),
    Mutant(
        "priority-zero-drawn",
        "laws",
        "  if (priority <= 0) return 0;\n",
        "",
        (f"{LAWS}::test_prioritized_draws_follow_p_to_the_alpha",),
    ),
    Mutant(
        "updates-miss-the-tree",
        "laws",
        "      given[changed++] = priority;\n",
        "      given[changed++] = 1;\n",
        (f"{LAWS}::test_draws_follow_updated_priorities",),
    ),
    Mutant(
        "alpha-applied-twice-to-updates",
        "laws",
        "powers(priorities, count, header_.alpha, masses);",
        "powers(priorities, count, header_.alpha * header_.alpha, masses);",
        (f"{LAWS}::test_draws_follow_updated_priorities",),
    ),
    Mutant(
        "taken-items-count-no-use",
        "laws",
        "      core_.uses.count(item);\n",
        "",
        ("tests/test_take.py::test_both_ways_draw_the_same",),
    ),
    Mutant(
        "uses-run-into-the-rows",
        "laws",
        "if (item.uses() < kMostUses) [[likely]]",
        "if (item.uses() < ~0u) [[likely]]",
        ("native:test_uses",),
    ),
    Mutant(
        "positions-of-a-resized-table",
        "laws",
        " || item.number != number + static_cast<u64>(position)) return false;",
        ") return false;",
        ("tests/test_lookup.py",),
    ),
    Mutant(
        "distinct-draws-repeat",
        "laws",
        "set_->keys.insert(core_.items[slot].key(slot))",
        "true",
        ("tests/test_replace.py",),
    ),
    Mutant(
        "distinct-draws-leave-the-sampler",
        "laws",
        "  for (const u32 slot : out_) sampler_.insert(slot);\n",
        "",
        ("tests/test_replace.py",),
    ),
    Mutant(
        "groups-as-new-as-their-first-answer",
        "model",
        "if (item.version < first.version) core.undo.set(first.version, static_cast<u64>(item.version));",
        "",
        ("tests/test_groups.py::test_versions_priorities_and_uses_are_of_the_group",),
    ),
    Mutant(
        "groups-wait-for-their-last-answer-only",
        "model",
        "return false;",
        "break;",
        ("tests/test_groups.py::test_late_columns_of_answers",),
    ),
    Mutant(
        "long-sums-under-the-lock",
        "laws",
        " || rows > kTakeRows / all",
        "",
        ("tests/test_take.py::test_long_sums_are_made_outside_the_lock",),
    ),
    Mutant(
        "batches-of-another-table-size",
        "laws",
        "  set->table_size = header_.size;\n",
        "  set->table_size = header_.capacity;\n",
        ("tests/test_reading.py::test_a_batch_tells_the_size_of_the_table_it_was_drawn_from",),
    ),
    Mutant(
        "epoch-forgotten-at-its-border",
        "laws",
        "  if (behind) {\n",
        "  if (false) {\n",
        ("tests/test_once.py::test_what_comes_back_late_is_made_up_for", "tests/test_once.py"),
    ),
    Mutant(
        "drawn-items-stay-in-the-epoch",
        "laws",
        "if (epochs > header_.epoch) set_.mark_drawn(slot);",
        "if (epochs > header_.epoch + 1) set_.mark_drawn(slot);",
        (f"{LAWS}::test_once_over_three_learners_is_exactly_once_per_epoch",),
    ),
    Mutant(
        "seed-ignored",
        "laws",
        "u64 x = header_.seed + 0x9e3779b97f4a7c15u",
        "u64 x = os::now_ns() + 0x9e3779b97f4a7c15u",
        (f"{LAWS}::test_the_same_seed_gives_the_same_batches",),
    ),
    Mutant(
        "limiter-off-by-one",
        "laws",
        "return lead(state, state.inserts, samples) - 1.0 >= state.min_diff;",
        "return lead(state, state.inserts, samples) - 1.0 > state.min_diff;",
        ("native:test_limiter", f"{LAWS}::test_limiter_decisions_equal_reverbs"),
    ),
    Mutant(
        "mixture-weights-equal",
        "laws",
        "np.asarray(weights, np.float64) / np.sum(weights)",
        "np.full(len(weights), 1 / len(weights))",
        (f"{LAWS}::test_mixing_ratio_of_one_in_256",),
    ),
]

ITEMS = [
    Mutant(
        "gone-keys-are-overwritten",
        "model",
        "if (*from > count || count - *from > kGoneKeys) return false;",
        "",
        ("tests/test_evicted.py",),
    ),
    Mutant(
        "stale-key-reaches-a-successor",
        "model",
        "return item.has_key(key) ?",
        "return !item.is(ItemState::kFree) ?",
        (f"{LAWS}::test_late_priority_updates_never_reach_a_successor",),
    ),
    Mutant(
        "fifo-removes-the-newest",
        "model",
        "return newest_ ?",
        "return !newest_ ?",
        (f"{MODEL}::test_every_sampler_with_every_remover",),
    ),
    Mutant(
        "stack-reaches-into-the-last-episode",
        "model",
        "  i64 back = std::min<i64>(spec_.stack - 1, number);\n  i64 first",
        "  i64 back = std::min<i64>(spec_.stack - 1, number + (from.raw > 0 ? 1 : 0));\n  i64 first",
        ("native:test_windows", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "kept-observations-are-forgotten",
        "model",
        "lane.staged.kept = lane.kept[free].columns.any() ? free : kNone;",
        "lane.staged.kept = kNone;",
        ("tests/test_unbounded_next.py",),
    ),
    Mutant(
        "discounts-cut-other-tables",
        "model",
        "row(state_.windows, stopped && plan.tables[table].weighted);",
        "row(state_.windows, stopped);",
        ("tests/test_streams.py",),
    ),
    Mutant(
        "termination-does-not-stop-the-discount",
        "model",
        "} else if ((item.flags & kItemTerminal) != 0) {",
        "} else if ((item.flags & kItemTerminal) == 99) {",
        ("native:test_views", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "reward-not-discounted",
        "model",
        "      factor *= plan_.gamma;\n",
        "",
        ("native:test_views", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "ragged-offsets-off-by-one",
        "model",
        "static_cast<u64>(offsets[i]) * output.row_bytes, value.data,",
        "static_cast<u64>(offsets[i] == 0 ? 0 : offsets[i] - 1) * output.row_bytes, value.data,",
        ("native:test_views", "tests/test_table.py::test_ragged_columns"),
    ),
    Mutant(
        "largest-priority-forgotten",
        "model",
        "      if (priority > header_.max_priority) header_.max_priority = priority;\n",
        "",
        (
            f"{MODEL}::test_every_sampler_with_every_remover",
            f"{MODEL}::test_every_limiter",
            f"{MODEL}::test_a_long_run",
        ),
    ),
    Mutant(
        "items-of-a-call-by-start",
        "model",
        "a.lane < b.lane : a.order < b.order;",
        "a.lane < b.lane : a.start < b.start;",
        ("tests/test_order.py",),
    ),
    Mutant(
        "episodes-as-new-as-their-last-row",
        "model",
        "  while (++run != runs_.end() && run->first < end) least = std::min(least, run->version);",
        "  while (++run != runs_.end() && run->first < end) least = run->version;",
        ("native:test_versions", "tests/test_versions.py"),
    ),
    Mutant(
        "rows-in-front-of-an-open-episode-forgotten",
        "model",
        "(withdrawn ? current_.step : steps_)",
        "(withdrawn ? steps_ : steps_)",
        ("native:test_windows", "tests/test_writer.py", f"{MODEL}::test_every_kind_of_sequence"),
    ),
    Mutant(
        "runs-go-on-behind-a-discarded-episode",
        "model",
        "  steps_ = current_.step;\n  end_run(behind, out);\n",
        "  steps_ = current_.step;\n",
        ("native:test_windows", "tests/test_writer.py", f"{MODEL}::test_every_kind_of_sequence"),
    ),
]

MUTANTS = [*EPISODES, *DRAWS, *ITEMS]
