"""The model against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .limiters import Counts, MinSize, Queue, SamplesPerInsert
from .selectors import Item, Once, candidates, probabilities
from .table import Draft, ModelTable
from .views import Sequence, Step, Transition, View, Whole
from .writer import Elsewhere, Entry, ModelWriter


def entry(obs: float, reward: float = 0.0, end: str | None = None, nxt: float | None = None, **more: Any) -> Entry:
    row = {"obs": obs, "reward": reward, "terminated": end == "terminated", "truncated": end == "truncated", **more}
    return Entry(row, None if nxt is None else {"obs": nxt})


def written(view: View, entries: list[Entry], close: bool = True) -> list[Draft]:
    """All items that one lane makes, in order."""
    table = ModelTable("t", view, 100)
    writer = ModelWriter([table])
    drafts: list[Draft] = []
    for each in entries:
        plan = writer.plan_append({0: each})
        writer.commit(plan)
        drafts += plan.drafts["t"]
    if close:
        drafts += writer.plan_close().drafts["t"]
    return drafts


def column(drafts: list[Draft], name: str) -> list[Any]:
    return [np.asarray(draft.example[name]).tolist() for draft in drafts]


def test_two_step_transitions_to_a_termination() -> None:
    made = written(
        Transition(n_step=2, gamma=0.5),
        [entry(0, 1, nxt=1), entry(1, 2, nxt=2), entry(2, 4, "terminated", nxt=3)],
    )
    assert column(made, "obs") == [0, 1, 2]
    assert column(made, "next_obs") == [2, 3, 3]
    assert column(made, "reward") == [2.0, 4.0, 4.0]
    assert column(made, "discount") == [0.25, 0.0, 0.0]
    assert column(made, "steps") == [2, 2, 1]


def test_truncation_bootstraps_and_needs_its_observation() -> None:
    rows = [entry(0, 1), entry(1, 2, "truncated")]
    assert column(written(Transition(n_step=3, gamma=0.5), rows), "obs") == []
    rows[-1] = entry(1, 2, "truncated", nxt=9)
    made = written(Transition(n_step=3, gamma=0.5), rows)
    assert column(made, "discount") == [0.25, 0.5]
    assert column(made, "next_obs") == [9, 9]


def test_termination_without_observation_repeats_the_last() -> None:
    made = written(Transition(), [entry(0), entry(1, end="terminated"), entry(5)])
    assert column(made, "next_obs") == [1, 1]


def test_zero_discount_stops_the_sum() -> None:
    made = written(
        Transition(n_step=3, gamma=0.5),
        [
            entry(0, 1, discount=1.0),
            entry(1, 1, discount=0.0),
            entry(2, 1, discount=1.0),
            entry(3, 1, discount=1.0, nxt=4),
        ],
    )
    assert column(made, "steps") == [2, 1, 2, 1]
    assert column(made, "discount") == [0.0, 0.0, 0.25, 0.5]
    assert column(made, "next_obs") == [2, 2, 4, 4]


def test_frame_stacks_repeat_the_first_frame() -> None:
    rows = [entry(0, nxt=1), entry(1, nxt=2), entry(2, end="terminated", nxt=3)]
    made = written(Transition(frame_stack={"obs": 3}), rows)
    assert column(made, "obs") == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]
    assert column(made, "next_obs") == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]
    zero = written(Transition(frame_stack={"obs": 3}, frame_pad="zero"), [entry(7, nxt=8)])
    assert column(zero, "obs") == [[0, 0, 7]]


@pytest.mark.parametrize(
    ("tail", "starts", "lengths"),
    [("pad", [0, 2, 4], [4, 4, 3]), ("drop", [0, 2], [4, 4]), ("shift", [0, 2, 3], [4, 4, 4])],
)
def test_sequence_tails_follow_the_option(tail: str, starts: list[int], lengths: list[int]) -> None:
    rows = [entry(i) for i in range(6)] + [entry(6, end="truncated")]
    made = written(Sequence(3, period=2, burn_in=1, tail=tail), rows)
    assert [draft.start for draft in made] == starts
    assert column(made, "lengths") == lengths


def test_sequence_needs_a_row_after_burn_in() -> None:
    assert written(Sequence(2, burn_in=2), [entry(0), entry(1)]) == []
    made = written(Sequence(2, burn_in=2), [entry(0), entry(1), entry(2)])
    assert column(made, "obs") == [[0, 1, 2, 0]]
    assert column(made, "mask") == [[True, True, True, False]]


def test_sequences_give_bootstrap_rows_first_columns_and_stacks() -> None:
    view = Sequence(2, bootstrap=("obs",), first=("state",), frame_stack={"obs": 2})
    made = written(view, [entry(i, state=10 + i) for i in range(4)])
    assert column(made, "obs") == [[0, 0, 1, 2]], "the second one lacks the row after"
    assert column(made, "state") == [10]
    made = written(view, [entry(i, state=10 + i, nxt=i + 1) for i in range(4)])
    assert column(made, "obs") == [[0, 0, 1, 2], [1, 2, 3, 4]]


def test_sequence_across_episodes() -> None:
    rows = [entry(0), entry(1, end="terminated"), entry(2), entry(3), entry(4)]
    made = written(Sequence(3, cross_episodes=True), rows)
    assert column(made, "obs") == [[0, 1, 2], [3, 4, 0]]
    assert column(made, "is_first") == [[True, False, True], [False, False, False]]
    assert [(draft.episode, draft.start) for draft in made] == [(0, 0), (1, 1)]


def test_episode_is_padded_and_cut() -> None:
    rows = [entry(0), entry(1, end="terminated"), *(entry(i) for i in range(5))]
    made = written(Whole(3), rows)
    assert column(made, "obs") == [[0, 1, 0], [0, 1, 2]]
    assert column(made, "lengths") == [2, 3]


def test_next_step_autoreset_drops_the_row_after_an_end() -> None:
    table = ModelTable("t", Transition(), 10)
    writer = ModelWriter([table], autoreset="next_step")
    seen = []
    for each in [entry(0, nxt=1), entry(1, end="terminated", nxt=2), entry(2, nxt=50), entry(50, nxt=51)]:
        plan = writer.plan_append({0: each})
        writer.commit(plan)
        seen += [(draft.example["obs"], draft.example["next_obs"]) for draft in plan.drafts["t"]]
    assert seen == [(0, 1), (1, 2), (50, 51)]


def test_the_row_that_next_step_autoreset_drops_holds_the_final_observation() -> None:
    view = Transition(n_step=2, gamma=1.0)
    writer = ModelWriter([ModelTable("t", view, 10)], autoreset="next_step")
    seen = []
    for each in [entry(0), entry(1, end="truncated"), entry(2), entry(50), entry(51), entry(52)]:
        plan = writer.plan_append({0: each})
        writer.commit(plan)
        seen += [(draft.example["obs"], draft.example["next_obs"]) for draft in plan.drafts["t"]]
    assert seen == [(0, 2), (1, 2), (50, 52)]


def test_same_step_autoreset_takes_final() -> None:
    table = ModelTable("t", Transition(), 10)
    writer = ModelWriter([table], autoreset="same_step")
    seen = []
    ended = entry(1, end="truncated", nxt=50)
    for each in [entry(0, nxt=1), Entry(ended.row, ended.next, {"obs": 2}), Entry({"reward": 0.0}, {"obs": 51})]:
        plan = writer.plan_append({0: each})
        writer.commit(plan)
        seen += [(draft.example["obs"], draft.example["next_obs"]) for draft in plan.drafts["t"]]
    assert seen == [(0, 1), (1, 2), (50, 51)]


def test_repeated_observation_must_be_equal() -> None:
    writer = ModelWriter([ModelTable("t", Transition(), 10)])
    writer.commit(writer.plan_append({0: entry(0, nxt=1)}))
    with pytest.raises(Elsewhere):
        writer.plan_append({0: entry(2)})


def test_end_episode_after_a_flagged_row_and_discard() -> None:
    writer = ModelWriter([ModelTable("t", Transition(n_step=2), 10)])
    writer.commit(writer.plan_append({0: entry(0)}))
    writer.commit(writer.plan_append({0: entry(1, end="truncated")}))
    plan = writer.plan_end({0: {"obs": 2}})
    assert column(plan.drafts["t"], "next_obs") == [2, 2]
    assert writer.plan_end({0: {"obs": 2}}, discard=True).drafts["t"] == []


def test_limiters_decide_as_specified() -> None:
    assert not MinSize(3).may_sample(Counts(2))
    assert MinSize(3).may_sample(Counts(3))
    limiter = SamplesPerInsert(2.0, min_size=10, tolerance=0.1)
    assert limiter.bounds == (18.0, 22.0)
    assert limiter.may_insert(Counts(10, 10, 0))
    assert not limiter.may_insert(Counts(11, 11, 0))
    assert limiter.may_insert(Counts(11, 11, 2))
    assert limiter.may_sample(Counts(10, 10, 1))
    assert not limiter.may_sample(Counts(10, 10, 2))
    assert Queue(2).may_insert(Counts(1))
    assert not Queue(2).may_insert(Counts(2))


def item(number: int, priority: float = 1.0) -> Item:
    return Item(number, 0, 0, 0, {}, priority)


def test_samplers_choose_as_specified() -> None:
    items = [item(0, 2.0), item(1, 0.0), item(2, 3.0)]
    assert [each.number for each in candidates("Fifo", items)] == [0]
    assert [each.number for each in candidates("Lifo", items)] == [2]
    assert [each.number for each in candidates("MinHeap", items)] == [1]
    assert [each.number for each in candidates("MaxHeap", items)] == [2]
    assert [each.number for each in candidates("Prioritized", items)] == [0, 2]
    np.testing.assert_allclose(probabilities([2.0, 0.0, 3.0], 1.0), [0.4, 0.0, 0.6])


def test_once_draws_each_item_once_per_epoch() -> None:
    table = ModelTable("t", Step(), 10, sampler=Once(epochs=2))
    table.insert([Draft(0, 0, i, {}) for i in range(3)])
    assert table.draw(7) is None
    assert len(table.draw(3) or []) == 3
    assert sorted(drawn.number for drawn in table.draw(3) or []) == [0, 1, 2]
    assert table.draw(1) is None
    table.insert([Draft(0, 0, 3, {})])
    assert [drawn.number for drawn in table.draw(1) or []] == [3]


def test_use_limit_and_refused_draws_leave_no_trace() -> None:
    table = ModelTable("t", Step(), 10, sampler="Fifo", max_times_sampled=2)
    table.insert([Draft(0, 0, i, {}) for i in range(2)])
    assert table.draw(5) is None
    assert [(each.number, each.times_sampled) for each in table.draw(3) or []] == [(0, 1), (0, 2), (1, 1)]
    assert [each.number for each in table.items] == [1]
    assert table.samples == 3


def test_stale_items_are_not_drawn() -> None:
    table = ModelTable("t", Step(), 10, sampler="Fifo", max_staleness=1, newest=3)
    table.insert([Draft(0, 0, version, {}, version=version) for version in (1, 2, 3)])
    assert [each.number for each in table.draw(2) or []] == [1, 1]
    table.drop_stale({1, 2})
    assert len(table) == 2


def test_random_remover_is_checked_against_the_survivors() -> None:
    table = ModelTable("t", Step(), 2, remover="Uniform")
    table.insert([Draft(0, 0, i, {}) for i in range(2)])
    table.insert([Draft(0, 0, 2, {})], survivors={0, 2})
    assert [each.number for each in table.items] == [0, 2]
    with pytest.raises(AssertionError):
        table.insert([Draft(0, 0, 3, {})], survivors={0, 2, 3})
