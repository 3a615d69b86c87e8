"""What a named load is made of: tables, who does what at which rate, and what must hold. Plain data.

A load is carried by real processes (`crew.py`): each `Role` is a number of processes with the same duties. A duty with
a rate is paced by absolute time, each process taking its share of the rate; a duty whose rate is None runs as fast as
it can; one whose rate is 0 only fills tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from di_store.workloads.duties import Append, Draw, Duty, Get, Insert, Put
from di_store.workloads.tables import TablePlan

LEAST_OBJECT_BYTES = 1 << 20
"""Size of an object that no scale goes below."""


@dataclass(frozen=True)
class Role:
    """A number of processes with the same duties."""

    name: str
    processes: int
    duties: tuple[Duty, ...]


@dataclass(frozen=True)
class Bar:
    """What must hold: `figure` of the result ">=", "<=" or "<" `value`."""

    figure: str
    relation: str
    value: float
    text: str

    def holds(self, figure: float) -> bool:
        """Whether `figure` meets it."""
        if self.relation == ">=":
            return figure >= self.value
        return figure <= self.value if self.relation == "<=" else figure < self.value


@dataclass(frozen=True, kw_only=True)
class Load:
    """A named load.

    Attributes:
        roles: the processes.
        most: after the paced run, labels of duties that run as fast as they can, one phase after the other; their rates
            over the paced ones are the headroom.
        bars: beside those of every load: its rates are reached, and nothing is damaged.
        seconds: measured by default.
        objects_bytes: that weights take in the store.
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
    def inserts_per_second(self) -> float:
        """Items a second of all paced writers."""
        total = 0.0
        for _, plan in self.duties:
            if isinstance(plan, (Insert, Append)) and plan.rate is not None:
                table = self.table(plan.table if isinstance(plan, Insert) else plan.tables[0])
                total += plan.rate / table.view.rows_added
        return total

    @property
    def paced(self) -> bool:
        """Whether it has rates to hold."""
        return any(duty.rate for _, duty in self.duties)

    def scaled(self, scale: float) -> Load:
        """With a share of the items and of large objects' bytes; rates stay, batches shrink to what a table takes."""
        if scale == 1:
            return self
        tables = tuple(table.scaled(scale) for table in self.tables)
        by_name = {table.name: table for table in tables}

        def duty(plan: Duty) -> Duty:
            if isinstance(plan, Insert):
                return replace(plan, batch=max(1, min(plan.batch, by_name[plan.table].capacity // 2)))
            if isinstance(plan, (Put, Get)):
                return replace(plan, size=min(plan.size, max(LEAST_OBJECT_BYTES, round(plan.size * scale))))
            if isinstance(plan, Draw) and plan.trim:
                return replace(plan, trim=max(1, round(plan.trim * scale)))
            return plan

        roles = tuple(replace(role, duties=tuple(map(duty, role.duties))) for role in self.roles)
        return replace(self, tables=tables, roles=roles)

    def lanes(self, table: str) -> int:
        """Lanes that write to a table at once, with that of the process that fills it."""
        count = 1
        for role, plan in self.duties:
            if isinstance(plan, Insert) and plan.table == table:
                count += role.processes
            elif isinstance(plan, Append) and table in plan.tables:
                count += role.processes * max(1, plan.lanes)
        return count

    @property
    def memory_bytes(self) -> int:
        """Cap of a store that holds it all, with room for open chunks and batches being drawn; committed only as used.

        Rows of some hundred KB leave up to a sixth of a chunk empty, and tables reserve a fifth more than their items.
        """
        total = self.objects_bytes + (192 << 20)
        for table in self.tables:
            item = table.sizes[1] or table.item_bytes
            open_chunk = max(1 << 20, table.view.rows_spanned * table.row_bytes)
            total += round(table.capacity * (item * 1.6 + 192)) + 4 * self.lanes(table.name) * open_chunk
            total += int(table.settings.get("max_bytes", 0))
        for role, plan in self.duties:
            if isinstance(plan, Draw):
                drawn = map(self.table, plan.tables)
                item = max(table.sizes[1] or table.item_bytes for table in drawn)
                total += 3 * role.processes * plan.batch * item
            elif isinstance(plan, Put):  # each client's object, another on its way in, and the one that all get
                total += round((2 * role.processes + 1) * (plan.size * 1.15 + (4 << 20)))
        return total
