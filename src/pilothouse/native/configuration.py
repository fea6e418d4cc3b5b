"""The configuration of the engine: command-line flags, settings files and CLAUDE.md.

Owns the meaning of each flag and key. Files of a repository may restrict, but grant nothing until the user trusts the
directory. Reads files, blocking.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct, field

from pilothouse.native.wire import JsonObject, as_list, as_object
from pilothouse.options import PrivateFile
from pilothouse.transcripts.paths import is_session_id
from pilothouse.trust_store import is_trusted_directory, is_trusted_in_process


class FlagForm(Enum):
    """How a flag takes its value."""

    SWITCH = auto()
    VALUE = auto()
    LIST = auto()
    """Any number of values: several words, several flags, or one word with commas."""
    OPTIONAL = auto()
    """An optional value: the next word, if it is not a flag."""


_SWITCHES: Final = (
    "allow-dangerously-skip-permissions bare continue dangerously-skip-permissions disable-slash-commands "
    "exclude-dynamic-system-prompt-sections fork-session forward-subagent-text include-hook-events "
    "include-partial-messages no-session-persistence print prompt-suggestions replay-user-messages session-mirror "
    "strict-mcp-config verbose version help await-initialize"
)
_VALUES: Final = (
    "agent agents append-subagent-system-prompt append-subagent-system-prompt-file append-system-prompt "
    "append-system-prompt-file debug-file effort input-format json-schema max-budget-usd max-thinking-tokens "
    "max-turns model name output-format permission-mode permission-prompt-tool permission-prompts "
    "plan-mode-instructions project-config-root resume-drops-turn resume-session-at session-id setting-sources "
    "settings system-prompt system-prompt-file system-prompt-snapshot task-budget thinking thinking-display"
)
_LISTS: Final = (
    "add-dir allowedTools betas disallowedTools fallback-model mcp-config plugin-dir plugin-dir-no-mcp tools"
)

FLAGS: Final[Mapping[str, FlagForm]] = {
    **dict.fromkeys(_SWITCHES.split(), FlagForm.SWITCH),
    **dict.fromkeys(_VALUES.split(), FlagForm.VALUE),
    **dict.fromkeys(_LISTS.split(), FlagForm.LIST),
    **dict.fromkeys(("debug", "resume"), FlagForm.OPTIONAL),
}
"""Every flag that the engine accepts; any other is an error, as in the CLI."""

SHORT_FLAGS: Final[Mapping[str, str]] = {"c": "continue", "d": "debug", "h": "help", "p": "print", "r": "resume"} | {
    "v": "version"
}
FLAG_ALIASES: Final[Mapping[str, str]] = {"allowed-tools": "allowedTools", "disallowed-tools": "disallowedTools"}

_IGNORED: Final = (
    "agent agents append-subagent-system-prompt append-subagent-system-prompt-file debug debug-file "
    "forward-subagent-text include-hook-events plan-mode-instructions plugin-dir plugin-dir-no-mcp "
    "project-config-root prompt-suggestions resume-drops-turn task-budget"
)
IGNORED_FLAGS: Final = frozenset(_IGNORED.split())
"""Accepted without effect, so that programs written for the CLI start; standard error has a note about each."""


class FlagError(Exception):
    """The command line is wrong; the program prints the message and ends with exit code 1."""


class CommandLine(Struct):
    """A parsed command line.

    Attributes:
        values: values by flag, in their order; a switch has an empty list.
        words: words that belong to no flag: the prompt.
    """

    values: dict[str, list[str | bytes]] = field(default_factory=dict[str, list[str | bytes]])
    words: list[str] = field(default_factory=list[str])

    def has(self, flag: str) -> bool:
        """Whether the flag was given."""
        return flag in self.values

    def last(self, flag: str) -> str | bytes | None:
        """Return the last value of a flag."""
        values = self.values.get(flag)
        return values[-1] if values else None

    def text(self, flag: str) -> str | None:
        """Return the last value of a flag as text."""
        value = self.last(flag)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def names(self, flag: str) -> tuple[str, ...] | None:
        """Return the names in a list, without splitting at commas in brackets; None if the flag was not given."""
        if flag not in self.values:
            return None
        return tuple(name for value in self.values[flag] for name in _split_names(_decode_text(value)))


def parse_command_line(argv: Sequence[str], files: Mapping[str, bytes] | None = None) -> CommandLine:
    """Parse a command line.

    Args:
        argv: the arguments after the program.
        files: values passed as files instead of arguments: the content of each, by flag.

    Raises:
        FlagError: a flag is unknown or has no value.
    """
    line = CommandLine()
    words = iter(_ArgumentCursor(argv))
    for word in words:
        if word == "--":
            line.words += words.take_rest()
        elif word.startswith("-") and len(word) > 1:
            _parse_flag(word, words, line)
        else:
            line.words.append(word)
    for flag, content in (files or {}).items():
        line.values.setdefault(flag, []).append(content)
    return line


def _parse_flag(word: str, words: _ArgumentCursor, line: CommandLine) -> None:
    given, bound, value = word.lstrip("-").partition("=")
    name = SHORT_FLAGS.get(given, given) if not word.startswith("--") else FLAG_ALIASES.get(given, given)
    form = FLAGS.get(name)
    if form is None:
        raise FlagError(f"error: unknown option '{word.partition('=')[0]}'")
    values = line.values.setdefault(name, [])
    if bound:
        values.append(value)
    elif form is FlagForm.VALUE or form is FlagForm.LIST:
        if words.is_empty:
            raise FlagError(f"error: option '--{name} <value>' argument missing")
        values.append(next(words))
        while form is FlagForm.LIST and words.has_value():
            values.append(next(words))
    elif form is FlagForm.OPTIONAL and words.has_value():
        values.append(next(words))


class _ArgumentCursor(Iterator[str]):
    """Iterates over words, with lookahead."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)[::-1]

    @property
    def is_empty(self) -> bool:
        return not self._words

    def has_value(self) -> bool:
        """Whether the next word exists and is not a flag."""
        return bool(self._words) and not self._words[-1].startswith("-")

    def take_rest(self) -> list[str]:
        rest, self._words = self._words[::-1], []
        return rest

    def __iter__(self) -> _ArgumentCursor:
        return self

    def __next__(self) -> str:
        if not self._words:
            raise StopIteration
        return self._words.pop()


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


FLAG_HELP: Final = {
    "add-dir": "further directories that tools may use",
    "allow-dangerously-skip-permissions": "let a running session change to bypassPermissions",
    "allowedTools": "tools that run without asking, such as 'Bash(git log:*)'",
    "append-system-prompt": "text to add to the end of the system prompt",
    "append-system-prompt-file": "the same, from a file",
    "await-initialize": "wait for the handshake before anything else",
    "bare": "read no settings files and no CLAUDE.md",
    "betas": "beta features of the API",
    "continue": "go on with the latest session of the directory",
    "dangerously-skip-permissions": "run every tool without asking: permission mode bypassPermissions",
    "disable-slash-commands": "no commands that begin with /",
    "disallowedTools": "tools that may not be used",
    "effort": "how much effort the model puts into its answer",
    "exclude-dynamic-system-prompt-sections": "leave out of the system prompt what changes from run to run",
    "fallback-model": "model to use while the first one is overloaded",
    "fork-session": "resume into a new session, and leave the old one as it was",
    "help": "show this page",
    "include-partial-messages": "stream the answer while it is written",
    "input-format": "text, or stream-json: messages as lines of JSON on standard input",
    "json-schema": "JSON Schema that the answer must fit",
    "max-budget-usd": "stop when the estimated cost passes this many US dollars",
    "max-thinking-tokens": "thinking budget, on models that have one",
    "max-turns": "stop after this many turns of the model",
    "mcp-config": "MCP servers: files, or JSON texts",
    "model": "model alias (sonnet, opus, haiku) or full model id",
    "name": "title of the session",
    "no-session-persistence": "do not write the session to disk",
    "output-format": "text, json: one object at the end, or stream-json: each message as a line",
    "permission-mode": "what happens when a tool needs permission",
    "permission-prompt-tool": "an MCP tool that answers when a tool needs permission, or stdio",
    "permission-prompts": "who answers when a tool needs permission: host or none",
    "print": "answer once, and end",
    "replay-user-messages": "repeat the messages of the user in the output",
    "resume": "id of a session to continue",
    "resume-session-at": "with --resume: uuid of the last message to keep",
    "session-id": "uuid for the new session",
    "session-mirror": "report what is written to the session, for a store",
    "setting-sources": "which settings files to read: user, project, local",
    "settings": "settings: a file, or JSON text",
    "strict-mcp-config": "use no MCP servers but those of --mcp-config",
    "system-prompt": "text in place of the system prompt",
    "system-prompt-file": "the same, from a file",
    "system-prompt-snapshot": "a system prompt that an earlier run has reported",
    "thinking": "whether the model thinks: adaptive or disabled",
    "thinking-display": "how much of the thinking is shown",
    "tools": "which built-in tools exist; default for all",
    "verbose": "needed with --output-format stream-json",
    "version": "show the version",
}
_VALUE_HINTS: Final = {
    FlagForm.SWITCH: "",
    FlagForm.VALUE: " <value>",
    FlagForm.LIST: " <values...>",
    FlagForm.OPTIONAL: " [value]",
}


def make_help_page() -> str:
    """Make the help page: every flag with a line about it."""
    names = sorted(name for name in FLAGS if name not in IGNORED_FLAGS)
    heads = {name: f"  --{name}{_VALUE_HINTS[FLAGS[name]]}" for name in names}
    width = max(map(len, heads.values())) + 2
    unused = " ".join(f"--{name}" for name in sorted(IGNORED_FLAGS))
    return (
        "Usage: pilothouse-agent --print [options] [prompt]\n\n"
        "An agent over the Messages API that takes the flags of Claude Code and speaks its stream-json.\n\n"
        "Options:\n" + "\n".join(f"{heads[name]:<{width}}{FLAG_HELP[name]}" for name in names) + "\n\n"
        "Taken, and without effect:\n"
        + textwrap.fill(unused, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        + "\n"
    )


PERMISSION_MODES: Final = ("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_THINKING: Final = ("enabled", "adaptive", "disabled")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "effort": _EFFORTS,
    "input-format": ("text", "stream-json"),
    "output-format": ("text", "json", "stream-json"),
    "permission-mode": PERMISSION_MODES,
    "permission-prompts": ("host", "none"),
    "thinking": _THINKING,
}
SETTING_SOURCES: Final = ("user", "project", "local")


class EngineArguments(Struct, frozen=True, kw_only=True):
    """The parsed and checked command line of the engine."""

    prompt: str | None = None
    input_format: str = "text"
    output_format: str = "text"
    model: str | None = None
    fallback_models: tuple[str, ...] = ()
    effort: str | None = None
    betas: tuple[str, ...] = ()
    thinking: str | None = None
    thinking_tokens: int | None = None
    thinking_display: str | None = None
    max_turns: int | None = None
    max_budget_usd: float | None = None
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    allowed: tuple[str, ...] = ()
    disallowed: tuple[str, ...] = ()
    permission_mode: str | None = None
    may_bypass: bool = False
    prompt_tool: str | None = None
    nobody_asked: bool = False
    add_dirs: tuple[str, ...] = ()
    json_schema: JsonObject | None = None
    partial_messages: bool = False
    replay_user_messages: bool = False
    session_mirror: bool = False
    resume: str | None = None
    resume_at: str | None = None
    continue_latest: bool = False
    fork: bool = False
    session_id: str | None = None
    persists: bool = True
    title: str | None = None
    settings: JsonObject = field(default_factory=dict[str, Any])
    setting_sources: tuple[str, ...] = SETTING_SOURCES
    mcp_servers: JsonObject = field(default_factory=dict[str, Any])
    is_bare: bool = False
    has_commands: bool = True
    ignored_flags: tuple[str, ...] = ()


def parse_arguments(argv: Sequence[str], cwd: Path, files: Sequence[PrivateFile] = ()) -> EngineArguments:
    """Parse and check a command line.

    Args:
        argv: the arguments after the program.
        cwd: base of relative paths.
        files: values passed as files instead of arguments.

    Raises:
        FlagError: the CLI would end with a message and exit code 1.
    """
    line = parse_command_line(argv, {file.flag: file.content for file in files})
    _check_choices(line)
    if line.text("input-format") == "stream-json" and line.text("output-format") != "stream-json":
        raise FlagError("Error: --input-format=stream-json requires output-format=stream-json.")
    if line.text("output-format") == "stream-json" and not line.has("verbose"):
        raise FlagError("Error: When using --print, --output-format=stream-json requires --verbose")
    return EngineArguments(
        prompt=" ".join(line.words) if line.words else None,
        input_format=line.text("input-format") or "text",
        output_format=line.text("output-format") or "text",
        **_read_model_flags(line),
        **_read_prompt_flags(line, cwd),
        **_read_permission_flags(line),
        **_read_session_flags(line),
        add_dirs=tuple(str(cwd / _decode_text(path)) for path in line.values.get("add-dir", ())),
        json_schema=_read_schema(line),
        partial_messages=line.has("include-partial-messages"),
        replay_user_messages=line.has("replay-user-messages"),
        session_mirror=line.has("session-mirror"),
        settings=_read_json_or_file(line.last("settings"), cwd, "Settings"),
        setting_sources=_read_sources(line),
        mcp_servers=_read_mcp_servers(line, cwd),
        is_bare=line.has("bare"),
        has_commands=not line.has("disable-slash-commands"),
        ignored_flags=tuple(sorted(IGNORED_FLAGS.intersection(line.values))),
    )


def _check_choices(line: CommandLine) -> None:
    for flag, choices in _CHOICES.items():
        value = line.text(flag)
        if value is not None and value not in choices:
            raise FlagError(
                f"error: option '--{flag} <value>' argument '{value}' is invalid. "
                f"Allowed choices are {', '.join(choices)}."
            )


def _read_model_flags(line: CommandLine) -> JsonObject:
    return {
        "model": line.text("model"),
        "fallback_models": line.names("fallback-model") or (),
        "effort": line.text("effort"),
        "betas": line.names("betas") or (),
        "thinking": line.text("thinking"),
        "thinking_tokens": _read_number(line, "max-thinking-tokens", int, 0),
        "thinking_display": line.text("thinking-display"),
        "max_turns": _read_number(line, "max-turns", int, 1),
        "max_budget_usd": _read_number(line, "max-budget-usd", float, 0.0),
    }


def _read_prompt_flags(line: CommandLine, cwd: Path) -> JsonObject:
    return {
        name.replace("-", "_"): line.text(name) if line.has(name) else _read_file(line.last(f"{name}-file"), cwd)
        for name in ("system-prompt", "append-system-prompt")
    }


def _read_permission_flags(line: CommandLine) -> JsonObject:
    skip = line.has("dangerously-skip-permissions")
    mode = "bypassPermissions" if skip else line.text("permission-mode")
    return {
        "tools": line.names("tools"),
        "allowed": line.names("allowedTools") or (),
        "disallowed": line.names("disallowedTools") or (),
        "permission_mode": "default" if mode == "manual" else mode,
        "may_bypass": skip or line.has("allow-dangerously-skip-permissions") or mode == "bypassPermissions",
        "prompt_tool": line.text("permission-prompt-tool"),
        "nobody_asked": line.text("permission-prompts") == "none",
    }


def _read_session_flags(line: CommandLine) -> JsonObject:
    given = line.text("session-id")
    if given is not None and not is_session_id(given):
        raise FlagError("Error: Invalid session ID. Must be a valid UUID.")
    if given is not None and (line.has("resume") or line.has("continue")) and not line.has("fork-session"):
        raise FlagError("Error: --session-id can only be used with --continue or --resume if --fork-session is given.")
    if line.has("resume") and not line.text("resume"):
        raise FlagError("Error: --resume requires a session ID when used with --print")
    return {
        "resume": line.text("resume"),
        "resume_at": line.text("resume-session-at"),
        "continue_latest": line.has("continue"),
        "fork": line.has("fork-session"),
        "session_id": given,
        "persists": not line.has("no-session-persistence"),
        "title": line.text("name"),
    }


def _read_number(line: CommandLine, flag: str, kind: type[Any], minimum: float) -> Any:
    text = line.text(flag)
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= minimum:
        raise FlagError(f"error: option '--{flag} <value>' argument '{text}' is invalid.")
    return value


def _read_file(value: str | bytes | None, cwd: Path) -> str | None:
    if value is None or isinstance(value, bytes):
        return None if value is None else _decode_text(value)
    try:
        return (cwd / value).read_text("utf-8")
    except OSError as error:
        raise FlagError(f"Error: {error.strerror or error}: {value}") from error


def _read_json_or_file(value: str | bytes | None, cwd: Path, what: str) -> JsonObject:
    """Read JSON text, or the file at a path; as in the CLI, a value that does not start with `{` is a path."""
    if value is None:
        return {}
    text: str | None = _decode_text(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        path = cwd / value
        if not path.is_file():
            raise FlagError(f"Error: {what} file not found: {path}")
        text = _read_file(value, cwd)
    try:
        found = json.loads(text or "")
    except ValueError as error:
        raise FlagError(f"Error: {what}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FlagError(f"Error: {what}: not a JSON object")
    return cast("JsonObject", found)


def _read_schema(line: CommandLine) -> JsonObject | None:
    text = line.text("json-schema")
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FlagError(f"Error: --json-schema is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise FlagError("Error: --json-schema must be a JSON object")
    return cast("JsonObject", found)


def _read_sources(line: CommandLine) -> tuple[str, ...]:
    names = line.names("setting-sources")
    if names is None:
        return SETTING_SOURCES
    unknown = [name for name in names if name not in SETTING_SOURCES]
    if unknown:
        raise FlagError(f"Error: Invalid setting source: {unknown[0]}. Valid options are: {', '.join(SETTING_SOURCES)}")
    return names


def _read_mcp_servers(line: CommandLine, cwd: Path) -> JsonObject:
    found: JsonObject = {}
    for value in line.values.get("mcp-config", ()):
        config = _read_json_or_file(value, cwd, "MCP config")
        servers = config.get("mcpServers")
        if not isinstance(servers, dict):
            raise FlagError("Error: Invalid MCP configuration: mcpServers is missing")
        found |= cast("JsonObject", servers)
    return found


USED_KEYS: Final = frozenset({"$schema", "permissions", "env", "model", "effortLevel"})
_GRANTING_KEYS: Final = ("allow", "additionalDirectories", "defaultMode")
MEMORY_FILES: Final = ("CLAUDE.md", "CLAUDE.local.md")
MEMORY_BYTES: Final = 256 * 1024
"""Size limit of one CLAUDE.md; the rest is cut off."""


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
_STEERING_SUFFIXES: Final = (
    "_BASE_URL",
    "_CA_BUNDLE",
    "_CERT_FILE",
    "_EXTRA_CA_CERTS",
    "_JAVA_OPTIONS",
    "_TOOL_OPTIONS",
)


class EngineSettings(Struct):
    """The merged settings of all sources.

    Attributes:
        allow: permission rules that allow.
        ask: permission rules that require a permission request.
        deny: permission rules that deny.
        directories: additional directories.
        permission_mode: the initial permission mode of a session.
        env: variables for commands, over those of the process. The API client does not use them.
        unused_keys: keys that have no effect here.
        problems: files that could not be read, and settings without effect.
    """

    allow: list[str] = field(default_factory=list[str])
    ask: list[str] = field(default_factory=list[str])
    deny: list[str] = field(default_factory=list[str])
    directories: list[str] = field(default_factory=list[str])
    permission_mode: str | None = None
    model: str | None = None
    effort: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    unused_keys: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])

    def add_source(self, values: Mapping[str, Any], name: str, *, trusted: bool = True) -> None:
        """Add one source; later ones override earlier ones.

        Args:
            values: the settings.
            name: name of the source, for `problems`.
            trusted: whether the source may grant permissions. Otherwise it may only deny, ask, and choose model and
                effort.
        """
        permissions: Mapping[str, Any] = as_object(values.get("permissions"))
        self.ask += _get_texts(permissions.get("ask"))
        self.deny += _get_texts(permissions.get("deny"))
        self.model = _get_text(values, "model") or self.model
        self.effort = _get_text(values, "effortLevel") or self.effort
        self.unused_keys |= set(values) - USED_KEYS
        if trusted:
            self._add_granted(permissions, as_object(values.get("env")), name)
            return
        without = [f"permissions.{key}" for key in _GRANTING_KEYS if permissions.get(key)]
        without += ["env"] if values.get("env") else []
        if without:
            self.problems.append(
                f"{name}: {', '.join(without)} without effect: the program does not trust the directory"
            )

    def _add_granted(self, permissions: Mapping[str, Any], env: Mapping[str, Any], name: str) -> None:
        self.allow += _get_texts(permissions.get("allow"))
        self.directories += _get_texts(permissions.get("additionalDirectories"))
        self.permission_mode = _get_text(permissions, "defaultMode") or self.permission_mode
        steering = [variable for variable in env if is_steering_variable(variable)]
        self.env |= {variable: str(value) for variable, value in env.items() if variable not in steering}
        if steering:
            problem = (
                f"{name}: env: {', '.join(sorted(steering))} without effect: give such variables to the program itself"
            )
            self.problems.append(problem)


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
        if source in arguments.setting_sources and not arguments.is_bare:
            _read_settings_file(
                path,
                found,
                trusted=path == files["user"] or is_trusted_directory(cwd) or is_trusted_in_process(str(path)),
            )
    found.add_source(arguments.settings, "--settings")
    found.allow += arguments.allowed
    found.deny += arguments.disallowed
    found.directories += arguments.add_dirs
    found.permission_mode = arguments.permission_mode or found.permission_mode
    return found


def _read_settings_file(path: Path, found: EngineSettings, *, trusted: bool) -> None:
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        found.problems.append(f"{path}: {error}")
        return
    found.add_source(as_object(settings), str(path), trusted=trusted)


def read_memory(sources: Sequence[str], cwd: Path, config_dir: Path) -> list[tuple[Path, str]]:
    """Read CLAUDE.md: the user's, and those of the directory and its parents, from the top down."""
    own = config_dir / MEMORY_FILES[0]
    return [
        (path, text)
        for path in _find_memory_files(sources, cwd, config_dir)
        if (path == own or _is_inside_tree(path, cwd)) and (text := _read_memory_file(path))
    ]


def _find_memory_files(sources: Sequence[str], cwd: Path, config_dir: Path) -> Iterator[Path]:
    if "user" in sources:
        yield config_dir / MEMORY_FILES[0]
    for folder in reversed((cwd, *cwd.parents)) if "project" in sources else ():
        yield folder / MEMORY_FILES[0]
    if "local" in sources:
        yield cwd / MEMORY_FILES[1]


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
