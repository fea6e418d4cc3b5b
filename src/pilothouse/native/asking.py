"""One reply of the model: asked for until it is there, and told as it comes.

Owns retries, the way out when a stream breaks off (the whole message at once, as the CLI does it), the other model, and
the frames of a reply. Knows nothing of tools and turns.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from pilothouse.native import frames
from pilothouse.native.api import Api, ApiError
from pilothouse.native.failures import retried_as
from pilothouse.native.models import resolve
from pilothouse.native.reply import BrokenStreamError, Reply
from pilothouse.native.shapes import JSON
from pilothouse.native.state import State

FIRST_DELAY: Final = 0.5
"""Seconds before the first retry; each further one doubles them, up to `LONGEST_DELAY`."""
LONGEST_DELAY: Final = 32.0
JITTER: Final = 0.25
LONGEST_WISH: Final = 60.0
"""Seconds that the API may ask to wait for; what is longer is no retry."""

Connect = Callable[[], Awaitable[Api]]


class Marks:
    """Which prompts a turn answers; the first frame of each kind names them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._told: set[str] = set()

    def first(self, kind: str) -> JSON:
        """What the first frame of a kind carries; nothing for the others."""
        if not self.names or kind in self._told:
            return {}
        self._told.add(kind)
        return self.all()

    def all(self) -> JSON:
        """What a result carries."""
        if not self.names:
            return {}
        return {"user_message_uuid": self.names[-1], "user_message_uuids": list(self.names)}


class Asking:
    """Asks for one reply.

    Args:
        state: the session.
        connect: gives the API.
        marks: of the turn.
        quiet: say nothing of the reply; it is not part of the conversation.

    Attributes:
        reply: what has come so far.
        names: the uuids of the frames of its blocks.
        request_id: what the API calls the request.
        begun: when the first event came, on the clock of `time.monotonic`.
    """

    def __init__(self, state: State, connect: Connect, marks: Marks, *, quiet: bool = False) -> None:
        self._state, self._connect, self._marks, self._quiet = state, connect, marks, quiet
        self.reply = Reply()
        self.names: list[str] = []
        self.request_id: str | None = None
        self.begun: float | None = None
        self._superseded: list[str] = []
        self._others = [resolve(name, state.env) for name in state.launch.fallback_models]
        self._is_open = False

    async def run(self, make: Callable[[], JSON]) -> Reply:
        """Ask until there is a reply.

        Args:
            make: makes the request; called again when another model is asked.

        Raises:
            ApiError: the API refused, and asking again did not help.
        """
        attempt, streams = 0, True
        while True:
            try:
                return await (self._stream(make()) if streams else self._whole(make()))
            except ApiError as error:
                if self.reply.has_begun:
                    await self._abandon()
                    if not self._state.env.get("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK"):
                        streams = False
                        continue
                    raise
                if error.may_pass and attempt < self._state.max_retries:
                    attempt += 1
                    await self._wait(error, attempt)
                elif error.status in {404, 429, 529} and await self._ask_another():
                    attempt = 0
                else:
                    raise

    async def _stream(self, request: JSON) -> Reply:
        self._forget()
        state, began = self._state, time.monotonic()
        api = await self._connect()
        if state.launch.partial and not self._quiet:
            status = frames.system("status", status="requesting")
            told = self._marks.first("status")
            await state.wire.say(status | ({"user_message_uuids": list(self._marks.names)} if told else {}))
        async with api.stream(request, state.betas) as events:
            self.request_id = events.request_id
            async for event in events:
                await self._take(event, began)
        if not self.reply.is_complete:
            raise ApiError("the stream ended before the message did")
        self._count(began)
        return self.reply

    async def _take(self, event: JSON, began: float) -> None:
        try:
            block = self.reply.feed(event)
        except (BrokenStreamError, KeyError, TypeError) as error:
            raise ApiError(f"the stream is broken: {error!r}") from error
        kind = event.get("type")
        if kind == "content_block_stop" and block is not None:
            await self._tell(block)
        about: JSON = {}
        if kind == "message_start":
            self._is_open = True
            self.begun = self.begun or time.monotonic()
            about = {"ttft_ms": round((time.monotonic() - began) * 1000)} | self._marks.first("event")
        await self._pass_on(event, **about)
        if kind == "message_stop":
            self._is_open = False

    async def _pass_on(self, event: JSON, **about: Any) -> None:
        if self._state.launch.partial and not self._quiet:
            await self._state.wire.say(frames.stream_event(event, self.reply.id, **about))

    async def _whole(self, request: JSON) -> Reply:
        self._forget()
        began = time.monotonic()
        api = await self._connect()
        message, self.request_id = await api.whole(request, self._state.betas)
        self.reply = Reply.whole(message)
        for block in list(self.reply.blocks):
            await self._tell(block)
        self._count(began)
        return self.reply

    async def _tell(self, block: JSON) -> None:
        """The `assistant` frame of a block; it comes before the end of the block in the stream."""
        if self._quiet:
            return
        name = str(uuid.uuid4())
        await self._display(block, name)
        about: JSON = self._marks.first("assistant")
        if self.request_id:
            about["request_id"] = self.request_id
        if self._superseded and not self.names:
            about["supersedes"] = self._superseded
        self.names.append(name)
        await self._state.wire.say(frames.assistant(self.reply.head, [block], uuid=name, **about))

    async def _display(self, block: JSON, name: str) -> None:
        if block.get("type") == "text" and self._state.hooks.has("MessageDisplay"):
            about = {"turn_id": self._state.history.prompt_id, "message_id": name, "index": 0, "final": True}
            told = self._state.about(mode=False) | about | {"delta": block["text"]}
            await self._state.hooks.fire("MessageDisplay", told, key=f"{name}-0")

    def _forget(self) -> None:
        self.reply, self.names = Reply(), []

    def _count(self, began: float) -> None:
        self._state.spending.add(self._state.model, self.reply.usage, time.monotonic() - began)

    async def _abandon(self) -> None:
        """The stream broke off: nothing of it counts, and the frames that were said are taken back."""
        self._superseded += self.names
        await self.close_stream(keep=0)
        self._forget()

    async def close_stream(self, *, keep: int) -> None:
        """Say the end of a stream that has none, so that whoever shows it knows.

        Args:
            keep: how many of its blocks count.
        """
        if not self._is_open:
            return
        self._is_open = False
        delta = {"stop_reason": None, "stop_sequence": None}
        await self._pass_on({"type": "message_delta", "delta": delta, "usage": self.reply.usage})
        left = {"api_message_id": self.reply.id, "from_block_index": keep}
        await self._pass_on({"type": "message_stop"}, abandoned_blocks=left)

    async def _wait(self, error: ApiError, attempt: int) -> None:
        delay = min(FIRST_DELAY * 2 ** (attempt - 1), LONGEST_DELAY) * (1 + random.random() * JITTER)  # noqa: S311
        delay = max(delay, min(error.retry_after or 0.0, LONGEST_WISH))
        await self._state.wire.say(
            frames.system(
                "api_retry",
                attempt=attempt,
                max_retries=self._state.max_retries,
                retry_delay_ms=round(delay * 1000),
                error_status=error.status,
                error=retried_as(error),
            )
        )
        await anyio.sleep(delay)

    async def _ask_another(self) -> bool:
        """The next of the models for such cases; False when there is none."""
        while self._others:
            other = self._others.pop(0)
            if other != self._state.model:
                before, self._state.model = self._state.model, other
                text = f"Switched to {other}, because {before} is not available"
                told = {"trigger": "overloaded", "original_model": before, "fallback_model": other, "content": text}
                await self._state.wire.say(frames.system("model_fallback", **told))
                return True
        return False
