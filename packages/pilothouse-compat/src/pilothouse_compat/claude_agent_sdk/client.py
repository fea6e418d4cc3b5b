"""`ClaudeSDKClient`: a conversation with one CLI."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from ._errors import CLIConnectionError
from ._internal.transport import Transport
from .types import (
    ClaudeAgentOptions,
    ContextUsageResponse,
    McpStatusResponse,
    Message,
    PermissionMode,
    ResultMessage,
)

if TYPE_CHECKING:
    from ._internal.query import Query

_NOT_CONNECTED = "Not connected. Call connect() first."


class ClientMessages(AsyncIterator[Message]):
    """The messages of a client, whose connection `require` returns. Not a generator: leaving a loop ends nothing."""

    def __init__(self, require: Callable[[], Query]) -> None:
        self._require = require
        self._query: Query | None = None

    async def __anext__(self) -> Message:
        made = self._query = self._query or self._require()
        message = await made.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Leave the loop."""


class ClientResponse(AsyncIterator[Message]):
    """The messages of a client, up to a result."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages = messages
        self._has_ended = False

    async def __anext__(self) -> Message:
        if self._has_ended:
            raise StopAsyncIteration
        message = await anext(self._messages)
        self._has_ended = isinstance(message, ResultMessage)
        return message

    async def aclose(self) -> None:
        """Leave the loop."""


class ClaudeSDKClient:
    """A conversation: prompts and control requests at any time, and the messages that come.

    ::

        async with ClaudeSDKClient(options) as client:
            await client.query("Hello")
            async for message in client.receive_response():
                print(message)

    Args:
        options: the settings.
        transport: reaches the CLI in another way, see `query`.
    """

    def __init__(self, options: ClaudeAgentOptions | None = None, transport: Transport | None = None) -> None:
        self.options = options if options is not None else ClaudeAgentOptions()
        self._custom_transport = transport
        self._transport: Any = None
        self._query: Query | None = None

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI; a connection that is open is ended first.

        Args:
            prompt: sent at once; an iterable is sent in the background, and the input ends with it.

        Raises:
            CLIConnectionError: the CLI cannot be started.
            ProcessError: it has ended again.
            ValueError, TypeError: a setting cannot work.
        """
        # here, so that the import of a program stays short
        from ._internal.query import Query
        from ._internal.transport import subprocess_cli

        await self.disconnect()
        prompts = None if prompt is None or isinstance(prompt, str) else prompt
        transport = self._custom_transport or subprocess_cli.make_replacement(
            subprocess_cli.SubprocessCLITransport, prompt, self.options
        )
        made = self._query = Query(self.options, transport, prompts=prompts)
        self._transport = transport or made.wire
        try:
            await made.start()
            if isinstance(prompt, str):
                await self.query(prompt)
        except BaseException:
            await self.disconnect()
            raise

    def _require(self) -> Query:
        if self._query is None:
            raise CLIConnectionError(_NOT_CONNECTED)
        return self._query

    def receive_messages(self) -> AsyncIterator[Message]:
        """Iterate over all messages, until the CLI ends."""
        return ClientMessages(self._require)

    def receive_response(self) -> AsyncIterator[Message]:
        """Iterate over the messages up to the next result, which is the last one."""
        return ClientResponse(self.receive_messages())

    async def query(self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default") -> None:
        """Send a prompt now.

        Args:
            prompt: a text, or user messages; those without a `session_id` get this one.
            session_id: sent to the CLI.
        """
        wire = self._require().wire
        if isinstance(prompt, str):
            body = {"role": "user", "content": prompt}
            frame = {"type": "user", "message": body, "parent_tool_use_id": None, "session_id": session_id}
            await wire.write_prompt(frame)
            return
        async for each in prompt:
            await wire.write_prompt({**each, "session_id": each.get("session_id", session_id)})

    async def interrupt(self) -> None:
        """Stop the current turn."""
        await self._require().control("interrupt")

    async def set_permission_mode(self, mode: PermissionMode) -> None:
        """Change what happens to calls that no rule decides."""
        await self._require().control("set_permission_mode", mode=mode)

    async def set_model(self, model: str | None = None) -> None:
        """Change the model from the next turn on; None: the default."""
        await self._require().control("set_model", model=model)

    async def rewind_files(self, user_message_id: str) -> None:
        """Restore the files as they were at a prompt; needs `enable_file_checkpointing`."""
        await self._require().control("rewind_files", user_message_id=user_message_id)

    async def reconnect_mcp_server(self, server_name: str) -> None:
        """Connect to an MCP server again."""
        await self._require().control("mcp_reconnect", serverName=server_name)

    async def toggle_mcp_server(self, server_name: str, enabled: bool) -> None:
        """Enable or disable an MCP server."""
        await self._require().control("mcp_toggle", serverName=server_name, enabled=enabled)

    async def stop_task(self, task_id: str) -> None:
        """Stop a background task."""
        await self._require().control("stop_task", task_id=task_id)

    async def get_mcp_status(self) -> McpStatusResponse:
        """Return the state of all MCP servers."""
        return cast("McpStatusResponse", await self._require().control("mcp_status"))

    async def get_context_usage(self) -> ContextUsageResponse:
        """Return what fills the context."""
        return cast("ContextUsageResponse", await self._require().control("get_context_usage"))

    async def get_server_info(self) -> dict[str, Any] | None:
        """Return what the CLI has said about itself: commands, agents, models."""
        return self._require().server_info

    async def disconnect(self) -> None:
        """End the CLI, and wait until it is gone. Bounded, and safe to repeat."""
        made, self._query, self._transport = self._query, None, None
        if made is not None:
            await made.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> Literal[False]:
        await self.disconnect()
        return False
