"""What a session of the real CLI says that it has loaded."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse as ph
from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

OWN = {"HOME", "CLAUDE_CONFIG_DIR"}


@pytest.mark.parametrize("isolation", ["strict", None])
async def test_a_session_reports_what_it_has_loaded(claude: Any, scripted_model: ScriptedModel, isolation: Any) -> None:
    scripted_model.default = "done"
    agents = claude.cwd / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "stranger.md").write_text("---\nname: stranger\ndescription: of the project\n---\nHello")
    env = scripted_model.env(max_retries=0)
    if isolation is not None:
        env = {name: value for name, value in env.items() if name not in OWN}

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    settings: dict[str, Any] = {"env": env, "inherit_env": False, "tools": ["Read"], "custom_tools": [add]}
    async with ph.session(cli=claude.path, cwd=claude.cwd, isolation=isolation, **settings) as session:
        assert session.info.isolation_report() is None
        await session.query("go")
        report = session.info.isolation_report()
        assert report is not None
        assert report.mcp_servers == ("tools",)
        assert "Read" in report.tools
        assert report.unexpected == (() if isolation else ("agent stranger",))
        await session.clear()
        await session.query("again")
        again = session.info.isolation_report()
    assert again is not None
    assert again.unexpected == report.unexpected
