"""A run answered from its recording: the same messages and questions; and what is told when the program drifted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from recorded_sessions import record, recorder, replay, say
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse import sync
from pilothouse.errors import CassetteError, CLIExitedError, ControlError, ReplayMismatch, UsageError
from pilothouse_testing import (
    Cassette,
    FakeCLI,
    Player,
    Recorder,
    RecordingTransport,
    ReplayTransport,
    frames,
    mock_transport,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


# --- the same again


@pytest.mark.requirement("E32", "E38", "R37")
async def test_a_session_is_the_same_again(path: Path) -> None:
    answers = await record(path, "one", "two", "three")
    assert await replay(path, "one", "two", "three") == answers == [f"You said: {w}" for w in ("one", "two", "three")]


async def test_prompts_have_the_ids_of_now(path: Path) -> None:
    await record(path, "one")
    async with ph.session(transport=ReplayTransport(path)) as session:
        listener = session.messages()
        result = await session.query("one")
        assert result.result is not None
        named = (result.result.user_message_uuids or ("none",))[0]
        lifecycle = await anext(listener)
        assert lifecycle.type == "command_lifecycle"
        assert lifecycle.raw["command_uuid"] == named
        assert named.encode() not in path.read_bytes()
        assert str(session.id).encode() in path.read_bytes()


async def test_control_requests_are_answered_in_any_order(path: Path) -> None:
    async def ask(**settings: Any) -> None:
        async with ph.session(**settings) as session, anyio.create_task_group() as group:
            for model in ("opus", "sonnet", "haiku"):
                group.start_soon(session.set_model, model)
            group.start_soon(session.set_permission_mode, "plan")

    await ask(transport=recorder(path))
    for _ in range(3):  # trio starts tasks in an order of chance
        player = Player(path)
        await ask(transport=player)
        player.check_complete()


@pytest.mark.parametrize("answer", [ph.Allow(), ph.Deny("not now")])
async def test_permissions_are_asked_again(path: Path, answer: ph.Allow | ph.Deny) -> None:
    asked: list[str] = []

    async def can_use_tool(request: ph.PermissionRequest) -> ph.Allow | ph.Deny:
        asked.append(request.tool_input["command"])
        return answer

    first = await record(path, "ask a", "ask b", can_use_tool=can_use_tool)
    assert await replay(path, "ask a", "ask b", can_use_tool=can_use_tool) == first
    assert asked == ["ask a", "ask b"] * 2


async def test_an_interrupt_is_one_again(path: Path) -> None:
    async def stop(**settings: Any) -> tuple[str, str]:
        async with ph.session(**settings) as session:
            query = session.query("hang")
            async for message in query:
                if isinstance(message, ph.InitMessage):
                    await query.interrupt()
            return (await query.result()).text, (await session.query("go on")).text

    first = await stop(transport=recorder(path))
    player = Player(path)
    assert await stop(transport=player) == first == ("interrupted", "You said: go on")
    player.check_complete()


@pytest.mark.parametrize(("then", "now"), [(10_000, None), (None, 10_000), (10_000, 10_000)])
async def test_questions_of_a_token_budget_do_not_have_to_be_the_same(
    path: Path, then: int | None, now: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """When and how often they are asked depends on timing."""
    recorded = RecordingTransport(mock_transport("Hello", "Hello again"), path)
    for budget, transport in ((then, recorded), (now, player := Player(path, patience=5.0))):
        async with ph.session(transport=transport, max_budget_tokens=budget) as session:
            assert (await session.query("one")).text == "Hello"
            assert (await session.query("two")).text == "Hello again"
    player.check_complete()
    assert ("get_usage" in path.read_text()) == (then is not None)
    assert not caplog.records


def test_the_blocking_api_and_the_argv_form(path: Path) -> None:
    for transport in (RecordingTransport(mock_transport("Hello"), path), ReplayTransport(path)):
        assert sync.query("Hi", transport=transport, prompt_via="argv").result().text == "Hello"
    with pytest.raises(ReplayMismatch, match="other arguments"):
        sync.query("Ho", transport=ReplayTransport(path), prompt_via="argv").result()


async def test_connections_are_played_in_their_order(path: Path) -> None:
    agent = ph.Agent(transport=recorder(path))
    for prompt in ("one", "two"):
        await agent.query(prompt)
    player = Player(path)
    agent = ph.Agent(transport=player)
    texts = [(await agent.query(prompt)).text for prompt in ("one", "two")]
    assert texts == ["You said: one", "You said: two"]
    player.check_complete()
    with pytest.raises(ReplayMismatch, match="starts connection 3, but 2 were recorded"):
        await agent.query("three")


async def test_a_recording_of_a_replay_is_the_same(path: Path, tmp_path: Path) -> None:
    await record(path, "one", "two")
    again = tmp_path / "again.jsonl"
    await say(["one", "two"], transport=RecordingTransport(ReplayTransport(path), again))
    lines = [[e.data for e in Cassette.load(p).connections[0].entries if e.direction == "out"] for p in (path, again)]
    assert len(lines[0]) == len(lines[1])
    assert await replay(again, "one", "two") == ["You said: one", "You said: two"]


async def test_keys_of_now_match_those_that_were_taken_out(path: Path) -> None:
    for key, transport in (("key-of-then-1234", recorder(path)), ("key-of-now-567890", Player(path))):
        assert await say([f"use {key}"], transport=transport, env={"ANTHROPIC_API_KEY": key})
    assert b"key-of-then" not in path.read_bytes()


async def test_another_directory_is_the_same_place(path: Path, tmp_path: Path) -> None:
    for name, transport in (("then", recorder(path)), ("now", Player(path))):
        place = tmp_path / name
        place.mkdir()
        await say([f"look into {place}/file"], transport=transport, cwd=str(place), add_dirs=[str(place / "sub")])


# --- drift


@pytest.mark.parametrize(
    ("prompts", "words", "diff"),
    [
        (
            ["one", "too"],
            "a prompt that differs from the recorded one",
            ['-    "content": "two"', '+    "content": "too"'],
        ),
        (["one", "two", "three"], "a prompt, which was not recorded; the recording has 2 of its kind", ["three"]),
    ],
)
async def test_another_prompt_is_reported(path: Path, prompts: list[str], words: str, diff: list[str]) -> None:
    await record(path, "one", "two")
    with pytest.raises(ReplayMismatch) as caught:
        await say(prompts, transport=Player(path))
    error = caught.value
    assert words in str(error)
    assert str(path) in str(error)
    assert error.path == str(path)
    for part in diff:
        assert part in error.diff
    assert "uuid" not in "".join(
        line for line in error.diff.splitlines() if line[0] in "+-" and "three" not in error.diff
    )
    if error.line is not None:
        assert '"content":"two"' in path.read_text().splitlines()[error.line - 1]


async def test_other_options_are_reported(path: Path) -> None:
    await record(path, "one", model="opus")
    with pytest.raises(ReplayMismatch, match="starts the CLI with other arguments") as caught:
        await replay(path, "one", model="haiku")
    assert "---model=opus" in caught.value.diff
    assert "+--model=haiku" in caught.value.diff


async def test_another_handshake_is_reported(path: Path) -> None:
    await record(path, "one")
    hooks = {"PreToolUse": [ph.HookMatcher("Bash", [lambda event: None])]}  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(ReplayMismatch, match="the control request 'initialize' that differs") as caught:
        await replay(path, "one", hooks=hooks)
    assert "PreToolUse" in caught.value.diff


async def test_another_decision_is_reported(path: Path) -> None:
    await record(path, "ask", can_use_tool=lambda request: True)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(ReplayMismatch, match="the answer to the question 'q1' that differs") as caught:
        await replay(path, "ask", can_use_tool=lambda request: False)  # pyright: ignore[reportUnknownLambdaType]
    assert '"behavior": "deny"' in caught.value.diff


async def test_a_request_that_was_not_recorded_is_reported(path: Path) -> None:
    await record(path, "one")
    async with ph.session(transport=ReplayTransport(path)) as session:
        with pytest.raises(ReplayMismatch, match="the control request 'set_model', which was not recorded"):
            await session.set_model("opus")
    await say([], transport=ReplayTransport(path, strict=False))


async def test_a_recording_need_not_have_the_requests_of_pilothouse_itself(path: Path) -> None:
    async def go(cli: Cli, say: Say, text: str) -> str:
        await say(frames.init(mcp_servers=[{"name": "shop", "status": "failed", "source": "dynamic"}]))
        return "done"

    cli = Cli()
    cli.acts["go"] = go
    cli.answers["mcp_status"] = {"mcpServers": []}
    await ph.query("go", transport=RecordingTransport(cli.transport(), path))
    lines = path.read_text().splitlines(keepends=True)
    assert "mcp_status" in "".join(lines)
    path.write_text("".join(line for line in lines if "mcp_status" not in line and "mcpServers" not in line))
    player = Player(path)
    assert (await ph.query("go", transport=player)).text == "done"
    player.check_complete()


async def test_less_than_was_recorded_is_reported(path: Path) -> None:
    await record(path, "one", "two")
    player = Player(path)
    await say(["one"], transport=player)
    with pytest.raises(
        ReplayMismatch, match="the program has ended, but the recording continues with a prompt"
    ) as caught:
        player.check_complete()
    assert '"content": "two"' in caught.value.diff
    never = Player(path)
    with pytest.raises(ReplayMismatch, match="has started 0 connections, but 1 were recorded"):
        never.check_complete()


async def test_what_does_not_come_is_awaited_with_patience(path: Path) -> None:
    async with ph.session(transport=recorder(path)) as session:
        query = session.query("hang")
        async for message in query:
            if isinstance(message, ph.InitMessage):
                await query.interrupt()
    with pytest.raises(
        ReplayMismatch, match=r"continues with the control request 'interrupt' .* the program sends none"
    ):
        await say(["hang"], transport=ReplayTransport(path, patience=0.05))
    answers = await say(["hang"], transport=ReplayTransport(path, strict=False, patience=0.05))
    assert answers == ["interrupted"]


async def test_a_message_left_out_between_two_turns_is_awaited_with_patience(path: Path) -> None:
    async with ph.session(transport=recorder(path)) as session:
        await session.query("one")
        await session.set_model("sonnet")
        await session.query("two")
    with anyio.fail_after(20):
        with pytest.raises(
            ReplayMismatch, match=r"continues with the control request 'set_model' .* the program sends none"
        ):
            await say(["one", "two"], transport=ReplayTransport(path, patience=0.05))
        answers = await say(["one", "two"], transport=ReplayTransport(path, strict=False, patience=0.05))
    assert answers == ["You said: one", "You said: two"]


async def test_a_pause_between_two_turns_has_no_limit(path: Path) -> None:
    await record(path, "one", "two")
    async with ph.session(transport=ReplayTransport(path, patience=0.05)) as session:
        await session.query("one")
        await anyio.sleep(0.15)  # longer than the patience
        assert (await session.query("two")).text == "You said: two"


async def test_a_callback_may_take_its_time(path: Path) -> None:
    async def think(request: ph.PermissionRequest) -> bool:
        await anyio.sleep(0.15)  # longer than the patience
        return True

    await record(path, "ask", can_use_tool=think)
    assert await replay(path, "ask", can_use_tool=think, patience=0.05) == ["allow: "]


async def test_fields_can_be_left_out(path: Path) -> None:
    await record(path, "one")
    transport = ReplayTransport(path, ignore=["content"])
    assert await say(["another"], transport=transport) == ["You said: one"]


async def test_lenient_forgives(path: Path) -> None:
    async with ph.session(transport=recorder(path), model="opus") as session:
        await session.set_model("sonnet")
        await session.query("one")
        await session.query("two")
    async with ph.session(transport=ReplayTransport(path, strict=False)) as session:
        assert (await session.query("eins")).text == "You said: one"  # the request before it never came
        await session.set_model("late")
        with pytest.raises(ControlError, match="this was not recorded"):
            await session.set_permission_mode("plan")
        assert (await session.query("zwei")).text == "You said: two"
        with pytest.raises(ReplayMismatch, match="the recording has 2 of its kind"):
            await session.query("drei")


# --- the end


@pytest.mark.parametrize(("how", "code", "signal"), [("exit", 7, None), ("kill", None, "SIGKILL")])
async def test_an_end_is_the_same_end(path: Path, how: str, code: int | None, signal: str | None) -> None:
    with FakeCLI().expect("user").emit(frames.init()).stderr("out of rope\n") as fake:
        fake.exit(7) if how == "exit" else fake.kill()
        errors: list[CLIExitedError] = []
        for transport in (Player(path),) if path.exists() else (Recorder(path), Player(path)):
            with pytest.raises(CLIExitedError) as caught:
                await ph.query("Hi", cli=fake.path, transport=transport)
            errors.append(caught.value)
    assert len(fake.calls) == 0 or len(fake.calls) == 1
    assert [(e.exit_code, e.signal, e.stderr) for e in errors] == [(code, signal, "out of rope\n")] * 2


async def test_a_recording_that_was_cut_off_says_so(path: Path) -> None:
    await record(path, "one", "two")
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"content":"two"' in line)
    path.write_bytes(b"".join(lines[: at + 2]) + lines[at + 2][:20])
    with pytest.raises(ReplayMismatch, match="ends here, in the middle of a turn: it was cut off by a crash"):
        await say(["one", "two"], transport=ReplayTransport(path, patience=0.05))
    # As far as it goes, it is good.
    assert await say(["one"], transport=ReplayTransport(path, patience=0.05)) == ["You said: one"]


async def test_a_program_that_leaves_early_may_leave_early_again(path: Path) -> None:
    for transport in (recorder(path), Player(path)):
        async for message in ph.query("hang", transport=transport):
            if isinstance(message, ph.InitMessage):
                break


async def test_bad_files_are_reported_where_they_are_used(path: Path, tmp_path: Path) -> None:
    for content, words in ((b"", "the file is empty"), (b'{"cassette":9}\n', "version 9"), (None, "No such file")):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CassetteError, match=words):
            await ph.query("Hi", transport=ReplayTransport(path))
    with pytest.raises(CassetteError, match="Is a directory"):
        await ph.query("Hi", transport=ReplayTransport(tmp_path))


@pytest.mark.parametrize("wrong", ["content", ["content", None], 5])
async def test_ignored_fields_are_a_list_of_names(path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match="ignore: expected a list of texts, got"):
        Player(path, ignore=wrong)


async def test_settings_that_cannot_work(path: Path) -> None:
    for wrong in ({"speed": 0}, {"speed": -1.0}, {"patience": 0.0}, {"speed": float("nan")}, {"speed": "1"}):
        with pytest.raises(UsageError, match="expected a number greater than 0"):
            ReplayTransport(path, **wrong)
    with pytest.raises(UsageError, match="a Player has its own settings"):
        ReplayTransport(Player(path), strict=True)


# --- time


def slow_recording(path: Path, seconds: float) -> None:
    """Stretch the time between what was said and what was sent to so many seconds an entry."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number, entry in enumerate(lines[1:]):
        entry["t"] = number * seconds
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


async def test_time_is_off_by_default_and_can_be_scaled(path: Path) -> None:
    await record(path, "one")
    slow_recording(path, 1000.0)
    with anyio.fail_after(60):
        await replay(path, "one")
    slow_recording(path, 0.1)
    out = sum(entry.direction == "out" for entry in Cassette.load(path).connections[0].entries)
    began = time.monotonic()
    await say(["one"], transport=ReplayTransport(path, speed=2.0))
    assert time.monotonic() - began >= (out - 2) * 0.05


# --- recordings of other tools


def test_recordings_without_a_header_are_played_by_kind(transcripts: list[Path]) -> None:
    """Every recording of the real CLI that came to a result comes to one again, whatever is asked."""

    async def ask(path: Path) -> ph.QueryResult:
        with anyio.fail_after(30):
            return await ph.query("anything", transport=ReplayTransport(path, patience=0.05))

    answered = 0
    for path in transcripts:
        connection = Cassette.load(path).connections[0]
        recorded = [entry.frame or {} for entry in connection.entries if entry.direction == "out"]
        sent = [entry.frame or {} for entry in connection.entries if entry.direction == "in"]
        results = [frame for frame in recorded if frame.get("type") == "result"]
        asked = not sent or any(frame.get("type") == "user" for frame in sent)
        if results and asked and "cut" not in path.name and results[0].get("result"):
            result = anyio.run(ask, path)
            answered += 1
            assert result.result is not None
            assert result.result.session_id == results[0].get("session_id")
    assert answered > 60
