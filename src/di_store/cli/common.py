"""Common code of the commands: finding a store, waiting for locks, stopping, and printing JSON."""

from __future__ import annotations

import json
import math
import os
import select
import shlex
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any

import click
import numpy as np

import di_store
from di_store import observe
from di_store.base.errors import StoreError, StoreNotFound, Timeout
from di_store.base.tree import did_you_mean
from di_store.store.opening import explained

ATTACH_SECONDS = 5.0
"""How long attaching may wait for another process that attaches at the same time."""

LOCK_SECONDS = 5.0
"""How long a command that reads items waits for a lock."""

MOST_ITEMS = 2**31 - 1
MOST_SECONDS = 1e6


class Seconds(click.FloatRange):
    """Seconds up to `MOST_SECONDS`, or another maximum. NaN is refused, because it is in no range."""

    name = "seconds"

    def __init__(self, least: float, most: float = MOST_SECONDS) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error if the text is no number in the range."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found


class InputFile(click.Path):
    """A file to read, or a pipe. A path of a plain file, because reading a device may never end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error if something else lies there."""
        found = super().convert(value, param, ctx)
        if os.path.exists(found) and not (os.path.isfile(found) or stat.S_ISFIFO(os.stat(found).st_mode)):
            self.fail(f"{value!r} is not a file", param, ctx)
        return found


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def timeout_option(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--timeout`, for commands that take locks."""
    return click.option(
        "--timeout",
        "timeout_seconds",
        type=Seconds(0),
        default=seconds,
        show_default=True,
        help="Seconds to wait for a process that holds a lock.",
    )


def interval_option(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--interval`, for commands that repeat."""
    return click.option(
        "--interval",
        "interval_seconds",
        type=Seconds(0.1, 3600),
        default=seconds,
        show_default=True,
        help="Seconds between two refreshes.",
    )


# -- completion in a shell -----------------------------------------------------------------------------------------


def store_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of stores that begin so, for `shell_complete=`."""
    return _words(lambda: (each.name for each in di_store.list_stores()), begun)


def table_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of tables of the command's store that begin so, for `shell_complete=`."""
    store = context.params["store"]
    return _words(lambda: (table["name"] for each in observe.reports(store) for table in each["tables"]), begun)


def _words(names: Callable[[], Iterable[str]], begun: str) -> list[str]:
    """The names that begin so and are one word in every shell; none if the stores cannot be listed."""
    with suppress(StoreError, OSError):
        return sorted({name for name in names() if name.startswith(begun) and shlex.quote(name) == name})
    return []


# -- finding a store -----------------------------------------------------------------------------------------------


@contextmanager
def attached(name: str, *, readonly: bool = False) -> Iterator[di_store.Store]:
    """Attach to the store `name`, and close it at the end, so that a command does not keep it alive.

    Args:
        name: name of the store.
        readonly: for a command that only looks: a handle that writes would write durable tables when it is closed.

    Raises:
        StoreNotFound: no process of this user holds it; the message lists the existing names.
    """
    known = sorted({info.name for info in di_store.list_stores()})
    if name not in known:
        raise no_such_store(name, known)
    store = di_store.open(name, mode="r") if readonly else di_store.attach(name, timeout=ATTACH_SECONDS)
    try:
        yield store
    finally:
        store.close()


def no_such_store(name: str, known: Sequence[str]) -> StoreError:
    """The error for a name that no live process holds, or none that this user may see."""
    if not known:
        error = StoreNotFound(
            f"no process of this user holds a store named {name!r}, nor any other store",
            remedy="a store ends with the last process that holds it; `di-store hold NAME` keeps one alive",
        )
    else:
        error = StoreNotFound(
            f"no process of this user holds a store named {name!r}",
            remedy=f"`di-store status` shows the stores of this machine{did_you_mean(name, known)}",
        )
    return explained(error)


def pids_text(pids: Sequence[int]) -> str:
    """``pid 12`` or ``pids 12, 13 and 14``."""
    if len(pids) == 1:
        return f"pid {pids[0]}"
    return f"pids {', '.join(map(str, pids[:-1]))} and {pids[-1]}" if pids else "no pid"


# -- waiting -------------------------------------------------------------------------------------------------------


@contextmanager
def time_limit(store: di_store.Store, seconds: float, what: str) -> Iterator[None]:
    """After `seconds`, end a call that waits for a lock of `store`: a stopped process may hold the lock for ever.

    A call that does not wait may take longer. Uses SIGALRM, so it works in the main thread only.

    Raises:
        Timeout: the error names the process that holds the lock.
    """

    def look(number: int, frame: FrameType | None) -> None:
        stats = store.stats()
        me = [client["slot"] for client in stats["clients"] if client["self"]]
        for waiter in stats["waiters"]:
            if waiter["slot"] in me:
                raise _late(f"{what} took more than {seconds:g} s", waiter["culprit"], waiter["culprit_name"])

    before = signal.signal(signal.SIGALRM, look)
    # Repeated every 0.1 s, since at a given moment the call may be between two locks.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _late(message: str, pid: int | None, name: str | None) -> Timeout:
    """The error for a wait for a lock; `pid` and `name`: of the process that holds it."""
    reason, remedy = "it waits for a lock", "--timeout waits longer"
    if name is not None and name.endswith("stopped"):
        remedy = f"`kill -CONT {pid}` resumes that process; {remedy}"
    return Timeout(message, reason, name, remedy=remedy)


class Stop:
    """Ends a command that runs until Ctrl-C or SIGTERM, without an exception. Use `installed` only once."""

    def __init__(self) -> None:
        # Not a threading.Event: a handler that came while its lock is held would wait for the code that it interrupts.
        self._asked, self._ask = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._look = select.poll()
        self._look.register(self._asked, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most `seconds`. Returns whether one has arrived."""
        return bool(self._look.poll(seconds * 1000))

    @contextmanager
    def installed(self) -> Iterator[Stop]:
        """Handle the signals inside the block; the former handlers return after it."""
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._asked)
            os.close(self._ask)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # one byte is as good as many
            os.write(self._ask, b"!")


@contextmanager
def stops_between_calls(alone: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """Inside the block, Ctrl-Z stops this process only while it holds no lock of a store, which others would wait for.

    Python handles signals between two calls, or when a call is about to wait, and then the main thread holds no lock.

    Args:
        alone: a block in which no other thread of this process holds one; entering it waits for them.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        with alone():
            os.kill(os.getpid(), signal.SIGSTOP)

    first = threading.current_thread() is threading.main_thread()
    if not first or signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:  # of a shell without job control
        yield
        return
    before = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def print_json(value: object) -> None:
    """Print one line of JSON; arrays become lists, other values that JSON lacks become their repr."""
    print(json.dumps(value, default=_as_json), flush=True)


def _as_json(value: object) -> object:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)
