"""The one check of values against a JSON Schema: with the library and without it, the same verdict and words."""

from __future__ import annotations

import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.json_schema import SchemaViolation, find_schema_problem, find_violations, make_checker, to_draft_7

NUMBER = {"type": "number"}
CASES: list[tuple[Any, Any, list[tuple[str, str]]]] = [
    ({"type": "object"}, [], [("$", "must be object, not array")]),
    ({"type": "string"}, None, [("$", "must be string, not null")]),
    ({"type": ["integer", "null"]}, 1.5, [("$", "must be integer or null, not number")]),
    ({"type": "integer"}, True, [("$", "must be integer, not boolean")]),
    ({"type": "integer"}, float("inf"), [("$", "must be integer, not number")]),
    ({"type": "integer"}, 10**400, []),
    ({"type": "integer"}, 2.0, []),
    ({"enum": ["a", 1]}, "b", [("$", "must be one of 'a', 1")]),
    ({"const": 3}, 4, [("$", "must be 3")]),
    ({"minimum": 1, "exclusiveMaximum": 3}, 0, [("$", "must be at least 1")]),
    ({"exclusiveMinimum": 1, "maximum": 2}, 1, [("$", "must be more than 1")]),
    ({"maximum": 2}, 3, [("$", "must be at most 2")]),
    ({"exclusiveMaximum": 3}, 3, [("$", "must be less than 3")]),
    ({"minLength": 2}, "a", [("$", "must have a length of at least 2")]),
    ({"maxItems": 1}, [1, 2], [("$", "must have a length of at most 1")]),
    ({"minimum": 1, "minLength": 9}, True, []),
    ({"required": ["a", "b"]}, {"a": 1}, [("$.b", "required, but missing")]),
    ({"properties": {"a": NUMBER}, "additionalProperties": False}, {"b c": 1}, [("$.b c", "not allowed")]),
    ({"additionalProperties": {"items": NUMBER}}, {"a": [1, "x"]}, [("$.a[1]", "must be number, not string")]),
    ({"items": [NUMBER], "additionalItems": False}, ["x", 2],
     [("$[0]", "must be number, not string"), ("$[1]", "not allowed")]),
    ({"prefixItems": [NUMBER], "items": {"type": "null"}}, [1, 2], [("$[1]", "must be null, not integer")]),
    ({"prefixItems": [NUMBER]}, [1, "more"], []),
    ({"properties": {"dependentRequired": NUMBER}}, {"dependentRequired": "x"},
     [("$.dependentRequired", "must be number, not string")]),
    ({"const": {"prefixItems": [1]}}, {"prefixItems": [1]}, []),
]  # fmt: skip


@pytest.mark.parametrize("library", [True, False], ids=["with the library", "without"])
@pytest.mark.parametrize(("schema", "value", "problems"), CASES)
def test_verdicts(
    schema: Any, value: Any, problems: list[tuple[str, str]], library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "fastjsonschema", None)
    assert make_checker(schema)(value) == [SchemaViolation(*problem) for problem in problems]


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"properties": {"a b": {"multipleOf": 2}}}, {"a b": 3}, ("$.a b", "must be multiple of 2")),
        ({"anyOf": [NUMBER, {"type": "null"}]}, "x", ("$", "cannot be validated by any definition")),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ("$", "missing dependency b for a")),
    ],
)
def test_keywords_of_the_library_only_have_its_messages(schema: Any, value: Any, problem: tuple[str, str]) -> None:
    assert make_checker(schema)(value) == [SchemaViolation(*problem)]


def test_nothing_is_fetched_and_nothing_filled_in() -> None:
    check = make_checker({"properties": {"a": {"$ref": "https://example.invalid/x.json"}, "b": {"type": "null"}}})
    assert check({"a": 1, "b": None}) == []  # beyond the library, which would fetch it
    assert check({"b": 1}) == [SchemaViolation("$.b", "must be null, not integer")]
    given: dict[str, Any] = {}
    assert make_checker({"properties": {"a": {"default": 1}}})(given) == []
    assert given == {}


def test_a_value_that_is_too_deep_is_a_problem_and_no_crash() -> None:
    value: Any = 1
    for _ in range(3000):
        value = {"a": value}
    assert make_checker({"properties": {"a": {"$ref": "#"}}})(value) == [SchemaViolation("$", "nested too deeply")]


def test_schemas_that_are_none() -> None:
    assert list(find_violations(True, 3)) == []
    assert list(find_violations(False, 3, "$.a")) == [SchemaViolation("$.a", "not allowed")]
    assert list(find_violations({"exclusiveMinimum": True}, 3)) == []  # a word of draft 04


@pytest.mark.parametrize(
    ("schema", "path", "text"),
    [
        (3, "$", "expected a schema, got int"),
        ({"type": "objekt"}, "$", "'type' is 'objekt', expected one of"),
        ({"properties": {"a": {"enum": "x"}}}, "$.properties.a", "'enum' is 'x', expected a list"),
        ({"anyOf": [{}, {"minLength": "1"}]}, "$.anyOf[1]", "'minLength' is '1', expected a number"),
        ({"allOf": 1}, "$.allOf", "expected a schema, got NoneType"),
        ({"properties": {"a": ["string"]}}, "$.properties.a", "expected a schema, got list"),
        ({"dependentSchemas": {"a": ["b"]}}, "$.dependentSchemas.a", "expected a schema, got list"),
        ({"not": [{}]}, "$.not", "expected a schema, got list"),
        ({"additionalProperties": [{}]}, "$.additionalProperties", "expected a schema, got list"),
    ],
)
def test_a_schema_that_is_wrong_is_named_with_its_place(schema: Any, path: str, text: str) -> None:
    problem = find_schema_problem(schema)
    assert problem is not None
    assert problem.path == path
    assert problem.text.startswith(text)


def test_only_schemas_are_translated_to_draft_7() -> None:
    pair = {"prefixItems": [NUMBER], "items": False}
    old = {"items": [NUMBER], "additionalItems": False}
    for keyword in ("not", "items", "contains", "additionalProperties"):
        assert to_draft_7({keyword: pair}) == {keyword: old}
    assert to_draft_7({"anyOf": [pair, True]}) == {"anyOf": [old, True]}
    assert to_draft_7({"$defs": {"properties": pair}}) == {"$defs": {"properties": old}}
    assert to_draft_7({"default": pair, "enum": [pair]}) == {"default": pair, "enum": [pair]}
    assert to_draft_7({"dependentSchemas": {"a": pair}, "dependentRequired": {"b": ["c"]}}) == {
        "dependencies": {"a": old, "b": ["c"]}
    }


def without_meaning(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without what means nothing, and trips the validator that the test compares with."""
    lonely = not isinstance(schema.get("items"), list)
    return {keyword: value for keyword, value in schema.items() if not (lonely and keyword == "additionalItems")}


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0, "", "ab"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner), max_leaves=6
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "number", "integer", "null", ["integer", "string"]]),
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "required": st.lists(st.sampled_from("ab"), unique=True),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": inner | st.booleans(),
            "items": inner | st.booleans() | st.lists(inner, min_size=1, max_size=2),
            "additionalItems": inner | st.booleans(),
        },
    ).map(without_meaning),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, VALUES)
def test_the_own_check_agrees_with_a_validator_on_the_keywords_that_it_knows(schema: Any, value: Any) -> None:
    fits = jsonschema.Draft7Validator(schema).is_valid(value)
    assert (not list(find_violations(schema, value))) == fits
