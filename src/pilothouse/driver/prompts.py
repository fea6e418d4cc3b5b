"""The prompts of a query, its limits, and which prompts have no result yet. Plain data; no I/O."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from msgspec import Struct

from pilothouse.messages import ResultMessage


class PromptMessage(Struct, frozen=True):
    """One user message, ready to be sent. Results name the `uuid` of the message that they answer."""

    uuid: str
    data: bytes


Prompts = Sequence[PromptMessage] | AsyncGenerator[PromptMessage, None]
"""All at once, or as they come."""


class QueryLimits(Struct, frozen=True):
    """Limits of a query; times in seconds, None for no limit.

    With `until_idle` the query ends when the CLI has nothing more to do, not with its result.
    """

    timeout: float | None
    idle_timeout: float | None
    control_timeout: float
    max_line_bytes: int
    startup_timeout: float | None = None
    until_idle: bool = False


class PendingPrompts:
    """The prompts of a query without a result, by uuid, oldest first."""

    __slots__ = ("_waiting",)

    def __init__(self, uuids: Iterable[str] = ()) -> None:
        self._waiting = list(uuids)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, uuid: str) -> None:
        """Add a prompt that is about to be sent."""
        self._waiting.append(uuid)

    def clear(self) -> None:
        """Drop all: the CLI will answer none of them."""
        self._waiting.clear()

    def discard(self, uuids: Iterable[str]) -> None:
        """Drop these: the CLI will not answer them."""
        dropped = set(uuids)
        self._waiting = [uuid for uuid in self._waiting if uuid not in dropped]

    def is_answered_by(self, result: ResultMessage) -> bool:
        """Whether `result` names one of them."""
        return not _answered_uuids(result).isdisjoint(self._waiting)

    def resolve(self, result: ResultMessage) -> None:
        """Remove the prompts that `result` names; a result that names none removes the oldest."""
        left = [uuid for uuid in self._waiting if uuid not in _answered_uuids(result)]
        self._waiting = left if len(left) < len(self._waiting) else self._waiting[1:]


def _answered_uuids(result: ResultMessage) -> set[str | None]:
    return {*result.user_message_uuids, result.user_message_uuid}
