"""`until="idle"` in a session: the turns that the CLI starts by itself belong to the query, and the next one waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, ClassVar

import anyio
import pytest
from session_cli import TASK_ENDED, TASK_STARTED, Cli, bash_request, hang, start_task, talking

import pilothouse as ph
from pilothouse.client import Middleware, NextPrompt
from pilothouse.messages import TaskNotificationMessage
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def wake(cli: Cli, *answers: str) -> None:
    """The task ends, which wakes the model."""
    await anyio.sleep(5)
    [peer] = cli.children
    await peer.write(TASK_ENDED)
    for answer in answers:
        await cli.wake(peer, answer=answer)


@pytest.mark.parametrize("until", ["idle", "result"])
async def test_woken_turns_belong_to_the_query(cli: Cli, until: Any) -> None:
    cli.acts["start"] = start_task
    order: list[str] = []

    async def ask(prompt: str, **settings: Any) -> None:
        answers[prompt] = await session.query(prompt, **settings)
        order.append(prompt)

    answers: dict[str, ph.QueryResult[Any]] = {}
    async with talking(cli) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(wake, cli, "FINISHED", "AGAIN")
            group.start_soon(lambda: ask("start", until=until, idle_timeout=2))
            await anyio.sleep(0.1)
            group.start_soon(ask, "next")
            await anyio.sleep(1)
            assert order == ([] if until == "idle" else ["start", "next"])
        whole = answers["start"]
        results = [message.result for message in whole.messages if isinstance(message, ph.ResultMessage)]
        if until == "idle":
            assert (results, whole.text, whole.turns) == (["LAUNCHED", "FINISHED", "AGAIN"], "AGAIN", 3)
        else:
            assert (results, whole.text, whole.turns) == (["LAUNCHED"], "LAUNCHED", 1)
        assert answers["next"].text == "re: next"
        assert order == ["start", "next"]


async def test_what_a_background_task_asks_after_the_answer_is_an_event(cli: Cli) -> None:
    cli.acts["start"] = start_task
    was_asked = anyio.Event()
    events: list[str] = []

    async def allow(request: ph.PermissionRequest) -> bool:
        was_asked.set()
        return True

    async def ask() -> None:
        await anyio.sleep(5)
        [peer] = cli.children
        await peer.write(bash_request("r1"))
        await was_asked.wait()
        await wake(cli, "FINISHED")

    async with talking(cli, can_use_tool=allow) as session, anyio.create_task_group() as group:
        group.start_soon(ask)
        events += [type(event).__name__ async for event in session.query("start", until="idle").events()]
    assert events.index("Finished") < events.index("PermissionAsked") < events.index("PermissionSettled")


async def test_what_comes_while_a_middleware_decides_belongs_to_the_query(cli: Cli) -> None:
    """A request, and a turn that the CLI starts by itself; the prompt of the middleware ends in the same way."""
    cli.acts["start"] = cli.acts["again"] = start_task
    events: list[str] = []

    class SlowFollowUp(Middleware):
        following: ClassVar[list[str]] = ["again"]

        async def after_result(self, result: ph.ResultMessage) -> NextPrompt | None:
            [peer] = cli.children
            await peer.write(bash_request(str(result.uuid)))
            await wake(cli, "FINISHED")
            await anyio.sleep(1)
            return self.make_next_prompt(self.following.pop()) if self.following else None

    async def allow(request: ph.PermissionRequest) -> bool:
        return True

    async with talking(cli, can_use_tool=allow, middleware=[SlowFollowUp]) as session:
        query = session.query("start", until="idle")
        events += [type(event).__name__ async for event in query.events()]
    half = ["Finished", "PermissionAsked", "PermissionSettled", "Finished"]
    shown = [name for name in events if name in half]
    assert shown == half * 2
    results = [message.result for message in (await query).messages if isinstance(message, ph.ResultMessage)]
    assert results == ["LAUNCHED", "FINISHED"] * 2


async def test_a_turn_of_the_clis_own_before_the_next_prompt_belongs_to_the_query(cli: Cli) -> None:
    """The CLI is woken first, and the woken turn asks; only then it takes the prompt of the middleware."""
    cli.acts["start"] = start_task
    events: list[Any] = []
    waiting: list[dict[str, Any]] = []
    was_asked = anyio.Event()

    async def allow(request: ph.PermissionRequest) -> bool:
        was_asked.set()
        return True

    class FollowUp(Middleware):
        following: ClassVar[list[str]] = ["again"]

        async def after_result(self, result: ph.ResultMessage) -> NextPrompt | None:
            cli.hold = waiting.append
            return self.make_next_prompt(self.following.pop()) if self.following else None

    async def work() -> None:
        await anyio.sleep(5)
        [peer], [frame] = cli.children, waiting
        await peer.write(TASK_ENDED)
        await cli.wake(peer, bash_request("r1"), answer="WOKEN")
        await was_asked.wait()
        cli.take(0, frame)

    async with talking(cli, can_use_tool=allow, middleware=[FollowUp]) as session, anyio.create_task_group() as group:
        group.start_soon(work)
        events += [event async for event in session.query("start", until="idle").events()]
    assert [event.text for event in events if isinstance(event, ph.TextDelta)] == ["LAUNCHED", "WOKEN", "re: again"]
    shown = [event.message.result if isinstance(event, ph.Finished) else type(event).__name__ for event in events]
    assert [name for name in shown if name in {"LAUNCHED", "WOKEN", "re: again"}] == ["LAUNCHED", "WOKEN", "re: again"]
    assert {"PermissionAsked", "PermissionSettled"} <= {*shown}


@pytest.mark.parametrize("way", ["middleware", "iterable"])
async def test_a_later_prompt_leaves_the_background_tasks_to_the_query(cli: Cli, way: str) -> None:
    async def start_agent(cli: Cli, say: Any, text: str) -> str:
        await say({**TASK_STARTED, "tool_use_id": "agent_1"})
        return "LAUNCHED"

    async def work() -> None:
        await anyio.sleep(5)
        [peer] = cli.children
        await peer.write({**frames.assistant("of the agent"), "parent_tool_use_id": "agent_1"})
        await wake(cli, "WOKEN")

    class FollowUp(Middleware):
        following: ClassVar[list[str]] = ["again"]

        async def after_result(self, result: ph.ResultMessage) -> NextPrompt | None:
            return self.make_next_prompt(self.following.pop()) if self.following else None

    async def say_both() -> AsyncGenerator[str]:
        yield "start"
        await anyio.sleep(2)
        yield "again"

    cli.acts["start"] = start_agent
    is_list = way == "iterable"
    async with talking(cli, middleware=[] if is_list else [FollowUp]) as session:
        query = session.query(say_both() if is_list else "start", until="idle")
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await query.result()
        whole = await query
    texts = [message.text for message in whole.messages if isinstance(message, ph.AssistantMessage)]
    assert texts == ["LAUNCHED", "re: again", "of the agent", "WOKEN"]
    assert any(isinstance(message, TaskNotificationMessage) for message in whole.messages)


async def test_silence_is_limited_in_the_prompt_of_a_middleware_although_a_task_runs(cli: Cli) -> None:
    cli.acts["start"], cli.acts["again"] = start_task, hang

    class FollowUp(Middleware):
        async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
            return self.make_next_prompt("again")

    async with talking(cli, middleware=[FollowUp]) as session:
        with anyio.fail_after(60), pytest.raises(ph.QueryTimeout) as caught:
            await session.query("start", until="idle", idle_timeout=2)
        assert caught.value.kind == "idle_timeout"


async def test_an_interrupt_while_nothing_runs_ends_the_waiting(cli: Cli) -> None:
    cli.acts["start"] = start_task
    async with talking(cli) as session:
        query = session.query("start", until="idle")
        async with anyio.create_task_group() as group:
            group.start_soon(query.result)
            await anyio.sleep(1)
            with anyio.fail_after(1):
                await query.interrupt()
        assert ((await query).text, (await query).outcome) == ("LAUNCHED", "success")
        assert not cli.controls  # there was no turn to stop
        assert (await session.query("next")).text == "re: next"


@pytest.mark.parametrize("moment", ["decides", "prompt_waits"])
async def test_an_interrupt_between_two_prompts_stops_a_turn_of_the_clis_own(cli: Cli, moment: str) -> None:
    class FollowUp(Middleware):
        async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
            cli.hold = lambda frame: cli.queue(0, frame)
            await anyio.sleep(1000 if moment == "decides" else 0)
            return self.make_next_prompt("again")

    cli.acts["start"] = start_task
    async with talking(cli, middleware=[FollowUp]) as session, anyio.create_task_group() as group:
        query = session.query("start", until="idle")
        group.start_soon(query.result)
        await anyio.sleep(1)
        [peer] = cli.children
        await peer.write(TASK_ENDED)
        await peer.write(frames.init())
        await anyio.sleep(1)
        with anyio.fail_after(1):
            await query.interrupt()
        assert (await query).outcome == "interrupted"
        asked = [request["subtype"] for request in cli.controls]
        assert asked == (["interrupt"] if moment == "decides" else ["cancel_async_message", "interrupt"])
        assert cli.prompts == [["start"]]


@pytest.mark.parametrize("way", ["refused", "unanswered", "cancelled"])
async def test_a_query_whose_prompt_was_taken_back_ends_whatever_comes_of_the_interrupt(cli: Cli, way: str) -> None:
    """The interrupt is for the turn that the CLI began by itself; no prompt of the query is left."""

    class FollowUp(Middleware):
        async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
            cli.hold = lambda frame: cli.queue(0, frame)
            return self.make_next_prompt("again")

    cli.acts["start"] = start_task
    async with talking(cli, middleware=[FollowUp], control_timeout=5) as session, anyio.create_task_group() as group:
        query = session.query("start", until="idle")
        group.start_soon(query.result)
        await anyio.sleep(1)
        await cli.children[0].write(TASK_ENDED)
        await cli.children[0].write(frames.init())
        await anyio.sleep(1)
        (cli.refused if way == "refused" else cli.silent).add("interrupt")
        if way == "cancelled":
            with anyio.move_on_after(1):
                await query.interrupt()
        else:
            with pytest.raises(ph.ControlError if way == "refused" else ph.ControlTimeout):
                await query.interrupt()
        with anyio.fail_after(60):
            assert (await query).outcome == "interrupted"
        assert query.state == "interrupted"
        assert cli.uuids_queued(0) == []


async def test_a_decision_that_was_cancelled_stays_interrupted_when_the_cli_refuses(cli: Cli) -> None:
    """The CLI refuses to stop the turn that it began by itself, but the middleware is cancelled already."""

    class SlowFollowUp(Middleware):
        async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
            await anyio.sleep(1000)
            return self.make_next_prompt("again")

    cli.acts["start"] = start_task
    cli.refused.add("interrupt")
    async with talking(cli, middleware=[SlowFollowUp]) as session, anyio.create_task_group() as group:
        query = session.query("start", until="idle")
        group.start_soon(query.result)
        await anyio.sleep(1)
        await cli.children[0].write(TASK_ENDED)
        await cli.children[0].write(frames.init())
        await anyio.sleep(1)
        with suppress(ph.ControlError), anyio.fail_after(60):
            await query.interrupt()
        with anyio.fail_after(60):
            assert (await query).outcome == "interrupted"
        assert cli.prompts == [["start"]]


async def test_an_interrupt_that_was_given_up_leaves_the_end_to_the_cli(cli: Cli) -> None:
    """The prompt is taken back after the caller has stopped waiting for that."""
    async with talking(cli) as session, anyio.create_task_group() as group:
        await session.query("one")
        cli.hold = lambda frame: cli.queue(0, frame)
        cli.silent.add("cancel_async_message")
        query = session.query("waits")
        group.start_soon(query.result)
        await anyio.sleep(1)
        with anyio.move_on_after(1):
            await query.interrupt()
        [uuid] = cli.uuids_queued(0)
        await cli.children[0].write({"type": "command_lifecycle", "command_uuid": uuid, "state": "cancelled"})
        with anyio.fail_after(60):
            assert (await query).outcome == "interrupted"


async def test_a_child_that_dies_meanwhile_fails_the_query(cli: Cli) -> None:
    cli.acts["start"] = start_task
    async with talking(cli) as session:
        query = session.query("start", until="idle")
        async with anyio.create_task_group() as group:

            async def die() -> None:
                await anyio.sleep(1)
                cli.children[0].end(signal="SIGKILL")

            group.start_soon(die)
            with pytest.raises(ph.CLIExitedError, match="SIGKILL"):
                await query
        assert (await session.query("next")).text == "re: next"


async def test_its_time_counts_while_it_waits(cli: Cli) -> None:
    cli.acts["start"] = start_task
    async with talking(cli) as session:
        with pytest.raises(ph.QueryTimeout):
            await session.query("start", until="idle", timeout=3)
        assert (await session.query("next")).text == "re: next"
