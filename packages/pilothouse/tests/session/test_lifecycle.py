"""Start and end of a session: eager, typed, from any task, once, and nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from session_cli import Cli, Say, die, hang, talking

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse.transports import Health, MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


def session_of(cli: Cli, **settings: Any) -> Session:
    return ph.Agent(transport=cli.transport).session(**settings)


async def ended(cli: Cli, number: int = 0) -> None:
    """Wait until a child is gone."""
    with anyio.fail_after(5):
        while number in cli.running:
            await anyio.lowlevel.checkpoint()


@pytest.mark.requirement("G12", "E22", "G14", "E16", "E33")
async def test_nothing_runs_before_the_start_and_the_handshake_is_over_after_it(cli: Cli) -> None:
    session = session_of(cli)
    assert (session.state, session.pid, session.server_info, cli.children) == ("new", None, {}, [])
    assert session.health().state == "unhealthy"
    await session.start()
    try:
        assert (session.state, session.waiting, session.restarts) == ("idle", 0, 0)
        assert session.health().state == "healthy"
        assert session.info.commands()[0].name == "compact"
        assert session.info.account().api_key_source == "ANTHROPIC_API_KEY"
        assert session.options.transport == cli.transport
        await session.start()
        assert len(cli.children) == 1
    finally:
        await session.close()
    assert session.state == "closed"
    assert session.health() == Health("unhealthy", "closed")


@pytest.mark.requirement("E23", "G26")
async def test_a_failed_start_is_reported_at_once() -> None:
    broken = ph.CLINotFoundError("no claude here")
    agent = ph.Agent(transport=lambda: MemoryTransport(start_error=broken))
    entered = False
    with pytest.raises(ph.CLINotFoundError, match="no claude here"):
        async with agent.session():
            entered = True
    assert not entered
    session = agent.session()
    with pytest.raises(ph.CLINotFoundError):
        await session.query("hello")
    assert session.state == "broken"
    assert session.restarts == 0
    await session.close()


async def test_a_start_that_failed_can_be_tried_again(cli: Cli) -> None:
    errors: list[ph.ProcessError | None] = [ph.CLIStartError("not now"), None]

    def transport() -> MemoryTransport:
        error = errors.pop(0)
        return cli.transport() if error is None else MemoryTransport(start_error=error)

    session = ph.Agent(transport=transport).session(restart="never")
    with pytest.raises(ph.CLIStartError):
        await session.start()
    async with session:  # it never ran, so this is no restart
        assert (await session.query("hello")).text == "re: hello"


@pytest.mark.requirement("E23")
async def test_a_child_that_ends_in_the_handshake_is_reported(cli: Cli) -> None:
    async def script(peer: MemoryPeer) -> None:
        await peer.read_frame()
        peer.end(exit_code=1, stderr="cannot write the config")

    with pytest.raises(ph.CLIExitedError, match="cannot write the config") as caught:
        await ph.Agent(transport=lambda: MemoryTransport(script)).session().start()
    assert caught.value.exit_code == 1


@pytest.mark.requirement("G23", "G24", "G25")
async def test_the_error_of_the_block_wins_and_the_child_goes(cli: Cli) -> None:
    cli.acts["slow"] = hang
    session = session_of(cli)

    async def block() -> None:
        async with session:
            await session.query("one")
            cli.children[0].end(signal="SIGKILL")  # the end of the session has something to fail on
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert session.state == "closed"


@pytest.mark.requirement("E31")
async def test_the_crash_of_one_session_does_not_touch_another(cli: Cli) -> None:
    cli.acts["crash"] = die
    async with talking(Cli()) as other, talking(cli) as session:
        with pytest.raises(ph.CLIExitedError, match="SIGKILL before the answer was complete"):
            await session.query("crash")
        assert (session.state, other.state) == ("broken", "idle")
        assert (await other.query("hello")).text == "re: hello"


@pytest.mark.requirement("G22", "E35", "G11")
async def test_close_from_other_tasks_at_once_and_again(cli: Cli) -> None:
    cli.acts["slow"] = hang
    errors: list[BaseException] = []
    session = session_of(cli)

    async def ask(prompt: str) -> None:
        try:
            await session.query(prompt)
        except ph.SessionClosedError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        for prompt in ("slow", "waits", "waits too"):
            group.start_soon(ask, prompt)
            await anyio.wait_all_tasks_blocked()
        assert (session.state, session.waiting) == ("running", 2)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as closers:
                closers.start_soon(session.close)
                closers.start_soon(session.aclose)
    assert len(errors) == 3
    assert cli.prompts == [["slow"]]
    await session.close()
    for attempt in (session.start, session.info.usage, session.clear):
        with pytest.raises(ph.SessionClosedError, match="make a new one, with resume="):
            await attempt()
    with pytest.raises(ph.SessionClosedError):
        session.query("too late")
    assert [m async for m in session.messages()] == []


async def test_close_while_it_starts(cli: Cli) -> None:
    cli.silent.add("initialize")
    session = session_of(cli)
    async with anyio.create_task_group() as group:

        async def start() -> None:
            with pytest.raises(ph.SessionClosedError):
                await session.start()

        group.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        assert session.state == "starting"
        with anyio.fail_after(5):
            await session.close()
    assert session.state == "closed"


async def test_a_start_that_is_cancelled_leaves_no_child(cli: Cli) -> None:
    cli.silent.add("initialize")
    session = session_of(cli)
    with anyio.move_on_after(0.02):
        await session.start()
    await ended(cli)
    cli.silent.clear()
    assert (await session.query("hello")).text == "re: hello"
    assert session.restarts == 0
    await session.close()


@pytest.mark.requirement("E35")
async def test_a_session_that_is_dropped_ends_its_child(cli: Cli) -> None:
    session = session_of(cli)
    listener = session.messages()
    query = session.query("hello")
    assert (await query).text == "re: hello"
    del session, query
    await ended(cli)  # without a garbage collection
    received = [m.type async for m in listener]
    assert received[-1] == "command_lifecycle"
    gc.collect()


async def test_a_peer_that_ignores_everything_is_ended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERRUPT_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(f"pilothouse.engine.child.{name}", 0.05)
    cli.acts["slow"] = hang
    cli.silent.add("interrupt")
    async with talking(cli) as session:
        async for message in session.query("slow"):
            if isinstance(message, ph.AssistantMessage):
                break
        # It did not let go, so it was ended, and the next query has a child of its own.
        assert (await session.query("next")).full_text == "re: next"
        assert session.restarts == 1
    assert not cli.running


async def test_a_peer_that_does_not_read_is_given_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.engine.child.SEND_SECONDS", 0.05)
    blocked = anyio.Event()

    async def deaf(peer: MemoryPeer) -> None:
        frame = await peer.read_frame()
        assert frame is not None
        await peer.write(frames.control_response(frame["request_id"], {}))
        blocked.set()
        await anyio.sleep_forever()

    transports = [MemoryTransport(deaf), cli.transport(), cli.transport()]
    async with ph.Agent(transport=lambda: transports.pop(0)).session() as session:
        await blocked.wait()
        query = session.query("x" * 1_000_000)
        await query.start()
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await query.aclose()
        assert "read no input" in session.health().reason
        assert (await session.query("next")).text == "re: next"


@pytest.mark.requirement("R7", "E21", "E17", "E18")
async def test_three_ways_to_ask_and_nothing_is_lost_before_it_is_read(cli: Cli) -> None:
    seen: list[str] = []
    async with talking(cli) as session:
        query = session.query("streamed")
        assert query.session_id is None
        await query.start()
        assert query.session_id == session.id
        await anyio.wait_all_tasks_blocked()  # everything has come, nobody has read it
        streamed = [m async for m in query]
        awaited = await session.query("awaited")
        called = await session.query("called", on_message=lambda m: seen.append(m.type))
    assert [m.type for m in streamed] == [m.type for m in awaited.messages]
    assert seen == [m.type for m in called.messages]
    results = [m for m in (streamed[-1], awaited.result, called.result) if isinstance(m, ph.ResultMessage)]
    assert len({m.user_message_uuid for m in results}) == 3


def test_a_session_stays_on_its_event_loop(cli: Cli) -> None:
    session = session_of(cli)

    async def first() -> None:
        assert (await session.query("hello")).text == "re: hello"

    async def second() -> None:
        for work in (session.start, session.close):
            with pytest.raises(ph.UsageError, match="event loop"):
                await work()

    anyio.run(first)
    anyio.run(second)


async def test_a_session_may_be_closed_by_its_callbacks(cli: Cli) -> None:
    session = session_of(cli)

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await session.close()
        yield "never said"

    with anyio.fail_after(10), pytest.raises(ph.SessionClosedError):
        await session.query(prompts())
    assert session.state == "closed"
    assert cli.prompts == [["one"]]


async def test_a_callback_may_close_the_session(cli: Cli) -> None:
    async def check(request: Any) -> bool:
        await session.close()
        return True

    async def asks(cli: Cli, say: Say, text: str) -> str:
        body: dict[str, Any] = {"tool_name": "Bash", "input": {}, "tool_use_id": "t"}
        await say(frames.control_request("can_use_tool", **body))
        await anyio.sleep_forever()
        raise AssertionError

    cli.acts["ask"] = asks
    session = session_of(cli, can_use_tool=check)
    with anyio.fail_after(10), pytest.raises(ph.SessionClosedError):
        await session.query("ask")
    assert session.state == "closed"
