"""`pilothouse ask`: reads the prompt, prints the answer on standard output and everything else on standard error."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import msgspec

from pilothouse.client import Query, QueryResult, default_agent
from pilothouse.errors import (
    CLIExitedError,
    CLINotFoundError,
    CLIVersionError,
    ControlTimeout,
    PilothouseError,
    ResultError,
    UsageError,
)
from pilothouse.messages import Message, encode
from pilothouse.options import Options, Settings, render_child_env
from pilothouse.support import Redactor, secret_values
from pilothouse.transports import find_cli
from pilothouse_cli.cli_version import ask_version
from pilothouse_cli.failures import describe_failure, explain_failure, quote_question, report_failure
from pilothouse_cli.flags import AskRequest, RunRequest
from pilothouse_cli.progress import ProgressPrinter
from pilothouse_cli.screen import ANSWER_CONTROLS, Screen

STDIN_GRACE_SECONDS = 3.0
"""Seconds to wait for text on a standard input that may never have any, such as that of a job runner."""
CHUNK_BYTES = 1 << 20


def read_prompt(argument: str | None, note: Callable[[str], object]) -> str:
    """Return the prompt for the argument of the command line, which is "-" for standard input; raises UsageError."""
    if argument is None and _read_from_terminal():
        raise UsageError(f"no prompt: {_HOW_TO_ASK}")
    if argument is None or argument == "-":
        if _read_from_terminal():
            note("reading the prompt from the terminal; end it with Ctrl-D")
        prompt = _decode_text(_read_stdin())
    else:
        piped = "" if _read_from_terminal() else _decode_text(_read_stdin_when_ready(note))
        prompt = f"{argument}\n\n{piped}" if piped.strip() else argument
    if not prompt.strip():
        raise UsageError(f"the prompt is empty: {_HOW_TO_ASK}")
    return prompt


_HOW_TO_ASK = 'pass one, as in `pilothouse ask "…"`, or pipe it in'


def _read_from_terminal() -> bool:
    # A closed standard input is None.
    return sys.stdin is None or sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def _read_stdin() -> bytes:
    # Not through sys.stdin: a thread left waiting there would hold its lock at interpreter exit.
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        return b""
    fd = sys.stdin.fileno()
    chunks: list[bytes] = []
    while chunk := os.read(fd, CHUNK_BYTES):
        chunks.append(chunk)
    return b"".join(chunks)


def _read_stdin_when_ready(note: Callable[[str], object]) -> bytes:
    """Read all of standard input, unless no byte arrives in time."""
    fd = sys.stdin.fileno()
    first: list[bytes] = []
    reader = threading.Thread(
        target=lambda: first.append(os.read(fd, CHUNK_BYTES)), name="pilothouse stdin", daemon=True
    )
    reader.start()
    reader.join(STDIN_GRACE_SECONDS)
    if reader.is_alive():
        note(f"no standard input within {STDIN_GRACE_SECONDS:g} s; continuing without it")
        return b""
    return first[0] + _read_stdin() if first and first[0] else b""


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8 text (byte {error.start}); convert it first, for example with iconv"
        ) from None


async def ask(request: AskRequest, screen: Screen) -> int:
    """Make the query, show the answer, and return the exit code; the request has the whole prompt."""
    run = AskRun(request, request.prompt or "", screen)
    try:
        return await run.run()
    except (PilothouseError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        return await run.fail(error)


class AskRun:
    """One run of the command, with the state that its parts share."""

    def __init__(self, request: AskRequest, prompt: str, screen: Screen) -> None:
        self._request = request
        self._prompt = prompt
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        self._options = Options()
        self._query: Query | None = None

    async def run(self) -> int:
        """Make the query and show the answer."""
        is_streamed = self._request.form == "text" or self._request.local
        more = {"partial_messages": True} if is_streamed else {}
        own = make_run_options(self._request, self._screen, more)
        self._options = default_agent().options.merge(own)
        await Query(self._prompt, self._options).aclose()  # checks the prompt; nothing is started
        async with AsyncExitStack() as stack:
            if self._request.local:
                from pilothouse_cli.install import apply_local_model  # other questions need no model

                local = await apply_local_model(own, stack, self._screen)
                self._options = default_agent().options.merge(local)
            self._query = query = Query(self._prompt, self._options)
            self._screen.busy("starting Claude Code")
            await stack.enter_async_context(query)
            self._screen.busy("waiting for the model")
            # With a schema the answer is the value, complete at the end; other text of the model is not shown.
            printer = ProgressPrinter(
                self._screen,
                self._redact,
                text=self._options.json_schema is None,
                thinking=self._request.thinking,
            )
            listener = self._make_listener(printer)
            async for message in query:
                listener(message)
            result = await query.result()
        self._screen.end_text()
        self._screen.idle()
        return await self._print_end(result, printer)

    def _make_listener(self, printer: ProgressPrinter) -> Callable[[Message], object]:
        match self._request.form:
            case "text":
                return printer.print_message
            case "json":
                return lambda _: None
            case "stream-json":
                return lambda message: write_line(message.raw_line or encode(message))

    async def _print_end(self, result: QueryResult, printer: ProgressPrinter) -> int:
        error = result.error
        if self._request.form == "json":
            self._write_json(result, error)
        if error is not None:
            return await self._print_failure(error)
        if self._request.form == "text":
            if self._options.json_schema is not None:
                write_line(msgspec.json.encode(result.structured))
            printer.print_end(result, free=self._request.local)
        return 0

    async def fail(self, error: Exception) -> int:
        """Report why there is no answer, and return the exit code."""
        self._screen.end_text()
        self._screen.idle()
        has_output = self._query is not None and self._query.session_id is not None
        if isinstance(error, CLIExitedError | ControlTimeout) and not has_output:
            error = await self._check_cli(error)
        if self._request.form == "json":
            self._write_json(None, error)
        return await self._print_failure(error)

    async def _check_cli(self, error: Exception) -> Exception:
        """Return the error for a program without output that is not Claude Code; otherwise `error`."""
        env = render_child_env(self._options, os.environ)
        try:
            path = find_cli(self._options.cli, env)
            await ask_version(path, env)
        except (CLINotFoundError, CLIVersionError) as better:
            return better
        return error

    async def _print_failure(self, error: Exception) -> int:
        failure = explain_failure(error, f"ask --local {quote_question(self._prompt)}", self._options)
        if self._request.verbose and isinstance(error, CLINotFoundError):
            for line in str(error).splitlines():
                self._screen.note(line, "quiet")
        return report_failure(self._screen, failure)

    def _write_json(self, result: QueryResult | None, error: Exception | None) -> None:
        body = make_result_body(result or QueryResult(()), error)
        if self._request.local:
            body["cost_usd"] = 0.0  # the CLI computes the cost of the model that it believes to use
        text = msgspec.json.encode(body).decode()
        write_line(self._redact(text).encode())


def make_run_options(request: RunRequest, screen: Screen, more: Mapping[str, Any]) -> Options:
    """Make the options of the command line, which replace `more`; mistakes are reported before anything is started."""
    values = {**more, **request.settings}
    if request.verbose:
        values["stderr"] = lambda line: screen.note(f"claude: {line}", "quiet")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    own = Options(**cast("Settings", values)).with_origin("command line")
    cwd = default_agent().options.merge(own).cwd
    if cwd is not None and not Path(cwd).is_dir():
        raise UsageError(f"--cwd: there is no directory {cwd}")
    return own


def make_result_body(result: QueryResult, error: Exception | None) -> dict[str, Any]:
    """Make the object for `--json`. Its keys are those of `QueryResult`; `error` is null after a success."""
    return result.to_dict() | {
        "text": result.text if error is None else "",
        "is_success": error is None,
        "outcome": result.outcome if error is None or result.error is not None else "error",
        "error": None if error is None else _make_error_body(error),
    }


def _make_error_body(error: Exception) -> dict[str, Any]:
    failure = describe_failure(error)
    return {
        "type": type(error).__name__,
        "message": failure.line,
        "exit_code": failure.code,
        "api_error_status": error.api_error_status if isinstance(error, ResultError) else None,
    }


def write_line(line: bytes) -> None:
    """Write a line of JSON, or a document, to standard output, and flush."""
    sys.stdout.flush()
    if sys.stdout.isatty():  # the text of others, as in an export, must not control the terminal
        line = line.decode("utf-8", "replace").translate(ANSWER_CONTROLS).encode()
    sys.stdout.buffer.write(line.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()
