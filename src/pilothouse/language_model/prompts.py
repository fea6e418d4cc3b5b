"""From the messages of a framework to messages in blocks of the Messages API. Pure.

Owns the forms in which parts are given: those of AI SDKs (in snake or camel case), those of the Messages API, and the
typed parts of this room. What cannot be told is named in a warning, and stands in the history as a note. (S35, S40)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from pilothouse.errors import UsageError
from pilothouse.language_model.parts import CallWarning, ToolCall, ToolResult
from pilothouse.messages.base import to_json_values
from pilothouse.tools.content import json_text, sniffed

Wire: TypeAlias = dict[str, Any]

_ROLES: Final = ("user", "assistant", "tool", "system", "developer")
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PDF: Final = "application/pdf"
_MEDIA_KEYS: Final = ("media_type", "mediaType", "mime_type", "mimeType")
_ID_KEYS: Final = ("tool_call_id", "toolCallId", "tool_use_id", "id")
_NAME_KEYS: Final = ("tool_name", "toolName", "name")
_INPUT_KEYS: Final = ("input", "args", "arguments")
_ERROR_OUTPUTS: Final = frozenset({"error-text", "error-json", "execution-denied"})


class Reading:
    """The messages of one request, read one by one.

    Attributes:
        warnings: what could not be told.
        call_ids: of the calls in the messages.
        at: where in the messages the reading is, for errors and warnings.
    """

    def __init__(self) -> None:
        self.warnings: list[CallWarning] = []
        self.call_ids: set[str] = set()
        self.at = ""

    def messages(self, given: Any) -> list[Wire]:
        """All of them, with `role` and `content`. A text is one user message.

        Raises:
            UsageError: a message or a part is wrong; names its index and what is wrong with which field.
        """
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            name = type(cast("object", given)).__name__
            raise UsageError(f"messages: a list of messages, or a text, is needed, not {name}")
        return [self._message(at, each) for at, each in enumerate(cast("Iterable[Any]", given))]

    def _message(self, at: int, given: Any) -> Wire:
        self.at = f"messages[{at}]"
        plain = _plain(given)
        if not isinstance(plain, Mapping):
            raise self._wrong(f"a mapping with role and content is needed, not {type(given).__name__}")
        message = cast("Mapping[str, Any]", plain)
        inner = message.get("message")
        if "role" not in message and isinstance(inner, Mapping):
            message = cast("Mapping[str, Any]", inner)  # in the form of the CLI
        role = message.get("role")
        if role not in _ROLES:
            raise self._wrong(f"role is {role!r}; known are user, assistant, tool and system")
        if message.get("tool_calls"):
            raise self._wrong("tool_calls: calls are parts of the content, of type 'tool-call' or 'tool_use'")
        content = message.get("content")
        if role == "tool" and not _has_results(content):
            return {"role": "tool", "content": [self._bare_result(message, content)]}
        return {"role": role, "content": self._content(role, content)}

    def _content(self, role: str, content: Any) -> list[Wire]:
        where = self.at
        blocks: list[Wire] = []
        if isinstance(content, str):
            content = [content]
        if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
            raise self._wrong(f"content: text or a list of parts is needed, not {type(content).__name__}")
        for at, each in enumerate(cast("Sequence[Any]", content)):
            self.at = f"{where}.content[{at}]"
            blocks += self._part(role, {"type": "text", "text": each} if isinstance(each, str) else _plain(each))
        self.at = where
        return blocks

    def _part(self, role: str, part: Any) -> list[Wire]:
        kind = _type_of(part)
        if not isinstance(kind, str):
            raise self._wrong("a part is a mapping with a type, or a text")
        form = _PARTS.get(kind)
        if form is None:
            return self.unsupported(f"a part of type {kind!r}", kind)
        read, roles = form
        if role not in roles:
            raise self._wrong(f"a part of type {kind!r} has its place in messages of role {' or '.join(roles)}")
        return read(self, cast("Mapping[str, Any]", part))

    def unsupported(self, what: str, short: str) -> list[Wire]:
        """A part that cannot be told: a note in its place, and a warning."""
        self.warnings.append(CallWarning("unsupported-part", f"{self.at}: {what} cannot be sent, and is left out"))
        return [{"type": "text", "text": f"[{short}: left out]"}]

    def text(self, part: Mapping[str, Any]) -> list[Wire]:
        """Text; nothing if it is blank, which the API refuses."""
        text = part.get("text")
        if not isinstance(text, str):
            raise self._wrong(f"text: a text is needed, not {type(text).__name__}")
        return [{"type": "text", "text": text}] if text.strip() else []

    def reasoning(self, part: Mapping[str, Any]) -> list[Wire]:
        """What the model thought."""
        text = part.get("thinking", part.get("text"))
        if not isinstance(text, str):
            raise self._wrong("a reasoning part needs a text")
        return [{"type": "thinking", "thinking": text}] if text else []

    def hidden_reasoning(self, part: Mapping[str, Any]) -> list[Wire]:
        """Reasoning that only the API can read."""
        self.unsupported("redacted reasoning", "reasoning")
        return []

    def image(self, part: Mapping[str, Any]) -> list[Wire]:
        """A picture."""
        return self._media(part, part.get("image", part.get("data", part.get("url"))), "image/*")

    def file(self, part: Mapping[str, Any]) -> list[Wire]:
        """A picture, a document or a text, by its media type."""
        return self._media(part, part.get("data", part.get("file", part.get("url"))), None)

    def document(self, part: Mapping[str, Any]) -> list[Wire]:
        """A document of the Messages API."""
        if not isinstance(part.get("source"), Mapping):
            raise self._wrong("source: a document needs one")
        return [dict(part)]

    def call(self, part: Mapping[str, Any]) -> list[Wire]:
        """A call that the model made. (S24, S25, S40)"""
        name, given = _first(part, _NAME_KEYS), _first(part, _INPUT_KEYS)
        if not isinstance(name, str) or not name:
            raise self._wrong("Tool call missing name")
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given or "{}")
            except ValueError as error:
                raise self._wrong(f"Invalid tool call: its input is no JSON: {error}") from error
        if not isinstance(given, Mapping | None):
            raise self._wrong(f"Invalid tool call: its input must be an object, not {type(given).__name__}")
        arguments = dict(cast("Mapping[str, Any]", given or {}))
        call_id = self._id(part)
        self.call_ids.add(call_id)
        return [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}]

    def result(self, part: Mapping[str, Any]) -> list[Wire]:
        """What a call gave."""
        failed = part.get("is_error", part.get("isError")) is True
        value = part.get("output", part.get("result", part.get("content")))
        if isinstance(value, Mapping) and "type" in value:
            kind = str(cast("Any", value)["type"])
            if kind in _OUTPUTS:
                value, failed = _OUTPUTS[kind](cast("Mapping[str, Any]", value)), failed or kind in _ERROR_OUTPUTS
        made = {"type": "tool_result", "tool_use_id": self._id(part), "content": self._output(value)}
        name = _first(part, _NAME_KEYS)
        return [made | ({"name": name} if isinstance(name, str) else {}) | ({"is_error": True} if failed else {})]

    def _bare_result(self, message: Mapping[str, Any], content: Any) -> Wire:
        (made,) = self.result({**message, "content": content})
        return made

    def _output(self, value: Any) -> list[Wire]:
        if value is None or value == []:
            return []
        items = [_plain(each) for each in (cast("list[Any]", value) if isinstance(value, list) else [value])]
        if not all(_type_of(each) in _RESULT_PARTS for each in items):
            text = value if isinstance(value, str) else self._json(value)
            return [{"type": "text", "text": text}] if text else []
        return [block for each in items for block in _RESULT_PARTS[each["type"]](self, each)]

    def _media(self, part: Mapping[str, Any], value: Any, default: str | None) -> list[Wire]:
        if isinstance(part.get("source"), Mapping):
            return [{key: part[key] for key in ("type", "source") if key in part} | {"type": "image"}]
        kind, data = _first(part, _MEDIA_KEYS), value
        if isinstance(data, Mapping):
            data = cast("Mapping[str, Any]", data).get("url", cast("Mapping[str, Any]", data).get("data"))
        if isinstance(data, bytes | bytearray | memoryview):
            raw = bytes(cast("bytes", data))
            return self._block(part, {"data": base64.b64encode(raw).decode()}, kind or _kind_of(raw) or default)
        if not isinstance(data, str) or not data:
            raise self._wrong("it needs data: bytes, base64, a data URL or an address")
        if data.startswith(("http://", "https://")):
            return self._block(part, {"url": data}, kind or default)
        if data.startswith("data:"):
            head, _, data = data.partition(",")
            kind = head[5:].partition(";")[0] or kind
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._wrong(f"its data is no base64: {error}") from error
        return self._block(part, {"data": data}, kind or _kind_of(raw) or default)

    def _block(self, part: Mapping[str, Any], source: Wire, kind: Any) -> list[Wire]:
        if not isinstance(kind, str):
            raise self._wrong("media_type: it cannot be told from the data, and is needed")
        by_url = "url" in source
        if kind in _IMAGES or (by_url and kind.startswith("image/")):
            made: Wire = {"type": "image", "source": source | _told(kind, by_url=by_url)}
        elif kind == _PDF:
            made = {"type": "document", "source": source | _told(kind, by_url=by_url)}
        elif kind.startswith("text/") and not by_url:
            text = base64.b64decode(source["data"]).decode("utf-8", "replace")
            made = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
        else:
            return self.unsupported(f"a file of type {kind!r}", kind)
        title = part.get("filename", part.get("title"))
        return [made | ({"title": title} if title and made["type"] == "document" else {})]

    def _id(self, part: Mapping[str, Any]) -> str:
        found = _first(part, _ID_KEYS)
        if not isinstance(found, str) or not found:
            raise self._wrong("tool_call_id: it names no call")
        return found

    def _json(self, value: Any) -> str:
        try:
            return json_text(value)
        except Exception as error:
            raise self._wrong(f"the result of a tool must be JSON: {error}") from error

    def _wrong(self, text: str) -> UsageError:
        return UsageError(f"{self.at}: {text}")


def _plain(value: Any) -> Any:
    """A typed part or message as a mapping; anything else as it is."""
    if isinstance(value, ToolCall):
        return {"type": "tool-call", "id": value.id, "name": value.name, "input": value.input}
    if isinstance(value, ToolResult):
        shown = {"content": value.content, "is_error": value.is_error}
        return {"type": "tool-result", "id": value.id, "name": value.name, **shown}
    if isinstance(value, msgspec.Struct):
        made = cast("dict[str, Any]", to_json_values(value))
        kind = getattr(value, "type", None)
        return {"type": _DELTAS.get(kind, kind), **made} if isinstance(kind, str) else made
    return value


_DELTAS: Final = {"text-delta": "text", "reasoning-delta": "reasoning"}


def _has_results(content: Any) -> bool:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return False
    return any(_type_of(_plain(each)) in ("tool-result", "tool_result") for each in cast("Sequence[Any]", content))


def _type_of(part: Any) -> Any:
    return cast("Mapping[str, Any]", part).get("type") if isinstance(part, Mapping) else None


def _first(part: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((part[key] for key in keys if part.get(key) is not None), None)


def _kind_of(data: bytes) -> str | None:
    return _PDF if data.startswith(b"%PDF-") else sniffed(data)


def _told(kind: str, *, by_url: bool) -> Wire:
    return {"type": "url"} if by_url else {"type": "base64", "media_type": kind}


def _value(output: Mapping[str, Any]) -> Any:
    return output.get("value")


# The forms of the output of a tool in AI SDKs.
_OUTPUTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "text": lambda output: output.get("value", output.get("text")),
    "error-text": _value,
    "json": lambda output: json_text(output.get("value")),
    "error-json": lambda output: json_text(output.get("value")),
    "content": _value,
    "execution-denied": lambda output: str(output.get("reason") or "The call was denied."),
}

_Read: TypeAlias = Callable[[Reading, Mapping[str, Any]], list[Wire]]
_ANYWHERE: Final = ("user", "assistant", "system", "developer")
_SPOKEN: Final = ("user", "assistant")

# What each type of part becomes, and the roles of the messages in which it may stand.
_PARTS: Final[Mapping[str, tuple[_Read, Sequence[str]]]] = {
    "text": (Reading.text, _ANYWHERE),
    "image": (Reading.image, _SPOKEN),
    "file": (Reading.file, _SPOKEN),
    "document": (Reading.document, _SPOKEN),
    "reasoning": (Reading.reasoning, ("assistant",)),
    "thinking": (Reading.reasoning, ("assistant",)),
    "redacted_thinking": (Reading.hidden_reasoning, ("assistant",)),
    "tool-call": (Reading.call, ("assistant",)),
    "tool_use": (Reading.call, ("assistant",)),
    "tool-result": (Reading.result, ("tool", "user")),
    "tool_result": (Reading.result, ("tool", "user")),
}
_RESULT_PARTS: Final[Mapping[str, _Read]] = {
    "text": Reading.text,
    "image": Reading.image,
    "media": Reading.file,
    "file": Reading.file,
    "file-data": Reading.file,
    "image-data": Reading.image,
    "document": Reading.document,
}
