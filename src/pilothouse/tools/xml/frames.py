"""Calls and results as text that the model reads, which nothing inside can close or forge. Pure.

Owns the frames of the protocol and the words for content that stands in no text. Knows the results of tools in the
words of MCP and of the Messages API; must not know who ran the tool.

Nothing here is read as `@path` or `/command` by the CLI (2.1.330) if the message that carries it is `client_composed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.tools.blocks import Wire, content_parts, text_block
from pilothouse.tools.content import json_text
from pilothouse.tools.xml.markup import defused, escaped


class Answer(Struct, frozen=True):
    """The answer to one call.

    Attributes:
        call_id: of the call.
        name: of the tool.
        result: as a tool gives it, in the words of MCP: `content`, perhaps `structuredContent` and `isError`.
    """

    call_id: str
    name: str
    result: Mapping[str, Any]


def call_frame(call_id: str | None, name: str, arguments: Any, nonce: str | None = None) -> str:
    """A call as the model itself would write it. (S19, S40)"""
    outer = framed("tool_use", nonce)
    told_id = f"<tool_call_id>{escaped(call_id)}</tool_call_id>" if call_id else ""
    inside = defused(json_text(arguments), nonce, as_json=True)
    return f"<{outer}><tool_name>{escaped(name)}</tool_name>{told_id}<arguments>{inside}</arguments></{outer}>"


def result_frame(call_id: str | None, name: str, result: Mapping[str, Any], nonce: str | None = None) -> list[Wire]:
    """One result as content blocks: its frame, then the pictures and documents that belong to it. (S22, S35, S39)

    Args:
        call_id: of the call; None leaves it out.
        name: of the tool.
        result: `{content, structuredContent, isError}` as from a tool, or `{content, is_error}` as in the API.
        nonce: of the conversation.

    Structured content stands for all text, as JSON, unless the call failed.
    """
    failed = result.get("isError") is True or result.get("is_error") is True
    texts, media = content_parts(result.get("content"))
    structured = result.get("structuredContent")
    if structured is not None and not failed:
        said = defused(json_text(structured), nonce, as_json=True)
    else:
        said = defused("\n".join(texts), nonce)
        if not texts and not media:
            said = "the call failed" if failed else "(no output)"
    if media:
        said += f"\n({len(media)} attached below)" if said else f"({len(media)} attached below)"
    outer, inner = framed("tool_result", nonce), "error" if failed else "result"
    told_id = f"<tool_call_id>{escaped(call_id)}</tool_call_id>" if call_id else ""
    frame = f"<{outer}><tool_name>{escaped(name)}</tool_name>{told_id}<{inner}>{said}</{inner}></{outer}>"
    return [text_block(frame), *media]


def results_content(answers: Iterable[Answer], nonce: str | None = None) -> list[Wire]:
    """The content of the user message that answers all calls of a reply, in their order. (S22, S23)"""
    return [block for each in answers for block in result_frame(each.call_id, each.name, each.result, nonce)]


def framed(name: str, nonce: str | None) -> str:
    """The name of an outer tag."""
    return f"{name}-{nonce}" if nonce else name
