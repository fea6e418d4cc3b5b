"""What may follow a result before its query is over: more prompts, made of that result by whoever knows what it means.

Owns the seam, and the task in which one is asked: one result at a time, and given up at any moment. What a query does
with the answer, the query knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
from msgspec import Struct

from pilothouse.driver.outgoing import Outgoing
from pilothouse.errors import SessionClosedError
from pilothouse.messages import Message, ResultMessage

log = logging.getLogger("pilothouse.driver")

CLEAN_UP_SECONDS = 10.0  # for a continuation that was given up; the query is over then, whatever it still does


class Next(Struct, frozen=True):
    """What follows a result.

    Args:
        prompt: the query goes on with it; None: that was all.
        messages: the consumer gets them first. A `ResultMessage` among them closes the query in place of the CLI's.
    """

    prompt: Outgoing | None = None
    messages: Sequence[Message] = ()


class Continuation(Protocol):
    """Makes one query out of several prompts. One for each query.

    It must not keep its `Query` alive: one that is dropped could not end then. One that has an attribute `only_reads`,
    and it is true, is never asked what follows, so that the query is over with its result.
    """

    def read(self, batch: list[Message]) -> list[Message]:
        """What the consumer gets in place of `batch`; sees every message of the query, in order. Must not wait.

        What it drops or changes is so for the consumer only. The list is its own.
        """
        ...

    async def go_on(self, result: ResultMessage) -> Next:
        """What follows `result`; asked once for each result that leaves no prompt unanswered, once all were said.

        May take long; the silence limit rests meanwhile. Cancelled when the query is interrupted, stopped or out of
        time. What it raises is the failure of the query.
        """
        ...


class Continuing:
    """A continuation at work.

    Args:
        continuation: who is asked.

    Attributes:
        is_open: whether there is a result about which it has not said what follows; stays so when it is given up.
    """

    def __init__(self, continuation: Continuation) -> None:
        self.read = continuation.read
        self._go_on = continuation.go_on
        self._only_reads: bool = getattr(continuation, "only_reads", False)
        self._scope: anyio.CancelScope | None = None
        self._given_up = False
        self._result: ResultMessage | None = None
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._serves = False
        self.is_open = False

    def ask(self, result: ResultMessage) -> bool:
        """Ask what follows `result`; False if that was asked before, or nothing ever does."""
        if self._only_reads or result is self._result:
            return False
        self._result = result
        self.is_open = True
        self._answered = anyio.Event()
        self._asked.set()
        return True

    async def serve(self, take: Callable[[Next | None], object], fail: Callable[[Exception], object]) -> None:
        """Ask it, until cancelled; `take` gets what it says, and None when it was given up."""
        self._serves = True
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            try:
                await self._ask(take)
            except Exception as error:  # noqa: BLE001 - it is the query's
                fail(error)
            except anyio.get_cancelled_exc_class():  # asyncio lets anybody raise it
                fail(SessionClosedError("what was to follow the result was cancelled"))
                raise
            finally:
                self._answered.set()

    async def _ask(self, take: Callable[[Next | None], object]) -> None:
        assert self._result is not None
        following = None
        if not self._given_up:
            try:
                with anyio.CancelScope() as self._scope:
                    following = await self._go_on(self._result)
            except Exception:
                if not self._given_up:
                    raise
                log.warning("a continuation failed while it was stopped", exc_info=True)
        if self._given_up:
            take(None)
            return
        assert following is not None
        self.is_open = False
        take(following)

    def give_up(self) -> None:
        """Nobody wants to know any more, from here on."""
        self._given_up = True
        if self._scope is not None:
            self._scope.cancel()

    async def answered(self) -> None:
        """Wait until it has said what follows, or has failed to."""
        if self.is_open:
            await self._answered.wait()

    async def ended(self) -> None:
        """Give it up and wait until it has ended. Bounded: one that does not heed that is left to itself."""
        self.give_up()
        if not (self.is_open and self._serves):
            return
        with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
            await self._answered.wait()
            return
        log.warning("a continuation did not end within %g s after it was given up", CLEAN_UP_SECONDS)
