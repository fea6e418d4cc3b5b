"""What a query is to say, and how long it may take. Plain data."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct


class Outgoing(Struct, frozen=True):
    """One user message, ready to be sent. Results name the `uuid` of the message that they answer."""

    uuid: str
    data: bytes


Prompts = Sequence[Outgoing] | AsyncGenerator[Outgoing, None]
"""All at once, or as they come."""


class Limits(Struct, frozen=True):
    """Bounds of a query; times in seconds, None for no limit.

    With `until_idle` it is not over with its result, but when the peer has nothing more to do.
    """

    timeout: float | None
    idle_timeout: float | None
    control_timeout: float
    max_line_bytes: int
    startup_timeout: float | None = None
    until_idle: bool = False
