"""Requests that the CLI sends to this process: each goes to the handler of its subtype, many at the same time.

Most handlers return without waiting, so the task that reads also runs them. When a handler has to wait, that task
stays with its request and a new task reads on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import Context, copy_context
from types import coroutine
from typing import Any

import anyio
from msgspec import Struct, field

from pilothouse.callbacks import TimeLimited
from pilothouse.errors import ControlError, UsageError
from pilothouse.protocol import Connection, RequestReceived

log = logging.getLogger("pilothouse.driver")

RequestHandler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Handles one subtype of request: takes its body and returns the payload of the response. An error becomes an error
response; a `TimeLimited` result gets its timeout when it has to wait.
"""

UNSUPPORTED_CODE = "unsupported_request"


class ReaderTask(Struct, eq=False):
    """A task that reads and runs handlers, until a handler has to wait.

    Attributes:
        scope: cancel scope around all that the task does.
        request: the request whose handler has to wait.
        has_run_handlers: whether the task has run user code.
    """

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    request: OpenRequest | None = None
    has_run_handlers: bool = False


class OpenRequest(Struct, eq=False):
    """A request of the CLI that has no response yet."""

    request: RequestReceived
    time_limited: TimeLimited[Mapping[str, Any]] | None = None
    scope: anyio.CancelScope | None = None  # of the task that runs the handler
    response: bytes = b""
    is_sending: bool = False


class IncomingRequests(Struct, eq=False):
    """The open requests of a connection.

    Args:
        connection: encodes the responses.
        handlers: by subtype of the request.
        try_send: sends the bytes of a response, or returns False.
        send: sends bytes that `try_send` could not; never raises.

    Attributes:
        handlers: may be replaced.
        unhandled: new requests for `handle_new`; always the same object.
    """

    _connection: Connection
    handlers: Mapping[str, RequestHandler]
    _try_send: Callable[[bytes], bool]
    _send: Callable[[bytes], Awaitable[None]]
    unhandled: deque[OpenRequest] = field(default_factory=deque[OpenRequest])
    _open: dict[str, OpenRequest] = field(default_factory=dict[str, OpenRequest])

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether this process works on a response. While a response is being sent, the CLI is slow, not we."""
        return not all(question.is_sending for question in self._open.values())

    def accept(self, request: RequestReceived) -> None:
        """Queue a request for `handle_new`."""
        question = self._open[request.request_id] = OpenRequest(request)
        self.unhandled.append(question)

    def cancel(self, request_id: str) -> None:
        """Cancel a request: its handler is cancelled, and no response is sent."""
        question = self._open.pop(request_id, None)
        if question in self.unhandled:
            self.unhandled.remove(question)
        elif question is not None and question.scope is not None:
            question.scope.cancel()

    def handle_new(self, reader: ReaderTask) -> Awaitable[None] | None:
        """Handle the new requests in this task, up to the first whose handler has to wait.

        Args:
            reader: this task, inside its scope.

        Returns:
            None, or the rest of the work on that request. A new task must read on then, starting with the requests
            that are left. Await the rest, and call `finish` outside of the scope.
        """
        while self.unhandled:
            question = self.unhandled.popleft()
            reader.has_run_handlers = True
            context = copy_context()  # context variables set in there must not reach the next request
            answering = self._handle(question)
            try:
                trap = context.run(answering.send, None)
            except StopIteration:
                continue
            self._wait_for(question, reader)
            return _resume_coroutine(answering, trap, context)
        return None

    async def finish(self, reader: ReaderTask) -> None:
        """Send the response that `reader` had to wait for, or the response to a timeout."""
        question = reader.request
        if question is None or self._open.get(question.request.request_id) is not question:
            return
        if reader.scope.cancelled_caught and question.time_limited is not None:
            try:
                question.response = self._connection.respond(
                    question.request.request_id, question.time_limited.on_timeout()
                )
            except Exception as error:  # noqa: BLE001 - the CLI gets an error response
                question.response = self._error_response(question.request, error)
        if not self._try_respond(question):
            await self._send_response(question)

    def _wait_for(self, question: OpenRequest, reader: ReaderTask) -> None:
        reader.request = question
        if question.is_sending:
            return
        question.scope = reader.scope
        if question.time_limited is not None and question.time_limited.seconds is not None:
            reader.scope.deadline = anyio.current_time() + question.time_limited.seconds

    async def _handle(self, question: OpenRequest) -> None:
        asked = question.request
        try:
            handler = self.handlers.get(asked.subtype)
            if handler is None:  # the CLI waits for a response without a timeout, so it gets one
                text = f"Unsupported control request subtype: {asked.subtype}"
                raise ControlError(text, subtype=asked.subtype, code=UNSUPPORTED_CODE)
            answer = handler(asked.body)
            if isinstance(answer, TimeLimited):
                question.time_limited = answer
                answer = answer.awaitable
            question.response = self._connection.respond(asked.request_id, await answer)
        except Exception as error:  # noqa: BLE001 - the CLI gets an error response
            question.response = self._error_response(asked, error)
        if question.scope is None and not self._try_respond(question):
            await self._send_response(question)

    def _try_respond(self, question: OpenRequest) -> bool:
        """Send the response if that needs no waiting; returns whether that is done."""
        # Empty data: the request was cancelled or the CLI closed its input.
        is_done = not question.response or self._try_send(question.response)
        if is_done:
            self._open.pop(question.request.request_id, None)
        return is_done

    async def _send_response(self, question: OpenRequest) -> None:
        question.scope = None
        question.is_sending = True
        try:
            await self._send(question.response)
        finally:
            self._open.pop(question.request.request_id, None)

    def _error_response(self, request: RequestReceived, error: Exception) -> bytes:
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


@coroutine
def _resume_coroutine(
    coroutine_begun: Coroutine[Any, Any, None], trap: Any, context: Context
) -> Generator[Any, Any, None]:
    """Continue a started coroutine whose first wait was `trap`, in its own context: `await` from the middle on."""
    try:
        while True:
            try:
                value = yield trap
            except BaseException as error:  # noqa: BLE001 - the error is for the coroutine
                trap = context.run(coroutine_begun.throw, error)
            else:
                trap = context.run(coroutine_begun.send, value)
    except StopIteration:
        return
