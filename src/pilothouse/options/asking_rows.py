"""Rows of the table: what is asked, of which model, with which tools, and what comes back."""

from __future__ import annotations

from pilothouse.options import kinds, parts
from pilothouse.options.option import Option, has_all, has_no_others, is_no_more, is_on, tunes
from pilothouse.options.targets import (
    Config,
    EnvVar,
    Flag,
    Initialize,
    Json,
    Merged,
    Names,
    Parts,
    Sdk,
    Switch,
    Text,
)

MODEL = (
    Option(
        "model", kinds.NAME, Flag("model"), "Model alias ('sonnet', 'opus', 'haiku') or full model id.", untrusted=tunes
    ),
    Option(
        "fallback_model",
        kinds.MODELS,
        Flag("fallback-model"),
        "Model to use while the first one is overloaded; or several, in the order to try.",
        untrusted=tunes,
    ),
    Option("effort", kinds.EFFORT, Flag("effort"), "How much effort the model puts into its answer.", untrusted=tunes),
    Option(
        "thinking",
        kinds.THINKING,
        Parts(parts.struct, parts.THINKING_TARGETS),
        "Whether and how the model thinks: 'adaptive', 'disabled', or a struct with a budget or with what is shown. "
        "Wins over `max_thinking_tokens`.",
        untrusted=tunes,
    ),
    Option(
        "max_thinking_tokens",
        kinds.WHOLE,
        Flag("max-thinking-tokens"),
        "Thinking budget, on models that have one.",
        untrusted=tunes,
    ),
    Option(
        "max_output_tokens",
        kinds.COUNT,
        EnvVar("CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
        "Most tokens of one answer of the model.",
        untrusted=is_no_more,
    ),
    Option(
        "task_budget",
        kinds.BUDGET,
        Flag("task-budget"),
        "Tokens for the whole task; the API tells the model how many are left.",
        untrusted=tunes,
    ),
    Option("betas", kinds.NAMES, Names("betas"), "Beta features of the API, such as 'context-1m-2025-08-07'."),
)

PROMPT = (
    Option(
        "system_prompt",
        kinds.SYSTEM_PROMPT,
        Parts(parts.system_prompt, parts.PROMPT_TARGETS),
        "Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it.",
    ),
    Option(
        "append_system_prompt",
        kinds.TEXT,
        Text("append-system-prompt", "append-system-prompt-file"),
        "Added to the end of the system prompt.",
    ),
    Option(
        "append_subagent_system_prompt",
        kinds.TEXT,
        Text("append-subagent-system-prompt", "append-subagent-system-prompt-file"),
        "Added to the end of the system prompt of every sub-agent.",
    ),
    Option(
        "plan_mode_instructions",
        kinds.TEXT,
        Text("plan-mode-instructions", key="planModeInstructions"),
        "How to go about it in plan mode, in place of the usual instructions.",
    ),
    Option(
        "verbatim_prompts",
        kinds.BOOL,
        Sdk("client_composed"),
        "Send prompts as written: no `@path` expansion and no `/command`.",
        default=False,
        untrusted=is_on,
    ),
    Option(
        "prompt_via",
        kinds.PROMPT_VIA,
        Sdk(),
        "How the prompt travels. 'argv' is the plain one-shot form: no control protocol, prompts of at most 128 KiB.",
        default="stdin",
    ),
)

TOOLS = (
    Option(
        "tools",
        kinds.TOOLS,
        Names("tools"),
        "Which built-in tools exist; [] for none, 'default' for all.",
        untrusted=has_no_others,
    ),
    Option(
        "allowed_tools",
        kinds.NAMES,
        Names("allowedTools"),
        "Tools that run without asking, such as 'Bash(git:*)'. Takes none away: `tools` does.",
    ),
    Option("disallowed_tools", kinds.NAMES, Names("disallowedTools"), "Tools that may not be used.", untrusted=has_all),
    Option(
        "tool_aliases",
        kinds.ALIASES,
        Initialize("toolAliases"),
        "Other tools to call in place of built-in ones, by the name of the built-in one.",
    ),
    Option(
        "tool_config",
        kinds.TOOL_CONFIG,
        Parts(parts.struct, (parts.PREVIEW_FORMAT,)),
        "Settings of single built-in tools.",
    ),
    Option(
        "skills",
        kinds.SKILLS,
        Parts(parts.skills, (parts.SKILL_NAMES,)),
        "Skills that the model may use without asking, or 'all'; loads the settings of user and project, unless "
        "`setting_sources` says otherwise.",
    ),
    Option(
        "disable_slash_commands",
        kinds.BOOL,
        Switch("disable-slash-commands"),
        "No skills and no commands at all.",
        default=False,
        untrusted=is_on,
    ),
    Option("agent", kinds.NAME, Flag("agent"), "The agent that leads the conversation, by name."),
    Option(
        "agents",
        kinds.AGENTS,
        Json("agents", "agents", private=True),
        "Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model.",
    ),
    Option(
        "mcp_servers",
        kinds.SERVERS,
        Config("mcp-config", "mcpServers"),
        "MCP servers by name: a StdioServer, HttpServer or SseServer each, or one that runs in this process, made by "
        "`sdk_server` or `mount`; or a path to a config file.",
    ),
    Option(
        "custom_tools",
        kinds.FUNCTIONS,
        Sdk(),
        "Functions of this process that the model may call, as they are or made by `@tool`.",
        in_files=False,
    ),
    Option(
        "tool_bridge",
        kinds.TOOL_BRIDGE,
        Sdk(),
        "How a call of `custom_tools` gets here: 'mcp': the CLI asks for it; 'deferred': the turn ends, and all its "
        "calls run here; 'xml': as text, without MCP and without the CLI's own tools.",
        default="mcp",
    ),
    Option(
        "strict_mcp_config",
        kinds.BOOL,
        Switch("strict-mcp-config"),
        "Use no MCP servers but those of `mcp_servers`.",
        default=False,
        untrusted=is_on,
    ),
    Option(
        "wait_for_mcp",
        kinds.WAIT,
        Sdk(),
        "Send the first prompt only when the MCP servers are connected, for at most so many seconds; True: 60. If one "
        "of `mcp_servers` has failed or is late, ControlError or ControlTimeout names it, and nothing is sent; servers "
        "from elsewhere may fail.",
        default=False,
        untrusted=tunes,
    ),
)

PERMISSIONS = (
    Option(
        "permission_mode",
        kinds.PERMISSION_MODE,
        Flag("permission-mode"),
        "What happens when a tool needs permission.",
    ),
    Option(
        "allow_dangerously_skip_permissions",
        kinds.BOOL,
        Switch("allow-dangerously-skip-permissions"),
        "Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough.",
        default=False,
    ),
    Option(
        "permission_prompt_tool_name",
        kinds.NAME,
        Flag("permission-prompt-tool"),
        "An MCP tool that answers when a tool needs permission, as 'mcp__server__tool'.",
    ),
    Option(
        "permission_prompts",
        kinds.ANSWERS,
        Flag("permission-prompts"),
        "Who answers when a tool needs permission: 'host', which is this program, or 'none': it is denied.",
    ),
    Option(
        "can_use_tool",
        kinds.CALLABLE,
        Sdk(),
        "Called when a tool needs permission, with a PermissionRequest; returns Allow, Deny, Confirm, True or False.",
        in_files=False,
    ),
    Option(
        "confirm",
        kinds.CALLABLE,
        Sdk(),
        "Called when a permission needs a person, with a text and the PermissionRequest; returns True or False.",
        in_files=False,
    ),
    Option(
        "on_question",
        kinds.CALLABLE,
        Sdk(),
        "Called when the model asks the user something, with a QuestionRequest; returns the answers.",
        in_files=False,
    ),
    Option(
        "on_plan",
        kinds.CALLABLE,
        Sdk(),
        "Called when the model wants a plan approved, with a PlanRequest; returns True, False, or what to change.",
        in_files=False,
    ),
    Option(
        "hooks",
        kinds.HOOKS,
        Sdk(),
        "Functions called before, between and after what the CLI does: HookMatchers by event.",
        in_files=False,
    ),
    Option(
        "on_elicitation",
        kinds.CALLABLE,
        Sdk(),
        "Called when an MCP server asks the user something, with an ElicitationRequest.",
        in_files=False,
    ),
    Option(
        "on_user_dialog",
        kinds.CALLABLE,
        Sdk(),
        "Called when the CLI wants a dialog shown, with a DialogRequest; needs `supported_dialog_kinds`.",
        in_files=False,
    ),
    Option(
        "supported_dialog_kinds",
        kinds.NAMES,
        Initialize("supportedDialogKinds"),
        "The kinds of dialogs that `on_user_dialog` can show.",
    ),
    Option(
        "restricted",
        kinds.BOOL,
        Switch("restricted"),
        "No tools that run commands, no settings files, and file tools only inside the directories.",
        default=False,
    ),
    Option(
        "sandbox",
        kinds.SANDBOX,
        Merged("settings"),
        "A Sandbox around the commands that tools run. A part of `settings`.",
    ),
)

OUTPUT = (
    Option("json_schema", kinds.MAPPING, Json("json-schema", "jsonSchema"), "JSON Schema that the answer must fit."),
    Option(
        "output_repairs",
        kinds.WHOLE,
        Sdk(),
        "How often the model is asked again, in the same session, when its structured output does not fit "
        "`output_type`.",
        default=1,
        untrusted=is_no_more,
    ),
    Option(
        "partial_messages",
        kinds.BOOL,
        Switch("include-partial-messages"),
        "Stream the answer while it is written, as StreamEvent messages. The child of a session sends them unless this "
        "is False, so that each query can ask for them; who did not ask gets none.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "include_hook_events",
        kinds.BOOL,
        Switch("include-hook-events"),
        "Report hooks that run.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "replay_user_messages",
        kinds.BOOL,
        Switch("replay-user-messages"),
        "Repeat the messages of the user in the output, as they were taken up.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "forward_subagent_text",
        kinds.BOOL,
        Switch("forward-subagent-text"),
        "Report what sub-agents say and think, not only their tool calls.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "prompt_suggestions",
        kinds.BOOL,
        Switch("prompt-suggestions"),
        "After each turn, report what the user is likely to say next.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "agent_progress_summaries",
        kinds.BOOL,
        Initialize("agentProgressSummaries"),
        "While sub-agents work, report in a sentence what they are at.",
        default=False,
        untrusted=tunes,
    ),
    Option(
        "per_task_stop_affordance",
        kinds.BOOL,
        Initialize("perTaskStopAffordance"),
        "Tell the CLI that single background tasks can be stopped here.",
        default=False,
    ),
)
