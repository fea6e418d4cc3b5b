"""The frames that the engine sends, in the format of the CLI. Pure.

Owns their fields. Omits fields without a meaning here (remote control, plugins, fast mode); unknown values are null.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pilothouse import __version__
from pilothouse_native.history import CLI_VERSION
from pilothouse_native.models import list_models, make_zero_usage
from pilothouse_native.state import STRUCTURED_TOOL_NAME, SessionState
from pilothouse_native.wire import JsonObject
from pilothouse_transcripts.edits import make_timestamp

CAPABILITIES = ("interrupt_receipt_v1", "interrupt_cancel_queued_v1", "msg_lifecycle_v1")

COMMANDS = {"clear": "Begin a new conversation", "compact": "Summarise the conversation"}


def list_commands(state: SessionState) -> dict[str, str]:
    """Return the descriptions of the available commands, by name."""
    return {} if state.arguments.disable_slash_commands else COMMANDS


def init(state: SessionState) -> JsonObject:
    """`system/init`: the state at the beginning of a turn."""
    return {
        "type": "system",
        "subtype": "init",
        "cwd": str(state.workplace.cwd),
        "tools": [*state.list_tools(), *((STRUCTURED_TOOL_NAME,) if state.schema is not None else ())],
        "mcp_servers": [{"name": server.name, "status": server.status} for server in state.servers.values()],
        "model": state.model,
        "permissionMode": state.permission_mode,
        "slash_commands": [*list_commands(state)],
        "apiKeySource": get_key_source(state.env),
        "claude_code_version": CLI_VERSION,
        "pilothouse_agent_version": __version__,
        "output_style": "default",
        "agents": [],
        "skills": [],
        "plugins": [],
        "original_cwd": str(state.workplace.root),
        "additional_directories": [str(path) for path in state.workplace.directories],
        "effort": state.effort,
        "sandbox_enabled": False,
        "capabilities": list(CAPABILITIES),
    }


def get_key_source(env: Mapping[str, str]) -> str:
    """Return the source of the API key."""
    return "ANTHROPIC_API_KEY" if env.get("ANTHROPIC_API_KEY") else "none"


def initialize_response(state: SessionState, pid: int) -> JsonObject:
    """The response to `initialize`."""
    return {
        "commands": [
            {"name": name, "description": about, "argumentHint": "", "builtin": True}
            for name, about in list_commands(state).items()
        ],
        "agents": [],
        "output_style": "default",
        "available_output_styles": ["default"],
        "models": list_models(),
        "account": {"tokenSource": "none", "apiKeySource": get_key_source(state.env), "apiProvider": "firstParty"},
        "pid": pid,
        "claude_code_version": CLI_VERSION,
        "pilothouse_agent_version": __version__,
        "current_permission_mode": state.permission_mode,
        "hooks_applied": "hooks" in state.initialize_request,
        "hook_on_failure_supported": True,
        "session_state": "idle",
        "capabilities": list(CAPABILITIES),
    }


def assistant(message: Mapping[str, Any], blocks: Sequence[JsonObject], **fields: Any) -> JsonObject:
    """`assistant`: one block of a reply."""
    frame = {"type": "assistant", "message": {**message, "content": list(blocks)}, "parent_tool_use_id": None}
    return frame | {"timestamp": make_timestamp()} | fields


def synthetic(text: str, **fields: Any) -> JsonObject:
    """`assistant`: a message that no model wrote."""
    message = {"id": str(uuid.uuid4()), "type": "message", "role": "assistant", "model": "<synthetic>"}
    message |= {"stop_reason": "stop_sequence", "stop_sequence": "", "usage": make_zero_usage()}
    return assistant(message, [{"type": "text", "text": text}], **fields)


def user(content: str | Sequence[JsonObject], **fields: Any) -> JsonObject:
    """`user`: a tool result, a note, or a replayed prompt."""
    given = content if isinstance(content, str) else list(content)
    message = {"role": "user", "content": given}
    return {"type": "user", "message": message, "parent_tool_use_id": None, "timestamp": make_timestamp()} | fields


def stream_event(event: Mapping[str, Any], message_id: str, **fields: Any) -> JsonObject:
    """`stream_event`: one event of the API."""
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None, "api_message_id": message_id} | fields


def system(subtype: str, **fields: Any) -> JsonObject:
    """`system` of any subtype."""
    return {"type": "system", "subtype": subtype, **fields}


def result(state: SessionState, began: float, **fields: Any) -> JsonObject:
    """`result`: the end of a turn. `fields` has what differs: subtype, is_error, num_turns, …"""
    totals = state.totals
    index, state.result_count = state.result_count, state.result_count + 1
    return {
        "type": "result",
        "duration_ms": round((time.monotonic() - began) * 1000),
        "duration_api_ms": round(totals.turn_api_seconds * 1000),
        "stop_reason": None,
        "total_cost_usd": totals.cost_usd,
        "usage": totals.usage,
        "modelUsage": {name: dict(entry) for name, entry in totals.models.items()},
        "model_usage_since_last_result": {name: dict(entry) for name, entry in totals.turn_models.items()},
        "permission_denials": [],
        "result_index": index,
        **fields,
    }


def lifecycle(command: str, state: str) -> JsonObject:
    """`command_lifecycle`: the state of a prompt that has a uuid."""
    return {"type": "command_lifecycle", "command_uuid": command, "state": state}


def failed_start(text: str) -> JsonObject:
    """`result`: the session that was to be resumed does not exist."""
    frame: JsonObject = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
    frame |= {"duration_ms": 0, "duration_api_ms": 0, "stop_reason": None, "total_cost_usd": 0, "usage": {}}
    return frame | {"modelUsage": {}, "permission_denials": [], "errors": [text], "result_index": 0}
