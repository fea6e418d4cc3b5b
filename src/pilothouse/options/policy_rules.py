"""Permission rules: from options and settings to one list, and what each of them speaks of. Pure.

Owns how a rule reads, and where rules come from. What they lead to, `policy` works out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from pilothouse.options.options import Options
from pilothouse.options.policy_facts import ALIASES

Behavior: TypeAlias = Literal["deny", "ask", "allow"]
BEHAVIORS: tuple[Behavior, ...] = ("deny", "ask", "allow")
"""What a rule may want, in the order in which the CLI looks."""

CUSTOM_SERVER = "mcp__tools"
"""How rules name the server of `custom_tools`."""


class Rule(Struct, frozen=True):
    """One rule, such as "Bash(git:*)".

    Args:
        text: as it was written.
        behavior: what it wants.
        option: which option it stands in.
    """

    text: str
    behavior: Behavior
    option: str

    @property
    def tool(self) -> str:
        """The tool that it names; "*" and "mcp__*" name many."""
        name = self.text.partition("(")[0].strip()
        if name.startswith("mcp__") and name != "mcp__*":
            name = name.removesuffix("__*")
        return ALIASES.get(name, name)

    @property
    def pattern(self) -> str:
        """What it says about the input; "" if it holds for the whole tool."""
        inside = self.text.partition("(")[2].strip().removesuffix(")")
        return "" if inside == "*" else inside

    def covers(self, tool: str) -> bool:
        """Whether it holds for every call of `tool`, which may also be a server, as "mcp__name"."""
        if self.pattern:
            return False
        if self.behavior == "deny" and (self.tool == "*" or (self.tool == "mcp__*" and tool.startswith("mcp__"))):
            return True
        return tool == self.tool or (self.tool.startswith("mcp__") and tool.startswith(f"{self.tool}__"))


def rules_of(options: Options) -> tuple[Rule, ...]:
    """Every rule that `options` hold, those that deny first."""
    found = [*_from_options(options), *_from_settings(options)]
    if managed(options).get("allowManagedPermissionRulesOnly") is True:
        found = [rule for rule in found if rule.option in ("disallowed_tools", "managed_settings")]
    return tuple(sorted(found, key=lambda rule: BEHAVIORS.index(rule.behavior)))


def permissions(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of settings that speaks of permissions."""
    part = settings.get("permissions")
    return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}


def flag_settings(options: Options) -> Mapping[str, Any]:
    """What `settings` say; nothing if they are in a file."""
    given: Any = options.settings
    if isinstance(given, str):
        given = msgspec.json.decode(given.encode()) if given.lstrip().startswith("{") else None
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def managed(options: Options) -> Mapping[str, Any]:
    """What `managed_settings` say."""
    return options.managed_settings or {}


def _from_options(options: Options) -> Iterator[Rule]:
    for text in options.disallowed_tools or ():
        yield Rule(text, "deny", "disallowed_tools")
    for text in options.allowed_tools or ():
        yield Rule(text, "allow", "allowed_tools")
    skills = options.skills
    for text in ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills or ()]:
        yield Rule(text, "allow", "skills")
    if options.custom_tools and options.can_use_tool is None and options.confirm is None:
        yield Rule(CUSTOM_SERVER, "allow", "custom_tools")


def _from_settings(options: Options) -> Iterator[Rule]:
    for option, settings in (("managed_settings", managed(options)), ("settings", flag_settings(options))):
        part = permissions(settings)
        for behavior in BEHAVIORS:
            texts = part.get(behavior)
            for text in cast("list[Any]", texts) if isinstance(texts, list | tuple) else ():
                if isinstance(text, str):
                    yield Rule(text, behavior, option)
