"""Searches sessions for text, newest session first, without loading whole files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from pilothouse.errors import LineDecodeError, MessageParseError, UsageError
from pilothouse.messages import AssistantMessage, UserMessage, decode
from pilothouse.messages.api_messages import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from pilothouse.messages.json_lines import encode_json
from pilothouse.transcripts.conversation import list_agent_files
from pilothouse.transcripts.paths import StrPath, list_newest_files
from pilothouse.transcripts.rows import (
    SPOKEN_TYPES,
    OnProblem,
    TranscriptProblem,
    decode_row,
    ignore_problem,
    open_transcript,
    read_lines,
)

HitLocation: TypeAlias = Literal["prompt", "text", "thinking", "tool", "result"]
OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the bytes read so far and the total bytes of all files."""

EXCERPT_MARGIN = 60
"""Number of characters shown on each side of a match."""


# Non-ASCII letters that equal an ASCII letter when case is ignored, as characters and as escapes.
_CASE_VARIANTS = {
    "i": "(?:i|\u0130|\u0131|\\\\u013[01])",
    "k": "(?:k|\u212a|\\\\u212a)",
    "s": "(?:s|\u017f|\\\\u017f)",
}


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
    search = _TranscriptSearch(_compile_pattern(pattern, regex, ignore_case), _find_literal(pattern, regex))
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
            yield from search.search_file(file, path.stem, agent_id, on_problem)
        done += size
        if on_progress is not None:
            on_progress(done, total)


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


def _find_literal(pattern: str | re.Pattern[str], regex: bool) -> re.Pattern[bytes] | None:
    """Return a pattern that the bytes of a matching line must contain, or None; decoding a line costs far more."""
    if isinstance(pattern, re.Pattern) or regex:
        return None
    # Other characters may be escaped.
    if not pattern.isascii() or not pattern.isprintable() or set("\"\\/<>&'") & set(pattern):
        return None
    plain = "".join(_CASE_VARIANTS.get(char.lower(), re.escape(char)) for char in pattern)
    return re.compile(plain.encode(), re.IGNORECASE)


class _TranscriptSearch:
    def __init__(self, pattern: re.Pattern[str], literal: re.Pattern[bytes] | None) -> None:
        self._pattern = pattern
        self._literal = literal

    def search_file(
        self, path: Path, session_id: str, agent_id: str | None, on_problem: OnProblem
    ) -> Iterator[SearchHit]:
        try:
            with open_transcript(path) as file:
                for number, _, line in read_lines(file, path, on_problem):
                    if b'"user"' not in line and b'"assistant"' not in line:
                        continue
                    if self._literal is None or self._literal.search(line) is not None:
                        yield from self._search_line(line, number, path, session_id, agent_id, on_problem)
        except OSError as error:
            on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))

    def _search_line(
        self, line: bytes, number: int, path: Path, session_id: str, agent_id: str | None, on_problem: OnProblem
    ) -> Iterator[SearchHit]:
        row = decode_row(line)
        if isinstance(row, str):
            on_problem(TranscriptProblem(str(path), number, row))
            return
        if row.type not in SPOKEN_TYPES or row.is_meta:
            return
        try:
            message = decode(line)
        except (LineDecodeError, MessageParseError):
            return
        if not isinstance(message, AssistantMessage | UserMessage):
            return
        reported: set[HitLocation] = set()
        for where, text in _iterate_searchable_texts(message):
            found = self._pattern.search(text) if where not in reported else None
            if found is not None:
                reported.add(where)
                yield SearchHit(
                    session_id=session_id,
                    path=str(path),
                    line=number,
                    uuid=row.uuid,
                    where=where,
                    excerpt=_make_excerpt(text, found.start(), found.end()),
                    match=found[0],
                    timestamp=row.timestamp,
                    agent_id=agent_id,
                )


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


def _make_excerpt(text: str, start: int, end: int) -> str:
    before, after = max(0, start - EXCERPT_MARGIN), min(len(text), max(end, start + 1) + EXCERPT_MARGIN)
    shown = " ".join(text[before : min(after, before + 10 * EXCERPT_MARGIN)].split())
    return f"{'…' if before else ''}{shown}{'…' if after < len(text) else ''}"
