"""Costs: what a conversation has used, turn by turn and model by model, and budgets that stop it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import TRANSCRIPTS

import pilothouse as ph
from pilothouse.client.budgets import TokenBudget
from pilothouse.client.costs import KEPT_TURNS, CostTracker
from pilothouse.engine import QueryRun
from pilothouse.events import BudgetReached
from pilothouse.messages import Message, ModelUsage, decode
from pilothouse.options import Options
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio

OPUS, HAIKU = "claude-opus-5-5", "claude-haiku-5-5"


def decoded(*lines: dict[str, Any]) -> list[Message]:
    return [decode(json.dumps(line).encode()) for line in lines]


def recorded(name: str) -> list[Message]:
    found: list[dict[str, Any]] = []
    for line in (TRANSCRIPTS / name).read_text().splitlines():
        entry = json.loads(line)
        message = entry.get("msg")
        kind = message.get("type", "control_") if isinstance(message, dict) else "control_"
        if entry.get("dir") == "out" and not kind.startswith("control_"):
            found.append(message)
    return decoded(*found)


def usage(input: int = 0, output: int = 0, read: int = 0, written: int = 0, usd: float = 0.0) -> dict[str, Any]:  # noqa: A002
    return {
        "inputTokens": input, "outputTokens": output, "cacheReadInputTokens": read,
        "cacheCreationInputTokens": written, "costUSD": usd,
    }  # fmt: skip


def printed(key: str, input: int, output: int, *, model: str = OPUS, **extra: Any) -> dict[str, Any]:  # noqa: A002
    frame = frames.assistant("text", message_id=key, model=model, **extra)
    frame["message"]["usage"] = {"input_tokens": input, "output_tokens": output, "cache_read_input_tokens": 5}
    return frame


def result(since: dict[str, Any] | None, total: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    frame = frames.result("done", **extra)
    frame["modelUsage"] = since if total is None else total
    if since is not None:
        frame["model_usage_since_last_result"] = since
    return frame


# What the CLI has said.


@pytest.mark.parametrize(
    ("name", "turns", "tokens", "usd"),
    [
        ("06_two_turns_stream_json.ndjson", [22, 44], 66, 0.00084),
        ("16_interrupt_mid_stream.ndjson", [14, 22], 36, 0.0004),
        ("17_interrupt_mid_tool.ndjson", [22], 22, 0.00028),
        ("26_resume.ndjson", [22], 22, 0.00028),
        ("27_resume_fork.ndjson", [22], 22, 0.00028),
        ("35b_max_budget.ndjson", [44], 44, 0.00056),
        ("63_subagent.ndjson", [88], 88, 0.000574),
        ("27e_resume_missing.ndjson", [], 0, 0.0),
    ],
)
def test_recordings(name: str, turns: list[int], tokens: int, usd: float) -> None:
    ledger = CostTracker(resumes="resume" in name)
    ledger.track(recorded(name))
    costs = ledger.costs
    assert [turn.total_tokens for turn in costs.turns] == turns
    assert (costs.total_tokens, ledger.total_tokens) == (tokens, tokens)
    assert costs.usd == ledger.usd == pytest.approx(usd, abs=1e-6)
    assert costs.unpriced_tokens == 0
    assert all(turn.is_priced and turn.session_id for turn in costs.turns)


@pytest.mark.sample(20)
@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.ndjson")), ids=lambda p: p.stem)
def test_no_recording_is_counted_twice_or_message_by_message(path: Path) -> None:
    """In one piece or line by line, with the news of the CLI or without it."""
    messages, whole, single = recorded(path.name), CostTracker(), CostTracker()
    whole.track(messages)
    for message in messages:
        single.track([message])
        assert single.total_tokens == single.costs.total_tokens
    assert whole.costs == single.costs


def test_by_model() -> None:
    ledger = CostTracker()
    ledger.track(recorded("63_subagent.ndjson"))
    assert {name: model.output_tokens for name, model in ledger.costs.models.items()} == {OPUS: 24, HAIKU: 24}


def test_a_message_is_counted_once_however_often_its_usage_arrives() -> None:
    ledger = CostTracker()
    ledger.track(
        decoded(printed("m1", 10, 1), printed("m1", 10, 1), printed("m1", 10, 7), printed("m2", 20, 3, model=HAIKU))
    )
    costs = ledger.costs
    assert (costs.input_tokens, costs.output_tokens, costs.cache_read_tokens, costs.cache_creation_tokens) == (
        30,
        10,
        10,
        0,
    )
    assert (ledger.total_tokens, costs.unpriced_tokens, costs.usd) == (50, 50, 0.0)
    [turn] = costs.turns
    assert not turn.is_priced
    ledger.track(decoded(result({OPUS: usage(11, 8, 4, 2, 0.5)})))
    ledger.track(decoded(printed("m2", 20, 4, model=HAIKU)))  # a last block of what was counted in
    assert (ledger.total_tokens, ledger.costs.total_tokens, ledger.costs.usd) == (25, 25, 0.5)


def test_streamed_usage_gives_the_output_before_the_result() -> None:
    ledger = CostTracker()
    start = {"type": "message_start", "message": {**printed("m1", 10, 1)["message"], "content": []}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}}
    ledger.track(decoded(frames.stream_event(start), frames.stream_event(delta, api_message_id="m1")))
    assert ledger.costs.output_tokens == 40
    ledger.track(decoded(printed("m1", 10, 1)))
    assert ledger.total_tokens == 55


def task_started(task: str = "t1", call: str = "agent_1") -> dict[str, Any]:
    return {"type": "system", "subtype": "task_started", "task_id": task, "tool_use_id": call}


def task_ended(tokens: int, status: str = "completed", task: str = "t1", call: str = "agent_1") -> dict[str, Any]:
    facts = {"type": "system", "subtype": "task_notification", "task_id": task, "tool_use_id": call, "status": status}
    return {**facts, "usage": {"total_tokens": tokens, "tool_uses": 0, "duration_ms": 1}}


def of_agent(key: str, input: int, *, calls: bool = False) -> dict[str, Any]:  # noqa: A002
    frame = printed(key, input, 1, parent_tool_use_id="agent_1")
    if calls:
        frame["message"]["content"] = [{"type": "tool_use", "id": f"call_{key}", "name": "Bash", "input": {}}]
    return frame


@pytest.mark.parametrize(
    ("replies", "tokens"),
    [
        ([], 1000),
        ([of_agent("s1", 100)], 1000),  # the last reply, in part
        ([of_agent("s1", 100, calls=True)], 106 + 1000),
        ([of_agent("s1", 100, calls=True), of_agent("s2", 200)], 106 + 1000),
    ],
    ids=["none", "last", "call", "both"],
)
def test_the_last_reply_of_a_sub_agent_counts_whole_once(replies: list[dict[str, Any]], tokens: int) -> None:
    costs = CostTracker()
    costs.track(decoded(task_started(), *replies, task_ended(1000)))
    assert costs.total_tokens == costs.costs.total_tokens == tokens
    costs.track(decoded(result({OPUS: usage(40, 2)})))
    assert costs.total_tokens == 42


def test_what_a_result_includes_is_not_counted_at_the_end_of_the_task() -> None:
    costs = CostTracker()
    costs.track(decoded(task_started(), of_agent("s1", 100), result({OPUS: usage(1000, 1)}), task_ended(1000)))
    assert costs.total_tokens == 1001
    costs.track(decoded(task_started("t2"), result({OPUS: usage(1, 0)}), task_ended(1000, task="t2")))
    assert costs.total_tokens == 1002


def test_a_sub_agent_that_was_stopped_has_no_further_reply() -> None:
    costs = CostTracker()
    costs.track(decoded(task_started(), of_agent("s1", 100, calls=True), task_ended(1000, "stopped")))
    assert costs.total_tokens == 106


def test_totals_that_the_cli_gives_replace_what_its_messages_show() -> None:
    costs = CostTracker()
    costs.track(decoded(result({OPUS: usage(100, 10, usd=0.5)})))
    costs.track(decoded(printed("m1", 10, 1)))
    assert costs.total_tokens == 110 + 16
    costs.note_totals({OPUS: ModelUsage(input_tokens=110, output_tokens=510), HAIKU: ModelUsage(output_tokens=70)})
    assert costs.total_tokens == 110 + 580
    now = costs.costs
    assert (now.unpriced_tokens, now.models[HAIKU].output_tokens, now.usd) == (580, 70, 0.5)
    costs.track(decoded(printed("m2", 1000, 1)))
    assert costs.total_tokens == 110 + 16 + 1006  # the messages show more by now
    costs.note_totals({OPUS: ModelUsage(input_tokens=90)})  # of before the result
    assert costs.total_tokens == 110 + 16 + 1006
    costs.track(decoded(result({OPUS: usage(1110, 510)}, {OPUS: usage(1210, 520)})))
    assert costs.total_tokens == 110 + 1620


def test_the_first_totals_of_a_resumed_conversation_are_its_history() -> None:
    costs = CostTracker(resumes=True)
    costs.note_totals({OPUS: ModelUsage(input_tokens=9000)})
    assert costs.total_tokens == 0
    costs.note_totals({OPUS: ModelUsage(input_tokens=9000, output_tokens=70)})
    assert costs.total_tokens == 70
    costs.on_child_ended()
    assert (costs.total_tokens, costs.costs.unpriced_tokens) == (70, 70)
    costs.note_totals({OPUS: ModelUsage(input_tokens=8000)})  # the next child has not saved everything
    costs.note_totals({OPUS: ModelUsage(input_tokens=8005)})
    assert costs.total_tokens == 75


def test_a_child_that_died_is_counted_by_its_messages() -> None:
    ledger = CostTracker()
    ledger.track(decoded(printed("m1", 10, 5), result({OPUS: usage(10, 5, usd=0.25)})))
    ledger.track(decoded(printed("m2", 30, 7)))
    ledger.on_child_ended()
    ledger.track(decoded(printed("m2", 30, 7)))  # the next child may say it again
    # It begins with what the conversation has cost, as a CLI does that resumes.
    ledger.track(decoded(printed("m3", 1, 1), result({OPUS: usage(1, 1, usd=0.5)}, {OPUS: usage(11, 6, usd=0.75)})))
    costs = ledger.costs
    assert [(turn.total_tokens, turn.is_priced) for turn in costs.turns] == [(15, True), (42, False), (2, True)]
    assert (costs.total_tokens, ledger.total_tokens, costs.unpriced_tokens, costs.usd) == (59, 59, 42, 0.75)


def test_a_cli_that_reports_totals_only() -> None:
    ledger = CostTracker()
    ledger.track(decoded(result(None, {OPUS: usage(10, 5, usd=0.25)})))
    ledger.track(decoded(result(None, {OPUS: usage(30, 9, usd=0.5), HAIKU: usage(1, 1)})))
    ledger.track(decoded(result(None, {OPUS: usage(30, 9, usd=0.5), HAIKU: usage(1, 1)})))  # a turn that cost nothing
    ledger.on_child_ended()
    ledger.track(decoded(result(None, {OPUS: usage(2, 2, usd=0.1)})))  # counts from nothing again
    costs = ledger.costs
    assert [turn.total_tokens for turn in costs.turns] == [15, 26, 4]
    assert costs.usd == pytest.approx(0.6)


def test_a_history_with_only_a_total_is_not_counted() -> None:
    ledger = CostTracker(resumes=True)
    ledger.track(decoded(printed("m1", 7, 2), result(None, {OPUS: usage(1000, 1000, usd=9.0)})))
    ledger.track(decoded(printed("m2", 7, 2), result(None, {OPUS: usage(1010, 1003, usd=9.5)})))
    costs = ledger.costs
    assert [(turn.total_tokens, turn.is_priced) for turn in costs.turns] == [(14, False), (13, True)]
    assert (costs.usd, costs.unpriced_tokens) == (0.5, 14)


def test_replayed_history_and_text_of_the_cli_cost_nothing() -> None:
    ledger = CostTracker()
    ledger.track(decoded(printed("m1", 10, 5, historical=True), printed("m2", 10, 5, model="<synthetic>")))
    assert ledger.costs.total_tokens == ledger.total_tokens == 0


def test_months_of_turns_stay_small() -> None:
    ledger = CostTracker()
    for _ in range(KEPT_TURNS + 7):
        ledger.track(decoded(result({OPUS: usage(1, 0, usd=0.5)})))
    costs = ledger.costs
    assert len(costs.turns) == KEPT_TURNS
    assert (costs.total_tokens, costs.usd) == (KEPT_TURNS + 7, (KEPT_TURNS + 7) / 2)


Step = st.one_of(
    st.tuples(st.just("said"), st.integers(0, 5), st.integers(0, 50)),
    st.tuples(st.just("result"), st.integers(0, 50), st.integers(0, 50)),
    st.tuples(st.just("told"), st.integers(0, 500), st.integers(0, 500)),
    st.tuples(st.just("died"), st.just(0), st.just(0)),
)


@given(st.lists(Step, max_size=30))
def test_what_is_added_up_as_it_comes_is_the_sum(steps: list[tuple[str, int, int]]) -> None:
    ledger = CostTracker()
    for kind, one, other in steps:
        if kind == "said":
            ledger.track(decoded(printed(f"m{one}", other, one)))
        elif kind == "result":
            ledger.track(decoded(result({OPUS: usage(one, other, usd=0.5)})))
        elif kind == "told":
            ledger.note_totals({OPUS: ModelUsage(input_tokens=one, output_tokens=other)})
        else:
            ledger.on_child_ended()
        costs = ledger.costs
        assert ledger.total_tokens == costs.total_tokens == sum(turn.total_tokens for turn in costs.turns)
        assert ledger.usd == costs.usd


# In a session.


async def test_a_session_gives_its_costs() -> None:
    one = [frames.init(), printed("m1", 10, 5), result({OPUS: usage(10, 5, usd=0.25)})]
    two = [
        frames.init(), printed("m2", 10, 5), result({OPUS: usage(1, 1, 3, 2, 0.5), HAIKU: usage(4, 4, usd=0.125)}),
    ]  # fmt: skip
    async with ph.session(transport=mock_transport(one, two)) as session:
        assert session.costs.turns == ()
        await session.query("one")
        answer = await session.query("two")
        costs = session.costs
    assert [turn.usd for turn in costs.turns] == [0.25, 0.625]
    assert answer.cost_usd == 0.625
    assert (costs.cache_read_tokens, costs.cache_creation_tokens, costs.total_tokens) == (3, 2, 30)
    assert set(costs.models) == {OPUS, HAIKU}


# Budgets.


LONG = [
    frames.init(),
    printed("m1", 10, 5),
    printed("m2", 100, 5),
]
STOPPED = frames.result(None, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")


def stoppable(*turns: list[dict[str, Any]]) -> FakeCLI:
    """Talks, and goes on for ever unless it is interrupted."""
    fake = FakeCLI()
    for turn in turns:
        fake.expect("user").emit(*turn).expect("control_request", "interrupt").reply({}).emit(STOPPED)
    return fake


@pytest.mark.requirement("S38")
async def test_a_query_that_uses_too_many_tokens_is_stopped() -> None:
    with stoppable(LONG) as fake, anyio.fail_after(20):
        answer = await ph.query("go", cli=fake.path, max_budget_tokens=60)
    assert isinstance(answer.error, ph.BudgetError)
    assert (answer.outcome, answer.error.result) == ("error", answer.result)
    assert str(answer.error) == "130 tokens were used, more than max_budget_tokens=60 (raise it to continue)"
    with pytest.raises(ph.BudgetError):
        answer.raise_for_error()


async def test_the_event_comes_where_the_limit_was_passed() -> None:
    with stoppable(LONG) as fake, anyio.fail_after(20):
        events = [event async for event in ph.query("go", cli=fake.path, max_budget_tokens=60).events()]
    assert [type(event).__name__ for event in events][-2:] == ["BudgetReached", "Finished"] or [
        type(event).__name__ for event in events
    ][-3:-1] == ["BudgetReached", "TextDelta"]
    [reached] = [event for event in events if isinstance(event, BudgetReached)]
    assert (reached.unit, reached.used, reached.limit) == ("tokens", 130, 60)


async def test_an_answer_that_was_complete_before_stays_what_it_is() -> None:
    whole = [*LONG, result({OPUS: usage(200, 10, usd=0.5)})]
    with FakeCLI().turn(*whole) as fake:
        answer = await ph.query("go", cli=fake.path, max_budget_tokens=60)
    assert answer.is_success


async def test_a_turn_that_has_ended_meanwhile_is_not_stopped() -> None:
    stopped: list[int] = []

    async def interrupt(*, stop_background: bool) -> None:
        stopped.append(len(stopped))

    budget = TokenBudget(Options(max_budget_tokens=60), None)
    budget.on_start(cast("QueryRun", SimpleNamespace(interrupt=interrupt)))
    budget.on_messages(decoded(*LONG))
    budget.on_messages(decoded(result({OPUS: usage(200, 10, usd=0.5)})))
    await anyio.wait_all_tasks_blocked()
    assert stopped == []
    budget.on_messages(decoded(printed("m3", 100, 5)))  # the next prompt of the same query
    await anyio.wait_all_tasks_blocked()
    assert stopped == [0]


async def test_a_query_within_its_budget_is_not_touched() -> None:
    answer = await ph.query("go", transport=mock_transport("fine"), max_budget_tokens=10_000)
    assert answer.text == "fine"


@pytest.mark.parametrize("own", [150, 1_000_000, 120])
async def test_the_queries_of_a_session_share_one_budget(own: int) -> None:
    short = [frames.init(), printed("m0", 10, 5), result({OPUS: usage(20, 5, usd=0.5)})]
    with FakeCLI().turn(*short) as fake, anyio.fail_after(20):
        used = {"model_usage_since_last_result": {OPUS: usage(110, 10, 10, usd=0.5)}}
        fake.expect("user").emit(*LONG).expect("control_request", "interrupt").reply({}).emit(STOPPED | used)
        async with ph.session(cli=fake.path, max_budget_tokens=150) as session:
            assert (await session.query("one")).is_success
            # A query's own limit is one more: that of the session holds.
            answer = await session.query("two", max_budget_tokens=own)
            assert isinstance(answer.error, ph.BudgetError)
            assert f"more than max_budget_tokens={min(own, 150)} " in str(answer.error)
            if own >= 150:
                with pytest.raises(ph.BudgetError, match="more than max_budget_tokens=150"):
                    await session.query("three", max_budget_tokens=own)
        [call] = fake.calls
    assert call.prompts == ["one", "two"]


@pytest.mark.parametrize("way", ["asked", "told"])
async def test_what_sub_agents_use_stops_a_query(way: str) -> None:
    """By the totals that the CLI gives on request; one that gives none says how large the last reply was."""
    told = [task_started(), task_ended(1000)] if way == "told" else []
    with stoppable([frames.init(), printed("m1", 10, 1), *told]) as fake, anyio.fail_after(20):
        if way == "asked":
            fake.on_control("get_usage", {"session": {"model_usage": {OPUS: usage(10, 1006)}}})
        else:
            fake.on_control("get_usage", error="Unsupported control request subtype: get_usage")
        answer = await ph.query("go", cli=fake.path, max_budget_tokens=600)
    assert isinstance(answer.error, ph.BudgetError)
    assert "1,016 tokens were used" in str(answer.error)


async def test_a_cli_that_gives_no_totals_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    turn = [frames.init(), printed("m1", 1, 1), result({OPUS: usage(1, 1)})]
    with FakeCLI().turn(*turn) as fake, anyio.fail_after(20):
        fake.on_control("get_usage", error="Unsupported control request subtype: get_usage")
        async with ph.session(cli=fake.path, max_budget_tokens=600) as session:
            with caplog.at_level(logging.WARNING):
                await session.query("one")
                await session.set_model("haiku")  # its response comes after that to the other request
    [warning] = [record.getMessage() for record in caplog.records]
    assert "max_budget_tokens counts less than sub-agents use" in warning
    assert "update it" in warning


@pytest.mark.parametrize("until", ["result", "idle"])
async def test_what_goes_on_after_the_answer_is_stopped(until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The input of the CLI stays open so long: else nothing could be stopped."""
    with FakeCLI() as fake, anyio.fail_after(20):
        fake.expect("user").emit(frames.init(), task_started(), result({OPUS: usage(10, 5)}))
        fake.sleep(0.3).emit(of_agent("s1", 1000, calls=True))
        fake.expect("control_request", "interrupt").reply({}).emit(task_ended(1000, "stopped")).wait_eof()
        with caplog.at_level(logging.WARNING):
            answer = await ph.query("go", cli=fake.path, max_budget_tokens=600, until=until)
        [call] = fake.calls
    assert call.control("interrupt") == [{"subtype": "interrupt", "cancel_queued": True}]
    assert isinstance(answer.error, ph.BudgetError) if until == "idle" else answer.is_success
    [warning] = [record.getMessage() for record in caplog.records if "background" in record.getMessage()]
    assert "1,021 tokens were used" in warning


async def test_what_goes_on_in_a_session_is_stopped() -> None:
    with FakeCLI() as fake, anyio.fail_after(20):
        fake.expect("user").emit(frames.init(), task_started(), result({OPUS: usage(10, 5)}))
        fake.expect("control_request", "set_model").reply({}).emit(of_agent("s1", 1000, calls=True))
        fake.expect("control_request", "interrupt").reply({}).emit(task_ended(1000, "stopped")).wait_eof()
        async with ph.session(cli=fake.path, max_budget_tokens=600) as session:
            assert (await session.query("go")).is_success
            await session.set_model("haiku")  # and from here on no query runs
            await session.tasks.wait_idle()
            with pytest.raises(ph.BudgetError):
                await session.query("more")
        [call] = fake.calls
    assert call.control("interrupt") == [{"subtype": "interrupt", "cancel_queued": True}]


async def test_every_further_prompt_of_a_query_is_stopped_too() -> None:
    async def prompts() -> AsyncIterator[Any]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}
        yield {"type": "user", "message": {"role": "user", "content": "two"}}

    with stoppable(LONG, [frames.init(), printed("m3", 100, 5)]) as fake, anyio.fail_after(20):
        answer = await ph.query(prompts(), cli=fake.path, max_budget_tokens=60)
        [call] = fake.calls
    assert isinstance(answer.error, ph.BudgetError)
    assert len(call.control("interrupt")) == 2


def test_the_argv_form_has_no_token_budget() -> None:
    with pytest.raises(ph.OptionsError, match="prompt_via='stdin'"):
        ph.query("go", prompt_via="argv", max_budget_tokens=10)


async def test_a_budget_in_dollars_is_an_event_too() -> None:
    poor = frames.result(None, subtype="error_max_budget_usd", is_error=True, errors=["Reached maximum budget"])
    transport = mock_transport([frames.init(), poor])
    events = [event async for event in ph.query("go", transport=transport, max_budget_usd=0.0001).events()]
    assert events[-2] == BudgetReached("usd", frames.PRICE)


async def test_a_new_child_of_a_session_gets_what_is_left() -> None:
    """The CLI counts for itself alone; one that was killed has not even told the next one what it spent."""

    def play(child: Any) -> None:
        child.expect("user")
        spent = {"claude-opus-5-5": {"inputTokens": 10, "outputTokens": 5, "costUSD": 0.25}}
        done = {"type": "result", "subtype": "success", "is_error": False, "result": "ok", "num_turns": 1}
        child.emit({**done, "session_id": "s", "modelUsage": spent, "model_usage_since_last_result": spent})
        child.kill("SIGKILL")

    with FakeCLI.from_function(play) as fake, anyio.fail_after(30):
        async with ph.session(cli=fake.path, max_budget_usd=0.75) as session:
            for _ in range(3):
                await session.query("go")
                while session.state != "broken":
                    await anyio.sleep(0.01)
            with pytest.raises(ph.BudgetError, match=r"\$0\.7500 were spent, and max_budget_usd is 0\.75"):
                await session.query("go")
            assert session.costs.usd == 0.75
        reported = [arg for call in fake.calls for arg in call.argv if arg.startswith("--max-budget-usd")]
    assert reported == ["--max-budget-usd=0.75", "--max-budget-usd=0.5", "--max-budget-usd=0.25"]
