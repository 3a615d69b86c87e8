"""Refuses every request that is not the user's own: of another host's name, another site, or without the token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlencode

from markupsafe import escape
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"
"""The name of the token in the query."""

HEADERS = {
    # Only files of this server, and no inline script or style: a value that got into a page as markup could do nothing.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Gate:
    """An ASGI application before another one."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], *, tls: bool) -> None:
        """Set the state.

        Args:
            app: the application behind the gate.
            token: what each request must show.
            hosts: names by which browsers may call this server, besides addresses.
            tls: whether the server speaks TLS.
        """
        self._app = app
        self._token = token.encode()
        self._hosts = {each.lower() for each in hosts}
        self._scheme = "https" if tls else "http"
        # Cookies of one host are shared by all its ports: each server has a name of its own.
        self._cookie = f"di_store_{hashlib.sha256(self._token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":  # a WebSocket: nothing here speaks it
            return
        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that the application does not get."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page is read-only: GET and HEAD are allowed\n", 405, {"allow": "GET, HEAD"})
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_known(host[0]):
            return PlainTextResponse("this server does not have that name: open the URL that it printed\n", 421)
        if headers.get("origin", f"{self._scheme}://{host[0]}") != f"{self._scheme}://{host[0]}":
            return PlainTextResponse("requests from other sites are refused\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in query if name == TOKEN]
        if shown:
            return self._admission(scope, headers, shown, [each for each in query if each[0] != TOKEN])
        if not self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return PlainTextResponse("the token is missing: open the URL that `di-store dashboard` printed\n", 403)
        return None

    def _admission(self, scope: Scope, headers: Headers, shown: list[str], rest: list[tuple[str, str]]) -> Response:
        """A cookie in place of the token in the query, and the same page without it."""
        if not all(map(self._is_token, shown)):
            return PlainTextResponse("the token is wrong: open the URL that `di-store dashboard` printed\n", 403)
        path = "/" + quote(scope["path"].lstrip("/"))  # "//host" would lead to another host
        target = f"{path}?{urlencode(rest)}" if rest else path
        answer: Response
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            answer = RedirectResponse(target, 303)
        else:  # another site or a file has the link: browsers would not send the cookie with a redirect
            answer = HTMLResponse(f'<meta http-equiv="refresh" content="0;url={escape(target)}">')
        answer.set_cookie(
            self._cookie, self._token.decode(), httponly=True, samesite="strict", secure=self._scheme == "https"
        )
        return answer

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token)

    def _is_known(self, host: str) -> bool:
        """Whether a Host header names this server. Pages of other sites can only give a name of their own (rebinding).

        The port may be another one, as of a tunnel through ssh.
        """
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._hosts
        return True


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return sending
