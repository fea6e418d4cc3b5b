"""`ChildRun`: one child from start to exit, and which of its messages belongs to which query.

The child of a session serves many queries, one at a time; a query that is abandoned leaves it usable. A one-shot query
has a child of its own, which gets no other prompts: `open_for` runs it in the task of that query.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from pilothouse.driver.connection import ChildQuery, ControlChannel, PendingRequest, SkippedLine
from pilothouse.driver.diagnostics import Diagnostics
from pilothouse.driver.failures import QueryLimits, idle_timeout_error, is_refusal, missing_result_error
from pilothouse.driver.pending_work import (
    BackgroundAttribution,
    OpenAsks,
    RunningTasks,
    RunningTools,
    find_named_prompts,
    make_ask_note,
)
from pilothouse.driver.tasks import LazyEvent, OwnedTask
from pilothouse.driver.turn import Phase
from pilothouse.errors import CLIExitedError, ControlError, LineDecodeError, PilothouseError, SessionClosedError
from pilothouse.messages import (
    ApiRetryMessage,
    CommandLifecycleMessage,
    ConversationResetMessage,
    DoneMessage,
    InitMessage,
    LineSkippedMessage,
    Message,
    ResultMessage,
    StatusMessage,
    SystemMessage,
    TaskStartedMessage,
)
from pilothouse.options import Invocation
from pilothouse.options.invocation import InitializeLine
from pilothouse.protocol import InvalidFrame, LineTooLong, NonJsonLine
from pilothouse.transports import Health, Transport
from pilothouse.transports.concurrency import LoopCondition
from pilothouse.transports.discovery import warn_if_old

if TYPE_CHECKING:
    from pilothouse.driver.extensions import HandlerSet
    from pilothouse.driver.subscriptions import Subscriptions
    from pilothouse.options.secrets import Redactor

WAKE_SECONDS = 1.0  # from the end of a background task until it has woken the model
# From an unreadable line until a tool whose result may have been in it counts as ended: no command runs longer.
LOST_RESULT_SECONDS = 600.0
SEND_SECONDS = 10.0  # until a child that does not read its input is ended
EXIT_NOTICE_SECONDS = 1.0  # from the exit of a child until its output must have ended
FOREIGN_TURN_SECONDS = 30.0  # of silence after which a turn that was under way is taken to have ended unnoticed
WORKING_STATES = ("running", "requires_action")  # `session_state` of a CLI that was already running (2.1.330)
CLOSE_SECONDS = 5.0  # from the end of the input until a child that does not exit is ended; it saves the session first
EXIT_SECONDS = 5.0  # of silence after the last result; then a child of one query that does not exit is ended
INTERRUPT_SECONDS = 5.0  # from the confirmation of an interrupt until the turn must have ended
INTERRUPT_RESPONSE_SECONDS = 1.0  # for a child over a limit to confirm an interrupt: a child that hangs does not
SAVE_SECONDS = 3.0  # from the confirmation until its turn must have ended, which saves the conversation
OPEN_REQUEST_SECONDS = 0.05  # between two looks whether the requests of the CLI have their responses

Work = Callable[[], Awaitable[None]]


class ChildRun(OwnedTask):
    """One child. Create it anywhere; `run` it once in a task of its own, or `open_for` one query.

    Args:
        transport: not started yet.
        invocation: how to start the child.
        limits: sizes, and times of control requests and of the start.
        handlers: handle the requests of the CLI, if any.
        subscriptions: get every message.
        make_refusal_error: makes the error for a result in place of an initialize response (`resume` of an unknown id).

    Attributes:
        background: the background tasks that run.
        close_failure: the error of closing the transport: what it stores, such as a recording, is incomplete.
        last_activity: when the CLI last sent something or was busy; in the future while it waits for a known time.
        is_in_turn: whether the CLI works on a turn, for a prompt or on its own.
        may_be_woken: whether a background task was seen; when one ends, it starts a turn once the CLI is idle.
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
        handlers: HandlerSet | None = None,
        *,
        subscriptions: Subscriptions | None = None,
        make_refusal_error: Callable[[ResultMessage], Exception] | None = None,
    ) -> None:
        super().__init__()
        self.transport = transport
        self.invocation = invocation
        self.background = RunningTasks()
        self.close_failure: PilothouseError | None = None
        self.last_activity = 0.0
        self.is_in_turn = self.may_be_woken = False
        self.server_info: Mapping[str, Any] = {}
        self.session_id: str | None = None
        self.permission_mode: str | None = None
        self.last_init: InitMessage | None = None
        self.has_started = self.reports_lifecycle = False
        self._handlers = handlers
        self._limits = limits
        self._subscriptions = subscriptions
        self._make_refusal_error = make_refusal_error
        self._attribution = BackgroundAttribution()
        self._open_asks = OpenAsks()
        self._query: ChildQuery | None = None  # the active one
        self._only_query: ChildQuery | None = None  # the one that the child was started for
        self._is_in_foreign_turn = self._has_seen_turns = self._is_input_ended = False
        self._woken_until = self._uncertain_until = 0.0
        self._state_changes = LoopCondition()  # a turn or a background task has ended
        self._ended = LazyEvent()  # its output has ended
        self._opening: tuple[PendingRequest | None, bytes] = (None, b"")  # the initialize request, not sent yet
        self._redactor: Redactor | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._task_count = 0  # tasks that have not ended

    # Made on first use, which is after the start of the child: it needs time to come up anyway.

    @cached_property
    def channel(self) -> ControlChannel:
        """The control channel over the transport."""
        channel = ControlChannel(
            self.transport,
            self,
            start_task=self.start_task,
            handlers=self._handlers,
            redact=self._redact,
            max_line_bytes=self._limits.max_line_bytes,
            control_timeout=self._limits.control_timeout,
        )
        channel.on_skipped = self._on_skipped
        return channel

    @cached_property
    def running_tools(self) -> RunningTools:
        """The tools that run."""
        return RunningTools()

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Warns of what the CLI reports in passing."""
        return Diagnostics(self.invocation, self.transport, self.request, self.start_task)

    # Start and end.

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

    def health(self) -> Health:
        """The health of the transport, or the failure."""
        return self.transport.health() if self.failure is None else Health("unhealthy", str(self.failure))

    @property
    def is_ready(self) -> bool:
        """Whether the child can take a prompt, as far as is known without waiting."""
        return self.has_started and not self.is_finished and self.transport.health().state != "unhealthy"

    async def _run_owned(self) -> None:
        async with self._lifespan():
            self.start_task(self._initialize)
            if self._limits.startup_timeout is not None:
                self.start_task(self._watch_start)
            await self._read()

    @asynccontextmanager
    async def open_for(self, query: ChildQuery) -> AsyncGenerator[ChildRun]:
        """Start the child for one query, in the task of the query; on exit, end it."""
        self._query = self._only_query = query
        try:
            async with self._lifespan():
                self.start_task(self._read)
                yield self
        finally:
            self._on_end()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        """Start the child on entry, close it on exit.

        Raises:
            BaseException: the first error of what ran here, as it is and not inside a group.
        """
        await self.transport.start(self.invocation)
        try:
            self.last_activity = anyio.current_time()
            # Registered before the reader starts: a short child may have sent everything before the first task runs.
            if self.invocation.initialize is not None:
                self._opening = self._make_opening(self.invocation.initialize)
            async with anyio.create_task_group() as self._tasks:
                self.start_task(self.transport.serve)
                if self._handlers is not None:
                    self.channel.start_handlers()
                yield
                if self._task_count:  # cancelling an empty group costs as much as a task
                    self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            with anyio.CancelScope(shield=True):
                try:
                    await self.transport.close()
                except PilothouseError as error:
                    self.close_failure = error
                    raise
        if self.failure is not None:
            raise self.failure

    def _make_opening(self, body: Mapping[str, Any]) -> tuple[PendingRequest, bytes]:
        pending, line = self.channel.start_request("initialize", body)
        return pending, InitializeLine(line)  # error reporters print the variables of every frame

    def start_task(self, work: Work) -> None:
        """Run `work` beside the reader, until the connection ends; nothing runs after that."""
        if self._tasks is not None:
            self._task_count += 1
            self._tasks.start_soon(self._run_task, work)

    async def _run_task(self, work: Work) -> None:
        await self._run_recording_failure(work)
        self._task_count -= 1  # not after a cancel, which ends all the rest too

    async def _run_recording_failure(self, work: Work) -> None:
        """Run `work`; an error in it ends the whole connection."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised by `_lifespan`
            self.failure = self.failure or error
            self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def _initialize(self) -> None:
        pending, opening = self._opening
        assert pending is not None
        self.server_info = info = await self.channel.initialize(pending, opening)
        mode = info.get("current_permission_mode")
        self.permission_mode = mode if isinstance(mode, str) else None
        if info.get("session_state") in WORKING_STATES:
            # Otherwise its messages have already reported its state.
            self.is_in_turn |= not self._has_seen_turns
            self._is_in_foreign_turn = self.is_in_turn
        self.has_started = True
        self._started.set()

    async def _watch_start(self) -> None:
        limit = self._limits.startup_timeout or 0.0
        await anyio.sleep(limit)
        if not self.has_started and not self.channel.is_preparing:
            raise idle_timeout_error(limit, has_received=False, kind="startup_timeout")

    async def _read(self) -> None:
        try:
            await self._run_recording_failure(self._read_until_end)
        finally:
            self._fail_waiters()  # now: what runs beside may itself wait for the end

    async def _read_until_end(self) -> None:
        await self.channel.run(self._check_exit)
        only = self._only_query
        if self._stopped or self.failure is not None or (only is not None and only.accept_exit()):
            return
        ending = await self.transport.exit_info()
        query = self._query
        if query is not None:
            await query.wait_decided()
        if only is not None and only.accept_exit(ending.exit_code):
            return
        is_busy = query is not None and query.turn.phase is not Phase.ENDED
        noise, problem = self.channel.last_non_json_line, self.channel.last_problem
        stats = self.channel.connection.stats
        is_local = self.transport.facts.executable is not None
        is_mute = is_local and not (stats.messages or stats.control_frames)
        raise missing_result_error(ending, noise, problem, is_busy=is_busy, is_mute=is_mute)

    def _fail_waiters(self) -> None:
        """Fail everything that waits for the child, before it is closed."""
        error = self.failure or SessionClosedError("the session is closed")
        self._ended.set()
        self.channel.close(error)
        if self._subscriptions is not None:
            self._subscriptions.on_child_ended(error)
        if self._query is not None and (self.failure is not None or self._only_query is None):
            self._query.fail(error)
        self._notify_state_changed()

    def _on_end(self) -> None:
        if self._only_query is None and not self.has_started:
            self.failure = self.failure or SessionClosedError("the session is closed")
        self._fail_waiters()
        super()._on_end()

    def stop(self, error: Exception | None = None) -> None:
        """End the child now, from any task of the loop; `error` says why, if not on request."""
        if not self._stopped:
            self.failure = self.failure or error
        super().stop()

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
        failure, self.close_failure = self.close_failure, None
        if failure is not None:
            raise failure

    async def _end_gracefully(self) -> None:
        self.release_reader()
        with anyio.move_on_after(CLOSE_SECONDS), suppress(PilothouseError, anyio.ClosedResourceError):
            if self.is_in_turn:
                await self.request("interrupt", {"cancel_queued": True})
            await self.transport.end_input()
            await self._ended.wait()

    async def detach(self) -> str:
        """Leave the CLI running; returns the id to find it again. See `Transport.detach`."""
        before, self._stopped = self._stopped, True  # nothing is interrupted, and nothing is sent any more
        failure, self.failure = self.failure, SessionClosedError("this process has left the session")
        try:
            found_as = await self.transport.detach()
        except BaseException:
            self._stopped, self.failure = before, failure
            raise
        with anyio.CancelScope(shield=True):
            super().stop()
            await self.wait_finished()
        return found_as

    # A child of one query.

    def try_open(self, prompts: bytes) -> bool:
        """Send the initialize request and the prompts at once, which saves a round trip; False: call `prepare`."""
        pending, opening = self._opening
        if self._handlers is not None or pending is None:
            return False
        pending.on_error = self._on_initialize_error
        self.channel.start_timeout(pending)
        return self.transport.try_send(opening + prompts)

    async def prepare(self) -> bytes:
        """Return what goes before the first prompt: the initialize request, unless handlers must be in force first."""
        query, (pending, opening) = self._only_query, self._opening
        if query is None or pending is None:
            return b""
        if self._handlers is None:
            pending.on_error = self._on_initialize_error
            self.channel.start_timeout(pending)
            return opening
        try:
            await self.channel.initialize(pending, opening)
        except PilothouseError:
            if not query.turn.has_answer:  # `--resume` of an unknown id leads to a result instead
                raise
        return b""

    def _on_initialize_error(self, error: BaseException) -> None:
        if self._only_query is not None and not (self._only_query.turn.has_answer or self.is_finished):
            self.failure = self.failure or error
            self._cancel_tasks()

    async def finish(self) -> None:
        """End the input after the last result: the CLI finishes its background tasks and exits."""
        await self._run_recording_failure(self._end_input)
        await self._ended.wait()

    async def _end_input(self) -> None:
        query = self._only_query
        answers = self._handlers is not None and bool(self._handlers.handlers)
        is_needed = answers or (query is not None and query.keeps_input_open)
        if is_needed or not self.transport.try_end_input():
            # Once its input has ended, the CLI takes every request as denied. An interrupted query does not wait.
            if is_needed and query is not None and not query.turn.is_interrupted:
                await self.wait_idle()
            await self.transport.end_input()
        self._is_input_ended = True
        self.channel.check_at(self._check_exit())

    def _check_exit(self) -> float:
        """End a child of one query that does not exit by itself; returns when to check again."""
        if not self._is_input_ended:
            return inf
        quiet_until = self._note_idle(is_busy=bool(self.background)) + EXIT_SECONDS
        if anyio.current_time() < quiet_until:
            return quiet_until
        self._cancel_tasks()
        return inf

    # Requests and prompts.

    def request(
        self, subtype: str, body: Mapping[str, Any] | None = None, *, timeout: float = 0.0
    ) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Send a control request; see `ControlChannel.request`."""
        return self.channel.request(subtype, body, timeout=timeout)

    async def replace_handlers(self, handlers: HandlerSet, initialize_fields: Mapping[str, Any] | None) -> None:
        """Let `handlers` handle the requests of the CLI from now on, and send it `initialize_fields`, if given.

        Raises:
            ControlError, ControlTimeout: the CLI refused the fields, or did not respond.
        """
        self.channel.replace_handlers(handlers)
        if initialize_fields is not None:
            await self.channel.send_initialize(initialize_fields)

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
        """Send a prompt, all or nothing. If the child has exited, the reader fails the query."""
        if self._ended.is_set() or self.transport.try_send(data):
            return
        sent = anyio.Event()
        if self._only_query is not None:  # no other query needs the child after a cancelled one
            await self._deliver(data, sent)
            return
        self.start_task(partial(self._deliver, data, sent))
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
    async def active_query(self, query: ChildQuery) -> AsyncGenerator[None]:
        """Make `query` the active one for the length of the block; if it leaves early, its turn is stopped first.

        Raises:
            SessionClosedError: the session is over.
        """
        if self._only_query is None:
            if self.is_finished:
                raise self.failure or SessionClosedError("the session is closed")
            self._attribution.start_query()
        self.last_activity = anyio.current_time()
        self.diagnostics.start_query()
        self._query = query
        if query.wants_permission_events:  # nobody may have seen what was asked before
            self.show_open_asks(query)
        try:
            yield
        finally:
            try:
                if query.turn.at_cli and not self.is_finished:
                    with anyio.CancelScope(shield=True):
                        await self._stop_turn(query)
            finally:
                self._query = None

    async def _stop_turn(self, query: ChildQuery) -> None:
        """Stop the turn of an abandoned query, so that nothing of it is left for the next one.

        The child of one query is ended afterwards, so this is only for a limit that was passed: the CLI saves a turn
        that is interrupted.
        """
        response_seconds, end_seconds = INTERRUPT_SECONDS, INTERRUPT_SECONDS
        if self._only_query is not None:
            if not (query.turn.is_abandoned and query.turn.has_begun) or self.invocation.initialize is None:
                return
            response_seconds, end_seconds = INTERRUPT_RESPONSE_SECONDS, SAVE_SECONDS
        query.abandon()
        self.release_reader()
        with anyio.move_on_after(response_seconds) as limit, suppress(PilothouseError):
            await self.cancel_prompts(query)
            if query.turn.at_cli:
                receipt = await self.request("interrupt", {"cancel_queued": True})
                for uuid in receipt.get("cancelled") or ():
                    query.mark_cancelled(uuid)
            limit.deadline = anyio.current_time() + end_seconds
            await self._state_changes.wait_until(lambda: not query.turn.at_cli or self.is_finished)
            return
        if self._only_query is None:
            self.stop(CLIExitedError(f"the CLI did not stop its turn within {end_seconds:g} s, so it was ended"))

    async def cancel_prompts(self, query: ChildQuery) -> None:
        """Remove the prompts of `query` from the queue of the CLI, if it has started none of them.

        They wait there while the CLI is in a turn of its own, which is not ours to interrupt.
        """
        if query.turn.has_begun or not self.reports_lifecycle:
            return
        for uuid in query.turn.at_cli:
            with suppress(ControlError):  # the CLI does not know the request
                answer = await self.request("cancel_async_message", {"message_uuid": uuid})
                if answer.get("cancelled") is True:
                    query.mark_cancelled(uuid)

    # What the child is doing.

    @property
    def is_busy(self) -> bool:
        """Whether the CLI has a reason to be silent: a tool runs, a request to us is open, or handlers prepare."""
        return self._is_tool_running or self.channel.incoming.is_busy or self.channel.is_preparing

    @property
    def _is_tool_running(self) -> bool:
        if fragment := self.channel.connection.fragment:
            self._note_skipped(fragment)
        tools = self.running_tools
        return tools.has_open or (tools.has_uncertain and anyio.current_time() < self._uncertain_until)

    def idle_since(self, *, in_background: bool = False) -> float:
        """When the CLI fell silent; now, while it is busy or a consumer does not read."""
        return self._note_idle(is_busy=self.is_busy or (in_background and bool(self.background)))

    def _note_idle(self, *, is_busy: bool) -> float:
        if is_busy or self.is_full:
            self.last_activity = max(self.last_activity, anyio.current_time())
        return self.last_activity

    async def wait_idle(self) -> None:
        """Wait until nothing runs: no turn, no background task, no turn that starts when one ends, no open request."""
        while not self.is_finished:
            if self.is_in_turn or self.background:
                await self._state_changes.wait()
            elif self.channel.incoming:
                await anyio.sleep(OPEN_REQUEST_SECONDS)
            elif self.may_be_woken and self._woken_until > anyio.current_time():
                await anyio.sleep_until(self._woken_until)
            else:
                self.may_be_woken = False
                return

    async def wait_foreign_turn(self) -> None:
        """Wait for the end of a turn that was under way when this process attached: that turn is not ours."""
        while self._is_in_foreign_turn and self.is_in_turn and not self.is_finished:
            left = self.idle_since() + FOREIGN_TURN_SECONDS - anyio.current_time()
            if left <= 0:
                break
            with anyio.move_on_after(left):
                await self._state_changes.wait()
        self._is_in_foreign_turn = False

    # Called by the reader: a sink for the control channel.

    @property
    def is_full(self) -> bool:
        """Whether the reader should wait for a consumer. Never while the end of a turn, or of the child, is awaited."""
        query, crowd = self._query, self._subscriptions
        if not (query is not None and query.is_full) and not (crowd is not None and crowd.is_full):
            return False
        return not (self._stopped or (query is not None and query.turn.is_stopping))

    async def wait_for_space(self) -> None:
        """Wait for a consumer."""
        crowded = self._query if self._query is not None and self._query.is_full else self._subscriptions
        assert crowded is not None
        await crowded.wait_for_space()

    def release_reader(self) -> None:
        """Let the reader continue although the consumers are behind."""
        if self._query is not None:
            self._query.release_reader()
        if self._subscriptions is not None:
            self._subscriptions.release_reader()

    def put(self, batch: list[Message], size: int) -> None:
        """Give each message to the query that it belongs to, and all of them to the subscriptions."""
        self.last_activity = anyio.current_time()
        kinds = set(map(type, batch))
        self.running_tools.track(batch, kinds)
        self.diagnostics.observe(batch, kinds)
        is_plain = self._ROUTES.keys().isdisjoint(kinds)  # skips the loops for a batch of nothing but text
        if self._only_query is not None:
            self._put_all(self._only_query, batch, size, is_plain=is_plain)
            return
        subscriptions, query = self._subscriptions, self._query
        assert subscriptions is not None
        subscriptions.put(batch, size)
        is_uniform = is_plain and not self._attribution  # then the first message says whose all are
        if is_uniform and query is not None:
            self._tell(query, batch[0])
        is_mine = is_uniform and query is not None and self._belongs_to(query, batch[0])
        if not is_uniform or self._attribution:
            self._put_each(batch, size, query, subscriptions)
        elif query is not None and is_mine:
            query.put(batch, size)
        else:
            for message in batch:
                subscriptions.on_unattributed(message)

    def _put_all(self, query: ChildQuery, batch: list[Message], size: int, *, is_plain: bool) -> None:
        if not query.turn.has_begun:
            query.turn.hear(names_prompts=False)
            query.follow()
        if self.session_id is None:
            self.session_id = next((message.session_id for message in batch if message.session_id), None)
        if is_plain:
            query.put(batch, size)
            return
        query.put([message for message in batch if message.__class__ is not CommandLifecycleMessage], size)
        for message in batch:
            self._route(message)

    def _put_each(
        self, batch: list[Message], size: int, query: ChildQuery | None, subscriptions: Subscriptions
    ) -> None:
        mine: list[Message] = []
        for message in batch:
            is_earlier = self._attribution.belongs_to_earlier(message)
            if query is not None and not is_earlier:
                self._tell(query, message)
            if is_earlier:
                subscriptions.on_earlier(message)
            elif query is not None and self._belongs_to(query, message):
                mine.append(message)
                if isinstance(message, ResultMessage):
                    query.put(mine, size)
                    query.add_result(message)
                    mine = []
            else:
                if isinstance(message, InitMessage):  # the CLI begins a turn on its own
                    self._attribution.start_query()
                subscriptions.on_unattributed(message)
            self._route(message)
        if mine and query is not None:
            query.put(mine, size)

    def _tell(self, query: ChildQuery, message: Message) -> None:
        """Tell the active query what a message says about its prompts. Before asking whether the message is its own."""
        turn = query.turn
        had_begun, had_background = turn.has_begun, turn.owns_background
        if isinstance(message, CommandLifecycleMessage):
            self._tell_state(query, message)
        elif not isinstance(message, ResultMessage):
            turn.hear(names_prompts=self.reports_lifecycle)
        query.follow()
        if turn.has_begun and not had_begun and self._subscriptions is not None:
            if not had_background:  # else the tasks that its earlier prompts have started are its own
                self._attribution.start_query()
            self._subscriptions.on_prompt_accepted()

    def _tell_state(self, query: ChildQuery, message: CommandLifecycleMessage) -> None:
        if message.command_uuid is not None and message.state == "started":
            query.turn.begin(message.command_uuid)
        elif message.command_uuid is not None and message.state == "cancelled":
            query.turn.cancel(message.command_uuid)

    def _belongs_to(self, query: ChildQuery, message: Message) -> bool:
        if isinstance(message, ResultMessage):
            return self._owns_result(query, message)
        if isinstance(message, CommandLifecycleMessage):
            return False
        return query.turn.owns_message(names_prompts=self.reports_lifecycle)

    def _owns_result(self, query: ChildQuery, result: ResultMessage) -> bool:
        names = find_named_prompts(result)
        return query.turn.owns_result(names, is_woken=result.is_woken, names_prompts=self.reports_lifecycle)

    def add_skipped(self, notes: list[LineSkippedMessage]) -> None:
        """Give notes about unreadable lines to the subscriptions and the active query."""
        if self._subscriptions is not None:
            self._subscriptions.put([*notes], 0)
        if self._query is not None:
            self._query.add_skipped(notes)

    def add_note(self, note: SystemMessage) -> None:
        """Give a message of our own to the subscriptions."""
        if self._subscriptions is not None:
            self._subscriptions.put([note], len(note.raw_line))

    def report_permission(self, subtype: str, fields: dict[str, Any]) -> None:
        """Give a note about a request, or its decision, to the active query, even before its turn, and to listeners."""
        self._open_asks.track(subtype, fields)
        query = self._query if self._query is not None and self._query.wants_permission_events else None
        if query is not None or self._subscriptions:
            note = make_ask_note(subtype, self.session_id, fields)
            self.add_note(note)
            if query is not None:
                query.put_note(note)

    def find_agent(self, agent_id: str) -> TaskStartedMessage | None:
        """Return what the CLI reported when this sub-agent started."""
        return self.background.find_agent(agent_id)

    def find_plan(self, tool_use_id: str) -> str | None:
        """Return the plan in the input of this call of the model."""
        return self.running_tools.find_plan(tool_use_id)

    def show_open_asks(self, query: ChildQuery) -> None:
        """Give the active query the notes about the requests that wait."""
        if query is self._query:
            for note in self._open_asks.make_notes(self.session_id):
                query.put_note(note)

    # What single messages say about the child.

    def _route(self, message: Message) -> None:
        route = self._ROUTES.get(message.__class__)
        if route is not None:
            route(self, message)

    def _on_lifecycle(self, message: CommandLifecycleMessage) -> None:
        if self._only_query is not None:
            if message.command_uuid not in self._only_query.turn.open:
                return  # a recording names the prompts of its own time
            self._tell_state(self._only_query, message)
            self._only_query.follow()
        else:
            if not self.reports_lifecycle and self._query is not None:
                self._query.turn.take_back_begin()
                self._query.follow()
            self.is_in_turn = self.is_in_turn or message.state == "started"
        self.reports_lifecycle = True

    def _on_task(self, message: Message) -> None:
        self.background.track(message)
        self.may_be_woken = True
        self._notify_state_changed()

    def _on_init(self, message: InitMessage) -> None:
        self._has_seen_turns = self.is_in_turn = True
        self.last_init = message
        self.session_id = message.session_id or self.session_id
        self.permission_mode = message.permission_mode or self.permission_mode
        warn_if_old(message.claude_code_version, self.transport.facts.executable)

    def _on_status(self, message: StatusMessage) -> None:
        self.permission_mode = message.permission_mode or self.permission_mode

    def _on_reset(self, message: ConversationResetMessage) -> None:
        self.session_id = message.new_conversation_id or self.session_id

    def _on_retry(self, message: ApiRetryMessage) -> None:
        # The announced wait for the API counts as activity.
        self.last_activity = max(self.last_activity, anyio.current_time() + max(0.0, message.retry_delay_ms / 1000))

    def _on_result(self, message: ResultMessage) -> None:
        self.is_in_turn, self._has_seen_turns = False, True
        self.session_id = message.session_id or self.session_id
        if self._query is None:  # a turn that no query of ours has asked for
            self.diagnostics.start_query()
        refuse = self._make_refusal_error
        if refuse is not None and not self.has_started and is_refusal(message):
            self.failure = self.failure or refuse(message)
            return
        only = self._only_query
        if only is not None and self._owns_result(only, message):
            only.add_result(message)
        self._notify_state_changed()

    def _on_done(self, _: DoneMessage) -> None:
        if self._only_query is not None:
            self._only_query.turn.end_stream()
            self._only_query.follow()

    def _notify_state_changed(self) -> None:
        self._woken_until = anyio.current_time() + WAKE_SECONDS
        self._state_changes.notify_all()

    _ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        ApiRetryMessage: _on_retry,
        CommandLifecycleMessage: _on_lifecycle,
        ConversationResetMessage: _on_reset,
        DoneMessage: _on_done,
        InitMessage: _on_init,
        ResultMessage: _on_result,
        StatusMessage: _on_status,
        **dict.fromkeys(RunningTasks.TRACKED, _on_task),
    }

    # Lines that could not be read.

    def _on_skipped(self, event: SkippedLine) -> None:
        match event:
            case NonJsonLine(line=line):  # not a message, or a message whose first byte is wrong
                self._note_skipped(line, is_frame=False)
            case LineTooLong(head=head):
                self._note_skipped(head)
            case InvalidFrame(error=error):
                self._note_skipped(error.line if isinstance(error, LineDecodeError) else b"")

    def _note_skipped(self, line: bytes, *, is_frame: bool = True) -> None:
        if self.running_tools.track_skipped(line, is_frame=is_frame):
            self._uncertain_until = anyio.current_time() + LOST_RESULT_SECONDS

    def _redact(self, text: str) -> str:
        if self._redactor is None:  # most children never need it
            from pilothouse.options.secrets import Redactor, invocation_secrets

            self._redactor = Redactor(invocation_secrets(self.invocation))
        return self._redactor.redact(text)
