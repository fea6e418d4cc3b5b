"""A CLI in memory that asks: it shakes hands, hears one prompt, and plays a script of questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

import pilothouse as ph
from pilothouse.options.renderer import PrivateFile
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames
from pilothouse_testing.mocks import _make_settings_answer

Body = dict[str, Any]


class ScriptPeer:
    """A CLI that has shaken hands and has heard the prompt."""

    def __init__(self, peer: MemoryPeer) -> None:
        self.write = peer.write
        self._peer = peer
        self._asked = 0

    async def put(self, body: Body) -> str:
        """Ask, and do not wait."""
        self._asked += 1
        key = f"q{self._asked}"
        await self.write({"type": "control_request", "request_id": key, "request": body})
        return key

    async def read_frame(self) -> Body:
        """The next frame; {} once input has ended."""
        return await self._peer.read_frame() or {}

    async def answers(self, count: int) -> dict[str, Body]:
        """The next answers, by the id of the question."""
        found = [(await self.read_frame())["response"] for _ in range(count)]
        return {response["request_id"]: response for response in found}

    async def ask(self, body: Body) -> Body:
        """Ask, and wait for the answer."""
        key = await self.put(body)
        return (await self.answers(1))[key]

    async def finish(self) -> None:
        await self.write(frames.result("done"))
        assert await self._peer.read_line() == b""


class ScriptedQuery:
    """Plays one query against a script."""

    def __init__(self, play: Callable[[ScriptPeer], Awaitable[object]]) -> None:
        self.transport = MemoryTransport(self._run)
        self.initialize_request: Body = {}
        self.argv: tuple[str, ...] = ()
        self.files: tuple[PrivateFile, ...] = ()
        self.info: Body = {"hook_on_failure_supported": True}
        self._play = play

    async def _run(self, peer: MemoryPeer) -> None:
        initialize_request = await peer.read_frame() or {}
        self.initialize_request, self.argv, self.files = (
            initialize_request["request"],
            peer.invocation.argv,
            peer.invocation.files,
        )
        await peer.write(frames.control_response(initialize_request["request_id"], frames.server_info() | self.info))
        first = await peer.read_frame() or {}
        if first["type"] == "control_request":
            assert first["request"]["subtype"] == "get_settings"
            await peer.write(frames.control_response(first["request_id"], _make_settings_answer(peer.invocation)))
            first = await peer.read_frame() or {}
        assert first["type"] == "user"
        await peer.write(frames.init())
        await self._play(ScriptPeer(peer))

    def query(self, **settings: Any) -> ph.Query:
        return ph.query("go", transport=self.transport, **settings)

    async def run(self, **settings: Any) -> ph.QueryResult:
        """Ask; a failure of the script is that of the test."""
        try:
            with anyio.fail_after(10):
                return await self.query(**settings)
        finally:
            if self.transport.script_error is not None:
                raise self.transport.script_error
