"""What a batch must hold for the model's items."""

from __future__ import annotations

from typing import Any

import numpy as np

from .episodes import flatten, same
from .selectors import Item, importance, probabilities
from .setting import ALPHA, BETA
from .table import NO_LANE, Drawn, ModelTable
from .views import Choices

COMPUTED = {"reward", "discount"}


def ragged(value: Any) -> bool:
    """Whether a column of a batch is ragged."""
    return hasattr(value, "offsets")


def row_of(value: Any, at: int, n: int) -> Any:
    """Element `at` of a batch column of `n` items; of a ragged one the rows of the item as tuples."""
    if not ragged(value):
        return np.asarray(value)[at]
    offsets, values = np.asarray(value.offsets).tolist(), np.asarray(value.values)
    rows = (len(offsets) - 1) // n
    assert values.dtype == np.int32
    spans = zip(offsets[at * rows : at * rows + rows], offsets[at * rows + 1 : at * rows + rows + 1], strict=True)
    found = [tuple(values[start:stop].tolist()) for start, stop in spans]
    return found if len(found) != 1 else found[0]


def check_example(batch: Any, at: int, example: dict[str, Any]) -> None:
    """Element `at` of a batch is this example, or one of these choices."""
    if isinstance(example, Choices):
        if any(holds(batch, at, each) for _, each in example.every):
            return
        example = dict(example)  # to say how it differs from the first
    data = flatten(batch.data)
    extra = set(data) ^ set(example)
    require(extra <= {"mask", "lengths"}, f"columns {sorted(extra)} are only on one side")
    for column in set(data) & set(example):
        check_value(f"{column} of element {at}", example[column], row_of(data[column], at, len(batch.keys)))


def require(met: bool, otherwise: str) -> None:
    """As `assert`, for what `holds` asks: `python -O` leaves that out."""
    if not met:
        raise AssertionError(otherwise)


def holds(batch: Any, at: int, example: dict[str, Any]) -> bool:
    """Whether element `at` of a batch is this example."""
    try:
        check_example(batch, at, example)
    except AssertionError:
        return False
    return True


def check_items(batch: Any, items: list[Item], side: Any, *, counted: bool = True) -> None:
    """`batch` (of at least these items, in this order) holds the model's examples and descriptions."""
    for at, item in enumerate(items):
        check_example(batch, at, item.example)
        if item.lane != NO_LANE:
            every = [((item.episode, item.start), item.example)]
            if isinstance(item.example, Choices):
                every = item.example.every
            start = int(batch.starts[at])
            begun_in = {place[0] for place, each in every if place[1] == start and holds(batch, at, each)}
            assert begun_in
            if len(begun_in) == 1:  # else examples of several episodes are alike
                check_episode(int(batch.episodes[at]), item, begun_in.pop(), side)
        assert int(batch.versions[at]) == item.version
        np.testing.assert_allclose(batch.priorities[at], item.priority, rtol=1e-5)
        if counted:
            assert int(batch.times_sampled[at]) == item.times_sampled


def check_value(what: str, expected: Any, got: Any) -> None:
    """Computed columns within float32's rounding, all others bit for bit and of one dtype."""
    name = what.split(" ")[0]
    if isinstance(expected, (tuple, list)):
        require(got == expected or [got] == expected, f"{what}: {got!r}, not {expected!r}")
        return
    expected = np.asarray(expected)
    require(np.shape(got) == expected.shape, f"{what}: shape {np.shape(got)}, not {expected.shape}")
    if name in COMPUTED:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=what)
        return
    if name not in ("mask", "lengths", "steps", "is_first"):
        dtype = np.asarray(got).dtype
        require(dtype == expected.dtype, f"{what}: dtype {dtype}, not {expected.dtype}")
    require(same(got, expected), f"{what}: {got!r}, not {expected!r}")


def check_episode(number: int, item: Item, episode: int, side: Any) -> None:
    """The episode numbers of a batch tell the episodes of a lane apart, and stay what they are."""
    place = (side.owners[item.number], item.lane, episode)
    known = side.episodes.setdefault(place, number)
    assert known == number
    siblings = {value for key, value in side.episodes.items() if key[:2] == place[:2]}
    assert len(siblings) == sum(key[:2] == place[:2] for key in side.episodes)


def check_drawn(batch: Any, drawn: list[Drawn], items: list[Item], model: ModelTable) -> None:
    """Counts, probabilities and weights of a sampled batch."""
    assert np.asarray(batch.times_sampled).tolist() == [each.times_sampled for each in drawn]
    if model.max_times_sampled or model.max_staleness is not None:
        return
    found = np.asarray(batch.probabilities, dtype=np.float64)
    if model.sampler == "Uniform":
        np.testing.assert_allclose(found, 1 / len(items))
    elif model.sampler in ("Fifo", "Lifo", "MinHeap", "MaxHeap"):
        np.testing.assert_allclose(found, 1.0)
    elif model.sampler == "Prioritized":
        chances = probabilities([item.priority for item in items], ALPHA)
        places = {item.number: at for at, item in enumerate(items)}
        expected = chances[[places[each.number] for each in drawn]]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        np.testing.assert_allclose(batch.weights, importance(expected, len(items), BETA), rtol=1e-3)
