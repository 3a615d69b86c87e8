"""The rows of a storage under a name in a store. The first rows that any process writes declare the columns."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

import di_store
from di_store.adapters.stored_array import Array
from di_store.adapters.torchrl.forms import SLOT, Form, Leaf
from di_store.adapters.torchrl.slot_rows import SlotRows, capacities, row_columns

_SMALL_BYTES = 16
"""If a column of rows up to this size is read whole, it is kept, so that samplers find ends of trajectories in it."""


class NamedRows:
    """Rows that processes find by the name of their table. Pickles hold only the name.

    Args:
        store: the store of the rows.
        name: name of the table.
        size: number of rows; rounded up to a multiple of the rows' inner axes.
        sampler: sampler of the table; None: Uniform.
        seed: seed of its draws; None: torch's.
        device: device of the tensors that are returned.

    Attributes:
        sampler: the sampler as given; may be set until there is a table.
    """

    def __init__(
        self, store: di_store.Store, name: str, size: int, sampler: Any, seed: int | None, device: torch.device
    ) -> None:
        self.store, self.name, self.size, self.sampler, self.device = store, name, size, sampler, device
        self._seed = seed
        self._rows: SlotRows | None = None
        self._form: Form | None = None
        self._stored: list[tuple[int, Leaf]] = []
        self.columns: list[str] = []

    @property
    def declared(self) -> bool:
        """Whether the first rows have declared the structure of rows, here or in another process."""
        if self._rows is not None:
            return True
        try:
            table = self.store.table(self.name)
        except di_store.TableNotFound:
            return False
        self._use(self._declared_form(), table)
        return True

    def _declared_form(self) -> Form:
        form = self.store.get(self._form_id())
        if not isinstance(form, Form):
            raise di_store.CorruptData(
                f"the object that describes the rows of table {self.name!r} was not written by this storage"
            )
        return form

    @property
    def rows(self) -> SlotRows:
        """The rows by their slots.

        Raises:
            RuntimeError: nothing was written yet.
        """
        if self._rows is None and not self.declared:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        assert self._rows is not None
        return self._rows

    @property
    def form(self) -> Form:
        """The structure of a row; raises as `rows`."""
        if self._form is None:
            self.rows  # noqa: B018 - opens the table
        assert self._form is not None
        return self._form

    def __len__(self) -> int:
        return len(self.rows) if self.declared else 0

    def declare(self, rows: Any, lead: int, inner: tuple[int, ...]) -> None:
        """Make the table for rows like these, unless another process has made it."""
        form = Form(rows, lead, inner)
        try:
            self.store.put(form, id=self._form_id())
        except di_store.ObjectExists:
            form = self._declared_form()
        options: dict[str, Any] = {"seed": torch.initial_seed() % 2**63 if self._seed is None else self._seed}
        if self.sampler is not None:
            options["sampler"] = self.sampler
        schema = {"row": {**form.columns, SLOT: di_store.Spec((), "i4")}}
        options |= {"capacity": self._slots(form), "schema": schema, "lanes": 1}
        try:
            table = self.store.create_table(self.name, exist_ok=True, **options)
        except di_store.CapacityError as error:
            raise di_store.CapacityError(
                f"{self._slots(form):,} rows of these types do not fit: {error.message}", remedy="lower max_size"
            ) from error
        self._use(form, table)

    def _form_id(self) -> str:
        return hashlib.sha1(f"torchrl/{self.name}".encode()).hexdigest()

    def _slots(self, form: Form) -> int:
        return -(-self.size // form.width) * form.width

    def _use(self, form: Form, table: di_store.Table) -> None:
        self._stored = [(number, leaf) for number, leaf in enumerate(form.leaves) if leaf.column]
        self.columns = row_columns(leaf.column for _, leaf in self._stored)
        self._form, self.size = form, self._slots(form)
        if table.capacity not in capacities(self.size):
            self._form = None
            raise ValueError(
                f"table {self.name!r} of the store was made for another max_size= than {self.size:,}: give "
                "its original max_size=, or table= another name"
            )
        self._rows = SlotRows(table, self.size)

    def write(self, slots: Array, lead: tuple[int, ...], data: Any, turn: bool) -> None:
        """Write rows ``[*lead, …]`` to slots int[n]; `turn`: the ring continues after them.

        Entries that `data` lacks keep their value. Entries that the first rows lacked are left out.
        """
        if not len(slots):
            return
        values = self.form.values(data)
        columns = {leaf.column: leaf.array(values[n], lead) for n, leaf in self._stored if values[n] is not None}
        if len(columns) < len(self._stored):
            missing = [leaf.column for _, leaf in self._stored if leaf.column not in columns]
            columns |= self.rows.read(slots, row_columns(missing))
        self.rows.write(slots, columns, turn)

    def read(self, slots: Array, lead: tuple[int, ...]) -> Any:
        """Rows of slots int[n], with the leading axes `lead`."""
        return self.build(self.rows.read(slots, self.columns), lead)

    def build(self, columns: dict[str, Array], lead: tuple[int, ...]) -> Any:
        """Rows of these columns, ``[n, …]``, with the leading axes `lead`."""
        form, device = self.form, self.device
        leaves, away = form.leaves, device.type != "cpu"

        def tensor(number: int) -> Any:
            leaf = leaves[number]
            found = leaf.tensor(columns[leaf.column], lead) if leaf.column else leaf.empty(lead)
            return found.to(device) if away else found

        return form.build(tensor, lead, device)

    def column(self, number: int, slots: Array, lead: tuple[int, ...], first: bool) -> Any:
        """The tensor of one leaf; `first`: slots are the first ones, in order."""
        leaf, rows = self.form.leaves[number], self.rows
        if not leaf.column:
            return leaf.empty(lead).to(self.device)
        if first and self.is_small(number):
            values = rows.whole(leaf.column)[: len(slots)].copy()
        else:
            values = rows.read(slots, row_columns([leaf.column]))[leaf.column]
        return leaf.tensor(values, lead).to(self.device)

    def is_small(self, number: int) -> bool:
        """Whether a column stays in memory after it was read as a whole."""
        leaf = self.form.leaves[number]
        return bool(leaf.carrier.itemsize * math.prod(leaf.shape) <= _SMALL_BYTES)

    def first(self) -> int:
        """The slot of the oldest row, where the ring begins."""
        return self.rows.next_slot() if len(self) == self.size else 0

    def cursor(self) -> int | None:
        """Where the ring continues, along the first axis; None: nothing was written yet."""
        return self.rows.next_slot() // self.form.width if self.declared else None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None, "_form": None}
