"""Background tasks of the CLI: which still run, and which messages come from them.

A result is not always the end: the CLI waits for its background tasks and then starts another turn (2.1.330). Pure.
"""

from __future__ import annotations

from typing import Any

from pilothouse.messages import (
    AssistantMessage,
    BackgroundTasksChangedMessage,
    Message,
    TaskNotificationMessage,
    TaskStartedMessage,
    TaskUpdatedMessage,
)

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
