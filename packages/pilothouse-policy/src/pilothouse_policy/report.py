"""What an agent may do, and why: what runs without asking, what asks, and what is denied.

Pure. Owns the rows, what the options do not show, the notes, and the text. `outcomes` decides about each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import Protocol, Unpack

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.options import Options, Settings, normalize_mcp_name
from pilothouse.options.conflicts import find_conflicts
from pilothouse.options.permission_facts import OptionRule, PermissionFacts
from pilothouse.tracebacks import hide_arguments
from pilothouse_policy.outcomes import (
    CALL_DESCRIPTIONS,
    MODE_DESCRIPTIONS,
    MODE_OUTCOMES,
    TOOL_CALL_KINDS,
    Decision,
    Outcome,
    decide,
    decide_rule,
    list_deciding_hooks,
)

SETTINGS_FILES = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
POLICY_FLAGS = ("allowedTools", "disallowedTools", "managed-settings", "permission-mode", "settings", "tools")
"""Flags in `extra_args` that would change the policy."""


class HasOptions(Protocol):
    """What has effective options: an agent, a blocking agent, a query."""

    @property
    def options(self) -> Options:
        """The effective options."""
        ...


class PolicyRow(Struct, frozen=True):
    """The outcome of some calls.

    Args:
        tool: the tool, such as "Bash"; a server, as "mcp__name", spelled as in rules; or a rule, as "Bash(git:*)".
        calls: which of its calls, in words; "" for all of them.
        outcome: "runs", "asks", "denied", "unavailable": the model has no such tool; or "judged": a model of the CLI
            decides each time.
        why: the reason for the outcome.
        option: the option that decides; "" if none was set.
        origin: where that option was set, as in `explain`.
    """

    tool: str
    calls: str
    outcome: Outcome
    why: str
    option: str = ""
    origin: str = ""


def _make_rows(facts: PermissionFacts) -> Iterator[PolicyRow]:
    for rule in facts.rules:
        if (decision := decide_rule(facts, rule)) is not None:
            yield _make_row(facts, rule.text, "", decision)
    for tool, kinds in TOOL_CALL_KINDS.items():
        if tool == "ExitPlanMode" and facts.mode != "plan":
            continue  # the model is not in plan mode
        if (missing := facts.find_missing_reason(tool)) is not None:
            yield _make_row(facts, tool, "", ("unavailable", *missing))
            continue
        groups = [(found, [*same]) for found, same in groupby(kinds, key=partial(decide, facts, tool))]
        for decision, same in groups:
            is_only = len({found for found, _ in groups}) == 1
            calls = "" if is_only else "; ".join(CALL_DESCRIPTIONS[kind] for kind in same)
            yield _make_row(facts, tool, calls, decision)
    for server in dict.fromkeys(facts.servers.values()):
        *named, whole = facts.list_server_tools(server)
        for tool in (*named, whole):
            missing = facts.find_missing_reason(tool, server)
            decision = decide(facts, tool, "serve", server) if missing is None else ("unavailable", *missing)
            yield _make_row(facts, tool, "its other tools" if named and tool == whole else "", decision)


def _make_row(facts: PermissionFacts, tool: str, calls: str, decision: Decision) -> PolicyRow:
    outcome, option, why = decision
    return PolicyRow(tool, calls, outcome, why, option, facts.get_origin(option))


def _list_unseen_sources(facts: PermissionFacts) -> Iterator[str]:
    """Name what may change the policy without being visible in the options."""
    options, sources = facts.options, facts.setting_sources
    if sources:
        mode = "" if options.permission_mode else ", and a permission mode"
        files = ", ".join(SETTINGS_FILES[name] for name in sources)
        yield f"settings files may add rules and hooks{mode}: {files}; setting_sources=[] loads none"
    if isinstance(options.settings, str) and not options.settings.lstrip().startswith("{"):
        yield f"the settings in {options.settings} may add rules, hooks and a permission mode"
    yield "managed settings of this machine may deny, ask, add hooks, and forbid a permission mode"
    if isinstance(options.mcp_servers, str):
        yield "the MCP servers in the file of `mcp_servers`: their tools count as those of other servers"
    if not (options.strict_mcp_config or options.bare or options.isolation):
        own = "MCP servers from .mcp.json, plugins and the CLI's own configuration"
        yield f"{own}; strict_mcp_config=True excludes them"
    if options.plugins:
        yield "hooks, tools and agents of plugins"
    if facts.may_run_shell_lines:
        own = f"skills and commands of {', '.join([*sources, *(['plugins'] if options.plugins else [])])}"
        yield (
            f"shell lines in {own} run unasked: no permission mode, hook for PreToolUse or `can_use_tool` sees them; a "
            "hook for PreSkillShellCommand can refuse them (Claude Code 2.1.332), and "
            "settings={'disableSkillShellExecution': True} forbids them"
        )
    for flag in POLICY_FLAGS:
        if flag in (options.extra_args or {}):
            yield f"extra_args: --{flag} may change everything"


def _make_notes(facts: PermissionFacts) -> Iterator[str]:
    """Return notes about what is easily misread."""
    options, mode = facts.options, facts.mode
    if options.allowed_tools and options.tools is None and mode != "bypassPermissions":
        yield (
            "allowed_tools removes no tool: it lists the calls that run without a request; the model still has "
            "the others, unless tools=[…] omits them"
        )
    if mode == "bypassPermissions":
        yield "as root, the CLI starts in 'bypassPermissions' only if IS_SANDBOX=1 declares a sandbox"
        if any(rule.behavior == "deny" and rule.pattern and rule.tool == "Bash" for rule in facts.rules):
            yield "a deny pattern for commands does not stop the same effect in another spelling; a sandbox does"
    if options.transport is not None:
        yield (
            "these rows describe Claude Code; a different `transport` may decide differently: the native engine "
            "requests permission for every command that no rule allows"
        )
    if mode == "plan" and not facts.has_answerer and options.on_plan is None:
        yield "no function can approve a plan: the model answers with one, and cannot leave plan mode"
    if options.allow_dangerously_skip_permissions and mode != "bypassPermissions":
        yield "a running session may change to 'bypassPermissions'"
    for name, own in facts.agent_modes.items():
        if own in MODE_OUTCOMES and own != mode:
            yield f"the sub-agent {name!r} has the permission mode {own!r}"


OUTCOME_TITLES: dict[Outcome, str] = {
    "runs": "runs unasked",
    "asks": "asks",
    "judged": "is decided by a model of the CLI, each time",
    "denied": "is denied",
    "unavailable": "is not offered to the model",
}


class Policy(Struct, frozen=True):
    """What runs unasked, what asks, what is denied. Printing it shows a table.

    Args:
        mode: the permission mode at the start.
        mode_origin: the option with that mode, and where it was set.
        rows: rules with a pattern first, then every tool; of several rows that match a call, the first one counts.
        answered_by: what decides when a call asks.
        hooks: the events whose hooks may decide before or instead of the rows.
        unseen: what may change the policy and is not visible in the options.
        notes: what is easily misread.
        warnings: contradictory settings; `PolicyWarning`s when an agent or query is created.
    """

    mode: str
    mode_origin: str
    rows: tuple[PolicyRow, ...]
    answered_by: str
    hooks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def rows_for(self, tool: str) -> tuple[PolicyRow, ...]:
        """Return the rows for `tool`, or those for its server if it has none.

        Args:
            tool: its name; that of a tool of an MCP server, or of a server, also with the name of the server as given.
        """
        # Of MCP servers and tools, also the name as it was given: the CLI replaces most characters in it by "_".
        names = {OptionRule(tool, "allow", "").tool or tool}
        if tool.startswith("mcp__"):
            names.add("mcp__" + normalize_mcp_name(tool.removeprefix("mcp__")))
        tools = {row: OptionRule(row.tool, "allow", "").tool for row in self.rows}
        found = tuple(row for row in self.rows if tools[row] in names)
        if found or not tool.startswith("mcp__"):
            return found
        by_wildcard = (row for row in self.rows if any(fnmatchcase(name, tools[row]) for name in names))
        by_server = (row for row in self.rows if any(name.startswith(f"{tools[row]}__") for name in names))
        return tuple(by_wildcard) or tuple(by_server)

    def outcome(self, tool: str, calls: str = "") -> Outcome:
        """Return the outcome of the calls of `tool` that match no pattern.

        Args:
            tool: its name.
            calls: which calls, in the words of the row; only needed where their outcomes differ.

        Raises:
            KeyError: there is no such tool here, or outcomes differ and `calls` matches none of them.
        """
        rows = [row for row in self.rows_for(tool) if "(" not in row.tool]
        fits = [row for row in rows if not row.calls or calls in row.calls.split("; ")]
        if len(fits) != 1:
            raise KeyError(f"{tool!r}: say which calls, one of {[row.calls for row in rows]}")
        return fits[0].outcome

    def __str__(self) -> str:
        lines = [f"permission mode: {self.mode} ({self.mode_origin}): {MODE_DESCRIPTIONS[self.mode]}"]
        lines += [f"permission requests go to {self.answered_by}", *self._format_rows()]
        for title, texts in (
            ("may decide before", tuple(f"hooks for {name}" for name in self.hooks)),
            ("not visible here", self.unseen),
            ("note", self.notes),
            ("warning", self.warnings),
        ):
            lines += ["", *(f"{title}: {text}" for text in texts)] if texts else []
        return "\n".join(lines)

    def _format_rows(self) -> Iterator[str]:
        """Format the rows by outcome; tools with the same reason share a line."""
        for outcome, title in OUTCOME_TITLES.items():
            same: dict[PolicyRow, list[str]] = {}
            for row in self.rows:
                if row.outcome == outcome:
                    same.setdefault(replace(row, tool=""), []).append(row.tool)
            if same:
                yield from ("", f"{title}:")
            for row, tools in same.items():
                calls = f" ({row.calls})" if row.calls else ""
                origin = f", {row.origin}" if row.origin and row.option else ""
                yield f"  {', '.join(tools)}{calls}: {row.why}{origin}"


@hide_arguments
def effective_policy(source: Options | HasOptions, **overrides: Unpack[Settings]) -> Policy:
    """Compute what an agent, or options alone, let run without asking, what asks, and what is denied.

    Printing the policy shows a table. Nothing is started, and no file is read: the policy describes Claude Code with
    these settings only, and `Policy.unseen` names other sources that may count.

    Args:
        source: `Options`, or an agent, a blocking agent or a query, whose effective `options` count.
        **overrides: settings that win over them, as for `Agent.query`.

    Raises:
        OptionsError: settings that cannot work.
        UsageError: something else than an agent, a query or options.

    Example:
        ```python
        policy = effective_policy(agent, tools=["Read"])
        policy.outcome("Bash")  # "unavailable"
        ```
    """
    options: object = source if isinstance(source, Options) else getattr(source, "options", None)
    if not isinstance(options, Options):
        raise UsageError(f"effective_policy: expected an agent or Options, got {type(source).__name__}")
    facts = PermissionFacts(Options.stack(options, Options.layer(**overrides).with_origin("call")))
    return Policy(
        mode=facts.mode,
        mode_origin=f"{facts.mode_option}, {facts.get_origin(facts.mode_option)}" if facts.mode_option else "default",
        rows=tuple(_make_rows(facts)),
        answered_by=facts.answered_by,
        hooks=list_deciding_hooks(facts),
        unseen=tuple(_list_unseen_sources(facts)),
        notes=tuple(_make_notes(facts)),
        warnings=tuple(find_conflicts(facts)),
    )
