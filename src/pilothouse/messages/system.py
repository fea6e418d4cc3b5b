"""The `system` messages: one class for each subtype, and the table that finds it (CLI 2.1.330).

Owns their fields. Knows neither the other messages nor how lines are decoded. A subtype that is not in the table is a
plain `SystemMessage`, whose `.raw` has all of it.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import Any, ClassVar

from msgspec import Struct, field

from pilothouse.messages.base import Message, Number


class SystemMessage(Message, frozen=True, gc=False, kw_only=True, tag="system"):
    """Wire type `system`. This class itself stands for subtypes without a class of their own. (L31)"""

    always_sent: ClassVar[tuple[str, ...]] = ("subtype", "session_id", "uuid")

    subtype: str = ""
    user_message_uuids: tuple[str, ...] = ()
    historical: bool = False

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is True and self is not other and type(self) is SystemMessage and isinstance(other, SystemMessage):
            # Its fields say too little about an unknown subtype.
            return self.raw == other.raw
        return equal


class McpServerInfo(Struct, frozen=True, gc=False, omit_defaults=True):
    """An MCP server at the start of a turn; `status` is "connected", "pending", "failed", …"""

    name: str = ""
    status: str = ""
    source: str | None = None


class PluginInfo(Struct, frozen=True, gc=False, omit_defaults=True):
    """A plugin that is loaded."""

    name: str = ""
    path: str | None = None
    source: str | None = None
    version: str | None = None


class InitMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `init`: a turn begins; what the session consists of. Sent for every turn. (L31)"""

    shown: ClassVar[tuple[str, ...]] = ("model", "session_id", "cwd", "permission_mode")

    subtype: str = "init"
    model: str | None = None
    cwd: str | None = None
    tools: list[str] = []
    mcp_servers: list[McpServerInfo] = []
    permission_mode: str | None = field(default=None, name="permissionMode")
    api_key_source: str | None = field(default=None, name="apiKeySource")
    claude_code_version: str | None = None
    slash_commands: list[str] = []
    terminal_slash_commands: list[str] = []
    agents: list[str] = []
    skills: list[str] = []
    plugins: list[PluginInfo] = []
    plugin_errors: list[dict[str, Any]] = []
    plugin_warnings: list[dict[str, Any]] = []
    mcp_server_errors: list[dict[str, Any]] = []
    capabilities: list[str] = []
    betas: list[str] = []
    output_style: str | None = None
    effort: str | None = None
    view_mode: str | None = None
    fast_mode_state: str | None = None
    fast_mode_disabled_reason: str | None = None
    original_cwd: str | None = None
    additional_directories: list[str] = []
    memory_paths: dict[str, Any] | None = None
    messaging_socket_path: str | None = None
    analytics_disabled: bool | None = None
    product_feedback_disabled: bool | None = None
    served_by_anthropic: bool | None = None
    per_turn_effort_active: bool | None = None
    ultrathink_available: bool | None = None
    ultrathink_typed_raises: bool | None = None
    startup_timing: dict[str, Any] | None = None


class StatusMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `status`: "requesting", "compacting" or None; also sent when the permission mode changes."""

    subtype: str = "status"
    status: str | None = None
    permission_mode: str | None = field(default=None, name="permissionMode")
    compact_result: str | None = None
    compact_error: str | None = None
    compact_output_chars: int | None = None
    resume_held_for_plan: bool | None = None


class ApiRetryMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `api_retry`: the API failed and the CLI will try again after `retry_delay_ms`. (E70)"""

    subtype: str = "api_retry"
    attempt: int = 0
    max_retries: int = 0
    retry_delay_ms: Number = 0
    error_status: int | None = None
    error: str | None = None
    no_response: dict[str, Any] | None = None


class CompactMetadata(Struct, frozen=True, gc=False, omit_defaults=True):
    """How the conversation was shortened; `trigger` is "manual" or "auto", sizes are in tokens."""

    trigger: str = ""
    pre_tokens: int = 0
    post_tokens: int | None = None
    cumulative_dropped_tokens: int | None = None
    duration_ms: Number | None = None
    user_context: str | None = None
    messages_summarized: int | None = None
    precomputed: bool | None = None
    pre_compact_discovered_tools: list[str] | None = None
    preserved_segment: dict[str, Any] | None = None
    preserved_messages: dict[str, Any] | None = None


class CompactBoundaryMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `compact_boundary`: what came before was replaced by a summary."""

    subtype: str = "compact_boundary"
    compact_metadata: CompactMetadata = CompactMetadata()
    logical_parent_uuid: str | None = None


class ControlRequestProgressMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `control_request_progress`: a control request of ours is being worked on."""

    subtype: str = "control_request_progress"
    request_id: str | None = None
    status: str = ""
    attempt: int | None = None
    max_retries: int | None = None
    retry_delay_ms: Number | None = None
    error_status: int | None = None


class ModelFallbackMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `model_fallback`: another model took over, because of `trigger`."""

    subtype: str = "model_fallback"
    trigger: str | None = None
    original_model: str | None = None
    fallback_model: str | None = None
    content: str = ""


class ModelRefusalFallbackMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `model_refusal_fallback`: the model refused and another one was asked; some messages are withdrawn."""

    subtype: str = "model_refusal_fallback"
    trigger: str | None = None
    direction: str | None = None
    scope: str | None = None
    original_model: str | None = None
    fallback_model: str | None = None
    request_id: str | None = None
    api_refusal_category: str | None = None
    api_refusal_explanation: str | None = None
    retracted_message_uuids: tuple[str, ...] = ()
    refused_user_message_uuid: str | None = None
    content: str = ""


class ModelRefusalNoFallbackMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `model_refusal_no_fallback`: the model refused, and no other one was asked."""

    subtype: str = "model_refusal_no_fallback"
    original_model: str | None = None
    request_id: str | None = None
    api_refusal_category: str | None = None
    api_refusal_explanation: str | None = None
    refused_user_message_uuid: str | None = None
    content: str = ""


class ModelConsentFallbackMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `model_consent_fallback`: the user was asked about another model; `choice` is the answer."""

    subtype: str = "model_consent_fallback"
    choice: str | None = None
    original_model: str | None = None
    original_model_name: str | None = None
    fallback_model: str | None = None
    persisted_as_default: bool | None = None
    content: str = ""


class LocalCommandOutputMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `local_command_output`: what a slash command printed."""

    subtype: str = "local_command_output"
    content: str = ""


class PluginInstallMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `plugin_install`: `status` is "started", "installed", "failed" or "completed"."""

    subtype: str = "plugin_install"
    status: str = ""
    name: str | None = None
    error: str | None = None


class ThinkingTokensMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `thinking_tokens`: an estimate of how much the model has thought so far."""

    subtype: str = "thinking_tokens"
    estimated_tokens: int = 0
    estimated_tokens_delta: int = 0
    user_message_uuid: str | None = None


class SessionStateChangedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `session_state_changed`: `state` is "idle", "running" or "requires_action"."""

    subtype: str = "session_state_changed"
    state: str = ""


class SessionTitleChangedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `session_title_changed`."""

    subtype: str = "session_title_changed"
    title: str = ""


class SessionWritesLostMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `session_writes_lost`: the disk is full, and what is named in `lost` was not saved."""

    subtype: str = "session_writes_lost"
    error_code: str | None = None
    lost: list[str] = []
    transcript_session_ids: list[str] = []


class WorkerShuttingDownMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `worker_shutting_down`: the peer is about to go."""

    subtype: str = "worker_shutting_down"
    reason: str = ""


class CommandsChangedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `commands_changed`: the slash commands are now these."""

    subtype: str = "commands_changed"
    commands: list[dict[str, Any]] = []


class NotificationMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `notification`: something to show; `priority` is "low", "medium", "high" or "immediate"."""

    subtype: str = "notification"
    key: str = ""
    text: str = ""
    priority: str = ""
    color: str | None = None
    timeout_ms: Number | None = None


class InformationalMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `informational`: a line for the reader; `level` is "info", "notice", "suggestion" or "warning"."""

    subtype: str = "informational"
    content: str = ""
    level: str = ""
    tool_use_id: str | None = None
    prevent_continuation: bool | None = None
    tag: str | None = None


class FilesPersistedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `files_persisted`: files were uploaded, or failed to be."""

    subtype: str = "files_persisted"
    files: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    processed_at: str | None = None


class MemoryRecallMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `memory_recall`: memories that were given to the model."""

    subtype: str = "memory_recall"
    mode: str = ""
    memories: list[dict[str, Any]] = []


class MirrorErrorMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `mirror_error`: transcript entries could not be mirrored."""

    subtype: str = "mirror_error"
    error: str = ""
    key: dict[str, Any] | None = None


class ElicitationCompleteMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `elicitation_complete`: an MCP server has what it asked the user for."""

    subtype: str = "elicitation_complete"
    mcp_server_name: str | None = None
    elicitation_id: str | None = None


class PermissionDeniedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `permission_denied`: a tool call was not allowed, and why."""

    subtype: str = "permission_denied"
    tool_name: str | None = None
    tool_use_id: str | None = None
    agent_id: str | None = None
    decision_reason_type: str | None = None
    decision_reason_code: str | None = None
    decision_reason: str | None = None
    message: str = ""


class UiInvalidateMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `ui_invalidate`: a terminal would draw again. Nothing for a program to do."""

    subtype: str = "ui_invalidate"
    event: str | None = None
    prompts_screened: bool | None = None
    instances: list[dict[str, Any]] | None = None
    unhooked: list[str] | None = None
