"""The `system` messages of ordinary runs, and those that pilothouse itself reads (CLI 2.1.330).

Owns their fields. Must not know the other messages or how lines are decoded. A subtype without a class is a plain
`SystemMessage`, whose `.raw` has all of it.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from pilothouse.messages.base import Message, Number

PermissionMode = Literal["default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual"]
"""The permission modes that the CLI knows."""
ASKED = "asked"
"""Subtype of pilothouse's own messages: the CLI requests a decision from this process. `id`, `kind`, `request`."""
SETTLED = "settled"
"""Its counterpart: the decision and its source. `id`, `kind`, `by`, `answer`; None: the CLI cancelled the request."""


class SystemMessage(Message, frozen=True, gc=False, kw_only=True, tag="system"):
    """Wire type `system`. This class itself stands for subtypes without a class of their own."""

    always_sent: ClassVar[tuple[str, ...]] = ("subtype", "session_id", "uuid")

    subtype: str = ""
    user_message_uuids: tuple[str, ...] = ()
    historical: bool = False

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is True and self is not other and type(self) is SystemMessage and isinstance(other, SystemMessage):
            # For an unknown subtype, the fields alone say too little.
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
    """Subtype `init`: a turn begins; what the session consists of. Sent for every turn."""

    repr_fields: ClassVar[tuple[str, ...]] = ("model", "session_id", "cwd", "permission_mode")

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
    """Subtype `api_retry`: the API failed and the CLI will try again after `retry_delay_ms`."""

    subtype: str = "api_retry"
    attempt: int = 0
    max_retries: int = 0
    retry_delay_ms: Number = 0
    error_status: int | None = None
    error: str | None = None
    no_response: dict[str, Any] | None = None


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


class TaskUpdatedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_updated`: `patch` holds the changed fields; `status` is in it when it changed."""

    subtype: str = "task_updated"
    task_id: str | None = None
    run_id: str | None = None
    patch: dict[str, Any] = {}

    @property
    def status(self) -> str | None:
        """The new status, or None: "pending", "running", "completed", "failed", "killed" or "paused"."""
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


class BackgroundTaskState(Struct, frozen=True, gc=False, omit_defaults=True):
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
    tasks: list[BackgroundTaskState] = []


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


class LineSkippedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `line_skipped`: pilothouse could not read lines of the CLI's output, so a message may be missing.

    The message comes before or among the messages of the same chunk. `reason` is "too_long" (see the option
    `max_line_bytes`), "not_json", or "no_message" (JSON that is not a message); `lines` is their number, `size` their
    bytes (0: not known), `text` the beginning of the first line, or the fault in it.
    """

    subtype: str = "line_skipped"
    reason: str = ""
    lines: int = 1
    size: int = 0
    text: str = ""


COMMON_SUBTYPES: dict[str, type[SystemMessage]] = {
    cls().subtype: cls
    for cls in (
        ApiRetryMessage,
        BackgroundTasksChangedMessage,
        InitMessage,
        LineSkippedMessage,
        PermissionDeniedMessage,
        StatusMessage,
        TaskNotificationMessage,
        TaskStartedMessage,
        TaskUpdatedMessage,
    )
}
"""By subtype. Nine of ten recordings hold no others."""
