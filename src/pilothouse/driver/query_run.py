"""`QueryRun`: a running query as its consumer sees it.

Owns its messages, its end, its limits, and the prompts that follow its results. Subclasses say where it runs: in a
child of its own (`OneShotRun`) or as a turn of a session (`SessionTurn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from pilothouse.driver.failures import IdleTimer, QueryLimits, make_note, self_wait_error, timeout_error
from pilothouse.driver.message_buffer import MessageBuffer
from pilothouse.driver.pending_work import PendingPrompts, PromptMessage, Prompts
from pilothouse.driver.tasks import LazyEvent, OwnedTask
from pilothouse.errors import PilothouseError, SessionClosedError
from pilothouse.messages import (
    CommandLifecycleMessage,
    ConversationResetMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    PermissionDeniedMessage,
    ResultMessage,
    SystemMessage,
)

if TYPE_CHECKING:
    from pilothouse.driver.extensions import MiddlewareRunner, NextPrompt, QueryMiddleware

RunState = Literal["queued", "active", "completed", "interrupted", "failed", "closed"]

INTERRUPT_SECONDS = 5.0  # from the confirmation of an interrupt until the turn must have ended
HELD_BYTES = 1024 * 1024  # of messages before the turn begins, that are held back until the init message
DECISION_SECONDS = 1.0  # from the exit of a child with a result until the middleware must have decided what follows


class QueryRun(OwnedTask, ABC):
    """What `OneShotRun` and `SessionTurn` have in common.

    Args:
        prompts: the user messages, all at once or as they come.
        limits: times.
        middleware: decides what follows the result, before the query is over.

    Attributes:
        pending_prompts: prompts without a result.
        interrupted: whether the query was stopped on request.
        is_cut_short: whether `result` belongs to an earlier prompt, because the query was stopped before more came.
        result: the last one.
        on_end: called once when all is over, with the failure, before the consumer sees the end. Must not raise.
        on_denied: called for each tool that the CLI has denied by itself. Must not raise.
        admission: awaited before anything is sent; what it raises is the failure of the query.
        is_awaiting_idle: whether the result has come and the query waits for background tasks.
        wants_permission_events: whether the consumer gets messages about permission requests and their decisions.
        session_id: as the CLI last named it.
    """

    TIMEOUT_CONSEQUENCE = "the child was ended"
    """What happens when a limit runs out."""

    def __init__(
        self,
        prompts: Prompts,
        limits: QueryLimits,
        middleware: QueryMiddleware | None,
    ) -> None:
        super().__init__()
        given = isinstance(prompts, Sequence)
        self._prompts = prompts
        self._limits = limits
        self._middleware = None if middleware is None else _make_runner(middleware)
        self._buffer = MessageBuffer()
        self._has_delivered_init = False  # the consumer has the init message, or there was none
        self._held_messages: list[Message] = []  # what came before the init message
        self._held_bytes = 0
        self._idle_timer = IdleTimer(limits)
        self._deadline: float | None = None  # of the whole query
        self._timeout_scope: anyio.CancelScope | None = None  # cancelled at the deadline
        self._is_admitted = False
        self._has_sent_all = given
        self._idle_from = 0.0  # the earliest moment from which silence counts
        self._turn_ended = LazyEvent()  # of the turn that ran when the last interrupt was requested
        self._ended = LazyEvent()  # all prompts have their results, or none will come
        self.pending_prompts = PendingPrompts([prompt.uuid for prompt in prompts] if given else ())
        self.interrupted = False
        self.is_cut_short = False
        self.result: ResultMessage | None = None
        self.on_end: Callable[[BaseException | None], object] | None = None
        self.on_denied: Callable[[PermissionDeniedMessage], object] | None = None
        self.admission: Callable[[], Awaitable[None]] | None = None
        self.is_awaiting_idle = self.wants_permission_events = False

    # Called by the consumer.

    @property
    def state(self) -> RunState:
        """The state of the query."""
        if not self.is_finished:
            return "queued" if self.is_queued else "active"
        if self.interrupted:
            return "interrupted"
        if self._failure is None:
            return "completed"
        return "closed" if isinstance(self._failure, SessionClosedError) else "failed"

    @property
    def is_queued(self) -> bool:
        """Whether the query has not started yet."""
        return self.is_awaiting_admission

    @property
    @abstractmethod
    def session_id(self) -> str | None:
        """Id of the session, as the CLI last named it."""
        ...

    async def next_batch(self) -> tuple[list[Message], int]:
        """Wait for the next messages and their size in bytes; none at the end. Raises what ended the query early.

        Raises:
            UsageError: a callback would wait for itself.
        """
        self.check_caller()
        return await self._buffer.get()

    async def start(self) -> None:
        """Wait until it has started, in a session until its turn has come; see `OwnedTask.start`."""
        self.check_caller()
        await super().start()

    def check_caller(self) -> None:
        """Raise if a callback that the query waits for is about to wait for the query."""
        if self.is_in_own_callback and not self.is_finished:
            raise self_wait_error()

    async def interrupt(self) -> None:
        """Stop the turn and wait until it has ended. Returns at once when nothing runs.

        Later prompts of the query are still sent.

        Raises:
            UsageError: the argv form has no control protocol.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        goes_on = self.is_awaiting_next_prompt
        if self._finished.is_set() or self._ended.is_set() or (self._is_idle() and not goes_on):
            if self.is_awaiting_idle:
                self._finish()
            return
        if self.is_awaiting_admission:
            self.interrupted = True
            self.stop()
            await self.wait_finished()
            return
        self._check_interrupt()
        self.interrupted = True
        self._buffer.release_reader()
        if self._turn_ended.is_set():
            self._turn_ended = LazyEvent()
        ended = self._turn_ended
        try:
            if goes_on and self._middleware is not None:
                self._middleware.cancel()  # the CLI has nothing to stop
            else:
                await self._interrupt(ended)
        except PilothouseError as error:
            self.interrupted = self._finished.is_set() or isinstance(error, SessionClosedError)
            if self.interrupted:
                return  # the query ended by itself in the meantime
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await ended.wait()
            return
        self.stop()

    @property
    def is_awaiting_next_prompt(self) -> bool:
        """Whether the middleware has a result and has not decided what follows."""
        return self._middleware is not None and self._middleware.is_undecided

    @property
    def is_awaiting_admission(self) -> bool:
        """Whether `admission` still waits, so that nothing was sent."""
        return self.admission is not None and not self._is_admitted

    # Called by the reader and by observers.

    def add_note(self, note: SystemMessage) -> None:
        """Add a message of our own to the stream."""
        self._buffer.put([note], len(note.raw_line))

    def add_permission_note(self, subtype: str, fields: dict[str, Any]) -> None:
        """Add a message about a permission request, or its decision."""
        if self.wants_permission_events:
            self.add_note(make_note(subtype, self.session_id, fields))

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Add notes about lines that could not be read."""
        size = sum(len(note.text) for note in notes)
        batch = self._init_first([*notes], size)
        if batch and self._middleware is not None:
            batch = self._apply_middleware(batch)
        if batch:
            self._buffer.put(batch, size)

    def note_denied(self, message: PermissionDeniedMessage) -> None:
        """Report a tool that the CLI has denied."""
        if self.on_denied is not None:
            self.on_denied(message)

    @property
    def is_full(self) -> bool:
        """Whether the reader should wait for the consumer. Never while an interrupt waits for the end of the turn."""
        return self._buffer.is_full and not self.is_stopping

    async def wait_for_space(self) -> None:
        """Wait for the consumer."""
        await self._buffer.wait_for_space()

    def release_reader(self) -> None:
        """Let the reader continue although the consumer is behind."""
        self._buffer.release_reader()

    @property
    def has_ended(self) -> bool:
        """Whether every prompt has its result and nothing follows, or none will come."""
        return self._ended.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the turn is awaited."""
        return self.interrupted

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Fail with `error`; the first error counts."""
        ...

    def _init_first(self, batch: list[Message], size: int) -> list[Message]:
        """A batch as the consumer gets it: without lifecycle messages of prompts, and the init message first.

        The CLI reports session hooks, and a cleared conversation, before the turn begins (2.1.330).
        """
        batch = [message for message in batch if message.__class__ is not CommandLifecycleMessage]
        if self._has_delivered_init:
            return batch
        self._held_bytes += size
        for at, message in enumerate(batch):
            if isinstance(message, InitMessage):
                return [message, *self._release_held(), *batch[at + 1 :]]
            if not isinstance(message, SystemMessage | ConversationResetMessage):
                return [*self._release_held(), *batch[at:]]
            self._held_messages.append(message)
        return self._release_held() if self._held_bytes > HELD_BYTES else []

    def _release_held(self) -> list[Message]:
        held, self._held_messages, self._has_delivered_init = self._held_messages, [], True
        return held

    def _apply_middleware(self, batch: list[Message]) -> list[Message]:
        """A batch as changed by the middleware. Its error fails the query, not the reader."""
        assert self._middleware is not None
        try:
            return self._middleware.on_messages(list(batch))
        except Exception as error:  # noqa: BLE001 - it belongs to the consumer
            self.fail(error)
            return []

    # The end.

    def _end_turn(self) -> None:
        self._turn_ended.set()
        if self.pending_prompts or not self._has_sent_all:
            self.interrupted = False  # the turn was interrupted, not the whole query
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._is_answered() or self.is_awaiting_next_prompt or self._ended.is_set():
            return
        continuing, result = self._middleware, self.result
        if continuing is None or result is None or self.is_stopping or not continuing.start(result):
            self._on_answered()

    def _on_next_prompt(self, following: NextPrompt | None) -> None:
        """Act on the decision of the middleware; None: it was cancelled."""
        if self._ended.is_set():
            return
        if following is None:
            self._turn_ended.set()
            if self.interrupted:
                self._finish()
            return
        if messages := list(following.messages):
            self._buffer.put(messages, sum(len(message.raw_line) for message in messages))
            self.result = next((m for m in reversed(messages) if isinstance(m, ResultMessage)), self.result)
        if following.prompt is None:
            self._on_answered()
            return
        self.pending_prompts.add(following.prompt.uuid)
        self._reset_turn()
        self._idle_from = anyio.current_time()
        self._start_task(partial(self._send_next_prompt, following.prompt))

    def _add_pending(self, prompt: PromptMessage) -> None:
        """Add a prompt that is about to be sent; silence counts from here on."""
        if not self.pending_prompts:
            self._idle_from = anyio.current_time()
        self.pending_prompts.add(prompt.uuid)

    async def _send_next_prompt(self, prompt: PromptMessage) -> None:
        await self._send_prompt(prompt)
        self._idle_from = anyio.current_time()

    def _is_answered(self) -> bool:
        """Whether all prompts were sent and have their results."""
        return self._has_sent_all and not self.pending_prompts

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether the answer is complete if the query ends now."""
        ...

    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether there is no turn to interrupt."""
        ...

    def _check_interrupt(self) -> None:
        """Raise if the query cannot be interrupted."""

    @abstractmethod
    async def _interrupt(self, ended: LazyEvent) -> None:
        """Make the CLI end the running turn, unless `ended` is set."""
        ...

    async def wait_decided(self) -> None:
        """After the child has exited: wait for the decision of the middleware, for at most `DECISION_SECONDS`."""
        if self.is_awaiting_next_prompt and self._middleware is not None:
            with anyio.move_on_after(DECISION_SECONDS):  # longer work is a tool call whose result is lost anyway
                await self._middleware.wait_decided()

    def _on_answered(self) -> None:
        """Finish, or wait until the CLI is idle first if `until_idle` is set."""
        if not self._limits.until_idle or self.is_stopping:
            self._finish()
        elif not self.is_awaiting_idle:
            self.is_awaiting_idle = True
            self._start_task(self._finish_when_idle)

    async def _finish_when_idle(self) -> None:
        await self._wait_idle()
        self._finish()

    @abstractmethod
    async def _wait_idle(self) -> None:
        """Wait until the CLI has nothing more to do."""
        ...

    def _finish(self) -> None:
        """Mark the query as ended."""
        self.is_awaiting_idle = False
        self._ended.set()

    @abstractmethod
    def _reset_turn(self) -> None:
        """Prepare for one more prompt: an interrupt waits until its turn can be stopped."""
        ...

    @abstractmethod
    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None: ...

    @abstractmethod
    async def _send_prompt(self, prompt: PromptMessage) -> None: ...

    # The owner task.

    async def _run(self) -> None:
        if self._middleware is None:
            await super()._run()
            return
        # The outermost task: a middleware that ignores its cancellation delays only this task.
        async with anyio.create_task_group() as around:
            around.start_soon(self._middleware.run, self._on_next_prompt, self.fail)
            await super()._run()
            around.cancel_scope.cancel()

    async def wait_admitted(self) -> None:
        """Wait for `admission`. Called once, before anything is sent; the time counts."""
        if self.admission is None:
            return
        with anyio.CancelScope(deadline=self._get_deadline()) as scope:
            await self.admission()
        if scope.cancelled_caught:
            raise self._timeout_error("nothing was sent")
        self._is_admitted = True

    async def _run_with_timeout(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._limits.timeout is None:
            await work()
            return
        with anyio.CancelScope(deadline=self._get_deadline()) as self._timeout_scope:
            await work()
        if self._timeout_scope.cancelled_caught and not self._is_complete():
            raise self._timeout_error(self.TIMEOUT_CONSEQUENCE)

    def _get_deadline(self) -> float:
        """When the query must be over, counted from the first call."""
        if self._deadline is None:
            limit = self._limits.timeout
            self._deadline = float("inf") if limit is None else anyio.current_time() + limit
        return self._deadline

    def _timeout_error(self, consequence: str) -> PilothouseError:
        return timeout_error(self._limits.timeout or 0.0, consequence)

    def _on_end(self) -> None:
        self.is_cut_short = self.interrupted and (self.is_cut_short or not self._is_complete())
        if self._failure is None and not self._is_complete() and not self.interrupted:
            cause = "the query was closed" if self._stopped else "the event loop shut down"
            self._failure = SessionClosedError(f"{cause} before the result arrived")
        if self.on_end is not None:
            self.on_end(self._failure)
            self.on_end = None
        if held := self._release_held():
            self._buffer.put(held, self._held_bytes)
        self._buffer.end(None if self.interrupted else self._failure)
        self._middleware = None  # it may hold much memory, and this object may be kept for long
        super()._on_end()
        for event in (self._turn_ended, self._ended):
            event.set()

    async def _watch_idle(self) -> None:
        while not self._ended.is_set():
            now = anyio.current_time()
            if self.is_awaiting_next_prompt or not (self._has_sent_all or self.pending_prompts):
                self._idle_from = now  # we are the ones to send
            any_received = self._has_received()
            since = max(self._idle_since(), self._idle_from)
            look = self._idle_timer.check(since, now, has_received=any_received, session_id=self.session_id)
            if look is None:
                return  # after the first message, nothing limits the silence
            if look.note is not None:
                self.add_note(look.note)
            if look.limit is not None:
                await self._fail_on_timeout(look.make_error(self.TIMEOUT_CONSEQUENCE, has_received=any_received))
                return
            await anyio.sleep_until(look.next_check_at)

    @abstractmethod
    async def _fail_on_timeout(self, error: PilothouseError) -> None:
        """Stop the turn after a limit was passed, and fail with `error`. Bounded."""
        ...

    @abstractmethod
    def _idle_since(self) -> float: ...

    @abstractmethod
    def _has_received(self) -> bool: ...


def _make_runner(middleware: QueryMiddleware) -> MiddlewareRunner:
    from pilothouse.driver.extensions import MiddlewareRunner  # most queries are over with their result

    return MiddlewareRunner(middleware)
