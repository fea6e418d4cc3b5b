"""The configuration of the engine: command-line flags, settings files and CLAUDE.md.

Owns the meaning of each flag and key. Files of a repository may restrict, but grant nothing. Reads files, blocking.
"""

from __future__ import annotations

import json
import os
import stat
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, field

from pilothouse.options import PrivateFile
from pilothouse_native.settings_mistakes import find_mistakes, find_unenforced, take_known
from pilothouse_native.wire import JsonObject, as_list, as_object
from pilothouse_transcripts.paths import is_session_id


class FlagForm(StrEnum):
    """How a flag takes its value; the text is for the help page."""

    SWITCH = ""
    VALUE = " <value>"
    LIST = " <values...>"
    """Any number of values: several words, several flags, or one word with commas."""
    OPTIONAL = " [value]"
    """An optional value: the next word, if it is not a flag."""


_HELP: Final = {
    FlagForm.SWITCH: {
        "allow-dangerously-skip-permissions": "let a running session change to bypassPermissions",
        "await-initialize": "wait for the handshake before anything else",
        "bare": "read no settings files and no CLAUDE.md",
        "continue": "go on with the latest session of the directory",
        "dangerously-skip-permissions": "run every tool without asking: permission mode bypassPermissions",
        "disable-slash-commands": "no commands that begin with /",
        "exclude-dynamic-system-prompt-sections": "leave out of the system prompt what changes from run to run",
        "fork-session": "resume into a new session, and leave the old one as it was",
        "help": "show this page",
        "include-partial-messages": "stream the answer while it is written",
        "no-session-persistence": "do not write the session to disk",
        "print": "answer once, and end",
        "replay-user-messages": "repeat the messages of the user in the output",
        "session-mirror": "report what is written to the session, for a store",
        "strict-mcp-config": "use no MCP servers but those of --mcp-config",
        "verbose": "needed with --output-format stream-json",
        "version": "show the version",
    },
    FlagForm.VALUE: {
        "append-system-prompt": "text to add to the end of the system prompt",
        "append-system-prompt-file": "the same, from a file",
        "effort": "how much effort the model puts into its answer",
        "input-format": "text, or stream-json: messages as lines of JSON on standard input",
        "json-schema": "JSON Schema that the answer must fit",
        "max-budget-usd": "stop when the estimated cost passes this many US dollars",
        "max-thinking-tokens": "thinking budget, on models that have one",
        "max-turns": "stop after this many turns of the model",
        "model": "model alias (sonnet, opus, haiku) or full model id",
        "name": "title of the session",
        "output-format": "text, json: one object at the end, or stream-json: each message as a line",
        "permission-mode": "what happens when a tool needs permission",
        "permission-prompt-tool": "an MCP tool that answers when a tool needs permission, or stdio",
        "permission-prompts": "who answers when a tool needs permission: host or none",
        "resume-session-at": "with --resume: uuid of the last message to keep",
        "session-id": "uuid for the new session",
        "setting-sources": "which settings files to read: user, project, local",
        "settings": "settings: a file, or JSON text",
        "system-prompt": "text in place of the system prompt",
        "system-prompt-file": "the same, from a file",
        "system-prompt-snapshot": "a system prompt that an earlier run has reported",
        "thinking": "whether the model thinks: adaptive or disabled",
        "thinking-display": "how much of the thinking is shown",
    },
    FlagForm.LIST: {
        "add-dir": "further directories that tools may use",
        "allowedTools": "tools that run without asking, such as 'Bash(git log:*)'",
        "betas": "beta features of the API",
        "disallowedTools": "tools that may not be used",
        "fallback-model": "model to use while the first one is overloaded",
        "mcp-config": "MCP servers: files, or JSON texts",
        "tools": "which built-in tools exist; default for all",
    },
    FlagForm.OPTIONAL: {"resume": "id of a session to continue"},
}
_IGNORED: Final = {
    FlagForm.SWITCH: "forward-subagent-text include-hook-events prompt-suggestions",
    FlagForm.VALUE: (
        "advisor agent agents append-subagent-system-prompt append-subagent-system-prompt-file autocompact "
        "debug-file "
        "plan-mode-instructions project-config-root resume-drops-turn task-budget"
    ),
    FlagForm.LIST: "plugin-dir plugin-dir-no-mcp",
    FlagForm.OPTIONAL: "debug",
}
IGNORED_FLAGS: Final = frozenset(" ".join(_IGNORED.values()).split())
"""Accepted without effect, so that programs written for the CLI start; standard error has a note about each."""
FLAG_HELP: Final = {name: text for flags in _HELP.values() for name, text in flags.items()}
FLAGS: Final[Mapping[str, FlagForm]] = {
    name: form for form, flags in _HELP.items() for name in (*flags, *_IGNORED[form].split())
}
"""Every flag that the engine accepts; any other is an error, as in the CLI."""

SHORT_FLAGS: Final = {"c": "continue", "d": "debug", "h": "help", "p": "print", "r": "resume", "v": "version"}
FLAG_ALIASES: Final = {"allowed-tools": "allowedTools", "disallowed-tools": "disallowedTools"}


class FlagError(Exception):
    """The command line is wrong; the program prints the message and ends with exit code 1."""


class CommandLine(Struct):
    """A parsed command line: values by flag, none for a switch, and the words that belong to no flag, the prompt."""

    values: dict[str, list[str | bytes]] = field(default_factory=dict[str, list[str | bytes]])
    words: list[str] = field(default_factory=list[str])

    def has(self, flag: str) -> bool:
        """Whether the flag was given."""
        return flag in self.values

    def text(self, flag: str) -> str | None:
        """Return the last value of a flag as text."""
        values = self.values.get(flag)
        return _decode_text(values[-1]) if values else None

    def names(self, flag: str) -> tuple[str, ...]:
        """Return the names in a list, without splitting at commas in brackets."""
        return tuple(name for value in self.values.get(flag, ()) for name in _split_names(_decode_text(value)))


def parse_command_line(argv: Sequence[str], files: Mapping[str, bytes] | None = None) -> CommandLine:
    """Parse the arguments after the program; `files` has the values of flags that were passed as files."""
    line = CommandLine()
    words = deque(argv)
    while words:
        word = words.popleft()
        if word == "--":
            line.words += words
            break
        if word.startswith("-") and len(word) > 1:
            _parse_flag(word, words, line)
        else:
            line.words.append(word)
    for flag, content in (files or {}).items():
        line.values.setdefault(flag, []).append(content)
    return line


def _parse_flag(word: str, words: deque[str], line: CommandLine) -> None:
    given, bound, value = word.lstrip("-").partition("=")
    name = SHORT_FLAGS.get(given, given) if not word.startswith("--") else FLAG_ALIASES.get(given, given)
    form = FLAGS.get(name)
    if form is None:
        raise FlagError(f"error: unknown option '{word.partition('=')[0]}'")
    values = line.values.setdefault(name, [])
    if bound:
        values.append(value)
        return
    if form in {FlagForm.VALUE, FlagForm.LIST}:
        if not words:
            raise FlagError(f"error: option '--{name} <value>' argument missing")
        values.append(words.popleft())
    while form is FlagForm.LIST and words and not words[0].startswith("-"):
        values.append(words.popleft())
    if form is FlagForm.OPTIONAL and words and not words[0].startswith("-"):
        values.append(words.popleft())


def _decode_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _split_names(text: str) -> Iterator[str]:
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


def make_help_page() -> str:
    """Make the help page: every flag with a line about it."""
    heads = {name: f"  --{name}{FLAGS[name]}" for name in sorted(FLAG_HELP)}
    width = max(map(len, heads.values())) + 2
    unused = " ".join(f"--{name}" for name in sorted(IGNORED_FLAGS))
    return (
        "Usage: pilothouse-agent --print [options] [prompt]\n\n"
        "An agent over the Messages API that takes the flags of Claude Code and speaks its stream-json.\n\n"
        "Options:\n" + "\n".join(f"{head:<{width}}{FLAG_HELP[name]}" for name, head in heads.items()) + "\n\n"
        "Taken, and without effect:\n"
        + textwrap.fill(unused, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        + "\n"
    )


PermissionMode = Literal["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"]
PERMISSION_MODES: Final = get_args(PermissionMode)
SETTING_SOURCES: Final = ("user", "project", "local")


class EngineArguments(Struct, frozen=True, kw_only=True):
    """The values of the flags that the engine uses; `prompt` has the words that belong to none.

    A field is called like its flag, except those in `_FIELD_FLAGS`. Its type says which values are valid.
    """

    prompt: str | None = None
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


_FIELD_FLAGS: Final = {
    "allowed_tools": "allowedTools",
    "continue_latest": "continue",
    "disallowed_tools": "disallowedTools",
}


def parse_arguments(argv: Sequence[str], cwd: Path, files: Sequence[PrivateFile] = ()) -> EngineArguments:
    """Parse and check the arguments after the program; `cwd` is the base of relative paths. Raises FlagError."""
    line = parse_command_line(argv, {file.flag: file.content for file in files})
    fields: JsonObject = {"ignored_flags": tuple(sorted(IGNORED_FLAGS.intersection(line.values)))}
    for each in msgspec.structs.fields(EngineArguments):
        flag = _FIELD_FLAGS.get(each.name, each.name.replace("_", "-"))
        if line.has(flag):
            fields[each.name] = _read_value(line, flag, each.type, cwd)
        elif line.has(f"{flag}-file"):
            fields[each.name] = _read_file(line.values[f"{flag}-file"][-1], cwd)
    if line.words:
        fields["prompt"] = " ".join(line.words)
    arguments = EngineArguments(**fields)
    _check(arguments, line)
    return arguments


def _read_value(line: CommandLine, flag: str, kind: Any, cwd: Path) -> Any:
    values, text = line.values[flag], line.text(flag)
    match flag:
        case "add-dir":
            return tuple(str(cwd / _decode_text(path)) for path in values)
        case "json-schema":
            return _parse_object(text or "", "--json-schema is not valid JSON", "--json-schema must be a JSON object")
        case "mcp-config":
            return _read_mcp_servers(values, cwd)
        case "setting-sources":
            return _read_sources(line.names(flag))
        case "settings":
            return _read_flag_settings(values[-1], cwd)
        case _ if FLAGS[flag] is FlagForm.SWITCH:
            return True
        case _ if FLAGS[flag] is FlagForm.LIST:
            return line.names(flag)
        case _:
            return None if text is None else _convert(flag, text, kind)


def _convert(flag: str, text: str, kind: Any) -> Any:
    """Convert a text to the type of a field, which may be optional."""
    kind = next((each for each in get_args(kind) if type(None) in get_args(kind)), kind)
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        choices = f" Allowed choices are {', '.join(get_args(kind))}." if get_origin(kind) is Literal else ""
        raise FlagError(f"error: option '--{flag} <value>' argument '{text}' is invalid.{choices}") from error


def _check(given: EngineArguments, line: CommandLine) -> None:
    if given.input_format == "stream-json" and given.output_format != "stream-json":
        raise FlagError("Error: --input-format=stream-json requires output-format=stream-json.")
    if given.output_format == "stream-json" and not line.has("verbose"):
        raise FlagError("Error: When using --print, --output-format=stream-json requires --verbose")
    if given.session_id is not None and not is_session_id(given.session_id):
        raise FlagError("Error: Invalid session ID. Must be a valid UUID.")
    if given.session_id is not None and (line.has("resume") or given.continue_latest) and not given.fork_session:
        raise FlagError("Error: --session-id can only be used with --continue or --resume if --fork-session is given.")
    if line.has("resume") and not given.resume:
        raise FlagError("Error: --resume requires a session ID when used with --print")


def _read_file(value: str | bytes, cwd: Path) -> str:
    if isinstance(value, bytes):
        return _decode_text(value)
    try:
        return (cwd / value).read_text("utf-8")
    except OSError as error:
        raise FlagError(f"Error: {error.strerror or error}: {value}") from error


def _read_json_or_file(value: str | bytes, cwd: Path, what: str) -> JsonObject:
    """Read JSON text, or the file at a path; as in the CLI, a value that does not start with `{` is a path."""
    text = _decode_text(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        if not (cwd / value).is_file():
            raise FlagError(f"Error: {what} file not found: {cwd / value}")
        text = _read_file(value, cwd)
    return _parse_object(text, f"{what}: not JSON", f"{what}: not a JSON object")


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


def _read_sources(names: tuple[str, ...]) -> tuple[str, ...]:
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


_GRANTING_KEYS: Final = ("allow", "additionalDirectories", "defaultMode")
MEMORY_BYTES: Final = 256 * 1024
"""Size limit of one CLAUDE.md; the rest is cut off."""
SETTINGS_BYTES: Final = 1024 * 1024
"""Size limit of a settings file; a larger one is not read."""


# Variables that decide what programs run, load or connect to: never taken from settings.
_STEERING = (
    "ALL_PROXY BASH_ENV BROWSER CC CDPATH CXX EDITOR ENV GLOBIGNORE GOFLAGS GREP_OPTIONS HOME HTTPS_PROXY HTTP_PROXY "
    "IFS KUBECONFIG LESSCLOSE LESSOPEN MAKEFLAGS MAKEFILES MANPAGER NODE_OPTIONS NODE_PATH PAGER PATH PROMPT_COMMAND "
    "PS1 PS4 RUSTC_WRAPPER RUSTFLAGS SHELL SHELLOPTS SSH_ASKPASS SUDO_ASKPASS TMPDIR VISUAL ZDOTDIR"
)
_STEERING_NAMES: Final = frozenset(_STEERING.split())
_PREFIXES = (
    "ANTHROPIC_ BASH_FUNC_ BASHOPTS CARGO_ CLAUDE_ DOCKER_ DYLD_ GIT_ LD_ NPM_CONFIG_ PERL PILOTHOUSE_ PIP_ PYTHON "
    "RIPGREP_ RUBY UV_ XDG_"
)
_STEERING_PREFIXES: Final = tuple(_PREFIXES.split())
_SUFFIXES = "_BASE_URL _CA_BUNDLE _CERT_FILE _EXTRA_CA_CERTS _JAVA_OPTIONS _TOOL_OPTIONS"
_STEERING_SUFFIXES: Final = tuple(_SUFFIXES.split())


class EngineSettings(Struct):
    """The merged settings of all sources. The API client does not use their `env`, which is for commands."""

    allow: list[str] = field(default_factory=list[str])
    ask: list[str] = field(default_factory=list[str])
    deny: list[str] = field(default_factory=list[str])
    directories: list[str] = field(default_factory=list[str])
    permission_mode: str | None = None
    model: str | None = None
    effort: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    sources: list[JsonObject] = field(default_factory=list[JsonObject])
    """The sources in the form of the CLI, with what the engine has of their settings."""
    errors: list[JsonObject] = field(default_factory=list[JsonObject])
    """What it cannot read in settings files, in the form of the CLI."""

    def add_error(self, file: str, place: str, message: str) -> None:
        """Add what is wrong in a settings file."""
        self.errors.append({"file": file, "path": place, "message": message})
        self.problems.append(f"{file}: {place}: {message}" if place else f"{file}: {message}")

    def add_source(self, values: Mapping[str, Any], name: str, source: str, *, grants: bool = True) -> None:
        """Add one source, which is `source` for the CLI; later ones override earlier ones.

        A source without `grants` may only deny, ask, and choose model and effort.
        """
        if values:
            self.sources.append({"source": source, "settings": take_known(values)})
        permissions: Mapping[str, Any] = as_object(values.get("permissions"))
        self.ask += _get_texts(permissions.get("ask"))
        self.deny += _get_texts(permissions.get("deny"))
        self.model = _get_text(values, "model") or self.model
        self.effort = _get_text(values, "effortLevel") or self.effort
        if grants:
            self._add_granted(permissions, as_object(values.get("env")), name)
            return
        without = [f"permissions.{key}" for key in _GRANTING_KEYS if permissions.get(key)]
        without += ["env"] if values.get("env") else []
        if without:
            names = ", ".join(without)
            self.problems.append(f"{name}: {names} without effect: a file of a repository grants nothing")

    def _add_granted(self, permissions: Mapping[str, Any], env: Mapping[str, Any], name: str) -> None:
        self.allow += _get_texts(permissions.get("allow"))
        self.directories += _get_texts(permissions.get("additionalDirectories"))
        self.permission_mode = _get_text(permissions, "defaultMode") or self.permission_mode
        steering = [variable for variable in env if is_steering_variable(variable)]
        self.env |= {variable: str(value) for variable, value in env.items() if variable not in steering}
        if steering:
            names = ", ".join(sorted(steering))
            self.problems.append(f"{name}: env: {names} without effect: give such variables to the program itself")


def is_steering_variable(variable: str) -> bool:
    """Whether a variable decides what programs run or load, or where requests and keys are sent."""
    name = variable.upper()
    return (
        name in _STEERING_NAMES
        or name.startswith(_STEERING_PREFIXES)
        or name.endswith(_STEERING_SUFFIXES)
        or not name.isidentifier()
    )


def _get_texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [each for each in as_list(value) if isinstance(each, str)]


def _get_text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def read_settings(arguments: EngineArguments, cwd: Path, config_dir: Path) -> EngineSettings:
    """Read the settings for a launch: user, project, local, and then those of the flags."""
    found = EngineSettings()
    files = {
        "user": config_dir / "settings.json",
        "project": cwd / ".claude" / "settings.json",
        "local": cwd / ".claude" / "settings.local.json",
    }
    for source, path in files.items():
        if source in arguments.setting_sources and not arguments.bare:
            try:
                values = json.loads(_read_settings_file(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError, RecursionError) as error:
                found.add_error(str(path), "", str(error))
                continue
            if not isinstance(values, dict):
                found.add_error(str(path), "", "not a JSON object")
            for place, message in find_mistakes(as_object(values)):
                found.add_error(str(path), place, message)
            if unenforced := ", ".join(find_unenforced(as_object(values))):
                found.problems.append(f"{path}: {unenforced} without effect: the native engine has nothing like it")
            found.add_source(as_object(values), str(path), f"{source}Settings", grants=source == "user")
    found.add_source(arguments.settings, "--settings", "flagSettings")
    found.allow += arguments.allowed_tools
    found.deny += arguments.disallowed_tools
    found.directories += arguments.add_dir
    found.permission_mode = arguments.mode or found.permission_mode
    return found


def _read_settings_file(path: Path) -> str:
    """Read a settings file. A repository may hold a link to a device that never ends."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > SETTINGS_BYTES:
        raise ValueError(f"not a file of at most {SETTINGS_BYTES:,} bytes")
    return path.read_text("utf-8")


def read_memory(sources: Sequence[str], cwd: Path, config_dir: Path) -> list[tuple[Path, str]]:
    """Read CLAUDE.md: the user's, and those of the directory and its parents, from the top down."""
    own = config_dir / "CLAUDE.md"
    paths = {
        "user": [own],
        "project": [folder / "CLAUDE.md" for folder in reversed((cwd, *cwd.parents))],
        "local": [cwd / "CLAUDE.local.md"],
    }
    return [
        (path, text)
        for source, found in paths.items()
        for path in found
        if source in sources and (path == own or _is_inside_tree(path, cwd)) and (text := _read_memory_file(path))
    ]


def _is_inside_tree(path: Path, cwd: Path) -> bool:
    """Whether a file is where it seems to be: a link in a repository must not expose another file to the model."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in (path.parent, cwd))


def _read_memory_file(path: Path) -> str:
    try:
        if not path.is_file():  # opening a pipe would block until there is a writer
            return ""
        with path.open("rb") as file:
            return file.read(MEMORY_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
