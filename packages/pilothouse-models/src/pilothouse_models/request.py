"""Converts the messages and tools of one request from the forms of frameworks to blocks of the Messages API.

Accepts the parts of AI SDKs (snake or camel case), of the Messages API, and the typed parts of this package. A part
that cannot be sent causes a warning and becomes a note in the history.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from pilothouse.errors import ToolDefinitionError, UsageError
from pilothouse.events import ToolCall, ToolCallFinished
from pilothouse.support import sniff_media_type, to_json_values
from pilothouse.tools import Tool, ToolInputError, as_tool, create_tool
from pilothouse.tools.input_schema import ToolInput, make_input
from pilothouse.tools.tool import check_tool_name
from pilothouse_models.json_text import json_text

WireObject: TypeAlias = dict[str, Any]

_ROLES: Final = ("user", "assistant", "tool", "system", "developer")
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PDF: Final = "application/pdf"
_MEDIA_KEYS: Final = ("media_type", "mediaType", "mime_type", "mimeType")
_ID_KEYS: Final = ("tool_call_id", "toolCallId", "tool_use_id", "id")
_NAME_KEYS: Final = ("tool_name", "toolName", "name")
_INPUT_KEYS: Final = ("input", "args", "arguments")
_ERROR_OUTPUTS: Final = frozenset({"error-text", "error-json", "execution-denied"})


class CallWarning(msgspec.Struct, frozen=True):
    """A part of the request that could not be fulfilled.

    Attributes:
        kind: "unsupported-part", "unsupported-setting", "unsupported-tool", "tool-choice", or "tool-call"
            (a call that was not run).
        message: what, and where.
    """

    kind: str
    message: str


class MessageConverter:
    """Converts the messages of one request, one by one.

    Attributes:
        warnings: parts that could not be converted.
        call_ids: ids of the calls in the messages.
        position: the current position in the messages, for errors and warnings.
    """

    def __init__(self) -> None:
        self.warnings: list[CallWarning] = []
        self.call_ids: set[str] = set()
        self.position = ""

    def convert(self, given: Any) -> list[WireObject]:
        """Convert all messages to mappings with `role` and `content`. A text is one user message.

        Raises:
            UsageError: a message or a part is not valid; the error names its index, the field and what is wrong.
        """
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            name = type(cast("object", given)).__name__
            raise UsageError(f"messages: a list of messages, or a text, is needed, not {name}")
        return [self._message(at, each) for at, each in enumerate(cast("Iterable[Any]", given))]

    def _message(self, at: int, given: Any) -> WireObject:
        self.position = f"messages[{at}]"
        plain = _to_mapping(given)
        if not isinstance(plain, Mapping):
            raise self._make_error(f"a mapping with role and content is needed, not {type(given).__name__}")
        message = cast("Mapping[str, Any]", plain)
        inner = message.get("message")
        if "role" not in message and isinstance(inner, Mapping):
            message = cast("Mapping[str, Any]", inner)  # in the form of the CLI
        role = message.get("role")
        if role not in _ROLES:
            raise self._make_error(f"role is {role!r}; known are user, assistant, tool and system")
        if message.get("tool_calls"):
            raise self._make_error("tool_calls: calls are parts of the content, of type 'tool-call' or 'tool_use'")
        content = message.get("content")
        if role == "tool" and not _has_results(content):
            return {"role": "tool", "content": self.result({**message, "content": content})}
        return {"role": role, "content": self._content(role, content)}

    def _content(self, role: str, content: Any) -> list[WireObject]:
        where = self.position
        blocks: list[WireObject] = []
        if isinstance(content, str):
            content = [content]
        if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
            raise self._make_error(f"content: text or a list of parts is needed, not {type(content).__name__}")
        for at, each in enumerate(cast("Sequence[Any]", content)):
            self.position = f"{where}.content[{at}]"
            blocks += self._part(role, {"type": "text", "text": each} if isinstance(each, str) else _to_mapping(each))
        self.position = where
        return blocks

    def _part(self, role: str, part: Any) -> list[WireObject]:
        kind = _get_type(part)
        if not isinstance(kind, str):
            raise self._make_error("a part is a mapping with a type, or a text")
        form = _PART_CONVERTERS.get(kind)
        if form is None:
            return self.unsupported(f"a part of type {kind!r}", kind)
        read, roles = form
        if role not in roles:
            raise self._make_error(f"a part of type {kind!r} has its place in messages of role {' or '.join(roles)}")
        return read(self, cast("Mapping[str, Any]", part))

    def unsupported(self, what: str, label: str) -> list[WireObject]:
        """Convert an unsupported part: a note in its place, and a warning."""
        self.warnings.append(
            CallWarning("unsupported-part", f"{self.position}: {what} cannot be sent, and is left out")
        )
        return [{"type": "text", "text": f"[{label}: left out]"}]

    def text(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert a text; blank texts are dropped, because the API rejects them."""
        text = part.get("text")
        if not isinstance(text, str):
            raise self._make_error(f"text: a text is needed, not {type(text).__name__}")
        return [{"type": "text", "text": text}] if text.strip() else []

    def reasoning(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert thinking of the model."""
        text = part.get("thinking", part.get("text"))
        if not isinstance(text, str):
            raise self._make_error("a reasoning part needs a text")
        return [{"type": "thinking", "thinking": text}] if text else []

    def image(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert a picture."""
        return self._media(part, part.get("image", part.get("data", part.get("url"))), "image/*")

    def file(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert a picture, document or text, by its media type."""
        return self._media(part, part.get("data", part.get("file", part.get("url"))), None)

    def document(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert a document of the Messages API."""
        if not isinstance(part.get("source"), Mapping):
            raise self._make_error("source: a document needs one")
        return [dict(part)]

    def call(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert a call of the model."""
        name, given = _get_first(part, _NAME_KEYS), _get_first(part, _INPUT_KEYS)
        if not isinstance(name, str) or not name:
            raise self._make_error("Tool call missing name")
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given or "{}")
            except ValueError as error:
                raise self._make_error(f"Invalid tool call: its input is no JSON: {error}") from error
        if not isinstance(given, Mapping | None):
            raise self._make_error(f"Invalid tool call: its input must be an object, not {type(given).__name__}")
        arguments = dict(cast("Mapping[str, Any]", given or {}))
        call_id = self._id(part)
        self.call_ids.add(call_id)
        return [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}]

    def result(self, part: Mapping[str, Any]) -> list[WireObject]:
        """Convert the result of a call."""
        failed = part.get("is_error", part.get("isError")) is True
        value = part.get("output", part.get("result", part.get("content")))
        if isinstance(value, Mapping) and "type" in value:
            kind = str(cast("Any", value)["type"])
            if kind in _OUTPUT_READERS:
                value = _OUTPUT_READERS[kind](cast("Mapping[str, Any]", value))
                failed = failed or kind in _ERROR_OUTPUTS
        name = _get_first(part, _NAME_KEYS)
        more = {"name": name} if isinstance(name, str) else {}
        more |= {"is_error": True} if failed else {}
        call_id = self._id(part)
        if call_id not in self.call_ids:
            raise self._make_error(f"tool_call_id: no call {call_id!r:.80} comes before its result")
        return [{"type": "tool_result", "tool_use_id": call_id, "content": self._output(value), **more}]

    def _output(self, value: Any) -> list[WireObject]:
        if value is None or value == []:
            return []
        items = [_to_mapping(each) for each in (cast("list[Any]", value) if isinstance(value, list) else [value])]
        if not all(_get_type(each) in _RESULT_PART_CONVERTERS for each in items):
            text = value if isinstance(value, str) else self._json(value)
            return [{"type": "text", "text": text}] if text else []
        return [block for each in items for block in _RESULT_PART_CONVERTERS[each["type"]](self, each)]

    def _media(self, part: Mapping[str, Any], value: Any, default: str | None) -> list[WireObject]:
        if isinstance(part.get("source"), Mapping):
            return [{key: part[key] for key in ("type", "source") if key in part} | {"type": "image"}]
        kind, data = _get_first(part, _MEDIA_KEYS), value
        if isinstance(data, Mapping):
            data = cast("Mapping[str, Any]", data).get("url", cast("Mapping[str, Any]", data).get("data"))
        if isinstance(data, bytes | bytearray | memoryview):
            raw = bytes(cast("bytes", data))
            return self._block(
                part, {"data": base64.b64encode(raw).decode()}, kind or _detect_media_type(raw) or default
            )
        if not isinstance(data, str) or not data:
            raise self._make_error("it needs data: bytes, base64, a data URL or an address")
        if data.startswith(("http://", "https://")):
            return self._block(part, {"url": data}, kind or default)
        if data.startswith("data:"):
            head, _, data = data.partition(",")
            kind = head[5:].partition(";")[0] or kind
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._make_error(f"its data is not valid base64: {error}") from error
        return self._block(part, {"data": data}, kind or _detect_media_type(raw) or default)

    def _block(self, part: Mapping[str, Any], source: WireObject, kind: Any) -> list[WireObject]:
        if not isinstance(kind, str):
            raise self._make_error("media_type: it cannot be detected from the data, and is needed")
        by_url = "url" in source
        is_image = kind in _IMAGES or (by_url and kind.startswith("image/"))
        if is_image or kind == _PDF:
            form = {"type": "url"} if by_url else {"type": "base64", "media_type": kind}
            made: WireObject = {"type": "image" if is_image else "document", "source": source | form}
        elif kind.startswith("text/") and not by_url:
            text = base64.b64decode(source["data"]).decode("utf-8", "replace")
            made = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
        else:
            return self.unsupported(f"a file of type {kind!r}", kind)
        title = part.get("filename", part.get("title"))
        return [made | ({"title": title} if title and made["type"] == "document" else {})]

    def _id(self, part: Mapping[str, Any]) -> str:
        found = _get_first(part, _ID_KEYS)
        if not isinstance(found, str) or not found:
            raise self._make_error("tool_call_id: it names no call")
        return found

    def _json(self, value: Any) -> str:
        try:
            return json_text(value)
        except Exception as error:
            raise self._make_error(f"the result of a tool must be JSON: {error}") from error

    def _make_error(self, text: str) -> UsageError:
        return UsageError(f"{self.position}: {text}")


def _to_mapping(value: Any) -> Any:
    """Convert a typed part or message to a mapping; return other values unchanged."""
    if isinstance(value, ToolCall):
        return {"type": "tool-call", "id": value.id, "name": value.name, "input": value.input}
    if isinstance(value, ToolCallFinished):
        return {**to_json_values(value.result), "name": value.name}
    if isinstance(value, msgspec.Struct):
        made = cast("dict[str, Any]", to_json_values(value))
        kind = getattr(value, "type", None)
        return {"type": _DELTA_TYPES.get(kind, kind), **made} if isinstance(kind, str) else made
    return value


_DELTA_TYPES: Final = {"text-delta": "text", "reasoning-delta": "reasoning"}


def _has_results(content: Any) -> bool:
    parts = () if isinstance(content, str) or not isinstance(content, Sequence) else cast("Sequence[Any]", content)
    return any(_get_type(_to_mapping(each)) in ("tool-result", "tool_result") for each in parts)


def _get_type(part: Any) -> Any:
    kind = cast("Mapping[str, Any]", part).get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else None


def _get_first(part: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((part[key] for key in keys if part.get(key) is not None), None)


def _detect_media_type(data: bytes) -> str | None:
    return _PDF if data.startswith(b"%PDF-") else sniff_media_type(data)


# The output forms of tools in AI SDKs.
_OUTPUT_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "text": lambda output: output.get("value", output.get("text")),
    "error-text": lambda output: output.get("value"),
    "json": lambda output: json_text(output.get("value")),
    "error-json": lambda output: json_text(output.get("value")),
    "content": lambda output: output.get("value"),
    "execution-denied": lambda output: str(output.get("reason") or "The call was denied."),
}

_PartConverter: TypeAlias = Callable[[MessageConverter, Mapping[str, Any]], list[WireObject]]
_TEXT_ROLES: Final = ("user", "assistant", "system", "developer")
_DIALOGUE_ROLES: Final = ("user", "assistant")

# The converter of each type of part, and the roles of messages that may contain it.
_PART_CONVERTERS: Final[Mapping[str, tuple[_PartConverter, Sequence[str]]]] = {
    "text": (MessageConverter.text, _TEXT_ROLES),
    "image": (MessageConverter.image, _DIALOGUE_ROLES),
    "file": (MessageConverter.file, _DIALOGUE_ROLES),
    "document": (MessageConverter.document, _DIALOGUE_ROLES),
    "reasoning": (MessageConverter.reasoning, ("assistant",)),
    "thinking": (MessageConverter.reasoning, ("assistant",)),
    "redacted_thinking": (lambda it, part: it.unsupported("redacted reasoning", "reasoning"), ("assistant",)),
    "tool-call": (MessageConverter.call, ("assistant",)),
    "tool_use": (MessageConverter.call, ("assistant",)),
    "tool-result": (MessageConverter.result, ("tool", "user")),
    "tool_result": (MessageConverter.result, ("tool", "user")),
}
_RESULT_PART_CONVERTERS: Final[Mapping[str, _PartConverter]] = {
    "text": MessageConverter.text,
    "image": MessageConverter.image,
    "media": MessageConverter.file,
    "file": MessageConverter.file,
    "file-data": MessageConverter.file,
    "image-data": MessageConverter.image,
    "document": MessageConverter.document,
}


ToolSource: TypeAlias = "Tool[..., Any] | Callable[..., Any] | Mapping[str, Any]"
ToolSources: TypeAlias = "Iterable[ToolSource] | Mapping[str, ToolSource]"
"""Functions and `Tool`s, which run here, and declarations; in a list, or by name.

A declaration is a mapping with `name`, `description` and a JSON Schema as `input_schema` (or `inputSchema`,
`parameters`). With a function as `execute` it runs here; otherwise its calls are returned to the caller.
"""

_SCHEMA_KEYS: Final = ("input_schema", "inputSchema", "parameters")
_PROVIDER_TOOLS: Final = ("provider-defined", "provider")  # of the AI SDK: a tool that its provider runs
_EMPTY_SCHEMA: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class RequestTools:
    """The tools of one request.

    Args:
        tools: see `ToolSources`; None for none.

    Attributes:
        local_tools: the tools that run here.
        declared_tools: the others, by name.
        warnings: tools of another provider, which are left out.

    Raises:
        ToolDefinitionError: a value that is not a tool, or two tools with one name.
    """

    def __init__(self, tools: ToolSources | None) -> None:
        self.local_tools: list[Tool[..., Any]] = []
        self.declared_tools: dict[str, Mapping[str, Any]] = {}
        self.warnings: list[CallWarning] = []
        self._checks: dict[str, ToolInput] = {}
        names: set[str] = set()
        for at, given in enumerate(_list_tools(tools)):
            if (kind := _get_type(given)) in _PROVIDER_TOOLS:
                text = f"tools[{at}]: a tool of type {kind!r} runs at another provider, and is left out"
                self.warnings.append(CallWarning("unsupported-tool", text))
                continue
            name = self._add(at, given)
            if name in names:
                raise ToolDefinitionError(f"two tools have the name {name!r}")
            names.add(name)

    def check_call(self, name: str, arguments: Mapping[str, Any]) -> ToolInputError | None:
        """Return why a call of a declared tool is not valid; None if it fits the schema."""
        try:
            self._checks[name].parse(arguments)
        except ToolInputError as error:
            return error
        return None

    def _add(self, at: int, given: Any) -> str:
        if not isinstance(given, Mapping):
            if not callable(given):
                raise ToolDefinitionError(
                    f"tools[{at}]: a function, a Tool or a mapping with a name and an input_schema is needed, "
                    f"not {type(given).__name__}"
                )
            self.local_tools.append(as_tool(given))
            return self.local_tools[-1].name
        definition = cast("Mapping[str, Any]", given)
        inner = definition.get("function")
        if isinstance(inner, Mapping):  # in the form of OpenAI
            named = {"name": definition["name"]} if definition.get("name") else {}
            definition = {**cast("Mapping[str, Any]", inner), **named}
        name, description = definition.get("name"), definition.get("description") or ""
        if not isinstance(name, str) or not name:
            raise ToolDefinitionError(f"tools[{at}]: it has no name")
        schema = next((definition[key] for key in _SCHEMA_KEYS if definition.get(key) is not None), _EMPTY_SCHEMA)
        execute = definition.get("execute")
        if execute is not None:
            self.local_tools.append(create_tool(name, str(description), schema, execute))
            return name
        if not isinstance(schema, Mapping):
            raise ToolDefinitionError(f"{name}: its schema is a JSON Schema, not {type(schema).__name__}")
        try:
            self._checks[name] = make_input(cast("Any", schema))
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{name}: {error}") from error
        self.declared_tools[check_tool_name(name)] = {"name": name, "description": description, "input_schema": schema}
        return name


def _list_tools(tools: Any) -> list[Any]:
    if isinstance(tools, Mapping):
        return [_name_tool(name, each) for name, each in cast("Mapping[Any, Any]", tools).items()]
    if isinstance(tools, str) or not isinstance(tools, Iterable | None):
        raise ToolDefinitionError(f"tools: a list of tools, or tools by name, is needed, not {type(tools).__name__}")
    return list(cast("Iterable[Any]", tools or ()))


def _name_tool(name: Any, given: Any) -> Any:
    if isinstance(given, Mapping):
        return {**cast("Mapping[str, Any]", given), "name": name}
    made = as_tool(given)
    if made.name != name:
        raise ToolDefinitionError(f"{name}: the tool under this name is called {made.name!r}")
    return made
