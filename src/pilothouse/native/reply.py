"""One reply of the Messages API, put together from the events of its stream. Pure.

Owns how deltas become blocks and how usage adds up. Knows no frames and no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pilothouse.native.shapes import JSON, mapping

_GROWING = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


class BrokenStreamError(Exception):
    """The events of a stream do not make a reply."""


class Reply:
    """A reply that is being received.

    Attributes:
        head: the message as it began, without its content.
        blocks: those that are complete, in their order.
        stop_reason, stop_sequence: why it ended.
        usage: what it cost, as far as it is known.
        is_complete: the stream was ended by `message_stop`.
    """

    def __init__(self) -> None:
        self.head: JSON = {}
        self.blocks: list[JSON] = []
        self.usage: JSON = {}
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self.is_complete = False
        self._open: JSON | None = None
        self._json: list[str] = []
        self._cut = ""  # why the input of a call could not be read

    @classmethod
    def whole(cls, message: Mapping[str, Any]) -> Reply:
        """A reply that came in one piece."""
        reply = cls()
        reply.head = {**message, "content": []}
        reply.blocks = list(message.get("content") or ())
        reply.usage = dict(message.get("usage") or {})
        reply.stop_reason, reply.stop_sequence = message.get("stop_reason"), message.get("stop_sequence")
        reply.is_complete = True
        return reply

    @property
    def id(self) -> str:
        """Id of the message."""
        return str(self.head.get("id", ""))

    @property
    def has_begun(self) -> bool:
        """Whether anything has come."""
        return bool(self.head)

    @property
    def partial(self) -> JSON | None:
        """The block that is under way, as far as it can be kept: calls cannot."""
        if self._open is None or self._open.get("type") != "text" or not self._open.get("text"):
            return None
        return self._open

    @property
    def calls(self) -> list[JSON]:
        """The tool calls among the blocks."""
        return [block for block in self.blocks if block.get("type") == "tool_use"]

    @property
    def text(self) -> str:
        """The last block of text."""
        return next((b["text"] for b in reversed(self.blocks) if b.get("type") == "text"), "")

    def feed(self, event: Mapping[str, Any]) -> JSON | None:
        """Take an event; gives the block that it completed, if it did.

        Raises:
            BrokenStreamError: the event does not follow from those before.
        """
        match event.get("type"):
            case "message_start":
                message: JSON = event["message"]
                self.head = {**message, "content": []}
                self.usage = dict(message.get("usage") or {})
            case "content_block_start":
                self._open, self._json = dict(event["content_block"]), []
            case "content_block_delta":
                self._grow(event["delta"])
            case "content_block_stop":
                return self._close()
            case "message_delta":
                delta: JSON = event.get("delta") or {}
                self.stop_reason, self.stop_sequence = delta.get("stop_reason"), delta.get("stop_sequence")
                if self._cut and self.stop_reason != "max_tokens":
                    raise BrokenStreamError(self._cut)
                self.usage.update({k: v for k, v in mapping(event.get("usage")).items() if v is not None})
            case "message_stop":
                self.is_complete = True
            case _:
                pass  # pings, and what is not known yet
        return None

    def _grow(self, delta: Mapping[str, Any]) -> None:
        if self._open is None:
            raise BrokenStreamError("a delta outside of a block")
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._json.append(delta.get("partial_json") or "")
        elif kind in _GROWING:
            key = _GROWING[kind]
            self._open[key] = (self._open.get(key) or "") + (delta.get(key) or "")
        elif kind == "citations_delta":
            self._open["citations"] = [*(self._open.get("citations") or ()), delta.get("citation")]

    def _close(self) -> JSON | None:
        block, self._open = self._open, None
        if block is None:
            raise BrokenStreamError("the end of a block that never began")
        text = "".join(self._json)
        if text.strip():
            try:
                given = json.loads(text)
            except ValueError as error:
                # At the limit of its length a reply ends in the middle of a call: that one does not count.
                self._cut = f"the input of a call is no JSON: {error}"
                return None
            block["input"] = cast("JSON", given) if isinstance(given, dict) else {"value": given}
        self.blocks.append(block)
        return block
