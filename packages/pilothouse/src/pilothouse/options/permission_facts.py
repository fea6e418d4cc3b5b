"""What options say about permissions: rules, the permission mode, who decides, and which tools the model has.

Also which denials happened because nobody could be asked, and which options help. Pure. `conflicts` warns of what makes
no sense in the options, and `pilothouse_policy` reports what becomes of each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec
from msgspec import Struct

from pilothouse.hints import find_similar_name
from pilothouse.messages import PermissionDeniedMessage
from pilothouse.messages.core import PermissionMode
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options.permission_rules import (
    BEHAVIORS,
    MCP_PREFIX,
    PATHLESS_TOOLS,
    TOOL_ALIASES,
    PermissionBehavior,
    matches_mcp_tool,
    matches_wildcard,
    normalize_mcp_name,
    split_rule,
)

if TYPE_CHECKING:
    from pilothouse.options.options import Options


TOOLS: dict[str, str] = {
    **dict.fromkeys(("Read", "Glob", "Grep"), "read"),
    **dict.fromkeys(("Edit", "Write", "NotebookEdit"), "edit"),
    **dict.fromkeys(("Bash", "Monitor"), "command"),
    **dict.fromkeys(("WebFetch", "WebSearch", "Workflow"), "reach"),
    "Agent": "own",
    "AskUserQuestion": "ask",
    "ExitPlanMode": "plan",
    **dict.fromkeys(("EnterPlanMode", "Skill", "ToolSearch", "CronCreate", "CronDelete", "CronList"), "own"),
    **dict.fromkeys(("EnterWorktree", "ExitWorktree", "ListAgents", "ReportFindings", "ScheduleWakeup"), "own"),
    **dict.fromkeys(("SendMessage", "TaskStop"), "own"),
}
"""The tools of the CLI, and the group of each: the CLI treats the tools of a group alike."""

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

CUSTOM_TOOL_SERVER = "tools"
"""The name of the server of `custom_tools`."""
NO_ANSWERER = "no function, and are denied"


class OptionRule(Struct, frozen=True):
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


class PermissionFacts:
    """What options say about permissions: what the warnings are about, and what `pilothouse_policy` reports."""

    def __init__(self, options: Options) -> None:
        self.options = options
        given: Any = options.settings
        if isinstance(given, str):  # JSON text; a file is not read
            given = msgspec.json.decode(given.encode()) if given.lstrip().startswith("{") else None
        self.settings: dict[str, Mapping[str, Any]] = {
            "managed_settings": options.managed_settings or {},
            "settings": as_mapping(given),
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
        self.answered_by = self._find_answerer()
        tools = options.tools
        self.listed_tools = None if tools is None or isinstance(tools, str) else {TOOL_ALIASES.get(t, t) for t in tools}

    def _collect_rules(self) -> tuple[OptionRule, ...]:
        """Return every rule, also those that the CLI ignores; deny rules first."""
        options, skills = self.options, self.options.skills
        found = [OptionRule(text, "deny", "disallowed_tools") for text in options.disallowed_tools or ()]
        found += [OptionRule(text, "allow", "allowed_tools") for text in options.allowed_tools or ()]
        names = ["Skill"] if skills == "all" else [f"Skill({name})" for name in skills or ()]
        found += [OptionRule(text, "allow", "skills") for text in names]
        if options.custom_tools and (options.can_use_tool, options.confirm, options.asks) == (None,) * 3:
            found.append(OptionRule(f"{MCP_PREFIX}{CUSTOM_TOOL_SERVER}", "allow", "custom_tools"))
        for option in self.settings:
            for behavior in BEHAVIORS:
                texts = self._get_permission_setting(option, behavior)
                for text in cast("list[Any]", texts) if isinstance(texts, list | tuple) else ():
                    if isinstance(text, str):
                        found.append(OptionRule(text, behavior, option))
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
        return as_mapping(self.settings[option].get("permissions")).get(name)

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
        return (mode, option) if mode in get_args(PermissionMode) else ("default", "")

    def _find_answerer(self) -> str:
        options = self.options
        if options.permission_prompts == "none":
            return NO_ANSWERER
        for name in ("can_use_tool", "confirm", "asks"):
            if getattr(options, name) is not None:
                return name
        tool = options.permission_prompt_tool_name
        return NO_ANSWERER if tool in (None, "stdio") else f"the tool {tool}"

    @property
    def has_answerer(self) -> bool:
        """Whether a function or a tool answers what the CLI asks."""
        return self.answered_by != NO_ANSWERER

    @property
    def setting_sources(self) -> Sequence[str]:
        """Which settings files the CLI loads: "user", "project", "local"."""
        options = self.options
        if options.setting_sources is not None:
            return options.setting_sources
        if options.bare or options.restricted or options.isolation:
            return ()
        return ("user", "project") if options.skills else ("user", "project", "local")

    @property
    def may_run_shell_lines(self) -> bool:
        """Whether skills or commands may be loaded whose text runs shell lines that nothing in the options forbids."""
        options = self.options
        if options.disable_slash_commands or options.bare or options.safe_mode:
            return False
        if not self.setting_sources and not options.plugins:
            return False
        is_off = any(settings.get("disableSkillShellExecution") is True for settings in self.settings.values())
        return not is_off and self.find_missing_reason("Bash") is None

    @property
    def agent_modes(self) -> dict[str, Any]:
        """The permission modes of the sub-agents that name one, by the name of the agent."""
        modes = {
            name: get_agent_value(agent, "permission_mode", "permissionMode")
            for name, agent in (self.options.agents or {}).items()
        }
        return {name: mode for name, mode in modes.items() if mode is not None}

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
        options, listed = self.options, self.listed_tools
        if options.tool_bridge == "xml" and options.custom_tools:
            return "tool_bridge", "tool_bridge 'xml' has none of the CLI's own tools"
        if options.bare and tool not in BARE_TOOLS:
            return "bare", "bare has Bash, Edit and Read only"
        if listed is not None and tool not in listed:
            return "tools", "tools does not name it"
        if listed is None and options.restricted and tool in HIDDEN_WHEN_RESTRICTED:
            return "restricted", "restricted"
        if (
            tool in NEEDS_PERSON
            and (options.can_use_tool, options.confirm, options.on_question, options.on_plan, options.asks)
            == (None,) * 5
        ):
            return "", "no function answers"
        if tool in NEEDS_BASH and listed is None and self.find_missing_reason("Bash"):
            return "", "it depends on Bash"
        if tool in HIDDEN_BESIDE_BASH and listed is None and not self.find_missing_reason("Bash"):
            return "tools" if options.tools else "", "the CLI omits it beside Bash; tools=[…] can name it"
        return None

    def find_missing_reason_in_layer(self, tool: str, option: str) -> str | None:
        """Return why the model lacks `tool`, if the layer that sets `option` says so; a higher layer may narrow it."""
        missing = self.find_missing_reason(tool) if tool in TOOLS else None
        is_same = missing is not None and missing[0] and self.get_origin(missing[0]) == self.get_origin(option)
        return missing[1] if missing is not None and is_same else None

    def is_partial(self, rule: OptionRule) -> bool:
        """Whether a rule is about some calls only, and not about a tool or a server as a whole."""
        return bool(rule.pattern or self._matches_some_servers(rule)) and suggest_tool(rule.tool) is None

    def _matches_some_servers(self, rule: OptionRule) -> bool:
        """Whether a rule has a wildcard for the server, as "mcp__*__get", and does not cover all servers."""
        has_wildcard = "*" in rule.tool.removeprefix(MCP_PREFIX).partition("__")[0] and rule.tool.startswith(MCP_PREFIX)
        return has_wildcard and not all(rule.covers(f"{MCP_PREFIX}{name}", name) for name in self.servers.values())

    def list_server_tools(self, server: str) -> tuple[str, ...]:
        """Return the tools of a server that have rules of their own, and at the end all its tools, as "mcp__name"."""
        whole = f"{MCP_PREFIX}{server}"
        named = dict.fromkeys(
            rule.tool
            for rule in self.rules
            if rule.tool.startswith(f"{whole}__") and rule.tool != f"{whole}__" and not rule.covers(whole, server)
        )
        return *named, whole


def get_agent_value(agent: Any, name: str, wire_name: str) -> Any:
    """Return a value of a sub-agent, which is an `AgentDefinition` or a mapping."""
    if isinstance(agent, Mapping):
        given = cast("Mapping[str, Any]", agent)
        return given.get(wire_name) or given.get(name)
    return getattr(agent, name, None)


def find_reason_to_ignore(rule: OptionRule) -> str | None:
    """Return why the CLI ignores a rule in every configuration, and what to write; None if it does not."""
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


_TOOLS_BY_LOWER_NAME = {name.lower(): name for name in (*TOOLS, *TOOL_ALIASES)}


def suggest_tool(name: str) -> str | None:
    """Return the tool whose name is similar; None for a known name or if none is similar."""
    if name in TOOLS or name in TOOL_ALIASES or name.startswith(MCP_PREFIX):
        return None
    near = find_similar_name(name.lower(), _TOOLS_BY_LOWER_NAME, 0.85)
    return _TOOLS_BY_LOWER_NAME[near] if near is not None else None


# Reason types of denials by a rule, mode, hook or classifier: no approver was missing.
_DECIDED_TYPES: Final = frozenset({"classifier", "hook", "mode", "rule"})
_RULE_DENIAL_TEXT: Final = "has been denied"  # in the message, where the reason belongs to a part of a command
_OPTION_HINTS: Final = {"AskUserQuestion": "on_question=…", "ExitPlanMode": "on_plan=…"}


def was_denied_without_asking(message: PermissionDeniedMessage) -> bool:
    """Whether the CLI would have requested permission if there were an approver."""
    kind = message.decision_reason_type
    return kind not in _DECIDED_TYPES and not (kind == "subcommandResults" and _RULE_DENIAL_TEXT in message.message)


def describe_denial(tool_name: str) -> str:
    """Say that the tool was denied, and which options would have let it run."""
    ways = f'permission_mode="acceptEdits" (for edits), allowed_tools=["{tool_name}"] or can_use_tool=…'
    options = _OPTION_HINTS.get(tool_name, ways)
    return f"the tool {tool_name} was denied, because no function decides permissions; set {options}"
