"""What becomes of each call of a tool: how Claude Code treats it, by its permission mode and the rules.

Pure. Owns the tables of the permission modes (measured; tests compare every cell that a scripted model
can reach with the real CLI), and the precedence of rules, mode and callbacks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from pilothouse.options.permission_facts import TOOLS, OptionRule, PermissionFacts

Outcome: TypeAlias = Literal["runs", "asks", "denied", "unavailable", "judged"]
"""What happens to a call. "judged": a model of the CLI decides each time; the call may run or be denied."""
Decision: TypeAlias = tuple[Outcome, str, str]
"""An outcome, the option that decides, and the reason."""

CALL_DESCRIPTIONS: dict[str, str] = {
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
"""How each kind of call differs from the other kinds of the same tool, in words."""

_GROUP_KINDS = {
    "read": ("read", "read elsewhere"),
    "edit": ("edit", "edit guarded", "edit elsewhere"),
    "command": ("look", "tidy", "run"),
}
TOOL_CALL_KINDS: dict[str, tuple[str, ...]] = {tool: _GROUP_KINDS.get(group, (group,)) for tool, group in TOOLS.items()}
"""The tools of the CLI, and the kinds of calls that each makes."""

MODE_DESCRIPTIONS: dict[str, str] = {
    "default": "reading runs; changes and network access need permission",
    "acceptEdits": "edits in its directories run, and commands such as rm and mv there; the rest as in 'default'",
    "bypassPermissions": "everything runs; only deny and ask rules stop a call",
    "plan": "it reads and plans; edits ask, and a model of the CLI judges commands, until a plan was approved",
    "dontAsk": "a call that needs permission is denied",
    "auto": "a model of the CLI decides what would need permission; the mode depends on the account",
}
"""What each permission mode means, in words."""


def _make_outcomes(default: Outcome, **others: str) -> dict[str, Outcome]:
    """Return `default` for every kind of call except those in `others`: outcome to kinds, with "_" for a space."""
    found: dict[str, Outcome] = dict.fromkeys(CALL_DESCRIPTIONS, default)
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

NOT_CHANGED_BY_RULES: dict[str, frozenset[str]] = {
    "default": frozenset({"edit guarded", "ask", "plan"}),
    "acceptEdits": frozenset({"edit guarded", "ask", "plan"}),
    "bypassPermissions": frozenset({"ask", "plan"}),
    "dontAsk": frozenset({"edit guarded", "ask", "plan"}),
    "plan": frozenset(CALL_DESCRIPTIONS) - {"reach", "read", "read elsewhere", "own"},
    "auto": frozenset({"edit guarded", "tidy", "run", "look", "ask", "plan"}),
}
"""By permission mode, the kinds of calls whose outcome a rule that allows the whole tool does not change."""

BELOW_CWD_PATTERNS = frozenset({"**", "./**", "/**"})
"""Paths that mean everything below the working directory, in a rule for Edit."""
DECIDING_EVENTS = ("PreToolUse", "PreSkillShellCommand", "PermissionRequest")
"""Hook events that decide about what runs."""


def decide(facts: PermissionFacts, tool: str, kind: str, server: str = "") -> Decision:
    """Decide a kind of call of an available tool; `server` is that of an MCP tool."""
    if facts.options.restricted and kind in ("read elsewhere", "edit elsewhere"):
        return "denied", "restricted", "restricted"
    for rule in facts.rules:
        if rule.behavior == "ask" and rule.covers(tool, server):
            return apply_answerer(facts, "asks"), rule.option, rule.reason
    mode, by_mode = MODE_OUTCOMES[facts.mode][kind], f"permission mode {facts.mode!r}"
    if mode != "runs" and kind not in NOT_CHANGED_BY_RULES[facts.mode]:
        for rule in facts.rules:
            if rule.behavior == "allow" and (rule.covers(tool, server) or allows_edits(rule, tool, kind)):
                return "runs", rule.option, rule.reason
    if kind in ("ask", "plan") and mode != "denied":
        # A yes of `confirm` does not answer a question.
        asked = (
            ("on_question", "can_use_tool", "asks") if kind == "ask" else ("on_plan", "can_use_tool", "confirm", "asks")
        )
        answers = next((name for name in asked if getattr(facts.options, name) is not None), None)
        return (mode, answers, f"{answers} answers") if answers else ("denied", "", "nobody answers")
    applied = mode if kind in ("ask", "plan") else apply_answerer(facts, mode)
    suffix = "; no function answers" if (mode, applied) == ("asks", "denied") else ""
    return applied, facts.mode_option, f"{by_mode}{suffix}"


def decide_rule(facts: PermissionFacts, rule: OptionRule) -> Decision | None:
    """Decide the calls that match a rule about some calls; None if it is about whole tools or has no effect."""
    if not facts.is_partial(rule):
        return None
    if rule.behavior == "allow" and allows_edits(rule, rule.tool, "edit"):
        return None
    missing = facts.find_missing_reason(rule.tool) if rule.tool in TOOLS else None
    if missing is not None:
        return "unavailable", *missing
    if rule.behavior == "deny":
        return "denied" if rule.pattern else "unavailable", rule.option, rule.option
    if rule.behavior == "ask" or any(r.behavior == "ask" and r.covers(rule.tool) for r in facts.rules):
        return apply_answerer(facts, "asks"), rule.option, rule.option
    if facts.mode == "plan" and rule.tool != "WebFetch":
        return "judged", facts.mode_option, "permission mode 'plan'"
    return "runs", rule.option, rule.option


def apply_answerer(facts: PermissionFacts, outcome: Outcome) -> Outcome:
    """Return `outcome`, but "denied" instead of "asks" if nothing can decide or the mode never asks."""
    has_answerer = facts.has_answerer or "PermissionRequest" in list_deciding_hooks(facts)
    return "denied" if outcome == "asks" and (facts.mode == "dontAsk" or not has_answerer) else outcome


def list_deciding_hooks(facts: PermissionFacts) -> tuple[str, ...]:
    """Return the events whose hooks may decide about a call."""
    return tuple(name for name in DECIDING_EVENTS if (facts.options.hooks or {}).get(name))


def allows_edits(rule: OptionRule, tool: str, kind: str) -> bool:
    """Whether a rule for edits below the working directory matches; it applies to every tool that edits."""
    return kind == "edit" and TOOLS.get(tool) == "edit" and rule.tool == "Edit" and rule.pattern in BELOW_CWD_PATTERNS
