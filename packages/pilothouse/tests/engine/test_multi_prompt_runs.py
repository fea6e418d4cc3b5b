"""Several prompts in one query: an interrupt stops a turn, a death or a deadline in a later turn is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.engine.buffer import MessageBuffer
from pilothouse.messages import Message, ResultMessage
from pilothouse.protocol import encode_line
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

STOPPED: dict[str, Any] = {"is_error": True, "terminal_reason": "aborted_streaming"}


def over(script: Callable[[MemoryPeer], Awaitable[object]], prompts: Any, **settings: Any) -> ph.Query:
    return ph.query(prompts, transport=lambda: MemoryTransport(script), **settings)


async def next_of(peer: MemoryPeer, kind: str) -> dict[str, Any]:
    """The next frame of a kind; the handshake is answered on the way."""
    while True:
        frame = await peer.read_frame()
        assert frame is not None
        if frame["type"] == "control_request":
            await peer.write(frames.control_response(frame["request_id"], {}))
            if frame["request"]["subtype"] == kind:
                return frame
        elif frame["type"] == kind:
            return frame


async def answer(peer: MemoryPeer, text: str, **fields: Any) -> None:
    user = await next_of(peer, "user")
    await peer.write(frames.result(text, user_message_uuid=user["uuid"], **fields))


async def wait_for_end(peer: MemoryPeer) -> None:
    while await peer.read_frame():
        pass


@pytest.mark.requirement("E34", "E78", "R17")
async def test_the_next_prompt_may_wait_for_the_interrupt() -> None:
    interrupted = anyio.Event()

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await interrupted.wait()
        yield "two"

    async def peer(peer: MemoryPeer) -> None:
        user = await next_of(peer, "user")
        await peer.write(frames.init())
        await next_of(peer, "interrupt")
        await peer.write(frames.result("", user_message_uuid=user["uuid"], **STOPPED))
        await answer(peer, "the second answer")
        await wait_for_end(peer)

    query = over(peer, prompts())
    with anyio.fail_after(4):
        async for message in query:
            if message.type == "system":
                async with anyio.create_task_group() as group:
                    group.start_soon(query.interrupt)
                    group.start_soon(query.interrupt)
                await query.interrupt()  # nothing runs now
                interrupted.set()
    result = await query.result()
    assert (result.text, result.outcome) == ("the second answer", "success")


async def test_an_interrupted_turn_does_not_excuse_a_death_in_the_next() -> None:
    async def peer(peer: MemoryPeer) -> None:
        user = await next_of(peer, "user")
        await peer.write(frames.init())
        await next_of(peer, "interrupt")
        await peer.write(frames.result("", user_message_uuid=user["uuid"], **STOPPED))
        await next_of(peer, "user")
        await peer.write(frames.assistant("half an answer"))
        peer.end(signal="SIGKILL")

    interrupted = anyio.Event()

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await interrupted.wait()
        yield "two"

    query = over(peer, prompts())

    async def read() -> None:
        async for message in query:
            if message.type == "system":
                await query.interrupt()
                interrupted.set()

    with anyio.fail_after(4), pytest.raises(ph.CLIExitedError, match="SIGKILL"):
        await read()


async def test_a_cli_that_cannot_resume_leaves_the_prompts_unread() -> None:
    async def peer(peer: MemoryPeer) -> None:
        failure: dict[str, Any] = {"is_error": True, "subtype": "error_during_execution", "num_turns": 0}
        await peer.write(frames.result(None, errors=["No conversation found with session ID: x"], **failure))
        peer.end(exit_code=1)

    async def prompts() -> AsyncIterator[str]:
        await anyio.sleep_forever()
        yield "never"

    with anyio.fail_after(4):
        result = await over(peer, prompts())
    assert type(result.error) is ph.SessionNotFoundError


@pytest.mark.requirement("E68")
@pytest.mark.parametrize("printed", [True, False])
async def test_a_death_in_the_second_turn_is_reported(printed: bool) -> None:
    async def peer(peer: MemoryPeer) -> None:
        await answer(peer, "the first answer")
        if printed:
            await next_of(peer, "user")
        peer.end(exit_code=7, stderr="out of cheese")

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        if not printed:
            await anyio.sleep_forever()  # the child dies while it is idle
        yield "two"

    seen: list[Message] = []

    async def read() -> None:
        async for message in over(peer, prompts()):
            seen.append(message)

    with anyio.fail_after(4), pytest.raises(ph.CLIExitedError, match="out of cheese"):
        await over(peer, prompts(), on_message=None).result()
    with anyio.fail_after(4), pytest.raises(ph.CLIExitedError):
        await read()
    assert [m.result for m in seen if isinstance(m, ResultMessage)] == ["the first answer"]


@pytest.mark.requirement("G46")
async def test_a_deadline_in_the_second_turn_is_reported() -> None:
    async def peer(peer: MemoryPeer) -> None:
        await answer(peer, "the first answer")
        await next_of(peer, "user")
        await anyio.sleep_forever()

    messages = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")]
    with pytest.raises(ph.QueryTimeout):
        await over(peer, messages, timeout=0.3)


async def test_closing_in_the_second_turn_wakes_the_waiter() -> None:
    first = anyio.Event()

    async def peer(peer: MemoryPeer) -> None:
        await answer(peer, "the first answer")
        await next_of(peer, "user")
        await anyio.sleep_forever()

    messages = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")]
    query = over(peer, messages, on_message=lambda _: first.set())
    errors: list[Exception] = []

    async def collect() -> None:
        try:
            await query
        except ph.SessionClosedError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(collect)
        await first.wait()
        await query.aclose()
    assert len(errors) == 1


@pytest.mark.requirement("G48")
async def test_one_result_may_answer_two_prompts() -> None:
    async def peer(peer: MemoryPeer) -> None:
        asked = [await next_of(peer, "user"), await next_of(peer, "user")]
        await peer.write(frames.result("both", user_message_uuids=[user["uuid"] for user in asked]))
        await wait_for_end(peer)

    messages = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")]
    with anyio.fail_after(4):
        assert (await over(peer, messages)).text == "both"


async def test_the_bytes_of_a_chunk_with_two_results_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    written = bytearray()
    put = MessageBuffer.put

    def record(buffer: MessageBuffer, batch: list[Message], size: int) -> None:
        sizes.append(size if batch else 0)
        put(buffer, batch, size)

    async def peer(peer: MemoryPeer) -> None:
        asked = [await next_of(peer, "user"), await next_of(peer, "user")]
        for user in asked:
            written.extend(encode_line(frames.result("answer", user_message_uuid=user["uuid"])))
        await peer.write(bytes(written))
        await wait_for_end(peer)

    monkeypatch.setattr(MessageBuffer, "put", record)
    messages = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")]
    with anyio.fail_after(4):
        await over(peer, messages)
    assert len(written) <= sum(sizes) < 1.5 * len(written)  # the response to the initialize request is in it, too


@pytest.mark.parametrize("joined", [[1, 1, 1, 1], [1, 3], [2, 2]], ids=str)
async def test_prompts_that_got_one_answer_are_reported_once(
    joined: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def peer(peer: MemoryPeer) -> None:
        for count in joined:
            asked = [(await next_of(peer, "user"))["uuid"] for _ in range(count)]
            await peer.write(frames.result("answer", user_message_uuids=asked))
        await wait_for_end(peer)

    named = [f"{letter * 8}-1111-4111-8111-111111111111" for letter in "abcd"]
    prompts = [{"type": "user", "uuid": uuid, "message": {"role": "user", "content": uuid}} for uuid in named]
    with anyio.fail_after(4):
        answer = await over(peer, iter(prompts))
    results = [message.user_message_uuids for message in answer.messages if isinstance(message, ResultMessage)]
    assert [len(uuids) for uuids in results] == joined
    assert [uuid for uuids in results for uuid in uuids] == named
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (joined != [1, 1, 1, 1])
    assert all("prompts of a query together" in warning and "make a session" in warning for warning in warnings)


async def test_an_interrupt_before_the_first_message() -> None:
    async def peer(peer: MemoryPeer) -> None:
        user = await next_of(peer, "user")
        await anyio.sleep(0.05)
        await peer.write(frames.init())
        await next_of(peer, "interrupt")
        await peer.write(frames.result("", user_message_uuid=user["uuid"], **STOPPED))
        await wait_for_end(peer)

    query = over(peer, "go")
    await query.start()
    with anyio.fail_after(4):
        await query.interrupt()
        assert (await query.result()).outcome == "interrupted"


async def test_an_interrupt_that_the_peer_refuses_or_ignores() -> None:
    async def refuses(peer: MemoryPeer) -> None:
        await next_of(peer, "user")
        await peer.write(frames.init())
        frame = await peer.read_frame()
        assert frame is not None
        await peer.write(frames.control_response(frame["request_id"], error="not now"))
        await peer.write(frames.result("done anyway"))
        await wait_for_end(peer)

    async with over(refuses, "go") as query:
        with anyio.fail_after(4), pytest.raises(ph.ControlError, match="not now"):
            await query.interrupt()
        result = await query.result()
        assert (result.text, result.outcome) == ("done anyway", "success")

    async def ignores(peer: MemoryPeer) -> None:
        await next_of(peer, "user")
        await peer.write(frames.init())
        await anyio.sleep_forever()

    async with over(ignores, "go", control_timeout=0.2) as query:
        await anext(aiter(query))
        with anyio.fail_after(4), pytest.raises(ph.ControlTimeout):
            await query.interrupt()


class _AllAtOnce(MemoryTransport):
    """A peer whose whole output is there before anybody reads, and never makes the reader wait."""

    def __init__(self, output: bytes) -> None:
        super().__init__(lambda _: anyio.sleep(0))
        self._rest = [output, b""]

    async def receive(self) -> bytes:
        return self._rest.pop(0)


@pytest.mark.requirement("E80", "G49")
async def test_output_before_the_handshake_is_read() -> None:
    printed = frames.lines([frames.init(), frames.result("done")])
    for _ in range(20):  # which of the tasks runs first is up to the loop
        assert (await ph.query("go", transport=lambda: _AllAtOnce(printed))).text == "done"


@pytest.mark.requirement("G11")
async def test_a_callback_may_close_its_own_query() -> None:
    async def peer(peer: MemoryPeer) -> None:
        await next_of(peer, "user")
        await peer.write(frames.init())
        await peer.write(frames.control_request("can_use_tool", tool_name="Bash", input={}, tool_use_id="t"))
        await wait_for_end(peer)

    async def check(request: Any) -> bool:
        await queries[0].aclose()
        return True

    queries = [over(peer, "go", can_use_tool=check)]
    with anyio.fail_after(4), pytest.raises(ph.SessionClosedError):
        await queries[0]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [pytest.fail.Exception("x"), SystemExit(3)])
async def test_an_iterable_of_prompts_that_raises_no_exception_is_named(error: BaseException, is_async: bool) -> None:
    def plain() -> Any:
        yield "one"
        raise error

    async def on_the_loop() -> AsyncIterator[str]:
        yield "one"
        raise error

    async def script(peer: MemoryPeer) -> None:
        await answer(peer, "1")
        await anyio.sleep_forever()

    with pytest.raises(ph.PilothouseError, match=f"the iterable of prompts raised {type(error).__name__}") as caught:
        await over(script, on_the_loop() if is_async else plain())
    assert caught.value.__cause__ is error
