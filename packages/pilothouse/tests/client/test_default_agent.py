"""What holds when nothing is set, what one keyword sets, and that the default agent answers for the module."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from process_checks import is_dead

import pilothouse as ph
from pilothouse import sync
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import FakeCLI, as_default, frames, mock_transport

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _own_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.chdir(tmp_path)
    with as_default():
        yield


async def never_answers(peer: MemoryPeer) -> None:
    while (frame := await peer.read_frame()) is not None:
        if frame["type"] == "control_request":
            await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
        else:
            await peer.write(frames.init())


@pytest.mark.requirement("E42", "L29")
@pytest.mark.virtual_time
async def test_no_time_limit_is_built_in_and_one_line_sets_that_of_the_elixir_sdk() -> None:
    with anyio.move_on_after(100_000) as waited:
        await ph.query("go", transport=lambda: MemoryTransport(never_answers))
    assert waited.cancelled_caught
    ph.configure(timeout=300, model="sonnet")
    began = anyio.current_time()
    with pytest.raises(ph.QueryTimeout, match="300"):
        await ph.query("go", transport=lambda: MemoryTransport(never_answers))
    assert 300 <= anyio.current_time() - began < 320


@pytest.mark.requirement("E42", "E44")
async def test_flat_keywords_reach_the_child_and_nothing_else_does() -> None:
    with FakeCLI().text("fine").text("fine") as fake:
        await ph.query("go", cli=fake.path)
        await ph.query("go", cli=fake.path, model="sonnet", max_turns=3)
        bare, set_ = fake.calls
    assert not [word for word in bare.argv if word.startswith(("--model", "--max-turns"))]
    assert {"--model=sonnet", "--max-turns=3"} <= set(set_.argv)
    with pytest.raises(ph.UsageError, match="pass keywords instead"):
        ph.query("go", "sonnet")  # pyright: ignore[reportArgumentType]
    agent = ph.Agent({"model": "sonnet", "max_turns": 3}, max_turns=5)
    assert agent.options.as_dict() == {"model": "sonnet", "max_turns": 5}
    with pytest.raises(ph.OptionsError, match="did you mean 'model'"):
        ph.Agent({"modle": "sonnet"})


@pytest.mark.requirement("L1", "R36")
async def test_an_agent_hands_every_query_to_the_transport_that_it_was_given() -> None:
    made: list[MemoryTransport] = []

    def transport() -> MemoryTransport:
        made.append(mock_transport("from the transport"))
        return made[-1]

    agent = ph.Agent(transport=transport, cli="/nowhere/claude")
    assert (await agent.query("collect")).text == "from the transport"
    assert [m.type async for m in agent.query("stream")][-1] == "result"
    async with agent.session() as session:
        assert (await session.query("talk")).text == "from the transport"
    prompts = [[f["message"]["content"] for f in each.sent_frames if f["type"] == "user"] for each in made]
    assert prompts == [["collect"], ["stream"], ["talk"]]


async def _ask(ask: Callable[[str], ph.Query]) -> str:
    return (await ask("go")).text


async def _talk() -> str:
    async with ph.session() as session:
        return (await session.query("go")).text


WAYS: dict[str, Callable[[], Any]] = {
    "ph.query": lambda: anyio.run(_ask, ph.query),
    "ph.session": lambda: anyio.run(_talk),
    "ph.default_agent": lambda: anyio.run(_ask, ph.default_agent().query),
    "sync.query": lambda: sync.query("go").result().text,
    "sync.default_agent": lambda: sync.default_agent().query("go").result().text,
}


@pytest.mark.requirement("L3")
@pytest.mark.parametrize("way", WAYS)
def test_every_name_of_the_default_agent_leads_to_the_same_one(way: str) -> None:
    ph.set_default_agent(ph.Agent(transport=lambda: mock_transport("the one")))
    assert WAYS[way]() == "the one"


@pytest.mark.requirement("E63")
async def test_the_cli_of_a_session_wins_over_the_configured_one(tmp_path: Path) -> None:
    with FakeCLI().text("configured").forever() as configured, FakeCLI().text("own").forever() as own:
        ph.configure(cli=configured.path)
        async with ph.session() as session:
            assert (await session.query("go")).text == "configured"
        async with ph.session(cli=own.path) as session:
            assert (await session.query("go")).text == "own"
            assert session.pid is not None
            assert not is_dead(session.pid)
        (file := tmp_path / "pilothouse.toml").write_text('cli = "/nowhere/claude"\n')
        ph.configure(file=file)
        assert (await ph.query("go", cli=own.path)).text == "own"
        assert [len(configured.calls), len(own.calls)] == [1, 2]
