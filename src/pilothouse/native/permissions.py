"""`decide`: decides whether a tool call may run, by the CLI's modes and rules.

Owns the order (rules that deny, rules that ask, the mode, rules that allow), and how a Bash command is matched with
rules: a command needs permission unless a rule allows its exact text; rules that deny or ask match their words anywhere
in it. No program counts as harmless. Where the CLI's own decision is unknown, this one is stricter. Requests no
permission and runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from pilothouse.native.permission_rules import (
    ALLOW,
    NAME_FIELDS,
    Decision,
    JsonObject,
    ProvisionalDecision,
    RuleContext,
    allows_command,
    get_prefix,
    is_guarded,
    is_inside,
    is_plain_command,
    judge_edit,
    judge_read,
    make_add_rule,
    matches_host,
    resolve_path,
)
from pilothouse.native.tools.base import Workplace
from pilothouse.options.permission_rules import PermissionRule, RuleSet, matches_wildcard

# These change only the session itself.
SESSION_TOOLS = frozenset({"StructuredOutput", "TaskStop", "TodoWrite", "ToolSearch"})
# These ask the user.
USER_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode"})
PATH_FIELDS = {"Read": "file_path", "Edit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}


def decide(
    tool_name: str,
    tool_input: Mapping[str, Any],
    *,
    mode: str,
    rules: RuleSet,
    workplace: Workplace,
    read_only: bool,
) -> Decision:
    """Decide on a call of a tool.

    Never raises because of `tool_input`: a call that cannot be judged needs permission.

    Args:
        tool_name: such as "Bash" or "mcp__files__list".
        tool_input: its arguments.
        mode: default, acceptEdits, plan, bypassPermissions or dontAsk; any other is treated as default.
        rules: the permission rules of the session.
        workplace: directories and environment.
        read_only: whether the tool changes nothing; unknown tools may run if so, but not those of an MCP server.

    Example:
        >>> where = Workplace("/tmp", env={})
        >>> settings = {"mode": "default", "rules": RuleSet.parse(allow=["Bash(git add *)"]), "workplace": where}
        >>> decide("Bash", {"command": "git add x"}, read_only=False, **settings).behavior
        'allow'
        >>> decide("Bash", {"command": "git add x && curl example.com"}, read_only=False, **settings).behavior
        'ask'
    """
    matching = RuleContext(rules, workplace, accepts_edits=mode == "acceptEdits", is_planning=mode == "plan")
    try:
        verdict = _judge_call(tool_name, tool_input, matching, read_only=read_only)
    except (OSError, ValueError) as error:
        verdict = ProvisionalDecision.ask(f"This call cannot be judged: {error}", must_ask=True)
    return _apply_mode(verdict, mode)


def make_hidden_filter(rules: RuleSet, workplace: Workplace) -> Callable[[Path], bool] | None:
    """Make the filter of paths that Glob and Grep hide, for `Workplace.is_hidden`.

    Args:
        rules: rules of the session; make a new filter when they change.
        workplace: directories and environment.

    Returns:
        The filter; None if no rule denies reading a path.
    """
    if all(rule.content is None for rule in rules.find_matching("deny", "Read")):
        return None
    matching = RuleContext(rules, workplace)
    return lambda path: matching.find_forbidding("deny", "Read", resolve_path(str(path), workplace)) is not None


def _apply_mode(verdict: ProvisionalDecision, mode: str) -> Decision:
    suggestions = list(verdict.suggestions)
    found = Decision(verdict.behavior, verdict.reason, suggestions, verdict.blocked_path, verdict.must_ask)
    if verdict.behavior != "ask":
        return found
    if mode == "bypassPermissions" and not verdict.must_ask:
        return Decision("allow")
    if mode == "dontAsk":
        text = "Permission would have to be asked for, and this mode denies what is not allowed already"
        return Decision("deny", f"{text}: {verdict.reason}" if verdict.reason else text, (), verdict.blocked_path)
    return found


def _judge_call(
    tool: str, tool_input: Mapping[str, Any], context: RuleContext, *, read_only: bool
) -> ProvisionalDecision:
    for behavior in ("deny", "ask"):
        for rule in context.rules.find_matching(behavior, tool):
            if rule.content is not None:
                continue
            if behavior == "deny":
                return ProvisionalDecision("deny", f"Permission to use {tool} is denied by a rule")
            return ProvisionalDecision.ask(f"A rule asks about {tool}", must_ask=True)
    judge = _JUDGES.get(tool)
    if judge is not None:
        return judge(tool, tool_input, context)
    return _judge_other_call(tool, tool_input, context, read_only=read_only)


def _judge_bash_call(_tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> ProvisionalDecision:
    command = tool_input.get("command")
    if not isinstance(command, str):
        return ProvisionalDecision.ask("There is no command")
    return judge_bash(command, context)


def _judge_read_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> ProvisionalDecision:
    return judge_read(resolve_path(_get_text(tool_input, PATH_FIELDS[tool]), context.workplace), context, tool)


def _judge_edit_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> ProvisionalDecision:
    return judge_edit(resolve_path(_get_text(tool_input, PATH_FIELDS[tool]), context.workplace), context, tool)


def _judge_search_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> ProvisionalDecision:
    where = context.workplace
    base = resolve_path(_get_text(tool_input, "path", "."), where)
    verdict = judge_read(base, context, tool)
    pattern = tool_input.get("pattern")
    if tool != "Glob" or verdict.behavior != "allow" or not isinstance(pattern, str):
        return verdict
    # A pattern may lead out of the start directory.
    fixed = _literal_prefix(pattern)
    return judge_read(resolve_path(fixed, where, base.real), context, tool) if fixed else verdict


def _literal_prefix(pattern: str) -> str:
    """Return the literal directory at the start of a pattern; the whole pattern if it contains `..`."""
    if ".." in pattern:
        return pattern
    at = min((found for found in map(pattern.find, "*?[{") if found >= 0), default=len(pattern))
    return os.path.dirname(pattern[:at]) if at < len(pattern) else pattern  # noqa: PTH120 - a text, which may be empty


def _judge_fetch_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> ProvisionalDecision:
    host = urlsplit(_get_text(tool_input, "url")).hostname or ""

    def covers(rule: PermissionRule) -> bool:
        return rule.content is None or matches_host(rule.content, host)

    for behavior in ("deny", "ask", "allow"):
        if any(covers(rule) for rule in context.rules.find_matching(behavior, tool)):
            if behavior == "deny":
                return ProvisionalDecision("deny", f"Fetching from {host} is denied by a rule")
            return ALLOW if behavior == "allow" else ProvisionalDecision.ask(f"A rule asks about {host}", must_ask=True)
    return ProvisionalDecision.ask("", *([make_add_rule(tool, f"domain:{host}", "localSettings")] if host else ()))


def _judge_other_call(
    tool: str, tool_input: Mapping[str, Any], context: RuleContext, *, read_only: bool
) -> ProvisionalDecision:
    about = tool_input.get(NAME_FIELDS.get(tool, ""))
    for behavior in ("deny", "ask", "allow"):
        for rule in context.rules.find_matching(behavior, tool):
            if rule.content is None or rule.content == about or (about is None and behavior != "allow"):
                if behavior == "deny":
                    return ProvisionalDecision("deny", f"Permission to use {tool} is denied by a rule")
                if behavior == "ask":
                    return ProvisionalDecision.ask(f"A rule asks about {tool}", must_ask=True)
                if not context.is_planning or read_only:
                    return ALLOW
    if tool in USER_TOOLS:
        return ProvisionalDecision.ask("This needs a person", must_ask=True)
    if tool in SESSION_TOOLS or (read_only and not tool.startswith("mcp__")):
        return ALLOW
    return ProvisionalDecision.ask("", make_add_rule(tool, None, "localSettings"))


def _get_text(tool_input: Mapping[str, Any], key: str, default: str = "") -> str:
    value = tool_input.get(key)
    return value if isinstance(value, str) and value else default


_JUDGES: dict[str, Callable[[str, Mapping[str, Any], RuleContext], ProvisionalDecision]] = {
    "Bash": _judge_bash_call,
    "Edit": _judge_edit_call,
    "Glob": _judge_search_call,
    "Grep": _judge_search_call,
    "NotebookEdit": _judge_edit_call,
    "Read": _judge_read_call,
    "WebFetch": _judge_fetch_call,
    "Write": _judge_edit_call,
}


NEEDS_APPROVAL = "No rule allows this command"
DENIED = "Permission to run this command is denied by a rule: {}"
MAYBE_DENIED = "A rule denies {}, and what this command runs is known only when it runs"
ASKED_BY_RULE = "A rule asks about this command: {}"
OUTSIDE_PATH = "{} leads out of the working directories, or to a guarded file: a rule has to name the whole command"
DANGEROUS_REMOVAL = "This may remove the root, the home directory or the work"
MAX_SUGGESTION_CHARS = 2000
"""Length limit, in characters, of commands for which a rule is suggested."""
MAX_PATHS = 200
"""Words of a command whose links are resolved. With path rules, a longer command needs permission."""

# The text between words: the shell's operators (`<&-` is one), `=`, `,` and `:`.
_WORD_SEPARATOR = re.compile(r"(?:[<>]&\s*[0-9]*-?|[\s;&|<>()=,:])+")
_EXPANSION = re.compile(r"[$`]")
_GLOB_CHARS = re.compile(r"[*?\[\]{}]+")
_COMPUTED = re.compile(r"[$`{]")
_RECURSIVE = re.compile(r"-[a-z]*r|--r", re.IGNORECASE)
_UNQUOTED = str.maketrans("", "", "'\"\\")
_SPACED = str.maketrans("'\"\\", "   ")


def judge_bash(command: str, context: RuleContext) -> ProvisionalDecision:
    """Decide on a command as the model wrote it. In plan mode, no rule allows one."""
    texts = _CommandWords.parse(command)
    denied, certain = _find_rule("deny", texts, context)
    if denied is not None and certain:
        return ProvisionalDecision("deny", DENIED.format(_format_rule(denied)))
    if denied is not None:
        return ProvisionalDecision.ask(MAYBE_DENIED.format(_format_rule(denied)), must_ask=True)
    asked, _ = _find_rule("ask", texts, context)
    if asked is not None:
        return ProvisionalDecision.ask(ASKED_BY_RULE.format(_format_rule(asked)), must_ask=True)
    allowing = () if context.is_planning else context.rules.find_matching("allow", "Bash")
    if any(rule.content == command for rule in allowing if rule.content and get_prefix(rule.content) is None):
        return ALLOW
    if _may_remove(command, texts, context):
        return ProvisionalDecision.ask(DANGEROUS_REMOVAL, must_ask=True)
    if any(rule.content is None for rule in allowing):
        return ALLOW
    reason, blocked = NEEDS_APPROVAL, None
    for rule in allowing:
        if rule.content is not None and allows_command(rule.content, command):
            blocked = _find_outside_word(rule.content, command, context)
            if blocked is None:
                return ALLOW
            reason = OUTSIDE_PATH.format(blocked)
    return ProvisionalDecision.ask(reason, *_make_suggestions(command), blocked_path=blocked)


def _find_outside_word(content: str, command: str, context: RuleContext) -> str | None:
    """Return the first word after the allowed prefix that, as a path, is guarded or outside the working directories."""
    for word in command.split()[len((get_prefix(content) or "").split()) :]:
        # `-I/usr/include`: a path may directly follow an option.
        path = word[word.find("/") :] if word.startswith("-") and "/" in word else word
        spot = resolve_path(path, context.workplace)
        climbs = "/.." in path.lstrip("./")  # `..` after a directory, which may be a link
        if climbs or not is_inside(spot.real, context.workplace) or is_guarded(spot, context.workplace):
            return word
    return None


def _format_rule(rule: PermissionRule) -> str:
    return f"{rule.tool_name}({rule.content or '*'})"


def _make_suggestions(command: str) -> list[JsonObject]:
    """Suggest a rule for exactly this command, unless its text would mean more as a rule."""
    if not command.strip() or command.endswith("*") or len(command) > MAX_SUGGESTION_CHARS:
        return []
    return [make_add_rule("Bash", command, "localSettings")]


class _CommandWords(msgspec.Struct, frozen=True):
    """The words of a command, to be matched with rules that forbid.

    `words` are the literal words: once without quotes, once with blanks in place of quotes. `patterns` are the same,
    with `*` for each part that the shell expands. `paths` are the words with their slashes.
    """

    words: tuple[Sequence[str], ...]
    patterns: tuple[Sequence[str], ...]
    paths: Sequence[str]

    @classmethod
    def parse(cls, command: str) -> _CommandWords:
        command = command.replace("\\\n", "")
        forms = [command.translate(_UNQUOTED), command.translate(_SPACED)]
        plain = [_GLOB_CHARS.sub(" ", _EXPANSION.sub(" ", form)) for form in forms]
        return cls(
            tuple([part for word in _WORD_SEPARATOR.split(form) for part in _split_path(word)] for form in plain),
            tuple(
                [_to_pattern(part) for word in _WORD_SEPARATOR.split(form) for part in _split_path(word)]
                for form in forms
            ),
            list(dict.fromkeys(word for form in plain for word in _WORD_SEPARATOR.split(form) if word)),
        )


def _split_path(word: str) -> Iterator[str]:
    return (part.casefold() for part in word.split("/") if part)


def _to_pattern(part: str) -> str:
    """Return the possible expansions of a part of a word: `*` from `$` on, and for `*`, `?`, brackets and braces."""
    known = _EXPANSION.split(part)[0]
    return _GLOB_CHARS.sub("*", known) + ("*" if known != part else "")


# Rules that forbid


def _find_rule(
    behavior: Literal["deny", "ask"], texts: _CommandWords, context: RuleContext
) -> tuple[PermissionRule | None, bool]:
    """Return the rule that matches a command, and whether the match is certain; a certain match comes first."""
    perhaps: PermissionRule | None = None
    for rule in context.rules.find_matching(behavior, "Bash"):
        words = _get_command_words(rule.content or "")
        if any(_contains_words(words, known) for known in texts.words):
            return rule, True
        if any(_may_contain_words(words, guessed) for guessed in texts.patterns):
            perhaps = perhaps or rule
    for rule in _get_path_rules(behavior, context):
        words = _get_path_words(rule.content or "")
        if words and any(_contains_words(words, known) for known in texts.words):
            return rule, True
        if any(_may_contain_words(words, guessed) for guessed in texts.patterns) or len(texts.paths) > MAX_PATHS:
            perhaps = perhaps or rule
    found = _find_rule_behind_links(behavior, texts, context)
    return (found, True) if found is not None else (perhaps, False)


def _get_command_words(content: str) -> list[str]:
    """Return the words of a command rule; of a path only the last part, so that its directory does not matter."""
    words = _WORD_SEPARATOR.split(content.removesuffix(":*").translate(_UNQUOTED))
    return _to_patterns(word.rstrip("/").rsplit("/", 1)[-1] for word in words)


def _get_path_rules(behavior: Literal["deny", "ask"], context: RuleContext) -> list[PermissionRule]:
    """Return the rules for files: paths that may not be read or changed may not be in a command either."""
    rules = (rule for tool in ("Read", "Edit") for rule in context.rules.find_matching(behavior, tool))
    return [rule for rule in rules if rule.content is not None]


def _get_path_words(content: str) -> list[str]:
    return _to_patterns(part for part in content.split("/") if part not in {"~", ".", ".."})


def _to_patterns(words: Iterable[str]) -> list[str]:
    """Return the patterns of a rule's words, without those that match everything."""
    return [pattern for word in words if (pattern := _to_pattern(word.casefold())).strip("*")]


def _contains_words(words: Sequence[str], known: Sequence[str]) -> bool:
    """Whether a text contains these words, in this order."""
    at = 0
    for part in known:
        if at < len(words) and matches_wildcard(words[at], part):
            at += 1
    return at == len(words)


def _may_contain_words(words: Sequence[str], guessed: Sequence[str]) -> bool:
    """Whether a text may contain these words, in this order, after the shell's expansions."""
    at = 0
    for part in guessed:
        if at == len(words):
            break
        word = words[at]
        if "*" in part and (
            matches_wildcard(part, word.replace("*", "")) or matches_wildcard(word, part.replace("*", ""))
        ):
            return True  # its expansion may contain the remaining words
        if matches_wildcard(word, part):
            at += 1
    return at == len(words)


def _find_rule_behind_links(
    behavior: Literal["deny", "ask"], texts: _CommandWords, context: RuleContext
) -> PermissionRule | None:
    """Return the file rule that matches the resolved path of a word in the command."""
    if not _get_path_rules(behavior, context):
        return None
    for word in texts.paths[:MAX_PATHS]:
        if "\0" in word:
            continue
        spot = resolve_path(word, context.workplace)
        for tool in ("Read", "Edit"):
            rule = context.find_forbidding(behavior, tool, spot)
            if rule is not None and rule.content is not None:
                return rule
    return None


# Commands that need permission even in mode bypassPermissions


def _may_remove(command: str, texts: _CommandWords, context: RuleContext) -> bool:
    """Whether a command may remove essential files: `rm -r` and `find -delete`, except of plain names in the work."""
    for known in texts.words:
        if "find" in known and ("-delete" in known or "rm" in known):
            return True
        if "rm" in known and (any(map(_RECURSIVE.match, known)) or _COMPUTED.search(command)):
            return not is_plain_command(command) or any(_is_protected(word, context) for word in command.split())
    return False


def _is_protected(word: str, context: RuleContext) -> bool:
    where = context.workplace
    real = resolve_path(word, where).real
    home = where.env.get("HOME")
    kept = [where.root, where.cwd, *where.directories, *((Path(home),) if home else ())]
    if any(Path(os.path.realpath(folder)).is_relative_to(real) for folder in kept):
        return True
    return not any(real.is_relative_to(os.path.realpath(folder)) for folder in (where.root, *where.directories))
