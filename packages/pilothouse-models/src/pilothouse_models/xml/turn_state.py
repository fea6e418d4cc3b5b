"""The text of one turn, assembled from streamed deltas and whole messages. Pure.

Owns which blocks count, how they are parsed, and what to retract when a part no longer counts. A whole message
replaces its stream. Must not know messages, only their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from itertools import zip_longest
from typing import Final, Literal, NamedTuple, TypeAlias

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
from pilothouse_models.xml.parser import StreamParser

TEXT: Final = "text"
THINKING: Final = "thinking"
CALL: Final = "call"
PartKind = Literal["text", "thinking", "call"]


class _GrowingText:
    """Text that comes in pieces."""

    __slots__ = ("_pieces",)

    def __init__(self, *pieces: str) -> None:
        self._pieces = list(pieces)

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, text: str) -> None:
        self._pieces.append(text)


class ReplyPart(_GrowingText):
    """A stretch of text or thinking, or a call, whose text is its arguments as the model writes them.

    Of a call, `started` is the first event, and `call` its end or error; None while the model is writing it.
    """

    __slots__ = ("call", "id", "kind", "started")

    def __init__(self, kind: PartKind, *pieces: str, call_id: str = "") -> None:
        super().__init__(*pieces)
        self.kind: PartKind = kind
        self.id = call_id
        self.started: ToolCallStarted | None = None
        self.call: ToolCall | ToolCallError | None = None

    def is_same_as(self, other: ReplyPart) -> bool:
        """Whether both have the same content; unfinished calls never do."""
        if self.kind != other.kind:
            return False
        if self.call is None or other.call is None:
            return self.kind != CALL and self.text == other.text
        return structs.replace(self.call, id="") == structs.replace(other.call, id="")

    def get_call(self) -> ToolCall | ToolCallError | None:
        """Return the call with its id."""
        return None if self.call is None else structs.replace(self.call, id=self.id)

    def make_events(self, kept: int = 0) -> list[ParserEvent]:
        """Make the events of the part, without the first `kept` characters of its text."""
        text = self.text[kept:]
        if self.kind != CALL:
            return [TextDelta(text) if self.kind == TEXT else ThinkingDelta(text)] if text else []
        call, delta = self.get_call(), ToolCallDelta(self.id, text) if text else None
        return [each for each in (self.started, delta, call) if each is not None]


class ParserRun:
    """One run of a fresh parser, and the parts that it found."""

    def __init__(self, parser: StreamParser) -> None:
        self.parts: list[ReplyPart] = []
        self.finished = ReplyFinished("stop")  # how the parser closed
        self._parser = parser
        self._calls: dict[str, ReplyPart] = {}

    def add(self, kind: BlockKind, text: str) -> list[ParserEvent]:
        """Parse text, or add reasoning that arrived outside of the text; returns the events."""
        if not text:
            return []
        return self._record(self._parser.feed(text) if kind == TEXT else [ThinkingDelta(text)])

    def finish(self) -> list[ParserEvent]:
        """End the reply; returns the last events."""
        *events, self.finished = self._parser.close() or [self.finished]
        return self._record(events)

    def calls(self) -> list[ReplyPart]:
        """Return the calls so far."""
        return [part for part in self.parts if part.kind == CALL]

    def _record(self, events: list[ParserEvent]) -> list[ParserEvent]:
        for event in events:
            match event:
                case TextDelta() | ThinkingDelta():
                    kind: PartKind = TEXT if isinstance(event, TextDelta) else THINKING
                    if not self.parts or self.parts[-1].kind != kind:
                        self.parts.append(ReplyPart(kind))
                    self.parts[-1].add(event.text)
                case ToolCallDelta():
                    self._calls[event.id].add(event.text)
                case ToolCallStarted():
                    self._add_call(event.id).started = event
                case ToolCall() | ToolCallError():
                    part = self._calls.get(event.id) or self._add_call(event.id)
                    part.call = event
                case _:
                    pass
        return events

    def _add_call(self, call_id: str) -> ReplyPart:
        part = self._calls[call_id] = ReplyPart(CALL, call_id=call_id)
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
    text, thinking = (_join_parts(gone, kind, kept) for kind in (TEXT, THINKING))
    call_ids = tuple(part.id for part in gone if part.kind == CALL)
    events: list[ReplyEvent] = [TextRetracted(text, thinking, call_ids)] if text or thinking or call_ids else []
    for at, part in enumerate(come):
        events += part.make_events(0 if at else kept)
    return events


def _join_parts(parts: list[ReplyPart], kind: PartKind, kept_length: int) -> str:
    return "".join([part.text[0 if at else kept_length :] for at, part in enumerate(parts) if part.kind == kind])


def _common_length(left: str, right: str) -> int:
    if left.startswith(right) or right.startswith(left):
        return min(len(left), len(right))
    return next(at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)


BlockKind = Literal["text", "thinking"]


class TurnBlock(_GrowingText):
    """A block of text or thinking, at an index of an API message; `uuid` is that of its whole message.

    A block that `is_restarted` is streamed again. It may continue the text block of another message (`previous`):
    `splice` says how, and is None while that is not known, because the block may repeat the end of the other.
    """

    __slots__ = (
        "index", "is_restarted", "is_whole", "kind", "message", "previous", "splice", "unparsed", "uuid",
    )  # fmt: skip

    def __init__(self, message: str, index: int, kind: BlockKind, previous: TurnBlock | None = None) -> None:
        super().__init__()
        self.message = message
        self.index = index
        self.kind: BlockKind = kind
        self.uuid: str | None = None
        self.is_whole = False
        self.is_restarted = False
        self.previous = previous
        self.splice: ReplySplice | None = None if previous else _NO_SPLICE
        self.unparsed: list[str] = []

    def add(self, text: str) -> None:
        """Append a delta."""
        super().add(text)
        self.unparsed.append(text)

    def complete(self, text: str, uuid: str | None) -> bool:
        """Set the whole text; returns whether the deltas agree with it."""
        known, self.uuid, self.is_whole, self.is_restarted = self.text, uuid, True, False
        if text.startswith(known):
            self.add(text[len(known) :])
            return True
        self._pieces = [text]
        return False

    def find_splice(self) -> ReplySplice | None:
        """Find out how the block continues the previous one; returns None if that is not known yet."""
        if self.splice is None and self.previous is not None:
            written = self.previous.text[self.previous.skipped_length :]
            self.splice = find_splice(written, self.text, final=self.is_whole)
        return self.splice

    @property
    def skipped_length(self) -> int:
        """Length of the text at its beginning that repeats the previous block."""
        return self.splice.skipped_length if self.splice else 0


_Span: TypeAlias = tuple[TurnBlock, slice]
_NONE: Final = slice(0)  # of a block that has to be parsed again


def _find_spans(blocks: Iterable[TurnBlock]) -> list[_Span]:
    """Find the blocks that count, and which part of each."""
    spans: dict[TurnBlock, slice] = {}
    for block in blocks:
        splice, previous = block.find_splice(), block.previous
        if splice is None:
            continue
        end = previous.skipped_length + splice.kept_length if previous else 0
        if previous in spans and end < len(previous.text):
            spans[previous] = slice(previous.skipped_length, end)
        spans[block] = slice(splice.skipped_length, None)
    return list(spans.items())


class TurnState:
    """The model's output between a prompt and its result; `used_ids` are those of earlier calls, and new ones."""

    def __init__(self, parser_factory: Callable[[set[str]], StreamParser], used_ids: set[str]) -> None:
        self.blocks: list[TurnBlock] = []
        self.is_finished = False
        self.is_aborted = False
        self.parser_run = ParserRun(parser_factory(used_ids))
        self.message_id: str | None = None  # id of the current API message
        self._make_parser = parser_factory
        self._used_ids = used_ids
        self._abandoned: set[str] = set()
        self._open: int | None = None  # index of the block that is being streamed
        self._parsed: list[_Span] = []

    def take_events(self) -> list[ReplyEvent]:
        """Parse what is new, or everything if what was parsed has changed; returns the events since the last call."""
        spans, run, parsed = _find_spans(self.blocks), self.parser_run, self._parsed
        events: list[ReplyEvent] = []
        if spans[: len(parsed)] == parsed and not any(block.unparsed for block, _ in parsed[:-1]):
            if parsed:
                last, _ = parsed[-1]
                events += run.add(last.kind, "".join(last.unparsed))
            for block, part in spans[len(parsed) :]:
                events += run.add(block.kind, block.text[part])
        else:
            self.parser_run = self._run_parser(spans, self._used_ids)
            events += make_retraction(run, self.parser_run)
        self._parsed = spans
        for block, _ in spans:
            block.unparsed.clear()
        return events

    def start_message(self, message: str, *, resumes: bool) -> None:
        """Start an API message.

        Blocks of another message that were streamed but never came whole no longer count. A message whose stream was
        abandoned is streamed again from its beginning, unless this one resumes it.
        """
        self._drop(lambda each: not each.is_whole or (each.message in self._abandoned and not resumes))
        self._abandoned.clear()
        for block in self.blocks:
            block.is_restarted = block.is_restarted or block.message == message
        self.message_id, self._open = message, None

    def keep_partial(self) -> None:
        """Keep the whole blocks of a broken stream, because the CLI asks the model to continue."""
        self._abandoned.clear()

    def open_block(self, index: int | None) -> None:
        """Start block `index` of the current message; None ends the block that was started last."""
        self._open = index

    def add(self, kind: BlockKind, index: int, text: str) -> TurnBlock | None:
        """Add a delta; returns its block, unless the delta only repeats a whole block."""
        message = self.message_id or ""
        block = next((b for b in self.blocks if b.message == message and b.index == index and b.kind == kind), None)
        if block is not None and block.is_whole:
            return None
        block = block or self._add_block(message, index, kind)
        block.add(text)
        return block

    def complete_block(self, kind: BlockKind, text: str, uuid: str | None) -> TurnBlock:
        """Add a whole block."""
        message = self.message_id or ""
        block = self._find_streamed(message, kind, text)
        if block is None:
            index = 1 + max((each.index for each in self.blocks if each.message == message), default=-1)
            block = self._add_block(message, index, kind)
        if not block.complete(text, uuid) and kind == TEXT:  # whole thinking sometimes differs in wording
            self._parsed = [(block, _NONE)]
        return block

    def retract(self, ids: Collection[str]) -> None:
        """Drop whole messages with these uuids, or of API messages with these ids."""
        self._drop(lambda each: each.uuid in ids or each.message in ids)

    def abandon(self, message: str | None, index: int) -> None:
        """Drop the blocks of an API message from `index` on, because its stream broke."""
        message = message or self.message_id or ""
        self._drop(lambda each: each.message == message and each.index >= index)
        if not self.is_aborted:
            self._abandoned.add(message)

    def finish(self) -> list[ReplyEvent]:
        """End the turn; returns the last events."""
        self._drop(lambda each: not each.is_whole)
        self.is_finished = True
        return [*self.take_events(), *self.parser_run.finish()]

    def get_visible_parts(self, block: TurnBlock) -> list[ReplyPart]:
        """Return what a block shows: text, thinking and whole calls, as if the reply ended after it."""
        if block not in self.blocks:
            return []
        at = self.blocks.index(block)
        before, after = (self._parse_to_end(self.blocks[:end]) for end in (at, at + 1))
        _, kept, come = diff_parts(before, after)
        if kept:
            come[0] = ReplyPart(come[0].kind, come[0].text[kept:])
        return come

    def _parse_to_end(self, blocks: list[TurnBlock]) -> list[ReplyPart]:
        run = self._run_parser(_find_spans(each for each in blocks if each.kind == TEXT), set())
        whole = [part for part in run.calls() if part.call is not None]
        run.finish()
        for part, known in zip_longest(run.calls(), self.parser_run.calls()):
            if part is not None:
                part.id = known.id if known else ""
        return [part for part in run.parts if part.kind != CALL or (part in whole and part.id)]

    def _run_parser(self, spans: Iterable[_Span], used_ids: set[str]) -> ParserRun:
        run = ParserRun(self._make_parser(used_ids))
        for block, part in spans:
            run.add(block.kind, block.text[part])
        return run

    def _add_block(self, message: str, index: int, kind: BlockKind) -> TurnBlock:
        last = next((each for each in reversed(self.blocks) if each.kind == TEXT), None)
        block = TurnBlock(message, index, kind, last if kind == TEXT and last and last.message != message else None)
        self.blocks.append(block)
        return block

    def _find_streamed(self, message: str, kind: BlockKind, text: str) -> TurnBlock | None:
        own = [each for each in self.blocks if each.message == message and each.kind == kind]
        restarted = [each for each in own if each.is_restarted]
        streamed = [each for each in own if not each.is_whole]
        candidates = [
            *(each for each in restarted if each.text == text), *restarted,
            *(each for each in streamed if each.index == self._open),
            *(each for each in streamed if text.startswith(each.text)), *streamed,
        ]  # fmt: skip
        return next(iter(candidates), None)

    def _drop(self, is_gone: Callable[[TurnBlock], bool]) -> None:
        gone = [each for each in self.blocks if is_gone(each)]
        self.blocks = [each for each in self.blocks if each not in gone]
        for block in self.blocks:
            if block.previous in gone:  # the block counts as a whole now
                block.previous, block.splice = None, _NO_SPLICE


_MAX_REPETITION: Final = 1024  # characters at the end of the text that may be repeated
_MIN_REPETITION: Final = 24  # shorter ones do not count: lines and brackets often repeat
_MIN_DISTINCT_CHARS: Final = 10  # distinct characters in one; excludes rulers and indentation
_TAG: Final = "<tool_use"
_MAX_TAG_CHARS: Final = 64
_OPENING: Final = re.compile(r"\s*+<(tool_use(?:-\w+)?)\s*>")


class ReplySplice(NamedTuple):
    """How two pieces are joined: how much of the first counts, and how much of the second does not, in characters."""

    kept_length: int
    skipped_length: int = 0


_NO_SPLICE: Final = ReplySplice(0)  # of a block that continues no other


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
