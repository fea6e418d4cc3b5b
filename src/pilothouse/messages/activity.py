"""The `system` messages about hooks, and others about work beside the main thread; the table of all subtypes.

Owns their fields (CLI 2.1.330) and `SYSTEM_TYPES`. Knows nothing of how lines are decoded. Loaded when a run says
something that is not in `system`.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import Any

from pilothouse.messages import incidents
from pilothouse.messages.base import Number
from pilothouse.messages.system import USUAL_TYPES, SystemMessage, TaskUsage


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
    """Subtype `hook_progress`: what a running hook has printed."""

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
    """Subtype `stop_hook_summary`: what the stop hooks did at the end of a turn."""

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
    """Subtype `task_summary`: what the agent is doing, in a few words."""

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
    """Subtype `turn_preempted`: a newer user message took the place of the running turn."""

    subtype: str = "turn_preempted"
    reason: str | None = None
    preempted_by_uuid: str | None = None
    preempted_message_uuids: tuple[str, ...] = ()


_CLASSES: tuple[type[SystemMessage], ...] = (
    incidents.CommandsChangedMessage,
    incidents.CompactBoundaryMessage,
    incidents.ControlRequestProgressMessage,
    incidents.ElicitationCompleteMessage,
    incidents.FilesPersistedMessage,
    incidents.InformationalMessage,
    incidents.LocalCommandOutputMessage,
    incidents.MemoryRecallMessage,
    incidents.MirrorErrorMessage,
    incidents.ModelConsentFallbackMessage,
    incidents.ModelFallbackMessage,
    incidents.ModelRefusalFallbackMessage,
    incidents.ModelRefusalNoFallbackMessage,
    incidents.NotificationMessage,
    incidents.PluginInstallMessage,
    incidents.SessionStateChangedMessage,
    incidents.SessionTitleChangedMessage,
    incidents.SessionWritesLostMessage,
    incidents.ThinkingTokensMessage,
    incidents.UiInvalidateMessage,
    incidents.WorkerShuttingDownMessage,
    HookProgressMessage,
    HookResponseMessage,
    HookStartedMessage,
    StopHookSummaryMessage,
    TaskProgressMessage,
    TaskSummaryMessage,
    TurnDurationMessage,
    TurnPreemptedMessage,
)

SYSTEM_TYPES: dict[str, type[SystemMessage]] = {**USUAL_TYPES, **{cls().subtype: cls for cls in _CLASSES}}
"""Every subtype with a class of its own; what is not in it decodes as `SystemMessage`."""
