"""The Messages API through the official client: requests, streamed replies, errors, and retries.

Owns the wire format of errors, retries, the fallback to a request without streaming when a stream breaks (as in the
CLI), the fallback model, and the frames of a reply. The only file that imports `anthropic`. Knows no tools and no
turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

import anyio
import anyio.to_thread

from pilothouse.errors import UsageError
from pilothouse.native import frames
from pilothouse.native.models import resolve_model
from pilothouse.native.state import SessionState
from pilothouse.native.wire import JsonObject, as_object
from pilothouse.transports.concurrency import run_blocking

TIMEOUT_SECONDS: Final = 600.0
"""Time limit of one request; the client's own default."""
CLOSE_SECONDS: Final = 2.0
MISSING_PACKAGE: Final = (
    "the native engine needs the package anthropic; install it with: pip install 'pilothouse[native]'"
)


class ApiError(Exception):
    """The API refused the request, or could not be reached.

    Attributes:
        status: HTTP status; None: there was no response.
        kind: type of the error as the API names it, such as "overloaded_error".
        message: text of the error.
        retry_after: seconds after which to retry, if the API gave them.
        is_retryable: whether a retry may help.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind = message, status, kind
        self.request_id, self.retry_after = request_id, retry_after

    @property
    def is_retryable(self) -> bool:
        """Whether a retry may help; like the CLI, also after a 401."""
        return self.status is None or self.status in {401, 408, 409, 429} or self.status >= 500


class MessagesApi:
    """The Messages API.

    Args:
        client: an asynchronous client of the package `anthropic`, for the API itself, Bedrock, Vertex or another.
        is_owned: whether `aclose` closes the client.
    """

    def __init__(self, client: Any, *, is_owned: bool) -> None:
        self._client = client
        self._is_owned = is_owned

    @classmethod
    async def connect(
        cls, env: Mapping[str, str], base_url: str | None, api_key: str | None, client: Any
    ) -> MessagesApi:
        """Make the client, unless one is given. It uses only the given values.

        Raises:
            UsageError: the package is not installed.
            ApiError: there is no key.
        """
        if client is not None:
            return cls(client, is_owned=False)
        library = await load_library()
        key = api_key or env.get("ANTHROPIC_API_KEY") or None
        token = None if key else env.get("ANTHROPIC_AUTH_TOKEN") or None
        if key is None and token is None:
            raise ApiError("no API key: set ANTHROPIC_API_KEY", status=401, kind="authentication_error")
        made = library.AsyncAnthropic(
            api_key=key,
            auth_token=token,
            base_url=base_url or env.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com",
            max_retries=0,
            timeout=TIMEOUT_SECONDS,
            default_headers=_read_custom_headers(env),
            http_client=library.DefaultAsyncHttpxClient(verify=await run_blocking(_make_ssl_context)),
        )
        return cls(made, is_owned=True)

    async def aclose(self) -> None:
        """Close the client if it is owned. Shielded, bounded."""
        if self._is_owned:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._client.close()

    def stream(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> OpenStream:
        """Send a request; yields the events of the reply as plain dicts.

        Raises:
            ApiError: at the start, or in the middle.
        """
        return _open_stream(self._client, request, betas)

    async def create(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> tuple[JsonObject, str | None]:
        """Send a request; returns the whole message, and the API's id of the request.

        Raises:
            ApiError: the API refused, or could not be reached.
        """
        async with _translate_errors():
            # Without an explicit timeout, the client refuses long requests that are not streamed.
            headers = _make_beta_header(betas)
            message = await self._client.messages.create(**request, extra_headers=headers, timeout=TIMEOUT_SECONDS)
            return message.to_dict(mode="json"), getattr(message, "_request_id", None)


OpenStream = AbstractAsyncContextManager["EventStream"]


async def load_library() -> Any:
    """Import the package in a thread: the first import takes a second or two.

    A cancelled caller does not wait for the import.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        return await anyio.to_thread.run_sync(import_module, "anthropic", abandon_on_cancel=True)
    except ModuleNotFoundError as error:
        raise UsageError(MISSING_PACKAGE) from error


@cache
def _make_ssl_context() -> Any:
    """Read certificates once: this takes longer than everything else before the first request."""
    return import_module("httpx2").create_ssl_context()


def _read_custom_headers(env: Mapping[str, str]) -> dict[str, str]:
    """Read the variable ANTHROPIC_CUSTOM_HEADERS: one header per line."""
    lines = (line.partition(":") for line in env.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon and name.strip()}


def _make_beta_header(betas: tuple[str, ...]) -> dict[str, str] | None:
    return {"anthropic-beta": ",".join(betas)} if betas else None


@asynccontextmanager
async def _open_stream(client: Any, request: Mapping[str, Any], betas: tuple[str, ...]) -> AsyncGenerator[EventStream]:
    async with _translate_errors():
        stream = await client.messages.create(**request, stream=True, extra_headers=_make_beta_header(betas))
        try:
            yield EventStream(stream)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await stream.close()
                # Exhaust the client's generators: trio warns about unfinished ones.
                with suppress(Exception):
                    while True:
                        await anext(stream)


class EventStream(AsyncIterator[JsonObject]):
    """The events of a stream as plain dicts. Not a generator, which would have to be closed as well.

    Attributes:
        request_id: the API's id of the request.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.request_id: str | None = stream.response.headers.get("request-id")

    async def __anext__(self) -> JsonObject:
        event = await anext(self._stream)
        return event.to_dict(mode="json")


@asynccontextmanager
async def _translate_errors() -> AsyncGenerator[None]:
    """Turn exceptions of the client into `ApiError`; cancellation passes unchanged."""
    try:
        yield
    except (ApiError, asyncio.CancelledError):
        raise
    except Exception as error:
        found = _to_api_error(error)
        if found is None:
            raise
        raise found from error


def _to_api_error(error: Exception) -> ApiError | None:
    library, http = import_module("anthropic"), import_module("httpx2")
    if isinstance(error, library.APIStatusError):
        failure: Any = error
        status = _get_status(failure)
        return ApiError(
            failure.api_message or failure.message,
            status=status,
            kind=failure.type,
            request_id=failure.request_id,
            retry_after=_parse_seconds(failure.response.headers.get("retry-after")),
        )
    if isinstance(error, (library.APIError, http.HTTPError)):
        return ApiError(_find_reason(error))
    if isinstance(error, Warning):  # such as that of an old model, in a program that turns warnings into errors
        return ApiError(str(error), status=400)
    if isinstance(error, (ValueError, TypeError)) and _is_from_client(error):
        return ApiError(f"the stream is broken: {error}")
    return None


# An error in the middle of a stream has no HTTP status: the response was a 200.
_STREAM_ERROR_STATUS: Final[Mapping[str, int]] = {
    "api_error": 500,
    "authentication_error": 401,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "request_too_large": 413,
    "timeout_error": 504,
}


def _get_status(error: Any) -> int | None:
    status: int = error.status_code
    return status if status >= 400 else _STREAM_ERROR_STATUS.get(error.type or "")


def _parse_seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:
        return None  # a date; the default delay is used


def _find_reason(error: BaseException) -> str:
    """Return the innermost cause of a failed connection, which is the most specific."""
    reason = error
    while reason.__cause__ is not None:
        reason = reason.__cause__
    return f"{type(error).__name__}: {str(reason) or type(reason).__name__}"


def _is_from_client(error: Exception) -> bool:
    """Whether the client raised the error while it read the stream: bad JSON, or bad UTF-8."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name: str = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return name.startswith(("json", "anthropic", "httpx2", "codecs"))


_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


class InvalidStreamError(Exception):
    """The events of a stream do not form a reply."""


class StreamedReply:
    """A reply that is being received.

    Attributes:
        header: the message of `message_start`, without its content.
        blocks: the complete blocks, in their order.
        stop_reason: why the reply ended.
        stop_sequence: the stop sequence that ended the reply.
        usage: token usage, as far as known.
        is_complete: whether `message_stop` ended the stream.
    """

    def __init__(self) -> None:
        self.header: JsonObject = {}
        self.blocks: list[JsonObject] = []
        self.usage: JsonObject = {}
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self.is_complete = False
        self._open: JsonObject | None = None
        self._input_json: list[str] = []
        self._input_error = ""  # why the input of a call could not be read

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> StreamedReply:
        """Make a reply from a whole message."""
        reply = cls()
        reply.header = {**message, "content": []}
        reply.blocks = list(message.get("content") or ())
        reply.usage = dict(message.get("usage") or {})
        reply.stop_reason, reply.stop_sequence = message.get("stop_reason"), message.get("stop_sequence")
        reply.is_complete = True
        return reply

    @property
    def id(self) -> str:
        """Id of the message."""
        return str(self.header.get("id", ""))

    @property
    def has_started(self) -> bool:
        """Whether any part of the reply has arrived."""
        return bool(self.header)

    @property
    def partial_block(self) -> JsonObject | None:
        """The unfinished block, if it is text; unfinished calls cannot be kept."""
        if self._open is None or self._open.get("type") != "text" or not self._open.get("text"):
            return None
        return self._open

    @property
    def tool_calls(self) -> list[JsonObject]:
        """The tool calls among the blocks."""
        return [block for block in self.blocks if block.get("type") == "tool_use"]

    @property
    def text(self) -> str:
        """The last block of text."""
        return next((b["text"] for b in reversed(self.blocks) if b.get("type") == "text"), "")

    def feed(self, event: Mapping[str, Any]) -> JsonObject | None:
        """Process an event; returns the block that it completed, or None.

        Raises:
            InvalidStreamError: the event does not fit the preceding ones.
        """
        match event.get("type"):
            case "message_start":
                message: JsonObject = event["message"]
                self.header = {**message, "content": []}
                self.usage = dict(message.get("usage") or {})
            case "content_block_start":
                self._open, self._input_json = dict(event["content_block"]), []
            case "content_block_delta":
                self._apply_delta(event["delta"])
            case "content_block_stop":
                return self._close_block()
            case "message_delta":
                delta: JsonObject = event.get("delta") or {}
                self.stop_reason, self.stop_sequence = delta.get("stop_reason"), delta.get("stop_sequence")
                if self._input_error and self.stop_reason != "max_tokens":
                    raise InvalidStreamError(self._input_error)
                self.usage.update({k: v for k, v in as_object(event.get("usage")).items() if v is not None})
            case "message_stop":
                self.is_complete = True
            case _:
                pass  # pings and unknown events
        return None

    def _apply_delta(self, delta: Mapping[str, Any]) -> None:
        if self._open is None:
            raise InvalidStreamError("a delta outside of a block")
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._input_json.append(delta.get("partial_json") or "")
        elif kind in _DELTA_FIELDS:
            key = _DELTA_FIELDS[kind]
            self._open[key] = (self._open.get(key) or "") + (delta.get(key) or "")
        elif kind == "citations_delta":
            self._open["citations"] = [*(self._open.get("citations") or ()), delta.get("citation")]

    def _close_block(self) -> JsonObject | None:
        block, self._open = self._open, None
        if block is None:
            raise InvalidStreamError("the end of a block that never began")
        text = "".join(self._input_json)
        if text.strip():
            try:
                given = json.loads(text)
            except ValueError as error:
                # A reply at its token limit ends in the middle of a call, which does not count.
                self._input_error = f"the input of a call is no JSON: {error}"
                return None
            block["input"] = cast("JsonObject", given) if isinstance(given, dict) else {"value": given}
        self.blocks.append(block)
        return block


class ApiFailure(NamedTuple):
    """A failure in the format of the wire.

    Attributes:
        text: text of the message and of the result.
        category: the error class on the message.
        terminal_reason: why the turn ended.
        fields: `api_error_status`, `api_error_type`, `api_error`; on the message and on the result.
    """

    text: str
    category: str
    terminal_reason: str
    fields: dict[str, Any]


_SERVER_SIDE: Final = (
    "API Error: {status} {message}. The server failed, which usually passes: try again in a moment, and look at the "
    "endpoint if it does not."
)
_STATUS_TEXTS: Final[dict[int, str]] = {
    401: "Failed to authenticate. API Error: {status} {message}",
    403: "Failed to authenticate. API Error: {status} {message}",
    413: "Request too large: {message} Remove images or compact the conversation.",
    429: "API Error: Request rejected (429) · {message}",
}
_CATEGORIES: Final[dict[int | None, str]] = {
    None: "server_error",
    401: "authentication_failed",
    402: "billing_error",
    403: "authentication_failed",
    404: "model_not_found",
    413: "invalid_request",
    429: "rate_limit",
}
_RETRY_CATEGORIES: Final[dict[int | None, str]] = {None: "unknown", 529: "overloaded"}
_TOO_LONG_PHRASES: Final = ("prompt is too long", "exceed context limit", "context window")


def is_prompt_too_long(error: ApiError) -> bool:
    """Whether the conversation is too long for the model's context window."""
    return error.status == 400 and any(words in error.message.lower() for words in _TOO_LONG_PHRASES)


def get_retry_category(error: ApiError) -> str:
    """Return the error class for `api_retry`."""
    return _RETRY_CATEGORIES.get(error.status) or _get_category(error)


def _get_category(error: ApiError) -> str:
    if error.status is not None and error.status >= 500:
        return "server_error"
    return _CATEGORIES.get(error.status, "unknown")


def describe_failure(error: ApiError) -> ApiFailure:
    """Describe the failure in the format of the wire."""
    if error.status is None:
        text = f"API Error: the API could not be reached or broke off: {error.message}"
        return ApiFailure(
            text, "server_error", "api_error", {"api_error_status": None, "api_error": "connection_failed"}
        )
    template = _STATUS_TEXTS.get(error.status, _SERVER_SIDE if error.status >= 500 else "API Error: {status} {message}")
    terminal = "prompt_too_long" if is_prompt_too_long(error) else "image_error" if error.status == 413 else "api_error"
    if terminal == "prompt_too_long":
        template = "Prompt is too long · {message}"
    fields: dict[str, Any] = {"api_error_status": error.status}
    if error.kind:
        fields["api_error_type"] = error.kind
    return ApiFailure(
        template.format(status=error.status, message=error.message), _get_category(error), terminal, fields
    )


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
            has_prompt = self._prompt_ids.take_fields("status")
            await state.wire.send(status | ({"user_message_uuids": list(self._prompt_ids.uuids)} if has_prompt else {}))
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
            fields = self._state.make_hook_fields(mode=False) | about | {"delta": block["text"]}
            await self._state.hooks.run("MessageDisplay", fields, key=f"{name}-0")

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
                fields = {"trigger": "overloaded", "original_model": before, "fallback_model": other, "content": text}
                await self._state.wire.send(frames.system("model_fallback", **fields))
                return True
        return False
