"""`Session`: a conversation with one child, over many queries.

It decides the order of queries, and what a query may change during its turn. The child belongs to a task of the
engine; `child_supervisor` starts a new one after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import anyio
import anyio.lowlevel

from pilothouse.client.child_supervisor import SESSION_CHILD, ChildOptions, ChildSupervisor
from pilothouse.client.controls import (
    MCP_CALL,
    AccountInfo,
    InfoControls,
    InterruptResult,
    McpControls,
    RewindResult,
    SettingsControls,
    TaskControls,
    check_can_call,
    to_result,
)
from pilothouse.client.costs import SessionCost
from pilothouse.client.custom_tools import make_custom_tools
from pilothouse.client.handlers import REPLACEABLE_OPTIONS, make_handlers
from pilothouse.client.launch import make_launch, make_limits
from pilothouse.client.logins import ClaudeLogin, LoginAccount, begin_claude_login
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import LateWords, OnMessage, Query, SessionContext, Steering, SteerTime, check_choices
from pilothouse.client.result import OutputT
from pilothouse.client.session_settings import RuntimeSettings, split_settings, with_thinking_display
from pilothouse.client.structured_output import OutputSchema, make_output_validator
from pilothouse.engine import Prompts
from pilothouse.engine.child import ChildRun
from pilothouse.engine.failures import self_wait_error
from pilothouse.engine.router import MessageSubscription
from pilothouse.engine.run import QueryPlace, QueryRun
from pilothouse.engine.turn import Phase
from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.options import Invocation, Options, Settings
from pilothouse.options.isolation import IsolationReport, isolation_report
from pilothouse.options.options import make_layer, show_options
from pilothouse.permissions.approvals import AskView
from pilothouse.tracebacks import hide_arguments, user_class
from pilothouse.transports import Health

if TYPE_CHECKING:
    from pilothouse.client.middleware import Middleware
    from pilothouse.client.retry import SharedRateLimits
    from pilothouse.options import OptionsBuilder


SessionState = Literal["new", "starting", "idle", "running", "broken", "closed"]

RESTORE_SECONDS = 5.0  # to restore what a query had changed


@user_class
class Session:
    """A conversation with one child. Made by `session()` and `Agent.session()`.

    ::

        async with agent.session() as session:      # the child runs, or the error is raised here
            await session.query("My name is Alice")
            answer = await session.query("What is my name?")

    Queries are answered one after the other, in the order in which they were started, and each gets its own messages
    only; any task may start one. A query that is left early is stopped, and the session goes on. When the child dies,
    its current query fails, and the next one starts a new child that resumes the conversation (`restart`).

    Raises:
        OptionsError: settings that cannot work; raised here, before anything is started.
    """

    def __init__(self, options: Options, *, rate_limits: SharedRateLimits | None = None) -> None:
        self._supervisor = ChildSupervisor(options, self)
        self._monitor = self._supervisor.monitor
        self._rate_limits = rate_limits
        self._child_lock = anyio.Lock()
        self._active: QueryRun | None = None
        self._child_options = SESSION_CHILD  # of the query that holds the child
        self._queue: list[QueryRun] = []

    def __repr__(self) -> str:
        return f"<Session {self.id or 'without an id'}: {self.state}>"

    # Properties.

    @property
    def id(self) -> str | None:
        """Id of the conversation; `clear` gives it a new one.

        Known before the start, except with `continue_latest`, or with a `Pool` that may have a child with its own id.
        """
        return self._supervisor.id

    @property
    def options(self) -> Options:
        """The settings of the session."""
        return self._supervisor.options

    @property
    def _child(self) -> ChildRun | None:
        return self._supervisor.child

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        if self._supervisor.is_closed:
            return "closed"
        child = self._child
        if child is None:
            return "new"
        if child.is_closing_or_closed:
            return "starting" if self._supervisor.is_starting else "broken"
        if not child.has_started:
            return "starting"
        return "running" if self._active is not None or child.activity.is_in_turn else "idle"

    def health(self) -> Health:
        """Whether the session can take a query, and if not, why."""
        if self._supervisor.is_closed:
            return Health("unhealthy", "closed")
        if self._child is None:
            return Health("unhealthy", "not started")
        health = self._child.health()
        if self._child.router.is_behind and health.state == "healthy":
            return Health("degraded", "messages are not read, so they wait on disk")
        return health

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none, or when it is not a local process."""
        return None if self._child is None else self._child.transport.facts.pid

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The initialize response of the CLI: commands, agents, models, account, version."""
        return self._child.server_info if self._child is not None else {}

    @property
    def restarts(self) -> int:
        """How often a new child took over after a crash."""
        return self._monitor.restarts

    @property
    def waiting(self) -> int:
        """How many queries wait for their turn."""
        return sum(run is not self._active for run in self._queue)

    @property
    def queries(self) -> list[Query[Any]]:
        """The queries that have not ended, in the order of their turns: the current one, then those that wait."""
        return [query for run in list(self._queue) if (query := run.get_query()) is not None]

    @property
    def costs(self) -> SessionCost:
        """What the session has cost so far, turn by turn and model by model; what was resumed is not included."""
        return self._monitor.costs.costs

    @property
    def asks(self) -> AskView:
        """The requests of this session that wait for somebody: permissions, questions, plans, elicitations.

        Raises:
            UsageError: the session was made without the option `asks`.
        """
        if self.options.asks is None:
            raise UsageError("this session keeps no approvals: make it with asks=ph.Asks()")
        return AskView(self.options.asks, self._supervisor, self)

    # Start and end.

    async def start(self) -> Self:
        """Start the child now, and wait for its initialize response. Queries start it automatically.

        Raises:
            ProcessError: the child could not be started.
            SessionNotFoundError: there is no conversation with the id to resume.
            ControlError, ControlTimeout: a server that `wait_for_mcp` waits for is not connected, or not in time.
            SessionClosedError: the session was closed.
        """
        await self._provide_child()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session and wait until the child is gone. Idempotent, bounded, from any task.

        The current query is stopped and fails with `SessionClosedError`, and so do those that wait.
        """
        self._supervisor.begin_close()
        run = self._active
        with anyio.CancelScope(shield=True):
            try:
                if run is not None:
                    run.stop()
                    await run.wait_finished()
            finally:  # also if `Task.cancel` of asyncio came through the shield
                await self._supervisor.close()
        if self.options.asks is not None:
            self.options.asks.condition.notify_all()

    async def aclose(self) -> None:
        """Do the same as `close`, for `contextlib.aclosing`."""
        await self.close()

    def __del__(self) -> None:
        if (children := getattr(self, "_supervisor", None)) is not None:  # missing if `__init__` failed
            children.drop()

    # Queries.

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: type[OutputT],
        **overrides: Unpack[Settings],
    ) -> Query[OutputT]: ...

    @overload
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]: ...

    @hide_arguments
    @show_options
    def query(
        self,
        prompt: Prompt,
        options: Options | OptionsBuilder | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query[Any]:
        """Send a prompt in this conversation. The query waits for its turn when it is awaited or read.

        Args:
            prompt: as for `Agent.query`.
            options: settings for this query alone. `model`, `permission_mode` and `max_thinking_tokens` are set
                before it and restored after it; settings of pilothouse, such as `timeout`, apply to it. For others,
                such as `system_prompt` or `max_turns`, a child of its own resumes the conversation. Background tasks
                end with their child. The next query or call that uses the child, such as `control`, `set_model` or
                `info`, has one with the settings of the session again.
            on_message: as for `Agent.query`.
            output_type: as for `Agent.query`; with a child of its own, unless the session has its schema as
                `json_schema`.
            **overrides: single settings that win over `options`.

        Returns:
            A `Query`; nothing is sent before it is used.

        Raises:
            OptionsError: a setting that cannot work, or that cannot differ for one query of a session, such as
                `session_id`, `cli` or `session_store`.
            SessionClosedError: the session was closed.
        """
        self._supervisor.check_open()
        call = make_layer(overrides, "call", options)
        changes, needs_child = split_settings(call, self.options)
        settings = self.options.merge(call)
        if output_type is not None and "json_schema" not in call:
            schema = OutputSchema.from_type(output_type).schema
            if schema != self.options.json_schema:
                needs_child = needs_child.with_(json_schema=schema)
            settings = settings.with_(json_schema=None)  # the query sets it again, from the type
        child_options = self._supervisor.make_child_options(needs_child)
        return self._make_query(
            prompt, settings, changes, child_options, on_message=on_message, output_type=output_type
        )

    def _make_query(
        self,
        prompt: Prompt,
        settings: Options,
        changes: Mapping[str, Any],
        child_options: ChildOptions,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
    ) -> Query[Any]:
        def make_run(final: Options, prompts: Prompts, middlewares: Sequence[Middleware]) -> QueryRun:
            hold_child = partial(self._hold_child, changes, middlewares, child_options)
            get_next_child = partial(self._get_next_child, changes, child_options)
            place = QueryPlace(hold_child, get_next_child, self._check_caller)
            return QueryRun(place, prompts, make_limits(final), middlewares, wants_partial=final.partial_messages)

        return Query(
            prompt,
            settings,
            on_message=on_message,
            output_type=output_type,
            bridge=self._supervisor.get_bridge(child_options),
            rate_limits=self._rate_limits,
            session=SessionContext(make_run, self._monitor.costs, self.options.max_budget_tokens),
        )

    async def steer(
        self, content: str | Sequence[Any], *, when: SteerTime = "next", if_late: LateWords = "ask"
    ) -> Steering:
        """Give words to the turn that runs; see `Query.steer`. Without one, they are a query of their own.

        Args:
            content: as for `Query.steer`.
            when: as for `Query.steer`.
            if_late: as for `Query.steer`; "return" also when no turn runs.

        Returns:
            A `Steering`. If no turn ran, its `query` was started with the words: await or read it.

        Raises:
            SessionClosedError: the session was closed.
            UsageError: words that cannot be a prompt.
        """
        self._supervisor.check_open()
        check_choices(when=when, if_late=if_late)
        query = None if self._active is None else self._active.get_query()
        if query is not None:
            steering = await query.steer(content, when=when, if_late=if_late)
            if steering.was_sent:
                return steering
        if if_late == "return":
            return Steering(None)
        return Steering(await self.query(content).start())

    @asynccontextmanager
    async def _hold_child(
        self,
        changes: Mapping[str, Any],
        middlewares: Sequence[Middleware],
        child_options: ChildOptions,
        run: QueryRun,
    ) -> AsyncGenerator[ChildRun]:
        self._supervisor.check_loop()
        self._queue.append(run)
        try:
            async with self._child_lock:  # in order of arrival
                self._child_options = child_options
                try:
                    with self._monitor.current_query(middlewares):
                        async with self._prepare_child(run, changes, child_options) as child:
                            yield child
                finally:
                    self._child_options = SESSION_CHILD
        finally:
            self._queue.remove(run)

    @asynccontextmanager
    async def _prepare_child(
        self, run: QueryRun, changes: Mapping[str, Any], child_options: ChildOptions
    ) -> AsyncGenerator[ChildRun]:
        self._supervisor.check_open()  # `close` has stopped the query before, and knows nothing of this one
        self._active = run  # it may wait for long, and can be stopped meanwhile
        try:
            await run.wait_admitted()
        finally:
            self._active = None
        # Not active while it waits for its child: `close` ends that child, and an interrupt is for what that one does.
        child = await self._supervisor.provide_child(child_options, in_turn=False)
        await child.wait_for_turn_of_previous_client()
        self._active = run
        try:
            child = await self._apply_settings(child, changes, child_options)
            self._supervisor.resume_state.mark_prompt_sent()
            yield child
        finally:
            self._active = None
            child = run.child or child  # another one may have taken over
            if run.result is not None:
                self._supervisor.resume_state.mark_turn_saved(child.session_id)
            if changes and not child.is_closing_or_closed:
                # What cannot be restored now is restored before the next query, which fails if that fails too.
                with anyio.move_on_after(RESTORE_SECONDS, shield=True), suppress(PilothouseError):
                    await self._runtime_settings.apply(self.options, {})

    async def _get_next_child(self, changes: Mapping[str, Any], child_options: ChildOptions) -> ChildRun:
        child = await self._supervisor.provide_child(child_options, in_turn=True)
        return await self._apply_settings(child, changes, child_options)

    async def _apply_settings(
        self, child: ChildRun, changes: Mapping[str, Any], child_options: ChildOptions
    ) -> ChildRun:
        try:
            await self._runtime_settings.apply(self.options, changes)
        except PilothouseError:
            if not child.is_closing_or_closed or self._supervisor.is_closed:
                raise
            # It exited before the prompt was sent.
            child = await self._supervisor.provide_child(child_options, in_turn=True)
            await self._runtime_settings.apply(self.options, changes)
        return child

    @property
    def _runtime_settings(self) -> RuntimeSettings:
        assert self._supervisor.runtime_settings is not None
        return self._supervisor.runtime_settings

    async def _provide_child(self) -> ChildRun:
        """Return the child for a call beside the queries: that of the current one, if any."""
        return await self._supervisor.provide_child(self._child_options, in_turn=self._active is not None)

    def _check_caller(self) -> None:
        """Raise if the active query waits for the callback that calls this."""
        run, child = self._active, self._child
        by_child = child is not None and child.is_in_own_callback and (run is not None or child.activity.is_in_turn)
        if by_child or (run is not None and run.is_in_own_callback):  # a query runs some tools without the CLI
            raise self_wait_error()

    @asynccontextmanager
    async def _between_queries(self) -> AsyncGenerator[None]:
        self._check_caller()
        async with self._child_lock:
            yield

    async def _wait_idle(self) -> None:
        self._check_caller()
        while True:
            while self._queue:
                async with self._child_lock:  # until earlier queries have ended
                    await anyio.lowlevel.checkpoint()
            child = self._child
            if child is not None:
                await child.wait_idle()
            if not self._queue:
                return

    # Everything else.

    def messages(self) -> MessageSubscription:
        """Subscribe to every message of the child from now on, across queries.

        This includes turns that the CLI starts by itself, and `StreamEvent`s if the session was made with
        `partial_messages=True`. Iterate over the subscription; `aclose` ends it, and so does the end of the session.
        Once 8 MiB are unread, the rest waits in a temporary file. When a new child has taken over after a
        crash, there is a `SystemMessage` of the subtype "session_restarted", with the `reason` in its `raw`.
        """
        return self._monitor.add(wants_partial=self.options.partial_messages)

    async def control(self, subtype: str, /, **body: Any) -> Mapping[str, Any]:
        """Send any control request and return its response. Starts the child if need be.

        Args:
            subtype: of the request, such as "get_settings".
            **body: its other keys, as they are on the wire.

        Raises:
            ControlError: the CLI refused; `.code` says why.
            ControlTimeout: no response within `control_timeout`.
        """
        child = await self._provide_child()
        return await child.request(subtype, body)

    async def _request(self, subtype: str, body: Mapping[str, Any], timeout: float = 0.0) -> Mapping[str, Any]:
        child = await self._provide_child()
        return await child.request(subtype, body, timeout=timeout)

    async def login(self, account: LoginAccount = "claude") -> ClaudeLogin:
        """Begin a login at Claude: show the user its `url`, and hand over the code that the page shows.

        Claude Code keeps the login in its configuration directory, for other sessions too. A key that it was given,
        such as `ANTHROPIC_API_KEY`, goes before the login.

        Args:
            account: "claude": a subscription, Pro, Max, Team or Enterprise. "console": an account of the Console,
                which pays by use. Default "claude".

        Raises:
            LoginError: a policy of this machine forbids it; `.code` is "refused".
            UsageError: another `account`.
        """
        return await begin_claude_login(self._request, partial(to_result, AccountInfo), account)

    async def _call_mcp_tool(self, body: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        child = await self._provide_child()
        check_can_call(body, child.server_info)
        return await child.request(MCP_CALL, body, timeout=timeout)

    # The groups are made on use: a stored one would be a reference cycle.

    @property
    def mcp(self) -> McpControls:
        """The MCP servers."""
        return McpControls(self.control, self._call_mcp_tool)

    @property
    def tasks(self) -> TaskControls:
        """Background work, and prompts that wait."""
        return TaskControls(self.control, self._wait_idle)

    @property
    def settings(self) -> SettingsControls:
        """The settings of the CLI."""
        return SettingsControls(self.control)

    @property
    def info(self) -> InfoControls:
        """Information about the session."""
        return InfoControls(self.control, lambda: self.server_info, self._isolation_report)

    def _isolation_report(self) -> IsolationReport | None:
        init = None if self._child is None else self._child.last_init
        return None if init is None else isolation_report([init], self.options)

    async def rewind_files(self, user_message_uuid: str, *, dry_run: bool = False) -> RewindResult:
        """Restore the files to their state when a user message came.

        Args:
            user_message_uuid: uuid of that message; the result of its query has it, as `user_message_uuid`.
            dry_run: only report what would change. Default False.

        Raises:
            ControlError: the message is not known. Without `enable_file_checkpointing` the result says so.
        """
        body = {"dry_run": True} if dry_run else {}
        return to_result(RewindResult, await self.control("rewind_files", user_message_id=user_message_uuid, **body))

    async def rename(self, title: str) -> None:
        """Give the session a title."""
        await self.control("rename_session", title=title)

    async def interrupt(self, *, cancel_queued: bool = False) -> InterruptResult:
        """Stop the current turn. Returns at once when the child is idle.

        Args:
            cancel_queued: also remove prompts from the queue of the CLI. Default False.
        """
        self._supervisor.check_loop()
        run, child = self._active, self._child
        if run is not None and (run.turn.phase in (Phase.QUEUED, Phase.DECIDING) or not cancel_queued):
            await run.interrupt()
        if child is None or child.is_closing_or_closed:
            return InterruptResult()
        if not (child.activity.is_in_turn if run is None else cancel_queued):
            return InterruptResult()
        return to_result(InterruptResult, await child.interrupt(run, cancel_queued=cancel_queued))

    async def set_model(self, model: str | None) -> str | None:
        """Use another model from the next turn on; None: the default. Returns its full name."""
        return (await self._set("model", model)).get("model")

    async def set_permission_mode(self, mode: str) -> str | None:
        """Change what happens when a tool needs permission. Returns the mode as the CLI names it.

        Raises:
            OptionsError: there is no such mode.
            ControlError: `.code` is "bypass_not_launched": the mode needs `allow_dangerously_skip_permissions`.
        """
        return (await self._set("permission_mode", mode)).get("mode")

    async def set_max_thinking_tokens(
        self, tokens: int | None, display: Literal["summarized", "omitted", "highlights"] | None = None
    ) -> None:
        """Change the thinking budget, on models that have one; None: the default.

        Args:
            tokens: the budget.
            display: what of the thinking the child shows from now on. Default: as before.
        """
        await self._set("max_thinking_tokens", tokens)
        self._supervisor.options = with_thinking_display(self.options, None)  # for the next child
        if display is not None:
            await self.control("set_max_thinking_tokens", thinking_display=display)
            self._supervisor.options = with_thinking_display(self.options, display)

    async def _set(self, name: str, value: Any) -> Mapping[str, Any]:
        layer = make_layer({name: value})
        self.options.merge(layer)  # raises before anything is sent
        await self._provide_child()
        answer = await self._runtime_settings.set(name, value)
        self._supervisor.options = self.options.merge(layer)  # others may have changed something in the meantime
        return answer

    @hide_arguments
    def update(self, **handlers: Unpack[Settings]) -> Coroutine[Any, Any, None]:
        """Replace handlers from now on, in the running child; the conversation goes on.

        Requests that the old handlers work on stay with them. If the CLI must be notified, because other events have
        hooks now, the hooks wait for the end of the current query, and hooks of the CLI's own turns that run at that
        moment are cut off. If the call fails or is cancelled meanwhile, it may be repeated; the next child gets the
        hooks in any case.

        Args:
            **handlers: `can_use_tool`, `confirm`, `on_question`, `on_plan`, `hooks`, `custom_tools`,
                `on_elicitation`, `on_user_dialog`; None removes one.

        Raises:
            OptionsError: another setting; or a change for which the CLI must be restarted: the first permission
                handler, the removal of the last one, or the first `custom_tools`.
            ControlError, ControlTimeout: the CLI does not accept the hooks.
        """
        self._supervisor.check_open()
        if wrong := sorted(handlers.keys() - REPLACEABLE_OPTIONS):
            raise OptionsError(
                f"option {wrong[0]!r} is not a handler; change other settings with a query, or make a new session"
            )
        # Not `async def`: mypy (2.4) takes an async method with `Unpack` for a coroutine that returns a coroutine.
        return self._update(make_custom_tools(Options.layer(**handlers)))

    async def _update(self, changes: Options) -> None:
        await self._supervisor.update(changes, self._child_options, self._between_queries())

    async def detach(self) -> str:
        """Leave the session, which goes on at its host; this object is closed.

        Queries of this process fail with `SessionClosedError`; the CLI goes on with what it is doing. Any process
        continues with `session(transport=WebSocketTransport(url, session=…))`.

        Returns:
            The id of the session at the host.

        Raises:
            UsageError: the session does not run, or not on a host.
        """
        self._supervisor.check_open()
        child = self._child
        if child is None or child.is_closing_or_closed:
            raise UsageError("the session is not running")
        host_session_id = await child.detach()
        await self.close()
        return host_session_id

    async def clear(self) -> str | None:
        """Begin a new conversation in the same child, without the old one as context. Returns the new id."""
        self._supervisor.check_open()
        # Not verbatim, which would make it a prompt; without a schema, since it has no output.
        settings = self.options.with_(verbatim_prompts=None, json_schema=None)
        (await self._make_query("/clear", settings, {}, ChildOptions())).raise_for_error()
        self._supervisor.resume_state.mark_cleared(self.id)
        return self.id

    @hide_arguments
    def fork(self, **overrides: Unpack[Settings]) -> Session:
        """Make a new session that begins as a copy of this conversation, which stays as it is.

        The copy is what the CLI has written to disk when the fork starts; an answer under way is not in it.

        Args:
            **overrides: settings of the new session that differ.

        Raises:
            UsageError: the conversation is empty, or `persist_session` is off.
        """
        self._supervisor.resume_state.id = self.id
        forked = Session(
            self._supervisor.resume_state.make_fork_options(self.options).merge(Options.layer(**overrides)),
            rate_limits=self._rate_limits,
        )
        if self._supervisor.home is not None and forked._supervisor.home is not None:
            forked._supervisor.home = self._supervisor.home.share()  # the conversation is saved there
        return forked


def make_prewarm_invocation(options: Options, *, output_type: Any, session: bool) -> Invocation:
    """Return the invocation that such a query or session will have.

    Raises:
        UsageError: settings that cannot work.
    """
    if session:
        return Session(options)._supervisor.make_launch()[0]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - made here
    if output_type is not None:
        options, _ = make_output_validator(options, output_type)
    return make_launch(options, make_handlers(options), "-")[0]
