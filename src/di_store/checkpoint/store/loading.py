"""Fills a new store from a checkpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.store.capture import Progress
from di_store.checkpoint.store.files import read_chunks, read_items
from di_store.checkpoint.store.items import ITEM_WORDS
from di_store.checkpoint.store.manifest import NOWHERE, StoreManifest, TableState, damaged
from di_store.checkpoint.tree.folder import MANIFEST, Folder
from di_store.columns.schema import Schema
from di_store.layout.plan import OPAQUE_SCHEMA
from di_store.layout.reserve import make_room, needs_without_rows, table_needs
from di_store.layout.shape import UNLIMITED, limiter_numbers, table_shape
from di_store.policy.combination import MAX_CAPACITY
from di_store.policy.limiters import Bounds, lasting_kind, with_bounds
from di_store.policy.options import changed
from di_store.policy.samplers import Fifo, Lifo, MaxHeap, MinHeap
from di_store.policy.settings import Settings
from di_store.policy.views import Group, answers_of
from di_store.replay.handle import TableHandle
from di_store.runtime.waits import CALL_SECONDS
from di_store.session import Session

CHOICES = ("capacity", "limiter", "max_bytes", "compress")
"""What `restore(tables=)` may change of a table."""
_STATE, _NUMBER, _PRIORITY, _PLACE, _SPAN = 0, 1, 2, 4, 5  # words of an item (native/base/item.h)
_GENERATIONS = 2**28
_KINDS, _WAITING, _MEMBER = np.uint64(15), 3, 4  # bits of a state, and two of their values


def read_manifest(path: str | os.PathLike[str]) -> tuple[Folder, StoreManifest]:
    """The manifest of the checkpoint in a folder.

    Raises: CorruptData, LayoutMismatch: there is no checkpoint, or it cannot be read.
    """
    folder = Folder(path)
    text = folder.small(MANIFEST) if os.path.isdir(folder.path) else None
    if text is None:
        raise CorruptData(
            f"{folder.path!r} holds no checkpoint: there is no {MANIFEST} in it",
            remedy="give the folder of a checkpoint",
        )
    return folder, StoreManifest.unpack(folder.at(MANIFEST), text)


def _settings(state: TableState) -> Settings:
    """A table's settings at the instant: `resize` and `configure` may have changed the original ones."""
    own, limits = Settings.from_text(state.config), state.limiter
    bounds = Bounds(limits.min_size, limits.ratio, limits.min_diff, limits.max_diff)
    if not 1 <= state.capacity * answers_of(own.view) <= MAX_CAPACITY and state.capacity < UNLIMITED:
        raise ValueError(f"capacity={state.capacity}")
    return msgspec.structs.replace(
        own,
        capacity=None if state.capacity >= UNLIMITED else state.capacity,
        max_bytes=None if state.max_bytes >= UNLIMITED else state.max_bytes,
        limiter=with_bounds(own.limiter, bounds),
    )


class _Table:
    """A table of a checkpoint: its settings in the restored store, and its items."""

    def __init__(self, folder: Folder, state: TableState, chosen: Mapping[str, Any], maker: str) -> None:
        self.state, self.chosen = state, chosen
        try:
            own = _settings(state)
        except (CorruptData, ValueError, TypeError) as error:
            raise damaged(folder.at(MANIFEST), f"has a damaged description of table {state.name!r}: {error}") from None
        # A sound table passes as it was, also if its settings could no longer be chosen together.
        self.settings = msgspec.structs.replace(own if not chosen else changed(own, chosen), made=maker)
        image = read_items(folder, state.states)
        self.items: Array = image.pop("items").reshape(-1, ITEM_WORDS).copy()
        self.image: dict[str, Any] = image
        self.removed = 0
        self._evict()

    @property
    def packed_anew(self) -> bool:
        """Whether its rows are to be packed in another way than in the checkpoint."""
        return "compress" in self.chosen

    @property
    def present(self) -> Array:
        """Slots of the items that are not free."""
        return np.flatnonzero(self.items[:, _STATE] & _KINDS)

    def _evict(self) -> None:
        """If the new capacity is smaller, the remover picks the items to leave out. A group is one item."""
        capacity, slots = self.settings.capacity, self.present
        kinds = self.items[slots, _STATE] & _KINDS
        leaders = slots[kinds != _MEMBER]
        smaller = capacity is not None and capacity < self.state.capacity
        if capacity is None or not smaller or len(leaders) <= capacity or self.settings.queued:
            return
        gone = self._victims(leaders)[: len(leaders) - capacity]
        self.removed = len(gone)
        members = slots[kinds == _MEMBER]
        led_by = self.items[members, _SPAN] & np.uint64(0xFFFFFFFF)
        self._free(np.concatenate([gone, members[np.isin(led_by, gone)]]))

    def _victims(self, slots: Array) -> Array:
        """These items in the order in which they are removed (native/replay/table_core.h: victim)."""
        waits = (self.items[slots, _STATE] & _KINDS) == _WAITING
        live, waiting = slots[~waits], slots[waits]
        numbers, priorities = self.items[live, _NUMBER], self.items[live, _PRIORITY].view(np.float64)
        remover = self.settings.remover
        if isinstance(remover, Fifo):
            order = np.argsort(numbers)
        elif isinstance(remover, Lifo):
            order = np.argsort(numbers)[::-1]
        elif isinstance(remover, (MinHeap, MaxHeap)):
            order = np.lexsort((numbers, priorities if isinstance(remover, MinHeap) else -priorities))
        else:
            order = np.random.default_rng(self.settings.seed).permutation(len(live))
        waiting = waiting[np.argsort(self.items[waiting, _NUMBER])]
        before = np.full(len(waiting), len(live))
        if isinstance(self.settings.view, Group) and len(live):  # unless it began after the one that is picked
            newest = np.maximum.accumulate(numbers[order])
            before = np.searchsorted(newest, self.items[waiting, _NUMBER], side="right")
        found: Array = np.insert(live[order], before, waiting)
        return found

    def _free(self, gone: Array) -> None:
        """Free these slots."""
        generation = (self.items[gone, _STATE] >> np.uint64(4)) + np.uint64(1)
        self.items[gone] = 0
        self.items[gone, _STATE] = (generation % np.uint64(_GENERATIONS)) << np.uint64(4)
        for name, left in (("dense", "dense_left"), ("removed_from", "removed_left")):
            stays = ~np.isin(self.image[name], gone)
            self.image[left] = int(stays[: getattr(self.state, left)].sum())
            self.image[name] = self.image[name][stays]
        self.image["free"] = np.concatenate([self.image["free"], gone.astype(np.uint32)])

    def create(self, session: Session, seconds: float) -> TableHandle:
        """Make the table."""
        arena, state = session.arena, self.state
        if not arena.tiered:
            self.settings = msgspec.structs.replace(self.settings, compress="auto", durability="memory")
        settings = self.settings
        if settings.schema is None:
            needed = needs_without_rows(settings)
        else:
            needed = table_needs(settings, settings.schema, settings.capacity)
        make_room(arena, state.name, needed, seconds)
        shape = table_shape(settings, state.name, needed.reserve, needed.item_bytes)
        shape["slots"] = max(shape["slots"], len(self.items))
        handle = TableHandle(arena, _core.Table.create(arena, shape, seconds), session.versions)
        if settings.schema is None and state.schema:
            self._declare(handle, seconds)
        else:
            handle.publish_layout(seconds)
        return handle

    def _declare(self, handle: TableHandle, seconds: float) -> None:
        if handle.opaque:
            handle.reserve_opaque(self._example_bytes(handle), seconds)
            return
        try:
            schema = Schema.from_plain(msgspec.json.decode(self.state.schema))
        except (CorruptData, ValueError, TypeError, KeyError) as error:
            raise damaged("the checkpoint", f"has damaged columns of table {self.state.name!r}: {error}") from None
        handle.declare(schema, seconds)

    def _example_bytes(self, handle: TableHandle) -> int:
        """Bytes of a Python value for which an item is charged about as much as in the saved store."""
        low, high = 1, max(2, self.state.item_bytes)
        while low < high:
            middle = (low + high) // 2
            needed = table_needs(handle.settings, OPAQUE_SCHEMA, self.settings.capacity, middle)
            low, high = (low, middle) if needed.item_bytes >= self.state.item_bytes else (middle + 1, high)
        return low

    def filled(self, slots: int, descriptors: Array) -> dict[str, Any]:
        """The image for a table of so many slots, whose items name the chunks of this store.

        Args:
            slots: of the table, at least as many as were saved.
            descriptors: descriptors here by descriptor of the saved store; `NOWHERE`: there is none.
        """
        items = np.zeros((slots, ITEM_WORDS), np.uint64)
        items[: len(self.items)] = self.items
        present = self.present
        places = items[present, _PLACE]
        chunks = descriptors[(places >> np.uint64(32)).astype(np.int64)].astype(np.uint64)
        items[present, _PLACE] = (chunks << np.uint64(32)) | (places & np.uint64(0xFFFFFFFF))
        state, more = self.state, np.arange(len(self.items), slots, dtype=np.uint32)
        image = {"dense_left": state.dense_left, "removed_left": state.removed_left} | self.image
        image |= {name: getattr(state, name) for name in ("alpha", "beta", "max_staleness")}
        image |= {"counts": msgspec.structs.asdict(state.counts), "limiter": msgspec.structs.asdict(state.limiter)}
        image["counts"]["removed"] += self.removed
        return image | {"items": items.reshape(-1), "free": np.concatenate([self.image["free"], more])}


class StoreLoad:
    """A checkpoint that is read into a new store."""

    def __init__(
        self,
        folder: Folder,
        manifest: StoreManifest,
        tables: Mapping[str, Mapping[str, Any]],
        makers: Mapping[str, str] | None = None,
        own: bool = False,
    ) -> None:
        """Read the checkpoint's description of its tables.

        Args:
            folder: folder of the checkpoint.
            manifest: manifest of the checkpoint.
            tables: as in `restore`.
            makers: identities by table, for tables that keep their identity.
            own: whether the checkpoint lies in the folder of the disk tier of the store that is filled.
        """
        self._folder, self._manifest, self._own = folder, manifest, own
        names = [state.name for state in manifest.tables]
        if not isinstance(tables, Mapping) or not all(isinstance(chosen, Mapping) for chosen in tables.values()):
            raise TypeError(
                'tables= is a dict of table names, each with a dict of options: {"replay": {"capacity": 1000}}'
            )
        for name, chosen in tables.items():
            if name not in names:
                raise ValueError(f"tables={{{name!r}: …}}: the checkpoint has tables {names}")
            if wrong := sorted(set(chosen) - set(CHOICES)):
                raise ValueError(
                    f"tables={{{name!r}: {{{wrong[0]!r}: …}}}}: only {', '.join(CHOICES)} of a table can be "
                    "changed by restore()"
                )
        known = makers or {}
        self._tables = [
            _Table(folder, state, tables.get(state.name, {}), known.get(state.name, "")) for state in manifest.tables
        ]
        self._chunks = read_chunks(folder, manifest)
        self._files: dict[int, _core.SavedFile] = {}
        self._lock = threading.Lock()  # of what the reading threads share
        self._done = 0

    def fill(self, session: Session, progress: Progress | None) -> None:
        """Make tables, rows, items, objects and weights."""
        seconds = CALL_SECONDS
        restore = _core.Restore(session.arena, self._manifest.next_stream, self._manifest.next_uid, seconds)
        self._objects(restore, seconds)
        handles = [table.create(session, seconds) for table in self._tables]
        for handle, table in zip(handles, self._tables, strict=True):
            index, generation, pack_rows = table.state.index, table.state.generation, table.settings.pack_rows
            restore.add_table(handle.native, index, generation, pack_rows, table.packed_anew)
        layouts = [restore.add_layout(layout, seconds) for layout in self._manifest.layouts]
        descriptors = self._rows(restore, layouts, progress, seconds)
        for number, (handle, table) in enumerate(zip(handles, self._tables, strict=True)):
            image = table.filled(int(handle.native.stats()["slots"]), descriptors)
            restore.fill(number, image, seconds)
            if "limiter" in table.chosen:
                chosen, own = table.settings.limiter, _settings(table.state).limiter
                handle.native.configure(
                    limiter_numbers(chosen), None, ..., None, seconds, lasting_kind(chosen) != lasting_kind(own)
                )
        restore.end_chunks(seconds)

    def _file(self, number: int) -> _core.SavedFile:
        with self._lock:
            if number not in self._files:
                segments = self._manifest.segments
                if number >= len(segments):
                    raise damaged(self._folder.path, "names files that it does not have")
                segment = segments[number]
                try:
                    os.stat(self._folder.at(segment.file))
                except FileNotFoundError:
                    raise damaged(self._folder.path, f"lacks the file {segment.file}") from None
                except OSError:
                    pass  # what opens it says why that fails
                self._files[number] = _core.SavedFile(self._folder.at(segment.file), bytes.fromhex(segment.uuid))
            return self._files[number]

    # -- rows ---------------------------------------------------------------------------------------------------

    def _rows(self, restore: _core.Restore, layouts: list[int], progress: Progress | None, seconds: float) -> Array:
        """Make the chunks that items need. Returns their descriptors by descriptor of the saved store."""
        chunks = self._chunks
        used = self._used()
        made = np.full(len(chunks["uid"]), NOWHERE, np.uint32)
        by_file: dict[int, list[int]] = {}  # each is read by one thread
        wanted = [number for number, tables in enumerate(used) if tables]
        for number in wanted:
            by_file.setdefault(self._body_file(number), []).append(number)

        def make(some: Iterator[list[int]]) -> None:
            for numbers in some:
                for number in numbers:
                    made[number] = self._chunk(restore, layouts, number, used[number], seconds)
                    if progress is not None:
                        with self._lock:
                            self._done += 1
                            progress(self._done, len(wanted))

        self._link_files(restore, wanted, used, seconds)
        with_helpers(by_file.values(), make, min(THREADS, len(by_file)))
        descriptors = np.full(int(chunks["chunk"].max(initial=0)) + 1, NOWHERE, np.uint32)
        descriptors[chunks["chunk"]] = made
        for number in wanted:
            following = int(chunks["next"][number])
            if following < len(descriptors) and descriptors[following] != NOWHERE:
                restore.link(int(made[number]), int(descriptors[following]))
        return descriptors

    def _link_files(self, restore: _core.Restore, wanted: list[int], used: list[list[int]], seconds: float) -> None:
        """Have the disk tier take over the saved store's files."""
        chunks, kept, loaded = self._chunks, dict[int, list[int]](), dict[int, list[int]]()
        packed_anew = {number for number, table in enumerate(self._tables) if table.packed_anew}
        for number in wanted:
            if (body := int(chunks["body_segment"][number])) != NOWHERE:
                to = kept if packed_anew.isdisjoint(used[number]) else loaded
                to.setdefault(body, []).append(int(chunks["body_page"][number]))
        files = [[(self._file(body), at) for body, at in pages.items()] for pages in (kept, loaded)]
        restore.link_files(files[0], files[1], self._own, seconds)

    def _body_file(self, number: int) -> int:
        body = int(self._chunks["body_segment"][number])
        return int(self._chunks["segment"][number]) if body == NOWHERE else body

    def _chunk(self, restore: _core.Restore, layouts: list[int], number: int, tables: list[int], seconds: float) -> int:
        chunks = self._chunks
        layout = int(chunks["layout"][number])
        if layout >= len(layouts):
            raise damaged(self._folder.path, "has rows of an unknown layout")
        body = int(chunks["body_segment"][number])
        return restore.add_chunk(
            self._file(int(chunks["segment"][number])),
            int(chunks["page"][number]),
            None if body == NOWHERE else self._file(body),
            int(chunks["body_page"][number]),
            layouts[layout],
            int(chunks["rows"][number]),
            tables,
            seconds,
        )

    def _used(self) -> list[list[int]]:
        """By chunk: the tables that have items in it."""
        chunks = self._chunks
        number_of = np.full(max(int(chunks["chunk"].max(initial=0)) + 2, 2), -1, np.int64)
        number_of[chunks["chunk"]] = np.arange(len(chunks["chunk"]))
        following = number_of[np.minimum(chunks["next"], len(number_of) - 1)]
        rows = chunks["rows"].astype(np.int64)
        used: list[list[int]] = [[] for _ in rows]
        for table_number, table in enumerate(self._tables):
            items = table.items[table.present]
            place = items[:, _PLACE]
            first = (place >> np.uint64(32)).astype(np.int64)
            at = np.where(first < len(number_of), number_of[np.minimum(first, len(number_of) - 1)], -1)
            left = (place & np.uint64(0xFFFFFFFF)).astype(np.int64)
            left += ((items[:, _SPAN] >> np.uint64(32)) & np.uint64(0xFFFFF)).astype(np.int64)
            seen = np.zeros(len(rows), bool)
            steps = 0
            while len(at):
                if (at < 0).any() or (steps := steps + 1) > len(rows):
                    raise CorruptData(f"the checkpoint in {self._folder.path!r} lacks rows of its items")
                seen[at] = True
                left = left - rows[at]
                more = left > 0
                at, left = following[at[more]], left[more]
            for number in np.flatnonzero(seen).tolist():
                used[number].append(table_number)
        return used

    # -- objects ------------------------------------------------------------------------------------------------

    def _objects(self, restore: _core.Restore, seconds: float) -> None:
        versions: dict[bytes, tuple[int, int]] = {}
        for weights in self._manifest.weights:
            entry = restore.add_weights(weights.name, weights.newest, weights.oldest, seconds)
            versions |= {bytes.fromhex(id_): (entry, version) for version, id_ in weights.versions}
        for segment, page in self._manifest.objects:
            restore.add_objects(self._file(segment), page, versions, seconds)
