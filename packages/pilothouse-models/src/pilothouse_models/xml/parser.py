"""The streaming parser: turns a reply, in chunks of any size, into events. Pure.

Owns the text of the reply, the model's thinking in it, and where calls begin. Must not know who runs calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from io import StringIO
from typing import Final, TypeAlias

from msgspec import structs

from pilothouse.errors import UsageError
from pilothouse.events import ParserEvent, ReplyFinished, TextDelta, ThinkingDelta, ToolCall, ToolCallError
from pilothouse_models.xml.call_reader import MAX_ERROR_CHARS, CallIds, CallReader, ParserConfig, read_plain_call
from pilothouse_models.xml.prompt import ToolDefinitions, read_schemas
from pilothouse_models.xml.scanner import CodeSpanTracker, Tag, TagScanner, TextBuffer, make_tag_scanner

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


_Steps: TypeAlias = Generator[None, None, bool | None]
"""Reads a part of the reply, and pauses where it needs more input. Returns whether the part was text after all."""


class StreamParser:
    """Reads one reply of the model.

    Text, thinking and calls are emitted in the order of the reply, each as soon as it is certain. The chunks in which
    the reply arrives affect only where deltas are cut. Nothing is lost: every character is in a delta of text or
    thinking, or in the `raw` of a call or an error, except `<thinking>` tags and the part of a call beyond the limit.
    The time is linear in the length of the reply.

    What counts as a call:

    - A `<tool_use>` tag; with a nonce only `<tool_use-NONCE>`, so that no text that the model quotes can be a call.
      See `pilothouse_models.xml.call_reader` for its content. In all tags of the protocol, space, letter case,
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
    ) -> None:
        if nonce is not None and not _NONCE.fullmatch(nonce):
            raise UsageError(f"a nonce has 1 to 64 letters, digits, - or _; got {nonce!r}")
        if max_call_chars < 1:
            raise UsageError(f"max_call_chars must be above 0; got {max_call_chars!r}")
        suffix = "" if nonce is None else f"-{nonce.lower()}"
        outer, result = f"tool_use{suffix}", f"tool_result{suffix}"
        self._ids = CallIds(mint, used)
        self._config = ParserConfig(outer, nonce is not None, read_schemas(tools), self._ids, max_call_chars)
        self._result_tag = result
        self._buffer = TextBuffer()
        self._code_spans = CodeSpanTracker()
        self._events: list[ParserEvent] = []
        self._any_call = False
        self._has_calls = False
        self._closed = False
        # Readers of what begins with a tag in the text; each returns None if the tag is text.
        self._readers: dict[str, Callable[[Tag], _Steps | tuple[()] | None]] = {
            outer: self._read_call,
            result: self._read_result,
            "thinking": self._read_thinking,
        }
        if refuse_bare and nonce is not None:
            self._readers[_BARE_TAG] = self._read_bare
        self._tags_in_fence = {outer, result} if nonce is not None else set[str]()
        self._scanner = make_tag_scanner(*self._readers)
        self._steps = self._read_reply()

    def feed(self, text: str) -> list[ParserEvent]:
        """Parse the next part of the reply; return the events that are certain now. Raises UsageError after `close`."""
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
        return [*self._run(), ReplyFinished("tool-calls" if self._has_calls else "stop")]

    def _run(self) -> list[ParserEvent]:
        next(self._steps, None)  # the generator pauses where it needs more input
        events, self._events = self._events, []
        return events

    def _emit(self, event: ParserEvent) -> None:
        if isinstance(event, ToolCall):
            self._has_calls = True
        self._events.append(event)

    def _read_reply(self) -> Iterator[None]:
        buffer, spans = self._buffer, self._code_spans
        while True:
            at, tag = self._scanner.find(buffer.data, buffer.pos, buffer.is_final)
            self._emit_text(at)
            if tag is not None:
                name = tag.local
                hidden = spans.is_hidden(first_in_fence=name in self._tags_in_fence)
                steps = None if hidden or tag.is_end else self._readers[name](tag)
                if steps is None:
                    self._emit_text(tag.end)
                    continue
                if not (yield from steps):
                    spans.start_line()
            elif buffer.is_final:
                return
            else:
                yield

    def _emit_text(self, to: int) -> None:
        buffer = self._buffer
        if to > buffer.pos:
            self._code_spans.feed(buffer.data, buffer.pos, to)
            self._events.append(TextDelta(buffer.take(to)))

    def _take_to(self, scanner: TagScanner, take: Callable[[str], object]) -> Generator[None, None, Tag | None]:
        """Take the input up to the next tag; returns None if there is none up to the end of the reply."""
        buffer = self._buffer
        while True:
            at, tag = scanner.find(buffer.data, buffer.pos, buffer.is_final)
            if at > buffer.pos:
                take(buffer.take(at))
            if tag is not None or buffer.is_final:
                return tag
            yield

    def _read_call(self, tag: Tag) -> _Steps | tuple[()]:
        self._any_call = True
        events = read_plain_call(self._buffer, self._config)
        if not events:
            return CallReader(self._buffer, self._config, self._emit).read(tag)
        self._events += events
        self._has_calls = True
        return ()

    def _read_thinking(self, tag: Tag) -> _Steps:
        def take(text: str) -> None:
            self._events.append(ThinkingDelta(text))

        self._buffer.take(tag.end)
        while not tag.is_empty and (end := (yield from self._take_to(make_tag_scanner("thinking"), take))):
            text = self._buffer.take(end.end)
            if end.is_end:
                return None
            take(text)
        return None

    def _read_result(self, tag: Tag) -> _Steps | None:
        """Read a result that the model made up."""
        if not (self._any_call or self._tags_in_fence):
            return None
        return self._read_error(tag, (None, "invented_result", _INVENTED_RESULT), self._result_tag)

    def _read_bare(self, tag: Tag) -> _Steps | None:
        return self._refuse_bare(tag) if self._code_spans.is_at_line_start else None

    def _refuse_bare(self, tag: Tag) -> _Steps:
        """Read a call without the nonce; without the name of a tool, the tag is text."""
        buffer = self._buffer
        while True:
            head = buffer.data[buffer.pos + tag.end - tag.start :][:_BARE_HEAD]
            found = None if tag.is_empty else _BARE_NAME.match(head)
            if found or buffer.is_final or len(head) == _BARE_HEAD or head.lstrip()[:1] not in ("", "<"):
                break
            yield
        tag = structs.replace(tag, start=buffer.pos, end=buffer.pos + tag.end - tag.start)
        name = found[1] if found else None
        if name is None or name not in self._config.schemas:
            self._emit_text(tag.end)
            return True
        fault = (name, "missing_suffix", _MISSING_SUFFIX.format(name=name))
        return (yield from self._read_error(tag, fault, _BARE_TAG, self._config.outer_tag))

    def _read_error(self, tag: Tag, fault: tuple[str | None, str, str], *names: str) -> _Steps:
        """Read up to an end tag of the first name, and make it an error; a start tag of another name ends it, too."""
        limit, raw = self._config.max_call_chars, StringIO()
        size = 0

        def take(text: str) -> None:
            nonlocal size
            raw.write(text[: max(0, limit - size)])
            size += len(text)

        take(self._buffer.take(tag.end))
        while not tag.is_empty and (end := (yield from self._take_to(make_tag_scanner(*names), take))):
            if not end.is_end and len(names) > 1:
                break
            take(self._buffer.take(end.end))
            if end.is_end:
                break
        shown = raw.getvalue() if size <= limit else raw.getvalue()[:MAX_ERROR_CHARS]
        self._events.append(ToolCallError(self._ids.next_id(), *fault, shown))
        return None
