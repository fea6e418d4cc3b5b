"""Usage limits that are waited for, and the gate that the queries and sessions of one agent share."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from failing_api import DEADLINE, LONG, OVERLOADED, QUOTA, RATE_LIMITED, SOON, Api, Fault, asking, notes, wait_for_event
from session_cli import Cli

import pilothouse as ph
from pilothouse.client import retry
from pilothouse.client.retry import CONTINUE_PROMPT, RateLimitKey, SharedRateLimits, sleep_until_time
from pilothouse.client.sessions import Session
from pilothouse.events import WaitingForLimit
from pilothouse.options import Options, RetryPolicy

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _at_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "AFTER_RESET_SECONDS", 0.02)
    monkeypatch.setattr(retry, "STAGGER_SECONDS", 0.05)


def limited(resets_in: float | None = 0.15, **more: Any) -> Fault:
    return Fault(429, QUOTA, resets_in=resets_in, **more)


@pytest.mark.requirement("E70")
async def test_a_limit_is_waited_for_until_it_resets(kind: str) -> None:
    api = Api(limited())
    async with asking(api, kind, on_usage_limit="wait") as it:
        result = await it.query("one")
        assert result.text == "re: one"
        assert it.prompts == ["one", "one"]
        assert api.rejected_until is not None
        assert api.times[1] >= api.rejected_until
        [note] = notes(result.messages, "limit_wait")
        assert note["limit"] == "usage_limit"
        assert api.rejected_until <= note["until"] <= api.times[1]


async def test_work_that_was_begun_goes_on_after_the_reset() -> None:
    async with asking(Api(limited(spoken="begun")), "alone", on_usage_limit="wait") as it:
        await it.query("one")
        assert it.prompts == ["one", CONTINUE_PROMPT]


async def test_without_the_option_a_limit_is_an_error(kind: str) -> None:
    async with asking(Api(limited(3600.0)), kind, retry=SOON) as it:
        result = await it.query("one")
        assert isinstance(result.error, ph.QuotaError)
        assert result.error.resets_at is not None
        assert it.prompts == ["one"]


@pytest.mark.parametrize("fault", [limited(60.0), limited(None)], ids=["too late", "not known"])
async def test_what_cannot_be_waited_for_is_an_error_at_once(fault: Fault) -> None:
    async with asking(Api(fault), "alone", on_usage_limit="wait", usage_limit_ceiling=30) as it:
        with anyio.fail_after(DEADLINE):
            result = await it.query("one")
        assert isinstance(result.error, ph.QuotaError)
        assert it.prompts == ["one"]


async def test_all_waits_of_a_query_count_together() -> None:
    api = Api(limited(0.2), limited(0.2), limited(0.2))
    async with asking(api, "alone", on_usage_limit="wait", usage_limit_ceiling=0.5) as it:
        result = await it.query("one")
        assert isinstance(result.error, ph.QuotaError)
        assert ph.find_cause(result.error.__cause__ or result.error, ph.QuotaError) is not result.error
        assert it.prompts == ["one"] * 3


async def test_a_limit_that_never_resets_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_LIMIT_WAITS", 2)
    async with asking(Api(*[limited(-5.0)] * 5), "alone", on_usage_limit="wait") as it:
        assert isinstance((await it.query("one")).error, ph.QuotaError)
        assert it.prompts == ["one"] * 3


async def test_events_say_until_when() -> None:
    async with asking(Api(limited()), "alone", on_usage_limit="wait") as it:
        events = [event async for event in it.query("one").events()]
        [waiting] = [e for e in events if isinstance(e, WaitingForLimit)]
        assert waiting.limit == "usage_limit"
        assert waiting.seconds > 0
        assert QUOTA in waiting.error


# One gate for all.


async def test_others_of_the_agent_hold_back_and_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "STAGGER_SECONDS", 0.4)
    api = Api(limited(1.0))
    waits: list[dict[str, Any]] = []
    async with asking(api, "alone", on_usage_limit="wait") as it, it.agent.session() as session:

        async def later(query: ph.Query) -> None:
            result = await query
            assert result.is_success
            waits.extend(notes(result.messages, "limit_wait"))

        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group, first:
                await wait_for_event(first, "limit_wait")
                group.start_soon(later, it.query("second"))
                group.start_soon(later, it.agent.with_options(max_turns=3).query("third"))
                group.start_soon(later, session.query("fourth"))
                assert (await first.result()).is_success
        assert api.rejected_until is not None
        assert sorted(it.prompts) == ["first", "first", "fourth", "second", "third"]
        assert all(moment >= api.rejected_until for moment in api.times[1:])
        later_ones = sorted(api.times[1:])
        assert later_ones[-1] - later_ones[0] > 0.1  # nobody comes together with all others
        assert [w["limit"] for w in waits] == ["usage_limit"] * 3
        assert all("another query" in w["error"] for w in waits)


async def test_queries_that_do_not_wait_are_sent_and_fail() -> None:
    api = Api(limited(3600.0))
    async with asking(api, "alone", on_usage_limit="wait") as it:
        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "limit_wait")
                assert (await it.query("second", on_usage_limit="raise")).text == "re: second"
                short = it.query("third", usage_limit_ceiling=5)
                assert (await short).text == "re: third"


async def test_what_asks_elsewhere_does_not_hold_back() -> None:
    api = Api(limited(3600.0, limit="seven_day_opus"))
    async with asking(api, "alone", on_usage_limit="wait", model="opus") as it:
        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "limit_wait")
                assert (await it.query("second", model="sonnet")).is_success
                assert (await it.query("third", api_key="another")).is_success
                other = ph.Agent(transport=api.transport, on_usage_limit="wait", model="opus")
                assert (await other.query("fourth")).is_success
                held = it.query("fifth")
                async with anyio.create_task_group() as group:
                    group.start_soon(_started, held)
                    await anyio.sleep(0.1)
                    assert "fifth" not in it.prompts
                    await held.aclose()


async def _started(query: ph.Query) -> None:
    with pytest.raises(ph.SessionClosedError):
        await query.start()


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ["interrupt", "cancel", "timeout", "close"])
async def test_one_that_is_held_back_can_be_stopped_at_once(kind: str, how: str) -> None:
    async with asking(Api(limited(3600.0)), kind, on_usage_limit="wait") as it:
        first = it.agent.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "limit_wait")
                await _stopped(it, how)
        assert it.prompts == ["first"]
        if how != "close":
            assert (await it.query("next", on_usage_limit="raise")).text == "re: next"


async def _stopped(it: Any, how: str) -> None:
    held = it.query("held", timeout=0.2 if how == "timeout" else None)
    if how == "timeout":
        with pytest.raises(ph.QueryTimeout, match="nothing was sent"):
            await held
        return
    outcome: list[object] = []

    async def ask() -> None:
        try:
            outcome.append((await held.result()).outcome)
        except ph.SessionClosedError:
            outcome.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        while it.session is not None and it.session._active is None:
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.05)
        if how == "interrupt":
            await (held if it.session is None else it.session).interrupt()
        elif how == "close":
            await (held.aclose() if it.session is None else it.session.close())
        else:
            group.cancel_scope.cancel()
    assert outcome == {"interrupt": ["interrupted"], "close": ["closed"], "cancel": []}[how]


async def test_one_that_is_interrupted_before_it_has_begun_is_never_sent() -> None:
    async with asking(Api(limited(3600.0)), "alone", on_usage_limit="wait") as it:
        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "limit_wait")
                held = it.query("held")
                held._ensure_started()  # its task is there, and was not run yet
                await held.interrupt()
                assert (await held.result()).outcome == "interrupted"
        assert it.prompts == ["first"]


async def test_a_session_without_a_child_interrupts_what_is_held_back() -> None:
    api = Api(limited(3600.0))
    agent = ph.Agent(transport=api.transport, on_usage_limit="wait")
    first, session = agent.query("first"), agent.session()
    outcome: list[str] = []

    async def ask() -> None:
        outcome.append((await session.query("held")).outcome)

    with anyio.fail_after(DEADLINE):
        async with first:
            await wait_for_event(first, "limit_wait")
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                while session._active is None:  # in the queue it is nobody's yet, and an interrupt not for it
                    await anyio.lowlevel.checkpoint()
                await session.interrupt()
    assert outcome == ["interrupted"]
    assert len(api.children) == 1
    await session.close()


async def test_queries_that_wait_in_a_closed_session_do_not_wait_for_the_limit() -> None:
    limits = SharedRateLimits()
    options = Options(transport=Cli().transport, on_usage_limit="wait")
    session = Session(options, rate_limits=limits)
    limits.block("usage_limit", RateLimitKey.from_options(options), time.time() + 3600)
    queries = [session.query(text) for text in ("one", "two", "three")]
    errors: list[ph.SessionClosedError] = []

    async def ask(query: ph.Query[Any]) -> None:
        try:
            await query
        except ph.SessionClosedError as error:
            errors.append(error)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            for query in queries:
                group.start_soon(ask, query)
            while len(session.queries) < len(queries):
                await anyio.lowlevel.checkpoint()
            await session.close()
    assert len(errors) == len(queries)


async def test_a_rate_limit_holds_those_back_that_would_retry_it() -> None:
    api = Api(RATE_LIMITED)
    policy = RetryPolicy(first_delay=0.3, jitter=0.0, max_delay=5.0)
    async with asking(api, "alone", retry=policy) as it:
        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "retry_scheduled")
                result = await it.query("second")
                assert [n["limit"] for n in notes(result.messages, "limit_wait")] == ["rate_limit"]
                assert (await it.query("third", retry=None)).is_success
                assert (await first.result()).is_success


async def test_an_overload_blocks_no_query() -> None:
    async with asking(Api(OVERLOADED), "alone", retry=LONG) as it:
        first = it.query("first")
        with anyio.fail_after(DEADLINE):
            async with first:
                await wait_for_event(first, "retry_scheduled")
                assert (await it.query("second")).is_success


# The gate itself.


def test_a_gate_opens_by_itself_and_knows_places() -> None:
    gate, here = SharedRateLimits(), RateLimitKey.from_options(Options(model="opus", api_key="a"))
    elsewhere = RateLimitKey.from_options(Options(model="opus", api_key="b"))
    assert gate.blocked_until("usage_limit", here) is None
    until = time.time() + 3600
    gate.block("usage_limit", here.whole_account, until)
    gate.block("usage_limit", here.whole_account, until - 60)  # what lasts longer counts
    assert gate.blocked_until("usage_limit", here) == until
    assert gate.blocked_until("rate_limit", here) is None
    assert gate.blocked_until("usage_limit", elsewhere) is None
    gate.block("rate_limit", elsewhere, time.time() - 1)
    assert gate.blocked_until("rate_limit", elsewhere) is None
    assert "sk-secret" not in repr(RateLimitKey.from_options(Options(api_key="sk-secret", env={"A": "sk-secret"})))


async def test_two_loops_share_the_gate_of_an_agent() -> None:
    api = Api(limited(1.0))
    agent = ph.Agent(transport=api.transport, on_usage_limit="wait")
    first = agent.query("first")

    def in_another_loop(backend: str) -> float:
        async def ask() -> float:
            assert (await agent.query("second")).is_success
            return time.time()

        return anyio.run(ask, backend=backend)

    with anyio.fail_after(DEADLINE):
        async with first:
            await wait_for_event(first, "limit_wait")
            done = [await anyio.to_thread.run_sync(in_another_loop, backend) for backend in ("asyncio", "trio")]
            assert (await first.result()).is_success
    assert api.rejected_until is not None
    assert all(moment >= api.rejected_until for moment in done)


async def test_a_sleep_follows_the_clock_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that was suspended for hours: the loop's own clock has stood still meanwhile.
    monkeypatch.setattr(retry, "MAX_SLEEP_SECONDS", 0.01)
    start = time.time()
    clock = iter([start, start + 3600, start + 7201])
    monkeypatch.setattr(time, "time", lambda: next(clock))
    with anyio.fail_after(DEADLINE):
        await sleep_until_time(start + 7200)
