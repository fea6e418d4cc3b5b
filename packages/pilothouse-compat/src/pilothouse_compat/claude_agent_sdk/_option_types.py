"""Values of options: permissions, MCP servers, agents, sandbox, thinking, and stores with their sessions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, Protocol, Required, TypeAlias, TypedDict

PermissionMode = Literal["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk", "auto"]
SdkBeta = Literal["context-1m-2025-08-07"]
SettingSource = Literal["user", "project", "local"]
EffortLevel: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class SystemPromptPreset(TypedDict):
    type: Literal["preset"]
    preset: Literal["claude_code"]
    append: NotRequired[str]
    exclude_dynamic_sections: NotRequired[bool]
    snapshot: NotRequired[bool]


class SystemPromptCustom(TypedDict):
    type: Literal["custom"]
    prompt: str
    snapshot: NotRequired[bool]


class SystemPromptFile(TypedDict):
    type: Literal["file"]
    path: str


class TaskBudget(TypedDict):
    total: int


class ToolsPreset(TypedDict):
    type: Literal["preset"]
    preset: Literal["claude_code"]


@dataclass
class AgentDefinition:
    """A sub-agent."""

    description: str
    prompt: str
    tools: list[str] | None = None
    disallowedTools: list[str] | None = None
    model: str | None = None
    skills: list[str] | None = None
    memory: Literal["user", "project", "local"] | None = None
    mcpServers: list[str | dict[str, Any]] | None = None
    initialPrompt: str | None = None
    maxTurns: int | None = None
    background: bool | None = None
    effort: EffortLevel | int | None = None
    permissionMode: PermissionMode | None = None


PermissionUpdateDestination = Literal["userSettings", "projectSettings", "localSettings", "session"]
PermissionBehavior = Literal["allow", "deny", "ask"]


@dataclass
class PermissionRuleValue:
    """A permission rule: a tool, and what it may do."""

    tool_name: str
    rule_content: str | None = None


@dataclass
class PermissionUpdate:
    """A change of permissions; `destination` None is the session."""

    type: Literal["addRules", "replaceRules", "removeRules", "setMode", "addDirectories", "removeDirectories"]
    rules: list[PermissionRuleValue] | None = None
    behavior: PermissionBehavior | None = None
    mode: PermissionMode | None = None
    directories: list[str] | None = None
    destination: PermissionUpdateDestination | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the update as the wire has it.

        Raises:
            ValueError: the type is unknown, or a field that it needs is None; the CLI would ignore all updates then.
        """
        if self.type not in _UPDATE_FIELDS:
            raise ValueError(
                f"PermissionUpdate has type {self.type!r}, which this version does not know; expected one of "
                f"{', '.join(_UPDATE_FIELDS)}"
            )
        made: dict[str, Any] = {"type": self.type, "destination": self.destination or "session"}
        for name in _UPDATE_FIELDS[self.type]:
            value = getattr(self, name)
            if value is None:
                raise ValueError(f"PermissionUpdate(type={self.type!r}) has no {name}")
            made[name] = [_rule_to_wire(rule) for rule in value] if name == "rules" else value
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PermissionUpdate":
        """Read an update as the wire has it."""
        rules: list[dict[str, Any]] | None = data.get("rules")
        given = {name: data.get(name) for name in ("behavior", "mode", "directories", "destination")}
        values = None if rules is None else [PermissionRuleValue(r["toolName"], r.get("ruleContent")) for r in rules]
        return cls(type=data["type"], rules=values, **given)


_RULES = ("rules", "behavior")
_UPDATE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("addRules", "replaceRules", "removeRules"), _RULES),
    "setMode": ("mode",),
    **dict.fromkeys(("addDirectories", "removeDirectories"), ("directories",)),
}


def _rule_to_wire(rule: PermissionRuleValue) -> dict[str, Any]:
    content = {} if rule.rule_content is None else {"ruleContent": rule.rule_content}
    return {"toolName": rule.tool_name, **content}


@dataclass
class ToolPermissionContext:
    """What `can_use_tool` gets besides the tool and its input."""

    signal: Any | None = None
    suggestions: list[PermissionUpdate] = field(default_factory=list[PermissionUpdate])
    tool_use_id: str | None = None
    agent_id: str | None = None
    blocked_path: str | None = None
    decision_reason: str | None = None
    title: str | None = None
    display_name: str | None = None
    description: str | None = None


@dataclass
class PermissionResultAllow:
    """The tool runs."""

    behavior: Literal["allow"] = "allow"
    updated_input: dict[str, Any] | None = None
    updated_permissions: list[PermissionUpdate] | None = None


@dataclass
class PermissionResultDeny:
    """The tool does not run; the model reads `message`."""

    behavior: Literal["deny"] = "deny"
    message: str = ""
    interrupt: bool = False


PermissionResult = PermissionResultAllow | PermissionResultDeny
CanUseTool = Callable[[str, dict[str, Any], ToolPermissionContext], Awaitable[PermissionResult]]


class McpStdioServerConfig(TypedDict):
    type: NotRequired[Literal["stdio"]]
    command: str
    args: NotRequired[list[str]]
    env: NotRequired[dict[str, str]]


class McpSSEServerConfig(TypedDict):
    type: Literal["sse"]
    url: str
    headers: NotRequired[dict[str, str]]


class McpHttpServerConfig(TypedDict):
    type: Literal["http"]
    url: str
    headers: NotRequired[dict[str, str]]


class McpSdkServerConfig(TypedDict):
    type: Literal["sdk"]
    name: str
    instance: Any


McpServerConfig = McpStdioServerConfig | McpSSEServerConfig | McpHttpServerConfig | McpSdkServerConfig


class McpSdkServerConfigStatus(TypedDict):
    type: Literal["sdk"]
    name: str


class McpClaudeAIProxyServerConfig(TypedDict):
    type: Literal["claudeai-proxy"]
    url: str
    id: str


McpServerStatusConfig = (
    McpStdioServerConfig
    | McpSSEServerConfig
    | McpHttpServerConfig
    | McpSdkServerConfigStatus
    | McpClaudeAIProxyServerConfig
)


class McpToolAnnotations(TypedDict, total=False):
    readOnly: bool
    destructive: bool
    openWorld: bool


class McpToolInfo(TypedDict):
    name: str
    description: NotRequired[str]
    annotations: NotRequired[McpToolAnnotations]


class McpServerInfo(TypedDict):
    name: str
    version: str


McpServerConnectionStatus = Literal["connected", "failed", "needs-auth", "pending", "disabled"]


class McpServerStatus(TypedDict):
    name: str
    status: McpServerConnectionStatus
    serverInfo: NotRequired[McpServerInfo]
    error: NotRequired[str]
    config: NotRequired[McpServerStatusConfig]
    scope: NotRequired[str]
    tools: NotRequired[list[McpToolInfo]]


class McpStatusResponse(TypedDict):
    mcpServers: list[McpServerStatus]


class ContextUsageCategory(TypedDict):
    name: str
    tokens: int
    color: str
    isDeferred: NotRequired[bool]


class ContextUsageResponse(TypedDict):
    categories: list[ContextUsageCategory]
    totalTokens: int
    maxTokens: int
    rawMaxTokens: int
    percentage: float
    model: str
    isAutoCompactEnabled: bool
    memoryFiles: list[dict[str, Any]]
    mcpTools: list[dict[str, Any]]
    agents: list[dict[str, Any]]
    gridRows: list[list[dict[str, Any]]]
    autoCompactThreshold: NotRequired[int]
    deferredBuiltinTools: NotRequired[list[dict[str, Any]]]
    systemTools: NotRequired[list[dict[str, Any]]]
    systemPromptSections: NotRequired[list[dict[str, Any]]]
    slashCommands: NotRequired[dict[str, Any]]
    skills: NotRequired[dict[str, Any]]
    messageBreakdown: NotRequired[dict[str, Any]]
    apiUsage: NotRequired[dict[str, Any] | None]


class SdkPluginConfig(TypedDict):
    type: Literal["local"]
    path: str


class SandboxNetworkConfig(TypedDict, total=False):
    allowedDomains: list[str]
    deniedDomains: list[str]
    allowManagedDomainsOnly: bool
    allowUnixSockets: list[str]
    allowAllUnixSockets: bool
    allowLocalBinding: bool
    allowMachLookup: list[str]
    httpProxyPort: int
    socksProxyPort: int


SandboxIgnoreViolations: TypeAlias = dict[str, list[str]]


class SandboxSettings(TypedDict, total=False):
    enabled: bool
    autoAllowBashIfSandboxed: bool
    excludedCommands: list[str]
    allowUnsandboxedCommands: bool
    network: SandboxNetworkConfig
    ignoreViolations: SandboxIgnoreViolations
    enableWeakerNestedSandbox: bool


ThinkingDisplay = Literal["summarized", "omitted"]


class ThinkingConfigAdaptive(TypedDict):
    type: Literal["adaptive"]
    display: NotRequired[ThinkingDisplay]


class ThinkingConfigEnabled(TypedDict):
    type: Literal["enabled"]
    budget_tokens: int
    display: NotRequired[ThinkingDisplay]


class ThinkingConfigDisabled(TypedDict):
    type: Literal["disabled"]


ThinkingConfig = ThinkingConfigAdaptive | ThinkingConfigEnabled | ThinkingConfigDisabled


class SessionKey(TypedDict):
    project_key: str
    session_id: str
    subpath: NotRequired[str]


class SessionStoreEntry(TypedDict, total=False):
    type: Required[str]
    uuid: str
    timestamp: str


class SessionStoreListEntry(TypedDict):
    session_id: str
    mtime: int


class SessionSummaryEntry(TypedDict):
    session_id: str
    mtime: int
    data: dict[str, Any]


class SessionListSubkeysKey(TypedDict):
    project_key: str
    session_id: str


SessionStoreFlushMode = Literal["batched", "eager"]


class SessionStore(Protocol):
    """Where sessions are kept beside the disk. `append` and `load` are required, the rest may be missing."""

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries at the end; those with a `uuid` may come twice."""
        ...

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries; None if there never were any."""
        ...

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project."""
        raise NotImplementedError

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of a project, as `fold_session_summary` makes them."""
        raise NotImplementedError

    async def delete(self, key: SessionKey) -> None:
        """Remove a session with all its subpaths, or one subpath."""
        raise NotImplementedError

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session."""
        raise NotImplementedError


@dataclass
class SDKSessionInfo:
    """A session in a list; times in milliseconds."""

    session_id: str
    summary: str
    last_modified: int
    file_size: int | None = None
    custom_title: str | None = None
    first_prompt: str | None = None
    git_branch: str | None = None
    cwd: str | None = None
    tag: str | None = None
    created_at: int | None = None


@dataclass
class SessionMessage:
    """A message of a saved session."""

    type: Literal["user", "assistant"]
    uuid: str
    session_id: str
    message: Any
    parent_tool_use_id: str | None = None
    parent_agent_id: str | None = None
