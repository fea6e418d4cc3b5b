"""JSON Schemas of output types, in the form that the CLI and the API both take; values of these types."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, cast

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from typing_extensions import TypedDict

import pilothouse as ph
from pilothouse.client.structured_output import OutputSchema, to_portable_schema, wrap_in_object

# Queries are made to see how they are checked, and not run.
pytestmark = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")

T = TypeVar("T")
DAY = datetime.date(2026, 11, 22)


@dataclass
class Line:
    item: str
    price: float


@dataclass
class Invoice:
    lines: list[Line]
    paid: bool = False


class Node(msgspec.Struct):
    name: str
    children: list[Node] = []


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Box(msgspec.Struct, Generic[T]):
    content: T


class Renamed(msgspec.Struct):
    """A name that the API does not take at the root."""

    size: int = msgspec.field(name="größe in cm")


class City(TypedDict):
    name: str


class Point(NamedTuple):
    x: int
    label: str = "here"


@attrs.define
class Boat:
    name: str
    masts: int = 1


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName", pattern=r"^\w+$")
    born: datetime.date | None = None
    friends: list[Person] = []


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    day: datetime.date
    pair: tuple[int, str]
    tags: set[str] = set()


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    note: Annotated[str, pydantic.Field(json_schema_extra={"example": "x", "x-order": 1})] = ""


@pydantic.dataclasses.dataclass
class Positive:
    count: int = pydantic.Field(gt=0)


@dataclass
class Mixed:
    person: Person
    positive: Positive
    lines: list[Line] = field(default_factory=list[Line])


class Held(TypedDict):
    held: list[Positive]


PLAIN: list[tuple[Any, Any, Any]] = [
    (Invoice, {"lines": [{"item": "tea", "price": 1}]}, Invoice([Line("tea", 1.0)])),
    (Node, {"name": "a", "children": [{"name": "b"}]}, Node("a", [Node("b")])),
    (Circle, {"type": "circle", "radius": 2}, Circle(2.0)),
    (Box[int], {"content": 3}, Box(3)),
    (City, {"name": "Paris"}, {"name": "Paris"}),
    (Boat, {"name": "Argo"}, Boat("Argo")),
    (dict[int, Line], {"7": {"item": "tea", "price": 1}}, {7: Line("tea", 1.0)}),
    (Person, {"fullName": "Ann", "born": "2026-11-22"}, Person(fullName="Ann", born=DAY)),
    (Strict, {"day": "2026-11-22", "pair": [1, "a"], "tags": ["x"]}, Strict(day=DAY, pair=(1, "a"), tags={"x"})),
    (Owner, {"pet": {"kind": "dog"}}, Owner(pet=Dog(kind="dog"))),
    (Positive, {"count": 3}, Positive(count=3)),
    (Mixed, {"person": {"fullName": "Ann"}, "positive": {"count": 1}}, Mixed(Person(fullName="Ann"), Positive(1))),
    (pydantic.TypeAdapter(Person), {"fullName": "Ann"}, Person(fullName="Ann")),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": 1}),
]
WRAPPED: list[tuple[Any, Any, Any]] = [
    (list[Line], [{"item": "tea", "price": 1}], [Line("tea", 1.0)]),
    (list[Node], [{"name": "a", "children": [{"name": "b"}]}], [Node("a", [Node("b")])]),
    (Circle | Square, {"type": "square", "side": 2}, Square(2.0)),
    (Line | None, None, None),
    (Renamed, {"größe in cm": 4}, Renamed(4)),
    (Point, [1, "there"], Point(1, "there")),
    (tuple[int, Line], [1, {"item": "tea", "price": 1}], (1, Line("tea", 1.0))),
    (set[int], [1, 2], {1, 2}),
    (Colour, "green", Colour.GREEN),
    (Literal["yes", "no"], "no", "no"),
    (int, 42, 42),
    (str, '{"a": 1}', '{"a": 1}'),
    (bool, False, False),
    (datetime.date, "2026-11-22", DAY),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
    (bytes, "eA==", b"x"),
    (Any, [1, {"a": None}], [1, {"a": None}]),
    (Numbers, [1, 2], Numbers([1, 2])),
    (list[Person], [{"fullName": "Ann"}], [Person(fullName="Ann")]),
    (dict[str, Positive] | None, {"a": {"count": 1}}, {"a": Positive(count=1)}),
    (pydantic.TypeAdapter(list[int]), [1], [1]),
    ({"type": "array", "items": {"type": "string"}}, ["a"], ["a"]),
    ({"anyOf": [{"type": "object", "required": ["a"]}, {"type": "null"}]}, None, None),
]

TAKEN = {
    "$comment", "$defs", "$id", "$ref", "additionalProperties", "allOf", "anyOf", "const", "contains",
    "contentEncoding", "contentMediaType", "default", "definitions", "dependencies", "deprecated", "description",
    "else", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems",
    "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not",
    "oneOf", "pattern", "patternProperties", "properties", "propertyNames", "readOnly", "required", "then", "title",
    "type", "uniqueItems", "writeOnly",
}  # fmt: skip


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in cast("list[Any]", schema):
            yield from keywords(item)
    if not isinstance(schema, Mapping):
        return
    for keyword, value in cast("Mapping[str, Any]", schema).items():
        yield keyword
        if keyword in ("properties", "$defs", "definitions"):
            yield from keywords(list(value.values()))
        elif keyword not in ("default", "const", "enum", "examples"):
            yield from keywords(value)


@pytest.mark.requirement("L14")
@pytest.mark.parametrize(("output_type", "plain", "value"), PLAIN, ids=lambda v: str(v)[:40])
def test_types_whose_json_is_an_object(output_type: Any, plain: Any, value: Any) -> None:
    expected = OutputSchema.from_type(output_type)
    assert not expected.wrapped
    assert expected.schema["type"] == "object"
    assert set(keywords(expected.schema)) <= TAKEN
    assert expected.validate(plain) == (value, plain)
    with pytest.raises(ph.StructuredOutputError):
        expected.validate([])


@pytest.mark.requirement("L14")
@pytest.mark.parametrize(("output_type", "plain", "value"), WRAPPED, ids=lambda v: str(v)[:40])
def test_other_types_travel_under_one_key(output_type: Any, plain: Any, value: Any) -> None:
    expected = OutputSchema.from_type(output_type)
    assert expected.wrapped
    schema = expected.schema
    assert (schema["type"], schema["required"], list(schema["properties"])) == ("object", ["value"], ["value"])
    assert set(keywords(schema)) <= TAKEN
    assert expected.validate({"value": plain}) == (value, plain)
    assert type(expected.validate({"value": plain})[0]) is type(value)


def test_references_at_the_root() -> None:
    assert OutputSchema.from_type(Invoice).schema["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert list(OutputSchema.from_type(Invoice).schema["$defs"]) == ["Line"]
    assert list(OutputSchema.from_type(Node).schema["$defs"]) == ["Node"]
    assert "$ref" not in OutputSchema.from_type(Person).schema
    root = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/items"}, {"$ref": "#/definitions/a"}]}}
    schema, wrapped = wrap_in_object({**root, "definitions": {"a": {"$ref": "#"}}, "$id": "https://example.com/a"})
    assert wrapped
    assert schema["properties"]["value"]["items"]["anyOf"] == [
        {"$ref": "#/properties/value"},
        {"$ref": "#/properties/value/items"},
        {"$ref": "#/definitions/a"},
    ]
    assert schema["definitions"] == {"a": {"$ref": "#/properties/value"}}
    escaped = {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "object"}}, "title": "T"}
    assert wrap_in_object(escaped) == ({"type": "object", "title": "T"}, False)
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert wrap_in_object(circle)[1]
    assert wrap_in_object({"$ref": "#/$defs/gone"})[0]["properties"] == {"value": {"$ref": "#/$defs/gone"}}
    assert wrap_in_object({"properties": {}}) == ({"type": "object", "properties": {}}, False)


def test_what_the_cli_does_not_know_is_left_out() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"x-odd": {"type": "string", "x-order": 1, "example": "a", "default": {"x-kept": 1}}, "b": True},
        "unevaluatedProperties": False,
        "dependentRequired": {"x-odd": ["b"]},
        "dependentSchemas": {"b": {"minContains": 1, "contains": {"x-": 1}}},
        "patternProperties": {r"\Z": {"type": "string"}, "^a": {"x-": 1}},
    }
    assert to_portable_schema(schema) == {
        "type": "object",
        "properties": {"x-odd": {"type": "string", "default": {"x-kept": 1}}, "b": True},
        "dependencies": {"x-odd": ["b"], "b": {"contains": {}}},
        "patternProperties": {"^a": {}},
    }
    assert to_portable_schema(True) is True


def test_tuples() -> None:
    number, text = {"type": "integer"}, {"type": "string"}
    described = 'Items by position: 1. {"type":"integer"}; 2. {"type":"string"}.'
    both = {"items": {"anyOf": [number, text]}, "maxItems": 2, "description": described}
    assert to_portable_schema({"prefixItems": [number, text], "items": False}) == both
    assert to_portable_schema({"items": [number, text], "additionalItems": False}) == both
    assert to_portable_schema({"prefixItems": [number, text], "maxItems": 2, "description": "Two."}) == {
        **both,
        "description": f"Two. {described}",
    }
    assert to_portable_schema({"prefixItems": [number, number], "items": text})["items"] == {"anyOf": [number, text]}
    assert to_portable_schema({"prefixItems": [number, number], "items": number})["items"] == number
    assert "items" not in to_portable_schema({"prefixItems": [number]})


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{2,4}-[A-Za-z\-_]+$", r"(?:a|b)?(?!c)(?<=d)x*", r"\p{L}+\u00e9\x41\0", r"(?<n>a)\k<n>\1", r"[\w.-]+",
        r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"[^\]\[]", r"a\/b\.c\\d", "",
    ],
)  # fmt: skip
def test_patterns_that_travel(pattern: str) -> None:
    assert to_portable_schema({"pattern": pattern}) == {"pattern": pattern}


@pytest.mark.parametrize(
    "pattern", [r"a\-b", r"\Aa", r"a\Z", r"(?i)a", "a{", "a]", "a}", r"a\ b", r"a\@b", r"\01", r"[\w-.]", r"(?>a)"]
)
def test_patterns_of_python_only_become_a_note(pattern: str) -> None:
    assert to_portable_schema({"pattern": pattern}) == {"description": f"Matches the regular expression {pattern}"}


def test_named_groups_are_rewritten() -> None:
    assert to_portable_schema({"pattern": "(?P<n>a)(?P=n)"}) == {"pattern": r"(?<n>a)\k<n>"}


def test_types_that_have_no_schema() -> None:
    for wrong in (complex, "Invoice", Line("a", 1), {"default": object()}, Box[complex]):
        with pytest.raises(
            ph.OptionsError, match=r"output_type: (no JSON Schema for|complex is a plain class|expected a type)"
        ) as caught:
            ph.query("go", output_type=wrong)
        assert caught.value.option == "output_type"


def test_a_dataclass_of_pydantic_is_checked_by_pydantic() -> None:
    cases: list[tuple[Any, Any]] = [
        (Positive, {"count": 0}),
        (list[Positive], {"value": [{"count": 0}]}),
        (Held, {"held": [{"count": 0}]}),
        (list[Annotated[int, pydantic.Field(gt=0)]], {"value": [0]}),
    ]
    for output_type, value in cases:
        with pytest.raises(ph.StructuredOutputError, match="greater than 0"):
            OutputSchema.from_type(output_type).validate(value)


RAW: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": ["integer", "null"], "minimum": 1},
        "lines": {"type": "array", "items": {"type": "object", "required": ["what"]}},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        "when": {"type": "string", "format": "date-time", "default": "now"},
        "far": {"$ref": "https://example.invalid/never-fetched.json"},
    },
    "required": ["id"],
}
NEAR = {**RAW, "properties": {k: v for k, v in RAW["properties"].items() if k != "far"}}
GOOD: dict[str, Any] = {"id": None, "lines": [{"what": 1}], "pair": [1], "when": "some day", "more": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": 0}, r"must be at least 1 - at `\$\.id`"),
        ({"id": "x"}, r"must be integer or null, not string - at `\$\.id`"),
        ({"lines": [{"what": 1}, {}]}, r"required, but missing - at `\$\.lines\[1\]\.what`"),
        ({"pair": [1, 2]}, r"not allowed - at `\$\.pair\[1\]`"),
        ({"id": True, "lines": 1}, r"must be .* - at `\$\.id`; must be array, not integer - at `\$\.lines`"),
    ],
)
@pytest.mark.parametrize("schema", [NEAR, RAW], ids=["checked by the library", "beyond the library"])
def test_a_schema_is_checked(schema: dict[str, Any], change: dict[str, Any], words: str) -> None:
    expected = OutputSchema.from_type(schema)
    given = dict(GOOD)
    value, _ = expected.validate(given)
    assert value is given
    assert given == GOOD  # no defaults filled in
    assert expected.validate(GOOD | {"id": 1.0})[0]["id"] == 1.0
    with pytest.raises(ph.StructuredOutputError, match=f"does not fit Order: {words}"):
        expected.validate(GOOD | change)


def test_the_place_of_a_wrapped_value_is_where_it_travels() -> None:
    expected = OutputSchema.from_type({"type": "array", "items": {"type": "integer"}})
    with pytest.raises(ph.StructuredOutputError, match=r"must be integer, not string - at `\$\.value\[0\]`"):
        expected.validate({"value": ["x"]})


def test_what_is_sent_is_json() -> None:
    query = ph.query("go", output_type=list[Line])
    assert query.options.json_schema is not None
    assert json.loads(json.dumps(query.options.json_schema)) == query.options.json_schema
