"""The content of tool results: Python values become MCP content blocks, and MCP blocks become the model's input.

Pure. Must not know tools, calls or servers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from pilothouse.errors import UsageError
from pilothouse.media import read_source, sniff_media_type, to_base64
from pilothouse.messages import DocumentBlock, ImageBlock, TextBlock
from pilothouse.messages.base import to_json_values
from pilothouse.messages.json_lines import to_plain_scalar, to_plain_values
from pilothouse.protocol import encode_line
from pilothouse.tools.calls import ToolResultError

JsonObject: TypeAlias = dict[str, Any]


class ToolContent(msgspec.Struct, frozen=True):
    """One block of MCP content, as a tool may return it. `.body` is its wire form."""

    body: JsonObject


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of a tool, for tools that return more than a value.

    Attributes:
        content: any value that a tool may return.
        structured: a JSON object for programs. The CLI shows it to the model in place of the text in `content`.
        is_error: whether the model sees that the call failed.
        meta: `_meta` of the result.
    """

    content: Any = None
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    meta: Mapping[str, Any] | None = None


# The kinds of blocks, with their required keys. A mapping that has these is a block, any other is data.
_REQUIRED_KEYS: dict[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "resource_link": frozenset({"uri", "name"}),
    "resource": frozenset({"resource"}),
}


def text_content(text: str) -> ToolContent:
    """Make a block of text."""
    return ToolContent(make_text_block(text))


def image_content(source: bytes | str | os.PathLike[str], *, mime_type: str | None = None) -> ToolContent:
    """Make an image block.

    Args:
        source: the bytes of the image, or the path of its file.
        mime_type: such as "image/png"; by default detected from the bytes.

    Raises:
        UsageError: the file cannot be read, or the format is not known.
    """
    return _make_media("image", source, mime_type)


def audio_content(source: bytes | str | os.PathLike[str], *, mime_type: str | None = None) -> ToolContent:
    """Make an audio block; arguments and errors as with `image_content`."""
    return _make_media("audio", source, mime_type)


def resource_link(
    uri: str, name: str, *, description: str | None = None, mime_type: str | None = None, size: int | None = None
) -> ToolContent:
    """Make a link to a resource that can be read elsewhere. `size` is in bytes."""
    body = {"type": "resource_link", "uri": uri, "name": name}
    extra = {"description": description, "mimeType": mime_type, "size": size}
    return ToolContent(body | {key: value for key, value in extra.items() if value is not None})


def embedded_resource(uri: str, content: str | bytes, *, mime_type: str | None = None) -> ToolContent:
    """Make a block with a text or a file, and its URI."""
    return ToolContent({"type": "resource", "resource": make_resource_contents(uri, content, mime_type)})


def make_resource_contents(uri: str, value: Any, mime_type: str | None) -> JsonObject:
    """Make the contents of the resource `uri`: text as it is, bytes as base64, any other value as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", value))
        kind = mime_type or sniff_media_type(data) or "application/octet-stream"
        return {"uri": uri, "mimeType": kind, "blob": to_base64(data)}
    if isinstance(value, str):
        return {"uri": uri, "mimeType": mime_type or "text/plain", "text": value}
    return {"uri": uri, "mimeType": mime_type or "application/json", "text": json_text(to_json_value(value))}


def to_result(value: Any) -> JsonObject:
    """Make the MCP result of a call that returned `value`.

    A str becomes text; bytes become an image, audio or a file; a tuple becomes several blocks, and so does a list
    with a block or bytes in it; an MCP result is used as it is; any other value becomes JSON, and an object also
    `structuredContent`.

    Raises:
        ToolResultError: part of the value cannot be written as JSON.
    """
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    if value is None:
        return {"content": []}
    if isinstance(value, ToolResult):
        return _from_tool_result(value)
    if (block := as_block(value)) is not None:
        return {"content": [block]}
    several = isinstance(value, tuple) and not hasattr(cast("Any", value), "_fields")
    if several or (isinstance(value, list) and any(as_block(item) is not None for item in cast("list[Any]", value))):
        return {"content": [to_content_block(item) for item in cast("Sequence[Any]", value)]}
    data = to_json_value(value)
    if isinstance(data, dict):
        return _from_mapping(cast("JsonObject", data))
    return {"content": [{"type": "text", "text": json_text(data)}]}


def make_error_result(text: str) -> JsonObject:
    """Make the MCP result of a call that failed."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def result_size(result: JsonObject) -> int:
    """Return the size of a result in bytes, for the model or the disk: texts, base64 and structured data."""
    parts = [part for block in result["content"] for part in _find_large_parts(block)]
    size = sum(len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass")) for part in parts)
    if size or "structuredContent" not in result:
        return size
    return len(encode_line(result["structuredContent"]))


def as_block(value: Any) -> JsonObject | None:
    """Return the content block for a value; None if the value is data."""
    convert = next((_BLOCK_CONVERTERS[cls] for cls in type(value).__mro__ if cls in _BLOCK_CONVERTERS), None)
    if convert is not None:
        return convert(value)
    if isinstance(value, Mapping):
        return _as_known_block(cast("Mapping[str, Any]", value))
    if hasattr(value, "model_dump") and isinstance(getattr(value, "type", None), str):
        return _as_known_block(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return None


def to_json_value(value: Any) -> Any:
    """Convert `value` to dicts, lists, texts and numbers; raises ToolResultError."""
    try:
        return to_plain_values(value, _convert_value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ToolResultError(f"the result cannot be written as JSON: {error}") from error


def json_text(value: Any) -> str:
    """Write compact JSON; raises ToolResultError."""
    try:
        return encode_line(value)[:-1].decode()
    except UsageError as error:
        raise ToolResultError(f"the result cannot be written as JSON: {error}") from error


def _convert_value(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, ToolContent):
        return value.body
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, Sequence | range) and not isinstance(value, str):
        return list(cast("Sequence[Any]", value))
    return to_plain_scalar(value)


def to_content_block(item: Any) -> JsonObject:
    """Convert a value to a content block: a text as it is, any other value that is not a block as JSON."""
    if isinstance(item, str):
        return make_text_block(item)
    return as_block(item) or make_text_block(json_text(to_json_value(item)))


def _from_tool_result(value: ToolResult) -> JsonObject:
    result = to_result(value.content)
    if value.structured is not None:
        result["structuredContent"] = _to_object("structured", value.structured)
        result["content"] = result["content"] or [{"type": "text", "text": json_text(result["structuredContent"])}]
    if value.is_error:
        result["isError"] = True
    if value.meta is not None:
        result["_meta"] = _to_object("meta", value.meta)
    return result


def _to_object(field: str, value: object) -> JsonObject:
    data = to_json_value(value)
    if not isinstance(data, dict):  # the CLI would refuse the whole result
        raise ToolResultError(f"{field} of a ToolResult is a mapping, not {type(value).__name__}")
    return cast("JsonObject", data)


def _from_mapping(data: JsonObject) -> JsonObject:
    blocks: Any = data.get("content")
    if isinstance(blocks, list) and (data.keys() <= _RESULT_KEYS.keys() or "isError" in data):
        known = [_as_known_block(block) for block in cast("list[Any]", blocks)]
        if None not in known:
            named = {_RESULT_KEYS.get(key, key): item for key, item in data.items() if item is not None}
            return named | {"content": known}
    return {"content": [{"type": "text", "text": json_text(data)}], "structuredContent": data}


# The keys of an MCP result, also in Python's spelling.
_RESULT_KEYS = {
    "content": "content",
    "isError": "isError",
    "is_error": "isError",
    "structuredContent": "structuredContent",
    "structured_content": "structuredContent",
    "_meta": "_meta",
    "meta": "_meta",
}


def _as_known_block(value: Any) -> JsonObject | None:
    if not isinstance(value, Mapping):
        return None
    body = cast("Mapping[str, Any]", value)
    kind = body.get("type")
    needed = _REQUIRED_KEYS.get(kind) if isinstance(kind, str) else None
    if needed is not None and needed <= body.keys():
        return {key: item for key, item in body.items() if item is not None}
    if kind == "image" and isinstance(body.get("source"), Mapping):
        return _convert_api_source("image", body["source"])
    return None


def _convert_api_source(kind: str, source: Mapping[str, Any], title: str | None = None) -> JsonObject:
    """Convert a block of the API, which has its data under `source`."""
    form = source.get("type")
    if form == "base64" and kind == "image":
        return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
    uri = str(source.get("url") or f"attachment:{title or kind}")
    if form == "base64":
        resource = {"uri": uri, "mimeType": source["media_type"], "blob": source["data"]}
        return {"type": "resource", "resource": resource}
    if form == "text":
        return {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain", "text": source["data"]}}
    if form == "url":
        return {"type": "resource_link", "uri": uri, "name": title or kind}
    raise ToolResultError(f"a tool cannot return a {kind} whose source is of type {form!r}")


def _from_bytes(value: Any) -> JsonObject:
    data = bytes(value)
    kind = sniff_media_type(data)
    if kind is None:
        return {"type": "resource", "resource": make_resource_contents("attachment:data", data, None)}
    return {"type": kind.partition("/")[0], "data": to_base64(data), "mimeType": kind}


_BLOCK_CONVERTERS: dict[type[Any], Callable[[Any], JsonObject | None]] = {
    ToolContent: lambda value: value.body,
    TextBlock: lambda value: {"type": "text", "text": value.text},
    ImageBlock: lambda value: _convert_api_source("image", value.source),
    DocumentBlock: lambda value: _convert_api_source("document", value.source, value.title),
    bytes: _from_bytes,
    bytearray: _from_bytes,
    memoryview: _from_bytes,
}


def _find_large_parts(block: JsonObject) -> list[str]:
    held = block.get("resource", block)
    return [held[key] for key in ("text", "data", "blob") if isinstance(held.get(key), str)]


def _make_media(family: str, source: bytes | str | os.PathLike[str], mime_type: str | None) -> ToolContent:
    data = read_source(source)
    kind = mime_type or sniff_media_type(data)
    if kind is None or not kind.startswith(f"{family}/"):
        raise UsageError(f"{len(data):,} bytes of a format that is not a known {family}; pass its mime_type")
    return ToolContent({"type": family, "data": to_base64(data), "mimeType": kind})


NO_OUTPUT: Final = "({name} completed with no output)"


def to_model_content(result: Mapping[str, Any], name: str) -> list[JsonObject]:
    """Return what the model gets of a result in MCP form: content of a `tool_result` block of the Messages API.

    Structured content replaces all other content, as JSON, unless the call failed. Content that the API cannot take,
    such as audio, becomes a text that describes it. A result without any content says so.

    Args:
        result: as MCP servers give it, with `content`, `structuredContent` and `isError`.
        name: of the tool, for the text in place of no content.
    """
    structured = result.get("structuredContent")
    if structured is not None and result.get("isError") is not True:
        return [make_text_block(json_text(structured))]
    made = to_model_blocks(result.get("content"))
    return [block for block in made if block.get("text") != ""] or [make_text_block(NO_OUTPUT.format(name=name))]


def to_model_blocks(content: Any) -> list[JsonObject]:
    """Return content of MCP or of the Messages API as blocks that the API takes in a `tool_result`.

    Each is a text, an image or a document; a text describes what is neither.

    Args:
        content: a text, a block, a list of both, or None.
    """
    made = [_to_readable(block) for block in to_blocks(content)]
    return [make_text_block(each) if isinstance(each, str) else each for each in made]


def make_text_block(text: str) -> JsonObject:
    """Make a block of text."""
    return {"type": "text", "text": text}


def to_blocks(content: Any) -> list[JsonObject]:
    """Convert content of any form to a list of blocks in wire form."""
    if content is None:
        return []
    if isinstance(content, str):
        return [make_text_block(content)]
    if isinstance(content, Mapping):
        return [dict(cast("Mapping[str, Any]", content))]
    listed = cast("Sequence[Any]", to_json_values(list(cast("Sequence[Any]", content))))
    return [make_text_block(each) if isinstance(each, str) else each for each in listed]


def _to_readable(block: JsonObject) -> JsonObject | str:
    return _READABLE_CONVERTERS.get(str(block.get("type")), json_text)(block)


def _convert_image(block: JsonObject) -> JsonObject | str:
    if isinstance(block.get("source"), Mapping):
        return {"type": "image", "source": block["source"]}
    if not isinstance(block.get("data"), str):
        return json_text(block)
    source = {"type": "base64", "media_type": block.get("mimeType", "image/png"), "data": block["data"]}
    return {"type": "image", "source": source}


def _describe_link(block: JsonObject) -> str:
    about = f": {block['description']}" if block.get("description") else ""
    return f"[Resource link: {block.get('name', '')}] {block.get('uri', '')}{about}"


def _convert_resource(block: JsonObject) -> JsonObject | str:
    resource: Mapping[str, Any] = block.get("resource") or {}
    kind, blob = str(resource.get("mimeType", "")), resource.get("blob")
    if "text" in resource:
        return f"[Resource at {resource.get('uri', '')}] {resource['text']}"
    if kind.startswith("image/") and isinstance(blob, str):
        return _convert_image({"data": blob, "mimeType": kind})
    if kind == "application/pdf" and isinstance(blob, str):
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": blob}}
    return f"[Resource at {resource.get('uri', '')}] {kind}, {_decoded_size(blob)} bytes"


def _decoded_size(base64: Any) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=") if isinstance(base64, str) else 0


_READABLE_CONVERTERS: Final[Mapping[str, Callable[[JsonObject], JsonObject | str]]] = {
    "text": lambda block: str(block.get("text", "")),
    "image": _convert_image,
    "document": lambda block: block if isinstance(block.get("source"), Mapping) else json_text(block),
    "audio": lambda block: (
        f"[Audio, {block.get('mimeType', 'of unknown type')}, {_decoded_size(block.get('data'))} bytes]"
    ),
    "resource_link": _describe_link,
    "resource": _convert_resource,
}
