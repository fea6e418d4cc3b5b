"""The messages of ordinary runs, and those that pilothouse itself reads.

Assistant, user, stream event, result, limits, progress, lifecycle, and `system` messages; `system_subtypes` has the
other system messages. A subtype without a class is a plain `SystemMessage`, whose `.raw` has all of it. Must not know
how lines are decoded.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from pilothouse.messages.api_messages import (
    AnyApiEvent,
    AssistantBody,
    ContentBlock,
    ContentBlockDelta,
    ModelUsage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    UserBody,
    WireTextDelta,
    WireThinkingDelta,
    content_text,
)
from pilothouse.messages.base import Message, Number


class Origin(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """The origin of a user message or a result: `kind` is "human", "task-notification", "peer", "channel", …"""

    kind: str = ""
    subkind: str | None = None
    server: str | None = None
    sender: str | None = field(default=None, name="from")
    from_mode: str | None = None
    from_session: str | None = None
    name: str | None = None
    body: str | None = None
    sender_task_id: str | None = None
    verified_peer_pid: int | None = None
    fire_reason: str | None = None
    run_id: str | None = None


class AssistantMessage(Message, frozen=True, gc=False, kw_only=True, tag="assistant"):
    """Wire type `assistant`: a part of the model's answer; the CLI sends one for each finished block.

    `text`, `content` and the rest are views of `message`. `error` and `is_api_error_message` mark text of the CLI
    that replaces the model's text because the API failed; `aborted` marks a message that an interrupt cut off.
    """

    always_sent: ClassVar[tuple[str, ...]] = ("parent_tool_use_id", "session_id", "uuid")
    repr_fields: ClassVar[tuple[str, ...]] = ("content", "model")

    message: AssistantBody
    parent_tool_use_id: str | None = None
    error: str | None = None
    aborted: bool = False
    is_api_error_message: bool = False
    api_error: str | None = None
    api_error_status: int | None = None
    api_error_type: str | None = None
    api_error_params: Any = None
    request_id: str | None = None
    timestamp: str | None = None
    user_message_uuid: str | None = None
    user_message_uuids: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    resume_reason: str | None = None
    resumed_from_incomplete_thinking: bool = False
    agent_id: str | None = None
    subagent_type: str | None = None
    task_description: str | None = None
    tool_use_meta: list[dict[str, Any]] | None = None
    thinking_display: str | None = None
    thinking_duration_ms: Number | None = None
    context_usage: dict[str, Any] | None = None
    usage_report: dict[str, Any] | None = None
    refused_message_id: str | None = None
    local_command_source: str | None = None
    local_command_run: Any = None
    historical: bool = False

    @classmethod
    def of(cls, *content: ContentBlock | str, model: str | None = None, **fields: Any) -> "AssistantMessage":
        """Build a message by hand, for tests and for engines that write the protocol themselves.

        Args:
            content: blocks; a string becomes a text block.
            model: the model of the message.
            fields: any other field of this class.
        """
        blocks = [TextBlock(part) if isinstance(part, str) else part for part in content]
        return cls(message=AssistantBody(content=blocks, model=model), **fields)

    @property
    def content(self) -> list[ContentBlock]:
        """The blocks, in order."""
        return self.message.content

    @property
    def model(self) -> str | None:
        """The model that wrote the message."""
        return self.message.model

    @property
    def message_id(self) -> str | None:
        """The API's id; all lines of one API message have the same."""
        return self.message.id

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped; None in most lines of the CLI, set in the result."""
        return self.message.stop_reason

    @property
    def usage(self) -> Usage | None:
        """Token counts so far; the final counts are in the result."""
        return self.message.usage

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return content_text(self.message.content)

    @property
    def thinking(self) -> str:
        """The thinking blocks, joined."""
        return "".join([block.thinking for block in self.message.content if isinstance(block, ThinkingBlock)])

    @property
    def tool_uses(self) -> list[ToolUseBlock]:
        """The tool calls, in order."""
        return [block for block in self.message.content if isinstance(block, ToolUseBlock)]


class UserMessage(Message, frozen=True, gc=False, kw_only=True, tag="user"):
    """Wire type `user`: a prompt, a replayed or synthetic one, or tool results fed back."""

    always_sent: ClassVar[tuple[str, ...]] = ("parent_tool_use_id", "session_id")
    repr_fields: ClassVar[tuple[str, ...]] = ("content",)

    message: UserBody
    parent_tool_use_id: str | None = None
    is_replay: bool = field(default=False, name="isReplay")
    is_synthetic: bool = field(default=False, name="isSynthetic")
    should_query: bool | None = field(default=None, name="shouldQuery")
    client_composed: bool = False
    priority: str | None = None
    origin: Origin | None = None
    tool_use_result: Any = None
    tool_result_meta: list[dict[str, Any]] | None = None
    timestamp: str | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    task_description: str | None = None
    retracted_message_uuids: tuple[str, ...] = ()
    refused_message_id: str | None = None
    interrupted_message_id: str | None = None
    file_attachments: list[Any] | None = None
    pasted_content: list[Any] | None = None
    inline_pastes: list[str] | None = None
    is_meta: bool = False
    is_compact_summary: bool = False
    historical: bool = False

    @classmethod
    def of(cls, content: str | Sequence[ContentBlock], **fields: Any) -> "UserMessage":
        """Build a message by hand.

        Args:
            content: the prompt, or blocks.
            fields: any other field of this class.
        """
        return cls(message=UserBody(content=content if isinstance(content, str) else list(content)), **fields)

    @property
    def content(self) -> list[ContentBlock]:
        """The blocks, in order; a string becomes one text block."""
        content = self.message.content
        return [TextBlock(content)] if isinstance(content, str) else content

    @property
    def text(self) -> str:
        """The string content, or the text blocks joined."""
        return content_text(self.message.content)

    @property
    def tool_results(self) -> list[ToolResultBlock]:
        """The tool results, in order."""
        return [block for block in self.content if isinstance(block, ToolResultBlock)]


class AbandonedBlocks(Struct, frozen=True, gc=False):
    """Blocks whose deltas no longer count: those of one API message, from an index on."""

    api_message_id: str | None = None
    from_block_index: int = 0


class StreamEvent(Message, frozen=True, gc=False, kw_only=True, tag="stream_event"):
    """Wire type `stream_event`: a piece of a message while the model writes it.

    Deltas may be retracted: `abandoned_blocks` on a `message_stop` names them. Group deltas by `api_message_id`; the
    assistant messages hold the final text.
    """

    always_sent: ClassVar[tuple[str, ...]] = ("parent_tool_use_id", "session_id", "uuid")
    repr_fields: ClassVar[tuple[str, ...]] = ("event",)

    event: AnyApiEvent
    parent_tool_use_id: str | None = None
    api_message_id: str | None = None
    abandoned_blocks: AbandonedBlocks | None = None
    thinking_display: str | None = None
    ttft_ms: Number | None = None
    user_message_uuid: str | None = None
    user_message_uuids: tuple[str, ...] = ()
    resume_reason: str | None = None
    owed_rows: list[Any] | None = None
    text_runs_joined: bool = False

    @property
    def text_delta(self) -> str | None:
        """The text that this event adds, or None."""
        event = self.event
        if isinstance(event, ContentBlockDelta) and isinstance(event.delta, WireTextDelta):
            return event.delta.text
        return None

    @property
    def thinking_delta(self) -> str | None:
        """The thinking that this event adds, or None."""
        event = self.event
        if isinstance(event, ContentBlockDelta) and isinstance(event.delta, WireThinkingDelta):
            return event.delta.thinking
        return None


class PermissionDenial(Struct, frozen=True, gc=False):
    """A denied tool call in a result."""

    tool_name: str = ""
    tool_use_id: str | None = None
    tool_input: dict[str, Any] = {}


class DeferredToolUse(Struct, frozen=True, gc=False):
    """The last tool call that a turn with the end `tool_deferred` left to your program."""

    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class ResultMessage(Message, frozen=True, gc=False, kw_only=True, tag="result"):
    """Wire type `result`: a turn has ended.

    Check `is_error` first, then `subtype`, then `terminal_reason`: a failed API call arrives as subtype "success"
    with `is_error` true. `result` holds only the last text block. Times are in milliseconds.
    """

    always_sent: ClassVar[tuple[str, ...]] = (
        "subtype", "is_error", "num_turns", "duration_ms", "duration_api_ms", "stop_reason", "total_cost_usd",
        "usage", "model_usage", "permission_denials", "session_id", "uuid",
    )  # fmt: skip
    repr_fields: ClassVar[tuple[str, ...]] = ("subtype", "is_error", "result", "num_turns", "total_cost_usd")

    subtype: str = "success"
    is_error: bool = False
    result: str | None = None
    total_cost_usd: float | None = None
    num_turns: int = 0
    duration_ms: Number = 0
    duration_api_ms: Number = 0
    usage: Usage = Usage()
    model_usage: dict[str, ModelUsage] = field(default={}, name="modelUsage")
    model_usage_since_last_result: dict[str, ModelUsage] | None = None
    permission_denials: list[PermissionDenial] = []
    structured_output: Any = None
    errors: list[str] = []
    api_error: str | None = None
    api_error_status: int | None = None
    api_error_type: str | None = None
    stop_reason: str | None = None
    terminal_reason: str | None = None
    startup_failure_reason: str | None = None
    invalid_config_file: dict[str, Any] | None = None
    deferred_tool_use: DeferredToolUse | None = None
    origin: Origin | None = None
    user_message_uuid: str | None = None
    user_message_uuids: tuple[str, ...] = ()
    begun_message_ids: tuple[str, ...] = ()
    queued_turn_count: int | None = None
    result_index: int | None = None
    local_command: str | None = None
    resume_reason: str | None = None
    credential_expires_at: str | None = None
    fast_mode_state: str | None = None
    fast_mode_disabled_reason: str | None = None
    safety_stops: int | None = None
    subagent_stats: dict[str, Any] | None = None
    ttft_ms: Number | None = None
    ttft_stream_ms: Number | None = None
    time_to_request_ms: Number | None = None
    time_to_request_from_spawn_ms: Number | None = None
    first_content_frame_ms: Number | None = None
    first_stream_post_ms: Number | None = None
    first_stream_post_ack_ms: Number | None = None
    first_stream_post_queue_wait_ms: Number | None = None
    first_stream_post_queued_behind: str | None = None
    first_stream_post_wall_ms: Number | None = None
    first_text_post_ms: Number | None = None
    first_text_post_queue_wait_ms: Number | None = None
    first_text_post_queued_behind: str | None = None
    first_text_post_wall_ms: Number | None = None
    request_sent_wall_ms: Number | None = None
    first_request_input_tokens: int | None = None
    first_request_cache_read_input_tokens: int | None = None
    warm_spare_claimed: bool | None = None
    time_origin_ms: Number | None = None

    @property
    def is_woken(self) -> bool:
        """Whether a background task woke the model, so that this result belongs to no prompt of your program."""
        return self.origin is not None and self.origin.kind == "task-notification"


class RateLimitInfo(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """State of a usage limit. Times are Unix seconds; `status` is "allowed", "allowed_warning" or "rejected"."""

    status: str | None = None
    resets_at: Number | None = None
    rate_limit_type: str | None = None
    utilization: Number | None = None
    overage_status: str | None = None
    overage_resets_at: Number | None = None
    overage_disabled_reason: str | None = None
    is_using_overage: bool | None = None
    overage_in_use: bool | None = None
    overage_enabled: bool | None = None
    surpassed_threshold: Number | None = None
    limit_scope: str | None = None
    error_code: str | None = None
    can_user_purchase_credits: bool | None = None
    has_chargeable_saved_payment_method: bool | None = None


class RateLimitEvent(Message, frozen=True, gc=False, kw_only=True, tag="rate_limit_event"):
    """Wire type `rate_limit_event`: the state of a usage limit changed."""

    rate_limit_info: RateLimitInfo = RateLimitInfo()


class ToolProgressMessage(Message, frozen=True, gc=False, kw_only=True, tag="tool_progress"):
    """Wire type `tool_progress`: a tool is still running."""

    tool_use_id: str | None = None
    tool_name: str | None = None
    parent_tool_use_id: str | None = None
    elapsed_time_seconds: Number = 0
    task_id: str | None = None
    heartbeat: bool | None = None
    subagent_type: str | None = None
    subagent_retry: dict[str, Any] | None = None


class ToolUseSummaryMessage(Message, frozen=True, gc=False, kw_only=True, tag="tool_use_summary"):
    """Wire type `tool_use_summary`: a summary of the preceding tool calls."""

    summary: str = ""
    preceding_tool_use_ids: list[str] = []
    timestamp: str | None = None


class AuthStatusMessage(Message, frozen=True, gc=False, kw_only=True, tag="auth_status"):
    """Wire type `auth_status`: a login is in progress, or has ended."""

    is_authenticating: bool = field(default=False, name="isAuthenticating")
    output: list[str] = []
    error: str | None = None


class PromptSuggestionMessage(Message, frozen=True, gc=False, kw_only=True, tag="prompt_suggestion"):
    """Wire type `prompt_suggestion`: a suggestion for the next prompt; arrives after the result."""

    suggestion: str = ""


class ConversationResetMessage(Message, frozen=True, gc=False, kw_only=True, tag="conversation_reset"):
    """Wire type `conversation_reset`: the conversation was cleared; later lines carry the new id."""

    new_conversation_id: str | None = None
    trigger: str | None = None
    user_message_uuid: str | None = None
    user_message_from_human: bool | None = None
    timestamp: str | None = None


class CommandLifecycleMessage(Message, frozen=True, gc=False, kw_only=True, tag="command_lifecycle"):
    """Wire type `command_lifecycle`: the progress of a user message with a uuid.

    `state` is "queued", "started", "completed", "cancelled", "discarded" or "refused".
    """

    command_uuid: str | None = None
    state: str = ""
    wakeup_source: str | None = None
    scheduled_for: Number | None = None
    ran_ahead: bool | None = None


class TranscriptMirrorMessage(Message, frozen=True, gc=False, kw_only=True, tag="transcript_mirror"):
    """Wire type `transcript_mirror`: entries that were appended to a transcript file."""

    file_path: str | None = field(default=None, name="filePath")
    entries: list[Any] = []


class ActiveGoalMessage(Message, frozen=True, gc=False, kw_only=True, tag="active_goal"):
    """Wire type `active_goal`: the goal of the agent; None when it has been cleared."""

    value: dict[str, Any] | None = None


class KeepAliveMessage(Message, frozen=True, gc=False, kw_only=True, tag="keep_alive"):
    """Wire type `keep_alive`: a sign that the connection is alive."""


class DoneMessage(Message, frozen=True, gc=False, kw_only=True, tag="done"):
    """Wire type `done`: the end of a mock stream. The CLI itself never sends it."""


class UnknownMessage(Message, frozen=True, gc=False, kw_only=True):
    """A message of an unknown type; `.raw` has the whole message."""

    kind: str = ""

    @property
    def type(self) -> str:
        """The wire type as it came."""
        return self.kind

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, UnknownMessage) and self.raw == other.raw)

    def __ne__(self, other: object) -> bool:
        return not self == other


PermissionMode = Literal["default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual"]
"""The permission modes that the CLI knows."""
ASKED = "asked"
"""Subtype of pilothouse's own messages: the CLI requests a decision from this process. `id`, `kind`, `request`."""
SETTLED = "settled"
"""Its counterpart: the decision and its source. `id`, `kind`, `by`, `answer`; None: the CLI cancelled the request."""


class SystemMessage(Message, frozen=True, gc=False, kw_only=True, tag="system"):
    """Wire type `system`. Used directly for subtypes without a class of their own."""

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
    """Subtype `init`: a turn begins, with the state of the session. Sent for every turn."""

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
    sandbox_enabled: bool | None = None
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

    def describe(self, api: str = "the API") -> str:
        """What failed, in words, such as "the API answered HTTP 529 (overloaded)".

        Args:
            api: what to call the API, such as its address.
        """
        if self.error_status is None:
            return f"{api} did not respond" if self.no_response else f"{api} could not be reached"
        kind = "" if self.error in (None, "unknown") else f" ({self.error.replace('_', ' ')})"
        return f"{api} answered HTTP {self.error_status}{kind}"


class TaskUsage(Struct, frozen=True, gc=False):
    """Usage of a task so far."""

    total_tokens: int = 0
    tool_uses: int = 0
    duration_ms: Number = 0


class TaskStartedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `task_started`: a sub-agent, a background command or a workflow began."""

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
    """Subtype `task_updated`: `patch` holds the changed fields; `status` is among them when it changed."""

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
    """Subtype `background_tasks_changed`: the tasks that run in the background now; empty when none is left."""

    subtype: str = "background_tasks_changed"
    tasks: list[BackgroundTaskState] = []


class PermissionDeniedMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `permission_denied`: a tool call was denied, with the reason."""

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


class SessionWritesLostMessage(SystemMessage, frozen=True, gc=False, kw_only=True):
    """Subtype `session_writes_lost`: the disk is full, and the entries named in `lost` were not saved."""

    subtype: str = "session_writes_lost"
    error_code: str | None = None
    lost: list[str] = []
    transcript_session_ids: list[str] = []


COMMON_SUBTYPES: dict[str, type[SystemMessage]] = {
    cls().subtype: cls
    for cls in (
        ApiRetryMessage,
        BackgroundTasksChangedMessage,
        InitMessage,
        LineSkippedMessage,
        PermissionDeniedMessage,
        SessionWritesLostMessage,
        StatusMessage,
        TaskNotificationMessage,
        TaskStartedMessage,
        TaskUpdatedMessage,
    )
}
"""By subtype: those that the engine handles. Nine of ten recordings hold no others."""
