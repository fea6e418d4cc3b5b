"""`pilothouse install-cli`: installs, checks, shows or removes the managed copy of Claude Code.

Owns the display of an installation, also for other commands, and `--local`, which starts the embedded model.
`provision` knows what is downloaded from where, and how it is verified.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
from anyio import to_thread

from pilothouse.client import default_agent
from pilothouse.errors import CLINotFoundError, PilothouseError, ProvisionError, UsageError
from pilothouse.options import Options, Settings
from pilothouse.provision import (
    PINNED_VERSION,
    install_cli,
    managed_cli,
    managed_cli_path,
    managed_versions,
    uninstall_cli,
)
from pilothouse.support import run_cancellable
from pilothouse.transports import find_cli
from pilothouse.transports.discovery import may_install
from pilothouse_cli.cli_version import ask_version
from pilothouse_cli.failures import FAILED, join_lines
from pilothouse_cli.flags import InstallAction, InstallRequest
from pilothouse_cli.screen import Progress, Screen


@dataclass(slots=True)
class _InstallReport:
    """The final report; the object of `--json`."""

    path: str
    version: str
    action: InstallAction
    ok: bool = False
    fetched: bool = False
    seconds: float = 0.0
    removed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    error: str | None = None


async def install(request: InstallRequest, screen: Screen) -> int:
    """Execute the request and show the result; return the exit code.

    The path or the JSON object goes to the text of the screen, and then everything else to standard error.
    """
    notes = screen if request.form == "text" else Screen(sys.stderr, sys.stderr)
    report = _InstallReport(str(managed_cli_path()), PINNED_VERSION, request.action)
    started, before = time.monotonic(), managed_versions()
    try:
        if request.action == "uninstall":
            await to_thread.run_sync(uninstall_cli)
        else:
            await _check_executable(
                await (_find(report) if request.action == "check" else _install(request, report, notes))
            )
    except PilothouseError as error:
        report.error = join_lines(str(error))
    after = managed_versions()
    report.removed = tuple(version for version in before if version not in after)
    report.others = tuple(version for version in after if version != report.version)
    report.seconds = round(time.monotonic() - started, 3)
    report.ok = report.error is None
    if request.form == "json":
        screen.text(msgspec.json.encode(report).decode() + "\n")
    elif report.error is not None:
        notes.note(f"pilothouse: {report.error}", "error")
    elif request.form == "path":
        screen.text(report.path + "\n")
    else:
        for line in _format_report(report):
            notes.note(line)
    return 0 if report.ok else FAILED


async def _install(request: InstallRequest, report: _InstallReport, notes: Screen) -> Path:
    with notes.progress("Claude Code") as progress:

        def report_stage(stage: str, done: int, total: int | None) -> None:
            report.fetched = report.fetched or stage == "extract"
            progress(stage, done, total)

        return await _install_in_thread(report_stage, force=request.force)


async def _find(report: _InstallReport) -> Path:
    path = await to_thread.run_sync(lambda: managed_cli(hashing=True))
    if path is None:
        there = managed_cli_path().exists()
        what = f"{report.path} is not the tested {report.version}" if there else f"there is no {report.path}"
        raise ProvisionError(f"{what}; `pilothouse install-cli` installs it")
    return path


async def _check_executable(path: Path) -> None:
    """Check that the executable runs: a library may be missing, or the directory may forbid execution."""
    version = await ask_version(str(path), os.environ)
    if version != PINNED_VERSION:
        raise ProvisionError(f"{path} says that it is version {version}, and not {PINNED_VERSION}")


def _format_report(report: _InstallReport) -> list[str]:
    removed = [f"removed from the cache: Claude Code {version}" for version in report.removed]
    if report.action == "uninstall":
        return removed or ["there is no copy of Claude Code in the cache"]
    how = f": installed in {report.seconds:.0f} s" if report.fetched else " is already installed"
    return [*removed, f"Claude Code {report.version}{how}", report.path]


# For other commands.


async def ensure_cli(wanted: str, env: Mapping[str, str], screen: Screen) -> str:
    """Return the path of the executable; install the managed copy, with a progress bar, if needed and allowed."""
    try:
        return await to_thread.run_sync(find_cli, wanted, env)
    except CLINotFoundError:
        if not may_install(wanted, env):
            raise
    screen.note(f"downloading Claude Code {PINNED_VERSION} (Anthropic's software, under Anthropic's terms)", "quiet")
    with screen.progress("Claude Code") as progress:
        return str(await _install_in_thread(progress))


async def _install_in_thread(progress: Progress, *, force: bool = False) -> Path:
    """Install in a thread; when this task is cancelled, the installation ends and removes what it made."""

    def work(check: Callable[[], None]) -> Path:
        def report(stage: str, done: int, total: int | None) -> None:
            check()
            progress(stage, done, total)

        return install_cli(force=force, progress=report)

    return await run_cancellable(work)


LOCAL_MODEL_NAME = "SmolLM2-135M"
LOCAL_MODEL_NOTES = {
    False: f"answered by {LOCAL_MODEL_NAME}, a very small open model on this machine: often wrong, calls no tools",
    True: f"answered by {LOCAL_MODEL_NAME}, a very small open model on this machine: often wrong, tool calls too",
}
"""By whether the model gets tools."""


async def apply_local_model(own: Options, stack: AsyncExitStack, screen: Screen) -> Options:
    """Start the model, which `stack` ends; return its settings for Claude Code, merged with those of the command.

    Raises:
        UsageError: the command names another model, or the extra is not installed.
    """
    # Here, so that a chat without the model starts fast.
    from pilothouse_models.local import LocalModel
    from pilothouse_models.local.model import check_extra

    if own.model is not None:
        raise UsageError("--local brings its own model: omit --model")
    check_extra()
    options = default_agent().options.merge(own)
    await ensure_cli(options.cli, os.environ, screen)
    # A JSON Schema needs a tool. With tools the model answers more slowly.
    calls_tools = bool(options.tools) or options.json_schema is not None
    screen.note(LOCAL_MODEL_NOTES[calls_tools], "quiet")
    with screen.progress("local model") as progress:
        model = await stack.enter_async_context(LocalModel(calls_tools=calls_tools, progress=progress))
    return Options(**cast("Settings", model.options())).merge(own)
