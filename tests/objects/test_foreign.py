"""Values that another machine sent: decoded without running anything that their bytes name."""

from __future__ import annotations

import abc
import enum
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from foreign_values import REFUSED, Bomb, arena_of, put_foreign, put_node, reserved

import di_store
from di_store import AccessDenied, _core
from di_store.base.errors import CorruptData
from di_store.layout.plan import VALUE
from di_store.objects.codec import decode, encode
from di_store.objects.codec.form import Tag, pack_header
from di_store.replay.batch import decode_blobs, encode_blob, mark_foreign
from objects.test_codec import same
from objects.test_raw_blocks import packed, tiers


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


RAN: list[str] = []


@dataclass
class Step:
    """Nothing here may run when an instance is decoded."""

    obs: Any
    reward: float = 0.0

    def __post_init__(self) -> None:
        RAN.append("post_init")


@dataclass(frozen=True)
class Frozen:
    """Its __init__, __setattr__ and __post_init__ would be seen."""

    a: Any

    def __post_init__(self) -> None:
        RAN.append("post_init")

    def __init_subclass__(cls) -> None:
        RAN.append("subclass")


@dataclass(slots=True)
class Slotted:
    """Slots are descriptors of Python's own."""

    a: Any
    b: Any = None


@dataclass
class Watched:
    """Sees every attribute that is set."""

    a: Any

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append("setattr")
        object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        RAN.append("getattribute")
        return object.__getattribute__(self, name)


class Setter:
    """A descriptor that runs when its field is set."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return 0

    def __set__(self, instance: Any, value: Any) -> None:
        RAN.append("descriptor")


@dataclass
class Described:
    """A field with a descriptor."""

    a: Any = Setter()


@dataclass
class Dying:
    """Runs when it is dropped."""

    a: Any

    def __del__(self) -> None:
        RAN.append("del")


@dataclass(frozen=True)
class Hashed:
    """Runs as a key."""

    a: Any

    def __hash__(self) -> int:
        RAN.append("hash")
        return 1


class Asked(tuple):
    """A named tuple by hand whose hash runs."""

    _fields = ("a",)

    def __hash__(self) -> int:
        RAN.append("hash")
        return 1

    __eq__ = tuple.__eq__


class Meta(type):
    """A metaclass whose look-ups run code."""

    def __getattribute__(cls, name: str) -> Any:
        RAN.append("meta")
        return super().__getattribute__(name)


@dataclass
class WithMeta(metaclass=Meta):
    """Its class is asked through Python code."""

    a: Any


class Colour(enum.Enum):
    """Members are pickles."""

    RED = 1


@dataclass
class Abstract(abc.ABC):
    """There is no instance of it."""

    a: Any

    @abc.abstractmethod
    def go(self) -> None: ...


Point = namedtuple("Point", "x y")


class Outer:
    """Holds a class."""

    @dataclass
    class Inner:
        """Found inside another class."""

        a: Any = field(default=None)


PLAIN: list[Any] = [
    None, 5, 2**70, "text", "x" * 3000, b"raw", b"r" * 3000, bytearray(b"b"), 1 + 2j, 1.5, [1, [2, (3,)]],
    {"a": np.arange(4), 1: {"b": torch.arange(3)}}, np.float32(2), np.zeros((0, 3)), np.array(["a", "bc"]),
    np.zeros(3, np.dtype([("a", "<i4"), ("b", "<f8")])), torch.ones(2, dtype=torch.bfloat16), OrderedDict(a=1),
    {(1, "a"): 2, Pair(1, 2): 3}, Pair(np.arange(2), "y"), Point(1, 2), np.arange(3),
]  # fmt: skip
CLASSES: list[Any] = [Step([1], 2.0), Frozen(3), Slotted(1, np.arange(2)), Outer.Inner(4), [Pair(Frozen(1), {})]]


@pytest.mark.parametrize("value", PLAIN + CLASSES)
def test_harmless_foreign_values_are_read(store: di_store.Store, value: Any) -> None:
    RAN.clear()
    found = store.get(put_foreign(store, value))
    assert repr(found) == repr(value)
    if not any(value is each for each in CLASSES):
        assert same(found, value)
    encoded = encode(value)
    assert encoded.payload_bytes or repr(decode(encoded.header, np.empty(0, np.uint8), foreign=True)) == repr(value)
    assert RAN == []


def test_setting_an_attribute_calls_nothing(store: di_store.Store) -> None:
    id = put_foreign(store, Watched(3))
    RAN.clear()
    found = store.get(id)
    assert RAN == []
    assert (type(found), object.__getattribute__(found, "a")) == (Watched, 3)


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda bomb: bomb,
    "list": lambda bomb: [1, [2, bomb]],
    "tuple": lambda bomb: (bomb, 1),
    "dict": lambda bomb: {"a": {"b": bomb}},
    "key": lambda bomb: {(1, bomb): 2},
    "ordered": lambda bomb: OrderedDict(a=bomb),
    "named": lambda bomb: Pair(1, bomb),
    "dataclass": lambda bomb: Step(Frozen(bomb)),
    "set": lambda bomb: {1, bomb},
    "buffers": lambda bomb: {"a": [np.arange(10_000), {1: bomb}], "set": ({bomb}, np.arange(9))},
    "large": lambda bomb: {frozenset(range(3_000)), bomb},
    "objects": lambda bomb: np.array([bomb, None], object),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_foreign_pickles_are_refused(store: di_store.Store, tmp_path: Path, where: str) -> None:
    """As an object, as weights, as a block from the network, as a row; nothing of it runs. Trusted, it would."""
    made = tmp_path / "made"
    value, what = HIDDEN[where](Bomb(made)), f"{REFUSED} pickle, which could run any code"
    table = store.create_table("t", capacity=5, view=di_store.Opaque())
    blob = encode_blob(value)
    mark_foreign(blob)
    reserved(store, value, named=False).publish("w", 1)
    ref = put_foreign(store, value)
    block, trusted = np.frombuffer(packed(value, b"DSF1"), np.uint8), np.frombuffer(packed(value), np.uint8)
    calls: list[Callable[[], Any]] = [
        lambda: store.get(ref),
        lambda: store.get(ref, copy=True),
        lambda: store.get_many([ref]),
        lambda: store.latest("w"),
        lambda: _core.read_block(block, None),
        lambda: _core.read_block(block, False, True),
        lambda: _core.read_block(trusted, None, True),
        lambda: decode_blobs(blob, [0, len(blob)]),
        lambda: decode_blobs(encode_blob(value), [0, len(blob)], True),
    ]
    for call in calls * 3:  # plans are made of headers that come again
        with pytest.raises(AccessDenied, match=what) as caught:
            call()
        assert "di-store serve --allow-pickle" in str(caught.value)
        assert "connect(allow_pickle=True)" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not made.exists()
    assert len(table) == 0
    decode_blobs(blob, [0, len(blob)], False)  # who trusts the other machine
    assert made.exists()
    made.unlink()
    _core.read_block(block, None, False)
    assert made.exists()


def marked(value: Any) -> Any:
    blob = encode_blob(value)
    mark_foreign(blob)
    return blob


def insert_blobs(table: di_store.Table, blobs: list[Any]) -> Any:
    """Insert rows as they are, and return their keys."""
    table._backend.open().reserve_opaque(max(map(len, blobs)), 10)
    return table._backend.inserter._send({VALUE: blobs}, [(1, 1, 0)], len(blobs), None, 10)


def test_a_foreign_row_of_a_table_is_refused(store: di_store.Store, tmp_path: Path) -> None:
    """A marked row, in a table among others."""
    table = store.create_table("t", capacity=5, view=di_store.Opaque())
    made, rows = tmp_path / "made", [Step(1), {"a": np.arange(3)}, Bomb(tmp_path / "made")]
    blobs = [marked(value) for value in rows]
    table.insert("own")
    keys = insert_blobs(table, blobs)
    assert repr(table.peek(keys[:2]).data) == repr(rows[:2])
    with pytest.raises(AccessDenied, match=REFUSED):
        table.peek(keys)
    with pytest.raises(AccessDenied, match=REFUSED):
        table.sample(64)
    assert not made.exists()


def test_exported_rows_keep_their_mark(store: di_store.Store, tmp_path: Path) -> None:
    made, table = tmp_path / "made", store.create_table("t", capacity=5, view=di_store.Opaque())
    insert_blobs(table, [marked(Bomb(made))])
    table.export(tmp_path / "t.npz")
    with pytest.raises(ValueError, match="allow_pickle=True"):
        store.import_table(tmp_path / "t.npz", "u")
    again = store.import_table(tmp_path / "t.npz", "v", allow_pickle=True)
    with pytest.raises(AccessDenied, match=REFUSED):
        again.sample(1)
    assert not made.exists()


def test_trusted_rows_beside_foreign_ones_are_read() -> None:
    """Each row as it is marked, from one buffer, whichever header came before."""
    value, pickled = {"a": np.arange(3), "b": torch.arange(4)}, {"a": {1, 2}}
    for _ in range(4):
        blobs = [encode_blob(value), encode_blob(value), encode_blob(pickled)]
        mark_foreign(blobs[1])
        mark_foreign(blobs[1])
        joined, ends = np.concatenate(blobs), np.cumsum([0, *map(len, blobs)]).tolist()
        assert same(decode_blobs(joined, ends), [value, value, pickled])
        mark_foreign(joined[ends[2] : ends[3]])
        with pytest.raises(AccessDenied):
            decode_blobs(joined, ends)
        with pytest.raises(AccessDenied):
            decode_blobs(joined[ends[2] :].copy(), [0, ends[3] - ends[2]])


def test_foreign_rows_of_odd_sizes_are_refused() -> None:
    """What no process of ours writes is refused; read all the same, it moves no other row."""
    blob = encode_blob({"b": torch.arange(4)})
    for odd in (np.zeros(0, np.uint8), blob[:-1].copy(), np.zeros(63, np.uint8), np.full(64, 255, np.uint8)):
        with pytest.raises(CorruptData, match="holds no Python value"):
            mark_foreign(odd.copy())
    for _ in range(4):
        one = np.append(blob, np.zeros(3, np.uint8))
        joined = np.concatenate([one, blob])
        found = decode_blobs(joined, [0, len(one), len(joined)])
        assert [each["b"].tolist() for each in found] == [[0, 1, 2, 3]] * 2


ODD = (
    ("Described", "descriptor of its field 'a'"),
    ("Dying", "__del__"),
    ("WithMeta", "metaclass"),
)


@pytest.mark.parametrize(("name", "why"), ODD)
def test_foreign_classes_that_run_code_are_refused(store: di_store.Store, name: str, why: str) -> None:
    id = put_node(store, [Tag.DATACLASS, f"{__name__}:{name}", ["a"], [3]])
    RAN.clear()
    with pytest.raises(AccessDenied, match=f"{REFUSED} {__name__}.{name}, and .*{why} could run code here"):
        store.get(id)
    assert RAN == []


@pytest.mark.parametrize(
    "node", [[Tag.DATACLASS, f"{__name__}:Hashed", ["a"], [3]], [Tag.NAMED, f"{__name__}:Asked", 3]]
)
def test_foreign_keys_that_run_code_are_refused(store: di_store.Store, node: Any) -> None:
    RAN.clear()
    for key in (node, [Tag.TUPLE, 1, [Tag.TUPLE, node]], [Tag.NAMED, f"{__name__}:Pair", 1, node]):
        for tag in (Tag.DICT, Tag.ORDERED):
            whole = [tag, [key, key], [1, 2], *([None] if tag == Tag.ORDERED else [])]
            with pytest.raises(AccessDenied, match="__hash__ or __eq__ could run"):
                store.get(put_node(store, whole))
    assert RAN == []
    assert type(store.get(put_node(store, [Tag.LIST, node]))[0]).__name__ in ("Hashed", "Asked")


@pytest.mark.parametrize("tag", [Tag.NAMED, Tag.DATACLASS])
@pytest.mark.parametrize("name", ["Bomb", "Colour", "Outer", "RAN", "put_foreign", "Abstract", "Setter", "Step"])
def test_foreign_names_that_are_not_classes_are_refused(store: di_store.Store, tag: Tag, name: str) -> None:
    if (tag, name) == (Tag.DATACLASS, "Step"):
        return
    node = [tag, f"{__name__}:{name}", *([1, 2] if tag == Tag.NAMED else [["a"], [1]])]
    with pytest.raises((CorruptData, AccessDenied)):
        store.get(put_node(store, node))


def test_a_missing_foreign_class_is_named(store: di_store.Store) -> None:
    with pytest.raises(TypeError, match="no such class here"):
        store.get(put_node(store, [Tag.NAMED, f"{__name__}:Nothing", 1]))
    with pytest.raises(TypeError, match="no such class here"):
        store.get(put_node(store, [Tag.DATACLASS, f"{__name__}:Outer.Nothing", [], []]))
    for path in ("", ":", "x", ":x"):
        with pytest.raises(CorruptData):
            store.get(put_node(store, [Tag.NAMED, path, 1]))


@pytest.mark.parametrize("path", ["x\ny:" + "z" * 10_000, "y" * 10_000 + ":z", f"{__name__}:" + "z\n" * 5_000])
def test_errors_about_foreign_values_are_one_short_line(store: di_store.Store, path: str) -> None:
    with pytest.raises((AccessDenied, TypeError)) as caught:
        store.get(put_node(store, [Tag.NAMED, path, 1]))
    assert len(str(caught.value)) < 700
    assert str(caught.value).isprintable() or "…" in str(caught.value)
    assert "\n" not in str(caught.value)


MODULE = """
import pathlib
from dataclasses import dataclass
pathlib.Path({made!r}).touch()

@dataclass
class Thing:
    a: int
"""


def test_a_foreign_class_of_an_unloaded_module_is_refused(
    store: di_store.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    (tmp_path / "not_loaded_yet.py").write_text(MODULE.format(made=str(made)))
    monkeypatch.syspath_prepend(tmp_path)
    node = [Tag.DATACLASS, "not_loaded_yet:Thing", ["a"], [3]]
    id = put_node(store, node)
    try:
        with pytest.raises(AccessDenied, match=f"{REFUSED} not_loaded_yet.Thing, whose module is not loaded") as caught:
            store.get(id)
        assert "import not_loaded_yet" in str(caught.value)
        assert not made.exists()
        assert "not_loaded_yet" not in sys.modules
        assert decode(pack_header(0, node), np.empty(0, np.uint8)).a == 3  # one of this machine imports
        assert made.exists()
        assert store.get(id).a == 3  # by now it is loaded
    finally:
        sys.modules.pop("not_loaded_yet", None)


def test_a_foreign_dtype_imports_no_torch_module(store: di_store.Store) -> None:
    """Torch imports some of its modules when they are asked for; a dtype's name asks for none."""
    for name in ("_dynamo", "onnx", "nn", "Tensor", "__name__"):
        for node in ([Tag.TENSOR, name, [0], 0],):
            loaded = set(sys.modules)
            with pytest.raises(CorruptData, match="tensor of type"):
                store.get(put_node(store, node))
            assert set(sys.modules) == loaded


def test_the_foreign_mark_is_kept_everywhere(tmp_path: Path) -> None:
    """With objects that leave memory, in files of durable ones, in checkpoints, in raw blocks."""
    made, plain = tmp_path / "made", {"a": np.arange(1 << 18)}
    bomb = ({Bomb(made)}, np.zeros(1 << 20, np.uint8))
    with tiers(tmp_path / "disk", memory="14MiB") as store:
        ref, good = put_foreign(store, bomb), put_foreign(store, plain)
        table = store.create_table("t", capacity=5, view=di_store.Opaque(), lanes=1)
        keys = insert_blobs(table, [marked({Bomb(made)}), marked({"a": np.arange(9)})])
        durable = reserved(store, bomb, b"d" * 20)
        durable.seal_durable()
        reserved(store, bomb, named=False).publish_durable("w", 1)
        del durable
        block = arena_of(store).raw(bytes.fromhex(ref))
        assert bytes(block[:4]) == b"DSF1"
        del block
        for number in range(40):
            store.put(np.full(1 << 20, number, np.uint8), timeout=60)
        assert store.stats()["disk"]["objects"] > 10

        def refused(store: di_store.Store, refs: list[str]) -> None:
            for each in refs:
                for _ in range(3):
                    with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                        store.get(each)
            with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                store.latest("w")
            if "t" in store.stats()["tables"]:
                assert same(store.table("t").peek(keys[1:]).data[0], {"a": np.arange(9)})
                with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                    store.table("t").peek(keys)
            assert not made.exists()

        refused(store, [ref, (b"d" * 20).hex()])
        assert store.get(good)["a"][-1] == (1 << 18) - 1
        store.checkpoint(tmp_path / "c")
    with di_store.restore(tmp_path / "c", memory="128MiB") as store:
        refused(store, [ref, (b"d" * 20).hex()])
        assert store.get(good)["a"][-1] == (1 << 18) - 1
        assert bytes(arena_of(store).raw(bytes.fromhex(ref))[:4]) == b"DSF1"
    with tiers(tmp_path / "disk", memory="14MiB") as store:
        refused(store, [(b"d" * 20).hex()])
