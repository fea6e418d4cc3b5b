"""Schemas of tools come from signatures and docstrings, and inputs are checked and converted by them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.errors import ToolDefinitionError, UsageError
from pilothouse.tools import Tool, ToolContext, ToolInputError, create_tool, tool

pytestmark = pytest.mark.anyio


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Tree(msgspec.Struct):
    name: str
    parts: list[Tree] = []
    at: Point | None = None


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


def schema_of(function: Any) -> dict[str, Any]:
    schema = tool(function).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    return schema


def properties_of(function: Any) -> dict[str, Any]:
    return schema_of(function)["properties"]


async def received(function: Any, **arguments: Any) -> dict[str, Any]:
    """What the function got, by name."""
    got: dict[str, Any] = {}

    @functools.wraps(function)
    def record(**values: Any) -> None:
        got.update(values)

    await Tool(record).invoke(arguments)
    return got


@pytest.mark.requirement("R20", "S26")
def test_name_description_and_schema_come_from_the_function() -> None:
    @tool
    def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius", days: int = 3) -> str:
        """Tell the weather.

        It may be wrong.

        Args:
            city: Name of the city,
                in English.
            days: How many days ahead.

        Returns:
            A sentence.
        """
        return f"{city} {unit} {days}"

    assert get_weather.name == "get_weather"
    assert get_weather.description == "Tell the weather.\n\nIt may be wrong."
    assert get_weather.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city, in English."},
            "unit": {"enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "description": "How many days ahead.", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert get_weather("Oslo", days=1) == "Oslo celsius 1"
    assert inspect.signature(get_weather).parameters.keys() == {"city", "unit", "days"}


def test_a_docstring_with_sections_needs_the_parser_only_for_the_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "docstring_parser", None)

    def f(a: int) -> None:
        """Do it,
        now.

        More of it.

        Args:
            a: what.
        """

    made = tool(f)
    assert made.description == "Do it,\nnow."
    assert made.input_schema["properties"] == {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    "docstring",
    [
        "Add.\n\n:param a: first one\n:returns: sum",
        "Add.\n\nParameters\n----------\na : int\n    first one\n",
        "Add.\n\nArgs:\n    a (int): first one\n",
    ],
)
def test_the_usual_docstring_styles_are_read(docstring: str) -> None:
    def f(a: int) -> None: ...

    f.__doc__ = docstring
    made = tool(f)
    assert made.description == "Add."
    assert made.input_schema["properties"]["a"]["description"] == "first one"


def test_types_have_the_schemas_that_one_expects() -> None:
    def f(
        a: bool,
        b: list[int],
        c: dict[str, float],
        d: Unit,
        e: Level,
        g: int | str,
        h: Optional[int],  # noqa: UP045 - both spellings
        i: tuple[int, str],
        j: set[str],
        k: Annotated[int, msgspec.Meta(ge=1, le=9, description="small")],
        m: Annotated[str, "a note"],
        n: datetime.datetime,
        o: Path,
        p: Any,
        q,
        r: bytes,
    ) -> None: ...

    found = properties_of(f)
    assert found["a"] == {"type": "boolean"}
    assert found["b"] == {"type": "array", "items": {"type": "integer"}}
    assert found["c"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert found["d"] == {"$ref": "#/$defs/Unit"}
    assert found["e"] == {"$ref": "#/$defs/Level"}
    assert schema_of(f)["$defs"]["Unit"]["enum"] == ["celsius", "fahrenheit"]
    assert schema_of(f)["$defs"]["Level"]["enum"] == [1, 2]
    assert {"type": "integer"} in found["g"]["anyOf"]
    assert {"type": "null"} in found["h"]["anyOf"]
    assert found["i"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    assert found["j"]["uniqueItems"] is True
    assert found["k"] == {"type": "integer", "minimum": 1, "maximum": 9, "description": "small"}
    assert found["m"] == {"type": "string", "description": "a note"}
    assert found["n"] == {"type": "string"}
    assert found["o"] == {"type": "string", "format": "path"}
    assert found["p"] == {}
    assert found["q"] == {}
    assert found["r"]["contentEncoding"] == "base64"


def test_nested_types_keep_their_definitions() -> None:
    def f(tree: Tree, movie: Movie, points: list[Point]) -> None: ...

    schema = schema_of(f)
    assert set(schema["$defs"]) == {"Tree", "Point", "Movie"}
    jsonschema.validate(
        {"tree": {"name": "a", "parts": [{"name": "b"}]}, "movie": {"title": "M"}, "points": [{"x": 1}]}, schema
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tree": {"parts": [{}]}, "movie": {"title": "M"}, "points": []}, schema)


def test_defaults_are_in_the_schema_and_left_to_the_function() -> None:
    missing = object()

    def f(a: int = 1, b: Unit = Unit.CELSIUS, c: Point = Point(1), d: Any = missing, e: int = None) -> None:  # pyright: ignore[reportArgumentType]  # noqa: B008, RUF013
        ...

    found = properties_of(f)
    assert "required" not in schema_of(f)
    assert found["a"]["default"] == 1
    assert found["b"]["default"] == "celsius"
    assert found["c"]["default"] == {"x": 1, "y": 0.0}
    assert "default" not in found["d"]
    assert {"type": "null"} in found["e"]["anyOf"]


async def test_mutable_defaults_and_private_defaults_are_those_of_the_function() -> None:
    sentinel = object()
    seen: list[Any] = []

    @tool
    async def f(a: int, extra: Any = sentinel) -> None:
        seen.append(extra)

    await f.invoke({"a": 1})
    assert seen == [sentinel]


@pytest.mark.requirement("S26")
async def test_values_arrive_as_the_declared_types() -> None:
    def f(
        tree: Tree,
        unit: Unit,
        when: datetime.date,
        key: uuid.UUID,
        price: Decimal,
        where: Path,
        both: tuple[int, str],
        movie: Movie,
        x: float,
    ) -> None: ...

    got = await received(
        f,
        tree={"name": "a", "at": {"x": 1}},
        unit="fahrenheit",
        when="2026-11-22",
        key="12345678-1234-5678-1234-567812345678",
        price="1.10",
        where="a/b",
        both=[1, "x"],
        movie={"title": "M"},
        x=1,
    )
    assert got["tree"] == Tree("a", at=Point(1.0))
    assert got["unit"] is Unit.FAHRENHEIT
    assert got["when"] == datetime.date(2026, 11, 22)
    assert got["key"] == uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert got["price"] == Decimal("1.10")
    assert got["where"] == Path("a/b")
    assert got["both"] == (1, "x")
    assert got["movie"] == {"title": "M"}
    assert isinstance(got["x"], float)


@pytest.mark.requirement("S9", "S38")
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, ["`count`: required"]),
        ({"count": "many"}, ["`count`: Expected `int`, got `str`"]),
        ({"count": 1, "points": [{"x": 1}, {"x": "?"}]}, ["`points[1].x`: Expected `float`"]),
        ({"count": 0}, ["`count`: Expected `int` >= 1"]),
        ({"count": 1, "colour": "red"}, ["`colour`: unknown"]),
        ({"count": 1.5, "points": None, "z": 1}, ["`count`", "`points`", "`z`"]),
    ],
)
async def test_an_invalid_input_is_reported_by_field(arguments: dict[str, Any], names: list[str]) -> None:
    called: list[int] = []

    @tool
    async def f(count: Annotated[int, msgspec.Meta(ge=1)], points: list[Point] = []) -> None:  # noqa: B006
        called.append(count)

    with pytest.raises(ToolInputError) as caught:
        await f.invoke(arguments)
    assert len(caught.value.problems) == len(names)
    for name, problem in zip(names, caught.value.problems, strict=True):
        assert problem.startswith(name)
        assert problem in str(caught.value)
    assert not called
    result = await f.run(arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"] == str(caught.value)


async def test_a_function_with_double_stars_takes_whatever_comes() -> None:
    @tool
    async def f(a: int, **more: Any) -> dict[str, Any]:
        return {"a": a, **more}

    assert f.input_schema["additionalProperties"] is True
    assert (await f.invoke({"a": 1, "b": [2]}))["structuredContent"] == {"a": 1, "b": [2]}


def test_the_context_is_no_input() -> None:
    def f(a: int, context: ToolContext) -> None: ...
    def g(a: int, context: ToolContext | None = None) -> None: ...
    def two(a: ToolContext, b: ToolContext) -> None: ...

    assert list(properties_of(f)) == ["a"]
    assert list(properties_of(g)) == ["a"]
    with pytest.raises(ToolDefinitionError, match="more than one"):
        tool(two)


def test_partials_methods_and_objects_can_be_tools() -> None:
    def f(a: int, b: str) -> None: ...

    class Adder:
        def add(self, a: int) -> int:
            """Add one."""
            return a + 1

        def __call__(self, q: str) -> str:
            return q

    assert list(tool(functools.partial(f, 1)).input_schema["properties"]) == ["b"]
    assert tool(functools.partial(f, 1)).name == "f"
    assert tool(Adder().add).input_schema["properties"] == {"a": {"type": "integer"}}
    assert tool(Adder().add).description == "Add one."
    assert tool(Adder()).name == "Adder"
    assert list(tool(Adder()).input_schema["properties"]) == ["q"]


async def test_a_method_decorated_in_its_class_is_a_tool_of_each_object() -> None:
    class Shop:
        def __init__(self, price: int) -> None:
            self.price = price

        @tool
        async def total(self, count: int) -> int:
            """Sum up."""
            return self.price * count

    assert list(Shop.total.input_schema["properties"]) == ["count"]
    assert not Shop.total.is_bound
    cheap, dear = Shop(1), Shop(100)
    assert (await dear.total.invoke({"count": 3}))["content"][0]["text"] == "300"
    assert (await cheap.total.invoke({"count": 3}))["content"][0]["text"] == "3"


class Odd:
    def __init__(self, a: int) -> None: ...


def generator(a: int) -> Any:
    yield a


def positional(*values: int) -> None: ...
def unresolved(a: Nonsense) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
def callback(a: type[int]) -> None: ...
def odd(a: Odd) -> None: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tool(generator), "generator"),
        (lambda: tool(positional), "no name"),
        (lambda: tool(unresolved), "Nonsense"),
        (lambda: tool(odd), "parameter `a`: its type has no JSON form"),
        (lambda: tool(name="a b")(callback), "name"),
        (lambda: tool(lambda: 1), "lambda"),
        (lambda: tool(name="x" * 129)(lambda: 1), "128"),
        (lambda: tool(name="f", annotations={"loud": True})(lambda: 1), "loud"),
        (lambda: tool(name="f", annotations={"read_only": "yes"})(lambda: 1), "bool"),
        (lambda: tool(name="f", timeout=0)(lambda: 1), "timeout"),
        (lambda: tool(name="f", timeout="soon")(lambda: 1), "timeout"),  # pyright: ignore[reportArgumentType]
        (lambda: tool(name="f", max_concurrency=0)(lambda: 1), "max_concurrency"),
        (lambda: tool(name="f", schema={"type": "array"})(lambda a: a), "object"),
        (lambda: tool(name="f", schema={"type": "object", "x": {1j}})(lambda a: a), "JSON"),
        (lambda: tool(name="f", schema=list[int])(lambda a: a), "object"),
        (lambda: tool(name="f", schema=Point)(lambda a, b: a), "exactly one"),
        (lambda: create_tool("f", "", {"a": int, "b": int}, lambda a: a), "'b'"),
        (lambda: create_tool("f", "", {"a": int}, lambda a, c: a), "'c'"),
        (lambda: tool(3), "expected a function"),  # pyright: ignore[reportArgumentType, reportCallIssue]
    ],
)
def test_an_invalid_tool_is_reported_at_its_definition(make: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message) as caught:
        make()
    assert isinstance(caught.value, UsageError)


# Schemas in place of signatures.


@pytest.mark.requirement("R20")
async def test_a_json_schema_is_sent_as_it_is_and_checked() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 2}, "tags": {"type": "array", "items": {"enum": [1]}}},
        "required": ["city"],
        "additionalProperties": False,
        "x-mine": 1,
    }

    async def handler(args: dict[str, Any]) -> str:
        return args["city"]

    made = create_tool("weather", "Tell it", schema, handler)
    assert made.input_schema == schema
    assert made.description == "Tell it"
    assert (await made.run({"city": "Oslo"}))["content"][0]["text"] == "Oslo"
    for arguments, place in (
        ({}, "`city`: required"),
        ({"city": 1}, "`city`"),
        ({"city": "x"}, "`city`"),
        ({"city": "Oslo", "tags": [1, 2]}, "`tags[1]`"),
        ({"city": "Oslo", "b": 1}, "`b`"),
    ):
        with pytest.raises(ToolInputError) as caught:
            await made.invoke(arguments)
        assert caught.value.problems[0].startswith(place)


async def test_the_check_of_a_json_schema_does_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fastjsonschema", None)
    schema = {"type": "object", "properties": {"a": {"type": ["integer", "null"], "maximum": 3}}, "required": ["a"]}
    made = create_tool("f", "", schema, lambda values: [values["a"]])
    assert (await made.run({"a": None}))["content"][0]["text"] == "[null]"
    for bad, words in (({"a": 4}, "`a`: must be at most 3"), ({}, "`a`: required, but missing")):
        with pytest.raises(ToolInputError) as caught:
            await made.invoke(bad)
        assert caught.value.problems == (words,)


async def test_a_function_with_the_names_of_the_schema_gets_them_by_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}

    @tool(schema=schema)
    async def add(a: int, b: int = 10) -> int:
        return a + b

    assert (await add.run({"a": 1}))["content"][0]["text"] == "11"
    assert (await add.run({"a": 1, "b": 2}))["content"][0]["text"] == "3"


async def test_names_with_types_and_whole_types_are_schemas_too() -> None:
    by_names = create_tool("f", "", {"a": float, "b": Annotated[str, "what"]}, lambda values: values)
    assert by_names.input_schema["properties"]["b"] == {"type": "string", "description": "what"}
    assert by_names.input_schema["required"] == ["a", "b"]
    assert (await by_names.invoke({"a": 1, "b": "x"}))["structuredContent"] == {"a": 1.0, "b": "x"}

    by_type = create_tool("g", "", Tree, lambda tree: [type(tree).__name__, tree.parts[0].name])
    assert by_type.input_schema["type"] == "object"
    assert by_type.input_schema["properties"]["parts"]["items"] == {"$ref": "#/$defs/Tree"}
    jsonschema.validate({"name": "a", "parts": [{"name": "b"}]}, by_type.input_schema)
    answer = await by_type.invoke({"name": "a", "parts": [{"name": "b"}]})
    assert answer["content"][0]["text"] == '["Tree","b"]'
    with pytest.raises(ToolInputError, match=r"`parts\[0\]`"):
        await by_type.invoke({"name": "a", "parts": [1]})

    nothing = create_tool("h", "", {}, lambda: "done")
    assert nothing.input_schema == {"type": "object", "properties": {}}
    assert (await nothing.run({}))["content"][0]["text"] == "done"


@given(
    st.fixed_dictionaries(
        {"a": st.integers(-(2**53), 2**53), "b": st.lists(st.booleans())},
        optional={"c": st.none() | st.floats(allow_nan=False, allow_infinity=False), "d": st.text()},
    )
)
@settings(max_examples=50, deadline=None)
def test_whatever_fits_the_schema_is_read_as_it_was_given(arguments: dict[str, Any]) -> None:
    import anyio

    @tool
    async def f(a: int, b: list[bool], c: float | None = 0.0, d: str = "") -> list[Any]:
        assert {"a": a, "b": b} == {key: arguments[key] for key in ("a", "b")}
        assert c == arguments.get("c", 0.0)
        assert d == arguments.get("d", "")
        return []

    jsonschema.validate(arguments, f.input_schema)
    result = anyio.run(f.invoke, arguments)
    assert result["content"][0]["text"] == "[]"


def test_a_tool_may_use_a_variable_that_has_no_value_yet() -> None:
    def ask() -> str:
        """Ask."""
        return later

    made = tool(ask)
    later = "now"
    assert made.definition()["inputSchema"]["properties"] == {}
    assert made() == later
