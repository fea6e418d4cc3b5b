"""`ClaudeAgentOptions` as `pilothouse.Options`, by a table of names."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

from pilothouse.errors import UsageError
from pilothouse.options import Options

from ._errors import RefusedOptionError, convert_error
from ._permissions import make_can_use_tool, make_hooks
from ._tools import make_server
from ._version import __version__
from .types import ClaudeAgentOptions

log = logging.getLogger("pilothouse.compat")

_SAME: Final = (
    "allowed_tools", "strict_mcp_config", "permission_mode", "continue_conversation", "resume", "session_id",
    "max_turns", "max_budget_usd", "disallowed_tools", "model", "fallback_model", "betas", "cwd",
    "permission_prompt_tool_name", "settings", "add_dirs", "stderr", "user", "include_hook_events",
    "forward_subagent_text",
    "fork_session", "resume_session_at", "resume_drops_turn", "skills", "sandbox", "max_thinking_tokens", "thinking",
    "effort", "enable_file_checkpointing", "session_store", "task_budget",
)  # fmt: skip
"""Options with one name and meaning. An empty value is as good as none."""
_RENAMED: Final = {"cli_path": "cli", "max_buffer_size": "max_line_bytes"}
_FLAG_OPTIONS: Final = {
    "continue": "continue_conversation",
    "resume": "resume",
    "session-id": "session_id",
    "fork-session": "fork_session",
    "include-partial-messages": "partial_messages",
}
"""Flags that pilothouse has to know: with them it generates no session id, or passes other messages on."""
_OWN_FLAGS: Final = (
    ("print", None),
    ("verbose", None),
    ("input-format", "stream-json"),
    ("output-format", "stream-json"),
)
READS_STATE: Final = "CLAUDE_CODE_SDK_READS_SESSION_STATE"
_MIN_SECONDS: Final = 0.001  # pilothouse has no limit of zero
_MIN_LINE_BYTES: Final = 1024 * 1024  # a longer line is skipped here, and the response to the handshake is a line


def make_options(given: ClaudeAgentOptions) -> Options:
    """Return the options as pilothouse takes them. Raises ValueError, TypeError if a value cannot work."""
    try:
        return Options(**_make_settings(given))
    except UsageError as error:
        raise convert_error(error) from error


def _make_settings(given: ClaudeAgentOptions) -> dict[str, Any]:
    check_store(given)
    skills: Any = given.skills
    if skills not in (None, "all") and not isinstance(skills, list | tuple):
        raise TypeError(f'ClaudeAgentOptions.skills must be a list of skill names or "all", got {skills!r}')
    values: dict[str, Any] = {name: getattr(given, name) for name in _SAME}
    values |= {ours: getattr(given, theirs) for theirs, ours in _RENAMED.items()}
    settings: dict[str, Any] = {name: value for name, value in values.items() if value or value == 0.0}
    settings["partial_messages"] = given.include_partial_messages
    settings["system_prompt"] = "" if given.system_prompt is None else given.system_prompt
    for name in ("tools", "setting_sources"):
        value = getattr(given, name)
        if value is not None:
            settings[name] = "default" if isinstance(value, Mapping) else value
    if "max_line_bytes" in settings:
        settings["max_line_bytes"] = max(settings["max_line_bytes"], _MIN_LINE_BYTES)
    if isinstance(given.max_turns, int) and given.max_turns < 1:  # no limit
        settings.pop("max_turns", None)
    if not given.resume and not given.continue_conversation:  # there is nothing to fork
        settings.pop("fork_session", None)
    if given.skills is not None:
        settings["skills"] = given.skills
    if given.mcp_servers:
        servers: Any = given.mcp_servers
        if isinstance(servers, Mapping):
            servers = {name: make_server(each) for name, each in cast("Mapping[str, Any]", servers).items()}
        settings["mcp_servers"] = servers
    if given.agents:
        settings["agents"] = {name: _make_agent(each) for name, each in given.agents.items()}
    if given.plugins:
        settings["plugins"] = [_get_plugin(each) for each in given.plugins]
    settings |= _make_rest(given)
    # The incumbent learns why the CLI does not start from its stderr.
    settings["env"] = {"CLAUDE_CODE_STARTUP_FAILURE_RESULTS": None, **make_environ(given)}
    settings |= _read_extra_args(given.extra_args)
    if settings.get("continue_conversation") and settings.pop("resume", None):
        log.warning("resume has no effect: the CLI continues the latest conversation, as continue_conversation says")
    return settings


def _read_extra_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of the program: as text, without those that are set anyway, and the rest as options."""
    flags = {name: None if value is None else str(value) for name, value in given.items()}
    flags = {name: value for name, value in flags.items() if (name, value) not in _OWN_FLAGS}
    options = {_FLAG_OPTIONS[name]: flags.pop(name) for name in (*flags,) if name in _FLAG_OPTIONS}
    values = {name: value or True for name, value in options.items()}
    return {**values, "extra_args": flags} if flags else values


def _load_settings(given: str, directory: str | Path | None) -> dict[str, Any]:
    """Read settings: JSON, or a file of it."""
    try:
        return json.loads(given if given.strip().startswith("{") else Path(directory or ".", given).read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedOptionError(f"Failed to load settings: {error}") from error


def _make_rest(given: ClaudeAgentOptions) -> dict[str, Any]:
    made: dict[str, Any] = {"restart": "never"}
    if given.sandbox and given.settings:
        made["settings"] = _load_settings(given.settings, given.cwd)
    wanted = given.output_format or {}
    if wanted.get("type") == "json_schema" and wanted.get("schema") is not None:
        made["json_schema"] = wanted["schema"]
    if given.session_store is not None:
        made["session_store_flush"] = given.session_store_flush
        made["load_timeout"] = max(given.load_timeout_ms / 1000, _MIN_SECONDS)
    if given.can_use_tool is not None:
        made["can_use_tool"] = make_can_use_tool(given.can_use_tool)
    if given.hooks and (hooks := make_hooks(given.hooks)):
        made["hooks"] = hooks
    return made


def make_initialize_fields(given: ClaudeAgentOptions) -> dict[str, Any]:
    """Return what the handshake says besides callbacks, for a transport that gets no flags."""
    prompt: Any = given.system_prompt
    asked = cast("dict[str, Any]", prompt) if isinstance(prompt, dict) else {}
    made = {
        "agents": {name: _make_agent(each) for name, each in given.agents.items()} if given.agents else None,
        "excludeDynamicSections": asked.get("exclude_dynamic_sections") if asked.get("type") == "preset" else None,
        "systemPromptSnapshot": asked.get("snapshot"),
        "skills": given.skills if isinstance(given.skills, list) else None,
        "forwardSubagentText": given.forward_subagent_text or None,
    }
    return {name: value for name, value in made.items() if value is not None}


def make_environ(given: ClaudeAgentOptions) -> dict[str, str]:
    """Return the variables that the CLI gets besides those of this process."""
    made = {**given.env, "CLAUDE_AGENT_SDK_VERSION": __version__}
    if not any(name.upper() == READS_STATE for name in (*os.environ, *given.env)):
        made[READS_STATE] = "1"
    if given.cwd:
        made["PWD"] = str(given.cwd)
    if given.client_app is not None:
        made["CLAUDE_AGENT_SDK_CLIENT_APP"] = given.client_app
    return made


def check_store(given: ClaudeAgentOptions) -> None:
    """Check the options of the session store. Raises ValueError if they cannot work together."""
    store: Any = given.session_store
    if store is None:
        return
    if given.enable_file_checkpointing:
        raise ValueError("session_store cannot be combined with enable_file_checkpointing: backups stay on the disk")
    if given.continue_conversation and given.resume is None and not implements(store, "list_sessions"):
        raise ValueError("continue_conversation with session_store requires the store to implement list_sessions()")


def implements(store: Any, method: str) -> bool:
    """Whether a store has an optional method of its own."""
    from .types import SessionStore

    inherited: Any = getattr(type(cast("object", store)), method, None)
    return getattr(store, method, None) is not None and inherited is not getattr(SessionStore, method, None)


def _make_agent(agent: Any) -> dict[str, Any]:
    given = cast("dict[str, Any]", agent) if isinstance(agent, dict) else asdict(agent)
    return {name: value for name, value in given.items() if value is not None}


def _get_plugin(plugin: Any) -> str:
    if plugin["type"] != "local":
        raise ValueError(f"Unsupported plugin type: {plugin['type']}")
    return plugin["path"]
