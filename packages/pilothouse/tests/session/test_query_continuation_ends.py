"""A continuation that is given up while it works, or fails: the query ends as it should, and the session goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from continuation_queries import DEADLINE, Plan, cancelled, forever, no_end, prompt, query_runner
from session_cli import TASK_ENDED, Cli, Say, hang, start_task

import pilothouse as ph
from pilothouse.client.queries import Query
from pilothouse.engine import NextPrompt
from pilothouse.messages import AssistantMessage, Message, ResultMessage
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


async def end_of(query: Query) -> object:
    """The result, or the error."""
    try:
        return await query.result()
    except ph.PilothouseError as error:
        return error


async def while_it_works(query: Query, plan: Plan, act: Callable[[], Awaitable[object]]) -> object:
    """Does `act` once the continuation is at work; gives the end of the query."""
    ends: list[object] = []

    async def read() -> None:
        ends.append(await end_of(query))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await plan.begun.wait()
            await anyio.wait_all_tasks_blocked()
            await act()
    return ends[0]


@pytest.mark.requirement("E34", "E78", "R17")
async def test_an_interrupt_ends_it_and_asks_nothing_of_the_cli(cli: Cli, kind: str) -> None:
    plan = Plan(forever)
    async with query_runner(cli, kind) as runner:
        query = runner.ask("one", plan)

        async def interrupt() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(query.interrupt)
                group.start_soon(query.interrupt)
            assert plan.ended == [cancelled()]
            await query.interrupt()  # nothing is left to stop

        result = await while_it_works(query, plan, interrupt)
        assert isinstance(result, ph.QueryResult)
        assert result.outcome == "interrupted"
        assert plan.asked == ["re: one"]
        assert cli.controls == []
        await runner.still_works()
    assert plan.asked == ["re: one"]


async def test_a_session_interrupts_it_in_both_ways(cli: Cli) -> None:
    async with query_runner(cli, "session") as runner:
        assert runner.session is not None
        for settings in ({}, {"cancel_queued": True}):
            plan = Plan(forever)
            act = partial(runner.session.interrupt, **settings)
            result = await while_it_works(runner.ask("one", plan), plan, act)
            assert isinstance(result, ph.QueryResult)
            assert result.outcome == "interrupted"
            await runner.still_works()


async def test_an_interrupted_turn_is_not_followed(cli: Cli, kind: str) -> None:
    cli.acts["slow"] = hang
    plan = Plan(NextPrompt(prompt("never")))
    async with query_runner(cli, kind) as runner:
        async with runner.ask("slow", plan) as query:
            async for each in query:
                if isinstance(each, AssistantMessage):
                    await query.interrupt()
            assert (await query.result()).outcome == "interrupted"
        assert plan.asked == []
        await runner.still_works()


async def test_the_prompt_that_follows_can_be_interrupted(cli: Cli, kind: str) -> None:
    cli.acts["slow"] = hang
    plan = Plan(NextPrompt(prompt("slow")), NextPrompt(prompt("never")))
    async with query_runner(cli, kind) as runner:
        async with runner.ask("one", plan) as query:
            async for each in query:
                if isinstance(each, AssistantMessage) and each.text == "part of slow":
                    await query.interrupt()
            assert (await query.result()).outcome == "interrupted"
        assert plan.asked == ["re: one"]
        assert [c["subtype"] for c in cli.controls] == ["interrupt"]
        await runner.still_works()


@pytest.mark.requirement("G11", "E35")
async def test_closing_the_query_waits_until_it_has_cleaned_up(cli: Cli, kind: str) -> None:
    cleaned: list[str] = []

    async def cleans_up(_: ResultMessage) -> NextPrompt:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
                cleaned.append("up")
        raise AssertionError

    plan = Plan(cleans_up)
    async with query_runner(cli, kind) as runner:
        query = runner.ask("one", plan)

        async def close() -> None:
            await query.aclose()
            assert cleaned == ["up"]

        error = await while_it_works(query, plan, close)
        assert isinstance(error, ph.SessionClosedError)
        await runner.still_works()


@pytest.mark.requirement("G11", "E35")
async def test_an_endless_continuation_blocks_no_query(cli: Cli, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.engine.extensions.CANCEL_SECONDS", 0.05)
    enough, over = anyio.Event(), anyio.Event()

    async def deaf(_: ResultMessage) -> NextPrompt:
        with anyio.CancelScope(shield=True):
            await enough.wait()
        over.set()
        return NextPrompt(prompt("never"))

    plan = Plan(deaf)
    async with query_runner(cli, kind) as runner:
        query = runner.ask("one", plan)
        assert isinstance(await while_it_works(query, plan, query.aclose), ph.SessionClosedError)
        await runner.still_works()
        enough.set()
        with anyio.fail_after(DEADLINE):
            await over.wait()
        await runner.still_works()
    assert "never" not in [text for child in cli.prompts for text in child]


async def test_the_session_may_be_closed_meanwhile(cli: Cli) -> None:
    plan = Plan(forever)
    async with query_runner(cli, "session") as runner:
        assert runner.session is not None
        error = await while_it_works(runner.ask("one", plan), plan, runner.session.close)
        assert isinstance(error, ph.SessionClosedError)
        assert plan.ended == [cancelled()]


async def test_leaving_the_loop_ends_it(cli: Cli, kind: str) -> None:
    plan = Plan(forever)
    async with query_runner(cli, kind) as runner:
        async for each in runner.ask("one", plan):
            if isinstance(each, ResultMessage):
                await plan.begun.wait()
                break
        with anyio.fail_after(DEADLINE):
            while not plan.ended:
                await anyio.lowlevel.checkpoint()
        assert plan.ended == [cancelled()]
        await runner.still_works()


@pytest.mark.virtual_time
@pytest.mark.requirement("L30", "E10", "G46")
async def test_the_time_limit_holds_meanwhile(cli: Cli, kind: str) -> None:
    plan = Plan(forever)
    async with query_runner(cli, kind) as runner:
        with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout) as caught:
            await runner.ask("one", plan, timeout=0.1)
        assert caught.value.kind == "timeout"
        assert plan.ended == [cancelled()]
        await runner.still_works()


@pytest.mark.virtual_time
@pytest.mark.requirement("G46")
async def test_the_silence_limit_rests_meanwhile_and_begins_anew(cli: Cli, kind: str) -> None:
    async def slowly(_: ResultMessage) -> NextPrompt:
        await anyio.sleep(0.35)
        return NextPrompt(prompt("silent"))

    async def quick_enough(cli: Cli, say: Say, text: str) -> str:
        await anyio.sleep(0.05)
        return "there"

    cli.acts["silent"] = quick_enough
    async with query_runner(cli, kind) as runner:
        assert (await runner.ask("one", Plan(slowly), idle_timeout=0.2)).text == "there"
        cli.acts["silent"] = no_end
        with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout) as caught:
            await runner.ask("one", Plan(slowly), idle_timeout=0.2)
        assert caught.value.kind == "idle_timeout"
        await runner.still_works()


@pytest.mark.requirement("E68")
async def test_a_child_that_is_killed_meanwhile_fails_the_query(cli: Cli, kind: str) -> None:
    async def kill() -> None:
        cli.children[-1].end(signal="SIGKILL")

    plan = Plan(forever)
    async with query_runner(cli, kind) as runner:
        error = await while_it_works(runner.ask("one", plan), plan, kill)
        assert isinstance(error, ph.CLIExitedError)
        assert "SIGKILL before the answer was complete" in str(error)
        assert plan.ended == [cancelled()]
        await runner.still_works()


@pytest.mark.requirement("E68")
@pytest.mark.parametrize("how", [{"exit_code": 0}, {"exit_code": 3}, {"signal": "SIGKILL"}], ids=str)
async def test_a_child_that_dies_with_its_result(cli: Cli, kind: str, how: dict[str, Any]) -> None:
    gone = anyio.Event()

    async def last_words(cli: Cli, say: Say, text: str) -> str:
        session = cli._ids[len(cli.children) - 1]
        cli.saved[session] = [text]
        await say(frames.result("there", session_id=session, user_message_uuid=cli.uuids[-1]))
        cli.children[-1].end(**how)
        gone.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def in_a_moment(_: ResultMessage) -> NextPrompt:
        await gone.wait()
        await anyio.wait_all_tasks_blocked()
        return NextPrompt()

    cli.acts["one"] = last_words
    async with query_runner(cli, kind) as runner:
        with anyio.fail_after(DEADLINE):
            assert (await runner.ask("one", Plan(in_a_moment))).text == "there"
        await runner.still_works()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_child_that_leaves_by_itself_after_its_result(goes_on: bool) -> None:
    gone = anyio.Event()

    async def script(peer: MemoryPeer) -> None:
        while frame := await peer.read_frame():
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))
            else:
                await peer.write(frames.result("there", user_message_uuid=frame["uuid"]))
                break
        gone.set()

    async def after_it_has_gone(_: ResultMessage) -> NextPrompt:
        await gone.wait()
        await anyio.wait_all_tasks_blocked()
        return NextPrompt(prompt("two") if goes_on else None)

    query = ph.query("one", transport=MemoryTransport(script), middleware=[lambda: Plan(after_it_has_gone)])
    with anyio.fail_after(DEADLINE):
        end = await end_of(query)
    if goes_on:
        assert isinstance(end, ph.CLIExitedError)
    else:
        assert isinstance(end, ph.QueryResult)
        assert end.text == "there"


@pytest.mark.parametrize("is_woken", [False, True])
async def test_a_turn_of_the_clis_own_is_no_answer_to_the_next_prompt(is_woken: bool) -> None:
    """A background task ends and wakes the model, whose result comes in place of the answer."""

    async def script(peer: MemoryPeer) -> None:
        while frame := await peer.read_frame():
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            elif frame["message"]["content"] == "one":
                await peer.write(frames.init())
                await peer.write(frames.result("first answer"))
            else:
                break
        if is_woken:
            await peer.write(frames.result("I was woken", origin={"kind": "task-notification"}))
        peer.end(exit_code=0)

    plan = Plan(NextPrompt(prompt("two")))
    query = ph.query("one", transport=MemoryTransport(script), middleware=[lambda: plan])
    with anyio.fail_after(DEADLINE), pytest.raises(ph.CLIExitedError, match="before the answer was complete"):
        await query
    assert plan.asked == ["first answer"]


@pytest.mark.virtual_time
async def test_a_result_without_origin_while_it_waits_for_idle_is_followed(cli: Cli, kind: str) -> None:
    """Older CLIs do not mark the results of turns that they begin by themselves."""
    cli.acts["one"] = start_task
    woken = anyio.Event()

    async def wait_long(_: ResultMessage) -> NextPrompt:
        woken.set()
        await anyio.sleep(60)
        return NextPrompt(prompt("two"))

    async def wake() -> None:
        await anyio.sleep(5)
        [peer] = cli.children
        for frame in (TASK_ENDED, frames.init(), frames.result("I was woken")):
            await peer.write(frame)

    plan = Plan(NextPrompt(), wait_long)
    async with query_runner(cli, kind) as runner, anyio.create_task_group() as group:
        group.start_soon(wake)
        with anyio.fail_after(300):
            answer = await runner.ask("one", plan, until="idle")
        assert woken.is_set()
        assert (answer.outcome, answer.text) == ("success", "re: two")
        assert cli.prompts == [["one", "two"]]
        assert plan.ended == ["answered"] * 3
        await runner.still_works()


class BrokenToolError(Exception):
    pass


async def test_its_error_is_the_error_of_the_query(cli: Cli, kind: str) -> None:
    async def breaks(_: ResultMessage) -> NextPrompt:
        await anyio.sleep(0)
        raise BrokenToolError("no such tool")

    async with query_runner(cli, kind) as runner:
        with anyio.fail_after(DEADLINE), pytest.raises(BrokenToolError, match="no such tool"):
            await runner.ask("one", Plan(breaks))
        await runner.still_works()


async def test_an_error_of_its_reading_too(cli: Cli, kind: str) -> None:
    def read(batch: list[Message]) -> list[Message]:
        if any(isinstance(m, AssistantMessage) for m in batch):
            raise BrokenToolError("cannot read that")
        return batch

    plan = Plan(read=read)
    async with query_runner(cli, kind) as runner:
        with anyio.fail_after(DEADLINE), pytest.raises(BrokenToolError, match="cannot read that"):
            await runner.ask("one", plan)
        await runner.still_works()


async def test_an_error_after_an_interrupt_is_not_reported(cli: Cli, kind: str) -> None:
    async def breaks(_: ResultMessage) -> NextPrompt:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise BrokenToolError("half of it was done") from None
        raise AssertionError

    plan = Plan(breaks)
    async with query_runner(cli, kind) as runner:
        query = runner.ask("one", plan)
        result = await while_it_works(query, plan, query.interrupt)
        assert isinstance(result, ph.QueryResult)
        assert result.outcome == "interrupted"
        await runner.still_works()


async def test_one_that_is_cancelled_from_outside_fails_the_query(cli: Cli, kind: str, anyio_backend: str) -> None:
    if anyio_backend == "trio":
        pytest.skip("trio lets nobody raise its cancellation")

    async def gives_up(_: ResultMessage) -> NextPrompt:
        raise anyio.get_cancelled_exc_class()

    async with query_runner(cli, kind) as runner:
        with (
            anyio.fail_after(DEADLINE),
            pytest.raises(ph.PilothouseError, match="a middleware: something that it awaits was cancelled"),
        ):
            await runner.ask("one", Plan(gives_up))
        await runner.still_works()
