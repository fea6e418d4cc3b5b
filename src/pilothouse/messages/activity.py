"""The `system` messages about work beside the main thread: hooks and tasks (CLI 2.1.330); the table of all subtypes.

Owns their fields and `SYSTEM_TYPES`. Knows nothing of how lines are decoded.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import Any

from msgspec import Struct

from pilothouse.messages import system
from pilothouse.messages.base import Number
from pilothouse.messages.system import SystemMessage


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


class TaskUsage(Struct, frozen=True, gc=False):
    """What a task has used so far."""

    total_tokens: int = 0
    tool_uses: int = 0
    duration_ms: Number = 0


class TaskStartedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_started`: a subagent, a background command or a workflow began."""

    subtype: str = "task_started"
    task_id: str | None = None
    run_id: str | None = None
    tool_use_id: str | None = None
    description: str = ""
    subagent_type: str | None = None
    is_backgrounded: bool | None = None
    awaited: bool | None = None
    spawn_depth: int | None = None
    parent_task_id: str | None = None
    task_type: str | None = None
    workflow_name: str | None = None
    prompt: str | None = None
    skip_transcript: bool | None = None
    ambient: bool | None = None


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


class TaskUpdatedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_updated`: `patch` holds the changed fields; `status` is in it when it changed."""

    subtype: str = "task_updated"
    task_id: str | None = None
    run_id: str | None = None
    patch: dict[str, Any] = {}

    @property
    def status(self) -> str | None:
        """The new status, if it changed: "pending", "running", "completed", "failed", "killed" or "paused"."""
        return self.patch.get("status")


class TaskNotificationMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_notification`: a task ended; `status` is "completed", "failed" or "stopped"."""

    subtype: str = "task_notification"
    task_id: str | None = None
    run_id: str | None = None
    tool_use_id: str | None = None
    status: str = ""
    reason: str | None = None
    output_file: str | None = None
    summary: str = ""
    usage: TaskUsage | None = None
    resource_links: list[dict[str, Any]] | None = None
    skip_transcript: bool | None = None
    ambient: bool | None = None


class BackgroundTask(Struct, frozen=True, gc=False, omit_defaults=True):
    """One of the tasks that run in the background."""

    task_id: str | None = None
    run_id: str | None = None
    task_type: str | None = None
    subagent_type: str | None = None
    description: str = ""
    parent_task_id: str | None = None
    ambient: bool | None = None
    awaited: bool | None = None
    off_host: bool | None = None
    tool_use_id: str | None = None


class BackgroundTasksChangedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `background_tasks_changed`: these tasks run in the background now; none left when empty."""

    subtype: str = "background_tasks_changed"
    tasks: list[BackgroundTask] = []


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
    system.ApiRetryMessage,
    system.CommandsChangedMessage,
    system.CompactBoundaryMessage,
    system.ControlRequestProgressMessage,
    system.ElicitationCompleteMessage,
    system.FilesPersistedMessage,
    system.InformationalMessage,
    system.InitMessage,
    system.LocalCommandOutputMessage,
    system.MemoryRecallMessage,
    system.MirrorErrorMessage,
    system.ModelConsentFallbackMessage,
    system.ModelFallbackMessage,
    system.ModelRefusalFallbackMessage,
    system.ModelRefusalNoFallbackMessage,
    system.NotificationMessage,
    system.PermissionDeniedMessage,
    system.PluginInstallMessage,
    system.SessionStateChangedMessage,
    system.SessionTitleChangedMessage,
    system.SessionWritesLostMessage,
    system.StatusMessage,
    system.ThinkingTokensMessage,
    system.UiInvalidateMessage,
    system.WorkerShuttingDownMessage,
    BackgroundTasksChangedMessage,
    HookProgressMessage,
    HookResponseMessage,
    HookStartedMessage,
    StopHookSummaryMessage,
    TaskNotificationMessage,
    TaskProgressMessage,
    TaskStartedMessage,
    TaskSummaryMessage,
    TaskUpdatedMessage,
    TurnDurationMessage,
    TurnPreemptedMessage,
)

# subtype -> class; what is not in it decodes as SystemMessage.
SYSTEM_TYPES: dict[str, type[SystemMessage]] = {cls().subtype: cls for cls in _CLASSES}
