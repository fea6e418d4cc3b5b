"""`Questions`: many at the same time, answered once each, withdrawn without a trace, never fatal for the connection."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pilothouse.callbacks import TimeLimited
from pilothouse.driver.incoming_requests import IncomingRequests, ReaderTask, RequestHandler
from pilothouse.errors import ControlError
from pilothouse.protocol import Connection, RequestCancelled, RequestReceived
from pilothouse.testing import frames

pytestmark = pytest.mark.anyio


class Room:
    """The questions of a connection, whose bytes come from the test. As with a reader, one task answers, and another
    takes its place when it has to wait."""

    def __init__(self, desks: Mapping[str, RequestHandler], group: Any) -> None:
        self.connection = Connection()
        self.sent: list[dict[str, Any]] = []
        self.questions = IncomingRequests(self.connection, desks, lambda _: False, self.send)
        self.group = group

    async def answer(self) -> None:
        reader = ReaderTask()
        with reader.scope:
            await self.questions.handle_new(reader, lambda: self.group.start_soon(self.answer))
        await self.questions.finish(reader)

    async def send(self, data: bytes) -> None:
        if data:
            self.sent.append(json.loads(data)["response"])

    def say(self, *said: dict[str, Any]) -> None:
        self.connection.feed(frames.lines(said))
        while self.connection.events:
            event = self.connection.events.popleft()
            if isinstance(event, RequestReceived):
                self.questions.accept(event)
            elif isinstance(event, RequestCancelled):
                self.questions.cancel(event.request_id)
        self.group.start_soon(self.answer)

    def ask(self, subtype: str, key: str, **body: Any) -> None:
        self.say(frames.control_request(subtype, request_id=key, **body))

    def withdraw(self, key: str) -> None:
        self.say({"type": "control_cancel_request", "request_id": key})

    @property
    def answers(self) -> dict[str, Any]:
        assert len({r["request_id"] for r in self.sent}) == len(self.sent)  # each once
        return {r["request_id"]: r.get("response", r.get("error")) for r in self.sent}


@asynccontextmanager
async def room(**desks: RequestHandler) -> AsyncGenerator[Room]:
    async with anyio.create_task_group() as group:
        yield Room(desks, group)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


@pytest.mark.requirement("R11", "G27", "G49")
async def test_they_are_answered_as_they_are_ready_not_as_they_came() -> None:
    gates = {"slow": anyio.Event(), "fast": anyio.Event()}

    async def desk(body: Mapping[str, Any]) -> Mapping[str, Any]:
        await gates[body["input"]].wait()
        return {"got": body["input"]}

    async with room(can_use_tool=desk) as world:
        world.ask("can_use_tool", "1", input="slow")
        world.ask("can_use_tool", "2", input="fast")
        await anyio.wait_all_tasks_blocked()
        assert len(world.questions) == 2
        for name in ("fast", "slow"):
            gates[name].set()
            await anyio.wait_all_tasks_blocked()
        assert [r["request_id"] for r in world.sent] == ["2", "1"]
        assert world.answers == {"1": {"got": "slow"}, "2": {"got": "fast"}}
        assert len(world.questions) == 0


async def test_an_unknown_request_is_refused_at_once() -> None:
    async with room() as world:
        world.ask("paint", "1")
        await anyio.wait_all_tasks_blocked()
        assert world.sent == [
            {
                "subtype": "error",
                "request_id": "1",
                "error": "Unsupported control request subtype: paint",
                "error_code": "unsupported_request",
            }
        ]


async def test_a_failed_handler_reveals_no_internals(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("the password is 1234")

    async def refuses(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ControlError("not today", subtype="refuses", code="not_today")

    async def cannot(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"value": object()}

    async with room(breaks=breaks, refuses=refuses, cannot=cannot) as world:
        with caplog.at_level(logging.ERROR, "pilothouse.driver"):
            for key in ("breaks", "refuses", "cannot"):
                world.ask(key, key)
            await anyio.wait_all_tasks_blocked()
        assert {r["request_id"]: r.get("error_code") for r in world.sent}["refuses"] == "not_today"
        assert world.answers == {
            "breaks": "the host failed to answer breaks",
            "refuses": "not today",
            "cannot": "the host has no valid answer to cannot",
        }
        assert "1234" not in json.dumps(world.sent)
    assert "the password is 1234" in caplog.text  # with its traceback, for us


async def test_a_question_that_is_withdrawn_is_cancelled_and_not_answered() -> None:
    seen: list[str] = []

    async def desk(_: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        return {}

    async def stubborn(_: Mapping[str, Any]) -> Mapping[str, Any]:
        with anyio.CancelScope(shield=True):
            await gate.wait()
        return {"late": True}

    gate = anyio.Event()
    async with room(hook_callback=desk, stubborn=stubborn) as world:
        world.ask("hook_callback", "1")
        world.ask("stubborn", "2")
        await anyio.wait_all_tasks_blocked()
        for key in ("1", "2", "1", "unknown"):
            world.withdraw(key)
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert len(seen) == 1
        assert "Cancel" in seen[0]
        assert world.sent == []
        assert len(world.questions) == 0


async def test_withdrawn_before_its_handler_started() -> None:
    asked: list[object] = []

    async def desk(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body)
        return {}

    async with room(hook_callback=desk) as world:
        world.say(
            frames.control_request("hook_callback", request_id="1"),
            {"type": "control_cancel_request", "request_id": "1"},
            frames.control_request("hook_callback", request_id="2"),
            frames.control_request("hook_callback", request_id="2"),  # once more is once too often
        )
        await anyio.wait_all_tasks_blocked()
        assert len(asked) == 1
        assert list(world.answers) == ["2"]


async def test_many_at_once() -> None:
    async def desk(body: Mapping[str, Any]) -> Mapping[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"number": body["number"]}

    async with room(hook_callback=desk) as world:
        for number in range(500):
            world.ask("hook_callback", f"k{number}", number=number)
        for number in range(0, 500, 2):
            world.withdraw(f"k{number}")
        await anyio.wait_all_tasks_blocked()
        assert world.answers == {f"k{n}": {"number": n} for n in range(1, 500, 2)}


async def test_an_answer_that_waits_for_nothing_is_sent_before_anything_else_runs() -> None:
    async def desk(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"got": body["input"]}

    async with room(can_use_tool=desk) as world:
        world.ask("can_use_tool", "1", input="a")
        world.ask("can_use_tool", "2", input="b")
        with (reader := ReaderTask()).scope:
            assert not await world.questions.handle_new(reader, lambda: pytest.fail("nothing had to wait"))
        assert world.answers == {"1": {"got": "a"}, "2": {"got": "b"}}
        assert not len(world.questions)


@pytest.mark.parametrize("waits", [False, True])
async def test_what_one_answer_sets_in_its_context_is_not_there_for_the_next(waits: bool) -> None:
    seen: list[str] = []

    async def desk(body: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(mood.get())
        mood.set(body["input"])
        if waits:
            await anyio.lowlevel.checkpoint()
        return {"mood": mood.get()}

    mood: ContextVar[str] = ContextVar("mood", default="calm")
    async with room(can_use_tool=desk) as world:
        for key in ("1", "2", "3"):
            world.ask("can_use_tool", key, input=key)
        await anyio.wait_all_tasks_blocked()
        assert seen == ["calm", "calm", "calm"]
        assert world.answers == {key: {"mood": key} for key in ("1", "2", "3")}


@pytest.mark.requirement("G28")
async def test_a_limit_counts_from_the_first_wait_and_its_answer_is_sent() -> None:
    cancelled: list[str] = []

    async def work(key: str) -> Mapping[str, Any]:
        if key == "waits":
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(key)
        return {"got": key}

    def desk(body: Mapping[str, Any]) -> TimeLimited[Mapping[str, Any]]:
        return TimeLimited(work(body["input"]), 0.001, lambda: {"late": body["input"]})

    async with room(hook_callback=desk) as world:
        for key in ("at once", "waits"):
            world.ask("hook_callback", key, input=key)
        with anyio.fail_after(5):
            while len(world.questions):
                await anyio.lowlevel.checkpoint()
        assert world.answers == {"at once": {"got": "at once"}, "waits": {"late": "waits"}}
        assert cancelled == ["waits"]


async def test_the_response_to_a_timeout_may_be_a_refusal() -> None:
    def late() -> Mapping[str, Any]:
        raise ControlError("too late", subtype="hook_callback", code="hook_failed")

    async def endless() -> Mapping[str, Any]:
        await anyio.sleep_forever()
        return {}

    async with room(hook_callback=lambda _: TimeLimited(endless(), 0.001, late)) as world:
        world.ask("hook_callback", "1")
        with anyio.fail_after(5):
            while len(world.questions):
                await anyio.lowlevel.checkpoint()
        assert [(r["error"], r["error_code"]) for r in world.sent] == [("too late", "hook_failed")]


async def test_the_response_of_a_shielded_handler_is_sent_after_its_timeout() -> None:
    async def stubborn() -> Mapping[str, Any]:
        with anyio.CancelScope(shield=True):
            await gate.wait()
        return {"late": False}

    gate = anyio.Event()
    async with room(hook_callback=lambda _: TimeLimited(stubborn(), 0.001, lambda: {"late": True})) as world:
        world.ask("hook_callback", "1")
        await anyio.sleep(0.01)
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert world.answers == {"1": {"late": False}}


async def test_a_withdrawn_question_is_not_late() -> None:
    async def endless() -> Mapping[str, Any]:
        await anyio.sleep_forever()
        return {}

    async with room(hook_callback=lambda _: TimeLimited(endless(), 60, lambda: pytest.fail("nobody asks"))) as world:
        world.ask("hook_callback", "1")
        await anyio.wait_all_tasks_blocked()
        world.withdraw("1")
        await anyio.wait_all_tasks_blocked()
        assert not world.sent
        assert not len(world.questions)
