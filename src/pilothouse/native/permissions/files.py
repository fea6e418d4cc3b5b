"""Judges reading and changing a path. Knows rules and directories, not which tool or command it is for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pilothouse.native.permissions.paths import GUARDED_FILES, GUARDED_FOLDERS, Matching, Place, guarded, inside
from pilothouse.native.permissions.verdicts import ALLOW, Verdict, accept_edits, add_directory, read_rules

OUTSIDE = "This path lies outside the working directories"
THROUGH_LINK = "{} leads through a link to {}, which lies outside the working directories"
GUARDED = "{} is a file or in a folder that can run commands later or holds secrets"


def judge_read(spot: Place, matching: Matching, tool: str = "Read") -> Verdict:
    """May this be read?"""
    verdict = _ruled(spot, matching, tool)
    if verdict is not None:
        return verdict
    where = matching.workplace
    if inside(spot.real, where) or (where.scratch is not None and spot.real.is_relative_to(where.scratch)):
        return ALLOW
    if matching.allowing(tool, spot):
        return ALLOW
    return Verdict.ask(_elsewhere(spot, matching), *read_rules(*_outside(spot, matching)), blocked=spot.real)


def judge_edit(spot: Place, matching: Matching, tool: str = "Edit") -> Verdict:
    """May this be created or changed?"""
    verdict = _ruled(spot, matching, tool)
    if verdict is not None:
        return verdict
    if guarded(spot, matching.workplace):
        if not matching.planning and _named(spot, matching, tool):
            return ALLOW
        return Verdict.ask(GUARDED.format(spot.plain), blocked=spot.real)
    within = inside(spot.real, matching.workplace)
    if (matching.accepting and within) or (not matching.planning and matching.allowing(tool, spot)):
        return ALLOW
    if within:
        return Verdict.ask("", accept_edits())
    folders = [
        add_directory(path.parent) for path in _outside(spot, matching)[-1:] if path.parent != path.parent.parent
    ]
    return Verdict.ask(_elsewhere(spot, matching), accept_edits(), *folders, blocked=spot.real)


def _ruled(spot: Place, matching: Matching, tool: str) -> Verdict | None:
    if denied := matching.forbidding("deny", tool, spot):
        return Verdict("deny", f"{spot.plain} is denied by a rule: {denied.tool}({denied.content or '*'})")
    if asked := matching.forbidding("ask", tool, spot):
        return Verdict.ask(f"A rule asks about this path: {asked.tool}({asked.content or '*'})", firm=True)
    return None


def _named(spot: Place, matching: Matching, tool: str) -> bool:
    """Whether a rule allows a guarded path and names what is guarded, so that nobody can have meant less."""
    naming = [
        rule
        for rule in matching.rules.speaking("allow", tool)
        if rule.content and {*PurePosixPath(rule.content).parts} & (GUARDED_FOLDERS | GUARDED_FILES)
    ]
    return bool(naming) and matching.allowing(tool, spot, naming)


def _outside(spot: Place, matching: Matching) -> list[Path]:
    return [path for path in spot.both if not inside(path, matching.workplace)]


def _elsewhere(spot: Place, matching: Matching) -> str:
    if spot.plain != spot.real and inside(spot.plain, matching.workplace):
        return THROUGH_LINK.format(spot.plain, spot.real)
    return OUTSIDE
