"""`pilothouse replay`: shows a recording as the command would have shown the run.

Owns the separation of turns, and the pace. `progress` prints the messages. Nothing is executed: the recorded lines of
both sides are read from the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
from anyio import to_thread

from pilothouse.client import QueryResult
from pilothouse.engine.failures import missing_result_error
from pilothouse.messages import Message, ResultMessage, encode
from pilothouse.protocol import Connection
from pilothouse.support import Redactor, secret_values
from pilothouse_cli.ask import make_result_body, write_line
from pilothouse_cli.failures import report_failure
from pilothouse_cli.flags import ReplayRequest
from pilothouse_cli.progress import ProgressPrinter
from pilothouse_cli.screen import Screen
from pilothouse_testing import Cassette
from pilothouse_testing.cassettes.format import CassetteEntry, RecordedConnection


async def replay(request: ReplayRequest, screen: Screen) -> int:
    """Show a recording, and return the exit code that the run had."""
    showing = _ReplayPrinter(request, screen)
    cassette = await to_thread.run_sync(Cassette.load, Path(request.file))
    code = 0
    for connection in cassette.connections:
        code = await showing.print_connection(connection) or code
    if cassette.is_truncated:
        screen.note("the recording ends here: it was cut off by a crash", "warning")
    return code


class _ReplayPrinter:
    """The shared state of a recording's connections, and the position in the current one."""

    def __init__(self, request: ReplayRequest, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._redact = Redactor(secret_values(os.environ)).redact
        self._reset()

    def _reset(self) -> None:
        self._messages: list[Message] = []
        self._printer = ProgressPrinter(self._screen, self._redact, thinking=self._request.thinking)

    async def print_connection(self, connection: RecordedConnection) -> int:
        """Show one connection, and return its exit code."""
        reader = Connection()
        code, last = 0, 0.0
        for entry in connection.entries:
            if self._request.speed is not None and entry.time > last:
                await anyio.sleep((entry.time - last) / self._request.speed)
                last = entry.time
            if entry.direction == "in":
                self._print_prompt(entry)
            elif entry.direction == "err" and self._request.verbose:
                self._screen.note(self._redact(f"claude: {entry.text.rstrip()}"), "quiet")
            elif entry.direction == "out":
                for message in reader.feed(entry.data):
                    code = self._print_message(message) or code
                reader.events.clear()
        noise = reader.non_json_lines[-1].decode("utf-8", "replace") if reader.non_json_lines else ""
        return self._end(connection, noise) or code

    def _print_prompt(self, entry: CassetteEntry) -> None:
        frame = entry.frame or {}
        if frame.get("type") != "user" or self._request.form != "text":
            return
        content: Any = frame.get("message", {}).get("content")
        if isinstance(content, list):
            blocks = cast("list[Any]", content)
            content = " ".join(b.get("text") or f"[{b.get('type')}]" for b in blocks if isinstance(b, dict))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
        self._screen.end_text()
        self._screen.note("you: " + self._redact(str(content)), "title")

    def _print_message(self, message: Message) -> int:
        self._messages.append(message)
        if self._request.form == "text":
            self._printer.print_message(message)
        elif self._request.form == "stream-json":
            write_line(message.raw_line or encode(message))
        return self._close_turn() if isinstance(message, ResultMessage) else 0

    def _close_turn(self) -> int:
        result = QueryResult(self._messages)
        self._screen.end_text()
        self._screen.idle()
        if self._request.form == "json":
            write_line(self._redact(msgspec.json.encode(make_result_body(result, result.error)).decode()).encode())
        code = 0
        if result.error is not None:
            code = report_failure(self._screen, result.error)
        elif self._request.form == "text":
            self._printer.print_end(result)
        self._reset()
        return code

    def _end(self, connection: RecordedConnection, noise: str) -> int:
        """After the last entry: report a turn without an end, or a run that did not finish."""
        self._screen.end_text()
        ending = connection.exit_info()
        broke = bool(ending.exit_code) or ending.signal is not None
        in_turn = any(message.type != "command_lifecycle" for message in self._messages)
        self._reset()
        if broke and (in_turn or not _has_result(connection)):
            lines = [entry.text for entry in connection.entries if entry.direction == "err"]
            ending = msgspec.structs.replace(ending, stderr="\n".join(lines))
            return report_failure(self._screen, missing_result_error(ending, noise, None))
        if in_turn:
            self._screen.note("the program left here, in the middle of a turn", "warning")
        return 0


def _has_result(connection: RecordedConnection) -> bool:
    frames = (entry.frame for entry in connection.entries if entry.direction == "out")
    return any(frame is not None and frame.get("type") == "result" for frame in frames)
