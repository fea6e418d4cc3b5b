"""What the text of a parameter becomes under its schema."""

from __future__ import annotations

from typing import Any

import pytest
from xml_fixtures import parse

from pilothouse.events import ToolCall

DEFS = {
    "Point": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}, "required": ["x"]}
}
POINT = {"$ref": "#/$defs/Point"}


def value_of(schema: Any, *texts: str) -> Any:
    inside = "".join([f"<p>{text}</p>" for text in texts])
    root = {"type": "object", "properties": {"p": schema}, "$defs": DEFS}
    events = parse(f"<tool_use><tool_name>t</tool_name><parameters>{inside}</parameters></tool_use>", {"t": root})
    return next(event for event in events if isinstance(event, ToolCall)).input["p"]


def typed(kind: str | list[str], **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


NULLABLE = {"anyOf": [typed("integer"), typed("null")]}
NUMBERS = typed("array", items=typed("integer"))


@pytest.mark.requirement("S26")
@pytest.mark.parametrize(
    ("schema", "texts", "expected"),
    [
        (typed("string"), [" 5\n"], " 5\n"),
        (typed("integer"), [" 5\n"], 5),
        (typed("integer"), ["5.0"], 5),
        (typed("integer"), ["5.5"], "5.5"),
        (typed("integer"), ["007"], "007"),
        (typed("number"), ["-2.5e1"], -25.0),
        (typed("number"), ["1e999"], "1e999"),
        (typed("boolean"), ["True"], True),
        (typed("boolean"), ["yes"], "yes"),
        (typed("null"), ["null"], None),
        (NULLABLE, ["null"], None),
        (typed(["null", "string"]), ["null"], None),
        (typed(["string", "null"]), ["null"], "null"),
        ({"anyOf": [typed("string"), typed("integer")]}, ["7"], "7"),
        (typed("string", enum=["a", "b"]), ["\n a "], "a"),
        ({"enum": [1, True, None, "x"]}, ["true"], True),
        ({"enum": [1, True, None, "x"]}, ["1"], 1),
        ({}, ["7"], "7"),
        (True, ["7"], "7"),
        (NUMBERS, ["[1, 2]"], [1, 2]),
        (NUMBERS, ["<item>1</item> <item>x</item>"], [1, "x"]),
        (NUMBERS, ["1", "2"], [1, 2]),
        (NUMBERS, ["1"], [1]),
        (NUMBERS, [" "], []),
        (NUMBERS, ["[1, 2"], "[1, 2"),
        (typed("array", prefixItems=[typed("string"), typed("integer")]), ["1", "2"], ["1", 2]),
        (typed("string"), ["a", "b"], ["a", "b"]),
        (POINT, ["<x>1</x><y>2.5</y><z>3</z>"], {"x": 1, "y": 2.5, "z": "3"}),
        (POINT, ['{"x": 1}'], {"x": 1}),
        ({"allOf": [POINT]}, ["<x>1</x>"], {"x": 1}),
        ({"anyOf": [POINT, typed("null")]}, ["<x>no</x>"], {"x": "no"}),
        ({"anyOf": [POINT, typed("string")]}, ["<y>1</y>"], "<y>1</y>"),
        (typed("array", items=POINT), ["<x>1</x>", "<x>2</x>"], [{"x": 1}, {"x": 2}]),
        ({"$ref": "#/properties/p"}, ["x"], "x"),
        (POINT, ["<x>1</x> and more"], "<x>1</x> and more"),
        (typed("array", items=NUMBERS), ["<item>[1]</item><item><![CDATA[2]]></item>"], [[1], [2]]),
    ],
)  # fmt: skip
def test_values_are_typed_by_the_schema_and_never_guessed(schema: Any, texts: list[str], expected: Any) -> None:
    value = value_of(schema, *texts)
    assert value == expected
    assert type(value) is type(expected)


def test_without_a_schema_everything_is_text() -> None:
    text = "<tool_use><tool_name>t</tool_name><parameters><a>1</a><b><c>x</c></b></parameters></tool_use>"
    assert next(event for event in parse(text) if isinstance(event, ToolCall)).input == {"a": "1", "b": "<c>x</c>"}


def test_the_depth_of_nested_elements_is_bounded() -> None:
    names = [f"n{number}" for number in range(40)]
    deep = "".join([f"<{name}>" for name in names]) + "x" + "".join([f"</{name}>" for name in reversed(names)])
    text = f"<tool_use><tool_name>t</tool_name><parameters>{deep}</parameters></tool_use>"
    tool = {"t": {"type": "object", "additionalProperties": {"$ref": "#"}}}
    value: Any = next(event for event in parse(text, tool) if isinstance(event, ToolCall)).input
    depth = 0
    while isinstance(value, dict):
        (value,) = value.values()
        depth += 1
    assert 30 < depth < 40
    assert value.startswith("<n3")
