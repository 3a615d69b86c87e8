"""One call as a text that can be made again: what is called, on what, and where each argument comes from."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak.fuzz import surface
from soak.fuzz.odd import BENDS, ENDLESS, OddError
from soak.fuzz.surface import MISSING, Call
from soak.fuzz.world import ODD, World

CALLS = surface.public_calls()
BUSY = ("Store", "Table", "Writer", "Mixture", "Loader")
WEIGHTS = [
    8.0 if call.owner in BUSY and call.parameters else 2.0 if call.parameters else 0.5 for call in CALLS.values()
]


@dataclass(frozen=True)
class Plan:
    """A call to be made.

    Attributes:
        call: its name, such as "Table.insert".
        on: name of the target.
        salt: of the chance that valid values are taken by.
        changes: by parameter: "odd:NAME", "leaf:PATH:odd:NAME", "leaf:PATH:bend:NAME", "leaf:PATH:gone",
            "item:odd:NAME", "bend:NAME"; all other parameters have valid values.
    """

    call: str
    on: str
    salt: int
    changes: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """As JSON, for `parse`."""
        return json.dumps({"call": self.call, "on": self.on, "salt": self.salt, "changes": dict(self.changes)})

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan of `text`."""
        plain = json.loads(text)
        return cls(plain["call"], plain["on"], plain["salt"], tuple(plain["changes"].items()))

    @property
    def endless(self) -> bool:
        """Whether it may wait for ever, until something interrupts it."""
        waits = dict(self.changes).get("timeout", "")
        return waits.startswith("odd:") and waits.removeprefix("odd:") in ENDLESS


def make_plan(rng: random.Random, oddness: float, patient: bool) -> Plan:
    """A call taken by lot.

    Args:
        rng: chance.
        oddness: how likely it has odd arguments at all.
        patient: whether it may wait for ever.
    """
    call = rng.choices(list(CALLS.values()), WEIGHTS)[0]
    on = surface.choose_target(rng, call)
    changes = []
    if call.parameters and rng.random() < oddness:
        for parameter in rng.sample(call.parameters, min(len(call.parameters), rng.choice((1, 1, 1, 2, 3)))):
            changes.append((parameter, _change(rng, parameter)))
    plan = Plan(call.name, on, rng.randrange(1 << 30), tuple(changes))
    if plan.endless and not patient:
        return Plan(call.name, on, plan.salt, tuple(each for each in changes if each[0] != "timeout"))
    return plan


def _change(rng: random.Random, parameter: str) -> str:
    kind, name = rng.random(), rng.choice(ODD)
    path = rng.choice(
        ("n", "obs", "image", "image/small", "reward", "terminated", "text", "new", "discount", "next_obs")
    )
    if parameter in ("value", "batch", "step", "steps", "next", "final", "out", "schema"):
        if kind < 0.4:
            return f"leaf:{path}:odd:{name}"
        if kind < 0.75:
            return f"leaf:{path}:bend:{rng.choice(list(BENDS))}"
        if kind < 0.8:
            return f"leaf:{path}:gone"
    if parameter in ("keys", "priorities", "values", "offsets", "refs", "tables", "tree") and kind < 0.5:
        return f"bend:{rng.choice(list(BENDS))}" if kind < 0.3 else f"item:odd:{name}"
    return f"odd:{name}"


def arguments(world: World, plan: Plan, call: Call) -> dict[str, Any]:
    """Build them; a change that the valid value has no place for leaves it as it is."""
    changes = dict(plan.changes)
    found = {}
    for parameter in call.parameters:
        change = changes.get(parameter, "")
        if change.startswith("odd:"):
            found[parameter] = world.odd(change.removeprefix("odd:"))
            continue
        value = surface.valid(world, call, plan.on, parameter, random.Random(f"{plan.salt}/{parameter}"))
        if value is not MISSING:
            found[parameter] = _changed(world, value, change)
    return found


def _changed(world: World, value: Any, change: str) -> Any:
    kind, _, rest = change.partition(":")
    if kind == "bend":
        return _bent(value, rest)
    if kind == "item":
        listed = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
        return [*listed[1:], world.odd(rest.removeprefix("odd:"))]
    if kind != "leaf" or not isinstance(value, dict):
        return value
    path, _, what = rest.partition(":")
    *inner, leaf = path.split("/")
    node = whole = copy.deepcopy(value)
    for name in inner:
        node = node.get(name, node)
    if what == "gone":
        node.pop(leaf, None)
    elif what.startswith("odd:"):
        node[leaf] = world.odd(what.removeprefix("odd:"))
    elif leaf in node:
        node[leaf] = _bent(node[leaf], what.removeprefix("bend:"))
    return whole


def _bent(value: Any, name: str) -> Any:
    """Another form of an array; what cannot take it stays as it is."""
    if not isinstance(value, np.ndarray):
        return value
    try:
        return BENDS[name](value)
    except (ValueError, TypeError, IndexError, RuntimeError, OddError):
        return value
