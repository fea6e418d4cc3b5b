"""The Messages API, through the official client; the one file that imports `anthropic`.

Owns the client's life and the translation of its errors. Asks once: retries are the business of who calls, because
they are visible on the wire. Knows no tools, no frames and no sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, Final

import anyio
import anyio.to_thread

from pilothouse.errors import UsageError
from pilothouse.native.shapes import JSON
from pilothouse.transports.errands import run_briefly

TIMEOUT_SECONDS: Final = 600.0
"""For one request, as the client's own default."""
CLOSE_SECONDS: Final = 2.0
MISSING: Final = "the native engine needs the package anthropic; install it with: pip install 'pilothouse[native]'"


class ApiError(Exception):
    """The API refused, or could not be reached.

    Attributes:
        status: HTTP status; None: there was no answer.
        kind: type of the error as the API names it, such as "overloaded_error".
        message: what it says.
        retry_after: seconds after which it may be asked again, if it said so.
        may_pass: asking again may help.
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
    def may_pass(self) -> bool:
        """Whether asking again may help: as the CLI, which also asks again after a 401."""
        return self.status is None or self.status in {401, 408, 409, 429} or self.status >= 500


class Api:
    """The Messages API.

    Args:
        client: an asynchronous client of the package `anthropic`, for the API itself, Bedrock, Vertex or another.
        owned: close it at the end.
    """

    def __init__(self, client: Any, *, owned: bool) -> None:
        self._client = client
        self._owned = owned

    @classmethod
    async def connect(cls, env: Mapping[str, str], base_url: str | None, api_key: str | None, client: Any) -> Api:
        """Make the client, unless there is one. It reads nothing but what is given here.

        Raises:
            UsageError: the package is not installed.
            ApiError: there is no key.
        """
        if client is not None:
            return cls(client, owned=False)
        library = await load()
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
            default_headers=_headers(env),
            http_client=library.DefaultAsyncHttpxClient(verify=await run_briefly(_tls)),
        )
        return cls(made, owned=True)

    async def aclose(self) -> None:
        """Close the client, if it is ours. Shielded, bounded."""
        if self._owned:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._client.close()

    def stream(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> Opened:
        """Ask; gives the events of the reply as they come, as plain dicts.

        Raises:
            ApiError: on the way in, or in the middle.
        """
        return _opened(self._client, request, betas)

    async def whole(self, request: Mapping[str, Any], betas: tuple[str, ...] = ()) -> tuple[JSON, str | None]:
        """Ask; gives the whole message, and what the API calls the request.

        Raises:
            ApiError: the API refused, or could not be reached.
        """
        async with _translated():
            # Without a timeout of its own, the client refuses what may take long and is no stream.
            headers = _betas(betas)
            message = await self._client.messages.create(**request, extra_headers=headers, timeout=TIMEOUT_SECONDS)
            return message.to_dict(mode="json"), getattr(message, "_request_id", None)


Opened = AbstractAsyncContextManager["Events"]


async def load() -> Any:
    """The package, imported in a thread: that takes a second or two the first time. Who is cancelled does not wait.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return await anyio.to_thread.run_sync(import_module, "anthropic", abandon_on_cancel=True)
    except ModuleNotFoundError as error:
        raise UsageError(MISSING) from error


@cache
def _tls() -> Any:
    """Certificates, read once: that takes longer than everything else before the first request."""
    return import_module("httpx2").create_ssl_context()


def _headers(env: Mapping[str, str]) -> dict[str, str]:
    """The variable ANTHROPIC_CUSTOM_HEADERS: a header a line."""
    lines = (line.partition(":") for line in env.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon and name.strip()}


def _betas(betas: tuple[str, ...]) -> dict[str, str] | None:
    return {"anthropic-beta": ",".join(betas)} if betas else None


@asynccontextmanager
async def _opened(client: Any, request: Mapping[str, Any], betas: tuple[str, ...]) -> AsyncGenerator[Events]:
    async with _translated():
        stream = await client.messages.create(**request, stream=True, extra_headers=_betas(betas))
        try:
            yield Events(stream)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await stream.close()
                # What is left in the client's generators is read out of them: trio complains of those left half-way.
                with suppress(Exception):
                    while True:
                        await anext(stream)


class Events(AsyncIterator[JSON]):
    """The events of a stream as plain dicts. No generator: those would have to be closed as well.

    Attributes:
        request_id: what the API calls the request.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.request_id: str | None = stream.response.headers.get("request-id")

    async def __anext__(self) -> JSON:
        event = await anext(self._stream)
        return event.to_dict(mode="json")


@asynccontextmanager
async def _translated() -> AsyncGenerator[None]:
    """What the client raises becomes an `ApiError`; a task that was cancelled stays so."""
    try:
        yield
    except (ApiError, asyncio.CancelledError):
        raise
    except Exception as error:
        found = _as_api_error(error)
        if found is None:
            raise
        raise found from error


def _as_api_error(error: Exception) -> ApiError | None:
    library, http = import_module("anthropic"), import_module("httpx2")
    if isinstance(error, library.APIStatusError):
        told: Any = error
        status = _status_of(told)
        return ApiError(
            told.api_message or told.message,
            status=status,
            kind=told.type,
            request_id=told.request_id,
            retry_after=_seconds(told.response.headers.get("retry-after")),
        )
    if isinstance(error, (library.APIError, http.HTTPError)):
        return ApiError(_reason(error))
    if isinstance(error, Warning):  # such as that of an old model, in a program that makes errors of warnings
        return ApiError(str(error), status=400)
    if isinstance(error, (ValueError, TypeError)) and _is_of_client(error):
        return ApiError(f"the stream is broken: {error}")
    return None


# In the middle of a stream an error has no status of its own: the response was a 200.
_STATUS_OF: Final[Mapping[str, int]] = {
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


def _status_of(error: Any) -> int | None:
    status: int = error.status_code
    return status if status >= 400 else _STATUS_OF.get(error.type or "")


def _seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:
        return None  # a date; the usual delay does as well


def _reason(error: BaseException) -> str:
    """The innermost reason of a failed connection says most."""
    reason = error
    while reason.__cause__ is not None:
        reason = reason.__cause__
    return f"{type(error).__name__}: {str(reason) or type(reason).__name__}"


def _is_of_client(error: Exception) -> bool:
    """Whether it was raised while the client read the stream: bad JSON, or bad UTF-8."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name: str = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return name.startswith(("json", "anthropic", "httpx2", "codecs"))
