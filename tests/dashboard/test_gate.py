"""Nobody but the user gets a page: requests of other sites, of other hosts' names and without the token are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import di_store
from dashboard.visitor import Visitor, dashboard
from di_store.dashboard.gate import HEADERS


@pytest.fixture(scope="module")
def visitor() -> Iterator[Visitor]:
    with di_store.open(f"gated-{os.getpid()}", memory="16MiB") as store, dashboard(store.name) as found:
        yield found


def test_a_page_needs_the_token(visitor: Visitor) -> None:
    assert "gated" in visitor.get().text
    for path in ("/", "/store", "/static/page.js", "/nothing"):
        assert visitor.raw(path).status == 403
    name, _, value = visitor.cookie.partition("=")
    for wrong in ("", value[:-1], value + "x", value.swapcase(), "é"):
        refused = visitor.raw("/", cookie=f"{name}={wrong}".encode().decode("latin-1"))
        assert refused.status == 403
        assert "gated" not in refused.text
    assert visitor.raw("/", cookie=f"other={value}").status == 403


def test_a_wrong_token_in_the_url_is_refused(visitor: Visitor) -> None:
    for query in ("token=", "token=x", "token=%C3%A9", f"token={visitor.token}&token=x", f"Token={visitor.token}"):
        assert visitor.raw(f"/?{query}").status == 403
    assert visitor.raw("/?token=x", cookie=visitor.cookie).status == 403


def test_the_token_leaves_the_url(visitor: Visitor) -> None:
    answer = visitor.raw(f"/store?store=x%26y&token={visitor.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/store?store=x%26y")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} < set(answer.headers["set-cookie"].split("; "))
    elsewhere = visitor.raw(f"//evil.example/?token={visitor.token}")
    assert elsewhere.headers["location"] == "/evil.example/"


def test_a_link_of_another_page_works_too(visitor: Visitor) -> None:
    """Browsers would not send the cookie with a redirect that another site began."""
    answer = visitor.raw(f"/?token={visitor.token}", sec_fetch_site="cross-site")
    assert answer.status == 200
    assert answer.headers["set-cookie"].startswith(visitor.cookie)
    assert answer.text == '<meta http-equiv="refresh" content="0;url=/">'


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.", ""]
)
def test_names_of_other_hosts_are_refused(visitor: Visitor, host: str) -> None:
    """A page of another site can give its own name the address of this machine (DNS rebinding)."""
    answer = visitor.raw("/", cookie=visitor.cookie, host=host.format(port=visitor.port))
    assert answer.status == 421
    assert "gated" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "localhost:9000", "LOCALHOST"]
)
def test_names_of_this_machine_are_known(visitor: Visitor, host: str) -> None:
    """With any port, as of a tunnel through ssh."""
    assert visitor.raw("/", cookie=visitor.cookie, host=host.format(port=visitor.port)).status == 200


def test_requests_of_other_sites_are_refused(visitor: Visitor) -> None:
    for origin in ("https://evil.example", "null", f"https://{visitor.host}", "http://127.0.0.1:1", ""):
        assert visitor.raw("/", cookie=visitor.cookie, origin=origin).status == 403
    assert visitor.raw("/", cookie=visitor.cookie, origin=f"http://{visitor.host}").status == 200


def test_nothing_but_reading_is_allowed(visitor: Visitor) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        answer = visitor.raw("/", method, cookie=visitor.cookie)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert visitor.raw("/", "HEAD", cookie=visitor.cookie)[::2] == (200, "")


def test_every_answer_tells_the_browser_what_it_may_do(visitor: Visitor) -> None:
    answers = [visitor.get(), visitor.get("static/page.js"), visitor.get("nothing"), visitor.raw("/")]
    for answer in answers:
        assert HEADERS.items() <= answer.headers.items()
    assert [answer.status for answer in answers] == [200, 200, 404, 403]
    assert "unsafe" not in HEADERS["content-security-policy"]
