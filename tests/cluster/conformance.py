"""Which tests of the public interface run through an agent as well, and which of them are left out, each for a reason.

A store on another machine does what one on this machine does. What differs is in the reasons below, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

QUICK = {
    "core": "limiters loader objects ragged refused_whole samplers store weights writer",
    "writing": "autoreset ends final_observations first_items large_rows room",
    "items": "at_once groups late_answers late_columns order replace reset slices views view_streams",
    "drawing": "evicted extreme_priorities finish mixture once reading",
    "arguments": "arguments_first bad_input deep_values odd_arguments odd_keys odd_values schema",
    "stores": "stats table torn",
}
"""Files of tests/cluster/test_conformance.py, by group: each group is one run. `make test` has the first."""
LONG = (
    "doors future handles model_based streams take versions waits pains_03_back_pressure pains_04_flat_line "
    "pains_05_fragmentation pains_06_dev_shm pains_07_leftovers pains_08_waits pains_13_drive pains_14_size "
    "pains_15_copies pains_20_numbers"
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
    ("test_arguments_first.py::test_a_bad_timeout_is_refused_before_anything_is_written", INSIDE),
    ("test_evicted.py::test_a_kill_between_removal_and_report_raises", FAULTS),
    ("test_finish.py::test_end_of_data_waits_for_undelivered_draws", OWNER),
    ("test_handles.py::test_unpickling_a_handle_of_a_gone_store_raises", NO_AGENT),
    ("test_large_rows.py::test_ragged_columns_that_together_exceed_the_limit_are_refused", ONE_GIB),
    ("test_late_answers.py::test_a_group_evicted_for_a_slot_does_not_restart", INSIDE),
    ("test_late_columns.py::test_a_kill_inside_update_leaves_old_or_new", FAULTS),
    ("test_objects.py::test_arrays_are_read_in_place", COPIES),
    ("test_objects.py::test_tensors_come_back", COPIES),
    ("test_odd_arguments.py::test_a_checkpoint_path_that_is_not_utf8_is_named", NO_FOLDER),
    ("test_odd_arguments.py::test_the_error_names_the_option[checkpoint progress]", NO_FOLDER),
    ("test_odd_arguments.py::test_an_invalid_checkpoint_path_is_named", NO_FOLDER),
    ("test_once.py::test_draws_given_back_late_still_count_in_each_epoch", INSIDE),
    ("test_reading.py::test_a_reconfigured_queue_keeps_its_items", INSIDE),
    ("test_reading.py::test_draws_given_back_after_a_limiter_change_cause_no_deadlock", INSIDE),
    ("test_slices.py::test_other_calls_run_between_the_slices_of_an_extend", FAULTS),
    ("test_slices.py::test_an_extend_past_the_limiter_writes_all_its_items", FAULTS),
    ("test_slices.py::test_a_kill_between_slices_leaves_whole_items", FAULTS),
    ("test_slices.py::test_dropping_a_table_between_slices_ends_the_call", FAULTS),
    ("test_slices.py::test_other_calls_run_while_keys_are_listed", FAULTS),
    ("test_stats.py::test_bytes_add_up_to_the_arena", COPIES),
    ("test_store.py::test_an_array_outlives_the_handle", COPIES),
    ("test_streams.py::test_a_reserve_that_a_stream_has_raised_stays_with_a_resize", INSIDE),
    ("test_streams.py::test_a_table_without_capacity_keeps_room_for_its_open_lanes", INSIDE),
    ("test_streams.py::test_no_resize_undoes_another", INSIDE),
    ("test_streams.py::test_a_kill_in_a_long_episode_leaves_right_charges", WAITS_FOR_CLIENT),
    ("test_table.py::test_chunks_are_planned_as_writers_cut_them", INSIDE),
    ("test_waits.py::test_learners_are_counted_by_table", INSIDE),
    ("test_waits.py::test_only_processes_using_the_table_are_culprits[learner]", NAMES_NODE),
    ("test_waits.py::test_only_processes_using_the_table_are_culprits[had drawn]", NAMES_NODE),
    ("test_waits.py::test_only_processes_using_the_table_are_culprits[writer]", NAMES_NODE),
    ("test_weights.py::test_versions_of_stores_that_were_closed_take_no_memory", INSIDE),
]
"""Tests that are left out, all parameters of each unless it names some, with the difference that is the reason."""

TESTS = Path(__file__).resolve().parent.parent


def files_of(names: str) -> list[str]:
    """Paths of test files, from the root of the repository."""
    return [f"tests/test_{name}.py" for name in names.split()]


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
    unmatched = {entry for entry, _ in LEFT_OUT}
    files: dict[str, int] = {}
    for item in items:
        node = item.nodeid.rpartition("tests/")[2]
        hits = {entry for entry, _ in LEFT_OUT if node == entry or node.startswith(entry + "[")}
        unmatched -= hits
        files[item.path.name] = files.get(item.path.name, 0) + (not hits)
        if hits:
            found.append(item)
    if config.option.keyword or any("::" in each for each in config.args):
        return found
    if idle := [each for each in config.args if each.endswith(".py") and not files.get(Path(each).name)]:
        raise pytest.UsageError(f"no test runs of {', '.join(idle)}")
    if gone := [entry for entry in sorted(unmatched) if entry.partition("::")[0] in files]:
        raise pytest.UsageError(f"left out, but there is no such test: {', '.join(gone)}")
    return found


if __name__ == "__main__":
    print(*every_file())
