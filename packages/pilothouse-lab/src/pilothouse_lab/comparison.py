"""`compare`: runs the cases with a baseline and a candidate, checks each run, and keeps its record.

Every run is one of a fleet: with a workspace of its own, a budget, and a journal, so that an interrupted comparison
goes on. The record of a run (`run.json`) and the recording of its protocol (`recording.jsonl`) lie in a directory for
it; a report is made from these records alone.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

import msgspec

import pilothouse as ph
from pilothouse.support import run_blocking
from pilothouse_fleet import AgentRunner, Attempt, CopiedDirectory, Fleet, Workspace, WorkspaceRunner
from pilothouse_lab.checks import CaseRun, Check, CheckFunction, Verdict, get_check_name, run_check
from pilothouse_lab.report import VARIANTS, RecordedCall, Report, RunRecord, Variant
from pilothouse_testing import Recorder, ReplayTransport

_LIMITS = (ph.BudgetError, ph.ContextOverflowError, ph.MaxTurnsError, ph.QueryTimeout)
OWN_FAILURES = (*_LIMITS, ph.ExecutionError, ph.StructuredOutputError)
"""Failures of a run that its configuration causes. Any other, such as an overloaded API, counts for neither side."""
PRIVATE_OPTIONS = frozenset({"api_key", "auth_token", "oauth_token", "env", "mcp_servers", "settings", "extra_args"})
"""Options that may hold keys, and are not part of the key of a run."""
MAX_NAME_CHARS = 400
ANSWERS = "ends with an answer"
"""The check that every run has."""


@dataclass(frozen=True)
class Case:
    """A task for the agent, and what decides whether a run did it.

    Args:
        name: a short name, unique among the cases.
        prompt: the prompt.
        checks: all have to pass: functions of a `CaseRun`, or what `passes`, `calls` and `judge` make. A run that ends
            with an error fails before them.
        workspace: the directory (or archive) of which each run gets a copy, or a workspace such as
            `pilothouse_fleet.GitWorktree`. None: an empty directory.
        output_type: type of a typed output, as for `Agent.query`; an answer that does not fit fails the run.

    Raises:
        UsageError: the name, the prompt or the checks are something else.
    """

    name: str
    prompt: str
    checks: Sequence[Check | CheckFunction] = ()
    workspace: str | os.PathLike[str] | Workspace | None = None
    output_type: Any = None

    def __post_init__(self) -> None:
        for name, given in (("name", self.name), ("prompt", self.prompt)):
            if not isinstance(given, str) or not given:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ph.UsageError(f"Case: {name}: expected text, got {given!r:.80}")
        if not self.name.isprintable() or len(self.name) > MAX_NAME_CHARS:  # it is a part of the keys of runs
            wanted = f"expected one line of printable text, {MAX_NAME_CHARS} characters at most"
            raise ph.UsageError(f"Case: name: {wanted}, got {self.name!r:.80}")
        if found := _explain_checks(self.checks):
            wanted = "expected a list of functions or checks"
            raise ph.UsageError(f"Case {self.name!r:.80}: checks: {wanted}, got {found}")


def _explain_checks(given: object) -> str:
    """Return what is given in place of a list of checks, and what to write; "" for a list of checks."""
    if isinstance(given, Check):
        return "one check; write [check]"
    if callable(given):
        return "a function; write [f]"
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        items = cast("Sequence[object]", given)
        wrong = [each for each in items if not isinstance(each, Check) and not callable(each)]
        if not wrong:
            return ""
        given = wrong[0]
    return f"{given!r:.80}" + (f"; for a command: [passes({given!r:.80})]" if isinstance(given, str) else "")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, before it begins."""

    case: Case
    variant: Variant
    number: int
    agent: ph.Agent = field(repr=False)

    def make_key(self) -> str:
        """Return its key: another one when the prompt, the names of the checks or plain settings have changed."""
        plain = [self.case.prompt, *map(get_check_name, self.case.checks)]
        for name, value in sorted(self.agent.options.as_dict().items()):
            try:
                plain += [] if name in PRIVATE_OPTIONS else [name, str(msgspec.json.encode(value))]
            except TypeError:  # functions cannot be compared between processes
                continue
        digest = hashlib.sha256("\0".join(plain).encode("utf-8", "replace")).hexdigest()[:12]
        return f"{self.case.name} {self.variant} {self.number} {digest}"


async def compare(
    cases: Sequence[Case],
    *,
    baseline: ph.Agent,
    candidate: ph.Agent,
    runs: int = 10,
    max_budget_usd: float | None = None,
    run_budget_usd: float | None = None,
    concurrency: int = 4,
    directory: str | os.PathLike[str] | None = None,
    keep_workspaces: bool = False,
    on_run: Callable[[RunRecord], object] | None = None,
) -> Report:
    """Run each case `runs` times with each of two agents, in turns, and report which is better.

    ::

        cases = [Case("fixes the bug", "Fix the bug in shop.py", [passes("pytest -q")], workspace="fixtures/shop")]
        report = await compare(cases, baseline=ph.Agent(), candidate=ph.Agent(model="haiku"), max_budget_usd=5)
        print(report)
        sys.exit(report.exit_code)

    Args:
        cases: what to run.
        baseline: the agent as it is. Its `cwd` is replaced by the workspace of a run.
        candidate: the agent with the change.
        runs: runs of each case with each agent. Default 10.
        max_budget_usd: no run starts once all runs and their judges have cost this much, in US dollars; the report
            is then incomplete. Earlier runs in `directory` count too, including those made before a prompt or a setting
            was changed. Runs under way may exceed it, unless `run_budget_usd` is set. None: no limit.
        run_budget_usd: the most that one run may cost; a run that needs more fails. None: no limit.
        concurrency: runs at the same time. Default 4.
        directory: where records, recordings and the journal are kept. An existing one continues its comparison: ended
            runs are not repeated. Functions (hooks, tools, checks), files of workspaces, and options that may hold keys
            (`env`, `mcp_servers`, `settings`, `extra_args`) are not compared: name a new directory when they have
            changed. None: a new temporary directory.
        keep_workspaces: whether the directories that the agents worked in stay. Default False.
        on_run: called with the record of each run, when it has ended.

    Raises:
        UsageError: no cases, two of one name, a workspace that is not there, or settings that cannot work.
        PilothouseError: all runs fail for the same reason, such as a wrong key; correct it, and call again with the
            same directory.
    """
    _check_arguments(cases, runs, concurrency, {"baseline": baseline, "candidate": candidate})
    root = await run_blocking(_make_directory, directory)
    pairs = (baseline, candidate)
    order = [
        PlannedRun(case, VARIANTS[which], number, pairs[which])
        for number in range(1, runs + 1)
        for case in cases
        for which in ((0, 1) if number % 2 else (1, 0))
    ]
    runner = LabRunner({one.make_key(): one for one in order}, root, run_budget_usd)
    settings: dict[str, Any] = {"budget_usd": max_budget_usd, "run_budget_usd": run_budget_usd}
    stopped, spent, judges_usd = "", 0.0, 0.0
    async with AsyncExitStack() as stack:
        for case in cases:
            source = root / "empty" if case.workspace is None else case.workspace
            if isinstance(source, str | os.PathLike):
                keep = "always" if keep_workspaces else "never"
                source = CopiedDirectory(source, root=root / "workspaces", keep=keep)
            try:
                runner.workspaces[case.name] = await stack.enter_async_context(WorkspaceRunner(runner, source))
            except ph.UsageError as error:
                raise ph.UsageError(f"Case {case.name!r:.80}: workspace: {error}") from error
        fleet = Fleet(
            runner=runner, concurrency=concurrency, journal=root / "runs.db", on_interrupted="restart", **settings
        )
        await stack.enter_async_context(fleet)
        ended = fleet.map(runner.plan.items(), key=lambda item: item[0], prompt=lambda item: item[1].case.prompt)
        try:
            async for run in ended:
                if record := await run_blocking(runner.load, run.key):
                    judges_usd += sum(verdict.cost_usd for verdict in record.verdicts)
                    if on_run is not None:
                        on_run(record)
                status = await fleet.status()
                spent = status.cost_usd + status.lost_usd + judges_usd
                if max_budget_usd is not None and spent >= max_budget_usd and status.left:
                    raise ph.BudgetError(f"the budget of ${max_budget_usd:g} is spent (${spent:.4f})")
        except ph.BudgetError as error:
            ended.close()
            stopped = str(error)
        except ph.PilothouseError as error:
            cause = next((each for each in runner.lost_in_row if each is error.__cause__), None)
            if cause is None:
                raise
            raise _make_stop_error(cause, len(runner.lost_in_row), root) from cause
    records = [record for key in runner.plan if (record := await run_blocking(runner.load, key))]
    return Report([case.name for case in cases], records, len(runner.plan), stopped, spent, root)


def _check_arguments(cases: object, runs: object, concurrency: object, agents: Mapping[str, object]) -> None:
    """Raise a UsageError for what `compare` cannot work with."""
    wanted = "compare: cases: expected a list of Case"
    if isinstance(cases, Case):
        raise ph.UsageError(f"{wanted}, got one Case; write [case]")
    if not isinstance(cases, Sequence) or isinstance(cases, str | bytes):
        raise ph.UsageError(f"{wanted}, got {type(cast('object', cases)).__name__}")
    names: set[str] = set()
    for case in cast("Sequence[object]", cases):
        if not isinstance(case, Case):
            raise ph.UsageError(f"{wanted}, got a list with {case!r:.80}")
        if case.name in names:
            raise ph.UsageError(f"compare: two cases are named {case.name!r:.80}")
        names.add(case.name)
    if not names:
        raise ph.UsageError("compare: there are no cases")
    for name, given in (("runs", runs), ("concurrency", concurrency)):
        if type(given) is not int or given < 1:
            raise ph.UsageError(f"compare: {name}: expected a whole number from 1, got {given!r:.80}")
    for name, agent in agents.items():
        if not isinstance(agent, ph.Agent):
            raise ph.UsageError(f"compare: {name}: expected an Agent, got {type(agent).__name__}")


def _make_stop_error(cause: Exception, failed: int, root: Path) -> Exception:
    """Make the error for a comparison whose runs all fail: a copy of theirs, of the same class."""
    error = copy.copy(cause)
    advice = "Log in, or correct the key," if isinstance(cause, ph.AuthenticationError) else "Correct this,"
    again = f"{advice} and call compare again; with directory={str(root)!r} only missing runs are made"
    error.args = (f"compare: stopped after {failed} runs failed in a row: {str(cause).rstrip('.')}. {again}",)
    return error


def _make_directory(given: str | os.PathLike[str] | None) -> Path:
    """Make the directory of a comparison, for this user only; with an empty one, to copy. Blocking."""
    path = Path(tempfile.mkdtemp(prefix="pilothouse-lab-") if given is None else given).absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (path / "empty").mkdir(exist_ok=True)
    return path


async def replay(record: RunRecord, agent: ph.Agent, case: Case) -> ph.QueryResult[Any]:
    """Play the recording of a run back, without Claude Code, a key or a network: hooks and tools of `agent` are called.

    With the agent of the run, this shows its whole answer again. With a changed one, the first hook, permission or tool
    that answers differently raises, and the error shows both answers.

    Args:
        record: the run.
        agent: whose hooks, permissions and tools are called.
        case: the case of the run.

    Raises:
        ReplayMismatch: the agent does not do what was recorded.
        CassetteError: the recording cannot be read.
    """
    own: dict[str, Any] = {"session_id": record.session_id, "max_budget_usd": record.limit_usd}
    own |= {"cwd": tempfile.gettempdir(), "transport": ReplayTransport(record.recording)}
    return await agent.query(case.prompt, output_type=case.output_type, **own)


class LabRunner:
    """Executes the runs of a plan: in a workspace, recorded, and checked while the workspace is there.

    Args:
        plan: the runs, by key.
        root: the directory of the comparison.
        run_budget_usd: as for `compare`.

    Attributes:
        plan: the runs.
        workspaces: runs this runner in the workspace of a case, by its name.
        lost_in_row: the errors of the latest runs, if they count for neither side.
    """

    def __init__(self, plan: dict[str, PlannedRun], root: Path, run_budget_usd: float | None) -> None:
        self.plan = plan
        self.workspaces: dict[str, WorkspaceRunner] = {}
        self.lost_in_row: list[ph.PilothouseError] = []
        self._root = root
        self._run_budget_usd = run_budget_usd

    async def run(self, attempt: Attempt) -> ph.QueryResult[Any]:
        """See `pilothouse_fleet.Runner`. Called by the fleet, and then by the runner of the workspace, with a `cwd`."""
        one = self.plan[attempt.key]
        case, options = one.case, one.agent.options
        if "cwd" not in attempt.settings:
            return await self.workspaces[case.name].run(attempt)
        cwd, recording = attempt.settings["cwd"], self._find(attempt.key) / "recording.jsonl"
        attempt.settings = {**attempt.settings, "transport": Recorder(recording, options.transport or ph.CliTransport)}
        attempt.output_type, attempt.keeps_messages = case.output_type, True
        own_limit = min(self._run_budget_usd or inf, options.max_budget_usd or inf)
        limit = min(own_limit, attempt.max_budget_usd or inf)
        record = RunRecord(case=case.name, variant=one.variant, number=one.number, recording=str(recording))
        record.workspace, record.limit_usd = cwd, None if limit == inf else limit
        result, error, is_answered = None, None, False
        try:
            result = await AgentRunner(one.agent).run(attempt)
            is_answered = result.raise_for_error() is result
            run = CaseRun(case.name, case.prompt, result, Path(cwd))
            record.verdicts = [await run_check(check, run) for check in case.checks]
        except ph.PilothouseError as found:  # of the run, or of a judge
            error = found
        reason = "" if error is None else f"{type(error).__name__}: {error}"
        is_own = isinstance(error, OWN_FAILURES) and not is_answered
        if error is not None and (not is_own or (isinstance(error, ph.BudgetError) and limit < own_limit)):
            record.lost = reason
        self.lost_in_row = [*self.lost_in_row, error] if error is not None and record.lost else []
        record.verdicts.insert(0, Verdict(check=ANSWERS, passed=error is None, saw=reason))
        record.passed = all(verdict.passed for verdict in record.verdicts)
        record.session_id, record.turns, record.cost_usd = attempt.session_id, attempt.requests, None
        if result is not None:
            record.text, record.turns, record.cost_usd = result.text, result.turns, result.cost_usd
            record.tool_calls = [RecordedCall(call.name, _hide_path(call.input, cwd)) for call in result.tool_uses]
        await run_blocking(self._save, attempt.key, record)
        if result is None:
            assert error is not None
            raise error
        result.error = result.error or error  # what a run without a verdict has cost is spent
        return result

    def _find(self, key: str) -> Path:
        return self._root / "runs" / hashlib.sha256(key.encode()).hexdigest()[:20]

    def _save(self, key: str, record: RunRecord) -> None:
        path = self._find(key) / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(msgspec.to_builtins(record), ensure_ascii=False)
        path.with_suffix(".new").write_bytes(text.encode("utf-8", "replace"))  # a model may write half of a pair
        path.with_suffix(".new").replace(path)

    def load(self, key: str) -> RunRecord | None:
        """Read the record of a run; None if there is none. Blocking."""
        path = self._find(key) / "run.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunRecord) if path.exists() else None
        except msgspec.DecodeError as error:
            raise ph.UsageError(f"compare: the record {path} is damaged ({error}); name a new directory") from error


def _hide_path(value: Any, path: str) -> str:
    """Return the input of a tool call as JSON, without the path of the workspace: it differs from run to run."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.replace(path, ".")
