"""What a connection reports besides messages: responses, requests, cancellations and unreadable lines.

Owns these small immutable structs and the counters. Must not know what creates or handles them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pilothouse.errors import PeerError
from pilothouse.messages import Message

HEAD_BYTES: Final = 400
"""How many bytes of a dropped line are kept to recognise it by."""


class ResponseReceived(msgspec.Struct, frozen=True):
    """The CLI responded to one of our requests. `subtype` is that of the request."""

    request_id: str
    subtype: str
    payload: dict[str, Any]


class ErrorReceived(msgspec.Struct, frozen=True):
    """The CLI responded to one of our requests with an error; `code` is its `error_code`, if it sent one."""

    request_id: str
    subtype: str
    error: str
    code: str | None = None


class RequestReceived(msgspec.Struct, frozen=True):
    """The CLI sent a request. `subtype` is "" when the request names none; respond with an error then."""

    request_id: str
    subtype: str
    body: dict[str, Any]


class RequestCancelled(msgspec.Struct, frozen=True):
    """The CLI cancelled a request that was still open; it expects no response any more."""

    request_id: str


class NonJsonLine(msgspec.Struct, frozen=True):
    """A line that is not JSON, such as startup text; long ones are clipped."""

    line: bytes


class LineTooLong(msgspec.Struct, frozen=True):
    """A line, or an object cut over several lines, that was dropped for its length in bytes."""

    size: int
    head: bytes


class InvalidFrame(msgspec.Struct, frozen=True):
    """JSON that is neither a message nor a usable control frame, or an object that was cut and never continued."""

    error: PeerError


ConnectionEvent = (
    ResponseReceived | ErrorReceived | RequestReceived | RequestCancelled | NonJsonLine | LineTooLong | InvalidFrame
)


class OutputEnd(msgspec.Struct, frozen=True):
    """What the end of the CLI's output left behind.

    Attributes:
        messages: messages of the last line, which had no line end.
        unanswered: ids of our requests that will never get a response, oldest first.
        fragment: beginning of a JSON object that was cut off by the end; b"" if none was.
    """

    messages: list[Message] = []
    unanswered: tuple[str, ...] = ()
    fragment: bytes = b""


class ConnectionStats(msgspec.Struct):
    """Counters of one connection.

    Attributes:
        received_bytes: bytes fed in.
        messages: messages handed out.
        control_frames: control frames received, heartbeats not counted.
        keep_alives: heartbeats received.
        non_json_lines: lines that were not JSON.
        invalid_frames: JSON lines that were neither a message nor a usable control frame.
        long_lines: lines dropped for their length.
        cut_objects: JSON objects that were cut and never completed.
        repaired_objects: JSON objects that were cut and completed by later lines.
        unmatched_responses: responses to requests that are not, or no longer, pending.
        repeated_requests: requests received again under the same id.
        unmatched_cancellations: cancellations of requests that were not open.
    """

    received_bytes: int = 0
    messages: int = 0
    control_frames: int = 0
    keep_alives: int = 0
    non_json_lines: int = 0
    invalid_frames: int = 0
    long_lines: int = 0
    cut_objects: int = 0
    repaired_objects: int = 0
    unmatched_responses: int = 0
    repeated_requests: int = 0
    unmatched_cancellations: int = 0
