"""`Query` over a fake CLI and over memory: the ways to read an answer, and how each of them ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fake_cli_processes import ended
from process_checks import is_dead

import pilothouse as ph
from pilothouse.events import Started
from pilothouse.messages import Message
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("L55", "R2", "R3", "G1", "E3", "L33", "L34")
async def test_await_gives_the_whole_answer(fake: FakeCLI) -> None:
    fake.text("Hello", total_cost_usd=0.5)
    query = ph.query("Say hello", cli=fake.path)
    result = await query
    assert (result.text, result.cost_usd, result.is_success) == ("Hello", 0.5, True)
    assert await query.result() is result
    (call,) = fake.calls
    assert call.prompts == ["Say hello"]
    assert call.exit_code == 0
    assert is_dead(call.pid)
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
    assert [m async for m in query] == seen


async def test_an_awaited_answer_keeps_each_repeated_value_once(fake: FakeCLI) -> None:
    fake.expect("user").emit(frames.init(), frames.assistant("one"), frames.assistant("two"), frames.result("done"))
    one, two, end = (await ph.query("go", cli=fake.path)).messages[1:]
    assert one.session_id
    assert one.session_id is two.session_id is end.session_id


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
        assert not is_dead(call.pid)
    assert is_dead(call.pid)
    await query.aclose()
    await query.aclose()


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
        case [Started(), ph.ToolCallStarted(tool_use=started), ph.ToolCallFinished() as finished, ph.Finished()]:
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
    with pytest.raises(ph.UsageError, match="is not a PNG"):
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
        (
            [{"type": "user", "message": {"content": "x"}}, {"type": "assistant", "message": {"content": "y"}}],
            "has type 'user', not 'assistant'",
        ),
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


@pytest.mark.requirement("R5", "R37")
async def test_any_transport_will_do() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await conn.write(frames.init())
        await conn.write(frames.result("from memory"))

    assert (await ph.query("go", transport=MemoryTransport(peer))).text == "from memory"
    with pytest.raises(ph.OptionsError, match="makes one, got str"):
        await ph.query("go", transport=lambda: "nonsense")


@pytest.mark.requirement("R1", "R29")
@pytest.mark.parametrize(
    ("version", "warning"),
    [("1.0.128", "1.0.128 is older than 2.0.0"), (None, "may be older than 2.0.0"), ("2.1.0", None)],
)
async def test_an_old_cli_works_with_a_warning(
    version: str | None,
    warning: str | None,
    fake: FakeCLI,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pilothouse.transports.discovery._warned_of", set[str]())
    fake.turn(frames.init(claude_code_version=version), frames.result("Hello")).forever()
    for _ in range(2):
        assert (await ph.query("go", cli=fake.path)).text == "Hello"
    warnings = [
        record.getMessage() for record in caplog.records if "the oldest supported version" in record.getMessage()
    ]
    assert [warning in text for text in warnings if warning] == [True] * len(warnings) == [True] * bool(warning)
    assert len(fake.calls) == 2, "nothing is started to ask for its version"


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
        agent.query("go", "x")  # pyright: ignore[reportArgumentType]


async def test_typed_output(fake: FakeCLI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    fake.text("{}", structured_output={"city": "Paris"}).forever()
    result = await ph.query("go", cli=fake.path, output_type=schema)
    assert result.output == result.structured == {"city": "Paris"}
    assert json.loads(fake.calls[0].argv[-1].partition("=")[2]) == schema
    with pytest.raises(ph.OptionsError, match="output_type or json_schema"):
        ph.query("go", json_schema={"type": "object"}, output_type=schema)
    fake.emit()


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
