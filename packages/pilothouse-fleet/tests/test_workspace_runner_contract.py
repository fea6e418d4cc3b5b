"""The contract of a runner, kept by the one that gives attempts their directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_suite import RunnerSuite, make_attempt

from pilothouse.client import Agent
from pilothouse.errors import UsageError
from pilothouse_fleet import AgentRunner, RunDirectory, Runner, WorkspaceRunner
from pilothouse_fleet.run import RunState
from pilothouse_testing import FakeCLI


class Standing:
    """A workspace whose directories are always there: a session that is to go on may do so."""

    has_patches = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.given: list[RunDirectory] = []

    async def open(self) -> None: ...

    async def make(self, key: str, *, is_resumed: bool) -> RunDirectory:
        self.given.append(RunDirectory(self._path, self._path, is_new=False))
        return self.given[-1]

    async def release(self, run_directory: RunDirectory, state: RunState) -> None:
        self.given.remove(run_directory)

    async def patch(self, run_directory: RunDirectory, target: Path) -> None: ...


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
                await runner.run(make_attempt(settings={"model": "opus", "cwd": "pkg"}))
                with pytest.raises(UsageError, match="has its own cwd"):
                    await runner.run(make_attempt(settings={"cwd": str(tmp_path)}))
            [call] = fake.calls
        assert Path(call.cwd) == tmp_path / "pkg"
        assert any("opus" in word for word in call.argv)
        assert not self._standing.given, "all are given up"
