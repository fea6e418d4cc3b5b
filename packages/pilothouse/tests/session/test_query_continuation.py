"""What may follow a result before the query is over: what is read, what is said, and for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import pytest
from continuation_queries import DEADLINE, Plan, message, no_end, prompt, query_runner
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse.client.queries import Query
from pilothouse.engine import NextPrompt
from pilothouse.messages import AssistantMessage, Message, ResultMessage, StreamEvent
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def test_it_goes_on_twice(cli: Cli, kind: str) -> None:
    async def slowly(_: ResultMessage) -> NextPrompt:
        await anyio.sleep(0.01)
        return NextPrompt(prompt("three"))

    plan = Plan(NextPrompt(prompt("two")), slowly)
    async with query_runner(cli, kind) as runner:
        result = await runner.ask("one", plan)
        assert result.text == "re: three"
        assert [m.result for m in result.messages if isinstance(m, ResultMessage)] == [
            "re: one",
            "re: two",
            "re: three",
        ]
        assert plan.asked == ["re: one", "re: two", "re: three"]
        assert cli.prompts[-1] == ["one", "two", "three"]
        assert [m for m in plan.seen if m in result.messages] == list(result.messages)
        await runner.still_works()
    assert plan.asked == ["re: one", "re: two", "re: three"]


async def test_its_messages_come_first_and_its_result_closes(cli: Cli, kind: str) -> None:
    output, closing = message(frames.assistant("from a tool")), message(frames.result("closed"))
    plan = Plan(NextPrompt(prompt("two"), [output]), NextPrompt(messages=[closing]))
    async with query_runner(cli, kind) as runner:
        query = runner.ask("one", plan)
        texts = [getattr(m, "text", None) or getattr(m, "result", None) async for m in query]
        expected = ["re: one", "re: one", "from a tool", "re: two", "re: two", "closed"]
        assert [text for text in texts if text] == expected
        assert (await query.result()).text == "closed"
        assert query._run is not None
        assert query._run.result is closing
        await runner.still_works()


async def test_what_is_read_may_be_changed_dropped_and_added_to(cli: Cli, kind: str) -> None:
    def read(batch: list[Message]) -> list[Message]:
        kept: list[Message] = []
        for each in batch:
            if isinstance(each, AssistantMessage):
                kept += [message(frames.assistant(each.text.upper())), message(frames.assistant("and more"))]
            elif isinstance(each, ResultMessage) and each.result == "re: two":
                kept.append(message(frames.result("rewritten")))
        batch.clear()  # it is its own
        return kept

    plan = Plan(NextPrompt(prompt("two")), read=read)
    async with query_runner(cli, kind) as runner:
        result = await runner.ask("one", plan)
        assert [m.text for m in result.assistant_messages] == ["RE: ONE", "and more", "RE: TWO", "and more"]
        assert [m.type for m in result.messages] == ["assistant", "assistant"] * 2 + ["result"]
        assert result.text == "rewritten"
        assert plan.asked == ["re: one", "re: two"]  # what the CLI said
        await runner.still_works()


async def test_everything_may_be_dropped(cli: Cli, kind: str) -> None:
    closing = message(frames.result("all there is"))
    plan = Plan(NextPrompt(prompt("two")), NextPrompt(messages=[closing]), read=lambda batch: [])
    async with query_runner(cli, kind) as runner:
        result = await runner.ask("one", plan)
        assert list(result.messages) == [closing]
        await runner.still_works()


async def test_it_reads_what_is_streamed_although_the_consumer_does_not_want_it(cli: Cli) -> None:
    async def streams(cli: Cli, say: Say, text: str) -> str:
        for frame in frames.stream_text("re: one"):
            await say(frame)
        return "re: one"

    cli.acts["one"] = streams
    plan = Plan()
    async with query_runner(cli, "session") as runner:
        result = await runner.ask("one", plan)
    assert any(isinstance(m, StreamEvent) for m in plan.seen)
    assert not any(isinstance(m, StreamEvent) for m in result.messages)


async def test_it_reads_only_what_belongs_to_its_query(cli: Cli) -> None:
    def is_woken(each: Message) -> bool:
        return isinstance(each, ResultMessage) and each.is_woken

    async def wakes(_: ResultMessage) -> NextPrompt:
        await cli.wake(cli.children[0], frames.assistant("about the build"))
        async for each in listener:
            if is_woken(each):
                break
        return NextPrompt(prompt("two"))

    plan = Plan(wakes)
    async with query_runner(cli, "session") as runner:
        assert runner.session is not None
        listener = runner.session.messages()
        with anyio.fail_after(DEADLINE):
            result = await runner.ask("one", plan)
        assert plan.asked == ["re: one", "re: two"]
        assert "I was woken" not in result.full_text
        assert not any(is_woken(each) for each in plan.seen)
        await runner.still_works()


# Whom it is asked for.


async def test_it_may_end_its_own_query(cli: Cli, kind: str) -> None:
    queries: list[Query] = []

    async def ends(_: ResultMessage) -> NextPrompt:
        await queries[0].aclose()
        await anyio.sleep_forever()
        raise AssertionError

    async with query_runner(cli, kind) as runner:
        queries.append(runner.ask("one", Plan(ends)))
        with anyio.fail_after(DEADLINE), pytest.raises(ph.SessionClosedError):
            await queries[0]
        await runner.still_works()


async def test_it_runs_in_the_context_of_the_query(cli: Cli, kind: str) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def looks(_: ResultMessage) -> NextPrompt:
        seen.append(who.get())
        return NextPrompt()

    async with query_runner(cli, kind) as runner:
        who.set("me")
        await runner.ask("one", Plan(looks))
    assert seen == ["me"]


async def test_of_several_prompts_the_last_result_is_followed(cli: Cli, kind: str) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await anyio.lowlevel.checkpoint()
        yield "two"

    async with query_runner(cli, kind) as runner:
        for given in (prompts(), ["one", "two"]):
            plan = Plan(NextPrompt(prompt("three")))
            result = await runner.ask(given, plan)
            assert result.text == "re: three"
            assert plan.asked == ["re: two", "re: three"]
        await runner.still_works()


async def test_a_query_that_fails_before_its_result_is_never_followed(cli: Cli, kind: str) -> None:
    cli.acts["silent"] = no_end
    plan = Plan(NextPrompt(prompt("never")))
    async with query_runner(cli, kind) as runner:
        with anyio.fail_after(DEADLINE), pytest.raises(ph.QueryTimeout):
            await runner.ask("silent", plan, timeout=0.05)
        assert plan.asked == []
        await runner.still_works()
