"""`pilothouse demo`: two short programs against the real Claude Code.

Owns the program that part 2 shows and runs, its data file, and the replies of the scripted model.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pilothouse import __version__
from pilothouse.client import Query
from pilothouse.errors import PilothouseError
from pilothouse.options import Options, Settings
from pilothouse.support import Redactor, secret_values
from pilothouse_cli.failures import FAILED, find_credentials, get_own_command, report_failure
from pilothouse_cli.flags import DemoRequest
from pilothouse_cli.install import LOCAL_MODEL_NAME, ensure_cli
from pilothouse_cli.progress import ProgressPrinter, format_summary
from pilothouse_cli.screen import Screen
from pilothouse_models.local import LocalModel
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, Text, ToolUse
from pilothouse_testing.scripted_model import hermetic_environment

DATA_FILE, ANSWER_FILE = "soundings.txt", "shallowest.txt"
PROMPT = f"{DATA_FILE} holds depths in metres. Where is it shallowest? Note the answer in {ANSWER_FILE}, then tidy up."
PLACE_NAMES = (
    "Gull Rock", "North Channel", "the harbour mouth", "Long Bank", "Seal Point", "the anchorage", "Mill Creek"
)  # fmt: skip
MAX_DEPTH = 90  # metres
DELTA_SECONDS = 0.02  # between the chunks of a text, so that streaming is visible

PROGRAM = '''\
import pilothouse as ph

def find_place(depth: int) -> str:                      # a tool: the model may call it
    """Where a depth in metres was measured."""
    return LOGBOOK[depth]

def keep_files(event):                                  # a hook: sees each command first
    if event.tool_input["command"].startswith("rm "):
        return ph.HookOutput.deny("Nothing is deleted here.")

def may_run(request):                                   # asked when a tool needs permission
    print(f"may {request.tool_name} run? yes")
    return True

agent = ph.Agent(custom_tools=[find_place], can_use_tool=may_run,
                 hooks={"PreToolUse": [ph.HookMatcher("Bash", keep_files)]})
'''
"""Shown and run unchanged. `LOGBOOK` and `print` are defined for it."""


@dataclass(frozen=True, slots=True)
class DepthFile:
    """The file that the tools work on, and the expected result."""

    path: Path
    places: dict[int, str]

    @classmethod
    def write(cls, directory: Path) -> DepthFile:
        """Generate distinct depths and write them."""
        depths = random.sample(range(2, MAX_DEPTH), len(PLACE_NAMES))
        path = directory / DATA_FILE
        path.write_text("".join(f"{depth}\n" for depth in depths))
        return cls(path, dict(zip(depths, PLACE_NAMES, strict=True)))

    def is_answered_by(self, answer: str) -> bool:
        """Whether an answer names the least depth and its place, and the files are correct."""
        least = min(self.places)
        noted = self.path.with_name(ANSWER_FILE)
        found = f"{least} m" in answer and self.places[least] in answer
        return found and self.path.exists() and noted.exists() and self.places[least] in noted.read_text()


def make_agent(depths: DepthFile, show: Callable[[str], object]) -> Any:
    """Make the agent of `PROGRAM`, whose `print` is `show`."""
    names: dict[str, Any] = {"LOGBOOK": depths.places, "print": show, "__name__": "demo"}
    exec(PROGRAM, names)  # noqa: S102 - a constant: the shown program is executed
    return names["agent"]


def script_replies(model: ScriptedModel, depths: DepthFile) -> None:
    """Script the model's replies: Bash for the least depth, the tool for its place, Write, Bash again, the answer."""
    found: list[str] = []

    def find_place(request: RecordedRequest) -> list[Text | ToolUse]:
        found.append(_get_last_text(request))
        depth = int(found[0]) if found[0].isdigit() else 0
        return [Text("Now where that was.", delay=DELTA_SECONDS), ToolUse("mcp__tools__find_place", {"depth": depth})]

    def note_it(request: RecordedRequest) -> ToolUse:
        found.append(_get_last_text(request))
        noted = {"file_path": str(depths.path.with_name(ANSWER_FILE)), "content": f"{found[1]}: {found[0]} m\n"}
        return ToolUse("Write", noted)

    def answer(request: RecordedRequest) -> Text:
        kept = f" I left {DATA_FILE} where it is: I may not delete it." if depths.path.exists() else ""
        text = f"It is shallowest at {found[1]}, with {found[0]} m. I noted that in {ANSWER_FILE}.{kept}"
        return Text(text, delay=DELTA_SECONDS)

    plan = Steps(
        [
            Text("I sort the depths first.", delay=DELTA_SECONDS),
            ToolUse("Bash", {"command": f"sort -n {DATA_FILE} | head -n 1", "description": "Find the least depth"}),
        ],
        find_place,
        note_it,
        ToolUse("Bash", {"command": f"rm {DATA_FILE}", "description": "Tidy up"}),
        answer,
    )
    model.on(DATA_FILE, reply=plan, name="the plan of the demo")


def _get_last_text(request: RecordedRequest) -> str:
    # Claude Code may append a reminder to the output of a tool.
    result = request.last_tool_result
    return result.text.partition("<system-reminder>")[0].strip() if result is not None else ""


QUERY_TIMEOUT_SECONDS = 180.0
"""Timeout in seconds, so that a demo fails instead of hanging; on a slow machine an answer takes some 20 s."""


@dataclass(frozen=True, slots=True)
class DemoContext:
    """The context of the demo: its screen, the CLI, and a temporary directory."""

    screen: Screen
    redact: Callable[[str], str]
    cli: str
    directory: Path


DemoPart = Callable[[DemoRequest, DemoContext], Awaitable[None]]


async def demo(request: DemoRequest, screen: Screen) -> int:
    """Show both parts; return the exit code."""
    redact = Redactor(secret_values(os.environ)).redact
    started = time.monotonic()
    screen.note(f"pilothouse {__version__}: Claude Code, controlled from Python", "title")
    cli = await ensure_cli(request.cli, os.environ, screen)
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pilothouse-demo-", ignore_cleanup_errors=True) as name:
        context = DemoContext(screen, redact, cli, Path(name))
        for number, (title, run) in enumerate(_DEMO_PARTS[request.scripted :], start=1):
            screen.note("")
            screen.note(f"{number}. {title}", "title")
            if not await _run_part(run, request, context):
                failed.append(title)
    screen.note("")
    seconds = f"{time.monotonic() - started:.1f} s"
    if failed:
        screen.note(f"failed: {', '.join(failed)} ({seconds} in all)", "error")
        return FAILED
    screen.note(f"Everything worked, in {seconds}.", "good")
    local = "" if find_credentials(os.environ) and not request.local else "--local "
    command = get_own_command()
    screen.note(f'Next: {command} ask {local}"your question"     {command} --help')
    return 0


async def _run_part(run: DemoPart, request: DemoRequest, context: DemoContext) -> bool:
    """Show one part; return whether it worked."""
    started = time.monotonic()
    try:
        await run(request, context)
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        report_failure(context.screen, error)
        return False
    finally:
        context.screen.idle()
    context.screen.note(f"   this part took {time.monotonic() - started:.1f} s", "quiet")
    return True


async def _run_question(request: DemoRequest, context: DemoContext) -> None:
    """Part 1: a free question."""
    key = None if request.local else find_credentials(os.environ)
    _print_program(
        context.screen, "import pilothouse as ph", f"result = await ph.query({request.prompt!r})", "print(result.text)"
    )
    if key is not None:
        _print_prompt(context.screen, f"Claude, because {key} is set; --local uses the local model", request.prompt)
        await _run_query(
            context, request.prompt, {"cwd": str(context.directory), "max_turns": 1, "tools": []}, free=False
        )
        return
    home = context.directory / "home"
    (home / "tmp").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        with context.screen.progress("local model") as progress:
            model = await stack.enter_async_context(LocalModel(progress=progress))
        _print_prompt(
            context.screen,
            f"{LOCAL_MODEL_NAME}, a very small open model on this machine: often wrong, calls no tools",
            request.prompt,
        )
        env = {**hermetic_environment(home, base_url=model.url), **model.env()}
        await _run_query(
            context, request.prompt, {**model.options(), "cwd": str(home), "env": env, "inherit_env": False}, free=True
        )


async def _run_tools(request: DemoRequest, context: DemoContext) -> None:
    """Part 2: real tools, scripted model."""
    directory = context.directory / "work"
    directory.mkdir()
    soundings = DepthFile.write(directory)
    async with ScriptedModel() as model:
        script_replies(model, soundings)
        _print_prompt(
            context.screen,
            "scripted: a program plays its part, so no key is needed; Claude Code and its tools are real",
            PROMPT,
        )
        asked: list[str] = []

        def show(line: str) -> None:
            asked.append(line)
            context.screen.note(f"  ? {line}", "warning")

        agent = make_agent(soundings, show)
        _print_program(context.screen, PROGRAM, "result = await agent.query(prompt)")
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
        # The program's settings, and nothing of this machine's configuration.
        settings |= {name: getattr(agent.options, name) for name in ("can_use_tool", "custom_tools", "hooks")}
        answer, used = await _run_query(context, PROMPT, settings, free=True)
    if used != ["Bash", "mcp__tools__find_place", "Write"] or not asked or not soundings.is_answered_by(answer):
        raise PilothouseError("the tools did not do what the program says")


def _print_program(screen: Screen, *lines: str) -> None:
    for line in "\n".join(lines).splitlines():
        screen.note(f"   | {line}", "quiet")


def _print_prompt(screen: Screen, model: str, prompt: str) -> None:
    screen.note(f"   model:  {model}", "quiet")
    screen.note(f"   prompt: {prompt}")


async def _run_query(
    context: DemoContext, prompt: str, settings: dict[str, Any], *, free: bool
) -> tuple[str, list[str]]:
    """Make a query and show it; return the answer, and the names of the tools that ran without an error."""
    # Temporary: nothing of it is written to the user's sessions.
    own = {"cli": context.cli, "partial_messages": True, "persist_session": False, "timeout": QUERY_TIMEOUT_SECONDS}
    options = Options(**cast("Settings", {**settings, **own}))
    printer = ProgressPrinter(context.screen, context.redact)
    context.screen.busy("starting Claude Code")
    async with Query(prompt, options) as query:
        async for message in query:
            printer.print_message(message)
        result = await query.result()
    context.screen.end_text()
    context.screen.idle()
    result.raise_for_error()
    if not printer.has_printed_text:
        raise PilothouseError("the model gave an empty answer")
    version = printer.init.claude_code_version if printer.init is not None else None
    context.screen.note(
        f"   Claude Code {version or '(unknown version)'}: {format_summary(result, free=free, session=False)}", "quiet"
    )
    used = [event.tool_use.name for event in printer.finished_tools if event.tool_use and not event.result.is_error]
    return result.text, used


_DEMO_PARTS: tuple[tuple[str, DemoPart], ...] = (
    ("A question", _run_question),
    ("Tools, a hook, a permission", _run_tools),
)
