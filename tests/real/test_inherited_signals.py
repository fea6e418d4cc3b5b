"""What this program does with its signals has no effect on the commands that the real CLI runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from process_checks import linux_only

from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.real_cli, linux_only]

PROGRAM = """
import asyncio, json, signal, sys
import pilothouse as ph

if sys.argv[1] == "blocked":  # as a service that waits for its end with `sigwait`
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGALRM])
else:  # as a service that wants no zombies
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

async def main():
    settings = json.loads(sys.argv[2])
    print((await ph.query("go", inherit_env=False, allowed_tools=["Bash"], **settings)).text)

asyncio.run(main())
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("signals", ["blocked", "ignored"])
@pytest.mark.parametrize("has_directory", [True, False])
def test_commands_start_with_default_signals(
    claude: Any, scripted_model: ScriptedModel, signals: str, has_directory: bool
) -> None:
    commands = ("timeout 1 sleep 60; echo status $?", "echo ahoy")
    uses = [[ToolUse("Bash", {"command": command})] for command in commands]
    scripted_model.on("go", reply=Steps(*uses, "done"))
    settings: dict[str, Any] = {"cli": claude.path, "env": scripted_model.env(max_retries=0)}
    if has_directory:
        settings["cwd"] = str(claude.cwd)
    program = [sys.executable, "-c", PROGRAM, signals, json.dumps(settings)]
    began = time.monotonic()
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, cwd=claude.cwd, check=True)
    assert done.stdout == "done\n"
    assert time.monotonic() - began < 40, "timeout(1) has waited for the command"
    assert [request.tool_text for request in scripted_model.requests[-2:]] == ["status 124", "ahoy"]
