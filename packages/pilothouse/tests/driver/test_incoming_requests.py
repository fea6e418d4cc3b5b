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
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


class RequestHarness:
    """The questions of a connection, whose bytes come from the test. As with a reader, one task answers, and another
    takes its place when it has to wait."""

    def __init__(self, handlers: Mapping[str, RequestHandler], group: Any) -> None:
        self.connection = Connection()
        self.sent: list[dict[str, Any]] = []
        self.requests = IncomingRequests(self.connection, handlers, lambda _: False, self.send)
        self.group = group

    async def answer(self) -> None:
        reader = ReaderTask()
        with reader.scope:
            rest = self.requests.handle_new(reader)
            if rest is not None:
                self.group.start_soon(self.answer)
                await rest
        await self.requests.finish(reader)

    async def send(self, data: bytes) -> None:
        if data:
            self.sent.append(json.loads(data)["response"])

    def receive(self, *received: dict[str, Any]) -> None:
        self.connection.feed(frames.lines(received))
        while self.connection.events:
            event = self.connection.events.popleft()
            if isinstance(event, RequestReceived):
                self.requests.accept(event)
            elif isinstance(event, RequestCancelled):
                self.requests.cancel(event.request_id)
        self.group.start_soon(self.answer)

    def request(self, subtype: str, key: str, **body: Any) -> None:
        self.receive(frames.control_request(subtype, request_id=key, **body))

    def withdraw(self, key: str) -> None:
        self.receive({"type": "control_cancel_request", "request_id": key})

    @property
    def answers(self) -> dict[str, Any]:
        assert len({r["request_id"] for r in self.sent}) == len(self.sent)  # each once
        return {r["request_id"]: r.get("response", r.get("error")) for r in self.sent}


@asynccontextmanager
async def request_harness(**handlers: RequestHandler) -> AsyncGenerator[RequestHarness]:
    async with anyio.create_task_group() as group:
        yield RequestHarness(handlers, group)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


@pytest.mark.requirement("R11", "G27", "G49")
async def test_they_are_answered_as_they_are_ready_not_as_they_came() -> None:
    gates = {"slow": anyio.Event(), "fast": anyio.Event()}

    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        await gates[body["input"]].wait()
        return {"got": body["input"]}

    async with request_harness(can_use_tool=handler) as harness:
        harness.request("can_use_tool", "1", input="slow")
        harness.request("can_use_tool", "2", input="fast")
        await anyio.wait_all_tasks_blocked()
        assert len(harness.requests) == 2
        for name in ("fast", "slow"):
            gates[name].set()
            await anyio.wait_all_tasks_blocked()
        assert [r["request_id"] for r in harness.sent] == ["2", "1"]
        assert harness.answers == {"1": {"got": "slow"}, "2": {"got": "fast"}}
        assert len(harness.requests) == 0


async def test_an_unknown_request_is_refused_at_once() -> None:
    async with request_harness() as harness:
        harness.request("paint", "1")
        await anyio.wait_all_tasks_blocked()
        assert harness.sent == [
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

    async with request_harness(breaks=breaks, refuses=refuses, cannot=cannot) as harness:
        with caplog.at_level(logging.ERROR, "pilothouse.driver"):
            for key in ("breaks", "refuses", "cannot"):
                harness.request(key, key)
            await anyio.wait_all_tasks_blocked()
        assert {r["request_id"]: r.get("error_code") for r in harness.sent}["refuses"] == "not_today"
        assert harness.answers == {
            "breaks": "the host failed to handle breaks",
            "refuses": "not today",
            "cannot": "the host has no valid answer to cannot",
        }
        assert "1234" not in json.dumps(harness.sent)
    assert "the password is 1234" in caplog.text  # with its traceback, for us


async def test_a_question_that_is_withdrawn_is_cancelled_and_not_answered() -> None:
    seen: list[str] = []

    async def handler(_: Mapping[str, Any]) -> Mapping[str, Any]:
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
    async with request_harness(hook_callback=handler, stubborn=stubborn) as harness:
        harness.request("hook_callback", "1")
        harness.request("stubborn", "2")
        await anyio.wait_all_tasks_blocked()
        for key in ("1", "2", "1", "unknown"):
            harness.withdraw(key)
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert len(seen) == 1
        assert "Cancel" in seen[0]
        assert harness.sent == []
        assert len(harness.requests) == 0


async def test_withdrawn_before_its_handler_started() -> None:
    asked: list[object] = []

    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body)
        return {}

    async with request_harness(hook_callback=handler) as harness:
        harness.receive(
            frames.control_request("hook_callback", request_id="1"),
            {"type": "control_cancel_request", "request_id": "1"},
            frames.control_request("hook_callback", request_id="2"),
            frames.control_request("hook_callback", request_id="2"),  # once more is once too often
        )
        await anyio.wait_all_tasks_blocked()
        assert len(asked) == 1
        assert list(harness.answers) == ["2"]


async def test_many_at_once() -> None:
    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"number": body["number"]}

    async with request_harness(hook_callback=handler) as harness:
        for number in range(500):
            harness.request("hook_callback", f"k{number}", number=number)
        for number in range(0, 500, 2):
            harness.withdraw(f"k{number}")
        await anyio.wait_all_tasks_blocked()
        assert harness.answers == {f"k{n}": {"number": n} for n in range(1, 500, 2)}


async def test_an_answer_that_waits_for_nothing_is_sent_before_anything_else_runs() -> None:
    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"got": body["input"]}

    async with request_harness(can_use_tool=handler) as harness:
        harness.request("can_use_tool", "1", input="a")
        harness.request("can_use_tool", "2", input="b")
        with (reader := ReaderTask()).scope:
            assert harness.requests.handle_new(reader) is None, "nothing had to wait"
        assert harness.answers == {"1": {"got": "a"}, "2": {"got": "b"}}
        assert not len(harness.requests)


@pytest.mark.parametrize("waits", [False, True])
async def test_what_one_answer_sets_in_its_context_is_not_there_for_the_next(waits: bool) -> None:
    seen: list[str] = []

    async def handler(body: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(mood.get())
        mood.set(body["input"])
        if waits:
            await anyio.lowlevel.checkpoint()
        return {"mood": mood.get()}

    mood: ContextVar[str] = ContextVar("mood", default="calm")
    async with request_harness(can_use_tool=handler) as harness:
        for key in ("1", "2", "3"):
            harness.request("can_use_tool", key, input=key)
        await anyio.wait_all_tasks_blocked()
        assert seen == ["calm", "calm", "calm"]
        assert harness.answers == {key: {"mood": key} for key in ("1", "2", "3")}


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

    def handler(body: Mapping[str, Any]) -> TimeLimited[Mapping[str, Any]]:
        return TimeLimited(work(body["input"]), 0.001, lambda: {"late": body["input"]})

    async with request_harness(hook_callback=handler) as harness:
        for key in ("at once", "waits"):
            harness.request("hook_callback", key, input=key)
        with anyio.fail_after(5):
            while len(harness.requests):
                await anyio.lowlevel.checkpoint()
        assert harness.answers == {"at once": {"got": "at once"}, "waits": {"late": "waits"}}
        assert cancelled == ["waits"]


async def test_the_response_to_a_timeout_may_be_a_refusal() -> None:
    def late() -> Mapping[str, Any]:
        raise ControlError("too late", subtype="hook_callback", code="hook_failed")

    async def endless() -> Mapping[str, Any]:
        await anyio.sleep_forever()
        return {}

    async with request_harness(hook_callback=lambda _: TimeLimited(endless(), 0.001, late)) as harness:
        harness.request("hook_callback", "1")
        with anyio.fail_after(5):
            while len(harness.requests):
                await anyio.lowlevel.checkpoint()
        assert [(r["error"], r["error_code"]) for r in harness.sent] == [("too late", "hook_failed")]


async def test_the_response_of_a_shielded_handler_is_sent_after_its_timeout() -> None:
    async def stubborn() -> Mapping[str, Any]:
        with anyio.CancelScope(shield=True):
            await gate.wait()
        return {"late": False}

    gate = anyio.Event()
    async with request_harness(
        hook_callback=lambda _: TimeLimited(stubborn(), 0.001, lambda: {"late": True})
    ) as harness:
        harness.request("hook_callback", "1")
        await anyio.sleep(0.01)
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert harness.answers == {"1": {"late": False}}


async def test_a_withdrawn_question_is_not_late() -> None:
    async def endless() -> Mapping[str, Any]:
        await anyio.sleep_forever()
        return {}

    async with request_harness(
        hook_callback=lambda _: TimeLimited(endless(), 60, lambda: pytest.fail("nobody asks"))
    ) as harness:
        harness.request("hook_callback", "1")
        await anyio.wait_all_tasks_blocked()
        harness.withdraw("1")
        await anyio.wait_all_tasks_blocked()
        assert not harness.sent
        assert not len(harness.requests)
