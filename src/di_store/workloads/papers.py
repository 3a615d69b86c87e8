"""Loads of papers and systems: what their replay, queues and object stores are asked for, at a machine's share of it.

Rates are a tenth of the source's, and some run at the source's own as well (``-x10``, ``-1000``). P12 and P13 are rows
of small operations without a rate, named as the benchmarks of Reverb and Ray name them.
"""

from __future__ import annotations

from dataclasses import replace

import di_store
from di_store.workloads.load import Append, Bar, Column, Draw, Get, Insert, Load, Publish, Pull, Put, Role, TablePlan

PULLERS = 8
APART = (("sample",), ("insert",))


def _pullers(size: int, looks_per_second: float) -> Role:
    """Processes that take every new version of the weights, each looking so often."""
    return Role("puller", PULLERS, (Pull(size=size, rate=PULLERS * looks_per_second),))


# --- Ape-X ------------------------------------------------------------------------------------------------------------

APEX_WEIGHTS, APEX_SOFT, APEX_TRIM = 13_200_076, 35_000, 100


def _apex(name: str, title: str, times: float) -> Load:
    """Ape-X at so many times the rate; every 100 batches the learner removes what is above the soft capacity."""
    insert, sample, batch = 1_250.0 * times, 973.0 * times, 512
    between = insert / sample * batch * APEX_TRIM  # inserts from one removal to the next
    table = TablePlan(
        columns=(
            Column("obs", "u1", (4, 84, 84)),
            Column("next_obs", "u1", (4, 84, 84)),
            Column("action", "i4", (1,)),
            Column("reward", "f4", (1,)),
            Column("discount", "f4", (1,)),
        ),
        capacity=round(APEX_SOFT + 1.25 * between),
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(875),
        fill=APEX_SOFT,
    )
    learner = Draw(rate=sample, batch=batch, update=True, trim=APEX_TRIM)
    return Load(
        name=name,
        title=title,
        tables=(table,),
        roles=(
            Role("writer", 2, (Insert(rate=insert, batch=50, priority=True),)),
            Role("learner", 1, (learner, Publish(size=APEX_WEIGHTS, rate=1))),
            _pullers(APEX_WEIGHTS, 10),
        ),
        most=APART,
        objects_bytes=4 * APEX_WEIGHTS,
    )


# --- R2D2, and R2D3 with demonstrations -------------------------------------------------------------------------------

SEQUENCE_BYTES = 873_064  # 123 frames, 120 actions, rewards and flags, one state
PERIOD = 40
LONG_EPISODES, LONG_MEAN = (2_000, 6_000), 4_000
R2D2_WEIGHTS = 17_429_124


def _sequences(name: str, capacity: int) -> TablePlan:
    return TablePlan(
        name=name,
        columns=(
            Column("obs", "u1", (84, 84)),
            Column("action", "i4"),
            Column("reward", "f4"),
            Column("terminated", "?"),
            Column("state", "f4", (2, 512)),
        ),
        capacity=capacity,
        view=di_store.Sequence(length=80, period=PERIOD, burn_in=40, frame_stack={"obs": 4}, first=("state",)),
        sampler=di_store.Prioritized(alpha=0.9, beta=0.6),
        limiter=di_store.MinSize(64),
        sizes=(SEQUENCE_BYTES, PERIOD * (84 * 84 + 9) + 3 * 4096),
    )


def _sequence_steps(sequences_per_second: float) -> float:
    """Steps a second for so many sequences: an episode's last two periods start none."""
    return sequences_per_second * PERIOD * LONG_MEAN / (LONG_MEAN - 2 * PERIOD)


def _sequence_writer(table: str) -> Append:
    return Append(
        tables=(table,), rate=_sequence_steps(52), lanes=8, episode=LONG_EPISODES, stamped="obs", priority=True
    )


R2D2 = Load(
    name="P2-r2d2-paper",
    title="R2D2: overlapping sequences with stored state",
    tables=(_sequences("items", 4_000),),
    roles=(
        Role("writer", 2, (_sequence_writer("items"),)),
        Role("learner", 1, (Draw(rate=40, batch=64, update=True), Publish(size=R2D2_WEIGHTS, rate=0.5))),
        _pullers(R2D2_WEIGHTS, 5),
    ),
    most=APART,
    bars=(Bar("stored_share", "<=", 0.36, "stored over flat, with state and stack"),),
    objects_bytes=4 * R2D2_WEIGHTS,
)

R2D3 = replace(
    R2D2,
    name="P8-r2d3",
    title="R2D3: demonstrations mixed into each batch, 1 of 256",
    tables=(_sequences("agent", 4_000), _sequences("demo", 200)),
    roles=(
        Role("writer", 2, (_sequence_writer("agent"),)),
        Role(
            "demonstrator",
            1,
            (Append(label="demo", tables=("demo",), rate=0, lanes=4, episode=(160, 160), stamped="obs"),),
        ),
        Role(
            "learner",
            1,
            (
                Draw(source=(("agent", 255), ("demo", 1)), rate=40, batch=64, update=True),
                Publish(size=R2D2_WEIGHTS, rate=0.5),
            ),
        ),
        _pullers(R2D2_WEIGHTS, 5),
    ),
    bars=(
        Bar("stored_share", "<=", 0.36, "stored over flat, with state and stack"),
        Bar("stored_share of agent", "<=", 0.36, "agent: stored over flat, with state and stack"),
        # Episodes of 160 steps with two sequences of 120 each: at best 0.66.
        Bar("stored_share of demo", "<=", 0.7, "demonstrations: stored over flat"),
        Bar("mixture_sigmas", "<=", 3, "share of demonstrations, off by how many sigmas"),
    ),
)


# --- IMPALA -----------------------------------------------------------------------------------------------------------

_TRAJECTORY = (
    Column("frame", "u1", (101, 72, 96, 3)),
    Column("action", "i4", (101,)),
    Column("reward", "f4", (101,)),
    Column("done", "?", (101,)),
    Column("policy_logits", "f4", (101, 9)),
    Column("baseline", "f4", (101,)),
    Column("core_state", "f4", (2, 256)),
)


def _impala(name: str, title: str, rate: float) -> Load:
    table = TablePlan(columns=_TRAJECTORY, capacity=64, limiter=di_store.Queue(64), sampler=di_store.Fifo(), fill=0)
    return Load(
        name=name,
        title=title,
        tables=(table,),
        roles=(
            Role("actor", 2, (Insert(rate=rate),)),
            Role("learner", 1, (Draw(rate=rate, batch=32),)),
        ),
        most=(("sample", "insert"),),
    )


IMPALA_REPLAY = Load(
    name="P4r-impala-dmlab-replay",
    title="the same, half of each batch from a replay over the same bytes",
    tables=(
        TablePlan(
            name="queue",
            columns=_TRAJECTORY,
            capacity=64,
            limiter=di_store.Queue(64),
            sampler=di_store.Fifo(),
            fill=0,
        ),
        TablePlan(name="replay", columns=_TRAJECTORY, capacity=900),
    ),
    roles=(
        Role("actor", 2, (Append(tables=("queue", "replay"), rate=78),)),
        Role("learner", 1, (Draw(source=(("queue", 1), ("replay", 1)), rate=156, batch=32),)),
    ),
    most=(("sample", "insert"),),
)


# --- small steps, single frames ---------------------------------------------------------------------------------------


def _high_utd(name: str, title: str, inserts: float) -> Load:
    """SAC on Hopper: 256 samples an insert, held by the limiter; next_obs by view."""
    table = TablePlan(
        columns=(
            Column("obs", "f4", (11,)),
            Column("action", "f4", (3,)),
            Column("reward", "f4"),
            Column("terminated", "?"),
        ),
        capacity=1_000_000,
        view=di_store.Transition(n_step=1, gamma=0.99),
        limiter=di_store.SamplesPerInsert(256, min_size=10_000, tolerance=0.1),
        sizes=(105, 105),
    )
    return Load(
        name=name,
        title=title,
        tables=(table,),
        roles=(Role("actor", 1, (Append(rate=inserts),)), Role("learner", 1, (Draw(rate=inserts * 256, batch=256),))),
        most=(("sample", "insert"),),
        bars=(
            Bar("in_all_share", "<=", 1.3, "stored in all over 105 B"),
            Bar("limiter_outside", "<=", 0, "looks that found the limiter's error out of its bounds"),
        ),
    )


def _frame_ring(name: str, title: str, sampler: di_store.Uniform | di_store.Prioritized, n_step: int) -> Load:
    table = TablePlan(
        columns=(
            Column("obs", "u1", (84, 84)),
            Column("action", "i4"),
            Column("reward", "f4"),
            Column("terminated", "?"),
        ),
        capacity=280_000,
        view=di_store.Transition(n_step=n_step, gamma=0.99, frame_stack={"obs": 4}),
        sampler=sampler,
        limiter=di_store.MinSize(5_600),
        sizes=(7_065, 7_200),
    )
    writer = Append(rate=2_000, lanes=8, episode=(500, 2_000), stamped="obs")
    update = isinstance(sampler, di_store.Prioritized)
    return Load(
        name=name,
        title=title,
        tables=(table,),
        roles=(Role("actor", 1, (writer,)), Role("learner", 1, (Draw(rate=16_000, batch=32, update=update),))),
        most=APART,
    )


# --- GA3C -------------------------------------------------------------------------------------------------------------

A3C_WEIGHTS = 6_773_448


def _queue(name: str, columns: tuple[Column, ...]) -> TablePlan:
    return TablePlan(
        name=name, columns=columns, capacity=200, limiter=di_store.Queue(100), sampler=di_store.Fifo(), fill=0
    )


GA3C = Load(
    name="P11-a3c-ga3c",
    title="GA3C: a prediction and a training queue, weights 20 times a second",
    tables=(
        _queue("predictions", (Column("obs", "u1", (4, 84, 84)), Column("agent", "i4"))),
        _queue(
            "training",
            (
                Column("obs", "u1", (5, 4, 84, 84)),
                Column("action", "i4", (5,)),
                Column("reward", "f4", (5,)),
                Column("value", "f4", (5,)),
            ),
        ),
    ),
    roles=(
        Role(
            "agent",
            PULLERS,
            (
                Insert(label="ask", table="predictions", rate=5_000),
                Insert(label="fragment", table="training", rate=1_000),
                Pull(size=A3C_WEIGHTS, rate=PULLERS * 40),
            ),
        ),
        Role("predictor", 1, (Draw(label="predict", source="predictions", rate=None, batch=128, least=1),)),
        Role(
            "trainer",
            1,
            (
                Publish(size=A3C_WEIGHTS, rate=20),
                Draw(label="train", source="training", rate=None, batch=32, least=1),
            ),
        ),
    ),
    most=(("ask", "fragment"),),
    objects_bytes=(PULLERS + 4) * A3C_WEIGHTS,
)


# --- language models --------------------------------------------------------------------------------------------------

_TOKENS = (6_000.0, 1.0, 1_000, 32_768)

LLM = Load(
    name="LLM-answers",
    title="answers of a language model: packed batches of 512, with their log-probabilities",
    tables=(
        TablePlan(
            columns=(
                Column("tokens", "i4", (None,), _TOKENS),
                Column("logprobs", "f4", (None,), _TOKENS),
                Column("reward", "f4"),
            ),
            capacity=2_048,
            limiter=di_store.Queue(1_024),
            sampler=di_store.Fifo(),
            settings={"max_bytes": 512 << 20},
            fill=0,
        ),
    ),
    roles=(
        Role("writer", 2, (Insert(rate=512, batch=32),)),
        Role("learner", 1, (Draw(rate=512, batch=512),)),
    ),
    most=(("sample", "insert"),),
)


# --- small operations, without a rate ---------------------------------------------------------------------------------

_SMALL = (
    Column("obs", "f4", (87,)),
    Column("action", "f4", (8,)),
    Column("reward", "f4", (1,)),
    Column("discount", "f4", (1,)),
    Column("next_obs", "f4", (87,)),
)
_SMALL_TABLE = TablePlan(columns=_SMALL, capacity=10_000)


def _sample_ahead(batch: int, prefetch: int) -> Load:
    return Load(
        name=f"P12a-reverb-batch-{batch}-prefetch-{prefetch}",
        title="samples of 736 B by a loader",
        tables=(_SMALL_TABLE,),
        roles=(
            Role("writer", 1, (Insert(rate=0),)),
            Role("learner", 1, (Draw(rate=None, batch=batch, prefetch=prefetch),)),
        ),
        most=(("sample",),),
        seconds=2.0,
    )


def _sequence_queue(rows: int, how: str) -> Load:
    table = TablePlan(
        columns=_SMALL,
        capacity=2_000,
        view=di_store.Sequence(length=20),
        sampler=di_store.Fifo(),
        limiter=di_store.Queue(1_000),
        fill=0,
        sizes=(20 * 736, 20 * 736),
    )
    return Load(
        name=f"P12b-reverb-queue-{how}",
        title=f"steps of 736 B into a queue of sequences of 20, by {how}",
        tables=(table,),
        roles=(
            Role("writer", 4, (Append(rate=None, rows=rows),)),
            Role("learner", 1, (Draw(rate=None, batch=64),)),
        ),
        most=(("insert", "sample"),),
        seconds=2.0,
    )


_ONE = Load(
    name="P12c-reverb-one",
    title="one of 736 B at a time",
    tables=(_SMALL_TABLE,),
    roles=(Role("writer", 1, (Insert(rate=None),)), Role("learner", 1, (Draw(rate=None, batch=1),))),
    most=(("insert",), ("sample",)),
    seconds=2.0,
)

OBJECT_BYTES = (0, 1_000, 10_240, 102_400, 1_048_576, 104_857_600, 1_073_741_824)


def _object(size: int, clients: int) -> Load:
    duties = (Get(size=size), Get(label="get, other process", size=size, other=True), Put(size=size))
    return Load(
        name=f"P13-ray-put-get-{size}-clients-{clients}",
        title="put (with the delete that makes room) and get",
        roles=(Role("client", clients, duties),),
        most=(("put",), ("get",), ("get, other process",)),
        seconds=1.0,
        objects_bytes=round((2 * clients + 1) * (size * 1.15 + (4 << 20))),
    )


PAPERS: tuple[Load, ...] = (
    _apex("P1-apex", "Ape-X: prioritized transitions, priorities from the actors, removal in bulk", 1),
    _apex("P1x10-apex", "the same at ten times the rates, the paper's own", 10),
    R2D2,
    _impala("P4-impala-dmlab", "IMPALA: a queue of trajectories into one learner", 78),
    _impala("P4x8-impala-dmlab", "the same at the paper's 625 trajectories a second", 625),
    IMPALA_REPLAY,
    R2D3,
    _high_utd("P9-high-utd-small", "SAC: tiny elements, 256 samples an insert, 100 batches a second", 100),
    _high_utd("P9x10-high-utd-small", "the same, 1,000 batches a second", 1_000),
    _frame_ring("P10-frame-ring", "single frames, stacked on read", di_store.Uniform(), 1),
    _frame_ring("P10p-frame-ring", "the same, prioritized, three steps", di_store.Prioritized(0.6, 0.4), 3),
    GA3C,
    LLM,
)

OPERATIONS: tuple[Load, ...] = (
    *(_sample_ahead(batch, prefetch) for batch in (256, 2_048, 16_384) for prefetch in (0, 1, 4)),
    _sequence_queue(1, "append"),
    _sequence_queue(20, "extend"),
    _ONE,
    *(_object(size, clients) for size in OBJECT_BYTES for clients in (1, 2, 4)),
)
