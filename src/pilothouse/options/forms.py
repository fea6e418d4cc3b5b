"""Reads option values that have an inner structure, and gives their wire form. Pure.

Owns which forms each of them may have. The fields are in `nested`, the walk over them in `shapes`; loaded only when an
option has such a value. Every reader gives the stored form, a copy of its own, or raises `Fault`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from pilothouse.options import kinds, nested, retry_policy, shapes
from pilothouse.options.copies import copied
from pilothouse.options.faults import Fault

S = TypeVar("S", bound=Struct)

_PROMPTS: dict[str, type[Struct]] = {
    "custom": nested.CustomSystemPrompt,
    "file": nested.SystemPromptFile,
    "preset": nested.SystemPromptPreset,
}
_THINKING: dict[str, type[Struct]] = {
    "adaptive": nested.AdaptiveThinking,
    "disabled": nested.DisabledThinking,
    "enabled": nested.EnabledThinking,
}


def system_prompt(value: Any) -> Any:
    """Text, a list of blocks, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str):
        return shapes.text(value)
    if isinstance(value, list | tuple):
        value = {"type": "custom", "prompt": cast("Any", value)}
    found = _tagged(value, _PROMPTS, kinds.SYSTEM_PROMPT.expected)
    if isinstance(found, nested.CustomSystemPrompt) and found.prompt == []:
        raise Fault(found.prompt, "at least one block of text", "prompt")
    if isinstance(found, nested.SystemPromptFile) and not found.path:
        raise Fault(found.path, "a path", "path")
    return found


def thinking(value: Any) -> Any:
    """A word, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str) and value in _THINKING:
        value = {"type": value}
    found = _tagged(value, _THINKING, kinds.THINKING.expected)
    if isinstance(found, nested.EnabledThinking) and found.budget_tokens is not None and found.budget_tokens < 1:
        raise Fault(found.budget_tokens, "a whole number of at least 1", "budget_tokens")
    return found


def _tagged(value: Any, forms: Mapping[str, type[S]], expected: str) -> S:
    if isinstance(value, Struct) and type(value) in forms.values():
        return _built(cast("type[S]", type(value)), value)
    if not isinstance(value, Mapping):
        raise Fault(value, expected)
    kind = cast("Mapping[Any, Any]", value).get("type")
    if not isinstance(kind, str) or kind not in forms:
        raise Fault(kind, "one of " + ", ".join(repr(name) for name in forms), "type")
    return _built(forms[kind], cast("Any", value))


def _built(cls: type[S], value: Any) -> S:
    return msgspec.convert(shapes.struct_of(cls, closed=True)(value), cls)


def plugins(value: Any) -> list[nested.Plugin]:
    """A list of paths, structs, or mappings with their fields."""
    return shapes.list_of(_plugin)(value)


def _plugin(value: Any) -> nested.Plugin:
    if isinstance(value, str | os.PathLike):
        value = {"path": cast("str", os.fspath(cast("Any", value)))}
    elif isinstance(value, Mapping) and cast("Mapping[Any, Any]", value).get("type", "local") != "local":
        raise Fault(cast("Any", value)["type"], "'local', the only type there is", "type")
    plugin = _built(nested.Plugin, value)
    if not plugin.path:
        raise Fault(plugin.path, "a path", "path")
    return plugin


def anchored_plugins(value: Any, directory: str) -> list[nested.Plugin]:
    """With absolute paths."""
    return [msgspec.structs.replace(one, path=kinds.anchored(one.path, directory)) for one in plugins(value)]


def anchored_system_prompt(value: Any, directory: str) -> Any:
    """With an absolute path, if it is a file."""
    found = system_prompt(value)
    if isinstance(found, nested.SystemPromptFile):
        return nested.SystemPromptFile(path=kinds.anchored(found.path, directory))
    return found


def tool_config(value: Any) -> nested.ToolConfig:
    """A struct, or a mapping with its fields. What it sets becomes variables, so other keys have no place."""
    inner = shapes.struct_of(nested.QuestionConfig, closed=True)
    found = shapes.struct_of(nested.ToolConfig, closed=True)(value)
    if "askUserQuestion" in found:
        try:
            found["askUserQuestion"] = inner(found["askUserQuestion"])
        except Fault as fault:
            raise fault.under("ask_user_question") from None
    return msgspec.convert(found, nested.ToolConfig)


def task_budget(value: Any) -> int:
    """A number of tokens, also as {"total": n}."""
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        if set(given) != {"total"}:
            raise Fault(value, kinds.BUDGET.expected)
        value = given["total"]
    if not kinds.COUNT.accepts(value):
        raise Fault(value, kinds.BUDGET.expected)
    return value


def retry(value: Any) -> retry_policy.RetryPolicy:
    """How often, a struct, or a mapping with its fields."""
    return retry_policy.read(value)


def models(value: Any) -> str | list[str]:
    """One name, or a list of them; a name with a comma is a list already."""
    if isinstance(value, str):
        return kinds.NAME.clean(value)
    names = kinds.NAMES.clean(value)
    if not names or not all(name.strip() for name in names):
        raise Fault(value, kinds.MODELS.expected)
    return names


def tools(value: Any) -> str | list[str]:
    """Names, the word for all of them, or the preset of the other SDKs."""
    if isinstance(value, Mapping):
        if dict(cast("Mapping[Any, Any]", value)) != {"type": "preset", "preset": "claude_code"}:
            raise Fault(value, kinds.TOOLS.expected)
        return "default"
    if value == "default":
        return "default"
    if not kinds.is_list_of_text(value):
        has_functions = isinstance(value, list | tuple) and any(callable(item) for item in cast("list[Any]", value))
        hint = "; functions of your own go into `custom_tools`" if has_functions else ""
        raise Fault(value, kinds.TOOLS.expected, hint=hint)
    return kinds.NAMES.clean(value)


def skills(value: Any) -> str | list[str]:
    """Names, or the word for all of them."""
    if value == "all":
        return "all"
    if not kinds.is_list_of_text(value):
        raise Fault(value, kinds.SKILLS.expected)
    names: list[str] = kinds.NAMES.clean(value)
    for number, name in enumerate(names):
        # A name becomes the rule `Skill(name)`, so it must not be able to end it.
        if not name or name != name.strip() or any(char in "(),*" or char < " " for char in name):
            raise Fault(name, "the name of a skill", f"[{number}]")
    return names


def aliases(value: Any) -> dict[str, str]:
    """A mapping of text to text."""
    return shapes.mapping_of(shapes.text)(value)


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, Mapping):
        raise Fault(value, kinds.MAPPING.expected)
    return shapes.json_value(value)


def config(value: Any) -> Any:
    """A JSON object, its text, or a path."""
    return _config(value, kinds.CONFIG.expected, mapping)


def servers(value: Any) -> Any:
    """Servers by name, with or without `mcpServers` around them; the text of that; or a path."""
    return _config(_unwrapped(value), kinds.SERVERS.expected, _stored(mcp_wire))


def _unwrapped(value: Any) -> Any:
    """Servers by name, without `mcpServers` around them; `{"type": "sdk", "instance": server}` is the server itself."""
    if not isinstance(value, Mapping):
        return value
    inner = cast("Mapping[Any, Any]", value).get("mcpServers")
    servers = cast("Mapping[Any, Any]", inner if isinstance(inner, Mapping) else value)
    return {name: _instance(one) for name, one in servers.items()}


def _instance(server: Any) -> Any:
    if not isinstance(server, Mapping):
        return server
    given = cast("Mapping[Any, Any]", server)
    instance = given.get("instance")
    return instance if given.get("type") == "sdk" and shapes.is_in_process(instance) else given


def agents(value: Any) -> dict[str, Any]:
    """Agents by name."""
    return _stored(agents_wire)(value)


def sandbox(value: Any) -> Any:
    """A struct, or a mapping with its fields."""
    return _stored(sandbox_wire)(value)


def _stored(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        check(value)
        return copied(value)

    return read


def _config(value: Any, expected: str, check: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return check(value)
    if not kinds.is_path(value):
        raise Fault(value, expected)
    path = cast("str", os.fspath(value))
    if path.lstrip().startswith("{"):
        try:
            content = msgspec.json.decode(path.encode())
        except (ValueError, RecursionError) as error:
            raise Fault(path, expected, instead=f"the JSON text cannot be read: {error}") from None
        check(content)
    return path


def mcp_wire(value: Any) -> dict[str, Any]:
    """What `--mcp-config` wants: servers by name, without `mcpServers` around them."""
    value = _unwrapped(value)
    if isinstance(value, Mapping):  # those of this process are offered in the handshake
        value = {k: v for k, v in cast("Mapping[Any, Any]", value).items() if not shapes.is_in_process(v)}
    return shapes.mapping_of(shapes.server)(value)


def agents_wire(value: Any) -> dict[str, Any]:
    """What `--agents` wants."""
    return shapes.mapping_of(shapes.struct_of(nested.AgentDefinition))(value)


def sandbox_wire(value: Any) -> dict[str, Any]:
    """What the settings of the CLI want under `sandbox`."""
    return shapes.struct_of(nested.Sandbox)(value)


WIRE: dict[str, Callable[[Any], Any]] = {"agents": agents_wire, "mcp_servers": mcp_wire, "sandbox": sandbox_wire}
"""Options whose stored form is what was given, and what it becomes."""
