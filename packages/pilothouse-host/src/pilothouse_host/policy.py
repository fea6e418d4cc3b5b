"""Decides what clients of a host may do: at the start of a session, and with each line of input.

Everything goes by lists of names: options, flags, variables, keys of settings. What is on no list is refused.
`Capabilities` are found first, then `HostPolicy` and `InputFilter` decide; how a child is started then is in
`pilothouse_access.on_behalf`. Follows symbolic links on disk: call it off the event loop.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from pilothouse.errors import LineDecodeError, OptionsError, PilothouseError, ProtocolError, UsageError
from pilothouse.options import TABLE, Invocation, PrivateFile
from pilothouse.support import decode_line, encode_json, secret_values
from pilothouse_access.guard import RefusedRequestError
from pilothouse_access.on_behalf import TOKEN_VARIABLE, StartRules, find_config_directories
from pilothouse_access.owners import OPERATOR, Owner
from pilothouse_access.permission_modes import MODES_BY_PERMISSIVENESS, permits_more
from pilothouse_remote.messages import LaunchMessage

_log = logging.getLogger("pilothouse.server")

CLIENT_OPTIONS = frozenset({
    "add_dirs", "advisor", "agent", "agent_progress_summaries", "agents", "allow_dangerously_skip_permissions",
    "allowed_tools", "api_key", "api_max_retries", "append_subagent_system_prompt", "append_system_prompt",
    "auth_token", "autocompact", "bare", "base_url", "betas", "client_app", "continue_conversation", "control_timeout",
    "custom_tools", "cwd", "debug", "disable_slash_commands", "disallowed_tools", "effort", "enable_file_checkpointing",
    "env", "extra_args", "fallback_model", "fork_session", "forward_subagent_text", "idle_timeout",
    "include_hook_events", "json_schema", "load_timeout", "managed_settings", "max_budget_tokens", "max_budget_usd",
    "max_output_tokens", "max_thinking_tokens", "max_turns", "mcp_servers", "model", "nonessential_traffic",
    "oauth_token", "on_usage_limit", "output_repairs", "partial_messages", "per_task_stop_affordance",
    "permission_mode", "permission_prompt_tool_name", "permission_prompts", "persist_session", "plan_mode_instructions",
    "plugins", "prompt_suggestions", "provider", "replay_user_messages", "restart", "restricted", "resume",
    "resume_drops_turn", "resume_session_at", "retry", "safe_mode", "sandbox", "session_id", "session_store",
    "setting_sources", "settings", "skills", "startup_timeout", "strict_mcp_config", "supported_dialog_kinds",
    "system_prompt", "task_budget", "thinking", "timeout", "title", "tool_aliases", "tool_bridge", "tool_config",
    "tools", "until", "usage_limit_ceiling", "verbatim_prompts", "wait_for_mcp",
})  # fmt: skip
"""The options that a client may set. The host decides the others, such as the executable, the user and `HOME`."""

_TUNING_VARIABLES = frozenset({
    "CLAUDE_AGENT_SDK_CLIENT_APP", "CLAUDE_AGENT_SDK_VERSION", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_MAX_RETRIES",
    "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS", "CLAUDE_CODE_QUESTION_PREVIEW_FORMAT",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
})  # fmt: skip
_KEY_VARIABLES = frozenset({"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"})
_API_VARIABLES = frozenset(
    {"ANTHROPIC_BASE_URL", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX"}
)
CLIENT_VARIABLES = _TUNING_VARIABLES | _KEY_VARIABLES | _API_VARIABLES
"""The variables that a client may set: those that pilothouse itself sends. The operator may name more."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")

_PLAIN_SETTINGS: Mapping[str, frozenset[str] | None] = {
    **dict.fromkeys((
        "$schema", "alwaysThinkingEnabled", "attribution", "autoCompactEnabled", "autoCompactWindow",
        "bashOutputMaxChars", "deniedMcpServers", "disableBundledSkills", "disableSkillShellExecution",
        "disableWorkflows", "disabledMcpjsonServers", "effortLevel", "env", "fallbackModel", "fileCheckpointingEnabled",
        "includeCoAuthoredBy", "includeGitInstructions", "language", "model", "outputStyle", "promptSuggestionEnabled",
        "respectGitignore", "showThinkingSummaries", "taskOutputMaxChars", "timeFormat", "timeZone",
        "todoFeatureEnabled",
    )),
    "permissions": frozenset({
        "additionalDirectories", "allow", "ask", "defaultMode", "deny", "disableAutoMode",
        "disableBypassPermissionsMode",
    }),
    "sandbox": frozenset({
        "allowAppleEvents", "allowNestedUserNamespaces", "allowUnsandboxedCommands", "autoAllowBashIfSandboxed",
        "enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "enabled", "excludedCommands", "failIfUnavailable",
        "filesystem", "ignoreViolations", "network",
    }),
}  # fmt: skip
"""Settings, and keys in them, that run no program and start no MCP server. `env`, modes and paths have own checks."""
_SERVER_SETTINGS = frozenset({"enableAllProjectMcpServers", "enabledMcpjsonServers", "mcpServers"})
_KEY_SETTINGS = frozenset(
    {"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh", "otelHeadersHelper", "policyHelper"}
)
"""Settings by which a client brings a key of its own. All of them count as programs, too."""
_PLAIN_AGENT_FIELDS = frozenset({
    "autoCompactWindow", "background", "color", "description", "disallowedTools", "effort", "initialPrompt",
    "maxTurns", "mcpServers", "memory", "model", "omitClaudeMd", "permissionMode", "prompt", "skills", "tools",
})  # fmt: skip
_INITIALIZE_FIELDS = frozenset({
    "agentProgressSummaries", "agents", "appendSubagentSystemPrompt", "appendSystemPrompt", "excludeDynamicSections",
    "forwardSubagentText", "hooks", "jsonSchema", "managedSettings", "mcpServers", "perTaskStopAffordance",
    "planModeInstructions", "plugins", "promptSuggestions", "sdkMcpServerConfigs", "sdkMcpServerManifests",
    "sdkMcpServerManifestsOrigin", "sdkMcpServers", "skills", "subtype", "supportedDialogKinds", "systemPrompt",
    "systemPromptSnapshot", "title", "toolAliases",
})  # fmt: skip
_STARTING_FILES = ("*.json", "*.md", *(f"{name}/**" for name in (
    "agent-memory", "agents", "commands", "hooks", "output-styles", "plugins", "projects/*/memory", "rules", "skills",
    "workflows",
)))  # fmt: skip
"""What other sessions load from the directory of the CLI. The rest of it, such as plans, is written by tools."""


class Capabilities(Struct):
    """The powers that were found.

    Args:
        variables: names of variables that the session gets.
        references: names of variables whose values are put into addresses, headers or arguments.
        removed: names of variables that the client takes away.
        brings_key: whether a program of the client's provides the key.
        programs: keys of settings that may make the CLI run programs.
        has_servers: whether there are MCP servers that the CLI starts or calls.
        modes: requested permission modes.
        directories: paths that settings add to the session.
    """

    variables: set[str] = field(default_factory=set[str])
    removed: set[str] = field(default_factory=set[str])
    references: set[str] = field(default_factory=set[str])
    brings_key: bool = False
    programs: set[str] = field(default_factory=set[str])
    has_servers: bool = False
    modes: set[str] = field(default_factory=set[str])
    directories: set[str] = field(default_factory=set[str])

    def add_variables(self, variables: Any) -> None:
        """Add variables that are set or removed."""
        for name, value in _as_mapping(variables).items():
            (self.removed if value in (None, "") else self.variables).add(name)

    def add_settings(self, settings: Any) -> None:
        """Add the powers of CLI settings, also of managed ones."""
        found = _as_mapping(settings)
        self.add_variables(found.get("env"))
        given = {name for name, value in found.items() if value not in (None, False, {}, [])}
        self.brings_key |= bool(given & _KEY_SETTINGS)
        self.has_servers |= bool(given & _SERVER_SETTINGS)
        unknown = given - _PLAIN_SETTINGS.keys() - _SERVER_SETTINGS
        for name, plain in _PLAIN_SETTINGS.items():
            inner = _as_mapping(found.get(name)).keys() if plain is not None else ()
            unknown |= {f"{name}.{key}" for key in inner if key not in (plain or ())}
        self.programs |= unknown
        permissions = _as_mapping(found.get("permissions"))
        self._add_mode(permissions.get("defaultMode"))
        directories: Any = permissions.get("additionalDirectories")
        self.directories |= set(map(str, cast("list[Any]", directories) if isinstance(directories, list) else ()))
        self.references |= set(_iterate_references({name: found.get(name) for name in given if name in unknown}))

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
            given_fields = {name for name, value in agent.items() if value not in (None, False, {}, [])}
            self.programs |= given_fields - _PLAIN_AGENT_FIELDS
            self.references |= set(_iterate_references(agent.get("hooks")))
            given: Any = agent.get("mcpServers")
            for servers in cast("list[Any]", given) if isinstance(given, list) else [given]:
                self.add_servers(servers)  # a plain name refers to a server that exists already

    def _add_mode(self, mode: Any) -> None:
        if mode is not None:
            self.modes.add(str(mode))


def is_variable_name(name: str) -> bool:
    """Return whether this is the name of one variable."""
    return bool(_VARIABLE_NAME.fullmatch(name))


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
SETTING_SOURCES = ("user", "project", "local")
_WORD = re.compile(r"[A-Za-z-]+")
_PROGRAM_DIRECTORIES = ("plugin-dir", "plugin-dir-no-mcp")

FlagUse = Literal["switch", "value", "path", "settings", "servers", "agents"]


ALLOWED_FLAGS: dict[str, FlagUse] = {
    **{flag: use for name in CLIENT_OPTIONS for flag, use in TABLE[name].flags.items()},
    **dict.fromkeys(("input-format", "output-format", "print", "verbose"), "switch"),  # of every child
    "p": "switch",
    "resume": "switch",  # without a value: the latest conversation
    "agents": "agents",
    "managed-settings": "settings",
    "mcp-config": "servers",
    "settings": "settings",
}
"""Flags that a host accepts, with the use of their values: those of `CLIENT_OPTIONS`."""


def forbid(message: str) -> RefusedRequestError:
    """Build the refusal of what this host does not allow."""
    return RefusedRequestError("forbidden", message)


def reject(message: str) -> RefusedRequestError:
    """Build the refusal of what is not a valid request."""
    return RefusedRequestError("bad_request", message)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """What the operator of a host allows clients to do. By default most of what the CLI offers.

    Owners of further tokens (`--client`) are always clients. The token of the host is one as soon as a limit is set.

    Args:
        permission_mode: the highest permission mode: of "plan", "dontAsk", "default", "acceptEdits", "auto" and
            "bypassPermissions" (default), this one and those before it are allowed.
        programs: whether settings and agents of clients may have hooks, helpers, status lines and plugins.
        mcp_servers: whether clients may have MCP servers that the host starts or calls. Tools that run in the client
            are always allowed.
        settings: whether clients may pass settings at all.
        managed_settings: settings that apply to every session, as an administrator's do; clients may then pass none
            of these. They are arguments of the CLI, which other users of the machine can see: no keys.
        verbatim_prompts: whether prompts are sent unchanged: no `@path`, no `/command`. None (default): those of
            clients are.
        setting_sources: the settings files that sessions of clients load: of "user", "project" and "local". None
            (default): "user" alone. The settings of a repository may run programs, and send the host's key elsewhere.
        flags: names of further flags of the CLI that clients may pass, without dashes. Their values are not checked.

    Raises:
        UsageError: the permission mode or a source is unknown, `flags` has dashes, or `managed_settings` is not valid
            JSON or is too long.
    """

    permission_mode: str = "bypassPermissions"
    programs: bool = True
    mcp_servers: bool = True
    settings: bool = True
    managed_settings: Mapping[str, Any] | None = None
    verbatim_prompts: bool | None = None
    setting_sources: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.permission_mode not in MODES_BY_PERMISSIVENESS:
            raise UsageError(
                f"permission_mode: expected one of {', '.join(MODES_BY_PERMISSIVENESS)}, got {self.permission_mode!r}"
            )
        for source in self.setting_sources or ():
            if source not in SETTING_SOURCES:
                raise UsageError(f"setting_sources: expected {', '.join(SETTING_SOURCES)}, got {source!r}")
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

    @property
    def is_limited(self) -> bool:
        """Whether anything is taken away from clients."""
        all_allowed = self.programs and self.mcp_servers and self.settings and not self.verbatim_prompts
        return (
            not all_allowed or self.managed_settings is not None or self.permission_mode != MODES_BY_PERMISSIVENESS[-1]
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
    """What a host accepts from one owner.

    Args:
        cli: which CLI runs; clients cannot change it.
        roots: directories below which sessions may work; the first is the default working directory.
        env: names of variables that clients may set besides `CLIENT_VARIABLES`.
        base: base environment of the children, with the key.
        limits: what clients may do.
        explicit_names: variables of `base` that children elsewhere get too, besides those that clients set.
        owner: whose requests these are.
    """

    cli: str
    roots: tuple[str, ...]
    env: tuple[str, ...]
    base: Mapping[str, str]
    limits: ClientLimits = ClientLimits()
    explicit_names: tuple[str, ...] = ()
    owner: Owner = OPERATOR

    def for_owner(self, owner: Owner) -> HostPolicy:
        """Return what the host accepts from this owner."""
        return replace(self, owner=owner)

    @property
    def is_client(self) -> bool:
        """Whether the owner is a client, and not the operator without limits."""
        return not self.owner.is_operator or self.limits.is_limited

    @property
    def is_verbatim(self) -> bool:
        """Whether every prompt is sent unchanged."""
        chosen = self.limits.verbatim_prompts
        return self.is_client if chosen is None else chosen

    @property
    def start_rules(self) -> StartRules:
        """How the children are started."""
        sources = self.limits.setting_sources
        if sources is None and self.is_client:
            sources = ("user",)
        return StartRules(
            permission_mode=self.limits.permission_mode,
            setting_sources=sources,
            allowed_sources=sources,
            managed_settings=self.managed_settings,
            memory=not self.is_client,
        )

    @property
    def managed_settings(self) -> Mapping[str, Any] | None:
        """The settings that have the rank of an administrator's: those of the operator, and those of the limits."""
        limits, given = self.limits, dict(self.limits.managed_settings or {})
        if not limits.is_limited:
            return None
        permissions = dict(_as_mapping(given.get("permissions")))
        permissions["deny"] = [*cast("list[Any]", permissions.get("deny") or []), *self._list_protected()]
        if limits.permission_mode != MODES_BY_PERMISSIVENESS[-1]:
            permissions["disableBypassPermissionsMode"] = "disable"
        made: dict[str, Any] = {**given, "permissions": permissions}
        if not limits.programs:
            made = {
                "strictKnownMarketplaces": [],
                **made,
                "allowManagedHooksOnly": True,
                "disableSkillShellExecution": True,
            }
        if not limits.mcp_servers:
            made = {"allowedMcpServers": [], **made, "allowManagedMcpServersOnly": True}
        return made

    def _list_protected(self) -> list[str]:
        """Return rules for the files by which a session could give the next one what the limits take away."""
        home = self.base.get("HOME") or str(Path.home())
        paths = [f"{each}/{name}" for each in find_config_directories(self.base) for name in _STARTING_FILES]
        return [f"Edit(/{path})" for path in (*paths, f"{home}/.claude.json")]

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
        self.check_found(found, cwd, "the session")
        env = self._make_environment(launch.env, found)
        invocation = Invocation(
            cli=self.cli,
            argv=tuple(argv),
            trailing_args=launch.tail,
            files=tuple(files),
            env=env,
            explicit_env={name: env.get(name) for name in (*self.explicit_names, *launch.env)},
            cwd=cwd,
            is_isolated=launch.isolated,
        )
        try:
            return self.start_rules.apply(invocation)
        except OptionsError as error:
            raise forbid(str(error)) from None

    def check_found(self, found: Capabilities, cwd: str, where: str) -> None:
        """Refuse powers that the limits forbid, and directories that are not below a root.

        Raises:
            RefusedRequestError: a power is forbidden.
        """
        self.limits.check_capabilities(found, where)
        for directory in sorted(found.directories):
            self.resolve_path(directory, cwd, f"{where}: additionalDirectories")

    def resolve_path(self, path: str, cwd: str, where: str) -> str:
        """Return the path without links, so that the CLI gets exactly the path that was checked."""
        if path != path.strip() or path.startswith("~") or not path.isprintable():
            raise forbid(f"{where}: {path[:200]!a} is not a plain path: it has blanks around it, ~, or controls")
        real = os.path.realpath(os.path.join(cwd, path))  # noqa: PTH118 - Path has no realpath of its own
        if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.roots):
            raise forbid(
                f"{where}: {path[:200]!a} is not below {' or '.join(self.roots)}, where this host's sessions work; "
                "start a host for it with --root"
            )
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
        elif name == "managed-settings-in-initialize" and self.limits.is_limited:
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
        if name == "managed-settings" and self.limits.is_limited:
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
        if self.is_client and (unknown := body.keys() - _INITIALIZE_FIELDS):
            raise forbid(f"initialize: this host does not take {', '.join(sorted(unknown))[:200]!a}")
        found.add_agents(body.get("agents"))
        found.add_servers(body.get("mcpServers"))
        if body.get("plugins"):
            found.programs.add("plugins")
        if body.get("managedSettings"):
            self.inspect_settings("managed-settings", body["managedSettings"], found)

    def _check_tail(self, tail: Sequence[str]) -> None:
        # The prompt of the argv form: `--print "…"`, or `--print -- "-…"`. Before a `--`, all else would be a flag.
        words = [*tail]
        if words[:1] in (["--print"], ["-p"]):
            del words[0]
        is_guarded = words[:1] == ["--"]
        if is_guarded:
            del words[0]
        if len(words) > 1 or (words and words[0].startswith("-") and not is_guarded) or any("\0" in w for w in words):
            raise forbid("tail: this host takes --print and one prompt")
        if any(_WORD.fullmatch(word) for word in words):
            raise forbid("tail: a prompt of one word could be a command of the CLI; send it through stdin")
        if words and self.is_verbatim:
            raise forbid("tail: this host takes prompts through stdin, where they can be sent as they are")

    # Variables.

    def _check_variables(self, requested: Mapping[str, Any], where: str) -> None:
        for name, value in requested.items():
            if name not in CLIENT_VARIABLES and name not in self.env:
                raise forbid(f"{where}: this host does not take {name[:80]!a}; its operator may: --env NAME")
            text = "" if value is None else str(value)
            if "\0" in text or len(text) > MAX_ARGUMENT_CHARS:
                raise reject(f"{where}: {name[:80]!a} cannot be set to that")

    def needs_own_key(self, found: Capabilities) -> bool:
        """Return whether a client must bring its own key, because the host's could leak to the client's address."""
        secrets = {name for name, value in self.base.items() if secret_values({name: value})}
        # What the operator has named may lead to another API or make one trusted: the host cannot know.
        changed = found.variables | (found.removed & self.base.keys())
        is_redirecting = found.brings_key or bool(changed - _TUNING_VARIABLES - _KEY_VARIABLES)
        return is_redirecting or bool(found.references & secrets)

    def _make_environment(self, requested: Mapping[str, str | None], found: Capabilities) -> dict[str, str]:
        self._check_variables(requested, "env")
        base = {name: value for name, value in self.base.items() if name not in UNINHERITED_VARIABLES}
        if self.needs_own_key(found):
            if not requested.keys() & _KEY_VARIABLES:
                names = ", ".join(sorted(found.variables | found.removed))
                _log.warning("a session gets none of the host's keys, and brings none; its client sets: %s", names)
            base = {name: value for name, value in base.items() if not secret_values({name: value})}
        merged = {**base, **requested}
        return {name: value for name, value in merged.items() if value is not None}


def _parse_json(content: bytes) -> Any:
    """Parse JSON as the CLI would; None if it is invalid."""
    try:
        return decode_line(content)
    except LineDecodeError:
        return None


ALLOWED_TYPES = frozenset({"user", "control_request", "control_response", "control_cancel_request", "keep_alive"})
ALLOWED_REQUESTS = frozenset({
    "apply_flag_settings", "background_tasks", "cancel_async_message", "end_session", "get_binary_version",
    "get_context_usage", "get_hooks_listing", "get_plan", "get_session_cost", "get_settings", "get_task_output",
    "get_usage", "initialize", "interrupt", "list_models", "list_permission_rules", "mcp_message", "mcp_read_resource",
    "mcp_reconnect", "mcp_set_servers", "mcp_status", "mcp_toggle", "reload_output_styles", "reload_skills",
    "rename_session", "rewind_files", "set_max_thinking_tokens", "set_model", "set_permission_mode", "stop_task",
})  # fmt: skip
_PERMISSION_UPDATES = frozenset(
    {"addDirectories", "addRules", "removeDirectories", "removeRules", "replaceRules", "setMode"}
)
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
        self._is_limited = policy.is_client

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
            return self._check_response(frame, line)
        elif kind == "user" and self._policy.is_verbatim and frame.get("client_composed") is not True:
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
        if subtype == "initialize":
            self._policy.inspect_initialize(request, found)
        if isinstance(settings := request.get("settings"), Mapping):
            self._policy.inspect_settings("settings", cast("Mapping[str, Any]", settings), found)
        found.add_servers(request.get("servers"))
        if isinstance(mode := request.get("mode"), str):
            found.modes.add(mode)
        if request.get("add_plugins"):
            found.programs.add("plugins")
        self._policy.check_found(found, self._policy.roots[0], subtype)
        if self._policy.needs_own_key(found):
            raise forbid(f"{subtype}: give the address of the API and its key when the session starts")

    def _check_response(self, frame: Mapping[str, Any], line: bytes) -> bytes:
        """Return the answer of a client; what it permits lasts for this session, and is written to no settings file."""
        is_changed = False
        for update in _iterate_mappings(frame):
            if update.get("type") not in _PERMISSION_UPDATES:
                continue
            try:
                if update.get("type") == "setMode":
                    self._limits.check_mode(str(update.get("mode")), "the answer")
                directories: Any = update.get("directories")
                for directory in cast("list[Any]", directories) if isinstance(directories, list) else ():
                    self._policy.resolve_path(str(directory), self._policy.roots[0], "the answer")
            except RefusedRequestError as refusal:
                raise ProtocolError(str(refusal)) from None
            if update.get("destination") != "session":
                cast("dict[str, Any]", update)["destination"] = "session"
                is_changed = True
        return encode_json(frame) + b"\n" if is_changed else line


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
