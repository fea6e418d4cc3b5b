"""The table of options: name, value type, default, documentation, and where each value goes.

Validation, rendering, the docs and the command-line flags read this table. Only the static type of an option is
elsewhere: in `settings`, `options` and `builder`.
"""

from __future__ import annotations

import msgspec

from pilothouse.options import targets, value_types
from pilothouse.options.option import Option, allow_any, is_not_greater, is_on, is_subset, is_superset
from pilothouse.options.targets import (
    ConfigFlag,
    EnvSwitch,
    EnvVar,
    Flag,
    InitializeField,
    Internal,
    JsonFlag,
    ListFlag,
    PartOfOption,
    PathFlag,
    RepeatedFlag,
    SplitTarget,
    Switch,
    SwitchOrFlag,
    TextFlag,
)

MODEL = (
    Option(
        "model",
        value_types.NAME,
        Flag("model"),
        "Model alias ('sonnet', 'opus', 'haiku') or full model id.",
        untrusted=allow_any,
    ),
    Option(
        "fallback_model",
        value_types.MODELS,
        Flag("fallback-model"),
        "Model to use while the first one is overloaded; or a list of models in the order to try.",
        untrusted=allow_any,
    ),
    Option(
        "effort",
        value_types.EFFORT,
        Flag("effort"),
        "Effort of the model for its answer.",
        untrusted=allow_any,
    ),
    Option(
        "thinking",
        value_types.THINKING,
        SplitTarget(targets.split_struct, targets.THINKING_TARGETS),
        "Thinking of the model: 'adaptive', 'disabled', or a struct with a budget or display settings. Overrides "
        "`max_thinking_tokens`.",
        untrusted=allow_any,
    ),
    Option(
        "max_thinking_tokens",
        value_types.WHOLE_NUMBER,
        Flag("max-thinking-tokens"),
        "Thinking budget in tokens, for models that support one.",
        untrusted=allow_any,
    ),
    Option(
        "max_output_tokens",
        value_types.COUNT,
        EnvVar("CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
        "Maximum tokens of one answer of the model.",
        untrusted=is_not_greater,
    ),
    Option(
        "task_budget",
        value_types.TASK_BUDGET,
        Flag("task-budget"),
        "Token budget of the whole task; the API shows the model the remaining tokens.",
        untrusted=allow_any,
    ),
    Option("betas", value_types.NAMES, ListFlag("betas"), "Beta features of the API, such as 'context-1m-2025-08-07'."),
)

PROMPT = (
    Option(
        "system_prompt",
        value_types.SYSTEM_PROMPT,
        SplitTarget(targets.split_system_prompt, targets.PROMPT_TARGETS),
        "Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it.",
    ),
    Option(
        "append_system_prompt",
        value_types.TEXT,
        TextFlag("append-system-prompt", "append-system-prompt-file"),
        "Added to the end of the system prompt.",
    ),
    Option(
        "append_subagent_system_prompt",
        value_types.TEXT,
        TextFlag("append-subagent-system-prompt", "append-subagent-system-prompt-file"),
        "Added to the end of the system prompt of every sub-agent.",
    ),
    Option(
        "plan_mode_instructions",
        value_types.TEXT,
        TextFlag("plan-mode-instructions", key="planModeInstructions"),
        "Instructions for plan mode, instead of the usual ones.",
    ),
    Option(
        "verbatim_prompts",
        value_types.BOOL,
        Internal("client_composed"),
        "Send prompts as written: no `@path` expansion and no `/command`.",
        default=False,
        untrusted=is_on,
    ),
    Option(
        "prompt_via",
        value_types.PROMPT_VIA,
        Internal(),
        "How the prompt is sent. 'argv' is the plain one-shot form: no control protocol, prompts of at most 128 KiB.",
        default="stdin",
    ),
)

TOOLS = (
    Option(
        "tools",
        value_types.TOOLS,
        ListFlag("tools"),
        "The available built-in tools; [] for none, 'default' for all.",
        untrusted=is_subset,
    ),
    Option(
        "allowed_tools",
        value_types.NAMES,
        ListFlag("allowedTools"),
        "Tools that run without a permission request, such as 'Bash(git:*)'. To remove tools, use `tools`.",
    ),
    Option(
        "disallowed_tools",
        value_types.NAMES,
        ListFlag("disallowedTools"),
        "Tools that may not be used.",
        untrusted=is_superset,
    ),
    Option(
        "tool_aliases",
        value_types.ALIASES,
        InitializeField("toolAliases"),
        "Replacements of built-in tools, by the name of the built-in tool.",
    ),
    Option(
        "tool_config",
        value_types.TOOL_CONFIG,
        SplitTarget(targets.split_struct, (targets.PREVIEW_FORMAT,)),
        "Settings of individual built-in tools.",
    ),
    Option(
        "skills",
        value_types.SKILLS,
        SplitTarget(targets.split_skills, (targets.SKILL_NAMES,)),
        "Skills that the model may use without a permission request, or 'all'; loads the settings of user and "
        "project, unless `setting_sources` is set.",
    ),
    Option(
        "disable_slash_commands",
        value_types.BOOL,
        Switch("disable-slash-commands"),
        "No skills and no commands at all.",
        default=False,
        untrusted=is_on,
    ),
    Option("agent", value_types.NAME, Flag("agent"), "Name of the agent that leads the conversation."),
    Option(
        "agents",
        value_types.AGENTS,
        JsonFlag("agents", "agents", private=True),
        "Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model.",
    ),
    Option(
        "mcp_servers",
        value_types.MCP_SERVERS,
        ConfigFlag("mcp-config", "mcpServers"),
        "MCP servers by name: a StdioServer, HttpServer or SseServer each, or a server in this process, made by "
        "`sdk_server` or `mount`; or a path to a config file.",
    ),
    Option(
        "custom_tools",
        value_types.FUNCTIONS,
        Internal(),
        "Functions of this process that the model may call, plain or made by `@tool`.",
        in_files=False,
    ),
    Option(
        "tool_bridge",
        value_types.TOOL_BRIDGE,
        Internal(),
        "How calls of `custom_tools` reach this process: 'mcp': the CLI sends a request; 'deferred': the turn "
        "ends, and all its calls run here; 'xml': as text, without MCP and without the CLI's own tools.",
        default="mcp",
    ),
    Option(
        "strict_mcp_config",
        value_types.BOOL,
        Switch("strict-mcp-config"),
        "Use only the MCP servers of `mcp_servers`.",
        default=False,
        untrusted=is_on,
    ),
    Option(
        "wait_for_mcp",
        value_types.WAIT_FOR_MCP,
        Internal(),
        "Seconds to wait for the MCP servers before the first prompt; True: 60. If one of `mcp_servers` fails or "
        "is late, ControlError or ControlTimeout names it, and nothing is sent; other servers may fail.",
        default=False,
        untrusted=allow_any,
    ),
)

PERMISSIONS = (
    Option(
        "permission_mode",
        value_types.PERMISSION_MODE,
        Flag("permission-mode"),
        "Mode that decides tool calls without a matching rule, such as 'acceptEdits'.",
    ),
    Option(
        "allow_dangerously_skip_permissions",
        value_types.BOOL,
        Switch("allow-dangerously-skip-permissions"),
        "Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough.",
        default=False,
    ),
    Option(
        "permission_prompt_tool_name",
        value_types.NAME,
        Flag("permission-prompt-tool"),
        "MCP tool that decides permission requests, as 'mcp__server__tool'.",
    ),
    Option(
        "permission_prompts",
        value_types.PERMISSION_PROMPTS,
        Flag("permission-prompts"),
        "Where permission requests go: 'host', which is this program, or 'none': they are denied.",
    ),
    Option(
        "can_use_tool",
        value_types.CALLABLE,
        Internal(),
        "Function that decides a tool call, called with a PermissionRequest; returns Allow, Deny, Confirm, True "
        "or False.",
        in_files=False,
    ),
    Option(
        "confirm",
        value_types.CALLABLE,
        Internal(),
        "Function that asks a person, called with a text and the PermissionRequest; returns True or False.",
        in_files=False,
    ),
    Option(
        "on_question",
        value_types.CALLABLE,
        Internal(),
        "Function that answers questions of the model, called with a QuestionRequest; returns the answers.",
        in_files=False,
    ),
    Option(
        "on_plan",
        value_types.CALLABLE,
        Internal(),
        "Function that approves plans, called with a PlanRequest; returns True, False, or a text with changes.",
        in_files=False,
    ),
    Option(
        "hooks",
        value_types.HOOKS,
        Internal(),
        "Functions that the CLI calls at fixed points of its work: HookMatchers by event.",
        in_files=False,
    ),
    Option(
        "on_elicitation",
        value_types.CALLABLE,
        Internal(),
        "Function that answers MCP servers, called with an ElicitationRequest.",
        in_files=False,
    ),
    Option(
        "on_user_dialog",
        value_types.CALLABLE,
        Internal(),
        "Function that shows dialogs of the CLI, called with a DialogRequest; needs `supported_dialog_kinds`.",
        in_files=False,
    ),
    Option(
        "supported_dialog_kinds",
        value_types.NAMES,
        InitializeField("supportedDialogKinds"),
        "Kinds of dialogs that `on_user_dialog` can show.",
    ),
    Option(
        "restricted",
        value_types.BOOL,
        Switch("restricted"),
        "No tools that run commands, no settings files, and file tools only inside the directories.",
        default=False,
    ),
    Option(
        "sandbox",
        value_types.SANDBOX,
        PartOfOption("settings"),
        "A Sandbox around the commands that tools run. A part of `settings`.",
    ),
)

OUTPUT = (
    Option(
        "json_schema",
        value_types.MAPPING,
        JsonFlag("json-schema", "jsonSchema"),
        "JSON Schema for the answer.",
    ),
    Option(
        "output_repairs",
        value_types.WHOLE_NUMBER,
        Internal(),
        "Number of further attempts, in the same session, when the structured output does not fit `output_type`.",
        default=1,
        untrusted=is_not_greater,
    ),
    Option(
        "partial_messages",
        value_types.BOOL,
        Switch("include-partial-messages"),
        "Stream the answer while the model writes it, as StreamEvent messages. The child of a session sends them "
        "unless this is False, so each query can enable them; other queries get none.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "include_hook_events",
        value_types.BOOL,
        Switch("include-hook-events"),
        "Report the runs of hooks.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "replay_user_messages",
        value_types.BOOL,
        Switch("replay-user-messages"),
        "Repeat the messages of the user in the output.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "forward_subagent_text",
        value_types.BOOL,
        Switch("forward-subagent-text"),
        "Report text and thinking of sub-agents, not only their tool calls.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "prompt_suggestions",
        value_types.BOOL,
        Switch("prompt-suggestions"),
        "After each turn, report a suggestion for the next prompt.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "agent_progress_summaries",
        value_types.BOOL,
        InitializeField("agentProgressSummaries"),
        "While sub-agents work, report their progress in a sentence.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "per_task_stop_affordance",
        value_types.BOOL,
        InitializeField("perTaskStopAffordance"),
        "Inform the CLI that this program can stop individual background tasks.",
        default=False,
    ),
)


DEFAULT_MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_USAGE_LIMIT_CEILING = 6 * 3600.0  # seconds: the shortest window of a plan takes five hours
DEFAULT_LOAD_TIMEOUT = 60.0  # seconds for one response of a session store: a long remote session takes a few
DEFAULT_SESSION_LEASE = 60.0  # seconds: longer than a network outage, shorter than the patience of a user
DEFAULT_CONTROL_TIMEOUT = 60.0  # seconds; the CLI responds in under a second, a cold disk may take ten

LIMITS = (
    Option(
        "max_turns",
        value_types.COUNT,
        Flag("max-turns"),
        "Stop after this many turns of the model.",
        untrusted=is_not_greater,
    ),
    Option(
        "max_budget_usd",
        value_types.NUMBER,
        Flag("max-budget-usd"),
        "Stop when the estimated cost passes this many US dollars.",
        untrusted=is_not_greater,
    ),
    Option(
        "max_budget_tokens",
        value_types.COUNT,
        Internal(),
        "Stop after this many tokens, input and output of all models; in a session, of all queries together.",
        untrusted=is_not_greater,
    ),
    Option(
        "until",
        value_types.UNTIL,
        Internal(),
        "When a query ends: with its result, or 'idle': when no background task can wake the model any more.",
        default="result",
        untrusted=allow_any,
    ),
    Option(
        "timeout",
        value_types.TIMEOUT,
        Internal(),
        "Seconds until a query fails with QueryTimeout. No limit by default.",
        untrusted=is_not_greater,
    ),
    Option(
        "idle_timeout",
        value_types.TIMEOUT,
        Internal(),
        "Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default.",
        untrusted=is_not_greater,
    ),
    Option(
        "startup_timeout",
        value_types.TIMEOUT,
        Internal(),
        "Seconds of silence until the first message; the default is `idle_timeout`.",
        untrusted=is_not_greater,
    ),
    Option(
        "control_timeout",
        value_types.TIMEOUT,
        Internal(),
        "Seconds to wait for the response to a control request, the handshake included.",
        default=DEFAULT_CONTROL_TIMEOUT,
        untrusted=allow_any,
    ),
    Option(
        "max_line_bytes",
        value_types.COUNT,
        Internal(),
        "Longest line of output, in bytes; a longer one is skipped and reported.",
        default=DEFAULT_MAX_LINE_BYTES,
    ),
    Option(
        "api_max_retries",
        value_types.WHOLE_NUMBER,
        EnvVar("CLAUDE_CODE_MAX_RETRIES"),
        "Maximum retries by the CLI after a temporary API error. Default: 10.",
        untrusted=is_not_greater,
    ),
    Option(
        "retry",
        value_types.RETRY,
        Internal(),
        "Number of retries of a query after the retries of the CLI (`api_max_retries`), or a RetryPolicy. "
        "Default: none.",
        untrusted=allow_any,
    ),
    Option(
        "on_usage_limit",
        value_types.ON_USAGE_LIMIT,
        Internal(),
        "Behaviour at a usage limit: 'raise', or 'wait': the query continues when the limit resets.",
        default="raise",
        untrusted=allow_any,
    ),
    Option(
        "usage_limit_ceiling",
        value_types.SECONDS,
        Internal(),
        "Maximum seconds that a query waits for usage limits; it fails at once if the limit resets later.",
        default=DEFAULT_USAGE_LIMIT_CEILING,
        untrusted=is_not_greater,
    ),
)

CONVERSATION = (
    Option("resume", value_types.NAME, Flag("resume"), "Id of a session to continue."),
    Option(
        "continue_conversation",
        value_types.BOOL,
        Switch("continue"),
        "Continue the latest session of the directory.",
        default=False,
    ),
    Option(
        "fork_session",
        value_types.BOOL,
        Switch("fork-session"),
        "Resume into a new session and leave the old one unchanged.",
        default=False,
    ),
    Option(
        "session_id",
        value_types.UUID,
        Flag("session-id"),
        "Id for the new session. With `resume`, `fork_session` makes one.",
    ),
    Option(
        "resume_session_at",
        value_types.NAME,
        Flag("resume-session-at"),
        "With `resume`: the uuid of the last message to keep.",
    ),
    Option(
        "resume_drops_turn",
        value_types.TEXT,
        Flag("resume-drops-turn"),
        "With `resume_session_at`: the uuid of the prompt whose turn is dropped.",
    ),
    Option("title", value_types.NAME, Flag("name"), "Title of the session in lists of sessions."),
    Option(
        "persist_session",
        value_types.BOOL,
        Switch("no-session-persistence", on=False),
        "Whether the CLI writes the session to disk.",
        default=True,
    ),
    Option(
        "session_store",
        value_types.SESSION_STORE,
        SplitTarget(targets.split_session_store, (targets.SESSION_MIRROR,)),
        "Store for transcripts beside the disk of this machine; `resume` searches it first.",
        in_files=False,
    ),
    Option(
        "session_store_flush",
        value_types.SESSION_STORE_FLUSH,
        Internal(),
        "When the store gets new messages: in batches, at the end of a turn at the latest, or 'eager': at once.",
        default="batched",
    ),
    Option(
        "load_timeout",
        value_types.SECONDS,
        Internal(),
        "Seconds to wait for the store when a session is resumed.",
        default=DEFAULT_LOAD_TIMEOUT,
        untrusted=allow_any,
    ),
    Option(
        "session_lease",
        value_types.SECONDS,
        Internal(),
        "Seconds after which another host may take over a session in the store whose host has died.",
        default=DEFAULT_SESSION_LEASE,
    ),
    Option(
        "restart",
        value_types.RESTART,
        Internal(),
        "Behaviour of a session after its child died: the next query resumes in a new child, or 'never'.",
        default="resume",
    ),
    Option(
        "enable_file_checkpointing",
        value_types.BOOL,
        EnvSwitch("CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "true"),
        "Keep the state of files before each turn, so that `rewind_files` can restore it.",
        default=False,
    ),
)

ACCOUNT = (
    Option(
        "api_key",
        value_types.NAME,
        EnvVar("ANTHROPIC_API_KEY"),
        "API key; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option(
        "auth_token",
        value_types.NAME,
        EnvVar("ANTHROPIC_AUTH_TOKEN"),
        "Bearer token for a gateway; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option(
        "oauth_token",
        value_types.NAME,
        EnvVar("CLAUDE_CODE_OAUTH_TOKEN"),
        "Long-lived token of `claude setup-token`; reaches the child through its environment.",
        secret=True,
        in_files=False,
    ),
    Option("base_url", value_types.URL, EnvVar("ANTHROPIC_BASE_URL"), "Address of the API, if it is not the default."),
    Option(
        "provider",
        value_types.PROVIDER,
        SplitTarget(targets.split_provider, tuple(targets.PROVIDER_VARIABLES.values())),
        "Provider of the API. The credentials of cloud providers come from the environment.",
    ),
)

PROCESS = (
    Option("cwd", value_types.PATH, Internal(), "Working directory of the child. Default: that of this process."),
    Option("add_dirs", value_types.PATHS, RepeatedFlag("add-dir"), "Additional directories that tools may use."),
    Option(
        "project_config_root",
        value_types.PATH,
        PathFlag("project-config-root"),
        "The checkout whose project settings apply, if `cwd` is a worktree of it.",
    ),
    Option(
        "cli",
        value_types.CLI,
        Internal(),
        "The `claude` to run: 'auto', 'bundled' (the managed copy), 'global' (PATH), or a path.",
        default="auto",
    ),
    Option(
        "user",
        value_types.USER,
        Internal(),
        "System user that runs the child; only root may set it. HOME does not change: set it in `env`.",
    ),
    Option(
        "env", value_types.ENV, Internal(), "Environment variables to set for the child; None removes one.", secret=True
    ),
    Option("inherit_env", value_types.BOOL, Internal(), "Start from the environment of this process.", default=True),
    Option(
        "isolation",
        value_types.ISOLATION,
        Internal(),
        "'strict': a temporary HOME and configuration for the child, no settings files, MCP servers only from "
        "`mcp_servers`, and only listed environment variables.",
    ),
    Option(
        "config_dir",
        value_types.PATH,
        EnvVar("CLAUDE_CONFIG_DIR", path=True),
        "Directory of the CLI for its settings, login and sessions; `~/.claude` by default.",
    ),
    Option(
        "nonessential_traffic",
        value_types.BOOL,
        EnvSwitch("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on=False),
        "Whether the CLI may use the network beyond the API: updates, telemetry, error reports.",
        default=True,
    ),
    Option(
        "client_app",
        value_types.NAME,
        EnvVar("CLAUDE_AGENT_SDK_CLIENT_APP"),
        "Name of your program, such as 'my-app/1.0'; the CLI sends it to the API.",
    ),
    Option(
        "transport",
        value_types.TRANSPORT,
        Internal(),
        "Transport to use instead of a local child.",
        in_files=False,
    ),
)

CONFIGURATION = (
    Option(
        "settings", value_types.CONFIG, ConfigFlag("settings"), "Settings for the CLI: a mapping, a path, or JSON text."
    ),
    Option(
        "managed_settings",
        value_types.MAPPING,
        JsonFlag(
            "managed-settings",
            "managedSettings",
            private=True,
            switches=("managed-settings-in-initialize", "await-initialize"),
        ),
        "Restrictive settings with the rank of an administrator's: other settings cannot loosen them.",
    ),
    Option(
        "setting_sources",
        value_types.SETTING_SOURCES,
        Flag("setting-sources"),
        "Settings files to load; [] for none.",
    ),
    Option(
        "plugins",
        value_types.PLUGINS,
        SplitTarget(targets.split_structs, targets.PLUGIN_TARGETS),
        "Plugins for this session: paths, or Plugins.",
    ),
    Option(
        "bare",
        value_types.BOOL,
        Switch("bare"),
        "Fastest start: no hooks, plugins, memory or login; needs an API key.",
        default=False,
    ),
    Option(
        "safe_mode",
        value_types.BOOL,
        Switch("safe-mode"),
        "Start without customisations: memory, skills, plugins, hooks, MCP servers, agents.",
        default=False,
    ),
    Option("extra_args", value_types.EXTRA_ARGS, Internal(), "Flags of the CLI without an option here."),
)

DIAGNOSTICS = (
    Option(
        "instrumentation",
        value_types.INSTRUMENTATION,
        Internal(),
        "Observers of queries, such as OpenTelemetry(): one Instrumentation, or a list of them.",
        in_files=False,
    ),
    Option(
        "stderr",
        value_types.CALLABLE,
        Internal(),
        "Function that is called with every line of the child's standard error.",
        in_files=False,
    ),
    Option(
        "debug",
        value_types.DEBUG,
        SwitchOrFlag("debug"),
        "Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'.",
        default=False,
    ),
    Option("debug_file", value_types.PATH, PathFlag("debug-file"), "File for the debug log; enables it."),
)


GROUPS: dict[str, tuple[Option, ...]] = {
    "model": MODEL,
    "prompt": PROMPT,
    "tools": TOOLS,
    "permissions": PERMISSIONS,
    "limits": LIMITS,
    "output": OUTPUT,
    "conversation": CONVERSATION,
    "account": ACCOUNT,
    "place": PROCESS,
    "configuration": CONFIGURATION,
    "diagnosis": DIAGNOSTICS,
}
"""The rows by the title of their group, in the order of the documentation."""

TABLE: dict[str, Option] = {
    row.name: msgspec.structs.replace(row, group=title) for title, rows in GROUPS.items() for row in rows
}
"""Every option by name, in the order of the documentation."""
