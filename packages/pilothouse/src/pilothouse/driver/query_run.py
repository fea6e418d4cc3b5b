"""`QueryRun`: one query on a child, as its consumer sees it: its messages, its end, its limits.

A query of a session waits for its turn on the child of the session. A one-shot query brings a child of its own, and
ends it. Which messages belong to the query is decided by `ChildRun`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import anyio

from pilothouse.driver.child_run import INTERRUPT_SECONDS, ChildRun
from pilothouse.driver.failures import IdleTimer, QueryLimits, self_wait_error, timeout_error
from pilothouse.driver.pending_work import PendingPrompts, PromptMessage, Prompts
from pilothouse.driver.tasks import LazyEvent, MessageBuffer, OwnedTask, current_owners
from pilothouse.errors import CLIExitedError, PilothouseError, QueryTimeout, SessionClosedError, UsageError
from pilothouse.messages import (
    ConversationResetMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    ResultMessage,
    StreamEvent,
    SystemMessage,
)
from pilothouse.transports.concurrency import LoopCondition

if TYPE_CHECKING:
    from pilothouse.driver.extensions import MiddlewareRunner, NextPrompt, QueryMiddleware

RunState = Literal["queued", "active", "completed", "interrupted", "failed", "closed"]

HELD_BYTES = 1024 * 1024  # of messages before the turn begins, that are held back until the init message
DECISION_SECONDS = 1.0  # from the exit of a child with a result until the middleware must have decided what follows

EnterTurn = Callable[["QueryRun"], AbstractAsyncContextManager[ChildRun]]
"""Waits until no other query is active, and yields the child; leaving it lets the next query in."""


class QueryRun(OwnedTask):
    """One query. Create it anywhere, `run` it once in a task of its own.

    Args:
        enter: gives the child, for the length of a block.
        prompts: the user messages, all at once or as they come; none in the argv form.
        limits: times; in a session they count from the start of the turn.
        middlewares: see the messages, and decide what follows the result before the query is over; outermost first.
        child: the child that `enter` gives, if it serves no other query.
        wants_partial: whether `StreamEvent`s are for this query; the child of a session always sends them.

    Attributes:
        pending_prompts: prompts without a result.
        interrupted: whether the query was stopped on request.
        is_cut_short: whether `result` belongs to an earlier prompt, because the query was stopped before more came.
        result: the last one.
        has_turn_ended: whether the CLI has reported the end of what it was given.
        has_begun: whether the CLI works on a prompt of this query, whose messages from here on belong to the query.
        has_started_prompt: whether the CLI has named a prompt of this query as started.
        keeps_input_open: whether the input of its own child stays open after the result, until the background tasks
            have ended: who counts what they use has to ask, and to stop them.
        was_sent: whether a prompt may have reached the CLI.
        is_awaiting_idle: whether the result has come and the query waits for background tasks.
        wants_permission_events: whether the consumer gets messages about permission requests and their decisions.
        on_end: called once when all is over, with the failure, before the consumer sees the end. Must not raise.
        on_joined: called once, with the number of prompts, when one result answers several. Must not raise.
        on_retry: called with the facts of each retry that is scheduled. Must not raise.
        admission: awaited before anything is sent; what it raises is the failure of the query.
        get_query: returns the `Query` of this run, if that still exists.
        get_next_child: returns another child when this one has exited and certainly received none of the prompts.
        check_session: raises if the session waits for the callback that calls this.
    """

    def __init__(
        self,
        enter: EnterTurn,
        prompts: Prompts,
        limits: QueryLimits,
        middlewares: Sequence[QueryMiddleware] = (),
        *,
        child: ChildRun | None = None,
        wants_partial: bool = True,
    ) -> None:
        super().__init__()
        given = isinstance(prompts, Sequence)
        self._enter = enter
        self._child = child
        self._owns_child = child is not None
        self._prompts = prompts
        self._limits = limits
        self._middleware = _make_runner(middlewares) if middlewares else None
        self._wants_partial = wants_partial
        self._tasks: anyio.abc.TaskGroup | None = None
        self._buffer = MessageBuffer()
        self._has_delivered_init = False  # the consumer has the init message, or there was none
        self._held_messages: list[Message] = []  # what came before the init message
        self._held_bytes = 0
        self._idle_timer = IdleTimer(limits)
        self._deadline: float | None = None  # of the whole query
        self._timeout_scope: anyio.CancelScope | None = None  # cancelled at the deadline
        self._is_admitted = self._is_abandoned = self._has_ever_begun = self._is_silent = False
        self._has_sent_all = given
        self._idle_from = 0.0  # the earliest moment from which silence counts
        # Offset of the first prompt in the input of the CLI, if the transport counts bytes.
        self._sent_offset: int | None = None
        self._begun_or_ended = LoopCondition()
        self._accepted: set[str] = set()  # prompts that the CLI has started and not answered
        self._make_events()
        self.pending_prompts = PendingPrompts([prompt.uuid for prompt in prompts] if given else [])
        self.result: ResultMessage | None = None
        self.interrupted = self.is_cut_short = self.has_turn_ended = self.has_started_prompt = False
        self.is_awaiting_idle = self.wants_permission_events = self.was_sent = self.keeps_input_open = False
        self.on_end: Callable[[BaseException | None], object] | None = None
        self.on_joined: Callable[[int], object] | None = None
        self.on_retry: Callable[..., object] | None = None
        self.admission: Callable[[], Awaitable[None]] | None = None
        self.get_query: Callable[[], Any] = lambda: None
        self.get_next_child: Callable[[], Awaitable[ChildRun]] | None = None
        self.check_session: Callable[[], object] | None = None

    def _make_events(self) -> None:
        self.has_begun = False
        self._first_sent = LazyEvent()  # the first prompt was sent completely
        self._turn_ended = LazyEvent()  # the turn that ran when the last interrupt was requested has ended
        self._ended = LazyEvent()  # all prompts have their results, or none will come

    # Called by the consumer.

    @property
    def state(self) -> RunState:
        """The state of the query."""
        if not self.is_finished:
            return "queued" if self.is_queued else "active"
        if self.interrupted:
            return "interrupted"
        if self.failure is None:
            return "completed"
        return "closed" if isinstance(self.failure, SessionClosedError) else "failed"

    @property
    def is_queued(self) -> bool:
        """Whether the query has not started yet."""
        return self._child is None or self.is_awaiting_admission

    @property
    def session_id(self) -> str | None:
        """Id of the session, as the CLI last named it."""
        return None if self._child is None else self._child.session_id

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
        """Raise if a callback that the query or its session waits for is about to wait for the query."""
        if self.check_session is not None:
            if not self.is_finished:
                self.check_session()
        elif self.is_in_own_callback and not self.is_finished:
            raise self_wait_error()

    async def interrupt(self, *, stop_background: bool = False) -> None:
        """Stop the turn and wait until it has ended. Returns at once when nothing runs.

        Later prompts of the query are still sent. A query of which nothing was sent yet ends, and nothing is sent.

        Args:
            stop_background: whether to stop the background tasks too, and to drop what waits in the queue of the CLI:
                further prompts, and reports of tasks that have ended, each of which would wake the model.

        Raises:
            UsageError: the argv form has no control protocol.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        if self._is_abandoned:  # it has failed, or was left, and is being stopped: that stays the reason
            await self.wait_finished()
            return
        body = {"cancel_queued": True} if stop_background else {}
        child, is_over = self._child, self._ended.is_set() or self.is_awaiting_next_prompt or self._is_idle()
        if stop_background and is_over and child is not None and (child.background or child.is_in_turn):
            await self.request("interrupt", body)  # otherwise it is the request that stops the turn
        goes_on = self.is_awaiting_next_prompt
        if self.is_finished or self._ended.is_set() or (self._is_idle() and not goes_on):
            if self.is_awaiting_idle:
                self._finish()
            return
        if self.is_queued or not (self.was_sent or self.pending_prompts):
            self.interrupted = True
            self.stop()
            await self.wait_finished()
            return
        child = self._child
        assert child is not None
        if child.invocation.initialize is None:
            raise UsageError(
                "interrupt needs the control protocol, which the argv form does not have: use prompt_via='stdin'"
            )
        self.interrupted = True
        self._buffer.release_reader()
        if self._turn_ended.is_set():
            self._turn_ended = LazyEvent()
        ended = self._turn_ended
        try:
            if goes_on and self._middleware is not None:
                self._middleware.cancel()
            if not goes_on or self._is_in_background_turn:  # else the CLI has nothing to stop
                await self._interrupt_turn(child, ended, body)
        except PilothouseError as error:
            if self._finished.is_set() or isinstance(error, SessionClosedError):
                return  # the query ended by itself in the meantime
            self.interrupted = self.is_cut_short
            raise
        except anyio.get_cancelled_exc_class():
            if not self.has_begun:  # nothing was stopped yet: what becomes of the prompts is up to the CLI again
                self.interrupted = self.is_cut_short
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await ended.wait()
            return
        self.stop()

    async def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a control request to the child that works for the query.

        Raises:
            SessionClosedError: no child works for it now.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        if self._child is None or self.is_finished:
            raise SessionClosedError("no child works for the query")
        return await self._child.request(subtype, body)

    async def _interrupt_turn(self, child: ChildRun, ended: LazyEvent, body: Mapping[str, Any]) -> None:
        """Make the CLI end the running turn, unless `ended` is set. `body` says what else is to be stopped."""
        if child.channel.is_preparing:
            self.stop()  # no prompt was sent, and none will be
            return
        child.release_reader()
        # No wait otherwise: the query may be stopped meanwhile.
        if not (self.is_awaiting_idle or self.is_awaiting_next_prompt or self.has_begun):
            await self._first_sent.wait()
            if self._ended.is_set():
                return
            try:
                await child.cancel_prompts(self)
                if not self.pending_prompts and self._is_in_background_turn:
                    await child.request("interrupt", body)
            finally:  # only now: the interrupt must not reach the next query
                if not self.pending_prompts and not self._ended.is_set():
                    self._end_without_answer()
            if not self.pending_prompts:
                return
            await self._begun_or_ended.wait_until(lambda: self.has_begun or self._ended.is_set())
        if not ended.is_set():
            await child.request("interrupt", body)

    @property
    def is_awaiting_next_prompt(self) -> bool:
        """Whether the middleware has a result and has not decided what follows."""
        return self._middleware is not None and self._middleware.is_undecided

    @property
    def is_awaiting_admission(self) -> bool:
        """Whether `admission` still waits, so that nothing was sent."""
        return self.admission is not None and not self._is_admitted

    # Called by the child and by observers.

    @property
    def owns_background(self) -> bool:
        """Whether what background tasks say belongs to this query although none of its prompts is answered now.

        With `until_idle`, from its first result on, also while a middleware decides and before the next prompt begins.
        """
        return self.is_awaiting_idle or (
            self._limits.until_idle and self.result is not None and not self._ended.is_set()
        )

    def mark_begun(self, uuid: str | None = None) -> None:
        """Mark a prompt of this query as started; None if the CLI does not say which."""
        if uuid is not None:
            self._accepted.add(uuid)
            self.has_started_prompt = True
        self._has_ever_begun = self.has_begun = True
        self._begun_or_ended.notify_all()

    def unmark_begun(self) -> None:
        """Undo `mark_begun`: the CLI does report prompts that it starts, so what came was a turn of its own."""
        if not self._accepted:
            self.has_begun = False

    def mark_cancelled(self, uuid: str | None) -> None:
        """Take note that a prompt was removed from the queue of the CLI; without a further one, the query ends."""
        if uuid is None or uuid not in self.pending_prompts or uuid in self._accepted:
            return  # one that was started gets a result
        self.pending_prompts.discard([uuid])
        # Else `interrupt` has removed it, and goes on; or the query has failed, or was left, and this is its clean-up.
        if not (self.pending_prompts or self.is_stopping or self._ended.is_set()):
            self._end_without_answer()

    def _end_without_answer(self) -> None:
        """End the turn as interrupted: every prompt was taken back."""
        self.interrupted = self.is_cut_short = self.has_turn_ended = True
        self._end_turn()

    def put(self, batch: list[Message], size: int) -> None:
        """Add messages that belong to this query."""
        if self._is_abandoned and not self._owns_child:
            return
        if not self._has_delivered_init:
            batch = self._init_first(batch, size)
        if self._middleware is not None and batch:
            batch = self._apply_middleware(batch)
        if not self._wants_partial:
            batch = [message for message in batch if message.__class__ is not StreamEvent]
        if batch:
            self._buffer.put(batch, size)

    def put_note(self, note: SystemMessage) -> None:
        """Add a message of our own to the stream."""
        self._buffer.put([note], len(note.raw_line))

    def add_note(self, note: SystemMessage) -> None:
        """Add a message of our own to the stream; the subscriptions of a session get it too."""
        self.put_note(note)
        if self._child is not None:
            self._child.add_note(note)

    def report_permission(self, subtype: str, facts: dict[str, Any]) -> None:
        """Take a note about a permission request, or its decision, in a one-shot query."""
        if self._child is not None:
            self._child.report_permission(subtype, facts)

    def request_permission_events(self) -> None:
        """Give the consumer notes about permissions from now on, at first about the requests that wait."""
        if not self.wants_permission_events:
            self.wants_permission_events = True
            if self._child is not None:
                self._child.show_open_asks(self)

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Add notes about lines that could not be read while this query was active."""
        if not self._owns_child and (self._is_abandoned or not (self.was_sent and self.pending_prompts)):
            return
        self.put([*notes], sum(len(note.text) for note in notes))

    def owns_result(self, result: ResultMessage, *, may_be_unnamed: bool) -> bool:
        """Whether a result belongs to this query; `may_be_unnamed` also accepts a result that names no prompt."""
        if self.pending_prompts.is_answered_by(result):
            return True
        if result.is_woken:
            return self.owns_background
        return may_be_unnamed and not result.user_message_uuids and result.user_message_uuid is None

    def add_result(self, result: ResultMessage) -> None:
        """Add a result that belongs to this query."""
        is_answer = not result.is_woken or self.pending_prompts.is_answered_by(result)
        if is_answer or self.result is None:
            self.result = result
        if is_answer:
            self.has_turn_ended = True
            answered = self.pending_prompts.resolve(result)
            if answered > 1 and self.on_joined is not None:
                self.on_joined(answered)
                self.on_joined = None
        elif not self.is_awaiting_idle:
            return  # a turn of a background task answers none of our prompts
        knows = bool(self._accepted)
        self._accepted.intersection_update(self.pending_prompts)
        if knows and not self._accepted:
            self.has_begun = False  # what comes before the next prompt is started is not ours
        self._end_turn()

    def mark_done(self) -> None:
        """Take what came as the whole answer: the stream has said so, without a result."""
        self.has_turn_ended = True
        self.pending_prompts.clear()
        self._end_turn()

    def accept_exit(self, exit_code: int | None = None) -> bool:
        """Whether the query may end now that its own child has ended its output; if so, it is over.

        Args:
            exit_code: how the child exited, if that is known.
        """
        has_all = self.has_turn_ended and self._has_sent_all and not self.is_awaiting_next_prompt
        if exit_code == 0 and has_all:
            self.pending_prompts.clear()  # the CLI merged prompts into one turn, and is too old to name them
            self.is_awaiting_idle = False
        if not (self.is_complete or self.interrupted):
            return False
        self._finish()
        return True

    def abandon(self) -> None:
        """Drop further messages, so that the CLI can finish: nothing reads them any more."""
        self._is_abandoned = True
        self._buffer.release_reader()

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
        """Whether the end of the turn is awaited, so that nothing may hold up the reader."""
        return self.interrupted or self._is_abandoned

    @property
    def is_timed_out(self) -> bool:
        """Whether a limit has stopped the query."""
        return self._is_silent or (self._timeout_scope is not None and self._timeout_scope.cancel_called)

    def fail(self, error: BaseException) -> None:
        """Fail with `error`: the child is gone, or a part of this query failed. The first error counts."""
        if self._ended.is_set():
            return
        self.failure = error
        self._set_events()

    def _set_events(self) -> None:
        for event in (self._ended, self._turn_ended, self._first_sent):
            event.set()
        self._begun_or_ended.notify_all()

    def _init_first(self, batch: list[Message], size: int) -> list[Message]:
        """A batch as the consumer gets it: the init message first.

        The CLI reports session hooks, and a cleared conversation, before the turn begins (2.1.330).
        """
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
        middleware, result = self._middleware, self.result
        if middleware is None or result is None or self.is_stopping or not middleware.start(result):
            self._on_answered()
        else:
            self.is_awaiting_idle = False

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
        self.has_begun = self.has_turn_ended = False
        self._idle_from = anyio.current_time()
        self._start_task(partial(self._send_next_prompt, following.prompt))

    async def _send_next_prompt(self, prompt: PromptMessage) -> None:
        await self._send_prompt(prompt)
        self._idle_from = anyio.current_time()

    def _is_answered(self) -> bool:
        """Whether all prompts were sent and have their results."""
        return self._has_sent_all and not self.pending_prompts and self.has_turn_ended

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete if the query ends now."""
        if not self.has_turn_ended or self._is_abandoned or self.is_awaiting_next_prompt or self.is_awaiting_idle:
            return False
        # A CLI that cannot resume sends a result with the error, and ignores the prompts.
        is_refused = self._owns_child and self.result is not None and self.result.is_error and not self.result.num_turns
        return is_refused or self._is_answered()

    def _is_idle(self) -> bool:
        """Whether there is no turn to interrupt."""
        return self.has_turn_ended and not self.pending_prompts and not self._is_in_background_turn

    @property
    def _is_in_background_turn(self) -> bool:
        """Whether the CLI works on a turn of its own that belongs to this query."""
        return self.owns_background and self._child is not None and self._child.is_in_turn

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
        assert self._child is not None
        await self._child.wait_idle()
        if self.is_awaiting_idle:  # no middleware decides about another result meanwhile
            self._finish()

    def _finish(self) -> None:
        """Mark the query as ended."""
        self.is_awaiting_idle = False
        self._ended.set()

    # The owner task.

    async def run(self) -> None:
        """See `OwnedTask`."""
        if self._middleware is None:
            await super().run()
            return
        current_owners.set((*current_owners.get(), self._mark))
        # The outermost task: a middleware that ignores its cancellation delays only this task.
        async with anyio.create_task_group() as around:
            around.start_soon(self._middleware.run, self._on_next_prompt, self.fail)
            await super().run()
            around.cancel_scope.cancel()

    async def _run_owned(self) -> None:
        if self._owns_child:
            try:
                if self.admission is not None:
                    await self.wait_admitted()
                await self._run_with_timeout(self._run_entered, "the child was ended")
            finally:
                await self._cancel_middleware()
        else:
            await self._run_entered()

    async def _run_entered(self) -> None:
        async with self._enter(self) as self._child:
            if self._owns_child:
                await self._run_turn(self._child)
                return  # `OwnedTask` keeps the failure; inside of the child's task group it must not be raised
            await self._run_with_timeout(self._run_turns, "the turn was stopped")
            if self.failure is not None:
                raise self.failure

    async def wait_admitted(self) -> None:
        """Wait for `admission`. Called once, before anything is sent; the time counts."""
        assert self.admission is not None
        with anyio.CancelScope(deadline=self._get_deadline()) as scope:
            await self.admission()
        if scope.cancelled_caught:
            raise self._timeout_error("nothing was sent")
        self._is_admitted = True

    async def _run_with_timeout(self, work: Callable[[], Awaitable[None]], consequence: str) -> None:
        if self._limits.timeout is None:
            await work()
            return
        with anyio.CancelScope(deadline=self._get_deadline()) as scope:
            self._timeout_scope = scope
            await work()
        if scope.cancelled_caught and not self.is_complete:
            raise self._timeout_error(consequence)

    def _get_deadline(self) -> float:
        """When the query must be over, counted from the first call."""
        if self._deadline is None:
            limit = self._limits.timeout
            self._deadline = inf if limit is None else anyio.current_time() + limit
        return self._deadline

    def _timeout_error(self, consequence: str) -> QueryTimeout:
        return self._explain_timeout(timeout_error(self._limits.timeout or 0.0, consequence))

    def _explain_timeout(self, error: QueryTimeout) -> QueryTimeout:
        return error if self._child is None else self._child.diagnostics.explain_timeout(error)

    async def _run_turns(self) -> None:
        """Run the turn in a session, on another child if this one certainly received nothing."""
        try:
            await self._run_turn(self._child)
            while self._is_undelivered():
                await self._change_child()
                await self._run_turn(self._child)
        finally:
            await self._cancel_middleware()

    async def _run_turn(self, child: ChildRun | None) -> None:
        assert child is not None
        async with child.active_query(self):
            self._started.set()
            if self._owns_child:
                await self._run_own_child(child)
                return
            async with anyio.create_task_group() as self._tasks:
                await self._run_until_ended(child)
                self._tasks.cancel_scope.cancel()

    async def _run_own_child(self, child: ChildRun) -> None:
        if self._timeout_scope is not None:
            self._timeout_scope.deadline = inf  # now that a child runs, its turn may be saved before the end
        with anyio.CancelScope(deadline=self._get_deadline()) as self._timeout_scope:
            await self._run_until_ended(child)
            if self.failure is None:
                await child.finish()
        if self._timeout_scope.cancelled_caught and not self.is_complete:
            self.fail(self._timeout_error("the child was ended"))

    async def _run_until_ended(self, child: ChildRun) -> None:
        self._start_sending(child)
        if self._idle_timer.is_limited:
            self._start_task(self._watch_idle)
        try:
            await self._ended.wait()
        finally:
            if self._middleware is not None and not self._is_undelivered():
                self._middleware.cancel()

    async def _cancel_middleware(self) -> None:
        if self._middleware is not None:
            await self._middleware.wait_cancelled()

    def _is_undelivered(self) -> bool:
        """Whether the child has exited and certainly received nothing of this query, so that it can be sent again."""
        if not isinstance(self.failure, CLIExitedError) or self.get_next_child is None or self._has_ever_begun:
            return False
        if self.is_stopping or self._sent_offset is None or not isinstance(self._prompts, Sequence):
            return False
        delivery = None if self._child is None else self._child.transport.delivery()
        return delivery is not None and delivery.acknowledged <= self._sent_offset

    async def _change_child(self) -> None:
        failure, self.failure = self.failure, None
        self._make_events()
        self._sent_offset, self.was_sent = None, False
        assert self.get_next_child is not None
        try:
            self._child = await self.get_next_child()
        except UsageError as error:  # the session has one transport, and that is used up
            raise failure or error from error
        self._idle_from = anyio.current_time()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        work = partial(self._run_recording_failure, work)
        if self._tasks is not None:
            self._tasks.start_soon(work)
        elif self._child is not None:
            self._child.start_task(work)

    async def _run_recording_failure(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - it is the failure of the query
            self.fail(error)

    # The prompts.

    def _start_sending(self, child: ChildRun) -> None:
        if self._owns_child and isinstance(self._prompts, Sequence):
            self.was_sent = True
            if child.try_open(b"".join(prompt.data for prompt in self._prompts)):
                self._first_sent.set()
                return  # the usual case: a task would cost more than all this work
        self._start_task(self._write_prompts)

    async def _write_prompts(self) -> None:
        assert self._child is not None
        opening = await self._child.prepare()
        if isinstance(self._prompts, Sequence):
            for prompt in self._prompts:
                await self._send_prompt(prompt, opening)
                opening = b""
        else:
            if opening:
                await self._child.send(opening)
            async with aclosing(self._prompts) as prompts:
                async for prompt in prompts:
                    if not self.pending_prompts:
                        self._idle_from = anyio.current_time()  # silence counts from here on
                    self.pending_prompts.add(prompt.uuid)
                    await self._send_prompt(prompt)
            self._has_sent_all = True
        if self._child.invocation.initialize is None:
            await self._child.transport.end_input()
        self._end_if_done()

    async def _send_prompt(self, prompt: PromptMessage, opening: bytes = b"") -> None:
        assert self._child is not None
        if not self.was_sent:
            delivery = self._child.transport.delivery()
            self._sent_offset = None if delivery is None else delivery.accepted
        self.was_sent = True
        await self._child.send(opening + prompt.data)
        self._first_sent.set()

    # Silence, and the end.

    async def _watch_idle(self) -> None:
        while not self._ended.is_set():
            assert self._child is not None
            now = anyio.current_time()
            if self.is_awaiting_next_prompt or not (self._has_sent_all or self.pending_prompts):
                self._idle_from = now  # we are the ones to send
            any_received = self._has_ever_begun
            since = max(self._child.idle_since(in_background=self.is_awaiting_idle), self._idle_from)
            look = self._idle_timer.check(since, now, has_received=any_received, session_id=self.session_id)
            if look is None:
                return  # after the first message, nothing limits the silence
            if look.note is not None:
                self.add_note(look.note)
            if look.limit is not None:
                self._is_silent = True
                consequence = "the child was ended" if self._owns_child else "the turn was stopped"
                self.fail(self._explain_timeout(look.make_error(consequence, has_received=any_received)))
                return
            await anyio.sleep_until(look.next_check_at)

    def _on_end(self) -> None:
        self.failure = self.failure or (self._child.failure if self._owns_child and self._child else None)
        self.is_cut_short = self.interrupted and (self.is_cut_short or not self.is_complete)
        if self.failure is None and not self.is_complete and not self.interrupted:
            cause = "the query was closed" if self._stopped else "the event loop shut down"
            self.failure = SessionClosedError(f"{cause} before the result arrived")
        if self.on_end is not None:
            self.on_end(self.failure)
            self.on_end = None
        if held := self._release_held():
            self._buffer.put(held, self._held_bytes)
        self._buffer.end(None if self.interrupted else self.failure)
        self._middleware = None  # it may hold much memory, and this object may be kept for long
        super()._on_end()
        self._set_events()


def _make_runner(middlewares: Sequence[QueryMiddleware]) -> MiddlewareRunner:
    from pilothouse.driver.extensions import MiddlewareRunner  # most queries are over with their result

    return MiddlewareRunner(middlewares)
