"""Sessions of programs that leave their decisions to the inbox of the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from served_host import TOKEN, MakeHost, Served, find

import pilothouse as ph
from pilothouse.errors import UsageError
from pilothouse.transports import CliTransport
from pilothouse_remote import WebSocketTransport, on_host
from pilothouse_testing import FakeCLI, ScriptedModel, Steps, ToolUse, frames

BASH: dict[str, Any] = {"tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "call_1"}
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def settle(served: Served, ask: dict[str, Any], **body: Any) -> int:
    return served.request("POST", f"/v1/sessions/{ask['session']}/asks/{ask['id']}", body)[0]


async def find_one(served: Served) -> dict[str, Any]:
    [ask] = await anyio.to_thread.run_sync(find, served)
    return ask


def inbox_of(served: Served, **settings: Any) -> Callable[[], WebSocketTransport]:
    return on_host(served.url, token=TOKEN, inbox=True, **settings)


async def ask_and_be_left(session: ph.Session) -> None:
    with pytest.raises(ph.PilothouseError):
        await session.query("hi")


@pytest.mark.parametrize(
    ("body", "decision", "expected"),
    [
        (BASH, {"decision": "allow"}, {"behavior": "allow", "updatedInput": {"command": "ls"}}),
        (BASH, {"decision": "deny", "reason": "not now"}, {"behavior": "deny", "message": "not now"}),
    ],
)
async def test_a_person_at_the_host_decides(serve_host: MakeHost, body: Any, decision: Any, expected: Any) -> None:
    fake = FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **body).emit(frames.result("done"))
    with fake:
        served = serve_host(cli=fake.path)
        agent = ph.Agent(transport=inbox_of(served))
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                async with agent.session() as session:
                    async for message in (query := session.query("hi")):
                        seen.append(type(message).__name__)
                    assert (await query.result()).text == "done"

            tasks.start_soon(run)
            ask = await find_one(served)
            assert (ask["kind"], ask["tool"], ask["session"]) == ("permission", "Bash", served.session.id)
            assert served.request("GET", f"/v1/sessions/{ask['session']}")[1]["asks"] == 1
            assert await anyio.to_thread.run_sync(lambda: settle(served, ask, **decision)) == 200
            assert await anyio.to_thread.run_sync(lambda: settle(served, ask, **decision)) == 409
        assert seen == ["InitMessage", "ResultMessage"]
        [response] = [each for each in fake.calls[0].frames if each.get("type") == "control_response"]
        assert {name: response["response"]["response"].get(name) for name in expected} == expected


async def test_an_ask_ends_with_its_session(serve_host: MakeHost) -> None:
    with FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **BASH) as fake:
        served = serve_host(cli=fake.path)
        async with anyio.create_task_group() as tasks:
            session = ph.Agent(transport=inbox_of(served)).session()
            tasks.start_soon(ask_and_be_left, session)
            ask = await find_one(served)
            assert not ask["restored"]
            await session.close()  # the one at the host as well
        assert await anyio.to_thread.run_sync(find, served, 0) == []


async def test_the_child_takes_a_request_back(serve_host: MakeHost) -> None:
    request = {"type": "control_request", "request_id": "r1", "request": {"subtype": "can_use_tool", **BASH}}
    cancelled = {"type": "control_cancel_request", "request_id": "r1"}
    with FakeCLI().expect("user").emit(frames.init(), request, cancelled, frames.result("done")) as fake:
        served = serve_host(cli=fake.path)
        async with ph.Agent(transport=inbox_of(served)).session() as session:
            assert (await session.query("hi")).text == "done"
            assert await anyio.to_thread.run_sync(find, served, 0) == []
        assert not [each for each in fake.calls[0].frames if each.get("type") == "control_response"]


async def test_the_child_uses_the_same_id_again(serve_host: MakeHost) -> None:
    request = {"type": "control_request", "request_id": "r1", "request": {"subtype": "can_use_tool", **BASH}}
    cancelled = {"type": "control_cancel_request", "request_id": "r1"}
    fake = FakeCLI().expect("user").emit(frames.init(), request, cancelled, request, request)
    with fake.expect("control_response").expect("control_response").emit(frames.result("done")):
        served = serve_host(cli=fake.path)
        async with ph.Agent(transport=inbox_of(served)).session() as session:
            query = session.query("hi")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(query.result)
                for ask in await anyio.to_thread.run_sync(find, served, 2):
                    assert await anyio.to_thread.run_sync(partial(settle, served, ask, decision="deny")) == 200
            assert (await query.result()).text == "done"


async def test_an_ask_waits_while_no_program_is_attached(serve_host: MakeHost) -> None:
    fake = FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **BASH).emit(frames.result("done"))
    with fake:
        served = serve_host(cli=fake.path)
        session = ph.Agent(transport=inbox_of(served)).session()
        kept: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_and_be_left, session)
            ask = await find_one(served)
            kept.append(await session.detach())
            assert await anyio.to_thread.run_sync(lambda: settle(served, ask, decision="allow")) == 200
        agent = ph.Agent(transport=inbox_of(served, session=kept[0], take_over=True))
        again = agent.session()
        messages = again.messages()
        async with again:
            found = await anext(each async for each in messages if isinstance(each, ph.ResultMessage))
            assert found.result == "done"


@pytest.mark.parametrize(
    "options",
    [{"can_use_tool": lambda request: True}, {"asks": ph.Asks()}, {"permission_prompts": "none"}],
    ids=lambda options: next(iter(options)),
)
async def test_only_one_decides(serve_host: MakeHost, options: Any) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        with pytest.raises(UsageError, match="inbox=True"):
            await ph.Agent(transport=inbox_of(served), **options).query("hi")
        assert served.host.sessions == []


@pytest.mark.real_cli
async def test_the_real_cli_waits_for_the_inbox(
    serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel
) -> None:
    touch = ToolUse("Bash", {"command": "touch asked", "description": "d"})
    scripted_model.reply(Steps([touch], "Done."))
    variables = scripted_model.env(max_retries=0)
    project = scripted_model.home / "project"
    project.mkdir()
    served = serve_host(cli=str(real_cli), roots=(str(project),), env=tuple(variables), make_transport=CliTransport)
    agent = ph.Agent(transport=inbox_of(served), env=variables, inherit_env=False, cwd=str(project))
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            assert (await agent.query("Make a file")).text == "Done."

        tasks.start_soon(run)
        ask = await find_one(served)
        assert (ask["title"], (project / "asked").exists()) != ("", True)
        assert await anyio.to_thread.run_sync(lambda: settle(served, ask, decision="allow")) == 200
    assert (project / "asked").exists()
