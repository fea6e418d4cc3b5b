"""Counts tokens and costs of sessions by session, day and model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from operator import add
from pathlib import Path

import msgspec
from msgspec import Struct

from pilothouse.errors import UsageError
from pilothouse.messages import ModelUsage, Usage
from pilothouse_transcripts.conversation import list_agent_files
from pilothouse_transcripts.paths import StrPath, require_file
from pilothouse_transcripts.rows import (
    PADDING,
    OnProblem,
    TranscriptProblem,
    decode_struct,
    find_row,
    ignore_problem,
    open_transcript,
    read_lines,
)
from pilothouse_transcripts.search import OnProgress, list_newest_sessions

# Costs of tokens relative to fresh input: output, cache write, cache read. The ratios are the same for all models of
# the API; prices are not known here.
_TOKEN_WEIGHTS = (1.0, 5.0, 1.25, 0.1)
INPUTS = (0, 2, 3)
"""Places of the kinds of input in the counts of tokens, which are exact in every message."""
_NAME_TAIL = re.compile(r"(?:-20\d{6})?(?:\[\w+\])?$")
_MAX_USD = 1e9
SYNTHETIC_MODEL = "<synthetic>"
"""The CLI's model name for text that it wrote itself."""


class UsageTotals(Struct, kw_only=True):
    """Tokens and US dollars.

    Args:
        messages: number of API responses.
        input_tokens: fresh input.
        output_tokens: output of the models, including thinking.
        cache_creation_tokens: input written to the prompt cache.
        cache_read_tokens: input read from the cache.
        cost_usd: US dollars, estimated from the costs that the CLI recorded; unrecorded costs are not included.
        unpriced_tokens: tokens of models without a price recorded by the CLI.
    """

    messages: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Sum of all input and output."""
        return self.input_tokens + self.output_tokens + self.cache_creation_tokens + self.cache_read_tokens

    def add(self, usage: _AnswerUsage, rate: float | None) -> None:
        """Add the usage of an API response."""
        fresh, output, written, read = usage.counts
        self.messages += 1
        self.input_tokens += fresh
        self.output_tokens += output
        self.cache_creation_tokens += written
        self.cache_read_tokens += read
        if rate is None:
            self.unpriced_tokens += sum(usage.counts)
        else:
            self.cost_usd += rate * weigh_tokens(usage.counts)


class SessionUsageTotals(UsageTotals, kw_only=True):
    """The totals of one session.

    Args:
        session_id: its id.
        path: its file.
        reported_usd: the cost that the CLI recorded at its last end, including what was resumed; None: not recorded.
    """

    session_id: str
    path: str
    reported_usd: float | None = None


class UsageReport(Struct, frozen=True, kw_only=True):
    """Usage of sessions; each API response is counted once.

    Args:
        total: of all sessions.
        sessions: by session, newest first.
        days: by day, oldest first.
        models: by model.
    """

    total: UsageTotals
    sessions: list[SessionUsageTotals]
    days: dict[date, UsageTotals]
    models: dict[str, UsageTotals]


def _check_day(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, date) or isinstance(value, datetime)):
        kind = type(value).__name__
        raise UsageError(f"{name}: expected a datetime.date, such as date(2026, 11, 1), got {kind}")


def usage_report(
    directory: StrPath | None = None,
    *,
    session_id: str | None = None,
    since: date | None = None,
    until: date | None = None,
    utc: bool = False,
    include_worktrees: bool = True,
    config_dir: StrPath | None = None,
    on_progress: OnProgress | None = None,
    on_problem: OnProblem = ignore_problem,
) -> UsageReport:
    """Return usage and cost of sessions on this machine, including their sub-agents.

    Args:
        directory: the working directory whose sessions are counted; None: all.
        session_id: only this session.
        since: the first day to count; None: from the beginning.
        until: the last day to count; None: to the end.
        utc: whether days begin at midnight UTC instead of local midnight.
        include_worktrees: for a directory in a git repository: also count sessions of its other working trees.
        config_dir: another configuration directory of the CLI than that of this process.
        on_progress: called after each file with the bytes read so far and the total bytes of all files.
        on_problem: called with each line and file that cannot be read.

    Raises:
        UsageError: the session id is not valid, or a day is no `date`.
        SessionNotFoundError: there is no such session.
    """
    _check_day("since", since)
    _check_day("until", until)
    if session_id is not None:
        path = require_file(session_id, directory, config_dir)
        files = [(path, path.lstat().st_size)]
    else:
        files = list_newest_sessions(directory, config_dir, worktrees=include_worktrees)
    read = _read_all(files, on_progress, on_problem)
    pooled = _estimate_rates(prices for one in read for prices in one.prices)
    seen: set[str] = set()
    report = UsageReport(total=UsageTotals(), sessions=[], days={}, models={})
    by_session = [
        SessionUsageTotals(session_id=one.path.stem, path=str(one.path), reported_usd=one.reported_usd) for one in read
    ]
    # A response belongs to the session that requested it; if that one is gone, it is counted in the oldest copy.
    for copies in (False, True):
        for one, totals in zip(reversed(read), reversed(by_session), strict=True):
            rates = {**pooled, **_estimate_rates(one.prices)}
            names = _name_models(one)
            for key, usage in one.answers.items():
                day = _parse_day(usage.timestamp, utc)
                if usage.is_copy is not copies or key in seen or not _is_between(day, since, until):
                    continue
                seen.add(key)
                rate = rates.get(names.get(usage.model, usage.model), rates.get(usage.model))
                for entry in (totals, report.total, report.models.setdefault(usage.model, UsageTotals())):
                    entry.add(usage, rate)
                if day is not None:
                    report.days.setdefault(day, UsageTotals()).add(usage, rate)
    report.sessions.extend(totals for totals in by_session if totals.messages)
    days = dict(sorted(report.days.items()))
    return msgspec.structs.replace(report, days=days, models=dict(sorted(report.models.items())))


class _AnswerUsage(Struct):
    """The usage of one API response; its rows repeat it, with growing numbers until the response is complete."""

    model: str
    timestamp: str | None
    is_copy: bool = False
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)


class _FileUsage(Struct):
    """The data of one session and its sub-agents."""

    path: Path
    answers: dict[str, _AnswerUsage]
    prices: list[Mapping[str, ModelUsage]]
    reported_usd: float | None = None


class _UsageMessage(Struct):
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None


class _UsageRow(Struct, rename="camel"):
    type: str = ""
    timestamp: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    request_session_id: str | None = None
    forked_from: dict[str, str] | None = None
    message: _UsageMessage | None = None
    model_usage: dict[str, ModelUsage] | None = None
    total_cost: float | None = msgspec.field(default=None, name="totalCostUSD")


_decode_usage_row = msgspec.json.Decoder(_UsageRow).decode


def _read_all(files: list[tuple[Path, int]], on_progress: OnProgress | None, on_problem: OnProblem) -> list[_FileUsage]:
    read: list[_FileUsage] = []
    total, done = sum(size for _, size in files), 0
    for path, size in files:
        one = _FileUsage(path, {}, [])
        for file in (path, *(file for _, file in list_agent_files(path))):
            _read_file(file, one, on_problem)
        read.append(one)
        done += size
        if on_progress is not None:
            on_progress(done, total)
    return read


def _read_file(path: Path, into: _FileUsage, on_problem: OnProblem) -> None:
    try:
        with open_transcript(path) as file:
            for number, _, line in read_lines(file, path, on_problem):
                if b'"usage":' in line or b'"cost-state"' in line:
                    row = decode_struct(_decode_usage_row, _UsageRow, line.strip(PADDING))
                    if isinstance(row, str):
                        on_problem(TranscriptProblem(str(path), number, "not readable as a row"))
                        _, part, _ = find_row(line)
                        row = decode_struct(_decode_usage_row, _UsageRow, part)
                    if not isinstance(row, str):
                        _count_row(row, into)
    except OSError as error:
        on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))


def _count_row(row: _UsageRow, into: _FileUsage) -> None:
    if row.type == "cost-state":
        into.reported_usd = row.total_cost if row.total_cost is not None and is_cost(row.total_cost) else None
        if row.model_usage:
            into.prices.append({model: usage for model, usage in row.model_usage.items() if is_cost(usage.cost_usd)})
        return
    body = row.message
    if row.type != "assistant" or body is None or body.usage is None or body.model in (None, SYNTHETIC_MODEL):
        return
    usage = body.usage
    key = body.id or row.request_id
    if key is None:
        return
    is_copy = row.forked_from is not None or row.request_session_id not in (None, row.session_id)
    known = into.answers.setdefault(key, _AnswerUsage(body.model or "", row.timestamp, is_copy))
    fresh, output, written, read = map(max, known.counts, _count_tokens(usage))
    known.counts = (fresh, output, written, read)


def _name_models(one: _FileUsage) -> dict[str, str]:
    """Return the names under which the last prices of a session, which are sums, have the models of its answers."""
    last = one.prices[-1] if one.prices else dict[str, ModelUsage]()
    answers = ((usage.model, usage.counts) for usage in one.answers.values())
    return match_models(answers, {name: _count_tokens(usage) for name, usage in last.items()})


def _estimate_rates(model_usages: Iterable[Mapping[str, ModelUsage]]) -> dict[str, float]:
    """Return the price of one token of fresh input in US dollars, by model."""
    usd: dict[str, float] = defaultdict(float)
    weight: dict[str, float] = defaultdict(float)
    for models in model_usages:
        for model, usage in models.items():
            usd[model] += usage.cost_usd
            weight[model] += weigh_tokens(_count_tokens(usage))
    return {model: usd[model] / weight[model] for model in usd if weight[model]}


def _count_tokens(usage: Usage | ModelUsage) -> tuple[int, int, int, int]:
    return (usage.input_tokens, usage.output_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)


def match_models(replies: Iterable[tuple[str, Sequence[int]]], totals: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the names under which the CLI has counted the models that wrote replies; without those it has not.

    The CLI counts by the name that it asks for, and a reply has the name that the server gives: the API answers a
    request for `claude-x` as `claude-x-20260101`, and a gateway as anything. So what no name tells is taken for a
    model that is left, and that had all of this input. A name of the API is not: the CLI may count it later.

    Args:
        replies: the model that each reply names, and its tokens in the order of `UsageTotals`.
        totals: the tokens that the CLI has counted, by model.
    """
    shown: dict[str, list[int]] = {}
    for model, counts in replies:
        sums = shown.setdefault(model, [0] * len(counts))
        sums[:] = map(add, sums, counts)
    short = {_NAME_TAIL.sub("", name): name for name in reversed([*totals])}
    found = {model: model if model in totals else short.get(_NAME_TAIL.sub("", model), "") for model in shown}
    left = {name: counts for name, counts in totals.items() if name not in found.values()}
    unnamed = [model for model, name in found.items() if not name and not model.startswith("claude-")]
    for model in sorted(unnamed, key=lambda model: -sum(shown[model][kind] for kind in INPUTS)):
        needed = shown[model]
        fitting = [name for name, counts in left.items() if all(counts[kind] >= needed[kind] for kind in INPUTS)]
        if fitting and any(needed):
            found[model] = min(fitting, key=lambda name: sum(left[name][kind] for kind in INPUTS))
            del left[found[model]]
    return {model: name for model, name in found.items() if name}


def is_cost(usd: float) -> bool:
    """Return whether a number can be a cost. NaN, which JSON of Python may have, would spoil every sum it is in."""
    return 0 <= usd <= _MAX_USD


def weigh_tokens(counts: Sequence[int]) -> float:
    """Return what tokens cost relative to fresh input: of fresh input, output, cache writes and cache reads."""
    return sum(count * weight for count, weight in zip(counts, _TOKEN_WEIGHTS, strict=True))


def _parse_day(timestamp: str | None, utc: bool) -> date | None:
    try:
        moment = datetime.fromisoformat(timestamp or "")
        return (moment.astimezone(UTC) if utc else moment.astimezone()).date()
    except (ValueError, OverflowError):
        return None


def _is_between(day: date | None, since: date | None, until: date | None) -> bool:
    if day is None:
        return since is None and until is None
    return (since is None or day >= since) and (until is None or day <= until)
