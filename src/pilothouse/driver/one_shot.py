"""`OneShotRun`: one query over one child: start it, send the prompt, pass its messages on, notice the end, clean up.

One task owns the child from start to close; other tasks use `stop`, `interrupt` and the buffer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, ClassVar

import anyio

from pilothouse.driver.connection import WAKE_SECONDS, ChildConnection, PendingRequest
from pilothouse.driver.failures import QueryLimits, missing_result_error
from pilothouse.driver.pending_work import PromptMessage, Prompts, RunningTasks
from pilothouse.driver.query_run import QueryRun
from pilothouse.driver.tasks import LazyEvent
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.messages import (
    ApiRetryMessage,
    CommandLifecycleMessage,
    DoneMessage,
    InitMessage,
    Message,
    PermissionDeniedMessage,
    ResultMessage,
)
from pilothouse.options import Invocation
from pilothouse.transports import Transport

if TYPE_CHECKING:
    from pilothouse.driver.extensions import HandlerSet, QueryMiddleware

INTERRUPT_RESPONSE_SECONDS = 1.0  # for a child over a limit to confirm an interrupt: a child that hangs does not
SAVE_SECONDS = 3.0  # from the confirmation until its turn must have ended, which saves the conversation
EXIT_SECONDS = 5.0  # of silence after the last result; then a child that does not exit by itself is ended


class OneShotRun(QueryRun):
    """One query on a child of its own. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the child.
        prompts: the user messages, all at once or as they come; none in the argv form.
        limits: times and sizes.
        middleware: decides what follows the result, before the input ends.
        handlers: handle the requests of the CLI, if any.

    Attributes:
        has_ended_normally: whether the CLI has reported the end of what it was given.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        prompts: Prompts,
        limits: QueryLimits,
        middleware: QueryMiddleware | None = None,
        handlers: HandlerSet | None = None,
    ) -> None:
        super().__init__(prompts, limits, middleware)
        self._connection = ChildConnection(transport, invocation, limits, self, handlers)
        self._handlers = handlers
        self._first_message = LazyEvent()  # the first message: from here on an interrupt reaches a turn
        self._has_ever_received = False
        self._accepts_result = True  # False: the CLI reports when it starts a prompt, and has started none of ours
        self._has_begun = False
        self._is_timed_out = False
        self._is_input_ended = False
        self.has_ended_normally = False
        self._session_id: str | None = None

    @property
    def session_id(self) -> str | None:
        """Id of the session, as the CLI last named it."""
        return self._session_id

    # Called by the reader.

    def put(self, batch: list[Message], size: int) -> None:
        """Inspect a batch on its way to the consumer."""
        child, shown = self._connection, batch
        child.last_activity = anyio.current_time()
        kinds = set(map(type, batch))
        child.validator.track_batch(batch, kinds)
        if not self._first_message.is_set():
            self._first_message.set()
            self._has_ever_received = True
        if self._session_id is None:
            self._session_id = next((m.session_id for m in batch if m.session_id), None)
        if not self._has_delivered_init or CommandLifecycleMessage in kinds:
            shown = self._init_first(batch, size)
        if self._middleware is not None and shown:
            shown = self._apply_middleware(shown)
        if shown:
            self._buffer.put(shown, size)
        routes = self._ROUTES
        if not routes.keys().isdisjoint(kinds):  # skips the loop for a batch of nothing but text
            for message in batch:
                route = routes.get(message.__class__)
                if route is not None:
                    route(self, message)

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the turn is awaited."""
        return self.interrupted or self._is_timed_out

    def fail(self, error: BaseException) -> None:
        """End the child because a part of the query failed. The first error counts."""
        self._connection.fail(error)

    def _on_lifecycle(self, message: CommandLifecycleMessage) -> None:
        if message.command_uuid not in self.pending_prompts:
            return  # a recording names the prompts of its own time
        self._has_begun = self._has_begun or message.state == "started"
        self._accepts_result = self._has_begun

    def _on_result(self, message: ResultMessage) -> None:
        self._connection.is_in_turn = False
        if not (self._accepts_result or self.interrupted or self.pending_prompts.is_answered_by(message)):
            return  # after resuming an interrupted tool call, the CLI first sends a result of its own (2.1.330)
        self.has_ended_normally = True
        if not message.is_woken or self.result is None:
            self.result = message
        if not message.is_woken:  # a turn of a background task answers none of our prompts
            self.pending_prompts.resolve(message)
            self._end_turn()
        elif self.is_awaiting_idle:
            self._end_turn()

    def _on_done(self, _: DoneMessage) -> None:
        self.has_ended_normally = True
        self.pending_prompts.clear()
        self._end_turn()

    def _on_init(self, message: InitMessage) -> None:
        self._session_id = message.session_id or self._session_id
        self._connection.note_init(message)

    def _on_retry(self, message: ApiRetryMessage) -> None:
        self._connection.note_retry(message)

    def _on_task(self, message: Message) -> None:
        self._connection.note_task(message)

    _ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        ResultMessage: _on_result,
        DoneMessage: _on_done,
        InitMessage: _on_init,
        ApiRetryMessage: _on_retry,
        CommandLifecycleMessage: _on_lifecycle,
        PermissionDeniedMessage: QueryRun.note_denied,
        **dict.fromkeys(RunningTasks.TRACKED, _on_task),
    }

    # The end.

    def _is_answered(self) -> bool:
        return self.has_ended_normally and super()._is_answered()

    def _is_complete(self) -> bool:
        # A CLI that cannot resume sends a result with the error, and ignores the prompts.
        refused = self.result is not None and self.result.is_error and not self.result.num_turns
        return (
            self.has_ended_normally
            and not (self.is_awaiting_next_prompt or self.is_awaiting_idle)
            and (refused or self._is_answered())
        )

    def _is_idle(self) -> bool:
        return (
            self.has_ended_normally
            and not self.pending_prompts
            and not (self.is_awaiting_idle and self._connection.is_in_turn)
        )

    def _check_interrupt(self) -> None:
        if self._connection.invocation.initialize is None:
            raise UsageError(
                "interrupt needs the control protocol, which the argv form does not have: use prompt_via='stdin'"
            )

    async def _interrupt(self, ended: LazyEvent) -> None:
        if self._connection.channel.is_preparing:
            self.stop()  # no prompt was sent, and none will be
            return
        await self._first_message.wait()
        if not ended.is_set():
            await self._connection.channel.request("interrupt")

    def _finish(self) -> None:
        super()._finish()
        self._connection.channel.call_soon(self._start_closing)  # closing takes a while, so the consumer goes first

    def _start_closing(self) -> None:
        if self._handlers is None and self._connection.transport.try_end_input():
            self._await_exit()
        else:
            self._start_task(self._end_input)

    def _reset_turn(self) -> None:
        self.has_ended_normally = False
        self._first_message = LazyEvent()

    # The owner task.

    async def _run_owned(self) -> None:
        await self.wait_admitted()
        await self._run_with_timeout(self._run_connection)

    async def _run_connection(self) -> None:
        try:
            async with self._connection.lifespan() as hello:
                self._send_first(*hello)
                if self._limits.timeout is not None:
                    self._start_task(self._watch_timeout)
                if self._idle_timer.is_limited:
                    self._start_task(self._watch_idle)
                self._started.set()
                try:
                    await self._connection.run_recording_failure(self._read_until_end)
                finally:
                    if self._middleware is not None:
                        self._middleware.cancel()
        finally:
            if self._middleware is not None:
                await self._middleware.wait_cancelled()

    def _on_end(self) -> None:
        self._failure = self._failure or self._connection.failure
        super()._on_end()
        self._connection.channel.close(self._failure)
        self._first_message.set()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        self._connection.start_task(work)

    async def _read_until_end(self) -> None:
        child = self._connection
        await child.channel.run(self._check_exit)
        if self._is_complete() or self.interrupted:
            return
        ending = await child.transport.exit_info()
        await self.wait_decided()
        if self._is_complete() or self.interrupted:
            return
        if (
            self.has_ended_normally
            and self._has_sent_all
            and ending.exit_code == 0
            and not self.is_awaiting_next_prompt
        ):
            self.pending_prompts.clear()  # the CLI merged prompts into one turn, and is too old to name them
            self.is_awaiting_idle = False  # the CLI has exited
            return
        raise missing_result_error(ending, child.channel.last_non_json_line, child.channel.last_problem)

    def _send_first(self, pending: PendingRequest | None, opening: bytes) -> None:
        if self._handlers is None and pending is not None:
            # The prompt goes with the initialize request, which saves a round trip: the CLI reads them in order.
            self._connection.channel.watch_errors(pending, self._on_initialize_error)
            if isinstance(self._prompts, Sequence) and self._connection.transport.try_send(
                opening + self._prompt_lines()
            ):
                return  # the usual case: a task would cost more than all this work
        self._start_task(partial(self._write_prompts, pending, opening))

    def _prompt_lines(self) -> bytes:
        return b"".join(prompt.data for prompt in self._prompts) if isinstance(self._prompts, Sequence) else b""

    def _on_initialize_error(self, error: BaseException) -> None:
        if not (self.has_ended_normally or self.is_finished):  # `--resume` of an unknown id leads to a result instead
            self.fail(error)

    async def _write_prompts(self, pending: PendingRequest | None, opening: bytes) -> None:
        transport = self._connection.transport
        try:
            if self._handlers is not None and pending is not None:
                # Hooks and permission handlers must be in force before the first prompt.
                await self._initialize(pending, opening)
                opening = b""
            await transport.send(opening + self._prompt_lines())
            if not isinstance(self._prompts, Sequence):
                await self._write_remaining_prompts(self._prompts)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the reader finds out how the child ended
        if pending is None:
            await transport.end_input()

    async def _write_remaining_prompts(self, prompts: AsyncGenerator[PromptMessage, None]) -> None:
        async with aclosing(prompts):
            async for prompt in prompts:
                self._add_pending(prompt)
                await self._connection.transport.send(prompt.data)
        self._has_sent_all = True
        self._end_if_done()

    async def _send_prompt(self, prompt: PromptMessage) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the reader finds out how it ended
            await self._connection.transport.send(prompt.data)

    async def _initialize(self, pending: PendingRequest, unsent: bytes) -> None:
        try:
            await self._connection.channel.initialize(pending, unsent)
        except PilothouseError:
            if not self.has_ended_normally:  # see `_on_initialize_error`; no prompt follows
                raise

    async def _end_input(self) -> None:
        """End the input after the last result: the CLI finishes its background tasks and exits."""
        child = self._connection
        if self._handlers is not None and not self.interrupted:  # an interrupted query waits for no response
            await self._wait_idle()
        await child.transport.end_input()
        self._await_exit()

    def _await_exit(self) -> None:
        self._is_input_ended = True
        self._connection.channel.check_at(self._check_exit())

    def _check_exit(self) -> float:
        """End a child that does not exit by itself; returns when to check again."""
        if not self._is_input_ended:
            return inf
        child = self._connection
        quiet_until = child.idle_since(is_busy=bool(child.background)) + EXIT_SECONDS
        if anyio.current_time() < quiet_until:
            return quiet_until
        child.stop()
        return inf

    async def _wait_idle(self) -> None:
        # Once its input has ended, the CLI takes every request as denied. Background tasks may still send
        # requests, and so may the turn that starts when one of them ends.
        child = self._connection
        while child.background or child.is_in_turn or child.channel.incoming or child.may_be_woken:
            busy = bool(child.background) or child.is_in_turn or bool(child.channel.incoming)
            quiet_until = child.idle_since(is_busy=busy) + WAKE_SECONDS
            if anyio.current_time() >= quiet_until:
                return
            await anyio.sleep_until(quiet_until)

    def _idle_since(self) -> float:
        child = self._connection
        return child.idle_since(is_busy=child.is_busy or (self.is_awaiting_idle and bool(child.background)))

    def _has_received(self) -> bool:
        return self._has_ever_received

    async def _watch_timeout(self) -> None:
        assert self._timeout_scope is not None
        self._timeout_scope.deadline = float("inf")  # once a child runs, its turn may be saved before the end
        await anyio.sleep_until(self._get_deadline())
        if self._is_complete():
            self._connection.stop()
        else:
            await self._fail_on_timeout(self._timeout_error(self.TIMEOUT_CONSEQUENCE))

    async def _fail_on_timeout(self, error: PilothouseError) -> None:
        # The failure is certain from here on, but the CLI saves a turn that is interrupted.
        child = self._connection
        child.failure = child.failure or error
        self._is_timed_out = True
        self._buffer.release_reader()
        if self._first_message.is_set() and not self._is_idle() and child.invocation.initialize is not None:
            if self._turn_ended.is_set():
                self._turn_ended = LazyEvent()
            ended = self._turn_ended
            with anyio.move_on_after(INTERRUPT_RESPONSE_SECONDS) as receipt, suppress(PilothouseError):
                await child.channel.request("interrupt")
                receipt.deadline = anyio.current_time() + SAVE_SECONDS
                await ended.wait()
        child.stop()
