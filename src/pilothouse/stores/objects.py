"""`ObjectStore`: sessions in an object storage: S3 and what speaks like it, GCS, Azure, a directory.

Owns the paths and what is read and written in which order. Knows no client library (that is `objects_bucket`) and
nothing of transcripts. Below the URL lie::

    format                      the version of all this
    clock                       written to read the time
    sessions/PROJECT/SESSION    the record of a session, see `objects_record`
    parts/PROJECT/SESSION/ID    sealed entries, one a line; never changed

A part is written before the record that names it, and removed after it is named no more: whoever reads in between sees
all of the old state or all of the new one.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex
from typing import Any

from pilothouse.errors import StoreError
from pilothouse.stores.base import (
    Batch,
    Entry,
    Lease,
    LeaseState,
    Place,
    StoredSession,
    StoredSummary,
    check_keeper,
    check_taker,
    check_writer,
    entry_uuid,
)
from pilothouse.stores.blocking import FORMAT, BlockingBackend, ChangedError, Kept, decide, newer, uuids_of
from pilothouse.stores.encoding import (
    digest,
    entries_from,
    entry_from,
    secrets_in,
    secrets_of,
    shown_address,
    uuid_text,
)
from pilothouse.stores.objects_bucket import Bucket, Listed, check_url, failure_of, open_bucket
from pilothouse.stores.objects_record import Log, Record, is_listed, listed_in, record_of

_AT_ONCE = 32  # requests
_MOST_PARTS_KNOWN = 4096  # whose uuids are kept in memory: parts never change
_LONGEST_NAME = 200  # bytes; a name of a file has 255
_FIRST_BYTES = 8192  # of a record, when only its first line is wanted
_ODD = re.compile(rb"[^a-z0-9_-]")


class ObjectStore(BlockingBackend):
    """Sessions in an object storage, for any number of hosts. Needs the extra `objects`. (E85)

    Runs on asyncio and trio. The service must know conditional writes, as S3, R2, MinIO, GCS and Azure do; one that
    does not is refused. Leases run out by the clock of the service, which tells whole seconds. The `mtime` of a session
    is that of its record, so a lease that is renewed moves it too.

    Args:
        url: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///directory` for processes of one machine, or `memory://`
            for this store object alone.
        config: keys, region, endpoint and more, as obstore names them; it reads the usual environment variables too.
            Never shown.
        client_options: proxies, certificates and more, as obstore names them.
    """

    def __init__(
        self, url: str, *, config: Mapping[str, str] | None = None, client_options: Mapping[str, Any] | None = None
    ) -> None:
        check_url(url)
        super().__init__(shown_address(url), secrets_in(url) | secrets_of(config or {}))
        self._url = url
        self._config = dict(config or {})
        self._client_options = dict(client_options or {})
        self._bucket: Bucket | None = None
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._summaries: dict[str, tuple[str, dict[str, Any]]] = {}

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connected(self) -> Bucket:
        with self._lock:
            if self._bucket is None:
                self._check_open()
                bucket = open_bucket(self._url, self._config, self._client_options)
                if not bucket.check_swaps("format", json.dumps({"format": FORMAT}).encode()):
                    found = bucket.get("format")
                    version = entry_from(found.data)["format"] if found else 0
                    if version > FORMAT:
                        raise StoreError(newer(version))
                self._bucket = bucket
            return self._bucket

    def _close(self) -> None:
        with self._lock:
            self._bucket = None
            self._known.clear()
            self._summaries.clear()

    def _forget(self) -> None:
        self._bucket = None

    def _failure(self, error: Exception) -> str | None:
        return failure_of(error)

    # --- records ----------------------------------------------------------------------------------------------------

    def _read(self, place: Place) -> tuple[Record, dict[str, str] | None]:
        found = self._connected().get(_record_path(place))
        return (record_of(place.main, found.data), found.version) if found else (Record(place.main), None)

    def _write(self, record: Record, version: dict[str, str] | None) -> bool:
        """Write a record if nobody was quicker; say whether it was written."""
        bucket, path = self._connected(), _record_path(record.place)
        if bucket.swap(path, record.to_bytes(), version):
            return True
        # A request that was repeated because its answer got lost is refused the second time: look whether it is ours.
        found = bucket.get(path)
        return found is not None and record.commits[-1] in record_of(record.place, found.data).commits

    def _lease(self, record: Record) -> LeaseState:
        if record.owner is None:  # asks no clock: nobody holds it
            return LeaseState(None, record.token)
        return LeaseState(record.owner, record.token, record.ends - self._connected().now())

    # --- entries ----------------------------------------------------------------------------------------------------

    def _append(self, place: Place, batch: Batch, lease: Lease | None) -> int:
        return self._change(lambda: self._try_append(place, batch, lease)) if batch.entries else self._count(place)

    def _try_append(self, place: Place, batch: Batch, lease: Lease | None) -> int | None:
        record, version = self._read(place)
        log = record.logs.get(place.subpath) or Log()
        # With a lease only its token counts: no need to ask what time it is.
        state = LeaseState(record.owner, record.token) if lease else self._lease(record)
        uuids = uuids_of(batch)
        held = self._held(place, log, version) if uuids and log.count else frozenset[str]()
        write = decide(place, batch, lease, Kept(log.count, log.last, held, record.summary, state))
        if write is None:
            return log.count
        log.count, log.last = write.count, batch.id
        log.tail += [row.text for row in write.rows]
        sealed = self._seal(place, log) if log.is_full else None
        record.logs[place.subpath] = log
        if write.summary is not None:
            record.summary = write.summary
        if self._write(record, version):
            return write.count
        if sealed and all(sealed != name for log in self._read(place)[0].logs.values() for name, _ in log.parts):
            self._connected().delete([_parts_path(place) + sealed])
        return None

    def _seal(self, place: Place, log: Log) -> str:
        name = token_hex(16)
        self._connected().put(_parts_path(place) + name, "\n".join(log.tail).encode("ascii"))
        log.parts.append((name, len(log.tail)))
        log.tail = []
        return name

    def _held(self, place: Place, log: Log, version: dict[str, str] | None) -> frozenset[str]:
        """The uuids of a log. Those of a part are read once: after a resume they are there already."""
        missing = [name for name, _ in log.parts if name not in self._known]
        if missing:
            self._parts(place, missing, version)
        return _uuids(entries_from(log.tail)).union(*(self._known[name] for name, _ in log.parts))

    def _parts(self, place: Place, names: list[str], version: dict[str, str] | None) -> list[list[Entry]]:
        """Read the parts that a record of this version names, many at once."""
        bucket, folder = self._connected(), _parts_path(place)

        def read(name: str) -> list[Entry]:
            if (found := bucket.get(folder + name)) is not None:
                return entries_from(found.data.split(b"\n"))
            if self._read(place)[1] != version:
                raise ChangedError
            raise StoreError(
                f"session {place.session} has lost entries: {folder}{name} is gone. Somebody removed objects of the "
                "store by hand, or by a rule of the bucket.",
                session_id=place.session,
            )

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            parts = list(threads.map(read, names))
        with self._lock:
            self._known.update(zip(names, map(_uuids, parts), strict=True))
            while len(self._known) > max(_MOST_PARTS_KNOWN, len(names)):
                self._known.popitem(last=False)
        return parts

    def _load(self, place: Place) -> list[Entry] | None:
        return self._change(lambda: self._try_load(place)) or None

    def _try_load(self, place: Place) -> list[Entry]:
        record, version = self._read(place)
        log = record.logs.get(place.subpath) or Log()
        parts = self._parts(place, [name for name, _ in log.parts], version)
        return [*(entry for part in parts for entry in part), *entries_from(log.tail)]

    def _count(self, place: Place) -> int:
        log = self._read(place)[0].logs.get(place.subpath)
        return log.count if log else 0

    # --- lists ------------------------------------------------------------------------------------------------------

    def _list_sessions(self, project: str) -> list[StoredSession]:
        # Names tell the sessions, but for those that are too long for a name.
        rows = [row for row in self._connected().list(f"sessions/{_name(project)}/") if is_listed(row.size)]
        named = ((row, _part(row.name) or self._first_line(project, row).get("session")) for row in rows)
        return [{"session_id": session, "mtime": row.mtime} for row, session in named if session]

    def _list_summaries(self, project: str) -> list[StoredSummary]:
        rows = [row for row in self._connected().list(f"sessions/{_name(project)}/") if is_listed(row.size)]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            firsts = list(threads.map(partial(self._first_line, project), rows))
        return [
            {"session_id": first["session"], "mtime": row.mtime, "data": first["summary"] or {}}
            for row, first in zip(rows, firsts, strict=True)
            if first
        ]

    def _first_line(self, project: str, row: Listed) -> dict[str, Any]:
        """What lists need of a record; kept, so that a second list reads only what has changed."""
        path = f"sessions/{_name(project)}/{row.name}"
        known = self._summaries.get(path)
        if known and row.etag and known[0] == row.etag:
            return known[1]
        data = self._connected().beginning(path, row.size, _FIRST_BYTES)
        if data is not None and b"\n" not in data:
            found = self._connected().get(path)
            data = found.data if found else None
        if data is None:
            return {}
        first = listed_in(data.partition(b"\n")[0])
        kept = {"session": first["session"], "summary": first["summary"]}
        self._summaries[path] = (row.etag, kept)
        return kept

    def _list_subpaths(self, main: Place) -> list[str]:
        return [subpath for subpath in self._read(main)[0].logs if subpath]

    # --- the end of a session, and its lease ------------------------------------------------------------------------

    def _delete(self, place: Place) -> None:
        parts = self._change(lambda: self._try_delete(place))
        self._connected().delete(_parts_path(place) + name for name in parts)

    def _try_delete(self, place: Place) -> list[str] | None:
        record, version = self._read(place)
        check_writer(place, self._lease(record), None)
        gone = [name for name in record.logs if not place.subpath or name == place.subpath]
        if not gone:
            return []
        logs = [record.logs.pop(name) for name in gone]
        if not place.subpath:
            record.summary = None
        return [name for log in logs for name, _ in log.parts] if self._write(record, version) else None

    def _acquire(self, main: Place, owner: str, ttl: float) -> int:
        def attempt() -> int | None:
            record, version = self._read(main)
            check_taker(main, self._lease(record), owner)
            record.owner, record.token, record.ends = owner, record.token + 1, self._connected().now() + ttl
            return record.token if self._write(record, version) else None

        return self._change(attempt)

    def _renew(self, lease: Lease, ttl: float) -> None:
        def attempt() -> bool | None:
            record, version = self._read(lease.place)
            check_keeper(lease.place, LeaseState(record.owner, record.token), lease)
            record.ends = self._connected().now() + ttl
            return self._write(record, version) or None

        self._change(attempt)

    def _release(self, lease: Lease) -> None:
        def attempt() -> bool | None:
            record, version = self._read(lease.place)
            if (record.owner, record.token) != (lease.owner, lease.token):
                return True
            record.owner = None
            return self._write(record, version) or None

        self._change(attempt)


def _uuids(entries: list[Entry]) -> frozenset[str]:
    return frozenset(uuid_text(uuid) for entry in entries if (uuid := entry_uuid(entry)) is not None)


def _name(part: str) -> str:
    """A part of a key as a name that every storage takes and tells from others, whatever it thinks of capitals."""
    name = _ODD.sub(lambda odd: b"~%02x" % odd[0][0], part.encode()).decode("ascii")
    return name if len(name) <= _LONGEST_NAME else "=" + digest(part).hex()


def _part(name: str) -> str | None:
    """The part of a key that a name stands for; None for one that stands for a long one."""
    if name.startswith("="):
        return None
    return re.sub(rb"~([0-9a-f]{2})", lambda odd: bytes([int(odd[1], 16)]), name.encode()).decode(errors="replace")


def _record_path(place: Place) -> str:
    return f"sessions/{_name(place.project)}/{_name(place.session)}"


def _parts_path(place: Place) -> str:
    return f"parts/{_name(place.project)}/{_name(place.session)}/"
