"""How requests open a store: through the processes that held it at the last look."""

from __future__ import annotations

from collections.abc import Callable

from pains import Program

JOB = """
import sys
import di_store
name, items = sys.argv[1:]
store = di_store.open(name, memory="16MiB") if items else di_store.attach(name)
if items:
    store.create_table("t", capacity=100).extend({"n": [0] * int(items)})
print("ready", flush=True)
sys.stdin.readline()
"""
REQUEST = """
import sys
from di_store import _core
from di_store.dashboard.watch import StoreWatch
watch = StoreWatch([sys.argv[1]])
print("looked", flush=True)
_core.arm_fault(sys.stdin.readline().strip())
with watch.attached(sys.argv[1]) as store:
    print(len(store.table("t")), flush=True)
"""


def job(name: str, items: object = "") -> Program:
    """A process that makes the store with so many items, or attaches to it, and ends when it is told to."""
    made = Program(JOB, name, items)
    assert made.line() == "ready"
    return made


def looker(name: str) -> Program:
    """A dashboard that has looked at the store once, and then serves one request."""
    made = Program(REQUEST, name)
    assert made.line() == "looked"
    return made


def test_a_request_looks_through_no_processes(store_name: Callable[[], str]) -> None:
    name = store_name()
    with job(name, 3), looker(name) as request:
        request.say("os.find_holders:1")  # that look kills the process
        assert request.line() == "3"
        request.finish()


def test_a_request_finds_a_store_that_only_others_hold_by_now(store_name: Callable[[], str]) -> None:
    name = store_name()
    with job(name, 3) as first, looker(name) as request, job(name):
        first.finish()
        request.say()
        assert request.line() == "3"
        request.finish()


def test_a_request_finds_a_new_store_of_that_name(store_name: Callable[[], str]) -> None:
    name = store_name()
    with job(name, 3) as first, looker(name) as request:
        first.finish()
        with job(name, 5):
            request.say()
            assert request.line() == "5"
            request.finish()
