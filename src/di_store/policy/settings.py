"""A table's settings: checked, complete, and in the form in which the store saves them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from di_store.base import config
from di_store.base.errors import CorruptData
from di_store.columns.schema import Schema
from di_store.policy.compression import Compress, Compression, compress_from_plain, compress_to_plain
from di_store.policy.limiters import LIMITERS, Limiter, Queue, Stack, limiter_to_plain
from di_store.policy.samplers import (
    Fifo,
    Once,
    Prioritized,
    Remover,
    Sampler,
    remover_from_plain,
    sampler_from_plain,
    sampler_to_plain,
)
from di_store.policy.views import Opaque, View, view_from_plain, view_to_plain

MOST_MADE = 64
"""The most characters of the text that tells a table from others of its name."""


class Settings(msgspec.Struct, frozen=True):
    """One table's settings at its creation.

    Attributes:
        schema: the columns that `schema=` declared; None: the first step declares them.
        made: text that distinguishes the table from others of its name (`identity_in`); "": chosen when it is made.
        columns: the columns of the stream that a batch holds; None: all.
        initial_priority: "max", or the priority of items inserted without one.
        seed: seed of the table's draws.
        compress: compression of its rows on disk: "auto", a `Compress`, or None for never.
        durability: "disk": the table is written to the folder of the disk tier every `sync_every` seconds.
    """

    view: View
    schema: Schema | None
    sampler: Sampler
    remover: Remover
    limiter: Limiter
    max_times_sampled: int
    capacity: int | None
    max_bytes: int | None
    lanes: int
    weights: str | None
    max_staleness: int | None
    initial_priority: float | str
    columns: tuple[str, ...] | None
    seed: int
    compress: Compression = "auto"
    durability: str = "memory"
    sync_every: float = 10.0
    made: str = ""

    @property
    def in_order(self) -> bool:
        """Whether items leave in insertion order, so that all items of a chunk leave together."""
        return isinstance(self.remover, Fifo) and (not self.max_times_sampled or isinstance(self.sampler, Fifo))

    @property
    def queued(self) -> bool:
        """Whether inserts wait instead of evicting."""
        return isinstance(self.limiter, (Queue, Stack))

    @property
    def uses_items_up(self) -> bool:
        """Whether a draw may take an item that nobody else gets. Then a batch lost in transit is lost data."""
        return bool(self.max_times_sampled) or self.queued or isinstance(self.sampler, Once)

    @property
    def opaque(self) -> bool:
        """Whether items are Python values without columns."""
        return isinstance(self.view, Opaque)

    @property
    def expect(self) -> float:
        """Expected size of its rows in memory, divided by their size on disk; 1: no compression is assumed."""
        return self.compress.expect if isinstance(self.compress, Compress) else 1.0

    @property
    def pack_rows(self) -> int:
        """Rows that an item spans, which is the unit of compression on disk; 0: rows are not compressed."""
        return 0 if self.compress is None else min(max(1, self.view.rows_spanned), 64)

    @property
    def beta(self) -> float | None:
        """The sampler's own exponent of the importance weights."""
        return self.sampler.beta if isinstance(self.sampler, Prioritized) else None

    def difference(self, other: Settings, columns: Schema | None) -> str:
        """The settings among view, schema, sampler and remover that differ, as text; "" if none does.

        Args:
            other: settings that are given for the table with these settings.
            columns: columns of the table, which its first step may have declared; None: not declared yet.
        """
        parts = [
            f"{name}={getattr(other, name)!r} was given, the table has {getattr(self, name)!r}"
            for name in ("view", "sampler", "remover")
            if getattr(self, name) != getattr(other, name)
        ]
        given = None if self.opaque else other.schema  # an opaque table has another view than any given schema
        if given is not None and columns is None:
            parts.append("schema: the table has none yet, its first step will declare it")
        elif given is not None and columns is not None and (text := columns.difference(given)):
            parts.append(f"schema: {text} (the first is the table's)")
        return "; ".join(parts)

    def to_text(self, made: str = "") -> str:
        """Exact JSON. `made`: identity of the table that these settings belong to (`identity_in`)."""
        plain: dict[str, Any] = asdict(self)
        plain["view"] = view_to_plain(self.view)
        plain["sampler"] = sampler_to_plain(self.sampler)
        plain["remover"] = sampler_to_plain(self.remover)
        plain["limiter"] = limiter_to_plain(self.limiter)
        plain["schema"] = None if self.schema is None else self.schema.to_plain()
        plain["compress"] = compress_to_plain(self.compress)
        if plain["compress"] == "auto":
            del plain["compress"]  # files of the first version of the format lack it, and the two below
        if self.durability == "memory":
            del plain["durability"], plain["sync_every"]
        if not (made or self.made):
            del plain["made"]
        elif made:
            plain["made"] = made
        return msgspec.json.encode(plain).decode()

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """The settings that `to_text` described; `CorruptData` if the text does not describe any."""
        try:
            plain = msgspec.json.decode(text)
            plain["made"] = ""  # a description makes another table; `again` makes this one
            view, schema = view_from_plain(plain["view"]), plain["schema"]
            plain["view"] = view
            plain["sampler"] = sampler_from_plain(plain["sampler"])
            plain["remover"] = remover_from_plain(plain["remover"])
            plain["limiter"] = config.from_plain(plain["limiter"], LIMITERS, "limiter")
            plain["schema"] = None if schema is None else Schema.from_plain(schema)
            plain["compress"] = compress_from_plain(plain.get("compress", "auto"))
            plain["columns"] = None if plain["columns"] is None else tuple(plain["columns"])
            return cls(**plain)
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            raise CorruptData(f"the stored settings of a table cannot be read: {error}") from None


def again(text: str) -> Settings:
    """`Settings.from_text`, with the table's identity kept, for a caller that wants exactly this table."""
    made = identity_in(text)
    if len(made) > MOST_MADE:
        raise CorruptData(f"a table is named by {len(made)} characters, at most {MOST_MADE} are allowed", remedy="")
    return replace(Settings.from_text(text), made=made)


def identity_in(text: str) -> str:
    """The identity in a table's stored settings.

    It distinguishes the table from earlier and later tables of its name.
    """
    try:
        return msgspec.json.decode(text, type=_Made).made
    except msgspec.DecodeError as error:
        raise CorruptData(f"the stored settings of a table cannot be read: {error}") from None


def without_identity(text: str) -> str:
    """The stored settings of a table, for a copy elsewhere, which is another table."""
    try:
        plain = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return text  # whoever reads the copy says what is wrong
    plain.pop("made", None)
    return msgspec.json.encode(plain).decode()


class _Made(msgspec.Struct):
    made: str = ""
