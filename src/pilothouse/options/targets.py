"""Where the value of an option goes: a flag, an environment variable, a field of the initialize request.

Owns how a value with several targets is split. Plain data and pure functions; `renderer` acts on the targets, the
docs and the drift test read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct


class Flag(Struct, frozen=True):
    """One argument `--name=value`; items of a list are joined with commas."""

    name: str


class ListFlag(Struct, frozen=True):
    """`--name=a,b`; a list that is too long for one argument becomes several, which the CLI joins."""

    name: str


class PathFlag(Struct, frozen=True):
    """One argument `--name=path`; a leading `~` is the home directory."""

    name: str


class RepeatedFlag(Struct, frozen=True):
    """`--name=path` once for each item."""

    name: str


class Switch(Struct, frozen=True):
    """`--name`, present when the value is `on`."""

    name: str
    on: bool = True


class SwitchOrFlag(Struct, frozen=True):
    """`--name` for True, `--name=value` for text, nothing for False."""

    name: str


class TextFlag(Struct, frozen=True):
    """`--name=value` while it is short.

    Longer text goes into a private file, passed as `--file_flag=path`, or into the initialize request under `key`,
    depending on which of the two is set.
    """

    name: str
    file_flag: str = ""
    key: str = ""


class ConfigFlag(Struct, frozen=True):
    """Text or a path goes as `--name=value`; a mapping, which may hold secrets, as a private JSON file.

    `wrap` is the key that a mapping is put under.
    """

    name: str
    wrap: str | None = None


class JsonFlag(Struct, frozen=True):
    """A JSON value: `--name={...}` while it is short, else the initialize request carries it under `key`.

    `switches` are flags that make the CLI read that key. A `private` value may hold secrets: it is never an argument.
    In the argv form it is a private file; with `switches` there is no argv form, because the CLI reads no file.
    """

    name: str
    key: str
    private: bool = False
    switches: tuple[str, ...] = ()


class InitializeField(Struct, frozen=True):
    """A key of the initialize request; the argv form has none."""

    key: str


class EnvVar(Struct, frozen=True):
    """An environment variable of the child. Keys only travel this way. `path`: a leading `~` is the home."""

    name: str
    path: bool = False


class EnvSwitch(Struct, frozen=True):
    """A variable that is `value` when the option is `on`, and removed when it is not."""

    name: str
    value: str = "1"
    on: bool = True


class PartOfOption(Struct, frozen=True):
    """Becomes a part of another option before rendering."""

    option: str


class Internal(Struct, frozen=True):
    """Used by pilothouse itself. `wire` is the protocol word that the option makes it send, if any."""

    wire_name: str = ""


class SplitTarget(Struct, frozen=True):
    """Goes to several places: `split` returns which part of a value goes where; `targets` lists all targets."""

    split: Callable[[Any], Iterable[tuple[Target, Any]]]
    targets: tuple[Target, ...]


Target = (
    Flag
    | ListFlag
    | PathFlag
    | RepeatedFlag
    | Switch
    | SwitchOrFlag
    | TextFlag
    | ConfigFlag
    | JsonFlag
    | InitializeField
    | EnvVar
    | EnvSwitch
    | PartOfOption
    | Internal
    | SplitTarget
)


def list_flags(target: Target) -> tuple[str, ...]:
    """Every flag that `target` can put on the command line, without dashes."""
    if isinstance(target, SplitTarget):
        return tuple(dict.fromkeys(flag for part in target.targets for flag in list_flags(part)))
    if isinstance(target, TextFlag):
        return tuple(filter(None, (target.name, target.file_flag)))
    if isinstance(target, JsonFlag):
        return target.switches if target.private and target.switches else (target.name, *target.switches)
    if isinstance(target, Flag | ListFlag | PathFlag | RepeatedFlag | Switch | SwitchOrFlag | ConfigFlag):
        return (target.name,)
    return ()


def list_initialize_keys(target: Target) -> tuple[str, ...]:
    """Every key that `target` can put into the initialize request."""
    if isinstance(target, SplitTarget):
        return tuple(dict.fromkeys(key for part in target.targets for key in list_initialize_keys(part)))
    return (target.key,) if isinstance(target, TextFlag | JsonFlag | InitializeField) and target.key else ()


def list_variables(target: Target) -> tuple[str, ...]:
    """Every environment variable that `target` can set or remove."""
    if isinstance(target, SplitTarget):
        return tuple(dict.fromkeys(name for part in target.targets for name in list_variables(part)))
    return (target.name,) if isinstance(target, EnvVar | EnvSwitch) else ()


def describe_target(target: Target) -> str:
    """Describe where a value goes, in words, for the documentation."""
    return _DESCRIPTIONS[type(target)](target)


def _describe_split(target: Any) -> str:
    places = [f"`--{flag}`" for flag in list_flags(target)]
    places += [f"handshake, `{key}`" for key in list_initialize_keys(target)]
    places += [f"environment, `{name}`" for name in list_variables(target)]
    return "; ".join(places)


def _describe_text(target: Any) -> str:
    long = f"a private file, `--{target.file_flag}`" if target.file_flag else f"the handshake as `{target.key}`"
    return f"`--{target.name}`; long text in {long}"


def _describe_json(target: Any) -> str:
    if target.private and target.switches:
        return f"handshake, `{target.key}`"
    if target.private:
        return f"handshake, `{target.key}`; in the argv form a private file, `--{target.name}`"
    return f"`--{target.name}`; a long one in the handshake as `{target.key}`"


def _describe_flag(target: Any) -> str:
    return f"`--{target.name}`"


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    Flag: _describe_flag,
    ListFlag: _describe_flag,
    PathFlag: _describe_flag,
    RepeatedFlag: _describe_flag,
    Switch: _describe_flag,
    SwitchOrFlag: _describe_flag,
    TextFlag: _describe_text,
    ConfigFlag: lambda target: f"`--{target.name}`; a mapping goes in a private file",
    JsonFlag: _describe_json,
    InitializeField: lambda target: f"handshake, `{target.key}`",
    EnvVar: lambda target: f"environment, `{target.name}`",
    EnvSwitch: lambda target: f"environment, `{target.name}`",
    PartOfOption: lambda target: f"part of `{target.option}`",
    Internal: lambda target: f"pilothouse; `{target.wire_name}` of each prompt" if target.wire_name else "pilothouse",
    SplitTarget: _describe_split,
}


Pieces = Iterator[tuple[Target, Any]]

PROMPT = TextFlag("system-prompt", "system-prompt-file")
APPEND = TextFlag("append-system-prompt", "append-system-prompt-file")
PROMPT_FILE = PathFlag("system-prompt-file")
PROMPT_BLOCKS = InitializeField("systemPrompt")
EXCLUDE_DYNAMIC = Switch("exclude-dynamic-system-prompt-sections")
SNAPSHOT = Flag("system-prompt-snapshot")
THINKING = Flag("thinking")
THINKING_TOKENS = Flag("max-thinking-tokens")
THINKING_DISPLAY = Flag("thinking-display")
PLUGIN_DIR = PathFlag("plugin-dir")
PLUGIN_DIR_NO_MCP = PathFlag("plugin-dir-no-mcp")
PREVIEW_FORMAT = EnvVar("CLAUDE_CODE_QUESTION_PREVIEW_FORMAT")
SKILL_NAMES = InitializeField("skills")
SESSION_MIRROR = Switch("session-mirror")

PROMPT_TARGETS = (PROMPT, APPEND, PROMPT_FILE, EXCLUDE_DYNAMIC, SNAPSHOT, PROMPT_BLOCKS)
THINKING_TARGETS = (THINKING, THINKING_TOKENS, THINKING_DISPLAY)
PLUGIN_TARGETS = (PLUGIN_DIR, PLUGIN_DIR_NO_MCP)
PROVIDER_VARIABLES = {
    "bedrock": EnvVar("CLAUDE_CODE_USE_BEDROCK"),
    "vertex": EnvVar("CLAUDE_CODE_USE_VERTEX"),
    "foundry": EnvVar("CLAUDE_CODE_USE_FOUNDRY"),
}


def split_system_prompt(value: Any) -> Pieces:
    """Split a system prompt: text is the prompt; structs return their own parts."""
    if isinstance(value, str):
        yield PROMPT, value
    else:
        yield from value.pieces()


def split_struct(value: Any) -> Pieces:
    """Return the parts of a struct."""
    yield from value.pieces()


def split_structs(value: Any) -> Pieces:
    """Return the parts of several structs, one after the other."""
    for item in value:
        yield from item.pieces()


def split_skills(value: Any) -> Pieces:
    """Split skills: names narrow the list that the model sees; the permission is a part of `allowed_tools`."""
    if value != "all":
        yield SKILL_NAMES, value


def split_session_store(value: Any) -> Pieces:
    """Split a session store: the CLI itself sends it the transcripts."""
    yield SESSION_MIRROR, True


def split_provider(value: str) -> Pieces:
    """Split a provider: set its own switch, and remove inherited values of the other providers."""
    for name, variable in PROVIDER_VARIABLES.items():
        yield variable, "1" if name == value else None
