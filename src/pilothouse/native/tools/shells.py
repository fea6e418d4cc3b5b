"""`Bash` and `TaskStop`: commands of a shell.

Owns what a call of Bash is: where it starts, how long it may take, what of its output the model sees, what goes on
in the background. Processes are in `jobs`; whether a command may run is decided elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from pilothouse.native.tools.base import ToolOutcome, Workplace
from pilothouse.native.tools.builtin import Builtin, ToolFault, failed, flag, number, schema, size_text, text
from pilothouse.native.tools.jobs import Job, LastingJob, read_output

# Milliseconds, as in 2.1.330.
USUAL_TIMEOUT = 120_000
MOST_TIMEOUT = 600_000
USUAL_BACKGROUND = 1_800_000
MOST_BACKGROUND = 7_200_000
# Characters of output that the model sees; longer output is put aside, and it sees the beginning.
USUAL_OUTPUT = 30_000
MOST_OUTPUT = 150_000
PREVIEW = 2000
MOST_KEPT = 10_000_000
NOTHING = "(The command ended without output.)"
# Exit status 1 of these is an answer.
ANSWERS = {
    "[": "Condition is false",
    "cmp": "Files differ",
    "diff": "Files differ",
    "egrep": "No matches found",
    "grep": "No matches found",
    "rg": "No matches found",
    "test": "Condition is false",
}
# `eval` keeps what the command says about itself out of the way of the rest; the directory is told when it went well.
SCRIPT = """__command=$1 __directory=$2; shift 2
eval "$__command" </dev/null
__status=$?
[ "$__status" -ne 0 ] || pwd -P >"$__directory" 2>/dev/null
exit "$__status"
"""


async def _bash(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    key = f"b{uuid.uuid4().hex[:8]}"
    behind = bool(tool_input.get("run_in_background"))
    limit = _limit(tool_input.get("timeout"), workplace.env, behind=behind)
    job = await to_thread.run_sync(_start, str(tool_input["command"]), workplace, key, limit)
    if behind:
        workplace.open[key] = LastingJob(job, str(tool_input.get("description") or tool_input["command"]))
        told = f"Running in the background with ID {key}. Its output goes to {job.output}: read that file to see it."
        told += " TaskStop stops it."
        return ToolOutcome(told, result=_result(backgroundTaskId=key))
    await job.ended()
    if job.leaves_some and not job.stopped_for:
        workplace.open[key] = LastingJob(job, "what a command left running")
    return await to_thread.run_sync(_tell, str(tool_input["command"]), job, workplace, key)


def _start(command: str, workplace: Workplace, key: str, limit: float) -> Job:
    if "\0" in command:
        raise ToolFault("A command cannot contain a null byte")
    if not workplace.cwd.is_dir():
        workplace.cwd = workplace.root
    path = workplace.env.get("PATH", os.defpath)
    shell = shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"
    env = {**workplace.env, "GIT_EDITOR": "true", "PWD": str(workplace.cwd)}
    argv = [shell, "-c", SCRIPT, shell, command, str(workplace.aside(f"{key}.directory"))]
    output = workplace.aside(f"{key}.output")
    return Job.start(argv, cwd=workplace.cwd, env=env, output=output, limit=limit)


def _limit(asked: float | None, env: Mapping[str, str], *, behind: bool) -> float:
    """Seconds a command may take."""
    usual = _whole(env, "BASH_DEFAULT_TIMEOUT_MS", USUAL_TIMEOUT)
    most = max(_whole(env, "BASH_MAX_TIMEOUT_MS", MOST_TIMEOUT), usual)
    if behind:
        usual, most = USUAL_BACKGROUND, max(MOST_BACKGROUND, most)
    return (min(asked, most) if asked is not None and asked > 0 else usual) / 1000


def _whole(env: Mapping[str, str], name: str, usual: int) -> int:
    value = env.get(name, "")
    return int(value) if value.isdecimal() and 0 < int(value) < 2**31 else usual


def _follow(workplace: Workplace, key: str) -> str:
    """Go where the command went, if that is in the directories of the work; gives a note if it is not."""
    went = workplace.aside(f"{key}.directory")
    told, _ = read_output(went, 8192)
    went.unlink(missing_ok=True)
    folder = told.removesuffix("\n")
    if not folder or Path(folder) == workplace.cwd:
        return ""
    roots = [os.path.realpath(root) for root in (workplace.root, *workplace.directories)]
    if Path(folder).is_dir() and any(Path(folder).is_relative_to(root) for root in roots):
        workplace.cwd = Path(folder)
        return ""
    workplace.cwd = workplace.root
    return f"The next command starts in {workplace.root}: this one ended outside the working directories."


def _tell(command: str, job: Job, workplace: Workplace, key: str) -> ToolOutcome:
    note = _follow(workplace, key)
    shown, size = read_output(job.output, MOST_KEPT)
    shown = shown.rstrip().lstrip("\n")
    most = min(_whole(workplace.env, "BASH_MAX_OUTPUT_LENGTH", USUAL_OUTPUT), MOST_OUTPUT)
    content = shown
    if len(shown) > most or size > MOST_KEPT:
        content = (
            f"The output is long ({size_text(size)}). All of it is in {job.output}\n\n"
            f"Its beginning:\n{shown[:PREVIEW]}\n..."
        )
    elif not job.leaves_some:
        job.output.unlink(missing_ok=True)
    content = "\n".join(piece for piece in (content, note) if piece)
    code = job.returncode or 0
    status = code if code >= 0 else 128 - code
    if job.stopped_for:
        return failed(f"Exit code {status or 143}\nCommand was stopped: {job.stopped_for}\n{content}".rstrip())
    meaning = ANSWERS.get(_last_program(command)) if code == 1 else None
    if code and meaning is None:
        return failed(f"Exit code {status}\n{content}".rstrip())
    result = _result(stdout=shown[:most], stderr=note)
    if meaning:
        result["returnCodeInterpretation"] = meaning
    return ToolOutcome(content or NOTHING, result=result)


def _result(stdout: str = "", stderr: str = "", **more: Any) -> dict[str, Any]:
    return {
        "stdout": stdout,
        "stderr": stderr,
        "interrupted": False,
        "isImage": False,
        "noOutputExpected": False,
        **more,
    }


def _last_program(command: str) -> str:
    """The name of the last program in a command, roughly: it only decides how an exit status is worded."""
    pieces = [piece.split() for piece in re.split(r"[;&|\n]+", command) if piece.strip()]
    return pieces[-1][0].rsplit("/", 1)[-1] if pieces else ""


async def _task_stop(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
    key = str(tool_input.get("task_id") or tool_input.get("shell_id") or "")
    found = workplace.open.get(key)
    if not isinstance(found, LastingJob):
        raise ToolFault(f"There is no background task with the ID {key!r}")
    was_running = found.job.running
    with anyio.CancelScope(shield=True):
        await found.close()
        workplace.open.pop(key, None)
    told = f"Stopped {key} ({found.description})" if was_running else f"{key} had ended already"
    return ToolOutcome(told, result={"message": told, "task_id": key, "task_type": "local_bash"})


BASH = Builtin(
    "Bash",
    "Runs a command in a shell and gives its output.\n\n"
    "- The working directory carries over to the next call if the command succeeds and ends in the working directories;"
    " variables and functions do not.\n"
    "- There is no standard input: use options instead of interactive programs.\n"
    f"- `timeout` is in milliseconds, {USUAL_TIMEOUT} unless given and at most {MOST_TIMEOUT}.\n"
    "- `run_in_background` starts the command and returns at once with the file its output goes to; its `timeout` is "
    f"{USUAL_BACKGROUND} unless given and at most {MOST_BACKGROUND}.\n"
    "- Prefer Read, Edit, Write, Glob and Grep to programs that do the same.",
    schema(
        {
            "command": text("The command to run"),
            "timeout": number(f"Milliseconds after which it is stopped, at most {MOST_TIMEOUT} in the foreground"),
            "description": text("What the command does, in a few plain words"),
            "run_in_background": flag("Start it and do not wait"),
            "dangerouslyDisableSandbox": flag("Has no effect here: there is no sandbox"),
        },
        "command",
    ),
    _bash,
)
TASK_STOP = Builtin(
    "TaskStop",
    "Stops a command that runs in the background, by its ID.",
    schema({"task_id": text("The ID of the background task"), "shell_id": text("The same, by its old name")}),
    _task_stop,
)
