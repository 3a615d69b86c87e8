"""Whom an agent lets in: each refusal is one line, the agent lives on, and nothing of the connection is left."""

from __future__ import annotations

import multiprocessing as mp
import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest
from cli_run import call, fails
from cluster.messages import Sent, framed
from cluster.served import (
    TOKEN,
    ServedStore,
    Tap,
    agent_here,
    dial,
    fake_agent,
    greeted,
    hello,
    port_of,
    serving,
    told,
)
from foreign_values import REFUSED, Bomb
from pains import until

import di_store
from di_store import AccessDenied, LayoutMismatch, NodeUnavailable, StoreNotFound, _core
from di_store.client.address import TOKEN_ENV, own_token, token_path
from di_store.objects import codec
from di_store.protocol import handshake, values
from di_store.protocol.connection import MAX_CALL_BYTES, Connection, Disconnected
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import NEWEST, NONCE_BYTES, Challenge, Refusal, Welcome, decoded, greet
from di_store.server import greetings, server

Serve = Callable[..., ServedStore]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedStore]:
    """One for all tests that leave it as it was."""
    with serving(f"d-{secrets.token_hex(6)}") as made:
        yield made


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused(served: ServedStore) -> None:
    with served.leaves_nothing():
        for token in ("wrong", TOKEN + " ", TOKEN[:-1]):
            with pytest.raises(AccessDenied, match="the client does not know the token of this agent") as caught:
                served.connect(token=token)
            assert "DI_STORE_TOKEN" in told(caught)


def test_a_trailing_newline_is_not_part_of_a_token(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client reads the file that the command was given, or a shell puts it into the environment."""
    address = served.address
    for token in (TOKEN + "\n", (TOKEN + "\r\n").encode()):
        di_store.connect(address, token=token).close()
    monkeypatch.setenv(TOKEN_ENV, TOKEN + "\n")
    di_store.connect(address).close()


def test_a_missing_token_is_refused(serve: Serve, store_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    served = serve()
    with served.leaves_nothing():
        with pytest.raises(AccessDenied, match="there is no token to authenticate with") as caught:
            di_store.connect(served.address)
        assert "connect(token=)" in told(caught)
        for token in ("", b"", 3):
            with pytest.raises(TypeError, match="token="):
                di_store.connect(served.address, token=token)


def test_loopback_uses_the_users_own_token(serve: Serve, store_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback no token is needed: the first agent makes one that only this user can read."""
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    served = serve(token=None)
    with di_store.connect(served.address) as store:
        assert store.name == served.name
    path = Path(token_path())
    assert path.parent == Path(store_dir)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64
    path.chmod(0o640)
    for act in (lambda: di_store.connect(served.address), lambda: own_token(make=True)):
        with pytest.raises(AccessDenied, match="does not belong to this user alone") as caught:
            act()
        assert "chmod 600" in told(caught)
    path.chmod(0o600)
    path.write_text("\n")
    with pytest.raises(AccessDenied, match="is empty"):
        di_store.connect(served.address)


def _make(barrier: Any, found: Any) -> None:
    barrier.wait()
    found.put(own_token(make=True))


def test_racing_processes_agree_on_one_token(store_dir: str) -> None:
    context = mp.get_context("fork")
    for _ in range(5):
        Path(token_path()).unlink(missing_ok=True)
        barrier, found = context.Barrier(8), context.SimpleQueue()
        racers = [context.Process(target=_make, args=(barrier, found)) for _ in range(8)]
        for each in racers:
            each.start()
        tokens = {found.get() for _ in racers}
        for each in racers:
            each.join(60)
        assert len(tokens) == 1
        assert tokens == {own_token(make=False)}
        assert [name for name in os.listdir(store_dir) if name.startswith("token")] == ["token"]


def test_the_command_reads_its_token(
    tmp_path: Path, store_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    run = ("serve", store_name(), "--memory", "64MiB", "--listen")
    assert "there is no token to authenticate clients (set DI_STORE_TOKEN" in fails(1, *run, "0.0.0.0:0", "--plaintext")
    assert "empty is empty (write a long random text" in fails(1, *run, "127.0.0.1:0", "--token-file", str(empty))
    assert "nothing: No such file" in fails(1, *run, "127.0.0.1:0", "--token-file", str(tmp_path / "nothing"))


# --- the handshake ----------------------------------------------------------------------------------------------------


def test_a_recorded_handshake_proves_nothing(served: ServedStore) -> None:
    with served.leaves_nothing():
        tap = Tap(socket.create_connection(("127.0.0.1", served.port), 30))
        greet(tap, TOKEN.encode(), hello())
        tap.close()
        again = dial(served.port)
        again._sock.sendall(tap.sent)
        assert again.receive().kind == Kind.CHALLENGE
        refusal = again.receive()
        assert refusal.kind == Kind.REFUSE
        assert decoded(Refusal, refusal.meta).kind == "AccessDenied"
        with pytest.raises(Disconnected):
            again.receive()
        again.close()


def _in_between(forge: Callable[[bytes], bytes]) -> Callable[[Connection], None]:
    """Answers in place of the agent; `forge` makes its proof of the client's."""

    def talk(connection: Connection) -> None:
        connection.receive()
        challenge = Challenge(1, secrets.token_bytes(NONCE_BYTES))
        connection.send(Kind.CHALLENGE, meta=msgspec.msgpack.encode(challenge))
        proof = decoded(handshake.Proof, connection.receive().meta)
        welcome = Welcome(forge(proof.mac), "s", "ab" * 16, "n", bytes(16), 7, False, True)
        connection.send(Kind.WELCOME, meta=msgspec.msgpack.encode(welcome))
        connection.receive()

    return talk


@pytest.mark.parametrize("forge", [lambda mac: bytes(32), lambda mac: mac, lambda mac: b""])
def test_an_impostor_without_the_token_is_detected(forge: Callable[[bytes], bytes]) -> None:
    """Also if it sends the client's own proof back."""
    with fake_agent(_in_between(forge)) as address:
        with pytest.raises(AccessDenied, match="the server at this address does not know the token") as caught:
            di_store.connect(address, token=TOKEN)
        assert "DI_STORE_TOKEN" in told(caught)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (Challenge(7, bytes(NONCE_BYTES)), "chose a protocol that was not offered"),
        (Challenge(1, b"short"), "chose a protocol that was not offered"),
        (Refusal("AccessDenied", "", ""), "invalid Challenge message"),
    ],
)
def test_an_agent_that_breaks_the_protocol_is_refused(challenge: Any, why: str) -> None:
    def talk(connection: Connection) -> None:
        connection.receive()
        connection.send(Kind.CHALLENGE, meta=msgspec.msgpack.encode(challenge))

    with fake_agent(talk) as address, pytest.raises(NodeUnavailable, match=why) as caught:
        di_store.connect(address, token=TOKEN)
    assert "is this the address of an agent?" in told(caught)


def test_a_refusal_is_shown_as_one_line() -> None:
    def talk(connection: Connection) -> None:
        connection.receive()
        refusal = Refusal("SystemExit", "line\n\x1b[31mred" + "x" * 9000, "a\nb")
        connection.send(Kind.REFUSE, meta=msgspec.msgpack.encode(refusal))

    with fake_agent(talk) as address, pytest.raises(NodeUnavailable, match=r"line  \[31mredx*") as caught:
        di_store.connect(address, token=TOKEN)
    assert len(told(caught)) < 600


@pytest.mark.parametrize(("oldest", "newest"), [(0, 0), (NEWEST + 1, NEWEST + 9), (2**63, 2**64 - 1)])
def test_protocols_without_a_common_version_are_refused(served: ServedStore, oldest: int, newest: int) -> None:
    with served.leaves_nothing():
        said = f"speaks protocols {oldest} to {newest}, this agent 1 to {NEWEST}"
        with pytest.raises(LayoutMismatch, match=said) as caught:
            greeted(served.port, oldest=oldest, newest=newest)
        assert "agents first, then clients" in told(caught)
        connection, _ = greeted(served.port, oldest=0, newest=NEWEST + 9)
        connection.close()


def test_another_store_name_is_refused(served: ServedStore) -> None:
    with served.leaves_nothing():
        with pytest.raises(StoreNotFound, match=f"serves store '{served.name}', not 'other'") as caught:
            di_store.connect(f"di-store://127.0.0.1:{served.port}/other", token=TOKEN)
        assert f"connect to …/{served.name}" in told(caught)
        with di_store.connect(f"di-store://127.0.0.1:{served.port}", token=TOKEN) as store:
            assert store.name == served.name


# --- what no client of ours does --------------------------------------------------------------------------------------


def _odd() -> list[bytes]:
    good = framed(Sent(Kind.HELLO, msgspec.msgpack.encode(hello())))
    return [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(600),
        np.random.default_rng(1).bytes(300),
        good[:-1] + b"?",
        framed(Sent(Kind.HELLO, b"\x97")),
        framed(Sent(Kind.HELLO, msgspec.msgpack.encode(hello(nonce=b"")))),
        framed(Sent(Kind.HELLO, msgspec.msgpack.encode(hello(link=b"x" * 17)))),
        framed(Sent(Kind.HELLO, b"\x97\x01\x01\xa2\xff\xfe\xa0")),
        framed(Sent(Kind.CALL, b"")),
        good + framed(Sent(Kind.CALL, b"")),
        good + framed(Sent(Kind.PROOF, b"\x91\xc4\x00")),
        framed(Sent(Kind.HELLO, bytes(20_000))),
        framed(Sent(Kind.HELLO, b"", bytes(100))),
        framed(Sent(Kind.HELLO, b"", bytes(17 << 20))),
    ]


def test_foreign_bytes_get_at_most_one_refusal(serve: Serve) -> None:
    """Each gets one refusal at most, and its connection ends; what it said is one line of the agent's log."""
    served = serve()
    with served.leaves_nothing():
        for data in [*_odd(), b"", b"Di"]:
            connection = dial(served.port)
            with suppress(OSError):  # it may be closed on the way
                connection._sock.sendall(data)
                connection._sock.shutdown(socket.SHUT_WR)
            kinds = []
            with pytest.raises(Disconnected):
                while True:
                    kinds.append(connection.receive().kind)
            assert kinds[-1:] == [Kind.REFUSE] or len(data) < 3 or len(data) > 1 << 20, (data[:50], kinds)
            connection.close()
    served.process.kill()
    errors = served.process.communicate()[1]
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == len(_odd())


def test_invalid_messages_end_the_connection(serve: Serve) -> None:
    served = serve()
    call = msgspec.msgpack.encode(values.Call("stats", "", 0, False))
    huge = struct.pack("<4sBBHQQIII", b"DiSw", Kind.CALL, 0, 0, 1, MAX_CALL_BYTES + 1, 0, 16 << 20, 0)
    deep = framed(Sent(Kind.CALL, b"\x91" * 100_000))
    with served.leaves_nothing():
        for role in ("call", "writer"):
            for data in [
                *_odd(),
                huge + struct.pack("<I", _core.crc32c(huge)),
                deep,
                framed(Sent(Kind.CALL, call))[:50],
            ]:
                connection, _ = greeted(served.port, role=role)
                with suppress(OSError):  # it may be closed on the way
                    connection._sock.sendall(data)
                    connection._sock.shutdown(socket.SHUT_WR)
                with pytest.raises(Disconnected):
                    while True:
                        connection.receive()
                connection.close()
    served.process.kill()
    assert "Traceback" not in served.process.communicate()[1]


def test_invalid_calls_get_an_error_and_the_connection_stays(served: ServedStore) -> None:
    """They are answered with an error, and the connection goes on."""
    with served.leaves_nothing():
        connection, _ = greeted(served.port)
        given: list[tuple[str, str, Any]] = [
            ("nothing", "", {}),
            ("__class__", "t", {}),
            ("stats", "", {"x": 1}),
            ("stats", "", [1]),
            ("stats", "", {3: 1}),
            ("put", "", {}),
            ("put", "", {"entries": 3, "ttl": None, "timeout": 1, "durability": "memory", "inline": None}),
            ("get", "", {"id": "x", "timeout": 1}),
            ("sample", "t", {"mixture": "x"}),
            ("deliver", "", {"draws": []}),
            ("keys", "", {"start": b"x", "n": -1}),
            ("table", "", {"name": "\udcff" if False else "x" * 10_000, "timeout": 0}),
            ("create_table", "", {"name": "t", "settings": "{", "exist_ok": 1, "timeout": 0}),
        ]
        for number, (method, target, arguments) in enumerate(given, 1):
            size, body = values.packed(arguments)
            meta = msgspec.msgpack.encode(values.Call(method, target, False, None, size))
            connection.send(Kind.CALL, request=number, meta=meta, body=body)
            answer = connection.receive()
            assert (answer.kind, answer.request) == (Kind.ERROR, number), method
            assert "\n" not in str(values.error_of(answer.meta, "here")), method
        for size in (-1, 1, 2**62):
            meta = msgspec.msgpack.encode(values.Call("stats", "", False, None, size))
            connection.send(Kind.CALL, request=99, meta=meta)
            assert connection.receive().kind == Kind.ERROR
        connection.close()


def _call_with(port: int, arguments: Any) -> None:
    """A call whose arguments no client of ours would send."""
    connection, _ = greeted(port)
    size, body = values.laid_out(codec.encode(arguments))
    meta = msgspec.msgpack.encode(values.Call("stats", "", False, None, size))
    connection.send(Kind.CALL, request=1, meta=meta, body=body)
    answer = connection.receive()
    connection.close()
    if answer.kind == Kind.ERROR:
        raise values.error_of(answer.meta, "node")


def test_nothing_that_a_client_sends_is_unpickled(served: ServedStore, tmp_path: Path) -> None:
    """Arguments, objects, weights, rows of opaque tables: they are refused, or kept with a mark that refuses them."""
    made = tmp_path / "made"
    with served.connect() as far, di_store.attach(served.name) as near:
        for arguments in ({"x": Bomb(made)}, {"x": [{Bomb(made)}]}):
            with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                _call_with(served.port, arguments)
        ref = far.put({"a": Bomb(made)})
        far.publish("w", Bomb(made))
        table = far.create_table("t", capacity=9, view=di_store.Opaque())
        table.insert(Bomb(made))
        with table.writer() as writer:
            writer.append([Bomb(made)])
        calls: list[Callable[[], Any]] = []
        for store in (far, near):
            calls += [lambda store=store: store.get(ref), lambda store=store: store.latest("w")]
            calls += [lambda store=store: store.table("t").peek(store.table("t").keys())]
            calls += [lambda store=store: store.table("t").sample(2)]
        for call in calls:
            with pytest.raises(AccessDenied, match=f"{REFUSED} pickle"):
                call()
        assert len(near.table("t")) == 2
        assert not made.exists()


def test_too_many_connections_are_refused(served: ServedStore) -> None:
    with served.leaves_nothing():
        most = server.MAX_CONNECTIONS
        opened = [greeted(served.port)[0] for _ in range(most)]
        for _ in range(76):
            with pytest.raises(NodeUnavailable, match=f"the agent has {most} connections, the maximum") as caught:
                greeted(served.port)
        assert "spread the clients over more nodes" in told(caught)
        with pytest.raises(NodeUnavailable, match="the maximum"):
            served.connect()
        opened.pop().close()

        def connected() -> bool:
            try:
                served.connect().close()
            except NodeUnavailable:
                return False
            return True

        until(connected, "a place to be free")
        for each in opened:
            each.close()


def test_silent_clients_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them goes when too many are at the door."""
    monkeypatch.setattr(server, "GREETING_SECONDS", 600.0)
    monkeypatch.setattr(greetings, "MAX_GREETINGS", 20)
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        silent = [socket.create_connection(("127.0.0.1", port_of(agent)), 60) for _ in range(30)]
        for each in silent[:10]:
            assert each.recv(1) == b""
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as other:
            assert other.stats()["objects"] == 0
        assert silent[10].recv(1) == b""
        silent[-1].settimeout(0)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
        for each in silent:
            each.close()


@pytest.mark.parametrize("drips", [False, True])
def test_a_client_slow_to_authenticate_is_dropped(monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
    """Whether it says nothing, or a byte now and then."""
    monkeypatch.setattr(server, "GREETING_SECONDS", 0.3)
    words, pause = framed(Sent(Kind.HELLO, bytes(10_000))), Event()
    with di_store.open(memory="64MiB") as store, agent_here(store) as agent:
        slow = dial(port_of(agent))
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as other:
            ref = other.put("served meanwhile")

            def dropped() -> bool:
                nonlocal words
                assert len(words) > 9_000, "it may take as long as it likes"
                try:
                    if drips and not pause.wait(0.01):
                        slow._sock.sendall(words[:1])
                        words = words[1:]
                    slow._sock.settimeout(0.01)
                    return not slow._sock.recv(1)
                except TimeoutError:
                    return False
                except OSError:
                    return True

            until(dropped, "the agent to drop it")
            assert other.get(ref) == "served meanwhile"
        slow.close()


# --- options of the command -------------------------------------------------------------------------------------------


def test_contradicting_options_are_refused(authorities: Any, store_name: Callable[[], str], tmp_path: Path) -> None:
    certificate, key = authorities[0].sign("options")
    wrong = authorities[0].sign("wrong")[1]
    run = ("serve", store_name(), "--memory", "64MiB", "--listen")
    both = ("--tls-cert", certificate, "--tls-key", key)
    assert "without TLS anyone on the network path can read everything" in fails(2, *run, "0.0.0.0:0")
    assert "without TLS anyone on the network path" in fails(2, *run, "127.example.org:0", by=call)
    assert "belong together: give both" in fails(2, *run, "127.0.0.1:0", "--tls-cert", certificate, by=call)
    assert "--plaintext contradicts --tls-cert" in fails(2, *run, "127.0.0.1:0", *both, "--plaintext", by=call)
    for file in (wrong, certificate, str(tmp_path / "nothing")):
        said = fails(2, *run, "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", file, by=call)
        assert f"{certificate} and --tls-key {file} cannot be used" in said
    assert "--peers names no node" in fails(2, *run, "127.0.0.1:0", "--peers", " , ", by=call)
    both = ("--peers", "127.0.0.1:1", "--join", "etcd://127.0.0.1:2")
    assert "each name a directory" in fails(2, *run, "127.0.0.1:0", *both, by=call)
    for listen in ("", "a b", "1.2.3.4:x", "127.0.0.1:99999", "127.0.0.1:0/name", "a" * 70):
        assert "give HOST:PORT, such as 127.0.0.1:7370" in fails(2, *run, listen, by=call)


def test_a_port_in_use_is_named(served: ServedStore, store_name: Callable[[], str], tmp_path: Path) -> None:
    name, token = store_name(), ("--token-file", str(tmp_path / "token"))
    (tmp_path / "token").write_text(TOKEN)
    said = fails(1, "serve", name, "--memory", "64MiB", "--listen", f"127.0.0.1:{served.port}")
    assert f"port {served.port} of 127.0.0.1 is in use (choose another port with --listen" in said
    assert name not in {info.name for info in di_store.list_stores()}
    assert "cannot listen at 192.0.2.1:0" in fails(1, "serve", name, "--listen", "192.0.2.1:0", "--plaintext", *token)
