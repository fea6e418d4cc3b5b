"""From `Options` and a prompt to an `Invocation`. Pure: the environment to start from is an argument.

Owns what the command line of the child looks like. Every value is bound to its flag with `=`, so that no value can
become a flag; what is long or may be secret never reaches the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from pilothouse.errors import OptionsError
from pilothouse.options.derived import effective
from pilothouse.options.invocation import ChildEnvironment, Handshake, Invocation, OwnEnvironment, PrivateFile
from pilothouse.options.options import Options
from pilothouse.options.table import TABLE
from pilothouse.options.targets import (
    Config,
    EnvSwitch,
    EnvVar,
    Flag,
    Initialize,
    Json,
    Merged,
    Names,
    Parts,
    PathFlag,
    Repeated,
    Sdk,
    Switch,
    SwitchOrFlag,
    Target,
    Text,
)

ENTRYPOINT = "sdk-pilothouse"
COMMON_ARGS = ("--output-format", "stream-json", "--verbose")
STDIN_ARGS = ("--print", "--input-format", "stream-json")

# One argument may be 131,072 bytes on Linux and a whole Windows command line 32,767 characters; what is longer than
# this goes through a file or the handshake, if it can.
INLINE_BYTES = 8 * 1024
ARGUMENT_BYTES = 128 * 1024 - 1
JOINED_BYTES = 64 * 1024
"""A list is joined into one argument up to this length."""

_PLACES = {name: place for place, name in enumerate(TABLE)}

# Set by a Claude Code that runs us; a child that sees it refuses to start or believes itself nested.
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")


class _Draft:
    def __init__(self, *, handshake: bool) -> None:
        self.argv: list[str] = []
        self.files: list[PrivateFile] = []
        self.initialize: dict[str, Any] = {}
        self.handshake = handshake

    def flag(self, option: str, name: str, value: str) -> None:
        argument = f"--{name}={value}"
        size = _size(argument)
        if size > ARGUMENT_BYTES:
            raise OptionsError(
                f"option {option!r}: {size:,} bytes do not fit into one argument (at most {ARGUMENT_BYTES:,})",
                option=option,
            )
        self.argv.append(argument)

    def say(self, option: str, key: str, value: Any) -> None:
        if not self.handshake:
            raise OptionsError(
                f"option {option!r}: this value travels in the handshake, which the argv form does not have; "
                "use prompt_via='stdin'",
                option=option,
            )
        self.initialize[key] = value


def render(options: Options, environ: Mapping[str, str], *, prompt: str | None = None) -> Invocation:
    """Render `options` for a child that starts from `environ`.

    Args:
        options: the settings.
        environ: environment to start from, used when `inherit_env` is set.
        prompt: the prompt, only for the argv form; None when it travels through stdin.

    Raises:
        OptionsError: a value does not fit the form that was asked for.
    """
    draft = _drafted(options, handshake=prompt is None)
    changes = _env_changes(options)
    head = (*COMMON_ARGS, *STDIN_ARGS) if prompt is None else COMMON_ARGS
    return Invocation(
        cli=options.cli,
        argv=(*head, *draft.argv),
        tail=() if prompt is None else _tail(prompt),
        env=_child_env(options, environ, changes),
        cwd=None if options.cwd is None else _at_home(options.cwd),
        initialize=Handshake(draft.initialize) if draft.handshake else None,
        files=tuple(draft.files),
        on_stderr=options.stderr,
        user=options.user,
        isolated=options.isolation is not None,
        own_env=OwnEnvironment(changes),
    )


def cli_args(options: Options) -> list[str]:
    """Arguments for the options that were set; those that are in every invocation left out. (L15, E48)"""
    draft = _drafted(options, handshake=True)
    return [*draft.argv, *(f"--{file.flag}=<private file>" for file in draft.files)]


def env_of(options: Options) -> dict[str, str]:
    """The environment variables that options set. (L16)"""
    changes = _env_changes(options)
    return {name: value for name, value in changes.items() if value is not None}


def child_env(options: Options, environ: Mapping[str, str]) -> ChildEnvironment:
    """The complete environment of the child. (L16, L26, E65, E66)"""
    return _child_env(options, environ, _env_changes(options))


def _child_env(options: Options, environ: Mapping[str, str], changes: Mapping[str, str | None]) -> ChildEnvironment:
    env = ChildEnvironment(environ if options.inherit_env else {})
    for name in _NOT_INHERITED:
        env.pop(name, None)
    if options.isolation is not None:
        from pilothouse.options.isolation import kept  # few children are

        env = ChildEnvironment(kept(env))
    env["CLAUDE_CODE_ENTRYPOINT"] = ENTRYPOINT
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def _env_changes(options: Options) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for _, target, value in _pieces(options.as_dict()):
        if isinstance(target, EnvVar):
            changes[target.name] = _variable(target, value)
        elif isinstance(target, EnvSwitch):
            changes[target.name] = target.value if value == target.on else None
    return {**changes, **(options.env or {})}


def _variable(target: EnvVar, value: Any) -> str | None:
    if value is None:
        return None
    return _at_home(value) if target.path else _number(value)


def _drafted(options: Options, *, handshake: bool) -> _Draft:
    draft = _Draft(handshake=handshake)
    for name, target, value in _pieces(effective(options.as_dict())):
        _RENDERERS[type(target)](draft, name, target, value)
    for flag, value in (options.extra_args or {}).items():
        if value is None:
            draft.argv.append(f"--{flag}")
        else:
            draft.flag("extra_args", flag, value)
    return draft


def _pieces(values: Mapping[str, Any]) -> Iterator[tuple[str, Target, Any]]:
    """What goes where, in the order of the table, whatever the order in which it was set."""
    for name in sorted(values, key=_PLACES.__getitem__):  # few of them are set
        value, target = values[name], TABLE[name].target
        if value is None:
            continue
        if isinstance(target, Parts):
            for part, piece in target.split(value):
                yield name, part, piece
        else:
            yield name, target, value


def _tail(prompt: str) -> tuple[str, ...]:
    size = _size(prompt)
    if size > ARGUMENT_BYTES:
        raise OptionsError(
            f"option 'prompt_via': a prompt of {size:,} bytes does not fit into one argument "
            f"(at most {ARGUMENT_BYTES:,}); leave it at 'stdin'",
            option="prompt_via",
        )
    # The prompt is last and positional (L25); "--" only where it would read as a flag.
    return ("--print", "--", prompt) if prompt.startswith("-") else ("--print", prompt)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _at_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - Path's own raises when there is no home


def _number(value: Any) -> str:
    # 2.0 reads as 2 and 0.001 stays 0.001 (L11); repr would give 1e-05, which the CLI reads as well.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _flag(draft: _Draft, name: str, target: Any, value: Any) -> None:
    draft.flag(name, target.name, ",".join(cast("list[str]", value)) if isinstance(value, list) else _number(value))


def _names(draft: _Draft, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        draft.flag(name, target.name, value)
        return
    joined: list[str] = []
    size = 0
    for item in value:
        if joined and size + _size(item) >= JOINED_BYTES:
            draft.flag(name, target.name, ",".join(joined))
            joined, size = [], 0
        joined.append(item)
        size += _size(item) + 1
    draft.flag(name, target.name, ",".join(joined))


def _path_flag(draft: _Draft, name: str, target: Any, value: str) -> None:
    draft.flag(name, target.name, _at_home(value))


def _repeated(draft: _Draft, name: str, target: Any, value: list[str]) -> None:
    for item in value:
        draft.flag(name, target.name, _at_home(item))


def _switch(draft: _Draft, name: str, target: Any, value: bool) -> None:
    if value == target.on:
        draft.argv.append(f"--{target.name}")


def _switch_or_flag(draft: _Draft, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        draft.flag(name, target.name, value)
    elif value:
        draft.argv.append(f"--{target.name}")


def _text(draft: _Draft, name: str, target: Any, value: str) -> None:
    if _size(value) <= INLINE_BYTES:
        draft.flag(name, target.name, value)
    elif target.file_flag:
        draft.files.append(PrivateFile(target.file_flag, ".txt", value.encode()))
    else:
        draft.say(name, target.key, value)


def _config(draft: _Draft, name: str, target: Any, value: Any) -> None:
    if isinstance(value, str):
        if _size(value) <= INLINE_BYTES and not value.lstrip().startswith("{"):
            draft.flag(name, target.name, _at_home(value))
        else:
            draft.files.append(PrivateFile(target.name, ".json", value.encode()))
        return
    body = {target.wrap: value} if target.wrap else value
    draft.files.append(PrivateFile(target.name, ".json", _encode(name, body)))


def _json(draft: _Draft, name: str, target: Any, value: Any) -> None:
    content = _encode(name, value)
    if target.private and not draft.handshake and not target.switches:
        draft.files.append(PrivateFile(target.name, ".json", content))
    elif len(content) <= INLINE_BYTES and not target.private:
        draft.flag(name, target.name, content.decode())
    else:
        draft.say(name, target.key, msgspec.json.decode(content))
        draft.argv.extend(f"--{switch}" for switch in target.switches)


def _initialize(draft: _Draft, name: str, target: Any, value: Any) -> None:
    if value is not False:  # which is what the CLI does unasked
        draft.say(name, target.key, value)


def _encode(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"option {name!r} cannot be written as JSON: {error}", option=name) from error


def _nothing(draft: _Draft, name: str, target: Any, value: Any) -> None:
    """Environment variables and pilothouse's own options have no place on the command line."""


_RENDERERS: dict[type, Callable[[_Draft, str, Any, Any], None]] = {
    Config: _config,
    EnvSwitch: _nothing,
    EnvVar: _nothing,
    Flag: _flag,
    Initialize: _initialize,
    Json: _json,
    Merged: _nothing,
    Names: _names,
    PathFlag: _path_flag,
    Repeated: _repeated,
    Sdk: _nothing,
    Switch: _switch,
    SwitchOrFlag: _switch_or_flag,
    Text: _text,
}
