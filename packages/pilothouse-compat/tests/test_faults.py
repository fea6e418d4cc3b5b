"""What goes wrong in the CLI, seen through `claude_agent_sdk`: every call ends, with an error of that package, and
nothing is left of the CLI.

The child is a small program that fails in a given way at a given moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from process_checks import find_processes

from pilothouse.engine.child import CLOSE_SECONDS
from pilothouse.options import Invocation
from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_compat.claude_agent_sdk._internal import client, message_parser
from pilothouse_compat.claude_agent_sdk._internal.query import UserTransport
from pilothouse_compat.claude_agent_sdk._internal.transport import subprocess_cli
from pilothouse_compat.claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]

SOON = 30.0  # seconds on a machine that has much to do; a second on one that has not

CHILD = """
import json, os, signal, sys, time

if "--version" in sys.argv or "-v" in sys.argv:
    print("2.1.330 (Claude Code)")
    sys.exit()
fault, moment = os.environ["FAULT"], os.environ["MOMENT"]

def say(**frame):
    print(json.dumps(frame), flush=True)

def fail(now):
    if now != moment:
        return
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.startswith("exit"):
        print("out of order", file=sys.stderr, flush=True)
        os._exit(int(fault[-1]))
    if fault == "cut line":
        sys.stdout.write('{"type":"assis'); sys.stdout.flush(); os._exit(0)
    if fault == "output closed":
        os.close(1); time.sleep(600)
    if fault in ("silent", "deaf"):
        while True:
            time.sleep(600)
    if fault == "garbage":
        print("no json\\n{broken\\n[1]\\n{}\\n" + '{"type":"assistant"}', flush=True)
        say(type="system", subtype="task_started")

def ask(subtype, **body):
    say(type="control_request", request_id="ask", request={"subtype": subtype, **body})

def answer():
    say(type="assistant", session_id="s", parent_tool_use_id=None,
        message={"role": "assistant", "model": "m", "content": [{"type": "text", "text": "Hello"}]})
    say(type="result", subtype="success", is_error=False, duration_ms=1, duration_api_ms=1, num_turns=1,
        session_id="s", result="Hello")

fail("start")
hook = None
for line in sys.stdin:
    frame = json.loads(line)
    kind = frame["type"]
    if kind == "control_request":
        subtype = frame["request"]["subtype"]
        if subtype == "initialize":
            fail("handshake")
            for matchers in (frame["request"].get("hooks") or {}).values():
                hook = matchers[0]["hookCallbackIds"][0]
        else:
            fail("control")
        say(type="control_response", response={"subtype": "success", "request_id": frame["request_id"], "response": {}})
    elif kind == "user":
        say(type="system", subtype="init", claude_code_version="2.1.332", session_id="s", model="m", cwd=".", tools=[],
            mcp_servers=[], permissionMode="default", apiKeySource="none")
        fail("asked")
        if moment == "permission":
            ask("can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="t")
        elif moment == "hook":
            ask("hook_callback", callback_id=hook, tool_use_id="t", input={"hook_event_name": "PreToolUse",
                "session_id": "s", "transcript_path": "", "cwd": ".", "tool_name": "Bash", "tool_input": {}})
        else:
            answer()
    elif kind == "control_response" and frame["response"]["request_id"] == "ask":
        answer()
"""

DEADLY = ("killed", "exit 0", "exit 1", "cut line", "output closed")
MUTE = ("silent",)
HARMLESS = ("garbage",)
MOMENTS = ("start", "handshake", "asked", "permission", "hook", "control")


class FaultyCli:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "claude"
        self.path.write_text(f"#!{sys.executable} -SE\n{CHILD}")
        self.path.chmod(0o755)
        self.mark = f"MARK={folder}"
        self.reached = anyio.Event()

    def options(self, fault: str, moment: str) -> sdk.ClaudeAgentOptions:
        async def wait(*_: Any) -> Any:
            self.reached.set()
            if fault in HARMLESS:
                return sdk.PermissionResultAllow() if moment == "permission" else {}
            if fault in DEADLY:
                os.kill(self.pids()[0], 9)
            return await anyio.sleep_forever()

        name, _, value = self.mark.partition("=")
        env = {"FAULT": fault, "MOMENT": moment, name: value}
        callbacks: dict[str, Any] = {}
        if moment == "permission":
            callbacks["can_use_tool"] = wait
        if moment == "hook":
            callbacks["hooks"] = {"PreToolUse": [sdk.HookMatcher(hooks=[wait])]}
        return sdk.ClaudeAgentOptions(cli_path=self.path, env=env, **callbacks)

    def pids(self) -> list[int]:
        return find_processes(self.mark)

    async def gone(self) -> None:
        with anyio.fail_after(SOON):
            while self.pids():
                await anyio.sleep(0.02)


@pytest.fixture
def faulty(tmp_path: Path) -> FaultyCli:
    return FaultyCli(tmp_path)


async def use_query(options: sdk.ClaudeAgentOptions, moment: str) -> list[Any]:
    return [message async for message in sdk.query(prompt="go", options=options)]


async def use_client(options: sdk.ClaudeAgentOptions, moment: str) -> list[Any]:
    async with sdk.ClaudeSDKClient(options) as connected:
        await connected.query("go")
        found: list[Any] = []
        async for message in connected.receive_response():
            found.append(message)
            if moment == "control" and isinstance(message, sdk.AssistantMessage):
                await connected.set_model("other")
        return found


USES = {"query": use_query, "client": use_client}


@pytest.mark.sample(6)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("fault", DEADLY)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_lost_cli_is_an_error_and_leaves_nothing(faulty: FaultyCli, use: str, fault: str, moment: str) -> None:
    if (use, moment) == ("query", "control"):
        pytest.skip("a query sends no control request")
    began = time.monotonic()
    with anyio.fail_after(SOON), pytest.raises(Exception, match=r"\S") as caught:
        await USES[use](faulty.options(fault, moment), moment)
    assert not isinstance(caught.value, TimeoutError)
    if moment != "control":
        assert isinstance(caught.value, sdk.ClaudeSDKError)
    if fault == "exit 1" and moment in ("start", "handshake", "asked"):
        assert isinstance(caught.value, sdk.ProcessError)
        assert caught.value.exit_code == 1
        assert "out of order" in str(caught.value)
    assert time.monotonic() - began < SOON
    await faulty.gone()


@pytest.mark.sample(3)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_silent_cli_ends_with_the_caller(faulty: FaultyCli, use: str, moment: str) -> None:
    with anyio.move_on_after(1.5):
        await USES[use](faulty.options("silent", moment), moment)
    await faulty.gone()


@pytest.mark.sample(2)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_garbage_does_not_end_the_answer(faulty: FaultyCli, use: str, moment: str) -> None:
    with anyio.fail_after(SOON):
        found = await USES[use](faulty.options("garbage", moment), moment)
    assert isinstance(found[-1], sdk.ResultMessage)
    if moment == "asked":
        assert [m for m in found if isinstance(m, sdk.SystemMessage) and m.subtype == "line_skipped"]
        assert any(isinstance(m, sdk.AssistantMessage) and m.content == [] for m in found)
        assert [m.task_id for m in found if isinstance(m, sdk.TaskStartedMessage)] == [""]
    await faulty.gone()


class OwnTransport(sdk.Transport):
    """Answers the handshake, and then does what the test wants."""

    def __init__(self, failure: Exception | None, *, ends: bool = True) -> None:
        self.failure = failure
        self.ends = ends
        self.closed = self.ended = 0
        self.sent: list[str] = []
        self._answers, self._lines = anyio.create_memory_object_stream[dict[str, Any]](10)

    async def connect(self) -> None: ...

    async def write(self, data: str) -> None:
        self.sent.append(data)
        frame = json.loads(data)
        if frame["type"] == "control_request":
            response = {"subtype": "success", "request_id": frame["request_id"], "response": {"commands": []}}
            await self._answers.send({"type": "control_response", "response": response})
        elif frame["type"] == "user":
            ask = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
            await self._answers.send({"type": "control_request", "request_id": "1", "request": ask})
        else:
            await self._answers.send({"type": "stream_event", "uuid": "u", "session_id": "s", "event": {}})
            body = {"role": "assistant", "model": "m", "content": [{"type": "text", "text": "Hi"}]}
            await self._answers.send({"type": "assistant", "message": body})
            await self._answers.send({"type": "result", "subtype": "success", "session_id": "s"})
            if self.ends:
                await self._answers.send({"type": "end"})

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        async for message in self._lines:
            if message["type"] == "end":
                break
            yield message
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.closed += 1
        self._answers.close()
        self._lines.close()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("failure", [None, sdk.ProcessError("lost", 3), OSError("gone")])
async def test_a_transport_of_the_program(failure: Exception | None) -> None:
    transport = OwnTransport(failure)
    found: list[Any] = []
    agents = {"a": sdk.AgentDefinition(description="d", prompt="p")}
    prompt: Any = {"type": "preset", "preset": "claude_code", "snapshot": True}
    contexts: list[sdk.ToolPermissionContext] = []

    async def allow(name: str, given: Any, context: sdk.ToolPermissionContext) -> sdk.PermissionResult:
        contexts.append(context)
        return sdk.PermissionResultAllow()

    options = sdk.ClaudeAgentOptions(agents=agents, system_prompt=prompt, can_use_tool=allow)
    stream = sdk.query(prompt="go", options=options, transport=transport)
    with anyio.fail_after(SOON):
        if failure is None:
            found = [message async for message in stream]
        else:
            with pytest.raises(type(failure)) as caught:  # noqa: PT012
                async for message in stream:
                    found.append(message)
            assert caught.value is failure
    kinds = [type(each) for each in found]
    assert kinds == [sdk.StreamEvent, sdk.AssistantMessage, sdk.ResultMessage]  # nothing of pilothouse's own
    assert contexts == [sdk.ToolPermissionContext()]
    assert transport.closed == 1
    assert transport.ended == 1
    assert '"agents": {"a"' in transport.sent[0]
    assert '"systemPromptSnapshot": true' in transport.sent[0]  # a child gets it as a flag
    assert '"type": "user"' in transport.sent[1]


async def test_a_client_does_not_wait_for_the_end_of_such_a_transport() -> None:
    transport = OwnTransport(None, ends=False)
    client = sdk.ClaudeSDKClient(transport=transport)

    async def read() -> None:
        async for _ in client.receive_messages():
            pass

    with anyio.fail_after(SOON):
        async with anyio.create_task_group() as tasks:
            await client.connect("go")
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            began = anyio.current_time()
            await client.disconnect()
            seconds = anyio.current_time() - began
            assert seconds < CLOSE_SECONDS  # that long a child may take to exit
    assert (transport.closed, transport.ended) == (1, 0)


async def test_such_a_transport_is_not_read_after_the_client_has_left() -> None:
    given = OwnTransport(None)
    transport = UserTransport(given, {})
    await transport.start(Invocation("claude", (), {}))
    transport.leave()
    with anyio.fail_after(SOON):
        assert await transport.receive() == b""
    await transport.close()


@pytest.mark.parametrize("with_iterable", [False, True])
async def test_a_transport_that_cannot_end_its_input(with_iterable: bool) -> None:
    class NoEnd(OwnTransport):
        async def end_input(self) -> None:
            raise RuntimeError("cannot end")

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "go"}}

    async def allow(*_: Any) -> sdk.PermissionResult:
        return sdk.PermissionResultAllow()

    options = sdk.ClaudeAgentOptions(can_use_tool=allow)
    prompt: Any = prompts() if with_iterable else "go"
    with anyio.fail_after(SOON):
        found = [each async for each in sdk.query(prompt=prompt, options=options, transport=NoEnd(None))]
    assert isinstance(found[-1], sdk.ResultMessage)


async def test_a_refused_control_request_has_the_text_of_the_cli() -> None:
    class Refusing(OwnTransport):
        async def write(self, data: str) -> None:
            request_id = json.loads(data)["request_id"]
            response = {"subtype": "error", "request_id": request_id, "error": "not today"}
            await self._answers.send({"type": "control_response", "response": response})

    with anyio.fail_after(SOON), pytest.raises(sdk.ClaudeSDKError, match=r"^not today$"):
        await sdk.ClaudeSDKClient(transport=Refusing(None)).connect()


@pytest.mark.parametrize("use", USES)
async def test_what_a_program_puts_in_the_place_of_private_names(
    faulty: FaultyCli, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    own_parse, own_write = message_parser.parse_message, SubprocessCLITransport.write

    def parse(data: dict[str, Any]) -> sdk.Message | None:
        found = own_parse(data)
        return replace(found, result="parsed") if isinstance(found, sdk.ResultMessage) else found

    async def write(self: SubprocessCLITransport, data: str) -> None:
        written.append(json.loads(data)["type"])
        await own_write(self, data)

    monkeypatch.setattr(client, "parse_message", parse)
    if use == "client":
        monkeypatch.setattr(message_parser, "parse_message", parse)
    monkeypatch.setattr(SubprocessCLITransport, "write", write)
    with anyio.fail_after(SOON):
        found = await USES[use](faulty.options("none", "none"), "none")
    assert [each.result for each in found if isinstance(each, sdk.ResultMessage)] == ["parsed"]
    assert written == ["control_request", "user"]
    await faulty.gone()


async def test_a_class_in_the_place_of_the_transport(faulty: FaultyCli, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sdk.ClaudeAgentOptions] = []

    class Other(SubprocessCLITransport):
        def __init__(self, prompt: Any, options: sdk.ClaudeAgentOptions) -> None:
            made.append(options)
            super().__init__(prompt, options)

    monkeypatch.setattr(subprocess_cli, "SubprocessCLITransport", Other)
    for use in USES.values():
        with anyio.fail_after(SOON):
            assert isinstance((await use(faulty.options("garbage", "permission"), "permission"))[-1], sdk.ResultMessage)
    assert [options.permission_prompt_tool_name for options in made] == ["stdio", "stdio"]
    await faulty.gone()


async def test_the_method_of_the_private_client(faulty: FaultyCli, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = client.InternalClient.process_query, list[str]()

    async def traced(self: client.InternalClient, **given: Any) -> AsyncIterator[sdk.Message]:
        calls.append(given["prompt"])
        async for message in own(self, **given):
            yield message

    monkeypatch.setattr(client.InternalClient, "process_query", traced)
    assert await use_query(faulty.options("none", "none"), "none")
    assert calls == ["go"]


async def test_the_transport_of_the_cli(faulty: FaultyCli) -> None:
    options = faulty.options("none", "none")
    transport = SubprocessCLITransport(prompt="", options=options)
    assert not transport.is_ready()
    with pytest.raises(sdk.CLIConnectionError, match="not ready"):
        await transport.write("{}")
    await transport.connect()
    assert transport.is_ready()
    request = {"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}}
    await transport.write(json.dumps(request) + "\n")
    messages = transport.read_messages()
    with anyio.fail_after(SOON):
        assert (await anext(messages))["type"] == "control_response"
        await transport.end_input()
        assert [message async for message in messages] == []
    await transport.close()
    await faulty.gone()


@pytest.mark.parametrize("fault", ["none", "exit 1"])
async def test_a_query_over_the_transport_of_the_cli(faulty: FaultyCli, fault: str) -> None:
    transport = SubprocessCLITransport(prompt="", options=faulty.options(fault, "asked"))
    found: list[Any] = []
    problems: list[sdk.ProcessError] = []
    with anyio.fail_after(SOON):
        try:
            async for message in sdk.query(prompt="go", transport=transport):
                found.append(message)
        except sdk.ProcessError as error:
            problems.append(error)
    if fault == "none":
        assert isinstance(found[-1], sdk.ResultMessage)
        assert problems == []
    else:
        assert [error.exit_code for error in problems] == [1]
        assert "out of order" in str(problems[0])
    await faulty.gone()
