"""How the CLI treats calls of its tools when no rule matches: plain tables, measured on CLI 2.1.330.

Tests compare every cell that a scripted model can reach with the real CLI. This module must not know options.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

Outcome: TypeAlias = Literal["runs", "asks", "denied", "unavailable", "judged"]
"""What happens to a call. "judged": a model of the CLI decides each time; the call may run or be denied."""

CALL_KINDS: dict[str, str] = {
    "read": "in its directories",
    "read elsewhere": "elsewhere",
    "edit": "in its directories",
    "edit guarded": "in .git, .claude and the like",
    "edit elsewhere": "elsewhere",
    "look": "commands that only read",
    "tidy": "touch, mkdir, mv, rm and the like, in its directories",
    "run": "other commands",
    "reach": "",
    "serve": "",
    "plan": "",
    "ask": "",
    "own": "",
}
"""Every kind of call, and how it differs from the other kinds of the same tool."""

_READ_CALLS = ("read", "read elsewhere")
_EDIT_CALLS = ("edit", "edit guarded", "edit elsewhere")
_COMMAND_CALLS = ("look", "tidy", "run")

TOOL_CALL_KINDS: dict[str, tuple[str, ...]] = {
    "Read": _READ_CALLS,
    "Glob": _READ_CALLS,
    "Grep": _READ_CALLS,
    "Edit": _EDIT_CALLS,
    "Write": _EDIT_CALLS,
    "NotebookEdit": _EDIT_CALLS,
    "Bash": _COMMAND_CALLS,
    "Monitor": _COMMAND_CALLS,
    "WebFetch": ("reach",),
    "WebSearch": ("reach",),
    "Workflow": ("reach",),
    "Agent": ("own",),
    "AskUserQuestion": ("ask",),
    "ExitPlanMode": ("plan",),
    "EnterPlanMode": ("own",),
    "Skill": ("own",),
    "ToolSearch": ("own",),
    "CronCreate": ("own",),
    "CronDelete": ("own",),
    "CronList": ("own",),
    "EnterWorktree": ("own",),
    "ExitWorktree": ("own",),
    "ListAgents": ("own",),
    "ReportFindings": ("own",),
    "ScheduleWakeup": ("own",),
    "SendMessage": ("own",),
    "TaskStop": ("own",),
}
"""The tools of the CLI, and the kinds of calls that each makes."""

TOOL_ALIASES = {"Task": "Agent"}
"""Other names of a tool in rules, hooks and `tools`."""

NEEDS_PERSON = frozenset({"AskUserQuestion", "EnterPlanMode", "ExitPlanMode"})
"""The model has these only if someone can respond to them."""
HIDDEN_BESIDE_BASH = frozenset({"Glob", "Grep"})
"""Not available beside Bash, unless `tools` names them."""
NEEDS_BASH = frozenset({"Monitor"})
"""Not available where a rule removes Bash."""
HIDDEN_WHEN_RESTRICTED = frozenset({"Bash", "CronCreate", "Monitor", "WebFetch", "Workflow"})
"""Not available under `restricted`, unless `tools` names them."""
BARE_TOOLS = frozenset({"Bash", "Edit", "Read"})
"""The only tools under `bare`."""
FILE_TOOLS = frozenset({"Edit", "NotebookEdit", "Write"})
"""A path in a rule for Edit applies to all of these."""
READ_TOOLS = frozenset({"Glob", "Grep", "Read"})
"""A path in a rule for Read applies to all of these."""

BELOW_CWD_PATTERNS = frozenset({"**", "./**", "/**"})
"""Paths that mean everything below the working directory, in a rule for Edit."""


def _make_outcomes(default: Outcome, **others: str) -> dict[str, Outcome]:
    """Return `default` for every kind of call except those in `others`: outcome to kinds, with "_" for a space."""
    found: dict[str, Outcome] = dict.fromkeys(CALL_KINDS, default)
    for outcome, kinds in others.items():
        found |= dict.fromkeys([kind.replace("_", " ") for kind in kinds.split()], cast("Outcome", outcome))
    return found


MODE_OUTCOMES: dict[str, dict[str, Outcome]] = {
    "default": _make_outcomes("asks", runs="read look own"),
    "acceptEdits": _make_outcomes("asks", runs="read edit look tidy own"),
    "bypassPermissions": _make_outcomes("runs", asks="ask plan"),
    "plan": _make_outcomes("judged", runs="read read_elsewhere look own", asks="edit edit_elsewhere serve ask plan"),
    "dontAsk": _make_outcomes("denied", runs="read look own"),
    "auto": _make_outcomes("judged", runs="read read_elsewhere edit look tidy own", asks="ask plan"),
}
"""For each permission mode, the outcome of each kind of call without a matching rule."""

MODE_DESCRIPTIONS: dict[str, str] = {
    "default": "reading runs; changes and network access need permission",
    "acceptEdits": "edits in its directories run, and commands such as rm and mv there; the rest as in 'default'",
    "bypassPermissions": "everything runs; only deny and ask rules stop a call",
    "plan": "it reads and plans; edits ask, and a model of the CLI judges commands, until a plan was approved",
    "dontAsk": "a call that needs permission is denied",
    "auto": "a model of the CLI decides what would need permission; the mode depends on the account",
}
"""What each permission mode means, in words."""

NOT_CHANGED_BY_RULES: dict[str, frozenset[str]] = {
    "default": frozenset({"edit guarded", "ask", "plan"}),
    "acceptEdits": frozenset({"edit guarded", "ask", "plan"}),
    "bypassPermissions": frozenset({"ask", "plan"}),
    "dontAsk": frozenset({"edit guarded", "ask", "plan"}),
    "plan": frozenset(CALL_KINDS) - {"reach", "read", "read elsewhere", "own"},
    "auto": frozenset({"edit guarded", "tidy", "run", "look", "ask", "plan"}),
}
"""By permission mode, the kinds of calls whose outcome a rule that allows the whole tool does not change."""
