"""Validation of one option, and of combinations: options that exclude each other, and options that need another.

Pure. Every failure raises `OptionsError`, which names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.errors import OptionsError
from pilothouse.options.table import TABLE
from pilothouse.options.value_errors import InvalidValueError


def validate_value(name: str, value: Any) -> Any:
    """Return the stored form of the value of an option; None stays None.

    Raises:
        OptionsError: there is no such option, or the value is not valid.
    """
    option = TABLE.get(name)
    if option is None:
        from pilothouse.options.unknown_options import make_unknown_option_error  # only needed for an error

        raise make_unknown_option_error(name)
    if value is None:
        return None
    try:
        return option.value_type.clean(value)
    except InvalidValueError as fault:
        told = fault.describe(secret=option.secret)
    raise OptionsError(f"option {name!r}: {told}", option=name)


def check_combination(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check the combination of values that are valid one by one.

    Raises:
        OptionsError: some values exclude each other, or one lacks what it needs; names their `origins`, if known.
    """
    check_conflicts(values, origins)
    if _DEPENDENT.isdisjoint(values):
        return
    for need in REQUIREMENTS:
        if values.get(need.name) and not any(values.get(other) for other in need.any_of):
            needed = " or ".join(repr(other) for other in need.any_of)
            raise OptionsError(f"option {need.name!r} needs {needed}: {need.advice}", option=need.name)


def check_conflicts(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check as `check_combination` does, but ignore what is missing: a lower layer may have it."""
    if _EXCLUSIVE.isdisjoint(values):
        return
    for conflict in CONFLICTS:
        if values.get(conflict.first) and values.get(conflict.second) and conflict.applies(values):
            names = (conflict.first, conflict.second)
            who = "".join(f"; {name!r} comes from {origins[name]}" for name in names if name in origins)
            raise OptionsError(
                f"options {conflict.first!r} and {conflict.second!r} exclude each other: {conflict.advice}{who}",
                option=conflict.first,
            )


Values = Mapping[str, Any]


ISOLATED_VARIABLES = frozenset({"CLAUDE_CONFIG_DIR", "HOME"})
"""Variables that have their own values in an isolated child."""


class Conflict(Struct, frozen=True):
    """Two options that exclude each other, at least where `applies` is true; `advice` is what to do instead."""

    first: str
    second: str
    advice: str
    applies: Callable[[Values], bool] = lambda values: True


class Requirement(Struct, frozen=True):
    """An option that has no meaning without one of `any_of`."""

    name: str
    any_of: tuple[str, ...]
    advice: str


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and not value.lstrip().startswith("{")


CONFLICTS = (
    Conflict("resume", "continue_conversation", "pass the id of the session, or ask for the latest one, not both"),
    Conflict(
        "session_id",
        "resume",
        "a resumed session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "session_id",
        "continue_conversation",
        "a continued session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "append_system_prompt",
        "system_prompt",
        "the preset has an `append` of its own; use one of the two",
        lambda values: getattr(values["system_prompt"], "append", None) is not None,
    ),
    Conflict(
        "permission_mode",
        "restricted",
        "the CLI refuses 'bypassPermissions' there",
        lambda values: values["permission_mode"] == "bypassPermissions",
    ),
    Conflict(
        "sandbox",
        "settings",
        "the sandbox is a part of the settings, and pilothouse does not read their file: pass the settings as a "
        "mapping, or write the sandbox into the file",
        lambda values: _is_path(values["settings"]),
    ),
    Conflict(
        "wait_for_mcp",
        "prompt_via",
        "the argv form starts with the prompt, and has no control protocol to wait with; use 'stdin'",
        lambda values: values["prompt_via"] == "argv",
    ),
    Conflict("isolation", "setting_sources", "it loads no settings files"),
    Conflict("isolation", "config_dir", "it has a directory of its own"),
    Conflict(
        "isolation",
        "env",
        "HOME and CLAUDE_CONFIG_DIR are its own; leave them out of `env`",
        lambda values: (
            not ISOLATED_VARIABLES.isdisjoint(name for name, value in values["env"].items() if value is not None)
        ),
    ),
    Conflict(
        "session_store",
        "enable_file_checkpointing",
        "what files were before stays on the disk of this machine, so that a session from a store cannot bring it back",
    ),
    Conflict(
        "permission_prompt_tool_name",
        "permission_prompts",
        "'none' denies without asking",
        lambda values: values["permission_prompts"] == "none",
    ),
)

REQUIREMENTS = (
    Requirement("fork_session", ("resume", "continue_conversation"), "a fork needs a session to fork from"),
    Requirement("resume_session_at", ("resume",), "it is a place in the session that is resumed"),
    Requirement("resume_drops_turn", ("resume_session_at",), "it is given up by resuming before it"),
)

# Most layers set one or two options, and none of these.
_EXCLUSIVE = frozenset(conflict.first for conflict in CONFLICTS)
_DEPENDENT = frozenset(need.name for need in REQUIREMENTS)
