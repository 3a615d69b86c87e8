"""A call that can never fit is refused as a whole, before anything is written and before anything is evicted for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import di_store

WIDE = {"obs": di_store.Spec((1024,), "f4"), "reward": di_store.Spec((), "f4")}
WIDE |= dict.fromkeys(("terminated", "truncated"), di_store.Spec((), "?"))


def wide(*lead: int, ended: Any = False) -> dict[str, Any]:
    """Rows of 4 KiB."""
    flags = np.broadcast_to(np.asarray(ended, bool), lead).copy()
    rows = {"obs": np.zeros((*lead, 1024), np.float32), "reward": np.zeros(lead, np.float32)}
    return rows | {"terminated": flags, "truncated": np.zeros(lead, bool)}


def state(store: Any, table: Any) -> dict[str, Any]:
    """All that an eviction, a row or a chunk would change."""
    counts = ("size", "inserts", "removed", "evicted_for_room", "used_bytes", "open_bytes", "reserve_bytes")
    stats = table.stats()
    store_counts = ("reserved", "objects")  # not pages: a thread gives unused ones back meanwhile
    found = {name: store.stats()[name] for name in store_counts} | {name: stats[name] for name in counts}
    return found | {"keys": table.keys().tolist()}


def assert_refused(store: Any, table: Any, call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    before = state(store, table)
    with pytest.raises(kind, match=text):
        call()
    assert state(store, table) == before


@pytest.mark.parametrize("lanes", [None, 3])
def test_more_rows_than_capacity_evict_nothing(lanes: int | None) -> None:
    """The table is full, and rows could be staged only in the place of items."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=300, max_bytes="2MiB", schema=WIDE, lanes=lanes or 1)
        lead = () if lanes is None else (lanes,)
        with table.writer(lanes=lanes) as writer:
            writer.extend(wide(200 // (lanes or 1), *lead), timeout=60)
            rows = 300 // (lanes or 1) + 1
            assert_refused(store, table, lambda: writer.extend(wide(rows, *lead)), ValueError, "capacity=300")
            writer.extend(wide(20, *lead), timeout=60)
        assert store.check() == []


@pytest.mark.memory_only
def test_rows_that_end_episodes_are_counted_as_they_will_be() -> None:
    """Final observations take rows of their own, which bounds on the number of rows leave out."""
    with di_store.open(memory="32MiB") as store:
        view = di_store.Transition(n_step=1)
        table = store.create_table("t", capacity=1_000, max_bytes="2MiB", schema=WIDE, lanes=1, view=view)
        with table.writer() as writer:
            writer.extend(wide(300), timeout=60)
            rows = wide(400, ended=True)
            for next_rows, fits in (({"obs": rows["obs"]}, False), (None, True)):
                if fits:
                    writer.extend(rows, next=next_rows, timeout=60)
                else:
                    call = lambda: writer.extend(rows, next=next_rows)  # noqa: B023, E731
                    assert_refused(store, table, call, di_store.CapacityError, "rows of one call")
        assert store.check() == []


def test_rows_dropped_by_next_step_autoreset_do_not_count() -> None:
    """Every other row is a reset: twice as many fit, and no more than that."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=300, schema=WIDE, lanes=1)
        with table.writer(autoreset="next_step") as writer:
            assert len(writer.extend(wide(600, ended=True), timeout=60).keys) == 300
            assert_refused(store, table, lambda: writer.extend(wide(602, ended=True)), ValueError, "301 items")
        assert store.check() == []


def test_ragged_rows_that_never_fit_evict_nothing() -> None:
    """Their bytes are those of the values, not those that were estimated for a row."""
    spec = di_store.Spec((None,), "u1")
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=1_000, max_bytes="2MiB", schema={"obs": spec}, lanes=1)
        small, large = [np.zeros(5_000, np.uint8)] * 200, [np.zeros(70_000, np.uint8)] * 100
        table.extend({"obs": small}, timeout=60)
        with table.writer() as writer:
            writer.extend({"obs": small}, timeout=60)
            for call in (lambda: table.extend({"obs": large}), lambda: writer.extend({"obs": large})):
                assert_refused(store, table, call, di_store.CapacityError, "rows of one call")
            row = [*small[:50], np.zeros(3 << 20, np.uint8)]
            assert_refused(store, table, lambda: writer.extend({"obs": row}), di_store.CapacityError, "a row of")
            writer.extend({"obs": small}, timeout=60)
        assert store.check() == []


VIEWS = [
    di_store.Step(),
    di_store.Transition(n_step=3),
    di_store.Transition(n_step=2, frame_stack={"obs": 4}),
    di_store.Sequence(4),
    di_store.Sequence(4, period=2, tail="shift"),
    di_store.Sequence(4, period=3, burn_in=2, cross_episodes=True),
    di_store.Sequence(4, bootstrap=("obs",)),
    di_store.Episode(50),
]


def rows_of_lanes(rng: np.random.Generator, start: int, steps: int) -> dict[str, Any]:
    flags = rng.random((2, steps, 2)) < 0.1
    obs = np.repeat(np.arange(start, start + steps), 2).reshape(steps, 2)
    return {"obs": obs, "reward": np.zeros((steps, 2)), "terminated": flags[0], "truncated": flags[1]}


@pytest.mark.parametrize("view", VIEWS, ids=repr)
@pytest.mark.parametrize("autoreset", [None, "next_step", "same_step"])
def test_exactly_capacity_items_pass_in_one_call(view: Any, autoreset: Any) -> None:
    """What a call would make is known before it writes: a twin with room for all of it tells how much that is."""
    with di_store.open(memory="32MiB") as store:
        for seed in range(4):
            rng = np.random.default_rng(seed)
            first, steps = rows_of_lanes(rng, -7, 7), rows_of_lanes(rng, 0, 60)
            kinds = {"next": {"obs": steps["obs"] + 1}} if seed % 2 else {}
            twin = store.create_table("twin", capacity=1_000, view=view, lanes=2)
            with twin.writer(lanes=2, autoreset=autoreset) as writer:
                writer.extend(first)
                made = len(writer.extend(steps, **kinds).keys)
            store.drop_table("twin")
            for capacity in (made - 1, made) if made > 1 else (made,):
                table = store.create_table("t", capacity=max(1, capacity), view=view, lanes=2)
                with table.writer(lanes=2, autoreset=autoreset) as writer:
                    writer.extend(first, timeout=60)
                    if capacity < made:
                        call = lambda: writer.extend(steps, **kinds)  # noqa: B023, E731
                        assert_refused(store, table, call, ValueError, f"{made} items")
                    else:
                        assert len(writer.extend(steps, timeout=60, **kinds).keys) == made
                store.drop_table("t")
        assert store.check() == []


@pytest.mark.parametrize("view", [di_store.Step(), di_store.Transition(), di_store.Sequence(2, bootstrap=("obs",))])
def test_an_append_of_more_lanes_than_capacity_is_refused(view: Any) -> None:
    """Keys that are dead when the call returns are of no use; fewer lanes, or a larger table, can go on."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=4, view=view, schema=WIDE, lanes=8)
        with table.writer(lanes=8) as writer:
            following = {"obs": np.zeros((8, 1024), np.float32)}
            if isinstance(view, di_store.Sequence):
                writer.append(wide(8), next=following)
            for call in (
                writer.append,
                lambda *a, **k: writer.extend(*(tree_of(x) for x in a), next=tree_of(k["next"])),
            ):
                once = lambda: call(wide(8), next=following)  # noqa: B023, E731
                assert_refused(store, table, once, ValueError, r"8 (lanes|items) of table 't', whose capacity=4")
            half = {"obs": following["obs"][:4]}
            assert len(writer.append(wide(4), next=half, lane=np.arange(4)).keys) == 4
            table.resize(8)
            assert len(writer.append(wide(8), next=following).keys) >= 4
        assert store.check() == []


def tree_of(step: dict[str, Any]) -> dict[str, Any]:
    """A step as one of `extend`."""
    return {name: value[None] for name, value in step.items()}


def test_the_end_of_an_episode_may_complete_more_items_than_capacity() -> None:
    """An episode can always be ended: its first items make room for the last. A queue evicts none."""
    with di_store.open(memory="32MiB") as store:
        for name, limiter in (("t", di_store.MinSize(1)), ("q", di_store.Queue(3))):
            view = di_store.Transition(n_step=10)
            table = store.create_table(name, capacity=3, view=view, schema=WIDE, limiter=limiter)
            with table.writer() as writer:
                for end in ("end_episode", "flag"):
                    for _ in range(7):
                        writer.append(wide())
                    if end == "flag":
                        items = writer.append(wide(ended=True), next={"obs": wide()["obs"]})
                    else:
                        items = writer.end_episode({"obs": wide()["obs"]})
                    assert len(items.keys) == (7 if end == "end_episode" else 8)
                    assert len(table) == (3 if name == "t" else len(items.keys))
                    if name == "q":
                        table.sample(7)
        queue = store.create_table("lanes", capacity=2, schema=WIDE, limiter=di_store.Queue(2), lanes=8)
        with queue.writer(lanes=8) as writer:
            assert len(writer.append(wide(8)).keys) == len(queue) == 8
        assert store.check() == []
