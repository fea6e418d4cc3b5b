"""Writes prompts, responses and tool data into spans: only if enabled, without keys, and bounded.

Owns the format that the conventions give to messages. Needs the extra `[otel]`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.trace import Span

from pilothouse.instrumentation import QueryStart
from pilothouse.integrations.genai import Names
from pilothouse.messages import AssistantMessage, ToolResultBlock, ToolUseBlock

if TYPE_CHECKING:
    from pilothouse.client import QueryResult

MOST_CHARACTERS = 64 * 1024
"""Maximum characters of one value; longer ones are cut, because collectors drop a span that is too large."""


class Content:
    """The content of one query.

    Args:
        names: of attributes.
        start: the query.
    """

    def __init__(self, names: Names, start: QueryStart) -> None:
        self._names = names
        self._start = start
        self._said: list[str] = []
        self._size = 0

    def began(self, span: Span) -> None:
        """Record the prompt. A streamed prompt is not known here."""
        parts = _parts(self._start.prompt)
        if parts:
            span.set_attribute(self._names.input_messages, self._text([{"role": "user", "parts": parts}]))

    def said(self, message: AssistantMessage) -> None:
        """Collect the text of the main agent."""
        if message.parent_tool_use_id is None and self._size < MOST_CHARACTERS:
            self._said.append(message.text)
            self._size += len(message.text)

    def asked(self, span: Span, block: ToolUseBlock) -> None:
        """Record the input of a tool."""
        span.set_attribute(self._names.tool_arguments, self._text(block.input))

    def answered(self, span: Span, block: ToolResultBlock) -> None:
        """Record the output of a tool."""
        span.set_attribute(self._names.tool_result, self._cut(self._start.redact(block.text)))

    def ended(self, span: Span, result: QueryResult | None) -> None:
        """Record the response."""
        text = "".join(self._said)
        if text:
            stop = None if result is None or result.result is None else result.result.stop_reason
            parts = [{"type": "text", "content": text}]
            message = {"role": "assistant", "parts": parts, "finish_reason": stop or "error"}
            span.set_attribute(self._names.output_messages, self._text([message]))

    def _text(self, value: Any) -> str:
        return self._cut(self._start.redact(json.dumps(value, ensure_ascii=False, default=str)))

    def _cut(self, text: str) -> str:
        return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _parts(prompt: Any) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"type": "text", "content": prompt}]
    if not isinstance(prompt, list):
        return []
    return [_part(block) for block in cast("list[Any]", prompt)]


def _part(block: Any) -> dict[str, Any]:
    """Return text unchanged; for any other block, only its type."""
    if isinstance(block, dict):
        plain = cast("dict[str, Any]", block)
        kind, text = plain.get("type"), plain.get("text")
    else:
        tag = getattr(getattr(block, "__struct_config__", None), "tag", None)
        kind, text = tag or type(block).__name__, getattr(block, "text", None)
    return {"type": "text", "content": text} if isinstance(text, str) else {"type": str(kind)}
