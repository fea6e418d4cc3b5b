"""`QueryRun`: a running query as its consumer sees it.

Its messages, its end, its limits, and what may follow its results. Subclasses say what answers it: a child of its own
(`OneShotRun`) or a turn of a session (`SessionTurn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from pilothouse.driver.failures import IdleTimer, make_note, timeout_error
from pilothouse.driver.message_buffer import MessageBuffer
from pilothouse.driver.prompts import PendingPrompts, PromptMessage, Prompts, QueryLimits
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

INTERRUPT_SECONDS = 5.0  # from the receipt of an interrupt until the turn must have ended
HELD_BYTES = 1024 * 1024  # of what a peer says before its turn begins, that are held back for the init message
DECISION_SECONDS = (
    1.0  # from the moment a peer has left after its result until the continuation must say that this was all
)


class QueryRun(OwnedTask, ABC):
    """What `OneShotRun` and `SessionTurn` have in common.

    Args:
        prompts: the user messages, all at once or as they come.
        limits: times.
        middleware: says what follows the result, before the query is over.

    Attributes:
        pending_prompts: prompts without a result.
        interrupted: whether it was stopped on request.
        is_cut_short: whether its last result is that of an earlier prompt, because it was stopped before more came.
        result: the last one.
        on_end: told once that all is over and what has failed, before the consumer is. Must not raise.
        on_denied: told of each tool that the peer has denied by itself. Must not raise.
        admission: waited for before anything is said; what it raises is the failure of the query.
        is_awaiting_idle: whether it has its result, and waits for what runs in the background.
        wants_permission_events: whether the consumer gets messages of what the peer asks this process, and of the
            decisions.
        session_id: as the peer last named it.
    """

    TIMEOUT_CONSEQUENCE = "the child was ended"
    """What is done when a limit runs out."""

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
        self._has_delivered_init = False  # the consumer has had the init message, or there was none
        self._held_messages: list[Message] = []  # what came before it
        self._held_bytes = 0
        self._idle_timer = IdleTimer(limits)
        self._deadline: float | None = None  # of the whole query
        self._timeout_scope: anyio.CancelScope | None = None  # ends it then
        self._is_admitted = False
        self._has_sent_all = given
        self._idle_from = 0.0  # the earliest moment from which silence counts
        self._turn_ended = LazyEvent()  # the turn that ran when the last interrupt was asked for
        self._ended = LazyEvent()  # all that was asked for has its result, or none will come
        self.pending_prompts = PendingPrompts([prompt.uuid for prompt in prompts] if given else ())
        self.interrupted = False
        self.is_cut_short = False
        self.result: ResultMessage | None = None
        self.on_end: Callable[[BaseException | None], object] | None = None
        self.on_denied: Callable[[PermissionDeniedMessage], object] | None = None
        self.admission: Callable[[], Awaitable[None]] | None = None
        self.is_awaiting_idle = self.wants_permission_events = False

    # What the consumer calls.

    @property
    def state(self) -> RunState:
        """Where it is in its life."""
        if not self.is_finished:
            return "queued" if self.is_queued else "active"
        if self.interrupted:
            return "interrupted"
        if self._failure is None:
            return "completed"
        return "closed" if isinstance(self._failure, SessionClosedError) else "failed"

    @property
    def is_queued(self) -> bool:
        """Whether its turn has not come."""
        return self.is_awaiting_admission

    @property
    @abstractmethod
    def session_id(self) -> str | None:
        """As the peer last named it."""
        ...

    async def next_batch(self) -> tuple[list[Message], int]:
        """The next messages and their size in bytes; none at the end. Raises what ended the query early."""
        return await self._buffer.get()

    async def interrupt(self) -> None:
        """Stop the answer and wait until it has ended. Returns at once when nothing runs.

        Prompts that come after it are still answered.

        Raises:
            UsageError: the argv form has no control protocol. (R16)
            ControlError, ControlTimeout: the peer refused, or did not answer.
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
                self._middleware.cancel()  # nothing runs that the peer could stop
            else:
                await self._interrupt(ended)
        except PilothouseError as error:
            self.interrupted = self._finished.is_set() or isinstance(error, SessionClosedError)
            if self.interrupted:
                return  # it ended by itself in the meantime
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await ended.wait()
            return
        self.stop()

    @property
    def is_awaiting_next_prompt(self) -> bool:
        """Whether the continuation has a result and has not said what follows."""
        return self._middleware is not None and self._middleware.is_undecided

    @property
    def is_awaiting_admission(self) -> bool:
        """Whether it still has to be admitted, so that nothing was said."""
        return self.admission is not None and not self._is_admitted

    # What the reader calls, and those who look on.

    def add_note(self, note: SystemMessage) -> None:
        """Put a message of our own between those of the peer."""
        self._buffer.put([note], len(note.raw_line))

    def add_permission_note(self, subtype: str, fields: dict[str, Any]) -> None:
        """The peer asks this process something, or that was settled."""
        if self.wants_permission_events:
            self.add_note(make_note(subtype, self.session_id, fields))

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Lines of the peer could not be read."""
        size = sum(len(note.text) for note in notes)
        batch = self._init_first([*notes], size)
        if batch and self._middleware is not None:
            batch = self._apply_middleware(batch)
        if batch:
            self._buffer.put(batch, size)

    def note_denied(self, message: PermissionDeniedMessage) -> None:
        """The peer has denied a tool."""
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
        """Let the reader go on in spite of the consumer."""
        self._buffer.release_reader()

    @property
    def has_ended(self) -> bool:
        """Whether every prompt has its result and nothing follows, or none will come."""
        return self._ended.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether somebody waits for its end."""
        return self.interrupted

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """A part of it failed; the first error counts."""
        ...

    def _init_first(self, batch: list[Message], size: int) -> list[Message]:
        """A batch as the consumer gets it: no word about what becomes of prompts, and the init message comes first.

        The CLI tells of hooks of the session, and of a conversation that was cleared, before the turn begins (2.1.330).
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
        """What the continuation makes of a batch for the consumer. Its error is the query's, not the reader's."""
        assert self._middleware is not None
        try:
            return self._middleware.on_messages(list(batch))
        except Exception as error:  # noqa: BLE001 - it belongs to the consumer
            self.fail(error)
            return []

    # When it is over.

    def _end_turn(self) -> None:
        self._turn_ended.set()
        if self.pending_prompts or not self._has_sent_all:
            self.interrupted = False  # it was the turn, not the whole query
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._is_answered() or self.is_awaiting_next_prompt or self._ended.is_set():
            return
        continuing, result = self._middleware, self.result
        if continuing is None or result is None or self.is_stopping or not continuing.start(result):
            self._on_answered()

    def _on_next_prompt(self, following: NextPrompt | None) -> None:
        """The continuation has said what follows; None: it was given up."""
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
        """A prompt of those that come one by one is about to be said: silence counts from here on."""
        if not self.pending_prompts:
            self._idle_from = anyio.current_time()
        self.pending_prompts.add(prompt.uuid)

    async def _send_next_prompt(self, prompt: PromptMessage) -> None:
        await self._send_prompt(prompt)
        self._idle_from = anyio.current_time()

    def _is_answered(self) -> bool:
        """Whether all was said, and every prompt has its result."""
        return self._has_sent_all and not self.pending_prompts

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether its end now is the end of the answer."""
        ...

    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether there is no turn to interrupt."""
        ...

    def _check_interrupt(self) -> None:
        """Raise if it cannot be interrupted."""

    @abstractmethod
    async def _interrupt(self, ended: LazyEvent) -> None:
        """Have the peer end the turn that runs, unless `ended` says that it has."""
        ...

    async def wait_decided(self) -> None:
        """The peer has gone: wait, for a moment, until the continuation has said whether its last result was all."""
        if self.is_awaiting_next_prompt and self._middleware is not None:
            with anyio.move_on_after(DECISION_SECONDS):  # what takes longer is a tool, and nobody will read its result
                await self._middleware.wait_decided()

    def _on_answered(self) -> None:
        """All prompts have their results, and nothing follows them but what runs in the background may bring."""
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
        """Wait until the peer has nothing more to do."""
        ...

    def _finish(self) -> None:
        """All that was asked for is there."""
        self.is_awaiting_idle = False
        self._ended.set()

    @abstractmethod
    def _reset_turn(self) -> None:
        """One more prompt follows: an interrupt waits until the new turn is there to be stopped."""
        ...

    @abstractmethod
    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None: ...

    @abstractmethod
    async def _send_prompt(self, prompt: PromptMessage) -> None: ...

    # The owner.

    async def _run(self) -> None:
        if self._middleware is None:
            await super()._run()
            return
        # Around everything else: one that does not end when it is given up holds up nobody but this task.
        async with anyio.create_task_group() as around:
            around.start_soon(self._middleware.run, self._on_next_prompt, self.fail)
            await super()._run()
            around.cancel_scope.cancel()

    async def wait_admitted(self) -> None:
        """Wait until nothing holds the query back. Called once, before anything is said; the time counts."""
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
        """When the query must be over, counted from the first time that this is asked."""
        if self._deadline is None:
            limit = self._limits.timeout
            self._deadline = float("inf") if limit is None else anyio.current_time() + limit
        return self._deadline

    def _timeout_error(self, consequence: str) -> PilothouseError:
        return timeout_error(self._limits.timeout or 0.0, consequence)

    def _on_end(self) -> None:
        self.is_cut_short = self.interrupted and (self.is_cut_short or not self._is_complete())
        if self._failure is None and not self._is_complete() and not self.interrupted:
            who = "the query was closed" if self._stopped else "the event loop shut down"
            self._failure = SessionClosedError(f"{who} before the result had arrived")
        if self.on_end is not None:
            self.on_end(self._failure)
            self.on_end = None
        if held := self._release_held():
            self._buffer.put(held, self._held_bytes)
        self._buffer.end(None if self.interrupted else self._failure)
        self._middleware = None  # it may keep much, and this may be kept for long
        super()._on_end()
        for event in (self._turn_ended, self._ended):
            event.set()

    async def _watch_idle(self) -> None:
        while not self._ended.is_set():
            now = anyio.current_time()
            if self.is_awaiting_next_prompt or not (self._has_sent_all or self.pending_prompts):
                self._idle_from = now  # it is ours to speak
            heard = self._has_received()
            since = max(self._idle_since(), self._idle_from)
            look = self._idle_timer.check(since, now, has_received=heard, session_id=self.session_id)
            if look is None:
                return  # once it was heard, nothing limits its silence
            if look.note is not None:
                self.add_note(look.note)
            if look.limit is not None:
                await self._fail_on_timeout(look.make_error(self.TIMEOUT_CONSEQUENCE, has_received=heard))
                return
            await anyio.sleep_until(look.next_check_at)

    @abstractmethod
    async def _fail_on_timeout(self, error: PilothouseError) -> None:
        """A limit was passed: stop the peer's turn, and fail with `error`. Bounded."""
        ...

    @abstractmethod
    def _idle_since(self) -> float: ...

    @abstractmethod
    def _has_received(self) -> bool: ...


def _make_runner(middleware: QueryMiddleware) -> MiddlewareRunner:
    from pilothouse.driver.extensions import MiddlewareRunner  # most queries are over with their result

    return MiddlewareRunner(middleware)
