"""What agents of pydantic-ai do, with `PilothouseModel`: tools, typed output, streams, history, settings, fallbacks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from endpoint_server import NONCE, ToldTransports, call_text, speak
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    Tool,
    ToolOutput,
    UserError,
    capture_run_messages,
)
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, PartDeltaEvent, PartStartEvent, UploadedFile
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import ModelSettings

import pilothouse as ph
from pilothouse_models.pydantic_ai import PilothouseModel
from pilothouse_testing import frames

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
CALL = call_text("weather", city="Oslo")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


class City(BaseModel):
    name: str
    people: int = Field(default=0, ge=0)


OSLO = City(name="Oslo")


@pytest.fixture(autouse=True)
def _known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse_models.stream.derive_nonce", lambda *_: NONCE)


def make(*requests: Any, **settings: Any) -> tuple[PilothouseModel, ToldTransports]:
    told = ToldTransports(*requests)
    return PilothouseModel("sonnet", transport=told, **settings), told


def fail(status: int, error: str) -> list[dict[str, Any]]:
    said = frames.assistant("API Error", error=error, is_api_error_message=True)
    return [frames.init(), said, frames.result("API Error", is_error=True, api_error_status=status)]


def len_of(text: str) -> int:
    """The length of a text."""
    return len(text)


def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 in {city}"


async def test_instructions_reach_the_model_and_a_text_is_the_output() -> None:
    model, told = make("Four.")
    result = await Agent(model, system_prompt="Be brief.").run("2 + 2?")
    assert result.output == "Four."
    assert "Be brief." in told.system()
    assert (result.response.model_name, result.response.provider_name) == (frames.MODEL, "pilothouse")


@pytest.mark.parametrize(
    ("returned", "told_as"),
    [({"ships": [{"name": "Fram"}]}, "Fram"), (BinaryContent(PNG, media_type="image/png"), '"type": "image"')],
    ids=["json", "a picture"],
)
async def test_the_model_gets_what_a_tool_returns(returned: Any, told_as: str) -> None:
    model, told = make(call_text("look") + CALL, "Seen.")

    def look() -> Any:
        """Look around."""
        return returned

    await Agent(model, tools=[look, weather]).run("?")
    assert told_as in told.prompt()
    assert "18 in Oslo" in told.prompt()


async def test_a_tool_that_wants_another_try() -> None:
    model, told = make(call_text("ask", city="Oslo"), call_text("ask", city="Oslo, Norway"), "Warm.")
    tries: list[str] = []

    def ask(city: str) -> str:
        """Ask for the weather."""
        tries.append(city)
        if len(tries) == 1:
            raise ModelRetry("which Oslo?")
        return "18"

    assert (await Agent(model, tools=[ask]).run("?")).output == "Warm."
    assert tries == ["Oslo", "Oslo, Norway"]
    assert "which Oslo?" in told.prompt(1)


@pytest.mark.parametrize("wrong", [call_text("weather", town="Oslo"), call_text("none")])
async def test_the_model_corrects_a_wrong_call_in_one_request(wrong: str) -> None:
    model, told = make([speak(wrong), speak(CALL)], "Warm.")
    assert (await Agent(model, tools=[weather]).run("?")).output == "Warm."
    assert len(told.made) == 2


@pytest.mark.parametrize(
    ("output_type", "replies", "output", "declared"),
    [
        (ToolOutput(City), [call_text("final_result", name="Oslo")], OSLO, "final_result"),
        ([ToolOutput(City, name="c"), ToolOutput(int, name="i")], [call_text("i", response=7)], 7, "people"),
        (list[City], [call_text("final_result", response=[{"name": "Oslo"}])], [OSLO], "people"),
        (NativeOutput(City), [call_text("StructuredOutput", name="Oslo")], OSLO, "StructuredOutput"),
        (NativeOutput(City), [CALL, call_text("StructuredOutput", name="Oslo")], OSLO, "StructuredOutput"),
        (PromptedOutput(City), ['{"name": "Oslo"}'], OSLO, "people"),
    ],
    ids=["a tool", "two tools", "a list", "native", "native after a call", "prompted"],
)
async def test_an_answer_has_the_type_of_the_output(
    output_type: Any, replies: list[str], output: Any, declared: str
) -> None:
    model, told = make(*replies)
    assert (await Agent(model, output_type=output_type, tools=[weather]).run("?")).output == output
    assert declared in told.system()


async def test_native_output_that_never_fits() -> None:
    model, _ = make([speak("No.")] * 4)
    with pytest.raises(ModelHTTPError, match="no structured output") as caught:
        await Agent(model, output_type=NativeOutput(City)).run("?")
    assert caught.value.status_code == 422


async def test_message_history_through_json() -> None:
    model, told = make(speak(CALL, "Hm."), "Warm.", "Still.")
    agent = Agent(model, tools=[weather])
    kept = (await agent.run("Warm?")).all_messages_json()
    await agent.run("And now?", message_history=ModelMessagesTypeAdapter.validate_json(kept))
    for words in ("Warm?", "18 in Oslo", "Warm.", "And now?"):
        assert words in told.prompt()


async def test_pictures_and_documents() -> None:
    model, told = make("Seen.")
    pdf = BinaryContent(b"%PDF-1.4 x", media_type="application/pdf")
    image = ImageUrl("https://example.com/a.png")
    document = DocumentUrl("https://example.com/a.pdf")
    await Agent(model).run(["Look:", BinaryContent(PNG, media_type="image/png"), pdf, image, document])
    prompt = json.loads(told.prompt())
    assert [block["type"] for block in prompt] == ["text", "image", "document", "image", "document"]


async def test_an_uploaded_file_is_refused() -> None:
    with pytest.raises(UserError):
        await Agent(make()[0]).run([UploadedFile("file_1", provider_name="openai")])


async def test_streamed_text() -> None:
    async with Agent(make("One two three.")[0]).run_stream("?") as stream:
        assert [text async for text in stream.stream_text(debounce_by=None)][-1] == "One two three."


async def test_streamed_output() -> None:
    model, _ = make(call_text("final_result", name="Oslo"))
    async with Agent(model, output_type=City).run_stream("?") as stream:
        assert [city async for city in stream.stream_output(debounce_by=None)][-1] == City(name="Oslo")


async def test_events_of_a_run() -> None:
    model, _ = make(speak(CALL, "Hm."), "Warm.")
    kinds: list[str] = []
    async with Agent(model, tools=[weather]).iter("?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    kinds += [type(event).__name__ async for event in events]
    assert PartStartEvent.__name__ in kinds
    assert PartDeltaEvent.__name__ in kinds
    assert run.result is not None
    assert run.result.output == "Warm."


async def test_a_stream_that_is_left_ends_its_process() -> None:
    model, told = make(speak("One two three.", pieces=7)[:-4])
    async with Agent(model).run_stream("?") as stream:
        async for _ in stream.stream_text(delta=True, debounce_by=None):
            break
    assert told.made[0].health().state != "healthy"


async def test_settings() -> None:
    model, told = make("Yes.", settings=ModelSettings(max_tokens=77))
    await Agent(model).run("?", model_settings=ModelSettings(thinking="high"))
    assert told.invocations[0].env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "77"
    assert "--effort=high" in told.invocations[0].argv


@pytest.mark.parametrize("choice", ["required", ["weather"], "none"])
async def test_the_choice_of_a_tool(choice: Any) -> None:
    model, told = make(CALL if choice != "none" else "No.")
    tools = [Tool(weather).tool_def, Tool(len_of).tool_def]
    answer = await model_request(
        model,
        [ModelRequest.user_text_prompt("?")],
        model_settings=ModelSettings(tool_choice=choice),
        model_request_parameters=ModelRequestParameters(function_tools=tools),
    )
    system = told.system()
    assert bool(answer.tool_calls) == (choice != "none")
    assert ("at least one" in told.prompt()) == (choice != "none")
    assert ("len_of" in system) == (choice == "required")


async def test_usage() -> None:
    model, _ = make(CALL, "Warm.")
    usage = (await Agent(model, tools=[weather]).run("?")).usage
    counted = (usage.requests, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.tool_calls)
    assert counted == (2, 32, 8, 10, 1)


async def test_a_fallback() -> None:
    failing, _ = make(fail(529, "overloaded"), fail(529, "overloaded"))
    model = FallbackModel(failing, make("Second.", "Third.")[0])
    assert (await Agent(model).run("?")).output == "Second."
    async with Agent(model).run_stream("?") as stream:
        assert await stream.get_output() == "Third."


async def test_the_messages_of_a_failed_run() -> None:
    model, _ = make(fail(401, "authentication_failed"))
    with capture_run_messages() as messages, pytest.raises(Exception, match="401"):
        await Agent(model).run("Hi")
    assert len(messages) == 1


async def test_an_unknown_model() -> None:
    with pytest.raises(ph.UsageError, match="'gpt-4' is not known"):
        PilothouseModel("gpt-4")
