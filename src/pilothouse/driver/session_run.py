"""A child that is kept alive for many turns (`SessionChild`), and one query of it (`SessionTurn`).

`SessionChild` decides which message belongs to which turn; one turn is active at a time. A turn that is abandoned
leaves the child usable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio

from pilothouse.driver.connection import WAKE_SECONDS, ChildConnection, PendingRequest
from pilothouse.driver.extensions import HandlerSet, QueryMiddleware
from pilothouse.driver.failures import QueryLimits, idle_timeout_error, make_note, session_ended_error
from pilothouse.driver.pending_work import BackgroundAttribution, PromptMessage, Prompts, RunningTasks
from pilothouse.driver.query_run import INTERRUPT_SECONDS, QueryRun
from pilothouse.driver.subscriptions import Subscriptions
from pilothouse.driver.tasks import LazyEvent, OwnedTask
from pilothouse.errors import CLIExitedError, ControlError, PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import (
    ApiRetryMessage,
    CommandLifecycleMessage,
    ConversationResetMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    PermissionDeniedMessage,
    ResultMessage,
    StatusMessage,
    StreamEvent,
    SystemMessage,
)
from pilothouse.options import Invocation
from pilothouse.transports import Health, Transport
from pilothouse.transports.concurrency import LoopCondition

EnterTurn = Callable[["SessionTurn"], AbstractAsyncContextManager["SessionChild"]]
"""Waits until no other query is active, and yields the child; leaving it lets the next query in."""


class SessionTurn(QueryRun):
    """A query of a session. Create it anywhere, `run` it once in a task of its own.

    Args:
        enter: waits for the turn.
        prompts: the user messages, all at once or as they come.
        limits: times; they count from the start of the turn.
        middleware: decides what follows the result, before the next query.
        wants_partial: whether `StreamEvent`s are for this query; the child of a session always sends them.

    Attributes:
        was_sent: whether a prompt may have reached the CLI.
        get_query: returns the `Query` of this turn, if that still exists.
        get_next_child: returns another child when this one has exited and certainly received none of the prompts.
        check_session: raises if the session waits for the callback that calls this.
    """

    TIMEOUT_CONSEQUENCE = "the turn was stopped"

    def __init__(
        self,
        enter: EnterTurn,
        prompts: Prompts,
        limits: QueryLimits,
        middleware: QueryMiddleware | None = None,
        *,
        wants_partial: bool = True,
    ) -> None:
        super().__init__(prompts, limits, middleware)
        self._wants_partial = wants_partial
        self._enter = enter
        self._child: SessionChild | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_abandoned = False
        self._first_sent = LazyEvent()  # the first prompt was sent completely
        self._begun = LazyEvent()
        self._has_ever_begun = False
        self._accepted: set[str] = set()  # prompts that the CLI has started and not answered
        self._sent_offset: int | None = (
            None  # offset of the first prompt in the input of the CLI, if the transport counts bytes
        )
        self.was_sent = False
        self.get_query: Callable[[], Any] = lambda: None
        self.get_next_child: Callable[[], Awaitable[SessionChild]] | None = None
        self.check_session: Callable[[], object] = lambda: None

    # Called by the consumer.

    def check_caller(self) -> None:
        """Raise if a callback that the session waits for is about to wait for the query."""
        if not self.is_finished:
            self.check_session()

    @property
    def session_id(self) -> str | None:
        """Id of the session."""
        return self._child.session_id if self._child is not None else None

    @property
    def is_queued(self) -> bool:
        """Whether its turn has not come."""
        return self._child is None

    async def interrupt(self) -> None:
        """Interrupt the query; a query that has not started is never sent. See `QueryRun.interrupt`."""
        if self._child is not None or self._finished.is_set():
            await super().interrupt()
            return
        self.interrupted = True
        self.stop()
        await self.wait_finished()

    def add_note(self, note: SystemMessage) -> None:
        """Add a message of our own to the stream; the subscriptions of the session get it too."""
        super().add_note(note)
        if self._child is not None:
            self._child.add_note(note)

    # Called by the session child.

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the turn is awaited, so that nothing may hold up the reader."""
        return self.interrupted or self._is_abandoned

    @property
    def has_begun(self) -> bool:
        """Whether the CLI has started a prompt of this query; its messages from here on belong to the query."""
        return self._begun.is_set()

    def mark_begun(self, uuid: str | None = None) -> None:
        """Mark a prompt of this query as started; None if the CLI does not say which."""
        if uuid is not None:
            self._accepted.add(uuid)
        self._has_ever_begun = True
        self._begun.set()

    def unmark_begun(self) -> None:
        """Undo `mark_begun`: the CLI does report prompts that it starts, so what came was a turn of its own."""
        if not self._accepted:
            self._reset_turn()

    def put(self, batch: list[Message], size: int) -> None:
        """Add messages that belong to this query; dropped after `abandon`."""
        if self._is_abandoned:
            return
        if not self._has_delivered_init:
            batch = self._init_first(batch, size)
        if self._middleware is not None and batch:
            batch = self._apply_middleware(batch)
        if not self._wants_partial:
            batch = [message for message in batch if message.__class__ is not StreamEvent]
        if batch:
            self._buffer.put(batch, size)

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Add notes about lines that could not be read while this query was active."""
        if self.was_sent and self.pending_prompts and not self._is_abandoned:
            super().add_skipped(notes)

    def is_answered_by(self, result: ResultMessage, *, may_be_unnamed: bool) -> bool:
        """Whether a result belongs to this query; `may_be_unnamed` also accepts a result that names no prompt."""
        if self.pending_prompts.is_answered_by(result):
            return True
        unnamed = not result.user_message_uuids and result.user_message_uuid is None
        return unnamed and may_be_unnamed and not result.is_woken

    def abandon(self) -> None:
        """Drop further messages, so that the CLI can finish: nothing reads them any more."""
        self._is_abandoned = True
        self._buffer.release_reader()

    def add_result(self, result: ResultMessage) -> None:
        """Add a result that belongs to this query."""
        if not result.is_woken or self.result is None or self.pending_prompts.is_answered_by(result):
            self.result = result
        self.pending_prompts.resolve(result)
        knows = bool(self._accepted)
        self._accepted.intersection_update(self.pending_prompts)
        if knows and not self._accepted:
            self._begun = LazyEvent()  # what comes before the next prompt is started is not ours
        self._end_turn()

    def fail(self, error: BaseException) -> None:
        """Fail with `error`: the session is over, or a part of this query failed."""
        if self._ended.is_set():
            return
        self._failure = error
        for event in (self._ended, self._turn_ended, self._begun, self._first_sent):
            event.set()

    # The end.

    def _is_complete(self) -> bool:
        goes_on = self.is_awaiting_next_prompt or self.is_awaiting_idle
        return self.result is not None and self._is_answered() and not (self._is_abandoned or goes_on)

    def _is_idle(self) -> bool:
        works = self.is_awaiting_idle and self._child is not None and self._child.is_working
        return self.was_sent and not self.pending_prompts and not works

    async def _wait_idle(self) -> None:
        assert self._child is not None
        await self._child.wait_idle()

    async def _interrupt(self, ended: LazyEvent) -> None:
        conversation = self._child
        assert conversation is not None
        conversation.release_reader()
        await self._first_sent.wait()
        if not (self.has_begun or self.is_awaiting_idle):
            await conversation.cancel_prompts(self)
            if not self.pending_prompts:
                self.is_cut_short = True
                self._end_turn()
                return
        if not self.is_awaiting_idle:
            await self._begun.wait()
        if not ended.is_set():
            await conversation.request("interrupt")

    def _reset_turn(self) -> None:
        self._begun = LazyEvent()

    # The owner task.

    async def _run_owned(self) -> None:
        async with self._enter(self) as self._child:
            await self._run_with_timeout(self._run_turns)
            if self._failure is not None:
                raise self._failure

    def _on_end(self) -> None:
        super()._on_end()
        for event in (self._first_sent, self._begun):
            event.set()

    async def _run_turns(self) -> None:
        try:
            await self._run_turn()
            while self._is_undelivered():
                await self._change_child()
                await self._run_turn()
        finally:
            if self._middleware is not None:
                await self._middleware.wait_cancelled()

    async def _run_turn(self) -> None:
        assert self._child is not None
        async with self._child.active_turn(self):
            self._started.set()
            async with anyio.create_task_group() as self._tasks:
                self._start_task(self._write_prompts)
                if self._idle_timer.is_limited:
                    self._start_task(self._watch_idle)
                try:
                    await self._ended.wait()
                finally:
                    if self._middleware is not None and not self._is_undelivered():
                        self._middleware.cancel()
                self._tasks.cancel_scope.cancel()

    def _is_undelivered(self) -> bool:
        """Whether the child has exited and certainly received nothing of this query, so that it can be sent again."""
        if not isinstance(self._failure, CLIExitedError) or self.get_next_child is None or self._has_ever_begun:
            return False
        if self.is_stopping or self._sent_offset is None or not isinstance(self._prompts, Sequence):
            return False
        acknowledged: int | None = getattr(self._child and self._child.transport, "bytes_acknowledged", None)
        return acknowledged is not None and acknowledged <= self._sent_offset

    async def _change_child(self) -> None:
        failure, self._failure = self._failure, None
        self._ended, self._turn_ended, self._begun, self._first_sent = (
            LazyEvent(),
            LazyEvent(),
            LazyEvent(),
            LazyEvent(),
        )
        self._sent_offset, self.was_sent = None, False
        assert self.get_next_child is not None
        try:
            self._child = await self.get_next_child()
        except UsageError as error:  # the session has one transport, and that is used up
            raise failure or error from error
        self._idle_from = anyio.current_time()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._run_recording_failure, work)

    async def _run_recording_failure(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised by `_run_owned`
            self.fail(error)

    async def _write_prompts(self) -> None:
        if isinstance(self._prompts, Sequence):
            for prompt in self._prompts:
                await self._send_prompt(prompt)
        else:
            async with aclosing(self._prompts) as prompts:
                async for prompt in prompts:
                    self._add_pending(prompt)
                    await self._send_prompt(prompt)
            self._has_sent_all = True
        self._end_if_done()

    async def _send_prompt(self, prompt: PromptMessage) -> None:
        assert self._child is not None
        if not self.was_sent:
            self._sent_offset = getattr(self._child.transport, "bytes_accepted", None)
        self.was_sent = True
        await self._child.send(prompt.data)
        self._first_sent.set()

    def _idle_since(self) -> float:
        assert self._child is not None
        return self._child.idle_since(in_background=self.is_awaiting_idle)

    def _has_received(self) -> bool:
        return self._has_ever_begun

    async def _fail_on_timeout(self, error: PilothouseError) -> None:
        self.fail(error)  # the session child stops what is left of the turn


SEND_SECONDS = 10.0  # until a child that does not read its input is ended
EXIT_NOTICE_SECONDS = 1.0  # from the exit of a child until its output must have ended
FOREIGN_TURN_SECONDS = 30.0  # of silence after which a turn that was under way is taken to have ended unnoticed
WORKING_STATES = (
    "running",
    "requires_action",
)  # `session_state` of a CLI that was already running (2.1.330)
CLOSE_SECONDS = 5.0  # from the end of the input until a child that does not exit is ended; it saves the session first


class SessionChild(OwnedTask):
    """The child of a session. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the child; with an initialize request.
        limits: times and sizes; `timeout` and `idle_timeout` are those of turns.
        subscriptions: get every message.
        make_refusal_error: makes the error for a result that comes instead of an initialize response (`resume` of an
            unknown id).
        handlers: handle the requests of the CLI, if any.

    Attributes:
        transport: as given.
        has_started: whether the CLI has responded to the initialize request.
        server_info: the initialize response.
        session_id: id of the conversation, as the CLI last named it.
        permission_mode: as the CLI last named it; the CLI may change it by itself.
        last_init: the init message of the last turn: tools, servers, agents.
        reports_lifecycle: whether the CLI reports when it starts a prompt; then nothing before that is an answer.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        limits: QueryLimits,
        *,
        subscriptions: Subscriptions,
        make_refusal_error: Callable[[ResultMessage], Exception],
        handlers: HandlerSet | None = None,
    ) -> None:
        super().__init__()
        self.transport = transport
        self._connection = ChildConnection(transport, invocation, limits, self, handlers)
        self._startup_timeout = limits.startup_timeout
        self._subscriptions = subscriptions
        self._make_refusal_error = make_refusal_error
        self._attribution = BackgroundAttribution()
        self._routes: dict[type[Message], Callable[[Any], None]] = {
            CommandLifecycleMessage: self._on_lifecycle,
            ConversationResetMessage: self._on_reset,
            InitMessage: self._on_init,
            ResultMessage: self._on_result,
            StatusMessage: self._on_status,
            PermissionDeniedMessage: lambda message: self._turn and self._turn.note_denied(message),
            ApiRetryMessage: self._connection.note_retry,
            **dict.fromkeys(RunningTasks.TRACKED, self._on_task),
        }
        self._turn: SessionTurn | None = None
        self._woken_until = 0.0
        self._state_changes = LoopCondition()  # a turn or a background task has ended
        self._ended = LazyEvent()  # its output has ended
        self.server_info: Mapping[str, Any] = {}
        self.session_id: str | None = None
        self.permission_mode: str | None = None
        self.last_init: InitMessage | None = None
        self.reports_lifecycle = False
        self.has_started = self._is_in_foreign_turn = self._has_seen_turns = False

    async def start(self) -> None:
        """Wait until the child runs and has responded to the initialize request.

        Raises:
            PilothouseError: the child could not be started, or refused.
        """
        await self._started.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def is_finished(self) -> bool:
        """Whether the child has ended, or is being ended."""
        return self._ended.is_set() or self._finished.is_set() or self._stopped

    @property
    def failure(self) -> BaseException | None:
        """Why it ended, if not on request."""
        return self._failure or self._connection.failure

    @property
    def is_working(self) -> bool:
        """Whether the CLI works on a turn, for a prompt or on its own."""
        return self._connection.is_in_turn

    @property
    def has_background_tasks(self) -> bool:
        """Whether a background task of the CLI runs."""
        return bool(self._connection.background)

    async def wait_idle(self) -> None:
        """Wait until nothing runs: no turn, no background task, no turn that starts when one ends."""
        child = self._connection
        while not self.is_finished:
            if child.is_in_turn or child.background:
                await self._state_changes.wait()
            elif child.may_be_woken and self._woken_until > anyio.current_time():
                await anyio.sleep_until(self._woken_until)
            else:
                child.may_be_woken = False
                return

    async def wait_foreign_turn(self) -> None:
        """Wait for the end of a turn that was under way when this process attached: that turn is not ours."""
        while self._is_in_foreign_turn and self._connection.is_in_turn and not self.is_finished:
            left = self.idle_since() + FOREIGN_TURN_SECONDS - anyio.current_time()
            if left <= 0:
                break
            with anyio.move_on_after(left):
                await self._state_changes.wait()
        self._is_in_foreign_turn = False

    async def replace_handlers(self, handlers: HandlerSet, initialize_fields: Mapping[str, Any] | None) -> None:
        """Let `handlers` handle the requests of the CLI from now on, and send it `initialize_fields`, if given.

        Raises:
            ControlError, ControlTimeout: the CLI refused the fields, or did not respond.
        """
        self._connection.channel.replace_handlers(handlers)
        if initialize_fields is not None:
            await self._connection.channel.send_initialize(initialize_fields)

    def health(self) -> Health:
        """The health of the transport, or the failure."""
        return self.transport.health() if self.failure is None else Health("unhealthy", str(self.failure))

    def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Send a control request; see `ControlChannel.request`."""
        return self._connection.channel.request(subtype, body)

    @property
    def is_ready(self) -> bool:
        """Whether the child can take a prompt, as far as is known without waiting."""
        return self.has_started and not self.is_finished and self._connection.transport.health().state != "unhealthy"

    async def check_alive(self) -> None:
        """Check whether the child still runs: an exit may not have been noticed yet."""
        if self.is_ready or self.is_finished or not self.has_started:
            return
        self.release_reader()
        with anyio.move_on_after(EXIT_NOTICE_SECONDS):
            await self._ended.wait()  # the reader knows best how it ended
            return
        self.stop(CLIExitedError(f"the CLI went away while it was idle: {self.transport.health().reason}"))

    async def send(self, data: bytes) -> None:
        """Send a prompt, all or nothing. If the child has exited, the reader fails the turn."""
        if self._ended.is_set() or self.transport.try_send(data):
            return
        sent = anyio.Event()
        self._connection.start_task(partial(self._deliver, data, sent))
        try:
            await sent.wait()
        finally:
            with anyio.move_on_after(SEND_SECONDS, shield=True):
                await sent.wait()
            if not sent.is_set():  # half a line would garble the next one
                self.stop(CLIExitedError(f"the CLI read no input for {SEND_SECONDS:g} s, so it was ended"))

    async def _deliver(self, data: bytes, sent: anyio.Event) -> None:
        try:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.transport.send(data)
        finally:
            sent.set()

    @asynccontextmanager
    async def active_turn(self, turn: SessionTurn) -> AsyncGenerator[None]:
        """Make `turn` the active one for the length of the block; if it leaves early, its turn is stopped first.

        Raises:
            SessionClosedError: the session is over.
        """
        if self.is_finished:
            raise self.failure or SessionClosedError("the session is closed")
        self._attribution.start_query()
        self._connection.last_activity = anyio.current_time()
        self._turn = turn
        try:
            yield
        finally:
            try:
                if turn.was_sent and turn.pending_prompts and not self.is_finished:
                    with anyio.CancelScope(shield=True):
                        await self._stop_turn(turn)
            finally:
                self._turn = None

    async def _stop_turn(self, turn: SessionTurn) -> None:
        """Stop the turn of an abandoned query, so that nothing of it is left for the next one."""
        turn.abandon()
        self.release_reader()
        with anyio.move_on_after(INTERRUPT_SECONDS), suppress(PilothouseError):
            await self.cancel_prompts(turn)
            if turn.pending_prompts:
                receipt = await self.request("interrupt", {"cancel_queued": True})
                turn.pending_prompts.discard(receipt.get("cancelled") or ())
            await self._state_changes.wait_until(lambda: not turn.pending_prompts or self.is_finished)
            return
        self.stop(CLIExitedError(f"the CLI did not stop its turn within {INTERRUPT_SECONDS:g} s, so it was ended"))

    async def cancel_prompts(self, turn: SessionTurn) -> None:
        """Remove the prompts of `turn` from the queue of the CLI, if it has started none of them.

        They wait there while the CLI is in a turn of its own, which is not ours to interrupt.
        """
        if turn.has_begun or not self.reports_lifecycle:
            return
        for uuid in list(turn.pending_prompts):
            with suppress(ControlError):  # the CLI does not know the request
                answer = await self.request("cancel_async_message", {"message_uuid": uuid})
                if answer.get("cancelled") is True:
                    turn.pending_prompts.discard((uuid,))

    def idle_since(self, *, in_background: bool = False) -> float:
        """When the CLI fell silent; now, while it is busy or a consumer does not read."""
        child = self._connection
        return child.idle_since(is_busy=child.is_busy or (in_background and bool(child.background)))

    async def close(self) -> None:
        """End the input, let the child save and exit, and end it if it does not. Bounded; from any task.

        Raises:
            PilothouseError: the transport reports that what it stores is incomplete. Raised once.
        """
        self._stopped = True
        with anyio.CancelScope(shield=True):
            try:
                if self.has_started and not self._ended.is_set():
                    await self._end_gracefully()
            finally:  # also if `Task.cancel` of asyncio came through the shield
                self.stop()
            await self.wait_finished()
        failure, self._connection.close_failure = self._connection.close_failure, None
        if failure is not None:
            raise failure

    async def detach(self) -> str:
        """Leave the CLI running; returns the id to find it again. See `Transport.detach`."""
        before, self._stopped = self._stopped, True  # nothing is interrupted, and nothing is sent any more
        failure, self._connection.failure = (
            self._connection.failure,
            SessionClosedError("this process has left the session"),
        )
        try:
            found_as = await self.transport.detach()
        except BaseException:
            self._stopped, self._connection.failure = before, failure
            raise
        with anyio.CancelScope(shield=True):
            super().stop()
            await self.wait_finished()
        return found_as

    async def _end_gracefully(self) -> None:
        self.release_reader()
        with anyio.move_on_after(CLOSE_SECONDS), suppress(PilothouseError, anyio.ClosedResourceError):
            if self._connection.is_in_turn:
                await self.request("interrupt", {"cancel_queued": True})
            await self.transport.end_input()
            await self._ended.wait()

    def stop(self, error: Exception | None = None) -> None:
        """End the child now, from any task of the loop; `error` says why, if not on request."""
        if not self._stopped:
            self._connection.failure = self._connection.failure or error
        super().stop()

    @property
    def is_full(self) -> bool:
        """Whether the reader should wait for a consumer. Never while the end of a turn, or of the child, is awaited."""
        turn = self._turn
        if self._stopped or (turn is not None and turn.is_stopping):
            return False
        return (turn is not None and turn.is_full) or self._subscriptions.is_full

    async def wait_for_space(self) -> None:
        """Wait for a consumer."""
        crowded = self._turn if self._turn is not None and self._turn.is_full else self._subscriptions
        await crowded.wait_for_space()

    def release_reader(self) -> None:
        """Let the reader continue although the consumers are behind."""
        if self._turn is not None:
            self._turn.release_reader()
        self._subscriptions.release_reader()

    def put(self, batch: list[Message], size: int) -> None:
        """Give each message to the turn that it belongs to, and all of them to the subscriptions."""
        child = self._connection
        child.last_activity = anyio.current_time()
        kinds = set(map(type, batch))
        child.validator.track_batch(batch, kinds)
        self._subscriptions.put(batch, size)
        turn = self._turn
        plain = self.reports_lifecycle and not self._attribution and self._routes.keys().isdisjoint(kinds)
        if plain:  # skips the loop for a batch of nothing but text
            if turn is not None and (turn.is_awaiting_idle or (turn.has_begun and turn.pending_prompts)):
                turn.put(batch, size)
            else:
                for message in batch:
                    self._subscriptions.on_unattributed(message)
            return
        mine: list[Message] = []
        for message in batch:
            if self._attribution.belongs_to_earlier(message):
                pass
            elif turn is not None and self._belongs_to_turn(message, turn):
                mine.append(message)
                if isinstance(message, ResultMessage):
                    turn.put(mine, size)
                    turn.add_result(message)
                    mine = []
            else:
                if isinstance(message, InitMessage):  # the CLI begins a turn on its own
                    self._attribution.start_query()
                self._subscriptions.on_unattributed(message)
            route = self._routes.get(message.__class__)
            if route is not None:
                route(message)
        if mine and turn is not None:
            turn.put(mine, size)

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Give notes about unreadable lines to the subscriptions and the active query."""
        self._subscriptions.put([*notes], 0)
        if self._turn is not None:
            self._turn.add_skipped(notes)

    def add_note(self, note: SystemMessage) -> None:
        """Give a message of our own to the subscriptions."""
        self._subscriptions.put([note], len(note.raw_line))

    def add_permission_note(self, subtype: str, fields: dict[str, Any]) -> None:
        """Give a note about a permission request or decision to the query that runs, else to the subscriptions."""
        if self._turn is not None and self._turn.has_begun and self._turn.wants_permission_events:
            self._turn.add_permission_note(subtype, fields)
        elif self._subscriptions:
            self.add_note(make_note(subtype, self.session_id, fields))

    def _belongs_to_turn(self, message: Message, turn: SessionTurn) -> bool:
        if turn.is_awaiting_idle or not (turn.was_sent and turn.pending_prompts):
            return turn.is_awaiting_idle
        if isinstance(message, ResultMessage):
            return turn.is_answered_by(message, may_be_unnamed=turn.has_begun or not self.reports_lifecycle)
        if isinstance(message, CommandLifecycleMessage):
            if message.state == "started" and message.command_uuid in turn.pending_prompts:
                self._mark_begun(turn, message.command_uuid)
            return False
        if not self.reports_lifecycle:
            self._mark_begun(turn, None)  # an old CLI, or a stand-in: it works on nothing else
        return turn.has_begun

    def _mark_begun(self, turn: SessionTurn, uuid: str | None) -> None:
        if not turn.has_begun:
            self._attribution.start_query()
            self._subscriptions.on_prompt_accepted()
        turn.mark_begun(uuid)

    def _on_lifecycle(self, message: CommandLifecycleMessage) -> None:
        if not self.reports_lifecycle and self._turn is not None:
            self._turn.unmark_begun()
        self.reports_lifecycle = True
        self._connection.is_in_turn = self._connection.is_in_turn or message.state == "started"

    def _on_task(self, message: Message) -> None:
        self._connection.note_task(message)
        self._notify_state_changed()

    def _on_init(self, message: InitMessage) -> None:
        self._has_seen_turns = True
        self._connection.note_init(message)
        self.last_init = message
        self.session_id = message.session_id or self.session_id
        self.permission_mode = message.permission_mode or self.permission_mode

    def _on_status(self, message: StatusMessage) -> None:
        self.permission_mode = message.permission_mode or self.permission_mode

    def _on_reset(self, message: ConversationResetMessage) -> None:
        self.session_id = message.new_conversation_id or self.session_id

    def _on_result(self, message: ResultMessage) -> None:
        self._connection.is_in_turn, self._has_seen_turns = False, True
        self.session_id = message.session_id or self.session_id
        if not self.has_started and message.is_error and message.subtype != "success" and not message.is_woken:
            self._connection.failure = self._connection.failure or self._make_refusal_error(message)
            return
        self._notify_state_changed()

    def _notify_state_changed(self) -> None:
        self._woken_until = anyio.current_time() + WAKE_SECONDS
        self._state_changes.notify_all()

    # The owner task.

    async def _run_owned(self) -> None:
        async with self._connection.lifespan() as hello:
            self._connection.start_task(partial(self._initialize, *hello))
            if self._startup_timeout is not None:
                self._connection.start_task(self._watch_start)
            try:
                await self._connection.run_recording_failure(self._read_until_end)
            finally:
                self._fail_waiters()  # now: what runs beside may itself wait for the end

    async def _watch_start(self) -> None:
        limit = self._startup_timeout or 0.0
        await anyio.sleep(limit)
        if not self.has_started and not self._connection.channel.is_preparing:
            raise idle_timeout_error(limit, has_received=False, kind="startup_timeout")

    def _on_end(self) -> None:
        if not self.has_started:
            self._failure = self.failure or SessionClosedError("the session is closed")
        self._fail_waiters()
        super()._on_end()

    def _fail_waiters(self) -> None:
        """Fail everything that waits for the child, before it is closed."""
        error = self.failure or SessionClosedError("the session is closed")
        self._ended.set()
        self._connection.channel.close(error)
        self._subscriptions.on_child_ended(error)
        if self._turn is not None:
            self._turn.fail(error)
        self._notify_state_changed()

    async def _initialize(self, pending: PendingRequest | None, opening: bytes) -> None:
        assert pending is not None
        self.server_info = await self._connection.channel.initialize(pending, opening)
        self.permission_mode = (
            mode if isinstance(mode := self.server_info.get("current_permission_mode"), str) else None
        )
        if self.server_info.get("session_state") in WORKING_STATES:
            self._connection.is_in_turn |= (
                not self._has_seen_turns
            )  # otherwise its messages have already told its state
            self._is_in_foreign_turn = self._connection.is_in_turn
        self.has_started = True
        self._started.set()

    async def _read_until_end(self) -> None:
        child = self._connection
        await child.channel.run()
        if self._stopped or child.failure is not None:
            return
        ending = await child.transport.exit_info()
        if self._turn is not None:
            await self._turn.wait_decided()
        busy = self._turn is not None and not self._turn.has_ended
        raise session_ended_error(ending, child.channel.last_non_json_line, child.channel.last_problem, is_busy=busy)
