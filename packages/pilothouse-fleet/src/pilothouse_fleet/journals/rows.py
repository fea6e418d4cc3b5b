"""A run as a row of a SQL table, and back. Knows no statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pilothouse import errors
from pilothouse.client import QueryResult
from pilothouse.client.result import essential_messages
from pilothouse.errors import PilothouseError
from pilothouse.messages import decode, encode
from pilothouse_fleet.run import Run, has_all_messages

RUN_COLUMNS = (
    "number", "key", "prompt", "settings", "priority", "state", "attempts", "failures", "interruptions", "deaths",
    "session_id", "lines", "whole", "error", "cost", "input_tokens", "output_tokens", "created", "started", "ended",
    "due", "limit_usd", "artifacts",
)  # fmt: skip
"""The columns for `decode_run`, in this order."""
OUTCOME_COLUMNS = (
    "state", "failures", "interruptions", "deaths", "session_id", "lines", "whole", "error", "cost", "input_tokens",
    "output_tokens", "ended", "due", "artifacts",
)  # fmt: skip
"""The columns for `encode_outcome`, in this order."""

_NUMBER_FIELDS = ("api_error_status", "resets_at")


def encode_outcome(run: Run) -> tuple[Any, ...]:
    """Return what an attempt can change, as the values of `OUTCOME_COLUMNS`."""
    result, lines, is_whole = run.result, None, False
    if result is not None:
        is_whole = has_all_messages(result)
        lines = b"\n".join(map(encode, result.messages if is_whole else essential_messages(result)))
    return (
        run.state, run.failures, run.interruptions, run.deaths, run.session_id, lines, int(is_whole),
        encode_error(run.error), run.cost_usd, run.input_tokens, run.output_tokens, run.ended, run.due,
        msgspec.json.encode(run.artifacts) if run.artifacts else None,
    )  # fmt: skip


def encode_error(error: Exception | None) -> bytes | None:
    """Encode an error as JSON."""
    if error is None:
        return None
    known = {name: value for name in _NUMBER_FIELDS if isinstance(value := getattr(error, name, None), int | float)}
    return msgspec.json.encode({"type": type(error).__name__, "message": str(error), **known})


def decode_error(data: bytes | None) -> Exception | None:
    """Decode an error to its class, or to `PilothouseError` if the class is not from this package."""
    if data is None:
        return None
    body: dict[str, Any] = msgspec.json.decode(data)
    kind = getattr(errors, str(body["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, PilothouseError)):
        return PilothouseError(f"{body['type']}: {body['message']}")
    error = kind.__new__(kind, body["message"])  # some classes need more arguments
    error.args = (body["message"],)
    for name in _NUMBER_FIELDS:
        if issubclass(kind, errors.ResultError):
            setattr(error, name, body.get(name))
    return error


def decode_run(row: Sequence[Any]) -> Run:
    """Decode a run from the values of `RUN_COLUMNS`."""
    values: dict[str, Any] = dict(zip(RUN_COLUMNS, row, strict=True))
    lines, whole, cost = values.pop("lines"), values.pop("whole"), values.pop("cost")
    error = decode_error(values.pop("error"))
    result = None
    if lines is not None:
        failure = error if isinstance(error, PilothouseError) else None
        messages = [decode(line) for line in bytes(lines).split(b"\n") if line]
        result = QueryResult(messages, incomplete=not whole, failure=failure)
    values |= {name: msgspec.json.decode(values[name]) for name in ("prompt", "settings")}
    values["artifacts"] = tuple(msgspec.json.decode(values["artifacts"] or b"[]"))
    return Run(**values, error=error, result=result, cost_usd=cost)
