"""Conversations of front ends: each thread is a session of an agent, each turn a list of events that grows.

Owns which session belongs to a thread, how long its child lives, and what a turn waits for: asks, and calls of tools
that run in the front end. Knows no protocol. A request reads the turn; when another one comes later, it reads on.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from pilothouse.client import Agent, Query, Session
from pilothouse.errors import (
    AskSettledError,
    PilothouseError,
    ProcessError,
    SessionExistsError,
    SessionNotFoundError,
    UsageError,
)
from pilothouse.events import Finished, PermissionAsked, PermissionSettled, QueryEvent
from pilothouse.permissions import Ask, Asks
from pilothouse.tools import Tool, ToolContext, ToolError

log = logging.getLogger("pilothouse.integrations")

GATHER_SECONDS = 0.25
"""A turn that waits for the front end is shown as waiting after so long without an event."""
STOP_SECONDS = 10.0
"""For an interrupted turn to end by itself."""
CHECK_SECONDS = 0.5
"""Between two looks at whether the front end has to run a tool: there is no event for that."""
CLIENT_TOOL_PREFIX = "mcp__tools__"
_NAMESPACE = uuid.UUID("5f0c6a86-6f5e-4c0e-9f0e-3a8f0c1d2b77")
_WENT_ON = "the user went on without deciding"


class FrontEndError(UsageError):
    """A request of a front end cannot be served. `.code` says why: "bad_request", "busy", "limit"."""

    def __init__(self, message: str, *, code: str = "bad_request") -> None:
        super().__init__(message)
        self.code = code


class Turn:
    """One prompt being answered: its events so far, and what it waits for. Made by `Thread.start_turn`.

    `shown` is how many of the events front ends have got; `failure` is what ended it without a result.
    """

    def __init__(self, query: Query[Any], thread: Thread) -> None:
        self.log: list[QueryEvent] = []
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
        """The asks that wait and whose event is in the log."""
        session = self._thread.session
        if session is None or session.options.asks is None or not self._asked:
            return []
        return [ask for ask in session.asks if ask.id in self._asked]

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on only when the front end answers."""
        return not self.is_finished and bool(self.asks or self._thread.client_calls)

    @property
    def is_read_on(self) -> bool:
        """Whether it goes on without a request."""
        return self._reader is not None and not self._reader.done()

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

    def __init__(self, threads: Threads, thread_id: str, owner: str) -> None:
        self.id = thread_id
        self.session_id = str(uuid.uuid5(_NAMESPACE, f"{len(owner)}:{owner}:{thread_id}"))
        self.session: Session | None = None
        self.is_starting = False
        self.turn: Turn | None = None
        self.client_calls: dict[str, ClientCall] = {}
        self.lock = anyio.Lock()
        self.used_at = time.monotonic()
        self._threads = threads
        self._tools: tuple[str, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits for the front end."""
        return self.turn is not None and not self.turn.is_finished

    async def start_turn(self, prompt: Any, tools: Sequence[Mapping[str, Any]] = (), *, has_history: bool) -> Turn:
        """Send a prompt; what the thread waits for is given up. Raises FrontEndError if another request reads a turn.

        If `has_history`, the conversation has begun earlier, perhaps in another process.
        """
        if self.turn is not None and self.is_busy:
            if (self.turn.readers or self.turn.is_read_on) and not self.turn.is_waiting:
                raise FrontEndError(f"thread {self.id!r} is answering another request; wait or stop it", code="busy")
            for ask in self.turn.asks:
                ask.deny(_WENT_ON, by="front end")
            await self.turn.stop()
        names = tuple(repr(sorted(tool.items(), key=str)) for tool in tools)
        if self.session is not None and names != self._tools:
            await self.close()
        if self.session is None:
            self._tools = names
            self.session = await self._start_session(tools, has_history)
        turn = Turn(self.session.query(prompt), self)
        await turn.start()
        self.turn = turn
        return turn

    async def _start_session(self, tools: Sequence[Mapping[str, Any]], has_history: bool) -> Session:
        self.is_starting = True
        try:
            await self._threads.make_room(self)
            return await self._start_child(tools, has_history)
        finally:
            self.is_starting = False

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

    async def close(self) -> None:
        """End the child. The next turn resumes the conversation. Idempotent."""
        with anyio.CancelScope(shield=True):
            if self.turn is not None and not self.turn.is_finished:
                await self.turn.stop()
            session, self.session = self.session, None
            if session is not None:
                await session.close()


class Threads:
    """The conversations of front ends with one agent. Routes make one; make it yourself to share or close it.

    A thread's session has an id that follows from the ids of the thread and its owner, so that the conversation goes
    on after a restart, and in another process that has the same transcripts (or the same `session_store`). Nothing
    that a front end sends selects another session.

    Args:
        agent: the agent; permissions that it does not decide wait for the front end.
        max_sessions: children at a time. Default 16.
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
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, thread_id: str, owner: str = "") -> Thread:
        """Return the thread with this id; the same id of another owner is another conversation."""
        thread = Thread(self, thread_id, owner)
        thread = self._threads.setdefault(thread.session_id, thread)
        self.close_later(thread)
        return thread

    def make_settings(self, client_tools: list[Tool[..., Any]]) -> dict[str, Any]:
        """Return the options of a session with these tools of the front end."""
        options = self.agent.options
        settings: dict[str, Any] = {"partial_messages": True}
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
        """End the child that was idle for longest, if there are too many; raises FrontEndError if none is idle."""
        others = [each for each in self._threads.values() if each is not thread]
        if sum(each.session is not None or each.is_starting for each in others) < self._max_sessions:
            return
        unused = [each for each in others if each.session is not None and not (each.is_busy or each.lock.locked())]
        idle = sorted(unused, key=lambda each: each.used_at)
        if not idle:
            raise FrontEndError(f"all {self._max_sessions} sessions are busy; try again later", code="limit")
        await idle[0].close()

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


def settle(ask: Ask, answer: Any, *, by: str = "front end") -> None:
    """Settle an ask with what a front end sent. What is not a clear yes is a no.

    An ask that was settled elsewhere, or too late, stays as it is: the events of the turn say how.

    Args:
        ask: the ask.
        answer: True or False, or an object: `approved` with `editedArgs`, `always` and `reason`; `answers` for
            questions; `content` for the form of a server; `feedback` for a plan. None: no.
        by: who settles it.

    Raises:
        UsageError: the answer does not fit; the ask waits on.
    """
    with suppress(AskSettledError):
        _settle(ask, answer, by)


def _settle(ask: Ask, answer: Any, by: str) -> None:
    given = cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {"approved": answer}
    if ask.kind == "question" and given.get("answers"):
        return ask.answer(given["answers"], by=by)
    if ask.kind == "elicitation" and isinstance(given.get("content"), Mapping):
        return ask.answer(given["content"], by=by)
    if ask.kind == "plan" and given.get("feedback"):
        return ask.answer(str(given["feedback"]), by=by)
    if given.get("approved") is not True or ask.kind == "question":
        return ask.deny(str(given.get("reason") or ""), by=by)
    edited = given.get("editedArgs")
    if edited is not None and not isinstance(edited, Mapping):
        raise FrontEndError(f"editedArgs: expected an object, got {type(edited).__name__}")
    return ask.allow(updated_input=cast("Any", edited), always=given.get("always") is True, by=by)
