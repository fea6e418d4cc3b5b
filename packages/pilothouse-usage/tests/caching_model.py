"""A scripted model with a prompt cache as the API has it: the usage in its answers says what was read and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pilothouse_testing import RecordedRequest, Reply, ScriptedModel, Text, ToolUse

LOOKBACK = 20
LIFETIME = 300


class Clock:
    """A time in seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CachingModel:
    """Answers "ok", and keeps the prefixes at marked blocks. A prefix is found up to 20 blocks before a mark."""

    def __init__(self, model: ScriptedModel, clock: Clock) -> None:
        self.model = model
        self.clock = clock
        self.entries: dict[str, float] = {}
        model.default = self.answer(Text("ok"))
        model.on(side="compact", reply=self.answer(Text("They talked.")))

    def answer(self, *parts: Text | ToolUse) -> Callable[[RecordedRequest], Reply]:
        return lambda request: Reply(parts=list(parts), usage=self.usage(request.body))

    def usage(self, body: Any) -> dict[str, int]:
        blocks, marks = _list_blocks(body)
        prefixes = ["\n".join(blocks[: n + 1]) for n in range(len(blocks))]
        now = self.clock()
        live = {prefix for prefix, until in self.entries.items() if until >= now}
        found = [n for mark in marks for n in range(max(0, mark - LOOKBACK + 1), mark + 1) if prefixes[n] in live]
        read = len(prefixes[max(found)]) // 4 if found else 0
        for prefix in [prefixes[n] for n in (*marks, *found[-1:])]:
            self.entries[prefix] = now + LIFETIME
        whole = len(prefixes[marks[-1]]) // 4 if marks else 0
        return {
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": max(0, whole - read),
            "input_tokens": len(prefixes[-1]) // 4 - whole,
        }


def _list_blocks(body: Any) -> tuple[list[str], list[int]]:
    """The blocks in cache order, and the indexes of the marked ones."""
    tools = [tool for tool in body.get("tools") or [] if not tool.get("defer_loading")]
    system = [block for block in _as_blocks(body.get("system") or []) if "x-anthropic-billing" not in block["text"]]
    messages = [
        {**block, "role": message["role"]} for message in body["messages"] for block in _as_blocks(message["content"])
    ]
    settings = {key: body.get(key) for key in ("thinking", "output_config", "tool_choice")}
    parts: list[Any] = [{"model": body["model"]}, *tools, *system, settings, *messages]
    marks = [n for n, part in enumerate(parts) if part.get("cache_control")]
    return [
        json.dumps({k: v for k, v in part.items() if k != "cache_control"}, sort_keys=True) for part in parts
    ], marks


def _as_blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
