"""How children are started for somebody else, and what they get before they have said their permission mode."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.errors import OptionsError, PermissionModeError
from pilothouse.options import Invocation
from pilothouse.transports import MemoryTransport, Transport
from pilothouse.transports.memory import MemoryPeer
from pilothouse_access.on_behalf import (
    TOKEN_VARIABLE,
    ConfinedTransport,
    ConfinedTransports,
    StartRules,
    list_memory_rules,
)
from pilothouse_testing import FakeCLI, frames
from pilothouse_testing.conformance import MEMORY_PEERS, Behaviour, TransportSuite

pytestmark = pytest.mark.anyio


def invocation(*argv: str, **env: str) -> Invocation:
    return Invocation(cli="auto", argv=argv, env=env)


# The rules.


def test_what_an_invocation_leaves_open_is_decided() -> None:
    rules = StartRules(permission_mode="acceptEdits", managed_settings={"a": 1})
    made = rules.apply(invocation("--print", PATH="/bin", **{TOKEN_VARIABLE: "x"}))
    deny = f"--disallowedTools={','.join(list_memory_rules({}))}"
    added = ("--permission-mode=default", "--setting-sources=user", '--managed-settings={"a":1}', deny)
    assert made.argv == (*added, "--print")
    off = {"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}
    assert dict(made.env) == {"PATH": "/bin", **off}
    assert made.explicit_env == off  # for children elsewhere
    chosen = {"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "0"}  # by the author of the agent
    kept = rules.apply(invocation(**chosen))
    assert (dict(kept.env), kept.argv) == (chosen, added[:3])
    assert rules.apply(made) == made
    given = ("--permission-mode=plan", "--setting-sources=")
    assert StartRules().apply(invocation(*given)).argv == (deny, *given)
    plain = StartRules(setting_sources=None, memory=True).apply(invocation())
    assert (plain.argv, dict(plain.env)) == (("--permission-mode=default",), {})
    assert StartRules(permission_mode="plan").apply(invocation()).argv[0] == "--permission-mode=plan"


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("--permission-mode=auto",), "permission_mode"),
        (("--permission-mode=auto", "--permission-mode=plan"), "permission_mode"),
        (("--permission-mode=ofTomorrow",), "permission_mode"),
        (("--setting-sources=user,project",), "setting_sources"),
        (("--setting-sources=user", "--setting-sources= local"), "setting_sources"),
    ],
)
def test_what_is_above_the_rules_is_refused(argv: tuple[str, ...], option: str) -> None:
    rules = StartRules(permission_mode="acceptEdits", allowed_sources=("user",))
    with pytest.raises(OptionsError) as refused:
        rules.apply(invocation(*argv))
    assert refused.value.option == option


# The child.

INITIALIZE = b'{"type":"control_request","request_id":"1","request":{"subtype":"initialize"}}\n'
PROMPT = b'{"type":"user","message":{"role":"user","content":"hi"}}\n'
ANSWER_OF_TOOL = b'{"type":"control_response","response":{"request_id":"x"}}\n'


def encode(frame: dict[str, Any]) -> bytes:
    return json.dumps(frame).encode() + b"\n"


@asynccontextmanager
async def started(transport: Transport, *argv: str) -> AsyncGenerator[Transport]:
    async with anyio.create_task_group() as tasks:
        await transport.start(invocation(*argv))
        tasks.start_soon(transport.serve)
        yield transport
        tasks.cancel_scope.cancel()
    await transport.close()


async def receive_all(transport: Transport) -> bytes:
    output = b""
    with anyio.fail_after(10):
        while data := await transport.receive():
            output += data
    return output


def answer(mode: str | None) -> bytes:
    body = {} if mode is None else {"current_permission_mode": mode}
    return encode({"type": "control_response", "response": {"subtype": "success", "request_id": "1", "response": body}})


@pytest.mark.parametrize("mode", ["default", None])
async def test_a_prompt_waits_for_the_mode(mode: str | None) -> None:
    got: list[bytes] = []

    async def peer(child: MemoryPeer) -> None:
        got.append(await child.read_line())
        got.append(await child.read_line())
        await child.write(answer(mode)[:20])
        await child.write(answer(mode)[20:])
        while data := await child.read_line():
            got.append(data)
        await child.write(b"end\n")

    transport = ConfinedTransport(MemoryTransport(peer), StartRules())
    async with started(transport):
        await transport.send(INITIALIZE + PROMPT)
        await transport.send(ANSWER_OF_TOOL)
        await transport.end_input()
        output = await receive_all(transport)
    assert output == answer(mode) + b"end\n"
    assert got == [INITIALIZE, ANSWER_OF_TOOL, PROMPT]


@pytest.mark.parametrize(
    ("argv", "output", "mode"),
    [
        ((), answer("acceptEdits"), "acceptEdits"),
        (("--permission-mode=plan",), answer("default"), "default"),
        ((), answer("default") + encode(frames.init(permissionMode="auto")), "auto"),
        ((), answer("default") + encode({"type": "system", "subtype": "status", "permissionMode": "auto"}), "auto"),
        ((), answer("ofTomorrow"), "ofTomorrow"),
    ],
)
async def test_a_child_above_its_mode_is_an_error(argv: tuple[str, ...], output: bytes, mode: str) -> None:
    async def peer(child: MemoryPeer) -> None:
        await child.read_line()
        for at in range(0, len(output), 7):
            await child.write(output[at : at + 7])
        await anyio.sleep_forever()

    transport = ConfinedTransport(MemoryTransport(peer), StartRules(permission_mode="acceptEdits"))
    async with started(transport, *argv):
        await transport.send(INITIALIZE)
        with pytest.raises(PermissionModeError) as found:
            await receive_all(transport)
    assert found.value.mode == mode


async def test_words_of_a_model_are_no_mode() -> None:
    call = frames.tool_use("Write", {"type": "system", "permissionMode": "bypassPermissions"})
    said = [frames.assistant([call]), frames.assistant('{"permissionMode":"auto"}')]
    output = answer("default") + b"".join(map(encode, said))

    async def peer(child: MemoryPeer) -> None:
        await child.read_line()
        await child.write(output)

    transport = ConfinedTransport(MemoryTransport(peer), StartRules(permission_mode="default"))
    async with started(transport):
        await transport.send(INITIALIZE)
        assert await receive_all(transport) == output


async def test_a_query_ends_with_the_error_and_sends_no_prompt() -> None:
    with FakeCLI().on_control("initialize", frames.server_info(current_permission_mode="auto")).text("no") as fake:
        agent = ph.Agent(cli=fake.path)
        with pytest.raises(PermissionModeError, match=r"'auto'.*'default' is the highest"):
            await agent.query("hi", transport=ConfinedTransports(agent))
        assert [call.prompts for call in fake.calls] == [[]]


async def test_children_of_a_pool_start_by_the_rules() -> None:
    with FakeCLI().text("one") as fake:
        async with pytest.importorskip("pilothouse_pool").Pool(booted=True) as pool:
            agent = ph.Agent(cli=fake.path, transport=pool, system_prompt="Be brief.")
            for _ in range(3):
                assert (await agent.query("hi", transport=ConfinedTransports(agent))).text == "one"
        assert all("--setting-sources=user" in call.argv for call in fake.calls)
        assert not any("system-prompt" in argument for call in fake.calls for argument in call.argv)


class TestConfinedTransport(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return ConfinedTransport(MemoryTransport(MEMORY_PEERS[behaviour]), StartRules()), invocation()
