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

from pilothouse.callbacks import TimeLimited
from pilothouse.errors import ControlError, UsageError
from pilothouse.protocol import Connection, RequestReceived

log = logging.getLogger("pilothouse.driver")

RequestHandler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers one kind of question: the body of the request to the payload of the answer. An error becomes a refusal; an
answer that is `TimeLimited` gets its limit when it has to wait."""

UNSUPPORTED_CODE = "unsupported_request"


class ReaderTask:
    """A task that reads and answers, until it has to wait for an answer.

    Attributes:
        scope: around all that it does.
        request: the one that it has to wait for.
        has_run_handlers: whether it ran functions of the user.
    """

    __slots__ = ("has_run_handlers", "request", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.request: OpenRequest | None = None
        self.has_run_handlers = False


class OpenRequest:
    """One that is open."""

    __slots__ = ("is_sending", "request", "response", "scope", "time_limited")

    def __init__(self, asked: RequestReceived) -> None:
        self.request = asked
        self.time_limited: TimeLimited[Mapping[str, Any]] | None = None
        self.scope: anyio.CancelScope | None = None  # of the task that waits for the answer
        self.response = b""
        self.is_sending = False


class IncomingRequests:
    """The open questions of a connection.

    Args:
        connection: makes the bytes of an answer.
        handlers: who answers, by subtype of the question.
        try_send: sends the bytes of an answer, or returns False.
        send: sends those that had to wait; raises nothing.

    Attributes:
        handlers: who answers; may be replaced.
        unhandled: those for `handle_new`; replaced by nobody.
    """

    def __init__(
        self,
        connection: Connection,
        handlers: Mapping[str, RequestHandler],
        try_send: Callable[[bytes], bool],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self.handlers = handlers
        self._try_send = try_send
        self._send = send
        self._open: dict[str, OpenRequest] = {}
        self.unhandled: deque[OpenRequest] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether this process works on an answer. While one is sent, it is the peer that takes its time to read."""
        return not all(question.is_sending for question in self._open.values())

    def accept(self, request: RequestReceived) -> None:
        """Take a question, for `handle_new`."""
        question = self._open[request.request_id] = OpenRequest(request)
        self.unhandled.append(question)

    def cancel(self, request_id: str) -> None:
        """The peer wants no answer any more: whoever works on one is cancelled, and nothing is sent."""
        question = self._open.pop(request_id, None)
        if question is not None and question.scope is not None:
            question.scope.cancel()

    async def handle_new(self, reader: ReaderTask, start_next_reader: Callable[[], object]) -> bool:
        """Answer the new questions in this task, up to the first that has to wait.

        Args:
            reader: this task, inside its scope.
            start_next_reader: called when one has to wait: somebody else must go on with what this task was at, with
                the questions that are left first.

        Returns:
            Whether it was handed over. Then `finish` comes next, outside of the scope.
        """
        while self.unhandled:
            question = self.unhandled.popleft()
            if self._is_cancelled(question):
                continue
            reader.has_run_handlers = True
            context = copy_context()  # what is set in there is not for the next question
            answering = self._handle(question)
            try:
                trap = context.run(answering.send, None)
            except StopIteration:
                continue
            self._wait_for(question, reader)
            start_next_reader()
            await _resume_coroutine(answering, trap, context)
            return True
        return False

    async def finish(self, reader: ReaderTask) -> None:
        """Send the answer that `reader` had to wait for, or the one that tells that it took too long."""
        question = reader.request
        if question is None or self._is_cancelled(question):
            return
        if reader.scope.cancelled_caught and question.time_limited is not None:
            try:
                question.response = self._connection.respond(
                    question.request.request_id, question.time_limited.on_timeout()
                )
            except Exception as error:  # noqa: BLE001 - the peer is told
                question.response = self._error_response(question.request, error)
        await self._send_response(question)

    def _is_cancelled(self, question: OpenRequest) -> bool:
        return self._open.get(question.request.request_id) is not question

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
            answer = await self._call_handler(question, asked)
            question.response = self._connection.respond(asked.request_id, answer)
        except Exception as error:  # noqa: BLE001 - the peer is told
            question.response = self._error_response(asked, error)
        if question.scope is None:
            await self._send_response(question)

    async def _send_response(self, question: OpenRequest) -> None:
        question.scope = None
        try:
            # Without data it was withdrawn, or nobody reads any more.
            if question.response and not self._try_send(question.response):
                question.is_sending = True
                await self._send(question.response)
        finally:
            self._open.pop(question.request.request_id, None)

    def _call_handler(self, question: OpenRequest, request: RequestReceived) -> Awaitable[Mapping[str, Any]]:
        desk = self.handlers.get(request.subtype)
        if desk is None:  # the CLI waits for an answer without end, so it gets one
            text = f"Unsupported control request subtype: {request.subtype}"
            raise ControlError(text, subtype=request.subtype, code=UNSUPPORTED_CODE)
        answer = desk(request.body)
        if isinstance(answer, TimeLimited):
            question.time_limited = answer
            return answer.awaitable
        return answer

    def _error_response(self, request: RequestReceived, error: Exception) -> bytes:
        code: str | None = None
        if isinstance(error, ControlError):
            words, code = str(error), error.code
        elif isinstance(error, UsageError):
            log.error("the answer to %r cannot be sent: %s", request.subtype, error)
            words = f"the host has no valid answer to {request.subtype}"
        else:  # whatever it is, the peer must not wait for ever, and learns nothing of our insides
            log.error("answering %r failed", request.subtype, exc_info=error)
            words = f"the host failed to answer {request.subtype}"
        return self._connection.respond_error(request.request_id, words, code)


@coroutine
def _resume_coroutine(
    coroutine_begun: Coroutine[Any, Any, None], trap: Any, context: Context
) -> Generator[Any, Any, None]:
    """Go on with a coroutine whose first wait was `trap`, in its own context: what `await` does, from the middle on."""
    try:
        while True:
            try:
                news = yield trap
            except BaseException as error:  # noqa: BLE001 - it is the coroutine that is cancelled
                trap = context.run(coroutine_begun.throw, error)
            else:
                trap = context.run(coroutine_begun.send, news)
    except StopIteration:
        return
