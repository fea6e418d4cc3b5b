"""Decides what clients of a host may do: at the start of a session, and with each line of input.

`Capabilities` are found first, then `HostPolicy` and `InputFilter` decide. The host is not a sandbox: whoever holds the
token may let Claude Code run commands. It keeps a session below its roots, and keeps what only the host decides.
Follows symbolic links on disk: call it off the event loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from msgspec import Struct, field

from pilothouse.errors import LineDecodeError, PilothouseError, ProtocolError, UsageError
from pilothouse.messages.json_lines import decode_line, encode_json
from pilothouse.options import Invocation, PrivateFile
from pilothouse.options.invocation import ChildEnvironment
from pilothouse.options.renderer import COMMON_ARGS, STDIN_ARGS
from pilothouse.options.secrets import secret_values
from pilothouse.options.table import (
    TABLE,
    Flag,
    JsonFlag,
    PathFlag,
    RepeatedFlag,
    SplitTarget,
    Switch,
    SwitchOrFlag,
    Target,
    TextFlag,
)
from pilothouse.options.value_types import MODES_BY_PERMISSIVENESS, permits_more
from pilothouse.remote.messages import LaunchMessage

# Variables with an address, a proxy, or a certificate that makes one trusted.
_REDIRECTING = re.compile(r"URL|URI|HOST|PROXY|SOCKET|ENDPOINT|RESOURCE|DOMAIN|CERT|_CA(_|$)|_BASE$|GATEWAY")
_VARIABLE_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_HELPER_SETTINGS = frozenset(
    {"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "otelHeadersHelper", "policyHelper"}
)
_PROGRAM_SETTINGS = frozenset(
    {
        "enabledPlugins",
        "extraKnownMarketplaces",
        "fileSuggestion",
        "hooks",
        "processWrapper",
        "statusLine",
        "subagentStatusLine",
    }
)
_SERVER_SETTINGS = frozenset({"enableAllProjectMcpServers", "enabledMcpjsonServers", "mcpServers"})


class Capabilities(Struct):
    """The powers that were found.

    Args:
        variables: names of variables that the session gets.
        references: names of variables whose values are put into addresses, headers or arguments.
        brings_key: whether a program of the client's provides the key.
        programs: keys of settings that make the CLI run programs.
        has_servers: whether there are MCP servers that the CLI starts or calls.
        modes: requested permission modes.
    """

    variables: set[str] = field(default_factory=set[str])
    references: set[str] = field(default_factory=set[str])
    brings_key: bool = False
    programs: set[str] = field(default_factory=set[str])
    has_servers: bool = False
    modes: set[str] = field(default_factory=set[str])

    @property
    def is_redirecting(self) -> bool:
        """Whether the CLI would use another API, or another source of its key."""
        return self.brings_key or any(map(is_redirecting_variable, self.variables))

    def add_variables(self, variables: Any) -> None:
        """Add variables that have a value."""
        self.variables |= {name for name, value in _as_mapping(variables).items() if value not in (None, "")}

    def add_settings(self, settings: Any) -> None:
        """Add the powers of CLI settings, also of managed ones."""
        found = _as_mapping(settings)
        self.add_variables(found.get("env"))
        given = {name for name, value in found.items() if value not in (None, False, {}, [])}
        self.brings_key |= bool(given & _HELPER_SETTINGS)
        self.programs |= given & (_PROGRAM_SETTINGS | _HELPER_SETTINGS)
        self.has_servers |= bool(given & _SERVER_SETTINGS)
        self._add_mode(_as_mapping(found.get("permissions")).get("defaultMode"))
        self.references |= set(
            _iterate_references({name: item for name, item in found.items() if name in _PROGRAM_SETTINGS})
        )

    def add_servers(self, servers: Any) -> None:
        """Add the powers of a mapping of MCP servers by name. Those of type "sdk" run in the client."""
        for server in _as_mapping(servers).values():
            if _as_mapping(server).get("type") != "sdk":
                self.has_servers = True
                self.references |= set(_iterate_references(server))

    def add_agents(self, agents: Any) -> None:
        """Add the powers of a mapping of agents by name."""
        for agent in map(_as_mapping, _as_mapping(agents).values()):
            self._add_mode(agent.get("permissionMode"))
            if agent.get("hooks"):
                self.programs.add("hooks")
                self.references |= set(_iterate_references(agent["hooks"]))
            given: Any = agent.get("mcpServers")
            for servers in cast("list[Any]", given) if isinstance(given, list) else [given]:
                self.add_servers(servers)  # a plain name refers to a server that exists already

    def _add_mode(self, mode: Any) -> None:
        if mode is not None:
            self.modes.add(str(mode))


def is_redirecting_variable(name: str) -> bool:
    """Return whether a variable may direct the CLI to another API, or make another one trusted."""
    return bool(_REDIRECTING.search(name.upper()))


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _iterate_references(value: Any) -> Iterator[str]:
    """Yield the variables that are named in text anywhere inside of a value."""
    if isinstance(value, str):
        yield from _VARIABLE_REFERENCE.findall(value)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[Any, Any]", value).items():
            if name == "allowedEnvVars" and isinstance(item, list):
                yield from map(str, cast("list[Any]", item))
            yield from _iterate_references(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _iterate_references(item)


TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""Holds the token of the host; children do not get it."""
DEFAULT_ENV = ("ANTHROPIC_*", "CLAUDE_CODE_*")
UNINHERITED_VARIABLES = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", TOKEN_VARIABLE)
MAX_ARGUMENT_CHARS = 128 * 1024
"""Maximum characters of one argument or variable."""

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a settings or MCP server file that a client names by its path."""

# The only flags whose value may be a separate argument: a bare word could be a command of the CLI.
_SEPARATE = frozenset({"--input-format", "--output-format"})
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?|-p", re.DOTALL)
_FILE_FLAG = re.compile(r"[a-z][a-z0-9-]*")
_SUFFIX = re.compile(r"(\.[a-z0-9]{1,8})?")
_RESUMED = re.compile(r"[^/\\\x00]*")
_WORD = re.compile(r"[A-Za-z-]+")
_PROGRAM_DIRECTORIES = ("plugin-dir", "plugin-dir-no-mcp")

FlagUse = Literal["switch", "value", "path", "settings", "servers", "agents"]


def _list_flag_uses(target: Target) -> dict[str, FlagUse]:
    """Return the flags of a target, each with the use of its value."""
    match target:
        case SplitTarget(targets=targets):
            return {name: use for part in targets for name, use in _list_flag_uses(part).items()}
        case Switch(name) | SwitchOrFlag(name):
            return {name: "switch"}
        case PathFlag(name) | RepeatedFlag(name):
            return {name: "path"}
        case TextFlag(name, file_flag):
            return {name: "value", file_flag: "path"} if file_flag else {name: "value"}
        case JsonFlag(name, switches=switches):
            return {name: "value", **dict.fromkeys(switches, "switch")}
        case Flag(name):
            return {name: "value"}
        case _:
            return {}


ALLOWED_FLAGS: dict[str, FlagUse] = {
    **{name: use for row in TABLE.values() for name, use in _list_flag_uses(row.target).items()},
    **{argument.removeprefix("--"): "switch" for argument in (*COMMON_ARGS, *STDIN_ARGS) if argument.startswith("--")},
    "p": "switch",
    "resume": "switch",  # without a value: the latest conversation
    "agents": "agents",
    "managed-settings": "settings",
    "mcp-config": "servers",
    "settings": "settings",
}
"""Flags that a host accepts, with the use of their values: those that pilothouse itself sends."""


class RefusedRequestError(PilothouseError):
    """The host refuses a client's request. Nothing was started.

    Args:
        code: the reason, for programs.
        message: the reason, and what would be accepted.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def forbid(message: str) -> RefusedRequestError:
    """Build the refusal of what this host does not allow."""
    return RefusedRequestError("forbidden", message)


def reject(message: str) -> RefusedRequestError:
    """Build the refusal of what is not a valid request."""
    return RefusedRequestError("bad_request", message)


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
        if size > MAX_ARGUMENT_CHARS // 2:
            raise UsageError(
                f"managed_settings: expected at most {MAX_ARGUMENT_CHARS // 2:,} bytes of JSON, got {size:,}"
            )

    def check_mode(self, mode: str, where: str) -> None:
        """Refuse a permission mode that is too high.

        Raises:
            RefusedRequestError: the mode is too high.
        """
        if permits_more(mode, self.permission_mode):
            raise forbid(f"{where}: this host takes permission modes up to {self.permission_mode!r}")

    def check_capabilities(self, found: Capabilities, where: str) -> None:
        """Refuse powers of a client's settings, servers or agents that the limits forbid.

        Raises:
            RefusedRequestError: a power is forbidden.
        """
        for mode in sorted(found.modes):
            self.check_mode(mode, where)
        if found.programs and not self.programs:
            raise forbid(f"{where}: this host takes no {', '.join(sorted(found.programs))} of clients")
        if found.has_servers and not self.mcp_servers:
            raise forbid(f"{where}: this host takes no MCP servers of clients")


class HostPolicy(Struct, frozen=True):
    """What a host accepts.

    Args:
        cli: which CLI runs; clients cannot change it.
        roots: directories below which sessions may work; the first is the default working directory.
        env: patterns of the names of variables that clients may set.
        base: base environment of the children, with the key.
        limits: what clients may do.
        explicit_names: variables of `base` that children elsewhere get too, besides those that clients set.
    """

    cli: str
    roots: tuple[str, ...]
    env: tuple[str, ...]
    base: Mapping[str, str]
    limits: ClientLimits = ClientLimits()
    explicit_names: tuple[str, ...] = ()

    def admit(self, launch: LaunchMessage, initialize: Mapping[str, Any] | None = None) -> Invocation:
        """Turn a client's request into an invocation: paths resolved, files that were named by their path read.

        Args:
            launch: how the client wants the child started.
            initialize: body of the handshake's request, where the host itself sends it.

        Raises:
            RefusedRequestError: a part is refused; says which, and what would be accepted.
        """
        if launch.user is not None:
            raise forbid("user: this host runs children as its own user")
        cwd = self.roots[0]
        if launch.cwd is not None:
            cwd = self.resolve_path(launch.cwd, cwd, "cwd")
            if not os.path.isdir(cwd):  # noqa: PTH112
                raise reject(f"cwd: there is no directory {launch.cwd!a} on this host")
        if not {"--print", "-p"} & {*launch.argv, *launch.tail}:
            raise forbid("the arguments have no --print: this host starts no interactive session")
        found = Capabilities()
        found.add_variables(launch.env)
        argv, files = self._check_arguments(launch.argv, cwd, found)
        for file in launch.files:
            if file.flag == "managed-settings":
                text = "--managed-settings: the CLI reads none from a file; send it as JSON"
                raise reject(text)
            files.append(self._check_file(file, found))
        self._check_tail(launch.tail)
        self.inspect_initialize(initialize or {}, found)
        self.limits.check_capabilities(found, "the session")
        if self.limits.managed_settings is not None:
            # As an argument: the CLI ignores a file for this flag.
            argv.append(f"--managed-settings={encode_json(self.limits.managed_settings).decode()}")
        env = self._make_environment(launch.env, found)
        return Invocation(
            cli=self.cli,
            argv=tuple(argv),
            trailing_args=launch.tail,
            files=tuple(files),
            env=env,
            explicit_env={name: env.get(name) for name in (*self.explicit_names, *launch.env)},
            cwd=cwd,
            is_isolated=launch.isolated,
        )

    def resolve_path(self, path: str, cwd: str, where: str) -> str:
        """Return the path without links, so that the CLI gets exactly the path that was checked."""
        if path != path.strip() or path.startswith("~") or not path.isprintable():
            raise forbid(f"{where}: {path[:200]!a} is not a plain path: it has blanks around it, ~, or controls")
        real = os.path.realpath(os.path.join(cwd, path))  # noqa: PTH118 - Path has no realpath of its own
        if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.roots):
            raise forbid(f"{where}: {path[:200]!a} is not below {' or '.join(self.roots)}")
        return real

    # Arguments and files.

    def _check_arguments(
        self, argv: Sequence[str], cwd: str, found: Capabilities
    ) -> tuple[list[str], list[PrivateFile]]:
        taken: list[str] = []
        files: list[PrivateFile] = []
        before = ""
        for argument in argv:
            is_value = before in _SEPARATE and not argument.startswith("-")
            if not _FLAG.fullmatch(argument) and not is_value:
                raise forbid(f"argument {argument[:80]!a}: this host takes --flag and --flag=value alone")
            if len(argument) > MAX_ARGUMENT_CHARS or "\0" in argument:
                raise reject(f"argument {argument[:80]!a}… is too long, or has a NUL in it")
            if not is_value:
                name, equals, value = argument.lstrip("-").partition("=")
                made = self._check_flag(argument, name, value if equals else None, cwd, found)
                (files if isinstance(made, PrivateFile) else taken).append(made)  # type: ignore[arg-type]
            else:
                taken.append(argument)
            before = argument
        return taken, files

    def _check_flag(
        self, argument: str, name: str, value: str | None, cwd: str, found: Capabilities
    ) -> str | PrivateFile:
        if name in self.limits.flags:
            return argument
        if (use := ALLOWED_FLAGS.get(name)) is None:
            raise forbid(f"--{name}: this host does not take it; its operator may: --allow-flag {name}")
        if name == "resume" and not _RESUMED.fullmatch(value or ""):
            raise forbid("--resume: this host takes the id of a conversation, not a path")
        if value is None and use != "switch":
            raise reject(f"--{name}: expected --{name}=value")
        if name == "permission-mode":
            found.modes.add(value or "")
        elif name == "allow-dangerously-skip-permissions":
            found.modes.add(MODES_BY_PERMISSIVENESS[-1])
        elif name == "managed-settings-in-initialize" and self.limits.managed_settings is not None:
            raise forbid(f"--{name}: the managed settings of this host apply")
        elif name in _PROGRAM_DIRECTORIES:
            found.programs.add("plugins")
        if use == "path":
            return f"--{name}={self.resolve_path(value or '', cwd, f'--{name}')}"
        if use in ("settings", "servers", "agents"):
            file = self._check_file(PrivateFile(name, ".json", self._read_content(name, value or "", cwd)), found)
            return f"--{name}={file.content.decode()}" if name == "managed-settings" else file
        return argument

    def _read_content(self, name: str, value: str, cwd: str) -> bytes:
        """Return the JSON text of an argument, or of the file that the argument names."""
        if value.startswith(("{", "[")) and _parse_json(value.encode("utf-8", "surrogatepass")) is not None:
            return value.encode("utf-8", "surrogatepass")
        path = self.resolve_path(value, cwd, f"--{name}")
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - it is resolved
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise reject(f"--{name}: {value[:200]!a}: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise RefusedRequestError("too_large", f"--{name}: {value[:200]!a} is longer than {MAX_FILE_BYTES:,} bytes")
        return content

    def _check_file(self, file: PrivateFile, found: Capabilities) -> PrivateFile:
        """Check a file. JSON is re-encoded, so that every reader parses it as this host did."""
        if not _FILE_FLAG.fullmatch(file.flag) or not _SUFFIX.fullmatch(file.suffix):
            raise reject(f"files: {file.flag[:80]!a} with suffix {file.suffix[:20]!a} cannot be written")
        use = ALLOWED_FLAGS.get(file.flag)
        if file.flag in self.limits.flags:
            return file
        if use == "path" and file.flag.endswith("-file"):
            return file
        if use not in ("settings", "servers", "agents"):
            raise forbid(f"--{file.flag}: this host does not take it as a file")
        value = _parse_json(file.content)
        if not isinstance(value, dict):
            raise reject(f"--{file.flag}: expected a JSON object")
        content = cast("dict[str, Any]", value)
        if use == "servers":
            found.add_servers(content.get("mcpServers"))
        elif use == "agents":
            found.add_agents(content)
        else:
            self.inspect_settings(file.flag, content, found)
        return PrivateFile(file.flag, ".json", encode_json(value))

    def inspect_settings(self, name: str, value: Mapping[str, Any], found: Capabilities) -> None:
        """Add the powers of a client's settings.

        Args:
            name: "settings" or "managed-settings".
            value: their content.
            found: collects the powers.

        Raises:
            RefusedRequestError: the host does not accept such settings, or the variables in them.
        """
        if name == "managed-settings" and self.limits.managed_settings is not None:
            raise forbid("--managed-settings: those of this host apply")
        if name == "settings" and not self.limits.settings:
            raise forbid("--settings: this host takes no settings of clients")
        variables = value.get("env")
        if isinstance(variables, Mapping):
            self._check_variables(cast("Mapping[str, Any]", variables), f"--{name}: env")
        found.add_settings(value)

    def inspect_initialize(self, body: Mapping[str, Any], found: Capabilities) -> None:
        """Add the powers of a client's initialize request.

        Raises:
            RefusedRequestError: the host refuses a part of it.
        """
        found.add_agents(body.get("agents"))
        if body.get("managedSettings"):
            self.inspect_settings("managed-settings", body["managedSettings"], found)

    def _check_tail(self, tail: Sequence[str]) -> None:
        # The prompt of the argv form: `--print "…"`, or `--print -- "-…"`.
        words = [word for word in tail if word not in ("--print", "-p", "--")]
        guarded = "--" in tail
        if len(words) > 1 or (words and words[0].startswith("-") and not guarded) or any("\0" in w for w in words):
            raise forbid("tail: this host takes --print and one prompt")
        if any(_WORD.fullmatch(word) for word in words):
            raise forbid("tail: a prompt of one word could be a command of the CLI; send it through stdin")
        if words and self.limits.verbatim_prompts:
            raise forbid("tail: this host takes prompts through stdin, where they can be sent as they are")

    # Variables.

    def _check_variables(self, requested: Mapping[str, Any], where: str) -> None:
        for name, value in requested.items():
            if not any(fnmatchcase(name, pattern) for pattern in self.env) or name == TOKEN_VARIABLE:
                raise forbid(f"{where}: this host does not take {name[:80]!a}, but {', '.join(self.env) or 'none'}")
            text = "" if value is None else str(value)
            if not name or "=" in name or "\0" in name + text or len(text) > MAX_ARGUMENT_CHARS:
                raise reject(f"{where}: {name[:80]!a} cannot be set to that")

    def needs_own_key(self, found: Capabilities) -> bool:
        """Return whether a client must bring its own key, because the host's could leak to the client's address."""
        secrets = {name for name, value in self.base.items() if secret_values({name: value})}
        return found.is_redirecting or bool(found.references & secrets)

    def _make_environment(self, requested: Mapping[str, str | None], found: Capabilities) -> ChildEnvironment:
        self._check_variables(requested, "env")
        base = {name: value for name, value in self.base.items() if name not in UNINHERITED_VARIABLES}
        if self.needs_own_key(found):
            base = {name: value for name, value in base.items() if not secret_values({name: value})}
        merged = {**base, **requested}
        return ChildEnvironment({name: value for name, value in merged.items() if value is not None})


def _parse_json(content: bytes) -> Any:
    """Parse JSON as the CLI would; None if it is invalid."""
    try:
        return decode_line(content)
    except LineDecodeError:
        return None


ALLOWED_TYPES = frozenset({"user", "control_request", "control_response", "control_cancel_request", "keep_alive"})
ALLOWED_REQUESTS = frozenset({
    "apply_flag_settings", "background_tasks", "cancel_async_message", "end_session", "get_binary_version",
    "get_context_usage", "get_hooks_listing", "get_session_cost", "get_settings", "get_task_output", "get_usage",
    "initialize", "interrupt", "list_models", "list_permission_rules", "mcp_message", "mcp_read_resource",
    "mcp_reconnect", "mcp_set_servers", "mcp_status", "mcp_toggle", "reload_output_styles", "reload_skills",
    "rename_session", "rewind_files", "set_max_thinking_tokens", "set_model", "set_permission_mode", "stop_task",
})  # fmt: skip
# Values from other sources: a tool's input or result may look like anything.
_UNCHECKED_FIELDS = frozenset({"updatedInput", "mcp_response"})
# A line without these holds no control frame, however its names are escaped.
_CONTROL_MARKERS = (b"control_re", b"update_env", b"\\u")


class ControlRequestRefusedError(PilothouseError):
    """The host refuses to pass on a control request.

    Args:
        request_id: of the request.
        message: the reason.
    """

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id

    def make_response(self) -> bytes:
        """Return the response line that the child would send."""
        response = {"subtype": "error", "request_id": self.request_id, "error": str(self)}
        return encode_json({"type": "control_response", "response": response}) + b"\n"


class InputFilter:
    """Checks the lines of one client.

    Args:
        policy: of the host.
    """

    def __init__(self, policy: HostPolicy) -> None:
        self._policy = policy
        self._limits = policy.limits
        self._is_limited = policy.limits != ClientLimits()

    def check_line(self, line: bytes) -> bytes:
        """Return the line as the child gets it.

        Args:
            line: one whole line.

        Raises:
            ControlRequestRefusedError: the host refuses this control request; the client needs the response.
            ProtocolError: the line is something else that the host refuses.
        """
        if not self._is_limited and not any(mark in line for mark in _CONTROL_MARKERS):
            return line
        frame = _decode_object(line)
        if frame is None:
            return line
        kind = frame.get("type")
        if kind == "update_environment_variables" or (self._is_limited and kind not in ALLOWED_TYPES):
            raise ProtocolError(f"this host does not take messages of type {str(kind)[:80]!r}")
        if kind == "control_request":
            self._check_request(frame)
        elif kind == "control_response" and self._is_limited:
            self._check_response(frame)
        elif kind == "user" and self._limits.verbatim_prompts and frame.get("client_composed") is not True:
            return encode_json({**frame, "client_composed": True}) + b"\n"
        return line

    def _check_request(self, frame: Mapping[str, Any]) -> None:
        body = frame.get("request")
        request: Mapping[str, Any] = cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else frame
        subtype = str(request.get("subtype"))
        try:
            self._check_body(subtype, request)
        except RefusedRequestError as refusal:
            raise ControlRequestRefusedError(str(frame.get("request_id")), str(refusal)) from None

    def _check_body(self, subtype: str, request: Mapping[str, Any]) -> None:
        if self._is_limited and subtype not in ALLOWED_REQUESTS:
            raise forbid(f"this host does not take control requests {subtype[:80]!r}")
        found = Capabilities()
        self._policy.inspect_initialize(request, found)
        if isinstance(settings := request.get("settings"), Mapping):
            self._policy.inspect_settings("settings", cast("Mapping[str, Any]", settings), found)
        found.add_servers(request.get("servers"))
        if isinstance(mode := request.get("mode"), str):
            found.modes.add(mode)
        if request.get("add_plugins"):
            found.programs.add("plugins")
        self._limits.check_capabilities(found, subtype)
        if self._policy.needs_own_key(found):
            raise forbid(f"{subtype}: give the address of the API and its key when the session starts")

    def _check_response(self, frame: Mapping[str, Any]) -> None:
        for update in _iterate_mappings(frame):
            if update.get("type") == "setMode":
                try:
                    self._limits.check_mode(str(update.get("mode")), "the answer")
                except RefusedRequestError as refusal:
                    raise ProtocolError(str(refusal)) from None


def _decode_object(line: bytes) -> Mapping[str, Any] | None:
    """Decode a line to an object; None if no reader, whatever its line ends, can take the line for an object."""
    try:
        frame = decode_line(line)
    except LineDecodeError:
        if b"{" in line:
            raise ProtocolError("a line of input is not valid JSON, or is nested too deeply") from None
        return None
    if b"\r" in line.rstrip(b"\r\n"):
        raise ProtocolError("a line of input has a carriage return in it")
    return cast("Mapping[str, Any]", frame) if isinstance(frame, Mapping) else None


def _iterate_mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        yield found
        for name, item in found.items():
            if name not in _UNCHECKED_FIELDS:
                yield from _iterate_mappings(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _iterate_mappings(item)
