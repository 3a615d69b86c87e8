"""The columns that a view reads and adds, and the checks that a schema fits the view."""

from __future__ import annotations

from collections.abc import Iterable

from di_store.base.tree import is_below
from di_store.columns.schema import Schema
from di_store.policy.views import Episode, Group, Opaque, Sequence, Transition, View


def reserved_names(view: View, schema: Schema) -> frozenset[str]:
    """Names that `view` adds to the batches of a table with these columns.

    Raises:
        ValueError: a column has such a name, or one is an inner node of the other.
    """
    reserved = view.outputs(schema)
    for name in sorted(reserved):
        for column in schema.names:
            if is_below(column, name) or is_below(name, column):
                raise ValueError(
                    f"column {column!r}: {type(view).__name__} puts its own {name!r} into every batch, so one of "
                    f"the two would be lost; rename the column"
                )
    return reserved


def frame_stacks(view: View, schema: Schema) -> dict[str, int]:
    """Frames per stack of every stacked column, with inner nodes resolved.

    Raises:
        ValueError: a name matches no column, or a column is ragged or stacked twice.
    """
    stacks: dict[str, int] = {}
    if isinstance(view, (Transition, Sequence)):
        for name, stack in (view.frame_stack or {}).items():
            for column in schema.select(name, option="frame_stack"):
                if column in stacks:
                    raise ValueError(f"frame_stack names {column!r} twice, once through {name!r}")
                if schema[column].ragged:
                    raise ValueError(f"frame_stack: {column!r} is ragged, and rows of unequal size do not stack")
                stacks[column] = stack
    return stacks


def last_rows(view: View, schema: Schema) -> dict[str, int]:
    """Rows of the columns of `Sequence.last`, with inner nodes resolved.

    Raises:
        ValueError: a name matches no column, or a column that is already in another option or name of `last`.
    """
    found: dict[str, int] = {}
    if isinstance(view, Sequence):
        taken = dict.fromkeys(_selected(schema, view.first, "first"), "first")
        taken |= dict.fromkeys(frame_stacks(view, schema), "frame_stack")
        for name, rows in (view.last or {}).items():
            for column in schema.select(name, option="last"):
                if column in found or column in taken:
                    other = taken.get(column, "last")
                    raise ValueError(f"{column!r} is in last= and {other}=: it can be read in one way only")
                found[column] = rows
    return found


def check_columns(view: View, schema: Schema) -> None:
    """Refuse a schema that `view` cannot work with.

    Raises:
        ValueError: a name clash, or a column that the view needs is missing or of the wrong kind; the text explains.
    """
    if isinstance(view, Opaque):
        raise ValueError("Opaque() keeps whole Python values and has no columns: leave schema= out, or use Step()")
    reserved_names(view, schema)
    stacked = frame_stacks(view, schema)
    _refuse_late(view, schema, stacked)
    if isinstance(view, Group):
        _check_group(view, schema)
    elif isinstance(view, Transition):
        _check_transition(view, schema)
    elif isinstance(view, Sequence):
        first = _selected(schema, view.first, "first")
        bootstrap = _selected(schema, view.bootstrap, "bootstrap")
        last_rows(view, schema)
        for other, columns in (("bootstrap", bootstrap), ("frame_stack", tuple(stacked))):
            for column in sorted(set(first) & set(columns)):
                raise ValueError(
                    f"{column!r} is in first= and {other}=: first keeps it once per window, "
                    f"{other} needs it in further rows"
                )
    elif isinstance(view, Episode):
        _selected(schema, view.bootstrap, "bootstrap")


def _refuse_late(view: View, schema: Schema, stacked: Iterable[str]) -> None:
    """Refuse late columns from which items are made: these must be known when the row is written."""
    used = dict.fromkeys(stacked, "frame_stack")
    if isinstance(view, Transition):
        used |= dict.fromkeys(schema.select(view.obs, option="obs") if view.obs else (), "obs")
        used |= {view.reward: "reward", "discount": "discount"}
    elif isinstance(view, (Sequence, Episode)):
        used |= dict.fromkeys(_selected(schema, view.bootstrap, "bootstrap"), "bootstrap")
    elif isinstance(view, Group):
        used |= {view.by: "by"}
    if isinstance(view, Sequence):
        used |= dict.fromkeys(_selected(schema, view.first, "first"), "first")
    for column in schema:
        if column.late and isinstance(view, Sequence) and view.start == "random":
            raise ValueError(
                f"column {column.name!r} is late, and update() cannot address rows of windows that start at "
                "random: use start='grid', with period=1 for a window at every row"
            )
        if column.late and (column.name in used or column.name == "version"):
            why = f"{type(view).__name__} reads it as {used.get(column.name, 'version')} when the step is appended"
            raise ValueError(f"column {column.name!r} is late, and {why}: declare it without late=True")


def _selected(schema: Schema, columns: Iterable[str], option: str) -> tuple[str, ...]:
    wanted = tuple(columns)
    return schema.select(wanted, option=option) if wanted else ()


def _check_group(view: Group, schema: Schema) -> None:
    if view.by not in schema:
        raise ValueError(
            f"no column {view.by!r}, which Group uses to group rows: add it with the number of each row's "
            "prompt, or name another column with Group(by=)"
        )
    column = schema[view.by]
    if column.ragged or column.shape or column.extension or column.kind != "int":
        raise ValueError(
            f"column {view.by!r} is {column.type_text}: Group(by=) needs one whole number a row, such as int64"
        )


def _check_transition(view: Transition, schema: Schema) -> None:
    if view.reward not in schema:
        hint = "name the column with Transition(reward=), or take view=Step() for rows without reward"
        raise ValueError(f"no column {view.reward!r}, which Transition sums over n_step={view.n_step} steps: {hint}")
    for name, doing in ((view.reward, "sums"), ("discount", "multiplies")):
        if name in schema and (schema[name].kind != "float" or schema[name].extension or schema[name].ragged):
            raise ValueError(
                f"column {name!r} is {schema[name].type_text}: Transition {doing} it with fractions, "
                f"declare it as float32"
            )
    for column in schema.select(view.obs, option="obs") if view.obs else ():
        if column == view.reward:
            raise ValueError(f"obs= and reward= both name {column!r}")
    observed = set(_selected(schema, view.obs, "obs"))
    for column in _selected(schema, view.future, "future"):
        if column not in observed:
            raise ValueError(
                f"{column!r} is in future= and not in obs={view.obs!r}: the later observations include the "
                "final one of an episode, which only holds the columns of obs="
            )
