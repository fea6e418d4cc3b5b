"""Turns the CLI's messages into events of the text protocol, and into messages without its markup. Pure.

Owns which messages are the model's own output, and what a reader of the stream sees in place of markup. Deltas are
emitted as they arrive and may be retracted; whole messages are authoritative, and only the result settles which
calls count.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, structs

from pilothouse.events import ReplyEvent, TextDelta, TextRetracted, ThinkingDelta, ToolCall, ToolCallError
from pilothouse.messages import (
    AssistantMessage,
    ContentBlock,
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
    WireTextDelta,
    WireThinkingDelta,
)
from pilothouse_models.xml.parser import StreamParser
from pilothouse_models.xml.prompt import ToolDefinitions, read_schemas
from pilothouse_models.xml.turn_state import CALL, TEXT, THINKING, ReplyPart, TurnBlock, TurnState

_SYNTHETIC = "<synthetic>"  # the model of messages that the CLI wrote itself
_UNREADABLE = "unreadable"


class ParsedReply(Struct, frozen=True):
    """The outcome of a turn: answer and reasoning without markup, and calls to run or to answer with an error.

    A turn that failed or was interrupted (`is_failed`) has no calls: none may run.
    """

    calls: tuple[ToolCall | ToolCallError, ...] = ()
    text: str = ""
    thinking: str = ""
    is_failed: bool = False


class ReplyReader:
    """Reads one conversation, turn after turn.

    Use either `read` or `rewrite` for a message, not both; then `end` at the result.

    Args:
        tools: the tools, as for `StreamParser`.
        nonce: suffix of the outer tags. A call of a known tool without it is an error for the model, once.
        used_ids: ids of earlier calls; new ones get others.
        full_name: makes the tool name that `rewrite` shows; by default the model's name.

    Attributes:
        knows_suffix: whether the model has seen an error about a missing nonce: later calls without one are text.
    """

    def __init__(
        self,
        tools: ToolDefinitions | None = None,
        nonce: str | None = None,
        *,
        used_ids: Iterable[str] = (),
        full_name: Callable[[str], str] = str,
    ) -> None:
        self.knows_suffix = False
        self._schemas = read_schemas(tools)
        self._nonce = nonce
        self._full_name = full_name
        self._ids: set[str] = set(used_ids)
        self._turn = TurnState(self._make_parser, self._ids)
        self._rewrite_state = _RewriteState(self._full_name)

    def read(self, message: Message) -> list[ReplyEvent]:
        """Return the events of the next message.

        A call may still be retracted (`TextRetracted`) until the result; `ReplyFinished` comes with one that is a
        success.
        """
        turn = self._get_turn(message)
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._read_stream(turn, message)
            case AssistantMessage() if _is_from_model(message):
                self._read_complete(turn, message)
            case UserMessage(parent_tool_use_id=None):
                ids = {*message.retracted_message_uuids, *filter(None, [message.refused_message_id])}
                turn.retract(ids)
                if message.is_synthetic:
                    turn.keep_partial()
            case ResultMessage() if not turn.is_finished:
                events = turn.finish()
                return events if message.is_error or turn.is_aborted else [*events, turn.parser_run.finished]
            case _:
                return []
        return turn.take_events()

    def end(self, result: ResultMessage | None = None) -> ParsedReply:
        """End the turn, and return its outcome; a stream that ended without a result counts as a failure."""
        turn = self._turn
        if not turn.is_finished:
            turn.finish()
        parts = turn.parser_run.parts
        failed = result is None or result.is_error or turn.is_aborted
        calls = [] if failed else [call for part in turn.parser_run.calls() if (call := part.get_call())]
        if any(isinstance(call, ToolCallError) and call.code == "missing_suffix" for call in calls):
            self.knows_suffix = True
        text, reasoning = ("".join([part.text for part in parts if part.kind == kind]) for kind in (TEXT, THINKING))
        return ParsedReply(tuple(calls), text, reasoning, failed)

    def rewrite(self, message: Message) -> list[Message]:
        """Return the next message as a reader without the protocol would see it; raw lines stay unchanged.

        Deltas lose the markup, and are left out when nothing remains; whole messages have `ToolUseBlock`s in place of
        calls, and `ThinkingBlock`s in place of tagged reasoning. Calls that turn out broken only at the end come in a
        separate message before the result.
        """
        events = self.read(message)
        if any(isinstance(event, TextRetracted) for event in events):
            self._rewrite_state.discard_unparsed()
        match message:
            case StreamEvent(
                event=ContentBlockStart(content_block=TextBlock(text=text)) as begun, parent_tool_use_id=None
            ) if text:
                start = structs.replace(begun, content_block=TextBlock(""))
                return [structs.replace(message, event=start), *self._rewrite_delta(message, events)]
            case StreamEvent(event=ContentBlockDelta(delta=WireTextDelta()), parent_tool_use_id=None):
                return list(self._rewrite_delta(message, events))
            case AssistantMessage() if _is_from_model(message):
                return list(self._rewrite_complete(message, events))
            case ResultMessage():
                return list(self._rewrite_result(message))
            case _:
                return [message]

    def _get_turn(self, message: Message) -> TurnState:
        if self._turn.is_finished and isinstance(message, StreamEvent | AssistantMessage | ResultMessage):
            self._turn = TurnState(self._make_parser, self._ids)
            self._rewrite_state = _RewriteState(self._full_name)
        return self._turn

    def _make_parser(self, used_ids: set[str]) -> StreamParser:
        refuse_bare = bool(self._schemas) and not self.knows_suffix
        return StreamParser(self._schemas, self._nonce, mint=_make_call_id, used=used_ids, refuse_bare=refuse_bare)

    def _read_stream(self, turn: TurnState, message: StreamEvent) -> None:
        event = message.event
        named = event.message.id if isinstance(event, MessageStart) else None
        api_id = message.api_message_id or named or turn.message_id or ""
        if isinstance(event, MessageStart) or api_id != turn.message_id:
            turn.start_message(api_id, resumes=message.resume_reason is not None)
        block = None
        match event:
            case ContentBlockStart(index=index, content_block=begun):
                turn.open_block(index)
                if isinstance(begun, TextBlock) and begun.text:
                    block = turn.add("text", index, begun.text)
            case ContentBlockDelta(index=index, delta=WireTextDelta(text=text)):
                block = turn.add("text", index, text)
            case ContentBlockDelta(index=index, delta=WireThinkingDelta(thinking=text)):
                turn.add("thinking", index, text)
            case ContentBlockStop():
                turn.open_block(None)
            case _:
                pass
        self._rewrite_state.record_delta(message, block)
        if message.abandoned_blocks is not None:
            turn.abandon(message.abandoned_blocks.api_message_id, message.abandoned_blocks.from_block_index)

    def _read_complete(self, turn: TurnState, message: AssistantMessage) -> None:
        if message.uuid is not None and message.uuid in self._rewrite_state.blocks:
            return  # an exact repetition
        turn.retract({*message.supersedes, *filter(None, [message.refused_message_id])})
        api_id = message.message_id or turn.message_id or message.uuid or ""
        if api_id != turn.message_id:
            turn.start_message(api_id, resumes=message.resume_reason is not None)
        turn.is_aborted = turn.is_aborted or message.aborted
        blocks: list[TurnBlock] = []
        for part in message.content:
            if isinstance(part, TextBlock):
                blocks.append(turn.complete_block("text", part.text, message.uuid))
            elif isinstance(part, ThinkingBlock):
                turn.complete_block("thinking", part.thinking, message.uuid)
        self._rewrite_state.blocks[message.uuid] = blocks

    def _rewrite_delta(self, message: StreamEvent, events: list[ReplyEvent]) -> Iterator[Message]:
        for event in events:
            if isinstance(event, TextDelta):
                if text := self._rewrite_state.take_unseen(event.text):
                    yield _replace_delta(message, WireTextDelta(text))
            elif isinstance(event, ThinkingDelta):
                yield _replace_delta(message, WireThinkingDelta(event.text))

    def _rewrite_complete(self, message: AssistantMessage, events: list[ReplyEvent]) -> Iterator[Message]:
        parsed = "".join([event.text for event in events if isinstance(event, TextDelta)])
        blocks = iter(self._rewrite_state.blocks.get(message.uuid, ()))
        content: list[ContentBlock] = []
        early: list[str] = []
        for each in message.content:
            block = next(blocks, None) if isinstance(each, TextBlock) else None
            if block is None:
                content.append(each)
                continue
            shown = self._turn.get_visible_parts(block)
            rest, delta = self._rewrite_state.take_remaining(block, _join_text(shown))
            early.append(rest)
            if rest and delta is not None:
                yield _replace_delta(delta, WireTextDelta(rest))
            content += [self._rewrite_state.to_block(part) for part in shown]
        self._rewrite_state.record_shown("".join(early), parsed)
        yield structs.replace(message, message=structs.replace(message.message, content=content))
        self._rewrite_state.last_message = message

    def _rewrite_result(self, result: ResultMessage) -> Iterator[Message]:
        turn, view = self._turn, self._rewrite_state
        late = [
            part for part in turn.parser_run.calls() if part.call is not None and part.id not in view.shown_call_ids
        ]
        if late and view.last_message is not None and not result.is_error and not turn.is_aborted:
            body = structs.replace(view.last_message.message, content=[view.to_block(part) for part in late])
            yield structs.replace(view.last_message, message=body, uuid=None, supersedes=())
        if result.is_error or not result.result:
            yield result
            return
        last = next((each for each in reversed(turn.blocks) if each.kind == "text"), None)
        is_last = last is not None and last.text == result.result
        shown = turn.get_visible_parts(last) if last and is_last else self._parse_alone(result.result)
        yield structs.replace(result, result=_join_text(shown))

    def _parse_alone(self, text: str) -> list[ReplyPart]:
        turn = TurnState(self._make_parser, set())
        turn.message_id = ""
        return turn.get_visible_parts(turn.complete_block("text", text, None))


class _RewriteState:
    """The part of a turn that the reader of the rewritten messages has seen."""

    def __init__(self, full_name: Callable[[str], str]) -> None:
        self._full_name = full_name
        self.blocks: dict[str | None, list[TurnBlock]] = {}  # text blocks of whole messages; None: of the last one
        self.shown_call_ids: set[str] = set()
        self.last_message: AssistantMessage | None = None
        self._delta: StreamEvent | None = None
        self._block: TurnBlock | None = None  # the block of `_delta`
        self._streamed: list[str] = []  # the text of it that was shown
        self._unparsed = ""  # shown before the parser emitted it

    def record_delta(self, message: StreamEvent, block: TurnBlock | None) -> None:
        if block is not None:
            if block is not self._block:
                self._streamed = []
            self._delta, self._block = message, block

    def take_unseen(self, text: str) -> str:
        """Return the part of a text that was not shown yet."""
        if self._unparsed:
            if self._unparsed.startswith(text):
                self._unparsed = self._unparsed[len(text) :]
                return ""
            text = text.removeprefix(self._unparsed)
            self._unparsed = ""
        self._streamed.append(text)
        return text

    def take_remaining(self, block: TurnBlock, text: str) -> tuple[str, StreamEvent | None]:
        """Return the text of a block that no delta showed, and if the block was streamed, the delta to show it with."""
        if block is not self._block:
            return text, None
        streamed = "".join(self._streamed)
        rest = text[len(streamed) :] if text.startswith(streamed) else ""
        self._streamed.append(rest)
        return rest, self._delta

    def record_shown(self, text: str, parsed: str) -> None:
        """Record that whole blocks showed `text`; the parser emitted `parsed` of it, and may still hold the rest."""
        pending = self._unparsed + text
        self._unparsed = pending[len(parsed) :] if pending.startswith(parsed) else ""

    def discard_unparsed(self) -> None:
        """Discard text that was shown early and no longer holds."""
        self._unparsed = ""

    def to_block(self, part: ReplyPart) -> ContentBlock:
        if part.kind == CALL:
            self.shown_call_ids.add(part.id)
            call = part.get_call()
            if isinstance(call, ToolCall):
                return ToolUseBlock(call.id, self._full_name(call.name), dict(call.input))
            raw = "" if call is None else call.raw
            name = self._full_name((call and call.name) or _UNREADABLE)
            return ToolUseBlock(part.id, name, {_UNREADABLE: raw})
        return TextBlock(part.text) if part.kind == TEXT else ThinkingBlock(part.text)


def _make_call_id() -> str:
    # Not a counter: the calls of all replies and requests of a conversation are in one history.
    return f"call_{secrets.token_hex(8)}"


def _is_from_model(message: AssistantMessage) -> bool:
    """Whether the model of this conversation produced the message, in this turn."""
    foreign = message.parent_tool_use_id or message.agent_id or message.subagent_type or message.local_command_source
    failed = message.is_api_error_message or message.error is not None
    return not (foreign or failed or message.historical or message.model == _SYNTHETIC)


def _join_text(parts: list[ReplyPart]) -> str:
    return "".join([part.text for part in parts if part.kind == TEXT])


def _replace_delta(message: StreamEvent, delta: WireTextDelta | WireThinkingDelta) -> StreamEvent:
    assert isinstance(message.event, ContentBlockDelta | ContentBlockStart)
    return structs.replace(message, event=ContentBlockDelta(delta, message.event.index))
