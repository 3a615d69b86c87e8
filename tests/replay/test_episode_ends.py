"""Where episodes end: streams whose rows do not say it in a way that their tables' views see."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store

NEED = [
    di_store.Transition(n_step=2),
    di_store.Sequence(2),
    di_store.Sequence(2, cross_episodes=True),
    di_store.Episode(4),
]
FINISHED: dict[str, Any] = {"obs": np.float32(0), "reward": 0.0, "next_obs": np.float32(1), "discount": np.float32(0.5)}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def row(**more: Any) -> dict[str, Any]:
    return {"obs": np.float32(0), "reward": 0.0, **more}


@pytest.mark.parametrize("name", ["done", "dones", "terminal", "is_last"])
@pytest.mark.parametrize("view", NEED, ids=str)
def test_an_episode_end_flag_of_another_name_is_refused(store: Any, view: Any, name: str) -> None:
    table = store.create_table("t", capacity=10, view=view)
    with table.writer() as writer:
        one = row(**{name: False})
        for call, step in ((writer.append, one), (writer.extend, {key: [value] for key, value in one.items()})):
            with pytest.raises(di_store.SchemaMismatch, match=f"'{name}'.*'terminated'.*'truncated'"):
                call(step)
        for n in range(4):
            writer.append(row(terminated=n == 1))
    assert len(table) > 0


@pytest.mark.parametrize("view", NEED, ids=str)
def test_a_declared_end_flag_of_another_name_is_refused_by_the_writer(store: Any, view: Any) -> None:
    table = store.create_table("t", capacity=10, view=view, schema=row(done=False))
    with pytest.raises(di_store.SchemaMismatch, match=r"'done'.*'terminated'"):
        table.writer()
    assert store.create_table("u", capacity=10, view=view, schema=row(done=False, truncated=False)).writer() is not None


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_one_episode_end_flag_is_enough(store: Any, flag: str) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with table.writer() as writer:
            writer.append(row(done=False, **{flag: False}))


def test_step_tables_need_no_episode_end_flags(store: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with store.create_table("rows", capacity=10).writer() as writer:
            writer.append(row(done=True))
        with store.create_table("values", capacity=10, view=di_store.Opaque()).writer() as writer:
            writer.append({"done": True})


def test_whole_items_need_no_episode_end_flags(store: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pairs = store.create_table("pairs", capacity=10, view=di_store.Transition())
        pairs.insert(FINISHED | {"done": True})
        pairs.extend({name: np.asarray([value, value]) for name, value in (FINISHED | {"done": True}).items()})
        for name, view in (("windows", di_store.Sequence(2)), ("episodes", di_store.Episode(2))):
            whole = store.create_table(name, capacity=10, view=view, schema=row(done=False))
            whole.insert({name: np.asarray([value, value]) for name, value in row(done=False).items()})
    with pytest.raises(di_store.SchemaMismatch, match="'done'"):
        pairs.writer()


def test_an_end_flag_of_another_table_of_the_stream_counts(store: Any) -> None:
    pairs = store.create_table("pairs", capacity=10, view=di_store.Transition(), schema=row(done=False))
    rows = store.create_table("rows", capacity=10, schema=row(done=False, terminated=False))
    with store.writer([pairs, rows]) as writer:
        writer.append(row(done=False, terminated=True))
        assert writer.append(row(done=False, terminated=False))["pairs"].lanes.tolist() == [0], "the first one ended"
    late = store.create_table("late", capacity=10, view=di_store.Transition())
    with store.writer([late, rows]) as writer:
        writer.append(row(done=False, terminated=False))
    other = store.create_table("other", capacity=10, view=di_store.Transition())
    plain = store.create_table("plain", capacity=10, schema=row(done=False))
    with store.writer([other, plain]) as writer, pytest.raises(di_store.SchemaMismatch, match=r"'done'.*'other'"):
        writer.append(row(done=False))


def write(table: Any) -> None:
    """Several writers' rows without flags."""
    for _ in range(3):
        with table.writer() as writer:
            for _ in range(3):
                writer.append(row())


@pytest.mark.parametrize("view", NEED, ids=str)
def test_a_stream_without_end_flags_warns_once(store: Any, view: Any) -> None:
    tables = [
        store.create_table("inferred", capacity=10, view=view),
        store.create_table("declared", capacity=10, view=view, schema=row()),
    ]
    for table in tables:
        with pytest.warns(RuntimeWarning, match=f"{table.name!r}.*'terminated'.*end_episode") as caught:
            write(table)
        assert [warning.filename for warning in caught] == [__file__]


def test_the_warning_names_a_nested_end_flag(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Transition())
    with table.writer() as writer, pytest.warns(RuntimeWarning, match="'info/terminated' is nested in another dict"):
        writer.append(row(info={"terminated": False}))
