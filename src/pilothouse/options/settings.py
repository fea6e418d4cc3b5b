"""Static types of the options, for editors and type checkers. Names, order and texts match the table (tested)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from pilothouse.hooks import Hooks
    from pilothouse.instrumentation import Instrumentation
    from pilothouse.messages.core import PermissionMode
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
        CanUseTool,
        ConfirmCallback,
        DialogCallback,
        ElicitationCallback,
        PlanCallback,
        QuestionCallback,
    )

    SystemPrompt = str | SystemPromptPreset | CustomSystemPrompt | SystemPromptFile
    SystemPromptChoice = SystemPrompt | Sequence[str] | Mapping[str, Any]
    Thinking = AdaptiveThinking | EnabledThinking | DisabledThinking
    ThinkingChoice = Thinking | Literal["adaptive", "disabled", "enabled"] | Mapping[str, Any]
    McpServer = StdioServer | HttpServer | SseServer

Provider = Literal["anthropic", "bedrock", "vertex", "foundry"]
SettingSource = Literal["user", "project", "local"]
StrPath = str | os.PathLike[str]


class Settings(TypedDict, total=False):
    """Keyword arguments of `Options`, `Agent`, `query` and `configure`; `pilothouse.options.TABLE` explains each."""

    model: str | None
    """Model alias ('sonnet', 'opus', 'haiku') or full model id."""
    fallback_model: str | Sequence[str] | None
    """Model to use while the first one is overloaded; or several, in the order to try."""
    effort: Effort | None
    """How much effort the model puts into its answer."""
    thinking: ThinkingChoice | None
    """Whether and how the model thinks: 'adaptive', 'disabled', or a struct with a budget or with what is shown. Wins
    over `max_thinking_tokens`."""
    max_thinking_tokens: int | None
    """Thinking budget, on models that have one."""
    max_output_tokens: int | None
    """Most tokens of one answer of the model."""
    task_budget: int | Mapping[str, int] | None
    """Tokens for the whole task; the API tells the model how many are left."""
    betas: Sequence[str] | None
    """Beta features of the API, such as 'context-1m-2025-08-07'."""
    system_prompt: SystemPromptChoice | None
    """Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it."""
    append_system_prompt: str | None
    """Added to the end of the system prompt."""
    append_subagent_system_prompt: str | None
    """Added to the end of the system prompt of every sub-agent."""
    plan_mode_instructions: str | None
    """How to go about it in plan mode, in place of the usual instructions."""
    verbatim_prompts: bool | None
    """Send prompts as written: no `@path` expansion and no `/command`."""
    prompt_via: Literal["stdin", "argv"] | None
    """How the prompt travels. 'argv' is the plain one-shot form: no control protocol, prompts of at most 128 KiB."""
    tools: Sequence[str] | Literal["default"] | Mapping[str, str] | None
    """Which built-in tools exist; [] for none, 'default' for all."""
    allowed_tools: Sequence[str] | None
    """Tools that run without asking, such as 'Bash(git:*)'. Takes none away: `tools` does."""
    disallowed_tools: Sequence[str] | None
    """Tools that may not be used."""
    tool_aliases: Mapping[str, str] | None
    """Other tools to call in place of built-in ones, by the name of the built-in one."""
    tool_config: ToolConfig | Mapping[str, Any] | None
    """Settings of single built-in tools."""
    skills: Sequence[str] | Literal["all"] | None
    """Skills that the model may use without asking, or 'all'; loads the settings of user and project, unless
    `setting_sources` says otherwise."""
    disable_slash_commands: bool | None
    """No skills and no commands at all."""
    agent: str | None
    """The agent that leads the conversation, by name."""
    agents: Mapping[str, AgentDefinition | Mapping[str, Any]] | None
    """Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model."""
    mcp_servers: Mapping[str, McpServer | Mapping[str, Any] | Any] | StrPath | None
    """MCP servers by name: a StdioServer, HttpServer or SseServer each, or one that runs in this process, made by
    `sdk_server` or `mount`; or a path to a config file."""
    custom_tools: Sequence[Callable[..., Any]] | None
    """Functions of this process that the model may call, as they are or made by `@tool`."""
    tool_bridge: Literal["mcp", "xml", "deferred"] | None
    """How a call of `custom_tools` gets here: 'mcp': the CLI asks for it; 'deferred': the turn ends, and all its
    calls run here; 'xml': as text, without MCP and without the CLI's own tools."""
    strict_mcp_config: bool | None
    """Use no MCP servers but those of `mcp_servers`."""
    wait_for_mcp: bool | float | None
    """Send the first prompt only when the MCP servers are connected, for at most so many seconds; True: 60. If one of
    `mcp_servers` has failed or is late, ControlError or ControlTimeout names it, and nothing is sent; servers from
    elsewhere may fail."""
    permission_mode: PermissionMode | None
    """What happens when a tool needs permission."""
    allow_dangerously_skip_permissions: bool | None
    """Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough."""
    permission_prompt_tool_name: str | None
    """An MCP tool that answers when a tool needs permission, as 'mcp__server__tool'."""
    permission_prompts: Literal["host", "none"] | None
    """Who answers when a tool needs permission: 'host', which is this program, or 'none': it is denied."""
    can_use_tool: CanUseTool | None
    """Called when a tool needs permission, with a PermissionRequest; returns Allow, Deny, Confirm, True or False."""
    confirm: ConfirmCallback | None
    """Called when a permission needs a person, with a text and the PermissionRequest; returns True or False."""
    on_question: QuestionCallback | None
    """Called when the model asks the user something, with a QuestionRequest; returns the answers."""
    on_plan: PlanCallback | None
    """Called when the model wants a plan approved, with a PlanRequest; returns True, False, or what to change."""
    hooks: Hooks | None
    """Functions called before, between and after what the CLI does: HookMatchers by event."""
    on_elicitation: ElicitationCallback | None
    """Called when an MCP server asks the user something, with an ElicitationRequest."""
    on_user_dialog: DialogCallback | None
    """Called when the CLI wants a dialog shown, with a DialogRequest; needs `supported_dialog_kinds`."""
    supported_dialog_kinds: Sequence[str] | None
    """The kinds of dialogs that `on_user_dialog` can show."""
    restricted: bool | None
    """No tools that run commands, no settings files, and file tools only inside the directories."""
    sandbox: Sandbox | Mapping[str, Any] | None
    """A Sandbox around the commands that tools run. A part of `settings`."""
    max_turns: int | None
    """Stop after this many turns of the model."""
    max_budget_usd: float | None
    """Stop when the estimated cost passes this many US dollars."""
    max_budget_tokens: int | None
    """Stop when more tokens are used than this, input and output of all models; in a session, by all queries."""
    until: Literal["result", "idle"] | None
    """When a query is over: with its result, or 'idle': when nothing in the background is left to wake the model."""
    timeout: float | None
    """Seconds until a query fails with QueryTimeout. No limit by default."""
    idle_timeout: float | None
    """Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by default."""
    startup_timeout: float | None
    """The same until the first message, in place of `idle_timeout`, which holds there too if this is not set."""
    control_timeout: float | None
    """Seconds to wait for the answer to a control request, the handshake included."""
    max_line_bytes: int | None
    """Longest line of output, in bytes; a longer one is skipped and reported."""
    api_max_retries: int | None
    """How often the CLI repeats a request that the API refused for the moment; 10 if it is not said."""
    retry: RetryPolicy | int | Mapping[str, Any] | None
    """How often a query is tried again after the CLI has given up, or a RetryPolicy. Not at all by default: the CLI
    has repeated the request by itself (`api_max_retries`)."""
    on_usage_limit: Literal["raise", "wait"] | None
    """What happens when a usage limit is reached: the query fails, or 'wait': it goes on when the limit resets."""
    usage_limit_ceiling: float | None
    """Seconds that a query waits for usage limits at most; one that resets later makes it fail at once."""
    json_schema: Mapping[str, Any] | None
    """JSON Schema that the answer must fit."""
    output_repairs: int | None
    """How often the model is asked again, in the same session, when its structured output does not fit
    `output_type`."""
    partial_messages: bool | None
    """Stream the answer while it is written, as StreamEvent messages. The child of a session sends them unless this
    is False, so that each query can ask for them; who did not ask gets none."""
    include_hook_events: bool | None
    """Report hooks that run."""
    replay_user_messages: bool | None
    """Repeat the messages of the user in the output, as they were taken up."""
    forward_subagent_text: bool | None
    """Report what sub-agents say and think, not only their tool calls."""
    prompt_suggestions: bool | None
    """After each turn, report what the user is likely to say next."""
    agent_progress_summaries: bool | None
    """While sub-agents work, report in a sentence what they are at."""
    per_task_stop_affordance: bool | None
    """Tell the CLI that single background tasks can be stopped here."""
    resume: str | None
    """Id of a session to continue."""
    continue_conversation: bool | None
    """Continue the latest session of the directory."""
    fork_session: bool | None
    """Resume into a new session and leave the old one as it was."""
    session_id: str | None
    """Id for the new session. With `resume`, `fork_session` makes one."""
    resume_session_at: str | None
    """With `resume`: the uuid of the last message to keep."""
    resume_drops_turn: str | None
    """With `resume_session_at`: the uuid of the prompt whose turn is given up."""
    title: str | None
    """Title of the session, as lists of sessions show it."""
    persist_session: bool | None
    """Whether the CLI writes the session to disk."""
    session_store: Any
    """Where transcripts are kept beside the disk of this machine, and where `resume` looks for them first."""
    session_store_flush: Literal["batched", "eager"] | None
    """When the store gets what was said: in batches, at the end of a turn at the latest, or 'eager': at once."""
    load_timeout: float | None
    """Seconds to wait for an answer of the store when a session is resumed."""
    session_lease: float | None
    """Seconds after which another host may take over a session in the store whose host has died."""
    restart: Literal["resume", "never"] | None
    """What a session does after its child died: the next query resumes in a new child, or 'never'."""
    enable_file_checkpointing: bool | None
    """Keep what files were before each turn, so that they can be brought back."""
    api_key: str | None
    """API key; reaches the child through its environment."""
    auth_token: str | None
    """Bearer token for a gateway; reaches the child through its environment."""
    oauth_token: str | None
    """Long-lived token of `claude setup-token`; reaches the child through its environment."""
    base_url: str | None
    """Address of the API, if it is not the usual one."""
    provider: Provider | None
    """Whose API it is. The credentials for the clouds come from the environment."""
    cwd: StrPath | None
    """Working directory of the child. By default that of this process."""
    add_dirs: Sequence[StrPath] | None
    """Further directories that tools may use."""
    project_config_root: StrPath | None
    """The checkout whose project settings count, where `cwd` is a worktree of it."""
    cli: StrPath | None
    """Which `claude` to run: 'auto', 'bundled' (the copy that pilothouse keeps), 'global' (PATH), or a path."""
    user: str | int | None
    """User of this system to run the child as; only root may. Its HOME stays as it is: set it in `env`."""
    env: Mapping[str, str | None] | None
    """Environment variables to set for the child; None removes one."""
    inherit_env: bool | None
    """Start from the environment of this process."""
    isolation: Literal["strict"] | None
    """'strict': a HOME and a configuration of its own that go with the child, no settings files, MCP servers only
    from `mcp_servers`, and of the environment only what is on a list."""
    config_dir: StrPath | None
    """Directory of the CLI for its settings, login and sessions; `~/.claude` by default."""
    nonessential_traffic: bool | None
    """Whether the CLI may talk to the network about more than the question: updates, telemetry, error reports."""
    client_app: str | None
    """Name of your program, such as 'my-app/1.0'; the CLI tells it to the API."""
    transport: Any
    """Another way to reach the peer than a local child."""
    settings: Mapping[str, Any] | StrPath | None
    """Settings for the CLI: a mapping, a path, or JSON text."""
    managed_settings: Mapping[str, Any] | None
    """Settings that restrict, as an administrator sets them: other settings cannot loosen them."""
    setting_sources: Sequence[SettingSource] | None
    """Which settings files to load; [] for none of them."""
    plugins: Sequence[Plugin | StrPath | Mapping[str, Any]] | None
    """Plugins for this session: paths, or Plugins."""
    bare: bool | None
    """Fastest start: no hooks, plugins, memory or login; needs an API key."""
    safe_mode: bool | None
    """Start without anything that was customised: memory, skills, plugins, hooks, MCP servers, agents."""
    extra_args: Mapping[str, str | None] | None
    """Flags of the CLI that have no option here."""
    instrumentation: Instrumentation | Sequence[Instrumentation] | None
    """What watches queries, such as OpenTelemetry(): one Instrumentation, or a list of them."""
    stderr: Callable[[str], object] | None
    """Called with every line the child writes to standard error."""
    debug: bool | str | None
    """Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'."""
    debug_file: StrPath | None
    """File for the debug log; switches it on."""
