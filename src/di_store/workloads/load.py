"""The definition of a named load: its tables, its roles and their rates, and its conditions. Plain data.

A load is carried by real processes (`crew.py`): each `Role` is a number of processes with the same duties. A duty with
a rate is paced by absolute time, and each process takes its share of the rate. A duty whose rate is None runs as fast
as it can; a duty whose rate is 0 only fills tables.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import di_store
from di_store.workloads.duties import Draw, Duty, Get, Put, Write
from di_store.workloads.table_plans import TablePlan

LEAST_OBJECT_BYTES = 1 << 20
"""No scale makes an object smaller than this."""

RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Role:
    """A number of processes with the same duties."""

    name: str
    processes: int
    duties: tuple[Duty, ...]


@dataclass(frozen=True)
class Condition:
    """One condition, and whether it was met; the figure is None if nothing was measured."""

    text: str
    figure: float | None
    relation: str
    value: float
    ok: bool


@dataclass(frozen=True)
class Bar:
    """A condition: `figure` of the result ">=", "<=" or "<" `value`."""

    figure: str
    relation: str
    value: float
    text: str

    def judge(self, figures: Mapping[str, float]) -> Condition:
        """Whether the figures meet the condition."""
        figure = figures.get(self.figure)
        ok = figure is not None and RELATIONS[self.relation](figure, self.value)
        return Condition(self.text, figure, self.relation, self.value, ok)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A named load.

    Attributes:
        roles: the processes.
        most: labels of duties that, after the paced run, run as fast as they can, one phase after the other. Their
            rates divided by the paced ones are the headroom.
        bars: conditions in addition to those of every load: the rates are reached, and nothing is damaged.
        seconds: measured seconds, by default.
        objects_bytes: bytes of weights in the store.
    """

    name: str
    title: str
    tables: tuple[TablePlan, ...] = ()
    roles: tuple[Role, ...]
    most: tuple[tuple[str, ...], ...] = ()
    bars: tuple[Bar, ...] = ()
    seconds: float = 60.0
    objects_bytes: int = 0

    def table(self, name: str) -> TablePlan:
        """The plan of one table."""
        return next(table for table in self.tables if table.name == name)

    @property
    def duties(self) -> tuple[tuple[Role, Duty], ...]:
        """Every duty with its role."""
        return tuple((role, duty) for role in self.roles for duty in role.duties)

    @property
    def paced(self) -> bool:
        """Whether the load has rates to reach."""
        return any(duty.rate for _, duty in self.duties)

    def scaled(self, scale: float) -> Load:
        """The load with a share of the items and of large objects' bytes; rates stay."""

        def duty(plan: Duty) -> Duty:
            if not isinstance(plan, (Put, Get)):
                return plan
            return replace(plan, size=min(plan.size, max(LEAST_OBJECT_BYTES, round(plan.size * scale))))

        roles = tuple(replace(role, duties=tuple(map(duty, role.duties))) for role in self.roles)
        return replace(self, tables=tuple(table.scaled(scale) for table in self.tables), roles=roles)

    def lanes(self, table: str) -> int:
        """Lanes that write to a table at the same time, including the lane of the process that fills it."""
        writers = [(role, plan) for role, plan in self.duties if isinstance(plan, Write) and table in plan.tables]
        return 1 + sum(role.processes * max(1, plan.lanes) for role, plan in writers)

    def create_tables(self, store: di_store.Store) -> None:
        """Make the tables, still empty."""
        for table in self.tables:
            table.create(store, lanes=self.lanes(table.name))

    @property
    def memory_bytes(self) -> int:
        """Memory limit of a store for the whole load, with room for open chunks and batches; committed only when used.

        Rows of some hundred KB leave up to a sixth of a chunk empty, and tables reserve a fifth more than their items.
        """
        total = self.objects_bytes + (192 << 20)
        for table in self.tables:
            open_chunk = max(1 << 20, table.view.rows_spanned * table.row_bytes)
            total += round(table.capacity * (table.stored_bytes * 1.6 + 192))
            total += 4 * self.lanes(table.name) * open_chunk + int(table.settings.get("max_bytes", 0))
        for role, plan in self.duties:
            if isinstance(plan, Draw):
                total += 3 * role.processes * plan.batch * max(self.table(name).stored_bytes for name in plan.tables)
            elif isinstance(plan, Put):  # each client's object, another on its way in, and the one that all get
                total += round((2 * role.processes + 1) * (plan.size * 1.15 + (4 << 20)))
        return total
