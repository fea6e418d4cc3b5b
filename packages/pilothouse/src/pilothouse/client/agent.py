"""`Agent`: a reusable configuration, and the entry point for queries and sessions.

Also here: the layers of options beneath every agent, the default agent, and the warning about permission settings
that contradict each other.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Unpack, overload

from pilothouse.client.config_file import get_config_file, read_config_file, restore_config_file, set_config_file
from pilothouse.client.custom_tools import make_custom_tools
from pilothouse.client.handlers import make_handlers
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage, Query
from pilothouse.client.result import OutputT
from pilothouse.client.retry import SharedRateLimits
from pilothouse.client.sessions import Session, make_prewarm_invocation
from pilothouse.errors import OptionsError, UsageError
from pilothouse.hints import find_similar_name
from pilothouse.options import Options
from pilothouse.options.conflicts import PolicyWarning, find_conflicts
from pilothouse.options.options import (
    NO_OPTIONS,
    VARIABLES,
    make_layer,
    read_environ,
    show_options,
)
from pilothouse.options.permission_facts import PermissionFacts
from pilothouse.options.table import VARIABLE_PREFIX
from pilothouse.tracebacks import hide_arguments, user_class
from pilothouse.transports.base import CANNOT_PREWARM, TransportFactory

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder, Settings


WATCHED = frozenset(
    {"agents", "allowed_tools", "can_use_tool", "confirm", "disallowed_tools", "hooks", "managed_settings"}
    | {"mcp_servers", "permission_mode", "settings", "tools"}
)
"""Options that can cause a contradiction."""


def warn_contradictions(layer: Options, settings: Options) -> None:
    """Warn about permission settings that contradict each other in `settings`.

    `layer` is the layer that came last; without an option that can cause a contradiction in it, nothing is checked.
    Each warning is a `PolicyWarning` at the line of user code that gave the settings.
    """
    if WATCHED.isdisjoint(layer):
        return
    for text in find_conflicts(PermissionFacts(settings)):
        warnings.warn(text, PolicyWarning, stacklevel=_user_stack_level())


@user_class
class Agent:
    """A reusable configuration. Immutable, and may be shared by any tasks and threads.

    Between queries an agent keeps one thing, which it shares with agents made by `with_options`: until when a limit of
    the API holds (for queries with `retry` or `on_usage_limit="wait"`). An agent has nothing to close.

    Settings that an agent does not have come from `configure()`, the configuration file, and `PILOTHOUSE_*`
    variables, in this order, as they are when a query is made.

    Args:
        options: settings to start from.
        **settings: settings that win over `options`; `pilothouse.Options` explains them.

    Raises:
        OptionsError: an unknown option or a wrong value.
    """

    __slots__ = ("_options", "_rate_limits")

    @hide_arguments
    @show_options
    def __init__(
        self, options: Options | OptionsBuilder | Mapping[str, Any] | None = None, **settings: Unpack[Settings]
    ) -> None:
        self._options = _make_layer(options, settings, "agent")
        self._rate_limits = SharedRateLimits()
        make_handlers(self._options)  # so that an unusable hook, callback or tool is reported where it is given
        warn_contradictions(self._options, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            text = f"an Agent is immutable; use agent.with_options({name}=…) to get a changed one"
            raise AttributeError(text) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has other layers: the effective settings are pickled, the state kept between queries is
        # not.
        return type(self), (self.options,)

    @property
    def options(self) -> Options:
        """The effective settings of a query of this agent, all layers merged; `.explain()` names the source of each.

        Raises:
            OptionsError: the configuration file or a variable has an invalid value.
        """
        return Options.stack(*self._layers(), is_complete=False)

    def _layers(self) -> tuple[Options, ...]:
        names = [name for name in os.environ if name.startswith(VARIABLE_PREFIX)]
        if not _seen_variables.issuperset(names):
            _report_misspelt_variables(names)
        variables = read_environ({name: os.environ.get(name, "") for name in names})  # a thread may have removed one
        file = get_config_file()
        return variables, NO_OPTIONS if file is None else file.options, _configured, self._options

    @hide_arguments
    def with_options(self, options: Options | OptionsBuilder | None = None, **changes: Unpack[Settings]) -> Agent:
        """Return a new agent with changed settings; this agent stays as it is."""
        changed = type(self)(Options.stack(self._options, _make_layer(options, changes, "agent"), is_complete=False))
        changed._rate_limits = self._rate_limits  # noqa: SLF001 - of this very class
        return changed

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
        """Send a prompt. Await the query for the whole answer, or loop over it for messages as they come.

        ::

            reviewer = ph.Agent(model="opus", tools=["Read", "Grep"])
            result = await reviewer.query("Review the last commit", timeout=600)

        Args:
            prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user
                messages, sent as they come.
            options: settings that win over those of the agent, field by field.
            on_message: called once for every message, in order, while the query is awaited; sync or async.
            output_type: a msgspec struct, dataclass, TypedDict or pydantic model, or a JSON Schema: the answer must
                fit, and `QueryResult.output` is the value.
            **overrides: single settings that win over `options`.

        Returns:
            A `Query`; nothing is started before it is used.

        Raises:
            UsageError: the prompt or an option cannot work; raised here, before anything is started.
        """
        settings = self._settings(_make_layer(options, overrides, "call"))
        return Query(prompt, settings, on_message=on_message, output_type=output_type, rate_limits=self._rate_limits)

    @hide_arguments
    @show_options
    def session(
        self,
        options: Options | OptionsBuilder | None = None,
        *,
        continue_latest: bool = False,
        fork: bool = False,
        **overrides: Unpack[Settings],
    ) -> Session:
        """Make a session: a conversation with one child, over many queries; use it with `async with`.

        Nothing is started here.

        Args:
            options: settings that win over those of the agent, field by field.
            continue_latest: continue the latest conversation of the directory. Default False.
            fork: continue in a copy, and leave the original as it was. Default False.
            **overrides: single settings that win over `options`; `resume=id` continues a conversation.

        Raises:
            OptionsError: settings that cannot work.
        """
        switches = {"continue_conversation": continue_latest, "fork_session": fork}
        call = {**overrides, **{name: True for name, is_on in switches.items() if is_on}}
        return Session(self._settings(_make_layer(options, call, "call")), rate_limits=self._rate_limits)

    @hide_arguments
    def prewarm(
        self,
        count: int = 1,
        options: Options | OptionsBuilder | None = None,
        *,
        sessions: bool = False,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Coroutine[Any, Any, None]:
        """Start children in advance and wait until they are ready, so that the next queries need no start.

        Needs a `transport` that keeps children ready, such as `Pool` of the package `pilothouse_pool`. A child is used
        only by a query with the very same settings, as far as the CLI sees them (see `Pool`). So pass here too what a
        query sets in addition to the agent: `partial_messages=True` for `text_stream` and `events`.

        Args:
            count: how many to keep ready. Default 1.
            options: as for `query`.
            sessions: whether they are for `session`, whose children are started differently. Default False.
            output_type: as for `query`.
            **overrides: as for `query`.

        Raises:
            OptionsError: settings that cannot work, or that cannot be prewarmed; the transport keeps no children ready.
            PilothouseError: a child could not be started.
        """
        # Not `async def`: mypy (2.4) takes an async method with `Unpack` for a coroutine that returns a coroutine.
        settings = self._settings(_make_layer(options, overrides, "call"))
        return self._prewarm(count, settings, sessions, output_type)

    async def _prewarm(self, count: int, settings: Options, sessions: bool, output_type: Any) -> None:
        if not isinstance(settings.transport, TransportFactory):
            raise OptionsError(CANNOT_PREWARM, option="transport")
        await settings.transport.prewarm(
            make_prewarm_invocation(settings, output_type=output_type, session=sessions), count
        )

    def _settings(self, call: Options) -> Options:
        settings = Options.stack(*self._layers(), call)
        warn_contradictions(call, settings)
        return settings


def _make_layer(options: Any, settings: Mapping[str, Any], origin: str) -> Options:
    """Merge options and single settings, which win, into one layer."""
    made = make_layer(settings, origin, options)
    return make_custom_tools(made).with_origin(origin) if made.custom_tools else made


def _report_misspelt_variables(names: Iterable[str]) -> None:
    """Log each variable whose name resembles that of an option's, once in a process. Others may use the prefix too."""
    for name in set(names) - _seen_variables:
        _seen_variables.add(name)
        if name not in VARIABLES:
            tails = [variable.removeprefix(VARIABLE_PREFIX) for variable in VARIABLES]
            meant = find_similar_name(name.removeprefix(VARIABLE_PREFIX), tails, 0.8)
            if meant is not None:
                text = "the variable %s has no effect, because there is no such option; did you mean %s?"
                _log.warning(text, name, VARIABLE_PREFIX + meant)


_log = logging.getLogger("pilothouse")
_OTHER_VARIABLES = ("CACHE", "CONFIG", "HOST_TOKEN", "INSTALL", "JOURNAL", "REQUIRE_CLI", "REQUIRE_RAY")
_seen_variables = {VARIABLE_PREFIX + name for name in _OTHER_VARIABLES}
"""Environment variables whose spelling was checked, or needs no check."""
_configured = NO_OPTIONS
_default = Agent()
_context_default: ContextVar[Agent | None] = ContextVar("pilothouse default agent", default=None)


@hide_arguments
@show_options
def configure(
    options: Options | OptionsBuilder | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    **settings: Unpack[Settings],
) -> Agent:
    """Change settings for every agent of this process, the default agent included.

    The change holds for all threads and tasks; what differs from request to request belongs into an `Agent`. Calls
    add up, field by field; `None` sets a field back to its default. Running queries do not change.

    Args:
        options: settings for all agents.
        file: a configuration file, which is read now and replaces one that was named before, also by the variable
            `PILOTHOUSE_CONFIG`. Its settings lie beneath all others but those of `PILOTHOUSE_*` variables. Default:
            the file stays as it is.
        **settings: single settings that win over `options`.

    Returns:
        The default agent.

    Raises:
        OptionsError: an unknown option or a wrong value; then nothing is changed.
        ConfigError: the file cannot be read, or has an invalid value; then nothing is changed.
    """
    global _configured
    found = None if file is None else read_config_file(file)
    _configured = Options.stack(_configured, _make_layer(options, settings, "configure()"), is_complete=False)
    if found is not None:
        set_config_file(found)
    return default_agent()


def default_agent() -> Agent:
    """Return the agent behind the module-level `query`: that of the context if any, else that of the process."""
    return _context_default.get() or _default


def check_agent(agent: object) -> None:
    """Raise `UsageError` if this is no `Agent`."""
    if not isinstance(agent, Agent):
        hint = " of pilothouse.sync; pass its async_agent" if hasattr(agent, "async_agent") else ""
        raise UsageError(f"expected an Agent, got {type(agent).__name__}{hint}")


def set_default_agent(agent: Agent) -> Agent:
    """Put another agent behind the module-level `query`, for the whole process.

    Within `pilothouse_testing.as_default` it changes the agent of that context instead.

    Returns:
        The previous agent. `pilothouse_testing.as_default` is a context manager that puts it back.

    Raises:
        UsageError: `agent` is not an `Agent`.
    """
    global _default
    check_agent(agent)
    before = default_agent()
    if _context_default.get() is None:
        _default = agent
    else:
        _context_default.set(agent)
    return before


@contextmanager
def restore_defaults() -> Generator[None]:
    """Restore the default agent, and what `configure` changed, at the end of the block."""
    global _configured, _default
    before, here = (_configured, _default), _context_default.get()
    try:
        with restore_config_file():
            yield
    finally:
        _configured, _default = before
        _context_default.set(here)  # not by a token: a fixture may end in a different context


@contextmanager
def use_default_agent(agent: Agent) -> Generator[None]:
    """Use `agent` as the default in the block, in this context: this task or thread, and tasks started from it."""
    with restore_defaults():
        _context_default.set(agent)
        yield


@overload
def query(
    prompt: Prompt,
    options: Options | OptionsBuilder | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: type[OutputT],
    **overrides: Unpack[Settings],
) -> Query[OutputT]: ...


@overload
def query(
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
    prompt: Prompt,
    options: Options | OptionsBuilder | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: Any = None,
    **overrides: Unpack[Settings],
) -> Query[Any]:
    """Send a prompt with the default agent: await the query for the whole answer, or loop over it for messages.

    ::

        result = await ph.query("What does this repository do?", cwd="~/src/app", max_turns=5)
        print(result.raise_for_error().text)

        async for text in ph.query("Explain the parser").text_stream():
            print(text, end="")

        result = await ph.query("Extract the invoice", output_type=Invoice)  # result.output is an Invoice

    A query needs a key or a login: set ANTHROPIC_API_KEY, pass `api_key`, or use `/login` in `pilothouse chat`.
    Tools that change something need a permission: `permission_mode="acceptEdits"`, `allowed_tools`, `can_use_tool`.

    Args:
        prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user
            messages.
        options: settings that win over those of the agent, field by field.
        on_message: called once for every message, in order, while the query is awaited; sync or async.
        output_type: a dataclass, TypedDict, msgspec struct, pydantic model or JSON Schema: the answer must fit, and
            `QueryResult.output` is the value. Default None: plain text.
        **overrides: single settings that win over `options`, such as `model`, `timeout` (seconds), `max_budget_usd`;
            `pilothouse.options.TABLE` and the command `pilothouse options` explain each.

    Returns:
        A `Query`; nothing is started before it is used.

    Raises:
        UsageError: the prompt or an option cannot work; raised here, before anything is started.
    """
    agent = _context_default.get() or _default
    return agent.query(prompt, options, on_message=on_message, output_type=output_type, **overrides)


@hide_arguments
@show_options
def session(
    options: Options | OptionsBuilder | None = None,
    *,
    continue_latest: bool = False,
    fork: bool = False,
    **overrides: Unpack[Settings],
) -> Session:
    """Make a session of the default agent: a conversation with one child; use it with `async with`.

    ::

        async with ph.session(model="opus") as session:
            await session.query("My name is Alice")
            print((await session.query("What is my name?")).text)

    Args:
        options: settings that win over those of the agent, field by field.
        continue_latest: continue the latest conversation of the directory. Default False.
        fork: continue in a copy, and leave the original as it was. Default False.
        **overrides: single settings that win over `options`; `resume=id` continues a conversation.

    Returns:
        A `Session`; nothing is started before it is used.

    Raises:
        OptionsError: settings that cannot work.
    """
    return default_agent().session(options, continue_latest=continue_latest, fork=fork, **overrides)


_PACKAGE = __name__.partition(".")[0]


def _user_stack_level() -> int:
    depth, frame = 1, inspect.currentframe()
    frame = frame and frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        depth, frame = depth + 1, frame.f_back
    return depth
