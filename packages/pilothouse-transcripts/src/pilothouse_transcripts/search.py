"""Searches sessions for text, newest session first, without loading whole files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from pilothouse.errors import LineDecodeError, MessageParseError, UsageError
from pilothouse.messages import (
    AssistantMessage,
    DocumentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    decode,
)
from pilothouse.support import encode_json
from pilothouse_transcripts.conversation import list_agent_files
from pilothouse_transcripts.paths import StrPath, list_newest_files
from pilothouse_transcripts.rows import (
    SPOKEN_TYPES,
    OnProblem,
    TranscriptProblem,
    TranscriptRow,
    find_row,
    ignore_problem,
    open_transcript,
    read_lines,
    write_message,
)

HitLocation: TypeAlias = Literal["prompt", "text", "thinking", "tool", "result"]
OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the bytes read so far and the total bytes of all files."""

EXCERPT_MARGIN = 60
"""Number of characters shown on each side of a match."""


# What a line may have as it is or as an escape; ASCII letters that equal others when case is ignored; and those others.
_ESCAPED = re.compile(r"""[^ -~]|["\\/<>&']""")
_ESCAPED_OR_VARIED = re.compile(_ESCAPED.pattern + "|[iks]")
_ESCAPED_OR_ASCII = re.compile("""[\0-\x1f"\\\\/<>&'\u0130\u0131\u017f\u212a]""")

_MESSAGE_MARKS = (b'"user"', b'"assistant"', b'"queued_command"')
"""One of these is in every line with a message."""


class SearchHit(Struct, frozen=True, kw_only=True):
    """A place where the text was found.

    Args:
        session_id: the session.
        path: its file, or that of a sub-agent.
        line: the line number, from 1.
        uuid: the message.
        where: the kind of content: a prompt, the model's text or thinking, a tool call, or its result.
        excerpt: the match with some surrounding text, in one line.
        match: the matched text.
        timestamp: time of the message, as the CLI wrote it.
        agent_id: the sub-agent, if the message is from one.
    """

    session_id: str
    path: str
    line: int
    uuid: str | None
    where: HitLocation
    excerpt: str
    match: str
    timestamp: str | None = None
    agent_id: str | None = None


def search_sessions(
    pattern: str | re.Pattern[str],
    directory: StrPath | None = None,
    *,
    regex: bool = False,
    ignore_case: bool = True,
    include_worktrees: bool = True,
    include_subagents: bool = True,
    config_dir: StrPath | None = None,
    on_progress: OnProgress | None = None,
    on_problem: OnProblem = ignore_problem,
) -> Iterator[SearchHit]:
    """Search the content of sessions: prompts, answers, thinking, tool calls and their results.

    Hits are yielded as they are found, one per message and kind of content; stop when you have enough.

    Args:
        pattern: the text, or a compiled regular expression.
        directory: the working directory whose sessions are searched; None: all.
        regex: whether a text is a regular expression.
        ignore_case: whether to ignore case; a compiled expression has its own flag.
        include_worktrees: for a directory in a git repository: also search the sessions of its other working trees.
        include_subagents: also search sub-agents.
        config_dir: another configuration directory of the CLI than that of this process.
        on_progress: called after each file.
        on_problem: called with each line and file that cannot be read.

    Raises:
        UsageError: the pattern is empty, or is not a valid regular expression.
    """
    plain = pattern if isinstance(pattern, str) and not regex else ""
    search = _TranscriptSearch(_compile_pattern(pattern, regex, ignore_case), plain, ignore_case)
    return _iterate_hits(search, directory, include_worktrees, include_subagents, config_dir, on_progress, on_problem)


def _iterate_hits(
    search: _TranscriptSearch,
    directory: StrPath | None,
    worktrees: bool,
    subagents: bool,
    config_dir: StrPath | None,
    on_progress: OnProgress | None,
    on_problem: OnProblem,
) -> Iterator[SearchHit]:
    files = list_newest_sessions(directory, config_dir, worktrees=worktrees)
    total, done = sum(size for _, size in files), 0
    for path, size in files:
        agents = list_agent_files(path) if subagents else []
        for agent_id, file in [(None, path), *agents]:
            yield from _leave_out_repeated(search.search_file(file, path.stem, agent_id, on_problem))
        done += size
        if on_progress is not None:
            on_progress(done, total)


def _leave_out_repeated(found: Iterator[tuple[SearchHit, TranscriptRow]]) -> Iterator[SearchHit]:
    """Yield the hits in a file, without those in words for a turn that also became a prompt, as `list_visible` does."""
    said: set[str | None] = set()
    held: list[tuple[SearchHit, TranscriptRow]] = []  # the prompt may come later
    for hit, row in found:
        if row.type == "user":
            said.add(row.uuid)
        if row.is_steering or held:
            held.append((hit, row))
        else:
            yield hit
    yield from (hit for hit, row in held if not (row.is_steering and row.source_uuid in said))


def list_newest_sessions(
    directory: StrPath | None, config_dir: StrPath | None, *, worktrees: bool = True
) -> list[tuple[Path, int]]:
    """Return the session files of a directory, or of all, with their sizes; newest first, each session once."""
    found: dict[str, tuple[Path, int]] = {}
    for file in list_newest_files(directory, config_dir, worktrees=worktrees):
        found.setdefault(file.session_id, (Path(file.path), file.size))
    return list(found.values())


def _compile_pattern(pattern: str | re.Pattern[str], regex: bool, ignore_case: bool) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern):
        return pattern
    if not pattern:
        raise UsageError("what is to be searched for is empty")
    try:
        return re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None


class _TranscriptSearch:
    """A search for a pattern. Decoding a line, and ignoring case in other than ASCII text, cost far more than the rest.

    Args:
        pattern: what is searched for.
        plain: the same as a text; empty: it is none.
        ignore_case: whether to ignore the case of the text.
    """

    def __init__(self, pattern: re.Pattern[str], plain: str, ignore_case: bool) -> None:
        self._pattern = pattern
        self._ignore_case = ignore_case
        self._plain = plain.lower() if ignore_case else plain
        self._bytes = b"" if _ESCAPED_OR_ASCII.search(plain) else self._plain.encode("utf-8", "surrogatepass")
        self._part = max((_ESCAPED_OR_VARIED if ignore_case else _ESCAPED).split(self._plain), key=len).encode()

    def search_file(
        self, path: Path, session_id: str, agent_id: str | None, on_problem: OnProblem
    ) -> Iterator[tuple[SearchHit, TranscriptRow]]:
        try:
            with open_transcript(path) as file:
                for number, _, line in read_lines(file, path, on_problem):
                    if self._may_match(line) and any(mark in line for mark in _MESSAGE_MARKS):
                        yield from self._search_line(line, number, path, session_id, agent_id, on_problem)
        except OSError as error:
            on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))

    def _may_match(self, line: bytes) -> bool:
        if self._ignore_case:
            line = line.lower()
        return self._part in line and (self._bytes in line or not line.isascii() or b"\\u" in line)

    def _search_text(self, text: str) -> tuple[int, int] | None:
        if self._plain and self._plain.isascii() and text.isascii():
            start = (text.lower() if self._ignore_case else text).find(self._plain)
            return None if start < 0 else (start, start + len(self._plain))
        found = self._pattern.search(text)
        return None if found is None else found.span()

    def _search_line(
        self, line: bytes, number: int, path: Path, session_id: str, agent_id: str | None, on_problem: OnProblem
    ) -> Iterator[tuple[SearchHit, TranscriptRow]]:
        row, part, problem = find_row(line)
        if problem:
            on_problem(TranscriptProblem(str(path), number, problem))
        if row is None or not (row.type in SPOKEN_TYPES or row.is_steering) or row.is_meta:
            return
        try:
            message = decode(write_message(row, part))
        except (LineDecodeError, MessageParseError):
            return
        if not isinstance(message, AssistantMessage | UserMessage):
            return
        reported: set[HitLocation] = set()
        for where, text in _iterate_searchable_texts(message):
            found = self._search_text(text) if where not in reported else None
            if found is not None:
                reported.add(where)
                hit = SearchHit(
                    session_id=session_id,
                    path=str(path),
                    line=number,
                    uuid=row.uuid,
                    where=where,
                    excerpt=_make_excerpt(text, *found),
                    match=text[slice(*found)],
                    timestamp=message.timestamp,
                    agent_id=agent_id,
                )
                yield hit, row


def _iterate_searchable_texts(message: AssistantMessage | UserMessage) -> Iterator[tuple[HitLocation, str]]:
    for block in message.content:
        if isinstance(block, TextBlock):
            yield ("prompt" if isinstance(message, UserMessage) else "text"), block.text
        elif isinstance(block, ThinkingBlock):
            yield "thinking", block.thinking
        elif isinstance(block, ToolUseBlock):
            yield "tool", block.name
            yield "tool", encode_json(block.input).decode()
        elif isinstance(block, ToolResultBlock):
            yield "result", block.text
        elif isinstance(block, DocumentBlock):
            yield "prompt", block.title or ""
            yield "prompt", get_document_text(block)


def get_document_text(document: DocumentBlock) -> str:
    """Return the text of a document that was sent as text; "" for a PDF, a URL and a file."""
    text = document.source.get("data") if document.source.get("type") == "text" else None
    return text if isinstance(text, str) else ""


def _make_excerpt(text: str, start: int, end: int) -> str:
    before, after = max(0, start - EXCERPT_MARGIN), min(len(text), max(end, start + 1) + EXCERPT_MARGIN)
    shown = " ".join(text[before : min(after, before + 10 * EXCERPT_MARGIN)].split())
    return f"{'…' if before else ''}{shown}{'…' if after < len(text) else ''}"
