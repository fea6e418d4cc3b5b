"""One callback of each kind, which does what a test wants."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pilothouse as ph


def callback_settings(kind: str, work: Callable[[], Any], *, is_async: bool) -> dict[str, Any]:
    """The option with a callback of this kind that does `work`: on the event loop, or in a worker thread."""

    async def decide(request: Any) -> Any:
        await ask()
        return True if kind == "can_use_tool" else None

    def decide_in_thread(request: Any) -> Any:
        work()
        return True if kind == "can_use_tool" else None

    async def ask() -> str:
        if inspect.isawaitable(done := work()):
            await done
        return "asked"

    def ask_in_thread() -> str:
        work()
        return "asked"

    callback, tool = (decide, ask) if is_async else (decide_in_thread, ask_in_thread)
    settings: dict[str, dict[str, Any]] = {
        "can_use_tool": {"can_use_tool": callback},
        "hook": {"hooks": {"PreToolUse": callback}},
        "tool": {"custom_tools": [ph.tool(name="ask")(tool)]},
    }
    return settings[kind]
