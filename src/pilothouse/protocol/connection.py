"""The wire as a state machine: bytes in → messages and events out, calls in → bytes out.

Owns which call is allowed in which state, and which response belongs to which request. Must not know I/O, time,
tasks, or what any control subtype means.

The life of a connection is the table `TRANSITIONS`::

    opening ──feed──► open ──end_input──► input_ended ──end_output──► ended

`opening`: the CLI has not sent anything yet. `input_ended`: nothing can be sent any more, the CLI may still send.
`ended`: the output of the CLI has ended; nothing is pending. A call that a state does not list raises
`SessionClosedError`.

Two rules hold in every state: each request of the CLI gets at most one response, and each request of ours leaves
`pending` exactly once: by its response, by `cancel_request`, or by `end_output`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from msgspec import Struct

from pilothouse.errors import MessageParseError, SessionClosedError
from pilothouse.messages import Message
from pilothouse.protocol.control_frames import (
    CONTROL_FRAMES,
    ControlCancelRequest,
    ControlRequest,
    ControlResponse,
    KeepAlive,
    ParsedRequest,
    cancel_line,
    error_line,
    read_id,
    read_request,
    read_response,
    request_line,
    success_line,
)
from pilothouse.protocol.events import (
    ConnectionEvent,
    ConnectionStats,
    ErrorReceived,
    InvalidFrame,
    OutputEnd,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
)
from pilothouse.protocol.frame_reader import DEFAULT_MAX_LINE_BYTES, FrameReader


class ConnectionState(StrEnum):
    """The states of a connection."""

    OPENING = "opening"
    OPEN = "open"
    INPUT_ENDED = "input_ended"
    ENDED = "ended"


class ConnectionCall(StrEnum):
    """The calls of a connection."""

    FEED = "feed"
    REQUEST = "request"
    CANCEL_REQUEST = "cancel_request"
    RESPOND = "respond"
    RESPOND_ERROR = "respond_error"
    END_INPUT = "end_input"
    END_OUTPUT = "end_output"


def _transitions_from(
    state: ConnectionState, *, moves: Mapping[ConnectionCall, ConnectionState], stays: tuple[ConnectionCall, ...]
) -> dict[ConnectionCall, ConnectionState]:
    # Late responses and cancellations are not errors: a handler cannot know that the CLI has exited. They return b"".
    late = (ConnectionCall.CANCEL_REQUEST, ConnectionCall.RESPOND, ConnectionCall.RESPOND_ERROR)
    return {**dict.fromkeys((*late, *stays), state), **moves}


_ENDINGS: Final = {
    ConnectionCall.END_INPUT: ConnectionState.INPUT_ENDED,
    ConnectionCall.END_OUTPUT: ConnectionState.ENDED,
}
TRANSITIONS: Final[Mapping[ConnectionState, Mapping[ConnectionCall, ConnectionState]]] = {
    ConnectionState.OPENING: _transitions_from(
        ConnectionState.OPENING,
        stays=(ConnectionCall.REQUEST,),
        moves={ConnectionCall.FEED: ConnectionState.OPEN, **_ENDINGS},
    ),
    ConnectionState.OPEN: _transitions_from(
        ConnectionState.OPEN, stays=(ConnectionCall.FEED, ConnectionCall.REQUEST), moves=_ENDINGS
    ),
    ConnectionState.INPUT_ENDED: _transitions_from(
        ConnectionState.INPUT_ENDED, stays=(ConnectionCall.FEED,), moves=_ENDINGS
    ),
    ConnectionState.ENDED: _transitions_from(
        ConnectionState.ENDED, stays=(ConnectionCall.END_INPUT, ConnectionCall.END_OUTPUT), moves={}
    ),
}

_SENDING: Final = frozenset({ConnectionState.OPENING, ConnectionState.OPEN})
_REMEMBERED_REQUESTS: Final = 1024
"""The ids of at least this many handled requests are kept, so that a repeated request is not handled twice."""


class Connection:
    """One conversation with one CLI process, without the pipes.

    Args:
        max_line_bytes: longest line accepted, in bytes; default 64 MiB. Longer lines are dropped and reported.
        id_prefix: prefix of the ids of our requests. Ids are unique within a connection; when several connections
            share one CLI, give each its own prefix.

    Attributes:
        events: what happened besides messages, oldest first; the caller removes them.
        stats: counters.
    """

    def __init__(self, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, id_prefix: str = "ph") -> None:
        self.events: deque[ConnectionEvent] = deque()
        self.stats = ConnectionStats()
        self._state = ConnectionState.OPENING
        self._id_prefix = id_prefix
        self._next_id = 1
        self._pending: dict[str, str] = {}
        self._open_requests: dict[str, ParsedRequest] = {}
        self._closed_requests: set[str] = set()
        self._closed_before: set[str] = set()
        self._reader = FrameReader(
            CONTROL_FRAMES,
            max_line_bytes=max_line_bytes,
            on_control_frame=self._on_control_frame,
            events=self.events,
            stats=self.stats,
        )

    @property
    def state(self) -> ConnectionState:
        """The current state."""
        return self._state

    @property
    def pending(self) -> Mapping[str, str]:
        """Our requests that wait for a response: id to subtype, oldest first."""
        return MappingProxyType(self._pending)

    @property
    def open_requests(self) -> Mapping[str, str]:
        """Requests of the CLI that wait for our response: id to subtype, oldest first."""
        return {request_id: question.subtype for request_id, question in self._open_requests.items()}

    @property
    def non_json_lines(self) -> tuple[bytes, ...]:
        """The last lines that were not JSON, oldest first, clipped: shown when the CLI fails to start."""
        return tuple(self._reader.non_json_lines)

    @property
    def fragment(self) -> bytes:
        """The beginning of an object that was cut at a line end and may still continue; b"" if there is none."""
        return self._reader.fragment

    # -- bytes in --------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes from the CLI, cut anywhere. No content raises.

        Returns:
            The messages that are complete now, in order. Everything else is in `events`.

        Raises:
            SessionClosedError: the output has ended.
        """
        if self._state is not ConnectionState.OPEN:
            self._step(ConnectionCall.FEED)
        return self._reader.feed(data)

    def end_output(self) -> OutputEnd:
        """Record the end of the CLI's output: read its last line and give up on pending requests.

        Nothing is pending and no request is open afterwards. A second call returns an empty `OutputEnd`.
        """
        already_ended = self._state is ConnectionState.ENDED
        self._step(ConnectionCall.END_OUTPUT)
        if already_ended:
            return OutputEnd()
        messages, fragment = self._reader.flush()
        unanswered = tuple(self._pending)
        self._pending.clear()
        self._open_requests.clear()
        return OutputEnd(messages, unanswered, fragment)

    # -- bytes out -------------------------------------------------------------------------------------------------

    def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """Start a request to the CLI.

        Args:
            subtype: the subtype of the request, such as "initialize".
            body: the other fields of the request.

        Returns:
            The id that the `ResponseReceived` or `ErrorReceived` will have, and the bytes to send.

        Raises:
            UsageError: the body cannot be written as JSON; nothing is pending then.
            SessionClosedError: nothing can be sent any more.
        """
        self._step(ConnectionCall.REQUEST)
        request_id = f"{self._id_prefix}_{self._next_id}"
        line = request_line(request_id, subtype, body)
        self._next_id += 1
        self._pending[request_id] = subtype
        return request_id, line

    def cancel_request(self, request_id: str) -> bytes:
        """Stop waiting for the response to one of our requests.

        Returns:
            The cancellation to send; b"" if the request is not pending or nothing can be sent any more.
        """
        self._step(ConnectionCall.CANCEL_REQUEST)
        if self._pending.pop(request_id, None) is None or self._state not in _SENDING:
            return b""
        return cancel_line(request_id)

    def respond(self, request_id: str, payload: object) -> bytes:
        """Respond to a request of the CLI.

        Args:
            request_id: the id of its `RequestReceived`.
            payload: the body of the response.

        Returns:
            The bytes to send; b"" if the request was cancelled or has its response, or nothing can be sent any more.

        Raises:
            UsageError: the payload cannot be written as JSON; the request is still open then, and `respond_error`
                works.
        """
        return self._respond(ConnectionCall.RESPOND, request_id, success_line, payload)

    def respond_error(self, request_id: str, error: str, code: str | None = None) -> bytes:
        """Respond to a request of the CLI with an error. Arguments and result as in `respond`."""
        return self._respond(ConnectionCall.RESPOND_ERROR, request_id, error_line, error, code)

    def end_input(self) -> None:
        """Record that nothing will be sent any more. Idempotent."""
        self._step(ConnectionCall.END_INPUT)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _step(self, call: ConnectionCall) -> None:
        state = TRANSITIONS[self._state].get(call)
        if state is None:
            raise SessionClosedError(f"`{call}` is not possible: the connection is in state `{self._state}`")
        self._state = state

    def _respond(self, call: ConnectionCall, request_id: str, line_for: Callable[..., bytes], *args: object) -> bytes:
        self._step(call)
        question = self._open_requests.get(request_id)
        if question is None:
            return b""
        line = line_for(question.wire_id, *args) if self._state in _SENDING else b""
        self._close_request(request_id)
        return line

    def _close_request(self, request_id: str) -> None:
        del self._open_requests[request_id]
        self._closed_requests.add(request_id)
        if len(self._closed_requests) >= _REMEMBERED_REQUESTS:
            self._closed_before, self._closed_requests = self._closed_requests, set()

    def _on_control_frame(self, frame: Struct, line: bytes) -> None:
        self._ROUTES[type(frame)](self, frame, line)

    def _on_request(self, frame: ControlRequest, line: bytes) -> None:
        self.stats.control_frames += 1
        question = read_request(frame, line)
        if question is not None:
            self._open_request(question)
            return
        self.stats.invalid_frames += 1
        data = {"type": "control_request", "request_id": frame.request_id, "request": frame.request}
        self.events.append(InvalidFrame(MessageParseError("a control request without a usable request_id", data=data)))

    def _open_request(self, request: ParsedRequest) -> None:
        request_id = request.request_id
        if (
            request_id in self._open_requests
            or request_id in self._closed_requests
            or request_id in self._closed_before
        ):
            self.stats.repeated_requests += 1
            return
        self._open_requests[request_id] = request
        self.events.append(RequestReceived(request_id, request.subtype, request.body))

    def _on_response(self, frame: ControlResponse, line: bytes) -> None:
        self.stats.control_frames += 1
        answer = read_response(frame, line)
        subtype = None if answer is None else self._pending.pop(answer.request_id, None)
        if answer is None or subtype is None:
            # The CLI echoes our own responses when it replays user messages, so this is not a fault.
            self.stats.unmatched_responses += 1
            return
        if answer.error is None:
            self.events.append(ResponseReceived(answer.request_id, subtype, answer.payload))
        else:
            self.events.append(ErrorReceived(answer.request_id, subtype, answer.error, answer.code))
        for question in answer.open_requests:
            self._open_request(question)

    def _on_cancel(self, frame: ControlCancelRequest, line: bytes) -> None:
        self.stats.control_frames += 1
        request_id = read_id(frame.request_id)
        if request_id is None or request_id not in self._open_requests:
            self.stats.unmatched_cancellations += 1
            return
        self._close_request(request_id)
        self.events.append(RequestCancelled(request_id))

    def _on_keep_alive(self, frame: KeepAlive, line: bytes) -> None:
        self.stats.keep_alives += 1

    _ROUTES: ClassVar[Mapping[type[Struct], Callable[..., None]]] = {
        ControlRequest: _on_request,
        ControlResponse: _on_response,
        ControlCancelRequest: _on_cancel,
        KeepAlive: _on_keep_alive,
    }
