"""The settings of Claude Code, as `settings` and `managed_settings` take them and as its settings files hold them.

Owns their names and types, for type checkers and editors. The keys are those of the pinned CLI; a newer one may have
others, which are passed on. `lost_settings` compares what was sent with what the CLI has taken.
"""

# ruff: noqa: N815 - the names of the CLI

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict

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
