"""`breakdown`: what a conversation cost, by agent, tool, MCP server, API message and model.

Owns the rows and their tables; `ledger` reads the messages and divides the cost.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Any, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct

from pilothouse.client import CostTracker, QueryResult
from pilothouse.errors import UsageError
from pilothouse.messages import Message, ModelUsage, ResultMessage
from pilothouse_transcripts import usage_report
from pilothouse_transcripts.conversation import get_file_messages, list_agent_files, read_subagent_info
from pilothouse_transcripts.paths import StrPath, is_session_id, require_file
from pilothouse_transcripts.rows import OnProblem, ignore_problem
from pilothouse_usage.ledger import (
    NANOS,
    TOKEN_FIELDS,
    AgentFacts,
    ApiMessage,
    Ledger,
    ToolRun,
    count_nanos,
    count_tokens,
)

MAIN = "main"
NOT_SHOWN = "not shown in messages"
"""The name of the rows of requests that the CLI has counted and no message shows."""
UNKNOWN_MODEL = "unknown"
"""Stands for the model of a cost that the CLI has not divided by model."""
MAX_NAME_CHARS = 60
_TOKEN_FIELDS = ("input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens")
LINE_ENDS = "\u2028\u2029"

Grouping: TypeAlias = Literal["agent", "tool", "server", "turn", "model"]
GROUPINGS: tuple[Grouping, ...] = ("agent", "tool", "server", "turn", "model")


class UsageRow(Struct, frozen=True, kw_only=True):
    """Tokens and cost of a part of a conversation.

    Args:
        name: of the part.
        input_tokens: fresh input.
        output_tokens: output of the models, including thinking.
        cache_creation_tokens: input written to the prompt cache.
        cache_read_tokens: input read from the cache.
        cost_usd: US dollars.
        replies: API messages.
        seconds: how long it took; None: not known.
        is_estimated: whether some of the tokens are estimated, as `breakdown` says.
    """

    name: str
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float = 0.0
    replies: int = 0
    seconds: float | None = None
    is_estimated: bool = False

    @property
    def total_tokens(self) -> int:
        """Sum of all input and output."""
        return self.input_tokens + self.output_tokens + self.cache_creation_tokens + self.cache_read_tokens


RowT = TypeVar("RowT", bound=UsageRow)


class AgentRow(UsageRow, frozen=True, kw_only=True):
    """The main agent, a sub-agent, or what no message shows.

    Args:
        agent_type: the type of a sub-agent, such as "general-purpose".
        description: the task of a sub-agent, as the model named it.
        tool_use_id: the call that started it.
        task_id: the CLI's id of its task.
    """

    agent_type: str | None = None
    description: str | None = None
    tool_use_id: str | None = None
    task_id: str | None = None


class TurnRow(UsageRow, frozen=True, kw_only=True):
    """One API message.

    Args:
        name: of its agent.
        model: that wrote it.
        message_id: the API's id; None: no message shows it.
        tools: the tools that it calls.
    """

    model: str
    message_id: str | None = None
    tools: tuple[str, ...] = ()


class ToolRow(Struct, frozen=True, kw_only=True):
    """The calls of a tool, or of all tools of an MCP server.

    Args:
        name: of the tool or the server.
        calls: how often it was called.
        errors: how many of its results are errors.
        seconds: from calls to results, which includes waiting for a permission; calls without a result or times are
            not included.
        result_bytes: size of the results, which become input of the model.
        result_tokens: about as many tokens: a quarter of the bytes of their text. Pictures are not included.
    """

    name: str
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    result_bytes: int = 0
    result_tokens: int = 0


class Breakdown(Struct, frozen=True, kw_only=True):
    """What a conversation cost, and why. `print` shows it by agent; `.table(by="tool")` returns other tables.

    Args:
        cost_usd: US dollars, as the CLI estimates them; the rows of `agents`, `turns` and `models` add up to it.
        unpriced_tokens: tokens that the CLI has not priced, such as those of a turn that was cut off; they cost 0 here.
        agents: the main agent, each sub-agent, and what no message shows.
        turns: each API message, and what no message shows, by model.
        models: the totals of the CLI.
        tools: by tool, the slowest first.
        servers: the same by MCP server.
    """

    cost_usd: float
    unpriced_tokens: int
    agents: tuple[AgentRow, ...]
    turns: tuple[TurnRow, ...]
    models: tuple[UsageRow, ...]
    tools: tuple[ToolRow, ...]
    servers: tuple[ToolRow, ...]

    def __str__(self) -> str:
        note = f"\n{self.unpriced_tokens:,} tokens have no price" if self.unpriced_tokens else ""
        return self.table() + note

    def table(self, by: Grouping = "agent") -> str:
        """Return the rows as aligned text, without characters that would control a terminal.

        "write" and "read" are input written to the prompt cache, and read from it; "≈" marks rows with estimates.

        Args:
            by: "agent", "tool", "server", "turn" or "model".

        Raises:
            UsageError: there is no such grouping.
        """
        lines = self.cells(by)
        if len(lines) == 1:
            return "no tool was called" if by == "tool" else "no tool of an MCP server was called"
        first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(
            "  ".join([line[0].ljust(first), *map(str.rjust, line[1:], others)]).rstrip() for line in lines
        )

    def cells(self, by: Grouping = "agent") -> list[tuple[str, ...]]:
        """Return the head of a table and its rows, as text; see `table`."""
        if by not in GROUPINGS:
            raise UsageError(f"by: expected one of {', '.join(GROUPINGS)}, got {by!r:.80}")
        if by == "tool" or by == "server":
            head = (by, "calls", "errors", "time", "result bytes", "≈ tokens")
            return [head, *map(_format_tool, self.tools if by == "tool" else self.servers)]
        rows: Sequence[UsageRow] = {"agent": self.agents, "turn": self.turns, "model": self.models}[by]
        head = (by, "replies", "input", "write", "read", "output", "time", "cost")
        names = [_clean(row.name) for row in rows]
        if by == "turn":
            names = [_clean(f"{number} {row.model} {row.name}") for number, row in enumerate(self.turns, 1)]
        total = {name: sum(getattr(row, name) for row in rows) for name in (*_TOKEN_FIELDS, "replies")}
        is_estimated = any(row.is_estimated for row in rows)
        last = UsageRow(name="total", **total, cost_usd=self.cost_usd, is_estimated=is_estimated)
        return [head, *map(_format_row, names, rows), _format_row("total", last)]


def breakdown(source: QueryResult[Any] | Iterable[Message]) -> Breakdown:
    """Return what a query or a conversation cost, by agent, tool, MCP server, API message and model.

    **Measured** by the CLI: cost and tokens of each model; input tokens of each API message; when messages came.
    **Estimated** here: the cost of each API message, which is a part of the cost of its model, in proportion to its
    tokens, weighted as the API prices them; output tokens of API messages, where stream events do not tell them
    (`partial_messages=True`), from the length of what they show; input and output of the last reply of a sub-agent,
    of which the CLI tells the sum. Rows with such tokens are marked with `is_estimated`. What the CLI has counted and
    no message shows, such as a request for a title, is a row of its own, `"not shown in messages"`.

    The costs of the rows add up to `cost_usd`, and that is what the CLI says, to a billionth of a dollar for a model.

    Args:
        source: a result, or the messages of a conversation in order, such as `session.messages()` yields them. For a
            transcript, use `session_breakdown`.

    Raises:
        UsageError: the query was streamed, and its messages were not kept; or `source` is something else.

    Example::

        result = await ph.query("Review app.py")
        print(breakdown(result))
        print(breakdown(result).table(by="tool"))
    """
    if not isinstance(source, QueryResult):
        return _count_turns(_require_messages(source))
    found = _count_turns(source.messages)
    cost = source.cost_usd or 0.0
    if isclose(found.cost_usd, cost, abs_tol=1e-8):
        return found
    ledger = Ledger()  # turns that are not of this query are among its messages, or an old CLI gives totals only
    for message in source.messages:
        ledger.track(message)
    totals = dict(source.model_usage)
    rest = cost - sum(usage.cost_usd for usage in totals.values())
    if rest > 0.5 / NANOS:
        totals[UNKNOWN_MODEL] = ModelUsage(cost_usd=rest)
    ledger.settle(totals)
    return _make_breakdown(ledger, totals, 0)


def session_breakdown(
    session_id: str,
    directory: StrPath | None = None,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> Breakdown:
    """Return the same of a session on disk, with its sub-agents, as `breakdown` does.

    Tokens and costs are those of `pilothouse_transcripts.usage_report`: transcripts show all tokens of the replies in
    them, and the CLI's prices. Requests whose replies the CLI does not write into them are not included, such as those
    for titles and for the summaries of `/compact`. A fork includes the replies that it repeats.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read.

    Raises:
        UsageError: the id does not have the form of a session id, such as one that was cut.
        SessionNotFoundError: there is no such session.
    """
    if not is_session_id(session_id):
        raise UsageError(f"session_breakdown: expected a whole session id, got {session_id!r:.80}")
    path = require_file(session_id, directory, config_dir)
    report = usage_report(directory, session_id=session_id, config_dir=config_dir)
    ledger = Ledger(are_whole=True)
    for key, file in list_agent_files(path):
        info = read_subagent_info(file)
        ledger.find_agent(info.tool_use_id or key, info.agent_type, info.description).task_id = key
    for message in get_file_messages(path, on_problem=on_problem):
        ledger.track(message)
    totals = {
        model: ModelUsage(
            **{field: getattr(usage, own) for field, own in zip(TOKEN_FIELDS, _TOKEN_FIELDS, strict=True)},
            cost_usd=usage.cost_usd,
        )
        for model, usage in report.models.items()
    }
    ledger.settle(totals)
    return _make_breakdown(ledger, totals, report.total.unpriced_tokens)


def _require_messages(given: object) -> list[Message]:
    """Return messages as a list; raise a UsageError for anything else."""
    got, hint = type(given).__name__, ""
    if isinstance(given, str):
        hint = "; for a session id: session_breakdown(id)"
    elif isinstance(given, Iterable):
        messages = list(cast("Iterable[object]", given))
        wrong = [each for each in messages if not isinstance(each, Message)]
        if not wrong:
            return cast("list[Message]", messages)
        hint = f" of {type(wrong[0]).__name__}"
    raise UsageError(f"breakdown: expected a QueryResult or messages, got {got}{hint}")


def _count_turns(messages: Iterable[Message]) -> Breakdown:
    """Divide what each turn cost among its API messages."""
    ledger, tracker = Ledger(), CostTracker()
    last = None
    for message in messages:
        ledger.track(message)
        tracker.track([message])
        if isinstance(message, ResultMessage):
            turns = tracker.costs.turns
            if turns and turns[-1] is not last:
                last = turns[-1]
                ledger.settle(last.models)
    costs = tracker.costs
    if costs.turns and costs.turns[-1] is not last:  # a turn without a result
        ledger.settle(costs.turns[-1].models)
    return _make_breakdown(ledger, costs.models, costs.unpriced_tokens)


def _make_breakdown(ledger: Ledger, totals: Mapping[str, ModelUsage], unpriced_tokens: int) -> Breakdown:
    names = {key: _name_agent(key, facts) for key, facts in ledger.agents.items()}
    own: dict[str | None, list[ApiMessage]] = {key: [] for key in names}
    for reply in ledger.replies.values():
        own[reply.agent].append(reply)
    rests = [ApiMessage(None, name, counts, nanos=nanos) for name, (counts, nanos) in ledger.rests.items()]
    agents = [
        _make_row(
            AgentRow,
            names[key],
            own[key],
            seconds=facts.span,
            agent_type=facts.type,
            description=facts.description,
            tool_use_id=key,
            task_id=facts.task_id,
        )
        for key, facts in ledger.agents.items()
    ]
    turns = [
        _make_row(
            TurnRow,
            names[reply.agent],
            [reply],
            seconds=reply.seconds,
            model=reply.model or "",
            message_id=None if reply.hidden_tokens else key,
            tools=tuple(reply.tools),
        )
        for key, reply in ledger.replies.items()
    ]
    if rests:
        agents.append(_make_row(AgentRow, NOT_SHOWN, rests, replies=0))
        turns += [_make_row(TurnRow, NOT_SHOWN, [rest], replies=0, model=rest.model or "") for rest in rests]
    whole = {
        name: ApiMessage(None, name, count_tokens(usage), nanos=count_nanos(usage)) for name, usage in totals.items()
    }
    counted = Counter(reply.model for reply in ledger.replies.values())
    calls = ledger.calls.values()
    servers = [(server, call) for call in calls if (server := get_server(call.name))]
    return Breakdown(
        cost_usd=sum(each.nanos for each in whole.values()) / NANOS,
        unpriced_tokens=unpriced_tokens,
        agents=tuple(agents),
        turns=tuple(turns),
        models=tuple(_make_row(UsageRow, name, [each], replies=counted[name]) for name, each in whole.items()),
        tools=_group_calls((call.name, call) for call in calls),
        servers=_group_calls(servers),
    )


def _name_agent(key: str | None, facts: AgentFacts) -> str:
    parts = [part for part in (facts.type, facts.description) if part]
    return MAIN if key is None else ": ".join(parts) or f"sub-agent {key}"


def _make_row(kind: type[RowT], name: str, parts: Sequence[ApiMessage], **facts: Any) -> RowT:
    """Make a row of the sum of API messages."""
    figures: dict[str, Any] = {
        "name": name,
        **{field: sum(part.counts[kind] for part in parts) for kind, field in enumerate(_TOKEN_FIELDS)},
        "cost_usd": sum(part.nanos for part in parts) / NANOS,
        "replies": len(parts),
        "is_estimated": any(part.is_estimated for part in parts),
    }
    return kind(**(figures | facts))


def _group_calls(calls: Iterable[tuple[str, ToolRun]]) -> tuple[ToolRow, ...]:
    """Add up calls by name, the slowest first."""
    groups: dict[str, list[ToolRun]] = {}
    for name, call in calls:
        groups.setdefault(name, []).append(call)
    rows = [
        ToolRow(
            name=name,
            calls=len(group),
            errors=sum(call.is_error is True for call in group),
            seconds=sum(call.seconds or 0.0 for call in group),
            result_bytes=sum(call.result_bytes for call in group),
            result_tokens=sum(call.result_tokens for call in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _format_row(name: str, row: UsageRow) -> tuple[str, ...]:
    inputs = (row.input_tokens, row.cache_creation_tokens, row.cache_read_tokens)
    output = f"{'≈' if row.is_estimated else ''}{row.output_tokens:,}"
    cost = format_cost(row.cost_usd, any((*inputs, row.output_tokens)))
    numbers = (f"{number:,}" for number in inputs)
    return (name, f"{row.replies:,}", *numbers, output, _format_time(row.seconds), cost)


def format_cost(cost_usd: float, has_tokens: bool) -> str:
    """Return a cost as the cell of a table: a dash if none is known for tokens that were used."""
    return f"${cost_usd:.4f}" if cost_usd or not has_tokens else "–"  # noqa: RUF001 - a dash


def get_server(tool: str) -> str:
    """Return the name of the MCP server of a tool; "" for other tools."""
    return tool.split("__")[1] if tool.startswith("mcp__") else ""


def _format_tool(row: ToolRow) -> tuple[str, ...]:
    numbers = (f"{number:,}" for number in (row.result_bytes, row.result_tokens))
    return (_clean(row.name), f"{row.calls:,}", f"{row.errors:,}", _format_time(row.seconds), *numbers)


def _format_time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _clean(text: str) -> str:
    """Cut a name of a model or a transcript, and escape what would control a terminal or reorder the line."""
    shown = text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 1]}…"
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char)[0] == "C" or char in LINE_ENDS else char
        for char in shown
    )
