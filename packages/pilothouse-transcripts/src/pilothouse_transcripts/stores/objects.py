"""`ObjectStore`: sessions in object storage: S3, GCS, Azure or a directory.

Owns its records, and the bucket operations that it needs.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pilothouse.errors import StoreError, UsageError
from pilothouse.support import lock_file
from pilothouse_transcripts.stores.backend import (
    FORMAT,
    Change,
    ChangeRequest,
    ConcurrentChangeError,
    ConnectedBackend,
    EntriesAdded,
    LeaseChanged,
    LeaseState,
    StoredState,
    TranscriptRecord,
    check_format,
    check_package,
    digest_key,
    encode_entry,
    encode_uuid,
    find_address_secrets,
    find_setting_secrets,
    make_damage_error,
    read_entry,
    redact_address,
)
from pilothouse_transcripts.stores.base import Entry, TranscriptKey, get_entry_uuid

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Storage


CONNECT_SECONDS = 10
RESPONSE_SECONDS = 60
"""Timeout in seconds for one request, including its retries."""
LOCK_POLL_SECONDS = 0.002
"""Seconds between two tries to lock a directory; a writer holds the lock for less."""
_RETRIES = 4
_NO_CONDITIONAL_WRITES = (
    "this service has no conditional writes, so two hosts could overwrite each other's data; use another"
)

_ADVICE = {
    "No space left on device": "the disk is full; nothing was written. Make room, then try again",
    "Read-only file system": "it can be read only; nothing was written",
    "Permission denied": "you are not allowed to write there; make the directory yours",
    "NoSuchBucket": "there is no such bucket; create it first",
    "SlowDown": "the service asks for fewer requests; try again later",
    "error sending request": "the service cannot be reached; look at the address and the network, then try again",
}
"""Advice by text in the error."""


_first_used_in: dict[str, int] = {}  # the process in which obstore was first used, which has its threads


class StoredObject(NamedTuple):
    """An object and its version."""

    data: bytes
    version: dict[str, str]


class ObjectEntry(NamedTuple):
    """A row of a list: last part of the path, size in bytes, time of the last write in Unix milliseconds, version."""

    name: str
    size: int
    mtime: int
    etag: str


class ObjectBucket:
    """Objects by path. For a directory, `lock` is the file with the lock of its writers."""

    def __init__(self, storage: Storage, lock: Path | None) -> None:
        import obstore

        self._obstore: Any = obstore
        self._storage = storage
        self._lock = lock

    def get(self, path: str) -> StoredObject | None:
        """Return an object, or None."""
        try:
            got = self._obstore.get(self._storage, path)
            return StoredObject(bytes(got.bytes()), _get_version(got.meta))
        except FileNotFoundError:
            return None

    def read_start(self, path: str, size: int, wanted: int) -> bytes | None:
        """Return the first bytes of an object of this size; None if it is gone."""
        with suppress(FileNotFoundError):
            return bytes(self._obstore.get_range(self._storage, path, start=0, length=min(size, wanted)))
        return None

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        self._obstore.put(self._storage, path, data, use_multipart=False)

    def stream(self, path: str, chunks: Iterator[bytes]) -> None:
        """Write an object in chunks; if a chunk raises, nothing is written."""
        self._obstore.put(self._storage, path, chunks)

    def compare_and_swap(self, path: str, data: bytes, version: dict[str, str] | None) -> bool:
        """Write an object if it still has this version (None: does not exist); return whether it was written."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._lock is not None and version is not None:
            return self._compare_and_swap_file(path, data, version)
        try:
            mode: Any = "create" if version is None else version
            self._obstore.put(self._storage, path, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError:
            if version is None:  # the bucket itself does not exist
                raise
            return False
        except NotImplementedError as error:
            raise StoreError(_NO_CONDITIONAL_WRITES) from error
        return True

    def _compare_and_swap_file(self, path: str, data: bytes, version: dict[str, str]) -> bool:
        assert self._lock is not None
        with lock_file(self._lock, wait=RESPONSE_SECONDS, on_wait=lambda: None, poll=LOCK_POLL_SECONDS):
            try:
                if _get_version(self._obstore.head(self._storage, path)) != version:
                    return False
            except FileNotFoundError:
                return False
            self.put(path, data)
            return True

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield the objects directly below a path."""
        for rows in self._obstore.list(self._storage, prefix, chunk_size=1000):
            for row in rows:
                mtime = int(row["last_modified"].timestamp() * 1000)
                yield ObjectEntry(row["path"].rpartition("/")[2], row["size"], mtime, row["e_tag"] or "")

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; missing ones are not an error."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._obstore.delete(self._storage, path)

    def read_clock(self) -> float:
        """Return the Unix time in seconds by the storage's clock: that of an object written now.

        Services return whole seconds, rounded down.
        """
        self.put("clock", b"")
        return self._obstore.head(self._storage, "clock")["last_modified"].timestamp()

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object if it does not exist; return whether it was created.

        Raises:
            StoreError: the service ignores the conditions of a write.
        """
        was_made = self.compare_and_swap(path, data, None)
        if (was_made and self.compare_and_swap(path, data, None)) or self.compare_and_swap(
            path, data, {"e_tag": '"another"', "version": "1"}
        ):
            raise StoreError(_NO_CONDITIONAL_WRITES)
        return was_made


def open_bucket(url: str, config: Mapping[str, str], client_options: Mapping[str, Any]) -> ObjectBucket:
    """Open the bucket, or create the directory, at a URL."""
    check_package("an object storage", "obstore", "objects")
    from obstore import store

    if _first_used_in.setdefault("process", os.getpid()) != os.getpid():
        raise StoreError(
            "this process was forked from one that had used an ObjectStore, and obstore does not work in a fork. Start "
            "processes by `spawn` or `forkserver`."
        )
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return ObjectBucket(store.MemoryStore(), None)
    if parts.scheme == "file":
        directory = Path(url2pathname(parts.path))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ObjectBucket(store.LocalStore(directory), directory / "lock")
    limits = {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{RESPONSE_SECONDS}s"}
    if config.get("endpoint", config.get("aws_endpoint", "")).startswith("http://"):
        limits["allow_http"] = "true"
    opened = store.from_url(
        url,
        config=cast("Any", {**config}),
        client_options=cast("Any", {**limits, **client_options}),
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=RESPONSE_SECONDS)},
    )
    return ObjectBucket(opened, None)


def describe_object_failure(error: Exception) -> str | None:
    """Explain an error of obstore and what to do; None for other errors."""
    from obstore import exceptions

    text = " ".join(str(error).partition("\n\nDebug source:")[0].split())
    advice = next((text for part, text in _ADVICE.items() if part in str(error)), None)
    if isinstance(error, exceptions.UnauthenticatedError | exceptions.PermissionDeniedError):
        advice = advice or "the service refused the login; check the keys and what they may do"
    if isinstance(error, FileNotFoundError):
        advice = advice or "there is no such bucket; create it first"
    if isinstance(error, exceptions.BaseError | OSError):
        return f"{advice} ({text})" if advice else text
    return None


def _get_version(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


SEAL_BYTES = 128 * 1024
"""A tail that has grown beyond this size becomes an immutable object of its own.

Each append writes the tail again: a smaller limit would make many objects, and so many requests to load a session; a
larger one would make each append slower.
"""

MAX_COMMIT_IDS = 16
"""Number of recent commit ids in a record; a writer that got no response finds its own there."""


@dataclass
class TranscriptLog:
    """One transcript: sealed parts (name and number of entries), then the tail."""

    count: int = 0
    last: str = ""
    parts: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    tail: list[str] = field(default_factory=list[str])


@dataclass
class SessionRecord:
    """A session. `expires_at` is in Unix seconds by the store's clock; `owner` is None without a lease."""

    key: TranscriptKey
    owner: str | None = None
    token: int = 0
    expires_at: float = 0.0
    summary: dict[str, Any] | None = None
    logs: dict[str, TranscriptLog] = field(default_factory=dict[str, TranscriptLog])
    commits: list[str] = field(default_factory=list[str])

    def get_transcript(self, subpath: str) -> TranscriptRecord:
        """Return the record of one transcript."""
        log = self.logs.get(subpath) or TranscriptLog()
        has_summary = not subpath and self.summary is not None
        summary = encode_entry(self.summary) if has_summary else None
        return TranscriptRecord(log.count, log.last, summary, tuple(log.parts))

    def to_bytes(self) -> bytes:
        """Encode the record, with a new commit id after the last ones."""
        self.commits = [*self.commits[1 - MAX_COMMIT_IDS :], token_hex(8)]
        listed = {
            "format": FORMAT,
            "commits": self.commits,
            "session": self.key.session,
            "lease": [self.owner, self.token, self.expires_at],
            "summary": self.summary,
        }
        logs = {name: [log.count, log.last, log.parts, len(log.tail)] for name, log in self.logs.items()}
        lines = [encode_entry(listed), json.dumps(logs), *(line for log in self.logs.values() for line in log.tail), ""]
        data = "\n".join(lines).encode("ascii")
        return data if has_main_transcript(len(data)) == ("" in self.logs) else data + b"\n"


def parse_record(key: TranscriptKey, data: bytes) -> SessionRecord:
    """Decode a record; raise `StoreError` if it is damaged, or written by a newer pilothouse."""
    try:
        first, second, *lines = data.decode("ascii").split("\n")
        listed, logs = read_entry(first), read_entry(second)
        check_format(listed["format"])
        owner, token, expires_at = listed["lease"]
        record = SessionRecord(key, owner, token, expires_at, listed["summary"], commits=listed["commits"])
        at = 0
        for name, (count, last, parts, length) in logs.items():
            tail = lines[at : at + length]
            record.logs[name] = TranscriptLog(count, last, [(part, size) for part, size in parts], tail)
            at += length
        if at > len(lines):
            raise ValueError("it ends too early")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the record of session {key.session} is damaged ({error}); restore an older version of the object",
            session_id=key.session,
        ) from error
    return record


def has_main_transcript(size: int) -> bool:
    """Whether a record of this size has a main transcript: such records have an odd size.

    Some records have none: those of sessions that were deleted, or leased and not yet written to. A list of objects
    contains names, times and sizes; of these only the size changes atomically with the record.
    """
    return size % 2 == 1


_MAX_PARALLEL_READS = 32  # requests
_MAX_CACHED_PARTS = 4096  # number of parts whose uuids are cached: parts never change
_MAX_NAME_CHARS = 200  # bytes; a file name has at most 255
_HEAD_BYTES = 8192  # read of a record when only its first line is needed
_UNSAFE_BYTES = re.compile(rb"[^a-z0-9_-]")


class ObjectStore(ConnectedBackend[ObjectBucket]):
    """Sessions in object storage, for any number of hosts. Needs the extra `objects`.

    Works on asyncio and trio. The service must know conditional writes, as S3, R2, MinIO, GCS and Azure do; one that
    does not is refused. Leases expire by the clock of the service, in whole seconds. The `mtime` of a session is that
    of its record, so a lease renewal changes it too.

    Args:
        url: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///directory` for processes of one machine, or
            `memory://` for this store object alone.
        config: keys, region, endpoint and more, as obstore names them; it also reads the usual environment variables.
            Never shown.
        client_options: proxies, certificates and more, as obstore names them.

    Raises:
        StoreError: the extra is not installed.
        UsageError: the URL has no scheme.
    """

    def __init__(
        self, url: str, *, config: Mapping[str, str] | None = None, client_options: Mapping[str, Any] | None = None
    ) -> None:
        if not urlsplit(url).scheme or "://" not in url:
            raise UsageError(
                "an ObjectStore needs a URL: s3://bucket/prefix, gs://…, az://…, file:///directory, memory://"
            )
        check_package("an ObjectStore", "obstore", "objects")
        super().__init__(redact_address(url), find_address_secrets(url) | find_setting_secrets(config or {}))
        self._url = url
        self._config = dict(config or {})
        self._client_options = dict(client_options or {})
        self._part_uuids: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._heads: dict[str, tuple[str, dict[str, Any]]] = {}

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> ObjectBucket:
        bucket = open_bucket(self._url, self._config, self._client_options)
        if not bucket.create_if_absent("format", json.dumps({"format": FORMAT}).encode()):
            found = bucket.get("format")
            check_format(read_entry(found.data)["format"] if found else 0)
        return bucket

    def _disconnect(self, connection: ObjectBucket) -> None:
        """Do nothing: obstore closes connections when the bucket is gone."""

    def _describe_failure(self, error: Exception) -> str | None:
        return describe_object_failure(error)

    # --- records and parts ------------------------------------------------------------------------------------------

    def _read_session(self, key: TranscriptKey) -> tuple[SessionRecord, dict[str, str] | None]:
        """Return the record of a session and its version."""
        found = self._ensure_connected().get(_record_path(key))
        return (parse_record(key.main, found.data), found.version) if found else (SessionRecord(key.main), None)

    def _write_session(self, record: SessionRecord, version: dict[str, str] | None) -> bool:
        """Write a record unless another writer was faster; return whether it was written."""
        bucket, path = self._ensure_connected(), _record_path(record.key)
        if bucket.compare_and_swap(path, record.to_bytes(), version):
            return True
        # A retry after a lost response is rejected: check whether the stored record is this one.
        found = bucket.get(path)
        return found is not None and record.commits[-1] in parse_record(record.key, found.data).commits

    def _read_parts(self, key: TranscriptKey, names: list[str], version: dict[str, str] | None) -> list[list[bytes]]:
        """Return the lines of the parts that a record of this version names, read in parallel."""
        bucket, folder = self._ensure_connected(), _parts_path(key)

        def read(name: str) -> list[bytes]:
            if (found := bucket.get(folder + name)) is not None:
                return found.data.split(b"\n")
            if self._read_session(key)[1] != version:
                raise ConcurrentChangeError
            raise make_damage_error(
                key, f"has lost entries: {folder}{name} is gone, by hand or by a rule of the bucket"
            )

        with ThreadPoolExecutor(_MAX_PARALLEL_READS) as threads:
            return list(threads.map(read, names))

    def _find_uuids(
        self, key: TranscriptKey, log: TranscriptLog, wanted: Sequence[str], version: dict[str, str] | None
    ) -> frozenset[str]:
        """Return which uuids a log has. Each part is read once: it never changes."""
        if not wanted or not log.count:
            return frozenset()
        names = [name for name, _ in log.parts]
        if missing := [name for name in names if name not in self._part_uuids]:
            parts = self._read_parts(key, missing, version)
            self._keep_part_uuids(missing, ([read_entry(line) for line in part] for part in parts))
        known = _collect_entry_uuids(read_entry(line) for line in log.tail)
        return known.union(*(self._part_uuids[name] for name in names)).intersection(wanted)

    def _keep_part_uuids(self, names: list[str], parts: Iterable[Iterable[Entry]]) -> None:
        with self._lock:
            self._part_uuids.update(zip(names, map(_collect_entry_uuids, parts), strict=True))
            while len(self._part_uuids) > max(_MAX_CACHED_PARTS, len(names)):
                self._part_uuids.popitem(last=False)

    def _seal(self, key: TranscriptKey, log: TranscriptLog) -> str:
        name = token_hex(16)
        self._ensure_connected().put(_parts_path(key) + name, "\n".join(log.tail).encode("ascii"))
        log.parts.append((name, len(log.tail)))
        log.tail = []
        return name

    # --- the calls --------------------------------------------------------------------------------------------------

    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[str | bytes]]:
        session, version = self._read_session(key)
        record, log = session.get_transcript(key.subpath), session.logs.get(key.subpath)
        if not entries or log is None:
            return record, ()
        parts = self._read_parts(key, [name for name, _ in log.parts], version)
        return record, [*(line for part in parts for line in part), *log.tail]

    def _decode(self, record: TranscriptRecord, texts: Sequence[str | bytes]) -> list[Entry]:
        entries = super()._decode(record, texts)
        ends = list(accumulate(size for _, size in record.parts))
        self._keep_part_uuids(
            [name for name, _ in record.parts],
            (entries[end - size : end] for end, (_, size) in zip(ends, record.parts, strict=True)),
        )
        return entries

    def _change(self, request: ChangeRequest) -> Change | None:
        key = request.key
        session, version = self._read_session(key)
        clock = cache(self._ensure_connected().read_clock)
        needs_clock = request.needs_clock and session.owner is not None
        lease = LeaseState(session.owner, session.token, session.expires_at - clock() if needs_clock else 0.0)
        log = session.logs.get(key.subpath) or TranscriptLog()
        uuids = self._find_uuids(key, log, request.uuids, version)
        change = request.decide(StoredState(lease, session.get_transcript(key.subpath), uuids))
        if change is None:
            return None
        if isinstance(change, EntriesAdded):
            log.count, log.last = change.record[:2]
            log.tail += [row.text for row in change.rows]
            session.logs[key.subpath] = log
            if change.record.summary is not None:
                session.summary = read_entry(change.record.summary)
            sealed = self._seal(key, log) if sum(map(len, log.tail)) > SEAL_BYTES else ""
            if not self._write_session(session, version):
                self._remove_unused_part(key, sealed)
                raise ConcurrentChangeError
            return change
        gone: list[str] = []
        if isinstance(change, LeaseChanged):
            session.owner, session.token = change.owner, change.token
            session.expires_at = clock() + change.ttl if change.ttl else 0.0
        else:
            names = [name for name in session.logs if key.subpath in ("", name)]
            if not names:
                return None
            gone = [part for name in names for part, _ in session.logs.pop(name).parts]
            session.summary = session.summary if key.subpath else None
        if not self._write_session(session, version):
            raise ConcurrentChangeError
        self._ensure_connected().delete(_parts_path(key) + name for name in gone)
        return change

    def _remove_unused_part(self, key: TranscriptKey, name: str) -> None:
        logs = self._read_session(key)[0].logs.values() if name else ()
        if name and all(name != part for log in logs for part, _ in log.parts):
            self._ensure_connected().delete([_parts_path(key) + name])

    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        listed = self._ensure_connected().list(f"sessions/{_encode_name(project)}/")
        rows = [row for row in listed if has_main_transcript(row.size)]
        if summaries:
            with ThreadPoolExecutor(_MAX_PARALLEL_READS) as threads:
                found = threads.map(partial(self._read_head, project), rows)
                pairs = [(row, head) for row, head in zip(rows, found, strict=True) if head]
            return [(head["session"], row.mtime, encode_entry(head["summary"] or {})) for row, head in pairs]
        # Names contain the session ids, except those that are too long for a name.
        named = ((row, _decode_name(row.name) or self._read_head(project, row).get("session")) for row in rows)
        return [(session, row.mtime, None) for row, session in named if session]

    def _read_head(self, project: str, row: ObjectEntry) -> dict[str, Any]:
        """Return the part of a record for lists; cached, so that a second list reads only changed records."""
        path = f"sessions/{_encode_name(project)}/{row.name}"
        known = self._heads.get(path)
        if known and row.etag and known[0] == row.etag:
            return known[1]
        data = self._ensure_connected().read_start(path, row.size, _HEAD_BYTES)
        if data is not None and b"\n" not in data:
            found = self._ensure_connected().get(path)
            data = found.data if found else None
        if data is None:
            return {}
        first = read_entry(data.partition(b"\n")[0])
        kept = {"session": first["session"], "summary": first["summary"]}
        self._heads[path] = (row.etag, kept)
        return kept

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        return [subpath for subpath in self._read_session(main)[0].logs if subpath]


def _collect_entry_uuids(entries: Iterable[Entry]) -> frozenset[str]:
    return frozenset(encode_uuid(uuid) for entry in entries if (uuid := get_entry_uuid(entry)) is not None)


def _encode_name(part: str) -> str:
    """Encode a part of a key as a name valid in every storage, also in case-insensitive ones."""
    name = _UNSAFE_BYTES.sub(lambda odd: b"~%02x" % odd[0][0], part.encode()).decode("ascii")
    return name if len(name) <= _MAX_NAME_CHARS else "=" + digest_key(part).hex()


def _decode_name(name: str) -> str | None:
    """Decode a name to the part of a key; None if the part was too long for a name."""
    if name.startswith("="):
        return None
    return re.sub(rb"~([0-9a-f]{2})", lambda odd: bytes([int(odd[1], 16)]), name.encode()).decode(errors="replace")


def _record_path(transcript: TranscriptKey) -> str:
    return f"sessions/{_encode_name(transcript.project)}/{_encode_name(transcript.session)}"


def _parts_path(transcript: TranscriptKey) -> str:
    return f"parts/{_encode_name(transcript.project)}/{_encode_name(transcript.session)}/"
