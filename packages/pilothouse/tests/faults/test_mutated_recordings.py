"""Spoiled recordings through the whole client: an answer or an error of the tree, in bounded time, and nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutated_recordings import mutant

import pilothouse as ph
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

HANG = 10.0  # seconds; all waits below together take far less
# `timeout` too: silence does not count while a tool runs, and a mutant may begin one that never ends.
LIMITS: dict[str, Any] = {"timeout": 0.4, "idle_timeout": 0.05, "control_timeout": 0.05, "max_line_bytes": 1_000_000}
ENDS = ("leaves", "fails", "stays", "is killed", "closes its output")


class Spoiled:
    """A peer that says one mutant, whatever it is asked."""

    def __init__(self, seed: int) -> None:
        random = Random(~seed)
        self.name, self.before, self.after, self.ids = mutant(seed)
        self.end = random.choice(ENDS)
        self.chunk = random.choice((1, 7, 100, 65536, 65536))
        self.helpful = random.random() < 0.8  # answers a handshake that the recording has none for

    def transport(self) -> MemoryTransport:
        size = sum(map(len, self.before)) + sum(map(len, self.after))
        return MemoryTransport(self.play, chunk=self.chunk if size < 20_000 else 65536)

    async def play(self, peer: MemoryPeer) -> None:
        hello = await peer.read_frame() or {}
        own = [str(hello.get("request_id") or ""), ""]
        if self.helpful and not any(b"control_response" in line for line in self.before):
            await peer.write(frames.control_response(own[0], frames.server_info()))
        await self._say(peer, self.before, own)
        with anyio.move_on_after(0.02):
            while (frame := await peer.read_frame()) is not None:
                if frame["type"] == "user":
                    own[1] = frame.get("uuid") or ""
                    break
        await self._say(peer, self.after, own)
        await self._leave(peer)

    async def _say(self, peer: MemoryPeer, lines: list[bytes], own: list[str]) -> None:
        for line in lines:
            for recorded, real in zip(self.ids, own, strict=True):
                if recorded and real:
                    line = line.replace(recorded.encode(), real.encode())
            await peer.write(line)

    async def _leave(self, peer: MemoryPeer) -> None:
        match self.end:
            case "leaves":
                peer.end()
            case "fails":
                peer.end(exit_code=1, stderr="it broke")
            case "is killed":
                peer.end(signal="SIGKILL")
            case "closes its output":
                peer.close_output()
                await anyio.sleep_forever()
            case _:
                while await peer.read_frame() is not None:
                    pass


@ph.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def allow(request: ph.PermissionRequest) -> bool:
    assert isinstance(request.tool_name, str)
    return True


async def watch(event: Any) -> None:
    assert isinstance(event.event_name, str)


async def decline(request: Any) -> None:
    return None


HOST: dict[str, Any] = {
    "can_use_tool": allow,
    "hooks": {"PreToolUse": [ph.HookMatcher(None, [watch])], "Stop": [ph.HookMatcher(None, [watch])]},
    "custom_tools": [add],
    "on_elicitation": decline,
}
DEFERRED: dict[str, Any] = {"custom_tools": [add], "tool_bridge": "deferred"}
TYPED: dict[str, Any] = {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def look(result: ph.QueryResult) -> None:
    """Every public view of a result and of its messages."""
    for thing in (result, *result.messages):
        repr(thing)
        for name in dir(type(thing)):
            if not name.startswith("_"):
                getattr(thing, name)
    assert result.error is None or str(result.error)


async def awaited(spoiled: Spoiled, **options: Any) -> None:
    look(await ph.query("go", transport=spoiled.transport, **LIMITS, **options))


async def streamed(spoiled: Spoiled, **options: Any) -> None:
    query = ph.query("go", transport=spoiled.transport, **LIMITS, **options)
    async for event in query.events():
        repr(event)
    look(await query.result())


async def written(spoiled: Spoiled, **options: Any) -> None:
    async for text in ph.query("go", transport=spoiled.transport, **LIMITS, **options).text_stream():
        assert isinstance(text, str)


async def conversed(spoiled: Spoiled, **options: Any) -> None:
    session = ph.Agent(transport=spoiled.transport, **LIMITS, **options).session()
    received = session.messages()
    try:
        for prompt in ("one", "two"):
            try:
                look(await session.query(prompt))
            except ph.PilothouseError:
                continue
        repr((session, session.health(), session.costs, session.server_info))
        repr((session.info.commands(), session.info.agents(), session.info.account()))
    finally:
        await session.close()
    async for message in received:
        repr(message)


USES: tuple[Callable[..., Any], ...] = (awaited, streamed, written, conversed)
SETTINGS: tuple[dict[str, Any], ...] = ({}, HOST, DEFERRED, TYPED)


async def play(seed: int) -> str:
    """Run one mutant; how it ended."""
    spoiled = Spoiled(seed)
    random = Random(seed ^ 0x5EED)
    use, options = random.choice(USES), random.choice(SETTINGS)
    noise: list[str] = []
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(str(context)))
    try:
        with anyio.fail_after(HANG):
            await use(spoiled, **options)
        ended = "answered"
    except ph.PilothouseError as error:
        repr((error, str(error)))
        ended = type(error).__name__
    except BaseException as error:
        error.add_note(f"seed {seed}: {use.__name__} over {spoiled.name}, which {spoiled.end}")
        raise
    assert noise == [], f"seed {seed}"
    return ended


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.client.agent._default", ph.Agent())
    for name in (
        "interrupt.INTERRUPT_SECONDS",
        "child.CLOSE_SECONDS",
        "child.INTERRUPT_SECONDS",
        "child.EXIT_NOTICE_SECONDS",
        "child.SEND_SECONDS",
        "run.DECISION_SECONDS",
        "child.EXIT_SECONDS",
        "child.INTERRUPT_RESPONSE_SECONDS",
        "child.SAVE_SECONDS",
        "activity.WAKE_SECONDS",
        "child.TURN_OF_PREVIOUS_CLIENT_SECONDS",
        "channel.CANCEL_SEND_SECONDS",
    ):
        monkeypatch.setattr(f"pilothouse.engine.{name}", 0.05)


@pytest.mark.sample(1)
@pytest.mark.requirement("E54", "E55", "E71", "G34", "L28", "L35")
def test_spoiled_recordings_give_answers_or_typed_errors(anyio_backend: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**48))
    def check(seed: int) -> None:
        anyio.run(play, seed, backend=anyio_backend)

    check()


@pytest.mark.slow
def test_spoiled_recordings_for_long() -> None:
    """The environment says for how long and where to begin: FUZZ_SECONDS, FUZZ_SEED."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "300"))
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() % 2**40)))
    began, runs, ends = time.monotonic(), 0, dict[str, int]()

    async def main() -> None:
        nonlocal runs
        while time.monotonic() - began < seconds:
            async with anyio.create_task_group() as group:

                async def one(number: int) -> None:
                    ended = await play(number)
                    ends[ended] = ends.get(ended, 0) + 1

                for _ in range(8):
                    group.start_soon(one, seed + runs)
                    runs += 1

    anyio.run(main)
    print(f"{runs} runs from seed {seed}: {ends}")
