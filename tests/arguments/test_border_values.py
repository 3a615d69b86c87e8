"""Values at the borders of what a store holds, through every door: the same value comes back, or one typed error."""

from __future__ import annotations

import enum
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cluster.served import TOKEN, agent_here
from objects.test_codec import same

import di_store
from arguments.test_odd_values import fault


class Colour(enum.Enum):
    """Some value of a class."""

    RED = 1


KINDS: dict[str, Any] = {
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
    "masked structures": np.ma.array([(1, 2.0)], mask=[(False, True)], dtype=[("a", "i4"), ("b", "f8")]),
    "one masked": np.ma.masked,
    "none masked": np.ma.array([1.0, 2.0]),
    "structured": np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    "padded": np.array([(1, 2.0), (3, 4.0)], np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "nested": np.zeros(2, [("a", [("b", "i2", (2,))])]),
    "titled": np.zeros(2, [(("title", "a"), "u1")]),
    "record": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "bytes of no kind": np.array([b"ab\0"], "V3"),
    "extended": np.array([1, np.finfo("longdouble").max]),
    "one extended": np.array([1], "longdouble") / 3,
    "complex extended": np.arange(2, dtype="clongdouble") / 3,
    "an extended number": np.longdouble(1) / 3,
    "half": np.array([1.5, np.nan], "f2"),
    "another half": np.array([1.5, -0.0], ml_dtypes.bfloat16),
    "big endian": np.array([1, 258], ">i4"),
    "a date": np.array(["2026-01-01", "NaT"], "M8[D]"),
    "empty": np.zeros(0),
    "empty rows": np.zeros((2, 0), "i4"),
    "empty text": np.array(["", ""]),
    "huge": 10**400,
    "beyond 64 bits": 2**64,
    "below 64 bits": -(2**63) - 1,
    "64 bits": np.array([2**64 - 1], "u8"),
    "infinite": float("inf"),
    "surrogate": "a\udc80",
    "surrogates": np.array(["a\udc80", "\ud800"]),
    "text of any length": np.array(["a", "bb"], np.dtypes.StringDType()),
    "objects": np.array([1, None], object),
    "an enum": Colour.RED,
    "raw": b"a\0b",
    "raw that changes": bytearray(b"a\0b"),
    "no raw": bytearray(),
    "many": memoryview(b"ab"),
    "many numbers": memoryview(np.arange(6.0).reshape(2, 3)),
    "many that change": memoryview(bytearray(b"ab")),
    "nothing": None,
}

Door = Callable[[Any], Any]


class Scene:
    """A store, and the same through an agent."""

    def __init__(self, near: Any, far: Any, folder: Path) -> None:
        self.near, self.far, self.folder = near, far, folder

    def table(self, **options: Any) -> Any:
        for name in self.near.stats()["tables"]:
            self.near.drop_table(name)
        return self.near.create_table("t", capacity=4, **options)

    def opaque(self) -> Any:
        return self.table(view=di_store.Opaque(), max_bytes=1 << 20)

    def prioritized(self) -> Any:
        made = self.table(sampler=di_store.Prioritized(1.0, None))
        made.insert({"x": 1.0})
        return made


def column(table: Any, write: Callable[[Any], Any]) -> Any:
    """What a column that the first row declares gives back; after an error nothing was written."""
    try:
        write(table)
    except Exception:
        assert len(table) == 0
        raise
    return table.peek(table.keys()).data["x"][0]


def appended(table: Any, value: Any) -> None:
    with table.writer() as writer:
        writer.append({"x": value, "n": 1})


def priority(table: Any, write: Callable[[Any], Any]) -> Any:
    """The priority of the newest item; after an error that of the only one is as before."""
    try:
        write(table)
    except Exception:
        assert table.peek(table.keys()).priorities.tolist() == [1]
        raise
    return table.peek(table.keys()).priorities[-1]


def exported(scene: Scene, table: Any) -> Any:
    path = scene.folder / "t.zip"
    table.export(path)
    return scene.near.import_table(path, "copy", allow_pickle=True)


def restored(scene: Scene, read: Callable[[Any], Any]) -> Any:
    scene.near.checkpoint(scene.folder / "all")
    with di_store.restore(scene.folder / "all", memory="64MiB") as store:
        return read(store)


def doors_of_objects(scene: Scene) -> dict[str, Door]:
    """Every Python value, or what pickles."""
    near, far = scene.near, scene.far

    def put_before_checkpoint(value: Any) -> Any:
        ref = near.put(value)
        return restored(scene, lambda store: store.get(ref))

    def inserted(value: Any, there: Any) -> Any:
        scene.opaque()
        there.table("t").insert(value)
        return there.table("t")

    def saved(value: Any) -> Any:
        di_store.save(scene.folder / "tree", value)
        return di_store.load(scene.folder / "tree")

    return {
        "put": lambda value: near.get(near.put(value)),
        "put_many": lambda value: near.get_many(near.put_many([value]), copy=True)[0],
        "publish": lambda value: (near.publish("w", value), near.latest("w").value)[1],
        "save": saved,
        "checkpoint": put_before_checkpoint,
        "insert": lambda value: inserted(value, near).sample(1).data[0],
        "export": lambda value: exported(scene, inserted(value, near)).sample(1).data[0],
        "remote put": lambda value: far.get(far.put(value)),
        "remote publish": lambda value: (far.publish("w", value), far.latest("w").value)[1],
        "remote insert": lambda value: inserted(value, far).sample(1).data[0],
    }


def doors_of_columns(scene: Scene) -> dict[str, Door]:
    """What has a fixed size."""

    def row(value: Any, there: Any) -> Any:
        scene.table()
        return column(there.table("t"), lambda t: t.insert({"x": value, "n": 1}))

    def rows(value: Any, there: Any) -> Any:
        scene.table()
        both = np.repeat(value[None], 2, axis=0) if type(value) in (np.ndarray, np.ma.MaskedArray) else [value, value]
        return column(there.table("t"), lambda t: t.extend({"x": both, "n": [1, 2]}))

    def step(value: Any, there: Any) -> Any:
        scene.table()
        return column(there.table("t"), lambda t: appended(t, value))

    def out(value: Any) -> Any:
        row(value, scene.near)
        made = exported(scene, scene.near.table("t"))
        return made.sample(1).data["x"][0]

    def kept(value: Any) -> Any:
        row(value, scene.near)
        return restored(scene, lambda store: store.table("t").sample(1).data["x"][0])

    near, far = scene.near, scene.far
    return {
        "column": lambda value: row(value, near),
        "extend": lambda value: rows(value, near),
        "append": lambda value: step(value, near),
        "exported column": out,
        "checkpointed column": kept,
        "remote column": lambda value: row(value, far),
        "remote extend": lambda value: rows(value, far),
        "remote append": lambda value: step(value, far),
    }


def doors_of_priorities(scene: Scene) -> dict[str, Door]:
    """Numbers."""

    def given(value: Any, there: Any) -> Any:
        scene.prioritized()
        return priority(there.table("t"), lambda t: t.insert({"x": 1.0}, priority=value))

    def changed(value: Any, there: Any) -> Any:
        scene.prioritized()
        return priority(there.table("t"), lambda t: t.update_priorities(t.keys(), value))

    near, far = scene.near, scene.far
    return {
        "priority": lambda value: given(value, near),
        "update_priorities": lambda value: changed(value, near),
        "remote priority": lambda value: given(value, far),
        "remote update_priorities": lambda value: changed(value, far),
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        di_store.open(memory="128MiB") as near,
        agent_here(near, allow_pickle=True) as agent,
        di_store.connect(f"di-store://{agent.address}", token=TOKEN, allow_pickle=True) as far,
    ):
        yield Scene(near, far, tmp_path_factory.mktemp("borders"))


def is_same(value: Any, found: Any) -> bool:
    """Also of arrays of which some bytes mean nothing: what lies under a mask, and between fields."""
    if isinstance(value, np.ma.MaskedArray) or getattr(value, "dtype", np.dtype("?")).names:
        return (
            type(value) is type(found) and value.dtype == found.dtype and repr(value.tolist()) == repr(found.tolist())
        )
    return same(found, value)


def is_in_column(value: Any, found: Any) -> bool:
    """As numpy has the value, in the byte order of the machine and within its kind of number."""
    wanted: Any = np.asarray(value)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        return False
    kind = wanted.dtype.kind == found.dtype.kind and (wanted.dtype.newbyteorder("=") == found.dtype or not wanted.ndim)
    return kind and wanted.shape == found.shape and np.asarray(found).tolist().__repr__() == wanted.tolist().__repr__()


def is_priority(value: Any, found: Any) -> bool:
    """As a float64; None: what the table gives."""
    return bool(found == 1) if value is None else bool(float(np.asarray(value).reshape(())) == found)


GROUPS: dict[str, tuple[Callable[[Scene], dict[str, Door]], Callable[[Any, Any], bool]]] = {
    "objects": (doors_of_objects, is_same),
    "columns": (doors_of_columns, is_in_column),
    "priorities": (doors_of_priorities, is_priority),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # by numpy, of what no float64 holds
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", GROUPS)
def test_values_come_back_or_raise_a_documented_error(scene: Scene, group: str, kind: str) -> None:
    make, check = GROUPS[group]
    value, faults, through = KINDS[kind], [], []
    for name, door in make(scene).items():
        try:
            found = door(value)
        except Exception as error:
            if wrong := fault(error):
                faults.append(f"{name}: {error!r:.200}: {wrong}")
        else:
            through.append(name)
            if not check(value, found):
                faults.append(f"{name}: {found!r:.100} came back")
    assert not faults, "\n".join(faults)
    far = "remote "
    assert [
        name for name in make(scene) if name.startswith(far) and (name in through) != (name[len(far) :] in through)
    ] == []
    if group == "objects":
        assert (len(through) == len(make(scene))) == (not isinstance(value, memoryview)), through


def test_rows_are_accepted_while_numpy_ma_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in `sys.modules` before any of it is there."""
    monkeypatch.setitem(sys.modules, "numpy.ma", types.ModuleType("numpy.ma"))
    with di_store.open(memory="16MiB") as store:
        table = store.create_table("t", capacity=10)
        table.extend({"x": np.arange(6)[::2]})
        assert table.peek(table.keys()).data["x"].tolist() == [0, 2, 4]


MASKED = np.ma.array([1.0, 2.0], mask=[False, True])


@pytest.mark.parametrize("way", ["list", "ragged", "late", "next", "final", "lanes", "keys", "positions"])
@pytest.mark.parametrize("where", ["near", "far"])
def test_masked_values_are_refused(scene: Scene, where: str, way: str) -> None:
    """What lies under a mask means nothing: it is neither written nor taken for a key."""
    there = getattr(scene, where)
    schema = {
        "obs": di_store.Spec((2,), "f8"),
        "words": di_store.Spec((None,), "f8", max=4),
        "reply": di_store.Spec((2,), "f8", late=True),
    }
    scene.table(schema=schema, lanes=2)
    table = there.table("t")
    row: dict[str, Any] = {"obs": np.zeros(2), "words": np.zeros(2)}
    two: dict[str, Any] = {"obs": np.zeros((2, 2)), "words": [np.zeros(2)] * 2}
    with table.writer(lanes=2) as writer:
        writer.append(two)
        numbers = np.ma.array([0, 1], mask=[True, False])
        calls: dict[str, Callable[[], Any]] = {
            "list": lambda: table.extend({**two, "obs": [MASKED, np.zeros(2)]}),
            "ragged": lambda: table.insert({**row, "words": MASKED}),
            "late": lambda: table.update(np.arange(1, dtype=np.uint64), {"reply": MASKED[None]}),
            "next": lambda: writer.append(two, next={**two, "obs": np.ma.stack([MASKED, MASKED])}),
            "final": lambda: writer.append(two, final={**two, "obs": np.ma.stack([MASKED, MASKED])}),
            "lanes": lambda: writer.append({**two, "obs": [np.zeros(2), MASKED]}),
            "keys": lambda: table.delete(np.ma.array(numbers, dtype=np.uint64)),
            "positions": lambda: table.at(numbers),
        }
        before = scene.near.stats()["tables"]["t"]["inserts"], len(table.keys())
        with pytest.raises((di_store.SchemaMismatch, TypeError), match=r"masked elements|MaskedArray cannot be sent"):
            calls[way]()
        assert (scene.near.stats()["tables"]["t"]["inserts"], len(table.keys())) == before


PROGRAM = """
import enum, sys
import di_store

class Colour(enum.Enum):
    RED = 1

class Plain:
    pass

store = di_store.attach(sys.argv[1])
for name, value in (("enum", Colour.RED), ("plain", Plain()), ("inside", {"a": [Plain()]})):
    store.publish(name, value)
    store.table("t").insert(value)
"""


def test_classes_of_another_main_are_named(tmp_path: Path) -> None:
    """A program's own classes lie in a module that other programs do not have."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=4, view=di_store.Opaque(), max_bytes=1 << 16)
        subprocess.run([sys.executable, "-c", PROGRAM, store.name], check=True)
        for name in ("enum", "plain", "inside"):
            with pytest.raises(TypeError, match=r"which this process cannot load .* all processes share") as caught:
                store.latest(name)
            assert fault(caught.value) in ("", "two errors, chained")
        with pytest.raises(di_store.StoreError, match=r"the values of 3 of 3 items cannot be loaded, keys \[0, 1, 2\]"):
            table.peek(table.keys())
