"""Whether a tool of this process may run, by the rules that the settings give. Pure.

Owns the rules for calls that this process runs itself; what the CLI runs, the CLI decides. They mean the same in both
places (CLI 2.1.330): a denial wins, then what is allowed, then the mode, and what is left is asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

Ruling = Literal["allow", "deny", "ask"]

# The modes that decide what no rule has decided. The others leave it to be asked.
_MODES: Mapping[str, Ruling] = {"bypassPermissions": "allow", "dontAsk": "deny"}


class Rules:
    """The rules of one conversation; callbacks may add to them while it runs.

    Args:
        allowed: rules as in the option `allowed_tools`.
        disallowed: rules as in the option `disallowed_tools`.
    """

    def __init__(self, allowed: Iterable[str] = (), disallowed: Iterable[str] = ()) -> None:
        self._rules: dict[str, list[str]] = {"deny": list(disallowed), "ask": [], "allow": list(allowed)}

    def ruling(self, tool: str, mode: str | None) -> Ruling:
        """What happens to a call of `tool` in the permission mode `mode`."""
        for verdict, rules in self._rules.items():  # a denial first
            if any(covers(rule, tool) for rule in rules):
                return cast("Ruling", verdict)
        return _MODES.get(mode or "", "ask")

    def update(self, updates: Any) -> None:
        """Add what a permission callback wants to hold from here on; see `updated_permissions`."""
        for update in _mappings(updates):
            change, behavior = _CHANGES.get(str(update.get("type"))), str(update.get("behavior"))
            if change is not None and behavior in self._rules:
                named = [str(rule.get("toolName", "")) for rule in _mappings(update.get("rules"))]
                self._rules[behavior] = change(self._rules[behavior], named)


def covers(rule: str, tool: str) -> bool:
    """Whether `rule` is about `tool`: its name, its server, or a pattern with `*`."""
    return rule == tool or tool.startswith(f"{rule}__") or ("*" in rule and fnmatchcase(tool, rule))


def _add(old: list[str], new: list[str]) -> list[str]:
    return [*old, *new]


def _replace(old: list[str], new: list[str]) -> list[str]:
    return new


def _remove(old: list[str], new: list[str]) -> list[str]:
    return [rule for rule in old if rule not in new]


_CHANGES = {"addRules": _add, "replaceRules": _replace, "removeRules": _remove}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
