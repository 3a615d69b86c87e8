"""Traps around who is alive: record locks are lost by closing any descriptor of the file, by dup, by exec.

Whoever lost its lock but lives is not taken for dead; whoever really died is, however it died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from cli_run import fails, read_json
from pains import Program, is_gone, status, until

import di_store
from crash.board import check_object, object_value
from crash.zygote import KILLED, Crew, Hand
from di_store import _core


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    """A store with one object in it, `ab…`."""
    with di_store.open(store_name(), memory="64MiB") as made:
        made.put(object_value(1, 1), id="ab" * 20)
        made.create_table("t", capacity=100, schema={"x": di_store.Spec((), "i8")})
        yield made


def start(crew: Crew, function: str, store: Any, *args: Any) -> Hand:
    """A child that works on the store with one of the functions below."""
    return crew.start(f"crash.test_liveness:{function}", store.name, *args)


def client(store: Any, pid: int) -> dict[str, Any] | None:
    """What stats say of a process."""
    return next((entry for entry in store.stats()["clients"] if entry["pid"] == pid), None)


def tell(store: Any, what: str) -> None:
    """In a child: an object that the test waits for."""
    store.put(os.getpid(), id=what.encode().hex().ljust(40, "0"))


def told(store: Any, what: str) -> int:
    """The pid of who told."""
    return int(store.get(di_store.Ref.parse(what.encode().hex().ljust(40, "0")), timeout=60))


def arena_of(store: Any) -> Any:
    """The core's handle that this process has already."""
    return _core.Arena.open(store.name, 2, 0, 0, 60.0)


# -- descriptors ------------------------------------------------------------------------------------------------------


def lose_lock(name: str, how: str) -> None:
    """In a child: do what drops record locks, hold a view and a writer meanwhile, and go on working."""
    with di_store.attach(name, timeout=60) as store:
        view = store.get(di_store.Ref.parse("ab" * 20))
        writer = store.table("t").writer()
        writer.append({"x": 1})
        number = arena_of(store).fd_number
        if how == "dup":
            os.close(os.dup(number))
        elif how == "proc":
            os.close(os.open(f"/proc/self/fd/{number}", os.O_RDWR))
        elif how == "attach":
            for _ in range(3):
                with di_store.attach(name, timeout=60) as again:
                    assert again.contains(di_store.Ref.parse("ab" * 20))
        elif how == "list":
            assert name in [found.name for found in di_store.list_stores()]
        else:
            subprocess.run([sys.executable, "-c", "pass"], check=True, close_fds=False)
        tell(store, "lost")
        store.get(di_store.Ref.parse("cd" * 20), timeout=120)
        check_object(view, 1, 1)
        writer.append({"x": 2})
        writer.close()


@pytest.mark.parametrize("how", ["dup", "proc", "attach", "list", "subprocess"])
def test_a_process_without_its_lock_is_not_dead(crew: Crew, store: Any, how: str) -> None:
    hand = start(crew, "lose_lock", store, how)
    pid = told(store, "lost")
    reaped = start(crew, "reap_hard", store)
    reaped.finish()
    found = client(store, pid)
    assert found is not None
    assert found["alive"]
    # What it pins stays although the object goes.
    store.delete([di_store.Ref.parse("ab" * 20)])
    for number in range(200):
        store.delete([store.put(np.full(9_000, number))])
    store.put(0, id="cd" * 20)
    hand.finish()
    assert store.table("t").stats()["inserts"] == 2
    assert store.check() == []


SCARCE = """
import os, resource, sys, di_store
from di_store import _core
name, pid = sys.argv[1], int(sys.argv[2])
store = di_store.attach(name, timeout=60)
arena = _core.Arena.open(name, 2, 0, 0, 60.0)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))  # what is open stays open
reaped = [arena.reap() for _ in range(20)]
state = [(client["alive"], client["state"]) for client in arena.stats()["clients"] if client["pid"] == pid]
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
print(sum(reaped), state)
"""


def test_running_out_of_descriptors_declares_nobody_dead(crew: Crew, store: Any) -> None:
    """Who lost its lock is looked up in /proc; where that fails, nothing follows from it."""
    hand = start(crew, "lose_lock", store, "dup")
    pid = told(store, "lost")
    done = subprocess.run([sys.executable, "-c", SCARCE, store.name, str(pid)], capture_output=True, text=True)
    assert done.stdout.strip() == "0 [(True, 'unknown')]", (done.stdout, done.stderr)
    assert client(store, pid) is not None
    store.put(0, id="cd" * 20)
    hand.finish()
    assert store.check() == []


def reap_hard(name: str) -> None:
    """In a child: whoever looks dead from here is settled."""
    with di_store.attach(name, timeout=60) as store:
        arena = arena_of(store)
        for _ in range(20):
            assert arena.reap() == 0
        assert store.check() == []


def refused(call: Callable[[], Any]) -> bool:
    """Whether it raises `StoreClosed`, if not at once then soon: calls look at their descriptor only now and then."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            call()
        except di_store.StoreClosed:
            return True
        except (di_store.Timeout, di_store.StoreFull):
            pass
    return False


def close_all(name: str, how: str) -> None:
    """In a child: close every descriptor, or put another file in its place; every call is refused, arrays stay."""
    store = di_store.attach(name, timeout=60)
    view = store.get(di_store.Ref.parse("ab" * 20))
    table = store.table("t")
    tell(store, "closing")
    if how == "closerange":
        os.closerange(3, 4096)
    else:
        other = os.open("/dev/null", os.O_RDWR)
        os.dup2(other, arena_of(store).fd_number)
    for call in (
        lambda: store.put(1),
        lambda: store.get(di_store.Ref.parse("ab" * 20)),
        lambda: store.contains(di_store.Ref.parse("ab" * 20)),
        lambda: store.keys(),
        lambda: table.insert({"x": 1}, timeout=1),
        lambda: table.sample(1, timeout=1),
        lambda: store.publish("w", 1),
    ):
        assert refused(call), "a call on a foreign descriptor was not refused"
    check_object(view, 1, 1)


@pytest.mark.parametrize("how", ["closerange", "dup2"])
def test_foreign_descriptors_are_refused(crew: Crew, store: Any, how: str) -> None:
    hand = start(crew, "close_all", store, how)
    hand.finish()
    assert store.get(store.put(3)) == 3
    arena_of(store).reap()
    assert client(store, hand.pid) is None
    assert store.check() == []


def reopen(name: str) -> None:
    """In a child: after its descriptors went, a store of another name can be made, nothing of the old is touched."""
    store = di_store.attach(name, timeout=60)
    os.closerange(3, 4096)
    with di_store.open(f"{name}-new", memory="16MiB") as new:
        assert new.get(new.put(1)) == 1
        assert refused(lambda: store.put(1))
    store.close()


def test_a_new_store_opens_after_closerange(crew: Crew, store: Any) -> None:
    start(crew, "reopen", store).finish()
    assert store.check() == []


# -- exec, exit, namespaces -------------------------------------------------------------------------------------------


def go_exec(name: str) -> None:
    """In a child: hold a view, an open writer and undelivered draws, then become another program that waits."""
    store = di_store.attach(name, timeout=60)
    view = store.get(di_store.Ref.parse("ab" * 20))
    writer = store.table("t").writer()
    writer.append({"x": 1})
    tell(store, "exec")
    program = "import signal; signal.pause()"
    os.execv(sys.executable, [sys.executable, "-c", program, str(len(str(view)))])


def test_a_process_that_execs_holds_nothing_of_the_store(crew: Crew, store: Any) -> None:
    """The program that took its place holds nothing of the store; what it held is settled while that program runs."""
    hand = start(crew, "go_exec", store)
    pid = told(store, "exec")
    crew.until(lambda: b"signal.pause" in command_line(pid), "exec")
    assert not [link for link in descriptors(pid) if "di-store" in link]
    assert store.get(store.put(1)) == 1
    store.table("t").insert({"x": 5}, timeout=60)
    arena_of(store).reap()
    assert hand.status is None
    assert client(store, pid) is None
    hand.kill()
    assert store.table("t").stats()["writers"] == 0
    assert store.check() == []
    assert store.stats()["pinned"] == 0


def command_line(pid: int) -> bytes:
    """Of a process."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def descriptors(pid: int) -> list[str]:
    """Where a process's descriptors lead."""
    folder = f"/proc/{pid}/fd"
    found = []
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed: a program that begins reads files
            found.append(os.readlink(f"{folder}/{number}"))
    return found


def leave(name: str, how: str) -> None:
    """In a child: end with everything open."""
    store = di_store.attach(name, timeout=60)
    held = [store.get(di_store.Ref.parse("ab" * 20))]
    writer = store.table("t").writer()
    writer.append({"x": 1})
    draws = iter(store.table("t").loader(4, prefetch=3))
    next(draws)
    tell(store, "leaving")
    assert held
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "_exit":
        os._exit(0)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "thread":
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("how", ["kill", "_exit", "segv", "thread", "return"])
def test_every_exit_path_releases_everything(crew: Crew, store: Any, how: str) -> None:
    """Pins, writers and draws of who left are settled."""
    hand = start(crew, "leave", store, how)
    told(store, "leaving")
    hand.join()
    arena_of(store).reap()
    assert client(store, hand.pid) is None
    stats = store.table("t").stats()
    assert stats["writers"] == 0
    assert stats["held"] == 0
    assert store.check() == []
    assert store.stats()["pinned"] == 0
    store.delete([di_store.Ref.parse("ab" * 20)])
    assert store.stats()["pending"] == 0


def in_namespace(name: str) -> None:
    """In a child: a process of another pid namespace holds a view and is killed there."""
    program = (
        "import di_store, os, sys\n"
        "pid = os.fork()  # the first process of a namespace takes no SIGKILL from within\n"
        "if pid:\n"
        "    sys.exit(os.WTERMSIG(os.waitpid(pid, 0)[1]))\n"
        f"store = di_store.attach({name!r}, timeout=60)\n"
        f"view = store.get(di_store.Ref.parse({'ab' * 20!r}))\n"
        f"store.put(os.getpid(), id={b'inside'.hex().ljust(40, '0')!r})\n"
        f"store.get(di_store.Ref.parse({'cd' * 20!r}), timeout=120)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    flags = ["--pid", "--fork"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--pid", "--fork"]
    done = subprocess.run(["unshare", *flags, "--kill-child", sys.executable, "-c", program])
    assert done.returncode == signal.SIGKILL


def test_processes_of_another_pid_namespace_are_recognised(crew: Crew, store: Any) -> None:
    """Pids mean nothing across namespaces; the record lock does."""
    hand = start(crew, "in_namespace", store)
    inside = told(store, "inside")
    assert inside < 10
    arena_of(store).reap()
    found = [entry for entry in store.stats()["clients"] if entry["alive"] and entry["pid"] == inside]
    assert found
    assert store.stats()["pinned"] > 0
    store.put(0, id="cd" * 20)
    hand.finish()
    arena_of(store).reap()
    assert client(store, inside) is None
    assert store.check() == []
    assert store.stats()["pinned"] == 0


INSIDE = """
import di_store, os, sys
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("q")
print(os.getpid(), flush=True)
table.insert({"x": 2}, timeout=600)
"""
NAMESPACE = ("--pid", "--fork") if os.geteuid() == 0 else ("--user", "--map-root-user", "--pid", "--fork")


def child_of(pid: int) -> int:
    """The pid of a process's first child, as it is called here."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


def test_pids_of_another_namespace_are_not_looked_up_here(store: Any) -> None:
    """Pid 1 of a container is not our pid 1: its state is unknown, its record lock says that it lives."""
    table = store.create_table("q", capacity=10, schema={"x": di_store.Spec((), "i8")}, limiter=di_store.Queue(1))
    table.insert({"x": 1})
    with Program(INSIDE, store.name, prefix=("unshare", *NAMESPACE, "--kill-child")) as program:
        inner, outer = int(program.line()), child_of(program.pid)
        until(lambda: store.stats()["waiters"], "the insert to wait")
        (far,) = [found for found in store.stats()["clients"] if found["slot"] != arena_of(store).slot]
        assert (far["pid"], far["alive"], far["state"]) == (inner, True, "unknown")
        assert far["other_pid_namespace"]
        assert far["page_tables"] == 0
        assert far["waiting"]["table"] == "q"
        shown = read_json("inspect", store.name)
        (seen,) = [each for each in shown["clients"] if each["pid"] == inner and each["state"] == "unknown"]
        assert seen["process"] == f"{inner} (in another pid namespace)"
        (waiter,) = shown["waiters"]
        assert waiter["process"] == seen["process"]
        assert len(read_json("status")["stores"]) >= 1
        # `rm` names who holds it by the pid that one sees from here.
        refusal = fails(1, "rm", store.name)
        assert str(outer) in refusal
        assert f"pid {inner} " not in refusal
    until(lambda: arena_of(store).reap() == 0 and len(store.stats()["clients"]) == 1, "its end to be seen")


STOP_INSIDE = """
import di_store, os, sys
from di_store import _core
pid = os.fork()  # the first process of a namespace does not stop itself
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
store = di_store.attach(sys.argv[1], timeout=60)
_core.arm_fault("table.draw_item:1:stop")
print(os.getpid(), flush=True)
store.table("t").sample(1, timeout=60)
"""


def test_a_culprit_in_another_namespace_is_marked_as_such(store: Any) -> None:
    table = store.table("t")
    table.insert({"x": 1})
    with Program(STOP_INSIDE, store.name, prefix=("unshare", *NAMESPACE, "--kill-child")) as program:
        inner, outer = int(program.line()), child_of(child_of(program.pid))
        until(lambda: status(outer)["State"].startswith("T"), "the process to stop")
        with pytest.raises(di_store.Timeout, match=f"pid {inner} in another pid namespace"):
            table.sample(1, timeout=1)
        os.kill(outer, signal.SIGCONT)
        program.finish()
    assert len(table.sample(1, timeout=60)) == 1


def hold(name: str) -> None:
    """In a child: hold the store until killed."""
    with di_store.attach(name, timeout=60) as store:
        view = store.get(di_store.Ref.parse("ab" * 20))
        store.put(os.getpid(), id=b"holds".hex().ljust(40, "0"))
        store.get(di_store.Ref.parse("ee" * 20), timeout=600)
        assert view is not None


def test_a_store_outlives_its_creator(crew: Crew, store_name: Callable[[], str]) -> None:
    """It lives as long as somebody holds it, and is gone with the last, also by SIGKILL."""
    name = store_name()
    creator = crew.start("crash.test_liveness:create_and_wait", name)
    with di_store.attach(name, timeout=60) as store:
        told(store, "created")
        holder = start(crew, "hold", store)
        told(store, "holds")
        creator.kill()
        assert store.get(store.put("still")) == "still"
        assert holder.status is None
    again = di_store.attach(name)
    check_object(again.get(di_store.Ref.parse("ab" * 20)), 1, 1)
    again.close()
    holder.kill()
    assert holder.status == KILLED
    until(partial(is_gone, name), "the store's end")


def create_and_wait(name: str) -> None:
    """In a child: make a store and wait to be killed."""
    with di_store.open(name, memory="16MiB") as store:
        store.put(object_value(1, 1), id="ab" * 20)
        tell(store, "created")
        store.get(di_store.Ref.parse("ee" * 20), timeout=600)
