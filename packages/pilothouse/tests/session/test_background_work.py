"""Work that goes on after its query: what it says, turns that the child starts by itself, prompts that meet one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from session_cli import Cli, Say, talking

import pilothouse as ph
from pilothouse.engine.pending_work import BackgroundAttribution
from pilothouse.messages import TaskNotificationMessage, from_dict
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


def task(subtype: str, number: int, **more: Any) -> dict[str, Any]:
    ids = {"task_id": f"task{number}", "tool_use_id": f"call{number}"}
    return {"type": "system", "subtype": subtype, **ids, **more}


def started(number: int) -> dict[str, Any]:
    return task("task_started", number, description="d")


def over(number: int) -> dict[str, Any]:
    return task("task_notification", number, status="completed")


CHANGED = {"type": "system", "subtype": "background_tasks_changed", "tasks": []}


def sub_agent(number: int, text: str, call: str | None = None) -> dict[str, Any]:
    content = [frames.text(text)] + ([] if call is None else [frames.tool_use("Bash", id=call)])
    return frames.assistant(content, parent_tool_use_id=f"call{number}")


def texts(messages: list[ph.Message]) -> list[str]:
    return [m.text or "?" for m in messages if isinstance(m, ph.AssistantMessage)]


@pytest.mark.requirement("E20", "G18")
async def test_background_work_of_an_earlier_query_reaches_only_the_session(cli: Cli) -> None:
    async def begins(cli: Cli, say: Say, text: str) -> str:
        await say(started(1))
        await say(sub_agent(1, "mine"))
        return "started"

    async def meets(cli: Cli, say: Say, text: str) -> str:
        await say(sub_agent(1, "not yours", call="inner"))
        await say(frames.user_tool_result("inner", tool_use_id="x", parent_tool_use_id="call1"))
        await say(sub_agent(1, "nor this"))
        await say({"type": "tool_progress", "tool_use_id": "inner", "tool_name": "Bash", "parent_tool_use_id": None})
        await say(started(2))
        await say(sub_agent(2, "yours"))
        await say(over(1))
        await say(over(2))
        await say(CHANGED)
        return "met"

    cli.acts |= {"begins": begins, "meets": meets}
    async with talking(cli) as session:
        listener = session.messages()
        assert texts((await session.query("begins")).messages) == ["mine", "started"]
        second = await session.query("meets")
        assert texts(second.messages) == ["yours", "met"]
        assert [m.task_id for m in second.messages if isinstance(m, TaskNotificationMessage)] == ["task2"]
        assert "tool_progress" not in {m.type for m in second.messages}
        third = await session.query("third")
        assert texts(third.messages) == ["re: third"]
    everything = [m async for m in listener]
    assert texts(everything) == ["mine", "started", "not yours", "nor this", "yours", "met", "re: third"]


def test_leftovers_follow_tasks_within_tasks() -> None:
    book = BackgroundAttribution()

    def is_earlier(frame: dict[str, Any]) -> bool:
        message = from_dict(frame)
        book.track(message)
        return book.is_earlier(message)

    assert not is_earlier(CHANGED)
    assert not is_earlier(started(1))
    book.start_query()
    assert is_earlier(CHANGED)  # all there is belongs to others
    inner = {**started(9), "tool_use_id": "c", "parent_task_id": "task1"}
    assert is_earlier(sub_agent(1, "x", call="c"))
    assert is_earlier(inner)
    assert is_earlier(sub_agent(1, "x") | {"parent_tool_use_id": "c"})
    assert not is_earlier(started(2))
    assert not is_earlier(CHANGED)  # some of it is ours
    assert not is_earlier(frames.result("x"))


async def test_a_task_may_end_while_a_query_runs_and_wake_the_child_after_it(cli: Cli) -> None:
    async def begins(cli: Cli, say: Say, text: str) -> str:
        await say(started(1))
        return "started"

    async def ends(cli: Cli, say: Say, text: str) -> str:
        await say(over(1))
        return "ended"

    cli.acts |= {"begins": begins, "ends": ends}
    async with talking(cli) as session:
        listener = session.messages()
        await session.query("begins")
        await session.query("ends")
        async with anyio.create_task_group() as group:
            group.start_soon(session.tasks.wait_idle)
            await anyio.wait_all_tasks_blocked()
            await cli.wake(cli.children[0])
        assert session.state == "idle"
    assert texts([m async for m in listener])[-1] == "I was woken"


async def test_waiting_for_idle_blocks_no_query(cli: Cli) -> None:
    async def begins(cli: Cli, say: Say, text: str) -> str:
        await say(started(1))
        return "started"

    cli.acts["begins"] = begins
    async with talking(cli) as session:
        await session.query("begins")
        idle = anyio.Event()

        async def wait() -> None:
            await session.tasks.wait_idle()
            idle.set()

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(5):
                assert (await session.query("meanwhile")).text == "re: meanwhile"
            assert not idle.is_set()
            await cli.children[0].write(over(1))
        assert idle.is_set()


class Busy:
    """A child that is in a turn of its own, into which a prompt folds, or behind which it waits."""

    def __init__(self, cli: Cli) -> None:
        self.peer = cli.children[0]

    async def begin(self, listener: Any) -> None:
        await self.peer.write(frames.init())
        async for message in listener:
            if isinstance(message, ph.InitMessage):
                return

    async def end(self, **named: Any) -> None:
        await self.peer.write(frames.assistant("I was woken"))
        await self.peer.write(frames.result("I was woken", origin={"kind": "task-notification"}, **named))


@pytest.mark.requirement("G49")
async def test_an_interrupt_of_the_session_stops_a_turn_of_its_own(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        async with session.messages() as listener:
            busy = Busy(cli)
            await busy.begin(listener)
            assert session.state == "running"
            await session.interrupt()
            assert cli.controls == [{"subtype": "interrupt"}]
            await busy.end()
            await session.tasks.wait_idle()
            assert session.state == "idle"


async def test_a_prompt_that_folds_into_such_a_turn_gets_its_answer(cli: Cli) -> None:
    async with talking(cli) as session:
        await session.query("one")
        async with session.messages() as listener:
            busy = Busy(cli)
            await busy.begin(listener)
            query = session.query("folded")
            frame: dict[str, Any] = {}
            cli.hold = frame.update
            results: list[ph.QueryResult] = []

            async def ask() -> None:
                results.append(await query)

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                uuid = frame["uuid"]
                await busy.peer.write(frames.assistant("before"))
                for state in ("started", "completed"):
                    await busy.peer.write({"type": "command_lifecycle", "command_uuid": uuid, "state": state})
                await busy.end(user_message_uuid=uuid, user_message_uuids=[uuid])
        assert texts(results[0].messages) == ["I was woken"]
        assert results[0].is_success
        cli.hold = None
        assert (await session.query("next")).full_text == "re: next"


@pytest.mark.parametrize("how", ["interrupt", "leave", "cancel"])
async def test_a_prompt_that_waits_behind_such_a_turn_is_taken_back_and_the_turn_goes_on(cli: Cli, how: str) -> None:
    async with talking(cli) as session:
        await session.query("one")
        async with session.messages() as listener:
            busy = Busy(cli)
            await busy.begin(listener)
            frame: dict[str, Any] = {}
            cli.hold = frame.update
            query = session.query("waits")
            async with anyio.create_task_group() as group:
                if how == "cancel":
                    group.start_soon(query.result)
                else:
                    await query.start()
                await anyio.wait_all_tasks_blocked()
                cli.queue(0, frame)
                with anyio.fail_after(5):
                    if how == "interrupt":
                        await query.interrupt()
                        assert (await query.result()).outcome == "interrupted"
                    elif how == "leave":
                        await query.aclose()
                    else:
                        group.cancel_scope.cancel()
            assert cli.controls == [{"subtype": "cancel_async_message", "message_uuid": frame["uuid"]}]
            cli.hold = None
            await busy.end()
            assert (await session.query("next")).full_text == "re: next"
    assert cli.prompts == [["one", "next"]]


@pytest.mark.requirement("R17", "E34")
async def test_an_interrupt_between_two_prompts_of_a_query_returns_at_once(cli: Cli) -> None:
    answered, go_on = anyio.Event(), anyio.Event()

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await go_on.wait()
        yield "two"

    def hear(message: ph.Message) -> None:
        if isinstance(message, ph.ResultMessage):
            answered.set()

    async with talking(cli) as session, anyio.create_task_group() as group:
        query = session.query(prompts(), on_message=hear)
        group.start_soon(query.result)
        await answered.wait()
        with anyio.fail_after(20):
            await query.interrupt()
        await cli.wake(cli.children[0])  # says nothing to the query
        go_on.set()
        result = await query.result()
        assert (result.outcome, result.full_text) == ("success", "re: onere: two")
        assert cli.controls == []


async def test_an_older_peer_that_is_woken_has_not_answered_the_prompt() -> None:
    cli = Cli(says_lifecycle=False)
    results: list[ph.QueryResult] = []
    async with talking(cli) as session:
        await session.query("one")
        frame: dict[str, Any] = {}
        cli.hold = frame.update

        async def ask() -> None:
            results.append(await session.query("two"))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await cli.wake(cli.children[0])
            await anyio.wait_all_tasks_blocked()
            assert results == []
            await cli.children[0].write(frames.result("re: two", session_id=session.id or ""))
    assert results[0].text == "re: two"
