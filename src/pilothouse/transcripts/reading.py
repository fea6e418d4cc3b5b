"""Messages of a session and of its sub-agents, in the order of the conversation.

Owns what is asked for and what is left out. The order is known to `conversation`, the rows to `rows`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from pilothouse.messages import Message
from pilothouse.transcripts.conversation import Conversation
from pilothouse.transcripts.lines import OnProblem, TranscriptProblem, ignore, opened
from pilothouse.transcripts.places import StrPath, companion_folder, find_file, is_agent_id
from pilothouse.transcripts.rows import Row, as_message, read_rows

_AGENT_PREFIX, _AGENT_SUFFIX = "agent-", ".jsonl"
_META_SIZE = 1 << 20
MAX_DEPTH = 8
"""Folders below one another in which sub-agents are looked for."""


def get_session_messages(
    session_id: str,
    directory: StrPath | None = None,
    limit: int | None = None,
    offset: int = 0,
    *,
    include_system: bool = False,
    include_compacted: bool = False,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore,
) -> list[Message]:
    """The messages of a session, as the CLI would resume it: in order, without branches that were left.

    Args:
        session_id: its id.
        directory: the working directory that it belongs to; None: any.
        limit: how many at most; None: all. Only these are decoded.
        offset: how many to leave out first.
        include_system: also system messages, such as compaction boundaries.
        include_compacted: also what compactions have replaced by summaries.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read, and with each predecessor that is missing.

    Returns:
        `AssistantMessage`s and `UserMessage`s, and `SystemMessage`s if they are asked for. Their `.raw` is the row as
        it stands in the file. None at all if there is no such session. (L60, E30)
    """
    path = find_file(session_id, directory, config_dir)
    if path is None:
        return []
    wanted = {"system"} if include_system else set[str]()
    return _messages(path, wanted, limit, offset, include_compacted, on_problem)


def list_subagents(
    session_id: str, directory: StrPath | None = None, *, config_dir: StrPath | None = None
) -> list[str]:
    """The ids of the sub-agents that ran in a session, those of workflows included; sorted.

    Args:
        session_id: its id.
        directory: the working directory that it belongs to; None: any.
        config_dir: another configuration directory of the CLI than that of this process.
    """
    path = find_file(session_id, directory, config_dir)
    return [] if path is None else sorted({key for key, _ in agent_files(path)})


def get_subagent_messages(
    session_id: str,
    agent_id: str,
    directory: StrPath | None = None,
    limit: int | None = None,
    offset: int = 0,
    *,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore,
) -> list[Message]:
    """The messages of a sub-agent, in order.

    Args:
        session_id: the session that it ran in.
        agent_id: its id, as `list_subagents` tells it.
        directory: the working directory that the session belongs to; None: any.
        limit: how many at most; None: all.
        offset: how many to leave out first.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read.

    Returns:
        Messages as of `get_session_messages`. `parent_tool_use_id` is the call that started the sub-agent.
    """
    path = find_file(session_id, directory, config_dir) if is_agent_id(agent_id) else None
    found = next((file for key, file in agent_files(path) if key == agent_id), None) if path is not None else None
    if found is None:
        return []
    return _messages(found, set(), limit, offset, True, on_problem, agent=subagent_info(found))


class SubagentInfo(Struct, frozen=True, rename="camel"):
    """What the CLI notes about a sub-agent.

    Args:
        agent_type: its kind, such as "general-purpose".
        description: what it was started for.
        tool_use_id: the call that started it.
        model: its model.
    """

    agent_type: str | None = None
    description: str | None = None
    tool_use_id: str | None = None
    model: str | None = None


_meta = msgspec.json.Decoder(SubagentInfo).decode


def subagent_info(path: Path) -> SubagentInfo:
    """What the file beside the transcript of a sub-agent tells; nothing if it is missing or broken."""
    try:
        with opened(path.with_name(path.name[: -len(_AGENT_SUFFIX)] + ".meta.json")) as descriptor:
            return _meta(os.read(descriptor, _META_SIZE))
    except (OSError, ValueError):
        return SubagentInfo()


def agent_files(path: Path) -> list[tuple[str, Path]]:
    """Id and file of each sub-agent of a session file, sorted. Links are not followed."""
    folder = companion_folder(path)
    return [] if folder.is_symlink() else sorted(_below(folder / "subagents", MAX_DEPTH))


def _below(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder) as found:
            entries = [] if folder.is_symlink() else list(found)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                yield from _below(Path(entry.path), depth - 1)
            continue
        name = entry.name
        if name.startswith(_AGENT_PREFIX) and name.endswith(_AGENT_SUFFIX) and entry.is_file(follow_symlinks=False):
            yield name[len(_AGENT_PREFIX) : -len(_AGENT_SUFFIX)], Path(entry.path)


def _messages(
    path: Path,
    more: set[str],
    limit: int | None,
    offset: int,
    whole: bool,
    on_problem: OnProblem,
    agent: SubagentInfo | None = None,
) -> list[Message]:
    try:
        with opened(path) as descriptor:
            rows = conversation_of(descriptor, path, on_problem, whole=whole, sidechain=agent is not None)
            visible = [row for row in rows if row.is_visible or row.type in more]
            stop = None if limit is None or limit <= 0 else max(offset, 0) + limit
            parent = agent.tool_use_id if agent is not None else None
            return list(_decoded(descriptor, path, visible[max(offset, 0) : stop], parent, on_problem))
    except OSError as error:
        on_problem(TranscriptProblem(str(path), 0, error.strerror or str(error)))
        return []


def conversation_of(
    descriptor: int,
    path: Path,
    on_problem: OnProblem = ignore,
    *,
    whole: bool = False,
    sidechain: bool = False,
    up_to: str | None = None,
) -> list[Row]:
    """The rows of the conversation in an open file, in order; what is wrong is told."""
    rows = list(read_rows(descriptor, path, on_problem))
    found = Conversation(rows, whole=whole, sidechain=sidechain, up_to=up_to)
    for row, reason in found.problems:
        on_problem(TranscriptProblem(str(path), row.number, reason))
    return found.rows


def _decoded(
    descriptor: int, path: Path, rows: list[Row], parent: str | None, on_problem: OnProblem
) -> Iterator[Message]:
    for row in rows:
        message = as_message(descriptor, row, parent)
        if message is None:
            on_problem(TranscriptProblem(str(path), row.number, "it has changed while it was read"))
        else:
            yield message
