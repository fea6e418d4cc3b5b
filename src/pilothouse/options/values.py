"""The values of options: validation of one, of combinations, and `OptionValues`, a whole set to read.

Combinations: options that exclude each other, and options that need another. Pure. Every failure raises
`OptionsError`, which names the option. This module must not know rendering or the merging of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilothouse.errors import OptionsError
from pilothouse.options.table import TABLE
from pilothouse.options.value_checks import InvalidValueError, copy_value
from pilothouse.tracebacks import user_class

if TYPE_CHECKING:
    from pilothouse.messages.core import PermissionMode
    from pilothouse.options.explanation import Explanation
    from pilothouse.options.settings import (
        CanUseTool,
        ConfirmCallback,
        DialogCallback,
        ElicitationCallback,
        Instrumentation,
        PlanCallback,
        Provider,
        QuestionCallback,
        SettingSource,
        SystemPrompt,
        Thinking,
    )
    from pilothouse.options.value_structs import Effort, Plugin, RetryPolicy, ToolConfig


def validate_value(name: str, value: Any) -> Any:
    """Return the stored form of the value of an option; None stays None.

    Raises:
        OptionsError: there is no such option, or the value is not valid.
    """
    option = TABLE.get(name)
    if option is None:
        from pilothouse.options.unknown_options import make_unknown_option_error  # only needed for an error

        raise make_unknown_option_error(name)
    if value is None:
        return None
    try:
        return option.value_type.clean(value)
    except InvalidValueError as fault:
        problem = fault.describe(secret=option.secret)
    raise OptionsError(f"option {name!r}: {problem}", option=name)


def check_combination(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check the combination of values that are valid one by one.

    Raises:
        OptionsError: some values exclude each other, or one lacks what it needs; names their `origins`, if known.
    """
    check_conflicts(values, origins)
    if _DEPENDENT.isdisjoint(values):
        return
    for need in REQUIREMENTS:
        if values.get(need.name) and not any(values.get(other) for other in need.any_of):
            needed = " or ".join(repr(other) for other in need.any_of)
            raise OptionsError(f"option {need.name!r} needs {needed}: {need.advice}", option=need.name)


def check_conflicts(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Check as `check_combination` does, but ignore what is missing: a lower layer may have it."""
    if _EXCLUSIVE.isdisjoint(values):
        return
    for conflict in CONFLICTS:
        if values.get(conflict.first) and values.get(conflict.second) and conflict.applies(values):
            names = (conflict.first, conflict.second)
            sources = "".join(f"; {name!r} comes from {origins[name]}" for name in names if name in origins)
            raise OptionsError(
                f"options {conflict.first!r} and {conflict.second!r} exclude each other: {conflict.advice}{sources}",
                option=conflict.first,
            )


Values = Mapping[str, Any]


ISOLATED_VARIABLES = frozenset({"CLAUDE_CONFIG_DIR", "HOME"})
"""Variables that have their own values in an isolated child."""


class Conflict(Struct, frozen=True):
    """Two options that exclude each other, at least where `applies` is true; `advice` is what to do instead."""

    first: str
    second: str
    advice: str
    applies: Callable[[Values], bool] = lambda values: True


class Requirement(Struct, frozen=True):
    """An option that has no meaning without one of `any_of`."""

    name: str
    any_of: tuple[str, ...]
    advice: str


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and not value.lstrip().startswith("{")


CONFLICTS = (
    Conflict("resume", "continue_conversation", "pass the id of the session, or ask for the latest one, not both"),
    Conflict(
        "session_id",
        "resume",
        "a resumed session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "session_id",
        "continue_conversation",
        "a continued session keeps its id; set fork_session=True to give a copy a new one",
        lambda values: not values.get("fork_session"),
    ),
    Conflict(
        "append_system_prompt",
        "system_prompt",
        "the preset has its own `append`; use one of the two",
        lambda values: getattr(values["system_prompt"], "append", None) is not None,
    ),
    Conflict(
        "permission_mode",
        "restricted",
        "the CLI refuses 'bypassPermissions' there",
        lambda values: values["permission_mode"] == "bypassPermissions",
    ),
    Conflict(
        "sandbox",
        "settings",
        "the sandbox is a part of the settings, and pilothouse does not read their file: pass the settings as a "
        "mapping, or write the sandbox into the file",
        lambda values: _is_path(values["settings"]),
    ),
    Conflict(
        "wait_for_mcp",
        "prompt_via",
        "the argv form starts with the prompt and has no control protocol; use 'stdin'",
        lambda values: values["prompt_via"] == "argv",
    ),
    Conflict("isolation", "setting_sources", "it loads no settings files"),
    Conflict("isolation", "config_dir", "it uses its own directory"),
    Conflict(
        "isolation",
        "env",
        "it sets HOME and CLAUDE_CONFIG_DIR itself; omit them from `env`",
        lambda values: (
            not ISOLATED_VARIABLES.isdisjoint(name for name, value in values["env"].items() if value is not None)
        ),
    ),
    Conflict(
        "session_store",
        "enable_file_checkpointing",
        "file checkpoints stay on the disk of this machine, so a session from a store cannot restore them",
    ),
    Conflict(
        "permission_prompt_tool_name",
        "permission_prompts",
        "'none' denies without a request",
        lambda values: values["permission_prompts"] == "none",
    ),
)

REQUIREMENTS = (
    Requirement("fork_session", ("resume", "continue_conversation"), "a fork needs a session to fork from"),
    Requirement("resume_session_at", ("resume",), "it is a position in the resumed session"),
    Requirement("resume_drops_turn", ("resume_session_at",), "dropping a turn needs a message to resume at"),
)

# Most layers set one or two options, and none of these.
_EXCLUSIVE = frozenset(conflict.first for conflict in CONFLICTS)
_DEPENDENT = frozenset(need.name for need in REQUIREMENTS)


@user_class
class OptionValues:
    """Every setting of a query, to read: what was set, or the default. Immutable.

    The base of `Options`, for the code that `Options` itself calls.
    """

    __slots__ = ("_origins", "_values")

    _values: Mapping[str, Any]
    _origins: Mapping[str, str]

    if TYPE_CHECKING:
        model: str | None
        fallback_model: str | list[str] | None
        effort: Effort | None
        thinking: Thinking | None
        max_thinking_tokens: int | None
        max_output_tokens: int | None
        task_budget: int | None
        betas: list[str] | None
        system_prompt: SystemPrompt | None
        append_system_prompt: str | None
        append_subagent_system_prompt: str | None
        plan_mode_instructions: str | None
        verbatim_prompts: bool
        prompt_via: str
        tools: list[str] | str | None
        allowed_tools: list[str] | None
        disallowed_tools: list[str] | None
        tool_aliases: dict[str, str] | None
        tool_config: ToolConfig | None
        skills: list[str] | str | None
        disable_slash_commands: bool
        agent: str | None
        agents: dict[str, Any] | None
        mcp_servers: dict[str, Any] | str | None
        custom_tools: list[Callable[..., Any]] | None
        tool_bridge: str
        strict_mcp_config: bool
        wait_for_mcp: bool | float
        permission_mode: PermissionMode | None
        allow_dangerously_skip_permissions: bool
        permission_prompt_tool_name: str | None
        permission_prompts: str | None
        can_use_tool: CanUseTool | None
        confirm: ConfirmCallback | None
        on_question: QuestionCallback | None
        on_plan: PlanCallback | None
        hooks: dict[str, Any] | None
        on_elicitation: ElicitationCallback | None
        on_user_dialog: DialogCallback | None
        supported_dialog_kinds: list[str] | None
        restricted: bool
        sandbox: Any
        max_turns: int | None
        max_budget_usd: float | None
        max_budget_tokens: int | None
        until: str
        timeout: float | None
        idle_timeout: float | None
        startup_timeout: float | None
        control_timeout: float
        max_line_bytes: int
        api_max_retries: int | None
        retry: RetryPolicy | None
        on_usage_limit: str
        usage_limit_ceiling: float
        json_schema: dict[str, Any] | None
        output_repairs: int
        partial_messages: bool
        include_hook_events: bool
        replay_user_messages: bool
        forward_subagent_text: bool
        prompt_suggestions: bool
        agent_progress_summaries: bool
        per_task_stop_affordance: bool
        resume: str | None
        continue_conversation: bool
        fork_session: bool
        session_id: str | None
        resume_session_at: str | None
        resume_drops_turn: str | None
        title: str | None
        persist_session: bool
        session_store: Any
        session_store_flush: str
        load_timeout: float
        session_lease: float
        restart: str
        enable_file_checkpointing: bool
        api_key: str | None
        auth_token: str | None
        oauth_token: str | None
        base_url: str | None
        provider: Provider | None
        cwd: str | None
        add_dirs: list[str] | None
        project_config_root: str | None
        cli: str
        user: str | int | None
        env: dict[str, str | None] | None
        inherit_env: bool
        isolation: str | None
        config_dir: str | None
        nonessential_traffic: bool
        client_app: str | None
        transport: Any
        settings: dict[str, Any] | str | None
        managed_settings: dict[str, Any] | None
        setting_sources: list[SettingSource] | None
        plugins: list[Plugin] | None
        bare: bool
        safe_mode: bool
        extra_args: dict[str, str | None] | None
        instrumentation: list[Instrumentation] | None
        stderr: Any
        debug: bool | str
        debug_file: str | None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Options are immutable; use options.with_({name}=…) to get changed ones")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return dict(self._values) == dict(other._values) if isinstance(other, OptionValues) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return format_options(self._values)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were set, by name, as a new dictionary."""
        return {name: copy_value(value) for name, value in self._values.items()}

    def explain(self) -> Explanation:
        """Show where each value comes from: the call, the agent, `configure()`, a file, a variable, or the default.

        Printing it shows what was set, one option per line; secrets are masked.
        """
        from pilothouse.options.explanation import explain_values  # rarely needed

        return explain_values(self._values, self._origins)


def format_options(values: Mapping[str, Any]) -> str:
    """Return the repr of options with these values, with possible keys masked."""
    shown = (f"{name}={TABLE[name].format_value(value)}" for name, value in values.items())
    return f"Options({', '.join(shown)})"


def _make_property(name: str, default: Any) -> property:
    def read(options: OptionValues) -> Any:
        value = options._values.get(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - they are its own
        return default if value is None else copy_value(value)

    return property(read)


# Properties, because a query reads thirty options and `__getattr__` would raise and drop an error for each.
for _name, _option in TABLE.items():
    setattr(OptionValues, _name, _make_property(_name, _option.default))
