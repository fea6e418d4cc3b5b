"""`pilothouse policy suggest`: reads transcripts, prints the proposal, and writes it as a settings file if asked.

Owns the report in a terminal and the file. `pilothouse_policy.suggest` decides what is proposed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse.support import encode_json, mask
from pilothouse_cli import flags
from pilothouse_cli.ask import write_line
from pilothouse_cli.screen import Screen
from pilothouse_cli.sessions import print_problem, resolve_id
from pilothouse_policy import RecordedCall, Suggestion, TriedCall, read_calls, suggest_policy
from pilothouse_transcripts import get_session_info, list_sessions
from pilothouse_transcripts.conversation import get_file_messages

NOTHING_FOUND = 1


async def suggest(request: flags.PolicyRequest, screen: Screen) -> int:
    """Execute the request, and return the exit code."""
    # In a thread, so that Ctrl-C ends a long scan at once.
    return await anyio.to_thread.run_sync(_suggest, request.request, screen, abandon_on_cancel=True)


def _suggest(request: flags.SuggestRequest, screen: Screen) -> int:
    if request.force and request.write is None:
        raise UsageError("--force needs --write")
    if request.write is not None and not request.force and os.path.lexists(request.write):
        raise _refuse_existing(request.write)
    root = str(Path(request.project).resolve())
    files = [*map(_find_file, request.sessions)] or [Path(info.path) for info in list_sessions(root)]
    suggestion = suggest_policy(_read_files(files, screen), root=root)
    if not suggestion.calls:
        return _report_nothing(request, screen)
    tried = suggestion.try_on(_read_files([*map(_find_file, request.tried)], screen)) if request.tried else ()
    if request.json:
        proposal = {"options": suggestion.options(), "settings": suggestion.settings()}
        found: Any = msgspec.to_builtins({**msgspec.structs.asdict(suggestion), **proposal, "tried": tried})
        write_line(encode_json(mask(found)))
    else:
        screen.text(mask(f"{suggestion}\n{_format_tried(tried)}"))
    if request.write is not None:
        _write_settings(Path(request.write), suggestion, force=request.force)
        counts = f"{_count(suggestion.rules, 'allow rule')}, {_count(suggestion.deny, 'deny rule')}"
        screen.note(f"{request.write}: {counts}; copy it to .claude/settings.json to use it", "good")
    return 0


def _count(rules: Sequence[object], name: str) -> str:
    return f"{len(rules)} {name}{'' if len(rules) == 1 else 's'}"


def _report_nothing(request: flags.SuggestRequest, screen: Screen) -> int:
    if request.sessions:
        verb = "has" if len(request.sessions) == 1 else "have"
        screen.note(f"{', '.join(request.sessions)} {verb} no tool calls", "quiet")
    elif not Path(request.project).is_dir():
        raise UsageError(f"there is no directory {request.project}")
    else:
        screen.note("no tool calls in the transcripts of this project; --project names another one", "quiet")
    return NOTHING_FOUND


def _find_file(name: str) -> Path:
    path = Path(name)
    if path.suffix == ".jsonl":
        path.open("rb").close()  # raises OSError if it cannot be read
        return path
    info = get_session_info(resolve_id(name))
    if info is None:
        raise SessionNotFoundError(f"there is no session {name}")
    return Path(info.path)


def _read_files(files: Sequence[Path], screen: Screen) -> Iterator[RecordedCall]:
    for path in files:
        messages = get_file_messages(path, on_problem=partial(print_problem, screen))
        yield from read_calls(messages, path.stem)


def _format_tried(tried: Sequence[TriedCall]) -> str:
    if not tried:
        return ""
    lines = ["", "dry run:", *(f"  {each.outcome:<7} {each.call}: {each.why}" for each in tried)]
    counts = {name: sum(each.outcome == name for each in tried) for name in ("runs", "asks", "denied")}
    return "\n".join([*lines, f"  {', '.join(f'{name}: {count}' for name, count in counts.items())}", ""])


def _refuse_existing(path: str) -> UsageError:
    return UsageError(f"{path} exists already; --force replaces it, and does not keep what is in it")


def _write_settings(path: Path, suggestion: Suggestion, *, force: bool) -> None:
    data = msgspec.json.format(encode_json(suggestion.settings()), indent=2) + b"\n"
    replacing = os.O_TRUNC if force else os.O_EXCL
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | replacing | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except FileExistsError:
        raise _refuse_existing(str(path)) from None
    with open(descriptor, "wb") as file:  # noqa: PTH123 - it is open
        file.write(data)
