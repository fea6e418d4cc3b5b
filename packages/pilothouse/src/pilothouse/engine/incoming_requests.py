"""Requests that the CLI sends to this process: each goes to the handler of its subtype, in a task of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import anyio
from msgspec import Struct, field

from pilothouse.errors import ControlError, UsageError
from pilothouse.protocol import Connection, RequestReceived

log = logging.getLogger("pilothouse.engine")

RequestHandler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Handles one subtype of request: takes its body and returns the payload of the response. An error becomes an error
response.
"""

UNSUPPORTED_CODE = "unsupported_request"


class OpenRequest(Struct, eq=False):
    """A request of the CLI that has no response yet."""

    request: RequestReceived
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # of its handler
    is_sending: bool = False


class IncomingRequests(Struct, eq=False):
    """The open requests of a connection.

    Args:
        connection: encodes the responses.
        handlers: by subtype of the request.
        send: sends the bytes of a response; ignores a connection that is closed.
        start_task: runs the work on a request beside the reader.

    Attributes:
        handlers: may be replaced.
    """

    _connection: Connection
    handlers: Mapping[str, RequestHandler]
    _send: Callable[[bytes], Awaitable[None]]
    _start_task: Callable[[Callable[[], Awaitable[None]]], object]
    _open: dict[str, OpenRequest] = field(default_factory=dict[str, OpenRequest])

    @property
    def has_open(self) -> bool:
        """Whether a request has not got its response yet."""
        return bool(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether this process works on a response. While a response is being sent, the CLI is slow, not we."""
        return not all(each.is_sending for each in self._open.values())

    def accept(self, request: RequestReceived) -> None:
        """Start to work on a request."""
        open_request = self._open[request.request_id] = OpenRequest(request)
        self._start_task(partial(self._respond, open_request))

    def cancel(self, request_id: str) -> None:
        """Cancel a request: its handler is cancelled, and no response is sent."""
        open_request = self._open.pop(request_id, None)
        if open_request is not None and not open_request.is_sending:
            open_request.scope.cancel()

    async def _respond(self, open_request: OpenRequest) -> None:
        request, response = open_request.request, b""
        if not self._is_open(open_request):  # it was cancelled before this task began
            return
        try:
            with open_request.scope:
                response = await self._handle(request)
                await self._send_response(open_request, response)
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == -inf:
                raise
            # The handler has cancelled its own task, not the connection: the CLI still waits for a response.
            await self._send_response(open_request, response or self._error_response(request, error))
        finally:
            if self._is_open(open_request):
                del self._open[request.request_id]

    def _is_open(self, open_request: OpenRequest) -> bool:
        return self._open.get(open_request.request.request_id) is open_request

    async def _send_response(self, open_request: OpenRequest, response: bytes) -> None:
        if response and self._is_open(open_request):  # empty if the request was cancelled, or the CLI reads no more
            open_request.is_sending = True
            await self._send(response)

    async def _handle(self, request: RequestReceived) -> bytes:
        """Return the response, encoded."""
        try:
            handler = self.handlers.get(request.subtype)
            if handler is None:  # the CLI waits for a response without a timeout, so it gets one
                text = f"Unsupported control request subtype: {request.subtype}"
                raise ControlError(text, subtype=request.subtype, code=UNSUPPORTED_CODE)
            return self._connection.respond(request.request_id, await handler(request.body))
        except Exception as error:  # noqa: BLE001 - the CLI gets an error response
            return self._error_response(request, error)

    def _error_response(self, request: RequestReceived, error: BaseException) -> bytes:
        code: str | None = None
        if isinstance(error, ControlError):
            error_text, code = str(error), error.code
        elif isinstance(error, UsageError):
            log.error("the answer to %r cannot be sent: %s", request.subtype, error)
            error_text = f"the host has no valid answer to {request.subtype}"
        else:  # the CLI must not wait forever, and learns nothing of our internals
            log.error("the handler of %r failed", request.subtype, exc_info=error)
            error_text = f"the host failed to handle {request.subtype}"
        return self._connection.respond_error(request.request_id, error_text, code)
