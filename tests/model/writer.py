"""A writer: lanes, episodes and the items that a call completes.

A call is planned on copies of the lanes (`plan_*`), so that a refused call leaves nothing behind,
and then committed. Rows are flat dicts of one lane; `entries` maps lane numbers to what is appended there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .episodes import Episode, Row, same
from .table import Draft, ModelTable
from .views import Sequence, Window


@dataclass(frozen=True)
class Entry:
    """What one lane appends: the row, what the environment returned with it, and the ended lane's observation."""

    row: Row
    next: Row | None = None
    final: Row | None = None


class Elsewhere(Exception):
    """A repeated value differs from the stored `next`: the lane's episode went on elsewhere (a ValueError)."""


@dataclass
class Lane:
    """One lane: the episode being written, and the lane's whole run for tables that cross episodes."""

    index: int
    episode: Episode
    run: Episode
    drop_next: bool = False
    first_row: Row | None = None
    left: list[Episode] = field(default_factory=list)

    @classmethod
    def fresh(cls, index: int, late: bool = False) -> Lane:
        """A lane before its first row."""
        return cls(index, Episode(0, index, late=late), Episode(0, index, late=late))

    def copy(self) -> Lane:
        """A lane that can be appended to without changing this one."""
        return Lane(self.index, self.episode.copy(), self.run.copy(), self.drop_next, self.first_row)

    def append(self, entry: Entry, autoreset: str | None) -> None:
        """One row; raises `Elsewhere`."""
        if self.drop_next:
            self.drop_next = False
            self.end(entry.row)  # what the ended episode's last step led to, where nothing else told
            self.leave()
            self.episode.following = entry.next
            return
        if self.episode.ended:
            self.leave()
        known = self.episode.following or {}
        row = {**known, **entry.row}
        if any(not same(row[column], value) for column, value in known.items()):
            raise Elsewhere(f"lane {self.index}")
        self.episode.rows.append(row)
        self.episode.origins.append((self.episode.number, len(self.episode.rows) - 1))
        self.run.rows.append(row)
        self.run.origins.append(self.episode.origins[-1])
        self.episode.following = entry.next
        if row.get("terminated", False) or row.get("truncated", False):
            self._flagged(entry, autoreset)

    def _flagged(self, entry: Entry, autoreset: str | None) -> None:
        self.episode.ended = True
        self.drop_next = autoreset == "next_step"
        if autoreset == "same_step":
            self.first_row = entry.next
            self.episode.following = entry.final
        else:
            self.episode.following = entry.final if entry.final is not None else entry.next
        self.episode.settled = self.episode.following is not None

    def end(self, final: Row | None) -> None:
        """End the episode, or give the ended one its final observation."""
        episode = self.episode
        if not episode.settled:
            if final is not None:
                episode.following = {**final, **(episode.following or {})}
            episode.ended = episode.settled = True

    def set_late(self, late: bool) -> None:
        """Whether items wait for the row behind them to be whole."""
        self.episode.late = self.run.late = late

    def across(self) -> Episode:
        """The lane's run, with what is known behind its last row."""
        episode = self.episode
        self.run.following = None if episode.ended else episode.following
        if episode.ended and episode.rows:
            self.run.endings[len(self.run.rows)] = episode
        return self.run

    def withdraw(self) -> Episode:
        """Discard the episode; the run that ends in front of it."""
        run, left = self.run, len(self.run.rows) - len(self.episode.rows)
        run.endings.pop(len(run.rows), None)
        del run.rows[left:], run.origins[left:]
        run.ended, run.following = True, None
        self.run = Episode(0, self.index, late=self.run.late)
        return run

    def leave(self) -> None:
        """Go on to the next episode; the one left gets no final observation any more."""
        self.end(None)
        self.across()
        self.left.append(self.episode)
        number = self.episode.number + bool(self.episode.rows)
        self.episode = Episode(number, self.index, late=self.episode.late)
        self.episode.following, self.first_row = self.first_row, None


@dataclass
class Plan:
    """What a call would do: the lanes after it and the items it completes, in insertion order."""

    lanes: list[Lane]
    drafts: dict[str, list[Draft]]

    def in_result_order(self, table: str) -> list[Draft]:
        """As `Items` lists them: by lane, and in a lane in the order of time."""
        return sorted(self.drafts[table], key=lambda draft: draft.lane)

    def prioritized(self, values: dict[int, float]) -> Plan:
        """The same plan with these priorities by lane, in all tables."""
        return Plan(
            self.lanes,
            {
                name: [replace(draft, priority=values[draft.lane]) for draft in drafts]
                for name, drafts in self.drafts.items()
            },
        )


@dataclass
class ModelWriter:
    """The model of one writer over one or several tables."""

    tables: list[ModelTable]
    lane_count: int = 1
    autoreset: str | None = None
    lanes: list[Lane] = field(default_factory=list)
    late: bool = False

    def __post_init__(self) -> None:
        self.lanes = [Lane.fresh(index, self.late) for index in range(self.lane_count)]

    def plan_append(self, entries: dict[int, Entry]) -> Plan:
        """One row in every lane of `entries`."""
        return self.plan_extend([entries])

    def plan_extend(self, steps: list[dict[int, Entry]]) -> Plan:
        """Several appends in one pass."""
        lanes = [lane.copy() for lane in self.lanes]
        drafts: dict[str, list[Draft]] = {table.name: [] for table in self.tables}
        for entries in steps:
            for index in sorted(entries):
                lanes[index].append(entries[index], self.autoreset)
                self._collect(lanes[index], drafts)
        return Plan(lanes, drafts)

    def plan_end(self, finals: dict[int, Row | None], discard: bool = False) -> Plan:
        """`end_episode` in the lanes of `finals`; with `discard` no further items of these episodes."""
        lanes = [lane.copy() for lane in self.lanes]
        drafts: dict[str, list[Draft]] = {table.name: [] for table in self.tables}
        for index in sorted(finals):
            if discard and self.late:  # items that end with what `next` told are not withdrawn
                lanes[index].set_late(False)
                self._collect(lanes[index], drafts)
            lanes[index].end(finals[index])
            if discard:
                self._collect_withdrawn(lanes[index], drafts)
            else:
                self._collect(lanes[index], drafts)
            lanes[index].leave()
            lanes[index].left.clear()
            lanes[index].set_late(self.late)
        return Plan(lanes, drafts)

    def plan_close(self) -> Plan:
        """The end of the writer: open episodes end, and so do the runs of the lanes."""
        plan = self.plan_end(dict.fromkeys(range(self.lane_count)))
        for lane in plan.lanes:
            lane.run.ended = True
            self._collect(lane, plan.drafts)
        return plan

    def commit(self, plan: Plan) -> None:
        """Make a plan true for the lanes; the caller inserts the drafts."""
        self.lanes = plan.lanes

    def _collect(self, lane: Lane, drafts: dict[str, list[Draft]]) -> None:
        for table in self.tables:
            for episode in [lane.across()] if crosses(table) else [*lane.left, lane.episode]:
                self._make(table, lane, episode, drafts)
        lane.left.clear()

    def _collect_withdrawn(self, lane: Lane, drafts: dict[str, list[Draft]]) -> None:
        """What a discarded episode leaves: the tail of the run in front of it, unless an item reached into it."""
        run = lane.withdraw()
        for table in filter(crosses, self.tables):
            if max(run.made.get(table.name, {0: 0}).values(), default=0) <= len(run.rows):
                self._make(table, lane, run, drafts)

    def _make(self, table: ModelTable, lane: Lane, episode: Episode, drafts: dict[str, list[Draft]]) -> None:
        made = episode.made.setdefault(table.name, {})
        episode = episode.without(table.lacks)
        for window in table.view.windows(episode):
            if window.start not in made:
                made[window.start] = window.stop
                number, start = episode.origins[window.start]
                example = table.view.example(episode, window)
                version = oldest_version(episode, window)
                drafts[table.name].append(Draft(lane.index, number, start, example, version=version))


def crosses(table: ModelTable) -> bool:
    """Whether its sequences run over episode ends."""
    return isinstance(table.view, Sequence) and table.view.cross_episodes


def oldest_version(episode: Episode, window: Window) -> int:
    """The smallest value of the column `version` in the item's rows; -1 without that column."""
    return min(int(row.get("version", -1)) for row in episode.rows[window.start : window.stop])
