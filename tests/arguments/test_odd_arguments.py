"""Odd arguments get a typed error whose text names the option, however odd their repr or their type is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import di_store

SURROGATE = "a\udc80b"


def deep() -> Any:
    """A list whose repr is deeper than Python can go."""
    value: Any = 1
    for _ in range(20_000):
        value = [value]
    return value


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        made = opened.create_table("t", capacity=10, schema={"x": di_store.Spec((), "f4")})
        made.insert({"x": 1.0})
        ragged = opened.create_table("r", capacity=10, schema={"x": di_store.Spec((None,), "f4")}, max_bytes=1 << 16)
        ragged.insert({"x": np.arange(3, dtype=np.float32)})
        yield opened


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "deep n": (lambda s: s.table("t").sample(deep()), "n="),
    "deep name": (lambda s: s.drop_table(deep()), "name="),
    "deep table": (lambda s: s.create_table("x", capacity=deep()), "capacity="),
    "deep ref": (lambda s: s.get(deep()), "Ref"),
    "deep refs": (lambda s: s.keys(start=deep()), "Ref"),
    "deep device": (lambda s: s.table("t").loader(1, device=deep()), "device="),
    "deep weights": (lambda s: s.mix(deep()), "mix"),
    "deep durability": (lambda s: s.put(1, durability=deep()), "durability="),
    "deep flag": (lambda s: s.check(repair=deep()), "repair="),
    "deep view": (lambda s: di_store.Sequence(3, tail=deep()), "tail="),
    "deep memory": (lambda s: s.resize(deep()), "memory"),
    "deep sampler": (lambda s: s.create_table("x", capacity=3, sampler=deep()), "sampler="),
    "deep schema": (lambda s: di_store.Spec(deep(), "f4"), "shape="),
    "deep dtype": (lambda s: di_store.Spec((), deep()), "dtype"),
    "huge ttl": (lambda s: s.put(1, ttl=-(2**1100)), "ttl="),
    "tensor ttl": (lambda s: s.put(1, ttl=torch.ones(2)), "ttl="),
    "huge memory": (lambda s: s.resize(2**1100), "memory="),
    "tensor gamma": (lambda s: di_store.Transition(gamma=torch.ones(2)), "gamma="),  # type: ignore[arg-type]
    "tensor shape": (lambda s: di_store.Spec((torch.ones(2),), "f4"), "shape="),  # type: ignore[arg-type]
    "tensor late": (lambda s: di_store.Spec((), "f4", late=torch.ones(2)), "late="),  # type: ignore[arg-type]
    "tensor keys": (lambda s: s.table("t").peek([torch.ones(2, requires_grad=True)]), "keys"),
    "tensor priorities": (
        lambda s: s.table("t").update_priorities(s.table("t").keys(), [torch.ones(1, requires_grad=True) * 2]),
        "priorities",
    ),
    "object priorities": (lambda s: s.table("t").update_priorities(s.table("t").keys(), object()), "priorities"),
    "negative device": (lambda s: s.table("t").loader(1, device=-1), "device="),
    "no device": (lambda s: s.table("t").loader(1, device="50%"), "device="),
    "surrogate table": (lambda s: s.table(SURROGATE), "name="),
    "surrogate new table": (lambda s: s.create_table(SURROGATE, capacity=3), "name="),
    "surrogate weights": (lambda s: s.publish(SURROGATE, 1), "name="),
    "surrogate latest": (lambda s: s.latest(SURROGATE), "name="),
    "huge lane": (lambda s: s.table("t").writer(lanes=2).append({"x": 1.0}, lane=2**65), "lane="),
    "tensor lane": (
        lambda s: s.table("t").writer(lanes=2).append({"x": 1.0}, lane=torch.ones(2, requires_grad=True)),
        "lane=",
    ),
    "tensor priority": (
        lambda s: s.table("t").insert({"x": 1.0}, priority=torch.ones(1, requires_grad=True)),
        "priorit",
    ),
    "huge fill": (lambda s: s.table("r").sample(1).data["x"].padded(fill="x"), "fill="),
    "tensor to": (lambda s: s.table("r").sample(1).data["x"].padded(to=torch.ones(2)), "to="),
    "tensor row": (lambda s: s.table("r").sample(1).data["x"][torch.ones(2)], "row"),
    "checkpoint progress": (lambda s: s.checkpoint("unused", progress=b"x"), "progress="),
    "restore progress": (lambda s: di_store.restore("unused", progress=b"x"), "progress="),  # type: ignore[arg-type]
    "float row": (lambda s: s.table("r").sample(1).data["x"][np.float32(0)], "row"),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_error_names_the_option(store: Any, call: str) -> None:
    make, words = CALLS[call]
    with pytest.raises((ValueError, TypeError)) as caught:
        make(store)
    text = str(caught.value)
    assert words in text
    assert len(text) < 1_000
    assert isinstance(caught.value.__cause__, type(None))


def test_long_values_are_cut_in_error_texts(store: Any) -> None:
    with pytest.raises(ValueError) as caught:
        store.create_table("x" * 100_000, capacity=3)
    assert len(str(caught.value)) < 500


PATHS: dict[str, Callable[[Any, Any], Any]] = {
    "open": lambda s, path: di_store.open(memory="16MiB", disk=path),
    "restore": lambda s, path: di_store.restore(path, memory="16MiB"),
    "save": lambda s, path: di_store.save(path, 1),
    "load": lambda s, path: di_store.load(path),
    "export": lambda s, path: s.table("t").export(path),
    "import_table": lambda s, path: s.import_table(path, "copy"),
}


@pytest.mark.parametrize("call", ["open", "restore", "save", "load"])
@pytest.mark.parametrize("path", ["a\udc80", b"a\xff"], ids=repr)
def test_a_path_that_is_not_utf8_is_named(
    store: Any, call: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can have such a name; the core takes none."""
    monkeypatch.chdir(tmp_path)
    os.mkdir(path)
    with pytest.raises(ValueError, match=r"^(disk|path)=.*UTF-8$"):
        PATHS[call](store, path)
    assert os.listdir(path) == []


@pytest.mark.parametrize("path", ["a\udc80", b"a\xff"], ids=repr)
def test_a_checkpoint_path_that_is_not_utf8_is_named(
    store: Any, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^path=.*UTF-8$"):
        store.checkpoint(path)
    assert os.listdir(tmp_path) == []


def test_missing_objects_are_named_once(store: Any) -> None:
    with pytest.raises(di_store.ObjectNotFound) as caught:
        store.get_many([di_store.Ref(b"x" * 20)], timeout=0)
    assert caught.value.__context__ is None


NO_PATHS = [3, None, ["a"], "", "a\0b", "\ud800"]


@pytest.mark.parametrize(
    ("call", "path"), [(call, path) for call in PATHS for path in NO_PATHS if (call, path) != ("open", None)]
)
def test_an_invalid_path_is_named(store: Any, call: str, path: Any) -> None:
    with pytest.raises(ValueError if isinstance(path, str) else TypeError) as caught:
        PATHS[call](store, path)
    assert str(caught.value).startswith("disk=" if call == "open" else "path=")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("path", NO_PATHS)
def test_an_invalid_checkpoint_path_is_named(store: Any, path: Any) -> None:
    with pytest.raises(ValueError if isinstance(path, str) else TypeError, match=r"^path="):
        store.checkpoint(path)


def test_a_path_of_any_text_class_is_accepted(store: Any, tmp_path: Any) -> None:
    """Also numpy's, which a pattern of bytes takes for a buffer."""
    path = np.str_(tmp_path / "tree")
    di_store.save(path, 1)
    assert di_store.load(os.fsencode(path)) == 1
