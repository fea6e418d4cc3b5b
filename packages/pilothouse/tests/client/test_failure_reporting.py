"""A run that failed says so in every way in which its answer can be read."""

from __future__ import annotations

import gc
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.errors import NoResultError
from pilothouse.messages import Message, from_dict
from pilothouse.options import RetryPolicy
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

REFUSED = "Not logged in · Please run /login"


def failing(fake: FakeCLI, *before: Any, text: str = REFUSED, **fields: Any) -> FakeCLI:
    """The CLI answers with an error of the API in the place of the model."""
    texts = frames.assistant(text, is_api_error_message=True, error="authentication_failed", model="<synthetic>")
    closing = frames.result(text, is_error=True, api_error_status=401, **fields)
    return fake.expect("user").emit(frames.init(), *before, texts, closing)


async def collect(stream: AsyncIterator[str], into: list[str]) -> None:
    async for piece in stream:
        into.append(piece)


def messages(*dicts: Any) -> list[Message]:
    return [from_dict(each) for each in dicts]


# The text of a result.


def test_the_text_of_a_failed_run_is_that_of_the_model() -> None:
    printed, own = frames.assistant("Half of it."), frames.assistant("of a sub-agent", parent_tool_use_id="t1")
    refused = frames.assistant(REFUSED, is_api_error_message=True, error="authentication_failed")
    failed = frames.result(REFUSED, is_error=True)
    answer = ph.QueryResult(messages(frames.init(), printed, own, refused, failed))
    assert (answer.text, answer.full_text) == ("Half of it.", "Half of it.")
    assert str(answer.error).startswith("Not logged in (set ANTHROPIC_API_KEY")
    assert answer.result is not None
    assert answer.result.result == REFUSED
    assert ph.QueryResult(messages(frames.init(), refused, failed)).text == ""


def test_the_text_of_a_run_that_reached_a_limit_is_the_last_of_the_model() -> None:
    closing = frames.result(None, subtype="error_max_turns", is_error=True)
    answer = ph.QueryResult(messages(frames.assistant("One."), frames.assistant("Two."), closing))
    assert answer.text == "Two."


def test_the_text_of_an_interrupted_run_is_that_of_the_model() -> None:
    printed = messages(frames.init(), frames.assistant("So far"))
    assert ph.QueryResult(printed, interrupted=True).text == "So far"


def test_messages_without_a_closing_one_are_no_success() -> None:
    for given in ([], messages(frames.init(), frames.assistant("Hello"))):
        answer = ph.QueryResult(given)
        assert not answer.is_success
        assert answer.outcome == "error"
        with pytest.raises(NoResultError, match="no result message"):
            answer.raise_for_error()
    assert answer.text == "Hello"
    assert ph.QueryResult(messages(frames.assistant("Hello"), {"type": "done"})).is_success


# Ways that give no result.


async def test_the_text_stream_raises_the_error_after_the_text(fake: FakeCLI) -> None:
    failing(fake, frames.assistant("Half of it."))
    got: list[str] = []
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.AuthenticationError, match="the API refused the key in ANTHROPIC_API_KEY") as caught:
        await collect(query.text_stream(), got)
    assert got == ["Half of it."]
    assert caught.value is (await query.result()).error


async def test_the_text_stream_raises_what_only_the_result_knows(fake: FakeCLI) -> None:
    fake.text("no JSON at all")
    with pytest.raises(ph.StructuredOutputError):
        async for _ in ph.query("go", cli=fake.path, json_schema={"type": "object"}, output_repairs=0).text_stream():
            pass


async def test_the_text_stream_of_an_interrupted_query_says_so(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("Half of it."))
    fake.expect("control_request", "interrupt").reply({})
    fake.emit(frames.result(None, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming"))
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.Interrupted):  # noqa: PT012 - raised by the loop
        async for _ in query.text_stream():
            await query.interrupt()


async def test_the_last_event_has_the_error_that_the_result_has(fake: FakeCLI) -> None:
    limit = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 4102444800}}
    text = "API Error: 429"
    texts = frames.assistant(text, is_api_error_message=True, error="rate_limit")
    closing = frames.result(text, is_error=True, api_error_status=429)
    fake.expect("user").emit(frames.init(), limit, texts, closing)
    query = ph.query("go", cli=fake.path)
    last = [event async for event in query.events()][-1]
    assert isinstance(last, ph.Finished)
    assert isinstance(last.error, ph.RateLimitError)
    wanted = (await query.result()).error
    assert isinstance(wanted, ph.RateLimitError)
    assert (str(last.error), last.error.resets_at) == (str(wanted), wanted.resets_at) == (str(wanted), 4102444800)


@pytest.mark.parametrize("repairs", [0, 1])
def test_the_last_event_knows_of_an_output_that_does_not_fit(fake: FakeCLI, repairs: int) -> None:
    fake.text("no JSON at all").forever()
    query = sync.query("go", cli=fake.path, json_schema={"type": "object"}, output_repairs=repairs)
    ends = [event.error for event in query.events() if isinstance(event, ph.Finished)]
    assert [type(error) for error in ends] == [type(None)] * repairs + [ph.StructuredOutputError]


def test_the_last_event_of_a_success_has_no_error(fake: FakeCLI) -> None:
    [*_, last] = sync.query("go", cli=fake.text("Hello").path).events()
    assert isinstance(last, ph.Finished)
    assert last.error is None


# A web service.


# A query that is dropped without having been used.


def drop(query: object) -> None:
    del query
    gc.collect()


def test_a_query_that_is_never_awaited_warns(fake: FakeCLI) -> None:
    with pytest.warns(RuntimeWarning, match="query 'Tidy up' was never sent: `await` it"):
        drop(ph.query("Tidy up", cli=fake.path))
    with pytest.warns(RuntimeWarning, match=r"query 'x{39}…' was never sent"):
        drop(ph.query("x" * 100, cli=fake.path).text_stream())
    assert fake.calls == []


async def test_a_query_of_a_session_warns_too(fake: FakeCLI) -> None:
    async with ph.session(cli=fake.path) as session:
        with pytest.warns(RuntimeWarning, match="query 'Tidy up' was never sent"):
            drop(session.query("Tidy up"))


def test_the_blocking_query_names_its_own_verbs(fake: FakeCLI) -> None:
    with pytest.warns(RuntimeWarning, match=r"query 'Tidy up' was never sent: call `\.result\(\)`"):
        drop(sync.query("Tidy up", cli=fake.path))


async def test_a_query_that_was_closed_interrupted_or_refused_does_not_warn(fake: FakeCLI) -> None:
    query = ph.query("Tidy up", cli=fake.path)
    await query.aclose()
    drop(query)
    query = ph.query("Tidy up", cli=fake.path)
    await query.interrupt()
    drop(query)
    with pytest.raises(ph.UsageError):
        ph.query("", cli=fake.path)
    with pytest.raises(ph.UsageError):
        ph.query("Tidy up", cli=fake.path, on_message=cast("Any", 3))
    gc.collect()


# A failed result that nobody looks at.


class Watcher:
    def query_started(self, _: Any) -> ph.instrumentation.Observer:
        return ph.instrumentation.Observer()

    def session_environ(self) -> dict[str, str | None]:
        return {}


async def ask(fake: FakeCLI, **settings: Any) -> ph.QueryResult:
    return await ph.query("go", cli=failing(fake).path, **settings)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.name == "pilothouse"]


async def test_a_failed_result_that_is_dropped_unseen_logs_one_warning(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture
) -> None:
    result = await ask(fake)
    assert (result.text, result.full_text, result.output) == ("", "", None)
    assert warnings_of(caplog) == []
    del result
    [printed] = warnings_of(caplog)
    assert printed.endswith("`raise_for_error()`: AuthenticationError")


@pytest.mark.parametrize("look", ["error", "is_success", "outcome", "raise_for_error"])
async def test_one_that_was_looked_at_does_not(fake: FakeCLI, caplog: pytest.LogCaptureFixture, look: str) -> None:
    result = await ask(fake)
    seen = getattr(result, look)
    if callable(seen):
        with pytest.raises(ph.AuthenticationError):
            seen()
    del result, seen
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("show", [repr, str])
async def test_a_repr_does_not_count_as_a_look(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture, show: Callable[[object], str]
) -> None:
    result = await ask(fake)
    assert show(result).startswith("QueryResult(error, ")
    del result
    assert len(warnings_of(caplog)) == 1


async def test_what_a_notebook_shows_counts_as_a_look(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    result = await ask(fake)
    result._repr_html_()  # pyright: ignore[reportPrivateUsage]
    del result
    assert warnings_of(caplog) == []


async def test_internal_code_does_not_count_as_the_user_looking(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture
) -> None:
    retry = RetryPolicy(attempts=1, first_delay=0.01)
    await ask(fake, retry=retry, max_budget_tokens=10**9, instrumentation=Watcher(), json_schema={"type": "object"})
    assert len(warnings_of(caplog)) == 1


async def test_a_text_stream_that_raised_has_been_seen(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ph.AuthenticationError):
        await collect(ph.query("go", cli=failing(fake).path).text_stream(), [])
    assert warnings_of(caplog) == []


async def test_a_result_of_ones_own_and_an_interrupt_log_nothing(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture
) -> None:
    ph.QueryResult([])
    query = ph.query("go", cli=fake.path)
    await query.interrupt()
    await query
    del query
    assert warnings_of(caplog) == []


# A loop over a query that was read before.


async def test_a_loop_after_the_answer_gives_the_messages_again(fake: FakeCLI) -> None:
    received: list[str] = []
    query = ph.query("go", cli=fake.text("Hello").path, on_message=lambda message: received.append(message.type))
    early = aiter(query)
    result = await query
    assert [message async for message in early] == result.messages
    for _ in range(2):
        assert [message async for message in query] == result.messages
    assert [text async for text in query.text_stream()] == ["Hello"]
    assert [type(event) for event in [event async for event in query.events()]][-1] is ph.Finished
    assert await query is result
    assert received == ["system", "assistant", "result"]


async def test_a_loop_that_was_left_at_the_result_is_begun_anew(fake: FakeCLI) -> None:
    query = ph.query("go", cli=fake.text("Hello").path)
    async for message in query:
        if isinstance(message, ph.ResultMessage):
            break
    assert [message.type async for message in query] == ["system", "assistant", "result"]


async def test_in_a_block_it_goes_on_after_the_result(fake: FakeCLI) -> None:
    async with ph.query("go", cli=fake.text("Hello").path) as query:
        async for message in query:
            if isinstance(message, ph.ResultMessage):
                break
        assert [message async for message in query] == []


async def test_a_loop_over_what_was_not_kept_says_what_to_do(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).repeat(6000, frames.assistant("x" * 1000)).emit(frames.result("done"))
    query = ph.query("go", cli=fake.path)
    async for _ in query:
        pass
    for again in (query, query.text_stream(), query.events()):
        with pytest.raises(ph.UsageError, match="`await` it first"):
            async for _ in again:
                pass


async def test_an_error_has_no_error_of_ours_in_its_traceback() -> None:
    query = ph.query("go", cli="/no/such/claude")
    with pytest.raises(ph.CLINotFoundError) as caught:
        await query
    assert "IndexError" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ph.CLINotFoundError) as caught:
        list(sync.query("go", cli="/no/such/claude"))
    assert "IndexError" not in "".join(traceback.format_exception(caught.value))
