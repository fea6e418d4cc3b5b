"""Least privilege that is learned: the narrowest rules that recorded work needed, and what each stands on.

Pure: takes recorded calls. **A call in a transcript is what a model wanted, not what a person wants.** So only calls
that ran and that nobody denied count for a rule, no rule matches a denied call, and what is not certain keeps asking.
`narrow_rules` decides about a single call; here calls are grouped, widened where it is safe, and counted.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import UsageError
from pilothouse.options.permission_facts import TOOLS, OptionRule
from pilothouse_policy.narrow_rules import (
    MIN_DIFFERENT_CALLS,
    READ_ONLY_PREFIXES,
    WHOLE_FOLDER,
    AllowRules,
    CallIndex,
    Need,
    Rule,
    find_need,
    get_call_path,
    split_command,
    to_path_content,
)
from pilothouse_policy.recorded_calls import RecordedCall

MAX_EXAMPLES = 3
"""Number of calls that are shown for a rule."""
MAX_SHOWN_CHARS = 120
"""Characters of a call that are shown."""

SECRET_PATHS = (
    "**/.env", "**/.env.local", "**/.env.production", "**/*.pem", "**/id_rsa", "**/id_ed25519", "~/.ssh/**",
    "~/.aws/**", "~/.gnupg/**", "~/.kube/**", "~/.docker/config.json", "~/.netrc", "~/.git-credentials",
    "~/.claude/.credentials.json",
)  # fmt: skip
"""Paths that a suggestion always denies to read, and so to change."""
GUARDED_PATHS = (
    "**/.git/hooks/**", "**/.git/config", "**/.claude/settings.json", "**/.claude/settings.local.json", "**/.mcp.json",
    "~/.bashrc", "~/.bash_profile", "~/.profile", "~/.zshrc", "~/.gitconfig",
)  # fmt: skip
"""Paths that a suggestion always denies to change: they name programs that run later, or permissions."""


class SuggestedRule(Struct, frozen=True):
    """A proposed rule, and the calls that it stands on.

    Args:
        rule: the rule, such as "Bash(npm test)".
        allows: what it allows beside these calls, or for a rule that denies, what it is for; in words.
        calls: number of recorded calls: those that ran and need it; for a rule that denies, those that were denied.
        sessions: the sessions of these calls.
        examples: some of these calls, escaped and shortened.
        refuses: for a rule that denies: number of recorded calls that ran, and that it would have refused.
    """

    rule: str
    allows: str
    calls: int = 0
    sessions: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    refuses: int = 0


class OtherCalls(Struct, frozen=True):
    """Recorded calls without a rule.

    Args:
        tool: their tool.
        reason: why there is none.
        calls: their number.
        examples: some of them, escaped and shortened.
    """

    tool: str
    reason: str
    calls: int
    examples: tuple[str, ...]


class TriedCall(Struct, frozen=True):
    """What would become of a recorded call.

    Args:
        outcome: "runs", "asks" or "denied". A command that asks here may run: Claude Code knows some that only read.
        call: the call, escaped and shortened.
        why: the rule, or the reason.
        session: its session.
        recorded: what became of it when it was recorded.
    """

    outcome: Literal["runs", "asks", "denied"]
    call: str
    why: str
    session: str
    recorded: str


class Suggestion(Struct, frozen=True):
    """Proposed permissions. Printing it shows each rule with what it stands on. Nothing is applied.

    Args:
        root: the project.
        rules: rules that allow.
        deny: rules that deny: what a person denied, and files with secrets.
        sandbox: settings of the sandbox for commands, as the option `sandbox`; None if no command ran.
        still_asks: calls that ran, failed or were denied, and for which no rule is proposed.
        needs_no_rule: calls that run in every permission mode.
        sessions: number of sessions.
        calls: number of calls.
    """

    root: str
    rules: tuple[SuggestedRule, ...]
    deny: tuple[SuggestedRule, ...]
    sandbox: Mapping[str, Any] | None
    still_asks: tuple[OtherCalls, ...]
    needs_no_rule: tuple[OtherCalls, ...]
    sessions: int
    calls: int

    def options(self) -> dict[str, Any]:
        """Return the suggestion as options, for `Agent(cwd=root, **suggestion.options())`."""
        found: dict[str, Any] = {
            "allowed_tools": [rule.rule for rule in self.rules],
            "disallowed_tools": [rule.rule for rule in self.deny],
        }
        return found | ({} if self.sandbox is None else {"sandbox": dict(self.sandbox)})

    def settings(self) -> dict[str, Any]:
        """Return the suggestion as the content of `.claude/settings.json` of the project.

        In another place, a path that begins with `/` counts from elsewhere: such a rule then allows nothing here.
        """
        options = self.options()
        permissions = {"allow": options["allowed_tools"], "deny": options["disallowed_tools"]}
        return {"permissions": permissions} | ({} if self.sandbox is None else {"sandbox": _to_wire(self.sandbox)})

    def try_on(self, calls: Iterable[RecordedCall]) -> tuple[TriedCall, ...]:
        """Return what would become of other calls, such as those of other transcripts: a dry run.

        Args:
            calls: recorded calls of the same project.

        Raises:
            UsageError: `calls` has something else.
        """
        allow = AllowRules(map(_split_rule, self.rules), self.root)
        deny = [*map(_split_rule, self.deny)]
        return tuple(self._try(call, allow, deny) for call in _require_calls("try_on", calls))

    def _try(self, call: RecordedCall, allow: AllowRules, deny: Sequence[Rule]) -> TriedCall:
        need = find_need(call, self.root)
        found: tuple[Literal["runs", "asks", "denied"], str]
        if (denying := _find_denying(deny, call, self.root)) is not None:
            found = "denied", _format_rule(*denying)
        elif need.kind == "nothing":
            found = "runs", need.reason
        elif rules := allow.find_allowing(call):
            found = "runs", _format_rule(*rules[0]) if len(rules) == 1 else "several rules"
        else:
            found = "asks", need.reason or "no rule matches"
        return TriedCall(found[0], show_call(call), found[1], escape(call.session), call.outcome)

    def __str__(self) -> str:
        lines = [f"{_count(self.calls, 'call')} of {_count(self.sessions, 'session')} in {escape(self.root)}"]
        lines += ["", "allow:"] if self.rules else []
        for rule in self.rules:
            lines += [f"  {rule.rule}", f"      {rule.allows}", f"      {_format_evidence(rule)}"]
        lines += ["", "deny:"]
        for reason, same in groupby(self.deny, key=lambda rule: rule.allows):
            rules = [*same]
            lines += [f"  {', '.join(rule.rule for rule in rules)}", f"      {reason}"]
            lines += [f"      {rule.rule}: {_format_evidence(rule)}" for rule in rules if rule.calls or rule.refuses]
        if self.sandbox is not None:
            hosts = self.sandbox["network"]["allowed_domains"]
            network = f"{', '.join(hosts)} only" if hosts else "none"
            lines += ["", f"Commands run in a sandbox; network: {network}."]
        for title, others in (("keeps asking", self.still_asks), ("needs no rule", self.needs_no_rule)):
            lines += ["", f"{title}:"] if others else []
            for each in others:
                of = f"{each.tool}, {_count(each.calls, 'call')}"
                lines += [f"  {of}: {each.reason}", f"      {', '.join(each.examples)}"]
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _format_evidence(rule: SuggestedRule) -> str:
    refused = f"would have refused {_count(rule.refuses, 'call')} that ran" if rule.refuses else ""
    of = f"{_count(rule.calls, 'call')} of {_count(len(rule.sessions), 'session')}: {', '.join(rule.examples)}"
    return "; ".join(filter(None, (of if rule.calls else "", refused)))


def suggest_policy(calls: Iterable[RecordedCall], *, root: str) -> Suggestion:
    """Propose the narrowest permissions that recorded work needed. Nothing is started, read or applied.

    Read the proposal before you use it: it stands on what a model did. Rules for commands trust the files of the
    project, which decide what `npm test` runs.

    Args:
        calls: the calls of earlier sessions of one project, as from `read_calls`.
        root: the absolute path of the project. Paths in rules count from here: start sessions there.

    Raises:
        UsageError: `root` is not an absolute path below "/", or `calls` has something else.

    Example:
        ```python
        suggestion = suggest_policy(calls, root="/srv/shop")
        agent = ph.Agent(cwd="/srv/shop", **suggestion.options())
        ```
    """
    root = posixpath.normpath(root)
    if not root.startswith("/") or root in ("/", "//"):
        raise UsageError(f"suggest_policy: expected the absolute path of a project, got {root!r:.80}")
    known = [(call, find_need(call, root)) for call in _require_calls("suggest_policy", calls)]
    denied = CallIndex((call for call, _ in known if call.outcome == "denied"), root)
    evidence: _Groups = {}
    for call, need in known:
        if call.outcome == "ran" and need.kind == "rule":
            evidence.setdefault((need.tool, need.content), []).append(call)
    rules = [_make_rule(*key, found) for key, found in _choose(evidence, denied)]
    ran = [call for call, _ in known if call.outcome == "ran"]
    deny = (*_deny_what_was_denied(known, ran, root), *_deny_guarded(ran, root))
    allow = AllowRules(map(_split_rule, rules), root)
    asking: list[tuple[RecordedCall, str]] = []
    free: list[tuple[RecordedCall, str]] = []
    for call, need in known:
        if need.kind == "nothing" and call.outcome != "denied":
            free.append((call, need.reason))
        elif call.outcome == "denied" or not allow.find_allowing(call):
            asking.append((call, _explain(call, need, denied)))
    return Suggestion(
        root=root,
        rules=tuple(rules),
        deny=deny,
        sandbox=_make_sandbox(rules) if any(call.tool == "Bash" for call in ran) else None,
        still_asks=_group(asking),
        needs_no_rule=_group(free),
        sessions=len({call.session for call, _ in known}),
        calls=len(known),
    )


def _require_calls(name: str, given: object) -> list[RecordedCall]:
    """Return recorded calls as a list; raise a UsageError for anything else."""
    calls = list(cast("Iterable[object]", given)) if isinstance(given, Iterable) else [given]
    if wrong := [each for each in calls if not isinstance(each, RecordedCall)]:
        hint = "read_calls(messages) makes them"
        raise UsageError(f"{name}: expected RecordedCall objects, got {type(wrong[0]).__name__}; {hint}")
    return cast("list[RecordedCall]", calls)


_Groups: TypeAlias = dict[Rule, list[RecordedCall]]


def _was_reading_denied(tool: str, content: str, denied: CallIndex) -> bool:
    """Whether reading a file that a rule for edits matches was denied: who may not read a file may not change it."""
    return tool == "Edit" and denied.may_match("Read", content)


def _is_denied(rule: Rule, denied: CallIndex) -> bool:
    return (
        denied.may_match(*rule)
        or _was_reading_denied(*rule, denied)
        or any(denied.may_match("Bash", part) for part in _list_parts(*rule))
    )


def _list_parts(tool: str, content: str) -> Iterable[str]:
    """Return the commands that a rule for a command allows with it: `a` and `b` of `a && b`."""
    return split_command(content) if tool == "Bash" else ()


def _choose(evidence: _Groups, denied: CallIndex) -> Iterator[tuple[Rule, list[RecordedCall]]]:
    """Yield rules with their calls: wider ones where that is safe, and none that may match a denied call."""
    left = dict(evidence)
    for wider, members in _propose_wider(evidence):
        found = [call for key in members for call in left.get(key, ())]
        if found and not _is_denied(wider, denied):
            yield wider, found
            for key in members:
                left.pop(key, None)
    for key, found in left.items():
        if not _is_denied(key, denied):
            yield key, found


def _propose_wider(evidence: Iterable[Rule]) -> Iterator[tuple[Rule, list[Rule]]]:
    """Yield rules with a wildcard, and the narrower ones that each replaces; folders before those inside them."""
    beginnings: dict[str, list[Rule]] = {}
    folders: dict[str, list[Rule]] = {}
    for tool, content in evidence:
        beginning = " ".join(content.split()[:2])
        if tool == "Bash" and beginning in READ_ONLY_PREFIXES and "&&" not in content and ";" not in content:
            beginnings.setdefault(beginning, []).append((tool, content))
        elif tool == "Edit" and not content.startswith("//") and (folder := posixpath.dirname(content)) != "/":
            folders.setdefault(folder, []).append((tool, content))
    for beginning, members in beginnings.items():
        if len(members) >= MIN_DIFFERENT_CALLS:
            yield ("Bash", f"{beginning}:*"), members
    for folder, members in sorted(folders.items()):
        if len(members) > 1:
            inside = [key for other, keys in folders.items() if f"{other}/".startswith(f"{folder}/") for key in keys]
            yield ("Edit", f"{folder}{WHOLE_FOLDER}"), inside


_ALLOWS = {
    "Bash": "this text, alone or joined with other commands that run; files of the project decide what it does",
    "Read": "reading this file",
    "WebFetch": "every page and port of this host, and what the model writes into the address",
    "Edit": "changing this file",
}


def _make_rule(tool: str, content: str, found: Sequence[RecordedCall], purpose: str = "") -> SuggestedRule:
    allows = purpose or _ALLOWS.get(tool, "this tool with any input")
    if content.endswith(":*"):
        allows = f"{content.removesuffix(':*')} with any arguments; it only reads"
    elif content.endswith(WHOLE_FOLDER):
        allows = "changing and making every file below this folder, except where a rule denies it"
    sessions = tuple(dict.fromkeys(escape(call.session) for call in found))
    return SuggestedRule(_format_rule(tool, content), allows, len(found), sessions, _show_some(found))


def _deny_what_was_denied(
    known: Sequence[tuple[RecordedCall, Need]], ran: Sequence[RecordedCall], root: str
) -> Iterator[SuggestedRule]:
    """Yield a rule for each call that a person denied, if it is exact and no call like it ran."""
    groups: _Groups = {}
    for call, need in known:
        if call.outcome == "denied" and call.denied_by == "person" and (key := _find_exact(call, need, root)):
            groups.setdefault(key, []).append(call)
    index = CallIndex(ran, root)
    edits = Counter(to_path_content(get_call_path(call, root), root) for call in ran if TOOLS.get(call.tool) == "edit")
    for (tool, content), found in groups.items():
        if not index.may_match(tool, content):
            rule = _make_rule(tool, content, found, "a person denied it")
            yield replace(rule, refuses=edits[content] if tool == "Read" else 0)


def _find_exact(call: RecordedCall, need: Need, root: str) -> Rule | None:
    if need.kind == "rule":
        return need.tool, need.content
    path = get_call_path(call, root)
    if need.kind == "nothing" and call.tool == "Read" and path:
        return "Read", to_path_content(path, root)
    return None


def _deny_guarded(ran: Sequence[RecordedCall], root: str) -> Iterator[SuggestedRule]:
    for tool, paths, purpose in (
        ("Read", SECRET_PATHS, "these files may hold secrets: no reading, no changes, no `cat` and the like"),
        ("Edit", GUARDED_PATHS, "these files name programs that run later, or permissions"),
    ):
        for path in paths:
            refused = [call for call in ran if _denies_path(tool, path, call, root)]
            yield SuggestedRule(f"{tool}({path})", purpose, refuses=len(refused))


def _find_denying(deny: Iterable[Rule], call: RecordedCall, root: str) -> Rule | None:
    index = CallIndex([call], root)
    for tool, content in deny:
        is_pattern = content.startswith(("**/", "~/"))
        if _denies_path(tool, content, call, root) if is_pattern else index.may_match(tool, content):
            return tool, content
        if tool == "Read" and index.may_match("Edit", content):
            return tool, content
    return None


def _denies_path(tool: str, pattern: str, call: RecordedCall, root: str) -> bool:
    """Whether a pattern of the tables above matches the file of a call; a home directory may be anywhere."""
    if TOOLS.get(call.tool) not in (("edit", "read") if tool == "Read" else ("edit",)):
        return False
    path = get_call_path(call, root).casefold()
    name = pattern.partition("/")[2].removesuffix(WHOLE_FOLDER)
    return path.endswith(name[1:]) if name.startswith("*") else f"/{name}/" in f"{path}/"


def _explain(call: RecordedCall, need: Need, denied: CallIndex) -> str:
    """Return why a call keeps asking."""
    if call.outcome == "denied":
        return f"a {call.denied_by} denied it"
    if call.outcome == "failed":
        return "it never ran with success"
    if need.kind == "request":
        return need.reason
    if _was_reading_denied(need.tool, need.content, denied):
        return "reading the same file was denied"
    if denied.may_match(need.tool, need.content):
        return "the same, or a command that contains it, was also denied"
    return "a part of it was denied" if _is_denied((need.tool, need.content), denied) else need.reason


def _group(calls: Iterable[tuple[RecordedCall, str]]) -> tuple[OtherCalls, ...]:
    groups: _Groups = {}
    for call, reason in calls:
        groups.setdefault((call.tool, reason), []).append(call)
    return tuple(OtherCalls(escape(tool), why, len(found), _show_some(found)) for (tool, why), found in groups.items())


def _make_sandbox(rules: Iterable[SuggestedRule]) -> dict[str, Any]:
    """Return a sandbox in which a command still needs its rule, and writes below the working directory only."""
    hosts = sorted(content.removeprefix("domain:") for tool, content in map(_split_rule, rules) if tool == "WebFetch")
    return {
        "enabled": True,
        "auto_allow_bash_if_sandboxed": False,
        "allow_unsandboxed_commands": False,
        "network": {"allowed_domains": hosts},
        "filesystem": {"deny_read": [path.removesuffix(WHOLE_FOLDER) for path in SECRET_PATHS if path[0] == "~"]},
    }


def _to_wire(value: Any) -> Any:
    """Return sandbox options with the names of settings files."""
    if not isinstance(value, Mapping):
        return value
    named = cast("Mapping[str, Any]", value)
    return {re.sub("_(.)", lambda found: found[1].upper(), name): _to_wire(item) for name, item in named.items()}


def _format_rule(tool: str, content: str) -> str:
    return f"{tool}({content})" if content else tool


def _split_rule(rule: SuggestedRule) -> Rule:
    parsed = OptionRule(rule.rule, "allow", "")
    return parsed.tool, parsed.pattern


def _show_some(calls: Iterable[RecordedCall]) -> tuple[str, ...]:
    return tuple(islice(dict.fromkeys(map(show_call, calls)), MAX_EXAMPLES))


_SHOWN_FIELDS = ("command", "file_path", "notebook_path", "path", "url", "pattern")


def show_call(call: RecordedCall) -> str:
    """Return what a call is about in quotes, escaped and shortened: the command, the path, or the address."""
    about = next((call.input[name] for name in _SHOWN_FIELDS if isinstance(call.input.get(name), str)), call.tool)
    return f"'{escape(about)}'"


def escape(text: str) -> str:
    """Return text of others for people: bounded, with escapes for what cannot be seen or changes the direction."""
    shown = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
