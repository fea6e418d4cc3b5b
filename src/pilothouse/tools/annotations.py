"""What a tool says about itself to whoever asks for permission, and the names it may have. Pure.

Owns the hints of MCP and the words for them, and the names that the CLI and the API take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from pilothouse.errors import ToolDefinitionError

_NAME = re.compile(r"[A-Za-z0-9_-]+")
MAX_FULL_NAME: Final = 128  # characters of `mcp__server__tool`, by the API
# The CLI (2.1.330) keeps servers in plain objects of JavaScript, and refuses the names that these have already.
_TAKEN_SERVERS: Final = frozenset(
    {
        "constructor", "prototype", "__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__",
        "__lookupSetter__", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString",
        "valueOf",
    }
)  # fmt: skip


class ToolAnnotations(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hints about a tool. They are not enforced; permission rules and people read them.

    Attributes:
        title: a name for people.
        read_only_hint: it changes nothing. The CLI runs such tools at the same time as others.
        destructive_hint: it may delete or overwrite.
        idempotent_hint: calling it twice is the same as calling it once.
        open_world_hint: it talks to things outside, such as the web.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


_FIELDS = {
    **{field.name: field.name for field in msgspec.structs.fields(ToolAnnotations)},
    **{field.encode_name: field.name for field in msgspec.structs.fields(ToolAnnotations)},
    **{field.name.removesuffix("_hint"): field.name for field in msgspec.structs.fields(ToolAnnotations)},
}


def read_annotations(tool: str, given: Any) -> dict[str, Any]:
    """The hints as they go over the wire.

    Args:
        tool: its name, for messages.
        given: a `ToolAnnotations`, or a mapping in the words of MCP or of Python (`read_only`, `read_only_hint`,
            `readOnlyHint`), or such an object of the `mcp` package.

    Raises:
        ToolDefinitionError: there is no such hint, or its value is of the wrong type.
    """
    if given is None:
        return {}
    if hasattr(given, "model_dump"):
        given = given.model_dump(by_alias=True, exclude_none=True)
    if isinstance(given, Mapping):
        hints = cast("Mapping[str, Any]", given)
        unknown = [name for name in hints if name not in _FIELDS]
        if unknown:
            known = ", ".join(field.name for field in msgspec.structs.fields(ToolAnnotations))
            raise ToolDefinitionError(f"{tool}: unknown annotation {unknown[0]!r}; known are: {known}")
        given = ToolAnnotations(**{_FIELDS[name]: value for name, value in hints.items()})
    if not isinstance(given, ToolAnnotations):
        raise ToolDefinitionError(f"{tool}: annotations must be ToolAnnotations, got {type(given).__name__}")
    try:
        return msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(given), ToolAnnotations))
    except msgspec.ValidationError as error:
        raise ToolDefinitionError(f"{tool}: annotations: {error}") from error


def check_tool_name(name: Any) -> str:
    """`name`, if a tool may be called so. Raises ToolDefinitionError if not."""
    return _checked("tool", name)


def check_server_name(name: Any) -> str:
    """`name`, if a server may be called so. Raises ToolDefinitionError if not."""
    checked = _checked("server", name)
    if checked in _TAKEN_SERVERS:
        raise ToolDefinitionError(f"{name!r} cannot be the name of a server: the CLI refuses it")
    if "__" in checked or checked.endswith("_"):
        raise ToolDefinitionError(
            f"{name!r} cannot be the name of a server: in mcp__server__tool nobody could tell where it ends"
        )
    return checked


def check_full_name(server: str, tool: str) -> str:
    """`mcp__server__tool`, as the model sees it. Raises ToolDefinitionError if it is too long."""
    full = f"mcp__{server}__{tool}"
    if len(full) > MAX_FULL_NAME:
        raise ToolDefinitionError(f"{full} has {len(full)} characters; the API takes {MAX_FULL_NAME}")
    return full


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{name!r} cannot be the name of a {what}: only letters, digits, hyphens and underscores are taken"
            + ("; give a lambda one with ph.tool(name=…)" if name == "<lambda>" else "")
        )
    if len(name) > MAX_FULL_NAME:
        raise ToolDefinitionError(f"the name of a {what} has at most {MAX_FULL_NAME} characters: {name[:40]}…")
    return name
