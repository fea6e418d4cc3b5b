"""Reads one call, from its opening tag to its end. Pure.

Owns the two dialects, the structure of a call, and the handling of a broken one. Must not know the text around it.

A call is `<tool_use>` with, in any order, `<tool_name>`, optionally `<tool_call_id>`, and optionally one of
`<parameters>` (an element for each parameter) and `<arguments>` (JSON). Rules:

- JSON is opaque: an end tag counts only outside of its string literals. As soon as the text cannot be JSON any more
  (for example after a raw line break in a string), literals are no longer recognized. If the end tag of the call was
  inside the literal that broke the JSON, the call ended there, and reading resumes after that tag.
- A parameter is opaque up to its own end tag, and CDATA up to `]]>`. Without a nonce, a parameter that is never
  closed ends the call at the first end tag of the call inside it, but that is known only at the end of the reply.
  With a nonce, the outer tags count inside of parameters, too: no text contains them by accident. To write a
  parameter's own end tag, or with a nonce the outer tags, use CDATA, entities or the JSON dialect.
- `<parameters>` that begins with `{` is read as JSON. `<arguments>` may be wrapped in CDATA.
- A call that begins before the previous one was closed refuses the previous one, and is read itself.
- A call without either element has no arguments; if it contains anything unknown, it is refused.
- Attributes are never read. A field that occurs twice makes the call invalid.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, NoReturn, TypeAlias, cast

from pilothouse.events import ParserEvent, ToolCall, ToolCallDelta, ToolCallError, ToolCallStarted
from pilothouse.messages import ToolUseBlock
from pilothouse.support import find_similar_name
from pilothouse_models.xml.scanner import (
    CDATA,
    CDATA_END,
    EVERY_TAG,
    NEEDS_MORE,
    JsonScanner,
    ScanStop,
    Tag,
    TagScanner,
    TextBuffer,
    decode_json,
    local_name,
    make_tag_scanner,
)
from pilothouse_models.xml.values import decode_text, parse_arguments

MAX_ERROR_CHARS: Final = 1000  # characters that the error for a too large call shows
_MAX_COMPARED_LENGTH: Final = 100  # characters of an unknown name that are compared
_MAX_ID_LENGTH: Final = 128
_MAX_NAME_LENGTH: Final = 100  # characters of the unknown name that are shown
_MAX_LISTED_NAMES: Final = 50  # names that are listed
_NAME, _ID, _JSON, _ELEMENTS = "tool_name", "tool_call_id", "arguments", "parameters"

CallFault: TypeAlias = tuple[str, str]
"""The code of an error, and what is wrong, for the model."""

_NOT_AN_OBJECT: Final[CallFault] = "invalid_call", "Invalid tool call: its arguments are not a JSON object"
_CUT_OFF: Final[CallFault] = "truncated", "The call is cut off: its end is missing"
_NOT_CLOSED: Final[CallFault] = "unclosed", "The call is not closed: another begins in it"


class CallIds:
    """Makes the ids of calls: by default `call_1`, `call_2` and so on, skipping used ones, which they are added to."""

    __slots__ = ("_mint", "_used")

    def __init__(self, mint: Callable[[], str] | None, used: set[str] | None) -> None:
        self._used: set[str] = set() if used is None else used
        numbered = itertools.filterfalse(self._used.__contains__, map("call_{}".format, itertools.count(1)))
        self._mint = mint or numbered.__next__

    def next_id(self, preferred: str = "") -> str:
        """Return a new id: `preferred` if it is valid and unused."""
        valid = 0 < len(preferred) <= _MAX_ID_LENGTH and preferred.isprintable()
        found = preferred if valid and preferred not in self._used else self._mint()
        if found in self._used:
            found = next(each for n in itertools.count(2) if (each := f"{found}-{n}") not in self._used)
        self._used.add(found)
        return found


@dataclass(frozen=True, slots=True)
class ParserConfig:
    """The configuration shared by all calls of one parser. Without any schemas, every name is accepted."""

    outer_tag: str
    has_nonce: bool
    schemas: Mapping[str, Any]
    ids: CallIds
    max_call_chars: int

    def check_name(self, name: str) -> CallFault | None:
        """Return what is wrong with the name of a tool."""
        if not name:
            return "missing_name", "Tool call missing name"
        if not self.schemas or name in self.schemas:
            return None
        near = find_similar_name(name[:_MAX_COMPARED_LENGTH], self.schemas, 0.5)
        hint = f"; did you mean {near!r}?" if near else ""
        return "unknown_tool", unknown_tool_message(name, self.schemas) + hint


def unknown_tool_message(name: str, tool_names: Collection[str]) -> str:
    """The text that tells the model that tool `name` does not exist, and which tools do."""
    shown = name if len(name) <= _MAX_NAME_LENGTH else name[:_MAX_NAME_LENGTH] + "…"
    more = f", … ({len(tool_names)} in all)" if len(tool_names) > _MAX_LISTED_NAMES else ""
    listed = ", ".join(list(tool_names)[:_MAX_LISTED_NAMES]) + more
    return f"There is no tool {shown!r}" + (f"; the tools are: {listed}" if tool_names else "")


class _CallEndError(Exception):
    """The call ends at this place; with a fault, it is refused."""

    def __init__(self, fault: CallFault | None) -> None:
        super().__init__()
        self.fault = fault


_PLAIN_CALL: Final = re.compile(
    r"<(tool_use[\w-]*+)>\s*+<tool_name>([^<&]++)</tool_name>\s*+(?:<tool_call_id>[^<]*+</tool_call_id>\s*+)?"
    r"<arguments>([^<]*+)</arguments>\s*+</\1>"
)


def read_plain_call(buffer: TextBuffer, config: ParserConfig) -> tuple[ParserEvent, ...]:
    """Read a call in one step, if all of it is in the buffer and its JSON contains no `<`; else return nothing.

    Gives the same events as `CallReader`, several times as fast.
    """
    match = _PLAIN_CALL.match(buffer.data, buffer.pos)
    if match is None or match[1] != config.outer_tag or match.end() - match.start() > config.max_call_chars:
        return ()
    name, text = match[2].strip(), match[3]
    arguments, _ = decode_object(text)
    if arguments is None or config.check_name(name):
        return ()
    call_id = config.ids.next_id()
    call = ToolCall(call_id, name, arguments, raw=buffer.take(match.end()))
    return ToolCallStarted(ToolUseBlock(call_id, name)), ToolCallDelta(call_id, text), call


class CallReader:
    """Reads one call; the buffer is at its opening tag.

    The methods that read are generators: they pause where they need more input.
    """

    def __init__(self, buffer: TextBuffer, config: ParserConfig, emit: Callable[[ParserEvent], None]) -> None:
        self._buffer = buffer
        self._config = config
        self._emit = emit
        self._raw = StringIO()
        self._size = 0
        self._is_rejected = False
        self._fields: dict[str, str] = {}
        self._id: str | None = None
        self._fault: CallFault | None = None
        self._stray = ""
        # The element with the arguments: the span of its content, its parameters, and whether it is JSON in CDATA.
        self._body_start = self._body_end = -1
        self._parameter_spans: list[tuple[str, int, int]] | None = None
        self._is_wrapped = False
        self._arguments: dict[str, Any] | None = None  # if they have been decoded
        # The first end tag of the call in the current parameter or literal, and the number of calls open there.
        self._inner_end = -1
        self._open_calls = 0

    def read(self, tag: Tag) -> Generator[None, None, None]:
        """Read the call whose opening tag is `tag`."""
        self._take(tag.end)
        fault = None
        try:
            if not tag.is_empty:
                yield from self._read_fields()
        except _CallEndError as end:
            fault = end.fault
        if not self._is_rejected:
            self._finish(fault)

    def _read_fields(self) -> Iterator[None]:
        readers = {
            _NAME: self._read_name_or_id, _ID: self._read_name_or_id,
            _JSON: self._read_json_element, _ELEMENTS: self._read_parameters,
        }  # fmt: skip
        while True:
            text: list[str] = []
            tag = yield from self._find(EVERY_TAG, text)
            if "".join(text).strip():
                self._stray = self._stray or "text"
            if self._is_outer(tag):
                self._end_at(tag)
            self._take(tag.end)
            reader = None if tag.is_end else readers.get(tag.local)
            if reader is None:
                self._stray = self._stray or f"<{tag.name}>"
            else:
                yield from reader(tag)

    # The input

    def _take(self, to: int) -> str:
        piece = self._buffer.take(to)
        if self._is_rejected:
            return piece
        remaining = self._config.max_call_chars - self._size
        self._size += len(piece)
        kept = piece if len(piece) <= remaining else piece[:remaining]
        self._raw.write(kept)
        if self._body_start >= 0 and self._body_end < 0 and self._id is not None and kept:
            self._emit(ToolCallDelta(self._id, kept))
        if kept is not piece:
            self._reject("too_large", f"The call is too large: {self._config.max_call_chars:,} characters are allowed")
        return piece

    def _wait(self) -> Iterator[None]:
        """Wait for more input; without more, the call ends."""
        if self._buffer.is_final:
            raise _CallEndError(self._rewind() or _CUT_OFF)
        yield

    def _find(self, scanner: TagScanner, text: list[str] | None = None) -> Generator[None, None, Tag]:
        """Take the input up to the next tag, and put it into `text`."""
        buffer = self._buffer
        while True:
            at, tag = scanner.find(buffer.data, buffer.pos, buffer.is_final)
            piece = self._take(at)
            if text is not None:
                text.append(piece)
            if tag is not None:
                return tag
            yield from self._wait()

    def _skip_space(self) -> Iterator[None]:
        buffer = self._buffer
        while True:
            data, pos = buffer.data, buffer.pos
            while pos < len(data) and data[pos].isspace():
                pos += 1
            self._take(pos)
            if pos < len(data):
                return
            yield from self._wait()

    def _is_outer(self, tag: Tag) -> bool:
        return tag.local == self._config.outer_tag

    def _end_at(self, tag: Tag, unclosed: str | None = None) -> NoReturn:
        """End the call at this tag, which closes it or begins another."""
        if not tag.is_end:
            raise _CallEndError(_NOT_CLOSED)
        self._take(tag.end)
        raise _CallEndError(None if unclosed is None else _make_unclosed(unclosed))

    # Name and id

    def _read_name_or_id(self, tag: Tag) -> Iterator[None]:
        name, text = tag.local, list[str]()
        while not (tag.is_end or tag.is_empty):
            tag = yield from self._find(make_tag_scanner(name, self._config.outer_tag), text)
            if self._is_outer(tag):
                self._end_at(tag, name)
            self._take(tag.end)
            if not tag.is_end:
                text.append("<")  # its own tag again: makes the name invalid
        if name in self._fields:
            self._add_fault(f"<{name}> occurs twice")
            return
        value = self._fields[name] = decode_text("".join(text)).strip()
        if name == _NAME and value and not self._is_rejected:
            self._start_call(value)

    def _start_call(self, name: str) -> None:
        self._id = self._config.ids.next_id(self._fields.get(_ID, ""))
        self._emit(ToolCallStarted(ToolUseBlock(self._id, name)))
        if self._body_start >= 0:
            text = self._raw.getvalue()[self._body_start : self._body_end]
            if text:
                self._emit(ToolCallDelta(self._id, text))

    # Arguments

    def _enter_body(self, tag: Tag) -> bool:
        """Start the arguments; returns whether they have content."""
        if self._body_start >= 0:
            self._add_fault("it has its arguments twice")
        else:
            self._body_start = self._size
            self._body_end = self._size if tag.is_empty else -1
        return not tag.is_empty

    def _leave_body(self, tag: Tag) -> None:
        if self._body_end < 0:
            self._body_end = self._size
        self._take(tag.end)

    def _read_json_element(self, tag: Tag) -> Iterator[None]:
        if not self._enter_body(tag):
            return
        buffer = self._buffer
        yield from self._skip_space()
        while CDATA.startswith(head := buffer.data[buffer.pos : buffer.pos + len(CDATA)].upper()):
            if head == CDATA:
                self._is_wrapped = True
                self._leave_body((yield from self._find_end(_JSON, lambda tag: tag.local == _JSON)))
                return
            yield from self._wait()
        yield from self._read_json(_JSON)

    def _read_json(self, body: str) -> Iterator[None]:
        tags, pieces = make_tag_scanner(body, self._config.outer_tag), list[str]()
        tag = yield from self._find(tags, pieces)
        text = "".join(pieces)
        if tag.local == body and tag.is_end:
            # Most often the first end tag is the right one: then the text before it is all of the JSON.
            self._arguments, _ = decode_object(text)
            if self._arguments is not None:
                self._leave_body(tag)
                return
        scanner = JsonScanner()
        if scanner.skip(text):
            tag = yield from self._follow_json(scanner, tags)
            if tag is None and (fault := self._rewind()):
                raise _CallEndError(fault)
        while tag is None or (tag.local == body and not tag.is_end):  # broken JSON: up to the end tag
            self._take(self._buffer.pos if tag is None else tag.end)
            tag = yield from self._find(tags)
        self._end_body(tag, body)

    def _follow_json(self, scanner: JsonScanner, tags: TagScanner) -> Generator[None, None, Tag | None]:
        """Take JSON up to one of the tags; None if it is broken. A tag in a string literal is part of that."""
        buffer, literal, outer = self._buffer, scanner.current_string, make_tag_scanner(self._config.outer_tag)
        self._inner_end, self._open_calls = -1, 0
        while True:
            to, stop = scanner.advance(buffer.data, buffer.pos, buffer.is_final)
            self._take(len(buffer.data) if stop is ScanStop.MORE and buffer.is_final else to)
            if scanner.current_string != literal:  # the end tags in an earlier literal belong to it
                literal, self._inner_end, self._open_calls = scanner.current_string, -1, 0
            if stop is ScanStop.INVALID:
                return None
            here = outer if scanner.is_in_string else tags
            tag = here.match(buffer.data, buffer.pos, buffer.is_final) if stop is ScanStop.AT_ANGLE else NEEDS_MORE
            if tag is NEEDS_MORE:
                yield from self._wait()
            elif not scanner.is_in_string:
                return tag
            elif tag is None:
                self._take(buffer.pos + 1)
            else:
                self._count_outer(tag)  # counts only if the literal turns out to be broken

    def _end_body(self, tag: Tag, body: str) -> None:
        if tag.local != body:
            self._end_at(tag, body)
        self._leave_body(tag)

    def _read_parameters(self, tag: Tag) -> Iterator[None]:
        if self._body_start < 0:
            self._parameter_spans = []
        if not self._enter_body(tag):
            return
        yield from self._skip_space()
        if self._buffer.data[self._buffer.pos] == "{":
            self._parameter_spans = None
            yield from self._read_json(_ELEMENTS)
            return
        while True:
            text: list[str] = []
            tag = yield from self._find(EVERY_TAG, text)
            if "".join(text).strip():
                self._add_fault(f"text between the elements of <{_ELEMENTS}>")
            if self._is_outer(tag) or (tag.local == _ELEMENTS and tag.is_end):
                self._end_body(tag, _ELEMENTS)
                return
            yield from self._read_parameter(tag)

    def _read_parameter(self, tag: Tag) -> Iterator[None]:
        name = tag.name
        self._take(tag.end)
        start = end = self._size
        if tag.is_end:
            self._add_fault(f"an end tag without its beginning in <{_ELEMENTS}>")
            return
        if not tag.is_empty:
            closing = yield from self._find_end(name, lambda tag: tag.name == name)
            end = self._size
            self._take(closing.end)
        if self._parameter_spans is not None and not self._is_rejected:
            self._parameter_spans.append((name, start, end))

    def _find_end(self, own: str, is_own: Callable[[Tag], bool]) -> Generator[None, None, Tag]:
        """Take a value up to its end tag. Only tags of calls, and CDATA, have a meaning in it."""
        tags = make_tag_scanner(self._config.outer_tag, local_name(own) or own, cdata=True)
        self._inner_end, self._open_calls = -1, 0
        while True:
            tag = yield from self._find(tags)
            if tag.name == CDATA:
                self._take(tag.end)
                yield from self._skip_cdata()
            elif is_own(tag) and tag.is_end:
                self._inner_end = -1
                return tag
            elif not self._is_outer(tag):
                self._take(tag.end)
            elif self._config.has_nonce:
                self._end_at(tag, own)
            else:
                self._count_outer(tag)

    def _skip_cdata(self) -> Iterator[None]:
        buffer = self._buffer
        while (at := buffer.data.find(CDATA_END, buffer.pos)) < 0:
            held = 0 if buffer.is_final else next((n for n in (2, 1) if buffer.data.endswith("]" * n, buffer.pos)), 0)
            self._take(len(buffer.data) - held)
            yield from self._wait()
        self._take(at + len(CDATA_END))

    def _count_outer(self, tag: Tag) -> None:
        """Count a tag of a call inside of a value, and remember the first end tag that has no start tag there."""
        self._take(tag.end)
        if not tag.is_end:
            self._open_calls += not tag.is_empty
        elif self._open_calls:
            self._open_calls -= 1
        elif self._inner_end < 0:
            self._inner_end = self._size

    # The end

    def _add_fault(self, what: str) -> None:
        self._fault = self._fault or ("invalid_call", f"Invalid tool call: {what}")

    def _rewind(self) -> CallFault | None:
        """End a broken call at the end tag found inside it: the text after it is read again. Returns the fault."""
        at = self._inner_end
        raw = self._raw.getvalue()
        if at < 0 or self._is_rejected or not self._buffer.can_rewind(len(raw) - at):
            return None
        self._buffer.rewind(raw[at:])
        self._raw = StringIO()
        self._raw.write(raw[:at])
        if self._parameter_spans is None and not self._is_wrapped:
            return decode_object(raw[self._body_start : at])[1]
        return _make_unclosed(_ELEMENTS if self._parameter_spans is not None else _JSON)

    def _reject(self, code: str, message: str, raw: str | None = None) -> None:
        self._is_rejected = True
        call_id = self._config.ids.next_id(self._fields.get(_ID, "")) if self._id is None else self._id
        shown = self._raw.getvalue()[:MAX_ERROR_CHARS] if raw is None else raw
        self._raw = StringIO()
        self._emit(ToolCallError(call_id, self._fields.get(_NAME) or None, code, message, shown))

    def _finish(self, fault: CallFault | None) -> None:
        raw = self._raw.getvalue()
        name = self._fields.get(_NAME, "")
        fault = fault or self._fault or self._config.check_name(name)
        arguments: dict[str, Any] | None = None
        if fault is None:
            arguments, fault = self._parse_arguments(raw, name)
        if fault is not None or arguments is None:
            self._reject(*(fault or _NOT_AN_OBJECT), raw)
            return
        call_id = self._config.ids.next_id() if self._id is None else self._id
        self._emit(ToolCall(call_id, name, arguments, raw=raw))

    def _parse_arguments(self, raw: str, name: str) -> tuple[dict[str, Any] | None, CallFault | None]:
        if self._arguments is not None:
            return self._arguments, None
        if self._body_start < 0:
            stray = f"Invalid tool call: {self._stray} in place of <{_ELEMENTS}> or <{_JSON}>"
            return {}, ("invalid_call", stray) if self._stray else None
        if self._parameter_spans is not None:
            pairs = [(each, raw[start:end]) for each, start, end in self._parameter_spans]
            return parse_arguments(self._config.schemas.get(name), pairs), None
        text = raw[self._body_start : self._body_end]
        return decode_object(decode_text(text, entities=False) if self._is_wrapped else text)


def decode_object(text: str) -> tuple[dict[str, Any] | None, CallFault | None]:
    """Decode `text` as an object; returns the object, or the fault."""
    try:
        value = decode_json(text)
    except ValueError as error:
        return None, ("invalid_json", f"The arguments are not valid JSON: {error}")
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, _NOT_AN_OBJECT)


def _make_unclosed(tag: str) -> CallFault:
    return "unclosed", f"<{tag}> is not closed"
