"""What the CLI has to do: prompts, which of them have no result yet, and background tasks that run.

A result is not always the end: the CLI waits for its background tasks and then starts another turn (2.1.330). Pure.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from pilothouse.messages import (
    AssistantMessage,
    BackgroundTasksChangedMessage,
    Message,
    ResultMessage,
    TaskNotificationMessage,
    TaskStartedMessage,
    TaskUpdatedMessage,
)


class PromptMessage(Struct, frozen=True):
    """One user message, ready to be sent. Results name the `uuid` of the message that they answer."""

    uuid: str
    data: bytes


Prompts = Sequence[PromptMessage] | AsyncGenerator[PromptMessage, None]
"""All at once, or as they come."""


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


_ENDED = frozenset({"completed", "failed", "killed", "stopped"})


class RunningTasks:
    """Tracks the background tasks that were started and have not ended."""

    TRACKED = (BackgroundTasksChangedMessage, TaskNotificationMessage, TaskStartedMessage, TaskUpdatedMessage)

    def __init__(self) -> None:
        self._running: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def track(self, message: Message) -> None:
        """Update from a message of one of the classes in `TRACKED`."""
        match message:
            case TaskStartedMessage(task_id=str(task)):
                self._running.add(task)
            case TaskNotificationMessage(task_id=str(task)):
                self._running.discard(task)
            case TaskUpdatedMessage(task_id=str(task), patch=dict(patch)) if patch.get("status") in _ENDED:
                self._running.discard(task)
            case BackgroundTasksChangedMessage(tasks=tasks) if not tasks:
                self._running.clear()
            case _:
                return


_ID_FIELDS = ("parent_tool_use_id", "tool_use_id", "task_id", "parent_task_id", "agent_id")


class BackgroundAttribution:
    """Tells messages of background tasks of earlier queries from those of the current query.

    The CLI continues background commands and sub-agents after the result. Their later messages carry the id of the
    task, or of the tool call that started it (2.1.330).
    """

    __slots__ = ("_earlier", "_own")

    def __init__(self) -> None:
        self._earlier: set[str] = set()
        self._own: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._earlier)

    def start_query(self) -> None:
        """Assign everything started so far to earlier queries."""
        self._earlier |= self._own
        self._own = set()

    def belongs_to_earlier(self, message: Message) -> bool:
        """Whether `message` is about work of an earlier query. Call it with every message about a task."""
        if isinstance(message, BackgroundTasksChangedMessage):
            return bool(self._earlier) and not self._own
        theirs = not self._earlier.isdisjoint(_task_ids(message))
        if isinstance(message, TaskStartedMessage):
            (self._earlier if theirs else self._own).update(_task_ids(message))
        elif theirs and isinstance(message, AssistantMessage):
            self._earlier.update(call.id for call in message.tool_uses)
        return theirs


def _task_ids(message: Message) -> set[Any]:
    return {value for name in _ID_FIELDS if isinstance(value := getattr(message, name, None), str)}
