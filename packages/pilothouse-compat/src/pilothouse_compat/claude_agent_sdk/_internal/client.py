"""`InternalClient`: what `query` runs on. Programs replace its method, and the names that this module imports."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Self

from ..types import ClaudeAgentOptions, Message
from .message_parser import is_replaced, parse_message, read_message
from .query import Query
from .transport import Transport
from .transport.subprocess_cli import (
    SubprocessCLITransport,
    make_replacement,
)


class InternalClient:
    """Runs queries."""

    def process_query(
        self,
        prompt: str | AsyncIterable[dict[str, Any]],
        options: ClaudeAgentOptions,
        transport: Transport | None = None,
    ) -> AsyncIterator[Message]:
        transport = transport or make_replacement(SubprocessCLITransport, prompt, options)
        read = parse_message if is_replaced(parse_message) else read_message
        return MessageStream(prompt, options, transport, read)


class MessageStream(AsyncIterator[Message]):
    """The messages of one query. The CLI ends with the loop, however it is left."""

    def __init__(
        self,
        prompt: str | AsyncIterable[dict[str, Any]],
        options: ClaudeAgentOptions,
        transport: Transport | None,
        read: Callable[[dict[str, Any]], Message | None],
    ) -> None:
        self._parts = (prompt, options, transport, read)
        self._query: Query | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            message = await (self._query or await self._start()).receive()
        except BaseException:
            await self.aclose()
            raise
        if message is None:
            await self.aclose()
            raise StopAsyncIteration
        return message

    async def _start(self) -> Query:
        prompt, options, transport, read = self._parts
        if not hasattr(prompt, "__aiter__") and not isinstance(prompt, str):
            raise TypeError(f"prompt: expected a text or an async iterable of messages, got {type(prompt).__name__}")
        prompts = None if isinstance(prompt, str) else prompt
        made = self._query = Query(options, transport, prompts=prompts, read=read)
        await made.start()
        if isinstance(prompt, str):
            body = {"role": "user", "content": prompt}
            frame = {"type": "user", "session_id": "", "message": body, "parent_tool_use_id": None}
            await made.wire.write_prompt(frame)
            await made.wire.finish_input()
        return made

    async def aclose(self) -> None:
        self._is_closed = True
        made, self._query = self._query, None
        if made is not None:
            await made.close()
