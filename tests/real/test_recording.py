"""The real CLI over its transports: as it is, recorded, and replayed with neither the CLI nor a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilothouse.client import Agent
from pilothouse_testing import Cassette, Player, Recorder, ScriptedModel, Steps, Text, ToolUse
from pilothouse_testing.cassettes.playback import diff_cassettes
from pilothouse_testing.conformance import AgentSuite, local_settings

pytestmark = pytest.mark.real_cli


@pytest.mark.requirement("E32", "E38", "R37")
class TestRecordedAndReplayed(AgentSuite):
    """Each test runs twice: recorded, and again over the recording, with no executable and the model gone."""

    @pytest.fixture(autouse=True)
    def _place(self, real_cli: str, tmp_path: Path) -> None:
        self.cli, self.path = real_cli, tmp_path / "run.jsonl"
        self.player: Player | None = None

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        if self.player is None:
            return {**local_settings(self.cli, model), "transport": Recorder(self.path)}
        return {"cli": "/nowhere/claude", "cwd": str(self.path.parent), "inherit_env": False, "transport": self.player}


def recorded_and_replayed(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def run(self: TestRecordedAndReplayed, **fixtures: Any) -> None:
        model: ScriptedModel = fixtures["scripted_model"]
        key = model.env()["ANTHROPIC_API_KEY"]
        await test(self, **fixtures)
        model.assert_done()
        asked = len(model.requests)
        model.stop()
        self.player = Player(self.path)
        if "agent" in fixtures:
            fixtures["agent"] = Agent(**self.settings(model))
        await test(self, **fixtures)
        self.player.check_complete()
        assert len(model.requests) == asked
        assert key not in self.path.read_text()

    return run


for name, function in list(vars(AgentSuite).items()):
    if name.startswith("test_"):
        setattr(TestRecordedAndReplayed, name, recorded_and_replayed(function))


@pytest.mark.anyio
async def test_two_runs_of_the_real_cli_record_the_same(real_cli: str, tmp_path: Path) -> None:
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl", tmp_path / "third.jsonl"]
    for path, word in zip(paths, ("ahoy", "ahoy", "goodbye"), strict=True):
        with ScriptedModel() as model:
            call = ToolUse("Bash", {"command": "echo ahoy", "description": "d"})
            model.on("Run it", reply=Steps([Text("Here."), call], word))
            settings = local_settings(real_cli, model)
            async with Agent(transport=Recorder(path), allowed_tools=["Bash"], **settings).session() as session:
                assert (await session.query("Run it")).text == word
    first, second, third = map(Cassette.load, paths)
    assert diff_cassettes(first, second) == ""
    reported = diff_cassettes(first, third).splitlines()
    assert '-  "result": "ahoy",' in reported
    assert '+  "result": "goodbye",' in reported
    assert len([line for line in reported if line[:2] in ("- ", "+ ")]) == 6  # as a delta, a message, and the result
