"""The real CLI answers: text, tools, thinking, structured output, pictures, further prompts, background work."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import PNG, both_loops

import pilothouse as ph
from pilothouse.events import Started
from pilothouse.messages import Message, ResultMessage, StreamEvent
from pilothouse_testing import Gate, Pause, RecordedRequest, ScriptedModel, Text, Thinking, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


def kinds(messages: list[Message]) -> list[str]:
    """What came, in order; notices about the state of the prompt are left out."""
    names = [_kind(m) for m in messages if m.type != "command_lifecycle"]
    return [name for name in names if name != "status"]


def _kind(message: Message) -> str:
    if isinstance(message, StreamEvent):
        return message.event.type
    return str(getattr(message, "subtype", "")) if message.type == "system" else message.type


@both_loops
@pytest.mark.requirement("R29", "R38", "E82", "L55", "L56", "E66", "G36")
async def test_a_streamed_answer_in_the_order_of_the_wire(claude: Any, model: ScriptedModel) -> None:
    gate = Gate()
    model.reply(Text("one two three", chunks=["one ", "two ", "three"]))
    model.reply([Text("four", chunks=["fo", "ur"]), Pause(gate), Text("five", chunks=["fi", "ve"])])
    first = await claude.ask("count", partial_messages=True)
    assert kinds(first.messages) == [
        "init", "message_start", "content_block_start", *["content_block_delta"] * 3, "assistant",
        "content_block_stop", "message_delta", "message_stop", "result",
    ]  # fmt: skip
    assert (first.text, first.full_text, first.turns) == ("one two three", "one two three", 1)
    assert first.is_success
    assert first.validate().ok
    assert first.cost_usd is not None
    assert first.usage is not None
    assert first.usage.output_tokens == 4
    assert {m.session_id for m in first.messages} == {first.session_id}
    agent = model.requests[0].headers["user-agent"]
    assert "sdk-pilothouse" in agent

    second = claude.ask("go on")
    texts: list[str] = []
    async for text in second.text_stream():
        texts.append(text)
        if len(texts) == 2:
            assert not gate.is_open  # what we have came while the model was still speaking
            gate.open()
    assert texts == ["fo", "ur", "fi", "ve"]
    assert (await second.result()).text == "five"
    assert (await second.result()).full_text == "fourfive"
    model.assert_done()


@both_loops
@pytest.mark.requirement("L33", "L39", "L50", "R33", "G19")
async def test_tools_really_run(claude: Any, model: ScriptedModel) -> None:
    note = claude.cwd / "note.txt"
    model.reply(["Counting.", ToolUse("Bash", {"command": "echo $((40+2)) > n.txt; cat n.txt"})])
    model.reply(ToolUse("Write", {"file_path": str(note), "content": "hello notes"}))
    model.reply(ToolUse("Read", {"file_path": str(note)}))
    model.reply("It is 42.")
    result = await claude.ask("count", permission_mode="bypassPermissions")
    assert [use.name for use in result.tool_uses] == ["Bash", "Write", "Read"]
    assert (claude.cwd / "n.txt").read_text() == "42\n"
    assert note.read_text() == "hello notes"
    assert [request.tool_text for request in model.requests[1:]] == [
        "42",
        f"File created successfully at: {note} (file state is current in your context — no need to Read it back)",
        "1\thello notes",
    ]
    assert result.text == "It is 42."
    assert result.full_text == "Counting.\nIt is 42."
    assert result.turns == 4
    assert result.validate().ok


async def test_parallel_tools_thinking_and_events(claude: Any, model: ScriptedModel) -> None:
    calls = [ToolUse("Bash", {"command": f"echo {name}"}) for name in ("left", "right")]
    model.reply([Thinking("Both at once.", chunks=3), *calls])
    model.reply([Thinking("Now I know."), Text("left and right", chunks=4)])
    query = claude.ask("both", permission_mode="bypassPermissions")
    events = [event async for event in query.events()]
    result = await query.result()
    assert result.thinking == "Both at once.Now I know."
    assert [block.signature for m in result.assistant_messages for block in m.content if block.type == "thinking"] == [
        "scripted-signature"
    ] * 2
    assert "".join(e.text for e in events if isinstance(e, ph.ThinkingDelta)) == result.thinking
    assert "".join(e.text for e in events if isinstance(e, ph.TextDelta)) == "left and right"
    started = [e.tool_use for e in events if isinstance(e, ph.ToolCallStarted)]
    finished = [e for e in events if isinstance(e, ph.ToolCallFinished)]
    assert started == result.tool_uses
    assert sorted((e.tool_use.input["command"], e.result.content) for e in finished if e.tool_use) == [
        ("echo left", "left"),
        ("echo right", "right"),
    ]
    assert [type(events[0]), type(events[-1])] == [Started, ph.Finished]
    assert result.validate().ok


@pytest.mark.requirement("S35")
async def test_pictures_and_documents_reach_the_model(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    model.reply("a dot")
    (tmp_path / "dot.png").write_bytes(PNG)
    pdf = b"%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
    blocks = ["What is it?", ph.image(tmp_path / "dot.png"), ph.document(b"plain words"), ph.document(pdf)]
    result = await claude.ask(blocks)
    assert result.text == "a dot"
    sent = [block for m in model.requests[0].messages if m["role"] == "user" for block in m["content"]]
    sources = {b["source"]["media_type"]: b["source"]["data"] for b in sent if "source" in b}
    assert base64.b64decode(sources["image/png"])[:8] == PNG[:8]
    assert sources["text/plain"] == "plain words"
    assert base64.b64decode(sources["application/pdf"]) == pdf
    assert "What is it?" in model.requests[0].last_user_text


@both_loops
@pytest.mark.requirement("E13", "E25", "G48", "R4")
async def test_one_child_answers_two_prompts_in_turn(claude: Any, model: ScriptedModel) -> None:
    answered = anyio.Event()
    pids: list[list[int]] = []

    def answer(request: RecordedRequest) -> str:
        pids.append(claude.processes())  # while the CLI waits for the model
        return f"You said {request.last_user_text}."

    model.default = answer

    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await answered.wait()
        yield "two"

    def watch(message: Message) -> None:
        if isinstance(message, ResultMessage):
            answered.set()

    result = await claude.ask(prompts(), on_message=watch)
    assert [m.result for m in result.messages if isinstance(m, ResultMessage)] == ["You said one.", "You said two."]
    assert result.text == "You said two."
    assert len(pids[0]) == 1
    assert pids[0] == pids[1]
    first, second = [m for m in result.messages if isinstance(m, ph.InitMessage)]
    assert "Bash" in first.tools
    assert first.session_id == second.session_id == result.session_id
    # The second request holds the first turn: it is one conversation.
    history = [message["role"] for message in model.requests[1].messages if message["role"] != "system"]
    assert history == ["user", "assistant", "user"]


async def test_prompts_that_wait_are_answered_together(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/asking.md says; a session gives each an answer of its own."""
    gate = Gate()
    model.on("Item 0", reply=[Pause(gate), Text("first")])
    model.default = lambda request: f"answer to {request.last_user_text}"

    async def prompts() -> AsyncIterator[str]:
        for number in range(5):
            yield f"Item {number}"
        gate.open()

    query = claude.ask(prompts())
    results = [message async for message in query if isinstance(message, ResultMessage)]
    assert [len(result.user_message_uuids) for result in results] == [1, 4]
    assert results[1].result == "answer to Item 1\nItem 2\nItem 3\nItem 4"
    [warning] = [record.getMessage() for record in caplog.records if "together" in record.getMessage()]
    assert "the CLI answered 4 prompts" in warning

    options = query.options.with_(middleware=())
    async with ph.session(options) as session:
        texts = [(await session.query(f"Number {number}")).text for number in range(5)]
    assert texts == [f"answer to Number {number}" for number in range(5)]
    assert len([record for record in caplog.records if "together" in record.getMessage()]) == 1
