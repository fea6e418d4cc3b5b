"""One call, from its opening tag to its end. Pure.

Owns the two dialects, what may stand where in a call, and what becomes of one that is broken. Must not know the text
around it.

A call is `<tool_use>` with, in any order, `<tool_name>`, perhaps `<tool_call_id>`, and perhaps one of `<parameters>`
(an element for each parameter) and `<arguments>` (JSON). Rules:

- JSON is opaque: an end tag counts only outside of its string literals. As soon as the text cannot be JSON any more
  (a raw line break in a string, say), literals are no longer told apart. If the end of the call already stood in the
  literal in which that shows, the call ended there, and reading goes on behind it.
- A parameter is opaque up to its own end tag, and CDATA up to `]]>`. Without a nonce, a parameter that is never closed
  is taken to have ended the call where its end tag first stood, but that is known only at the end of the reply. With
  a nonce, the outer tags count inside of parameters, too: no text has them by accident. Whoever has to write a
  parameter's own end tag, or with a nonce the outer tags, uses CDATA, entities or the JSON dialect.
- `<parameters>` that begins with `{` is read as JSON. `<arguments>` may be wrapped in CDATA.
- A call that begins before the last one closed refuses the first, and is read itself.
- A call without either element has no arguments; with anything else in it that is unknown, it is refused instead.
- Attributes are never read. A field that is said twice refuses the call.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any, Final

from pilothouse.tools.xml.events import Event, ToolCall, ToolCallDelta, ToolCallError, ToolCallStart
from pilothouse.tools.xml.literals import NO_OBJECT, Fault, JsonLexer, Stop, read_object
from pilothouse.tools.xml.rules import Rules
from pilothouse.tools.xml.source import Source
from pilothouse.tools.xml.tags import (
    CDATA,
    CDATA_END,
    EVERY_TAG,
    EVERY_TAG_AND_CDATA,
    WAIT,
    Tag,
    local_name,
    tag_at,
)
from pilothouse.tools.xml.values import declares, is_structured, text_of, typed

_REMEMBERED: Final = 1000  # parameters
RAW_HEAD: Final = 1000  # characters of a call over the limit that its error shows
_NAME, _ID, _JSON, _ELEMENTS = "tool_name", "tool_call_id", "arguments", "parameters"


class CallReader:
    """Reads one call; `over` when it is done.

    Args:
        source: at the opening tag.
        rules: of the parser.
        emit: takes each event.
        tag: the opening tag.
    """

    def __init__(self, source: Source, rules: Rules, emit: Callable[[Event], None], tag: Tag) -> None:
        self.over = False
        self._source = source
        self._rules = rules
        self._emit = emit
        self._raw = StringIO()
        self._size = 0
        self._refused = False
        self._fields: dict[str, str] = {}
        self._id: str | None = None
        self._faults: list[Fault] = []
        self._stray = ""
        # The element that holds the arguments: its name, where its content begins and ends, and its parameters.
        self._body = ""
        self._body_start = self._body_end = -1
        self._pairs: list[tuple[str, int, int]] | None = None
        self._step = self._between_fields
        self._parameters: dict[str, tuple[bool, bool]] = {}
        # The field or parameter that is being read.
        self._own = ""
        self._value_start = 0
        self._depth = 0
        self._nests = False
        self._in_cdata = False
        self._wrapped = False  # JSON in CDATA
        self._leaf = StringIO()
        self._lexer = JsonLexer()
        # Where in the parameter or literal that is being read the call would end, and how many calls are open there.
        self._literal = 0
        self._inner_end = -1
        self._nested = 0
        self._enter: dict[str, Callable[[Tag], None]] = {
            _NAME: self._enter_leaf, _ID: self._enter_leaf, _JSON: self._enter_json, _ELEMENTS: self._enter_elements
        }  # fmt: skip
        self._keep(tag.end)
        if tag.is_empty:
            self._conclude()

    def step(self) -> bool:
        """Read on; False if that takes more input."""
        return self._step()

    def end(self) -> None:
        """There is no more input."""
        if not self._go_back():
            self._conclude(("truncated", "The call is cut off: its end is missing"))

    # Reading

    def _keep(self, to: int) -> str:
        piece = self._source.take(to)
        if self._refused:
            return piece
        room = self._rules.limit - self._size
        self._size += len(piece)
        kept = piece if len(piece) <= room else piece[:room]
        self._raw.write(kept)
        if self._body_start >= 0 and self._body_end < 0 and self._id is not None and kept:
            self._emit(ToolCallDelta(self._id, kept))
        if kept is not piece:
            self._refuse("too_large", f"The call is too large: {self._rules.limit:,} characters are allowed")
        return piece

    def _find(self, own: str) -> tuple[str, Tag | None]:
        """What stands before the next tag of this name, or of a call; and that tag."""
        source, wanted = self._source, (own, self._rules.outer)
        at, tag = EVERY_TAG.find(source.data, source.pos, source.final, lambda name: local_name(name) in wanted)
        return self._keep(at), tag

    def _is_outer(self, tag: Tag) -> bool:
        return tag.local == self._rules.outer

    def _between_fields(self) -> bool:
        source = self._source
        at, tag = EVERY_TAG.find(source.data, source.pos, source.final)
        if self._keep(at).strip():
            self._stray = self._stray or "text"
        if tag is None:
            return False
        if self._is_outer(tag):
            self._at_outer(tag, None)
            return True
        self._keep(tag.end)
        if tag.is_end or tag.local not in self._enter:
            self._stray = self._stray or f"<{tag.name}>"
        else:
            self._enter[tag.local](tag)
        return True

    def _at_outer(self, tag: Tag, unclosed: str | None) -> None:
        """The call ends here, or another begins."""
        fault = None if unclosed is None else ("unclosed", f"<{unclosed}> is not closed")
        if tag.is_end:
            self._keep(tag.end)
        else:
            fault = ("unclosed", "The call is not closed: another begins in it")
        self._conclude(fault)

    # Name and id

    def _enter_leaf(self, tag: Tag) -> None:
        self._own = tag.local
        self._leaf = StringIO()
        if tag.is_empty:
            self._leave_leaf()
        else:
            self._step = self._in_leaf

    def _in_leaf(self) -> bool:
        piece, tag = self._find(self._own)
        if not self._refused:
            self._leaf.write(piece)
        if tag is None:
            return False
        if self._is_outer(tag):
            self._at_outer(tag, self._own)
        elif tag.is_end:
            self._keep(tag.end)
            self._leave_leaf()
        else:
            self._leaf.write("<")  # its own tag again, which makes no name
            self._keep(tag.end)
        return True

    def _leave_leaf(self) -> None:
        self._step = self._between_fields
        if not self._once(self._own):
            return
        self._fields[self._own] = text_of(self._leaf.getvalue()).strip()
        if self._own == _NAME and self._fields[_NAME] and not self._refused:
            self._announce(self._fields[_NAME])

    def _once(self, field: str) -> bool:
        """Whether a field is said for the first time."""
        if field in self._fields:
            self._fault(f"<{field}> is said twice")
            return False
        self._fields[field] = ""
        return True

    def _fault(self, what: str) -> None:
        if not self._faults:
            self._faults.append(("invalid_call", f"Invalid tool call: {what}"))

    def _announce(self, name: str) -> None:
        self._id = self._rules.ids.take(self._fields.get(_ID, ""))
        self._emit(ToolCallStart(self._id, name))
        if self._body_start >= 0:
            text = self._raw.getvalue()[self._body_start : self._body_end]
            if text:
                self._emit(ToolCallDelta(self._id, text))

    # Arguments

    def _enter_body(self, tag: Tag) -> bool:
        """Whether the arguments begin here."""
        first = self._body_start < 0
        if not first:
            self._fault("it has its arguments twice")
        self._body = tag.local
        if first:
            self._body_start = self._size
            if tag.is_empty:
                self._body_end = self._size
        return not tag.is_empty

    def _leave_body(self, tag: Tag) -> None:
        if self._body_end < 0:
            self._body_end = self._size
        self._keep(tag.end)
        self._step = self._between_fields

    def _enter_json(self, tag: Tag) -> None:
        if self._enter_body(tag):
            self._lexer = JsonLexer()
            self._step = self._before_json

    def _before_json(self) -> bool:
        """White space, and perhaps the beginning of a CDATA section around everything."""
        source = self._source
        data, pos = source.data, source.pos
        end = len(data)
        while pos < end and data[pos] in " \t\r\n":
            pos += 1
        self._keep(pos)
        head = data[pos : pos + len(CDATA)].upper()
        if head == CDATA:
            self._wrapped = True
            self._enter_value(self._body, nests=False)
        elif not source.final and CDATA.startswith(head):
            return False
        else:
            self._step = self._in_json
        return True

    def _in_json(self) -> bool:
        source = self._source
        to, stop = self._lexer.advance(source.data, source.pos, source.final)
        self._keep(to)
        if stop is Stop.MORE:
            self._keep(len(source.data) if source.final else source.pos)
            return False
        if stop is Stop.DOOM:
            return self._doomed()
        return self._in_string_tag() if self._lexer.in_string else self._after_json()

    def _in_string_tag(self) -> bool:
        """At a `<` in a string literal: it means nothing, unless the literal turns out to be none."""
        source, outer = self._source, self._rules.outer
        tag = tag_at(source.data, source.pos, source.final, lambda name: local_name(name) == outer, bare=True)
        if tag is WAIT:
            return False
        if tag is None:
            self._keep(source.pos + 1)
            return True
        if self._literal != self._lexer.opened:
            self._literal, self._nested, self._inner_end = self._lexer.opened, 0, -1
        self._count_outer(tag)
        return True

    def _after_json(self) -> bool:
        source = self._source
        wanted = (self._body, self._rules.outer)
        tag = tag_at(source.data, source.pos, source.final, lambda name: local_name(name) in wanted)
        if tag is WAIT:
            return False
        if tag is None or (tag.local == self._body and not tag.is_end):
            return self._doomed()
        self._end_of_body(tag)
        return True

    def _doomed(self) -> bool:
        if not self._go_back():
            self._step = self._in_doomed
        return True

    def _in_doomed(self) -> bool:
        _, tag = self._find(self._body)
        if tag is None:
            return False
        if tag.local == self._body and not tag.is_end:
            self._keep(tag.end)
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
            self._pairs = []
        if self._enter_body(tag):
            self._step = self._before_elements

    def _before_elements(self) -> bool:
        source = self._source
        data, pos = source.data, source.pos
        while pos < len(data) and data[pos].isspace():
            pos += 1
        self._keep(pos)
        if pos == len(data):
            return False
        if data[pos] == "{":
            self._pairs = None
            self._lexer = JsonLexer()
            self._step = self._in_json
        else:
            self._step = self._between_elements
        return True

    def _between_elements(self) -> bool:
        source = self._source
        at, tag = EVERY_TAG.find(source.data, source.pos, source.final)
        if self._keep(at).strip():
            self._fault(f"text between the elements of <{self._body}>")
        if tag is None:
            return False
        declared, nests = self._about(tag.name)
        own = declared and not tag.is_end
        if not own and (self._is_outer(tag) or (tag.local == self._body and tag.is_end)):
            self._end_of_body(tag)
            return True
        self._keep(tag.end)
        if tag.is_end:
            self._fault(f"an end tag without its beginning in <{self._body}>")
        elif tag.is_empty:
            self._add_pair(tag.name, self._size, self._size)
        else:
            self._enter_value(tag.name, nests=nests)
        return True

    def _about(self, name: str) -> tuple[bool, bool]:
        """Whether the tool declares a parameter, and whether that has elements of its own."""
        schema = self._rules.catalog.schema(self._fields.get(_NAME, ""))
        if schema is None:
            return False, False
        if name not in self._parameters:
            if len(self._parameters) > _REMEMBERED:
                self._parameters.clear()
            self._parameters[name] = declares(schema, name), is_structured(schema, name)
        return self._parameters[name]

    def _add_pair(self, name: str, start: int, end: int) -> None:
        if self._pairs is not None and not self._refused:
            self._pairs.append((name, start, end))

    def _enter_value(self, name: str, *, nests: bool) -> None:
        self._own, self._nests = name, nests
        self._depth, self._nested, self._inner_end = 1, 0, -1
        self._value_start = self._size
        self._step = self._in_value

    def _in_value(self) -> bool:
        source, outer, own = self._source, self._rules.outer, self._own
        if self._in_cdata:
            return self._in_section()
        at, tag = EVERY_TAG_AND_CDATA.find(
            source.data, source.pos, source.final, lambda name: name == own or local_name(name) in (outer, own)
        )
        self._keep(at)
        if tag is None:
            return False
        if tag.name == CDATA:
            self._in_cdata = True
        elif tag.name == own or (self._wrapped and tag.local == own):
            return self._at_own(tag)
        elif tag.local == outer:
            if self._rules.has_nonce:
                self._at_outer(tag, own)
                return True
            self._count_outer(tag)
            return True
        self._keep(tag.end)
        return True

    def _in_section(self) -> bool:
        source = self._source
        at = source.data.find(CDATA_END, source.pos)
        if at >= 0:
            self._keep(at + len(CDATA_END))
            self._in_cdata = False
            return True
        held = 0 if source.final else next((n for n in (2, 1) if source.data.endswith("]" * n, source.pos)), 0)
        self._keep(len(source.data) - held)
        return False

    def _at_own(self, tag: Tag) -> bool:
        if tag.is_end:
            self._depth -= 1
        elif self._nests and not tag.is_empty:
            self._depth += 1
        if self._depth:
            self._keep(tag.end)
        elif self._wrapped:
            self._leave_body(tag)
        else:
            end = self._size
            self._keep(tag.end)
            self._add_pair(self._own, self._value_start, end)
            self._step = self._between_elements
        return True

    def _count_outer(self, tag: Tag) -> None:
        """A tag of a call inside of a parameter: remember where the first end stands that has no beginning there."""
        self._keep(tag.end)
        if not tag.is_end:
            self._nested += not tag.is_empty
        elif self._nested:
            self._nested -= 1
        elif self._inner_end < 0:
            self._inner_end = self._size

    # The end

    def _go_back(self) -> bool:
        """End a call that is broken where its end tag already stood, and read again what follows that."""
        in_json = self._step == self._in_json
        at = self._inner_end
        if at < 0 or self._refused or not (self._step == self._in_value or in_json):
            return False
        if in_json and self._literal != self._lexer.literal:
            return False
        raw = self._raw.getvalue()
        if not self._source.may_go_back(len(raw) - at):
            return False
        self._source.go_back(raw[at:])
        self._raw = StringIO()
        self._raw.write(raw[:at])
        self._conclude(
            read_object(raw[self._body_start : at])[1] if in_json else ("unclosed", f"<{self._own}> is not closed")
        )
        return True

    def _refuse(self, code: str, message: str, raw: str | None = None) -> None:
        self._refused = True
        call_id = self._rules.ids.take(self._fields.get(_ID, "")) if self._id is None else self._id
        shown = self._raw.getvalue()[:RAW_HEAD] if raw is None else raw
        self._raw = StringIO()
        self._emit(ToolCallError(call_id, self._fields.get(_NAME) or None, code, message, shown))

    def _conclude(self, fault: Fault | None = None) -> None:
        self.over = True
        if self._refused:
            return
        raw = self._raw.getvalue()
        name = self._fields.get(_NAME, "")
        fault = fault or (self._faults[0] if self._faults else self._name_fault(name))
        arguments: dict[str, Any] | None = None
        if fault is None:
            arguments, fault = self._arguments(raw, name)
        if fault is not None or arguments is None:
            self._refuse(*(fault or NO_OBJECT), raw)
            return
        call_id = self._rules.ids.take() if self._id is None else self._id
        self._emit(ToolCall(call_id, name, arguments, raw))

    def _name_fault(self, name: str) -> Fault | None:
        if not name:
            return "missing_name", "Tool call missing name"
        return None if self._rules.catalog.knows(name) else ("unknown_tool", self._rules.catalog.unknown(name))

    def _arguments(self, raw: str, name: str) -> tuple[dict[str, Any] | None, Fault | None]:
        if self._body_start < 0:
            stray = f"Invalid tool call: {self._stray} in place of <{_ELEMENTS}> or <{_JSON}>"
            return {}, ("invalid_call", stray) if self._stray else None
        if self._pairs is not None:
            pairs = [(each, raw[start:end]) for each, start, end in self._pairs]
            return typed(self._rules.catalog.schema(name), pairs), None
        text = raw[self._body_start : self._body_end]
        return read_object(text_of(text, entities=False) if self._wrapped else text)
