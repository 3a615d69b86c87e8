"""A bad argument is refused before anything is written, also by the call that would declare a table's columns."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store

BAD_TIMEOUTS = [-1, -0.5, float("nan"), -(10**400), "1", b"1", True, np.True_, [1.0, 2.0], object()]


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    """A small store."""
    with di_store.open(memory="64MiB") as made:
        yield made


ROW = {"obs": np.zeros(3, np.float32), "reward": 1.0, "terminated": False}


def rows(n: int) -> dict[str, Any]:
    return {name: np.stack([np.asarray(value)] * n) for name, value in ROW.items()}


def refuse(call: Callable[..., Any], **arguments: Any) -> None:
    """Every bad timeout gets a typed error that names the option."""
    for bad in BAD_TIMEOUTS:
        with pytest.raises((ValueError, TypeError), match="timeout="):
            call(timeout=bad, **arguments)


def test_a_bad_timeout_is_refused_before_anything_is_written(store: di_store.Store) -> None:
    plain = store.create_table("plain", capacity=100)
    steps = store.create_table("steps", capacity=100, view=di_store.Transition(n_step=1, gamma=0.9))
    refuse(lambda timeout: plain.insert(ROW, timeout=timeout))
    refuse(lambda timeout: plain.extend(rows(2), timeout=timeout))
    writer = steps.writer()
    for declared in (False, True):  # before and after the first step has declared the columns
        refuse(lambda timeout: writer.append(ROW, timeout=timeout))
        refuse(lambda timeout: writer.extend(rows(3), timeout=timeout))
        refuse(lambda timeout: writer.end_episode(timeout=timeout))
        refuse(lambda timeout: writer.close(timeout=timeout))
        assert len(steps) == 0
        assert (steps.schema is not None) == declared
        writer.append(ROW)
        plain.insert(ROW)
        steps.reset()
    assert writer.append(ROW).starts.tolist() == [1]
    key = plain.keys()
    before = len(plain)
    refuse(lambda timeout: plain.delete(key, timeout=timeout))
    refuse(lambda timeout: plain.reset(timeout=timeout))
    refuse(lambda timeout: plain.resize(50, timeout=timeout))
    refuse(lambda timeout: plain.finish(timeout=timeout))
    refuse(lambda timeout: plain.configure(limiter=di_store.MinSize(2), timeout=timeout))
    refuse(lambda timeout: plain.update_priorities(key, np.ones(len(key)), timeout=timeout))
    refuse(lambda timeout: plain.sample(1, timeout=timeout))
    refuse(lambda timeout: plain.loader(1, timeout=timeout))
    refuse(lambda timeout: store.create_table("other", capacity=1, timeout=timeout))
    refuse(lambda timeout: store.drop_table("plain", timeout=timeout))
    refuse(lambda timeout: store.put(1, timeout=timeout))
    refuse(lambda timeout: store.put_many([1], timeout=timeout))
    refuse(lambda timeout: store.publish("policy", 1, timeout=timeout))
    refuse(lambda timeout: store.get(bytes(20).hex(), timeout=timeout))
    refuse(lambda timeout: store.wait([bytes(20).hex()], timeout=timeout))
    refuse(lambda timeout: di_store.attach(store.name, timeout=timeout))
    stats = plain.stats()
    assert len(plain) == before
    assert stats["samples"] == 0
    assert stats["capacity"] == 100
    assert not stats["finished"]
    assert store.keys() == []
    assert store.check() == []


@pytest.mark.parametrize("bad", [{"priority": -1.0}, {"priority": float("nan")}, {"priority": [float("inf")]}])
def test_a_bad_priority_of_the_first_row_declares_nothing(store: di_store.Store, bad: Any) -> None:
    steps = store.create_table("steps", capacity=100, view=di_store.Transition(n_step=1, gamma=0.9))
    plain = store.create_table("plain", capacity=100)
    writer = steps.writer()
    calls = [lambda: writer.append(ROW, **bad), lambda: plain.insert(ROW, **bad), lambda: plain.extend(rows(1), **bad)]
    for call in calls:
        with pytest.raises((ValueError, TypeError), match="priorit"):
            call()
    assert steps.schema is None
    assert plain.schema is None


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"lane": 7}, ValueError),
        ({"lane": -1}, ValueError),
        ({"lane": True}, TypeError),
        ({"lane": [0, 0]}, ValueError),
        ({"lane": [True, True, True]}, ValueError),
        ({"next": {"obs2": np.zeros(3)}}, di_store.SchemaMismatch),
        ({"final": {"obs2": np.zeros(3)}}, di_store.SchemaMismatch),
        ({"priority": {"nobody": 1.0}}, ValueError),
    ],
)
def test_other_bad_arguments_of_the_first_step_declare_nothing(
    store: di_store.Store, bad: Any, error: type[Exception]
) -> None:
    steps = store.create_table("steps", capacity=100, view=di_store.Transition(n_step=1, gamma=0.9))
    writer = steps.writer(lanes=2)
    with pytest.raises(error):
        writer.append(rows(2), **bad)
    assert steps.schema is None
    writer.append(rows(2))


class Reentrant:
    """An array whose conversion runs code of the program."""

    def __init__(self, inner: Callable[[], Any]) -> None:
        self.inner = inner
        self.errors: list[BaseException] = []

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        try:
            self.inner()
        except di_store.StoreError as error:
            self.errors.append(error)
        return np.zeros(3, np.float32)


def test_a_writer_called_again_from_a_value_refuses_and_mixes_nothing(store: di_store.Store) -> None:
    steps = store.create_table("steps", capacity=100)
    writer = steps.writer()
    inner = {"obs": np.full(3, 9, np.float32), "reward": 9.0, "terminated": False}
    for number in range(3):  # the first one declares the columns
        value = Reentrant(lambda: writer.append(inner))
        made = writer.append({"obs": value, "reward": float(number), "terminated": False})
        assert len(made.keys) == 1
        assert value.errors
        assert "in the middle of another call" in str(value.errors[0])
        value = Reentrant(writer.close)
        writer.append({"obs": value, "reward": float(number), "terminated": False})
        assert value.errors
    data = steps.peek(steps.keys()).data
    assert data["reward"].tolist() == [0, 0, 1, 1, 2, 2]
    assert not data["obs"].any()


class Taking:
    """A value whose conversion takes an array out of a dict that is being written, as another thread may do."""

    def __init__(self, tree: dict[str, Any], name: str, shape: tuple[int, ...]) -> None:
        self.tree, self.name, self.shape = tree, name, shape
        self.array = weakref.ref(tree[name])
        self.lived = False

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.tree[self.name] = None
        self.lived = self.array() is not None
        return np.zeros(self.shape, np.float32)


@pytest.mark.parametrize("call", ["append", "insert", "extend", "update"])
def test_arrays_live_until_the_call_has_copied_them(store: di_store.Store, call: str) -> None:
    late, lead = call == "update", (1,) if call in ("extend", "update") else ()
    spec = di_store.Spec((4,), "f4", late=late)
    table = store.create_table("t", capacity=8, schema={"n": di_store.Spec((), "f4"), "a": spec, "b": spec})
    row: dict[str, Any] = {"n": 0.0, "a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}
    keys = table.insert(row)
    for _ in range(2):  # the first update is not the core's
        tree: dict[str, Any] = {"a": np.full((*lead, 4), 7, np.float32)}
        value = tree["b"] = Taking(tree, "a", (*lead, 4))
        if late:
            table.update(keys, tree)
        else:
            tree["n"] = np.zeros(lead, np.float32)
            made = table.writer().append(tree).keys if call == "append" else getattr(table, call)(tree)
            keys = np.asarray(made)
        assert value.lived
        assert value.array() is None, "the call is over"
        assert (table.peek(keys).data["a"] == 7).all()


def test_an_inner_dict_lives_while_its_columns_are_read(store: di_store.Store) -> None:
    class Tree(dict[str, Any]):
        pass

    spec = di_store.Spec((4,), "f4")
    table = store.create_table("t", capacity=8, schema={"in": {"a": spec, "b": spec}})
    zeros = np.zeros(4, np.float32)
    table.insert({"in": {"a": zeros, "b": zeros}})
    row: dict[str, Any] = {"in": Tree(b=np.full(4, 7, np.float32))}
    value = Taking(row, "in", (4,))
    row["in"]["a"] = value
    keys = table.insert(row)
    assert value.lived
    assert (table.peek(keys).data["in"]["b"] == 7).all()


@pytest.mark.parametrize("view", [di_store.Step(), di_store.Sequence(4), di_store.Opaque()])
def test_an_insert_within_an_insert_refuses_and_does_not_hang(store: di_store.Store, view: Any) -> None:
    table = store.create_table("t", capacity=100, view=view)
    value: Any = rows(4) if isinstance(view, di_store.Sequence) else ROW
    refused: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            table.insert(value)
        except di_store.StoreError as error:
            refused.append(error)

    class Signals:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return np.zeros(3, np.float32)

        def __reduce__(self) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return (int, ())

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(3):
            if isinstance(view, di_store.Opaque):
                table.insert(Signals())
            elif isinstance(view, di_store.Sequence):
                table.insert(dict(rows(4), obs=[Signals()] * 4))
            else:
                table.insert(dict(ROW, obs=Signals()))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused
    assert all("during another insert" in str(error) for error in refused)
    assert len(table) == 3
    assert store.check() == []


def test_a_refused_call_releases_the_arrays_it_has_read(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=8)
    with table.writer() as writer:
        for call in (table.insert, table.extend, writer.append):
            good: dict[str, Any] = rows(1) if call == table.extend else ROW
            call(good)
            obs = np.zeros(good["obs"].shape, np.float32)
            seen = weakref.ref(obs)
            with pytest.raises(di_store.SchemaMismatch):
                call(dict(good, obs=obs, reward="no number"))
            del obs
            assert seen() is None, call
