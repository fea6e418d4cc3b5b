"""`Options`: an immutable set of settings, validated when it is created.

Owns the set and the merging of layers. Knows the table; must not know rendering, files or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from pilothouse.options.signatures import show_options
from pilothouse.options.table import TABLE
from pilothouse.options.validation import check_combination, check_conflicts, validate_value
from pilothouse.options.value_types import copy_value
from pilothouse.tracebacks import user_class

if TYPE_CHECKING:
    from pilothouse.options.builder import OptionsBuilder
    from pilothouse.options.explanation import Explanation
    from pilothouse.options.policy import Policy, PresetName
    from pilothouse.options.settings import (
        CanUseTool,
        ConfirmCallback,
        DialogCallback,
        Effort,
        ElicitationCallback,
        Instrumentation,
        PermissionMode,
        PlanCallback,
        Provider,
        QuestionCallback,
        Settings,
        SettingSource,
        SystemPrompt,
        Thinking,
    )
    from pilothouse.options.struct_validation import RetryPolicy
    from pilothouse.options.value_structs import Plugin, ToolConfig


@user_class
class Options:
    """Every setting of a query, keyword-only and immutable.

    An `Options` keeps only what was set, so that layers can be merged field by field; reading an attribute that was
    not set returns the default. `None` sets a field back to its default. The options and their types are those of
    `pilothouse.options.TABLE`.

    Raises:
        OptionsError: unknown name, wrong type, or values that exclude each other; before anything is started.
    """

    __slots__ = ("_origins", "_values")

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

    @show_options
    def __init__(self, **settings: Unpack[Settings]) -> None:
        values = {name: validate_value(name, value) for name, value in settings.items()}
        check_combination(values, {})
        object.__setattr__(self, "_values", MappingProxyType(values))
        object.__setattr__(self, "_origins", MappingProxyType[str, str]({}))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Options are immutable; use options.with_({name}=…) to get changed ones")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return dict(self._values) == dict(other._values) if isinstance(other, Options) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self._values), dict(self._origins))

    def __repr__(self) -> str:
        shown = (f"{name}={TABLE[name].format_value(value)}" for name, value in self._values.items())
        return f"Options({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were set, by name, as a new dictionary."""
        return {name: copy_value(value) for name, value in self._values.items()}

    def with_(self, **changes: Unpack[Settings]) -> Options:
        """Return a copy with `changes`; this object stays the same."""
        return self.merge(Options.layer(**changes)) if changes else self

    @staticmethod
    def layer(**settings: Unpack[Settings]) -> Options:
        """Make a layer to merge onto others: like `Options`, but an option may need what only a lower layer has.

        Raises:
            OptionsError: unknown name, wrong type, or values that exclude each other.
        """
        values = {name: validate_value(name, value) for name, value in settings.items()}
        check_conflicts(values, {})
        return _make_unchecked(values, {})

    @staticmethod
    def stack(*layers: Options, is_complete: bool = True) -> Options:
        """Merge layers, the lowest first; each wins field by field over those before it.

        Args:
            *layers: results of `Options` and `layer`.
            is_complete: False if more layers will follow below or above.

        Raises:
            OptionsError: values exclude each other; if `is_complete`, also an option that lacks what it needs.
        """
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        filled = [layer for layer in layers if layer._values or layer._origins]  # noqa: SLF001 - of its own class
        for upper, labels in [(layer._values, layer._origins) for layer in filled]:  # noqa: SLF001
            for name in upper:
                origins.pop(name, None)
            # Values of lower layers keep their labels.
            beneath = values.keys() - upper.keys() if len(labels) > len(upper) else ()
            values.update(upper)
            origins.update(
                {name: label for name, label in labels.items() if name not in beneath} if beneath else labels
            )
        (check_combination if is_complete else check_conflicts)(values, origins)
        return filled[0] if len(filled) == 1 else _make_unchecked(values, origins)

    @staticmethod
    def make() -> OptionsBuilder:
        """Return a new builder: `Options.make().model("opus").max_turns(5).build()`."""
        from pilothouse.options.builder import OptionsBuilder  # rarely needed

        return OptionsBuilder()

    def to_cli_args(self) -> list[str]:
        """Return the arguments of the CLI for the options that were set, and nothing else.

        A value that travels in a private file appears as `--flag=<private file>`; values that travel in the handshake
        or in the environment do not appear.

        Raises:
            OptionsError: a value is too long to be an argument.
        """
        from pilothouse.options.renderer import render_cli_args  # it imports this module

        return render_cli_args(self)

    def to_env(self) -> dict[str, str]:
        """Return the environment variables of the child that the options set, `env` included; keys are not masked."""
        from pilothouse.options.renderer import render_env  # it imports this module

        return render_env(self)

    @staticmethod
    def preset(name: PresetName, **settings: Unpack[Settings]) -> Options:
        """Return ready-made permissions to start from: `Agent(Options.preset("read_only"), model="opus")`.

        | preset | tools | what runs without asking |
        |---|---|---|
        | "read_only" | Read, Glob, Grep | reading in the directories; the rest of the disk asks |
        | "edit" | those, Edit, Write, NotebookEdit, Bash | edits below `cwd`, commands that only read; others ask |
        | "full" | all | everything; as root only in a sandbox |

        A preset is an ordinary layer of `tools`, `allowed_tools` and `permission_mode`: other settings win over it,
        and `explain` names it.

        Args:
            name: "read_only", "edit" or "full".
            **settings: settings that win over those of the preset.

        Raises:
            OptionsError: there is no such preset, or a setting is not valid.
        """
        from pilothouse.options.policy import make_preset  # it imports this module

        return Options.stack(make_preset(name), Options.layer(**settings))

    def effective_policy(self) -> Policy:
        """Return what runs unasked, what asks, what is denied, with these options; printing it shows a table.

        Nothing is started, and no file is read: `Policy.unseen` names what else may matter.
        """
        from pilothouse.options.policy import effective_policy  # it imports this module

        return effective_policy(self)

    def merge(self, other: Options | None) -> Options:
        """Return a copy in which every option that `other` sets wins, field by field."""
        return self if other is None else Options.stack(self, other)

    def with_origin(self, origin: str) -> Options:
        """Return a copy in which `explain` shows `origin` for every option that has no origin yet."""
        if self._values.keys() <= self._origins.keys():
            return self
        return _make_unchecked(self._values, {**dict.fromkeys(self._values, origin), **self._origins})

    def without(self, names: Collection[str], reason: str) -> Options:
        """Return a copy without the options `names`; `explain` shows `reason` beside the origin of each."""
        kept = {name: value for name, value in self._values.items() if name not in names}
        dropped = {name: f"left out: {self._origins.get(name, 'set here')} {reason}" for name in names}
        return _make_unchecked(kept, {**self._origins, **dropped})

    def explain(self) -> Explanation:
        """Show where each value comes from: the call, the agent, `configure()`, a file, a variable, or the default.

        Printing it shows what was set, one option per line; secrets are masked.
        """
        from pilothouse.options.explanation import explain_values  # rarely needed

        return explain_values(self._values, self._origins)


def _make_property(name: str, default: Any) -> property:
    def read(options: Options) -> Any:
        value = options._values.get(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - they are its own
        return default if value is None else copy_value(value)

    return property(read)


# Properties, because a query reads thirty options and `__getattr__` would raise and drop an error for each.
for _name, _option in TABLE.items():
    setattr(Options, _name, _make_property(_name, _option.default))


def _restore(values: Mapping[str, Any], origins: Mapping[str, str]) -> Options:
    """Make options of values that are valid one by one."""
    check_combination(values, origins)
    return _make_unchecked(values, origins)


def _make_unchecked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Options:
    made = object.__new__(Options)
    object.__setattr__(made, "_values", MappingProxyType(dict(values)))
    object.__setattr__(made, "_origins", MappingProxyType(dict(origins)))
    return made
