"""`RedisStore`: sessions in Redis or Valkey, for any number of hosts.

Owns the keys, the one script and the meaning of the server's errors. Imports the `redis` package when a store
connects; no other module does. Knows nothing of transcripts.

All keys of a project have one hash tag, so that a cluster keeps them on one node:

    PREFIX:{project}:state:SESSION            version, lease (owner, token, ends in microseconds); outlives the
    session
    PREFIX:{project}:meta|entries|uuids:PLACE count and last; the list of entries; the set of uuids
    PREFIX:{project}:subpaths:SESSION         subpath -> digest of its place
    PREFIX:{project}:sessions                 session -> mtime
    PREFIX:{project}:summaries                session -> summary

A change reads in one transaction, decides, and commits in a script that does nothing if the version has changed
since: two round trips, and no locks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from pilothouse.errors import StoreError
from pilothouse.stores.backend import (
    FORMAT,
    LeaseDecision,
    ThreadedBackend,
    TranscriptState,
    collect_uuids,
    decode_owner,
    describe_newer_format,
    digest_key,
    encode_entry,
    find_address_secrets,
    plan_append,
    read_entries,
    read_entry,
    redact_address,
)
from pilothouse.stores.base import (
    Entry,
    EntryBatch,
    Lease,
    LeaseState,
    StoredSession,
    StoredSummary,
    TranscriptKey,
    check_write_allowed,
)

CONNECT_SECONDS = 10.0
RESPONSE_SECONDS = 60.0
"""Timeout in seconds for one response of the server."""
_MAX_ARGUMENTS = 1000  # per command: Lua accepts no more than some 8,000

# ARGV: the version that was read, then commands, each as the number of its words and the words.
_COMMIT = """
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
local at = 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
redis.call('HINCRBY', KEYS[1], 'version', 1)
return 1
"""

_ADVICE = {
    "AUTH": "the server refused the login; check user and password in the address",
    "NOPERM": "this user may not do that; allow it all commands on the keys of the store",
    "OOM": "the server's memory is full; nothing was written. Allow it more, then try again",
    "MISCONF": "the server cannot save to its disk, so it takes no writes; make room there, then try again",
    "READONLY": "the server takes no writes: it is a replica; give the address of the primary",
    "LOADING": "the server is starting; try again",
    "NOREPLICAS": "the server takes no writes while its replicas are away; try again",
    "WRONGTYPE": "another program uses these keys; choose another prefix",
}
"""Advice by the first word of the server's error."""

Command = Sequence[str | bytes | int]


class _RedisKeys(NamedTuple):
    """The names of the keys of one transcript."""

    state: str
    meta: str
    entries: str
    uuids: str
    subpaths: str
    sessions: str
    summaries: str
    place: str

    @classmethod
    def make(cls, prefix: str, transcript: TranscriptKey) -> _RedisKeys:
        base = f"{prefix}:{{{digest_key(transcript.project).hex()[:32]}}}:"
        session, own = digest_key(*transcript[:2]).hex(), digest_key(*transcript).hex()
        return cls(
            state=f"{base}state:{session}",
            meta=f"{base}meta:{own}",
            entries=f"{base}entries:{own}",
            uuids=f"{base}uuids:{own}",
            subpaths=f"{base}subpaths:{session}",
            sessions=f"{base}sessions",
            summaries=f"{base}summaries",
            place=own,
        )


class _ReadResult(NamedTuple):
    """The result of one read: the state of a session, and the results of further commands."""

    version: str
    lease: LeaseState
    now: int  # Unix microseconds, by the server's clock
    replies: list[Any]


class RedisStore(ThreadedBackend):
    """Sessions in Redis 6.2 or newer, or Valkey, for any number of hosts. Needs the extra `redis`.

    Works on asyncio and trio. Leases expire by the clock of the server. Durability depends on the server's settings:
    for important transcripts use `appendonly yes` and `maxmemory-policy noeviction`.

    Args:
        url: `redis://user:password@host:6379/0`, `rediss://…` with TLS, or `unix:///path/to/socket`.
        prefix: the prefix of all keys.
        max_connections: maximum number of connections.
    """

    def __init__(self, url: str, *, prefix: str = "pilothouse", max_connections: int = 8) -> None:
        super().__init__(redact_address(url), find_address_secrets(url))
        self._url = url
        self._prefix = prefix
        self._max_connections = max_connections
        self._client: Any = None  # redis.Redis, whose types are imprecise
        self._inherited: list[Any] = []

    # --- the connection ---------------------------------------------------------------------------------------------

    def _ensure_connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._check_open()
                client = self._connect()
                self._check_format(client)
                self._client = client
            return self._client

    def _connect(self) -> Any:
        try:
            from redis import BlockingConnectionPool, Redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise StoreError("a RedisStore needs the redis package: pip install 'pilothouse[redis]'") from error
        limits: dict[str, Any] = {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": RESPONSE_SECONDS}
        # No retries by the client: only this store knows whether a write may be repeated.
        limits |= {
            "max_connections": self._max_connections,
            "timeout": RESPONSE_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        make: Any = BlockingConnectionPool
        pool = make.from_url(self._url, **limits)
        return Redis(connection_pool=pool)

    def _check_format(self, client: Any) -> None:
        name = f"{self._prefix}:format"
        client.set(name, FORMAT, nx=True)
        version = int(client.get(name))
        if version > FORMAT:
            client.close()
            raise StoreError(describe_newer_format(version))

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    def _reset_after_fork(self) -> None:
        if self._client is not None:
            self._inherited.append(self._client)
            self._client = None

    def _describe_failure(self, error: Exception) -> str | None:
        from redis import exceptions

        if isinstance(error, ValueError) and not isinstance(error, exceptions.RedisError):
            return "this is not the address of a Redis server" if "URL" in str(error) else None
        if not isinstance(error, exceptions.RedisError | OSError):
            return None
        text = " ".join(str(error).split())
        names = {
            exceptions.AuthenticationError: "AUTH",
            exceptions.BusyLoadingError: "LOADING",
            exceptions.OutOfMemoryError: "OOM",
            exceptions.ReadOnlyError: "READONLY",
        }  # the package removes the first word of some errors and makes classes of them
        words = [*(name for kind, name in names.items() if isinstance(error, kind)), *text.replace(":", " ").split()]
        advice = next((_ADVICE[word] for word in words if word in _ADVICE), None)
        if advice is None and isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
            advice = "the connection to the server failed; try again"
        return f"{advice} ({text})" if advice else f"the server failed: {text}"

    # --- transactions -----------------------------------------------------------------------------------------------

    def _read_state(self, keys: _RedisKeys, *commands: Command) -> _ReadResult:
        """Read the state of a session, the server's clock and more, atomically."""
        with self._ensure_connected().pipeline(transaction=True) as pipe:
            pipe.execute_command("TIME")
            pipe.execute_command("HMGET", keys.state, "version", "owner", "token", "ends")
            for question in commands:
                pipe.execute_command(*question)
            (seconds, micros), (version, owner, token, ends), *answers = pipe.execute()
        now = int(seconds) * 1_000_000 + int(micros)
        lease = LeaseState(decode_owner(owner), int(token or 0), (int(ends or 0) - now) / 1e6)
        return _ReadResult((version or b"0").decode(), lease, now, answers)

    def _commit(self, keys: _RedisKeys, state: _ReadResult, commands: Sequence[Command]) -> bool:
        """Write, unless the session has changed since; return whether it was written."""
        flat: list[str | bytes | int] = []
        for command in commands:
            flat += [len(command), *command]
        return bool(self._ensure_connected().eval(_COMMIT, 1, keys.state, state.version, *flat))

    # --- the calls --------------------------------------------------------------------------------------------------

    def _append(self, transcript_key: TranscriptKey, batch: EntryBatch, lease: Lease | None) -> int:
        keys = _RedisKeys.make(self._prefix, transcript_key)
        return self._retry_change(lambda: self._try_append(keys, transcript_key, batch, lease))

    def _try_append(
        self, keys: _RedisKeys, transcript: TranscriptKey, batch: EntryBatch, lease: Lease | None
    ) -> int | None:
        uuids = collect_uuids(batch)
        questions: list[Command] = [["HMGET", keys.meta, "count", "last"], ["HGET", keys.summaries, transcript.session]]
        if uuids:
            questions.append(["SMISMEMBER", keys.uuids, *uuids])
        seen = self._read_state(keys, *questions)
        (count, last), summary, *rest = seen.replies
        held = frozenset(uuid for uuid, is_held in zip(uuids, rest[0] if rest else (), strict=True) if is_held)
        known = read_entry(summary) if summary and not transcript.subpath else None
        kept = TranscriptState(int(count or 0), (last or b"").decode(), held, known, seen.lease)
        write = plan_append(transcript, batch, lease, kept)
        if write is None:
            return kept.count
        commands: list[Command] = [["HSET", keys.meta, "count", write.count, "last", batch.id]]
        commands += _split_command("RPUSH", keys.entries, [row.text for row in write.rows])
        commands += _split_command("SADD", keys.uuids, [row.uuid for row in write.rows if row.uuid is not None])
        if write.summary is None:
            commands.append(["HSET", keys.subpaths, transcript.subpath, keys.place])
        else:
            commands.append(["HSET", keys.sessions, transcript.session, seen.now // 1000])
            commands.append(["HSET", keys.summaries, transcript.session, encode_entry(write.summary)])
        return write.count if self._commit(keys, seen, commands) else None

    def _load(self, transcript_key: TranscriptKey) -> list[Entry] | None:
        rows = self._ensure_connected().lrange(_RedisKeys.make(self._prefix, transcript_key).entries, 0, -1)
        return read_entries(rows) or None

    def _count(self, transcript_key: TranscriptKey) -> int:
        return int(self._ensure_connected().hget(_RedisKeys.make(self._prefix, transcript_key).meta, "count") or 0)

    def _list_sessions(self, project: str) -> list[StoredSession]:
        found = cast("dict[bytes, bytes]", self._ensure_connected().hgetall(self._list_entries(project).sessions))
        return [{"session_id": session.decode(), "mtime": int(mtime)} for session, mtime in found.items()]

    def _list_summaries(self, project: str) -> list[StoredSummary]:
        keys = self._list_entries(project)
        with self._ensure_connected().pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.sessions)
            pipe.hgetall(keys.summaries)
            mtimes, summaries = cast("list[dict[bytes, bytes]]", pipe.execute())
        return [
            {"session_id": session.decode(), "mtime": int(mtimes[session]), "data": read_entry(data)}
            for session, data in summaries.items()
        ]

    def _list_entries(self, project: str) -> _RedisKeys:
        return _RedisKeys.make(self._prefix, TranscriptKey(project, ""))

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        return [name.decode() for name in self._read_subpaths(_RedisKeys.make(self._prefix, main))]

    def _read_subpaths(self, keys: _RedisKeys) -> dict[bytes, bytes]:
        return cast("dict[bytes, bytes]", self._ensure_connected().hgetall(keys.subpaths))

    def _delete(self, transcript_key: TranscriptKey) -> None:
        self._retry_change(lambda: self._try_delete(_RedisKeys.make(self._prefix, transcript_key), transcript_key))

    def _try_delete(self, keys: _RedisKeys, transcript: TranscriptKey) -> bool | None:
        seen = self._read_state(keys, ["HGETALL", keys.subpaths])
        check_write_allowed(transcript, seen.lease, None)
        commands: list[Command] = [["UNLINK", keys.meta, keys.entries, keys.uuids]]
        if transcript.subpath:
            commands.append(["HDEL", keys.subpaths, transcript.subpath])
        else:
            for subpath in cast("dict[bytes, bytes]", seen.replies[0]):
                other = _RedisKeys.make(self._prefix, transcript._replace(subpath=subpath.decode()))
                commands.append(["UNLINK", other.meta, other.entries, other.uuids])
            commands += [["UNLINK", keys.subpaths], ["HDEL", keys.sessions, transcript.session]]
            commands.append(["HDEL", keys.summaries, transcript.session])
        return self._commit(keys, seen, commands) or None

    def _change_lease(self, main: TranscriptKey, decide: LeaseDecision, ttl: float) -> int:
        keys = _RedisKeys.make(self._prefix, main)

        def attempt() -> int | None:
            seen = self._read_state(keys)
            if (change := decide(seen.lease)) is None:
                return 0
            owner, token = change
            command: Command = ["HDEL", keys.state, "owner"]
            if owner is not None:
                ends = seen.now + int(ttl * 1e6)
                command = ["HSET", keys.state, "owner", json.dumps(owner), "token", token, "ends", ends]
            return token if self._commit(keys, seen, [command]) else None

        return self._retry_change(attempt)


def _split_command(verb: str, key: str, words: Sequence[str]) -> list[Command]:
    starts = range(0, len(words), _MAX_ARGUMENTS)
    return [[verb, key, *words[start : start + _MAX_ARGUMENTS]] for start in starts]
