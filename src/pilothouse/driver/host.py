"""What this process offers to the peer: who answers its questions, and what has to run beside the conversation.

Plain data that the client fills in; the driver knows nothing of hooks, permissions or tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from pilothouse.driver.questions import Desk

Tell = Callable[[str, Mapping[str, Any]], None]
"""Sends a control request, by subtype and body, and waits for nothing."""
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a control request, by subtype and body, and gives its answer."""


class Host(Struct, frozen=True):
    """One for each child.

    Args:
        desks: who answers, by subtype of the question.
        greet: looks at the peer's answer to the handshake; what it raises ends the conversation.
        connect: is given a way to tell the peer something, before anything is sent.
        serve: runs beside the conversation, until it is cancelled.
        ready: waited for after the handshake, before the first prompt; what it raises ends the conversation.
    """

    desks: Mapping[str, Desk]
    greet: Callable[[Mapping[str, Any]], object]
    connect: Callable[[Tell], object]
    serve: Callable[[], Awaitable[None]] | None = None
    ready: Callable[[Ask], Awaitable[None]] | None = None
