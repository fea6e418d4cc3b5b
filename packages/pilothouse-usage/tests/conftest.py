"""An agent on the real CLI whose scripted model starts sub-agents and calls tools of an MCP server."""

from __future__ import annotations

from typing import Any

import pytest
from delegations import add

import pilothouse as ph
from pilothouse_testing import ScriptedModel


@pytest.fixture
def anyio_backend() -> str:
    """The real CLI takes its time: asyncio alone."""
    return "asyncio"


@pytest.fixture
def agent(real_cli: str, scripted_model: ScriptedModel) -> ph.Agent:
    cwd = scripted_model.home / "project"
    cwd.mkdir()
    env: dict[str, Any] = {"env": scripted_model.env(max_retries=0), "inherit_env": False}
    return ph.Agent(
        cli=real_cli,
        cwd=cwd,
        tools=["Agent", "Bash"],
        custom_tools=[add],
        permission_mode="bypassPermissions",
        agents={"looker": {"description": "looks", "prompt": "Look.", "model": "haiku"}},
        **env,
    )
