"""Settings of permissions that do not go together, told in words. Pure.

Owns what counts as a contradiction: settings of which one can have no effect beside the other, or that mean nothing to
the CLI. What is only easily misread is a note of the policy, and no warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from pilothouse.options import policy_facts as facts

if TYPE_CHECKING:
    from pilothouse.options.policy import View

_NAMES = re.compile(r"[A-Za-z0-9_|, -]+")
"""A matcher of these characters is a list of names for the CLI."""
_KNOWN = {name.lower(): name for name in (*facts.TOOLS, *facts.ALIASES)}
_NAMES_KNOWN = frozenset(_KNOWN.values())


class PolicyWarning(UserWarning):
    """Settings of permissions that do not go together. `warnings.simplefilter("ignore", PolicyWarning)` silences it."""


def contradictions(view: View) -> Iterator[str]:
    """What does not go together, a sentence or two each."""
    for find in _FINDERS:
        yield from find(view)


def _allow_list_under_bypass(view: View) -> Iterator[str]:
    if view.mode == "bypassPermissions" and view.options.allowed_tools:
        yield (
            "allowed_tools has no effect in permission mode 'bypassPermissions', where everything runs; to leave tools "
            "out, use tools=[…] or disallowed_tools=[…]"
        )


def _never_asked(view: View) -> Iterator[str]:
    asked = view.answered_by
    if asked not in ("can_use_tool", "confirm"):
        return
    o = view.options
    if view.mode in ("default", "acceptEdits") and not (o.tools or o.allowed_tools or o.disallowed_tools):
        return  # the usual case, without making all rows
    if any(row.outcome == "asks" and row.tool not in facts.NEEDS_SOMEBODY for row in view.rows):
        return
    if any(row.outcome == "judged" for row in view.rows) or "PreToolUse" in view.hooks:
        return  # both may still ask
    why = f"permission mode {view.mode!r}" if view.mode in ("bypassPermissions", "dontAsk") else "the rules and `tools`"
    yield (
        f"{asked} is never asked about the tools that are known here: {why} decide before it; a hook for PreToolUse "
        "sees every call"
    )


def _rule_for_missing_tool(view: View) -> Iterator[str]:
    for rule in view.rules:
        if rule.option != "allowed_tools" or rule.tool not in facts.TOOLS:
            continue
        missing = view.missing(rule.tool)
        # A layer above may narrow what a layer beneath allows.
        if missing is not None and missing[0] and view.origin(missing[0]) == view.origin("allowed_tools"):
            yield f"allowed_tools: {rule.text!r} has no effect, because the model has no {rule.tool}: {missing[1]}"


def _unread_rule(view: View) -> Iterator[str]:
    for rule in view.rules:
        if rule.behavior == "allow" and rule.tool in ("*", "mcp__*"):
            yield f"{rule.option}: the CLI passes over {rule.text!r}; name the tools, or servers as 'mcp__name'"
        elif rule.tool == "Write" and rule.pattern:
            yield f"{rule.option}: the CLI passes over {rule.text!r}; 'Edit({rule.pattern})' holds for all edits"
        elif meant := _meant(rule.tool):
            yield f"{rule.option}: there is no tool {rule.tool!r}, so {rule.text!r} has no effect; it is {meant!r}"


def _unknown_tool(view: View) -> Iterator[str]:
    given = view.options.tools
    for name in given if isinstance(given, list) else ():
        if meant := _meant(name):
            yield f"tools: there is no tool {name!r}; it is {meant!r}"


def _hook_for_nothing(view: View) -> Iterator[str]:
    for event, entries in (view.options.hooks or {}).items():
        if event not in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"):
            continue
        for entry in cast("list[Any]", entries) if isinstance(entries, list | tuple) else [entries]:
            matcher = getattr(entry, "matcher", None)
            if isinstance(matcher, str) and _NAMES.fullmatch(matcher):
                yield from _names_nothing(view, event, matcher)


def _names_nothing(view: View, event: str, matcher: str) -> Iterator[str]:
    names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
    faults: list[str] = []
    for name in names:
        tool = facts.ALIASES.get(name, name)
        missing = view.missing(tool) if tool in facts.TOOLS else None
        if meant := _meant(name):
            faults.append(f"there is no tool {name!r}, it is {meant!r}")
        elif missing is not None and missing[0] and view.origin(missing[0]) == view.origin("hooks"):
            faults.append(f"the model has no {name}: {missing[1]}")
    if names and len(faults) == len(names):
        yield f"hooks[{event!r}]: the matcher {matcher!r} can match nothing: {'; '.join(faults)}"


def _meant(name: str) -> str | None:
    """The tool that was meant, if the name is nearly that of one."""
    if name in _NAMES_KNOWN or name.startswith("mcp__"):
        return None
    if known := _KNOWN.get(name.lower()):
        return known
    import difflib  # for names that are not known, and there are few

    close = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.85)
    return _KNOWN[close[0]] if close else None


_FINDERS: tuple[Callable[[View], Iterator[str]], ...] = (
    _allow_list_under_bypass,
    _never_asked,
    _rule_for_missing_tool,
    _unread_rule,
    _unknown_tool,
    _hook_for_nothing,
)
