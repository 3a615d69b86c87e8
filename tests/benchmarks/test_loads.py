"""The named loads of `di-store bench`: what they move, that each can be built, and that their checks notice damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_run import fails, run
from rich.console import Console

import di_store
from di_store.cli import loads
from di_store.workloads.catalogue import GROUPS, LOADS, find
from di_store.workloads.content import STAMP_BYTES, LoadRows, LoadSteps, broken_frames, row_sums
from di_store.workloads.duties import Append, Insert
from di_store.workloads.load import Bar, Load
from di_store.workloads.trial import LoadResult, headroom

pytestmark = pytest.mark.extended

ROW_BYTES = {
    "S1-dqn-qbert": 110_000,
    "S2-ppo-qbert": 120_000,
    "S3-r2d2-qbert": 10_000_000,
    "S4-impala-qbert": 3_000_000,
    "S5-sac-hopper": 3_000,
    "S6-qmix-3s5z": 290_000,
    "S7-masac-3s5z": 29_000,
    "S8-dqn-gobigger": 400_000,
    "S8r-dqn-gobigger-ragged": 400_000,
    "P1-apex": 56_460,
    "P4-impala-dmlab": 2_101_333,
    "P10-frame-ring": 7_065,
    "P12c-reverb-one": 736,
}
SCALE = 0.002


def test_elements_have_the_bytes_of_their_sources() -> None:
    assert {name: LOADS[name].tables[0].row_bytes for name in ROW_BYTES} == ROW_BYTES


def test_total_rates_and_bytes_equal_the_sources() -> None:
    """The eight rows together move what the table they come from says: 113 MB/s in, 1,454 MB/s out."""
    moved = {"writer": 0.0, "reader": 0.0}
    for load in GROUPS["rows"]:
        for role, plan in load.duties:
            assert plan.rate is not None
            moved[role.name] += plan.rate * load.tables[0].item_bytes
    assert moved == {"writer": 113_087_000, "reader": 1_453_781_000}


def test_loads_are_found_by_name() -> None:
    assert [load.name for load in find("s1")] == ["S1-dqn-qbert"]
    assert [load.name for load in find("P10p-FRAME-ring")] == ["P10p-frame-ring"]
    assert len(find("S5")) == 3
    assert find("rows") == GROUPS["rows"]
    assert [load.name for load in find("loads")] == list(LOADS)
    assert not find("everything")


@pytest.mark.parametrize("name", LOADS)
def test_every_load_can_be_built(name: str, store_dir: str) -> None:
    """Its tables fit the store that is made for it, and take a row of its content."""
    load = LOADS[name].scaled(SCALE)
    with di_store.open(memory=load.memory_bytes) as store:
        load.create_tables(store)
        for _, plan in load.duties:
            if isinstance(plan, Insert):
                name = plan.tables[0]
                store.table(name).insert(next(LoadRows(load.table(name).columns, 1).single()))
            elif isinstance(plan, Append):
                rows = LoadSteps(load.table(plan.tables[0]), 0, lanes=plan.lanes, episode=plan.episode)
                with store.writer([store.table(table) for table in plan.tables], lanes=plan.lanes or None) as writer:
                    writer.append(rows.rows())


def test_labels_are_unique() -> None:
    def labels(load: Load) -> list[str]:
        return [plan.label for _, plan in load.duties]

    assert not [load.name for load in LOADS.values() if len(set(labels(load))) < len(labels(load))]


def test_checksums_detect_damage() -> None:
    rows = LoadRows(LOADS["S8r-dqn-gobigger-ragged"].tables[0].columns, 3)
    batch = next(rows.batches(3))
    offsets = np.cumsum([0, *map(len, batch["raw_overlap"])])
    packed = di_store.Ragged(np.concatenate(batch["raw_overlap"]), offsets)
    whole = {**batch, "raw_overlap": packed}
    assert np.isin(row_sums(whole), rows.sums()).all()
    packed.values[offsets[1]] ^= 1
    assert np.isin(row_sums(whole), rows.sums()).tolist() == [True, False, True]
    swapped = {**whole, "obs": 0, "scalar_obs": whole["next_scalar_obs"], "next_scalar_obs": whole["scalar_obs"]}
    del swapped["obs"]
    assert not np.isin(row_sums(swapped), rows.sums()).any()


def test_stamps_detect_windows_across_episodes() -> None:
    frames = LoadSteps(LOADS["P10-frame-ring"].tables[0], 0, lanes=0, episode=(5, 5)).rows(10)["obs"]
    assert broken_frames(np.stack([frames[0:4], frames[1:5], frames[5:9], frames[[5, 5, 6, 7]]])) == 0
    assert broken_frames(np.stack([frames[3:7], frames[[0, 1, 3, 4]], frames[[1, 1, 2, 3]], frames[3::-1]])) == 4
    padded = frames[5:9].copy()
    padded[2:] = 0
    assert broken_frames(padded[None]) == 0
    padded.reshape(4, -1)[0, :STAMP_BYTES] = 0
    assert broken_frames(padded[None]) == 1


def test_loads_run_end_to_end(tmp_path: Path, store_dir: str) -> None:
    """A row with a use limit, a table held by its limiter, packed batches, objects: end to end, and saved."""
    names = ["S2-ppo-qbert", "P9-high-utd-small", "LLM-answers", "P13-ray-put-get-1000-clients-1"]
    path = tmp_path / "made" / "loads.json"
    options = ["--scale", str(SCALE), "--seconds", "1", "--save", str(path), "--json"]
    done = run("bench", *names, *options)
    assert done.returncode == 0, done.stderr
    found = {result["load"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert list(found) == names
    for result in found.values():
        for label, rate in result["rates"].items():  # a queue may not bring a whole batch in so short a time
            assert rate["reached"] > 0 or result["most"][label] > 0
        for spent in result["milliseconds"].values():
            assert spent["calls"] > 0
            assert spent["p50"] <= spent["p99"] <= spent["p99.9"]
    for name in names[:3]:
        assert found[name]["figures"]["damaged"] == 0
        assert found[name]["lines"]
    assert 1 <= found["S2-ppo-qbert"]["figures"]["most_deliveries"] <= 3
    assert found["P9-high-utd-small"]["figures"]["limiter_outside"] == 0
    saved = json.loads(path.read_text())
    assert [result["load"] for result in saved["loads"]] == names
    assert saved["machine"]["cpus"] >= 1


def test_a_call_that_never_ends_leaves_the_headroom_unknown() -> None:
    """A run shorter than a batch reaches nothing: that is no headroom of 0, and it says so."""
    rates = {"sample": 45.0, "insert": 3.0, "update": None}
    assert headroom({"sample": 900.0, "insert": 300.0, "update": 7.0}, rates) == 20
    assert headroom({"sample": 0.0, "insert": 300.0}, rates) is None
    assert headroom({}, rates) is None
    result = LoadResult("S3", "one", 1.0, 3.0, lines=[Bar("headroom", ">=", 20, "headroom").judge({})])
    assert not result.ok
    assert result.plain["lines"][0]["figure"] is None
    with (console := Console(width=200)).capture() as text:
        loads.show(console, [result])
    assert "not measured" in text.get()


def test_check_fails_if_one_requirement_fails(store_dir: str) -> None:
    """So few items that open chunks take more than they: the bytes in all miss their bar, whatever the machine."""
    done = run("bench", "S1f", "--scale", str(SCALE), "--seconds", "0.1", "--check")
    assert done.returncode == 1, done.stderr
    assert "MISSED" in done.stdout
    assert "FAILED" in done.stdout
    text = fails(2, "bench", "S9")
    assert "S8-dqn-gobigger" in text
