"""Frames as the CLI writes them: realistic dictionaries for fake children, mock transports and unit tests.

Owns the format (of the CLI, reduced to what matters). Pure: reads no recording, starts nothing. Every builder
accepts further fields by name; they override the defaults.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]

SESSION_ID = "5e551017-0000-4000-8000-000000000001"
MODEL = "claude-opus-5-5"
VERSION = "2.1.332"
TIMESTAMP = "2026-01-01T00:00:00.000Z"
TOOLS = ("Task", "Bash", "Edit", "Glob", "Grep", "Read", "Write")
DELTA_CHARACTERS = 16
PRICE = 0.00028


def _frame(kind: str, session_id: str, fields: Mapping[str, Any]) -> Frame:
    return {"type": kind, "session_id": session_id, "uuid": str(uuid.uuid4()), **fields}


def _api_message(content: list[Frame], message_id: str, model: str, **fields: Any) -> Frame:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
        **fields,
    }


def text(value: str) -> Frame:
    """A text block."""
    return {"type": "text", "text": value}


def thinking(value: str, signature: str = "scripted-signature") -> Frame:
    """A thinking block."""
    return {"type": "thinking", "thinking": value, "signature": signature}


def tool_use(name: str, input: Mapping[str, Any] | None = None, id: str = "toolu_1") -> Frame:  # noqa: A002 - the wire's names
    """A tool_use block."""
    return {"type": "tool_use", "id": id, "name": name, "input": dict(input or {})}


def server_info(**extra: Any) -> Frame:
    """The body of the CLI's response to `initialize`."""
    return {
        "commands": [{"name": "compact", "description": "Compact the conversation", "argumentHint": ""}],
        "agents": [{"name": "general-purpose", "description": "General purpose agent"}],
        "output_style": "default",
        "available_output_styles": ["default"],
        "models": [{"value": "default", "displayName": "Default", "description": "The default model"}],
        "account": {"apiKeySource": "ANTHROPIC_API_KEY"},
        "pid": 1,
        "claude_code_version": VERSION,
        "current_permission_mode": "default",
        "session_state": "idle",
        "capabilities": ["interrupt_receipt_v1", "interrupt_cancel_queued_v1", "msg_lifecycle_v1"],
        **extra,
    }


def no_usage() -> Frame:
    """The body of the CLI's response to `get_usage` before the first reply of a model."""
    return {"session": {"total_cost_usd": 0, "model_usage": {}}}


def init(*, session_id: str = SESSION_ID, model: str = MODEL, tools: Iterable[str] = TOOLS, **extra: Any) -> Frame:
    """`system/init`, the first frame of every turn."""
    fields: Frame = {
        "subtype": "init",
        "cwd": "/home/user/project",
        "tools": list(tools),
        "mcp_servers": [],
        "model": model,
        "permissionMode": "default",
        "slash_commands": ["compact", "context", "cost"],
        "apiKeySource": "ANTHROPIC_API_KEY",
        "claude_code_version": VERSION,
        "output_style": "default",
        "agents": ["general-purpose"],
        "skills": [],
        "plugins": [],
        "capabilities": ["interrupt_receipt_v1", "msg_lifecycle_v1"],
    }
    return _frame("system", session_id, fields | extra)


def assistant(
    content: str | Sequence[Frame],
    *,
    session_id: str = SESSION_ID,
    message_id: str = "msg_1",
    model: str = MODEL,
    parent_tool_use_id: str | None = None,
    **extra: Any,
) -> Frame:
    """An assistant message. The CLI sends one per content block, all with the `message_id` of the API's message."""
    blocks = [text(content)] if isinstance(content, str) else list(content)
    fields: Frame = {
        "message": _api_message(blocks, message_id, model, context_management=None),
        "parent_tool_use_id": parent_tool_use_id,
        "timestamp": TIMESTAMP,
    }
    return _frame("assistant", session_id, fields | extra)


def user_tool_result(
    content: str | Sequence[Frame],
    *,
    tool_use_id: str = "toolu_1",
    is_error: bool = False,
    session_id: str = SESSION_ID,
    parent_tool_use_id: str | None = None,
    **extra: Any,
) -> Frame:
    """The user message with which the CLI reports the result of a tool."""
    block = {"tool_use_id": tool_use_id, "type": "tool_result", "content": content, "is_error": is_error}
    fields: Frame = {
        "message": {"role": "user", "content": [block]},
        "parent_tool_use_id": parent_tool_use_id,
        "timestamp": TIMESTAMP,
        "tool_use_result": {"stdout": content, "stderr": "", "interrupted": False, "isImage": False},
    }
    return _frame("user", session_id, fields | extra)


def result(
    text: str | None = "",
    *,
    subtype: str = "success",
    is_error: bool = False,
    num_turns: int = 1,
    cost_usd: float = PRICE,
    session_id: str = SESSION_ID,
    **extra: Any,
) -> Frame:
    """The result, which ends a turn. As from the real CLI, `type` is not its first key.

    An API error is `result("API Error: …", is_error=True, api_error_status=529, terminal_reason="api_error")`; a run
    that hit a limit has no text: `result(None, subtype="error_max_turns", is_error=True, errors=[…])`.
    """
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 12}
    frame: Frame = {
        "duration_api_ms": 52,
        "stop_reason": "end_turn",
        "session_id": session_id,
        "total_cost_usd": cost_usd,
        "usage": usage,
        "modelUsage": {MODEL: {"inputTokens": 10, "outputTokens": 12, "costUSD": cost_usd, "contextWindow": 1000000}},
        "permission_denials": [],
        "terminal_reason": "completed",
        "is_error": is_error,
        "num_turns": num_turns,
        "subtype": subtype,
        "api_error_status": None,
        "result": text,
        "type": "result",
        "duration_ms": 451,
        "uuid": str(uuid.uuid4()),
        **extra,
    }
    if text is None:
        del frame["result"], frame["api_error_status"]
    return frame


def stream_event(event: Mapping[str, Any], *, session_id: str = SESSION_ID, **extra: Any) -> Frame:
    """One event of the API's stream, as the CLI passes it on with partial messages."""
    fields: Frame = {"event": dict(event), "parent_tool_use_id": None, "api_message_id": "msg_1"}
    return _frame("stream_event", session_id, fields | extra)


def stream_text(value: str, *, chunks: int | None = None, session_id: str = SESSION_ID) -> list[Frame]:
    """A streamed text: its events, and its assistant message where the CLI puts it, before the end of the block.

    Args:
        value: the text.
        chunks: number of deltas; None: pieces of 16 characters.
        session_id: session id for every frame.
    """
    size = DELTA_CHARACTERS if chunks is None else max(1, -(-len(value) // chunks))
    pieces = [value[at : at + size] for at in range(0, len(value), size)]
    delta: Frame = {"stop_reason": "end_turn", "stop_sequence": None}
    before: list[Frame] = [
        {"type": "message_start", "message": _api_message([], "msg_1", MODEL)},
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in pieces
        ),
    ]
    after: list[Frame] = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 12}},
        {"type": "message_stop"},
    ]
    return [
        *(stream_event(event, session_id=session_id) for event in before),
        assistant(value, session_id=session_id),
        *(stream_event(event, session_id=session_id) for event in after),
    ]


def api_retry(
    attempt: int = 1,
    *,
    max_retries: int = 10,
    delay_ms: int = 550,
    status: int | None = 529,
    error: str = "overloaded",
    session_id: str = SESSION_ID,
    **extra: Any,
) -> Frame:
    """`system/api_retry`: the CLI waits and repeats its request to the API."""
    fields: Frame = {
        "subtype": "api_retry",
        "attempt": attempt,
        "max_retries": max_retries,
        "retry_delay_ms": delay_ms,
        "error_status": status,
        "error": error,
    }
    return _frame("system", session_id, fields | extra)


def lifecycle(command_uuid: str, state: str, *, session_id: str = SESSION_ID) -> Frame:
    """The state of a user message that has a uuid: "queued", "started", "completed" or "cancelled"."""
    return _frame("command_lifecycle", session_id, {"command_uuid": command_uuid, "state": state})


def control_request(subtype: str, *, request_id: str = "fake_1", **body: Any) -> Frame:
    """A request of the CLI, such as `control_request("can_use_tool", tool_name="Bash", input={…})`."""
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}


def control_response(request_id: str, payload: Any = None, *, error: str | None = None) -> Frame:
    """A response to a control request."""
    response: Frame = {"subtype": "success", "request_id": request_id, "response": {} if payload is None else payload}
    if error is not None:
        response = {"subtype": "error", "request_id": request_id, "error": error}
    return {"type": "control_response", "response": response}


def sample_messages() -> list[Frame]:
    """A whole turn with thinking, a tool and its result: one frame of each common kind, in the CLI's order.

    >>> [frame["type"] for frame in sample_messages()]
    ['system', 'assistant', 'assistant', 'assistant', 'user', 'system', 'assistant', 'result']
    """
    call = tool_use("Bash", {"command": "echo hi", "description": "Say hi"})
    return [
        init(),
        assistant([thinking("A command will do.")]),
        assistant("Running it."),
        assistant([call]),
        user_tool_result("hi"),
        api_retry(),
        assistant("It printed hi.", message_id="msg_2"),
        result("It printed hi.", num_turns=2),
    ]


def lines(frames: Iterable[Frame]) -> bytes:
    """Encode frames as bytes on the wire, one JSON object per line.

    >>> lines([{"type": "keep_alive"}]).decode().splitlines()
    ['{"type": "keep_alive"}']
    """
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
