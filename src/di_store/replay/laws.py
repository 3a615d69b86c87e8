"""The terms of a draw, and draws by a law of the caller's: of chosen items (`keys=`), or up to a sum (`budget=`)."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import numpy as np

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, ObjectNotFound, Timeout, shown
from di_store.base.lacks import Declares, Lack, check_option
from di_store.policy.views import Group
from di_store.replay.batch import Batch, check_out, host_array, key_array, wrap_ragged
from di_store.replay.handle import TableHandle
from di_store.replay.lease import lease_seconds
from di_store.replay.sampling import Law, Terms, check_n
from di_store.replay.splitting import sizes_of

NO_LAWS = dict.fromkeys(
    ("keys", "probabilities", "budget"),
    Lack(
        "is for tables in this process's memory",
        "use it in a process on the table's machine: di_store.attach(NAME).table()",
    ),
)
"""The options that tables elsewhere lack."""
_OF_BETA = "it is the exponent of the importance weights"
_GONE, _GONE_OF_GROUPS = (
    "no longer in the table, or stale",
    "no longer in the table, stale, or of groups that lack answers",
)
_BUSY = "leased, used up by draws that are not delivered yet, drawn in this epoch, or without late columns"
_FIRST = 16  # draws whose sizes tell how many more may fit


class DrawOptions(TypedDict, total=False):
    """Further options of a draw as a caller gave them, not checked yet. `Table.sample` explains each option."""

    linger: float | None
    keys: Any
    probabilities: Any
    budget: tuple[str, int] | None


def given_options(options: DrawOptions) -> DrawOptions:
    """Those that are not None.

    Raises:
        TypeError: there is an unknown one.
    """
    for name in options:
        if name not in DrawOptions.__annotations__:
            raise TypeError(f"sample() got an unexpected keyword argument {name!r}")
    given: Any = {name: value for name, value in options.items() if value is not None}
    return given  # type: ignore[no-any-return]


def draw_terms(
    drawn: Declares,
    n: Any,
    timeout: Any,
    min_n: Any,
    beta: Any,
    out: Batch | None,
    replace: Any,
    lease: Any,
    options: DrawOptions,
) -> tuple[Terms, float | None]:
    """The checked arguments of `sample`: the terms of the draw, and beta. `drawn`: the table or mixture.

    Raises:
        ValueError, TypeError: an argument is wrong, or the table lacks it.
    """
    seconds, options = lease_seconds(lease), given_options(options)
    for name, value in options.items():
        check_option(drawn, name, value)
    count, repeats, law = _read(n, config.flag("replace", replace), options)
    terms = Terms(count, timeout, min_n, options.get("linger"), replace=repeats, lease=seconds)
    terms.law, terms.short = law, min_n is None and (law is None or not law.exact)
    if out is not None:
        check_out(out, count)
    return terms, None if beta is None else config.real("beta", beta, why=_OF_BETA)


def _read(n: Any, replace: bool, options: DrawOptions) -> tuple[int, bool, Law | None]:
    """The number of examples, at most; whether the sampler's picks may repeat; and the law, if there is one."""
    keys, probabilities, budget = options.get("keys"), options.get("probabilities"), options.get("budget")
    if keys is None:
        if probabilities is not None:
            raise ValueError("probabilities= are those with which keys= were chosen: give keys= too")
        if n is None:
            raise TypeError("sample() needs n, the number of examples, or keys=, the items to draw")
        return check_n(n), replace, None if budget is None else Budget(budget)
    if n is not None or budget is not None:
        raise ValueError(f"keys= says which items to draw: leave {'n' if n is not None else 'budget='} out")
    wanted = key_array(keys)
    if (count := len(wanted)) == 0:
        raise ValueError("keys= is empty: a batch holds at least one example")
    if not replace and len(np.unique(wanted)) < count:
        raise ValueError("replace=False: keys= holds a key more than once")
    return count, True, Chosen(wanted, _probabilities(probabilities, count), replace)


def _probabilities(given: Any, n: int) -> Array | None:
    if given is None:
        return None
    found = host_array(given, "probabilities")
    if len(found) != n:
        raise ValueError(f"{len(found)} probabilities= for {n} keys=: give one for each")
    if not (np.isfinite(found) & (found > 0)).all():
        raise ValueError("probabilities= must be above 0 and finite: what was chosen had a chance")
    return found


class Chosen:
    """A draw of items that the caller names."""

    exact = True

    def __init__(self, keys: Array, probabilities: Array | None, replace: bool) -> None:
        self._keys = keys
        self._probabilities = probabilities
        self._replace = replace  # or the keys are known to be of different groups

    def at_once(self, handle: TableHandle, terms: Terms, beta: float | None) -> tuple[Any, ...] | None:
        """The parts of the batch; None: not possible in one step, and nothing was drawn."""
        self._check_groups(handle)
        if handle.opaque or terms.lease is not None:
            return None
        return handle.reader().take(self._keys, self._probabilities, beta)

    def begin(self, draws: _core.Draws) -> None:
        """As `Law.begin`."""
        draws.choose(self._keys, self._probabilities)

    def draw(self, handle: TableHandle, draws: _core.Draws, terms: Terms) -> bool:
        """As `Law.draw`.

        Raises:
            ObjectNotFound: fewer than `min_n` items can be drawn. ValueError: see `_check_groups`.
        """
        self._check_groups(handle)
        count = handle.reader().draw(draws, terms.n)
        missing = draws.missing
        tried = count + len(missing)
        if tried < terms.n and (found := _find(handle, self._keys[tried:])):  # the limiter allows no more now
            missing += (np.flatnonzero(~found.live) + tried).tolist()  # what is gone by now never comes
        if missing and terms.n - len(missing) < terms.min_n:
            raise self._unavailable(handle, missing)
        return count + len(missing) >= terms.n

    def _check_groups(self, handle: TableHandle) -> None:
        """Refuse keys of several answers of one group, if no item may come twice.

        Raises:
            ValueError: there are such keys.
        """
        if self._replace or not isinstance(handle.settings.view, Group) or not (found := _find(handle, self._keys)):
            return
        if len(np.unique(groups := found.keys[found.live])) < len(groups):
            raise ValueError("replace=False: keys= holds keys of several answers of a group")
        self._replace = True

    def _unavailable(self, handle: TableHandle, places: list[int]) -> ObjectNotFound:
        keys = self._keys[places]
        why = ""
        if found := _find(handle, keys):
            there = int(np.count_nonzero(found.live))
            gone = _GONE_OF_GROUPS if isinstance(handle.settings.view, Group) else _GONE
            counts = ((len(places) - there, gone), (there, _BUSY))
            why = ": " + ", ".join(f"{n} {'is' if n == 1 else 'are'} {what}" for n, what in counts if n)
        error = ObjectNotFound(
            f"{len(places)} of the {len(self._keys)} items of keys= cannot be drawn from table {handle.name!r}{why}; "
            "nothing was drawn",
            remedy="choose again among table.keys(); min_n= draws those that are left",
        )
        error.keys, error.places = keys, places
        return error


class _Found(NamedTuple):
    """What is known of some keys: by key, the key of its item, and whether the table has it."""

    keys: Array
    live: Array


def _find(handle: TableHandle, keys: Array) -> _Found | None:
    """None: the table's lock is not available now."""
    try:
        parts = handle.reader().peek(keys, None, [])
    except Timeout:  # the draw waits for the lock, and names its owner
        return None
    return _Found(parts[1], parts[-1])


class Budget:
    """A draw of as many examples as have a sum of sizes.

    More are drawn than fit only in the last step, whose number follows from the mean of the sizes so far. They are
    given back.
    """

    exact = False

    def __init__(self, budget: Any) -> None:
        try:
            self._column, most = budget
        except (TypeError, ValueError):
            raise TypeError(f'budget={shown(budget)}: give a column and a number, as ("tokens", 65_536)') from None
        self._which = config.names("budget", self._column)
        if len(self._which) != 1:
            raise ValueError(f"budget={shown(budget)}: name one column")
        self._most = config.count("budget", most, minimum=1, why="an example has a size")
        self._sum = 0.0

    def at_once(self, handle: TableHandle, terms: Terms, beta: float | None) -> None:
        """As `Chosen.at_once`: never possible."""

    def begin(self, draws: _core.Draws) -> None:
        """As `Law.begin`."""
        self._sum = 0.0

    def draw(self, handle: TableHandle, draws: _core.Draws, terms: Terms) -> bool:
        """As `Law.draw`.

        Raises:
            CapacityError: the first example alone is above the budget. ValueError: the column gives an example no size.
        """
        while (held := draws.count) < terms.n:
            wanted = held + int(min(terms.n - held, self._step(held)))
            count = handle.reader().draw(draws, wanted, False)
            if count > held and self._fill(handle, draws, held):
                return True
            if count < wanted:
                return False
        return True

    def _step(self, held: int) -> float:
        """How many examples to draw next."""
        return (self._most - self._sum) / self._sum * held + 1 if self._sum else max(held, _FIRST)

    def _fill(self, handle: TableHandle, draws: _core.Draws, held: int) -> bool:
        """Count the examples from number `held` on, and give back what is above the budget. Whether it is used up."""
        plan = handle.read_plan()
        assert plan is not None
        data, keys = handle.reader().column(draws, held, handle.which(self._which))[:2]
        wrap_ragged(data, dict(plan.ragged), len(keys))
        sizes = sizes_of(data, self._column, "budget")
        if (sizes < 0).any():
            raise ValueError(
                f"budget={self._column!r}: item {keys[sizes < 0][0]} has a size of {sizes.min():g}, below 0"
            )
        sums = self._sum + np.cumsum(sizes)
        fit = int(np.searchsorted(sums, self._most, side="right"))
        if held + fit == 0:
            raise self._too_large(handle, keys[:1], sums[0])
        if fit < len(keys):
            draws.keep(held + fit)
            return True
        self._sum = float(sums[-1])
        return self._sum >= self._most

    def _too_large(self, handle: TableHandle, keys: Array, size: float) -> CapacityError:
        error = CapacityError(
            f"item {keys[0]} of table {handle.name!r} has {size:,.0f} of {self._column!r}, more than the budget of "
            f"{self._most:,}; nothing was drawn",
            remedy="raise the budget, or delete the item: table.delete(error.keys)",
        )
        error.keys, error.places = keys, [0]
        return error
