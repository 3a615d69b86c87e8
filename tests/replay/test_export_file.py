"""The file of an exported table: its bytes, what damaged and lying files do, and kills while it is written."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing as mp
import os
import pickle
import random
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import STEP, content
from pains import until

import di_store
from di_store import Spec
from di_store.replay.archive import _header


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=5) as opened:
        yield opened


# --- the file ---------------------------------------------------------------------------------------------------------


def small_table(store: di_store.Store) -> di_store.Table:
    """A table whose file has all kinds of members, and always the same bytes."""
    schema = {**STEP, "tokens": Spec((None,), "i4", max=5), "value": Spec((), "f4", late=True)}
    table = store.create_table(
        "golden", capacity=20, view=di_store.Transition(n_step=2, obs=("obs", "tokens")), schema=schema, seed=1
    )
    with table.writer(lanes=2) as writer:
        for t in range(6):
            row = {
                "obs": np.full((2, 3), t, "f4"),
                "reward": np.full(2, t, "f4"),
                "terminated": np.array([t == 3, False]),
            }
            row |= {"truncated": np.zeros(2, bool), "tokens": [np.arange(t % 5, dtype="i4")] * 2}
            ends = {"obs": np.full((1, 3), 9, "f4"), "tokens": [np.int32([7, 7])]} if t == 3 else None
            made = writer.append(row, final=ends, priority=t + 1.0)
            table.update(made.keys[:1], {"value": np.full(len(made.keys[:1]), t, "f4")})
    return table


GOLDEN = Path(__file__).parents[1] / "golden" / "table_1.npz"


def test_the_file_has_the_golden_bytes(store: di_store.Store, tmp_path: Path) -> None:
    """Another layout of the file needs another `archive.VERSION`, and a new golden file beside the old one."""
    table = small_table(store)
    table.export(tmp_path / "t.npz")
    assert (tmp_path / "t.npz").read_bytes() == GOLDEN.read_bytes()
    assert content(store.import_table(GOLDEN, "again")) == content(table)


def test_damaged_files_are_refused(store: di_store.Store, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Cut, flipped, overwritten and foreign: `CorruptData`, or the same table where the bytes mean nothing."""
    sound, path = GOLDEN.read_bytes(), tmp_path / "t.npz"
    expected = content(store.import_table(GOLDEN, "sound"))
    rng, refused = random.Random(1), 0
    for _ in range(count(250, 20_000)):
        damaged, how = bytearray(sound), rng.randrange(4)
        at = rng.randrange(len(sound))
        if how == 0:
            del damaged[at:]
        elif how == 1:
            damaged[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            damaged[at : at + 8] = rng.randbytes(8)
        else:
            damaged[at:at] = rng.randbytes(rng.randrange(1, 64))
        path.write_bytes(damaged)
        try:
            table = store.import_table(path, "damaged")
        except (di_store.CorruptData, di_store.LayoutMismatch):
            refused += 1
            continue
        assert content(table) == expected, (how, at)
        store.drop_table("damaged")
    assert refused > 200
    assert list(store.stats()["tables"]) == ["sound"]
    assert store.check() == []


def rewritten(change: Callable[[dict[str, Any]], None], path: Path = GOLDEN) -> bytes:
    """The file with changed members and right checksums."""
    with zipfile.ZipFile(path) as old:
        members: dict[str, Any] = {name: old.read(name) for name in old.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    return out.getvalue()


def packed(array: Any) -> bytes:
    """A member as an export writes it: np.save writes the same header with other spaces, which is refused."""
    return bytes(_header(array.dtype, array.shape) + array.tobytes())


def test_files_with_wrong_numbers_are_refused(
    store: di_store.Store, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    """Right checksums and wrong numbers: refused, or a table whose items can be read or are refused one by one."""
    with np.load(GOLDEN) as file:
        arrays = {name: file[name] for name in file.files if name != "table.json" and file[name].size}
        manifest = json.loads(file["table.json"])
    rng, path, taken = random.Random(2), tmp_path / "t.npz", 0
    for _ in range(count(150, 5_000)):
        name = rng.choice([*arrays, "table.json"])

        def change(members: dict[str, Any], name: str = name) -> None:
            if name == "table.json":
                plain = json.loads(json.dumps(manifest))
                key = rng.choice([*plain, *plain["settings"], *plain["counts"]])
                for part in (plain, plain["settings"], plain["counts"]):
                    if key in part:
                        part[key] = rng.choice([None, -1, 0, 1, 2**70, "x", [], {}, [5], 1e300])
                members[name] = json.dumps(plain)
                return
            wrong = arrays[name].copy()
            at = rng.randrange(wrong.size)
            wrong.reshape(-1).view(np.uint8)[at * wrong.itemsize : (at + 1) * wrong.itemsize] = list(
                rng.randbytes(wrong.itemsize)
            )
            if rng.random() < 0.5 and wrong.dtype.kind in "iu":
                wrong.reshape(-1)[at] = rng.choice([0, 1, 2, 3, 5, 100])
            members[name + ".npy"] = packed(wrong)

        path.write_bytes(rewritten(change))
        try:
            table = store.import_table(path, "lie")
        except (di_store.CorruptData, di_store.LayoutMismatch, di_store.CapacityError):
            continue
        taken += name != "table.json"
        try:
            table.peek(table.keys())
            table.sample(3, timeout=0)
        except (di_store.CorruptData, di_store.Timeout):
            pass
        store.drop_table(table.name)
    assert taken > 30  # wrong rows pass: the numbers were what was refused, not the members
    assert list(store.stats()["tables"]) == []
    assert store.check() == []


def test_foreign_files_are_refused(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with pytest.raises(FileNotFoundError):
        store.import_table(path)
    np.savez(path, a=np.arange(3))
    with pytest.raises(di_store.CorruptData, match="export the table again"):
        store.import_table(path)
    path.write_bytes(b"")
    with pytest.raises(di_store.CorruptData):
        store.import_table(path)

    def later(members: dict[str, Any]) -> None:
        members["table.json"] = members["table.json"].replace(b'"version": 1', b'"version": 2')

    path.write_bytes(rewritten(later))
    with pytest.raises(di_store.LayoutMismatch, match="version 2"):
        store.import_table(path)
    with pytest.raises(FileNotFoundError):
        store.create_table("t", capacity=5).export(tmp_path / "missing" / "t.npz")


def test_a_file_of_wrong_settings_is_refused_in_one_sentence(store: di_store.Store, tmp_path: Path) -> None:
    """What the file says is blamed on the file, not on the store or on the caller."""
    path = tmp_path / "t.npz"
    wrong: list[tuple[str, ...] | Any] = [
        ("counts", "epoch", -1),
        ("counts", "rng_counter", 2**70),
        ("settings", "unknown", 1),
        ("columns", 0, "shape", [2**40]),
        ("name", "x" * 101),
    ]
    for *place, last, value in wrong:

        def change(members: dict[str, Any], place: Any = place, last: Any = last, value: Any = value) -> None:
            plain = at = json.loads(members["table.json"])
            for key in place:
                at = at[key]
            at[last] = value
            members["table.json"] = json.dumps(plain)

        path.write_bytes(rewritten(change))
        with pytest.raises(di_store.CorruptData, match="export the table again") as caught:
            store.import_table(path)
        assert "\n" not in str(caught.value), caught.value
    assert list(store.stats()["tables"]) == []


def test_a_file_whose_priorities_have_no_power_is_refused(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    store.create_table("t", capacity=5, sampler=di_store.Prioritized(0.7)).export(path)

    def change(members: dict[str, Any]) -> None:
        plain = json.loads(members["table.json"])
        plain["settings"]["initial_priority"] = 1e300
        members["table.json"] = json.dumps(plain)

    path.write_bytes(rewritten(change, path))
    with pytest.raises(di_store.CorruptData, match="initial_priority"):
        store.import_table(path, "again")
    with pytest.raises(ValueError, match="initial_priority"):  # the caller's own
        store.import_table(path, "again", sampler=di_store.Prioritized(0.9))


def test_paths_that_are_not_files_are_refused(store: di_store.Store, tmp_path: Path) -> None:
    """Neither replaced by an export, nor read for ever by an import; and an export follows no link to another file."""
    table = store.create_table("t", capacity=5, schema={"x": Spec((), "i8")})
    pipe, folder, other = tmp_path / "pipe", tmp_path / "folder", tmp_path / "other"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(di_store.StoreError, match="another path"):
            table.export(path)
        with pytest.raises(di_store.CorruptData, match="not a regular file"):
            store.import_table(path)
    with pytest.raises(ValueError, match='path=""'):
        table.export("")
    other.write_bytes(b"precious")
    (tmp_path / "t.npz.part").symlink_to(other)
    with pytest.raises(OSError, match=r"t\.npz\.part"):
        table.export(tmp_path / "t.npz")
    assert other.read_bytes() == b"precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "other", "pipe", "t.npz.part"]
    assert table.export(os.fsencode(other)).items == 0
    assert len(store.import_table(os.fsencode(other), "again")) == 0  # type: ignore[arg-type]


def test_the_format_page_lists_all_members(tmp_path: Path) -> None:
    """docs/table_format.md names all members of the golden file but the columns."""
    page = (Path(__file__).parents[2] / "docs" / "table_format.md").read_text()
    with zipfile.ZipFile(GOLDEN) as file:
        for name in file.namelist():
            assert "/data/" in name or name.rpartition("/")[2].removesuffix("tokens.npy") in page, name
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest()[:16] in page


def part_size(path: Path) -> int:
    """Bytes of the half-written file; -1: there is none."""
    try:
        return os.path.getsize(f"{path}.part")
    except FileNotFoundError:
        return -1


def export_for_ever(name: str, path: str) -> None:
    table = di_store.attach(name).table("t")
    while True:
        table.export(path)


def test_a_kill_leaves_the_old_file_or_the_new_one(store: di_store.Store, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    table = store.create_table("t", capacity=2_000, schema={"x": Spec((), "i8"), "obs": Spec((500,), "u1")})
    table.extend({"x": np.arange(2_000), "obs": np.zeros((2_000, 500), "u1")})
    table.export(path)
    expected = content(table)
    rng = random.Random(3)
    for number in range(5):
        child = mp.get_context("fork").Process(target=export_for_ever, args=(store.name, str(path)))
        child.start()
        written = rng.randrange(path.stat().st_size)
        until(lambda written=written: part_size(path) >= written, "an export in progress")
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        copy = store.import_table(path, f"copy{number}")
        assert content(copy) == expected
        store.drop_table(copy.name)
    table.export(path)  # uses the file that the last one left
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.npz"]
    assert store.check() == []


def test_two_exports_to_one_path_do_not_mix(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("t", capacity=5, schema={"x": Spec((), "i8")})
    from di_store.replay.archive import ArchiveWriter

    path = str(tmp_path / "t.npz")
    with pytest.raises(RuntimeError, match="given up"), ArchiveWriter(path):
        with pytest.raises(di_store.StoreError, match="another export"):
            table.export(path)
        raise RuntimeError("given up")
    assert list(tmp_path.iterdir()) == []
    table.export(path)
    with di_store.attach(store.name) as reader:
        assert pickle.loads(pickle.dumps(reader.table("t"))).export(path).items == 0
