"""`pilothouse doctor`: whether everything that a query needs is there, and what to do about what is not.

Owns the list of checks and how they are shown. Shows names and places; never a key, and never what a variable holds.
"""

from __future__ import annotations

import os
import platform
import shlex
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, cast

import anyio.to_thread
import msgspec

from pilothouse._version import __version__
from pilothouse.cli.arguments import DoctorRequest
from pilothouse.cli.ask import write_line
from pilothouse.cli.failures import FAILED, failure
from pilothouse.cli.findings import Finding, Status, configuration, limits, settings_of_the_cli, way_to_pay
from pilothouse.cli.screen import Screen, Style
from pilothouse.client import Query, default_agent
from pilothouse.client.config_file import config_file, printable
from pilothouse.errors import PilothouseError
from pilothouse.messages import InitMessage
from pilothouse.options import Options, Settings
from pilothouse.options.secrets import Redactor, secret_values
from pilothouse.provision.cli import PINNED_VERSION, managed_cli_path
from pilothouse.transports.discovery import OLDEST_VERSION, check_version, find_cli, parse_version

ROUND_TRIP_TIMEOUT_S = 60.0
"""The first start of the executable on a cold disk takes some 10 s."""
QUESTION, ANSWER = "Is anybody there?", "Aye."

_MARKS: dict[Status, tuple[str, Style]] = {
    "ok": ("ok  ", "good"),
    "note": ("note", "quiet"),
    "warning": ("warn", "warning"),
    "failed": ("FAIL", "error"),
    "skipped": ("skip", "quiet"),
}


class Patient:
    """What is examined: the settings of this place, and what earlier checks found out."""

    def __init__(self, request: DoctorRequest) -> None:
        self.request = request
        self.executable: str | None = None

    def options(self) -> Options:
        """The settings of a query that is asked here.

        Raises:
            OptionsError: the file or a variable is wrong.
        """
        return default_agent().options.merge(Options(cli=self.request.cli) if self.request.cli else None)

    def cli_of_file(self) -> str | None:
        """The executable that the configuration file names, if it is the one in force: nothing runs it here."""
        options, file = self.options(), config_file()
        if file is None or self.request.cli or os.sep not in options.cli:
            return None
        return options.cli if options.explain()["cli"].origin.startswith(file.path) else None


async def doctor(request: DoctorRequest, screen: Screen) -> int:
    """Examine, show, and return the exit code: 0, or 1 if something failed."""
    patient = Patient(request)
    redact = Redactor(secret_values(os.environ)).redact
    found: list[Finding] = []
    if not request.json:
        screen.note(f"pilothouse {__version__}", "title")
    for check in _CHECKS:
        if check is _round_trip and not request.quick:
            screen.busy("asking Claude Code")
        for finding in await check(patient):
            clean = msgspec.structs.replace(finding, detail=redact(finding.detail), advice=redact(finding.advice))
            found.append(clean)
            if not request.json:
                _show(clean, screen)
    screen.idle()
    failed = [finding.what for finding in found if finding.status == "failed"]
    if request.json:
        write_line(msgspec.json.encode({"ok": not failed, "version": __version__, "findings": found}))
    else:
        warned = sum(finding.status == "warning" for finding in found)
        screen.note(_verdict(failed, warned), "error" if failed else "good")
    return FAILED if failed else 0


def _show(finding: Finding, screen: Screen) -> None:
    mark, style = _MARKS[finding.status]
    screen.note(f"{mark}  {finding.what}: {finding.detail}", style)
    if finding.advice:
        screen.note(f"      {finding.advice}", "quiet" if finding.status in ("ok", "note") else "")


def _verdict(failed: Sequence[str], warned: int) -> str:
    if failed == ["key"]:
        return "A query needs a key or a login; everything else is there."
    if failed:
        return f"{len(failed)} of the checks failed."
    return "Everything that a query needs is there." + (f" Warnings: {warned}." if warned else "")


# The checks, in the order in which they are shown.


async def _this_program(patient: Patient) -> Iterable[Finding]:
    libc = " ".join(platform.libc_ver()).strip()
    detail = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return [Finding("python", "ok", f"{detail}, {libc}" if libc else detail)]


async def _configuration(patient: Patient) -> Iterable[Finding]:
    return [*configuration(os.environ), *settings_of_the_cli(os.environ)]


async def _cli(patient: Patient) -> Iterable[Finding]:
    try:
        wanted, of_file = patient.options().cli, patient.cli_of_file()
    except PilothouseError:
        return [Finding("cli", "skipped", "the configuration cannot be read")]
    if of_file is not None:
        detail = f"{printable(of_file)}, named by the configuration file; doctor runs nothing that a file names"
        return [Finding("cli", "note", detail, f"pilothouse doctor --cli {shlex.quote(of_file)} examines it")]
    try:
        path = await anyio.to_thread.run_sync(find_cli, wanted, os.environ)
        version = await anyio.to_thread.run_sync(check_version, path, os.environ)
    except PilothouseError as error:
        told = failure(error)
        return [Finding("cli", "failed", told.line, " ".join(told.advice))]
    patient.executable = path
    return [_version_finding(path, version, wanted), _managed_finding(path)]


def _version_finding(path: str, version: str, wanted: str) -> Finding:
    detail = f"Claude Code {version} at {path} (cli={wanted!r})"
    parsed = parse_version(version)
    if parsed is not None and parsed < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        return Finding("cli", "warning", f"{detail}, older than {oldest}", "update it, or: pilothouse install-cli")
    tested = "the tested version" if version == PINNED_VERSION else f"tested is {PINNED_VERSION}"
    return Finding("cli", "ok", f"{detail}, {tested}")


def _managed_finding(used: str) -> Finding:
    managed = managed_cli_path()
    if str(managed) == used:
        return Finding("managed copy", "ok", "it is the one in use")
    if managed.exists():
        return Finding("managed copy", "note", f"{managed}, not in use")
    return Finding("managed copy", "note", "none", "pilothouse install-cli fetches the tested version")


async def _credentials(patient: Patient) -> Iterable[Finding]:
    try:
        options = patient.options()
    except PilothouseError:
        options = Options()  # what is wrong with them has been said
    return [way_to_pay(os.environ, options)]


async def _limits(patient: Patient) -> Iterable[Finding]:
    return limits()


async def _round_trip(patient: Patient) -> Iterable[Finding]:
    name = "round trip"
    if patient.request.quick:
        return [Finding(name, "skipped", "left out with --quick")]
    if patient.executable is None:
        return [Finding(name, "skipped", "no Claude Code was examined")]
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        return [Finding(name, "skipped", "the scripted model needs an extra", "pip install 'pilothouse[testing]'")]
    started = time.perf_counter()
    try:
        first, version = await _ask_scripted(patient.executable)
    except (PilothouseError, OSError) as error:
        told = failure(error)
        return [Finding(name, "failed", told.line, " ".join(told.advice))]
    whole = time.perf_counter() - started
    detail = f"Claude Code {version} answered the scripted model in {whole:.1f} s, first message after {first:.1f} s"
    return [Finding(name, "ok", detail)]


async def _ask_scripted(executable: str) -> tuple[float, str]:
    """Ask the real CLI with a model whose answer is known. Nothing of this machine's configuration takes part.

    Returns:
        Seconds from the start of the child to its first message, and its version.

    Raises:
        PilothouseError: no answer came, or another one.
    """
    from pilothouse.testing import ScriptedModel

    first, version = 0.0, "(unknown version)"
    with tempfile.TemporaryDirectory(prefix="pilothouse-doctor-", ignore_cleanup_errors=True) as directory:
        async with ScriptedModel(default=ANSWER) as model:
            settings: dict[str, Any] = {
                "cli": executable,
                "cwd": directory,
                "env": model.env(),
                "inherit_env": False,
                "persist_session": False,
                "setting_sources": [],
                "strict_mcp_config": True,
                "timeout": ROUND_TRIP_TIMEOUT_S,
                "tools": [],
            }
            query = Query(QUESTION, Options(**cast("Settings", settings)))
            started = time.perf_counter()
            async for message in query:
                first = first or time.perf_counter() - started
                if isinstance(message, InitMessage):
                    version = message.claude_code_version or version
            result = await query.result()
    result.raise_for_error()
    if result.text != ANSWER:
        raise PilothouseError(f"expected the answer {ANSWER!r}, got {result.text!r}")
    return first, version


_CHECKS: tuple[Callable[[Patient], Awaitable[Iterable[Finding]]], ...] = (
    _this_program,
    _configuration,
    _cli,
    _credentials,
    _limits,
    _round_trip,
)
