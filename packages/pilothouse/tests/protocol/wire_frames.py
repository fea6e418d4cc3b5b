"""Frames and events as the tests of the connection write and compare them."""

from __future__ import annotations

import json
from typing import Any

from pilothouse.protocol import Connection, ConnectionEvent, InvalidFrame


def wire(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


def success(request_id: str, **payload: Any) -> dict[str, Any]:
    response = {"subtype": "success", "request_id": request_id, "response": payload}
    return {"type": "control_response", "response": response}


def ask(request_id: Any, subtype: str = "can_use_tool", **body: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}


def text(words: str) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": words}]}}


def drain(connection: Connection) -> list[ConnectionEvent]:
    events = list(connection.events)
    connection.events.clear()
    return events


def plain(events: list[ConnectionEvent]) -> list[object]:
    """Events as comparable values; errors compare by identity."""
    return [repr(event.error) if isinstance(event, InvalidFrame) else event for event in events]
