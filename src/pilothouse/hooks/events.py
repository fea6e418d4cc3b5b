"""The hook events of CLI 2.1.330, one class each.

Owns their fields. What a hook may answer to them, and what the CLI matches them by, says the catalogue.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilothouse.hooks.base import HookEvent, McpServerOrigin
from pilothouse.messages.base import Number

# tools


class PreToolUseEvent(HookEvent, frozen=True, kw_only=True, tag="PreToolUse"):
    """A tool is about to run. The answer may allow it, deny it, ask, defer it, or change its input."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    mcp_server: McpServerOrigin | None = None


class PostToolUseEvent(HookEvent, frozen=True, kw_only=True, tag="PostToolUse"):
    """A tool has run; `duration_ms` leaves out hooks and questions. The answer may replace what the model sees."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_response: Any = None
    tool_use_id: str = ""
    duration_ms: Number | None = None
    mcp_server: McpServerOrigin | None = None


class PostToolUseFailureEvent(HookEvent, frozen=True, kw_only=True, tag="PostToolUseFailure"):
    """A tool has failed; `is_interrupt` says that it was interrupted."""

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
    """A tool call needs permission. The answer may give or refuse it in the user's place.

    The CLI asks `can_use_tool` at the same time, and the first answer counts: to be sure, refuse in PreToolUse.
    """

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    permission_suggestions: list[dict[str, Any]] = []
    mcp_server: McpServerOrigin | None = None


class PermissionDeniedEvent(HookEvent, frozen=True, kw_only=True, tag="PermissionDenied"):
    """A tool call was refused. The answer may tell the model that it may try again."""

    tool_name: str = ""
    tool_input: dict[str, Any] = {}
    tool_use_id: str = ""
    reason: str = ""
    mcp_server: McpServerOrigin | None = None


# prompts and answers


class UserPromptSubmitEvent(HookEvent, frozen=True, kw_only=True, tag="UserPromptSubmit"):
    """A prompt is about to reach the model; `source` says who wrote it, such as "sdk", "user" or "system"."""

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
    """New whole lines of an answer; `index` counts them per message, `final` marks the last. Display only."""

    turn_id: str = ""
    message_id: str = ""
    index: int = 0
    final: bool = False
    delta: str = ""


class BackgroundTask(Struct, frozen=True):
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
    """The model is about to stop. A block makes it go on; `stop_hook_active` says that one already did."""

    stop_hook_active: bool = False
    last_assistant_message: str | None = None
    background_tasks: list[BackgroundTask] = []
    session_crons: list[SessionCron] = []


class StopFailureEvent(HookEvent, frozen=True, kw_only=True, tag="StopFailure"):
    """The turn ended with an error of the API; `error` is its kind."""

    error: str = ""
    error_details: str | None = None
    last_assistant_message: str | None = None


class NotificationEvent(HookEvent, frozen=True, kw_only=True, tag="Notification"):
    """The CLI wants to tell the user something."""

    message: str = ""
    title: str | None = None
    notification_type: str = ""


# subagents, teammates, tasks


class SubagentStartEvent(HookEvent, frozen=True, kw_only=True, tag="SubagentStart"):
    """A subagent starts; it is `agent_id`."""


class SubagentStopEvent(HookEvent, frozen=True, kw_only=True, tag="SubagentStop"):
    """A subagent is about to stop. A block makes it go on."""

    stop_hook_active: bool = False
    agent_transcript_path: str = ""
    last_assistant_message: str | None = None
    background_tasks: list[BackgroundTask] = []
    session_crons: list[SessionCron] = []


class TeammateIdleEvent(HookEvent, frozen=True, kw_only=True, tag="TeammateIdle"):
    """A teammate has nothing to do. A block makes it go on."""

    teammate_name: str = ""
    team_name: str = ""


class TaskCreatedEvent(HookEvent, frozen=True, kw_only=True, tag="TaskCreated"):
    """A task is about to be put on the list."""

    task_id: str = ""
    task_subject: str = ""
    task_description: str | None = None
    teammate_name: str | None = None
    team_name: str | None = None


class TaskCompletedEvent(HookEvent, frozen=True, kw_only=True, tag="TaskCompleted"):
    """A task is about to be ticked off. A block keeps it open."""

    task_id: str = ""
    task_subject: str = ""
    task_description: str | None = None
    teammate_name: str | None = None
    team_name: str | None = None


# the session


class SessionStartEvent(HookEvent, frozen=True, kw_only=True, tag="SessionStart"):
    """A session starts; `source` is "startup", "resume", "clear", "compact" or "fork".

    Hooks of the host hear of "clear" and "compact" only: at startup they are not registered yet.
    """

    source: str = ""
    model: str | None = None
    session_title: str | None = None
    seconds_since_last_response: Number | None = None
    context_tokens: Number | None = None
    prompt_cache_likely_expired: bool | None = None
    estimated_cache_write_usd: Number | None = None


class SessionEndEvent(HookEvent, frozen=True, kw_only=True, tag="SessionEnd"):
    """A session ends; `reason` is "clear", "resume", "logout", "prompt_input_exit" or "other"."""

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


class _ModelSwitch(HookEvent, frozen=True, kw_only=True):
    from_model: str = ""
    to_model: str = ""
    requested_model: str | None = None
    source: str = ""
    context_tokens: Number = 0
    prompt_cache_warm: bool = False
    cache_ttl: str = ""
    estimated_cache_write_usd: Number = 0
    pricing: str = ""


class PreModelSwitchEvent(_ModelSwitch, frozen=True, kw_only=True, tag="PreModelSwitch"):
    """The model is about to change; `source` says by whom. The answer may allow, deny or ask."""


class PostModelSwitchEvent(_ModelSwitch, frozen=True, kw_only=True, tag="PostModelSwitch"):
    """The model has changed."""


# MCP servers that ask the user


class ElicitationEvent(HookEvent, frozen=True, kw_only=True, tag="Elicitation"):
    """An MCP server asks the user something; `mode` is "form" or "url"."""

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
    """A settings file changed; `source` says which, such as "user_settings" or "project_settings"."""

    source: str = ""
    file_path: str | None = None


class InstructionsLoadedEvent(HookEvent, frozen=True, kw_only=True, tag="InstructionsLoaded"):
    """A file of instructions was read; `load_reason` says why."""

    file_path: str = ""
    memory_type: str = ""
    load_reason: str = ""
    globs: list[str] = []
    trigger_file_path: str | None = None
    parent_file_path: str | None = None


class WorktreeCreateEvent(HookEvent, frozen=True, kw_only=True, tag="WorktreeCreate"):
    """A worktree is wanted; the answer says where it is."""

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
    """A directory was added to the ones the CLI may work in; `source` is "slash_command" or "register_repo_root"."""

    directory: str = ""
    source: str = ""
