"""Validates option values that have an inner structure, and writes them in the form that the CLI reads.

Pure. The structs are in `value_structs`. Every reader returns a copy or raises
`InvalidValueError`. Unknown keys are kept, because a newer CLI may know them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, inspect, structs

from pilothouse.options import value_structs
from pilothouse.options.value_checks import (
    InvalidValueError,
    copy_list,
    copy_value,
    is_name,
    is_path,
    is_text,
    is_text_list,
    resolve_path,
    suggest_name,
)
from pilothouse.options.value_structs import RETRY_REASONS, RetryPolicy

ValueReader = Callable[[Any], Any]
"""Checks a value: returns its wire form, or raises `InvalidValueError`."""


def read_text(value: Any) -> str:
    """Read text that is valid in an argument or in JSON."""
    if not is_text(value):
        raise InvalidValueError(value, "text")
    return value


def read_json_value(value: Any) -> Any:
    """Return a copy of any JSON value."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return read_text(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidValueError(value, "a number that JSON can represent")
        return value
    if isinstance(value, Mapping):
        return make_mapping_reader(read_json_value)(value)
    if isinstance(value, list | tuple):
        return make_list_reader(read_json_value)(value)
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError):
        raise InvalidValueError(value, "a value that can be written as JSON") from None


def is_in_process_server(server: object) -> bool:
    """Whether an MCP server is an object of this process, and not the description of another server."""
    plain = isinstance(server, Mapping | str | bytes | int | float | list | tuple | None)
    return not plain and not isinstance(server, value_structs.OptionStruct)


def format_path_step(key: str) -> str:
    """Return a key as a step of a path."""
    return key if key.replace("-", "_").isidentifier() else f"[{key!r}]"


def make_mapping_reader(item: ValueReader) -> ValueReader:
    """Make a reader of mappings from text to items; items that are None are dropped, unless `item` accepts None."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidValueError(value, "a mapping")
        found: dict[str, Any] = {}
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if not is_text(key):
                raise InvalidValueError(key, "a mapping with text keys")
            found[key] = _read_at(format_path_step(key), item, inner)
        return found

    return read


def make_list_reader(item: ValueReader) -> ValueReader:
    """Make a reader of lists or tuples of items."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise InvalidValueError(value, "a list")
        items = cast("list[Any]", value)
        return [_read_at(f"[{number}]", item, inner) for number, inner in enumerate(items)]

    return read


def _read_at(where: str, shape: ValueReader, value: Any) -> Any:
    try:
        return shape(value)
    except InvalidValueError as fault:
        raise fault.with_prefix(where) from None


def make_struct_reader(cls: type[Struct], *, forbid_unknown: bool = False) -> ValueReader:
    """Make a reader of instances of `cls`, and of mappings with its fields.

    Args:
        cls: a class of `value_structs`.
        forbid_unknown: reject keys that are not fields, because they have no target.
    """
    info = cast("inspect.StructType", inspect.type_info(cls))
    by_key = {key: field for field in info.fields for key in (field.name, field.encode_name)}
    tag = {info.tag_field: info.tag} if info.tag_field else {}

    def read(value: Any) -> dict[str, Any]:
        given = _read_fields(value, cls)
        found: dict[str, Any] = dict(tag) if isinstance(value, cls) else {}
        for key, inner in given.items():
            if inner is None:
                continue
            if key in tag:
                found[key] = tag[key]  # the choice of this class already checked it
                continue
            field = by_key.get(key)
            if field is None:
                if forbid_unknown:
                    names = ", ".join(repr(field.name) for field in info.fields)
                    raise InvalidValueError(key, "", format_path_step(key), message=f"unknown field; known are {names}")
                found[key] = _read_at(format_path_step(key), read_json_value, inner)
            else:
                found[field.encode_name] = _read_at(format_path_step(key), make_reader(field.type), inner)
        for field in info.fields:
            if field.required and field.encode_name not in found:
                others = [key for key in given if key not in by_key and key not in tag]
                near = [key for key in others if suggest_name(key, [field.name])]
                hint = f", and there is no key {near[0]!r}; did you mean {field.name!r}?" if near else ""
                raise InvalidValueError(value, "", message=f"{field.name!r} is missing{hint}")
        return found

    return read


def _read_fields(value: Any, cls: type[Struct]) -> dict[str, Any]:
    if isinstance(value, cls):
        return {name: getattr(value, name) for name in cls.__struct_fields__}
    if not isinstance(value, Mapping):
        article = "an" if cls.__name__[0] in "AEIO" else "a"
        raise InvalidValueError(value, f"{article} {cls.__name__}, or a mapping")
    given = cast("Mapping[Any, Any]", value)
    for key in given:
        if not is_text(key):
            raise InvalidValueError(key, "a mapping with text keys")
    return dict(given)


def make_reader(kind: inspect.Type) -> ValueReader:
    """Make the reader for an annotation."""
    return _READER_MAKERS[type(kind)](kind)


def _make_literal_reader(kind: Any) -> ValueReader:
    expected = "one of " + ", ".join(repr(name) for name in kind.values)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in kind.values:
            raise InvalidValueError(value, expected)
        return value

    return read


def _make_union_reader(kind: Any) -> ValueReader:
    shapes = [make_reader(one) for one in kind.types if not isinstance(one, inspect.NoneType)]
    if all(isinstance(one, inspect.StructType | inspect.NoneType) for one in kind.types) and len(shapes) > 1:
        return read_server

    def read(value: Any) -> Any:
        faults: list[InvalidValueError] = []
        for shape in shapes:
            try:
                return shape(value)
            except InvalidValueError as fault:
                faults.append(fault)
        # The alternative that got furthest is the intended one; otherwise list all alternatives.
        deepest = max(faults, key=lambda fault: len(fault.path))
        if len(faults) == 1 or deepest.path or deepest.message:
            raise deepest
        raise InvalidValueError(value, ", or ".join(fault.expected for fault in faults))

    return read


def _read_int(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(value, "a whole number")
    return value


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError(value, "True or False")
    return value


_READER_MAKERS: dict[type[inspect.Type], Callable[[Any], ValueReader]] = {
    inspect.AnyType: lambda _: read_json_value,
    inspect.BoolType: lambda _: _read_bool,
    inspect.DictType: lambda kind: make_mapping_reader(make_reader(kind.value_type)),
    inspect.IntType: lambda _: _read_int,
    inspect.ListType: lambda kind: make_list_reader(make_reader(kind.item_type)),
    inspect.LiteralType: _make_literal_reader,
    inspect.StrType: lambda _: read_text,
    inspect.StructType: lambda kind: make_struct_reader(kind.cls),
    inspect.UnionType: _make_union_reader,
}


_SDK_SERVER_HINT = (
    "a server of type 'sdk' runs in this process: give the server itself, as `sdk_server(…)` or `mount(…)` makes it, "
    "or as 'instance', and in the option 'mcp_servers'"
)


def read_server(value: Any) -> dict[str, Any]:
    """Read one MCP server: a struct, or a mapping whose `type` names its kind."""
    kinds: dict[Any, type[Struct]] = {
        "stdio": value_structs.StdioServer,
        "http": value_structs.HttpServer,
        "sse": value_structs.SseServer,
    }
    if isinstance(value, value_structs.SseServer | value_structs.HttpServer | value_structs.StdioServer):
        return make_struct_reader(type(value))(value)
    if not isinstance(value, Mapping):
        raise InvalidValueError(value, "a StdioServer, HttpServer or SseServer, or a mapping")
    given = cast("Mapping[str, Any]", value)
    kind = given.get("type", "stdio")
    if kind == "sdk":
        raise InvalidValueError(value, "", message=_SDK_SERVER_HINT)
    if "type" not in given and "url" in given:
        raise InvalidValueError(value, "", message="'type' is missing: 'http' or 'sse'")
    if kind not in kinds:
        return read_json_value(given)  # a kind that a newer CLI may know
    return make_struct_reader(kinds[kind])(given)


def read_retry_policy(value: Any) -> RetryPolicy:
    """Read a number of retries, a `RetryPolicy`, or a mapping with its fields.

    Raises:
        InvalidValueError: the value is none of them, or a field is out of its range.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    if isinstance(value, RetryPolicy):
        value = structs.asdict(value)
    if not isinstance(value, Mapping):
        raise InvalidValueError(value, "a whole number, or a RetryPolicy")
    found: dict[str, Any] = {}
    for key, given in cast("Mapping[Any, Any]", value).items():
        if key not in RetryPolicy.__struct_fields__:
            names = ", ".join(map(repr, RetryPolicy.__struct_fields__))
            raise InvalidValueError(key, "", format_path_step(str(key)), message=f"unknown field; known are {names}")
        found[key] = _read_reasons(given) if key == "on" else _read_number(key, given)
    return RetryPolicy(**found)


_RANGES: dict[str, tuple[float, float, str]] = {
    "attempts": (0, 1_000_000, "a whole number of at least 0"),
    "first_delay": (0, float("inf"), "a number of seconds of at least 0"),
    "max_delay": (0, float("inf"), "a number of seconds of at least 0"),
    "multiplier": (1, 1000, "a number from 1 to 1000"),
    "jitter": (0, 1, "a number from 0 to 1"),
}


def _read_number(key: str, value: Any) -> Any:
    least, most, expected = _RANGES[key]
    kinds = int if key == "attempts" else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value) or not least <= value <= most:
        raise InvalidValueError(value, expected, key)
    return value


def _read_reasons(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidValueError(value, "a list of reasons", "on")
    items = cast("list[Any]", value)
    for item in items:
        if item not in RETRY_REASONS:
            raise InvalidValueError(item, "one of " + ", ".join(map(repr, RETRY_REASONS)), "on")
    return tuple(reason for reason in RETRY_REASONS if reason in items)


S = TypeVar("S", bound=Struct)

_PROMPT_STRUCTS: dict[str, type[Struct]] = {
    "custom": value_structs.CustomSystemPrompt,
    "file": value_structs.SystemPromptFile,
    "preset": value_structs.SystemPromptPreset,
}
_THINKING_STRUCTS: dict[str, type[Struct]] = {
    "adaptive": value_structs.AdaptiveThinking,
    "disabled": value_structs.DisabledThinking,
    "enabled": value_structs.EnabledThinking,
}


def read_system_prompt(value: Any) -> Any:
    """Read text, a list of blocks, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str):
        return read_text(value)
    if isinstance(value, list | tuple):
        value = {"type": "custom", "prompt": cast("Any", value)}
    found = _read_tagged(value, _PROMPT_STRUCTS)
    if isinstance(found, value_structs.CustomSystemPrompt) and found.prompt == []:
        raise InvalidValueError(found.prompt, "at least one block of text", "prompt")
    if isinstance(found, value_structs.SystemPromptFile) and not found.path:
        raise InvalidValueError(found.path, "a path", "path")
    return found


def read_thinking(value: Any) -> Any:
    """Read a word, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str) and value in _THINKING_STRUCTS:
        value = {"type": value}
    found = _read_tagged(value, _THINKING_STRUCTS)
    if isinstance(found, value_structs.EnabledThinking) and found.budget_tokens is not None and found.budget_tokens < 1:
        raise InvalidValueError(found.budget_tokens, "a whole number of at least 1", "budget_tokens")
    return found


def _read_tagged(value: Any, forms: Mapping[str, type[S]]) -> S:
    if isinstance(value, Struct) and type(value) in forms.values():
        return _build_struct(cast("type[S]", type(value)), value)
    if not isinstance(value, Mapping):
        raise InvalidValueError(value)
    kind = cast("Mapping[Any, Any]", value).get("type")
    if not isinstance(kind, str) or kind not in forms:
        raise InvalidValueError(kind, "one of " + ", ".join(repr(name) for name in forms), "type")
    return _build_struct(forms[kind], cast("Any", value))


def _build_struct(cls: type[S], value: Any) -> S:
    return msgspec.convert(make_struct_reader(cls, forbid_unknown=True)(value), cls)


def read_plugins(value: Any) -> list[value_structs.Plugin]:
    """Read a list of paths, structs, or mappings with their fields."""
    return make_list_reader(_read_plugin)(value)


def _read_plugin(value: Any) -> value_structs.Plugin:
    if isinstance(value, str | os.PathLike):
        value = {"path": cast("str", os.fspath(cast("Any", value)))}
    elif isinstance(value, Mapping) and cast("Mapping[Any, Any]", value).get("type", "local") != "local":
        raise InvalidValueError(cast("Any", value)["type"], "'local', the only type there is", "type")
    plugin = _build_struct(value_structs.Plugin, value)
    if not plugin.path:
        raise InvalidValueError(plugin.path, "a path", "path")
    return plugin


def resolve_plugins(value: Any, directory: str) -> list[value_structs.Plugin]:
    """Make the paths of plugins absolute."""
    return [msgspec.structs.replace(one, path=resolve_path(one.path, directory)) for one in read_plugins(value)]


def resolve_system_prompt(value: Any, directory: str) -> Any:
    """Make the path of a system prompt file absolute."""
    found = read_system_prompt(value)
    if isinstance(found, value_structs.SystemPromptFile):
        return value_structs.SystemPromptFile(path=resolve_path(found.path, directory))
    return found


def read_tool_config(value: Any) -> value_structs.ToolConfig:
    """Read a struct, or a mapping with its fields. Unknown keys are errors: the fields become variables."""
    inner = make_struct_reader(value_structs.QuestionConfig, forbid_unknown=True)
    found = make_struct_reader(value_structs.ToolConfig, forbid_unknown=True)(value)
    if "askUserQuestion" in found:
        try:
            found["askUserQuestion"] = inner(found["askUserQuestion"])
        except InvalidValueError as fault:
            raise fault.with_prefix("ask_user_question") from None
    return msgspec.convert(found, value_structs.ToolConfig)


def read_task_budget(value: Any) -> int:
    """Read a number of tokens, also as {"total": n}."""
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        if set(given) != {"total"}:
            raise InvalidValueError(value)
        value = given["total"]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValueError(value)
    return value


def read_retry(value: Any) -> RetryPolicy:
    """Read a number of retries, a struct, or a mapping with its fields."""
    return read_retry_policy(value)


def read_models(value: Any) -> str | list[str]:
    """Read one name, or a list of names; a name with a comma is a list already."""
    if isinstance(value, str):
        if not is_name(value):
            raise InvalidValueError(value, "non-empty text")
        return value
    if not is_text_list(value):
        raise InvalidValueError(value, "a list of text")
    names: list[str] = copy_list(value)
    if not names or not all(name.strip() for name in names):
        raise InvalidValueError(value)
    return names


def read_tools(value: Any) -> str | list[str]:
    """Read names, the word for all tools, or the preset of the other SDKs."""
    if isinstance(value, Mapping):
        if dict(cast("Mapping[Any, Any]", value)) != {"type": "preset", "preset": "claude_code"}:
            raise InvalidValueError(value)
        return "default"
    if value == "default":
        return "default"
    if not is_text_list(value):
        has_functions = isinstance(value, list | tuple) and any(callable(item) for item in cast("list[Any]", value))
        hint = "; functions of your own go into `custom_tools`" if has_functions else ""
        raise InvalidValueError(value, hint=hint)
    return copy_list(value)


def read_skills(value: Any) -> str | list[str]:
    """Read names, or the word for all skills."""
    if value == "all":
        return "all"
    if not is_text_list(value):
        raise InvalidValueError(value)
    names: list[str] = copy_list(value)
    for number, name in enumerate(names):
        # A name becomes the rule `Skill(name)`, so it must not contain the end of one.
        if not name or name != name.strip() or any(char in "(),*" or char < " " for char in name):
            raise InvalidValueError(name, "the name of a skill", f"[{number}]")
    return names


def read_aliases(value: Any) -> dict[str, str]:
    """Read a mapping of text to text."""
    return make_mapping_reader(read_text)(value)


def read_mapping(value: Any) -> dict[str, Any]:
    """Read a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidValueError(value)
    return read_json_value(value)


def read_config(value: Any) -> Any:
    """Read a JSON object, its text, or a path."""
    return _read_config_value(value, read_mapping)


def read_servers(value: Any) -> Any:
    """Read servers by name, with or without `mcpServers` around them; their JSON text; or a path."""
    return _read_config_value(_unwrap_servers(value), _make_copying_reader(encode_mcp_servers))


def _unwrap_servers(value: Any) -> Any:
    """Remove `mcpServers` around servers; `{"type": "sdk", "instance": server}` becomes the server itself."""
    if not isinstance(value, Mapping):
        return value
    inner = cast("Mapping[Any, Any]", value).get("mcpServers")
    servers = cast("Mapping[Any, Any]", inner if isinstance(inner, Mapping) else value)
    return {name: _unwrap_sdk_server(one) for name, one in servers.items()}


def _unwrap_sdk_server(server: Any) -> Any:
    if not isinstance(server, Mapping):
        return server
    given = cast("Mapping[Any, Any]", server)
    instance = given.get("instance")
    return instance if given.get("type") == "sdk" and is_in_process_server(instance) else given


def read_agents(value: Any) -> dict[str, Any]:
    """Read agents by name."""
    return _make_copying_reader(encode_agents)(value)


def read_sandbox(value: Any) -> Any:
    """Read a struct, or a mapping with its fields."""
    return _make_copying_reader(encode_sandbox)(value)


def _make_copying_reader(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        check(value)
        return copy_value(value)

    return read


def _read_config_value(value: Any, check: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return check(value)
    if not is_path(value):
        raise InvalidValueError(value)
    path = cast("str", os.fspath(value))
    if path.lstrip().startswith("{"):
        try:
            content = msgspec.json.decode(path.encode())
        except (ValueError, RecursionError) as error:
            raise InvalidValueError(path, message=f"the JSON text cannot be read: {error}") from None
        check(content)
    return path


def encode_mcp_servers(value: Any) -> dict[str, Any]:
    """Return the value for `--mcp-config`: servers by name, without `mcpServers` around them."""
    value = _unwrap_servers(value)
    if isinstance(value, Mapping):  # the handshake declares in-process servers
        value = {k: v for k, v in cast("Mapping[Any, Any]", value).items() if not is_in_process_server(v)}
    return make_mapping_reader(read_server)(value)


def encode_agents(value: Any) -> dict[str, Any]:
    """Return the value for `--agents`."""
    return make_mapping_reader(make_struct_reader(value_structs.AgentDefinition))(value)


def encode_sandbox(value: Any) -> dict[str, Any]:
    """Return the value of `sandbox` in the settings of the CLI."""
    return make_struct_reader(value_structs.Sandbox)(value)


WIRE_ENCODERS: dict[str, Callable[[Any], Any]] = {
    "agents": encode_agents,
    "mcp_servers": encode_mcp_servers,
    "sandbox": encode_sandbox,
}
"""The wire encoders of options that are stored as given."""
