"""`isolation="strict"`: what the child gets, and that its home goes with it. The real CLI: tests/real."""

from __future__ import annotations

import gc
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cli_processes import ended
from process_checks import until

import pilothouse as ph
from pilothouse.options.isolation import BUILT_IN_AGENTS, INHERITED_VARIABLES, inherit_variables, isolation_report
from pilothouse.transports.watchdog import watchdog
from pilothouse_testing import FakeCLI, frames

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="looks at modes of files")]

KEY = "sk-ant-given-to-the-options"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where homes are made in this test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


def homes(place: Path) -> list[Path]:
    return list(place.glob("pilothouse-isolated-*"))


def test_what_is_kept_of_an_environment() -> None:
    ours = {"PATH": "/bin", "LC_CTYPE": "C", "LANG": "C", "https_proxy": "p", "HTTPS_PROXY": "P", "SSL_CERT_FILE": "c"}
    others = {
        "HOME": "/home/me",
        "ANTHROPIC_API_KEY": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "CLAUDE_CONFIG_DIR": "/c",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "XDG_CONFIG_HOME": "/x",
        "GITHUB_TOKEN": "g",
        "PATHS": "no",
        "MY_LANG": "no",
        "path": "no",
    }
    assert inherit_variables(ours | others) == ours
    assert inherit_variables({name.replace("*", "ALL"): "x" for name in INHERITED_VARIABLES}).keys() == {
        n.replace("*", "ALL") for n in INHERITED_VARIABLES
    }


async def test_the_child_gets_a_home_of_its_own_and_a_list_of_variables(
    fake: FakeCLI, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.text("Hello")
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_inherited")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-inherited")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    seen: list[tuple[str, int]] = []
    guarded: list[bool] = []

    def look(message: ph.Message) -> None:
        for home in homes(temporary):
            guarded.append(str(home) in watchdog._entries)  # removed even when this process is killed
            for path in (home, home / ".claude"):
                seen.append((path.name.partition("-")[0], stat.S_IMODE(path.stat().st_mode)))

    result = await ph.query("go", cli=fake.path, isolation="strict", api_key=KEY, env={"OWN": "1"}, on_message=look)
    assert result.text == "Hello"
    (call,) = fake.calls
    home = Path(call.env["HOME"])
    assert home.parent == temporary
    assert guarded
    assert all(guarded)
    assert {("pilothouse", 0o700), (".claude", 0o700)} == set(seen)
    assert call.env["CLAUDE_CONFIG_DIR"] == str(home / ".claude")
    assert all(value.startswith(str(home)) for name, value in call.env.items() if name.startswith("XDG_"))
    assert (call.env["ANTHROPIC_API_KEY"], call.env["OWN"], call.env["LC_ALL"]) == (KEY, "1", "C.UTF-8")
    assert "GITHUB_TOKEN" not in call.env
    assert "sk-ant-inherited" not in call.env.values()
    for flag in ("--setting-sources=", "--strict-mcp-config", "--no-session-persistence"):
        assert flag in call.argv
    assert homes(temporary) == []
    assert str(home) not in watchdog._entries


async def test_sessions_on_disk_can_be_asked_for(fake: FakeCLI) -> None:
    fake.text("Hello")
    await ph.query("go", cli=fake.path, isolation="strict", persist_session=True)
    assert "--no-session-persistence" not in fake.calls[0].argv


async def test_nothing_of_the_environment_where_nothing_is_inherited(fake: FakeCLI) -> None:
    fake.text("Hello")
    path = {"PATH": os.environ["PATH"]}
    await ph.query("go", cli=fake.path, isolation="strict", inherit_env=False, env=path)
    assert "TMPDIR" not in fake.calls[0].env
    assert "HOME" in fake.calls[0].env


async def test_the_home_goes_when_the_start_fails(temporary: Path, tmp_path: Path) -> None:
    broken = tmp_path / "claude"
    broken.write_bytes(b"\x7fELF, but not really")
    broken.chmod(0o755)
    with pytest.raises(ph.CLIStartError):
        await ph.query("go", cli=broken, isolation="strict")
    assert homes(temporary) == []
    with pytest.raises(ph.CLINotFoundError):
        await ph.query("go", cli=tmp_path / "none", isolation="strict")
    assert homes(temporary) == []


async def test_a_place_for_it_that_cannot_be_written_to_is_reported(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **named: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(ph.CLIStartError, match="No space left"):
        await ph.query("go", cli=fake.path, isolation="strict")


async def test_the_home_goes_when_the_query_is_dropped(fake: FakeCLI, temporary: Path) -> None:
    fake.expect("user").emit(frames.init()).hang()
    query = ph.query("go", cli=fake.path, isolation="strict")
    await anext(aiter(query))
    assert len(homes(temporary)) == 1
    del query
    gc.collect()
    await ended(fake)
    await until(lambda: not homes(temporary))


async def test_the_home_goes_when_the_child_crashes(fake: FakeCLI, temporary: Path) -> None:
    fake.expect("user").emit(frames.init()).kill()
    with pytest.raises(ph.CLIExitedError):
        await ph.query("go", cli=fake.path, isolation="strict")
    assert homes(temporary) == []


async def test_a_session_keeps_its_home_over_a_crash(temporary: Path) -> None:
    def child(io: Any) -> None:
        while True:
            prompt = io.expect("user")["message"]["content"]
            io.emit({"type": "system", "subtype": "init", "session_id": "s"})
            if prompt == "crash":
                io.kill()
            io.emit({"type": "result", "subtype": "success", "is_error": False, "result": "re: " + prompt})

    with FakeCLI.from_function(child) as fake:
        async with ph.session(cli=fake.path, isolation="strict") as session:
            await session.query("one")
            (home,) = homes(temporary)
            with pytest.raises(ph.CLIExitedError):
                await session.query("crash")
            assert homes(temporary) == [home]
            await session.query("two")
            fork = session.fork()
            async with fork:
                await fork.query("three")
                await session.close()
                assert homes(temporary) == [home]
        assert homes(temporary) == []
        await session.close()
        assert [call.env["HOME"] for call in fake.calls] == [str(home)] * 3
        assert all("--no-session-persistence" not in call.argv for call in fake.calls)


async def test_agents_do_not_share_a_home(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    agent = ph.Agent(cli=fake.path, isolation="strict")
    await agent.query("one")
    await agent.query("two")
    assert len({call.env["HOME"] for call in fake.calls}) == 2


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"setting_sources": ["user"]}, "loads no settings files"),
        ({"config_dir": "/c"}, "its own directory"),
        ({"env": {"HOME": "/h"}}, "omit them from `env`"),
        ({"env": {"CLAUDE_CONFIG_DIR": "/c"}}, "omit them from `env`"),
    ],
)
def test_what_would_break_isolation_is_refused(settings: Any, reported: str) -> None:
    with pytest.raises(ph.OptionsError, match=reported):
        ph.Options(isolation="strict", **settings)
    assert ph.Options(isolation="strict", env={"HOME": None}, setting_sources=[])


def test_other_options_do_not_loosen_it() -> None:
    options = ph.Options(isolation="strict", skills="all", strict_mcp_config=False)
    assert {"--setting-sources=", "--strict-mcp-config"} <= set(options.to_cli_args())


def init(**facts: Any) -> ph.InitMessage:
    usual: dict[str, Any] = {"agents": sorted(BUILT_IN_AGENTS), "plugins": [ph.messages.PluginInfo("p", "builtin")]}
    return ph.InitMessage(**{**usual, **facts})


def test_a_report_names_unrequested_parts() -> None:
    server = ph.messages.McpServerInfo
    options = ph.Options(
        isolation="strict",
        mcp_servers={"mine": {"command": "x"}},
        agents={"helper": {"description": "d", "prompt": "p"}},
        custom_tools=[abs],
    )
    report = isolation_report(
        [
            init(
                tools=["Bash"],
                agents=["Plan", "helper", "stranger"],
                mcp_servers=[server("mine"), server("tools"), server("theirs")],
                plugins=[ph.messages.PluginInfo("p", "builtin"), ph.messages.PluginInfo("q", "/q")],
                api_key_source="/login managed key",
                memory_paths={"auto": "/m"},
            )
        ],
        options,
    )
    assert report is not None
    assert report.unexpected == (
        "MCP server theirs",
        "plugin q",
        "agent stranger",
        "API key from /login managed key",
    )
    assert "MCP server theirs" in str(report)
    assert (report.tools, report.agents, report.plugins) == (("Bash",), ("helper", "stranger"), ("q",))
    quiet = isolation_report([init()], options)
    assert quiet is not None
    assert quiet.unexpected == ()
    assert isolation_report([], options) is None
    in_a_file = ph.Options(mcp_servers="servers.json", plugins=["q"])
    assert isolation_report([init(mcp_servers=[server("any")], agents=["any"])], in_a_file).unexpected == ()  # type: ignore[union-attr]
