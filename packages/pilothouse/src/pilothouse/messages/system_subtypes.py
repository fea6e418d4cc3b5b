"""The `system` messages that ordinary runs do not send, and the table of all subtypes.

Loaded lazily, through the decoder.
"""

from typing import Any

from msgspec import Struct

from pilothouse.messages.base import Number
from pilothouse.messages.core import COMMON_SUBTYPES, SystemMessage, TaskUsage

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default


class CompactMetadata(Struct, frozen=True, gc=False, omit_defaults=True):
    """Details of a compaction; `trigger` is "manual" or "auto", sizes are in tokens."""

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
    """Subtype `compact_boundary`: a summary replaced the earlier conversation."""

    subtype: str = "compact_boundary"
    compact_metadata: CompactMetadata = CompactMetadata()
    logical_parent_uuid: str | None = None


class ControlRequestProgressMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `control_request_progress`: the CLI is working on a control request."""

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
    """Subtype `model_refusal_fallback`: the model refused and another one took over; some messages are retracted."""

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
    """Subtype `model_refusal_no_fallback`: the model refused, and no other one took over."""

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
    """Subtype `local_command_output`: the output of a slash command."""

    subtype: str = "local_command_output"
    content: str = ""


class PluginInstallMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `plugin_install`: `status` is "started", "installed", "failed" or "completed"."""

    subtype: str = "plugin_install"
    status: str = ""
    name: str | None = None
    error: str | None = None


class ThinkingTokensMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `thinking_tokens`: an estimate of the thinking tokens so far."""

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


class WorkerShuttingDownMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `worker_shutting_down`: the CLI is about to exit."""

    subtype: str = "worker_shutting_down"
    reason: str = ""


class CommandsChangedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `commands_changed`: the new list of slash commands."""

    subtype: str = "commands_changed"
    commands: list[dict[str, Any]] = []


class NotificationMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `notification`: a text to show; `priority` is "low", "medium", "high" or "immediate"."""

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
    """Subtype `files_persisted`: the uploaded files and the failed ones."""

    subtype: str = "files_persisted"
    files: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    processed_at: str | None = None


class MemoryRecallMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `memory_recall`: memories that the model received."""

    subtype: str = "memory_recall"
    mode: str = ""
    memories: list[dict[str, Any]] = []


class MirrorErrorMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `mirror_error`: transcript entries could not be mirrored."""

    subtype: str = "mirror_error"
    error: str = ""
    key: dict[str, Any] | None = None


class ElicitationCompleteMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `elicitation_complete`: an MCP server has the answer of the user."""

    subtype: str = "elicitation_complete"
    mcp_server_name: str | None = None
    elicitation_id: str | None = None


class UiInvalidateMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `ui_invalidate`: a terminal should redraw. Programs can ignore it."""

    subtype: str = "ui_invalidate"
    event: str | None = None
    prompts_screened: bool | None = None
    instances: list[dict[str, Any]] | None = None
    unhooked: list[str] | None = None


# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default


class HookStartedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `hook_started`."""

    subtype: str = "hook_started"
    hook_id: str | None = None
    hook_name: str | None = None
    hook_event: str | None = None
    origin: str | None = None
    label: str | None = None
    plugin_name: str | None = None


class HookProgressMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `hook_progress`: the output of a running hook."""

    subtype: str = "hook_progress"
    hook_id: str | None = None
    hook_name: str | None = None
    hook_event: str | None = None
    stdout: str = ""
    stderr: str = ""
    output: str = ""
    backgrounded: bool | None = None


class HookResponseMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `hook_response`: a hook ended; `outcome` is "success", "error" or "cancelled"."""

    subtype: str = "hook_response"
    hook_id: str | None = None
    hook_name: str | None = None
    hook_event: str | None = None
    output: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    outcome: str = ""


class StopHookSummaryMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `stop_hook_summary`: the results of the stop hooks at the end of a turn."""

    subtype: str = "stop_hook_summary"
    hook_count: int = 0
    hook_infos: list[dict[str, Any]] = []
    hook_errors: list[str] = []
    hook_additional_context: list[str] = []
    prevented_continuation: bool = False
    stop_reason: str | None = None
    has_output: bool = False
    level: str = ""
    tool_use_id: str | None = None
    hook_label: str | None = None
    total_duration_ms: Number | None = None


class TaskProgressMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_progress`."""

    subtype: str = "task_progress"
    task_id: str | None = None
    run_id: str | None = None
    tool_use_id: str | None = None
    description: str = ""
    subagent_type: str | None = None
    usage: TaskUsage = TaskUsage()
    last_tool_name: str | None = None
    summary: str | None = None


class TaskSummaryMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_summary`: the current activity of the agent, in a few words."""

    subtype: str = "task_summary"
    detail: str | None = None


class TurnDurationMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `turn_duration`."""

    subtype: str = "turn_duration"
    duration_ms: Number = 0
    budget_tokens: int | None = None
    budget_limit: int | None = None
    budget_nudges: int | None = None
    message_count: int | None = None
    pending_background_agent_count: int | None = None
    pending_workflow_count: int | None = None


class TurnPreemptedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `turn_preempted`: a newer user message replaced the running turn."""

    subtype: str = "turn_preempted"
    reason: str | None = None
    preempted_by_uuid: str | None = None
    preempted_message_uuids: tuple[str, ...] = ()


_CLASSES = [cls for cls in SystemMessage.__subclasses__() if cls.__module__ == __name__]

SYSTEM_SUBTYPES: dict[str, type[SystemMessage]] = {**COMMON_SUBTYPES, **{cls().subtype: cls for cls in _CLASSES}}
"""Every subtype with a class of its own; all others decode as `SystemMessage`."""
