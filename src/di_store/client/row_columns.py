"""The leaves of steps as arrays of known columns. They are copied, so the program may reuse its own arrays."""

from __future__ import annotations

from typing import Any

from di_store.base import tree
from di_store.client.forms import Block, CallForm
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.protocol.connection import MAX_CALL_BYTES

_MOST_FORMS = 8  # each holds a block
_MOST_AXES = 24  # numpy has 32, of which calls and their leading axes take some


class RowColumns:
    """Writes steps as values of known columns."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[str, tuple[int, Column]] = {c.name: (at, c) for at, c in enumerate(schema)}
        self._due = {at for at, column in enumerate(schema) if not column.late}
        self._fixed = not any(column.ragged or len(column.shape) > _MOST_AXES for column in schema)
        self._forms: dict[Any, CallForm] = {}
        self._last: CallForm | None = None
        self.plain: CallForm | None = None
        """The form of the last call, if it was an `append` without leading axes."""

    def write(self, argument: str, step: Any, next: Any, lead: tuple[int, ...]) -> tuple[CallForm, Block, int] | None:
        """Copy the values of a call. Returns the call's form and the values' place; None: the call needs a round trip.

        Raises:
            SchemaMismatch: a value does not fit its column.
        """
        form = self._last
        if form is not None and form.lead == lead and form.argument == argument:
            found = form.write(step, next)
            if found is not None:
                return form, *found
        form = self._form(argument, step, next, lead)
        if form is None:
            return None
        found = form.write(step, next)
        if found is None:  # a mapping that is no dict, or keys that are no plain text
            found = form.write(_plain(step), None if next is None else _plain(next))
        if found is None:
            return None
        self._last = form
        self.plain = form if argument == "step" and not lead else None
        return form, *found

    def _form(self, argument: str, step: Any, next: Any, lead: tuple[int, ...]) -> CallForm | None:
        if not self._fixed or not isinstance(step, dict) or not (next is None or isinstance(next, dict)):
            return None
        groups = [self._columns(given) for given in ((step,) if next is None else (step, next))]
        key = (argument, lead, *(tuple(number for number, _ in group) for group in groups))
        form = self._forms.get(key)
        if form is None:
            form = CallForm(argument, lead, groups, self._due <= {number for number, _ in groups[0]})
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[key] = form
        usable = (argument != "step" or form.complete) and 0 < form.stride <= MAX_CALL_BYTES // 2
        return form if usable else None

    def _columns(self, given: dict[str, Any]) -> list[tuple[int, Column]]:
        """The columns that a step or `next` gives, in the order of the schema."""
        found = []
        for name, leaf in tree.flatten(given).items():
            known = self._known.get(name)
            if known is None:
                raise self._schema.unknown(name, leaf)
            found.append(known)
        return sorted(found, key=lambda each: each[0])


def _plain(given: Any) -> dict[str, Any]:
    """The same as plain nested dicts."""
    return tree.unflatten(tree.flatten(given))
