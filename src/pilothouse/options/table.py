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
        "Model to use while the first one is overloaded; or several, in the order to try.",
        untrusted=allow_any,
    ),
    Option(
        "effort",
        value_types.EFFORT,
        Flag("effort"),
        "How much effort the model puts into its answer.",
        untrusted=allow_any,
    ),
    Option(
        "thinking",
        value_types.THINKING,
        SplitTarget(targets.split_struct, targets.THINKING_TARGETS),
        "Whether and how the model thinks: 'adaptive', 'disabled', or a struct with a budget or with what is shown. "
        "Wins over `max_thinking_tokens`.",
        untrusted=allow_any,
    ),
    Option(
        "max_thinking_tokens",
        value_types.WHOLE_NUMBER,
        Flag("max-thinking-tokens"),
        "Thinking budget, on models that have one.",
        untrusted=allow_any,
    ),
    Option(
        "max_output_tokens",
        value_types.COUNT,
        EnvVar("CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
        "Most tokens of one answer of the model.",
        untrusted=is_not_greater,
    ),
    Option(
        "task_budget",
        value_types.TASK_BUDGET,
        Flag("task-budget"),
        "Tokens for the whole task; the API tells the model how many are left.",
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
        "How to go about it in plan mode, in place of the usual instructions.",
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
        "How the prompt travels. 'argv' is the plain one-shot form: no control protocol, prompts of at most 128 KiB.",
        default="stdin",
    ),
)

TOOLS = (
    Option(
        "tools",
        value_types.TOOLS,
        ListFlag("tools"),
        "Which built-in tools exist; [] for none, 'default' for all.",
        untrusted=is_subset,
    ),
    Option(
        "allowed_tools",
        value_types.NAMES,
        ListFlag("allowedTools"),
        "Tools that run without asking, such as 'Bash(git:*)'. Takes none away: `tools` does.",
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
        "Other tools to call in place of built-in ones, by the name of the built-in one.",
    ),
    Option(
        "tool_config",
        value_types.TOOL_CONFIG,
        SplitTarget(targets.split_struct, (targets.PREVIEW_FORMAT,)),
        "Settings of single built-in tools.",
    ),
    Option(
        "skills",
        value_types.SKILLS,
        SplitTarget(targets.split_skills, (targets.SKILL_NAMES,)),
        "Skills that the model may use without asking, or 'all'; loads the settings of user and project, unless "
        "`setting_sources` says otherwise.",
    ),
    Option(
        "disable_slash_commands",
        value_types.BOOL,
        Switch("disable-slash-commands"),
        "No skills and no commands at all.",
        default=False,
        untrusted=is_on,
    ),
    Option("agent", value_types.NAME, Flag("agent"), "The agent that leads the conversation, by name."),
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
        "MCP servers by name: a StdioServer, HttpServer or SseServer each, or one that runs in this process, made by "
        "`sdk_server` or `mount`; or a path to a config file.",
    ),
    Option(
        "custom_tools",
        value_types.FUNCTIONS,
        Internal(),
        "Functions of this process that the model may call, as they are or made by `@tool`.",
        in_files=False,
    ),
    Option(
        "tool_bridge",
        value_types.TOOL_BRIDGE,
        Internal(),
        "How a call of `custom_tools` gets here: 'mcp': the CLI asks for it; 'deferred': the turn ends, and all its "
        "calls run here; 'xml': as text, without MCP and without the CLI's own tools.",
        default="mcp",
    ),
    Option(
        "strict_mcp_config",
        value_types.BOOL,
        Switch("strict-mcp-config"),
        "Use no MCP servers but those of `mcp_servers`.",
        default=False,
        untrusted=is_on,
    ),
    Option(
        "wait_for_mcp",
        value_types.WAIT_FOR_MCP,
        Internal(),
        "Send the first prompt only when the MCP servers are connected, for at most so many seconds; True: 60. If one "
        "of `mcp_servers` has failed or is late, ControlError or ControlTimeout names it, and nothing is sent; servers "
        "from elsewhere may fail.",
        default=False,
        untrusted=allow_any,
    ),
)

PERMISSIONS = (
    Option(
        "permission_mode",
        value_types.PERMISSION_MODE,
        Flag("permission-mode"),
        "What happens when a tool needs permission.",
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
        "An MCP tool that answers when a tool needs permission, as 'mcp__server__tool'.",
    ),
    Option(
        "permission_prompts",
        value_types.PERMISSION_PROMPTS,
        Flag("permission-prompts"),
        "Who answers when a tool needs permission: 'host', which is this program, or 'none': it is denied.",
    ),
    Option(
        "can_use_tool",
        value_types.CALLABLE,
        Internal(),
        "Called when a tool needs permission, with a PermissionRequest; returns Allow, Deny, Confirm, True or False.",
        in_files=False,
    ),
    Option(
        "confirm",
        value_types.CALLABLE,
        Internal(),
        "Called when a permission needs a person, with a text and the PermissionRequest; returns True or False.",
        in_files=False,
    ),
    Option(
        "on_question",
        value_types.CALLABLE,
        Internal(),
        "Called when the model asks the user something, with a QuestionRequest; returns the answers.",
        in_files=False,
    ),
    Option(
        "on_plan",
        value_types.CALLABLE,
        Internal(),
        "Called when the model wants a plan approved, with a PlanRequest; returns True, False, or what to change.",
        in_files=False,
    ),
    Option(
        "hooks",
        value_types.HOOKS,
        Internal(),
        "Functions called before, between and after what the CLI does: HookMatchers by event.",
        in_files=False,
    ),
    Option(
        "on_elicitation",
        value_types.CALLABLE,
        Internal(),
        "Called when an MCP server asks the user something, with an ElicitationRequest.",
        in_files=False,
    ),
    Option(
        "on_user_dialog",
        value_types.CALLABLE,
        Internal(),
        "Called when the CLI wants a dialog shown, with a DialogRequest; needs `supported_dialog_kinds`.",
        in_files=False,
    ),
    Option(
        "supported_dialog_kinds",
        value_types.NAMES,
        InitializeField("supportedDialogKinds"),
        "The kinds of dialogs that `on_user_dialog` can show.",
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
        "JSON Schema that the answer must fit.",
    ),
    Option(
        "output_repairs",
        value_types.WHOLE_NUMBER,
        Internal(),
        "How often the model is asked again, in the same session, when its structured output does not fit "
        "`output_type`.",
        default=1,
        untrusted=is_not_greater,
    ),
    Option(
        "partial_messages",
        value_types.BOOL,
        Switch("include-partial-messages"),
        "Stream the answer while it is written, as StreamEvent messages. The child of a session sends them unless this "
        "is False, so that each query can ask for them; who did not ask gets none.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "include_hook_events",
        value_types.BOOL,
        Switch("include-hook-events"),
        "Report hooks that run.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "replay_user_messages",
        value_types.BOOL,
        Switch("replay-user-messages"),
        "Repeat the messages of the user in the output, as they were taken up.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "forward_subagent_text",
        value_types.BOOL,
        Switch("forward-subagent-text"),
        "Report what sub-agents say and think, not only their tool calls.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "prompt_suggestions",
        value_types.BOOL,
        Switch("prompt-suggestions"),
        "After each turn, report what the user is likely to say next.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "agent_progress_summaries",
        value_types.BOOL,
        InitializeField("agentProgressSummaries"),
        "While sub-agents work, report in a sentence what they are at.",
        default=False,
        untrusted=allow_any,
    ),
    Option(
        "per_task_stop_affordance",
        value_types.BOOL,
        InitializeField("perTaskStopAffordance"),
        "Tell the CLI that single background tasks can be stopped here.",
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
        "Stop when more tokens are used than this, input and output of all models; in a session, by all queries.",
        untrusted=is_not_greater,
    ),
    Option(
        "until",
        value_types.UNTIL,
        Internal(),
        "When a query is over: with its result, or 'idle': when nothing in the background is left to wake the model.",
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
        "The same until the first message, in place of `idle_timeout`, which holds there too if this is not set.",
        untrusted=is_not_greater,
    ),
    Option(
        "control_timeout",
        value_types.TIMEOUT,
        Internal(),
        "Seconds to wait for the answer to a control request, the handshake included.",
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
        "How often the CLI repeats a request that the API refused for the moment; 10 if it is not said.",
        untrusted=is_not_greater,
    ),
    Option(
        "retry",
        value_types.RETRY,
        Internal(),
        "How often a query is tried again after the CLI has given up, or a RetryPolicy. Not at all by default: the CLI "
        "has repeated the request by itself (`api_max_retries`).",
        untrusted=allow_any,
    ),
    Option(
        "on_usage_limit",
        value_types.ON_USAGE_LIMIT,
        Internal(),
        "What happens when a usage limit is reached: the query fails, or 'wait': it goes on when the limit resets.",
        default="raise",
        untrusted=allow_any,
    ),
    Option(
        "usage_limit_ceiling",
        value_types.SECONDS,
        Internal(),
        "Seconds that a query waits for usage limits at most; one that resets later makes it fail at once.",
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
        "Resume into a new session and leave the old one as it was.",
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
        "With `resume_session_at`: the uuid of the prompt whose turn is given up.",
    ),
    Option("title", value_types.NAME, Flag("name"), "Title of the session, as lists of sessions show it."),
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
        "Where transcripts are kept beside the disk of this machine, and where `resume` looks for them first.",
        in_files=False,
    ),
    Option(
        "session_store_flush",
        value_types.SESSION_STORE_FLUSH,
        Internal(),
        "When the store gets what was said: in batches, at the end of a turn at the latest, or 'eager': at once.",
        default="batched",
    ),
    Option(
        "load_timeout",
        value_types.SECONDS,
        Internal(),
        "Seconds to wait for an answer of the store when a session is resumed.",
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
        "What a session does after its child died: the next query resumes in a new child, or 'never'.",
        default="resume",
    ),
    Option(
        "enable_file_checkpointing",
        value_types.BOOL,
        EnvSwitch("CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "true"),
        "Keep what files were before each turn, so that they can be brought back.",
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
    Option(
        "base_url", value_types.URL, EnvVar("ANTHROPIC_BASE_URL"), "Address of the API, if it is not the usual one."
    ),
    Option(
        "provider",
        value_types.PROVIDER,
        SplitTarget(targets.split_provider, tuple(targets.PROVIDER_VARIABLES.values())),
        "Whose API it is. The credentials for the clouds come from the environment.",
    ),
)

PROCESS = (
    Option("cwd", value_types.PATH, Internal(), "Working directory of the child. By default that of this process."),
    Option("add_dirs", value_types.PATHS, RepeatedFlag("add-dir"), "Further directories that tools may use."),
    Option(
        "project_config_root",
        value_types.PATH,
        PathFlag("project-config-root"),
        "The checkout whose project settings count, where `cwd` is a worktree of it.",
    ),
    Option(
        "cli",
        value_types.CLI,
        Internal(),
        "Which `claude` to run: 'auto', 'bundled' (the copy that pilothouse keeps), 'global' (PATH), or a path.",
        default="auto",
    ),
    Option(
        "user",
        value_types.USER,
        Internal(),
        "User of this system to run the child as; only root may. Its HOME stays as it is: set it in `env`.",
    ),
    Option(
        "env", value_types.ENV, Internal(), "Environment variables to set for the child; None removes one.", secret=True
    ),
    Option("inherit_env", value_types.BOOL, Internal(), "Start from the environment of this process.", default=True),
    Option(
        "isolation",
        value_types.ISOLATION,
        Internal(),
        "'strict': a HOME and a configuration of its own that go with the child, no settings files, MCP servers only "
        "from `mcp_servers`, and of the environment only what is on a list.",
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
        "Whether the CLI may talk to the network about more than the question: updates, telemetry, error reports.",
        default=True,
    ),
    Option(
        "client_app",
        value_types.NAME,
        EnvVar("CLAUDE_AGENT_SDK_CLIENT_APP"),
        "Name of your program, such as 'my-app/1.0'; the CLI tells it to the API.",
    ),
    Option(
        "transport",
        value_types.TRANSPORT,
        Internal(),
        "Another way to reach the peer than a local child.",
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
        "Settings that restrict, as an administrator sets them: other settings cannot loosen them.",
    ),
    Option(
        "setting_sources",
        value_types.SETTING_SOURCES,
        Flag("setting-sources"),
        "Which settings files to load; [] for none of them.",
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
        "Start without anything that was customised: memory, skills, plugins, hooks, MCP servers, agents.",
        default=False,
    ),
    Option("extra_args", value_types.EXTRA_ARGS, Internal(), "Flags of the CLI that have no option here."),
)

DIAGNOSTICS = (
    Option(
        "instrumentation",
        value_types.INSTRUMENTATION,
        Internal(),
        "What watches queries, such as OpenTelemetry(): one Instrumentation, or a list of them.",
        in_files=False,
    ),
    Option(
        "stderr",
        value_types.CALLABLE,
        Internal(),
        "Called with every line the child writes to standard error.",
        in_files=False,
    ),
    Option(
        "debug",
        value_types.DEBUG,
        SwitchOrFlag("debug"),
        "Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'.",
        default=False,
    ),
    Option("debug_file", value_types.PATH, PathFlag("debug-file"), "File for the debug log; switches it on."),
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
