"""The option `middleware`: what each method can do, in which order, and how mistakes end."""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import anyio
import pytest
from fake_cli_processes import ended

import pilothouse as ph
from pilothouse.client import Middleware, NextPrompt
from pilothouse.client.middleware import ReadEvents
from pilothouse.client.prompt import make_prompt
from pilothouse.engine import Prompts, QueryRun
from pilothouse.events import QueryEvent
from pilothouse.messages import Message, ResultMessage
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio


class FollowUp(Middleware):
    """Sends each of its texts after one result."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        return self.make_next_prompt(self._texts.pop(0)) if self._texts else None


def follow_up(*texts: str) -> Callable[[], Middleware]:
    return lambda: FollowUp(*texts)


async def test_a_follow_up_is_sent_verbatim(fake: FakeCLI) -> None:
    fake.text("one").text("two")
    await ph.query("go", cli=fake.path, middleware=[follow_up("/clear @secret.txt")])
    assert fake.calls[0].prompts == ["go", "/clear @secret.txt"]
    assert fake.calls[0].frames[-1]["client_composed"] is True


async def test_the_first_is_the_outermost(fake: FakeCLI) -> None:
    fake.text("Hello")
    order: list[str] = []

    class Named(Middleware):
        name = ""

        def prepare_prompts(self, prompts: Prompts) -> Prompts:
            order.append(f"prompts {self.name}")
            assert isinstance(prompts, Sequence)
            return (*prompts[:-1], make_prompt(f"{self.name} " + _text(prompts[-1].data), verbatim=False))

        def on_start(self, run: QueryRun) -> None:
            order.append(f"start {self.name}")

        def on_messages(self, batch: list[Message]) -> list[Message]:
            order.extend(f"{type(m).__name__} {self.name}" for m in batch if isinstance(m, ResultMessage))
            return batch

        async def after_result(self, result: ResultMessage) -> NextPrompt | None:
            order.append(f"after {self.name}")
            return None

        def complete_result(self, result: ph.QueryResult[Any], messages: Sequence[Message]) -> None:
            order.append(f"complete {self.name}")
            assert messages[-1] is result.result

    class Outer(Named):
        name = "outer"

    class Inner(Named):
        name = "inner"

    await ph.query("go", cli=fake.path, middleware=[Outer, Inner])
    assert fake.calls[0].prompts == ["inner outer go"]
    assert order[:4] == ["prompts outer", "prompts inner", "start outer", "start inner"]
    assert order[4:] == [
        "ResultMessage inner", "ResultMessage outer", "after inner", "after outer", "complete inner", "complete outer",
    ]  # fmt: skip


def _text(data: bytes) -> str:
    return json.loads(data)["message"]["content"]


async def test_prompts_of_a_stream_can_be_changed(fake: FakeCLI) -> None:
    fake.text("one").text("two")

    class Numbered(Middleware):
        def prepare_prompts(self, prompts: Prompts) -> Prompts:
            assert isinstance(prompts, AsyncGenerator)
            return self._number(prompts)

        async def _number(self, prompts: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
            number = 0
            async for prompt in prompts:
                number += 1
                yield make_prompt(f"{number}. {_text(prompt.data)}", verbatim=False)

    async def prompts() -> AsyncIterator[str]:
        yield "first"
        yield "second"

    await ph.query(prompts(), cli=fake.path, middleware=[Numbered])
    assert fake.calls[0].prompts == ["1. first", "2. second"]


async def test_the_consumer_gets_what_on_messages_returns(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("secret"), frames.assistant("plain"), frames.result("x"))

    class Hide(Middleware):
        def on_messages(self, batch: list[Message]) -> list[Message]:
            return [m for m in batch if getattr(m, "text", "") != "secret"]

    query = ph.query("go", cli=fake.path, middleware=[Hide])
    texts = [m.text async for m in query if isinstance(m, ph.AssistantMessage)]
    assert texts == ["plain"]
    assert (await query.result()).full_text == "plain"


async def test_added_messages_pass_the_outer_ones_and_replace_the_result(fake: FakeCLI) -> None:
    fake.text("Hello")
    seen: list[tuple[str, str | None]] = []

    class Replace(Middleware):
        async def after_result(self, result: ResultMessage) -> NextPrompt | None:
            changed = ph.messages.from_dict({**result.raw, "result": "changed"})
            return NextPrompt(None, [changed])

    def watch(name: str) -> type[Middleware]:
        class Watch(Middleware):
            def on_messages(self, batch: list[Message]) -> list[Message]:
                seen.extend((name, m.result) for m in batch if isinstance(m, ResultMessage))
                return batch

            async def after_result(self, result: ResultMessage) -> NextPrompt | None:
                assert name == "inner"  # the one in the middle has decided
                return None

        return Watch

    result = await ph.query("go", cli=fake.path, middleware=[watch("outer"), Replace, watch("inner")])
    assert result.result is not None
    assert result.result.result == "changed"
    assert seen == [("inner", "Hello"), ("outer", "Hello"), ("outer", "changed")]


async def test_complete_result_and_explain_and_events(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.result("", is_error=True, subtype="error_during_execution"))
    causes: list[BaseException] = []

    class Explain(Middleware):
        def complete_result(self, result: ph.QueryResult[Any], messages: Sequence[Message]) -> None:
            result.output = len(messages)

        def explain(self, error: ph.PilothouseError) -> None:
            causes.append(error)
            error.add_note("the proxy is down")

        def wrap_events(self, read: ReadEvents) -> ReadEvents:
            def first_of_all(message: Message) -> Iterator[QueryEvent]:
                yield from read(message)
                yield from read(message) if isinstance(message, ph.InitMessage) else ()

            return first_of_all

    query = ph.query("go", cli=fake.path, middleware=[Explain])
    events = [type(event).__name__ async for event in query.events()]
    assert events.count("Started") == 2
    result = await query.result()
    assert result.output == len(result.messages)
    assert result.error is causes[-1]
    assert "the proxy is down" in causes[-1].__notes__


async def test_errors_that_are_raised_are_explained(fake: FakeCLI) -> None:
    fake.expect("user").exit(3)

    class Explain(Middleware):
        def explain(self, error: ph.PilothouseError) -> None:
            error.add_note("the disk is full")

    with pytest.raises(ph.CLIExitedError) as caught:
        await ph.query("go", cli=fake.path, middleware=[Explain])
    assert caught.value.__notes__ == ["the disk is full"]


async def test_a_middleware_stops_its_query(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("working"))
    fake.expect("control_request", "interrupt").reply({})
    fake.emit(frames.result("", is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming"))

    class Stop(Middleware):
        def on_start(self, run: QueryRun) -> None:
            self.run = run

        async def interrupt_soon(self) -> None:
            await self.run.interrupt()

    made: list[Stop] = []

    def make() -> Stop:
        made.append(Stop())
        return made[-1]

    query = ph.query("go", cli=fake.path, middleware=[make])
    async with anyio.create_task_group() as group:
        async for message in query:
            if isinstance(message, ph.AssistantMessage):
                group.start_soon(made[0].interrupt_soon)
    assert (await query.result()).outcome == "interrupted"


async def test_each_query_of_a_session_has_an_instance_and_may_bring_its_own(fake: FakeCLI) -> None:
    for text in ("one", "two", "three", "four"):
        fake.text(text)
    async with ph.session(cli=fake.path, middleware=[follow_up("more")]) as session:
        assert (await session.query("first")).text == "two"
        assert (await session.query("second", middleware=[])).text == "three"
        assert (await session.query("third", middleware=[Middleware])).text == "four"
    assert [call.prompts for call in fake.calls] == [["first", "more", "second", "third"]]


async def test_a_dropped_query_ends(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("working")).hang()

    class Keep(Middleware):
        def on_start(self, run: QueryRun) -> None:
            self.run = run

    query = ph.query("go", cli=fake.path, middleware=[Keep])
    await anext(aiter(query))
    reference = weakref.ref(query)
    del query
    assert reference() is None
    await ended(fake)


# Mistakes.


class Failing(Middleware):
    def on_messages(self, batch: list[Message]) -> list[Message]:
        raise LookupError("mine")


class Forgetful(Middleware):
    def on_messages(self, batch: list[Message]) -> Any:
        pass


class Texting(Middleware):
    async def after_result(self, result: ResultMessage) -> Any:
        return "go on"


class FailingLater(Middleware):
    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        raise LookupError("mine")


class Hasty(Middleware):
    def after_result(self, result: ResultMessage) -> Any:
        return None


class Sleepy(Middleware):
    async def on_start(self, run: QueryRun) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        ...


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (Hasty, ph.UsageError, "returned NoneType; return a NextPrompt, or None, from `async def`"),
        (Failing, LookupError, "mine"),
        (FailingLater, LookupError, "mine"),
        (Forgetful, ph.UsageError, "on_messages of the middleware Forgetful returned NoneType; return a list of"),
        (Texting, ph.UsageError, "after_result of the middleware Texting returned str; return a NextPrompt, or None"),
    ],
)
async def test_a_mistake_is_the_failure_of_the_query(
    fake: FakeCLI, kind: type[Middleware], error: type[Exception], text: str
) -> None:
    fake.text("Hello")
    with pytest.raises(error, match=text):
        await ph.query("go", cli=fake.path, middleware=[kind])
    await ended(fake)


@pytest.mark.parametrize("method", ["on_messages", "after_result"])
@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("x")])
async def test_a_middleware_that_raises_no_exception_fails(fake: FakeCLI, method: str, error: BaseException) -> None:
    class Failing(Middleware):
        def on_messages(self, batch: list[Message]) -> list[Message]:
            if method == "on_messages":
                raise error
            return batch

        async def after_result(self, result: ResultMessage) -> NextPrompt | None:
            raise error

    fake.text("Hello")
    text = f"a middleware raised {type(error).__name__}"
    with anyio.fail_after(15), pytest.raises(ph.PilothouseError, match=text) as caught:
        await ph.query("go", cli=fake.path, middleware=[Failing])
    assert caught.value.__cause__ is error
    await ended(fake)


@pytest.mark.parametrize("returned", [None, "Hello", ["Hello"], 5])
async def test_prompts_that_are_none_are_refused_before_anything_starts(fake: FakeCLI, returned: Any) -> None:
    class Preparing(Middleware):
        def prepare_prompts(self, prompts: Prompts) -> Any:
            return returned

    text = f"Preparing returned {type(returned).__name__}; return .*self.make_next_prompt"
    with pytest.raises(ph.UsageError, match=text):
        await ph.query("go", cli=fake.path, middleware=[Preparing])
    assert fake.calls == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"middleware": [Middleware()]}, "expected a list of Middleware classes, or of functions that make"),
        ({"middleware": Middleware}, "expected a list of Middleware classes, or of functions that make one"),
        ({"middleware": [Sleepy]}, "Sleepy.on_start is called, not awaited: write `def`"),
        ({"middleware": [dict]}, "<class 'dict'> made dict; derive it from pilothouse.client.Middleware"),
        ({"middleware": [Middleware], "prompt_via": "argv"}, "the argv form sends one prompt"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(fake: FakeCLI, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ph.OptionsError, match=text) as caught:
        ph.query("go", cli=fake.path, **settings)
    assert caught.value.option == "middleware"
    assert fake.calls == []
