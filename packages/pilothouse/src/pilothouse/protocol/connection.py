"""The wire as a state machine: bytes in → messages and events out, calls in → bytes out.

Owns what may be sent when, and which response belongs to which request. Must not know I/O, time, tasks, or what any
control subtype means.

Two flags say where a connection is: `end_input` ends the input of the CLI, `end_output` its output and its input. After
either, nothing can be sent any more: `request` raises `SessionClosedError`; responses and cancellations give no bytes,
because a handler cannot know that the CLI has exited. After the end of the output, `feed` raises too.

Two rules hold always: each request of the CLI gets at most one response, and each request of ours leaves `pending`
exactly once: by its response, by `cancel_request`, or by `end_output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from msgspec import Struct

from pilothouse.errors import MessageParseError, SessionClosedError
from pilothouse.protocol.control_frames import (
    ControlCancelRequest,
    ControlRequest,
    ControlResponse,
    ErrorReceived,
    InvalidFrame,
    KeepAlive,
    OutputEnd,
    RequestCancelled,
    ResponseReceived,
    cancel_line,
    error_line,
    read_id,
    read_request,
    read_response,
    request_line,
    success_line,
)
from pilothouse.protocol.frame_reader import DEFAULT_MAX_LINE_BYTES, FrameReader

_REMEMBERED_REQUESTS: Final = 1024
"""The ids of at least this many handled requests are kept, so that a repeated request is not handled twice."""


class Connection(FrameReader):
    """One conversation with one CLI process, without the pipes.

    Args:
        max_line_bytes: longest line accepted, in bytes; default 64 MiB. Longer lines are dropped and reported.
        id_prefix: prefix of the ids of our requests. Ids are unique within a connection; when several connections
            share one CLI, give each its own prefix.

    Attributes:
        events: what happened besides messages, oldest first; the caller removes them.
        stats: counters.
        can_send: whether the CLI still reads its input: neither `end_input` nor `end_output` was called.
        is_output_ended: whether `end_output` was called.
    """

    def __init__(self, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, id_prefix: str = "ph") -> None:
        super().__init__(max_line_bytes)
        self.can_send = True
        self._id_prefix = id_prefix
        self._next_id = 1
        self._pending: dict[str, str] = {}
        self._open_requests: dict[str, tuple[str, str | int]] = {}  # id → subtype, and the id as it was received
        self._closed_requests: set[str] = set()
        self._closed_before: set[str] = set()

    @property
    def pending(self) -> Mapping[str, str]:
        """Our requests that wait for a response: id to subtype, oldest first."""
        return MappingProxyType(self._pending)

    @property
    def open_requests(self) -> Mapping[str, str]:
        """Requests of the CLI that wait for our response: id to subtype, oldest first."""
        return {request_id: subtype for request_id, (subtype, _) in self._open_requests.items()}

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
        if not self.can_send:
            raise SessionClosedError("`request` is not possible: the CLI reads no more input")
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
        was_pending = self._pending.pop(request_id, None) is not None
        return cancel_line(request_id) if was_pending and self.can_send else b""

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
        request = self._open_requests.get(request_id)
        if request is None:
            return b""
        line = success_line(request[1], payload) if self.can_send else b""
        self._close_request(request_id)
        return line

    def respond_error(self, request_id: str, error: str, code: str | None = None) -> bytes:
        """Respond to a request of the CLI with an error. Arguments and result as in `respond`."""
        request = self._open_requests.get(request_id)
        if request is None:
            return b""
        self._close_request(request_id)
        return error_line(request[1], error, code) if self.can_send else b""

    def end_input(self) -> None:
        """Record that nothing will be sent any more. Idempotent."""
        self.can_send = False

    def end_output(self) -> OutputEnd:
        """Record the end of the CLI's output: read its last line and give up on pending requests.

        Nothing is pending and no request is open afterwards. A second call returns an empty `OutputEnd`.
        """
        if self.is_output_ended:
            return OutputEnd()
        self.is_output_ended, self.can_send = True, False
        messages, fragment = self.flush()
        unanswered = tuple(self._pending)
        self._pending.clear()
        self._open_requests.clear()
        return OutputEnd(messages, unanswered, fragment)

    # -- control frames --------------------------------------------------------------------------------------------

    def _close_request(self, request_id: str) -> None:
        del self._open_requests[request_id]
        self._closed_requests.add(request_id)
        if len(self._closed_requests) >= _REMEMBERED_REQUESTS:
            self._closed_before, self._closed_requests = self._closed_requests, set()

    def _on_request(self, frame: ControlRequest) -> None:
        self.stats.control_frames += 1
        self._open_request(frame)

    def _open_request(self, frame: ControlRequest) -> None:
        request = read_request(frame)
        if request is None:
            self.stats.invalid_frames += 1
            data = {"type": "control_request", "request_id": frame.request_id, "request": frame.request}
            error = MessageParseError("a control request without a usable request_id", data=data)
            self.events.append(InvalidFrame(error))
            return
        key = request.request_id
        if key in self._open_requests or key in self._closed_requests or key in self._closed_before:
            self.stats.repeated_requests += 1
            return
        self._open_requests[key] = (request.subtype, frame.request_id)
        self.events.append(request)

    def _on_response(self, frame: ControlResponse) -> None:
        self.stats.control_frames += 1
        response = read_response(frame)
        subtype = None if response is None else self._pending.pop(response.request_id, None)
        if response is None or subtype is None:
            # The CLI echoes our own responses when it replays user messages, so this is not a fault.
            self.stats.unmatched_responses += 1
            return
        if response.error is None:
            self.events.append(ResponseReceived(response.request_id, subtype, response.payload))
        else:
            self.events.append(ErrorReceived(response.request_id, subtype, response.error, response.code))
        for request in response.open_requests:
            self._open_request(request)

    def _on_cancel(self, frame: ControlCancelRequest) -> None:
        self.stats.control_frames += 1
        request_id = read_id(frame.request_id)
        if request_id is None or request_id not in self._open_requests:
            self.stats.unmatched_cancellations += 1
            return
        self._close_request(request_id)
        self.events.append(RequestCancelled(request_id))

    def _on_keep_alive(self, frame: KeepAlive) -> None:
        self.stats.keep_alives += 1

    HANDLERS: ClassVar[Mapping[type[Struct], Callable[[Any, Any], None]]] = {
        ControlRequest: _on_request,
        ControlResponse: _on_response,
        ControlCancelRequest: _on_cancel,
        KeepAlive: _on_keep_alive,
    }
