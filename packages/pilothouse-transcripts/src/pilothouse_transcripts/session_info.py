"""Lists sessions and describes each from the first and last bytes of its file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from pilothouse.messages import Usage
from pilothouse_transcripts.paths import (
    SessionFile,
    StrPath,
    find_file,
    get_sidecar_directory,
    list_newest_files,
    list_working_trees,
    project_key,
    resolve_directory,
)
from pilothouse_transcripts.rows import (
    SPOKEN_TYPES,
    OnProblem,
    TranscriptProblem,
    decode_struct,
    find_row,
    ignore_problem,
    load_object,
    open_transcript,
    read_edges,
    read_lines,
)

MAX_PROMPT_CHARS = 200
"""Maximum length of a prompt in a list."""
_MAX_SIDECAR_BYTES = 1 << 16

# Prefixes of text that was not typed by a person.
_WRAPPED_TEXT = re.compile(r"(?:\s*<[a-z][\w-]*[\s>]|\[Request interrupted by user[^\]]*\])")
_TYPED_TEXT = re.compile(r"<(command-name|bash-input)>(.*?)</\1>", re.DOTALL)
_COMMAND_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
NO_PROMPT = "[no prompt]"
"""The summary of a session in which nobody typed or attached anything."""


class SessionInfo(Struct, frozen=True, kw_only=True, gc=False):
    """Information on a session, from the start and end of its file.

    Args:
        session_id: the id of the session.
        summary: one line for a list: its title, else its last prompt, else its first; "[picture]" or "[document: name]"
            if no prompt has text, and "[no prompt]" if there is none.
        last_modified: last modification of its file, in Unix milliseconds.
        file_size: size of its file in bytes, without sub-agents.
        custom_title: the title set by the user.
        ai_title: the title set by the CLI.
        first_prompt: its first prompt with text, at most 200 characters.
        last_prompt: its last prompt.
        git_branch: the branch that was checked out last.
        cwd: the directory in which it began, or to which it was moved.
        tag: its tag.
        created_at: the time of its first row, in Unix milliseconds.
        entrypoint: the program that ran the CLI then, such as "cli" or "sdk-pilothouse".
        path: its file.
        archived: whether it is archived; False if it was, and no longer is, also because a prompt came since; None if
            it never was.
        cost_usd: its cost in US dollars, as the CLI noted it last; None if the CLI did not, and in a store.
        context_tokens: tokens of its last request to the model, with the answer; None if the end of its file has none,
            and in a store.
    """

    session_id: str
    summary: str
    last_modified: int
    file_size: int
    custom_title: str | None = None
    ai_title: str | None = None
    first_prompt: str | None = None
    last_prompt: str | None = None
    git_branch: str | None = None
    cwd: str | None = None
    tag: str | None = None
    created_at: int | None = None
    entrypoint: str | None = None
    path: str = ""
    archived: bool | None = None
    cost_usd: float | None = None
    context_tokens: int | None = None


def list_sessions(
    directory: StrPath | None = None,
    limit: int | None = None,
    offset: int = 0,
    include_worktrees: bool = True,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> list[SessionInfo]:
    """List the sessions on this machine, newest first. Opens no more files than needed.

    Reads 64 KiB from each end of a file, and more only if its first message is not in the first 64 KiB.

    Args:
        directory: the working directory of the sessions; None: all projects.
        limit: maximum number of sessions; None: all.
        offset: number of sessions to skip first.
        include_worktrees: for a directory in a git repository: also list sessions of its other working trees.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each file that cannot be read; the file is skipped.

    Returns:
        Sessions that are not empty, without those of sub-agents and teams.
    """
    directory_filter = _DirectoryFilter(directory, include_worktrees)
    infos: list[SessionInfo] = []
    seen: set[str] = set()
    wanted = None if limit is None or limit <= 0 else max(offset, 0) + limit
    for file in list_newest_files(directory, config_dir, worktrees=include_worktrees):
        if wanted is not None and len(infos) >= wanted:
            break
        if file.session_id in seen:
            continue
        info = _read_info(file, on_problem)
        if info is not None and not directory_filter.excludes(info.cwd):
            seen.add(file.session_id)
            infos.append(info)
    return infos[max(offset, 0) :]


def get_session_info(
    session_id: str,
    directory: StrPath | None = None,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> SessionInfo | None:
    """Return information on one session; None if it does not exist or is empty.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called if its file cannot be read.
    """
    path = find_file(session_id, directory, config_dir)
    return None if path is None else read_session_info(path, on_problem)


def read_session_info(path: Path, on_problem: OnProblem = ignore_problem) -> SessionInfo | None:
    """Return information on a session file."""
    try:
        status = path.lstat()
    except OSError as error:
        on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))
        return None
    file = SessionFile(str(path), path.stem, status.st_mtime, status.st_size, get_sidecar_directory(path).exists())
    return _read_info(file, on_problem)


def _read_info(file: SessionFile, on_problem: OnProblem) -> SessionInfo | None:
    try:
        size, head, tail = read_edges(file.path)
        begin = _read_beginning(file, head, size)
    except OSError as error:
        on_problem(TranscriptProblem(file.path, 0, error.strerror or str(error)))
        return None
    if not begin.has_messages:
        return None
    notes = _read_metadata(tail)
    earlier = {} if head is tail else _read_metadata(head)
    title = notes.get("custom-title")
    if title is None:
        title = _read_sidecar(file, "custom-title.json").custom_title or earlier.get("custom-title")
    ai_title = notes.get("ai-title", earlier.get("ai-title"))
    last_prompt = notes.get("last-prompt")
    summary = title or ai_title or last_prompt or notes.get("summary") or begin.prompt or begin.content or NO_PROMPT
    git_branch, context_tokens = _read_last_rows(head, tail)
    return SessionInfo(
        session_id=file.session_id,
        summary=summary,
        last_modified=int(file.modified * 1000),
        file_size=size,
        custom_title=title or None,
        ai_title=ai_title or None,
        first_prompt=begin.prompt or None,
        last_prompt=last_prompt or None,
        git_branch=git_branch,
        cwd=notes.get("relocated") or begin.cwd,
        tag=notes.get("tag", earlier.get("tag")) or None,
        created_at=begin.created_at,
        entrypoint=begin.entrypoint,
        path=file.path,
        archived=_read_archived(file, head, tail) if file.has_folder else None,
        cost_usd=notes.get("cost-state"),
        context_tokens=context_tokens,
    )


class _Sidecar(Struct, frozen=True, rename="camel"):
    """What the files beside a session say: its title, which the CLI also keeps there, or whether it is archived."""

    custom_title: str | None = None
    archived: bool | None = None
    at: str | None = None


_NO_SIDECAR = _Sidecar()
_decode_sidecar = msgspec.json.Decoder(_Sidecar).decode


def _read_sidecar(file: SessionFile, name: str) -> _Sidecar:
    if not file.has_folder:
        return _NO_SIDECAR
    try:
        with open_transcript(get_sidecar_directory(Path(file.path)) / name) as sidecar:
            return _decode_sidecar(sidecar.read(_MAX_SIDECAR_BYTES))
    except (OSError, ValueError):
        return _NO_SIDECAR


def _read_archived(file: SessionFile, head: bytes, tail: bytes) -> bool | None:
    """Return whether a session is archived: a prompt that came later brings it back."""
    mark = _read_sidecar(file, "archived.json")
    since = parse_milliseconds(mark.at)
    if since is None or not mark.archived:
        return None if since is None else mark.archived
    return not any(_is_prompt_after(since, line) for part in {head, tail} for line in part.split(b"\n"))


def _is_prompt_after(since: int, line: bytes) -> bool:
    if b'"tool_result"' in line or not (b'"user"' in line or b'"queued_command"' in line):
        return False
    row = load_object(line) or {}
    if any(row.get(name) for name in ("isMeta", "isSidechain", "isCompactSummary", "toolUseResult")):
        return False
    attachment: Any = row.get("attachment")
    is_queued = isinstance(attachment, dict) and cast("dict[str, Any]", attachment).get("type") == "queued_command"
    at = parse_milliseconds(row.get("timestamp")) if row.get("type") == "user" or is_queued else None
    return at is not None and at > since


class _ContentPart(Struct):
    type: str = ""
    text: str = ""
    title: str | None = None


class _MessageContent(Struct):
    content: str | list[_ContentPart] = ""


class _HeadRow(Struct, rename="camel"):
    """A row at the start of a file, with the fields that a list needs."""

    type: str = ""
    uuid: str | None = None
    is_sidechain: bool = False
    is_meta: bool = False
    is_compact_summary: bool = False
    team_name: str | None = None
    cwd: str | None = None
    entrypoint: str | None = None
    timestamp: str | None = None
    message: _MessageContent | None = None


_decode_head_row = msgspec.json.Decoder(_HeadRow).decode


def _read_head_row(line: bytes) -> _HeadRow:
    try:
        return _decode_head_row(line)
    except (ValueError, RecursionError):
        _, part, _ = find_row(line)
    row = decode_struct(_decode_head_row, _HeadRow, part)
    return _HeadRow() if isinstance(row, str) else row


class _Beginning:
    """What the first rows of a file say.

    Attributes:
        has_messages: whether a row is a message of the conversation.
        prompt: the first prompt with text; else the first slash command.
        content: the pictures and documents of the first prompt with any, such as "[picture]".
    """

    def __init__(self) -> None:
        self.has_messages = False
        self.prompt = self.content = ""
        self.cwd: str | None = None
        self.entrypoint: str | None = None
        self.created_at: int | None = None
        self._has_typed_prompt = False

    @property
    def is_complete(self) -> bool:
        return bool(self._has_typed_prompt and self.cwd and self.created_at)

    def add_line(self, line: bytes) -> None:
        # Only rows with an id matter here, and lines of other types may be long.
        row = _read_head_row(line) if b'"uuid"' in line else _HeadRow()
        if not row.uuid or row.is_sidechain or row.team_name:
            return
        self.cwd = self.cwd or row.cwd
        self.entrypoint = self.entrypoint or row.entrypoint
        self.created_at = self.created_at or parse_milliseconds(row.timestamp)
        if row.type not in SPOKEN_TYPES or row.is_meta:
            return
        self.has_messages = True
        if row.type == "user" and row.message is not None and not row.is_compact_summary:
            self._add_prompt(row.message.content)

    def _add_prompt(self, content: str | list[_ContentPart]) -> None:
        parts = [_ContentPart("text", content)] if isinstance(content, str) else content
        if any(part.type == "tool_result" for part in parts):
            return
        self.content = self.content or describe_content((part.type, part.title) for part in parts)
        for text in (part.text for part in parts if part.type == "text"):
            prompt, command = extract_prompt(text)
            if prompt and not self._has_typed_prompt:
                self.prompt, self._has_typed_prompt = prompt, True
            self.prompt = self.prompt or command


def _read_beginning(file: SessionFile, head: bytes, size: int) -> _Beginning:
    """Read the first rows: those at the start of a file, or all until the first message.

    Raises:
        OSError: the file cannot be read.
    """
    beginning = _Beginning()
    start = 0
    while (stop := head.find(b"\n", start)) >= 0 and not beginning.is_complete:
        beginning.add_line(head[start:stop])
        start = stop + 1
    if len(head) == size and not beginning.is_complete:
        beginning.add_line(head[start:])  # the last line, which may lack its newline
    elif not beginning.has_messages:
        with open_transcript(file.path) as transcript:
            for _, _, line in read_lines(transcript, Path(file.path)):
                beginning.add_line(line)
                if beginning.has_messages:
                    break
    return beginning


def describe_content(parts: Iterable[tuple[str, str | None]]) -> str:
    """Describe the pictures and documents of a prompt in one line: "[picture] [document: plan.pdf]".

    Args:
        parts: the type and the title of each content block.
    """
    named = (_CONTENT_NAMES.get(kind) and (_CONTENT_NAMES[kind], title) for kind, title in parts)
    shown = [f"[{name}: {title}]" if title else f"[{name}]" for name, title in filter(None, named)]
    return shorten_line(" ".join(shown))


_CONTENT_NAMES = {"image": "picture", "document": "document"}


def extract_prompt(text: str) -> tuple[str, str]:
    """Return what a person typed, shortened: a prompt and a slash command; both empty for other texts."""
    typed = _TYPED_TEXT.search(text) if "<" in text else None
    if typed is None:
        return ("" if _WRAPPED_TEXT.match(text) else shorten_line(text)), ""
    if typed[1] == "bash-input":
        return shorten_line(f"! {typed[2].strip()}"), ""
    arguments = _COMMAND_ARGUMENTS.search(text)
    return "", shorten_line(f"{typed[2]} {arguments[1].strip() if arguments else ''}".strip())


# By type of metadata row: the field that a list needs.
_METADATA_FIELDS = {
    "ai-title": "aiTitle",
    "cost-state": "totalCostUSD",
    "custom-title": "customTitle",
    "last-prompt": "lastPrompt",
    "relocated": "relocatedCwd",
    "summary": "summary",
    "tag": "tag",
}
# Such rows may match anywhere in a line: inside a message, a match only looks like a row.
_METADATA_ROW = re.compile(rb'"type": ?"(%s)"' % "|".join(_METADATA_FIELDS).encode())


def _read_metadata(part: bytes) -> dict[str, Any]:
    """Return the last value of each type of metadata row: text, or a number for the cost."""
    values: dict[str, Any] = {}
    for found in reversed(list(_METADATA_ROW.finditer(part))):  # one pass: there may be thousands of files
        kind = found[1].decode()
        if kind in values:
            continue
        _, line = _find_line(part, found.start())
        value = _read_metadata_field(line, kind)
        if value is None and (glued := line.rfind(b'{"type":')) > 0:
            value = _read_metadata_field(line[glued:], kind)  # after half a row that a crash has left
        if value is not None:
            values[kind] = value
    return values


def _read_metadata_field(line: bytes, kind: str) -> str | float | None:
    row = load_object(line)
    value = row.get(_METADATA_FIELDS[kind]) if row is not None and row.get("type") == kind else None
    if kind == "cost-state":
        return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None
    return value if isinstance(value, str) else None


class _LastMessage(Struct):
    model: str = ""
    usage: Usage | None = None


class _LastRow(Struct, rename="camel"):
    """A row at the end of a file, with the fields that a list needs."""

    type: str = ""
    is_sidechain: bool = False
    git_branch: str | None = None
    message: _LastMessage | None = None


_decode_last_row = msgspec.json.Decoder(_LastRow).decode


def _read_last_row(line: bytes) -> _LastRow:
    row = decode_struct(_decode_last_row, _LastRow, line)
    return _LastRow() if isinstance(row, str) else row


def _read_last_rows(head: bytes, tail: bytes) -> tuple[str | None, int | None]:
    """Return the last git branch, and the tokens of the last request of the session itself, with the answer."""
    start, line = _find_line(tail, tail.rfind(_GIT_BRANCH))
    row = _read_last_row(line or _find_line(head, head.rfind(_GIT_BRANCH))[1])
    branch = row.git_branch or None
    place = len(tail)
    while (place := tail.rfind(b'"usage":', 0, place)) >= 0:
        if not start <= place < start + len(line):  # mostly both are in the same row
            start, line = _find_line(tail, place)
            row = _read_last_row(line)
        message = row.message
        if row.type != "assistant" or row.is_sidechain or message is None or message.model == "<synthetic>":
            continue
        return branch, message.usage.total_tokens if message.usage is not None else 0
    return branch, None


_GIT_BRANCH = b'"gitBranch":"'


def _find_line(part: bytes, offset: int) -> tuple[int, bytes]:
    """Return the start and the content of the line around an offset; nothing for -1."""
    if offset < 0:
        return 0, b""
    start, stop = part.rfind(b"\n", 0, offset) + 1, part.find(b"\n", offset)
    return start, part[start : stop if stop >= 0 else len(part)].strip(b"\0")


def shorten_line(text: str, length: int = MAX_PROMPT_CHARS) -> str:
    """Shorten a text to one line of at most `length` characters."""
    line = text[: length + length // 2]  # a text may be long, and this is mostly enough
    # The only printable whitespace is a space, so most texts need no splitting.
    line = line.strip() if line.isprintable() and "  " not in line else " ".join(line.split())
    if len(line) <= length < len(text):
        line = " ".join(text.split())
    return line if len(line) <= length else line[:length].rstrip() + "…"


def parse_milliseconds(timestamp: object) -> int | None:
    """Convert the timestamp of a row to Unix milliseconds."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000) if isinstance(timestamp, str) else None
    except (ValueError, OverflowError):
        return None


class _DirectoryFilter:
    """Separates the sessions of a directory from those of directories that differ only in special characters.

    The CLI keeps both in one folder, and lists them separately.
    """

    def __init__(self, directory: StrPath | None, worktrees: bool) -> None:
        own = (
            []
            if directory is None
            else [resolve_directory(directory), *(list_working_trees(directory) if worktrees else ())]
        )
        self._own = frozenset(own)
        self._keys = frozenset(map(project_key, own))
        self._known: dict[str, bool] = {}

    def excludes(self, cwd: str | None) -> bool:
        """Whether a session that began in `cwd` belongs to another directory."""
        if cwd is None or not self._own:
            return False
        if cwd not in self._known:
            real = resolve_directory(cwd)
            self._known[cwd] = real not in self._own and project_key(real) in self._keys
        return self._known[cwd]
