"""A host on a free port of loopback, in a thread with its own event loop, and plain clients for it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, count, takewhile
from pathlib import Path
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from pilothouse_host import Host, HostSettings, listen, make_app, serve

TOKEN = "token-of-the-tests-0123456789"
LIMIT = 20.0
PYTHON = [sys.executable]
"""What `Program` runs the command with."""
ARGV = ("--output-format", "stream-json", "--verbose", "--print", "--input-format", "stream-json")


class Served:
    """A host that is served until `stop`."""

    def __init__(self, host: Callable[[], Host], *, token: str | None = TOKEN, **access: Any) -> None:
        self._make = host
        self._token = token
        self._access = access
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.error: BaseException | None = None
        self.port = 0
        self.host: Host
        self.wrap: Callable[[Any], Any] = lambda application: application

    def start(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LIMIT)
        if self.error is not None:
            raise self.error
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.host = self._make()
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        async with self.host:
            application = self.wrap(make_app(self.host, token=self._token, **self._access))
            await serve(self.host, application, listening, self._ready.set, stop=self._stop)

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine function on the loop of the host."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(LIMIT)

    @property
    def session(self) -> Any:
        """The one session of the host."""
        [session] = self.host.sessions
        return session

    # Clients.

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        with self.response(method, path, body, token=token, **headers) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    @contextmanager
    def response(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **headers: str
    ) -> Generator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, sent)
            yield connection.getresponse()
        finally:
            connection.close()

    @contextmanager
    def events(
        self, session: str = "", last: int | None = None, token: str = TOKEN
    ) -> Generator[Iterator[dict[str, Any]]]:
        """The events of a session; without one, those of the host."""
        given = {} if last is None else {"Last_Event_ID": str(last)}
        path = f"/v1/sessions/{session}/events" if session else "/v1/events"
        with self.response("GET", path, token=token, **given) as answer:
            assert answer.status == 200, answer.read()
            yield _events(answer)

    @contextmanager
    def dial(self, *, token: str | None = TOKEN, **settings: Any) -> Generator[Dialled]:
        headers = dict(settings.pop("headers", {}))
        path = settings.pop("path", "/v1/wire")
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        settings.setdefault("subprotocols", ["pilothouse.v1"])
        limits: dict[str, Any] = {"max_size": 2**21, "open_timeout": LIMIT, "close_timeout": 1, "ping_interval": None}
        with connect(f"{self.url}{path}", additional_headers=headers, **limits, **settings) as socket:
            yield Dialled(socket)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if not text:
            if "data" in event:
                yield {"event": "message", **event, "id": int(event["id"]), "data": json.loads(event["data"])}
            event = {}
        elif not text.startswith(":"):
            name, _, value = text.partition(": ")
            event[name] = value


class Dialled:
    """The client's side of the link, by hand."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.client = str(uuid.uuid4())
        self.output = b""
        self.begin = 0
        self.session = ""
        self.ops: list[dict[str, Any]] = []

    def say(self, op: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"op": op, **fields}))

    def send(self, place: int, data: bytes) -> None:
        self.socket.send(place.to_bytes(8, "big") + data)

    def next(self, timeout: float = LIMIT) -> dict[str, Any]:
        """The next message: the JSON of an op, or {"op": "data", "at", "data"}."""
        message = self.socket.recv(timeout)
        if isinstance(message, str):
            op: dict[str, Any] = json.loads(message)
        else:
            op = {"op": "data", "at": int.from_bytes(message[:8], "big"), "data": message[8:]}
            assert op["at"] == self.begin + len(self.output), "a gap, or bytes twice"
            self.output += op["data"]
        self.ops.append(op)
        return op

    def until(self, *wanted: str) -> dict[str, Any]:
        while (op := self.next())["op"] not in wanted:
            if op["op"] == "ping":
                self.say("pong", t=op["t"])
        return op

    def until_output(self, text: bytes) -> None:
        while text not in self.output:
            self.next()

    def until_closed(self) -> int:
        """The code with which the host closes it."""
        try:
            while True:
                self.next()
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code

    def start(self, argv: tuple[str, ...] = ARGV, **invocation: Any) -> dict[str, Any]:
        invocation = {"argv": argv, **invocation}
        self.say("start", version=1, client=self.client, invocation=invocation)
        return self._ready()

    def attach(self, session: str, received: int | None, client: str | None = None, **more: Any) -> dict[str, Any]:
        self.client = client or self.client
        self.say("attach", version=1, client=self.client, session=session, received=received, **more)
        return self._ready()

    def _ready(self) -> dict[str, Any]:
        answer = self.next()
        if answer["op"] == "ready":
            self.begin, self.session = answer.get("begin", 0), answer["session"]
        return answer


def prompt(text: str) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"type": "user", "message": message, "parent_tool_use_id": None}).encode() + b"\n"


def numbers(size: int) -> bytes:
    """The first bytes of all numbers, a line each."""
    lengths = accumulate(len(f"{n}\n") for n in count())
    lines = sum(1 for _ in takewhile(lambda total: total < size, lengths)) + 1
    return b"".join(b"%d\n" % n for n in range(lines))[:size]


def file(flag: str, content: bytes, suffix: str = ".json") -> Mapping[str, str]:
    return {"flag": flag, "suffix": suffix, "content": base64.b64encode(content).decode()}


class Program:
    """`pilothouse serve` as a process of its own, or `pilothouse console`."""

    def __init__(self, directory: Path, cli: str, *arguments: str, command: str = "serve") -> None:
        self.command = command
        root = directory / "work"
        root.mkdir(exist_ok=True)
        given = ("--port", "0", "--cli", cli, "--root", str(root), "--journal", str(directory / "host.sqlite"))
        env = {**os.environ, "PILOTHOUSE_HOST_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            [*PYTHON, "-m", "pilothouse", command, *given, *arguments],
            env=env,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.output = ""

    def __enter__(self) -> Served:
        first = self.process.stdout if self.command == "console" else self.process.stderr
        assert first is not None
        while {"console": "#token", "serve": "/v1/sessions"}[self.command] not in self.output:
            line = first.readline()
            assert line, self.output
            self.output += line
        served = Served(lambda: None)  # type: ignore[arg-type, return-value] - only its clients are used
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.output)
        assert found is not None
        served.port = int(found[1])
        return served

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send a signal, wait for the end; the exit code and all that it said."""
        if number is not None:
            self.process.send_signal(number)
        # A program that ends by itself has to load all first.
        out, err = self.process.communicate(timeout=3 * LIMIT if number is None else LIMIT)
        self.output += err + out
        return self.process.returncode, self.output


def settings(directory: Path, **changes: Any) -> HostSettings:
    root = directory / "work"
    root.mkdir(exist_ok=True)
    given: dict[str, Any] = {"journal": directory / "host.sqlite", "roots": (str(root),), **changes}
    return HostSettings(**given)


def find(served: Served, count: int = 1, token: str = TOKEN) -> list[dict[str, Any]]:
    """The asks of a host, once there are so many."""
    deadline = time.monotonic() + LIMIT
    while len(asks := served.request("GET", "/v1/asks", token=token)[1]["asks"]) != count:
        assert time.monotonic() < deadline, asks
        time.sleep(0.02)
    return asks


def finish(served: Served, session: str) -> dict[str, Any]:
    """A session, once none of its prompts runs."""
    deadline = time.monotonic() + LIMIT
    while (found := served.request("GET", f"/v1/sessions/{session}")[1])["waiting"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


MakeHost = Callable[..., Served]
"""Serves a host with these settings."""
