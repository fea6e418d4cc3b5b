"""A peer that falls silent: what counts, what is told before, what is done at the limit. Alone and in sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from failing_api import DEADLINE, Api, asking, notes
from session_cli import STOPPED, Cli, Say, hang, talking

import pilothouse as ph
from pilothouse.engine import child
from pilothouse.messages import Message
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def read(query: ph.Query) -> tuple[list[Message], ph.PilothouseError | None]:
    """Everything that it says, and how it fails."""
    messages: list[Message] = []
    try:
        with anyio.fail_after(DEADLINE):
            async for message in query:
                messages.append(message)
    except ph.PilothouseError as error:
        return messages, error
    return messages, None


async def test_a_silence_is_reported_once_before_the_interrupt(kind: str) -> None:
    api = Api()
    api.acts["one"] = hang
    async with asking(api, kind) as it:
        messages, error = await read(it.query("one", idle_timeout=0.2))
        assert isinstance(error, ph.QueryTimeout)
        assert (error.kind, error.seconds) == ("idle_timeout", 0.2)
        [stalled] = notes(messages, "stalled")
        assert (stalled["limit"], stalled["phase"]) == (0.2, "idle")
        assert 0.1 <= stalled["seconds"] < 0.2
        assert [c["subtype"] for c in api.controls] == ["interrupt"]
        assert list(api.saved.values()) == [["(stopped)"]]  # the conversation is there to be resumed
        assert (await it.query("two")).text == "re: two"
    assert len(api.children) == (2 if kind == "alone" else 1)


async def test_listeners_of_a_session_get_it() -> None:
    api = Api()
    api.acts["one"] = hang
    async with asking(api, "session") as it:
        assert it.session is not None
        listener = it.session.messages()
        await read(it.query("one", idle_timeout=0.2))
        with anyio.fail_after(DEADLINE):
            async for message in listener:
                if notes([message], "stalled"):
                    break


async def test_a_wait_that_the_cli_announces_is_no_silence(kind: str) -> None:
    async def retries(_: Cli, say: Say, text: str) -> str:
        await say(frames.api_retry(delay_ms=500))
        await anyio.sleep(0.5)
        return "done"

    api = Api()
    api.acts["one"] = retries
    async with asking(api, kind) as it:
        messages, error = await read(it.query("one", idle_timeout=0.3))
        assert error is None
        assert not notes(messages, "stalled")


async def test_prompts_that_are_slow_to_come_are_not_its_silence(kind: str) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await anyio.sleep(1.2)
        yield "two"

    async with asking(Api(), kind) as it:
        messages, error = await read(it.query(prompts(), idle_timeout=0.8))
        assert error is None
        assert not notes(messages, "stalled")


async def test_after_a_slow_prompt_it_has_the_whole_limit(kind: str) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await anyio.sleep(0.7)
        output.append(anyio.current_time())
        yield "two"

    output: list[float] = []
    api = Api()
    api.acts["two"] = hang
    async with asking(api, kind) as it:
        _, error = await read(it.query(prompts(), idle_timeout=0.5))
        assert isinstance(error, ph.QueryTimeout)
        assert anyio.current_time() - output[0] >= 0.5


async def _never_speaks(peer: MemoryPeer) -> None:
    while (frame := await peer.read_frame()) is not None:
        if frame["type"] == "control_request":
            await peer.write(frames.control_response(frame["request_id"], frames.server_info()))


@pytest.mark.parametrize(
    ("settings", "kind_of_limit"),
    [
        ({"startup_timeout": 0.1, "idle_timeout": 30}, "startup_timeout"),
        ({"startup_timeout": 0.1}, "startup_timeout"),
        ({"idle_timeout": 0.1}, "idle_timeout"),
    ],
)
async def test_the_start_has_a_limit_of_its_own(kind: str, settings: dict[str, Any], kind_of_limit: str) -> None:
    agent = ph.Agent(transport=lambda: MemoryTransport(_never_speaks))
    if kind == "alone":
        messages, error = await read(agent.query("one", **settings))
    else:
        async with agent.session() as session:
            messages, error = await read(session.query("one", **settings))
    assert isinstance(error, ph.QueryTimeout)
    assert error.kind == kind_of_limit
    assert [note["phase"] for note in notes(messages, "stalled")] == ["startup"]


async def test_a_session_whose_child_never_answers_fails_in_that_time() -> None:
    async def mute(peer: MemoryPeer) -> None:
        await anyio.sleep_forever()

    session = ph.Agent(transport=lambda: MemoryTransport(mute), startup_timeout=0.1).session()
    with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout, match="startup_timeout") as caught:
        await session.start()
    assert caught.value.kind == "startup_timeout"
    await session.close()


@pytest.mark.parametrize("settings", [{"idle_timeout": 0.1}, {"timeout": 0.1}], ids=lambda s: next(iter(s)))
async def test_a_child_that_does_not_even_heed_the_interrupt_is_ended_in_time(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "INTERRUPT_RESPONSE_SECONDS", 0.1)
    api = Api()
    api.acts["one"] = hang
    api.silent.add("interrupt")
    async with asking(api, "alone") as it:
        start = anyio.current_time()
        _, error = await read(it.query("one", **settings))
        assert isinstance(error, ph.QueryTimeout)
        assert anyio.current_time() - start < 2
        assert [c["subtype"] for c in api.controls] == ["interrupt"]


async def test_one_that_heeds_it_and_does_not_end_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "SAVE_SECONDS", 0.1)

    async def stubborn(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))
            else:
                await peer.write(frames.init())

    query = ph.query("one", transport=lambda: MemoryTransport(stubborn), idle_timeout=0.1)
    start = anyio.current_time()
    _, error = await read(query)
    assert isinstance(error, ph.QueryTimeout)
    assert anyio.current_time() - start < 2


async def test_an_answer_that_comes_with_the_interrupt_is_still_too_late() -> None:
    async def late(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "user":
                await peer.write(frames.init())
            elif frame["request"]["subtype"] == "interrupt":
                await peer.write(frames.control_response(frame["request_id"], {}))
                await peer.write(frames.result("", **STOPPED))
            else:
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))

    for limit in ("idle_timeout", "timeout"):
        query = ph.query("one", transport=lambda: MemoryTransport(late), **{limit: 0.1})  # pyright: ignore[reportCallIssue, reportArgumentType]
        messages, error = await read(query)
        assert isinstance(error, ph.QueryTimeout)
        assert error.kind == limit
        assert messages[-1].type == "result"


async def test_the_two_limits_are_independent(kind: str) -> None:
    async def chatty(_: Cli, say: Say, text: str) -> str:
        while True:
            await say(frames.assistant("still here"))
            await anyio.sleep(0.02)

    api = Api()
    api.acts["one"] = chatty
    async with asking(api, kind) as it:
        _, error = await read(it.query("one", idle_timeout=5, timeout=0.3))
        assert isinstance(error, ph.QueryTimeout)
        assert error.kind == "timeout"
        assert (await it.query("two")).text == "re: two"


async def test_a_session_whose_child_is_stuck_goes_on_with_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.engine.child.INTERRUPT_SECONDS", 0.1)
    api = Api()
    api.acts["stuck"] = hang
    async with asking(api, "session") as it:
        assert it.session is not None
        assert (await it.query("one")).text == "re: one"
        api.silent.add("interrupt")
        _, error = await read(it.query("stuck", idle_timeout=0.1))
        assert isinstance(error, ph.QueryTimeout)
        assert (await it.query("two")).text == "re: two"
        assert (len(api.children), it.session.restarts) == (2, 1)
        assert api.saved[str(it.session.id)] == ["one", "two"]


class BrokenError(Exception):
    """What an iterable of prompts raises."""


async def prompts_that_break() -> AsyncIterator[str]:
    yield "waits"
    await anyio.sleep(0.5)
    raise BrokenError("broken off")


@pytest.mark.parametrize(
    ("prompt", "settings", "expected"),
    [
        ("waits", {"idle_timeout": 0.5}, "option idle_timeout"),
        ("waits", {"timeout": 0.5}, "option timeout"),
        ("waits", {"startup_timeout": 0.5}, "option startup_timeout"),
        (prompts_that_break, {}, "broken off"),
    ],
    ids=["idle_timeout", "timeout", "startup_timeout", "prompts"],
)
async def test_a_failed_query_takes_back_its_prompt_and_no_more(
    cli: Cli, prompt: Any, settings: dict[str, Any], expected: str
) -> None:
    """The prompt waits in the queue of the CLI, behind a turn that the CLI began by itself."""
    async with talking(cli) as session:
        await session.query("one")
        await cli.children[0].write(frames.init())
        await cli.children[0].write(frames.assistant("background work"))
        cli.hold = lambda frame: cli.queue(0, frame)
        with anyio.fail_after(DEADLINE), pytest.raises(Exception, match=expected) as caught:
            await session.query(prompt if isinstance(prompt, str) else prompt(), **settings)
        assert isinstance(caught.value, ph.QueryTimeout if settings else BrokenError)
        assert [c["subtype"] for c in cli.controls] == ["cancel_async_message"]
        assert cli.uuids_queued(0) == []
        cli.hold = None
        assert (await session.query("next")).text == "re: next"
        assert cli.prompts == [["one", "next"]]


@pytest.mark.parametrize("limit", ["idle_timeout", "timeout"])
async def test_a_report_that_the_prompt_was_taken_back_hides_no_failure(cli: Cli, limit: str) -> None:
    """It may come before the response to the request that took the prompt back."""

    async def take_back() -> None:
        while not cli.controls:
            await anyio.sleep(0.1)
        uuid = cli.controls[0]["message_uuid"]
        await cli.children[0].write({"type": "command_lifecycle", "command_uuid": uuid, "state": "cancelled"})

    async with talking(cli) as session, anyio.create_task_group() as group:
        await session.query("one")
        cli.hold = lambda frame: cli.queue(0, frame)
        cli.silent.add("cancel_async_message")
        group.start_soon(take_back)
        settings: dict[str, Any] = {limit: 0.5}
        query = session.query("waits", **settings)
        with anyio.fail_after(60), pytest.raises(ph.QueryTimeout, match=f"option {limit}"):
            await query
        assert query.state == "failed"


@pytest.mark.parametrize("limit", ["idle_timeout", "timeout"])
async def test_an_interrupt_while_a_query_is_stopped_hides_no_failure(cli: Cli, limit: str) -> None:
    async with talking(cli) as session, anyio.create_task_group() as group:
        await session.query("one")
        cli.acts["slow"] = hang
        cli.silent.add("interrupt")  # so that stopping it takes a while
        settings: dict[str, Any] = {limit: 0.5}
        query = session.query("slow", **settings)

        async def interrupt() -> None:
            await anyio.sleep(2)
            assert query.state == "active"
            await query.interrupt()
            assert query.state == "failed"

        group.start_soon(interrupt)
        with anyio.fail_after(60), pytest.raises(ph.QueryTimeout, match=f"option {limit}"):
            await query
