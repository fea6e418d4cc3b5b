"""Lists, reads, changes and forks the sessions of a store, and imports sessions from this machine's disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import anyio
from anyio import to_thread

from pilothouse.errors import LineDecodeError, SessionNotFoundError, StoreConflictError, UsageError
from pilothouse.messages import Message
from pilothouse.options import TABLE
from pilothouse.support import decode_line, run_blocking
from pilothouse.transports.private_files import PrivateDirectory
from pilothouse_transcripts import (
    ForkSessionResult,
    SessionInfo,
    fork_session,
    get_session_messages,
    get_subagent_messages,
    list_subagents,
    rename_session,
    tag_session,
)
from pilothouse_transcripts import project_key as key_of
from pilothouse_transcripts.history import HistoryMessage, make_history_rows
from pilothouse_transcripts.paths import (
    StrPath,
    get_sidecar_directory,
    is_session_id,
    project_key,
    require_file,
    resolve_directory,
)
from pilothouse_transcripts.rows import (
    PADDING,
    OnProblem,
    TranscriptProblem,
    find_row,
    ignore_problem,
    load_object,
    open_transcript,
    read_lines,
)
from pilothouse_transcripts.stores.base import (
    Entry,
    SessionStore,
    StoreBackend,
    TranscriptKey,
    fold_summary,
    get_entry_uuid,
    implements,
    parse_key,
)
from pilothouse_transcripts.stores.mirror import ATTEMPT_SECONDS, BATCH_BYTES, BATCH_ENTRIES, SessionWriter
from pilothouse_transcripts.stores.restore import METADATA_TYPE, RestoredSession, StoreReader, call_store, write_session

IMPORT_LEASE_SECONDS = 300.0
LOAD_TIMEOUT: float = TABLE["load_timeout"].default


async def import_session_to_store(
    session_id: str,
    store: SessionStore,
    *,
    directory: StrPath | None = None,
    include_subagents: bool = True,
    batch_size: int = BATCH_ENTRIES,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> int:
    """Import a session from the CLI's files on disk into a store, so that it can be resumed from there.

    Only entries that the store does not have are added: the call may be repeated, and brings what a host that was
    killed had not yet written.

    Args:
        session_id: the id of the session.
        store: the destination. Its lease is held meanwhile, if it has leases.
        directory: the working directory of the session; None: any.
        include_subagents: whether to import the transcripts of its sub-agents.
        batch_size: maximum number of entries in one `append`.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read; the line is skipped.

    Returns:
        The number of entries in the files.

    Raises:
        UsageError: the id is not a session id.
        SessionNotFoundError: there is no such session on disk.
        SessionLeasedError: another owner has the session.
        StoreError: the store failed.
    """
    path = await run_blocking(require_file, session_id, directory, config_dir)
    project = path.parent.name if directory is None else await run_blocking(project_key, directory)
    async with SessionWriter(store, IMPORT_LEASE_SECONDS) as sessions:
        return await import_file(
            path,
            TranscriptKey(project, session_id),
            sessions,
            include_subagents=include_subagents,
            batch_size=batch_size,
            on_problem=on_problem,
        )


async def import_file(
    path: Path,
    transcript: TranscriptKey,
    sessions: SessionWriter,
    *,
    include_subagents: bool = True,
    batch_size: int = BATCH_ENTRIES,
    on_problem: OnProblem = ignore_problem,
) -> int:
    """Import what the store does not have of a session file, as `transcript`."""
    files = [(transcript, path)]
    if include_subagents:
        files += await run_blocking(_list_subagent_files, path, transcript)
    reader = StoreReader(sessions.store, LOAD_TIMEOUT)
    total = 0
    for key, file in files:
        is_missing = _make_missing_filter(await reader.read_entries(key))
        batches = _read_batches(file, batch_size, on_problem)
        while batch := await run_blocking(next, batches, None):
            total += len(batch)
            if missing := [entry for entry in batch if is_missing(entry)]:
                await call_store(sessions.append(key, missing), "append()", ATTEMPT_SECONDS)
    return total


def _make_missing_filter(stored: list[Entry]) -> Callable[[Entry], bool]:
    """Return a function that says for each entry of a file, in order, whether a transcript of a store lacks it.

    Titles, modes and the like have no uuid, and may be repeated: equal ones are counted.
    """
    uuids = {get_entry_uuid(entry) for entry in stored}
    others = Counter(_make_text(entry) for entry in stored if get_entry_uuid(entry) is None)

    def is_missing(entry: Entry) -> bool:
        if (uuid := get_entry_uuid(entry)) is not None:
            return uuid not in uuids
        others[text := _make_text(entry)] -= 1
        return others[text] < 0

    return is_missing


def _make_text(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True)


def _list_subagent_files(path: Path, transcript: TranscriptKey) -> list[tuple[TranscriptKey, Path]]:
    """Return the transcripts of sub-agents, without links, which may lead anywhere."""
    folder = get_sidecar_directory(path)
    found = sorted(file for file in folder.glob("subagents/**/*.jsonl") if not file.is_symlink())
    return [(transcript._replace(subpath=file.relative_to(folder).with_suffix("").as_posix()), file) for file in found]


def _read_batches(path: Path, batch_size: int, on_problem: OnProblem) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry, length in _read_entries(path, on_problem):
        batch.append(entry)
        size += length
        if len(batch) >= batch_size or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_entries(path: Path, on_problem: OnProblem) -> Iterator[tuple[Entry, int]]:
    with open_transcript(path) as file:
        for number, _, line in read_lines(file, path, on_problem):
            part = line.strip(PADDING)
            entry = load_object(part) if part else None
            if part and entry is None:
                _, part, problem = find_row(line)
                on_problem(TranscriptProblem(str(path), number, problem))
                entry = load_object(part)
            if entry is not None:
                yield entry, len(part)
    note = path.with_name(f"{path.stem}.meta.json")
    try:
        metadata = decode_line(note.read_bytes())
    except (OSError, LineDecodeError):
        return
    if isinstance(metadata, dict):
        yield {**metadata, "type": METADATA_TYPE}, len(json.dumps(metadata))


T = TypeVar("T")
Messages: TypeAlias = list[Message]  # inside the class below, `list` is a method
Infos: TypeAlias = list[SessionInfo]
Names: TypeAlias = list[str]
Items: TypeAlias = list[T]

MAX_PARALLEL_LOADS = 8
_TITLE_FIELDS = (
    "custom_title",
    "ai_title",
    "last_prompt",
    "summary_hint",
    "first_prompt",
    "command_fallback",
    "content_hint",
)
"""The fields for a session's title in lists: the first one present is used."""


class StoredSessions:
    """The sessions of a project in a store; like the functions for sessions on disk.

    ::

        sessions = StoredSessions(store, directory=".")
        for info in await sessions.list(limit=10):
            print(info.session_id, info.summary)

    Methods that change a session hold its lease meanwhile, if the store has leases. All methods raise `StoreError`
    when the store fails, and those that need a session raise `SessionNotFoundError` if the store does not have it.

    Args:
        store: the store.
        directory: the working directory of the project. Default: that of this process.
        project_key: the name of the project in the store, instead of `directory`.
        load_timeout: seconds to wait for each response of the store. Default: 60.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        directory: StrPath = ".",
        project_key: str | None = None,
        load_timeout: float = LOAD_TIMEOUT,
    ) -> None:
        self._store: Any = store
        self._directory = directory
        self._project = project_key
        self._reader = StoreReader(store, load_timeout)

    async def list(self, limit: int | None = None, offset: int = 0) -> Infos:
        """List information on each session, newest first, without sub-agents and empty sessions.

        Needs one call if the store has `list_session_summaries`; otherwise each session is loaded.

        Args:
            limit: maximum number; None: all.
            offset: number of sessions to skip first.

        Raises:
            UsageError: the store cannot list sessions.
        """
        if not implements(self._store, "list_sessions"):
            raise UsageError(f"{type(self._store).__name__} has no list_sessions()")
        project = await self._get_project_key()
        listed = await self._reader.list_sessions(project)
        summaries: dict[str, Any] = {}
        if implements(self._store, "list_session_summaries"):
            found = await self._reader.call(self._store.list_session_summaries(project), "list_session_summaries()")
            summaries = {row["session_id"]: row for row in found}
        infos: Infos = []
        limiter = anyio.CapacityLimiter(MAX_PARALLEL_LOADS)

        async def add(session_id: str, mtime: int) -> None:
            summary = summaries.get(session_id)
            if summary is None or summary["mtime"] < mtime:  # an older writer did not update the summary
                async with limiter:
                    entries = await self._reader.read_entries(TranscriptKey(project, session_id))
                data = fold_summary(None, entries)
            else:
                data = summary["data"]
            if (info := _make_info(session_id, mtime, data)) is not None:
                infos.append(info)

        async with anyio.create_task_group() as tasks:
            for session_id, mtime in listed.items():
                tasks.start_soon(add, session_id, mtime)
        infos.sort(key=lambda info: (-info.last_modified, info.session_id))
        start = max(offset, 0)
        return infos[start : None if limit is None or limit <= 0 else start + limit]

    async def info(self, session_id: str) -> SessionInfo | None:
        """Return information on one session; None if it does not exist or is empty."""
        transcript = await self._make_transcript_key(session_id)
        entries = await self._reader.read_entries(transcript)
        mtime = 0
        if entries and implements(self._store, "list_sessions"):
            mtime = (await self._reader.list_sessions(transcript.project)).get(session_id, 0)
        return _make_info(session_id, mtime, fold_summary(None, entries)) if entries else None

    async def messages(self, session_id: str, limit: int | None = None, offset: int = 0, **how: Any) -> Messages:
        """Return the messages of a session, in order; takes the further arguments of `get_session_messages`."""
        return await self._read_from_copy(
            session_id, lambda config: get_session_messages(session_id, None, limit, offset, config_dir=config, **how)
        )

    async def subagents(self, session_id: str) -> Names:
        """Return the ids of a session's sub-agents, sorted."""
        return await self._read_from_copy(session_id, lambda config: list_subagents(session_id, config_dir=config))

    async def subagent_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> Messages:
        """Return the messages of a sub-agent, in order."""
        return await self._read_from_copy(
            session_id,
            lambda config: get_subagent_messages(session_id, agent_id, None, limit, offset, config_dir=config),
        )

    async def rename(self, session_id: str, title: str) -> None:
        """Set the title of a session.

        Raises:
            UsageError: the title is empty.
            SessionLeasedError: another owner has the session.
        """
        await self._append_change(session_id, lambda config: rename_session(session_id, title, config_dir=config))

    async def tag(self, session_id: str, tag: str | None) -> None:
        """Set the tag of a session; None removes it.

        Raises:
            UsageError: the tag is empty.
            SessionLeasedError: another owner has the session.
        """
        await self._append_change(session_id, lambda config: tag_session(session_id, tag, config_dir=config))

    async def delete(self, session_id: str) -> None:
        """Remove a session with its sub-agents. A missing one is not an error.

        Raises:
            UsageError: the store cannot delete.
            SessionLeasedError: another owner has the session.
        """
        if not implements(self._store, "delete"):
            raise UsageError(f"{type(self._store).__name__} has no delete()")
        transcript = await self._make_transcript_key(session_id)
        await self._reader.call(self._store.delete(transcript.session_key), "delete()")

    async def fork(
        self, session_id: str, up_to_message_id: str | None = None, title: str | None = None
    ) -> ForkSessionResult:
        """Copy a session to a new one; like `fork_session`.

        Returns:
            The new session, which is in the store; its `path` is empty.

        Raises:
            UsageError: there is no such message, or the session is empty.
        """
        transcript = await self._make_transcript_key(session_id)
        session = await self._reader.read_session(transcript)
        if session is None:
            raise _make_missing_error(transcript)
        async with _copy_to_disk(session) as config:
            made = await to_thread.run_sync(
                lambda: fork_session(session_id, None, up_to_message_id, title, config_dir=config)
            )
            fork = TranscriptKey(transcript.project, made.session_id)
            async with SessionWriter(self._store, IMPORT_LEASE_SECONDS) as sessions:
                await import_file(Path(made.path), fork, sessions)
        return ForkSessionResult(made.session_id, messages=made.messages)

    async def write_history(self, history: Iterable[HistoryMessage], *, session_id: str | None = None) -> str:
        """Write messages of your own as a session of the store; like the function `write_history`.

        Returns:
            The id of the session, for `resume` with this store.

        Raises:
            UsageError: the CLI would change the history, or the id is not valid, or taken.
            SessionLeasedError: another owner has the session.
        """
        session_id = session_id or str(uuid4())
        messages = list(history)  # here: a cursor of a database may belong to this thread
        cwd = await run_blocking(resolve_directory, self._directory)
        rows = await run_blocking(make_history_rows, messages, cwd, session_id)
        transcript = await self._make_transcript_key(session_id)
        taken = UsageError(f"there is already a session {session_id} in the store")
        if await self._reader.read_entries(transcript):
            raise taken
        async with SessionWriter(self._store, IMPORT_LEASE_SECONDS) as sessions:
            sessions.set_count(transcript, 0)  # another writer may have come meanwhile
            try:
                await call_store(sessions.append(transcript, rows), "append()", ATTEMPT_SECONDS)
            except StoreConflictError:
                raise taken from None
        return session_id

    async def _read_from_copy(self, session_id: str, work: Callable[[str], Items[T]]) -> Items[T]:
        transcript = await self._make_transcript_key(session_id)
        session = await self._reader.read_session(transcript)
        if session is None:
            return []
        async with _copy_to_disk(session) as config:
            return await to_thread.run_sync(work, config)

    async def _append_change(self, session_id: str, work: Callable[[str], None]) -> None:
        """Append the row to a session that `work` adds to its file; the rest of the file is ignored."""
        transcript = await self._make_transcript_key(session_id)
        if isinstance(self._store, StoreBackend):
            is_there = await self._reader.call(self._store.count(transcript.session_key), "count()") > 0
        else:
            is_there = bool(await self._reader.read_entries(transcript))
        if not is_there:
            raise _make_missing_error(transcript)
        stub = RestoredSession(transcript, [{"type": "stub"}], {})
        async with _copy_to_disk(stub) as config:
            rows = await run_blocking(_edit_copy, config, transcript, work)
        async with SessionWriter(self._store, IMPORT_LEASE_SECONDS) as sessions:
            await call_store(sessions.append(transcript, rows), "append()", ATTEMPT_SECONDS)

    async def _make_transcript_key(self, session_id: str) -> TranscriptKey:
        if not is_session_id(session_id):
            raise UsageError(f"not a session id: {session_id!r:.80}")
        return TranscriptKey(await self._get_project_key(), session_id)

    async def _get_project_key(self) -> str:
        if self._project is None:
            self._project = await run_blocking(key_of, self._directory)
        return parse_key({"project_key": self._project, "session_id": "any"}).project


@asynccontextmanager
async def _copy_to_disk(session: RestoredSession) -> AsyncGenerator[str]:
    """Yield a configuration directory that contains only this session."""
    copy = PrivateDirectory()

    def write() -> str:
        directory = copy.create("pilothouse-copy-")
        # A store may have any project name.
        write_session(Path(directory), session._replace(transcript=session.transcript._replace(project="copy")))
        return directory

    try:
        yield await run_blocking(write)
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(copy.remove)


def _edit_copy(directory: str, transcript: TranscriptKey, work: Callable[[str], None]) -> list[Entry]:
    """Return the rows that `work` adds to the first row of a session."""
    work(directory)
    lines = Path(directory, "projects", "copy", f"{transcript.session}.jsonl").read_bytes().splitlines()[1:]
    return [row for line in lines if (row := load_object(line)) is not None]


def _make_missing_error(transcript: TranscriptKey) -> SessionNotFoundError:
    return SessionNotFoundError(
        f"there is no session {transcript.session} of the project {transcript.project} in the store"
    )


def _make_info(session_id: str, mtime: int, data: Mapping[str, Any]) -> SessionInfo | None:
    summary = next((text for name in _TITLE_FIELDS if (text := data.get(name))), None)
    if summary is None or data.get("is_sidechain"):
        return None
    facts: dict[str, Any] = {name: data.get(name) or None for name in _INFO_FIELDS}
    return SessionInfo(session_id=session_id, summary=str(summary), last_modified=int(mtime), file_size=0, **facts)


_INFO_FIELDS = ("ai_title", "created_at", "custom_title", "cwd", "first_prompt", "git_branch", "last_prompt", "tag")
