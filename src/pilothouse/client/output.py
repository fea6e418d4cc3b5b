"""Typed output: the JSON Schema of a type, and values of the type from what the model gave. Pure.

Knows msgspec's types (structs, dataclasses, TypedDicts, attrs classes and builtins) and, by their methods only,
pydantic models; neither pydantic nor attrs is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from pilothouse.errors import OptionsError, StructuredOutputError


def schema_of(output_type: Any) -> dict[str, Any]:
    """JSON Schema of `output_type`, with the object at the root as the API wants it.

    Args:
        output_type: a type, a pydantic model, or a JSON Schema as a mapping.

    Raises:
        OptionsError: no schema can be made of it, or it does not describe an object.
    """
    if isinstance(output_type, Mapping):
        schema = dict(cast("Mapping[str, Any]", output_type))
    elif hasattr(output_type, "model_json_schema"):
        schema = cast("dict[str, Any]", output_type.model_json_schema())
    else:
        try:
            schema = msgspec.json.schema(output_type)
        except (TypeError, NameError, NotImplementedError, RuntimeError) as error:
            raise OptionsError(
                f"output_type: no JSON Schema for {output_type!r}: {error}", option="output_type"
            ) from None
    schema = _with_root(schema)
    if schema.get("type", "object") != "object":
        raise OptionsError(
            f"output_type: expected a type whose JSON is an object, got {output_type!r}; put it into a dataclass",
            option="output_type",
        )
    return schema


def convert(output_type: Any, value: Any) -> Any:
    """`value` as `output_type`.

    Raises:
        StructuredOutputError: it does not fit; the message names the place.
    """
    if isinstance(output_type, Mapping):
        return value
    try:
        if hasattr(output_type, "model_validate"):
            return output_type.model_validate(value)
        return msgspec.convert(value, output_type)
    except ValueError as error:  # msgspec.ValidationError and pydantic.ValidationError are both ValueErrors
        name = getattr(output_type, "__name__", repr(output_type))
        raise StructuredOutputError(f"the structured output does not fit {name}: {error}") from error


def _with_root(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return schema
    definitions = dict(cast("dict[str, Any]", schema["$defs"]))
    name = reference.removeprefix("#/$defs/")
    root = cast("dict[str, Any]", definitions[name])
    if f'"{reference}"' not in msgspec.json.encode([root, *definitions.values()]).decode():
        del definitions[name]  # nothing else points at it
    return {**root, "$defs": definitions} if definitions else dict(root)
