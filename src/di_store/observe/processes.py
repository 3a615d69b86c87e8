"""The processes of one store in detail: their commands, the objects they read, and their connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from di_store.observe.listening import command_line, connected_places, user_of
from di_store.observe.report import ClientReport, StoreReport


class PinReport(TypedDict):
    """An object that a process is reading."""

    object: str  # its id
    weights: bool  # whether it is a version of published weights
    bytes: int
    pins: int  # how many arrays or handles of the process keep it


class ProcessReport(ClientReport):
    """One process that has the store open, in more detail."""

    command: str  # "": it is gone, or of another pid namespace
    user: str  # name of the user that runs it; "": as for `command`
    pins: list[PinReport]  # the largest first
    connected: list[str]  # of an agent: HOST:PORT of its clients on other machines, one for each connection


def processes(found: StoreReport, pins: Iterable[tuple[int, bytes, bool, int, int]]) -> list[ProcessReport]:
    """The clients of a report in full detail; `pins`: pins of all slots, as in `store.opening.pins`."""
    by_slot: dict[int, list[PinReport]] = {}
    for slot, raw, weights, size, count in pins:
        by_slot.setdefault(slot, []).append({"object": raw.hex(), "weights": weights, "bytes": size, "pins": count})
    return [_process(client, by_slot.get(client["slot"], [])) for client in found["clients"]]


def _process(client: ClientReport, pins: list[PinReport]) -> ProcessReport:
    near = client["process"] == str(client["pid"])  # else the pid is of another pid namespace
    return {
        **client,
        "command": command_line(client["pid"]) if near else "",
        "user": user_of(client["pid"]) if near else "",
        "pins": sorted(pins, key=lambda pin: -pin["bytes"]),
        "connected": connected_places(client["pid"]) if client["listens"] else [],
    }
