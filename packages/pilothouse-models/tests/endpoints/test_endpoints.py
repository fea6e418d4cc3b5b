"""The endpoints, driven by the official clients of OpenAI and Anthropic; the CLI says what each test tells it."""

from __future__ import annotations

import base64
import gc
import http.client
import json
import threading
from typing import Any

import anthropic
import openai
import pytest
from endpoint_server import LIMIT, TOKEN, Clients, Connect, EndpointServer, ToldTransports, call_text, speak
from process_checks import child_pids, eventually
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

import pilothouse as ph
from pilothouse_access.owners import Owner
from pilothouse_models.endpoints import EndpointModels, application, openai_routes
from pilothouse_models.endpoints.exchange import StopTextFilter
from pilothouse_testing import FakeCLI, frames

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
CITY: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OSLO = {"name": "Oslo"}
OUTPUT = call_text("StructuredOutput", **OSLO)


def test_a_chat_completion(connect: Connect) -> None:
    clients = connect(speak("Hello there.", "Polite."))
    answer = clients.chat("Greet me", temperature=0.3)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason, answer.model) == ("Hello there.", "stop", "sonnet")
    assert choice.message.reasoning_content == "Polite."
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (16, 4, 20)
    assert usage.prompt_tokens_details.cached_tokens == 5
    [block] = json.loads(clients.told.prompt())
    assert (block["type"], block["text"]) == ("text", "Greet me")


def test_a_streamed_chat_completion(connect: Connect) -> None:
    clients = connect(speak("Hello there.", "Polite."))
    chunks = list(clients.chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there."
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) == 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 20
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_a_chat_completion_and_their_results(connect: Connect, stream: bool) -> None:
    clients = connect(f"Let me see. {call_text('weather', city='Oslo')}{call_text('weather', city='Rome')}", "Warm.")
    tools: Any = [{"type": "function", "function": FUNCTION}]
    asked: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Warm?"}]
    create = clients.openai.chat.completions.create
    if stream:
        with clients.openai.chat.completions.stream(model="sonnet", messages=asked, tools=tools) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = create(model="sonnet", messages=asked, tools=tools, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Rome"}),
    ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18"} for call in calls]
    said: Any = choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
    for call in said["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    last = create(model="sonnet", messages=[*asked, said, *results], tools=tools)
    assert last.choices[0].message.content == "Warm."
    prompt = clients.told.prompt()
    assert "Warm?" in prompt
    assert prompt.count("<result>18</result>") == 2
    assert "Be brief." in clients.told.system()


@pytest.mark.parametrize("stream", [False, True])
def test_half_of_a_surrogate_pair_in_an_answer(connect: Connect, stream: bool) -> None:
    half = "\ud83d"
    clients = connect(*[f"Cut: {half}{call_text('weather', city=half)}"] * 3)
    chat = clients.chat(stream=stream, tools=[{"type": "function", "function": FUNCTION}])
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS}]
    message = clients.message(stream=stream, tools=tools)
    tools = [{"type": "function", **FUNCTION}]
    response = clients.openai.responses.create(model="sonnet", input="Hi", stream=stream, tools=tools)
    if stream:
        found = [str([event.model_dump() for event in events]) for events in (chat, message, response)]
        assert [ascii(half)[1:-1] in each and "weather" in each for each in found] == [True] * 3
    else:
        [call] = chat.choices[0].message.tool_calls
        assert (chat.choices[0].message.content, json.loads(call.function.arguments)) == (
            f"Cut: {half}",
            {"city": half},
        )
        assert (message.content[0].text, message.content[1].input) == (f"Cut: {half}", {"city": half})
        assert clients.openai.responses.retrieve(response.id).output_text == f"Cut: {half}"


def test_arguments_that_are_nested_too_deeply_are_a_text(connect: Connect) -> None:
    clients = connect("Fine.")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "[" * 5000}}
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
    answer = clients.openai.chat.completions.create(
        model="sonnet", messages=[*asked, {"role": "tool", "tool_call_id": "c1", "content": "18"}]
    )
    assert answer.choices[0].message.content == "Fine."
    assert "[[[[" in clients.told.prompt()


def test_one_call_at_most(connect: Connect) -> None:
    clients = connect(call_text("weather", city="Oslo") + call_text("weather", city="Rome"))
    answer = clients.chat(tools=[{"type": "function", "function": FUNCTION}], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert "one tool at most" in clients.told.system()


def test_typed_output(connect: Connect) -> None:
    clients = connect(OUTPUT, OUTPUT, OUTPUT, '{"any": 1}')
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    assert json.loads(clients.chat(response_format=form).choices[0].message.content) == OSLO
    response = clients.openai.responses.create(
        model="sonnet", input="City?", text={"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    )
    assert json.loads(response.output_text) == OSLO
    message = clients.message(output_config={"format": {"type": "json_schema", "schema": CITY}})
    assert json.loads(message.content[0].text) == OSLO
    assert json.loads(clients.chat(response_format={"type": "json_object"}).choices[0].message.content) == {"any": 1}


def test_pictures_and_files(connect: Connect) -> None:
    clients = connect("1", "2", "3")
    url, pdf = f"data:image/png;base64,{PNG}", base64.b64encode(b"%PDF-1.4 x").decode()
    clients.chat(
        [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"}},
            {"type": "text", "text": "See?"},
        ]
    )
    clients.openai.responses.create(
        model="sonnet",
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "low"}]}],
    )
    clients.message([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}])
    assert all(PNG in clients.told.prompt(at) for at in range(3))
    assert pdf in clients.told.prompt(0)


def test_a_response_and_what_continues_it(connect: Connect) -> None:
    clients = connect(speak("Alice it is.", "Noted."), "You are Alice.", "Still Alice.")
    first = clients.openai.responses.create(model="sonnet", input="I am Alice.", instructions="Rhyme.")
    assert (first.output_text, first.status, first.usage.total_tokens) == ("Alice it is.", "completed", 20)
    assert [item.type for item in first.output] == ["reasoning", "message"]
    second = clients.openai.responses.create(model="sonnet", input="Who am I?", previous_response_id=first.id)
    assert second.output_text == "You are Alice."
    for words in ("I am Alice.", "Alice it is.", "Who am I?"):
        assert words in clients.told.prompt()
    assert "Rhyme." not in clients.told.system()  # instructions hold for one response
    branch = clients.openai.responses.create(model="sonnet", input="And now?", previous_response_id=first.id)
    assert branch.output_text == "Still Alice."
    assert "Who am I?" not in clients.told.prompt()
    assert clients.openai.responses.retrieve(first.id).output_text == "Alice it is."
    clients.openai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as caught:
        clients.openai.responses.create(model="sonnet", input="?", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_a_response_that_is_not_stored(connect: Connect) -> None:
    clients = connect("Secret.")
    answer = clients.openai.responses.create(model="sonnet", input="?", store=False)
    with pytest.raises(openai.NotFoundError):
        clients.openai.responses.retrieve(answer.id)


def test_a_streamed_response(connect: Connect) -> None:
    clients = connect(speak(f"Let me see. {call_text('weather', city='Oslo')}", "Hm."), "Warm.")
    tools: Any = [{"type": "function", **FUNCTION, "strict": True}]
    with clients.openai.responses.stream(model="sonnet", input="Warm?", tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for kind in ("response.reasoning_summary_text.delta", "response.function_call_arguments.done"):
        assert kind in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text.strip() == "Let me see."
    call: Any = final.output[-1]
    assert json.loads(call.arguments) == {"city": "Oslo"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    again = clients.openai.responses.create(model="sonnet", input=[result], previous_response_id=final.id, tools=tools)
    assert again.output_text == "Warm."
    assert "<result>18</result>" in clients.told.prompt()


def test_a_message(connect: Connect) -> None:
    clients = connect(speak("Hello there.", "Polite."), speak("Hello.", "Polite."))
    message = clients.message(system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}])
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello there.")]
    assert (message.stop_reason, message.model) == ("end_turn", "sonnet")
    usage = message.usage
    counted = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert (*counted, usage.output_tokens) == (10, 5, 1, 4)
    assert "Be kind." in clients.told.system()
    thought = clients.message(thinking={"type": "enabled", "budget_tokens": 2000})
    assert [block.type for block in thought.content] == ["thinking", "text"]


def test_a_streamed_message_with_calls_and_results(connect: Connect) -> None:
    clients = connect(speak(f"Let me see. {call_text('weather', city='Oslo')}", "Hm."), "Warm.")
    tools: Any = [{"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}]
    asked: Any = [{"role": "user", "content": "Warm?"}]
    thinking: Any = {"type": "enabled", "budget_tokens": 2000}
    with clients.anthropic.messages.stream(
        model="sonnet", max_tokens=64_000, messages=asked, tools=tools, thinking=thinking
    ) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    call: Any = message.content[-1]
    assert (call.name, call.input, message.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (10, 4)
    said: Any = {"role": "assistant", "content": [block.model_dump() for block in message.content]}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18"}]}
    last = clients.anthropic.messages.create(
        model="sonnet", max_tokens=64_000, messages=[*asked, said, {"role": "user", "content": [result]}], tools=tools
    )
    assert last.content[0].text == "Warm."
    assert "<result>18</result>" in clients.told.prompt()


def test_texts_at_which_an_answer_stops(connect: Connect) -> None:
    clients = connect("One two three.", "One two three.", speak("One two three.", pieces=14))
    message = clients.message(stop_sequences=["never", "two"])
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("One ", "stop_sequence", "two")
    assert clients.chat(stop="three").choices[0].message.content == "One two "
    chunks = list(clients.chat(stop=["two"], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "One "


def test_the_stop_text_filter_at_every_split() -> None:
    whole = "abcabcabd and more"
    for first in range(len(whole)):
        for second in range(first, len(whole)):
            stops = StopTextFilter(["abd", "zzz"])
            told = [stops.feed(part) for part in (whole[:first], whole[first:second], whole[second:])]
            assert ("".join(told) + stops.end(), stops.found) == ("abcabc", "abd")
    assert StopTextFilter(["abd"]).feed("xab") == "x"


def test_why_an_answer_ended(connect: Connect) -> None:
    limited = speak("Cut", stop_reason="max_tokens", subtype="success", is_error=True, api_error="max_output_tokens")
    refused = speak("No.", stop_reason="refusal")
    clients = connect(limited, refused, limited, refused, limited)
    assert clients.chat(max_tokens=5).choices[0].finish_reason == "length"
    assert clients.told.invocations[-1].env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "5"
    assert clients.chat().choices[0].finish_reason == "content_filter"
    assert clients.message().stop_reason == "max_tokens"
    assert clients.message().stop_reason == "refusal"
    response = clients.openai.responses.create(model="sonnet", input="?")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_models(connect: Connect) -> None:
    clients = connect("Hi.", aliases={"gpt-4o": "haiku"}, agents={"helper": ph.Agent()})
    names = ["opus", "sonnet", "haiku", "gpt-4o", "agent:helper"]
    assert [model.id for model in clients.openai.models.list()] == names
    assert [model.id for model in clients.anthropic.models.list()] == names
    assert clients.openai.models.retrieve("agent:helper").id == "agent:helper"
    answer = clients.openai.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "Hi"}])
    assert answer.model == "gpt-4o"
    assert "--model=haiku" in clients.told.invocations[-1].argv
    for name in ("gpt-5", "agent:other", ""):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as caught:
            clients.openai.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}])
        assert (caught.value.code == "model_not_found") == bool(name)
        with pytest.raises((anthropic.NotFoundError, anthropic.BadRequestError)):
            clients.anthropic.messages.create(model=name, max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(ph.UsageError, match="leads to 'gpt-5'"):
        EndpointModels(aliases={"x": "gpt-5"})


def test_an_agent_with_tools_of_its_own(connect: Connect) -> None:
    told = ToldTransports(
        [frames.init(), frames.assistant("I look."), frames.assistant([frames.tool_use("Bash", {"command": "ls"})]),
         frames.user_tool_result(tool_use_id="toolu_1", content="a.py"), frames.assistant("One file."),
         frames.result("One file.")],
        [frames.init(), frames.result("Still one.", structured_output=OSLO)],
        "Forked.",
    )  # fmt: skip
    clients = connect(agents={"helper": ph.Agent(transport=told, append_system_prompt="Own.")})
    answer = clients.openai.chat.completions.create(
        model="agent:helper", messages=[{"role": "system", "content": "Brief."}, {"role": "user", "content": "Files?"}]
    )
    assert answer.choices[0].message.content == "I look.\n\nOne file."
    assert answer.choices[0].message.tool_calls is None
    system = told.system()
    assert "Own." in system
    assert "Brief." in system
    response = clients.openai.responses.create(
        model="agent:helper", input="City?", text={"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    )
    assert json.loads(response.output_text) == OSLO
    more = clients.openai.responses.create(model="agent:helper", input="More?", previous_response_id=response.id)
    assert more.output_text == "Forked."
    argv = told.invocations[-1].argv
    assert "--fork-session" in argv
    assert f"--resume={frames.SESSION_ID}" in argv
    assert told.prompt() == json.dumps([{"type": "text", "text": "More?"}])
    with pytest.raises(openai.BadRequestError, match="runs its own tools"):
        clients.openai.chat.completions.create(
            model="agent:helper",
            messages=[{"role": "user", "content": "?"}],
            tools=[{"type": "function", "function": FUNCTION}],
        )
    with pytest.raises(openai.BadRequestError, match="cannot continue each other's"):
        clients.openai.responses.create(model="sonnet", input="?", previous_response_id=more.id)


def failure(status: int, error: str, **more: Any) -> list[dict[str, Any]]:
    said = frames.assistant("API Error", error=error, is_api_error_message=True)
    return [frames.init(), said, frames.result("API Error", is_error=True, api_error_status=status, **more)]


LIMIT_EVENT = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 4_102_444_800}}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("turn", "status", "openai_error", "anthropic_error"),
    [
        (failure(401, "authentication_failed"), 401, openai.AuthenticationError, anthropic.AuthenticationError),
        (failure(404, "model_not_found"), 404, openai.NotFoundError, anthropic.NotFoundError),
        (failure(429, "rate_limit"), 429, openai.RateLimitError, anthropic.RateLimitError),
        (failure(529, "overloaded"), 529, openai.InternalServerError, anthropic.OverloadedError),
        (failure(500, "server_error"), 500, openai.InternalServerError, anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_the_errors_of_each_vendor(
    connect: Connect, turn: Any, status: int, openai_error: Any, anthropic_error: Any, stream: bool
) -> None:
    clients = connect(turn, turn)
    with pytest.raises(openai_error) as caught:
        list(clients.chat(stream=stream))
    assert caught.value.status_code == status
    with pytest.raises(anthropic_error) as told:
        list(clients.message(stream=stream))
    assert told.value.status_code == status
    assert told.value.body["type"] == "error"
    for error in (caught.value, told.value):
        assert ("retry-after" in error.response.headers) == (status in (429, 529))


def test_paths_and_methods_that_are_not_there_are_refused_in_the_form_of_each_vendor(connect: Connect) -> None:
    clients = connect()
    with pytest.raises(openai.NotFoundError) as caught:
        clients.openai.embeddings.create(model="sonnet", input="?")
    assert (caught.value.type, caught.value.code) == ("not_found_error", "unknown_url")
    assert "there is no POST /v1/embeddings here" in caught.value.message
    with pytest.raises(anthropic.NotFoundError) as told:
        clients.anthropic.messages.batches.list()
    assert told.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "there is no GET /v1/messages/batches here"},
    }
    with pytest.raises(anthropic.NotFoundError, match="the base URL of this client has no /v1"):
        clients.anthropic.with_options(base_url=f"{clients.server.url}/v1").models.list()
    with pytest.raises(openai.APIStatusError) as refused:
        clients.openai.chat.completions.list()
    assert (refused.value.status_code, refused.value.code) == (405, "method_not_supported")
    assert refused.value.response.headers["allow"] == "POST"
    with pytest.raises(anthropic.APIStatusError) as unknown:
        clients.anthropic.post("/v1/models", cast_to=object)
    body: Any = unknown.value.body
    assert (unknown.value.status_code, body["error"]["type"]) == (405, "invalid_request_error")


def test_other_routes_of_the_application_come_first() -> None:
    def own(request: Request) -> Response:
        return PlainTextResponse("own")

    routes = [*openai_routes(EndpointModels(), token=TOKEN), Route("/v1/own", own)]
    headers = {"authorization": f"Bearer {TOKEN}"}
    client = TestClient(Starlette(routes=routes), base_url="http://localhost", headers=headers)
    assert client.get("/v1/own").text == "own"
    assert client.get("/v1/chat/completions").json()["error"]["code"] == "method_not_supported"
    assert client.get("/v2").text == "Not Found"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("status", "error", "openai_error", "anthropic_error"),
    [
        (400, "invalid_request", openai.BadRequestError, "invalid_request_error"),
        (403, "authentication_failed", openai.PermissionDeniedError, "permission_error"),
        (413, "invalid_request", openai.APIStatusError, "request_too_large"),
        (422, "invalid_request", openai.UnprocessableEntityError, "invalid_request_error"),
    ],
)
def test_what_the_api_refuses_is_not_sent_again(
    connect: Connect, status: int, error: str, openai_error: Any, anthropic_error: str
) -> None:
    turn = failure(status, error)
    clients = connect(turn, turn)
    with pytest.raises(openai_error) as caught:
        # A status of 500 would be tried twice more: there are no further answers here.
        clients.openai.with_options(max_retries=2).chat.completions.create(
            model="sonnet", messages=[{"role": "user", "content": "Hi"}]
        )
    assert (caught.value.status_code, caught.value.type) == (status, anthropic_error)
    with pytest.raises(anthropic.APIStatusError) as told:
        clients.message()
    body: Any = told.value.body
    assert (told.value.status_code, body["error"]["type"]) == (status, anthropic_error)


def test_used_up_credits_come_back_at_no_known_time(connect: Connect) -> None:
    init, said, closing = failure(400, "billing_error")
    clients = connect([init, said, {**closing, "result": "Credit balance is too low"}])
    with pytest.raises(openai.RateLimitError) as caught:
        clients.chat()
    assert caught.value.code == "insufficient_quota"
    assert "retry-after" not in caught.value.response.headers


def test_a_limit_says_when_it_ends(connect: Connect) -> None:
    init, *rest = failure(429, "rate_limit")
    clients = connect([init, LIMIT_EVENT, *rest])
    with pytest.raises(openai.RateLimitError) as caught:
        clients.chat()
    assert int(caught.value.response.headers["retry-after"]) > 1_000_000


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"functions": [FUNCTION]},
        {"logprobs": True},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"tool_choice": {"type": "function", "function": {"name": "none"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
        {"max_tokens": 0},
        {"stop": [1]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        {"messages": [{"role": "robot", "content": "?"}]},
        {"messages": []},
    ],
)
def test_requests_that_cannot_be_answered(connect: Connect, more: dict[str, Any]) -> None:
    clients = connect()
    body: Any = {"model": "sonnet", "messages": [{"role": "user", "content": "Hi"}], **more}
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.chat.completions.create(**body)
    assert caught.value.type == "invalid_request_error"
    assert clients.told.made == []  # nothing was started


def test_a_result_of_an_unknown_call_is_refused(connect: Connect) -> None:
    clients = connect()
    user = {"role": "user", "content": "Hi"}
    result = {"role": "tool", "tool_call_id": "call_7", "content": "18"}
    output = {"type": "function_call_output", "call_id": "call_8", "output": "18"}
    with pytest.raises(openai.BadRequestError, match=r"messages\[1\].*no call 'call_7'"):
        clients.openai.chat.completions.create(model="sonnet", messages=[user, result])
    with pytest.raises(openai.BadRequestError, match="no call 'call_8'"):
        clients.openai.responses.create(model="sonnet", input=[output])
    with pytest.raises(anthropic.BadRequestError, match="no call 'toolu_9'"):
        clients.message([{"type": "tool_result", "tool_use_id": "toolu_9", "content": "18"}])
    assert clients.told.made == []


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "more",
    [
        {"background": True},
        {"conversation": "conv_1"},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
    ],
)
def test_what_an_endpoint_does_not_have(connect: Connect, more: dict[str, Any]) -> None:
    clients = connect()
    asked: Any = {"model": "sonnet", "input": "Hi", **more}
    with pytest.raises(openai.BadRequestError):
        clients.openai.responses.create(**asked)
    with pytest.raises(anthropic.BadRequestError, match="runs at Anthropic"):
        clients.message(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert clients.told.made == []


def post(clients: Clients, path: str, body: bytes) -> tuple[int, Any]:
    """Send a body as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", clients.server.port, timeout=LIMIT)
    connection.request("POST", path, body, {"x-api-key": TOKEN})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def test_bodies_that_are_none(connect: Connect) -> None:
    clients = connect()
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        status, told = post(clients, "/v1/messages", body)
        assert (status, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/messages", {"tool_choice": {"type": []}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": {}}]}]}),
        ("/v1/messages/count_tokens", {"tool_choice": {"type": {}}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "file", "file": 1}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": True}]}),
    ],
)
def test_values_of_another_type_are_refused(connect: Connect, path: str, more: dict[str, Any]) -> None:
    clients = connect()
    body = {"model": "sonnet", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **more}
    status, told = post(clients, path, json.dumps(body).encode())
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")
    assert clients.told.made == []


def test_a_result_with_a_type_that_is_no_text_is_json(connect: Connect) -> None:
    clients = connect("Fine.")
    call: Any = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": {}}]}
    answer = clients.anthropic.messages.create(
        model="sonnet",
        max_tokens=64_000,
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    )
    assert answer.content[0].text == "Fine."
    assert "{}" in clients.told.prompt()


def test_an_unforeseen_failure_has_the_form_of_the_vendor(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: EndpointModels, name: str) -> str:
        raise RuntimeError("/secret/place")

    clients = connect()
    monkeypatch.setattr(EndpointModels, "check", fail)
    with pytest.raises(openai.InternalServerError) as openai_error:
        clients.chat()
    with pytest.raises(anthropic.InternalServerError) as anthropic_error:
        clients.message()
    assert openai_error.value.type == "server_error"
    assert anthropic_error.value.type == "api_error"
    assert "/secret" not in f"{openai_error.value} {anthropic_error.value}"
    assert "/secret/place" in caplog.text


def test_a_client_that_leaves_in_its_request_is_no_failure(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    clients = connect("Next.")
    connection = http.client.HTTPConnection("127.0.0.1", clients.server.port, timeout=LIMIT)
    connection.putrequest("POST", "/v1/messages")
    connection.putheader("x-api-key", TOKEN)
    connection.putheader("content-length", "1000")
    connection.endheaders(b'{"model":')
    connection.close()
    assert clients.chat().choices[0].message.content == "Next."
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_the_owner_with_most_answers_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MAX_KEPT_ANSWERS", 4)
    monkeypatch.setattr(application, "MAX_KEPT_BYTES", 100)
    ann, bob, kept = Owner("ann"), Owner("bob"), application.KeptAnswers()

    def keep(owner: Owner, *names: str, size: int = 1) -> None:
        for name in names:
            kept.add(application.KeptAnswer(owner, {"id": name}, [], [], None, size))

    def known(*names: str) -> str:
        return "".join(name for name in names if name in kept._answers)

    keep(bob, "1")
    keep(ann, "a", "b", "c", "d", "e")
    assert known("1", "a", "b", "c", "d", "e") == "1cde"
    keep(bob, "2", "3")
    assert known("1", "2", "3", "c", "d", "e") == "23de"
    keep(ann, "f", size=98)
    assert known("2", "3", "d", "e", "f") == "23f"


def test_a_file_of_the_account_is_not_sent(connect: Connect) -> None:
    clients = connect()
    source: Any = {"type": "file", "file_id": "file_011"}
    with pytest.raises(anthropic.BadRequestError, match="a file_id leads to none"):
        clients.anthropic.messages.create(
            model="sonnet",
            max_tokens=9,
            messages=[{"role": "user", "content": [{"type": "document", "source": source}]}],
        )
    file: Any = {"type": "file", "file": {"file_id": "file_011"}}
    with pytest.raises(openai.BadRequestError, match="a file_id leads to none"):
        clients.openai.chat.completions.create(model="sonnet", messages=[{"role": "user", "content": [file]}])


def test_an_estimate_of_tokens(connect: Connect) -> None:
    clients = connect()
    count = clients.anthropic.messages.count_tokens
    small = count(model="sonnet", messages=[{"role": "user", "content": "Hi"}]).input_tokens
    large = count(model="sonnet", messages=[{"role": "user", "content": "word " * 700}]).input_tokens
    source: Any = {"type": "base64", "media_type": "image/png", "data": PNG * 1000}
    picture = count(model="sonnet", messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])
    assert small < 10
    assert 900 < large < 1100
    assert 1600 <= picture.input_tokens < 1700


def test_a_failure_of_the_server_says_nothing_about_it(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    told = ToldTransports()  # has nothing to say: it raises
    clients = connect(agents={"broken": ph.Agent(cli="/secret/place/claude")})
    assert told.made == []
    with pytest.raises(openai.InternalServerError) as caught:
        clients.openai.chat.completions.create(model="agent:broken", messages=[{"role": "user", "content": "?"}])
    assert "/secret" not in str(caught.value)
    assert "/secret/place/claude" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_ends_the_work(connect: Connect, stream: bool) -> None:
    begun = speak("One two three.", pieces=7)[:-4]  # without its end
    clients = connect(begun, "Next.")
    body = json.dumps({"model": "sonnet", "stream": stream, "messages": [{"role": "user", "content": "Go"}]})
    connection = http.client.HTTPConnection("127.0.0.1", clients.server.port, timeout=LIMIT)
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {TOKEN}"})
    if stream:
        assert connection.getresponse().read(10)
    while not clients.told.made or not clients.told.made[0].sent_frames:
        threading.Event().wait(0.01)
    transport = clients.told.made[0]
    assert transport.health().state == "healthy"
    connection.close()
    if stream:
        del connection
    for _ in range(1000):
        if transport.health().state != "healthy":
            break
        threading.Event().wait(0.01)
    assert transport.health().state != "healthy"
    assert clients.chat().choices[0].message.content == "Next."


def test_clients_that_hang_up_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """One client is answered, two wait for their turn, and all leave."""
    body = json.dumps({"model": "sonnet", "messages": [{"role": "user", "content": "Go"}]})
    hanging = FakeCLI().expect("user").emit(frames.init()).expect("never")
    with hanging as fake, EndpointServer(EndpointModels(cli=fake.path, max_requests=1)) as server:
        before = child_pids()
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT) for _ in range(3)]
        for connection in connections:
            connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {TOKEN}"})
        eventually(lambda: len(fake.calls) == 1, "no process was started")
        for connection in reversed(connections):
            connection.close()
        eventually(lambda: child_pids() <= before, "a process is left")
        eventually(lambda: len(fake.calls) == 1, "a process was started for a client that had left")
    gc.collect()  # a request that was never sent says so here
    assert caplog.text == ""
