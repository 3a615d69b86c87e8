"""Pain 9: acknowledged means kept. All are killed, again and again; the folder alone has every object."""

from __future__ import annotations

import random
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm import WARM

import di_store

OPTIONS: dict[str, Any] = {"memory": "64MiB", "disk_capacity": "256MiB"}


def value_of(id: str) -> bytes:
    return random.Random(id).randbytes(3_000)


def hold(name: str, folder: str, pipe: Any) -> None:
    with di_store.open(name, disk=folder, **OPTIONS):
        pipe.send("open")
        signal.pause()


def put(name: str, writer: int, pipe: Any) -> None:
    """Tell of each object when its put has returned."""
    with di_store.attach(name) as store:
        for number in range(1_000_000):
            id = f"{writer:020x}{number:020x}"
            store.put(value_of(id), id=id, durability="disk")
            pipe.send((id, zlib.crc32(value_of(id))))


def told(pipe: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        while pipe.poll(1):
            id, crc = pipe.recv()
            found[id] = crc
    except EOFError:
        pass
    return found


@pytest.mark.timeout(600)
def test_acknowledged_rows_survive_kills(
    tmp_path: Path, count: Callable[[int, int], int], store_name: Callable[[], str]
) -> None:
    kept: dict[str, int] = {}
    rng = random.Random(9)
    for turn in range(count(3, 50)):
        name = store_name()
        near, far = WARM.Pipe()
        holder = WARM.Process(target=hold, args=(name, str(tmp_path / "disk"), far))
        holder.start()
        assert near.recv() == "open"
        writers, pipes = [], []
        for number in range(2):
            mine, its = WARM.Pipe()
            writers.append(WARM.Process(target=put, args=(name, 2 * turn + number, its)))
            writers[-1].start()
            its.close()
            pipes.append(mine)
        for pipe in pipes:
            assert pipe.poll(60)
        writers[0].join(rng.random() * 0.2)  # at any moment
        order = [*writers, holder] if turn % 2 else [holder, *writers]
        for process in order:
            process.kill()
        for process in order:
            process.join(60)
        for pipe in pipes:
            kept |= told(pipe)
        with di_store.open(disk=tmp_path / "disk", **OPTIONS) as store:
            for id, crc in kept.items():
                assert zlib.crc32(bytes(store.get(id, timeout=0))) == crc
            assert store.check() == []
            for id in rng.sample(sorted(kept), len(kept) // 3):  # room for others, which never take the place of these
                store.delete(id)
                del kept[id]
    assert len(kept) > 10
