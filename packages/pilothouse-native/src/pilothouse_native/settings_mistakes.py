"""What the engine does not take of settings: values that it cannot read, and restrictions that it cannot enforce.

Pure. What the engine does with the rest is in `configuration`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from pilothouse.options.cli_settings import find_lost
from pilothouse.permissions import PermissionMode, RuleSet

_TYPES: Final[Mapping[tuple[str, ...], Any]] = {
    ("permissions",): dict[str, Any],
    **{("permissions", behavior): list[str] for behavior in RuleSet.BEHAVIORS},
    ("permissions", "additionalDirectories"): list[str],
    ("permissions", "defaultMode"): PermissionMode,
    ("model",): str,
    ("effortLevel",): str,
    ("env",): dict[str, str | int | float | bool],
}
"""Every setting that the engine has, and its type."""


def find_mistakes(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find the values that the engine cannot read; each as its place and what is wrong with it."""
    for path, kind in _TYPES.items():
        value: Any = values
        for name in path:
            value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
        if value is None:
            continue
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            yield ".".join(path), str(error).replace("`", "")
            continue
        if path[-1] in RuleSet.BEHAVIORS:
            for at, rule in enumerate(cast("list[str]", value)):
                if not RuleSet.parse(allow=[rule]).allow:  # the strict reading
                    yield (
                        f"{'.'.join(path)}[{at}]",
                        f"{rule!r:.80} is not a permission rule; write Tool or Tool(content)",
                    )


def find_unenforced(values: Mapping[str, Any]) -> Iterator[str]:
    """Find the places of restrictions that the engine has not, such as hooks and the sandbox."""
    for lost in find_lost(values, take_known(values)):
        if lost.is_restriction:
            yield lost.place


def take_known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the engine has, out of `values`."""
    known = {path[-1] for path in _TYPES if len(path) > 1}
    taken = {name: value for name, value in values.items() if (name,) in _TYPES}
    if isinstance(taken.get("permissions"), Mapping):
        rules = cast("Mapping[str, Any]", taken["permissions"])
        taken["permissions"] = {name: value for name, value in rules.items() if name in known}
    return taken
