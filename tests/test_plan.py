"""`di-store plan`: what it says of a job is what a store then needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_run import fails, run

import di_store
from di_store.forecast import forecast, read_job

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
FRAMES: dict[str, Any] = {
    "capacity": 20_000,
    "schema": {"obs": "u1[84, 84]", "action": "i8", "reward": "f4", "terminated": "?", "truncated": "?"},
    "view": 'Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4})',
    "sampler": "Prioritized(alpha=0.6)",
    "inserts": 400,
    "samples": 1650,
    "batch": 32,
    "lanes": 2,
}
SEQUENCES = FRAMES | {
    "capacity": 500,
    "view": "Sequence(length=80, burn_in=40, period=40)",
    "inserts": 2,
    "samples": 60,
}
RAGGED = {
    "capacity": 10_000,
    "schema": {"units": {"shape": [None, 31], "dtype": "f4", "max": 50}, "nested": {"x": "f4[3]"}},
    "remover": "Uniform()",
    "limiter": "MinSize(10)",
    "lanes": 4,
}


def options(table: dict[str, Any]) -> dict[str, Any]:
    """The options of `create_table`, made by hand."""
    schema: dict[str, Any] = {"obs": di_store.Spec((84, 84), "u1"), "action": di_store.Spec((), "i8")}
    schema |= {"reward": di_store.Spec((), "f4")} | {
        name: di_store.Spec((), "?") for name in ("terminated", "truncated")
    }
    view: Any = di_store.Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4})
    if table is SEQUENCES:
        view = di_store.Sequence(length=80, burn_in=40, period=40)
    made = {"view": view, "schema": schema, "sampler": di_store.Prioritized(alpha=0.6)}
    if table is RAGGED:
        schema = {"units": di_store.Spec((None, 31), "f4", max=50), "nested": {"x": di_store.Spec((3,), "f4")}}
        made = {"schema": schema, "remover": di_store.Uniform(), "limiter": di_store.MinSize(10)}
    return {"capacity": table["capacity"], "lanes": table["lanes"], **made}


@pytest.mark.memory_only
@pytest.mark.parametrize("tables", [[FRAMES], [SEQUENCES], [RAGGED], [FRAMES, SEQUENCES, RAGGED]], ids=range(4))
def test_what_is_planned_suffices_and_little_less_does_not(tables: list[dict[str, Any]], tmp_path: Path) -> None:
    job = {"tables": {str(number): table for number, table in enumerate(tables)}}
    found = forecast(job)

    def make(memory: int, **disk: Any) -> None:
        with di_store.open(memory=memory, **disk) as store:
            for number, table in enumerate(tables):
                store.create_table(str(number), **options(table))

    assert found.disk_capacity == 0
    make(found.in_memory)
    if found.in_memory > 10 << 20:
        with pytest.raises(di_store.CapacityError):
            make(max(8 << 20, found.in_memory * 9 // 10))
    half = forecast(job | {"memory": (found.in_memory + found.least_memory) // 2})
    make(half.memory, disk=tmp_path / "disk", disk_capacity=half.disk_capacity)
    least = forecast(job | {"memory": found.least_memory})
    assert least.disk_capacity >= half.disk_capacity
    make(least.memory, disk=tmp_path / "disk", disk_capacity=least.disk_capacity)
    if least.disk_capacity > 100 << 20:
        with pytest.raises(di_store.CapacityError):
            make(least.memory, disk=tmp_path / "disk", disk_capacity=least.disk_capacity * 8 // 10)


def test_a_disk_that_is_planned_is_never_too_small_to_open(tmp_path: Path) -> None:
    """However little is missing."""
    whole = forecast({"tables": {"replay": FRAMES}})
    short = forecast({"memory": whole.in_memory - (1 << 20), "tables": {"replay": FRAMES}})
    with di_store.open(memory=short.memory, disk=tmp_path, disk_capacity=short.disk_capacity) as store:
        store.create_table("replay", **options(FRAMES))


def test_rates_are_of_real_rows_and_batches() -> None:
    found = forecast({"tables": {"replay": FRAMES}})
    table = found.tables[0]
    with di_store.open(memory=found.in_memory + (64 << 20)) as store:
        replay = store.create_table("replay", **options(FRAMES))
        with replay.writer() as writer:
            for at in range(2_000):
                step = {
                    "obs": np.full((84, 84), at % 256, np.uint8),
                    "action": 0,
                    "reward": 0.0,
                    "terminated": False,
                    "truncated": False,
                }
                writer.append(step)
        batch = replay.sample(32)
        size = sum(leaf.nbytes for leaf in batch.data.values())
        stored = replay.stats()["bytes_stored"] / 2_000
    assert table.sampled == pytest.approx(1650 * size / 32)
    assert table.ahead_bytes == pytest.approx(3 * size)
    assert table.inserted == pytest.approx(400 * stored, rel=0.1)
    assert table.fill_seconds == 20_000 / 400


def test_expected_compression_takes_less_of_the_disk() -> None:
    plain = forecast({"memory": "64MiB", "tables": {"replay": FRAMES}})
    packed = forecast({"memory": "64MiB", "tables": {"replay": FRAMES | {"compress": "Compress(expect=4)"}}})
    assert packed.disk_capacity < plain.disk_capacity
    assert packed.tables[0].inserted == plain.tables[0].inserted / 4
    assert packed.written_a_day == plain.written_a_day / 4


def test_the_file_of_the_page(tmp_path: Path) -> None:
    text = re.search(r"```yaml\n(.*?)```\n\n```text\n\$ di-store plan job.yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert text is not None
    path = tmp_path / "job.yaml"
    path.write_text(text[1])
    done = run("plan", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in text[2].splitlines()]
    assert read_job(str(path))["tables"]["replay"]["capacity"] == 1_000_000
    shown = json.loads(run("plan", str(path), "--json").stdout)
    assert shown["fits"]
    assert shown["tables"][0]["items"] == 1_000_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capcity": 1}, "table 'replay': there is no 'capcity', did you mean 'capacity'"),
        ({"view": "Transitions()"}, "there is no Transitions; known here: Episode"),
        ({"view": "__import__('os').system('true')"}, "write it as in Python"),
        ({"sampler": "Prioritized(alfa=1)"}, "unexpected keyword argument 'alfa'"),
        ({"schema": None}, "write its schema"),
        ({"schema": {"obs": "u1[84"}}, "write a dtype and a shape"),
        ({"schema": {"obs": "nothing"}}, "nothing"),
        ({"inserts": -1}, "inserts=-1"),
        ({"capacity": 0}, "capacity=0 is below 1"),
        ({"lanes": "many"}, "lanes='many'"),
    ],
)
def test_what_cannot_be_planned_names_table_and_option(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"tables": {"replay": FRAMES | change}}))
    said = fails(2, "plan", str(path))
    assert words in said
    assert "replay" in said


@pytest.mark.parametrize(
    "text", ["", "tables:", "[1, 2]", "tables: [1]", "a: {", "tables: {replay: 3}", "memory: 1GiB"]
)
def test_files_that_describe_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    fails(2, "plan", str(path))


def test_too_small(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"memory": "16MiB", "tables": {"replay": FRAMES | {"lanes": 64}}}))
    done = run("plan", str(path))
    assert done.returncode == 1
    assert "are too little" in done.stdout
    path.write_text(json.dumps({"memory": "64MiB", "disk": "20MiB", "tables": {"replay": FRAMES}}))
    done = run("plan", str(path))
    assert done.returncode == 1
    assert "of disk are needed beside the memory" in done.stdout
