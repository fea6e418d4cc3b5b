"""`Session`: a conversation with one child, over many queries.

Owns who may talk, and the restart after a crash. The child belongs to a task of the driver, so a session may be
started, used and closed from any task of the loop.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
from msgspec.structs import replace

from pilothouse.client.bookkeeping import Books
from pilothouse.client.controls import Controls
from pilothouse.client.costs import Costs
from pilothouse.client.house import house_of, started_with
from pilothouse.client.lineage import Lineage
from pilothouse.client.live import LiveSettings, changes_of
from pilothouse.client.outcome import refusal
from pilothouse.client.plan import limits_of, transport_of
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage, Query
from pilothouse.client.replies import InterruptReceipt, typed
from pilothouse.driver import Continuation, Prompts, caller_into_loop, spawn
from pilothouse.driver.conversation import Conversation
from pilothouse.driver.listeners import Listener, Listeners
from pilothouse.driver.turn import Turn
from pilothouse.errors import OptionsError, PilothouseError, SessionClosedError, SessionNotFoundError, UsageError
from pilothouse.options import Options, Settings, render
from pilothouse.transports import Health

if TYPE_CHECKING:
    from pilothouse.client.rate_gate import RateGate
    from pilothouse.options import OptionsBuilder
    from pilothouse.transports.private_home import PrivateHome

State = Literal["new", "starting", "idle", "running", "broken", "closed"]

RESTORE_SECONDS = 5.0  # to set back what a query had changed


class Session(Controls):
    """A conversation with one child. Made by `session()` and `Agent.session()`.

    ::

        async with agent.session() as session:      # the child runs, or the error is raised here
            await session.query("My name is Alice")
            answer = await session.query("What is my name?")

    Queries are answered one after the other, in the order in which they were started, and each gets its own messages
    only; any task may ask. A query that is left early is stopped, and the session goes on. When the child dies, the
    query that it answered fails, and the next one starts a new child that resumes the conversation (`restart`).

    Raises:
        OptionsError: settings that cannot work; raised here, before anything is started.
    """

    def __init__(self, options: Options, *, gate: RateGate | None = None) -> None:
        self._conversation: Conversation | None = None  # first: `__del__` looks at it
        self._call: Callable[[Callable[[], object]], None] | None = None
        if options.prompt_via != "stdin":
            raise OptionsError("a session needs prompt_via='stdin'", option="prompt_via")
        self._options = options
        self._gate = gate
        self._lineage = Lineage(options)
        self._floor = anyio.Lock()
        self._starting = anyio.Lock(fast_acquire=True)
        self._books = Books(options)
        self._live: LiveSettings | None = None
        self._loop: object = None
        self._turn: Turn | None = None
        self._queue: list[Turn] = []
        self._closed = False
        house = house_of(options)  # a mistake is told before anything is started
        self._bridge = None if house is None else house.bridge
        self._home = _home_of(options)
        render(self._child_options(), {})

    def __repr__(self) -> str:
        return f"<Session {self.id or 'without an id'}: {self.state}>"

    # What it is.

    @property
    def id(self) -> str | None:
        """Id of the conversation; known from the start, but for `continue_latest`. `clear` gives it a new one. (E28)"""
        heard = self._conversation.session_id if self._conversation is not None else None
        return heard or self._lineage.id

    @property
    def options(self) -> Options:
        """The settings that it runs with."""
        return self._options

    @property
    def state(self) -> State:
        """Where it is in its life. (E16)"""
        if self._closed:
            return "closed"
        conversation = self._conversation
        if conversation is None:
            return "new"
        if conversation.over:
            return "broken"
        if not conversation.has_started:
            return "starting"
        return "running" if self._turn is not None or conversation.is_working else "idle"

    def health(self) -> Health:
        """Whether it can be asked, and if not, why. (E33)"""
        if self._closed:
            return Health("unhealthy", "closed")
        return Health("unhealthy", "not started") if self._conversation is None else self._conversation.health()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none, or when it is not a local process. (E13)"""
        transport = self._conversation.transport if self._conversation is not None else None
        return getattr(transport, "pid", None)

    @property
    def server_info(self) -> Mapping[str, Any]:
        """What the CLI said of itself in the handshake: commands, agents, models, account, version. (G14)"""
        return self._conversation.server_info if self._conversation is not None else {}

    @property
    def restarts(self) -> int:
        """How often a new child had to take over. (E69)"""
        return self._books.restarts

    @property
    def waiting(self) -> int:
        """How many queries wait for their turn. (E16)"""
        return sum(turn is not self._turn for turn in self._queue)

    @property
    def costs(self) -> Costs:
        """What it has cost so far, turn by turn and model by model; what was resumed is not in it."""
        return self._books.ledger.costs

    # Start and end.

    async def start(self) -> Self:
        """Start the child now, and wait until it has answered the handshake. Queries start it by themselves. (E22, E23)

        Raises:
            ProcessError: it could not be started.
            SessionNotFoundError: there is no conversation with the id to resume.
            ControlError, ControlTimeout: a server that `wait_for_mcp` waits for is not connected, or not in time.
            SessionClosedError: the session was closed.
        """
        await self._alive()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session and wait until the child is gone. Idempotent, bounded, from any task. (E35, G22)

        A query that is being answered is stopped and fails with `SessionClosedError`, and so do those that wait.
        """
        self._closed = True
        if self._loop is not None:
            self._check_loop()
        turn, conversation = self._turn, self._conversation
        with anyio.CancelScope(shield=True):
            try:
                if turn is not None:
                    turn.stop()
                    await turn.finished()
            finally:  # also when `Task.cancel` of asyncio came through the shield
                if conversation is not None:
                    await conversation.close()
            home, self._home = self._home, None
            if home is not None:
                await anyio.to_thread.run_sync(home.leave)
        self._books.end()

    async def aclose(self) -> None:
        """The same as `close`, for `contextlib.aclosing`."""
        await self.close()

    def __del__(self) -> None:
        conversation = self._conversation
        if conversation is not None and self._call is not None and not conversation.over:
            self._call(partial(_drop, conversation, self._books))

    # Asking.

    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query:
        """Ask in this conversation. Waits for its turn when it is awaited or read. (E19)

        Args:
            prompt: as for `Agent.query`.
            options: settings for this query alone. `model`, `permission_mode` and `max_thinking_tokens` are set
                before it and set back after it; settings of pilothouse, such as `timeout`, hold for it; others are
                fixed while the child runs.
            on_message: as for `Agent.query`.
            output_type: as for `Agent.query`; the session must have been made with its schema as `json_schema`.
            **overrides: single settings that win over `options`.

        Raises:
            OptionsError: a setting that cannot change in a session.
            SessionClosedError: the session was closed.
        """
        self._check_open()
        own = options.build() if options is not None and not isinstance(options, Options) else options or Options()
        call = Options.stack(own, Options.layer(**overrides), whole=False).labelled("call")
        changes = changes_of(call, self._options)
        settings = self._options.merge(call)
        if output_type is not None:
            settings = self._with_output(settings, output_type)
        return self._ask(prompt, settings, changes, on_message=on_message, output_type=output_type)

    def _with_output(self, settings: Options, output_type: Any) -> Options:
        from pilothouse.client.output import ExpectedOutput  # most queries do without

        if ExpectedOutput.of_type(output_type).schema != settings.json_schema:
            raise OptionsError(
                "output_type: the CLI takes a schema only when it starts; make the session with the json_schema of "
                "this type, or ask with `query()`",
                option="output_type",
            )
        return settings.with_(json_schema=None)  # the query makes it again, and knows the type

    def _ask(self, prompt: Prompt, settings: Options, changes: Mapping[str, Any], **how: Any) -> Query:
        def make_run(final: Options, prompts: Prompts, continuation: Continuation | None) -> Turn:
            enter = partial(self._talking, changes, continuation=continuation)
            return Turn(enter, prompts, limits_of(final), continuation, wants_partial=final.partial_messages)

        shared: dict[str, Any] = {"bridge": self._bridge, "ledger": self._books.ledger, "gate": self._gate}
        return Query(prompt, settings, make_run=make_run, **shared, **how)

    @asynccontextmanager
    async def _talking(
        self, changes: Mapping[str, Any], turn: Turn, continuation: Continuation | None = None
    ) -> AsyncGenerator[Conversation]:
        self._queue.append(turn)
        try:
            async with self._floor:  # first come, first served
                with self._books.turn(continuation):
                    async with self._held(turn, changes) as conversation:
                        yield conversation
        finally:
            self._queue.remove(turn)

    @asynccontextmanager
    async def _held(self, turn: Turn, changes: Mapping[str, Any]) -> AsyncGenerator[Conversation]:
        self._turn = turn  # it may be held back for long, and can be stopped meanwhile
        try:
            await turn.admitted()
        finally:
            self._turn = None
        conversation = await self._alive()
        self._turn = turn
        try:
            conversation = await self._prepared(conversation, changes)
            self._lineage.begin()
            yield conversation
        finally:
            self._turn = None
            if turn.result is not None:
                self._lineage.save(conversation.session_id)
            if changes and not conversation.over:
                await self._set_back()

    async def _prepared(self, conversation: Conversation, changes: Mapping[str, Any]) -> Conversation:
        try:
            await self._live_settings.have(self._options, changes)
        except PilothouseError:
            if not conversation.over or self._closed:
                raise
            conversation = await self._alive()  # it went away before the prompt was sent
            await self._live_settings.have(self._options, changes)
        return conversation

    async def _set_back(self) -> None:
        # What cannot be set back now is so before the next query, which fails when it cannot be then either.
        with anyio.move_on_after(RESTORE_SECONDS, shield=True), suppress(PilothouseError):
            await self._live_settings.have(self._options, {})

    @property
    def _live_settings(self) -> LiveSettings:
        assert self._live is not None
        return self._live

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the session is closed; make a new one, with resume= to go on")

    def _check_loop(self) -> None:
        loop = anyio.lowlevel.current_token().native_token
        if self._loop not in (None, loop):
            raise UsageError("a session stays on the event loop that it was started on; make another with resume=")
        self._loop = loop

    # The child.

    async def _alive(self) -> Conversation:
        """The conversation, with a child that runs.

        Raises:
            PilothouseError: it cannot be started.
        """
        self._check_loop()
        async with self._starting:
            before = self._conversation
            if before is not None and self._turn is None:
                await before.look()  # nothing was said to it yet, so that nothing is said twice
            if before is not None and before.over:
                await before.finished()
            self._check_open()
            if before is not None and not before.over:
                return before
            crashed = before if before is not None and before.has_started else None
            if crashed is not None and self._options.restart == "never":
                raise crashed.failure or SessionClosedError("the child has ended, and restart='never'")
            try:
                conversation = await self._launch()
            except SessionNotFoundError:
                if not self._lineage.fall_back():
                    raise
                conversation = await self._launch()  # the child before had died before it saved anything
            if crashed is not None:
                self._books.restarted(self.id, crashed.failure)
            return conversation

    async def _launch(self) -> Conversation:
        options, before = self._child_options(), self._conversation
        # Not kept alive by what it offers.
        invocation, host = started_with(options, house_of(options, weakref.proxy(self), self._bridge))
        invocation, host = self._books.launched(invocation, host)
        invocation = replace(invocation, home=self._home)  # the next child finds there what this one has kept
        conversation = self._conversation = Conversation(
            transport_of(options),
            invocation,
            limits_of(options),
            listeners=self._books,
            refused=refusal,
            host=host,
        )
        conversation.session_id = self._lineage.id
        conversation.says_lifecycle = before is not None and before.says_lifecycle  # it is the same CLI
        self._call = caller_into_loop()
        spawn(conversation.run, "pilothouse session")
        try:
            await conversation.start()
        except BaseException:
            conversation.stop()
            with anyio.CancelScope(shield=True):
                await conversation.finished()
            raise
        self._live = LiveSettings(options, conversation)
        return conversation

    def _child_options(self) -> Options:
        options = self._books.within_budget(self._lineage.child(self._options))
        if options.isolation is not None and options.as_dict().get("persist_session") is None:
            options = options.with_(persist_session=True)  # in the home of the session, which goes with it
        if options.as_dict().get("partial_messages") is None:
            options = options.with_(partial_messages=True)  # for `text_stream`; queries that do not want them get none
        return options

    async def _wait_idle(self) -> None:
        while True:
            while self._queue:
                async with self._floor:  # those that came before have been answered
                    await anyio.lowlevel.checkpoint()
            conversation = self._conversation
            if conversation is not None:
                await conversation.wait_idle()
            if not self._queue:
                return

    # Everything else that can be asked.

    def messages(self) -> Listener:
        """Everything the child says from now on, across queries, turns that it starts by itself included. (G16)

        Iterate over it; `aclose` stops listening, and it ends when the session does. One that is not read makes the
        child wait, once 8 MiB are unread. When a new child has taken over after a crash, a `SystemMessage` of the
        subtype "session_restarted" says so, with the `reason` in its `raw`.
        """
        return self._books.add()

    async def control(self, subtype: str, /, **body: Any) -> Mapping[str, Any]:
        """Send any control request and return its answer. Starts the child if need be. (R9, G30)

        Args:
            subtype: of the request, such as "get_settings".
            **body: its other keys, as they stand on the wire.

        Raises:
            ControlError: the CLI refused; `.code` says why.
            ControlTimeout: no answer within `control_timeout`.
        """
        return await (await self._alive()).request(subtype, body)

    async def interrupt(self, *, cancel_queued: bool = False) -> InterruptReceipt:
        """Stop what the child is at. Returns at once when it is idle. (R17, E34)

        Args:
            cancel_queued: also take out prompts that wait inside the CLI.
        """
        turn, conversation = self._turn, self._conversation
        if turn is not None and (turn.goes_on or turn.is_held or not cancel_queued):
            await turn.interrupt()
        if conversation is None or conversation.over:
            return InterruptReceipt()
        if not (conversation.is_working if turn is None else cancel_queued):
            return InterruptReceipt()
        body = {"cancel_queued": True} if cancel_queued else {}
        return typed(InterruptReceipt, await conversation.request("interrupt", body))

    async def set_model(self, model: str | None) -> str | None:
        """Use another model from the next turn on; None: the default one. Returns its full name. (R18, G29)"""
        return (await self._set("model", model)).get("model")

    async def set_permission_mode(self, mode: str) -> str | None:
        """Change what happens when a tool needs permission. Returns the mode as the CLI names it.

        Raises:
            OptionsError: there is no such mode.
            ControlError: `.code` is "bypass_not_launched": it needs `allow_dangerously_skip_permissions`.
        """
        return (await self._set("permission_mode", mode)).get("mode")

    async def set_max_thinking_tokens(self, tokens: int | None) -> None:
        """Change the thinking budget, on models that have one; None: the default."""
        await self._set("max_thinking_tokens", tokens)

    async def _set(self, name: str, value: Any) -> Mapping[str, Any]:
        options = self._options.with_(**cast("Settings", {name: value}))
        await self._alive()
        answer = await self._live_settings.set(name, value)
        self._options = options
        return answer

    async def clear(self) -> str | None:
        """Begin a fresh conversation in the same child; what was said is forgotten. Returns the new id. (E29)"""
        self._check_open()
        # Neither verbatim, which would make it a prompt, nor with an output, which it has not.
        settings = self._options.with_(verbatim_prompts=None, json_schema=None)
        (await self._ask("/clear", settings, {})).raise_for_error()
        self._lineage.clear(self.id)
        return self.id

    def fork(self, **overrides: Unpack[Settings]) -> Session:
        """A new session that begins with what was said in this one, which stays as it is. (E30, L60)

        What was said is what the CLI has written to disk when the fork starts; an answer under way is not in it.

        Args:
            **overrides: settings of the new one that differ.

        Raises:
            UsageError: nothing was said yet, or `persist_session` is off.
        """
        self._lineage.id = self.id
        forked = Session(self._lineage.fork(self._options).merge(Options.layer(**overrides)), gate=self._gate)
        if self._home is not None and forked._home is not None:
            forked._home = self._home.share()  # what was said stands there
        return forked


def _home_of(options: Options) -> PrivateHome | None:
    if options.isolation is None:
        return None
    from pilothouse.transports.private_home import PrivateHome  # few sessions have one

    return PrivateHome()


def _drop(conversation: Conversation, listeners: Listeners) -> None:
    """Nobody holds the session any more."""
    conversation.stop()
    listeners.end()
