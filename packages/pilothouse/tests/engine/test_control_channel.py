"""`Link`: control requests and their answers, whatever the consumer of messages does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pilothouse.engine.buffer import MessageBuffer
from pilothouse.engine.channel import ControlChannel
from pilothouse.engine.extensions import HandlerSet
from pilothouse.errors import ControlError, ControlTimeout, SessionClosedError, UsageError
from pilothouse.messages import Message
from pilothouse.options import Invocation
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

INVOCATION = Invocation(cli="memory", argv=(), env={})
Script = Callable[[MemoryPeer], Awaitable[object]]


@asynccontextmanager
async def linked(
    script: Script,
    *,
    timeout: float = 5.0,
    transport: MemoryTransport | None = None,
    host: HandlerSet | None = None,
) -> AsyncGenerator[tuple[ControlChannel, MessageBuffer], None]:
    """A link whose reader runs, to a peer that plays `script`."""
    transport = transport or MemoryTransport(script)
    await transport.start(INVOCATION)
    inbox = MessageBuffer(1000)
    group = anyio.create_task_group()

    async def run(work: Callable[[], Awaitable[None]]) -> None:
        await work()

    def beside(work: Callable[[], Awaitable[None]]) -> None:
        group.start_soon(run, work)

    link = ControlChannel(
        transport, start_task=beside, handlers=host, max_line_bytes=1_000_000, control_timeout=timeout
    )

    async def read() -> None:
        while (received := await link.receive()) is not None:
            inbox.put([*link.make_notes(received.skipped), *received.messages], received.size)

    async with group:
        group.start_soon(transport.serve)
        group.start_soon(read)
        yield link, inbox
        group.cancel_scope.cancel()
    link.close()
    await transport.close()
    assert transport.script_error is None


async def answer(peer: MemoryPeer, **payload: Any) -> str:
    """Take a request and answer it with its own subtype."""
    frame = await peer.read_frame()
    assert frame is not None
    body = {"subtype": frame["request"]["subtype"], **payload}
    await peer.write(frames.control_response(frame["request_id"], body))
    return frame["request_id"]


@pytest.mark.requirement("R9", "G17")
async def test_a_request_gets_its_answer() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await answer(conn, model="opus-5")
        frame = await conn.read_frame()
        assert frame is not None
        assert frame["request"] == {"subtype": "set_model", "model": "none"}
        refusal = {"subtype": "error", "request_id": frame["request_id"], "error": "no", "error_code": "bad_model"}
        await conn.write({"type": "control_response", "response": refusal})

    async with linked(peer) as (link, _):
        assert await link.request("set_model", {"model": "opus"}) == {"subtype": "set_model", "model": "opus-5"}
        with pytest.raises(ControlError, match="'set_model': no") as caught:
            await link.request("set_model", {"model": "none"})
        assert (caught.value.code, caught.value.subtype) == ("bad_model", "set_model")


@pytest.mark.requirement("R9", "R10", "G30")
async def test_answers_in_another_order_find_their_waiters() -> None:
    async def peer(conn: MemoryPeer) -> None:
        asked = [await conn.read_frame() for _ in range(20)]
        assert len({frame["request_id"] for frame in asked if frame}) == 20
        for frame in reversed(asked):
            assert frame is not None
            await conn.write(frames.control_response(frame["request_id"], {"n": frame["request"]["n"]}))

    got: dict[int, int] = {}

    async def ask(link: ControlChannel, n: int) -> None:
        got[n] = (await link.request("echo", {"n": n}))["n"]

    async with linked(peer) as (link, _), anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(ask, link, n)
    assert got == {n: n for n in range(20)}


@pytest.mark.requirement("R8", "G49", "G35")
async def test_an_answer_behind_unread_messages_comes_at_once() -> None:
    async def peer(conn: MemoryPeer) -> None:
        for n in range(300):
            await conn.write(frames.assistant(f"unread {n}" + "x" * 1000))
        await answer(conn)
        await conn.write(frames.result("done"))

    async with linked(peer) as (link, inbox):
        with anyio.fail_after(20):
            assert await link.request("interrupt") == {"subtype": "interrupt"}
        seen: list[Message] = []
        while len(seen) < 301:
            batch, _ = await inbox.get()
            seen += batch
        assert [m.type for m in seen] == ["assistant"] * 300 + ["result"]
        assert seen[299].raw["message"]["content"][0]["text"].startswith("unread 299")


@pytest.mark.virtual_time
@pytest.mark.requirement("R9")
async def test_no_answer_in_time() -> None:
    received: list[Any] = []

    async def peer(conn: MemoryPeer) -> None:
        received.append(await conn.read_frame())
        received.append(await conn.read_frame())
        await conn.write(frames.control_response(received[0]["request_id"], {"late": True}))
        await answer(conn)

    async with linked(peer, timeout=0.05) as (link, _):
        with pytest.raises(ControlTimeout, match=r"'get_settings' within 0\.05 s") as caught:
            await link.request("get_settings")
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.subtype == "get_settings"
        # The late answer belongs to nobody.
        assert await link.request("other") == {"subtype": "other"}
        assert link.connection.stats.unmatched_responses == 1
        assert not link.connection.pending
    assert received[1] == {"type": "control_cancel_request", "request_id": received[0]["request_id"]}


@pytest.mark.virtual_time
async def test_each_request_has_its_own_time() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await answer(conn)
        await anyio.sleep_forever()

    async with linked(peer, timeout=0.2) as (link, _):
        begun = anyio.current_time()
        await link.request("answered")
        ended: dict[str, float] = {}

        async def ask(name: str) -> None:
            asked_at = anyio.current_time()
            with pytest.raises(ControlTimeout, match=name):
                await link.request(name)
            ended[name] = anyio.current_time() - asked_at

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "first")
            await anyio.sleep_until(begun + 0.1)  # so that the alarm set for the first one is too early for this one
            group.start_soon(ask, "second")
        assert list(ended) == ["first", "second"]
        assert min(ended.values()) >= 0.2
        assert not link.connection.pending


async def test_a_cancelled_request_is_withdrawn() -> None:
    received: list[Any] = []
    asked, withdrawn = anyio.Event(), anyio.Event()

    async def peer(conn: MemoryPeer) -> None:
        received.append(await conn.read_frame())
        asked.set()
        received.append(await conn.read_frame())
        withdrawn.set()

    async with linked(peer) as (link, _):
        async with anyio.create_task_group() as group:
            group.start_soon(link.request, "slow")
            await asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            await withdrawn.wait()
        assert not link.connection.pending
    assert received[1] == {"type": "control_cancel_request", "request_id": received[0]["request_id"]}


async def test_close_fails_everything_that_waits() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await anyio.sleep_forever()

    errors: list[Exception] = []

    async def ask(link: ControlChannel) -> None:
        try:
            await link.request("never")
        except LookupError as error:
            errors.append(error)

    async with linked(peer) as (link, _):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask, link)
            while len(link.connection.pending) < 3:
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(20):
                link.close(LookupError("the end"))
                while len(errors) < 3:
                    await anyio.lowlevel.checkpoint()
        with pytest.raises(LookupError, match="the end"):
            await link.request("too late")
        link.close(RuntimeError("the first reason counts"))
        with pytest.raises(LookupError, match="the end"):
            await link.request("too late")


@pytest.mark.virtual_time
async def test_a_peer_that_does_not_read_does_not_hold_up_the_timeout() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await anyio.sleep_forever()

    async with linked(peer, timeout=0.1) as (link, _):
        with anyio.fail_after(3), pytest.raises(ControlTimeout):
            await link.request("large", {"body": "x" * 1_000_000})


async def test_a_body_that_is_no_json() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await answer(conn)

    async with linked(peer) as (link, _):
        with pytest.raises(UsageError):
            await link.request("odd", {"body": object()})
        assert await link.request("fine") == {"subtype": "fine"}


async def test_a_question_is_refused_and_odd_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "pilothouse.engine")
    got: list[Any] = []

    async def peer(conn: MemoryPeer) -> None:
        await conn.write("Starting up…\n")
        await conn.write('{"type": "assistant", "message": 5}\n')
        await conn.write("[1, 2]\n")
        await conn.write("y" * 1_500_000 + "\n")
        await conn.write(frames.control_request("can_use_tool", tool_name="Bash", input={}))
        got.append(await conn.read_frame())
        await conn.write({"type": "control_cancel_request", "request_id": "fake_9"})
        await answer(conn)

    async with linked(peer) as (link, _):
        with anyio.fail_after(5):
            while not got:
                await anyio.lowlevel.checkpoint()
            assert await link.request("still here") == {"subtype": "still here"}
    response = got[0]["response"]
    assert (response["subtype"], response["request_id"]) == ("error", "fake_1")
    assert "can_use_tool" in response["error"]
    texts = " ".join(record.getMessage() for record in caplog.records)
    assert "Starting up" in texts
    assert "1,500,000 bytes long" in texts
    assert "max_line_bytes" in texts


async def test_the_peer_goes_away_under_a_request() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await conn.read_frame()
        conn.end(exit_code=1)

    async with linked(peer) as (link, _):
        async with anyio.create_task_group() as group:
            caught: list[BaseException] = []

            async def ask() -> None:
                try:
                    await link.request("first")
                except SessionClosedError as error:
                    caught.append(error)

            group.start_soon(ask)
            with anyio.fail_after(5):
                while not link.connection.is_output_ended:
                    await anyio.lowlevel.checkpoint()
                link.close()
                while not caught:
                    await anyio.lowlevel.checkpoint()
        with anyio.fail_after(20), pytest.raises(SessionClosedError):
            await link.request("second")


async def test_what_is_no_message_is_shown_without_keys_and_cut() -> None:
    transport = MemoryTransport()
    link = ControlChannel(
        transport, start_task=lambda work: None, redact=lambda text: text.replace("sk-secret", "[redacted]"),
        max_line_bytes=1_000_000, control_timeout=1,
    )  # fmt: skip
    assert link.last_non_json_line == ""
    link.connection.feed(b"first\nthe key is sk-secret \xff" + b"x" * 100_000 + b"\n")
    assert link.last_non_json_line.startswith("the key is [redacted] \ufffdxxx")
    assert len(link.last_non_json_line) == 200


def test_a_function_that_cancels_the_task_it_runs_in_does_not_end_the_reading() -> None:
    async def handler(_: Mapping[str, Any]) -> Mapping[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return {"said": "yes"}

    async def peer(conn: MemoryPeer) -> None:
        for key in ("q1", "q2"):
            await conn.write(frames.control_request("can_use_tool", request_id=key))
            got.append(await conn.read_frame())
        await answer(conn)

    async def main() -> None:
        host = HandlerSet({"can_use_tool": handler}, on_initialize=lambda _: None, bind_sender=lambda _: None)
        async with linked(peer, host=host) as (link, _):
            with anyio.fail_after(5):
                while len(got) < 2:
                    await anyio.lowlevel.checkpoint()
                assert await link.request("still here") == {"subtype": "still here"}

    got: list[Any] = []
    asyncio.run(main())
    assert [frame["response"]["response"] for frame in got] == [{"said": "yes"}] * 2


async def test_a_question_that_waits_holds_up_neither_messages_nor_other_questions() -> None:
    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        if body["tool_name"] == "slow":
            await gate.wait()
        return {"said": body["tool_name"]}

    async def peer(conn: MemoryPeer) -> None:
        slow, fast = (frames.control_request("can_use_tool", request_id=key, tool_name=key) for key in ("slow", "fast"))
        await conn.write(frames.lines([slow, frames.sample_messages()[0], fast]))  # in one piece
        for _ in range(2):
            got.append(await conn.read_frame())

    got: list[Any] = []
    gate = anyio.Event()
    host = HandlerSet({"can_use_tool": handler}, on_initialize=lambda _: None, bind_sender=lambda _: None)
    async with linked(peer, host=host) as (link, inbox):
        with anyio.fail_after(5):
            assert len((await inbox.get())[0]) == 1
            while not got:
                await anyio.lowlevel.checkpoint()
            assert link.incoming.is_busy
            gate.set()
            while len(got) < 2:
                await anyio.lowlevel.checkpoint()
    assert [frame["response"]["request_id"] for frame in got] == ["fast", "slow"]


async def test_the_end_of_the_output_does_not_wait_for_an_answer() -> None:
    async def handler(_: Mapping[str, Any]) -> Mapping[str, Any]:
        await anyio.sleep_forever()
        return {}

    async def peer(conn: MemoryPeer) -> None:
        await conn.write(frames.control_request("can_use_tool", request_id="q1"))
        conn.end(exit_code=0)

    host = HandlerSet({"can_use_tool": handler}, on_initialize=lambda _: None, bind_sender=lambda _: None)
    async with linked(peer, host=host) as (link, _):
        with anyio.fail_after(5):
            while not link.connection.is_output_ended:
                await anyio.lowlevel.checkpoint()
