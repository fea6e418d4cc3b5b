"""One query over one child: start it, say the prompt, hand on what it says, notice the end, clean up.

Owns the life of the child: `run` is one task from start to close. Everybody else talks to that task through `stop`,
`interrupt` and the inbox, from any task, so that leaving a loop, a cancellation or a closed generator elsewhere can
never tear a cancel scope or leak the child.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import anyio
from msgspec import Struct

from pilothouse.driver.background import BackgroundTasks
from pilothouse.driver.failures import missing_result_error, silence_error, timeout_error
from pilothouse.driver.host import Host
from pilothouse.driver.inbox import Inbox
from pilothouse.driver.link import Link, Pending
from pilothouse.driver.unanswered import Unanswered
from pilothouse.errors import PilothouseError, SessionClosedError, UsageError
from pilothouse.messages import DoneMessage, InitMessage, Message, ResultMessage
from pilothouse.options import Invocation
from pilothouse.protocol import StreamValidator
from pilothouse.transports import Transport, warn_if_old

LINGER_SECONDS = 5.0  # silence after the last result until a child that does not leave by itself is ended
WAKE_SECONDS = 1.0  # from the end of a background task until the model has been woken by it
INTERRUPT_SECONDS = 5.0  # from the receipt of an interrupt until the turn must have ended


class Outgoing(Struct, frozen=True):
    """One user message, ready to be sent. Results name the `uuid` of the message that they answer."""

    uuid: str
    data: bytes


class Limits(Struct, frozen=True):
    """Bounds of an exchange; times in seconds, None for no limit."""

    timeout: float | None
    idle_timeout: float | None
    control_timeout: float
    max_line_bytes: int


class Exchange:
    """A query under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the peer.
        prompts: the user messages, all at once or as they come; none in the argv form.
        limits: times and sizes.
        follow_up: asked once for each result that leaves no prompt unanswered, before the input ends: one more
            prompt, or None when that was all. Never after an interrupt.
        host: what this process offers to the peer, if anything.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        prompts: Sequence[Outgoing] | AsyncGenerator[Outgoing, None],
        limits: Limits,
        follow_up: Callable[[ResultMessage], Outgoing | None] | None = None,
        host: Host | None = None,
    ) -> None:
        self._transport = transport
        self._invocation = invocation
        self._prompts = prompts
        self._limits = limits
        self._follow_up = follow_up
        self._followed_up: ResultMessage | None = None
        self._inbox = Inbox()
        self._link = Link(
            transport,
            self,
            beside=self._beside,
            host=host,
            max_line_bytes=limits.max_line_bytes,
            control_timeout=limits.control_timeout,
        )
        self._validator = StreamValidator()
        self._background = BackgroundTasks()
        self._routes: dict[type[Message], Callable[[Any], None]] = {
            ResultMessage: self._on_result,
            DoneMessage: self._on_done,
            InitMessage: self._on_init,
            **dict.fromkeys(BackgroundTasks.NOTED, self._on_task),
        }
        self._host = host
        self._in_turn = False
        self._may_be_woken = False
        self._scope: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        given = isinstance(prompts, Sequence)
        self._unanswered = Unanswered([prompt.uuid for prompt in prompts] if given else ())
        self._said_all = given
        self._last_heard = 0.0
        self._failure: BaseException | None = None
        self._stopped = False
        self._started = anyio.Event()
        self._heard = anyio.Event()  # the first frame: from here on an interrupt reaches a turn
        self._turn_ended = anyio.Event()  # the turn that ran when the last interrupt was asked for
        self._answered = anyio.Event()  # the last result that was asked for
        self._finished = anyio.Event()
        self.interrupted = False
        self.result: ResultMessage | None = None
        self.ended_plainly = False
        self.session_id: str | None = None

    # What the consumer calls.

    async def start(self) -> None:
        """Wait until the child runs.

        Raises:
            PilothouseError: it could not be started.
        """
        await self._started.wait()
        if self._failure is not None and self._finished.is_set():
            raise self._failure

    @property
    def over(self) -> bool:
        """Whether the child is gone and everything is freed."""
        return self._finished.is_set()

    async def next_batch(self) -> tuple[list[Message], int]:
        """The next messages and their size in bytes; none at the end. Raises what ended the exchange early."""
        return await self._inbox.get()

    def stop(self) -> None:
        """End the exchange now, from any task of the loop. `finished` tells when everything is gone."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def finished(self) -> None:
        """Wait until the child is gone and everything is freed."""
        await self._finished.wait()

    async def interrupt(self) -> None:
        """Stop the running turn and wait until it has ended. Returns at once when nothing runs.

        Prompts that come after it are still answered.

        Raises:
            UsageError: the argv form has no control protocol. (R16)
            ControlError: the peer refused.
        """
        idle = self.ended_plainly and not self._unanswered
        if self._finished.is_set() or self._answered.is_set() or idle:
            return
        if self._invocation.initialize is None:
            raise UsageError(
                "interrupt needs the control protocol, which the argv form has not: use prompt_via='stdin'"
            )
        self.interrupted = True
        self._inbox.let_pass()
        if self._turn_ended.is_set():
            self._turn_ended = anyio.Event()
        ended = self._turn_ended
        await self._heard.wait()
        if ended.is_set():
            return
        try:
            await self._link.request("interrupt")
        except PilothouseError as error:
            self.interrupted = self._finished.is_set() or isinstance(error, SessionClosedError)
            if self.interrupted:
                return  # it ended by itself in the meantime
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await ended.wait()
            return
        self.stop()

    # What the reader calls.

    @property
    def full(self) -> bool:
        """Whether the reader should wait for the consumer. Never while an interrupt waits for the end of the turn."""
        return self._inbox.full and not self.interrupted

    async def room(self) -> None:
        """Wait for the consumer."""
        await self._inbox.room()

    def let_pass(self) -> None:
        """Let the reader go on in spite of the consumer."""
        self._inbox.let_pass()

    def put(self, batch: list[Message], size: int) -> None:
        """Look at a batch on its way to the consumer."""
        self._last_heard = anyio.current_time()
        self._validator.track_batch(batch)
        if not self._heard.is_set():
            self._heard.set()
        if self.session_id is None:
            self.session_id = next((m.session_id for m in batch if m.session_id), None)
        routes = self._routes
        if not routes.keys().isdisjoint(map(type, batch)):  # a batch of nothing but text costs no loop
            for message in batch:
                route = routes.get(message.__class__)
                if route is not None:
                    route(message)
        self._inbox.put(batch, size)

    def _on_result(self, message: ResultMessage) -> None:
        self.ended_plainly = True
        self._in_turn = False
        if not message.is_woken or self.result is None:
            self.result = message
        if not message.is_woken:  # a background task that speaks answers none of our prompts
            self._unanswered.settle(message)
            self._end_turn()

    def _on_task(self, message: Message) -> None:
        self._background.note(message)
        self._may_be_woken = True

    def _on_init(self, message: InitMessage) -> None:
        self._in_turn = True
        warn_if_old(message.claude_code_version or "")

    def _on_done(self, _: DoneMessage) -> None:
        self.ended_plainly = True
        self._unanswered.clear()
        self._end_turn()

    def _end_turn(self) -> None:
        self._turn_ended.set()
        if self._unanswered or not self._said_all:
            self.interrupted = False  # it was the turn, not the whole query
        self._leave_if_done()

    def _is_complete(self) -> bool:
        """Whether every prompt has its result. A CLI that cannot resume says so in one, and leaves the prompts."""
        refused = self.result is not None and self.result.is_error and not self.result.num_turns
        return self.ended_plainly and (refused or (self._said_all and not self._unanswered))

    def _leave_if_done(self) -> None:
        if self._said_all and self.ended_plainly and not self._unanswered and not self._answered.is_set():
            if more := self._more():
                self._unanswered.add(more.uuid)
                self._heard = anyio.Event()  # an interrupt waits until the new turn is there to be stopped
                self._beside(partial(self._speak_more, more))
                return
            self._answered.set()
            self._beside(self._leave)

    def _more(self) -> Outgoing | None:
        result = self.result
        if self._follow_up is None or self.interrupted or result is None or result is self._followed_up:
            return None
        self._followed_up = result
        return self._follow_up(result)

    # The owner.

    async def run(self) -> None:
        """The whole life of the child, in one task."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    await self._live()
        except Exception as error:  # noqa: BLE001 - whatever ended it belongs to the consumer, not to the loop
            self._failure = self._failure or error
        finally:
            self._end()

    def _end(self) -> None:
        if self._failure is None and not self._is_complete() and not self.interrupted:
            who = "the query was closed" if self._stopped else "the event loop shut down"
            self._failure = SessionClosedError(f"{who} before the result had arrived")
        self._link.close(self._failure)
        self._inbox.end(None if self.interrupted else self._failure)
        for event in (self._finished, self._started, self._heard, self._turn_ended, self._answered):
            event.set()

    async def _live(self) -> None:
        if self._limits.timeout is None:
            await self._talk()
            return
        with anyio.move_on_after(self._limits.timeout) as limit:
            await self._talk()
        if limit.cancelled_caught and not self._is_complete():
            raise timeout_error(self._limits.timeout)

    async def _talk(self) -> None:
        await self._transport.start(self._invocation)
        try:
            self._last_heard = anyio.current_time()
            # Registered before anybody reads: a short peer may have said everything before the first task runs.
            hello = self._invocation.initialize
            opening = (None, b"") if hello is None else self._link.begin("initialize", hello)
            async with anyio.create_task_group() as self._tasks:
                self._beside(partial(self._speak, *opening))  # first: the child waits for it
                self._beside(self._transport.serve)
                self._link.open_house()
                if self._limits.idle_timeout is not None:
                    self._beside(self._watch_silence)
                self._started.set()
                await self._guarded(self._listen)
                self._tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._transport.close()
        if self._failure is not None:
            raise self._failure

    def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part; its error ends the whole exchange and is raised as it is, not inside a group."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed to the consumer by `_talk`
            self._failure = self._failure or error
            assert self._tasks is not None
            self._tasks.cancel_scope.cancel()

    async def _listen(self) -> None:
        await self._link.pump()
        if not self._is_complete() and not self.interrupted:
            ending = await self._transport.ending()
            if self.ended_plainly and self._said_all and ending.exit_code == 0:
                self._unanswered.clear()  # it folded prompts into one turn, and is too old to name them
                return
            raise missing_result_error(ending, self._link.connection, self._link.last_problem)

    async def _speak(self, pending: Pending | None, opening: bytes) -> None:
        # What this process guards must be in force before there is anything to guard; else the two go together: the
        # CLI reads the handshake and the prompt in order, and that saves a round trip.
        first, beside = (None, pending) if self._host is None else (pending, None)
        try:
            if first is not None:
                await self._transport.send(opening)
                await self._shake_hands(first)
                opening = b""
            if isinstance(self._prompts, Sequence):
                await self._transport.send(opening + b"".join(prompt.data for prompt in self._prompts))
            else:
                await self._transport.send(opening)
                await self._speak_on(self._prompts, beside)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the reader finds out how the peer ended
        if pending is None:
            await self._transport.end_input()
        self._leave_if_done()
        if beside is not None and isinstance(self._prompts, Sequence):
            await self._shake_hands(beside)

    async def _speak_on(self, prompts: AsyncGenerator[Outgoing, None], pending: Pending | None) -> None:
        if pending is not None:
            self._beside(partial(self._shake_hands, pending))
        async with aclosing(prompts):
            async for prompt in prompts:
                self._unanswered.add(prompt.uuid)
                await self._transport.send(prompt.data)
        self._said_all = True

    async def _speak_more(self, more: Outgoing) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the reader finds out how it ended
            await self._transport.send(more.data)

    async def _shake_hands(self, pending: Pending) -> None:
        try:
            await self._link.shake_hands(pending)
        except PilothouseError:
            if not self.ended_plainly:  # `--resume` of an unknown id answers with a result instead
                raise

    async def _leave(self) -> None:
        """After the last result: end the input; the CLI finishes its background tasks and goes."""
        if self._host is not None and not self.interrupted:  # what was stopped waits for no answer
            await self._questions_over()
        await self._transport.end_input()
        while True:
            quiet_until = self._quiet_since(busy=bool(self._background)) + LINGER_SECONDS
            if anyio.current_time() >= quiet_until:
                assert self._tasks is not None
                self._tasks.cancel_scope.cancel()
                return
            await anyio.sleep_until(quiet_until)

    async def _questions_over(self) -> None:
        # Once its input has ended, the CLI takes every question as denied: what runs in the background may still ask,
        # and so may the turn that the model is woken to when it ends.
        while self._background or self._in_turn or self._link.questions or self._may_be_woken:
            busy = bool(self._background) or self._in_turn or bool(self._link.questions)
            quiet_until = self._quiet_since(busy=busy) + WAKE_SECONDS
            if anyio.current_time() >= quiet_until:
                return
            await anyio.sleep_until(quiet_until)

    async def _watch_silence(self) -> None:
        limit = self._limits.idle_timeout
        assert limit is not None
        while not self._answered.is_set():
            busy = self._validator.waiting_for_tools or bool(self._link.questions)
            silent_until = self._quiet_since(busy=busy) + limit
            if anyio.current_time() >= silent_until:
                raise silence_error(limit, heard=self._heard.is_set())
            await anyio.sleep_until(silent_until)

    def _quiet_since(self, *, busy: bool) -> float:
        """When the peer fell silent: now, while something runs that may take its time, or we do not listen."""
        if busy or self.full:
            self._last_heard = anyio.current_time()
        return self._last_heard
