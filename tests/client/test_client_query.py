"""`Query` over a fake CLI and over memory: the ways to read an answer, and how each of them ends."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from client_world import alive, ended

import pilothouse as ph
from pilothouse.messages import Message
from pilothouse.testing import FakeCLI, frames
from pilothouse.transports import MemoryPeer, MemoryTransport

pytestmark = pytest.mark.anyio


@pytest.fixture
def fake() -> Iterator[FakeCLI]:
    with FakeCLI() as fake:
        yield fake


@pytest.mark.requirement("L55", "L1", "R2", "R3", "G1", "E3", "L33", "L34")
async def test_await_gives_the_whole_answer(fake: FakeCLI) -> None:
    fake.text("Hello", total_cost_usd=0.5)
    query = ph.query("Say hello", cli=fake.path)
    result = await query
    assert (result.text, result.cost_usd, result.is_success) == ("Hello", 0.5, True)
    assert await query.result() is result
    (call,) = fake.calls
    assert call.prompts == ["Say hello"]
    assert call.exit_code == 0
    assert not alive(call.pid)
    assert call.env["CLAUDE_CODE_ENTRYPOINT"] == "sdk-pilothouse"


@pytest.mark.requirement("L56", "G4", "G5", "E50", "E26", "E28")
async def test_iterating_gives_messages_as_they_come(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("first"))
    fake.expect("control_request", "interrupt").reply({}).emit(frames.result("done"))
    query = ph.query("go", cli=fake.path)
    assert query.session_id is None
    seen: list[Message] = []
    async with anyio.create_task_group() as group:
        async for message in query:
            seen.append(message)
            if isinstance(message, ph.AssistantMessage):
                # The child waits for us before it says more: the message was there while it was running.
                group.start_soon(query.interrupt)
    assert [m.type for m in seen] == ["system", "assistant", "result"]
    assert query.session_id == seen[0].session_id
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await aiter(query).__anext__()


@pytest.mark.requirement("L57", "L61")
async def test_on_message_is_called_in_order_and_may_raise(fake: FakeCLI, caplog: pytest.LogCaptureFixture) -> None:
    fake.text("Hello")
    seen: list[str] = []

    async def show(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(message.type)
        raise RuntimeError(f"cannot show {message.type}")

    result = await ph.query("go", cli=fake.path, on_message=show)
    assert seen == [m.type for m in result.messages]
    assert result.text == "Hello"
    assert [str(e) for e in result.callback_errors] == [f"cannot show {kind}" for kind in seen]
    assert len([r for r in caplog.records if "on_message raised" in r.message]) == 1


@pytest.mark.requirement("L54", "L22")
async def test_every_way_of_reading_gives_the_same_answer(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    collected = await ph.query("go", cli=fake.path, model="opus")
    streamed = ph.query("go", cli=fake.path, model="opus")
    messages = [m async for m in streamed]
    rebuilt = ph.QueryResult(messages)
    shown = await ph.query("go", cli=fake.path, model="opus", on_message=lambda _: None)
    after = await streamed.result()
    for other in (rebuilt, shown, after):
        assert (other.text, other.full_text, other.turns) == (collected.text, collected.full_text, collected.turns)
        assert [m.type for m in other.messages] == [m.type for m in collected.messages]
    first, *others = [call.argv for call in fake.calls]
    assert all(argv == first for argv in others)


@pytest.mark.requirement("E51", "G12")
async def test_nothing_runs_until_the_query_is_used(fake: FakeCLI) -> None:
    fake.text("Hello")
    query = ph.query("go", cli=fake.path)
    await anyio.lowlevel.checkpoint()
    assert fake.calls == []
    await query.aclose()
    assert fake.calls == []
    with pytest.raises(ph.SessionClosedError):
        await query


@pytest.mark.requirement("E52", "G6", "G10")
async def test_leaving_a_loop_ends_the_child(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("x")).hang()
    query = ph.query("go", cli=fake.path)
    async for _ in query:
        break
    await ended(fake)
    with pytest.raises(ph.SessionClosedError, match="closed before the result"):
        await query.result()


@pytest.mark.requirement("E52")
async def test_a_block_allows_leaving_a_loop_and_going_on(fake: FakeCLI) -> None:
    fake.text("Hello")
    async with ph.query("go", cli=fake.path) as query:
        async for _ in query:
            break
        result = await query.result()
        assert result.text == "Hello"
        assert [m.type for m in result.messages] == ["system", "assistant", "result"]
    await ended(fake)


@pytest.mark.requirement("E52", "G6", "G11")
async def test_leaving_a_block_ends_the_child(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).hang()
    async with ph.query("go", cli=fake.path) as query:
        await anext(aiter(query))
        (call,) = fake.calls
        assert alive(call.pid)
    assert not alive(call.pid)
    await query.aclose()
    await query.aclose()


async def test_a_dropped_query_ends_its_child(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).hang()
    query = ph.query("go", cli=fake.path)
    iterator = aiter(query)
    await anext(iterator)
    del query, iterator
    gc.collect()
    await ended(fake)


@pytest.mark.requirement("G45", "G47")
async def test_cancellation_stays_cancellation_and_ends_the_child(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).hang()
    started = anyio.Event()

    async def ask() -> None:
        try:
            await ph.query("go", cli=fake.path, on_message=lambda _: started.set())
        except anyio.get_cancelled_exc_class():
            (call,) = fake.calls
            assert not alive(call.pid)
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await started.wait()
        group.cancel_scope.cancel()
    await ended(fake)


@pytest.mark.requirement("E53", "L31")
async def test_text_stream(fake: FakeCLI) -> None:
    fake.text("Your name is Alice!")
    texts = [text async for text in ph.query("Who am I?", cli=fake.path).text_stream()]
    assert "".join(texts) == "Your name is Alice!"
    assert len(texts) > 1
    assert "--include-partial-messages" in fake.calls[0].argv


async def test_events(fake: FakeCLI) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    fake.turn(
        frames.init(), frames.assistant([use]), frames.user_tool_result("file", tool_use_id="t1"), frames.result("done")
    )
    events = [event async for event in ph.query("go", cli=fake.path).events()]
    match events:
        case [ph.AnswerStarted(), ph.ToolStarted(tool_use=started), ph.ToolFinished() as finished, ph.AnswerFinished()]:
            assert finished.tool_use is not None
            assert (started.name, finished.tool_use.id, finished.result.content) == ("Bash", "t1", "file")
        case _:
            pytest.fail(f"unexpected events: {events}")


@pytest.mark.requirement("R4")
async def test_iterables_are_sent_as_they_come(fake: FakeCLI) -> None:
    fake.turn(frames.init(), frames.result("one")).turn(frames.result("two"))

    async def prompts() -> AsyncIterator[Any]:
        yield "first"
        yield {"type": "user", "message": {"role": "user", "content": "second"}}

    result = await ph.query(prompts(), cli=fake.path)
    assert result.text == "two"
    assert fake.calls[0].prompts == ["first", "second"]

    def plain() -> Iterator[str]:
        yield "third"
        yield "fourth"

    assert (await ph.query(plain(), cli=fake.path)).text == "two"
    assert fake.calls[1].prompts == ["third", "fourth"]


async def test_an_empty_or_broken_iterable_is_the_error(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    with pytest.raises(ph.UsageError, match="was empty"):
        await ph.query(iter(()), cli=fake.path)

    async def breaks() -> AsyncIterator[str]:
        yield "one"
        raise LookupError("no more input")

    with pytest.raises(LookupError, match="no more input"):
        await ph.query(breaks(), cli=fake.path)
    with pytest.raises(ph.UsageError, match="not int"):
        await ph.query(iter([5]), cli=fake.path)
    await ended(fake)


async def test_blocks_and_attachments(fake: FakeCLI, tmp_path: Path) -> None:
    fake.text("a chart")
    picture = tmp_path / "chart.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n....")
    note = tmp_path / "note.txt"
    note.write_text("hello")
    await ph.query(["What is it?", ph.image(picture), ph.document(note)], cli=fake.path)
    text, image, document = fake.calls[0].prompts[0]
    assert text == {"type": "text", "text": "What is it?"}
    assert image["source"]["media_type"] == "image/png"
    assert document == {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "hello"},
        "title": "note.txt",
    }
    with pytest.raises(ph.UsageError, match="is no PNG"):
        ph.image(b"nonsense")
    with pytest.raises(ph.UsageError, match="cannot read"):
        ph.image(tmp_path / "none.png")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        (" \n", "the prompt is empty"),
        ("a\0b", "NUL character at position 1"),
        ("half \ud83d", "lone surrogate at position 5"),
        (None, "not NoneType"),
        (b"bytes", "not bytes"),
        (5, "not int"),
        ([], "at least one"),
        ([{"no": "type"}], "content block 0"),
        ([object()], "content block 0 of the prompt is object"),
        ([{"type": "text", "text": ""}], "the prompt is empty"),
        ([{"type": "image", "source": object()}], "source"),
        ([{"type": "user", "message": "x"}], "a user message has the form"),
    ],
)
async def test_bad_prompts_are_refused_before_anything_runs(prompt: Any, message: str, fake: FakeCLI) -> None:
    with pytest.raises(ph.UsageError, match=message):
        ph.query(prompt, cli=fake.path)
    assert fake.calls == []


@pytest.mark.requirement("L23", "L25", "G1", "R16", "E77")
async def test_the_argv_form(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    prompt = 'it\'s "quoted" $HOME; --flag\nsecond line'
    query = ph.query(prompt, cli=fake.path, prompt_via="argv")
    assert (await query).text == "Hello"
    (call,) = fake.calls
    assert call.argv[-2:] == ["--print", prompt]
    assert call.stdin == []
    with pytest.raises(ph.UsageError, match="takes a text prompt"):
        ph.query(["block"], prompt_via="argv")
    with pytest.raises(ph.OptionsError, match="does not fit into one argument"):
        ph.query("x" * 200_000, prompt_via="argv")
    async with ph.query("again", cli=fake.path, prompt_via="argv") as running:
        with pytest.raises(ph.UsageError, match="control protocol"):
            await running.interrupt()


async def test_verbatim_prompts(fake: FakeCLI) -> None:
    fake.text("Hello")
    await ph.query("@/etc/passwd", cli=fake.path, verbatim_prompts=True)
    assert fake.calls[0].frames[-1]["client_composed"] is True


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


async def test_an_interrupt_before_the_start_starts_nothing(fake: FakeCLI) -> None:
    query = ph.query("go", cli=fake.path)
    await query.interrupt()
    assert (await query).outcome == "interrupted"
    assert fake.calls == []


async def test_an_interrupt_passes_unread_messages_and_a_silent_child(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.driver.exchange.INTERRUPT_SECONDS", 0.5)
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
async def test_timeout(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init()).hang()
    with pytest.raises(ph.QueryTimeout, match="option timeout") as caught:
        await ph.query("go", cli=fake.path, timeout=0.5)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.seconds, caught.value.kind) == (0.5, "timeout")
    await ended(fake)


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

    with pytest.raises(ph.QueryTimeout, match="since it was started"):
        await ph.query("go", transport=lambda: MemoryTransport(never_speaks), idle_timeout=0.2)


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
async def test_a_child_that_dies_is_reported_with_what_it_said(
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
    fake.emit("never reached")


@pytest.mark.requirement("L28", "E54", "E71", "E55")
async def test_noise_stderr_and_odd_chunks_do_no_harm(fake: FakeCLI) -> None:
    fake.expect("user").chunked(7).emit("Starting up…\n", frames.init(), b"\xff\xfe\n", "{broken\n")
    fake.stderr('{"type": "result"}\n').emit(frames.assistant("fine"), "[1, 2]\n", frames.result("fine"))
    heard: list[str] = []
    result = await ph.query("go", cli=fake.path, stderr=heard.append)
    assert [m.type for m in result.messages] == ["system", "assistant", "result"]
    assert heard == ['{"type": "result"}']


@pytest.mark.requirement("G32")
async def test_an_oversize_line_is_skipped_and_told_when_the_answer_was_in_it(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("x" * 5000), frames.result("fine")).forever()
    result = await ph.query("go", cli=fake.path, max_line_bytes=4000)
    assert (result.text, result.assistant_messages) == ("fine", [])
    with FakeCLI() as other:
        other.expect("user").emit(frames.result("y" * 5000)).exit(0)
        with pytest.raises(ph.OversizeLineError, match="raise the option max_line_bytes") as caught:
            await ph.query("go", cli=other.path, max_line_bytes=4000)
    assert caught.value.size > 5000


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
    monkeypatch.setattr("pilothouse.driver.exchange.LINGER_SECONDS", 0.3)
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


@pytest.mark.requirement("R5", "R37")
async def test_any_transport_will_do() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await conn.write(frames.init())
        await conn.write(frames.result("from memory"))

    assert (await ph.query("go", transport=MemoryTransport(peer))).text == "from memory"
    with pytest.raises(ph.OptionsError, match="makes one, got str"):
        await ph.query("go", transport=lambda: "nonsense")


@pytest.mark.requirement("R1", "R29")
async def test_an_old_cli_works_with_a_warning(
    fake: FakeCLI, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.transports.discovery._warned", set[str]())
    fake.turn(frames.init(claude_code_version="1.0.128"), frames.result("Hello"))
    assert (await ph.query("go", cli=fake.path)).text == "Hello"
    assert "1.0.128 is older than 2.0.0" in caplog.text


@pytest.mark.requirement("E76")
async def test_no_key_in_any_text(fake: FakeCLI) -> None:
    key = "sk-ant-very-secret-key"
    fake.expect("user").stderr(f"request failed with key {key}\n").exit(1)
    heard: list[str] = []
    agent = ph.Agent(api_key=key, cli=fake.path, stderr=heard.append)
    query = agent.query("go")
    with pytest.raises(ph.CLIExitedError) as caught:
        await query
    texts = [str(caught.value), repr(caught.value), caught.value.stderr, repr(agent), repr(query.options), *heard]
    assert not any(key in text for text in texts)
    assert fake.calls[0].env["ANTHROPIC_API_KEY"] == key
    assert not any(key in argument for argument in fake.calls[0].argv)


@pytest.mark.requirement("E79")
async def test_memory_beside_a_stream_is_bounded(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.client.queries.STREAM_KEEP_BYTES", 10_000)
    fake.expect("user").emit(frames.init()).repeat(500, frames.assistant("x" * 100)).emit(frames.result("done"))
    query = ph.query("go", cli=fake.path)
    count = 0
    async for _ in query:
        count += 1
    assert count == 502
    result = await query.result()
    assert result.text == "done"
    assert result.session_id
    with pytest.raises(ph.UsageError, match="memory stays bounded"):
        _ = result.messages
    assert len((await ph.query("go", cli=fake.path)).messages) == 502


@pytest.mark.requirement("L18", "L21", "L2", "L4")
async def test_agents_and_the_default_agent(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.text("Hello").forever()
    monkeypatch.setattr("pilothouse.client.agent._default", ph.Agent())
    agent = ph.Agent(model="opus", allowed_tools=["Read"], cli=fake.path)
    changed = agent.with_options(max_turns=3)
    await changed.query("go", max_turns=9)
    assert "max_turns" not in agent.options.as_dict()
    assert {"--model=opus", "--allowedTools=Read", "--max-turns=9"} <= set(fake.calls[0].argv)
    ph.configure(cli=fake.path, model="haiku")
    assert (await ph.query("go")).text == "Hello"
    assert "--model=haiku" in fake.calls[1].argv
    with pytest.raises(ph.OptionsError, match="did you mean 'model'"):
        agent.query("go", modle="x")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ph.OptionsError, match=r"expected pilothouse\.Options"):
        agent.query("go", {"model": "x"})  # pyright: ignore[reportArgumentType]


async def test_typed_output(fake: FakeCLI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    fake.text("{}", structured_output={"city": "Paris"}).forever()
    result = await ph.query("go", cli=fake.path, output_type=schema)
    assert result.output == result.structured == {"city": "Paris"}
    assert json.loads(fake.calls[0].argv[-1].partition("=")[2]) == schema
    with pytest.raises(ph.OptionsError, match="output_type or json_schema"):
        ph.query("go", json_schema=schema, output_type=schema)
    fake.emit()


async def test_missing_structured_output_is_an_error(fake: FakeCLI) -> None:
    fake.text("I would rather not.")
    result = await ph.query("go", cli=fake.path, json_schema={"type": "object"})
    assert isinstance(result.error, ph.StructuredOutputError)
    assert result.outcome == "error"


@pytest.mark.requirement("R32")
async def test_a_megabyte_of_stderr_and_of_prompt(fake: FakeCLI) -> None:
    fake.expect("user").stderr("e" * 1_000_000 + "\n").emit(frames.result("done"))
    prompt = "p" * 1_000_000
    result = await ph.query(
        prompt, cli=fake.path, system_prompt="s" * 1_000_000, mcp_servers={"a": {"command": "c" * 1_000_000}}
    )
    assert result.text == "done"
    (call,) = fake.calls
    assert call.prompts == [prompt]
    paths = [Path(a.partition("=")[2]) for a in call.argv if "-file=" in a or a.startswith("--mcp-config=")]
    assert len(paths) == 2
    assert not any(path.exists() for path in paths)
