"""What a command line asks of the engine: flags become settings, and files are read. Blocking, short.

Owns what each flag means. Knows nothing of a turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct, field

from pilothouse.native.flags import WITHOUT_EFFECT, CommandLine, FlagError, read
from pilothouse.native.shapes import JSON
from pilothouse.options import PrivateFile
from pilothouse.transcripts.places import is_session_id

MODES: Final = ("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_THINKING: Final = ("enabled", "adaptive", "disabled")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "effort": _EFFORTS,
    "input-format": ("text", "stream-json"),
    "output-format": ("text", "json", "stream-json"),
    "permission-mode": MODES,
    "permission-prompts": ("host", "none"),
    "thinking": _THINKING,
}
SOURCES: Final = ("user", "project", "local")


class Launch(Struct, frozen=True, kw_only=True):
    """What the engine was told when it was started."""

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
    json_schema: JSON | None = None
    partial: bool = False
    replay: bool = False
    mirror: bool = False
    resume: str | None = None
    resume_at: str | None = None
    continue_latest: bool = False
    fork: bool = False
    session_id: str | None = None
    persists: bool = True
    title: str | None = None
    settings: JSON = field(default_factory=dict[str, Any])
    setting_sources: tuple[str, ...] = SOURCES
    mcp_servers: JSON = field(default_factory=dict[str, Any])
    bare: bool = False
    commands: bool = True
    without_effect: tuple[str, ...] = ()


def launch_of(argv: Sequence[str], cwd: Path, files: Sequence[PrivateFile] = ()) -> Launch:
    """Read a command line.

    Args:
        argv: the arguments after the program.
        cwd: where relative paths start.
        files: values that travel beside it.

    Raises:
        FlagError: the CLI would end with a message and exit code 1.
    """
    line = read(argv, {file.flag: file.content for file in files})
    _check_choices(line)
    if line.text("input-format") == "stream-json" and line.text("output-format") != "stream-json":
        raise FlagError("Error: --input-format=stream-json requires output-format=stream-json.")
    if line.text("output-format") == "stream-json" and not line.has("verbose"):
        raise FlagError("Error: When using --print, --output-format=stream-json requires --verbose")
    return Launch(
        prompt=" ".join(line.words) if line.words else None,
        input_format=line.text("input-format") or "text",
        output_format=line.text("output-format") or "text",
        **_about_model(line),
        **_about_prompts(line, cwd),
        **_about_permissions(line),
        **_about_session(line),
        add_dirs=tuple(str(cwd / _text(path)) for path in line.values.get("add-dir", ())),
        json_schema=_schema(line),
        partial=line.has("include-partial-messages"),
        replay=line.has("replay-user-messages"),
        mirror=line.has("session-mirror"),
        settings=_json_or_file(line.last("settings"), cwd, "Settings"),
        setting_sources=_sources(line),
        mcp_servers=_servers(line, cwd),
        bare=line.has("bare"),
        commands=not line.has("disable-slash-commands"),
        without_effect=tuple(sorted(WITHOUT_EFFECT.intersection(line.values))),
    )


def _check_choices(line: CommandLine) -> None:
    for flag, choices in _CHOICES.items():
        value = line.text(flag)
        if value is not None and value not in choices:
            raise FlagError(
                f"error: option '--{flag} <value>' argument '{value}' is invalid. "
                f"Allowed choices are {', '.join(choices)}."
            )


def _about_model(line: CommandLine) -> JSON:
    return {
        "model": line.text("model"),
        "fallback_models": line.names("fallback-model") or (),
        "effort": line.text("effort"),
        "betas": line.names("betas") or (),
        "thinking": line.text("thinking"),
        "thinking_tokens": _number(line, "max-thinking-tokens", int, 0),
        "thinking_display": line.text("thinking-display"),
        "max_turns": _number(line, "max-turns", int, 1),
        "max_budget_usd": _number(line, "max-budget-usd", float, 0.0),
    }


def _about_prompts(line: CommandLine, cwd: Path) -> JSON:
    return {
        name.replace("-", "_"): line.text(name) if line.has(name) else _file(line.last(f"{name}-file"), cwd)
        for name in ("system-prompt", "append-system-prompt")
    }


def _about_permissions(line: CommandLine) -> JSON:
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


def _about_session(line: CommandLine) -> JSON:
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


def _number(line: CommandLine, flag: str, kind: type[Any], least: float) -> Any:
    text = line.text(flag)
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= least:
        raise FlagError(f"error: option '--{flag} <value>' argument '{text}' is invalid.")
    return value


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _file(value: str | bytes | None, cwd: Path) -> str | None:
    if value is None or isinstance(value, bytes):
        return None if value is None else _text(value)
    try:
        return (cwd / value).read_text("utf-8")
    except OSError as error:
        raise FlagError(f"Error: {error.strerror or error}: {value}") from error


def _json_or_file(value: str | bytes | None, cwd: Path, what: str) -> JSON:
    """JSON text, or the path of a file that holds it; as the CLI, which takes for a path what is no object."""
    if value is None:
        return {}
    text: str | None = _text(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        path = cwd / value
        if not path.is_file():
            raise FlagError(f"Error: {what} file not found: {path}")
        text = _file(value, cwd)
    try:
        found = json.loads(text or "")
    except ValueError as error:
        raise FlagError(f"Error: {what}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FlagError(f"Error: {what}: not a JSON object")
    return cast("JSON", found)


def _schema(line: CommandLine) -> JSON | None:
    text = line.text("json-schema")
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FlagError(f"Error: --json-schema is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise FlagError("Error: --json-schema must be a JSON object")
    return cast("JSON", found)


def _sources(line: CommandLine) -> tuple[str, ...]:
    names = line.names("setting-sources")
    if names is None:
        return SOURCES
    unknown = [name for name in names if name not in SOURCES]
    if unknown:
        raise FlagError(f"Error: Invalid setting source: {unknown[0]}. Valid options are: {', '.join(SOURCES)}")
    return names


def _servers(line: CommandLine, cwd: Path) -> JSON:
    found: JSON = {}
    for value in line.values.get("mcp-config", ()):
        config = _json_or_file(value, cwd, "MCP config")
        servers = config.get("mcpServers")
        if not isinstance(servers, dict):
            raise FlagError("Error: Invalid MCP configuration: mcpServers is missing")
        found |= cast("JSON", servers)
    return found
