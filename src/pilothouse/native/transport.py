"""`NativeTransport`: runs the engine in this process, in place of the CLI.

Owns how an `Invocation` reaches the engine and how the engine ends. Bytes flow through a `MemoryTransport`; the
engine runs in `serve`, concurrently with the stream.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from pilothouse.errors import CLIStartError, UsageError
from pilothouse.native.api import MISSING_PACKAGE
from pilothouse.native.engine import ApiAccess, Engine
from pilothouse.native.tools.base import BuiltinTool
from pilothouse.options import Invocation
from pilothouse.transports.base import ExitInfo, Health, Transport
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.memory import MemoryPeer, MemoryTransport

CLOSE_SECONDS = 5.0
"""Seconds for the engine to end its tools during `close`."""


class NativeTransport(Transport):
    """Answers without the CLI, over the Messages API, in this process.

    Sessions, hooks, permissions, tools, recording and the blocking API work as with the CLI. Needs the extra
    `pilothouse[native]`. One instance serves one connection: pass a function that makes one where several are needed.

    ::

        agent = Agent(transport=NativeTransport, model="sonnet")
        agent = Agent(transport=lambda: NativeTransport(base_url="http://127.0.0.1:8080", api_key="…"))
        agent = Agent(transport=lambda: NativeTransport(client=AsyncAnthropicBedrock()))

    Args:
        base_url: URL of the Messages API; None: ANTHROPIC_BASE_URL of the session's environment, or the public one.
        api_key: the key; None: ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN of that environment.
        client: an asynchronous client of the package `anthropic`, for Bedrock, Vertex or special needs; never closed.
        tools: the built-in tools, by name; None: those of the engine.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        client: Any = None,
        *,
        tools: Mapping[str, BuiltinTool] | None = None,
    ) -> None:
        self._access = ApiAccess(base_url, api_key, client)
        self._tools = tools
        self._memory = MemoryTransport(self._run_engine)
        self._ended = anyio.Event()
        self._is_serving = False
        self._has_ended = False
        self._home: TemporaryDirectory[str] | None = None
        self._env: Mapping[str, str] = {}
        self._cwd = Path()

    async def start(self, invocation: Invocation) -> None:
        """Check the requirements. The engine itself starts in `serve`.

        Raises:
            UsageError: the package `anthropic` is not installed, or the invocation requests another user.
            CLIStartError: the working directory does not exist.
        """
        if invocation.user is not None:
            raise UsageError("option 'user': the native engine runs in this process, as its user")
        if self._access.client is None and await run_blocking(find_spec, "anthropic") is None:
            raise UsageError(MISSING_PACKAGE)
        self._cwd = await run_blocking(_resolve_directory, invocation.cwd)
        await self._memory.start(invocation)
        self._env = await run_blocking(self._environment, invocation)

    def _environment(self, invocation: Invocation) -> Mapping[str, str]:
        home: str | None = None
        if invocation.home is not None:
            home = invocation.home.ensure()
        elif invocation.is_isolated:
            self._home = TemporaryDirectory(prefix="pilothouse-native-")
            home = self._home.name
        return invocation.env if home is None else {**invocation.env, "HOME": home}

    async def _run_engine(self, peer: MemoryPeer) -> None:
        invocation = peer.invocation
        engine = Engine(
            _MemoryPort(peer),
            (*invocation.argv, *invocation.trailing_args),
            self._env,
            self._cwd,
            files=invocation.files,
            access=self._access,
            tools=self._tools,
        )
        code = 1
        try:
            code = await engine.run()
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the transport was closed meanwhile
        peer.end(exit_code=code)

    async def serve(self) -> None:
        """Run the engine."""
        self._is_serving = True
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch)
                await self._memory.serve()
                self._has_ended = True
                group.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def _watch(self) -> None:
        """Discard output once `serve` is cancelled, because it is no longer read and must not block the engine."""
        try:
            await anyio.sleep_forever()
        finally:
            if not self._has_ended:
                self._memory.output_stream.set_state(is_read_closed=True)

    async def send(self, data: bytes) -> None:
        """Send `data` to the engine."""
        await self._memory.send(data)
        self._memory.sent.clear()  # the memory transport keeps them for tests

    async def receive(self) -> bytes:
        """Return the next bytes from the engine."""
        return await self._memory.receive()

    async def end_input(self) -> None:
        """End the engine's input: the engine answers the remaining prompts, and ends."""
        await self._memory.end_input()

    async def exit_info(self) -> ExitInfo:
        """Return how the engine ended."""
        return await self._memory.exit_info()

    async def close(self) -> None:
        """End the engine, its tools and their processes."""
        await self._memory.close()
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._is_serving:
                await self._ended.wait()
            home, self._home = self._home, None
            if home is not None:
                await run_blocking(partial(home.cleanup))

    def health(self) -> Health:
        """Return the state, and the reason if it is not healthy."""
        return self._memory.health()


class _MemoryPort:
    """The engine's end of the memory transport."""

    def __init__(self, peer: MemoryPeer) -> None:
        self._peer = peer

    async def read_line(self) -> bytes:
        return await self._peer.read_line()

    async def write(self, data: bytes) -> None:
        await self._peer.write(data)

    def stderr(self, text: str) -> None:
        self._peer.stderr(text)


def _resolve_directory(given: str | None) -> Path:
    path = Path(given) if given is not None else Path.cwd()
    if not path.is_dir() or not os.access(path, os.X_OK):
        raise CLIStartError(f"there is no working directory {path}")
    return path.resolve()
