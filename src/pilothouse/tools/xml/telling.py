"""What one reply has told so far, so that it can be told anew when part of it no longer holds. Pure.

Owns one run of a parser, the ids under which its calls are known outside, and the difference between two tellings.
Must not know messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final, Literal, Protocol

from msgspec import Struct, structs

from pilothouse.tools.xml.events import (
    Event,
    Finish,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    ToolCallStart,
)

TEXT: Final = "text"
THINKING: Final = "thinking"
CALL: Final = "call"
Kind = Literal["text", "thinking", "call"]


class Parser(Protocol):
    """Reads one reply; `StreamParser` is one."""

    def feed(self, text: str, /) -> list[Event]:
        """More of the reply."""
        ...

    def close(self) -> list[Event]:
        """The reply is over."""
        ...


class Retracted(Struct, frozen=True):
    """What was told last no longer holds; what follows is told in its place.

    Attributes:
        text: the end of the text so far; take it back.
        thinking: the end of the reasoning so far.
        call_ids: calls that do not count, and were not run.
    """

    text: str = ""
    call_ids: tuple[str, ...] = ()
    thinking: str = ""
    kind: ClassVar[str] = "retracted"


class Part:
    """A stretch of text or thinking, or a call; in the order in which they began.

    Attributes:
        id: under which the call is known outside; "" until it is told.
        call: what became of it; None while it is being written.
    """

    __slots__ = ("_pieces", "call", "events", "given_id", "id", "kind")

    def __init__(self, kind: Kind, given_id: str = "") -> None:
        self.kind: Kind = kind
        self.given_id = given_id
        self.id = ""
        self.call: ToolCall | ToolCallError | None = None
        self.events: list[Event] = []  # not told yet
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What it says; "" of a call."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, text: str) -> None:
        """Make it longer."""
        self._pieces.append(text)

    def tells_as(self, other: Part) -> bool:
        """Whether both say the same; calls that are still being written never do."""
        if self.kind != other.kind:
            return False
        return self.text == other.text if self.kind != CALL else _meaning(self) == _meaning(other) is not None

    def known_call(self) -> ToolCall | ToolCallError | None:
        """The call, under the id by which it is known outside."""
        return None if self.call is None else structs.replace(self.call, id=self.id)


def _meaning(part: Part) -> tuple[object, ...] | None:
    match part.call:
        case ToolCall(name=name, arguments=arguments, raw=raw):
            return name, arguments, raw
        case ToolCallError(name=name, code=code, raw=raw):
            return name, code, raw
        case None:
            return None


class Telling:
    """One run of a parser.

    Args:
        parser: a fresh one.
        claim: gives a call the id by which it is known outside, from the one that the parser gave it.
        is_silent: whether nobody will hear its events.
    """

    def __init__(self, parser: Parser, claim: Callable[[str], str], *, is_silent: bool = False) -> None:
        self.parts: list[Part] = []
        self._parser = parser
        self._claim = claim
        self._is_silent = is_silent
        self._open: dict[str, Part] = {}
        self.end = Finish("stop")  # how the parser closed

    def feed(self, text: str) -> list[Event]:
        """More text; gives what it means, ready to be told."""
        return self.told(self.take(text))

    def take(self, text: str) -> list[Part]:
        """More text, without telling it."""
        return self._note(self._parser.feed(text)) if text else []

    def think(self, text: str) -> list[Part]:
        """More reasoning, which came beside the text."""
        return self._note([ThinkingDelta(text)]) if text else []

    def finish(self) -> list[Part]:
        """The reply is over."""
        return self._note(self._parser.close())

    def told(self, parts: Iterable[Part]) -> list[Event]:
        """The events of `parts` that wait to be told, with the ids that are known outside."""
        events: list[Event] = []
        for part in parts:
            if part.kind == CALL and not part.id:
                part.id = self._claim(part.given_id)
            events += [structs.replace(event, id=part.id) if part.kind == CALL else event for event in part.events]
            part.events = []
        return events

    def _note(self, events: Iterable[Event]) -> list[Part]:
        touched: list[Part] = []
        for event in events:
            if isinstance(event, Finish):
                self.end = event
                continue
            part = self._part_of(event)
            if not self._is_silent:
                part.events.append(event)
            if not touched or touched[-1] is not part:
                touched.append(part)
        return touched

    def _part_of(self, event: Event) -> Part:
        match event:
            case TextDelta(text=text) | ThinkingDelta(text=text):
                kind: Kind = TEXT if isinstance(event, TextDelta) else THINKING
                if not self.parts or self.parts[-1].kind != kind:
                    self.parts.append(Part(kind))
                self.parts[-1].add(text)
                return self.parts[-1]
            case ToolCallStart(id=call_id) | ToolCallDelta(id=call_id):
                return self._call(call_id)
            case ToolCall(id=call_id) | ToolCallError(id=call_id):
                part = self._call(call_id)
                part.call = event
                self._open.pop(call_id, None)
                return part
            case Finish():
                raise AssertionError("nothing is told of the end of a parser")

    def _call(self, call_id: str) -> Part:
        part = self._open.get(call_id)
        if part is None:
            part = self._open[call_id] = Part(CALL, call_id)
            self.parts.append(part)
        return part


def difference(before: list[Part], after: list[Part]) -> tuple[list[Part], int, list[Part]]:
    """What of `before` does not stand in `after`, how much of its first text does, and what `after` has in its place.

    The calls that both have are known by the ids of `before` from now on.
    """
    same = 0
    for old, new in zip(before, after, strict=False):
        if not old.tells_as(new):
            break
        new.id = old.id
        same += 1
    gone, come = before[same:], after[same:]
    kept = 0
    if gone and come and gone[0].kind == come[0].kind != CALL:
        kept = _shared(gone[0].text, come[0].text)
    return gone, kept, come


def retold(before: Telling, after: Telling) -> list[Event | Retracted]:
    """What to tell someone who heard `before`, so that they know what `after` says."""
    gone, kept, come = difference(before.parts, after.parts)
    for part in after.parts[: len(after.parts) - len(come)]:
        part.events = []
    text, thinking = (_joined(gone, kind, kept) for kind in (TEXT, THINKING))
    call_ids = tuple(part.id for part in gone if part.kind == CALL)
    events: list[Event | Retracted] = []
    if text or thinking or call_ids:
        events.append(Retracted(text, call_ids, thinking))
    if come and kept:
        rest = come[0].text[kept:]
        come[0].events = [TextDelta(rest) if come[0].kind == TEXT else ThinkingDelta(rest)] if rest else []
    return [*events, *after.told(come)]


def _joined(parts: list[Part], kind: Kind, kept: int) -> str:
    return "".join([part.text[kept if at == 0 else 0 :] for at, part in enumerate(parts) if part.kind == kind])


def _shared(left: str, right: str) -> int:
    if left.startswith(right) or right.startswith(left):
        return min(len(left), len(right))
    return next(at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
