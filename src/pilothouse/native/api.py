"""The Messages API through the official client: requests, streamed replies, and errors.

Owns the wire format of errors. The only file that imports `anthropic`. Sends each request once; `model_request`
retries. Knows no tools and no sessions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

import anyio
import anyio.to_thread

from pilothouse.errors import UsageError
from pilothouse.native.json_values import JsonObject, as_object
from pilothouse.transports.errands import run_briefly

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
            http_client=library.DefaultAsyncHttpxClient(verify=await run_briefly(_make_ssl_context)),
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
        told: Any = error
        status = _get_status(told)
        return ApiError(
            told.api_message or told.message,
            status=status,
            kind=told.type,
            request_id=told.request_id,
            retry_after=_parse_seconds(told.response.headers.get("retry-after")),
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
