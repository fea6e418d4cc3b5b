"""`pilothouse options`: the table of options for people, one option in full, and where values come from here.

Owns how the table looks in a terminal. What stands in it comes from the table itself.
"""

from __future__ import annotations

import shutil
import textwrap
from itertools import groupby
from typing import Any

import msgspec

from pilothouse.cli.arguments import OptionsRequest, flag_of
from pilothouse.cli.ask import write_line
from pilothouse.cli.screen import Screen
from pilothouse.cli.suggestions import closest
from pilothouse.client import default_agent
from pilothouse.errors import UsageError
from pilothouse.options import TABLE, Option
from pilothouse.options.explain import DEFAULT, Explained
from pilothouse.options.outside import variable_of
from pilothouse.options.targets import describe

WIDEST = 110


async def show_options(request: OptionsRequest, screen: Screen) -> int:
    """Show what was asked for.

    Raises:
        UsageError: no option has that name, or the configuration here is wrong.
    """
    if request.policy:
        _policy(request, screen)
        return 0
    rows = default_agent().options.explain()
    names = [_known(request.name)] if request.name else list(TABLE)
    if request.explain:
        names = [name for name in names if rows[name].origin != DEFAULT]
    if request.json:
        write_line(msgspec.json.encode([as_dict(TABLE[name], rows[name]) for name in names]))
    elif request.name:
        _one(TABLE[names[0]], rows[names[0]], screen)
    elif request.explain:
        for line in str(rows).splitlines():
            screen.note(line)
    else:
        _all(screen)
    return 0


def _policy(request: OptionsRequest, screen: Screen) -> None:
    policy = default_agent().effective_policy()
    if request.json:
        write_line(msgspec.json.encode(policy))
        return
    for line in str(policy).splitlines():
        screen.note(line)


def _known(name: str) -> str:
    name = name.strip().lstrip("-").replace("-", "_")
    if name in TABLE:
        return name
    near = closest(name, TABLE)
    raise UsageError(f"there is no option {name!r}" + (f"; did you mean {near!r}?" if near else ""))


def as_dict(option: Option, now: Explained) -> dict[str, Any]:
    """A row of the table, and what it is here, as JSON."""
    return {
        "name": option.name,
        "group": option.group,
        "value": option.kind.expected,
        "default": None if callable(option.default) else option.default,
        "goes_to": describe(option.target),
        "since": option.since or None,
        "variable": variable_of(option.name),
        "flag": flag_of(option),
        "in_files": option.in_files,
        "needs_trust": option.in_files and option.untrusted is None,
        "doc": option.doc,
        "now": now.value,
        "from": now.origin,
    }


def _all(screen: Screen) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    column = max(map(len, TABLE)) + 2
    for group, options in groupby(TABLE.values(), key=lambda option: option.group):
        screen.note(f"{group}:", "title")
        for option in options:
            lines = _wrapped(option.doc, max(30, width - column - 2))
            screen.note(f"  {option.name:<{column}}{lines[0]}")
            for line in lines[1:]:
                screen.note(" " * (column + 2) + line)
    screen.note("")
    screen.note("pilothouse options NAME tells more; pilothouse options --explain shows what is set here", "quiet")


def _one(option: Option, now: Explained, screen: Screen) -> None:
    screen.note(option.name, "title")
    for line in _wrapped(option.doc, 76):
        screen.note(f"  {line}")
    facts = as_dict(option, now)
    rows = (
        ("value", option.kind.expected),
        ("default", repr(facts["default"])),
        ("goes to", facts["goes_to"]),
        ("needs", f"Claude Code {option.since}" if option.since else ""),
        ("file", _place_in_file(option)),
        ("variable", facts["variable"] or ""),
        ("command line", f"pilothouse ask {facts['flag']}" if facts["flag"] else ""),
        ("here", f"{now.value}  ({now.origin})"),
    )
    for title, text in rows:
        if text:
            screen.note(f"  {title + ':':<14}{text}")


def _place_in_file(option: Option) -> str:
    if not option.in_files:
        return "not from a file"
    trust = "; only in a file that you trust" if option.untrusted is None else ""
    return f"{option.name} in [tool.pilothouse] or pilothouse.toml{trust}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
