"""The types of `claude_agent_sdk`, and `ClaudeAgentOptions`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ._control_types import *
from ._hook_types import *
from ._message_types import *
from ._option_types import *


class CanUseToolShadowedWarning(UserWarning):
    """`can_use_tool` is set, and some tools never ask it."""


@dataclass
class ClaudeAgentOptions:
    """Settings of a query or client, as `claude_agent_sdk` names them."""

    tools: list[str] | ToolsPreset | None = None
    allowed_tools: list[str] = field(default_factory=list[str])
    system_prompt: str | SystemPromptPreset | SystemPromptCustom | SystemPromptFile | None = None
    mcp_servers: dict[str, McpServerConfig] | str | Path = field(default_factory=dict[str, McpServerConfig])
    strict_mcp_config: bool = False
    permission_mode: PermissionMode | None = None
    continue_conversation: bool = False
    resume: str | None = None
    session_id: str | None = None
    max_turns: int | None = None
    max_budget_usd: float | None = None
    disallowed_tools: list[str] = field(default_factory=list[str])
    model: str | None = None
    fallback_model: str | None = None
    betas: list[SdkBeta] = field(default_factory=list[SdkBeta])
    permission_prompt_tool_name: str | None = None
    cwd: str | Path | None = None
    cli_path: str | Path | None = None
    settings: str | None = None
    add_dirs: list[str | Path] = field(default_factory=list[str | Path])
    env: dict[str, str] = field(default_factory=dict[str, str])
    extra_args: dict[str, str | None] = field(default_factory=dict[str, str | None])
    max_buffer_size: int | None = None
    debug_stderr: Any = sys.stderr
    stderr: Callable[[str], None] | None = None
    can_use_tool: CanUseTool | None = None
    hooks: dict[HookEvent, list[HookMatcher]] | None = None
    user: str | None = None
    include_partial_messages: bool = False
    include_hook_events: bool = False
    forward_subagent_text: bool = False
    verbatim_prompts: bool = False
    fork_session: bool = False
    resume_session_at: str | None = None
    resume_drops_turn: str | None = None
    agents: dict[str, AgentDefinition] | None = None
    setting_sources: list[SettingSource] | None = None
    skills: list[str] | Literal["all"] | None = None
    sandbox: SandboxSettings | None = None
    plugins: list[SdkPluginConfig] = field(default_factory=list[SdkPluginConfig])
    max_thinking_tokens: int | None = None
    thinking: ThinkingConfig | None = None
    effort: EffortLevel | None = None
    output_format: dict[str, Any] | None = None
    enable_file_checkpointing: bool = False
    session_store: SessionStore | None = None
    session_store_flush: SessionStoreFlushMode = "batched"
    load_timeout_ms: int = 60000
    task_budget: TaskBudget | None = None
    client_app: str | None = None


# The classes above come from private modules. Tracers, pickles and `repr` look for them here.
for _value in list(globals().values()):
    if isinstance(_value, type) and _value.__module__.startswith(f"{__package__}._"):
        _value.__module__ = __name__
