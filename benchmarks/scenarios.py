"""What the fake CLI says: lines in the form of CLI 2.1.330, written to files that `fake_cli` repeats.

Owns the shape and the size of the frames. Knows nothing of who reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SESSION = "f696d469-1e39-470a-a8ee-0b99bf38abf9"
UUID = "c6b075b5-90f7-4f85-8a92-e5944b7e30ca"
PARTS = ("hello", "frame", "result")

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


def delta() -> dict[str, Any]:
    """A text delta of a partial message, about 280 bytes."""
    return {
        "type": "stream_event",
        "event": {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "a few words of the answer"},
        },
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


# Scenario -> its repeated frame and whether it ends with a result. "hold" leaves the turn open, for control requests.
_FRAMES: dict[str, tuple[Callable[[], dict[str, Any] | None], bool]] = {
    "small": (small, True),
    "delta": (delta, True),
    "huge-1": (lambda: huge(1_000_000), True),
    "huge-8": (lambda: huge(8_000_000), True),
    "huge-64": (lambda: huge(64_000_000), True),
    "hold": (lambda: None, False),
}


def write_scenario(name: str, directory: Path) -> Path:
    """Write the files of one scenario into a directory below `directory`, and return it."""
    frame, ends = _FRAMES[name]
    place = directory / name
    place.mkdir(parents=True, exist_ok=True)
    lines = (HELLO, frame(), RESULT if ends else None)
    for part, line in zip(PARTS, lines, strict=True):
        (place / part).write_bytes(b"" if line is None else _line(line))
    return place
