"""Background tasks of the CLI: which still run, and which messages come from them.

A result is not always the end: the CLI waits for its tasks and then speaks again (2.1.330). Pure.
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
    """Keeps book of what was started and has not ended."""

    TRACKED = (BackgroundTasksChangedMessage, TaskNotificationMessage, TaskStartedMessage, TaskUpdatedMessage)

    def __init__(self) -> None:
        self._running: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def track(self, message: Message) -> None:
        """Look at a message of one of the classes in `TRACKED`."""
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
    """Keeps book of the tasks that were started, before and since the query that talks now began.

    The CLI goes on with background commands and sub-agents after the result, and what they say then carries the id of
    the task, or of the tool call that started it (2.1.330).
    """

    __slots__ = ("_earlier", "_own")

    def __init__(self) -> None:
        self._earlier: set[str] = set()
        self._own: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._earlier)

    def start_query(self) -> None:
        """What was started so far belongs to others from here on."""
        self._earlier |= self._own
        self._own = set()

    def belongs_to_earlier(self, message: Message) -> bool:
        """Whether `message` is about work of an earlier query. To be called with every message about a task."""
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
