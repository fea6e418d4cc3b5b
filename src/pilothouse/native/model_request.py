"""One request to the model: retries until there is a reply, and sends its frames as they arrive.

Owns retries, the fallback to a request without streaming when a stream breaks (as in the CLI), the fallback model,
and the frames of a reply. Knows nothing of tools and turns.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from pilothouse.native import frames
from pilothouse.native.api import ApiError, InvalidStreamError, MessagesApi, StreamedReply, get_retry_category
from pilothouse.native.json_values import JsonObject
from pilothouse.native.models import resolve_model
from pilothouse.native.state import SessionState

FIRST_DELAY: Final = 0.5
"""Seconds before the first retry; doubled for each further retry, up to `MAX_DELAY`."""
MAX_DELAY: Final = 32.0
JITTER: Final = 0.25
MAX_RETRY_AFTER: Final = 60.0
"""Upper limit for the seconds of a `retry-after` header."""

ConnectApi = Callable[[], Awaitable[MessagesApi]]


class PromptIds:
    """The uuids of the prompts that a turn answers; the first frame of each kind carries them."""

    def __init__(self, uuids: tuple[str, ...]) -> None:
        self.uuids = uuids
        self._sent_kinds: set[str] = set()

    def take_fields(self, kind: str) -> JsonObject:
        """Return the fields for the first frame of a kind; empty for later ones."""
        if not self.uuids or kind in self._sent_kinds:
            return {}
        self._sent_kinds.add(kind)
        return self.make_result_fields()

    def make_result_fields(self) -> JsonObject:
        """Return the fields for a result."""
        if not self.uuids:
            return {}
        return {"user_message_uuid": self.uuids[-1], "user_message_uuids": list(self.uuids)}


class ReplyRequest:
    """Requests one reply.

    Args:
        state: the session.
        connect: returns the API.
        prompt_ids: prompt uuids of the turn.
        is_silent: send no frames of the reply, because it is not part of the conversation.

    Attributes:
        reply: the reply as far as received.
        frame_uuids: the uuids of the frames of its blocks.
        request_id: the API's id of the request.
        first_event_at: time of the first event, on the clock of `time.monotonic`.
    """

    def __init__(
        self, state: SessionState, connect: ConnectApi, prompt_ids: PromptIds, *, is_silent: bool = False
    ) -> None:
        self._state, self._connect, self._prompt_ids, self._is_silent = state, connect, prompt_ids, is_silent
        self.reply = StreamedReply()
        self.frame_uuids: list[str] = []
        self.request_id: str | None = None
        self.first_event_at: float | None = None
        self._superseded: list[str] = []
        self._fallback_models = [resolve_model(name, state.env) for name in state.arguments.fallback_models]
        self._is_stream_open = False

    async def run(self, make_request: Callable[[], JsonObject]) -> StreamedReply:
        """Send the request, and retry until there is a reply.

        Args:
            make_request: makes the request; called again for every attempt.

        Raises:
            ApiError: the API refused, and retries did not help.
        """
        attempt, streams = 0, True
        while True:
            try:
                return await (self._stream(make_request()) if streams else self._create(make_request()))
            except ApiError as error:
                if self.reply.has_started:
                    await self._abandon()
                    if not self._state.env.get("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK"):
                        streams = False
                        continue
                    raise
                if error.is_retryable and attempt < self._state.max_retries:
                    attempt += 1
                    await self._wait_before_retry(error, attempt)
                elif error.status in {404, 429, 529} and await self._switch_model():
                    attempt = 0
                else:
                    raise

    async def _stream(self, request: JsonObject) -> StreamedReply:
        self._reset()
        state, began = self._state, time.monotonic()
        api = await self._connect()
        if state.arguments.partial_messages and not self._is_silent:
            status = frames.system("status", status="requesting")
            told = self._prompt_ids.take_fields("status")
            await state.wire.send(status | ({"user_message_uuids": list(self._prompt_ids.uuids)} if told else {}))
        async with api.stream(request, state.betas) as events:
            self.request_id = events.request_id
            async for event in events:
                await self._on_event(event, began)
        if not self.reply.is_complete:
            raise ApiError("the stream ended before the message did")
        self._record_usage(began)
        return self.reply

    async def _on_event(self, event: JsonObject, began: float) -> None:
        try:
            block = self.reply.feed(event)
        except (InvalidStreamError, KeyError, TypeError) as error:
            raise ApiError(f"the stream is broken: {error!r}") from error
        kind = event.get("type")
        if kind == "content_block_stop" and block is not None:
            await self._send_block(block)
        about: JsonObject = {}
        if kind == "message_start":
            self._is_stream_open = True
            self.first_event_at = self.first_event_at or time.monotonic()
            about = {"ttft_ms": round((time.monotonic() - began) * 1000)} | self._prompt_ids.take_fields("event")
        await self._send_event(event, **about)
        if kind == "message_stop":
            self._is_stream_open = False

    async def _send_event(self, event: JsonObject, **fields: Any) -> None:
        if self._state.arguments.partial_messages and not self._is_silent:
            await self._state.wire.send(frames.stream_event(event, self.reply.id, **fields))

    async def _create(self, request: JsonObject) -> StreamedReply:
        self._reset()
        began = time.monotonic()
        api = await self._connect()
        message, self.request_id = await api.create(request, self._state.betas)
        self.reply = StreamedReply.from_message(message)
        for block in list(self.reply.blocks):
            await self._send_block(block)
        self._record_usage(began)
        return self.reply

    async def _send_block(self, block: JsonObject) -> None:
        """Send the `assistant` frame of a block; it comes before the end of the block in the stream."""
        if self._is_silent:
            return
        name = str(uuid.uuid4())
        await self._run_display_hooks(block, name)
        about: JsonObject = self._prompt_ids.take_fields("assistant")
        if self.request_id:
            about["request_id"] = self.request_id
        if self._superseded and not self.frame_uuids:
            about["supersedes"] = self._superseded
        self.frame_uuids.append(name)
        await self._state.wire.send(frames.assistant(self.reply.header, [block], uuid=name, **about))

    async def _run_display_hooks(self, block: JsonObject, name: str) -> None:
        if block.get("type") == "text" and self._state.hooks.has_hooks("MessageDisplay"):
            about = {"turn_id": self._state.history.prompt_id, "message_id": name, "index": 0, "final": True}
            told = self._state.make_hook_fields(mode=False) | about | {"delta": block["text"]}
            await self._state.hooks.run("MessageDisplay", told, key=f"{name}-0")

    def _reset(self) -> None:
        self.reply, self.frame_uuids = StreamedReply(), []

    def _record_usage(self, began: float) -> None:
        self._state.totals.add(self._state.model, self.reply.usage, time.monotonic() - began)

    async def _abandon(self) -> None:
        """Discard a broken stream: none of it counts, and its frames are superseded."""
        self._superseded += self.frame_uuids
        await self.close_stream(keep=0)
        self._reset()

    async def close_stream(self, *, keep: int) -> None:
        """Send the end of a stream that has none, so that its consumers know.

        Args:
            keep: how many of its blocks count.
        """
        if not self._is_stream_open:
            return
        self._is_stream_open = False
        delta = {"stop_reason": None, "stop_sequence": None}
        await self._send_event({"type": "message_delta", "delta": delta, "usage": self.reply.usage})
        left = {"api_message_id": self.reply.id, "from_block_index": keep}
        await self._send_event({"type": "message_stop"}, abandoned_blocks=left)

    async def _wait_before_retry(self, error: ApiError, attempt: int) -> None:
        delay = min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY) * (1 + random.random() * JITTER)  # noqa: S311
        delay = max(delay, min(error.retry_after or 0.0, MAX_RETRY_AFTER))
        await self._state.wire.send(
            frames.system(
                "api_retry",
                attempt=attempt,
                max_retries=self._state.max_retries,
                retry_delay_ms=round(delay * 1000),
                error_status=error.status,
                error=get_retry_category(error),
            )
        )
        await anyio.sleep(delay)

    async def _switch_model(self) -> bool:
        """Switch to the next fallback model; returns False if there is none."""
        while self._fallback_models:
            other = self._fallback_models.pop(0)
            if other != self._state.model:
                before, self._state.model = self._state.model, other
                text = f"Switched to {other}, because {before} is not available"
                told = {"trigger": "overloaded", "original_model": before, "fallback_model": other, "content": text}
                await self._state.wire.send(frames.system("model_fallback", **told))
                return True
        return False
