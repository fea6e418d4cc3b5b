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

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pilothouse.errors import StoreError
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
    decode_owner,
    digest_key,
    encode_owner,
    find_address_secrets,
    make_damage_error,
    redact_address,
)
from pilothouse_transcripts.stores.base import TranscriptKey

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


class _RedisKeys:
    """The names of the keys of one transcript."""

    def __init__(self, prefix: str, transcript: TranscriptKey) -> None:
        base = f"{prefix}:{{{digest_key(transcript.project).hex()[:32]}}}:"
        session, self.place = digest_key(*transcript[:2]).hex(), digest_key(*transcript).hex()
        self.state = f"{base}state:{session}"
        self.meta = f"{base}meta:{self.place}"
        self.entries = f"{base}entries:{self.place}"
        self.uuids = f"{base}uuids:{self.place}"
        self.subpaths = f"{base}subpaths:{session}"
        self.sessions = f"{base}sessions"
        self.summaries = f"{base}summaries"

    def list_record_commands(self, key: TranscriptKey) -> list[Command]:
        """Return the commands whose replies are `_RecordReplies`."""
        listed = [self.subpaths, key.subpath] if key.subpath else [self.sessions, key.session]
        summary: Command = ["HGET", self.summaries, key.session]
        return [["HMGET", self.meta, "count", "last"], summary, ["LLEN", self.entries], ["HEXISTS", *listed]]

    def list_append_commands(self, key: TranscriptKey, change: EntriesAdded, mtime: int) -> list[Command]:
        """Return the commands that append entries."""
        count, last, summary = change.record[:3]
        commands: list[Command] = [["HSET", self.meta, "count", count, "last", last]]
        commands += _split_command("RPUSH", self.entries, [row.text for row in change.rows])
        commands += _split_command("SADD", self.uuids, [row.uuid for row in change.rows if row.uuid is not None])
        if summary is None:
            # Redis removes whole keys: the mark in another key shows that the list was lost.
            return [*commands, ["HSET", self.subpaths, key.subpath, self.place], ["HSET", self.state, "subpaths", 1]]
        return [*commands, ["HSET", self.sessions, key.session, mtime], ["HSET", self.summaries, key.session, summary]]


class RedisStore(ConnectedBackend[Any]):
    """Sessions in Redis 6.2 or newer, or Valkey, for any number of hosts. Needs the extra `redis`.

    Works on asyncio and trio. Leases expire by the clock of the server. Durability depends on the server's settings:
    for important transcripts use `appendonly yes` and `maxmemory-policy noeviction`.

    Args:
        url: `redis://user:password@host:6379/0`, `rediss://…` with TLS, or `unix:///path/to/socket`.
        prefix: the prefix of all keys.
        max_connections: maximum number of connections.

    Raises:
        StoreError: the extra is not installed.
    """

    def __init__(self, url: str, *, prefix: str = "pilothouse", max_connections: int = 8) -> None:
        check_package("a RedisStore", "redis", "redis")
        super().__init__(redact_address(url), find_address_secrets(url))
        self._url = url
        self._prefix = prefix
        self._max_connections = max_connections

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> Any:  # the types of redis.Redis are imprecise
        client = self._make_client()
        try:
            name = f"{self._prefix}:format"
            client.set(name, FORMAT, nx=True)
            check_format(int(client.get(name)))
        except TypeError as error:  # the address has a parameter that the package does not know
            raise StoreError(f"{self._display_name}: {error}") from None
        except BaseException:
            client.close()
            raise
        return client

    def _make_client(self) -> Any:
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        limits: dict[str, Any] = {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": RESPONSE_SECONDS}
        # No retries by the client: only this store knows whether a write may be repeated.
        limits |= {
            "max_connections": self._max_connections,
            "timeout": RESPONSE_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        make: Any = BlockingConnectionPool
        with suppress(ValueError):  # its text may show the password
            return Redis(connection_pool=make.from_url(self._url, **limits))
        raise StoreError(f"{self._display_name}: this is not the address of a Redis server")

    def _disconnect(self, connection: Any) -> None:
        connection.close()
        connection.connection_pool.disconnect()

    def _describe_failure(self, error: Exception) -> str | None:
        from redis import exceptions

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

    # --- the calls --------------------------------------------------------------------------------------------------

    def _pipe(self, *commands: Command) -> list[Any]:
        """Run commands at the same moment; return their results."""
        with self._ensure_connected().pipeline(transaction=True) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return pipe.execute()

    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[bytes]]:
        keys = _RedisKeys(self._prefix, key)
        questions = keys.list_record_commands(key)
        if entries:
            questions.append(["LRANGE", keys.entries, 0, -1])
        found = self._pipe(*questions)
        replies = _RecordReplies(*found[:4])
        replies.check(key)
        return replies.parse(), found[4] if entries else ()

    def _change(self, request: ChangeRequest) -> Change | None:
        key, keys = request.key, _RedisKeys(self._prefix, request.key)
        questions: list[Command] = [["TIME"], ["HMGET", keys.state, "version", "owner", "token", "ends"]]
        questions += keys.list_record_commands(key)
        if request.uuids:
            questions.append(["SMISMEMBER", keys.uuids, *request.uuids])
        (seconds, micros), (version, owner, token, ends), *found = self._pipe(*questions)
        now = int(seconds) * 1_000_000 + int(micros)
        lease = LeaseState(decode_owner(owner), int(token or 0), (int(ends or 0) - now) / 1e6)
        known = zip(request.uuids, found[4] if request.uuids else (), strict=True)
        replies, uuids = _RecordReplies(*found[:4]), frozenset(uuid for uuid, is_stored in known if is_stored)
        change = request.decide(StoredState(lease, replies.parse(), uuids))
        if change is None:
            return None
        if isinstance(change, EntriesAdded):
            replies.check(key)
            commands = keys.list_append_commands(key, change, now // 1000)
        elif isinstance(change, LeaseChanged):
            commands = [["HDEL", keys.state, "owner"]]
            if change.owner is not None:
                lease_ends = now + int(change.ttl * 1e6)
                fields = ["owner", encode_owner(change.owner) or "", "token", change.token, "ends", lease_ends]
                commands = [["HSET", keys.state, *fields]]
        else:
            commands = self._list_delete_commands(keys, key)
        words = [word for command in commands for word in (len(command), *command)]
        if not self._ensure_connected().eval(_COMMIT, 1, keys.state, version or b"0", *words):
            raise ConcurrentChangeError
        return change

    def _list_delete_commands(self, keys: _RedisKeys, key: TranscriptKey) -> list[Command]:
        commands: list[Command] = [["UNLINK", keys.meta, keys.entries, keys.uuids]]
        subpaths, _ = self._read_subpaths(keys)
        unmark: Command = ["HDEL", keys.state, "subpaths"]
        if key.subpath:
            commands.append(["HDEL", keys.subpaths, key.subpath])
            return [*commands, unmark] if subpaths == [key.subpath] else commands
        for subpath in subpaths:
            other = _RedisKeys(self._prefix, key._replace(subpath=subpath))
            commands.append(["UNLINK", other.meta, other.entries, other.uuids])
        listed: list[Command] = [["HDEL", name, key.session] for name in (keys.sessions, keys.summaries)]
        return [*commands, ["UNLINK", keys.subpaths], unmark, *listed]

    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        keys = _RedisKeys(self._prefix, TranscriptKey(project, ""))
        names = [keys.sessions, keys.summaries] if summaries else [keys.sessions]
        mtimes, *data = self._pipe(*(["HGETALL", name] for name in names))
        return [(name.decode(), int(mtime), data[0].get(name) if data else None) for name, mtime in mtimes.items()]

    def _list_subpaths(self, main: TranscriptKey) -> list[str]:
        found, is_marked = self._read_subpaths(_RedisKeys(self._prefix, main))
        if is_marked and not found:
            raise make_damage_error(main, "has lost the list of its sub-agents")
        return found

    def _read_subpaths(self, keys: _RedisKeys) -> tuple[list[str], bool]:
        """Return the subpaths of a session, and whether there must be some."""
        found, mark = self._pipe(["HKEYS", keys.subpaths], ["HGET", keys.state, "subpaths"])
        return [name.decode() for name in found], mark is not None


class _RecordReplies(NamedTuple):
    """The replies to `_RedisKeys.list_record_commands`."""

    meta: list[bytes | None]
    summary: bytes | None
    length: int
    is_listed: int

    def parse(self) -> TranscriptRecord:
        count, last = self.meta
        return TranscriptRecord(
            int(count or 0), (last or b"").decode(), None if self.summary is None else self.summary.decode()
        )

    def check(self, key: TranscriptKey) -> None:
        """Raise `StoreError` if the server has removed keys, as it does when its memory is short."""
        count = self.meta[0]
        if self.length != int(count or 0) or bool(self.is_listed) != (count is not None):
            raise make_damage_error(key, f"has lost entries: {self.length} of {(count or b'?').decode()} are there")


def _split_command(verb: str, key: str, words: Sequence[str]) -> list[Command]:
    starts = range(0, len(words), _MAX_ARGUMENTS)
    return [[verb, key, *words[start : start + _MAX_ARGUMENTS]] for start in starts]
