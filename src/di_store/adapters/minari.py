"""Reads Minari datasets into tables, and writes tables as Minari datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

import di_store
from di_store.adapters.framework import require

require("minari", "minari", ">=0.5,<0.6", package="minari")

import gymnasium as gym
import minari
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from di_store.adapters.casts import cast
from di_store.adapters.spaces import converter, mapped, original, parts, specs, step_specs
from di_store.adapters.trees import cut, joined, leaves

__all__ = ["read", "write"]

_ROWS = 1024
"""Rows appended in one call, or items read in one call."""

_COLUMNS = ("obs", "action", "reward", "terminated", "truncated")


def read(
    target: di_store.Store | di_store.Table,
    dataset: Any,
    *,
    name: str | None = None,
    infos: bool | Sequence[str] = False,
    **options: Any,
) -> di_store.Table:
    """Append all episodes of a Minari dataset to a table.

    The columns are ``obs``, ``action``, ``reward``, ``terminated``, ``truncated``, as a `Recorder` of the dataset's
    environment has them; with `infos` also ``info``.

    Args:
        target: a table; or a store, in which a table for the whole dataset is made.
        dataset: a `MinariDataset`, or the id of one on this machine; nothing is downloaded.
        name: name of the new table; None: the dataset's id.
        infos: infos of the environment to store for each step: True (all), or names.
        options: options of `Store.create_table` for the new table: ``view=`` (default: `Step`), ``capacity=`` and
            others.

    Returns:
        The table.

    Raises:
        FileNotFoundError: no dataset of that id is on this machine.
        TypeError: a table has no columns for the dataset's spaces.
        ValueError: `infos` names one that an episode lacks.
        StoreError: as in `Store.create_table` and `Writer.extend`. Episodes that were already read stay in the table.
    """
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    if not isinstance(dataset, minari.MinariDataset):
        raise TypeError(f"read() takes a Minari dataset or its id, not {type(dataset).__name__}")
    table = _target(target, dataset, name, infos, options)
    observed = converter(dataset.observation_space, "observation")
    acted = converter(dataset.action_space, "action")
    with table.writer() as writer:
        for episode in dataset.iterate_episodes():
            steps = {
                "action": acted(episode.actions),
                "reward": cast(episode.rewards, np.dtype(np.float32), "a reward"),
                "terminated": cast(episode.terminations, np.dtype(np.bool_), "a termination"),
                "truncated": cast(episode.truncations, np.dtype(np.bool_), "a truncation"),
            }
            if infos:
                steps["info"] = _infos(episode, infos)
            _append(writer, steps, observed(episode.observations), len(episode))
    return table


def write(
    table: di_store.Table,
    name: Any,
    *,
    env: Any = None,
    observation_space: Any = None,
    action_space: Any = None,
    **options: Any,
) -> Any:
    """Write the episodes of a table to a new Minari dataset, or add them to an existing one.

    The table's view is `Episode`, `Step` or `Transition` with ``n_step=1``. The columns ``obs``, ``action``,
    ``reward``, ``terminated``, ``truncated`` are written, others are left out. If rows of an episode are missing in
    between, its parts become separate episodes. An episode that does not end by a flag is marked as truncated.

    Minari needs the final observation. Give the view `Episode` ``bootstrap=("obs",)``, or use `Transition`. If the
    final observation is missing, a terminated episode repeats its last observation. Any other episode loses its last
    step, whose observation becomes the final one.

    Args:
        table: the table. Nobody should write to it meanwhile: items that are removed before they are read are left out.
        name: the id of a new dataset, such as ``"cartpole/mine-v0"``, which must not exist. Or a `MinariDataset`, to
            which the episodes are added: it keeps its environment and spaces.
        env: a Gymnasium environment, or its id. Minari keeps it and takes the spaces from it.
        observation_space: None: the environment's; without an environment, boxes by the columns' types and shapes.
        action_space: as `observation_space`.
        options: options of `minari.create_dataset_from_buffers`. Images are stored exactly unless
            ``jpeg_encoding=True``.

    Returns:
        The `MinariDataset`.

    Raises:
        TypeError: the table has another view, or `env` is a vector environment.
        ValueError: the table holds no whole step, lacks a column, or a space does not fit its column; or a dataset of
        this id exists; or `env`, spaces or options are given with an existing dataset.
    """
    dataset = name if isinstance(name, minari.MinariDataset) else None
    given = {"obs": observation_space, "action": action_space}
    if dataset is not None:
        given = _kept_spaces(dataset, [env, *given.values()], options)
    space = _spaces(_nested(table), env, given)
    episodes = (made for rows in _episodes(table) if (made := _buffer(rows, space)) is not None)
    first = next(episodes, None)
    if first is None:
        raise ValueError(f"table {table.name!r} holds no whole step of an episode: nothing is written")
    if dataset is None:
        dataset = minari.create_dataset_from_buffers(
            name,
            [first],
            env=env,
            observation_space=space["obs"],
            action_space=space["action"],
            **{"jpeg_encoding": False, **options},
        )
    else:
        dataset.update_dataset_from_buffer([first])
    for several in _grouped(episodes):
        dataset.update_dataset_from_buffer(several)
    return dataset


def _kept_spaces(dataset: Any, given: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The spaces of a dataset to which episodes are added."""
    if options or any(each is not None for each in given):
        raise ValueError("env=, spaces and options are for a new dataset: pass its id")
    return {"obs": dataset.observation_space, "action": dataset.action_space}


def _target(target: Any, dataset: Any, name: str | None, infos: Any, options: dict[str, Any]) -> di_store.Table:
    """The table to append to."""
    if isinstance(target, di_store.Table):
        if name is not None or options:
            raise ValueError("name= and options of create_table are for a new table: pass a store")
        return target
    if not isinstance(target, di_store.Store):
        raise TypeError(f"read() takes a store or a table, not {type(target).__name__}")
    options = {"view": di_store.Step(), **options}
    options.setdefault("capacity", _capacity(options["view"], dataset))
    schema = step_specs(dataset.observation_space, dataset.action_space)
    if not infos:  # else the first episode declares the columns
        options.setdefault("schema", schema)
    return target.create_table(dataset.id if name is None else name, **options)


def _capacity(view: Any, dataset: Any) -> int:
    """The most items that the view may make from a dataset."""
    steps, episodes = int(dataset.total_steps), int(dataset.total_episodes)
    if isinstance(view, di_store.Episode):
        return max(1, episodes)
    if isinstance(view, di_store.Sequence):
        return max(1, steps // (view.period or view.length) + episodes)
    return max(1, steps)


def _append(writer: di_store.Writer, steps: Any, observations: Any, total: int) -> None:
    """Append one episode; `observations` has one row more."""
    for start in range(0, total, _ROWS):
        stop = min(start + _ROWS, total)
        rows = {**cut(steps, slice(start, stop)), "obs": cut(observations, slice(start, stop))}
        writer.extend(rows, next={"obs": cut(observations, slice(start + 1, stop + 1))})
    writer.end_episode()


def _infos(episode: Any, wanted: bool | Sequence[str]) -> dict[str, Any]:
    """The infos of each step. Minari keeps the infos of the reset in front of them."""
    found = episode.infos or {}
    names = list(found) if wanted is True else [wanted] if isinstance(wanted, str) else list(wanted)  # type: ignore[arg-type]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"episode {episode.id} has no info {missing[0]!r}; it has {sorted(found)}")
    total = len(episode)
    return {name: mapped(lambda leaf: np.asarray(leaf)[len(leaf) - total :], found[name]) for name in names}


def _nested(table: di_store.Table) -> dict[str, Any]:
    """The columns of a table that can be written; TypeError or ValueError if it cannot."""
    view = table.view
    single = isinstance(view, di_store.Transition) and view.n_step == 1 and view.frame_stack is None
    if not (single or isinstance(view, (di_store.Step, di_store.Episode))):
        raise TypeError(
            f"a Minari dataset is made of a table of view Episode, Step or Transition(n_step=1), not {view}"
        )
    schema = table.schema or {}
    if missing := [name for name in _COLUMNS if name not in schema]:
        raise ValueError(f"table {table.name!r} has no column {missing[0]!r}: Minari needs {', '.join(_COLUMNS)}")
    return dict(schema)


def _spaces(found: dict[str, Any], env: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The spaces of the columns ``obs`` and ``action``: the given ones, else the environment's, else boxes."""
    if isinstance(env, gym.vector.VectorEnv):
        raise TypeError("env= is one environment or its id, not a vector environment")
    if env is not None and None in given.values():
        made = gym.make(env) if isinstance(env, (str, gym.envs.registration.EnvSpec)) else env
        theirs = {"obs": made.observation_space, "action": made.action_space}
        given = {column: theirs[column] if own is None else own for column, own in given.items()}
        if made is not env:
            made.close()
    given = {column: _box(found[column]) if own is None else own for column, own in given.items()}
    for column, own in given.items():
        _check_names(own, column)
        if _shapes(specs(own, column)) != _shapes(found[column]):
            raise ValueError(f"the space {own} does not fit the table's column {column!r}")
    return given


def _check_names(space: Any, column: str) -> None:
    """Raise for names that split HDF5 groups: Minari could not read its own file back."""
    for name, part in (parts(space, column) or {}).items():
        if "/" in name:
            raise ValueError(
                f"column {column!r} has an entry {name!r}, and Minari cannot read a name with '/': rename it by a "
                "Gymnasium wrapper"
            )
        _check_names(part, column)


def _box(column: Any) -> Any:
    """A space for columns of which only shapes and types are known."""
    if isinstance(column, dict):
        return spaces.Dict({name: _box(part) for name, part in column.items()})
    if column.dtype.kind == "U":
        raise ValueError(
            "the table holds text, and Minari needs a space for it: give env=, observation_space= or action_space="
        )
    if column.dtype == np.bool_:
        return spaces.Box(0, 1, column.shape, np.bool_)
    if column.dtype.kind in "iu":
        limits = np.iinfo(column.dtype)
        return spaces.Box(limits.min, limits.max, column.shape, column.dtype)
    return spaces.Box(-np.inf, np.inf, column.shape, column.dtype)


def _shapes(columns: Any) -> Any:
    """Shapes and types, to compare."""
    return mapped(lambda column: (tuple(column.shape), np.dtype(column.dtype)), columns)


def _episodes(table: di_store.Table) -> Iterator[dict[str, Any]]:
    """The rows of each episode ``[T, …]``; ``obs`` has one more if the final observation is known."""
    if isinstance(table.view, di_store.Episode):
        final = int("obs" in table.view.bootstrap)
        for batch in _peeked(table, table.keys(), 16):
            for row in np.flatnonzero(np.asarray(batch.live)).tolist():
                total = int(batch.data["lengths"][row])
                whole = {name: cut(batch.data[name], row) for name in _COLUMNS}
                yield {**cut(whole, slice(0, total)), "obs": cut(whole["obs"], slice(0, total + final))}
        return
    columns = [*_COLUMNS, "next_obs"] if isinstance(table.view, di_store.Transition) else list(_COLUMNS)
    for keys in _runs(table):
        batches = list(_peeked(table, keys, _ROWS, columns=columns))
        whole = {name: joined([batch.data[name] for batch in batches]) for name in columns}
        live = np.flatnonzero(np.concatenate([np.asarray(batch.live) for batch in batches]))
        for piece in np.split(live, np.flatnonzero(np.diff(live) != 1) + 1):
            if piece.size:
                rows = cut(whole, slice(int(piece[0]), int(piece[-1]) + 1))
                if "next_obs" in rows:
                    rows["obs"] = joined([rows["obs"], cut(rows.pop("next_obs"), slice(-1, None))])
                yield rows


def _runs(table: di_store.Table) -> Iterator[Any]:
    """The keys of rows that follow each other in one episode, in the order of the episodes' first rows."""
    keys = table.keys()
    places = [(batch.episodes, batch.starts) for batch in _peeked(table, keys, _ROWS, columns=["reward"])]
    if not places:
        return
    episodes, starts = (np.concatenate(column) for column in zip(*places, strict=True))
    _, first, number = np.unique(episodes, return_index=True, return_inverse=True)
    order = np.lexsort((starts, first[number]))
    episodes, starts = episodes[order], starts[order]
    cuts = np.flatnonzero((np.diff(starts) != 1) | (episodes[1:] != episodes[:-1])) + 1
    yield from np.split(keys[order], cuts)


def _peeked(table: di_store.Table, keys: Any, rows: int, **options: Any) -> Iterator[di_store.Batch]:
    for start in range(0, len(keys), rows):
        yield table.peek(keys[start : start + rows], **options)


def _buffer(rows: dict[str, Any], space: dict[str, Any]) -> Any:
    """An episode as Minari takes it; None if it has no whole step."""
    total = len(rows["reward"])
    ends = total > 0 and bool(rows["terminated"][-1])
    observed = len(next(leaves(rows["obs"])))
    if observed == total and ends:  # nothing follows a terminated episode, so any final observation will do
        rows["obs"] = joined([rows["obs"], cut(rows["obs"], slice(-1, None))])
    elif observed == total:
        total -= 1
    if total < 1:
        return None
    flags = np.array(rows["truncated"][:total])
    flags[-1] |= not ends
    return EpisodeBuffer(
        observations=original(space["obs"], mapped(lambda leaf: np.array(leaf[: total + 1]), rows["obs"])),
        actions=original(space["action"], mapped(lambda leaf: np.array(leaf[:total]), rows["action"])),
        rewards=rows["reward"][:total].tolist(),
        terminations=rows["terminated"][:total].tolist(),
        truncations=flags.tolist(),
    )


def _grouped(episodes: Iterator[Any]) -> Iterator[list[Any]]:
    """Lists of several episodes, because Minari opens its file once for each list."""
    while several := list(islice(episodes, 64)):
        yield several
