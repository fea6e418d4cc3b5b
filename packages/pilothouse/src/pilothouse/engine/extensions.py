"""What a client adds to a run: request handlers and middleware.

A middleware sees every message and may add a prompt after a result. Loaded late: most queries need neither.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Protocol

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.callbacks import convert_failures
from pilothouse.engine.incoming_requests import RequestHandler
from pilothouse.engine.pending_work import PromptMessage
from pilothouse.errors import SessionClosedError, UsageError
from pilothouse.messages import Message, ResultMessage

log = logging.getLogger("pilothouse.engine")

MIDDLEWARE = "a middleware"  # in errors

SendControl = Callable[[str, Mapping[str, Any]], None]
"""Sends a control request (subtype and body) without waiting for the response."""
RequestControl = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a control request (subtype and body) and returns its response."""
Prepare = Callable[[RequestControl], Awaitable[None]]
"""Done between the handshake and the first prompt."""


class HandlerSet(Struct, frozen=True):
    """Handlers for the requests that one child sends to this process.

    Args:
        handlers: one for each subtype of request.
        on_initialize: gets the CLI's response to the initialize request; what it raises ends the conversation.
        bind_sender: gets a function that sends a control request, before anything is sent.
        run_background: runs beside the conversation, until it is cancelled.
        before_first_prompt: awaited after the handshake, before the first prompt; what it raises ends the
            conversation.
    """

    handlers: Mapping[str, RequestHandler]
    on_initialize: Callable[[Mapping[str, Any]], object]
    bind_sender: Callable[[SendControl], object]
    run_background: Callable[[], Awaitable[None]] | None = None
    before_first_prompt: Prepare | None = None

    @classmethod
    def empty(cls) -> HandlerSet:
        """Return a set that handles nothing."""
        return cls({}, _do_nothing, _do_nothing)

    def prepared_by(self, prepare: Prepare) -> HandlerSet:
        """Return these handlers with `prepare` before the first prompt, after what is there already."""
        earlier = self.before_first_prompt
        if earlier is None:
            return replace(self, before_first_prompt=prepare)

        async def prepare_both(request: RequestControl) -> None:
            await earlier(request)
            await prepare(request)

        return replace(self, before_first_prompt=prepare_both)


def _do_nothing(_: object) -> None:
    pass


CANCEL_SECONDS = 10.0  # grace for a cancelled middleware; after it the query ends regardless


class NextPrompt(Struct, frozen=True):
    """What follows a result.

    Args:
        prompt: the next prompt of the query; None: the query is complete, whatever other middlewares would send.
        messages: delivered to the consumer first. A `ResultMessage` among them replaces the CLI's result.
    """

    prompt: PromptMessage | None = None
    messages: Sequence[Message] = ()


class QueryMiddleware(Protocol):
    """Sees every message of one query, and may add a prompt after a result. One instance for each query.

    It must not keep a reference to its `Query`, which could otherwise not end when it is dropped.
    """

    @property
    def is_passive(self) -> bool:
        """Whether `after_result` never decides. If that holds for all, the query ends with its result."""
        ...

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Return what the consumer gets in place of `batch`. Called with every message, in order. Must not wait.

        Dropping or changing a message affects only the consumer. The list may be modified.
        """
        ...

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Decide what follows `result`; None: the next middleware decides.

        Called once for each result that leaves no prompt pending. May take long; the idle timeout is paused
        meanwhile. Cancelled when the query is interrupted, stopped or out of time. An error that it raises is the
        failure of the query.
        """
        ...


class MiddlewareRunner:
    """Runs the middlewares of one query.

    Args:
        middlewares: the outermost, which is next to the consumer, first. Messages and results reach the last first.

    Attributes:
        is_passive: whether `start` is never to be called, as none of them decides.
        is_undecided: whether a result waits for a decision; stays true after `cancel`.
    """

    def __init__(self, middlewares: Sequence[QueryMiddleware]) -> None:
        self._inner_first = tuple(reversed(middlewares))
        self.is_passive = all(each.is_passive for each in middlewares)
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._result: ResultMessage | None = None
        self._has_result = anyio.Event()
        self._has_decided = anyio.Event()
        self._is_running = False
        self.is_undecided = False

    def on_messages(self, batch: list[Message], after: int = 0) -> list[Message]:
        """Return what the consumer gets in place of `batch`, which has passed the `after` innermost middlewares.

        Raises:
            UsageError: a middleware returned something else than a list.
        """
        for middleware in self._inner_first[after:]:
            batch = middleware.on_messages(batch)
            if not isinstance(batch, list):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise _wrong_answer(middleware, "on_messages", batch, "a list of messages")
        return batch

    async def _after_result(self, result: ResultMessage) -> NextPrompt:
        for at, middleware in enumerate(self._inner_first, 1):
            waits: Any = middleware.after_result(result)
            if not isawaitable(waits):
                raise _wrong_answer(middleware, "after_result", waits, "a NextPrompt, or None, from `async def`")
            answer: Any = await waits
            if isinstance(answer, NextPrompt):
                if not answer.messages:
                    return answer
                messages = self.on_messages(list(answer.messages), at)
                return NextPrompt(answer.prompt, messages)
            if answer is not None:
                raise _wrong_answer(middleware, "after_result", answer, "a NextPrompt, or None")
        return NextPrompt()

    def start(self, result: ResultMessage) -> None:
        """Start the decision about `result`."""
        self._result = result
        self.is_undecided = True
        self._has_decided = anyio.Event()
        self._has_result.set()

    async def run(
        self, on_next: Callable[[NextPrompt | None], object], on_error: Callable[[Exception], object]
    ) -> None:
        """Run the middlewares until cancelled.

        Args:
            on_next: called with each decision, and with None after `cancel`.
            on_error: called with an error of a middleware.
        """
        self._is_running = True
        while True:
            await self._has_result.wait()
            self._has_result = anyio.Event()
            try:
                await self._decide(on_next)
            except Exception as error:  # noqa: BLE001 - it is the failure of the query
                on_error(error)
            except anyio.get_cancelled_exc_class():  # with asyncio, any code can raise it
                on_error(SessionClosedError("the continuation after the result was cancelled"))
                raise
            finally:
                self._has_decided.set()

    async def _decide(self, on_next: Callable[[NextPrompt | None], object]) -> None:
        assert self._result is not None
        decision = None
        if not self._is_cancelled:
            try:
                with anyio.CancelScope() as self._scope, convert_failures(MIDDLEWARE):
                    decision = await self._after_result(self._result)
            except Exception:
                if not self._is_cancelled:
                    raise
                log.warning("a continuation failed while it was stopped", exc_info=True)
        if self._is_cancelled:
            on_next(None)
            return
        assert decision is not None
        self.is_undecided = False
        on_next(decision)

    def cancel(self) -> None:
        """Cancel the decision, and all later ones."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_decided(self) -> None:
        """Wait until a middleware has decided or failed."""
        if self.is_undecided:
            await self._has_decided.wait()

    async def cancel_and_wait(self) -> None:
        """Cancel the middlewares and wait until they have ended, for at most `CANCEL_SECONDS`."""
        self.cancel()
        if not (self.is_undecided and self._is_running):
            return
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            await self._has_decided.wait()
            return
        log.warning("a continuation did not end within %g s after its cancellation", CANCEL_SECONDS)


def _wrong_answer(middleware: object, method: str, answer: object, expected: str) -> UsageError:
    return UsageError(
        f"{method} of the middleware {type(middleware).__name__} returned {type(answer).__name__}; return {expected}"
    )
