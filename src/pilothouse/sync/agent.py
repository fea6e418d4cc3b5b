"""The blocking `Agent`, and the module-level functions over the default agent.

Owns nothing of its own: configuration and the default agent are those of `pilothouse.client`, so that both worlds of
one program share them.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from pilothouse import client
from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage
from pilothouse.client.result import OutputT
from pilothouse.errors import UsageError
from pilothouse.options import Options
from pilothouse.options.signatures import copy_method_signature, copy_signature
from pilothouse.sync.portal import get_portal, send_to_caller
from pilothouse.sync.queries import Query, iterate_in_thread
from pilothouse.tracebacks import user_class, user_function

if TYPE_CHECKING:
    from pilothouse.options import OptionsBuilder, Settings
    from pilothouse.options.policy import Policy
    from pilothouse.sync.sessions import Session


@user_class
class Agent:
    """A reusable configuration, for plain code. Immutable; any threads may share it.

    What an agent does not set comes from `configure()`, the configuration file, and `PILOTHOUSE_*` variables, in this
    order, as they are when a query is made. (R34)

    Args:
        options: settings to start from.
        **settings: settings that win over `options`; `pilothouse.Options` explains them.

    Raises:
        OptionsError: an unknown option or a wrong value.
    """

    __slots__ = ("_agent",)

    def __init__(self, options: Options | OptionsBuilder | None = None, **settings: Unpack[Settings]) -> None:
        self._agent = client.Agent(options, **settings)

    @classmethod
    def wrap(cls, agent: client.Agent) -> Self:
        """The blocking twin of an agent of `pilothouse`, with what it can do and is set to."""
        made = cls.__new__(cls)
        made._agent = agent  # noqa: SLF001 - of this very class
        return made

    @property
    def async_agent(self) -> client.Agent:
        """The agent of `pilothouse` that this one is the twin of."""
        return self._agent

    def __repr__(self) -> str:
        return f"pilothouse.sync.{self._agent!r}"

    @property
    def options(self) -> Options:
        """The settings that a query of this agent gets, all layers together; `.explain()` says where each comes from.

        Raises:
            OptionsError: the configuration file or a variable says something impossible.
        """
        return self._agent.options

    @copy_method_signature(client.Agent.with_options)
    def with_options(self, *args: Any, **named: Any) -> Agent:
        """A new agent with changed settings; this one stays as it is. (L18, L21)."""
        return self.wrap(self._agent.with_options(*args, **named))

    @copy_method_signature(client.Agent.effective_policy)
    def effective_policy(self, *args: Any, **named: Any) -> Policy:
        """What runs unasked, what asks, what is denied, in a query of this agent; see the twin of `pilothouse`."""
        return self._agent.effective_policy(*args, **named)

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
        """Ask one question.

        Args:
            prompt: text, a list of content blocks (text, images, documents), or an iterable of user messages, sent as
                they come. A plain iterable is read in a thread of its own, an async one on the event loop of
                `pilothouse.sync`.
            options: settings that win over those of the agent, field by field. (L17, L20)
            on_message: called once for every message, in order, in the thread that waits in `result()`; sync or
                async. (L57)
            output_type: a msgspec struct, dataclass, TypedDict or pydantic model, or a JSON Schema: the answer must
                fit, and `QueryResult.output` is the value.
            **overrides: single settings that win over `options`. The callback `stderr` runs on the event loop of
                `pilothouse.sync` and should not take long.

        Raises:
            UsageError: the prompt or an option cannot work; raised here, before anything is started.
        """
        handed = send_to_caller if callable(on_message) else on_message
        return Query(self._agent.query(iterate_in_thread(prompt), *args, on_message=handed, **named), on_message)

    @copy_method_signature(client.Agent.session)
    def session(self, *args: Any, **named: Any) -> Session:  # noqa: D417
        """A conversation with one child, over many queries; use it with `with`. (G12)

        No child is started here.

        Args:
            options: settings that win over those of the agent, field by field.
            continue_latest: go on with the latest conversation of the directory.
            fork: go on in a copy, and leave the original as it was. (E30)
            **overrides: single settings that win over `options`; `resume=id` goes on with a conversation. (L60)

        Raises:
            OptionsError: settings that cannot work.
            UsageError: called on the event loop of `pilothouse.sync`.
        """
        from pilothouse.sync.sessions import Session  # one query needs none

        return Session(partial(self._agent.session, *args, **named))

    @copy_method_signature(client.Agent.prewarm)
    def prewarm(self, *args: Any, **named: Any) -> None:
        """Start children ahead and wait until they are ready; the next queries need not wait for a start.

        See the twin of `pilothouse` for what it takes and raises.
        """
        get_portal().call(partial(self._agent.prewarm, *args, **named))

    def close(self) -> None:
        """End the children that `prewarm` has started and nobody uses. Queries may go on. Idempotent."""
        get_portal().call(self._agent.aclose, finish=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_default = Agent.wrap(client.default_agent())


@user_function
@copy_signature(client.configure)
def configure(*args: Any, **named: Any) -> Agent:
    """Change settings for every agent of this process, blocking and asynchronous, and read the file again.

    Calls add up, field by field; `None` sets a field back to its default. Queries that run are not touched.

    Returns:
        The default agent.

    Raises:
        OptionsError: an unknown option or a wrong value; then nothing is changed.
    """
    client.configure(*args, **named)
    return default_agent()


def default_agent() -> Agent:
    """The agent behind the module-level `query`, over the default agent of `pilothouse`."""
    global _default
    agent = client.default_agent()
    if _default.async_agent is not agent:
        _default = Agent.wrap(agent)
    return _default


def set_default_agent(agent: Agent) -> Agent:
    """Put another agent behind the module-level `query`, here and in `pilothouse`.

    Returns:
        The one before.

    Raises:
        UsageError: it is no agent of `pilothouse.sync`.
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
    """Ask one question with the default agent: `.result()` gives the whole answer, a loop messages.

    ::

        result = ph.query("What does this repository do?", cwd="~/src/app", max_turns=5).result()
        print(result.raise_for_error().text)

        for text in ph.query("Explain the parser").text_stream():
            print(text, end="")

        result = ph.query("Extract the invoice", output_type=Invoice).result()  # .output is one

    Without a key or a login no answer comes: set ANTHROPIC_API_KEY, pass `api_key`, or log in by running `claude` once.
    Tools that change something need a permission: `permission_mode="acceptEdits"`, `allowed_tools`, `can_use_tool`.

    Args:
        prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user messages.
        options: settings that win over those of the agent, field by field.
        on_message: called once for every message, in order, in the thread that waits in `result()`; sync or async.
        output_type: a dataclass, TypedDict, msgspec struct, pydantic model or JSON Schema: the answer must fit, and
            `QueryResult.output` is the value. Default None: plain text.
        **overrides: single settings that win over `options`, such as `model`, `timeout` (seconds), `max_budget_usd`;
            `pilothouse.options.TABLE` and the command `pilothouse options` explain each.

    Returns:
        A `Query`; nothing is started before it is used.

    Raises:
        UsageError: the prompt or an option cannot work; raised here, before anything is started.
    """
    return default_agent().query(*args, **named)


@user_function
@copy_signature(client.session)
def session(*args: Any, **named: Any) -> Session:  # noqa: D417
    """A conversation of the default agent with one child, over many queries; use it with `with`.

    ::

        with ph.session(model="opus") as session:
            session.query("My name is Alice").result()
            print(session.query("What is my name?").result().text)

    Args:
        options: settings that win over those of the agent, field by field.
        continue_latest: go on with the latest conversation of the directory. Default False.
        fork: go on in a copy, and leave the original as it was. Default False.
        **overrides: single settings that win over `options`; `resume=id` goes on with a conversation.

    Returns:
        A `Session`; nothing is started before it is used.

    Raises:
        OptionsError: settings that cannot work.
    """
    return default_agent().session(*args, **named)
