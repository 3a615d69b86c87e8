"""`di-store dashboard`: a web page about the stores of this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click

import di_store
from di_store.base.listen import open_listener
from di_store.cli.common import InputFile, Stop, no_such_store, stops_between_calls, store_names
from di_store.server.orders import server_context
from di_store.server.supervisor import is_loopback, place_of

DEFAULT_PORT = 7371


@click.command(short_help="Show the stores in a web browser.")
@click.argument("stores", metavar="[STORE]...", nargs=-1, shell_complete=store_names)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help=f"Port on this machine's loopback; 0 picks a free one. [default: {DEFAULT_PORT}]",
)
@click.option("--listen", default=None, help="HOST:PORT to listen on, for browsers of other machines. Needs TLS.")
@click.option("--tls-cert", type=InputFile(), default=None, help="Certificate (PEM).")
@click.option("--tls-key", type=InputFile(), default=None, help="Key (PEM) of that certificate.")
@click.option(
    "--decode",
    multiple=True,
    metavar="TABLE.COLUMN=MODULE:FUNCTION",
    help="Show a column's values as the text that the function makes of each.",
)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
def dashboard(
    stores: tuple[str, ...],
    port: int | None,
    listen: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    decode: tuple[str, ...],
    no_browser: bool,
) -> None:
    """Show all stores of this user on this machine, or the given ones, on a web page, until Ctrl-C or SIGTERM.

    The URL that is printed holds a token, new with each start: whoever knows it can read the stores. The page changes
    nothing. To look at another machine, run this there, and `ssh -L 7371:127.0.0.1:7371 MACHINE` here.
    """
    try:
        from di_store.dashboard.app import DashboardServer
        from di_store.dashboard.decoders import decoders
        from di_store.dashboard.watch import StoreWatch
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise click.ClickException(f"the dashboard needs {package}: pip install 'di-store[dashboard]'") from None
    if port is not None and listen is not None:
        raise ValueError("--listen names a port too: leave --port out")
    host, number = place_of(listen) if listen else ("127.0.0.1", DEFAULT_PORT if port is None else port)
    tls, known_decoders = _tls(host, tls_cert, tls_key), decoders(decode)
    known = sorted({each.name for each in di_store.list_stores()})
    for name in stores:
        if name not in known:
            raise no_such_store(name, known)
    option = "--listen HOST:PORT" if listen else "--port"
    bound, token = open_listener(host, number, option), secrets.token_urlsafe(24)
    with bound, Stop().installed() as stop:
        watch = StoreWatch(stores)
        server = DashboardServer(watch, bound, token, host, tls, known_decoders)
        server.start()
        try:
            shown = f"[{host}]" if ":" in host else host
            place = f"{shown}:{bound.getsockname()[1]}"
            url = f"{'https' if tls else 'http'}://{place}/?token={token}"
            click.echo(url)
            click.echo(f"the dashboard runs there until Ctrl-C or SIGTERM: pid {os.getpid()}")
            with stops_between_calls(watch.readers.none), contextlib.nullcontext() if no_browser else _opened(url):
                while not stop.wait(60):
                    pass
        finally:
            server.stop()


def _tls(host: str, cert: str | None, key: str | None) -> tuple[str, str] | None:
    """The files for TLS; None: none is wanted."""
    if cert is not None and key is not None:
        server_context(cert, key)
        return cert, key
    if cert is not None or key is not None:
        raise ValueError("--tls-cert and --tls-key belong together: give both or none")
    if not is_loopback(host):
        raise ValueError(
            f"--listen {host} can be reached from other machines, and without TLS anyone on the network path can read "
            "everything: give --tls-cert and --tls-key, or use `ssh -L`"
        )
    return None


@contextlib.contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open a browser, if this process has a terminal and a screen.

    The browser gets a file of this user that leads to `url`: other users of the machine can read its command line.
    """
    if not (sys.stdout.isatty() and any(os.environ.get(each) for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="di-store-") as folder:
        page = Path(folder) / "dashboard.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">')
        if not webbrowser.open(page.as_uri()):
            click.echo("no browser could be opened: open the URL yourself", err=True)
        yield
