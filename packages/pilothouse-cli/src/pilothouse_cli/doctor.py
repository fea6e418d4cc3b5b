"""`pilothouse doctor`: checks the requirements of a query, and says how to fix what is missing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from pilothouse import __version__
from pilothouse.client import EffectiveSettings, Query, Session, default_agent
from pilothouse.client.config_file import get_config_file, printable
from pilothouse.errors import OptionsError, PilothouseError
from pilothouse.messages import InitMessage
from pilothouse.options import TABLE, Options
from pilothouse.provision import PINNED_VERSION, is_pinned_cli, managed_cli_path
from pilothouse.provision.artifacts import load_pins
from pilothouse.support import (
    Redactor,
    cache_root,
    find_similar_name,
    get_claude_directory,
    parse_version,
    secret_values,
)
from pilothouse.transports import find_cli
from pilothouse.transports.discovery import OLDEST_SUPPORTED
from pilothouse_cli.ask import write_line
from pilothouse_cli.cli_version import ask_version, read_version
from pilothouse_cli.config import find_own_file, read_config
from pilothouse_cli.failures import FAILED, describe_failure, explain_missing_key, find_key
from pilothouse_cli.flags import DoctorRequest
from pilothouse_cli.screen import Screen, Style
from pilothouse_remote import CommandTransport
from pilothouse_testing import ScriptedModel

CheckStatus = Literal["ok", "note", "warning", "failed", "skipped"]

FILES_PER_QUERY = 6
"""Descriptors of a running process: three pipes, its exit, and a few more during the start."""
MIN_OPEN_FILES = 1024
OLD_PIN_DAYS = 45
"""Days after which the pinned version counts as old: Claude Code is released several times a week."""
INSTALLED_BYTES = 600 * 1000 * 1000
"""Maximum bytes during the installation of the CLI: the archive and the executable side by side."""

# Variables of pilothouse that are not options.
OTHER_VARIABLES = {
    "PILOTHOUSE_CACHE": "where fetched files are kept",
    "PILOTHOUSE_CONFIG": "which configuration file to read",
    "PILOTHOUSE_JOURNAL": "the journal of `batch` and `worker`",
    "PILOTHOUSE_INSTALL": "0 forbids installing Claude Code by itself",
    "PILOTHOUSE_REQUIRE_CLI": "tests fail, not skip, without Claude Code",
}


class CheckResult(Struct, frozen=True):
    """The result of one check."""

    what: str
    status: CheckStatus
    detail: str
    advice: str = ""


def _check_configuration(context: DoctorContext) -> Iterator[CheckResult]:
    """Check the layers of configuration for every query: the file and the variables."""
    environ = os.environ
    try:
        context.options()  # validates the variables, too
        file = get_config_file()
        held = f"none, there is no {find_own_file()}"
        if file is not None:
            held = f"{printable(file.path)} sets {', '.join(file.options) or 'nothing'}"
        yield CheckResult("configuration", "ok", held)
    except OptionsError as error:
        yield CheckResult("configuration", "failed", str(error))
        return
    options = {option.variable for option in TABLE.values()}
    ours = [name for name in sorted(environ) if name.startswith("PILOTHOUSE_") and environ[name]]
    known = [name for name in ours if name in options or name in OTHER_VARIABLES]
    if known:
        yield CheckResult("variables", "ok", ", ".join(known))
    for name in ours:
        if name not in known:
            near = find_similar_name(name, [*filter(None, options), *OTHER_VARIABLES], 0.8)
            advice = f"did you mean {near}?" if near else "pilothouse options lists the options"
            yield CheckResult("variables", "warning", f"{name} is unknown and has no effect", advice)


def _check_limits(context: DoctorContext) -> Iterator[CheckResult]:
    """Check limits of this system: open files, space for temporary files and for the cache."""
    yield from _check_open_files()
    yield _check_directory("temporary files", Path(tempfile.gettempdir()), 10**7, "TMPDIR names another directory")
    yield _check_directory("cache", cache_root(), INSTALLED_BYTES, "PILOTHOUSE_CACHE names another directory")


def _check_open_files() -> Iterator[CheckResult]:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield CheckResult("open files", "ok", "no limit")
        return
    detail = f"{soft}, enough for about {soft // FILES_PER_QUERY} queries at once"
    few = soft < MIN_OPEN_FILES
    advice = f"ulimit -n raises it, to {hard if hard != resource.RLIM_INFINITY else 'any number'}" if few else ""
    yield CheckResult("open files", "warning" if few else "ok", detail, advice)


def _check_directory(what: str, path: Path, needed: int, advice: str) -> CheckResult:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return CheckResult(what, "failed" if existing == path else "warning", f"{path} cannot be written", advice)
    free = shutil.disk_usage(existing).free
    detail = f"{path}, {free / 1e9:.1f} GB free"
    return CheckResult(what, "ok", detail) if free >= needed else CheckResult(what, "warning", detail, advice)


ROUND_TRIP_SECONDS = 60.0
"""Timeout in seconds; the first start of the executable on a cold disk takes some 10 s."""
QUESTION, ANSWER = "Is anybody there?", "Aye."

_STATUS_MARKS: dict[CheckStatus, tuple[str, Style]] = {
    "ok": ("ok  ", "good"),
    "note": ("note", "quiet"),
    "warning": ("warn", "warning"),
    "failed": ("FAIL", "error"),
    "skipped": ("skip", "quiet"),
}


class DoctorContext:
    """The subject of the checks: the settings of this directory, and results of earlier checks."""

    def __init__(self, request: DoctorRequest) -> None:
        self.request = request
        self.executable: str | None = None

    def options(self) -> Options:
        """The settings of a query made here; raises OptionsError."""
        read_config(self.request.config)
        return default_agent().options.merge(Options(cli=self.request.cli) if self.request.cli else None)


async def doctor(request: DoctorRequest, screen: Screen) -> int:
    """Run all checks, print them, and return the exit code: 0, or 1 if a check failed."""
    patient = DoctorContext(request)
    redact = Redactor(secret_values(os.environ)).redact
    found: list[CheckResult] = []
    if not request.json:
        screen.note(f"pilothouse {__version__}", "title")
    for check in _CHECKS if request.transport is None else _FAR_CHECKS:
        if check is _check_round_trip and not request.quick:
            screen.busy("asking Claude Code")
        results = check(patient)
        for finding in await results if isinstance(results, Awaitable) else results:
            clean = msgspec.structs.replace(finding, detail=redact(finding.detail), advice=redact(finding.advice))
            found.append(clean)
            if not request.json:
                _print_result(clean, screen)
    screen.idle()
    failed = [finding.what for finding in found if finding.status == "failed"]
    if request.json:
        write_line(msgspec.json.encode({"ok": not failed, "version": __version__, "findings": found}))
    else:
        warned = sum(finding.status == "warning" for finding in found)
        screen.note(_format_summary(failed, warned), "error" if failed else "good")
    return FAILED if failed else 0


def _print_result(result: CheckResult, screen: Screen) -> None:
    mark, style = _STATUS_MARKS[result.status]
    screen.note(f"{mark}  {result.what}: {result.detail}", style)
    for line in result.advice.splitlines():
        screen.note(f"      {line.strip()}", "quiet" if result.status in ("ok", "note") else "")


def _format_summary(failed: Sequence[str], warned: int) -> str:
    if failed == ["key"]:
        return "Only a key or a login is missing."
    if failed:
        return f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed."
    return "Everything that a query needs is set up." + (f" Warnings: {warned}." if warned else "")


# The checks, in display order.


def _check_program(context: DoctorContext) -> Iterable[CheckResult]:
    libc = " ".join(platform.libc_ver()).strip()
    detail = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return [CheckResult("python", "ok", f"{detail}, {libc}" if libc else detail)]


async def _check_cli(context: DoctorContext) -> Iterable[CheckResult]:
    try:
        wanted = context.options().cli
    except PilothouseError:
        return [CheckResult("cli", "skipped", "the configuration cannot be read")]
    try:
        path = await anyio.to_thread.run_sync(find_cli, wanted, os.environ)
        managed = await anyio.to_thread.run_sync(_make_managed_result, path)
        if managed.status == "failed":  # it is not run
            return [managed]
        version = await ask_version(path, os.environ)
    except PilothouseError as error:
        failure = describe_failure(error)
        return [CheckResult("cli", "failed", failure.line, " ".join(failure.advice))]
    context.executable = path
    return [_make_version_result(path, version, wanted), managed, check_pin(date.today())]


def _make_version_result(path: str, version: str, wanted: str) -> CheckResult:
    detail = f"Claude Code {version} at {path} (cli={wanted!r})"
    parsed = parse_version(version)
    if parsed is not None and parsed < OLDEST_SUPPORTED:
        oldest = ".".join(map(str, OLDEST_SUPPORTED))
        return CheckResult("cli", "warning", f"{detail}, older than {oldest}", "update it, or: pilothouse install-cli")
    if version == PINNED_VERSION:
        return CheckResult("cli", "ok", f"{detail}, the pinned version")
    pins = load_pins().cli
    tested = parsed is not None and (parse_version(pins.oldest_tested) or ()) <= parsed
    is_newer = parsed is not None and parsed > (parse_version(pins.version) or ())
    where = f"tested are {pins.oldest_tested} to {pins.version}"
    newer = ", so it is newer than what was tested" if is_newer else ""
    return CheckResult("cli", "ok" if tested and not is_newer else "note", f"{detail}; {where}{newer}")


def check_pin(today: date) -> CheckResult:
    """Say how old the pinned version is, and which versions are tested."""
    pins = load_pins().cli
    age = (today - date.fromisoformat(pins.built)).days
    detail = f"Claude Code {pins.version}, {age} days old; the tests pass on {pins.oldest_tested} and later"
    if age <= OLD_PIN_DAYS:
        return CheckResult("pin", "ok", detail)
    return CheckResult("pin", "note", detail, "a newer pilothouse pins a newer one: pip install --upgrade pilothouse")


def _make_managed_result(used: str) -> CheckResult:
    managed = managed_cli_path()
    if str(managed) == used:
        if not is_pinned_cli(managed):
            detail = f"{managed} is not the pinned file: its digest differs; doctor does not run it"
            return CheckResult("managed copy", "failed", detail, "pilothouse install-cli --force fetches it again")
        return CheckResult("managed copy", "ok", "in use, with the pinned digest")
    if managed.exists():
        return CheckResult("managed copy", "note", f"{managed}, not in use")
    return CheckResult("managed copy", "note", "none", "pilothouse install-cli fetches the tested version")


def _check_login(context: DoctorContext) -> Iterable[CheckResult]:
    """Check whether there is a key or a login, without showing its value."""
    try:
        options = context.options()
    except PilothouseError:
        options = Options()  # an earlier check has reported the error
    if (found := find_key(os.environ, options)) is not None:
        return [CheckResult("key", "ok", found)]
    if sys.platform == "darwin":
        return [CheckResult("key", "note", "no key in the environment; a login, if any, is in the keychain")]
    ways = explain_missing_key("chat --local", options.cli).advice
    return [CheckResult("key", "failed", "no key in the environment and no login", "\n".join(ways))]


async def _check_settings_files(context: DoctorContext) -> Iterable[CheckResult]:
    """Let Claude Code read its settings files, and report what it skips of them.

    Nothing in them is run, and nothing is written: no hook, plugin, server or helper, a temporary configuration.
    """
    name, home, here = "settings files", get_claude_directory(os.environ), Path.cwd()
    files = {
        "userSettings": home / "settings.json",
        "projectSettings": here / ".claude" / "settings.json",
        "localSettings": here / ".claude" / "settings.local.json",
    }
    there = {source: file for source, file in files.items() if file.exists()}
    if not there or context.executable is None:
        return []
    if context.request.quick:
        return [CheckResult(name, "skipped", "skipped because of --quick")]
    try:
        with tempfile.TemporaryDirectory(prefix="pilothouse-doctor-", ignore_cleanup_errors=True) as directory:
            if "userSettings" in there:
                await anyio.to_thread.run_sync(shutil.copyfile, there["userSettings"], Path(directory, "settings.json"))
            answer = await _ask_settings(context.executable, directory)
    except (PilothouseError, OSError) as error:
        failure = describe_failure(error)
        return [CheckResult(name, "warning", f"not examined: {failure.line}", " ".join(failure.advice))]
    errors = [(error.file.replace(directory, str(home)), str(error)) for error in answer.errors]
    found = [
        CheckResult(name, "warning", f"{printable(file)}: {printable(text)}", "Claude Code skips the whole file")
        for file, text in errors
    ]
    skipped = [file for file, _ in errors]
    for source, file in there.items():
        found += await anyio.to_thread.run_sync(partial(_list_dropped, name, source, file, answer, skipped))
    listed = ", ".join(map(str, there.values()))
    return found or [CheckResult(name, "ok", f"Claude Code takes all that is in {listed}")]


async def _ask_settings(executable: str, config_dir: str) -> EffectiveSettings:
    """Ask Claude Code what it takes from the settings files here, and from those in `config_dir`. Sends no prompt."""
    options = Options(
        cli=executable,
        config_dir=config_dir,
        bare=True,
        nonessential_traffic=False,
        persist_session=False,
        startup_timeout=ROUND_TRIP_SECONDS,
    )
    async with Session(options) as session:
        return await session.settings.get()


def _list_dropped(
    name: str, source: str, file: Path, answer: EffectiveSettings, skipped: Sequence[str]
) -> list[CheckResult]:
    """List the rules and hooks that Claude Code drops without counting them as errors, of a file that it has read."""
    if file.resolve() in [Path(each).resolve() for each in skipped]:
        return []
    try:
        content = msgspec.json.decode(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (OSError, msgspec.DecodeError):
        return []
    return [
        CheckResult(
            name,
            "warning",
            f"{printable(str(file))}: {place}: {printable(why)}",
            "Claude Code drops it, and goes on without",
        )
        for place, why in answer.find_lost_restrictions(source, content)
    ]


async def _check_round_trip(context: DoctorContext) -> Iterable[CheckResult]:
    name = "round trip"
    if context.request.quick:
        return [CheckResult(name, "skipped", "skipped because of --quick")]
    if context.executable is None:
        return [CheckResult(name, "skipped", "there is no Claude Code to run")]
    started = time.perf_counter()
    try:
        first, version = await _ask_scripted(context.executable)
    except (PilothouseError, OSError) as error:
        failure = describe_failure(error)
        return [CheckResult(name, "failed", failure.line, " ".join(failure.advice))]
    whole = time.perf_counter() - started
    detail = f"Claude Code {version} answered the scripted model in {whole:.1f} s, first message after {first:.1f} s"
    return [CheckResult(name, "ok", detail)]


async def _ask_scripted(executable: str) -> tuple[float, str]:
    """Make a query with the real CLI and a scripted model. Nothing of this machine's configuration is used.

    Returns seconds from the start of the process to its first message, and its version.
    """
    first, version = 0.0, "(unknown version)"
    with tempfile.TemporaryDirectory(prefix="pilothouse-doctor-", ignore_cleanup_errors=True) as directory:
        async with ScriptedModel(default=ANSWER) as model:
            options = Options(
                cli=executable,
                cwd=directory,
                env=model.env(),
                inherit_env=False,
                persist_session=False,
                setting_sources=[],
                strict_mcp_config=True,
                timeout=ROUND_TRIP_SECONDS,
                tools=[],
            )
            query = Query(QUESTION, options)
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


async def _check_far_side(context: DoctorContext) -> Iterable[CheckResult]:
    """Start `claude --version` as a query would start `claude`, and say what is missing over there."""
    make = context.request.transport
    transport = None if make is None else make()
    if not isinstance(transport, CommandTransport):
        words = "doctor can check ssh:, podman:, docker: and pod:"
        return [CheckResult("other side", "failed", "this transport starts no command", words)]
    started = time.perf_counter()
    try:
        version = await read_version(transport, "auto", {}, "claude over there", ROUND_TRIP_SECONDS)
    except PilothouseError as error:
        failure = describe_failure(error)
        return [CheckResult("other side", "failed", failure.line, " ".join(failure.advice))]
    where = f"the end of `{shlex.join(transport.prefix)}`, {time.perf_counter() - started:.1f} s"
    return [_make_version_result(where, version, "claude")]


_FAR_CHECKS = (_check_program, _check_configuration, _check_far_side)
_CHECKS: tuple[Callable[[DoctorContext], Iterable[CheckResult] | Awaitable[Iterable[CheckResult]]], ...] = (
    _check_program,
    _check_configuration,
    _check_cli,
    _check_settings_files,
    _check_login,
    _check_limits,
    _check_round_trip,
)
