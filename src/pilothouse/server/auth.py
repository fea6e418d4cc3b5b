"""Access control of a host: the Host header, the Origin, the token. Rejects bad requests before any other code.

Owns the decision, and the refusal over HTTP and WebSocket. Knows no sessions. The token is compared in constant time
and appears in no log, no address and no response.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from pilothouse.server.console import is_console_path
from pilothouse.server.policy import RefusedRequestError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_PATH = "/healthz"
"""Path that needs no token; its response reveals nothing."""
SLOT_KEY = "pilothouse.slot"
"""Key in a request's state, if the host itself serves: the functions that count it, and that end the count."""
OWNER_KEY = "pilothouse.owner"
"""Key in a request's state: the owner of its token; "" for the token that sees all sessions."""
WRONG_TOKEN_SECONDS = 1.0
"""Delay before a wrong token is refused, so that tokens cannot be guessed fast on one connection."""
HTTP_STATUSES = {
    "attached_elsewhere": 409,
    "bad_request": 400,
    "busy": 409,
    "draining": 503,
    "forbidden": 403,
    "limit": 429,
    "journal": 507,
    "pruned": 410,
    "settled": 409,
    "start_failed": 502,
    "too_large": 413,
    "unauthorized": 401,
    "unknown_ask": 404,
    "unknown_prompt": 404,
    "unknown_session": 404,
}
"""HTTP status per code of a refusal."""

_VENDOR_ERRORS = {"forbidden": "permission_error", "limit": "rate_limit_error", "unauthorized": "authentication_error"}


class AccessRules(NamedTuple):
    """Who may use the host.

    Args:
        token: the token that sees all sessions. None without `owners`: every client may use the host, which only
            suits a host inside of another application.
        origins: origins of web pages that may use it; others may not, and programs send none.
        names: names of this host besides "localhost"; addresses are always accepted.
        owners: further tokens, by the name of the owner.
    """

    token: str | None
    origins: Sequence[str] = ()
    names: Sequence[str] = ()
    owners: Mapping[str, str] = MappingProxyType({})

    def check(self, headers: Sequence[tuple[bytes, bytes]], *, is_open: bool) -> str:
        """Check the headers of a request; returns the owner of its token, "" for the token that sees all sessions.

        Raises:
            RefusedRequestError: the request is not allowed.
        """
        hosts = _find_headers(headers, b"host")
        self._check_host(hosts)
        origins = _find_headers(headers, b"origin")
        # The console's own requests come from the name in the Host header, which the line above has checked.
        if origins and (len(origins) > 1 or origins[0] not in (*self.origins, *_own_origins(hosts[0]))):
            raise RefusedRequestError("forbidden", "pages of this origin may not use this host; allow it with --origin")
        if is_open or (self.token is None and not self.owners):
            return ""
        if (owner := self._owner(_find_tokens(headers))) is None:
            raise RefusedRequestError("unauthorized", "a token is needed: send it as `Authorization: Bearer …`")
        return owner

    def _check_host(self, hosts: list[str]) -> None:
        # A page of another site can point a name of its own at this address, but it cannot change the Host header
        # that the browser then sends.
        if len(hosts) != 1 or not self._is_own(_parse_host_name(hosts[0])):
            raise RefusedRequestError("forbidden", "this host does not have that name; add it with --name")

    def _is_own(self, name: str) -> bool:
        if name == "localhost" or name in self.names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _owner(self, given: list[str]) -> str | None:
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        sent = _digest(token.strip())
        known = {**self.owners, "": self.token}
        # All are compared, so that the time does not reveal which one matched.
        fits = [owner for owner, own in known.items() if own is not None and hmac.compare_digest(sent, _digest(own))]
        return fits[0] if fits and scheme.lower() == "bearer" else None


class AuthMiddleware:
    """ASGI middleware that passes on the requests that `access` allows.

    Args:
        app: the application behind it.
        access: who may use the host.
    """

    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_open = scope["type"] == "http" and (path == HEALTH_PATH or is_console_path(path))
        state = scope.setdefault("state", {})
        acquire, release = (None, None) if is_open else state.get(SLOT_KEY, (None, None))
        try:
            state[OWNER_KEY] = self._access.check(scope["headers"], is_open=is_open)
            if acquire is not None and not acquire():
                raise RefusedRequestError("limit", "this host has too many connections")
        except RefusedRequestError as refusal:
            if refusal.code == "unauthorized" and _find_tokens(scope["headers"]):
                await anyio.sleep(WRONG_TOKEN_SECONDS)
            await _send_refusal(scope, receive, send, refusal)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if release is not None:
                release()


def find_request_owner(connection: HTTPConnection) -> str:
    """Return the owner of the token of a request that the guard passed; "" for the token that sees all sessions."""
    return str(connection.scope.get("state", {}).get(OWNER_KEY, ""))


def make_error_body(refusal: RefusedRequestError) -> dict[str, Any]:
    """Build the body of a refusal."""
    return {"error": {"code": refusal.code, "message": str(refusal)}}


async def _send_refusal(scope: Scope, receive: Receive, send: Send, refusal: RefusedRequestError) -> None:
    refused = make_error_body(refusal)
    # Clients of endpoints read this as an error of their vendor.
    refused = {"type": "error", "error": {**refused["error"], "type": _VENDOR_ERRORS.get(refusal.code, "api_error")}}
    body = json.dumps(refused).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.code == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": str(refusal)[:100]})
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": HTTP_STATUSES[refusal.code], "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _find_tokens(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return the Authorization headers; without one, the keys that clients of Anthropic send."""
    keys = _find_headers(headers, b"x-api-key")
    return _find_headers(headers, b"authorization") or [f"Bearer {key}" for key in keys]


def _find_headers(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _own_origins(host: str) -> tuple[str, str]:
    return f"http://{host.lower()}", f"https://{host.lower()}"


def _parse_host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _digest(text: str) -> bytes:
    # Digests have one length, so that not even the length of the token can be measured.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
