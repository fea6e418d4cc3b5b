"""Static types of the options, for editors and type checkers. Names and order are those of the table (tested)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pilothouse.messages.system import PermissionMode as PermissionMode

if TYPE_CHECKING:
    from pilothouse.hooks import Hooks
    from pilothouse.instrumentation import Instrumentation
    from pilothouse.options.nested import (
        AdaptiveThinking,
        AgentDefinition,
        CustomSystemPrompt,
        DisabledThinking,
        EnabledThinking,
        HttpServer,
        Plugin,
        Sandbox,
        SseServer,
        StdioServer,
        SystemPromptFile,
        SystemPromptPreset,
        ToolConfig,
    )
    from pilothouse.options.retry_policy import RetryPolicy
    from pilothouse.permissions import (
        CanUseTool,
        ConfirmCallback,
        DialogCallback,
        ElicitationCallback,
        PlanCallback,
        QuestionCallback,
    )

    SystemPrompt = str | SystemPromptPreset | CustomSystemPrompt | SystemPromptFile
    SystemPromptChoice = SystemPrompt | Sequence[str] | Mapping[str, Any]
    Thinking = AdaptiveThinking | EnabledThinking | DisabledThinking
    ThinkingChoice = Thinking | Literal["adaptive", "disabled", "enabled"] | Mapping[str, Any]
    McpServer = StdioServer | HttpServer | SseServer

Effort = Literal["low", "medium", "high", "xhigh", "max"]
Provider = Literal["anthropic", "bedrock", "vertex", "foundry"]
SettingSource = Literal["user", "project", "local"]
StrPath = str | os.PathLike[str]


class Settings(TypedDict, total=False):
    """Keyword arguments of `Options`, `Agent`, `query` and `configure`; `pilothouse.options.TABLE` explains each."""

    model: str | None
    fallback_model: str | Sequence[str] | None
    effort: Effort | None
    thinking: ThinkingChoice | None
    max_thinking_tokens: int | None
    max_output_tokens: int | None
    task_budget: int | Mapping[str, int] | None
    betas: Sequence[str] | None
    system_prompt: SystemPromptChoice | None
    append_system_prompt: str | None
    append_subagent_system_prompt: str | None
    plan_mode_instructions: str | None
    verbatim_prompts: bool | None
    prompt_via: Literal["stdin", "argv"] | None
    tools: Sequence[str] | Literal["default"] | Mapping[str, str] | None
    allowed_tools: Sequence[str] | None
    disallowed_tools: Sequence[str] | None
    tool_aliases: Mapping[str, str] | None
    tool_config: ToolConfig | Mapping[str, Any] | None
    skills: Sequence[str] | Literal["all"] | None
    disable_slash_commands: bool | None
    agent: str | None
    agents: Mapping[str, AgentDefinition | Mapping[str, Any]] | None
    mcp_servers: Mapping[str, McpServer | Mapping[str, Any] | Any] | StrPath | None
    custom_tools: Sequence[Callable[..., Any]] | None
    tool_bridge: Literal["mcp", "xml", "deferred"] | None
    strict_mcp_config: bool | None
    wait_for_mcp: bool | float | None
    permission_mode: PermissionMode | None
    allow_dangerously_skip_permissions: bool | None
    permission_prompt_tool_name: str | None
    permission_prompts: Literal["host", "none"] | None
    can_use_tool: CanUseTool | None
    confirm: ConfirmCallback | None
    on_question: QuestionCallback | None
    on_plan: PlanCallback | None
    hooks: Hooks | None
    on_elicitation: ElicitationCallback | None
    on_user_dialog: DialogCallback | None
    supported_dialog_kinds: Sequence[str] | None
    restricted: bool | None
    sandbox: Sandbox | Mapping[str, Any] | None
    max_turns: int | None
    max_budget_usd: float | None
    max_budget_tokens: int | None
    until: Literal["result", "idle"] | None
    timeout: float | None
    idle_timeout: float | None
    startup_timeout: float | None
    control_timeout: float | None
    max_line_bytes: int | None
    api_max_retries: int | None
    retry: RetryPolicy | int | Mapping[str, Any] | None
    on_usage_limit: Literal["raise", "wait"] | None
    usage_limit_ceiling: float | None
    json_schema: Mapping[str, Any] | None
    output_repairs: int | None
    partial_messages: bool | None
    include_hook_events: bool | None
    replay_user_messages: bool | None
    forward_subagent_text: bool | None
    prompt_suggestions: bool | None
    agent_progress_summaries: bool | None
    per_task_stop_affordance: bool | None
    resume: str | None
    continue_conversation: bool | None
    fork_session: bool | None
    session_id: str | None
    resume_session_at: str | None
    resume_drops_turn: str | None
    title: str | None
    persist_session: bool | None
    session_store: Any
    session_store_flush: Literal["batched", "eager"] | None
    load_timeout: float | None
    session_lease: float | None
    restart: Literal["resume", "never"] | None
    enable_file_checkpointing: bool | None
    api_key: str | None
    auth_token: str | None
    oauth_token: str | None
    base_url: str | None
    provider: Provider | None
    cwd: StrPath | None
    add_dirs: Sequence[StrPath] | None
    project_config_root: StrPath | None
    cli: StrPath | None
    user: str | int | None
    env: Mapping[str, str | None] | None
    inherit_env: bool | None
    isolation: Literal["strict"] | None
    config_dir: StrPath | None
    nonessential_traffic: bool | None
    client_app: str | None
    transport: Any
    settings: Mapping[str, Any] | StrPath | None
    managed_settings: Mapping[str, Any] | None
    setting_sources: Sequence[SettingSource] | None
    plugins: Sequence[Plugin | StrPath | Mapping[str, Any]] | None
    bare: bool | None
    safe_mode: bool | None
    extra_args: Mapping[str, str | None] | None
    instrumentation: Instrumentation | Sequence[Instrumentation] | None
    stderr: Callable[[str], object] | None
    debug: bool | str | None
    debug_file: StrPath | None
