"""Transcripts of the real CLI: what it writes is what we read, and what we write is what it resumes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import PNG

import pilothouse as ph
import pilothouse_transcripts as transcripts
from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse
from pilothouse_transcripts import stores

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture
def agent(claude: Any, model: ScriptedModel) -> ph.Agent:
    model.default = "fine"
    return claude.agent(tools=["Bash", "Read", "Agent"], permission_mode="bypassPermissions")


@pytest.fixture(autouse=True)
def config(claude: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration directory of the CLI, told to the library as to the CLI."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude.home / ".claude"))
    return claude.home / ".claude"


def asked(model: ScriptedModel) -> str:
    """Everything that the last request told the model."""
    return json.dumps(model.requests[-1].messages)


def contents(messages: list[ph.Message]) -> list[Any]:
    return [message.raw["message"]["content"] for message in messages]


@pytest.mark.parametrize(
    ("prompt", "summary"),
    [(ph.image(PNG), "[picture]"), (ph.document(b"words", title="plan.txt"), "[document: plan.txt]")],
    ids=["picture", "document"],
)
async def test_a_session_whose_prompts_have_no_text_is_listed(
    agent: ph.Agent, claude: Any, prompt: Any, summary: str
) -> None:
    async with agent.session() as session:
        await session.query([prompt])
        await session.query([prompt])
        key = session.id
    assert key is not None
    (info,) = transcripts.list_sessions(claude.cwd)
    assert (info.session_id, info.summary, info.first_prompt) == (key, summary, None)
    assert transcripts.get_session_info(key) == info
    assert "fine" in transcripts.export_session(key)
    assert {hit.session_id for hit in transcripts.search_sessions("fine")} == {key}
    fork = transcripts.fork_session(key)
    async with agent.session(resume=fork.session_id) as session:
        assert (await session.query("and now in words")).text == "fine"
    listed = {one.session_id: one.summary for one in transcripts.list_sessions(claude.cwd)}
    assert listed == {key: summary, fork.session_id: f"{summary} (fork)"}


@pytest.mark.requirement("L60", "E26")
async def test_what_the_cli_writes_is_what_we_read(agent: ph.Agent, model: ScriptedModel, claude: Any) -> None:
    calls = [ToolUse("Bash", {"command": f"echo {name}"}) for name in "abc"]
    model.on("go", reply=Steps([Text("I look."), *calls], "all three"))
    async with agent.session() as session:
        first = await session.query("go")
        await session.query("and then?")
        key = session.id
    assert key is not None
    (info,) = transcripts.list_sessions(claude.cwd)
    assert (info.session_id, info.first_prompt, info.last_prompt) == (key, "go", "and then?")
    assert (info.cwd, info.entrypoint) == (str(claude.cwd), "sdk-pilothouse")
    problems: list[Any] = []
    messages = transcripts.get_session_messages(key, claude.cwd, on_problem=problems.append)
    assert not problems
    on_disk = [message.uuid for message in messages]
    streamed = [message.uuid for message in first.messages if isinstance(message, ph.AssistantMessage | ph.UserMessage)]
    assert set(streamed) <= set(on_disk)
    answers = [
        result.tool_use_id
        for message in messages
        if isinstance(message, ph.UserMessage)
        for result in message.tool_results
    ]
    uses = [use.id for message in messages if isinstance(message, ph.AssistantMessage) for use in message.tool_uses]
    assert sorted(answers) == sorted(uses)
    assert len(uses) == 3
    last = messages[-1]
    assert isinstance(last, ph.AssistantMessage)
    assert last.text == "fine"


async def test_a_title_and_a_tag_hold_while_the_cli_writes(agent: ph.Agent, claude: Any, model: ScriptedModel) -> None:
    async with agent.session() as session:
        await session.query("one")
        key = session.id or ""
        transcripts.rename_session(key, "Named by us", claude.cwd)
        transcripts.tag_session(key, "ours")
        await session.query("two")
    again = await agent.query("three", resume="Named by us")
    assert again.session_id == key
    assert "one" in asked(model)
    (info,) = transcripts.list_sessions(claude.cwd)
    assert (info.custom_title, info.tag, info.last_prompt) == ("Named by us", "ours", "three")
    async with agent.session(resume=key) as session:
        await session.rename("Named by the CLI")
    (info,) = transcripts.list_sessions(claude.cwd)
    assert info.custom_title == "Named by the CLI"


async def test_a_prompt_ends_the_archiving(agent: ph.Agent, claude: Any) -> None:
    """As the official SDK (0.3.330) reads it. The CLI (2.1.330) takes no notice of the mark."""
    key = (await agent.query("one")).session_id or ""
    transcripts.archive_session(key, claude.cwd)
    assert [info.archived for info in transcripts.list_sessions(claude.cwd)] == [True]
    assert (await agent.query("two", resume=key)).session_id == key
    assert [info.archived for info in transcripts.list_sessions(claude.cwd)] == [False]


@pytest.mark.requirement("L60", "E30")
async def test_a_fork_is_resumed_and_its_origin_stays(agent: ph.Agent, claude: Any, model: ScriptedModel) -> None:
    model.on("alpha", reply=[Text("I look."), ToolUse("Bash", {"command": "echo alpha-said"})], times=1)
    async with agent.session() as session:
        await session.query("alpha")
        await session.query("bravo-asked")
        key = session.id or ""
    messages = transcripts.get_session_messages(key)
    before = Path(transcripts.list_sessions(claude.cwd)[0].path).read_bytes()
    cut = next(
        place
        for place, message in enumerate(messages)
        if isinstance(message, ph.UserMessage) and message.text == "bravo-asked"
    )
    fork = transcripts.fork_session(key, up_to_message_id=messages[cut - 1].uuid)
    whole = transcripts.fork_session(key, title="All of it")
    answer = await agent.query("charlie-asked", resume=fork.session_id)
    assert answer.session_id == fork.session_id
    assert "alpha-said" in asked(model)
    assert "bravo-asked" not in asked(model)
    answer = await agent.query("delta", resume="All of it")
    assert answer.session_id == whole.session_id
    assert all(word in asked(model) for word in ("alpha-said", "bravo-asked"))
    assert "charlie-asked" not in asked(model)
    assert contents(transcripts.get_session_messages(whole.session_id))[:-2] == contents(messages)
    info = transcripts.get_session_info(key)
    assert info is not None
    assert Path(info.path).read_bytes() == before


async def test_after_a_compaction_we_read_what_the_cli_resumes(
    agent: ph.Agent, claude: Any, model: ScriptedModel
) -> None:
    async with agent.session() as session:
        await session.query("early words")
        await session.query("/compact")
        await session.query("late words")
        key = session.id or ""
        theirs = session.fork()
    async with theirs:
        await theirs.query("more")
        copy = transcripts.get_session_messages(theirs.id or "")
    messages = transcripts.get_session_messages(key)
    assert contents(copy)[:-2] == contents(messages)
    assert any(isinstance(message, ph.UserMessage) and message.is_compact_summary for message in messages)
    whole = transcripts.get_session_messages(key, include_compacted=True)
    assert "early words" in str(contents(whole))
    assert len(whole) > len(messages)
    ours = transcripts.fork_session(key)
    await agent.query("more", resume=ours.session_id)
    assert contents(transcripts.get_session_messages(ours.session_id))[:-2] == contents(messages)
    assert "late words" in asked(model)


async def test_what_is_deleted_cannot_be_resumed(agent: ph.Agent, claude: Any) -> None:
    answer = await agent.query("one")
    key = answer.session_id or ""
    transcripts.delete_session(key)
    assert transcripts.list_sessions() == []
    gone = await agent.query("two", resume=key)
    assert isinstance(gone.error, ph.SessionNotFoundError)


async def test_a_sub_agent_has_a_transcript_of_its_own(agent: ph.Agent, model: ScriptedModel) -> None:
    call = ToolUse("Agent", {"description": "look", "prompt": "find the key", "subagent_type": "general-purpose"})
    model.on("begin", reply=Steps([call], "it runs"))
    async with agent.session() as session:
        with anyio.fail_after(30):
            await session.query("begin")
            await session.tasks.wait_idle()
        key = session.id or ""
    (agent_id,) = transcripts.list_subagents(key)
    prompt, answer = transcripts.get_subagent_messages(key, agent_id)
    assert isinstance(prompt, ph.UserMessage)
    assert isinstance(answer, ph.AssistantMessage)
    assert (prompt.text, answer.text) == ("find the key", "fine")
    uses = [
        use
        for message in transcripts.get_session_messages(key)
        if isinstance(message, ph.AssistantMessage)
        for use in message.tool_uses
    ]
    assert [use.id for use in uses] == [prompt.parent_tool_use_id]


async def test_usage_is_what_the_cli_counts(agent: ph.Agent) -> None:
    async with agent.session() as session:
        for prompt in ("one", "two"):
            await session.query(prompt)
        costs = session.costs
    report = transcripts.usage_report()
    assert report.total.input_tokens == costs.input_tokens
    assert report.total.output_tokens == costs.output_tokens
    assert report.total.cost_usd == pytest.approx(costs.usd)
    assert report.sessions[0].reported_usd == pytest.approx(costs.usd)


DIRECTORIES: dict[str, Callable[[Path], Path]] = {
    "long": lambda home: home / ("x" * 100) / ("y" * 100) / "z-é_",
    "odd": lambda home: home / "Ünï cödé.dir 𝔘",
}


@pytest.mark.parametrize("kind", DIRECTORIES)
async def test_a_folder_is_where_the_cli_puts_it(agent: ph.Agent, claude: Any, config: Path, kind: str) -> None:
    directory = DIRECTORIES[kind](claude.home)
    directory.mkdir(parents=True)
    link = claude.home / "link"
    link.symlink_to(directory)
    answer = await agent.query("where am I", cwd=link)
    for place in (directory, link):
        assert [info.session_id for info in transcripts.list_sessions(place)] == [answer.session_id]
    (folder,) = (config / "projects").iterdir()
    assert folder.name == transcripts.project_key(directory)


HISTORY: list[Any] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": [{"type": "text", "text": "I look "}, {"type": "text", "text": "it up."},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}},
        {"type": "tool_use", "id": "toolu_2", "name": "mcp__db__find", "input": {"q": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "gone", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "words"}]},
        {"type": "text", "text": "And this?"}]},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "image", "source":
        {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}}]},
    {"role": "assistant", "content": "  A dot.\n"},
]  # fmt: skip


def sent_messages(model: ScriptedModel) -> list[Any]:
    """The messages of the last request, without what the CLI adds itself."""
    sent: list[Any] = []
    for message in model.requests[-1].messages:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        blocks = [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]
        blocks = [block for block in blocks if not str(block.get("text")).startswith("<system-reminder>")]
        if blocks and message["role"] != "system":
            sent.append({"role": message["role"], "content": blocks})
    return sent


def as_blocks(history: list[Any]) -> list[Any]:
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in history
    ]


@pytest.mark.parametrize("where", ["disk", "store"])
async def test_a_session_begins_with_messages_of_ones_own(
    agent: ph.Agent, claude: Any, model: ScriptedModel, where: str
) -> None:
    if where == "disk":
        key = transcripts.write_history(HISTORY, claude.cwd)
    else:
        store = stores.MemoryStore()
        key = await stores.StoredSessions(store, directory=claude.cwd).write_history(HISTORY)
        agent = agent.with_options(session_store=store)
    async with agent.session(resume=key) as session:
        assert (await session.query("Who am I?")).text == "fine"
        assert session.id == key
        expected = [*as_blocks(HISTORY), {"role": "user", "content": [{"type": "text", "text": "Who am I?"}]}]
        assert sent_messages(model) == expected
        await session.query("And then?")
    answer = {"role": "assistant", "content": [{"type": "text", "text": "fine"}]}
    assert sent_messages(model)[: len(HISTORY) + 2] == [*expected, answer]


async def test_the_model_of_a_session_with_a_history_is_that_of_its_options(
    agent: ph.Agent, claude: Any, model: ScriptedModel
) -> None:
    key = transcripts.write_history(HISTORY, claude.cwd)
    await agent.query("one")
    await agent.query("two", resume=key)
    first, second = (request.model for request in model.requests)
    assert first == second


async def read_until_tool(query: ph.Query[Any]) -> None:
    async for message in query:
        if isinstance(message, ph.AssistantMessage) and message.tool_uses:
            return


async def test_words_given_to_a_turn_are_read_back(agent: ph.Agent, model: ScriptedModel, claude: Any) -> None:
    go = claude.home / "go"
    wait = f"until [ -e {go} ]; do sleep 0.02; done"
    model.on("go", reply=Steps([ToolUse("Bash", {"command": wait})], "done"))
    store = stores.MemoryStore()
    async with agent.session(session_store=store) as session:
        async with session.query("go") as query:
            await read_until_tool(query)
            first = await query.steer("only the unit tests")
            second = await query.steer([{"type": "text", "text": "as here"}, ph.image(PNG)])
            go.touch()
            assert [await each.outcome() for each in (first, second)] == ["taken", "taken"]
            await query.result()
        assert (await session.query("and then?")).text == "fine"
        key = session.id or ""
    messages = transcripts.get_session_messages(key, claude.cwd)
    said = [message.text for message in messages if isinstance(message, ph.UserMessage)]
    assert [text for text in said if text] == ["go", "only the unit tests", "as here", "and then?"]
    words = [message for message in messages if isinstance(message, ph.UserMessage) and "attachment" in message.raw]
    assert [each.raw["attachment"]["source_uuid"] for each in words] == [first.id, second.id]
    assert [block.type for block in words[1].content] == ["text", "image"]
    places = [messages.index(each) for each in words]
    assert isinstance(messages[places[0] - 1], ph.UserMessage)  # the result of the tool
    assert isinstance(messages[places[1] + 1], ph.AssistantMessage)

    stored = await stores.StoredSessions(store, directory=claude.cwd).messages(key)
    assert [message.uuid for message in stored] == [message.uuid for message in messages]
    assert "> only the unit tests" in transcripts.export_session(key)
    fork = transcripts.fork_session(key)
    assert fork.messages == len(messages)
    assert contents(transcripts.get_session_messages(fork.session_id)) == contents(messages)
    async with agent.session(resume=fork.session_id) as session:
        await session.query("what did I say?")
    assert asked(model).count("only the unit tests") == 1


async def test_words_of_an_interrupted_turn_are_read_once(agent: ph.Agent, model: ScriptedModel, claude: Any) -> None:
    model.on("go", reply=Steps([ToolUse("Bash", {"command": "tail -f /dev/null"})], "done"))
    async with agent.session() as session:
        async with session.query("go") as query:
            await read_until_tool(query)
            steering = await query.steer("only the unit tests")
            await query.interrupt()
            assert await steering.outcome() == "next_turn"
            await query.result()
        key = session.id or ""
    messages = transcripts.get_session_messages(key, claude.cwd)
    texts = [message.text for message in messages if isinstance(message, ph.UserMessage)]
    assert texts.count("only the unit tests") == 1
