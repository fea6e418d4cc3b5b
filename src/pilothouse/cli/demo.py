"""`pilothouse demo`: the first thing people see. Two short programs against the real Claude Code.

Owns what the demo shows, and when it counts as failed. Without a key nothing of this machine's own configuration is
read: the children get a home of their own that is removed at the end.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from pilothouse._version import __version__
from pilothouse.cli import scripted_plan
from pilothouse.cli.arguments import DemoRequest
from pilothouse.cli.ask import follow, tell_failure
from pilothouse.cli.failures import FAILED, credentials, failure, own_command
from pilothouse.cli.install import fetched_cli
from pilothouse.cli.screen import Screen
from pilothouse.cli.telling import CUT_NOTE, Telling, closing_line
from pilothouse.client import Query
from pilothouse.errors import PilothouseError, UsageError
from pilothouse.options import Options, Settings
from pilothouse.options.secrets import Redactor, secret_values
from pilothouse.testing.environment import hermetic_environment

QUERY_TIMEOUT_S = 180.0
"""A demo that hangs is worse than one that fails; on a slow machine an answer takes some 20 s."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo runs: its screen, the CLI, and a directory that goes when it ends."""

    screen: Screen
    redact: Callable[[str], str]
    cli: str
    directory: Path


async def demo(request: DemoRequest, screen: Screen) -> int:
    """Show both parts.

    Args:
        request: what was asked for.
        screen: what the person sees.

    Returns:
        0, or 1 if a part failed, or the exit code of what kept it from starting.
    """
    redact = Redactor(secret_values(os.environ)).redact
    started = time.monotonic()
    screen.note(f"pilothouse {__version__}: Claude Code, steered from Python", "title")
    try:
        cli = await fetched_cli(request.cli, os.environ, screen)
    except PilothouseError as error:
        told = failure(error)
        tell_failure(screen, told, redact)
        return told.code
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pilothouse-demo-", ignore_cleanup_errors=True) as name:
        stage = Stage(screen, redact, cli, Path(name))
        for number, part in enumerate((p for p in _PARTS if p in request.parts), start=1):
            if not await _play(number, part, request, stage):
                failed.append(part)
    screen.note("")
    seconds = f"{time.monotonic() - started:.1f} s"
    if failed:
        screen.note(f"failed: {', '.join(_PARTS[part].title for part in failed)} ({seconds} in all)", "error")
        return FAILED
    screen.note(f"All of it worked, in {seconds}.", "good")
    screen.note(_next_steps(request))
    return 0


def _next_steps(request: DemoRequest) -> str:
    local = "" if credentials(os.environ) and not request.local else "--local "
    command = own_command()
    return f'Next: {command} ask {local}"your question"     {command} --help'


async def _play(number: int, name: str, request: DemoRequest, stage: Stage) -> bool:
    """Show one part; whether it worked."""
    part = _PARTS[name]
    stage.screen.note("")
    stage.screen.note(f"{number}. {part.title}", "title")
    started = time.monotonic()
    try:
        await part.play(request, stage)
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        stage.screen.end_text()
        tell_failure(stage.screen, failure(error), stage.redact)
        return False
    finally:
        stage.screen.idle()
    stage.screen.note(f"   this part took {time.monotonic() - started:.1f} s", "quiet")
    return True


async def _question(request: DemoRequest, stage: Stage) -> None:
    """Part 1: a free question."""
    key = None if request.local else credentials(os.environ)
    _show_program(
        stage.screen, "import pilothouse as ph", f"result = await ph.query({request.prompt!r})", "print(result.text)"
    )
    if key is not None:
        _introduce(stage.screen, f"the real one, as {key} is set; --local takes the embedded one", request.prompt)
        await _run(stage, request.prompt, {"cwd": str(stage.directory), "max_turns": 1, "tools": []}, free=False)
        return
    from pilothouse.local import LocalModel

    home = stage.directory / "home"
    (home / "tmp").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        with stage.screen.progress("local model") as progress:
            model = await stack.enter_async_context(LocalModel(progress=progress))
        _introduce(stage.screen, "SmolLM2-135M, open and small, on this machine; weak, calls no tools", request.prompt)
        env = {**hermetic_environment(home, base_url=model.url), **model.env()}
        await _run(
            stage, request.prompt, {**model.options(), "cwd": str(home), "env": env, "inherit_env": False}, free=True
        )


async def _tools(request: DemoRequest, stage: Stage) -> None:
    """Part 2: real tools, scripted model."""
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        raise UsageError("the scripted model needs an extra: pip install 'pilothouse[testing]'")
    from pilothouse.testing import ScriptedModel

    directory = stage.directory / "work"
    directory.mkdir()
    soundings = scripted_plan.Soundings.write(directory)
    async with ScriptedModel() as model:
        scripted_plan.follow_plan(model, soundings)
        _introduce(
            stage.screen,
            "scripted: no AI, this program plays its part, so no key is needed; Claude Code and its tools are real",
            scripted_plan.PROMPT,
        )
        asked: list[str] = []

        def show(line: str) -> None:
            asked.append(line)
            stage.screen.note(f"  ? {line}", "warning")

        agent = scripted_plan.make_agent(soundings, show)
        _show_program(stage.screen, scripted_plan.PROGRAM, "result = await agent.query(prompt)")
        settings: dict[str, Any] = {
            "cwd": str(directory),
            "env": model.env(),
            "inherit_env": False,
            "max_turns": 8,
            "model": "claude-haiku-4-5",
            "setting_sources": [],
            "strict_mcp_config": True,
            "tools": ["Bash", "Read", "Write"],
        }
        # What the program says, and nothing of this machine's configuration.
        settings |= {name: getattr(agent.options, name) for name in ("can_use_tool", "custom_tools", "hooks")}
        answer, used = await _run(stage, scripted_plan.PROMPT, settings, free=True)
    if used != ["Bash", "mcp__tools__find_place", "Write"] or not asked or not soundings.is_found(answer):
        raise PilothouseError("the tools did not do what the program says")


def _show_program(screen: Screen, *lines: str) -> None:
    for line in "\n".join(lines).splitlines():
        screen.note(f"   | {line}", "quiet")


def _introduce(screen: Screen, model: str, prompt: str) -> None:
    screen.note(f"   model:  {model}", "quiet")
    screen.note(f"   prompt: {prompt}")


async def _run(stage: Stage, prompt: str, settings: dict[str, Any], *, free: bool) -> tuple[str, list[str]]:
    """Ask and show.

    Returns:
        The answer, and the names of the tools that ran without an error.

    Raises:
        PilothouseError: no answer came, or an error.
    """
    # Not for keeps: nothing of it is written to the user's sessions.
    own = {"cli": stage.cli, "partial_messages": True, "persist_session": False, "timeout": QUERY_TIMEOUT_S}
    options = Options(**cast("Settings", {**settings, **own}))
    telling = Telling(stage.screen, stage.redact)
    stage.screen.busy("starting Claude Code")
    async with Query(prompt, options) as query:
        cut = await follow(query, telling.tell, may_cut=free)
        result = await query.result()
    stage.screen.end_text()
    stage.screen.idle()
    if cut:
        stage.screen.note(f"   {CUT_NOTE}", "warning")
    else:
        result.raise_for_error()
    if not telling.told_text:
        raise PilothouseError("the model gave an empty answer")
    version = telling.init.claude_code_version if telling.init is not None else None
    stage.screen.note(
        f"   Claude Code {version or '(unknown version)'}: {closing_line(result, free=free, session=False)}", "quiet"
    )
    used = [event.tool_use.name for event in telling.finished_tools if event.tool_use and not event.result.is_error]
    return result.text, used


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the demo."""

    title: str
    play: Callable[[DemoRequest, Stage], Awaitable[None]]


_PARTS = {"question": Part("A question", _question), "tools": Part("Tools, a hook, a permission", _tools)}
