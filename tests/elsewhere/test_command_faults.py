"""The real CLI behind a plain command: what travels, and that no end of either side leaves anything behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from far_side import PLAIN, command_lines, processes, supervisors, until_gone
from served_host import TOKEN, Served

import pilothouse as ph
from pilothouse_host import Host, HostSettings
from pilothouse_remote import CommandTransport, on_host
from pilothouse_testing import Gate, Pause, ScriptedModel, Text
from pilothouse_testing.conformance import AgentSuite
from pilothouse_transcripts.stores import MemoryStore

pytestmark = [
    pytest.mark.real_cli,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
KEY = "sk-ant-far-side-0123456789"


@pytest.fixture
def far_tmp(tmp_path: Path) -> Path:
    place = tmp_path / "far"
    place.mkdir()
    return place


@pytest.fixture
def settings(
    real_cli: str, scripted_model: ScriptedModel, far_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Settings of an agent elsewhere, whose supervisors write to `far_tmp` only."""
    monkeypatch.setenv("TMPDIR", str(far_tmp))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return {
        "transport": lambda: CommandTransport(PLAIN, cli=real_cli),
        "env": scripted_model.env(max_retries=0) | {"PH_TEST_NEAR": str(far_tmp)},
        "cwd": str(scripted_model.home),
    }


class TestAgentBehindACommand(AgentSuite):
    @pytest.fixture(autouse=True)
    def _cli(self, real_cli: str) -> None:
        self._path = real_cli

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        transport = lambda: CommandTransport(PLAIN, cli=self._path)  # noqa: E731
        return {"transport": transport, "env": model.env(max_retries=0), "cwd": str(model.home)}


async def test_large_settings_travel_and_keys_are_nowhere(
    settings: dict[str, Any], scripted_model: ScriptedModel, far_tmp: Path
) -> None:
    prompt = "Be brief. " * 105_000
    shown: list[str] = []
    has_key: list[int] = []

    def answer(_: Any) -> str:
        shown.append(command_lines())
        has_key.extend(processes(f"ANTHROPIC_API_KEY={KEY}"))
        return "Done."

    scripted_model.default = answer
    settings["env"]["ANTHROPIC_API_KEY"] = KEY
    server = ph.StdioServer(command="true", env={"SERVER_TOKEN": "server-secret-987654"})
    result = await ph.query(
        "Hi", system_prompt=prompt, mcp_servers={"none": server}, settings='{"includeCoAuthoredBy": false}', **settings
    )
    assert result.text == "Done."
    assert prompt.strip() in scripted_model.requests[-1].system_text
    assert has_key, "it is in the environment of the child"
    assert KEY not in shown[0]
    assert "server-secret-987654" not in shown[0]
    until_gone("PH_TEST_NEAR=" + str(far_tmp), str(far_tmp))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_host_with_children_elsewhere(
    settings: dict[str, Any], scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    """The key is the host's, the limit the client's; nothing else of the host's environment travels."""
    scripted_model.default = "Aye."
    host = Host(
        HostSettings(journal=tmp_path / "host.sqlite", roots=(settings["cwd"],)),
        environ=settings["env"],
        make_transport=settings["transport"],
    )
    served = Served(lambda: host).start()
    try:
        over = on_host(f"ws://127.0.0.1:{served.port}", token=TOKEN)
        limit = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1234"}
        result = await ph.query("Are you there?", transport=over, cwd=settings["cwd"], env=limit)
        assert result.text == "Aye."
        assert scripted_model.requests[-1].body["max_tokens"] == 1234
    finally:
        served.stop()


def first_shell(near: str) -> int:
    (relay,) = supervisors("relay", near)
    return int(Path(f"/proc/{relay}/stat").read_text().rpartition(")")[2].split()[1])


def kill_client_and_watch(near: str) -> None:
    """Leave only the relay to notice that the stream has ended."""
    os.kill(supervisors("watch", near)[0], signal.SIGKILL)
    os.killpg(os.getpgid(first_shell(near)), signal.SIGKILL)


FAULTS: dict[str, Callable[[str], None]] = {
    "first shell": lambda near: os.kill(first_shell(near), signal.SIGKILL),
    "relay": lambda near: os.kill(supervisors("relay", near)[0], signal.SIGKILL),
    "client and watch": kill_client_and_watch,
    "client": lambda near: os.killpg(os.getpgid(first_shell(near)), signal.SIGKILL),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("victim", FAULTS)
async def test_whatever_is_killed_nothing_is_left(
    settings: dict[str, Any], scripted_model: ScriptedModel, far_tmp: Path, victim: str
) -> None:
    gate = Gate()
    try:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(ph.CLIExitedError):
                    await ph.query("Go on.", **settings)

            scripted_model.default = lambda _: [Text("A "), Pause(gate), Text("ship.")]
            group.start_soon(ask)
            await anyio.to_thread.run_sync(gate.wait_reached, 60)
            near = str(far_tmp)
            assert processes(f"PH_TEST_NEAR={near}")
            FAULTS[victim](near)
            await anyio.to_thread.run_sync(until_gone, f"PH_TEST_NEAR={near}", near)
    finally:
        gate.open()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_query_that_is_given_up_leaves_nothing(
    settings: dict[str, Any], scripted_model: ScriptedModel, far_tmp: Path, how: str
) -> None:
    gate = Gate()
    scripted_model.default = lambda _: [Text("A "), Pause(gate), Text("ship.")]
    try:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    with pytest.raises(ph.QueryTimeout):
                        await ph.query("Go on.", timeout=8, **settings)

                group.start_soon(ask)
                await anyio.to_thread.run_sync(gate.wait_reached, 60)
                if how == "cancel":
                    scope.cancel()
        await anyio.to_thread.run_sync(until_gone, f"PH_TEST_NEAR={far_tmp}", str(far_tmp))
    finally:
        gate.open()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversation_goes_to_another_place_by_a_store(
    settings: dict[str, Any], scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.default = "Aye."
    store = MemoryStore()
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()

    def at(home: Path) -> dict[str, Any]:
        env = settings["env"] | {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "config")}
        return settings | {"env": env, "session_store": store}

    first = await ph.query("My name is Alice.", **at(homes[0]))
    assert not list(homes[1].iterdir())
    second = await ph.query("What is my name?", resume=first.session_id, **at(homes[1]))
    assert second.session_id == first.session_id
    assert "My name is Alice." in str(scripted_model.requests[-1].body["messages"])
    third = await ph.query("And now?", resume=first.session_id, **at(homes[0]))
    assert third.is_success
    assert "What is my name?" in str(scripted_model.requests[-1].body["messages"]), (
        "the store knows more than this place"
    )
