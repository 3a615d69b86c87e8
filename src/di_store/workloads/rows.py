"""The eight rows of the target table, and variants of them: what DI-engine jobs move, at the table's sizes and rates.

A row passes with both rates held at once, less than half a core spent in the store, and a batch's p99 below the time
between two batches. Capacities are those of a machine with 24 GiB: two gigabytes a row; rates are the table's own.
"""

from __future__ import annotations

from dataclasses import replace

import di_store
from di_store.workloads.load import Append, Bar, Column, Draw, Insert, Load, Role, TablePlan

LARGE_BYTES = 1_000_000
"""Elements from here come one by one, as an actor has them, not stacked into one array."""

HEADROOM = 20.0
"""For rows that sample less than 200 MB/s."""


def _row(
    name: str,
    title: str,
    table: TablePlan,
    writers: int,
    insert: tuple[float, int],
    sample: tuple[float, int],
    **options: object,
) -> Load:
    """One row.

    Args:
        name: of the load.
        title: of the load.
        table: where the elements go.
        writers: processes.
        insert: elements a second, and how many come at once.
        sample: elements a second, and those of a batch.
        options: of `Draw`.
    """
    single = insert[1] > 1 and table.row_bytes >= LARGE_BYTES
    writer = Insert(rate=insert[0], batch=insert[1], singly=single)
    reader = Draw(rate=sample[0], batch=sample[1], **options)  # type: ignore[arg-type]
    limited = int(table.settings.get("max_times_sampled", 0))
    bars = [
        Bar("store_cores", "<", 0.5, "cores spent in the store"),
        Bar("sample p99 of period", "<", 1.0, "p99 of a batch over the time between two"),
    ]
    if limited:
        bars.append(Bar("most_deliveries", "<=", limited, f"deliveries of one element, at most {limited}"))
    if sample[0] * table.item_bytes < 200e6:
        bars.append(Bar("headroom", ">=", HEADROOM, "headroom"))
    # Where elements leave after some uses, more samples need more inserts.
    most = (("sample", "insert"),) if limited else (("sample",), ("insert",))
    return Load(
        name=name,
        title=title,
        tables=(table,),
        roles=(Role("writer", writers, (writer,)), Role("reader", 1, (reader,))),
        most=most,
        bars=tuple(bars),
    )


S1 = _row(
    "S1-dqn-qbert",
    "DQN / Atari Qbert",
    TablePlan(
        columns=(
            Column("obs", "f4", (4, 84, 81)),
            Column("action", "i8", (1,)),
            Column("reward", "f4", (3,)),
            Column("done", "?", (1,)),
            Column("value_gamma", "f4", (1,)),
            Column("pad", "u1", (1111,)),
        ),
        capacity=18_181,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(32),
    ),
    writers=2,
    insert=(400, 32),
    sample=(1650, 32),
    update=True,
    anneal=100_000,
)

S1F = Load(
    name="S1f-dqn-qbert-frames",
    title="the same, as one uint8 frame a step",
    tables=(
        TablePlan(
            columns=(
                Column("obs", "u1", (84, 84)),
                Column("action", "i8"),
                Column("reward", "f4"),
                Column("terminated", "?"),
            ),
            capacity=18_181,
            view=di_store.Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4}),
            sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
            limiter=di_store.MinSize(32),
            sizes=(110_000, 7_200),
        ),
    ),
    roles=(
        Role("writer", 2, (Append(rate=400, lanes=16, episode=(500, 1_500), stamped="obs"),)),
        Role("reader", 1, (Draw(rate=1650, batch=32, update=True, anneal=100_000),)),
    ),
    most=(("sample",), ("insert",)),
    bars=(
        Bar("store_cores", "<", 0.5, "cores spent in the store"),
        Bar("sample p99 of period", "<", 1.0, "p99 of a batch over the time between two"),
        Bar("in_all_share", "<=", 1 / 14, "stored in all over the row's 110 KB"),
        Bar("headroom", ">=", HEADROOM, "headroom"),
    ),
)

S2 = _row(
    "S2-ppo-qbert",
    "PPO (off-policy use) / Atari Qbert",
    TablePlan(
        columns=(
            Column("obs", "f4", (4, 84, 84)),
            Column("logit", "f4", (6,)),
            Column("action", "i8", (1,)),
            Column("value", "f4", (1,)),
            Column("adv", "f4", (1,)),
            Column("reward", "f4", (1,)),
            Column("done", "?", (1,)),
            Column("pad", "u1", (7059,)),
        ),
        capacity=16_666,
        limiter=di_store.MinSize(128),
        settings={"max_times_sampled": 3},
    ),
    writers=2,
    insert=(50, 1024),
    sample=(87, 128),
)

S3 = _row(
    "S3-r2d2-qbert",
    "R2D2 / Atari Qbert",
    TablePlan(
        columns=(
            Column("obs", "f4", (88, 4, 84, 84)),
            Column("prev_state", "f4", (2, 512)),
            Column("action", "i8", (88,)),
            Column("reward", "f4", (88, 5)),
            Column("done", "?", (88,)),
            Column("value_gamma", "f4", (88,)),
            Column("pad", "u1", (58152,)),
        ),
        capacity=200,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(64),
    ),
    writers=1,
    insert=(3, 32),
    sample=(45, 64),
    update=True,
)

S4 = _row(
    "S4-impala-qbert",
    "IMPALA / Atari Qbert",
    TablePlan(
        columns=(
            Column("obs", "f4", (26, 4, 84, 84)),
            Column("logit", "f4", (26, 6)),
            Column("action", "i8", (26,)),
            Column("reward", "f4", (26,)),
            Column("done", "?", (26,)),
            Column("pad", "u1", (63742,)),
        ),
        capacity=666,
        limiter=di_store.MinSize(128),
        settings={"max_times_sampled": 100},
    ),
    writers=1,
    insert=(4, 16),
    sample=(253, 128),
)

S5 = _row(
    "S5-sac-hopper",
    "SAC / MuJoCo Hopper",
    TablePlan(
        columns=(
            Column("obs", "f4", (11,)),
            Column("next_obs", "f4", (11,)),
            Column("action", "f4", (3,)),
            Column("reward", "f4", (1,)),
            Column("done", "?", (1,)),
            Column("pad", "u1", (2895,)),
        ),
        capacity=666_666,
        limiter=di_store.MinSize(10_000),
    ),
    writers=2,
    insert=(71, 1),
    sample=(138, 256),
)

S6 = _row(
    "S6-qmix-3s5z",
    "QMIX / SMAC 3s5z",
    TablePlan(
        columns=(
            Column("agent_state", "f8", (10, 8, 150)),
            Column("global_state", "f8", (10, 216)),
            Column("action_mask", "f8", (10, 8, 14)),
            Column("next_agent_state", "f8", (10, 8, 150)),
            Column("next_global_state", "f8", (10, 216)),
            Column("next_action_mask", "f8", (10, 8, 14)),
            Column("prev_state", "f4", (10, 8, 64)),
            Column("action", "i8", (10, 8)),
            Column("reward", "f4", (10,)),
            Column("done", "?", (10,)),
            Column("pad", "u1", (24350,)),
        ),
        capacity=6_896,
        limiter=di_store.MinSize(64),
    ),
    writers=2,
    insert=(19, 400),
    sample=(60, 64),
)

S7 = _row(
    "S7-masac-3s5z",
    "MASAC / SMAC 3s5z",
    TablePlan(
        columns=(
            Column("agent_state", "f4", (8, 150)),
            Column("global_state", "f4", (8, 280)),
            Column("action_mask", "f4", (8, 14)),
            Column("next_agent_state", "f4", (8, 150)),
            Column("next_global_state", "f4", (8, 280)),
            Column("next_action_mask", "f4", (8, 14)),
            Column("logit", "f4", (8, 14)),
            Column("action", "i8", (8,)),
            Column("reward", "f4", (1,)),
            Column("done", "?", (1,)),
            Column("pad", "u1", (67,)),
        ),
        capacity=68_965,
        limiter=di_store.MinSize(1_600),
    ),
    writers=2,
    insert=(116, 1600),
    sample=(63, 320),
)

_GOBIGGER = (
    Column("scalar_obs", "f4", (3, 50)),
    Column("unit_obs", "f4", (3, 200, 31)),
    Column("unit_num", "i8", (3,)),
    Column("next_scalar_obs", "f4", (3, 50)),
    Column("next_unit_obs", "f4", (3, 200, 31)),
    Column("next_unit_num", "i8", (3,)),
    Column("action", "i8", (3,)),
    Column("reward", "f4", (3,)),
    Column("done", "?", (1,)),
    Column("value_gamma", "f4", (1,)),
)

S8 = _row(
    "S8-dqn-gobigger",
    "DQN / GoBigger",
    TablePlan(
        columns=(*_GOBIGGER, Column("raw_overlap", "u1", (249911,))),
        capacity=5_000,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(128),
    ),
    writers=2,
    insert=(30, 128),
    sample=(83, 128),
    update=True,
)

S8R = _row(
    "S8r-dqn-gobigger-ragged",
    "the same, raw_overlap of varying length",
    TablePlan(
        columns=(*_GOBIGGER, Column("raw_overlap", "u1", (None,), (249911.0, 0.25, 1_000, 1_500_000))),
        capacity=5_000,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(128),
        settings={"max_bytes": 2_200_000_000},
    ),
    writers=2,
    insert=(30, 128),
    sample=(83, 128),
    update=True,
)


def _read_at(load: Load, name: str, title: str, rate: float) -> Load:
    """The same row, read at another rate."""
    writer, reader = load.roles
    duties = tuple(replace(duty, rate=rate) for duty in reader.duties)
    return replace(load, name=name, title=title, roles=(writer, replace(reader, duties=duties)))


ROWS: tuple[Load, ...] = (S1, S2, S3, S4, S5, S6, S7, S8)

VARIANTS: tuple[Load, ...] = (
    S1F,
    _read_at(S5, "S5-sac-hopper-5333", "the same, read at 16 MB/s", 5_333),
    _read_at(S5, "S5-sac-hopper-18176", "the same, 256 samples an insert", 18_176),
    _read_at(S7, "S7-masac-3s5z-1160", "the same, ten samples an insert", 1_160),
    S8R,
)
