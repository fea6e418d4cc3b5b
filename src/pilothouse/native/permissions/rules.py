"""Permission rules such as `Bash(git *)`: how they are written and which of them match a call.

Owns the decisions they lead to, and the updates that add rules. A rule that cannot be read never allows. Knows no mode
and does no I/O.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from pilothouse.native.tools.glob_patterns import covers_parts

Behavior = Literal["allow", "ask", "deny"]
BEHAVIORS: tuple[Behavior, ...] = ("allow", "ask", "deny")
ALIASES = {"Task": "Agent"}
# A rule for the first holds for the others too: what may be read may be searched, what may be edited may be written.
READING_TOOLS = frozenset({"Read", "Glob", "Grep"})
EDITING_TOOLS = frozenset({"Edit", "Write", "NotebookEdit"})
# As in 2.1.330, paths in rules for these allow nothing: those in rules for Edit and Read hold for them.
PATHLESS_TOOLS = (EDITING_TOOLS | READING_TOOLS) - {"Edit", "Read"}
# The part of the input that the content of a rule speaks of, where the tool has no form of its own.
NAME_FIELDS = {"Agent": "subagent_type", "Skill": "skill"}
_RULE = re.compile(r"([^()\s]+)(?:\((.*)\))?\Z", re.DOTALL)
_NAME = re.compile(r"[^()\s]+")
# Letters that mean nothing to a shell wherever they stand, but for the blank, which parts words.
_PLAIN = re.compile(r"[A-Za-z0-9_./,:@+ -]+")


class ToolRule(msgspec.Struct, frozen=True):
    """One rule: a tool, and what of it.

    Attributes:
        tool: the name of the tool.
        content: what of the tool; None is the whole tool.
        is_readable: False for a rule with a fault.
    """

    tool: str
    content: str | None = None
    is_readable: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule such as `Bash(npm test *)`. Never raises: see `is_readable`."""
        found = _RULE.match(text.strip())
        if not found:
            name = _NAME.search(text)
            return cls(ALIASES.get(name[0], name[0]) if name else "", None, is_readable=False)
        content = found[2]
        if content is not None:
            content = content.replace("\\(", "(").replace("\\)", ")")
        return cls(ALIASES.get(found[1], found[1]), None if content in {"", "*"} else content)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Read the `toolName` and `ruleContent` of a permission update."""
        content = value.get("ruleContent")
        rule = cls.parse(str(value.get("toolName", "")))
        if content is None or rule.content is not None:
            return rule
        return msgspec.structs.replace(rule, content=None if content in {"", "*"} else str(content))

    def matches_tool(self, tool: str, behavior: Behavior) -> bool:
        """Whether it speaks of `tool`."""
        tool = ALIASES.get(tool, tool)
        if behavior == "allow" and (not self.is_readable or (self.content and self.tool in PATHLESS_TOOLS)):
            return False
        if (
            self.tool == tool
            or (self.tool == "Read" and tool in READING_TOOLS)
            or (self.tool == "Edit" and tool in EDITING_TOOLS)
        ):
            return True
        if self.tool.startswith("mcp__") and "*" not in self.tool and self.tool.count("__") == 1:
            return tool.startswith(self.tool + "__")
        if "*" in self.tool and (behavior != "allow" or re.match(r"mcp__[^*]+__", self.tool)):
            return matches_wildcard(self.tool, tool)
        return False


class RuleSet(msgspec.Struct, frozen=True):
    """The rules of a session: `deny` beats `ask`, `ask` beats `allow`.

    Example:
        >>> rules = Rules.of(allow=["Bash(git *)"], deny=["Bash(git push *)"])
        >>> [rule.content for rule in rules.speaking("deny", "Bash")]
        ['git push *']
    """

    allow: tuple[ToolRule, ...] = ()
    ask: tuple[ToolRule, ...] = ()
    deny: tuple[ToolRule, ...] = ()

    @classmethod
    def parse(cls, allow: Iterable[str] = (), ask: Iterable[str] = (), deny: Iterable[str] = ()) -> Self:
        """Read rules from their text form.

        Args:
            allow: run without asking.
            ask: ask, whatever else allows.
            deny: never run.

        A rule that cannot be read is left out of `allow`; in `ask` and `deny` it holds for the whole tool it names.
        """
        return cls(tuple(map(ToolRule.parse, allow)), tuple(map(ToolRule.parse, ask)), tuple(map(ToolRule.parse, deny)))

    def with_updates(self, updates: Sequence[Mapping[str, Any]]) -> Self:
        """The rules after permission updates, as the answer of a permission request carries them.

        `addRules`, `replaceRules` and `removeRules` change rules; `setMode`, `addDirectories` and `removeDirectories`
        are not about rules and are left to whoever holds the mode and the workplace. Unknown ones change nothing.
        """
        rules = self
        for update in updates:
            behavior = update.get("behavior")
            change = _UPDATE_FUNCTIONS.get(str(update.get("type")))
            if change is None or behavior not in BEHAVIORS:
                continue
            given = tuple(ToolRule.from_value(value) for value in update.get("rules") or ())
            rules = msgspec.structs.replace(rules, **{behavior: change(getattr(rules, behavior), given)})
        return rules

    def find_matching(self, behavior: Behavior, tool: str) -> tuple[ToolRule, ...]:
        """The rules of one behaviour that speak of `tool`."""
        return tuple(rule for rule in getattr(self, behavior) if rule.matches_tool(tool, behavior))


def _add_rules(old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return old + tuple(rule for rule in given if rule not in old)


def _replace_rules(_old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return given


def _remove_rules(old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return tuple(rule for rule in old if rule not in given)


_UPDATE_FUNCTIONS = {"addRules": _add_rules, "replaceRules": _replace_rules, "removeRules": _remove_rules}


def matches_wildcard(pattern: str, text: str) -> bool:
    """Whether `text` is `pattern`, where each `*` stands for anything. Linear, whatever the pattern."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for piece in rest[:-1]:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def is_plain_command(command: str) -> bool:
    """Whether a shell does no more to a text than part it at blanks: one program, and its arguments as written."""
    return _PLAIN.fullmatch(command) is not None


def get_prefix(content: str) -> str | None:
    """The beginning that a rule such as `git:*` or `npm run *` allows; None for the text of one command."""
    for ending in (":*", " *"):
        if content.endswith(ending):
            return content.removesuffix(ending)
    return None


def allows_command(content: str, command: str) -> bool:
    """Whether the content of a rule for Bash allows a command.

    `git:*` and `git *` allow `git` with any plain words behind it, or none; any other content allows that text alone.
    A command with anything in it that a shell treats specially is never one of plain words.
    """
    prefix = get_prefix(content)
    if prefix is None:
        return command == content
    words = prefix.split()
    return bool(words) and is_plain_command(command) and command.split()[: len(words)] == words


def matches_path(content: str, path: str, *, root: str, home: str, is_loose: bool = False) -> bool:
    """Whether the content of a rule for a file tool speaks of an absolute path.

    As in `.gitignore`: `//etc/**` is absolute, `~/x` in the home directory, and everything else in the directory in
    which the session started: `/x` and `a/x` right there, `x` without a slash anywhere below. A directory covers all in
    it. Where Bash has gone meanwhile makes no difference.

    Args:
        content: the pattern.
        path: absolute and normal, with `/`.
        root: directory in which the session started.
        home: home directory.
        is_loose: for rules that forbid: letters that some file systems take for the same are the same.
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
    """Whether `domain:example.com` or `domain:*.example.com` speaks of a host name, however it is written."""
    kind, _, pattern = content.partition(":")
    return kind == "domain" and bool(host) and matches_wildcard(_ascii_host(pattern), _ascii_host(host))


def _ascii_host(host: str) -> str:
    """A host name as it is looked up: the form for internationalized names, in small letters, without the last dot."""
    try:
        host = host.encode("idna").decode()
    except UnicodeError:  # no name that can be looked up
        host = unicodedata.normalize("NFKC", host)
    return host.casefold().rstrip(".")


JsonObject = dict[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """What is decided about a call.

    Attributes:
        behavior: "allow" it, "deny" it, or "ask" somebody.
        reason: why, in words; may be empty.
        suggestions: permission updates that would allow it next time, in the form of the wire.
        blocked_path: the path that is to blame, if one is.
        must_ask: whether neither a mode nor a hook may allow what is asked about: a rule asks, or the danger is too
            great.
    """

    behavior: Behavior
    reason: str = ""
    suggestions: Sequence[JsonObject] = ()
    blocked_path: str | None = None
    must_ask: bool = False


class ProvisionalDecision(msgspec.Struct, frozen=True):
    """A decision before the mode has spoken. `must_ask` means that even bypassing permissions does not change it."""

    behavior: Behavior
    reason: str = ""
    suggestions: tuple[JsonObject, ...] = ()
    blocked_path: str | None = None
    must_ask: bool = False

    @classmethod
    def ask(
        cls, reason: str = "", *suggestions: JsonObject, blocked_path: Path | str | None = None, must_ask: bool = False
    ) -> ProvisionalDecision:
        """A question."""
        return cls("ask", reason, suggestions, None if blocked_path is None else str(blocked_path), must_ask)


ALLOW = ProvisionalDecision("allow")


def make_add_rule(tool: str, content: str | None, destination: str) -> JsonObject:
    """The update that adds a rule which allows."""
    rule: JsonObject = {"toolName": tool} | ({} if content is None else {"ruleContent": content})
    return {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": destination}


def make_accept_edits() -> JsonObject:
    """The update that lets edits through."""
    return {"type": "setMode", "mode": "acceptEdits", "destination": "session"}


def make_add_directory(path: Path) -> JsonObject:
    """The update that makes a directory part of the work."""
    return {"type": "addDirectories", "directories": [path.as_posix()], "destination": "session"}


def make_read_rules(*paths: Path) -> list[JsonObject]:
    """The updates that let everything in or beside these paths be read. Never the whole disk."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [
        make_add_rule("Read", f"/{folder.as_posix()}/**", "session") for folder in folders if folder != folder.parent
    ]
