"""Words for a turn that runs: late ones, those that nobody takes, and mistakes of the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.engine import interrupt
from pilothouse.transports import Delivery, MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

Script = Callable[["Cli"], Awaitable[None]]


STOPPED = {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_streaming"}


class Cli:
    """A CLI that names the prompts that it begins with, and is told what to do step by step."""

    def __init__(self, peer: MemoryPeer) -> None:
        self.peer = peer
        self.frames: list[Any] = []
        self.waiting: list[str] = []  # uuids of the prompts in its queue

    async def prompt(self) -> Any:
        """The next prompt; requests before it get an empty response."""
        while frame := await self.peer.read_frame():
            self.frames.append(frame)
            if frame["type"] == "user":
                await self.say(frame, "queued")
                return frame
            if frame["type"] == "control_request":
                await self.peer.write(frames.control_response(frame["request_id"], {}))
        raise EOFError

    async def begin(self) -> Any:
        """Take a prompt and begin the turn that answers it."""
        prompt = await self.prompt()
        await self.say(prompt, "started")
        await self.peer.write(frames.init())
        return prompt

    async def request(self, **response: Any) -> Any:
        """The next request, and the response to it."""
        frame = await self.peer.read_frame()
        assert frame is not None
        self.frames.append(frame)
        await self.peer.write(frames.control_response(frame["request_id"], response))
        return frame["request"]

    async def say(self, prompt: Any, state: str) -> None:
        facts = {"command_uuid": prompt["uuid"], "state": state, "session_id": frames.SESSION_ID}
        await self.peer.write({"type": "command_lifecycle", **facts})

    async def result(self, text: str, *prompts: Any, **facts: Any) -> None:
        uuids = [prompt["uuid"] for prompt in prompts]
        await self.peer.write(frames.result(text, user_message_uuids=uuids, user_message_uuid=uuids[0], **facts))


def ask(script: Script, **settings: Any) -> ph.Query[Any]:
    async def play(peer: MemoryPeer) -> None:
        await script(Cli(peer))
        while await peer.read_frame():
            pass

    return ph.query("go", transport=MemoryTransport(play), **settings)


async def begun(query: ph.Query[Any]) -> None:
    await anext(aiter(query))


@asynccontextmanager
async def steered(script: Script, *, if_late: Any = "return", **settings: Any) -> AsyncGenerator[Any]:
    """A query whose turn has begun, and words for it."""
    with anyio.fail_after(10):
        async with ask(script, **settings) as query:
            await begun(query)
            yield query, await query.steer("words", if_late=if_late)


@pytest.mark.parametrize("is_dropped", [True, False])
async def test_late_words_are_returned_unless_the_cli_has_begun(is_dropped: bool) -> None:
    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        assert words["priority"] == "next"
        await cli.result("one", first)
        request = await cli.request(cancelled=is_dropped)
        assert request == {"subtype": "cancel_async_message", "message_uuid": words["uuid"]}
        if is_dropped:
            await cli.say(words, "cancelled")
            return
        await cli.say(words, "started")
        await cli.result("two", words)

    async with steered(script) as (query, steering):
        assert await steering.outcome() == ("returned" if is_dropped else "next_turn")
        result = await query.result()
    assert result.outcome == "success"
    assert result.text == ("one" if is_dropped else "two")


async def test_an_interrupt_takes_words_back_before_it_stops_the_turn() -> None:
    asked: list[str] = []
    arrived = anyio.Event()

    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        arrived.set()
        asked.append((await cli.request(cancelled=True))["subtype"])
        await cli.say(words, "cancelled")
        asked.append((await cli.request())["subtype"])
        await cli.result("", first, **STOPPED)

    async with steered(script) as (query, steering):
        await arrived.wait()
        await query.interrupt()
        assert await steering.outcome() == "returned"
        assert (await query.result()).outcome == "interrupted"
    assert asked == ["cancel_async_message", "interrupt"]


@pytest.mark.parametrize(("withdraw_seconds", "control_timeout"), [(0.1, 60.0), (60.0, 0.4)])
async def test_an_interrupt_waits_briefly_for_words_to_come_back(
    withdraw_seconds: float, control_timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "WITHDRAW_SECONDS", withdraw_seconds)
    asked: list[str] = []
    arrived = anyio.Event()

    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        arrived.set()
        while frame := await cli.peer.read_frame():
            if frame["type"] == "control_request":
                asked.append(frame["request"]["subtype"])
            if asked[-1:] == ["interrupt"]:
                await cli.peer.write(frames.control_response(frame["request_id"], {}))
                break
        await cli.result("", first, **STOPPED)
        await cli.say(words, "cancelled")

    async with steered(script, control_timeout=control_timeout) as (query, steering):
        await arrived.wait()
        await query.interrupt()
        assert await steering.outcome() == "returned"
    assert asked[:2] == ["cancel_async_message", "interrupt"]


async def test_no_interrupt_is_sent_when_the_turn_has_ended_meanwhile() -> None:
    asked: list[str] = []
    arrived = anyio.Event()

    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        arrived.set()
        request = await cli.peer.read_frame()
        assert request is not None
        asked.append(request["request"]["subtype"])
        await cli.result("one", first)
        await cli.say(words, "cancelled")
        await cli.peer.write(frames.control_response(request["request_id"], {"cancelled": True}))
        while frame := await cli.peer.read_frame():
            if frame["type"] == "control_request":
                asked.append(frame["request"]["subtype"])
                await cli.peer.write(frames.control_response(frame["request_id"], {}))

    async with steered(script) as (query, steering):
        await arrived.wait()
        await query.interrupt()
        assert await steering.outcome() == "returned"
        assert (await query.result()).text == "one"
    assert "interrupt" not in asked


async def test_late_words_become_the_next_turn() -> None:
    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        await cli.result("one", first)
        await cli.say(words, "started")
        await cli.result("two", words)

    async with steered(script, if_late="ask") as (query, steering):
        assert (await query.result()).text == "two"
        assert await steering.outcome() == "next_turn"


async def test_a_cli_that_names_no_prompts_takes_them_with_its_result() -> None:
    async def script(cli: Cli) -> None:
        first = await cli.peer.read_frame()
        while first is not None and first["type"] != "user":
            await cli.peer.write(frames.control_response(first["request_id"], {}))
            first = await cli.peer.read_frame()
        await cli.peer.write(frames.init())
        words = await cli.peer.read_frame()
        await cli.result("both", first, words)

    async with steered(script, if_late="ask") as (query, steering):
        assert await steering.outcome() == "taken"
        assert (await query.result()).text == "both"


async def test_words_before_the_first_prompt_come_after_it() -> None:
    async def script(cli: Cli) -> None:
        first, words = await cli.prompt(), await cli.prompt()
        got.extend(prompt["message"]["content"] for prompt in (first, words))
        await cli.say(first, "started")
        await cli.say(words, "started")
        await cli.peer.write(frames.init())
        await cli.result("both", first, words)

    got: list[Any] = []
    with anyio.fail_after(10):
        async with ask(script) as query:
            await query.steer("words")
            assert (await query.result()).text == "both"
    assert got == ["go", "words"]


async def test_mistakes_are_named(fake: FakeCLI) -> None:
    fake.turn(frames.init(), frames.result("done"))
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.UsageError, match="has not started"):
        await query.steer("words")
    with pytest.raises(ph.UsageError, match="when: expected 'next' or 'now', got 'later'"):
        await query.steer("words", when="later")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ph.UsageError, match="the prompt is empty"):
        await query.steer(" ")
    await query


async def test_the_argv_form_cannot_be_steered(fake: FakeCLI) -> None:
    fake.emit(frames.init()).hang()
    async with ph.query("go", cli=fake.path, prompt_via="argv") as query:
        await begun(query)
        with pytest.raises(ph.UsageError, match="prompt_via='stdin'"):
            await query.steer("words")


@pytest.mark.parametrize("if_late", ["ask", "return"])
async def test_another_child_gets_the_words_too_if_the_first_received_nothing(if_late: Any) -> None:
    class Lossy(MemoryTransport):
        accepted = acknowledged = 0

        async def send(self, data: bytes) -> None:
            self.accepted += len(data)
            await super().send(data)

        def delivery(self) -> Delivery:
            return Delivery(self.accepted, self.acknowledged)

    async def play(peer: MemoryPeer) -> None:
        cli = Cli(peer)
        if len(made) == 1:
            await cli.request()
            made[0].acknowledged = made[0].accepted
            for _ in range(2):
                await peer.read_frame()
            peer.end(exit_code=1)
            return
        first, words = await cli.prompt(), await cli.prompt()
        got.extend(prompt["message"]["content"] for prompt in (first, words))
        await cli.say(first, "started")
        await cli.peer.write(frames.init())
        if if_late == "ask":
            await cli.result("both", first, words)
        else:
            await cli.result("one", first)
            got.append((await cli.request(cancelled=True))["subtype"])
        while await peer.read_frame():
            pass

    def make() -> Lossy:
        made.append(Lossy(play))
        return made[-1]

    made: list[Lossy] = []
    got: list[Any] = []
    with anyio.fail_after(10):
        async with ph.session(transport=make) as session, session.query("go") as query:
            steering = await query.steer("words", if_late=if_late)
            assert (await query.result()).text == ("both" if if_late == "ask" else "one")
            assert await steering.outcome() == ("taken" if if_late == "ask" else "returned")
    assert got == ["go", "words", *(["cancel_async_message"] if if_late == "return" else [])]


async def test_a_cli_that_cannot_return_late_words_goes_on_with_them() -> None:
    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        await cli.result("one", first)
        request = await cli.peer.read_frame()
        assert request is not None
        refusal = {"subtype": "error", "request_id": request["request_id"], "error": "unknown request"}
        await cli.peer.write({"type": "control_response", "response": refusal})
        await cli.say(words, "started")
        await cli.result("two", words)

    async with steered(script) as (query, steering):
        assert await steering.outcome() == "next_turn"
        assert (await query.result()).text == "two"


async def work_beyond_the_budget(cli: Cli, first: Any) -> Any:
    """Use many tokens, with a task in the background; returns each interrupt, after words are taken back late."""
    task = {"type": "system", "task_id": "task", "uuid": "1", "session_id": frames.SESSION_ID}
    await cli.peer.write(task | {"subtype": "task_started"})
    reply = frames.assistant("much")
    reply["message"]["usage"] = {"input_tokens": 100, "output_tokens": 100}
    await cli.peer.write(reply)
    asked: list[Any] = []
    while frame := await cli.peer.read_frame():
        if frame["type"] != "control_request":
            continue
        request, respond = frame["request"], partial(frames.control_response, frame["request_id"])
        if request["subtype"] == "get_usage":
            await cli.peer.write(respond(error="unknown request"))
        elif request["subtype"] == "cancel_async_message":
            if request["message_uuid"] != first["uuid"]:
                await cli.result("one", first)
            await cli.peer.write(respond({"cancelled": True}))
        else:
            asked.append(request)
            await cli.peer.write(respond({"cancelled": cli.waiting}))
            await cli.peer.write(task | {"subtype": "task_notification", "status": "stopped"})
            await cli.result("", first, **STOPPED)
            return asked
    return asked


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_budget_stops_tasks_although_prompts_are_taken_back(has_begun: bool) -> None:
    asked: list[Any] = []

    async def script(cli: Cli) -> None:
        first = await (cli.begin() if has_begun else cli.prompt())
        if has_begun:
            cli.waiting = [(await cli.prompt())["uuid"]]
        else:
            await cli.peer.write(frames.init())  # a turn of its own
        asked.extend(await work_beyond_the_budget(cli, first))

    with anyio.fail_after(10):
        async with ask(script, max_budget_tokens=60) as query:
            await begun(query)
            if has_begun:
                steering = await query.steer("words", if_late="return")
                assert await steering.outcome() == "returned"
            result = await query.result()
    assert asked == [{"subtype": "interrupt", "cancel_queued": True}]
    assert isinstance(result.error, ph.BudgetError)


@pytest.mark.parametrize("in_session", [True, False])
async def test_an_answer_survives_a_cli_that_keeps_late_words(in_session: bool, caplog: Any) -> None:
    async def play(peer: MemoryPeer) -> None:
        cli = Cli(peer)
        first = await cli.begin()
        await cli.prompt()
        await cli.result("one", first)
        while await peer.read_frame():
            pass

    with anyio.fail_after(10):
        options: Any = {"transport": MemoryTransport(play), "control_timeout": 0.2}
        async with AsyncExitStack() as stack:
            made: Any = ph
            if in_session:
                made, options = await stack.enter_async_context(ph.session(**options)), {}
            query = await stack.enter_async_context(made.query("go", **options))
            await begun(query)
            steering = await query.steer("words", if_late="return")
            result = await query.result()
            assert await steering.outcome() == "returned"
    assert (result.outcome, result.text) == ("success", "one")
    [warning] = [record for record in caplog.records if record.name == "pilothouse.engine"]
    assert "ends without the words that came too late for its turn: no response" in warning.message


async def test_late_words_that_the_cli_takes_in_silence_are_answered(caplog: Any) -> None:
    async def script(cli: Cli) -> None:
        first = await cli.begin()
        words = await cli.prompt()
        await cli.result("one", first)
        await cli.peer.read_frame()  # gets no response
        await cli.say(words, "started")
        await anyio.sleep(0.3)
        await cli.result("two", words)

    async with steered(script, control_timeout=0.2) as (query, steering):
        assert (await query.result()).text == "two"
        assert await steering.outcome() == "next_turn"
    assert not [record for record in caplog.records if record.name == "pilothouse.engine"]


async def test_words_before_the_child_runs_wait_for_it() -> None:
    may_start, may_ask = anyio.Event(), anyio.Event()

    class Slow(MemoryTransport):
        async def start(self, invocation: Any) -> None:
            await may_start.wait()
            await super().start(invocation)

    async def prompts() -> AsyncGenerator[str]:
        await may_ask.wait()
        yield "one"

    async def play(peer: MemoryPeer) -> None:
        cli = Cli(peer)
        for text in ("words", "one"):
            prompt = await cli.begin()
            assert prompt["message"]["content"] == text
            await cli.result(f"re: {text}", prompt)
            may_ask.set()
        await peer.read_frame()

    query = ph.query(prompts(), transport=Slow(play))
    steered: list[bool] = []

    async def steer() -> None:
        steered.append((await query.steer("words")).was_sent)

    with anyio.fail_after(4):
        async with anyio.create_task_group() as group:
            group.start_soon(query.start)
            while not query.has_begun:
                await anyio.lowlevel.checkpoint()
            group.start_soon(steer)
            await anyio.wait_all_tasks_blocked()
            assert not steered
            may_start.set()
            assert (await query).text == "re: one"
    assert steered == [True]


@pytest.mark.parametrize("rounds", range(12))
async def test_words_for_a_query_that_is_being_closed_are_returned(rounds: int) -> None:
    async def play(peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "user":
                await peer.write(frames.init())
                await peer.write(frames.assistant("Hm"))
            elif frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))

    with anyio.fail_after(4):
        query = await ph.query("one", transport=MemoryTransport(play)).start()
        await anext(aiter(query))
        async with anyio.create_task_group() as group:
            group.start_soon(query.aclose)
            for _ in range(rounds):
                await anyio.lowlevel.checkpoint()
            assert await (await query.steer("words")).outcome() == "returned"
