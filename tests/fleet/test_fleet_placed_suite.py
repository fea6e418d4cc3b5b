"""The contract of a runner, kept by the one that gives attempts their directories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pilothouse.client import Agent
from pilothouse.errors import UsageError
from pilothouse.fleet import AgentRunner, Place, Run, Runner, WorkspaceRunner
from pilothouse.fleet.run import RunState
from pilothouse.testing import FakeCLI
from pilothouse.testing.conformance import RunnerSuite
from pilothouse.testing.runner_suite import Heard, attempt


class Standing:
    """A workspace whose directories are always there: a session that is to go on may do so."""

    has_patches = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.given: list[Place] = []

    async def open(self, run_of: Callable[[str], Awaitable[Run | None]]) -> None: ...

    async def make(self, key: str, *, resumes: bool) -> Place:
        self.given.append(Place(self._path, self._path, is_fresh=False))
        return self.given[-1]

    async def give_up(self, place: Place, state: RunState) -> None:
        self.given.remove(place)

    async def patch(self, place: Place, target: Path) -> None: ...


class TestWorkspaceRunner(RunnerSuite):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path) -> None:
        self._standing = Standing(tmp_path)

    def make_runner(self, agent: Agent) -> Runner:
        return WorkspaceRunner(AgentRunner(agent), self._standing)

    async def test_options_of_the_attempt_win(self, tmp_path: Path) -> None:
        (tmp_path / "pkg").mkdir()
        with FakeCLI().text("Hello").forever() as fake:
            async with self.runner(fake, model="sonnet") as runner:
                await runner.run(attempt(Heard(), settings={"model": "opus", "cwd": "pkg"}))
                with pytest.raises(UsageError, match="has its own cwd"):
                    await runner.run(attempt(Heard(), settings={"cwd": str(tmp_path)}))
            [call] = fake.calls
        assert Path(call.cwd) == tmp_path / "pkg"
        assert any("opus" in word for word in call.argv)
        assert not self._standing.given, "all are given up"
