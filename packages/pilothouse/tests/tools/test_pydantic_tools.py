"""Types of pydantic in the signatures of tools."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import jsonschema
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import ToolInputError, create_tool, tool

pytestmark = pytest.mark.anyio


class Address(BaseModel):
    street: str = Field(min_length=2, description="with its number")
    country: str = "NO"


class Person(BaseModel):
    name: str
    home: Address
    friends: list[Person] = []


class Plain(msgspec.Struct):
    x: int


@pydantic_dataclass
class Age:
    years: Annotated[int, Field(ge=0)]


@pytest.mark.requirement("S26")
async def test_models_keep_their_definitions_and_arrive_as_models() -> None:
    seen: list[Any] = []

    @tool
    async def greet(person: Person, plain: Plain, ages: list[Age], when: datetime.date | None = None) -> None:
        seen.extend([person, plain, ages, when])

    schema = greet.input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert set(schema["$defs"]) == {"Person", "Address", "Plain", "Age"}
    assert schema["$defs"]["Address"]["properties"]["street"]["description"] == "with its number"
    arguments = {"person": {"name": "A", "home": {"street": "X 1"}}, "plain": {"x": 1}, "ages": [{"years": 3}]}
    jsonschema.validate(arguments, schema)
    await greet.invoke({**arguments, "when": "2026-11-22"})
    person, plain, ages, when = seen
    assert isinstance(person, Person)
    assert person.home.country == "NO"
    assert plain == Plain(1)
    assert isinstance(ages[0], Age)
    assert when == datetime.date(2026, 11, 22)

    with pytest.raises(ToolInputError) as caught:
        await greet.invoke({"person": {"name": 1, "home": {"street": "X"}}, "ages": [{"years": -1}], "y": 1})
    places = [problem.partition(":")[0] for problem in caught.value.problems]
    assert places == ["`person.name`", "`person.home.street`", "`plain`", "`ages[0].years`", "`y`"]


async def test_fields_with_constraints_of_pydantic_are_checked() -> None:
    @tool
    async def f(a: Annotated[int, Field(gt=1, description="more than one")], b: int = 0) -> int:
        return a + b

    assert f.input_schema["properties"]["a"] == {
        "type": "integer",
        "exclusiveMinimum": 1,
        "description": "more than one",
    }
    assert (await f.run({"a": 2, "b": 1}))["content"][0]["text"] == "3"
    with pytest.raises(ToolInputError, match="`a`"):
        await f.invoke({"a": 1})
    with pytest.raises(ToolInputError, match="`a`: required"):
        await f.invoke({"b": 1})


async def test_a_model_can_be_the_whole_input_and_the_result() -> None:
    made = create_tool("f", "", Person, lambda person: person.home)
    assert made.input_schema["type"] == "object"
    assert set(made.input_schema["$defs"]) == {"Person", "Address"}
    assert made.input_schema["properties"]["home"] == {"$ref": "#/$defs/Address"}
    result = await made.invoke({"name": "A", "home": {"street": "X 1"}})
    assert result["structuredContent"] == {"street": "X 1", "country": "NO"}
    with pytest.raises(ToolInputError, match=r"`home\.street`"):
        await made.invoke({"name": "A", "home": {}})


def test_a_field_as_a_default_is_refused_because_the_function_would_get_it() -> None:
    def f(a: int = Field(gt=1)) -> None: ...

    with pytest.raises(ToolDefinitionError, match="Annotated"):
        tool(f)


def test_two_types_of_one_name_are_refused() -> None:
    def other() -> Any:
        class Plain(BaseModel):
            y: int

        return Plain

    def f(a: Plain, b: Any) -> None: ...

    f.__annotations__.update(a=list[Plain], b=list[other()])
    with pytest.raises(ToolDefinitionError, match="Plain"):
        tool(f)


async def test_a_custom_error_of_a_model_is_reported_too() -> None:
    class Even(BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def _even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("must be even")
            return value

    @tool
    async def f(even: Even) -> int:
        return even.n

    with pytest.raises(ToolInputError, match=r"`even\.n`: .*must be even"):
        await f.invoke({"even": {"n": 1}})
    assert (await f.run({"even": {"n": 2}}))["content"][0]["text"] == "2"
