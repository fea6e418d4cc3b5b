"""Tools of a program: their schemas, and what the model gets, as with the real package."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_compat.claude_agent_sdk._tools import make_tool

pytestmark = pytest.mark.anyio

TEXT: dict[str, Any] = {"type": "text", "text": "hi"}


class Place(TypedDict):
    name: Annotated[str, "Of the town"]
    zones: NotRequired[Annotated[list[int], "Their numbers"]]


@dataclass
class Point:
    x: int


class Size(enum.Enum):
    BIG = "big"


class Unknown:
    pass


PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Of the town"},
        "zones": {"type": "array", "items": {"type": "integer"}, "description": "Their numbers"},
    },
    "required": ["name"],
}

SCHEMAS: dict[str, tuple[Any, Any]] = {
    "names": ({"a": int, "b": float}, {"a": {"type": "integer"}, "b": {"type": "number"}}),
    "a description": ({"a": Annotated[bool, "Whether"]}, {"a": {"type": "boolean", "description": "Whether"}}),
    "a TypedDict inside": ({"a": Place}, {"a": PLACE}),
    "lists": ({"a": list, "b": list[Place]}, {"a": {"type": "array"}, "b": {"type": "array", "items": PLACE}}),
    "unions": ({"a": str | None}, {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
    "values": ({"a": Literal["x", "y"]}, {"a": {"enum": ["x", "y"]}}),
    "an Enum": ({"a": Size}, {"a": {"type": "string"}}),
    "names of types": ({"a": "string"}, {"a": {"type": "string"}}),
    "no type": ({"a": Unknown}, {"a": {"type": "string"}}),
    "a field called type": ({"type": str}, {"type": {"type": "string"}}),
}


async def run(handler: Any, schema: Any = None, **arguments: Any) -> dict[str, Any]:
    return await make_tool(sdk.tool("t", "d", schema or {})(handler)).run(arguments)


async def show(arguments: Any) -> Any:
    return {"content": [{"type": "text", "text": repr(arguments)}]}


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas(case: str) -> None:
    given, properties = SCHEMAS[case]
    made = make_tool(sdk.tool("t", "d", given)(show)).input_schema
    assert made == {"type": "object", "properties": properties, "required": list(properties)}


def test_types_as_schemas() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert make_tool(sdk.tool("t", "d", Place)(show)).input_schema == PLACE
    assert make_tool(sdk.tool("t", "d", schema)(show)).input_schema == schema
    assert make_tool(sdk.tool("t", "d", Point)(show)).input_schema["properties"] == {"x": {"type": "integer"}}
    assert make_tool(sdk.tool("t", "d", Unknown)(show)).input_schema == {"type": "object", "properties": {}}


async def test_arguments_that_the_schema_does_not_name_reach_the_tool() -> None:
    assert "'b': 2" in str(await run(show, {"a": int}, a=1, b=2))
    assert (await run(show, {"a": int}, b=2))["isError"]


RESULTS: dict[str, tuple[Any, list[Any]]] = {
    "nothing": (None, []),
    "an empty dictionary": ({}, []),
    "no content": ({"content": []}, []),
    "an unknown kind": ({"content": [{"type": "odd"}, TEXT]}, [TEXT]),
    "no dictionary": ({"content": ["x", TEXT]}, [TEXT]),
    "an image": (
        {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]},
        [{"type": "image", "data": "aGk=", "mimeType": "image/png"}],
    ),
    "a text": ("plain", [{"type": "text", "text": "plain"}]),
    "data": ({"total": 3}, [{"type": "text", "text": '{"total":3}'}]),
}


@pytest.mark.parametrize("case", RESULTS)
async def test_results(case: str) -> None:
    given, content = RESULTS[case]

    async def handler(_: Any) -> Any:
        return given

    found = await run(handler)
    assert found["content"] == content
    assert not found.get("isError")
