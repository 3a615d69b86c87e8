"""A value of an `Opaque` table that cannot be loaded costs its own item, and no other."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import di_store
from di_store.base.errors import AccessDenied, StoreError


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


class Refuses:
    """Pickles, and cannot be loaded again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise ZeroDivisionError("not here")


def absent() -> Any:
    """An instance of a class whose module is gone when the value is loaded."""
    module = types.ModuleType("no_module_of_ours")
    exec("class Gone:\n    pass", module.__dict__)
    sys.modules[module.__name__] = module
    found = module.Gone()  # type: ignore[attr-defined]
    found.x = 1
    return found


def fill(table: Any) -> int:
    """Nine values, of which the fourth cannot be loaded; returns its key."""
    found = 0
    for number in range(9):
        key = table.insert(Refuses() if number == 3 else {"n": number})
        found = int(key[0]) if number == 3 else found
    return found


USED_UP: dict[str, dict[str, Any]] = {
    "queue": {"limiter": di_store.Queue(9)},
    "stack": {"limiter": di_store.Stack(9)},
    "once": {"sampler": di_store.Once(shuffle=False)},
    "used up": {"max_times_sampled": 1, "sampler": di_store.Fifo()},
}
WAYS = ["sample", "sample with out", "loader", "loader without thread", "mixture", "loader of a mixture"]


def drawn(store: Any, table: Any, way: str) -> Iterator[Any]:
    """Batches of two until nothing is left."""
    source = store.mix({table.name: 1}) if "mixture" in way else table
    if "loader" in way:
        with source.loader(2, prefetch=0 if "without" in way else 2, timeout=10) as loader:
            while True:
                try:
                    yield next(loader)
                except StopIteration:
                    return
                except StoreError as error:
                    yield error
    batch = None
    while True:
        try:
            given = {"min_n": 1, "linger": 0} if "out" in way else {}
            batch = source.sample(2, timeout=10, **given)
            yield batch
        except di_store.EndOfData:
            return
        except StoreError as error:
            yield error


@pytest.mark.parametrize("kind", USED_UP)
@pytest.mark.parametrize("way", WAYS)
def test_an_unloadable_value_costs_one_item_of_a_queue(store: Any, kind: str, way: str) -> None:
    table = store.create_table("t", capacity=9, view=di_store.Opaque(), **USED_UP[kind])
    bad = fill(table)
    table.finish()
    seen, errors = [], []
    for found in drawn(store, table, way):
        if isinstance(found, StoreError):
            errors.append(found)
        else:
            seen += [value["n"] for value in found.data]
    assert sorted(seen) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [error.keys.tolist() for error in errors] == [[bad]]
    assert f"table 't': the values of 1 of 2 items cannot be loaded, keys [{bad}]: ZeroDivisionError: not here" in str(
        errors[0]
    )
    assert type(pickle.loads(pickle.dumps(errors[0]))) is type(errors[0])


@pytest.mark.parametrize("way", WAYS[:1] + WAYS[2:])
def test_the_error_names_the_unloadable_items(store: Any, way: str) -> None:
    table = store.create_table("t", capacity=9, view=di_store.Opaque())
    fill(table)
    for number, found in enumerate(drawn(store, table, way)):
        if isinstance(found, StoreError):
            assert len(table) == 9
            assert table.delete(found.keys) == 1
            break
        assert number < 10_000
    batches = drawn(store, table, way)
    for _ in range(20):  # a loader may have drawn it before
        next(batches)
    assert not any(isinstance(next(batches), StoreError) for _ in range(20))


def test_peek_names_unloadable_items(store: Any) -> None:
    table = store.create_table("t", capacity=9, view=di_store.Opaque())
    bad = fill(table)
    with pytest.raises(StoreError, match="the values of 1 of 9 items cannot be loaded") as told:
        table.peek(table.keys())
    assert told.value.keys.tolist() == [bad]
    keys = table.keys()
    assert len(table.peek(keys[keys != bad]).data) == 8


def test_a_missing_class_is_named(store: Any) -> None:
    table = store.create_table("t", capacity=9, view=di_store.Opaque(), limiter=di_store.Queue(9))
    table.insert(absent())
    table.insert("next")
    ref = store.put(absent())
    del sys.modules["no_module_of_ours"]
    with pytest.raises(StoreError, match="no_module_of_ours"):
        table.sample(2)
    assert table.sample(1, timeout=10).data == ["next"]
    with pytest.raises(TypeError, match=r"which this process cannot load.*no_module_of_ours"):
        store.get(ref)


def test_other_tables_of_a_mixture_get_their_items_back(store: Any) -> None:
    tables = [
        store.create_table(name, capacity=9, view=di_store.Opaque(), limiter=di_store.Queue(9)) for name in ("a", "b")
    ]
    bad = fill(tables[1])
    for number in range(8):
        tables[0].insert({"n": number})
    with pytest.raises(StoreError, match="table 'b'") as told:
        store.mix({"a": 1, "b": 1}, seed=4).sample(12, timeout=10)
    assert told.value.keys.tolist() == [bad]
    assert [len(table) for table in tables] == [8, 8]


def test_access_denied_keeps_its_type(store: Any) -> None:
    """A pickle of another machine in a row of this store."""
    from decimal import Decimal

    from di_store.replay.batch import Blob, encode_blob, mark_foreign

    blob = encode_blob(Decimal(1)).copy()
    mark_foreign(blob)
    table = store.create_table("t", capacity=9, view=di_store.Opaque(), limiter=di_store.Queue(9))
    table.extend([1, Blob(blob), 2])
    with pytest.raises(AccessDenied, match="allow-pickle"):
        table.sample(3)
    assert table.sample(2, timeout=10).data == [1, 2]
