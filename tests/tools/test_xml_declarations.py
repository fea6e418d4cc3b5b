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
from pilothouse.tools.xml.prompt import declare, declare_tools

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


class Units(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


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


def attributes(schema: Any) -> dict[str, str]:
    return {key: item for key, item in one(schema).attrib.items() if key not in ("name", "required")}


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


def test_bounds_stay_as_attributes() -> None:
    bounds = {"minLength": 1, "maxLength": 5, "pattern": '^"<a>&\n', "format": "email", "default": "x", "const": "y"}
    assert attributes({"type": "string", **bounds}) == {"type": "string", **{k: str(v) for k, v in bounds.items()}}
    number = {"type": "number", "minimum": -1.5, "exclusiveMaximum": 3, "multipleOf": 0.5, "default": 2}
    assert attributes(number)["minimum"] == "-1.5"
    assert attributes(number)["default"] == "2"
    assert attributes({"type": ["string", "null"], "default": "null"})["default"] == '"null"'
    assert attributes({"type": "string", "minLength": 2, "nullable": True})["minLength"] == "2"
    assert attributes({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}], "default": None}) == {
        "type": "string | null",
        "minLength": "2",
        "default": "null",
    }
    assert json.loads(attributes({"type": "array", "default": [1, {"a": "<"}]})["default"]) == [1, {"a": "<"}]


def test_objects_and_arrays_are_nested() -> None:
    street = {"type": "string", "description": "With number", "maxLength": 80}
    place = {"type": "object", "description": "Where", "properties": {"street": street}, "required": ["street"]}
    found = one({"type": "array", "minItems": 1, "items": place})
    assert (found.get("type"), found.get("minItems")) == ("array", "1")
    (items,) = found
    assert (items.tag, items.get("type"), items.findtext("description")) == ("items", "object", "Where")
    inner = items.find("parameter")
    assert inner is not None
    assert inner.attrib == {"name": "street", "type": "string", "required": "true", "maxLength": "80"}
    assert inner.findtext("description") == "With number"
    pair = one({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False})
    assert [(each.tag, each.get("type")) for each in pair] == [
        ("item", "string"),
        ("item", "integer"),
        ("items", "any"),
    ]


def test_further_properties() -> None:
    assert one({"type": "object", "additionalProperties": False}).get("additionalProperties") == "false"
    assert one({"type": "object", "additionalProperties": {"type": "integer"}})[0].attrib == {"type": "integer"}
    assert (
        parsed({"type": "object", "properties": {}, "additionalProperties": True}).get("additionalProperties") == "true"
    )
    assert parsed(SCHEMA).attrib == {}


def test_unions_of_structures() -> None:
    found = one({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string", "pattern": "x"}]})
    (union,) = found
    assert union.tag == "one_of"
    assert [(each.tag, each.get("type")) for each in union] == [("option", "object"), ("option", "string")]
    assert union[1].get("pattern") == "x"


def test_references_are_resolved() -> None:
    defs = {"Unit": {"title": "Unit", **UNITS}, "a/b": {"type": "integer"}}
    found = one({"$ref": "#/$defs/Unit", "description": "Which"}, **{"$defs": defs})
    assert found.attrib == {"name": "p", "type": "string", "required": "false"}
    assert found.findtext("description") == "Which (celsius or fahrenheit)"
    assert one({"allOf": [{"$ref": "#/definitions/a~1b"}], "default": 3}, definitions=defs).get("type") == "integer"
    assert (
        one({"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, **{"$defs": defs}).get("type") == "string | null"
    )
    assert one({"$ref": "http://elsewhere/x"}).get("type") == "any"
    root = parsed({"$ref": "#/$defs/In", "$defs": {"In": {"type": "object", "properties": {"a": UNITS}}}})
    assert root[0].get("name") == "a"


def test_a_recursive_type_is_described_once() -> None:
    def walk(tree: Node) -> None: ...

    found = ElementTree.fromstring(declare_tools([as_tool(walk)]))
    outer = next(found.iter("parameter"))
    name = outer.get("defines")
    assert name is not None
    assert [each.get("same_as") for each in outer.iter("items")] == [name]
    loop = one({"$ref": "#/$defs/A"}, **{"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}})
    assert loop.get("type") == "any"
    assert parsed({"type": "object", "properties": {"me": {"$ref": "#"}}})[0].get("same_as") == "#"


def test_what_multiplies_stays_small() -> None:
    steps = {
        f"s{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/s{n + 1}"} for k in "abc"}} for n in range(40)
    }
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/s0"}},
        "$defs": {**steps, "s40": {"type": "string"}},
    }
    text = declare("t", "d", schema)
    assert len(text) < 200_000
    assert 'same_as="s20"' in text
    assert ElementTree.fromstring(text) is not None
    deep: dict[str, Any] = {"type": "string", "pattern": "deepest"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"p": deep}}
    assert "deepest" in declare("t", "d", deep)


def test_keywords_without_their_own_element_are_json() -> None:
    found = one({"type": "object", "patternProperties": {"^x": {"$ref": "#/$defs/Z"}}}, **{"$defs": {"Z": UNITS}})
    (reported,) = found
    assert reported.get("keyword") == "patternProperties"
    assert json.loads(reported.text or "") == {"^x": {"$ref": "#/$defs/Z"}}
    root = parsed({"type": "object", "properties": {"p": {"not": {"$ref": "#/$defs/Z"}}}, "$defs": {"Z": UNITS}})
    assert root[-1].tag == "definition"
    assert root[-1].get("defines") == "Z"
    assert parsed({"type": "object", "minProperties": 1}).get("minProperties") == "1"


@pytest.mark.requirement("S7")
def test_everything_is_escaped() -> None:
    nasty = "</description></tool> & \"x\" 'y' <tool_use>"
    schema = {"type": "object", "properties": {nasty: {"description": nasty, "enum": [nasty, "b"], "pattern": nasty}}}
    found = ElementTree.fromstring(declare(nasty, nasty, schema))
    assert found.get("name") == found.findtext("description") == nasty
    (parameter,) = found.iter("parameter")
    assert parameter.get("name") == parameter.get("pattern") == nasty
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
