"""`Policy`: what runs without asking, what asks, and what is denied, computed from options before anything is started.

Pure. Owns how the CLI treats calls of its tools when no rule matches (tables, measured on CLI 2.1.330; tests compare
every cell that a scripted model can reach with the real CLI), the permission presets, the precedence of rules, mode and
callbacks, the notes, and the warnings about contradictory settings.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import OptionsError
from pilothouse.options.permission_rules import BEHAVIORS, FILE_TOOLS, TOOL_ALIASES, PermissionBehavior, split_rule
from pilothouse.options.values import OptionValues

if TYPE_CHECKING:
    from pilothouse.options.settings import Settings

# How the CLI treats calls

Outcome: TypeAlias = Literal["runs", "asks", "denied", "unavailable", "judged"]
"""What happens to a call. "judged": a model of the CLI decides each time; the call may run or be denied."""

CALL_KINDS: dict[str, str] = {
    "read": "in its directories",
    "read elsewhere": "elsewhere",
    "edit": "in its directories",
    "edit guarded": "in .git, .claude and the like",
    "edit elsewhere": "elsewhere",
    "look": "commands that only read",
    "tidy": "touch, mkdir, mv, rm and the like, in its directories",
    "run": "other commands",
    "reach": "",
    "serve": "",
    "plan": "",
    "ask": "",
    "own": "",
}
"""Every kind of call, and how it differs from the other kinds of the same tool."""

_READ_CALLS = ("read", "read elsewhere")
_EDIT_CALLS = ("edit", "edit guarded", "edit elsewhere")
_COMMAND_CALLS = ("look", "tidy", "run")

TOOL_CALL_KINDS: dict[str, tuple[str, ...]] = {
    "Read": _READ_CALLS,
    "Glob": _READ_CALLS,
    "Grep": _READ_CALLS,
    "Edit": _EDIT_CALLS,
    "Write": _EDIT_CALLS,
    "NotebookEdit": _EDIT_CALLS,
    "Bash": _COMMAND_CALLS,
    "Monitor": _COMMAND_CALLS,
    "WebFetch": ("reach",),
    "WebSearch": ("reach",),
    "Workflow": ("reach",),
    "Agent": ("own",),
    "AskUserQuestion": ("ask",),
    "ExitPlanMode": ("plan",),
    **dict.fromkeys(("EnterPlanMode", "Skill", "ToolSearch", "CronCreate", "CronDelete", "CronList"), ("own",)),
    **dict.fromkeys(("EnterWorktree", "ExitWorktree", "ListAgents", "ReportFindings", "ScheduleWakeup"), ("own",)),
    **dict.fromkeys(("SendMessage", "TaskStop"), ("own",)),
}
"""The tools of the CLI, and the kinds of calls that each makes."""

NEEDS_PERSON = frozenset({"AskUserQuestion", "EnterPlanMode", "ExitPlanMode"})
"""The model has these only if someone can respond to them."""
HIDDEN_BESIDE_BASH = frozenset({"Glob", "Grep"})
"""Not available beside Bash, unless `tools` names them."""
NEEDS_BASH = frozenset({"Monitor"})
"""Not available where a rule removes Bash."""
HIDDEN_WHEN_RESTRICTED = frozenset({"Bash", "CronCreate", "Monitor", "WebFetch", "Workflow"})
"""Not available under `restricted`, unless `tools` names them."""
BARE_TOOLS = frozenset({"Bash", "Edit", "Read"})
"""The only tools under `bare`."""

BELOW_CWD_PATTERNS = frozenset({"**", "./**", "/**"})
"""Paths that mean everything below the working directory, in a rule for Edit."""


def _make_outcomes(default: Outcome, **others: str) -> dict[str, Outcome]:
    """Return `default` for every kind of call except those in `others`: outcome to kinds, with "_" for a space."""
    found: dict[str, Outcome] = dict.fromkeys(CALL_KINDS, default)
    for outcome, kinds in others.items():
        found |= dict.fromkeys([kind.replace("_", " ") for kind in kinds.split()], cast("Outcome", outcome))
    return found


MODE_OUTCOMES: dict[str, dict[str, Outcome]] = {
    "default": _make_outcomes("asks", runs="read look own"),
    "acceptEdits": _make_outcomes("asks", runs="read edit look tidy own"),
    "bypassPermissions": _make_outcomes("runs", asks="ask plan"),
    "plan": _make_outcomes("judged", runs="read read_elsewhere look own", asks="edit edit_elsewhere serve ask plan"),
    "dontAsk": _make_outcomes("denied", runs="read look own"),
    "auto": _make_outcomes("judged", runs="read read_elsewhere edit look tidy own", asks="ask plan"),
}
"""For each permission mode, the outcome of each kind of call without a matching rule."""

MODE_DESCRIPTIONS: dict[str, str] = {
    "default": "reading runs; changes and network access need permission",
    "acceptEdits": "edits in its directories run, and commands such as rm and mv there; the rest as in 'default'",
    "bypassPermissions": "everything runs; only deny and ask rules stop a call",
    "plan": "it reads and plans; edits ask, and a model of the CLI judges commands, until a plan was approved",
    "dontAsk": "a call that needs permission is denied",
    "auto": "a model of the CLI decides what would need permission; the mode depends on the account",
}
"""What each permission mode means, in words."""

NOT_CHANGED_BY_RULES: dict[str, frozenset[str]] = {
    "default": frozenset({"edit guarded", "ask", "plan"}),
    "acceptEdits": frozenset({"edit guarded", "ask", "plan"}),
    "bypassPermissions": frozenset({"ask", "plan"}),
    "dontAsk": frozenset({"edit guarded", "ask", "plan"}),
    "plan": frozenset(CALL_KINDS) - {"reach", "read", "read elsewhere", "own"},
    "auto": frozenset({"edit guarded", "tidy", "run", "look", "ask", "plan"}),
}
"""By permission mode, the kinds of calls whose outcome a rule that allows the whole tool does not change."""


# What the options say

CUSTOM_TOOL_SERVER = "mcp__tools"
"""The name in rules for the server of `custom_tools`."""
SETTINGS_FILES = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
POLICY_FLAGS = ("allowedTools", "disallowedTools", "managed-settings", "permission-mode", "settings", "tools")
"""Flags in `extra_args` that would change the policy."""
NO_ANSWERER = "no function, and are denied"

Decision: TypeAlias = tuple[Outcome, str, str]
"""An outcome, the option that decides, and the reason."""


class PolicyRule(Struct, frozen=True):
    """One rule, such as "Bash(git:*)", and the option that holds it."""

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
    def reason(self) -> str:
        """The rule, and the option that holds it."""
        return f"{self.option}: {self.text}"

    @property
    def has_blank_in_name(self) -> bool:
        """Whether it is written as "Bash (git:*)". The CLI splits its flags there, and the first part is a rule."""
        return re.search(r"\s", self.text.strip().partition("(")[0]) is not None

    def _split(self) -> tuple[str, str | None]:
        found = split_rule(self.text.strip())
        if found is None or not self.has_blank_in_name:
            return found or ("", None)
        return (found[0].split()[0], None) if self.option in ("allowed_tools", "disallowed_tools") else ("", None)

    def covers(self, tool: str) -> bool:
        """Whether the rule matches every call of `tool`, which may also be a server, as "mcp__name"."""
        if self.pattern:
            return False
        if self.behavior == "deny" and (self.tool == "*" or (self.tool == "mcp__*" and tool.startswith("mcp__"))):
            return True
        return tool == self.tool or (self.tool.startswith("mcp__") and tool.startswith(f"{self.tool}__"))

    def allows_edits(self, tool: str, kind: str) -> bool:
        """Whether a rule for edits below the working directory matches; it applies to every tool that edits."""
        return kind == "edit" and tool in FILE_TOOLS and self.tool == "Edit" and self.pattern in BELOW_CWD_PATTERNS


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


class PolicyInputs:
    """The facts about `options` behind the rows and the warnings."""

    def __init__(self, options: OptionValues) -> None:
        self.options = options
        given: Any = options.settings
        if isinstance(given, str):  # JSON text; a file is not read
            given = msgspec.json.decode(given.encode()) if given.lstrip().startswith("{") else None
        self.settings: dict[str, Mapping[str, Any]] = {
            "managed_settings": options.managed_settings or {},
            "settings": cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {},
        }
        self.rules = self._collect_rules()
        self.mode, self.mode_option = self._find_mode()
        self.hooks = tuple(name for name in ("PreToolUse", "PermissionRequest") if (options.hooks or {}).get(name))
        self.answered_by = self._find_answerer()
        tools = options.tools
        self.listed_tools = None if tools is None or isinstance(tools, str) else {TOOL_ALIASES.get(t, t) for t in tools}

    def _collect_rules(self) -> tuple[PolicyRule, ...]:
        """Return every rule, deny rules first."""
        options, skills = self.options, self.options.skills
        found = [PolicyRule(text, "deny", "disallowed_tools") for text in options.disallowed_tools or ()]
        found += [PolicyRule(text, "allow", "allowed_tools") for text in options.allowed_tools or ()]
        names = ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills or ()]
        found += [PolicyRule(text, "allow", "skills") for text in names]
        if options.custom_tools and (options.can_use_tool, options.confirm, options.asks) == (None,) * 3:
            found.append(PolicyRule(CUSTOM_TOOL_SERVER, "allow", "custom_tools"))
        for option in self.settings:
            for behavior in BEHAVIORS:
                texts = self._get_permission_setting(option, behavior)
                for text in cast("list[Any]", texts) if isinstance(texts, list | tuple) else ():
                    if isinstance(text, str):
                        found.append(PolicyRule(text, behavior, option))
        if self.settings["managed_settings"].get("allowManagedPermissionRulesOnly") is True:
            found = [rule for rule in found if rule.option in ("disallowed_tools", "managed_settings")]
        return tuple(sorted(found, key=lambda rule: BEHAVIORS.index(rule.behavior)))

    def _get_permission_setting(self, option: str, name: str) -> Any:
        part = self.settings[option].get("permissions")
        return cast("Mapping[str, Any]", part).get(name) if isinstance(part, Mapping) else None

    def _find_mode(self) -> tuple[str, str]:
        """Return the permission mode at the start, and the option that sets it."""
        if "dangerously-skip-permissions" in (self.options.extra_args or {}):
            mode, option = "bypassPermissions", "extra_args"
        elif self.options.permission_mode is not None:
            mode, option = self.options.permission_mode, "permission_mode"
        else:
            mode, option = self._get_permission_setting("settings", "defaultMode"), "settings"
        if mode == "bypassPermissions":
            for source in self.settings:
                if self._get_permission_setting(source, "disableBypassPermissionsMode") == "disable":
                    return "default", source
        mode = "default" if mode == "manual" else mode
        return (mode, option) if mode in MODE_OUTCOMES else ("default", "")

    def _find_answerer(self) -> str:
        options = self.options
        if options.permission_prompts == "none":
            return NO_ANSWERER
        for name in ("can_use_tool", "confirm", "asks"):
            if getattr(options, name) is not None:
                return name
        tool = options.permission_prompt_tool_name
        return NO_ANSWERER if tool in (None, "stdio") else f"the tool {tool}"

    def get_origin(self, option: str) -> str:
        """Return where an option was set."""
        return self._explanation[option].origin if option else ""

    @cached_property
    def _explanation(self) -> Mapping[str, Any]:
        return self.options.explain()

    def find_missing_reason(self, tool: str) -> tuple[str, str] | None:
        """Return the option that removes `tool`, and the reason; None if the model has the tool."""
        for rule in self.rules:
            if rule.behavior == "deny" and rule.covers(tool):
                return rule.option, rule.reason
        if tool.startswith("mcp__"):
            return None
        o, listed = self.options, self.listed_tools
        if o.tool_bridge == "xml" and o.custom_tools:
            return "tool_bridge", "tool_bridge 'xml' has none of the CLI's own tools"
        if o.bare and tool not in BARE_TOOLS:
            return "bare", "bare has Bash, Edit and Read only"
        if listed is not None and tool not in listed:
            return "tools", "tools does not name it"
        if listed is None and o.restricted and tool in HIDDEN_WHEN_RESTRICTED:
            return "restricted", "restricted"
        if tool in NEEDS_PERSON and (o.can_use_tool, o.confirm, o.on_question, o.on_plan, o.asks) == (None,) * 5:
            return "", "no function answers"
        if tool in NEEDS_BASH and listed is None and self.find_missing_reason("Bash"):
            return "", "it depends on Bash"
        if tool in HIDDEN_BESIDE_BASH and listed is None and not self.find_missing_reason("Bash"):
            return "tools" if o.tools else "", "the CLI omits it beside Bash; tools=[…] can name it"
        return None

    def is_missing_in_layer(self, tool: str, option: str) -> str | None:
        """Return why the model lacks `tool`, if the layer that sets `option` says so; a higher layer may narrow it."""
        missing = self.find_missing_reason(tool) if tool in TOOL_CALL_KINDS else None
        is_same = missing is not None and missing[0] and self.get_origin(missing[0]) == self.get_origin(option)
        return missing[1] if missing is not None and is_same else None

    def decide(self, tool: str, kind: str) -> Decision:
        """Decide a kind of call of an available tool."""
        if self.options.restricted and kind in ("read elsewhere", "edit elsewhere"):
            return "denied", "restricted", "restricted"
        for rule in self.rules:
            if rule.behavior == "ask" and rule.covers(tool):
                return self.apply_answerer("asks"), rule.option, rule.reason
        mode, by_mode = MODE_OUTCOMES[self.mode][kind], f"permission mode {self.mode!r}"
        if mode != "runs" and kind not in NOT_CHANGED_BY_RULES[self.mode]:
            for rule in self.rules:
                if rule.behavior == "allow" and (rule.covers(tool) or rule.allows_edits(tool, kind)):
                    return "runs", rule.option, rule.reason
        if kind in ("ask", "plan") and mode != "denied":
            # A yes of `confirm` does not answer a question.
            asked = (
                ("on_question", "can_use_tool", "asks")
                if kind == "ask"
                else ("on_plan", "can_use_tool", "confirm", "asks")
            )
            answers = next((name for name in asked if getattr(self.options, name) is not None), None)
            return (mode, answers, f"{answers} answers") if answers else ("denied", "", "nobody answers")
        applied = mode if kind in ("ask", "plan") else self.apply_answerer(mode)
        suffix = "; no function answers" if (mode, applied) == ("asks", "denied") else ""
        return applied, self.mode_option, f"{by_mode}{suffix}"

    def apply_answerer(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, but "denied" instead of "asks" if nothing can decide or the mode never asks."""
        has_answerer = self.answered_by != NO_ANSWERER or "PermissionRequest" in self.hooks
        return "denied" if outcome == "asks" and (self.mode == "dontAsk" or not has_answerer) else outcome

    @cached_property
    def rows(self) -> tuple[PolicyRow, ...]:
        """The rows of the policy."""
        return (*self._make_pattern_rows(), *self._make_tool_rows(), *self._make_server_rows())

    def _make_row(self, tool: str, calls: str, decision: Decision) -> PolicyRow:
        outcome, option, why = decision
        return PolicyRow(tool, calls, outcome, why, option, self.get_origin(option))

    def _make_pattern_rows(self) -> Iterator[PolicyRow]:
        outcomes: dict[str, Outcome] = {"deny": "denied", "ask": "asks", "allow": "runs"}
        for rule in self.rules:
            if not rule.pattern or (rule.behavior == "allow" and rule.allows_edits(rule.tool, "edit")):
                continue
            outcome, option, why = outcomes[rule.behavior], rule.option, rule.option
            missing = self.find_missing_reason(rule.tool) if rule.tool in TOOL_CALL_KINDS else None
            if missing is not None:
                outcome, (option, why) = "unavailable", missing
            elif rule.behavior != "deny" and any(r.behavior == "ask" and r.covers(rule.tool) for r in self.rules):
                outcome = "asks"
            elif rule.behavior == "allow" and self.mode == "plan" and rule.tool != "WebFetch":
                outcome, option, why = "judged", self.mode_option, "permission mode 'plan'"
            yield self._make_row(rule.text, "", (self.apply_answerer(outcome), option, why))

    def _make_tool_rows(self) -> Iterator[PolicyRow]:
        for tool, kinds in TOOL_CALL_KINDS.items():
            if tool == "ExitPlanMode" and self.mode != "plan":
                continue  # the model is not in plan mode
            if (missing := self.find_missing_reason(tool)) is not None:
                yield self._make_row(tool, "", ("unavailable", *missing))
                continue
            groups = [(found, [*same]) for found, same in groupby(kinds, key=lambda kind: self.decide(tool, kind))]
            for decision, same in groups:
                calls = "" if len({found for found, _ in groups}) == 1 else "; ".join(CALL_KINDS[kind] for kind in same)
                yield self._make_row(tool, calls, decision)

    def _make_server_rows(self) -> Iterator[PolicyRow]:
        given = self.options.mcp_servers
        servers = [f"mcp__{name}" for name in given] if isinstance(given, dict) else []
        if self.options.custom_tools and CUSTOM_TOOL_SERVER not in servers:
            servers.append(CUSTOM_TOOL_SERVER)
        for server in servers:
            named = dict.fromkeys(r.tool for r in self.rules if r.tool.startswith(f"{server}__"))
            for tool in (*named, server):
                missing = self.find_missing_reason(tool)
                decision = self.decide(tool, "serve") if missing is None else ("unavailable", *missing)
                yield self._make_row(tool, "its other tools" if named and tool == server else "", decision)


def list_unseen_sources(options: OptionValues) -> Iterator[str]:
    """Name what may change the policy of `options` without being visible in them."""
    sources: Sequence[str] | None = options.setting_sources
    if sources is None:
        is_shut = options.bare or options.restricted or options.isolation
        sources = [] if is_shut else ["user", "project"] if options.skills else [*SETTINGS_FILES]
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
        own = "MCP servers from .mcp.json, plugins and the CLI's own configuration"
        yield f"{own}; strict_mcp_config=True excludes them"
    if options.plugins:
        yield "hooks, tools and agents of plugins"
    for flag in POLICY_FLAGS:
        if flag in (options.extra_args or {}):
            yield f"extra_args: --{flag} may change everything"


def make_notes(view: PolicyInputs) -> Iterator[str]:
    """Return notes about what is easily misread."""
    options, mode = view.options, view.mode
    if options.allowed_tools and options.tools is None and mode != "bypassPermissions":
        yield (
            "allowed_tools removes no tool: it lists the calls that run without a request; the model still has "
            "the others, unless tools=[…] omits them"
        )
    if mode == "bypassPermissions":
        yield "as root, the CLI starts in 'bypassPermissions' only if IS_SANDBOX=1 declares a sandbox"
        if any(rule.behavior == "deny" and rule.pattern and rule.tool == "Bash" for rule in view.rules):
            yield "a deny pattern for commands does not stop the same effect in another spelling; a sandbox does"
    if options.transport is not None:
        yield (
            "these rows describe Claude Code; a different `transport` may decide differently: the native engine "
            "requests permission for every command that no rule allows"
        )
    if mode == "plan" and view.answered_by == NO_ANSWERER and options.on_plan is None:
        yield "no function can approve a plan: the model answers with one, and cannot leave plan mode"
    if options.allow_dangerously_skip_permissions and mode != "bypassPermissions":
        yield "a running session may change to 'bypassPermissions'"
    for name, agent in (options.agents or {}).items():
        given = cast("dict[str, Any]", agent if isinstance(agent, dict) else {})
        own = (
            given.get("permissionMode")
            or given.get("permission_mode")
            or getattr(cast("Any", agent), "permission_mode", None)
        )
        if own in MODE_OUTCOMES and own != mode:
            yield f"the sub-agent {name!r} has the permission mode {own!r}"


# Contradictions


class PolicyWarning(UserWarning):
    """Contradictory permission settings. `warnings.simplefilter("ignore", PolicyWarning)` silences it."""


def find_policy_conflicts(options: OptionValues) -> tuple[str, ...]:
    """Return `effective_policy(options).warnings` without computing the rest."""
    return tuple(_find_conflicts(PolicyInputs(options)))


def _find_conflicts(view: PolicyInputs) -> Iterator[str]:
    if view.mode == "bypassPermissions" and view.options.allowed_tools:
        yield (
            "allowed_tools has no effect in permission mode 'bypassPermissions', where everything runs; to "
            "remove tools, use tools=[…] or disallowed_tools=[…]"
        )
    if view.answered_by in ("can_use_tool", "confirm", "asks") and not _may_be_asked(view):
        by_mode = view.mode in ("bypassPermissions", "dontAsk")
        yield (
            f"{view.answered_by} is never called for the tools that are known here: "
            f"{f'permission mode {view.mode!r}' if by_mode else 'the rules and `tools`'} decide before it; a hook for "
            "PreToolUse sees every call"
        )
    for rule in view.rules:
        if rule.option == "allowed_tools" and (why := view.is_missing_in_layer(rule.tool, rule.option)):
            yield f"allowed_tools: {rule.text!r} has no effect, because the model has no {rule.tool}: {why}"
    for rule in view.rules:
        if fault := _find_rule_fault(rule):
            yield f"{rule.option}: {fault}"
    for name in view.options.tools if isinstance(view.options.tools, list) else ():
        if meant := _suggest_tool(name):
            yield f"tools: there is no tool {name!r}; it is {meant!r}"
    for event, entries in (view.options.hooks or {}).items():
        if event in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"):
            for entry in cast("list[Any]", entries) if isinstance(entries, list | tuple) else [entries]:
                yield from _find_matcher_faults(view, event, getattr(entry, "matcher", None))


def _may_be_asked(view: PolicyInputs) -> bool:
    o = view.options
    if view.mode in ("default", "acceptEdits") and not (o.tools or o.allowed_tools or o.disallowed_tools):
        return True  # the usual case; saves computing all rows
    if "PreToolUse" in view.hooks:
        return True
    return any(r.outcome == "judged" or (r.outcome == "asks" and r.tool not in NEEDS_PERSON) for r in view.rows)


def _find_rule_fault(rule: PolicyRule) -> str | None:
    if not rule.tool:
        return f"the CLI ignores {rule.text!r}; write 'Tool' or 'Tool(pattern)'"
    if rule.has_blank_in_name:
        return f"the CLI reads {rule.text!r} as a rule for all of {rule.tool}; leave out the blank"
    if rule.behavior == "allow" and rule.tool in ("*", "mcp__*"):
        return f"the CLI ignores {rule.text!r}; name the tools, or servers as 'mcp__name'"
    if rule.tool == "Write" and rule.pattern:
        return f"the CLI ignores {rule.text!r}; 'Edit({rule.pattern})' holds for all edits"
    meant = _suggest_tool(rule.tool)
    return f"there is no tool {rule.tool!r}, so {rule.text!r} has no effect; it is {meant!r}" if meant else None


def _find_matcher_faults(view: PolicyInputs, event: str, matcher: Any) -> Iterator[str]:
    # The CLI reads a matcher of these characters as a list of names.
    if not isinstance(matcher, str) or not re.fullmatch(r"[A-Za-z0-9_|, -]+", matcher):
        return
    names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
    faults: list[str] = []
    for name in names:
        if meant := _suggest_tool(name):
            faults.append(f"there is no tool {name!r}, it is {meant!r}")
        elif why := view.is_missing_in_layer(TOOL_ALIASES.get(name, name), "hooks"):
            faults.append(f"the model has no {name}: {why}")
    if names and len(faults) == len(names):
        yield f"hooks[{event!r}]: the matcher {matcher!r} matches nothing: {'; '.join(faults)}"


_TOOLS_BY_LOWER_NAME = {name.lower(): name for name in (*TOOL_CALL_KINDS, *TOOL_ALIASES)}


def _suggest_tool(name: str) -> str | None:
    """Return the tool whose name is similar; None for a known name or if none is similar."""
    if name in TOOL_CALL_KINDS or name in TOOL_ALIASES or name.startswith("mcp__"):
        return None
    close = difflib.get_close_matches(name.lower(), _TOOLS_BY_LOWER_NAME, n=1, cutoff=0.85)
    return _TOOLS_BY_LOWER_NAME[close[0]] if close else None


# The policy

OUTCOME_TITLES: dict[Outcome, str] = {
    "runs": "runs unasked",
    "asks": "asks",
    "judged": "is decided by a model of the CLI, each time",
    "denied": "is denied",
    "unavailable": "is not offered to the model",
}


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
        name = TOOL_ALIASES.get(tool, tool)
        tools = {row: PolicyRule(row.tool, "allow", "").tool for row in self.rows}
        found = tuple(row for row in self.rows if tools[row] == name)
        if found or not name.startswith("mcp__"):
            return found
        return tuple(row for row in self.rows if name.startswith(f"{tools[row]}__"))

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
        lines = [f"permission mode: {self.mode} ({self.mode_origin}): {MODE_DESCRIPTIONS[self.mode]}"]
        lines += [f"permission requests go to {self.answered_by}", *self._format_rows()]
        for title, texts in (
            ("may decide before", tuple(f"hooks for {name}" for name in self.hooks)),
            ("not visible here", self.unseen),
            ("note", self.notes),
            ("warning", self.warnings),
        ):
            lines += ["", *(f"{title}: {text}" for text in texts)] if texts else []
        return "\n".join(lines)

    def _format_rows(self) -> Iterator[str]:
        """Format the rows by outcome; tools with the same reason share a line."""
        for outcome, title in OUTCOME_TITLES.items():
            same: dict[PolicyRow, list[str]] = {}
            for row in self.rows:
                if row.outcome == outcome:
                    same.setdefault(replace(row, tool=""), []).append(row.tool)
            if same:
                yield from ("", f"{title}:")
            for row, tools in same.items():
                calls = f" ({row.calls})" if row.calls else ""
                origin = f", {row.origin}" if row.origin and row.option else ""
                yield f"  {', '.join(tools)}{calls}: {row.why}{origin}"


def effective_policy(options: OptionValues) -> Policy:
    """Return what `options` let run, what asks, and what is denied.

    The policy describes the CLI with these options only; `unseen` names what else may matter.
    """
    view = PolicyInputs(options)
    mode_option = view.mode_option
    return Policy(
        mode=view.mode,
        mode_origin=f"{mode_option}, {view.get_origin(mode_option)}" if mode_option else "default",
        rows=view.rows,
        answered_by=view.answered_by,
        hooks=view.hooks,
        unseen=tuple(list_unseen_sources(options)),
        notes=tuple(make_notes(view)),
        warnings=tuple(_find_conflicts(view)),
    )


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
    """Return the settings of a preset. Raises OptionsError if there is no such preset."""
    settings = PRESETS.get(name)
    if settings is None:
        close = difflib.get_close_matches(str(name), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return settings
