"""Samplers and removers: what they take and how they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_store.base.errors import CorruptData
from di_store.policy import samplers as s

SOME: list[s.Sampler] = [
    s.Uniform(),
    s.Fifo(),
    s.Lifo(),
    s.MinHeap(),
    s.MaxHeap(),
    s.Prioritized(0.6),
    s.Prioritized(alpha=0.6, beta=0.4, stratified=True, normalize="table"),
    s.Once(),
    s.Once(epochs=None, shuffle=False),
    s.Once(3),
]


@pytest.mark.parametrize("sampler", SOME, ids=repr)
def test_samplers_convert_to_plain_data_and_back(sampler: s.Sampler) -> None:
    assert s.sampler_from_plain(s.sampler_to_plain(sampler)) == sampler
    assert s.check_sampler(sampler) is sampler
    if isinstance(sampler, (s.Prioritized, s.Once)):
        with pytest.raises(ValueError, match="only draws; evict with one of Uniform, Fifo"):
            s.check_remover(sampler)
        with pytest.raises(CorruptData):
            s.remover_from_plain(s.sampler_to_plain(sampler))
    else:
        assert s.check_remover(sampler) is sampler
        assert s.remover_from_plain(s.sampler_to_plain(sampler)) == sampler


def test_equal_settings_are_equal() -> None:
    assert s.Prioritized(1) == s.Prioritized(1.0)
    assert s.Prioritized(0.6, 0.4) != s.Prioritized(0.6, 0.5)
    assert s.Uniform() != s.Fifo()
    assert type(s.Prioritized(np.float32(0.5), np.int64(1)).beta) is float  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("option", ["alpha", "beta"])
def test_exponents_are_finite_and_not_negative(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"Prioritized\({option}=\)"):
        s.Prioritized(**{"alpha": 0.6, option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"alpha": "0.6"}, {"alpha": True}, {"alpha": None}, {"alpha": 1, "stratified": 1}])
def test_prioritized_checks_its_types(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Prioritized"):
        s.Prioritized(**fields)


def test_prioritized_options_are_keywords() -> None:
    with pytest.raises(TypeError):
        s.Prioritized(0.6, 0.4, True)  # type: ignore[misc]
    with pytest.raises(ValueError, match="'batch', 'table'"):
        s.Prioritized(0.6, normalize="max")  # type: ignore[arg-type]


@pytest.mark.parametrize("epochs", [0, -1])
def test_once_has_an_epoch(epochs: int) -> None:
    with pytest.raises(ValueError, match="None stands for epochs without end"):
        s.Once(epochs)


@pytest.mark.parametrize("fields", [{"epochs": 1.5}, {"epochs": True}, {"shuffle": 0}])
def test_once_checks_its_types(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Once"):
        s.Once(**fields)


@pytest.mark.parametrize("value", [s.Uniform, "uniform", None, object()])
def test_values_that_are_not_samplers_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="sampler="):
        s.check_sampler(value)
    with pytest.raises(TypeError, match="remover="):
        s.check_remover(value)


def test_a_class_in_place_of_its_instance_is_pointed_out() -> None:
    with pytest.raises(TypeError, match=r"write sampler=Uniform\(…\)"):
        s.check_sampler(s.Uniform)


PLAIN = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    PLAIN
    | st.fixed_dictionaries(
        {"kind": st.sampled_from(["Prioritized", "Once", "Uniform", "dict"])},
        optional={"alpha": PLAIN, "epochs": PLAIN, "x": PLAIN},
    )
)
def test_any_plain_data_makes_a_sampler_or_is_refused(plain: Any) -> None:
    try:
        assert isinstance(s.sampler_from_plain(plain), s.SAMPLERS)
    except CorruptData:
        pass
