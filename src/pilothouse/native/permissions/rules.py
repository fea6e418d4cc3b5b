"""What the content of a permission rule matches: commands, paths, hosts.

Owns the decisions from rules, and the updates that add rules. Knows no mode and does no I/O. `options.permission_rules`
reads the rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pilothouse.native.tools.glob_patterns import covers_parts
from pilothouse.options.permission_rules import PermissionBehavior, matches_wildcard

# The input field that the content of a rule is compared with, for tools without a syntax of their own.
NAME_FIELDS = {"Agent": "subagent_type", "Skill": "skill"}
# Characters without a special meaning to a shell, except the blank, which separates words.
_PLAIN = re.compile(r"[A-Za-z0-9_./,:@+ -]+")


def is_plain_command(command: str) -> bool:
    """Whether a shell only splits a command at blanks: one program, and its arguments as written."""
    return _PLAIN.fullmatch(command) is not None


def get_prefix(content: str) -> str | None:
    """Return the prefix that a rule such as `git:*` or `npm run *` allows; None for a rule with one exact command."""
    for ending in (":*", " *"):
        if content.endswith(ending):
            return content.removesuffix(ending)
    return None


def allows_command(content: str, command: str) -> bool:
    """Whether the content of a Bash rule allows a command.

    `git:*` and `git *` allow `git`, alone or followed by any plain words; any other content allows only that exact
    text. A command with a character that is special to a shell never consists of plain words.
    """
    prefix = get_prefix(content)
    if prefix is None:
        return command == content
    words = prefix.split()
    return bool(words) and is_plain_command(command) and command.split()[: len(words)] == words


def matches_path(content: str, path: str, *, root: str, home: str, is_loose: bool = False) -> bool:
    """Whether the content of a rule for a file tool matches an absolute path.

    As in `.gitignore`: `//etc/**` is absolute, `~/x` is in the home directory, and everything else in the directory
    in which the session started: `/x` and `a/x` right there, `x` without a slash anywhere below. A directory matches
    everything in it. The current directory of Bash makes no difference.

    Args:
        content: the pattern.
        path: absolute and normalized, with `/`.
        root: directory in which the session started.
        home: home directory.
        is_loose: for rules that forbid: letters that some file systems treat as equal are equal.
    """
    if content.startswith("//"):
        base, pattern = "", content[1:]
    elif content == "~" or content.startswith("~/"):
        base, pattern = home, content[1:] or "/"
    else:
        base, pattern = root, content.removeprefix("./")
        if "/" not in pattern.rstrip("/"):
            pattern = f"**/{pattern}"
    base, pattern = base.rstrip("/"), f"/{pattern.lstrip('/')}"
    if is_loose:
        base, pattern, path = (unicodedata.normalize("NFC", text).casefold() for text in (base, pattern, path))
    if not path.startswith(base + "/") and path != base:
        return False
    parts = [part for part in path[len(base) :].split("/") if part]
    return covers_parts(tuple(part for part in pattern.split("/") if part not in {"", "."}), parts)


def matches_host(content: str, host: str) -> bool:
    """Whether `domain:example.com` or `domain:*.example.com` matches a host name in any spelling."""
    kind, _, pattern = content.partition(":")
    return kind == "domain" and bool(host) and matches_wildcard(_ascii_host(pattern), _ascii_host(host))


def _ascii_host(host: str) -> str:
    """Normalize a host name as for a lookup: IDNA form, lower case, without the last dot."""
    try:
        host = host.encode("idna").decode()
    except UnicodeError:  # not a valid host name
        host = unicodedata.normalize("NFKC", host)
    return host.casefold().rstrip(".")


JsonObject = dict[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """The decision on a call.

    Attributes:
        behavior: "allow", "deny", or "ask" (a permission request is needed).
        reason: the reason as text; may be empty.
        suggestions: permission updates that would allow the call next time, in wire format.
        blocked_path: the path that caused the decision, if there is one.
        must_ask: whether neither a mode nor a hook may allow the call: a rule asks, or the danger is too great.
    """

    behavior: PermissionBehavior
    reason: str = ""
    suggestions: Sequence[JsonObject] = ()
    blocked_path: str | None = None
    must_ask: bool = False


class ProvisionalDecision(msgspec.Struct, frozen=True):
    """A decision before the mode is applied. `must_ask`: even bypassing permissions does not change it."""

    behavior: PermissionBehavior
    reason: str = ""
    suggestions: tuple[JsonObject, ...] = ()
    blocked_path: str | None = None
    must_ask: bool = False

    @classmethod
    def ask(
        cls, reason: str = "", *suggestions: JsonObject, blocked_path: Path | str | None = None, must_ask: bool = False
    ) -> ProvisionalDecision:
        """Make a decision that needs a permission request."""
        return cls("ask", reason, suggestions, None if blocked_path is None else str(blocked_path), must_ask)


ALLOW = ProvisionalDecision("allow")


def make_add_rule(tool: str, content: str | None, destination: str) -> JsonObject:
    """Make the update that adds an allow rule."""
    rule: JsonObject = {"toolName": tool} | ({} if content is None else {"ruleContent": content})
    return {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": destination}


def make_accept_edits() -> JsonObject:
    """Make the update that accepts edits."""
    return {"type": "setMode", "mode": "acceptEdits", "destination": "session"}


def make_add_directory(path: Path) -> JsonObject:
    """Make the update that adds a working directory."""
    return {"type": "addDirectories", "directories": [path.as_posix()], "destination": "session"}


def make_read_rules(*paths: Path) -> list[JsonObject]:
    """Make the updates that allow reading everything in or beside these paths. Never the whole disk."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [
        make_add_rule("Read", f"/{folder.as_posix()}/**", "session") for folder in folders if folder != folder.parent
    ]
