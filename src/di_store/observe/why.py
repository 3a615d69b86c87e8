"""Why a job is slow: what a store's statistics show over some seconds, the cause first. Takes no locks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from di_store.base.sizes import format_size
from di_store.observe.lookback import NO_WAITS, Change, Lookback, Waits, is_near
from di_store.observe.report import StoreReport
from di_store.observe.stats import AGENT
from di_store.observe.threads import CALLS, Threads, ThreadUse

LEAST_SHARE = 0.15
"""A wait that takes less of the time is no cause."""
CALLS_A_SECOND = 50.0
"""A remote client that makes fewer calls does not ask at each step."""
NETWORK_SECONDS = 0.0002
"""Estimate of the time in which a call and its answer travel."""
BUSY = 0.5  # of the looks: a thread that computes


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Attributes:
        cause: one of `CAUSES`.
        sentence: who waits for whom and for what, in words.
        share: of the time that was looked at, or of the items, as the sentence says.
        help: the one change that would help, in words.
        pids: the processes that cause it, or that wait if it is not known who causes it.
    """

    cause: str
    sentence: str
    share: float
    help: str
    pids: tuple[int, ...]


class Samples:
    """Reports of one store, taken one after the other.

    For good findings take several a second for some seconds, or one a second for a minute: a wait is seen if a report
    meets it.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        """Begin without reports; those that are older than `seconds` are forgotten."""
        self._seconds = seconds
        self._reports: deque[tuple[float, StoreReport]] = deque()
        self._threads = Threads(seconds)

    def add(self, report: StoreReport) -> None:
        """Add a report of the store, taken now. Also looks at the threads of the store's processes."""
        now = time.monotonic()
        if self._reports and self._reports[-1][1]["uuid"] != report["uuid"]:  # another store, or it cannot be read
            self._reports.clear()
        if report["error"] is not None:
            return
        self._reports.append((now, report))
        while now - self._reports[0][0] > self._seconds:
            self._reports.popleft()
        self._threads.look(now, [client["pid"] for client in report["clients"] if is_near(client)])

    def findings(self) -> list[Finding]:
        """The causes, the true one first; a consequence of another cause is left out. Never empty."""
        if len(self._reports) < 2:
            return [Finding("nothing", "Too few reports so far.", 0.0, "Wait some seconds.", ())]
        seconds = self._reports[-1][0] - self._reports[0][0]
        seen = Lookback(seconds, [report for _, report in self._reports], self._threads)
        found = [each for rule in _RULES for each in rule(seen)]
        if not any(each.cause in _EXPLAINS for each in found):
            found += [each for rule in _GENERAL for each in rule(seen)]
        return found or [_nothing(seen)]


# -- causes that explain all waits ---------------------------------------------------------------------------------


def _stopped(seen: Lookback) -> Iterator[Finding]:
    waits = [waiter for report in seen.reports for waiter in report["waiters"]]
    unjudged = [table.name for table in seen.tables() if _unjudged(seen, table).pids]
    for client in seen.last["clients"]:
        if not client["state"].startswith("stopped"):
            continue
        share = seen.state_share(client, "stopped")
        held = f"pid {client['pid']}, stopped"
        behind = {each["pid"] for each in waits if (each["culprit"] or "").startswith(held)} - {client["pid"]}
        uses = any(client["slot"] in table.last["users"] for table in seen.tables())
        if behind:
            what = f". It holds what {_named('process', sorted(behind))} needs"
        elif uses or client["roles"]:
            what = "; others wait for its work"
        elif unjudged:  # calls that fill them leave no trace of their process
            what = f". Perhaps it fills the late columns for which items of table {unjudged[0]!r} wait"
        else:
            continue
        who = f"Process {client['process']} is {client['state']} ({share:.0%} of the time)"
        help = f"`kill -CONT {client['pid']}` resumes it, `kill -9 {client['pid']}` frees all that it holds."
        yield Finding("stopped", f"{who}{what}.", share, help, (client["pid"],))


def _judge(seen: Lookback) -> Iterator[Finding]:
    for table in seen.tables():
        waits = _unjudged(seen, table)
        if not waits.pids:
            continue
        items = "groups with all answers" if table.is_grouped else "items"
        came = f"{table.inserts:,} got theirs" if table.inserts else "none got theirs"
        died = seen.last["deaths"]
        ended = f" {died} process{'' if died == 1 else 'es'} of this store died so far." if died else ""
        text = (
            f"{_who(waits, 'learner')} for items of table {table.name!r}, where {table.unjudged:,} {items} wait for "
            f"late columns: in {seen.seconds:.0f} s {came}.{ended}"
        )
        help = "Look for the process that fills the late columns (`Table.update`), and start it again or start more."
        yield Finding("judge", text, waits.share, help, waits.pids)


def _group(seen: Lookback) -> Iterator[Finding]:
    for table in seen.tables():
        ended = table.last["groups_dropped"] - table.first["groups_dropped"]
        waits = _stuck(seen, table, lambda each: each.lacks, ended)
        if not waits.pids or table.unjudged > table.lacks:
            continue
        text = (
            f"{_who(waits, 'learner')} for items of table {table.name!r}, where {table.lacks:,} groups lack answers: "
            f"in {seen.seconds:.0f} s {table.inserts:,} became complete."
        )
        help = "`Table.incomplete()` lists the groups: give their prompts out again, or start the lost rollout worker."
        yield Finding("group", text, waits.share, help, waits.pids)


def _unjudged(seen: Lookback, table: Change) -> Waits:
    """The waits for items that lack late columns only."""
    return _stuck(seen, table, lambda each: each.unjudged)


def _stuck(seen: Lookback, table: Change, lacking: Callable[[Change], int], ended: int = 0) -> Waits:
    """The waits for items of a table in which more items lack something than become whole; else `NO_WAITS`."""
    waits = seen.waits("items", table.name)
    stuck = not table.inserts or table.grew(lacking) + ended > table.inserts
    return waits if lacking(table) and stuck and waits.share >= LEAST_SHARE else NO_WAITS


def _stale(seen: Lookback) -> Iterator[Finding]:
    for table in seen.tables():
        dropped = table.last["stale_dropped"] - table.first["stale_dropped"]
        share = dropped / max(dropped, table.inserts, 1)
        if share < LEAST_SHARE:
            continue
        text = (
            f"{dropped:,} items of table {table.name!r} were dropped as older than "
            f"max_staleness={table.last['max_staleness']}, while {table.inserts:,} came: {share:.0%}."
        )
        users = seen.others(table, ())
        help = "More learners, actors that take new weights sooner, or a larger max_staleness."
        yield Finding("stale", text, min(share, 1.0), help, users)


def _room(seen: Lookback) -> Iterator[Finding]:
    """Waits for room: memory is held by readers, or the drive is slow, or memory is short."""
    waits, memory = seen.waits("room"), seen.last["memory"]
    if waits.share < LEAST_SHARE:
        return
    held = memory["pinned"] + memory["pending"] + sum(table["held_bytes"] for table in seen.last["tables"])
    rest = max(0, memory["live"] - memory["reserved"])
    text = f"{_who(waits)} for room: {waits.reason}."
    if held > rest:
        client = max(seen.last["clients"], key=lambda each: each["pinned"], default=None)
        most = f", {format_size(client['pinned'])} of them by pid {client['process']}" if client else ""
        text += f" {format_size(held)} of {format_size(seen.last['budget'])} are held by readers{most}."
        help = "Keep fewer batches and values: copy what is needed for longer, and drop the rest."
        yield Finding("held", text, waits.share, help, (client["pid"],) if client else ())
        return
    disk = seen.last["disk"]
    if disk is not None:
        first = seen.first["disk"]
        rate = max(0, disk["written"] - (first["written"] if first else 0)) / seen.seconds
        text += f" The drive takes {format_size(round(rate))} a second."
        help = "A faster drive, `compress=`, more `memory=`; if `write_budget=` is used up, raise it (`Store.resize`)."
        yield Finding("disk", text, waits.share, help, waits.pids)
        return
    text += f" {format_size(memory['free'])} of {format_size(seen.last['budget'])} are free."
    help = "Raise `memory=` (`Store.resize`), delete objects that nobody needs, or give the store a `disk=`."
    yield Finding("memory", text, waits.share, help, waits.pids)


def _evicted(seen: Lookback) -> Iterator[Finding]:
    for table in seen.tables():
        evicted = table.last["evicted_for_room"] - table.first["evicted_for_room"]
        share = evicted / max(evicted, table.inserts, 1)
        if share < LEAST_SHARE:
            continue
        text = f"{evicted:,} items of table {table.name!r} were removed for lack of bytes before capacity was reached."
        help = "A larger `max_bytes=` of the table, or `memory=` of the store."
        yield Finding("memory", text, share, help, seen.others(table, ()))


def _drive(seen: Lookback) -> Iterator[Finding]:
    """Batches that come from the drive."""
    first, last = seen.first["disk"], seen.last["disk"]
    if first is None or last is None or last["reads"] <= first["reads"]:
        return
    drawn = [sum(table["samples"] for table in report["tables"]) for report in (seen.first, seen.last)]
    cold = [(1 - (disk["hit_rate"] or 0.0)) * count for disk, count in zip((first, last), drawn, strict=True)]
    share = (cold[1] - cold[0]) / max(1, drawn[1] - drawn[0])
    loaded, reads, size = (last[key] - first[key] for key in ("loaded", "reads", "read"))
    what = f"{share:.0%} of the items drawn lay on the drive"
    if loaded:
        share = (last["stalled_seconds"] - first["stalled_seconds"]) / seen.seconds
        what = f"Loaders wait {share:.0%} of the time for batches from the drive"
    if share < LEAST_SHARE:
        return
    rate = f"{reads / seen.seconds:,.0f} reads and {format_size(round(size / seen.seconds))} a second"
    help = "More `memory=`, a loader with a larger `prefetch=`, `columns=`, or a faster drive."
    users = sorted({pid for table in seen.tables() for pid in seen.others(table, seen.waits("limiter").pids)})
    yield Finding("disk", f"{what}: {rate}.", min(share, 1.0), help, tuple(users))


# -- causes within one process -------------------------------------------------------------------------------------


def _gil(seen: Lookback) -> Iterator[Finding]:
    """Beside a busy main thread no other counts: a loader's thread has time while the learner computes."""
    waiting = {waiter["thread"] for waiter in seen.last["waiters"]}
    for client in filter(is_near, seen.last["clients"]):
        pid = client["pid"]
        uses = seen.threads.uses(pid)
        kept = [use for use in uses if use.gil >= LEAST_SHARE and use.thread not in waiting]
        waits = max(kept, key=lambda use: (use.thread == pid, use.gil), default=None)
        busy = max((use for use in uses if use is not waits), key=lambda use: use.runs, default=None)
        if waits is None or busy is None or busy.runs < BUSY or busy.thread == pid or AGENT in client["roles"]:
            continue
        text = (
            f"Thread {waits.thread} of process {pid} waits {waits.gil:.0%} of the time for Python's lock "
            f"(the GIL), while thread {busy.thread} computes: all calls of the process are slow."
        )
        help = f"Move the work of thread {busy.thread} to a process; `py-spy dump --pid {pid}` shows it."
        yield Finding("gil", text, waits.gil, help, (pid,))


def _remote(seen: Lookback) -> Iterator[Finding]:
    for client in filter(is_near, seen.last["clients"]):
        asking = [
            use
            for use in seen.threads.uses(client["pid"])
            if use.name.startswith(CALLS) and use.sleeps >= CALLS_A_SECOND and _asks(use) >= LEAST_SHARE
        ]
        if not asking or AGENT not in client["roles"]:
            continue
        most = max(asking, key=_asks)
        several = f"Each of {len(asking)} remote clients" if len(asking) > 1 else "A remote client"
        text = (
            f"{several} makes up to {max(use.sleeps for use in asking):,.0f} calls a second, and waits for the answers "
            f"{_asks(most):.0%} of the time (port {most.name.partition(':')[2]})."
        )
        help = (
            "Ask less often: append without `flush`, ask for weights with `latest(newer_than=)`, draw with a loader, "
            "several steps a call."
        )
        yield Finding("remote", text, _asks(most), help, (client["pid"],))


def _asks(use: ThreadUse) -> float:
    """Share of the time in which the client of an agent's thread waits for answers."""
    return min(1.0, use.runs + use.sleeps * NETWORK_SECONDS)


# -- one side of a table waits for the other -----------------------------------------------------------------------


def _sides(seen: Lookback) -> Iterator[Finding]:
    for table in seen.tables():
        writers, learners = seen.waits("limiter", table.name), seen.waits("items", table.name)
        samples = max(0, table.last["samples"] - table.first["samples"])
        rates = (
            f"table {table.name!r} took {table.inserts / seen.seconds:,.0f} and gave "
            f"{samples / seen.seconds:,.0f} items a second"
        )
        if min(writers.share, learners.share) >= LEAST_SHARE:
            text = (
                f"{_named('writer', writers.pids).capitalize()} and {_named('learner', learners.pids)} wait in turn, "
                f"{writers.share:.0%} and {learners.share:.0%} of the time: {table.last['limiter']['kind']} lets few "
                f"calls pass at once; {rates}."
            )
            ahead = (table.last["limiter"]["max_diff"] - table.last["limiter"]["min_diff"]) / 2
            help = (
                f"A larger `tolerance`, so that min_size · ratio · tolerance, now {ahead:,.0f} samples, is several "
                "batches; or larger batches, if the calls themselves take little time."
            )
            pids = tuple(sorted({*writers.pids, *learners.pids}))
            yield Finding("limiter", text, min(1.0, writers.share + learners.share), help, pids)
        elif writers.share >= LEAST_SHARE:
            slow = seen.others(table, writers.pids)
            text = f"{_who(writers, 'writer')} for the {_named('learner', slow)}: {rates}. {writers.reason}."
            help = "A faster learner or one more; else a lower `ratio`, or `MinSize`, which never makes writers wait."
            yield Finding("learner", text, writers.share, help, slow or writers.pids)
        elif learners.share >= LEAST_SHARE and "pace: " in learners.reason:
            text = f"{_who(learners, 'worker')} for the trainer: {rates}. {learners.reason}."
            help = "A faster trainer, or a larger `ahead` of the `Pace`; fewer workers would do as much."
            yield Finding("learner", text, learners.share, help, learners.pids)
        elif learners.share >= LEAST_SHARE:
            slow = seen.others(table, learners.pids)
            text = f"{_who(learners, 'learner')} for the {_named('actor', slow)}: {rates}. {learners.reason}."
            help = "More actors, several steps a call (`lanes=`), a higher `ratio`, or a smaller `min_size`."
            yield Finding("actor", text, learners.share, help, slow or learners.pids)


def _other_waits(seen: Lookback) -> Iterator[Finding]:
    for kind in ("lock", "object", "weights", "memory", "table"):
        waits = seen.waits(kind)
        if waits.share < 0.5:
            continue
        behind = f" Held up by {', '.join(waits.culprits)}." if waits.culprits else ""
        text = f"{_who(waits)}: {waits.reason}.{behind}"
        help = "Look at the process that should bring it; for a lock, append and draw several items with one call."
        yield Finding("wait", text, waits.share, help, waits.pids)


def _who(waits: Waits, role: str = "process") -> str:
    """Such as "Learner (pid 12) waits 90% of the time"."""
    verb = "waits" if len(waits.pids) == 1 else "wait"
    return f"{_named(role, waits.pids).capitalize()} {verb} {waits.share:.0%} of the time"


def _named(role: str, pids: Collection[int]) -> str:
    """Such as "writers (pids 12, 13)"; at most five are named."""
    several = f"{role}es" if role.endswith("s") else f"{role}s"
    if not pids:
        return several
    shown = ", ".join(map(str, list(pids)[:5])) + (f" and {len(pids) - 5} more" if len(pids) > 5 else "")
    return f"{role} (pid {shown})" if len(pids) == 1 else f"{several} (pids {shown})"


def _nothing(seen: Lookback) -> Finding:
    samples = sum(table.last["samples"] - table.first["samples"] for table in seen.tables())
    inserts = sum(table.inserts for table in seen.tables())
    text = (
        f"Nothing waits: the store is not the cause. In {seen.seconds:.0f} s it took {inserts:,} items and gave "
        f"{samples:,}."
    )
    help = (
        "Look at the processes themselves: `py-spy dump --pid`, `top -H`; the GPU, the data loader, the environment; "
        "large batches (`columns=`, a loader)."
    )
    return Finding("nothing", text, 0.0, help, ())


_EXPLAINS = ("stopped", "judge", "group", "stale", "held", "disk", "memory")
CAUSES = (*_EXPLAINS, "gil", "remote", "limiter", "learner", "actor", "wait", "nothing")
"""All causes, in the order in which they are found."""
_RULES = (_stopped, _judge, _group, _stale, _room, _evicted, _drive, _gil, _remote)
_GENERAL = (_sides, _other_waits)
