"""What a `Policy` says beside its rows: what cannot be seen from here, and what is easily misread. Pure.

Owns these sentences and when they are true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pilothouse.options.options import Options
from pilothouse.options.policy_facts import MODES
from pilothouse.options.policy_rules import Rule

FILES = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
FLAGS = ("allowedTools", "disallowedTools", "managed-settings", "permission-mode", "settings", "tools")
"""Flags in `extra_args` that would change the policy."""


def unseen_by(options: Options) -> Iterator[str]:
    """What may change the policy of `options`, and cannot be seen from them."""
    sources = options.setting_sources
    if sources is None:
        sources = (
            []
            if options.bare or options.restricted or options.isolation
            else ["user", "project"]
            if options.skills
            else [*FILES]
        )
    if sources:
        mode = "" if options.permission_mode else ", and a permission mode"
        files = ", ".join(FILES[name] for name in sources)
        yield f"settings files may add rules and hooks{mode}: {files}; setting_sources=[] loads none"
    if isinstance(options.settings, str) and not options.settings.lstrip().startswith("{"):
        yield f"the settings in {options.settings} may add rules, hooks and a permission mode"
    yield "managed settings of this machine may deny, ask, add hooks, and forbid a permission mode"
    if isinstance(options.mcp_servers, str):
        yield "the MCP servers in the file of `mcp_servers`: their tools count as those of other servers"
    if not (options.strict_mcp_config or options.bare or options.isolation):
        yield "MCP servers from .mcp.json, plugins and the CLI's own configuration; strict_mcp_config=True has none"
    if options.plugins:
        yield "hooks, tools and agents of plugins"
    for flag in FLAGS:
        if flag in (options.extra_args or {}):
            yield f"extra_args: --{flag} may change all of this"


def notes_of(options: Options, rules: Sequence[Rule], mode: str, *, nobody: bool) -> Iterator[str]:
    """What is easily misread in `options`."""
    if options.allowed_tools and options.tools is None and mode != "bypassPermissions":
        yield (
            "allowed_tools takes no tool away: it says what runs without asking; the model still has the others, "
            "unless tools=[…] leaves them out"
        )
    if mode == "bypassPermissions":
        yield "as root, the CLI starts in 'bypassPermissions' only where IS_SANDBOX=1 says that it is in a sandbox"
        if any(rule.behavior == "deny" and rule.pattern and rule.tool == "Bash" for rule in rules):
            yield "a pattern that denies commands does not stop the same deed in other words; a sandbox does"
    if options.transport is not None:
        yield (
            "these rows say what Claude Code does; what is behind `transport` may decide otherwise: the native engine "
            "asks about every command that no rule allows"
        )
    if mode == "plan" and nobody and options.on_plan is None:
        yield "nobody can approve a plan: the model answers with one, and cannot leave plan mode"
    if options.allow_dangerously_skip_permissions and mode != "bypassPermissions":
        yield "a running session may change to 'bypassPermissions'"
    for name, agent in (options.agents or {}).items():
        own = _mode_of_agent(agent)
        if own in MODES and own != mode:
            yield f"the sub-agent {name!r} has the permission mode {own!r}"


def _mode_of_agent(agent: Any) -> Any:
    if not isinstance(agent, dict):
        return getattr(agent, "permission_mode", None)
    own = cast("dict[str, Any]", agent)
    return own.get("permissionMode") or own.get("permission_mode")
