"""Programs that use a host: sessions of pilothouse over it, with the fake CLI and the real one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from served_host import TOKEN, Program, Served

import pilothouse as ph
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing import FakeCLI, ScriptedModel, ToolUse

pytestmark = pytest.mark.anyio

MakeHost = Callable[..., Served]


def over(served: Served, **settings: Any) -> ph.Agent:
    return ph.Agent(transport=lambda: WebSocketTransport(served.url, token=TOKEN), **settings)


@pytest.mark.requirement("E84")
async def test_a_session_over_a_host(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello").text("Again") as fake:
        served = serve_host(cli=fake.path)
        async with over(served, model="opus", system_prompt="x" * 20_000).session() as session:
            assert (await session.query("hi")).text == "Hello"
            assert (await session.query("more")).text == "Again"
            [hosted] = served.host.sessions
            assert hosted.record.conversation
        with anyio.fail_after(10):
            while served.host.sessions:  # `close` of the client forgets it
                await anyio.sleep(0.01)
        [call] = fake.calls
        assert "--model=opus" in call.argv
        assert any(argument.startswith("--system-prompt-file=") for argument in call.argv)
        assert call.env.get("HOME") == os.environ["HOME"]


@pytest.mark.requirement("E84")
async def test_a_session_goes_on_when_the_host_was_killed(tmp_path: Path) -> None:
    with FakeCLI().text("one") as fake:
        first = Program(tmp_path, fake.path)
        served = await anyio.to_thread.run_sync(first.__enter__)
        try:
            agent = over(served)
            async with agent.session() as session:
                assert (await session.query("hi")).text == "one"
                name = session.id
                await anyio.to_thread.run_sync(first.kill)
                second = Program(tmp_path, fake.path, "--port", str(served.port))
                await anyio.to_thread.run_sync(second.__enter__)
                try:
                    with anyio.fail_after(20):
                        while session.state == "idle":  # until the client has heard how its session ended
                            await anyio.sleep(0.01)
                    assert session.state == "broken"
                    assert (await session.query("ho")).text == "one"
                    assert session.restarts == 1
                finally:
                    await session.close()
                    await anyio.to_thread.run_sync(second.__exit__)
        finally:
            await anyio.to_thread.run_sync(first.__exit__)
        assert [call.prompts for call in fake.calls] == [["hi"], ["ho"]]
        assert f"--resume={name}" in fake.calls[1].argv


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_the_real_cli_behind_a_host(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0), idle_seconds=60)
    scripted_model.reply(ToolUse("Bash", {"command": "touch over-there; pwd"}))
    scripted_model.reply("done")
    scripted_model.reply("resumed")
    asked: list[str] = []

    def allow(request: Any) -> bool:
        asked.append(request.tool_name)
        return True

    async with over(served, can_use_tool=allow, tools=["Bash"]).session() as session:
        result = await session.query("Run it")
        assert result.text == "done"
        assert asked == ["Bash"]
        assert (tmp_path / "work" / "over-there").exists()
        name = session.id
    # What was said is kept by the CLI on the host: REST goes on with it.
    options = {"resume": name, "tools": [], "setting_sources": []}
    status, made = await anyio.to_thread.run_sync(
        lambda: served.request("POST", "/v1/sessions", {"options": options, "prompt": "And?"})
    )
    assert status == 201, made
    with anyio.fail_after(20):
        while not (answer := served.host.get(made["id"]).describe())["last_result"]:
            await anyio.sleep(0.02)
    assert answer["last_result"]["text"] == "resumed"
