"""The Messages API through the official client: requests, errors, and the parts of a streamed reply.

Owns the wire format of errors. The only file that imports `anthropic`. Knows no tools, no turns and no session.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

import anyio
import anyio.to_thread

from pilothouse.errors import UsageError
from pilothouse.support import mask, run_blocking
from pilothouse_native.wire import JsonObject, as_object

TIMEOUT_SECONDS: Final = 600.0
"""Time limit of one request; the client's own default."""
CLOSE_SECONDS: Final = 2.0

_TOO_LONG_PHRASES: Final = ("prompt is too long", "exceed context limit", "context window")
_AUTHENTICATION: Final = ("authentication_failed", "Failed to authenticate. API Error: {status} {message}")
_OTHER: Final = ("unknown", "API Error: {status} {message}")
_SERVER: Final = (
    "server_error",
    (
        "API Error: {status} {message}. The server failed, which usually passes: try again in a moment, and look at "
        "the endpoint if it does not."
    ),
)
# By status: the error class on the message, and the text of the message and the result.
_FAILURES: Final[Mapping[int | None, tuple[str, str]]] = {
    None: ("server_error", "API Error: the API could not be reached or broke off: {message}"),
    401: _AUTHENTICATION,
    402: ("billing_error", _OTHER[1]),
    403: _AUTHENTICATION,
    404: ("model_not_found", _OTHER[1]),
    413: ("invalid_request", "Request too large: {message} Remove images or compact the conversation."),
    429: ("rate_limit", "API Error: Request rejected (429) · {message}"),
}
_RETRY_CATEGORIES: Final[Mapping[int | None, str]] = {None: "unknown", 529: "overloaded"}


@dataclass(eq=False)
class ApiError(Exception):
    """The API refused the request, or could not be reached; then there is no `status`.

    The `kind` is the type of the error as the API names it, such as "overloaded_error".
    """

    message: str
    status: int | None = None
    kind: str | None = None
    request_id: str | None = None
    retry_after: float | None = None
    is_local: bool = False
    """Whether no request was sent, because there is no key or no address."""

    @property
    def is_retryable(self) -> bool:
        """Whether a retry may help; like the CLI, also after a 401."""
        return not self.is_local and (self.status is None or self.status in {401, 408, 409, 429} or self.status >= 500)

    @property
    def is_prompt_too_long(self) -> bool:
        """Whether the conversation is too long for the model's context window."""
        return self.status == 400 and any(words in self.message.lower() for words in _TOO_LONG_PHRASES)

    @property
    def category(self) -> str:
        """The error class on the wire."""
        return self._describe()[0]

    @property
    def retry_category(self) -> str:
        """The error class for `api_retry`."""
        return _RETRY_CATEGORIES.get(self.status) or self.category

    @property
    def text(self) -> str:
        """The text of the message and of the result."""
        template = "Prompt is too long · {message}" if self.is_prompt_too_long else self._describe()[1]
        return template.format(status=self.status, message=self.message)

    @property
    def terminal_reason(self) -> str:
        """Why the turn ends."""
        return "prompt_too_long" if self.is_prompt_too_long else "image_error" if self.status == 413 else "api_error"

    @property
    def fields(self) -> JsonObject:
        """Fields of the message and of the result."""
        if self.is_local and self.status is not None:  # a missing key: a status would say that the API refused one
            return {}
        if self.status is None:
            return {"api_error_status": None, "api_error": "connection_failed"}
        return {"api_error_status": self.status} | ({"api_error_type": self.kind} if self.kind else {})

    def _describe(self) -> tuple[str, str]:
        return _FAILURES.get(self.status, _SERVER if (self.status or 0) >= 500 else _OTHER)


_NO_ADDRESS: Final = "expected an address such as 'https://api.anthropic.com'"


def _is_address(given: object) -> bool:
    return isinstance(given, str) and given.startswith(("http://", "https://"))


def _is_blocking(client: object) -> bool:
    """Whether a client is one of the package `anthropic` that blocks. Without an import, which takes seconds."""
    return any(base.__name__ == "SyncAPIClient" for base in type(client).__mro__)


class MessagesApi:
    """The Messages API, through a client of the package `anthropic`, or one that is given: that one is never closed."""

    def __init__(self, base_url: str | None = None, api_key: str | None = None, client: Any = None) -> None:
        if base_url is not None and not _is_address(base_url):
            raise UsageError(f"base_url: {_NO_ADDRESS}, got {mask(base_url)!r}")
        if client is not None and (not hasattr(client, "messages") or _is_blocking(client)):
            kind = type(client).__name__
            raise UsageError(f"client: expected an asynchronous client, such as anthropic.AsyncAnthropic, got {kind}")
        self._base_url, self._api_key = base_url, api_key
        self._client: Any = client
        self.has_own_client = client is None
        self._failure: ApiError | None = None
        self._ready = anyio.Event()

    def __repr__(self) -> str:
        return f"MessagesApi({mask(self._base_url)!r})"

    async def connect(self, env: Mapping[str, str]) -> None:
        """Make the client, unless one was given. Requests wait for it, and fail if there is no key."""
        if self.has_own_client:
            # In a thread: the first import takes a second or two. A cancelled caller does not wait for it.
            library = await anyio.to_thread.run_sync(import_module, "anthropic", abandon_on_cancel=True)
            key = self._api_key or env.get("ANTHROPIC_API_KEY") or None
            token = None if key else env.get("ANTHROPIC_AUTH_TOKEN") or None
            address = self._base_url or env.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
            if not _is_address(address):
                self._failure = ApiError(f"ANTHROPIC_BASE_URL: {_NO_ADDRESS}, got {mask(address)!r}", is_local=True)
            elif key is None and token is None:
                self._failure = ApiError(
                    "no API key: set ANTHROPIC_API_KEY", 401, "authentication_error", is_local=True
                )
            else:
                self._client = library.AsyncAnthropic(
                    api_key=key,
                    auth_token=token,
                    base_url=address,
                    max_retries=0,
                    timeout=TIMEOUT_SECONDS,
                    default_headers=_read_custom_headers(env),
                    http_client=library.DefaultAsyncHttpxClient(verify=await run_blocking(_make_ssl_context)),
                )
        self._ready.set()

    async def wait(self) -> None:
        """Wait for the client. Raises ApiError if there is no key, or no address."""
        await self._ready.wait()
        if self._failure is not None:
            raise replace(self._failure)

    async def aclose(self) -> None:
        """Close the client, unless it was given. Shielded, bounded."""
        if self.has_own_client and self._client is not None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._client.close()

    @asynccontextmanager
    async def stream(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> AsyncGenerator[Any]:
        """Send a request; yields the client's stream of events. Raises ApiError at the start, or in the middle."""
        await self.wait()
        async with _translate_errors():
            headers = _make_beta_header(betas)
            stream = await self._client.messages.create(**request, stream=True, extra_headers=headers)
            try:
                yield stream
            finally:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await stream.close()
                    # Exhaust the client's generators: trio warns about unfinished ones.
                    with suppress(Exception):
                        while True:
                            await anext(stream)

    async def create(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> tuple[JsonObject, str | None]:
        """Send a request; returns the whole message, and the API's id of the request. Raises ApiError."""
        await self.wait()
        async with _translate_errors():
            # Without an explicit timeout, the client refuses long requests that are not streamed.
            headers = _make_beta_header(betas)
            message = await self._client.messages.create(**request, extra_headers=headers, timeout=TIMEOUT_SECONDS)
            return message.to_dict(mode="json"), getattr(message, "_request_id", None)


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


def _to_api_error(error: Any) -> ApiError | None:
    library, http = import_module("anthropic"), import_module("httpx2")
    if isinstance(error, library.APIStatusError):
        return ApiError(
            error.api_message or error.message,
            status=error.status_code if error.status_code >= 400 else _STREAM_ERROR_STATUS.get(error.type or ""),
            kind=error.type,
            request_id=error.request_id,
            retry_after=_parse_seconds(error.response.headers.get("retry-after")),
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


def _parse_seconds(text: str | None) -> float | None:
    with suppress(ValueError):  # a date: the default delay is used
        return max(float(text), 0.0) if text else None
    return None


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


_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class InvalidStreamError(Exception):
    """The events of a stream do not form a reply."""


class StreamedReply:
    """A reply that is being received."""

    def __init__(self) -> None:
        self.header: JsonObject = {}  # the message of `message_start`, without its content
        self.blocks: list[JsonObject] = []  # the complete ones
        self.usage: JsonObject = {}
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self.is_complete = False  # `message_stop` ended the stream
        self._open: JsonObject | None = None
        self._input_json: list[str] = []
        self._input_error = ""  # why the input of a call could not be read

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> StreamedReply:
        """Make a reply from a whole message."""
        reply = cls()
        reply.feed({"type": "message_start", "message": message})
        reply.feed({"type": "message_delta", "delta": message})
        reply.feed({"type": "message_stop"})
        reply.blocks = list(message.get("content") or ())
        return reply

    @property
    def id(self) -> str:
        """Id of the message."""
        return str(self.header.get("id", ""))

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
        """Process an event; returns the block that it completed, or None. Raises InvalidStreamError."""
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
