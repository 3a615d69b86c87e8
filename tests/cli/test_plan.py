"""`di-store plan`: what it says of a job is what a store then needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_run import call, fails, run

import di_store
from di_store.sizing.forecast import forecast, read_job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
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

LATE = {
    "capacity": 3_000,
    "schema": {"tokens": "Spec((None,), 'i4', max=500)", "latent": "Spec((256,), 'f4', late=True)"},
    "lanes": 2,
    "samples": 10,
}
GROUPS = {
    "capacity": 300,
    "view": "Group(8, by='prompt')",
    "schema": {"prompt": "i8", "tokens": "Spec((None,), 'u1', max=2000)", "reward": "Spec((), 'f4', late=True)"},
    "lanes": 8,
    "samples": 10,
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
    if table is LATE:
        schema = {"tokens": di_store.Spec((None,), "i4", max=500), "latent": di_store.Spec((256,), "f4", late=True)}
        made = {"schema": schema}
    if table is GROUPS:
        schema = {"prompt": di_store.Spec((), "i8"), "tokens": di_store.Spec((None,), "u1", max=2000)}
        schema["reward"] = di_store.Spec((), "f4", late=True)
        made = {"schema": schema, "view": di_store.Group(8, by="prompt")}
    return {"capacity": table["capacity"], "lanes": table["lanes"], **made}


@pytest.mark.memory_only
@pytest.mark.parametrize(
    "tables",
    [[FRAMES], [SEQUENCES], [RAGGED], [LATE], [GROUPS], [FRAMES, SEQUENCES, RAGGED, LATE, GROUPS]],
    ids=range(6),
)
def test_the_planned_memory_is_enough_and_tight(tables: list[dict[str, Any]], tmp_path: Path) -> None:
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


def fill(table: di_store.Table, kind: dict[str, Any]) -> None:
    """As many items as it holds, of the longest rows, which do not pack; with their late values."""
    random = np.random.default_rng(1)
    rows = 8 if kind is GROUPS else 1
    for first in range(0, kind["capacity"], 100):
        if kind is GROUPS:
            tokens = random.integers(256, size=(800, 2000), dtype=np.uint8)
            keys = table.extend({"prompt": np.arange(first, first + 100).repeat(8), "tokens": tokens})
            table.update(keys, {"reward": np.full(800, first, "f4")})
        else:
            keys = table.extend({"tokens": random.integers(1 << 31, size=(100, 500), dtype=np.int32)})
            table.update(keys, {"latent": np.full((100, 256), first, "f4")})
        assert len(keys) == 100 * rows


@pytest.mark.memory_only
@pytest.mark.parametrize("kind", [LATE, GROUPS], ids=["late", "groups"])
def test_ragged_and_late_columns_take_what_is_planned(kind: dict[str, Any], tmp_path: Path) -> None:
    """In memory alone, and with the least memory beside a disk: the late values stay there."""
    whole = forecast({"tables": {"t": kind}})
    planned = whole.tables[0]
    with di_store.open(memory=whole.in_memory) as store:
        table = store.create_table("t", **options(kind))
        fill(table, kind)
        stored, batch = table.stats()["bytes_stored"], table.sample(4)
        assert stored < planned.rows_bytes
        assert stored == pytest.approx(kind["capacity"] * planned.item_bytes, rel=0.15)
        size = sum(
            leaf.values.nbytes if isinstance(leaf, di_store.Ragged) else leaf.nbytes for leaf in batch.data.values()
        )
        assert planned.sampled == pytest.approx(10 * size / 4, rel=0.02)
        assert planned.read == pytest.approx(10 * planned.item_bytes)
    job = forecast({"memory": whole.least_memory, "tables": {"t": kind}})
    assert job.tables == whole.tables
    with di_store.open(memory=job.memory, disk=tmp_path / "disk", disk_capacity=job.disk_capacity) as store:
        before = store.stats()
        table = store.create_table("t", **options(kind))
        made = store.stats()
        takes = made["reserved"] - before["reserved"] + made["meta"] - before["meta"]
        assert takes == pytest.approx(planned.fixed_bytes, rel=0.1)
        fill(table, kind)
        assert (len(table), table.stats()["evicted_for_room"]) == (kind["capacity"], 0)
        name = "latent" if kind is LATE else "reward"
        late = table.peek(table.keys(), columns=name).data[name]
        assert (late.reshape(kind["capacity"], -1)[:, 0] == np.arange(kind["capacity"]) // 100 * 100).all()


def test_a_quarter_less_memory_keeps_three_quarters_of_the_rows() -> None:
    """Of what may leave memory: late columns are there in any case."""
    tables = {"t": LATE | {"capacity": 100_000}}
    whole = forecast({"tables": tables})
    most = forecast({"memory": whole.in_memory - (whole.in_memory - whole.least_memory) // 4, "tables": tables})
    assert most.disk_capacity > 0
    assert 0.7 < most.hot < 0.9


def test_expected_compression_takes_less_of_the_disk() -> None:
    plain = forecast({"memory": "64MiB", "tables": {"replay": FRAMES}})
    packed = forecast({"memory": "64MiB", "tables": {"replay": FRAMES | {"compress": "Compress(expect=4)"}}})
    assert packed.disk_capacity < plain.disk_capacity
    assert packed.tables[0].inserted == plain.tables[0].inserted / 4
    assert packed.written_a_day == plain.written_a_day / 4


def test_the_example_file_of_the_page_can_be_planned(tmp_path: Path) -> None:
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
        ({"schema": {"obs": "u1[None]"}}, "or Spec((None,), 'i4', max=64) as in Python"),
        ({"schema": {"obs": "Spek((None,), 'u1')"}}, "there is no Spek; known here: Spec"),
        ({"schema": {"obs": "Spec((None,), 'u1', max=0)"}}, "Spec(max=)=0 is below 1"),
        ({"inserts": -1}, "inserts=-1"),
        ({"capacity": 0}, "capacity=0 is below 1"),
        ({"lanes": "many"}, "lanes='many'"),
        ({"view": "Group(4)"}, "table 'replay': no column 'group'"),
        ({"schema": {"obs": "Spec((None,), 'u1')"}}, "table 'replay': column 'obs' is ragged without a bound"),
        ({"columns": ["acts"]}, "table 'replay': columns: no column 'acts'"),
    ],
)
def test_an_impossible_plan_names_table_and_option(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"tables": {"replay": FRAMES | change}}))
    said = fails(2, "plan", str(path), by=call)
    assert words in said
    assert "replay" in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tables:",
        "[1, 2]",
        "tables: [1]",
        "a: {",
        "tables: {replay: 3}",
        "memory: 1GiB",
        "tables: {'': {capacity: 1, schema: {x: f4}}}",
    ],
)
def test_empty_plan_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    fails(2, "plan", str(path), by=call)


def test_too_little_memory_or_disk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"memory": "16MiB", "tables": {"replay": FRAMES | {"lanes": 64}}}))
    done = call("plan", str(path))
    assert done.returncode == 1
    assert "is too small" in done.stdout
    path.write_text(json.dumps({"memory": "64MiB", "disk": "20MiB", "tables": {"replay": FRAMES}}))
    done = call("plan", str(path))
    assert done.returncode == 1
    assert "of disk besides the memory" in done.stdout
