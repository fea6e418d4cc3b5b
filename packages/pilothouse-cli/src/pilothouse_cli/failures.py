"""Converts an error for a person at a command line: to an exit code, one line, and the next step.

Owns the exit codes, and how a failure is printed. Inspects errors and names of environment variables.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pilothouse.errors import (
    AuthenticationError,
    CLIExitedError,
    CLINotFoundError,
    CLIStartError,
    CLIVersionError,
    PilothouseError,
    QueryTimeout,
    ReplayMismatch,
    UsageError,
)
from pilothouse.options import CREDENTIAL_VARIABLES, Options
from pilothouse.support import Redactor, get_claude_directory, secret_values
from pilothouse.support import find_key as find_stored_key
from pilothouse_cli.help_texts import spell_options_in_error
from pilothouse_cli.screen import Screen

FAILED = 1
USAGE = 2
TIMED_OUT = 124  # as timeout(1)

INSTALL = "pilothouse install-cli"

_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, USAGE),
    (CLINotFoundError, USAGE),
    (CLIVersionError, USAGE),
    (CLIStartError, USAGE),
    (TimeoutError, TIMED_OUT),
)
_NEXT_STEPS: tuple[tuple[type[BaseException], str], ...] = (
    (CLINotFoundError, f"install it with `{INSTALL}`, or give its path with --cli"),
    (CLIVersionError, f"give the path of Claude Code with --cli, or install it with `{INSTALL}`"),
    (CLIExitedError, "--verbose shows all its output"),
)
_MANAGED_SETTINGS = Path("/etc/claude-code")
_OTHER_LOGIN = re.compile(r"CLAUDE_CODE_(USE_|\w+_FILE_DESCRIPTOR)|ANTHROPIC_(CONFIG_DIR|IDENTITY|PROFILE|UNIX_SOCKET)")
"""Variables that lead Claude Code to a login without a key."""
_SHOWN_PROMPT_CHARS = 60  # of a prompt that a suggestion repeats


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An exit code, one line, and further lines of advice."""

    code: int
    line: str
    advice: tuple[str, ...] = ()


def describe_failure(error: Exception) -> FailureReport:
    """Describe `error` for a person; see also `explain_failure`."""
    code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)
    if isinstance(error, ReplayMismatch) and error.diff:
        return FailureReport(code, str(error).partition(":\n")[0], tuple(error.diff.splitlines()))
    text = join_lines(_describe_error(error))
    if isinstance(error, PilothouseError):
        text = spell_options_in_error(text)
    step = _find_next_step(error)
    return FailureReport(code, f"{text}; {step}" if step else text)


def report_failure(screen: Screen, error: Exception | FailureReport, redact: Callable[[str], str] | None = None) -> int:
    """Print a failure and its advice, without secrets (those of the environment by default); return its exit code."""
    failure = error if isinstance(error, FailureReport) else describe_failure(error)
    screen.end_text()
    screen.idle()
    screen.note((redact or Redactor(secret_values(os.environ)).redact)(f"pilothouse: {failure.line}"), "error")
    for line in failure.advice:
        screen.note(line)
    return failure.code


def _describe_error(error: Exception) -> str:
    if isinstance(error, CLINotFoundError):
        # The list of searched paths and ways to install would fill a screen; --verbose shows it.
        return str(error).partition(" Tried:")[0].rstrip(".")
    if isinstance(error, PilothouseError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _find_next_step(error: Exception) -> str:
    if isinstance(error, QueryTimeout):
        return f"raise --{error.kind.replace('_', '-')} to wait longer"
    if isinstance(error, CLINotFoundError) and INSTALL not in str(error):
        return ""  # it is the other side that has none
    return next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), "")


def join_lines(text: str) -> str:
    """Return `text` as one line: a line that ends in a colon keeps it, the others are joined by bars."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    joined = ""
    for line in lines:
        joined += ("" if not joined else " " if joined.endswith(":") else " | ") + line
    return joined


def get_own_command() -> str:
    """Return the command that started this program, so that printed commands can be repeated.

    `pilothouse` if a shell finds it under that name; else a path relative to the working directory.
    """
    if not os.path.basename(sys.argv[0]).startswith("pilothouse"):  # noqa: PTH119
        return f"{shlex.quote(_format_path(sys.executable))} -m pilothouse"
    found = shutil.which("pilothouse")
    if found is not None and os.path.realpath(found) == os.path.realpath(sys.argv[0]):
        return "pilothouse"
    return shlex.quote(_format_path(sys.argv[0]))


def _format_path(path: str) -> str:
    whole, here = os.path.abspath(path), os.getcwd()  # noqa: PTH100, PTH109 - a link to the interpreter is kept
    return os.path.relpath(whole, here) if whole.startswith(here + os.sep) else whole


def find_credentials(environ: Mapping[str, str]) -> str | None:
    """Return the name of the first variable with a key, a login or a provider; never its value."""
    return next((name for name in CREDENTIAL_VARIABLES if environ.get(name, "").strip()), None)


def find_key(environ: Mapping[str, str], options: Options) -> str | None:
    """Say where Claude Code finds a key or a login, without its value; None if it finds none."""
    for name in ("api_key", "auth_token", "oauth_token", "provider"):
        if getattr(options, name) is not None:
            return f"the option {name} is set"
    return find_stored_key(_merge_environ(environ, options))


def _merge_environ(environ: Mapping[str, str], options: Options) -> dict[str, str]:
    merged = {**environ, **{name: value or "" for name, value in (options.env or {}).items()}}
    if options.config_dir is not None:
        merged["CLAUDE_CONFIG_DIR"] = os.path.expanduser(options.config_dir)  # noqa: PTH111 - as the child gets it
    return merged


def lacks_key(options: Options) -> bool:
    """Whether Claude Code certainly finds neither a key nor a login. Blocking.

    False where that cannot be known: on macOS, a login is in the keychain; another user has another home; settings may
    name a program that prints a key; and profiles, sockets and some providers need no key here.
    """
    others = (options.transport, options.settings, options.managed_settings, options.extra_args, options.user)
    if sys.platform != "linux" or any(others):
        return False
    if options.cli and os.sep in str(options.cli) and not Path(options.cli).exists():
        return False  # another error comes first
    environ = _merge_environ(os.environ, options)
    if any(_OTHER_LOGIN.match(name) and value for name, value in environ.items()):
        return False
    directory, project = get_claude_directory(environ), Path(options.cwd or ".") / ".claude"
    with suppress(OSError):
        if _OTHER_LOGIN.search((directory / "settings.json").read_text("utf-8", "replace")):
            return False
    profiles = Path(environ.get("HOME") or "~").expanduser() / ".config" / "anthropic"
    places = (project / "settings.json", project / "settings.local.json", _MANAGED_SETTINGS, profiles)
    return not any(place.exists() for place in places) and find_key(os.environ, options) is None


def explain_failure(error: Exception, local: str, options: Options, login: str | None = None) -> FailureReport:
    """Describe the error of a run, and tell a missing key or login from one that was refused.

    Args:
        error: the error.
        local: as for `explain_missing_key`.
        options: those of the query.
        login: as for `explain_missing_key`.
    """
    if not isinstance(error, AuthenticationError) or error.api_error_status:  # the API's own words about a key
        return describe_failure(error)
    if (found := find_key(os.environ, options)) is None:
        return explain_missing_key(local, options.cli, login)
    advice = "check that it is complete, still valid and meant for this API"
    return FailureReport(FAILED, f"Claude Code is not logged in, although {found}: {advice}")


def quote_question(prompt: str) -> str:
    """Quote a prompt for a printed command; "…" if it is long."""
    short = len(prompt) <= _SHOWN_PROMPT_CHARS and prompt.isprintable()
    return shlex.quote(prompt) if short else '"…"'


def explain_missing_key(local: str, cli: str, login: str | None = None) -> FailureReport:
    """Say that there is neither a key nor a login, and how to go on.

    Args:
        local: the arguments of this command with which a local model answers, such as "chat --local".
        cli: the option `cli`.
        login: the command of the running chat that logs in; None: no chat is running.
    """
    log_in, how = (login, "log in once") if login else (f"{get_own_command()} chat", "then /login: log in once")
    if login is None and cli != "auto":
        log_in += f" --cli {shlex.quote(cli)}"
    extra = "" if find_spec("xllamacpp") else "; it needs: pip install 'pilothouse[local]'"
    rows = (
        ("export ANTHROPIC_API_KEY=…", "use an API key"),
        (log_in, f"{how}; then try again"),
        (f"{get_own_command()} {local}", f"a small open model on this machine: no key, no tools{extra}"),
    )
    width = max(len(command) for command, _ in rows)
    return FailureReport(
        FAILED,
        "Claude Code has neither a key nor a login. Three ways to continue:",
        tuple(f"  {command:<{width}}   {what}" for command, what in rows),
    )
