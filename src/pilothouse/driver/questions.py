"""What the peer asks us: each question is answered by the desk that knows about it, many at the same time.

Owns the questions that are open. What a question means, and who is asked, the desks know; writing answers is left to
the caller.

Most answers come without any waiting, and a task for each would cost more than the answer. So the task that reads also
answers, until an answer has to wait for something. From then on that task belongs to that question, with its cancel
scope and all that was opened inside, and another one reads on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import Context, copy_context
from types import coroutine
from typing import Any

import anyio

from pilothouse.callbacks import Limited
from pilothouse.errors import ControlError, UsageError
from pilothouse.protocol import Connection, Inbound

log = logging.getLogger("pilothouse.driver")

Desk = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers one kind of question: the body of the request to the payload of the answer. An error becomes a refusal; an
answer that is `Limited` gets its limit when it has to wait."""

UNSUPPORTED = "unsupported_request"


class Reader:
    """A task that reads and answers, until it has to wait for an answer.

    Attributes:
        scope: around all that it does.
        question: the one that it has to wait for.
        has_answered: whether it ran functions of the user.
    """

    __slots__ = ("has_answered", "question", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.question: OpenQuestion | None = None
        self.has_answered = False


class OpenQuestion:
    """One that is open."""

    __slots__ = ("asked", "data", "is_sending", "limited", "scope")

    def __init__(self, asked: Inbound) -> None:
        self.asked = asked
        self.limited: Limited[Mapping[str, Any]] | None = None
        self.scope: anyio.CancelScope | None = None  # of the task that waits for the answer
        self.data = b""
        self.is_sending = False


class Questions:
    """The open questions of a connection.

    Args:
        connection: makes the bytes of an answer.
        desks: who answers, by subtype of the question.
        send_at_once: sends the bytes of an answer, or returns False.
        send: sends those that had to wait; raises nothing.

    Attributes:
        desks: who answers; may be replaced.
        new: those for `answer_new`; replaced by nobody.
    """

    def __init__(
        self,
        connection: Connection,
        desks: Mapping[str, Desk],
        send_at_once: Callable[[bytes], bool],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self.desks = desks
        self._send_at_once = send_at_once
        self._send = send
        self._open: dict[str, OpenQuestion] = {}
        self.new: deque[OpenQuestion] = deque()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def at_work(self) -> bool:
        """Whether this process works on an answer. While one is sent, it is the peer that takes its time to read."""
        return not all(question.is_sending for question in self._open.values())

    def ask(self, asked: Inbound) -> None:
        """Take a question, for `answer_new`."""
        question = self._open[asked.request_id] = OpenQuestion(asked)
        self.new.append(question)

    def withdraw(self, request_id: str) -> None:
        """The peer wants no answer any more: whoever works on one is cancelled, and nothing is sent."""
        question = self._open.pop(request_id, None)
        if question is not None and question.scope is not None:
            question.scope.cancel()

    async def answer_new(self, reader: Reader, hand_over: Callable[[], object]) -> bool:
        """Answer the new questions in this task, up to the first that has to wait.

        Args:
            reader: this task, inside its scope.
            hand_over: called when one has to wait: somebody else must go on with what this task was at, with the
                questions that are left first.

        Returns:
            Whether it was handed over. Then `finish` comes next, outside of the scope.
        """
        while self.new:
            question = self.new.popleft()
            if self._is_withdrawn(question):
                continue
            reader.has_answered = True
            context = copy_context()  # what is set in there is not for the next question
            answering = self._answer(question)
            try:
                trap = context.run(answering.send, None)
            except StopIteration:
                continue
            self._wait_for(question, reader)
            hand_over()
            await _go_on(answering, trap, context)
            return True
        return False

    async def finish(self, reader: Reader) -> None:
        """Send the answer that `reader` had to wait for, or the one that tells that it took too long."""
        question = reader.question
        if question is None or self._is_withdrawn(question):
            return
        if reader.scope.cancelled_caught and question.limited is not None:
            try:
                question.data = self._connection.answer(question.asked.request_id, question.limited.late())
            except Exception as error:  # noqa: BLE001 - the peer is told
                question.data = self._refusal(question.asked, error)
        await self._deliver(question)

    def _is_withdrawn(self, question: OpenQuestion) -> bool:
        return self._open.get(question.asked.request_id) is not question

    def _wait_for(self, question: OpenQuestion, reader: Reader) -> None:
        reader.question = question
        if question.is_sending:
            return
        question.scope = reader.scope
        if question.limited is not None and question.limited.seconds is not None:
            reader.scope.deadline = anyio.current_time() + question.limited.seconds

    async def _answer(self, question: OpenQuestion) -> None:
        asked = question.asked
        try:
            answer = await self._work_on(question, asked)
            question.data = self._connection.answer(asked.request_id, answer)
        except Exception as error:  # noqa: BLE001 - the peer is told
            question.data = self._refusal(asked, error)
        if question.scope is None:
            await self._deliver(question)

    async def _deliver(self, question: OpenQuestion) -> None:
        question.scope = None
        try:
            # Without data it was withdrawn, or nobody reads any more.
            if question.data and not self._send_at_once(question.data):
                question.is_sending = True
                await self._send(question.data)
        finally:
            self._open.pop(question.asked.request_id, None)

    def _work_on(self, question: OpenQuestion, asked: Inbound) -> Awaitable[Mapping[str, Any]]:
        desk = self.desks.get(asked.subtype)
        if desk is None:  # the CLI waits for an answer without end, so it gets one
            text = f"Unsupported control request subtype: {asked.subtype}"
            raise ControlError(text, subtype=asked.subtype, code=UNSUPPORTED)
        answer = desk(asked.body)
        if isinstance(answer, Limited):
            question.limited = answer
            return answer.work
        return answer

    def _refusal(self, asked: Inbound, error: Exception) -> bytes:
        code: str | None = None
        if isinstance(error, ControlError):
            words, code = str(error), error.code
        elif isinstance(error, UsageError):
            log.error("the answer to %r cannot be sent: %s", asked.subtype, error)
            words = f"the host has no valid answer to {asked.subtype}"
        else:  # whatever it is, the peer must not wait for ever, and learns nothing of our insides
            log.error("answering %r failed", asked.subtype, exc_info=error)
            words = f"the host failed to answer {asked.subtype}"
        return self._connection.refuse(asked.request_id, words, code)


@coroutine
def _go_on(begun: Coroutine[Any, Any, None], trap: Any, context: Context) -> Generator[Any, Any, None]:
    """Go on with a coroutine whose first wait was `trap`, in its own context: what `await` does, from the middle on."""
    try:
        while True:
            try:
                news = yield trap
            except BaseException as error:  # noqa: BLE001 - it is the coroutine that is cancelled
                trap = context.run(begun.throw, error)
            else:
                trap = context.run(begun.send, news)
    except StopIteration:
        return
