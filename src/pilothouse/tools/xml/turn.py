"""The blocks of one turn, from its streams and from its whole messages, and what they tell together. Pure.

Owns which blocks count: the whole message of a block is the truth (CLI 2.1.330), a stream may be abandoned or told
again, a message may be retracted, and a reply that hit the output limit goes on in the next API message. Must not know
messages, only what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from pilothouse.tools.xml.events import Event
from pilothouse.tools.xml.joins import join_of
from pilothouse.tools.xml.telling import CALL, TEXT, Parser, Part, Retracted, Telling, difference, retold

BlockKind = Literal["text", "thinking"]


class Block:
    """A block of text or thinking.

    Attributes:
        message: id of its API message.
        index: its place there.
        uuid: of the whole message that brought it.
        is_whole: whether one did.
    """

    __slots__ = (
        "_told",
        "_whole",
        "again",
        "index",
        "is_held",
        "is_whole",
        "joined",
        "kept",
        "kind",
        "message",
        "skipped",
        "uuid",
    )

    def __init__(self, message: str, index: int, kind: BlockKind) -> None:
        self.message = message
        self.index = index
        self.kind: BlockKind = kind
        self.uuid: str | None = None
        self.is_whole = False
        self.is_held = False  # not told yet: it may repeat what stands before it
        self.again = False  # its message is streamed once more
        self.kept: int | None = None  # how much of it counts; None for all
        self.skipped = 0  # characters at its beginning that only repeat
        self.joined: Block | None = None  # goes on from it, in another API message
        self._told: list[str] = []
        self._whole = ""

    @property
    def written(self) -> str:
        """All of it, as far as it is known."""
        return self._whole if self.is_whole else self._streamed()

    @property
    def text(self) -> str:
        """What of it counts."""
        return self.written[self.skipped : self.kept]

    def add(self, text: str) -> None:
        """A delta."""
        self._told.append(text)

    def settle(self, text: str, uuid: str | None) -> str | None:
        """The whole of it; gives what the deltas lacked, or None if they said something else."""
        told = self.written
        self._told = []
        self._whole, self.uuid, self.is_whole = text, uuid, True
        return text[len(told) :] if text.startswith(told) else None

    def _streamed(self) -> str:
        if len(self._told) > 1:
            self._told = ["".join(self._told)]
        return self._told[0] if self._told else ""


class Turn:
    """What the model says between a prompt and its result.

    Args:
        parser_factory: makes a fresh parser.
        claim: see `Telling`.
    """

    def __init__(self, parser_factory: Callable[[], Parser], claim: Callable[[str], str]) -> None:
        self.blocks: list[Block] = []
        self.is_over = False
        self.is_aborted = False
        self.telling = Telling(parser_factory(), claim)
        self.message: str | None = None  # id of the API message that is under way
        self._make = parser_factory
        self._claim = claim
        self._abandoned: set[str] = set()
        self._open: int | None = None  # index of the block that is being streamed
        self._dirty = False  # what was told no longer follows from the blocks
        self._out: list[Event | Retracted] = []

    def events(self) -> list[Event | Retracted]:
        """What there is to tell since the last time."""
        if self._dirty:
            self._dirty = False
            fresh = self._told_by(self.blocks)
            self._out += retold(self.telling, fresh)
            self.telling = fresh
        out, self._out = self._out, []
        return out

    def start_message(self, message: str, *, resumes: bool) -> None:
        """An API message begins.

        What was streamed of another one, and never came whole, does not count. One whose stream was abandoned is told
        anew from its beginning, unless this one resumes it.
        """
        gone = [each for each in self.blocks if not each.is_whole or (each.message in self._abandoned and not resumes)]
        self._drop(gone)
        self._abandoned.clear()
        for block in self.blocks:
            block.again = block.again or block.message == message
        self.message, self._open = message, None

    def keep(self) -> None:
        """The CLI asks the model to go on: what came whole of a broken stream stays said, and counts."""
        self._abandoned.clear()

    def open_block(self, index: int) -> None:
        """Block `index` of the message under way begins."""
        self._open = index

    def close_block(self) -> None:
        """The block that was begun last is over."""
        self._open = None

    def add(self, kind: BlockKind, index: int, text: str) -> Block | None:
        """A delta; gives its block, unless it only repeats one that is whole."""
        message = self.message or ""
        block = next((b for b in self.blocks if b.message == message and b.index == index and b.kind == kind), None)
        if block is not None and block.is_whole:
            return None
        block = block or self._new(message, index, kind)
        block.add(text)
        self._grow(block, text)
        return block

    def settle(self, kind: BlockKind, text: str, uuid: str | None) -> Block:
        """A block came whole."""
        message = self.message or ""
        block = self._match(message, kind, text)
        if block is None:
            index = 1 + max((each.index for each in self.blocks if each.message == message), default=-1)
            block = self._new(message, index, kind)
        block.again = False
        missing = block.settle(text, uuid)
        if missing is not None:
            self._grow(block, missing)
        elif kind == TEXT:  # thinking is shown in other words sometimes
            self._dirty = True
        return block

    def retract(self, ids: Collection[str]) -> None:
        """Whole messages with these uuids, or of API messages with these ids, do not count."""
        self._drop([each for each in self.blocks if each.uuid in ids or each.message in ids])

    def abandon(self, message: str | None, index: int) -> None:
        """The stream of an API message broke; its blocks from `index` on do not count."""
        message = message or self.message or ""
        self._drop([each for each in self.blocks if each.message == message and each.index >= index])
        if not self.is_aborted:
            self._abandoned.add(message)

    def finish(self) -> None:
        """The turn is over."""
        self._drop([each for each in self.blocks if not each.is_whole])
        self._out = [*self.events(), *self.telling.told(self.telling.finish())]
        self.is_over = True

    def shown_of(self, block: Block) -> list[Part]:
        """What a block shows: text, thinking and whole calls, as if the reply ended behind it."""
        if block not in self.blocks:
            return []
        at = self.blocks.index(block)
        before, after = (self._closed(self.blocks[:end]) for end in (at, at + 1))
        _, kept, come = difference(before, after)
        if kept:
            first = Part(come[0].kind)
            first.add(come[0].text[kept:])
            come = [first, *come[1:]]
        return come

    def calls(self) -> list[Part]:
        """The calls so far, with the ids under which they are known outside."""
        return [part for part in self.telling.parts if part.kind == CALL]

    def _closed(self, blocks: list[Block]) -> list[Part]:
        telling = self._told_by([each for each in blocks if each.kind == TEXT], is_silent=True)
        whole = [part for part in telling.parts if part.kind == CALL and part.call is not None]
        telling.finish()
        for part, known in zip((each for each in telling.parts if each.kind == CALL), self.calls(), strict=False):
            part.id = known.id
        return [part for part in telling.parts if part.kind != CALL or (part in whole and part.id)]

    def _told_by(self, blocks: list[Block], *, is_silent: bool = False) -> Telling:
        telling = Telling(self._make(), self._claim, is_silent=is_silent)
        for block in blocks:
            if not block.is_held:
                (telling.take if block.kind == TEXT else telling.think)(block.text)
        return telling

    def _new(self, message: str, index: int, kind: BlockKind) -> Block:
        block = Block(message, index, kind)
        last = self._last_text()
        block.is_held = kind == TEXT and last is not None and last.message != message
        self.blocks.append(block)
        return block

    def _last_text(self, before: Block | None = None) -> Block | None:
        end = len(self.blocks) if before is None else self.blocks.index(before)
        return next((each for each in reversed(self.blocks[:end]) if each.kind == TEXT), None)

    def _grow(self, block: Block, text: str) -> None:
        if block.is_held:
            self._try_join(block)
        elif block is not self.blocks[-1]:
            self._dirty = self._dirty or bool(text)
        elif not self._dirty:
            take = self.telling.take if block.kind == TEXT else self.telling.think
            self._out += self.telling.told(take(text))

    def _try_join(self, block: Block) -> None:
        last = self._last_text(block)
        if last is not None:
            join = join_of(last.text, block.written, final=block.is_whole)
            if join is None:
                return
            block.joined, block.skipped = last, join.skipped
            if join.kept < len(last.text):
                last.kept = last.skipped + join.kept
                self._dirty = True
        block.is_held = False
        self._grow(block, block.text)

    def _match(self, message: str, kind: BlockKind, text: str) -> Block | None:
        """The block that `text` is the whole of."""
        own = [each for each in self.blocks if each.message == message and each.kind == kind]
        again = [each for each in own if each.again and each.written == text] or [each for each in own if each.again]
        if again:
            return again[0]
        streamed = [each for each in own if not each.is_whole]
        being_streamed = [each for each in streamed if each.index == self._open]
        told = [each for each in streamed if text.startswith(each.written)]
        return next(iter([*being_streamed, *told, *streamed]), None)

    def _drop(self, blocks: list[Block]) -> None:
        if not blocks:
            return
        self._dirty = self._dirty or any(each.text and not each.is_held for each in blocks)
        self.blocks = [each for each in self.blocks if each not in blocks]
        for block in blocks:
            if block.joined is not None and block.joined.kept is not None:
                block.joined.kept, self._dirty = None, True  # what began anew in its place is gone
        for block in self.blocks:
            if block.joined in blocks:
                self._dirty = self._dirty or block.skipped > 0
                block.joined, block.skipped = None, 0
