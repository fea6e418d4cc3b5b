"""What a tool returns, as MCP content. Pure.

Owns how Python values become content blocks, and what these blocks look like. Must not know tools, calls or servers.

Measured (CLI 2.1.330): of a result with `structuredContent` the model sees that, as JSON, and the blocks that are no
text; the text beside it is for other clients.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from pilothouse.errors import UsageError
from pilothouse.messages import DocumentBlock, ImageBlock, TextBlock
from pilothouse.messages.jsonline import plain_scalar, with_text_keys
from pilothouse.protocol import encode_line
from pilothouse.tools.failures import ToolResultError

Wire: TypeAlias = dict[str, Any]


class ToolContent(msgspec.Struct, frozen=True):
    """One block of MCP content, as a tool may return it. `.body` is what goes over the wire."""

    body: Wire


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a tool, for those who want to say more than a value.

    Attributes:
        content: whatever a tool may return.
        structured: a JSON object for programs. The CLI shows it to the model in place of the text in `content`.
        is_error: whether the model is told that the call failed.
        meta: `_meta` of the result.
    """

    content: Any = None
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    meta: Mapping[str, Any] | None = None


# What a file's first bytes say about it; the second pattern stands at the offset beside it.
_MAGIC: tuple[tuple[bytes, int, bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF87a", 0, b"", "image/gif"),
    (b"GIF89a", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
    (b"RIFF", 8, b"WAVE", "audio/wav"),
    (b"ID3", 0, b"", "audio/mpeg"),
    (b"\xff\xfb", 0, b"", "audio/mpeg"),
    (b"\xff\xf3", 0, b"", "audio/mpeg"),
    (b"OggS", 0, b"", "audio/ogg"),
    (b"fLaC", 0, b"", "audio/flac"),
)

# The kinds of blocks, with what each must have. A mapping that has it is a block, any other is data.
_BLOCK_KEYS: dict[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "resource_link": frozenset({"uri", "name"}),
    "resource": frozenset({"resource"}),
}


def text_content(text: str) -> ToolContent:
    """A block of text."""
    return ToolContent({"type": "text", "text": text})


def image_content(source: bytes | str | os.PathLike[str], *, mime_type: str | None = None) -> ToolContent:
    """A picture.

    Args:
        source: its bytes, or the path of its file.
        mime_type: such as "image/png"; by default told from the bytes.

    Raises:
        UsageError: the file cannot be read, or the format is not known.
    """
    return _media("image", source, mime_type)


def audio_content(source: bytes | str | os.PathLike[str], *, mime_type: str | None = None) -> ToolContent:
    """A sound; arguments and errors as with `image_content`."""
    return _media("audio", source, mime_type)


def resource_link(
    uri: str, name: str, *, description: str | None = None, mime_type: str | None = None, size: int | None = None
) -> ToolContent:
    """A pointer to something that can be read elsewhere. `size` is in bytes."""
    body = {"type": "resource_link", "uri": uri, "name": name}
    extra = {"description": description, "mimeType": mime_type, "size": size}
    return ToolContent(body | {key: value for key, value in extra.items() if value is not None})


def embedded_resource(uri: str, content: str | bytes, *, mime_type: str | None = None) -> ToolContent:
    """A text or a file, with the address it has."""
    return ToolContent({"type": "resource", "resource": resource_contents(uri, content, mime_type)})


def resource_contents(uri: str, value: Any, mime_type: str | None) -> Wire:
    """What was read at `uri`: text as it is, bytes as base64, anything else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", value))
        kind = mime_type or sniffed(data) or "application/octet-stream"
        return {"uri": uri, "mimeType": kind, "blob": _base64(data)}
    if isinstance(value, str):
        return {"uri": uri, "mimeType": mime_type or "text/plain", "text": value}
    return {"uri": uri, "mimeType": mime_type or "application/json", "text": json_text(plain(value))}


def sniffed(data: bytes) -> str | None:
    """The media type of a picture or a sound, told from its first bytes."""
    return next(
        (kind for start, at, second, kind in _MAGIC if data.startswith(start) and data.startswith(second, at)), None
    )


def to_result(value: Any) -> Wire:
    """The MCP result of a call that returned `value`.

    A text is a text; bytes are a picture, a sound or a file; a tuple is several blocks, and so is a list with a block
    or bytes in it; an MCP result is taken as it is; anything else is JSON, and an object is `structuredContent`, too.

    Raises:
        ToolResultError: it holds something that is no JSON.
    """
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    if value is None:
        return {"content": []}
    if isinstance(value, ToolResult):
        return _from_tool_result(value)
    if (block := as_block(value)) is not None:
        return {"content": [block]}
    if isinstance(value, tuple) and not hasattr(cast("Any", value), "_fields"):
        return {"content": [_part(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list) and any(as_block(item) is not None for item in cast("list[Any]", value)):
        return {"content": [_part(item) for item in cast("list[Any]", value)]}
    data = plain(value)
    if isinstance(data, dict):
        return _from_mapping(cast("Wire", data))
    return {"content": [{"type": "text", "text": json_text(data)}]}


def error_result(text: str) -> Wire:
    """The MCP result of a call that failed."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def result_size(result: Wire) -> int:
    """How many bytes the model or the disk gets of a result: texts, base64 and structured data."""
    parts = [part for block in result["content"] for part in _large_parts(block)]
    size = sum(len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass")) for part in parts)
    if size or "structuredContent" not in result:
        return size
    return len(encode_line(result["structuredContent"]))


def as_block(value: Any) -> Wire | None:
    """The content block that a value is; None if it is data."""
    convert = next((_BLOCKS[cls] for cls in type(value).__mro__ if cls in _BLOCKS), None)
    if convert is not None:
        return convert(value)
    if isinstance(value, Mapping):
        return _block_in(cast("Mapping[str, Any]", value))
    if hasattr(value, "model_dump") and isinstance(getattr(value, "type", None), str):
        return _block_in(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return None


def plain(value: Any) -> Any:
    """`value` in dicts, lists, texts and numbers.

    Raises:
        ToolResultError: part of it is no JSON.
    """
    try:
        return with_text_keys(value, _plain)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ToolResultError(f"the result cannot be written as JSON: {error}") from error


def json_text(value: Any) -> str:
    """Compact JSON.

    Raises:
        ToolResultError: part of it is no JSON.
    """
    try:
        return encode_line(value)[:-1].decode()
    except UsageError as error:
        raise ToolResultError(f"the result cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
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
    return plain_scalar(value)


def _part(item: Any) -> Wire:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    block = as_block(item)
    return block if block is not None else {"type": "text", "text": json_text(plain(item))}


def _from_tool_result(value: ToolResult) -> Wire:
    result = to_result(value.content)
    if value.structured is not None:
        result["structuredContent"] = plain(value.structured)
        result["content"] = result["content"] or [{"type": "text", "text": json_text(result["structuredContent"])}]
    if value.is_error:
        result["isError"] = True
    if value.meta is not None:
        result["_meta"] = plain(value.meta)
    return result


def _from_mapping(data: Wire) -> Wire:
    blocks: Any = data.get("content")
    if isinstance(blocks, list) and (data.keys() <= _RESULT_KEYS.keys() or "isError" in data):
        known = [_block_in(block) for block in cast("list[Any]", blocks)]
        if None not in known:
            named = {_RESULT_KEYS.get(key, key): item for key, item in data.items() if item is not None}
            return named | {"content": known}
    return {"content": [{"type": "text", "text": json_text(data)}], "structuredContent": data}


# The words of an MCP result, also in the spelling that is usual in Python.
_RESULT_KEYS = {
    "content": "content",
    "isError": "isError",
    "is_error": "isError",
    "structuredContent": "structuredContent",
    "structured_content": "structuredContent",
    "_meta": "_meta",
    "meta": "_meta",
}


def _block_in(value: Any) -> Wire | None:
    if not isinstance(value, Mapping):
        return None
    body = cast("Mapping[str, Any]", value)
    kind = body.get("type")
    needed = _BLOCK_KEYS.get(kind) if isinstance(kind, str) else None
    if needed is not None and needed <= body.keys():
        return {key: item for key, item in body.items() if item is not None}
    if kind == "image" and isinstance(body.get("source"), Mapping):
        return _from_source("image", body["source"])
    return None


def _from_source(kind: str, source: Mapping[str, Any], title: str | None = None) -> Wire:
    """A block of the API, which has its data under `source`."""
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


def _from_bytes(value: Any) -> Wire:
    data = bytes(value)
    kind = sniffed(data)
    if kind is None:
        return {"type": "resource", "resource": resource_contents("attachment:data", data, None)}
    return {"type": kind.partition("/")[0], "data": _base64(data), "mimeType": kind}


_BLOCKS: dict[type[Any], Callable[[Any], Wire | None]] = {
    ToolContent: lambda value: value.body,
    TextBlock: lambda value: {"type": "text", "text": value.text},
    ImageBlock: lambda value: _from_source("image", value.source),
    DocumentBlock: lambda value: _from_source("document", value.source, value.title),
    bytes: _from_bytes,
    bytearray: _from_bytes,
    memoryview: _from_bytes,
}


def _large_parts(block: Wire) -> list[str]:
    held = block.get("resource", block)
    return [held[key] for key in ("text", "data", "blob") if isinstance(held.get(key), str)]


def _media(family: str, source: bytes | str | os.PathLike[str], mime_type: str | None) -> ToolContent:
    if isinstance(source, bytes):
        data = source
    else:
        try:
            with open(source, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
                data = file.read()
        except OSError as error:
            raise UsageError(f"cannot read {os.fspath(source)!r}: {error.strerror or error}") from error
    kind = mime_type or sniffed(data)
    if kind is None or not kind.startswith(f"{family}/"):
        raise UsageError(f"{len(data):,} bytes of a format that is no known {family}; say its mime_type")
    return ToolContent({"type": family, "data": _base64(data), "mimeType": kind})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
