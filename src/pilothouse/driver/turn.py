"""One query of a conversation: waits for its turn, says its prompts, gets the messages that answer them, and no other.

Owns what one query is about. The child belongs to the `Conversation`; a turn that is given up leaves it usable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any

import anyio

from pilothouse.driver.answering import Answering
from pilothouse.driver.continuation import Continuation
from pilothouse.driver.latch import Latch
from pilothouse.driver.outgoing import Limits, Outgoing, Prompts
from pilothouse.errors import CLIExitedError, PilothouseError, UsageError
from pilothouse.messages import LineSkippedMessage, Message, ResultMessage, StreamEvent, SystemMessage

if TYPE_CHECKING:
    from pilothouse.driver.conversation import Conversation

Enter = Callable[["Turn"], AbstractAsyncContextManager["Conversation"]]
"""Waits until nobody else talks, and gives the conversation; leaving it lets the next one in."""


class Turn(Answering):
    """A query under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        enter: waits for the turn.
        prompts: the user messages, all at once or as they come.
        limits: times; they count from the moment the turn has come.
        continuation: what follows the result, before the next query.
        wants_partial: whether `StreamEvent`s are for this query; the child of a session always sends them.

    Attributes:
        was_sent: whether a prompt may have reached the peer.
        query: gives what asks with it, if that still exists.
        next_conversation: gives another one when the peer has ended and is known to have got none of the prompts.
    """

    CONSEQUENCE = "the turn was stopped"

    def __init__(
        self,
        enter: Enter,
        prompts: Prompts,
        limits: Limits,
        continuation: Continuation | None = None,
        *,
        wants_partial: bool = True,
    ) -> None:
        super().__init__(prompts, limits, continuation)
        self._wants_partial = wants_partial
        self._enter = enter
        self._conversation: Conversation | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._given_up = False
        self._said = Latch()  # the first prompt was sent, all of it
        self._begun = Latch()
        self._ever_begun = False
        self._taken: set[str] = set()  # prompts that the peer has taken up and not answered
        self._sent_from: int | None = None  # where the first prompt stands in the input of the peer, if that is counted
        self.was_sent = False
        self.query: Callable[[], Any] = lambda: None
        self.next_conversation: Callable[[], Awaitable[Conversation]] | None = None

    # What the consumer calls.

    @property
    def session_id(self) -> str | None:
        """Id of the session."""
        return self._conversation.session_id if self._conversation is not None else None

    @property
    def is_queued(self) -> bool:
        """Whether its turn has not come."""
        return self._conversation is None

    async def interrupt(self) -> None:
        """As on every query. One whose turn has not come is never sent."""
        if self._conversation is not None or self._finished.is_set():
            await super().interrupt()
            return
        self.interrupted = True
        self.stop()
        await self.finished()

    def tell(self, note: SystemMessage) -> None:
        """As on every query; those who listen to the conversation hear it too."""
        super().tell(note)
        if self._conversation is not None:
            self._conversation.tell(note)

    # What the conversation calls.

    @property
    def is_stopping(self) -> bool:
        """Whether somebody waits for its end, so that nothing may hold up the reader."""
        return self.interrupted or self._given_up

    @property
    def has_begun(self) -> bool:
        """Whether the peer has taken up a prompt of this query; from here on what it says is the answer."""
        return self._begun.is_set()

    def begin(self, uuid: str | None = None) -> None:
        """The peer has taken up a prompt of this query; None if it does not say which."""
        if uuid is not None:
            self._taken.add(uuid)
        self._ever_begun = True
        self._begun.set()

    def doubt(self) -> None:
        """The peer turns out to say what it takes up: what seemed to be the beginning was a turn of its own."""
        if not self._taken:
            self._begin_anew()

    def put(self, batch: list[Message], size: int) -> None:
        """Messages that belong to this query; dropped once it was given up."""
        if self._given_up:
            return
        if not self._has_opened:
            batch = self._in_order(batch, size)
        if self._continuing is not None and batch:
            batch = self._read(batch)
        if not self._wants_partial:
            batch = [message for message in batch if message.__class__ is not StreamEvent]
        if batch:
            self._inbox.put(batch, size)

    def lost(self, notes: list[LineSkippedMessage]) -> None:
        """Lines could not be read while this query was asked."""
        if self.was_sent and self.unanswered and not self._given_up:
            super().lost(notes)

    def is_answered_by(self, result: ResultMessage, *, may_be_unnamed: bool) -> bool:
        """Whether a result is of this query; `may_be_unnamed`: also one that names no prompt."""
        if self.unanswered.is_named_by(result):
            return True
        unnamed = not result.user_message_uuids and result.user_message_uuid is None
        return unnamed and may_be_unnamed and not result.is_woken

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
            self._begun = Latch()  # what comes before the next prompt is taken up is not ours
        self._end_turn()

    def fail(self, error: BaseException) -> None:
        """The conversation is over, or a part of this query failed."""
        if self._ended.is_set():
            return
        self._failure = error
        for event in (self._ended, self._turn_ended, self._begun, self._said):
            event.set()

    # When it is over.

    def _is_complete(self) -> bool:
        goes_on = self.goes_on or self.awaits_idle
        return self.result is not None and self._is_answered() and not (self._given_up or goes_on)

    def _rests(self) -> bool:
        works = self.awaits_idle and self._conversation is not None and self._conversation.is_working
        return self.was_sent and not self.unanswered and not works

    async def _idle(self) -> None:
        assert self._conversation is not None
        await self._conversation.wait_idle()

    async def _interrupt(self, ended: Latch) -> None:
        conversation = self._conversation
        assert conversation is not None
        conversation.let_pass()
        await self._said.wait()
        if not (self.has_begun or self.awaits_idle):
            await conversation.take_back(self)
            if not self.unanswered:
                self.cut_short = True
                self._end_turn()
                return
        if not self.awaits_idle:
            await self._begun.wait()
        if not ended.is_set():
            await conversation.request("interrupt")

    def _begin_anew(self) -> None:
        self._begun = Latch()

    # The owner.

    async def _live(self) -> None:
        async with self._enter(self) as self._conversation:
            await self._in_time(self._converse)
            if self._failure is not None:
                raise self._failure

    def _end(self) -> None:
        super()._end()
        for event in (self._said, self._begun):
            event.set()

    async def _converse(self) -> None:
        try:
            await self._talk()
            while self._was_not_heard():
                await self._change_conversation()
                await self._talk()
        finally:
            if self._continuing is not None:
                await self._continuing.ended()

    async def _talk(self) -> None:
        assert self._conversation is not None
        async with self._conversation.held_by(self):
            self._started.set()
            async with anyio.create_task_group() as self._tasks:
                self._beside(self._speak)
                if self._silence.is_limited:
                    self._beside(self._watch_silence)
                try:
                    await self._ended.wait()
                finally:
                    if self._continuing is not None and not self._was_not_heard():
                        self._continuing.give_up()
                self._tasks.cancel_scope.cancel()

    def _was_not_heard(self) -> bool:
        """Whether the peer has ended and is known to have got nothing of this query, so that it can be said again."""
        if not isinstance(self._failure, CLIExitedError) or self.next_conversation is None or self._ever_begun:
            return False
        if self.is_stopping or self._sent_from is None or not isinstance(self._prompts, Sequence):
            return False
        acknowledged: int | None = getattr(
            self._conversation and self._conversation.transport, "bytes_acknowledged", None
        )
        return acknowledged is not None and acknowledged <= self._sent_from

    async def _change_conversation(self) -> None:
        failure, self._failure = self._failure, None
        self._ended, self._turn_ended, self._begun, self._said = Latch(), Latch(), Latch(), Latch()
        self._sent_from, self.was_sent = None, False
        assert self.next_conversation is not None
        try:
            self._conversation = await self.next_conversation()
        except UsageError as error:  # the session has one transport, and that one is used up
            raise failure or error from error
        self._silent_from = anyio.current_time()

    def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - handed to the consumer by `_live`
            self.fail(error)

    async def _speak(self) -> None:
        if isinstance(self._prompts, Sequence):
            for prompt in self._prompts:
                await self._say(prompt)
        else:
            async with aclosing(self._prompts) as prompts:
                async for prompt in prompts:
                    self._owe(prompt)
                    await self._say(prompt)
            self._said_all = True
        self._end_if_done()

    async def _say(self, prompt: Outgoing) -> None:
        assert self._conversation is not None
        if not self.was_sent:
            self._sent_from = getattr(self._conversation.transport, "bytes_taken", None)
        self.was_sent = True
        await self._conversation.send(prompt.data)
        self._said.set()

    def _quiet_since(self) -> float:
        assert self._conversation is not None
        return self._conversation.quiet_since(in_background=self.awaits_idle)

    def _was_heard(self) -> bool:
        return self._ever_begun

    async def _cut(self, error: PilothouseError) -> None:
        self.fail(error)  # the conversation stops what was left
