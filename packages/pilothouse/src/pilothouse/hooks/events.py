"""Every hook event of the CLI.

Its typed class, which field a matcher is compared with, what a hook may return, and how the event is refused. A field
of an unexpected type and an unknown field are never fatal and never lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from msgspec import Struct, convert, field
from msgspec.structs import force_setattr as set_field

from pilothouse.messages.base import Number, short_value
from pilothouse.messages.decoder import convert_fields

# The wire key of the name of an event.
EVENT_NAME_KEY = "hook_event_name"
# The wire name of the field that holds the input; the CLI never sends it.
_RAW_KEY = "<raw input>"

E = TypeVar("E", bound="HookEvent")


class HookEffort(Struct, frozen=True):
    """How hard the model thinks; `level` is "low", "medium", "high", "xhigh", "max" or a newer one."""

    level: str = ""


class McpServerOrigin(Struct, frozen=True):
    """The MCP server a tool belongs to, and where it was defined: "sdk", "plugin", "user", "project" and others."""

    name: str = ""
    source: str = ""


class HookEvent(Struct, frozen=True, kw_only=True, tag_field=EVENT_NAME_KEY, tag=""):
    """Base of the events that hooks are called with.

    A field that the CLI left out has its default. A value of another type than declared here is kept as it came, so
    that a check that uses the value fails instead of passing.

    Attributes:
        raw: the input as it came, unknown fields included; {} if built by hand.
        session_id: the conversation.
        transcript_path: the file of its transcript.
        cwd: working directory.
        prompt_id: the prompt that caused the event; None before the first one.
        permission_mode: "default", "acceptEdits", "plan", "dontAsk", "auto" or "bypassPermissions", in events that
            have it.
        agent_id: the sub-agent of the event; None in the main thread.
        agent_type: the type of that sub-agent, or of the agent that is the main thread.
        effort: how hard the model thinks, in events of a turn.
    """

    raw: dict[str, Any] = field(default={}, name=_RAW_KEY)
    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    prompt_id: str | None = None
    permission_mode: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    effort: HookEffort | None = None

    @property
    def event_name(self) -> str:
        """Name of the event on the wire, such as "PreToolUse"."""
        return str(self.__struct_config__.tag)

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "raw")
        shown = (f"{name}={short_value(value)}" for name, value in values if value not in (None, "", [], {}))
        return f"{type(self).__name__}({', '.join(shown)})"


class UnknownHookEvent(HookEvent, frozen=True, kw_only=True, tag="<unknown>"):
    """An event that this version does not know. Its own fields are in `raw`."""

    @property
    def event_name(self) -> str:
        """Name of the event on the wire; "" if it has none."""
        name = self.raw.get(EVENT_NAME_KEY)
        return name if isinstance(name, str) else ""


def read_event(cls: type[E], data: Mapping[str, Any]) -> E:
    """Build an event from the input of a hook.

    Args:
        cls: the class of the event.
        data: the input object, as it came. The event keeps it, if it is a dict.
    """
    raw = data if isinstance(data, dict) else dict(data)
    try:
        event = convert(raw, cls)
    except (ValueError, TypeError, RecursionError):
        event = cls(**convert_fields(cls, raw, keep_misfits=True))
    set_field(event, "raw", raw)
    return event


# tools


class PreToolUseEvent(HookEvent, frozen=True, kw_only=True, tag="PreToolUse"):
    """A tool is about to run. The answer may allow it, deny it, ask, defer it, or change its input."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    mcp_server: McpServerOrigin | None = None


class PreSkillShellCommandEvent(HookEvent, frozen=True, kw_only=True, tag="PreSkillShellCommand"):
    """A skill or command is about to run a shell line of its own text; no other hook or function sees it.

    The answer may deny it. "ask", "defer" and an `updated_input` deny it, too. Needs Claude Code 2.1.332.

    Attributes:
        tool_name: the shell, "Bash" or "PowerShell".
        tool_input: `command`, with the arguments filled in.
        tool_use_id: an id of this line; it names no tool call.
        command_name: the skill or command.
        command_source: where it comes from, such as "projectSettings".
        invoked_by: "user", which includes your program; "claude"; or "other", such as a sub-agent that loads a skill.
    """

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    command_name: str = ""
    command_source: str | None = None
    invoked_by: str = ""


class PostToolUseEvent(HookEvent, frozen=True, kw_only=True, tag="PostToolUse"):
    """A tool has run; `duration_ms` excludes hooks and permission requests. The answer may replace the result."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_response: Any = None
    tool_use_id: str = ""
    duration_ms: Number | None = None
    mcp_server: McpServerOrigin | None = None


class PostToolUseFailureEvent(HookEvent, frozen=True, kw_only=True, tag="PostToolUseFailure"):
    """A tool has failed; `is_interrupt` is True after an interrupt."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    error: str = ""
    is_interrupt: bool | None = None
    duration_ms: Number | None = None
    mcp_server: McpServerOrigin | None = None


class BatchedToolCall(Struct, frozen=True):
    """A tool call of a batch, with the input that the model gave and what the model sees of the result."""

    tool_name: str = ""
    tool_input: Any = None
    tool_use_id: str = ""
    tool_response: Any = None


class PostToolBatchEvent(HookEvent, frozen=True, kw_only=True, tag="PostToolBatch"):
    """All tool calls of one reply of the model are done; the next request to the model follows."""

    tool_calls: list[BatchedToolCall] = []


class PermissionRequestEvent(HookEvent, frozen=True, kw_only=True, tag="PermissionRequest"):
    """A tool call needs permission. The answer may grant or refuse it instead of the user.

    The CLI asks `can_use_tool` at the same time, and the first answer counts: to be sure, refuse in PreToolUse.
    """

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    permission_suggestions: list[dict[str, Any]] = []
    mcp_server: McpServerOrigin | None = None


class PermissionDeniedEvent(HookEvent, frozen=True, kw_only=True, tag="PermissionDenied"):
    """A tool call was refused. The answer may let the model try again."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    reason: str = ""
    mcp_server: McpServerOrigin | None = None


# prompts and answers


class UserPromptSubmitEvent(HookEvent, frozen=True, kw_only=True, tag="UserPromptSubmit"):
    """A prompt is about to reach the model; `source` is its author, such as "sdk", "user" or "system"."""

    prompt: str = ""
    source: str | None = None
    session_title: str | None = None


class UserPromptExpansionEvent(HookEvent, frozen=True, kw_only=True, tag="UserPromptExpansion"):
    """A command in a prompt is about to be expanded; `expansion_type` is "slash_command" or "mcp_prompt"."""

    expansion_type: str = ""
    command_name: str = ""
    command_args: str = ""
    command_source: str | None = None
    prompt: str = ""


class MessageDisplayEvent(HookEvent, frozen=True, kw_only=True, tag="MessageDisplay"):
    """New complete lines of an answer; `index` counts them per message, `final` marks the last. Display only."""

    turn_id: str = ""
    message_id: str = ""
    index: int = 0
    final: bool = False
    delta: str = ""


class HookBackgroundTask(Struct, frozen=True):
    """Work that goes on beside the conversation."""

    id: str = ""
    type: str = ""
    status: str = ""
    description: str = ""
    command: str | None = None
    agent_type: str | None = None
    server: str | None = None
    tool: str | None = None
    name: str | None = None


class SessionCron(Struct, frozen=True):
    """A scheduled prompt; `schedule` is a cron expression."""

    id: str = ""
    schedule: str = ""
    recurring: bool = False
    prompt: str = ""


class StopEvent(HookEvent, frozen=True, kw_only=True, tag="Stop"):
    """The model is about to stop. A block makes it continue; `stop_hook_active` marks a repeated stop."""

    stop_hook_active: bool = False
    last_assistant_message: str | None = None
    background_tasks: list[HookBackgroundTask] = []
    session_crons: list[SessionCron] = []


class StopFailureEvent(HookEvent, frozen=True, kw_only=True, tag="StopFailure"):
    """The turn ended with an error of the API; `error` is its kind."""

    error: str = ""
    error_details: str | None = None
    last_assistant_message: str | None = None


class NotificationEvent(HookEvent, frozen=True, kw_only=True, tag="Notification"):
    """The CLI has a message for the user."""

    message: str = ""
    title: str | None = None
    notification_type: str = ""


# subagents, teammates, tasks


class SubagentStartEvent(HookEvent, frozen=True, kw_only=True, tag="SubagentStart"):
    """A sub-agent starts; `agent_id` names it."""


class SubagentStopEvent(HookEvent, frozen=True, kw_only=True, tag="SubagentStop"):
    """A sub-agent is about to stop. A block makes it continue."""

    stop_hook_active: bool = False
    agent_transcript_path: str = ""
    last_assistant_message: str | None = None
    background_tasks: list[HookBackgroundTask] = []
    session_crons: list[SessionCron] = []


class TeammateIdleEvent(HookEvent, frozen=True, kw_only=True, tag="TeammateIdle"):
    """A teammate is idle. A block makes it continue."""

    teammate_name: str = ""
    team_name: str = ""


class TaskCreatedEvent(HookEvent, frozen=True, kw_only=True, tag="TaskCreated"):
    """A task is about to be added to the list."""

    task_id: str = ""
    task_subject: str = ""
    task_description: str | None = None
    teammate_name: str | None = None
    team_name: str | None = None


class TaskCompletedEvent(HookEvent, frozen=True, kw_only=True, tag="TaskCompleted"):
    """A task is about to be completed. A block keeps it open."""

    task_id: str = ""
    task_subject: str = ""
    task_description: str | None = None
    teammate_name: str | None = None
    team_name: str | None = None


# the session


class SessionStartEvent(HookEvent, frozen=True, kw_only=True, tag="SessionStart"):
    """A session starts; `source` is "startup", "resume", "clear", "compact" or "fork".

    Hooks of your program get only "clear" and "compact": at startup they are not registered yet.
    """

    source: str = ""
    model: str | None = None
    session_title: str | None = None
    seconds_since_last_response: Number | None = None
    context_tokens: Number | None = None
    prompt_cache_likely_expired: bool | None = None
    estimated_cache_write_usd: Number | None = None


EXIT_REASONS: Final = ("clear", "resume", "logout", "prompt_input_exit", "other")
"""The reasons of a `SessionEndEvent`."""


class SessionEndEvent(HookEvent, frozen=True, kw_only=True, tag="SessionEnd"):
    """A session ends; `reason` is one of `EXIT_REASONS`."""

    reason: str = ""


class SetupEvent(HookEvent, frozen=True, kw_only=True, tag="Setup"):
    """The CLI sets itself up; `trigger` is "init" or "maintenance"."""

    trigger: str = ""


class PreCompactEvent(HookEvent, frozen=True, kw_only=True, tag="PreCompact"):
    """The conversation is about to be summarised; `trigger` is "manual" or "auto"."""

    trigger: str = ""
    custom_instructions: str | None = None


class PostCompactEvent(HookEvent, frozen=True, kw_only=True, tag="PostCompact"):
    """The conversation was summarised."""

    trigger: str = ""
    compact_summary: str = ""


class _ModelSwitchEvent(HookEvent, frozen=True, kw_only=True):
    from_model: str = ""
    to_model: str = ""
    requested_model: str | None = None
    source: str = ""
    context_tokens: Number = 0
    prompt_cache_warm: bool = False
    cache_ttl: str = ""
    estimated_cache_write_usd: Number = 0
    pricing: str = ""


class PreModelSwitchEvent(_ModelSwitchEvent, frozen=True, kw_only=True, tag="PreModelSwitch"):
    """The model is about to change; `source` names the cause. The answer may allow, deny or ask."""


class PostModelSwitchEvent(_ModelSwitchEvent, frozen=True, kw_only=True, tag="PostModelSwitch"):
    """The model has changed."""


# MCP servers that ask the user


class ElicitationEvent(HookEvent, frozen=True, kw_only=True, tag="Elicitation"):
    """An MCP server asks the user for input; `mode` is "form" or "url"."""

    mcp_server_name: str = ""
    message: str = ""
    mode: str | None = None
    url: str | None = None
    elicitation_id: str | None = None
    requested_schema: dict[str, Any] | None = None


class ElicitationResultEvent(HookEvent, frozen=True, kw_only=True, tag="ElicitationResult"):
    """The user's answer is about to go to the MCP server; `action` is "accept", "decline" or "cancel"."""

    mcp_server_name: str = ""
    elicitation_id: str | None = None
    mode: str | None = None
    action: str = ""
    content: dict[str, Any] | None = None


# files and settings


class ConfigChangeEvent(HookEvent, frozen=True, kw_only=True, tag="ConfigChange"):
    """A settings file changed; `source` is its kind, such as "user_settings" or "project_settings"."""

    source: str = ""
    file_path: str | None = None


class InstructionsLoadedEvent(HookEvent, frozen=True, kw_only=True, tag="InstructionsLoaded"):
    """A file of instructions was read; `load_reason` is the reason."""

    file_path: str = ""
    memory_type: str = ""
    load_reason: str = ""
    globs: list[str] = []
    trigger_file_path: str | None = None
    parent_file_path: str | None = None


class WorktreeCreateEvent(HookEvent, frozen=True, kw_only=True, tag="WorktreeCreate"):
    """The CLI needs a worktree; the answer names its path."""

    name: str = ""


class WorktreeRemoveEvent(HookEvent, frozen=True, kw_only=True, tag="WorktreeRemove"):
    """A worktree is not needed any more."""

    worktree_path: str = ""


class CwdChangedEvent(HookEvent, frozen=True, kw_only=True, tag="CwdChanged"):
    """The working directory changed."""

    old_cwd: str = ""
    new_cwd: str = ""


class FileChangedEvent(HookEvent, frozen=True, kw_only=True, tag="FileChanged"):
    """A watched file changed; `event` is "change", "add" or "unlink"."""

    file_path: str = ""
    event: str = ""


class DirectoryAddedEvent(HookEvent, frozen=True, kw_only=True, tag="DirectoryAdded"):
    """A directory was added to the CLI's working directories; `source` is "slash_command" or "register_repo_root"."""

    directory: str = ""
    source: str = ""


class RefusalFormat(Enum):
    """How an event says no on the wire."""

    PERMISSION = "permissionDecision"
    """`hookSpecificOutput.permissionDecision` is "deny"."""
    REQUEST = "decision.behavior"
    """`hookSpecificOutput.decision.behavior` is "deny"."""
    BLOCK = "decision"
    """`decision` is "block"."""
    REASON = "decision, after the tool has run"
    """As BLOCK; the model gets the reason, and nothing is undone."""
    PROMPT = "decision, without the prompt"
    """As BLOCK; the message about the block leaves the prompt out."""
    ELICITATION = "decision and action"
    """As BLOCK, and `hookSpecificOutput.action` is "decline"."""
    NONE = ""
    """No refusal: the CLI does not wait for the response, or a block means that work continues."""


class HookEventSpec(Struct, frozen=True):
    """What is to be known about an event.

    Attributes:
        event_class: the class of the event.
        match_field: the input field that a matcher is compared with; "" if the CLI ignores matchers.
        output_fields: the fields of `HookOutput` that only some events have, and this one has.
        refusal_format: the wire form of its refusal.
        min_cli_version: the first release that calls hooks for the event; "" if every supported one does.
    """

    event_class: type[HookEvent]
    match_field: str
    output_fields: frozenset[str]
    refusal_format: RefusalFormat = RefusalFormat.NONE
    min_cli_version: str = ""

    @property
    def name(self) -> str:
        """Name on the wire."""
        return str(self.event_class.__struct_config__.tag)

    @property
    def is_gate(self) -> bool:
        """Whether a hook that fails refuses by default: it can keep something from happening."""
        return self.refusal_format not in (RefusalFormat.NONE, RefusalFormat.REASON)


_CONTEXT: Final = "additional_context"
_DECISION: Final = "permission_decision permission_decision_reason"
_TOOL_INPUT: Final = f"{_DECISION} updated_input"
_TOOL_OUTPUT: Final = f"{_CONTEXT} classifier_context updated_tool_output updated_mcp_tool_output"
_PERMISSION: Final = f"{_TOOL_INPUT} updated_permissions interrupt"
_PROMPT: Final = f"{_CONTEXT} suppress_original_prompt"
_START: Final = f"{_CONTEXT} initial_user_message session_title watch_paths reload_skills"


def _make_spec(
    cls: type[HookEvent],
    matched: str = "",
    answers: str = "",
    refusal: RefusalFormat = RefusalFormat.NONE,
    min_cli_version: str = "",
) -> HookEventSpec:
    return HookEventSpec(cls, matched, frozenset(answers.split()), refusal, min_cli_version)


# Each: its class, the field that a matcher is compared with, the fields of its answer, how it says no.
# fmt: off
_SPECS: Final = (
    _make_spec(PreToolUseEvent, "tool_name", f"{_TOOL_INPUT} {_CONTEXT}", RefusalFormat.PERMISSION),
    _make_spec(PreSkillShellCommandEvent, "tool_name", _TOOL_INPUT, RefusalFormat.PERMISSION, "2.1.332"),
    _make_spec(PostToolUseEvent, "tool_name", _TOOL_OUTPUT, RefusalFormat.REASON),
    _make_spec(PostToolUseFailureEvent, "tool_name", _CONTEXT, RefusalFormat.REASON),
    _make_spec(PostToolBatchEvent, "", _CONTEXT, RefusalFormat.REASON),
    _make_spec(NotificationEvent, "notification_type", _CONTEXT),
    _make_spec(UserPromptSubmitEvent, "", f"{_PROMPT} session_title", RefusalFormat.PROMPT),
    _make_spec(UserPromptExpansionEvent, "command_name", _PROMPT, RefusalFormat.PROMPT),
    _make_spec(SessionStartEvent, "source", _START),
    _make_spec(SessionEndEvent, "reason"),
    _make_spec(StopEvent, "", _CONTEXT),
    _make_spec(StopFailureEvent, "error"),
    _make_spec(SubagentStartEvent, "agent_type", _CONTEXT),
    _make_spec(SubagentStopEvent, "agent_type", _CONTEXT),
    _make_spec(PreCompactEvent, "trigger", "", RefusalFormat.BLOCK),
    _make_spec(PostCompactEvent, "trigger"),
    _make_spec(PreModelSwitchEvent, "to_model", _DECISION, RefusalFormat.PERMISSION),
    _make_spec(PostModelSwitchEvent, "to_model", _CONTEXT),
    _make_spec(PermissionRequestEvent, "tool_name", _PERMISSION, RefusalFormat.REQUEST),
    _make_spec(PermissionDeniedEvent, "tool_name", "retry"),
    _make_spec(SetupEvent, "trigger", _CONTEXT),
    _make_spec(TeammateIdleEvent),
    _make_spec(TaskCreatedEvent, "", "", RefusalFormat.BLOCK),
    _make_spec(TaskCompletedEvent),
    _make_spec(ElicitationEvent, "mcp_server_name", "action content", RefusalFormat.ELICITATION),
    _make_spec(ElicitationResultEvent, "mcp_server_name", "action content", RefusalFormat.ELICITATION),
    _make_spec(ConfigChangeEvent, "source", "", RefusalFormat.BLOCK),
    _make_spec(WorktreeCreateEvent, "", "worktree_path"),
    _make_spec(WorktreeRemoveEvent),
    _make_spec(InstructionsLoadedEvent, "load_reason"),
    _make_spec(CwdChangedEvent, "", "watch_paths"),
    _make_spec(FileChangedEvent, "file_path", "watch_paths"),
    _make_spec(DirectoryAddedEvent, "source"),
    _make_spec(MessageDisplayEvent, "", "display_content"),
)
# fmt: on

HOOK_EVENTS: Final = MappingProxyType({rule.name: rule for rule in _SPECS})
"""Every event of the CLI, by its name on the wire."""


# How events are named that precede a step.
_GATE_PREFIX: Final = "Pre"


def is_gate(event_name: str) -> bool:
    """Whether a hook that fails refuses by default. Of unknown events, those are gates whose name begins with "Pre"."""
    spec = HOOK_EVENTS.get(event_name)
    return event_name.startswith(_GATE_PREFIX) if spec is None else spec.is_gate


def find_refusal_format(event_name: str) -> RefusalFormat:
    """Return how an event says no. Of unknown gates, it is the form that every event takes."""
    spec = HOOK_EVENTS.get(event_name)
    if spec is not None:
        return spec.refusal_format
    # With a `hookSpecificOutput` that the event does not have, the CLI discards the whole output.
    return RefusalFormat.BLOCK if is_gate(event_name) else RefusalFormat.NONE
