"""Calls as they are sent in one frame: consecutive calls of one form share a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from di_store.client.lanes import Row, Sent
from di_store.protocol.frame import Buffer, Kind
from di_store.protocol.rows import ALIGNMENT, Record, Records
from di_store.protocol.values import padded


class Outgoing(NamedTuple):
    """A message that is to be sent."""

    kind: Kind
    request: int
    meta: bytes
    body: list[Buffer]


def runs_of(calls: Sequence[Sent]) -> list[list[Sent]]:
    """The calls, in order, grouped into runs that share a record."""
    runs: list[list[Sent]] = []
    last: Row | None = None
    for call in calls:
        row = call if type(call) is Row and call.form is not None else None
        if row is not None and last is not None and row.follows(last):
            runs[-1].append(row)
        else:
            runs.append([call])
        last = row
    return runs


def meta_of(epoch: int, acknowledged: int, runs: list[list[Sent]]) -> bytes:
    """Meta of the frame."""
    records = []
    for run in runs:
        record = run[0].record
        if len(run) > 1:
            record = Record(
                record.seq, record.method, record.lead, record.groups, record.lane, record.priority, count=len(run)
            )
        records.append(record)
    return msgspec.msgpack.encode(Records(epoch, acknowledged, records))


def body_of(runs: list[list[Sent]]) -> list[Buffer]:
    """Body of the frame: calls in blocks are sent from where they lie."""
    body: list[Buffer] = []
    for run in runs:
        first = run[0]
        if type(first) is Row and first.block is not None:
            body.append(first.block.bytes(first.at, len(run)))
        else:
            body += padded(first.arrays, ALIGNMENT)
    return body
