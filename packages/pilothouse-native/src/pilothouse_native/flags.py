"""The command line of the engine: the flags of Claude Code that it takes, and what they say.

Owns the meaning of each flag. Reads the files that flags name, blocking. Settings files are in `configuration`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, cast, get_args

import msgspec
from msgspec import Meta, Struct, field

from pilothouse.options import PrivateFile
from pilothouse_native.settings_mistakes import find_mistakes, find_unenforced
from pilothouse_native.wire import JsonObject
from pilothouse_transcripts.paths import is_session_id

PermissionMode = Literal["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"]
PERMISSION_MODES: Final = get_args(PermissionMode)
SETTING_SOURCES: Final = ("user", "project", "local")


class EngineArguments(Struct, frozen=True, kw_only=True):
    """The values of the flags that the engine uses; `prompt` has the words that belong to none.

    A field is called like its flag, except those in `_NAMES`. Its type says which values are valid.
    """

    prompt: str | None = None
    print: bool = False
    help: bool = False
    version: bool = False
    verbose: bool = False
    input_format: Literal["text", "stream-json"] = "text"
    output_format: Literal["text", "json", "stream-json"] = "text"
    model: str | None = None
    fallback_model: tuple[str, ...] = ()
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    betas: tuple[str, ...] = ()
    thinking: Literal["enabled", "adaptive", "disabled"] | None = None
    max_thinking_tokens: Annotated[int, Meta(ge=0)] | None = None
    thinking_display: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    max_budget_usd: Annotated[float, Meta(ge=0)] | None = None
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    permission_mode: PermissionMode | None = None
    allow_dangerously_skip_permissions: bool = False
    dangerously_skip_permissions: bool = False
    permission_prompt_tool: str | None = None
    permission_prompts: Literal["host", "none"] | None = None
    add_dir: tuple[str, ...] = ()
    json_schema: JsonObject | None = None
    include_partial_messages: bool = False
    replay_user_messages: bool = False
    session_mirror: bool = False
    resume: str | None = None
    resume_session_at: str | None = None
    continue_latest: bool = False
    fork_session: bool = False
    session_id: str | None = None
    no_session_persistence: bool = False
    name: str | None = None
    settings: JsonObject = field(default_factory=dict[str, Any])
    setting_sources: tuple[str, ...] = SETTING_SOURCES
    mcp_config: JsonObject = field(default_factory=dict[str, Any])
    bare: bool = False
    disable_slash_commands: bool = False
    await_initialize: bool = False
    exclude_dynamic_system_prompt_sections: bool = False
    strict_mcp_config: bool = False
    system_prompt_snapshot: str | None = None
    ignored_flags: tuple[str, ...] = ()

    @property
    def mode(self) -> str | None:
        """The permission mode that the flags choose."""
        mode = "bypassPermissions" if self.dangerously_skip_permissions else self.permission_mode
        return "default" if mode == "manual" else mode

    @property
    def may_bypass(self) -> bool:
        """Whether the session may change to mode bypassPermissions."""
        return self.allow_dangerously_skip_permissions or self.mode == "bypassPermissions"


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "allowed_tools": ("--allowedTools", "--allowed-tools"),
    "continue_latest": ("--continue", "-c"),
    "disallowed_tools": ("--disallowedTools", "--disallowed-tools"),
    "help": ("--help", "-h"),
    "print": ("--print", "-p"),
    "resume": ("--resume", "-r"),
    "version": ("--version", "-v"),
}
_ONE: Final[Mapping[str, Any]] = {"metavar": "VALUE"}
_SWITCH: Final[Mapping[str, Any]] = {"action": "store_true"}
_MANY: Final[Mapping[str, Any]] = {
    "action": "extend",
    "nargs": "+",
    "metavar": "VALUE",
}  # several words, several flags, or with commas
_OPTIONAL: Final[Mapping[str, Any]] = {"nargs": "?", "const": "", "metavar": "VALUE"}
_LISTS = "add_dir allowed_tools betas disallowed_tools fallback_model mcp_config tools"
_FORMS: Final[Mapping[str, Mapping[str, Any]]] = {**dict.fromkeys(_LISTS.split(), _MANY), "resume": _OPTIONAL}
IGNORED_FLAGS: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("forward-subagent-text", "include-hook-events", "prompt-suggestions"), _SWITCH),
    **dict.fromkeys(
        ("advisor", "agent", "agents", "append-subagent-system-prompt", "autocompact", "debug-file", "task-budget"),
        _ONE,
    ),
    **dict.fromkeys(("append-subagent-system-prompt-file", "plan-mode-instructions", "project-config-root"), _ONE),
    **dict.fromkeys(("plugin-dir", "plugin-dir-no-mcp"), _MANY),
    "resume-drops-turn": _ONE,
    "debug": _OPTIONAL,
}
"""Accepted without effect, so that programs written for the CLI start; standard error has a note about each."""
FILE_FLAGS: Final = ("append-system-prompt-file", "system-prompt-file")


class FlagError(Exception):
    """The command line is wrong; the program prints the message and ends with exit code 1."""


class FlagParser(argparse.ArgumentParser):
    """Raises `FlagError` where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise FlagError(f"error: {message}")


@cache
def make_parser() -> FlagParser:
    """Make the parser of all flags; any other is an error, as in the CLI."""
    parser = FlagParser(
        "pilothouse-agent",
        usage="pilothouse-agent --print [options] [prompt]",
        description="An agent over the Messages API that takes these flags of Claude Code, which `claude --help` "
        "explains, and speaks its stream-json.",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("prompt", nargs="*", help=argparse.SUPPRESS)
    for each in msgspec.structs.fields(EngineArguments):
        if each.name not in ("prompt", "ignored_flags"):
            names = _NAMES.get(each.name, (f"--{each.name.replace('_', '-')}",))
            form = _SWITCH if each.type is bool else _FORMS.get(each.name, _ONE)
            parser.add_argument(*names, dest=each.name, **form)
    for flag in FILE_FLAGS:
        parser.add_argument(f"--{flag}", metavar="FILE")
    ignored = parser.add_argument_group("taken, and without effect")
    for flag, form in IGNORED_FLAGS.items():
        names = ("--debug", "-d") if flag == "debug" else (f"--{flag}",)
        ignored.add_argument(*names, dest=_get_ignored(flag), **form)
    return parser


def _get_ignored(flag: str) -> str:
    return f"ignored {flag}"


def parse_arguments(argv: Sequence[str], cwd: Path, files: Sequence[PrivateFile] = ()) -> EngineArguments:
    """Parse and check the arguments after the program. Raises FlagError.

    Args:
        argv: the arguments.
        cwd: the base of relative paths.
        files: values of flags that were passed as files.
    """
    at = argv.index("--") if "--" in argv else len(argv)
    asked, rest = make_parser().parse_known_intermixed_args(argv[:at])
    if rest:
        raise FlagError(f"error: unknown option '{rest[0].partition('=')[0]}'")
    values = vars(asked)
    for file in files:
        name = _get_ignored(file.flag) if file.flag in IGNORED_FLAGS else file.flag.replace("-", "_")
        values[name] = [*values.get(name, ()), file.content] if _FORMS.get(name) is _MANY else file.content
    prompt = " ".join([*values.pop("prompt", ()), *argv[at + 1 :]])
    for name in ("append_system_prompt", "system_prompt"):
        if (path := values.pop(f"{name}_file", None)) is not None:
            values.setdefault(name, _read_file(path, cwd))
    fields: JsonObject = {"prompt": prompt or None}
    fields["ignored_flags"] = tuple(flag for flag in sorted(IGNORED_FLAGS) if _get_ignored(flag) in values)
    for name, value in values.items():
        if not name.startswith("ignored "):
            fields[name] = _READERS[name](value, cwd) if name in _READERS else _decode_value(value)
    try:
        arguments = msgspec.convert(fields, EngineArguments, strict=False)
    except msgspec.ValidationError as error:
        reason, _, name = str(error).rstrip("`").partition(" - at `$.")
        raise FlagError(f"error: option '--{name.replace('_', '-')}' is invalid: {reason}") from error
    _check(arguments)
    return arguments


def _check(given: EngineArguments) -> None:
    if given.input_format == "stream-json" and given.output_format != "stream-json":
        raise FlagError("Error: --input-format=stream-json requires output-format=stream-json.")
    if given.output_format == "stream-json" and not given.verbose:
        raise FlagError("Error: When using --print, --output-format=stream-json requires --verbose")
    if given.session_id is not None and not is_session_id(given.session_id):
        raise FlagError("Error: Invalid session ID. Must be a valid UUID.")
    resumes = given.resume is not None or given.continue_latest
    if given.session_id is not None and resumes and not given.fork_session:
        raise FlagError("Error: --session-id can only be used with --continue or --resume if --fork-session is given.")
    if given.resume == "":
        raise FlagError("Error: --resume requires a session ID when used with --print")


def _decode_value(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read_names(values: Sequence[str], cwd: Path) -> tuple[str, ...]:
    return tuple(name for value in values for name in split_names(value))


def split_names(text: str) -> Iterator[str]:
    """Split a text into names, at commas and blanks outside of round brackets."""
    depth, name = 0, ""
    for char in text:
        if char in ", \n" and depth == 0:
            if name:
                yield name
            name = ""
            continue
        depth += (char == "(") - (char == ")" and depth > 0)
        name += char
    if name:
        yield name


def _read_directories(values: Sequence[str], cwd: Path) -> tuple[str, ...]:
    return tuple(str(cwd / path) for path in values)


def _read_file(value: str | bytes, cwd: Path) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return (cwd / value).read_text("utf-8")
    except OSError as error:
        raise FlagError(f"Error: {error.strerror or error}: {value}") from error


def _read_json_or_file(value: str | bytes, cwd: Path, what: str) -> JsonObject:
    """Read JSON text, or the file at a path; as in the CLI, a value that does not start with `{` is a path."""
    text: str = _decode_value(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        if not (cwd / value).is_file():
            raise FlagError(f"Error: {what} file not found: {cwd / value}")
        text = _read_file(value, cwd)
    return _parse_object(text, f"{what}: not JSON", f"{what}: not a JSON object")


def _read_schema(value: str | bytes, cwd: Path) -> JsonObject:
    return _parse_object(_decode_value(value), "--json-schema is not valid JSON", "--json-schema must be a JSON object")


def _read_flag_settings(value: str | bytes, cwd: Path) -> JsonObject:
    """Read the settings of the command line, all of which the engine must be able to read, and to enforce."""
    given = _read_json_or_file(value, cwd, "Settings")
    if mistakes := list(find_mistakes(given)):
        raise FlagError("Error: --settings: " + "; ".join(f"{place}: {reason}" for place, reason in mistakes))
    if unenforced := list(find_unenforced(given)):
        places = ", ".join(unenforced)
        raise FlagError(
            f"Error: --settings: the native engine cannot enforce {places}; leave it out, or use Claude Code"
        )
    return given


def _parse_object(text: str, not_json: str, not_object: str) -> JsonObject:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FlagError(f"Error: {not_json}: {error}") from error
    if not isinstance(found, dict):
        raise FlagError(f"Error: {not_object}")
    return cast("JsonObject", found)


def _read_sources(value: str, cwd: Path) -> tuple[str, ...]:
    names = tuple(split_names(value))
    unknown = [name for name in names if name not in SETTING_SOURCES]
    if unknown:
        raise FlagError(f"Error: Invalid setting source: {unknown[0]}. Valid options are: {', '.join(SETTING_SOURCES)}")
    return names


def _read_mcp_servers(values: Sequence[str | bytes], cwd: Path) -> JsonObject:
    found: JsonObject = {}
    for value in values:
        servers = _read_json_or_file(value, cwd, "MCP config").get("mcpServers")
        if not isinstance(servers, dict):
            raise FlagError("Error: Invalid MCP configuration: mcpServers is missing")
        found |= cast("JsonObject", servers)
    return found


_READERS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    **dict.fromkeys(_LISTS.split(), _read_names),
    "add_dir": _read_directories,
    "json_schema": _read_schema,
    "mcp_config": _read_mcp_servers,
    "setting_sources": _read_sources,
    "settings": _read_flag_settings,
}
"""How the values of a flag are read; those of the others are text, which their type converts."""
