"""What a client adds to a run: request handlers and middleware.

A middleware sees every message and may add a prompt after a result. Loaded late: most queries need neither.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio
from msgspec import Struct

from pilothouse.driver.incoming_requests import RequestHandler
from pilothouse.driver.prompts import PromptMessage
from pilothouse.errors import SessionClosedError
from pilothouse.messages import Message, ResultMessage

SendControl = Callable[[str, Mapping[str, Any]], None]
"""Sends a control request, by subtype and body, and waits for nothing."""
RequestControl = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a control request, by subtype and body, and gives its answer."""


class HandlerSet(Struct, frozen=True):
    """What one child is given to answer the requests of the CLI.

    Args:
        handlers: one for each subtype of request.
        on_initialize: gets the CLI's response to the initialize request; what it raises ends the conversation.
        bind_sender: gets a function that sends a control request, before anything is sent.
        run_background: runs beside the conversation, until it is cancelled.
        before_first_prompt: awaited after the handshake, before the first prompt; what it raises ends the conversation.
    """

    handlers: Mapping[str, RequestHandler]
    on_initialize: Callable[[Mapping[str, Any]], object]
    bind_sender: Callable[[SendControl], object]
    run_background: Callable[[], Awaitable[None]] | None = None
    before_first_prompt: Callable[[RequestControl], Awaitable[None]] | None = None


log = logging.getLogger("pilothouse.driver")

CANCEL_SECONDS = 10.0  # for a continuation that was given up; the query is over then, whatever it still does


class NextPrompt(Struct, frozen=True):
    """What follows a result.

    Args:
        prompt: the query goes on with it; None: that was all.
        messages: the consumer gets them first. A `ResultMessage` among them closes the query in place of the CLI's.
    """

    prompt: PromptMessage | None = None
    messages: Sequence[Message] = ()


class QueryMiddleware(Protocol):
    """Makes one query out of several prompts. One for each query.

    It must not keep its `Query` alive: one that is dropped could not end then. One that has an attribute `is_passive`,
    and it is true, is never asked what follows, so that the query is over with its result.
    """

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """What the consumer gets in place of `batch`; sees every message of the query, in order. Must not wait.

        What it drops or changes is so for the consumer only. The list is its own.
        """
        ...

    async def after_result(self, result: ResultMessage) -> NextPrompt:
        """What follows `result`; asked once for each result that leaves no prompt unanswered, once all were said.

        May take long; the silence limit rests meanwhile. Cancelled when the query is interrupted, stopped or out of
        time. What it raises is the failure of the query.
        """
        ...


class MiddlewareRunner:
    """A continuation at work.

    Args:
        middleware: who is asked.

    Attributes:
        is_undecided: whether there is a result about which it has not said what follows; stays so when it is given up.
    """

    def __init__(self, middleware: QueryMiddleware) -> None:
        self.on_messages = middleware.on_messages
        self._after_result = middleware.after_result
        self._is_passive: bool = getattr(middleware, "is_passive", False)
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._result: ResultMessage | None = None
        self._has_result = anyio.Event()
        self._has_decided = anyio.Event()
        self._is_running = False
        self.is_undecided = False

    def start(self, result: ResultMessage) -> bool:
        """Ask what follows `result`; False if that was asked before, or nothing ever does."""
        if self._is_passive or result is self._result:
            return False
        self._result = result
        self.is_undecided = True
        self._has_decided = anyio.Event()
        self._has_result.set()
        return True

    async def run(
        self, on_next: Callable[[NextPrompt | None], object], on_error: Callable[[Exception], object]
    ) -> None:
        """Ask it, until cancelled; `take` gets what it says, and None when it was given up."""
        self._is_running = True
        while True:
            await self._has_result.wait()
            self._has_result = anyio.Event()
            try:
                await self._decide(on_next)
            except Exception as error:  # noqa: BLE001 - it is the query's
                on_error(error)
            except anyio.get_cancelled_exc_class():  # asyncio lets anybody raise it
                on_error(SessionClosedError("what was to follow the result was cancelled"))
                raise
            finally:
                self._has_decided.set()

    async def _decide(self, on_next: Callable[[NextPrompt | None], object]) -> None:
        assert self._result is not None
        following = None
        if not self._is_cancelled:
            try:
                with anyio.CancelScope() as self._scope:
                    following = await self._after_result(self._result)
            except Exception:
                if not self._is_cancelled:
                    raise
                log.warning("a continuation failed while it was stopped", exc_info=True)
        if self._is_cancelled:
            on_next(None)
            return
        assert following is not None
        self.is_undecided = False
        on_next(following)

    def cancel(self) -> None:
        """Nobody wants to know any more, from here on."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_decided(self) -> None:
        """Wait until it has said what follows, or has failed to."""
        if self.is_undecided:
            await self._has_decided.wait()

    async def wait_cancelled(self) -> None:
        """Give it up and wait until it has ended. Bounded: one that does not heed that is left to itself."""
        self.cancel()
        if not (self.is_undecided and self._is_running):
            return
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            await self._has_decided.wait()
            return
        log.warning("a continuation did not end within %g s after it was given up", CANCEL_SECONDS)
