"""Checks a message stream: pairs tool uses with their results and looks for the end of the run.

Owns what counts as a fault of a message stream and what does not. Must not know connections, I/O or what to do about
a fault.

These are not faults, because a healthy CLI does them:

- Tool uses that the host runs itself: the turn ends `tool_deferred`, and their results may never appear in the
  output.
- Tool uses that an interrupt, a limit or a failed run left without a result, or that were in an aborted or retracted
  assistant message.
- Messages that are sent again: replayed and historical ones, and the same assistant message under the same uuid.
- Frames of sub-agents, between those of the main thread or after its result: ids are unique across threads.

Memory is bounded: the oldest finished tool ids are dropped first, and only the first faults are listed; all are
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from pilothouse.messages import (
    AssistantMessage,
    DoneMessage,
    LineSkippedMessage,
    Message,
    ResultMessage,
    UnknownMessage,
    UserMessage,
)

_REMEMBERED_TOOLS: Final = 10_000
"""How many tool ids of each kind, open and closed, are kept."""

_LISTED_FAULTS: Final = 100
_LISTED_TYPES: Final = 100


class StreamFaultKind(StrEnum):
    """Kinds of faults."""

    NO_RESULT = "no result message"
    USE_WITHOUT_RESULT = "tool use without tool result"
    RESULT_WITHOUT_USE = "tool result without tool use"
    DUPLICATE_USE = "tool use id used twice"
    DUPLICATE_RESULT = "second tool result for one tool use"
    SKIPPED_LINE = "lines that could not be read were skipped"


class StreamFault(Struct, frozen=True):
    """One fault. `parent_tool_use_id` is set for those of sub-agents."""

    kind: StreamFaultKind
    tool_use_id: str | None = None
    tool_name: str | None = None
    parent_tool_use_id: str | None = None

    def __str__(self) -> str:
        name = f" ({self.tool_name})" if self.tool_name else ""
        return f"{self.kind.value}: {self.tool_use_id}{name}" if self.tool_use_id else self.kind.value


class ValidationReport(Struct, frozen=True):
    """What a stream held and what was wrong with it.

    Attributes:
        faults: the first hundred faults, in order of discovery.
        fault_count: number of all faults.
        messages: number of messages of each wire type.
        results: number of result messages.
        errors: number of result messages of a failed run.
        tools_requested: number of tool uses.
        tools_received: number of tool results that belong to one of them.
        tools_pending: ids of tool uses without a result.
        tools_unmatched: number of tool results without a tool use.
        tools_deferred: number of tool uses left to the host.
        tools_abandoned: number of tool uses that an interrupt, a limit, a failure or a retraction left without a
            result.
    """

    faults: tuple[StreamFault, ...]
    fault_count: int
    messages: Mapping[str, int]
    results: int
    errors: int
    tools_requested: int
    tools_received: int
    tools_pending: tuple[str, ...]
    tools_unmatched: int
    tools_deferred: int
    tools_abandoned: int

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.fault_count

    def __str__(self) -> str:
        if self.ok:
            return f"valid stream of {sum(self.messages.values())} messages"
        shown = "; ".join(str(fault) for fault in self.faults[:3])
        more = f"; and {self.fault_count - 3} more" if self.fault_count > 3 else ""
        return f"{self.fault_count} faults: {shown}{more}"


class _OpenToolUse(Struct, frozen=True):
    tool_use_id: str
    tool_name: str
    parent: str | None
    message: str | None


class _ClosedToolUse(Struct, frozen=True):
    """A tool use that no longer waits for its result: uuids of the messages with the use and the result, if any."""

    message: str | None
    answer: str | None


class _Counts(Struct):
    requested: int = 0
    received: int = 0
    unmatched: int = 0
    deferred: int = 0
    abandoned: int = 0
    results: int = 0
    errors: int = 0
    faults: int = 0
    ended: bool = False


class StreamValidator:
    """Checks the messages of one stream.

    Args:
        resumed: the stream continues an earlier one, so a tool result may belong to a tool use before its beginning.
    """

    def __init__(self, *, resumed: bool = False) -> None:
        self._resumed = resumed
        self._open: dict[str, _OpenToolUse] = {}
        self._closed: dict[str, _ClosedToolUse] = {}
        self._faults: list[StreamFault] = []
        self._counts = _Counts()
        self._classes: Counter[type[Message]] = Counter()
        self._unknown_types: Counter[str] = Counter()

    def track(self, message: Message) -> None:
        """Take the next message."""
        cls = message.__class__
        self._classes[cls] += 1
        route = self._ROUTES.get(cls)
        if route is not None:
            route(self, message)

    def track_batch(self, messages: Iterable[Message]) -> None:
        """Take the next messages, in order."""
        for message in messages:
            self.track(message)

    def report(self) -> ValidationReport:
        """Report on the messages so far as if they were the whole stream; may be called at any time."""
        tally = self._counts
        last = [
            StreamFault(StreamFaultKind.USE_WITHOUT_RESULT, u.tool_use_id, u.tool_name, u.parent)
            for u in self._open.values()
        ]
        if not tally.ended:
            last.append(StreamFault(StreamFaultKind.NO_RESULT))
        return ValidationReport(
            faults=(*self._faults, *last)[:_LISTED_FAULTS],
            fault_count=tally.faults + len(last),
            messages=self._messages_by_type(),
            results=tally.results,
            errors=tally.errors,
            tools_requested=tally.requested,
            tools_received=tally.received,
            tools_pending=tuple(self._open),
            tools_unmatched=tally.unmatched,
            tools_deferred=tally.deferred,
            tools_abandoned=tally.abandoned,
        )

    def _messages_by_type(self) -> dict[str, int]:
        counts = Counter(self._unknown_types)
        for cls, count in self._classes.items():
            if cls is not UnknownMessage:
                counts[str(cls.__struct_config__.tag)] += count
        return dict(counts)

    # -- messages --------------------------------------------------------------------------------------------------

    def _on_assistant(self, message: AssistantMessage) -> None:
        if message.supersedes:
            self._retract(message.supersedes)
        here: set[str] = set()
        for block in message.tool_uses:
            tool_use_id = block.id
            earlier = self._open.get(tool_use_id) or self._closed.get(tool_use_id)
            sent_again = tool_use_id not in here and earlier is not None and _same_uuid(earlier.message, message.uuid)
            here.add(tool_use_id)
            if sent_again or message.historical:
                continue
            self._counts.requested += 1
            use = _OpenToolUse(tool_use_id, block.name, message.parent_tool_use_id, message.uuid)
            if earlier is not None:
                self._add_fault(StreamFault(StreamFaultKind.DUPLICATE_USE, tool_use_id, use.tool_name, use.parent))
            elif message.aborted:
                self._counts.abandoned += 1
                self._record_closed(use, None)
            else:
                self._open_use(use)

    def _on_user(self, message: UserMessage) -> None:
        if message.retracted_message_uuids:
            self._retract(message.retracted_message_uuids)
        for block in message.tool_results:
            tool_use_id = block.tool_use_id
            use = self._open.pop(tool_use_id, None)
            settled = self._closed.get(tool_use_id)
            kind: StreamFaultKind | None = None
            if use is not None:
                self._counts.received += 1
                self._record_closed(use, message.uuid or "")
            elif settled is None:
                kind = None if self._resumed else StreamFaultKind.RESULT_WITHOUT_USE
            elif settled.answer is None:
                self._counts.received += 1
                self._closed[tool_use_id] = _ClosedToolUse(settled.message, message.uuid or "")
            elif not _same_uuid(settled.answer, message.uuid):
                kind = StreamFaultKind.DUPLICATE_RESULT
            if kind is None or message.is_replay or message.historical:
                continue
            self._counts.unmatched += kind is StreamFaultKind.RESULT_WITHOUT_USE
            self._add_fault(StreamFault(kind, tool_use_id, None, message.parent_tool_use_id))

    def _on_result(self, message: ResultMessage) -> None:
        tally = self._counts
        tally.ended = True
        tally.results += 1
        tally.errors += message.is_error
        if message.terminal_reason == "tool_deferred":
            tally.deferred += self._abandon(lambda use: use.parent is None)
        elif message.is_error or message.subtype != "success" or message.terminal_reason not in (None, "completed"):
            tally.abandoned += self._abandon(lambda _: True)

    def _on_line_skipped(self, message: LineSkippedMessage) -> None:
        self._counts.faults += max(0, message.lines - 1)
        self._add_fault(StreamFault(StreamFaultKind.SKIPPED_LINE))

    def _on_done(self, _: DoneMessage) -> None:
        self._counts.ended = True

    def _on_unknown(self, message: UnknownMessage) -> None:
        kind = message.type
        known = kind in self._unknown_types or len(self._unknown_types) < _LISTED_TYPES
        self._unknown_types[kind if known else "(other)"] += 1

    # -- tool uses -------------------------------------------------------------------------------------------------

    def _open_use(self, use: _OpenToolUse) -> None:
        self._open[use.tool_use_id] = use
        if len(self._open) > _REMEMBERED_TOOLS:
            oldest = self._open.pop(next(iter(self._open)))
            self._add_fault(
                StreamFault(StreamFaultKind.USE_WITHOUT_RESULT, oldest.tool_use_id, oldest.tool_name, oldest.parent)
            )
            self._record_closed(oldest, None)

    def _record_closed(self, use: _OpenToolUse, answer: str | None) -> None:
        self._closed[use.tool_use_id] = _ClosedToolUse(use.message, answer)
        if len(self._closed) > _REMEMBERED_TOOLS:
            del self._closed[next(iter(self._closed))]

    def _abandon(self, which: Callable[[_OpenToolUse], bool]) -> int:
        """Stop waiting for the open tool uses that `which` selects; return how many."""
        chosen = [use for use in self._open.values() if which(use)]
        for use in chosen:
            del self._open[use.tool_use_id]
            self._record_closed(use, None)
        return len(chosen)

    def _retract(self, uuids: Sequence[str]) -> None:
        taken_back = frozenset(uuids)
        self._counts.abandoned += self._abandon(lambda use: use.message in taken_back)

    def _add_fault(self, fault: StreamFault) -> None:
        self._counts.faults += 1
        if len(self._faults) < _LISTED_FAULTS:
            self._faults.append(fault)

    # Messages of other classes are only counted.
    _ROUTES: ClassVar[Mapping[type[Message], Callable[..., None]]] = {
        AssistantMessage: _on_assistant,
        DoneMessage: _on_done,
        LineSkippedMessage: _on_line_skipped,
        ResultMessage: _on_result,
        UnknownMessage: _on_unknown,
        UserMessage: _on_user,
    }


def _same_uuid(one: str | None, other: str | None) -> bool:
    return bool(one) and one == other
