"""The real CLI, asked through `claude_agent_sdk` as a program has it: settings come from the environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from process_checks import find_processes

from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_testing import ScriptedModel

MAX_SECONDS = 60.0


class Program:
    """What a program does with the package, on the real CLI and a scripted model."""

    def __init__(self, cli: str, model: ScriptedModel) -> None:
        self.model = model
        self.cli = cli
        self.cwd = model.home / "project"
        self.cwd.mkdir()

    def script(self, *answers: Any) -> None:
        for answer in answers:
            self.model.reply(answer)

    def options(self, **settings: Any) -> sdk.ClaudeAgentOptions:
        values: dict[str, Any] = {"cli_path": self.cli, "cwd": self.cwd, **settings}
        return sdk.ClaudeAgentOptions(**values)

    async def ask(self, prompt: Any = "go", **settings: Any) -> list[Any]:
        with anyio.fail_after(MAX_SECONDS):
            return [message async for message in sdk.query(prompt=prompt, options=self.options(**settings))]

    def client(self, **settings: Any) -> sdk.ClaudeSDKClient:
        return sdk.ClaudeSDKClient(self.options(**settings))

    def processes(self) -> list[int]:
        """Pids of everything that runs with the home of this test."""
        return find_processes(f"HOME={self.model.home}")

    async def gone(self) -> None:
        """Wait, bounded, until nothing is left of the CLI."""
        with anyio.fail_after(20):
            while self.processes():
                await anyio.sleep(0.02)


@pytest.fixture
def program(real_cli: str, scripted_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    if sys.platform != "linux":
        pytest.skip("finds the processes of a test in /proc")
    for name, value in scripted_model.env(max_retries=0).items():
        monkeypatch.setenv(name, value)
    made = Program(real_cli, scripted_model)
    yield made
    assert not made.processes()
