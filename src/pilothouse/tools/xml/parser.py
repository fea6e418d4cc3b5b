"""The streaming parser: a reply in, events out, however it is cut. Pure.

Owns the text of the reply, the model's thinking in it, and where calls begin. Must not know who runs calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Final

from pilothouse.errors import UsageError
from pilothouse.tools.xml.call import RAW_HEAD, CallReader
from pilothouse.tools.xml.catalog import Catalog, Tools
from pilothouse.tools.xml.events import Event, Finish, TextDelta, ThinkingDelta, ToolCall, ToolCallDelta, ToolCallError
from pilothouse.tools.xml.ids import CallIds
from pilothouse.tools.xml.quoting import Quoting
from pilothouse.tools.xml.rules import Rules
from pilothouse.tools.xml.source import Source
from pilothouse.tools.xml.tags import Seeker, Tag, seeker_of

DEFAULT_MAX_CALL_CHARS: Final = 16 * 1024 * 1024

_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVENTED: Final = "A result must not be made up: results come from the tools, in the next message"
_BARE: Final = "tool_use"
_BARE_HEAD: Final = 512  # characters behind a bare tag in which the name of the tool has to come
_BARE_NAME: Final = re.compile(
    r"\s*(?:<\s*tool_call_id\s*>[^<>]*<\s*/\s*tool_call_id\s*>\s*)?<\s*tool_name\s*>\s*([^<>]*[^<>\s])\s*<\s*/",
    re.IGNORECASE,
)
_NO_SUFFIX: Final = (
    "The call of {name} was not run: its outer tag lacks the suffix. Write the call again with the suffix in both "
    "outer tags, as the rules say. A call that is only to be shown stands in a code fence"
)


class StreamParser:
    """Reads one reply of the model. (S10-S19, S24, S25, S29)

    Text, thinking and calls come out in the order of the reply, each as soon as it is certain. Where the reply is cut
    into chunks makes no difference, but for where deltas are cut. Nothing is lost: every character is in a delta of
    text or thinking, or in the `raw` of a call or an error, but for `<thinking>` tags and what a call over the limit
    has too much. The time is linear in the reply.

    What counts as a call:

    - A `<tool_use>` tag; with a nonce only `<tool_use-NONCE>`, so that nothing the model quotes can be one. See
      `pilothouse.tools.xml.call` for what stands in it. Space, letters of either case, attributes (never read) and a
      namespace prefix are no matter, in this tag and in the others of the protocol.
    - Not in a code fence, inline code or a quoted line: that is an example, and stays text. Only with a nonce, calls
      that are the first thing in a fence are calls; the lines of the fence stay text. Comments and CDATA sections
      hide nothing outside of a call.
    - `<thinking>` up to the next `</thinking>`, or to the end of the reply, is thinking, whatever stands in it.
    - With `refuse_bare`, a `<tool_use>` tag without the nonce that begins a line and is followed by the name of a known
      tool is an error of code `missing_suffix`, and never a call. Anywhere else it is text.
    - A result that the model wrote by itself (`<tool_result>` after a call; with a nonce, `<tool_result-NONCE>`
      anywhere) is an error of code `invented_result`, up to its end tag or the end of the reply.

    Ids: a call has the id that the model gave, if that is new and comes before the name; else one is minted.

    Args:
        tools: what may be called: tools, definitions, or names with JSON Schemas. The values of parameters are typed
            by the schema. With none, every name is accepted, and parameters are strings.
        nonce: suffix of the outer tags.
        mint: makes ids; by default `call_1`, `call_2`, … without those that are used.
        used: ids of earlier calls; the new ones are added. Share one set among the parsers of a session.
        max_call_chars: longest call, in characters; a longer one is an error, and the reply goes on. 16 Mi by default.
        refuse_bare: whether a call without the nonce is an error, so that the model can be told; off by default.
        unwrap_text: whether `<text>` tags around prose are dropped; off by default, when they are text.

    Raises:
        UsageError: the tools, the nonce or the limit cannot be used.
    """

    def __init__(
        self,
        tools: Tools | None = None,
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
        self._rules = Rules(outer, nonce is not None, Catalog(tools), self._ids, max_call_chars)
        self._result = result
        self._source = Source()
        self._quoting = Quoting()
        self._events: list[Event] = []
        self._step: Callable[[], bool] = self._in_text
        self._call: CallReader | None = None
        self._any_call = False
        self._reason: Finish = Finish("stop")
        self._closed = False
        self._text_depth = 0
        self._held: StringIO | None = None  # what is an error when it has ended
        self._held_size = 0
        self._fault: tuple[str | None, str, str] = (None, "", "")  # name, code and message of that error
        # What a tag in the text does; each says whether it did anything.
        self._actions: dict[tuple[str, bool], Callable[[Tag], bool]] = {
            (outer, False): self._open_call,
            (result, False): self._open_result,
            ("thinking", False): self._open_thinking,
        }
        if refuse_bare and nonce is not None:
            self._actions[_BARE, False] = self._open_bare
        if unwrap_text:
            self._actions |= {("text", False): self._open_prose, ("text", True): self._close_prose}
        self._in_fence = {outer, result} if nonce is not None else set[str]()
        self._seeker = seeker_of(*dict.fromkeys(name for name, _ in self._actions))

    def feed(self, text: str) -> list[Event]:
        """Take the next part of the reply.

        Returns:
            What is certain now.

        Raises:
            UsageError: the parser is closed.
        """
        if self._closed:
            raise UsageError("the parser is closed; a reply takes a parser of its own")
        self._source.add(text)
        return self._run()

    def close(self) -> list[Event]:
        """The reply is over. Returns what is left, and `Finish` as the last; nothing when called again. (S15)"""
        if self._closed:
            return []
        self._closed = True
        self._source.final = True
        events = self._run()
        while self._call is not None:
            self._call.end()
            self._after_call()
            events += self._run()
        if self._held is not None:
            self._close_held()
            events += self._taken()
        return [*events, self._reason]

    def _run(self) -> list[Event]:
        while self._step():
            pass
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _emit(self, event: Event) -> None:
        if isinstance(event, ToolCall):
            self._reason = Finish("tool-calls")
        self._events.append(event)

    def _in_text(self) -> bool:
        source = self._source
        at, tag = self._seeker.find(source.data, source.pos, source.final)
        self._say(at)
        if tag is None:
            return False
        hidden = self._quoting.hides(first_in_fence=tag.local in self._in_fence)
        action = None if hidden else self._actions.get((tag.local, tag.is_end))
        if action == self._open_bare and self._quoting.begins_line and self._waits_for_name(tag):
            return False
        if action is None or not action(tag):
            self._say(tag.end)
        else:
            self._quoting.new_line()
        return True

    def _say(self, to: int) -> None:
        source = self._source
        if to > source.pos:
            self._quoting.pass_over(source.data, source.pos, to)
            self._events.append(TextDelta(source.take(to)))

    # Calls

    def _open_call(self, tag: Tag) -> bool:
        self._any_call = True
        self._call = CallReader(self._source, self._rules, self._emit, tag)
        self._step = self._in_call
        return True

    def _in_call(self) -> bool:
        if self._call is None:
            return False
        more = self._call.over or self._call.step()
        if self._call.over:
            self._after_call()
            return True
        return more

    def _after_call(self) -> None:
        self._call = None
        self._step = self._in_text

    # Thinking

    def _open_thinking(self, tag: Tag) -> bool:
        self._source.take(tag.end)
        if not tag.is_empty:
            self._step = self._in_thinking
        return True

    def _in_thinking(self) -> bool:
        tag = self._pass_to_end(seeker_of("thinking"), lambda text: self._events.append(ThinkingDelta(text)))
        if tag is None:
            return False
        if tag.is_end:
            self._source.take(tag.end)
            self._step = self._in_text
        else:
            self._events.append(ThinkingDelta(self._source.take(tag.end)))
        return True

    def _pass_to_end(self, seeker: Seeker, take: Callable[[str], object]) -> Tag | None:
        source = self._source
        at, tag = seeker.find(source.data, source.pos, source.final)
        if at > source.pos:
            take(source.take(at))
        return tag

    # Results that nobody gave

    def _open_result(self, tag: Tag) -> bool:
        if not (self._any_call or self._in_fence):
            return False
        self._open_held(tag, (None, "invented_result", _INVENTED), self._in_result)
        if tag.is_empty:
            self._close_held()
        return True

    def _in_result(self) -> bool:
        tag = self._pass_to_end(seeker_of(self._result), self._hold)
        if tag is None:
            return False
        self._hold(self._source.take(tag.end))
        if tag.is_end:
            self._close_held()
        return True

    # Calls without the nonce

    def _waits_for_name(self, tag: Tag) -> bool:
        rest = self._source.data[tag.end : tag.end + _BARE_HEAD]
        if self._source.final or len(rest) == _BARE_HEAD or _BARE_NAME.match(rest):
            return False
        return rest.lstrip()[:1] in ("", "<")

    def _open_bare(self, tag: Tag) -> bool:
        found = _BARE_NAME.match(self._source.data[tag.end : tag.end + _BARE_HEAD])
        name = found[1] if found is not None and not tag.is_empty else None
        if name is None or name not in self._rules.catalog or not self._quoting.begins_line:
            return False
        self._open_held(tag, (name, "missing_suffix", _NO_SUFFIX.format(name=name)), self._in_bare)
        return True

    def _in_bare(self) -> bool:
        tag = self._pass_to_end(seeker_of(_BARE, self._rules.outer), self._hold)
        if tag is None:
            return False
        if tag.is_end:
            self._hold(self._source.take(tag.end))
        self._close_held()
        return True

    # What is held until it has ended, and is an error then

    def _open_held(self, tag: Tag, fault: tuple[str | None, str, str], step: Callable[[], bool]) -> None:
        self._held, self._held_size, self._fault, self._step = StringIO(), 0, fault, step
        self._hold(self._source.take(tag.end))

    def _hold(self, text: str) -> None:
        if self._held is not None and self._held_size <= self._rules.limit:
            self._held.write(text[: self._rules.limit - self._held_size])
            self._held_size += len(text)

    def _close_held(self) -> None:
        raw = self._held.getvalue() if self._held else ""
        if self._held_size > self._rules.limit:
            raw = raw[:RAW_HEAD]
        self._events.append(ToolCallError(self._ids.take(), *self._fault, raw))
        self._held = None
        self._step = self._in_text

    # Wrapped prose

    def _open_prose(self, tag: Tag) -> bool:
        self._source.take(tag.end)
        self._text_depth += not tag.is_empty
        return True

    def _close_prose(self, tag: Tag) -> bool:
        if not self._text_depth:
            return False
        self._text_depth -= 1
        self._source.take(tag.end)
        return True


def merge(events: list[Event]) -> list[Event]:
    """The same events, with neighbouring deltas of one kind (and one call) put together."""
    merged: list[Event] = []
    parts: list[str] = []
    for event in events:
        is_delta = isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta)
        if is_delta and parts and _alike(merged[-1], event):
            parts.append(event.text)
            continue
        _join(merged, parts)
        parts = [event.text] if is_delta else []
        merged.append(event)
    _join(merged, parts)
    return merged


def _alike(one: Event, other: Event) -> bool:
    return type(one) is type(other) and getattr(one, "id", None) == getattr(other, "id", None)


def _join(merged: list[Event], parts: list[str]) -> None:
    if len(parts) > 1:
        last = merged[-1]
        text = "".join(parts)
        if isinstance(last, ToolCallDelta):
            merged[-1] = ToolCallDelta(last.id, text)
        elif isinstance(last, TextDelta | ThinkingDelta):
            merged[-1] = type(last)(text)


def parse(text: str, tools: Tools | None = None, nonce: str | None = None) -> list[Event]:
    """The events of a whole reply, with neighbouring deltas put together. Arguments and errors of `StreamParser`."""
    parser = StreamParser(tools, nonce)
    return merge([*parser.feed(text), *parser.close()])
