"""The error for a name that is not an option: its name in pilothouse, or what to use instead.

Loaded only when such an error is raised.
"""

from __future__ import annotations

from pilothouse.errors import OptionsError
from pilothouse.options.table import TABLE

OPTION_ALIASES: dict[str, str] = {
    # the other Python SDK
    "cli_path": "cli",
    "include_partial_messages": "partial_messages",
    "max_buffer_size": "max_line_bytes",
    "output_format": "json_schema",
    # the TypeScript SDK, for names that differ from ours in more than camelCase
    "additionalDirectories": "add_dirs",
    "continue": "continue_conversation",
    "includePartialMessages": "partial_messages",
    "outputFormat": "json_schema",
    "pathToClaudeCodeExecutable": "cli",
    # flags of the CLI
    "add_dir": "add_dirs",
    "allow_tools": "allowed_tools",
    "continue_": "continue_conversation",
    "mcp_config": "mcp_servers",
    "name": "title",
    "no_session_persistence": "persist_session",
    "permission_prompt_tool": "permission_prompt_tool_name",
    "plugin_dir": "plugins",
    # other libraries, and likely guesses
    "adapter": "transport",
    "agent_definitions": "agents",
    "anthropic_api_key": "api_key",
    "append_prompt": "append_system_prompt",
    "auto_approve": "allowed_tools",
    "budget": "max_budget_usd",
    "claude_path": "cli",
    "cli_timeout": "timeout",
    "continue_latest": "continue_conversation",
    "cost_limit": "max_budget_usd",
    "denied_tools": "disallowed_tools",
    "directory": "cwd",
    "environment": "env",
    "executable_path": "cli",
    "file_checkpointing": "enable_file_checkpointing",
    "fork": "fork_session",
    "instructions": "append_system_prompt",
    "max_budget": "max_budget_usd",
    "max_cost": "max_budget_usd",
    "max_retries": "api_max_retries",
    "max_thinking": "max_thinking_tokens",
    "max_tokens": "max_output_tokens",
    "mode": "permission_mode",
    "model_name": "model",
    "on_stderr": "stderr",
    "output_schema": "json_schema",
    "path": "cli",
    "permission": "permission_mode",
    "permission_callback": "can_use_tool",
    "permission_handler": "can_use_tool",
    "process_timeout": "timeout",
    "response_format": "json_schema",
    "resume_session": "resume",
    "resume_session_id": "resume",
    "schema": "json_schema",
    "stream": "partial_messages",
    "system": "system_prompt",
    "thinking_budget": "max_thinking_tokens",
    "thinking_tokens": "max_thinking_tokens",
    "timeout_seconds": "timeout",
    "token": "auth_token",
    "working_dir": "cwd",
    "working_directory": "cwd",
}
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
    "plugin_delivery": "plugins always travel as flags; their paths are no secrets",
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
    import difflib  # slow to import

    close = difflib.get_close_matches(plain, TABLE, n=1, cutoff=MIN_SIMILARITY)
    hint = f"; did you mean {close[0]!r}?" if close else "; `pilothouse.options.TABLE` lists them"
    return OptionsError(f"unknown option {name!r}{hint}", option=name)


def _describe_difference(known: str, name: str) -> str:
    if known == "json_schema" and "format" in to_snake_case(name):
        return ", and takes the schema itself"
    return ", with the opposite meaning" if to_snake_case(name).startswith("no_") else ""
