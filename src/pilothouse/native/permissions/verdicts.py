"""What judging ends in, and the suggestions that go with a question. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pilothouse.native.permissions.rules import Behavior

JSON = dict[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """What is decided about a call.

    Attributes:
        behavior: "allow" it, "deny" it, or "ask" somebody.
        reason: why, in words; may be empty.
        suggestions: permission updates that would allow it next time, in the form of the wire.
        blocked_path: the path that is to blame, if one is.
        firm: whether neither a mode nor a hook may allow what is asked about: a rule asks, or the danger is too great.
    """

    behavior: Behavior
    reason: str = ""
    suggestions: Sequence[JSON] = ()
    blocked_path: str | None = None
    firm: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """A decision before the mode has spoken. `firm` means that even bypassing permissions does not change it."""

    behavior: Behavior
    reason: str = ""
    suggestions: tuple[JSON, ...] = ()
    blocked_path: str | None = None
    firm: bool = False

    @classmethod
    def ask(
        cls, reason: str = "", *suggestions: JSON, blocked: Path | str | None = None, firm: bool = False
    ) -> Verdict:
        """A question."""
        return cls("ask", reason, suggestions, None if blocked is None else str(blocked), firm)


ALLOW = Verdict("allow")


def add_rule(tool: str, content: str | None, destination: str) -> JSON:
    """The update that adds a rule which allows."""
    rule: JSON = {"toolName": tool} | ({} if content is None else {"ruleContent": content})
    return {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": destination}


def accept_edits() -> JSON:
    """The update that lets edits through."""
    return {"type": "setMode", "mode": "acceptEdits", "destination": "session"}


def add_directory(path: Path) -> JSON:
    """The update that makes a directory part of the work."""
    return {"type": "addDirectories", "directories": [path.as_posix()], "destination": "session"}


def read_rules(*paths: Path) -> list[JSON]:
    """The updates that let everything in or beside these paths be read. Never the whole disk."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [add_rule("Read", f"/{folder.as_posix()}/**", "session") for folder in folders if folder != folder.parent]
