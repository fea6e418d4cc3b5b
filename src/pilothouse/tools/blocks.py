"""What tools give, in the content blocks that a model reads. Pure.

Owns the words for what a model cannot read, and the forms of a block in MCP and in the Messages API. The CLI (2.1.330)
makes the same of the results of MCP tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from pilothouse.messages.base import to_json_values
from pilothouse.tools.content import json_text

Wire: TypeAlias = dict[str, Any]

NO_OUTPUT: Final = "({name} completed with no output)"


def model_content(result: Mapping[str, Any], name: str) -> list[Wire]:
    """The content of a result of the tool `name`; structured content stands for all of it, unless the call failed."""
    structured = result.get("structuredContent")
    if structured is not None and result.get("isError") is not True:
        return [text_block(json_text(structured))]
    made = [_readable(block) for block in blocks_of(result.get("content"))]
    return [text_block(each) if isinstance(each, str) else each for each in made if each] or [
        text_block(NO_OUTPUT.format(name=name))
    ]


def text_block(text: str) -> Wire:
    """A block of text."""
    return {"type": "text", "text": text}


def content_parts(content: Any) -> tuple[list[str], list[Wire]]:
    """Content of MCP or of the API: what is text or told in words, and the blocks that no text can carry."""
    texts: list[str] = []
    media: list[Wire] = []
    for block in blocks_of(content):
        made = _readable(block)
        if isinstance(made, str):
            texts.append(made)
        else:
            media.append(made)
    return texts, media


def blocks_of(content: Any) -> list[Wire]:
    """Content as a list of blocks in wire form, whatever form it was given in."""
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content)]
    if isinstance(content, Mapping):
        return [dict(cast("Mapping[str, Any]", content))]
    listed = cast("Sequence[Any]", to_json_values(list(cast("Sequence[Any]", content))))
    return [text_block(each) if isinstance(each, str) else each for each in listed]


def _readable(block: Wire) -> Wire | str:
    return _KINDS.get(str(block.get("type")), _other)(block)


def _text(block: Wire) -> str:
    return str(block.get("text", ""))


def _image(block: Wire) -> Wire | str:
    if isinstance(block.get("source"), Mapping):
        return {"type": "image", "source": block["source"]}
    if not isinstance(block.get("data"), str):
        return _other(block)
    source = {"type": "base64", "media_type": block.get("mimeType", "image/png"), "data": block["data"]}
    return {"type": "image", "source": source}


def _document(block: Wire) -> Wire | str:
    return block if isinstance(block.get("source"), Mapping) else _other(block)


def _audio(block: Wire) -> str:
    return f"[Audio, {block.get('mimeType', 'of unknown type')}, {_bytes_in(block.get('data'))} bytes]"


def _link(block: Wire) -> str:
    about = f": {block['description']}" if block.get("description") else ""
    return f"[Resource link: {block.get('name', '')}] {block.get('uri', '')}{about}"


def _resource(block: Wire) -> Wire | str:
    resource: Mapping[str, Any] = block.get("resource") or {}
    kind, blob = str(resource.get("mimeType", "")), resource.get("blob")
    if "text" in resource:
        return f"[Resource at {resource.get('uri', '')}] {resource['text']}"
    if kind.startswith("image/") and isinstance(blob, str):
        return _image({"data": blob, "mimeType": kind})
    if kind == "application/pdf" and isinstance(blob, str):
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": blob}}
    return f"[Resource at {resource.get('uri', '')}] {kind}, {_bytes_in(blob)} bytes"


def _other(block: Wire) -> str:
    return json_text(block)


def _bytes_in(base64: Any) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=") if isinstance(base64, str) else 0


_KINDS: Final[Mapping[str, Callable[[Wire], Wire | str]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "audio": _audio,
    "resource_link": _link,
    "resource": _resource,
}
