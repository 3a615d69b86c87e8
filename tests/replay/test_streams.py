"""Several tables over one stream: each pays for what its own items and view need, and no setting stands still."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.replay.handle import held_reserve

MIB = 1 << 20


def step_of(side: int, lanes: int | None, at: int, ended: Any = False) -> dict[str, Any]:
    """One step of square observations in each lane."""
    lead = () if lanes is None else (lanes,)
    return {
        "obs": np.full((*lead, side, side), at % 251, np.uint8),
        "action": np.zeros(lead, np.int64),
        "reward": np.zeros(lead, np.float32),
        "terminated": np.broadcast_to(np.asarray(ended, bool), lead).copy(),
    }


@pytest.mark.parametrize("lanes", [None, 8])
@pytest.mark.parametrize("held", ["capacity", "max_bytes"])
def test_a_short_table_sharing_a_stream_with_long_episodes_keeps_its_items(
    lanes: int | None, held: str, full: bool
) -> None:
    """`lanes=` of the short table is the default, and the store is almost empty."""
    side, capacity, length = (84, 1_000, 10_000) if full else (42, 200, 800)
    episodes = {"capacity": 9, "max_bytes": 700 * MIB} if held == "capacity" else {"max_bytes": 700 * MIB}
    with di_store.open(memory="1GiB" if full else "256MiB") as store:
        if not full:
            episodes |= {"max_bytes": 40 * MIB}
        short = store.create_table("short", capacity=capacity, view=di_store.Transition(n_step=3))
        whole = store.create_table("whole", view=di_store.Episode(length), **({"capacity": None} | episodes))
        with store.writer([short, whole], lanes=lanes) as writer:
            for at in range(length + length // 5):
                writer.append(step_of(side, lanes, at), timeout=0)
                if at % 50 == 0:  # also before the first episodes are as long as they may be
                    assert short.stats()["used_bytes"] < 3 * short.stats()["reserve_bytes"] // 2, at
            open_bytes = (length // 5) * side * side * (lanes or 1)
            assert short.stats()["used_bytes"] < 3 * short.stats()["reserve_bytes"] // 2
            assert whole.stats()["used_bytes"] > open_bytes
            assert store.check() == []
        assert len(short) == capacity
        assert len(whole) == (lanes or 1)
        assert short.stats()["evicted_for_room"] == whole.stats()["evicted_for_room"] == 0
        batch = whole.sample(1, columns=["obs", "lengths"], timeout=0)
        assert batch.data["obs"].shape[1] == length
        assert (batch.data["obs"][0, :, 0, 0] == np.arange(length) % 251).all()
        assert store.check() == []


def test_a_reserve_that_a_stream_has_raised_stays_with_a_resize() -> None:
    with di_store.open(memory="256MiB") as store:
        short = store.create_table("short", capacity=200, view=di_store.Transition(n_step=3))
        whole = store.create_table("whole", capacity=4, lanes=1, view=di_store.Episode(1_000))
        with store.writer([short, whole]) as writer:
            writer.append(step_of(42, None, 0), timeout=0)
            alone = short._backend.handle.needs(short._backend.handle.schema).reserve.bytes
            assert short.stats()["reserve_bytes"] > alone, "chunks of the stream are larger than its own"
            for capacity in (400, 100):
                short.resize(capacity)
                assert (
                    short.stats()["reserve_bytes"]
                    > short._backend.handle.needs(short._backend.handle.schema).reserve.bytes
                )
            for at in range(900):
                writer.append(step_of(42, None, at), timeout=0)
        assert len(short) == 100
        assert short.stats()["evicted_for_room"] == 0


def test_a_raised_reserve_does_not_creep_up_as_a_table_grows_and_shrinks() -> None:
    with di_store.open(memory="192MiB") as store:
        short = store.create_table("short", capacity=2_000, view=di_store.Transition(n_step=3))
        whole = store.create_table("whole", capacity=4, lanes=1, view=di_store.Episode(1_000))
        reserves = []
        for _ in range(5):
            with store.writer([short, whole]) as writer:
                writer.append(step_of(8, None, 0), timeout=0)
                for capacity in (4_000, 1_000, 2_000):
                    short.resize(capacity)
            reserves.append(short.stats()["reserve_bytes"])
        assert max(reserves) <= reserves[0] * 1.01
        assert store.check() == []


def test_the_bytes_open_lanes_need_do_not_grow_with_capacity() -> None:
    """A table that begins small and grows: it shares large chunks with one of long episodes."""
    row = {"obs": np.zeros(8, "f4"), "reward": np.float32(0), "terminated": False, "truncated": False}
    with di_store.open(memory="512MiB") as store, di_store.open(memory="512MiB") as other:
        short = store.create_table("short", capacity=100, schema=row)
        whole = store.create_table("whole", capacity=100, view=di_store.Episode(1_000), schema=row)
        with store.writer([short, whole]) as writer:
            writer.append(row, timeout=0)
            small, meta = short.stats()["reserve_bytes"], store.stats()["meta"]
            for capacity in (1_000, 10_000, 100_000):
                short.resize(capacity)
            fresh = other.create_table("fresh", capacity=100_000, schema=row).stats()["reserve_bytes"]
            assert fresh <= short.stats()["reserve_bytes"] <= fresh + small
            assert store.stats()["meta"] < meta + other.stats()["meta"], "descriptors for chunks that never come"
            short.resize(100)
            assert short.stats()["reserve_bytes"] <= small


def test_a_table_without_capacity_keeps_room_for_its_open_lanes() -> None:
    """It gets a capacity while it shares chunks that are larger than its own."""
    with di_store.open(memory="512MiB") as store:
        short = store.create_table("short", capacity=None, max_bytes="128MiB", lanes=1)
        whole = store.create_table("whole", capacity=4, lanes=1, view=di_store.Episode(1_000))
        with store.writer([short, whole]) as writer:
            writer.append(step_of(84, None, 0), timeout=0)
            short.resize(50)
            alone = short._backend.handle.needs(short._backend.handle.schema).reserve
            assert held_reserve(short.stats()).open_bytes > alone.open_bytes
            for at in range(900):
                writer.append(step_of(84, None, at), timeout=0)
        assert (len(short), short.stats()["evicted_for_room"]) == (50, 0)


def test_a_resize_keeps_the_descriptors_of_a_stream_with_small_chunks() -> None:
    """The table alone would have larger chunks, and so fewer, than those it shares with one of few rows."""
    row = {"obs": np.zeros(64, "f4"), "reward": np.float32(0), "terminated": False, "truncated": False}
    with di_store.open(memory="256MiB") as store:
        large = store.create_table("large", capacity=100_000, schema=row)
        few = store.create_table("few", capacity=64, schema=row)
        alone = large.stats()["chunk_block"]
        with store.writer([large, few]) as writer:
            writer.append(row, timeout=0)
            shared = large.stats()["chunk_block"]
            assert shared < alone
            for capacity in (200_000, 50_000):
                large.resize(capacity)
                assert large.stats()["chunk_block"] == shared, capacity


def test_no_resize_undoes_another() -> None:
    """Who reckons a size from figures that somebody else changes meanwhile begins anew."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1_000, schema={"x": di_store.Spec((64,), "f4")})
        seen = []

        def wider(now: dict[str, Any]) -> Any:
            """What a writer over several tables asks for as it opens."""
            if not seen:
                table.resize(3_000)
            seen.append(now["capacity"])
            held = held_reserve(now)
            return int(now["capacity"]), int(now["slots"]), held._replace(bytes=held.bytes + (1 << 20))

        table._backend.handle.resize(wider, 60.0)
        assert seen == [1_000, 3_000]
        assert table.stats()["capacity"] == 3_000
        own = table._backend.handle.needs(table._backend.handle.schema).reserve
        assert held_reserve(table.stats()).bytes == own.bytes + (1 << 20)


def test_open_episodes_of_many_writers_take_free_memory() -> None:
    """Beyond twice what the table has set aside: only its items are held to that."""
    with di_store.open(memory="192MiB") as store, contextlib.ExitStack() as opened:
        table = store.create_table("t", capacity=2, lanes=1, view=di_store.Episode(400))
        writers = [opened.enter_context(table.writer()) for _ in range(16)]
        for at in range(390):
            for writer in writers:
                writer.append(step_of(42, None, at), timeout=0)
        assert table.stats()["used_bytes"] > 5 * table.stats()["reserve_bytes"] // 2
        for writer in writers:
            writer.end_episode(timeout=0)
        assert len(table) == 2
        assert store.check() == []


def test_open_episodes_that_no_eviction_makes_fit_are_refused_at_once() -> None:
    """Without a limit of time, naming what helps; once the episodes end, all goes on."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", max_bytes=20 * MIB, capacity=None, view=di_store.Episode(4_000))
        with table.writer(lanes=4) as writer:
            with pytest.raises(di_store.CapacityError, match=r"open episodes.*raise max_bytes=.*fewer lanes") as caught:
                for at in range(4_000):
                    writer.append(step_of(42, 4, at))
            assert at > 900, str(caught.value)
            assert store.check() == []
            writer.end_episode(timeout=0)
            for more in range(200):
                writer.append(step_of(42, 4, more), timeout=0)
    assert at > 900


@pytest.mark.memory_only
def test_an_append_waits_for_objects_and_says_so() -> None:
    """Beyond its reserve a table takes free memory: where objects have it, it waits for their end."""
    with di_store.open(memory="48MiB") as store:
        table = store.create_table("t", capacity=1, lanes=1, view=di_store.Episode(4_000))
        ref = store.put(np.zeros(16 * MIB, np.uint8))
        with table.writer(lanes=8) as writer:
            with pytest.raises(di_store.StoreFull, match="deleting objects"):
                for at in range(4_000):
                    writer.append(step_of(42, 8, at), timeout=0)
            store.delete([ref])
            writer.append(step_of(42, 8, at), timeout=60)
            with pytest.raises(di_store.CapacityError, match="whatever is evicted or deleted"):
                for _ in range(4_000):
                    writer.append(step_of(42, 8, at))
            assert store.check() == []


def test_a_kill_in_a_long_episode_leaves_right_charges(store_name: Callable[[], str]) -> None:
    """A killed writer's chunks are closed for the tables that needed them, and those of nobody go."""
    import multiprocessing as mp

    def write(name: str, sent: Any) -> None:
        with di_store.attach(name, timeout=60) as mine:
            writer = mine.writer([mine.table("short"), mine.table("whole")])
            for at in range(700):
                writer.append(step_of(42, None, at), timeout=60)
            sent.send(at)
            sent.recv()

    with di_store.open(store_name(), memory="64MiB") as store:
        short = store.create_table("short", capacity=100, view=di_store.Transition(n_step=3))
        whole = store.create_table("whole", capacity=2, lanes=1, view=di_store.Episode(2_000))
        here, there = mp.Pipe()
        process = mp.get_context("fork").Process(target=write, args=(store.name, there))
        process.start()
        assert here.poll(60)
        before = whole.stats()["used_bytes"]
        assert before > 700 * 42 * 42
        assert short.stats()["used_bytes"] < before // 3
        process.kill()
        process.join(60)
        assert store.check(repair=True) == []
        assert whole.stats()["used_bytes"] == whole.stats()["open_bytes"] == short.stats()["open_bytes"] == 0
        assert 0 < short.stats()["used_bytes"] < before // 3
        assert len(short) == 100


# --- no setting stands still ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """A store, the tables over one stream, and a writer: everything that decides who can move."""

    memory: int
    side: int
    lanes: int
    tables: tuple[dict[str, Any], ...]
    ends: float
    """Chance that a row ends its lane's episode; 0: they stay open."""


def some_view(rng: random.Random) -> Any:
    return rng.choice(
        [
            di_store.Step(),
            di_store.Transition(n_step=rng.choice((1, 3, 20))),
            di_store.Transition(n_step=2, frame_stack={"obs": 4}),
            di_store.Sequence(rng.choice((4, 40)), rng.choice((None, 2)), rng.choice((0, 10))),
            di_store.Episode(rng.choice((10, 200, 5_000))),
        ]
    )


def some_table(rng: random.Random) -> dict[str, Any]:
    capacity = rng.choice((1, 7, 60, 400))
    limiter = rng.choice(
        [
            di_store.MinSize(rng.randint(1, capacity)),
            di_store.SamplesPerInsert(rng.choice((0.5, 1.0, 8.0)), rng.randint(1, capacity), rng.choice((0.0, 0.5))),
            di_store.Queue(rng.randint(1, capacity)),
        ]
    )
    options: dict[str, Any] = {"capacity": capacity, "view": some_view(rng), "limiter": limiter}
    if not isinstance(limiter, di_store.Queue):
        options["remover"] = rng.choice((di_store.Fifo(), di_store.Fifo(), di_store.Uniform(), di_store.Lifo()))
    if rng.random() < 0.6:
        options["lanes"] = rng.choice((1, 2, 8))
    if rng.random() < 0.3:
        options["max_bytes"] = rng.choice((1, 2, 4)) * MIB
    return options


def some_load(rng: random.Random) -> Load:
    return Load(
        rng.choice((8, 12, 24)) * MIB,
        rng.choice((1, 20, 60)),
        rng.choice((1, 2, 8, 20)),
        tuple(some_table(rng) for _ in range(rng.choice((1, 2, 2, 3)))),
        rng.choice((0.0, 0.001, 0.05, 0.5)),
    )


def learn(tables: list[Any]) -> bool:
    """A draw from each table; whether one came."""
    moved = False
    for table in tables:
        if not table.stats()["limiter"]["sample_reason"]:
            with contextlib.suppress(di_store.Timeout):
                table.sample(8, min_n=1, linger=0, timeout=0)
                moved = True
    return moved


def append_all(load: Load, tables: list[Any], writer: Any, step: Any) -> None:
    """One append, learners drawing for as long as it waits."""
    blocked = ""
    while True:
        try:
            writer.append(step, timeout=0)
        except (di_store.Timeout, di_store.StoreFull) as error:
            blocked = str(error)
        else:
            return
        assert learn(tables), f"{load} was accepted and stands still: {blocked}"


def run(load: Load, steps: int, rng: random.Random) -> str:
    """Append as far as the tables let it; "refused", "ran", or "open": open episodes took all the memory there is.

    A call that waits must pass once learners have drawn what there is. Whatever is refused names the knob.
    """
    with di_store.open(memory=load.memory) as store:
        try:
            tables = [store.create_table(f"t{at}", **options) for at, options in enumerate(load.tables)]
            writer = store.writer(tables, lanes=load.lanes)
            writer.append(step_of(load.side, load.lanes, 0), timeout=0)
        except (ValueError, di_store.CapacityError):
            return "refused"
        refusal = ""
        try:
            for at in range(steps):
                ended = [rng.random() < load.ends for _ in range(load.lanes)]
                append_all(load, tables, writer, step_of(load.side, load.lanes, at, ended))
        except di_store.CapacityError as error:
            refusal = str(error)
        except ValueError as error:  # as soon as more lanes complete items than there is capacity for
            refusal = str(error)
        if "would complete items of" in refusal:
            assert load.lanes > min(options["capacity"] for options in load.tables)
            return "refused"
        if refusal:
            assert "open episodes" in refusal
            opened = sum(table.stats()["open_bytes"] for table in tables)
            assert opened > min(load.memory, *(table.stats()["max_bytes"] or load.memory for table in tables)) // 4
        assert store.check() == []
        with contextlib.suppress(di_store.StoreError):
            writer.close(timeout=0)
        return "open" if refusal else "ran"


def test_no_accepted_stream_deadlocks(count: Callable[[int, int], int], full: bool) -> None:
    """Ratio × min_size × capacity × views × lanes × tables over one stream × open episodes × store size."""
    rng = random.Random(2)
    results = [run(some_load(rng), 2_000 if full else 150, rng) for _ in range(count(40, 1_500))]
    assert results.count("ran") > len(results) // 3
    assert results.count("refused") < len(results) // 2


@pytest.mark.parametrize("first", ["with", "without"])
def test_a_discount_stops_the_sums_of_tables_that_have_that_column(first: str) -> None:
    """Two tables of one stream: the zeros of the one cut no window of the other, in whatever order they are."""
    rows = {"obs": di_store.Spec((), "i8"), "reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}
    with di_store.open(memory="64MiB") as store:
        tables = {}
        for name in (first, *{"with", "without"} - {first}):
            schema = rows | ({"discount": di_store.Spec((), "f4")} if name == "with" else {})
            view = di_store.Transition(n_step=3, gamma=1.0)
            tables[name] = store.create_table(name, capacity=100, view=view, schema=schema)
        with store.writer(list(tables.values())) as writer:
            for at in range(8):
                row = {"obs": at, "reward": 1.0, "terminated": False, "discount": np.float32(at != 2)}
                writer.append(row, next={"obs": at + 1})
        steps = {name: table.peek(table.keys()).data["steps"].tolist() for name, table in tables.items()}
    assert steps == {"with": [3, 2, 1, 3, 3, 3, 2, 1], "without": [3, 3, 3, 3, 3, 3, 2, 1]}
