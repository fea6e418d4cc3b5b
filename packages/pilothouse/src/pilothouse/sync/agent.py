"""The blocking `Agent`, and the module-level functions for the default agent.

Configuration and the default agent are those of `pilothouse.client`, so that blocking and asynchronous code of one
program share them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload

from pilothouse import client
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage
from pilothouse.client.result import OutputT
from pilothouse.errors import UsageError
from pilothouse.options import Options
from pilothouse.options.signatures import copy_method_signature, copy_signature
from pilothouse.sync.portal import get_portal
from pilothouse.sync.queries import Query, hand_to_caller, iterate_in_thread
from pilothouse.tracebacks import user_class, user_function

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder, Settings
    from pilothouse.sync.sessions import Session


@user_class
class Agent:
    """A reusable configuration for blocking code. Immutable; threads may share it.

    Settings that an agent does not have come from `configure()`, the configuration file, and `PILOTHOUSE_*`
    variables, in this order, as they are when a query is made.

    Args:
        options: settings to start from.
        **settings: settings that override `options`; see `pilothouse.Options`.

    Raises:
        OptionsError: an unknown option or a wrong value.
    """

    __slots__ = ("_agent",)

    def __init__(self, options: Options | OptionsBuilder | None = None, **settings: Unpack[Settings]) -> None:
        self._agent = client.Agent(options, **settings)

    @classmethod
    def wrap(cls, agent: client.Agent) -> Self:
        """Wrap an asynchronous agent with its settings and backend. Raises UsageError if it is none."""
        if not isinstance(agent, client.Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"agent: expected an Agent of pilothouse, got {type(cast('object', agent)).__name__}")
        made = cls.__new__(cls)
        made._agent = agent  # noqa: SLF001 - of this class
        return made

    @property
    def async_agent(self) -> client.Agent:
        """The wrapped agent of `pilothouse`."""
        return self._agent

    def __repr__(self) -> str:
        return f"pilothouse.sync.{self._agent!r}"

    @property
    def options(self) -> Options:
        """The effective settings of this agent's queries, from all layers; `.explain()` names the source of each.

        Raises:
            OptionsError: a value in the configuration file or a variable is not valid.
        """
        return self._agent.options

    @copy_method_signature(client.Agent.with_options)
    def with_options(self, *args: Any, **named: Any) -> Agent:
        """Return a new agent with changed settings; this one is not changed."""
        return self.wrap(self._agent.with_options(*args, **named))

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

    @copy_method_signature(client.Agent.query)
    def query(self, prompt: Prompt, *args: Any, on_message: OnMessage | None = None, **named: Any) -> Query[Any]:  # noqa: D417
        """Make a query.

        Args:
            prompt: text, a list of content blocks (text, images, documents), or an iterable of user messages, sent as
                they come. A plain iterable is read in its own thread, an async one on the event loop of
                `pilothouse.sync`.
            options: settings that override those of the agent, field by field.
            on_message: called once for every message, in order, in the thread that waits in `result()`; sync or
                async.
            output_type: a msgspec struct, dataclass, TypedDict or pydantic model, or a JSON Schema: the answer must
                fit, and `QueryResult.output` is the value.
            **overrides: single settings that override `options`. The callback `stderr` runs on the event loop of
                `pilothouse.sync` and should be fast.

        Raises:
            UsageError: the prompt or an option is not valid; raised here, before anything is started.
        """
        handed = hand_to_caller(on_message)
        return Query(self._agent.query(iterate_in_thread(prompt), *args, on_message=handed, **named), on_message)

    @copy_method_signature(client.Agent.session)
    def session(self, *args: Any, **named: Any) -> Session:  # noqa: D417
        """Make a session: a conversation with one process, over many queries; use it with `with`.

        The process is not started here.

        Args:
            options: settings that override those of the agent, field by field.
            continue_latest: continue the latest conversation of the directory.
            fork: continue a copy, and leave the original unchanged.
            **overrides: single settings that override `options`; `resume=id` continues a conversation.

        Raises:
            OptionsError: settings that are not valid.
            UsageError: called on the event loop of `pilothouse.sync`.
        """
        from pilothouse.sync.sessions import Session  # a single query does not need it

        return Session(partial(self._agent.session, *args, **named))

    @copy_method_signature(client.Agent.prewarm)
    def prewarm(self, *args: Any, **named: Any) -> None:
        """Start processes in advance and wait until they are ready; the next queries start without delay.

        Needs a `transport` that keeps processes ready, such as `pilothouse_pool.Pool`.

        See `pilothouse.Agent.prewarm` for arguments and errors.
        """
        get_portal().call(partial(self._agent.prewarm, *args, **named))


_default = Agent.wrap(client.default_agent())


@user_function
@copy_signature(client.configure)
def configure(*args: Any, **named: Any) -> Agent:
    """Change settings for every agent of this process, blocking and asynchronous; `file` names a configuration file.

    Calls accumulate, field by field; `None` sets a field back to its default. Running queries are not affected.

    Returns:
        The default agent.

    Raises:
        OptionsError: an unknown option or a wrong value; then nothing is changed.
        ConfigError: the file cannot be read, or has an invalid value; then nothing is changed.
    """
    client.configure(*args, **named)
    return default_agent()


def default_agent() -> Agent:
    """Return the agent of the module-level `query`, which wraps the default agent of `pilothouse`."""
    global _default
    agent = client.default_agent()
    if _default.async_agent is not agent:
        _default = Agent.wrap(agent)
    return _default


def set_default_agent(agent: Agent) -> Agent:
    """Replace the agent of the module-level `query`, here and in `pilothouse`.

    Returns:
        The previous agent.

    Raises:
        UsageError: `agent` is not an agent of `pilothouse.sync`.
    """
    global _default
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"expected an Agent of pilothouse.sync, got {type(agent).__name__}")
    before = default_agent()
    client.set_default_agent(agent.async_agent)
    _default = agent
    return before


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


@user_function
@copy_signature(client.query)
def query(*args: Any, **named: Any) -> Query[Any]:  # noqa: D417
    """Make a query with the default agent: `.result()` returns the whole answer, a loop yields messages.

    ::

        result = ph.query("What does this repository do?", cwd="~/src/app", max_turns=5).result()
        print(result.raise_for_error().text)

        for text in ph.query("Explain the parser").text_stream():
            print(text, end="")

        result = ph.query("Extract the invoice", output_type=Invoice).result()  # .output is one

    The CLI needs a key or a login: set ANTHROPIC_API_KEY, pass `api_key`, or log in by running `claude` once. Tools
    that change something need a permission: `permission_mode="acceptEdits"`, `allowed_tools`, `can_use_tool`.

    Args:
        prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user
            messages.
        options: settings that override those of the agent, field by field.
        on_message: called once for every message, in order, in the thread that waits in `result()`; sync or async.
        output_type: a dataclass, TypedDict, msgspec struct, pydantic model or JSON Schema: the answer must fit, and
            `QueryResult.output` is the value. Default None: plain text.
        **overrides: single settings that override `options`, such as `model`, `timeout` (seconds), `max_budget_usd`;
            `pilothouse.options.TABLE` and the command `pilothouse options` explain each.

    Returns:
        A `Query`; nothing is started before it is used.

    Raises:
        UsageError: the prompt or an option is not valid; raised here, before anything is started.
    """
    return default_agent().query(*args, **named)


@user_function
@copy_signature(client.session)
def session(*args: Any, **named: Any) -> Session:  # noqa: D417
    """Make a session of the default agent: one process, many queries; use it with `with`.

    ::

        with ph.session(model="opus") as session:
            session.query("My name is Alice").result()
            print(session.query("What is my name?").result().text)

    Args:
        options: settings that override those of the agent, field by field.
        continue_latest: continue the latest conversation of the directory. Default False.
        fork: continue a copy, and leave the original unchanged. Default False.
        **overrides: single settings that override `options`; `resume=id` continues a conversation.

    Returns:
        A `Session`; nothing is started before it is used.

    Raises:
        OptionsError: settings that are not valid.
    """
    return default_agent().session(*args, **named)
