"""Windows of an episode's steps, for drawn sequences and DreamerV3's rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from di_store.adapters.rllib.drawn import Maker
from di_store.adapters.rllib.parts import Name
from di_store.adapters.rllib.stored import StoredEpisode
from di_store.adapters.stored_array import Array


class Window:
    """The steps `step` to `stop` - 1 of an episode."""

    __slots__ = ("step", "stop", "stored")

    def __init__(self, stored: StoredEpisode, step: int, stop: int) -> None:
        self.stored, self.step, self.stop = stored, step, stop


def read(chosen: Sequence[Window], back: Sequence[int], names: Iterable[Name] | None) -> list[dict[Name, list[Array]]]:
    """Columns of windows: `back` steps before each window, the window, and the observation after it.

    Args:
        chosen: the windows.
        back: number of steps, for each window.
        names: names of sequences; None: all.
    """
    found: list[dict[Name, list[Array]]] = [{} for _ in chosen]
    places: dict[Any, list[int]] = {}
    for number, window in enumerate(chosen):
        places.setdefault(window.stored.place, []).append(number)
    for place, numbers in places.items():
        keys: list[int] = []
        spans, tails = [], []
        for number in numbers:
            window, stored = chosen[number], chosen[number].stored
            first, last = stored.back + window.step - back[number], stored.back + window.stop
            spans.append((number, len(keys), len(keys) + last + 1 - first))
            keys += stored.keys[first : last + 1]
            if last == len(stored.keys):  # the last observation has no row yet
                tails.append((len(keys), stored.tail or []))
                keys.append(stored.keys[-1])
        rows = place.read(keys, place.parts if names is None else names)
        for at, tail in tails:
            for column, row in zip(rows["obs"], tail, strict=True):
                column[at] = row[0]
        for number, begin, end in spans:
            found[number] = {name: [column[begin:end] for column in columns] for name, columns in rows.items()}
    return found


def windows(maker: Maker, chosen: Sequence[Window], lookback: int) -> list[SingleAgentEpisode]:
    """Episodes of the windows, with up to `lookback` steps before them, as RLlib's `SingleAgentEpisode.slice`."""
    backs = [min(lookback, each.stored.back + each.step) for each in chosen]
    sizes = [each.stop - each.step + lookback for each in chosen]
    n_steps, weights, begin = np.ones(sum(sizes), np.int64), np.ones(sum(sizes)), 0
    found = []
    for window, back, size, rows in zip(chosen, backs, sizes, read(chosen, backs, None), strict=True):
        stored, step, length = window.stored, window.step, window.stop - window.step
        place: Any = stored.place
        buffers: dict[Name, tuple[Any, int]] = {}
        own = back
        for name, part in place.parts.items():
            first, columns = 0, rows[name]
            if not stored.even:
                own = min(lookback, stored.lookback(name) + step)
                first = back - own
            last = back + length + (name == "obs")
            buffers[name] = part.whole([column[first:last] for column in columns]), own
        if not stored.even:
            own = min(lookback, stored.lookback("infos") + step)
        buffers["infos"] = stored.infos_of(step - own, window.stop + 1), own
        episode = maker.window(stored, step, window.stop, buffers)
        for name, values in (("n_step", n_steps), ("weights", weights)):
            episode.extra_model_outputs[name] = maker.buffer(values[begin : begin + size], None, lookback)
        begin += size
        found.append(episode)
    return found
