"""Which tools a call may name, and what they take. Pure.

Owns reading the tools that a parser is given. Must not know how calls are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

from pilothouse.errors import UsageError
from pilothouse.tools.failures import no_such_tool
from pilothouse.tools.tool import Tool

Tools: TypeAlias = "Iterable[Tool[..., Any] | Mapping[str, Any]] | Mapping[str, Any]"
"""Tools, definitions with `name` and `input_schema` (or `inputSchema`, `parameters`), or names with their schemas."""

_SCHEMA_KEYS: Final = ("input_schema", "inputSchema", "parameters")
_LONGEST: Final = 100  # of a name that is compared


class Catalog:
    """The tools of one parser. With none, every name is known and nothing about its parameters.

    Raises:
        UsageError: an entry is no tool.
    """

    __slots__ = ("_schemas",)

    def __init__(self, tools: Tools | None) -> None:
        self._schemas: dict[str, Any] = {}
        if isinstance(tools, Mapping):
            self._schemas = {name: _schema(name, value) for name, value in cast("Mapping[str, Any]", tools).items()}
            return
        for each in tools or ():
            name = each.name if isinstance(each, Tool) else each.get("name") if _is_mapping(each) else None
            if not isinstance(name, str) or not name:
                raise UsageError(f"a tool, or a mapping with a name and an input_schema, was expected; got {each!r}")
            self._schemas[name] = _schema(name, each if isinstance(each, Tool) else _declared(each))

    def knows(self, name: str) -> bool:
        """Whether a call may name it."""
        return not self._schemas or name in self._schemas

    def __contains__(self, name: str) -> bool:
        """Whether it is one of the tools that were given."""
        return name in self._schemas

    def schema(self, name: str) -> Any:
        """JSON Schema of what it takes; None if that is not known."""
        return self._schemas.get(name)

    def unknown(self, name: str) -> str:
        """What to tell the model of a name that is not known."""
        import difflib  # slow to import, and only on the way to an error

        close = difflib.get_close_matches(name[:_LONGEST], self._schemas, n=1, cutoff=0.5)
        return no_such_tool(name, self._schemas) + (f"; did you mean {close[0]!r}?" if close else "")


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _declared(definition: Mapping[str, Any]) -> Any:
    return next((definition[key] for key in _SCHEMA_KEYS if definition.get(key) is not None), None)


def _schema(name: object, value: Any) -> Any:
    schema = cast("Any", value).input_schema if isinstance(value, Tool) else value
    if not isinstance(name, str) or not (schema is None or isinstance(schema, Mapping | bool)):
        raise UsageError(f"the tools are names with their JSON Schemas; got {name!r}: {value!r}")
    return cast("Any", schema)
