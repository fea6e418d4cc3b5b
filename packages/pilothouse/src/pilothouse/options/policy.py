"""`Policy`: what runs without asking, what asks, and what is denied, computed from options before anything is started.

Pure. Owns how the CLI treats calls of its tools when no rule matches (tables, measured on CLI 2.1.330; tests compare
every cell that a scripted model can reach with the real CLI), the permission presets, the precedence of rules, mode and
callbacks, the notes, and the warnings about contradictory settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.errors import OptionsError
from pilothouse.options.permission_rules import (
    BEHAVIORS,
    FILE_TOOLS,
    MCP_PREFIX,
    PATHLESS_TOOLS,
    TOOL_ALIASES,
    PermissionBehavior,
    matches_mcp_tool,
    matches_wildcard,
    normalize_mcp_name,
    normalize_mcp_rule,
    split_rule,
)
from pilothouse.options.values import OptionValues
from pilothouse.similar_names import find_similar_name

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

CUSTOM_TOOL_SERVER = "tools"
"""The name of the server of `custom_tools`."""
SETTINGS_FILES = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
POLICY_FLAGS = ("allowedTools", "disallowedTools", "managed-settings", "permission-mode", "settings", "tools")
"""Flags in `extra_args` that would change the policy."""
DECIDING_EVENTS = ("PreToolUse", "PreSkillShellCommand", "PermissionRequest")
"""Hook events that decide about what runs."""
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
        """The name in the rule: a tool, a server, or many tools, as "*" and "mcp__*"; "" if there is none."""
        name = self._split()[0]
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
    def is_flag(self) -> bool:
        """Whether the rule reaches the CLI in a flag. The CLI splits flags at blanks and commas outside parentheses."""
        return self.option in ("allowed_tools", "disallowed_tools")

    @property
    def has_blank_in_name(self) -> bool:
        """Whether the CLI splits the name, as in "Bash (git:*)": then its first part is a rule."""
        separator = r"[\s,]" if self.is_flag else r"\s"
        return re.search(separator, self.text.strip().partition("(")[0]) is not None

    def _split(self) -> tuple[str, str | None]:
        found = split_rule(self.text.strip())
        if found is None or not self.has_blank_in_name:
            return found or ("", None)
        return (re.split(r"[\s,]", found[0])[0], None) if self.is_flag else ("", None)

    def covers(self, tool: str, server: str = "") -> bool:
        """Whether the rule matches every call of `tool`.

        Args:
            tool: a tool, such as "Bash"; all tools of a server, as "mcp__name", or one of them.
            server: the server of the tool, normalized; "" for the CLI's own tools.
        """
        if self.pattern:
            return False
        if server:
            _, found, name = tool.removeprefix(f"{MCP_PREFIX}{server}").partition("__")
            return matches_mcp_tool(self.tool, self.behavior, server, name if found else None)
        return tool == self.tool or (self.behavior != "allow" and matches_wildcard(self.tool, tool))

    def allows_edits(self, tool: str, kind: str) -> bool:
        """Whether a rule for edits below the working directory matches; it applies to every tool that edits."""
        return kind == "edit" and tool in FILE_TOOLS and self.tool == "Edit" and self.pattern in BELOW_CWD_PATTERNS


class PolicyRow(Struct, frozen=True):
    """The outcome of some calls.

    Args:
        tool: the tool, such as "Bash"; a server, as "mcp__name", spelled as in rules; or a rule, as "Bash(git:*)".
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
        self.servers = self._find_servers()
        self.has_other_servers = bool(
            options.plugins
            or isinstance(options.mcp_servers, str)
            or not (options.strict_mcp_config or options.bare or options.isolation)
        )
        self.given_rules = self._collect_rules()
        self.rules = tuple(rule for rule in self.given_rules if find_reason_to_ignore(rule) is None)
        self.mode, self.mode_option = self._find_mode()
        self.hooks = tuple(name for name in DECIDING_EVENTS if (options.hooks or {}).get(name))
        self.answered_by = self._find_answerer()
        tools = options.tools
        self.listed_tools = None if tools is None or isinstance(tools, str) else {TOOL_ALIASES.get(t, t) for t in tools}

    def _collect_rules(self) -> tuple[PolicyRule, ...]:
        """Return every rule, also those that the CLI ignores; deny rules first."""
        options, skills = self.options, self.options.skills
        found = [PolicyRule(text, "deny", "disallowed_tools") for text in options.disallowed_tools or ()]
        found += [PolicyRule(text, "allow", "allowed_tools") for text in options.allowed_tools or ()]
        names = ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills or ()]
        found += [PolicyRule(text, "allow", "skills") for text in names]
        if options.custom_tools and (options.can_use_tool, options.confirm, options.asks) == (None,) * 3:
            found.append(PolicyRule(f"{MCP_PREFIX}{CUSTOM_TOOL_SERVER}", "allow", "custom_tools"))
        for option in self.settings:
            for behavior in BEHAVIORS:
                texts = self._get_permission_setting(option, behavior)
                for text in cast("list[Any]", texts) if isinstance(texts, list | tuple) else ():
                    if isinstance(text, str):
                        found.append(PolicyRule(text, behavior, option))
        if self.settings["managed_settings"].get("allowManagedPermissionRulesOnly") is True:
            found = [rule for rule in found if rule.option in ("disallowed_tools", "managed_settings")]
        return tuple(sorted(found, key=lambda rule: BEHAVIORS.index(rule.behavior)))

    def _find_servers(self) -> dict[str, str]:
        """Return the MCP servers of the options: each name, and its normalized form. Files are not read."""
        given = self.options.mcp_servers
        names = [*given] if isinstance(given, dict) else []
        names += [CUSTOM_TOOL_SERVER] if self.options.custom_tools else []
        return {name: normalize_mcp_name(name) for name in names}

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

    def find_missing_reason(self, tool: str, server: str = "") -> tuple[str, str] | None:
        """Return the option that removes `tool`, and the reason; None if the model has the tool."""
        for rule in self.rules:
            if rule.behavior == "deny" and rule.covers(tool, server):
                return rule.option, rule.reason
        if server:
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

    def decide(self, tool: str, kind: str, server: str = "") -> Decision:
        """Decide a kind of call of an available tool; `server` is that of an MCP tool."""
        if self.options.restricted and kind in ("read elsewhere", "edit elsewhere"):
            return "denied", "restricted", "restricted"
        for rule in self.rules:
            if rule.behavior == "ask" and rule.covers(tool, server):
                return self.apply_answerer("asks"), rule.option, rule.reason
        mode, by_mode = MODE_OUTCOMES[self.mode][kind], f"permission mode {self.mode!r}"
        if mode != "runs" and kind not in NOT_CHANGED_BY_RULES[self.mode]:
            for rule in self.rules:
                if rule.behavior == "allow" and (rule.covers(tool, server) or rule.allows_edits(tool, kind)):
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
            if not (rule.pattern or self._matches_some_servers(rule)) or _suggest_tool(rule.tool):
                continue
            if rule.behavior == "allow" and rule.allows_edits(rule.tool, "edit"):
                continue
            outcome, option, why = outcomes[rule.behavior], rule.option, rule.option
            if rule.behavior == "deny" and not rule.pattern:
                outcome = "unavailable"
            missing = self.find_missing_reason(rule.tool) if rule.tool in TOOL_CALL_KINDS else None
            if missing is not None:
                outcome, (option, why) = "unavailable", missing
            elif rule.behavior != "deny" and any(r.behavior == "ask" and r.covers(rule.tool) for r in self.rules):
                outcome = "asks"
            elif rule.behavior == "allow" and self.mode == "plan" and rule.tool != "WebFetch":
                outcome, option, why = "judged", self.mode_option, "permission mode 'plan'"
            yield self._make_row(rule.text, "", (self.apply_answerer(outcome), option, why))

    def _matches_some_servers(self, rule: PolicyRule) -> bool:
        """Whether a rule has a wildcard for the server, as "mcp__*__get", and does not cover all servers."""
        has_wildcard = "*" in rule.tool.removeprefix(MCP_PREFIX).partition("__")[0] and rule.tool.startswith(MCP_PREFIX)
        return has_wildcard and not all(rule.covers(f"{MCP_PREFIX}{name}", name) for name in self.servers.values())

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
        for server in dict.fromkeys(self.servers.values()):
            whole = f"{MCP_PREFIX}{server}"
            # Rules about some of its tools have rows of their own.
            named = dict.fromkeys(
                r.tool
                for r in self.rules
                if r.tool.startswith(f"{whole}__") and r.tool != f"{whole}__" and not r.covers(whole, server)
            )
            for tool in (*named, whole):
                missing = self.find_missing_reason(tool, server)
                decision = self.decide(tool, "serve", server) if missing is None else ("unavailable", *missing)
                yield self._make_row(tool, "its other tools" if named and tool == whole else "", decision)


def list_setting_sources(options: OptionValues) -> Sequence[str]:
    """Return which settings files the CLI loads: "user", "project", "local"."""
    if options.setting_sources is not None:
        return options.setting_sources
    if options.bare or options.restricted or options.isolation:
        return ()
    return ("user", "project") if options.skills else tuple(SETTINGS_FILES)


def may_run_shell_lines(options: OptionValues) -> bool:
    """Whether skills or commands may be loaded whose text runs shell lines, and nothing in the options forbids it."""
    if options.disable_slash_commands or options.bare or options.safe_mode:
        return False
    if not list_setting_sources(options) and not options.plugins:
        return False
    view = PolicyInputs(options)
    is_off = any(settings.get("disableSkillShellExecution") is True for settings in view.settings.values())
    return not is_off and view.find_missing_reason("Bash") is None


def list_unseen_sources(options: OptionValues) -> Iterator[str]:
    """Name what may change the policy of `options` without being visible in them."""
    sources = list_setting_sources(options)
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
    if may_run_shell_lines(options):
        own = f"skills and commands of {', '.join([*sources, *(['plugins'] if options.plugins else [])])}"
        yield (
            f"shell lines in {own} run unasked: no permission mode, hook for PreToolUse or `can_use_tool` sees them; a "
            "hook for PreSkillShellCommand can refuse them (Claude Code 2.1.332), and "
            "settings={'disableSkillShellExecution': True} forbids them"
        )
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
        own = _get_agent_value(agent, "permission_mode", "permissionMode")
        if own in MODE_OUTCOMES and own != mode:
            yield f"the sub-agent {name!r} has the permission mode {own!r}"


def _get_agent_value(agent: Any, name: str, wire_name: str) -> Any:
    """Return a value of a sub-agent, which is an `AgentDefinition` or a mapping."""
    if isinstance(agent, Mapping):
        given = cast("Mapping[str, Any]", agent)
        return given.get(wire_name) or given.get(name)
    return getattr(agent, name, None)


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
            "PreToolUse sees every tool call"
        )
    for rule in view.rules:
        if rule.option == "allowed_tools" and (why := view.is_missing_in_layer(rule.tool, rule.option)):
            yield f"allowed_tools: {rule.text!r} has no effect, because the model has no {rule.tool}: {why}"
    for rule in view.given_rules:
        if fault := _find_spelling_fault(view, rule) or find_reason_to_ignore(rule) or _find_name_fault(view, rule):
            yield f"{rule.option}: {fault}"
    yield from _find_server_conflicts(view.servers)
    for name, agent in (view.options.agents or {}).items():
        for field, wire_name in (("disallowed_tools", "disallowedTools"), ("tools", "tools")):
            for text in _get_agent_value(agent, field, wire_name) or ():
                if fault := _find_spelling_fault(view, PolicyRule(str(text), "deny", "")):
                    yield f"agents[{name!r}].{field}: {fault}"
    for name in view.options.tools if isinstance(view.options.tools, list) else ():
        if meant := _suggest_tool(name):
            yield f"tools: there is no tool {name!r}; it is {meant!r}"
    for event, entries in (view.options.hooks or {}).items():
        if event in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"):
            for entry in cast("list[Any]", entries) if isinstance(entries, list | tuple) else [entries]:
                yield from _find_matcher_faults(view, event, getattr(entry, "matcher", None))


def _find_server_conflicts(servers: Mapping[str, str]) -> Iterator[str]:
    """Say which MCP servers have tools whose names may be the same, so that a rule for one is a rule for both."""
    names = list(servers.items())
    for at, (first, spelled) in enumerate(names):
        for second, other in names[at + 1 :]:
            if spelled == other:
                yield (
                    f"mcp_servers: {first!r} and {second!r} are both {spelled!r} in the names of tools, so a rule for "
                    "one is a rule for both; rename one"
                )
            elif other.startswith(f"{spelled}__") or spelled.startswith(f"{other}__"):
                shorter, longer = sorted((spelled, other), key=len)
                yield (
                    f"mcp_servers: rules that deny or ask for {MCP_PREFIX + shorter!r} also apply to the server "
                    f"{longer!r}, because '__' separates a server from its tool; rename one"
                )


def _may_be_asked(view: PolicyInputs) -> bool:
    o = view.options
    if view.mode in ("default", "acceptEdits") and not (o.tools or o.allowed_tools or o.disallowed_tools):
        return True  # the usual case; saves computing all rows
    if "PreToolUse" in view.hooks:
        return True
    return any(r.outcome == "judged" or (r.outcome == "asks" and r.tool not in NEEDS_PERSON) for r in view.rows)


def find_reason_to_ignore(rule: PolicyRule) -> str | None:
    """Return why the CLI (2.1.332) ignores a rule in every configuration, and what to write; None if it does not."""
    name, pattern, text = rule.tool, rule.pattern, rule.text
    is_mcp, (_, found, content) = name.startswith(MCP_PREFIX), text.partition("(")
    meant = None
    if not name:
        meant = "write 'Tool' or 'Tool(pattern)'"
    elif rule.behavior == "allow" and "*" in name.removeprefix(MCP_PREFIX).partition("__")[0]:
        meant = "name the tools, or servers as 'mcp__name'"
    elif is_mcp and (pattern or (found and not rule.is_flag)):
        meant = f"rules for MCP tools have no parentheses; {name!r} holds for all calls"
    elif found and content.strip() == ")" and not rule.is_flag:
        meant = f"{name!r} holds for all calls"
    elif pattern and name in PATHLESS_TOOLS:
        tool = PATHLESS_TOOLS[name]
        meant = f"'{tool}({pattern})' holds for all {'edits' if tool == 'Edit' else 'reading'}"
    elif name == "WebFetch" and pattern and not pattern.startswith("domain:"):
        meant = "write the host, as 'WebFetch(domain:example.com)'"
    elif name == "Bash" and pattern == ":*":
        meant = "'Bash' holds for all commands"
    return f"the CLI ignores {text!r}; {meant}" if meant else None


def _find_spelling_fault(view: PolicyInputs, rule: PolicyRule) -> str | None:
    """Return how to spell a rule for an MCP server or tool whose name it writes as it was given."""
    text = rule.text.strip()
    name, _ = split_rule(text) or (text, None)
    meant = _spell_mcp_name(name, view.servers) or normalize_mcp_rule(name)
    return None if meant == name else f"{text!r} does not match: {_MCP_SPELLING}; write {meant!r}"


_MCP_SPELLING = (
    "the CLI replaces every character but A-Z, a-z, 0-9, '_' and '-' in the names of MCP servers and tools by '_'"
)


def _spell_mcp_name(text: str, servers: Mapping[str, str]) -> str | None:
    """Return `text`, the name of a server or tool, as the CLI spells it; None if it names none of the servers."""
    for given, server in servers.items():
        for name in (given, server):
            rest = text.removeprefix(f"{MCP_PREFIX}{name}")
            if rest != text and (not rest or rest.startswith("__")):
                return normalize_mcp_rule(f"{MCP_PREFIX}{server}{rest}")
    return None


def _find_name_fault(view: PolicyInputs, rule: PolicyRule) -> str | None:
    """Return why a rule does not match what its name seems to say; None if it does."""
    if rule.has_blank_in_name:
        return f"the CLI reads {rule.text!r} as a rule for all of {rule.tool}; leave out the blank"
    if rule.tool.startswith(MCP_PREFIX):
        return _find_server_fault(view, rule)
    meant = _suggest_tool(rule.tool)
    return f"there is no tool {rule.tool!r}, so {rule.text!r} has no effect; it is {meant!r}" if meant else None


def _find_server_fault(view: PolicyInputs, rule: PolicyRule) -> str | None:
    if _spell_mcp_name(rule.tool, view.servers):
        return _find_underscore_fault(view, rule)
    if "*" in rule.tool or not view.servers:
        return None
    server, found, tool = rule.tool.removeprefix(MCP_PREFIX).partition("__")
    known = {name.lower(): name for name in view.servers.values()}
    fault = f"{rule.text!r} names no server of `mcp_servers`"
    near = find_similar_name(normalize_mcp_name(server).lower(), known, 0.75)
    if near is not None:
        return f"{fault}; did you mean {MCP_PREFIX + known[near] + found + tool!r}?"
    if view.has_other_servers or view.get_origin(rule.option) != view.get_origin("mcp_servers"):
        return None  # the server may come from elsewhere, or the rule may be for other configurations as well
    return f"{fault}: {', '.join(MCP_PREFIX + name for name in known.values())}"


def _find_underscore_fault(view: PolicyInputs, rule: PolicyRule) -> str | None:
    """Return why a rule with the name of a server does not apply to it."""
    server, servers = rule.tool.removeprefix(MCP_PREFIX), view.servers.values()
    if server not in servers:
        is_bare = rule.tool.endswith("__")
        return f"{rule.text!r} matches nothing; name a tool, or the server as {rule.tool[:-2]!r}" if is_bare else None
    if rule.covers(rule.tool, server):
        return None
    wildcard = replace(rule, text=f"{rule.tool}__*")
    meant = wildcard.text if wildcard.covers(rule.tool, server) else f"{rule.tool}__NAME for each tool"
    return f"the CLI reads {rule.text!r} as a tool of the server {server.partition('__')[0]!r}; write {meant!r}"


def _find_matcher_faults(view: PolicyInputs, event: str, matcher: Any) -> Iterator[str]:
    if not isinstance(matcher, str):
        return
    title = f"hooks[{event!r}]: the matcher {matcher!r}"
    # The CLI reads a matcher of these characters as a list of names, anything else as a regular expression.
    if not re.fullmatch(r"[A-Za-z0-9_|, -]+", matcher):
        for given, server in view.servers.items():
            if f"{MCP_PREFIX}{given}" in matcher and not _finds(given, server):
                yield f"{title} does not match {given!r}: {_MCP_SPELLING}; write {MCP_PREFIX + server!r}"
        return
    names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
    faults: list[str] = []
    for name in names:
        if name.startswith(MCP_PREFIX):
            meant = _spell_mcp_name(name, view.servers) or normalize_mcp_rule(name)
            if "__" not in meant.removeprefix(MCP_PREFIX):
                yield f"{title} compares {name!r} with whole names; '{meant}__.*' matches the tools of this server"
            elif meant != name:
                yield f"{title} does not match {name!r}: {_MCP_SPELLING}; write {meant!r}"
        elif meant := _suggest_tool(name):
            faults.append(f"there is no tool {name!r}, it is {meant!r}")
        elif why := view.is_missing_in_layer(TOOL_ALIASES.get(name, name), "hooks"):
            faults.append(f"the model has no {name}: {why}")
    if names and len(faults) == len(names):
        yield f"{title} matches nothing: {'; '.join(faults)}"


def _finds(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


_TOOLS_BY_LOWER_NAME = {name.lower(): name for name in (*TOOL_CALL_KINDS, *TOOL_ALIASES)}


def _suggest_tool(name: str) -> str | None:
    """Return the tool whose name is similar; None for a known name or if none is similar."""
    if name in TOOL_CALL_KINDS or name in TOOL_ALIASES or name.startswith(MCP_PREFIX):
        return None
    near = find_similar_name(name.lower(), _TOOLS_BY_LOWER_NAME, 0.85)
    return _TOOLS_BY_LOWER_NAME[near] if near is not None else None


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
        """Return the rows for `tool`, or those for its server if it has none.

        Args:
            tool: its name; that of a tool of an MCP server, or of a server, also with the name of the server as given.
        """
        names = {TOOL_ALIASES.get(tool, tool)}
        if tool.startswith(MCP_PREFIX):  # with the name of the server as it was given, too
            names.add(MCP_PREFIX + normalize_mcp_name(tool.removeprefix(MCP_PREFIX)))
        tools = {row: PolicyRule(row.tool, "allow", "").tool for row in self.rows}
        found = tuple(row for row in self.rows if tools[row] in names)
        if found or not tool.startswith(MCP_PREFIX):
            return found
        by_wildcard = (row for row in self.rows if any(matches_wildcard(tools[row], name) for name in names))
        by_server = (row for row in self.rows if any(name.startswith(f"{tools[row]}__") for name in names))
        return tuple(by_wildcard) or tuple(by_server)

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


PresetName: TypeAlias = Literal["read_only", "edit", "full", "untrusted_repository"]

PRESETS: dict[str, Settings] = {
    "read_only": {"tools": ["Read", "Glob", "Grep"], "allowed_tools": [], "permission_mode": "default"},
    "edit": {
        "tools": ["Read", "Glob", "Grep", "Edit", "Write", "NotebookEdit", "Bash"],
        "allowed_tools": ["Edit(**)"],
        "permission_mode": "default",
    },
    "full": {"tools": "default", "allowed_tools": [], "permission_mode": "bypassPermissions"},
    "untrusted_repository": {
        "setting_sources": ["user"],
        "strict_mcp_config": True,
        "permission_mode": "default",
        # In `managed_settings`, `settings` of the caller add to them and do not replace them. Without the rule, the CLI
        # runs `git status` unasked, and git runs programs that the configuration of the repository names.
        "managed_settings": {"disableSkillShellExecution": True, "permissions": {"ask": ["Bash(git:*)"]}},
    },
}
"""The settings of each preset."""


def get_preset(name: str) -> Settings:
    """Return the settings of a preset. Raises OptionsError if there is no such preset."""
    settings = PRESETS.get(name)
    if settings is None:
        near = find_similar_name(str(name), PRESETS, 0.5)
        hint = f"; did you mean {near!r}?" if near else ""
        raise OptionsError(f"there is no preset {name!r}{hint} ({', '.join(PRESETS)})")
    return settings
