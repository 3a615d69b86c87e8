"""Files of durable objects that were damaged: what is intact is served, the rest is left out, and nothing else is."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import di_store

OPTIONS: dict[str, Any] = {"memory": "32MiB", "disk_capacity": "64MiB"}


def value_of(id: str) -> bytes:
    rng = random.Random(id)
    return rng.randbytes(rng.choice([3, 100, 5_000, 60_000]))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects in two files, some of them deleted, and two names of weights."""
    folder = tmp_path_factory.mktemp("source")
    for first in (0, 60):
        with di_store.open(disk=folder, **OPTIONS) as store:
            ids = [f"{i:040x}" for i in range(first, first + 60)]
            store.put_many([value_of(id) for id in ids], ids=ids, durability="disk")
            store.delete(ids[::3])
            for version in range(3):
                store.publish(f"w{first}", version, durability="disk")
    return folder


ALIVE = {f"{i:040x}" for i in range(120) if i % 3}


def served(folder: Path) -> tuple[set[str], int, list[str]]:
    """Ids, each with its value; names of weights that are there; warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = di_store.open(disk=folder, **OPTIONS)
    with store:
        ids = {ref.id for ref in store.keys(n=1_000)}
        assert all(store.get(id) == value_of(id) for id in ids)
        names = [name for name in ("w0", "w60") if (got := store.latest(name)) is not None and got.value == 2]
        assert not store.check()
    return ids, len(names), [str(each.message) for each in said]


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_costs_only_its_object(seed: int, source: Path, tmp_path: Path) -> None:
    """Each costs the object that it is in. One in a mark costs nothing."""
    rng = random.Random(seed)
    for turn in range(12):
        folder = tmp_path / str(turn)
        shutil.copytree(source, folder)
        flips = rng.randint(1, 6)
        for _ in range(flips):
            path = rng.choice(sorted(folder.glob("objects-*")))
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        ids, names, said = served(folder)
        assert ids <= ALIVE
        lost = len(ALIVE - ids) + 2 - names
        assert lost <= flips
        assert lost <= 2 or any("damaged" in text for text in said)  # the last ones of both files: as kills leave them
        assert len(said) <= 1


def test_a_truncated_log_keeps_everything_before_the_cut(source: Path, tmp_path: Path) -> None:
    """Quietly: so a kill leaves them. All in front of the end is there."""
    for turn, share in enumerate((0.0, 0.01, 0.5, 0.9, 0.999)):
        folder = tmp_path / str(turn)
        shutil.copytree(source, folder)
        path = sorted(folder.glob("objects-*"))[0]
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * share))
        ids, _, said = served(folder)
        assert {id for id in ALIVE if int(id, 16) >= 60} <= ids <= ALIVE
        assert not said


def test_foreign_log_files_are_left_alone(source: Path, tmp_path: Path) -> None:
    """Of another folder: left where they are, with a warning. Other bytes under such a name: nothing in them counts."""
    other = tmp_path / "other"
    with di_store.open(disk=other, **OPTIONS) as store:
        store.put("foreign", durability="disk")
    folder = tmp_path / "disk"
    shutil.copytree(source, folder)
    foreign = shutil.copy(sorted(other.glob("objects-*"))[0], folder / "objects-000a0001")
    own = sorted(source.glob("objects-*"))[0]
    shutil.copy(own, folder / "objects-000a0002")  # under another number
    (folder / "objects-000a0003").write_bytes(random.Random(0).randbytes(100_000))
    (folder / "objects-000a0004").write_bytes(b"")
    (folder / "objects-notes").write_text("of the user")
    ids, names, said = served(folder)
    assert (ids, names) == (ALIVE, 2)
    assert len(said) == 1
    assert "another folder" in said[0]
    assert Path(foreign).exists()
    assert (folder / "objects-notes").exists()
    with di_store.open(disk=folder, **OPTIONS) as store:
        for i in range(20):
            store.put(i, durability="disk")


def test_logs_of_another_version_are_refused(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    shutil.copytree(source, folder)
    path = sorted(folder.glob("objects-*"))[0]
    data = bytearray(path.read_bytes())
    data[8] = 9
    data[60:64] = di_store._core.crc32c(bytes(data[:60])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(di_store.LayoutMismatch, match="objects-"):
        di_store.open(disk=folder, **OPTIONS)
