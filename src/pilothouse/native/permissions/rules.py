"""Permission rules such as `Bash(git *)`: their syntax, and which of them match a call.

Owns the decisions from rules, and the updates that add rules. A rule that cannot be parsed never allows. Knows no
mode and does no I/O.
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
# A rule for the first tool also holds for the others: readable files may be searched, editable ones written.
READING_TOOLS = frozenset({"Read", "Glob", "Grep"})
EDITING_TOOLS = frozenset({"Edit", "Write", "NotebookEdit"})
# As in 2.1.330, rules with paths for these tools allow nothing; rules for Edit and Read apply to them.
PATHLESS_TOOLS = (EDITING_TOOLS | READING_TOOLS) - {"Edit", "Read"}
# The input field that the content of a rule is compared with, for tools without a syntax of their own.
NAME_FIELDS = {"Agent": "subagent_type", "Skill": "skill"}
_RULE = re.compile(r"([^()\s]+)(?:\((.*)\))?\Z", re.DOTALL)
_NAME = re.compile(r"[^()\s]+")
# Characters without a special meaning to a shell, except the blank, which separates words.
_PLAIN = re.compile(r"[A-Za-z0-9_./,:@+ -]+")


class ToolRule(msgspec.Struct, frozen=True):
    """One rule: a tool, and a part of its calls.

    Attributes:
        tool: the name of the tool.
        content: which calls of the tool; None: all.
        is_readable: False for a rule that cannot be parsed.
    """

    tool: str
    content: str | None = None
    is_readable: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rule such as `Bash(npm test *)`. Never raises: see `is_readable`."""
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
        """Whether the rule applies to `tool`."""
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
    """The rules of a session: `deny` overrides `ask`, `ask` overrides `allow`.

    Example:
        >>> rules = RuleSet.parse(allow=["Bash(git *)"], deny=["Bash(git push *)"])
        >>> [rule.content for rule in rules.find_matching("deny", "Bash")]
        ['git push *']
    """

    allow: tuple[ToolRule, ...] = ()
    ask: tuple[ToolRule, ...] = ()
    deny: tuple[ToolRule, ...] = ()

    @classmethod
    def parse(cls, allow: Iterable[str] = (), ask: Iterable[str] = (), deny: Iterable[str] = ()) -> Self:
        """Parse rules from text.

        A rule that cannot be parsed is ignored in `allow`; in `ask` and `deny` it applies to the whole tool that it
        names.

        Args:
            allow: rules for calls that need no permission request.
            ask: rules for calls that always need one.
            deny: rules for calls that never run.
        """
        return cls(tuple(map(ToolRule.parse, allow)), tuple(map(ToolRule.parse, ask)), tuple(map(ToolRule.parse, deny)))

    def with_updates(self, updates: Sequence[Mapping[str, Any]]) -> Self:
        """Return the rules after permission updates, as in the response to a permission request.

        `addRules`, `replaceRules` and `removeRules` change rules; `setMode`, `addDirectories` and `removeDirectories`
        do not concern rules and are left to the caller. Unknown ones change nothing.
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
        """Return the rules of one behaviour that apply to `tool`."""
        return tuple(rule for rule in getattr(self, behavior) if rule.matches_tool(tool, behavior))


def _add_rules(old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return old + tuple(rule for rule in given if rule not in old)


def _replace_rules(_old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return given


def _remove_rules(old: tuple[ToolRule, ...], given: tuple[ToolRule, ...]) -> tuple[ToolRule, ...]:
    return tuple(rule for rule in old if rule not in given)


_UPDATE_FUNCTIONS = {"addRules": _add_rules, "replaceRules": _replace_rules, "removeRules": _remove_rules}


def matches_wildcard(pattern: str, text: str) -> bool:
    """Whether `text` matches `pattern`, where each `*` stands for any text. Takes linear time for any pattern."""
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

    behavior: Behavior
    reason: str = ""
    suggestions: Sequence[JsonObject] = ()
    blocked_path: str | None = None
    must_ask: bool = False


class ProvisionalDecision(msgspec.Struct, frozen=True):
    """A decision before the mode is applied. `must_ask`: even bypassing permissions does not change it."""

    behavior: Behavior
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
