"""How one call of a tool runs: where, how long, how many at once, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pilothouse.tools import (
    ToolContext,
    ToolError,
    ToolExecutionError,
    ToolInputError,
    ToolTimeout,
    tool,
)

pytestmark = pytest.mark.anyio

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def text_of(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


@pytest.mark.requirement("R22")
async def test_sync_functions_run_in_worker_threads_and_see_the_context_variables() -> None:
    here = threading.get_ident()
    state: list[str] = []

    @tool
    def in_thread() -> str:
        assert threading.get_ident() != here
        state.append(WHO.get())
        return "done"

    @tool
    async def on_loop() -> str:
        assert threading.get_ident() == here
        state.append(WHO.get())
        return "done"

    token = WHO.set("me")
    try:
        assert text_of(await in_thread.invoke({})) == "done"
        assert text_of(await on_loop.invoke({})) == "done"
    finally:
        WHO.reset(token)
    assert state == ["me", "me"]


async def test_a_sync_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later() -> str:
        return "late"

    assert text_of(await tool(name="f")(lambda: later()).invoke({})) == "late"


@pytest.mark.requirement("S38", "S39")
@pytest.mark.parametrize("sync", [True, False])
async def test_exceptions_are_error_results_without_a_traceback(sync: bool) -> None:
    error = ValueError("no such city")

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    made = tool(fail if sync else fail_later)
    result = await made.run({})
    assert result == {"content": [{"type": "text", "text": "ValueError: no such city"}], "isError": True}
    with pytest.raises(ToolExecutionError) as caught:
        await made.invoke({})
    assert caught.value.__cause__ is error


async def test_a_tool_error_reaches_the_model_unchanged() -> None:
    @tool(error_text="not for this one")
    async def f() -> None:
        raise ToolError("ask for a city in Norway")

    assert text_of(await f.run({})) == "ask for a city in Norway"
    with pytest.raises(ToolError) as caught:
        await f.invoke({})
    assert type(caught.value) is ToolError


@pytest.mark.parametrize(
    ("error_text", "reported"),
    [
        (None, "KeyError: 'secret'"),
        ("it failed", "it failed"),
        (lambda error: f"<{type(error).__name__}>", "<KeyError>"),
        (lambda error: 1 / 0, "f failed: KeyError"),
    ],
)
async def test_the_text_of_errors_is_configurable(error_text: Any, reported: str) -> None:
    @tool(name="f", error_text=error_text)
    async def f() -> None:
        raise KeyError("secret")

    assert text_of(await f.run({})) == reported


@pytest.mark.parametrize(
    ("error", "reported"), [(SystemExit(2), "SystemExit: 2"), (pytest.fail.Exception("x"), "Failed: x")]
)
async def test_an_exit_inside_a_tool_ends_the_call_and_nothing_else(error: BaseException, reported: str) -> None:
    @tool
    def f() -> None:
        raise error

    assert text_of(await f.run({})) == reported


async def test_a_cancellation_that_comes_from_inside_is_an_error_of_the_tool() -> None:
    @tool
    async def f() -> None:
        raise asyncio.CancelledError

    assert "cancelled from inside" in text_of(await f.run({}))


@pytest.mark.parametrize("sync", [True, False])
async def test_a_timeout_ends_the_call_and_cancels_the_function(sync: bool) -> None:
    release = threading.Event()
    contexts: list[ToolContext] = []

    def wait_in_thread(context: ToolContext) -> None:
        contexts.append(context)
        release.wait(10)

    async def wait_on_loop(context: ToolContext) -> None:
        contexts.append(context)
        await anyio.sleep_forever()

    made = tool(name="slow", timeout=0.5)(wait_in_thread if sync else wait_on_loop)
    try:
        with anyio.fail_after(5):
            with pytest.raises(ToolTimeout, match=r"slow did not answer within 0\.5 s") as caught:
                await made.invoke({})
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.seconds == 0.5
            assert contexts[0].cancelled
            assert (await made.run({}))["isError"] is True
    finally:
        release.set()


async def test_a_timeout_error_of_the_function_is_its_own() -> None:
    @tool(timeout=5)
    async def f() -> None:
        raise TimeoutError("database")

    assert text_of(await f.run({})) == "TimeoutError: database"


async def test_the_cap_lets_only_so_many_calls_run_and_the_others_wait() -> None:
    running = 0
    most = 0
    started = anyio.Event()
    release = anyio.Event()

    @tool(max_concurrency=2)
    async def f() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            started.set()
        await release.wait()
        running -= 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(f.invoke, {})
            await started.wait()
            for _ in range(10):
                await checkpoint()
            assert running == 2
            release.set()
    assert most == 2


def test_a_tool_with_a_cap_outlives_its_event_loop() -> None:
    @tool(max_concurrency=1)
    async def f() -> str:
        await checkpoint()
        return "ok"

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(f.invoke, {})
            tasks.start_soon(f.invoke, {})

    anyio.run(both)
    anyio.run(both, backend="trio")
    anyio.run(both)


async def test_cancelling_the_call_cancels_the_function_and_frees_its_place() -> None:
    started = anyio.Event()
    contexts: list[ToolContext] = []

    @tool(max_concurrency=1)
    async def f(context: ToolContext, wait: bool = True) -> str:
        contexts.append(context)
        if wait:
            started.set()
            await anyio.sleep_forever()
        return "free"

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(f.invoke, {})
            await started.wait()
            assert not contexts[0].cancelled
            tasks.cancel_scope.cancel()
        assert contexts[0].cancelled
        assert text_of(await f.invoke({"wait": False})) == "free"


async def test_the_context_describes_the_call() -> None:
    seen: list[ToolContext] = []
    output: list[tuple[float, float | None, str | None]] = []
    session = object()

    @tool
    def in_thread(context: ToolContext) -> None:
        seen.append(context)
        context.progress(1, 2, "half")

    @tool
    async def on_loop(a: int, context: ToolContext) -> None:
        seen.append(context)
        context.progress(a)

    def report(progress: float, total: float | None, message: str | None) -> None:
        output.append((progress, total, message))

    context = ToolContext(tool_name="t", server_name="s", tool_use_id="toolu_1", session=session, report=report)
    await in_thread.invoke({}, context)
    await on_loop.invoke({"a": 2}, context)
    assert seen == [context, context]
    assert (context.tool_use_id, context.session) == ("toolu_1", session)
    assert output == [(1, 2, "half"), (2, None, None)]
    context.mark_cancelled()
    await on_loop.invoke({"a": 3}, context)
    assert len(output) == 2

    await on_loop.invoke({"a": 1})
    assert seen[-1].tool_name == "on_loop"
    assert seen[-1].tool_use_id is None


async def test_a_tool_that_calls_another_passes_its_error_on() -> None:
    @tool
    async def inner(a: int) -> int:
        return a

    @tool
    async def outer() -> Any:
        return await inner.invoke({"a": "x"})

    with pytest.raises(ToolInputError, match="`a`"):
        await outer.invoke({})
