"""`Bash` and `TaskStop`, and commands as child processes.

A command has its own process group, its output in a file, limits of time and size, and a bounded end. The watchdog
ends it if this process is killed.
`native.permissions` decides whether it may run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from pilothouse.support import find_program
from pilothouse.transports.process_start import start_process
from pilothouse.transports.watchdog import watchdog
from pilothouse_native.tools.base import (
    BuiltinSpec,
    BuiltinToolError,
    ToolOutput,
    Workplace,
    format_size,
    make_failure,
    make_property,
    make_schema,
)

MAX_OUTPUT_BYTES = 1 << 30
"""Limit of a command's output, in bytes, so that it does not fill the disk."""
POLL_SECONDS = 0.25
"""Seconds between checks of the output's size."""
TERMINATE_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL."""
REAP_SECONDS = 5.0
"""Seconds to wait for the exit of a killed process."""


class CommandProcess:
    """A running command, without standard input, as the leader of a new session.

    It is stopped after `limit` seconds or `max_bytes` of output. Standard error goes to `errors`, else to `output`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: Path,
        limit: float,
        max_bytes: int,
        errors: Path | None = None,
        description: str = "",
    ) -> None:
        self.output, self.description = output, description
        self.returncode: int | None = None  # negative for a signal; None while the command runs
        self.is_status_known = True
        self.stop_reason = ""
        self._limit, self._max_bytes = limit, max_bytes
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(output.open("ab"))
            err = stack.enter_context(errors.open("ab")) if errors else out
            nothing = stack.enter_context(open(os.devnull, "rb"))  # noqa: PTH123
            self._pid = start_process(
                argv, stdin=nothing.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=env, cwd=str(cwd)
            )
        watchdog.guard(self._pid)
        for watch in (self._watch_exit, self._watch_limits):
            threading.Thread(target=watch, name=f"pilothouse job {self._pid}", daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether the first process of the command has not ended."""
        return not self._has_ended.is_set()

    async def wait(self) -> int:
        """Wait for the end, and return the exit status. A cancellation stops the command and all its processes."""
        try:
            # A separate limiter: the threads of the default one may all be waiting for other commands.
            await to_thread.run_sync(self._has_ended.wait, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        assert self.returncode is not None
        return self.returncode

    async def close(self) -> None:
        """Stop all processes of the process group. Idempotent."""
        await to_thread.run_sync(self.stop, limiter=anyio.CapacityLimiter(1))

    def stop(self, why: str = "") -> None:
        """Stop like `close`, but blocking, for at most `TERMINATE_SECONDS` plus `REAP_SECONDS` seconds."""
        self.stop_reason = self.stop_reason or why
        if self.is_running:
            self._signal(signal.SIGTERM)
            self._has_ended.wait(TERMINATE_SECONDS)
        self._signal(signal.SIGKILL)
        self._has_ended.wait(REAP_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.returncode is None or self.has_survivors:
                os.killpg(self._pid, number)

    @property
    def has_survivors(self) -> bool:
        """Whether other processes of the group outlive the first. While they do, the group's number is not reused."""
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _watch_exit(self) -> None:
        if hasattr(os, "waitid"):
            # Without reaping the process, because until then its number is not reused.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                watchdog.release(self._pid)
                self.returncode = self._reap()
        else:
            self.returncode = self._reap()  # macOS before Python 3.13: this reaps the process a moment too early
            watchdog.release(self._pid)
        self._has_ended.set()

    def _reap(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:  # this program ignores SIGCHLD, or has collected the status itself
            self.is_status_known = False
            return 0

    def _watch_limits(self) -> None:
        ends_at = time.monotonic() + self._limit
        while not self._has_ended.wait(max(0.0, min(POLL_SECONDS, ends_at - time.monotonic()))):
            if time.monotonic() >= ends_at:
                return self.stop(f"timed out after {self._limit:g} s")
            with contextlib.suppress(OSError):
                if self.output.stat().st_size > self._max_bytes:
                    return self.stop(f"its output is longer than {self._max_bytes} bytes")
        return None


def read_output(path: Path, max_bytes: int) -> tuple[str, int]:
    """Return the beginning of an output as text, at most `max_bytes` bytes of it, and the total number of bytes."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes).decode("utf-8", "replace"), path.stat().st_size
    except FileNotFoundError:
        return "", 0


# Milliseconds, as in the CLI.
DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 600_000
DEFAULT_BACKGROUND_MS = 1_800_000
MAX_BACKGROUND_MS = 7_200_000
# Characters of output for the model; of a longer output it gets the beginning and the name of the file.
DEFAULT_OUTPUT_CHARS = 30_000
MAX_OUTPUT_CHARS = 150_000
PREVIEW_CHARS = 2000
MAX_READ_BYTES = 10_000_000
NO_OUTPUT = "(The command ended without output.)"
UNKNOWN_STATUS = "The exit status is unknown, because the program that runs this session ignores SIGCHLD."
# Exit status 1 of these programs is not a failure.
EXIT_ONE_MEANINGS = {
    **dict.fromkeys(("[", "test"), "Condition is false"),
    **dict.fromkeys(("cmp", "diff"), "Files differ"),
    **dict.fromkeys(("egrep", "grep", "rg"), "No matches found"),
}
# The limit is the mark of what the command detaches. `eval` isolates the command from the rest of the script; the
# directory is written after a success.
SCRIPT = """[ -z "$3" ] || ulimit -S -m "$3" 2>/dev/null
__command=$1 __directory=$2; shift 3
eval "$__command" </dev/null
__status=$?
[ "$__status" -ne 0 ] || pwd -P >"$__directory" 2>/dev/null
exit "$__status"
"""


async def _run_bash(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    key, command = f"b{uuid.uuid4().hex[:8]}", str(tool_input["command"])
    behind = bool(tool_input.get("run_in_background"))
    limit = _get_limit(tool_input.get("timeout"), workplace.env, behind=behind)
    description = str(tool_input.get("description") or command) if behind else "what a command left running"
    job = await to_thread.run_sync(_start_command, command, workplace, key, limit, description)
    if behind:
        workplace.open_resources[key] = job
        text = f"Running in the background with ID {key}. Its output goes to {job.output}: read that file to see it."
        return ToolOutput(f"{text} TaskStop stops it.", result=_make_result(backgroundTaskId=key))
    await job.wait()
    if job.has_survivors and not job.stop_reason:
        workplace.open_resources[key] = job
    return await to_thread.run_sync(_format_output, command, job, workplace, key)


def _start_command(command: str, workplace: Workplace, key: str, limit: float, description: str) -> CommandProcess:
    if "\0" in command:
        raise BuiltinToolError("A command cannot contain a null byte")
    if not workplace.cwd.is_dir():
        workplace.cwd = workplace.root
    path = workplace.env.get("PATH", os.defpath)
    shell = find_program("bash", path) or find_program("sh", path) or "/bin/sh"
    env = {**_guard_git(workplace.env), "GIT_EDITOR": "true", "PWD": str(workplace.cwd)}
    mark, directory = workplace.get_mark(), workplace.make_scratch_path(f"{key}.directory")
    argv = [shell, "-c", SCRIPT, shell, command, str(directory), str(mark.kib) if mark else ""]
    output = workplace.make_scratch_path(f"{key}.output")
    return CommandProcess(
        argv,
        cwd=workplace.cwd,
        env=env,
        output=output,
        limit=limit,
        max_bytes=MAX_OUTPUT_BYTES,
        description=description,
    )


# The model can write files that make a directory a bare repository, whose configuration names programs for git to run.
_GIT_SETTINGS = {"safe.bareRepository": "explicit", "core.fsmonitor": "false"}


def _guard_git(env: Mapping[str, str]) -> dict[str, str]:
    """Add settings for git to those that the environment has; one that it has stays."""
    given = env.get("GIT_CONFIG_COUNT") or "0"
    if not given.isdecimal() or int(given) > len(env):
        return dict(env)  # git reports the mistake
    count, guarded = int(given), dict(env)
    names = {env.get(f"GIT_CONFIG_KEY_{number}", "").lower() for number in range(count)}
    for name, value in _GIT_SETTINGS.items():
        if name.lower() not in names:
            guarded |= {f"GIT_CONFIG_KEY_{count}": name, f"GIT_CONFIG_VALUE_{count}": value}
            count += 1
    return {**guarded, "GIT_CONFIG_COUNT": str(count)}


def _get_limit(milliseconds: float | None, env: Mapping[str, str], *, behind: bool) -> float:
    usual = _get_int(env, "BASH_DEFAULT_TIMEOUT_MS", DEFAULT_TIMEOUT_MS)
    most = max(_get_int(env, "BASH_MAX_TIMEOUT_MS", MAX_TIMEOUT_MS), usual)
    if behind:
        usual, most = DEFAULT_BACKGROUND_MS, max(MAX_BACKGROUND_MS, most)
    return (min(milliseconds, most) if milliseconds is not None and milliseconds > 0 else usual) / 1000


def _get_int(env: Mapping[str, str], name: str, usual: int) -> int:
    value = env.get(name, "")
    return int(value) if value.isdecimal() and 0 < int(value) < 2**31 else usual


def _follow_directory(workplace: Workplace, key: str) -> str:
    """Change to the command's last directory if it is in the working directories; else returns a note."""
    went = workplace.make_scratch_path(f"{key}.directory")
    text, _ = read_output(went, 8192)
    went.unlink(missing_ok=True)
    folder = text.removesuffix("\n")
    if not folder or Path(folder) == workplace.cwd:
        return ""
    roots = [os.path.realpath(root) for root in (workplace.root, *workplace.directories)]
    if Path(folder).is_dir() and any(Path(folder).is_relative_to(root) for root in roots):
        workplace.cwd = Path(folder)
        return ""
    workplace.cwd = workplace.root
    return f"The next command starts in {workplace.root}: this one ended outside the working directories."


def _format_output(command: str, job: CommandProcess, workplace: Workplace, key: str) -> ToolOutput:
    note = _follow_directory(workplace, key)
    if not job.is_status_known:
        note = f"{note}\n{UNKNOWN_STATUS}".strip()
    shown, size = read_output(job.output, MAX_READ_BYTES)
    shown = shown.rstrip().lstrip("\n")
    most = min(_get_int(workplace.env, "BASH_MAX_OUTPUT_LENGTH", DEFAULT_OUTPUT_CHARS), MAX_OUTPUT_CHARS)
    content = shown
    if len(shown) > most or size > MAX_READ_BYTES:
        content = f"The output is long ({format_size(size)}). All of it is in {job.output}\n\n"
        content += f"Its beginning:\n{shown[:PREVIEW_CHARS]}\n..."
    elif not job.has_survivors:
        job.output.unlink(missing_ok=True)
    content = "\n".join(piece for piece in (content, note) if piece)
    code = job.returncode or 0
    status = code if code >= 0 else 128 - code
    if job.stop_reason:
        return make_failure(f"Exit code {status or 143}\nCommand was stopped: {job.stop_reason}\n{content}".rstrip())
    meaning = EXIT_ONE_MEANINGS.get(_get_last_program(command)) if code == 1 else None
    if code and meaning is None:
        return make_failure(f"Exit code {status}\n{content}".rstrip())
    about = {"returnCodeInterpretation": meaning} if meaning else {}
    return ToolOutput(content or NO_OUTPUT, result=_make_result(stdout=shown[:most], stderr=note, **about))


def _make_result(stdout: str = "", stderr: str = "", **more: Any) -> dict[str, Any]:
    flags = {"interrupted": False, "isImage": False, "noOutputExpected": False}
    return {"stdout": stdout, "stderr": stderr, **flags, **more}


def _get_last_program(command: str) -> str:
    """Return the name of the last program in a command, roughly: it only affects how an exit status is worded."""
    pieces = [piece.split() for piece in re.split(r"[;&|\n]+", command) if piece.strip()]
    return pieces[-1][0].rsplit("/", 1)[-1] if pieces else ""


async def _run_task_stop(tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
    key = str(tool_input.get("task_id") or tool_input.get("shell_id") or "")
    found = workplace.open_resources.get(key)
    if not isinstance(found, CommandProcess):
        raise BuiltinToolError(f"There is no background task with the ID {key!r}")
    was_running = found.is_running
    with anyio.CancelScope(shield=True):
        await found.close()
        workplace.open_resources.pop(key, None)
    text = f"Stopped {key} ({found.description})" if was_running else f"{key} had ended already"
    return ToolOutput(text, result={"message": text, "task_id": key, "task_type": "local_bash"})


BASH = BuiltinSpec(
    "Bash",
    "Runs a command in a shell and gives its output.\n\n"
    "- The working directory carries over to the next call if the command succeeds and ends in the working directories;"
    " variables and functions do not.\n"
    "- There is no standard input: use options instead of interactive programs.\n"
    f"- `timeout` is in milliseconds, {DEFAULT_TIMEOUT_MS} unless given and at most {MAX_TIMEOUT_MS}.\n"
    "- `run_in_background` starts the command and returns at once with the file its output goes to; its `timeout` is "
    f"{DEFAULT_BACKGROUND_MS} unless given and at most {MAX_BACKGROUND_MS}.\n"
    "- Prefer Read, Edit, Write, Glob and Grep to programs that do the same.",
    make_schema(
        {
            "command": make_property("string", "The command to run"),
            "timeout": make_property(
                "number", f"Milliseconds after which it is stopped, at most {MAX_TIMEOUT_MS} in the foreground"
            ),
            "description": make_property("string", "What the command does, in a few plain words"),
            "run_in_background": make_property("boolean", "Start it and do not wait"),
            "dangerouslyDisableSandbox": make_property("boolean", "Has no effect here: there is no sandbox"),
        },
        "command",
    ),
    _run_bash,
)
TASK_STOP = BuiltinSpec(
    "TaskStop",
    "Stops a command that runs in the background, by its ID.",
    make_schema(
        {
            "task_id": make_property("string", "The ID of the background task"),
            "shell_id": make_property("string", "The same, by its old name"),
        }
    ),
    _run_task_stop,
)
