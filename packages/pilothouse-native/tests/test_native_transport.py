"""`NativeTransport` as a transport: its stream, its start, its end, and what runs over it unchanged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from blockbuster import blockbuster_ctx
from native_fixtures import ARGV, Echo, settings
from process_checks import is_dead, linux_only

import pilothouse as ph
from pilothouse.options import Invocation, PrivateFile
from pilothouse.provision.pinned_files import model_path
from pilothouse.transports import Transport
from pilothouse.transports.memory import MemoryPeer
from pilothouse_cli.arguments import parse
from pilothouse_models.local import LocalModel
from pilothouse_native import NativeTransport
from pilothouse_testing import ScriptedModel, Steps, ToolUse
from pilothouse_testing.conformance import MEMORY_PEERS, Behaviour, TransportSuite
from pilothouse_testing.script import Hang
from pilothouse_transcripts.stores import MemoryStore


class Behaving(NativeTransport):
    """The transport with another peer in the place of the engine."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__()
        self.behaviour: Behaviour = behaviour

    async def _run_engine(self, invocation: Invocation) -> int:
        code: list[int | None] = [0]

        def end(*, exit_code: int | None, signal: str | None, stderr: str) -> None:
            code[0] = exit_code
            self._stderr.feed(stderr.encode())

        streams = SimpleNamespace(input_stream=self.input_stream, output_stream=self.output_stream, end=end)
        await MEMORY_PEERS[self.behaviour](MemoryPeer(streams, invocation))  # type: ignore[arg-type]
        return code[0] or 0


@pytest.mark.requirement("E83", "R37")
class TestNativeStream(TransportSuite):
    def make(self, behaviour: Behaviour) -> tuple[Transport, Invocation]:
        return Behaving(behaviour), Invocation(cli="auto", argv=(), env={})


pytestmark = pytest.mark.anyio


def invocation(model: ScriptedModel, **changes: Any) -> Invocation:
    return Invocation(cli="auto", argv=ARGV, env=model.env(max_retries=0), **changes)


async def test_it_starts_once(scripted_model: ScriptedModel) -> None:
    transport = NativeTransport()
    await transport.start(invocation(scripted_model))
    with pytest.raises(ph.UsageError, match="one connection"):
        await transport.start(invocation(scripted_model))
    await transport.close()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [({"cwd": "/not/there"}, ph.CLIStartError, "no working directory"), ({"user": "nobody"}, ph.UsageError, "'user'")],
)
async def test_what_it_cannot_start_with(
    scripted_model: ScriptedModel, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    transport = NativeTransport()
    with pytest.raises(error, match=words):
        await transport.start(invocation(scripted_model, **changes))
    await transport.close()


async def test_large_values_travel_in_files(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    agent = ph.Agent(**settings(scripted_model), append_system_prompt="Be kind. " * 5000)
    result = await agent.query("Hi")
    assert result.text == "Fine."
    assert "Be kind. Be kind." in scripted_model.requests[0].system_text
    file = PrivateFile("system-prompt-file", ".txt", b"You are a pilot.")
    transport = NativeTransport()
    await transport.start(invocation(scripted_model, files=(file,)))
    await transport.close()


async def test_the_argv_form(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    result = await ph.Agent(**settings(scripted_model), prompt_via="argv").query("--help is no flag here")
    assert result.text == "Fine."
    assert scripted_model.requests[0].last_user_text == "--help is no flag here"


@linux_only
@pytest.mark.parametrize("kept", [False, True])
async def test_what_a_command_detaches_ends_with_it_or_is_kept(scripted_model: ScriptedModel, kept: bool) -> None:
    command = "setsid sh -c 'echo $$ >pid; exec sleep 600' & while [ ! -s pid ]; do sleep 0.02; done"
    scripted_model.reply(Steps([ToolUse("Bash", {"command": command})], "Fine."))
    await ph.Agent(**settings(scripted_model), allowed_tools=["Bash"], keep_detached=kept).query("Hi")
    pid = int((scripted_model.home / "project" / "pid").read_text())
    assert is_dead(pid) is not kept
    if kept:
        os.kill(pid, signal.SIGKILL)


async def test_isolation_gives_it_a_home_of_its_own(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    mine = settings(scripted_model)
    mine["env"] = {k: v for k, v in mine["env"].items() if k not in {"HOME", "CLAUDE_CONFIG_DIR"}}
    result = await ph.Agent(**mine, isolation="strict", api_key="k").query("Hi")
    assert result.text == "Fine."
    assert list(scripted_model.home.rglob("*.jsonl")) == []


async def test_without_a_key_no_request_is_tried() -> None:
    with anyio.fail_after(20):  # ten retries would take minutes
        result = await ph.query("Hi", transport=NativeTransport, env={}, inherit_env=False)
    with pytest.raises(ph.AuthenticationError, match="no API key: set ANTHROPIC_API_KEY"):
        result.raise_for_error()


async def test_a_client_of_the_caller_is_used_and_left_open(scripted_model: ScriptedModel) -> None:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(api_key="mine", base_url=scripted_model.url, max_retries=0) as client:
        for text in ("One.", "Two."):
            scripted_model.reply(text)
            mine = settings(scripted_model)
            mine["transport"] = lambda: NativeTransport(client=client)
            assert (await ph.Agent(**mine).query("Hi")).text == text
        assert not client.is_closed()


async def test_closing_in_the_middle_leaves_nothing(scripted_model: ScriptedModel) -> None:
    scripted_model.default = Hang("So far ")
    mine = settings(scripted_model)
    with anyio.fail_after(20):
        async for _ in ph.Agent(**mine, partial_messages=True).query("Go"):
            break


async def test_closing_stops_the_tools(scripted_model: ScriptedModel) -> None:
    scripted_model.default = [ToolUse("Echo", {"text": "hang"})]
    echo = Echo()
    mine = settings(scripted_model, echo)
    with anyio.fail_after(20):
        async with ph.Agent(**mine, allowed_tools=["Echo"]).session() as session, anyio.create_task_group() as group:
            group.start_soon(session.query("Go").result)
            await echo.began.wait()
            group.cancel_scope.cancel()
    assert echo.ended == ["hang"]


async def test_controls_of_a_session(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Fine."
    async with ph.Agent(**settings(scripted_model)).session() as session:
        await session.set_model("haiku")
        await session.set_permission_mode("plan")
        result = await session.query("Hi")
        assert list(result.model_usage) == ["claude-haiku-5-5"]
        assert session.server_info["current_permission_mode"] == "default"
        with pytest.raises(ph.ControlError) as refused:
            await session.rewind_files("11111111-1111-4111-8111-111111111111")
        assert refused.value.code == "unsupported_request"
        await session.clear()
        assert len(scripted_model.requests[-1].messages) == 1


async def test_no_child_and_no_cli_is_there(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Fine.")
    mine = settings(scripted_model)
    assert (await ph.Agent(**mine, cli="/no/where/claude").query("Hi")).text == "Fine."


def test_the_command_can_do_without_claude_code(scripted_model: ScriptedModel) -> None:
    asked: Any = parse(["ask", "--transport", "native", "Hi"])
    assert asked.settings["transport"] is NativeTransport
    scripted_model.reply("Fine.")
    done = subprocess.run(
        [sys.executable, "-m", "pilothouse", "ask", "--transport=native", "--cli=/no/where", "Hi"],
        cwd=scripted_model.home,
        env={"PATH": os.environ["PATH"], **scripted_model.env(max_retries=0)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "Fine."), done.stderr


async def test_many_run_side_by_side(scripted_model: ScriptedModel) -> None:
    scripted_model.default = lambda request: f"re: {request.last_user_text}"
    agent = ph.Agent(**settings(scripted_model))
    texts: dict[int, str] = {}

    async def ask(number: int) -> None:
        texts[number] = (await agent.query(f"number {number}")).text

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    assert texts == {number: f"re: number {number}" for number in range(20)}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only loop that blockbuster knows
async def test_nothing_blocks_the_loop(scripted_model: ScriptedModel) -> None:
    calls = [
        ToolUse("Bash", {"command": "echo ahoy", "description": "d"}),
        ToolUse("Write", {"file_path": "new.txt", "content": "x"}),
        ToolUse("Read", {"file_path": "new.txt"}),
        ToolUse("Grep", {"pattern": "x"}),
        ToolUse("Glob", {"pattern": "*"}),
    ]
    for prompt in ("first", "second"):
        scripted_model.on(prompt, Steps(*([call] for call in calls), "Done."))
    agent = ph.Agent(**settings(scripted_model), allowed_tools=["Bash", "Write"])
    assert (await agent.query("first")).text == "Done."  # what is imported once is imported
    with blockbuster_ctx(["pilothouse", "anyio", "msgspec"]) as watch:
        # `Popen` reads the result of `exec` from a pipe, for about a millisecond.
        watch.functions["os.read"].can_block_in("subprocess.py", "_execute_child")
        assert (await agent.query("second")).text == "Done."


async def test_a_session_lives_on_in_a_store(scripted_model: ScriptedModel) -> None:
    scripted_model.default = lambda request: str(len(request.messages))
    store = MemoryStore()
    agent = ph.Agent(**settings(scripted_model), session_store=store)
    async with agent.session() as session:
        assert (await session.query("one")).text == "1"
        name = session.id
    shutil.rmtree(scripted_model.home / ".claude", ignore_errors=True)
    assert list(scripted_model.home.rglob("*.jsonl")) == []
    async with agent.session(resume=name) as session:
        assert (await session.query("two")).text == "3"


@pytest.mark.local_model
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_local_model_answers_over_it(tmp_path: Path) -> None:
    if not model_path().exists():
        pytest.skip("the local model is not fetched: python -m pilothouse.provision model")
    (tmp_path / "notes.txt").write_text("ahoy")
    async with LocalModel(calls_tools=True) as model:
        mine: dict[str, Any] = {**model.options(), "tools": ["Read"], "allowed_tools": ["Read"]}
        prompt = "Read the file notes.txt and say what is in it."
        result = await ph.query(prompt, **mine, transport=NativeTransport, cwd=str(tmp_path), max_turns=6)
    assert result.turns >= 1
    assert all(use.name == "Read" for use in result.tool_uses)


@pytest.mark.parametrize("order", ["serve first", "close first"])
async def test_it_ends_without_a_reader(scripted_model: ScriptedModel, order: str) -> None:
    scripted_model.default = "x" * 2_000_000
    transport = NativeTransport()
    await transport.start(invocation(scripted_model, cwd=str(scripted_model.home)))
    frame = {"type": "user", "message": {"role": "user", "content": "Go"}}
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(transport.serve)
            await transport.send(json.dumps(frame).encode() + b"\n")
            while not transport.output_stream.is_full:
                await anyio.sleep(0.01)
            if order == "close first":
                await transport.close()
            group.cancel_scope.cancel()
        await transport.close()


def test_what_reaches_the_api_shows_no_key() -> None:
    shown = repr(NativeTransport("https://user:planted-password@gateway.example/", "planted-key")._api)
    assert "gateway.example" in shown
    assert "planted" not in shown


class SyncAPIClient:  # as in the package `anthropic`
    messages = None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"base_url": "127.0.0.1:8080"}, "base_url: expected an address such as 'https://.*', got '127.0.0.1:8080'"),
        ({"base_url": 5}, "base_url: expected an address"),
        ({"client": "key"}, "client: expected an asynchronous client, such as anthropic.AsyncAnthropic, got str"),
        (
            {"client": type("Anthropic", (SyncAPIClient,), {})()},
            "client: expected an asynchronous client.*got Anthropic",
        ),
        ({"tools": ["Bash"]}, "tools: expected a mapping of names to tools, got list; the option `tools` chooses some"),
    ],
)
def test_arguments_that_cannot_work(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ph.UsageError, match=text):
        NativeTransport(**given)


async def test_an_environment_without_an_address_fails_at_once() -> None:
    env = {"ANTHROPIC_BASE_URL": "localhost:8080", "ANTHROPIC_API_KEY": "key"}
    with anyio.fail_after(60):
        result = await ph.query("Hi", transport=NativeTransport, env=env)
    assert "ANTHROPIC_BASE_URL: expected an address such as" in str(result.error)


async def test_an_api_that_cannot_be_reached_is_logged_once(
    scripted_model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = {**scripted_model.env(max_retries=3), "ANTHROPIC_BASE_URL": address}
        result = await ph.query("Hi", transport=NativeTransport, inherit_env=False, env=env)
    assert result.outcome == "error"
    texts = [record.getMessage() for record in caplog.records if "could not be reached" in record.getMessage()]
    assert [text.startswith(f"the API at {address} could not be reached (retry 2 of 3)") for text in texts] == [True]


@pytest.mark.requirement("E76", "E45")
def test_the_arguments_of_a_wrong_call_are_not_kept_in_our_frames() -> None:
    key = "sk-ant-of-a-wrong-call"
    call: Any = NativeTransport
    with pytest.raises((ph.OptionsError, TypeError)) as caught:
        call(api_key=key, unknown_setting=1)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = [frame for frame in shown.stack if "pilothouse" in frame.filename and "/tests/" not in frame.filename]
    assert not [frame for frame in ours if key in str(frame.locals)]
    assert key not in str(caught.value)
