"""The messages beside the conversation: limits, progress, lifecycle, and types this version does not know.

Owns their fields (CLI 2.1.330). Knows neither the conversation nor how lines are decoded.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import Any

from msgspec import Struct, field

from pilothouse.messages.base import Message, Number


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
    """Wire type `rate_limit_event`: the state of a usage limit changed. (E70)"""

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
    """Wire type `tool_use_summary`: what the preceding tool calls did, in words."""

    summary: str = ""
    preceding_tool_use_ids: list[str] = []
    timestamp: str | None = None


class AuthStatusMessage(Message, frozen=True, gc=False, kw_only=True, tag="auth_status"):
    """Wire type `auth_status`: a login is going on, or ended."""

    is_authenticating: bool = field(default=False, name="isAuthenticating")
    output: list[str] = []
    error: str | None = None


class PromptSuggestionMessage(Message, frozen=True, gc=False, kw_only=True, tag="prompt_suggestion"):
    """Wire type `prompt_suggestion`: what the user might ask next; arrives after the result."""

    suggestion: str = ""


class ConversationResetMessage(Message, frozen=True, gc=False, kw_only=True, tag="conversation_reset"):
    """Wire type `conversation_reset`: the conversation was cleared; later lines carry the new id."""

    new_conversation_id: str | None = None
    trigger: str | None = None
    user_message_uuid: str | None = None
    user_message_from_human: bool | None = None
    timestamp: str | None = None


class CommandLifecycleMessage(Message, frozen=True, gc=False, kw_only=True, tag="command_lifecycle"):
    """Wire type `command_lifecycle`: what became of a user message that has a uuid.

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
    """Wire type `active_goal`: the goal that the agent works towards; None: there is none any more."""

    value: dict[str, Any] | None = None


class KeepAliveMessage(Message, frozen=True, gc=False, kw_only=True, tag="keep_alive"):
    """Wire type `keep_alive`: nothing happened, the peer is there."""


class DoneMessage(Message, frozen=True, gc=False, kw_only=True, tag="done"):
    """Wire type `done`: the end of a mock stream. The CLI itself never sends it. (E55)"""


class UnknownMessage(Message, frozen=True, gc=False, kw_only=True):
    """A message of a type that this version does not know; `.raw` has all of it. (L35)"""

    kind: str = ""

    @property
    def type(self) -> str:
        """The wire type as it came."""
        return self.kind

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, UnknownMessage) and self.raw == other.raw)

    def __ne__(self, other: object) -> bool:
        return not self == other
