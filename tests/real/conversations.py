"""Conversations with the real CLI: what the model does in them and was shown of them, and children that are killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse_testing import RecordedRequest, Text, ToolUse

both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005000201"
    "9d1f3bd20000000049454e44ae426082"
)


def bash(command: str, **more: Any) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d", **more})


def tell_results(request: RecordedRequest) -> Text:
    """The last step of a script: say what the tools gave."""
    return Text(" | ".join(f"{'error: ' if r.is_error else ''}{r.text}" for r in request.tool_results))


def user_texts(request: RecordedRequest) -> list[str]:
    """What the user has said, without what the CLI adds."""
    found: list[str] = []
    for message in request.messages:
        if message["role"] == "user":
            content = message["content"]
            blocks: list[Any] = [{"text": content}] if isinstance(content, str) else content
            found += [b["text"] for b in blocks if "text" in b and not b["text"].startswith("<system-reminder>")]
    return found


async def kill_child(session: ph.Session) -> None:
    """Kill the CLI from outside, and wait until the session has noticed."""
    os.kill(session.pid or 0, signal.SIGKILL)
    with anyio.fail_after(20):
        while session.state != "broken":
            await anyio.sleep(0.01)
