"""The command line on stores of live, dead and stopped processes.

Commands that look run in this process, each once in one of its own; those that stay run in processes of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import cli_run
import pytest
from cli_run import call, command, process, run
from pains import is_stopped

import di_store
from di_store.cli.stores import reports

read_json, fails = partial(cli_run.read_json, by=call), partial(cli_run.fails, by=call)
WAIT_SECONDS = 60.0
HELD = """
import sys, di_store, numpy as np
store = di_store.open({name!r}, memory="64MiB")
table = store.create_table("replay", capacity=50, view=di_store.Transition(n_step=2),
    schema={{"obs": di_store.Spec((3,), "f4"), "tokens": di_store.Spec((None,), "i4", max=4),
             "reward": di_store.Spec((), "f4")}},
    sampler=di_store.Prioritized(alpha=0.6), limiter=di_store.SamplesPerInsert(2, min_size=30, tolerance=1.0))
writer = table.writer()
for at in range({rows}):
    writer.append({{"obs": np.full(3, at, "f4"), "tokens": np.arange(at % 4, dtype="i4"), "reward": 1.0}})
"""
READY = "print('ready', flush=True)\n"
UNTIL_CLOSED = READY + "sys.stdin.read()\n"


@contextmanager
def python(code: str, ready: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a program; ready when it says so."""
    with process(sys.executable, "-c", code) as child:
        if ready:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
        yield child


@pytest.fixture
def name(store_dir: str, store_name: Callable[[], str]) -> str:
    """A store's name, in a folder of its own."""
    return store_name()


@pytest.fixture
def holder(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that made the store with a table of 30 rows, and holds it."""
    with python(HELD.format(name=name, rows=30) + UNTIL_CLOSED) as child:
        yield child


def wait_for(look: Callable[[], Any]) -> Any:
    """Look again and again until something is there."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
    raise AssertionError("it did not happen")


def status_of(name: str) -> Any:
    """What `status` says of one store, without a look at those of other tests; None if it does not list it."""
    return next(iter(reports(name)), None)


def shown_status(name: str) -> str:
    """What `status` prints where there is no other store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("di_store.cli.status"), "reports", lambda: reports(name))
        return call("status").stdout


@pytest.mark.parametrize("arguments", [("inspect",), ("check",), ("rm",), ("top", "--once")], ids=" ".join)
def test_commands_name_an_unknown_store(arguments: tuple[str, ...], holder: subprocess.Popen[str], name: str) -> None:
    text = cli_run.fails(1, arguments[0], name + "x", *arguments[1:])
    assert f"{name}x" in text
    assert f"did you mean '{name}'" in text
    assert "di-store status" in text


# Looking


def check_looks(name: str, pids: list[int]) -> None:
    """Every command that looks tells the truth about the store that HELD made."""
    each = status_of(name)
    assert each["pids"] == pids
    assert 0 < each["bytes"] <= each["budget"] == 64 << 20
    assert [table["name"] for table in each["tables"]] == ["replay"]
    assert each["tables"][0]["size"] == 28
    assert each["error"] is None
    assert {client["pid"] for client in each["clients"]} == set(pids)
    found = read_json("inspect", name)
    assert found["name"] == name
    memory = found["memory"]
    assert memory["live"] + memory["pinned"] + memory["pending"] + memory["free"] == found["budget"]
    assert "replay" in call("inspect", name).stdout

    first, last = (read_json("inspect", name, "replay", "--items", "20", "--start", at) for at in ("0", "20"))
    assert first["view"].startswith("Transition(")
    assert first["limiter"]["kind"] == "SamplesPerInsert"
    assert [column["name"] for column in first["columns"]] == ["obs", "tokens", "reward"]
    assert [item["start"] for item in first["items"] + last["items"]] == list(range(28))
    assert len({item["key"] for item in first["items"] + last["items"]}) == 28
    assert set(first["items"][0]) == {"key", "priority", "times_sampled", "version", "episode", "start"}
    assert first["items"][0]["version"] == -1

    shown = call("inspect", name, "replay", "--values", "--items", "5").stdout
    assert "--start 5 shows more" in shown
    assert "obs" in shown
    valued = read_json("inspect", name, "replay", "--values", "--items", "3")["items"]
    assert [item["values"]["obs"] for item in valued] == [[at] * 3 for at in range(3)]
    assert [item["values"]["tokens"] for item in valued] == [list(range(at % 4)) for at in range(3)]

    assert read_json("check", name) == {"name": name, "findings": [], "repaired": False, "left": []}
    assert "sound" in call("check", name).stdout
    top = read_json("top", "--once", name)["stores"]
    assert [store["name"] for store in top] == [name]
    assert "replay" in call("top", "--once", name).stdout


def test_commands_show_a_live_store(holder: subprocess.Popen[str], name: str) -> None:
    check_looks(name, [holder.pid])
    shown = run("status").stdout
    assert re.search(rf"^{name} .*\breplay\b.*\b28\b", shown, re.M), shown
    assert name in {each["name"] for each in cli_run.read_json("status")["stores"]}
    assert read_json("inspect", name)["deaths"] == 0


def test_inspecting_changes_nothing(holder: subprocess.Popen[str], name: str) -> None:
    def counts() -> tuple[Any, ...]:
        table = status_of(name)["tables"][0]
        return tuple(table[key] for key in ("inserts", "samples", "size", "removed", "updates"))

    before = counts()
    items = read_json("inspect", name, "replay")["items"]
    assert items == read_json("inspect", name, "replay")["items"]
    assert all(item["times_sampled"] == 0 for item in items)
    assert counts() == before


def test_a_store_outliving_its_creator_is_shown(holder: subprocess.Popen[str], name: str) -> None:
    with process(*command("hold", name)) as keeper:
        assert keeper.stdout is not None
        assert "attached to" in keeper.stdout.readline()
        holder.kill()
        holder.wait()
        check_looks(name, [keeper.pid])
        assert read_json("inspect", name)["deaths"] == 1


def test_empty_and_unknown_tables_are_shown_or_named(name: str) -> None:
    code = f"import sys, di_store\nstore = di_store.open({name!r}, memory='64MiB')\n"
    with python(code + "store.create_table('empty', capacity=5)\n" + UNTIL_CLOSED):
        found = read_json("inspect", name, "empty")
        assert found["columns"] is None
        assert found["items"] == []
        shown = call("inspect", name, "empty").stdout
        assert "no columns yet" in shown
        assert "no items" in shown
        assert "did you mean 'empty'" in fails(1, "inspect", name, "empt")


def test_values_of_any_kind_are_shown(name: str) -> None:
    code = f"import sys, di_store\nstore = di_store.open({name!r}, memory='64MiB')\n"
    code += "table = store.create_table('any', capacity=5, max_bytes='1MiB', view=di_store.Opaque())\n"
    code = code.replace("'1MiB'", str(1 << 20))
    with python(code + "table.insert({'text': 'hello', 'n': [1, 2]})\n" + UNTIL_CLOSED):
        item = read_json("inspect", name, "any", "--values")["items"][0]
        assert item["values"] == "{'text': 'hello', 'n': [1, 2]}"
        assert "hello" in call("inspect", name, "any", "--values").stdout


def test_large_and_odd_values_are_shown_in_brief(name: str) -> None:
    code = f"import sys, di_store, numpy as np\nstore = di_store.open({name!r}, memory='64MiB')\n"
    code += "table = store.create_table('odd', capacity=5)\n"
    code += "frame = np.arange(84 * 84, dtype='u2').reshape(84, 84)\n"
    code += "table.insert({'frame': frame, 'info': {'word': np.array(b'ab', 'S4'), 'nan': np.float32('nan')}})\n"
    with python(code + UNTIL_CLOSED):
        shown = call("inspect", name, "odd", "--values").stdout
        assert "uint16 (84, 84), 0 to 7055" in shown
        assert "info/word" in shown
        values = read_json("inspect", name, "odd", "--values")["items"][0]["values"]
        assert values["frame"][83][83] == 7055
        assert "ab" in values["info"]["word"]


def test_waiters_are_listed_with_reason_and_age(holder: subprocess.Popen[str], name: str) -> None:
    waits = f"import di_store\ntable = di_store.attach({name!r}, timeout=60).table('replay')\n"
    with python(waits + READY + "table.sample(1000)\n") as learner:

        def look() -> Any:
            return [waiter for waiter in status_of(name)["waiters"] if waiter["age_seconds"] > 1]

        (waiter,) = wait_for(look)
        assert waiter["pid"] == learner.pid
        assert waiter["table"] == "replay"
        assert "replay" in waiter["reason"]
        shown = shown_status(name)
        assert re.search(rf"^{name}\s+{learner.pid}\s+table 'replay': ", shown, re.M), shown
        assert str(learner.pid) in call("top", "--once", name).stdout
        assert str(learner.pid) in call("inspect", name).stdout


# Stopped processes


def test_commands_name_a_stopped_lock_holder(name: str) -> None:
    """A writer stopped inside the table's lock: what reads without locks answers, the rest names it in time."""
    code = HELD.format(name=name, rows=30)
    code += READY + "di_store._core.arm_fault('table.insert_item:1:stop')\n"
    code += "writer.append({'obs': np.zeros(3, 'f4'), 'tokens': np.zeros(1, 'i4'), 'reward': 1.0})\n"
    with python(code) as stopped:
        wait_for(lambda: is_stopped(stopped.pid))
        each = status_of(name)
        assert each["clients"] == [each["clients"][0] | {"pid": stopped.pid, "state": "stopped"}]
        assert "stopped" in call("top", "--once", name).stdout
        assert read_json("inspect", name)["tables"][0]["size"] >= 28
        for arguments in (("inspect", name, "replay"), ("check", name)):
            text = fails(1, *arguments, "--timeout", "0.3")
            assert f"pid {stopped.pid}, stopped" in text
            assert "0.3 s" in text
            assert f"kill -CONT {stopped.pid}" in text
        shown = call("inspect", name, "replay", "--timeout", "0.3").stdout
        assert "Transition(" in shown  # what needs no lock was shown all the same
        waits = f"import di_store\ntable = di_store.attach({name!r}, timeout=60).table('replay')\n"
        with python(waits + READY + "table.keys()\n") as other:

            def look() -> Any:
                return [waiter for waiter in status_of(name)["waiters"] if waiter["culprit"]]

            (waiter,) = wait_for(look)
            assert waiter["pid"] == other.pid
            assert waiter["culprit"] == f"pid {stopped.pid}, stopped"
            assert "a lock" in waiter["reason"]
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(WAIT_SECONDS) == 0


def test_status_answers_beside_a_stopped_and_a_dead_process(holder: subprocess.Popen[str], name: str) -> None:
    """The dead one cannot be settled while the lock is held, and `status` answers all the same."""
    code = f"import di_store, numpy as np\ntable = di_store.attach({name!r}, timeout=60).table('replay')\n"
    code += READY + "di_store._core.arm_fault('table.insert_item:1:stop')\nwriter = table.writer()\n"
    code += "step = {'obs': np.zeros(3, 'f4'), 'tokens': np.zeros(1, 'i4'), 'reward': 1.0}\n"
    with python(code + "for _ in range(9): writer.append(step)\n") as stopped:
        wait_for(lambda: is_stopped(stopped.pid))
        holder.kill()
        holder.wait()
        each = status_of(name)
        assert each["pids"] == [stopped.pid]
        assert each["error"] is None
        assert each["tables"][0]["size"] >= 28


# Holding and removing


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_hold_keeps_a_store_until_a_signal(name: str, number: signal.Signals) -> None:
    with process(*command("hold", name, "--memory", "64MiB", "--json")) as keeper:
        assert keeper.stdout is not None
        assert json.loads(keeper.stdout.readline()) == {"name": name, "pid": keeper.pid, "made": True}
        assert status_of(name)["pids"] == [keeper.pid]
        assert status_of(name)["budget"] == 64 << 20
        keeper.send_signal(number)
        assert keeper.wait(WAIT_SECONDS) == 0
        assert keeper.stderr is not None
        assert keeper.stderr.read() == ""
    assert status_of(name) is None


def test_rm_refuses_a_held_store_without_force(holder: subprocess.Popen[str], name: str) -> None:
    with process(*command("hold", name)) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        text = fails(1, "rm", name)
        low, high = sorted((holder.pid, keeper.pid))
        assert f"pids {low} and {high}" in text
        assert "--force" in text
        assert status_of(name)["tables"][0]["size"] == 28
        done = read_json("rm", name, "--force")
        assert done == {"name": name, "removed": True, "pids": [low, high]}
        assert keeper.wait(WAIT_SECONDS) == 0
        assert keeper.stderr is not None
        assert "removed" in keeper.stderr.read()
    assert status_of(name) is None
    assert name in fails(1, "inspect", name)


def test_calls_on_a_removed_store_raise(name: str) -> None:
    code = HELD.format(name=name, rows=30) + READY
    code += "sys.stdin.readline()\n"
    step = "{'obs': np.zeros(3, 'f4'), 'tokens': np.zeros(1, 'i4'), 'reward': 1.0}"
    code += f"""
for call in (lambda: store.put(1), lambda: store.stats(), lambda: store.table('replay'), lambda: table.sample(1),
             lambda: table.keys(), lambda: len(table), lambda: writer.append({step}),
             lambda: store.contains('ab' * 20)):
    try:
        print(call())
    except di_store.StoreClosed as error:
        print('closed', 'rm --force' in str(error))
"""
    with python(code) as child:
        assert call("rm", name, "--force").returncode == 0
        shown, error = child.communicate("go on\n", timeout=WAIT_SECONDS)
        assert shown.splitlines() == ["closed True"] * 8, shown + error


def test_a_waiting_call_ends_when_the_store_is_removed(name: str) -> None:
    code = HELD.format(name=name, rows=5) + READY
    code += "try:\n    table.sample(1)\nexcept di_store.StoreClosed:\n    print('closed')\n"
    with python(code) as child:
        wait_for(lambda: status_of(name)["waiters"])
        assert call("rm", name, "--force").returncode == 0
        assert child.communicate(timeout=WAIT_SECONDS)[0] == "closed\n"


@pytest.mark.memory_only
def test_a_new_store_may_take_the_name_of_a_removed_one(holder: subprocess.Popen[str], name: str) -> None:
    assert call("rm", name, "--force").returncode == 0
    with di_store.open(name, memory="64MiB") as store:
        assert store.stats()["tables"] == {}
        (each,) = cli_run.read_json("top", "--once", name)["stores"]
        assert each["pids"] == [os.getpid()]
        assert each["tables"] == []


# top


def test_top_prints_frames_until_interrupted(holder: subprocess.Popen[str], name: str) -> None:
    with process(*command("top", name, "--interval", "0.1", "--json")) as child:
        assert child.stdout is not None
        frames = [json.loads(child.stdout.readline()) for _ in range(3)]
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT_SECONDS) == 0
        tables = [frame["stores"][0]["tables"][0] for frame in frames]
        assert tables[0]["inserts_per_second"] is None
        assert tables[1]["inserts_per_second"] == 0
        assert tables[2]["samples_per_second"] == 0


def test_top_does_not_keep_a_store_alive(holder: subprocess.Popen[str], name: str) -> None:
    """It looks again and again without keeping alive what it looks at."""
    with process(*command("top", name, "--interval", "0.1", "--json")) as child:
        assert child.stdout is not None

        def names() -> list[str]:
            return [each["name"] for each in json.loads(child.stdout.readline())["stores"]]  # type: ignore[union-attr]

        assert name in names()
        holder.kill()
        holder.wait()
        wait_for(lambda: name not in names())


def test_top_works_on_a_terminal(holder: subprocess.Popen[str], name: str) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command("top", name, "--interval", "0.1"), stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"replay") < 2:
            assert select.select([ours], [], [], WAIT_SECONDS)[0], seen
            seen += os.read(ours, 1 << 16)
        child.send_signal(signal.SIGINT)
        with suppress(OSError):  # EIO: the other end is closed
            while os.read(ours, 1 << 16):  # a terminal that nobody reads would hold the child up
                pass
        assert child.wait(WAIT_SECONDS) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


# The rest


@pytest.mark.parametrize(
    "arguments", [("status",), ("inspect", ""), ("why", "", "--seconds", "0.2"), ("top", "--once")]
)
def test_commands_run_without_stdout(holder: subprocess.Popen[str], name: str, arguments: tuple[str, ...]) -> None:
    words = shlex.join(command(*(each or name for each in arguments)))
    done = subprocess.run(["sh", "-c", f"{words} >&-"], stderr=subprocess.PIPE, text=True, timeout=WAIT_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_pipe_ends_a_command(holder: subprocess.Popen[str], name: str) -> None:
    with process(*command("top", name, "--interval", "0.1")) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(WAIT_SECONDS) == 1
        assert child.stderr is not None
        assert child.stderr.read() == ""
        child.stdout = None


def test_inspecting_starts_no_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pool in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(pool, "1")
    with process(*command("hold", name, "--memory", "64MiB")) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        with process(*command("top", name, "--interval", "0.1", "--json")) as looker:
            assert looker.stdout is not None
            for _ in range(2):
                looker.stdout.readline()
            for child in (keeper, looker):
                assert os.listdir(f"/proc/{child.pid}/task") == [str(child.pid)]


def test_an_unreadable_store_is_listed_and_named(holder: subprocess.Popen[str], name: str) -> None:
    """Its header is wiped: it is listed all the same, and every command says what is wrong and whom to end."""
    folder = f"/proc/{holder.pid}/fd"
    (descriptor,) = [each for each in os.listdir(folder) if f":{name}:" in os.readlink(f"{folder}/{each}")]
    file = os.open(f"{folder}/{descriptor}", os.O_RDWR)
    os.pwrite(file, bytes(64), 0)
    os.close(file)
    each = status_of(name)
    assert each["pids"] == [holder.pid]
    assert "not a Di-store" in each["error"]
    assert f"{name} cannot be read" in shown_status(name)
    assert "cannot be read" in call("top", "--once", name).stdout
    for arguments in (("inspect", name), ("check", name), ("rm", name, "--force")):
        assert "not a Di-store" in fails(1, *arguments)
    assert f"end pid {holder.pid}" in fails(1, "rm", name, "--force")


def test_control_characters_in_names_are_escaped(name: str) -> None:
    """A table's name may hold any text: escape codes and line breaks in it are shown, not carried out."""
    odd = "red\x1b[31m\nline"
    with di_store.open(name, memory="16MiB") as store:
        store.create_table(odd, capacity=10).insert({"x\x1b[1m": 1})
        for arguments in (("status",), ("inspect", name), ("inspect", name, odd), ("top", "--once")):
            shown = call(*arguments).stdout
            assert "\x1b" not in shown, arguments
            assert "\nline" not in shown, arguments
            assert r"red\x1b[31m\nline" in shown, arguments


def test_checkpoint_and_restore_work_from_the_command_line(
    holder: subprocess.Popen[str], name: str, tmp_path: Path
) -> None:
    """A store is written while a process holds it, and comes back under another name."""
    written = json.loads(call("checkpoint", name, str(tmp_path / "c"), "--json").stdout)
    assert written["name"] == name
    assert "rows were new" in call("checkpoint", name, str(tmp_path / "c")).stdout
    options = ["--memory", "64MiB", "--json"]
    with subprocess.Popen(
        command("restore", str(tmp_path / "c"), f"{name}-again", *options), stdout=subprocess.PIPE, text=True
    ) as restored:
        assert restored.stdout is not None
        assert json.loads(restored.stdout.readline())["tables"]
        with di_store.attach(name) as ours, di_store.attach(f"{name}-again") as again:
            for table, stats in ours.stats()["tables"].items():
                assert len(again.table(table)) == stats["size"]
        restored.terminate()
        assert restored.wait(60) == 0
    assert "manifest.json" in fails(1, "restore", str(tmp_path), f"{name}-none")


def test_serve_does_not_import_the_table_printer() -> None:
    look = "import di_store.cli.hold, di_store.cli.serve, sys; print([m for m in sys.modules if m.startswith('rich')])"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout == "[]\n"
