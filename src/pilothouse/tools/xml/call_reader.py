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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, TypeAlias, cast

from pilothouse.errors import UsageError
from pilothouse.events import ParserEvent, ToolCall, ToolCallDelta, ToolCallError, ToolCallStarted
from pilothouse.messages import ToolUseBlock
from pilothouse.tools.calls import unknown_tool_message
from pilothouse.tools.tool import Tool
from pilothouse.tools.xml.scanner import (
    CDATA,
    CDATA_END,
    EVERY_TAG,
    EVERY_TAG_AND_CDATA,
    NEEDS_MORE,
    NOT_AN_OBJECT,
    CallFault,
    JsonScanner,
    ScanStop,
    Tag,
    TextBuffer,
    decode_object,
    local_name,
    match_tag,
)
from pilothouse.tools.xml.values import decode_text, is_declared, is_structured, parse_arguments

_MAX_CACHED_PARAMETERS: Final = 1000  # entries of the cache of known parameters
MAX_ERROR_CHARS: Final = 1000  # characters that the error for a too large call shows
_NAME, _ID, _JSON, _ELEMENTS = "tool_name", "tool_call_id", "arguments", "parameters"


class CallReader:
    """Reads one call, until `is_done`.

    Args:
        buffer: the input, at the opening tag.
        config: the configuration of the parser.
        emit: takes each event.
        tag: the opening tag.
    """

    def __init__(self, buffer: TextBuffer, config: ParserConfig, emit: Callable[[ParserEvent], None], tag: Tag) -> None:
        self.is_done = False
        self._buffer = buffer
        self._config = config
        self._emit = emit
        self._raw = StringIO()
        self._size = 0
        self._is_rejected = False
        self._fields: dict[str, str] = {}
        self._id: str | None = None
        self._faults: list[CallFault] = []
        self._stray = ""
        # The element that holds the arguments: its name, the span of its content, and its parameters.
        self._body = ""
        self._body_start = self._body_end = -1
        self._parameter_spans: list[tuple[str, int, int]] | None = None
        self._step = self._between_fields
        self._known_parameters: dict[str, tuple[bool, bool]] = {}
        # The field or parameter that is being read.
        self._current_tag = ""
        self._value_start = 0
        self._depth = 0
        self._nests = False
        self._in_cdata = False
        self._wrapped = False  # JSON in CDATA
        self._field_text = StringIO()
        self._json_scanner = JsonScanner()
        # The first end tag of the call in the current parameter or literal, and the number of calls open there.
        self._string_number = 0
        self._inner_end = -1
        self._open_calls = 0
        self._enter: dict[str, Callable[[Tag], None]] = {
            _NAME: self._enter_field, _ID: self._enter_field, _JSON: self._enter_json, _ELEMENTS: self._enter_elements
        }  # fmt: skip
        self._consume(tag.end)
        if tag.is_empty:
            self._finish()

    def step(self) -> bool:
        """Read on; returns False if more input is needed."""
        return self._step()

    def end(self) -> None:
        """End the input."""
        if not self._rewind():
            self._finish(("truncated", "The call is cut off: its end is missing"))

    # Reading

    def _consume(self, to: int) -> str:
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

    def _find(self, own: str) -> tuple[str, Tag | None]:
        """Return the text before the next tag of this name, or of a call; and that tag."""
        source, wanted = self._buffer, (own, self._config.outer_tag)
        at, tag = EVERY_TAG.find(source.data, source.pos, source.is_final, lambda name: local_name(name) in wanted)
        return self._consume(at), tag

    def _is_outer(self, tag: Tag) -> bool:
        return tag.local == self._config.outer_tag

    def _between_fields(self) -> bool:
        source = self._buffer
        at, tag = EVERY_TAG.find(source.data, source.pos, source.is_final)
        if self._consume(at).strip():
            self._stray = self._stray or "text"
        if tag is None:
            return False
        if self._is_outer(tag):
            self._at_outer(tag, None)
            return True
        self._consume(tag.end)
        if tag.is_end or tag.local not in self._enter:
            self._stray = self._stray or f"<{tag.name}>"
        else:
            self._enter[tag.local](tag)
        return True

    def _at_outer(self, tag: Tag, unclosed: str | None) -> None:
        """End the call at this tag, which closes it or begins another."""
        fault = None if unclosed is None else ("unclosed", f"<{unclosed}> is not closed")
        if tag.is_end:
            self._consume(tag.end)
        else:
            fault = ("unclosed", "The call is not closed: another begins in it")
        self._finish(fault)

    # Name and id

    def _enter_field(self, tag: Tag) -> None:
        self._current_tag = tag.local
        self._field_text = StringIO()
        if tag.is_empty:
            self._leave_field()
        else:
            self._step = self._in_field

    def _in_field(self) -> bool:
        piece, tag = self._find(self._current_tag)
        if not self._is_rejected:
            self._field_text.write(piece)
        if tag is None:
            return False
        if self._is_outer(tag):
            self._at_outer(tag, self._current_tag)
        elif tag.is_end:
            self._consume(tag.end)
            self._leave_field()
        else:
            self._field_text.write("<")  # its own tag again: makes the name invalid
            self._consume(tag.end)
        return True

    def _leave_field(self) -> None:
        self._step = self._between_fields
        if not self._is_first(self._current_tag):
            return
        self._fields[self._current_tag] = decode_text(self._field_text.getvalue()).strip()
        if self._current_tag == _NAME and self._fields[_NAME] and not self._is_rejected:
            self._start_call(self._fields[_NAME])

    def _is_first(self, field: str) -> bool:
        """Record a field; returns False if it occurred before."""
        if field in self._fields:
            self._add_fault(f"<{field}> occurs twice")
            return False
        self._fields[field] = ""
        return True

    def _add_fault(self, what: str) -> None:
        if not self._faults:
            self._faults.append(("invalid_call", f"Invalid tool call: {what}"))

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
        first = self._body_start < 0
        if not first:
            self._add_fault("it has its arguments twice")
        self._body = tag.local
        if first:
            self._body_start = self._size
            if tag.is_empty:
                self._body_end = self._size
        return not tag.is_empty

    def _leave_body(self, tag: Tag) -> None:
        if self._body_end < 0:
            self._body_end = self._size
        self._consume(tag.end)
        self._step = self._between_fields

    def _enter_json(self, tag: Tag) -> None:
        if self._enter_body(tag):
            self._json_scanner = JsonScanner()
            self._step = self._before_json

    def _before_json(self) -> bool:
        """Skip white space, and enter a CDATA section that wraps the JSON."""
        source = self._buffer
        data, pos = source.data, source.pos
        end = len(data)
        while pos < end and data[pos] in " \t\r\n":
            pos += 1
        self._consume(pos)
        head = data[pos : pos + len(CDATA)].upper()
        if head == CDATA:
            self._wrapped = True
            self._enter_value(self._body, nests=False)
        elif not source.is_final and CDATA.startswith(head):
            return False
        else:
            self._step = self._in_json
        return True

    def _in_json(self) -> bool:
        source = self._buffer
        to, stop = self._json_scanner.advance(source.data, source.pos, source.is_final)
        self._consume(to)
        if stop is ScanStop.MORE:
            self._consume(len(source.data) if source.is_final else source.pos)
            return False
        if stop is ScanStop.INVALID:
            return self._on_invalid_json()
        return self._at_tag_in_string() if self._json_scanner.is_in_string else self._after_json()

    def _at_tag_in_string(self) -> bool:
        """Handle a `<` in a string literal: it counts only if the literal turns out to be broken."""
        source, outer = self._buffer, self._config.outer_tag
        tag = match_tag(source.data, source.pos, source.is_final, lambda name: local_name(name) == outer, bare=True)
        if tag is NEEDS_MORE:
            return False
        if tag is None:
            self._consume(source.pos + 1)
            return True
        if self._string_number != self._json_scanner.string_number:
            self._string_number, self._open_calls, self._inner_end = self._json_scanner.string_number, 0, -1
        self._count_outer(tag)
        return True

    def _after_json(self) -> bool:
        source = self._buffer
        wanted = (self._body, self._config.outer_tag)
        tag = match_tag(source.data, source.pos, source.is_final, lambda name: local_name(name) in wanted)
        if tag is NEEDS_MORE:
            return False
        if tag is None or (tag.local == self._body and not tag.is_end):
            return self._on_invalid_json()
        self._end_of_body(tag)
        return True

    def _on_invalid_json(self) -> bool:
        if not self._rewind():
            self._step = self._in_invalid_json
        return True

    def _in_invalid_json(self) -> bool:
        _, tag = self._find(self._body)
        if tag is None:
            return False
        if tag.local == self._body and not tag.is_end:
            self._consume(tag.end)
        else:
            self._end_of_body(tag)
        return True

    def _end_of_body(self, tag: Tag) -> None:
        if tag.local == self._body:
            self._leave_body(tag)
        else:
            self._at_outer(tag, self._body)

    # Parameters

    def _enter_elements(self, tag: Tag) -> None:
        if self._body_start < 0:
            self._parameter_spans = []
        if self._enter_body(tag):
            self._step = self._before_elements

    def _before_elements(self) -> bool:
        source = self._buffer
        data, pos = source.data, source.pos
        while pos < len(data) and data[pos].isspace():
            pos += 1
        self._consume(pos)
        if pos == len(data):
            return False
        if data[pos] == "{":
            self._parameter_spans = None
            self._json_scanner = JsonScanner()
            self._step = self._in_json
        else:
            self._step = self._between_elements
        return True

    def _between_elements(self) -> bool:
        source = self._buffer
        at, tag = EVERY_TAG.find(source.data, source.pos, source.is_final)
        if self._consume(at).strip():
            self._add_fault(f"text between the elements of <{self._body}>")
        if tag is None:
            return False
        declared, nests = self._get_parameter_info(tag.name)
        own = declared and not tag.is_end
        if not own and (self._is_outer(tag) or (tag.local == self._body and tag.is_end)):
            self._end_of_body(tag)
            return True
        self._consume(tag.end)
        if tag.is_end:
            self._add_fault(f"an end tag without its beginning in <{self._body}>")
        elif tag.is_empty:
            self._add_pair(tag.name, self._size, self._size)
        else:
            self._enter_value(tag.name, nests=nests)
        return True

    def _get_parameter_info(self, name: str) -> tuple[bool, bool]:
        """Return whether the tool declares a parameter, and whether that parameter may contain elements."""
        schema = self._config.catalog.get_schema(self._fields.get(_NAME, ""))
        if schema is None:
            return False, False
        if name not in self._known_parameters:
            if len(self._known_parameters) > _MAX_CACHED_PARAMETERS:
                self._known_parameters.clear()
            self._known_parameters[name] = is_declared(schema, name), is_structured(schema, name)
        return self._known_parameters[name]

    def _add_pair(self, name: str, start: int, end: int) -> None:
        if self._parameter_spans is not None and not self._is_rejected:
            self._parameter_spans.append((name, start, end))

    def _enter_value(self, name: str, *, nests: bool) -> None:
        self._current_tag, self._nests = name, nests
        self._depth, self._open_calls, self._inner_end = 1, 0, -1
        self._value_start = self._size
        self._step = self._in_value

    def _in_value(self) -> bool:
        source, outer, own = self._buffer, self._config.outer_tag, self._current_tag
        if self._in_cdata:
            return self._in_cdata_section()
        at, tag = EVERY_TAG_AND_CDATA.find(
            source.data, source.pos, source.is_final, lambda name: name == own or local_name(name) in (outer, own)
        )
        self._consume(at)
        if tag is None:
            return False
        if tag.name == CDATA:
            self._in_cdata = True
        elif tag.name == own or (self._wrapped and tag.local == own):
            return self._at_own_tag(tag)
        elif tag.local == outer:
            if self._config.has_nonce:
                self._at_outer(tag, own)
                return True
            self._count_outer(tag)
            return True
        self._consume(tag.end)
        return True

    def _in_cdata_section(self) -> bool:
        source = self._buffer
        at = source.data.find(CDATA_END, source.pos)
        if at >= 0:
            self._consume(at + len(CDATA_END))
            self._in_cdata = False
            return True
        held = 0 if source.is_final else next((n for n in (2, 1) if source.data.endswith("]" * n, source.pos)), 0)
        self._consume(len(source.data) - held)
        return False

    def _at_own_tag(self, tag: Tag) -> bool:
        if tag.is_end:
            self._depth -= 1
        elif self._nests and not tag.is_empty:
            self._depth += 1
        if self._depth:
            self._consume(tag.end)
        elif self._wrapped:
            self._leave_body(tag)
        else:
            end = self._size
            self._consume(tag.end)
            self._add_pair(self._current_tag, self._value_start, end)
            self._step = self._between_elements
        return True

    def _count_outer(self, tag: Tag) -> None:
        """Count a tag of a call inside of a parameter, and remember the first end tag that has no start tag there."""
        self._consume(tag.end)
        if not tag.is_end:
            self._open_calls += not tag.is_empty
        elif self._open_calls:
            self._open_calls -= 1
        elif self._inner_end < 0:
            self._inner_end = self._size

    # The end

    def _rewind(self) -> bool:
        """End a broken call at the end tag found inside it, and read the text after it again."""
        in_json = self._step == self._in_json
        at = self._inner_end
        if at < 0 or self._is_rejected or not (self._step == self._in_value or in_json):
            return False
        if in_json and self._string_number != self._json_scanner.current_string:
            return False
        raw = self._raw.getvalue()
        if not self._buffer.can_rewind(len(raw) - at):
            return False
        self._buffer.rewind(raw[at:])
        self._raw = StringIO()
        self._raw.write(raw[:at])
        self._finish(
            decode_object(raw[self._body_start : at])[1]
            if in_json
            else ("unclosed", f"<{self._current_tag}> is not closed")
        )
        return True

    def _reject(self, code: str, message: str, raw: str | None = None) -> None:
        self._is_rejected = True
        call_id = self._config.ids.next_id(self._fields.get(_ID, "")) if self._id is None else self._id
        shown = self._raw.getvalue()[:MAX_ERROR_CHARS] if raw is None else raw
        self._raw = StringIO()
        self._emit(ToolCallError(call_id, self._fields.get(_NAME) or None, code, message, shown))

    def _finish(self, fault: CallFault | None = None) -> None:
        self.is_done = True
        if self._is_rejected:
            return
        raw = self._raw.getvalue()
        name = self._fields.get(_NAME, "")
        fault = fault or (self._faults[0] if self._faults else self._check_name(name))
        arguments: dict[str, Any] | None = None
        if fault is None:
            arguments, fault = self._parse_arguments(raw, name)
        if fault is not None or arguments is None:
            self._reject(*(fault or NOT_AN_OBJECT), raw)
            return
        call_id = self._config.ids.next_id() if self._id is None else self._id
        self._emit(ToolCall(call_id, name, arguments, raw=raw))

    def _check_name(self, name: str) -> CallFault | None:
        if not name:
            return "missing_name", "Tool call missing name"
        return (
            None
            if self._config.catalog.accepts(name)
            else ("unknown_tool", self._config.catalog.unknown_tool_message(name))
        )

    def _parse_arguments(self, raw: str, name: str) -> tuple[dict[str, Any] | None, CallFault | None]:
        if self._body_start < 0:
            stray = f"Invalid tool call: {self._stray} in place of <{_ELEMENTS}> or <{_JSON}>"
            return {}, ("invalid_call", stray) if self._stray else None
        if self._parameter_spans is not None:
            pairs = [(each, raw[start:end]) for each, start, end in self._parameter_spans]
            return parse_arguments(self._config.catalog.get_schema(name), pairs), None
        text = raw[self._body_start : self._body_end]
        return decode_object(decode_text(text, entities=False) if self._wrapped else text)


@dataclass(frozen=True, slots=True)
class ParserConfig:
    """The configuration shared by all calls of one parser.

    Attributes:
        outer_tag: name of the tag around a call.
        has_nonce: whether that name contains a nonce.
        catalog: the tools.
        ids: makes the ids of calls.
        max_call_chars: longest call, in characters.
    """

    outer_tag: str
    has_nonce: bool
    catalog: ToolCatalog
    ids: CallIds
    max_call_chars: int


ToolDefinitions: TypeAlias = "Iterable[Tool[..., Any] | Mapping[str, Any]] | Mapping[str, Any]"
"""Tools, definitions with `name` and `input_schema` (or `inputSchema`, `parameters`), or names with their schemas."""

_SCHEMA_KEYS: Final = ("input_schema", "inputSchema", "parameters")
_MAX_COMPARED_LENGTH: Final = 100  # characters of a name that are compared


class ToolCatalog:
    """The tools of one parser. With none, every name is accepted, with unknown parameters.

    Raises:
        UsageError: an entry is not a tool.
    """

    __slots__ = ("_schemas",)

    def __init__(self, tools: ToolDefinitions | None) -> None:
        self._schemas: dict[str, Any] = {}
        if isinstance(tools, Mapping):
            self._schemas = {
                name: _check_schema(name, value) for name, value in cast("Mapping[str, Any]", tools).items()
            }
            return
        for each in tools or ():
            name = each.name if isinstance(each, Tool) else each.get("name") if _is_mapping(each) else None
            if not isinstance(name, str) or not name:
                raise UsageError(f"a tool, or a mapping with a name and an input_schema, was expected; got {each!r}")
            self._schemas[name] = _check_schema(name, each if isinstance(each, Tool) else _get_declared_schema(each))

    def accepts(self, name: str) -> bool:
        """Whether a call may name this tool."""
        return not self._schemas or name in self._schemas

    def __contains__(self, name: str) -> bool:
        """Whether the name is one of the given tools."""
        return name in self._schemas

    def get_schema(self, name: str) -> Any:
        """Return the JSON Schema of the tool's input; None if unknown."""
        return self._schemas.get(name)

    def unknown_tool_message(self, name: str) -> str:
        """Make the error text for the model about an unknown name."""
        import difflib  # slow to import, and needed only for errors

        close = difflib.get_close_matches(name[:_MAX_COMPARED_LENGTH], self._schemas, n=1, cutoff=0.5)
        return unknown_tool_message(name, self._schemas) + (f"; did you mean {close[0]!r}?" if close else "")


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _get_declared_schema(definition: Mapping[str, Any]) -> Any:
    return next((definition[key] for key in _SCHEMA_KEYS if definition.get(key) is not None), None)


def _check_schema(name: object, value: Any) -> Any:
    schema = cast("Any", value).input_schema if isinstance(value, Tool) else value
    if not isinstance(name, str) or not (schema is None or isinstance(schema, Mapping | bool)):
        raise UsageError(f"expected tool names with their JSON Schemas; got {name!r}: {value!r}")
    return cast("Any", schema)


_MAX_ID_LENGTH: Final = 128


class CallIds:
    """Makes the ids of calls.

    Args:
        mint: makes an id; by default `call_1`, `call_2` and so on, skipping used ones.
        used: earlier ids, such as those of earlier replies; new ones are added to it.
    """

    __slots__ = ("_mint", "_used")

    def __init__(self, mint: Callable[[], str] | None, used: set[str] | None) -> None:
        counter = itertools.count(1)
        self._mint = mint or (lambda: next(each for each in map("call_{}".format, counter) if each not in self._used))
        self._used: set[str] = set() if used is None else used

    def next_id(self, preferred: str = "") -> str:
        """Return a new id: `preferred` if it is valid and unused."""
        found = (
            preferred
            if 0 < len(preferred) <= _MAX_ID_LENGTH and preferred.isprintable() and preferred not in self._used
            else self._mint()
        )
        base, count = found, 2
        while found in self._used:
            found = f"{base}-{count}"
            count += 1
        self._used.add(found)
        return found
