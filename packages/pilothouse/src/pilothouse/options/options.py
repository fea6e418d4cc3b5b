"""`Options`: an immutable set of settings, validated when it is created.

Owns the merging of layers, the methods that users call, `OptionsBuilder`, the fluent form, the presets, function
signatures that list every option (for notebooks, editors and `help()`), and what may be set in a configuration file and
in `PILOTHOUSE_*` variables. `values` and `renderer` do the work of the methods. Must not do I/O.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar, Unpack, cast

from pilothouse.errors import OptionsError
from pilothouse.hints import find_similar_name
from pilothouse.options.renderer import render_cli_args, render_env
from pilothouse.options.settings import OptionAttributes, OptionSetters, Settings
from pilothouse.options.table import TABLE, Option
from pilothouse.options.value_types import copy_value
from pilothouse.options.values import (
    DEFAULT_ORIGIN,
    DIRECT_ORIGIN,
    Explanation,
    OptionExplanation,
    check_combination,
    check_conflicts,
    format_options,
    make_unknown_option_error,
    validate_value,
)
from pilothouse.tracebacks import hide_arguments, user_class

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings


F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def show_options(function: F) -> F:
    """Give a function a signature that lists all options instead of `**settings`."""
    found = inspect.signature(function)
    own = {name: p for name, p in found.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    options = [_make_parameter(option) for option in TABLE.values() if option.name not in own]
    function.__signature__ = found.replace(parameters=[*own.values(), *options])  # type: ignore[attr-defined]
    return function


def _make_parameter(option: Option) -> inspect.Parameter:
    default = None if option.secret else option.default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.accepted_type
    )


def copy_signature(original: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give the decorated function the signature of `original`, which it must accept when called."""

    def copy(counterpart: Any) -> Any:
        returns = inspect.signature(counterpart).return_annotation
        counterpart.__signature__ = inspect.signature(original).replace(return_annotation=returns)
        return counterpart

    return copy


def copy_method_signature(
    original: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Do the same as `copy_signature` for methods; `self` stays that of the decorated method."""
    copy: Any = copy_signature(original)
    return copy


@user_class
class Options(OptionAttributes):
    """Every setting of a query, keyword-only and immutable.

    An `Options` keeps only what was set, so that layers can be merged field by field; reading an attribute that was
    not set returns the default. `None` sets a field back to its default. The options and their types are those of
    `pilothouse.options.TABLE`.

    Raises:
        OptionsError: unknown name, wrong type, or values that cannot be combined; before anything is started.
    """

    _values: Mapping[str, Any]
    _origins: Mapping[str, str]

    @hide_arguments
    @show_options
    def __init__(self, **settings: Unpack[Settings]) -> None:
        values = {name: validate_value(name, value) for name, value in settings.items()}
        check_combination(values, {})
        vars(self).update(_values=MappingProxyType(values), _origins=MappingProxyType({}))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Options are immutable; use options.with_({name}=…) to get changed ones")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return dict(self._values) == dict(other._values) if isinstance(other, Options) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return format_options(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_unchecked, (dict(self._values), dict(self._origins))

    @hide_arguments
    def with_(self, **changes: Unpack[Settings]) -> Options:
        """Return a copy with `changes`; this object stays the same."""
        return self.merge(Options.layer(**changes)) if changes else self

    @staticmethod
    @hide_arguments
    def layer(**settings: Unpack[Settings]) -> Options:
        """Make a layer to merge onto others: like `Options`, but an option may need what only a lower layer has.

        Raises:
            OptionsError: unknown name, wrong type, or values that cannot be combined.
        """
        return make_layer(settings)

    @staticmethod
    def stack(*layers: Options, is_complete: bool = True) -> Options:
        """Merge layers, the lowest first; each wins field by field over those before it.

        Args:
            *layers: results of `Options` and `layer`.
            is_complete: False if more layers will follow below or above.

        Raises:
            OptionsError: values cannot be combined; if `is_complete`, also an option that lacks what it needs.
        """
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for layer in layers:
            for name in layer:
                origins.pop(name, None)
            values.update(layer._values)  # noqa: SLF001 - of its own class
            origins.update(layer._origins)  # noqa: SLF001
        (check_combination if is_complete else check_conflicts)(values, origins)
        return _make_unchecked(values, origins)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were set, by name, as a new dictionary."""
        return {name: copy_value(value) for name, value in self._values.items()}

    def explain(self) -> Explanation:
        """Show where each value comes from: the call, the agent, `configure()`, a file, a variable, or the default.

        Printing it shows what was set, one option per line; secrets are masked.
        """
        return Explanation({name: self._explain_value(name) for name in TABLE})

    def _explain_value(self, name: str) -> OptionExplanation:
        option, value, origin = TABLE[name], self._values.get(name), self._origins.get(name, DIRECT_ORIGIN)
        if value is not None:
            return OptionExplanation(name, option.format_value(value), origin)
        is_reset = name in self._values
        return OptionExplanation(
            name, repr(option.default), f"{DEFAULT_ORIGIN} (reset: {origin})" if is_reset else DEFAULT_ORIGIN
        )

    @staticmethod
    def make() -> OptionsBuilder:
        """Return a new builder: `Options.make().model("opus").max_turns(5).build()`."""
        return OptionsBuilder()

    def to_cli_args(self) -> list[str]:
        """Return the arguments of the CLI for the options that were set, and nothing else.

        A value that travels in a private file appears as `--flag=<private file>`; values that travel in the handshake
        or in the environment do not appear.

        Raises:
            OptionsError: a value is too long to be an argument.
        """
        return render_cli_args(self)

    def to_env(self) -> dict[str, str]:
        """Return the environment variables of the child that the options set, `env` included; keys are not masked.

        Raises:
            OptionsError: a value is too long to be an argument.
        """
        return render_env(self)

    @staticmethod
    @hide_arguments
    def preset(name: PresetName, **settings: Unpack[Settings]) -> Options:
        """Return ready-made settings to start from: `Agent(Options.preset("read_only"), model="opus")`.

        | preset | tools | what runs without asking |
        |---|---|---|
        | "read_only" | Read, Glob, Grep | reading in the directories; the rest of the disk asks |
        | "edit" | those, Edit, Write, NotebookEdit, Bash | edits below `cwd`, commands that only read; others ask |
        | "full" | all | everything; as root only in a sandbox |

        "untrusted_repository" is for a `cwd` with files that others wrote: Claude Code loads nothing from it. Of the
        repository, no settings, hooks, helpers, environment, MCP servers, skills, commands, agents, plugins and no
        CLAUDE.md count; those of the user and of your options do. Shell lines of skills and commands do not run, and
        every git command needs permission, because git runs programs that the repository's configuration names.
        Needs Claude Code 2.1.330.

        A preset is an ordinary layer: other settings win over it, and `explain` names it.

        Args:
            name: "read_only", "edit", "full" or "untrusted_repository".
            **settings: settings that win over those of the preset.

        Raises:
            OptionsError: there is no such preset, or a setting is not valid.
        """
        preset = make_layer(get_preset(name), f"preset {name!r}")
        return Options.stack(preset, Options.layer(**settings))

    def merge(self, other: Options | None) -> Options:
        """Return a copy in which every option that `other` sets wins, field by field."""
        return self if other is None else Options.stack(self, to_options(other))

    def with_origin(self, origin: str) -> Options:
        """Return a copy in which `explain` shows `origin` for every option that has no origin yet."""
        if self._values.keys() <= self._origins.keys():
            return self
        return _make_unchecked(self._values, {**dict.fromkeys(self._values, origin), **self._origins})


def make_layer(settings: Mapping[str, Any], origin: str = "", base: Any = None) -> Options:
    """Make a layer as `Options.layer` does, of single settings that win over `base`, if given.

    `explain` shows `origin`, if given, for each option that has none yet.
    """
    values = {name: validate_value(name, value) for name, value in settings.items()}
    check_conflicts(values, {})
    made = _make_unchecked(values, dict.fromkeys(values, origin) if origin else {})
    return made if base is None else Options.stack(to_options(base).with_origin(origin), made, is_complete=False)


def to_options(options: Any) -> Options:
    """Return `Options` made of a builder or a mapping; `Options` as they are. Raises OptionsError for anything else."""
    if isinstance(options, Options):
        return options
    if isinstance(options, OptionsBuilder):
        return options.build()
    if isinstance(options, Mapping):
        return make_layer(cast("Mapping[str, Any]", options))
    given = type(options).__name__
    advice = "pass keywords instead" + (", such as system_prompt=…" if isinstance(options, str) else "")
    if isinstance(getattr(options, "options", None), Options):
        advice = "pass its .options"
    raise OptionsError(f"options: expected pilothouse.Options, got {given}; {advice}")


def _make_unchecked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Options:
    made = object.__new__(Options)
    vars(made).update(_values=MappingProxyType(dict(values)), _origins=MappingProxyType(dict(origins)))
    return made


NO_OPTIONS = Options()


class OptionsBuilder(OptionSetters):
    """Sets options one after the other: `Options.make().model("opus").max_turns(5).build()`.

    Every option is a method that takes its value, or None for the default, and returns the builder. An invalid value
    raises `OptionsError` at the call.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def _set_option(self, name: str, value: Any) -> Self:
        self._values[name] = validate_value(name, value)
        return self

    def build(self) -> Options:
        """Return the options set so far; later calls do not change them.

        Raises:
            OptionsError: some of the options cannot be combined.
        """
        return Options(**cast("Settings", self._values))

    def to_cli_args(self) -> list[str]:
        """Return the arguments, as `Options.to_cli_args` does."""
        return self.build().to_cli_args()

    def to_env(self) -> dict[str, str]:
        """Return the variables, as `Options.to_env` does."""
        return self.build().to_env()

    def __repr__(self) -> str:
        return f"OptionsBuilder({format_options(self._values)})"

    def __getattr__(self, name: str) -> Any:
        # Only for names that are not options: those are methods of the class.
        raise AttributeError(str(make_unknown_option_error(name)), name=name, obj=self)


# Layers from a configuration file and from variables; the client finds and reads the file


def read_config_table(table: Mapping[str, Any], directory: str, locate: Callable[[str], str]) -> Options:
    """Make options from the parsed table of a configuration file, whose directory is the base of relative paths.

    `locate` returns the location of an option, such as "pilothouse.toml:3", which an OptionsError names.
    """
    values: dict[str, Any] = {}
    origins = {name: locate(name) for name in table}
    for name, value in table.items():
        option = TABLE.get(name)
        if option is not None and not option.in_files:
            why = "keys belong in the environment" if option.secret else "it takes a Python object"
            text = f"{origins[name]}: option {name!r} is not allowed in a configuration file: {why}"
            raise OptionsError(text, option=name)
        given = _validate_at(origins[name], name, value)
        values[name] = TABLE[name].value_type.resolve_paths(given, directory)
    check_conflicts(values, origins)
    return _make_unchecked(values, origins)


def read_environ(environ: Mapping[str, str]) -> Options:
    """Make options from variables such as `PILOTHOUSE_MAX_TURNS=5`; lists as `A,B`, mappings as JSON.

    Empty variables, and those that are not options (`PILOTHOUSE_CACHE`), are ignored. Errors name the variable.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for variable, text in environ.items():
        option = VARIABLES.get(variable)
        if option is not None and text:
            values[option.name] = _validate_at(variable, option.name, _parse_variable(option, variable, text))
            origins[option.name] = variable
    check_conflicts(values, origins)
    return _make_unchecked(values, origins)


VARIABLES = {option.variable: option for option in TABLE.values() if option.variable}
"""The environment variables of options."""


def _validate_at(where: str, name: str, value: Any) -> Any:
    try:
        return validate_value(name, value)
    except OptionsError as error:
        raise OptionsError(f"{where}: {error}", option=error.option) from None


def _parse_variable(option: Option, variable: str, text: str) -> Any:
    assert option.value_type.parse is not None
    try:
        return option.value_type.parse(text)
    except ValueError as error:
        shown = "" if option.secret else f": {error}"
        raise OptionsError(f"{variable}: cannot be read as option {option.name!r}{shown}", option=option.name) from None


PresetName: TypeAlias = Literal["read_only", "edit", "full", "untrusted_repository"]

PRESETS: dict[str, Settings] = {
    "read_only": {"tools": ["Read", "Glob", "Grep"], "allowed_tools": [], "permission_mode": "default"},
    "edit": {
        "tools": ["Read", "Glob", "Grep", "Edit", "Write", "NotebookEdit", "Bash"],
        "allowed_tools": ["Edit(**)"],
        "permission_mode": "default",
    },
    "full": {"tools": "default", "allowed_tools": [], "permission_mode": "bypassPermissions"},
    "untrusted_repository": {
        "setting_sources": ["user"],
        "strict_mcp_config": True,
        "permission_mode": "default",
        # In `managed_settings`, `settings` of the caller add to them and do not replace them. Without the rule, the CLI
        # runs `git status` unasked, and git runs programs that the configuration of the repository names.
        "managed_settings": {"disableSkillShellExecution": True, "permissions": {"ask": ["Bash(git:*)"]}},
    },
}
"""The settings of each preset."""


def get_preset(name: str) -> Settings:
    """Return the settings of a preset. Raises OptionsError if there is no such preset."""
    settings = PRESETS.get(name)
    if settings is None:
        near = find_similar_name(str(name), PRESETS, 0.5)
        hint = f"; did you mean {near!r}?" if near else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return settings
