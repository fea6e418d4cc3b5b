"""`RedisStore`: sessions in Redis or Valkey, for any number of hosts.

Owns the keys, the one script and what the server's errors mean. The one file that knows the `redis` package, which is
imported when a store connects. Knows nothing of transcripts.

All keys of a project have one hash tag, so that a cluster keeps them on one node:

    PREFIX:{project}:state:SESSION            version, lease (owner, token, ends in microseconds); outlives the session
    PREFIX:{project}:meta|entries|uuids:PLACE count and last; the list of entries; the set of uuids
    PREFIX:{project}:subpaths:SESSION         subpath -> digest of its place
    PREFIX:{project}:sessions                 session -> mtime
    PREFIX:{project}:summaries                session -> summary

A change reads in one transaction, decides, and commits in a script that does nothing if the version has changed since:
two round trips, and nobody waits for anybody.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

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
)
from pilothouse.stores.blocking import FORMAT, BlockingBackend, Kept, decide, newer, uuids_of
from pilothouse.stores.encoding import digest, entries_from, entry_from, entry_text, secrets_in, shown_address

CONNECT_LIMIT = 10.0  # seconds
ANSWER_LIMIT = 60.0
"""Seconds for one answer of the server."""
_MOST_ARGUMENTS = 1000  # of one command: Lua takes no more than some 8,000

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
"""By the first word of the server's error."""

Command = Sequence[str | bytes | int]


class _Keys(NamedTuple):
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
    def of(cls, prefix: str, place: Place) -> _Keys:
        base = f"{prefix}:{{{digest(place.project).hex()[:32]}}}:"
        session, own = digest(*place[:2]).hex(), digest(*place).hex()
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


class _Seen(NamedTuple):
    """What one read found: the state of a session, and the answers to what else was asked."""

    version: str
    lease: LeaseState
    now: int  # microseconds since 1970, by the server's clock
    answers: list[Any]


class RedisStore(BlockingBackend):
    """Sessions in Redis 6.2 or newer, or Valkey, for any number of hosts. Needs the extra `redis`. (E85)

    Runs on asyncio and trio. Leases run out by the clock of the server. What is written is as durable as the server is
    set to be: for transcripts that matter, `appendonly yes` and `maxmemory-policy noeviction`.

    Args:
        url: `redis://user:password@host:6379/0`, `rediss://…` with TLS, or `unix:///path/to/socket`.
        prefix: the beginning of all keys.
        max_connections: connections at once, 8 by default.
    """

    def __init__(self, url: str, *, prefix: str = "pilothouse", max_connections: int = 8) -> None:
        super().__init__(shown_address(url), secrets_in(url))
        self._url = url
        self._prefix = prefix
        self._max_connections = max_connections
        self._client: Any = None  # redis.Redis, whose types say little
        self._inherited: list[Any] = []

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
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
        limits: dict[str, Any] = {"socket_connect_timeout": CONNECT_LIMIT, "socket_timeout": ANSWER_LIMIT}
        # No retries of its own: only we know whether a write may be repeated.
        limits |= {"max_connections": self._max_connections, "timeout": ANSWER_LIMIT, "retry": Retry(NoBackoff(), 0)}
        make: Any = BlockingConnectionPool
        pool = make.from_url(self._url, **limits)
        return Redis(connection_pool=pool)

    def _check_format(self, client: Any) -> None:
        name = f"{self._prefix}:format"
        client.set(name, FORMAT, nx=True)
        version = int(client.get(name))
        if version > FORMAT:
            client.close()
            raise StoreError(newer(version))

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    def _forget(self) -> None:
        if self._client is not None:
            self._inherited.append(self._client)
            self._client = None

    def _failure(self, error: Exception) -> str | None:
        from redis import exceptions

        if isinstance(error, ValueError) and not isinstance(error, exceptions.RedisError):
            return "this is no address of a Redis server" if "URL" in str(error) else None
        if not isinstance(error, exceptions.RedisError | OSError):
            return None
        said = " ".join(str(error).split())
        names = {
            exceptions.AuthenticationError: "AUTH",
            exceptions.BusyLoadingError: "LOADING",
            exceptions.OutOfMemoryError: "OOM",
            exceptions.ReadOnlyError: "READONLY",
        }  # the package takes the first word off some errors, and makes classes of them
        words = [*(name for kind, name in names.items() if isinstance(error, kind)), *said.replace(":", " ").split()]
        advice = next((_ADVICE[word] for word in words if word in _ADVICE), None)
        if advice is None and isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
            advice = "the connection to the server failed; try again"
        return f"{advice} ({said})" if advice else f"the server failed: {said}"

    # --- transactions -----------------------------------------------------------------------------------------------

    def _see(self, keys: _Keys, *questions: Command) -> _Seen:
        """Read the state of a session, the server's clock and more, all at one moment."""
        with self._connected().pipeline(transaction=True) as pipe:
            pipe.execute_command("TIME")
            pipe.execute_command("HMGET", keys.state, "version", "owner", "token", "ends")
            for question in questions:
                pipe.execute_command(*question)
            (seconds, micros), (version, owner, token, ends), *answers = pipe.execute()
        now = int(seconds) * 1_000_000 + int(micros)
        lease = LeaseState(json.loads(owner) if owner else None, int(token or 0), (int(ends or 0) - now) / 1e6)
        return _Seen((version or b"0").decode(), lease, now, answers)

    def _commit(self, keys: _Keys, seen: _Seen, commands: Sequence[Command]) -> bool:
        """Write, unless the session has changed since; say which."""
        flat: list[str | bytes | int] = []
        for command in commands:
            flat += [len(command), *command]
        return bool(self._connected().eval(_COMMIT, 1, keys.state, seen.version, *flat))

    # --- the calls --------------------------------------------------------------------------------------------------

    def _append(self, place: Place, batch: Batch, lease: Lease | None) -> int:
        keys = _Keys.of(self._prefix, place)
        return (
            self._change(lambda: self._try_append(keys, place, batch, lease)) if batch.entries else self._count(place)
        )

    def _try_append(self, keys: _Keys, place: Place, batch: Batch, lease: Lease | None) -> int | None:
        uuids = uuids_of(batch)
        questions: list[Command] = [["HMGET", keys.meta, "count", "last"], ["HGET", keys.summaries, place.session]]
        if uuids:
            questions.append(["SMISMEMBER", keys.uuids, *uuids])
        seen = self._see(keys, *questions)
        (count, last), summary, *rest = seen.answers
        held = frozenset(uuid for uuid, is_held in zip(uuids, rest[0] if rest else (), strict=True) if is_held)
        known = entry_from(summary) if summary and not place.subpath else None
        kept = Kept(int(count or 0), (last or b"").decode(), held, known, seen.lease)
        write = decide(place, batch, lease, kept)
        if write is None:
            return kept.count
        commands: list[Command] = [["HSET", keys.meta, "count", write.count, "last", batch.id]]
        commands += _chunks("RPUSH", keys.entries, [row.text for row in write.rows])
        commands += _chunks("SADD", keys.uuids, [row.uuid for row in write.rows if row.uuid is not None])
        if write.summary is None:
            commands.append(["HSET", keys.subpaths, place.subpath, keys.place])
        else:
            commands.append(["HSET", keys.sessions, place.session, seen.now // 1000])
            commands.append(["HSET", keys.summaries, place.session, entry_text(write.summary)])
        return write.count if self._commit(keys, seen, commands) else None

    def _load(self, place: Place) -> list[Entry] | None:
        rows = self._connected().lrange(_Keys.of(self._prefix, place).entries, 0, -1)
        return entries_from(rows) or None

    def _count(self, place: Place) -> int:
        return int(self._connected().hget(_Keys.of(self._prefix, place).meta, "count") or 0)

    def _list_sessions(self, project: str) -> list[StoredSession]:
        found = cast("dict[bytes, bytes]", self._connected().hgetall(self._listed(project).sessions))
        return [{"session_id": session.decode(), "mtime": int(mtime)} for session, mtime in found.items()]

    def _list_summaries(self, project: str) -> list[StoredSummary]:
        keys = self._listed(project)
        with self._connected().pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.sessions)
            pipe.hgetall(keys.summaries)
            mtimes, summaries = cast("list[dict[bytes, bytes]]", pipe.execute())
        return [
            {"session_id": session.decode(), "mtime": int(mtimes[session]), "data": entry_from(data)}
            for session, data in summaries.items()
        ]

    def _listed(self, project: str) -> _Keys:
        return _Keys.of(self._prefix, Place(project, ""))

    def _list_subpaths(self, main: Place) -> list[str]:
        return [name.decode() for name in self._subpaths(_Keys.of(self._prefix, main))]

    def _subpaths(self, keys: _Keys) -> dict[bytes, bytes]:
        return cast("dict[bytes, bytes]", self._connected().hgetall(keys.subpaths))

    def _delete(self, place: Place) -> None:
        self._change(lambda: self._try_delete(_Keys.of(self._prefix, place), place))

    def _try_delete(self, keys: _Keys, place: Place) -> bool | None:
        seen = self._see(keys, ["HGETALL", keys.subpaths])
        check_writer(place, seen.lease, None)
        commands: list[Command] = [["UNLINK", keys.meta, keys.entries, keys.uuids]]
        if place.subpath:
            commands.append(["HDEL", keys.subpaths, place.subpath])
        else:
            for subpath in cast("dict[bytes, bytes]", seen.answers[0]):
                other = _Keys.of(self._prefix, place._replace(subpath=subpath.decode()))
                commands.append(["UNLINK", other.meta, other.entries, other.uuids])
            commands += [["UNLINK", keys.subpaths], ["HDEL", keys.sessions, place.session]]
            commands.append(["HDEL", keys.summaries, place.session])
        return self._commit(keys, seen, commands) or None

    def _acquire(self, main: Place, owner: str, ttl: float) -> int:
        keys = _Keys.of(self._prefix, main)

        def attempt() -> int | None:
            seen = self._see(keys)
            check_taker(main, seen.lease, owner)
            token, ends = seen.lease.token + 1, seen.now + int(ttl * 1e6)
            record = ["HSET", keys.state, "owner", json.dumps(owner), "token", token, "ends", ends]
            return token if self._commit(keys, seen, [record]) else None

        return self._change(attempt)

    def _renew(self, lease: Lease, ttl: float) -> None:
        keys = _Keys.of(self._prefix, lease.place)

        def attempt() -> bool | None:
            seen = self._see(keys)
            check_keeper(lease.place, seen.lease, lease)
            return self._commit(keys, seen, [["HSET", keys.state, "ends", seen.now + int(ttl * 1e6)]]) or None

        self._change(attempt)

    def _release(self, lease: Lease) -> None:
        keys = _Keys.of(self._prefix, lease.place)

        def attempt() -> bool | None:
            seen = self._see(keys)
            if seen.lease[:2] != (lease.owner, lease.token):
                return True
            return self._commit(keys, seen, [["HDEL", keys.state, "owner"]]) or None

        self._change(attempt)


def _chunks(verb: str, key: str, words: Sequence[str]) -> list[Command]:
    starts = range(0, len(words), _MOST_ARGUMENTS)
    return [[verb, key, *words[start : start + _MOST_ARGUMENTS]] for start in starts]
