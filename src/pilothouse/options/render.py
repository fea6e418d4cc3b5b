"""From `Options` and a prompt to an `Invocation`. Pure: the environment to start from is an argument.

Owns what the command line of the child looks like. Every value is bound to its flag with `=`, so that no value can
become a flag; what is long or may be secret never reaches the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from pilothouse.errors import OptionsError
from pilothouse.options.invocation import Invocation, PrivateFile
from pilothouse.options.options import Options
from pilothouse.options.table import TABLE, Config, EnvVar, Flag, Json, Repeated, Sdk, Switch, Target, Text

ENTRYPOINT = "sdk-pilothouse"
COMMON_ARGS = ("--output-format", "stream-json", "--verbose")
STDIN_ARGS = ("--print", "--input-format", "stream-json")

# One argument may be 131,072 bytes on Linux and a whole Windows command line 32,767 characters; what is longer than
# this goes through a file or the handshake.
INLINE_BYTES = 8 * 1024
ARGV_PROMPT_BYTES = 128 * 1024 - 1

# Set by a Claude Code that runs us; a child that sees it refuses to start or believes itself nested.
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")


class _Draft:
    def __init__(self, *, handshake: bool) -> None:
        self.argv: list[str] = []
        self.files: list[PrivateFile] = []
        self.initialize: dict[str, Any] = {}
        self.handshake = handshake


_VARIABLES = {name: option.target.name for name, option in TABLE.items() if isinstance(option.target, EnvVar)}


def render(options: Options, environ: Mapping[str, str], *, prompt: str | None = None) -> Invocation:
    """Render `options` for a child that starts from `environ`.

    Args:
        options: the settings.
        environ: environment to start from, used when `inherit_env` is set.
        prompt: the prompt, only for the argv form; None when it travels through stdin.

    Raises:
        OptionsError: a value does not fit the form that was asked for.
    """
    draft = _Draft(handshake=prompt is None)
    values = options.as_dict()
    for name, option in TABLE.items():  # the order of the table, whatever the order in which they were set
        value = values.get(name)
        if value is not None:
            _RENDERERS[type(option.target)](draft, name, option.target, value)
    if not options.persist_session:
        draft.argv.append("--no-session-persistence")
    for flag, value in (options.extra_args or {}).items():
        draft.argv.append(f"--{flag}" if value is None else f"--{flag}={value}")
    head = (*COMMON_ARGS, *STDIN_ARGS) if prompt is None else COMMON_ARGS
    return Invocation(
        cli=options.cli,
        argv=(*head, *draft.argv),
        tail=() if prompt is None else _tail(prompt),
        env=child_env(options, environ),
        cwd=None if options.cwd is None else _at_home(options.cwd),
        initialize=draft.initialize if draft.handshake else None,
        files=tuple(draft.files),
        on_stderr=options.stderr,
    )


def child_env(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """The complete environment of the child. (L16, L26, E65, E66)"""
    env = {k: v for k, v in environ.items() if k not in _NOT_INHERITED} if options.inherit_env else {}
    env["CLAUDE_CODE_ENTRYPOINT"] = ENTRYPOINT
    values = options.as_dict()
    for name, variable in _VARIABLES.items():
        if values.get(name) is not None:
            env[variable] = values[name]
    for key, value in (options.env or {}).items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env


def _tail(prompt: str) -> tuple[str, ...]:
    size = len(prompt.encode())
    if size > ARGV_PROMPT_BYTES:
        raise OptionsError(
            f"option 'prompt_via': a prompt of {size:,} bytes does not fit into one argument "
            f"(at most {ARGV_PROMPT_BYTES:,}); leave it at 'stdin'",
            option="prompt_via",
        )
    # The prompt is last and positional (L25); "--" only where it would read as a flag.
    return ("--print", "--", prompt) if prompt.startswith("-") else ("--print", prompt)


def _flag(draft: _Draft, name: str, target: Target, value: Any) -> None:
    text = ",".join(cast("list[str]", value)) if isinstance(value, list) else _number(value)
    draft.argv.append(f"--{cast('Flag', target).name}={text}")


def _at_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - Path's own raises when there is no home


def _number(value: Any) -> str:
    # 2.0 reads as 2 and 0.001 stays 0.001 (L11); repr would give 1e-05, which the CLI reads as well.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _switch(draft: _Draft, name: str, target: Target, value: Any) -> None:
    if value:
        draft.argv.append(f"--{cast('Switch', target).name}")


def _repeated(draft: _Draft, name: str, target: Target, value: Any) -> None:
    draft.argv.extend(f"--{cast('Repeated', target).name}={_at_home(item)}" for item in value)


def _text(draft: _Draft, name: str, target: Target, value: str) -> None:
    target = cast("Text", target)
    content = value.encode()
    if len(content) <= INLINE_BYTES:
        draft.argv.append(f"--{target.name}={value}")
    else:
        draft.files.append(PrivateFile(target.file_flag, ".txt", content))


def _config(draft: _Draft, name: str, target: Target, value: Any) -> None:
    target = cast("Config", target)
    if isinstance(value, str):
        if len(value.encode()) <= INLINE_BYTES and not value.lstrip().startswith("{"):
            draft.argv.append(f"--{target.name}={value}")
        else:
            draft.files.append(PrivateFile(target.name, ".json", value.encode()))
        return
    body = {target.wrap: value} if target.wrap and target.wrap not in value else value
    draft.files.append(PrivateFile(target.name, ".json", _encode(name, body)))


def _json(draft: _Draft, name: str, target: Target, value: Any) -> None:
    target = cast("Json", target)
    content = _encode(name, value)
    if len(content) <= INLINE_BYTES:
        draft.argv.append(f"--{target.name}={content.decode()}")
    elif draft.handshake:
        draft.initialize[target.key] = msgspec.json.decode(content)
    else:
        raise OptionsError(
            f"option {name!r}: {len(content):,} bytes are too long for the argv form; use prompt_via='stdin'",
            option=name,
        )


def _encode(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"option {name!r} cannot be written as JSON: {error}", option=name) from error


def _nothing(draft: _Draft, name: str, target: Target, value: Any) -> None:
    """Environment variables and pilothouse's own options have no place on the command line."""


_RENDERERS: dict[type[Target], Callable[[_Draft, str, Target, Any], None]] = {
    Flag: _flag,
    Switch: _switch,
    Repeated: _repeated,
    Text: _text,
    Config: _config,
    Json: _json,
    EnvVar: _nothing,
    Sdk: _nothing,
}
