"""Turns that never mix: order, fences, queries that are left, cancelled, interrupted or late."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from session_cli import Cli, Say, die, hang, talking

import pilothouse as ph
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


@pytest.mark.requirement("E19", "E20", "G30")
async def test_queries_are_answered_one_after_the_other_in_the_order_they_came(cli: Cli) -> None:
    answers: list[tuple[int, str]] = []

    async def ask(session: Any, number: int) -> None:
        answers.append((number, (await session.query(f"question {number}")).text))

    async with talking(cli) as session, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(ask, session, number)
            await anyio.wait_all_tasks_blocked()
    assert answers == [(n, f"re: question {n}") for n in range(8)]
    assert len(cli.children) == 1


@pytest.mark.requirement("E20", "E52", "E78")
@pytest.mark.parametrize("says_lifecycle", [True, False])
async def test_nothing_of_a_query_that_was_left_reaches_the_next(says_lifecycle: bool) -> None:
    cli = Cli(says_lifecycle=says_lifecycle)
    cli.acts["slow"] = hang
    async with talking(cli) as session:
        async for message in session.query("slow"):
            if isinstance(message, ph.AssistantMessage):
                break
        assert (await session.query("next")).full_text == "re: next"
        async with session.query("slow") as query:
            async for message in query:
                if isinstance(message, ph.AssistantMessage):
                    break
        assert (await session.query("next")).full_text == "re: next"
    assert len(cli.children) == 1
    assert [c["subtype"] for c in cli.controls] == ["interrupt", "interrupt"]


@pytest.mark.requirement("G45", "G46", "E52")
async def test_cancelled_and_late_queries_leave_the_session_usable(cli: Cli) -> None:
    cli.acts["slow"] = hang
    async with talking(cli) as session:
        with anyio.move_on_after(0.05) as scope:
            await session.query("slow")
        assert scope.cancelled_caught
        with pytest.raises(ph.QueryTimeout, match=r"option timeout\); the turn was stopped"):
            await session.query("slow", timeout=0.05)
        with pytest.raises(ph.QueryTimeout, match=r"idle_timeout\); the turn was stopped"):
            await session.query("slow", idle_timeout=0.05)
        assert (await session.query("next")).text == "re: next"
        assert session.state == "idle"
    assert len(cli.children) == 1


async def test_a_query_that_waits_can_be_given_up_without_a_trace(cli: Cli) -> None:
    cli.acts["slow"] = hang
    async with talking(cli) as session, anyio.create_task_group() as group:
        running = session.query("slow")
        group.start_soon(running.result)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.02):
            await session.query("never sent")
        waiting = session.query("never sent either")
        group.start_soon(waiting.result)
        await anyio.wait_all_tasks_blocked()
        await waiting.interrupt()
        assert (await waiting.result()).outcome == "interrupted"
        await running.interrupt()
        assert (await running.result()).outcome == "interrupted"
        assert (await session.query("next")).text == "re: next"
    assert cli.prompts == [["slow", "next"]]


@pytest.mark.requirement("R17", "E34", "E78")
async def test_an_interrupt_is_an_outcome_of_its_own(cli: Cli) -> None:
    cli.acts["slow"] = hang
    async with talking(cli) as session:
        assert (await session.interrupt()).still_queued == []
        assert cli.controls == []  # nothing ran, so nothing was asked
        query = session.query("slow")
        async with anyio.create_task_group() as group:
            group.start_soon(query.result)
            await anyio.wait_all_tasks_blocked()
            await session.interrupt()
        result = await query.result()
        assert (result.outcome, result.is_success, result.full_text) == ("interrupted", False, "part of slow")
        assert (await session.query("next")).text == "re: next"


async def test_an_interrupt_may_come_before_the_cli_has_said_anything(cli: Cli) -> None:
    cli.acts["slow"] = hang
    async with talking(cli) as session:
        query = session.query("slow")
        await query.start()
        with anyio.fail_after(10):
            await query.interrupt()
        assert (await query.result()).outcome == "interrupted"
        assert cli.prompts == [["slow"]]
        assert (await session.query("next")).text == "re: next"


@pytest.mark.parametrize("texts", [["two"], ["one", "two"]])
@pytest.mark.parametrize("way", ["interrupt", "old interrupt", "task"])
async def test_a_query_ends_when_the_prompt_that_it_waits_for_is_cancelled(texts: list[str], way: str) -> None:
    """The CLI is in a turn of its own, or answers the prompt before, while the last one waits in its queue."""
    cli = Cli(says_lifecycle=way != "old interrupt")
    cli.acts["one"] = hang
    async with talking(cli) as session:
        await session.query("first")
        if len(texts) == 1:
            await cli.children[0].write(frames.init())
            cli.hold = lambda frame: cli.queue(0, frame)
        query = session.query([{"type": "user", "message": {"role": "user", "content": text}} for text in texts])
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(query.result)
                await anyio.wait_all_tasks_blocked()
                if way == "task":
                    assert await session.tasks.cancel_queued(cli.uuids_queued(0)[0])
                    await session.interrupt()
                else:
                    assert len((await session.interrupt(cancel_queued=True)).cancelled) == 1
        assert (await query.result()).outcome == "interrupted"
        cli.hold = None
        if len(texts) == 1:
            await cli.children[0].write(frames.result("WOKEN", origin={"kind": "task-notification"}))
        assert (await session.query("next")).text == "re: next"


@pytest.mark.parametrize("cancel_queued", [True, False])
async def test_an_interrupt_while_the_settings_are_applied_sends_nothing(cancel_queued: bool) -> None:
    cli = Cli()
    cli.silent.add("set_model")
    async with talking(cli, control_timeout=60) as session:
        await session.query("first")
        query = session.query("never sent", model="haiku")
        async with anyio.create_task_group() as group:
            group.start_soon(query.result)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                await session.interrupt(cancel_queued=cancel_queued)
        assert (await query.result()).outcome == "interrupted"
        assert cli.prompts == [["first"]]


@pytest.mark.requirement("G16", "R7", "E21")
async def test_messages_gives_everything_in_order(cli: Cli) -> None:
    async def woken(cli: Cli, say: Say, text: str) -> str:
        await say({"type": "system", "subtype": "task_started", "task_id": "t", "description": "d"})
        return "started"

    cli.acts["background"] = woken
    async with talking(cli) as session:
        listener = session.messages()
        await session.query("background")
        peer = cli.children[0]
        await peer.write({"type": "system", "subtype": "task_notification", "task_id": "t", "status": "completed"})
        await peer.write(frames.init())
        await peer.write(frames.assistant("I was woken"))
        await peer.write(frames.result("I was woken", origin={"kind": "task-notification"}))
        with anyio.fail_after(5):
            await session.tasks.wait_idle()
        assert (await session.query("next")).full_text == "re: next"
    received = [m async for m in listener]
    texts = [m.text for m in received if isinstance(m, ph.AssistantMessage)]
    assert texts == ["started", "I was woken", "re: next"]


@pytest.mark.requirement("E17", "E18")
async def test_several_prompts_of_one_query_are_one_turn(cli: Cli) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    async with talking(cli) as session:
        result = await session.query(prompts())
        assert result.full_text == "re: onere: two"
        assert (await session.query("next")).full_text == "re: next"


async def test_an_interrupt_before_the_first_prompt_of_an_iterable_ends_the_query(cli: Cli, kind: str) -> None:
    closed: list[bool] = []

    async def prompts() -> AsyncIterator[str]:
        try:
            await anyio.sleep(3600)
            yield "never"
        finally:
            closed.append(True)

    agent = ph.Agent(transport=cli.transport)
    async with agent.session() as session, anyio.create_task_group() as group:
        query = (agent if kind == "alone" else session).query(prompts())
        await query.start()
        group.start_soon(query.result)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await query.interrupt()
            result = await query.result()
        assert (result.outcome, query.state, closed) == ("interrupted", "interrupted", [True])
        assert cli.controls == []
        assert (await session.query("next")).text == "re: next"
    assert [prompt for prompts in cli.prompts for prompt in prompts] == ["next"]


@pytest.mark.requirement("G19", "G20")
async def test_typed_output_is_repaired_inside_the_session(cli: Cli) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with talking(cli, json_schema=schema) as session:
        result = await session.query("give me a", output_repairs=1)
    assert len(cli.prompts[0]) == 2  # asked again, in the same conversation
    assert isinstance(result.error, ph.StructuredOutputError)


@pytest.mark.requirement("R8", "G15", "G17", "E37", "E51")
async def test_messages_and_control_never_meet(cli: Cli) -> None:
    async def asks(cli: Cli, say: Say, text: str) -> str:
        await say(frames.control_request("can_use_tool", tool_name="Bash", input={}, tool_use_id="t"))
        await say({"type": "keep_alive"})
        return "done"

    cli.acts["ask"] = asks
    async with talking(cli) as session:
        listener = session.messages()
        query = session.query("ask")
        assert cli.prompts == [[]]  # lazy: nothing is sent before it is read
        async with anyio.create_task_group() as group:
            group.start_soon(session.mcp.status)
            group.start_soon(query.result)
        result = await query.result()
        transport: Any = session._child and session._child.transport
        (user,) = [f for f in transport.sent_frames if f["type"] == "user"]
        assert user["message"]["content"] == "ask"
        assert result.result is not None
        assert result.result.user_message_uuid == user["uuid"]
    assert {m.type for m in result.messages} == {"system", "assistant", "result"}
    assert {m.type for m in [m async for m in listener]} == {"command_lifecycle", "system", "assistant", "result"}


@pytest.mark.parametrize("partial", [None, False, True])
async def test_pieces_of_answers_only_on_request(cli: Cli, partial: bool | None) -> None:
    async def streams(cli: Cli, say: Say, text: str) -> str:
        await say(frames.stream_event({"type": "ping"}))
        return "done"

    cli.acts["stream"] = streams
    async with talking(cli, partial_messages=partial) as session:
        listener = session.messages()
        whole = await session.query("stream")
        pieces = [message.type async for message in session.query("stream", partial_messages=True)]
    received = [message.type async for message in listener]
    assert ("stream_event" in received, received.count("result")) == (partial is True, 2)
    assert ("stream_event" in [message.type for message in whole.messages]) == (partial is True)
    assert "stream_event" in pieces


@pytest.mark.requirement("R16")
async def test_the_argv_form_has_no_sessions() -> None:
    with pytest.raises(ph.OptionsError, match="prompt_via='stdin'"):
        ph.session(prompt_via="argv")


@pytest.mark.requirement("E52", "G46")
async def test_a_loop_that_ran_out_of_time_is_stopped_while_the_error_is_handled(cli: Cli) -> None:
    cli.acts["slow"] = hang
    async with talking(cli) as session:
        try:
            with anyio.fail_after(0.05):
                async for _ in session.query("slow"):
                    pass
        except TimeoutError:  # its traceback holds the loop
            with anyio.fail_after(5):
                assert (await session.query("next")).full_text == "re: next"
        async with session.query("slow") as query:  # in a block the query belongs to the block
            reading = aiter(query)
            for _ in range(20):
                with anyio.move_on_after(0.01):
                    await anext(reading)
            assert session.state == "running"
        assert (await session.query("next")).full_text == "re: next"
    assert cli.prompts == [["slow", "next", "slow", "next"]]


@pytest.mark.requirement("E16", "E17", "E37")
async def test_queries_have_ids_and_states_and_a_session_knows_them(cli: Cli) -> None:
    async with talking(cli) as session:
        go = anyio.Event()

        async def waits(cli: Cli, say: Say, text: str) -> str:
            await go.wait()
            return "done"

        cli.acts.update(one=waits, hang=hang, crash=die)
        queries = [session.query(prompt) for prompt in ("one", "hang", "crash", "four")]
        one, hangs, crashes, four = queries
        assert len({query.id for query in queries}) == 4
        assert ({query.state for query in queries}, session.queries) == ({"new"}, [])
        texts: list[str] = []
        failures: list[BaseException] = []

        async def subscribe(query: ph.Query[Any]) -> None:
            try:
                texts.append((await query).text)
            except ph.CLIExitedError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for query in (one, one, hangs, crashes):  # two wait for the first one
                group.start_soon(subscribe, query)
                await anyio.wait_all_tasks_blocked()
            assert session.queries == [one, hangs, crashes]
            assert [query.state for query in queries] == ["active", "queued", "queued", "new"]
            assert session.waiting == 2
            go.set()
            while hangs.state != "active" or cli.prompts[0][-1] != "hang":
                await anyio.sleep(0.01)
            assert session.queries == [hangs, crashes]
            await hangs.interrupt()
        assert [query.state for query in queries] == ["completed", "interrupted", "failed", "new"]
        assert (texts, len(failures), session.queries) == (["done", "done", "part of hang"], 1, [])
        result = await one
        assert result.result is not None
        assert result.result.user_message_uuid == one.id  # what the peer reports names the query
        assert cli.uuids[0] == one.id
        await four.aclose()
        assert four.state == "closed"
        early = session.query("five")
        await early.interrupt()
        assert early.state == "interrupted"


async def test_a_query_has_begun_once_its_turn_has_come(cli: Cli) -> None:
    cli.acts["hang"] = hang
    async with talking(cli) as session:
        running, waiting = session.query("hang"), session.query("one")
        assert not running.has_begun
        await running.start()
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.start)
            await anyio.wait_all_tasks_blocked()
            assert (running.has_begun, waiting.state, waiting.has_begun) == (True, "queued", False)
            await waiting.interrupt()
        assert (waiting.state, waiting.has_begun) == ("interrupted", False)
        await running.interrupt()
    assert running.has_begun


async def test_left_and_unsendable_queries_have_states_too(cli: Cli) -> None:
    cli.acts["hang"] = hang
    async with talking(cli) as session:
        left = session.query("hang")
        async for _ in left:
            break
        await session.query("one")
        assert left.state == "closed"
        late = session.query("hang", timeout=0.05)
        with pytest.raises(ph.QueryTimeout):
            await late
        assert late.state == "failed"

        async def prompts() -> AsyncIterator[str]:
            yield "one"

        several = session.query(prompts())
        assert len(several.id) == 36
        await several
        assert several.state == "completed"


async def test_a_session_keeps_no_query_alive(cli: Cli) -> None:
    cli.acts["hang"] = hang
    async with talking(cli) as session:
        query = session.query("hang")
        await query.start()
        assert session.queries == [query]
        del query
        gc.collect()
        assert session.queries == []
        assert (await session.query("next")).text == "re: next"
