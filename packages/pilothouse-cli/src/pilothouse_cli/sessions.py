"""`pilothouse sessions`: its actions and their output.

Owns texts, tables and the question before a deletion. `transcripts` reads and changes the files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

import pilothouse_transcripts as transcripts
from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse.support import encode_json
from pilothouse_cli import flags
from pilothouse_cli.ask import write_line
from pilothouse_cli.screen import Screen
from pilothouse_transcripts import SessionInfo, TranscriptProblem, UsageTotals
from pilothouse_transcripts.export import split_message
from pilothouse_transcripts.paths import is_session_id, list_project_directories, list_session_entries
from pilothouse_transcripts.search import OnProgress
from pilothouse_usage.breakdown import format_cost

LONG_SCAN_BYTES = 100_000_000
"""Minimum bytes of a scan that shows its progress."""
MIN_PREFIX_CHARS = 4
"""Minimum length of the start of an id that selects a session."""
NOTHING_FOUND = 1
_LIST_ALL = "`pilothouse sessions --all` lists all sessions"

_PART_LABELS = {"prompt": "you", "text": "claude", "thinking": "thinking", "tool": "tool", "result": "result"}


async def sessions(request: flags.SessionsRequest, screen: Screen) -> int:
    """Execute the request, and return the exit code."""
    # In a thread, so that Ctrl-C ends a long scan at once.
    return await anyio.to_thread.run_sync(_ACTIONS[request.action], request.request, screen, abandon_on_cancel=True)


def _list(request: flags.ListRequest, screen: Screen) -> int:
    found = transcripts.list_sessions(request.directory, request.limit, on_problem=partial(print_problem, screen))
    if request.json:
        print_json(found)
    elif found:
        rows = [
            (info.session_id[:8], _format_time(info.last_modified), _format_size(info), _describe_session(info))
            for info in found
        ]
        screen.table(("session", "changed", "size", "about"), rows)
    else:
        screen.note("no sessions in this directory; --all lists those of all directories", "quiet")
    return 0


def _describe_session(info: SessionInfo) -> str:
    marks = (info.archived and "archived", info.tag and f"#{info.tag}", info.git_branch)
    beside = [text for text in marks if text and text != "HEAD"]
    return f"{info.summary}  ({', '.join(beside)})" if beside else info.summary


def _format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def _format_size(info: SessionInfo) -> str:
    return f"{info.file_size / 1e6:.1f} MB" if info.file_size >= 1e6 else f"{info.file_size / 1e3:.0f} kB"


def _show(request: flags.ShowRequest, screen: Screen) -> int:
    session_id = resolve_id(request.session)
    tell = partial(print_problem, screen)
    if request.agent is not None:
        messages = transcripts.get_subagent_messages(session_id, request.agent, None, request.limit, on_problem=tell)
        if not messages:
            known = ", ".join(transcripts.list_subagents(session_id)) or "it has none"
            raise UsageError(f"there is no sub-agent {request.agent!r} in this session: {known}")
    else:
        messages = transcripts.get_session_messages(
            session_id, None, request.limit, include_compacted=request.whole, on_problem=tell
        )
    if request.json:
        for message in messages:
            write_line(encode_json(message.raw))
        return 0
    for message in messages:
        for kind, word, text in split_message(message):
            if kind == "thinking" and not request.thinking:
                continue
            label = word if kind == "other" else _PART_LABELS.get(kind, kind)
            screen.text(f"── {label}{f' {word}' if kind == 'tool' else ''}\n{text.rstrip()}\n\n")
    return 0


def _search(request: flags.SearchRequest, screen: Screen) -> int:
    count = 0
    with _show_progress(screen, "searching", quiet=request.json) as on_progress:
        hits = transcripts.search_sessions(
            request.text,
            request.directory,
            regex=request.regex,
            ignore_case=not request.case,
            on_progress=on_progress,
            on_problem=partial(print_problem, screen),
        )
        for hit in hits:
            count += 1
            if request.json:
                print_json(hit)
            else:
                screen.text(f"{hit.session_id[:8]}  {_PART_LABELS[hit.where]}: {hit.excerpt}\n")
            if request.limit and count >= request.limit:
                break
    if not count:
        screen.note("no matches", "quiet")
    return 0 if count else NOTHING_FOUND


def _fork(request: flags.ForkRequest, screen: Screen) -> int:
    fork = transcripts.fork_session(
        resolve_id(request.session), None, request.up_to, request.title, on_problem=partial(print_problem, screen)
    )
    if request.json:
        print_json(fork)
    else:
        screen.text(f"{fork.session_id}\n")
        screen.note(f"{fork.messages} messages; continue with `pilothouse chat --resume {fork.session_id}`", "quiet")
    return 0


def _change(request: flags.SessionRequest, screen: Screen, done: str, change: Callable[[str], object]) -> int:
    change(resolve_id(request.session))
    screen.note(done, "good")
    return 0


def _rename(request: flags.RenameRequest, screen: Screen) -> int:
    return _change(request, screen, "renamed", lambda session: transcripts.rename_session(session, request.title))


def _tag(request: flags.TagRequest, screen: Screen) -> int:
    done = "tagged" if request.tag else "tag removed"
    return _change(request, screen, done, lambda session: transcripts.tag_session(session, request.tag))


def _delete(request: flags.DeleteRequest, screen: Screen) -> int:
    session_id = resolve_id(request.session)
    if not request.yes:
        info = transcripts.get_session_info(session_id)
        if not sys.stdin.isatty():
            raise UsageError("nobody can confirm this here; --yes deletes without asking")
        screen.note(f"{session_id}  {info.summary if info else ''}")
        screen.text("Delete it permanently? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            screen.note("not deleted", "quiet")
            return NOTHING_FOUND
    transcripts.delete_session(session_id)
    screen.note("deleted", "good")
    return 0


def _export(request: flags.ExportRequest, screen: Screen) -> int:
    text = transcripts.export_session(
        resolve_id(request.session),
        format=request.format,
        thinking=request.thinking,
        include_compacted=request.whole,
        on_problem=partial(print_problem, screen),
    )
    data = text.encode("utf-8", "replace")
    if request.output is None:
        write_line(data)
    else:
        with Path(request.output).open("xb") as file:
            file.write(data)
        screen.note(f"{request.output}: {len(data) / 1e3:.0f} kB", "good")
    return 0


def _usage(request: flags.UsageRequest, screen: Screen) -> int:
    session_id = None if request.session is None else resolve_id(request.session)
    with _show_progress(screen, "counting", quiet=request.json) as on_progress:
        report = transcripts.usage_report(
            None if session_id else request.directory,
            session_id=session_id,
            since=request.since,
            until=request.until,
            on_progress=on_progress,
            on_problem=partial(print_problem, screen),
        )
    if request.json:
        print_json(report)
        return 0
    rows: dict[str, list[tuple[str, UsageTotals]]] = {
        "day": [(day.isoformat(), usage) for day, usage in report.days.items()],
        "session": [(usage.session_id[:8], usage) for usage in report.sessions],
        "model": list(report.models.items()),
    }
    head = (request.by, "answers", "input", "cache write", "cache read", "output", "cost")
    screen.table(head, [(name, *_format_usage(usage)) for name, usage in (*rows[request.by], ("total", report.total))])
    if report.total.unpriced_tokens:
        screen.note(f"{report.total.unpriced_tokens:,} tokens have no price in the transcripts", "quiet")
    return 0


def _format_usage(usage: UsageTotals) -> tuple[str, ...]:
    tokens = (usage.input_tokens, usage.cache_creation_tokens, usage.cache_read_tokens, usage.output_tokens)
    return (*(f"{number:,}" for number in (usage.messages, *tokens)), format_cost(usage.cost_usd, any(tokens)))


def resolve_id(name: str | None) -> str:
    """Return the id of the one session whose id is, or begins with, `name`.

    Raises:
        UsageError: `name` is no beginning of an id, or that of several sessions.
        SessionNotFoundError: there is no such session.
    """
    prefix = (name or "").lower()
    if is_session_id(prefix):
        return prefix
    if len(prefix) < MIN_PREFIX_CHARS or set(prefix) - set("0123456789abcdef-"):
        raise UsageError(
            f"{name!a} is not a session id: give the id or at least its first {MIN_PREFIX_CHARS} characters "
            f"(0-9, a-f, '-'); {_LIST_ALL}"
        )
    entries = (entry.name for folder in list_project_directories() for entry in list_session_entries(folder))
    found = sorted({entry.partition(".")[0] for entry in entries if entry.lower().startswith(prefix)})
    if not found:
        raise SessionNotFoundError(f"no session id begins with {prefix}; {_LIST_ALL}")
    if len(found) > 1:
        more = " …" if len(found) > 3 else ""
        raise UsageError(f"{len(found)} session ids begin with {prefix}: {', '.join(found[:3])}{more}; give more of it")
    return found[0]


def print_json(value: Any) -> None:
    """Print a value as a line of JSON."""
    # Text of a transcript may contain a lone surrogate, which msgspec does not encode.
    write_line(encode_json(msgspec.to_builtins(value, str_keys=True)))


def print_problem(screen: Screen, problem: TranscriptProblem) -> None:
    """Report a part of a transcript that could not be read."""
    screen.note(f"pilothouse: {problem}", "warning")


@contextmanager
def _show_progress(screen: Screen, label: str, *, quiet: bool) -> Generator[OnProgress | None]:
    """Show the progress of a scan, if it is a long one."""
    if quiet:
        yield None
        return
    with screen.progress(label) as report:

        def on_progress(done: int, total: int) -> None:
            if total >= LONG_SCAN_BYTES:
                report("read", done, total)

        yield on_progress


_ACTIONS: dict[str, Callable[[Any, Screen], int]] = {
    "archive": partial(_change, done="archived", change=transcripts.archive_session),
    "delete": _delete,
    "export": _export,
    "fork": _fork,
    "list": _list,
    "rename": _rename,
    "search": _search,
    "show": _show,
    "tag": _tag,
    "unarchive": partial(_change, done="unarchived", change=transcripts.unarchive_session),
    "usage": _usage,
}
