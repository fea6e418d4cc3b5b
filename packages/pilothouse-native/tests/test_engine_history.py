"""Sessions on disk: the engine goes on with what the CLI wrote, and the CLI with what the engine wrote."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from native_fixtures import Echo, hosted, kind_of, talk

from pilothouse_testing import ScriptedModel, Steps
from pilothouse_testing.script import HttpError, Reply, ToolUse
from pilothouse_transcripts import get_session_messages, list_sessions

pytestmark = pytest.mark.anyio

ID = "aaaaaaaa-0000-4000-8000-000000000001"
OTHER = "bbbbbbbb-0000-4000-8000-000000000002"


def config(model: ScriptedModel) -> Path:
    return Path(model.env().get("CLAUDE_CONFIG_DIR") or model.home / ".claude")


def transcript(model: ScriptedModel, session_id: str) -> Path:
    return next(config(model).rglob(f"{session_id}.jsonl"))


def rows(model: ScriptedModel, session_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in transcript(model, session_id).read_text().splitlines()]


def texts(model: ScriptedModel) -> str:
    """All that the last request showed to the model."""
    return json.dumps(model.requests[-1].messages)


async def cli(cli_path: str, model: ScriptedModel, *args: str) -> list[dict[str, Any]]:
    """Run the real CLI; gives its frames."""
    flags = ["--print", "--output-format=stream-json", "--verbose", *args]

    def run() -> str:
        done = subprocess.run(
            [cli_path, *flags],
            cwd=model.home / "project",
            env=model.env(max_retries=0),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout or done.stderr

    (model.home / "project").mkdir(exist_ok=True)
    return [json.loads(line) for line in (await anyio.to_thread.run_sync(run)).splitlines()]


async def test_the_engine_resumes_itself(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"}), ToolUse("Echo", {"text": "b"})], "Your name is Ada."))
    scripted_model.reply("Ada, as you said.")
    flags = ("--allowedTools=Echo",)
    _, first = await talk(scripted_model, "I am Ada.", f"--session-id={ID}", *flags, tools={"Echo": Echo()})
    _, second = await talk(scripted_model, "Who am I?", f"--resume={ID}", *flags, tools={"Echo": Echo()})
    assert (first["session_id"], second["session_id"]) == (ID, ID)
    shown = scripted_model.requests[-1].messages
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant", "user"]
    kinds = [[block["type"] for block in message["content"]] for message in shown]
    assert kinds == [["text"], ["tool_use"] * 2, ["tool_result"] * 2, ["text"], ["text"]]
    assert second["total_cost_usd"] > first["total_cost_usd"]


async def test_rows_are_those_of_the_cli(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"})], "Done."))
    await talk(scripted_model, "Go", f"--session-id={ID}", "--allowedTools=Echo", tools={"Echo": Echo()})
    path = transcript(scripted_model, ID)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    chained = [row for row in rows(scripted_model, ID) if "parentUuid" in row]
    assert [row["parentUuid"] for row in chained] == [None, *(row["uuid"] for row in chained[:-1])]
    assert [row["type"] for row in chained] == ["user", "assistant", "user", "assistant"]
    assert chained[2]["toolUseResult"] == "Echo: a"
    assert all(row["sessionId"] == ID and row["version"] for row in chained)
    found = list_sessions(scripted_model.home / "project", config_dir=config(scripted_model))
    assert [(info.session_id, info.first_prompt) for info in found] == [(ID, "Go")]
    assert len(get_session_messages(ID, config_dir=config(scripted_model))) == 4


async def test_a_fork_leaves_the_first_as_it_is(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    await talk(scripted_model, "I am Ada.", f"--session-id={ID}")
    before = transcript(scripted_model, ID).read_bytes()
    _, result = await talk(scripted_model, "Who?", f"--resume={ID}", "--fork-session", f"--session-id={OTHER}")
    assert result["session_id"] == OTHER
    assert transcript(scripted_model, ID).read_bytes() == before
    assert "I am Ada." in texts(scripted_model)
    await talk(scripted_model, "And?", f"--resume={OTHER}")
    assert "I am Ada." in texts(scripted_model)


async def test_the_engine_resumes_with_words_that_were_sent_into_a_turn(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    await talk(scripted_model, "Run the tests.", f"--session-id={ID}")
    path, last = transcript(scripted_model, ID), [row for row in rows(scripted_model, ID) if "parentUuid" in row][-1]
    lines = list[str]()
    for place, prompt in enumerate(["Only the unit tests.", None, ""]):
        attachment = {"type": "queued_command", "commandMode": "prompt", "source_uuid": f"s{place}"}
        attachment |= {} if prompt is None else {"prompt": prompt}
        shared = {"parentUuid": last["uuid"], "uuid": f"{OTHER[:-1]}{place}", "timestamp": last["timestamp"]}
        last = {**shared, "type": "attachment", "sessionId": ID, "isSidechain": False, "attachment": attachment}
        lines.append(json.dumps(last, separators=(",", ":")) + "\n")
    with path.open("a") as file:
        file.writelines(lines)
    await talk(scripted_model, "Go on.", f"--resume={ID}")
    shown = scripted_model.requests[-1].messages
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert [block["text"] for block in shown[-1]["content"]] == ["Only the unit tests.", "Go on."]


async def test_continue_takes_the_newest(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    await talk(scripted_model, "I am Ada.", f"--session-id={ID}")
    _, result = await talk(scripted_model, "Who?", "--continue")
    assert result["session_id"] == ID
    assert "I am Ada." in texts(scripted_model)


async def test_nothing_is_written_when_it_shall_not_be(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    await talk(scripted_model, "I am Ada.", f"--session-id={ID}", "--no-session-persistence")
    assert list(config(scripted_model).rglob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("flags", "stderr"),
    [
        (("--session-id=nonsense",), "Invalid session ID"),
        (("--continue",), "No conversation found to continue"),
        ((f"--resume={OTHER}",), f"No conversation found with session ID: {OTHER}"),
        (("--no-such-flag",), "error: unknown option '--no-such-flag'"),
        (("--permission-mode=bogus",), "option '--permission-mode' is invalid: Invalid enum value 'bogus'"),
        (("--max-turns=none",), "option '--max-turns' is invalid"),
        (("--settings=/not/there.json",), "Settings file not found"),
        (("--json-schema={",), "not valid JSON"),
        (("--mcp-config={}",), "Invalid MCP configuration"),
    ],
)
async def test_it_refuses_to_start_as_the_cli_does(
    scripted_model: ScriptedModel, flags: tuple[str, ...], stderr: str
) -> None:
    async with hosted(scripted_model, *flags) as host:
        output = await host.rest()
        ending = await host.transport.exit_info()
    assert ending.exit_code == 1
    assert stderr in ending.stderr
    assert [kind_of(frame) for frame in output] == (["result/error_during_execution"] if "--resume" in flags[0] else [])


async def test_a_session_id_is_used_once(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    await talk(scripted_model, "Hi", f"--session-id={ID}")
    async with hosted(scripted_model, f"--session-id={ID}") as host:
        await host.rest()
        assert "already in use" in (await host.transport.exit_info()).stderr


async def test_the_mirror_sends_every_row(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    async with hosted(scripted_model, "--session-mirror", f"--session-id={ID}") as host:
        await host.prompt("Hi")
        await host.transport.end_input()
        frames = await host.rest()
    mirrored = [row for frame in frames if frame["type"] == "transcript_mirror" for row in frame["entries"]]
    assert mirrored == rows(scripted_model, ID)


async def test_an_unwritable_transcript_is_reported_once(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    folder = config(scripted_model)
    folder.mkdir(exist_ok=True)
    (folder / "projects").write_text("in the way")
    async with hosted(scripted_model) as host:
        for prompt in ("Hi", "Again"):
            await host.prompt(prompt)
            assert (await host.result())["result"] == "Fine."
    assert host.kinds().count("system/session_writes_lost") == 1


async def test_clear_begins_anew(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    async with hosted(scripted_model, f"--session-id={ID}") as host:
        await host.prompt("I am Ada.")
        await host.result()
        await host.prompt("/clear")
        reset = await host.until(lambda f: f["type"] == "conversation_reset")
        cleared = await host.result()
        await host.prompt("Who am I?")
        result = await host.result()
    assert (cleared["local_command"], cleared["num_turns"]) == ("clear", 0)
    assert result["session_id"] == reset["new_conversation_id"] != ID
    assert "Ada" not in texts(scripted_model)


async def test_text_that_begins_with_a_slash_is_a_prompt_when_it_is_composed(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    async with hosted(scripted_model) as host:
        await host.prompt("/clear", client_composed=True)
        assert (await host.result())["result"] == "Fine."


async def test_compaction_on_demand(scripted_model: ScriptedModel) -> None:
    for reply in ("Hello Ada.", "<analysis>x</analysis><summary>She is Ada.</summary>", "You are Ada.", "Still Ada."):
        scripted_model.reply(reply)
    async with hosted(scripted_model, f"--session-id={ID}") as host:
        await host.ask("initialize", hooks={"PreCompact": [{"hookCallbackIds": ["pre"]}]})
        await host.prompt("I am Ada.")
        await host.result()
        await host.prompt("/compact mind the name")
        question = await host.question("hook_callback")
        await host.answer(question, {})
        boundary = await host.until(lambda f: kind_of(f) == "system/compact_boundary")
        compacted = await host.result()
        await host.prompt("Who am I?")
        assert (await host.result())["result"] == "You are Ada."
    assert question["request"]["input"]["custom_instructions"] == "mind the name"
    assert boundary["compact_metadata"]["trigger"] == "manual"
    assert (compacted["local_command"], compacted["is_error"]) == ("compact", False)
    assert "mind the name" in json.dumps(scripted_model.requests[1].messages[-1])
    assert "She is Ada." in texts(scripted_model)
    assert "Hello Ada." not in texts(scripted_model)
    await talk(scripted_model, "And now?", f"--resume={ID}")
    assert "She is Ada." in texts(scripted_model)
    assert "Hello Ada." not in texts(scripted_model)


async def test_compaction_at_the_limit_of_the_context(scripted_model: ScriptedModel) -> None:
    full = Reply([ToolUse("Echo", {"text": "a"})], usage={"input_tokens": 90_000})
    for reply in (full, "<summary>Half done.</summary>", "Done."):
        scripted_model.reply(reply)
    flags = ("--allowedTools=Echo",)
    tools = {"Echo": Echo()}
    host, result = await talk(
        scripted_model, "Do it all.", *flags, tools=tools, CLAUDE_CODE_AUTO_COMPACT_WINDOW="100000"
    )
    assert result["result"] == "Done."
    boundary = next(f for f in host.frames if kind_of(f) == "system/compact_boundary")
    assert boundary["compact_metadata"]["trigger"] == "auto"
    assert "Half done." in texts(scripted_model)
    assert "Do it all." in texts(scripted_model)


async def test_no_compaction_where_it_is_switched_off(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Reply([ToolUse("Echo", {"text": "a"})], usage={"input_tokens": 90_000}))
    scripted_model.reply("Done.")
    env: dict[str, Any] = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "DISABLE_AUTO_COMPACT": "1"}
    host, result = await talk(scripted_model, "Do it all.", "--allowedTools=Echo", tools={"Echo": Echo()}, **env)
    assert result["result"] == "Done."
    assert "system/compact_boundary" not in host.kinds()


async def test_a_conversation_that_is_too_long_is_compacted(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(HttpError(400, message="prompt is too long: 210000 tokens > 200000 maximum"))
    scripted_model.reply("<summary>Little.</summary>")
    scripted_model.reply("Done.")
    host, result = await talk(scripted_model, "Go")
    assert result["result"] == "Done."
    assert "system/compact_boundary" in host.kinds()


async def test_a_call_cut_off_by_a_crash_is_reported_to_the_model(scripted_model: ScriptedModel) -> None:
    scripted_model.reply([ToolUse("Echo", {"text": "hang"})])
    scripted_model.reply("I see.")
    echo = Echo()
    flags = ("--allowedTools=Echo",)
    async with hosted(scripted_model, f"--session-id={ID}", *flags, tools={"Echo": echo}) as host:
        await host.prompt("Go")
        await echo.began.wait()  # and the host goes away
    await talk(scripted_model, "What happened?", f"--resume={ID}", *flags, tools={"Echo": echo})
    block = scripted_model.requests[-1].messages[-1]["content"][0]
    assert (block["type"], block["is_error"]) == ("tool_result", True)


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_cli_resumes_what_the_engine_wrote(scripted_model: ScriptedModel, real_cli: Path) -> None:
    scripted_model.reply(Steps([ToolUse("Echo", {"text": "a"}), ToolUse("Echo", {"text": "b"})], "Your name is Ada."))
    scripted_model.default = "Ada, as you said."
    flags = ("--allowedTools=Echo",)
    await talk(scripted_model, "I am Ada.", f"--session-id={ID}", *flags, tools={"Echo": Echo()})
    frames = await cli(str(real_cli), scripted_model, f"--resume={ID}", "--", "Who am I?")
    assert frames[-1]["result"] == "Ada, as you said."
    assert frames[-1]["session_id"] == ID
    shown = texts(scripted_model)
    for output in ("I am Ada.", "Echo: a", "Echo: b", "Your name is Ada.", "Who am I?"):
        assert output in shown


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_engine_resumes_what_the_cli_wrote(scripted_model: ScriptedModel, real_cli: Path) -> None:
    call = ToolUse("Bash", {"command": "echo ahoy", "description": "d"})
    scripted_model.reply(Steps([call], "Your name is Ada."))
    scripted_model.default = "Ada, as you said."
    args = (f"--session-id={ID}", "--allowedTools=Bash", "--", "I am Ada.")
    frames = await cli(str(real_cli), scripted_model, *args)
    assert frames[-1]["result"] == "Your name is Ada."
    _, result = await talk(scripted_model, "Who am I?", f"--resume={ID}", tools={"Echo": Echo()})
    assert (result["result"], result["session_id"]) == ("Ada, as you said.", ID)
    shown = scripted_model.requests[-1].messages
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant", "user"]
    assert "ahoy" in json.dumps(shown[2])
    # And back again: the CLI goes on with what both have written.
    frames = await cli(str(real_cli), scripted_model, f"--resume={ID}", "--", "Sure?")
    assert "Who am I?" in texts(scripted_model)


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_reads_the_compaction_of_the_other(scripted_model: ScriptedModel, real_cli: Path) -> None:
    for reply in ("Hello Ada.", "<summary>She is Ada.</summary>"):
        scripted_model.reply(reply)
    scripted_model.default = "Fine."
    async with hosted(scripted_model, f"--session-id={ID}") as host:
        for prompt in ("I am Ada.", "/compact"):
            await host.prompt(prompt)
            await host.result()
    await cli(str(real_cli), scripted_model, f"--resume={ID}", "--", "Who am I?")
    assert "She is Ada." in texts(scripted_model)
    assert "Hello Ada." not in texts(scripted_model)
    await cli(str(real_cli), scripted_model, f"--resume={ID}", "--", "/compact")
    await talk(scripted_model, "Go on", f"--resume={ID}")
    assert "scripted summary" in texts(scripted_model)
    assert "She is Ada." not in texts(scripted_model)
