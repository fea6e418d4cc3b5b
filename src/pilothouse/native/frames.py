"""The frames that the engine says, as CLI 2.1.330 has them. Pure.

Owns their fields. Leaves out what has no meaning here (remote control, plugins, fast mode), says null where it is
unknown.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pilothouse._version import __version__
from pilothouse.native.history import CLI_VERSION, now
from pilothouse.native.models import offered
from pilothouse.native.shapes import JSON
from pilothouse.native.spending import zero_usage
from pilothouse.native.state import STRUCTURED, State

CAPABILITIES = ("interrupt_receipt_v1", "interrupt_cancel_queued_v1", "msg_lifecycle_v1")


def init(state: State) -> JSON:
    """`system/init`: what there is at the beginning of a turn."""
    servers = [{"name": s.name, "status": s.status} for s in state.servers.by_name.values()]
    return {
        "type": "system",
        "subtype": "init",
        "cwd": str(state.workplace.cwd),
        "tools": [*state.tools(), *((STRUCTURED,) if state.schema is not None else ())],
        "mcp_servers": servers,
        "model": state.model,
        "permissionMode": state.mode,
        "slash_commands": ["clear", "compact"] if state.launch.commands else [],
        "apiKeySource": key_source(state.env),
        "claude_code_version": CLI_VERSION,
        "pilothouse_agent_version": __version__,
        "output_style": "default",
        "agents": [],
        "skills": [],
        "plugins": [],
        "original_cwd": str(state.workplace.root),
        "additional_directories": [str(path) for path in state.workplace.directories],
        "effort": state.effort,
        "capabilities": list(CAPABILITIES),
    }


def key_source(env: Mapping[str, str]) -> str:
    """Where the key comes from."""
    return "ANTHROPIC_API_KEY" if env.get("ANTHROPIC_API_KEY") else "none"


def initialized(state: State, pid: int) -> JSON:
    """The answer to `initialize`."""
    return {
        "commands": [
            {"name": "clear", "description": "Begin a new conversation", "argumentHint": "", "builtin": True},
            {"name": "compact", "description": "Summarise the conversation", "argumentHint": "", "builtin": True},
        ]
        if state.launch.commands
        else [],
        "agents": [],
        "output_style": "default",
        "available_output_styles": ["default"],
        "models": offered(),
        "account": {"tokenSource": "none", "apiKeySource": key_source(state.env), "apiProvider": "firstParty"},
        "pid": pid,
        "claude_code_version": CLI_VERSION,
        "pilothouse_agent_version": __version__,
        "current_permission_mode": state.mode,
        "hooks_applied": "hooks" in state.told,
        "hook_on_failure_supported": True,
        "session_state": "idle",
        "capabilities": list(CAPABILITIES),
    }


def assistant(message: Mapping[str, Any], blocks: Sequence[JSON], **about: Any) -> JSON:
    """`assistant`: one block of a reply."""
    frame = {"type": "assistant", "message": {**message, "content": list(blocks)}, "parent_tool_use_id": None}
    return frame | {"timestamp": now()} | about


def synthetic(text: str, **about: Any) -> JSON:
    """`assistant`: a message that no model has said."""
    message = {
        "id": str(uuid.uuid4()),
        "type": "message",
        "role": "assistant",
        "model": "<synthetic>",
        "stop_reason": "stop_sequence",
        "stop_sequence": "",
        "usage": zero_usage(),
    }
    return assistant(message, [{"type": "text", "text": text}], **about)


def user(content: str | Sequence[JSON], **about: Any) -> JSON:
    """`user`: a tool result, a note, or a prompt given back."""
    given = content if isinstance(content, str) else list(content)
    message = {"role": "user", "content": given}
    return {"type": "user", "message": message, "parent_tool_use_id": None, "timestamp": now()} | about


def stream_event(event: Mapping[str, Any], message_id: str, **about: Any) -> JSON:
    """`stream_event`: one event of the API."""
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None, "api_message_id": message_id} | about


def system(subtype: str, **about: Any) -> JSON:
    """`system` of any subtype."""
    return {"type": "system", "subtype": subtype, **about}


def result(state: State, began: float, **about: Any) -> JSON:
    """`result`: the end of a turn. `about` has what differs: subtype, is_error, num_turns, …"""
    spending = state.spending
    index, state.results = state.results, state.results + 1
    return {
        "type": "result",
        "duration_ms": round((time.monotonic() - began) * 1000),
        "duration_api_ms": round(spending.turn_api_seconds * 1000),
        "stop_reason": None,
        "total_cost_usd": spending.usd,
        "usage": spending.usage,
        "modelUsage": {name: dict(entry) for name, entry in spending.models.items()},
        "model_usage_since_last_result": {name: dict(entry) for name, entry in spending.turn_models.items()},
        "permission_denials": [],
        "result_index": index,
        **about,
    }


def lifecycle(command: str, state: str) -> JSON:
    """`command_lifecycle`: what became of a prompt that has a uuid."""
    return {"type": "command_lifecycle", "command_uuid": command, "state": state}


def compact_json(value: Any) -> str:
    """JSON without blanks, as the text of a structured output has it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
