"""The children of a session, one after the other.

`ChildSupervisor` starts them, and replaces one after a crash or for a query with other launch settings;
`SessionMonitor` sees every message of every child and keeps costs, subscriptions and observers. `session_settings` has
the settings of each child.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.client.budgets import SessionBudget, check_remaining, limit_to_remaining
from pilothouse.client.costs import CostTracker
from pilothouse.client.custom_tools import ToolBridge
from pilothouse.client.handlers import RequestHandlers, make_handlers, make_replacement_handlers
from pilothouse.client.launch import make_launch, make_limits, make_transport
from pilothouse.client.middleware import Middleware
from pilothouse.client.observation import SessionObservation
from pilothouse.client.result import make_refusal_error
from pilothouse.client.session_settings import NO_SNAPSHOT, ResumeState, RuntimeSettings
from pilothouse.engine import HandlerSet, call_in_loop, running_loop, spawn
from pilothouse.engine.child import ChildRun
from pilothouse.engine.router import Subscriptions
from pilothouse.errors import (
    OptionsError,
    SessionClosedError,
    SessionExistsError,
    SessionNotFoundError,
    UsageError,
)
from pilothouse.hooks.matchers import SUBTYPE as HOOK_REQUEST
from pilothouse.messages import Message, SystemMessage
from pilothouse.options import Invocation, Options, render
from pilothouse.options.options import NO_OPTIONS
from pilothouse.transports import Transport
from pilothouse.transports.base import find_facts
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.private_files import PrivateHome

log = logging.getLogger("pilothouse")

SESSION_RESTARTED = "session_restarted"
"""Subtype of the system message that pilothouse adds to `Session.messages()` when a new child has taken over."""


class SessionMonitor(Subscriptions):
    """Sees every message of a session first: counts costs and informs observers.

    Args:
        options: those of the session.

    Attributes:
        costs: what the session has cost.
        restarts: how often a new child took over after a crash.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.costs = CostTracker(resumes=bool(options.resume or options.continue_conversation))
        self.restarts = 0
        self._options = options
        self._budget: SessionBudget | None = None
        self._observation: SessionObservation | None = None
        if options.instrumentation:
            self._observation = SessionObservation(options)

    def put(self, batch: list[Message], size: int) -> None:
        """Count a batch, and give it to each subscription."""
        self.costs.track(batch)
        super().put(batch, size)

    @contextmanager
    def current_query(self, middlewares: Sequence[Middleware]) -> Generator[None]:
        """The block in which a query of the session, with these middlewares, is the current one.

        Raises:
            BudgetError: there is nothing left to spend.
        """
        if self._options.max_budget_tokens is not None:
            check_remaining(self._options, self.costs)
        if self._observation is None:
            yield
            return
        with self._observation.current_query(middlewares):
            yield

    def start_budget(self, child: ChildRun) -> None:
        """Watch what a new child uses in the background, if the session has a token budget."""
        limit = self._options.max_budget_tokens
        if limit is not None:
            self._budget = SessionBudget(self.costs, limit, child)

    def on_earlier(self, message: Message) -> None:
        """Count background work of earlier queries."""
        if self._budget is not None:
            self._budget.on_message(message)

    def on_unattributed(self, message: Message) -> None:
        """Count turns that the CLI starts by itself, and report their messages to observers."""
        self.on_earlier(message)
        if self._observation is not None:
            self._observation.on_unattributed(message)

    def on_prompt_accepted(self) -> None:
        """End such a turn: it has become a turn of a query."""
        if self._observation is not None:
            self._observation.end_cli_turn()

    def on_child_ended(self, error: BaseException) -> None:
        """End such a turn: the child has ended."""
        if self._observation is not None:
            self._observation.end_cli_turn(error)

    def limit_to_budget(self, options: Options) -> Options:
        """Return the settings of the next child, limited to the remaining budget.

        Raises:
            BudgetError: there is nothing left to spend.
        """
        if options.max_budget_usd is None:
            return options
        return limit_to_remaining(options, self.costs)

    def instrument_launch(
        self, invocation: Invocation, handlers: HandlerSet | None
    ) -> tuple[Invocation, HandlerSet | None]:
        """Add to a launch what observers need: environment variables and wrapped handlers."""
        if self._observation is None:
            return invocation, handlers
        return self._observation.with_session_environ(invocation), self._observation.wrap_handlers(handlers)

    def on_child_restarted(self, session_id: str | None, reason: BaseException | None) -> None:
        """Report that a new child has taken over after a crash."""
        self.restarts += 1
        log.warning("the session %s has a new child: %s", session_id, _describe_end(reason))
        self.costs.on_child_ended()
        if self._observation is not None and self._observation.observers is not None:
            self._observation.observers.restarted(reason)
        facts = {"type": "system", "subtype": SESSION_RESTARTED, "session_id": session_id, "reason": str(reason or "")}
        line = json.dumps({**facts, "restarts": self.restarts}).encode()
        self.put([SystemMessage(subtype=SESSION_RESTARTED, session_id=session_id, raw_line=line)], len(line))


def _describe_end(reason: BaseException | None) -> str:
    """Describe the end without any content of the conversation, which the text of an error may contain."""
    code, signal = getattr(reason, "exit_code", None), getattr(reason, "signal", None)
    how = f", exit code {code}" if code is not None else f", {signal}" if signal is not None else ""
    return f"{type(reason).__name__}{how}" if reason is not None else "it had exited"


class ChildOptions(Struct, frozen=True):
    """What the child of a query is started with in addition to the settings of the session.

    Args:
        options: the settings; none: a child of the session.
        bridge: runs the `custom_tools` of the query; None where the CLI sends a request for each call.
    """

    options: Options = NO_OPTIONS
    bridge: ToolBridge | None = None

    def serves(self, required: ChildOptions) -> bool:
        """Whether a child that was started with these options may serve a query with the `required` ones."""
        if self is required:
            return True
        # A child counts dollars from its start, and a bridge remembers its calls.
        is_for_one = self.bridge is not None or "max_budget_usd" in self.options
        return self.options == required.options and not is_for_one and required.bridge is None


SESSION_CHILD = ChildOptions()
"""Those of a child of the session."""


class ChildSupervisor:
    """Starts, replaces and ends the children of a session, one child at a time, when needed.

    Args:
        options: those of the session.
        session: what callbacks get as `.session`; held by a weak reference.

    Attributes:
        options: those of the session, as they are now.
        resume_state: which conversation the next child continues.
        monitor: sees all messages of all children.
        bridge: runs `custom_tools`; None where the CLI sends a request for each call.
        child: the current child, or the last one.
        runtime_settings: the changeable settings that the child has in effect.
        handlers: handle the requests of the child.
        home: the HOME that the children share, if the session is isolated.
        is_closed: whether `begin_close` was called; then no further child is started.

    Raises:
        OptionsError: settings that cannot work in a session.
    """

    def __init__(self, options: Options, session: Any) -> None:
        if options.prompt_via != "stdin":
            raise OptionsError("a session needs prompt_via='stdin'", option="prompt_via")
        self.options = options
        self.resume_state = ResumeState(options)
        self.monitor = SessionMonitor(options)
        new_handlers = make_handlers(options)  # reports mistakes before anything is started
        self.bridge = None if new_handlers is None else new_handlers.bridge
        self.home: PrivateHome | None = None
        if options.isolation is not None:
            self.home = PrivateHome()
        self.child: ChildRun | None = None
        self._crashed: ChildRun | None = None
        self._replaced: ChildRun | None = None  # was ended for another one, which may not have been made
        self.runtime_settings: RuntimeSettings | None = None
        self.handlers: RequestHandlers | None = None
        self._known_fields: Mapping[str, Any] | None = None  # of the handlers that the child was told of; None: unsure
        self._started_with = SESSION_CHILD
        self._session = weakref.proxy(session)
        self._starting = anyio.Lock(fast_acquire=True)
        self._loop: object = None
        self.is_closed = False
        render(self._next_options(), {})

    def make_child_options(self, options: Options) -> ChildOptions:
        """Return the child options that a query with these settings needs.

        Args:
            options: settings of the query that a child has from its start.

        Raises:
            OptionsError: they cannot work in a child of this session.
            UsageError: a hook, callback or tool that cannot work.
        """
        if not tuple(options):
            return SESSION_CHILD
        name = next(iter(options))
        if isinstance(self.options.transport, Transport):
            raise OptionsError(
                f"option {name!r} needs another child, and the session has one transport; make the session with a "
                "function that makes transports, as transport=lambda: …",
                option=name,
            )
        settings = self.options.merge(options)
        new_handlers = make_handlers(settings)
        render(settings, {})
        return ChildOptions(options, None if new_handlers is None else new_handlers.bridge)

    @property
    def is_starting(self) -> bool:
        """Whether a child is being started, or one is being ended so that another takes over."""
        return self._starting.locked()

    @property
    def id(self) -> str | None:
        """Id of the conversation, as far as it is known; a warm child of a pool brings its own."""
        child = self.child
        if child is not None:
            return child.session_id or self.resume_state.id
        may_change = find_facts(self.options.transport).may_choose_session_id and self.resume_state.is_id_replaceable
        return None if may_change else self.resume_state.id

    def check_open(self) -> None:
        """Raise `SessionClosedError` once `close` was called."""
        if self.is_closed:
            raise SessionClosedError("the session is closed; make a new one, with resume= to continue")

    def check_loop(self) -> None:
        """Raise `UsageError` on another event loop than that of the children."""
        if self._loop is not None and self._loop != running_loop():
            raise UsageError("a session belongs to the event loop that started it; make another with resume=")

    def ready_child(self, child_options: ChildOptions) -> ChildRun | None:
        """Return the child, if it serves these options and can be used without any waiting."""
        self.check_loop()
        child = self.child
        if child is None or self.is_closed or self._starting.locked() or not child.is_ready:
            return None
        return child if self._started_with.serves(child_options) else None

    async def provide_child(self, child_options: ChildOptions, *, in_turn: bool) -> ChildRun:
        """Return a running child with these options; start or replace it if need be.

        Args:
            child_options: what the query needs that uses the child now, or is about to; without one, `SESSION_CHILD`.
            in_turn: whether a query uses the child now; then that query notices itself when the child exits.

        Raises:
            PilothouseError: the child could not be started.
            OptionsError: the child cannot be replaced by one that the query needs.
            SessionClosedError: `close` was called.
        """
        if (child := self.ready_child(child_options)) is not None:
            return child
        async with self._starting:
            before = self.child
            if before is not None and not in_turn:
                await before.stop_if_gone()  # no prompt was sent to it yet, so that none is sent twice
            if before is not None and before.is_closing_or_closed:
                await before.wait_finished()
            self.check_open()
            if before is None or before.is_closing_or_closed:
                return await self._start_child(before, child_options)
            if self._started_with.serves(child_options):
                return before
            return await self._replace(before, child_options)

    async def _replace(self, previous: ChildRun, child_options: ChildOptions) -> ChildRun:
        """End a healthy child, and start one with these options."""
        if previous.transport.facts.is_attached:
            name = next(iter(child_options.options))
            raise OptionsError(
                f"option {name!r} needs another child, and this session uses one that another client has "
                "started; use a session of your own, with resume= or fork",
                option=name,
            )
        if previous.activity.background:
            log.warning("background tasks of the session %s end with their child: a query needs a new child", self.id)
        mode = previous.permission_mode
        self._replaced = previous
        try:
            await previous.close()
        finally:
            self.monitor.costs.on_child_ended()
        self.check_open()
        child = await self._launch_with_fallback(previous, child_options)
        if mode is not None and mode != child.permission_mode and "permission_mode" not in child_options.options:
            # The CLI had changed it by itself, as after an approved plan.
            await child.request("set_permission_mode", {"mode": mode})
            child.permission_mode = mode
        return child

    async def _start_child(self, previous: ChildRun | None, child_options: ChildOptions) -> ChildRun:
        """Start a child where none runs: the first one, or, after a crash, one that takes over."""
        if previous is not None and previous.has_started and previous is not self._replaced:
            self._crashed = previous  # until a child takes over: several starts may fail before
        if self._crashed is not None and self.options.restart == "never":
            raise self._crashed.failure or SessionClosedError("the child has ended, and restart='never'")
        child = await self._launch_with_fallback(previous, child_options)
        crashed, self._crashed = self._crashed, None
        if crashed is not None:
            self.monitor.on_child_restarted(child.session_id, crashed.failure)
        return child

    async def _launch_with_fallback(self, previous: ChildRun | None, child_options: ChildOptions) -> ChildRun:
        """Start a child, without resuming if the previous one died before it saved anything.

        A start that failed for another reason may have left any of these steps to this one. Each is taken once.
        """
        recoveries: dict[type[Exception], Callable[[], bool]] = {
            SessionNotFoundError: self.resume_state.discard_resume,
            SessionExistsError: self.resume_state.choose_new_id,
        }
        while True:
            try:
                return await self._launch(previous, child_options)
            except (SessionNotFoundError, SessionExistsError) as error:
                recover = recoveries.pop(type(error), None)
                if recover is None or not recover():
                    raise
                self.check_open()  # `close` has ended the child before, and would not know of this one

    async def _launch(self, previous: ChildRun | None, child_options: ChildOptions) -> ChildRun:
        self._started_with = child_options
        options = self._next_options(child_options)
        invocation, handler_set = self._make_launch(options, child_options)
        if previous is not None:
            invocation = replace(invocation, has_generated_session_id=False)
        transport, limits = make_transport(options), make_limits(options)
        child = self.child = ChildRun(
            transport,
            invocation,
            limits,
            subscriptions=self.monitor,
            make_refusal_error=make_refusal_error,
            handlers=handler_set,
        )
        self.monitor.start_budget(child)
        if self.handlers is not None:
            self.handlers.child = child
        child.session_id = self.resume_state.id
        child.router.reports_starts = previous is not None and previous.router.reports_starts  # of the same CLI
        self._loop = self.monitor.loop = running_loop()
        spawn(child.run, "pilothouse session")
        try:
            await child.wait_started()
        except BaseException as error:
            child.stop()
            with anyio.CancelScope(shield=True):
                await child.wait_finished()
            if isinstance(error, anyio.get_cancelled_exc_class()):
                child.has_started = False  # it may have been ready by now, but did not crash
            raise
        given = transport.facts.session_id  # of a child of a pool, or of a host, which was started before
        if given is not None:
            self.resume_state.set_id(given)
            child.session_id = given
            if transport.facts.is_attached:
                self.monitor.costs.told_before = None  # others have used tokens before
                self.resume_state.mark_prompt_sent()
                self.resume_state.mark_turn_saved(given)
        self.runtime_settings = RuntimeSettings(options, child)
        return child

    def make_launch(self) -> tuple[Invocation, HandlerSet | None]:
        """Return the invocation of the next child, and its handlers."""
        return self._make_launch(self._next_options(), SESSION_CHILD)

    def _make_launch(self, options: Options, child_options: ChildOptions) -> tuple[Invocation, HandlerSet | None]:
        self.handlers = make_handlers(options, self._session, self.get_bridge(child_options))
        self._known_fields = None if self.handlers is None else self.handlers.initialize_fields
        invocation, handler_set = self.monitor.instrument_launch(*make_launch(options, self.handlers))
        is_generated = self.resume_state.is_id_replaceable
        # The next child finds in the home what this one has saved.
        return replace(invocation, home=self.home, has_generated_session_id=is_generated), handler_set

    def get_bridge(self, child_options: ChildOptions) -> ToolBridge | None:
        """Return what runs the `custom_tools` of a query with these child options."""
        return child_options.bridge if tuple(child_options.options) else self.bridge

    def _next_options(self, child_options: ChildOptions = SESSION_CHILD) -> Options:
        options = self.monitor.limit_to_budget(self.resume_state.make_resume_options(self.options))
        if tuple(child_options.options):
            options = _merge_query_options(options, child_options.options)
        if options.isolation is not None and options.as_dict().get("persist_session") is None:
            options = options.with_(persist_session=True)  # in the home of the session, which is removed with it
        if options.as_dict().get("partial_messages") is None:
            options = options.with_(partial_messages=True)  # for `text_stream`; queries filter them out unless wanted
        return options

    async def update(
        self, changes: Options, child_options: ChildOptions, between_queries: AbstractAsyncContextManager[Any]
    ) -> None:
        """Replace handlers, also in the running child.

        Args:
            changes: the handlers, and nothing else.
            child_options: as for `provide_child`.
            between_queries: entered if the CLI must be notified, which happens between two queries.

        Raises:
            OptionsError: handlers that a running child cannot get.
            ControlError, ControlTimeout: the CLI does not accept them; the next child gets them.
        """
        if self.bridge is not None and "custom_tools" in changes:
            raise OptionsError(
                "option 'custom_tools' cannot change in a session, except with tool_bridge='mcp'", option="custom_tools"
            )
        is_running = self.child is not None and not self.child.is_closing_or_closed
        if is_running and not self._started_with.serves(child_options):
            await self.provide_child(child_options, in_turn=False)  # otherwise it is the child of an earlier query
        async with self._starting:
            child, options = self.child, self.options.merge(changes)
            if child is None or child.is_closing_or_closed:
                make_handlers(options)
                self.options = options
                return
        own, bridge = self._started_with.options, self.get_bridge(self._started_with)
        before = self.handlers
        self.handlers = make_replacement_handlers(before, options.merge(own), changes, self._session, bridge)
        self.handlers.child = child
        self.options = options
        handler_set, _ = self._make_replacement()
        is_known = self.handlers.initialize_fields == self._known_fields
        if not is_known:  # so far the CLI calls the hooks that it knows
            known_hooks = {name: f for name, f in child.channel.incoming.handlers.items() if name == HOOK_REQUEST}
            others = {name: f for name, f in handler_set.handlers.items() if name != HOOK_REQUEST}
            handler_set = replace(handler_set, handlers={**others, **known_hooks})
        await child.channel.replace_handlers(handler_set, None)
        if is_known or (before is not None and "hooks" not in changes):
            return
        async with between_queries:
            if self.child is not child:
                return  # its successor was started with them
            self._known_fields = None
            handler_set, body = self._make_replacement()  # others may have replaced some in the meantime
            fields = self.handlers.initialize_fields
            await child.channel.replace_handlers(handler_set, body)
            self._known_fields = fields

    def _make_replacement(self) -> tuple[HandlerSet, Mapping[str, Any] | None]:
        """Return the current handlers for the running child, and what to tell it of them."""
        launch = make_launch(self._next_options(self._started_with), self.handlers)
        invocation, handler_set = self.monitor.instrument_launch(*launch)
        assert handler_set is not None
        return handler_set, invocation.initialize

    def begin_close(self) -> None:
        """Start no further child from now on.

        Raises:
            UsageError: this is not the event loop of the children.
        """
        self.check_loop()
        self.is_closed = True

    async def close(self) -> None:
        """End the child, and release what the children shared. Call it shielded."""
        try:
            if self.child is not None:
                await self.child.close()
        finally:
            home, self.home = self.home, None
            if home is not None:
                await run_blocking(home.release)
            self.monitor.end()

    def drop(self) -> None:
        """End a dropped session; called by a finalizer: from any thread, at any moment."""
        child = self.child
        if child is not None and self._loop is not None and not child.is_closing_or_closed:
            call_in_loop(self._loop, partial(_end_child, child, self.monitor))


def _merge_query_options(options: Options, query_options: Options) -> Options:
    """Return the options of a query with a child of its own in the session, within the remaining budget.

    The child resumes the session, but not the system prompt that was saved with it.
    """
    merged = options.merge(query_options)
    if query_options.max_budget_usd is not None and options.max_budget_usd is not None:
        merged = merged.with_(max_budget_usd=min(query_options.max_budget_usd, options.max_budget_usd))
    flags = {**NO_SNAPSHOT, **(merged.extra_args or {})}
    if query_options.thinking is not None and query_options.extra_args is None:
        flags.pop("thinking-display", None)  # of `set_max_thinking_tokens`, which the last flag would enforce
    return merged.with_(extra_args=flags)


def _end_child(child: ChildRun, subscriptions: Subscriptions) -> None:
    child.stop()
    subscriptions.end()
