"""Conversations of front ends: each thread is a session of an agent, each turn a list of events that grows.

Owns which session belongs to a thread, how long its child lives, and what a turn waits for: approvals, calls of tools
that run in the front end. Knows no protocol. A request reads the turn; when another one comes later, it reads on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from pilothouse.client import Agent, Query, Session
from pilothouse.errors import (
    AskSettledError,
    ControlError,
    PilothouseError,
    ProcessError,
    SessionExistsError,
    SessionNotFoundError,
    UsageError,
)
from pilothouse.events import Finished, PermissionAsked, PermissionSettled, QueryEvent
from pilothouse.permissions import Ask, Asks
from pilothouse.tools import Tool, ToolContext, ToolError
from pilothouse_access.on_behalf import ConfinedTransports
from pilothouse_access.owners import OPERATOR, Owner, Shares
from pilothouse_doors.ui.history import PastTurn, clean_content, is_prompt, is_steering, read_messages, read_turns

log = logging.getLogger("pilothouse.integrations")

GATHER_SECONDS = 0.25
"""A turn that waits for the front end is shown as waiting after so long without an event."""
STOP_SECONDS = 10.0
"""For an interrupted turn to end by itself."""
CHECK_SECONDS = 0.5
"""Between two looks at whether the front end has to run a tool: there is no event for that."""
QUEUE_SECONDS = 30.0
"""For a request that finds no room for a child."""
ROOM_CHECK_SECONDS = 1.0
"""Between two looks for room, while nobody tells that there may be some."""
CLIENT_TOOL_PREFIX = "mcp__tools__"
_ID_CHARS = len("01234567-0123-4567-")
"""The part of a prompt's id that says which message it was."""
_NAMESPACE = uuid.UUID("5f0c6a86-6f5e-4c0e-9f0e-3a8f0c1d2b77")
_WENT_ON = "the user went on without deciding"


class FrontEndError(UsageError):
    """A request of a front end cannot be served. `.code` says why: "bad_request", "busy", "conflict", "limit"."""

    def __init__(self, message: str, *, code: str = "bad_request") -> None:
        super().__init__(message)
        self.code = code


class Turn:
    """One prompt being answered: its events so far, and what it waits for. Made by `Thread.start_turn`.

    `shown` is how many of the events front ends have got; `failure` is what ended it without a result.
    """

    def __init__(self, query: Query[Any], thread: Thread, past: PastTurn) -> None:
        self.id = past.id
        self.content = past.content
        self.log = past.events
        self.shown = 0
        self.readers = 0
        self.is_finished = False
        self.failure: PilothouseError | None = None
        self.is_stopped = False
        self._query = query
        self._thread = thread
        self._events = query.events()
        self._asked: set[str] = set()
        self._last: Finished | None = None
        self._reading = anyio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send the prompt."""
        await self._query.__aenter__()  # from now on, a reader that leaves does not end the query

    @property
    def asks(self) -> list[Ask]:
        """The approvals that wait and whose event is in the log."""
        session = self._thread.session
        if session is None or session.options.asks is None or not self._asked:
            return []
        return [approval for approval in session.asks if approval.id in self._asked]

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on only when the front end answers."""
        return not self.is_finished and bool(self.asks or self._thread.client_calls)

    @property
    def is_read_on(self) -> bool:
        """Whether it goes on without a request."""
        return self._reader is not None and not self._reader.done()

    @property
    def was_taken_back(self) -> bool:
        """Whether it was stopped before Claude Code began with its prompt, which is not in the conversation then."""
        return self.is_finished and self.failure is None and self._last is None

    async def read(self, position: int) -> QueryEvent | None:
        """Return the event at `position`. None: there is none, because the turn is finished or waits."""
        while len(self.log) <= position and not self.is_finished:
            async with self._reading:  # one reader takes from the query, the others see the log
                if len(self.log) > position or self.is_finished:
                    break
                event = None
                limit = GATHER_SECONDS if self.is_waiting else CHECK_SECONDS
                with anyio.move_on_after(limit):
                    event = await self._take()
                if event is None and self.is_waiting:
                    break
        return self.log[position] if len(self.log) > position else None

    async def _take(self) -> QueryEvent | None:
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self.is_finished = True
            self.log.extend([] if self._last is None else [self._last])
            return self._last
        except PilothouseError as error:
            self.is_finished, self.failure = True, error
            return None
        if isinstance(event, PermissionAsked):
            self._asked.add(event.id)
        elif isinstance(event, PermissionSettled):
            self._asked.discard(event.id)
        elif isinstance(event, Finished):
            self._last = event  # sub-agents in the background may go on, and wake the model again
            return None
        self.log.append(event)
        return event

    def read_on(self) -> bool:
        """Read in the background until the turn is finished or waits, so that it goes on without a request.

        Returns:
            Whether it does: trio has no tasks without a parent.
        """
        if self._reader is None or self._reader.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return False
            self._reader = loop.create_task(self._read_all())
        return True

    async def _read_all(self) -> None:
        while await self.read(len(self.log)) is not None or not (self.is_finished or self.is_waiting):
            pass

    async def steer(self, text: str) -> tuple[str, str]:
        """Give words to the turn, and wait until it is known what became of them; return that, and their id."""
        if not self._query.has_begun:
            return "returned", ""
        steering = await self._query.steer(text, if_late="return")
        return await steering.outcome(), steering.id

    async def stop(self) -> None:
        """Interrupt the turn and wait, bounded, until it has ended; the session goes on. Idempotent."""
        self.is_stopped = self.is_stopped or not self.is_finished
        for call in list(self._thread.client_calls.values()):
            call.fail(_WENT_ON)
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(STOP_SECONDS):
                    if not self.is_finished:
                        await self._query.interrupt()
                    while not self.is_finished:
                        async with self._reading:
                            await self._take()
            except PilothouseError as error:
                log.info("a turn could not be interrupted, and is ended: %s", error)
            await self._query.aclose()
            self.is_finished = True


class ClientCall:
    """A call of a tool that the front end runs: waits until the result arrives."""

    def __init__(self) -> None:
        self._arrived = anyio.Event()
        self._result: Any = None
        self._error: str | None = None

    async def wait(self) -> Any:
        """Wait for the result; raises ToolError if the front end failed, or gave none."""
        await self._arrived.wait()
        if self._error is not None:
            raise ToolError(self._error)
        return self._result

    def finish(self, result: Any) -> None:
        """Set the result."""
        self._result = result
        self._arrived.set()

    def fail(self, message: str) -> None:
        """Set a failure, for the model."""
        self._error = message
        self._arrived.set()


class Thread:
    """One conversation with a front end. Made by `Threads.open`.

    The `session_id` is the same in every process; `session` is None while no child is needed. The `lock` is held while
    the thread gets a prompt or answers; `used_at` is when it was last used, as `time.monotonic()`.
    """

    def __init__(self, threads: Threads, thread_id: str, owner: Owner) -> None:
        self.id = thread_id
        self.owner = owner
        self.session_id = str(uuid.uuid5(_NAMESPACE, f"{len(owner.name)}:{owner.name}:{thread_id}"))
        self.session: Session | None = None
        self.is_starting = False
        self.turn: Turn | None = None
        self.client_calls: dict[str, ClientCall] = {}
        self.lock = anyio.Lock()
        self.used_at = time.monotonic()
        self._threads = threads
        self._tools: tuple[str, ...] = ()
        self._prompts: list[str] = []
        self._last_words: str | None = None  # id of words that came after the last prompt
        self._is_loaded = False

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits for the front end."""
        return self.turn is not None and not self.turn.is_finished

    async def load(self) -> None:
        """Read which prompts the conversation has, if this process does not know it. Idempotent."""
        if not self._is_loaded:
            found = await read_messages(self._threads.agent, self.session_id) or []
            prompts = [message for message in found if is_prompt(message)]
            self._prompts = [message.uuid or "" for message in prompts if not is_steering(message)]
            self._last_words = prompts[-1].uuid if prompts and is_steering(prompts[-1]) else None
            self._is_loaded = True

    def has_prompt(self, message_id: str) -> bool:
        """Whether a message of the front end was sent in this conversation, and not taken back. Needs `load`."""
        return bool(self._find_prompts(message_id))

    def _find_prompts(self, message_id: str) -> list[int]:
        start = self._make_prompt_id(message_id)[:_ID_CHARS]
        return [at for at, each in enumerate(self._prompts) if each == message_id or each.startswith(start)]

    def _make_prompt_id(self, message_id: str) -> str:
        """Return a new id for a prompt. Its first half follows from the message: so a process that begins knows it."""
        digest = hashlib.sha256(f"{self.session_id}:{message_id}".encode(errors="surrogatepass")).digest()
        return str(uuid.UUID(bytes=digest[:8] + os.urandom(8), version=4))

    async def start_turn(
        self,
        prompt: list[Any],
        message_ids: Sequence[str],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        has_history: bool,
    ) -> Turn:
        """Send a prompt; what the thread waits for is given up.

        What the front end does not show any more, the model does not see any more: the prompts after the last one
        that it names are taken back, and so is the last one if it is sent again.

        Args:
            prompt: the content blocks.
            message_ids: of all messages of the user that the front end shows, the prompt last.
            tools: of the front end.
            has_history: whether the conversation has begun earlier, perhaps in another process.

        Raises:
            FrontEndError: another request reads a turn, there is no room for a child, or the conversation cannot go
                back.
        """
        if self.turn is not None and self.is_busy:
            if (self.turn.readers or self.turn.is_read_on) and not self.turn.is_waiting:
                raise FrontEndError(f"thread {self.id!r} is answering another request; wait or stop it", code="busy")
            for approval in self.turn.asks:
                approval.deny(_WENT_ON, by="front end")
            await self.turn.stop()
        if self.turn is not None and self.turn.was_taken_back and self.turn.id in self._prompts:
            self._prompts.remove(self.turn.id)
        await self.load()
        names = tuple(repr(sorted(tool.items(), key=str)) for tool in tools)
        if self.session is not None and names != self._tools:
            await self.close()
        if self.session is None:
            self._tools = names
            self.session = await self._start_session(tools, has_history or bool(self._prompts))
        await self._rewind(self.session, self._count_kept(message_ids))
        past = PastTurn(self._make_prompt_id(message_ids[-1]), clean_content(prompt))
        message = {"type": "user", "uuid": past.id, "message": {"role": "user", "content": prompt}}
        turn = Turn(self.session.query([message]), self, past)
        await turn.start()
        self._prompts.append(past.id)
        self._last_words = None
        self.turn = turn
        return turn

    async def steer(self, text: str) -> str:
        """Give words to the turn that runs.

        Returns:
            What became of them, as `Steering.outcome` says; "returned" also when no turn runs.
        """
        if self.turn is None or self.turn.is_finished:
            return "returned"
        turn = self.turn
        outcome, words = await turn.steer(text)
        if outcome == "next_turn":
            self._is_loaded = False  # they are a prompt of the conversation
        elif outcome == "taken" and self._prompts[-1:] == [turn.id]:
            self._last_words = words
        return outcome

    def _count_kept(self, message_ids: Sequence[str]) -> int:
        *earlier, last = message_ids
        counts = [len(self._prompts)]
        if known := [at for each in earlier for at in self._find_prompts(each)[-1:]]:
            counts.append(known[-1] + 1)
        if last not in earlier:  # else the ids of this front end say nothing
            counts.extend(self._find_prompts(last)[:1])
        return min(counts)

    async def _rewind(self, session: Session, count: int) -> None:
        """Take back all prompts but the first ones, with their answers. Files stay as they are."""
        if count == len(self._prompts):
            return
        target, last = self._prompts[count], self._last_words or self._prompts[-1]
        try:
            reason = await _take_back(session, target, last)
        except ControlError as error:
            reason = str(error)
        if reason is not None and not (reason == "target_not_found" and await self._has_never_had(target)):
            raise FrontEndError(
                f"Claude Code did not go back to this message ({reason}); send a new message at the end of the "
                "conversation, or begin a new one",
                code="conflict",
            )
        del self._prompts[count:]
        self._last_words = None

    async def _has_never_had(self, prompt_id: str) -> bool:
        """Whether the prompt did not get into the conversation; a compaction may also have replaced it."""
        found = await read_messages(self._threads.agent, self.session_id)
        return found is not None and all(message.uuid != prompt_id for message in found)

    async def read_history(self) -> list[PastTurn]:
        """Return the turns of the conversation, oldest first; the last one may still be running.

        Raises:
            FrontEndError: the transcript is on another machine.
        """
        found = await read_messages(self._threads.agent, self.session_id)
        if found is None:
            raise FrontEndError(
                "the transcripts of this agent are on another machine; give it a `session_store`", code="unsupported"
            )
        turns, turn = read_turns(found), self.turn
        if turn is None:
            return turns
        place = next((at for at, each in enumerate(turns) if each.id == turn.id), len(turns))
        return [*turns[:place], PastTurn(turn.id, turn.content, list(turn.log))]

    async def _start_session(self, tools: Sequence[Mapping[str, Any]], has_history: bool) -> Session:
        try:
            await self._threads.make_room(self)  # sets `is_starting`
            return await self._start_child(tools, has_history)
        finally:
            self.is_starting = False
            self._threads.notify_waiting()

    async def _start_child(self, tools: Sequence[Mapping[str, Any]], has_history: bool) -> Session:
        settings = self._threads.make_settings([self._make_tool(tool) for tool in tools])
        ways = ("resume", "session_id") if has_history else ("session_id", "resume")
        for is_last, way in enumerate(ways):
            values: dict[str, Any] = {**settings, way: self.session_id}
            session = self._threads.agent.session(**values)
            try:
                return await session.start()
            except (SessionNotFoundError, ProcessError) as error:
                await session.close()
                if is_last or not isinstance(error, SessionNotFoundError | SessionExistsError):
                    raise
        raise AssertionError

    def _make_tool(self, tool: Mapping[str, Any]) -> Tool[..., Any]:
        async def call_front_end(arguments: dict[str, Any], context: ToolContext) -> Any:
            call = self.client_calls[context.tool_use_id or ""] = ClientCall()
            try:
                return await call.wait()
            finally:
                self.client_calls.pop(context.tool_use_id or "", None)

        schema: Any = tool.get("parameters") or {"type": "object", "properties": {}}
        return Tool(
            call_front_end,
            name=str(tool.get("name", "")),
            description=str(tool.get("description") or tool.get("name")),
            schema=schema,
        )

    async def leave(self) -> None:
        """Note that a request has ended; the child ends after a while without another one."""
        self.used_at = time.monotonic()
        self._threads.close_later(self)
        self._threads.notify_waiting()

    async def close(self) -> None:
        """End the child. The next turn resumes the conversation. Idempotent."""
        with anyio.CancelScope(shield=True):
            if self.turn is not None and not self.turn.is_finished:
                await self.turn.stop()
            session, self.session = self.session, None
            if session is not None:
                await session.close()
        self._threads.notify_waiting()


class Threads:
    """The conversations of front ends with one agent. Routes make one; make it yourself to share or close it.

    A thread's session has an id that follows from the ids of the thread and its owner, so that the conversation goes
    on after a restart, and in another process that has the same transcripts (or the same `session_store`). Nothing
    that a front end sends selects another session.

    Args:
        agent: the agent; permissions that it does not decide wait for the front end. It loads the settings of the
            user alone, unless it has the option `setting_sources`.
        max_sessions: children at a time. Default 16. A request for which there is none waits up to 30 seconds. A user
            whom the application names (`get_owner` of a route) has no more than three quarters of them.
        idle_seconds: until the child of an idle thread ends. Default 300.
        ask_seconds: until what waits for the front end is denied. Default one hour.
        **settings: options that win over those of the agent.

    Raises:
        UsageError: settings that cannot work, or no sessions at all.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        max_sessions: int = 16,
        idle_seconds: float = 300.0,
        ask_seconds: float = 3600.0,
        **settings: Any,
    ) -> None:
        if max_sessions < 1:
            raise UsageError(f"max_sessions: expected a number above 0, got {max_sessions}")
        self.agent = agent.with_options(**settings) if settings else agent
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._asks = Asks(timeout=ask_seconds)
        self._threads: dict[str, Thread] = {}
        self._waiting: list[Thread] = []
        self._changed: anyio.Event | None = None  # made by the first thread that waits
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, thread_id: str, owner: Owner = OPERATOR) -> Thread:
        """Return the thread with this id; the same id of another owner is another conversation."""
        thread = Thread(self, thread_id, owner)
        thread = self._threads.setdefault(thread.session_id, thread)
        self.close_later(thread)
        return thread

    def make_settings(self, client_tools: list[Tool[..., Any]]) -> dict[str, Any]:
        """Return the options of a session with these tools of the front end."""
        options = self.agent.options
        settings: dict[str, Any] = {"partial_messages": True, "transport": ConfinedTransports(self.agent)}
        if options.can_use_tool is None and options.confirm is None and options.asks is None:
            settings["asks"] = self._asks
        if "verbatim_prompts" not in options:  # a text from a web page reads no file and runs no command
            settings["verbatim_prompts"] = True
        if "until" not in options:  # what sub-agents in the background ask has to be seen
            settings["until"] = "idle"
        if client_tools:
            names = [f"{CLIENT_TOOL_PREFIX}{tool.name}" for tool in client_tools]
            settings["custom_tools"] = [*(options.custom_tools or ()), *client_tools]
            settings["tool_bridge"] = "deferred"
            settings["allowed_tools"] = [*(options.allowed_tools or ()), *names]
        return settings

    async def make_room(self, thread: Thread) -> None:
        """Wait until a thread may start a child, and mark it as starting; raises FrontEndError if it may not in time.

        An idle child is ended for it. Threads wait in their order, unless their owner has no share left.
        """
        self._waiting.append(thread)
        try:
            with anyio.move_on_after(QUEUE_SECONDS):
                while not await self._try_make_room(thread):
                    self._changed = self._changed or anyio.Event()
                    with anyio.move_on_after(ROOM_CHECK_SECONDS):
                        await self._changed.wait()
        finally:
            self._waiting.remove(thread)
        if not thread.is_starting:
            raise FrontEndError(f"all {self._max_sessions} sessions are busy; try again later", code="limit")

    def notify_waiting(self) -> None:
        """Let threads that wait look for room again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _try_make_room(self, thread: Thread) -> bool:
        found = self._find_first_with_room()
        if found is None or found[0] is not thread:
            return False
        thread.is_starting = True
        for idle in found[1]:
            await idle.close()
        return True

    def _find_first_with_room(self) -> tuple[Thread, list[Thread]] | None:
        """Return the first thread that waits and may start a child, and what `_find_room` says of it."""
        without_room: set[Owner] = set()
        for thread in self._waiting:
            if thread.is_starting or thread.owner in without_room:
                continue
            if (ended := self._find_room(thread)) is not None:
                return thread, ended
            without_room.add(thread.owner)
        return None

    def _find_room(self, thread: Thread) -> list[Thread] | None:
        """Return which idle child has to end before a thread may start one: none, or one; None if that is no help."""
        running = [each for each in self._threads.values() if each.session is not None or each.is_starting]
        used, shares = Counter(each.owner for each in running), Shares(self._max_sessions, None)
        if shares.has_room(thread.owner, used):
            return []
        idle = [each for each in running if not (each.is_starting or each.is_busy or each.lock.locked())]
        for each in sorted(idle, key=lambda each: (-used[each.owner], each.used_at)):
            if shares.has_room(thread.owner, used - Counter([each.owner])):
                return [each]
        return None

    def close_later(self, thread: Thread) -> None:
        """End the thread's child after `idle_seconds` without a request. On trio, `make_room` alone ends children."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if (timer := self._timers.pop(thread.session_id, None)) is not None:
            timer.cancel()
        self._timers[thread.session_id] = loop.call_later(self._idle_seconds, self._close_if_idle, thread)

    def _close_if_idle(self, thread: Thread) -> None:
        self._timers.pop(thread.session_id, None)
        turn = thread.turn
        if thread.lock.locked() or (turn is not None and (turn.readers or turn.is_read_on or turn.is_waiting)):
            return self.close_later(thread)
        self._threads.pop(thread.session_id, None)
        task = asyncio.get_running_loop().create_task(thread.close())
        self._closing.add(task)
        return task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """End all children. Idempotent."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for thread in list(self._threads.values()):
            await thread.close()
        self._threads.clear()


async def _take_back(session: Session, target: str, last: str) -> str | None:
    """Let the CLI forget what came from a prompt on, if the last prompt is the one given; return why it does not."""
    done = await session.control("rewind_conversation", target_message_uuid=target, last_seen_user_message_uuid=last)
    return None if done.get("rewound") is True else str(done.get("reason") or done.get("error") or "refused")


def settle(approval: Ask, answer: Any, *, by: str = "front end") -> None:
    """Settle an approval with what a front end sent. What is not a clear yes is a no.

    An approval that was settled elsewhere, or too late, stays as it is: the events of the turn say how.

    Args:
        approval: what it settles.
        answer: True or False, or an object: `approved` with `editedArgs` or `always`, and `reason`; `answers` for
            questions; `content` for the form of a server; `feedback` for a plan. None: no.
        by: who settles it.

    Raises:
        UsageError: the answer does not fit; the approval waits on.
    """
    with suppress(AskSettledError):
        _settle(approval, answer, by)


def _settle(approval: Ask, answer: Any, by: str) -> None:
    given = cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {"approved": answer}
    if approval.kind == "question" and given.get("answers"):
        return approval.answer(given["answers"], by=by)
    if approval.kind == "elicitation" and isinstance(given.get("content"), Mapping):
        return approval.answer(given["content"], by=by)
    if approval.kind == "plan" and given.get("feedback"):
        return approval.answer(str(given["feedback"]), by=by)
    if given.get("approved") is not True or approval.kind == "question":
        return approval.deny(str(given.get("reason") or ""), by=by)
    edited = given.get("editedArgs")
    if edited is not None and not isinstance(edited, Mapping):
        raise FrontEndError(f"editedArgs: expected an object, got {type(edited).__name__}")
    return approval.allow(updated_input=cast("Any", edited), always=given.get("always") is True, by=by)
