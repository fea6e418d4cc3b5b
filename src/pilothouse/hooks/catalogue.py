"""Every hook event in one table: its class, what the CLI matches it by, what may be answered, how it is refused.

Owns the facts about CLI 2.1.330. Knows neither callbacks nor the wire form of answers.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pilothouse.hooks import events
from pilothouse.hooks.base import HookEvent


class RefusalForm(Enum):
    """How an event says no on the wire."""

    PERMISSION = "permissionDecision"
    """`hookSpecificOutput.permissionDecision` is "deny"."""
    REQUEST = "decision.behavior"
    """`hookSpecificOutput.decision.behavior` is "deny"."""
    BLOCK = "decision"
    """`decision` is "block"."""
    PROMPT = "decision, without the prompt"
    """As BLOCK; the prompt is left out of the message that says so."""
    ELICITATION = "decision and action"
    """As BLOCK, and `hookSpecificOutput.action` is "decline"."""
    NONE = ""
    """It cannot: nothing waits for the answer, or a block means that work goes on."""


class EventRule(Struct, frozen=True):
    """What is to be known about an event.

    Attributes:
        cls: the class of the event.
        matched: the input field that a matcher is compared with; "" if the CLI looks at no matcher.
        answers: the fields of `HookOutput` that are this event's own.
        refusal: how it is refused.
        is_gate: a hook that fails refuses, unless told otherwise.
    """

    cls: type[HookEvent]
    matched: str
    answers: frozenset[str]
    refusal: RefusalForm = RefusalForm.NONE
    is_gate: bool = False

    @property
    def name(self) -> str:
        """Name on the wire."""
        return str(self.cls.__struct_config__.tag)


_CONTEXT: Final = "additional_context"
_VERDICT: Final = "permission_decision permission_decision_reason"


def _rule(
    cls: type[HookEvent],
    matched: str = "",
    answers: str = "",
    refusal: RefusalForm = RefusalForm.NONE,
    *,
    is_gate: bool = False,
) -> EventRule:
    return EventRule(cls, matched, frozenset(answers.split()), refusal, is_gate)


_RULES: Final = (
    _rule(
        events.PreToolUseEvent,
        "tool_name",
        f"{_VERDICT} updated_input {_CONTEXT}",
        RefusalForm.PERMISSION,
        is_gate=True,
    ),
    _rule(
        events.PostToolUseEvent,
        "tool_name",
        f"{_CONTEXT} classifier_context updated_tool_output updated_mcp_tool_output",
        RefusalForm.BLOCK,
    ),
    _rule(events.PostToolUseFailureEvent, "tool_name", _CONTEXT, RefusalForm.BLOCK),
    _rule(events.PostToolBatchEvent, "", _CONTEXT, RefusalForm.BLOCK),
    _rule(events.NotificationEvent, "notification_type", _CONTEXT),
    _rule(
        events.UserPromptSubmitEvent,
        "",
        f"{_CONTEXT} session_title suppress_original_prompt",
        RefusalForm.PROMPT,
        is_gate=True,
    ),
    _rule(
        events.UserPromptExpansionEvent,
        "command_name",
        f"{_CONTEXT} suppress_original_prompt",
        RefusalForm.PROMPT,
        is_gate=True,
    ),
    _rule(
        events.SessionStartEvent,
        "source",
        f"{_CONTEXT} initial_user_message session_title watch_paths reload_skills",
    ),
    _rule(events.SessionEndEvent, "reason"),
    _rule(events.StopEvent, "", _CONTEXT),
    _rule(events.StopFailureEvent, "error"),
    _rule(events.SubagentStartEvent, "agent_type", _CONTEXT),
    _rule(events.SubagentStopEvent, "agent_type", _CONTEXT),
    _rule(events.PreCompactEvent, "trigger", "", RefusalForm.BLOCK),
    _rule(events.PostCompactEvent, "trigger"),
    _rule(events.PreModelSwitchEvent, "to_model", _VERDICT, RefusalForm.PERMISSION, is_gate=True),
    _rule(events.PostModelSwitchEvent, "to_model", _CONTEXT),
    _rule(
        events.PermissionRequestEvent,
        "tool_name",
        f"{_VERDICT} updated_input updated_permissions interrupt",
        RefusalForm.REQUEST,
        is_gate=True,
    ),
    _rule(events.PermissionDeniedEvent, "tool_name", "retry"),
    _rule(events.SetupEvent, "trigger", _CONTEXT),
    _rule(events.TeammateIdleEvent),
    _rule(events.TaskCreatedEvent, "", "", RefusalForm.BLOCK),
    _rule(events.TaskCompletedEvent),
    _rule(events.ElicitationEvent, "mcp_server_name", "action content", RefusalForm.ELICITATION, is_gate=True),
    _rule(events.ElicitationResultEvent, "mcp_server_name", "action content", RefusalForm.ELICITATION, is_gate=True),
    _rule(events.ConfigChangeEvent, "source", "", RefusalForm.BLOCK, is_gate=True),
    _rule(events.WorktreeCreateEvent, "", "worktree_path"),
    _rule(events.WorktreeRemoveEvent),
    _rule(events.InstructionsLoadedEvent, "load_reason"),
    _rule(events.CwdChangedEvent, "", "watch_paths"),
    _rule(events.FileChangedEvent, "file_path", "watch_paths"),
    _rule(events.DirectoryAddedEvent, "source"),
    _rule(events.MessageDisplayEvent, "", "display_content"),
)

HOOK_EVENTS: Final = MappingProxyType({rule.name: rule for rule in _RULES})
"""Every event of CLI 2.1.330, by its name on the wire."""
