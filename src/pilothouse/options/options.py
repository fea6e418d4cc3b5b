"""`Options`: an immutable set of settings, validated when it is created.

Owns the merging of layers, and the methods that users call. `values` has what is read, `renderer`, `policy` and
`builder` do the work of the methods. Must not know files or processes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from pilothouse.options.renderer import render_cli_args, render_env
from pilothouse.options.signatures import show_options
from pilothouse.options.values import OptionValues, check_combination, check_conflicts, validate_value
from pilothouse.tracebacks import user_class

if TYPE_CHECKING:
    from pilothouse.options.builder import OptionsBuilder
    from pilothouse.options.policy import Policy, PresetName
    from pilothouse.options.settings import Settings


@user_class
class Options(OptionValues):
    """Every setting of a query, keyword-only and immutable.

    An `Options` keeps only what was set, so that layers can be merged field by field; reading an attribute that was
    not set returns the default. `None` sets a field back to its default. The options and their types are those of
    `pilothouse.options.TABLE`.

    Raises:
        OptionsError: unknown name, wrong type, or values that exclude each other; before anything is started.
    """

    __slots__ = ()

    @show_options
    def __init__(self, **settings: Unpack[Settings]) -> None:
        values = {name: validate_value(name, value) for name, value in settings.items()}
        check_combination(values, {})
        object.__setattr__(self, "_values", MappingProxyType(values))
        object.__setattr__(self, "_origins", MappingProxyType[str, str]({}))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self._values), dict(self._origins))

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
    def make() -> OptionsBuilder[Options]:
        """Return a new builder: `Options.make().model("opus").max_turns(5).build()`."""
        from pilothouse.options.builder import OptionsBuilder  # rarely needed

        return OptionsBuilder(Options)

    def to_cli_args(self) -> list[str]:
        """Return the arguments of the CLI for the options that were set, and nothing else.

        A value that travels in a private file appears as `--flag=<private file>`; values that travel in the handshake
        or in the environment do not appear.

        Raises:
            OptionsError: a value is too long to be an argument.
        """
        return render_cli_args(self)

    def to_env(self) -> dict[str, str]:
        """Return the environment variables of the child that the options set, `env` included; keys are not masked."""
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
        from pilothouse.options.policy import get_preset  # rarely needed

        preset = Options.layer(**get_preset(name)).with_origin(f"preset {name!r}")
        return Options.stack(preset, Options.layer(**settings))

    def effective_policy(self) -> Policy:
        """Return what runs unasked, what asks, what is denied, with these options; printing it shows a table.

        Nothing is started, and no file is read: `Policy.unseen` names what else may matter.
        """
        from pilothouse.options.policy import effective_policy  # rarely needed

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


def _restore(values: Mapping[str, Any], origins: Mapping[str, str]) -> Options:
    """Make options of values that are valid one by one."""
    check_combination(values, origins)
    return _make_unchecked(values, origins)


def _make_unchecked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Options:
    made = object.__new__(Options)
    object.__setattr__(made, "_values", MappingProxyType(dict(values)))
    object.__setattr__(made, "_origins", MappingProxyType(dict(origins)))
    return made
