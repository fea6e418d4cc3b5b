"""What a user reads when a program fails: the traceback goes from the user's line into the public method, and not into
the task that drove the child. Small programs run in interpreters of their own; the frames are counted by who owns them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pilothouse_testing import FakeCLI, frames

HEAD = """
import asyncio, os, sys, traceback
import pilothouse as ph
import pilothouse_fleet.sync
from pilothouse import sync
from pilothouse_fleet import Fleet
CLI = os.environ.get("FAKE")

def run(work):
    asyncio.run(work())
"""
GONE = 'cli="/no/such/claude"'
MARK = "-- next --"
MOST_FRAMES = 8  # of pilothouse

RAISED = {
    "result": (f'await ph.query("x", {GONE})', "CLINotFoundError"),
    "loop": (f'async for m in ph.query("x", {GONE}): pass', "CLINotFoundError"),
    "text_stream": (f'async for m in ph.query("x", {GONE}).text_stream(): pass', "CLINotFoundError"),
    "events": (f'async for m in ph.query("x", {GONE}).events(): pass', "CLINotFoundError"),
    "block": (f'async with ph.query("x", {GONE}): pass', "CLINotFoundError"),
    "session": (f"async with ph.session({GONE}): pass", "CLINotFoundError"),
    "session query": (f'await ph.session({GONE}).query("x")', "CLINotFoundError"),
    "session request": (f'await ph.session({GONE}).set_model("opus")', "CLINotFoundError"),
    "session group": (f"await ph.session({GONE}).mcp.status()", "CLINotFoundError"),
    "unknown option": ('ph.query("x", max_turn=3)', "OptionsError"),
    "agent": ("ph.Agent(max_turn=3)", "OptionsError"),
    "options": ("ph.Options(max_turns='3')", "OptionsError"),
    "session option": ("ph.session(max_turn=3)", "OptionsError"),
    "configure": ("ph.configure(max_turn=3)", "OptionsError"),
    "hook": ("ph.HookMatcher(3, print)", "UsageError"),
    "tool": ("ph.tool(lambda: 1)", "ToolDefinitionError"),
    "fleet": ("async with Fleet() as f:\n    async for run in f.map([3]): pass", "UsageError"),
    "fleet outside": ('await Fleet().submit("x")', "SessionClosedError"),
    "sync result": (f'sync.query("x", {GONE}).result()', "CLINotFoundError"),
    "sync loop": (f'for m in sync.query("x", {GONE}): pass', "CLINotFoundError"),
    "sync text_stream": (f'for m in sync.query("x", {GONE}).text_stream(): pass', "CLINotFoundError"),
    "sync session": (f"with sync.session({GONE}): pass", "CLINotFoundError"),
    "sync request": (f'sync.session({GONE}).set_model("opus")', "CLINotFoundError"),
    "sync option": ('sync.query("x", max_turn=3)', "OptionsError"),
    "sync fleet": ('pilothouse_fleet.sync.Fleet().submit("x")', "SessionClosedError"),
    "failed": ('(await ph.query("x", cli=CLI)).raise_for_error()', "OverloadedError"),
    "failed stream": ('async for t in ph.query("x", cli=CLI).text_stream(): pass', "OverloadedError"),
    "failed sync": ('sync.query("x", cli=CLI).result().raise_for_error()', "OverloadedError"),
    "failed sync stream": ('for t in sync.query("x", cli=CLI).text_stream(): pass', "OverloadedError"),
}


def owner(path: str) -> str:
    if re.search(r"/pilothouse(_\w+)?/", path):
        return "pilothouse"
    return "user" if path.endswith("program.py") else "other"


def traceback_of(code: str, directory: Path, fake: FakeCLI | None = None, *flags: str) -> str:
    program = directory / "program.py"
    program.write_text(code)
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    env = {**kept, "HOME": str(directory), "PILOTHOUSE_INSTALL": "0", **({} if fake is None else {"FAKE": fake.path})}
    command = [sys.executable, *flags, str(program)]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60)
    return done.stderr


def program_of(statement: str) -> str:
    body = statement.replace("\n", "\n        ")
    is_blocking = statement.startswith(("for", "with", "sync")) or not re.search(r"\b(await|async)\b", statement)
    return f"""
try:
    {"" if is_blocking else "async "}def main():
        {body}
    {"main()" if is_blocking else "run(main)"}
except Exception:
    traceback.print_exc()
"""


@pytest.fixture(scope="module")
def printed_by_statement(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of the statements prints on standard error; one interpreter runs them all."""
    broken = frames.result("API Error: 529", is_error=True, api_error_status=529)
    parts = [f"print({MARK!r}, file=sys.stderr){program_of(statement)}" for statement, _ in RAISED.values()]
    with FakeCLI().expect("user").emit(frames.init(), broken) as fake:
        printed = traceback_of(HEAD + "\n".join(parts), tmp_path_factory.mktemp("programs"), fake)
    return dict(zip(RAISED, printed.split(MARK)[1:], strict=True))


@pytest.mark.parametrize("name", RAISED)
def test_an_error_begins_at_the_line_of_the_user_and_has_no_frames_of_other_tasks(
    name: str, printed_by_statement: dict[str, str]
) -> None:
    text, error = printed_by_statement[name], RAISED[name][1]
    owners = [owner(path) for path in re.findall(r'^  File "(.*?)", line', text, re.MULTILINE)]
    assert f"\npilothouse.errors.{error}: " in text, text
    assert text.count("Traceback (most recent call last)") == 1, text
    # What asyncio.run() is made of stands before the line of the user; nothing but pilothouse after it.
    last = len(owners) - 1 - owners[::-1].index("user")
    assert set(owners[last + 1 :]) <= {"pilothouse"}, text
    assert len(owners) - last - 1 <= MOST_FRAMES, text


def test_a_cause_that_is_the_users_keeps_the_frames_of_the_user(tmp_path: Path) -> None:
    code = """
class Transport(ph.Transport):
    async def start(self, invocation): raise ph.ProcessError("no way") from self.why()
    def why(self):
        try:
            self.open()
        except OSError as error:
            return error
    def open(self): raise OSError("no such door")
    async def send(self, data): ...
    async def receive(self): return b""
    async def end_input(self): ...
    async def close(self): ...
    def health(self): ...

async def main():
    await ph.query("x", transport=Transport)
run(main)
"""
    printed_by_statement = traceback_of(HEAD + code, tmp_path)
    assert printed_by_statement.count("Traceback (most recent call last)") == 2, printed_by_statement
    cause, _, rest = printed_by_statement.partition("The above exception was the direct cause")
    assert re.findall(r'File ".*?", line \d+, in (\w+)', cause) == ["why", "open"]
    assert "OSError: no such door" in cause
    assert "During handling" not in printed_by_statement
    assert rest.splitlines()[-1] == "pilothouse.errors.ProcessError: no way"


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    printed_by_statement = traceback_of(
        HEAD + "run(lambda: asyncio.wait_for(ph.query('x', cli=CLI).result(), 0))", tmp_path
    )
    assert printed_by_statement.splitlines()[-1].startswith("TimeoutError")


def test_development_mode_leaves_nothing_out(tmp_path: Path) -> None:
    printed_by_statement = traceback_of(HEAD + program_of(RAISED["sync result"][0]), tmp_path, None, "-X", "dev")
    assert printed_by_statement.count("/pilothouse/") > MOST_FRAMES, printed_by_statement


@pytest.mark.anyio
async def test_the_error_of_a_callback_is_logged_with_the_frames_of_the_user(caplog: pytest.LogCaptureFixture) -> None:
    import pilothouse as ph  # as a user has it

    def inner() -> None:
        raise RuntimeError("mine")

    def show(message: ph.Message) -> None:
        inner()

    with FakeCLI() as fake:
        fake.expect("user").emit(frames.init(), frames.result("done"))
        result = await ph.query("x", cli=fake.path, on_message=show)
    assert result.callback_errors
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    [*_, error] = record.exc_info[:2]
    shown: list[str] = []
    traceback = record.exc_info[2]
    while traceback is not None:
        shown.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert shown == ["show", "inner"]
    assert str(error) == "mine"
