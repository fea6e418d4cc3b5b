"""`Options`: an immutable set of settings, validated when it is made.

Owns validation and the merging of layers. Knows the table; knows nothing of rendering, files or processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack, cast

from pilothouse.errors import OptionsError
from pilothouse.options.settings import Effort, PermissionMode, Settings, SettingSource
from pilothouse.options.table import TABLE, Option

# Pairs that cannot both be set; the text says what to do instead.
_EXCLUSIVE = (("resume", "continue_conversation", "pass the id of the session, or ask for the latest one, not both"),)
_NEEDS = (("fork_session", ("resume", "continue_conversation"), "a fork needs a session to fork from"),)
_SHOWN_CHARS = 80  # of a value that is echoed in an error


class Options:
    """Every setting of a query, keyword-only and immutable.

    Only what was set is kept, so that layers can be merged field by field; reading an attribute that was not set gives
    the default. `None` sets a field back to its default. The options and their types are those of
    `pilothouse.options.TABLE`. (R34, L6, E44)

    Raises:
        OptionsError: unknown name, wrong type, or values that exclude each other; before anything is started.
            (E24, E45)
    """

    __slots__ = ("_values",)

    if TYPE_CHECKING:
        model: str | None
        fallback_model: str | None
        effort: Effort | None
        max_thinking_tokens: int | None
        betas: list[str] | None
        system_prompt: str | None
        append_system_prompt: str | None
        verbatim_prompts: bool
        prompt_via: str
        tools: list[str] | str | None
        allowed_tools: list[str] | None
        disallowed_tools: list[str] | None
        permission_mode: PermissionMode | None
        max_turns: int | None
        max_budget_usd: float | None
        timeout: float | None
        idle_timeout: float | None
        control_timeout: float
        max_line_bytes: int
        cwd: str | None
        add_dirs: list[str] | None
        cli: str
        api_key: str | None
        env: Mapping[str, str | None] | None
        inherit_env: bool
        transport: Any
        stderr: Any
        settings: Mapping[str, Any] | str | None
        setting_sources: list[SettingSource] | None
        mcp_servers: Mapping[str, Any] | str | None
        strict_mcp_config: bool
        agents: Mapping[str, Any] | None
        bare: bool
        extra_args: Mapping[str, str | None] | None
        resume: str | None
        continue_conversation: bool
        fork_session: bool
        session_id: str | None
        persist_session: bool
        json_schema: Mapping[str, Any] | None
        partial_messages: bool
        include_hook_events: bool

    def __init__(self, **settings: Unpack[Settings]) -> None:
        values = {name: _checked(name, value) for name, value in settings.items()}
        _check_combination(values)
        object.__setattr__(self, "_values", MappingProxyType(values))

    def __getattr__(self, name: str) -> Any:
        option = TABLE.get(name)
        if option is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = self._values.get(name)
        return cast("Any", option.default if value is None else value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Options are immutable; use options.with_({name}=…) to get changed ones")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return dict(self._values) == dict(other._values) if isinstance(other, Options) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self._values),)

    def __repr__(self) -> str:
        shown = (f"{name}={'[secret]' if TABLE[name].secret else repr(value)}" for name, value in self._values.items())
        return f"Options({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """The options that were set, by name, as a new dictionary."""
        return dict(self._values)

    def with_(self, **changes: Unpack[Settings]) -> Options:
        """A copy with `changes`; this object stays as it is. (R35, L21)"""
        return _restore({**self._values, **changes})

    def merge(self, other: Options | None) -> Options:
        """A copy in which every option that `other` sets wins, field by field. (L17, L20)"""
        return self if other is None else _restore({**self._values, **other.as_dict()})


def _restore(values: Mapping[str, Any]) -> Options:
    return Options(**cast("Settings", values))


def _checked(name: str, value: Any) -> Any:
    option = TABLE.get(name)
    if option is None:
        import difflib  # only on the way to an error

        close = difflib.get_close_matches(name, TABLE, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "; `pilothouse.options.TABLE` lists them"
        raise OptionsError(f"unknown option {name!r}{hint}", option=name)
    if value is None:
        return None
    if not _accepts(option, value):
        raise OptionsError(
            f"option {name!r}: expected {option.kind.expected}, got {_shown(option, value)}", option=name
        )
    return option.kind.clean(value)


def _accepts(option: Option, value: Any) -> bool:
    try:
        return bool(option.kind.accepts(value))
    except Exception:  # noqa: BLE001 - a value with odd magic methods is a wrong value, not a crash
        return False


def _shown(option: Option, value: Any) -> str:
    kind = type(value).__name__
    if option.secret:
        return f"a value of type {kind}"
    text = ascii(value)
    return f"{text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '…'} ({kind})"


def _check_combination(values: Mapping[str, Any]) -> None:
    for first, second, advice in _EXCLUSIVE:
        if values.get(first) and values.get(second):
            raise OptionsError(f"options {first!r} and {second!r} exclude each other: {advice}", option=first)
    for name, any_of, advice in _NEEDS:
        if values.get(name) and not any(values.get(other) for other in any_of):
            needed = " or ".join(repr(other) for other in any_of)
            raise OptionsError(f"option {name!r} needs {needed}: {advice}", option=name)
