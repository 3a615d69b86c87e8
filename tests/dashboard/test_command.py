"""How `di-store dashboard` starts, ends, and says in one line why it does not."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from cli_run import command, fails, process
from cluster.certificates import Authority
from pains import Program, status, until

import di_store
from dashboard.visitor import LONGEST, dashboard


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("nowhere",), 1, "no process of this user holds a store named 'nowhere'"),
        (("--listen", "0.0.0.0:0"), 2, "without TLS anyone on the network path can read everything"),
        (("--listen", "127.0.0.1:0", "--port", "0"), 2, "leave --port out"),
        (("--listen", "a/b"), 2, "HOST:PORT"),
        (("--listen", "192.0.2.1:0", "--tls-cert", __file__), 2, "belong together"),
        (("--tls-cert", __file__, "--tls-key", __file__), 2, "cannot be used"),
        (("--port", "65536"), 2, "--port"),
    ],
)
def test_wrong_use_is_said_in_a_line(store_dir: str, arguments: tuple[str, ...], status: int, says: str) -> None:
    assert says in fails(status, "dashboard", "--no-browser", *arguments)


@pytest.mark.parametrize("option", ["--port", "--listen HOST:PORT"])
def test_a_port_that_is_in_use(store_dir: str, option: str) -> None:
    """The advice is about the option that was given."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        place = option.replace("HOST", "127.0.0.1").replace("PORT", port).split()
        said = fails(1, "dashboard", "--no-browser", *(place if len(place) == 2 else (option, port)))
    assert f"port {port} of 127.0.0.1 is in use" in said
    assert f"choose another port with {option}; port 0 picks a free one" in said


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "jinja2"])
def test_a_missing_extra_is_named(store_dir: str, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from di_store.cli import main; sys.exit(main(['dashboard']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"Error: the dashboard needs {missing}: pip install 'di-store[dashboard]'"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(store_dir: str, number: signal.Signals) -> None:
    with process(*command("dashboard", "--no-browser", "--port", "0")) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("http://127.0.0.1:")
        assert str(child.pid) in child.stdout.readline()
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (0, "", "")


def test_ctrl_z_stops_it_between_reads(store_dir: str) -> None:
    """A thread that was stopped while it reads might hold a lock of a table, for which the job would wait."""
    code = """
import os, signal, sys, threading
from di_store.cli.common import stops_between_calls
from di_store.dashboard.watch import Readers
readers, reads, ends = Readers(), threading.Event(), threading.Event()
def read():
    with readers.reading():
        reads.set(), ends.wait()
threading.Thread(target=read).start()
reads.wait()
with stops_between_calls(readers.none):
    threading.Thread(target=lambda: (sys.stdin.readline(), ends.set())).start()
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGTSTP)
    with readers.reading():
        print("goes on", flush=True)
"""
    with Program(code) as child:
        assert child.line() == "ready"
        Event().wait(0.2)
        assert not status(child.pid)["State"].startswith("T")
        child.say()
        until(lambda: status(child.pid)["State"].startswith("T"), "the program to stop")
        child.signal(signal.SIGCONT)
        assert child.line() == "goes on"
        child.finish()


def test_it_goes_on_after_ctrl_z() -> None:
    with di_store.open(f"paused-{os.getpid()}", memory="16MiB") as store, dashboard(store.name) as visitor:
        for _ in range(2):
            os.kill(visitor.pid, signal.SIGTSTP)
            until(lambda: status(visitor.pid)["State"].startswith("T"), "the dashboard to stop")
            os.kill(visitor.pid, signal.SIGCONT)
            assert store.name in visitor.get().text


def test_pages_that_fail_fill_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may read its stderr, such as a program that has started it."""
    code = """
from di_store.dashboard import page_stores
def memory_bar(*_): raise RuntimeError("x" * 10_000)
page_stores.memory_bar = memory_bar
"""
    (tmp_path / "faulty.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        di_store.open(f"failing-{os.getpid()}", memory="16MiB") as store,
        dashboard(store.name, "--decode", "t.x=faulty:memory_bar") as visitor,
    ):
        for _ in range(20):
            answer = visitor.get()
            assert answer.status == 500
            assert "the dashboard failed to make this page: RuntimeError: xxx" in answer.text


def test_it_goes_on_after_too_many_connections(store_name: Callable[[], str]) -> None:
    """Without a free descriptor it can look at no store; and tracebacks would fill its stderr, which nobody reads."""
    names = store_name(), store_name()
    with di_store.open(names[0], memory="16MiB"), dashboard() as visitor, contextlib.ExitStack() as clients:
        resource.prlimit(visitor.pid, resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(100):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", visitor.port)))
            client.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: len(os.listdir(f"/proc/{visitor.pid}/fd")) == 64, "the dashboard to have no descriptor")
        Event().wait(2.5)  # for a look at the stores
        clients.close()
        with di_store.open(names[1], memory="16MiB"):
            visitor.until(lambda answer: names[1] in answer.text)


def test_half_sent_requests_hold_up_nobody(store_name: Callable[[], str]) -> None:
    """They are answered when the rest has come."""
    with (
        di_store.open(store_name(), memory="16MiB") as store,
        dashboard() as visitor,
        contextlib.ExitStack() as clients,
    ):
        request = f"GET / HTTP/1.1\r\nhost: {visitor.host}\r\ncookie: {visitor.cookie}\r\nconnection: close\r\n\r\n"
        halves = []
        for cut in [0, 2, 20, len(request) - 2] * 15:  # more than Starlette has threads for pages
            client = clients.enter_context(socket.create_connection(("127.0.0.1", visitor.port), LONGEST))
            client.sendall(request[:cut].encode())
            halves.append((client, request[cut:].encode()))
        for page in ("", "store", "static/page.js"):
            assert visitor.get(page, store=store.name).status == 200
        for client, rest in halves:
            client.sendall(rest)
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 ")


def test_other_machines_need_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("agent")
    context = ssl.create_default_context(cafile=authority.path)
    with di_store.open(f"far-{os.getpid()}", memory="16MiB") as store:
        listen = ("--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
        with dashboard(store.name, *listen, tls=context) as visitor:
            assert visitor.url.startswith("https://")
            with socket.create_connection(("127.0.0.1", visitor.port)) as half:
                half.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
                assert store.name in visitor.get().text
            answer = visitor.raw(f"/?token={visitor.token}")
            assert "Secure" in answer.headers["set-cookie"].split("; ")
            assert visitor.raw("/", cookie=visitor.cookie, origin=f"http://{visitor.host}").status == 403


def test_a_browser_gets_the_url_in_a_file(store_dir: str, tmp_path: Path) -> None:
    """Not among its arguments, which other users of the machine can read."""
    note = tmp_path / "note"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {note}.tmp\ncat "${{1#file://}}" >> {note}.tmp\nmv {note}.tmp {note}\n')
    browser.chmod(0o755)
    lead, follow = pty.openpty()  # a browser is opened only from a terminal
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    child = subprocess.Popen(command("dashboard", "--port", "0"), stdout=follow, env=environment)
    os.close(follow)
    try:
        url = b""
        while not url.endswith(b"\n"):
            url += os.read(lead, 1)
        os.read(lead, 1_000)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(lead)
    address, page = note.read_text().splitlines()
    token = url.decode().strip().rpartition("token=")[2]
    assert address.startswith("file://")
    assert token not in address
    assert token in page
    assert not Path(address.removeprefix("file://")).exists()


@pytest.mark.extended
def test_the_wheel_has_templates_and_files(tmp_path: Path) -> None:
    import zipfile

    root = Path(__file__).resolve().parents[2]
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-Cwheel.cmake=false")
    subprocess.run([*build, "-w", str(tmp_path), str(root)], check=True, capture_output=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = root / "src/di_store/dashboard"
    found = [each for each in folder.rglob("*.*") if "__pycache__" not in each.parts]
    files = {f"di_store/dashboard/{each.relative_to(folder)}" for each in found}
    assert {"di_store/dashboard/templates/layout.html", "di_store/dashboard/static/page.js"} <= files
    assert not files - names
