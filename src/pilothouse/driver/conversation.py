"""One child that is kept alive for many turns: handshake, control requests, and which message belongs to which turn.

Owns the life of the child: `run` is one task from start to close, as in `exchange`. One turn talks at a time; who may,
and what happens after a crash, is decided above.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio

from pilothouse.driver.answering import INTERRUPT_SECONDS
from pilothouse.driver.background import BackgroundTasks
from pilothouse.driver.child import WAKE_SECONDS, Child
from pilothouse.driver.failures import session_ended_error, silence_error
from pilothouse.driver.host import Host
from pilothouse.driver.latch import Latch
from pilothouse.driver.leftovers import Leftovers
from pilothouse.driver.link import Pending
from pilothouse.driver.listeners import Listeners
from pilothouse.driver.outgoing import Limits
from pilothouse.driver.owned import Owned
from pilothouse.driver.silence import own_message
from pilothouse.driver.turn import Turn
from pilothouse.errors import CLIExitedError, ControlError, PilothouseError, SessionClosedError
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
    SystemMessage,
)
from pilothouse.options import Invocation
from pilothouse.transports import Health, Transport

SEND_SECONDS = 10.0  # until a peer that does not read its input is given up
NOTICE_SECONDS = 1.0  # from the moment a peer is gone until its output must have ended
SETTLE_SECONDS = 30.0  # of silence after which a turn that was under way is taken to have ended unheard
AT_WORK = ("running", "requires_action")  # `session_state` of a peer that was there before (2.1.330)
CLOSE_SECONDS = 5.0  # from the end of the input until a child that does not leave is ended; it saves the session first


class Conversation(Owned):
    """A child under way. Create it anywhere, `run` it once in a task of its own.

    Args:
        transport: not started yet.
        invocation: how to start the peer; with a handshake.
        limits: times and sizes; `timeout` and `idle_timeout` are those of turns.
        listeners: hear everything.
        refused: the error for a result that comes instead of a handshake (`resume` of an unknown id).
        host: what this process offers to the peer, if anything.

    Attributes:
        transport: as given.
        has_started: whether the handshake was answered.
        server_info: what the peer said in the handshake.
        session_id: id of the conversation, as the peer last named it.
        permission_mode: as the peer last named it; it may change it by itself.
        loaded: what the peer said at the beginning of its last turn: tools, servers, agents.
        says_lifecycle: whether the peer says when it takes up a prompt; then nothing before that is an answer.
    """

    def __init__(
        self,
        transport: Transport,
        invocation: Invocation,
        limits: Limits,
        *,
        listeners: Listeners,
        refused: Callable[[ResultMessage], Exception],
        host: Host | None = None,
    ) -> None:
        super().__init__()
        self.transport = transport
        self._child = Child(transport, invocation, limits, self, host)
        self._startup_timeout = limits.startup_timeout
        self._listeners = listeners
        self._refused = refused
        self._leftovers = Leftovers()
        self._routes: dict[type[Message], Callable[[Any], None]] = {
            CommandLifecycleMessage: self._on_lifecycle,
            ConversationResetMessage: self._on_reset,
            InitMessage: self._on_init,
            ResultMessage: self._on_result,
            StatusMessage: self._on_status,
            PermissionDeniedMessage: lambda message: self._turn and self._turn.note_denied(message),
            ApiRetryMessage: self._child.note_retry,
            **dict.fromkeys(BackgroundTasks.NOTED, self._on_task),
        }
        self._turn: Turn | None = None
        self._woken_until = 0.0
        self._news = anyio.Event()  # a turn or a background task has ended; a new one each time
        self._ended = Latch()  # its output
        self.server_info: Mapping[str, Any] = {}
        self.session_id: str | None = None
        self.permission_mode: str | None = None
        self.loaded: InitMessage | None = None
        self.says_lifecycle = False
        self.has_started = self._is_in_anothers_turn = self._has_heard_turns = False

    async def start(self) -> None:
        """Wait until the child runs and has answered the handshake.

        Raises:
            PilothouseError: it could not be started, or refused.
        """
        await self._started.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def over(self) -> bool:
        """Whether the child has ended, or is being ended."""
        return self._ended.is_set() or self._finished.is_set() or self._stopped

    @property
    def failure(self) -> BaseException | None:
        """Why it ended, if it was not asked to."""
        return self._failure or self._child.failure

    @property
    def is_working(self) -> bool:
        """Whether the peer is at work: on a prompt, or by itself."""
        return self._child.in_turn

    @property
    def has_background_tasks(self) -> bool:
        """Whether the peer runs something in the background."""
        return bool(self._child.background)

    async def wait_idle(self) -> None:
        """Wait until nothing runs: no turn, no background task, no turn that the end of one wakes the peer to."""
        child = self._child
        while not self.over:
            if child.in_turn or child.background:
                await self._news.wait()
            elif child.may_be_woken and self._woken_until > anyio.current_time():
                await anyio.sleep_until(self._woken_until)
            else:
                child.may_be_woken = False
                return

    async def settled(self) -> None:
        """Wait for the end of a turn that was under way when this process attached: it is no answer of ours."""
        while self._is_in_anothers_turn and self._child.in_turn and not self.over:
            left = self.quiet_since() + SETTLE_SECONDS - anyio.current_time()
            if left <= 0:
                break
            with anyio.move_on_after(left):
                await self._news.wait()
        self._is_in_anothers_turn = False

    async def rehouse(self, host: Host, introduction: Mapping[str, Any] | None) -> None:
        """Let `host` answer the peer's questions; `introduction`: what the peer must be told for that, if anything.

        Raises:
            ControlError, ControlTimeout: the peer does not take it.
        """
        self._child.link.rehouse(host)
        if introduction is not None:
            await self._child.link.introduce(introduction)

    def health(self) -> Health:
        """Whether it can be talked to."""
        return self.transport.health() if self.failure is None else Health("unhealthy", str(self.failure))

    def request(self, subtype: str, body: Mapping[str, Any] | None = None) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Ask the peer; see `Link.request`."""
        return self._child.link.request(subtype, body)

    @property
    def is_there(self) -> bool:
        """Whether the peer can be talked to, as far as is known without any waiting."""
        return self.has_started and not self.over and self._child.transport.health().state != "unhealthy"

    async def look(self) -> None:
        """See whether the peer is still there: one that has just gone may not have been noticed yet."""
        if self.is_there or self.over or not self.has_started:
            return
        self.let_pass()
        with anyio.move_on_after(NOTICE_SECONDS):
            await self._ended.wait()  # the reader knows best how it ended
            return
        self.stop(CLIExitedError(f"the CLI went away while it was idle: {self.transport.health().reason}"))

    async def send(self, data: bytes) -> None:
        """Send a prompt, all or nothing. When the peer is gone, the reader finds out and tells the turn."""
        if self._ended.is_set() or self.transport.send_at_once(data):
            return
        sent = anyio.Event()
        self._child.beside(partial(self._deliver, data, sent))
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
    async def held_by(self, turn: Turn) -> AsyncGenerator[None]:
        """The turn talks for the length of the block. If it leaves early, what it began is stopped first.

        Raises:
            SessionClosedError: the conversation is over.
        """
        if self.over:
            raise self.failure or SessionClosedError("the session is closed")
        self._leftovers.next_query()
        self._child.last_heard = anyio.current_time()
        self._turn = turn
        try:
            yield
        finally:
            try:
                if turn.was_sent and turn.unanswered and not self.over:
                    with anyio.CancelScope(shield=True):
                        await self._stop_turn(turn)
            finally:
                self._turn = None

    async def _stop_turn(self, turn: Turn) -> None:
        """The query was given up: stop its turn, so that nothing of it is left for the next one."""
        turn.give_up()
        self.let_pass()
        with anyio.move_on_after(INTERRUPT_SECONDS), suppress(PilothouseError):
            await self.take_back(turn)
            if turn.unanswered:
                receipt = await self.request("interrupt", {"cancel_queued": True})
                turn.unanswered.discard(receipt.get("cancelled") or ())
            while turn.unanswered and not self.over:
                await self._news.wait()
            return
        self.stop(CLIExitedError(f"the CLI did not stop its turn within {INTERRUPT_SECONDS:g} s, so it was ended"))

    async def take_back(self, turn: Turn) -> None:
        """Take the prompts of `turn` out of the peer's queue, if it has taken up none of them.

        They wait there while the peer is in a turn of its own, which is not ours to interrupt.
        """
        if turn.has_begun or not self.says_lifecycle:
            return
        for uuid in list(turn.unanswered):
            with suppress(ControlError):  # it does not know the request
                answer = await self.request("cancel_async_message", {"message_uuid": uuid})
                if answer.get("cancelled") is True:
                    turn.unanswered.discard((uuid,))

    def quiet_since(self, *, in_background: bool = False) -> float:
        """When the peer fell silent: now, while something runs that may take its time, or nobody reads."""
        child = self._child
        return child.quiet_since(busy=child.takes_its_time or (in_background and bool(child.background)))

    async def close(self) -> None:
        """End the input, let the child save and leave, end it if it does not. Bounded; from any task.

        Raises:
            PilothouseError: the transport says at its end that what it was to keep is not complete. Raised once.
        """
        self._stopped = True
        with anyio.CancelScope(shield=True):
            try:
                if self.has_started and not self._ended.is_set():
                    await self._leave()
            finally:  # also when `Task.cancel` of asyncio came through the shield
                self.stop()
            await self.finished()
        failure, self._child.close_failure = self._child.close_failure, None
        if failure is not None:
            raise failure

    async def detach(self) -> str:
        """Leave the peer, which goes on; returns the id under which it is found again. See `Transport.detach`."""
        before, self._stopped = self._stopped, True  # nothing is interrupted, and nobody sends any more
        failure, self._child.failure = self._child.failure, SessionClosedError("this process has left the session")
        try:
            found_as = await self.transport.detach()
        except BaseException:
            self._stopped, self._child.failure = before, failure
            raise
        with anyio.CancelScope(shield=True):
            super().stop()
            await self.finished()
        return found_as

    async def _leave(self) -> None:
        self.let_pass()
        with anyio.move_on_after(CLOSE_SECONDS), suppress(PilothouseError, anyio.ClosedResourceError):
            if self._child.in_turn:
                await self.request("interrupt", {"cancel_queued": True})
            await self.transport.end_input()
            await self._ended.wait()

    def stop(self, error: Exception | None = None) -> None:
        """End the child now, from any task of the loop; `error` says why, if it was not asked to."""
        if not self._stopped:
            self._child.failure = self._child.failure or error
        super().stop()

    @property
    def full(self) -> bool:
        """Whether the reader should wait for a consumer. Never while the end of a turn, or of the child, is awaited."""
        turn = self._turn
        if self._stopped or (turn is not None and turn.is_stopping):
            return False
        return (turn is not None and turn.full) or self._listeners.full

    async def room(self) -> None:
        """Wait for a consumer."""
        crowded = self._turn if self._turn is not None and self._turn.full else self._listeners
        await crowded.room()

    def let_pass(self) -> None:
        """Let the reader go on in spite of the consumers."""
        if self._turn is not None:
            self._turn.let_pass()
        self._listeners.let_pass()

    def put(self, batch: list[Message], size: int) -> None:
        """Give each message to the turn that it belongs to, and all of them to the listeners."""
        child = self._child
        child.last_heard = anyio.current_time()
        kinds = set(map(type, batch))
        child.validator.track_batch(batch, kinds)
        self._listeners.put(batch, size)
        turn = self._turn
        plain = self.says_lifecycle and not self._leftovers and self._routes.keys().isdisjoint(kinds)
        if plain:  # a batch of nothing but text costs no loop
            if turn is not None and (turn.awaits_idle or (turn.has_begun and turn.unanswered)):
                turn.put(batch, size)
            else:
                for message in batch:
                    self._listeners.unasked(message)
            return
        mine: list[Message] = []
        for message in batch:
            if self._leftovers.claims(message):
                pass
            elif turn is not None and self._is_of_turn(message, turn):
                mine.append(message)
                if isinstance(message, ResultMessage):
                    turn.put(mine, size)
                    turn.settle(message)
                    mine = []
            else:
                if isinstance(message, InitMessage):  # it begins a turn by itself
                    self._leftovers.next_query()
                self._listeners.unasked(message)
            route = self._routes.get(message.__class__)
            if route is not None:
                route(message)
        if mine and turn is not None:
            turn.put(mine, size)

    def lost(self, notes: list[LineSkippedMessage]) -> None:
        """Lines could not be read: those who listen hear it, and the query that is being answered."""
        self._listeners.put([*notes], 0)
        if self._turn is not None:
            self._turn.lost(notes)

    def tell(self, note: SystemMessage) -> None:
        """A message of our own, for those who listen."""
        self._listeners.put([note], len(note.raw_line))

    def report(self, subtype: str, facts: dict[str, Any]) -> None:
        """The peer asks this process something, or that was settled: for the query that runs, and those who listen."""
        if self._turn is not None and self._turn.has_begun and self._turn.tells_asks:
            self._turn.report(subtype, facts)
        elif self._listeners:
            self.tell(own_message(subtype, self.session_id, facts))

    def _is_of_turn(self, message: Message, turn: Turn) -> bool:
        if turn.awaits_idle or not (turn.was_sent and turn.unanswered):
            return turn.awaits_idle
        if isinstance(message, ResultMessage):
            return turn.is_answered_by(message, may_be_unnamed=turn.has_begun or not self.says_lifecycle)
        if isinstance(message, CommandLifecycleMessage):
            if message.state == "started" and message.command_uuid in turn.unanswered:
                self._begin(turn, message.command_uuid)
            return False
        if not self.says_lifecycle:
            self._begin(turn, None)  # an older peer, or a stand-in: it works on nothing else
        return turn.has_begun

    def _begin(self, turn: Turn, uuid: str | None) -> None:
        if not turn.has_begun:
            self._leftovers.next_query()
            self._listeners.asked()
        turn.begin(uuid)

    def _on_lifecycle(self, message: CommandLifecycleMessage) -> None:
        if not self.says_lifecycle and self._turn is not None:
            self._turn.doubt()
        self.says_lifecycle = True
        self._child.in_turn = self._child.in_turn or message.state == "started"

    def _on_task(self, message: Message) -> None:
        self._child.note_task(message)
        self._tell()

    def _on_init(self, message: InitMessage) -> None:
        self._has_heard_turns = True
        self._child.note_init(message)
        self.loaded = message
        self.session_id = message.session_id or self.session_id
        self.permission_mode = message.permission_mode or self.permission_mode

    def _on_status(self, message: StatusMessage) -> None:
        self.permission_mode = message.permission_mode or self.permission_mode

    def _on_reset(self, message: ConversationResetMessage) -> None:
        self.session_id = message.new_conversation_id or self.session_id

    def _on_result(self, message: ResultMessage) -> None:
        self._child.in_turn, self._has_heard_turns = False, True
        self.session_id = message.session_id or self.session_id
        if not self.has_started and message.is_error and message.subtype != "success" and not message.is_woken:
            self._child.failure = self._child.failure or self._refused(message)
            return
        self._tell()

    def _tell(self) -> None:
        self._woken_until = anyio.current_time() + WAKE_SECONDS
        self._news.set()
        self._news = anyio.Event()

    # The owner.

    async def _live(self) -> None:
        async with self._child.living() as hello:
            self._child.beside(partial(self._shake_hands, *hello))
            if self._startup_timeout is not None:
                self._child.beside(self._watch_start)
            try:
                await self._child.guarded(self._listen)
            finally:
                self._give_up()  # now: what runs beside may itself wait for the end

    async def _watch_start(self) -> None:
        limit = self._startup_timeout or 0.0
        await anyio.sleep(limit)
        if not self.has_started and not self._child.link.is_preparing:
            raise silence_error(limit, heard=False, kind="startup_timeout")

    def _end(self) -> None:
        if not self.has_started:
            self._failure = self.failure or SessionClosedError("the session is closed")
        self._give_up()
        super()._end()

    def _give_up(self) -> None:
        """The peer will say nothing more: tell all who wait for it, before it is gone for good."""
        error = self.failure or SessionClosedError("the session is closed")
        self._ended.set()
        self._child.link.close(error)
        self._listeners.gone(error)
        if self._turn is not None:
            self._turn.fail(error)
        self._tell()

    async def _shake_hands(self, pending: Pending | None, opening: bytes) -> None:
        assert pending is not None
        self.server_info = await self._child.link.shake_hands(pending, opening)
        self.permission_mode = (
            mode if isinstance(mode := self.server_info.get("current_permission_mode"), str) else None
        )
        if self.server_info.get("session_state") in AT_WORK:
            self._child.in_turn |= not self._has_heard_turns  # else it has said itself where it is, and may be further
            self._is_in_anothers_turn = self._child.in_turn
        self.has_started = True
        self._started.set()

    async def _listen(self) -> None:
        child = self._child
        await child.link.pump()
        if self._stopped or child.failure is not None:
            return
        ending = await child.transport.ending()
        if self._turn is not None:
            await self._turn.decided()
        busy = self._turn is not None and not self._turn.has_ended
        raise session_ended_error(ending, child.link.noise, child.link.last_problem, busy=busy)
