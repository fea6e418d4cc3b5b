"""The table of options: name, type, destination, documentation, default, and since when the CLI has it.

An option is one entry here. Validation, rendering, layers, the fluent form, signatures and the command's flags read the
table; `python docs/reference.py` writes the static types (`settings.pyi`) and the docs from it. Plain data and pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pilothouse.options import value_structs as structs
from pilothouse.options import value_types as types
from pilothouse.options.secrets import MASK
from pilothouse.options.value_types import ValueType, redacted_repr

# Where the value of an option goes. `renderer` acts on the targets.


class Flag(Struct, frozen=True):
    """One argument `--name=value`; items of a list are joined with commas."""

    name: str


class ListFlag(Flag, frozen=True):
    """`--name=a,b`; a list that is too long for one argument becomes several, which the CLI joins."""


class PathFlag(Flag, frozen=True):
    """One argument `--name=path`; a leading `~` is the home directory."""


class RepeatedFlag(Flag, frozen=True):
    """`--name=path` once for each item."""


class Switch(Flag, frozen=True):
    """`--name`, present when the value is `on`."""

    on: bool = True


class SwitchOrFlag(Flag, frozen=True):
    """`--name` for True, `--name=value` for text, nothing for False."""


class TextFlag(Flag, frozen=True):
    """`--name=value` while it is short.

    Longer text goes into a private file, passed as `--file_flag=path`, or into the initialize request under `key`,
    depending on which of the two is set.
    """

    file_flag: str = ""
    key: str = ""


class ConfigFlag(Flag, frozen=True):
    """Text or a path goes as `--name=value`; a mapping, which may hold secrets, as a private JSON file.

    `wrap` is the key that a mapping is put under.
    """

    wrap: str | None = None


class JsonFlag(Flag, frozen=True):
    """A JSON value: `--name={...}` while it is short, else the initialize request carries it under `key`.

    `switches` are flags that make the CLI read that key. A `private` value may hold secrets: it is never an argument.
    In the argv form it is a private file; with `switches` there is no argv form, because the CLI reads no file.
    """

    key: str
    private: bool = False
    switches: tuple[str, ...] = ()


class InitializeField(Struct, frozen=True):
    """A key of the initialize request; the argv form has none."""

    key: str


class EnvVar(Struct, frozen=True):
    """An environment variable of the child. Keys only travel this way. `path`: a leading `~` is the home."""

    name: str
    path: bool = False


class EnvSwitch(Struct, frozen=True):
    """A variable that is `value` when the option is `on`, and removed when it is not."""

    name: str
    value: str = "1"
    on: bool = True


class PartOfOption(Struct, frozen=True):
    """Becomes a part of another option before rendering."""

    option: str


class Internal(Struct, frozen=True):
    """Used by pilothouse itself. `wire_name` is the protocol word that the option makes it send, if any."""

    wire_name: str = ""


class AtStart(Struct, frozen=True):
    """Used by pilothouse itself when it starts a child: a child that runs keeps what it has."""


class SplitTarget(Struct, frozen=True):
    """Goes to several places: `split` returns which part of a value goes where; `targets` lists all targets."""

    split: Callable[[Any], Iterable[tuple[Target, Any]]]
    targets: tuple[Target, ...]


Target = Flag | InitializeField | EnvVar | EnvSwitch | PartOfOption | Internal | AtStart | SplitTarget
Pieces = Iterator[tuple[Target, Any]]


FlagUse = Literal["switch", "value", "path"]


def list_flags(target: Target) -> dict[str, FlagUse]:
    """Every flag that `target` can put on the command line, without dashes, and what stands behind it."""
    match target:
        case SplitTarget(_, parts):
            return {flag: use for part in parts for flag, use in list_flags(part).items()}
        case TextFlag(name, file_flag) if file_flag:
            return {name: "value", file_flag: "path"}
        case JsonFlag(name, _, is_private, switches) if switches:
            return {**({} if is_private else {name: "value"}), **dict.fromkeys(switches, "switch")}
        case Switch(name) | SwitchOrFlag(name):
            return {name: "switch"}
        case PathFlag(name) | RepeatedFlag(name):
            return {name: "path"}
        case Flag(name):
            return {name: "value"}
        case _:
            return {}


def describe_target(target: Target) -> str:
    """Describe where a value goes, in words, for the documentation."""
    match target:
        case SplitTarget(_, parts):
            flags = [f"`--{flag}`" for flag in list_flags(target)]
            return "; ".join(flags + [describe_target(part) for part in parts if not isinstance(part, Flag)])
        case TextFlag(name, file_flag, key):
            return f"`--{name}`; long text in " + (
                f"a private file, `--{file_flag}`" if file_flag else f"the handshake as `{key}`"
            )
        case ConfigFlag(name):
            return f"`--{name}`; a mapping goes in a private file"
        case JsonFlag(name, key, False):
            return f"`--{name}`; a long one in the handshake as `{key}`"
        case JsonFlag(name, key, _, switches):
            return f"handshake, `{key}`" + ("" if switches else f"; in the argv form a private file, `--{name}`")
        case Flag(name):
            return f"`--{name}`"
        case InitializeField(key):
            return f"handshake, `{key}`"
        case EnvVar(name) | EnvSwitch(name):
            return f"environment, `{name}`"
        case PartOfOption(option):
            return f"part of `{option}`"
        case Internal(wire_name) if wire_name:
            return f"pilothouse; `{wire_name}` of each prompt"
        case Internal() | AtStart():
            return "pilothouse"


# Values that go to several places


_PROMPT = TextFlag("system-prompt", "system-prompt-file")
_APPEND = TextFlag("append-system-prompt", "append-system-prompt-file")
_PROMPT_FILE = PathFlag("system-prompt-file")
_PROMPT_BLOCKS = InitializeField("systemPrompt")
_DYNAMIC = Switch("exclude-dynamic-system-prompt-sections")
_SNAPSHOT = Flag("system-prompt-snapshot")
_THINKING = Flag("thinking")
_THINKING_TOKENS = Flag("max-thinking-tokens")
_THINKING_DISPLAY = Flag("thinking-display")
_PLUGIN = PathFlag("plugin-dir")
_PLUGIN_NO_MCP = PathFlag("plugin-dir-no-mcp")
_PREVIEW_FORMAT = EnvVar("CLAUDE_CODE_QUESTION_PREVIEW_FORMAT")
_SKILL_NAMES = InitializeField("skills")
_SESSION_MIRROR = Switch("session-mirror")
_PROVIDERS = {
    "bedrock": EnvVar("CLAUDE_CODE_USE_BEDROCK"),
    "vertex": EnvVar("CLAUDE_CODE_USE_VERTEX"),
    "foundry": EnvVar("CLAUDE_CODE_USE_FOUNDRY"),
}


def _split_system_prompt(value: Any) -> Pieces:
    if isinstance(value, str):
        yield _PROMPT, value
        return
    kind = value.__struct_config__.tag
    if kind == "file":
        yield _PROMPT_FILE, value.path
        return
    if kind == "custom":
        yield (_PROMPT if isinstance(value.prompt, str) else _PROMPT_BLOCKS), value.prompt
    else:
        yield _APPEND, value.append
        yield _DYNAMIC, value.exclude_dynamic_sections
    if value.snapshot is not None:
        yield _SNAPSHOT, "on" if value.snapshot else "off"


def _split_thinking(value: Any) -> Pieces:
    kind = value.__struct_config__.tag
    tokens = value.budget_tokens if kind == "enabled" else None
    yield (_THINKING, kind) if tokens is None else (_THINKING_TOKENS, tokens)
    if kind != "disabled":
        yield _THINKING_DISPLAY, value.display


def _split_plugins(value: Any) -> Pieces:
    for plugin in value:
        yield (_PLUGIN_NO_MCP if plugin.skip_mcp_discovery else _PLUGIN), plugin.path


def _split_tool_config(value: Any) -> Pieces:
    if value.ask_user_question is not None and value.ask_user_question.preview_format is not None:
        yield _PREVIEW_FORMAT, value.ask_user_question.preview_format


def _split_skills(value: Any) -> Pieces:
    if value != "all":  # names narrow the list that the model sees; the permission is a part of `allowed_tools`
        yield _SKILL_NAMES, value


def _split_session_store(value: Any) -> Pieces:
    yield _SESSION_MIRROR, True  # the CLI itself sends the transcripts


def _split_provider(value: str) -> Pieces:
    for name, variable in _PROVIDERS.items():
        yield variable, "1" if name == value else None  # removes inherited values of the other providers


# Values with an inner structure


_JSON = "JSON|@FILE"
# Each: what is expected, reader, parser of text, placeholder in the help, static types, paths.
# fmt: off
_MODELS = ValueType("a model, or a list of models in the order to try", structs.read_models, metavar="NAME",
    takes="str | Sequence[str]", gives="str | list[str]")
_TOOLS = ValueType("a list of tool names, or 'default'", structs.read_tools,
    types.word_or({"default": "default"}.get, types.parse_list), "A,B",
    'list[str] | tuple[str, ...] | Literal["default"] | Mapping[str, str]', "list[str] | str")
_SKILLS = ValueType("a list of skill names, or 'all'", structs.read_skills,
    types.word_or({"all": "all"}.get, types.parse_list), "A,B",
    'list[str] | tuple[str, ...] | Literal["all"]', "list[str] | str")
_ALIASES = ValueType("a mapping of tool names to tool names", structs.read_aliases, types.parse_mapping, _JSON,
    "Mapping[str, str]", "dict[str, str]")
_MAPPING = ValueType("a mapping with text keys", structs.read_json_object, types.parse_mapping, _JSON,
    "Mapping[str, Any]", "dict[str, Any]")
_CONFIG = ValueType("a mapping, or a path or JSON text", structs.read_config,
    types.word_or(types.find_mapping, str), "PATH|JSON", "Mapping[str, Any] | StrPath", "dict[str, Any] | str",
    types.resolve_config)
_MCP_SERVERS = ValueType("a mapping of names to servers, or a path or JSON text", structs.read_servers,
    _CONFIG.parse, "PATH|JSON", "Mapping[str, McpServer | Mapping[str, Any] | Any] | StrPath", "dict[str, Any] | str",
    types.resolve_config)
_AGENTS = ValueType("a mapping of names to agents", structs.read_agents, types.parse_mapping, _JSON,
    "Mapping[str, AgentDefinition | Mapping[str, Any]]", "dict[str, Any]")
_SANDBOX = ValueType("a Sandbox, or a mapping", structs.read_sandbox, types.parse_mapping, _JSON,
    "Sandbox | Mapping[str, Any]", "Any")
_TOOL_CONFIG = ValueType("a ToolConfig, or a mapping", structs.read_tool_config, types.parse_mapping, _JSON,
    "ToolConfig | Mapping[str, Any]", "ToolConfig")
_RETRY = ValueType("a whole number of at least 0, or a RetryPolicy", structs.read_retry_policy,
    types.word_or(types.find_mapping, types.parse_whole_number), "N|JSON", "RetryPolicy | int | Mapping[str, Any]",
    "RetryPolicy")
_TASK_BUDGET = ValueType("a whole number of tokens of at least 1", structs.read_task_budget, types.parse_count,
    "N", "int | Mapping[str, int]", "int")
_THINKING_CHOICE = ValueType("'adaptive', 'disabled', or an AdaptiveThinking, EnabledThinking or DisabledThinking",
    structs.read_thinking, types.word_or(types.find_mapping, str), "NAME|JSON", "ThinkingChoice", "Thinking")
_SYSTEM_PROMPT = ValueType(
    "text, a list of its blocks, or a SystemPromptPreset, SystemPromptFile or CustomSystemPrompt",
    structs.read_system_prompt, takes="SystemPromptChoice", gives="SystemPrompt",
    resolve_paths=structs.resolve_system_prompt)
_PLUGINS = ValueType("a list of paths or Plugins", structs.read_plugins, types.parse_list, "PATH",
    "Sequence[Plugin | StrPath | Mapping[str, Any]]", "list[Plugin]", structs.resolve_plugins)
# fmt: on


class Option(Struct, frozen=True):
    """One entry of the table.

    Args:
        name: the name in Python.
        value_type: what a valid value is.
        target: where the value goes.
        doc: what the option does, in sentences.
        default: the value while the option is not set.
        secret: its values are never shown.
        min_cli_version: the first tried release of the CLI that accepts the option, found by running releases with
            each flag, and in their code; "" if every one since 2.0.0 does, or if the option is none of the CLI.
        takes: the static type of what may be given, if it is more precise than that of `value_type`.
        group: its title in the docs and the help.
    """

    name: str
    value_type: ValueType
    target: Target
    doc: str
    default: Any = None
    secret: bool = False
    min_cli_version: str = ""
    takes: str = ""
    group: str = ""

    @property
    def in_files(self) -> bool:
        """Whether a configuration file may set it: it has a text form and is not a key."""
        return self.value_type.parse is not None and not (self.secret and isinstance(self.target, EnvVar))

    @property
    def accepted_type(self) -> str:
        """The static type of a value that may be given, as text."""
        takes = self.takes or self.value_type.takes
        return takes if takes == "Any" else f"{takes} | None"

    @property
    def stored_type(self) -> str:
        """The static type of the attribute of `Options`, as text."""
        gives = self.takes or self.value_type.gives or self.value_type.takes
        return gives if gives == "Any" or self.default is not None else f"{gives} | None"

    @property
    def flags(self) -> Mapping[str, FlagUse]:
        """The flags of the CLI that it may become, without dashes: a "switch", or one with a "value" or a "path"."""
        return list_flags(self.target)

    @property
    def destination(self) -> str:
        """Where its value goes, in words, for documentation."""
        return describe_target(self.target)

    @property
    def variable(self) -> str | None:
        """The environment variable that sets it; None: no text can."""
        return VARIABLE_PREFIX + self.name.upper() if self.value_type.parse is not None else None

    def format_value(self, value: Any) -> str:
        """Return `value` as text, with possible keys masked."""
        return MASK if self.secret else redacted_repr(value)


VARIABLE_PREFIX = "PILOTHOUSE_"
DEFAULT_MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_USAGE_LIMIT_CEILING = 6 * 3600.0  # seconds: the shortest window of a plan takes five hours
DEFAULT_LOAD_TIMEOUT = 60.0  # seconds for one response of a session store: a long remote session takes a few
DEFAULT_SESSION_LEASE = 60.0  # seconds: longer than a network outage, shorter than the patience of a user
DEFAULT_CONTROL_TIMEOUT = 60.0  # seconds; the CLI responds in under a second, a cold disk may take ten

# The documentation of an entry stands below its facts.
# fmt: off
MODEL = (
    Option("model", types.NAME, Flag("model"),
        doc="Model alias ('sonnet', 'opus', 'haiku') or full model id."),
    Option("fallback_model", _MODELS, Flag("fallback-model"),
        doc="Model to use while the first one is overloaded; or a list of models in the order to try."),
    Option("effort", types.EFFORT, Flag("effort"), min_cli_version="2.1.40",
        doc="Effort of the model for its answer."),
    Option("thinking", _THINKING_CHOICE, SplitTarget(_split_thinking, (_THINKING, _THINKING_TOKENS, _THINKING_DISPLAY)),
        min_cli_version="2.1.50",
        doc="Thinking of the model: 'adaptive', 'disabled', or a struct with a budget or display settings. Overrides "
        "`max_thinking_tokens`."),
    Option("max_thinking_tokens", types.WHOLE_NUMBER, Flag("max-thinking-tokens"),
        min_cli_version="2.0.20", doc="Thinking budget in tokens, for models that support one."),
    Option("max_output_tokens", types.COUNT, EnvVar("CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
        doc="Maximum tokens of one answer of the model."),
    Option("task_budget", _TASK_BUDGET, Flag("task-budget"), min_cli_version="2.1.98",
        doc="Token budget of the whole task; the API shows the model the remaining tokens."),
    Option("advisor", types.NAME, Flag("advisor"),
        doc="A second model, which the model may ask for advice; where the API offers it."),
    Option("autocompact", types.WINDOW, Flag("autocompact"),
        doc="Tokens of the window within which the conversation is compacted; 'auto': those of the model."),
    Option("betas", types.NAMES, ListFlag("betas"), min_cli_version="2.0.64",
        doc="Beta features of the API, such as 'context-1m-2025-08-07'."),
)
PROMPT = (
    Option("system_prompt", _SYSTEM_PROMPT, SplitTarget(
        _split_system_prompt, (_PROMPT, _APPEND, _PROMPT_FILE, _DYNAMIC, _SNAPSHOT, _PROMPT_BLOCKS)),
        doc="Replaces the system prompt of Claude Code; a SystemPromptPreset changes it, a SystemPromptFile reads it."),
    Option("append_system_prompt", types.TEXT, _APPEND, doc="Added to the end of the system prompt."),
    Option("append_subagent_system_prompt", types.TEXT,
        TextFlag("append-subagent-system-prompt", "append-subagent-system-prompt-file"), min_cli_version="2.1.223",
        doc="Added to the end of the system prompt of every sub-agent."),
    Option("plan_mode_instructions", types.TEXT, TextFlag("plan-mode-instructions", key="planModeInstructions"),
        min_cli_version="2.1.119", doc="Instructions for plan mode, instead of the usual ones."),
    Option("verbatim_prompts", types.BOOL, Internal("client_composed"),
        default=False, min_cli_version="2.1.248",
        doc="Send prompts as written: no `@path` expansion and no `/command`."),
    Option("prompt_via", types.choice("stdin", "argv"), Internal(), default="stdin",
        doc="How the prompt is sent. 'argv': on the command line, without control protocol, at most 128 KiB."),
)
TOOLS = (
    Option("tools", _TOOLS, ListFlag("tools"), min_cli_version="2.0.32",
        doc="The available built-in tools; [] for none, 'default' for all."),
    Option("allowed_tools", types.NAMES, ListFlag("allowedTools"),
        doc="Tools that run without a permission request, such as 'Bash(git:*)'. To remove tools, use `tools`."),
    Option("disallowed_tools", types.NAMES, ListFlag("disallowedTools"),
        doc="Tools that may not be used."),
    Option("tool_aliases", _ALIASES, InitializeField("toolAliases"), min_cli_version="2.1.150",
        doc="Replacements of built-in tools, by the name of the built-in tool."),
    Option("tool_config", _TOOL_CONFIG, SplitTarget(_split_tool_config, (_PREVIEW_FORMAT,)),
        doc="Settings of individual built-in tools."),
    Option("skills", _SKILLS, SplitTarget(_split_skills, (_SKILL_NAMES,)),
        min_cli_version="2.1.119",
        doc="Skills that the model may use without a permission request, or 'all'; loads the settings of user and "
        "project, unless `setting_sources` is set."),
    Option("disable_slash_commands", types.BOOL, Switch("disable-slash-commands"),
        default=False, min_cli_version="2.0.64", doc="No skills and no commands at all."),
    Option("files", types.NAMES, RepeatedFlag("file"),
        doc="Files of the Files API to download at the start, each as 'file_id:path'; in cloud sessions only."),
    Option("agent", types.NAME, Flag("agent"), min_cli_version="2.0.64",
        doc="Name of the agent that leads the conversation."),
    Option("agents", _AGENTS, JsonFlag("agents", "agents", private=True),
        doc="Sub-agents by name: AgentDefinitions, each with its description, prompt, tools and model."),
    Option("mcp_servers", _MCP_SERVERS, ConfigFlag("mcp-config", "mcpServers"),
        doc="MCP servers by name: a StdioServer, HttpServer, SseServer, or server in this process, made by "
        "`sdk_server` or `mount`; or a path to a config file."),
    Option("custom_tools", types.FUNCTIONS, AtStart(),
        doc="Functions of this process that the model may call, plain or made by `@tool`."),
    Option("tool_bridge", types.choice("mcp", "xml", "deferred"), AtStart(), default="mcp",
        doc="How calls of `custom_tools` reach this process: 'mcp': as requests of the CLI; 'deferred': all "
        "at the end of the turn; 'xml': as text, without the CLI's own tools."),
    Option("strict_mcp_config", types.BOOL, Switch("strict-mcp-config"), default=False,
        doc="Use only the MCP servers of `mcp_servers`."),
    Option("wait_for_mcp", types.WAIT, AtStart(), default=False,
        doc="Seconds to wait for the MCP servers before the first prompt; True: 60. If one of `mcp_servers` "
        "fails or is late, nothing is sent, and ControlError or ControlTimeout names it."),
)
PERMISSIONS = (
    Option("permission_mode", types.PERMISSION_MODE, Flag("permission-mode"),
        doc="Mode that decides tool calls without a matching rule, such as 'acceptEdits'."),
    Option("allow_dangerously_skip_permissions", types.BOOL, Switch("allow-dangerously-skip-permissions"),
        default=False, min_cli_version="2.0.28",
        doc="Let a running session change to 'bypassPermissions'. To start in that mode, `permission_mode` is enough."),
    Option("permission_prompt_tool_name", types.NAME, Flag("permission-prompt-tool"),
        doc="MCP tool that decides permission requests, as 'mcp__server__tool'."),
    Option("permission_prompts", types.choice("host", "none"), Flag("permission-prompts"), min_cli_version="2.1.270",
        doc="Where permission requests go: 'host', which is this program, or 'none': they are denied."),
    Option("can_use_tool", types.CALLABLE, AtStart(), takes="CanUseTool",
        doc="Function that decides a tool call, called with a PermissionRequest; returns Allow, Deny, Confirm, True "
        "or False."),
    Option("confirm", types.CALLABLE, AtStart(), takes="ConfirmCallback",
        doc="Function that asks a person, called with a text and the PermissionRequest; returns True or False."),
    Option("on_question", types.CALLABLE, AtStart(), takes="QuestionCallback",
        doc="Function that answers questions of the model, called with a QuestionRequest; returns the answers."),
    Option("on_plan", types.CALLABLE, AtStart(), takes="PlanCallback",
        doc="Function that approves plans, called with a PlanRequest; returns True, False, or a text with changes."),
    Option("asks", types.ASKS, AtStart(),
        doc="Collection of requests that wait until somebody settles them: those that no function decides."),
    Option("hooks", types.HOOKS, AtStart(),
        doc="Functions that the CLI calls at fixed points of its work: HookMatchers by event."),
    Option("on_elicitation", types.CALLABLE, AtStart(), takes="ElicitationCallback",
        doc="Function that answers MCP servers, called with an ElicitationRequest."),
    Option("on_user_dialog", types.CALLABLE, AtStart(), takes="DialogCallback",
        doc="Function that shows dialogs of the CLI, called with a DialogRequest; needs `supported_dialog_kinds`."),
    Option("supported_dialog_kinds", types.NAMES, InitializeField("supportedDialogKinds"), min_cli_version="2.1.172",
        doc="Kinds of dialogs that `on_user_dialog` can show."),
    Option("restricted", types.BOOL, Switch("restricted"), default=False, min_cli_version="2.1.250",
        doc="No tools that run commands, no settings files, and file tools only inside the directories."),
    Option("sandbox", _SANDBOX, PartOfOption("settings"),
        doc="A Sandbox around the commands that tools run. A part of `settings`."),
)
LIMITS = (
    Option("max_turns", types.COUNT, Flag("max-turns"),
        doc="Stop after this many turns of the model."),
    Option("max_budget_usd", types.NUMBER, Flag("max-budget-usd"), min_cli_version="2.0.32",
        doc="Stop when the estimated cost passes this many US dollars."),
    Option("max_budget_tokens", types.COUNT, Internal(),
        doc="Stop after this many tokens, input and output of all models; in a session, of all queries together."),
    Option("until", types.choice("result", "idle"), Internal(), default="result",
        doc="When a query ends: with its result, or 'idle': when no background task can wake the model any more."),
    Option("timeout", types.TIMEOUT, Internal(),
        doc="Seconds until a query fails with QueryTimeout; in a session from its turn on, when its child is ready. No "
        "limit by default."),
    Option("idle_timeout", types.TIMEOUT, Internal(),
        doc="Seconds of silence until a query fails with QueryTimeout; not counted while a tool runs. No limit by "
        "default."),
    Option("startup_timeout", types.TIMEOUT, Internal(),
        doc="Seconds of silence until the first message; the default is `idle_timeout`."),
    Option("control_timeout", types.TIMEOUT, AtStart(), default=DEFAULT_CONTROL_TIMEOUT,
        doc="Seconds to wait for the response to a control request, the handshake included."),
    Option("max_line_bytes", types.COUNT, AtStart(), default=DEFAULT_MAX_LINE_BYTES,
        doc="Longest line of output, in bytes; a longer one is skipped and reported."),
    Option("api_max_retries", types.WHOLE_NUMBER, EnvVar("CLAUDE_CODE_MAX_RETRIES"),
        doc="Maximum retries by the CLI after a temporary API error. Default: 10."),
    Option("retry", _RETRY, Internal(),
        doc="Number of retries of a query after the retries of the CLI (`api_max_retries`), or a RetryPolicy. "
        "Default: none."),
    Option("on_usage_limit", types.choice("raise", "wait"), Internal(), default="raise",
        doc="Behaviour at a usage limit: 'raise', or 'wait': the query continues when the limit resets."),
    Option("usage_limit_ceiling", types.SECONDS, Internal(),
        default=DEFAULT_USAGE_LIMIT_CEILING,
        doc="Maximum seconds that a query waits for usage limits; it fails at once if the limit resets later."),
)
OUTPUT = (
    Option("json_schema", _MAPPING, JsonFlag("json-schema", "jsonSchema"), min_cli_version="2.0.45",
        doc="JSON Schema for the answer."),
    Option("output_repairs", types.WHOLE_NUMBER, Internal(), default=1,
        doc="Further attempts, in the same session, when the structured output does not fit `output_type`."),
    Option("partial_messages", types.BOOL, Switch("include-partial-messages"), default=False,
        doc="Stream the answer while the model writes it, as StreamEvent messages. Queries of a session may "
        "enable it, unless the session sets False."),
    Option("include_hook_events", types.BOOL, Switch("include-hook-events"),
        default=False, min_cli_version="2.1.98", doc="Report the runs of hooks."),
    Option("replay_user_messages", types.BOOL, Switch("replay-user-messages"), default=False,
        doc="Repeat the messages of the user in the output."),
    Option("forward_subagent_text", types.BOOL, Switch("forward-subagent-text"),
        default=False, min_cli_version="2.1.223",
        doc="Report text and thinking of sub-agents, not only their tool calls."),
    Option("prompt_suggestions", types.BOOL, Switch("prompt-suggestions"),
        default=False, min_cli_version="2.1.172",
        doc="After each turn, report a suggestion for the next prompt."),
    Option("agent_progress_summaries", types.BOOL, InitializeField("agentProgressSummaries"),
        default=False, min_cli_version="2.1.83",
        doc="While sub-agents work, report their progress in a sentence."),
    Option("per_task_stop_affordance", types.BOOL, InitializeField("perTaskStopAffordance"),
        default=False, min_cli_version="2.1.250",
        doc="Inform the CLI that this program can stop individual background tasks."),
)
CONVERSATION = (
    Option("resume", types.ID, Flag("resume"), doc="Id of a session to continue."),
    Option("continue_conversation", types.BOOL, Switch("continue"), default=False,
        doc="Continue the latest session of the directory."),
    Option("fork_session", types.BOOL, Switch("fork-session"), default=False,
        doc="Resume into a new session and leave the old one unchanged."),
    Option("session_id", types.UUID, Flag("session-id"),
        doc="Id for the new session. With `resume`, `fork_session` makes one."),
    Option("resume_session_at", types.ID, Flag("resume-session-at"),
        doc="With `resume`: the uuid of the last message to keep."),
    Option("resume_drops_turn", types.TEXT, Flag("resume-drops-turn"), min_cli_version="2.1.223",
        doc="With `resume_session_at`: the uuid of the prompt whose turn is dropped."),
    Option("title", types.NAME, Flag("name"), min_cli_version="2.1.83",
        doc="Title of the session in lists of sessions."),
    Option("persist_session", types.BOOL, Switch("no-session-persistence", on=False),
        default=True, min_cli_version="2.0.64", doc="Whether the CLI writes the session to disk."),
    Option("session_store", types.SESSION_STORE, SplitTarget(_split_session_store, (_SESSION_MIRROR,)),
        min_cli_version="2.1.98",
        doc="Store for transcripts beside the disk of this machine; `resume` searches it first."),
    Option("session_store_flush", types.choice("batched", "eager"), Internal(), default="batched",
        doc="When the store gets new messages: 'batched': at the end of a turn at the latest; 'eager': at "
        "once."),
    Option("load_timeout", types.SECONDS, Internal(), default=DEFAULT_LOAD_TIMEOUT,
        doc="Seconds to wait for the store when a session is resumed."),
    Option("session_lease", types.SECONDS, Internal(), default=DEFAULT_SESSION_LEASE,
        doc="Seconds after which another host may take over a session in the store whose host has died."),
    Option("restart", types.choice("resume", "never"), Internal(), default="resume",
        doc="Behaviour of a session after its child died: the next query resumes in a new child, or 'never'."),
    Option("enable_file_checkpointing", types.BOOL, EnvSwitch("CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "true"),
        default=False, doc="Keep the state of files before each turn, so that `rewind_files` can restore it."),
)
ACCOUNT = (
    Option("api_key", types.NAME, EnvVar("ANTHROPIC_API_KEY"), secret=True,
        doc="API key; reaches the child through its environment."),
    Option("auth_token", types.NAME, EnvVar("ANTHROPIC_AUTH_TOKEN"), secret=True,
        doc="Bearer token for a gateway; reaches the child through its environment."),
    Option("oauth_token", types.NAME, EnvVar("CLAUDE_CODE_OAUTH_TOKEN"), secret=True,
        doc="Long-lived token of `claude setup-token`; reaches the child through its environment."),
    Option("base_url", types.URL, EnvVar("ANTHROPIC_BASE_URL"), doc="Address of the API, if it is not the default."),
    Option("provider", types.PROVIDER, SplitTarget(_split_provider, tuple(_PROVIDERS.values())),
        doc="Provider of the API. The credentials of cloud providers come from the environment."),
)
PROCESS = (
    Option("cwd", types.PATH, AtStart(),
        doc="Working directory of the child, which loads settings, programs and instructions from it. Default: that of "
        "this process. Where others wrote its files, start from `Options.preset('untrusted_repository')`."),
    Option("add_dirs", types.PATHS, RepeatedFlag("add-dir"), doc="Additional directories that tools may use."),
    Option("project_config_root", types.PATH, PathFlag("project-config-root"), min_cli_version="2.1.290",
        doc="The checkout whose project settings apply, if `cwd` is a worktree of it."),
    Option("worktree", types.SWITCH_OR_NAME, SwitchOrFlag("worktree"), default=False,
        doc="Work in a new git worktree of the repository, below `.claude/worktrees`: True, or its name. It stays when "
        "the child has ended."),
    Option("cli", types.CLI, Internal(), default="auto",
        doc="The `claude` to run: 'auto', 'bundled' (the managed copy), 'global' (PATH), or a path."),
    Option("user", types.USER, Internal(),
        doc="System user that runs the child; only root may set it. HOME does not change: set it in `env`."),
    Option("env", types.ENV, AtStart(), secret=True,
        doc="Environment variables to set for the child; None removes one."),
    Option("inherit_env", types.INHERIT, AtStart(), default=True,
        doc="Start from the environment of this process: True, False, or only from these variables, such as "
        "['PATH', 'HOME', 'AWS_*']."),
    Option("isolation", types.choice("strict"), Internal(),
        doc="'strict': a temporary HOME and configuration for the child, no settings files, MCP servers only from "
        "`mcp_servers`, and only listed environment variables."),
    Option("keep_detached", types.BOOL, AtStart(), default=False,
        doc="Leave processes running that a command has detached, such as `nohup server &`. Otherwise they end with "
        "the child (Linux)."),
    Option("config_dir", types.PATH, EnvVar("CLAUDE_CONFIG_DIR", path=True),
        doc="Directory of the CLI for its settings, login and sessions; `~/.claude` by default."),
    Option("nonessential_traffic", types.BOOL, EnvSwitch("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on=False),
        default=True, doc="Whether the CLI may use the network beyond the API: updates, telemetry, error reports."),
    Option("client_app", types.NAME, EnvVar("CLAUDE_AGENT_SDK_CLIENT_APP"),
        doc="Name of your program, such as 'my-app/1.0'; the CLI sends it to the API."),
    Option("transport", types.TRANSPORT, Internal(), doc="Transport to use instead of a local child."),
)
CONFIGURATION = (
    Option("settings", _CONFIG, ConfigFlag("settings"), takes="CliSettings | Mapping[str, Any] | StrPath",
        doc="Settings for the CLI: a mapping, as CliSettings, a path, or JSON text. They are checked before the first "
        "prompt."),
    Option("managed_settings", _MAPPING, JsonFlag(
        "managed-settings", "managedSettings", private=True,
        switches=("managed-settings-in-initialize", "await-initialize")), min_cli_version="2.1.330",
        takes="CliSettings | Mapping[str, Any]",
        doc="Restrictive settings with the rank of an administrator's: other settings cannot loosen them. They are "
        "checked before the first prompt."),
    Option("setting_sources", types.SETTING_SOURCES, Flag("setting-sources"),
        doc="Settings files to load; [] for none."),
    Option("plugins", _PLUGINS, SplitTarget(_split_plugins, (_PLUGIN, _PLUGIN_NO_MCP)),
        min_cli_version="2.0.28", doc="Plugins for this session: paths, or Plugins."),
    Option("bare", types.BOOL, Switch("bare"), default=False, min_cli_version="2.1.83",
        doc="Fastest start: no hooks, plugins, memory or login; needs an API key."),
    Option("safe_mode", types.BOOL, Switch("safe-mode"), default=False, min_cli_version="2.1.172",
        doc="Start without customisations: memory, skills, plugins, hooks, MCP servers, agents."),
    Option("extra_args", types.EXTRA_ARGS, AtStart(), doc="Flags of the CLI without an option here."),
)
DIAGNOSTICS = (
    Option("instrumentation", types.INSTRUMENTATION, Internal(),
        doc="Observers of queries, such as OpenTelemetry(): one Instrumentation, or a list of them."),
    Option("middleware", types.MIDDLEWARE, Internal(),
        doc="Middleware classes, or functions that make one, the outermost first: they see the messages of a "
        "query, change its prompts, and may send another one."),
    Option("callback_wrapper", types.SYNC_CALLABLE, AtStart(), takes="CallbackWrapper",
        doc="Function that gives the context manager in which each callback, hook and tool of this process runs, "
        "called with its kind and name."),
    Option("stderr", types.SYNC_CALLABLE, AtStart(), takes="Callable[[str], object]",
        doc="Function that is called with every line of the child's standard error."),
    Option("debug", types.DEBUG, SwitchOrFlag("debug"), default=False,
        doc="Let the CLI write a debug log: True, or the categories to log, such as 'api,mcp'."),
    Option("debug_file", types.PATH, PathFlag("debug-file"), min_cli_version="2.1.30",
        doc="File for the debug log; enables it."),
)
# fmt: on

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
