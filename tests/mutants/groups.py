"""Mutants of groups that end at their deadline: when, with which answers, and who notices."""

from __future__ import annotations

from mutants.mutant import Mutant

DEADLINES = "tests/replay/test_group_deadlines.py"
SHORT = "tests/replay/test_short_groups.py"
DUE = "native/replay/due_groups.cc"

MUTANTS = [
    Mutant(
        "answers-without-late-values-are-delivered",
        "model",
        f"{DUE}::leave_out_incomplete",
        "if (!can_be_drawn(core, item)) core.undo.set(item.span, item.span_left_out());",
        "",
        (f"{DEADLINES}::test_answers_without_their_late_values_are_left_out",),
    ),
    Mutant(
        "late-answers-join-short-groups",
        "model",
        f"{DUE}::end_wait_of_short_group",
        "core.groups.leave(leader);",
        "",
        (f"{SHORT}::test_a_late_answer_does_not_join_a_short_group",),
    ),
    Mutant(
        "short-groups-begin-again",
        "model",
        f"{DUE}::end_wait_of_short_group",
        "core.ended.add(core.groups.value(leader));",
        "",
        (f"{SHORT}::test_a_late_answer_does_not_join_a_short_group",),
    ),
    Mutant(
        "a-deadline-begins-when-its-table-looks",
        "model",
        f"{DUE}::group_due_ns",
        "item.group_began_ns(now_ns)",
        "now_ns",
        (f"{DEADLINES}::test_calls_notice_a_deadline_and_none_is_early",),
    ),
    Mutant(
        "a-draw-gives-up-among-due-groups",
        "model",
        "native/replay/draws.cc::Draws::draw_held",
        "is_group_due(header_) ||",
        "",
        (f"{DEADLINES}::test_a_draw_goes_on_past_groups_that_are_dropped",),
    ),
    Mutant(
        "draws-sleep-past-a-deadline",
        "model",
        "src/di_store/replay/sampling.py::Terms.pausing",
        "at_most = min(at_most, native.group_due_seconds)",
        "pass",
        (f"{DEADLINES}::test_a_draw_sleeps_until_the_deadline",),
    ),
    Mutant(
        "a-group-that-begins-wakes-nobody",
        "model",
        "native/replay/table.cc::Table::insert",
        "core.items_came().signal(std::max(allowed, sooner));",
        "core.items_came().signal(allowed + 0 * sooner);",
        (f"{DEADLINES}::test_a_group_that_begins_wakes_a_draw",),
    ),
    Mutant(
        "a-restored-group-keeps-an-old-clock",
        "model",
        "native/snapshot/restore.cc::Restore::fill",
        "item.state = item.state_of_group_begun(os::boot_ns());",
        ";",
        (f"{DEADLINES}::test_a_restored_group_has_its_time_again",),
    ),
    Mutant(
        "left-out-answers-are-in-the-batch",
        "model",
        "native/bindings/batch.cc::BatchMaker::is_there",
        "drawn.entry != kNone && !(table_->core.groups.on() && (drawn.flags & kItemLeftOut) != 0)",
        "drawn.entry != kNone",
        (f"{DEADLINES}::test_answers_without_their_late_values_are_left_out",),
    ),
    Mutant(
        "the-end-of-data-leaves-short-groups",
        "model",
        "native/replay/settings.cc::TableSettings::finish",
        "header_.group_due_ns.store(0, std::memory_order_relaxed);",
        ";",
        (f"{SHORT}::test_the_end_of_data_gives_what_is_short",),
    ),
]
