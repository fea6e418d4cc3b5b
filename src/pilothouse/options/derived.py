"""What options mean for each other: the values to render, from the values that were set. Pure.

Owns the rules by which one option becomes a part of another; knows nothing of flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Values = dict[str, Any]

SKILL_SOURCES = ["user", "project"]
"""Settings that are loaded where skills are asked for and nothing is said about sources: skills stand beside them."""


def effective(values: Mapping[str, Any]) -> Values:
    """The values to render: those that are None left out, nested ones in the form that the CLI wants."""
    found = {name: value for name, value in values.items() if value is not None}
    for name, rule in _RULES.items():
        if name in found:
            rule(found)
    return found


def _wire(name: str) -> Callable[[Values], None]:
    def rule(values: Values) -> None:
        from pilothouse.options.forms import WIRE  # nested values are rare

        if not isinstance(values[name], str):
            values[name] = WIRE[name](values[name])

    return rule


def _servers(values: Values) -> None:
    given = values["mcp_servers"]
    _wire("mcp_servers")(values)
    if given and not values["mcp_servers"]:  # all of them run in this process
        del values["mcp_servers"]


def _skills(values: Values) -> None:
    skills = values["skills"]
    rules = ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills]
    allowed = values.get("allowed_tools", [])
    if rules:
        values["allowed_tools"] = [*allowed, *(rule for rule in rules if rule not in allowed)]
    values.setdefault("setting_sources", SKILL_SOURCES)


def _thinking(values: Values) -> None:
    values.pop("max_thinking_tokens", None)  # the older way to say a part of the same


def _sandbox(values: Values) -> None:
    _wire("sandbox")(values)
    settings = values.get("settings", {})
    if isinstance(settings, str):  # a path excludes a sandbox, so it is JSON
        settings = msgspec.json.decode(settings.encode())
    values["settings"] = {**settings, "sandbox": values["sandbox"]}


def _isolation(values: Values) -> None:
    values["setting_sources"] = []
    values["strict_mcp_config"] = True
    values.setdefault("persist_session", "session_store" in values)  # else it would go with the home


_RULES: dict[str, Callable[[Values], None]] = {
    "isolation": _isolation,  # first: others set sources only where there are none
    "agents": _wire("agents"),
    "mcp_servers": _servers,
    "sandbox": _sandbox,
    "skills": _skills,
    "thinking": _thinking,
}
