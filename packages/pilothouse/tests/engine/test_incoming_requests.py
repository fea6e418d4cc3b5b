"""Requests of the CLI: many at a time, answered once each, cancelled without a trace, never fatal."""

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

from pilothouse.engine.incoming_requests import IncomingRequests, RequestHandler
from pilothouse.errors import ControlError
from pilothouse.protocol import Connection, RequestCancelled, RequestReceived
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio


class RequestHarness:
    """The requests of a connection, whose bytes come from the test."""

    def __init__(self, handlers: Mapping[str, RequestHandler], group: Any) -> None:
        self.connection = Connection()
        self.sent: list[dict[str, Any]] = []
        self.requests = IncomingRequests(self.connection, handlers, self.send, group.start_soon)

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
        assert harness.requests.has_open
        for name in ("fast", "slow"):
            gates[name].set()
            await anyio.wait_all_tasks_blocked()
        assert [r["request_id"] for r in harness.sent] == ["2", "1"]
        assert harness.answers == {"1": {"got": "slow"}, "2": {"got": "fast"}}
        assert not harness.requests.has_open


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
        with caplog.at_level(logging.ERROR, "pilothouse.engine"):
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
        assert not harness.requests.has_open


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
