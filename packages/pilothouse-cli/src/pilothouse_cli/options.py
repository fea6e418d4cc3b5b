"""`pilothouse options`: the table of options for people, one option in full, and the sources of values here.

Owns the display of the table in a terminal. The content comes from the table itself.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from pilothouse.client import default_agent
from pilothouse.errors import UsageError
from pilothouse.options import TABLE, Option, OptionExplanation
from pilothouse_cli.ask import write_line
from pilothouse_cli.flags import OptionsRequest
from pilothouse_cli.help_texts import explain_unknown_option, get_flag, spell_options
from pilothouse_cli.screen import Screen
from pilothouse_policy import effective_policy


async def show_options(request: OptionsRequest, screen: Screen) -> int:
    """Show the table or one option."""
    if request.policy:
        policy = effective_policy(default_agent())
        return _print(policy if request.json else None, spell_options(str(policy)), screen)
    rows = default_agent().options.explain()
    names = [_find_option(request.name)] if request.name else list(TABLE)
    if request.explain:
        names = [name for name in names if not rows[name].is_default]
    if request.json or (request.explain and not request.name):
        facts = [make_option_dict(TABLE[name], rows[name]) for name in names]
        return _print(facts if request.json else None, str(rows), screen)
    if request.name:
        _print_one(TABLE[names[0]], rows[names[0]], screen)
    else:
        _print_all(screen)
    return 0


def _print(value: Any, text: str, screen: Screen) -> int:
    """Print a value as JSON; without one the text."""
    if value is not None:
        write_line(msgspec.json.encode(value))
    for line in [] if value is not None else text.splitlines():
        screen.note(line)
    return 0


def _find_option(name: str) -> str:
    name = name.strip().lstrip("-").replace("-", "_")
    if name in TABLE:
        return name
    raise UsageError(explain_unknown_option(name))


def make_option_dict(option: Option, now: OptionExplanation) -> dict[str, Any]:
    """Return a row of the table and its value here, as JSON."""
    return {
        "name": option.name,
        "group": option.group,
        "value": option.value_type.expected,
        "default": None if callable(option.default) else option.default,
        "goes_to": option.destination,
        "since": option.min_cli_version or None,
        "variable": option.variable,
        "flag": get_flag(option),
        "in_files": option.in_files,
        "doc": option.doc,
        "now": now.value,
        "from": now.origin,
    }


def _print_all(screen: Screen) -> None:
    for group, options in groupby(TABLE.values(), key=lambda option: option.group):
        screen.table((f"{group}:", ""), [(f"  {option.name}", option.doc) for option in options])
    screen.note("")
    screen.note("pilothouse options NAME explains one; pilothouse options --explain shows what is set here", "quiet")


def _print_one(option: Option, now: OptionExplanation, screen: Screen) -> None:
    screen.note(option.name, "title")
    screen.note(f"  {option.doc}")
    facts = make_option_dict(option, now)
    rows = (
        ("value", option.value_type.expected),
        ("default", repr(facts["default"])),
        ("goes to", facts["goes_to"]),
        ("needs", f"Claude Code {option.min_cli_version}" if option.min_cli_version else ""),
        ("file", option.name if option.in_files else "not from a file"),
        ("variable", facts["variable"] or ""),
        ("command line", f"pilothouse ask {facts['flag']}" if facts["flag"] else ""),
        ("here", f"{now.value}  ({now.origin})"),
    )
    for title, text in rows:
        if text:
            screen.note(f"  {title + ':':<14}{text}")
