"""Which tests of the public interface run with other kinds of stores, and which are left out, each for a reason.

A store on another machine, one of a cluster, and one with tables in parts do what a store of this machine alone does.
What differs is in the reasons below, and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

QUICK = {
    "core": (
        "replay/limiters replay/loader objects/objects replay/ragged replay/refused_whole policy/samplers "
        "store/store objects/weights replay/writer"
    ),
    "writing": (
        "replay/autoreset replay/episode_ends replay/final_observations columns/first_items replay/size_limits "
        "replay/room"
    ),
    "items": (
        "replay/single_calls replay/groups replay/late_answers replay/short_groups replay/late_columns replay/order "
        "replay/replace replay/reset replay/slices replay/views replay/view_streams"
    ),
    "drawing": "replay/evicted replay/extreme_priorities replay/finish replay/mixture replay/once replay/peek",
    "leases": "replay/leases replay/lease_rules replay/leased_loader replay/leased_mixture replay/pace",
    "laws": "replay/laws replay/budgets",
    "arguments": (
        "arguments/checked_first arguments/bad_input arguments/deep_values arguments/odd_arguments columns/odd_keys "
        "arguments/odd_values columns/schema"
    ),
    "stores": "observe/stats replay/table replay/torn",
}
"""Files of tests/cluster/test_conformance.py, by group: each group is one run."""
LONG = {
    "long": (
        "store/finding_stores replay/hindsight store/handles model/model_based replay/streams replay/small_batches "
        "replay/versions"
    ),
    "longer": (
        "runtime/waits replay/back_pressure store/flat_line store/fragmentation store/dev_shm crash/leftovers "
        "runtime/no_silent_waits disk/drive replay/large_tables objects/copies observe/true_numbers model/model"
    ),
}
"""Files that take longer: `make far` runs them, and `make test-all` with nodes and tables in parts."""

COPIES = "`get` gives copies in this process: nothing is shared, pinned, or outlives its store there"
INSIDE = "looks behind an underscore, into the handle of a process on the store's machine"
FAULTS = "a fault point of a child is passed by the agent that makes its call, not by the child"
OWNER = "the agent's process holds what its clients hold, and is the one that is named"
SILENT = "the leases of a client that was killed, or ended without closing, end after 30 s"
WAITS_FOR_CLIENT = "a writer whose client was killed is kept for 30 s, in case the client comes back"
NAMES_NODE = "the culprit of a Timeout is named with its node"
NO_AGENT = "the agent has ended with its store, and nothing answers in its place: NodeUnavailable"
NO_FOLDER = "a checkpoint is written on the store's machine: `checkpoint` is refused, whatever its path"
NO_LAWS = "draws by keys and up to a budget are for tables in the process's memory"
ONE_GIB = "a call takes at most 1 GiB, and is refused sooner than a row of 4 GiB"

LEFT_OUT = [
    ("replay/test_evicted.py::test_a_kill_between_removal_and_report_raises", FAULTS),
    ("replay/test_finish.py::test_end_of_data_waits_for_undelivered_draws", OWNER),
    ("store/test_handles.py::test_unpickling_a_handle_of_a_gone_store_raises", NO_AGENT),
    ("replay/test_size_limits.py::test_ragged_columns_that_together_exceed_the_limit_are_refused", ONE_GIB),
    ("replay/test_budgets.py", NO_LAWS),
    ("replay/test_laws.py", NO_LAWS),
    ("replay/test_late_answers.py::test_a_group_evicted_for_a_slot_does_not_restart", INSIDE),
    ("replay/test_late_columns.py::test_a_kill_inside_update_leaves_old_or_new", FAULTS),
    ("replay/test_lease_rules.py::test_leased_items_are_drawn_by_nobody_else", OWNER),
    ("replay/test_lease_rules.py::test_copies_have_leased_items_as_not_drawn", NO_FOLDER),
    ("replay/test_lease_rules.py::test_the_end_of_data_waits_for_leases", OWNER),
    ("replay/test_lease_rules.py::test_items_of_a_lease_end_one_by_one", SILENT),
    ("replay/test_lease_rules.py::test_a_draw_that_is_not_acknowledged_has_not_happened[killed-", SILENT),
    ("replay/test_lease_rules.py::test_a_queue_gives_each_item_once[killed-", SILENT),
    ("replay/test_leases.py::test_what_comes_back_is_drawn_next_and_undoes_its_draw[death-", SILENT),
    ("replay/test_leases.py::test_what_comes_back_is_drawn_next_and_undoes_its_draw[close-", SILENT),
    ("replay/test_leases.py::test_stats_tell_of_leases", OWNER),
    ("replay/test_leased_loader.py::test_all_batches_of_a_killed_process_come_back", SILENT),
    ("replay/test_leased_mixture.py::test_all_leases_of_a_killed_process_come_back", SILENT),
    ("replay/test_pace.py::test_what_is_not_trained_gives_its_room_back[killed]", SILENT),
    ("replay/test_leases.py::test_files_hold_leased_items_as_not_drawn", NO_FOLDER),
    ("objects/test_objects.py::test_arrays_are_read_in_place", COPIES),
    ("objects/test_objects.py::test_tensors_come_back", COPIES),
    ("arguments/test_odd_arguments.py::test_a_checkpoint_path_that_is_not_utf8_is_named", NO_FOLDER),
    ("arguments/test_odd_arguments.py::test_the_error_names_the_option[checkpoint progress]", NO_FOLDER),
    ("arguments/test_odd_arguments.py::test_an_invalid_checkpoint_path_is_named", NO_FOLDER),
    ("replay/test_once.py::test_draws_given_back_late_still_count_in_each_epoch", INSIDE),
    ("replay/test_peek.py::test_a_reconfigured_queue_keeps_its_items", INSIDE),
    ("replay/test_peek.py::test_draws_given_back_after_a_limiter_change_cause_no_deadlock", INSIDE),
    ("replay/test_slices.py::test_other_calls_run_between_the_slices_of_an_extend", FAULTS),
    ("replay/test_slices.py::test_an_extend_past_the_limiter_writes_all_its_items", FAULTS),
    ("replay/test_slices.py::test_a_kill_between_slices_leaves_whole_items", FAULTS),
    ("replay/test_slices.py::test_dropping_a_table_between_slices_ends_the_call", FAULTS),
    ("replay/test_slices.py::test_other_calls_run_while_keys_are_listed", FAULTS),
    ("observe/test_stats.py::test_bytes_add_up_to_the_arena", COPIES),
    ("store/test_store.py::test_an_array_outlives_the_handle", COPIES),
    ("replay/test_streams.py::test_a_reserve_that_a_stream_has_raised_stays_with_a_resize", INSIDE),
    ("replay/test_streams.py::test_a_table_without_capacity_keeps_room_for_its_open_lanes", INSIDE),
    ("replay/test_streams.py::test_no_resize_undoes_another", INSIDE),
    ("replay/test_streams.py::test_a_kill_in_a_long_episode_leaves_right_charges", WAITS_FOR_CLIENT),
    ("replay/test_table.py::test_chunks_are_planned_as_writers_cut_them", INSIDE),
    ("runtime/test_waits.py::test_learners_are_counted_by_table", INSIDE),
    ("runtime/test_waits.py::test_only_processes_using_the_table_are_culprits[learner]", NAMES_NODE),
    ("runtime/test_waits.py::test_only_processes_using_the_table_are_culprits[had drawn]", NAMES_NODE),
    ("runtime/test_waits.py::test_only_processes_using_the_table_are_culprits[writer]", NAMES_NODE),
    ("objects/test_weights.py::test_versions_of_stores_that_were_closed_take_no_memory", INSIDE),
]
"""Tests that are left out, all parameters of each unless it names some or their beginning, and whole files, with the
difference that is the reason."""

STAYS_OPEN = "handles of a cluster that a process has unpickled are one, which stays open"

TWO_COPIES = "`sync` of a node writes two copies, and there is no other node"

LEFT_OUT_OF_A_NODE = [
    ("replay/test_lease_rules.py::test_copies_have_leased_items_as_not_drawn[reopen-", TWO_COPIES),
    ("store/test_handles.py::test_unpickling_a_handle_of_a_gone_store_raises", STAYS_OPEN),
]
"""As `LEFT_OUT`, where the store is the node of a cluster."""

NO_TABLES = "makes no table that has parts"
ONE_ORDER = "compares with one order of all items: each shard has its own"
EACH = "each shard keeps its own limits, evictions, and largest priority"
SEVERAL = "`store.writer` and `store.mix` take no table in parts"
GROUPS = "a table of groups has no parts"
PACE = "a table with a pace has no parts"
NO_LEASES = 'draw="mass" has no leases, and draw="local" draws from one shard'
ONE_FILE = "`export` writes one table: that of a shard, on its node"
DISTINCT = '`replace=False` is for draws from one shard, draw="local"'
MIN_SIZE = 'draw="mass" has no limiter but MinSize(n)'
ONE_BY_ONE = "a call goes to one shard after the other: when one refuses it, others may have done it"
AHEAD = "draws over all shards count when they are made, also those of batches ahead"
ONE_SHARD = "a program that attaches to the store has its shard, and not the table"
ONE_WAITS = "the limiter's state is that calls wait, if those of one shard do"

LEFT_OUT_IN_PARTS = [
    ("columns/test_schema.py", NO_TABLES),
    ("model/test_model.py", NO_TABLES),
    ("model/test_model_based.py", ONE_ORDER),
    ("objects/test_copies.py", NO_TABLES),
    ("objects/test_objects.py", NO_TABLES),
    ("policy/test_samplers.py", NO_TABLES),
    ("replay/test_groups.py", GROUPS),
    ("replay/test_late_answers.py", GROUPS),
    ("replay/test_short_groups.py", GROUPS),
    ("replay/test_budgets.py", NO_LAWS),
    ("replay/test_laws.py", NO_LAWS),
    ("replay/test_lease_rules.py", NO_LEASES),
    ("replay/test_leased_loader.py", NO_LEASES),
    ("replay/test_leased_mixture.py", SEVERAL),
    ("replay/test_leases.py", NO_LEASES),
    ("replay/test_mixture.py", SEVERAL),
    ("replay/test_pace.py", PACE),
    ("replay/test_streams.py", SEVERAL),
    ("replay/test_view_streams.py", SEVERAL),
    ("arguments/test_bad_input.py::test_a_resize_below_current_use_changes_nothing", EACH),
    ("arguments/test_bad_input.py::test_python_values_need_an_opaque_table", ONE_ORDER),
    ("arguments/test_checked_first.py::test_a_bad_timeout_is_refused_before_anything_is_written", EACH),
    ("arguments/test_odd_arguments.py::test_an_invalid_path_is_named", ONE_FILE),
    ("arguments/test_odd_values.py::test_a_batch_beyond_the_machines_memory_is_refused", SEVERAL),
    ("arguments/test_odd_values.py::test_a_batch_that_no_memory_holds_is_refused_before_it_is_drawn", SEVERAL),
    ("columns/test_first_items.py::test_a_step_refused_by_one_table_declares_nothing_in_others", SEVERAL),
    ("observe/test_stats.py::test_clients_report_their_roles[{'lease': 60}]", NO_LEASES),
    ("observe/test_stats.py::test_limiters_say_why_they_wait", ONE_WAITS),
    ("observe/test_stats.py::test_sample_age_is_right_for_groups_and_uniform_draws", GROUPS),
    ("observe/test_stats.py::test_waiters_are_listed_with_reason_and_age", EACH),
    ("observe/test_true_numbers.py::test_live_table_can_be_paged", ONE_SHARD),
    ("replay/test_autoreset.py::test_missing_observation_parts_come_from_the_dropped_row", SEVERAL),
    ("replay/test_episode_ends.py::test_an_end_flag_of_another_table_of_the_stream_counts", SEVERAL),
    ("replay/test_extreme_priorities.py::test_alpha_changes_only_where_all_priorities_can_follow", ONE_BY_ONE),
    ("replay/test_extreme_priorities.py::test_every_call_refuses_priorities_that_cannot_be_drawn_right", SEVERAL),
    ("replay/test_final_observations.py::test_a_partial_final_observation_can_be_completed", SEVERAL),
    ("replay/test_final_observations.py::test_final_observations_that_fit_nowhere_are_refused", ONE_BY_ONE),
    ("replay/test_final_observations.py::test_final_takes_the_form_of_next", ONE_ORDER),
    ("replay/test_finish.py::test_a_mixture_gives_back_while_it_waits", SEVERAL),
    ("replay/test_finish.py::test_end_of_data_does_not_wait_for_incomplete_groups", GROUPS),
    (
        "replay/test_finish.py::test_end_of_data_waits_for_late_columns[Group(size=2, by='n', unique=False, "
        "deadline=None, short=False)]",
        GROUPS,
    ),
    ("replay/test_hindsight.py::test_future_observations_follow_their_law", ONE_FILE),
    ("replay/test_large_tables.py::test_prefetch_keeps_the_requested_number_ready", AHEAD),
    ("replay/test_late_columns.py::test_a_kill_inside_update_leaves_old_or_new", SEVERAL),
    ("replay/test_late_columns.py::test_late_values_are_shared_by_the_tables_of_a_stream", SEVERAL),
    ("replay/test_late_columns.py::test_no_value_is_torn", SEVERAL),
    ("replay/test_late_columns.py::test_update_refuses_bad_arguments", SEVERAL),
    ("replay/test_once.py::test_draws_given_back_late_still_count_in_each_epoch", INSIDE),
    ("replay/test_peek.py::test_a_changed_limiter_over_a_full_table_lets_both_sides_move", MIN_SIZE),
    ("replay/test_peek.py::test_a_reconfigured_queue_keeps_its_items", INSIDE),
    ("replay/test_peek.py::test_draws_given_back_after_a_limiter_change_cause_no_deadlock", INSIDE),
    ("replay/test_refused_whole.py::test_an_append_of_more_lanes_than_capacity_is_refused", EACH),
    ("replay/test_refused_whole.py::test_exactly_capacity_items_pass_in_one_call", EACH),
    ("replay/test_refused_whole.py::test_more_rows_than_capacity_evict_nothing", EACH),
    ("replay/test_replace.py::test_a_kill_while_drawing_without_replacement_restores_the_items", DISTINCT),
    ("replay/test_replace.py::test_after_a_timeout_the_same_call_draws_everything", DISTINCT),
    ("replay/test_replace.py::test_drawing_all_items_gives_any_order", DISTINCT),
    ("replay/test_replace.py::test_draws_without_replacement_follow_their_law", DISTINCT),
    ("replay/test_replace.py::test_draws_without_replacement_follow_their_law_with_skewed_priorities", DISTINCT),
    ("replay/test_replace.py::test_impossible_uses_of_replace_are_refused", DISTINCT),
    ("replay/test_replace.py::test_items_of_priority_zero_are_never_drawn", DISTINCT),
    ("replay/test_replace.py::test_loaders_and_mixtures_draw_without_replacement", DISTINCT),
    ("replay/test_replace.py::test_more_than_the_table_holds_waits_or_is_refused", DISTINCT),
    ("replay/test_replace.py::test_stratified_batches_without_replacement_hold_distinct_items", DISTINCT),
    ("replay/test_room.py::test_an_opaque_table_grows_into_free_memory", EACH),
    ("replay/test_single_calls.py::test_inserted_rows_form_groups", GROUPS),
    ("replay/test_size_limits.py::test_columns_above_the_limit_are_refused_where_they_are_declared", EACH),
    ("replay/test_slices.py::test_dropping_a_table_between_slices_ends_the_call", SEVERAL),
    ("replay/test_table.py::test_a_table_really_holds_its_capacity", EACH),
    ("replay/test_table.py::test_chunks_are_planned_as_writers_cut_them", INSIDE),
    ("replay/test_table.py::test_configure_changes_settings", EACH),
    ("replay/test_versions.py::test_a_long_episode_is_as_old_as_its_first_row", SEVERAL),
    ("replay/test_versions.py::test_an_item_has_the_smallest_version_of_its_rows", SEVERAL),
    ("replay/test_views.py::test_an_episode_far_longer_than_its_view_is_cut", SEVERAL),
    ("replay/test_views.py::test_several_tables_share_one_stream", SEVERAL),
    ("replay/test_writer.py::test_a_stream_has_the_columns_of_all_its_tables", SEVERAL),
    ("replay/test_writer.py::test_an_undeclared_table_takes_all_columns_of_its_stream", SEVERAL),
    ("replay/test_writer.py::test_more_lanes_than_declared_keep_the_capacity", EACH),
    ("replay/test_writer.py::test_one_writer_fills_two_tables", SEVERAL),
    ("replay/test_writer.py::test_priorities_by_lane_and_by_step", EACH),
    ("runtime/test_waits.py::test_learners_are_counted_by_table", INSIDE),
    ("runtime/test_waits.py::test_no_wait_is_shown_once_its_call_has_ended", SEVERAL),
    ("store/test_handles.py::test_handles_are_pickled_by_name", SEVERAL),
    ("store/test_handles.py::test_handles_work_in_another_process", SEVERAL),
    ("store/test_handles.py::test_unpickling_a_handle_of_a_gone_store_raises", STAYS_OPEN),
    ("store/test_store.py::test_a_reading_handle_refuses_to_write", ONE_SHARD),
]
"""As `LEFT_OUT`, where every table lies in parts (`in_parts`)."""

OF_KIND = {"tcp": LEFT_OUT, "tls": LEFT_OUT, "cluster": LEFT_OUT_OF_A_NODE, "sharded": LEFT_OUT_IN_PARTS}
"""By kind of store: the values of DI_STORE_TEST_FAR."""

TESTS = Path(__file__).resolve().parent.parent


def files_of(names: str, kind: str = "tcp") -> list[str]:
    """Paths of test files, from the root of the repository, but for those that this kind of store leaves out whole."""
    found = [f"{folder}/test_{name}.py" for folder, name in (each.split("/") for each in names.split())]
    left_out = {entry for entry, _ in OF_KIND[kind]}
    return [f"tests/{each}" for each in found if each not in left_out]


def every_file(kind: str = "tcp") -> list[str]:
    """All that run with this kind of store."""
    return [path for names in (*QUICK.values(), *LONG.values()) for path in files_of(names, kind)]


def _beginnings(entry: str) -> tuple[str, ...]:
    return (entry,) if entry.endswith("-") else (f"{entry}[", f"{entry}::")


def apart(config: pytest.Config, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The items that are left out.

    Raises:
        pytest.UsageError: whole files are run, and one has no test that is not left out, or an entry matches no test.
    """
    found: list[pytest.Item] = []
    left_out = OF_KIND[os.environ["DI_STORE_TEST_FAR"]] if "DI_STORE_TEST_FAR" in os.environ else LEFT_OUT
    unmatched = {entry for entry, _ in left_out}
    files: dict[str, int] = {}
    for item in items:
        node = item.nodeid.rpartition("tests/")[2]
        hits = {each for each, _ in left_out if node == each or node.startswith(_beginnings(each))}
        unmatched -= hits
        path = node.partition("::")[0]
        files[path] = files.get(path, 0) + (not hits)
        if hits:
            found.append(item)
    if config.option.keyword or any("::" in each for each in config.args):
        return found
    if idle := [each for each in config.args if each.endswith(".py") and not files.get(each.rpartition("tests/")[2])]:
        raise pytest.UsageError(f"no test runs of {', '.join(idle)}")
    if gone := [entry for entry in sorted(unmatched) if entry.partition("::")[0] in files]:
        raise pytest.UsageError(f"left out, but there is no such test: {', '.join(gone)}")
    return found


if __name__ == "__main__":
    print(*every_file(*sys.argv[1:]))
