"""One query over one child: start it, say the prompt, hand on what it says, notice the end, clean up.

Owns the life of the child: `run` is one task from start to close. Everybody else talks to that task through `stop`,
`interrupt` and the inbox, from any task, so that leaving a loop, a cancellation or a closed generator elsewhere can
never tear a cancel scope or leak the child.

Not a conversation with one turn: here the prompt goes out with the handshake, the input ends with the answer, a peer
may have no handshake and no uuids, and everything it says belongs to the query, so that nothing has to be sorted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, ClassVar

import anyio

from pilothouse.driver.answering import Answering
from pilothouse.driver.background import BackgroundTasks
from pilothouse.driver.child import WAKE_SECONDS, Child
from pilothouse.driver.failures import missing_result_error
from pilothouse.driver.latch import Latch
from pilothouse.driver.link import Pending
from pilothouse.driver.outgoing import Limits, Outgoing, Prompts
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
    from pilothouse.driver.continuation import Continuation
    from pilothouse.driver.host import Host

RECEIPT_SECONDS = 1.0  # for a child over a limit to say that it was interrupted: one that is stuck says nothing
SAVE_SECONDS = 3.0  # from there until its turn must have ended, which is when it saves the conversation
LINGER_SECONDS = 5.0  # silence after the last result until a child that does not leave by itself is ended


class Exchange(Answering):
    """A query under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the peer.
        prompts: the user messages, all at once or as they come; none in the argv form.
        limits: times and sizes.
        continuation: what follows the result, before the input ends.
        host: what this process offers to the peer, if anything.

    Attributes:
        ended_plainly: whether the peer has said that it is at the end of what it was asked.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        prompts: Prompts,
        limits: Limits,
        continuation: Continuation | None = None,
        host: Host | None = None,
    ) -> None:
        super().__init__(prompts, limits, continuation)
        self._child = Child(transport, invocation, limits, self, host)
        self._host = host
        self._heard = Latch()  # the first frame: from here on an interrupt reaches a turn
        self._ever_heard = False
        self._may_answer = True  # False: the peer says when it takes up a prompt, and has taken up none of ours
        self._has_begun = False
        self._is_cut = False
        self._is_leaving = False  # its input has ended
        self.ended_plainly = False
        self._session_id: str | None = None

    @property
    def session_id(self) -> str | None:
        """Id of the session, as it was named last."""
        return self._session_id

    # What the reader calls.

    def put(self, batch: list[Message], size: int) -> None:
        """Look at a batch on its way to the consumer."""
        child, shown = self._child, batch
        child.last_heard = anyio.current_time()
        kinds = set(map(type, batch))
        child.validator.track_batch(batch, kinds)
        if not self._heard.is_set():
            self._heard.set()
            self._ever_heard = True
        if self._session_id is None:
            self._session_id = next((m.session_id for m in batch if m.session_id), None)
        if not self._has_opened or CommandLifecycleMessage in kinds:
            shown = self._in_order(batch, size)
        if self._continuing is not None and shown:
            shown = self._read(shown)
        if shown:
            self._inbox.put(shown, size)
        routes = self._ROUTES
        if not routes.keys().isdisjoint(kinds):  # a batch of nothing but text costs no loop
            for message in batch:
                route = routes.get(message.__class__)
                if route is not None:
                    route(self, message)

    @property
    def is_stopping(self) -> bool:
        """Whether somebody waits for its end."""
        return self.interrupted or self._is_cut

    def fail(self, error: BaseException) -> None:
        """A part of it failed: the child is ended. The first error counts."""
        self._child.fail(error)

    def _on_lifecycle(self, message: CommandLifecycleMessage) -> None:
        if message.command_uuid not in self.unanswered:
            return  # a recording names the prompts of its own time
        self._has_begun = self._has_begun or message.state == "started"
        self._may_answer = self._has_begun

    def _on_result(self, message: ResultMessage) -> None:
        self._child.in_turn = False
        if not (self._may_answer or self.interrupted or self.unanswered.is_named_by(message)):
            return  # a CLI that has resumed a call that was cut off gives a result of its own first (2.1.330)
        self.ended_plainly = True
        if not message.is_woken or self.result is None:
            self.result = message
        if not message.is_woken:  # a background task that speaks answers none of our prompts
            self.unanswered.settle(message)
            self._end_turn()
        elif self.awaits_idle:
            self._end_turn()

    def _on_done(self, _: DoneMessage) -> None:
        self.ended_plainly = True
        self.unanswered.clear()
        self._end_turn()

    def _on_init(self, message: InitMessage) -> None:
        self._session_id = message.session_id or self._session_id
        self._child.note_init(message)

    def _on_retry(self, message: ApiRetryMessage) -> None:
        self._child.note_retry(message)

    def _on_task(self, message: Message) -> None:
        self._child.note_task(message)

    _ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        ResultMessage: _on_result,
        DoneMessage: _on_done,
        InitMessage: _on_init,
        ApiRetryMessage: _on_retry,
        CommandLifecycleMessage: _on_lifecycle,
        PermissionDeniedMessage: Answering.note_denied,
        **dict.fromkeys(BackgroundTasks.NOTED, _on_task),
    }

    # When it is over.

    def _is_answered(self) -> bool:
        return self.ended_plainly and super()._is_answered()

    def _is_complete(self) -> bool:
        # A CLI that cannot resume says so in a result, and leaves the prompts.
        refused = self.result is not None and self.result.is_error and not self.result.num_turns
        return self.ended_plainly and not (self.goes_on or self.awaits_idle) and (refused or self._is_answered())

    def _rests(self) -> bool:
        return self.ended_plainly and not self.unanswered and not (self.awaits_idle and self._child.in_turn)

    def _check_interrupt(self) -> None:
        if self._child.invocation.initialize is None:
            raise UsageError(
                "interrupt needs the control protocol, which the argv form has not: use prompt_via='stdin'"
            )

    async def _interrupt(self, ended: Latch) -> None:
        if self._child.link.is_preparing:
            self.stop()  # no prompt was sent, and none will be
            return
        await self._heard.wait()
        if not ended.is_set():
            await self._child.link.request("interrupt")

    def _done(self) -> None:
        super()._done()
        self._child.link.soon(self._part)  # which takes a while, so the consumer goes first

    def _part(self) -> None:
        if self._host is None and self._child.transport.end_input_at_once():
            self._linger()
        else:
            self._beside(self._leave)

    def _begin_anew(self) -> None:
        self.ended_plainly = False
        self._heard = Latch()

    # The owner.

    async def _live(self) -> None:
        await self.admitted()
        await self._in_time(self._talk)

    async def _talk(self) -> None:
        try:
            async with self._child.living() as hello:
                self._greet(*hello)
                if self._limits.timeout is not None:
                    self._beside(self._watch_clock)
                if self._silence.is_limited:
                    self._beside(self._watch_silence)
                self._started.set()
                try:
                    await self._child.guarded(self._listen)
                finally:
                    if self._continuing is not None:
                        self._continuing.give_up()
        finally:
            if self._continuing is not None:
                await self._continuing.ended()

    def _end(self) -> None:
        self._failure = self._failure or self._child.failure
        super()._end()
        self._child.link.close(self._failure)
        self._heard.set()

    def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        self._child.beside(work)

    async def _listen(self) -> None:
        child = self._child
        await child.link.pump(self._look)
        if self._is_complete() or self.interrupted:
            return
        ending = await child.transport.ending()
        await self.decided()
        if self._is_complete() or self.interrupted:
            return
        if self.ended_plainly and self._said_all and ending.exit_code == 0 and not self.goes_on:
            self.unanswered.clear()  # it folded prompts into one turn, and is too old to name them
            self.awaits_idle = False  # it has left by itself
            return
        raise missing_result_error(ending, child.link.noise, child.link.last_problem)

    def _greet(self, pending: Pending | None, opening: bytes) -> None:
        if self._host is None and pending is not None:
            # The prompt goes with the handshake, which saves a round trip: the CLI reads them in order.
            self._child.link.expect(pending, self._refused)
            if isinstance(self._prompts, Sequence) and self._child.transport.send_at_once(opening + self._words()):
                return  # as nearly every time, and a task would cost more than all that is done in it
        self._beside(partial(self._speak, pending, opening))

    def _words(self) -> bytes:
        return b"".join(prompt.data for prompt in self._prompts) if isinstance(self._prompts, Sequence) else b""

    def _refused(self, error: BaseException) -> None:
        if not (self.ended_plainly or self.over):  # `--resume` of an unknown id answers with a result instead
            self.fail(error)

    async def _speak(self, pending: Pending | None, opening: bytes) -> None:
        transport = self._child.transport
        try:
            if self._host is not None and pending is not None:
                # What this process guards must be in force before there is anything to guard.
                await self._shake_hands(pending, opening)
                opening = b""
            await transport.send(opening + self._words())
            if not isinstance(self._prompts, Sequence):
                await self._speak_on(self._prompts)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the reader finds out how the peer ended
        if pending is None:
            await transport.end_input()

    async def _speak_on(self, prompts: AsyncGenerator[Outgoing, None]) -> None:
        async with aclosing(prompts):
            async for prompt in prompts:
                self._owe(prompt)
                await self._child.transport.send(prompt.data)
        self._said_all = True
        self._end_if_done()

    async def _say(self, prompt: Outgoing) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the reader finds out how it ended
            await self._child.transport.send(prompt.data)

    async def _shake_hands(self, pending: Pending, unsent: bytes) -> None:
        try:
            await self._child.link.shake_hands(pending, unsent)
        except PilothouseError:
            if not self.ended_plainly:  # see `_refused`; no prompt follows
                raise

    async def _leave(self) -> None:
        """After the last result: end the input; the CLI finishes its background tasks and goes."""
        child = self._child
        if self._host is not None and not self.interrupted:  # what was stopped waits for no answer
            await self._idle()
        await child.transport.end_input()
        self._linger()

    def _linger(self) -> None:
        self._is_leaving = True
        self._child.link.wake(self._look())

    def _look(self) -> float:
        """End a child that does not leave by itself; returns when to look again."""
        if not self._is_leaving:
            return inf
        child = self._child
        quiet_until = child.quiet_since(busy=bool(child.background)) + LINGER_SECONDS
        if anyio.current_time() < quiet_until:
            return quiet_until
        child.leave()
        return inf

    async def _idle(self) -> None:
        # Once its input has ended, the CLI takes every question as denied: what runs in the background may still ask,
        # and so may the turn that the model is woken to when it ends.
        child = self._child
        while child.background or child.in_turn or child.link.questions or child.may_be_woken:
            busy = bool(child.background) or child.in_turn or bool(child.link.questions)
            quiet_until = child.quiet_since(busy=busy) + WAKE_SECONDS
            if anyio.current_time() >= quiet_until:
                return
            await anyio.sleep_until(quiet_until)

    def _quiet_since(self) -> float:
        child = self._child
        return child.quiet_since(busy=child.takes_its_time or (self.awaits_idle and bool(child.background)))

    def _was_heard(self) -> bool:
        return self._ever_heard

    async def _watch_clock(self) -> None:
        assert self._clock is not None
        self._clock.deadline = float("inf")  # once there is a child, a turn of it may be saved before the end
        await anyio.sleep_until(self._due())
        if self._is_complete():
            self._child.leave()
        else:
            await self._cut(self._overdue(self.CONSEQUENCE))

    async def _cut(self, error: PilothouseError) -> None:
        # The failure is certain from here on, whatever comes; but a turn that is interrupted is saved by the CLI.
        child = self._child
        child.failure = child.failure or error
        self._is_cut = True
        self._inbox.let_pass()
        if self._heard.is_set() and not self._rests() and child.invocation.initialize is not None:
            if self._turn_ended.is_set():
                self._turn_ended = Latch()
            ended = self._turn_ended
            with anyio.move_on_after(RECEIPT_SECONDS) as receipt, suppress(PilothouseError):
                await child.link.request("interrupt")
                receipt.deadline = anyio.current_time() + SAVE_SECONDS
                await ended.wait()
        child.leave()
