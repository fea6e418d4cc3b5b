"""The text of one turn, assembled from streamed deltas and whole messages. Pure.

Owns which blocks count, how they are parsed, and what to retract when a part no longer counts. A whole message
replaces its stream (CLI 2.1.330). Must not know messages, only their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal, NamedTuple, Protocol

from msgspec import structs

from pilothouse.events import (
    ParserEvent,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    ToolCallStarted,
)

TEXT: Final = "text"
THINKING: Final = "thinking"
CALL: Final = "call"
PartKind = Literal["text", "thinking", "call"]


class ReplyParser(Protocol):
    """Reads one reply; `StreamParser` is one."""

    def feed(self, text: str, /) -> list[ParserEvent]:
        """Parse more of the reply."""
        ...

    def close(self) -> list[ParserEvent]:
        """End the reply."""
        ...


class ReplyPart:
    """A stretch of text or thinking, or a call; in the order in which they began.

    Attributes:
        id: public id of the call; "" until its first event is emitted.
        call: the finished call or its error; None while the model is writing it.
    """

    __slots__ = ("_pieces", "call", "id", "kind", "parser_id", "pending_events")

    def __init__(self, kind: PartKind, given_id: str = "") -> None:
        self.kind: PartKind = kind
        self.parser_id = given_id
        self.id = ""
        self.call: ToolCall | ToolCallError | None = None
        self.pending_events: list[ParserEvent] = []  # not emitted yet
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text of the part; "" for a call."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, text: str) -> None:
        """Append text."""
        self._pieces.append(text)

    def is_same_as(self, other: ReplyPart) -> bool:
        """Whether both have the same content; unfinished calls never do."""
        if self.kind != other.kind:
            return False
        return (
            self.text == other.text if self.kind != CALL else _describe_call(self) == _describe_call(other) is not None
        )

    def get_call(self) -> ToolCall | ToolCallError | None:
        """Return the call with its public id."""
        return None if self.call is None else structs.replace(self.call, id=self.id)


def _describe_call(part: ReplyPart) -> tuple[object, ...] | None:
    match part.call:
        case ToolCall(name=name, input=arguments, raw=raw):
            return name, arguments, raw
        case ToolCallError(name=name, code=code, raw=raw):
            return name, code, raw
        case None:
            return None


def _with_id(event: ParserEvent, call_id: str) -> ParserEvent:
    if isinstance(event, ToolCallStarted):
        return ToolCallStarted(structs.replace(event.tool_use, id=call_id))
    return structs.replace(event, id=call_id)


class ParserRun:
    """One run of a parser.

    Args:
        parser: a fresh parser.
        assign_id: makes the public id of a call from the parser's id.
        is_silent: whether its events are discarded.
    """

    def __init__(self, parser: ReplyParser, assign_id: Callable[[str], str], *, is_silent: bool = False) -> None:
        self.parts: list[ReplyPart] = []
        self._parser = parser
        self._assign_id = assign_id
        self._is_silent = is_silent
        self._open: dict[str, ReplyPart] = {}
        self.finished = ReplyFinished("stop")  # how the parser closed

    def feed(self, text: str) -> list[ParserEvent]:
        """Parse more text; returns its events."""
        return self.take_events(self.parse(text))

    def parse(self, text: str) -> list[ReplyPart]:
        """Parse more text, without taking the events out."""
        return self._record(self._parser.feed(text)) if text else []

    def add_thinking(self, text: str) -> list[ReplyPart]:
        """Add reasoning that arrived outside of the text."""
        return self._record([ThinkingDelta(text)]) if text else []

    def finish(self) -> list[ReplyPart]:
        """End the reply."""
        return self._record(self._parser.close())

    def take_events(self, parts: Iterable[ReplyPart]) -> list[ParserEvent]:
        """Return and remove the pending events of `parts`, with public ids."""
        events: list[ParserEvent] = []
        for part in parts:
            if part.kind == CALL and not part.id:
                part.id = self._assign_id(part.parser_id)
            events += [_with_id(event, part.id) if part.kind == CALL else event for event in part.pending_events]
            part.pending_events = []
        return events

    def _record(self, events: Iterable[ParserEvent]) -> list[ReplyPart]:
        touched: list[ReplyPart] = []
        for event in events:
            if isinstance(event, ReplyFinished):
                self.finished = event
                continue
            part = self._get_part(event)
            if not self._is_silent:
                part.pending_events.append(event)
            if not touched or touched[-1] is not part:
                touched.append(part)
        return touched

    def _get_part(self, event: ParserEvent) -> ReplyPart:
        match event:
            case TextDelta(text=text) | ThinkingDelta(text=text):
                kind: PartKind = TEXT if isinstance(event, TextDelta) else THINKING
                if not self.parts or self.parts[-1].kind != kind:
                    self.parts.append(ReplyPart(kind))
                self.parts[-1].add(text)
                return self.parts[-1]
            case ToolCallStarted(id=call_id) | ToolCallDelta(id=call_id):
                return self._get_call_part(call_id)
            case ToolCall(id=call_id) | ToolCallError(id=call_id):
                part = self._get_call_part(call_id)
                part.call = event
                self._open.pop(call_id, None)
                return part
            case ReplyFinished():
                raise AssertionError("the end of a reply belongs to no part")

    def _get_call_part(self, call_id: str) -> ReplyPart:
        part = self._open.get(call_id)
        if part is None:
            part = self._open[call_id] = ReplyPart(CALL, call_id)
            self.parts.append(part)
        return part


def diff_parts(before: list[ReplyPart], after: list[ReplyPart]) -> tuple[list[ReplyPart], int, list[ReplyPart]]:
    """Return what `after` lacks of `before`, how much of its first text is kept, and what `after` has instead.

    The calls in both get the ids of `before`.
    """
    same = 0
    for old, new in zip(before, after, strict=False):
        if not old.is_same_as(new):
            break
        new.id = old.id
        same += 1
    gone, come = before[same:], after[same:]
    kept = 0
    if gone and come and gone[0].kind == come[0].kind != CALL:
        kept = _common_length(gone[0].text, come[0].text)
    return gone, kept, come


def make_retraction(before: ParserRun, after: ParserRun) -> list[ReplyEvent]:
    """Make the events that turn what a consumer got from `before` into the content of `after`."""
    gone, kept, come = diff_parts(before.parts, after.parts)
    for part in after.parts[: len(after.parts) - len(come)]:
        part.pending_events = []
    text, thinking = (_join_parts(gone, kind, kept) for kind in (TEXT, THINKING))
    call_ids = tuple(part.id for part in gone if part.kind == CALL)
    events: list[ReplyEvent] = []
    if text or thinking or call_ids:
        events.append(TextRetracted(text, thinking, call_ids))
    if come and kept:
        rest = come[0].text[kept:]
        come[0].pending_events = [TextDelta(rest) if come[0].kind == TEXT else ThinkingDelta(rest)] if rest else []
    return [*events, *after.take_events(come)]


def _join_parts(parts: list[ReplyPart], kind: PartKind, kept_length: int) -> str:
    return "".join([part.text[kept_length if at == 0 else 0 :] for at, part in enumerate(parts) if part.kind == kind])


def _common_length(left: str, right: str) -> int:
    if left.startswith(right) or right.startswith(left):
        return min(len(left), len(right))
    return next(at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)


BlockKind = Literal["text", "thinking"]


class TurnBlock:
    """A block of text or thinking.

    Attributes:
        message: id of its API message.
        index: its index in that message.
        uuid: uuid of the whole message that contained it.
        is_whole: whether such a message arrived.
    """

    __slots__ = (
        "_deltas",
        "_whole",
        "continues",
        "index",
        "is_pending",
        "is_restarted",
        "is_whole",
        "kept_length",
        "kind",
        "message",
        "skipped_length",
        "uuid",
    )

    def __init__(self, message: str, index: int, kind: BlockKind) -> None:
        self.message = message
        self.index = index
        self.kind: BlockKind = kind
        self.uuid: str | None = None
        self.is_whole = False
        self.is_pending = False  # not emitted yet: it may repeat the text before it
        self.is_restarted = False  # its message is streamed again
        self.kept_length: int | None = None  # how many characters count; None for all
        self.skipped_length = 0  # repeated characters at its beginning
        self.continues: TurnBlock | None = None  # the block that it continues, in another API message
        self._deltas: list[str] = []
        self._whole = ""

    @property
    def full_text(self) -> str:
        """All of the text, as far as known."""
        return self._whole if self.is_whole else self._join_deltas()

    @property
    def text(self) -> str:
        """The part of the text that counts."""
        return self.full_text[self.skipped_length : self.kept_length]

    def add(self, text: str) -> None:
        """Append a delta."""
        self._deltas.append(text)

    def complete(self, text: str, uuid: str | None) -> str | None:
        """Set the whole text; returns what the deltas lacked, or None if they differ."""
        known = self.full_text
        self._deltas = []
        self._whole, self.uuid, self.is_whole = text, uuid, True
        return text[len(known) :] if text.startswith(known) else None

    def _join_deltas(self) -> str:
        if len(self._deltas) > 1:
            self._deltas = ["".join(self._deltas)]
        return self._deltas[0] if self._deltas else ""


class TurnState:
    """The model's output between a prompt and its result.

    Args:
        parser_factory: makes a fresh parser.
        assign_id: see `ParserRun`.
    """

    def __init__(self, parser_factory: Callable[[], ReplyParser], assign_id: Callable[[str], str]) -> None:
        self.blocks: list[TurnBlock] = []
        self.is_finished = False
        self.is_aborted = False
        self.parser_run = ParserRun(parser_factory(), assign_id)
        self.message_id: str | None = None  # id of the current API message
        self._make_parser = parser_factory
        self._assign_id = assign_id
        self._abandoned: set[str] = set()
        self._open: int | None = None  # index of the block that is being streamed
        self._needs_reparse = False  # the emitted events no longer match the blocks
        self._pending_events: list[ReplyEvent] = []

    def take_events(self) -> list[ReplyEvent]:
        """Return the events since the last call."""
        if self._needs_reparse:
            self._needs_reparse = False
            fresh = self._run_parser(self.blocks)
            self._pending_events += make_retraction(self.parser_run, fresh)
            self.parser_run = fresh
        out, self._pending_events = self._pending_events, []
        return out

    def start_message(self, message: str, *, resumes: bool) -> None:
        """Start an API message.

        Blocks of another message that were streamed but never came whole no longer count. A message whose stream was
        abandoned is streamed again from its beginning, unless this one resumes it.
        """
        gone = [each for each in self.blocks if not each.is_whole or (each.message in self._abandoned and not resumes)]
        self._drop(gone)
        self._abandoned.clear()
        for block in self.blocks:
            block.is_restarted = block.is_restarted or block.message == message
        self.message_id, self._open = message, None

    def keep_partial(self) -> None:
        """Keep the whole blocks of a broken stream, because the CLI asks the model to continue."""
        self._abandoned.clear()

    def open_block(self, index: int) -> None:
        """Start block `index` of the current message."""
        self._open = index

    def close_block(self) -> None:
        """End the block that was started last."""
        self._open = None

    def add(self, kind: BlockKind, index: int, text: str) -> TurnBlock | None:
        """Add a delta; returns its block, unless the delta only repeats a whole block."""
        message = self.message_id or ""
        block = next((b for b in self.blocks if b.message == message and b.index == index and b.kind == kind), None)
        if block is not None and block.is_whole:
            return None
        block = block or self._add_block(message, index, kind)
        block.add(text)
        self._on_growth(block, text)
        return block

    def complete_block(self, kind: BlockKind, text: str, uuid: str | None) -> TurnBlock:
        """Add a whole block."""
        message = self.message_id or ""
        block = self._find_streamed(message, kind, text)
        if block is None:
            index = 1 + max((each.index for each in self.blocks if each.message == message), default=-1)
            block = self._add_block(message, index, kind)
        block.is_restarted = False
        missing = block.complete(text, uuid)
        if missing is not None:
            self._on_growth(block, missing)
        elif kind == TEXT:  # whole thinking sometimes differs in wording
            self._needs_reparse = True
        return block

    def retract(self, ids: Collection[str]) -> None:
        """Drop whole messages with these uuids, or of API messages with these ids."""
        self._drop([each for each in self.blocks if each.uuid in ids or each.message in ids])

    def abandon(self, message: str | None, index: int) -> None:
        """Drop the blocks of an API message from `index` on, because its stream broke."""
        message = message or self.message_id or ""
        self._drop([each for each in self.blocks if each.message == message and each.index >= index])
        if not self.is_aborted:
            self._abandoned.add(message)

    def finish(self) -> None:
        """End the turn."""
        self._drop([each for each in self.blocks if not each.is_whole])
        self._pending_events = [*self.take_events(), *self.parser_run.take_events(self.parser_run.finish())]
        self.is_finished = True

    def get_visible_parts(self, block: TurnBlock) -> list[ReplyPart]:
        """Return what a block shows: text, thinking and whole calls, as if the reply ended after it."""
        if block not in self.blocks:
            return []
        at = self.blocks.index(block)
        before, after = (self._parse_to_end(self.blocks[:end]) for end in (at, at + 1))
        _, kept, come = diff_parts(before, after)
        if kept:
            first = ReplyPart(come[0].kind)
            first.add(come[0].text[kept:])
            come = [first, *come[1:]]
        return come

    def calls(self) -> list[ReplyPart]:
        """Return the calls so far, with their public ids."""
        return [part for part in self.parser_run.parts if part.kind == CALL]

    def _parse_to_end(self, blocks: list[TurnBlock]) -> list[ReplyPart]:
        run = self._run_parser([each for each in blocks if each.kind == TEXT], is_silent=True)
        whole = [part for part in run.parts if part.kind == CALL and part.call is not None]
        run.finish()
        for part, known in zip((each for each in run.parts if each.kind == CALL), self.calls(), strict=False):
            part.id = known.id
        return [part for part in run.parts if part.kind != CALL or (part in whole and part.id)]

    def _run_parser(self, blocks: list[TurnBlock], *, is_silent: bool = False) -> ParserRun:
        run = ParserRun(self._make_parser(), self._assign_id, is_silent=is_silent)
        for block in blocks:
            if not block.is_pending:
                (run.parse if block.kind == TEXT else run.add_thinking)(block.text)
        return run

    def _add_block(self, message: str, index: int, kind: BlockKind) -> TurnBlock:
        block = TurnBlock(message, index, kind)
        last = self._last_text()
        block.is_pending = kind == TEXT and last is not None and last.message != message
        self.blocks.append(block)
        return block

    def _last_text(self, before: TurnBlock | None = None) -> TurnBlock | None:
        end = len(self.blocks) if before is None else self.blocks.index(before)
        return next((each for each in reversed(self.blocks[:end]) if each.kind == TEXT), None)

    def _on_growth(self, block: TurnBlock, text: str) -> None:
        if block.is_pending:
            self._try_splice(block)
        elif block is not self.blocks[-1]:
            self._needs_reparse = self._needs_reparse or bool(text)
        elif not self._needs_reparse:
            take = self.parser_run.parse if block.kind == TEXT else self.parser_run.add_thinking
            self._pending_events += self.parser_run.take_events(take(text))

    def _try_splice(self, block: TurnBlock) -> None:
        last = self._last_text(block)
        if last is not None:
            join = find_splice(last.text, block.full_text, final=block.is_whole)
            if join is None:
                return
            block.continues, block.skipped_length = last, join.skipped_length
            if join.kept_length < len(last.text):
                last.kept_length = last.skipped_length + join.kept_length
                self._needs_reparse = True
        block.is_pending = False
        self._on_growth(block, block.text)

    def _find_streamed(self, message: str, kind: BlockKind, text: str) -> TurnBlock | None:
        """Find the streamed block that `text` completes."""
        own = [each for each in self.blocks if each.message == message and each.kind == kind]
        again = [each for each in own if each.is_restarted and each.full_text == text] or [
            each for each in own if each.is_restarted
        ]
        if again:
            return again[0]
        streamed = [each for each in own if not each.is_whole]
        being_streamed = [each for each in streamed if each.index == self._open]
        matching = [each for each in streamed if text.startswith(each.full_text)]
        return next(iter([*being_streamed, *matching, *streamed]), None)

    def _drop(self, blocks: list[TurnBlock]) -> None:
        if not blocks:
            return
        self._needs_reparse = self._needs_reparse or any(each.text and not each.is_pending for each in blocks)
        self.blocks = [each for each in self.blocks if each not in blocks]
        for block in blocks:
            if block.continues is not None and block.continues.kept_length is not None:
                block.continues.kept_length, self._needs_reparse = None, True  # its replacement is gone
        for block in self.blocks:
            if block.continues in blocks:
                self._needs_reparse = self._needs_reparse or block.skipped_length > 0
                block.continues, block.skipped_length = None, 0


_MAX_REPETITION: Final = 1024  # characters at the end of the text that may be repeated
_MIN_REPETITION: Final = 24  # shorter ones do not count: lines and brackets often repeat
_MIN_DISTINCT_CHARS: Final = 10  # distinct characters in one; excludes rulers and indentation
_TAG: Final = "<tool_use"
_MAX_TAG_CHARS: Final = 64
_OPENING: Final = re.compile(r"\s*+<(tool_use(?:-\w+)?)\s*>")


class ReplySplice(NamedTuple):
    """How two pieces are joined.

    Attributes:
        kept_length: number of characters of the first piece that count.
        skipped_length: number of characters of the second piece that do not count.
    """

    kept_length: int
    skipped_length: int = 0


def find_splice(written: str, more: str, *, final: bool) -> ReplySplice | None:
    """Find how `more` continues `written`; None if more text is needed to decide, which `final` rules out.

    A call that was cut off and written again counts from its new beginning.
    """
    tail = written[-_MAX_REPETITION:]
    if not final and len(more) < _MAX_REPETITION and (more in tail or _may_open(more)):
        return None
    for size in range(min(len(tail), len(more)), _MIN_REPETITION - 1, -1):
        if tail.endswith(more[:size]) and len(set(more[:size])) >= _MIN_DISTINCT_CHARS:
            return ReplySplice(len(written), size)
    if opening := _OPENING.match(more):
        at = written.rfind(f"<{opening[1]}>")
        if at >= 0 and f"</{opening[1]}>" not in written[at:]:
            return ReplySplice(at)
    return ReplySplice(len(written))


def _may_open(more: str) -> bool:
    begun = more.lstrip()[:_MAX_TAG_CHARS]
    return _TAG.startswith(begun) or (begun.startswith(_TAG) and ">" not in begun and len(begun) < _MAX_TAG_CHARS)
