"""LangChain and pydantic-ai with Claude Code as their model: tools, streams, typed output, messages, usage."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from endpoint_server import NONCE, ToldTransports, call_text, speak
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from pydantic import BaseModel
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError

import pilothouse as ph
from pilothouse_models.langchain import ChatPilothouse, agent_tools
from pilothouse_models.pydantic_ai import PilothouseModel
from pilothouse_testing import frames

pytestmark = pytest.mark.anyio
CALL = call_text("weather", city="Oslo")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


class City(BaseModel):
    name: str


def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # both libraries know no other


def chat(*requests: Any, **fields: Any) -> tuple[ChatPilothouse, ToldTransports]:
    told = ToldTransports(*requests)
    return ChatPilothouse("sonnet", settings={"transport": told}, **fields), told


def test_langchain_sends_a_conversation() -> None:
    model, told = chat(speak("Warm.", "Hm."), max_tokens=9)
    image = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    call: Any = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}
    answer = model.invoke(
        [
            SystemMessage("Be brief."),
            HumanMessage([{"type": "text", "text": "Warm here?"}, image]),
            AIMessage("I look.", tool_calls=[call]),
            ToolMessage("18", tool_call_id="call_1", status="error"),
        ]
    )
    assert (answer.text, answer.additional_kwargs) == ("Warm.", {"reasoning_content": "Hm."})
    assert answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["total_tokens"]) == (16, 20)
    assert answer.usage_metadata["input_token_details"] == {"cache_read": 5, "cache_creation": 1}  # type: ignore[typeddict-item]
    assert answer.response_metadata["finish_reason"] == "stop"
    prompt = told.prompt()
    for words in ("Warm here?", "I look.", image["base64"], "<error>18</error>"):
        assert words in prompt
    assert "Be brief." in told.system()
    assert told.invocations[0].env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "9"


async def test_langchain_streams_calls_and_runs_callbacks() -> None:
    tokens: list[str] = []

    class Listener(BaseCallbackHandler):
        def on_llm_new_token(self, token: Any, **_: Any) -> None:
            tokens.append(token)

    model, told = chat(f"I look. {CALL}", f"I look. {CALL}", "The result is not shown.")
    bound = model.bind_tools([weather], tool_choice="any")
    whole: Any = AIMessageChunk(content="")
    async for chunk in bound.astream("Warm?", {"callbacks": [Listener()]}):
        whole += chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Oslo"})]
    assert whole.text.strip() == "".join(tokens).strip() == "I look."
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == 20
    assert "at least one of the tools" in told.prompt()
    blocking: Any = AIMessageChunk(content="")
    for chunk in bound.stream("Warm?"):
        blocking += chunk
    assert blocking.tool_calls[0]["args"] == {"city": "Oslo"}
    assert "".join(chunk.text for chunk in model.stream("?", stop=["is not"])) == "The result "


async def test_langchain_types_answers() -> None:
    output = call_text("StructuredOutput", name="Oslo")
    model, _ = chat(output, output, call_text("City", name="Oslo"))
    assert model.with_structured_output(City).invoke("?") == City(name="Oslo")
    raw: Any = await model.with_structured_output(City.model_json_schema(), include_raw=True).ainvoke("?")
    assert (raw["parsed"], raw["parsing_error"]) == ({"name": "Oslo"}, None)
    assert model.with_structured_output(City, method="function_calling").invoke("?") == City(name="Oslo")


def test_langchain_cuts_an_answer() -> None:
    model, _ = chat(f"One two three. {CALL}", stop=["two"])
    answer = model.bind_tools([weather]).invoke("Count")
    assert (answer.text, answer.tool_calls) == ("One ", [])
    assert answer.response_metadata["stop_sequence"] == "two"


def test_langchain_shows_no_settings() -> None:
    model = ChatPilothouse(settings={"api_key": "sk-ant-hidden", "env": {"PASSWORD": "hidden-too"}})
    shown = f"{model} {model!r} {model.bind_tools([])!r} {dumpd(model)} {model.model_dump()}"  # what tracers get
    assert "sonnet" in shown
    assert "hidden" not in shown


def test_a_cache_of_langchain_tells_settings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain_core.globals._llm_cache", cache := InMemoryCache())
    told = [chat(f"Answer {n}.") for n in range(2)]
    for _ in range(2):
        assert [model.invoke("Hi").text for model, _ in told] == ["Answer 0.", "Answer 1."]
    assert len(cache._cache) == 2


@pytest.mark.parametrize(
    "other",
    [{"settings": {"env": {"KEY": "hidden"}}}, {"settings": {"effort": "low"}}, {"timeout": 5}, {"stop": ["x"]}],
    ids=repr,
)
def test_what_a_cache_of_langchain_goes_by(other: dict[str, Any]) -> None:
    one, same, more = ChatPilothouse(), ChatPilothouse(), ChatPilothouse(**other)
    assert one._get_llm_string() == same._get_llm_string() != more._get_llm_string()
    assert more._get_llm_string() == ChatPilothouse(**other)._get_llm_string()
    assert "hidden" not in more._get_llm_string()
    assert one._get_llm_string(effort="low") != one._get_llm_string()


def test_langchain_fails_with_our_errors() -> None:
    said = frames.assistant("API Error", error="rate_limit", is_api_error_message=True)
    limit = [frames.init(), said, frames.result("API Error", is_error=True, api_error_status=429)]
    model, _ = chat(limit, limit)
    with pytest.raises(ph.RateLimitError):
        model.invoke("?")
    with pytest.raises(ph.RateLimitError):
        list(model.stream("?"))
    with pytest.raises(ph.UsageError, match="'gpt-4' is not known"):
        ChatPilothouse("gpt-4")


def test_langchain_uses_the_key_that_it_gets() -> None:
    model, told = chat("Fine.", api_key="sk-ant-hidden")
    assert model.invoke("?").text == "Fine."
    assert told.invocations[0].env["ANTHROPIC_API_KEY"] == "sk-ant-hidden"
    assert "hidden" not in f"{model!r} {model._identifying_params} {model.model_dump_json()}"


@pytest.mark.parametrize(
    ("name", "words"),
    [("timeot", "did you mean 'timeout'"), ("cli", "settings={'cli': …}"), ("callback", "'callbacks'")],
)
def test_langchain_refuses_arguments_that_it_does_not_have(name: str, words: str) -> None:
    with pytest.raises(ph.UsageError, match=re.escape(words)):
        ChatPilothouse("sonnet", **{name: "x"})


async def test_pydantic_ai_runs_an_agent() -> None:
    told = ToldTransports(speak(f"I look. {CALL}", "Hm."), call_text("final_result", name="Oslo"))
    model = PilothouseModel("sonnet", transport=told)
    agent = Agent(model, instructions="Be brief.", tools=[weather], output_type=ToolOutput(City, name="final_result"))
    result = await agent.run("Warm?")
    assert result.output == City(name="Oslo")
    usage = result.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (2, 32, 8)
    assert "Be brief." in told.system()
    assert "<result>18 degrees in Oslo</result>" in told.prompt()
    kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert kinds[:5] == ["user-prompt", "thinking", "text", "tool-call", "tool-return"]


async def test_pydantic_ai_streams_and_fails() -> None:
    said = frames.assistant("API Error", error="overloaded", is_api_error_message=True)
    overload = [frames.init(), said, frames.result("API Error", is_error=True, api_error_status=529)]
    agent = Agent(PilothouseModel("sonnet", transport=ToldTransports("Hello there.", overload, overload)))
    async with agent.run_stream("Hi") as stream:
        assert [text async for text in stream.stream_text(delta=True, debounce_by=None)] == ["Hell", "o th", "ere."]
        assert (stream.usage.output_tokens, stream.response.finish_reason) == (4, "stop")
    with pytest.raises(ModelHTTPError) as caught:
        await agent.run("Hi")
    assert caught.value.status_code == 529
    with pytest.raises(ModelHTTPError):
        async with agent.run_stream("Hi"):
            pass
    assert json.loads(json.dumps(caught.value.body))["type"] == "overloaded_error"


async def test_tools_of_langchain_are_tools_of_an_agent() -> None:
    @langchain_tool
    def forecast(city: str, days: int = 1) -> str:
        """The weather to come."""
        if city == "nowhere":
            raise ValueError("no such place")
        return f"{days} fine days in {city}"

    @langchain_tool
    async def wait(seconds: float) -> dict[str, float]:
        """Wait."""
        return {"waited": seconds}

    first, second = agent_tools([forecast, wait])
    assert (first.name, first.description) == ("forecast", "The weather to come.")
    assert first.input_schema["properties"]["city"]["type"] == "string"
    assert first.input_schema["required"] == ["city"]
    ran = await first.run({"city": "Rome", "days": 2})
    assert ran["content"] == [{"type": "text", "text": "2 fine days in Rome"}]
    assert "no such place" in str(await first.run({"city": "nowhere"}))
    assert (await first.run({"days": 2}))["isError"]
    assert '"waited"' in json.dumps((await second.run({"seconds": 0.5}))["content"]).replace("\\", "")
