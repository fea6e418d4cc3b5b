"""The warning about permission settings that contradict each other, or that match nothing.

Pure. Owns the checks and their texts; `permission_facts` has what the options say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from pilothouse.hints import find_similar_name
from pilothouse.options.permission_facts import (
    NEEDS_PERSON,
    TOOLS,
    OptionRule,
    PermissionFacts,
    find_reason_to_ignore,
    get_agent_value,
    suggest_tool,
)
from pilothouse.options.permission_rules import (
    MCP_PREFIX,
    TOOL_ALIASES,
    normalize_mcp_name,
    normalize_mcp_rule,
    split_rule,
)

ASKED_GROUPS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("default", "acceptEdits"), frozenset({"read", "edit", "command", "reach", "serve"})),
    **dict.fromkeys(("plan", "auto"), frozenset({"edit", "command", "reach", "serve"})),
}
"""By permission mode, the groups of tools of which some calls are asked about, or judged by a model of the CLI."""
ASKED_DESPITE_RULES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("default", "acceptEdits"), frozenset({"edit"})),
    "plan": frozenset({"edit", "command", "serve"}),
    "auto": frozenset({"edit", "command"}),
}
"""The same for tools that a rule allows as a whole."""


class PolicyWarning(UserWarning):
    """Contradictory permission settings. `warnings.simplefilter("ignore", PolicyWarning)` silences it."""


def find_conflicts(facts: PermissionFacts) -> Iterator[str]:
    """Say what contradicts each other or matches nothing; a text each, which says what to write."""
    if facts.mode == "bypassPermissions" and facts.options.allowed_tools:
        yield (
            "allowed_tools has no effect in permission mode 'bypassPermissions', where everything runs; to "
            "remove tools, use tools=[…] or disallowed_tools=[…]"
        )
    if facts.answered_by in ("can_use_tool", "confirm", "asks") and not _may_be_asked(facts):
        by_mode = facts.mode in ("bypassPermissions", "dontAsk")
        yield (
            f"{facts.answered_by} is never called for the tools that are known here: "
            f"{f'permission mode {facts.mode!r}' if by_mode else 'the rules and `tools`'} decide before it; a hook for "
            "PreToolUse sees every tool call"
        )
    for rule in facts.rules:
        if rule.option == "allowed_tools" and (why := facts.find_missing_reason_in_layer(rule.tool, rule.option)):
            yield f"allowed_tools: {rule.text!r} has no effect, because the model has no {rule.tool}: {why}"
    for rule in facts.given_rules:
        if fault := _find_spelling_fault(facts, rule) or find_reason_to_ignore(rule) or _find_name_fault(facts, rule):
            yield f"{rule.option}: {fault}"
    yield from _find_server_conflicts(facts.servers)
    for name, agent in (facts.options.agents or {}).items():
        for field, wire_name in (("disallowed_tools", "disallowedTools"), ("tools", "tools")):
            for text in get_agent_value(agent, field, wire_name) or ():
                if fault := _find_spelling_fault(facts, OptionRule(str(text), "deny", "")):
                    yield f"agents[{name!r}].{field}: {fault}"
    for name in facts.options.tools if isinstance(facts.options.tools, list) else ():
        if meant := suggest_tool(name):
            yield f"tools: there is no tool {name!r}; it is {meant!r}"
    for event, entries in (facts.options.hooks or {}).items():
        if event in ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"):
            for entry in cast("list[Any]", entries) if isinstance(entries, list | tuple) else [entries]:
                yield from _find_matcher_faults(facts, event, getattr(entry, "matcher", None))


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


def _may_be_asked(facts: PermissionFacts) -> bool:
    """Whether the CLI may ask about a call of a tool that is known here, or lets a model judge it."""
    options = facts.options
    if facts.mode in ("default", "acceptEdits") and not (
        options.tools or options.allowed_tools or options.disallowed_tools
    ):
        return True  # the usual case; saves looking at each tool
    if (options.hooks or {}).get("PreToolUse"):
        return True
    if facts.mode == "dontAsk":
        return False
    tools = [(tool, "", group) for tool, group in TOOLS.items() if tool not in NEEDS_PERSON]
    for server in facts.servers.values():
        tools += [(tool, server, "serve") for tool in facts.list_server_tools(server)]
    return any(_asks_about(facts, *tool) for tool in tools) or any(_asks_about_some(facts, r) for r in facts.rules)


def _asks_about(facts: PermissionFacts, tool: str, server: str, group: str) -> bool:
    """Whether calls of a tool may be asked about that match no pattern."""
    if facts.find_missing_reason(tool, server) is not None:
        return False
    found = {rule.behavior for rule in facts.rules if rule.covers(tool, server)}
    by_mode = (ASKED_DESPITE_RULES if "allow" in found else ASKED_GROUPS).get(facts.mode, ())
    # Under `restricted`, reading elsewhere is denied, and other reading runs.
    return "ask" in found or (group in by_mode and not (group == "read" and facts.options.restricted))


def _asks_about_some(facts: PermissionFacts, rule: OptionRule) -> bool:
    """Whether calls that match a rule about some calls may be asked about."""
    if not facts.is_partial(rule) or (rule.tool in TOOLS and facts.find_missing_reason(rule.tool) is not None):
        return False
    is_judged = rule.behavior == "allow" and facts.mode == "plan" and rule.tool != "WebFetch"
    return rule.behavior == "ask" or is_judged


def _find_spelling_fault(facts: PermissionFacts, rule: OptionRule) -> str | None:
    """Return how to spell a rule for an MCP server or tool whose name it writes as it was given."""
    text = rule.text.strip()
    name, _ = split_rule(text) or (text, None)
    meant = _spell_mcp_name(name, facts.servers) or normalize_mcp_rule(name)
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


def _find_name_fault(facts: PermissionFacts, rule: OptionRule) -> str | None:
    """Return why a rule does not match what its name seems to say; None if it does."""
    if rule.has_blank_in_name:
        return f"the CLI reads {rule.text!r} as a rule for all of {rule.tool}; leave out the blank"
    if rule.tool.startswith(MCP_PREFIX):
        return _find_server_fault(facts, rule)
    meant = suggest_tool(rule.tool)
    return f"there is no tool {rule.tool!r}, so {rule.text!r} has no effect; it is {meant!r}" if meant else None


def _find_server_fault(facts: PermissionFacts, rule: OptionRule) -> str | None:
    if _spell_mcp_name(rule.tool, facts.servers):
        return _find_underscore_fault(facts, rule)
    if "*" in rule.tool or not facts.servers:
        return None
    server, found, tool = rule.tool.removeprefix(MCP_PREFIX).partition("__")
    known = {name.lower(): name for name in facts.servers.values()}
    fault = f"{rule.text!r} names no server of `mcp_servers`"
    near = find_similar_name(normalize_mcp_name(server).lower(), known, 0.75)
    if near is not None:
        return f"{fault}; did you mean {MCP_PREFIX + known[near] + found + tool!r}?"
    if facts.has_other_servers or facts.get_origin(rule.option) != facts.get_origin("mcp_servers"):
        return None  # the server may come from elsewhere, or the rule may be for other configurations as well
    return f"{fault}: {', '.join(MCP_PREFIX + name for name in known.values())}"


def _find_underscore_fault(facts: PermissionFacts, rule: OptionRule) -> str | None:
    """Return why a rule with the name of a server does not apply to it."""
    server, servers = rule.tool.removeprefix(MCP_PREFIX), facts.servers.values()
    if server not in servers:
        is_bare = rule.tool.endswith("__")
        return f"{rule.text!r} matches nothing; name a tool, or the server as {rule.tool[:-2]!r}" if is_bare else None
    if rule.covers(rule.tool, server):
        return None
    wildcard = replace(rule, text=f"{rule.tool}__*")
    meant = wildcard.text if wildcard.covers(rule.tool, server) else f"{rule.tool}__NAME for each tool"
    return f"the CLI reads {rule.text!r} as a tool of the server {server.partition('__')[0]!r}; write {meant!r}"


def _find_matcher_faults(facts: PermissionFacts, event: str, matcher: Any) -> Iterator[str]:
    if not isinstance(matcher, str):
        return
    title = f"hooks[{event!r}]: the matcher {matcher!r}"
    # The CLI reads a matcher of these characters as a list of names, anything else as a regular expression.
    if not re.fullmatch(r"[A-Za-z0-9_|, -]+", matcher):
        for given, server in facts.servers.items():
            if f"{MCP_PREFIX}{given}" in matcher and not _finds(given, server):
                yield f"{title} does not match {given!r}: {_MCP_SPELLING}; write {MCP_PREFIX + server!r}"
        name, content = split_rule(matcher.strip()) or ("", None)
        if name in TOOLS and re.search(r"[\s:*/.]", content or "") and not any(_finds(matcher, tool) for tool in TOOLS):
            yield f"{title} matches nothing: it is no rule; write {name!r}, and look at `event.tool_input` in the hook"
        return
    names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
    faults: list[str] = []
    for name in names:
        if name.startswith(MCP_PREFIX):
            meant = _spell_mcp_name(name, facts.servers) or normalize_mcp_rule(name)
            if "__" not in meant.removeprefix(MCP_PREFIX):
                yield f"{title} compares {name!r} with whole names; '{meant}__.*' matches the tools of this server"
            elif meant != name:
                yield f"{title} does not match {name!r}: {_MCP_SPELLING}; write {meant!r}"
        elif meant := suggest_tool(name):
            faults.append(f"there is no tool {name!r}, it is {meant!r}")
        elif why := facts.find_missing_reason_in_layer(TOOL_ALIASES.get(name, name), "hooks"):
            faults.append(f"the model has no {name}: {why}")
    if names and len(faults) == len(names):
        yield f"{title} matches nothing: {'; '.join(faults)}"


def _finds(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
