"""The ends of a pipe under cancellation and closing, and the watch of an exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from process_checks import DEADLINE, linux_only, process_state, until
from shell_children import first_line, sh

from pilothouse.transports.child_process import ExitStatus, ExitWatcher, make_exit_status, signal_name
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.pipes import LARGE_READ_BYTES, PipeReader, PipeWriter

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


async def read_exactly(fd: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += await anyio.to_thread.run_sync(os.read, fd, length - len(data))
    return data


def test_a_native_cancellation_between_read_and_return_loses_nothing(pipe: tuple[int, int]) -> None:
    async def main() -> None:
        reader = PipeReader(pipe[0])
        os.write(pipe[1], b"data")
        task = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(reader.read(), 5) == b"data"
        reader.close()

    asyncio.run(main())


async def test_bytes_taken_while_a_read_pauses_are_not_returned_twice(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = PipeReader(pipe[0])
    pause, taken = anyio.lowlevel.checkpoint, list[bytes | None]()

    async def take_meanwhile() -> None:
        if not taken:
            taken.append(reader.read_available())
            os.write(pipe[1], b"then")
        await pause()

    monkeypatch.setattr("pilothouse.transports.pipes.checkpoint", take_meanwhile)
    os.write(pipe[1], b"once")
    assert await reader.read() == b"then"
    assert taken == [b"once"]
    reader.close()


async def test_reading_yields_to_other_tasks(pipe: tuple[int, int]) -> None:
    reader = PipeReader(pipe[0])
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            await anyio.lowlevel.checkpoint()
            others += 1

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(100):
            os.write(pipe[1], b"x" * 100)
            await reader.read()
        group.cancel_scope.cancel()
    assert others >= 50
    reader.close()


async def test_a_pipe_that_was_emptied_is_not_asked_before_it_can_be_read(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = os.read, 0

    def counted(fd: int, size: int) -> bytes:
        nonlocal asked
        asked += 1
        return read(fd, size)

    monkeypatch.setattr(os, "read", counted)
    reader = PipeReader(pipe[0])
    os.write(pipe[1], b"first")
    assert await reader.read() == b"first"
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, os.write, pipe[1], b"second")
        assert await reader.read() == b"second"
    own, asked = asked, 0
    reader.close()
    with pytest.raises(anyio.ClosedResourceError):
        await reader.read()
    assert (own, asked) == (2, 0)


async def test_what_is_written_at_once_never_overtakes_a_cut_write(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    assert writer.try_write(b"first")
    assert not writer.try_write(b"x" * 70_000)  # it could be cut
    data = b"y" * 1_000_000
    async with anyio.create_task_group() as group:
        group.start_soon(writer.write, data)
        await anyio.wait_all_tasks_blocked()
        assert not writer.try_write(b"too early")
        group.cancel_scope.cancel()
    assert writer.has_partial_write
    assert not writer.try_write(b"too early")
    async with anyio.create_task_group() as group:
        group.start_soon(writer.finish_partial_writes)
        assert await read_exactly(pipe[0], 5 + len(data)) == b"first" + data
    assert writer.try_write(b"last")
    assert os.read(pipe[0], 100) == b"last"
    writer.close()
    assert not writer.try_write(b"closed")


async def test_data_that_cannot_be_written_at_once_is_refused(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    while writer.try_write(b"z" * 1000):
        pass  # until the pipe is full
    assert not writer.is_broken
    os.close(pipe[0])
    assert not writer.try_write(b"nobody")
    assert writer.is_broken
    for _ in range(2):
        with pytest.raises(anyio.BrokenResourceError):
            await writer.write(b"nobody")
    writer.close()


@linux_only
@pytest.mark.parametrize("first", ["", "exec 2>&-;"])
async def test_a_write_that_was_cut_is_completed_beside_the_stream(first: str) -> None:
    size = 1_000_000
    transport = CliTransport(close_grace=0.0)
    await transport.start(sh(f"{first} echo ready; kill -STOP $$; head -c {size} | wc -c"))
    writer = transport._child.stdin  # type: ignore[union-attr]
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        assert await first_line(transport) == "ready"
        assert transport.pid
        await until(lambda: process_state(transport.pid or 0) == "T", "not stopped")
        async with anyio.create_task_group() as sending:
            sending.start_soon(transport.send, b"x" * size)
            await until(lambda: writer.is_waiting, "it never had to wait")
            sending.cancel_scope.cancel()
        os.kill(transport.pid, signal.SIGCONT)
        with anyio.fail_after(DEADLINE):
            assert await first_line(transport) == str(size)
        await transport.close()


async def test_a_write_cancelled_before_its_first_byte_sends_nothing(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    with anyio.move_on_after(0.02):
        await writer.write(b"a" * 300_000)
    with anyio.move_on_after(0.02):
        await writer.write(b"b" * 10)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.write, b"c")
        assert (await read_exactly(pipe[0], 300_001)).strip(b"a") == b"c"
    writer.close()


async def test_end_sends_what_came_before(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    async with anyio.create_task_group() as group:
        group.start_soon(writer.write, b"a" * 200_000)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(writer.end)
        await anyio.wait_all_tasks_blocked()
        assert not writer.is_closed
        await read_exactly(pipe[0], 200_000)
    assert writer.is_closed
    assert os.read(pipe[0], 10) == b""
    await writer.end()
    with pytest.raises(anyio.ClosedResourceError):
        await writer.write(b"x")


async def test_broken_without_a_reader(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    async with anyio.create_task_group() as group:
        group.start_soon(_expect_broken, writer, b"x" * 300_000)
        await anyio.wait_all_tasks_blocked()
        os.close(pipe[0])
    await _expect_broken(writer, b"x")
    writer.close()


async def _expect_broken(writer: PipeWriter, data: bytes) -> None:
    with pytest.raises(anyio.BrokenResourceError):
        await writer.write(data)


async def test_the_descriptor_of_a_waiting_task_is_closed_by_that_task(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(pipe[1])
    async with anyio.create_task_group() as group:
        group.start_soon(_expect_closed, partial(writer.write, b"x" * 300_000))
        await anyio.wait_all_tasks_blocked()
        writer.close()
        os.fstat(pipe[1])  # still open: its number must not be given away while the loop may know it
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(pipe[1])


async def test_a_task_that_reads_learns_that_the_pipe_is_closed(pipe: tuple[int, int]) -> None:
    reader = PipeReader(pipe[0])
    async with anyio.create_task_group() as group:
        group.start_soon(_expect_closed, reader.read)
        await anyio.wait_all_tasks_blocked()
        reader.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(pipe[0])


async def _expect_closed(work: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(anyio.ClosedResourceError):
        await work()


async def test_reads_grow_with_the_flow(pipe: tuple[int, int]) -> None:
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(pipe[0], fcntl.F_SETPIPE_SZ, 1 << 20)
    else:
        pytest.skip("needs a large pipe")
    os.write(pipe[1], b"x" * (64 * 1024 + 2 * LARGE_READ_BYTES + 100_000))
    reader = PipeReader(pipe[0])
    sizes = [len(await reader.read()) for _ in range(4)]
    assert sizes == [64 * 1024, LARGE_READ_BYTES, LARGE_READ_BYTES, 100_000]
    reader.close()


@pytest.mark.parametrize("use_pidfd", [True, False])
async def test_several_tasks_wait_for_one_exit(use_pidfd: bool) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", "read -r line; exit 7"], stdin=subprocess.PIPE)
    process.returncode = 0  # reaped here, not by Popen
    assert process.stdin is not None
    watch = ExitWatcher(process.pid, use_pidfd=use_pidfd)
    assert watch.poll() is None
    assert not watch.reap()
    found: list[ExitStatus] = []

    async def wait() -> None:
        found.append(await watch.wait())

    with anyio.move_on_after(0.01):
        await watch.wait()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        process.stdin.close()
    assert found == [ExitStatus(code=7)] * 3
    os.kill(process.pid, 0)  # looked at, not yet reaped
    assert watch.reap()
    assert watch.reap()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert watch.poll() == ExitStatus(code=7)
    watch.close()
    watch.close()


async def test_a_status_that_other_code_collected() -> None:
    process = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    watch = ExitWatcher(process.pid)
    process.wait()
    assert await watch.wait() == ExitStatus()
    assert watch.reap()
    watch.close()


def test_names_of_exits() -> None:
    assert make_exit_status(3) == ExitStatus(code=3)
    assert make_exit_status(-9) == ExitStatus(signal="SIGKILL")
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(999) == "signal 999"


def test_a_cancelled_wait_loses_nothing_that_came_meanwhile(pipe: tuple[int, int]) -> None:
    async def main() -> None:
        reader = PipeReader(pipe[0])
        for number in range(20):
            task = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0.001)  # it waits
            os.write(pipe[1], b"%d;" % number)
            asyncio.get_running_loop().call_later(0, task.cancel)
            (got,) = await asyncio.gather(task, return_exceptions=True)
            if got != b"%d;" % number:
                assert await asyncio.wait_for(reader.read(), 5) == b"%d;" % number
        reader.close()

    asyncio.run(main())


async def test_a_reader_that_is_cancelled_leaves_what_comes_to_the_next(pipe: tuple[int, int]) -> None:
    reader = PipeReader(pipe[0])
    for number in range(20):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(reader.read)
                await anyio.wait_all_tasks_blocked()
                os.write(pipe[1], b"%d;" % number)
                scope.cancel()
        assert await reader.read() == b"%d;" % number
    reader.close()
