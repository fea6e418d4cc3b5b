"""What the fake CLI says: lines in the form of CLI 2.1.330, written to files that `fake_cli` repeats.

Owns the shape and the size of the frames. Knows nothing of who reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.transcripts import MEGABYTE, write_long, write_many, write_searched

SESSION = "f696d469-1e39-470a-a8ee-0b99bf38abf9"
UUID = "c6b075b5-90f7-4f85-8a92-e5944b7e30ca"
PARTS = ("hello", "frame", "question", "result")
# The fake CLI puts another number of this length in its place, so that no question is like the one before it.
NUMBER = 10_000_000
STAMP = "0000000000000000"  # in a turn that is said slowly, the fake CLI puts the time of writing in its place
TOOL_SERVER, TOOL_NAME = "tools", "add"

HELLO: dict[str, Any] = {
    "type": "system",
    "subtype": "init",
    "cwd": "/home/user/project",
    "session_id": SESSION,
    "tools": ["Task", "Bash", "Edit", "Read", "WebFetch", "WebSearch", "Write"],
    "mcp_servers": [],
    "model": "claude-opus-5-5",
    "permissionMode": "default",
    "slash_commands": ["compact", "context", "cost", "init", "review"],
    "apiKeySource": "ANTHROPIC_API_KEY",
    "claude_code_version": "2.1.330",
    "output_style": "default",
    "agents": ["claude", "Explore"],
    "uuid": UUID,
}
USAGE = {
    "input_tokens": 12,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 2048,
    "output_tokens": 20,
}
TOOL_INPUT = {"command": "touch notes.txt", "description": "Make an empty file"}
RESULT: dict[str, Any] = {
    "duration_ms": 1200,
    "duration_api_ms": 900,
    "is_error": False,
    "num_turns": 1,
    "result": "Done.",
    "stop_reason": "end_turn",
    "session_id": SESSION,
    "total_cost_usd": 0.01,
    "usage": USAGE,
    "modelUsage": {},
    "permission_denials": [],
    "uuid": UUID,
    "type": "result",
    "subtype": "success",
}


def small() -> dict[str, Any]:
    """A short assistant message, about 400 bytes."""
    return _assistant("The tests pass now.")


def delta(text: str = "a few words of the answer") -> dict[str, Any]:
    """A text delta of a partial message, about 280 bytes."""
    return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def stamped() -> dict[str, Any]:
    """A text delta with the time at which it is written."""
    return delta(f"at {STAMP} a few words")


def answer() -> list[dict[str, Any]]:
    """A whole short answer, as the CLI streams it."""
    said = _assistant("The tests pass now.")
    message = said["message"]
    return [
        _event("message_start", message={**message, "content": []}),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *map(delta, ("The tests", " pass", " now.")),
        said,
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": "end_turn"}, usage=message["usage"]),
        _event("message_stop"),
    ]


def _event(kind: str, **body: Any) -> dict[str, Any]:
    return {
        "type": "stream_event",
        "event": {"type": kind, **body},
        "session_id": SESSION,
        "parent_tool_use_id": None,
        "uuid": UUID,
    }


def huge(size: int) -> dict[str, Any]:
    """An assistant message whose line has `size` bytes, of text lines as they stand in source files."""
    row = 'def answer(question: str) -> str:  # says "forty-two"\n'
    room = size - len(_line(_assistant("")))
    text = row * (room // (len(_line(row)) - len(_line(""))))
    return _assistant(text + "." * (size - len(_line(_assistant(text)))))


def hook_question() -> list[dict[str, Any]]:
    """A `PreToolUse` hook, as it is asked before every call of a tool."""
    return [
        _question(
            "hook_callback",
            callback_id="hook_0",
            input={
                "session_id": SESSION,
                "transcript_path": f"/home/user/.claude/projects/-home-user-project/{SESSION}.jsonl",
                "cwd": "/home/user/project",
                "prompt_id": UUID,
                "permission_mode": "default",
                "effort": {"level": "high"},
                "hook_event_name": "PreToolUse",
                "tool_name": "Bash",
                "tool_input": TOOL_INPUT,
                "tool_use_id": f"toolu_{NUMBER}",
            },
            tool_use_id=f"toolu_{NUMBER}",
        )
    ]


def permission_question() -> list[dict[str, Any]]:
    """Whether a command may run, with what the CLI suggests for the next time."""
    rule = {"toolName": "Bash", "ruleContent": TOOL_INPUT["command"]}
    return [
        _question(
            "can_use_tool",
            tool_name="Bash",
            display_name="Bash",
            input=TOOL_INPUT,
            description=TOOL_INPUT["description"],
            permission_suggestions=[
                {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings"},
                {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
            ],
            blocked_path="/home/user/project/notes.txt",
            tool_use_id=f"toolu_{NUMBER}",
        )
    ]


def tool_question() -> list[dict[str, Any]]:
    """The handshake of an in-process MCP server, and a call of its tool."""
    client = {"name": "claude-code", "version": "2.1.330"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    meta = {"claudecode/toolUseId": f"toolu_{NUMBER}", "progressToken": NUMBER}
    call = {"name": TOOL_NAME, "arguments": {"a": 2, "b": 3}, "_meta": meta}
    messages: list[dict[str, Any]] = [
        {"method": "initialize", "params": hello, "jsonrpc": "2.0", "id": 0},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"method": "tools/list", "jsonrpc": "2.0", "id": 1},
        {"method": "tools/call", "params": call, "jsonrpc": "2.0", "id": NUMBER},
    ]
    asked = [_question("mcp_message", server_name=TOOL_SERVER, message=message) for message in messages]
    return [*({**each, "request_id": f"handshake-{index}"} for index, each in enumerate(asked[:-1])), asked[-1]]


def _question(subtype: str, **body: Any) -> dict[str, Any]:
    request_id = f"8d5884d1-3f4d-4ea0-ad93-0c0d{NUMBER}"
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}


def _assistant(text: str) -> dict[str, Any]:
    message = {
        "model": "claude-opus-5-5",
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "stop_reason": None,
        "usage": {"input_tokens": 12, "output_tokens": 20},
    }
    return {
        "type": "assistant",
        "message": message,
        "parent_tool_use_id": None,
        "session_id": SESSION,
        "uuid": UUID,
    }


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


Frames = dict[str, Any] | list[dict[str, Any]]
# Scenario -> its repeated frame or frames, what it asks, and whether it ends with a result. "hold" leaves the turn
# open, for control requests.
_SCENARIOS: dict[str, tuple[Callable[[], Frames] | None, Callable[[], list[dict[str, Any]]] | None, bool]] = {
    "small": (small, None, True),
    "delta": (delta, None, True),
    "stamped": (stamped, None, True),
    "answer": (answer, None, True),
    "hook": (None, hook_question, True),
    "permission": (None, permission_question, True),
    "tool": (None, tool_question, True),
    "hold": (None, None, False),
}


def _write_transcript(megabytes: int, place: Path) -> None:
    write_long(megabytes * MEGABYTE, place)


_ON_DISK: dict[str, Callable[[int, Path], None]] = {
    "sessions": write_many,
    "searched": write_searched,
    "transcript": _write_transcript,
}


def write_scenario(name: str, directory: Path) -> Path:
    """Write the files of one scenario into a directory below `directory`, and return it.

    Args:
        name: one of the table; or `line-` and a number: a message in a line of so many bytes. `sessions-` and a
            number, `searched-` and a number, `transcript-` and megabytes: so much on disk, and nothing that is said.
        directory: where the directory of the scenario is made.
    """
    kind, _, size = name.partition("-")
    if kind in _ON_DISK:
        place = directory / name
        if not place.exists():
            _ON_DISK[kind](int(size), place)
        return place
    frame, question, ends = (lambda: huge(int(size)), None, True) if kind == "line" else _SCENARIOS[name]
    place = directory / name
    place.mkdir(parents=True, exist_ok=True)
    said = frame() if frame else []
    frames = said if isinstance(said, list) else [said]
    parts = ([HELLO], frames, question() if question else [], [RESULT] if ends else [])
    for part, lines in zip(PARTS, parts, strict=True):
        (place / part).write_bytes(b"".join(map(_line, lines)))
    return place
