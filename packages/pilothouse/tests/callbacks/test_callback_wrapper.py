"""`callback_wrapper`: what runs inside it, with which context, in which thread, and what its failures mean."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from callback_settings import callback_settings
from session_cli import CALLBACK_REQUESTS

import pilothouse as ph
from pilothouse import sync
from pilothouse.callbacks import UserCallback, wrap_callbacks
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.tools import prompt, resource
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio
request_id: ContextVar[str] = ContextVar("request id", default="none")
KINDS = {"can_use_tool": ("option", "can_use_tool"), "hook": ("hook", "PreToolUse"), "tool": ("tool", "ask")}
WORDS = {"can_use_tool": '"behavior":"deny"', "hook": '"permissionDecision":"deny"', "tool": '"isError":true'}
"""What the CLI gets if the callback fails."""


class Wrapper:
    """Notes what is called, in which thread, and sets the context."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.threads: list[int] = []
        self.ends: list[str] = []

    def note(self, kind: str, name: str) -> None:
        self.calls.append((kind, name))
        self.threads.append(threading.get_ident())
        request_id.set("42")

    @contextmanager
    def plain(self, kind: str, name: str) -> Generator[None]:
        self.note(kind, name)
        try:
            yield
        except Exception as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("ok")

    @asynccontextmanager
    async def waiting(self, kind: str, name: str) -> AsyncGenerator[None]:
        await anyio.lowlevel.checkpoint()
        with self.plain(kind, name):
            yield


def noting(kind: str, seen: list[Any], *, is_async: bool) -> dict[str, Any]:
    """An option with a callback that notes the context and its thread."""
    return callback_settings(kind, lambda: seen.append((request_id.get(), threading.get_ident())), is_async=is_async)


def calling(kind: str) -> FakeCLI:
    fake = FakeCLI()
    fake.expect("user").emit(frames.init()).ask(**CALLBACK_REQUESTS[kind]).emit(frames.result("done"))
    return fake


def answer_of(fake: FakeCLI) -> str:
    (call,) = fake.calls
    (answer,) = [frame for frame in call.frames if frame["type"] == "control_response"]
    return json.dumps(answer, separators=(",", ":"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
@pytest.mark.parametrize("form", ["plain", "waiting"])
async def test_every_callback_runs_inside_and_sees_the_context(kind: str, is_async: bool, form: str) -> None:
    wrapper, seen, fake = Wrapper(), list[Any](), calling(kind)
    await ph.query(
        "go", cli=fake.path, callback_wrapper=getattr(wrapper, form), **noting(kind, seen, is_async=is_async)
    )
    assert wrapper.calls == [KINDS[kind]]
    assert wrapper.ends == ["ok"]
    ((context, thread),) = seen
    assert context == "42"
    assert (thread == threading.get_ident()) == is_async
    assert wrapper.threads == [threading.get_ident() if form == "waiting" else thread]  # a plain one may block, too
    assert WORDS[kind] not in answer_of(fake)
    assert request_id.get() == "none"


OTHERS: dict[str, dict[str, Any]] = {
    "confirm": CALLBACK_REQUESTS["can_use_tool"],
    "on_question": {
        **CALLBACK_REQUESTS["can_use_tool"],
        "tool_name": "AskUserQuestion",
        "input": {"questions": [{"question": "Which?", "header": "h", "multiSelect": False, "options": []}]},
    },
    "on_plan": {**CALLBACK_REQUESTS["can_use_tool"], "tool_name": "ExitPlanMode", "input": {"plan": "Do it."}},
    "on_elicitation": {"subtype": "elicitation", "mcp_server_name": "s", "message": "Who?", "mode": "form"},
    "on_user_dialog": {"subtype": "request_user_dialog", "dialog_kind": "wizard", "payload": {}},
}
"""What the CLI sends to have the callbacks of the other options called."""


@pytest.mark.parametrize("option", OTHERS)
async def test_callbacks_of_all_options_run_inside(option: str) -> None:
    wrapper, seen = Wrapper(), list[str]()

    def note(*_: Any) -> None:
        seen.append(request_id.get())

    fake = FakeCLI()
    fake.expect("user").emit(frames.init()).ask(**OTHERS[option]).emit(frames.result("done"))
    settings: Any = {option: note, "supported_dialog_kinds": ["wizard"] if option == "on_user_dialog" else None}
    await ph.query("go", cli=fake.path, callback_wrapper=wrapper.plain, **settings)
    assert (wrapper.calls, seen) == ([("option", option)], ["42"])


def refuse(kind: str, name: str) -> Any:
    raise OSError("no database")


@contextmanager
def refuse_inside(kind: str, name: str) -> Generator[None]:
    raise OSError("no database")
    yield


@asynccontextmanager
async def refuse_waiting(kind: str, name: str) -> AsyncGenerator[None]:
    raise OSError("no database")
    yield


@contextmanager
def refuse_afterwards(kind: str, name: str) -> Generator[None]:
    yield
    raise OSError("no database any more")


def exit_program(kind: str, name: str) -> Any:
    raise SystemExit(3)


def give_nothing(kind: str, name: str) -> Any:
    return None


WRONG = [refuse, refuse_inside, refuse_waiting, refuse_afterwards, exit_program, give_nothing]


@pytest.mark.parametrize(("kind", "is_async"), [("can_use_tool", True), ("hook", False), ("tool", True)])
@pytest.mark.parametrize("wrapper", WRONG, ids=lambda wrapper: wrapper.__name__)
async def test_what_raises_in_it_fails_as_the_callback_would(
    kind: str, is_async: bool, wrapper: Callable[[str, str], Any]
) -> None:
    fake = calling(kind)
    result = await ph.query("go", cli=fake.path, callback_wrapper=wrapper, **noting(kind, [], is_async=is_async))
    assert WORDS[kind] in answer_of(fake)
    assert result.text == "done"


@pytest.mark.parametrize("function", ["async", "thread"])
@pytest.mark.parametrize("form", ["plain", "waiting"])
async def test_a_swallowed_error_is_no_answer(function: str, form: str) -> None:
    def fail(event: Any) -> None:
        raise ValueError("broken")

    async def fail_async(event: Any) -> None:
        raise ValueError("broken")

    @asynccontextmanager
    async def swallow(kind: str, name: str) -> AsyncGenerator[None]:
        with suppress(ValueError):
            yield

    fake = calling("hook")
    wrapper: Any = swallow if form == "waiting" else lambda kind, name: suppress(ValueError)
    hooks: Any = {"PreToolUse": fail if function == "thread" else fail_async}
    await ph.query("go", cli=fake.path, callback_wrapper=wrapper, hooks=hooks)
    assert WORDS["hook"] in answer_of(fake)


async def test_an_awaitable_of_a_plain_function_needs_an_async_one() -> None:
    async def decide() -> str:
        return request_id.get()

    wrapper = Wrapper()
    wrap_callbacks(wrapper.waiting)
    assert await UserCallback(lambda: decide(), "test")() == "42"
    wrap_callbacks(wrapper.plain)
    with pytest.raises(UsageError, match="give an async context manager"):
        await UserCallback(lambda: decide(), "test")()
    wrap_callbacks(lambda kind, name: suppress(UsageError))
    with pytest.raises(PilothouseError, match="swallowed the error of test"):
        await UserCallback(lambda: decide(), "test")()


async def test_resources_and_prompts_run_inside() -> None:
    @resource("config://app")
    def read() -> str:
        return request_id.get()

    @prompt()
    def fill() -> str:
        return request_id.get()

    wrapper = Wrapper()
    wrap_callbacks(wrapper.plain)
    assert "42" in str(await read.read("config://app", {}))
    assert "42" in str(await fill.fill({}))
    assert wrapper.calls == [("resource", "config://app"), ("prompt", "fill")]


async def test_a_query_of_a_callback_has_its_own_wrapper() -> None:
    outer, fake, inner = Wrapper(), calling("can_use_tool"), calling("hook")

    async def may(request: ph.PermissionRequest) -> bool:
        await ph.query("inner", cli=inner.path, hooks={"PreToolUse": lambda event: None})
        return True

    await ph.query("go", cli=fake.path, callback_wrapper=outer.waiting, can_use_tool=may)
    assert outer.calls == [("option", "can_use_tool")]


@pytest.mark.parametrize("place", ["enter", "exit"])
async def test_a_wrapper_cannot_wait_for_a_query_of_its_own_session(place: str) -> None:
    fake, errors, sessions = calling("can_use_tool"), list[UsageError](), list[ph.Session]()

    async def ask() -> None:
        try:
            await sessions[0].query("inner")
        except UsageError as error:
            errors.append(error)
            raise

    @asynccontextmanager
    async def around(kind: str, name: str) -> AsyncGenerator[None]:
        if place == "enter":
            await ask()
        yield
        if place == "exit":
            await ask()

    async def may(request: ph.PermissionRequest) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    agent = ph.Agent(cli=fake.path, callback_wrapper=around, can_use_tool=may)
    with anyio.fail_after(20):
        async with agent.session() as session:
            sessions.append(session)
            assert (await session.query("go")).text == "done"
    assert "a callback cannot wait" in str(errors[0])
    assert WORDS["can_use_tool"] in answer_of(fake)


async def test_new_handlers_of_a_session_keep_it() -> None:
    wrapper, fake, seen = Wrapper(), calling("can_use_tool"), list[str]()

    def may(request: ph.PermissionRequest) -> bool:
        seen.append(request_id.get())
        return True

    agent = ph.Agent(cli=fake.path, callback_wrapper=wrapper.plain, can_use_tool=lambda request: False)
    async with agent.session() as session:
        await session.update(can_use_tool=may)
        await session.query("go")
    assert (wrapper.calls, seen) == ([("option", "can_use_tool")], ["42"])


def test_the_blocking_twin_enters_it_in_the_thread_of_the_callback() -> None:
    wrapper, seen, fake = Wrapper(), list[Any](), calling("can_use_tool")
    query = sync.query(
        "go", cli=fake.path, callback_wrapper=wrapper.plain, **noting("can_use_tool", seen, is_async=False)
    )
    query.result()
    ((context, thread),) = seen
    assert (context, wrapper.threads) == ("42", [thread])
    assert thread != threading.get_ident()


async def test_a_wrapper_that_is_a_coroutine_function_is_refused() -> None:
    async def wait(kind: str, name: str) -> None: ...

    wrapper: Any = wait

    with pytest.raises(UsageError, match="callback_wrapper"):
        await ph.query("go", transport=mock_transport("x"), callback_wrapper=wrapper)
