"""`Policy`: what runs unasked, what asks, and what is denied, worked out from options before anything is started. Pure.

Owns the order in which rules, mode and answers count, and how that is told. What the CLI does by itself stands in
`policy_facts`; what does not go together, in `contradictions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pilothouse.options import policy_facts as facts
from pilothouse.options.contradictions import contradictions
from pilothouse.options.explain import Explanation
from pilothouse.options.options import Options
from pilothouse.options.policy_facts import Outcome as Outcome
from pilothouse.options.policy_notes import notes_of, unseen_by
from pilothouse.options.policy_rules import CUSTOM_SERVER, Rule, flag_settings, managed, permissions, rules_of

NOBODY = "nobody, and denied"
WORDS: dict[Outcome, str] = {
    "runs": "runs unasked",
    "asks": "asks",
    "judged": "is judged by a model of the CLI, each time",
    "denied": "is denied",
    "unavailable": "is not there for the model",
}
_BEHAVIORS: dict[str, Outcome] = {"deny": "denied", "ask": "asks", "allow": "runs"}


class PolicyRow(Struct, frozen=True):
    """What becomes of some calls.

    Args:
        tool: the tool, such as "Bash"; a server, as "mcp__name"; or a rule, as "Bash(git:*)".
        calls: which of its calls, in words; "" for all of them.
        outcome: "runs", "asks", "denied", "unavailable": the model has no such tool; or "judged": a model of the CLI
            decides each time.
        why: what decides.
        option: the option that decides; "" if nothing was set.
        origin: where that option was set, as `explain` says it.
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
        mode_from: which option says so, and where it was set.
        rows: rules with a pattern first, then every tool; where several rows of a tool hold, the first one counts.
        answered_by: who answers when something asks.
        hooks: the events whose hooks may decide before, or in place of, what the rows say.
        unseen: what may change this and cannot be seen from here.
        notes: what is easily misread.
        warnings: what does not go together; `PolicyWarning`s when an agent or query is made.
    """

    mode: str
    mode_from: str
    rows: tuple[PolicyRow, ...]
    answered_by: str
    hooks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def of(self, tool: str) -> tuple[PolicyRow, ...]:
        """The rows that speak of `tool`; of its server, if there are none of its own."""
        name = facts.ALIASES.get(tool, tool)
        found = tuple(row for row in self.rows if _tool_of(row) == name)
        if found or not name.startswith("mcp__"):
            return found
        return tuple(row for row in self.rows if name.startswith(f"{_tool_of(row)}__"))

    def outcome(self, tool: str, calls: str = "") -> Outcome:
        """What becomes of the calls of `tool` that no pattern speaks of.

        Args:
            tool: its name.
            calls: which calls, in the words of the row; needed only where they differ.

        Raises:
            KeyError: there is no such tool here, or its calls differ and `calls` names none of them.
        """
        rows = [row for row in self.of(tool) if "(" not in row.tool]
        fits = [row for row in rows if not row.calls or calls in row.calls.split("; ")]
        if len(fits) != 1:
            raise KeyError(f"{tool!r}: say which calls, one of {[row.calls for row in rows]}")
        return fits[0].outcome

    def __str__(self) -> str:
        lines = [f"permission mode: {self.mode} ({self.mode_from}): {facts.MEANINGS[self.mode]}"]
        lines += [f"what asks is answered by {self.answered_by}", *_table(self.rows)]
        for title, texts in (
            ("may decide before", tuple(f"hooks for {name}" for name in self.hooks)),
            ("not seen from here", self.unseen),
            ("note", self.notes),
            ("warning", self.warnings),
        ):
            lines += ["", *(f"{title}: {text}" for text in texts)] if texts else []
        return "\n".join(lines)


class View:
    """Everything about `options` that the rows and the warnings are made from."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rules = rules_of(options)
        self.mode, self.mode_option = _mode_of(options)
        self.hooks = tuple(name for name in ("PreToolUse", "PermissionRequest") if (options.hooks or {}).get(name))
        self.answered_by = _answered_by(options)
        self.servers = _servers_of(options)
        given = options.tools
        self.named = None if given is None or isinstance(given, str) else {facts.ALIASES.get(t, t) for t in given}

    def origin(self, option: str) -> str:
        """Where an option was set."""
        return self._explained[option].origin if option else ""

    @cached_property
    def _explained(self) -> Explanation:
        return self.options.explain()

    @cached_property
    def rows(self) -> tuple[PolicyRow, ...]:
        """The rows of the policy."""
        return (*_pattern_rows(self), *_tool_rows(self))

    @property
    def somebody(self) -> bool:
        """Whether there is anybody who answers, be it a hook."""
        return self.answered_by != NOBODY or "PermissionRequest" in self.hooks

    def missing(self, tool: str) -> tuple[str, str] | None:
        """Which option takes `tool` away, and why; None if the model has it."""
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
            (self.named is not None and tool not in self.named, "tools", "tools does not name it"),
            (
                self.named is None and self.options.restricted and tool in facts.NOT_RESTRICTED,
                "restricted",
                "restricted",
            ),
            (tool in facts.NEEDS_SOMEBODY and not self._is_asked, "", "nobody is there to answer"),
            (tool in facts.WITH_BASH and self.named is None and self.missing("Bash"), "", "it goes with Bash"),
            (
                tool in facts.WITHOUT_BASH and self.named is None and not self.missing("Bash"),
                "tools" if self.options.tools else "",
                "the CLI leaves it out beside Bash; tools=[…] can name it",
            ),
        )
        return next(((option, why) for holds, option, why in reasons if holds), None)

    def _is_restricted(self, tool: str) -> bool:
        return self.options.restricted and self.named is None and tool in facts.NOT_RESTRICTED

    @property
    def _is_asked(self) -> bool:
        o = self.options
        return any(f is not None for f in (o.can_use_tool, o.confirm, o.on_question, o.on_plan))

    def decide(self, tool: str, kind: str) -> tuple[Outcome, str, str]:
        """What becomes of such a call of a tool that is there: the outcome, the option that decides, and why."""
        if self.options.restricted and kind in ("read elsewhere", "edit elsewhere"):
            return "denied", "restricted", "restricted"
        for rule in self.rules:
            if rule.covers(tool) and rule.behavior == "ask":
                return self.answered("asks"), rule.option, f"{rule.option}: {rule.text}"
        mode = facts.MODES[self.mode][kind]
        if mode != "runs" and kind not in facts.UNMOVED[self.mode]:
            for rule in self.rules:
                if rule.behavior == "allow" and (rule.covers(tool) or _is_everywhere(rule, tool, kind)):
                    return "runs", rule.option, f"{rule.option}: {rule.text}"
        if kind in ("ask", "plan"):
            return self._asked_person(kind, mode)
        told = self.answered(mode)
        nobody = "; nobody answers" if (mode, told) == ("asks", "denied") else ""
        return told, self.mode_option, f"permission mode {self.mode!r}{nobody}"

    def _asked_person(self, kind: str, mode: Outcome) -> tuple[Outcome, str, str]:
        mine = "on_question" if kind == "ask" else "on_plan"
        asked = (mine, "can_use_tool", *(("confirm",) if kind == "plan" else ()))  # a yes answers no question
        answers = next((name for name in asked if getattr(self.options, name) is not None), None)
        if mode == "denied":
            return mode, self.mode_option, f"permission mode {self.mode!r}"
        return (mode, answers, f"{answers} answers") if answers else ("denied", "", "nobody answers")

    def answered(self, outcome: Outcome) -> Outcome:
        """`outcome`; "denied" if it asks and nobody is there, or the mode asks nobody."""
        return "denied" if outcome == "asks" and (self.mode == "dontAsk" or not self.somebody) else outcome


def effective_policy(options: Options) -> Policy:
    """What `options` let run, what asks, and what is denied.

    It says what the CLI does with these options and nothing else; `unseen` names what else may count.
    """
    view = View(options)
    return Policy(
        mode=view.mode,
        mode_from=_said(view, view.mode_option),
        rows=view.rows,
        answered_by=view.answered_by,
        hooks=view.hooks,
        unseen=tuple(unseen_by(options)),
        notes=tuple(notes_of(options, view.rules, view.mode, nobody=view.answered_by == NOBODY)),
        warnings=tuple(contradictions(view)),
    )


def contradictions_of(options: Options) -> tuple[str, ...]:
    """`effective_policy(options).warnings`, without the work for the rest."""
    return tuple(contradictions(View(options)))


def _pattern_rows(view: View) -> Iterator[PolicyRow]:
    for rule in view.rules:
        if not rule.pattern or (rule.behavior == "allow" and _is_everywhere(rule, rule.tool, "edit")):
            continue
        outcome, option, why = _BEHAVIORS[rule.behavior], rule.option, rule.option
        missing = view.missing(rule.tool) if rule.tool in facts.TOOLS else None
        if missing is not None:
            outcome, (option, why) = "unavailable", missing
        elif rule.behavior != "deny" and any(r.covers(rule.tool) and r.behavior == "ask" for r in view.rules):
            outcome = "asks"
        elif rule.behavior == "allow" and view.mode == "plan" and rule.tool != "WebFetch":
            outcome, option, why = "judged", view.mode_option, "permission mode 'plan'"
        yield PolicyRow(rule.text, "", view.answered(outcome), why, option, view.origin(option))


def _tool_rows(view: View) -> Iterator[PolicyRow]:
    for tool, kinds in facts.TOOLS.items():
        if tool == "ExitPlanMode" and view.mode != "plan":
            continue  # there is nothing to leave
        missing = view.missing(tool)
        if missing is not None:
            yield PolicyRow(tool, "", "unavailable", missing[1], missing[0], view.origin(missing[0]))
            continue
        decided = [(view.decide(tool, kind), kind) for kind in kinds]
        if len({decision for decision, _ in decided}) == 1:
            decided = [(decided[0][0], "")]
        for (outcome, option, why), same in _merged(decided):
            calls = "; ".join(facts.CALLS[kind] for kind in same if kind)
            yield PolicyRow(tool, calls, outcome, why, option, view.origin(option))
    for server in view.servers:
        yield from _server_rows(view, server)


def _merged(decided: list[tuple[Any, str]]) -> Iterator[tuple[Any, list[str]]]:
    for decision, group in groupby(decided, key=lambda pair: pair[0]):
        yield decision, [kind for _, kind in group]


def _server_rows(view: View, server: str) -> Iterator[PolicyRow]:
    named = dict.fromkeys(r.tool for r in view.rules if r.tool.startswith(f"{server}__"))
    for tool in (*named, server):
        missing = view.missing(tool)
        if missing is not None:
            outcome, (option, why) = "unavailable", missing
        else:
            outcome, option, why = view.decide(tool, "serve")
        calls = "its other tools" if named and tool == server else ""
        yield PolicyRow(tool, calls, outcome, why, option, view.origin(option))


def _is_everywhere(rule: Rule, tool: str, kind: str) -> bool:
    """Whether it is the rule for edits below the working directory, which holds for every tool that edits."""
    return kind == "edit" and tool in facts.FILE_TOOLS and rule.tool == "Edit" and rule.pattern in facts.BELOW


def _mode_of(options: Options) -> tuple[str, str]:
    """The permission mode at the start, and the option that says so."""
    if "dangerously-skip-permissions" in (options.extra_args or {}):
        mode, option = "bypassPermissions", "extra_args"
    elif options.permission_mode is not None:
        mode, option = options.permission_mode, "permission_mode"
    else:
        mode, option = permissions(flag_settings(options)).get("defaultMode"), "settings"
    if mode == "manual":
        mode = "default"
    for source, settings in (("managed_settings", managed(options)), ("settings", flag_settings(options))):
        if mode == "bypassPermissions" and permissions(settings).get("disableBypassPermissionsMode") == "disable":
            return "default", source
    return (mode, option) if mode in facts.MODES else ("default", "")


def _answered_by(options: Options) -> str:
    if options.permission_prompts == "none":
        return NOBODY
    for name in ("can_use_tool", "confirm"):
        if getattr(options, name) is not None:
            return name
    tool = options.permission_prompt_tool_name
    return NOBODY if tool in (None, "stdio") else f"the tool {tool}"


def _servers_of(options: Options) -> tuple[str, ...]:
    given = options.mcp_servers
    names = [f"mcp__{name}" for name in given] if isinstance(given, dict) else []
    if options.custom_tools and CUSTOM_SERVER not in names:
        names.append(CUSTOM_SERVER)
    return tuple(names)


def _said(view: View, option: str) -> str:
    return f"{option}, {view.origin(option)}" if option else "default"


def _tool_of(row: PolicyRow) -> str:
    return Rule(row.tool, "allow", "").tool


def _table(rows: tuple[PolicyRow, ...]) -> Iterator[str]:
    """The rows by outcome; calls of several tools on which the same decides stand together."""
    for outcome, title in WORDS.items():
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
