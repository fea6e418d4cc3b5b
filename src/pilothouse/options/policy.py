"""`Policy`: what runs without asking, what asks, and what is denied.

Computed from options before anything is started. Pure. Owns the permission presets, the rules, the precedence of
rules, mode and callbacks, the notes, and the warnings about contradictory settings.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import OptionsError
from pilothouse.options import cli_permissions as facts
from pilothouse.options.cli_permissions import MODE_OUTCOMES, TOOL_ALIASES
from pilothouse.options.cli_permissions import Outcome as Outcome
from pilothouse.options.explanation import Explanation
from pilothouse.options.permission_rules import BEHAVIORS, PermissionBehavior, split_rule
from pilothouse.options.values import OptionValues

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings


CUSTOM_TOOL_SERVER = "mcp__tools"
"""The name in rules for the server of `custom_tools`."""


_FLAG_OPTIONS = ("allowed_tools", "disallowed_tools")


class PolicyRule(Struct, frozen=True):
    """One rule, such as "Bash(git:*)".

    Args:
        text: the rule as written.
        behavior: what it does with a matching call.
        option: the option that holds it.
    """

    text: str
    behavior: PermissionBehavior
    option: str

    @property
    def tool(self) -> str:
        """The tool of the rule; "*" and "mcp__*" mean many tools, "" means that the CLI ignores the rule."""
        name = self._split()[0]
        if name.startswith("mcp__") and name != "mcp__*":
            name = name.removesuffix("__*")
        return TOOL_ALIASES.get(name, name)

    @property
    def pattern(self) -> str:
        """The condition on the input; "" if the rule matches the whole tool."""
        return self._split()[1] or ""

    @property
    def has_blank_in_name(self) -> bool:
        """Whether it is written as "Bash (git:*)". The CLI splits its flags there, and the first part is a rule."""
        return re.search(r"\s", self.text.strip().partition("(")[0]) is not None

    def _split(self) -> tuple[str, str | None]:
        found = split_rule(self.text.strip())
        if found is None:
            return "", None
        if not self.has_blank_in_name:
            return found
        return (found[0].split()[0], None) if self.option in _FLAG_OPTIONS else ("", None)

    def covers(self, tool: str) -> bool:
        """Whether the rule matches every call of `tool`, which may also be a server, as "mcp__name"."""
        if self.pattern:
            return False
        if self.behavior == "deny" and (self.tool == "*" or (self.tool == "mcp__*" and tool.startswith("mcp__"))):
            return True
        return tool == self.tool or (self.tool.startswith("mcp__") and tool.startswith(f"{self.tool}__"))


def collect_rules(options: OptionValues) -> tuple[PolicyRule, ...]:
    """Return every rule in `options`, deny rules first."""
    found = [*_list_option_rules(options), *_list_settings_rules(options)]
    if get_managed_settings(options).get("allowManagedPermissionRulesOnly") is True:
        found = [rule for rule in found if rule.option in ("disallowed_tools", "managed_settings")]
    return tuple(sorted(found, key=lambda rule: BEHAVIORS.index(rule.behavior)))


def get_permission_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of settings about permissions."""
    part = settings.get("permissions")
    return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}


def read_flag_settings(options: OptionValues) -> Mapping[str, Any]:
    """Return the value of `settings`; an empty mapping if it is a file."""
    given: Any = options.settings
    if isinstance(given, str):
        given = msgspec.json.decode(given.encode()) if given.lstrip().startswith("{") else None
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def get_managed_settings(options: OptionValues) -> Mapping[str, Any]:
    """Return the value of `managed_settings`."""
    return options.managed_settings or {}


def _list_option_rules(options: OptionValues) -> Iterator[PolicyRule]:
    for text in options.disallowed_tools or ():
        yield PolicyRule(text, "deny", "disallowed_tools")
    for text in options.allowed_tools or ():
        yield PolicyRule(text, "allow", "allowed_tools")
    skills = options.skills
    for text in ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills or ()]:
        yield PolicyRule(text, "allow", "skills")
    if options.custom_tools and options.can_use_tool is None and options.confirm is None:
        yield PolicyRule(CUSTOM_TOOL_SERVER, "allow", "custom_tools")


def _list_settings_rules(options: OptionValues) -> Iterator[PolicyRule]:
    for option, settings in (
        ("managed_settings", get_managed_settings(options)),
        ("settings", read_flag_settings(options)),
    ):
        part = get_permission_settings(settings)
        for behavior in BEHAVIORS:
            texts = part.get(behavior)
            for text in cast("list[Any]", texts) if isinstance(texts, list | tuple) else ():
                if isinstance(text, str):
                    yield PolicyRule(text, behavior, option)


SETTINGS_FILES = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
POLICY_FLAGS = ("allowedTools", "disallowedTools", "managed-settings", "permission-mode", "settings", "tools")
"""Flags in `extra_args` that would change the policy."""


def list_unseen_sources(options: OptionValues) -> Iterator[str]:
    """Name what may change the policy of `options` without being visible in them."""
    sources = options.setting_sources
    if sources is None:
        sources = (
            []
            if options.bare or options.restricted or options.isolation
            else ["user", "project"]
            if options.skills
            else [*SETTINGS_FILES]
        )
    if sources:
        mode = "" if options.permission_mode else ", and a permission mode"
        files = ", ".join(SETTINGS_FILES[name] for name in sources)
        yield f"settings files may add rules and hooks{mode}: {files}; setting_sources=[] loads none"
    if isinstance(options.settings, str) and not options.settings.lstrip().startswith("{"):
        yield f"the settings in {options.settings} may add rules, hooks and a permission mode"
    yield "managed settings of this machine may deny, ask, add hooks, and forbid a permission mode"
    if isinstance(options.mcp_servers, str):
        yield "the MCP servers in the file of `mcp_servers`: their tools count as those of other servers"
    if not (options.strict_mcp_config or options.bare or options.isolation):
        yield (
            "MCP servers from .mcp.json, plugins and the CLI's own configuration; strict_mcp_config=True excludes them"
        )
    if options.plugins:
        yield "hooks, tools and agents of plugins"
    for flag in POLICY_FLAGS:
        if flag in (options.extra_args or {}):
            yield f"extra_args: --{flag} may change everything"


def make_notes(
    options: OptionValues, rules: Sequence[PolicyRule], mode: str, *, has_no_answerer: bool
) -> Iterator[str]:
    """Return notes about what is easily misread in `options`."""
    if options.allowed_tools and options.tools is None and mode != "bypassPermissions":
        yield (
            "allowed_tools removes no tool: it lists the calls that run without a request; the model still has "
            "the others, unless tools=[…] omits them"
        )
    if mode == "bypassPermissions":
        yield "as root, the CLI starts in 'bypassPermissions' only if IS_SANDBOX=1 declares a sandbox"
        if any(rule.behavior == "deny" and rule.pattern and rule.tool == "Bash" for rule in rules):
            yield "a deny pattern for commands does not stop the same effect in another spelling; a sandbox does"
    if options.transport is not None:
        yield (
            "these rows describe Claude Code; a different `transport` may decide differently: the native engine "
            "requests permission for every command that no rule allows"
        )
    if mode == "plan" and has_no_answerer and options.on_plan is None:
        yield "no function can approve a plan: the model answers with one, and cannot leave plan mode"
    if options.allow_dangerously_skip_permissions and mode != "bypassPermissions":
        yield "a running session may change to 'bypassPermissions'"
    for name, agent in (options.agents or {}).items():
        own = _get_agent_mode(agent)
        if own in MODE_OUTCOMES and own != mode:
            yield f"the sub-agent {name!r} has the permission mode {own!r}"


def _get_agent_mode(agent: Any) -> Any:
    if not isinstance(agent, dict):
        return getattr(agent, "permission_mode", None)
    own = cast("dict[str, Any]", agent)
    return own.get("permissionMode") or own.get("permission_mode")


_NAME_LIST = re.compile(r"[A-Za-z0-9_|, -]+")
"""The CLI reads a matcher of these characters as a list of names."""
_TOOLS_BY_LOWER_NAME = {name.lower(): name for name in (*facts.TOOL_CALL_KINDS, *facts.TOOL_ALIASES)}
_KNOWN_TOOLS = frozenset(_TOOLS_BY_LOWER_NAME.values())


class PolicyWarning(UserWarning):
    """Contradictory permission settings. `warnings.simplefilter("ignore", PolicyWarning)` silences it."""


def find_conflicts(view: PolicyInputs) -> Iterator[str]:
    """Describe each contradiction in a sentence or two."""
    for find in _CONFLICT_FINDERS:
        yield from find(view)


def _allow_list_under_bypass(view: PolicyInputs) -> Iterator[str]:
    if view.mode == "bypassPermissions" and view.options.allowed_tools:
        yield (
            "allowed_tools has no effect in permission mode 'bypassPermissions', where everything runs; to "
            "remove tools, use tools=[…] or disallowed_tools=[…]"
        )


def _callback_never_called(view: PolicyInputs) -> Iterator[str]:
    asked = view.answered_by
    if asked not in ("can_use_tool", "confirm"):
        return
    o = view.options
    if view.mode in ("default", "acceptEdits") and not (o.tools or o.allowed_tools or o.disallowed_tools):
        return  # the usual case; saves computing all rows
    if any(row.outcome == "asks" and row.tool not in facts.NEEDS_PERSON for row in view.rows):
        return
    if any(row.outcome == "judged" for row in view.rows) or "PreToolUse" in view.hooks:
        return  # the callback may still be called
    why = f"permission mode {view.mode!r}" if view.mode in ("bypassPermissions", "dontAsk") else "the rules and `tools`"
    yield (
        f"{asked} is never called for the tools that are known here: {why} decide before it; a hook for PreToolUse "
        "sees every call"
    )


def _rule_for_missing_tool(view: PolicyInputs) -> Iterator[str]:
    for rule in view.rules:
        if rule.option != "allowed_tools" or rule.tool not in facts.TOOL_CALL_KINDS:
            continue
        missing = view.find_missing_reason(rule.tool)
        # A higher layer may narrow what a lower layer allows.
        if missing is not None and missing[0] and view.get_origin(missing[0]) == view.get_origin("allowed_tools"):
            yield f"allowed_tools: {rule.text!r} has no effect, because the model has no {rule.tool}: {missing[1]}"


def _ignored_rule(view: PolicyInputs) -> Iterator[str]:
    for rule in view.rules:
        if not rule.tool:
            yield f"{rule.option}: the CLI ignores {rule.text!r}; write 'Tool' or 'Tool(pattern)'"
        elif rule.has_blank_in_name:
            yield f"{rule.option}: the CLI reads {rule.text!r} as a rule for all of {rule.tool}; leave out the blank"
        elif rule.behavior == "allow" and rule.tool in ("*", "mcp__*"):
            yield f"{rule.option}: the CLI ignores {rule.text!r}; name the tools, or servers as 'mcp__name'"
        elif rule.tool == "Write" and rule.pattern:
            yield f"{rule.option}: the CLI ignores {rule.text!r}; 'Edit({rule.pattern})' holds for all edits"
        elif meant := _suggest_tool(rule.tool):
            yield f"{rule.option}: there is no tool {rule.tool!r}, so {rule.text!r} has no effect; it is {meant!r}"


def _unknown_tool(view: PolicyInputs) -> Iterator[str]:
    given = view.options.tools
    for name in given if isinstance(given, list) else ():
        if meant := _suggest_tool(name):
            yield f"tools: there is no tool {name!r}; it is {meant!r}"


def _hook_without_effect(view: PolicyInputs) -> Iterator[str]:
    for event, entries in (view.options.hooks or {}).items():
        if event not in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"):
            continue
        for entry in cast("list[Any]", entries) if isinstance(entries, list | tuple) else [entries]:
            matcher = getattr(entry, "matcher", None)
            if isinstance(matcher, str) and _NAME_LIST.fullmatch(matcher):
                yield from _matcher_without_effect(view, event, matcher)


def _matcher_without_effect(view: PolicyInputs, event: str, matcher: str) -> Iterator[str]:
    names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
    faults: list[str] = []
    for name in names:
        tool = facts.TOOL_ALIASES.get(name, name)
        missing = view.find_missing_reason(tool) if tool in facts.TOOL_CALL_KINDS else None
        if meant := _suggest_tool(name):
            faults.append(f"there is no tool {name!r}, it is {meant!r}")
        elif missing is not None and missing[0] and view.get_origin(missing[0]) == view.get_origin("hooks"):
            faults.append(f"the model has no {name}: {missing[1]}")
    if names and len(faults) == len(names):
        yield f"hooks[{event!r}]: the matcher {matcher!r} matches nothing: {'; '.join(faults)}"


def _suggest_tool(name: str) -> str | None:
    """Return the tool whose name is similar; None for a known name or if none is similar."""
    if name in _KNOWN_TOOLS or name.startswith("mcp__"):
        return None
    if known := _TOOLS_BY_LOWER_NAME.get(name.lower()):
        return known
    import difflib  # only needed for unknown names, which are rare

    close = difflib.get_close_matches(name.lower(), _TOOLS_BY_LOWER_NAME, n=1, cutoff=0.85)
    return _TOOLS_BY_LOWER_NAME[close[0]] if close else None


_CONFLICT_FINDERS: tuple[Callable[[PolicyInputs], Iterator[str]], ...] = (
    _allow_list_under_bypass,
    _callback_never_called,
    _rule_for_missing_tool,
    _ignored_rule,
    _unknown_tool,
    _hook_without_effect,
)


NO_ANSWERER = "no function, and are denied"
OUTCOME_TITLES: dict[Outcome, str] = {
    "runs": "runs unasked",
    "asks": "asks",
    "judged": "is decided by a model of the CLI, each time",
    "denied": "is denied",
    "unavailable": "is not offered to the model",
}
_RULE_OUTCOMES: dict[str, Outcome] = {"deny": "denied", "ask": "asks", "allow": "runs"}


class PolicyRow(Struct, frozen=True):
    """The outcome of some calls.

    Args:
        tool: the tool, such as "Bash"; a server, as "mcp__name"; or a rule, as "Bash(git:*)".
        calls: which of its calls, in words; "" for all of them.
        outcome: "runs", "asks", "denied", "unavailable": the model has no such tool; or "judged": a model of the CLI
            decides each time.
        why: the reason for the outcome.
        option: the option that decides; "" if none was set.
        origin: where that option was set, as in `explain`.
    """

    tool: str
    calls: str
    outcome: Outcome
    why: str
    option: str = ""
    origin: str = ""


class Policy(Struct, frozen=True):
    """What runs unasked, what asks, what is denied. Printing it shows a table.

    Args:
        mode: the permission mode at the start.
        mode_origin: the option with that mode, and where it was set.
        rows: rules with a pattern first, then every tool; of several rows that match a call, the first one counts.
        answered_by: what decides when a call asks.
        hooks: the events whose hooks may decide before or instead of the rows.
        unseen: what may change the policy and is not visible in the options.
        notes: what is easily misread.
        warnings: contradictory settings; `PolicyWarning`s when an agent or query is created.
    """

    mode: str
    mode_origin: str
    rows: tuple[PolicyRow, ...]
    answered_by: str
    hooks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def rows_for(self, tool: str) -> tuple[PolicyRow, ...]:
        """Return the rows for `tool`, or those for its server if it has none."""
        name = facts.TOOL_ALIASES.get(tool, tool)
        found = tuple(row for row in self.rows if _get_row_tool(row) == name)
        if found or not name.startswith("mcp__"):
            return found
        return tuple(row for row in self.rows if name.startswith(f"{_get_row_tool(row)}__"))

    def outcome(self, tool: str, calls: str = "") -> Outcome:
        """Return the outcome of the calls of `tool` that match no pattern.

        Args:
            tool: its name.
            calls: which calls, in the words of the row; only needed where their outcomes differ.

        Raises:
            KeyError: there is no such tool here, or outcomes differ and `calls` matches none of them.
        """
        rows = [row for row in self.rows_for(tool) if "(" not in row.tool]
        fits = [row for row in rows if not row.calls or calls in row.calls.split("; ")]
        if len(fits) != 1:
            raise KeyError(f"{tool!r}: say which calls, one of {[row.calls for row in rows]}")
        return fits[0].outcome

    def __str__(self) -> str:
        lines = [f"permission mode: {self.mode} ({self.mode_origin}): {facts.MODE_DESCRIPTIONS[self.mode]}"]
        lines += [f"permission requests go to {self.answered_by}", *_format_rows(self.rows)]
        for title, texts in (
            ("may decide before", tuple(f"hooks for {name}" for name in self.hooks)),
            ("not visible here", self.unseen),
            ("note", self.notes),
            ("warning", self.warnings),
        ):
            lines += ["", *(f"{title}: {text}" for text in texts)] if texts else []
        return "\n".join(lines)


class PolicyInputs:
    """The facts about `options` behind the rows and the warnings."""

    def __init__(self, options: OptionValues) -> None:
        self.options = options
        self.rules = collect_rules(options)
        self.mode, self.mode_option = _find_start_mode(options)
        self.hooks = tuple(name for name in ("PreToolUse", "PermissionRequest") if (options.hooks or {}).get(name))
        self.answered_by = _find_answerer(options)
        self.servers = _list_servers(options)
        given = options.tools
        self.listed_tools = (
            None if given is None or isinstance(given, str) else {facts.TOOL_ALIASES.get(t, t) for t in given}
        )

    def get_origin(self, option: str) -> str:
        """Return where an option was set."""
        return self._explanation[option].origin if option else ""

    @cached_property
    def _explanation(self) -> Explanation:
        return self.options.explain()

    @cached_property
    def rows(self) -> tuple[PolicyRow, ...]:
        """The rows of the policy."""
        return (*_make_pattern_rows(self), *_make_tool_rows(self))

    @property
    def has_answerer(self) -> bool:
        """Whether a callback, a tool or a hook can decide."""
        return self.answered_by != NO_ANSWERER or "PermissionRequest" in self.hooks

    def find_missing_reason(self, tool: str) -> tuple[str, str] | None:
        """Return the option that removes `tool`, and the reason; None if the model has the tool."""
        for rule in self.rules:
            if rule.behavior == "deny" and rule.covers(tool):
                return rule.option, f"{rule.option}: {rule.text}"
        if tool.startswith("mcp__"):
            return None
        reasons = (
            (
                self.options.tool_bridge == "xml" and self.options.custom_tools,
                "tool_bridge",
                "tool_bridge 'xml' has none of the CLI's own tools",
            ),
            (self.options.bare and tool not in facts.BARE_TOOLS, "bare", "bare has Bash, Edit and Read only"),
            (self.listed_tools is not None and tool not in self.listed_tools, "tools", "tools does not name it"),
            (
                self.listed_tools is None and self.options.restricted and tool in facts.HIDDEN_WHEN_RESTRICTED,
                "restricted",
                "restricted",
            ),
            (tool in facts.NEEDS_PERSON and not self._has_callback, "", "no function answers"),
            (
                tool in facts.NEEDS_BASH and self.listed_tools is None and self.find_missing_reason("Bash"),
                "",
                "it depends on Bash",
            ),
            (
                tool in facts.HIDDEN_BESIDE_BASH and self.listed_tools is None and not self.find_missing_reason("Bash"),
                "tools" if self.options.tools else "",
                "the CLI omits it beside Bash; tools=[…] can name it",
            ),
        )
        return next(((option, why) for holds, option, why in reasons if holds), None)

    def _is_restricted(self, tool: str) -> bool:
        return self.options.restricted and self.listed_tools is None and tool in facts.HIDDEN_WHEN_RESTRICTED

    @property
    def _has_callback(self) -> bool:
        o = self.options
        return any(f is not None for f in (o.can_use_tool, o.confirm, o.on_question, o.on_plan))

    def decide(self, tool: str, kind: str) -> tuple[Outcome, str, str]:
        """Decide a kind of call of an available tool; return the outcome, the option that decides, and the reason."""
        if self.options.restricted and kind in ("read elsewhere", "edit elsewhere"):
            return "denied", "restricted", "restricted"
        for rule in self.rules:
            if rule.covers(tool) and rule.behavior == "ask":
                return self.apply_answerer("asks"), rule.option, f"{rule.option}: {rule.text}"
        mode = facts.MODE_OUTCOMES[self.mode][kind]
        if mode != "runs" and kind not in facts.NOT_CHANGED_BY_RULES[self.mode]:
            for rule in self.rules:
                if rule.behavior == "allow" and (rule.covers(tool) or _allows_all_edits(rule, tool, kind)):
                    return "runs", rule.option, f"{rule.option}: {rule.text}"
        if kind in ("ask", "plan"):
            return self._decide_for_person(kind, mode)
        applied = self.apply_answerer(mode)
        suffix = "; no function answers" if (mode, applied) == ("asks", "denied") else ""
        return applied, self.mode_option, f"permission mode {self.mode!r}{suffix}"

    def _decide_for_person(self, kind: str, mode: Outcome) -> tuple[Outcome, str, str]:
        mine = "on_question" if kind == "ask" else "on_plan"
        asked = (mine, "can_use_tool", *(("confirm",) if kind == "plan" else ()))  # a yes does not answer a question
        answers = next((name for name in asked if getattr(self.options, name) is not None), None)
        if mode == "denied":
            return mode, self.mode_option, f"permission mode {self.mode!r}"
        return (mode, answers, f"{answers} answers") if answers else ("denied", "", "nobody answers")

    def apply_answerer(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, but "denied" instead of "asks" if nothing can decide or the mode never asks."""
        return "denied" if outcome == "asks" and (self.mode == "dontAsk" or not self.has_answerer) else outcome


def effective_policy(options: OptionValues) -> Policy:
    """Return what `options` let run, what asks, and what is denied.

    The policy describes the CLI with these options only; `unseen` names what else may matter.
    """
    view = PolicyInputs(options)
    return Policy(
        mode=view.mode,
        mode_origin=_describe_origin(view, view.mode_option),
        rows=view.rows,
        answered_by=view.answered_by,
        hooks=view.hooks,
        unseen=tuple(list_unseen_sources(options)),
        notes=tuple(make_notes(options, view.rules, view.mode, has_no_answerer=view.answered_by == NO_ANSWERER)),
        warnings=tuple(find_conflicts(view)),
    )


def find_policy_conflicts(options: OptionValues) -> tuple[str, ...]:
    """Return `effective_policy(options).warnings` without computing the rest."""
    return tuple(find_conflicts(PolicyInputs(options)))


def _make_pattern_rows(view: PolicyInputs) -> Iterator[PolicyRow]:
    for rule in view.rules:
        if not rule.pattern or (rule.behavior == "allow" and _allows_all_edits(rule, rule.tool, "edit")):
            continue
        outcome, option, why = _RULE_OUTCOMES[rule.behavior], rule.option, rule.option
        missing = view.find_missing_reason(rule.tool) if rule.tool in facts.TOOL_CALL_KINDS else None
        if missing is not None:
            outcome, (option, why) = "unavailable", missing
        elif rule.behavior != "deny" and any(r.covers(rule.tool) and r.behavior == "ask" for r in view.rules):
            outcome = "asks"
        elif rule.behavior == "allow" and view.mode == "plan" and rule.tool != "WebFetch":
            outcome, option, why = "judged", view.mode_option, "permission mode 'plan'"
        yield PolicyRow(rule.text, "", view.apply_answerer(outcome), why, option, view.get_origin(option))


def _make_tool_rows(view: PolicyInputs) -> Iterator[PolicyRow]:
    for tool, kinds in facts.TOOL_CALL_KINDS.items():
        if tool == "ExitPlanMode" and view.mode != "plan":
            continue  # the model is not in plan mode
        missing = view.find_missing_reason(tool)
        if missing is not None:
            yield PolicyRow(tool, "", "unavailable", missing[1], missing[0], view.get_origin(missing[0]))
            continue
        decided = [(view.decide(tool, kind), kind) for kind in kinds]
        if len({decision for decision, _ in decided}) == 1:
            decided = [(decided[0][0], "")]
        for (outcome, option, why), same in _group_decisions(decided):
            calls = "; ".join(facts.CALL_KINDS[kind] for kind in same if kind)
            yield PolicyRow(tool, calls, outcome, why, option, view.get_origin(option))
    for server in view.servers:
        yield from _make_server_rows(view, server)


def _group_decisions(decided: list[tuple[Any, str]]) -> Iterator[tuple[Any, list[str]]]:
    for decision, group in groupby(decided, key=lambda pair: pair[0]):
        yield decision, [kind for _, kind in group]


def _make_server_rows(view: PolicyInputs, server: str) -> Iterator[PolicyRow]:
    named = dict.fromkeys(r.tool for r in view.rules if r.tool.startswith(f"{server}__"))
    for tool in (*named, server):
        missing = view.find_missing_reason(tool)
        if missing is not None:
            outcome, (option, why) = "unavailable", missing
        else:
            outcome, option, why = view.decide(tool, "serve")
        calls = "its other tools" if named and tool == server else ""
        yield PolicyRow(tool, calls, outcome, why, option, view.get_origin(option))


def _allows_all_edits(rule: PolicyRule, tool: str, kind: str) -> bool:
    """Whether a rule for edits below the working directory matches; it applies to every tool that edits."""
    return (
        kind == "edit" and tool in facts.FILE_TOOLS and rule.tool == "Edit" and rule.pattern in facts.BELOW_CWD_PATTERNS
    )


def _find_start_mode(options: OptionValues) -> tuple[str, str]:
    """Return the permission mode at the start, and the option that sets it."""
    if "dangerously-skip-permissions" in (options.extra_args or {}):
        mode, option = "bypassPermissions", "extra_args"
    elif options.permission_mode is not None:
        mode, option = options.permission_mode, "permission_mode"
    else:
        mode, option = get_permission_settings(read_flag_settings(options)).get("defaultMode"), "settings"
    if mode == "manual":
        mode = "default"
    for source, settings in (
        ("managed_settings", get_managed_settings(options)),
        ("settings", read_flag_settings(options)),
    ):
        if (
            mode == "bypassPermissions"
            and get_permission_settings(settings).get("disableBypassPermissionsMode") == "disable"
        ):
            return "default", source
    return (mode, option) if mode in facts.MODE_OUTCOMES else ("default", "")


def _find_answerer(options: OptionValues) -> str:
    if options.permission_prompts == "none":
        return NO_ANSWERER
    for name in ("can_use_tool", "confirm"):
        if getattr(options, name) is not None:
            return name
    tool = options.permission_prompt_tool_name
    return NO_ANSWERER if tool in (None, "stdio") else f"the tool {tool}"


def _list_servers(options: OptionValues) -> tuple[str, ...]:
    given = options.mcp_servers
    names = [f"mcp__{name}" for name in given] if isinstance(given, dict) else []
    if options.custom_tools and CUSTOM_TOOL_SERVER not in names:
        names.append(CUSTOM_TOOL_SERVER)
    return tuple(names)


def _describe_origin(view: PolicyInputs, option: str) -> str:
    return f"{option}, {view.get_origin(option)}" if option else "default"


def _get_row_tool(row: PolicyRow) -> str:
    return PolicyRule(row.tool, "allow", "").tool


def _format_rows(rows: tuple[PolicyRow, ...]) -> Iterator[str]:
    """Format the rows by outcome; tools with the same reason share a line."""
    for outcome, title in OUTCOME_TITLES.items():
        same: dict[PolicyRow, list[str]] = {}
        for row in rows:
            if row.outcome == outcome:
                same.setdefault(replace(row, tool=""), []).append(row.tool)
        if same:
            yield ""
            yield f"{title}:"
        for row, tools in same.items():
            calls = f" ({row.calls})" if row.calls else ""
            origin = f", {row.origin}" if row.origin and row.option else ""
            yield f"  {', '.join(tools)}{calls}: {row.why}{origin}"


PresetName: TypeAlias = Literal["read_only", "edit", "full"]

PRESETS: dict[str, Settings] = {
    "read_only": {"tools": ["Read", "Glob", "Grep"], "allowed_tools": [], "permission_mode": "default"},
    "edit": {
        "tools": ["Read", "Glob", "Grep", "Edit", "Write", "NotebookEdit", "Bash"],
        "allowed_tools": ["Edit(**)"],
        "permission_mode": "default",
    },
    "full": {"tools": "default", "allowed_tools": [], "permission_mode": "bypassPermissions"},
}
"""The settings of each preset."""


def get_preset(name: str) -> Settings:
    """Return the settings of a preset.

    Raises:
        OptionsError: there is no such preset.
    """
    settings = PRESETS.get(name)
    if settings is None:
        close = difflib.get_close_matches(str(name), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return settings
