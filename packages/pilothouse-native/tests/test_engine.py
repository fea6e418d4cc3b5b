"""The loop of the engine: calls, limits, structured output, thinking, caching."""

from __future__ import annotations

import base64
import io
import json
import struct
from typing import Any

import anyio
import pytest
from anthropic.resources.messages import messages
from native_fixtures import Echo, hosted, talk
from PIL import Image

from pilothouse_native.tools.base import ToolOutput
from pilothouse_testing import ScriptedModel, Steps
from pilothouse_testing.script import Reply, Thinking, ToolUse

pytestmark = pytest.mark.anyio


async def test_parallel_calls_run_side_by_side_when_they_only_look(scripted_model: ScriptedModel) -> None:
    class Meeting(Echo):
        """Each call waits for the other one."""

        def __init__(self) -> None:
            super().__init__("Meet", read_only=True)
            self.both = anyio.Event()

        async def run(self, tool_input: Any, workplace: Any) -> Any:
            if self.seen:
                self.both.set()
            self.seen.append(tool_input["text"])
            await self.both.wait()
            return await Echo("Meet").run(tool_input, workplace)

    meeting = Meeting()
    scripted_model.reply(Steps([ToolUse("Meet", {"text": "a"}), ToolUse("Meet", {"text": "b"})], "Done."))
    _, result = await talk(scripted_model, "Go", "--allowedTools=Meet", tools={"Meet": meeting})
    assert (sorted(meeting.seen), result["num_turns"]) == (["a", "b"], 2)
    results = scripted_model.requests[1].messages[-1]["content"]
    assert [block["content"] for block in results] == ["Meet: a", "Meet: b"]


async def test_max_turns_and_the_next_prompt(scripted_model: ScriptedModel) -> None:
    scripted_model.reply([ToolUse("Echo", {"text": "a"})])
    scripted_model.reply("Fine.")
    async with hosted(scripted_model, "--max-turns=1", "--allowedTools=Echo", tools={"Echo": Echo()}) as host:
        await host.prompt("Go")
        first = await host.result()
        await host.prompt("Go on")
        second = await host.result()
    assert (first["subtype"], first["num_turns"], first["terminal_reason"]) == ("error_max_turns", 2, "max_turns")
    assert first["errors"] == ["Reached maximum number of turns (1)"]
    assert second["result"] == "Fine."


async def test_the_budget_stops_before_tools_run(scripted_model: ScriptedModel) -> None:
    echo = Echo()
    scripted_model.reply([ToolUse("Echo", {"text": "a"})])
    scripted_model.reply("Fine.")
    async with hosted(scripted_model, "--max-budget-usd=0.00001", tools={"Echo": echo}) as host:
        await host.prompt("Go")
        result = await host.result()
        await host.prompt("Go on")
        await host.result()
    assert (result["subtype"], result["terminal_reason"]) == ("error_max_budget_usd", "budget_exhausted")
    assert echo.seen == []
    answered = scripted_model.requests[1].messages[-1]["content"]
    assert [block["type"] for block in answered] == ["tool_result", "text"]


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


async def test_structured_output(scripted_model: ScriptedModel) -> None:
    calls = [[ToolUse("StructuredOutput", {"age": age})] for age in ("seven", 7)]
    scripted_model.reply(Steps(*calls))
    _, result = await talk(scripted_model, "How old?", f"--json-schema={json.dumps(SCHEMA)}")
    assert result["structured_output"] == {"age": 7}
    assert (result["result"], result["stop_reason"]) == ('{"age":7}', "tool_use")
    assert scripted_model.requests[0].body["tools"][-1]["input_schema"] == SCHEMA


async def test_structured_output_that_never_fits(scripted_model: ScriptedModel) -> None:
    scripted_model.default = [ToolUse("StructuredOutput", {"age": "seven"})]
    _, result = await talk(scripted_model, "How old?", f"--json-schema={json.dumps(SCHEMA)}")
    assert result["subtype"] == "error_max_structured_output_retries"
    assert len(scripted_model.requests) == 5


async def test_structured_output_is_asked_for_once_more(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Seven."
    _, result = await talk(scripted_model, "How old?", f"--json-schema={json.dumps(SCHEMA)}")
    assert (result["subtype"], len(scripted_model.requests)) == ("success", 2)
    assert "structured_output" not in result


async def test_long_replies_are_continued_and_empty_ones_once(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Reply("One, ", stop_reason="max_tokens"))
    scripted_model.reply(Reply(()))
    scripted_model.reply("two.")
    _, result = await talk(scripted_model, "Count")
    assert (result["result"], len(scripted_model.requests)) == ("two.", 3)
    shown = scripted_model.requests[2].messages
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert all(message["content"] for message in shown)


async def test_what_can_be_cached_is_marked(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"})], "Done."))
    flags = ("--append-system-prompt=Be kind.", "--allowedTools=Echo")
    await talk(scripted_model, "Go", *flags, tools={"Echo": Echo()})
    for request in scripted_model.requests:
        body = request.body
        for blocks in (body["system"], body["tools"], body["messages"][-1]["content"]):
            assert [bool(block.get("cache_control")) for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert any("Be kind." in block["text"] for block in scripted_model.requests[0].body["system"])
    assert not any("cache_control" in b for b in scripted_model.requests[1].body["messages"][0]["content"])


@pytest.mark.parametrize(
    ("flags", "thinking"),
    [
        ((), {"type": "adaptive"}),
        (("--thinking=disabled",), None),
        (("--model=my-own-model",), None),
        (("--model=my-own-model", "--max-thinking-tokens=5000"), {"type": "enabled", "budget_tokens": 5000}),
        (("--thinking=adaptive", "--thinking-display=summarized"), {"type": "adaptive", "display": "summarized"}),
    ],
)
async def test_thinking(scripted_model: ScriptedModel, flags: tuple[str, ...], thinking: Any) -> None:
    scripted_model.reply("Hm.")
    await talk(scripted_model, "Think", *flags)
    assert scripted_model.requests[0].body.get("thinking") == thinking


async def test_a_warning_made_an_error_is_reported(scripted_model: ScriptedModel) -> None:
    deprecated = next(iter(vars(messages)["DEPRECATED_MODELS"]))  # a model stays in it until it is retired
    _, result = await talk(scripted_model, "Hi", f"--model={deprecated}")
    assert result["is_error"]
    assert "deprecated" in result["result"]


async def test_thinking_goes_back_with_its_signature(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([Thinking("Hm.", "sig"), ToolUse("Echo", {"text": "a"})], "Done."))
    await talk(scripted_model, "Go", "--allowedTools=Echo", tools={"Echo": Echo()})
    first = scripted_model.requests[1].messages[1]["content"][0]
    assert first == {"type": "thinking", "thinking": "Hm.", "signature": "sig"}


async def test_no_key_is_an_error_of_authentication(scripted_model: ScriptedModel) -> None:
    _, result = await talk(scripted_model, "Hi", ANTHROPIC_API_KEY="", ANTHROPIC_AUTH_TOKEN="")
    assert result["is_error"]
    assert result.get("api_error_status") is None  # as with the CLI: a status says that the API refused a key


async def test_a_prompt_without_a_question_is_kept(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Yes.")
    async with hosted(scripted_model) as host:
        await host.prompt("Remember: blue.", shouldQuery=False)
        assert (await host.result())["num_turns"] == 0
        await host.prompt("Do you?")
        await host.result()
    assert "Remember: blue." in json.dumps(scripted_model.requests[0].messages)


def picture(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


async def test_a_picture_larger_than_it_says_is_left_out(scripted_model: ScriptedModel) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3000, 1)).save(file, "GIF")
    size, claimed = struct.pack("<HH", 3000, 1), struct.pack("<HH", 65_000, 65_000)
    bomb = file.getvalue().replace(b",\0\0\0\0" + size, b",\0\0\0\0" + claimed)

    class Camera(Echo):
        async def run(self, tool_input: Any, workplace: Any) -> Any:
            return ToolOutput([picture(bomb)])

    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"})], "Done."))
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": Camera()}) as host:
        await host.prompt("Look")
        assert (await host.result())["result"] == "Done."
    (shown,) = scripted_model.requests[-1].messages[-1]["content"][0]["content"]
    assert shown["text"].startswith("[Image could not be processed: the picture has 3000 x 1 pixels")


async def test_pictures_are_such_as_the_api_takes(scripted_model: ScriptedModel) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9000, 90)).save(file, "PNG")

    class Camera(Echo):
        async def run(self, tool_input: Any, workplace: Any) -> Any:
            return ToolOutput([picture(file.getvalue()), picture(b"words")])

    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"})], "Done."))
    async with hosted(scripted_model, "--allowedTools=Echo", tools={"Echo": Camera()}) as host:
        await host.prompt([picture(file.getvalue()), picture(b"words"), {"type": "text", "text": "Look"}])
        await host.result()
    prompt, _, answer = scripted_model.requests[-1].messages
    for content in (prompt["content"], answer["content"][0]["content"]):
        shown = [block for block in content if not str(block.get("text")).startswith("<system-reminder>")]
        with Image.open(io.BytesIO(base64.b64decode(shown[0]["source"]["data"]))) as scaled:
            assert scaled.size == (2000, 20)
        assert shown[1]["text"].startswith("[Image could not be processed: 5 bytes are not a PNG")
