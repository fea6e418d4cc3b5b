"""Orders the rows of a transcript as the conversation that the CLI would resume, and returns its messages."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from io import BufferedReader
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec import Struct

from pilothouse.messages import Message
from pilothouse_transcripts.paths import StrPath, find_file, get_sidecar_directory, is_agent_id
from pilothouse_transcripts.rows import (
    CHAINED_TYPES,
    SPOKEN_TYPES,
    OnProblem,
    TranscriptProblem,
    TranscriptRow,
    ignore_problem,
    list_visible,
    open_transcript,
    read_messages,
    read_rows,
)


class Conversation:
    """The order of the rows of one file.

    Args:
        rows: all rows, in file order.
        include_compacted: whether rows replaced by compactions are included.
        up_to: the id of the last row; None: as the CLI would resume it.
        sidechain: whether this is the file of a sub-agent, in which every row belongs to a side conversation.

    Attributes:
        rows: the rows of the conversation, in order.
        problems: rows whose predecessor is missing or part of a circle, and which of the two.
    """

    def __init__(
        self,
        rows: Sequence[TranscriptRow],
        *,
        include_compacted: bool = False,
        up_to: str | None = None,
        sidechain: bool = False,
    ) -> None:
        self.problems: list[tuple[TranscriptRow, str]] = []
        self._include_compacted = include_compacted
        if up_to is not None:
            rows = _cut_after(rows, up_to)
        main = [
            row
            for row in rows
            if row.type in CHAINED_TYPES and row.uuid and (sidechain or not (row.is_sidechain or row.team_name))
        ]
        self._by_uuid: dict[str, TranscriptRow] = {row.uuid: row for row in main if row.uuid}
        self._new_parents: dict[str, str | None] = {}
        self._main = main
        self._dropped: set[str] = set()
        if not include_compacted:
            self._drop_before(next((row for row in reversed(main) if row.is_boundary), None))
        leaf = up_to if up_to is not None else _find_leaf(rows, self._by_uuid)
        way = self._walk_to_root(leaf)
        self.rows = self._add_parallel_rows(way)

    def _drop_before(self, boundary: TranscriptRow | None) -> None:
        if boundary is None:
            return
        kept, anchor = self._list_preserved(boundary)
        if any(key not in self._by_uuid for key in kept):
            kept = []
        gone = {key for key, row in self._by_uuid.items() if row.number < boundary.number} - set(kept)
        self._dropped = gone
        for key in gone:
            del self._by_uuid[key]
        if kept:
            self._reattach_preserved(kept, anchor, gone)

    def _reattach_preserved(self, preserved: list[str], anchor: str | None, dropped: set[str]) -> None:
        """Link the kept rows behind the summary; rows that followed the summary or a dropped row follow them."""
        own = set(preserved)
        followers = [
            key
            for key, row in self._by_uuid.items()
            if key not in own
            and (row.parent_uuid == anchor or (row.type in SPOKEN_TYPES and row.parent_uuid in dropped))
        ]
        for before, key in zip([anchor, *preserved], preserved, strict=False):
            self._new_parents[key] = before
        self._new_parents |= dict.fromkeys(followers, preserved[-1])

    def _list_preserved(self, boundary: TranscriptRow) -> tuple[list[str], str | None]:
        metadata = boundary.compact_metadata
        if metadata is None:
            return [], None
        if metadata.preserved_messages is not None:
            return metadata.preserved_messages.uuids or [], metadata.preserved_messages.anchor_uuid
        stretch = metadata.preserved_segment
        if stretch is None:
            return [], None
        keys: dict[str, None] = {}
        key = stretch.tail_uuid
        while key is not None and key in self._by_uuid and key not in keys:
            keys[key] = None
            if key == stretch.head_uuid:
                return list(keys)[::-1], stretch.anchor_uuid
            key = self._by_uuid[key].parent_uuid
        return [], None

    def _walk_to_root(self, leaf: str | None) -> list[TranscriptRow]:
        way: dict[str, TranscriptRow] = {}
        row = self._by_uuid.get(leaf) if leaf is not None else None
        while row is not None and row.uuid is not None:
            way[row.uuid] = row
            row = self._find_parent(row, way)
        return list(way.values())[::-1]

    def _find_parent(self, row: TranscriptRow, seen: Container[str]) -> TranscriptRow | None:
        parent = self._new_parents.get(row.uuid or "", row.parent_uuid)
        if parent is None and self._include_compacted and row.is_boundary:
            parent = row.logical_parent_uuid
        if parent is None:
            return None
        if parent in seen:
            self.problems.append((row, "its predecessors turn in a circle"))
            return None
        found = self._by_uuid.get(parent)
        if found is None and not (row.is_boundary or row is self._main[0]):
            if parent not in self._dropped:
                self.problems.append((row, f"its predecessor {parent[:40]} is missing; the row before it is taken"))
            found = self._find_row_before(row, seen)
        return found

    def _find_row_before(self, row: TranscriptRow, seen: Container[str]) -> TranscriptRow | None:
        for index in range(bisect_left(self._main, row.number, key=attrgetter("number")) - 1, -1, -1):
            candidate = self._main[index]
            if candidate.uuid in self._by_uuid and candidate.uuid not in seen:
                return candidate
        return None

    def _add_parallel_rows(self, chain: list[TranscriptRow]) -> list[TranscriptRow]:
        """Add rows that ran in parallel: other blocks of a message in the chain, and results of its calls."""
        if len(chain) == len(self._by_uuid):
            return chain
        on_way = {row.uuid for row in chain}
        last = {_get_message_id(row): index for index, row in enumerate(chain) if _get_message_id(row) is not None}
        beside, owner = self._find_parallel_rows(on_way, last)
        if not beside:
            return chain
        complete: list[TranscriptRow] = []
        index = 0
        while index < len(chain):
            row = chain[index]
            complete.append(row)
            index += 1
            key = _get_message_id(row)
            if key is None or last[key] != index - 1 or key not in beside:
                continue
            answers = [extra for extra in beside[key] if extra.type == "user"]
            complete += [extra for extra in beside[key] if extra.type == "assistant"]
            while index < len(chain) and key in {owner.get(call) for call in chain[index].get_call_ids("tool_result")}:
                answers.append(chain[index])
                index += 1
            complete += sorted(answers, key=attrgetter("number"))
        return complete

    def _find_parallel_rows(
        self, chain_ids: set[str | None], last: Mapping[str | None, int]
    ) -> tuple[dict[str, list[TranscriptRow]], dict[str, str]]:
        """Return, by message in the chain, its blocks and results outside the chain; and the message of each call."""
        owner: dict[str, str] = {}
        for row in self._by_uuid.values():
            key = _get_message_id(row)
            if key is not None and key in last:
                owner.update(dict.fromkeys(row.get_call_ids("tool_use"), key))
        answered = {call for key in chain_ids if key for call in self._by_uuid[key].get_call_ids("tool_result")}
        beside: dict[str, list[TranscriptRow]] = {}
        for row in self._by_uuid.values():
            if row.uuid in chain_ids:
                continue
            key = _get_message_id(row)
            if key is not None and key in last:
                beside.setdefault(key, []).append(row)
            elif row.type == "user":
                calls = [call for call in row.get_call_ids("tool_result") if call in owner and call not in answered]
                if calls:
                    answered.update(calls)
                    beside.setdefault(owner[calls[0]], []).append(row)
        return beside, owner


def _cut_after(rows: Sequence[TranscriptRow], key: str) -> Sequence[TranscriptRow]:
    """Return the rows up to one, without later results of calls of the same message."""
    index = next((index for index in range(len(rows) - 1, -1, -1) if rows[index].uuid == key), len(rows) - 1)
    return rows[: index + 1]


def _find_leaf(rows: Sequence[TranscriptRow], known: Mapping[str, TranscriptRow]) -> str | None:
    """Return the last row of the conversation; None: the session was rewound to nothing, or is empty."""
    for row in reversed(rows):
        if row.type in CHAINED_TYPES:
            if row.uuid in known:
                return row.uuid
        elif row.type == "last-prompt" and row.explicit and (row.leaf_uuid is None or row.leaf_uuid in known):
            return row.leaf_uuid
    return None


def _get_message_id(row: TranscriptRow) -> str | None:
    return row.message.id if row.type == "assistant" and row.message is not None else None


_AGENT_PREFIX, _AGENT_SUFFIX = "agent-", ".jsonl"
_MAX_INFO_BYTES = 1 << 20
MAX_DIRECTORY_DEPTH = 8
"""Maximum depth of folders that are searched for sub-agents."""


def get_session_messages(
    session_id: str,
    directory: StrPath | None = None,
    limit: int | None = None,
    offset: int = 0,
    *,
    include_system: bool = False,
    include_compacted: bool = False,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> list[Message]:
    """Return the messages of a session as the CLI would resume it: in order, without abandoned branches.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        limit: maximum number of messages; None: all. Only these are decoded.
        offset: number of messages to skip first.
        include_system: whether to include system messages, such as compaction boundaries.
        include_compacted: whether to include what compactions have replaced by summaries.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read, and with each missing predecessor.

    Returns:
        `AssistantMessage`s and `UserMessage`s, and `SystemMessage`s if requested. Their `.raw` is the row in the
        file; words that were sent into a running turn are a `UserMessage` in their place, and `.raw` a row of the
        user. Empty if there is no such session.
    """
    path = find_file(session_id, directory, config_dir)
    if path is None:
        return []
    wanted = {"system"} if include_system else set[str]()
    return _read_messages(path, wanted, limit, offset, include_compacted, on_problem)


def list_subagents(
    session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> list[str]:
    """Return the ids of the sub-agents of a session, including those of workflows; sorted.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        config_dir: another configuration directory of the CLI than that of this process.
    """
    path = find_file(session_id, directory, config_dir)
    return [] if path is None else sorted({key for key, _ in list_agent_files(path)})


def get_subagent_messages(
    session_id: str,
    agent_id: str,
    directory: StrPath | None = None,
    limit: int | None = None,
    offset: int = 0,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> list[Message]:
    """Return the messages of a sub-agent, in order.

    Args:
        session_id: the session in which it ran.
        agent_id: its id, from `list_subagents`.
        directory: the working directory of the session; None: any.
        limit: maximum number of messages; None: all.
        offset: number of messages to skip first.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read.

    Returns:
        Messages as from `get_session_messages`. `parent_tool_use_id` is the call that started the sub-agent.
    """
    path = find_file(session_id, directory, config_dir) if is_agent_id(agent_id) else None
    found = next((file for key, file in list_agent_files(path) if key == agent_id), None) if path is not None else None
    if found is None:
        return []
    return _read_messages(found, set(), limit, offset, True, on_problem, agent=read_subagent_info(found))


def get_file_messages(path: Path, *, on_problem: OnProblem = ignore_problem) -> list[Message]:
    """Return the messages of a transcript file, with those that compactions replaced, and of the sub-agents beside it.

    Args:
        path: the file. If it cannot be read, that is a problem.
        on_problem: called with each line that cannot be read.
    """
    messages = _read_messages(path, set(), None, 0, True, on_problem)
    for _, file in list_agent_files(path):
        messages += _read_messages(file, set(), None, 0, True, on_problem, agent=read_subagent_info(file))
    return messages


class SubagentInfo(Struct, frozen=True, rename="camel"):
    """The CLI's metadata of a sub-agent.

    Args:
        agent_type: its kind, such as "general-purpose".
        description: its task.
        tool_use_id: the call that started it.
        model: its model.
    """

    agent_type: str | None = None
    description: str | None = None
    tool_use_id: str | None = None
    model: str | None = None


_decode_subagent_info = msgspec.json.Decoder(SubagentInfo).decode


def read_subagent_info(path: Path) -> SubagentInfo:
    """Read the metadata file beside a sub-agent's transcript; empty if it is missing or broken."""
    try:
        with open_transcript(path.with_name(path.name[: -len(_AGENT_SUFFIX)] + ".meta.json")) as file:
            return _decode_subagent_info(file.read(_MAX_INFO_BYTES))
    except (OSError, ValueError):
        return SubagentInfo()


def list_agent_files(path: Path) -> list[tuple[str, Path]]:
    """Return id and file of each sub-agent of a session file, sorted. Links are not followed."""
    folder = get_sidecar_directory(path)
    return [] if folder.is_symlink() else sorted(_list_agent_files_below(folder / "subagents", MAX_DIRECTORY_DEPTH))


def _list_agent_files_below(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder) as found:
            entries = [] if folder.is_symlink() else list(found)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                yield from _list_agent_files_below(Path(entry.path), depth - 1)
            continue
        name = entry.name
        if name.startswith(_AGENT_PREFIX) and name.endswith(_AGENT_SUFFIX) and entry.is_file(follow_symlinks=False):
            yield name[len(_AGENT_PREFIX) : -len(_AGENT_SUFFIX)], Path(entry.path)


def _read_messages(
    path: Path,
    more: set[str],
    limit: int | None,
    offset: int,
    include_compacted: bool,
    on_problem: OnProblem,
    agent: SubagentInfo | None = None,
) -> list[Message]:
    try:
        with open_transcript(path) as file:
            rows = read_conversation(
                file, path, on_problem, include_compacted=include_compacted, sidechain=agent is not None
            )
            shown = {row.number for row in list_visible(rows)}
            visible = [row for row in rows if row.number in shown or row.type in more]
            stop = None if limit is None or limit <= 0 else max(offset, 0) + limit
            parent = agent.tool_use_id if agent is not None else None
            return list(read_messages(file, path, visible[max(offset, 0) : stop], parent, on_problem))
    except OSError as error:
        on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))
        return []


def read_conversation(
    file: BufferedReader,
    path: Path,
    on_problem: OnProblem = ignore_problem,
    *,
    include_compacted: bool = False,
    sidechain: bool = False,
    up_to: str | None = None,
) -> list[TranscriptRow]:
    """Return the rows of the conversation in an open file, in order; report problems."""
    rows = list(read_rows(file, path, on_problem))
    found = Conversation(rows, include_compacted=include_compacted, sidechain=sidechain, up_to=up_to)
    for row, reason in found.problems:
        on_problem(TranscriptProblem(str(path), row.number, reason))
    return found.rows
