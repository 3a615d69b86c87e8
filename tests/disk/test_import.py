"""`Store.import_table` of more rows than memory holds: they go to disk while they are read, and none is evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Spec

ROW_BYTES = 16 << 10
LANES = 4


def write(table: di_store.Table, steps: int) -> None:
    """Interleaved episodes of random rows, which do not shrink on disk, and rows that are inserted whole."""
    rng = np.random.default_rng(1)
    with table.writer(lanes=LANES) as writer:
        for t in range(steps):
            obs = rng.integers(0, 256, (LANES, ROW_BYTES), np.uint8)
            ends = np.arange(LANES) == t % 50
            row: dict[str, Any] = {"obs": obs, "reward": rng.random(LANES, np.float32), "terminated": ends}
            writer.append(row, final={"obs": rng.integers(0, 256, obs.shape, np.uint8)} if ends.any() else None)
            if t % 3 == 0:
                one = {"obs": obs[0], "next_obs": obs[1], "reward": 1, "terminated": False, "discount": 0.5, "steps": 1}
                table.insert(one, priority=float(t + 1))


@pytest.mark.memory_only
def test_imported_rows_beyond_memory_go_to_disk(tmp_path: Path) -> None:
    """Their items come in another order than the rows lie in the file, and from two folders of rows."""
    schema = {"obs": Spec((ROW_BYTES,), "u1"), "reward": Spec((), "f4"), "terminated": Spec((), "?")}
    view = di_store.Transition(n_step=2, gamma=0.5)
    with (
        di_store.open(memory="192MiB") as source,
        di_store.open(memory="24MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as small,
    ):
        options: dict[str, Any] = {"capacity": 8_000, "max_bytes": "160MiB", "lanes": LANES}
        table = source.create_table("t", view=view, schema=schema, sampler=di_store.Prioritized(0.6), **options)
        write(table, 800)
        written = table.export(tmp_path / "t.npz")
        assert written.bytes > 2 * small.stats()["memory"]
        again = small.import_table(tmp_path / "t.npz", timeout=60)
        was, now = (each.peek(each.keys()) for each in (table, again))
        assert all(np.array_equal(was.data[name], now.data[name]) for name in was.data)
        assert all(np.array_equal(getattr(was, name), getattr(now, name)) for name in ("priorities", "starts"))
        assert again.stats()["evicted_for_room"] == 0
        again.sample(32)
        assert small.check() == []


@pytest.mark.memory_only
@pytest.mark.parametrize("disk", [False, True])
def test_later_imported_items_do_not_evict_earlier_ones(tmp_path: Path, disk: bool) -> None:
    """Values whose size could not be known when the table was made: there is no room for all, and no table stays."""
    rng = np.random.default_rng(0)
    with di_store.open(memory="192MiB") as source:
        table = source.create_table("t", capacity=24_000, view=di_store.Opaque(), lanes=1)
        for length in [1_000] * 18 + [20_000] * 6:
            table.extend(list(rng.integers(0, 256, (1_000, length), np.uint8)))
        table.export(tmp_path / "t.npz")
    tier: dict[str, Any] = {"disk": tmp_path / "disk", "disk_capacity": "64MiB"} if disk else {}
    with di_store.open(memory="32MiB" if disk else "64MiB", **tier) as small:
        with pytest.raises(di_store.StoreFull, match="import into table 'u'"):
            small.import_table(tmp_path / "t.npz", "u", timeout=0)
        with pytest.raises(di_store.TableNotFound):
            small.table("u")
        assert small.check() == []
