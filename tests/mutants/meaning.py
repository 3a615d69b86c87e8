"""Mutants of what is stored and drawn: episodes, samplers, limiters, keys, views."""

from __future__ import annotations

from mutants.mutant import Mutant

AUTO = "tests/test_autoreset.py::test_transitions_equal_single_environments"
LAWS = "tests/test_laws.py"
MODEL = "tests/test_model_based.py"

EPISODES = [
    Mutant(
        "reset-row-taken-for-a-step",
        "autoreset",
        "native/writer.cc",
        "  lane.skip = plan_.autoreset == Autoreset::kNextStep;\n",
        "  lane.skip = false;\n",
        (AUTO,),
    ),
    Mutant(
        "final-observation-ignored",
        "autoreset",
        "native/writer_ends.cc",
        "const bool given = !call.final_given.empty() && call.final_given[u64{t} * count + l] != 0;",
        "const bool given = false;",
        (AUTO,),
    ),
    Mutant(
        "first-observation-not-kept",
        "autoreset",
        "native/writer_ends.cc",
        "lane.first = keep_first(call, t, l);",
        "lane.first = nullptr;",
        ("tests/test_final_observations.py", AUTO),
    ),
    Mutant(
        "truncation-taken-for-termination",
        "autoreset",
        "native/writer.cc",
        "  lane.terminated = terminated;\n  lane.skip",
        "  lane.terminated = true;\n  lane.skip",
        (AUTO,),
    ),
    Mutant(
        "dropped-observation-ignored",
        "autoreset",
        "native/writer_ends.cc",
        "      if (wanted[c]) final[c] = call.columns[c];\n",
        "",
        (AUTO, "tests/test_autoreset.py"),
    ),
    Mutant(
        "windows-cross-episodes",
        "autoreset",
        "native/windows.cc",
        "if (!spec_.cross_episodes || steps_ == 0) {",
        "if (steps_ == 0) {",
        ("native:test_windows", "tests/test_autoreset.py::test_sequences_and_episodes_equal_single_environments"),
    ),
]

DRAWS = [
    Mutant(
        "alpha-applied-twice",
        "laws",
        "native/table.cc",
        "power(priority, header_.alpha)};",
        "power(priority, header_.alpha * header_.alpha)};",
        (f"{LAWS}::test_prioritized_draws_follow_p_to_the_alpha",),
    ),
    Mutant(
        "priority-zero-drawn",
        "laws",
        "native/table.cc",
        "  if (priority <= 0) return 0;\n",
        "",
        (f"{LAWS}::test_prioritized_draws_follow_p_to_the_alpha",),
    ),
    Mutant(
        "updates-miss-the-tree",
        "laws",
        "native/table.cc",
        "        given[changed++] = priority;\n",
        "        given[changed++] = 1;\n",
        (f"{LAWS}::test_draws_follow_updated_priorities",),
    ),
    Mutant(
        "alpha-applied-twice-to-updates",
        "laws",
        "native/table.cc",
        "powers(priorities, count, header_.alpha, masses);",
        "powers(priorities, count, header_.alpha * header_.alpha, masses);",
        (f"{LAWS}::test_draws_follow_updated_priorities",),
    ),
    Mutant(
        "taken-items-count-no-use",
        "laws",
        "native/table_take.cc",
        "      undo_.set(entry.span, entry.span + 1);\n",
        "",
        ("tests/test_take.py::test_both_ways_draw_the_same",),
    ),
    Mutant(
        "long-sums-under-the-lock",
        "laws",
        "native/bindings_batch.cc",
        " || rows > kTakeRows / n",
        "",
        ("tests/test_take.py::test_long_sums_are_made_outside_the_lock",),
    ),
    Mutant(
        "batches-of-another-table-size",
        "laws",
        "native/table_draw.cc",
        "  set->table_size = header_.size;\n",
        "  set->table_size = header_.capacity;\n",
        ("tests/test_reading.py::test_a_batch_tells_the_size_of_the_table_it_was_drawn_from",),
    ),
    Mutant(
        "epoch-forgotten-at-its-border",
        "laws",
        "native/table_epochs.cc",
        "  if (behind) {\n",
        "  if (false) {\n",
        ("tests/test_once.py::test_what_comes_back_late_is_made_up_for", "tests/test_once.py"),
    ),
    Mutant(
        "drawn-items-stay-in-the-epoch",
        "laws",
        "native/table_draw.cc",
        "if (epochs > header_.epoch) parts_.dense->mark_drawn(slot);",
        "if (epochs > header_.epoch + 1) parts_.dense->mark_drawn(slot);",
        (f"{LAWS}::test_once_over_three_learners_is_exactly_once_per_epoch",),
    ),
    Mutant(
        "seed-ignored",
        "laws",
        "native/table_draw.cc",
        "u64 x = header_.seed + 0x9e3779b97f4a7c15u",
        "u64 x = os::now_ns() + 0x9e3779b97f4a7c15u",
        (f"{LAWS}::test_the_same_seed_gives_the_same_batches",),
    ),
    Mutant(
        "limiter-off-by-one",
        "laws",
        "native/limiter.cc",
        "return lead(state, state.inserts, samples) - 1.0 >= state.min_diff;",
        "return lead(state, state.inserts, samples) - 1.0 > state.min_diff;",
        ("native:test_limiter", f"{LAWS}::test_limiter_decisions_equal_reverbs"),
    ),
    Mutant(
        "mixture-weights-equal",
        "laws",
        "src/di_store/mixture.py",
        "np.asarray(weights, np.float64) / np.sum(weights)",
        "np.full(len(weights), 1 / len(weights))",
        (f"{LAWS}::test_mixing_ratio_of_one_in_256",),
    ),
]

ITEMS = [
    Mutant(
        "stale-key-reaches-a-successor",
        "model",
        "native/table.cc",
        "(entry.state & 15) == 0 || (entry.state >> 4 & kGenerationMask) != key_generation(key) ||\n          key >>",
        "(entry.state & 15) == 0 ||\n          key >>",
        (f"{LAWS}::test_late_priority_updates_never_reach_a_successor",),
    ),
    Mutant(
        "fifo-removes-the-newest",
        "model",
        "native/table.cc",
        "case SamplerKind::kFifo: return first_live();",
        "case SamplerKind::kFifo: return last_live();",
        (f"{MODEL}::test_every_sampler_with_every_remover",),
    ),
    Mutant(
        "stack-reaches-into-the-last-episode",
        "model",
        "native/windows.cc",
        "  i64 back = std::min<i64>(spec_.stack - 1, number);\n  i64 first",
        "  i64 back = std::min<i64>(spec_.stack - 1, number + (from.raw > 0 ? 1 : 0));\n  i64 first",
        ("native:test_windows", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "termination-does-not-stop-the-discount",
        "model",
        "native/returns.cc",
        "} else if ((item.flags & kItemTerminal) != 0) {",
        "} else if ((item.flags & kItemTerminal) == 99) {",
        ("native:test_views", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "reward-not-discounted",
        "model",
        "native/returns.cc",
        "      factor *= plan_.gamma;\n",
        "",
        ("native:test_views", f"{MODEL}::test_every_view"),
    ),
    Mutant(
        "ragged-offsets-off-by-one",
        "model",
        "native/views.cc",
        "static_cast<u64>(offsets[i]) * output.row_bytes, value.data,",
        "static_cast<u64>(offsets[i] == 0 ? 0 : offsets[i] - 1) * output.row_bytes, value.data,",
        ("native:test_views", "tests/test_table.py::test_ragged_columns"),
    ),
    Mutant(
        "largest-priority-forgotten",
        "model",
        "native/table.cc",
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
        "native/writer_commit.cc",
        "{ return a.lane < b.lane; };",
        "{ return a.lane != b.lane ? a.lane < b.lane : a.start < b.start; };",
        ("tests/test_order.py",),
    ),
    Mutant(
        "rows-in-front-of-an-open-episode-forgotten",
        "model",
        "native/windows.cc",
        "(withdrawn ? current_.step : steps_)",
        "(withdrawn ? steps_ : steps_)",
        ("native:test_windows", "tests/test_writer.py", f"{MODEL}::test_every_kind_of_sequence"),
    ),
    Mutant(
        "runs-go-on-behind-a-discarded-episode",
        "model",
        "native/windows.cc",
        "  steps_ = current_.step;\n  end_run(behind, out);\n",
        "  steps_ = current_.step;\n",
        ("native:test_windows", "tests/test_writer.py", f"{MODEL}::test_every_kind_of_sequence"),
    ),
]

MUTANTS = [*EPISODES, *DRAWS, *ITEMS]
