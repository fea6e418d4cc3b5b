"""Every field of a request that the official clients know is used, named in a header, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import anthropic
import anthropic.types.beta as anthropic_types
import openai
import openai.types.responses as responses_types
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from endpoint_server import Clients, Connect, call_text
from openai.types.chat.chat_completion_function_tool_param import ChatCompletionFunctionToolParam
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import response_create_params
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.shared_params import FunctionDefinition, Reasoning
from openai.types.shared_params.response_format_json_schema import JSONSchema, ResponseFormatJSONSchema

import pilothouse as ph
from pilothouse_models.endpoints.fields import (
    CHAT_FIELDS,
    MAX_HEADER_CHARS,
    MESSAGES_FIELDS,
    RESPONSES_FIELDS,
    Fields,
    check_fields,
    encode_names,
)

SENT_AS_HEADERS = {"betas", "user_profile_id", "workspace_id"}
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OBJECTS: list[tuple[Fields, str, Any]] = [
    (CHAT_FIELDS, "", CompletionCreateParamsBase),
    (CHAT_FIELDS, "response_format.", ResponseFormatJSONSchema),
    (CHAT_FIELDS, "response_format.json_schema.", JSONSchema),
    (CHAT_FIELDS, "stream_options.", ChatCompletionStreamOptionsParam),
    (CHAT_FIELDS, "tools[].", ChatCompletionFunctionToolParam),
    (CHAT_FIELDS, "tools[].function.", FunctionDefinition),
    (RESPONSES_FIELDS, "", ResponseCreateParamsBase),
    (RESPONSES_FIELDS, "prompt_cache_options.", response_create_params.PromptCacheOptions),
    (RESPONSES_FIELDS, "reasoning.", Reasoning),
    (RESPONSES_FIELDS, "stream_options.", response_create_params.StreamOptions),
    (RESPONSES_FIELDS, "text.", responses_types.ResponseTextConfigParam),
    (RESPONSES_FIELDS, "text.format.", responses_types.ResponseFormatTextJSONSchemaConfigParam),
    (RESPONSES_FIELDS, "tools[].", responses_types.FunctionToolParam),
    (MESSAGES_FIELDS, "", MessageCreateParamsBase),
    (MESSAGES_FIELDS, "context_management.", anthropic_types.BetaContextManagementConfigParam),
    *[(MESSAGES_FIELDS, "messages[].", kind) for kind in get_args(anthropic_types.BetaMessageParam)],
    (MESSAGES_FIELDS, "output_config.", anthropic_types.BetaOutputConfigParam),
    (MESSAGES_FIELDS, "output_config.format.", anthropic_types.BetaJSONOutputFormatParam),
    (MESSAGES_FIELDS, "thinking.", anthropic_types.BetaThinkingConfigAdaptiveParam),
    (MESSAGES_FIELDS, "thinking.", anthropic_types.BetaThinkingConfigEnabledParam),
    (MESSAGES_FIELDS, "tool_choice.", anthropic_types.BetaToolChoiceToolParam),
    (MESSAGES_FIELDS, "tools[].", anthropic_types.BetaToolParam),
]
TABLES: dict[str, Fields] = {"chat": CHAT_FIELDS, "responses": RESPONSES_FIELDS, "messages": MESSAGES_FIELDS}
BODIES: dict[str, Any] = {
    "chat": {"model": "sonnet", "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"model": "sonnet", "input": "Hi"},
    "messages": {"model": "sonnet", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
}
TOOLS: dict[str, Any] = {
    "chat": {"type": "function", "function": {"name": "f", "parameters": CITY}},
    "responses": {"type": "function", "name": "f", "parameters": CITY},
    "messages": {"name": "f", "input_schema": CITY},
}


@pytest.mark.parametrize(("fields", "prefix", "known"), OBJECTS, ids=lambda each: str(each)[:40])
def test_no_field_of_the_clients_is_missing(fields: Fields, prefix: str, known: Any) -> None:
    names = set(get_type_hints(known, include_extras=False)) - (SENT_AS_HEADERS if not prefix else set())
    assert {f"{prefix}{name}" for name in names} - set(fields) == set()


def post(clients: Clients, api: str, body: Mapping[str, Any]) -> Any:
    """Send a body as it is; returns the raw response of the official client."""
    if api == "messages":
        return clients.anthropic.messages.with_raw_response.create(**_as_arguments(api, body))
    resource = clients.openai.chat.completions if api == "chat" else clients.openai.responses
    return resource.with_raw_response.create(**_as_arguments(api, body))


def _as_arguments(api: str, body: Mapping[str, Any]) -> dict[str, Any]:
    base = {name: body[name] for name in BODIES[api]}
    return {**base, "extra_body": {name: value for name, value in body.items() if name not in base}}


def put(api: str, path: str, value: Any) -> dict[str, Any]:
    """Return a body with a field at a path."""
    body = json.loads(json.dumps(BODIES[api]))
    if path.startswith("tools[]."):
        body["tools"] = [json.loads(json.dumps(TOOLS[api]))]
    if path.startswith(("text.format.", "response_format.json_schema.")):
        inner = {"name": "x", "schema": CITY}
        body |= (
            {"text": {"format": {"type": "json_schema", **inner}}}
            if api == "responses"
            else {"response_format": {"type": "json_schema", "json_schema": inner}}
        )
    here = body
    *parents, last = path.split(".")
    for name in parents:
        here = here[name[:-2]][-1] if name.endswith("[]") else here.setdefault(name, {})
    here[last] = value
    return body


def list_fields(use: str) -> list[Any]:
    return [
        pytest.param(api, path, id=f"{api} {path}")
        for api, fields in TABLES.items()
        for path, field in fields.items()
        if field.use == use
    ]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("api", "path"), list_fields("refused"))
def test_a_field_that_changes_the_meaning_is_refused(connect: Connect, api: str, path: str) -> None:
    clients = connect()
    body = put(api, path, {"some": "thing"})
    refused = anthropic.BadRequestError if api == "messages" else openai.BadRequestError
    with pytest.raises(refused) as caught:
        post(clients, api, body)
    assert f"{path}: " in str(caught.value)
    if api != "messages":
        assert (caught.value.param, caught.value.code) == (path, "unsupported_parameter")  # type: ignore[attr-defined]
    assert clients.told.made == []  # nothing was started


@pytest.mark.sample(4)
@pytest.mark.parametrize("api", TABLES)
def test_fields_without_effect_are_named(connect: Connect, api: str) -> None:
    paths = [path for path, field in TABLES[api].items() if field.use == "ignored"]
    told = [call_text("StructuredOutput", city="Oslo") if "format." in path else "Hello." for path in paths]
    clients = connect(*told)
    for path in paths:
        value = ["reasoning.encrypted_content"] if path == "include" else "a value"
        assert post(clients, api, put(api, path, value)).headers["x-pilothouse-ignored"] == path


@pytest.mark.parametrize("api", TABLES)
def test_unknown_fields_are_named_and_harmless_ones_are_not(connect: Connect, api: str) -> None:
    clients = connect("1", "2")
    body = {**BODIES[api], "newest_field": 1, "née\r\nx": 2}
    assert post(clients, api, body).headers["x-pilothouse-ignored"] == "newest_field, n?e??x"
    harmless = {path: field.harmless[0] for path, field in TABLES[api].items() if field.harmless and "[]" not in path}
    nothing = {path: None for path, field in TABLES[api].items() if field.use == "refused" and "[]" not in path}
    body = dict(BODIES[api])
    for path, value in {**nothing, **harmless}.items():
        if "." not in path:
            body[path] = value
    assert "x-pilothouse-ignored" not in post(clients, api, body).headers


def test_the_header_is_bounded() -> None:
    assert len(encode_names(tuple(str(n) * 50 for n in range(100)))) <= MAX_HEADER_CHARS + 3


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_of_anthropic_works_with_its_defaults(connect: Connect, stream: bool) -> None:
    clients = connect(call_text("weather", city="Oslo"), "It is 18 degrees.")

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: the city
        """
        return f"18 degrees in {city}"

    runner = clients.anthropic.beta.messages.tool_runner(
        model="sonnet",
        max_tokens=64_000,
        messages=[{"role": "user", "content": "Warm in Oslo?"}],
        tools=[weather],
        stream=stream,
    )
    messages = [each.get_final_message() for each in runner] if stream else list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[-1].content[0].text == "It is 18 degrees."
    assert "18 degrees in Oslo" in clients.told.prompt()
    assert len(clients.told.made) == 2


def test_a_thread_is_refused_as_its_client_expects(connect: Connect) -> None:
    clients = connect()
    with pytest.raises(anthropic.BadRequestError, match="send all messages") as caught:
        clients.anthropic.beta.messages.create(**BODIES["messages"], thread={"type": "create"})
    assert caught.value.error_code == "thread_unsupported_request"


@pytest.mark.parametrize(
    ("api", "more"),
    [
        ("messages", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I"}]}),
        ("messages", {"thinking": {"type": "between_tools"}}),
        ("messages", {"output_config": {"effort": "extreme"}}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                                "citations": {"enabled": True},
                            }
                        ],
                    }
                ]
            },
        ),
        ("responses", {"include": ["message.output_text.logprobs"]}),
        ("responses", {"reasoning": {"effort": "extreme"}}),
        ("chat", {"reasoning_effort": "extreme"}),
    ],
)
def test_values_that_change_the_meaning_are_refused(connect: Connect, api: str, more: dict[str, Any]) -> None:
    clients = connect()
    with pytest.raises((anthropic.BadRequestError, openai.BadRequestError)):
        post(clients, api, {**BODIES[api], **more})
    assert clients.told.made == []


def test_thinking_can_be_switched_off(connect: Connect) -> None:
    clients = connect("1", "2", "3")
    clients.message(thinking={"type": "disabled"})
    clients.chat(reasoning_effort="none")
    clients.openai.responses.create(model="sonnet", input="Hi", reasoning={"effort": "none"})
    assert all("--thinking=disabled" in each.argv for each in clients.told.invocations)


def test_edits_of_earlier_thinking_have_no_effect(connect: Connect) -> None:
    """The CLI sends this one with every request."""
    clients = connect("Hello.")
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    raw = post(clients, "messages", {**BODIES["messages"], "context_management": edits})
    assert raw.headers["x-pilothouse-ignored"] == "context_management.edits"


def test_an_agent_takes_the_effort_of_a_request(connect: Connect) -> None:
    clients = connect("Hello.")
    told = clients.told
    clients = connect(agents={"helper": ph.Agent(transport=told)})
    clients.openai.chat.completions.create(
        model="agent:helper", messages=[{"role": "user", "content": "Hi"}], reasoning_effort="low"
    )
    assert "--effort=low" in told.invocations[-1].argv


def test_a_system_message_can_hold_for_one_turn(connect: Connect) -> None:
    clients = connect("Hello.", "Hello.")
    rule = {"role": "system", "content": "Rhyme.", "clear_at": "next_user_message"}
    asked = [{"role": "user", "content": "Hi"}, rule]
    create = clients.anthropic.beta.messages.create
    create(model="sonnet", max_tokens=64_000, messages=asked)
    assert "Rhyme." in clients.told.system() + clients.told.prompt()
    more = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And?"}]
    create(model="sonnet", max_tokens=64_000, messages=[*asked, *more])
    assert "Rhyme." not in clients.told.system() + clients.told.prompt()


def test_empty_values_ask_for_nothing() -> None:
    body = {"n": 1, "store": False, "audio": None, "functions": [], "metadata": {}, "user": "", "seed": 0}
    assert check_fields(CHAT_FIELDS, body) == ("seed",)
