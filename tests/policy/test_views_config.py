"""View settings: validation, names they reserve, columns they need, rows they take, plain form."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_store.base.errors import CorruptData
from di_store.columns.schema import Schema, Spec
from di_store.policy.view_columns import check_columns, frame_stacks, reserved_names
from di_store.policy.views import (
    Episode,
    Opaque,
    Sequence,
    Step,
    Transition,
    View,
    check_view,
    view_from_plain,
    view_to_plain,
)

FLAGS = {"terminated": Spec((), "?"), "truncated": Spec((), "?")}


def schema(**columns: Any) -> Schema:
    base = {"obs": Spec((4,), "f4"), "action": Spec((), "i8"), "reward": Spec((), "f4"), **FLAGS}
    return Schema.from_tree({key: value for key, value in {**base, **columns}.items() if value is not None})


STACKS = st.none() | st.dictionaries(st.sampled_from(["obs", "action"]), st.integers(1, 8), min_size=1)
NAMES = st.sampled_from([(), ("obs",), ("obs", "action")])
ANY_VIEW: st.SearchStrategy[View] = st.one_of(
    st.just(Step()),
    st.just(Opaque()),
    st.builds(
        Transition,
        st.integers(1, 9),
        st.floats(0, 1),
        STACKS,
        st.sampled_from(["first", "zero"]),
        NAMES,
        st.sampled_from(["reward", "r"]),
    ),
    st.builds(
        Sequence,
        st.integers(1, 99),
        st.none() | st.integers(1, 99),
        st.integers(0, 9),
        tail=st.sampled_from(["pad", "drop", "shift"]),
        frame_stack=STACKS,
        first=NAMES,
        bootstrap=NAMES,
        cross_episodes=st.booleans(),
    ),
    st.builds(Episode, st.integers(1, 999), NAMES),
)


@given(ANY_VIEW)
def test_views_convert_to_plain_data_and_pickle(view: View) -> None:
    assert view_from_plain(view_to_plain(view)) == view
    assert pickle.loads(pickle.dumps(view)) == view
    assert hash(pickle.loads(pickle.dumps(view))) == hash(view)
    assert check_view(view) is view


@pytest.mark.parametrize(
    "plain", [None, {"kind": "Step", "n": 1}, {"kind": "Episode", "max_length": 0}, {"kind": "Schema"}]
)
def test_foreign_plain_data_is_corrupt(plain: Any) -> None:
    with pytest.raises(CorruptData, match="view"):
        view_from_plain(plain)


def test_defaults_are_those_of_the_contract() -> None:
    assert Transition() == Transition(1, 0.99, None, "first", ("obs",), "reward")
    assert Sequence(5) == Sequence(
        5, None, 0, tail="pad", frame_stack=None, first=(), bootstrap=(), cross_episodes=False
    )
    assert Episode(7) == Episode(7, ())
    assert Transition(obs="state").obs == ("state",)  # type: ignore[arg-type]
    assert Sequence(5, first=["a"]).first == ("a",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Transition(0), "n_step=0 is below 1"),
        (lambda: Transition(gamma=1.01), "gamma"),
        (lambda: Transition(gamma=-0.1), "gamma"),
        (lambda: Transition(gamma=float("nan")), "gamma"),
        (lambda: Transition(frame_stack={"obs": 0}), r"frame_stack\['obs'\]=0"),
        (lambda: Transition(frame_pad="last"), "frame_pad"),  # type: ignore[arg-type]
        (lambda: Transition(obs=("obs", "obs")), "twice"),
        (lambda: Transition(obs=("",)), "empty"),
        (lambda: Transition(reward=("a", "b")), "reward"),  # type: ignore[arg-type]
        (lambda: Transition(future=("goal", "goal")), "future=.* twice"),
        (lambda: Transition(future=("goal",), horizon=0), "horizon=0 is below 1"),
        (lambda: Sequence(0), "length=0"),
        (lambda: Sequence(5, 0), "period=0"),
        (lambda: Sequence(5, burn_in=-1), "burn_in=-1"),
        (lambda: Sequence(5, tail="wrap"), "tail"),  # type: ignore[arg-type]
        (lambda: Sequence(2**31), "length"),
        (lambda: Sequence(4, start="any"), "'grid', 'random'"),  # type: ignore[arg-type]
        (lambda: Episode(0), "max_length=0"),
    ],
)
def test_bad_values_are_named(make: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Transition(1.5), "n_step"),  # type: ignore[arg-type]
        (lambda: Transition(True), "n_step"),
        (lambda: Transition(gamma="0.9"), "gamma"),  # type: ignore[arg-type]
        (lambda: Transition(frame_stack=4), "frame_stack"),  # type: ignore[arg-type]
        (lambda: Transition(frame_stack={"obs": 1.5}), "frame_stack"),  # type: ignore[dict-item]
        (lambda: Transition(obs=3), "obs"),  # type: ignore[arg-type]
        (lambda: Transition(obs=(3,)), "obs"),  # type: ignore[arg-type]
        (lambda: Sequence("5"), "length"),  # type: ignore[arg-type]
        (lambda: Sequence(5, cross_episodes=1), "cross_episodes"),  # type: ignore[arg-type]
        (lambda: check_view(Transition), r"write view=Transition\(…\)"),
        (lambda: check_view("step"), "give one of Step, Opaque"),
    ],
)
def test_bad_types_are_named(make: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        make()


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "added", "spanned"),
    [
        (Step(), 1, 1),
        (Opaque(), 1, 1),
        (Transition(), 1, 2),
        (Transition(3, frame_stack={"obs": 4}), 1, 7),
        (Sequence(80, 40, 20), 40, 100),
        (Sequence(80, bootstrap=("obs",)), 80, 81),
        (Sequence(10, 5, frame_stack={"obs": 4}, bootstrap=("obs",)), 5, 14),
        (Episode(200), 200, 200),
        (Episode(200, ("obs",)), 200, 201),
    ],
    ids=repr,
)
def test_views_know_their_number_of_rows(view: View, added: int, spanned: int) -> None:
    assert (view.rows_added, view.rows_spanned) == (added, spanned)


# --- names ------------------------------------------------------------------------------------------------------------


def test_reserved_names_are_refused() -> None:
    plain = schema()
    nested = schema(obs={"pixels": Spec((84, 84), "u1"), "speed": Spec((), "f4")})
    assert reserved_names(Step(), plain) == frozenset()
    assert reserved_names(Transition(), plain) == {"steps", "next_obs"}
    assert reserved_names(Transition(), nested) == {"steps", "next_obs/pixels", "next_obs/speed"}
    assert reserved_names(Transition(obs=("obs/speed",)), nested) == {"steps", "next_obs/speed"}
    assert reserved_names(Transition(obs=()), plain) == {"steps"}
    assert reserved_names(Sequence(5), plain) == {"mask", "lengths", "is_first"}
    assert reserved_names(Episode(5), plain) == {"mask", "lengths"}


@pytest.mark.parametrize(
    ("view", "column"),
    [
        (Transition(), "steps"),
        (Transition(), "next_obs"),
        (Sequence(5), "mask"),
        (Sequence(5), "lengths"),
        (Sequence(5), "is_first"),
        (Episode(5), "mask"),
        (Episode(5), "lengths"),
    ],
    ids=repr,
)
def test_columns_named_like_an_output_are_refused(view: View, column: str) -> None:
    for value in (Spec((), "f4"), {"below": Spec((), "f4")}):
        clash = schema(**{column: value})
        with pytest.raises(
            ValueError, match=f"column '{column}.*{type(view).__name__} puts its own '{column}'.*rename"
        ):
            reserved_names(view, clash)
        with pytest.raises(ValueError, match="rename"):
            check_columns(view, clash)
        check_columns(Step(), clash)


def test_a_leaf_above_an_output_is_refused() -> None:
    clash = schema(obs={"pixels": Spec((8,), "u1")}, next_obs=Spec((), "f4"))
    with pytest.raises(ValueError, match="puts its own 'next_obs/pixels'"):
        reserved_names(Transition(), clash)


def test_a_discount_column_is_a_factor_not_a_clash() -> None:
    check_columns(Transition(), schema(discount=Spec((), "f4")))
    with pytest.raises(ValueError, match=r"'discount' is int64 .*declare it as float32"):
        check_columns(Transition(), schema(discount=Spec((), "i8")))


# --- columns a view needs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "columns", "named"),
    [
        (Transition(), {"reward": None}, "no column 'reward'"),
        (Transition(reward="action"), {}, "declare it as float32"),
        (Transition(), {"obs": None}, "obs: no column 'obs'"),
        (Transition(obs=("state",)), {}, "obs: no column 'state'"),
        (Transition(obs=("reward",)), {}, "obs= and reward= both name 'reward'"),
        (Transition(frame_stack={"frame": 4}), {}, "frame_stack: no column 'frame'"),
        (Sequence(5, first=("state",)), {}, "first: no column 'state'"),
        (Sequence(5, bootstrap=("state",)), {}, "bootstrap: no column 'state'"),
        (Sequence(5, first=("obs",), bootstrap=("obs",)), {}, "'obs' is in first= and bootstrap="),
        (Sequence(5, first=("obs",), frame_stack={"obs": 4}), {}, "'obs' is in first= and frame_stack="),
        (Sequence(5, frame_stack={"obs": 4}), {"obs": Spec((None, 4), "f4")}, "ragged"),
        (Episode(5, ("state",)), {}, "bootstrap: no column 'state'"),
        (Opaque(), {}, "leave schema= out"),
    ],
    ids=repr,
)
def test_impossible_columns_are_refused(view: View, columns: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_columns(view, schema(**columns))


@pytest.mark.parametrize(
    "view",
    [
        Step(),
        Transition(3, frame_stack={"obs": 4}),
        Transition(obs=("obs", "action")),
        Sequence(5, 2, 1, first=("action",), bootstrap=("obs",), frame_stack={"obs": 4}),
        Episode(5, bootstrap=("obs",)),
    ],
    ids=repr,
)
def test_possible_columns_are_accepted(view: View) -> None:
    check_columns(view, schema())


def test_frame_stacks_resolve_inner_nodes() -> None:
    nested = schema(obs={"left": Spec((8,), "u1"), "right": Spec((8,), "u1")})
    assert frame_stacks(Transition(frame_stack={"obs": 4}), nested) == {"obs/left": 4, "obs/right": 4}
    assert frame_stacks(Step(), nested) == {}
    with pytest.raises(ValueError, match="twice"):
        frame_stacks(Transition(frame_stack={"obs": 4, "obs/left": 2}), nested)
