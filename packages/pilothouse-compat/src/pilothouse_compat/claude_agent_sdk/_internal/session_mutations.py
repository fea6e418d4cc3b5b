"""Sessions in a store: list, read, change, fork and import them.

What a transcript means is decided by `pilothouse_transcripts`, which reads files: entries of a store are written to a
private directory first.
"""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import anyio
from anyio import to_thread

import pilothouse_transcripts as transcripts
from pilothouse_transcripts.stores import import_session_to_store as import_to_store

from .._options import implements
from ..types import SDKSessionInfo, SessionKey, SessionMessage, SessionStore
from .session_store import (
    fold_session_summary,
    project_key_for_directory,
    summary_entry_to_sdk_info,
)
from .sessions import (
    ForkSessionResult,
    check_message_id,
    explain_errors,
    is_checked,
    is_id,
    make_messages,
    resolve,
)

T = TypeVar("T")
Entries = list[dict[str, Any]]

PARALLEL_LOADS: Final = 16
METADATA: Final = "agent_metadata"
_HIDDEN: Final = ("Cc", "Cf", "Co", "Cn", "Cs")
_PROJECT: Final = "copy"


def _make_key(session_id: str, directory: str | None, subpath: str | None = None) -> SessionKey:
    key: SessionKey = {"project_key": project_key_for_directory(directory), "session_id": session_id}
    return {**key, "subpath": subpath} if subpath else key


async def _load(store: SessionStore, key: SessionKey) -> Entries:
    return cast("Entries", await store.load(key) or [])


@contextmanager
def _copy_to_disk(session_id: str, entries: Entries, subpath: str | None = None) -> Generator[str]:
    """Write a transcript to a private directory; yields the directory as one of the CLI's configuration."""
    with tempfile.TemporaryDirectory(prefix="pilothouse-copy-") as config:
        folder = Path(config, "projects", _PROJECT)
        folder.mkdir(parents=True, mode=0o700)
        rows = [each for each in entries if each.get("type") != METADATA]
        _write_rows(folder / f"{session_id}.jsonl", rows or [{"type": "stub"}])
        if subpath is not None:
            path = folder / session_id / f"{PurePosixPath('/', subpath).relative_to('/')}.jsonl"
            path.parent.mkdir(parents=True, mode=0o700)
            _write_rows(path, rows)
            path.with_name(f"{path.stem}.meta.json").write_text(json.dumps(_find_metadata(entries)))
        yield config


def _write_rows(path: Path, rows: Entries) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _find_metadata(entries: Entries) -> dict[str, str]:
    """Return what the last entry about the sub-agent says, as far as it is text."""
    all_found = [each for each in entries if each.get("type") == METADATA]
    return {name: value for name, value in all_found[-1].items() if isinstance(value, str)} if all_found else {}


async def _read_copy(session_id: str, entries: Entries, work: Callable[[str], T], subpath: str | None = None) -> T:
    def run() -> T:
        with _copy_to_disk(session_id, entries, subpath) as config:
            return work(config)

    return await to_thread.run_sync(run)


def _require(store: SessionStore, method: str, why: str) -> None:
    if not implements(store, method):
        raise ValueError(f"session_store does not implement {method}() -- {why}")


async def list_sessions_from_store(
    session_store: SessionStore, directory: str | None = None, limit: int | None = None, offset: int = 0
) -> list[SDKSessionInfo]:
    """List the sessions of a directory in a store, newest first. Raises ValueError if the store cannot.

    A session that cannot be loaded is there with an empty summary.
    """
    project, where = project_key_for_directory(directory), resolve(directory)
    summaries: dict[str, Any] = {}
    if implements(session_store, "list_session_summaries"):
        try:
            found = await session_store.list_session_summaries(project)
            summaries = {each["session_id"]: each for each in found}
        except NotImplementedError:
            pass
    if not summaries or implements(session_store, "list_sessions"):
        _require(session_store, "list_sessions", "it cannot list sessions")
        times = {each["session_id"]: each["mtime"] for each in await session_store.list_sessions(project)}
    else:
        times = {name: each["mtime"] for name, each in summaries.items()}
    hidden = {name for name, each in summaries.items() if summary_entry_to_sdk_info(each, where) is None}
    current = {name for name, each in summaries.items() if each["mtime"] >= times.get(name, 0)}
    newest = sorted((each for each in times.items() if each[0] not in hidden & current), key=lambda each: -each[1])
    page = slice(max(offset, 0), max(offset, 0) + limit if limit is not None and limit > 0 else None)
    infos: list[SDKSessionInfo] = []
    limiter = anyio.CapacityLimiter(PARALLEL_LOADS)

    async def add(session_id: str, mtime: int) -> None:
        summary = summaries.get(session_id)
        if summary is None or summary["mtime"] < mtime:  # an older writer has not updated it
            key: SessionKey = {"project_key": project, "session_id": session_id}
            try:
                async with limiter:
                    entries = await session_store.load(key)
            except Exception:  # noqa: BLE001 - the other sessions are listed
                infos.append(SDKSessionInfo(session_id=session_id, summary="", last_modified=mtime))
                return
            summary = {**fold_session_summary(None, key, entries or []), "mtime": mtime}
        if (info := summary_entry_to_sdk_info(cast("Any", summary), where)) is not None:
            infos.append(info)

    async with anyio.create_task_group() as tasks:
        # With summaries, few have to be loaded: those of the page. Without, only loading tells what belongs to a list.
        for session_id, mtime in newest[page] if summaries else newest:
            tasks.start_soon(add, session_id, mtime)
    infos.sort(key=lambda info: -info.last_modified)
    return infos if summaries else infos[page]


async def get_session_info_from_store(
    session_store: SessionStore, session_id: str, directory: str | None = None
) -> SDKSessionInfo | None:
    """Return what lists show of a session in a store; None if there is none."""
    if not is_id(session_id):
        return None
    key = _make_key(session_id, directory)
    entries = await session_store.load(key)
    if not entries:
        return None
    stamps = [int(at.timestamp() * 1000) for each in entries if (at := _read_time(each)) is not None]
    folded = {**fold_session_summary(None, key, entries), "mtime": max(stamps, default=0)}
    return summary_entry_to_sdk_info(cast("Any", folded), resolve(directory))


def _read_time(entry: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(entry.get("timestamp"))
    except (TypeError, ValueError):
        return None


async def get_session_messages_from_store(
    session_store: SessionStore,
    session_id: str,
    directory: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[SessionMessage]:
    """Return the messages of a session in a store, in order."""
    entries = await _load(session_store, _make_key(session_id, directory)) if is_id(session_id) else []

    def read(config: str) -> list[SessionMessage]:
        return make_messages(transcripts.get_session_messages(session_id, None, limit, offset, config_dir=config))

    return await _read_copy(session_id, entries, read) if entries else []


async def list_subagents_from_store(
    session_store: SessionStore, session_id: str, directory: str | None = None
) -> list[str]:
    """Return the ids of the sub-agents of a session in a store. Raises ValueError if the store cannot list subpaths."""
    if not is_id(session_id):
        return []
    _require(session_store, "list_subkeys", "it lists no sub-agents")
    subpaths = await session_store.list_subkeys(cast("Any", _make_key(session_id, directory)))
    return list(dict.fromkeys(agent for path in subpaths if (agent := _get_agent(path)) is not None))


def _get_agent(subpath: str) -> str | None:
    folder, _, name = subpath.rpartition("/")
    is_agent = folder.partition("/")[0] == "subagents" and name.startswith("agent-")
    return name.removeprefix("agent-") if is_agent else None


async def get_subagent_messages_from_store(
    session_store: SessionStore,
    session_id: str,
    agent_id: str,
    directory: str | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[SessionMessage]:
    """Return the messages of a sub-agent in a store, in order."""
    if not is_id(session_id) or not agent_id:
        return []
    subpath = f"subagents/agent-{agent_id}"
    if implements(session_store, "list_subkeys"):
        listed = await session_store.list_subkeys(cast("Any", _make_key(session_id, directory)))
        subpath = next((path for path in listed if _get_agent(path) == agent_id), subpath)
    entries = await _load(session_store, _make_key(session_id, directory, subpath))
    parent = _find_metadata(entries).get("parentAgentId")

    def read(config: str) -> list[SessionMessage]:
        found = transcripts.get_subagent_messages(session_id, agent_id, None, limit, offset, config_dir=config)
        return make_messages(found, is_subagent=True, parent_agent_id=parent)

    return await _read_copy(session_id, entries, read, subpath) if entries else []


def _stamp(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the id by which stores know it again, and its time."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {**row, "uuid": row.get("uuid") or str(uuid4()), "timestamp": row.get("timestamp") or now}


async def _append(store: SessionStore, key: SessionKey, rows: Entries) -> None:
    await store.append(key, cast("Any", rows))


async def rename_session_via_store(
    session_store: SessionStore, session_id: str, title: str, directory: str | None = None
) -> None:
    """Set the title of a session in a store. Raises ValueError if the id is not valid, or the title is empty."""
    if is_checked(session_id) and not title.strip():
        raise ValueError("title must be non-empty")
    row = {"type": "custom-title", "customTitle": title.strip(), "sessionId": session_id}
    await _append(session_store, _make_key(session_id, directory), [_stamp(row)])


async def tag_session_via_store(
    session_store: SessionStore, session_id: str, tag: str | None, directory: str | None = None
) -> None:
    """Set the tag of a session in a store; None removes it. Raises ValueError if an argument is not valid."""
    is_checked(session_id)
    shown = unicodedata.normalize("NFKC", tag or "")
    text = "".join(char for char in shown if unicodedata.category(char) not in _HIDDEN).strip()
    if tag is not None and not text:
        raise ValueError("tag must be non-empty (use None to clear)")
    row = {"type": "tag", "tag": text, "sessionId": session_id}
    await _append(session_store, _make_key(session_id, directory), [_stamp(row)])


async def delete_session_via_store(session_store: SessionStore, session_id: str, directory: str | None = None) -> None:
    """Remove a session from a store, if the store can delete. Raises ValueError if the id is not valid."""
    if is_checked(session_id) and implements(session_store, "delete"):
        await session_store.delete(_make_key(session_id, directory))


async def fork_session_via_store(
    session_store: SessionStore,
    session_id: str,
    directory: str | None = None,
    up_to_message_id: str | None = None,
    title: str | None = None,
) -> ForkSessionResult:
    """Copy a session in a store up to a message; raises as `fork_session` does."""
    is_checked(session_id)
    check_message_id(up_to_message_id)
    entries = await _load(session_store, _make_key(session_id, directory))
    if not entries:
        raise FileNotFoundError(f"Session {session_id} not found")

    def fork(config: str) -> tuple[str, Sequence[str]]:
        with explain_errors(session_id, directory):
            made = transcripts.fork_session(session_id, None, up_to_message_id or None, title, config_dir=config)
        return made.session_id, Path(made.path).read_text().splitlines()

    new_id, lines = await _read_copy(session_id, entries, fork)
    rows: Entries = [json.loads(line) for line in lines]
    rows.sort(key=lambda row: 0 if "forkedFrom" in row else 2 if row.get("type") == "custom-title" else 1)
    await _append(session_store, _make_key(new_id, directory), [_stamp(row) for row in rows])
    return ForkSessionResult(new_id)


async def import_session_to_store(
    session_id: str,
    store: SessionStore,
    *,
    directory: str | None = None,
    include_subagents: bool = True,
    batch_size: int = 500,
) -> None:
    """Copy a session from the disk to a store; what is there already is not added again.

    Raises ValueError if the id is not valid, and FileNotFoundError if there is no such session.
    """
    is_checked(session_id)
    size = batch_size if batch_size > 0 else 500
    with explain_errors(session_id, directory):
        await import_to_store(
            session_id,
            cast("Any", store),
            directory=directory or None,
            include_subagents=include_subagents,
            batch_size=size,
        )
