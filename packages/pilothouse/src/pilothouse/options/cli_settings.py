"""The settings of Claude Code, as `settings` and `managed_settings` take them and as its settings files hold them.

Owns their names and types, for type checkers and editors. The keys are those of the pinned CLI; a newer one may have
others, which are passed on.

Also what the CLI does not take of the settings that were sent: how both compare, and which losses matter. The CLI drops
settings that it cannot read, a part of them or all, and goes on without. Pure: what the CLI says that it took is an
argument.
"""

# ruff: noqa: N815 - the names of the CLI

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict, cast

from msgspec import Struct

from pilothouse.hints import find_similar_name
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options.permission_rules import has_blank_in_name
from pilothouse.options.secrets import MASK

Strings: TypeAlias = list[str] | tuple[str, ...]
"""Not `Sequence[str]`: a text is one, and the CLI drops all settings if it gets a text where a list belongs."""
SavedEffort: TypeAlias = Literal["low", "medium", "high", "xhigh"]
CacheTime: TypeAlias = Literal["5m", "1h"]
WaitTime: TypeAlias = Literal["60s", "5m", "10m", "never"]
ManagedSources: TypeAlias = Literal["first-wins", "merge"]


class CliPermissions(TypedDict, total=False):
    """Permission rules and modes: the key `permissions` of `CliSettings`."""

    allow: Strings
    """Rules for calls that run without a permission request, such as "Bash(git log:*)"."""
    deny: Strings
    """Rules for calls that never run. They win over `ask` and `allow`."""
    ask: Strings
    """Rules for calls that always need permission. They win over `allow`."""
    defaultMode: Literal["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "plan"]
    """The permission mode at the start."""
    disableBypassPermissionsMode: Literal["disable"]
    """Refuse the mode "bypassPermissions"."""
    disableAutoMode: Literal["disable"]
    """Refuse the mode "auto"."""
    denyInsteadOfPrompting: bool
    """Deny what would need permission, and ask nobody."""
    additionalDirectories: Strings
    """Directories that count as working directories, besides `cwd`."""
    blockReadsOutsideWorkingDirectories: bool
    """Keep the file tools from reading elsewhere."""
    blockReadsExemptPaths: Strings
    """Paths that may be read all the same."""
    blockWritesOutsideWorkingDirectories: bool
    """Keep the file tools from writing elsewhere."""
    workingDirectoriesAsGiven: Strings
    """Working directories whose links are not followed."""
    workingDirectoriesExclude: Strings
    """Directories that do not count as working directories."""


_HookWords = TypedDict("_HookWords", {"if": str, "async": bool}, total=False)  # words of Python


class CliHook(_HookWords, total=False):
    """What a hook of a settings file runs: one entry of `hooks` in a `CliHookMatcher`."""

    type: Required[Literal["command", "prompt", "agent", "http", "mcp_tool"]]
    command: str
    """For "command": the shell command; with `args` the program."""
    args: Strings
    shell: Literal["bash", "powershell"]
    prompt: str
    """For "prompt" and "agent": what a model is asked."""
    model: str
    continueOnBlock: bool
    url: str
    """For "http": where the event is posted to."""
    headers: Mapping[str, str]
    allowedEnvVars: Strings
    """Variables whose values may be put into `headers`."""
    server: str
    """For "mcp_tool": the MCP server, with the name of its `tool` and the `input`."""
    tool: str
    input: Mapping[str, Any]
    timeout: float
    """Seconds."""
    onFailure: Literal["continue", "block"]
    """What a hook that fails means for the call."""
    statusMessage: str
    once: bool
    """Run it once in a session."""
    asyncRewake: bool


class CliHookMatcher(TypedDict, total=False):
    """The hooks of one event that run when `matcher` fits, such as "Bash" or "Edit|Write"."""

    matcher: str
    hooks: Required[Sequence[CliHook | Mapping[str, Any]]]


class CliSandboxNetwork(TypedDict, total=False):
    """What sandboxed commands reach over the network."""

    allowedDomains: Strings
    deniedDomains: Strings
    strictAllowlist: bool
    """Refuse other domains instead of asking."""
    allowManagedDomainsOnly: bool
    allowUnixSockets: Strings
    allowAllUnixSockets: bool
    allowLocalBinding: bool
    allowMachLookup: Strings
    httpProxyPort: int
    socksProxyPort: int
    tlsTerminate: Mapping[str, str]


class CliSandboxFilesystem(TypedDict, total=False):
    """What sandboxed commands see of the disk."""

    allowWrite: Strings
    denyWrite: Strings
    denyRead: Strings
    allowRead: Strings
    allowManagedReadPathsOnly: bool
    disabled: bool


class CliSandbox(TypedDict, total=False):
    """The sandbox for commands, in the words of the CLI; the option `sandbox` has the same in those of Python."""

    enabled: bool
    failIfUnavailable: bool
    autoAllowBashIfSandboxed: bool
    allowUnsandboxedCommands: bool
    network: CliSandboxNetwork
    filesystem: CliSandboxFilesystem
    credentials: Mapping[str, Any]
    """Files and variables that commands do not see."""
    ignoreViolations: Mapping[str, Strings]
    enableWeakerNestedSandbox: bool
    allowNestedUserNamespaces: bool
    enableWeakerNetworkIsolation: bool
    allowAppleEvents: bool
    excludedCommands: Strings
    """Commands that run outside."""
    ripgrep: Mapping[str, Any]
    bwrapPath: str
    socatPath: str


_Schema = TypedDict("_Schema", {"$schema": str}, total=False)


class CliSettings(_Schema, total=False):
    """Settings of Claude Code, for `settings`, `managed_settings` and `session.settings.apply`. All keys are optional.

    ::

        rules: CliSettings = {"permissions": {"deny": ["Bash(git push:*)"]}}
        agent = ph.Agent(settings=rules)
    """

    # Permissions, hooks and the sandbox.

    permissions: CliPermissions
    hooks: Mapping[str, Sequence[CliHookMatcher | Mapping[str, Any]]]
    """Hooks by event, such as "PreToolUse". They run in the CLI; the option `hooks` takes Python functions."""
    sandbox: CliSandbox
    disableAllHooks: bool
    """Run no hooks of settings files and plugins."""
    disableSkillShellExecution: bool
    """Replace the shell commands of skills and slash commands with a placeholder."""
    allowedHttpHookUrls: Strings
    httpHookAllowedEnvVars: Strings
    autoMode: Mapping[str, Any]
    """What the classifier of the mode "auto" is told."""
    disableAutoMode: Literal["disable"]
    useAutoModeDuringPlan: bool
    skipWebFetchPreflight: bool

    # The model.

    model: str
    fallbackModel: Strings
    availableModels: Strings
    """The only models that may be chosen."""
    availableModelsMatch: Literal["prefix", "exact"]
    enforceAvailableModels: bool
    deniedModels: Strings
    """Models that may not be chosen, whatever `availableModels` says."""
    modelOverrides: Mapping[str, str]
    """The provider's names of models, by their name at Anthropic."""
    modelPicker: Mapping[str, Any]
    modelPricing: Mapping[str, Any]
    """Contracted prices. They change `total_cost_usd`, and what `max_budget_usd` allows."""
    modelSettings: Mapping[str, Mapping[str, Any]]
    advisorModel: str
    effortLevel: SavedEffort
    maxEffortLevel: Literal["low", "medium", "high", "xhigh", "max"]
    alwaysThinkingEnabled: bool
    showThinkingSummaries: bool
    fastMode: bool
    fastModePerSessionOptIn: bool
    ultracode: bool
    switchModelsOnFlag: bool
    promptCacheTtl: CacheTime
    subagentPromptCacheTtl: CacheTime
    autoCompactEnabled: bool
    autoCompactWindow: int
    precomputeCompactionEnabled: bool
    idleCompaction: bool

    # The conversation.

    agent: str
    """The agent that leads the conversation."""
    outputStyle: str
    language: str
    env: Mapping[str, str]
    """Environment variables of the session."""
    attribution: bool | Mapping[str, Any]
    """What the CLI writes below commits and pull requests; False: nothing."""
    includeCoAuthoredBy: bool
    """Deprecated: use `attribution`."""
    attributionProject: str
    includeGitInstructions: bool
    cleanupPeriodDays: float
    """Days after which conversations are deleted. Default 30, at least 1."""
    desktopSessionCleanupPeriodDays: float
    fileCheckpointingEnabled: bool
    plansDirectory: str
    worktree: Mapping[str, Any]
    autoMemoryEnabled: bool
    autoMemoryDirectory: str
    autoDreamEnabled: bool
    claudeMdExcludes: Strings
    promptSuggestionEnabled: bool
    autoContinueAtUsageLimit: bool
    askUserQuestionTimeout: WaitTime
    dialogExpiry: WaitTime
    respectGitignore: bool
    defaultShell: Literal["bash", "powershell"]
    bashEditDiffEnabled: bool
    bashOutputMaxChars: int
    taskOutputMaxChars: int
    """Deprecated: has no effect."""
    respondToBashCommands: bool
    disableWindowsBashCommandSplit: bool
    todoFeatureEnabled: bool
    teammateMode: Literal["auto", "tmux", "iterm2", "in-process"]

    # MCP servers, skills and plugins.

    enableAllProjectMcpServers: bool
    """Approve the MCP servers of the project without a question."""
    enabledMcpjsonServers: Strings
    disabledMcpjsonServers: Strings
    allowedMcpServers: Sequence[Mapping[str, Any]]
    deniedMcpServers: Sequence[Mapping[str, Any]]
    disableClaudeAiConnectors: bool
    skillOverrides: Mapping[str, Literal["on", "name-only", "user-invocable-only", "off"]]
    disableBundledSkills: bool
    skillListingMaxDescChars: int
    skillListingBudgetFraction: float
    syncClaudeAiSkills: bool
    syncClaudeAiPlugins: bool
    enabledPlugins: Mapping[str, bool | Strings | Mapping[str, Any]]
    prependPlugins: Strings
    appendPlugins: Strings
    pluginConfigs: Mapping[str, Mapping[str, Any]]
    extraKnownMarketplaces: Mapping[str, Mapping[str, Any]]
    additionalMarketplaces: Mapping[str, Mapping[str, Any]]
    pluginSuggestionMarketplaces: Strings
    enableArtifact: bool
    disableArtifact: bool
    """Deprecated: use `enableArtifact`."""
    enableWorkflows: bool
    disableWorkflows: bool
    workflowSizeGuideline: Literal["unrestricted", "small", "medium", "large"]
    workflowKeywordTriggerEnabled: bool

    # Keys, login, network.

    apiKeyHelper: str
    """A command that prints the key of the API."""
    proxyAuthHelper: str
    awsCredentialExport: str
    awsAuthRefresh: str
    gcpAuthRefresh: str
    otelHeadersHelper: str
    forceLoginMethod: Literal["claudeai", "console", "gateway"]
    forceLoginOrgUUID: str | Strings
    forceLoginGatewayUrl: str
    gatewayInternalNetworks: Strings
    allowNestedModelAccessUnderForceLogin: bool
    allowedProviders: Strings
    processWrapper: str
    remote: Mapping[str, Any]
    sshConfigs: Sequence[Mapping[str, Any]]
    sshHostCommands: Sequence[Mapping[str, Any]]

    # What the CLI takes from managed settings only.

    allowManagedHooksOnly: bool
    allowManagedPermissionRulesOnly: bool
    allowManagedMcpServersOnly: bool
    allowAllClaudeAiMcps: bool
    allowClaudeInChromeWithManagedMcp: bool
    managedMcpServers: Mapping[str, Mapping[str, Any]]
    strictPluginOnlyCustomization: bool | Sequence[Literal["skills", "agents", "hooks", "mcp"]]
    strictKnownMarketplaces: Sequence[Mapping[str, Any]]
    allowedMarketplaces: Sequence[Mapping[str, Any]]
    blockedMarketplaces: Sequence[Mapping[str, Any]]
    disableCommandPluginSources: bool
    disableSideloadFlags: bool
    disableAgentView: bool
    disableRemoteControl: bool
    disableReplyCheck: bool
    disableDeepLinkRegistration: Literal["disable"]
    policyHelper: Mapping[str, Any]
    parentSettingsBehavior: ManagedSources
    managedSourcesBehavior: ManagedSources
    forceRemoteSettingsRefresh: bool
    wslInheritsWindowsSettings: bool
    requiredMinimumVersion: str
    requiredMaximumVersion: str
    attributionProjectPolicy: Mapping[str, Any]
    channelsEnabled: bool
    allowedChannelPlugins: Sequence[Mapping[str, str]]
    desktopMcpServersListScope: str
    companyAnnouncements: Strings
    pluginTrustMessage: str
    claudeMd: str

    # Updates, and other sessions.

    autoUpdatesChannel: Literal["latest", "stable", "rc"]
    minimumVersion: str
    downloadsMirrorUrl: str
    daemonColdStart: Literal["transient", "ask"]
    remoteControlAtStartup: bool
    isolatePeerMachines: bool
    crossSessionInbound: Literal["accept", "hold", "refuse"]
    autoUploadSessions: bool
    inputNeededNotifEnabled: bool
    agentPushNotifEnabled: bool

    # The terminal. These change nothing in a session of pilothouse.

    theme: str
    tui: Literal["default", "fullscreen"]
    verbose: bool
    viewMode: Literal["default", "verbose", "focus"]
    defaultView: Literal["chat", "transcript"]
    editorMode: Literal["normal", "vim"]
    keybindingFlavor: Literal["classic", "readline"]
    vimInsertModeRemaps: Mapping[str, str]
    statusLine: Mapping[str, Any]
    subagentStatusLine: Mapping[str, Any]
    fileSuggestion: Mapping[str, Any]
    footerLinksRegexes: Sequence[Mapping[str, Any]]
    prUrlTemplate: str
    spinnerTipsEnabled: bool
    spinnerTipsOverride: Mapping[str, Any]
    spinnerVerbs: Mapping[str, Any]
    spellcheck: Mapping[str, Any]
    syntaxHighlightingDisabled: bool
    maxProseWidth: int
    terminalTitleFromRename: bool
    terminalProgressBarEnabled: bool
    emojiCompletionEnabled: bool
    showClearContextOnPlanAccept: bool
    showTurnDuration: bool
    showMessageTimestamps: bool
    prefersReducedMotion: bool
    timeFormat: str
    timeZone: str
    autoScrollEnabled: bool
    wheelScrollAccelerationEnabled: bool
    preferredNotifChannel: str
    feedbackSurveyRate: float
    feedbackDrafts: Literal["notify", "quiet", "off"]
    skipDangerousModePermissionPrompt: bool
    skipAutoPermissionPrompt: bool
    voice: Mapping[str, Any]
    voiceEnabled: bool


SettingPath: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead to a value, such as ("permissions", "deny", 0)."""

_KEYS_BY_PLACE: Mapping[SettingPath, frozenset[str]] = {
    (): frozenset(CliSettings.__annotations__),
    ("permissions",): frozenset(CliPermissions.__annotations__),
}
"""The known keys of the mappings from which the CLI passes unknown keys on, and ignores them."""
_RESTRICTIVE_PREFIXES = (
    *("allowManaged", "allowed", "available", "block", "denied", "deny", "disable", "enforce", "force", "maxEffort"),
    *("required", "strict"),
)
_NOT_RESTRICTIVE = frozenset({"blockReadsExemptPaths"})
_PERMISSIVE_SANDBOX_KEYS = frozenset(
    {"allowAllUnixSockets", "allowAppleEvents", "allowLocalBinding", "allowMachLookup", "allowNestedUserNamespaces"}
    | {"allowRead", "allowUnixSockets", "allowWrite", "allowedDomains", "autoAllowBashIfSandboxed", "excludedCommands"}
    | {"enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "ignoreViolations"}
)
# What the CLI takes under another name from managed settings.
_OTHER_NAMES = {"disableAllHooks": "allowManagedHooksOnly", "includeCoAuthoredBy": "attribution"}


class LostSetting(Struct, frozen=True):
    """A part of the settings that the CLI did not take.

    Args:
        path: where it is.
        value: what was sent.
    """

    path: SettingPath
    value: Any

    @property
    def place(self) -> str:
        """The path as people write it: `permissions.deny[0]`."""
        return format_path(self.path)

    @property
    def is_restriction(self) -> bool:
        """Whether the CLI may now do something that the settings forbid, or does not call a hook."""
        match self.path:
            case ("permissions", "deny" | "ask", *_) | ("permissions",) | ("permissions", int()):
                return True
            case ("hooks",) | ("hooks", _):
                return True
            case ("hooks", *rest):  # an entry, and not one of its details
                return isinstance(rest[-1], int) or rest[-1] in ("hooks", "matcher")
            case ("sandbox", *rest):
                names = [name for name in rest if isinstance(name, str)]
                is_off = self.value is False and names != ["allowUnsandboxedCommands"]
                return not is_off and _PERMISSIVE_SANDBOX_KEYS.isdisjoint(names)
            case (str(name),) | ("permissions", str(name)):
                is_strict = name.startswith(_RESTRICTIVE_PREFIXES) and name not in _NOT_RESTRICTIVE
                return is_strict and self.value is not False
            case (str(name), *_):
                return name.startswith(_RESTRICTIVE_PREFIXES)
            case _:
                return False


def find_lost(sent: Any, taken: Any, path: SettingPath = ()) -> Iterator[LostSetting]:
    """Find what the CLI did not take.

    Args:
        sent: what was sent.
        taken: what the CLI says that it took, at the same place; it may hold more.
        path: of this place.
    """
    if isinstance(sent, Mapping):
        has = as_mapping(taken)
        for name, value in cast("Mapping[str, Any]", sent).items():
            if name in has:
                yield from find_lost(value, has[name], (*path, name))
            elif isinstance(value, Mapping) or _is_list_of_texts(value):
                yield from find_lost(value, None, (*path, name))
            elif value not in (None, []) and not (path == () and _OTHER_NAMES.get(name) in has):
                yield LostSetting((*path, name), value)
    elif isinstance(sent, list | tuple):
        yield from _find_lost_items(list(cast("Sequence[Any]", sent)), taken, path)
    elif sent is not None and taken not in (sent, MASK) and path[:1] != ("env",):  # the CLI makes text of variables
        yield LostSetting(path, sent)


def _is_list_of_texts(value: Any) -> bool:
    """Whether each item can be told apart by itself, as a rule can."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(each, str) for each in items)


def _find_lost_items(sent: list[Any], taken: Any, path: SettingPath) -> Iterator[LostSetting]:
    has = cast("list[Any]", taken) if isinstance(taken, list) else []
    is_same_length = len(sent) == len(has)
    for at, item in enumerate(sent):
        if item in has or (is_same_length and MASK in str(has[at])):  # as in a recording
            continue
        if is_same_length and isinstance(item, Mapping):
            yield from find_lost(item, has[at], (*path, at))
        else:
            yield LostSetting((*path, at), item)


def find_dead_rules(settings: Any) -> Iterator[LostSetting]:
    """Find deny and ask rules that the CLI takes and never applies: with a blank in the name of the tool."""
    permissions = as_mapping(as_mapping(settings).get("permissions"))
    for behavior in ("deny", "ask"):
        rules = permissions.get(behavior)
        for at, rule in enumerate(cast("list[Any]", rules) if isinstance(rules, list) else []):
            if isinstance(rule, str) and has_blank_in_name(rule):
                yield LostSetting(("permissions", behavior, at), rule)


def find_unknown_keys(settings: Mapping[str, Any]) -> Iterator[SettingPath]:
    """Find the keys that no setting of the CLI has, where the CLI ignores them without a word."""
    for place, known in _KEYS_BY_PLACE.items():
        found: Any = settings
        for name in place:
            found = as_mapping(found).get(str(name))
        yield from ((*place, name) for name in as_mapping(found) if name not in known)


def find_similar_key(path: SettingPath) -> str | None:
    """Return the known key that an unknown one was probably meant to be."""
    known = _KEYS_BY_PLACE.get(path[:-1], ())
    found = find_similar_name(str(path[-1]), known, 0.75)
    return None if found is None else format_path((*path[:-1], found))


def format_path(path: SettingPath) -> str:
    """Return a path as people write it: `permissions.deny[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
