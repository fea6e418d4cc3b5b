"""What the API can read from its prompt cache when an agent loop runs over `LanguageModel` and its doors."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from endpoint_server import TOKEN, EndpointServer
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from openai import AsyncOpenAI
from prompt_cache import PromptCache, Share
from pydantic_ai import Agent

from pilothouse_models import LanguageModel
from pilothouse_models.endpoints import EndpointModels
from pilothouse_models.langchain import ChatPilothouse
from pilothouse_models.pydantic_ai import PilothouseModel
from pilothouse_testing import RecordedRequest, ScriptedModel, Text

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

REQUESTS = 10
INSTRUCTIONS = "You plan journeys. " + "Compare the weather of cities before you answer. " * 100
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "The weather in a city."
DECLARATION = {"name": "weather", "description": DESCRIPTION, "input_schema": SCHEMA}
FUNCTION: Any = {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA}
QUESTION = "Where is it warmest?"


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is warm in {city}. " * 5


def call_or_answer(request: RecordedRequest) -> Text:
    """Call the tool in all answers but the last one."""
    calls = json.dumps(request.messages).count("<tool_call_id>") // 2  # each stands in a call and in its result
    if calls == REQUESTS - 1:
        return Text("In Oslo.")
    found = re.search(r"<tool_use-(\w+)>", request.system_text)
    assert found is not None
    tag = f"tool_use-{found[1]}"
    arguments = json.dumps({"city": f"City {calls}"})
    return Text(f"<{tag}><tool_name>weather</tool_name><arguments>{arguments}</arguments></{tag}>")


Settings = dict[str, Any]


async def ask_language_model(settings: Settings) -> str:
    model = LanguageModel("sonnet", **settings)
    messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}]
    while (answer := await model.generate(messages, [DECLARATION])).tool_calls:
        calls = [
            {"type": "tool-call", "toolCallId": each.id, "toolName": each.name, "input": each.input}
            for each in answer.tool_calls
        ]
        results = [
            {"type": "tool-result", "toolCallId": each.id, "output": {"type": "text", "value": weather(**each.input)}}
            for each in answer.tool_calls
        ]
        messages += [{"role": "assistant", "content": calls}, {"role": "tool", "content": results}]
    return answer.text


async def ask_langchain(settings: Settings) -> str:
    model = ChatPilothouse("sonnet", settings=settings).bind_tools([weather])
    messages: list[Any] = [SystemMessage(INSTRUCTIONS), HumanMessage(QUESTION)]
    while (answer := await model.ainvoke(messages)).tool_calls:
        results = [ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
        messages += [answer, *results]
    return str(answer.content)


async def ask_pydantic_ai(settings: Settings) -> str:
    agent = Agent(PilothouseModel("sonnet", **settings), instructions=INSTRUCTIONS, tools=[weather])
    return (await agent.run(QUESTION)).output


async def ask_openai_chat(settings: Settings) -> str:
    with EndpointServer(EndpointModels(**settings)) as server:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN) as client:
            messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}]
            while True:
                answer = await client.chat.completions.create(
                    model="sonnet", messages=messages, tools=[{"type": "function", "function": FUNCTION}]
                )
                message: Any = answer.choices[0].message
                if not message.tool_calls:
                    return message.content
                messages.append(message)
                for call in message.tool_calls:
                    result = weather(**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def ask_openai_responses(settings: Settings) -> str:
    with EndpointServer(EndpointModels(**settings)) as server:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN) as client:
            items: list[Any] = [{"role": "user", "content": QUESTION}]
            tools: Any = [{"type": "function", **FUNCTION}]
            while True:
                answer = await client.responses.create(
                    model="sonnet", instructions=INSTRUCTIONS, input=items, tools=tools
                )
                calls: list[Any] = [item for item in answer.output if item.type == "function_call"]
                if not calls:
                    return answer.output_text
                items += answer.output
                for call in calls:
                    result = weather(**json.loads(call.arguments))
                    items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


async def ask_anthropic(settings: Settings) -> str:
    with EndpointServer(EndpointModels(**settings)) as server:
        async with AsyncAnthropic(base_url=server.url, api_key=TOKEN) as client:
            messages: list[Any] = [{"role": "user", "content": QUESTION}]
            while True:
                tools: Any = [DECLARATION]
                answer: Any = await client.messages.create(
                    model="sonnet", max_tokens=1000, system=INSTRUCTIONS, messages=messages, tools=tools
                )
                calls = [block for block in answer.content if block.type == "tool_use"]
                if not calls:
                    return answer.content[0].text
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)} for call in calls
                ]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]


CLIENTS = {
    "LanguageModel": ask_language_model, "LangChain": ask_langchain, "pydantic-ai": ask_pydantic_ai,
    "openai, Chat Completions": ask_openai_chat, "openai, Responses": ask_openai_responses,
    "anthropic": ask_anthropic,
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_each_request_of_a_loop_begins_with_the_one_before(
    client: Callable[[Settings], Awaitable[str]], real_cli: str, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = call_or_answer
    answer = await client({"cli": real_cli, "env": scripted_model.env(), "inherit_env": False})
    assert answer == "In Oslo."
    requests = scripted_model.requests
    assert len(requests) == REQUESTS
    cache = PromptCache()
    shares = [cache.read(each) for each in requests]
    assert shares[-1].of_conversation > 0.95
    assert all(share.read >= before.read + before.written for before, share in pairwise(shares))
    assert price_of(shares) < 0.35


def price_of(shares: list[Share]) -> float:
    """The price of the input of a loop, beside that without a cache."""
    return sum(share.price for share in shares) / sum(sum(share) for share in shares)


@pytest.mark.parametrize("lifetime", ["5m", "1h", None], ids=["five minutes", "an hour", "off"])
async def test_all_marks_have_the_same_lifetime(
    lifetime: str | None, real_cli: str, scripted_model: ScriptedModel
) -> None:
    """The API refuses a request whose marks for an hour follow one for five minutes."""
    scripted_model.default = "fine"
    settings: Settings = {} if lifetime is None else {"settings": {"promptCacheTtl": lifetime}}
    env = scripted_model.env() | ({"DISABLE_PROMPT_CACHING": "1"} if lifetime is None else {})
    await LanguageModel("sonnet", cli=real_cli, env=env, inherit_env=False, **settings).generate("Hi", [weather])
    [request] = scripted_model.requests
    blocks = [*request.body["system"], *(b for m in request.messages for b in m["content"] if isinstance(b, dict))]
    marks = [block["cache_control"] for block in blocks if "cache_control" in block]
    expected = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}.get(lifetime or "")
    assert marks == ([] if expected is None else [expected] * 4)
