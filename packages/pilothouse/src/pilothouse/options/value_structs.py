"""Typed values of options that have fields: prompts, thinking, agents, plugins, MCP servers, the sandbox, retries.

Attributes are snake_case; the class options rename them to the CLI's camelCase. The second half reads these values from
structs and mappings, by the annotations of the classes. Pure. Every reader returns a copy or raises an error. Unknown
keys are kept, because a newer CLI may know them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isfinite
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, field, structs

from pilothouse.hints import ExplainedStructMeta, suggest_name
from pilothouse.messages.core import PermissionMode
from pilothouse.options.secrets import mask
from pilothouse.options.value_types import (
    InvalidValueError,
    copy_value,
    is_list,
    is_name,
    is_path,
    is_text,
    read_mapping,
    read_texts,
    resolve_path,
)

Effort = Literal["low", "medium", "high", "xhigh", "max"]
ThinkingDisplay = Literal["summarized", "omitted", "highlights"]
_Path = Annotated[str, Meta(min_length=1, description="a path")]
_Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
_Seconds = Annotated[float, Meta(ge=0, le=1e300, description="a number of seconds of at least 0")]


class OptionStruct(
    Struct, metaclass=ExplainedStructMeta, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Base of all that are for the CLI: keyword-only and frozen.

    `repr` shows only set fields, with possible keys masked.
    """

    is_option_struct: ClassVar[bool] = True

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        given = ((field.name, getattr(self, field.name), field.default) for field in structs.fields(self))
        return list(mask({name: value for name, value, default in given if value != default}).items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class SystemPromptPreset(OptionStruct, frozen=True, kw_only=True, tag="preset"):
    """The system prompt of Claude Code, with changes.

    Args:
        append: text added to its end.
        exclude_dynamic_sections: move what differs between machines (directory, git state, memory) into the first
            user message, so that more requests hit the same cache.
        snapshot: whether the prompt is recorded on the first request and used again when the session is resumed.
        preset: name of the preset; there is only one.
    """

    append: str | None = None
    exclude_dynamic_sections: bool | None = None
    snapshot: bool | None = None
    preset: Literal["claude_code"] = "claude_code"


SYSTEM_PROMPT_DYNAMIC_BOUNDARY = "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__"
"""A block of a `CustomSystemPrompt`: those before it are the same in every session, and share a prompt cache."""


class CustomSystemPrompt(OptionStruct, frozen=True, kw_only=True, tag="custom"):
    """A system prompt of your own.

    Args:
        prompt: the text, or its paragraphs as a list; `SYSTEM_PROMPT_DYNAMIC_BOUNDARY` may be one of them.
        snapshot: as for `SystemPromptPreset`.
    """

    prompt: str | list[str]
    snapshot: bool | None = None


class SystemPromptFile(OptionStruct, frozen=True, kw_only=True, tag="file"):
    """A system prompt of your own, read from a file by the CLI.

    Args:
        path: the file; relative to the directory of the child.
    """

    path: _Path


class AdaptiveThinking(OptionStruct, frozen=True, kw_only=True, tag="adaptive"):
    """The model decides how much it thinks.

    Args:
        display: how much of the thinking is reported; by default the model decides.
    """

    display: ThinkingDisplay | None = None


class EnabledThinking(OptionStruct, frozen=True, kw_only=True, tag="enabled"):
    """Thinking with a budget, for models that have one.

    Args:
        budget_tokens: maximum tokens of thinking in one response; without it the CLI decides.
        display: as for `AdaptiveThinking`.
    """

    budget_tokens: _Count | None = None
    display: ThinkingDisplay | None = None


class DisabledThinking(OptionStruct, frozen=True, kw_only=True, tag="disabled"):
    """No thinking, on models that can do without."""


class Plugin(OptionStruct, frozen=True, kw_only=True, tag="local"):
    """A plugin in a directory, or in a `.zip` file.

    Args:
        path: the directory or file.
        skip_mcp_discovery: ignore the MCP servers of the plugin.
    """

    path: _Path
    skip_mcp_discovery: bool | None = None


class QuestionConfig(OptionStruct, frozen=True, kw_only=True):
    """How the AskUserQuestion tool behaves.

    Args:
        preview_format: the format of its previews of the options.
    """

    preview_format: Literal["markdown", "html"] | None = None


class ToolConfig(OptionStruct, frozen=True, kw_only=True):
    """Settings of individual built-in tools.

    Args:
        ask_user_question: of the AskUserQuestion tool.
    """

    ask_user_question: QuestionConfig | None = None


class ToolPolicy(OptionStruct, frozen=True, kw_only=True):
    """What is asked before a tool of a server runs.

    Args:
        name: name of the tool.
        permission_policy: whether its calls run, ask first or are denied.
        org_max_permission: the most that the organisation allows.
    """

    # These two are in snake_case on the wire, too.
    name: str
    permission_policy: Literal["always_allow", "always_ask", "always_deny"] | None = field(
        default=None, name="permission_policy"
    )
    org_max_permission: Literal["allow", "ask", "blocked"] | None = field(default=None, name="org_max_permission")


class StdioServer(OptionStruct, frozen=True, kw_only=True, tag="stdio"):
    """An MCP server that the CLI starts.

    Args:
        command: the program.
        args: its arguments.
        env: its environment variables; never shown.
        timeout: maximum milliseconds of one call.
        always_load: offer its tools from the start, rather than when the model looks for them.
    """

    command: str
    args: list[str] | None = None
    env: dict[str, str] | None = None
    timeout: int | None = None
    always_load: bool | None = None


class HttpServer(OptionStruct, frozen=True, kw_only=True, tag="http"):
    """An MCP server at an address, over streamable HTTP.

    Args:
        url: its address, https://… or http://….
        headers: sent with every request; never shown.
        tools: permission policies of its tools.
        timeout: maximum milliseconds of one call.
        always_load: as for `StdioServer`.
    """

    url: str
    headers: dict[str, str] | None = None
    tools: list[ToolPolicy] | None = None
    timeout: int | None = None
    always_load: bool | None = None


class SseServer(HttpServer, frozen=True, kw_only=True, tag="sse"):
    """An MCP server at an address, over server-sent events; the fields are those of `HttpServer`."""


class AgentDefinition(OptionStruct, frozen=True, kw_only=True):
    """A sub-agent that the model can give work to.

    Args:
        description: when to use the agent; the model reads this.
        prompt: its system prompt.
        tools: its tools; all by default.
        disallowed_tools: tools that it must not use.
        model: alias or full id; by default that of the session.
        effort: its effort, as a word or a number.
        max_turns: maximum turns of one task.
        permission_mode: what happens when one of its tools needs permission.
        mcp_servers: names of servers of the session, or servers of its own by name.
        skills: names of skills that it loads at its start.
        initial_prompt: sent first, before the work, if it is the main agent.
        memory: where it keeps its memory: "user", "project" or "local".
        background: whether it always runs in the background.
        omit_claude_md: leave the CLAUDE.md files out of its prompt.
        auto_compact_window: tokens of context after which it compacts.
    """

    description: str
    prompt: str
    tools: list[str] | None = None
    disallowed_tools: list[str] | None = None
    model: str | None = None
    effort: Effort | int | None = None
    max_turns: int | None = None
    permission_mode: PermissionMode | None = None
    mcp_servers: list[str | dict[str, StdioServer | HttpServer | SseServer]] | None = None
    skills: list[str] | None = None
    initial_prompt: str | None = None
    memory: Literal["user", "project", "local"] | None = None
    background: bool | None = None
    omit_claude_md: bool | None = None
    auto_compact_window: int | None = None


class SandboxNetwork(OptionStruct, frozen=True, kw_only=True):
    """What sandboxed commands reach over the network.

    Args:
        allowed_domains: domains that they may reach.
        denied_domains: domains that they may not reach.
        strict_allowlist: refuse domains outside `allowed_domains` instead of asking.
        allow_managed_domains_only: ignore domains that are not in managed settings.
        allow_unix_sockets: paths of sockets that they may use.
        allow_all_unix_sockets: allow every socket.
        allow_local_binding: allow listening on local ports.
        allow_mach_lookup: macOS services that they may use.
        http_proxy_port: port of your own proxy.
        socks_proxy_port: port of your own SOCKS proxy.
    """

    allowed_domains: list[str] | None = None
    denied_domains: list[str] | None = None
    strict_allowlist: bool | None = None
    allow_managed_domains_only: bool | None = None
    allow_unix_sockets: list[str] | None = None
    allow_all_unix_sockets: bool | None = None
    allow_local_binding: bool | None = None
    allow_mach_lookup: list[str] | None = None
    http_proxy_port: int | None = None
    socks_proxy_port: int | None = None


class SandboxFilesystem(OptionStruct, frozen=True, kw_only=True):
    """What sandboxed commands see of the disk.

    Args:
        allow_write: paths that they may write.
        deny_write: paths that they may not write.
        allow_read: paths inside `deny_read` that they may read.
        deny_read: paths that they may not read.
        allow_managed_read_paths_only: ignore paths that are not in managed settings.
        disabled: disable this part of the sandbox.
    """

    allow_write: list[str] | None = None
    deny_write: list[str] | None = None
    allow_read: list[str] | None = None
    deny_read: list[str] | None = None
    allow_managed_read_paths_only: bool | None = None
    disabled: bool | None = None


class Sandbox(OptionStruct, frozen=True, kw_only=True):
    """The sandbox in which the commands of the Bash tool run.

    Args:
        enabled: whether there is a sandbox.
        fail_if_unavailable: refuse to start if the system has none.
        auto_allow_bash_if_sandboxed: run sandboxed commands without asking.
        allow_unsandboxed_commands: let the model ask to run a command outside.
        network: network access of the commands.
        filesystem: disk access of the commands.
        credentials: files and variables that are hidden from them; as in the settings of the CLI.
        excluded_commands: commands that run outside.
        ignore_violations: violations to ignore, by command.
        enable_weaker_nested_sandbox: use a weaker sandbox, for containers.
        enable_weaker_network_isolation: use a weaker sandbox, for programs that check certificates themselves.
        allow_nested_user_namespaces: let commands create their own namespaces.
        allow_apple_events: let commands control other applications on macOS.
        ripgrep: another `rg`: its `command` and `args`.
        bwrap_path: another bubblewrap.
        socat_path: another socat.
    """

    enabled: bool | None = None
    fail_if_unavailable: bool | None = None
    auto_allow_bash_if_sandboxed: bool | None = None
    allow_unsandboxed_commands: bool | None = None
    network: SandboxNetwork | None = None
    filesystem: SandboxFilesystem | None = None
    credentials: dict[str, Any] | None = None
    excluded_commands: list[str] | None = None
    ignore_violations: dict[str, list[str]] | None = None
    enable_weaker_nested_sandbox: bool | None = None
    enable_weaker_network_isolation: bool | None = None
    allow_nested_user_namespaces: bool | None = None
    allow_apple_events: bool | None = None
    ripgrep: dict[str, Any] | None = None
    bwrap_path: str | None = None
    socat_path: str | None = None


RetryReason = Literal["rate_limit", "overloaded", "server", "network"]
RETRY_REASONS: tuple[RetryReason, ...] = ("rate_limit", "overloaded", "server", "network")


class RetryPolicy(Struct, metaclass=ExplainedStructMeta, frozen=True, kw_only=True):
    """When to retry a query that the API refused, after the CLI has given up.

    Args:
        attempts: maximum number of retries; the first try does not count.
        first_delay: seconds before the first retry.
        max_delay: maximum seconds of one delay. The query does not wait for a rate limit that lasts longer.
        multiplier: growth of the delay from one retry to the next.
        jitter: the random part of a delay, from 0 to 1, so that many queries do not come back at once.
        on: failures to retry: "rate_limit" (429), "overloaded" (529), "server" (other 5xx), "network" (the API is
            unreachable).
    """

    attempts: Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number of at least 0")] = 3
    first_delay: _Seconds = 2.0
    max_delay: _Seconds = 60.0
    multiplier: Annotated[float, Meta(ge=1, le=1000, description="a number from 1 to 1000")] = 2.0
    jitter: Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")] = 0.5
    on: tuple[RetryReason, ...] = RETRY_REASONS

    def delay(self, attempt: int, random_number: float) -> float:
        """Return the seconds before retry number `attempt`, counted from 1; `random_number` is between 0 and 1."""
        growth = self.multiplier ** min(attempt - 1, 64)  # larger exponents could overflow
        return min(self.first_delay * growth, self.max_delay) * (1 - self.jitter * random_number)


# Readers

Reader = Callable[[Any], Any]
"""Checks a value: returns its wire form, or raises `InvalidValueError`."""
S = TypeVar("S", bound=Struct)


def _read_as(value: Any, kind: Any) -> Any:
    """Return the wire form of a value of a type, which is an annotation of a struct above."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return _read_json_value(value)
    if origin in (list, tuple):
        return _list_of(partial(_read_as, kind=args[0]))(value)
    if origin is dict:
        return _mapping_of(partial(_read_as, kind=args[1]))(value)
    if origin in (Union, UnionType):
        return _read_one_of(value, [one for one in args if one is not type(None)])
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _read_fields(value, kind)
    if kind is str and not is_text(value):
        raise InvalidValueError(value, "text")
    try:
        return msgspec.convert(value, cast("Any", kind))
    except msgspec.ValidationError:
        raise InvalidValueError(value, _describe(kind)) from None


_WORDS: dict[Any, str] = {int: "a whole number", bool: "True or False"}


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return _WORDS.get(kind) or kind.__metadata__[0].description


def _read_one_of(value: Any, kinds: list[Any]) -> Any:
    if len(kinds) > 1 and StdioServer in kinds:
        return _read_server(value)
    faults: list[InvalidValueError] = []
    for kind in kinds:
        try:
            return _read_as(value, kind)
        except InvalidValueError as fault:
            faults.append(fault)
    # The alternative that got furthest is the intended one; otherwise list all alternatives.
    deepest = max(faults, key=lambda fault: len(fault.path))
    if len(faults) == 1 or deepest.path or deepest.message:
        raise deepest
    raise InvalidValueError(value, ", or ".join(fault.expected for fault in faults))


def _read_json_value(value: Any) -> Any:
    """Return a copy of any JSON value."""
    if isinstance(value, Mapping):
        return _mapping_of(_read_json_value)(value)
    if isinstance(value, list | tuple):
        return _list_of(_read_json_value)(value)
    if isinstance(value, str):
        return _read_as(value, str)
    if isinstance(value, int | float):
        if isinstance(value, float) and not isfinite(value):
            raise InvalidValueError(value, "a number that JSON can represent")
        return value
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError):
        raise InvalidValueError(value, "a value that can be written as JSON") from None


def _read_at(step: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except InvalidValueError as fault:
        raise fault.with_prefix(step) from None


def _format_step(key: str) -> str:
    return key if key.replace("-", "_").isidentifier() else f"[{key!r}]"


def _mapping_of(item: Reader, expected: str = "a mapping") -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidValueError(value, expected)
        found: dict[str, Any] = {}
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if not is_text(key):
                raise InvalidValueError(key, "a mapping with text keys")
            found[key] = _read_at(_format_step(key), item, inner)
        return found

    return read


def _list_of(item: Reader) -> Reader:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise InvalidValueError(value, "a list")
        items = cast("list[Any]", value)
        return [_read_at(f"[{number}]", item, inner) for number, inner in enumerate(items)]

    return read


_list_fields = cache(structs.fields)
"""The fields of a class with their evaluated types."""


def _read_fields(value: Any, cls: type[Struct], *, is_closed: bool = False) -> dict[str, Any]:
    """Read an instance of `cls`, or a mapping with its fields in either spelling, as a mapping.

    If `is_closed`, keys that are not fields are rejected, because they have no target.
    """
    fields = {key: one for one in _list_fields(cls) for key in (one.name, one.encode_name)}
    tag = {str(cls.__struct_config__.tag_field): cls.__struct_config__.tag} if cls.__struct_config__.tag else {}
    if isinstance(value, cls):
        given = {**tag, **structs.asdict(value)}
    else:
        article = "an" if cls.__name__[0] in "AEIO" else "a"
        given = _mapping_of(lambda item: item, f"{article} {cls.__name__}, or a mapping")(value)
    found: dict[str, Any] = {}
    for key, inner in given.items():
        if is_closed and key not in fields and key not in tag:
            names = ", ".join(repr(one.name) for one in _list_fields(cls))
            raise InvalidValueError(key, path=_format_step(key), message=f"unknown field; known are {names}")
        if inner is not None:
            name, kind = (fields[key].encode_name, fields[key].type) if key in fields else (key, Any)
            found[name] = tag.get(key) or _read_at(_format_step(key), partial(_read_as, kind=kind), inner)
    for one in _list_fields(cls):
        if one.required and one.encode_name not in found:
            others = (key for key in given if key not in fields and key not in tag)
            near = next((key for key in others if suggest_name(key, [one.name])), None)
            hint = "" if near is None else f", and there is no key {near!r}; did you mean {one.name!r}?"
            raise InvalidValueError(value, message=f"{one.name!r} is missing{hint}")
    return found


def _convert_to(cls: type[S], value: Any) -> S:
    return msgspec.convert(_read_fields(value, cls, is_closed=True), cls)


def _convert_tagged(value: Any, classes: Mapping[str, type[Struct]]) -> Any:
    if isinstance(value, tuple(classes.values())):
        return _convert_to(type(value), value)
    kind = read_mapping(value).get("type")
    if not isinstance(kind, str) or kind not in classes:
        raise InvalidValueError(kind, "one of " + ", ".join(map(repr, classes)), "type")
    return _convert_to(classes[kind], value)


_PROMPT_STRUCTS = {"custom": CustomSystemPrompt, "file": SystemPromptFile, "preset": SystemPromptPreset}
_THINKING_STRUCTS = {"adaptive": AdaptiveThinking, "disabled": DisabledThinking, "enabled": EnabledThinking}
_SERVER_STRUCTS = {"stdio": StdioServer, "http": HttpServer, "sse": SseServer}
_SDK_SERVER_HINT = (
    "a server of type 'sdk' runs in this process: give the server itself, as `sdk_server(…)` or `mount(…)` makes it, "
    "or as 'instance', and in the option 'mcp_servers'"
)


def _read_server(value: Any) -> dict[str, Any]:
    """Read one MCP server: a struct, or a mapping whose `type` names its kind."""
    if isinstance(value, StdioServer | HttpServer):
        return _check_url(_read_fields(value, type(value)))
    if not isinstance(value, Mapping):
        raise InvalidValueError(value, "a StdioServer, HttpServer or SseServer, or a mapping")
    given = cast("Mapping[str, Any]", value)
    kind = given.get("type", "stdio")
    if kind == "sdk":
        raise InvalidValueError(value, message=_SDK_SERVER_HINT)
    if "type" not in given and "url" in given:
        raise InvalidValueError(value, message="'type' is missing: 'http' or 'sse'")
    # Any other kind may be one that a newer CLI knows.
    return (
        _check_url(_read_fields(given, _SERVER_STRUCTS[kind])) if kind in _SERVER_STRUCTS else _read_json_value(given)
    )


def _check_url(server: dict[str, Any]) -> dict[str, Any]:
    """Return `server`, unless it has a `url` that is not one; the CLI replaces variables such as ${HOST}."""
    if "url" in server and not server["url"].startswith(("http://", "https://", "$")):
        raise InvalidValueError(server["url"], "an address such as 'https://…'", "url")
    return server


def read_retry_policy(value: Any) -> RetryPolicy:
    """Read a number of retries, a `RetryPolicy`, or a mapping with its fields."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"attempts": value}
    elif isinstance(value, RetryPolicy):
        value = structs.asdict(value)
    if not isinstance(value, Mapping):
        raise InvalidValueError(value, "a whole number, or a RetryPolicy")
    given = dict(cast("Mapping[str, Any]", value))
    reasons = given.get("on", RETRY_REASONS)
    if not isinstance(reasons, list | tuple | set | frozenset):
        raise InvalidValueError(reasons, "a list of reasons", "on")
    for reason in cast("list[Any]", reasons):
        if reason not in RETRY_REASONS:
            raise InvalidValueError(reason, "one of " + ", ".join(map(repr, RETRY_REASONS)), "on")
    return _convert_to(RetryPolicy, {**given, "on": [reason for reason in RETRY_REASONS if reason in reasons]})


def read_system_prompt(value: Any) -> Any:
    """Read text, a list of blocks, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str):
        return _read_as(value, str)
    if isinstance(value, list | tuple):
        value = {"type": "custom", "prompt": cast("Any", value)}
    found = _convert_tagged(value, _PROMPT_STRUCTS)
    if isinstance(found, CustomSystemPrompt) and found.prompt == []:
        raise InvalidValueError([], "at least one block of text", "prompt")
    return found


def read_thinking(value: Any) -> Any:
    """Read a word, one of the three structs, or a mapping with their fields."""
    if isinstance(value, str):
        value = {"type": value} if value in _THINKING_STRUCTS else None
    return _convert_tagged(value, _THINKING_STRUCTS)


def read_plugins(value: Any) -> list[Plugin]:
    """Read a list of paths, structs, or mappings with their fields."""
    return _list_of(_read_plugin)(value)


def _read_plugin(value: Any) -> Plugin:
    if isinstance(value, str | os.PathLike):
        value = {"path": cast("str", os.fspath(cast("Any", value)))}
    elif isinstance(value, Mapping) and cast("Mapping[Any, Any]", value).get("type", "local") != "local":
        raise InvalidValueError(cast("Any", value)["type"], "'local', the only type there is", "type")
    return _convert_to(Plugin, value)


def resolve_plugins(value: Any, directory: str) -> list[Plugin]:
    """Make the paths of plugins absolute."""
    return [structs.replace(one, path=resolve_path(one.path, directory)) for one in read_plugins(value)]


def resolve_system_prompt(value: Any, directory: str) -> Any:
    """Make the path of a system prompt file absolute."""
    found = read_system_prompt(value)
    is_file = isinstance(found, SystemPromptFile)
    return structs.replace(found, path=resolve_path(found.path, directory)) if is_file else found


def read_tool_config(value: Any) -> ToolConfig:
    """Read a struct, or a mapping with its fields. Unknown keys are errors: the fields become variables."""
    found = _read_fields(value, ToolConfig, is_closed=True)
    if (inner := found.get("askUserQuestion")) is not None:
        found["askUserQuestion"] = _read_at(
            "ask_user_question", partial(_read_fields, cls=QuestionConfig, is_closed=True), inner
        )
    return msgspec.convert(found, ToolConfig)


def read_task_budget(value: Any) -> int:
    """Read a number of tokens, also as {"total": n}."""
    if isinstance(value, Mapping):
        [(key, value)] = cast("Mapping[Any, Any]", value).items()
        if key != "total":
            raise ValueError
    return msgspec.convert(value, _Count)


def read_models(value: Any) -> str | list[str]:
    """Read one name, or a list of names; a name with a comma is a list already."""
    if isinstance(value, str):
        if not is_name(value):
            raise InvalidValueError(value, "non-empty text")
        return value
    names = read_texts(value)
    if not names or not all(map(is_name, names)):
        raise ValueError
    return names


def read_tools(value: Any) -> str | list[str]:
    """Read names, the word for all tools, or the preset of the other SDKs."""
    if value in ("default", {"type": "preset", "preset": "claude_code"}):
        return "default"
    if is_list(value) and any(map(callable, value)):
        raise InvalidValueError(value, hint="; functions of your own go into `custom_tools`")
    return read_texts(value)


def read_skills(value: Any) -> str | list[str]:
    """Read names, or the word for all skills."""
    if value == "all":
        return "all"
    names = read_texts(value)
    for number, name in enumerate(names):
        # A name becomes the rule `Skill(name)`, so it must not contain the end of one.
        if not name or name != name.strip() or any(char in "(),*" or char < " " for char in name):
            raise InvalidValueError(name, "the name of a skill", f"[{number}]")
    return names


def read_json_object(value: Any) -> dict[str, Any]:
    """Read a JSON object."""
    return _read_json_value(read_mapping(value))


def read_config(value: Any) -> Any:
    """Read a JSON object, its text, or a path."""
    return _read_config_value(value, read_json_object)


def read_servers(value: Any) -> Any:
    """Read servers by name, with or without `mcpServers` around them; their JSON text; or a path."""
    value = _unwrap_servers(value)
    return _read_config_value(value, _copy_if(encode_mcp_servers))


def _copy_if(check: Reader) -> Reader:
    def read(value: Any) -> Any:
        check(value)
        return copy_value(value)

    return read


def _read_config_value(value: Any, read: Reader) -> Any:
    if isinstance(value, Mapping):
        return read(value)
    if not is_path(value):
        raise TypeError
    path = cast("str", os.fspath(value))
    if path.lstrip().startswith("{"):
        try:
            content = msgspec.json.decode(path.encode())
        except (ValueError, RecursionError) as error:
            raise InvalidValueError(path, message=f"the JSON text cannot be read: {error}") from None
        read(content)
    return path


def is_in_process_server(server: object) -> bool:
    """Whether an MCP server is an object of this process, and not the description of another server."""
    return not isinstance(server, Mapping | str | bytes | int | float | list | tuple | OptionStruct | None)


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


def encode_mcp_servers(value: Any) -> dict[str, Any]:
    """Return the value for `--mcp-config`: servers by name, without `mcpServers` around them."""
    value = _unwrap_servers(value)
    if isinstance(value, Mapping):  # the handshake declares in-process servers
        value = {k: v for k, v in cast("Mapping[Any, Any]", value).items() if not is_in_process_server(v)}
    return _mapping_of(_read_server)(value)


def encode_agents(value: Any) -> dict[str, Any]:
    """Return the value for `--agents`."""
    return _read_as(value, dict[str, AgentDefinition])


def encode_sandbox(value: Any) -> dict[str, Any]:
    """Return the value of `sandbox` in the settings of the CLI."""
    return _read_fields(value, Sandbox)


read_aliases = partial(_read_as, kind=dict[str, str])
read_agents = _copy_if(encode_agents)
read_sandbox = _copy_if(encode_sandbox)
