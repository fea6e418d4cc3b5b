"""Permission rules such as `Bash(git log:*)`: their text, the tools that they name, and how updates change them.

Owns the one reading of rules: options, permissions, tools and the native engine use it. Pure. Must not know what the
content of a rule means, or in which mode it counts. A hook's matcher is another language: see `hooks.matchers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final, Literal, Self, cast

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import UsageError

TOOL_ALIASES = {"Task": "Agent"}
"""Other names of a tool in rules, hooks and `tools`."""
FILE_TOOLS = frozenset({"Edit", "NotebookEdit", "Write"})
"""A path in a rule for Edit applies to all of these."""
READ_TOOLS = frozenset({"Glob", "Grep", "Read"})
"""A path in a rule for Read applies to all of these."""
PermissionBehavior = Literal["allow", "deny", "ask"]
"""What a rule does with the calls that it matches."""
BEHAVIORS: tuple[PermissionBehavior, ...] = ("deny", "ask", "allow")
"""The behaviors of rules, in the order in which the CLI checks them."""

# The name goes up to the first parenthesis, the content up to the last character, an unescaped closing parenthesis.
_RULE: Final = re.compile(r"([^()\\]+)(?:\((.*(?<!\\)(?:\\\\)*)\))?", re.DOTALL)
_NAME: Final = re.compile(r"[^()\\\s]+")
_ESCAPED: Final = re.compile(r"\\([()\\])")
_TO_ESCAPE: Final = re.compile(r"[()\\]")
_SERVER_PATTERN: Final = re.compile(r"mcp__[^*]+__")
# A rule for Edit or Read also holds for these tools, but a path in a rule for them allows nothing, as in the CLI.
_FAMILIES: Final = {"Edit": FILE_TOOLS, "Read": READ_TOOLS}
_TOOLS_WITH_PATHS: Final = FILE_TOOLS | READ_TOOLS
PATHLESS_TOOLS: Final = {
    **dict.fromkeys(sorted(FILE_TOOLS - {"Edit"}), "Edit"),
    **dict.fromkeys(sorted(READ_TOOLS - {"Read"}), "Read"),
}
"""Tools for which the CLI ignores a path in a rule, and the tool whose rule applies to them instead."""

MCP_PREFIX: Final = "mcp__"
"""The start of the names of all tools of MCP servers: ``mcp__server__tool``."""
_NOT_IN_MCP_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
# The servers of a claude.ai account; the CLI shortens runs of underscores in their names.
_ACCOUNT_SERVER_PREFIX: Final = "claude.ai "
_ANY_TOOL: Final = "\0"  # stands for a tool that no rule names


def split_rule(text: str) -> tuple[str, str | None] | None:
    """Split a rule, as in settings files, into the name of its tool and its content, with the escapes; None: no rule.

    The content is None for every use of the tool, which is as in the CLI also what ``Bash()`` and ``Bash(*)`` mean.
    """
    found = _RULE.fullmatch(text)
    return None if found is None else (found[1], None if found[2] in ("", "*") else found[2])


def has_blank_in_name(text: str) -> bool:
    """Whether a rule is written as "Bash (git:*)". In settings, such a rule never applies."""
    return re.search(r"\s", text.strip().partition("(")[0]) is not None


class PermissionRule(
    Struct, frozen=True, omit_defaults=True, rename={"tool_name": "toolName", "content": "ruleContent"}
):
    """A rule about a tool, or about some uses of it. `str` gives the form of settings files: ``Bash(git:*)``.

    Args:
        tool_name: the tool, such as "Bash" or "mcp__server__tool".
        content: which of its uses, in the syntax of the tool, such as "git:*"; None: all of them.

    Raises:
        UsageError: `tool_name` is not a tool name.
    """

    tool_name: str
    content: str | None = None

    def __post_init__(self) -> None:
        name, content = cast("tuple[Any, Any]", (self.tool_name, self.content))
        if not isinstance(name, str) or not name or _TO_ESCAPE.search(name):
            raise UsageError(f"a permission rule needs the name of a tool, got {name!r:.80}")
        if content is not None and not isinstance(content, str):
            raise UsageError(f"the content of a permission rule is text, got {type(content).__name__}")

    @classmethod
    def parse(cls, text: str) -> PermissionRule:
        r"""Read the form of settings files: ``Bash``, ``Bash(git:*)``, ``Read(~/notes/**)``.

        Parentheses of the content may be written as ``\(`` and ``\)``. As in the CLI, ``Bash()`` and ``Bash(*)`` mean
        every use of the tool.

        Raises:
            UsageError: the text has no name, or its parentheses do not close at the end.
        """
        found = split_rule(text)
        if found is None:
            raise UsageError(f"not a permission rule: {text!r:.80}; write Tool or Tool(content)")
        name, content = found
        return cls(name, None if content is None else _ESCAPED.sub(r"\1", content))

    def __str__(self) -> str:
        if not self.content:
            return self.tool_name
        content = _TO_ESCAPE.sub(r"\\\g<0>", self.content)
        return f"{self.tool_name}({content})"


class RuleSet(Struct, frozen=True):
    """The rules of a session: `deny` overrides `ask`, `ask` overrides `allow`.

    Example:
        >>> rules = RuleSet.parse(allow=["Bash(git *)"], deny=["Bash(git push *)"])
        >>> [rule.content for rule in rules.find_matching("deny", "Bash")]
        ['git push *']

    Attributes:
        BEHAVIORS: the names of the three, in the order in which the CLI checks them.
    """

    BEHAVIORS: ClassVar[tuple[PermissionBehavior, ...]] = BEHAVIORS

    deny: tuple[PermissionRule, ...] = ()
    ask: tuple[PermissionRule, ...] = ()
    allow: tuple[PermissionRule, ...] = ()

    @classmethod
    def parse(cls, allow: Iterable[str] = (), ask: Iterable[str] = (), deny: Iterable[str] = ()) -> Self:
        """Parse rules from text.

        A text that is not a rule is ignored in `allow`; in `ask` and `deny` it applies to the whole tool that it names.

        Args:
            allow: rules for calls that need no permission request.
            ask: rules for calls that always need one.
            deny: rules for calls that never run.
        """
        return cls(
            deny=_read_rules(deny, is_strict=False),
            ask=_read_rules(ask, is_strict=False),
            allow=_read_rules(allow, is_strict=True, keeps_star=True),
        )

    def with_updates(self, updates: Any) -> Self:
        """Return the rules after permission updates in wire form, as in the answer to a permission request.

        `addRules`, `replaceRules` and `removeRules` change rules; everything else changes nothing here.
        """
        rules = self
        for update in _list_mappings(updates):
            kind, behavior = update.get("type"), update.get("behavior")
            if behavior not in BEHAVIORS:
                continue
            # A text that is not a rule neither allows nor removes a rule.
            is_strict = behavior == "allow" or kind == "removeRules"
            updated = _list_mappings(update.get("rules"))
            given = _read_rules(updated, is_strict=is_strict, keeps_star=behavior == "allow")
            old: tuple[PermissionRule, ...] = getattr(rules, behavior)
            match kind:
                case "addRules":
                    changed = old + tuple(rule for rule in given if rule not in old)
                case "removeRules":
                    changed = tuple(rule for rule in old if rule not in given)
                case "replaceRules":
                    changed = given
                case _:
                    continue
            rules = replace(rules, **{behavior: changed})
        return rules

    def find_matching(self, behavior: PermissionBehavior, tool: str) -> tuple[PermissionRule, ...]:
        """Return the rules of one behavior that apply to `tool`, or to some of its uses."""
        return tuple(rule for rule in getattr(self, behavior) if matches_tool(rule, tool, behavior))


def matches_tool(rule: PermissionRule, tool: str, behavior: PermissionBehavior) -> bool:
    """Whether a rule applies to a tool, or to some of its uses.

    A rule that allows names the tool, its MCP server (`mcp__server`), or some tools of one server
    (`mcp__server__get_*`). A rule that denies or asks may have wildcards anywhere in the name.

    A rule for Edit or Read that denies or asks, or that has a path, holds for all tools that edit or read. As in the
    CLI, one that allows without a path is about that tool alone, and with `*`, about it in the working directory.

    `mcp__a__b__c` may be a tool of the server `a` or of the server `a__b`, and `mcp__a___b` of `a` or `a_`. A rule for
    `mcp__a` allows neither: the CLI does not let it allow the tools of those other servers.
    """
    name, tool = rule.tool_name, TOOL_ALIASES.get(tool, tool)
    has_path = rule.content not in (None, "", "*")
    if behavior == "allow" and has_path and name in PATHLESS_TOOLS:
        return False
    if name == tool or (tool in _FAMILIES.get(name, ()) and (has_path or behavior != "allow")):
        return True
    if behavior != "allow":  # generously: also `?` and brackets, and a server whose name has "__"
        return tool.startswith(f"{name}__") or matches_wildcard(name, tool) or fnmatchcase(tool, name)
    if "___" in tool:
        return False
    if "*" in name:
        is_of_server = tool.count("__") == name.count("__")
        return is_of_server and _SERVER_PATTERN.match(name) is not None and matches_wildcard(name, tool)
    is_of_server = tool.count("__") == 2
    return name.startswith("mcp__") and is_of_server and tool.startswith(f"{name}__")


def normalize_mcp_name(name: str) -> str:
    """Return the name of an MCP server, or of its tool, as it stands in the names that the model and rules use.

    Every character but ASCII letters, digits, `_` and `-` becomes `_`, as in the CLI.

    Example:
        >>> normalize_mcp_name("io.github.acme/shop")
        'io_github_acme_shop'
    """
    # JavaScript counts a character beyond U+FFFF as two.
    text = "".join("__" if ord(char) > 0xFFFF else _NOT_IN_MCP_NAMES.sub("_", char) for char in name)
    return re.sub("_+", "_", text).strip("_") if name.startswith(_ACCOUNT_SERVER_PREFIX) else text


def normalize_mcp_rule(name: str) -> str:
    """Return the name in a rule as the CLI spells it, if it is about MCP servers or tools; wildcards stay."""
    if not name.startswith(MCP_PREFIX):
        return name
    return "*".join(map(normalize_mcp_name, name.split("*")))


def matches_mcp_tool(rule_name: str, behavior: PermissionBehavior, server: str, tool: str | None = None) -> bool:
    """Whether a rule without content applies to a tool of an MCP server, as the CLI decides it.

    The CLI reads a name up to the first `__` as the server. So ``mcp__a__b`` is the tool `b` of the server `a`; a rule
    that denies or asks also applies to the server `a__b`, a rule that allows does not.

    Args:
        rule_name: the name in the rule, such as "mcp__shop", "mcp__shop__get_*" or "mcp__*".
        behavior: what the rule does.
        server: the name of the server, normalized.
        tool: the name of the tool, normalized; None for every tool of the server.
    """
    whole_server = f"{MCP_PREFIX}{server}"
    name = f"{whole_server}__{_ANY_TOOL if tool is None else tool}"
    if rule_name == name:
        return True
    rule_server, rule_tool = _split_mcp_name(rule_name)
    first_server, first_tool = _split_mcp_name(name)
    covers = first_server != "" and rule_server == first_server
    if rule_tool is not None and rule_tool != "*":
        covers = covers and "*" in rule_tool and matches_wildcard(rule_tool, first_tool or "")
    if behavior == "allow":
        return covers and (rule_name == whole_server or rule_name.startswith(f"{whole_server}__"))
    if "*" in rule_name and matches_wildcard(rule_name, name):
        return True
    return covers or rule_name in (whole_server, f"{MCP_PREFIX}{first_server or server}")


def _split_mcp_name(name: str) -> tuple[str, str | None]:
    """Split ``mcp__server__tool`` at the first `__`. Without one, the tool is None; of other names the server is ""."""
    server, found, tool = name.removeprefix(MCP_PREFIX).partition("__") if name.startswith(MCP_PREFIX) else ("", "", "")
    return server, tool if found else None


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


def _read_rules(
    values: Iterable[str | Mapping[str, Any]], *, is_strict: bool, keeps_star: bool = False
) -> tuple[PermissionRule, ...]:
    rules = (_read_rule(value, is_strict=is_strict, keeps_star=keeps_star) for value in values)
    return tuple(rule for rule in rules if rule is not None)


def _read_rule(value: str | Mapping[str, Any], *, is_strict: bool, keeps_star: bool) -> PermissionRule | None:
    """Read a rule as text or in wire form; None if it has no effect. See `RuleSet.parse` for what is not a rule.

    Args:
        value: the rule.
        is_strict: whether what is no rule is dropped, other than read as a rule for the tool that it names.
        keeps_star: whether `Read(*)` stays apart from `Read`; see `matches_tool`.
    """
    text = value if isinstance(value, str) else str(value.get("toolName", ""))
    found = split_rule(text.strip())
    if found is None or not _NAME.fullmatch(found[0]):
        named = _NAME.search(text)
        return None if is_strict or named is None else _make_rule(named[0], None)
    name, content = found
    if content is not None:
        # A doubled backslash stays doubled, other than in `PermissionRule.parse`: a rule allows to the letter.
        return _make_rule(name, content.replace("\\(", "(").replace("\\)", ")"))
    given = None if isinstance(value, str) else value.get("ruleContent")
    if keeps_star and name in _TOOLS_WITH_PATHS and (given == "*" or text.strip() == f"{name}(*)"):
        return _make_rule(name, "*")
    return _make_rule(name, None if given in (None, "", "*") else str(given))


def _make_rule(name: str, content: str | None) -> PermissionRule:
    return PermissionRule(TOOL_ALIASES.get(name, name), content)


def _list_mappings(values: Any) -> list[Mapping[str, Any]]:
    items = cast("Iterable[Any]", values) if isinstance(values, list | tuple) else ()
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
