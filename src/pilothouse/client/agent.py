"""`Agent`: a reusable configuration and the way in; and the default agent behind the module-level functions."""

from __future__ import annotations

from typing import Any, Unpack

from pilothouse.client.prompt import Prompt
from pilothouse.client.queries import OnMessage, Query
from pilothouse.errors import OptionsError
from pilothouse.options import Options, Settings


class Agent:
    """A reusable configuration. Immutable; it keeps no state between queries, and may be shared by any tasks.

    Args:
        options: settings to start from.
        **settings: settings that win over `options`; `pilothouse.Options` explains them.

    Raises:
        OptionsError: an unknown option or a wrong value.
    """

    __slots__ = ("_options",)

    def __init__(self, options: Options | None = None, **settings: Unpack[Settings]) -> None:
        self._options = _checked(options).merge(Options(**settings))

    def __repr__(self) -> str:
        return f"Agent({self._options!r})"

    @property
    def options(self) -> Options:
        """The settings of this agent."""
        return self._options

    def with_options(self, options: Options | None = None, **changes: Unpack[Settings]) -> Agent:
        """A new agent with changed settings; this one stays as it is. (L18, L21)."""
        return Agent(self._options.merge(_checked(options)), **changes)

    def query(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        on_message: OnMessage | None = None,
        output_type: Any = None,
        **overrides: Unpack[Settings],
    ) -> Query:
        """Ask one question.

        Args:
            prompt: text, a list of content blocks (text, images, documents), or a sync or async iterable of user
                messages, sent as they come.
            options: settings that win over those of the agent, field by field. (L17, L20)
            on_message: called once for every message, in order, while the query is awaited; sync or async. (L57)
            output_type: a msgspec struct, dataclass, TypedDict or pydantic model, or a JSON Schema: the answer must
                fit, and `QueryResult.output` is the value.
            **overrides: single settings that win over `options`.

        Raises:
            UsageError: the prompt or an option cannot work; raised here, before anything is started.
        """
        settings = self._options.merge(_checked(options)).merge(Options(**overrides))
        return Query(prompt, settings, on_message=on_message, output_type=output_type)


def _checked(options: Any) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise OptionsError(f"options: expected pilothouse.Options, got {type(options).__name__}; pass keywords instead")
    return options


_default = Agent()


def default_agent() -> Agent:
    """The agent behind the module-level `query`."""
    return _default


def configure(options: Options | None = None, **settings: Unpack[Settings]) -> Agent:
    """Change settings of the default agent, for every later module-level `query`. Returns the new default agent."""
    global _default
    _default = _default.with_options(options, **settings)
    return _default


def query(
    prompt: Prompt,
    options: Options | None = None,
    *,
    on_message: OnMessage | None = None,
    output_type: Any = None,
    **overrides: Unpack[Settings],
) -> Query:
    """Ask one question with the default agent; see `Agent.query`."""
    return _default.query(prompt, options, on_message=on_message, output_type=output_type, **overrides)
