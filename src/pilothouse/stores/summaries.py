"""What a stored session is about, kept up to date with every append, so that a list needs no transcripts.

Owns what a summary holds. Its names are those that stores of other Claude Code SDKs keep, so that either side can list
what the other has written. Pure: knows no store and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pilothouse.transcripts.listing import milliseconds, prompt_in

_LAST_TEXTS = {
    "aiTitle": "ai_title",
    "customTitle": "custom_title",
    "gitBranch": "git_branch",
    "lastPrompt": "last_prompt",
    "summary": "summary_hint",
}
"""Fields of entries whose last value counts, and what they are called in a summary."""
_NOT_TYPED = ("isMeta", "isCompactSummary")


def fold_summary(data: Mapping[str, Any] | None, entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Bring a summary up to date with entries that were added to a main transcript.

    Args:
        data: the summary so far; None for a new session. It is not changed.
        entries: what was added, in order.

    Returns:
        The new summary, of plain JSON values. (E85)
    """
    summary = dict(data or {})
    for entry in entries:
        _keep_first(summary, entry)
        for name, key in _LAST_TEXTS.items():
            if isinstance(value := entry.get(name), str):
                summary[key] = value
        if entry.get("type") == "tag":
            _keep_tag(summary, entry.get("tag"))
        if not summary.get("first_prompt_locked"):
            _keep_prompt(summary, entry)
    return summary


def _keep_first(summary: dict[str, Any], entry: Mapping[str, Any]) -> None:
    if "is_sidechain" not in summary:
        summary["is_sidechain"] = entry.get("isSidechain") is True
    timestamp, cwd = entry.get("timestamp"), entry.get("cwd")
    if "created_at" not in summary and isinstance(timestamp, str) and (time := milliseconds(timestamp)) is not None:
        summary["created_at"] = time
    if "cwd" not in summary and isinstance(cwd, str) and cwd:
        summary["cwd"] = cwd


def _keep_tag(summary: dict[str, Any], tag: object) -> None:
    if isinstance(tag, str) and tag:
        summary["tag"] = tag
    else:
        summary.pop("tag", None)


def _keep_prompt(summary: dict[str, Any], entry: Mapping[str, Any]) -> None:
    if entry.get("type") != "user" or any(entry.get(mark) is True for mark in _NOT_TYPED):
        return
    for text in _texts(entry.get("message")):
        prompt, command = prompt_in(text)
        if command:
            summary.setdefault("command_fallback", command)
        if prompt:
            summary.update(first_prompt=prompt, first_prompt_locked=True)
            return


def _texts(message: object) -> list[str]:
    content = cast("Mapping[str, Any]", message).get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return [content]
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    found = [cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, Mapping)]
    if any(block.get("type") == "tool_result" for block in found):
        return []
    return [block["text"] for block in found if block.get("type") == "text" and isinstance(block.get("text"), str)]
