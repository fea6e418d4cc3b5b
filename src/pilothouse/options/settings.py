"""Static types of the options, for editors and type checkers. Names and order are those of the table (tested)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

PermissionMode = Literal["default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
SettingSource = Literal["user", "project", "local"]
StrPath = str | os.PathLike[str]


class Settings(TypedDict, total=False):
    """Keyword arguments of `Options`, `Agent`, `query` and `configure`; `pilothouse.options.TABLE` explains each."""

    model: str | None
    fallback_model: str | None
    effort: Effort | None
    max_thinking_tokens: int | None
    betas: Sequence[str] | None
    system_prompt: str | None
    append_system_prompt: str | None
    verbatim_prompts: bool | None
    prompt_via: Literal["stdin", "argv"] | None
    tools: Sequence[str] | Literal["default"] | None
    allowed_tools: Sequence[str] | None
    disallowed_tools: Sequence[str] | None
    permission_mode: PermissionMode | None
    max_turns: int | None
    max_budget_usd: float | None
    timeout: float | None
    idle_timeout: float | None
    control_timeout: float | None
    max_line_bytes: int | None
    cwd: StrPath | None
    add_dirs: Sequence[StrPath] | None
    cli: StrPath | None
    api_key: str | None
    env: Mapping[str, str | None] | None
    inherit_env: bool | None
    transport: Any
    stderr: Callable[[str], object] | None
    settings: Mapping[str, Any] | StrPath | None
    setting_sources: Sequence[SettingSource] | None
    mcp_servers: Mapping[str, Any] | StrPath | None
    strict_mcp_config: bool | None
    agents: Mapping[str, Any] | None
    bare: bool | None
    extra_args: Mapping[str, str | None] | None
    resume: str | None
    continue_conversation: bool | None
    fork_session: bool | None
    session_id: str | None
    persist_session: bool | None
    json_schema: Mapping[str, Any] | None
    partial_messages: bool | None
    include_hook_events: bool | None
