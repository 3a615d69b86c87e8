"""A call from within another one of the same thread is refused; a thread of a forked child is another thread."""

from __future__ import annotations

import threading

import pytest
from pains import Program

from di_store.base.errors import StoreError
from di_store.client.turns import refusing_calls_inside

PROGRAM = """
import os, threading
from di_store.client.turns import refusing_calls_inside

class Handle:
    @refusing_calls_inside("inside", "later")
    def call(self, work):
        return work()

handle, inside, idents = Handle(), threading.Event(), []

def wait():
    idents.append(threading.get_ident())
    inside.set()
    threading.Event().wait()

threading.Thread(target=handle.call, args=(wait,), daemon=True).start()
inside.wait()
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    made = []
    def again():
        made.append((threading.get_ident(), handle.call(lambda: 7)))
    for _ in range(50):  # sooner or later one has the number of the parent's thread
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
    assert idents[0] in [each for each, _ in made], (idents, made)
    os._exit(0 if len(made) == 50 else 1)
os._exit(0)
"""


class Handle:
    @refusing_calls_inside("a call from within another", "later")
    def call(self, other: Handle | None) -> int:
        return 1 if other is None else 1 + other.call(None)


def test_reentrant_calls_are_refused() -> None:
    one, two = Handle(), Handle()
    with pytest.raises(StoreError, match="from within another"):
        one.call(one)
    assert one.call(two) == 2
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(one.call(two)))
    thread.start()
    thread.join()
    assert found == [2]


def test_a_forked_child_is_not_inside_the_parents_call() -> None:
    with Program(PROGRAM) as program:
        assert program.line() == "0"
