"""The one table of options: name, type, default, documentation, and where each value goes.

Owns the list and what a valid value is. Validation, rendering, the docs and the command's flags read it; nothing
about an option is written anywhere else, except its static type in `settings.py`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct


class Flag(Struct, frozen=True):
    """One argument `--name=value`; lists are joined with commas."""

    name: str


class Switch(Struct, frozen=True):
    """`--name`, present when the value is true."""

    name: str


class Repeated(Struct, frozen=True):
    """`--name=value` once for each item."""

    name: str


class Text(Struct, frozen=True):
    """`--name=value` while it is short, else a private file passed as `--file_flag=path`."""

    name: str
    file_flag: str


class Config(Struct, frozen=True):
    """Text or a path goes as `--name=value`; a mapping, which may hold secrets, as a private JSON file.

    `wrap` is the key that a mapping is put under.
    """

    name: str
    wrap: str | None = None


class Json(Struct, frozen=True):
    """A JSON value: `--name={...}` while it is short, else the initialize request carries it under `key`."""

    name: str
    key: str


class EnvVar(Struct, frozen=True):
    """An environment variable of the child. Secrets only ever travel this way."""

    name: str


class Sdk(Struct, frozen=True):
    """Used by pilothouse itself; the CLI never sees it."""


Target = Flag | Switch | Repeated | Text | Config | Json | EnvVar | Sdk


class Kind(Struct, frozen=True):
    """What a valid value is: `expected` in words, `accepts` as a test, `clean` as the stored form."""

    expected: str
    accepts: Callable[[Any], bool]
    clean: Callable[[Any], Any] = lambda value: value


class Option(Struct, frozen=True):
    """One row of the table. `secret` values are never shown."""

    name: str
    kind: Kind
    target: Target
    doc: str
    default: Any = None
    secret: bool = False


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and not _has_surrogate(value)


def _has_surrogate(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN is no number


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of_text(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence | set | frozenset) and all(
        _is_text(item) for item in cast("Sequence[Any]", value)
    )


def _is_path(value: object) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    path = os.fspath(cast("str | os.PathLike[str]", value))
    return _is_text(path) and bool(path)


def _is_paths(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence) and all(_is_path(item) for item in cast("Sequence[Any]", value))


def _is_env(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_text(key) and key and "=" not in key and (item is None or _is_text(item))
        for key, item in cast("Mapping[Any, Any]", value).items()
    )


def _is_flag_name(value: Any) -> bool:
    return _is_text(value) and bool(value) and not value.startswith("-") and not any(c in "= \t\n" for c in value)


def _is_extra_args(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_flag_name(key) and (item is None or _is_text(item))
        for key, item in cast("Mapping[Any, Any]", value).items()
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value))


def _is_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value.lower()
    except ValueError:
        return False


def _as_paths(value: Sequence[Any]) -> list[str]:
    return [os.fspath(item) for item in value]


def _as_config(value: Any) -> Any:
    return dict(cast("Mapping[str, Any]", value)) if _is_mapping(value) else os.fspath(cast("str", value))


def _as_tools(value: Any) -> Any:
    return value if isinstance(value, str) else list(value)


def _choice(*names: str) -> Kind:
    return Kind("one of " + ", ".join(repr(n) for n in names), lambda value: value in names)


TEXT = Kind("text without NUL or lone surrogates", _is_text)
NAME = Kind("non-empty text", lambda v: _is_text(v) and bool(v.strip()))
BOOL = Kind("True or False", lambda v: isinstance(v, bool))
COUNT = Kind("a whole number of at least 1", lambda v: _is_int(v) and v >= 1)
NUMBER = Kind("a number greater than 0", lambda v: _is_number(v) and v > 0)
SECONDS = Kind("a number of seconds greater than 0", lambda v: _is_number(v) and v > 0)
NAMES = Kind("a list of text", _is_list_of_text, list)
PATH = Kind("a path", _is_path, os.fspath)
PATHS = Kind("a list of paths", _is_paths, _as_paths)
ENV = Kind("a mapping of variable names to text (None removes one)", _is_env, dict)
EXTRA = Kind("a mapping of flag names without dashes to text, or None for a bare flag", _is_extra_args, dict)
CALLABLE = Kind("a callable", callable)
MAPPING = Kind("a mapping with text keys", _is_mapping, dict)
CONFIG = Kind("a mapping, or a path or JSON text", lambda v: _is_mapping(v) or _is_path(v), _as_config)
UUID = Kind("a UUID", _is_uuid)
TOOLS = Kind("a list of tool names, or 'default'", lambda v: v == "default" or _is_list_of_text(v), _as_tools)
TRANSPORT = Kind("a Transport, or a callable that makes one", lambda v: callable(v) or hasattr(v, "receive"))

PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
SOURCES = ("user", "project", "local")


def _are_sources(value: Any) -> bool:
    return _is_list_of_text(value) and all(item in SOURCES for item in value)


SOURCE_LIST = Kind("a list of " + ", ".join(repr(name) for name in SOURCES), _are_sources, list)

DEFAULT_MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_CONTROL_TIMEOUT = 60.0  # seconds; the CLI answers in under a second, a cold disk may take ten

_ROWS = (
    # model
    Option("model", NAME, Flag("model"), "Model alias ('sonnet', 'opus', 'haiku') or full model id."),
    Option("fallback_model", NAME, Flag("fallback-model"), "Model to use while the first one is overloaded."),
    Option("effort", _choice(*EFFORTS), Flag("effort"), "How much effort the model puts into its answer."),
    Option("max_thinking_tokens", COUNT, Flag("max-thinking-tokens"), "Thinking budget, on models that have one."),
    Option("betas", NAMES, Flag("betas"), "Beta features of the API, such as 'context-1m-2025-08-07'."),
    # prompt
    Option(
        "system_prompt", TEXT, Text("system-prompt", "system-prompt-file"), "Replaces the system prompt of Claude Code."
    ),
    Option(
        "append_system_prompt",
        TEXT,
        Text("append-system-prompt", "append-system-prompt-file"),
        "Added to the end of the system prompt.",
    ),
    Option(
        "verbatim_prompts",
        BOOL,
        Sdk(),
        "Send prompts as written: no `@path` expansion and no `/command`.",
        default=False,
    ),
    Option(
        "prompt_via",
        _choice("stdin", "argv"),
        Sdk(),
        "How the prompt travels. 'argv' is the plain one-shot form: no control protocol, prompts of at most 128 KiB.",
        default="stdin",
    ),
    # tools and permissions
    Option("tools", TOOLS, Flag("tools"), "Which built-in tools exist; [] for none, 'default' for all."),
    Option("allowed_tools", NAMES, Flag("allowedTools"), "Tools that run without asking, such as 'Bash(git:*)'."),
    Option("disallowed_tools", NAMES, Flag("disallowedTools"), "Tools that may not be used."),
    Option(
        "permission_mode",
        _choice(*PERMISSION_MODES),
        Flag("permission-mode"),
        "What happens when a tool needs permission.",
    ),
    # limits
    Option("max_turns", COUNT, Flag("max-turns"), "Stop after this many turns of the model."),
    Option(
        "max_budget_usd", NUMBER, Flag("max-budget-usd"), "Stop when the estimated cost passes this many US dollars."
    ),
    Option("timeout", SECONDS, Sdk(), "Seconds until a query fails with QueryTimeout. No limit by default."),
    Option(
        "idle_timeout",
        SECONDS,
        Sdk(),
        "Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default.",
    ),
    Option(
        "control_timeout",
        SECONDS,
        Sdk(),
        "Seconds to wait for the answer to a control request, the handshake included.",
        default=DEFAULT_CONTROL_TIMEOUT,
    ),
    Option(
        "max_line_bytes",
        COUNT,
        Sdk(),
        "Longest line of output, in bytes; a longer one is skipped and reported.",
        default=DEFAULT_MAX_LINE_BYTES,
    ),
    # where it runs
    Option("cwd", PATH, Sdk(), "Working directory of the child. By default that of this process."),
    Option("add_dirs", PATHS, Repeated("add-dir"), "Further directories that tools may use."),
    Option(
        "cli",
        PATH,
        Sdk(),
        "Which `claude` to run: 'auto', 'bundled' (the copy that pilothouse keeps), 'global' (PATH), or a path.",
        default="auto",
    ),
    Option(
        "api_key", NAME, EnvVar("ANTHROPIC_API_KEY"), "API key; reaches the child through its environment.", secret=True
    ),
    Option("env", ENV, Sdk(), "Environment variables to set for the child; None removes one.", secret=True),
    Option("inherit_env", BOOL, Sdk(), "Start from the environment of this process.", default=True),
    Option("transport", TRANSPORT, Sdk(), "Another way to reach the peer than a local child process."),
    Option("stderr", CALLABLE, Sdk(), "Called with every line the child writes to standard error."),
    # configuration of the CLI
    Option("settings", CONFIG, Config("settings"), "Settings for the CLI: a mapping, a path, or JSON text."),
    Option(
        "setting_sources", SOURCE_LIST, Flag("setting-sources"), "Which settings files to load; [] for none of them."
    ),
    Option(
        "mcp_servers", CONFIG, Config("mcp-config", "mcpServers"), "MCP servers by name, or a path to a config file."
    ),
    Option(
        "strict_mcp_config",
        BOOL,
        Switch("strict-mcp-config"),
        "Use no MCP servers but those of `mcp_servers`.",
        default=False,
    ),
    Option(
        "agents",
        MAPPING,
        Json("agents", "agents"),
        "Sub-agents by name, each with its description, prompt, tools and model.",
    ),
    Option(
        "bare",
        BOOL,
        Switch("bare"),
        "Fastest start: no hooks, plugins, memory or login; needs an API key.",
        default=False,
    ),
    Option("extra_args", EXTRA, Sdk(), "Flags of the CLI that have no option here."),
    # conversation
    Option("resume", NAME, Flag("resume"), "Id of a session to continue."),
    Option(
        "continue_conversation",
        BOOL,
        Switch("continue"),
        "Continue the latest session of the directory.",
        default=False,
    ),
    Option(
        "fork_session",
        BOOL,
        Switch("fork-session"),
        "Resume into a new session and leave the old one as it was.",
        default=False,
    ),
    Option("session_id", UUID, Flag("session-id"), "Id for the new session."),
    Option("persist_session", BOOL, Sdk(), "Whether the CLI writes the session to disk.", default=True),
    # output
    Option("json_schema", MAPPING, Json("json-schema", "jsonSchema"), "JSON Schema that the answer must fit."),
    Option(
        "partial_messages",
        BOOL,
        Switch("include-partial-messages"),
        "Stream the answer while it is written, as StreamEvent messages.",
        default=False,
    ),
    Option("include_hook_events", BOOL, Switch("include-hook-events"), "Report hooks that run.", default=False),
)

TABLE: dict[str, Option] = {row.name: row for row in _ROWS}
"""Every option by name, in the order of the documentation."""
