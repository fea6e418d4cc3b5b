"""The scripted peer: what its script can do and inject."""

from __future__ import annotations

import anyio
import pytest

from pilothouse.errors import CLIStartError
from pilothouse.options import Invocation
from pilothouse.transports.memory import BUFFER_BYTES, MemoryPeer, MemoryTransport

INVOCATION = Invocation(cli="auto", argv=("--x",), env={"API_KEY": "top-secret-value"})

pytestmark = pytest.mark.anyio


async def drain(transport: MemoryTransport) -> bytes:
    received = b""
    while data := await transport.receive():
        received += data
    return received


@pytest.mark.requirement("R37")
async def test_a_conversation() -> None:
    async def peer(conn: MemoryPeer) -> None:
        assert conn.invocation is INVOCATION
        while (frame := await conn.read_frame()) is not None:
            await conn.write({"echo": frame})
            await conn.write("text\n")
            await conn.write(b"bytes\n")
        conn.end(exit_code=7, stderr="top-secret-value\n")

    transport = MemoryTransport(peer)
    await transport.start(INVOCATION)
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        await transport.send(b'{"a"')
        await transport.send(b": 1}\n")
        await transport.end_input()
        assert await drain(transport) == b'{"echo": {"a": 1}}\ntext\nbytes\n'
    ending = await transport.exit_info()
    assert (ending.exit_code, ending.stderr) == (7, "[redacted]\n")
    assert transport.sent_frames == [{"a": 1}]
    assert transport.sent == [b'{"a"', b": 1}\n"]


async def test_without_a_script() -> None:
    transport = MemoryTransport(chunk=4)
    await transport.start(INVOCATION)
    transport.feed({"n": 1})
    transport.end(signal="SIGKILL")
    transport.end(exit_code=0)
    assert [await transport.receive() for _ in range(4)] == [b'{"n"', b": 1}", b"\n", b""]
    ending = await transport.exit_info()
    assert (ending.exit_code, ending.signal) == (None, "SIGKILL")


async def test_failures() -> None:
    failure = CLIStartError("no")
    with pytest.raises(CLIStartError) as caught:
        await MemoryTransport(start_error=failure).start(INVOCATION)
    assert caught.value is failure

    transport = MemoryTransport()
    await transport.start(INVOCATION)
    transport.feed("last")
    transport.fail_receive(OSError("gone"))
    assert await transport.receive() == b"last"
    with pytest.raises(OSError, match="gone"):
        await transport.receive()


async def test_a_peer_that_stops_reading() -> None:
    async def peer(conn: MemoryPeer) -> None:
        conn.close_input()
        await conn.write("ready\n")
        await anyio.sleep_forever()

    transport = MemoryTransport(peer)
    await transport.start(INVOCATION)
    async with anyio.create_task_group() as group:
        group.start_soon(transport.serve)
        assert await transport.receive() == b"ready\n"
        with pytest.raises(anyio.BrokenResourceError):
            await transport.send(b"x")
        assert transport.health().state == "unhealthy"
        await transport.close()


async def test_a_script_that_raises_ends_the_peer_with_its_error() -> None:
    async def peer(conn: MemoryPeer) -> None:
        raise AssertionError("the script is wrong")

    transport = MemoryTransport(peer)
    await transport.start(INVOCATION)
    await transport.serve()
    assert await transport.receive() == b""
    ending = await transport.exit_info()
    assert (ending.exit_code, ending.stderr) == (1, "")
    assert ending.detail == "the script of the peer raised AssertionError: the script is wrong"
    assert ending.error is transport.script_error
    assert isinstance(transport.script_error, AssertionError)


async def test_back_pressure_both_ways() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await conn.write(b"x" * BUFFER_BYTES)
        raise AssertionError("nobody has read")

    async def send(scope: anyio.CancelScope) -> None:
        with scope:
            await transport.send(b"x" * BUFFER_BYTES)

    for script in (peer, lambda _: anyio.sleep_forever()):
        transport, scope = MemoryTransport(script), anyio.CancelScope()
        await transport.start(INVOCATION)
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            group.start_soon(send, scope)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert transport.health().state == "degraded"
            await transport.close()
        assert transport.script_error is None
