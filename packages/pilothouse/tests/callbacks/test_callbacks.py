"""Functions of users: sync and async, in which thread, with which context, and what a cancellation means."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import pytest

from pilothouse.callbacks import MAX_THREADS, UserCallback
from pilothouse.errors import PilothouseError, UsageError

pytestmark = pytest.mark.anyio
place: ContextVar[str] = ContextVar("place", default="nowhere")


class Asynchronous:
    async def __call__(self, value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    async def method(self, value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    def sync(self, value: int) -> tuple[int, int]:
        return value, threading.get_ident()


async def plain(value: int) -> tuple[int, int]:
    return value, threading.get_ident()


@pytest.mark.requirement("R11")
@pytest.mark.parametrize(
    ("function", "on_loop"),
    [
        (plain, True),
        (partial(plain), True),
        (Asynchronous(), True),
        (Asynchronous().method, True),
        (Asynchronous().sync, False),
        (lambda value: (value, threading.get_ident()), False),
    ],
)
async def test_where_a_function_runs(function: Any, on_loop: bool) -> None:
    value, thread = await UserCallback(function, "test", "value")(5)
    assert value == 5
    assert (thread == threading.get_ident()) == on_loop


async def test_what_a_plain_function_returns_is_awaited() -> None:
    value, thread = await UserCallback(lambda value: plain(value), "test", "value")(6)
    assert (value, thread) == (6, threading.get_ident())


async def test_both_kinds_see_the_context_of_the_caller() -> None:
    place.set("here")

    async def asynchronous() -> str:
        return place.get()

    assert await UserCallback(asynchronous, "test")() == "here"
    assert await UserCallback(lambda: place.get(), "test")() == "here"


async def test_errors_come_through() -> None:
    def fails() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await UserCallback(fails, "test")()


@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("x")])
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_no_exception_is_a_failure_too(error: BaseException, is_async: bool) -> None:
    """`sys.exit()` in a callback would end the event loop, in blocking code with all sessions of the process."""

    def fails() -> None:
        raise error

    async def fails_on_the_loop() -> None:
        raise error

    with pytest.raises(PilothouseError, match=f"test raised {type(error).__name__}") as caught:
        await UserCallback(fails_on_the_loop if is_async else fails, "test")()
    assert caught.value.__cause__ is error


async def test_a_prompt_in_a_thread_that_reads_ctrl_c_itself_fails() -> None:
    def fails() -> None:
        raise KeyboardInterrupt

    with pytest.raises(PilothouseError, match="KeyboardInterrupt"):
        await UserCallback(fails, "test")()


async def test_more_functions_may_wait_than_the_loop_has_threads_by_default() -> None:
    together = threading.Barrier(60)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(UserCallback(lambda: together.wait(9), "test"))
    assert MAX_THREADS > 60


async def test_a_cancelled_call_is_cancelled_and_its_thread_forgotten() -> None:
    release = threading.Event()
    with anyio.move_on_after(0.05) as scope:
        await UserCallback(release.wait, "test")()
    release.set()
    assert scope.cancelled_caught
    with anyio.move_on_after(0.05) as scope:
        await UserCallback(anyio.sleep_forever, "test")()
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_foreign_cancellation_is_a_failure() -> None:
    import asyncio

    async def waits() -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    with pytest.raises(PilothouseError, match="test: something that it awaits was cancelled"):
        await UserCallback(waits, "test")()
    task = asyncio.ensure_future(UserCallback(asyncio.sleep, "test", "delay")(60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def two(a: int, b: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (5, "can_use_tool: expected a function, got int"),
        (two, r"can_use_tool: two\(a.*cannot be called with 1 argument \(request\)"),
        (lambda: None, r"cannot be called with 1 argument \(request\)"),
    ],
)
def test_a_wrong_signature_is_an_error_at_registration(function: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        UserCallback(function, "can_use_tool", "request")


@pytest.mark.parametrize("function", [print, two, lambda *args: args, lambda a, b=1, *, c=2: a])
def test_signatures_that_fit(function: Any) -> None:
    UserCallback(function, "test", *(("a", "b") if function is two else ("a",)))
