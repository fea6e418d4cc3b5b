"""What the CLI does not take of the settings that were sent: how both compare, and which losses matter.

The CLI drops settings that it cannot read, a part of them or all, and goes on without. Pure: what the CLI says that it
took is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct

from pilothouse.options.cli_settings import CliPermissions, CliSettings
from pilothouse.options.permission_rules import has_blank_in_name
from pilothouse.options.secrets import MASK
from pilothouse.similar_names import find_similar_name

SettingPath: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead to a value, such as ("permissions", "deny", 0)."""

_KEYS_BY_PLACE: Mapping[SettingPath, frozenset[str]] = {
    (): frozenset(CliSettings.__annotations__),
    ("permissions",): frozenset(CliPermissions.__annotations__),
}
"""The known keys of the mappings from which the CLI passes unknown keys on, and ignores them."""
_RESTRICTIVE_PREFIXES = (
    *("allowManaged", "allowed", "available", "block", "denied", "deny", "disable", "enforce", "force", "maxEffort"),
    *("required", "strict"),
)
_NOT_RESTRICTIVE = frozenset({"blockReadsExemptPaths"})
_PERMISSIVE_SANDBOX_KEYS = frozenset(
    {"allowAllUnixSockets", "allowAppleEvents", "allowLocalBinding", "allowMachLookup", "allowNestedUserNamespaces"}
    | {"allowRead", "allowUnixSockets", "allowWrite", "allowedDomains", "autoAllowBashIfSandboxed", "excludedCommands"}
    | {"enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "ignoreViolations"}
)
# What the CLI takes under another name from managed settings.
_OTHER_NAMES = {"disableAllHooks": "allowManagedHooksOnly", "includeCoAuthoredBy": "attribution"}


class LostSetting(Struct, frozen=True):
    """A part of the settings that the CLI did not take.

    Args:
        path: where it is.
        value: what was sent.
    """

    path: SettingPath
    value: Any

    @property
    def place(self) -> str:
        """The path as people write it: `permissions.deny[0]`."""
        return format_path(self.path)

    @property
    def is_restriction(self) -> bool:
        """Whether the CLI may now do something that the settings forbid, or does not call a hook."""
        match self.path:
            case ("permissions", "deny" | "ask", *_) | ("permissions",) | ("permissions", int()):
                return True
            case ("hooks",) | ("hooks", _):
                return True
            case ("hooks", *rest):  # an entry, and not one of its details
                return isinstance(rest[-1], int) or rest[-1] in ("hooks", "matcher")
            case ("sandbox", *rest):
                names = [name for name in rest if isinstance(name, str)]
                is_off = self.value is False and names != ["allowUnsandboxedCommands"]
                return not is_off and _PERMISSIVE_SANDBOX_KEYS.isdisjoint(names)
            case (str(name),) | ("permissions", str(name)):
                is_strict = name.startswith(_RESTRICTIVE_PREFIXES) and name not in _NOT_RESTRICTIVE
                return is_strict and self.value is not False
            case (str(name), *_):
                return name.startswith(_RESTRICTIVE_PREFIXES)
            case _:
                return False


def find_lost(sent: Any, taken: Any, path: SettingPath = ()) -> Iterator[LostSetting]:
    """Find what the CLI did not take.

    Args:
        sent: what was sent.
        taken: what the CLI says that it took, at the same place; it may hold more.
        path: of this place.
    """
    if isinstance(sent, Mapping):
        has = as_mapping(taken)
        for name, value in cast("Mapping[str, Any]", sent).items():
            if name in has:
                yield from find_lost(value, has[name], (*path, name))
            elif isinstance(value, Mapping) or _is_list_of_texts(value):
                yield from find_lost(value, None, (*path, name))
            elif value not in (None, []) and not (path == () and _OTHER_NAMES.get(name) in has):
                yield LostSetting((*path, name), value)
    elif isinstance(sent, list | tuple):
        yield from _find_lost_items(list(cast("Sequence[Any]", sent)), taken, path)
    elif sent is not None and taken not in (sent, MASK) and path[:1] != ("env",):  # the CLI makes text of variables
        yield LostSetting(path, sent)


def _is_list_of_texts(value: Any) -> bool:
    """Whether each item can be told apart by itself, as a rule can."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(each, str) for each in items)


def _find_lost_items(sent: list[Any], taken: Any, path: SettingPath) -> Iterator[LostSetting]:
    has = cast("list[Any]", taken) if isinstance(taken, list) else []
    is_same_length = len(sent) == len(has)
    for at, item in enumerate(sent):
        if item in has or (is_same_length and MASK in str(has[at])):  # as in a recording
            continue
        if is_same_length and isinstance(item, Mapping):
            yield from find_lost(item, has[at], (*path, at))
        else:
            yield LostSetting((*path, at), item)


def find_dead_rules(settings: Any) -> Iterator[LostSetting]:
    """Find deny and ask rules that the CLI takes and never applies: with a blank in the name of the tool."""
    permissions = as_mapping(as_mapping(settings).get("permissions"))
    for behavior in ("deny", "ask"):
        rules = permissions.get(behavior)
        for at, rule in enumerate(cast("list[Any]", rules) if isinstance(rules, list) else []):
            if isinstance(rule, str) and has_blank_in_name(rule):
                yield LostSetting(("permissions", behavior, at), rule)


def find_unknown_keys(settings: Mapping[str, Any]) -> Iterator[SettingPath]:
    """Find the keys that no setting of the CLI has, where the CLI ignores them without a word."""
    for place, known in _KEYS_BY_PLACE.items():
        found: Any = settings
        for name in place:
            found = as_mapping(found).get(str(name))
        yield from ((*place, name) for name in as_mapping(found) if name not in known)


def find_similar_key(path: SettingPath) -> str | None:
    """Return the known key that an unknown one was probably meant to be."""
    known = _KEYS_BY_PLACE.get(path[:-1], ())
    found = find_similar_name(str(path[-1]), known, 0.75)
    return None if found is None else format_path((*path[:-1], found))


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one in place of anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def format_path(path: SettingPath) -> str:
    """Return a path as people write it: `permissions.deny[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
