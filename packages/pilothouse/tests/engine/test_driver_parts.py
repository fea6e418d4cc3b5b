"""The small parts of the engine: background tasks, detached tasks, error texts."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pilothouse.engine import make_loop_caller, spawn
from pilothouse.engine.failures import missing_result_error
from pilothouse.engine.limits import QueryLimits, TimeLimits, idle_timeout_error
from pilothouse.engine.pending_work import RunningTasks
from pilothouse.errors import CLIExitedError
from pilothouse.messages import Message, from_dict
from pilothouse.transports import ExitInfo
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio

MESSAGE = from_dict(frames.assistant("x"))
flavour: ContextVar[str] = ContextVar("flavour", default="plain")


def system(subtype: str, **fields: Any) -> Message:
    return from_dict({"type": "system", "subtype": subtype, "session_id": frames.SESSION_ID, **fields})


# background tasks


def test_background_tasks_are_counted() -> None:
    tasks = RunningTasks()
    assert not tasks
    tasks.track(system("task_started", task_id="a", description="x"))
    tasks.track(system("task_started", task_id="b", description="x"))
    tasks.track(system("task_progress", task_id="a", description="x"))
    assert tasks
    tasks.track(system("task_notification", task_id="a", status="completed", summary="", output_file=""))
    assert tasks
    for status in ("running", {"of": "no kind that we know"}, None):
        tasks.track(system("task_updated", task_id="b", patch={"status": status}))
        assert tasks
    tasks.track(system("task_updated", task_id="b", patch={"status": "killed"}))
    assert not tasks
    tasks.track(system("task_notification", task_id="never seen", status="completed", summary="", output_file=""))
    assert not tasks


def test_the_list_of_the_cli_is_the_truth() -> None:
    tasks = RunningTasks()
    tasks.track(system("task_started", task_id="a", description="x"))
    tasks.track(system("background_tasks_changed", tasks=[]))
    assert not tasks
    tasks.track(from_dict(frames.init()))
    tasks.track(system("task_started"))  # without an id it cannot be waited for
    assert not tasks


# detached tasks and calls into the loop


async def test_a_spawned_task_outlives_its_scope_and_keeps_the_context() -> None:
    seen: list[str] = []
    release, done = anyio.Event(), anyio.Event()

    async def run() -> None:
        await release.wait()
        seen.append(flavour.get())
        done.set()

    flavour.set("of the caller")
    async with anyio.create_task_group() as group:
        spawn(run, "test")
        group.cancel_scope.cancel()
    flavour.set("changed later")
    gc.collect()
    release.set()
    with anyio.fail_after(20):
        await done.wait()
    assert seen == ["of the caller"]


def test_the_end_of_the_loop_cancels_spawned_tasks(anyio_backend: str) -> None:
    seen: list[str] = []

    async def run() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            raise

    async def main() -> None:
        spawn(run, "test")
        await anyio.lowlevel.checkpoint()

    anyio.run(main, backend=anyio_backend)
    assert seen == ["cancelled"]


async def test_a_call_from_another_thread_runs_on_the_loop() -> None:
    called = anyio.Event()
    threads: list[int] = []
    call = make_loop_caller()

    def callback() -> None:
        threads.append(threading.get_ident())
        called.set()

    thread = threading.Thread(target=call, args=(callback,))
    thread.start()
    with anyio.fail_after(20):
        await called.wait()
    thread.join()
    assert threads == [threading.get_ident()]


def test_a_call_into_a_loop_that_is_gone_does_nothing(anyio_backend: str) -> None:
    calls: list[Any] = []

    async def main() -> None:
        calls.append(make_loop_caller())

    anyio.run(main, backend=anyio_backend)
    calls[0](lambda: pytest.fail("the loop is gone"))


def test_a_loop_of_asyncio_is_not_taken_for_trio_because_trio_is_imported() -> None:
    import trio

    async def main() -> bool:
        done = asyncio.Event()

        async def run() -> None:
            done.set()

        spawn(run, "test")
        await asyncio.wait_for(done.wait(), 1)
        return trio.lowlevel.in_trio_task()

    assert asyncio.run(main()) is False


# the words of errors


def words(ending: ExitInfo, noise: str = "") -> str:
    return str(missing_result_error(ending, noise, None))


@pytest.mark.requirement("E68", "G41")
def test_the_exit_of_the_child_is_reported() -> None:
    error = missing_result_error(ExitInfo(exit_code=3, stderr="one\n\ntwo\n"), "", None)
    assert isinstance(error, CLIExitedError)
    assert (error.exit_code, error.signal, error.stderr) == (3, None, "one\n\ntwo\n")
    assert (
        str(error)
        == "the CLI exited with code 3 before the answer was complete; its standard error ends with:\n  one\n  two"
    )
    killed = missing_result_error(ExitInfo(signal="SIGKILL", detail="out of memory"), "", None)
    assert isinstance(killed, CLIExitedError)
    assert (killed.exit_code, killed.signal) == (None, "SIGKILL")
    assert str(killed) == "the CLI was ended by SIGKILL before the answer was complete; out of memory"
    assert words(ExitInfo()).startswith("the CLI closed its output before")


def test_only_the_end_of_standard_error_is_in_the_message() -> None:
    stderr = "".join(f"line {n}\n" for n in range(1000))
    text = words(ExitInfo(exit_code=1, stderr=stderr))
    assert "line 999" in text
    assert "line 994" not in text


def test_noise_is_shown_when_standard_error_is_silent() -> None:
    assert "Segmentation fault" in words(ExitInfo(exit_code=1), "Segmentation fault")
    assert "Segmentation" not in words(ExitInfo(exit_code=1, stderr="real reason"), "Segmentation fault")


@pytest.mark.requirement("G46")
def test_timeouts_name_their_option() -> None:
    error = TimeLimits(QueryLimits(2.5, None, 60.0, 1000), "the child was ended").make_error()
    assert (error.seconds, error.kind) == (2.5, "timeout")
    assert "2.5 s" in str(error)
    silence = idle_timeout_error(0.2, has_received=True)
    assert (silence.seconds, silence.kind) == (0.2, "idle_timeout")
    assert "since its last message" in str(silence)
    assert "before it began to answer" in str(idle_timeout_error(0.2, has_received=False))
