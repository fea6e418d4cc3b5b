"""What tools return becomes MCP content."""

from __future__ import annotations

import base64
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import mcp.types
import msgspec
import pytest
from pydantic import BaseModel

from pilothouse.errors import UsageError
from pilothouse.messages import DocumentBlock, ImageBlock, TextBlock
from pilothouse.tools import (
    ToolContent,
    ToolError,
    ToolResult,
    ToolResultError,
    audio_content,
    embedded_resource,
    image_content,
    resource_link,
    text_content,
    tool,
)

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
WAV = b"RIFF\0\0\0\0WAVEfmt "
PNG_BLOCK = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}


class Report(msgspec.Struct):
    city: str
    when: datetime.date


@dataclasses.dataclass
class Pair:
    a: int
    b: bytes


class Model(BaseModel):
    x: datetime.date


async def returned(value: Any, **settings: Any) -> dict[str, Any]:
    async def give() -> Any:
        return value

    result = await tool(**settings)(give).invoke({})
    mcp.types.CallToolResult.model_validate(result)
    return result


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.requirement("R24")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("hello", [text("hello")]),
        ("", [text("")]),
        (None, []),
        (3, [text("3")]),
        (1.5, [text("1.5")]),
        (True, [text("true")]),
        ([1, 2], [text("[1,2]")]),
        (["a", "b"], [text('["a","b"]')]),
        (("a", "b"), [text("a"), text("b")]),
        (("note", PNG, 3), [text("note"), PNG_BLOCK, text("3")]),
        (["note", PNG], [text("note"), PNG_BLOCK]),
        (PNG, [PNG_BLOCK]),
        (bytearray(PNG), [PNG_BLOCK]),
        (WAV, [{"type": "audio", "data": base64.b64encode(WAV).decode(), "mimeType": "audio/wav"}]),
        (TextBlock("hi"), [text("hi")]),
        (ImageBlock({"type": "base64", "media_type": "image/png", "data": PNG_BLOCK["data"]}), [PNG_BLOCK]),
        (text_content("x"), [text("x")]),
        ([text_content("x"), image_content(PNG)], [text("x"), PNG_BLOCK]),
        (text("x"), [text("x")]),
        (mcp.types.TextContent(type="text", text="x"), [text("x")]),
        (datetime.date(2026, 11, 22), [text('"2026-11-22"')]),
        ({1, }, [text("[1]")]),
        (range(2), [text("[0,1]")]),
        (Path("a/b"), [text('"a/b"')]),
        ([Pair(1, b"x")], [text('[{"a":1,"b":"eA=="}]')]),
    ],
)  # fmt: skip
async def test_values_become_blocks(value: Any, content: list[dict[str, Any]]) -> None:
    assert await returned(value) == {"content": content}


@pytest.mark.parametrize(
    ("value", "structured"),
    [
        ({"a": [1]}, {"a": [1]}),
        ({1: "x"}, {"1": "x"}),
        (Report("Oslo", datetime.date(2026, 1, 2)), {"city": "Oslo", "when": "2026-01-02"}),
        (Pair(1, b"x"), {"a": 1, "b": "eA=="}),
        (Model(x=datetime.date(2026, 1, 2)), {"x": "2026-01-02"}),
        ({"m": Model(x=datetime.date(2026, 1, 2))}, {"m": {"x": "2026-01-02"}}),
        ({"type": "text"}, {"type": "text"}),
        ({"content": "no list"}, {"content": "no list"}),
        ({"content": ["no block"]}, {"content": ["no block"]}),
        ({"content": [], "other": 1}, {"content": [], "other": 1}),
    ],
)
async def test_objects_are_structured_content_and_text(value: Any, structured: dict[str, Any]) -> None:
    result = await returned(value)
    assert result["structuredContent"] == structured
    assert msgspec.json.decode(result["content"][0]["text"]) == structured


async def test_whole_results_are_taken_as_they_are() -> None:
    assert await returned({"content": [text("no")], "is_error": True}) == {"content": [text("no")], "isError": True}
    theirs = mcp.types.CallToolResult(
        content=[mcp.types.TextContent(type="text", text="x")], structured_content={"a": 1}
    )
    result = await returned(theirs)
    assert result["content"] == [text("x")]
    assert result["structuredContent"] == {"a": 1}
    ours = ToolResult(content=("a", PNG), structured={"n": 1}, is_error=True, meta={"m": 1})
    assert await returned(ours) == {
        "content": [text("a"), PNG_BLOCK],
        "structuredContent": {"n": 1},
        "isError": True,
        "_meta": {"m": 1},
    }
    assert (await returned(ToolResult(structured={"n": 1})))["content"] == [text('{"n":1}')]
    odd: Any = 3
    for wrong in (ToolResult(structured=odd), ToolResult(meta=odd)):
        with pytest.raises(ToolResultError, match="of a ToolResult is a mapping, not int"):
            await returned(wrong)


async def test_files_links_and_documents() -> None:
    unknown = (await returned(b"\x00\x01"))["content"][0]
    assert unknown["resource"]["blob"] == "AAE="
    link = resource_link("file:///a", "a", mime_type="text/plain", size=3)
    assert (await returned(link))["content"] == [
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain", "size": 3}
    ]
    held = embedded_resource("file:///a", "hi", mime_type="text/x")
    assert (await returned(held))["content"][0]["resource"] == {"uri": "file:///a", "mimeType": "text/x", "text": "hi"}
    document = DocumentBlock({"type": "text", "media_type": "text/plain", "data": "d"}, title="t")
    assert (await returned(document))["content"][0]["resource"]["text"] == "d"


def test_media_from_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(PNG)
    assert image_content(path).body == PNG_BLOCK
    assert audio_content(b"raw", mime_type="audio/x").body["mimeType"] == "audio/x"
    with pytest.raises(UsageError, match="mime_type"):
        audio_content(PNG)
    with pytest.raises(UsageError, match="cannot read"):
        image_content(tmp_path / "none.png")


@pytest.mark.parametrize("value", [object(), {"a": object()}, [lambda: 1], {(1, 2): 3}])
async def test_what_is_no_json_is_an_error_of_the_result(value: Any) -> None:
    with pytest.raises(ToolResultError, match="JSON") as caught:
        await returned(value)
    assert isinstance(caught.value, ToolError)


async def test_a_result_that_is_too_large_is_an_error_with_the_sizes() -> None:
    assert await returned("x" * 100, max_result_bytes=100)
    for value in ("x" * 101, "é" * 51, {"a": "x" * 100}, PNG * 20, ("x" * 60, "x" * 60)):
        with pytest.raises(ToolResultError, match="100 are allowed"):
            await returned(value, max_result_bytes=100)
    structured_only = ToolResult(content=ToolContent({"type": "text", "text": ""}), structured={"a": "x" * 100})
    with pytest.raises(ToolResultError, match="100 are allowed"):
        await returned(structured_only, max_result_bytes=100)


async def test_text_with_lone_surrogates_goes_through() -> None:
    result = await returned({"a": "\ud800"})
    assert result["content"][0]["text"] == '{"a":"\\ud800"}'
    assert (await returned("\ud800"))["content"] == [text("\ud800")]
