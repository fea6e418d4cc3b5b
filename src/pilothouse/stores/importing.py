"""A session on this machine's disk, brought into a store with its sub-agents.

Owns how files become entries. A line that is none is told and left out; what the store has already is not added again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio

from pilothouse.errors import LineDecodeError, StoreError
from pilothouse.messages.jsonline import load_line
from pilothouse.stores.base import Entry, Place, SessionStore, StoreBackend
from pilothouse.stores.mirror import ATTEMPT_SECONDS, BATCH_BYTES, BATCH_ENTRIES
from pilothouse.stores.private_config import METADATA
from pilothouse.stores.tenure import Tenure
from pilothouse.transcripts.lines import OnProblem, TranscriptProblem, ignore, opened, read_lines
from pilothouse.transcripts.places import StrPath, companion_folder, project_key, require_file
from pilothouse.transcripts.rows import load_object
from pilothouse.transports.errands import run_briefly

IMPORT_LEASE_SECONDS = 300.0


async def import_session_to_store(
    session_id: str,
    store: SessionStore,
    *,
    directory: StrPath | None = None,
    include_subagents: bool = True,
    batch_size: int = BATCH_ENTRIES,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore,
) -> int:
    """Bring a session that the CLI has kept on disk into a store, so that it can be resumed from there. (E85, L60)

    May be repeated: entries that have a uuid are stored once, in any store that keeps its word.

    Args:
        session_id: its id.
        store: where to. Its lease is taken meanwhile, if it has leases.
        directory: the working directory that it belongs to; None: any.
        include_subagents: also the transcripts of its sub-agents.
        batch_size: entries in one `append`, at most.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read; it is left out.

    Returns:
        How many entries the files had.

    Raises:
        UsageError: the id has not the form of one.
        SessionNotFoundError: there is no such session on disk.
        SessionLeasedError: somebody is at work in it.
        StoreError: the store failed.
    """
    path = await run_briefly(require_file, session_id, directory, config_dir)
    project = path.parent.name if directory is None else await run_briefly(project_key, directory)
    tenure = Tenure(store, IMPORT_LEASE_SECONDS) if isinstance(store, StoreBackend) else None
    try:
        return await import_file(
            path,
            Place(project, session_id),
            store,
            tenure,
            include_subagents=include_subagents,
            batch_size=batch_size,
            on_problem=on_problem,
        )
    finally:
        if tenure is not None:
            await tenure.release()


async def import_file(
    path: Path,
    place: Place,
    store: SessionStore,
    tenure: Tenure | None,
    *,
    include_subagents: bool = True,
    batch_size: int = BATCH_ENTRIES,
    on_problem: OnProblem = ignore,
) -> int:
    """The same for a session file, as `place`, under leases that the caller holds."""
    files = [(place, path)]
    if include_subagents:
        files += await run_briefly(_beside, path, place)
    total = 0
    for at, file in files:
        batches = _batches(file, batch_size, on_problem)
        while batch := await run_briefly(next, batches, None):
            await append_batch(store, at, batch, tenure)
            total += len(batch)
    return total


async def append_batch(store: SessionStore, place: Place, batch: list[Entry], tenure: Tenure | None) -> None:
    """Add entries under leases that the caller holds, wherever the transcript ends now."""
    try:
        with anyio.fail_after(ATTEMPT_SECONDS):
            if isinstance(store, StoreBackend):
                lease = None if tenure is None else await tenure.of(place)
                await store.append(place.key, batch, after=await store.count(place.key), lease=lease)
            else:
                await store.append(place.key, batch)
    except TimeoutError:
        raise StoreError(f"the session store did not answer append() within {ATTEMPT_SECONDS:g} s") from None


def _beside(path: Path, place: Place) -> list[tuple[Place, Path]]:
    """The transcripts of sub-agents; links are left out, since they may lead anywhere."""
    folder = companion_folder(path)
    found = sorted(file for file in folder.glob("subagents/**/*.jsonl") if not file.is_symlink())
    return [(place._replace(subpath=file.relative_to(folder).with_suffix("").as_posix()), file) for file in found]


def _batches(path: Path, batch_size: int, on_problem: OnProblem) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry, length in _entries(path, on_problem):
        batch.append(entry)
        size += length
        if len(batch) >= batch_size or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _entries(path: Path, on_problem: OnProblem) -> Iterator[tuple[Entry, int]]:
    with opened(path) as descriptor:
        for number, _, line in read_lines(descriptor, path, on_problem):
            stripped = line.strip(b"\0 \t\r")
            entry = load_object(stripped) if stripped else None
            if entry is not None:
                yield entry, len(stripped)
            elif stripped:
                on_problem(TranscriptProblem(str(path), number, "not a JSON object"))
    note = path.with_name(f"{path.stem}.meta.json")
    try:
        told = load_line(note.read_bytes())
    except (OSError, LineDecodeError):
        return
    if isinstance(told, dict):
        yield {"type": METADATA, **told}, len(json.dumps(told))
