"""Removes keys from what is recorded, and from what is compared with a recording. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from pilothouse.messages.json_lines import encode_json
from pilothouse.options.secrets import MASK, Redactor
from pilothouse.transports.cassettes.form import frame_of

BEGINNING: Final = 8
"""Characters of a secret at the end of a text that count as its beginning."""
_TEXTS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class DeltaHider:
    """Removes secrets from streamed text, also where chunks of the text split a secret.

    Only known values. Up to seven characters of the beginning may remain.

    Args:
        secrets: the values.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        # Block → the end of its text so far that may begin a secret.
        self._ends: dict[tuple[Any, Any], str] = {}

    def hide(self, line: bytes) -> bytes:
        """Return the line without the parts of secrets in it. Lines must be passed in order."""
        if not self._secrets or b"_delta" not in line:
            return line
        frame = _mapping(frame_of(line, typed=False))
        event = _mapping(frame.get("event"))
        delta = _mapping(event.get("delta"))
        field = _TEXTS.get(str(delta.get("type")), "")
        if not isinstance(delta.get(field), str):
            return line
        block = (str(frame.get("parent_tool_use_id")), str(event.get("index")))
        before, text = self._ends.get(block, ""), delta[field]
        whole = before + text
        self._ends[block] = end = self._beginning_in(whole)
        shown = self._shown(whole, len(before), len(end))
        if shown == text:
            return line
        delta[field] = shown
        return encode_json(frame)

    def _beginning_in(self, text: str) -> str:
        """Return the longest end of a text with which a secret begins."""
        longest = ""
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(text)), len(longest), -1):
                if text.endswith(secret[:size]):
                    longest = secret[:size]
                    break
        return longest

    def _shown(self, whole: str, start: int, end: int) -> str:
        """Return the text from `start` on, redacted; its last `end` characters may begin a secret."""
        spans = [(len(whole) - end, len(whole))] if end >= BEGINNING else []
        for secret in self._secrets:
            at = whole.find(secret)
            while at >= 0:
                spans.append((at, at + len(secret)))
                at = whole.find(secret, at + 1)
        shown, place = "", start
        for first, last in sorted(spans):
            if last > place:
                shown += whole[place : max(first, place)] + MASK
                place = last
        return shown + whole[place:]


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def hide(line: bytes, redactor: Redactor) -> bytes:
    """Return `line` without the secrets. JSON stays JSON, even where a secret is a number.

    Args:
        line: one protocol line.
        redactor: knows the secrets.
    """
    text = line.decode("utf-8", "surrogateescape")
    hidden = redactor.redact(text)
    if hidden == text:
        return line
    data = hidden.encode("utf-8", "surrogateescape")
    frame = frame_of(line, typed=False)
    if frame is None or frame_of(data, typed=False) is not None:
        return data
    return encode_json(_hide_values(frame, redactor))


def _hide_values(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {redactor.redact(k): _hide_values(v, redactor) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_hide_values(item, redactor) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool):
        return value
    hidden = redactor.redact(str(value))
    return value if hidden == str(value) else hidden
