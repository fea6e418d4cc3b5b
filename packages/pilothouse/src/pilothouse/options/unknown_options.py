"""The error for a name that is not an option: its name in pilothouse, or what to use instead."""

from __future__ import annotations

from pilothouse.errors import OptionsError
from pilothouse.options.table import TABLE
from pilothouse.similar_names import find_similar_name

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
