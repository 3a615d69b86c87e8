"""A real etcd that serves TLS alone, asks for a certificate of its clients, and for a user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from pains import until

from cluster.certificates import Authority
from cluster.nodes import Etcd, node
from di_store import cluster
from di_store.base.errors import AccessDenied, NodeUnavailable, StoreError
from di_store.cluster.etcd import EtcdDirectory
from di_store.cluster.etcd_access import EtcdAccess
from di_store.cluster.store import ClusterStore

pytestmark = pytest.mark.extended
SECONDS = 60.0
USERS = {"root": "all", "di": "of the cluster", "other": "of others"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> tuple[str, str]:
    return authority.sign("client", subject="/O=tests")  # etcd takes no common name beside users


def _set_up_users(etcd: Etcd, authority: Authority, client: tuple[str, str]) -> None:
    """Two users besides root, of whom one may write below di-store/; then nobody else may do anything."""

    def post(call: str, **given: object) -> None:
        url = f"https://{etcd.where}/v3/auth/{call}"
        requests.post(url, json=given, verify=authority.path, cert=client, timeout=SECONDS).raise_for_status()

    for name, password in USERS.items():
        post("user/add", name=name, password=password)
    for role in ("root", "store"):
        post("role/add", name=role)
    ends = {"key": "ZGktc3RvcmUv", "range_end": "ZGktc3RvcmUw"}  # di-store/ to di-store0
    post("role/grant", name="store", perm={"permType": "READWRITE", **ends})
    post("user/grant", user="root", role="root")
    post("user/grant", user="di", role="store")
    post("enable")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, authority: Authority, client: tuple[str, str]) -> Iterator[Etcd]:
    tls = (authority.path, *authority.sign("etcd"))
    running = Etcd(tmp_path_factory.mktemp("etcd"), 1, tls)
    try:
        with pytest.MonkeyPatch.context() as patch:
            _say(patch, authority, client)
            EtcdDirectory(running.where).read("k", SECONDS)
        _set_up_users(running, authority, client)
        yield running
    finally:
        running.end()


def _say(patch: pytest.MonkeyPatch, authority: Authority, client: tuple[str, str], user: str = "") -> None:
    given = {"CA": authority.path, "CERT": client[0], "KEY": client[1], "USER": user, "PASSWORD": USERS.get(user, "")}
    for name, value in given.items():
        patch.setenv(f"DI_STORE_ETCD_{name}", value)


def test_a_user_of_the_cluster_reads_and_writes(
    etcd: Etcd, authority: Authority, client: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _say(monkeypatch, authority, client, "di")
    directory = EtcdDirectory(etcd.where)
    assert directory.swap("table/a", None, b"word", SECONDS)
    assert directory.read("table/a", SECONDS) == b"word"


def test_a_client_signs_in_again_when_its_token_has_ended(
    etcd: Etcd, authority: Authority, client: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _say(monkeypatch, authority, client, "di")
    directory = EtcdDirectory(etcd.where)
    directory.read("k", SECONDS)
    directory._members._client(0, SECONDS).session.headers["Authorization"] = "of.another.time"
    assert directory.read("k", SECONDS) is None


@pytest.mark.parametrize("user", ["", "other", "nobody"])
def test_a_refused_user_gets_an_error_at_once(
    user: str, etcd: Etcd, authority: Authority, client: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _say(monkeypatch, authority, client, user)
    with pytest.raises(AccessDenied, match="DI_STORE_ETCD_USER"):
        EtcdDirectory(etcd.where).swap("table/b", None, b"word", None)


def test_unencrypted_calls_and_unknown_authorities_are_refused(
    etcd: Etcd, authority: Authority, client: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NodeUnavailable, match="no member of etcd answers"):
        EtcdDirectory(etcd.where).read("k", 0)
    (tmp_path / "strange").mkdir()
    _say(monkeypatch, Authority(tmp_path / "strange"), client, "di")
    with pytest.raises(NodeUnavailable, match="certificate"):
        EtcdDirectory(etcd.where).read("k", 0)


def test_nodes_join_with_the_options_of_serve(
    etcd: Etcd, authority: Authority, client: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_STORE_ETCD_PASSWORD", USERS["di"])
    options = ["--etcd-ca", authority.path, "--etcd-cert", client[0], "--etcd-key", client[1], "--etcd-user", "di"]
    name = f"ea-{os.getpid()}"
    with (
        node(f"{name}-0", "--join", f"etcd://{etcd.where}/tls", *options) as first,
        node(f"{name}-1", "--join", f"etcd://{etcd.where}/tls", *options),
    ):
        _say(monkeypatch, authority, client, "di")
        with cluster.attach(first.name, timeout=SECONDS) as store:
            until(lambda: seen(store) == 2, "both nodes to be listed")


def seen(store: ClusterStore) -> int:
    """How many nodes a look finds; 0 if etcd does not answer in the second that a look has."""
    with suppress(NodeUnavailable):
        return len(store.nodes())
    return 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"CA": "/no/such/file"}, "is not a file"),
        ({"CERT": __file__}, "needs its key"),
        ({"CERT": __file__, "KEY": __file__}, "DI_STORE_ETCD_CA"),
    ],
)
def test_contradicting_options_are_refused(given: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"DI_STORE_ETCD_{name}", value)
    with pytest.raises(StoreError, match=told):
        EtcdDirectory("127.0.0.1:1")


def test_a_password_is_not_sent_unencrypted() -> None:
    with pytest.raises(StoreError, match="unencrypted"):
        EtcdAccess(user="di", password="secret").client("192.0.2.1", 2379, 1.0)
