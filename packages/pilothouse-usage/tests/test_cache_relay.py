"""The relay of the cache doctor: what passes is unchanged and not kept, nobody else may use it, and nothing is left."""

from __future__ import annotations

import gc
import logging
import pickle
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import anyio
import httpx2
import pytest
from upstream_api import Upstream, serve_upstream

import pilothouse as ph
from pilothouse_usage import CacheDoctor

pytestmark = pytest.mark.anyio

HEAD = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'
REST = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
BODY = b'{"model":"m","messages":[{"role":"user","content":"the secret word is xylophone"}]}'
KEY = "sk-ant-the-key-of-this-test"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        made.pieces = [HEAD, REST]
        yield made


@asynccontextmanager
async def open_doctor(upstream: Upstream) -> AsyncGenerator[tuple[CacheDoctor, str, httpx2.AsyncClient]]:
    """A doctor, the address at which it stands for the upstream, and a client."""
    async with CacheDoctor() as doctor, httpx2.AsyncClient(timeout=20) as client:
        agent = doctor.attach(ph.Agent(base_url=upstream.url, inherit_env=False))
        yield doctor, str(agent.options.base_url), client


@pytest.mark.parametrize("status", [200, 400, 429, 500, 529])
async def test_request_and_answer_pass_unchanged(upstream: Upstream, status: int) -> None:
    upstream.status = status
    upstream.headers |= {"request-id": "req_1", "retry-after": "7"}
    upstream.pieces = [HEAD[:10], HEAD[10:], b"\xff\x00\r\n", REST]
    async with open_doctor(upstream) as (doctor, url, client):
        answer = await client.post(f"{url}/v1/messages?beta=true", content=BODY, headers={"x-api-key": KEY, "a": "b"})
    assert (answer.status_code, answer.content) == (status, HEAD + b"\xff\x00\r\n" + REST)
    assert answer.headers["request-id"] == "req_1"
    assert answer.headers["retry-after"] == "7"
    ((method, path, headers, body),) = upstream.requests
    assert (method, path, body) == ("POST", "/v1/messages?beta=true", BODY)
    assert (headers["x-api-key"], headers["a"]) == (KEY, "b")
    assert headers["host"] == upstream.url.removeprefix("http://")
    assert doctor.report().startswith("1 request; " if status == 200 else "No request ")


async def test_other_requests_pass_too(upstream: Upstream) -> None:
    async with open_doctor(upstream) as (doctor, url, client):
        assert (await client.head(f"{url}/")).status_code == 200
        assert (await client.get(f"{url}/v1/models?limit=5")).content == HEAD + REST
        await client.post(f"{url}/v1/messages/count_tokens", content=BODY)
        await client.post(f"{url}/v1/messages", content=b"not JSON")
        await client.post(f"{url}/v1/messages", content=b'{"messages": 3}')
    assert [request[:2] for request in upstream.requests] == [
        ("HEAD", "/"), ("GET", "/v1/models?limit=5"), ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/messages"), ("POST", "/v1/messages"),
    ]  # fmt: skip
    assert doctor.report().startswith("No request ")


async def test_large_bodies_pass_in_both_directions(upstream: Upstream) -> None:
    upstream.pieces = [bytes([number]) * 1_000_000 for number in range(20)]
    body = b"x" * 20_000_000
    async with open_doctor(upstream) as (_, url, client):
        answer = await client.post(f"{url}/v1/messages", content=body)
    assert answer.content == b"".join(piece for piece in upstream.pieces if isinstance(piece, bytes))
    assert upstream.requests[0][3] == body


async def test_each_piece_of_a_stream_passes_at_once(upstream: Upstream) -> None:
    received = threading.Event()
    upstream.pieces = [HEAD, lambda: received.wait(10), REST]
    async with (
        open_doctor(upstream) as (doctor, url, client),
        client.stream("POST", f"{url}/v1/messages", content=BODY) as answer,
        aclosing(answer.aiter_raw()) as pieces,
    ):
        assert await anext(pieces) == HEAD
        assert doctor.report().startswith("1 request; it lost no cache."), "the usage is read before the end"
        received.set()
        assert [piece async for piece in pieces] == [REST]


async def test_a_stream_without_usage_is_read_once(upstream: Upstream) -> None:
    """Other APIs tell the usage at the end: then each piece was searched together with all before it."""
    line = b'data: {"type":"content_block_delta","delta":{"text":"hello"}}\n\n'
    upstream.pieces = [*[line] * 4000, HEAD]
    begun = time.process_time()
    async with open_doctor(upstream) as (doctor, url, client):
        await client.post(f"{url}/v1/messages", content=BODY)
    assert doctor.report().startswith("1 request;")
    assert time.process_time() - begun < 8


@pytest.mark.parametrize("place", ["before the head", "in the stream"])
async def test_a_client_that_leaves_ends_the_request(upstream: Upstream, place: str) -> None:
    begun, gone = threading.Event(), threading.Event()

    def send_until_refused() -> str:
        begun.set()
        gone.wait(10)
        return ""

    if place == "before the head":
        upstream.before_head = send_until_refused
    else:
        upstream.pieces = [HEAD, send_until_refused, *[b"x" * 100_000] * 200]
    async with open_doctor(upstream) as (_, url, client):
        async with anyio.create_task_group() as group:
            group.start_soon(client.post, f"{url}/v1/messages")
            await anyio.to_thread.run_sync(begun.wait, 10)
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while list_connections_to(upstream):
                await anyio.sleep(0.01)
        gone.set()


def list_connections_to(upstream: Upstream) -> list[str]:
    """The established connections to the upstream, of clients in this process."""
    port = f":{int(upstream.url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[2].endswith(port) and line[3] == "01"]


async def test_a_broken_answer_is_broken_for_the_client(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    upstream.pieces = [HEAD, lambda: "cut"]
    async with open_doctor(upstream) as (_, url, client):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(f"{url}/v1/messages", content=BODY)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the connection of a cache doctor to the API failed: RemoteProtocolError"
    ]


async def test_an_api_that_cannot_be_reached_is_told(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        upstream.url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with open_doctor(upstream) as (_, url, client):
        with pytest.raises(httpx2.TransportError):
            await client.post(f"{url}/v1/messages", content=BODY)
    assert "the connection of a cache doctor to the API failed: ConnectError" in caplog.messages


@pytest.mark.parametrize("path", ["", "/", "/v1/messages", "/wrong/v1/messages", "//v1/messages"])
async def test_without_its_prefix_the_relay_answers_404(upstream: Upstream, path: str) -> None:
    async with open_doctor(upstream) as (_, url, client):
        answer = await client.post(url.rpartition("/")[0] + path, content=BODY)
    assert (answer.status_code, answer.content) == (404, b"")
    assert upstream.requests == []


async def test_a_slow_client_gets_the_whole_answer(upstream: Upstream) -> None:
    upstream.pieces = [b"x" * 1_000_000] * 30
    async with (
        open_doctor(upstream) as (_, url, client),
        client.stream("POST", f"{url}/v1/messages", content=BODY) as answer,
    ):
        await anyio.sleep(0.3)  # the buffers are full; nothing is dropped and nothing fails
        size = 0
        async for piece in answer.aiter_raw():
            size += len(piece)
    assert size == 30_000_000


async def test_close_ends_threads_connections_and_answers(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    going_on = threading.Event()
    upstream.pieces = [HEAD, lambda: going_on.wait(10), REST]
    threads = set(threading.enumerate())
    async with httpx2.AsyncClient() as client:
        async with CacheDoctor() as doctor:
            url = str(doctor.attach(ph.Agent(base_url=upstream.url, inherit_env=False)).options.base_url)
            request = client.build_request("POST", f"{url}/v1/messages", content=BODY)
            answer = await client.send(request, stream=True)
        with pytest.raises(httpx2.RemoteProtocolError):
            await answer.aread()
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)
    going_on.set()
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "cache-doctor"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def find_reachable(start: object) -> Iterator[object]:
    """Everything that an object refers to, directly or not, but for modules, classes and the globals of functions."""
    seen, waiting = set[int](), [start]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, ModuleType | type):
            continue
        seen.add(id(found))
        yield found
        waiting.extend((found.__closure__,) if isinstance(found, FunctionType) else gc.get_referents(found))


def find_texts(start: object) -> list[str]:
    return [str(found) for found in find_reachable(start) if isinstance(found, str | bytes | bytearray)]


async def test_no_text_and_no_key_is_kept(upstream: Upstream) -> None:
    body = BODY[:-1] + b',"system":"a confidential prompt","tools":[{"name":"t","description":"a private thing"}]}'
    upstream.pieces = [HEAD, b'data: {"type":"content_block_delta","delta":{"text":"a whispered answer"}}\n\n', REST]
    words = ("xylophone", "confidential", "private thing", "whispered", KEY)
    async with open_doctor(upstream) as (doctor, url, client):
        for _ in range(2):
            await client.post(f"{url}/v1/messages", content=body, headers={"x-api-key": KEY})
        assert doctor.report().startswith("2 requests;")
        # uvicorn has the headers of the last request of a connection, as long as the child holds it open.
        with anyio.fail_after(5):  # the client has the answer before the relay is done
            while [word for word in words[:-1] for text in find_texts(vars(doctor)) if word in text]:
                await anyio.sleep(0.01)
    kept = [*find_texts(doctor), repr(doctor), doctor.report()]
    assert "t" in kept, "the name of the tool is kept"
    assert not [word for word in words for text in kept if word in text]
    assert not [word for word in words if word.encode() in pickle.dumps(doctor.losses)]


async def test_equal_texts_have_other_hashes_in_another_doctor(upstream: Upstream) -> None:
    digests: list[Any] = []
    for _ in range(2):
        async with open_doctor(upstream) as (doctor, url, client):
            await client.post(f"{url}/v1/messages", content=BODY)
        digests.append({found for found in find_reachable(doctor) if isinstance(found, bytes) and len(found) == 16})
    assert digests[0]
    assert digests[0].isdisjoint(digests[1])


async def test_doctors_stand_in_a_row_and_serve_several_apis(upstream: Upstream) -> None:
    with serve_upstream() as second:
        second.pieces = [REST]
        async with open_doctor(upstream) as (outer, url, client), CacheDoctor() as inner:
            first_url, second_url = (
                str(inner.attach(ph.Agent(base_url=f"{address}", inherit_env=False)).options.base_url)
                for address in (f"{url}/", second.url)
            )
            assert (await client.post(f"{first_url}/v1/messages", content=BODY)).content == HEAD + REST
            assert (await client.post(f"{second_url}/v1/messages", content=BODY)).content == REST
    assert outer.report().startswith("1 request;")
    assert inner.report().startswith("1 request;")


@pytest.mark.parametrize("cloud", ["bedrock", "vertex", "foundry"])
async def test_a_cloud_provider_is_refused(cloud: Any) -> None:
    async with CacheDoctor() as doctor:
        with pytest.raises(ph.UsageError, match=f"CLAUDE_CODE_USE_{cloud.upper()} is set"):
            doctor.attach(ph.Agent(provider=cloud))
        doctor.attach(ph.Agent(env={"CLAUDE_CODE_USE_BEDROCK": "0", "CLAUDE_CODE_USE_POWERSHELL_TOOL": "1"}))


async def test_a_closed_doctor_attaches_nothing() -> None:
    async with CacheDoctor() as doctor:
        pass
    for one in (doctor, CacheDoctor()):
        with pytest.raises(ph.UsageError, match="not open"):
            one.attach(ph.Agent())
        with pytest.raises(ph.UsageError, match=r"^CacheDoctor\.attach: expected an Agent, got str$"):
            one.attach("opus")  # pyright: ignore[reportArgumentType]


async def test_the_environment_of_the_agent_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    async with CacheDoctor() as doctor:
        own = doctor.attach(ph.Agent(model="opus", env={"A": "1", "GONE": None})).options
        other = doctor.attach(ph.Agent(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9/gateway"})).options
    assert (own.model, (own.env or {}).items() >= {"A": "1", "GONE": None}.items()) == ("opus", True)
    assert own.to_env()["ANTHROPIC_BASE_URL"] == own.base_url
    assert own.to_env()["NO_PROXY"] == "intranet,127.0.0.1"
    variable = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
    assert (own.to_env().get(variable), other.to_env().get(variable)) == ("1", None)
