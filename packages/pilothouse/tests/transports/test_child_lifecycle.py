"""Nothing is left behind: no process, no descriptor, no file, whatever happens to the host or to the task."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from counted_waits import Counted
from leak_checks import Left
from msgspec.structs import replace
from process_checks import DEADLINE, eventually, find_processes, is_dead, linux_only, process_state, until
from shell_children import first_line, sh

from pilothouse.options import Invocation, PrivateFile
from pilothouse.transports.cli import TERM_GRACE_SECONDS, CliTransport
from pilothouse.transports.watchdog import watchdog

pytestmark = pytest.mark.anyio

SOON = 4.0  # seconds on any machine: less than the grace of a SIGTERM, and than the 600 for which these children sleep


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Left(tmp_path, monkeypatch):
        yield


LIFE = f"PILOTHOUSE_LIFE={os.getpid()}"
"""A variable of all processes that `whole_life` starts."""


async def whole_life(kept: list[CliTransport]) -> None:
    transport = CliTransport(close_grace=0.0)
    kept.append(transport)  # so that what is freed is freed by `close`, not by garbage collection
    script = f'read -r line; export {LIFE}; setsid sleep 600 & sleep 600 & echo "$line"; cat; exit 3'
    invocation = sh(script, files=(PrivateFile("x", ".json", b"{}"),))
    try:
        await transport.start(invocation)
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            await transport.send(b"hello\n")
            assert await first_line(transport) == "hello"
            await transport.send(b"x" * 150_000)
            await transport.end_input()
            while await transport.receive():
                pass
            await transport.exit_info()
            await transport.close()
            group.cancel_scope.cancel()
    finally:
        await transport.close()


@linux_only
@pytest.mark.requirement("G6", "G10")
async def test_cancelled_at_any_await_nothing_is_left(anyio_backend: str) -> None:
    for n in range(1, 500):
        kept: list[CliTransport] = []
        scope = anyio.CancelScope()
        run = Counted(whole_life(kept), lambda wait: scope.cancel() if wait == n else None)  # noqa: B023
        with anyio.fail_after(DEADLINE), scope:
            await run
        await until(
            lambda kept=kept: all(not process_state(t.pid) for t in kept if t.pid) and not find_processes(LIFE),
            f"alive after cancellation at wait {n}",
        )
        if run.waits < n:
            assert n > 10
            return
    raise AssertionError("the life never came to its end")


@linux_only
@pytest.mark.parametrize("times", [1, 3, 12])
@pytest.mark.requirement("G10", "G11")
def test_native_cancellation_at_any_await_leaves_nothing(times: int) -> None:
    # `Task.cancel` goes through the shields of anyio; several in a row hit `close` as well.
    async def attempt(n: int, kept: list[CliTransport]) -> int:
        task = asyncio.current_task()
        assert task is not None
        run = Counted(whole_life(kept), lambda wait: task.cancel() if n <= wait < n + times else None)
        try:
            await run
        except (asyncio.CancelledError, BaseExceptionGroup):
            while task.uncancel():
                pass
        return run.waits

    async def main() -> None:
        for n in range(1, 500):
            kept: list[CliTransport] = []
            waits = await attempt(n, kept)
            await until(
                lambda kept=kept: all(not process_state(t.pid) for t in kept if t.pid) and not find_processes(LIFE),
                f"alive after cancellation at wait {n}",
            )
            if waits < n:
                assert n > 10
                return

    asyncio.run(main())


@linux_only
@pytest.mark.requirement("G7", "G9")
async def test_a_child_that_ignores_sigterm_is_killed_with_its_children() -> None:
    transport = CliTransport(close_grace=0.0, term_grace=0.3)
    await transport.start(sh("trap '' TERM; sleep 600 & echo $!; while :; do sleep 1; done"))
    grandchild = int(await first_line(transport))
    began = time.monotonic()
    await transport.close()
    assert 0.25 < time.monotonic() - began < TERM_GRACE_SECONDS  # its own grace, not the usual one
    assert (await transport.exit_info()).signal == "SIGKILL"
    eventually(lambda: is_dead(grandchild), "grandchild alive")


@linux_only
@pytest.mark.requirement("G8", "G9")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_child_has_five_seconds_after_sigterm() -> None:
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
    await first_line(transport)
    began = time.monotonic()
    await transport.close()
    assert 4.9 < time.monotonic() - began < 20
    assert (await transport.exit_info()).signal == "SIGKILL"


@linux_only
@pytest.mark.requirement("G7")
async def test_a_busy_child_gets_sigterm_at_once_and_may_tidy_up() -> None:
    transport = CliTransport()
    await transport.start(sh("trap 'echo tidy >&2; exit 143' TERM; echo ready; while :; do sleep 0.05; done"))
    await first_line(transport)
    began = time.monotonic()
    await transport.close()
    assert time.monotonic() - began < TERM_GRACE_SECONDS
    ending = await transport.exit_info()
    assert (ending.exit_code, ending.detail) == (143, "ended by close")
    assert ending.stderr.endswith("tidy\n")


@linux_only
async def test_sigterm_reaches_a_child_that_is_blocked_on_a_full_pipe() -> None:
    # As a program whose one thread runs its signal handlers: not while it is inside of a write.
    code = (
        "import signal, os\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "os.write(1, b'ready')\n"
        "while not signal.sigpending(): os.write(1, b'x' * 5000); os.write(2, b'y' * 5000)\n"
        "os._exit(7)\n"
    )
    transport = CliTransport()
    await transport.start(Invocation(cli=sys.executable, argv=("-S", "-c", code), env={}))
    assert (await transport.receive()).startswith(b"ready")
    began = time.monotonic()
    await transport.close()
    assert time.monotonic() - began < TERM_GRACE_SECONDS
    assert (await transport.exit_info()).exit_code == 7


@linux_only
@pytest.mark.requirement("G8")
async def test_an_idle_child_ends_by_itself() -> None:
    transport = CliTransport()
    await transport.start(sh("while read -r line; do :; done; echo saved >&2; exit 4"))
    await transport.close()
    ending = await transport.exit_info()
    assert (ending.exit_code, ending.stderr) == (4, "saved\n")


@linux_only
@pytest.mark.requirement("E68", "G41")
async def test_death_by_signal_is_news_within_a_second() -> None:
    transport = CliTransport()
    await transport.start(sh("echo last words >&2; echo ready; read -r line; sleep 600"))
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        await first_line(transport)
        assert transport.pid
        began = time.monotonic()
        os.kill(transport.pid, signal.SIGKILL)
        assert await transport.receive() == b""
        ending = await transport.exit_info()
        assert time.monotonic() - began < SOON
        assert (ending.exit_code, ending.signal, ending.stderr) == (None, "SIGKILL", "last words\n")
        assert "memory" in ending.detail
        assert "SIGKILL" in transport.health().reason
        await transport.close()


@pytest.mark.sample(2)
@linux_only
@pytest.mark.requirement("E68")
@pytest.mark.parametrize("closed", ["", "2>/dev/null", ">/dev/null"])
async def test_output_ends_although_a_grandchild_holds_the_pipes(closed: str) -> None:
    grandchild = 0
    transport = CliTransport()
    await transport.start(sh(f"sleep 600 {closed} & echo $!; exit 5"))
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        grandchild = int(await first_line(transport))
        began = time.monotonic()
        assert await transport.receive() == b""
        assert (await transport.exit_info()).exit_code == 5
        assert time.monotonic() - began < SOON
        with pytest.raises(anyio.BrokenResourceError):
            await transport.send(b"x")
        await transport.close()
    eventually(lambda: is_dead(grandchild), "grandchild alive")


@linux_only
async def test_output_ends_although_a_grandchild_floods_it() -> None:
    transport = CliTransport()
    await transport.start(sh("yes & exit 0"))
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            while await transport.receive():
                pass
            await transport.close()


@linux_only
@pytest.mark.requirement("R32", "E71", "G3")
async def test_50_mb_of_standard_error_do_not_block() -> None:
    tail = ""
    transport = CliTransport()
    await transport.start(sh("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c 50000000 >&2; echo done"))
    with anyio.fail_after(DEADLINE * 2):
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            assert await first_line(transport) == "done"
            assert await transport.receive() == b""
            tail = (await transport.exit_info()).stderr
            await transport.close()
    assert len(tail) == 64 * 1024
    assert "\n0123456789abcdefghijklmnopqrstuvwxyz\n" in tail[-100:]


@linux_only
async def test_ten_megabytes_to_a_child_that_does_not_read() -> None:
    transport = CliTransport(close_grace=0.0)

    async def send_until_closed() -> None:
        with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
            await transport.send(b"x" * 10_000_000)

    await transport.start(sh("sleep 600"))
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        group.start_soon(send_until_closed)
        with anyio.fail_after(DEADLINE):  # the loop goes round
            for _ in range(10):
                await anyio.sleep(0.01)
        assert transport.health().state == "degraded"
        began = time.monotonic()
        await transport.close()
        assert time.monotonic() - began < SOON


@linux_only
@pytest.mark.requirement("E71")
async def test_output_closed_by_a_living_child() -> None:
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh("exec >&-; sleep 600"))
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        assert await transport.receive() == b""
        began = time.monotonic()
        ending = await transport.exit_info()
        assert time.monotonic() - began < SOON
        assert "still running" in ending.detail
        await transport.close()
        assert time.monotonic() - began < 2 * SOON


@linux_only
@pytest.mark.parametrize("served", [False, True])
async def test_dropped_without_close(served: bool) -> None:
    transport = CliTransport()
    await transport.start(sh("sleep 600 & echo $!; sleep 600", files=(PrivateFile("x", ".json", b"{}"),)))
    child, grandchild = transport.pid, int(await first_line(transport))
    if served:
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        del group
    del transport
    gc.collect()
    assert child
    eventually(lambda: is_dead(child) and is_dead(grandchild), "alive after collection")


@linux_only
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_dropped_after_the_loop_is_gone(backend: str) -> None:
    kept: list[CliTransport] = []

    async def main() -> None:
        transport = CliTransport()
        await transport.start(sh("trap '' TERM; while :; do sleep 0.1; done"))
        kept.append(transport)

    anyio.run(main, backend=backend)
    pid = kept[0].pid
    assert pid
    assert not is_dead(pid)
    kept.clear()
    gc.collect()
    eventually(lambda: is_dead(pid), "alive after collection")


HOST = """
import os, sys
from contextlib import suppress
from pathlib import Path
import anyio
from pilothouse.options import Invocation, PrivateFile
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.watchdog import watchdog

async def main():
    transport = CliTransport()
    script = "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo $!; while :; do sleep 0.1; done"
    files = (PrivateFile("settings", ".json", b"secret"),)
    await transport.start(Invocation(cli="/bin/sh", argv=("-c", script), env=dict(os.environ), files=files))
    grandchild = (await transport.receive()).decode().strip()
    while not watchdog.shell_pid:  # it starts beside the first child, so as not to hold it up
        await anyio.sleep(0.001)
    written = list(Path(os.environ["TMPDIR"]).glob("*/*.json"))
    print(transport.pid, grandchild, len(written), flush=True)
    ENDING

anyio.run(main)
"""


@pytest.mark.sample(3)
@linux_only
@pytest.mark.requirement("G10")
@pytest.mark.parametrize(
    ("ending", "kill"),
    [
        ("await anyio.sleep_forever()", signal.SIGKILL),
        ("await anyio.sleep_forever()", signal.SIGTERM),
        ("os._exit(1)", None),
        ("sys.stdin.close()", None),
        ("raise SystemExit(1)", None),
    ],
)
def test_child_grandchild_and_files_end_with_the_host(ending: str, kill: signal.Signals | None, tmp_path: Path) -> None:
    files = tmp_path / "with 'spaces'  and *"
    files.mkdir()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST.replace("ENDING", ending)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(files)},
    )
    with host:
        assert host.stdout is not None
        *pids, written = [int(word) for word in host.stdout.readline().split()]
        assert (len(pids), written) == (2, 1)
        if kill is not None:
            host.send_signal(kill)
    eventually(lambda: all(is_dead(pid) for pid in pids), "alive after the death of the host")
    eventually(lambda: not list(files.iterdir()), "files left after the death of the host")
    assert files.exists()


@linux_only
async def test_a_fork_of_the_host_leaves_the_child_alone() -> None:
    transport = CliTransport(close_grace=2.0)
    await transport.start(sh("cat; exit 9"))
    forked = os.fork()
    if forked == 0:  # a worker that was forked while a child ran
        del transport
        gc.collect()
        watchdog.end_all()
        signal.pause()
        os._exit(0)
    try:
        await transport.send(b"still here\n")
        assert await first_line(transport) == "still here"
        await transport.close()  # ends at the end of input, although the fork had a copy of the pipe
        assert (await transport.exit_info()).exit_code == 9
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


@linux_only
async def test_many_children_start_no_threads() -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    transports = [CliTransport(close_grace=0.0) for _ in range(20)]
    try:
        for transport in transports:
            await transport.start(sh("sleep 600"))
        started = len(list(Path("/proc/self/task").iterdir())) - threads
    finally:
        async with anyio.create_task_group() as group:
            for transport in transports:
                group.start_soon(transport.close)
    assert started < len(transports) / 2  # some look for the executable


async def test_cancelled_while_the_watchdog_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = CliTransport(close_grace=0.0)  # kept, and not collected: in actors of Ray that takes long
    monkeypatch.setattr(watchdog, "is_starting", True)
    monkeypatch.setattr("pilothouse.transports.cli.START_SECONDS", 600.0)
    async with anyio.create_task_group() as group:
        group.start_soon(transport.start, replace(sh("sleep 600"), initialize={}))
        await until(lambda: transport.facts.pid is not None)
        group.cancel_scope.cancel()
    assert transport.facts.pid is not None
    assert is_dead(transport.facts.pid)


@linux_only
def test_a_loop_that_is_closed_leaves_no_descriptor() -> None:
    """Its tasks are never collected, so that no `finally` closes what they have opened."""
    before = set(os.listdir("/proc/self/fd"))
    transport = CliTransport()
    tasks: list[object] = []

    async def main() -> None:
        await transport.start(sh("echo; sleep 600"))
        tasks.append(asyncio.ensure_future(transport.serve()))
        await first_line(transport)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of tasks that it was made to forget
    loop.run_until_complete(main())
    loop.close()
    pid = transport.facts.pid
    assert pid is not None
    del loop
    gc.collect()
    eventually(lambda: is_dead(pid))
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)
