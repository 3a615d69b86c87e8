"""`di-store serve`: keep a store alive, and serve it to other machines."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

import click

import di_store
from di_store.base.errors import StoreClosed
from di_store.cli.common import InputFile, Stop, json_option, print_json, store_names
from di_store.cli.progress import progress_bar
from di_store.cluster.listing import listed
from di_store.cluster.rejoining import SETTLE_SECONDS, fetch, settling
from di_store.cluster.watching import watching
from di_store.observe.metrics import check_library
from di_store.server.engine import BULK_KINDS, OWN
from di_store.server.supervisor import Serving, Supervisor, TlsFiles, is_listed
from di_store.store.opening import check_held

LOOK_SECONDS = 0.1
_SETTLED_LOOK_SECONDS = 0.02
AFTER_SECONDS = 60.0
"""How long a store outlives the process of ``--while-pid``: others may still read it, or start that process again."""


def etcd_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options for access to etcd: they set environment variables of this process and its agent."""
    for name, help_text in reversed(_ETCD_OPTIONS.items()):
        variable = f"DI_STORE_ETCD_{name.upper()}"

        def note(context: click.Context, option: click.Parameter, value: str | None, variable: str = variable) -> None:
            if value is not None:
                os.environ[variable] = value

        text = f"{help_text} [default: ${variable}]"
        command = click.option(f"--etcd-{name}", expose_value=False, default=None, callback=note, help=text)(command)
    return command


_ETCD_OPTIONS = {
    "ca": "CA certificate (PEM) of etcd, or `system`. Encrypts the calls.",
    "cert": "Client certificate (PEM) for etcd.",
    "key": "Key (PEM) of that certificate.",
    "user": "User of etcd; the password is in $DI_STORE_ETCD_PASSWORD.",
}


@click.command(short_help="Serve a store to other machines until Ctrl-C.")
@click.argument("name", required=False, shell_complete=store_names)
@click.option("--memory", default="25%", show_default=True, help="Memory limit of the store, if it does not exist yet.")
@click.option("--disk", default=None, help="Folder of the disk tier, if the store does not exist yet.")
@click.option("--disk-capacity", default=None, help="Limit on the disk tier's files, such as 100GiB.")
@click.option(
    "--listen", default="127.0.0.1:7370", show_default=True, help="HOST:PORT to listen on; port 0 picks a free one."
)
@click.option(
    "--token-file",
    type=InputFile(),
    default=None,
    help="File with the token. [default: $DI_STORE_TOKEN; on loopback your own]",
)
@click.option(
    "--tls-cert",
    type=InputFile(),
    default=None,
    help="Certificate (PEM). Beyond loopback, TLS or --plaintext is required.",
)
@click.option("--tls-key", type=InputFile(), default=None, help="Key (PEM) of that certificate.")
@click.option(
    "--tls-ca",
    type=InputFile(),
    default=None,
    help="CA certificate of the other nodes. [default: the system's]",
)
@click.option(
    "--peers", default=None, help="All nodes of the cluster, this one included: HOST:PORT,...; the same list on each."
)
@click.option("--join", default=None, help="Directory of the cluster: etcd://HOST:PORT,.../NAME.")
@etcd_options
@click.option(
    "--rejoin", default=None, help="Take over the synced tables of a lost node, given as machine, store or HOST:PORT."
)
@click.option(
    "--while-pid",
    default=None,
    type=click.IntRange(1, 2**31 - 1),
    help="Exit a minute after this process, a raylet, has exited.",
)
@click.option(
    "--plaintext", is_flag=True, help="Serve other machines without TLS, or use --bulk. Only for trusted networks."
)
@click.option("--allow-pickle", is_flag=True, help="Accept pickles from clients. A pickle may run any code here.")
@click.option(
    "--bulk",
    default=OWN,
    show_default=True,
    type=click.Choice(BULK_KINDS),
    help="Transport for large objects; see docs.",
)
@click.option(
    "--metrics",
    default=None,
    help="HOST:PORT, or a port of loopback, where Prometheus finds metrics; 0: any free port.",
)
@json_option
def serve(
    name: str | None,
    memory: str,
    disk: str | None,
    disk_capacity: str | None,
    listen: str,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    peers: str | None,
    join: str | None,
    rejoin: str | None,
    while_pid: int | None,
    plaintext: bool,
    allow_pickle: bool,
    bulk: str,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Open the store NAME, or attach to it, and serve it to clients until Ctrl-C or SIGTERM.

    Clients call `di_store.connect` with the address that is printed first. This process holds the store; a child, the
    agent, talks to the clients, and is restarted if it dies.
    """
    nodes = tuple(each.strip() for each in (peers or "").split(",") if each.strip())
    if peers is not None and not nodes:
        raise click.UsageError(
            "--peers names no node: give HOST:PORT of every node, this one included, or leave it out"
        )
    if metrics is not None:
        _check_metrics()
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    serving = Serving(listen, token_file, tls, plaintext, allow_pickle, nodes, join, bulk, metrics)
    if rejoin is not None:
        _take_over(rejoin, disk, serving)
    with Stop().installed() as stop:
        with progress_bar("opening", as_json):
            store = di_store.open(name, memory=memory, disk=disk, disk_capacity=disk_capacity)
        try:
            supervisor = Supervisor(store, serving)
        except BaseException:  # also Ctrl-C: the store ends with its server
            store.close()
            raise
        try:
            with (
                listed(join, store.name, supervisor.address),
                settling(store.name, disk, serving) as settled,
                watching(store, supervisor.address, serving),
            ):
                if rejoin is not None:  # who reads that it is served opens the tables next
                    _await(settled, stop, supervisor)
                _tell(store.name, supervisor, nodes, as_json)
                serve_until(stop, store, supervisor, _Ended(while_pid))
        finally:
            supervisor.end()
            store.close()


def _check_metrics() -> None:
    try:
        check_library()
    except ImportError as error:
        raise click.ClickException(str(error)) from None


def _tell(name: str, supervisor: Supervisor, peers: tuple[str, ...], as_json: bool) -> None:
    """Print what clients need, and a warning if this node seems to be missing from its own list."""
    if peers and not is_listed(supervisor.address, peers):
        told = f"none of --peers {','.join(peers)} has the port of {supervisor.address}: is this node in the list?"
        click.echo(f"di-store: {told} If not, other nodes cannot find it", err=True)
    if as_json:
        more = {"metrics": supervisor.metrics_url} if supervisor.metrics_url else {}
        print_json(
            {"address": supervisor.address, "name": name, "pid": os.getpid(), "agent": supervisor.agent_pid, **more}
        )
    else:
        click.echo(supervisor.address)
        click.echo(f"serving store {name!r} there until Ctrl-C or SIGTERM: pid {os.getpid()}")
        if supervisor.metrics_url:
            click.echo(f"metrics: {supervisor.metrics_url}")


def _take_over(lost: str, disk: str | None, serving: Serving) -> None:
    """Bring the tables of a lost node to this one's disk."""
    if disk is None:
        raise ValueError("--rejoin copies tables to the disk of this node: give --disk")
    click.echo(f"looking for a backup of node {lost!r}", err=True)
    with progress_bar("copying"):
        came = fetch(disk, lost, serving)
    told = (
        f"the tables of node {lost} were copied to {disk}" if came else f"{disk} already has tables: nothing was copied"
    )
    click.echo(told, err=True)


def _await(settled: threading.Event, stop: Stop, supervisor: Supervisor) -> None:
    """Wait until the lost node's tables are this node's, but not long: a thread goes on with it."""
    end = time.monotonic() + SETTLE_SECONDS
    while not settled.is_set() and time.monotonic() < end and not stop.wait(_SETTLED_LOOK_SECONDS):
        supervisor.look()


class _Ended:
    """Whether another process, if one is given, ended a while ago."""

    def __init__(self, pid: int | None) -> None:
        self._poll = select.poll()
        self._since: float | None = None
        if pid is not None:
            try:
                self._poll.register(os.pidfd_open(pid), select.POLLIN)
            except ProcessLookupError:
                self._since = time.monotonic()

    def __call__(self) -> bool:
        if self._since is None and self._poll.poll(0):
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since > AFTER_SECONDS


def serve_until(stop: Stop, store: di_store.Store, supervisor: Supervisor, ended: Callable[[], bool]) -> None:
    """Look after the agent until a signal comes, the store is removed, or `ended` returns true."""
    try:
        while not stop.wait(LOOK_SECONDS) and not ended():
            check_held(store)
            if supervisor.look():
                click.echo(f"the agent died; pid {supervisor.agent_pid} takes its place", err=True)
    except StoreClosed:
        click.echo(f"store {store.name!r} was removed, nothing is left to serve", err=True)
