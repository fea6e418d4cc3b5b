"""What the protocols of the vendors have in common: a request, an answer, an error, and a dialect that converts them.

Pure: no HTTP, no model. Readers of JSON that name the field that is wrong.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

import msgspec

from pilothouse.errors import (
    AuthenticationError,
    BudgetError,
    ContextOverflowError,
    InvalidModelError,
    MaxTurnsError,
    OverloadedError,
    PilothouseError,
    QueryTimeout,
    QuotaError,
    RateLimitError,
    ResultError,
    SessionNotFoundError,
    StructuredOutputError,
    UsageError,
)
from pilothouse.events import ToolCall
from pilothouse.support import encode_json
from pilothouse_models import GenerateResult

JsonBody: TypeAlias = dict[str, Any]
MIN_RETRY_SECONDS: Final = 1
DEFAULT_RETRY_SECONDS: Final = 5
"""After a limit or an overload that does not say how long it lasts."""
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
MAX_ATTEMPTS: Final = 4
"""Answers of the model to one request: it is asked again for calls and outputs that are not valid."""
_PASSING_STATUSES: Final = (429, 529)
MAX_CLI_OUTPUT_TOKENS: Final = 32_000
"""A limit of the output from here on has no effect: the CLI asks for no longer answers by itself."""


class EndpointError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        kind: what is wrong, in the words of Anthropic.
        message: what is wrong, for people.
        code: what is wrong, in the words of OpenAI.
        param: the field that is wrong.
        retry_after: seconds after which the client should try again.
        details: further facts in Anthropic's form of the error.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.details = details


# The first match gives status, kind and code.
_ERRORS: Final[Sequence[tuple[type[PilothouseError], int, str, str | None]]] = (
    (UsageError, 400, "invalid_request_error", None),
    (ContextOverflowError, 400, "invalid_request_error", "context_length_exceeded"),
    (AuthenticationError, 401, "authentication_error", "invalid_api_key"),
    (BudgetError, 403, "permission_error", "budget_exceeded"),
    (InvalidModelError, 404, "not_found_error", "model_not_found"),
    (SessionNotFoundError, 404, "not_found_error", "previous_response_not_found"),
    (QuotaError, 429, "rate_limit_error", "insufficient_quota"),
    (RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (OverloadedError, 529, "overloaded_error", "overloaded"),
    (QueryTimeout, 504, "timeout_error", "timeout"),
    # The same request would most likely end the same way, and clients send a status of 500 again by themselves.
    (StructuredOutputError, 422, "invalid_request_error", "invalid_output"),
    (MaxTurnsError, 422, "invalid_request_error", "max_turns"),
    (ResultError, 500, "api_error", None),
)
# What the API refused is refused here too, with its status: a client sends a status of 500 again.
_REFUSALS: Final[Mapping[int, str]] = {403: "permission_error", 413: "request_too_large"}
_HIDDEN_FAILURE: Final = "Claude Code could not be run; the log of the server says why"


def make_endpoint_error(error: Exception) -> EndpointError | None:
    """Convert a failed run; None if only the log of the server may say what happened."""
    if isinstance(error, EndpointError):
        return error
    for kind, status, words, code in _ERRORS:
        if isinstance(error, kind):
            given = getattr(error, "api_error_status", None) or 0
            if given in _REFUSALS or (kind is ResultError and 400 <= given < 500):
                return EndpointError(given, _REFUSALS.get(given, "invalid_request_error"), str(error))
            resets_at = getattr(error, "resets_at", None)
            wait = DEFAULT_RETRY_SECONDS if status in _PASSING_STATUSES and kind is not QuotaError else None
            if resets_at is not None:
                wait = max(MIN_RETRY_SECONDS, int(resets_at - time.time()))
            text = str(error)
            if isinstance(error, StructuredOutputError):
                text += f" (answers of the model: {error.attempts}); simplify the schema, or explain it in the prompt"
            return EndpointError(status, words, text, code=code, retry_after=wait)
    return None


def make_hidden_error() -> EndpointError:
    """Make the error for a failure whose text may name paths or settings of the server."""
    return EndpointError(500, "api_error", _HIDDEN_FAILURE)


class EndpointRequest(msgspec.Struct, kw_only=True):
    """A request of any protocol, in a form that `LanguageModel` accepts.

    An answer ends at a `stop` text, and has one call at most if `one_call`. `previous` is the id of the answer that
    this request continues; `ignored` are parameters that have no effect here.
    """

    model: str
    messages: list[Any]
    tools: list[JsonBody] = []
    tool_choice: Any = "auto"
    json_schema: JsonBody | None = None
    settings: dict[str, Any] = {}
    stop: tuple[str, ...] = ()
    one_call: bool = False
    is_stream: bool = False
    wants_thinking: bool = True
    previous: str | None = None
    ignored: tuple[str, ...] = ()
    body: JsonBody = {}


class EndpointAnswer(msgspec.Struct, kw_only=True):
    """The end of an answer: its text, up to the stop text that ended it, and the calls that the client has to run."""

    result: GenerateResult
    text: str
    calls: tuple[ToolCall, ...] = ()
    stopped_by: str | None = None

    @property
    def finish_reason(self) -> str:
        """Why the answer ended, in the words of `GenerateResult`."""
        if self.calls:
            return "tool-calls"
        reason = self.result.finish_reason
        return "stop" if self.stopped_by is not None or reason == "tool-calls" else reason


class AnswerWriter(Protocol):
    """Writes one answer: either `start`, `write_…` and `finish`, or `make_body`."""

    def start(self) -> Iterator[bytes]:
        """Yield the first events of a stream."""
        ...

    def write_text(self, text: str) -> Iterator[bytes]:
        """Yield the events of more text."""
        ...

    def write_thinking(self, text: str) -> Iterator[bytes]:
        """Yield the events of more thinking."""
        ...

    def finish(self, answer: EndpointAnswer) -> Iterator[bytes]:
        """Yield the events of the calls and of the end."""
        ...

    def fail(self, error: EndpointError) -> Iterator[bytes]:
        """Yield the event of a failure in the middle of a stream."""
        ...

    def make_body(self, answer: EndpointAnswer) -> JsonBody:
        """Make the body of an answer that is not streamed."""
        ...


class Dialect(msgspec.Struct, frozen=True):
    """A protocol of a vendor. `ping` keeps a silent stream open; `keeps_answers`: later requests may continue one."""

    read: Callable[[JsonBody], EndpointRequest]
    make_writer: Callable[[EndpointRequest], AnswerWriter]
    make_error_body: Callable[[EndpointError], JsonBody]
    ping: bytes = b": still here\n\n"
    keeps_answers: bool = False


def make_id(prefix: str) -> str:
    """Make an id that cannot be guessed."""
    return prefix + secrets.token_hex(16)


def encode_event(body: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encode a server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(body) + b"\n\n"


# Readers of request bodies.


def make_invalid(field: str, problem: str) -> EndpointError:
    """Make the error for a field that is not valid."""
    return EndpointError(400, "invalid_request_error", f"{field}: {problem}", code="invalid_value", param=field)


def read_field(body: Mapping[str, Any], name: str, kind: type[Any] | tuple[type[Any], ...], default: Any = None) -> Any:
    """Return a field of a body; the default if it is missing or null. Raises EndpointError for another type."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise make_invalid(name, f"expected {' or '.join(_TYPE_NAMES[each] for each in kinds)}")
    return value


_TYPE_NAMES: Final[Mapping[type[Any], str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}


def read_objects(body: Mapping[str, Any], name: str) -> list[JsonBody]:
    """Return an array of objects."""
    found = read_field(body, name, list, [])
    for at, each in enumerate(found):
        if not isinstance(each, dict):
            raise make_invalid(f"{name}[{at}]", "expected an object")
    return cast("list[JsonBody]", found)


def read_stop(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the stop texts: a string or an array of strings."""
    given = read_field(body, name, (str, list), [])
    texts = [given] if isinstance(given, str) else cast("list[Any]", given)
    if not all(isinstance(each, str) for each in texts):
        raise make_invalid(name, "expected strings")
    return tuple(each for each in texts if each)


def read_model(body: Mapping[str, Any]) -> str:
    """Return the name of the model."""
    name = read_field(body, "model", str)
    if not name:
        raise make_invalid("model", "a request needs one")
    return name


def read_output_limit(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the setting for the first of the fields that limits the output: a number above 0."""
    for name in names:
        limit = read_field(body, name, int)
        if limit is not None:
            if limit < 1:
                raise make_invalid(name, "expected a number above 0")
            return {"max_output_tokens": limit} if limit < MAX_CLI_OUTPUT_TOKENS else {}
    return {}


def read_effort(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings for the effort of the model: one of `EFFORTS`, "minimal" or "none"."""
    effort = read_field(body, name, str)
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": "disabled"}
    if effort not in (*EFFORTS, "minimal"):
        raise make_invalid(name, f"expected one of none, minimal, {', '.join(EFFORTS)}")
    return {"effort": "low" if effort == "minimal" else effort}


class StopTextFilter:
    """Cuts a text at the first stop text, which `found` then names, and holds back what could become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what is certain to be before any stop text."""
        if self.found is not None:
            return ""
        held = self._held + text
        places = [(place, stop) for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return held[:place]
        kept = max((_count_begun(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def end(self) -> str:
        """Return what was held back, now that the text is over."""
        held, self._held = self._held, ""
        return held


def _count_begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text begin a stop text."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
