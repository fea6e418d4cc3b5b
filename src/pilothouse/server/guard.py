"""Who may speak to a host: the Host header, the Origin, the token. Nothing behind it sees a request that fails here.

Owns the decision, and how it is told over HTTP and WebSocket. Knows no sessions. The token is compared in constant time
and stands in no log, no address and no answer.
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

from pilothouse.server.policy import Refusal

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = "/healthz"
"""Answers without a token; there is nothing to learn from it."""
SLOT = "pilothouse.slot"
"""Of the state of a request: the slot of its connection, where the host serves itself."""
OWNER = "pilothouse.owner"
"""Of the state of a request: whose token it has; "" for who sees all."""
WRONG_TOKEN_SECONDS = 1.0
"""Before a wrong token is answered, so that tokens cannot be tried fast on one connection."""
STATUS = {
    "attached_elsewhere": 409,
    "bad_request": 400,
    "busy": 409,
    "draining": 503,
    "forbidden": 403,
    "limit": 429,
    "journal": 507,
    "pruned": 410,
    "start_failed": 502,
    "too_large": 413,
    "unauthorized": 401,
    "unknown_session": 404,
}
"""HTTP status by the code of a refusal."""


class Access(NamedTuple):
    """Who may speak.

    Args:
        token: what they have to send; None without `owners`: everybody may, which only a host inside of another
            application wants.
        origins: pages of these origins may; others may not, and programs send none.
        names: names of this host besides "localhost"; addresses are always right.
        owners: further tokens, by the name of the owner.
    """

    token: str | None
    origins: Sequence[str] = ()
    names: Sequence[str] = ()
    owners: Mapping[str, str] = MappingProxyType({})

    def check(self, headers: Sequence[tuple[bytes, bytes]], *, is_open: bool) -> str:
        """Look at the headers of a request; returns the owner of its token, "" for who sees all.

        Raises:
            Refusal: it may not go on.
        """
        self._check_host(_all(headers, b"host"))
        origins = _all(headers, b"origin")
        if origins and (len(origins) > 1 or origins[0] not in self.origins):
            raise Refusal("forbidden", "pages of this origin may not use this host; allow it with --origin")
        if is_open or (self.token is None and not self.owners):
            return ""
        if (owner := self._owner(_all(headers, b"authorization"))) is None:
            raise Refusal("unauthorized", "a token is needed: send it as `Authorization: Bearer …`")
        return owner

    def _check_host(self, hosts: list[str]) -> None:
        # A page of another site can point a name of its own at this address, but it cannot change what the browser
        # then says here.
        if len(hosts) != 1 or not self._is_own(_name_of(hosts[0])):
            raise Refusal("forbidden", "this host is not called that; add the name with --name")

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
        # Each is compared, so that the time does not tell which one it was.
        fits = [owner for owner, own in known.items() if own is not None and hmac.compare_digest(sent, _digest(own))]
        return fits[0] if fits and scheme.lower() == "bearer" else None


class Guard:
    """Lets through what `access` allows.

    Args:
        app: what it guards.
        access: who may speak.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] in ("http", "websocket"):
            path: str = scope["path"].removeprefix(scope.get("root_path", ""))
            is_open = path == OPEN and scope["type"] == "http"
            try:
                owner = self._access.check(scope["headers"], is_open=is_open)
                scope.setdefault("state", {})[OWNER] = owner
                slot = None if is_open else scope.get("state", {}).get(SLOT)
                if slot is not None and not slot.take():
                    raise Refusal("limit", "this host has too many connections")
            except Refusal as refusal:
                if refusal.code == "unauthorized" and _all(scope["headers"], b"authorization"):
                    await anyio.sleep(WRONG_TOKEN_SECONDS)
                await _refuse(scope, receive, send, refusal)
                return
            try:
                await self._app(scope, receive, send)
            finally:
                if slot is not None:
                    slot.release()
            return
        await self._app(scope, receive, send)


def request_owner(connection: HTTPConnection) -> str:
    """Whose token a request has that the guard let through; "" for who sees all."""
    return str(connection.scope.get("state", {}).get(OWNER, ""))


def refusal_body(refusal: Refusal) -> dict[str, Any]:
    """What stands in an answer that says no."""
    return {"error": {"code": refusal.code, "message": str(refusal)}}


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal_body(refusal)).encode()
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
    await send({"type": f"{kind}.start", "status": STATUS[refusal.code], "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _all(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _digest(text: str) -> bytes:
    # Of one length, so that not even that of the token can be measured.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
