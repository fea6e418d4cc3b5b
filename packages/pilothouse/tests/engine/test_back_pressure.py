"""A consumer that does not read, a peer that does not read, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from blockbuster import BlockBuster, blockbuster_ctx

import pilothouse as ph
from pilothouse.engine.buffer import MEMORY_BYTES
from pilothouse.messages import AssistantMessage
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

MIB = 1024 * 1024


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("lines", "size"), [(3000, 100_000), (40, 5_000_000)])
@pytest.mark.requirement("E79", "E21", "R7")
async def test_a_consumer_that_does_not_read_holds_up_nothing(lines: int, size: int) -> None:
    def play(child: Any) -> None:
        import json

        child.expect("control_request", "initialize")
        child.reply({})
        lines, size = map(int, child.expect("user")["message"]["content"].split())
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332", "session_id": "s"})
        for n in range(lines):
            block = {"type": "text", "text": f"{n} " + "x" * size}
            child.write(json.dumps({"type": "assistant", "message": {"content": [block]}}).encode() + b"\n")
            if n == lines // 2:
                child.ask("can_use_tool", tool_name="Bash", input={"command": "ls"})
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "done"})

    def allow(_: ph.PermissionRequest) -> bool:
        asked.set()
        return True

    asked = threading.Event()
    with FakeCLI.from_function(play, manual=("initialize",)) as flood:
        async with ph.query(f"{lines} {size}", cli=flood.path, can_use_tool=allow) as query:
            iterator = aiter(query)
            await anext(iterator)
            before = resident()
            assert await anyio.to_thread.run_sync(asked.wait, 30), "the request stood behind unread messages"
            assert resident() - before < 5 * MEMORY_BYTES + 4 * size
            expected = 0
            async for message in iterator:
                if isinstance(message, AssistantMessage):
                    assert message.text.startswith(f"{expected} x")
                    expected += 1
            assert expected == lines
            assert (await query.result()).text == "done"
        assert resident() - before < 8 * MEMORY_BYTES


@pytest.mark.requirement("E34", "G49", "R8")
async def test_an_interrupt_passes_what_is_unread(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).repeat(300, frames.assistant("x" * 100_000))
    fake.expect("control_request", "interrupt").reply({})
    fake.emit(frames.result("", is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming"))
    async with ph.query("go", cli=fake.path) as query:
        iterator = aiter(query)
        await anext(iterator)
        with anyio.fail_after(10):
            await query.interrupt()
        assert [m.type async for m in iterator] == ["assistant"] * 300 + ["result"]
        assert (await query.result()).outcome == "interrupted"


async def test_a_session_with_unread_messages_says_so(fake: FakeCLI) -> None:
    fake.turn(*[frames.assistant("x" * 1_000_000) for _ in range(12)], frames.result("done"))
    async with ph.session(cli=fake.path) as session, anyio.create_task_group() as group:
        messages = session.messages()
        assert session.health().state == "healthy"
        group.start_soon(session.query("go").result)
        with anyio.fail_after(20):
            while session.health().state == "healthy":
                await anyio.sleep(0.01)
        assert session.health().state == "degraded"
        assert "not read" in session.health().reason
        await messages.aclose()
    assert session.health().reason == "closed"


@pytest.mark.requirement("G49")
async def test_a_peer_that_asks_and_talks_before_it_reads() -> None:
    # Both sides write more than the pipes hold: whoever waits to be read must go on reading.
    async def talks_first(peer: MemoryPeer) -> None:
        for n in range(3):
            await peer.write(frames.control_request("can_use_tool", request_id=f"q{n}", tool_name="Bash", input={}))
            for _ in range(20):
                await peer.write(frames.assistant("x" * 100_000))
        answered: list[Any] = []
        while len(answered) < 3:
            frame = await peer.read_frame()
            assert frame is not None
            if frame["type"] == "control_response":
                answered.append(frame["response"]["request_id"])
            elif frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], {}))
        assert sorted(answered) == ["q0", "q1", "q2"]
        await peer.write(frames.result("done"))

    with anyio.fail_after(20):
        result = await ph.query("p" * 2_000_000, transport=lambda: MemoryTransport(talks_first))
    assert result.text == "done"


async def test_a_peer_that_never_reads_does_not_hold_up_the_end() -> None:
    async def deaf(peer: MemoryPeer) -> None:
        await peer.write(frames.init())
        await anyio.sleep_forever()

    query = ph.query("p" * 2_000_000, transport=lambda: MemoryTransport(deaf))
    async with query:
        await anext(aiter(query))
        with anyio.fail_after(5):
            await query.aclose()


async def test_nothing_blocks_the_loop(fake: FakeCLI, anyio_backend: str) -> None:
    if anyio_backend != "asyncio":
        pytest.skip("blockbuster knows asyncio only")
    fake.expect("user").stderr("warming up\n").emit(frames.init()).emit(*frames.stream_text("Hello"))
    fake.emit(frames.result("Hello"))
    fake.forever()
    await ph.query("first", cli=fake.path)  # what is imported once is imported

    with blockbuster_ctx(["pilothouse", "anyio", "msgspec"]) as watch:
        allow_exec_handshake(watch)
        servers = {"a": {"command": "x"}}
        options: dict[str, Any] = {"cli": fake.path, "system_prompt": "long " * 5000, "mcp_servers": servers}
        assert (await ph.query("go", **options)).text == "Hello"
        async for _ in ph.query("go", **options):
            break
        async with ph.query("go", **options) as query:
            await query.interrupt()
        await asyncio.sleep(0.2)  # the children that were left are ended in the background
        with pytest.raises(ph.CLINotFoundError):
            await ph.query("go", cli="/no/such/claude")


def allow_exec_handshake(watch: BlockBuster) -> None:
    """`Popen` reads the result of `exec` from a pipe, for about a millisecond; nothing else may block."""
    watch.functions["os.read"].can_block_in("subprocess.py", "_execute_child")
