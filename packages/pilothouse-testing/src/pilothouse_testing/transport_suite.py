"""The contract of every `Transport`, as tests.

Subclass `TransportSuite`, define how to make the transports, and run pytest. The tests are marked `anyio`: they need
its pytest plugin, and run on each backend of your `anyio_backend` fixture.
Knows the protocol, not its implementations. A *peer* is the process or script on the other side of the transport.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal

import anyio
import msgspec
import pytest

from pilothouse.errors import PilothouseError, UsageError
from pilothouse.options import Invocation
from pilothouse.transports import MemoryPeer, Transport

# ruff: noqa: D102 - the name of a test says what it does


Behaviour = Literal["deaf", "echo", "fail", "flood", "mute", "silent"]
"""The behaviour of a peer:

- ``echo``: sends back each line it gets; exits with code 0 when its input ends
- ``fail``: sends ``b"bye\\n"``, writes the line ``it broke`` and then the line ``key: `` plus the value of the
  variable ``SUITE_API_KEY`` to standard error, exits with code 3
- ``flood``: sends the lines 0, 1, 2, … 199999, each a decimal number, and exits with code 0
- ``silent``: sends nothing and does not exit, even when its input ends
- ``deaf``: like silent, and never reads its input
- ``mute``: ends its output at once, and does not exit
"""

SECRET = "suite-secret-value-1234567890"  # noqa: S105 - must look like a secret
FLOOD_LINES = 200_000
CLOSE_LIMIT = 8.0
"""Seconds that `close` may take with a peer that does not exit by itself."""
LIMIT = 20.0
"""Seconds for anything else."""


@pytest.mark.anyio
class TransportSuite(ABC):
    """Subclass it in a test module.

    Attributes:
        has_exit_code: the transport reports exit codes.
        has_stderr: the transport reports standard error of the peer.
        has_backpressure: `send` waits while the peer does not read.
    """

    has_exit_code = True
    has_stderr = True
    has_backpressure = True

    @abstractmethod
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        """Return a new transport, not started, and its invocation, whose `env` need not have `SUITE_API_KEY` yet."""

    @asynccontextmanager
    async def running(self, behaviour: Behaviour, **changes: object) -> AsyncGenerator[Transport, None]:
        """A started and served transport, closed at the end; `changes` are fields of the invocation."""
        transport, invocation = self.make(behaviour)
        invocation = msgspec.structs.replace(
            invocation,
            env={**invocation.env, "SUITE_API_KEY": SECRET},
            **changes,  # type: ignore[arg-type]
        )
        with anyio.fail_after(LIMIT + CLOSE_LIMIT):
            await transport.start(invocation)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(transport.serve)
                    yield transport
                    group.cancel_scope.cancel()
            finally:
                await transport.close()

    # --- the stream -------------------------------------------------------------------------------------------------

    async def test_bytes_arrive_as_they_were_sent(self) -> None:
        line = bytes(b for b in range(256) if b != 10) * 50 + b"\n"
        async with self.running("echo") as transport:
            await transport.send(line)
            assert await _read_lines(transport, 1) == [line[:-1]]

    async def test_concurrent_sends_do_not_mix(self) -> None:
        lines = [bytes([65 + n]) * 100_000 for n in range(10)]
        async with self.running("echo") as transport, anyio.create_task_group() as group:
            for line in lines:
                group.start_soon(transport.send, line + b"\n")
            assert sorted(await _read_lines(transport, 10)) == lines

    async def test_output_ends_after_input_ended_and_success_is_code_zero(self) -> None:
        async with self.running("echo") as transport:
            await transport.send(b"last\n")
            await transport.end_input()
            await transport.end_input()
            assert await _read_all(transport) == b"last\n"
            assert [await transport.receive() for _ in range(3)] == [b"", b"", b""]
            ending = await transport.exit_info()
            if self.has_exit_code:
                assert (ending.exit_code, ending.signal) == (0, None)

    async def test_send_after_end_input_is_refused(self) -> None:
        async with self.running("echo") as transport:
            await transport.end_input()
            with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
                await transport.send(b"late\n")

    async def test_large_output_arrives_whole_in_bounded_chunks(self) -> None:
        async with self.running("flood") as transport:
            received: list[bytes] = []
            await _collect(transport, received)
            assert b"".join(received) == _make_flood()
            assert max(map(len, received)) <= 512 * 1024

    async def test_cancelled_receive_loses_nothing(self) -> None:
        received: list[bytes] = []
        async with self.running("flood") as transport:
            delay = 0.0
            while not received or received[-1]:
                with anyio.move_on_after(delay):
                    received.append(await transport.receive())
                delay = 0.0 if delay > 0.001 else delay + 0.00007
        assert b"".join(received) == _make_flood()

    async def test_cancelled_send_leaves_later_frames_whole(self) -> None:
        lines = [bytes([65 + n]) * 700_000 for n in range(4)]
        sent: list[bytes] = []
        async with self.running("echo") as transport:
            try:
                for line in lines:
                    with anyio.move_on_after(0.05):  # the test does not receive, so the echo stops and `send` waits
                        await transport.send(line + b"\n")
                        sent.append(line)
                received = await _send_last_and_read(transport, b"after\n")
            except anyio.BrokenResourceError:
                return  # a broken stream does not deliver damaged frames either
            *whole, last, rest = received.split(b"\n")
            assert (last, rest) == (b"after", b"")
            assert set(whole) <= set(lines)
            assert [line for line in whole if line in sent] == sent

    # --- the end ----------------------------------------------------------------------------------------------------

    async def test_ending_says_how(self) -> None:
        async with self.running("fail") as transport:
            assert await _read_all(transport) == b"bye\n"
            ending = await transport.exit_info()
            if self.has_exit_code:
                assert (ending.exit_code, ending.signal) == (3, None)
            if self.has_stderr:
                assert "it broke" in ending.stderr

    async def test_ending_does_not_wait_for_a_peer_that_goes_on(self) -> None:
        async with self.running("mute") as transport:
            assert await transport.receive() == b""
            began = time.monotonic()
            ending = await transport.exit_info()
            assert time.monotonic() - began < 3
            if self.has_exit_code:
                assert (ending.exit_code, ending.signal) == (None, None)
                assert ending.detail

    async def test_standard_error_arrives_in_lines_without_secrets(self) -> None:
        lines: list[str] = []
        async with self.running("fail", on_stderr=lines.append) as transport:
            await _read_all(transport)
            ending = await transport.exit_info()
            await transport.close()
        assert SECRET not in ending.stderr
        if self.has_stderr:
            assert lines == ["it broke", "key: [redacted]"]

    async def test_a_failing_stderr_callback_does_no_harm(self) -> None:
        def fail(line: str) -> None:
            raise ValueError(line)

        async with self.running("fail", on_stderr=fail) as transport:
            assert await _read_all(transport) == b"bye\n"
            assert "it broke" in (await transport.exit_info()).stderr or not self.has_stderr

    async def test_send_to_a_peer_that_is_gone_breaks(self) -> None:
        async with self.running("fail") as transport:
            await _read_all(transport)
            await transport.exit_info()
            with pytest.raises(anyio.BrokenResourceError):
                await _send_often(transport)

    # --- close ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("behaviour", ["echo", "silent", "deaf", "fail", "flood", "mute"])
    async def test_close_ends_any_peer_in_time(self, behaviour: Behaviour) -> None:
        async with self.running(behaviour) as transport:
            began = time.monotonic()
            await transport.close()
            assert time.monotonic() - began < CLOSE_LIMIT
            assert transport.health().state == "unhealthy"

    async def test_close_while_others_wait(self) -> None:
        outcomes: list[type[BaseException]] = []

        async def expect(call: object) -> None:
            try:
                await call  # type: ignore[misc]
            except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
                outcomes.append(type(error))

        async with self.running("deaf") as transport, anyio.create_task_group() as group:
            group.start_soon(expect, transport.receive())
            if self.has_backpressure:
                group.start_soon(expect, transport.send(b"x" * 20_000_000))
            await anyio.wait_all_tasks_blocked()
            if self.has_backpressure:
                assert transport.health().state == "degraded"
            await transport.close()
        assert outcomes.count(anyio.ClosedResourceError) >= 1
        assert len(outcomes) == (2 if self.has_backpressure else 1)

    async def test_close_may_come_again_and_at_once_and_everything_says_closed(self) -> None:
        async with self.running("silent") as transport:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(transport.close)
            await transport.close()
            with pytest.raises(anyio.ClosedResourceError):
                await transport.send(b"x\n")
            with pytest.raises(anyio.ClosedResourceError):
                await transport.receive()

    async def test_close_before_start(self) -> None:
        transport, invocation = self.make("echo")
        await transport.close()
        with pytest.raises((anyio.ClosedResourceError, PilothouseError)):
            await transport.start(invocation)

    async def test_close_is_shielded(self) -> None:
        async with self.running("silent") as transport:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await transport.close()
            with pytest.raises(anyio.ClosedResourceError):
                await transport.receive()

    async def test_second_start_is_refused(self) -> None:
        async with self.running("echo") as transport:
            with pytest.raises(UsageError):
                await transport.start(self.make("echo")[1])
            await transport.send(b"still here\n")
            assert await _read_lines(transport, 1) == [b"still here"]

    async def test_health_follows_the_life(self) -> None:
        transport, _ = self.make("echo")
        assert transport.health().state == "unhealthy"
        async with self.running("echo") as transport:
            assert transport.health().state == "healthy"
            await transport.end_input()
            assert transport.health().state != "healthy"
            await _read_all(transport)
            await transport.exit_info()
            health = transport.health()
            assert health.state == "unhealthy"
            assert health.reason


def _make_flood() -> bytes:
    return b"".join(b"%d\n" % number for number in range(FLOOD_LINES))


async def _send_often(transport: Transport) -> None:
    for _ in range(100):
        await transport.send(b"hello?\n")


async def _collect(transport: Transport, into: list[bytes]) -> None:
    while data := await transport.receive():
        into.append(data)


async def _send_last_and_read(transport: Transport, data: bytes) -> bytes:
    received: list[bytes] = []
    broken = False
    async with anyio.create_task_group() as group:
        group.start_soon(_collect, transport, received)
        try:
            await transport.send(data)
        except anyio.BrokenResourceError:
            broken = True
        await transport.end_input()
    if broken:
        raise anyio.BrokenResourceError
    return b"".join(received)


async def _read_all(transport: Transport) -> bytes:
    received: list[bytes] = []
    await _collect(transport, received)
    return b"".join(received)


async def _read_lines(transport: Transport, count: int) -> list[bytes]:
    received = bytearray()
    while received.count(b"\n") < count:
        data = await transport.receive()
        assert data, f"output ended after {bytes(received[-80:])!r}"
        received += data
    lines = bytes(received).split(b"\n")
    assert lines.pop() == b""
    return lines


PEER_PROGRAMS: Final[Mapping[Behaviour, str]] = {
    "echo": "import sys\nfor line in sys.stdin.buffer:\n sys.stdout.buffer.write(line); sys.stdout.flush()",
    "fail": (
        "import os, sys\nprint('bye', flush=True)\n"
        "print('it broke\\nkey: ' + os.environ['SUITE_API_KEY'], file=sys.stderr)\nsys.exit(3)"
    ),
    "flood": f"import sys\nfor n in range({FLOOD_LINES}): sys.stdout.write(f'{{n}}\\n')",
    "silent": "import sys, time\nsys.stdin.read()\ntime.sleep(600)",
    "deaf": "import time\ntime.sleep(600)",
    "mute": "import os, time\nos.close(1)\ntime.sleep(600)",
}
"""Python programs: `python -S -E -c PROGRAM`."""


async def _play_echo(peer: MemoryPeer) -> None:
    while line := await peer.read_line():
        await peer.write(line)


async def _play_fail(peer: MemoryPeer) -> None:
    await peer.write("bye\n")
    peer.end(exit_code=3, stderr=f"it broke\nkey: {peer.invocation.env['SUITE_API_KEY']}\n")


async def _play_flood(peer: MemoryPeer) -> None:
    for start in range(0, FLOOD_LINES, 1000):
        await peer.write("".join(f"{n}\n" for n in range(start, start + 1000)))


async def _play_silent(peer: MemoryPeer) -> None:
    while await peer.read_line():
        pass
    await anyio.sleep_forever()


async def _play_mute(peer: MemoryPeer) -> None:
    peer.close_output()
    await anyio.sleep_forever()


MEMORY_PEERS: Final[Mapping[Behaviour, Callable[[MemoryPeer], Awaitable[object]]]] = {
    "deaf": lambda peer: anyio.sleep_forever(),
    "echo": _play_echo,
    "fail": _play_fail,
    "flood": _play_flood,
    "mute": _play_mute,
    "silent": _play_silent,
}
"""Scripts for a `MemoryTransport`."""
