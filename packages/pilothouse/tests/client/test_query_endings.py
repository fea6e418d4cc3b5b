"""How a `Query` ends other than well: interrupts, time limits, deaths, odd output, failed starts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from fake_cli_processes import ended

import pilothouse as ph
from pilothouse.engine import child
from pilothouse.messages import LineSkippedMessage
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("E34", "E78")
async def test_an_interrupt_has_its_own_outcome(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init())
    fake.expect("control_request", "interrupt").reply({"still_queued": []})
    fake.emit(frames.result("", is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming"))
    query = ph.query("go", cli=fake.path)
    async for _ in query:
        await query.interrupt()
    result = await query.result()
    assert result.outcome == "interrupted"
    assert isinstance(result.error, ph.Interrupted)
    await query.interrupt()


async def test_an_interrupted_query_starts_nothing_in_a_block_either(fake: FakeCLI) -> None:
    query = ph.query("go", cli=fake.path)
    await query.interrupt()
    async with query:
        assert [message async for message in query] == []
    assert (await query).outcome == query.state == "interrupted"
    assert fake.calls == []


async def test_an_interrupt_passes_unread_messages_and_a_silent_child(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.engine.interrupt.INTERRUPT_SECONDS", 0.5)
    big = frames.assistant("x" * 100_000)
    fake.expect("user").emit(frames.init()).repeat(200, big)  # far more than the inbox holds
    fake.expect("control_request", "interrupt").reply({}).hang()
    async with ph.query("go", cli=fake.path) as query:
        iterator = aiter(query)
        await anext(iterator)
        with anyio.fail_after(15):
            await query.interrupt()  # acknowledged, but the turn never ends: the child is ended
            result = await query.result()
    assert result.outcome == "interrupted"
    await ended(fake)


@pytest.mark.requirement("L29", "L30", "E10", "G46")
async def test_timeout(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "SAVE_SECONDS", 0.1)  # this child never ends its turn
    fake.expect("user").emit(frames.init()).hang()
    with pytest.raises(ph.QueryTimeout, match="option timeout") as caught:
        await ph.query("go", cli=fake.path, timeout=1.5)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.seconds, caught.value.kind) == (1.5, "timeout")
    await ended(fake)


@pytest.mark.virtual_time
async def test_idle_timeout_counts_silence_only() -> None:
    async def talkative(peer: MemoryPeer) -> None:
        for _ in range(6):
            await anyio.sleep(0.1)
            await peer.write(frames.assistant("still here"))
        await peer.write(frames.result("done"))

    result = await ph.query("go", transport=lambda: MemoryTransport(talkative), idle_timeout=0.4)
    assert result.text == "done"

    async def falls_silent(peer: MemoryPeer) -> None:
        await peer.write(frames.init())
        await anyio.sleep_forever()

    with pytest.raises(ph.QueryTimeout, match="since its last message") as caught:
        await ph.query("go", transport=lambda: MemoryTransport(falls_silent), idle_timeout=0.2)
    assert caught.value.kind == "idle_timeout"

    async def never_speaks(peer: MemoryPeer) -> None:
        await anyio.sleep_forever()

    with pytest.raises(ph.QueryTimeout, match="before it began to answer"):
        await ph.query("go", transport=lambda: MemoryTransport(never_speaks), idle_timeout=0.2)


@pytest.mark.virtual_time
async def test_idle_timeout_waits_for_a_running_tool() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}

    async def slow_tool(peer: MemoryPeer) -> None:
        await peer.write(frames.assistant([use]))
        await anyio.sleep(0.6)
        await peer.write(frames.user_tool_result("done", tool_use_id="t1"))
        await peer.write(frames.result("done"))

    result = await ph.query("go", transport=lambda: MemoryTransport(slow_tool), idle_timeout=0.2)
    assert result.text == "done"


@pytest.mark.requirement("E68", "G41")
@pytest.mark.parametrize(
    ("ending", "code", "signal"), [("exit", 3, None), ("zero", 0, None), ("kill", None, "SIGKILL")]
)
async def test_a_dead_child_is_reported_with_its_standard_error(
    fake: FakeCLI, ending: str, code: int | None, signal: str | None
) -> None:
    fake.expect("user").emit(frames.init()).stderr("warming up\nout of cheese\n")
    {"exit": lambda: fake.exit(3), "zero": lambda: fake.exit(0), "kill": lambda: fake.kill("SIGKILL")}[ending]()
    with anyio.fail_after(5), pytest.raises(ph.CLIExitedError) as caught:
        await ph.query("go", cli=fake.path)
    error = caught.value
    assert (error.exit_code, error.signal) == (code, signal)
    assert "out of cheese" in str(error)
    assert "out of cheese" in error.stderr


async def test_what_came_before_the_death_is_delivered(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("half an answer")).exit(1)
    seen: list[str] = []

    async def read() -> None:
        async for message in ph.query("go", cli=fake.path):
            seen.append(message.type)

    with pytest.raises(ph.CLIExitedError):
        await read()
    assert seen == ["system", "assistant"]


async def test_a_truncated_last_line_is_no_answer(fake: FakeCLI) -> None:
    line = json.dumps(frames.result("done"))
    fake.expect("user").emit(frames.init(), line[:-10]).exit(0)
    with pytest.raises(ph.CLIExitedError):
        await ph.query("go", cli=fake.path)


@pytest.mark.requirement("L28", "E54", "E71", "E55")
async def test_noise_stderr_and_odd_chunks_do_no_harm(fake: FakeCLI) -> None:
    fake.expect("user").chunked(7).emit("Starting up…\n", frames.init(), b"\xff\xfe\n", "{broken\n")
    fake.stderr('{"type": "result"}\n').emit(frames.assistant("fine"), "[1, 2]\n", frames.result("fine"))
    received: list[str] = []
    result = await ph.query("go", cli=fake.path, stderr=received.append)
    read = [m.type for m in result.messages if not isinstance(m, LineSkippedMessage)]
    assert (read, result.skipped_lines) == (["system", "assistant", "result"], 4)
    assert received == ['{"type": "result"}']


@pytest.mark.requirement("G32")
async def test_an_oversize_line_is_skipped_and_reported_when_the_answer_was_in_it(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("x" * 5000), frames.result("fine")).forever()
    result = await ph.query("go", cli=fake.path, max_line_bytes=4000)
    assert (result.text, result.assistant_messages) == ("fine", [])
    with FakeCLI() as other:
        other.expect("user").emit(frames.result("y" * 5000)).exit(0)
        with pytest.raises(ph.OversizeLineError, match="raise the option max_line_bytes") as caught:
            await ph.query("go", cli=other.path, max_line_bytes=4000)
    assert caught.value.size > 5000


@pytest.mark.requirement("E68", "G41")
async def test_a_query_that_failed_fails_in_the_same_way_every_time(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.assistant("part")).kill("SIGKILL")
    query = ph.query("go", cli=fake.path)
    errors: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(ph.CLIExitedError) as caught:
            await query
        errors.append(caught.value)
        with pytest.raises(ph.CLIExitedError) as caught:
            async for _message in query:
                pass
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 1
    await query.interrupt()
    await query.aclose()
    with pytest.raises(ph.CLIExitedError):
        await query.result()


async def test_what_could_not_be_read_is_the_cause(fake: FakeCLI) -> None:
    fake.expect("user").emit('{"no": "type"}\n').exit(2)
    with pytest.raises(ph.CLIExitedError) as caught:
        await ph.query("go", cli=fake.path)
    parse = ph.find_cause(caught.value, ph.MessageParseError)
    assert parse is not None
    assert parse.data == {"no": "type"}


@pytest.mark.requirement("E80", "E55")
async def test_a_shell_script_can_stand_in_for_the_cli() -> None:
    script = """
    echo '{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Mock response"}]}'
    echo '{"type": "done"}'
    """
    with FakeCLI.shell(script) as mock:
        result = await ph.query("go", cli=mock.path)
    assert result.full_text == "Mock response"
    assert result.is_success


async def test_a_child_that_stays_after_its_answer_is_ended(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.engine.child.EXIT_SECONDS", 0.3)
    fake.text("Hello").hang()
    assert (await ph.query("go", cli=fake.path)).text == "Hello"
    await ended(fake)


async def test_the_handshake_can_be_refused_or_unanswered(fake: FakeCLI) -> None:
    fake.on_control("initialize", error="bad hooks", code="nope").expect("user").hang()
    with pytest.raises(ph.ControlError, match="refused the control request 'initialize': bad hooks") as caught:
        await ph.query("go", cli=fake.path)
    assert caught.value.code == "nope"
    fake.on_control("initialize", silent=True)
    with pytest.raises(ph.ControlTimeout, match="control_timeout"):
        await ph.query("go", cli=fake.path, control_timeout=0.3)
    await ended(fake)


async def test_prompts_of_a_stream_fail_with_a_refused_or_unanswered_handshake(fake: FakeCLI) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "go"
        await anyio.sleep_forever()

    fake.on_control("initialize", error="bad hooks").expect("user").hang()
    with anyio.fail_after(20), pytest.raises(ph.ControlError, match="bad hooks"):
        await ph.query(prompts(), cli=fake.path)
    fake.on_control("initialize", silent=True)
    with anyio.fail_after(20), pytest.raises(ph.ControlTimeout, match="control_timeout"):
        await ph.query(prompts(), cli=fake.path, control_timeout=0.3)
    await ended(fake)


@pytest.mark.requirement("G2", "E64", "G39")
async def test_start_errors_come_from_the_start(tmp_path: Path, fake: FakeCLI) -> None:
    with pytest.raises(ph.CLINotFoundError, match="npm install"):
        async with ph.query("go", cli=tmp_path / "none"):
            pytest.fail("must not be entered")
    with pytest.raises(ph.CLIStartError, match="missing"):
        await ph.query("go", cli=fake.path, cwd=tmp_path / "missing")
    plain = tmp_path / "claude"
    plain.write_text("not a program")
    with pytest.raises(ph.CLIStartError):
        await ph.query("go", cli=plain)


@pytest.mark.requirement("R1", "E45")
async def test_a_cli_that_is_too_old_for_an_option_says_which() -> None:
    secret = "hunter2"
    script = f"""echo "error: unknown option '--effort={secret}'" >&2; exit 1"""
    with FakeCLI.shell(script) as old:
        with pytest.raises(
            ph.CLIVersionError, match=r"flag --effort, which option 'effort' needs; Claude Code 2\."
        ) as caught:
            await ph.query("go", cli=old.path, effort="low")
        assert secret not in f"{caught.value} {caught.value.stderr}"
        assert "unknown option '--effort" in caught.value.stderr
    script = """echo "error: unknown option '--bogus'" >&2; exit 1"""
    with FakeCLI.shell(script) as old, pytest.raises(ph.CLIVersionError, match=r"know the flag --bogus: update it"):
        await ph.query("go", cli=old.path, extra_args={"bogus": None})


TASK = {"type": "system", "subtype": "task_started", "task_id": "t1", "description": "tests"}


async def test_until_idle_ends_with_a_cli_that_leaves_by_itself() -> None:
    with FakeCLI().expect("user").emit(frames.init(), TASK, frames.result("done")).exit(0) as fake:
        with anyio.fail_after(20):
            result = await ph.query("go", cli=fake.path, until="idle")
    assert (result.text, result.is_success) == ("done", True)


async def test_until_idle_fails_with_a_cli_that_dies_before_it_is_idle() -> None:
    with FakeCLI().expect("user").emit(frames.init(), TASK, frames.result("done")).exit(3) as fake:
        with anyio.fail_after(20), pytest.raises(ph.CLIExitedError, match="code 3"):
            await ph.query("go", cli=fake.path, until="idle")
        assert (await ph.query("go", cli=fake.path)).text == "done"


async def test_the_output_of_an_answer_that_goes_on_is_that_of_its_prompt() -> None:
    woken = frames.result("FINISHED", origin={"kind": "task-notification"})
    given = frames.result("{}", structured_output={"total": 3})
    with FakeCLI().expect("user").emit(frames.init(), TASK, given, frames.init(), woken).exit(0) as fake:
        schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
        with anyio.fail_after(20):
            result = await ph.query("go", cli=fake.path, until="idle", output_type=schema)
    assert (result.output, result.text, result.error) == ({"total": 3}, "FINISHED", None)
