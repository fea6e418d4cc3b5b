"""Further tries of pilothouse's own: what watchers are told, and what is drawn and counted."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from otel_memory import ROOT, Record
from recording_instrumentation import Notebook, Notes

import pilothouse as ph
from pilothouse.client import retry as retrying
from pilothouse.instrumentation import QueryStart, ScheduledRetry
from pilothouse.options import RetryPolicy
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

SOON = RetryPolicy(attempts=2, first_delay=0.01, jitter=0.0)


class Api:
    """Turns that fail as `turns` say, the rest are answered; for any number of children."""

    def __init__(self, *turns: list[dict[str, Any]]) -> None:
        self.turns = list(turns)
        self.prompts: list[str] = []

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self._play)

    async def _play(self, peer: MemoryPeer) -> None:
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
                continue
            self.prompts.append(str(frame["message"]["content"]))
            answer = self.turns.pop(0) if self.turns else [frames.assistant("done"), frames.result("done")]
            for frame in (frames.init(), *answer):
                await peer.write(frame)


def failing(status: int = 529, words: str = "API Error: Overloaded") -> dict[str, Any]:
    return frames.result(words, is_error=True, api_error_status=status, terminal_reason="api_error")


def limited(resets_at: float) -> list[dict[str, Any]]:
    info = {"status": "rejected", "resetsAt": resets_at, "rateLimitType": "five_hour"}
    return [{"type": "rate_limit_event", "rate_limit_info": info}, failing(429, "You've hit your limit")]


class Retried(Notes):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.retries: list[ScheduledRetry] = []

    def on_retry_scheduled(self, retry: ScheduledRetry) -> None:
        self.retries.append(retry)
        self.log.append(retry.action)


class Book(Notebook):
    def query_started(self, start: QueryStart) -> Notes:
        notes = Retried(start, {})
        self.queries.append(notes)
        return notes

    @property
    def retries(self) -> list[ScheduledRetry]:
        return [retry for notes in self.queries if isinstance(notes, Retried) for retry in notes.retries]


@pytest.fixture(params=["alone", "session"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def ask(kind: str, api: Api, **settings: Any) -> ph.QueryResult:
    agent = ph.Agent(transport=api.transport, **settings)
    with anyio.fail_after(20):
        if kind == "alone":
            return await agent.query("the question")
        async with agent.session() as session:
            return await session.query("the question")


@pytest.mark.requirement("E70")
async def test_what_is_sent_again_and_what_goes_on(kind: str) -> None:
    book = Book()
    api = Api([failing()], [frames.assistant("I have begun"), failing(500, "API Error: broken")])
    result = await ask(kind, api, retry=SOON, instrumentation=book)
    assert (result.text, len(api.prompts)) == ("done", 3)
    first, second = book.retries
    assert (first.action, first.reason, first.attempt) == ("resend", "overloaded", 1)
    assert isinstance(first.error, ph.OverloadedError)
    assert 0 <= first.delay <= 0.01
    assert (second.action, second.reason, second.attempt) == ("resume", "server", 2)
    log = [word for word in book.only.log if word in ("result", "resend", "resume", "end")]
    assert log == ["result", "resend", "result", "resume", "result", "end"]


@pytest.mark.requirement("E70")
async def test_a_limit_that_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "AFTER_RESET_SECONDS", 0.01)
    book = Book()
    result = await ask(kind, Api(limited(time.time() + 0.1)), on_usage_limit="wait", instrumentation=book)
    assert result.text == "done"
    [wait] = book.retries
    assert (wait.action, wait.reason, wait.attempt) == ("resend", "usage_limit", None)
    assert isinstance(wait.error, ph.QuotaError)


async def test_what_is_held_back_because_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "AFTER_RESET_SECONDS", 0.01)
    book, api = Book(), Api(limited(time.time() + 3.0))
    agent = ph.Agent(transport=api.transport, on_usage_limit="wait", instrumentation=book)
    with anyio.fail_after(20):
        async with agent.query("first") as first:
            async for message in first:
                if message.type == "system" and getattr(message, "subtype", "") == "limit_wait":
                    break
            assert (await agent.query("second")).text == "done"
            assert (await first.result()).text == "done"
    assert api.prompts.count("second") == 1
    met, held = book.retries
    assert (met.action, held.action) == ("resend", "hold")
    assert (held.reason, held.error, held.attempt) == ("usage_limit", None, None)
    assert held.delay <= met.delay


async def test_it_is_an_event_of_the_span_and_counted(record: Record, kind: str) -> None:
    seen = record()
    api = Api([frames.api_retry(), failing()], [frames.assistant("secret"), failing(500, "API Error: broken")])
    await ask(kind, api, retry=SOON, instrumentation=seen.otel)
    by_cli, first, second = seen.span(ROOT).events
    assert by_cli.name == "pilothouse.retry"
    found = dict(first.attributes or {})
    assert 0 <= found.pop("pilothouse.retry.delay_ms") <= 10  # type: ignore[operator]
    assert (first.name, found) == (
        "pilothouse.retry_scheduled",
        {
            "pilothouse.retry.action": "resend",
            "pilothouse.retry.reason": "overloaded",
            "pilothouse.retry.attempt": 1,
            "http.response.status_code": 529,
            "error.type": "OverloadedError",
        },
    )
    assert (second.attributes or {})["pilothouse.retry.action"] == "resume"
    counted = {
        (point["pilothouse.retry.by"], point.get("pilothouse.retry.action")): value
        for point, value in seen.metrics()["pilothouse.retries"]
    }
    assert counted == {("cli", None): 1, ("pilothouse", "resend"): 1, ("pilothouse", "resume"): 1}
    assert "secret" not in "".join(span.to_json() for span in seen.spans)
