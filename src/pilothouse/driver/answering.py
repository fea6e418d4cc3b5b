"""A query under way, as its consumer knows it: its messages, its end, its limits, and what may follow its results.

Owns when a query is over and how that is told. What it is answered by, a child of its own or a turn of a conversation,
the two classes that build on this know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from pilothouse.driver.failures import timeout_error
from pilothouse.driver.inbox import Inbox
from pilothouse.driver.latch import Latch
from pilothouse.driver.outgoing import Limits, Outgoing, Prompts
from pilothouse.driver.owned import Owned
from pilothouse.driver.silence import Silence, own_message
from pilothouse.driver.unanswered import Unanswered
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
    from pilothouse.driver.continuation import Continuation, Continuing, Next

RunState = Literal["queued", "active", "completed", "interrupted", "failed", "closed"]

INTERRUPT_SECONDS = 5.0  # from the receipt of an interrupt until the turn must have ended
HELD_BYTES = 1024 * 1024  # of what a peer says before its turn begins, that are held back for the init message
LEFT_SECONDS = 1.0  # from the moment a peer has left after its result until the continuation must say that this was all


class Answering(Owned, ABC):
    """What `Exchange` and `Turn` have in common.

    Args:
        prompts: the user messages, all at once or as they come.
        limits: times.
        continuation: says what follows the result, before the query is over.

    Attributes:
        unanswered: prompts without a result.
        interrupted: whether it was stopped on request.
        cut_short: whether its last result is that of an earlier prompt, because it was stopped before more came.
        result: the last one.
        on_end: told once that all is over and what has failed, before the consumer is. Must not raise.
        on_denied: told of each tool that the peer has denied by itself. Must not raise.
        admission: waited for before anything is said; what it raises is the failure of the query.
        awaits_idle: whether it has its result, and waits for what runs in the background.
        tells_asks: whether the consumer gets messages of what the peer asks this process, and of the decisions.
        session_id: as the peer last named it.
    """

    CONSEQUENCE = "the child was ended"
    """What is done when a limit runs out."""

    def __init__(
        self,
        prompts: Prompts,
        limits: Limits,
        continuation: Continuation | None,
    ) -> None:
        super().__init__()
        given = isinstance(prompts, Sequence)
        self._prompts = prompts
        self._limits = limits
        self._continuing = None if continuation is None else _at_work(continuation)
        self._inbox = Inbox()
        self._has_opened = False  # the consumer has had the init message, or there was none
        self._held: list[Message] = []  # what came before it
        self._held_bytes = 0
        self._silence = Silence(limits)
        self._deadline: float | None = None  # of the whole query
        self._clock: anyio.CancelScope | None = None  # ends it then
        self._is_admitted = False
        self._said_all = given
        self._silent_from = 0.0  # the earliest moment from which silence counts
        self._turn_ended = Latch()  # the turn that ran when the last interrupt was asked for
        self._ended = Latch()  # all that was asked for has its result, or none will come
        self.unanswered = Unanswered([prompt.uuid for prompt in prompts] if given else ())
        self.interrupted = False
        self.cut_short = False
        self.result: ResultMessage | None = None
        self.on_end: Callable[[BaseException | None], object] | None = None
        self.on_denied: Callable[[PermissionDeniedMessage], object] | None = None
        self.admission: Callable[[], Awaitable[None]] | None = None
        self.awaits_idle = self.tells_asks = False

    # What the consumer calls.

    @property
    def state(self) -> RunState:
        """Where it is in its life."""
        if not self.over:
            return "queued" if self.is_queued else "active"
        if self.interrupted:
            return "interrupted"
        if self._failure is None:
            return "completed"
        return "closed" if isinstance(self._failure, SessionClosedError) else "failed"

    @property
    def is_queued(self) -> bool:
        """Whether its turn has not come."""
        return self.is_held

    @property
    @abstractmethod
    def session_id(self) -> str | None:
        """As the peer last named it."""
        ...

    async def next_batch(self) -> tuple[list[Message], int]:
        """The next messages and their size in bytes; none at the end. Raises what ended the query early."""
        return await self._inbox.get()

    async def interrupt(self) -> None:
        """Stop the answer and wait until it has ended. Returns at once when nothing runs.

        Prompts that come after it are still answered.

        Raises:
            UsageError: the argv form has no control protocol. (R16)
            ControlError, ControlTimeout: the peer refused, or did not answer.
        """
        goes_on = self.goes_on
        if self._finished.is_set() or self._ended.is_set() or (self._rests() and not goes_on):
            if self.awaits_idle:
                self._done()
            return
        if self.is_held:
            self.interrupted = True
            self.stop()
            await self.finished()
            return
        self._check_interrupt()
        self.interrupted = True
        self._inbox.let_pass()
        if self._turn_ended.is_set():
            self._turn_ended = Latch()
        ended = self._turn_ended
        try:
            if goes_on and self._continuing is not None:
                self._continuing.give_up()  # nothing runs that the peer could stop
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
    def goes_on(self) -> bool:
        """Whether the continuation has a result and has not said what follows."""
        return self._continuing is not None and self._continuing.is_open

    @property
    def is_held(self) -> bool:
        """Whether it still has to be admitted, so that nothing was said."""
        return self.admission is not None and not self._is_admitted

    # What the reader calls, and those who look on.

    def tell(self, note: SystemMessage) -> None:
        """Put a message of our own between those of the peer."""
        self._inbox.put([note], len(note.raw_line))

    def report(self, subtype: str, facts: dict[str, Any]) -> None:
        """The peer asks this process something, or that was settled."""
        if self.tells_asks:
            self.tell(own_message(subtype, self.session_id, facts))

    def lost(self, notes: list[LineSkippedMessage]) -> None:
        """Lines of the peer could not be read."""
        size = sum(len(note.text) for note in notes)
        batch = self._in_order([*notes], size)
        if batch and self._continuing is not None:
            batch = self._read(batch)
        if batch:
            self._inbox.put(batch, size)

    def note_denied(self, message: PermissionDeniedMessage) -> None:
        """The peer has denied a tool."""
        if self.on_denied is not None:
            self.on_denied(message)

    @property
    def full(self) -> bool:
        """Whether the reader should wait for the consumer. Never while an interrupt waits for the end of the turn."""
        return self._inbox.full and not self.is_stopping

    async def room(self) -> None:
        """Wait for the consumer."""
        await self._inbox.room()

    def let_pass(self) -> None:
        """Let the reader go on in spite of the consumer."""
        self._inbox.let_pass()

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

    def _in_order(self, batch: list[Message], size: int) -> list[Message]:
        """A batch as the consumer gets it: no word about what becomes of prompts, and the init message comes first.

        The CLI tells of hooks of the session, and of a conversation that was cleared, before the turn begins (2.1.330).
        """
        batch = [message for message in batch if message.__class__ is not CommandLifecycleMessage]
        if self._has_opened:
            return batch
        self._held_bytes += size
        for at, message in enumerate(batch):
            if isinstance(message, InitMessage):
                return [message, *self._release(), *batch[at + 1 :]]
            if not isinstance(message, SystemMessage | ConversationResetMessage):
                return [*self._release(), *batch[at:]]
            self._held.append(message)
        return self._release() if self._held_bytes > HELD_BYTES else []

    def _release(self) -> list[Message]:
        held, self._held, self._has_opened = self._held, [], True
        return held

    def _read(self, batch: list[Message]) -> list[Message]:
        """What the continuation makes of a batch for the consumer. Its error is the query's, not the reader's."""
        assert self._continuing is not None
        try:
            return self._continuing.read(list(batch))
        except Exception as error:  # noqa: BLE001 - it belongs to the consumer
            self.fail(error)
            return []

    # When it is over.

    def _end_turn(self) -> None:
        self._turn_ended.set()
        if self.unanswered or not self._said_all:
            self.interrupted = False  # it was the turn, not the whole query
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._is_answered() or self.goes_on or self._ended.is_set():
            return
        continuing, result = self._continuing, self.result
        if continuing is None or result is None or self.is_stopping or not continuing.ask(result):
            self._answered()

    def _take(self, following: Next | None) -> None:
        """The continuation has said what follows; None: it was given up."""
        if self._ended.is_set():
            return
        if following is None:
            self._turn_ended.set()
            if self.interrupted:
                self._done()
            return
        if messages := list(following.messages):
            self._inbox.put(messages, sum(len(message.raw_line) for message in messages))
            self.result = next((m for m in reversed(messages) if isinstance(m, ResultMessage)), self.result)
        if following.prompt is None:
            self._answered()
            return
        self.unanswered.add(following.prompt.uuid)
        self._begin_anew()
        self._silent_from = anyio.current_time()
        self._beside(partial(self._go_on, following.prompt))

    def _owe(self, prompt: Outgoing) -> None:
        """A prompt of those that come one by one is about to be said: silence counts from here on."""
        if not self.unanswered:
            self._silent_from = anyio.current_time()
        self.unanswered.add(prompt.uuid)

    async def _go_on(self, prompt: Outgoing) -> None:
        await self._say(prompt)
        self._silent_from = anyio.current_time()

    def _is_answered(self) -> bool:
        """Whether all was said, and every prompt has its result."""
        return self._said_all and not self.unanswered

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether its end now is the end of the answer."""
        ...

    @abstractmethod
    def _rests(self) -> bool:
        """Whether there is no turn to interrupt."""
        ...

    def _check_interrupt(self) -> None:
        """Raise if it cannot be interrupted."""

    @abstractmethod
    async def _interrupt(self, ended: Latch) -> None:
        """Have the peer end the turn that runs, unless `ended` says that it has."""
        ...

    async def decided(self) -> None:
        """The peer has gone: wait, for a moment, until the continuation has said whether its last result was all."""
        if self.goes_on and self._continuing is not None:
            with anyio.move_on_after(LEFT_SECONDS):  # what takes longer is a tool, and nobody will read its result
                await self._continuing.answered()

    def _answered(self) -> None:
        """All prompts have their results, and nothing follows them but what runs in the background may bring."""
        if not self._limits.until_idle or self.is_stopping:
            self._done()
        elif not self.awaits_idle:
            self.awaits_idle = True
            self._beside(self._await_idle)

    async def _await_idle(self) -> None:
        await self._idle()
        self._done()

    @abstractmethod
    async def _idle(self) -> None:
        """Wait until the peer has nothing more to do."""
        ...

    def _done(self) -> None:
        """All that was asked for is there."""
        self.awaits_idle = False
        self._ended.set()

    @abstractmethod
    def _begin_anew(self) -> None:
        """One more prompt follows: an interrupt waits until the new turn is there to be stopped."""
        ...

    @abstractmethod
    def _beside(self, work: Callable[[], Awaitable[None]]) -> None: ...

    @abstractmethod
    async def _say(self, prompt: Outgoing) -> None: ...

    # The owner.

    async def _run(self) -> None:
        if self._continuing is None:
            await super()._run()
            return
        # Around everything else: one that does not end when it is given up holds up nobody but this task.
        async with anyio.create_task_group() as around:
            around.start_soon(self._continuing.serve, self._take, self.fail)
            await super()._run()
            around.cancel_scope.cancel()

    async def admitted(self) -> None:
        """Wait until nothing holds the query back. Called once, before anything is said; the time counts."""
        if self.admission is None:
            return
        with anyio.CancelScope(deadline=self._due()) as scope:
            await self.admission()
        if scope.cancelled_caught:
            raise self._overdue("nothing was sent")
        self._is_admitted = True

    async def _in_time(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._limits.timeout is None:
            await work()
            return
        with anyio.CancelScope(deadline=self._due()) as self._clock:
            await work()
        if self._clock.cancelled_caught and not self._is_complete():
            raise self._overdue(self.CONSEQUENCE)

    def _due(self) -> float:
        """When the query must be over, counted from the first time that this is asked."""
        if self._deadline is None:
            limit = self._limits.timeout
            self._deadline = float("inf") if limit is None else anyio.current_time() + limit
        return self._deadline

    def _overdue(self, consequence: str) -> PilothouseError:
        return timeout_error(self._limits.timeout or 0.0, consequence)

    def _end(self) -> None:
        self.cut_short = self.interrupted and (self.cut_short or not self._is_complete())
        if self._failure is None and not self._is_complete() and not self.interrupted:
            who = "the query was closed" if self._stopped else "the event loop shut down"
            self._failure = SessionClosedError(f"{who} before the result had arrived")
        if self.on_end is not None:
            self.on_end(self._failure)
            self.on_end = None
        if held := self._release():
            self._inbox.put(held, self._held_bytes)
        self._inbox.end(None if self.interrupted else self._failure)
        self._continuing = None  # it may keep much, and this may be kept for long
        super()._end()
        for event in (self._turn_ended, self._ended):
            event.set()

    async def _watch_silence(self) -> None:
        while not self._ended.is_set():
            now = anyio.current_time()
            if self.goes_on or not (self._said_all or self.unanswered):
                self._silent_from = now  # it is ours to speak
            heard = self._was_heard()
            since = max(self._quiet_since(), self._silent_from)
            look = self._silence.look(since, now, heard=heard, session_id=self.session_id)
            if look is None:
                return  # once it was heard, nothing limits its silence
            if look.note is not None:
                self.tell(look.note)
            if look.limit is not None:
                await self._cut(look.error(self.CONSEQUENCE, heard=heard))
                return
            await anyio.sleep_until(look.again_at)

    @abstractmethod
    async def _cut(self, error: PilothouseError) -> None:
        """A limit was passed: stop the peer's turn, and fail with `error`. Bounded."""
        ...

    @abstractmethod
    def _quiet_since(self) -> float: ...

    @abstractmethod
    def _was_heard(self) -> bool: ...


def _at_work(continuation: Continuation) -> Continuing:
    from pilothouse.driver.continuation import Continuing  # most queries are over with their result

    return Continuing(continuation)
