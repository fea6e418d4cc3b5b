"""The values of options: validation of one and of combinations, and `Explanation`, which shows where each comes from.

Combinations: options that cannot be combined, and options that need another. Pure. Every failure raises
`OptionsError`, which names the option; for a name that is not an option, it says the name in pilothouse, or what to use
instead. This module must not know rendering or the merging of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.errors import OptionsError
from pilothouse.hints import find_similar_name
from pilothouse.options.table import TABLE
from pilothouse.options.value_types import InvalidValueError


def validate_value(name: str, value: Any) -> Any:
    """Return the stored form of the value of an option; None stays None. Raises OptionsError."""
    option = TABLE.get(name)
    if option is None:
        raise make_unknown_option_error(name)
    if value is None:
        return None
    try:
        return option.value_type.clean(value)
    except InvalidValueError as fault:
        problem = fault.describe(secret=option.secret)
    raise OptionsError(f"option {name!r}: {problem}", option=name)


def check_combination(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check the combination of values that are valid one by one. An OptionsError names their `origins`, if known."""
    check_conflicts(values, origins)
    for need in REQUIREMENTS:
        if values.get(need.name) and not any(values.get(other) for other in need.any_of):
            needed = " or ".join(repr(other) for other in need.any_of)
            raise OptionsError(f"option {need.name!r} needs {needed}: {need.advice}", option=need.name)


def check_conflicts(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check as `check_combination` does, but ignore what is missing: a lower layer may have it."""
    given = {name for name in values if _is_set(values, name)}  # few, and every layer is checked
    for conflict in CONFLICTS:
        if conflict.first in given and conflict.second in given and conflict.applies(values):
            names = (conflict.first, conflict.second)
            sources = "".join(f"; {name!r} comes from {origins[name]}" for name in names if name in origins)
            raise OptionsError(
                f"options {conflict.first!r} and {conflict.second!r} cannot be combined: {conflict.advice}{sources}",
                option=conflict.first,
            )


Values = Mapping[str, Any]


def _is_set(values: Values, name: str) -> bool:
    value = values.get(name)
    return value is not None if name in PERMISSION_OPTIONS else bool(value)  # an empty `Asks` is false, and decides


class Conflict(Struct, frozen=True):
    """Two options that cannot be combined, at least where `applies` is true; `advice` is what to do instead."""

    first: str
    second: str
    advice: str
    applies: Callable[[Values], bool] = lambda values: True


class Requirement(Struct, frozen=True):
    """An option that has no meaning without one of `any_of`."""

    name: str
    any_of: tuple[str, ...]
    advice: str


PERMISSION_OPTIONS = ("can_use_tool", "confirm", "on_question", "on_plan", "asks")
"""Options that answer permission requests of the CLI."""

# What to do instead stands below the two options.
# fmt: off
CONFLICTS = (
    Conflict("resume", "continue_conversation", "pass the id of the session, or ask for the latest one, not both"),
    Conflict("session_id", "resume", "a resumed session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session")),
    Conflict("session_id", "continue_conversation",
        "a continued session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session")),
    Conflict("append_system_prompt", "system_prompt", "the preset has its own `append`; use one of the two",
        lambda values: getattr(values["system_prompt"], "append", None) is not None),
    Conflict("permission_mode", "restricted", "the CLI refuses 'bypassPermissions' there",
        lambda values: values["permission_mode"] == "bypassPermissions"),
    Conflict("sandbox", "settings",
        "the sandbox is a part of the settings, and pilothouse does not read their file: pass the settings as a "
        "mapping, or write the sandbox into the file",
        lambda values: isinstance(values["settings"], str) and not values["settings"].lstrip().startswith("{")),
    Conflict("settings", "extra_args", "the CLI takes one of the two, and forgets the other: omit the flag --settings",
        lambda values: "settings" in values["extra_args"]),
    Conflict("sandbox", "extra_args", "the CLI takes one of the two, and forgets the other: pass `settings` instead",
        lambda values: "settings" in values["extra_args"]),
    Conflict("managed_settings", "extra_args", "the CLI takes one of the two: omit the flag --managed-settings",
        lambda values: "managed-settings" in values["extra_args"]),
    Conflict("wait_for_mcp", "prompt_via",
        "the argv form starts with the prompt and has no control protocol; use 'stdin'",
        lambda values: values["prompt_via"] == "argv"),
    Conflict("middleware", "prompt_via", "the argv form sends one prompt, and nothing after a result; use 'stdin'",
        lambda values: values["prompt_via"] == "argv"),
    Conflict("disallowed_tools", "json_schema",
        "typed output, also of `output_type`, is a call of the tool StructuredOutput, which these rules deny; to offer "
        "the model no other tool, pass tools=[]",
        lambda values: any(rule.partition("(")[0].strip() in ("StructuredOutput", "*")
            for rule in values["disallowed_tools"])),
    Conflict("isolation", "setting_sources", "it loads no settings files"),
    Conflict("isolation", "config_dir", "it uses its own directory"),
    Conflict("isolation", "env", "it sets HOME and CLAUDE_CONFIG_DIR itself; omit them from `env`",
        lambda values: any(values["env"].get(name) is not None for name in ("CLAUDE_CONFIG_DIR", "HOME"))),
    Conflict("session_store", "enable_file_checkpointing",
        "file checkpoints stay on the disk of this machine, so a session from a store cannot restore them"),
    Conflict("permission_prompt_tool_name", "permission_prompts", "'none' denies without a request",
        lambda values: values["permission_prompts"] == "none"),
    *(Conflict("permission_prompts", name, "'none' denies without a request",
        lambda values: values["permission_prompts"] == "none") for name in PERMISSION_OPTIONS),
    # "stdio" sends the requests to these.
    *(Conflict("permission_prompt_tool_name", name, "only one of them can decide",
        lambda values: values["permission_prompt_tool_name"] != "stdio") for name in PERMISSION_OPTIONS),
    Conflict("asks", "confirm", "both ask a person"),
)
# fmt: on

REQUIREMENTS = (
    Requirement("fork_session", ("resume", "continue_conversation"), "a fork needs a session to fork from"),
    Requirement("resume_session_at", ("resume",), "it is a position in the resumed session"),
    Requirement("resume_drops_turn", ("resume_session_at",), "dropping a turn needs a message to resume at"),
)


DEFAULT_ORIGIN = "default"
DIRECT_ORIGIN = "set here"


class OptionExplanation(Struct, frozen=True):
    """One option: its value, shown as text without secrets, and where it comes from."""

    name: str
    value: str
    origin: str

    @property
    def is_default(self) -> bool:
        """Whether nothing sets it."""
        return self.origin == DEFAULT_ORIGIN


class Explanation(Mapping[str, OptionExplanation]):
    """Every option by name. As text: the options that were set, one per line."""

    def __init__(self, rows: Mapping[str, OptionExplanation]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> OptionExplanation:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        rows = [row for row in self.values() if not row.is_default]
        if not rows:
            return "every option has its default value"
        names, values = (max(len(getattr(row, field)) for row in rows) for field in ("name", "value"))
        return "\n".join(f"{row.name:<{names}}  {row.value:<{values}}  {row.origin}" for row in rows)

    def __repr__(self) -> str:
        return f"<Explanation\n{self}\n>"


def format_options(values: Mapping[str, Any]) -> str:
    """Return the repr of options with these values, with possible keys masked."""
    shown = (f"{name}={TABLE[name].format_value(value)}" for name, value in values.items())
    return f"Options({', '.join(shown)})"


_OTHER_NAMES = {
    "add_dirs": "additionalDirectories add_dir",
    "agents": "agent_definitions",
    "allowed_tools": "allow_tools auto_approve",
    "api_key": "anthropic_api_key",
    "api_max_retries": "max_retries",
    "append_system_prompt": "append_prompt instructions",
    "auth_token": "token",
    "can_use_tool": "permission_callback permission_handler",
    "cli": "cli_path pathToClaudeCodeExecutable claude_path executable_path path",
    "continue_conversation": "continue continue_ continue_latest",
    "cwd": "directory working_dir working_directory",
    "disallowed_tools": "denied_tools",
    "enable_file_checkpointing": "file_checkpointing",
    "env": "environment",
    "fork_session": "fork",
    "json_schema": "output_format outputFormat output_schema response_format schema",
    "max_budget_usd": "budget cost_limit max_budget max_cost",
    "max_line_bytes": "max_buffer_size",
    "max_output_tokens": "max_tokens",
    "max_thinking_tokens": "max_thinking thinking_budget thinking_tokens",
    "mcp_servers": "mcp_config",
    "model": "model_name",
    "partial_messages": "include_partial_messages includePartialMessages stream",
    "permission_mode": "mode permission",
    "permission_prompt_tool_name": "permission_prompt_tool",
    "persist_session": "no_session_persistence",
    "plugins": "plugin_dir",
    "resume": "resume_session resume_session_id",
    "stderr": "on_stderr",
    "system_prompt": "system",
    "timeout": "cli_timeout process_timeout timeout_seconds",
    "title": "name",
    "transport": "adapter",
}
"""For options, their names in other SDKs and libraries, flags of the CLI, and likely guesses."""

OPTION_ALIASES = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
"""Names of options elsewhere, and their names in pilothouse."""

NOT_OPTIONS: dict[str, str] = {
    "abort_controller": "cancel the task, or call `query.interrupt()`",
    "debug_stderr": "pass a callable as `stderr`",
    "executable": "the CLI is a standalone program without a JavaScript runtime; `cli` selects it",
    "executable_args": "the CLI is a standalone program without a JavaScript runtime; `cli` selects it",
    "load_timeout_ms": "use `load_timeout`, in seconds",
    "mcp_servers_delivery": "servers always travel in a private file",
    "on_message": "it is an argument of `query()`, not an option",
    "output_type": "it is an argument of `query()`, not an option",
    "plugin_delivery": "plugins always travel as flags; their paths are not secret",
    "prompt": "it is the first argument of `query()`, not an option",
    "spawn_claude_code_process": "pass a Transport of your own as `transport`",
    "temperature": "Claude Code does not let it be set",
    "top_p": "Claude Code does not let it be set",
    "with_options": "a builder sets one option per call, and ends with `build()`; an `Agent` has `with_options`",
}
"""Names without an option in pilothouse, and what to use instead."""


MIN_SIMILARITY = 0.7
"""How similar a name must be to be suggested; names of other things are about 0.6."""


def to_snake_case(name: str) -> str:
    """Convert `maxTurns` to `max_turns`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).replace("-", "_").lstrip("_")


def make_unknown_option_error(name: str) -> OptionsError:
    """Make the error for `name`, which is not an option: its name in pilothouse, or what to do instead."""
    plain = to_snake_case(name)
    spelled = {to_snake_case(other): known for other, known in OPTION_ALIASES.items()}
    known = OPTION_ALIASES.get(name) or spelled.get(plain) or (plain if plain in TABLE else None)
    if known is not None:
        return OptionsError(
            f"unknown option {name!r}: the name here is {known!r}{_describe_difference(known, name)}", option=name
        )
    if plain in NOT_OPTIONS:
        return OptionsError(f"there is no option {name!r}: {NOT_OPTIONS[plain]}", option=name)
    near = find_similar_name(plain, TABLE, MIN_SIMILARITY)
    hint = f"; did you mean {near!r}?" if near else "; `pilothouse.options.TABLE` lists them"
    return OptionsError(f"unknown option {name!r}{hint}", option=name)


def _describe_difference(known: str, name: str) -> str:
    if known == "json_schema" and "format" in to_snake_case(name):
        return ", and takes the schema itself"
    return ", with the opposite meaning" if to_snake_case(name).startswith("no_") else ""
