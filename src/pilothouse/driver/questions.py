"""What the peer asks us: each question in a task of its own, answered by the desk that knows about it.

Owns the questions that are open. What a question means, and who is asked, the desks know; writing answers is left to
the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio

from pilothouse.errors import ControlError, UsageError
from pilothouse.protocol import Connection, Inbound

log = logging.getLogger("pilothouse.driver")

Desk = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers one kind of question: the body of the request to the payload of the answer. An error becomes a refusal."""

UNSUPPORTED = "unsupported_request"


class Questions:
    """The open questions of a connection.

    Args:
        connection: makes the bytes of an answer.
        desks: who answers, by subtype of the question.
        beside: starts work beside the reader.
        send: sends the bytes of an answer; raises nothing.
    """

    def __init__(
        self,
        connection: Connection,
        desks: Mapping[str, Desk],
        beside: Callable[[Callable[[], Awaitable[None]]], object],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._desks = desks
        self._beside = beside
        self._send = send
        self._open: dict[str, anyio.CancelScope] = {}
        self._sending: set[str] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def at_work(self) -> bool:
        """Whether this process works on an answer. While one is sent, it is the peer that takes its time to read."""
        return not self._sending.issuperset(self._open)

    def ask(self, question: Inbound) -> None:
        """Have a question answered, beside the reader."""
        desk = self._desks.get(question.subtype)
        if desk is None:
            # The CLI waits for an answer without end, so it gets one.
            text = f"Unsupported control request subtype: {question.subtype}"
            self._beside(partial(self._send, self._connection.refuse(question.request_id, text, UNSUPPORTED)))
            return
        self._open[question.request_id] = anyio.CancelScope()
        self._beside(partial(self._answer, question, desk))

    def withdraw(self, request_id: str) -> None:
        """The peer wants no answer any more: whoever works on one is cancelled, and nothing is sent."""
        scope = self._open.pop(request_id, None)
        if scope is not None:
            scope.cancel()

    async def _answer(self, question: Inbound, desk: Desk) -> None:
        scope = self._open.get(question.request_id)
        if scope is None:
            return  # withdrawn before its task ran
        try:
            data = b""
            with scope:
                data = await self._bytes_of(question, desk)
            if data:  # if not, it was withdrawn, or nobody reads any more
                self._sending.add(question.request_id)
                await self._send(data)
        finally:
            self._sending.discard(question.request_id)
            self._open.pop(question.request_id, None)

    async def _bytes_of(self, question: Inbound, desk: Desk) -> bytes:
        key = question.request_id
        try:
            return self._connection.answer(key, await desk(question.body))
        except ControlError as error:
            return self._connection.refuse(key, str(error), error.code)
        except UsageError as error:
            log.error("the answer to %r cannot be sent: %s", question.subtype, error)
            return self._connection.refuse(key, f"the host has no valid answer to {question.subtype}")
        except Exception:  # whatever it is, the peer must not wait for ever, and learns nothing of our insides
            log.exception("answering %r failed", question.subtype)
            return self._connection.refuse(key, f"the host failed to answer {question.subtype}")
