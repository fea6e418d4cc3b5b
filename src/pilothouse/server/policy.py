"""Decides which flags, files, variables and directories of a client a host accepts. Starts nothing.

A client with the token may have Claude Code run commands, so this is not a sandbox: it keeps a session in the
directories that the host was given, and separates what the client may set from what only the host decides. It reads
the disk only to follow symbolic links: call it off the event loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from msgspec import Struct

from pilothouse.errors import LineDecodeError, PilothouseError, UsageError
from pilothouse.messages.json_lines import decode_line, encode_json
from pilothouse.options import Invocation, PrivateFile
from pilothouse.options.invocation import ChildEnvironment
from pilothouse.options.renderer import COMMON_ARGS, STDIN_ARGS
from pilothouse.options.secrets import secret_values
from pilothouse.options.table import TABLE
from pilothouse.options.targets import (
    ConfigFlag,
    Flag,
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
from pilothouse.options.value_types import MODES_BY_PERMISSIVENESS, permits_more
from pilothouse.server.powers import Powers

TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""Holds the token of the host; children do not get it."""
DEFAULT_ENV = ("ANTHROPIC_*", "CLAUDE_CODE_*")
NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", TOKEN_VARIABLE)
LONGEST = 128 * 1024
"""Maximum characters of one argument or variable."""

MOST_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a settings or MCP server file that a client names by its path."""

# The only flags whose value may be a separate argument: a bare word could be a command of the CLI.
_SEPARATE = frozenset({"--input-format", "--output-format"})
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?|-p", re.DOTALL)
_FILE_FLAG = re.compile(r"[a-z][a-z0-9-]*")
_SUFFIX = re.compile(r"(\.[a-z0-9]{1,8})?")
_RESUMED = re.compile(r"[^/\\\x00]*")
_WORD = re.compile(r"[A-Za-z-]+")
_PROGRAM_DIRECTORIES = ("plugin-dir", "plugin-dir-no-mcp")

Use = Literal["switch", "value", "path", "settings", "servers", "agents"]


def _uses(target: Target) -> Iterator[tuple[str, Use]]:
    """Yield the flags of a target, each with the use of its value."""
    match target:
        case SplitTarget(targets=targets):
            for part in targets:
                yield from _uses(part)
        case Switch(name) | SwitchOrFlag(name):
            yield name, "switch"
        case PathFlag(name) | RepeatedFlag(name):
            yield name, "path"
        case TextFlag(name, file_flag):
            yield name, "value"
            if file_flag:
                yield file_flag, "path"
        case JsonFlag(name, switches=switches):
            yield name, "value"
            for switch in switches:
                yield switch, "switch"
        case Flag(name) | ListFlag(name) | ConfigFlag(name):
            yield name, "value"
        case _:
            pass


TAKEN: dict[str, Use] = {
    **{name: use for row in TABLE.values() for name, use in _uses(row.target)},
    **{argument.removeprefix("--"): "switch" for argument in (*COMMON_ARGS, *STDIN_ARGS) if argument.startswith("--")},
    "p": "switch",
    "resume": "switch",  # without a value: the latest conversation
    "agents": "agents",
    "managed-settings": "settings",
    "mcp-config": "servers",
    "settings": "settings",
}
"""Flags that a host accepts, with the use of their values: those that pilothouse itself sends."""


class Refusal(PilothouseError):  # noqa: N818 - it becomes a response
    """The host refuses a client's request. Nothing was started.

    Args:
        code: the reason, for programs.
        message: the reason, and what would be accepted.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ClientLimits(Struct, frozen=True, kw_only=True):
    """What the operator of a host allows clients to do. By default everything that the CLI offers.

    Args:
        permission_mode: the highest permission mode: of "plan", "dontAsk", "default", "acceptEdits", "auto" and
            "bypassPermissions" (default), this one and those before it are allowed.
        programs: whether settings and agents of clients may have hooks, helpers, status lines and plugins.
        mcp_servers: whether clients may have MCP servers that the host starts or calls. Tools that run in the client
            are always allowed.
        settings: whether clients may pass settings at all.
        managed_settings: settings that apply to every session, as an administrator's do; clients may then pass none
            of these. They are arguments of the CLI, which other users of the machine can see: no keys.
        verbatim_prompts: whether prompts are sent unchanged: no `@path`, no `/command`.
        flags: names of further flags of the CLI that clients may pass, without dashes. Their values are not checked.

    Raises:
        UsageError: the permission mode is unknown, `flags` has dashes, or `managed_settings` is not valid JSON or is
            too long.
    """

    permission_mode: str = "bypassPermissions"
    programs: bool = True
    mcp_servers: bool = True
    settings: bool = True
    managed_settings: Mapping[str, Any] | None = None
    verbatim_prompts: bool = False
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.permission_mode not in MODES_BY_PERMISSIVENESS:
            raise UsageError(
                f"permission_mode: expected one of {', '.join(MODES_BY_PERMISSIVENESS)}, got {self.permission_mode!r}"
            )
        for flag in self.flags:
            if not _FILE_FLAG.fullmatch(flag):
                raise UsageError(f"flags: expected the name of a flag without dashes, such as 'brief', got {flag!r}")

        try:
            size = len(encode_json(self.managed_settings))
        except PilothouseError as error:
            raise UsageError(f"managed_settings: {error}") from None
        if size > LONGEST // 2:
            raise UsageError(f"managed_settings: expected at most {LONGEST // 2:,} bytes of JSON, got {size:,}")

    def check_mode(self, mode: str, where: str) -> None:
        """Refuse a permission mode that is too high.

        Raises:
            Refusal: the mode is too high.
        """
        if permits_more(mode, self.permission_mode):
            raise Refusal("forbidden", f"{where}: this host takes permission modes up to {self.permission_mode!r}")

    def check_powers(self, found: Powers, where: str) -> None:
        """Refuse powers of a client's settings, servers or agents that the limits forbid.

        Raises:
            Refusal: a power is forbidden.
        """
        for mode in sorted(found.modes):
            self.check_mode(mode, where)
        if found.programs and not self.programs:
            raise Refusal("forbidden", f"{where}: this host takes no {', '.join(sorted(found.programs))} of clients")
        if found.servers and not self.mcp_servers:
            raise Refusal("forbidden", f"{where}: this host takes no MCP servers of clients")


class Wish(Struct, frozen=True):
    """A client's request to start a child; see `Invocation`.

    Args:
        argv: arguments, without those of `files`.
        tail: arguments that come last.
        files: values that are passed in private files.
        env: variables that the client set itself; None unsets one.
        cwd: the working directory on the host; None: the first root.
        isolated: whether the child has a HOME of its own.
        initialize: the handshake's request, where the host itself sends it.
    """

    argv: tuple[str, ...]
    tail: tuple[str, ...] = ()
    files: tuple[PrivateFile, ...] = ()
    env: Mapping[str, str | None] = {}
    cwd: str | None = None
    isolated: bool = False
    initialize: Mapping[str, Any] | None = None


class HostPolicy(Struct, frozen=True):
    """What a host accepts.

    Args:
        cli: which CLI runs; clients cannot change it.
        roots: directories below which sessions may work; the first is the default working directory.
        env: patterns of the names of variables that clients may set.
        base: base environment of the children, with the key.
        limits: what clients may do.
    """

    cli: str
    roots: tuple[str, ...]
    env: tuple[str, ...]
    base: Mapping[str, str]
    limits: ClientLimits = ClientLimits()

    def admit(self, wish: Wish) -> Invocation:
        """Turn a client's request into an invocation: paths resolved, files that were named by their path read.

        Raises:
            Refusal: a part is refused; says which, and what would be accepted.
        """
        cwd = self._directory(wish.cwd)
        if not {"--print", "-p"} & {*wish.argv, *wish.tail}:
            raise Refusal("forbidden", "the arguments have no --print: this host starts no interactive session")
        found = Powers()
        found.look_into_variables(wish.env)
        argv, files = self._arguments(wish.argv, cwd, found)
        for file in wish.files:
            if file.flag == "managed-settings":
                raise Refusal("bad_request", "--managed-settings: the CLI reads none from a file; send it as JSON")
            files.append(self._file(file, found))
        self._check_tail(wish.tail)
        self.look_into_handshake(wish.initialize or {}, found)
        self.limits.check_powers(found, "the session")
        if self.limits.managed_settings is not None:
            # As an argument: the CLI ignores a file for this flag.
            argv.append(f"--managed-settings={encode_json(self.limits.managed_settings).decode()}")
        return Invocation(
            cli=self.cli,
            argv=tuple(argv),
            trailing_args=wish.tail,
            files=tuple(files),
            env=self._environment(wish.env, found),
            cwd=cwd,
            is_isolated=wish.isolated,
        )

    # Directories and paths.

    def _directory(self, asked: str | None) -> str:
        if asked is None:
            return self.roots[0]
        path = self._resolved(asked, self.roots[0], "cwd")
        if not os.path.isdir(path):  # noqa: PTH112
            raise Refusal("bad_request", f"cwd: there is no directory {asked!a} on this host")
        return path

    def _resolved(self, path: str, cwd: str, where: str) -> str:
        """Return the path without links, so that the CLI gets exactly the path that was checked."""
        if path != path.strip() or path.startswith("~") or not path.isprintable():
            raise Refusal(
                "forbidden", f"{where}: {path[:200]!a} is no plain path: it has blanks around it, ~, or controls"
            )
        real = os.path.realpath(os.path.join(cwd, path))  # noqa: PTH118 - Path has no realpath of its own
        if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.roots):
            raise Refusal("forbidden", f"{where}: {path[:200]!a} is not below {' or '.join(self.roots)}")
        return real

    # Arguments and files.

    def _arguments(self, argv: Sequence[str], cwd: str, found: Powers) -> tuple[list[str], list[PrivateFile]]:
        taken: list[str] = []
        files: list[PrivateFile] = []
        before = ""
        for argument in argv:
            is_value = before in _SEPARATE and not argument.startswith("-")
            if not _FLAG.fullmatch(argument) and not is_value:
                raise Refusal("forbidden", f"argument {argument[:80]!a}: this host takes --flag and --flag=value alone")
            if len(argument) > LONGEST or "\0" in argument:
                raise Refusal("bad_request", f"argument {argument[:80]!a}… is too long, or has a NUL in it")
            if not is_value:
                name, equals, value = argument.lstrip("-").partition("=")
                made = self._flag(argument, name, value if equals else None, cwd, found)
                (files if isinstance(made, PrivateFile) else taken).append(made)  # type: ignore[arg-type]
            else:
                taken.append(argument)
            before = argument
        return taken, files

    def _flag(self, argument: str, name: str, value: str | None, cwd: str, found: Powers) -> str | PrivateFile:
        if name in self.limits.flags:
            return argument
        if (use := TAKEN.get(name)) is None:
            raise Refusal("forbidden", f"--{name}: this host does not take it; its operator may: --allow-flag {name}")
        if name == "resume" and not _RESUMED.fullmatch(value or ""):
            raise Refusal("forbidden", "--resume: this host takes the id of a conversation, and no path")
        if value is None and use != "switch":
            raise Refusal("bad_request", f"--{name}: expected --{name}=value")
        if name == "permission-mode":
            found.modes.add(value or "")
        elif name == "allow-dangerously-skip-permissions":
            found.modes.add(MODES_BY_PERMISSIVENESS[-1])
        elif name == "managed-settings-in-initialize" and self.limits.managed_settings is not None:
            raise Refusal("forbidden", f"--{name}: the managed settings of this host hold")
        elif name in _PROGRAM_DIRECTORIES:
            found.programs.add("plugins")
        if use == "path":
            return f"--{name}={self._resolved(value or '', cwd, f'--{name}')}"
        if use in ("settings", "servers", "agents"):
            file = self._file(PrivateFile(name, ".json", self._content(name, value or "", cwd)), found)
            return f"--{name}={file.content.decode()}" if name == "managed-settings" else file
        return argument

    def _content(self, name: str, value: str, cwd: str) -> bytes:
        """Return the JSON text of an argument, or of the file that the argument names."""
        if value.startswith(("{", "[")) and _parsed(value.encode("utf-8", "surrogatepass")) is not None:
            return value.encode("utf-8", "surrogatepass")
        path = self._resolved(value, cwd, f"--{name}")
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - it is resolved
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise Refusal("bad_request", f"--{name}: {value[:200]!a}: {error.strerror}") from None
        if len(content) > MOST_BYTES:
            raise Refusal("too_large", f"--{name}: {value[:200]!a} is longer than {MOST_BYTES:,} bytes")
        return content

    def _file(self, file: PrivateFile, found: Powers) -> PrivateFile:
        """Check a file. JSON is re-encoded, so that every reader parses it as this host did."""
        if not _FILE_FLAG.fullmatch(file.flag) or not _SUFFIX.fullmatch(file.suffix):
            raise Refusal(
                "bad_request", f"files: {file.flag[:80]!a} with suffix {file.suffix[:20]!a} cannot be written"
            )
        use = TAKEN.get(file.flag)
        if file.flag in self.limits.flags:
            return file
        if use == "path" and file.flag.endswith("-file"):
            return file
        if use not in ("settings", "servers", "agents"):
            raise Refusal("forbidden", f"--{file.flag}: this host does not take it as a file")
        value = _parsed(file.content)
        if not isinstance(value, dict):
            raise Refusal("bad_request", f"--{file.flag}: expected a JSON object")
        self._look(file.flag, use, cast("dict[str, Any]", value), found)
        return PrivateFile(file.flag, ".json", encode_json(value))

    def _look(self, name: str, use: Use, value: Mapping[str, Any], found: Powers) -> None:
        if use == "servers":
            found.look_into_servers(value.get("mcpServers"))
        elif use == "agents":
            found.look_into_agents(value)
        else:
            self.look_into_settings(name, value, found)

    def look_into_settings(self, name: str, value: Mapping[str, Any], found: Powers) -> None:
        """Add the powers of a client's settings.

        Args:
            name: "settings" or "managed-settings".
            value: their content.
            found: collects the powers.

        Raises:
            Refusal: the host does not accept such settings, or the variables in them.
        """
        if name == "managed-settings" and self.limits.managed_settings is not None:
            raise Refusal("forbidden", "--managed-settings: those of this host hold")
        if name == "settings" and not self.limits.settings:
            raise Refusal("forbidden", "--settings: this host takes no settings of clients")
        variables = value.get("env")
        if isinstance(variables, Mapping):
            self._check_variables(cast("Mapping[str, Any]", variables), f"--{name}: env")
        found.look_into_settings(value)

    def look_into_handshake(self, body: Mapping[str, Any], found: Powers) -> None:
        """Add the powers of a client's initialize request.

        Raises:
            Refusal: the host refuses a part of it.
        """
        found.look_into_agents(body.get("agents"))
        if body.get("managedSettings"):
            self.look_into_settings("managed-settings", body["managedSettings"], found)

    def _check_tail(self, tail: Sequence[str]) -> None:
        # The prompt of the argv form: `--print "…"`, or `--print -- "-…"`.
        words = [word for word in tail if word not in ("--print", "-p", "--")]
        guarded = "--" in tail
        if len(words) > 1 or (words and words[0].startswith("-") and not guarded) or any("\0" in w for w in words):
            raise Refusal("forbidden", "tail: this host takes --print and one prompt")
        if any(_WORD.fullmatch(word) for word in words):
            raise Refusal(
                "forbidden", "tail: a prompt of one word could be a command of the CLI; send it through stdin"
            )
        if words and self.limits.verbatim_prompts:
            raise Refusal(
                "forbidden", "tail: this host takes prompts through stdin, where they can be sent as they are"
            )

    # Variables.

    def _check_variables(self, asked: Mapping[str, Any], where: str) -> None:
        for name, value in asked.items():
            if not any(fnmatchcase(name, pattern) for pattern in self.env) or name == TOKEN_VARIABLE:
                raise Refusal(
                    "forbidden", f"{where}: this host does not take {name[:80]!a}, but {', '.join(self.env) or 'none'}"
                )
            text = "" if value is None else str(value)
            if not name or "=" in name or "\0" in name + text or len(text) > LONGEST:
                raise Refusal("bad_request", f"{where}: {name[:80]!a} cannot be set to that")

    def needs_own_key(self, found: Powers) -> bool:
        """Return whether a client must bring its own key, because the host's could leak to the client's address."""
        secrets = {name for name, value in self.base.items() if secret_values({name: value})}
        return found.redirects or bool(found.references & secrets)

    def _environment(self, asked: Mapping[str, str | None], found: Powers) -> ChildEnvironment:
        self._check_variables(asked, "env")
        base = {name: value for name, value in self.base.items() if name not in NOT_INHERITED}
        if self.needs_own_key(found):
            base = {name: value for name, value in base.items() if not secret_values({name: value})}
        merged = {**base, **asked}
        return ChildEnvironment({name: value for name, value in merged.items() if value is not None})


def _parsed(content: bytes) -> Any:
    """Parse JSON as the CLI would; None if it is invalid."""
    try:
        return decode_line(content)
    except LineDecodeError:
        return None
