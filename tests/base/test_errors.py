"""The closed set of errors: what they are, say, and keep when pickled."""

from __future__ import annotations

import copy
import pickle

import pytest

import di_store
from di_store.base import errors

CONTRACT = (
    "StoreNotFound StoreClosed StoreFull CapacityError LayoutMismatch CorruptData ObjectNotFound ObjectExists "
    "TableNotFound TableExists SchemaMismatch WriterClosed EndOfData NodeUnavailable AccessDenied Timeout"
).split()


def test_the_error_classes_are_those_of_the_contract() -> None:
    assert set(errors.__all__) == {"of_core", "shown", "StoreError", *CONTRACT}
    assert all(issubclass(getattr(errors, name), errors.StoreError) for name in CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_every_error_names_a_remedy(name: str) -> None:
    """A text holds the message, then an option (`x=`), a call or a command."""
    text = str(getattr(errors, name)("what happened"))
    assert text.startswith("what happened (")
    remedy = text.removeprefix("what happened ")
    assert any(mark in remedy for mark in ("=", "()", "di_store.", "`di-store", "DI_STORE_DIR")), remedy


@pytest.mark.parametrize("name", CONTRACT)
@pytest.mark.parametrize("remedy", [None, "", "raise size="])
def test_errors_pickle_and_copy(name: str, remedy: str | None) -> None:
    error = getattr(errors, name)("what happened", remedy=remedy)
    error.extra = {"key": 1}  # type: ignore[attr-defined]
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_remedy_replaces_the_default_one() -> None:
    assert str(errors.StoreFull("full", remedy="raise memory=")) == "full (raise memory=)"
    assert str(errors.StoreFull("full: raise memory=", remedy="")) == "full: raise memory="
    assert str(errors.StoreFull()) == errors.StoreFull.default_remedy


def test_timeout_is_a_timeout_error_with_reason_and_culprit() -> None:
    error = errors.Timeout("sample(32) waited 5 s", "3 of 10 items", "pid 123, stopped")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, errors.StoreError)
    assert (error.reason, error.culprit) == ("3 of 10 items", "pid 123, stopped")
    assert str(error).startswith("sample(32) waited 5 s: 3 of 10 items; held up by pid 123, stopped (timeout= ")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.culprit) == (str(error), error.reason, error.culprit)
    assert errors.Timeout("late").culprit is None
    with pytest.raises(TimeoutError, match="late"):
        raise errors.Timeout("late")


def test_tracebacks_show_public_error_names() -> None:
    for name, error in vars(di_store).items():
        if isinstance(error, type) and issubclass(error, di_store.StoreError):
            assert f"{error.__module__}.{error.__qualname__}" == f"di_store.{name}"
            assert pickle.loads(pickle.dumps(error)) is error


def test_a_wrong_next_observation_is_explained() -> None:
    """Whoever gives next= of another step learns what it takes, not only how to begin an episode."""
    with di_store.open(memory="16MiB") as store:
        table = store.create_table("t", capacity=9, view=di_store.Transition())
        step = {"obs": 0.0, "reward": 0.0, "terminated": False, "truncated": False}
        with table.writer() as writer:
            writer.append(step, next={"obs": 0.0})
            writer.append(step, next={"obs": 1.0})
            with pytest.raises(ValueError, match=r"'obs' differs .* next= takes the observation that follows its step"):
                writer.append({**step, "obs": 2.0})
