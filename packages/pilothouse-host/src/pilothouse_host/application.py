"""The host as an ASGI application, and as a program of its own on an address.

Owns how the parts are combined: the routes behind the guard, sockets, signals, the orderly shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp, Scope
from starlette.websockets import WebSocket

from pilothouse.errors import UsageError
from pilothouse_access.guard import AccessGuard, AccessRules
from pilothouse_access.on_behalf import TOKEN_VARIABLE
from pilothouse_access.request_ids import RequestIds
from pilothouse_host.connections import ConnectionLimiter, HostConnection, accept_connections
from pilothouse_host.console import is_console_path, make_console_routes
from pilothouse_host.host import Host
from pilothouse_host.rest import HEALTH_PATH, handle_not_found, make_routes
from pilothouse_host.websocket import serve_websocket
from pilothouse_remote.messages import MAX_MESSAGE_BYTES, is_loopback

MIN_TOKEN_CHARS = 16
"""Minimum characters of a token that was chosen by hand."""
GRACE_SECONDS = 5
"""Seconds for connections to end, once all children have."""
MIN_DIFFERENT_CHARS = 6
"""Minimum number of different characters in a token."""
MAX_CONNECTIONS = 2048
"""Maximum at a time, if there are enough descriptors."""
MAX_DESCRIPTORS = 65536
"""The soft limit of descriptors is not raised above this."""
RESERVED_DESCRIPTORS = 64
"""Descriptors for the journal, the listening socket and files."""
DESCRIPTORS_PER_CHILD = 8
"""Descriptors for the pipes of one child."""


def make_app(
    host: Host,
    *,
    token: str | None,
    tokens: Mapping[str, str] | None = None,
    origins: Sequence[str] = (),
    names: Sequence[str] = (),
    routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Build the ASGI application of a host, to be served or mounted in another one.

    The host must be open (`async with host`), on the event loop that serves the application: in its lifespan, or
    around the server.

    Args:
        host: owner of the sessions.
        token: what clients must send as `Authorization: Bearer …`; it gives access to all sessions. None where a
            layer before this checks tokens, or where there are only `tokens`.
        tokens: further tokens by the name of their owner, who sees only the sessions that were started with it.
        origins: origins of pages that may use it, such as "https://console.example.com". Default: none.
        names: names by which clients reach it, besides "localhost" and addresses.
        routes: further routes behind the same guard, such as those of endpoints.

    Raises:
        UsageError: a token is too short, can be guessed, or is there twice; or an origin or a name has a form that
            no browser sends.
    """
    owners = dict(tokens or {})
    _check_tokens(token, owners)
    rules = AccessRules(token=token, tokens=owners, origins=tuple(origins), names=tuple(names))
    host.add_owners(rules.owners)

    def is_open(scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return scope["type"] == "http" and (path == HEALTH_PATH or is_console_path(path))

    async def wire(websocket: WebSocket) -> None:
        await serve_websocket(host, websocket)

    methods = ["GET", "POST", "DELETE"]
    allowed = ["authorization", "content-type", "last-event-id", "x-api-key", "anthropic-version"]
    layers = [Middleware(RequestIds), Middleware(AccessGuard, rules=rules, is_open=is_open)]
    if origins:
        layers.insert(
            0, Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=allowed)
        )
    paths = [*make_routes(host), *make_console_routes(), WebSocketRoute("/v1/wire", wire), *routes]
    return Starlette(routes=paths, middleware=layers, exception_handlers={404: handle_not_found, 405: handle_not_found})


def _check_tokens(token: str | None, owners: Mapping[str, str]) -> None:
    given = [*owners.values(), *([] if token is None else [token])]
    for one in given:
        check_token(one)
    if len(set(given)) < len(given) or not all(owners):
        raise UsageError("the tokens: expected each once, each with the name of its owner")


def check_token(token: str) -> None:
    """Refuse a token that could be guessed, or cannot be sent.

    Raises:
        UsageError: it is too short, has characters that no header has, or is a repetition or a sequence.
    """
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token: expected at least {MIN_TOKEN_CHARS} printable ASCII characters without blanks, such as those "
            "of `openssl rand -hex 32`"
        )
    if len(set(token)) < MIN_DIFFERENT_CHARS or token in (token + token)[1:-1] or _is_sequence(token):
        raise UsageError(
            "the token: it repeats or counts up, so it can be guessed; use the output of `openssl rand -hex 32`"
        )


def _is_sequence(token: str) -> bool:
    """Return whether most characters follow their predecessors in order, as in "0123456789abcdef"."""
    steps = Counter(ord(after) - ord(before) for before, after in pairwise(token))
    return max(steps[step] for step in (-1, 0, 1)) > len(token) * 2 // 3


def find_token(file: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the token of a host, and whether it was just made. Blocking.

    Args:
        file: path of a file with it; None: the variable PILOTHOUSE_HOST_TOKEN, else a new token is made.
        environ: the environment variables.

    Raises:
        UsageError: the file cannot be read, others may read it, or its content is not a valid token.
    """
    if file is not None:
        token, made = read_token(Path(file)), False
    elif environ.get(TOKEN_VARIABLE):
        token, made = environ[TOKEN_VARIABLE], False
    else:
        token, made = secrets.token_urlsafe(32), True
    check_token(token)
    return token, made


def read_token(path: Path) -> str:
    """Read the token from a file. Blocking.

    Raises:
        UsageError: the file cannot be read, or others may read it.
    """
    try:
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"other users may read the token file {path}: chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {path} cannot be read: {error}") from None


def listen(address: str, port: int, *, public: bool = False) -> socket.socket:
    """Open a listening socket.

    Args:
        address: IP address or name of an interface of this machine.
        port: 0 picks a free one.
        public: whether other machines may reach it.

    Raises:
        UsageError: the port is taken, the address does not exist, or other machines would reach it without `public`.
    """
    if not public and not is_loopback(address):
        raise UsageError(
            f"{address} can be reached from elsewhere, and this host speaks plain HTTP: put a TLS proxy in front of "
            "127.0.0.1, or give --public"
        )
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=512)
        # Connections inherit it; asyncio does not set it on theirs. Small responses would wait 40 ms for each other.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise UsageError(f"cannot listen on {address}, port {port}: {error.strerror or error}") from None


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors of this process to the hard one, 65,536 at most. No effect on Windows."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def compute_connection_limit(max_sessions: int) -> int:
    """Return the maximum number of connections that leaves descriptors for children and files.

    Args:
        max_sessions: children at a time.

    Raises:
        UsageError: the process may open fewer than 64 files.
    """
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    if soft < RESERVED_DESCRIPTORS:
        raise UsageError(f"a host needs at least {RESERVED_DESCRIPTORS} open files; raise `ulimit -n`, which is {soft}")
    reserved = min(RESERVED_DESCRIPTORS + DESCRIPTORS_PER_CHILD * max_sessions, soft // 2)
    return min(MAX_CONNECTIONS, soft - reserved)


async def serve(
    host: Host,
    application: Any,
    listening: socket.socket,
    on_ready: Callable[[], object],
    *,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve an application until SIGTERM or SIGINT, then shut the host down; a second signal ends at once.

    Args:
        host: open.
        application: made by `make_app`.
        listening: the listening socket; closed at the end.
        on_ready: called once requests are served.
        stop: set it for the same effect as a signal.
    """
    slots = ConnectionLimiter(compute_connection_limit(host.settings.max_sessions), host.owners)
    server, make = _make_server(application, slots)
    stopping = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    signal_count = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal signal_count
        signal_count += 1
        loop.call_soon_threadsafe(stopping.set)
        if signal_count > 1:
            server.should_exit = server.force_exit = True

    async def drain_when_stopped() -> None:
        while not server.started and not server.should_exit:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        accepting = asyncio.ensure_future(accept_connections(listening, make, slots))
        try:
            on_ready()
            await stopping.wait()
            await host.drain()
        finally:
            accepting.cancel()
            server.should_exit = True

    with _handle_signals(end):
        logging.getLogger("uvicorn.error").addFilter(_is_relevant_record)
        ending = asyncio.ensure_future(drain_when_stopped())
        try:
            await server.serve(sockets=[])  # `accept_connections` brings the connections
            if ending.done():
                ending.result()  # raises the error of that task, if any
        finally:
            ending.cancel()
            listening.close()
            logging.getLogger("uvicorn.error").removeFilter(_is_relevant_record)


def _is_relevant_record(record: logging.LogRecord) -> bool:
    # uvicorn warns of each request that is not valid HTTP, and logs an error for each WebSocket that got 401 or 403:
    # clients without a token could fill the log.
    return record.levelno >= logging.ERROR and "without completing handshake" not in str(record.msg)


class _Server(uvicorn.Server):
    """Leaves the signals to `serve`: sessions are ended in order before connections are cut."""

    def capture_signals(self) -> Any:
        return nullcontext()


def _make_server(application: Any, slots: ConnectionLimiter) -> tuple[Any, Callable[[], asyncio.Protocol]]:
    """Build the uvicorn server, which does not listen, and the factory of its connections."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    return server, lambda: HostConnection(slots, config, server.server_state)


@contextmanager
def _handle_signals(end: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Call a function on SIGTERM and SIGINT. Only possible in the main thread; without effect in others."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
