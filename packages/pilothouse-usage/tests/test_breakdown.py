"""The breakdown of any messages: the rows add up, whatever the messages show, and names cannot control a terminal."""

from __future__ import annotations

import json
import re
from math import fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse import QueryResult
from pilothouse.errors import UsageError
from pilothouse.messages import Message, ModelUsage, ResultMessage, decode
from pilothouse_testing import frames
from pilothouse_usage import breakdown, session_breakdown
from pilothouse_usage.breakdown import GROUPINGS, NOT_SHOWN
from pilothouse_usage.ledger import apportion

OPUS, HAIKU = "claude-opus-5-5", "claude-haiku-5-5"


def decoded(*lines: dict[str, Any]) -> list[Message]:
    return [decode(json.dumps(line).encode()) for line in lines]


def usage(input: int = 0, output: int = 0, written: int = 0, read: int = 0, usd: float = 0.0) -> dict[str, Any]:  # noqa: A002
    return {
        "inputTokens": input, "outputTokens": output, "cacheCreationInputTokens": written,
        "cacheReadInputTokens": read, "costUSD": usd,
    }  # fmt: skip


def reply(key: str, tokens: tuple[int, int, int, int], model: str = OPUS, **extra: Any) -> dict[str, Any]:
    frame = frames.assistant("text", message_id=key, model=model, **extra)
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    frame["message"]["usage"] = dict(zip(names, tokens, strict=True))
    return frame


def result(since: dict[str, Any]) -> dict[str, Any]:
    cost = fsum(total["costUSD"] for total in since.values())
    totals = {"modelUsage": since, "model_usage_since_last_result": since, "total_cost_usd": cost}
    return {**frames.result("done"), **totals}


def task(subtype: str, call: str, **fields: Any) -> dict[str, Any]:
    facts = {"type": "system", "subtype": subtype, "task_id": f"task {call}", "tool_use_id": call}
    return {**facts, "task_type": "local_agent", **fields}


def task_end(call: str, tokens: int) -> dict[str, Any]:
    counted = {"total_tokens": tokens, "tool_uses": 0, "duration_ms": 1500}
    return task("task_notification", call, status="completed", usage=counted)


COUNT = st.integers(0, 100_000)
MODEL = st.sampled_from([OPUS, HAIKU, f"{OPUS}[1m]", "<synthetic>"])
AGENT = st.sampled_from([None, "call_1", "call_2"])
KEY = st.sampled_from([f"msg_{number}" for number in range(8)])
COUNTS = st.tuples(COUNT, COUNT, COUNT, COUNT)
TOTAL = st.builds(usage, COUNT, COUNT, COUNT, COUNT, st.floats(0, 1000))
LINES = st.one_of(
    st.builds(lambda *given: reply(*given[:3], parent_tool_use_id=given[3]), KEY, COUNTS, MODEL, AGENT),
    st.builds(lambda call: task("task_started", call, subagent_type="looker"), st.sampled_from(["call_1", "call_2"])),
    st.builds(task_end, st.sampled_from(["call_1", "call_2"]), COUNT),
    st.builds(
        lambda key, tokens: frames.stream_event(
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": tokens}}, api_message_id=key
        ),
        KEY,
        COUNT,
    ),
    st.builds(result, st.dictionaries(MODEL, TOTAL, max_size=3)),
)


@given(st.lists(LINES, max_size=30))
def test_rows_always_add_up(lines: list[dict[str, Any]]) -> None:
    messages = decoded(*lines)
    found = breakdown(messages)
    parts = [
        usage.cost_usd
        for message in messages
        if isinstance(message, ResultMessage)
        for usage in (message.model_usage_since_last_result or {}).values()
        if ModelUsage() != usage
    ]
    assert found.cost_usd == pytest.approx(fsum(parts), abs=1e-8 * (len(parts) + 1))
    for rows in (found.agents, found.turns, found.models):
        assert fsum(row.cost_usd for row in rows) == pytest.approx(found.cost_usd, abs=1e-8 * (len(parts) + 1))
    for row in (*found.agents, *found.turns):
        assert row.cost_usd >= 0
        assert row.total_tokens >= 0
    answer = QueryResult(messages)
    if not answer.is_success:
        return
    assert breakdown(answer).cost_usd == pytest.approx(answer.cost_usd or 0.0, abs=1e-7)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), max_size=20))
def test_parts_are_whole_and_add_up(amount: int, weights: list[int]) -> None:
    parts = apportion(amount, weights)
    assert len(parts) == len(weights)
    assert sum(parts) == (amount if sum(weights) else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * (sum(weights) or 1) - amount * weight) <= (sum(weights) or 1)


def test_a_cost_without_a_model_is_not_lost() -> None:
    [message] = decoded({**result({}), "total_cost_usd": 0.25})
    found = breakdown(QueryResult([message]))
    assert [(row.name, row.cost_usd) for row in found.agents] == [("main", 0.0), (NOT_SHOWN, 0.25)]


def test_what_no_message_shows_is_a_row_of_its_own() -> None:
    total = {OPUS: usage(10, 100, usd=0.5), HAIKU: usage(400, 20, usd=0.01)}
    found = breakdown(decoded(reply("m1", (10, 100, 0, 0)), result(total)))
    assert [(row.name, row.replies, row.cost_usd) for row in found.agents] == [("main", 1, 0.5), (NOT_SHOWN, 0, 0.01)]
    assert (found.turns[-1].model, found.turns[-1].input_tokens, found.turns[-1].message_id) == (HAIKU, 400, None)


def test_an_agent_is_charged_for_what_it_reads_and_writes() -> None:
    """The price of a model is what its total says; an output token weighs five, one read from the cache a tenth."""
    lines = (
        reply("m1", (100, 0, 0, 0)),
        reply("m2", (0, 20, 0, 0), parent_tool_use_id="call"),
        reply("m3", (0, 0, 0, 1000), parent_tool_use_id="other"),
    )
    found = breakdown(decoded(*lines, result({OPUS: usage(100, 20, 0, 1000, usd=0.3)})))
    assert [row.cost_usd for row in found.agents] == [0.1, 0.1, 0.1]


def test_unseen_output_goes_to_the_longer_reply() -> None:
    lines = [reply("m1", (10, 1, 0, 0)), reply("m2", (10, 1, 0, 0)), reply("m2", (10, 1, 0, 0))]
    found = breakdown(decoded(*lines, result({OPUS: usage(20, 302, usd=0.1)})))
    first, second = (row.output_tokens for row in found.turns)
    assert (first, second) == (101, 201)
    assert all(row.is_estimated for row in found.turns)


def test_output_is_never_more_than_the_cli_has_counted() -> None:
    """A gateway gave no usage for a last reply, for which the CLI then told all tokens that the agent had before."""
    lines = [
        reply("m1", (10, 5, 0, 0)),
        task("task_started", "call"),
        reply("m2", (900, 60, 0, 0), parent_tool_use_id="call"),
        reply("m3", (0, 0, 0, 0), parent_tool_use_id="call"),
        task_end("call", 960),
    ]
    found = breakdown(decoded(*lines, result({OPUS: usage(910, 65, usd=0.1)})))
    assert sum(row.output_tokens for row in found.turns) == 65
    assert found.cost_usd == fsum(row.cost_usd for row in found.turns) == 0.1


@pytest.mark.parametrize("damage", [b"NaN", b"1e999", b"1e308", b"-3"])
def test_what_cannot_be_a_cost_counts_as_none(damage: bytes) -> None:
    line = json.dumps(result({OPUS: usage(10, usd=0.125)})).encode()
    message = decode(line.replace(b"0.125", damage))
    assert (breakdown([message]).cost_usd, breakdown(QueryResult([message])).cost_usd) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("shown", "counted"),
    [
        ("claude-opus-5-5-20260901", OPUS),
        (OPUS, "claude-opus-5-5-20260901"),
        (OPUS, f"{OPUS}[1m]"),
        ("claude-opus-5-5-20260901", f"{OPUS}[1m]"),
        ("gateway/large", OPUS),
    ],
)
def test_a_server_may_call_a_model_by_another_name(shown: str, counted: str) -> None:
    """All was "not shown in messages" then, with the tokens twice, and a budget of a sub-agent saw no dollar."""
    lines = [reply("m1", (10, 5, 0, 3), shown), reply("m2", (7, 3, 0, 0), "gateway/small", parent_tool_use_id="call")]
    found = breakdown(decoded(*lines, result({HAIKU: usage(8, 4, usd=0.1), counted: usage(10, 5, 0, 3, usd=0.5)})))
    assert [(row.name, row.cost_usd) for row in found.agents[:1]] == [("main", 0.5)]
    assert [row.model for row in found.turns] == [counted, HAIKU, HAIKU]
    assert sum(row.input_tokens for row in found.turns) == 18


def test_a_reply_that_is_not_counted_yet_is_not_taken_for_another_models() -> None:
    lines = [reply("m1", (10, 5, 0, 0)), reply("m2", (7, 3, 0, 0), "claude-sonnet-5-5", parent_tool_use_id="call")]
    found = breakdown(decoded(*lines, result({OPUS: usage(10, 5, usd=0.5), HAIKU: usage(400, 20, usd=0.01)})))
    assert [row.cost_usd for row in found.agents] == [0.5, 0.0, 0.01]


def test_a_turn_without_a_result_has_no_price() -> None:
    found = breakdown(decoded(reply("m1", (10, 5, 0, 0))))
    assert (found.cost_usd, found.unpriced_tokens, found.turns[0].input_tokens) == (0.0, 15, 10)
    assert "15 tokens have no price" in str(found)


def test_a_reply_that_is_counted_later_waits_for_its_total() -> None:
    """A background agent writes while the main agent ends; the CLI counts it with the next turn."""
    lines = [reply("m1", (10, 5, 0, 0)), reply("m2", (7, 3, 0, 0), HAIKU, parent_tool_use_id="call")]
    later = [result({OPUS: usage(10, 5, usd=0.5)}), result({HAIKU: usage(7, 3, usd=0.1)})]
    found = breakdown(decoded(*lines, *later))
    assert [row.cost_usd for row in found.agents] == [0.5, 0.1]


def test_a_result_counts_once() -> None:
    """A message that is shown again, as after a resume, changes nothing."""
    call = frames.assistant([{"type": "tool_use", "id": "t", "name": "Read", "input": {}}], message_id="m1")
    lines = [call, *(frames.user_tool_result(text, tool_use_id="t") for text in ("12345678", "12345678, again"))]
    [row] = breakdown(decoded(*lines)).tools
    assert (row.calls, row.errors, row.result_bytes, row.result_tokens) == (1, 0, 8, 2)


def test_names_cannot_control_a_terminal() -> None:
    hostile = "\x1b[2J\u202egnp.exe\nmain  $0.00"
    started = task("task_started", "call", subagent_type=hostile, description="x" * 500)
    call = frames.assistant("tool_use", message_id="m2", parent_tool_use_id="call")
    call["message"]["content"] = [{"type": "tool_use", "id": "t", "name": hostile, "input": {}}]
    call["message"]["usage"] = {"input_tokens": 1}
    found = breakdown(decoded(started, call, result({OPUS: usage(1, usd=0.1)})))
    for by in GROUPINGS:
        text = found.table(by)
        assert not {"\x1b", "\u202e"} & set(text)
        assert len(text.splitlines()) == len(found.cells(by))
    assert found.agents[1].agent_type == hostile


def test_a_grouping_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="agent, tool, server, turn, model"):
        breakdown([]).table("day")  # pyright: ignore[reportArgumentType]
    assert [len(breakdown([]).cells(by)) for by in GROUPINGS] == [3, 1, 1, 2, 2]
    assert breakdown([]).table("tool") == "no tool was called"


@pytest.mark.parametrize(
    ("source", "got"),
    [("abc", "str; for a session id: session_breakdown(id)"), (["a"], "list of str"), (None, "NoneType")],
)
def test_what_is_broken_down_has_messages(source: Any, got: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"expected a QueryResult or messages, got {got}") + "$"):
        breakdown(source)


def test_a_session_id_is_whole() -> None:
    with pytest.raises(UsageError, match="expected a whole session id, got '1f0c'"):
        session_breakdown("1f0c")
