"""Bytes that a table must reserve so that `capacity` items are sure to fit.

The core computes the rows of a chunk and the block that it occupies, with the same function that its writers use.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from di_store import _core
from di_store.base.errors import CapacityError
from di_store.base.sizes import format_size
from di_store.columns.column import MAX_BYTES
from di_store.columns.schema import Schema
from di_store.layout.plan import Layout, make_layout, sparse_columns
from di_store.layout.shape import slots_for
from di_store.policy.limiters import Queue, Stack
from di_store.policy.samplers import MaxHeap, MinHeap, Once, Prioritized
from di_store.policy.settings import Settings
from di_store.policy.views import Group, Sequence

MIB = 1 << 20
_MOST_ROW = 1 << 39
"""Upper bound in bytes for the values of a row, above what any store holds: keeps 64-bit products from overflowing."""
_SLACK = 1.1
_MOST_ITEM_CHUNK = 4 * MIB
_OUT_OF_ORDER_ROWS, _OUT_OF_ORDER_BYTES = 8, 64 << 10
_TABLE_BYTES = 16384
_GROUP_BYTES = 28  # a slot's place in the chain of its group, and in the index of groups
_ENDED_BYTES = 256 << 10  # values of groups that ended (native/replay/ended_groups.h)
_AHEAD = 64 << 10  # small blocks take their pages 16 at a time
_LEAST_TARGET = 256
_LEAST_SHARED = 16 << 10  # chunks are not cut smaller than this so that those of all lanes fit
_OPEN_CHUNKS = 3  # of a lane, whatever its view: the one being written, one before it, and a partly unused one
_LEAST_OPAQUE = 4 * MIB  # Python values vary in size, and only the first is known


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def chunk_rows(layout: Layout, target: int, least_rows: int, heap_per_row: int, tables: int = 1) -> tuple[int, int]:
    """Rows of a chunk of about `target` bytes, at least `least_rows`, and its block, as in writers."""
    return _core.plan_chunk(*layout.sizes, min(target, 1 << 62), least_rows, min(heap_per_row, _MOST_ROW), tables)


class ChunkHeap(msgspec.Struct, frozen=True):
    """Bytes of the values of varying length, which lie together at the end of a chunk.

    Attributes:
        per_row: estimate for each row; 0: no such column.
        row_max: the most bytes that the bounded ragged values of a row can need.
        bounded: whether all ragged columns have a bound.
    """

    per_row: int
    row_max: int
    bounded: bool


def chunk_heap(settings: Settings, schema: Schema, sparse: frozenset[str], example_bytes: int = 0) -> ChunkHeap:
    """Bytes that ragged and sparse columns need in a chunk.

    Args:
        settings: settings of the table.
        schema: schema of the stream.
        sparse: columns stored only where a sequence starts.
        example_bytes: size of a typical value of the columns without a bound, if one is known.
    """
    per_row, row_max, bounded = 0.0, 0, True
    view = settings.view
    period = view.rows_added if isinstance(view, Sequence) else 1
    least = least_rows(settings)
    for column in schema:
        if column.ragged and column.row_bytes is None:
            bounded = False
            per_row += example_bytes or max(128, schema.fixed_row_bytes)
        elif column.ragged:
            row_max += _up(column.row_bytes or 0, 16)
            per_row += _up(column.row_bytes or 0, 16)
        elif column.name in sparse:
            row_max += _up(column.element_bytes, 16)
            # Every `period`-th row, and one more in each chunk, wherever it begins.
            per_row += min(1.0, 1 / period + 1 / least) * _up(column.element_bytes, 16)
    return ChunkHeap(math.ceil(per_row), row_max, bounded)


def least_rows(settings: Settings) -> int:
    """The least number of rows of a chunk: those of one item, or few if items leave out of order."""
    spanned = max(1, settings.view.rows_spanned)
    return spanned if settings.in_order else min(_OUT_OF_ORDER_ROWS, spanned)


class Reserve(NamedTuple):
    """The bytes that a table reserves for chunks.

    Attributes:
        bytes: all bytes.
        open_bytes: the part for open chunks of the lanes, which does not depend on the capacity.
        chunk_block: bytes that a chunk occupies at least; 0: unchanged.
        chunk_head: the part of these bytes that a disk tier leaves in memory; 0: unchanged.
    """

    bytes: int
    open_bytes: int
    chunk_block: int = 0
    chunk_head: int = 0

    @property
    def item_bytes(self) -> int:
        """The part for items, in proportion to the capacity."""
        return self.bytes - self.open_bytes

    @property
    def in_memory(self) -> int:
        """The part that a disk tier leaves in memory: heads and open chunks."""
        return min(self.bytes, self.open_bytes + self.chunks * self.chunk_head)

    @property
    def chunks(self) -> int:
        """How many chunks it holds; 0: not known yet."""
        return self.bytes // self.chunk_block if self.chunk_block else 0

    @property
    def descriptor_bytes(self) -> int:
        """Approximate bytes for descriptors of its chunks in a store without other tables.

        The first segment of descriptors exists; each later one doubles them.
        """
        return 2 * _core.DESCRIPTOR_BYTES * max(0, self.chunks - _core.FIRST_DESCRIPTORS)

    def with_parts(self, item_bytes: int, open_bytes: int, max_bytes: int | None) -> Reserve:
        """A copy with these parts, cut to `max_bytes` in total."""
        total = item_bytes + open_bytes
        total = total if max_bytes is None else min(total, max_bytes)
        return self._replace(bytes=total, open_bytes=min(open_bytes, total))


class Claims(NamedTuple):
    """Claims that a table already has, without item slots and trees.

    Bytes of memory, bytes of both tiers together, and how many chunks have descriptors promised.
    """

    memory: int = 0
    tiers: int = 0
    chunks: int = 0


_NO_CLAIMS = Claims()


class Cut(msgspec.Struct, frozen=True):
    """The chunk sizes of the writers of a stream.

    Attributes:
        target: intended bytes of a chunk.
        least_rows: rows that a chunk holds at least.
    """

    target: int
    least_rows: int


class TableNeeds(msgspec.Struct, frozen=True):
    """The needs of one table, and the chunk sizes for its writers.

    Attributes:
        reserve: bytes reserved for chunks.
        open_bytes: bytes for open chunks of the lanes; with `max_bytes` this may exceed the reserve.
        item_bytes: bytes of one item, which each held draw is charged.
        cut: the sizes of its chunks.
        meta_bytes: bytes of item slots and trees, without existing ones.
        text: the origin of the bytes, for `CapacityError`.
        memory_text: the origin of the bytes that a disk tier leaves in memory.
        expect: expected size of its rows in memory, divided by their size on disk.
    """

    reserve: Reserve
    open_bytes: int
    item_bytes: int
    cut: Cut
    meta_bytes: int
    text: str
    memory_text: str = ""
    expect: float = 1.0

    @property
    def own_bytes(self) -> int:
        """Bytes of memory beside chunks, if the table is alone in its store: item slots, trees and descriptors."""
        return self.meta_bytes + self.reserve.descriptor_bytes

    @property
    def total(self) -> int:
        """Bytes of memory that the table claims in a store without a disk, alone there."""
        return self.reserve.bytes + self.own_bytes

    @property
    def in_tiers(self) -> int:
        """Bytes for chunks that the table claims of memory and disk together: items shrink to 1/`expect` on disk."""
        return _core.in_tiers(*self.reserve, self.expect)

    @property
    def in_memory(self) -> int:
        """Bytes of memory that the table always claims in a store with a disk, alone there."""
        return self.reserve.in_memory + self.own_bytes


def table_needs(
    settings: Settings,
    schema: Schema,
    capacity: int | None,
    example_bytes: int = 0,
    cut: Cut | None = None,
    lanes: int | None = None,
) -> TableNeeds:
    """The needs of a table for `capacity` items of this schema.

    Args:
        settings: settings of the table.
        schema: schema of its rows.
        capacity: number of items; None: as many as fit `max_bytes`.
        example_bytes: size of a typical value of the columns without a bound, if one is known.
        cut: the chunk sizes of a stream over several tables; None: as for the table alone.
        lanes: number of open lanes; None: the option `lanes=`.

    Raises:
        ValueError: a ragged column without `max` in a table without `max_bytes`. CapacityError: rows too large.
    """
    lanes = settings.lanes if lanes is None else lanes
    layout = make_layout(schema, sparse_columns([(settings.view, schema)]))
    heap = chunk_heap(settings, schema, layout.sparse, example_bytes)
    _check_heap(settings, schema, capacity, heap)
    row = max(1, layout.row_bytes + heap.per_row)
    if cut is None:
        cut = own_cut(settings, layout, heap, capacity, row)
    rows, block = chunk_rows(layout, cut.target, cut.least_rows, heap.per_row)
    lane_bytes = _lane_bytes(settings, rows, block)
    open_bytes = lanes * lane_bytes
    dominant = f"column {schema.dominant.name!r} ({schema.dominant.type_text}) takes most"
    if settings.max_bytes is not None and settings.max_bytes < lane_bytes:
        raise CapacityError(
            f"max_bytes={settings.max_bytes:,} is too small for the open rows of one lane: rows of {row:,} "
            f"bytes, of which {dominant}, need {lane_bytes:,} bytes",
            remedy="raise max_bytes=, or leave it out if capacity= is given",
        )
    total = _reserve_bytes(settings, capacity, heap, rows, block, open_bytes)
    head = _core.chunk_head(*layout.sizes, rows, rows * heap.per_row, 1, settings.pack_rows)
    reserve = Reserve(total, min(open_bytes, total), block, head)
    added = settings.view.rows_added
    what = "max_bytes" if capacity is None else f"capacity={capacity:,} items × {added:,} rows × {row:,} bytes"
    opened = f"{format_size(reserve.open_bytes)} for open chunks of lanes={lanes}"
    return TableNeeds(
        reserve,
        open_bytes,
        max(64, math.ceil(added * (block / rows))),
        cut,
        meta_bytes(settings, capacity),
        f"{what}, of which {dominant}, and {opened}",
        f"{_heads_text(schema, reserve.in_memory - reserve.open_bytes)}{opened}",
        settings.expect,
    )


def _heads_text(schema: Schema, count: int) -> str:
    """A text on the `count` bytes in heads of chunks, with the column that takes most of them; "": no such bytes."""
    if count == 0:
        return ""
    text = f"{format_size(count)} for heads of chunks, "
    late = [column for column in schema if column.late]
    if not late:
        return text
    most = max(late, key=lambda column: column.row_bytes or 0)
    return f"{text}of which late column {most.name!r} ({most.type_text}) takes most, "


def _check_heap(settings: Settings, schema: Schema, capacity: int | None, heap: ChunkHeap) -> None:
    """Refuse rows of ragged columns without a bound on their bytes, or with a bound too large for a chunk."""
    if not heap.bounded and settings.max_bytes is None and not settings.opaque:
        name = next(column.name for column in schema if column.ragged and column.max_rows is None)
        raise ValueError(
            f"column {name!r} is ragged without a bound, so capacity={capacity} says nothing about bytes: "
            f"declare Spec(…, max=…), or give max_bytes="
        )
    if heap.row_max > MAX_BYTES:
        raise CapacityError(
            f"the ragged columns of a row take up to {heap.row_max:,} bytes, and together they must lie within 4 GiB",
            remedy="lower Spec(max=), or keep large values as objects with store.put() and write their ids",
        )


def _reserve_bytes(
    settings: Settings, capacity: int | None, heap: ChunkHeap, rows: int, block: int, open_bytes: int
) -> int:
    """Bytes to reserve, given the rows of a chunk, its block, and the bytes of the open chunks."""
    limit = settings.max_bytes
    if capacity is None:
        return limit or 0
    items = items_kept(settings, capacity) * settings.view.rows_added * (block / rows)
    total = math.ceil(items * _bytes_per_live_byte(settings, rows)) + open_bytes + _AHEAD
    if limit is not None:
        return min(total, limit) if heap.bounded else limit
    return max(total, _LEAST_OPAQUE) if settings.opaque else total


def cut_for_all(tables: list[tuple[Settings, TableNeeds]], layout: Layout, heap_per_row: int, lanes: int) -> Cut:
    """Chunks for all tables of a stream. Each table pays for the chunks that it holds.

    A chunk should hold the longest item whole. But a table that keeps few rows still holds two or three chunks in each
    lane. So chunks are small enough that these take at most the bytes of the table's items, or of its reserve for open
    chunks.

    Args:
        tables: settings, and each table's own needs for the stream's rows.
        layout: layout of these rows.
        heap_per_row: bytes of a row's values of varying length.
        lanes: lanes of the writer.
    """
    target = min(needed.cut.target for _, needed in tables)
    rows = [needed.cut.least_rows for _, needed in tables]
    if not all(settings.in_order for settings, _ in tables):
        return Cut(target, min(rows))
    block = min(_shared_block(settings, needed, lanes) for settings, needed in tables)
    return _cut_to(Cut(target, max(rows)), block, layout, heap_per_row, min(rows), len(tables))


def _shared_block(settings: Settings, needed: TableNeeds, lanes: int) -> int:
    reserve = needed.reserve.bytes
    room = min(reserve, max(needed.open_bytes, reserve - needed.open_bytes))
    return room // (_OPEN_CHUNKS * max(settings.lanes, lanes))


def cut_for_one(settings: Settings, needed: TableNeeds, layout: Layout, heap_per_row: int, lanes: int) -> Cut:
    """Chunks of a stream of one table; smaller if the open chunks of its lanes would not fit otherwise."""
    cut = needed.cut
    if lanes > settings.lanes:
        cut = Cut(max(_LEAST_TARGET, cut.target * settings.lanes // lanes), cut.least_rows)
    elif settings.max_bytes is None:
        return cut
    return _cut_to(cut, needed.reserve.bytes // (_OPEN_CHUNKS * lanes), layout, heap_per_row, 1, 1)


def _cut_to(cut: Cut, block: int, layout: Layout, heap_per_row: int, least_rows: int, tables: int) -> Cut:
    block = max(_LEAST_SHARED, block)
    most, _ = chunk_rows(layout, block, least_rows, heap_per_row, tables)
    return Cut(min(cut.target, block), min(cut.least_rows, most))


def needs_without_rows(settings: Settings) -> TableNeeds:
    """The needs of a table before its first step declares the columns."""
    reserve = settings.max_bytes or 0
    text = f"capacity={settings.capacity} items and max_bytes={settings.max_bytes}"
    cut = Cut(_LEAST_TARGET, 1)
    return TableNeeds(Reserve(reserve, 0), 0, 64, cut, meta_bytes(settings, None), text, expect=settings.expect)


def own_cut(settings: Settings, layout: Layout, heap: ChunkHeap, capacity: int | None, row: int) -> Cut:
    """The chunk sizes of a table that shares no chunks; `row`: bytes of one row."""
    if not settings.in_order:
        few = min(_OUT_OF_ORDER_ROWS, max(1, _OUT_OF_ORDER_BYTES // row))
        return Cut(_core.chunk_bytes(*layout.sizes, few, _up(few * heap.per_row, 64)), 1)
    least = least_rows(settings)
    whole = min(capacity or 2**62, 2**62) * settings.view.rows_added * row
    if settings.max_bytes is not None:
        whole = min(whole, settings.max_bytes)
    least = min(least, max(1, _MOST_ITEM_CHUNK // row))
    return Cut(max(_LEAST_TARGET, min(MIB, whole // (8 * settings.lanes))), least)


def items_kept(settings: Settings, capacity: int) -> int:
    """The number of items that must fit: one append may lift a queue above its size by an item for each lane."""
    limiter = settings.limiter
    return max(capacity, limiter.size + settings.lanes) if isinstance(limiter, (Queue, Stack)) else capacity


def _bytes_per_live_byte(settings: Settings, rows: int) -> float:
    """Slack, final observations of episodes of ten steps, and chunks of which some rows belong to no item any more.

    If items leave in random order, a chunk stays until the last of its m items has left. With equal probabilities this
    takes H_m = 1 + 1/2 + … + 1/m times as long as for one item (measured: 4.7 for 64 rows).
    """
    finals = 1.1
    if settings.in_order:
        return _SLACK * finals
    apart = 1 if isinstance(settings.view, Group) else settings.view.rows_added  # a group's rows may lie anywhere
    touching = max(1, (rows + settings.view.rows_spanned - 1) // apart)
    harmonic = sum(1 / number for number in range(1, touching + 1))
    if isinstance(settings.remover, (MinHeap, MaxHeap)):
        harmonic = min(2 * harmonic, float(touching))
    return _SLACK * finals * harmonic


def _lane_bytes(settings: Settings, rows: int, block: int) -> int:
    """The chunks of one lane: the open one, earlier ones of an unfinished item, and the oldest, partly unused one."""
    spanned = settings.view.rows_spanned
    return block * (2 + -(-max(spanned - 1, 0) // rows))


def meta_bytes(settings: Settings, capacity: int | None) -> int:
    """Item slots, order and trees."""
    slots = slots_for(capacity, settings.view)
    each = _core.ITEM_BYTES + 8 + 8
    if isinstance(settings.view, Group):
        each += _GROUP_BYTES
    if isinstance(settings.sampler, (Prioritized, MinHeap, MaxHeap, Once)):
        each += 24
    if settings.remover != settings.sampler:
        each += 16
    return slots * each + _TABLE_BYTES + (_ENDED_BYTES if isinstance(settings.view, Group) else 0)


def make_room(arena: _core.Arena, name: str, needed: TableNeeds, seconds: float, held: Claims = _NO_CLAIMS) -> None:
    """Refuse a table that cannot fit before anything is taken. A store of ``memory="fit"`` grows instead.

    With a disk tier, memory must hold item slots, trees, heads and open chunks; all other bytes lie in memory or on
    disk. Rows of other tables leave memory to make room.

    Args:
        arena: arena of the store.
        name: name of the table.
        needed: needs of the table.
        seconds: seconds to wait for locks that stopped processes hold; negative: no limit.
        held: claims that this table already has.

    Raises:
        CapacityError: the table does not fit; the text has both numbers and the dominant column.
    """
    descriptors = arena.descriptor_bytes(max(0, needed.reserve.chunks - held.chunks), seconds)
    needed = msgspec.structs.replace(needed, meta_bytes=needed.meta_bytes + descriptors)
    wanted = needed.meta_bytes + (needed.reserve.in_memory if arena.tiered else needed.reserve.bytes)
    least = 0 if arena.fit else max(0, wanted - held.memory)
    while True:
        in_memory = wanted - arena.available(least, seconds) - held.memory
        in_both = _short_of_both(arena, needed, held)
        if max(in_memory, in_both) <= 0:
            return
        if arena.fit:
            grow(arena, max(in_memory, in_both), seconds)
        elif in_memory > 0:
            raise _short(name, needed, wanted, in_memory, in_both, arena.tiered)
        else:
            raise _short_in_both(name, needed, in_both)


def _short_of_both(arena: _core.Arena, needed: TableNeeds, held: Claims) -> int:
    """Bytes that memory and disk together lack for the table; 0 or less: the table fits."""
    if not arena.tiered:
        return 0
    total = needed.in_tiers + needed.meta_bytes
    return total - arena.left_in_tiers() - held.tiers


def grow(arena: _core.Arena, more: int, seconds: float) -> None:
    """Raise the memory limit of a store of ``memory="fit"``, so that a table can set `more` bytes aside.

    Raises:
        CapacityError: machine or cgroup has too little memory; nothing was changed.
    """
    more += more // 128 + MIB  # the store keeps a small part of its memory for itself
    wanted, most = arena.budget + more, _core.memory_total()
    if wanted > most:
        raise CapacityError(
            f'store {arena.name!r} has memory="fit" and would grow to {format_size(wanted)}; this machine allows '
            f"{format_size(most)}",
            remedy="lower capacity=, max_bytes= or lanes= of a table",
        )
    arena.grow(more, seconds)


def _short(name: str, needed: TableNeeds, wanted: int, short: int, in_both: int, tiered: bool) -> CapacityError:
    whatever = " in memory, even with a disk tier," if tiered else ""
    where = needed.memory_text if tiered and needed.memory_text else needed.text
    return CapacityError(
        f"table {name!r} needs {format_size(wanted)} ({wanted:,} bytes){whatever} and {format_size(wanted - short)} "
        f"({wanted - short:,} bytes) of the store's memory are available: {where}, and "
        f"{format_size(needed.meta_bytes)} for item slots and trees",
        remedy="lower capacity=, max_bytes= or lanes=, or raise memory= by "
        f"{_raised(max(short, in_both))} (also online: store.resize(memory=))",
    )


def _short_in_both(name: str, needed: TableNeeds, short: int) -> CapacityError:
    total = needed.in_tiers + needed.meta_bytes
    return CapacityError(
        f"table {name!r} needs {format_size(total)}, and memory and disk have {format_size(total - short)} left for "
        f"tables: {needed.text}, and {format_size(needed.meta_bytes)} for item slots and trees",
        remedy=f"lower capacity= or max_bytes=, raise memory= by {_raised(short)} or disk_capacity= by "
        f"{_raised(_core.least_disk(short, 0))} (also online: store.resize()), or say with compress=Compress(expect=) "
        "how much smaller the rows become on disk",
    )


def _raised(more: int) -> str:
    """The increase of a limit for `more` bytes: whole MiB, with the store's own share."""
    return f"{more // MIB + more // (128 * MIB) + 2} MiB"
