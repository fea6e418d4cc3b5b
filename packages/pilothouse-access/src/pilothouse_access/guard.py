"""The guard before every route: the Host header, the Origin, the token, and the body. Knows no sessions.

A page of another site can point a name of its own at this server, but it cannot change the Host header that the browser
then sends. So a request must name the server by a name that is its own, and come from no other origin. A token is
compared in constant time and appears in no log, no address and no response.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from msgspec import Struct, field

from pilothouse.errors import PilothouseError, UsageError
from pilothouse_access.owners import OPERATOR, Access, Owner, Shares

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 45.0
"""Time for the whole body of a request."""
MAX_BODIES_BYTES = 512 * 1024 * 1024
"""Bytes of the bodies of all requests that are being served."""
WRONG_TOKEN_SECONDS = 1.0
"""Delay before a wrong token is refused, so that tokens cannot be guessed fast on one connection."""
RETRY_SECONDS = 5
"""After this time a client that was refused for a limit should try again."""
SLOT_KEY = "pilothouse.slot"
"""Key in a request's state, if the server counts connections: the functions that count it, and that end the count."""
ACCESS_KEY = "pilothouse.access"
"""Key in the ASGI scope of a request: its `Access`, once a guard has passed it."""
ACCESS_STATUSES: Mapping[str, int] = {"forbidden": 403, "limit": 429, "timeout": 408, "unauthorized": 401}
"""HTTP status per code of a refusal."""

# For clients of endpoints, which read a refusal as an error of their vendor.
_VENDOR_ERRORS = {"forbidden": "permission_error", "limit": "rate_limit_error", "unauthorized": "authentication_error"}
_OPENAI_CODES = {"limit": "rate_limit_exceeded", "unauthorized": "invalid_api_key"}
_OPENAI_PATH = re.compile(r"/v1/(?:chat|completions|embeddings|models|responses)(?:/|$)")
_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::[0-9]*)?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@A-Z*]+")

GetOwner: TypeAlias = "Callable[[Request], str | Awaitable[str]]"
"""Says who makes a request of an application; may raise Starlette's `HTTPException`."""


class RefusedRequestError(PilothouseError):
    """A request of a client is refused. Nothing was started.

    Args:
        code: the reason, for programs: of a route, one of `ACCESS_STATUSES`; a host has more.
        message: the reason, and what would be accepted.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AccessRules(Struct, frozen=True, kw_only=True):
    """Who may send requests.

    Args:
        token: the token of the operator. None without `tokens`: a layer before this checks tokens.
        tokens: further tokens, by the name of their owner.
        origins: origins of web pages that may send requests, such as "https://console.example.com", besides those of
            the server itself; programs send none.
        names: host names of this server, besides "localhost"; addresses are always accepted.

    Raises:
        UsageError: an origin or a name has a form that no browser sends, so it would allow nothing.
    """

    token: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    origins: Sequence[str] = ()
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"the origin {origin!r}: expected scheme and host in lower case, without a path, such as "
                    "https://console.example.com"
                )
        for name in self.names:
            if not name or not name.isascii() or set(name) & set(":/@* "):
                raise UsageError(
                    f"the name {name!r}: expected a host name without scheme and port, such as host.example.com"
                )

    @property
    def has_tokens(self) -> bool:
        """Whether a request needs a token."""
        return self.token is not None or bool(self.tokens)

    @property
    def owners(self) -> frozenset[Owner]:
        """Everybody who may send requests."""
        operator = {OPERATOR} if self.token is not None or not self.tokens else set[Owner]()
        return frozenset(operator | {Owner(name) for name in self.tokens})

    def check(self, headers: Sequence[tuple[bytes, bytes]], *, is_open: bool = False) -> Owner:
        """Check the headers of a request, and return its owner.

        Args:
            headers: as ASGI gives them.
            is_open: whether the request needs no token.

        Raises:
            RefusedRequestError: the request is not allowed.
        """
        hosts = _find_headers(headers, b"host")
        if len(hosts) != 1:
            raise RefusedRequestError("forbidden", "a request needs one Host header")
        name = _parse_host_name(hosts[0])
        if not self._is_own(name):
            raise RefusedRequestError(
                "forbidden",
                f"this server does not answer to the name {name[:80]!a}; if it is its own, add it: names=… of the "
                "route, --name of `pilothouse serve`",
            )
        origins = _find_headers(headers, b"origin")
        # Pages of the server itself come from the name in the Host header, which was just checked.
        if origins and (len(origins) > 1 or origins[0] not in (*self.origins, *_own_origins(hosts[0]))):
            raise RefusedRequestError(
                "forbidden",
                f"pages of {origins[0][:80]!a} may not use this server; to allow it, add the origin: origins=… of "
                "the route, --origin of `pilothouse serve`",
            )
        if is_open or not self.has_tokens:
            return OPERATOR
        given = find_tokens(headers)
        if (owner := self._find_owner(given)) is None:
            reason = "the token is wrong" if given else "a token is needed: send it as `Authorization: Bearer …`"
            raise RefusedRequestError("unauthorized", reason)
        return owner

    def _is_own(self, name: str) -> bool:
        if name == "localhost" or name in {own.lower() for own in self.names}:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _find_owner(self, given: list[str]) -> Owner | None:
        scheme, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        sent = _digest(token.strip())
        known = [(Owner(name), own) for name, own in self.tokens.items()]
        if self.token is not None:
            known.append((OPERATOR, self.token))
        # All are compared, so that the time does not reveal which one matched.
        found = [owner for owner, own in known if hmac.compare_digest(sent, _digest(own))]
        return found[0] if found and scheme.lower() == "bearer" else None


class AccessGuard:
    """ASGI middleware that passes on the requests that the rules allow, and limits their bodies.

    A request that another guard has passed is only checked for the tokens of these rules, if they have any: the names
    and origins of the server are those of the guard before.

    Args:
        app: the application behind it.
        rules: who may send requests.
        is_open: whether a request, by its ASGI scope, needs no token. Default: none is.
    """

    def __init__(self, app: ASGIApp, rules: AccessRules, is_open: Callable[[Scope], bool] | None = None) -> None:
        self._app = app
        self._rules = rules
        self._is_open = is_open
        self._owners = rules.owners
        self._bodies = Counter[Owner]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket") or (ACCESS_KEY in scope and not self._rules.has_tokens):
            await self._app(scope, receive, send)
            return
        is_open = self._is_open is not None and self._is_open(scope)
        acquire, release = (None, None) if is_open else scope.get("state", {}).get(SLOT_KEY, (None, None))
        try:
            access = Access(self._rules.check(scope["headers"], is_open=is_open), self._owners)
            if acquire is not None and not acquire(access):
                raise RefusedRequestError("limit", "too many connections of this token are open: close some")
        except RefusedRequestError as refusal:
            if refusal.code == "unauthorized" and find_tokens(scope["headers"]):
                await anyio.sleep(WRONG_TOKEN_SECONDS)
            await _send_refusal(scope, receive, send, refusal)
            return
        scope[ACCESS_KEY] = access
        try:
            if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
                await self._serve_request(access, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except RefusedRequestError as refusal:  # of the body, or of the application: no response was begun
            await _send_refusal(scope, receive, send, refusal)
        finally:
            if release is not None:
                release(access)

    async def _serve_request(self, access: Access, scope: Scope, receive: Receive, send: Send) -> None:
        body = _LimitedBody(receive, lambda size: self._count_body(access, size))
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._bodies[access.owner] -= body.size
            if not self._bodies[access.owner]:
                del self._bodies[access.owner]

    def _count_body(self, access: Access, size: int) -> None:
        """Count more bytes of a body.

        Raises:
            RefusedRequestError: the owner has too many.
        """
        if not Shares(MAX_BODIES_BYTES, access.owners).has_room(access.owner, self._bodies, size):
            raise RefusedRequestError(
                "limit", "the requests of this token are too large together: wait for some to end"
            )
        self._bodies[access.owner] += size


class _LimitedBody:
    """Receives the body of a request: within `BODY_SECONDS` in all, and as far as `count` allows its size."""

    def __init__(self, receive: Receive, count: Callable[[int], None]) -> None:
        self.size = 0
        self._receive = receive
        self._count = count
        self._deadline = anyio.current_time() + BODY_SECONDS
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        message: Message | None = None
        with anyio.CancelScope(deadline=self._deadline):
            message = await self._receive()
        if message is None:
            text = f"the body of the request did not arrive within {BODY_SECONDS:g} s"
            raise RefusedRequestError("timeout", text)
        self._is_complete = not message.get("more_body")
        size = len(message.get("body", b""))
        self._count(size)
        self.size += size
        return message


def find_access(connection: HTTPConnection) -> Access:
    """Return who sends a request, which a guard has passed."""
    return connection.scope[ACCESS_KEY]


async def find_application_access(get_owner: GetOwner | None, request: Request) -> Access:
    """Return who sends a request, where an application may tell its users apart.

    Args:
        get_owner: of the application; None: as `find_access` says.
        request: the request.

    Raises:
        RefusedRequestError: the function gave no name.
    """
    if get_owner is None:
        return find_access(request)
    given: Any = get_owner(request)
    name: Any = await given if inspect.isawaitable(given) else given
    if not isinstance(name, str) or not name:
        raise RefusedRequestError("forbidden", "this request has no owner: the function get_owner gave no name for it")
    return Access(Owner(name), None)


def find_tokens(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return the Authorization headers; without one, the keys that clients of Anthropic send."""
    keys = _find_headers(headers, b"x-api-key")
    return _find_headers(headers, b"authorization") or [f"Bearer {key}" for key in keys]


async def _send_refusal(scope: Scope, receive: Receive, send: Send, refusal: RefusedRequestError) -> None:
    code, message = refusal.code, str(refusal)
    body = json.dumps(_make_refusal_body(scope, code, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if code == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    if code == "limit":
        headers.append((b"retry-after", str(RETRY_SECONDS).encode()))
    if scope["type"] == "http" and code in ("limit", "timeout") and scope.get("http_version", "").startswith("1"):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": message[:100]})
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": ACCESS_STATUSES[code], "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _make_refusal_body(scope: Scope, code: str, message: str) -> dict[str, Any]:
    kind = _VENDOR_ERRORS.get(code, "api_error")
    is_openai = _OPENAI_PATH.search(scope["path"]) and not _find_headers(scope["headers"], b"anthropic-version")
    if is_openai:
        return {"error": {"message": message, "type": kind, "param": None, "code": _OPENAI_CODES.get(code, code)}}
    return {"type": "error", "error": {"code": code, "message": message, "type": kind}}


def _find_headers(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _own_origins(host: str) -> tuple[str, str]:
    return f"http://{host.lower()}", f"https://{host.lower()}"


def _parse_host_name(host: str) -> str:
    """Return the name in a Host header; all of it if it is no name with an optional port."""
    found = _HOST.fullmatch(host)
    return (found[1] if found else host).lower()


def _digest(text: str) -> bytes:
    # Digests have one length, so that not even the length of the token can be measured.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
