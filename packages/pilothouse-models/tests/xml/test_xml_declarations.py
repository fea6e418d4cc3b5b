"""Tools declared as XML: the example of the requirement, and everything else that a schema can say."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import as_tool
from pilothouse_models.xml.prompt import declare, declare_tools

WEATHER = """\
<tool name="getWeather">
  <description>Get the weather for a location</description>
  <parameters>
    <parameter name="city" type="string" required="true">
      <description>The city name</description>
    </parameter>
    <parameter name="units" type="string" required="true">
      <description>Temperature units (celsius or fahrenheit)</description>
    </parameter>
  </parameters>
</tool>"""

UNITS = {"type": "string", "enum": ["celsius", "fahrenheit"]}
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city name"},
        "units": {**UNITS, "description": "Temperature units"},
    },
    "required": ["city", "units"],
    "additionalProperties": False,
}


@dataclass
class Node:
    name: str
    inner: list[Node]


def parsed(schema: Any, **properties: Any) -> ElementTree.Element:
    given_schema = schema or {"type": "object", "properties": properties}
    found = ElementTree.fromstring(declare("t", "d", given_schema)).find("parameters")
    assert found is not None
    return found


def one(schema: Any, **root: Any) -> ElementTree.Element:
    return parsed({"type": "object", "properties": {"p": schema}, **root})[0]


@pytest.mark.requirement("S4", "S5", "S6", "S7", "S8")
def test_the_weather_example() -> None:
    assert declare("getWeather", "Get the weather for a location", SCHEMA) == WEATHER


@pytest.mark.requirement("S4")
def test_a_python_function_and_mappings_are_declared_alike() -> None:
    def getWeather(
        city: Annotated[str, "The city name"], units: Annotated[Literal["celsius", "fahrenheit"], "Temperature units"]
    ) -> None:
        """Get the weather for a location"""

    named = {"name": "getWeather", "description": "Get the weather for a location"}
    assert declare_tools([as_tool(getWeather)]) == WEATHER
    for key in ("input_schema", "inputSchema", "parameters"):
        assert declare_tools([{**named, key: SCHEMA}] * 2) == f"{WEATHER}\n{WEATHER}"


@pytest.mark.requirement("S8")
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (UNITS, "(celsius or fahrenheit)"),
        ({"enum": ["a"]}, "(a)"),
        ({"type": "string", "enum": ["a", "b", "c"], "description": "Which"}, "Which (a, b or c)"),
        ({"enum": ["a or b", "", "c,d"]}, '("a or b", "" or "c,d")'),
        ({"enum": ["on", None, 3, True]}, '("on", null, 3 or true)'),
        ({"type": "integer", "enum": [1, 2]}, "(1 or 2)"),
    ],
)
def test_enums_are_named_in_the_description(schema: Any, text: str) -> None:
    assert one(schema).findtext("description") == text


class Units(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


def test_enums_of_python() -> None:
    def convert(units: Units) -> None: ...

    (tool,) = ElementTree.fromstring(declare_tools([as_tool(convert)])).iter("parameter")
    assert tool.get("type") == "string"
    assert tool.findtext("description") == "(celsius or fahrenheit)"


@pytest.mark.requirement("S5")
@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        *(({"type": each}, each) for each in ("string", "integer", "number", "boolean", "object", "array", "null")),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, "string | null"),
        ({"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}]}, "string | integer | null"),
        ({"anyOf": [{"type": "array", "items": {}}, {"type": "object", "properties": {}}]}, "array | object"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": ["a", None]}, "string | null"),
        ({"const": 4}, "integer"),
        ({"properties": {"a": {}}}, "object"),
        ({"items": {"type": "string"}}, "array"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_types(schema: Any, kind: str) -> None:
    assert one(schema).get("type") == kind


@pytest.mark.requirement("S6")
def test_every_parameter_states_whether_it_is_required() -> None:
    found = parsed({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b", "c"]})
    assert [(each.get("name"), each.get("required")) for each in found] == [
        ("a", "false"),
        ("b", "true"),
        ("c", "true"),
    ]


def schemas_in(found: ElementTree.Element) -> list[Any]:
    return [json.loads(each.text or "") for each in found.findall("schema")]


@pytest.mark.parametrize(
    ("schema", "rest"),
    [
        ({"type": "string", "minLength": 1, "pattern": '^"<a>&\n'}, {"minLength": 1, "pattern": '^"<a>&\n'}),
        ({"type": "number", "default": 2, "description": "How many", "title": "N"}, {"default": 2}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {"default": None}),
        ({"type": "array", "items": {"type": "integer", "maximum": 3}}, {"items": {"type": "integer", "maximum": 3}}),
        (
            {"oneOf": [{"type": "string", "pattern": "x"}, {"type": "null"}]},
            {"oneOf": [{"type": "string", "pattern": "x"}, {"type": "null"}]},
        ),
        ({"type": "object", "additionalProperties": False}, {"additionalProperties": False}),
        (False, {"not": True}),
    ],
)
def test_the_rest_of_a_schema_is_json(schema: Any, rest: Any) -> None:
    assert schemas_in(one(schema)) == [rest]


def test_references_are_resolved_one_level_and_their_definitions_follow() -> None:
    defs = {"Unit": {"title": "Unit", **UNITS}, "a/b": {"type": "integer"}}
    found = one({"$ref": "#/$defs/Unit", "description": "Which"}, **{"$defs": defs})
    assert found.attrib == {"name": "p", "type": "string", "required": "false"}
    assert found.findtext("description") == "Which (celsius or fahrenheit)"
    assert not schemas_in(found)
    assert one({"allOf": [{"$ref": "#/definitions/a~1b"}], "default": 3}, definitions=defs).get("type") == "integer"
    nullable = {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}
    root = parsed({"type": "object", "properties": {"p": nullable}, "$defs": defs})
    assert root[0].get("type") == "string | null"
    assert schemas_in(root) == [{"$defs": defs}]
    assert schemas_in(root[0]) == [nullable]
    assert one({"$ref": "http://elsewhere/x"}).get("type") == "any"
    root = parsed({"$ref": "#/$defs/In", "$defs": {"In": {"type": "object", "properties": {"a": UNITS}}}})
    assert root[0].get("name") == "a"


def test_a_recursive_type_stays_a_reference() -> None:
    def walk(tree: Node) -> None: ...

    found = ElementTree.fromstring(declare_tools([as_tool(walk)]))
    outer = next(found.iter("parameter"))
    assert outer.get("type") == "object"
    (rest,) = schemas_in(outer)
    assert rest["properties"]["inner"]["items"] == {"$ref": "#/$defs/Node"}
    assert any("Node" in each.get("$defs", ()) for each in schemas_in(found.find("parameters")))  # type: ignore[arg-type]
    loop = one({"$ref": "#/$defs/A"}, **{"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}})
    assert loop.get("type") == "any"
    assert parsed({"type": "object", "properties": {"me": {"$ref": "#"}}})[0].get("type") == "object"


def test_the_root_keeps_what_its_parameters_do_not_say() -> None:
    assert schemas_in(parsed({"type": "object", "minProperties": 1, "description": "Root"})) == [
        {"minProperties": 1, "description": "Root"}
    ]
    assert not schemas_in(parsed({"type": "object", "description": "d", "additionalProperties": False}))


@pytest.mark.requirement("S7")
def test_everything_is_escaped() -> None:
    nasty = "</description></tool> & \"x\" 'y' <tool_use>"
    schema = {"type": "object", "properties": {nasty: {"description": nasty, "enum": [nasty, "b"], "pattern": nasty}}}
    found = ElementTree.fromstring(declare(nasty, nasty, schema))
    assert found.get("name") == found.findtext("description") == nasty
    (parameter,) = found.iter("parameter")
    assert parameter.get("name") == nasty
    assert schemas_in(parameter) == [{"pattern": nasty}]
    assert (parameter.findtext("description") or "") == f'{nasty} ({json.dumps(nasty)} or "b")'
    assert ElementTree.fromstring(declare("a\0b", "\ud800", {})).get("name") == "a\ufffdb"


@pytest.mark.parametrize("schema", [None, [], "x", 3])
def test_a_schema_that_is_none(schema: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="must be a mapping"):
        declare("t", "d", schema)


def test_bad_tools() -> None:
    with pytest.raises(ToolDefinitionError, match="no name"):
        declare_tools([{"description": "d"}])
    with pytest.raises(ToolDefinitionError, match="cannot be declared"):
        declare("t", "d", {"type": "object", "properties": {"a": {"default": [object()]}}})


def test_a_tool_without_parameters_or_description() -> None:
    assert declare("t", None, {"type": "object"}) == '<tool name="t">\n  <parameters/>\n</tool>'


KEYS = st.sampled_from(
    ["type", "properties", "required", "items", "enum", "anyOf", "allOf", "$ref", "default", "additionalProperties",
     "description", "title", "prefixItems", "$defs", "const", "nullable", "<x>"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_schema_gives_xml(schema: dict[str, Any]) -> None:
    assert ElementTree.fromstring(declare("t", "d", schema)).tag == "tool"
