"""Requests of front ends that come at the same time, twice, or leave, and unusual texts, on a CLI in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from session_cli import Cli, Say, bash_request, hang
from starlette.applications import Starlette

import pilothouse as ph
from pilothouse.errors import CLINotFoundError
from pilothouse_doors.ui import Threads, agui_route, vercel_route
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio
LIMIT = 20.0
HALF = "\ud83d"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the timers of `Threads`


class Call:
    """One request, straight to the application; the client leaves when `leave` is called."""

    def __init__(self, application: Any, path: str, body: dict[str, Any], user: str) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.data = b""
        self.is_done = anyio.Event()
        self._application = application
        self._left = anyio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        headers = [(b"host", b"localhost:8000"), (b"content-type", b"application/json"), (b"x-user", user.encode())]
        self._scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}

    def leave(self) -> None:
        self._left.set()

    async def run(self) -> None:
        with anyio.fail_after(LIMIT):
            await self._application(self._scope, self._receive, self._send)
        self.is_done.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._messages:
            await self._left.wait()
            return {"type": "http.disconnect"}
        return self._messages.pop()

    async def _send(self, message: dict[str, Any]) -> None:
        await anyio.sleep(0)
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", []))
        self.data += message.get("body", b"")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.data.split(b"\n") if line.startswith(b"data: {")]

    def list_calls(self) -> list[str]:
        return [event["toolCallId"] for event in self.events if event["type"] in CALLS]


CALLS = ("TOOL_CALL_START", "tool-input-available")


class FrontEnd:
    """Both routes of one agent, and what the CLI does."""

    def __init__(self, cli: Cli, threads: Threads, tasks: TaskGroup) -> None:
        self.cli, self.threads, self._tasks = cli, threads, tasks
        routes = [vercel_route("/chat", threads), vercel_route("/resumable", threads, resumable=True)]
        self.application = Starlette(routes=[agui_route("/agui", threads), *routes])

    def start(self, path: str, text: str, user: str = "", **more: Any) -> Call:
        message = {"id": "u", "role": "user", "content": text, "parts": [{"type": "text", "text": text}]}
        body = {"id": "c", "threadId": "t", "runId": "r", "messages": [message], **more}
        call = Call(self.application, path, body, user)
        self._tasks.start_soon(call.run)
        return call

    async def ask(self, path: str, text: str, **more: Any) -> Call:
        call = self.start(path, text, **more)
        await call.is_done.wait()
        return call

    def answer(self, path: str, asked: Call) -> Call:
        """Approve what a call has asked."""
        if path == "/agui":
            [interrupt] = asked.events[-1]["outcome"]["interrupts"]
            resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
            return self.start(path, "act", resume=resume)
        [ask] = [event["id"] for event in asked.events if event["type"] == "data-ask"]
        message = {"id": "m", "role": "assistant", "parts": []}
        return self.start(path, "act", messages=[message], answers={ask: {"approved": True}})


@asynccontextmanager
async def serve(cli: Cli, **limits: Any) -> AsyncGenerator[FrontEnd]:
    async with anyio.create_task_group() as tasks:
        threads = Threads(ph.Agent(transport=cli.transport), **limits)
        yield FrontEnd(cli, threads, tasks)
        await threads.aclose()
        assert cli.running == set()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT):
        while not condition():
            await anyio.sleep(0.005)


def make_use(number: int) -> dict[str, Any]:
    return frames.assistant([{"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}}])


@pytest.mark.parametrize("path", ["/agui", "/chat"])
@pytest.mark.parametrize("turns", range(6))
async def test_the_second_of_two_prompts_at_the_same_time_is_refused(path: str, turns: int) -> None:
    cli, goes_on = Cli(), anyio.Event()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await goes_on.wait()
        return "answer"

    cli.acts["act"] = act
    async with serve(cli) as front_end:
        first = front_end.start(path, "act")
        for _ in range(turns):
            await anyio.sleep(0)
        second = await front_end.ask(path, "act")
        goes_on.set()
        await first.is_done.wait()
        assert (first.status, second.status, cli.prompts) == (200, 409, [["act"]])
        assert b"answer" in first.data


@pytest.mark.parametrize("path", ["/agui", "/chat"])
@pytest.mark.parametrize("one_leaves", [True, False])
async def test_an_answer_that_is_sent_twice_is_read_twice(path: str, *, one_leaves: bool) -> None:
    cli, goes_on = Cli(), anyio.Event()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(bash_request("r1"))
        await goes_on.wait()
        for number in range(10):
            await say(make_use(number))
            await anyio.sleep(0.005)
        return "answer"

    cli.acts["act"] = act
    async with serve(cli) as front_end:
        asked = await front_end.ask(path, "act")
        first, second = front_end.answer(path, asked), front_end.answer(path, asked)
        await until(lambda: bool(first.data and second.data))
        if one_leaves:
            second.leave()
            await second.is_done.wait()
        goes_on.set()
        await first.is_done.wait()
        await second.is_done.wait()
        whole = [f"t{number}" for number in range(10)]
        assert first.list_calls() == whole
        assert second.list_calls() == ([] if one_leaves else whole)
        assert b"answer" in first.data


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_first_message_that_is_sent_again_goes_on_in_its_conversation(path: str) -> None:
    """Its answer did not arrive, so the front end has no history; and the child has ended meanwhile."""
    async with serve(Cli(), idle_seconds=0.0) as front_end:
        for count in (1, 2):
            call = await front_end.ask(path, "hi")
            assert (call.status, b"re: hi" in call.data) == (200, True), call.data
            await until(lambda: not front_end.cli.running)
            assert [text for texts in front_end.cli.saved.values() for text in texts] == ["hi"] * count


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_half_of_a_surrogate_pair_is_sent_as_an_escape(path: str) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(make_use(1))
        body = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": f"cut {HALF}"}]}
        await say((json.dumps({"type": "user", "message": body}) + "\n").encode())  # type: ignore[arg-type] - bytes
        return "answer"

    cli.acts["act"] = act
    async with serve(cli) as front_end:
        call = await front_end.ask(path, "act")
        assert (call.status, b"answer" in call.data) == (200, True)
        [found] = [event for event in call.events if event["type"] in ("TOOL_CALL_RESULT", "tool-output-available")]
        assert f"cut {HALF}" in found.values()


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_child_that_cannot_be_started_is_no_fault_of_the_request(path: str) -> None:
    def fail() -> Any:
        raise CLINotFoundError("there is no claude")

    async with anyio.create_task_group() as tasks:
        front_end = FrontEnd(Cli(), Threads(ph.Agent(transport=fail)), tasks)
        call = await front_end.ask(path, "hi")
        assert (call.status, json.loads(call.data)["error"]["code"]) == (502, "start_failed")


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_requests_beyond_the_limit_wait_for_a_child(path: str) -> None:
    cli, goes_on = Cli(), anyio.Event()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await goes_on.wait()
        return "answer"

    cli.acts["act"] = act
    async with serve(cli, max_sessions=2) as front_end:
        calls = [front_end.start(path, "act", id=f"c{number}", threadId=f"t{number}") for number in range(6)]
        await until(lambda: len(cli.running) == 2)
        assert len(front_end.threads._waiting) == 4
        goes_on.set()
        for call in calls:
            await call.is_done.wait()
        assert [(call.status, b"answer" in call.data) for call in calls] == [(200, True)] * 6
        assert len(cli.running) <= 2


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_request_that_waits_too_long_is_told_when_to_try_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse_doors.ui.threads.QUEUE_SECONDS", 0.05)
    cli = Cli()
    cli.acts["hang"] = hang
    async with serve(cli, max_sessions=1) as front_end:
        first = front_end.start(path, "hang")
        await until(lambda: bool(cli.running))
        second = await front_end.ask(path, "hi", id="c2", threadId="t2")
        assert (second.status, second.headers.get(b"retry-after")) == (503, b"5")
        monkeypatch.setattr("pilothouse_doors.ui.threads.QUEUE_SECONDS", LIMIT)
        first.leave()
        await first.is_done.wait()
        assert (await front_end.ask(path, "hi", id="c2", threadId="t2")).status == 200


async def test_a_user_leaves_children_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_doors.ui.threads.QUEUE_SECONDS", 0.2)
    cli = Cli()
    cli.acts["hang"] = hang
    async with serve(cli, max_sessions=4) as front_end:
        owned = [agui_route("/agui", front_end.threads, get_owner=lambda request: request.headers["x-user"])]
        front_end.application = Starlette(routes=owned)
        ann = [front_end.start("/agui", "hang", user="ann", threadId=f"t{number}") for number in range(4)]
        await until(lambda: sorted(call.status for call in ann) == [200, 200, 200, 503])
        bob = await front_end.ask("/agui", "hi", user="bob", threadId="t1")
        assert (bob.status, b"re: hi" in bob.data) == (200, True)
        for call in ann:
            call.leave()


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_message_that_is_sent_again_replaces_the_one_before(path: str) -> None:
    async with serve(Cli()) as front_end:
        for _ in range(2):
            assert (await front_end.ask(path, "hi")).status == 200
        assert list(front_end.cli.saved.values()) == [["hi"]]
        [rewind] = [each for each in front_end.cli.controls if each["subtype"] == "rewind_conversation"]
        assert rewind["target_message_uuid"] == rewind["last_seen_user_message_uuid"]


@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_conversation_that_cannot_go_back_says_so(path: str) -> None:
    cli = Cli()
    cli.refused.add("rewind_conversation")
    async with serve(cli) as front_end:
        await front_end.ask(path, "hi")
        refused = await front_end.ask(path, "hi")
        assert (refused.status, json.loads(refused.data)["error"]["code"]) == (409, "conflict")
        assert list(cli.saved.values()) == [["hi"]]


def test_a_limit_that_allows_no_session_is_refused() -> None:
    with pytest.raises(ph.UsageError, match="max_sessions: expected a number above 0"):
        Threads(ph.Agent(), max_sessions=0)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("path", ["/agui", "/chat", "/resumable"])
async def test_a_client_that_leaves_at_any_time_leaves_a_thread_that_goes_on(path: str) -> None:
    cli = Cli()

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(make_use(1))
        await say(bash_request("r1"))
        return "answer"

    cli.acts["act"] = act
    async with serve(cli) as front_end:
        for turns in range(40):
            call = front_end.start(path, "act")
            for _ in range(turns):
                await anyio.sleep(0)
            call.leave()
            await call.is_done.wait()
            while (again := await front_end.ask(path, "hi")).status == 409:  # the answer goes on until it asks
                await anyio.sleep(0.01)
            assert b"re: hi" in again.data
        [thread] = front_end.threads._threads.values()
        assert (thread.turn is not None and thread.turn.readers, len(cli.children)) == (0, 1)


@pytest.mark.parametrize("anyio_backend", ["trio"])  # on asyncio, a turn that nobody reads goes on
@pytest.mark.parametrize("path", ["/agui", "/chat"])
async def test_a_prompt_that_was_never_begun_with_can_be_sent_again(path: str) -> None:
    cli = Cli()
    async with serve(cli) as front_end:
        cli.hold = lambda frame: cli.queue(0, frame)
        call = front_end.start(path, "act")
        await until(lambda: bool(cli.children) and bool(cli.uuids_queued(0)))
        call.leave()
        await call.is_done.wait()
        cli.hold = None
        again = await front_end.ask(path, "hi")
        assert (again.status, b"re: hi" in again.data) == (200, True)
        assert list(cli.saved.values()) == [["hi"]]
