"""The tools of one request: those that run here, and those whose calls are handed back.

Owns the forms in which tools are given, and the check of a call that is to be handed back. Knows no replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

from pilothouse.errors import ToolDefinitionError
from pilothouse.tools import Tool, as_tool, create_tool
from pilothouse.tools.annotations import check_tool_name
from pilothouse.tools.failures import ToolInputError
from pilothouse.tools.schemas import Input, input_of

GivenTool: TypeAlias = "Tool[..., Any] | Callable[..., Any] | Mapping[str, Any]"
GivenTools: TypeAlias = "Iterable[GivenTool] | Mapping[str, GivenTool]"
"""Functions and `Tool`s, which run here, and declarations; in a list, or by name.

A declaration is a mapping with `name`, `description` and a JSON Schema as `input_schema` (or `inputSchema`,
`parameters`). With a function as `execute` it runs here; without, its calls are handed back.
"""

_SCHEMA_KEYS: Final = ("input_schema", "inputSchema", "parameters")
_NO_INPUT: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class Offer:
    """What the model may call in one request.

    Args:
        tools: see `GivenTools`; None for none.

    Attributes:
        own: the tools that run here.
        declared: the others, by name.

    Raises:
        ToolDefinitionError: something that is no tool, or two of one name.
    """

    def __init__(self, tools: GivenTools | None) -> None:
        self.own: list[Tool[..., Any]] = []
        self.declared: dict[str, Mapping[str, Any]] = {}
        self._checks: dict[str, Input] = {}
        names: set[str] = set()
        for at, given in enumerate(_listed(tools)):
            name = self._add(at, given)
            if name in names:
                raise ToolDefinitionError(f"two tools have the name {name!r}")
            names.add(name)

    def problem(self, name: str, arguments: Mapping[str, Any]) -> ToolInputError | None:
        """Why a call of a declared tool cannot be handed back; None if it fits its schema. (S9)"""
        try:
            self._checks[name].read(arguments)
        except ToolInputError as error:
            return error
        return None

    def _add(self, at: int, given: Any) -> str:
        if not isinstance(given, Mapping):
            if not callable(given):
                raise ToolDefinitionError(
                    f"tools[{at}]: a function, a Tool or a mapping with a name and an input_schema is needed, "
                    f"not {type(given).__name__}"
                )
            self.own.append(as_tool(given))
            return self.own[-1].name
        definition = cast("Mapping[str, Any]", given)
        inner = definition.get("function")
        if isinstance(inner, Mapping):  # in the form of OpenAI
            named = {"name": definition["name"]} if definition.get("name") else {}
            definition = {**cast("Mapping[str, Any]", inner), **named}
        name, description = definition.get("name"), definition.get("description") or ""
        if not isinstance(name, str) or not name:
            raise ToolDefinitionError(f"tools[{at}]: it has no name")
        schema = next((definition[key] for key in _SCHEMA_KEYS if definition.get(key) is not None), _NO_INPUT)
        execute = definition.get("execute")
        if execute is not None:
            self.own.append(create_tool(name, str(description), schema, execute))
            return name
        if not isinstance(schema, Mapping):
            raise ToolDefinitionError(f"{name}: its schema is a JSON Schema, not {type(schema).__name__}")
        try:
            self._checks[name] = input_of(cast("Any", schema))
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{name}: {error}") from error
        self.declared[check_tool_name(name)] = {"name": name, "description": description, "input_schema": schema}
        return name


def _listed(tools: Any) -> list[Any]:
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return [_named(name, each) for name, each in cast("Mapping[Any, Any]", tools).items()]
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ToolDefinitionError(f"tools: a list of tools, or tools by name, is needed, not {type(tools).__name__}")
    return list(cast("Iterable[Any]", tools))


def _named(name: Any, given: Any) -> Any:
    if isinstance(given, Mapping):
        return {**cast("Mapping[str, Any]", given), "name": name}
    made = as_tool(given)
    if made.name != name:
        raise ToolDefinitionError(f"{name}: the tool under this name is called {made.name!r}")
    return made
