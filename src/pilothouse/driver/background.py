"""Which background tasks of the CLI still run. Pure.

A result is not always the end: the CLI waits for its tasks and then speaks again (2.1.330).
"""

from __future__ import annotations

from pilothouse.messages import (
    BackgroundTasksChangedMessage,
    Message,
    TaskNotificationMessage,
    TaskStartedMessage,
    TaskUpdatedMessage,
)

_ENDED = frozenset({"completed", "failed", "killed", "stopped"})


class BackgroundTasks:
    """Keeps book of what was started and has not ended."""

    NOTED = (BackgroundTasksChangedMessage, TaskNotificationMessage, TaskStartedMessage, TaskUpdatedMessage)

    def __init__(self) -> None:
        self._running: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def note(self, message: Message) -> None:
        """Look at a message of one of the classes in `NOTED`."""
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
