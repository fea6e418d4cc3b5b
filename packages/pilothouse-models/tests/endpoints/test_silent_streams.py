"""Streams whose model says nothing for long, or fails late; ids of requests; failures that clients must not repeat."""

from __future__ import annotations

import logging
import re
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from endpoint_server import LIMIT, TOKEN, Connect, EndpointServer, call_text, speak

from pilothouse.errors import UsageError
from pilothouse_access import guard
from pilothouse_access.request_ids import RequestIds
from pilothouse_models.endpoints import EndpointModels, application, openai_routes
from pilothouse_testing import FakeCLI, frames

CITY: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
QUESTION: Any = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Any] = {
    "/v1/messages": {"model": "sonnet", "max_tokens": 9, "stream": True, "messages": QUESTION},
    "/v1/chat/completions": {"model": "sonnet", "stream": True, "messages": QUESTION},
    "/v1/responses": {"model": "sonnet", "stream": True, "input": "Hi"},
}
REQUEST_ID = re.compile(r"req_[0-9a-f]{24}")


@pytest.fixture
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(application, "PING_SECONDS", 0.05)


def read_until_pings(url: str, path: str, count: int) -> list[str]:
    """Read the lines of a stream up to some pings."""
    ping = "event: ping" if path == "/v1/messages" else ": still here"
    lines: list[str] = []
    with httpx2.stream(
        "POST", url + path, json=BODIES[path], headers={"authorization": f"Bearer {TOKEN}"}, timeout=LIMIT
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(ping) == count:
                return lines
    raise AssertionError(lines)


@pytest.mark.usefixtures("_short_silence")
@pytest.mark.parametrize("path", BODIES)
def test_a_silent_model_has_a_head_and_pings(path: str) -> None:
    silent = FakeCLI().expect("user").emit(frames.init()).expect("never")
    with silent as fake, EndpointServer(EndpointModels(cli=fake.path)) as server:
        lines = read_until_pings(server.url, path, 3)
    first = next(line for line in lines if line.startswith("data: "))
    words = {"/v1/messages": "message_start", "/v1/chat/completions": "assistant", "/v1/responses": "response.created"}
    assert words[path] in first


@pytest.mark.usefixtures("_short_silence")
@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_waits_for_its_turn_has_a_head_and_pings(path: str) -> None:
    silent = FakeCLI().expect("user").emit(frames.init()).expect("never")
    with silent as fake, EndpointServer(EndpointModels(cli=fake.path, max_requests=1)) as server:
        head = {"authorization": f"Bearer {TOKEN}"}
        first = httpx2.stream("POST", server.url + path, json=BODIES[path], headers=head, timeout=LIMIT)
        with first:
            read_until_pings(server.url, path, 2)
        assert len(fake.calls) == 1


def fail_late(status: int, error: str) -> FakeCLI:
    said = frames.assistant("API Error", error=error, is_api_error_message=True)
    closing = frames.result("API Error", is_error=True, api_error_status=status)
    return FakeCLI().expect("user").emit(frames.init()).sleep(0.5).emit(said, closing)


@pytest.mark.usefixtures("_short_silence")
@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        (429, "rate_limit", "rate_limit_error", "rate_limit_exceeded"),
        (529, "overloaded", "overloaded_error", "overloaded"),
    ],
)
def test_a_late_failure_is_an_event_that_clients_raise(status: int, error: str, kind: str, code: str) -> None:
    with fail_late(status, error) as fake, EndpointServer(EndpointModels(cli=fake.path)) as server:
        a: Any = anthropic.Anthropic(base_url=server.url, api_key=TOKEN, max_retries=0, timeout=LIMIT)
        o: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, timeout=LIMIT)
        with a, o:
            messages = a.messages.create(model="sonnet", max_tokens=9, messages=QUESTION, stream=True)
            with pytest.raises(anthropic.APIStatusError) as told:
                list(messages)
            assert (told.value.status_code, told.value.type) == (200, kind)
            chunks = o.chat.completions.create(model="sonnet", messages=QUESTION, stream=True)
            with pytest.raises(openai.APIError) as caught:
                list(chunks)
            assert (type(caught.value), caught.value.code) == (openai.APIError, code)
            last = list(o.responses.create(model="sonnet", input="Hi", stream=True))[-1]
            assert (last.type, last.response.status) == ("response.failed", "failed")


@pytest.mark.usefixtures("_short_silence")
def test_an_answer_after_a_silence_is_whole() -> None:
    late = FakeCLI().expect("user").sleep(0.5).emit(*speak("Hello there."))
    with late as fake, EndpointServer(EndpointModels(cli=fake.path)) as server:
        a: Any = anthropic.Anthropic(base_url=server.url, api_key=TOKEN, max_retries=0, timeout=LIMIT)
        o: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, timeout=LIMIT)
        with a, o:
            with a.messages.stream(model="sonnet", max_tokens=9, messages=QUESTION) as stream:
                assert stream.get_final_text() == "Hello there."
            with o.chat.completions.stream(model="sonnet", messages=QUESTION) as chat:
                assert chat.get_final_completion().choices[0].message.content == "Hello there."
            with o.responses.stream(model="sonnet", input="Hi") as response:
                assert response.get_final_response().output_text == "Hello there."


def test_every_response_names_its_request(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    clients = connect("1", "2", "3")
    found = [
        clients.chat()._request_id,
        clients.message()._request_id,
        clients.openai.responses.create(model="sonnet", input="Hi")._request_id,
        clients.openai.models.list()._request_id,
    ]
    for call in (
        lambda: clients.chat(n=2),
        lambda: clients.message(thread={}, extra_body={"thread": {"type": "create"}}),
        lambda: clients.openai.embeddings.create(model="sonnet", input="?"),
        lambda: clients.openai.with_options(api_key="wrong").models.list(),
        lambda: clients.chat(),  # nothing is left to say
    ):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError, TypeError)) as caught:
            call()
        found.append(getattr(caught.value, "request_id", "req_" + "0" * 24))
    assert all(REQUEST_ID.fullmatch(each) for each in found)
    assert len(set(found)) == len(found)
    [record] = [
        each for each in caplog.records if each.name == "pilothouse.endpoints" and each.levelno == logging.ERROR
    ]
    assert found[-1] in record.getMessage()


def test_a_stream_names_its_request(connect: Connect) -> None:
    clients = connect("Hello.", "Hello.")
    stream = clients.chat(stream=True)
    assert REQUEST_ID.fullmatch(stream.response.headers["x-request-id"])
    stream.close()
    with clients.anthropic.messages.stream(model="sonnet", max_tokens=9, messages=QUESTION) as messages:
        assert REQUEST_ID.fullmatch(messages.request_id)


@pytest.mark.parametrize("stream", [False, True])
def test_output_that_does_not_fit_is_not_asked_for_again(connect: Connect, stream: bool) -> None:
    answers = [[speak("No.")] * 4, [speak(call_text("StructuredOutput", nome="Oslo"))] * 4]
    clients = connect(*answers, *answers, *answers)
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    retrying: Any = clients.openai.with_options(max_retries=2)
    for _ in range(2):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            retrying.chat.completions.create(model="sonnet", messages=QUESTION, response_format=form, stream=stream)
        assert (caught.value.code, caught.value.type) == ("invalid_output", "invalid_request_error")
        assert "StructuredOutput" not in caught.value.message
    for _ in range(2):
        with pytest.raises(anthropic.UnprocessableEntityError, match="simplify the schema"):
            clients.anthropic.with_options(max_retries=2).messages.create(
                model="sonnet",
                max_tokens=9,
                messages=QUESTION,
                stream=stream,
                output_config={"format": {"type": "json_schema", "schema": CITY}},
            )
    assert len(clients.told.made) == 4  # each was asked once


def test_a_limit_of_turns_is_not_asked_for_again(connect: Connect) -> None:
    ended = [frames.init(), frames.result(subtype="error_max_turns", is_error=True)]
    clients = connect(ended)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        clients.openai.with_options(max_retries=2).chat.completions.create(model="sonnet", messages=QUESTION)
    assert caught.value.code == "max_turns"


def test_a_wrong_token_has_the_form_of_each_vendor(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WRONG_TOKEN_SECONDS", 0.01)
    clients = connect()
    wrong: Any = clients.openai.with_options(api_key="wrong")
    for call in (
        lambda: wrong.chat.completions.create(model="sonnet", messages=QUESTION),
        lambda: wrong.responses.create(model="sonnet", input="Hi"),
        lambda: wrong.models.list(),
        lambda: wrong.embeddings.create(model="sonnet", input="?"),
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            call()
        assert caught.value.response.json().keys() == {"error"}
        assert (caught.value.code, caught.value.type) == ("invalid_api_key", "authentication_error")
    other: Any = clients.anthropic.with_options(api_key="wrong")
    for ask in (
        lambda: other.messages.create(model="sonnet", max_tokens=1, messages=QUESTION),
        lambda: other.models.list(),
    ):
        with pytest.raises(anthropic.AuthenticationError) as told:
            ask()
        body: Any = told.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    http_client = clients.anthropic._client
    assert anthropic.Anthropic(base_url=clients.server.url, auth_token=TOKEN, http_client=http_client).models.list()
    with pytest.raises(UsageError, match="token of an endpoint is empty"):
        openai_routes(EndpointModels(), token="")


def test_the_input_of_a_stored_response(connect: Connect) -> None:
    clients = connect("One.", "Two.")
    listed = clients.openai.responses.input_items.list
    first = clients.openai.responses.create(model="sonnet", input="Hi")
    [item] = listed(first.id).data
    assert (item.role, item.content[0].type, item.content[0].text) == ("user", "input_text", "Hi")
    given: Any = [{"role": "user", "content": f"{n}"} for n in range(3)]
    second = clients.openai.responses.create(model="sonnet", input=given, previous_response_id=first.id)
    assert [each.content[0].text for each in listed(second.id)] == ["2", "1", "0"]
    page = listed(second.id, order="asc", limit=2)
    assert [each.content[0].text for each in page.data] == ["0", "1"]
    assert page.has_more
    assert [each.content[0].text for each in page] == ["0", "1", "2"]  # the client asks for the next page
    for query in ({"limit": 0}, {"after": "item_none"}):
        with pytest.raises(openai.BadRequestError):
            listed(second.id, **query)
    with pytest.raises(openai.NotFoundError):
        listed("resp_none")


def test_models_are_offered_since_the_start_of_the_server(connect: Connect) -> None:
    clients = connect()
    [model, *_] = clients.openai.models.list()
    assert model.created == pytest.approx(clients.anthropic.models.list().data[0].created_at.timestamp())
    assert model.created > 1_700_000_000


@pytest.mark.anyio
async def test_no_id_is_given_twice() -> None:
    """A host gives one to each request, and so do the routes behind it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    receive: Any = send  # nothing is received
    await RequestIds(RequestIds(application))({"type": "http"}, receive, send)
    [head] = sent
    assert [name for name, _ in head["headers"]] == [b"request-id", b"x-request-id"]
