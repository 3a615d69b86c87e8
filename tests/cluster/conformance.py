"""Which tests of the public interface run with other kinds of stores, and which are left out, each for a reason.

A store on another machine, or one of a cluster, does what a store of this machine alone does. What differs is in the
reasons below, and nothing else.
"""

from __future__ import annotations

import os
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
        "replay/single_calls replay/groups replay/late_answers replay/late_columns replay/order replay/replace "
        "replay/reset replay/slices replay/views replay/view_streams"
    ),
    "drawing": "replay/evicted replay/extreme_priorities replay/finish replay/mixture replay/once replay/peek",
    "arguments": (
        "arguments/checked_first arguments/bad_input arguments/deep_values arguments/odd_arguments columns/odd_keys "
        "arguments/odd_values columns/schema"
    ),
    "stores": "observe/stats replay/table replay/torn",
}
"""Files of tests/cluster/test_conformance.py, by group: each group is one run. `make test` has the first."""
LONG = (
    "store/finding_stores replay/hindsight store/handles model/model_based replay/streams replay/small_batches "
    "replay/versions runtime/waits replay/back_pressure store/flat_line store/fragmentation store/dev_shm "
    "crash/leftovers runtime/no_silent_waits disk/drive replay/large_tables objects/copies observe/true_numbers"
)
"""Files that `make far` runs too."""

COPIES = "`get` gives copies in this process: nothing is shared, pinned, or outlives its store there"
INSIDE = "looks behind an underscore, into the handle of a process on the store's machine"
FAULTS = "a fault point of a child is passed by the agent that makes its call, not by the child"
OWNER = "the agent's process holds what its clients hold, and is the one that is named"
WAITS_FOR_CLIENT = "a writer whose client was killed is kept for 30 s, in case the client comes back"
NAMES_NODE = "the culprit of a Timeout is named with its node"
NO_AGENT = "the agent has ended with its store, and nothing answers in its place: NodeUnavailable"
NO_FOLDER = "a checkpoint is written on the store's machine: `checkpoint` is refused, whatever its path"
ONE_GIB = "a call takes at most 1 GiB, and is refused sooner than a row of 4 GiB"

LEFT_OUT = [
    ("arguments/test_checked_first.py::test_a_bad_timeout_is_refused_before_anything_is_written", INSIDE),
    ("replay/test_evicted.py::test_a_kill_between_removal_and_report_raises", FAULTS),
    ("replay/test_finish.py::test_end_of_data_waits_for_undelivered_draws", OWNER),
    ("store/test_handles.py::test_unpickling_a_handle_of_a_gone_store_raises", NO_AGENT),
    ("replay/test_size_limits.py::test_ragged_columns_that_together_exceed_the_limit_are_refused", ONE_GIB),
    ("replay/test_late_answers.py::test_a_group_evicted_for_a_slot_does_not_restart", INSIDE),
    ("replay/test_late_columns.py::test_a_kill_inside_update_leaves_old_or_new", FAULTS),
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
"""Tests that are left out, all parameters of each unless it names some, with the difference that is the reason."""

LANES = "a table of a cluster reserves room for 1,024 lanes, which the store of this test does not have"

OTHER_NODES = "the call asks other nodes again and again, and is no wait of the store"

LEFT_OUT_OF_A_NODE = [
    ("arguments/test_checked_first.py::test_a_bad_timeout_is_refused_before_anything_is_written", INSIDE),
    ("observe/test_stats.py::test_every_waiting_thread_is_listed", OTHER_NODES),
    ("replay/test_late_columns.py::test_late_values_can_be_set_after_following_rows_are_gone", LANES),
    ("replay/test_room.py::test_rows_of_one_call_that_never_fit_are_refused_at_once", LANES),
    ("replay/test_table.py::test_python_values_are_stored", LANES),
    ("replay/test_refused_whole.py::test_the_end_of_an_episode_may_complete_more_items_than_capacity", LANES),
]
"""As `LEFT_OUT`, where the store is the node of a cluster."""

TESTS = Path(__file__).resolve().parent.parent


def files_of(names: str) -> list[str]:
    """Paths of test files, from the root of the repository."""
    return [f"tests/{folder}/test_{name}.py" for folder, name in (each.split("/") for each in names.split())]


def every_file() -> list[str]:
    """All that run through an agent."""
    return [
        *(path for names in QUICK.values() for path in files_of(names)),
        *files_of(LONG),
        "tests/model/test_model.py",
    ]


def apart(config: pytest.Config, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The items that are left out.

    Raises:
        pytest.UsageError: whole files are run, and one has no test that is not left out, or an entry matches no test.
    """
    found: list[pytest.Item] = []
    left_out = LEFT_OUT_OF_A_NODE if os.environ.get("DI_STORE_TEST_FAR") == "cluster" else LEFT_OUT
    unmatched = {entry for entry, _ in left_out}
    files: dict[str, int] = {}
    for item in items:
        node = item.nodeid.rpartition("tests/")[2]
        hits = {entry for entry, _ in left_out if node == entry or node.startswith(entry + "[")}
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
    print(*every_file())
