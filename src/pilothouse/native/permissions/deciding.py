"""`decide`: whether a tool call may be made. Owns the order: what denies, what asks, the mode, what allows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pilothouse.native.permissions.bash import judge_bash
from pilothouse.native.permissions.files import judge_edit, judge_read
from pilothouse.native.permissions.paths import Matching, place
from pilothouse.native.permissions.rules import NAMED_BY, Rule, Rules, covers_host
from pilothouse.native.permissions.verdicts import ALLOW, Decision, Verdict, add_rule
from pilothouse.native.tools.base import Workplace

# These change nothing but the session itself.
OWN = frozenset({"StructuredOutput", "TaskStop", "TodoWrite", "ToolSearch"})
# A person is what they are for.
PERSONAL = frozenset({"AskUserQuestion", "ExitPlanMode"})
PATHS = {"Read": "file_path", "Edit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}


def decide(
    tool_name: str,
    tool_input: Mapping[str, Any],
    *,
    mode: str,
    rules: Rules,
    workplace: Workplace,
    read_only: bool,
) -> Decision:
    """Decide about a call of a tool.

    Args:
        tool_name: such as "Bash" or "mcp__files__list".
        tool_input: its arguments.
        mode: default, acceptEdits, plan, bypassPermissions or dontAsk; any other is as default.
        rules: what the session allows, asks about and denies.
        workplace: directories and environment.
        read_only: whether the tool only looks; of tools that are not known here and of no MCP server, these may run.

    Never raises because of `tool_input`: what cannot be judged is asked about.

    Example:
        >>> where = Workplace("/tmp", env={})
        >>> told = {"mode": "default", "rules": Rules.of(allow=["Bash(git add *)"]), "workplace": where}
        >>> decide("Bash", {"command": "git add x"}, read_only=False, **told).behavior
        'allow'
        >>> decide("Bash", {"command": "git add x && curl example.com"}, read_only=False, **told).behavior
        'ask'
    """
    matching = Matching(rules, workplace, accepting=mode == "acceptEdits", planning=mode == "plan")
    try:
        verdict = _judge(tool_name, tool_input, matching, read_only=read_only)
    except (OSError, ValueError) as error:
        verdict = Verdict.ask(f"This call cannot be judged: {error}", firm=True)
    return _by_mode(verdict, mode)


def hidden(rules: Rules, workplace: Workplace) -> Callable[[Path], bool] | None:
    """What Glob and Grep must not show: for `Workplace.hidden`; None if no rule denies reading a path.

    Args:
        rules: those of the session; take a new one when they change.
        workplace: directories and environment.
    """
    if all(rule.content is None for rule in rules.speaking("deny", "Read")):
        return None
    matching = Matching(rules, workplace)
    return lambda path: matching.forbidding("deny", "Read", place(str(path), workplace)) is not None


def _by_mode(verdict: Verdict, mode: str) -> Decision:
    suggestions = list(verdict.suggestions)
    found = Decision(verdict.behavior, verdict.reason, suggestions, verdict.blocked_path, verdict.firm)
    if verdict.behavior != "ask":
        return found
    if mode == "bypassPermissions" and not verdict.firm:
        return Decision("allow")
    if mode == "dontAsk":
        text = "Permission would have to be asked for, and this mode denies what is not allowed already"
        return Decision("deny", f"{text}: {verdict.reason}" if verdict.reason else text, (), verdict.blocked_path)
    return found


def _judge(tool: str, tool_input: Mapping[str, Any], matching: Matching, *, read_only: bool) -> Verdict:
    for behavior in ("deny", "ask"):
        for rule in matching.rules.speaking(behavior, tool):
            if rule.content is not None:
                continue
            if behavior == "deny":
                return Verdict("deny", f"Permission to use {tool} is denied by a rule")
            return Verdict.ask(f"A rule asks about {tool}", firm=True)
    judge = _JUDGES.get(tool)
    if judge is not None:
        return judge(tool, tool_input, matching)
    return _other(tool, tool_input, matching, read_only=read_only)


def _bash(_tool: str, tool_input: Mapping[str, Any], matching: Matching) -> Verdict:
    command = tool_input.get("command")
    if not isinstance(command, str):
        return Verdict.ask("There is no command")
    return judge_bash(command, matching)


def _read(tool: str, tool_input: Mapping[str, Any], matching: Matching) -> Verdict:
    return judge_read(place(_text(tool_input, PATHS[tool]), matching.workplace), matching, tool)


def _edit(tool: str, tool_input: Mapping[str, Any], matching: Matching) -> Verdict:
    return judge_edit(place(_text(tool_input, PATHS[tool]), matching.workplace), matching, tool)


def _search(tool: str, tool_input: Mapping[str, Any], matching: Matching) -> Verdict:
    where = matching.workplace
    base = place(_text(tool_input, "path", "."), where)
    verdict = judge_read(base, matching, tool)
    pattern = tool_input.get("pattern")
    if tool != "Glob" or verdict.behavior != "allow" or not isinstance(pattern, str):
        return verdict
    # A pattern may lead out of the directory it is looked for in.
    fixed = _fixed(pattern)
    return judge_read(place(fixed, where, base.real), matching, tool) if fixed else verdict


def _fixed(pattern: str) -> str:
    """The beginning of a pattern that is a path; all of it, if it goes up anywhere."""
    if ".." in pattern:
        return pattern
    at = min((found for found in map(pattern.find, "*?[{") if found >= 0), default=len(pattern))
    return os.path.dirname(pattern[:at]) if at < len(pattern) else pattern  # noqa: PTH120 - a text, which may be empty


def _fetch(tool: str, tool_input: Mapping[str, Any], matching: Matching) -> Verdict:
    host = urlsplit(_text(tool_input, "url")).hostname or ""

    def covers(rule: Rule) -> bool:
        return rule.content is None or covers_host(rule.content, host)

    for behavior in ("deny", "ask", "allow"):
        if any(covers(rule) for rule in matching.rules.speaking(behavior, tool)):
            if behavior == "deny":
                return Verdict("deny", f"Fetching from {host} is denied by a rule")
            return ALLOW if behavior == "allow" else Verdict.ask(f"A rule asks about {host}", firm=True)
    return Verdict.ask("", *([add_rule(tool, f"domain:{host}", "localSettings")] if host else ()))


def _other(tool: str, tool_input: Mapping[str, Any], matching: Matching, *, read_only: bool) -> Verdict:
    about = tool_input.get(NAMED_BY.get(tool, ""))
    for behavior in ("deny", "ask", "allow"):
        for rule in matching.rules.speaking(behavior, tool):
            if rule.content is None or rule.content == about or (about is None and behavior != "allow"):
                if behavior == "deny":
                    return Verdict("deny", f"Permission to use {tool} is denied by a rule")
                if behavior == "ask":
                    return Verdict.ask(f"A rule asks about {tool}", firm=True)
                if not matching.planning or read_only:
                    return ALLOW
    if tool in PERSONAL:
        return Verdict.ask("This needs a person", firm=True)
    if tool in OWN or (read_only and not tool.startswith("mcp__")):
        return ALLOW
    return Verdict.ask("", add_rule(tool, None, "localSettings"))


def _text(tool_input: Mapping[str, Any], key: str, default: str = "") -> str:
    value = tool_input.get(key)
    return value if isinstance(value, str) and value else default


_JUDGES: dict[str, Callable[[str, Mapping[str, Any], Matching], Verdict]] = {
    "Bash": _bash,
    "Edit": _edit,
    "Glob": _search,
    "Grep": _search,
    "NotebookEdit": _edit,
    "Read": _read,
    "WebFetch": _fetch,
    "Write": _edit,
}
