"""Callbacks that ask: their own session cannot answer before they return, everything else can."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from callback_settings import callback_settings
from mcp.server import MCPServer
from session_cli import CALLBACK_REQUESTS

import pilothouse as ph
from pilothouse import sync
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

TEXT = "a callback cannot wait for a query of its own session"


def calling(kind: str) -> FakeCLI:
    """A CLI that calls a callback during its first turn, and answers one more prompt."""
    fake = FakeCLI()
    fake.expect("user").emit(frames.init()).ask(**CALLBACK_REQUESTS[kind]).emit(frames.result("outer"))
    return fake.text("inner").forever()


class Talk:
    """A session whose callback does `work`, and what that raised."""

    def __init__(self, kind: str, work: Callable[[ph.Session], Awaitable[object]]) -> None:
        self.fake = calling(kind)
        self.errors: list[Exception] = []
        self.work = work
        self.session = ph.session(cli=self.fake.path, **callback_settings(kind, self.call, is_async=True))

    async def call(self) -> None:
        try:
            await self.work(self.session)
        except Exception as error:
            self.errors.append(error)
            raise

    async def run(self) -> str:
        with anyio.fail_after(10):
            async with self.session as session:
                text = (await session.query("outer")).text
                assert (await session.query("after")).text == "inner"
        return text


async def _await_query(session: ph.Session) -> None:
    await session.query("inner")


async def _start_query(session: ph.Session) -> None:
    await session.query("inner").start()


async def _loop_over_query(session: ph.Session) -> None:
    async for _ in session.query("inner"):
        pass


async def _enter_query(session: ph.Session) -> None:
    async with session.query("inner"):
        pass


async def _wait_idle(session: ph.Session) -> None:
    await session.tasks.wait_idle()


async def _change_hooks(session: ph.Session) -> None:
    await session.update(hooks={"Stop": lambda event: None})


@pytest.mark.parametrize("kind", CALLBACK_REQUESTS)
async def test_a_callback_that_awaits_its_own_session_gets_an_error_at_once(kind: str) -> None:
    talk = Talk(kind, _await_query)
    assert await talk.run() == "outer"
    (error,) = talk.errors
    assert isinstance(error, ph.UsageError)
    assert TEXT in str(error)
    assert talk.fake.calls[0].prompts == ["outer", "after"]


@pytest.mark.parametrize("wait", [_start_query, _loop_over_query, _enter_query, _wait_idle, _change_hooks])
async def test_every_way_of_waiting_for_its_own_session_is_refused(
    wait: Callable[[ph.Session], Awaitable[None]],
) -> None:
    talk = Talk("can_use_tool", wait)
    assert await talk.run() == "outer"
    assert [type(error) for error in talk.errors] == [ph.UsageError]


async def test_a_callback_may_ask_elsewhere() -> None:
    other = FakeCLI().text("elsewhere").forever()
    answers: list[str] = []

    async def ask_elsewhere(_: ph.Session) -> None:
        answers.append((await ph.query("go", cli=other.path)).text)
        async with ph.session(cli=other.path) as session:
            answers.append((await session.query("go")).text)

    talk = Talk("tool", ask_elsewhere)
    assert await talk.run() == "outer"
    assert (answers, talk.errors) == (["elsewhere"] * 2, [])


async def test_a_callback_may_start_a_query_that_others_await() -> None:
    made: list[ph.Query] = []

    async def prepare(session: ph.Session) -> None:
        made.append(session.query("inner"))

    talk = Talk("hook", prepare)
    with anyio.fail_after(10):
        async with talk.session as session:
            assert (await session.query("outer")).text == "outer"
            assert (await made[0]).text == "inner"
    assert talk.errors == []


async def test_a_task_that_a_callback_started_may_wait() -> None:
    answers: list[str] = []

    async def ask(session: ph.Session) -> None:
        answers.append((await session.query("inner")).text)

    async def start(session: ph.Session) -> None:
        group.start_soon(ask, session)
        await anyio.wait_all_tasks_blocked()

    talk = Talk("tool", start)
    async with talk.session as session, anyio.create_task_group() as group:
        assert (await session.query("outer")).text == "outer"
    assert (answers, talk.errors) == (["inner"], [])


async def test_a_plain_function_that_returns_a_query_of_its_own_session(caplog: pytest.LogCaptureFixture) -> None:
    fake = calling("can_use_tool")
    with anyio.fail_after(10):
        asking: Any = lambda _: session.query("inner")  # noqa: E731 - a plain function, whose result is awaited
        async with ph.session(cli=fake.path, can_use_tool=asking) as session:
            assert (await session.query("outer")).text == "outer"
    assert TEXT in caplog.text


async def test_a_callback_that_awaits_the_query_it_is_called_by() -> None:
    fake = calling("can_use_tool")
    errors: list[Exception] = []

    async def await_it() -> None:
        try:
            async for _ in query:
                pass
        except ph.UsageError as error:
            errors.append(error)
            raise

    query = ph.query("outer", cli=fake.path, **callback_settings("can_use_tool", await_it, is_async=True))
    async with query:
        with anyio.fail_after(10):
            assert (await query.result()).text == "outer"
    assert len(errors) == 1


@pytest.mark.parametrize("kind", CALLBACK_REQUESTS)
def test_a_blocking_callback_that_waits_for_its_own_session(kind: str) -> None:
    fake = calling(kind)
    errors: list[Exception] = []

    def work() -> None:
        try:
            session.query("inner").result()
        except Exception as error:
            errors.append(error)
            raise

    with sync.session(cli=fake.path, **callback_settings(kind, work, is_async=False)) as session:
        assert session.query("outer").result().text == "outer"
        assert session.query("after").result().text == "inner"
    assert [type(error) for error in errors] == [ph.UsageError]
    assert TEXT in str(errors[0])


def test_a_blocking_callback_may_ask_elsewhere_and_in_other_threads() -> None:
    fake, other = calling("tool"), FakeCLI().text("elsewhere").forever()
    answers: list[str] = []
    threads: list[threading.Thread] = []

    def work() -> None:
        answers.append(sync.query("go", cli=other.path).result().text)
        threads.append(threading.Thread(target=lambda: answers.append(session.query("inner").result().text)))
        threads[0].start()

    with sync.session(cli=fake.path, **callback_settings("tool", work, is_async=False)) as session:
        assert session.query("outer").result().text == "outer"
        threads[0].join()
    assert answers == ["elsewhere", "inner"]


def calling_mounted_server() -> FakeCLI:
    """A CLI that calls the tool `ask` of the mounted server `shop` in its first turn, and answers one more prompt."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "claude-code", "version": "2"}}
    fake = FakeCLI()
    fake.expect("user").emit(frames.init())
    for number, method, params in ((1, "initialize", hello), (2, "tools/call", {"name": "ask", "arguments": {}})):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        fake.ask(subtype="mcp_message", server_name="shop", message=message)
    fake.emit(frames.result("outer"))
    return fake.text("inner").forever()


async def test_a_tool_of_a_mounted_server_that_awaits_its_own_session_gets_an_error_at_once() -> None:
    fake, server, errors = calling_mounted_server(), MCPServer[Any]("shop"), list[Exception]()

    @server.tool()
    async def ask() -> str:
        """Ask."""
        try:
            return (await session.query("inner")).text
        except ph.UsageError as error:
            errors.append(error)
            raise

    with anyio.fail_after(10):
        async with ph.session(cli=fake.path, mcp_servers={"shop": server}) as session:
            assert (await session.query("outer")).text == "outer"
            assert (await session.query("after")).text == "inner"
    assert [TEXT in str(error) for error in errors] == [True]


async def test_a_task_that_a_tool_of_a_mounted_server_started_may_wait() -> None:
    fake, server, answers = calling_mounted_server(), MCPServer[Any]("shop"), list[str]()

    async def wait_for_answer() -> None:
        answers.append((await session.query("inner")).text)

    @server.tool()
    async def ask() -> str:
        """Ask."""
        group.start_soon(wait_for_answer)
        await anyio.wait_all_tasks_blocked()
        return "asked"

    with anyio.fail_after(10):
        async with (
            ph.session(cli=fake.path, mcp_servers={"shop": server}) as session,
            anyio.create_task_group() as group,
        ):
            assert (await session.query("outer")).text == "outer"
    assert answers == ["inner"]


def test_a_plain_tool_of_a_mounted_server_that_waits_for_its_own_session() -> None:
    fake, server, errors = calling_mounted_server(), MCPServer[Any]("shop"), list[Exception]()

    @server.tool()
    def ask() -> str:
        """Ask."""
        try:
            return session.query("inner").result().text
        except ph.UsageError as error:
            errors.append(error)
            raise

    with sync.session(cli=fake.path, mcp_servers={"shop": server}) as session:
        assert session.query("outer").result().text == "outer"
        assert session.query("after").result().text == "inner"
    assert [TEXT in str(error) for error in errors] == [True]
