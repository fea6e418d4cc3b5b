"""`ChildActivity`: what the CLI is doing, and since when it has been silent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import anyio

from pilothouse.engine.channel import SkippedLine
from pilothouse.engine.pending_work import RunningTasks, RunningTools
from pilothouse.errors import LineDecodeError
from pilothouse.messages import ApiRetryMessage, CommandLifecycleMessage, InitMessage, Message, ResultMessage
from pilothouse.protocol import InvalidFrame, LineTooLong, NonJsonLine
from pilothouse.transports.concurrency import LoopCondition

WAKE_SECONDS = 1.0  # from the end of a background task until it has woken the model
# From an unreadable line until a tool whose result may have been in it counts as ended: no command runs longer.
LOST_RESULT_SECONDS = 600.0
WORKING_STATES = ("running", "requires_action")  # `session_state` of a CLI that was already running


class ChildActivity:
    """What the CLI of one child is doing.

    Attributes:
        background: the background tasks that run.
        running_tools: the tools that run.
        last_activity: when the CLI last sent something or was busy; in the future while it waits for a known time.
        is_in_turn: whether it works on a turn, for a prompt or on its own.
        is_in_turn_of_previous_client: whether that turn was under way when this process attached.
        has_seen_tasks: whether a background task was seen since the CLI last had nothing to do; one that ends
            starts a turn once the CLI is idle.
        changes: notified when a turn or a background task has ended.
    """

    def __init__(self) -> None:
        self.background = RunningTasks()
        self.running_tools = RunningTools()
        self.last_activity = 0.0
        self.is_in_turn = self.is_in_turn_of_previous_client = self._has_seen_turns = False
        self.changes = LoopCondition()
        self.has_seen_tasks = False
        self._wake_deadline = self._uncertain_until = 0.0

    def touch(self, seconds: float = 0.0) -> None:
        """Take note that the CLI is active now, and for some seconds."""
        self.last_activity = max(self.last_activity, anyio.current_time() + seconds)

    def note_work_ended(self) -> None:
        """Wake those who wait for the end of a turn, or of a background task; soon another turn may start by itself."""
        self._wake_deadline = anyio.current_time() + WAKE_SECONDS
        self.changes.notify_all()

    @property
    def is_tool_running(self) -> bool:
        """Whether a tool runs, as far as is known."""
        tools = self.running_tools
        return tools.has_open or (tools.uncertain_count > 0 and anyio.current_time() < self._uncertain_until)

    @property
    def has_work(self) -> bool:
        """Whether a turn or a background task runs."""
        return self.is_in_turn or bool(self.background)

    @property
    def wake_deadline(self) -> float | None:
        """When a background task that has ended will no longer start a turn; None: none will, as it is."""
        is_soon = self.has_seen_tasks and self._wake_deadline > anyio.current_time()
        return self._wake_deadline if is_soon else None

    # What messages say.

    def track(self, batch: Sequence[Message], kinds: Collection[type[Message]]) -> None:
        """Take the next messages, in order. `kinds` are their classes."""
        self.last_activity = anyio.current_time()
        self.running_tools.track(batch, kinds)

    def start_connection(self, info: Mapping[str, Any]) -> None:
        """Take the initialize response: the CLI may have been running before."""
        if info.get("session_state") in WORKING_STATES:
            # Otherwise its messages have already reported its state.
            self.is_in_turn |= not self._has_seen_turns
            self.is_in_turn_of_previous_client = self.is_in_turn

    NOTED: ClassVar = frozenset(
        {ApiRetryMessage, CommandLifecycleMessage, InitMessage, ResultMessage, *RunningTasks.TRACKED}
    )
    """Classes of messages that `note` reads."""

    def note(self, message: Message) -> None:
        """Take note of what a message says about the work of the CLI."""
        match message:
            case InitMessage():
                self._has_seen_turns = self.is_in_turn = True
            case CommandLifecycleMessage():
                self.is_in_turn |= message.state == "started"
            case ResultMessage():
                self.is_in_turn, self._has_seen_turns = False, True
                self.note_work_ended()
            case ApiRetryMessage():  # the CLI waits for the API, which counts as activity
                self.touch(max(0.0, message.retry_delay_ms / 1000))
            case _ if message.__class__ in RunningTasks.TRACKED:
                self.background.track(message)
                self.has_seen_tasks = True
                self.note_work_ended()
            case _:
                pass

    # Lines that could not be read.

    def note_skipped(self, event: SkippedLine) -> None:
        """Take a line of output that was not read."""
        match event:
            case NonJsonLine(line=line):  # not a message, or a message whose first byte is wrong
                self.note_lost(line, is_frame=False)
            case LineTooLong(head=head):
                self.note_lost(head)
            case InvalidFrame(error=error):
                self.note_lost(error.line if isinstance(error, LineDecodeError) else b"")

    def note_lost(self, line: bytes, *, is_frame: bool = True) -> None:
        """Take the beginning of a line that may have held the result of a tool; `is_frame`: it was to be a message."""
        before = self.running_tools.uncertain_count
        self.running_tools.track_skipped(line, is_frame=is_frame)
        if self.running_tools.uncertain_count > before:
            self._uncertain_until = anyio.current_time() + LOST_RESULT_SECONDS
