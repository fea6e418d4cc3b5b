"""`NativeTransport`: runs the engine in this process, in place of the CLI.

Owns how an `Invocation` reaches the engine, the two streams of bytes, and how the engine ends. The engine runs in
`serve`, concurrently with the stream.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import anyio
from msgspec.structs import replace

from pilothouse.errors import CLIStartError, UsageError
from pilothouse.options import Invocation
from pilothouse.support import run_blocking
from pilothouse.transports import ExitInfo, InProcessTransport, TransportFacts
from pilothouse_native.api import MessagesApi
from pilothouse_native.engine import Engine
from pilothouse_native.tools.base import BuiltinTool

CLOSE_SECONDS = 5.0
"""Seconds for the engine to end its tools during `close`."""


class NativeTransport(InProcessTransport):
    """Answers without the CLI, over the Messages API, in this process.

    Sessions, hooks, permissions, tools, recording and the blocking API work as with the CLI. One instance
    serves one connection: pass a function that makes one where several are needed.

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

    facts = TransportFacts(is_local=True)

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        client: Any = None,
        *,
        tools: Mapping[str, BuiltinTool] | None = None,
    ) -> None:
        super().__init__()
        if tools is not None and not isinstance(tools, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(cast("object", tools)).__name__
            raise UsageError(
                f"tools: expected a mapping of names to tools, got {kind}; the option `tools` chooses some"
            )
        self._api = MessagesApi(base_url, api_key, client)
        self._tools = tools
        self._home: TemporaryDirectory[str] | None = None
        self._scope: anyio.CancelScope | None = None
        self._served = anyio.Event()

    async def start(self, invocation: Invocation) -> None:
        """Check the requirements. The engine itself starts in `serve`.

        Raises:
            UsageError: the invocation requests another user, or the transport was started before.
            CLIStartError: the working directory does not exist.
        """
        self._mark_started(is_closed=self._is_closed)
        if invocation.user is not None:
            raise UsageError("option 'user': the native engine runs in this process, as its user")
        cwd = await run_blocking(_resolve_directory, invocation.cwd)
        env = await run_blocking(self._make_environment, invocation)
        self._set_invocation(replace(invocation, cwd=str(cwd), env=env))

    def _make_environment(self, invocation: Invocation) -> Mapping[str, str]:
        if invocation.home is not None:
            return {**invocation.env, "HOME": invocation.home.ensure()}
        if invocation.is_isolated:
            self._home = TemporaryDirectory(prefix="pilothouse-native-")
            return {**invocation.env, "HOME": self._home.name}
        return invocation.env

    async def serve(self) -> None:
        """Run the engine."""
        if self._invocation is None or self._is_closed:
            return
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                group.start_soon(self._drop_output_when_cancelled)
                self.set_exit(await self._run(self._invocation))
                group.cancel_scope.cancel()
        finally:
            self.set_exit(self.ENDED_BY_CLOSE)
            self._served.set()

    async def _run(self, invocation: Invocation) -> ExitInfo:
        found = ExitInfo(1)
        try:
            found = ExitInfo(await self._run_engine(invocation))
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the transport was closed meanwhile
        except* Exception as group:  # noqa: BLE001 - reported as for a process
            error = group.exceptions[0]
            found = ExitInfo(1, detail=f"the engine raised {type(error).__name__}: {error}", error=error)
        return found

    async def _run_engine(self, invocation: Invocation) -> int:
        argv, cwd = (*invocation.argv, *invocation.trailing_args), Path(invocation.cwd or ".")
        given: Any = {"files": invocation.files, "api": self._api, "tools": self._tools}
        given["keep_detached"] = invocation.keep_detached
        return await Engine(_EnginePort(self), argv, invocation.env, cwd, **given).run()

    async def _drop_output_when_cancelled(self) -> None:
        """Once `serve` is cancelled, nobody reads the output any more, and it must not block the engine."""
        try:
            await anyio.sleep_forever()
        finally:
            if self._exit_info is None:
                self.output_stream.set_state(is_read_closed=True)

    async def close(self) -> None:
        """End the engine, its tools and their processes."""
        self._is_closed = True
        self.input_stream.set_state(is_closed=True)
        self.output_stream.set_state(is_closed=True)
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._scope is not None:
                self._scope.cancel()
                await self._served.wait()
            self.set_exit(self.ENDED_BY_CLOSE)
            home, self._home = self._home, None
            if home is not None:
                await run_blocking(home.cleanup)


class _EnginePort:
    def __init__(self, transport: InProcessTransport) -> None:
        self.read_line = transport.input_stream.take_line
        self.write = transport.output_stream.put
        self.stderr = transport.feed_stderr


def _resolve_directory(given: str | None) -> Path:
    path = Path(given) if given is not None else Path.cwd()
    if not path.is_dir() or not os.access(path, os.X_OK):
        raise CLIStartError(f"there is no working directory {path}")
    return path.resolve()
