"""How a run stands in a row of a journal, and how it is read again. Pure; knows no database.

Of an answer its closing message is kept, as the line that came, or all messages if the fleet keeps them. Of an error
its class, its text and two numbers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pilothouse import errors
from pilothouse.client import QueryResult
from pilothouse.client.result import essential_messages
from pilothouse.errors import PilothouseError
from pilothouse.fleet.run import Run
from pilothouse.messages import decode, encode

COLUMNS = (
    "number", "key", "prompt", "settings", "priority", "state", "attempts", "failures", "session_id", "lines", "whole",
    "error", "cost", "input_tokens", "output_tokens", "created", "started", "ended", "due", "limit_usd",
    "artifacts",
)  # fmt: skip
"""What `read_row` takes, in this order."""

_NUMBERS = ("api_error_status", "resets_at")


def result_columns(run: Run) -> tuple[bytes | None, int, bytes | None]:
    """The values of `lines`, `whole` and `error`."""
    result = run.result
    if result is None:
        return None, 0, error_text(run.error)
    whole = is_whole(result)
    messages = result.messages if whole else essential_messages(result)
    return b"\n".join(map(encode, messages)), int(whole), error_text(run.error)


def artifacts_text(run: Run) -> bytes | None:
    """The value of `artifacts`."""
    return msgspec.json.encode(run.artifacts) if run.artifacts else None


def error_text(error: Exception | None) -> bytes | None:
    """An error as JSON."""
    if error is None:
        return None
    known = {name: value for name in _NUMBERS if isinstance(value := getattr(error, name, None), int | float)}
    return msgspec.json.encode({"type": type(error).__name__, "message": str(error), **known})


def read_error(data: bytes | None) -> Exception | None:
    """The error again: of the class that it had, or of the root of all, if that is none of ours."""
    if data is None:
        return None
    body: dict[str, Any] = msgspec.json.decode(data)
    kind = getattr(errors, str(body["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, PilothouseError)):
        return PilothouseError(f"{body['type']}: {body['message']}")
    error = kind.__new__(kind, body["message"])  # some take more than a message
    error.args = (body["message"],)
    for name in _NUMBERS:
        if issubclass(kind, errors.ResultError):
            setattr(error, name, body.get(name))
    return error


def read_row(row: tuple[Any, ...]) -> Run:
    """A run from its row."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    lines, whole, cost = values.pop("lines"), values.pop("whole"), values.pop("cost")
    error = read_error(values.pop("error"))
    result = None
    if lines is not None:
        failure = error if isinstance(error, PilothouseError) else None
        messages = [decode(line) for line in bytes(lines).split(b"\n") if line]
        result = QueryResult(messages, incomplete=not whole, failure=failure)
    values |= {name: msgspec.json.decode(values[name]) for name in ("prompt", "settings")}
    values["artifacts"] = tuple(msgspec.json.decode(values["artifacts"] or b"[]"))
    return Run(**values, error=error, result=result, cost_usd=cost)


def is_whole(result: QueryResult) -> bool:
    """Whether an answer has all its messages."""
    try:
        return bool(result.messages)
    except errors.UsageError:
        return False


def reduced(result: QueryResult) -> QueryResult:
    """The answer without most of its messages, as a journal gives it back."""
    small = QueryResult(
        essential_messages(result),
        output=result.output if result.is_success else None,
        failure=result.error,
        incomplete=True,
    )
    small.structured, small.output_attempts = result.structured, result.output_attempts
    small.callback_errors = result.callback_errors
    return small
