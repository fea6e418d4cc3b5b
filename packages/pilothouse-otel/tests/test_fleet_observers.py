"""A fleet seen from outside: its spans and metrics, what watchers are told, and that a bad one touches nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest
from failing_instrumentation import FAULTS
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from otel_memory import Record

import pilothouse as ph
import pilothouse_fleet.sync
from pilothouse import instrumentation
from pilothouse.messages import from_dict
from pilothouse_fleet import (
    Attempt,
    AttemptEnd,
    AttemptObserver,
    Fleet,
    FleetInstrumentation,
    FleetJournalError,
    FleetObserver,
    FleetStart,
    FleetStatus,
    Run,
)
from pilothouse_testing import frames, mock_transport

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

FLEET, ATTEMPT, QUERY = "invoke_workflow fleet", "pilothouse.fleet.attempt", "invoke_agent claude-code"


class Played:
    """A runner that answers as `play` says, for an agent that is watched by `watcher`."""

    def __init__(self, watcher: Any, play: Callable[[Attempt, int], ph.QueryResult] | None = None) -> None:
        self.agent = ph.Agent(instrumentation=watcher)
        self.tries: Counter[str] = Counter()
        self.current: dict[str, Any] = {}
        self._play = play

    async def run(self, attempt: Attempt) -> ph.QueryResult:
        self.tries[attempt.key] += 1
        self.current[attempt.key] = trace.get_current_span()
        await anyio.sleep(1)
        if self._play is not None:
            return self._play(attempt, self.tries[attempt.key])
        return output()


def output(
    text: str = "secret answer", *, cost: float = 0.5, error: ph.PilothouseError | None = None
) -> ph.QueryResult:
    usage = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 100, "cacheCreationInputTokens": 0}
    frame = frames.result(text, total_cost_usd=cost, modelUsage={"model": {**usage, "costUSD": cost}})
    return ph.QueryResult([from_dict(frames.init()), from_dict(frame)], failure=error)


async def test_the_spans_of_a_fleet(record: Record) -> None:
    seen = record()
    runner = Played(seen.otel)
    with seen.tracer.start_as_current_span("caller") as caller:
        async with Fleet(runner=runner, concurrency=2, budget_usd=20) as fleet:
            await fleet.gather(["secret a", "secret b"], key=lambda text: text[-1], priority=3)
            assert trace.get_current_span() is caller
    assert seen.tree() == (("caller", ((FLEET, ((ATTEMPT, ()), (ATTEMPT, ()))),)),)
    assert seen.attributes(FLEET) == {
        "gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "fleet",
        "pilothouse.fleet.concurrency": 2, "pilothouse.fleet.budget_usd": 20, "pilothouse.fleet.succeeded": 2,
        "pilothouse.fleet.failed": 0, "pilothouse.fleet.cancelled": 0, "pilothouse.cost_usd": 1.0,
    }  # fmt: skip
    attempts = {str(dict(s.attributes or {})["pilothouse.fleet.run.key"]): s for s in seen.spans if s.name == ATTEMPT}
    assert dict(attempts["a"].attributes or {}) == {
        "pilothouse.fleet.run.key": "a", "pilothouse.fleet.run.attempt": 1, "pilothouse.fleet.run.priority": 3,
        "pilothouse.fleet.run.state": "succeeded", "gen_ai.conversation.id": frames.SESSION_ID,
        "gen_ai.usage.input_tokens": 110, "gen_ai.usage.output_tokens": 5, "pilothouse.cost_usd": 0.5,
    }  # fmt: skip
    assert {s.status.status_code for s in seen.spans} == {StatusCode.UNSET}
    assert "secret" not in "".join(s.to_json() for s in seen.spans)
    # What the runner does lies in the span of its own attempt.
    for key, span in attempts.items():
        assert runner.current[key].get_span_context() == span.context


async def test_the_query_of_an_attempt_lies_in_it(record: Record) -> None:
    seen = record()
    agent = ph.Agent(transport=mock_transport("hi"), instrumentation=seen.otel)
    async with Fleet(agent, concurrency=3) as fleet:
        await fleet.gather(list("abcdef"), key=str)
    [(name, attempts)] = seen.tree()
    assert (name, attempts) == (FLEET, ((ATTEMPT, ((QUERY, ()),)),) * 6)


async def test_a_further_attempt_is_linked_to_the_one_before(record: Record) -> None:
    def play(attempt: Attempt, number: int) -> ph.QueryResult:
        if attempt.key == "a" and number < 3:
            raise ph.OverloadedError("secret words", api_error_status=529)
        return output()

    seen = record()
    async with Fleet(runner=Played(seen.otel, play), retry=5) as fleet:
        await fleet.gather(list("ab"), key=str)
    mine = [s for s in seen.spans if s.name == ATTEMPT and (s.attributes or {})["pilothouse.fleet.run.key"] == "a"]
    mine.sort(key=lambda s: s.start_time or 0)
    first, second, third = mine
    assert [(s.attributes or {})["pilothouse.fleet.run.attempt"] for s in mine] == [1, 2, 3]
    assert [(s.attributes or {})["pilothouse.fleet.run.state"] for s in mine] == ["queued", "queued", "succeeded"]
    assert [[link.context for link in s.links] for s in mine] == [[], [first.context], [second.context]]
    assert (first.status.status_code, (first.attributes or {})["error.type"]) == (StatusCode.ERROR, "OverloadedError")
    assert third.status.status_code == StatusCode.UNSET
    [other] = [s for s in seen.spans if s.name == ATTEMPT and s not in mine]
    assert not other.links


async def test_errors_that_may_quote_are_written_down_only_with_content(record: Record) -> None:
    def play(attempt: Attempt, number: int) -> ph.QueryResult:
        raise ph.ExecutionError("secret words")

    for capture in (False, True):
        seen = record(capture_content=capture)
        async with Fleet(runner=Played(seen.otel, play)) as fleet:
            await fleet.gather(["secret a"])
        reported = "".join(s.to_json() for s in seen.spans)
        assert ("secret words" in reported) is capture
        assert "secret a" not in reported
        assert seen.attributes(ATTEMPT)["error.type"] == "ExecutionError"


async def test_the_metrics_of_a_fleet(record: Record) -> None:
    running: list[float] = []

    def play(attempt: Attempt, number: int) -> ph.QueryResult:
        [(_, count)] = seen.metrics()["pilothouse.fleet.running"]
        running.append(count)
        if attempt.key == "a" and number == 1:
            raise ph.OverloadedError("busy")
        if attempt.key == "b":
            return output("", error=ph.MaxTurnsError("long"))
        return output()

    def by_state(name: str) -> dict[Any, float]:
        return {facts.get("pilothouse.fleet.run.state"): value for facts, value in found[name]}

    seen = record()
    async with Fleet(runner=Played(seen.otel, play), concurrency=2) as fleet:
        await fleet.gather(list("abcd"), key=str)
    found = seen.metrics()
    assert max(running) == 2
    assert by_state("pilothouse.fleet.runs.ended") == {"succeeded": 3, "failed": 1}
    assert by_state("pilothouse.fleet.cost") == {"succeeded": 1.5, "failed": 0.5}
    assert found["pilothouse.fleet.running"] == [({}, 0)]
    assert by_state("pilothouse.fleet.runs.left") == {"queued": 0, "running": 0, "interrupted": 0}
    took = [facts for facts, _ in found["pilothouse.fleet.attempt.duration"]]
    kinds = {(facts["pilothouse.fleet.run.state"], facts.get("error.type")) for facts in took}
    assert kinds == {("succeeded", None), ("failed", "MaxTurnsError"), ("queued", "OverloadedError")}


async def test_remaining_runs_are_reported_periodically(record: Record, tmp_path: Path) -> None:
    seen = record()
    async with Fleet(runner=Played(seen.otel), concurrency=1, journal=tmp_path / "runs.db") as fleet:
        runs = fleet.map([str(n) for n in range(40)])
        for _ in range(20):
            await anext(runs)
        await anyio.sleep(16)  # the next look
        states = {f["pilothouse.fleet.run.state"]: n for f, n in seen.metrics()["pilothouse.fleet.runs.left"]}
        assert states["queued"] > 0
        await fleet.cancel()


async def test_a_fleet_that_was_stopped_is_a_span_with_that_error(record: Record) -> None:
    def play(attempt: Attempt, number: int) -> ph.QueryResult:
        raise ph.AuthenticationError("wrong key", api_error_status=401)

    seen = record()
    async with Fleet(runner=Played(seen.otel, play), concurrency=1) as fleet:
        with pytest.raises(ph.AuthenticationError):
            await fleet.gather([str(n) for n in range(9)])
    span = seen.span(FLEET)
    assert (span.status.status_code, seen.attributes(FLEET)["error.type"]) == (StatusCode.ERROR, "AuthenticationError")
    attempts = [s for s in seen.spans if s.name == ATTEMPT]
    assert [(s.attributes or {})["pilothouse.fleet.run.state"] for s in attempts] == ["failed"] * 3
    # That they were held until it was clear is no part of them.
    assert max((s.end_time or 0) - (s.start_time or 0) for s in attempts) < 20e9


# The seam.

inside: ContextVar[str] = ContextVar("inside", default="nothing")


class Notes(AttemptObserver):
    def __init__(self, run: Run, ends: list[tuple[Run, AttemptEnd]]) -> None:
        self._run = run
        self._ends = ends

    @contextmanager
    def run_context(self) -> Generator[None]:
        token = inside.set(f"{inside.get()} {self._run.key}")
        try:
            yield
        finally:
            inside.reset(token)

    def on_end(self, end: AttemptEnd) -> None:
        self._ends.append((self._run, end))


class FleetNotes(FleetObserver):
    def __init__(self) -> None:
        self.ends: list[tuple[Run, AttemptEnd]] = []
        self.statuses: list[FleetStatus] = []
        self.over: list[BaseException | None] = []

    @contextmanager
    def run_context(self) -> Generator[None]:
        token = inside.set("fleet")
        try:
            yield
        finally:
            inside.reset(token)

    def attempt_started(self, run: Run) -> AttemptObserver | None:
        return None if run.key == "unwatched" else Notes(run, self.ends)

    def on_status(self, status: FleetStatus) -> None:
        self.statuses.append(status)

    def on_end(self, error: BaseException | None) -> None:
        self.over.append(error)


class Notebook:
    def __init__(self) -> None:
        self.fleets: list[FleetNotes] = []
        self.starts: list[FleetStart] = []

    def query_started(self, start: Any) -> None:
        return None

    def session_environ(self) -> Mapping[str, str | None]:
        return {}

    def fleet_started(self, start: FleetStart) -> FleetNotes:
        self.starts.append(start)
        self.fleets.append(FleetNotes())
        return self.fleets[-1]


async def test_an_observer_gets_every_event() -> None:
    contexts: dict[str, str] = {}

    def play(attempt: Attempt, number: int) -> ph.QueryResult:
        contexts[attempt.key] = inside.get()
        return output()

    notebook = Notebook()
    assert isinstance(notebook, FleetInstrumentation)
    runner = Played(notebook, play)
    runner.agent = runner.agent.with_options(api_key="planted-key-0123456789")
    async with Fleet(runner=runner, concurrency=3, budget_usd=5) as fleet:
        await fleet.gather(["x", "y"], key=str)
        await fleet.gather(["z"], key=lambda _: "unwatched")
        assert inside.get() == "nothing"
    [start], [notes] = notebook.starts, notebook.fleets
    assert (start.concurrency, start.budget_usd) == (3, 5)
    assert "planted" not in start.redact("it has planted-key-0123456789 in it")
    assert contexts == {"x": "fleet x", "y": "fleet y", "unwatched": "fleet"}
    assert sorted(before.key for before, _ in notes.ends) == ["x", "y"]
    before, end = notes.ends[0]
    assert (before.state, before.attempts, end.run.state) == ("running", 1, "succeeded")
    assert (end.cost_usd, end.input_tokens, end.output_tokens, end.is_recorded) == (0.5, 110, 5, True)
    assert end.seconds > 0
    assert notes.statuses[-1].succeeded == 3
    assert notes.over == [None]


async def test_an_observer_gets_an_error_that_leaves_the_block() -> None:
    notebook = Notebook()

    async def fails() -> None:
        async with Fleet(runner=Played(notebook)) as fleet:
            await fleet.submit("x", key="x")
            await anyio.sleep(0.5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    [notes] = notebook.fleets
    assert [end.run.state for _, end in notes.ends] == ["interrupted"]
    assert [type(error) for error in notes.over] == [ZeroDivisionError]


async def test_a_block_that_cannot_be_entered_is_observed(tmp_path: Path) -> None:
    notebook = Notebook()
    (tmp_path / "runs.db").write_text("no journal")
    with pytest.raises(FleetJournalError):
        await Fleet(runner=Played(notebook), journal=tmp_path / "runs.db").__aenter__()
    assert [type(error) for error in notebook.fleets[0].over] == [FleetJournalError]


PLACES = ("fleet_started", "run_context", "attempt_started", "attempt_context", "on_status", "attempt_end", "on_end")


def broken(place: str, fault: Callable[..., Any]) -> Any:
    """A watcher that fails in one place."""

    def or_fault(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        return (lambda *_: fault()) if name == place else plain

    class Bad(Notebook):
        def fleet_started(self, start: FleetStart) -> Any:
            notes: Any = super().fleet_started(start)
            started = notes.attempt_started

            def attempt_started(run: Run) -> Any:
                attempt = started(run)
                attempt.run_context = or_fault("attempt_context", attempt.run_context)
                attempt.on_end = or_fault("attempt_end", attempt.on_end)
                return attempt

            notes.attempt_started = or_fault("attempt_started", attempt_started)
            for name in ("run_context", "on_status", "on_end"):
                setattr(notes, name, or_fault(name, getattr(notes, name)))
            return fault() if place == "fleet_started" else notes

    return Bad()


@pytest.mark.sample(5)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_watcher_that_fails_touches_nothing(
    fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in PLACES:
        monkeypatch.setattr(instrumentation, "_reported", set())
        caplog.clear()
        good = Notebook()
        async with Fleet(runner=Played([broken(place, FAULTS[fault]), good])) as fleet:
            runs = await fleet.gather(list("abc"), key=str)
        assert [run.text for run in runs] == ["secret answer"] * 3
        assert [end.run.state for _, end in good.fleets[0].ends] == ["succeeded"] * 3
        assert good.fleets[0].over == [None]
        reported = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(reported) <= 2, place  # once for each class that failed
        assert {one.name for one in reported} <= {"pilothouse.instrumentation"}


def test_a_fleet_of_plain_code_lies_in_the_span_of_its_caller(record: Record) -> None:
    class Plain:
        async def run(self, attempt: Attempt) -> ph.QueryResult:
            return output()

    seen = record()
    ph.configure(instrumentation=seen.otel)
    with seen.tracer.start_as_current_span("caller"), pilothouse_fleet.sync.Fleet(runner=Plain()) as fleet:
        fleet.gather(list("ab"))
    assert seen.tree() == (("caller", ((FLEET, ((ATTEMPT, ()), (ATTEMPT, ()))),)),)
