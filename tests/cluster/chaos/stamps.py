"""Rows and objects in which every number follows from who wrote it, the episode and the step."""

from __future__ import annotations

from typing import Any

import numpy as np

import di_store

EPISODE, STACK, WIDTH = 7, 4, 24
_AT = np.arange(WIDTH, dtype=np.int64)

ROWS: dict[str, Any] = {name: di_store.Spec((), "int64") for name in ("w", "n")} | {
    "body": di_store.Spec((WIDTH,), "int64")
}
WINDOWS: dict[str, Any] = ROWS | {
    "reward": di_store.Spec((), "float32"),
    "terminated": di_store.Spec((), "?"),
    "truncated": di_store.Spec((), "?"),
    "obs": di_store.Spec((), "int64"),
}


def body(w: Any, n: Any) -> Any:
    """int64[..., WIDTH] of row n of writer w."""
    w, n = np.asarray(w, np.int64)[..., None], np.asarray(n, np.int64)[..., None]
    return w * 1_000_003 + (n // EPISODE) * 8_191 + (n % EPISODE) * 127 + _AT * _AT


def row(w: int, n: int) -> dict[str, Any]:
    """For tables of single rows, and queues."""
    return {"w": np.int64(w), "n": np.int64(n), "body": body(w, n)}


def rows(w: Any, n: int) -> dict[str, Any]:
    """For tables of windows: row n of the writers in all lanes."""
    every = np.full(len(w), n, np.int64)
    ends = np.full(len(w), n % EPISODE == EPISODE - 1)
    flags = {"terminated": ends, "truncated": np.zeros(len(w), np.bool_), "reward": np.zeros(len(w), np.float32)}
    return {"w": np.asarray(w), "n": every, "body": body(w, every), "obs": every, **flags}


def torn(data: Any) -> int:
    """How many of these rows are not as one writer wrote them."""
    return int((np.asarray(data["body"]) != body(data["w"], data["n"])).any(-1).sum())


def broken(data: Any) -> int:
    """How many of these windows are torn, span a hole, or begin in the middle of an episode."""
    n = np.asarray(data["n"], np.int64)
    stacked = np.maximum(n[:, None] - np.arange(STACK - 1, -1, -1), (n - n % EPISODE)[:, None])
    wrong = (np.asarray(data["body"]) != body(data["w"], n)).any(-1)
    wrong |= (np.asarray(data["obs"]) != stacked).any(-1)
    wrong |= np.asarray(data["next_obs"])[:, -1] != n + np.asarray(data["steps"])
    return int(wrong.sum())


def thing(w: int, n: int, size: int) -> dict[str, Any]:
    """An object, or a version of weights."""
    return {"w": w, "n": n, "body": np.arange(size, dtype=np.int64) * 31 + w + n}


def whole(value: Any) -> bool:
    """Whether it is as `thing` made it."""
    found = np.asarray(value["body"])
    return bool((found == np.arange(len(found), dtype=np.int64) * 31 + value["w"] + value["n"]).all())
