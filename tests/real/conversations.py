"""Conversations of the real CLI: what the model was shown of them, and children that are killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio

from pilothouse.client.sessions import Session
from pilothouse_testing import RecordedRequest


def user_texts(request: RecordedRequest) -> list[str]:
    """What the user has said, without what the CLI adds."""
    found: list[str] = []
    for message in request.messages:
        if message["role"] == "user":
            content = message["content"]
            blocks: list[Any] = [{"text": content}] if isinstance(content, str) else content
            found += [b["text"] for b in blocks if "text" in b and not b["text"].startswith("<system-reminder>")]
    return found


async def kill_child(session: Session) -> None:
    """Kill the CLI from outside, and wait until the session has noticed."""
    os.kill(session.pid or 0, signal.SIGKILL)
    with anyio.fail_after(20):
        while session.state != "broken":
            await anyio.sleep(0.01)
