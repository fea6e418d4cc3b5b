"""The streaming parser: turns a reply, in chunks of any size, into events. Pure.

Owns the text of the reply, the model's thinking in it, and where calls begin. Must not know who runs calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Final

from pilothouse.errors import UsageError
from pilothouse.events import (
    ParserEvent,
    ReplyFinished,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
)
from pilothouse.tools.xml.call_reader import (
    MAX_ERROR_CHARS,
    CallIds,
    CallReader,
    ParserConfig,
    ToolCatalog,
    ToolDefinitions,
)
from pilothouse.tools.xml.scanner import CodeSpanTracker, Tag, TagScanner, TextBuffer, make_tag_scanner

DEFAULT_MAX_CALL_CHARS: Final = 16 * 1024 * 1024

_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVENTED_RESULT: Final = "A result must not be made up: results come from the tools, in the next message"
_BARE_TAG: Final = "tool_use"
_BARE_HEAD: Final = 512  # characters after a bare tag within which the tool's name must come
_BARE_NAME: Final = re.compile(
    r"\s*(?:<\s*tool_call_id\s*>[^<>]*<\s*/\s*tool_call_id\s*>\s*)?<\s*tool_name\s*>\s*([^<>]*[^<>\s])\s*<\s*/",
    re.IGNORECASE,
)
_MISSING_SUFFIX: Final = (
    "The call of {name} was not run: its outer tag lacks the suffix. Write the call again with the suffix in both "
    "outer tags, as the rules say. A call that is only to be shown stands in a code fence"
)


class StreamParser:
    """Reads one reply of the model.

    Text, thinking and calls are emitted in the order of the reply, each as soon as it is certain. The chunks in which
    the reply arrives affect only where deltas are cut. Nothing is lost: every character is in a delta of text or
    thinking, or in the `raw` of a call or an error, except `<thinking>` tags and the part of a call beyond the limit.
    The time is linear in the length of the reply.

    What counts as a call:

    - A `<tool_use>` tag; with a nonce only `<tool_use-NONCE>`, so that no text that the model quotes can be a call.
      See `pilothouse.tools.xml.call_reader` for its content. In all tags of the protocol, space, letter case,
      attributes (never read) and a namespace prefix make no difference.
    - Not in a code fence, inline code or a quoted line: that is an example, and stays text. Only with a nonce, calls
      that are the first thing in a fence are calls; the lines of the fence stay text. Comments and CDATA sections
      hide nothing outside of a call.
    - `<thinking>` up to the next `</thinking>`, or to the end of the reply, is thinking, whatever it contains.
    - With `refuse_bare`, a `<tool_use>` tag without the nonce that begins a line and is followed by the name of a
      known tool is an error of code `missing_suffix`, and never a call. Anywhere else it is text.
    - A result that the model wrote itself (`<tool_result>` after a call; with a nonce, `<tool_result-NONCE>`
      anywhere) is an error of code `invented_result`, up to its end tag or the end of the reply.

    Ids: a call has the id that the model gave, if that is new and comes before the name; else the parser makes one.

    Args:
        tools: the tools: `Tool` objects, definitions, or names with JSON Schemas. Parameter values are typed by the
            schema. With none, every name is accepted, and parameters are strings.
        nonce: suffix of the outer tags.
        mint: makes ids; by default `call_1`, `call_2`, …, skipping used ones.
        used: ids of earlier calls; the new ones are added. Share one set among the parsers of a session.
        max_call_chars: longest call, in characters; a longer one is an error, and the reply goes on. 16 Mi by
            default.
        refuse_bare: whether a call without the nonce is an error for the model; off by default.
        unwrap_text: whether `<text>` tags around prose are dropped; by default they are text.

    Raises:
        UsageError: the tools, the nonce or the limit cannot be used.
    """

    def __init__(
        self,
        tools: ToolDefinitions | None = None,
        nonce: str | None = None,
        *,
        mint: Callable[[], str] | None = None,
        used: set[str] | None = None,
        max_call_chars: int = DEFAULT_MAX_CALL_CHARS,
        refuse_bare: bool = False,
        unwrap_text: bool = False,
    ) -> None:
        if nonce is not None and not _NONCE.fullmatch(nonce):
            raise UsageError(f"a nonce has 1 to 64 letters, digits, - or _; got {nonce!r}")
        if max_call_chars < 1:
            raise UsageError(f"max_call_chars must be above 0; got {max_call_chars!r}")
        suffix = "" if nonce is None else f"-{nonce.lower()}"
        outer, result = f"tool_use{suffix}", f"tool_result{suffix}"
        self._ids = CallIds(mint, used)
        self._config = ParserConfig(outer, nonce is not None, ToolCatalog(tools), self._ids, max_call_chars)
        self._result = result
        self._buffer = TextBuffer()
        self._code_spans = CodeSpanTracker()
        self._events: list[ParserEvent] = []
        self._step: Callable[[], bool] = self._in_text
        self._call: CallReader | None = None
        self._any_call = False
        self._finished: ReplyFinished = ReplyFinished("stop")
        self._closed = False
        self._text_depth = 0
        self._pending_error: StringIO | None = None  # text that becomes an error when it has ended
        self._pending_size = 0
        self._fault: tuple[str | None, str, str] = (None, "", "")  # name, code and message of that error
        # Actions for tags in the text; each returns whether it consumed the tag.
        self._actions: dict[tuple[str, bool], Callable[[Tag], bool]] = {
            (outer, False): self._open_call,
            (result, False): self._open_result,
            ("thinking", False): self._open_thinking,
        }
        if refuse_bare and nonce is not None:
            self._actions[_BARE_TAG, False] = self._open_bare
        if unwrap_text:
            self._actions |= {("text", False): self._open_prose, ("text", True): self._close_prose}
        self._tags_in_fence = {outer, result} if nonce is not None else set[str]()
        self._scanner = make_tag_scanner(*dict.fromkeys(name for name, _ in self._actions))

    def feed(self, text: str) -> list[ParserEvent]:
        """Parse the next part of the reply.

        Returns:
            The events that are certain now.

        Raises:
            UsageError: the parser is closed.
        """
        if self._closed:
            raise UsageError("the parser is closed; make a new parser for each reply")
        self._buffer.add(text)
        return self._run()

    def close(self) -> list[ParserEvent]:
        """End the reply. Returns the remaining events, `ReplyFinished` last; a second call returns nothing."""
        if self._closed:
            return []
        self._closed = True
        self._buffer.is_final = True
        events = self._run()
        while self._call is not None:
            self._call.end()
            self._after_call()
            events += self._run()
        if self._pending_error is not None:
            self._finish_error()
            events += self._take_events()
        return [*events, self._finished]

    def _run(self) -> list[ParserEvent]:
        while self._step():
            pass
        return self._take_events()

    def _take_events(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _emit(self, event: ParserEvent) -> None:
        if isinstance(event, ToolCall):
            self._finished = ReplyFinished("tool-calls")
        self._events.append(event)

    def _in_text(self) -> bool:
        source = self._buffer
        at, tag = self._scanner.find(source.data, source.pos, source.is_final)
        self._emit_text(at)
        if tag is None:
            return False
        hidden = self._code_spans.is_hidden(first_in_fence=tag.local in self._tags_in_fence)
        action = None if hidden else self._actions.get((tag.local, tag.is_end))
        if action == self._open_bare and self._code_spans.is_at_line_start and self._waits_for_name(tag):
            return False
        if action is None or not action(tag):
            self._emit_text(tag.end)
        else:
            self._code_spans.start_line()
        return True

    def _emit_text(self, to: int) -> None:
        source = self._buffer
        if to > source.pos:
            self._code_spans.feed(source.data, source.pos, to)
            self._events.append(TextDelta(source.take(to)))

    # Calls

    def _open_call(self, tag: Tag) -> bool:
        self._any_call = True
        self._call = CallReader(self._buffer, self._config, self._emit, tag)
        self._step = self._in_call
        return True

    def _in_call(self) -> bool:
        if self._call is None:
            return False
        more = self._call.is_done or self._call.step()
        if self._call.is_done:
            self._after_call()
            return True
        return more

    def _after_call(self) -> None:
        self._call = None
        self._step = self._in_text

    # Thinking

    def _open_thinking(self, tag: Tag) -> bool:
        self._buffer.take(tag.end)
        if not tag.is_empty:
            self._step = self._in_thinking
        return True

    def _in_thinking(self) -> bool:
        tag = self._pass_to_end(make_tag_scanner("thinking"), lambda text: self._events.append(ThinkingDelta(text)))
        if tag is None:
            return False
        if tag.is_end:
            self._buffer.take(tag.end)
            self._step = self._in_text
        else:
            self._events.append(ThinkingDelta(self._buffer.take(tag.end)))
        return True

    def _pass_to_end(self, seeker: TagScanner, take: Callable[[str], object]) -> Tag | None:
        source = self._buffer
        at, tag = seeker.find(source.data, source.pos, source.is_final)
        if at > source.pos:
            take(source.take(at))
        return tag

    # Results that the model made up

    def _open_result(self, tag: Tag) -> bool:
        if not (self._any_call or self._tags_in_fence):
            return False
        self._start_error(tag, (None, "invented_result", _INVENTED_RESULT), self._in_result)
        if tag.is_empty:
            self._finish_error()
        return True

    def _in_result(self) -> bool:
        tag = self._pass_to_end(make_tag_scanner(self._result), self._add_to_error)
        if tag is None:
            return False
        self._add_to_error(self._buffer.take(tag.end))
        if tag.is_end:
            self._finish_error()
        return True

    # Calls without the nonce

    def _waits_for_name(self, tag: Tag) -> bool:
        rest = self._buffer.data[tag.end : tag.end + _BARE_HEAD]
        if self._buffer.is_final or len(rest) == _BARE_HEAD or _BARE_NAME.match(rest):
            return False
        return rest.lstrip()[:1] in ("", "<")

    def _open_bare(self, tag: Tag) -> bool:
        found = _BARE_NAME.match(self._buffer.data[tag.end : tag.end + _BARE_HEAD])
        name = found[1] if found is not None and not tag.is_empty else None
        if name is None or name not in self._config.catalog or not self._code_spans.is_at_line_start:
            return False
        self._start_error(tag, (name, "missing_suffix", _MISSING_SUFFIX.format(name=name)), self._in_bare)
        return True

    def _in_bare(self) -> bool:
        tag = self._pass_to_end(make_tag_scanner(_BARE_TAG, self._config.outer_tag), self._add_to_error)
        if tag is None:
            return False
        if tag.is_end:
            self._add_to_error(self._buffer.take(tag.end))
        self._finish_error()
        return True

    # Text that is held until it has ended, and then becomes an error

    def _start_error(self, tag: Tag, fault: tuple[str | None, str, str], step: Callable[[], bool]) -> None:
        self._pending_error, self._pending_size, self._fault, self._step = StringIO(), 0, fault, step
        self._add_to_error(self._buffer.take(tag.end))

    def _add_to_error(self, text: str) -> None:
        if self._pending_error is not None and self._pending_size <= self._config.max_call_chars:
            self._pending_error.write(text[: self._config.max_call_chars - self._pending_size])
            self._pending_size += len(text)

    def _finish_error(self) -> None:
        raw = self._pending_error.getvalue() if self._pending_error else ""
        if self._pending_size > self._config.max_call_chars:
            raw = raw[:MAX_ERROR_CHARS]
        self._events.append(ToolCallError(self._ids.next_id(), *self._fault, raw))
        self._pending_error = None
        self._step = self._in_text

    # Wrapped prose

    def _open_prose(self, tag: Tag) -> bool:
        self._buffer.take(tag.end)
        self._text_depth += not tag.is_empty
        return True

    def _close_prose(self, tag: Tag) -> bool:
        if not self._text_depth:
            return False
        self._text_depth -= 1
        self._buffer.take(tag.end)
        return True


def merge_deltas(events: list[ParserEvent]) -> list[ParserEvent]:
    """Merge neighbouring deltas of the same kind (and the same call)."""
    merged: list[ParserEvent] = []
    parts: list[str] = []
    for event in events:
        is_delta = isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta)
        if is_delta and parts and _is_same_delta(merged[-1], event):
            parts.append(event.text)
            continue
        _join_texts(merged, parts)
        parts = [event.text] if is_delta else []
        merged.append(event)
    _join_texts(merged, parts)
    return merged


def _is_same_delta(one: ParserEvent, other: ParserEvent) -> bool:
    return type(one) is type(other) and getattr(one, "id", None) == getattr(other, "id", None)


def _join_texts(merged: list[ParserEvent], parts: list[str]) -> None:
    if len(parts) > 1:
        last = merged[-1]
        text = "".join(parts)
        if isinstance(last, ToolCallDelta):
            merged[-1] = ToolCallDelta(last.id, text)
        elif isinstance(last, TextDelta | ThinkingDelta):
            merged[-1] = type(last)(text)


def parse(text: str, tools: ToolDefinitions | None = None, nonce: str | None = None) -> list[ParserEvent]:
    """Parse a whole reply, and merge neighbouring deltas. Arguments and errors as with `StreamParser`."""
    parser = StreamParser(tools, nonce)
    return merge_deltas([*parser.feed(text), *parser.close()])
