"""Connections without a token lock nobody out: the accept loop, the slots and the time limit."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from served_host import TOKEN, MakeHost, Program

from pilothouse.errors import UsageError
from pilothouse_access import guard
from pilothouse_access.owners import OPERATOR, Access
from pilothouse_host import application, check_token, connections
from pilothouse_host.application import compute_connection_limit, raise_descriptor_limit
from pilothouse_testing import FakeCLI

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
DESCRIPTORS = 256


def held(port: int, data: bytes = HALF) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(data)
    return connection


def answer_to(port: int, data: bytes) -> bytes:
    """All that the host says until it closes the connection, which it has to do within ten seconds."""
    with held(port, data) as connection:
        return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    data_read = b""
    try:
        while data := connection.recv(65536):
            data_read += data
    except ConnectionError:
        pass
    return data_read


class Attack(threading.Thread):
    """Keeps many half-sent requests open, and opens those again that the host closes."""

    def __init__(self, port: int, size: int) -> None:
        super().__init__(daemon=True)
        self.opened = 0
        self._port = port
        self._size = size
        self._over = threading.Event()
        self.full = threading.Event()

    def run(self) -> None:
        open_now: list[socket.socket] = []
        while not self._over.is_set() and self.opened < 4 * self._size:
            open_now.append(held(self._port))
            self.opened += 1
            if len(open_now) > self._size:
                open_now.pop(0).close()
            if self.opened == self._size:
                self.full.set()
        self._over.wait(30)
        for one in open_now:
            one.close()

    def end(self) -> None:
        self._over.set()
        self.join(30)


@pytest.mark.requirement("E84")
def test_half_sent_requests_block_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f"({DESCRIPTORS // 2}, {DESCRIPTORS})"
    script = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); "
    limited = [sys.executable, "-c", script + "os.execv(sys.argv[1], sys.argv[1:])"]
    monkeypatch.setattr("served_host.PYTHON", [*limited, sys.executable])
    with FakeCLI().text("one").text("two") as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            attack = Attack(served.port, 300)
            attack.start()
            slowest = 0.0
            try:
                assert attack.full.wait(30)
                _, session = served.request("POST", "/v1/sessions", {"prompt": "hi"})
                for _ in range(40):
                    begin = time.monotonic()
                    assert served.request("GET", f"/v1/sessions/{session['id']}")[0] == 200
                    slowest = max(slowest, time.monotonic() - begin)
                with served.dial() as dialled:
                    assert dialled.start()["op"] == "ready"
            finally:
                attack.end()
            assert slowest < 5
            assert attack.opened > DESCRIPTORS
            program.kill()
        _, output = program.end()
    assert len(output) < 2000, output[:4000]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_time_for_headers_and_for_a_token(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TOKEN_SECONDS", 0.3)
    served = serve_host(cli="/nowhere")
    assert answer_to(served.port, HALF) == b""
    assert answer_to(served.port, b"") == b""
    # /healthz and a missing token are answered, but keep no connection for longer.
    for path, status in (("/healthz", b"204"), ("/v1/sessions", b"401")):
        assert status in answer_to(served.port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    # A body that never comes is not waited for without a token, either.
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    assert b"401" in answer_to(served.port, head)


def test_a_token_ends_the_time_limit(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TOKEN_SECONDS", 0.3)
    head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as dialled:
            assert dialled.start()["op"] == "ready"
            path = f"/v1/sessions/{dialled.session}/events"
            with (
                held(served.port, f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()) as events,
                held(served.port, f"GET /v1/sessions HTTP/1.1\r\n{head}\r\n".encode()) as again,
            ):
                assert b"200" in events.recv(65536)
                assert b"200" in again.recv(65536)
                again.sendall(HALF)  # the next request of the same connection has the time limit again
                rest_of(again)
                events.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    rest_of(events)
            dialled.say("ping", t=1)
            dialled.until("pong")


def test_the_longest_waiter_is_dropped_first_from_the_address_with_most() -> None:
    class Transport:
        def __init__(self, address: str) -> None:
            self.address = address
            self.aborted = self.closing = False

        def get_extra_info(self, name: str) -> Any:
            return (self.address, 1) if name == "peername" else None

        def is_closing(self) -> bool:
            return self.closing or self.aborted

        def abort(self) -> None:
            self.aborted = True

    async def run() -> None:
        slots = connections.ConnectionLimiter(24, frozenset({OPERATOR}))
        assert slots.max_waiting == 6
        one = Transport("10.0.0.1")
        many = [Transport("10.0.0.2") for _ in range(6)]
        for each in (one, *many):
            slots.start_waiting(each)  # type: ignore[arg-type]
        assert [each.aborted for each in (one, *many)] == [False, True, *[False] * 5]
        many[3].closing = True  # of those that are closed already there is room
        last = Transport("10.0.0.2")
        slots.start_waiting(last)  # type: ignore[arg-type]
        assert [each.aborted for each in (*many, last)] == [True, *[False] * 6]
        taken = [Transport("10.0.0.3") for _ in range(18)]
        assert all(slots.acquire(each, Access()) for each in taken)  # type: ignore[arg-type]
        assert not slots.acquire(last, Access())  # type: ignore[arg-type]
        slots.release(Access())
        assert slots.acquire(last, Access())  # type: ignore[arg-type]
        slots.drop_half()
        assert [each.aborted for each in (one, *many[1:])] == [True, True, True, False, False, False]

    asyncio.run(run())


def test_too_many_connections_with_a_token_get_an_error(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "compute_connection_limit", lambda sessions: 8)
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as dialled:
            assert dialled.start()["op"] == "ready"
            with served.events(dialled.session), served.events(dialled.session), served.events(dialled.session):
                status, answer = served.request("GET", "/v1/sessions")
                assert (status, answer["error"]["code"]) == (429, "limit")
                assert served.request("GET", "/healthz", token=None)[0] == 204


def test_descriptors_run_out_and_come_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.001)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        real, failures = loop.sock_accept, 50
        got = asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.close()
                got.set()

        async def without_descriptors(sock: socket.socket) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return await real(sock)

        monkeypatch.setattr(loop, "sock_accept", without_descriptors)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            accepting = asyncio.create_task(
                connections.accept_connections(
                    listening, Protocol, connections.ConnectionLimiter(64, frozenset({OPERATOR}))
                )
            )
            with socket.create_connection(listening.getsockname()):
                await asyncio.wait_for(got.wait(), 20)
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)

    asyncio.run(run())
    [record] = caplog.records
    assert "Too many open files" in record.getMessage()
    assert record.exc_info is None


def test_descriptors_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = (100, 1000)

    def chosen(soft_and_hard: tuple[int, int]) -> None:
        nonlocal limit
        limit = soft_and_hard

    monkeypatch.setattr(resource, "getrlimit", lambda kind: limit)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, value: chosen(value))
    raise_descriptor_limit()
    assert limit == (1000, 1000)
    limit = (1024, resource.RLIM_INFINITY)
    raise_descriptor_limit()
    assert limit == (application.MAX_DESCRIPTORS, resource.RLIM_INFINITY)
    assert compute_connection_limit(32) == application.MAX_CONNECTIONS
    for soft, sessions, most in ((256, 32, 128), (1024, 32, 704), (1024, 4, 928)):
        limit = (soft, soft)
        assert compute_connection_limit(sessions) == most
    limit = (50, 50)
    with pytest.raises(UsageError, match="at least 64 open files"):
        compute_connection_limit(1)


def test_wrong_requests_do_not_fill_the_log(
    serve_host: MakeHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TOKEN_SECONDS", 0.3)
    served = serve_host(cli="/nowhere")
    caplog.clear()
    upgrade = b"GET /v1/wire HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "
    for data in (  # the last of them is a right request without a token
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        upgrade + b"h2c\r\n\r\n",
        upgrade + b"websocket\r\n\r\n",
        upgrade + b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    ):
        assert answer_to(served.port, data).startswith(b"HTTP/1.1 4"), data
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_tokens_that_can_be_guessed() -> None:
    for weak in ("a" * 16, "ab" * 20, "aaaaaaaaaaaaaaab", "passwordpassword", "0123456789abcdef", "ABCDEFGHIJKLMNOPQ"):
        with pytest.raises(UsageError, match="can be guessed"):
            check_token(weak)
    for good in (TOKEN, "9f86d081884c7d65", "any-token-of-16-characters-or-more"):
        check_token(good)


def test_a_wrong_token_is_answered_late(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve_host(cli="/nowhere")
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(guard.anyio, "sleep", sleep)  # type: ignore[attr-defined]
    assert served.request("GET", "/v1/sessions", token=TOKEN + "x")[0] == 401
    assert guard.WRONG_TOKEN_SECONDS in waited
    waited.clear()
    assert served.request("GET", "/v1/sessions", token=None)[0] == 401
    assert served.request("GET", "/v1/sessions")[0] == 200
    assert guard.WRONG_TOKEN_SECONDS not in waited
