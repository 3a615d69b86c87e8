"""Addresses of agents, and places to listen at, as text."""

from __future__ import annotations

import pytest

from di_store.client.address import Address
from di_store.server.supervisor import place_of


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("h:1", "h", 1), ("h", "h", 7370), (":5", "0.0.0.0", 5), ("[::1]:9", "::1", 9), ("[::]:0", "::", 0)],
)
def test_host_and_port_are_parsed(text: str, host: str, port: int) -> None:
    assert place_of(text) == (host, port)


def test_addresses_are_parsed() -> None:
    for text in ("di-store://h:1/s", "di-store://[::1]:2/s", "di-store://h:7370/"):
        assert str(Address.parse(text)) == text
    for text in (
        "",
        "h:1",
        "http://h",
        "di-store://",
        "di-store://h:x",
        "di-store://u@h",
        "di-store://h?a",
        "di-store://h#a",
    ):
        with pytest.raises(ValueError, match="write di-store://HOST:PORT/NAME"):
            Address.parse(text)
    with pytest.raises(ValueError, match="write di-store://HOST:PORT/NAME"):
        Address.parse(f"di-store://{'a' * 64}")
    loopback = {"localhost": True, "127.0.0.1": True, "127.9.9.9": True, "::1": True}
    loopback |= {"127.example.org": False, "127.0.0.1.example.org": False, "localhost.x": False, "10.0.0.1": False}
    assert {host: Address(host, 1, "").is_loopback for host in loopback} == loopback
