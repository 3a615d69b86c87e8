"""Every command ends an argument that it cannot use with one line and a status, whatever the argument is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import di_store
from di_store.cli import main

ODD = {
    "empty": "",
    "control": "a\x1b[31m\nb",
    "null": "a\x00b",
    "long": "x" * 300,
    "very long": "x" * 5000,
    "no text": "\udcff\udcfe",
    "surrogate": "\ud800",
    "negative": "-1",
    "nan": "nan",
    "infinite": "inf",
    "beyond a float": "1e400",
    "huge": "9" * 23,
    "folder": "folder",
    "missing": "no/such/file",
    "endless": "/dev/full",
}
SERVE = ("serve", "NEW", "--memory", "16MiB", "--listen", "127.0.0.1:0")
QUICK = ("--seconds", "0.01", "--rounds", "1")
NAMES = ("no text", "surrogate", "empty", "control", "null", "long", "very long", "missing", "endless")
FILES = ("no text", "surrogate", "null", "folder", "endless")
FORMS: tuple[tuple[tuple[str, ...], tuple[str, ...] | None], ...] = (
    (("inspect", "ODD"), None),
    (("inspect", "STORE", "ODD"), None),
    (("inspect", "STORE", "t", "--items", "ODD"), None),
    (("inspect", "STORE", "t", "--start", "ODD"), None),
    (("inspect", "STORE", "t", "--timeout", "ODD"), None),
    (("top", "ODD", "--once"), None),
    (("top", "STORE", "--once", "--interval", "ODD"), None),
    (("status", "ODD"), None),
    (("ODD",), None),
    (("check", "ODD"), None),
    (("check", "STORE", "--timeout", "ODD"), None),
    (("rm", "ODD"), None),
    (("hold", "ODD"), NAMES),
    (("hold", "NEW", "--memory", "ODD"), None),
    (("checkpoint", "ODD", "out"), None),
    (("checkpoint", "STORE", "ODD"), ("empty", "null", "long", "very long", "no text", "surrogate", "endless")),
    (("restore", "ODD", "NEW"), None),
    (("restore", "folder", "ODD"), None),
    (("restore", "folder", "NEW", "--memory", "ODD"), None),
    (("restore", "folder", "NEW", "--disk", "ODD"), None),
    (("plan", "ODD"), None),
    (("bench", "ODD"), None),
    (("bench", "update", "--memory", "ODD", *QUICK), None),
    (("bench", "S1", "--scale", "ODD"), None),
    (("bench", "update", "--seconds", "ODD"), ("empty", "negative", "nan", "infinite", "beyond a float", "huge")),
    (("demo", "--actors", "0", "--seconds", "ODD"), None),
    (("demo", "--seconds", "0", "--env", "ODD"), None),
    (("demo", "--actors", "0", "--memory", "ODD"), None),
    (("serve", "ODD", "--listen", "127.0.0.1:0"), NAMES),
    (("serve", "NEW", "--memory", "16MiB", "--listen", "ODD"), None),
    (("serve", "NEW", "--memory", "ODD"), None),
    ((*SERVE, "--token-file", "ODD"), (*FILES, "missing")),
    ((*SERVE, "--tls-cert", "ODD"), (*FILES, "missing")),
    ((*SERVE, "--tls-ca", "ODD"), (*FILES, "missing")),
    ((*SERVE, "--while-pid", "ODD"), ("empty", "control", "nan", "negative", "huge", "folder")),
    ((*SERVE, "--disk", "folder", "--disk-capacity", "ODD"), None),
    ((*SERVE, "--disk", "folder", "--rejoin", "ODD"), ("empty", "control", "null", "folder")),
)
"""Arguments, and which odd values are tried; None: all. With others the command would do its work."""


@pytest.fixture(scope="module")
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB") as made:
        made.create_table("t", capacity=9).insert({"x": 1.0})
        yield made


@pytest.mark.parametrize(("form", "which"), FORMS, ids=[" ".join(form) for form, _ in FORMS])
def test_an_odd_argument_ends_with_one_line(
    form: tuple[str, ...],
    which: tuple[str, ...] | None,
    store: di_store.Store,
    store_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No exception comes out; nothing that a terminal would carry out is printed."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    places = {"STORE": store.name, "NEW": store_name()}
    for name in which or ODD:
        status = main([places.get(each, each.replace("ODD", ODD[name])) for each in form])
        said = capsys.readouterr().err.splitlines()
        lines = [line for line in said if line and not line.startswith(("Usage: ", "Try ", "looking for"))]
        assert status in (1, 2), (name, status)
        assert len(lines) == 1, (name, lines)
        assert lines[0].isprintable(), name
