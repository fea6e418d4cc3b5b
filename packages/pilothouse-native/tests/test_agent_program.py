"""`pilothouse-agent`: the engine as a program. Whatever drives the CLI drives it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from process_checks import eventually, is_dead

import pilothouse as ph
from pilothouse.options.table import TABLE, ConfigFlag, Flag, JsonFlag, TextFlag
from pilothouse_native.flags import IGNORED_FLAGS, EngineArguments, FlagError, make_parser, parse_arguments
from pilothouse_native.history import CLI_VERSION
from pilothouse_native.program import main
from pilothouse_testing import HttpError, ScriptedModel, Steps, ToolUse
from pilothouse_testing.conformance import AgentSuite
from pilothouse_testing.script import Hang

STREAM = ("--input-format=stream-json", "--output-format=stream-json", "--verbose")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, as its own executable: a script of this Python."""
    path = tmp_path_factory.mktemp("bin") / "pilothouse-agent"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pilothouse_native "$@"\n')
    path.chmod(0o755)
    return path


def run(program: Path, model: ScriptedModel, *args: str, stdin: str = "", **env: str) -> Any:
    return subprocess.run(
        [program, *args],
        cwd=model.home,
        env={"PATH": os.environ["PATH"], **model.env(max_retries=0), **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def settings(program: Path, model: ScriptedModel) -> dict[str, Any]:
    project = model.home / "project"
    project.mkdir(exist_ok=True)
    return {"cli": str(program), "env": model.env(max_retries=0), "inherit_env": False, "cwd": str(project)}


@pytest.mark.slow  # each start imports the client of the API anew: two seconds
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
class TestAgentOverTheProgram(AgentSuite):
    @pytest.fixture(autouse=True)
    def _program(self, program: Path) -> None:
        self.program = program

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return settings(self.program, model)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_client_of_others_drives_it(program: Path, scripted_model: ScriptedModel) -> None:
    from claude_agent_sdk import (
        AssistantMessage,
        ClaudeAgentOptions,
        ClaudeSDKClient,
        HookMatcher,
        PermissionResultAllow,
        ResultMessage,
        ToolUseBlock,
        create_sdk_mcp_server,
        tool,
    )

    scripted_model.reply(
        Steps(
            [ToolUse("Bash", {"command": "touch made", "description": "d"})],
            [ToolUse("mcp__calc__add", {"a": 2, "b": 3})],
            "Five.",
        )
    )
    seen: list[str] = []

    @tool("add", "Adds.", {"a": int, "b": int})
    async def add(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}

    async def allow(name: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
        seen.append(f"asked {name}")
        return PermissionResultAllow()

    async def hook(given: Any, key: str | None, context: Any) -> Any:
        seen.append(f"{given['hook_event_name']} {given['tool_name']}")
        return {}

    options = ClaudeAgentOptions(
        cli_path=str(program),
        cwd=str(scripted_model.home),
        env=scripted_model.env(max_retries=0),
        mcp_servers={"calc": create_sdk_mcp_server("calc", "1", [add])},
        can_use_tool=allow,
        hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[hook])]},
    )
    messages: list[Any] = []
    with anyio.fail_after(60):
        async with ClaudeSDKClient(options) as client:
            await client.query("Make it, and add.")
            messages += [message async for message in client.receive_response()]
    blocks = [block for message in messages if isinstance(message, AssistantMessage) for block in message.content]
    assert [block.name for block in blocks if isinstance(block, ToolUseBlock)] == ["Bash", "mcp__calc__add"]
    assert seen == ["PreToolUse Bash", "asked Bash", "asked mcp__calc__add"]
    assert isinstance(messages[-1], ResultMessage)
    assert (messages[-1].result, messages[-1].is_error) == ("Five.", False)
    assert (scripted_model.home / "made").exists()


@pytest.mark.matrix
def test_forms_of_output(program: Path, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Ahoy."
    assert run(program, scripted_model, "-p", "Hi").stdout == "Ahoy.\n"
    reported = run(program, scripted_model, "-p", "--output-format", "json", stdin="-hi")
    assert json.loads(reported.stdout)["result"] == "Ahoy."
    assert scripted_model.requests[-1].last_user_text == "-hi"


@pytest.mark.matrix
def test_exit_codes(program: Path, scripted_model: ScriptedModel) -> None:
    scripted_model.default = HttpError(400)
    failed = run(program, scripted_model, "-p", "Hi")
    assert (failed.returncode, failed.stdout.startswith("API Error: 400")) == (1, True)
    silent = run(program, scripted_model, "-p")
    assert (silent.returncode, silent.stdout) == (1, "")
    assert "Input must be provided" in silent.stderr
    ended = run(program, scripted_model, *STREAM)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.matrix
def test_a_large_prompt_and_a_large_answer_pass(program: Path, scripted_model: ScriptedModel) -> None:
    text = "ä" * 3_000_000
    scripted_model.default = "x" * 500_000
    frame = {"type": "user", "message": {"role": "user", "content": text}}
    done = run(program, scripted_model, *STREAM, stdin=json.dumps(frame) + "\n")
    assert json.loads(done.stdout.splitlines()[-1])["result"] == "x" * 500_000
    assert scripted_model.requests[0].last_user_text == text


@pytest.fixture
def working(program: Path, scripted_model: ScriptedModel) -> Generator[subprocess.Popen[bytes]]:
    """A program in the middle of a Bash command."""
    command = f"echo $$ > {scripted_model.home}/pid; sleep 600"
    scripted_model.default = lambda request: (
        Hang() if request.last_user_text == "hang" else [ToolUse("Bash", {"command": command, "description": "d"})]
    )
    child = subprocess.Popen(
        [program, "-p", "--allowedTools=Bash", "--permission-mode=bypassPermissions", "go"],
        cwd=scripted_model.home,
        env={"PATH": os.environ["PATH"], **scripted_model.env()},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually((scripted_model.home / "pid").exists)
        yield child
    finally:
        child.kill()
        child.communicate()


def waiting_in(pipe: int) -> int:
    """Bytes that wait to be read."""
    count = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_ends_it_and_what_it_started(
    working: subprocess.Popen[bytes], scripted_model: ScriptedModel, number: int, code: int
) -> None:
    path = scripted_model.home / "pid"
    eventually(lambda: path.read_text().strip())
    working.send_signal(number)
    assert working.wait(20) == code
    eventually(lambda: is_dead(int(path.read_text())))


@pytest.mark.matrix
@pytest.mark.skipif(sys.platform != "linux", reason="pipes of other systems have other sizes")
def test_a_signal_ends_it_without_a_reader(program: Path, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "x" * 2_000_000
    child = subprocess.Popen(
        [program, *STREAM],
        cwd=scripted_model.home,
        env={"PATH": os.environ["PATH"], **scripted_model.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        frame = {"type": "user", "message": {"role": "user", "content": "Go"}}
        child.stdin.write(json.dumps(frame).encode() + b"\n")
        child.stdin.flush()
        pipe = child.stdout.fileno()
        eventually(lambda: waiting_in(pipe) > 60_000)
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    finally:
        child.kill()
        child.communicate()


def test_its_version_and_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{CLI_VERSION} (pilothouse-agent {ph.__version__})\n"
    assert main(["--help"]) == 0
    reported = capsys.readouterr().out
    assert "  --max-turns VALUE" in reported
    assert all(f"--{flag}" in reported for flag in IGNORED_FLAGS)
    assert max(map(len, reported.splitlines())) <= 130
    assert main(["--nonsense"]) == 1
    assert capsys.readouterr().err == "error: unknown option '--nonsense'\n"


def test_every_flag_that_options_render_to_is_known() -> None:
    targets = [row.target for row in TABLE.values()]
    names = {t.name for t in targets if isinstance(t, Flag) and not isinstance(t, ConfigFlag | JsonFlag)}
    names |= {t.file_flag for t in targets if isinstance(t, TextFlag) and t.file_flag}
    reported = make_parser().format_help()
    missing = sorted(name for name in names if not re.search(rf"--{name}\b(?!-)", reported))
    assert missing == sorted(REFUSED)


REFUSED = {"file", "restricted", "safe-mode", "worktree"}
"""Flags that promise something that nothing here does, such as to do less, or to leave the directory as it is."""


def test_flags_are_read_as_the_cli_reads_them() -> None:
    def read(*argv: str) -> EngineArguments:
        return parse_arguments(argv, Path("/w"))

    found = read(
        "-p", "--allowedTools", "Bash(git log:*, x)", "Read,Edit", "--model", "opus", "--tools=", "--", "-x", "y"
    )
    assert found.allowed_tools == ("Bash(git log:*, x)", "Read", "Edit")
    assert (found.print, found.model, found.tools, found.prompt) == (True, "opus", (), "-x y")
    assert (read("-r", "id", "hi").resume, read("-r", "id", "hi").prompt) == ("id", "hi")
    assert read("one", "--max-turns", "3", "two", "-c", "--add-dir", "a").prompt == "one two"
    assert read("--add-dir", "a", "--add-dir=/b").add_dir == ("/w/a", "/b")
    assert read("--debug", "--agents", "{}").ignored_flags == ("agents", "debug")
    assert read("--append-system-prompt-file", "/dev/null").append_system_prompt == ""
    with pytest.raises(FlagError, match="--model: expected one argument"):
        read("--model")
    with pytest.raises(FlagError, match="--resume requires a session ID"):
        read("--resume", "--verbose")
