"""Static types of the options, written by `python docs/reference.py` from the table."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict

from pilothouse.callbacks import CallbackWrapper
from pilothouse.hooks import Hooks
from pilothouse.instrumentation import Instrumentation
from pilothouse.messages.core import PermissionMode
from pilothouse.options.cli_settings import CliSettings
from pilothouse.options.value_structs import (
    AdaptiveThinking,
    AgentDefinition,
    CustomSystemPrompt,
    DisabledThinking,
    Effort,
    EnabledThinking,
    HttpServer,
    Plugin,
    RetryPolicy,
    Sandbox,
    SseServer,
    StdioServer,
    SystemPromptFile,
    SystemPromptPreset,
    ToolConfig,
)
from pilothouse.permissions import (
    Asks,
    CanUseTool,
    ConfirmCallback,
    DialogCallback,
    ElicitationCallback,
    PlanCallback,
    QuestionCallback,
)

McpServer = StdioServer | HttpServer | SseServer
Provider = Literal["anthropic", "bedrock", "vertex", "foundry"]
SettingSource = Literal["user", "project", "local"]
StrPath = str | os.PathLike[str]
SystemPrompt = str | SystemPromptPreset | CustomSystemPrompt | SystemPromptFile
SystemPromptChoice = SystemPrompt | Sequence[str] | Mapping[str, Any]
Thinking = AdaptiveThinking | EnabledThinking | DisabledThinking
ThinkingChoice = Thinking | Literal["adaptive", "disabled", "enabled"] | Mapping[str, Any]

class Settings(TypedDict, total=False):
    """Keyword arguments of `Options`, `Agent`, `query` and `configure`; `pilothouse.options.TABLE` explains each."""

    model: str | None
    """Model alias ('sonnet', 'opus', 'haiku') or full model id."""

    fallback_model: str | Sequence[str] | None
    """Model to use while the first one is overloaded; or a list of models in the order to try."""

    effort: Effort | None
    """Effort of the model for its answer."""

    thinking: ThinkingChoice | None
    """Thinking of the model: 'adaptive', 'disabled', or a struct with a budget or display settings. Overrides
    `max_thinking_tokens`."""

    max_thinking_tokens: int | None
    """Thinking budget in tokens, for models that support one."""

    max_output_tokens: int | None
    """Maximum tokens of one answer of the model."""

    task_budget: int | Mapping[str, int] | None
    """Token budget of the whole task; the API shows the model the remaining tokens."""

    advisor: str | None
    """A second model, which the model may ask for advice; where the API offers it."""

    autocompact: Literal['auto'] | int | None
    """Tokens of the window within which the conversation is compacted; 'auto': those of the model."""

    betas: list[str] | tuple[str, ...] | None
    """Beta features of the API, such as 'context-1m-2025-08-07'."""

    system_prompt: SystemPromptChoice | None
    """Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it."""

    append_system_prompt: str | None
    """Added to the end of the system prompt."""

    append_subagent_system_prompt: str | None
    """Added to the end of the system prompt of every sub-agent."""

    plan_mode_instructions: str | None
    """Instructions for plan mode, instead of the usual ones."""

    verbatim_prompts: bool | None
    """Send prompts as written: no `@path` expansion and no `/command`."""

    prompt_via: Literal['stdin', 'argv'] | None
    """How the prompt is sent. 'argv': on the command line, without control protocol, at most 128 KiB."""

    tools: list[str] | tuple[str, ...] | Literal["default"] | Mapping[str, str] | None
    """The available built-in tools; [] for none, 'default' for all."""

    allowed_tools: list[str] | tuple[str, ...] | None
    """Tools that run without a permission request, such as 'Bash(git:*)'. To remove tools, use `tools`."""

    disallowed_tools: list[str] | tuple[str, ...] | None
    """Tools that may not be used."""

    tool_aliases: Mapping[str, str] | None
    """Replacements of built-in tools, by the name of the built-in tool."""

    tool_config: ToolConfig | Mapping[str, Any] | None
    """Settings of individual built-in tools."""

    skills: list[str] | tuple[str, ...] | Literal["all"] | None
    """Skills that the model may use without a permission request, or 'all'; loads the settings of user and project,
    unless `setting_sources` is set."""

    disable_slash_commands: bool | None
    """No skills and no commands at all."""

    files: list[str] | tuple[str, ...] | None
    """Files of the Files API to download at the start, each as 'file_id:path'; in cloud sessions only."""

    agent: str | None
    """Name of the agent that leads the conversation."""

    agents: Mapping[str, AgentDefinition | Mapping[str, Any]] | None
    """Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model."""

    mcp_servers: Mapping[str, McpServer | Mapping[str, Any] | Any] | StrPath | None
    """MCP servers by name: a StdioServer, HttpServer, SseServer, or server in this process, made by `sdk_server` or
    `mount`; or a path to a config file."""

    custom_tools: Sequence[Callable[..., Any]] | None
    """Functions of this process that the model may call, plain or made by `@tool`."""

    tool_bridge: Literal['mcp', 'xml', 'deferred'] | None
    """How calls of `custom_tools` reach this process: 'mcp': as requests of the CLI; 'deferred': all at the end of the
    turn; 'xml': as text, without the CLI's own tools."""

    strict_mcp_config: bool | None
    """Use only the MCP servers of `mcp_servers`."""

    wait_for_mcp: bool | float | None
    """Seconds to wait for the MCP servers before the first prompt; True: 60. If one of `mcp_servers` fails or is late,
    nothing is sent, and ControlError or ControlTimeout names it."""

    permission_mode: PermissionMode | None
    """Mode that decides tool calls without a matching rule, such as 'acceptEdits'."""

    allow_dangerously_skip_permissions: bool | None
    """Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough."""

    permission_prompt_tool_name: str | None
    """MCP tool that decides permission requests, as 'mcp__server__tool'."""

    permission_prompts: Literal['host', 'none'] | None
    """Where permission requests go: 'host', which is this program, or 'none': they are denied."""

    can_use_tool: CanUseTool | None
    """Function that decides a tool call, called with a PermissionRequest; returns Allow, Deny, Confirm, True or
    False."""

    confirm: ConfirmCallback | None
    """Function that asks a person, called with a text and the PermissionRequest; returns True or False."""

    on_question: QuestionCallback | None
    """Function that answers questions of the model, called with a QuestionRequest; returns the answers."""

    on_plan: PlanCallback | None
    """Function that approves plans, called with a PlanRequest; returns True, False, or a text with changes."""

    asks: Asks | None
    """Collection of requests that wait until somebody settles them: those that no function decides."""

    hooks: Hooks | None
    """Functions that the CLI calls at fixed points of its work: HookMatchers by event."""

    on_elicitation: ElicitationCallback | None
    """Function that answers MCP servers, called with an ElicitationRequest."""

    on_user_dialog: DialogCallback | None
    """Function that shows dialogs of the CLI, called with a DialogRequest; needs `supported_dialog_kinds`."""

    supported_dialog_kinds: list[str] | tuple[str, ...] | None
    """Kinds of dialogs that `on_user_dialog` can show."""

    restricted: bool | None
    """No tools that run commands, no settings files, and file tools only inside the directories."""

    sandbox: Sandbox | Mapping[str, Any] | None
    """A Sandbox around the commands that tools run. A part of `settings`."""

    max_turns: int | None
    """Stop after this many turns of the model."""

    max_budget_usd: float | None
    """Stop when the estimated cost passes this many US dollars."""

    max_budget_tokens: int | None
    """Stop after this many tokens, input and output of all models; in a session, of all queries together."""

    until: Literal['result', 'idle'] | None
    """When a query ends: with its result, or 'idle': when no background task can wake the model any more."""

    timeout: float | None
    """Seconds until a query fails with QueryTimeout; in a session from its turn on, when its child is ready. No limit
    by default."""

    idle_timeout: float | None
    """Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default."""

    startup_timeout: float | None
    """Seconds of silence until the first message; the default is `idle_timeout`."""

    control_timeout: float | None
    """Seconds to wait for the response to a control request, the handshake included."""

    max_line_bytes: int | None
    """Longest line of output, in bytes; a longer one is skipped and reported."""

    api_max_retries: int | None
    """Maximum retries by the CLI after a temporary API error. Default: 10."""

    retry: RetryPolicy | int | Mapping[str, Any] | None
    """Number of retries of a query after the retries of the CLI (`api_max_retries`), or a RetryPolicy. Default:
    none."""

    on_usage_limit: Literal['raise', 'wait'] | None
    """Behaviour at a usage limit: 'raise', or 'wait': the query continues when the limit resets."""

    usage_limit_ceiling: float | None
    """Maximum seconds that a query waits for usage limits; it fails at once if the limit resets later."""

    json_schema: Mapping[str, Any] | None
    """JSON Schema for the answer."""

    output_repairs: int | None
    """Further attempts, in the same session, when the structured output does not fit `output_type`."""

    partial_messages: bool | None
    """Stream the answer while the model writes it, as StreamEvent messages. Queries of a session may enable it, unless
    the session sets False."""

    include_hook_events: bool | None
    """Report the runs of hooks."""

    replay_user_messages: bool | None
    """Repeat the messages of the user in the output."""

    forward_subagent_text: bool | None
    """Report text and thinking of sub-agents, not only their tool calls."""

    prompt_suggestions: bool | None
    """After each turn, report a suggestion for the next prompt."""

    agent_progress_summaries: bool | None
    """While sub-agents work, report their progress in a sentence."""

    per_task_stop_affordance: bool | None
    """Inform the CLI that this program can stop individual background tasks."""

    resume: str | None
    """Id of a session to continue."""

    continue_conversation: bool | None
    """Continue the latest session of the directory."""

    fork_session: bool | None
    """Resume into a new session and leave the old one unchanged."""

    session_id: str | None
    """Id for the new session. With `resume`, `fork_session` makes one."""

    resume_session_at: str | None
    """With `resume`: the uuid of the last message to keep."""

    resume_drops_turn: str | None
    """With `resume_session_at`: the uuid of the prompt whose turn is dropped."""

    title: str | None
    """Title of the session in lists of sessions."""

    persist_session: bool | None
    """Whether the CLI writes the session to disk."""

    session_store: Any
    """Store for transcripts beside the disk of this machine; `resume` searches it first."""

    session_store_flush: Literal['batched', 'eager'] | None
    """When the store gets new messages: 'batched': at the end of a turn at the latest; 'eager': at once."""

    load_timeout: float | None
    """Seconds to wait for the store when a session is resumed."""

    session_lease: float | None
    """Seconds after which another host may take over a session in the store whose host has died."""

    restart: Literal['resume', 'never'] | None
    """Behaviour of a session after its child died: the next query resumes in a new child, or 'never'."""

    enable_file_checkpointing: bool | None
    """Keep the state of files before each turn, so that `rewind_files` can restore it."""

    api_key: str | None
    """API key; reaches the child through its environment."""

    auth_token: str | None
    """Bearer token for a gateway; reaches the child through its environment."""

    oauth_token: str | None
    """Long-lived token of `claude setup-token`; reaches the child through its environment."""

    base_url: str | None
    """Address of the API, if it is not the default."""

    provider: Provider | None
    """Provider of the API. The credentials of cloud providers come from the environment."""

    cwd: StrPath | None
    """Working directory of the child, which loads settings, programs and instructions from it. Default: that of this
    process. Where others wrote its files, start from `Options.preset('untrusted_repository')`."""

    add_dirs: Sequence[StrPath] | None
    """Additional directories that tools may use."""

    project_config_root: StrPath | None
    """The checkout whose project settings apply, if `cwd` is a worktree of it."""

    worktree: bool | str | None
    """Work in a new git worktree of the repository, below `.claude/worktrees`: True, or its name. It stays when the
    child has ended."""

    cli: StrPath | None
    """The `claude` to run: 'auto', 'bundled' (the managed copy), 'global' (PATH), or a path."""

    user: str | int | None
    """System user that runs the child; only root may set it. HOME does not change: set it in `env`."""

    env: Mapping[str, str | None] | None
    """Environment variables to set for the child; None removes one."""

    inherit_env: bool | list[str] | tuple[str, ...] | None
    """Start from the environment of this process: True, False, or only from these variables, such as ['PATH', 'HOME',
    'AWS_*']."""

    isolation: Literal['strict'] | None
    """'strict': a temporary HOME and configuration for the child, no settings files, MCP servers only from
    `mcp_servers`, and only listed environment variables."""

    keep_detached: bool | None
    """Leave processes running that a command has detached, such as `nohup server &`. Otherwise they end with the child
    (Linux)."""

    config_dir: StrPath | None
    """Directory of the CLI for its settings, login and sessions; `~/.claude` by default."""

    nonessential_traffic: bool | None
    """Whether the CLI may use the network beyond the API: updates, telemetry, error reports."""

    client_app: str | None
    """Name of your program, such as 'my-app/1.0'; the CLI sends it to the API."""

    transport: Any
    """Transport to use instead of a local child."""

    settings: CliSettings | Mapping[str, Any] | StrPath | None
    """Settings for the CLI: a mapping, as CliSettings, a path, or JSON text. They are checked before the first
    prompt."""

    managed_settings: CliSettings | Mapping[str, Any] | None
    """Restrictive settings with the rank of an administrator's: other settings cannot loosen them. They are checked
    before the first prompt."""

    setting_sources: Sequence[SettingSource] | None
    """Settings files to load; [] for none."""

    plugins: Sequence[Plugin | StrPath | Mapping[str, Any]] | None
    """Plugins for this session: paths, or Plugins."""

    bare: bool | None
    """Fastest start: no hooks, plugins, memory or login; needs an API key."""

    safe_mode: bool | None
    """Start without customisations: memory, skills, plugins, hooks, MCP servers, agents."""

    extra_args: Mapping[str, str | None] | None
    """Flags of the CLI without an option here."""

    instrumentation: Instrumentation | Sequence[Instrumentation] | None
    """Observers of queries, such as OpenTelemetry(): one Instrumentation, or a list of them."""

    middleware: Sequence[Callable[[], Any]] | None
    """Middleware classes, or functions that make one, the outermost first: they see the messages of a query, change its
    prompts, and may send another one."""

    callback_wrapper: CallbackWrapper | None
    """Function that gives the context manager in which each callback, hook and tool of this process runs, called with
    its kind and name."""

    stderr: Callable[[str], object] | None
    """Function that is called with every line of the child's standard error."""

    debug: bool | str | None
    """Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'."""

    debug_file: StrPath | None
    """File for the debug log; enables it."""

class OptionAttributes:
    """An attribute for every option: what was set, or the default."""

    model: str | None
    """Model alias ('sonnet', 'opus', 'haiku') or full model id."""

    fallback_model: str | list[str] | None
    """Model to use while the first one is overloaded; or a list of models in the order to try."""

    effort: Effort | None
    """Effort of the model for its answer."""

    thinking: Thinking | None
    """Thinking of the model: 'adaptive', 'disabled', or a struct with a budget or display settings. Overrides
    `max_thinking_tokens`."""

    max_thinking_tokens: int | None
    """Thinking budget in tokens, for models that support one."""

    max_output_tokens: int | None
    """Maximum tokens of one answer of the model."""

    task_budget: int | None
    """Token budget of the whole task; the API shows the model the remaining tokens."""

    advisor: str | None
    """A second model, which the model may ask for advice; where the API offers it."""

    autocompact: Literal['auto'] | int | None
    """Tokens of the window within which the conversation is compacted; 'auto': those of the model."""

    betas: list[str] | None
    """Beta features of the API, such as 'context-1m-2025-08-07'."""

    system_prompt: SystemPrompt | None
    """Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it."""

    append_system_prompt: str | None
    """Added to the end of the system prompt."""

    append_subagent_system_prompt: str | None
    """Added to the end of the system prompt of every sub-agent."""

    plan_mode_instructions: str | None
    """Instructions for plan mode, instead of the usual ones."""

    verbatim_prompts: bool
    """Send prompts as written: no `@path` expansion and no `/command`."""

    prompt_via: str
    """How the prompt is sent. 'argv': on the command line, without control protocol, at most 128 KiB."""

    tools: list[str] | str | None
    """The available built-in tools; [] for none, 'default' for all."""

    allowed_tools: list[str] | None
    """Tools that run without a permission request, such as 'Bash(git:*)'. To remove tools, use `tools`."""

    disallowed_tools: list[str] | None
    """Tools that may not be used."""

    tool_aliases: dict[str, str] | None
    """Replacements of built-in tools, by the name of the built-in tool."""

    tool_config: ToolConfig | None
    """Settings of individual built-in tools."""

    skills: list[str] | str | None
    """Skills that the model may use without a permission request, or 'all'; loads the settings of user and project,
    unless `setting_sources` is set."""

    disable_slash_commands: bool
    """No skills and no commands at all."""

    files: list[str] | None
    """Files of the Files API to download at the start, each as 'file_id:path'; in cloud sessions only."""

    agent: str | None
    """Name of the agent that leads the conversation."""

    agents: dict[str, Any] | None
    """Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model."""

    mcp_servers: dict[str, Any] | str | None
    """MCP servers by name: a StdioServer, HttpServer, SseServer, or server in this process, made by `sdk_server` or
    `mount`; or a path to a config file."""

    custom_tools: list[Callable[..., Any]] | None
    """Functions of this process that the model may call, plain or made by `@tool`."""

    tool_bridge: str
    """How calls of `custom_tools` reach this process: 'mcp': as requests of the CLI; 'deferred': all at the end of the
    turn; 'xml': as text, without the CLI's own tools."""

    strict_mcp_config: bool
    """Use only the MCP servers of `mcp_servers`."""

    wait_for_mcp: bool | float
    """Seconds to wait for the MCP servers before the first prompt; True: 60. If one of `mcp_servers` fails or is late,
    nothing is sent, and ControlError or ControlTimeout names it."""

    permission_mode: PermissionMode | None
    """Mode that decides tool calls without a matching rule, such as 'acceptEdits'."""

    allow_dangerously_skip_permissions: bool
    """Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough."""

    permission_prompt_tool_name: str | None
    """MCP tool that decides permission requests, as 'mcp__server__tool'."""

    permission_prompts: str | None
    """Where permission requests go: 'host', which is this program, or 'none': they are denied."""

    can_use_tool: CanUseTool | None
    """Function that decides a tool call, called with a PermissionRequest; returns Allow, Deny, Confirm, True or
    False."""

    confirm: ConfirmCallback | None
    """Function that asks a person, called with a text and the PermissionRequest; returns True or False."""

    on_question: QuestionCallback | None
    """Function that answers questions of the model, called with a QuestionRequest; returns the answers."""

    on_plan: PlanCallback | None
    """Function that approves plans, called with a PlanRequest; returns True, False, or a text with changes."""

    asks: Asks | None
    """Collection of requests that wait until somebody settles them: those that no function decides."""

    hooks: dict[str, Any] | None
    """Functions that the CLI calls at fixed points of its work: HookMatchers by event."""

    on_elicitation: ElicitationCallback | None
    """Function that answers MCP servers, called with an ElicitationRequest."""

    on_user_dialog: DialogCallback | None
    """Function that shows dialogs of the CLI, called with a DialogRequest; needs `supported_dialog_kinds`."""

    supported_dialog_kinds: list[str] | None
    """Kinds of dialogs that `on_user_dialog` can show."""

    restricted: bool
    """No tools that run commands, no settings files, and file tools only inside the directories."""

    sandbox: Any
    """A Sandbox around the commands that tools run. A part of `settings`."""

    max_turns: int | None
    """Stop after this many turns of the model."""

    max_budget_usd: float | None
    """Stop when the estimated cost passes this many US dollars."""

    max_budget_tokens: int | None
    """Stop after this many tokens, input and output of all models; in a session, of all queries together."""

    until: str
    """When a query ends: with its result, or 'idle': when no background task can wake the model any more."""

    timeout: float | None
    """Seconds until a query fails with QueryTimeout; in a session from its turn on, when its child is ready. No limit
    by default."""

    idle_timeout: float | None
    """Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default."""

    startup_timeout: float | None
    """Seconds of silence until the first message; the default is `idle_timeout`."""

    control_timeout: float
    """Seconds to wait for the response to a control request, the handshake included."""

    max_line_bytes: int
    """Longest line of output, in bytes; a longer one is skipped and reported."""

    api_max_retries: int | None
    """Maximum retries by the CLI after a temporary API error. Default: 10."""

    retry: RetryPolicy | None
    """Number of retries of a query after the retries of the CLI (`api_max_retries`), or a RetryPolicy. Default:
    none."""

    on_usage_limit: str
    """Behaviour at a usage limit: 'raise', or 'wait': the query continues when the limit resets."""

    usage_limit_ceiling: float
    """Maximum seconds that a query waits for usage limits; it fails at once if the limit resets later."""

    json_schema: dict[str, Any] | None
    """JSON Schema for the answer."""

    output_repairs: int
    """Further attempts, in the same session, when the structured output does not fit `output_type`."""

    partial_messages: bool
    """Stream the answer while the model writes it, as StreamEvent messages. Queries of a session may enable it, unless
    the session sets False."""

    include_hook_events: bool
    """Report the runs of hooks."""

    replay_user_messages: bool
    """Repeat the messages of the user in the output."""

    forward_subagent_text: bool
    """Report text and thinking of sub-agents, not only their tool calls."""

    prompt_suggestions: bool
    """After each turn, report a suggestion for the next prompt."""

    agent_progress_summaries: bool
    """While sub-agents work, report their progress in a sentence."""

    per_task_stop_affordance: bool
    """Inform the CLI that this program can stop individual background tasks."""

    resume: str | None
    """Id of a session to continue."""

    continue_conversation: bool
    """Continue the latest session of the directory."""

    fork_session: bool
    """Resume into a new session and leave the old one unchanged."""

    session_id: str | None
    """Id for the new session. With `resume`, `fork_session` makes one."""

    resume_session_at: str | None
    """With `resume`: the uuid of the last message to keep."""

    resume_drops_turn: str | None
    """With `resume_session_at`: the uuid of the prompt whose turn is dropped."""

    title: str | None
    """Title of the session in lists of sessions."""

    persist_session: bool
    """Whether the CLI writes the session to disk."""

    session_store: Any
    """Store for transcripts beside the disk of this machine; `resume` searches it first."""

    session_store_flush: str
    """When the store gets new messages: 'batched': at the end of a turn at the latest; 'eager': at once."""

    load_timeout: float
    """Seconds to wait for the store when a session is resumed."""

    session_lease: float
    """Seconds after which another host may take over a session in the store whose host has died."""

    restart: str
    """Behaviour of a session after its child died: the next query resumes in a new child, or 'never'."""

    enable_file_checkpointing: bool
    """Keep the state of files before each turn, so that `rewind_files` can restore it."""

    api_key: str | None
    """API key; reaches the child through its environment."""

    auth_token: str | None
    """Bearer token for a gateway; reaches the child through its environment."""

    oauth_token: str | None
    """Long-lived token of `claude setup-token`; reaches the child through its environment."""

    base_url: str | None
    """Address of the API, if it is not the default."""

    provider: Provider | None
    """Provider of the API. The credentials of cloud providers come from the environment."""

    cwd: str | None
    """Working directory of the child, which loads settings, programs and instructions from it. Default: that of this
    process. Where others wrote its files, start from `Options.preset('untrusted_repository')`."""

    add_dirs: list[str] | None
    """Additional directories that tools may use."""

    project_config_root: str | None
    """The checkout whose project settings apply, if `cwd` is a worktree of it."""

    worktree: bool | str
    """Work in a new git worktree of the repository, below `.claude/worktrees`: True, or its name. It stays when the
    child has ended."""

    cli: str
    """The `claude` to run: 'auto', 'bundled' (the managed copy), 'global' (PATH), or a path."""

    user: str | int | None
    """System user that runs the child; only root may set it. HOME does not change: set it in `env`."""

    env: dict[str, str | None] | None
    """Environment variables to set for the child; None removes one."""

    inherit_env: bool | list[str]
    """Start from the environment of this process: True, False, or only from these variables, such as ['PATH', 'HOME',
    'AWS_*']."""

    isolation: str | None
    """'strict': a temporary HOME and configuration for the child, no settings files, MCP servers only from
    `mcp_servers`, and only listed environment variables."""

    keep_detached: bool
    """Leave processes running that a command has detached, such as `nohup server &`. Otherwise they end with the child
    (Linux)."""

    config_dir: str | None
    """Directory of the CLI for its settings, login and sessions; `~/.claude` by default."""

    nonessential_traffic: bool
    """Whether the CLI may use the network beyond the API: updates, telemetry, error reports."""

    client_app: str | None
    """Name of your program, such as 'my-app/1.0'; the CLI sends it to the API."""

    transport: Any
    """Transport to use instead of a local child."""

    settings: CliSettings | Mapping[str, Any] | StrPath | None
    """Settings for the CLI: a mapping, as CliSettings, a path, or JSON text. They are checked before the first
    prompt."""

    managed_settings: CliSettings | Mapping[str, Any] | None
    """Restrictive settings with the rank of an administrator's: other settings cannot loosen them. They are checked
    before the first prompt."""

    setting_sources: list[SettingSource] | None
    """Settings files to load; [] for none."""

    plugins: list[Plugin] | None
    """Plugins for this session: paths, or Plugins."""

    bare: bool
    """Fastest start: no hooks, plugins, memory or login; needs an API key."""

    safe_mode: bool
    """Start without customisations: memory, skills, plugins, hooks, MCP servers, agents."""

    extra_args: dict[str, str | None] | None
    """Flags of the CLI without an option here."""

    instrumentation: list[Instrumentation] | None
    """Observers of queries, such as OpenTelemetry(): one Instrumentation, or a list of them."""

    middleware: list[Callable[[], Any]] | None
    """Middleware classes, or functions that make one, the outermost first: they see the messages of a query, change its
    prompts, and may send another one."""

    callback_wrapper: CallbackWrapper | None
    """Function that gives the context manager in which each callback, hook and tool of this process runs, called with
    its kind and name."""

    stderr: Callable[[str], object] | None
    """Function that is called with every line of the child's standard error."""

    debug: bool | str
    """Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'."""

    debug_file: str | None
    """File for the debug log; enables it."""

class OptionSetters:
    """A method for every option; it takes the value, or None for the default, and returns the object itself."""

    def model(self, value: str | None) -> Self:
        """Model alias ('sonnet', 'opus', 'haiku') or full model id."""

    def fallback_model(self, value: str | Sequence[str] | None) -> Self:
        """Model to use while the first one is overloaded; or a list of models in the order to try."""

    def effort(self, value: Effort | None) -> Self:
        """Effort of the model for its answer."""

    def thinking(self, value: ThinkingChoice | None) -> Self:
        """Thinking of the model: 'adaptive', 'disabled', or a struct with a budget or display settings. Overrides
        `max_thinking_tokens`."""

    def max_thinking_tokens(self, value: int | None) -> Self:
        """Thinking budget in tokens, for models that support one."""

    def max_output_tokens(self, value: int | None) -> Self:
        """Maximum tokens of one answer of the model."""

    def task_budget(self, value: int | Mapping[str, int] | None) -> Self:
        """Token budget of the whole task; the API shows the model the remaining tokens."""

    def advisor(self, value: str | None) -> Self:
        """A second model, which the model may ask for advice; where the API offers it."""

    def autocompact(self, value: Literal['auto'] | int | None) -> Self:
        """Tokens of the window within which the conversation is compacted; 'auto': those of the model."""

    def betas(self, value: list[str] | tuple[str, ...] | None) -> Self:
        """Beta features of the API, such as 'context-1m-2025-08-07'."""

    def system_prompt(self, value: SystemPromptChoice | None) -> Self:
        """Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it."""

    def append_system_prompt(self, value: str | None) -> Self:
        """Added to the end of the system prompt."""

    def append_subagent_system_prompt(self, value: str | None) -> Self:
        """Added to the end of the system prompt of every sub-agent."""

    def plan_mode_instructions(self, value: str | None) -> Self:
        """Instructions for plan mode, instead of the usual ones."""

    def verbatim_prompts(self, value: bool | None) -> Self:
        """Send prompts as written: no `@path` expansion and no `/command`."""

    def prompt_via(self, value: Literal['stdin', 'argv'] | None) -> Self:
        """How the prompt is sent. 'argv': on the command line, without control protocol, at most 128 KiB."""

    def tools(self, value: list[str] | tuple[str, ...] | Literal["default"] | Mapping[str, str] | None) -> Self:
        """The available built-in tools; [] for none, 'default' for all."""

    def allowed_tools(self, value: list[str] | tuple[str, ...] | None) -> Self:
        """Tools that run without a permission request, such as 'Bash(git:*)'. To remove tools, use `tools`."""

    def disallowed_tools(self, value: list[str] | tuple[str, ...] | None) -> Self:
        """Tools that may not be used."""

    def tool_aliases(self, value: Mapping[str, str] | None) -> Self:
        """Replacements of built-in tools, by the name of the built-in tool."""

    def tool_config(self, value: ToolConfig | Mapping[str, Any] | None) -> Self:
        """Settings of individual built-in tools."""

    def skills(self, value: list[str] | tuple[str, ...] | Literal["all"] | None) -> Self:
        """Skills that the model may use without a permission request, or 'all'; loads the settings of user and project,
        unless `setting_sources` is set."""

    def disable_slash_commands(self, value: bool | None) -> Self:
        """No skills and no commands at all."""

    def files(self, value: list[str] | tuple[str, ...] | None) -> Self:
        """Files of the Files API to download at the start, each as 'file_id:path'; in cloud sessions only."""

    def agent(self, value: str | None) -> Self:
        """Name of the agent that leads the conversation."""

    def agents(self, value: Mapping[str, AgentDefinition | Mapping[str, Any]] | None) -> Self:
        """Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model."""

    def mcp_servers(self, value: Mapping[str, McpServer | Mapping[str, Any] | Any] | StrPath | None) -> Self:
        """MCP servers by name: a StdioServer, HttpServer, SseServer, or server in this process, made by `sdk_server` or
        `mount`; or a path to a config file."""

    def custom_tools(self, value: Sequence[Callable[..., Any]] | None) -> Self:
        """Functions of this process that the model may call, plain or made by `@tool`."""

    def tool_bridge(self, value: Literal['mcp', 'xml', 'deferred'] | None) -> Self:
        """How calls of `custom_tools` reach this process: 'mcp': as requests of the CLI; 'deferred': all at the end of
        the turn; 'xml': as text, without the CLI's own tools."""

    def strict_mcp_config(self, value: bool | None) -> Self:
        """Use only the MCP servers of `mcp_servers`."""

    def wait_for_mcp(self, value: bool | float | None) -> Self:
        """Seconds to wait for the MCP servers before the first prompt; True: 60. If one of `mcp_servers` fails or is
        late, nothing is sent, and ControlError or ControlTimeout names it."""

    def permission_mode(self, value: PermissionMode | None) -> Self:
        """Mode that decides tool calls without a matching rule, such as 'acceptEdits'."""

    def allow_dangerously_skip_permissions(self, value: bool | None) -> Self:
        """Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough."""

    def permission_prompt_tool_name(self, value: str | None) -> Self:
        """MCP tool that decides permission requests, as 'mcp__server__tool'."""

    def permission_prompts(self, value: Literal['host', 'none'] | None) -> Self:
        """Where permission requests go: 'host', which is this program, or 'none': they are denied."""

    def can_use_tool(self, value: CanUseTool | None) -> Self:
        """Function that decides a tool call, called with a PermissionRequest; returns Allow, Deny, Confirm, True or
        False."""

    def confirm(self, value: ConfirmCallback | None) -> Self:
        """Function that asks a person, called with a text and the PermissionRequest; returns True or False."""

    def on_question(self, value: QuestionCallback | None) -> Self:
        """Function that answers questions of the model, called with a QuestionRequest; returns the answers."""

    def on_plan(self, value: PlanCallback | None) -> Self:
        """Function that approves plans, called with a PlanRequest; returns True, False, or a text with changes."""

    def asks(self, value: Asks | None) -> Self:
        """Collection of requests that wait until somebody settles them: those that no function decides."""

    def hooks(self, value: Hooks | None) -> Self:
        """Functions that the CLI calls at fixed points of its work: HookMatchers by event."""

    def on_elicitation(self, value: ElicitationCallback | None) -> Self:
        """Function that answers MCP servers, called with an ElicitationRequest."""

    def on_user_dialog(self, value: DialogCallback | None) -> Self:
        """Function that shows dialogs of the CLI, called with a DialogRequest; needs `supported_dialog_kinds`."""

    def supported_dialog_kinds(self, value: list[str] | tuple[str, ...] | None) -> Self:
        """Kinds of dialogs that `on_user_dialog` can show."""

    def restricted(self, value: bool | None) -> Self:
        """No tools that run commands, no settings files, and file tools only inside the directories."""

    def sandbox(self, value: Sandbox | Mapping[str, Any] | None) -> Self:
        """A Sandbox around the commands that tools run. A part of `settings`."""

    def max_turns(self, value: int | None) -> Self:
        """Stop after this many turns of the model."""

    def max_budget_usd(self, value: float | None) -> Self:
        """Stop when the estimated cost passes this many US dollars."""

    def max_budget_tokens(self, value: int | None) -> Self:
        """Stop after this many tokens, input and output of all models; in a session, of all queries together."""

    def until(self, value: Literal['result', 'idle'] | None) -> Self:
        """When a query ends: with its result, or 'idle': when no background task can wake the model any more."""

    def timeout(self, value: float | None) -> Self:
        """Seconds until a query fails with QueryTimeout; in a session from its turn on, when its child is ready. No
        limit by default."""

    def idle_timeout(self, value: float | None) -> Self:
        """Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by
        default."""

    def startup_timeout(self, value: float | None) -> Self:
        """Seconds of silence until the first message; the default is `idle_timeout`."""

    def control_timeout(self, value: float | None) -> Self:
        """Seconds to wait for the response to a control request, the handshake included."""

    def max_line_bytes(self, value: int | None) -> Self:
        """Longest line of output, in bytes; a longer one is skipped and reported."""

    def api_max_retries(self, value: int | None) -> Self:
        """Maximum retries by the CLI after a temporary API error. Default: 10."""

    def retry(self, value: RetryPolicy | int | Mapping[str, Any] | None) -> Self:
        """Number of retries of a query after the retries of the CLI (`api_max_retries`), or a RetryPolicy. Default:
        none."""

    def on_usage_limit(self, value: Literal['raise', 'wait'] | None) -> Self:
        """Behaviour at a usage limit: 'raise', or 'wait': the query continues when the limit resets."""

    def usage_limit_ceiling(self, value: float | None) -> Self:
        """Maximum seconds that a query waits for usage limits; it fails at once if the limit resets later."""

    def json_schema(self, value: Mapping[str, Any] | None) -> Self:
        """JSON Schema for the answer."""

    def output_repairs(self, value: int | None) -> Self:
        """Further attempts, in the same session, when the structured output does not fit `output_type`."""

    def partial_messages(self, value: bool | None) -> Self:
        """Stream the answer while the model writes it, as StreamEvent messages. Queries of a session may enable it,
        unless the session sets False."""

    def include_hook_events(self, value: bool | None) -> Self:
        """Report the runs of hooks."""

    def replay_user_messages(self, value: bool | None) -> Self:
        """Repeat the messages of the user in the output."""

    def forward_subagent_text(self, value: bool | None) -> Self:
        """Report text and thinking of sub-agents, not only their tool calls."""

    def prompt_suggestions(self, value: bool | None) -> Self:
        """After each turn, report a suggestion for the next prompt."""

    def agent_progress_summaries(self, value: bool | None) -> Self:
        """While sub-agents work, report their progress in a sentence."""

    def per_task_stop_affordance(self, value: bool | None) -> Self:
        """Inform the CLI that this program can stop individual background tasks."""

    def resume(self, value: str | None) -> Self:
        """Id of a session to continue."""

    def continue_conversation(self, value: bool | None) -> Self:
        """Continue the latest session of the directory."""

    def fork_session(self, value: bool | None) -> Self:
        """Resume into a new session and leave the old one unchanged."""

    def session_id(self, value: str | None) -> Self:
        """Id for the new session. With `resume`, `fork_session` makes one."""

    def resume_session_at(self, value: str | None) -> Self:
        """With `resume`: the uuid of the last message to keep."""

    def resume_drops_turn(self, value: str | None) -> Self:
        """With `resume_session_at`: the uuid of the prompt whose turn is dropped."""

    def title(self, value: str | None) -> Self:
        """Title of the session in lists of sessions."""

    def persist_session(self, value: bool | None) -> Self:
        """Whether the CLI writes the session to disk."""

    def session_store(self, value: Any) -> Self:
        """Store for transcripts beside the disk of this machine; `resume` searches it first."""

    def session_store_flush(self, value: Literal['batched', 'eager'] | None) -> Self:
        """When the store gets new messages: 'batched': at the end of a turn at the latest; 'eager': at once."""

    def load_timeout(self, value: float | None) -> Self:
        """Seconds to wait for the store when a session is resumed."""

    def session_lease(self, value: float | None) -> Self:
        """Seconds after which another host may take over a session in the store whose host has died."""

    def restart(self, value: Literal['resume', 'never'] | None) -> Self:
        """Behaviour of a session after its child died: the next query resumes in a new child, or 'never'."""

    def enable_file_checkpointing(self, value: bool | None) -> Self:
        """Keep the state of files before each turn, so that `rewind_files` can restore it."""

    def api_key(self, value: str | None) -> Self:
        """API key; reaches the child through its environment."""

    def auth_token(self, value: str | None) -> Self:
        """Bearer token for a gateway; reaches the child through its environment."""

    def oauth_token(self, value: str | None) -> Self:
        """Long-lived token of `claude setup-token`; reaches the child through its environment."""

    def base_url(self, value: str | None) -> Self:
        """Address of the API, if it is not the default."""

    def provider(self, value: Provider | None) -> Self:
        """Provider of the API. The credentials of cloud providers come from the environment."""

    def cwd(self, value: StrPath | None) -> Self:
        """Working directory of the child, which loads settings, programs and instructions from it. Default: that of
        this process. Where others wrote its files, start from `Options.preset('untrusted_repository')`."""

    def add_dirs(self, value: Sequence[StrPath] | None) -> Self:
        """Additional directories that tools may use."""

    def project_config_root(self, value: StrPath | None) -> Self:
        """The checkout whose project settings apply, if `cwd` is a worktree of it."""

    def worktree(self, value: bool | str | None) -> Self:
        """Work in a new git worktree of the repository, below `.claude/worktrees`: True, or its name. It stays when the
        child has ended."""

    def cli(self, value: StrPath | None) -> Self:
        """The `claude` to run: 'auto', 'bundled' (the managed copy), 'global' (PATH), or a path."""

    def user(self, value: str | int | None) -> Self:
        """System user that runs the child; only root may set it. HOME does not change: set it in `env`."""

    def env(self, value: Mapping[str, str | None] | None) -> Self:
        """Environment variables to set for the child; None removes one."""

    def inherit_env(self, value: bool | list[str] | tuple[str, ...] | None) -> Self:
        """Start from the environment of this process: True, False, or only from these variables, such as ['PATH',
        'HOME', 'AWS_*']."""

    def isolation(self, value: Literal['strict'] | None) -> Self:
        """'strict': a temporary HOME and configuration for the child, no settings files, MCP servers only from
        `mcp_servers`, and only listed environment variables."""

    def keep_detached(self, value: bool | None) -> Self:
        """Leave processes running that a command has detached, such as `nohup server &`. Otherwise they end with the
        child (Linux)."""

    def config_dir(self, value: StrPath | None) -> Self:
        """Directory of the CLI for its settings, login and sessions; `~/.claude` by default."""

    def nonessential_traffic(self, value: bool | None) -> Self:
        """Whether the CLI may use the network beyond the API: updates, telemetry, error reports."""

    def client_app(self, value: str | None) -> Self:
        """Name of your program, such as 'my-app/1.0'; the CLI sends it to the API."""

    def transport(self, value: Any) -> Self:
        """Transport to use instead of a local child."""

    def settings(self, value: CliSettings | Mapping[str, Any] | StrPath | None) -> Self:
        """Settings for the CLI: a mapping, as CliSettings, a path, or JSON text. They are checked before the first
        prompt."""

    def managed_settings(self, value: CliSettings | Mapping[str, Any] | None) -> Self:
        """Restrictive settings with the rank of an administrator's: other settings cannot loosen them. They are checked
        before the first prompt."""

    def setting_sources(self, value: Sequence[SettingSource] | None) -> Self:
        """Settings files to load; [] for none."""

    def plugins(self, value: Sequence[Plugin | StrPath | Mapping[str, Any]] | None) -> Self:
        """Plugins for this session: paths, or Plugins."""

    def bare(self, value: bool | None) -> Self:
        """Fastest start: no hooks, plugins, memory or login; needs an API key."""

    def safe_mode(self, value: bool | None) -> Self:
        """Start without customisations: memory, skills, plugins, hooks, MCP servers, agents."""

    def extra_args(self, value: Mapping[str, str | None] | None) -> Self:
        """Flags of the CLI without an option here."""

    def instrumentation(self, value: Instrumentation | Sequence[Instrumentation] | None) -> Self:
        """Observers of queries, such as OpenTelemetry(): one Instrumentation, or a list of them."""

    def middleware(self, value: Sequence[Callable[[], Any]] | None) -> Self:
        """Middleware classes, or functions that make one, the outermost first: they see the messages of a query, change
        its prompts, and may send another one."""

    def callback_wrapper(self, value: CallbackWrapper | None) -> Self:
        """Function that gives the context manager in which each callback, hook and tool of this process runs, called
        with its kind and name."""

    def stderr(self, value: Callable[[str], object] | None) -> Self:
        """Function that is called with every line of the child's standard error."""

    def debug(self, value: bool | str | None) -> Self:
        """Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'."""

    def debug_file(self, value: StrPath | None) -> Self:
        """File for the debug log; enables it."""
