"""`ChildRun`: one child from start to exit, and the prompts and requests that it gets.

The child of a session serves many queries, one at a time; a query that is abandoned leaves it usable. A one-shot query
has a child of its own: then every message belongs to that query, and the child exits after it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from pilothouse.callbacks import convert_failures
from pilothouse.engine.activity import ChildActivity
from pilothouse.engine.channel import TRANSPORT, ControlChannel, PendingRequest, Received
from pilothouse.engine.diagnostics import Diagnostics
from pilothouse.engine.extensions import HandlerSet
from pilothouse.engine.failures import is_start_failure, missing_result_error
from pilothouse.engine.limits import QueryLimits, idle_timeout_error
from pilothouse.engine.router import MessageRouter, Subscriptions
from pilothouse.engine.tasks import OwnedTask, spawn
from pilothouse.engine.turn import Phase
from pilothouse.errors import CLIExitedError, ControlError, PilothouseError, SessionClosedError
from pilothouse.messages import (
    ConversationResetMessage,
    InitMessage,
    Message,
    ResultMessage,
    StatusMessage,
)
from pilothouse.options import Invocation
from pilothouse.options.renderer import InitializeLine
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports import Health, Transport

if TYPE_CHECKING:
    from pilothouse.engine.run import QueryRun

SEND_SECONDS = 10.0  # until a child that does not read its input is ended
EXIT_NOTICE_SECONDS = 1.0  # from the exit of a child until its output must have ended
TURN_OF_PREVIOUS_CLIENT_SECONDS = 30.0  # of silence, until a turn that was under way is taken to have ended unnoticed
CLOSE_SECONDS = 5.0  # from the end of the input until a child that does not exit is ended; it saves the session first
EXIT_SECONDS = 5.0  # of silence after the last result; then a child of one query that does not exit is ended
INTERRUPT_SECONDS = 5.0  # from the confirmation of an interrupt until the turn must have ended
INTERRUPT_RESPONSE_SECONDS = 1.0  # for a child over a limit to confirm an interrupt: a child that hangs does not
SAVE_SECONDS = 3.0  # from the confirmation until its turn must have ended, which saves the conversation
OPEN_REQUEST_SECONDS = 0.05  # between two looks whether the requests of the CLI have their responses

Work = Callable[[], Awaitable[None]]


class ChildRun(OwnedTask):
    """One child. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the child.
        limits: sizes, and times of control requests and of the start.
        handlers: handle the requests of the CLI, if any.
        subscriptions: get every message.
        make_refusal_error: makes the error for a result in place of an initialize response (`resume` of an unknown id).

    Attributes:
        activity: what the CLI is doing.
        close_failure: the error of closing the transport: what it stores, such as a recording, is incomplete.
        has_started: whether the CLI has responded to the initialize request.
        server_info: the initialize response.
        router: brings its messages to their readers.
        session_id: id of the conversation, as the CLI last named it.
        permission_mode: as the CLI last named it; the CLI may change it by itself.
        last_init: the init message of the last turn: tools, servers, agents.
        diagnostics: warns of what the CLI reports in passing.
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
        self.activity = ChildActivity()
        self.close_failure: PilothouseError | None = None
        self.server_info: Mapping[str, Any] = {}
        self.session_id: str | None = None
        self.permission_mode: str | None = None
        self.last_init: InitMessage | None = None
        self.has_started = False
        self._handlers = handlers
        self._limits = limits
        self._sole_query: QueryRun | None = None  # the only one that it runs for, if there is such a one
        self._make_refusal_error = make_refusal_error
        self.router = MessageRouter(Subscriptions() if subscriptions is None else subscriptions, self._note)
        self._transport_start_settled = anyio.Event()  # it runs, or failed to start
        self._output_ended = anyio.Event()
        self._opening: tuple[PendingRequest, bytes] | None = None  # the initialize request, not sent yet
        self._tasks: anyio.abc.TaskGroup | None = None
        self._unsent: set[anyio.Event] = set()  # set at the end, too: a task that is cancelled may never begin
        self.diagnostics = Diagnostics(invocation, transport, self.request, self.start_task)

    @cached_property
    def channel(self) -> ControlChannel:
        """The control channel over the transport. Made on first use, which is after the start of the transport."""
        return ControlChannel(
            self.transport,
            start_task=self.start_task,
            handlers=self._handlers,
            redact=lambda text: self._redactor.redact(text),
            max_line_bytes=self._limits.max_line_bytes,
            control_timeout=self._limits.control_timeout,
        )

    @cached_property
    def _redactor(self) -> Redactor:
        return Redactor(invocation_secrets(self.invocation))

    # Start and end.

    async def wait_started(self) -> None:
        """Wait until the child runs and has responded to the initialize request.

        Raises:
            PilothouseError: the child could not be started, or refused.
        """
        await self._start_settled.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def is_closing_or_closed(self) -> bool:
        """Whether the child has ended, or is being ended."""
        return self._output_ended.is_set() or self._finished.is_set() or self._stop_requested

    def health(self) -> Health:
        """The health of the transport, or the failure."""
        return self.transport.health() if self.failure is None else Health("unhealthy", str(self.failure))

    @property
    def is_ready(self) -> bool:
        """Whether the child can take a prompt, as far as is known without waiting."""
        return self.has_started and not self.is_closing_or_closed and self.transport.health().state != "unhealthy"

    @asynccontextmanager
    async def run_for(self, query: QueryRun) -> AsyncGenerator[ChildRun]:
        """Run the child for one query, in a task of its own; at the end of the block, end it.

        Its initialize request waits for the first prompt, to leave with it, unless handlers must be in force before.

        Raises:
            BaseException: the failure of the child.
        """
        await query.wait_admitted()
        self._sole_query = self.router.query = query  # before the first message
        spawn(self.run, "pilothouse child")
        try:
            yield self
        finally:
            self.stop()
            with anyio.CancelScope(shield=True):
                await self.wait_finished()
            self._sole_query = None  # neither keeps the other
        if self.failure is not None:
            raise self.failure

    async def _run_owned(self) -> None:
        with convert_failures(TRANSPORT):
            await self.transport.start(self.invocation)
        try:
            self.activity.touch()
            async with anyio.create_task_group() as self._tasks:
                self.start_task(self._serve)
                if self._handlers is not None:
                    self.channel.start_handlers()
                # Registered before the reader starts, as a short child may have sent everything before a task runs.
                if self.invocation.initialize is not None:
                    self._opening = self._make_opening(self.invocation.initialize)
                if self._sole_query is None or self._handlers is not None:
                    self._start_initialize()
                if self._sole_query is None and self._limits.startup_timeout is not None:
                    self.start_task(self._watch_start)
                self._transport_start_settled.set()
                await self._read()
                self._tasks.cancel_scope.cancel("the child has ended")
        finally:
            self._tasks = None
            with anyio.CancelScope(shield=True):
                try:
                    with convert_failures(TRANSPORT):
                        await self.transport.close()
                except PilothouseError as error:
                    self.close_failure = error
                    raise
        if self.failure is not None:
            raise self.failure

    def _make_opening(self, body: Mapping[str, Any]) -> tuple[PendingRequest, bytes]:
        pending, line = self.channel.register_request("initialize", body)
        return pending, InitializeLine(line)  # error reporters print the variables of every frame that lives on

    def start_task(self, work: Work) -> None:
        """Run `work` beside the reader, until the connection ends; nothing runs after that."""
        if self._tasks is not None and not self._output_ended.is_set():
            self._tasks.start_soon(self._run_or_end_child, work)

    async def _serve(self) -> None:
        with convert_failures(TRANSPORT):
            await self.transport.serve()

    async def _run_or_end_child(self, work: Work) -> None:
        """Run `work`; an error in it ends the whole connection."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised by `_run_owned`
            self.failure = self.failure or error
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel()

    def _start_initialize(self, *, sent_by_caller: bool = False) -> bytes:
        """Send the initialize request, unless the caller sends what this returns, and await its response in a task."""
        if self._opening is None:
            return b""
        (pending, line), self._opening = self._opening, None
        self.start_task(partial(self._initialize, pending, b"" if sent_by_caller else line))
        return line

    async def _initialize(self, pending: PendingRequest, unsent: bytes) -> None:
        try:
            self.server_info = info = await self.channel.initialize(pending, unsent)
        except PilothouseError:
            has_closed_prompt = self._sole_query is not None and self._sole_query.turn.has_closed_prompt
            if has_closed_prompt or self.is_closing_or_closed:  # `--resume` of an unknown id leads to a result instead
                return
            raise
        mode = info.get("current_permission_mode")
        self.permission_mode = mode if isinstance(mode, str) else None
        self.activity.start_connection(info)
        self.has_started = True
        self._start_settled.set()

    async def take_opening(self) -> bytes:
        """Wait until a prompt may be sent. Returns what to send with it, once: the initialize request, or nothing."""
        if self._opening is not None:
            return self._start_initialize(sent_by_caller=True)
        if self.invocation.initialize is not None and not self.has_started and self._handlers is not None:
            await self._start_settled.wait()
        return b""

    async def _watch_start(self) -> None:
        limit = self._limits.startup_timeout or 0.0
        await anyio.sleep(limit)
        if not self.has_started and not self.channel.is_preparing:
            raise idle_timeout_error(limit, has_received=False, kind="startup_timeout")

    async def _read(self) -> None:
        try:
            await self._run_or_end_child(self._read_until_end)
        finally:
            self._end_connection()  # now: what runs beside may itself wait for the end

    async def _read_until_end(self) -> None:
        while (received := await self.channel.receive()) is not None:
            self._take(received)
            await self.router.store_excess()
        query, sole = self.router.query, self._sole_query
        if self._stop_requested or self.failure is not None:
            return
        if sole is not None:
            sole.end_with_child()
            if sole.turn.may_end_here:
                return
        with convert_failures(TRANSPORT):
            ending = await self.transport.exit_info()
        if query is not None:
            await query.wait_decided()
        if sole is not None:
            sole.end_with_child(ending.exit_code)
            if sole.turn.may_end_here:
                return
        is_busy = query is not None and query.turn.phase is not Phase.ENDED
        noise, problem = self.channel.last_non_json_line, self.channel.last_problem
        stats = self.channel.connection.stats
        is_local = self.transport.facts.executable is not None
        is_mute = is_local and not (stats.messages or stats.control_frames)
        raise missing_result_error(ending, noise, problem, is_busy=is_busy, is_mute=is_mute)

    def _end_connection(self) -> None:
        """Fail everything that waits for the child; from now on its output counts as ended. May be called twice."""
        error = self.failure or SessionClosedError("the session is closed")
        self._output_ended.set()
        self.channel.close(error)
        self.router.fail(error, is_failure=self.failure is not None)
        self.activity.changes.notify_all()

    def _on_end(self) -> None:
        if self._sole_query is None and not self.has_started:
            self.failure = self.failure or SessionClosedError("the session is closed")
        self._end_connection()
        self._transport_start_settled.set()
        for sent in self._unsent:
            sent.set()
        super()._on_end()

    def stop(self, error: Exception | None = None) -> None:
        """End the child now, from any task of the loop; `error` says why, if not on request."""
        if not self._stop_requested:
            self.failure = self.failure or error
        super().stop()

    async def close(self) -> None:
        """End the input, let the child save and exit, and end it if it does not. Bounded; from any task.

        Raises:
            PilothouseError: the transport reports that what it stores is incomplete. Raised once.
        """
        self._stop_requested = True
        with anyio.CancelScope(shield=True):
            try:
                if self.has_started and not self._output_ended.is_set():
                    await self._end_gracefully()
            finally:  # also if `Task.cancel` of asyncio came through the shield
                self.stop()
            await self.wait_finished()
        failure, self.close_failure = self.close_failure, None
        if failure is not None:
            raise failure

    async def _end_gracefully(self) -> None:
        with anyio.move_on_after(CLOSE_SECONDS), suppress(PilothouseError, anyio.ClosedResourceError):
            if self.activity.is_in_turn:
                await self.interrupt(None, cancel_queued=True)
            await self.end_input()
            await self._output_ended.wait()

    async def detach(self) -> str:
        """Leave the CLI running; returns the id to find it again. See `Transport.detach`."""
        before, self._stop_requested = self._stop_requested, True  # nothing is interrupted or sent any more
        failure, self.failure = self.failure, SessionClosedError("this process has left the session")
        try:
            host_session_id = await self.transport.detach()
        except BaseException:
            self._stop_requested, self.failure = before, failure
            raise
        with anyio.CancelScope(shield=True):
            super().stop()
            await self.wait_finished()
        return host_session_id

    async def let_exit(self) -> None:
        """End the input after the last result, and wait until the CLI has finished its background tasks and exited."""
        query = self.router.query
        answers = self._handlers is not None and bool(self._handlers.handlers)
        is_needed = answers or (query is not None and query.keeps_input_open)
        # Once its input has ended, the CLI takes every request as denied. An interrupted query does not wait.
        if is_needed and query is not None and not query.turn.is_interrupted:
            await self.wait_idle()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has exited, or is being ended
            await self.end_input()
        while not self._output_ended.is_set():
            if self.activity.background:
                self.activity.touch()
            left = self.activity.last_activity + EXIT_SECONDS - anyio.current_time()
            if left <= 0:
                return  # it does not exit by itself
            with anyio.move_on_after(left):
                await self._output_ended.wait()

    # Requests and prompts.

    def request(
        self, subtype: str, body: Mapping[str, Any] | None = None, *, timeout: float = 0.0
    ) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Send a control request; see `ControlChannel.request`."""
        return self.channel.request(subtype, body, timeout=timeout)

    async def interrupt(self, query: QueryRun | None, *, cancel_queued: bool = False) -> Mapping[str, Any]:
        """Request the end of the turn that runs. Returns the response.

        Args:
            query: whose prompts may be in the queue of the CLI.
            cancel_queued: whether the CLI stops its background tasks too, and empties its queue. Default False.
        """
        response = await self.request("interrupt", {"cancel_queued": True} if cancel_queued else {})
        if query is not None:
            for uuid in response.get("cancelled") or ():
                query.mark_cancelled(uuid)
        return response

    async def stop_if_gone(self) -> None:
        """Stop the child if it runs no more: its exit may not have been noticed yet."""
        if self.is_ready or self.is_closing_or_closed or not self.has_started:
            return
        with anyio.move_on_after(EXIT_NOTICE_SECONDS):
            await self._output_ended.wait()  # the reader knows best how it ended
            return
        self.stop(CLIExitedError(f"the CLI went away while it was idle: {self.transport.health().reason}"))

    async def send(self, data: bytes) -> None:
        """Send a prompt, all or nothing. If the child has exited, the reader fails the query."""
        if self._output_ended.is_set():
            return
        sent = anyio.Event()
        if self._sole_query is not None:  # no other query needs the child after a cancelled one
            await self._deliver(data, sent)
            return
        self._unsent.add(sent)
        self.start_task(partial(self._deliver, data, sent))
        try:
            await sent.wait()
        finally:
            with anyio.move_on_after(SEND_SECONDS, shield=True):
                await sent.wait()
            self._unsent.discard(sent)
            if not sent.is_set():  # half a line would garble the next one
                self.stop(CLIExitedError(f"the CLI read no input for {SEND_SECONDS:g} s, so it was ended"))

    async def end_input(self) -> None:
        """Signal that nothing more will be sent."""
        with convert_failures(TRANSPORT):
            await self.transport.end_input()

    async def _deliver(self, data: bytes, sent: anyio.Event) -> None:
        try:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError), convert_failures(TRANSPORT):
                await self.transport.send(data)
        finally:
            sent.set()

    @asynccontextmanager
    async def active_query(self, query: QueryRun) -> AsyncGenerator[None]:
        """Make `query` the active one for the length of the block, which begins when the child runs, or has failed to.

        If the query leaves early, its turn is stopped first.

        Raises:
            SessionClosedError: the session is over.
        """
        if self.is_closing_or_closed and self._sole_query is None:
            raise self.failure or SessionClosedError("the session is closed")
        self.activity.last_activity = anyio.current_time()
        self.diagnostics.start_query()
        self.router.start_query(query, self.session_id)
        try:
            await self._transport_start_settled.wait()
            yield
        finally:
            try:
                if query.turn.at_cli and not self.is_closing_or_closed:
                    with anyio.CancelScope(shield=True):
                        await self._stop_turn(query)
            finally:
                self.router.query = None

    async def _stop_turn(self, query: QueryRun) -> None:
        """Stop the turn of an abandoned query, so that nothing of it is left for the next one.

        A child of one query is ended afterwards in any case. There the turn is stopped only if a limit has passed: the
        CLI saves a turn that is interrupted.
        """
        response_seconds, end_seconds = INTERRUPT_SECONDS, INTERRUPT_SECONDS
        if self._sole_query is not None:
            if not (query.turn.is_abandoned and query.turn.is_answering) or self.invocation.initialize is None:
                return
            response_seconds, end_seconds = INTERRUPT_RESPONSE_SECONDS, SAVE_SECONDS
        query.turn.abandon()
        with anyio.move_on_after(response_seconds) as limit, suppress(PilothouseError):
            await self.withdraw_prompts(query)
            if query.turn.at_cli:
                await self.interrupt(query, cancel_queued=True)
            limit.deadline = anyio.current_time() + end_seconds
            await self.activity.changes.wait_until(lambda: not query.turn.at_cli or self.is_closing_or_closed)
            return
        if self._sole_query is None:
            self.stop(CLIExitedError(f"the CLI did not stop its turn within {end_seconds:g} s, so it was ended"))

    async def withdraw_prompts(self, query: QueryRun) -> None:
        """Remove the prompts of `query` from the queue of the CLI, if it has started none of them.

        They wait there while the CLI is in a turn of its own, which is not ours to interrupt.
        """
        if query.turn.is_answering or not self.router.reports_starts:
            return
        for uuid in query.turn.at_cli:
            await self.withdraw_prompt(query, uuid)

    async def withdraw_prompt(self, query: QueryRun, uuid: str) -> None:
        """Remove a prompt of `query` from the queue of the CLI, unless the CLI has started it."""
        with suppress(ControlError):  # the CLI does not know the request
            answer = await self.request("cancel_async_message", {"message_uuid": uuid})
            if answer.get("cancelled") is True:
                query.mark_cancelled(uuid)

    # What the child is doing.

    @property
    def is_busy(self) -> bool:
        """Whether the CLI has a reason to be silent: a tool runs, a request to us is open, or handlers prepare."""
        return self.activity.is_tool_running or self.channel.incoming.is_busy or self.channel.is_preparing

    def note_work(self, *, in_background: bool = False) -> None:
        """Take note of what the CLI does at the moment: while it is busy, it is active. Then ask `activity`.

        Args:
            in_background: whether background tasks count as being busy.
        """
        if fragment := self.channel.connection.fragment:
            self.activity.note_lost(fragment)
        if self.is_busy or (in_background and self.activity.background):
            self.activity.touch()

    async def wait_idle(self) -> None:
        """Wait until nothing runs: no turn, no background task, no turn that starts when one ends, no open request."""
        while not self.is_closing_or_closed:
            if self.activity.has_work:
                await self.activity.changes.wait()
            elif self.channel.incoming.has_open:
                await anyio.sleep(OPEN_REQUEST_SECONDS)
            elif (moment := self.activity.wake_deadline) is not None:
                await anyio.sleep_until(moment)
            else:
                self.activity.has_seen_tasks = False
                return

    async def wait_for_turn_of_previous_client(self) -> None:
        """Wait for the end of a turn that was under way when this process attached: that turn is not ours."""
        activity = self.activity
        while activity.is_in_turn_of_previous_client and activity.is_in_turn and not self.is_closing_or_closed:
            self.note_work()
            left = activity.last_activity + TURN_OF_PREVIOUS_CLIENT_SECONDS - anyio.current_time()
            if left <= 0:
                break
            with anyio.move_on_after(left):
                await activity.changes.wait()
        activity.is_in_turn_of_previous_client = False

    # Called by the reader.

    def _take(self, received: Received) -> None:
        if received.skipped:
            self.router.put_skipped(self.channel.make_notes(received.skipped))
        if batch := received.messages:
            kinds = set(map(type, batch))
            self.activity.track(batch, kinds)
            self.diagnostics.observe(batch, kinds)
            if self.session_id is None:
                self.session_id = next((message.session_id for message in batch if message.session_id), None)
            if self._ROUTED.isdisjoint(kinds):
                self.router.put(batch, received.size, needs_routing=False)
            else:  # a whole turn may be in it, of which few messages need that
                size = received.size
                for needs_routing, run in groupby(batch, lambda message: message.__class__ in self._ROUTED):
                    self.router.put([*run], size, needs_routing=needs_routing)
                    size = 0
        for event in received.skipped:  # after the messages: the lost line may belong to one of them
            self.activity.note_skipped(event)

    _NOTED: ClassVar = frozenset({ConversationResetMessage, InitMessage, ResultMessage, StatusMessage})
    _ROUTED: ClassVar = MessageRouter.ROUTED | ChildActivity.NOTED | _NOTED
    """Classes of messages that the router, `activity` or `_note` reads, so that each is routed by itself."""

    def _note(self, message: Message) -> None:
        """Take note of what a message says about the child."""
        self.activity.note(message)
        match message:
            case InitMessage():
                self.last_init = message
                self.session_id = message.session_id or self.session_id
                self.permission_mode = message.permission_mode or self.permission_mode
            case StatusMessage():
                self.permission_mode = message.permission_mode or self.permission_mode
            case ConversationResetMessage():
                self.session_id = message.new_conversation_id or self.session_id
            case ResultMessage():
                self.session_id = message.session_id or self.session_id
                if self.router.query is None:  # a turn that no query of ours has asked for
                    self.diagnostics.start_query()
                make_error = self._make_refusal_error
                if make_error is not None and not self.has_started and is_start_failure(message):
                    self.failure = self.failure or make_error(message)
            case _:
                pass
