"""A served store outlives its agent, and its agent does not outlive the supervisor."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_run import command, run
from cluster.nodes import show_kills, stop, stopped
from cluster.served import TOKEN, ServedStore
from looked_at import shown, shown_json
from pains import until

import di_store
from di_store.cli.stores import reports
from di_store.observe import StoreReport
from di_store.server import supervisor
from di_store.server.supervisor import Serving, Supervisor

Serve = Callable[..., ServedStore]
SERVED_AGAIN_SECONDS = 3.0
YOUNG_SECONDS = 0.5  # one that dies sooner may be started again after a pause
SLACK = 10  # of other programs on the machine


def gone(pid: int) -> bool:
    """Whether a process has ended; its parent may not have looked yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_killed_agent_is_replaced(serve: Serve, count: Callable[[int, int], int]) -> None:
    """Clients go on with the same handles, and what the store holds is there. `-s` prints how long they waited."""
    served, kills = serve(), count(2, 200)
    waited: list[float] = []
    with served.connect() as store:
        ref = store.put(np.arange(1000))
        store.create_table("t", capacity=9).insert({"x": 1.0})
        for _ in range(kills):
            (agent,) = served.agents()
            began = time.monotonic()
            until(lambda old=began + YOUNG_SECONDS: time.monotonic() > old, "an agent that is not young")
            began = time.monotonic()
            os.kill(agent, signal.SIGKILL)
            assert store.get(ref, timeout=60)[-1] == 999
            waited.append(time.monotonic() - began)
            assert waited[-1] < SERVED_AGAIN_SECONDS * SLACK
            assert len(store.table("t")) == 1
            assert served.agents() != [agent]
        assert di_store.attach(served.name).check() == []
    served.process.send_signal(signal.SIGTERM)
    errors = served.process.communicate(timeout=60)[1]
    show_kills(waited)
    assert errors.count("the agent died; pid ") == kills
    assert "Traceback" not in errors


def test_the_agent_of_a_killed_holder_ends(serve: Serve) -> None:
    served = serve()
    connected = served.connect()
    ref = connected.put(1)
    served.process.kill()
    until(lambda: gone(served.agent), "the agent to end")
    assert not served.answers()
    assert served.name not in {info.name for info in di_store.list_stores()}
    with pytest.raises(di_store.NodeUnavailable, match="`di-store serve` starts one"):
        connected.get(ref, timeout=1)
    connected.close()
    again = serve(listen=f"127.0.0.1:{served.port}")
    assert again.port == served.port


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.extended)])
def test_a_signal_ends_holder_and_agent(serve: Serve, number: signal.Signals) -> None:
    served = serve()
    with served.connect() as store:
        store.put(1)
        served.process.send_signal(number)
        out, errors = served.process.communicate(timeout=60)
    assert (served.process.returncode, out, errors) == (0, "", "")
    assert gone(served.agent)
    assert not served.answers()
    assert served.name not in {info.name for info in di_store.list_stores()}


def test_a_stopped_agent_does_not_block_the_holders_exit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    stop(served.agent)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0
    assert gone(served.agent)


def test_an_agent_that_is_told_to_end_is_replaced(serve: Serve) -> None:
    """It gives up what its clients hold, as at every end."""
    served = serve()
    with served.connect() as store:
        for number in (signal.SIGTERM, signal.SIGINT):
            (agent,) = served.agents()
            os.kill(agent, number)
            until(lambda agent=agent: gone(agent), "the agent to end")
            assert store.stats()["objects"] == 0


def test_a_removed_store_is_not_served(serve: Serve) -> None:
    served = serve()
    with served.connect() as store:
        store.put(1)
        refused = run("rm", served.name)
        assert refused.returncode == 1
        assert f"pids {served.pid}" in refused.stderr or f"{served.pid}" in refused.stderr
        assert run("rm", served.name, "--force").returncode == 0
        _, errors = served.process.communicate(timeout=60)
    assert served.process.returncode == 0
    assert errors == f"store '{served.name}' was removed, nothing is left to serve\n"
    until(lambda: gone(served.agent), "the agent to end")
    assert not served.answers()


def test_an_existing_store_is_served_and_survives(serve: Serve, store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="64MiB") as here:
        ref = here.put("here")
        served = serve(name=here.name)
        with served.connect() as far:
            assert far.get(ref) == "here"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        assert here.get(ref) == "here"


def test_status_shows_the_agent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which process serves a store, where it listens, and whether it runs: as the errors of clients promise."""
    served, plain = serve(), serve(listen="[::1]:0")

    def ours() -> list[StoreReport]:  # not those of all tests that run now
        return [*reports(served.name), *reports(plain.name)]

    monkeypatch.setattr(importlib.import_module("di_store.cli.status"), "reports", ours)

    def says(line: str) -> bool:
        return line in " ".join(shown("status").split())

    for each, place in ((served, f"127.0.0.1:{served.port}"), (plain, f"[::1]:{plain.port}")):
        until(partial(says, f"{each.name} {each.agent} runs {place}"), "the agent to serve")
    with stopped(served.agent):
        assert says(f"{served.name} {served.agent} stopped 127.0.0.1")
    found = next(each for each in shown_json("status")["stores"] if each["name"] == served.name)
    listens = {client["pid"]: client["listens"] for client in found["clients"]}
    assert listens == {served.agent: [f"127.0.0.1:{served.port}"], served.pid: []}


def test_serve_prints_the_address_first(store_name: Callable[[], str], tmp_path: Path) -> None:
    """The address, and who serves it: in lines, the first of which is the address alone."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    words = command("serve", store_name(), "--memory", "64MiB", "--listen", "127.0.0.1:0", "--token-file", str(token))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, line = process.stdout.readline().strip(), process.stdout.readline().strip()
        name = address.rpartition("/")[2]
        assert address.startswith("di-store://127.0.0.1:")
        assert line == f"serving store {name!r} there until Ctrl-C or SIGTERM: pid {process.pid}"
        with di_store.connect(address, token=TOKEN) as store:
            assert store.address == address
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    finally:
        process.kill()
        process.communicate()


def test_the_token_is_in_no_argument_and_no_environment_of_the_agent(serve: Serve) -> None:
    served = serve()
    for file in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{served.agent}/{file}").read_bytes()
    assert TOKEN.encode() not in Path(f"/proc/{served.pid}/cmdline").read_bytes()


def test_a_failing_agent_is_restarted_with_growing_pauses(serve: Serve, authorities: Any) -> None:
    """Its certificate is gone: it is tried again after longer and longer pauses, and served once it is back."""
    certificate, key = authorities[0].sign("vanishes")
    served = serve("--tls-cert", certificate, "--tls-key", key)
    hidden = Path(certificate).rename(certificate + ".hidden")
    os.kill(served.agent, signal.SIGKILL)
    assert served.process.stderr is not None
    lines = [served.process.stderr.readline() for _ in range(4)]
    failed = [line for line in lines if line.startswith("di-store: the agent cannot start: ")]
    assert len(failed) == 2, lines
    assert failed[0].endswith(f"--tls-key {key} cannot be used: No such file or directory\n")
    hidden.rename(certificate)
    with served.connect(tls=authorities[0].path) as store:
        assert store.stats()["objects"] == 0


def test_restart_pauses_grow_and_reset(store_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own, of agents that end as theirs do, and do nothing else."""

    def spawn(supervisor: Supervisor) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    monkeypatch.setattr(Supervisor, "_spawn", spawn)
    now = [100.0]
    with di_store.open(store_name(), memory="64MiB") as store:
        kept = Supervisor(store, Serving("127.0.0.1:0"))
        try:
            monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])

            def pause(killed: bool = False) -> float:
                """End the agent, or kill it; how long it takes until another one is started."""
                assert kept._agent.stdin is not None
                if killed:
                    os.kill(kept.agent_pid, signal.SIGKILL)
                else:
                    kept._agent.stdin.close()
                kept._agent.wait()
                began = now[0]
                while not kept.look():
                    now[0] += 0.5
                return now[0] - began

            kept._began = now[0]
            assert [pause() for _ in range(7)] == [0, 1, 2, 4, 8, 16, 16]
            now[0] += 6
            assert [pause() for _ in range(3)] == [0, 1, 2]
            assert [pause(killed=True) for _ in range(3)] == [2, 2, 2], "clients wait for it"
            assert kept.restarts == 13
        finally:
            monkeypatch.undo()
            kept.end()
