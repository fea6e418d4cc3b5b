"""What the CLI has to do: tools and background tasks that run, requests that wait.

A result is not always the end: the CLI waits for its background tasks and then starts another turn. Pure.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

from msgspec import Struct, field

from pilothouse.engine.failures import make_note
from pilothouse.messages import (
    AssistantMessage,
    BackgroundTasksChangedMessage,
    Message,
    ResultMessage,
    SystemMessage,
    TaskNotificationMessage,
    TaskStartedMessage,
    TaskUpdatedMessage,
    ToolProgressMessage,
    ToolUseBlock,
    UnknownBlock,
    UnknownMessage,
    UserMessage,
)
from pilothouse.messages.core import ASKED


class PromptMessage(Struct, frozen=True):
    """One user message, ready to be sent. Results name the `uuid` of the message that they answer."""

    uuid: str
    data: bytes


Prompts = Sequence[PromptMessage] | AsyncGenerator[PromptMessage, None]
"""All at once, or as they come."""


def find_named_prompts(result: ResultMessage) -> set[str]:
    """The uuids of the prompts that `result` names as answered."""
    return {uuid for uuid in (*result.user_message_uuids, result.user_message_uuid) if uuid is not None}


_ENDED = frozenset({"completed", "failed", "killed", "stopped"})


class RunningTasks(Struct, eq=False):
    """Tracks the background tasks that were started and have not ended, and what each sub-agent is."""

    TRACKED: ClassVar = (BackgroundTasksChangedMessage, TaskNotificationMessage, TaskStartedMessage, TaskUpdatedMessage)

    _running: set[str] = field(default_factory=set[str])
    _agents: dict[str, TaskStartedMessage] = field(default_factory=dict[str, TaskStartedMessage])

    def find_agent(self, agent_id: str) -> TaskStartedMessage | None:
        """Return what the CLI reported when this sub-agent started."""
        return self._agents.get(agent_id)

    def __bool__(self) -> bool:
        return bool(self._running)

    def track(self, message: Message) -> None:
        """Update from a message of one of the classes in `TRACKED`."""
        match message:
            case TaskStartedMessage(task_id=str(task)):
                self._running.add(task)
                if message.subagent_type is not None:
                    self._agents[task] = message
            case TaskNotificationMessage(task_id=str(task)):
                self._running.discard(task)
            case TaskUpdatedMessage(task_id=str(task), patch={"status": str(status)}) if status in _ENDED:
                self._running.discard(task)
            case BackgroundTasksChangedMessage(tasks=tasks) if not tasks:
                self._running.clear()
            case _:
                return


_ID_FIELDS = ("parent_tool_use_id", "tool_use_id", "task_id", "parent_task_id", "agent_id")


class BackgroundAttribution(Struct, eq=False):
    """Tells messages of background tasks of earlier queries from those of the current query.

    The CLI continues background commands and sub-agents after the result. Their later messages carry the id of the
    task, or of the tool call that started it.
    """

    _earlier: set[str] = field(default_factory=set[str])
    _current: set[str] = field(default_factory=set[str])

    @property
    def has_earlier_work(self) -> bool:
        """Whether an earlier query has started background tasks."""
        return bool(self._earlier)

    def start_query(self) -> None:
        """Assign everything started so far to earlier queries."""
        self._earlier |= self._current
        self._current = set()

    def track(self, message: Message) -> None:
        """Take the next message."""
        if isinstance(message, TaskStartedMessage):
            (self._earlier if self.is_earlier(message) else self._current).update(_task_ids(message))
        elif isinstance(message, AssistantMessage) and self.is_earlier(message):
            self._earlier.update(call.id for call in message.tool_uses)

    def is_earlier(self, message: Message) -> bool:
        """Whether a message is about work of an earlier query. Call `track` first."""
        if isinstance(message, BackgroundTasksChangedMessage):
            return bool(self._earlier) and not self._current
        return bool(self._earlier) and not self._earlier.isdisjoint(_task_ids(message))


def _task_ids(message: Message) -> set[Any]:
    return {value for name in _ID_FIELDS if isinstance(value := getattr(message, name, None), str)}


class OpenApprovals(Struct, eq=False):
    """The approvals that wait, as the facts of their notes, oldest first."""

    _facts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def make_notes(self, session_id: str | None) -> list[SystemMessage]:
        """Make the notes again."""
        return [make_note(ASKED, session_id, facts) for facts in self._facts.values()]

    def track(self, subtype: str, facts: dict[str, Any]) -> None:
        """Take the next note: its subtype, `ASKED` or `SETTLED`, and its facts."""
        if subtype == ASKED:
            self._facts[facts["id"]] = facts
        else:
            self._facts.pop(facts["id"], None)


_REMEMBERED_TOOLS: Final = 10_000
_PLAN_TOOL: Final = "ExitPlanMode"
_TOOL_USE_ID_PATTERN: Final = rb'"tool_use_id"\s*:\s*"([^"\\]+)"'
"""Where a result names its tool use; `parent_tool_use_id` does not match."""
_NO_MODEL: Final = "<synthetic>"
"""The model name in messages that the CLI itself has written."""


class _Origin(Struct, frozen=True):
    """Where a tool use comes from: the thread, and the message of the API."""

    parent: str | None
    agent: str | None
    api_message: str

    def is_before(self, other: _Origin) -> bool:
        same_thread = self.parent == other.parent and self.agent == other.agent
        return same_thread and self.api_message != other.api_message


class _ToolUse(Struct, frozen=True):
    parent: str | None
    message: str | None
    origin: _Origin | None


class RunningTools:
    """Tracks the tool uses without a result: their tools run, or wait for permission.

    A tool use whose result must have been lost does not count: its thread has gone on to another message of the API,
    its turn or its sub-agent has ended, or its result was in a line that could not be read. When a line that could not
    be read may have held any result, the running tools are uncertain.
    """

    def __init__(self) -> None:
        self._uses: dict[str, _ToolUse | None] = {}  # every tool use seen; None once it has its result
        self._running: dict[str, _ToolUse] = {}
        self._uncertain: set[str] = set()
        self._origin: _Origin | None = None  # of the last message
        self._plan: ToolUseBlock | None = None

    def find_plan(self, tool_use_id: str) -> str | None:
        """Return the plan in this call of the model, if it is the last call with a plan."""
        plan = None if self._plan is None or self._plan.id != tool_use_id else self._plan.input.get("plan")
        return plan if isinstance(plan, str) else None

    @property
    def has_open(self) -> bool:
        """Whether a tool certainly runs."""
        return len(self._running) > len(self._uncertain)

    @property
    def uncertain_count(self) -> int:
        """How many tools may have ended, because a skipped line may have held their result."""
        return len(self._uncertain)

    def track(self, batch: Sequence[Message], kinds: Collection[type[Message]]) -> None:
        """Take the next messages, in order. `kinds` are their classes."""
        routes = self._ROUTES
        if routes.keys().isdisjoint(kinds):
            return
        for message in batch:
            is_idle_text = (
                not self._running
                and isinstance(message, AssistantMessage)
                and ToolUseBlock not in map(type, message.message.content)
            )
            if is_idle_text:  # by far the most common
                continue
            route = routes.get(type(message))
            if route is not None:
                route(self, message)

    def track_skipped(self, line: bytes, *, is_frame: bool) -> None:
        """Take a line that gave no message.

        Args:
            line: the line, or its beginning.
            is_frame: whether the line was meant to be a message; if not, it only counts if it clearly is a tool
                result.
        """
        if not self._running:
            return
        names: list[bytes] = re.findall(_TOOL_USE_ID_PATTERN, line) if b"tool_result" in line else []
        if found := self._running.keys() & {name.decode("utf-8", "replace") for name in names}:
            self._forget(found)
        elif is_frame:
            self._uncertain |= self._running.keys()

    def _on_assistant(self, message: AssistantMessage) -> None:
        if message.supersedes:
            self._forget_where(lambda use: use.message in message.supersedes)
        origin = _find_origin(message)
        if origin is not None and origin != self._origin:
            # The API is called again only when every tool use of the message before has its result.
            self._forget_where(lambda use: use.origin is not None and use.origin.is_before(origin))
            self._origin = origin
        if message.historical:
            return
        for block in message.tool_uses:
            if block.id in self._uses:  # the message is sent again
                continue
            if block.name == _PLAN_TOOL:
                self._plan = block
            use = _ToolUse(message.parent_tool_use_id, message.uuid, origin)
            self._uses[block.id] = None if message.aborted else use
            if not message.aborted:
                self._running[block.id] = use
            if len(self._uses) > _REMEMBERED_TOOLS:
                oldest = next(iter(self._uses))
                del self._uses[oldest]
                self._forget({oldest})

    def _on_user(self, message: UserMessage) -> None:
        if message.retracted_message_uuids:
            self._forget_where(lambda use: use.message in message.retracted_message_uuids)
        if self._running and any(isinstance(block, UnknownBlock) for block in message.content):
            self.track_skipped(message.raw_line, is_frame=False)
        for block in message.tool_results:
            if block.tool_use_id in self._uses:
                self._uses[block.tool_use_id] = None
                self._forget({block.tool_use_id})

    def _on_result(self, message: ResultMessage) -> None:
        is_success = not message.is_error and message.subtype == "success"
        if is_success and message.terminal_reason in (None, "completed", "tool_deferred"):
            self._forget_where(lambda use: use.parent is None)  # background agents go on
        else:
            self._forget(set(self._running))

    def _on_task_end(self, message: TaskNotificationMessage) -> None:
        if message.tool_use_id is not None:  # of a sub-agent: its tools do not run any more
            self._forget_where(lambda use: use.parent == message.tool_use_id)

    def _on_progress(self, message: ToolProgressMessage) -> None:
        if message.tool_use_id is not None:
            self._uncertain.discard(message.tool_use_id)
            if (use := self._uses.get(message.tool_use_id)) is not None:
                self._running[message.tool_use_id] = use

    def _on_unknown(self, message: UnknownMessage) -> None:
        self.track_skipped(message.raw_line, is_frame=False)

    def _forget_where(self, which: Callable[[_ToolUse], bool]) -> None:
        self._forget({key for key, use in self._running.items() if which(use)})

    def _forget(self, tool_use_ids: set[str]) -> None:
        for tool_use_id in tool_use_ids:
            self._running.pop(tool_use_id, None)
        self._uncertain -= tool_use_ids

    _ROUTES: ClassVar[Mapping[type[Message], Callable[[Any, Any], None]]] = {
        AssistantMessage: _on_assistant,
        ResultMessage: _on_result,
        TaskNotificationMessage: _on_task_end,
        ToolProgressMessage: _on_progress,
        UnknownMessage: _on_unknown,
        UserMessage: _on_user,
    }


def _find_origin(message: AssistantMessage) -> _Origin | None:
    """Return the origin of a message, or None if the API did not write it just now."""
    if message.message_id is None or message.historical or message.is_api_error_message or message.model == _NO_MODEL:
        return None
    return _Origin(message.parent_tool_use_id, message.agent_id, message.message_id)
