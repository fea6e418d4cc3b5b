"""Queries that are tried again after the API has refused them: alone and in sessions, and how that can be stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from failing_api import (
    BROKEN,
    DEADLINE,
    LONG,
    OVERLOADED,
    RATE_LIMITED,
    SOON,
    UNREACHABLE,
    Api,
    Fault,
    asking,
    notes,
    wait_for_event,
)

import pilothouse as ph
from pilothouse.client.retry import ANSWER_PROMPT, CONTINUE_PROMPT
from pilothouse.events import Finished, RetryScheduled
from pilothouse.messages import ResultMessage
from pilothouse.options import RetryPolicy

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("E70")
async def test_before_any_output_the_prompt_is_sent_again(kind: str) -> None:
    api = Api(OVERLOADED, BROKEN)
    async with asking(api, kind, retry=SOON) as it:
        result = await it.query("one")
        assert (result.text, result.error) == ("re: one", None)
        assert it.prompts == ["one", "one", "one"]
        assert len(set(api.uuids)) == 3  # results name the prompt that they answer
        assert [m.is_error for m in result.messages if isinstance(m, ResultMessage)] == [True, True, False]
        assert result.turns == 3
        scheduled = notes(result.messages, "retry_scheduled")
        assert [(n["attempt"], n["of"], n["delay"], n["reason"]) for n in scheduled] == [
            (1, 3, 0.01, "overloaded"),
            (2, 3, 0.02, "server"),
        ]
        assert [n["error_status"] for n in scheduled] == [529, 500]
        assert "Overloaded" in scheduled[0]["error"]
        assert (await it.query("two")).text == "re: two"
    assert len(api.children) == (2 if kind == "alone" else 1)


async def test_a_long_prompt_is_kept_by_the_cli_and_not_sent_again(kind: str) -> None:
    long = "word " * 10_000
    async with asking(Api(OVERLOADED, OVERLOADED), kind, retry=SOON) as it:
        assert (await it.query(long)).is_success
        assert it.prompts == [long, ANSWER_PROMPT, ANSWER_PROMPT]


@pytest.mark.requirement("E70")
async def test_after_output_it_continues_and_nothing_is_sent_twice(kind: str) -> None:
    api = Api(Fault(spoken="I have begun. "), OVERLOADED)
    async with asking(api, kind, retry=SOON) as it:
        result = await it.query("one")
        assert it.prompts == ["one", CONTINUE_PROMPT, CONTINUE_PROMPT]
        assert result.text == f"re: {CONTINUE_PROMPT}"
        assert result.full_text == f"I have begun. re: {CONTINUE_PROMPT}"


@pytest.mark.requirement("E70")
async def test_it_ends_and_the_last_error_keeps_those_before(kind: str) -> None:
    api = Api(OVERLOADED, UNREACHABLE, RATE_LIMITED)
    async with asking(api, kind) as it:
        result = await it.query("one", retry=RetryPolicy(attempts=2, first_delay=0.001))
        assert isinstance(result.error, ph.RateLimitError)
        causes = [result.error.__cause__, getattr(result.error.__cause__, "__cause__", None)]
        assert [type(cause) for cause in causes] == [ph.ExecutionError, ph.OverloadedError]
        assert ph.find_cause(result.error, ph.OverloadedError) is causes[1]
        assert [n["reason"] for n in notes(result.messages, "retry_scheduled")] == ["overloaded", "network"]
        assert it.prompts == ["one"] * 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(401, "API Error: Please run /login"), ph.AuthenticationError),
        (Fault(402, "Your credit balance is too low"), ph.QuotaError),
        (Fault(400, "API Error: 400 Your request is not valid"), ph.ExecutionError),
        (Fault(400, "Prompt is too long"), ph.ContextOverflowError),
        (Fault(404, "There is no such model"), ph.InvalidModelError),
        (Fault(429, "You've hit your limit", resets_in=1), ph.QuotaError),
    ],
)
async def test_what_does_not_pass_by_itself_is_not_tried_again(fault: Fault, error: type[Exception]) -> None:
    async with asking(Api(fault), "alone", retry=SOON) as it:
        result = await it.query("one")
        assert type(result.error) is error
        assert it.prompts == ["one"]


async def test_only_what_was_asked_for_is_tried_again() -> None:
    async with asking(Api(BROKEN), "alone", retry=RetryPolicy(first_delay=0, on=("overloaded",))) as it:
        assert isinstance((await it.query("one")).error, ph.ExecutionError)
        assert it.prompts == ["one"]
    async with asking(Api(OVERLOADED), "alone") as it:
        assert isinstance((await it.query("one")).error, ph.OverloadedError)
        assert it.prompts == ["one"]  # without the option, the CLI's own tries are all


async def test_events_report_it() -> None:
    async with asking(Api(OVERLOADED), "alone", retry=SOON) as it:
        events = [event async for event in it.query("one").events()]
    kinds = [type(e) for e in events if isinstance(e, RetryScheduled | Finished)]
    assert kinds == [Finished, RetryScheduled, Finished]
    [scheduled] = [e for e in events if isinstance(e, RetryScheduled)]
    assert (scheduled.attempt, scheduled.of, scheduled.delay, scheduled.reason) == (1, 3, 0.01, "overloaded")


# How the wait ends.


async def test_an_interrupt_ends_the_wait_at_once(kind: str) -> None:
    async with asking(Api(OVERLOADED), kind, retry=LONG) as it:
        query = it.query("one")
        with anyio.fail_after(DEADLINE):
            async with query:
                await wait_for_event(query, "retry_scheduled")
                await query.interrupt()
                result = await query.result()
            assert result.outcome == "interrupted"
            assert it.prompts == ["one"]
            assert (await it.query("two")).text == "re: two"


@pytest.mark.virtual_time
async def test_the_timeout_of_the_query_applies_and_names_its_cause(kind: str) -> None:
    async with asking(Api(OVERLOADED), kind, retry=LONG) as it:
        with anyio.fail_after(DEADLINE):
            with pytest.raises(ph.QueryTimeout, match="option timeout") as caught:
                await it.query("one", timeout=1.0)
            assert ph.find_cause(caught.value, ph.OverloadedError) is not None
            assert (await it.query("two")).text == "re: two"


@pytest.mark.virtual_time
async def test_silence_does_not_count_while_it_waits(kind: str) -> None:
    policy = RetryPolicy(first_delay=0.4, jitter=0.0)
    async with asking(Api(OVERLOADED), kind, retry=policy, idle_timeout=0.2) as it:
        result = await it.query("one")
        assert result.text == "re: one"
        assert not notes(result.messages, "stalled")


async def test_a_child_that_dies_meanwhile_is_reported_at_once(kind: str) -> None:
    api = Api(OVERLOADED)
    async with asking(api, kind, retry=LONG) as it:
        query = it.query("one")
        with anyio.fail_after(DEADLINE):
            async with query:
                await wait_for_event(query, "retry_scheduled")
                api.children[0].end(signal="SIGKILL")
                with pytest.raises(ph.CLIExitedError, match="SIGKILL") as caught:
                    await query.result()
            assert ph.find_cause(caught.value, ph.OverloadedError) is not None


# With what else a query may be.


async def test_an_output_is_repaired_and_retried(kind: str) -> None:
    schema: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    api = Api(OVERLOADED, None, OVERLOADED)

    async def fits(_: Any, say: Any, text: str) -> str:
        return '{"a": 1}'

    api.acts[CONTINUE_PROMPT] = fits
    async with asking(api, kind, retry=SOON, json_schema=schema, output_repairs=1) as it:
        result = await it.query("one")
        assert result.structured == {"a": 1}
        assert result.output_attempts == 2
        first, again, repair, on = it.prompts
        assert (first, again, on) == ("one", "one", CONTINUE_PROMPT)
        assert "not accepted" in repair


async def test_prompts_that_come_one_by_one(kind: str) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    async with asking(Api(None, OVERLOADED), kind, retry=SOON) as it:
        result = await it.query(prompts())
        assert result.text == "re: two"
        assert it.prompts == ["one", "two", "two"]


async def test_of_several_prompts_only_the_last_failure_counts(kind: str) -> None:
    async with asking(Api(OVERLOADED), kind, retry=SOON) as it:
        result = await it.query([{"type": "user", "message": {"role": "user", "content": t}} for t in ("one", "two")])
        assert result.text == "re: two"
        assert it.prompts == ["one", "two"]


@pytest.mark.needs_models
@pytest.mark.parametrize("bridge", ["xml", "deferred"])
async def test_prompts_that_wait_for_tools_of_this_process(kind: str, bridge: str) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    messages = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("one", "two")]
    settings: dict[str, Any] = {"custom_tools": [add], "tool_bridge": bridge}
    async with asking(Api(OVERLOADED, None, BROKEN), kind, retry=SOON, **settings) as it:
        result = await it.query(messages)
        assert result.is_success
        assert it.prompts == ["one", "one", "two", CONTINUE_PROMPT]


async def test_a_consumer_that_does_not_read_holds_nothing_up(kind: str) -> None:
    api = Api(OVERLOADED)
    async with asking(api, kind, retry=SOON) as it, it.query("one") as query:
        with anyio.fail_after(DEADLINE):
            while it.prompts != ["one", "one"]:
                await anyio.sleep(0.005)
        assert (await query.result()).text == "re: one"


async def test_a_budget_that_is_used_up_ends_the_tries() -> None:
    async with asking(Api(Fault(spoken="much")), "alone", retry=SOON, max_budget_tokens=5) as it:
        result = await it.query("one")
        assert it.prompts == ["one"]
        assert result.error is not None


@pytest.mark.parametrize("name", ["retry", "on_usage_limit"])
async def test_the_argv_form_cannot_be_tried_again(name: str) -> None:
    settings: Any = {"retry": 2} if name == "retry" else {"on_usage_limit": "wait"}
    with pytest.raises(ph.OptionsError, match="needs prompt_via='stdin'") as caught:
        ph.query("one", prompt_via="argv", **settings)
    assert caught.value.option == name
