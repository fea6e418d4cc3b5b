"""From the CLI's messages to the events of the text protocol, and to messages without its markup. Pure.

Owns which of the messages are the model's own words, and what a reader of the stream sees in place of markup. Deltas
are told as they come and may be withdrawn; the whole messages are the truth, and only at the result it is known which
calls count. (S16, S29, S33; facts of CLI 2.1.330)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from pilothouse.messages import (
    AssistantMessage,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Message,
    MessageStart,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    UserMessage,
)
from pilothouse.messages import ThinkingDelta as ThinkingPiece
from pilothouse.messages.blocks import ContentBlock
from pilothouse.messages.events import TextDelta as TextPiece
from pilothouse.tools.xml.events import Event, TextDelta, ThinkingDelta, ToolCall, ToolCallError
from pilothouse.tools.xml.telling import CALL, TEXT, THINKING, Parser, Part, Retracted
from pilothouse.tools.xml.turn import Block, Turn

_SYNTHETIC = "<synthetic>"  # the model of messages that the CLI wrote itself
_UNREADABLE = "unreadable"


class Reply(Struct, frozen=True):
    """What a turn came to.

    Attributes:
        calls: what to run, or to refuse with the message of the error, in this order. Empty if the turn failed or was
            interrupted: then nothing may run.
        text: the answer, without markup and reasoning. (S30)
        reasoning: what the model thought, natively or between tags.
        failed: whether the turn failed or was interrupted.
    """

    calls: tuple[ToolCall | ToolCallError, ...] = ()
    text: str = ""
    reasoning: str = ""
    failed: bool = False


class ReplyReader:
    """Reads one conversation, turn after turn.

    Use either `read` or `rewrite` for a message, not both; then `end` at the result.

    Args:
        parser_factory: makes a parser for one turn, such as `lambda: StreamParser(tools=tools, nonce=nonce)`.
        full_name: what `rewrite` calls a tool; by default as the model does.
    """

    def __init__(self, parser_factory: Callable[[], Parser], full_name: Callable[[str], str] = str) -> None:
        self._make = parser_factory
        self._full_name = full_name
        self._ids: set[str] = set()
        self._turn = Turn(parser_factory, self._claim)
        self._view = _View(self._full_name)

    def read(self, message: Message) -> list[Event | Retracted]:
        """The events of the next message.

        A call may still be `Retracted` until the result; `Finish` comes with a result that is no error.
        """
        turn = self._current(message)
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._read_stream(turn, message)
            case AssistantMessage() if _is_spoken(message):
                self._read_whole(turn, message)
            case UserMessage(parent_tool_use_id=None):
                ids = {*message.retracted_message_uuids, *filter(None, [message.refused_message_id])}
                turn.retract(ids)
                if message.is_synthetic:
                    turn.keep()
            case ResultMessage() if not turn.is_over:
                turn.finish()
                failed = message.is_error or turn.is_aborted
                return [*turn.events(), *([] if failed else [turn.telling.end])]
            case _:
                return []
        return turn.events()

    def end(self, result: ResultMessage | None = None) -> Reply:
        """What the turn came to.

        Args:
            result: its result; None if the stream ended without one, which counts as a failure.
        """
        turn = self._turn
        if not turn.is_over:
            turn.finish()
            turn.events()
        parts = turn.telling.parts
        failed = result is None or result.is_error or turn.is_aborted
        calls = [] if failed else [call for part in turn.calls() if (call := part.known_call())]
        text, reasoning = ("".join([part.text for part in parts if part.kind == kind]) for kind in (TEXT, THINKING))
        return Reply(tuple(calls), text, reasoning, failed)

    def text_of(self, message: AssistantMessage) -> str:
        """The text of a message without markup; of one that was read in this turn, or of any other as it stands."""
        if not _is_spoken(message):
            return message.text
        blocks = self._view.blocks.get(_key(message))
        if blocks is None:
            return _text(self._alone(message.text))
        return "".join([self._text_of(block) for block in blocks])

    def rewrite(self, message: Message) -> list[Message]:
        """The next message as a reader without a protocol would see it; raw lines stay as they came.

        Deltas lose the markup, and are left out when nothing remains; whole messages have `ToolUseBlock`s in place of
        calls, and `ThinkingBlock`s in place of tagged reasoning. Calls that turn out broken only at the end come in a
        message of their own before the result.
        """
        events = self.read(message)
        if any(isinstance(event, Retracted) for event in events):
            self._view.forget_early()
        match message:
            case StreamEvent(event=ContentBlockStart() as begun, parent_tool_use_id=None) if _begins_with_text(begun):
                start = structs.replace(begun, content_block=TextBlock(""))
                return [structs.replace(message, event=start), *self._rewrite_delta(message, events)]
            case StreamEvent(event=ContentBlockDelta(delta=TextPiece()), parent_tool_use_id=None):
                return list(self._rewrite_delta(message, events))
            case AssistantMessage() if _is_spoken(message):
                return list(self._rewrite_whole(message, events))
            case ResultMessage():
                return list(self._rewrite_result(message))
            case _:
                return [message]

    def _current(self, message: Message) -> Turn:
        if self._turn.is_over and isinstance(message, StreamEvent | AssistantMessage | ResultMessage):
            self._turn = Turn(self._make, self._claim)
            self._view = _View(self._full_name)
        return self._turn

    def _claim(self, given: str) -> str:
        # A model numbers its calls anew in each answer, and in each attempt at one.
        while not given or given in self._ids:
            given = f"call_{secrets.token_hex(8)}"
        self._ids.add(given)
        return given

    def _read_stream(self, turn: Turn, message: StreamEvent) -> None:
        event = message.event
        named = event.message.id if isinstance(event, MessageStart) else None
        api_id = message.api_message_id or named or turn.message or ""
        if isinstance(event, MessageStart) or api_id != turn.message:
            turn.start_message(api_id, resumes=message.resume_reason is not None)
        block = None
        match event:
            case ContentBlockStart(index=index, content_block=TextBlock(text=text)):
                turn.open_block(index)
                block = turn.add("text", index, text) if text else None
            case ContentBlockStart(index=index):
                turn.open_block(index)
            case ContentBlockDelta(index=index, delta=TextPiece(text=text)):
                block = turn.add("text", index, text)
            case ContentBlockDelta(index=index, delta=ThinkingPiece(thinking=text)):
                turn.add("thinking", index, text)
            case ContentBlockStop():
                turn.close_block()
            case _:
                pass
        self._view.stream(message, block)
        if message.abandoned_blocks is not None:
            turn.abandon(message.abandoned_blocks.api_message_id, message.abandoned_blocks.from_block_index)

    def _read_whole(self, turn: Turn, message: AssistantMessage) -> None:
        if _key(message) in self._view.blocks:
            return  # told again, word for word
        turn.retract({*message.supersedes, *filter(None, [message.refused_message_id])})
        api_id = message.message_id or turn.message or _key(message)
        if api_id != turn.message:
            turn.start_message(api_id, resumes=message.resume_reason is not None)
        turn.is_aborted = turn.is_aborted or message.aborted
        blocks: list[Block] = []
        for part in message.content:
            if isinstance(part, TextBlock):
                blocks.append(turn.settle("text", part.text, message.uuid))
            elif isinstance(part, ThinkingBlock):
                turn.settle("thinking", part.thinking, message.uuid)
        self._view.blocks[_key(message)] = blocks
        self._view.messages.append(message)

    def _rewrite_delta(self, message: StreamEvent, events: list[Event | Retracted]) -> Iterator[Message]:
        for event in events:
            if isinstance(event, TextDelta):
                if text := self._view.fresh(event.text):
                    yield _with(message, TextPiece(text))
            elif isinstance(event, ThinkingDelta):
                yield _with(message, ThinkingPiece(event.text))

    def _rewrite_whole(self, message: AssistantMessage, events: list[Event | Retracted]) -> Iterator[Message]:
        told = "".join([event.text for event in events if isinstance(event, TextDelta)])
        blocks = iter(self._view.blocks.get(_key(message), ()))
        content: list[ContentBlock] = []
        early: list[str] = []
        for each in message.content:
            block = next(blocks, None) if isinstance(each, TextBlock) else None
            if block is None:
                content.append(each)
                continue
            shown = self._turn.shown_of(block)
            text = self._view.texts[block] = _text(shown)
            rest, delta = self._view.rest_of(block, text)
            early.append(rest)
            if rest and delta is not None:
                yield _with(delta, TextPiece(rest))
            content += [self._view.show(part) for part in shown]
        self._view.note_early("".join(early), told)
        yield structs.replace(message, message=structs.replace(message.message, content=content))
        self._view.last = message

    def _rewrite_result(self, result: ResultMessage) -> Iterator[Message]:
        turn, view = self._turn, self._view
        late = [part for part in turn.calls() if part.call is not None and part.id not in view.shown]
        if late and view.last is not None and not result.is_error and not turn.is_aborted:
            body = structs.replace(view.last.message, content=[view.show(part) for part in late])
            yield structs.replace(view.last, message=body, uuid=None, supersedes=())
        if result.is_error or not result.result:
            yield result
            return
        last = next((each for each in reversed(turn.blocks) if each.kind == "text"), None)
        same = last is not None and last.written == result.result
        text = self._text_of(last) if last is not None and same else _text(self._alone(result.result))
        yield structs.replace(result, result=text)

    def _text_of(self, block: Block) -> str:
        known = self._view.texts.get(block)
        return _text(self._turn.shown_of(block)) if known is None else known

    def _alone(self, text: str) -> list[Part]:
        turn = Turn(self._make, lambda given: given or _UNREADABLE)
        turn.message = ""
        return turn.shown_of(turn.settle("text", text, None))


class _View:
    """What the reader of the rewritten messages has seen of a turn."""

    def __init__(self, full_name: Callable[[str], str]) -> None:
        self._full_name = full_name
        self.blocks: dict[str, list[Block]] = {}  # of text, by whole message
        self.messages: list[AssistantMessage] = []  # kept, because those without uuid are known by their identity
        self.texts: dict[Block, str] = {}  # what blocks show
        self.shown: set[str] = set()  # calls
        self.last: AssistantMessage | None = None
        self._delta: StreamEvent | None = None
        self._block: Block | None = None  # the one of `_delta`
        self._streamed: list[str] = []  # what was shown of it
        self._early = ""  # shown before the parser let go of it

    def stream(self, message: StreamEvent, block: Block | None) -> None:
        """A delta of `block` comes."""
        if block is not None:
            if block is not self._block:
                self._streamed = []
            self._delta, self._block = message, block

    def fresh(self, text: str) -> str:
        """What of a piece of text was not shown yet."""
        if self._early:
            if self._early.startswith(text):
                self._early = self._early[len(text) :]
                return ""
            text = text.removeprefix(self._early)
            self._early = ""
        self._streamed.append(text)
        return text

    def rest_of(self, block: Block, text: str) -> tuple[str, StreamEvent | None]:
        """What of the text of a block no delta showed, and the delta to show it with, if it was streamed."""
        if block is not self._block:
            return text, None
        streamed = "".join(self._streamed)
        rest = text[len(streamed) :] if text.startswith(streamed) else ""
        self._streamed.append(rest)
        return rest, self._delta

    def note_early(self, shown: str, told: str) -> None:
        """Whole blocks showed `shown` more; the parser told `told` of it, and may still hold the rest."""
        pending = self._early + shown
        self._early = pending[len(told) :] if pending.startswith(told) else ""

    def forget_early(self) -> None:
        """What was shown early does not hold any more."""
        self._early = ""

    def show(self, part: Part) -> ContentBlock:
        """A part as a block of a message."""
        if part.kind == CALL:
            self.shown.add(part.id)
            call = part.known_call()
            if isinstance(call, ToolCall):
                return ToolUseBlock(call.id, self._full_name(call.name), dict(call.arguments))
            raw = "" if call is None else call.raw
            name = self._full_name((call and call.name) or _UNREADABLE)
            return ToolUseBlock(part.id, name, {_UNREADABLE: raw})
        return TextBlock(part.text) if part.kind == TEXT else ThinkingBlock(part.text)


def lacks_suffix(reply: Reply) -> bool:
    """Whether a call of the reply was refused because it lacks the nonce."""
    return any(isinstance(call, ToolCallError) and call.code == "missing_suffix" for call in reply.calls)


def _is_spoken(message: AssistantMessage) -> bool:
    """Whether the model of the conversation itself said this, now."""
    foreign = message.parent_tool_use_id or message.agent_id or message.subagent_type or message.local_command_source
    failed = message.is_api_error_message or message.error is not None
    return not (foreign or failed or message.historical or message.model == _SYNTHETIC)


def _begins_with_text(event: ContentBlockStart) -> bool:
    return isinstance(event.content_block, TextBlock) and event.content_block.text != ""


def _key(message: AssistantMessage) -> str:
    return message.uuid or f"object {id(message)}"


def _text(parts: list[Part]) -> str:
    return "".join([part.text for part in parts if part.kind == TEXT])


def _with(message: StreamEvent, delta: TextPiece | ThinkingPiece) -> StreamEvent:
    assert isinstance(message.event, ContentBlockDelta | ContentBlockStart)
    return structs.replace(message, event=ContentBlockDelta(delta, message.event.index))
