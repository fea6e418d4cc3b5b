"""`QueryRun`: one query on a child, as its consumer sees it: its messages, its end, its limits.

A query of a session waits for its turn on the child of the session; a one-shot query has a child of its own, which ends
with it. `QueryTurn` decides which messages belong to the query and when it is over; this module does what follows, and
`interrupt` what it takes to stop a turn. `InitFirst` puts the init message of a query before what the CLI reports
earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Any, Literal

import anyio
from msgspec import Struct

from pilothouse.callbacks import convert_failures
from pilothouse.engine.buffer import MessageBuffer
from pilothouse.engine.child import ChildRun
from pilothouse.engine.extensions import MIDDLEWARE, MiddlewareRunner, NextPrompt, QueryMiddleware
from pilothouse.engine.failures import self_wait_error
from pilothouse.engine.interrupt import Interrupt
from pilothouse.engine.limits import QueryLimits, TimeLimits
from pilothouse.engine.pending_work import PromptMessage, Prompts, find_named_prompts
from pilothouse.engine.tasks import OwnedTask, current_owners
from pilothouse.engine.turn import Phase, PromptState, QueryTurn
from pilothouse.errors import (
    CLIExitedError,
    ControlTimeout,
    QueryTimeout,
    SessionClosedError,
    UsageError,
)
from pilothouse.messages import (
    ConversationResetMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    ResultMessage,
    SystemMessage,
)
from pilothouse.transports.concurrency import LoopCondition

log = logging.getLogger("pilothouse.engine")

RunState = Literal["queued", "active", "completed", "interrupted", "failed", "closed"]

ARGV_PROMPT = "argv"  # stands for the uuid of a prompt in the arguments
DECISION_SECONDS = 1.0  # from the exit of a child with a result until the middleware must have decided what follows


class QueryPlace(Struct, frozen=True):
    """Where a query runs: as a turn of a session, or on a child of its own.

    Args:
        hold_child: the block for the length of which the query has the child. It begins when no other query is active,
            and at its end the next one is let in. A query's own child ends with the block, that of a session stays.
        get_next_child: in a session, returns another child when the one that the query has exited and has certainly
            received none of the prompts.
        check_caller: in a session, raises if it waits for the callback that calls this.
    """

    hold_child: Callable[[QueryRun], AbstractAsyncContextManager[ChildRun]]
    get_next_child: Callable[[], Awaitable[ChildRun]] | None = None
    check_caller: Callable[[], object] | None = None

    @property
    def has_own_child(self) -> bool:
        """Whether the child serves no other query."""
        return self.get_next_child is None


class QueryRun(OwnedTask):
    """One query. Create it anywhere, `run` it once in a task of its own.

    Args:
        place: where it runs.
        prompts: the user messages, all at once or as they come; none in the argv form.
        limits: times; in a session they count from the start of the turn.
        middlewares: see the messages, and decide what follows the result before the query is over; outermost first.
        wants_partial: whether `StreamEvent`s are for this query. Default True.

    Attributes:
        buffer: what the consumer has not read yet; see `put`.
        turn: where the query is, and what has become of its prompts. Call `act_on_turn` after each event.
        changes: notified when the turn has changed.
        child: the child that works for the query, or did so last; None before its turn in a session.
        result: the last one.
        keeps_input_open: whether the input of its own child stays open after the result, until the background tasks
            have ended: who counts what they use has to ask, and to stop them.
        wants_approval_notes: whether the consumer gets notes about approvals that wait or are settled.
        on_end: called once when all is over, with the failure, before the consumer sees the end. Must not raise.
        admission: awaited before anything is sent; what it raises is the failure of the query.
        get_query: returns the `Query` of this run, if that still exists.
    """

    def __init__(
        self,
        place: QueryPlace,
        prompts: Prompts,
        limits: QueryLimits,
        middlewares: Sequence[QueryMiddleware] = (),
        *,
        wants_partial: bool = True,
    ) -> None:
        super().__init__()
        self._place = place
        self.child: ChildRun | None = None
        self._prompts = prompts
        self._time_limits = TimeLimits(limits, "the child was ended" if place.has_own_child else "the turn was stopped")
        self._middleware = MiddlewareRunner(middlewares) if middlewares else None
        self._tasks: anyio.abc.TaskGroup | None = None
        self.buffer = MessageBuffer(wants_partial=wants_partial)
        self._init_first = InitFirst()
        # Offset of the first prompt in the input of the CLI, if the transport counts bytes.
        self._sent_offset: int | None = None
        self.turn = QueryTurn(
            ([prompt.uuid for prompt in prompts] or [ARGV_PROMPT]) if isinstance(prompts, Sequence) else (),
            all_given=isinstance(prompts, Sequence),
            has_own_child=place.has_own_child,
            until_idle=limits.until_idle,
            has_middleware=self._middleware is not None and not self._middleware.is_passive,
        )
        self._turn_before = self.turn.phase, self.turn.ended_turns, tuple(self.turn.prompts.values())
        self.changes = LoopCondition()
        self._steering: list[PromptMessage] = []
        self._has_warned_of_joined_prompts = False
        self.result: ResultMessage | None = None
        self.wants_approval_notes = self.keeps_input_open = False
        self.on_end: Callable[[BaseException | None], object] | None = None
        self.admission: Callable[[], Awaitable[None]] | None = None
        self.get_query: Callable[[], Any] = lambda: None

    def act_on_turn(self) -> None:
        """Act on what an event has made of the turn. Call it after each event."""
        turn, before = self.turn, self._turn_before
        self._turn_before = turn.phase, turn.ended_turns, tuple(turn.prompts.values())
        if self._turn_before == before:
            return
        self.changes.notify_all()
        if turn.phase is before[0]:
            return
        if turn.phase is Phase.IDLING:
            self._start_task(self._end_when_idle)
        elif turn.phase is Phase.DECIDING:
            assert self._middleware is not None
            assert self.result is not None
            self._middleware.start(self.result)

    # Called by the consumer.

    @property
    def state(self) -> RunState:
        """The state of the query."""
        if not self.is_finished:
            return "queued" if self.turn.phase is Phase.QUEUED else "active"
        if self.turn.is_interrupted:
            return "interrupted"
        if self.failure is None:
            return "completed"
        return "closed" if isinstance(self.failure, SessionClosedError) else "failed"

    @property
    def session_id(self) -> str | None:
        """Id of the session, as the CLI last named it."""
        return None if self.child is None else self.child.session_id

    async def next_batch(self) -> tuple[list[Message], int]:
        """Wait for the next messages and their size in bytes; none at the end. Raises what ended the query early.

        Raises:
            UsageError: a callback would wait for itself.
        """
        self.check_caller()
        return await self.buffer.get()

    async def wait_started(self) -> None:
        """Wait until it has started, in a session until its turn has come; see `OwnedTask.wait_started`."""
        self.check_caller()
        await super().wait_started()

    def check_caller(self) -> None:
        """Raise if a callback that the query or its session waits for is about to wait for the query."""
        if self.is_finished:
            return
        if self._place.check_caller is not None:
            self._place.check_caller()
        if self.is_in_own_callback or (self.child is not None and self.child.is_in_own_callback):
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
        await Interrupt(self, stop_background=stop_background).run()

    async def steer(self, prompt: PromptMessage, *, is_returnable: bool) -> int | None:
        """Give another prompt to the turn that runs, or that is about to.

        Args:
            prompt: what to send.
            is_returnable: whether the prompt is taken back when the turn ends without it.

        Returns:
            How many turns had ended before, for `wait_taken`; None: there was no turn, and nothing was sent.

        Raises:
            UsageError: the argv form takes one prompt.
        """
        turn = self.turn
        await self._start_settled.wait()  # before, nothing can be sent
        await self.changes.wait_until(lambda: not (turn.can_steer and turn.is_sending))
        if not turn.can_steer or self.child is None or self._tasks is None:
            return None
        if self.child.invocation.initialize is None:
            raise UsageError("steer needs the control protocol: use prompt_via='stdin'")
        number = turn.ended_turns
        self._steering.append(prompt)
        turn.give(prompt.uuid, is_returnable=is_returnable)
        self._start_task(partial(self._send_prompt, prompt))
        if is_returnable:
            self._start_task(partial(self._withdraw_returnable, prompt.uuid, number))
        return number

    async def _withdraw_returnable(self, uuid: str, number: int) -> None:
        turn = self.turn
        await self.changes.wait_until(lambda: uuid in turn.taken_in or turn.ended_turns > number)
        if turn.prompts.get(uuid) is not PromptState.PENDING or self.child is None:
            return
        try:
            await self.child.withdraw_prompt(self, uuid)
        except ControlTimeout as error:
            if turn.prompts.get(uuid) is PromptState.PENDING:  # the answer is complete without them
                log.warning("a query ends without the words that came too late for its turn: %s", error)
                self.mark_cancelled(uuid)

    async def wait_taken(self, uuid: str) -> int | None:
        """Wait until it is known what became of a prompt of `steer`.

        Returns:
            How many turns had ended when the CLI took it; None: it did not.
        """
        turn = self.turn

        def is_known() -> bool:
            is_open = turn.prompts.get(uuid) in (PromptState.GIVEN, PromptState.PENDING)
            return uuid in turn.taken_in or not is_open or turn.phase is Phase.ENDED

        await self.changes.wait_until(is_known)
        return turn.taken_in.get(uuid)

    async def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a control request to the child that works for the query.

        Raises:
            SessionClosedError: no child works for it now.
            ControlError, ControlTimeout: the CLI refused, or did not respond.
        """
        if self.child is None or self.is_finished:
            raise SessionClosedError("no child works for the query")
        return await self.child.request(subtype, body)

    # Called by the child and by observers.

    def mark_cancelled(self, uuid: str) -> None:
        """Take note that a prompt was removed from the queue of the CLI; without a further one, the query ends."""
        self.turn.mark_cancelled(uuid)
        self.act_on_turn()

    def put(self, batch: list[Message], size: int) -> None:
        """Add messages that belong to this query."""
        if self.turn.is_abandoned and not self.turn.has_own_child:
            return
        if not self._init_first.is_over:
            batch = self._init_first.order(batch, size)
        if self._middleware is not None and batch:
            batch = self._apply_middleware(batch)
        self.buffer.put(batch, size)

    def put_note(self, note: SystemMessage) -> None:
        """Add a message of our own to the stream; the subscriptions of a session get it too."""
        if self.child is None:
            self.buffer.put([note], len(note.raw_line))
        else:
            self.child.router.put_note(note, self)

    def enable_approval_notes(self) -> None:
        """Give the consumer notes about approvals from now on, at first about those that wait."""
        if not self.wants_approval_notes:
            self.wants_approval_notes = True
            if self.child is not None:
                self.child.router.show_open_approvals(self, self.child.session_id)

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Add notes about lines that could not be read while this query was active."""
        if not self.turn.has_own_child and (self.turn.is_abandoned or not self.turn.at_cli):
            return
        self.put([*notes], sum(len(note.text) for note in notes))

    def add_result(self, result: ResultMessage) -> None:
        """Add a result that counts; see `QueryTurn.counts_result`."""
        answered = find_named_prompts(result)
        answered_count = len(
            answered.intersection(self.turn.open_prompts).difference(each.uuid for each in self._steering)
        )
        # A CLI that cannot resume sends a result with the error, and ignores the prompts.
        ignores_prompts = self.turn.has_own_child and result.is_error and not result.num_turns
        if self.turn.keeps_result(answered, is_woken=result.is_woken):
            self.result = result
        self.turn.add_result(answered, is_woken=result.is_woken, ignores_prompts=ignores_prompts)
        if answered_count > 1 and not self._has_warned_of_joined_prompts:
            self._has_warned_of_joined_prompts = True
            log.warning(
                "the CLI answered %d prompts of a query together, because they waited while it answered another; "
                "user_message_uuids of the result names them. For an answer to each, make a session and a query for "
                "each prompt, or let the iterable wait for the result of one prompt before it gives the next",
                answered_count,
            )
        self.act_on_turn()

    def end_with_child(self, exit_code: int | None = None) -> None:
        """End the query if it may end with its own child, whose output has ended.

        Args:
            exit_code: how the child exited, if that is known.
        """
        self.turn.end_output(exit_code)
        self.act_on_turn()

    def cancel_decision(self) -> None:
        """Cancel what the middlewares decide, for an interrupt."""
        assert self._middleware is not None
        self._middleware.cancel()

    def fail(self, error: BaseException) -> None:
        """Fail with `error`: the child is gone, or a part of this query failed. The first error counts."""
        if self.turn.phase is not Phase.ENDED:
            self.failure = error
            self.turn.fail()
            self.act_on_turn()

    def _apply_middleware(self, batch: list[Message]) -> list[Message]:
        """A batch as changed by the middleware. Its error fails the query, not the reader."""
        assert self._middleware is not None
        try:
            with convert_failures(MIDDLEWARE):
                return self._middleware.on_messages(list(batch))
        except Exception as error:  # noqa: BLE001 - it belongs to the consumer
            self.fail(error)
            return []

    # The end.

    def _on_decision(self, decision: NextPrompt | None) -> None:
        """Act on the decision of the middlewares; None: they were cancelled."""
        if decision is None:
            self.turn.drop_decision()
        elif self.turn.phase is Phase.DECIDING:
            messages = list(decision.messages)
            self.buffer.put(messages, sum(len(message.raw_line) for message in messages))
            self.result = next((m for m in reversed(messages) if isinstance(m, ResultMessage)), self.result)
            prompt = decision.prompt
            self.turn.decide(None if prompt is None else prompt.uuid)
            if prompt is not None:
                self._time_limits.restart_silence()
                self._start_task(partial(self._send_next_prompt, prompt))
        self.act_on_turn()

    async def _send_next_prompt(self, prompt: PromptMessage) -> None:
        await self._send_prompt(prompt)
        self._time_limits.restart_silence()

    async def wait_decided(self) -> None:
        """After the child has exited: wait for the decision of the middleware, for at most `DECISION_SECONDS`."""
        if self._middleware is not None:
            with anyio.move_on_after(DECISION_SECONDS):  # longer work is a tool call whose result is lost anyway
                await self._middleware.wait_decided()

    async def _end_when_idle(self) -> None:
        assert self.child is not None
        await self.child.wait_idle()
        self.turn.mark_idle()
        self.act_on_turn()

    # The owner task.

    async def run(self) -> None:
        """See `OwnedTask`."""
        if self._middleware is None:
            await super().run()
            return
        current_owners.set((*current_owners.get(), self._mark))
        # The outermost task: a middleware that ignores its cancellation delays only this task.
        async with anyio.create_task_group() as around:
            around.start_soon(self._middleware.run, self._on_decision, self.fail)
            await super().run()
            around.cancel_scope.cancel()

    async def _run_owned(self) -> None:
        async with self._place.hold_child(self) as self.child:
            self.turn.enter()
            self.act_on_turn()
            try:
                with self._time_limits.open_scope() as scope:
                    await self._run_on_children()
                if scope.cancelled_caught and not self.turn.is_complete:
                    raise self._explain_timeout(self._time_limits.make_error())
            finally:
                if self._middleware is not None:
                    await self._middleware.cancel_and_wait()
            if self.failure is not None:
                raise self.failure

    async def wait_admitted(self) -> None:
        """Wait for `admission`, if any. Called once, before anything is sent; the time counts."""
        if self.admission is None:
            return
        with self._time_limits.open_scope() as scope:
            await self.admission()
        if scope.cancelled_caught:
            raise self._time_limits.make_error("nothing was sent")

    def _explain_timeout(self, error: QueryTimeout) -> QueryTimeout:
        assert self.child is not None
        return self.child.diagnostics.explain_timeout(error)

    async def _run_on_children(self) -> None:
        """Run on the child; in a session on another one, if this one certainly received nothing."""
        await self._run_on(self.child)
        while self._is_undelivered():
            await self._change_child()
            await self._run_on(self.child)

    async def _run_on(self, child: ChildRun | None) -> None:
        assert child is not None
        async with child.active_query(self):
            if self.failure is not None:
                return
            self._start_settled.set()
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    await self._run_until_ended(child)
                finally:
                    self._tasks = None
                tasks.cancel_scope.cancel("the query is over")
            if self.turn.has_own_child and self.failure is None:
                await child.let_exit()

    async def _run_until_ended(self, child: ChildRun) -> None:
        self._start_task(self._write_prompts)
        if self._time_limits.has_silence_limit:
            self._start_task(self._watch_silence)
        try:
            await self.changes.wait_until(lambda: self.turn.phase is Phase.ENDED)
        finally:
            if self._time_limits.has_run_out:
                self._abandon_at_limit()
            if self._middleware is not None and not self._is_undelivered():
                self._middleware.cancel()

    def _abandon_at_limit(self) -> None:
        """A limit has passed: nobody waits for the answer any more, whatever comes of stopping the turn."""
        if self.turn.phase is not Phase.ENDED:
            self.turn.abandon()

    def _is_undelivered(self) -> bool:
        """Whether the child has exited and certainly received nothing of this query, so that it can be sent again."""
        if not isinstance(self.failure, CLIExitedError) or self._place.has_own_child or self.turn.has_output:
            return False
        if self.turn.is_stopping or self._sent_offset is None or not isinstance(self._prompts, Sequence):
            return False
        delivery = None if self.child is None else self.child.transport.delivery()
        return delivery is not None and delivery.acknowledged <= self._sent_offset

    async def _change_child(self) -> None:
        failure, self.failure = self.failure, None
        self._sent_offset = None
        self.turn.change_child()
        self.act_on_turn()
        assert self._place.get_next_child is not None
        try:
            self.child = await self._place.get_next_child()
        except UsageError as error:  # the session has one transport, and that is used up
            raise failure or error from error
        self._time_limits.restart_silence()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` while the query runs; before, beside the reader, as its result may come first."""
        work = partial(self._run_or_fail_query, work)
        if self._tasks is not None:
            self._tasks.start_soon(work)
        elif self.child is not None and not self._start_settled.is_set():
            self.child.start_task(work)

    async def _run_or_fail_query(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - it is the failure of the query
            self.fail(error)

    # The prompts.

    async def _write_prompts(self) -> None:
        assert self.child is not None
        opening = await self.child.take_opening()
        if isinstance(self._prompts, Sequence):
            ended_turns = self.turn.ended_turns
            for prompt in (*self._prompts, *self._steering):
                await self._send_prompt(prompt, opening)
                opening = b""
            for uuid in self.turn.returnable:  # those that another child was given before
                self._start_task(partial(self._withdraw_returnable, uuid, ended_turns))
        else:
            if opening:
                await self.child.send(opening)
            async with aclosing(self._prompts) as prompts:
                async for prompt in prompts:
                    if not self.turn.open_prompts:
                        self._time_limits.restart_silence()
                    self.turn.give(prompt.uuid)
                    await self._send_prompt(prompt)
        if self.child.invocation.initialize is None:
            self.turn.send(ARGV_PROMPT)
            await self.child.end_input()
            self.turn.mark_written()
        self.turn.give_no_more()
        self.act_on_turn()

    async def _send_prompt(self, prompt: PromptMessage, opening: bytes = b"") -> None:
        assert self.child is not None
        if self._sent_offset is None:
            delivery = self.child.transport.delivery()
            self._sent_offset = None if delivery is None else delivery.accepted
        self.turn.send(prompt.uuid)
        self.act_on_turn()
        await self.child.send(opening + prompt.data)
        self.turn.mark_written()
        self.act_on_turn()

    # Silence, and the end.

    async def _watch_silence(self) -> None:
        turn = self.turn
        while turn.phase is not Phase.ENDED:
            assert self.child is not None
            if turn.phase is Phase.DECIDING or not (turn.all_given or turn.open_prompts):
                self._time_limits.restart_silence()  # we are the ones to send
            self.child.note_work(in_background=turn.phase is Phase.IDLING)
            silent_since = self.child.activity.last_activity
            check = self._time_limits.track_silence(
                silent_since, anyio.current_time(), has_received=turn.has_output, session_id=self.session_id
            )
            if check is None:
                return  # after the first message, nothing limits the silence
            if check.note is not None:
                self.put_note(check.note)
            if check.error is not None:
                self._abandon_at_limit()
                self.fail(self._explain_timeout(check.error))
                return
            await anyio.sleep_until(check.next_check_at)

    def _on_end(self) -> None:
        self.turn.fail()
        if self.failure is None and not self.turn.is_complete and not self.turn.is_interrupted:
            cause = "the query was closed" if self._stop_requested else "the event loop shut down"
            self.failure = SessionClosedError(f"{cause} before the result arrived")
        if self.on_end is not None:
            self.on_end(self.failure)
            self.on_end = None
        self.buffer.put(self._init_first.release(), self._init_first.held_bytes)
        self.buffer.end(None if self.turn.is_interrupted else self.failure)
        self._middleware = None  # it may hold much memory, and this object may be kept for long
        super()._on_end()
        self.act_on_turn()


HELD_BYTES = 1024 * 1024  # of messages before the turn begins, that are held back until the init message


class InitFirst:
    """Holds back what comes before the init message: session hooks, and a cleared conversation.

    Attributes:
        is_over: whether the init message has come, or will not come first; then call it no more.
        held_bytes: how much it was given so far, in bytes on the wire.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.held_bytes = 0
        self._held: list[Message] = []

    def order(self, batch: list[Message], size: int) -> list[Message]:
        """Return what the consumer gets now, in order.

        Args:
            batch: the messages that came.
            size: their size on the wire, in bytes.
        """
        self.held_bytes += size
        for at, message in enumerate(batch):
            if isinstance(message, InitMessage):
                return [message, *self.release(), *batch[at + 1 :]]
            if not isinstance(message, SystemMessage | ConversationResetMessage):
                return [*self.release(), *batch[at:]]
            self._held.append(message)
        return self.release() if self.held_bytes > HELD_BYTES else []

    def release(self) -> list[Message]:
        """Return what is held back; nothing will be from now on."""
        held, self._held, self.is_over = self._held, [], True
        return held
