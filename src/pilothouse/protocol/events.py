"""What a connection reports besides messages: answers, questions, withdrawals and odd lines.

Owns these small immutable structs and the counters. Must not know how they come about or who acts on them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pilothouse.errors import PeerError
from pilothouse.messages import Message


class ResponseReceived(msgspec.Struct, frozen=True):
    """The peer answered one of our requests. `subtype` is that of the request. (R9, G17)"""

    request_id: str
    subtype: str
    payload: dict[str, Any]


class ErrorReceived(msgspec.Struct, frozen=True):
    """The peer answered one of our requests with an error; `code` is its `error_code`, if it sent one. (G29)"""

    request_id: str
    subtype: str
    error: str
    code: str | None = None


class RequestReceived(msgspec.Struct, frozen=True):
    """The peer asks us. `subtype` is "" when it did not say what it wants; refuse that."""

    request_id: str
    subtype: str
    body: dict[str, Any]


class RequestCancelled(msgspec.Struct, frozen=True):
    """The peer took back a question that we had not answered; it expects no answer any more."""

    request_id: str


class NonJsonLine(msgspec.Struct, frozen=True):
    """A line that is not JSON, such as startup text; long ones are clipped. (L28)"""

    line: bytes


class LineTooLong(msgspec.Struct, frozen=True):
    """A line, or an object cut over several lines, that was dropped for its length in bytes. (G32)"""

    size: int
    head: bytes


class InvalidFrame(msgspec.Struct, frozen=True):
    """JSON that is no message or no usable control frame, or an object that was cut and never went on."""

    error: PeerError


ConnectionEvent = (
    ResponseReceived | ErrorReceived | RequestReceived | RequestCancelled | NonJsonLine | LineTooLong | InvalidFrame
)


class OutputEnd(msgspec.Struct, frozen=True):
    """What the end of the peer's output brought to light.

    Attributes:
        messages: those that were in the last line, which had no line end.
        unanswered: ids of our requests that will never be answered, oldest first.
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
        unmatched_responses: answers to requests that are not, or no longer, pending.
        repeated_requests: questions received again under the same id.
        unmatched_cancellations: withdrawals of questions that were not open.
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
