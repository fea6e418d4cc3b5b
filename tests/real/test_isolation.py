"""A hostile home and a hostile project: under `isolation="strict"` the real CLI loads nothing of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.options.isolation import isolation_report
from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

EVENTS = ("SessionStart", "UserPromptSubmit", "Stop")
OWN = {"HOME", "CLAUDE_CONFIG_DIR"}


def make_hostile(home: Path, project: Path) -> None:
    """Everything that a CLI loads from a home and a project; what is read says FOUND, what is run leaves a file."""
    hooks = {
        event: [{"matcher": "*", "hooks": [{"type": "command", "command": f"touch {home}/RAN-{event}"}]}]
        for event in EVENTS
    }
    settings = json.dumps({"hooks": hooks, "permissions": {"allow": ["Bash"]}, "env": {"FOUND": "1"}})
    for place in (home / ".claude", project / ".claude"):
        for folder in ("agents", "commands", "skills/found", "rules"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        (place / "settings.json").write_text(settings)
        (place / "CLAUDE.md").write_text("FOUND memory")
        (place / "rules" / "found.md").write_text("FOUND rule")
        (place / "commands" / "found.md").write_text("FOUND command")
        (place / "agents" / "found.md").write_text("---\nname: found\ndescription: FOUND agent\n---\nFOUND")
        (place / "skills" / "found" / "SKILL.md").write_text("---\nname: found\ndescription: FOUND skill\n---\nFOUND")
    (project / ".claude" / "settings.local.json").write_text(settings)
    for path in (project, project.parent):
        (path / "CLAUDE.md").write_text("FOUND memory")
    (project / "CLAUDE.local.md").write_text("FOUND memory")
    servers = {"found": {"command": "touch", "args": [f"{home}/RAN-mcp"]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    trusted = {str(project): {"hasTrustDialogAccepted": True, "enabledMcpjsonServers": ["found"]}}
    for place in (home / ".claude.json", home / ".claude" / ".claude.json"):
        place.write_text(json.dumps({"mcpServers": servers, "projects": trusted}))


@pytest.mark.parametrize("isolation", ["strict", None])
async def test_nothing_of_a_hostile_home_is_loaded(
    claude: Any, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, isolation: Any
) -> None:
    project = claude.home / "up" / "project"
    project.mkdir(parents=True)
    make_hostile(claude.home, project)
    model.reply("done")
    inherited = model.env(max_retries=0)
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FOUND_SECRET", "FOUND")
    needed = {name: value for name, value in inherited.items() if name.startswith(("DISABLE_", "CLAUDE_CODE_", "IS_"))}
    query = ph.query(
        "go",
        cwd=project,
        cli=claude.path,
        isolation=isolation,
        base_url=inherited["ANTHROPIC_BASE_URL"],
        api_key=inherited["ANTHROPIC_API_KEY"],
        env=needed,
    )
    result = await query
    assert result.text == "done"
    sent = json.dumps([request.body for request in model.requests])
    ran = sorted(path.name for path in claude.home.glob("RAN-*"))
    report = isolation_report(result.messages, query.options)
    assert report is not None
    if isolation is None:  # else this test would prove nothing
        assert "FOUND memory" in sent
        assert "RAN-Stop" in ran
        assert "found" in report.agents
        return
    assert "FOUND" not in sent
    assert ran == []
    assert report.unexpected == ()
    assert str(claude.home) not in "".join(map(str, report.memory_paths.values())).replace(inherited["TMPDIR"], "")
    assert not list(Path(inherited["TMPDIR"]).glob("pilothouse-isolated-*"))


async def test_a_session_goes_on_after_a_crash_in_its_own_home(claude: Any, model: ScriptedModel) -> None:
    model.reply("one")
    model.reply("two")
    env = {name: value for name, value in model.env(max_retries=0).items() if name not in OWN}
    async with claude.session(isolation="strict", env=env) as session:
        assert (await session.query("first")).text == "one"
        assert session.pid is not None
        os.kill(session.pid, 9)
        with anyio.fail_after(20):
            while session.state == "idle":
                await anyio.sleep(0.01)
        assert (await session.query("second")).text == "two"
        assert session.restarts == 1
    history = json.dumps(model.requests[-1].body)
    assert "first" in history


@pytest.mark.requirement("E76")
async def test_ps_shows_no_key_of_a_real_child(claude: Any, model: ScriptedModel) -> None:
    env = {name: value for name, value in model.env(max_retries=0).items() if name not in OWN}
    keys = {name: f"sk-ant-planted-{name}" for name in ("api", "server", "header", "settings")}
    async with claude.session(
        isolation="strict",
        env=env,
        auth_token=keys["api"],
        mcp_servers={
            "near": ph.StdioServer(command="true", env={"TOKEN": keys["server"]}),
            "far": ph.HttpServer(url="http://127.0.0.1:9", headers={"Authorization": f"Bearer {keys['header']}"}),
        },
        settings={"env": {"OTHER_TOKEN": keys["settings"]}},
    ) as session:
        command = Path(f"/proc/{session.pid}/cmdline").read_text().replace("\0", " ")
        variables = Path(f"/proc/{session.pid}/environ").read_text()
    assert [name for name, key in keys.items() if key in command] == []
    assert keys["api"] in variables


@pytest.mark.parametrize("isolation", ["strict", None])
async def test_a_session_reports_what_it_has_loaded(claude: Any, model: ScriptedModel, isolation: Any) -> None:
    model.default = "done"
    agents = claude.cwd / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "stranger.md").write_text("---\nname: stranger\ndescription: of the project\n---\nHello")
    env = model.env(max_retries=0)
    if isolation is not None:
        env = {name: value for name, value in env.items() if name not in OWN}
    async with claude.session(env=env, isolation=isolation, tools=["Read"]) as session:
        assert session.info.isolation_report() is None
        for prompt in ("go", "again"):
            await session.query(prompt)
            report = session.info.isolation_report()
            assert report is not None
            assert "Read" in report.tools
            assert report.unexpected == (() if isolation else ("agent stranger",))
            await session.clear()
