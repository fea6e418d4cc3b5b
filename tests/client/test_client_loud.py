"""A run that failed says so in every way in which its answer can be read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.messages import Message, from_dict
from pilothouse.testing import FakeCLI, frames

REFUSED = "Not logged in · Please run /login"


def failing(fake: FakeCLI, *before: Any, text: str = REFUSED, **fields: Any) -> FakeCLI:
    """The CLI answers with an error of the API in the place of the model."""
    spoken = frames.assistant(text, is_api_error_message=True, error="authentication_failed", model="<synthetic>")
    closing = frames.result(text, is_error=True, api_error_status=401, **fields)
    return fake.expect("user").emit(frames.init(), *before, spoken, closing)


async def collect(stream: AsyncIterator[str], into: list[str]) -> None:
    async for piece in stream:
        into.append(piece)


def messages(*dicts: Any) -> list[Message]:
    return [from_dict(each) for each in dicts]


# The text of a result.


def test_the_text_of_a_failed_run_is_what_the_model_said() -> None:
    said, own = frames.assistant("Half of it."), frames.assistant("of a sub-agent", parent_tool_use_id="t1")
    refused = frames.assistant(REFUSED, is_api_error_message=True, error="authentication_failed")
    failed = frames.result(REFUSED, is_error=True)
    answer = ph.QueryResult(messages(frames.init(), said, own, refused, failed))
    assert (answer.text, answer.full_text) == ("Half of it.", "Half of it.")
    assert str(answer.error).startswith("Not logged in (set ANTHROPIC_API_KEY")
    assert answer.result is not None
    assert answer.result.result == REFUSED
    assert ph.QueryResult(messages(frames.init(), refused, failed)).text == ""


def test_the_text_of_a_run_that_reached_a_limit_is_what_the_model_said_last() -> None:
    closing = frames.result(None, subtype="error_max_turns", is_error=True)
    answer = ph.QueryResult(messages(frames.assistant("One."), frames.assistant("Two."), closing))
    assert answer.text == "Two."


def test_the_text_of_an_interrupted_run_is_what_the_model_had_said() -> None:
    said = messages(frames.init(), frames.assistant("So far"))
    assert ph.QueryResult(said, interrupted=True).text == "So far"


def test_messages_without_a_closing_one_are_no_success() -> None:
    for given in ([], messages(frames.init(), frames.assistant("Hello"))):
        answer = ph.QueryResult(given)
        assert not answer.is_success
        assert answer.outcome == "error"
        with pytest.raises(ph.NoResultError, match="no result message"):
            answer.raise_for_error()
    assert answer.text == "Hello"
    assert ph.QueryResult(messages(frames.assistant("Hello"), {"type": "done"})).is_success


def test_the_session_id_is_the_last_one() -> None:
    after_clear = messages(
        {"type": "conversation_reset", "session_id": "old", "new_conversation_id": "new"},
        frames.init(session_id="new"),
        frames.result("", session_id="new"),
    )
    assert ph.QueryResult(after_clear).session_id == "new"
    assert ph.QueryResult(after_clear[:2]).session_id == "new"


# Ways that give no result.


@pytest.mark.anyio
async def test_the_text_stream_raises_the_error_after_the_text(fake: FakeCLI) -> None:
    failing(fake, frames.assistant("Half of it."))
    got: list[str] = []
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.AuthenticationError, match="Not logged in") as caught:
        await collect(query.text_stream(), got)
    assert got == ["Half of it."]
    assert caught.value is (await query.result()).error


def test_the_blocking_text_stream_raises_it_too(fake: FakeCLI) -> None:
    failing(fake, frames.assistant("Half of it."))
    got: list[str] = []
    with pytest.raises(ph.AuthenticationError, match="Not logged in"):
        got.extend(sync.query("go", cli=fake.path).text_stream())
    assert got == ["Half of it."]


@pytest.mark.anyio
async def test_the_text_stream_raises_what_only_the_result_knows(fake: FakeCLI) -> None:
    fake.text("no JSON at all")
    with pytest.raises(ph.StructuredOutputError):
        async for _ in ph.query("go", cli=fake.path, json_schema={"type": "object"}, output_repairs=0).text_stream():
            pass


@pytest.mark.anyio
async def test_the_text_stream_of_an_interrupted_query_says_so(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("Half of it."))
    fake.expect("control_request", "interrupt").reply({})
    fake.emit(frames.result(None, subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming"))
    query = ph.query("go", cli=fake.path)
    with pytest.raises(ph.Interrupted):  # noqa: PT012 - raised by the loop
        async for _ in query.text_stream():
            await query.interrupt()


@pytest.mark.anyio
async def test_the_last_event_has_the_error_that_the_result_has(fake: FakeCLI) -> None:
    limit = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 4102444800}}
    text = "API Error: 429"
    spoken = frames.assistant(text, is_api_error_message=True, error="rate_limit")
    closing = frames.result(text, is_error=True, api_error_status=429)
    fake.expect("user").emit(frames.init(), limit, spoken, closing)
    query = ph.query("go", cli=fake.path)
    last = [event async for event in query.events()][-1]
    assert isinstance(last, ph.AnswerFinished)
    assert isinstance(last.error, ph.RateLimitError)
    wanted = (await query.result()).error
    assert isinstance(wanted, ph.RateLimitError)
    assert (str(last.error), last.error.resets_at) == (str(wanted), wanted.resets_at) == (str(wanted), 4102444800)


@pytest.mark.parametrize("repairs", [0, 1])
def test_the_last_event_knows_of_an_output_that_does_not_fit(fake: FakeCLI, repairs: int) -> None:
    fake.text("no JSON at all").forever()
    query = sync.query("go", cli=fake.path, json_schema={"type": "object"}, output_repairs=repairs)
    ends = [event.error for event in query.events() if isinstance(event, ph.AnswerFinished)]
    assert [type(error) for error in ends] == [type(None)] * repairs + [ph.StructuredOutputError]


def test_the_last_event_of_a_success_has_no_error(fake: FakeCLI) -> None:
    [*_, last] = sync.query("go", cli=fake.text("Hello").path).events()
    assert isinstance(last, ph.AnswerFinished)
    assert last.error is None


# A web service.


@asynccontextmanager
async def get(app: Any) -> AsyncGenerator[list[dict[str, Any]]]:
    """What an application sends in answer to a GET of "/"."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        return {}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "asgi": {}}
    with pytest.raises(ph.AuthenticationError):
        await app(scope | {"asgi": {"spec_version": "2.4"}}, receive, send)
    yield sent


@pytest.mark.anyio
async def test_an_endpoint_that_streams_breaks_off_when_the_run_failed(fake: FakeCLI) -> None:
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def answer(_: Any) -> StreamingResponse:
        return StreamingResponse(ph.query("go", cli=fake.path).text_stream())

    failing(fake)
    async with get(Starlette(routes=[Route("/", answer)])) as sent:
        kinds = [(message["type"], message.get("more_body")) for message in sent]
    assert ("http.response.body", False) not in kinds  # the server breaks the connection off
