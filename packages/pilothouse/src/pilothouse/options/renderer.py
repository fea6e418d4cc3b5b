"""Renders `Options` and a prompt to an `Invocation`: everything a transport needs to start the CLI.

Pure: the base environment is an argument. Every value is bound to its flag with `=`, so that no value can become a
flag; long values and possible secrets never reach the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from pilothouse.errors import OptionsError
from pilothouse.options.isolation import inherit_variables
from pilothouse.options.table import (
    TABLE,
    ConfigFlag,
    EnvSwitch,
    EnvVar,
    Flag,
    InitializeField,
    JsonFlag,
    ListFlag,
    PathFlag,
    RepeatedFlag,
    SplitTarget,
    Switch,
    SwitchOrFlag,
    Target,
    TextFlag,
)
from pilothouse.options.value_structs import encode_agents, encode_mcp_servers, encode_sandbox
from pilothouse.options.value_types import copy_value

if TYPE_CHECKING:
    from pilothouse.options.options import Options


class PrivateFile(Struct, frozen=True):
    """A value too large or too secret for the command line.

    The transport writes `content` to a file that only the user can read, passes it as `--{flag}={path}`, and removes
    the file when the child has ended.
    """

    flag: str
    suffix: str
    content: bytes

    def __repr__(self) -> str:
        return f"PrivateFile({self.flag!r}, {len(self.content)} bytes)"


class ChildEnvironment(dict[str, str]):
    """The environment of a child. Its repr shows no value: error reporters print the variables of every frame."""

    def __repr__(self) -> str:
        return f"<environment of {len(self)} variables>"


class ExplicitEnvironment(dict[str, str | None]):
    """The variables that the settings name. Its repr shows no value either."""

    def __repr__(self) -> str:
        return f"<{len(self)} variables>"


class InitializeBody(dict[str, Any]):
    """The body of the initialize request, which may hold keys. Its repr shows only the names of its fields."""

    def __repr__(self) -> str:
        return f"<handshake with {', '.join(self) or 'no fields'}>"


class InitializeLine(bytes):
    """The line of the initialize request. Its repr shows only its length."""

    def __repr__(self) -> str:
        return f"<handshake of {len(self)} bytes>"


class IsolatedHome(Protocol):
    """A home directory for children, made when the first of them starts and removed by its owner."""

    def ensure(self, owner: tuple[int, int] | None = None) -> str:
        """Make the directory for this user and group, if it does not exist yet; return its path. Blocking."""
        ...


class Invocation(Struct, frozen=True):
    """How to start the child, and what to send first.

    Args:
        cli: which CLI: "auto", "bundled", "global" or a path.
        argv: arguments after the executable.
        env: the complete environment of the child. It may hold keys, so it is never shown.
        cwd: its working directory; None: that of this process.
        initialize: body of the initialize request; None: no handshake (argv form). It is the first line that the child
            gets, in the bytes that a new `protocol.Connection` makes of it, so that a transport may know it before.
        files: values that travel in private files.
        trailing_args: arguments that must stay last (the prompt of the argv form), after the flags of `files`.
        on_stderr: called with every line of standard error, keys removed.
        user: user of this system to run the child as; None: that of this process.
        is_isolated: give the child a HOME of its own, which is removed with the child.
        home: that HOME, if several children share it; None: the transport makes and removes one.
        has_generated_session_id: the session id in `argv` is generated: a child that already runs may have another.
        keep_detached: processes that the child has detached outlive it.
        explicit_env: those variables of `env` that the settings name; a None value: not to be inherited. No other
            variable of `env` may leave this machine.
    """

    cli: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    initialize: Mapping[str, Any] | None = None
    files: tuple[PrivateFile, ...] = ()
    trailing_args: tuple[str, ...] = ()
    on_stderr: Callable[[str], object] | None = None
    user: str | int | None = None
    is_isolated: bool = False
    home: IsolatedHome | None = None
    has_generated_session_id: bool = False
    keep_detached: bool = False
    explicit_env: Mapping[str, str | None] = {}

    def __post_init__(self) -> None:
        # Whoever makes or replaces them gives plain mappings; error reporters print the variables of every frame.
        if not isinstance(self.env, ChildEnvironment):
            force_setattr(self, "env", ChildEnvironment(self.env))
        if self.initialize is not None and not isinstance(self.initialize, InitializeBody):
            force_setattr(self, "initialize", InitializeBody(self.initialize))

    def __repr__(self) -> str:
        return f"Invocation(cli={self.cli!r}, argv={self.argv!r}, cwd={self.cwd!r}, files={self.files!r})"


SKILL_SETTING_SOURCES = ["user", "project"]
"""Default of `setting_sources` when `skills` is set: skills are found next to these settings."""
ENTRYPOINT = "sdk-pilothouse"
OWN_VARIABLES: Final = {
    "CLAUDE_CODE_ENTRYPOINT": ENTRYPOINT,
    "CLAUDE_CODE_STARTUP_FAILURE_RESULTS": "1",  # the CLI says why it does not start in a result, not only on stderr
}
"""Variables that every child gets."""
COMMON_ARGS = ("--output-format", "stream-json", "--verbose")
STDIN_ARGS = ("--print", "--input-format", "stream-json")

# One argument may be 131,072 bytes on Linux and a whole Windows command line 32,767 characters; longer values go
# through a file or the handshake, where possible.
MAX_INLINE_BYTES = 8 * 1024
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_JOINED_BYTES = 64 * 1024
"""Maximum bytes of a list joined into one argument."""

_TABLE_ORDER = {name: place for place, name in enumerate(TABLE)}

# Set by a Claude Code that runs this process; with them, a child refuses to start or takes itself for a nested one.
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")
# Of options that are stored as given.
_ENCODERS = {"agents": encode_agents, "mcp_servers": encode_mcp_servers, "sandbox": encode_sandbox}


def derive_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to render: without None, nested values in the form for the CLI."""
    values = {name: value for name, value in given.items() if value is not None}
    if "isolation" in values:
        values["setting_sources"] = []
        values["strict_mcp_config"] = True
        values.setdefault("persist_session", "session_store" in values)  # else it is deleted with the home
    for name, encode in _ENCODERS.items():
        if name in values and not isinstance(values[name], str):
            values[name] = encode(values[name])
    if values.get("mcp_servers") == {} and given["mcp_servers"]:  # all servers run in this process
        del values["mcp_servers"]
    if values.get("sandbox"):
        settings = values.get("settings", {})
        if isinstance(settings, str):  # a path excludes a sandbox, so this is JSON
            settings = msgspec.json.decode(settings.encode())
        values["settings"] = {**settings, "sandbox": values["sandbox"]}
    if "skills" in values:
        rules = ["Skill"] if values["skills"] == "all" else [f"Skill({name})" for name in values["skills"]]
        if rules:
            values["allowed_tools"] = [*dict.fromkeys([*values.get("allowed_tools", []), *rules])]
        values.setdefault("setting_sources", SKILL_SETTING_SOURCES)
    if "thinking" in values:
        values.pop("max_thinking_tokens", None)  # older form of a part of `thinking`
    return values


class _InvocationBuilder:
    def __init__(self, given: Mapping[str, Any], *, has_initialize: bool) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str | None] = {}  # a None value: not to be inherited
        self.files: list[PrivateFile] = []
        self.initialize: dict[str, Any] = {}
        self.has_initialize = has_initialize
        for name, target, value in _split_values(derive_values(given)):
            self._add(name, target, value)
        self.env.update(given.get("env") or {})
        for flag, value in cast("dict[str, Any]", given.get("extra_args") or {}).items():
            if value is None:
                self.argv.append(f"--{flag}")
            else:
                self._add_flag("extra_args", flag, value)

    def _add(self, option: str, target: Target, value: Any) -> None:
        """Put a value where it goes; pilothouse's own options go nowhere."""
        match target:
            case EnvVar(name, is_path):
                self.env[name] = None if value is None else _expand_home(value) if is_path else _format_number(value)
            case EnvSwitch(name, text, on):
                self.env[name] = text if value == on else None
            case _ if value is None:
                pass
            case Switch(name, on):
                if value == on:
                    self.argv.append(f"--{name}")
            case SwitchOrFlag(name) if isinstance(value, bool):
                if value:
                    self.argv.append(f"--{name}")
            case ListFlag(name) if not isinstance(value, str):
                for joined in _join(value):
                    self._add_flag(option, name, joined)
            case PathFlag(name):
                self._add_flag(option, name, _expand_home(value))
            case RepeatedFlag(name):
                for item in value:
                    self._add_flag(option, name, _expand_home(item))
            case TextFlag() if _size(value) > MAX_INLINE_BYTES:
                if target.file_flag:
                    self.files.append(PrivateFile(target.file_flag, ".txt", value.encode()))
                else:
                    self._add_initialize_field(option, target.key, value)
            case ConfigFlag():
                self._add_config(option, target, value)
            case JsonFlag():
                self._add_json(option, target, value)
            case Flag(name):
                text = ",".join(cast("list[str]", value)) if isinstance(value, list) else _format_number(value)
                self._add_flag(option, name, text)
            case InitializeField(key) if value is not False:  # False is the default of the CLI
                self._add_initialize_field(option, key, value)
            case _:
                pass

    def _add_flag(self, option: str, name: str, value: str) -> None:
        argument = f"--{name}={value}"
        size = _size(argument)
        if size > MAX_ARGUMENT_BYTES:
            raise OptionsError(
                f"option {option!r}: {size:,} bytes do not fit into one argument (at most {MAX_ARGUMENT_BYTES:,})",
                option=option,
            )
        self.argv.append(argument)

    def _add_initialize_field(self, option: str, key: str, value: Any) -> None:
        if not self.has_initialize:
            raise OptionsError(
                f"option {option!r}: this value travels in the handshake, which the argv form does not have; "
                "use prompt_via='stdin'",
                option=option,
            )
        self.initialize[key] = copy_value(value)

    def _add_config(self, option: str, target: ConfigFlag, value: Any) -> None:
        if not isinstance(value, str):
            content = _encode_json(option, {target.wrap: value} if target.wrap else value)
        elif _size(value) <= MAX_INLINE_BYTES and not value.lstrip().startswith("{"):
            self._add_flag(option, target.name, _expand_home(value))
            return
        else:
            content = value.encode()
        self.files.append(PrivateFile(target.name, ".json", content))

    def _add_json(self, option: str, target: JsonFlag, value: Any) -> None:
        content = _encode_json(option, value)
        if target.private and not self.has_initialize and not target.switches:
            self.files.append(PrivateFile(target.name, ".json", content))
        elif len(content) <= MAX_INLINE_BYTES and not target.private:
            self._add_flag(option, target.name, content.decode())
        else:
            self._add_initialize_field(option, target.key, msgspec.json.decode(content))
            self.argv.extend(f"--{switch}" for switch in target.switches)


def render(options: Options, environ: Mapping[str, str], *, prompt: str | None = None) -> Invocation:
    """Render `options` for a child whose environment is based on `environ`.

    Args:
        options: the settings.
        environ: base environment, used when `inherit_env` is set.
        prompt: the prompt, only for the argv form; None when it travels through stdin.

    Raises:
        OptionsError: a value does not fit the form of the invocation.
    """
    given = options._values  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - not copied, because it is only read
    builder = _InvocationBuilder(given, has_initialize=prompt is None)
    head = (*COMMON_ARGS, *STDIN_ARGS) if prompt is None else COMMON_ARGS
    return Invocation(
        cli=options.cli,
        argv=(*head, *builder.argv),
        trailing_args=() if prompt is None else _make_prompt_args(prompt),
        env=_make_child_env(options, environ, builder.env),
        cwd=None if options.cwd is None else _expand_home(options.cwd),
        initialize=InitializeBody(builder.initialize) if builder.has_initialize else None,
        files=tuple(builder.files),
        on_stderr=options.stderr,
        user=options.user,
        is_isolated=options.isolation is not None,
        keep_detached=options.keep_detached,
        explicit_env=ExplicitEnvironment(builder.env),
    )


def render_cli_args(options: Options) -> list[str]:
    """Return the arguments for the options that were set, without the arguments of every invocation."""
    rendered = render(options, {})
    own = rendered.argv[len(COMMON_ARGS) + len(STDIN_ARGS) :]
    return [*own, *(f"--{file.flag}=<private file>" for file in rendered.files)]


def render_env(options: Options) -> dict[str, str]:
    """Return the environment variables that options set."""
    return {name: value for name, value in render(options, {}).explicit_env.items() if value is not None}


def render_child_env(options: Options, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the complete environment of the child. Raises OptionsError as `render` does."""
    return render(options, environ).env


def inherit(environ: Mapping[str, str], which: bool | Sequence[str]) -> Mapping[str, str]:
    """Return the variables that a child inherits; `which` is the option `inherit_env`."""
    if isinstance(which, bool):
        return environ if which else {}
    names = {name for name in which if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in which if name.endswith("*"))
    return {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}


def _make_child_env(
    options: Options, environ: Mapping[str, str], changes: Mapping[str, str | None]
) -> ChildEnvironment:
    env = ChildEnvironment(inherit(environ, options.inherit_env))
    for name in _NOT_INHERITED:
        env.pop(name, None)
    if options.isolation is not None:
        env = ChildEnvironment(inherit_variables(env))
    env.update(OWN_VARIABLES)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def _split_values(values: Mapping[str, Any]) -> Iterator[tuple[str, Target, Any]]:
    """Yield each option, where a part of its value goes, and that part, in the order of the table."""
    for name in sorted(values, key=_TABLE_ORDER.__getitem__):  # sorted, because few options are set
        target = TABLE[name].target
        pieces = target.split(values[name]) if isinstance(target, SplitTarget) else [(target, values[name])]
        yield from ((name, part, piece) for part, piece in pieces)


def _make_prompt_args(prompt: str) -> tuple[str, ...]:
    size = _size(prompt)
    if size > MAX_ARGUMENT_BYTES:
        raise OptionsError(
            f"option 'prompt_via': a prompt of {size:,} bytes does not fit into one argument "
            f"(at most {MAX_ARGUMENT_BYTES:,}); leave it at 'stdin'",
            option="prompt_via",
        )
    # The prompt is last and positional; "--" only where it would read as a flag.
    return ("--print", "--", prompt) if prompt.startswith("-") else ("--print", prompt)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _expand_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - `Path.expanduser` raises when there is no home


def _format_number(value: Any) -> str:
    # 2.0 becomes 2 and 0.001 stays 0.001; repr would give 1e-05, which the CLI reads as well.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _join(items: list[str]) -> Iterator[str]:
    """Join items with commas to texts that each fit into an argument."""
    joined: list[str] = []
    size = 0
    for item in items:
        if joined and size + _size(item) >= MAX_JOINED_BYTES:
            yield ",".join(joined)
            joined, size = [], 0
        joined.append(item)
        size += _size(item) + 1
    yield ",".join(joined)


def _encode_json(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"option {name!r} cannot be written as JSON: {error}", option=name) from error
