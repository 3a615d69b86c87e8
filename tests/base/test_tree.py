"""Nested dicts and their flat form."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_store.base import tree

NAMES = st.text(st.characters(exclude_characters="/\u2215", exclude_categories=("Cs",)), min_size=1, max_size=4)
TREES = st.dictionaries(
    NAMES,
    st.recursive(st.integers() | st.lists(st.integers()), lambda inner: st.dictionaries(NAMES, inner, min_size=1)),
    min_size=1,
)


def test_a_leaf_is_named_by_its_path() -> None:
    step = {"obs": {"pixels": 1, "speed": 2}, "reward": [3, {"not": "looked into"}]}
    flat = tree.flatten(step)
    assert flat == {"obs/pixels": 1, "obs/speed": 2, "reward": [3, {"not": "looked into"}]}
    assert list(flat) == ["obs/pixels", "obs/speed", "reward"]
    assert tree.unflatten(flat) == step


def test_any_mapping_is_a_node() -> None:
    assert tree.flatten(MappingProxyType({"a": OrderedDict(b=1)})) == {"a/b": 1}


@given(TREES)
def test_flatten_and_unflatten_are_inverse(nested: dict[str, Any]) -> None:
    flat = tree.flatten(nested)
    assert tree.unflatten(flat) == nested
    assert not any(isinstance(leaf, dict) for leaf in flat.values())


@given(TREES)
def test_every_inner_node_selects_what_is_below(nested: dict[str, Any]) -> None:
    flat = tree.flatten(nested)
    for key, value in nested.items():
        below = [f"{key}/{path}" for path in tree.flatten(value)] if isinstance(value, dict) else [key]
        assert tree.select(flat, key) == tuple(below)


@pytest.mark.parametrize("value", [None, 3, [("a", 1)], "text"])
def test_only_mappings_are_trees(value: Any) -> None:
    with pytest.raises(TypeError, match="a step is a dict of columns"):
        tree.flatten(value)


@pytest.mark.parametrize("nested", [{}, {"a": {}}, {"a": {"b": {}}}])
def test_empty_dicts_are_refused(nested: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="empty dict"):
        tree.flatten(nested)


@pytest.mark.parametrize("key", [1, None, ("a",), b"a"])
def test_keys_are_text(key: Any) -> None:
    with pytest.raises(TypeError, match="column names must be text"):
        tree.flatten({"a": {key: 1}})


@pytest.mark.parametrize("key", ["", "a\u2215b"])
def test_keys_are_not_empty_and_hold_no_division_slash(key: str) -> None:
    with pytest.raises(ValueError, match="a key must not be empty or contain '\u2215'"):
        tree.flatten({"a": {key: 1}})


@pytest.mark.parametrize("key", ["a/b", "/", "//", "a/"])
def test_keys_with_a_slash_stay_keys(key: str) -> None:
    nested = {"a": {key: 1, "b": 2}, key: 3, "c": {"d": {key: {key: 4}}}}
    leaves = tree.flatten(nested)
    assert len(leaves) == 4
    assert tree.unflatten(leaves) == nested
    assert [tree.name_of(tree.path_of(name)) for name in leaves] == list(leaves)
    assert tree.path_of(tree.name_of(("a", key))) == ("a", key)


def test_a_key_with_a_slash_and_a_path_stay_apart() -> None:
    nested = {"a/b": 1, "a": {"b": 2}}
    leaves = tree.flatten(nested)
    assert tree.unflatten(leaves) == nested
    assert tree.select(leaves, "a/b") == ("a/b",)
    assert tree.select([next(iter(leaves))], "a/b") == (f"a{tree.SLASH}b",)


def test_a_dict_that_holds_itself_is_refused() -> None:
    nested: dict[str, Any] = {}
    nested["a"] = nested
    with pytest.raises(ValueError, match="does a dict hold itself"):
        tree.flatten(nested)


@pytest.mark.parametrize("flat", [{"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}, {"a/b/c": 1, "a/b": {}}, {"a": {}, "a/b": 1}])
def test_a_name_is_not_both_leaf_and_node(flat: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="both a column and a group"):
        tree.unflatten(flat)


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b"])
def test_paths_have_no_empty_part(path: str) -> None:
    with pytest.raises(ValueError, match="empty part"):
        tree.unflatten({path: 1})


PATHS = ("obs/pixels", "obs/speed", "observer", "reward")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("obs", ("obs/pixels", "obs/speed")),
        (["reward", "obs/speed"], ("obs/speed", "reward")),
        (["obs", "obs/speed"], ("obs/pixels", "obs/speed")),
        ([], ()),
        ("observer", ("observer",)),
    ],
)
def test_select_returns_the_columns_below_a_name(wanted: str | list[str], found: tuple[str, ...]) -> None:
    assert tree.select(PATHS, wanted) == found


@pytest.mark.parametrize(
    ("name", "hint"),
    [("rewards", "did you mean 'reward'"), ("zzz", "there are: 'obs/pixels'"), ("obs/", "did you mean")],
)
def test_errors_about_unknown_names_suggest_close_ones(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"frame_stack: no column '{name}'.*{hint}"):
        tree.select(PATHS, name, option="frame_stack")
    with pytest.raises(TypeError, match="column names must be text"):
        tree.select(PATHS, [3])  # type: ignore[list-item]
