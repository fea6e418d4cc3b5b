"""Changes to permissions, as typed values and in their wire form.

Owns the six kinds of `PermissionUpdate` and their conversion, both ways. Pure. Must not know permission requests or
decisions. `options.permission_rules` has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self, cast, get_args

import msgspec
from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.messages.core import PermissionMode
from pilothouse.options.permission_rules import PermissionBehavior, PermissionRule

PermissionDestination = Literal["session", "localSettings", "projectSettings", "userSettings", "cliArg"]

_BEHAVIORS: Final = get_args(PermissionBehavior)
_DESTINATIONS: Final = get_args(PermissionDestination)
_MODES: Final = get_args(PermissionMode)


class _Update(Struct, frozen=True, tag_field="type"):
    """Base of all updates."""

    def with_destination(self, destination: PermissionDestination) -> Self:
        """Return the same change for another destination; "session" drops it when the session ends.

        Raises:
            UsageError: there is no such destination.
        """
        return msgspec.structs.replace(self, destination=destination)


class _RulesUpdate(_Update, frozen=True):
    rules: Sequence[PermissionRule]
    behavior: PermissionBehavior = "allow"
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        _set_field(self, "rules", tuple(_check_rule(rule) for rule in _check_items("rules", self.rules)))
        _check_choice("behavior", self.behavior, _BEHAVIORS)
        _check_choice("destination", self.destination, _DESTINATIONS)


class AddRules(_RulesUpdate, frozen=True, tag="addRules"):
    """Add rules.

    Args:
        rules: the rules; `PermissionRule.parse("Bash(git:*)")` reads the usual form.
        behavior: what happens to the calls that match: "allow", "deny" or "ask".
        destination: how long and for whom the rules hold: "session" (this one), or a settings file on disk:
            "localSettings" (this project, you), "projectSettings" (this project, everybody), "userSettings" (you,
            everywhere).

    Raises:
        UsageError: one of them is not valid. The same holds for the other updates.
    """


class ReplaceRules(_RulesUpdate, frozen=True, tag="replaceRules"):
    """Replace all rules of this behavior and destination; fields as in `AddRules`."""


class RemoveRules(_RulesUpdate, frozen=True, tag="removeRules"):
    """Remove rules; fields as in `AddRules`."""


class SetMode(_Update, frozen=True, tag="setMode"):
    """Change the permission mode.

    Args:
        mode: "default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions".
        destination: as in `AddRules`.
    """

    mode: PermissionMode
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, _MODES)
        _check_choice("destination", self.destination, _DESTINATIONS)


class _DirectoriesUpdate(_Update, frozen=True):
    directories: Sequence[str]
    destination: PermissionDestination = "session"

    def __post_init__(self) -> None:
        _set_field(
            self, "directories", tuple(_check_path(path) for path in _check_items("directories", self.directories))
        )
        _check_choice("destination", self.destination, _DESTINATIONS)


class AddDirectories(_DirectoriesUpdate, frozen=True, tag="addDirectories"):
    """Let the tools work in more directories.

    Args:
        directories: their paths.
        destination: as in `AddRules`.
    """


class RemoveDirectories(_DirectoriesUpdate, frozen=True, tag="removeDirectories"):
    """Take directories back; fields as in `AddDirectories`."""


class UnknownUpdate(Struct, frozen=True):
    """A change that the CLI suggests and this version does not know. A callback can return it unchanged.

    Args:
        type: its kind on the wire.
        data: all of it.
    """

    type: str
    data: dict[str, Any]

    def with_destination(self, destination: PermissionDestination) -> Self:
        """Return the same change for another destination, as for the other updates."""
        _check_choice("destination", destination, _DESTINATIONS)
        return msgspec.structs.replace(self, data={**self.data, "destination": destination})


_KnownUpdate = AddRules | ReplaceRules | RemoveRules | SetMode | AddDirectories | RemoveDirectories
PermissionUpdate = _KnownUpdate | UnknownUpdate
_KNOWN_UPDATES: Final = get_args(_KnownUpdate)


def update_from_wire(data: Any) -> PermissionUpdate:
    """Read a change that the CLI suggests; never fails. An unknown or invalid one becomes an `UnknownUpdate`."""
    try:
        return msgspec.convert(data, _KnownUpdate)
    except msgspec.ValidationError:
        fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        return UnknownUpdate(str(fields.get("type", "")), fields)


def update_to_wire(update: Any) -> dict[str, Any]:
    """Return the wire form of a change.

    Raises:
        UsageError: the change is not valid. The CLI silently ignores what it does not understand, even a rule that
            denies.
    """
    if isinstance(update, UnknownUpdate):
        return update.data
    if isinstance(update, _KNOWN_UPDATES):
        return msgspec.json.decode(msgspec.json.encode(update))
    raise UsageError(f"not a permission update: {type(update).__name__}")


def _check_rule(value: Any) -> PermissionRule:
    if isinstance(value, PermissionRule):
        return value
    raise UsageError(f"rules: expected PermissionRule.parse({value!r:.80}) or the like, got {type(value).__name__}")


def _check_path(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise UsageError(f"directories: expected paths as text, got {value!r:.80}")


def _check_items(name: str, value: Any) -> Iterable[Any]:
    # A text is also a sequence of texts: "Bash" would become four rules.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UsageError(f"{name}: expected a list, got {type(value).__name__}")
    return cast("Iterable[Any]", value)


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {value!r:.80}")


def _set_field(struct: Struct, name: str, value: Any) -> None:
    msgspec.structs.force_setattr(struct, name, value)
