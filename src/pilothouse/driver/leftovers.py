"""Which messages come from work that an earlier query began and that still runs. Pure.

Owns the ids of that work: tasks, and the tool calls that sub-agents make. Which query talks now, the caller knows.
"""

from __future__ import annotations

from typing import Any

from pilothouse.messages import (
    AssistantMessage,
    BackgroundTasksChangedMessage,
    Message,
    TaskStartedMessage,
)

_ID_FIELDS = ("parent_tool_use_id", "tool_use_id", "task_id", "parent_task_id", "agent_id")


class Leftovers:
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

    def next_query(self) -> None:
        """What was started so far belongs to others from here on."""
        self._earlier |= self._own
        self._own = set()

    def claims(self, message: Message) -> bool:
        """Whether `message` is about work of an earlier query. To be called with every message about a task."""
        if isinstance(message, BackgroundTasksChangedMessage):
            return bool(self._earlier) and not self._own
        theirs = not self._earlier.isdisjoint(_ids_of(message))
        if isinstance(message, TaskStartedMessage):
            (self._earlier if theirs else self._own).update(_ids_of(message))
        elif theirs and isinstance(message, AssistantMessage):
            self._earlier.update(call.id for call in message.tool_uses)
        return theirs


def _ids_of(message: Message) -> set[Any]:
    return {value for name in _ID_FIELDS if isinstance(value := getattr(message, name, None), str)}
