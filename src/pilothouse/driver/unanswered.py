"""Which prompts still wait for their result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilothouse.messages import ResultMessage


class Unanswered:
    """The prompts of a query, by uuid, oldest first."""

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
        """One more was said."""
        self._waiting.append(uuid)

    def clear(self) -> None:
        """The peer will answer none of them."""
        self._waiting.clear()

    def discard(self, uuids: Iterable[str]) -> None:
        """The peer will not answer these."""
        dropped = set(uuids)
        self._waiting = [uuid for uuid in self._waiting if uuid not in dropped]

    def is_named_by(self, result: ResultMessage) -> bool:
        """Whether `result` names one of them."""
        return not _named(result).isdisjoint(self._waiting)

    def settle(self, result: ResultMessage) -> None:
        """`result` answers those that it names; one that names none answers the oldest."""
        left = [uuid for uuid in self._waiting if uuid not in _named(result)]
        self._waiting = left if len(left) < len(self._waiting) else self._waiting[1:]


def _named(result: ResultMessage) -> set[str | None]:
    return {*result.user_message_uuids, result.user_message_uuid}
