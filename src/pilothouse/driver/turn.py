"""One query of a conversation: waits for its turn, says its prompts, gets the messages that answer them, and no other.

Owns what one query is about. The child belongs to the `Conversation`; a turn that is given up leaves it usable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from pilothouse.driver.exchange import INTERRUPT_SECONDS, Limits, Outgoing
from pilothouse.driver.failures import silence_error, timeout_error
from pilothouse.driver.inbox import Inbox
from pilothouse.driver.unanswered import Unanswered
from pilothouse.errors import PilothouseError, SessionClosedError
from pilothouse.messages import Message, ResultMessage, StreamEvent

if TYPE_CHECKING:
    from pilothouse.driver.conversation import Conversation

STOPPED = "the turn was stopped"

Enter = Callable[["Turn"], AbstractAsyncContextManager["Conversation"]]
"""Waits until nobody else talks, and gives the conversation; leaving it lets the next one in."""

at_work: ContextVar[tuple[object, ...]] = ContextVar("at_work", default=())
"""Marks of the turns and conversations on whose behalf this task runs; it cannot wait for their end. Marks, because a
context lives longer than the task that it was made for: in timers, and in the tasks that were started there."""


class Turn:
    """A query under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        enter: waits for the turn.
        prompts: the user messages, all at once or as they come.
        limits: times; they count from the moment the turn has come.
        follow_up: asked once for each result that leaves no prompt unanswered: one more prompt, or None.
        wants_partial: whether `StreamEvent`s are for this query; the child of a session always sends them.
    """

    def __init__(
        self,
        enter: Enter,
        prompts: Sequence[Outgoing] | AsyncGenerator[Outgoing, None],
        limits: Limits,
        follow_up: Callable[[ResultMessage], Outgoing | None] | None = None,
        *,
        wants_partial: bool = True,
    ) -> None:
        self._wants_partial = wants_partial
        self._enter = enter
        self._prompts = prompts
        self._limits = limits
        self._follow_up = follow_up
        self._followed_up: ResultMessage | None = None
        self._conversation: Conversation | None = None
        self._inbox = Inbox()
        self._scope: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._mark = object()
        self._said_all = False
        self._failure: BaseException | None = None
        self._stopped = False
        self._given_up = False
        self._started = anyio.Event()
        self._said = anyio.Event()  # the first prompt was sent, all of it
        self._begun = anyio.Event()
        self._taken: set[str] = set()  # prompts that the peer has taken up and not answered
        self._turn_ended = anyio.Event()  # the turn that ran when the last interrupt was asked for
        self._ended = anyio.Event()
        self._finished = anyio.Event()
        self.unanswered = Unanswered()
        self.was_sent = False
        self.interrupted = False
        self.result: ResultMessage | None = None

    # What the consumer calls; as on `Exchange`.

    async def start(self) -> None:
        """Wait until its turn has come.

        Raises:
            PilothouseError: it never came.
        """
        await self._started.wait()
        if self._failure is not None and self._finished.is_set():
            raise self._failure

    @property
    def over(self) -> bool:
        """Whether the next one may talk."""
        return self._finished.is_set()

    @property
    def session_id(self) -> str | None:
        """Id of the session."""
        return self._conversation.session_id if self._conversation is not None else None

    async def next_batch(self) -> tuple[list[Message], int]:
        """The next messages and their size in bytes; none at the end. Raises what ended the query early."""
        return await self._inbox.get()

    def stop(self) -> None:
        """Give up, from any task of the loop. `finished` tells when the conversation is ready for the next."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def finished(self) -> None:
        """Wait until the conversation is ready for the next. What runs inside of the turn does not."""
        if self._mark not in at_work.get():
            await self._finished.wait()

    async def interrupt(self) -> None:
        """Stop the answer and wait until it has ended. One whose turn has not come is never sent.

        Raises:
            ControlError, ControlTimeout: the peer refused, or did not answer.
        """
        resting = self.was_sent and not self.unanswered
        if self._ended.is_set() or self._finished.is_set() or resting:
            return
        self.interrupted = True
        if self._conversation is None:
            self.stop()
            await self.finished()
            return
        if self._turn_ended.is_set():
            self._turn_ended = anyio.Event()
        ended = self._turn_ended
        self._conversation.let_pass()
        try:
            await self._interrupt(self._conversation, ended)
        except PilothouseError as error:
            self.interrupted = self._finished.is_set() or isinstance(error, SessionClosedError)
            if self.interrupted:
                return  # it ended by itself in the meantime
            raise
        with anyio.move_on_after(INTERRUPT_SECONDS):
            await ended.wait()
            return
        self.stop()

    async def _interrupt(self, conversation: Conversation, ended: anyio.Event) -> None:
        await self._said.wait()
        if not self.has_begun:
            await conversation.take_back(self)
            if not self.unanswered:
                self._end_turn()
                return
        await self._begun.wait()
        if not ended.is_set():
            await conversation.request("interrupt")

    # What the conversation calls.

    @property
    def full(self) -> bool:
        """Whether the reader should wait for the consumer."""
        return self._inbox.full

    @property
    def is_stopping(self) -> bool:
        """Whether somebody waits for its end, so that nothing may hold up the reader."""
        return self.interrupted or self._given_up

    async def room(self) -> None:
        """Wait for the consumer."""
        await self._inbox.room()

    def let_pass(self) -> None:
        """Let the reader go on in spite of the consumer."""
        self._inbox.let_pass()

    @property
    def has_begun(self) -> bool:
        """Whether the peer has taken up a prompt of this query; from here on what it says is the answer."""
        return self._begun.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether every prompt has its result, or none will come."""
        return self._ended.is_set()

    def begin(self, uuid: str | None = None) -> None:
        """The peer has taken up a prompt of this query; None if it does not say which."""
        if uuid is not None:
            self._taken.add(uuid)
        self._begun.set()

    def put(self, batch: list[Message], size: int) -> None:
        """Messages that belong to this query; dropped once it was given up."""
        if self._given_up:
            return
        if not self._wants_partial:
            batch = [message for message in batch if message.__class__ is not StreamEvent]
        if batch:
            self._inbox.put(batch, size)

    def give_up(self) -> None:
        """Nobody reads any more; what still comes is dropped, so that the peer can get to its end."""
        self._given_up = True
        self._inbox.let_pass()

    def settle(self, result: ResultMessage) -> None:
        """A result that belongs to this query."""
        if not result.is_woken or self.result is None or self.unanswered.is_named_by(result):
            self.result = result
        self.unanswered.settle(result)
        knows = bool(self._taken)
        self._taken.intersection_update(self.unanswered)
        if knows and not self._taken:
            self._begun = anyio.Event()  # what comes before the next prompt is taken up is not ours
        self._end_turn()

    def _end_turn(self) -> None:
        self._turn_ended.set()
        if self.unanswered or not self._said_all:
            self.interrupted = False  # it was the turn, not the whole query
        self._end_if_done()

    def fail(self, error: BaseException) -> None:
        """The conversation is over, or a part of this query failed."""
        if self._ended.is_set():
            return
        self._failure = error
        for event in (self._ended, self._turn_ended, self._begun, self._said):
            event.set()

    def _end_if_done(self) -> None:
        if not self._said_all or self.unanswered or self._ended.is_set():
            return
        if more := self._more():
            assert self._tasks is not None
            self._begun = anyio.Event()  # an interrupt waits until the new turn is there to be stopped
            self.unanswered.add(more.uuid)
            self._tasks.start_soon(self._guarded, lambda: self._send(more))
            return
        self._ended.set()

    def _more(self) -> Outgoing | None:
        result = self.result
        if self._follow_up is None or self.is_stopping or result is None or result is self._followed_up:
            return None
        self._followed_up = result
        return self._follow_up(result)

    # The owner.

    async def run(self) -> None:
        """The whole of it, in one task."""
        at_work.set((*at_work.get(), self._mark))
        try:
            with anyio.CancelScope() as self._scope:
                if not self._stopped:
                    async with self._enter(self) as conversation:
                        await self._converse(conversation)
        except Exception as error:  # noqa: BLE001 - whatever ended it belongs to the consumer, not to the loop
            self._failure = self._failure or error
        finally:
            self._end()

    def _end(self) -> None:
        complete = self.result is not None and self._said_all and not self.unanswered and not self._given_up
        if self._failure is None and not complete and not self.interrupted:
            who = "the query was closed" if self._stopped else "the event loop shut down"
            self._failure = SessionClosedError(f"{who} before the result had arrived")
        self._inbox.end(None if self.interrupted else self._failure)
        self._follow_up = None  # it keeps the query, which keeps this
        for event in (self._finished, self._started, self._said, self._begun, self._turn_ended, self._ended):
            event.set()

    async def _converse(self, conversation: Conversation) -> None:
        self._conversation = conversation
        limit = self._limits.timeout
        with anyio.CancelScope(deadline=float("inf") if limit is None else anyio.current_time() + limit) as scope:
            async with conversation.held_by(self):
                self._started.set()
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._guarded, self._speak)
                    if self._limits.idle_timeout is not None:
                        self._tasks.start_soon(self._guarded, self._watch_silence)
                    await self._ended.wait()
                    self._tasks.cancel_scope.cancel()
        if scope.cancelled_caught and limit is not None:
            raise timeout_error(limit, STOPPED)
        if self._failure is not None:
            raise self._failure

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed to the consumer by `_converse`
            self.fail(error)

    async def _speak(self) -> None:
        if isinstance(self._prompts, Sequence):
            for prompt in self._prompts:
                self.unanswered.add(prompt.uuid)
            self._said_all = True
            for prompt in self._prompts:
                await self._send(prompt)
        else:
            async with aclosing(self._prompts) as prompts:
                async for prompt in prompts:
                    self.unanswered.add(prompt.uuid)
                    await self._send(prompt)
            self._said_all = True
        self._end_if_done()

    async def _send(self, prompt: Outgoing) -> None:
        assert self._conversation is not None
        self.was_sent = True
        await self._conversation.send(prompt.data)
        self._said.set()

    async def _watch_silence(self) -> None:
        limit, conversation = self._limits.idle_timeout, self._conversation
        assert limit is not None
        assert conversation is not None
        while not self._ended.is_set():
            silent_until = conversation.quiet_since() + limit
            if anyio.current_time() >= silent_until:
                raise silence_error(limit, STOPPED, heard=self.has_begun)
            await anyio.sleep_until(silent_until)
