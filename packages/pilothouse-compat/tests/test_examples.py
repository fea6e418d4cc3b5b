"""The examples of `claude-agent-sdk` end on pilothouse as they do on the real package, on the real CLI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from public_tests import fetch_source

from pilothouse_compat.alias import PATH
from pilothouse_testing import RecordedRequest

pytestmark = [pytest.mark.real_cli, pytest.mark.matrix]

EXAMPLES = (
    "agents.py", "hooks.py all", "include_partial_messages.py", "max_budget_usd.py", "mcp_calculator.py",
    "quick_start.py",
    "setting_sources.py all", "stderr_callback_example.py", "streaming_mode.py all", "streaming_mode_trio.py",
    "system_prompt.py", "tool_permission_callback.py", "tools_option.py",
)  # fmt: skip
_VARIABLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+(\.\d+)?|toolu_\w+|/\S+")


def answer(request: RecordedRequest) -> str:
    return f"Answer to {request.last_user_text[-40:]!r}"


def run(example: str, program: Any, *, ours: bool) -> tuple[int, int, set[str]]:
    """Exit code, number of lines, and the lines without what differs from run to run."""
    folder = Path(program.model.home) / "bin"
    folder.mkdir(exist_ok=True)
    if not (folder / "claude").exists():
        (folder / "claude").symlink_to(program.cli)
    source = fetch_source() / "examples"
    name, *arguments = example.split()
    path = os.pathsep.join((str(folder), os.path.dirname(sys.executable), "/usr/bin", "/bin"))
    env = {**program.model.env(max_retries=0), "PATH": path, **({"PYTHONPATH": str(PATH)} if ours else {})}
    env |= {"PILOTHOUSE_CLI": program.cli}
    done = subprocess.run(
        [sys.executable, str(source / name), *arguments],
        env=env, cwd=program.cwd, capture_output=True, text=True, timeout=280, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    lines = [_VARIABLE.sub("#", line) for line in done.stdout.splitlines()]
    return done.returncode, len(lines), set(lines)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_ends_alike(example: str, program: Any) -> None:
    program.model.default = answer
    theirs = run(example, program, ours=False)
    ours = run(example, program, ours=True)
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1], sorted(ours[2] ^ theirs[2])
    assert theirs[1] > 0
