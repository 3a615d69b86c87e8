"""Storms: forks by the dozen with live views, processes that attach and leave, whole interpreters that come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import di_store
from soak.context import BUSY, Context, Turns
from soak.stamps import PLACES, Press, check_object, object_id

VISIT = """
import sys, di_store
from soak.stamps import check_object
with di_store.attach(sys.argv[1], timeout=60) as store:
    for ref in store.keys(n=4):
        try:
            check_object(store.get(ref), ref.id)
        except (di_store.ObjectNotFound, di_store.Timeout):
            pass
    assert store.table("notes").stats()["inserts"] >= 0
"""
"""A program that somebody starts in another terminal."""
MOST = 24
"""Children of one storm."""


def forker(context: Context) -> Turns:
    """Fork with live views; children check them, some put and delete, some are killed in the middle of it."""
    press = Press(100_000)
    while True:
        held: Any = []
        for _ in range(3):
            size = context.rng.choice((300, 9_000, 90_000))
            name = object_id(context.rng.randrange(PLACES), context.row, context.serial(), size)
            context.store.put(press.value(name), id=name, timeout=context.terms.wait)
            with suppress(di_store.ObjectNotFound):  # a churner was faster
                held.append((context.store.get(name), name))
            context.store.delete(name)
        storm(context, held, context.rng.randrange(4, MOST + 1))
        for view, name in held:
            check_object(view, name)
        held = view = None
        yield True


def storm(context: Context, held: list[tuple[Any, str]], children: int) -> None:
    """One storm: they all live at once, some die early, all are gone at the end."""
    gate, ours = os.pipe()  # closed by our end or our death: nobody stays behind
    pids = []
    for child in range(children):
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _child(context, held, gate, child)
        pids.append(pid)
    os.close(gate)
    for pid in pids:
        if context.rng.random() < 0.4:
            os.kill(pid, signal.SIGKILL)
    os.close(ours)
    for pid in pids:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), f"a child of a fork ended with {status}"
    context.count(children)


def _child(context: Context, held: list[tuple[Any, str]], gate: int, number: int) -> None:
    """A forked process; it never returns."""
    code = 1
    try:
        for view, name in held:
            check_object(view, name)
        with suppress(*BUSY):
            if number % 3 == 0:
                name = object_id(PLACES - 1, context.row, os.getpid() << 32 | time.monotonic_ns() & 0xFFFFFFFF, 5_000)
                context.store.put(Press(5_000).value(name), id=name, timeout=context.terms.wait)
                check_object(context.store.get(name), name)
                context.store.delete(name)
            elif number % 3 == 1:
                context.store.stats()
        os.read(gate, 1)
        code = 0
    except di_store.ObjectNotFound:
        code = 0  # somebody else has deleted it
    finally:
        if code:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
        os._exit(code)


def visitor(context: Context) -> Turns:
    """Attach, look and leave, each time as another client; now and then with interpreters of its own."""
    name = context.name
    context.store.close()
    while True:
        for _ in range(20):
            with suppress(*BUSY), di_store.attach(name, timeout=60) as store:
                for ref in store.keys(n=2):
                    with suppress(di_store.ObjectNotFound):
                        check_object(store.get(ref), ref.id)
            context.count()
            yield True
        programs = [
            subprocess.Popen([sys.executable, "-c", VISIT, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for _ in range(2)
        ]
        for program in programs:
            out, _ = program.communicate(timeout=120)
            assert program.returncode == 0, f"exit status {program.returncode}: {out.decode()}"
            context.count()
            yield True
