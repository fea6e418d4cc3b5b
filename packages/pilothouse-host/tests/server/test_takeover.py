"""A session of a host goes from one client to another in the middle of a turn, on the real CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from served_host import TOKEN, MakeHost, Served

import pilothouse as ph
from pilothouse.errors import RemoteError
from pilothouse_remote import WebSocketTransport
from pilothouse_testing import ScriptedModel, Steps, ToolUse

LIMIT = 60.0

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture
def served(serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel) -> Served:
    environ = scripted_model.env(max_retries=0)
    return serve_host(cli=str(real_cli), roots=(str(scripted_model.home),), environ=environ)


def at(served: Served, **how: Any) -> WebSocketTransport:
    return WebSocketTransport(served.url, token=TOKEN, **how)


async def result_of(messages: Any) -> ph.ResultMessage:
    async for message in messages:
        if isinstance(message, ph.ResultMessage):
            return message
    raise AssertionError("the session ended")


@pytest.mark.requirement("E86")
async def test_a_pending_permission_is_answered_by_the_client_that_takes_over(
    served: Served, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply(Steps([ToolUse("Bash", {"command": "touch it", "description": "d"})], "Done."))
    scripted_model.reply("And on.")
    asked, failed = anyio.Event(), anyio.Event()
    allowed: list[str] = []

    async def never(request: ph.PermissionRequest) -> ph.Deny:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    def allow(request: ph.PermissionRequest) -> ph.Allow:
        allowed.append(request.tool_name)
        return ph.Allow()

    async def ask(session: ph.Session) -> None:
        with pytest.raises(RemoteError) as caught:
            await session.query("Touch it.")
        assert caught.value.code == "replaced"
        failed.set()

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as group:
            first = at(served)
            before = ph.Agent(can_use_tool=never).session(transport=first)
            await before.start()
            group.start_soon(ask, before)
            await asked.wait()
            assert first.session is not None
            after = ph.Agent(can_use_tool=allow).session(transport=at(served, session=first.session, take_over=True))
            messages = after.messages()
            await after.start()
            assert after.id == before.id
            assert (await result_of(messages)).result == "Done."
            assert allowed == ["Bash"]
            await failed.wait()
            assert (await after.query("Go on.")).text == "And on."
            await after.close()
            await before.close()


@pytest.mark.requirement("E86")
async def test_an_answer_without_a_client_reaches_the_next_one(
    served: Served, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.reply(
        Steps([ToolUse("Bash", {"command": "while ! test -e go; do sleep 0.02; done"})], "While away.")
    )
    scripted_model.reply("Welcome back.")
    with anyio.fail_after(LIMIT):
        agent = ph.Agent(allowed_tools=["Bash"])
        before = agent.session(transport=at(served))
        await before.start()
        began, found_as = anyio.Event(), ""

        async def ask() -> None:
            async for message in before.query("Wait for it."):
                if isinstance(message, ph.AssistantMessage):
                    began.set()

        async with anyio.create_task_group() as group:

            async def quietly() -> None:
                with pytest.raises(ph.SessionClosedError):
                    await ask()

            group.start_soon(quietly)
            await began.wait()
            found_as = await before.detach()
        (scripted_model.home / "go").touch()
        while len(scripted_model.requests) < 2:
            await anyio.sleep(0.02)
        after = agent.session(transport=at(served, session=found_as))
        messages = after.messages()
        async with after:
            assert (await result_of(messages)).result == "While away."
            assert (await after.query("Back.")).text == "Welcome back."
