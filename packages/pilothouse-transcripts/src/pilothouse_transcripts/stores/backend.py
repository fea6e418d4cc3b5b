"""`BlockingBackend`: the rules of the stores of this package, over the few operations that a medium must have.

Owns leases, compare-and-append, the digest by which a loss is noticed, and the conversion of errors to `StoreError`. A
backend reads and changes the record of one transcript, lists, and explains its errors: see `memory.py`, the shortest.

A backend keeps for each transcript a `TranscriptRecord` and its entries as lines of JSON, and for each session a lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple, cast
from urllib.parse import parse_qsl, unquote

import anyio
import msgspec
from anyio import to_thread

from pilothouse.errors import (
    LeaseLostError,
    PilothouseError,
    SessionLeasedError,
    StoreConflictError,
    StoreError,
    UsageError,
)
from pilothouse.options import RetryPolicy
from pilothouse.options.secrets import mask_text
from pilothouse.support import MASK
from pilothouse_transcripts.stores.base import (
    Entry,
    Lease,
    SessionKey,
    StoreBackend,
    StoredSession,
    StoredSummary,
    TranscriptKey,
    fold_summary,
    get_entry_uuid,
    parse_key,
)

FORMAT = 1
"""The version of the layout that these backends write. A newer store is rejected."""
MAX_TTL = 366 * 86_400.0  # seconds
CONTENTION_SECONDS = 60.0
"""Seconds for which a change is retried because others changed the session meanwhile."""
_RETRY_POLICY = RetryPolicy(first_delay=0.005, max_delay=0.5, jitter=1.0)

T = TypeVar("T")
Args = TypeVarTuple("Args")


def check_package(owner: str, package: str, extra: str, error_type: type[PilothouseError] = StoreError) -> None:
    """Raise `error_type` if a package is not installed: now, and not when the first entries are to be written."""
    if find_spec(package) is None:
        raise error_type(f"{owner} needs the package {package}: pip install 'pilothouse[{extra}]'")


class ConcurrentChangeError(Exception):
    """Another writer changed the session during the operation."""


def check_format(version: int) -> None:
    """Raise `StoreError` if a newer pilothouse has written the store's layout."""
    if version > FORMAT:
        raise StoreError(
            f"the store has format {version}, written by a newer pilothouse; this one knows formats up to {FORMAT}. "
            "Upgrade pilothouse here."
        )


# --- what a backend stores ------------------------------------------------------------------------------------------


class EntryRow(NamedTuple):
    """One entry in its stored form."""

    uuid: str | None
    text: str


class TranscriptRecord(NamedTuple):
    """What a store keeps of a transcript beside its entries.

    Attributes:
        entry_count: number of its entries.
        last: the id of the last batch with `after`, a space, and the digest of all entries; "" without entries.
        summary: the summary of the session as JSON; None for a sub-agent.
        parts: names and sizes of objects with entries, if a backend has such.
    """

    entry_count: int = 0
    last: str = ""
    summary: str | None = None
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def batch_id(self) -> str:
        """The id of the last batch with `after`."""
        return self.last.partition(" ")[0]

    @property
    def digest(self) -> str:
        """The digest of the entries: each is hashed with the digest of those before it."""
        return self.last.partition(" ")[2]


class LeaseState(NamedTuple):
    """The lease record of a session as the store has it now. The default is for a session without a record."""

    owner: str | None = None  # None: released, or never taken
    token: int = 0
    seconds_left: float = 0.0  # by the store's clock; zero or less: expired


class StoredState(NamedTuple):
    """What a backend has read for a change: the lease of the session, the record, and known uuids of the request."""

    lease: LeaseState
    record: TranscriptRecord
    uuids: AbstractSet[str]


class EntriesAdded(NamedTuple):
    """A change: rows to append, and the new record."""

    rows: list[EntryRow]
    record: TranscriptRecord


class LeaseChanged(NamedTuple):
    """A change: the new lease of the session. `owner` is None and `ttl` 0 if it is released."""

    owner: str | None
    token: int
    ttl: float


class TranscriptDeleted(NamedTuple):
    """A change: remove the transcript; the main one with all others of the session. The lease stays."""


Change = EntriesAdded | LeaseChanged | TranscriptDeleted


class ChangeRequest(NamedTuple):
    """A change of one transcript, or of the lease of its session.

    Attributes:
        key: the transcript.
        decide: returns the change for the stored state, None for no change, or raises the error of a refusal. It may
            be called again after another writer was faster.
        uuids: uuids of which the state tells whether they are stored, from `encode_uuid`.
        needs_clock: whether `decide` looks at the seconds that are left of a lease.
    """

    key: TranscriptKey
    decide: Callable[[StoredState], Change | None]
    uuids: Sequence[str] = ()
    needs_clock: bool = True


# --- entries --------------------------------------------------------------------------------------------------------


class EntryBatch(NamedTuple):
    """The validated entries of one append.

    Attributes:
        entries: the entries, without repeated uuids.
        rows: the same in their stored form.
        after: number of entries that the writer expects in the store; None: not checked.
        id: distinguishes this write from others at the same position; empty without `after`.
    """

    entries: list[Entry]
    rows: list[EntryRow]
    after: int | None
    id: str

    @classmethod
    def parse(cls, entries: Sequence[Any], after: int | None) -> EntryBatch:
        """Validate the arguments of `append`."""
        if after is not None and after < 0:
            raise UsageError(f"`after` is a number of entries, not {after}")
        seen: set[str] = set()
        kept: list[Entry] = []
        rows: list[EntryRow] = []
        for entry in entries:
            if not isinstance(entry, dict):
                raise UsageError(f"an entry of a transcript is a dict, not {type(entry).__name__}")
            uuid = get_entry_uuid(cast("Entry", entry))
            row = EntryRow(None if uuid is None else encode_uuid(uuid), encode_entry(cast("Entry", entry)))
            if row.uuid is None or row.uuid not in seen:
                kept.append(cast("Entry", entry))
                rows.append(row)
            if row.uuid is not None:
                seen.add(row.uuid)
        texts = [row.text for row in rows]
        return cls(kept, rows, after, "" if after is None else hash_texts("", [str(after), *texts]))

    def is_stored(self, key: TranscriptKey, record: TranscriptRecord) -> bool:
        """Return whether this very batch is the last one stored.

        Raises:
            StoreConflictError: the store has another number of entries than `after`.
        """
        if self.after is None:
            return False
        if self.id == record.batch_id and record.entry_count >= self.after:
            return True
        if record.entry_count != self.after:
            raise StoreConflictError(
                f"session {key.session} holds {record.entry_count} entries in the store where {self.after} were "
                "expected: another writer changed it. Load it again before you write.",
                session_id=key.session,
                expected=self.after,
                found=record.entry_count,
            )
        return False

    def plan(self, key: TranscriptKey, state: StoredState) -> EntriesAdded | None:
        """Compute what an append writes; None if it is already stored. Raises as `is_stored` does."""
        record = state.record
        if self.is_stored(key, record):
            return None
        fresh = [number for number, row in enumerate(self.rows) if row.uuid is None or row.uuid not in state.uuids]
        rows = [self.rows[number] for number in fresh]
        summary = None
        if not key.subpath:
            known = read_entry(record.summary) if record.summary else None
            summary = encode_entry(fold_summary(known, (self.entries[number] for number in fresh)))
        digest = hash_texts(record.digest, [row.text for row in rows])
        return EntriesAdded(rows, TranscriptRecord(record.entry_count + len(rows), f"{self.id} {digest}", summary))


def hash_texts(digest: str, texts: Iterable[str | bytes]) -> str:
    """Continue a digest with more texts."""
    value = bytes.fromhex(digest)
    for text in texts:
        value = hashlib.sha256(value + (text.encode() if isinstance(text, str) else text)).digest()
    return value.hex()


def check_entries(key: TranscriptKey, record: TranscriptRecord, texts: Sequence[str | bytes]) -> None:
    """Raise `StoreError` if entries are missing or were changed."""
    fault = ""
    if len(texts) != record.entry_count:
        fault = f"has lost entries: {len(texts)} of {record.entry_count} are there"
    elif hash_texts("", texts) != record.digest:
        fault = "has other entries than were written"
    if fault:
        raise make_damage_error(key, fault)


def make_damage_error(key: TranscriptKey, fault: str) -> StoreError:
    """Make the error for a transcript that is not as it was written."""
    return StoreError(
        f"session {key.session} {fault}; the store is damaged. Restore a copy of it, or delete the session there and "
        "import it from the disk of a host that ran it.",
        session_id=key.session,
    )


def encode_entry(value: object) -> str:
    r"""Encode a value as ASCII JSON: surrogates and NUL are escaped, so every medium can store it. NaN stays NaN.

    Raises:
        UsageError: JSON cannot represent the value.
    """
    try:
        text = json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an entry of a transcript cannot be represented as JSON: {error}") from None
    unseen: list[Any] = [value]
    while unseen:
        found: Any = unseen.pop()
        if isinstance(found, dict):
            names = cast("dict[Any, Any]", found)
            for name in names:
                if not isinstance(name, str):  # json.dumps makes text of it
                    raise UsageError(f"an entry of a transcript cannot be represented as JSON: the key {name!r:.80}")
            unseen.extend(names.values())
        elif isinstance(found, list):
            unseen.extend(cast("list[Any]", found))
        elif isinstance(found, tuple):  # json.dumps makes a list of it
            raise UsageError("an entry of a transcript cannot be represented as JSON: it has a tuple")
    return text


_decode_json = msgspec.json.Decoder().decode


def read_entry(text: str | bytes) -> Entry:
    """Decode the output of `encode_entry`.

    Raises:
        StoreError: the text is not a JSON object, or is nested too deeply.
    """
    try:
        try:
            found = _decode_json(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):  # lone surrogates, NaN, 1e400
            found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"an entry of the session cannot be read: {error}; the store is damaged") from error
    return cast("Entry", found)


def encode_owner(owner: str | None) -> str | None:
    """Encode the owner of a lease as ASCII text; None stays None."""
    return None if owner is None else json.dumps(owner)


def decode_owner(text: str | bytes | None) -> str | None:
    """Decode the output of `encode_owner`."""
    return json.loads(text) if text else None


_MAX_UUID_CHARS = 128  # longer uuids are digested: PostgreSQL indexes at most 2,700 bytes
_PLAIN_UUID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{_MAX_UUID_CHARS}}}")


def digest_key(*parts: str) -> bytes:
    """Return a digest of 32 bytes for parts of any length; other parts or other boundaries give another digest."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).digest()


def encode_uuid(uuid: str) -> str:
    """Return a uuid in a form every medium can index: unchanged, or a digest if it is long or unusual."""
    return uuid if _PLAIN_UUID.fullmatch(uuid) else "#" + digest_key(uuid).hex()


# --- the rules ------------------------------------------------------------------------------------------------------


def check_write_allowed(key: TranscriptKey, state: LeaseState, lease: Lease | None) -> None:
    """Check that a write, or the deletion of a session, is allowed with this lease."""
    if lease is not None:
        check_lease_current(key, state, lease)
    else:
        check_lease_free(key, state, None)


def check_lease_free(key: TranscriptKey, state: LeaseState, owner: str | None) -> None:
    """Raise `SessionLeasedError`, with its name and the remaining time, if another owner holds a lease."""
    if state.owner not in (None, owner) and state.seconds_left > 0:
        raise SessionLeasedError(
            f"session {key.session} is in use by {state.owner}, for {state.seconds_left:.1f} s more, or longer if "
            "it is renewed. Close it there, or wait.",
            session_id=key.session,
            holder=state.owner or "",
            seconds_left=state.seconds_left,
        )


def check_lease_current(key: TranscriptKey, state: LeaseState, lease: Lease) -> None:
    """Raise `LeaseLostError` if a lease is not the newest of its session, or was released."""
    if lease.transcript != key.main or lease.token != state.token or lease.owner != state.owner:
        taken = f"{state.owner} has taken it over" if state.owner and state.token > lease.token else "it was released"
        raise LeaseLostError(
            f"session {key.session} is no longer leased to {lease.owner}: {taken}. Nothing was written.",
            session_id=key.session,
            holder=state.owner,
        )


# ruff: noqa: D102 - `StoreBackend` says what each call does


class BlockingBackend(StoreBackend):
    """A store over a few blocking operations, which are called from any thread. `secrets` must not be shown."""

    def __init__(self, display_name: str, secrets: Iterable[str] = ()) -> None:
        self._display_name = display_name
        self._secrets = frozenset(secrets)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._display_name!r})"

    # --- what a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, key: TranscriptKey, *, entries: bool) -> tuple[TranscriptRecord, Sequence[str | bytes]]:
        """Return the record of a transcript, and with `entries` its lines in order."""

    @abstractmethod
    def _change(self, request: ChangeRequest) -> Change | None:
        """Read what the request needs, call its `decide`, write the change, and return it: all of it atomically.

        Raises:
            ConcurrentChangeError: another writer was faster, and nothing was written.
        """

    @abstractmethod
    def _list_sessions(self, project: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        """Return id, `mtime` and with `summaries` the summary of each main transcript of a project."""

    @abstractmethod
    def _list_subpaths(self, main: TranscriptKey) -> list[str]: ...

    def _close(self) -> None:
        """Close everything; called once, possibly while another thread is in a call."""

    def _reset_after_fork(self) -> None:
        """Drop connections without closing them: in a forked process they belong to the parent."""

    def _describe_failure(self, error: Exception) -> str | None:
        """Explain an error of the medium and what to do; None for other errors."""

    def _decode(self, record: TranscriptRecord, texts: Sequence[str | bytes]) -> list[Entry]:
        """Decode what `_read` returned."""
        return [read_entry(text) for text in texts]

    # --- the calls --------------------------------------------------------------------------------------------------

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        return await self._run(self._append, parse_key(key), entries, after, lease)

    def _append(self, key: TranscriptKey, entries: list[Entry], after: int | None, lease: Lease | None) -> int:
        batch = EntryBatch.parse(entries, after)
        if not batch.rows:
            return self._count(key)
        count = 0

        def decide(state: StoredState) -> EntriesAdded | None:
            nonlocal count
            check_write_allowed(key, state.lease, lease)
            change = batch.plan(key, state)
            count = (change or state).record.entry_count
            return change

        uuids = [row.uuid for row in batch.rows if row.uuid is not None]
        self._retry_change(lambda: self._change(ChangeRequest(key, decide, uuids, needs_clock=lease is None)))
        return count

    async def load(self, key: SessionKey) -> list[Entry] | None:
        return await self._run(self._load, parse_key(key)) or None

    def _load(self, key: TranscriptKey) -> list[Entry]:
        def attempt() -> list[Entry]:
            record, texts = self._read(key, entries=True)
            try:
                check_entries(key, record, texts)
                return self._decode(record, texts)
            except StoreError as error:
                if self._read(key, entries=False)[0] == record:
                    raise
                raise ConcurrentChangeError from error

        return self._retry_change(attempt)

    async def count(self, key: SessionKey) -> int:
        return await self._run(self._count, parse_key(key))

    def _count(self, key: TranscriptKey) -> int:
        return self._read(key, entries=False)[0].entry_count

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        rows = await self._list(project_key, summaries=False)
        return [{"session_id": session, "mtime": mtime} for session, mtime, _ in rows]

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        rows = await self._list(project_key, summaries=True)
        return [
            {"session_id": session, "mtime": mtime, "data": read_entry(data) if data else {}}
            for session, mtime, data in rows
        ]

    async def _list(self, project_key: str, *, summaries: bool) -> list[tuple[str, int, str | None]]:
        project = parse_key({"project_key": project_key, "session_id": "any"}).project
        return await self._run(lambda: self._list_sessions(project, summaries=summaries))

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        return sorted(await self._run(self._list_subpaths, parse_key(key).main))

    async def delete(self, key: SessionKey) -> None:
        transcript = parse_key(key)

        def decide(state: StoredState) -> TranscriptDeleted:
            check_write_allowed(transcript, state.lease, None)
            return TranscriptDeleted()

        await self._run_change(ChangeRequest(transcript, decide))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        main, ttl = parse_key(key).main, _validate_ttl(ttl)
        token, is_abandoned = 0, False

        def decide(state: StoredState) -> LeaseChanged | None:
            nonlocal token
            check_lease_free(main, state.lease, owner)
            token = state.lease.token + 1
            return None if is_abandoned else LeaseChanged(owner, token, ttl)

        try:
            await self._run_change(ChangeRequest(main, decide))
        except BaseException:
            is_abandoned = True  # a cancelled call goes on in its thread, and must not take the lease later
            raise
        return Lease(main, owner, token, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        renewed = lease._replace(ttl=_validate_ttl(lease.ttl if ttl is None else ttl))

        def decide(state: StoredState) -> LeaseChanged:
            check_lease_current(lease.transcript, state.lease, lease)
            return LeaseChanged(lease.owner, lease.token, renewed.ttl)

        await self._run_change(ChangeRequest(lease.transcript, decide, needs_clock=False))
        return renewed

    async def release(self, lease: Lease) -> None:

        def decide(state: StoredState) -> LeaseChanged | None:
            is_current = state.lease[:2] == (lease.owner, lease.token)
            return LeaseChanged(None, lease.token, 0.0) if is_current else None

        await self._run_change(ChangeRequest(lease.transcript, decide, needs_clock=False))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await self._run(self._close)

    # --- how a call runs --------------------------------------------------------------------------------------------

    async def _run_change(self, request: ChangeRequest) -> None:
        await self._run(lambda: self._retry_change(lambda: self._change(request)))

    def _retry_change(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it no longer raises `ConcurrentChangeError`."""
        end = time.monotonic() + CONTENTION_SECONDS
        number = 0
        while True:
            with suppress(ConcurrentChangeError):
                return attempt()
            if time.monotonic() > end:
                raise StoreError(
                    f"other writers changed the session without a pause for {CONTENTION_SECONDS:.0f} s; try again"
                )
            number += 1
            time.sleep(_RETRY_POLICY.delay(number, random.random()))  # noqa: S311 - not secret

    async def _run(self, work: Callable[[*Args], T], *args: *Args) -> T:
        # A cancelled call is not waited for, because a server may be slow. It ends by the timeouts of its backend, and
        # a repeated write recognises what it has stored.
        limiter = anyio.CapacityLimiter(1)
        return await to_thread.run_sync(self._call_guarded, work, *args, abandon_on_cancel=True, limiter=limiter)

    def _check_open(self) -> None:
        """Check again before connecting: the store may have been closed while a call waited."""
        if self._closed:
            raise StoreError("this store is closed")

    def _call_guarded(self, work: Callable[[*Args], T], *args: *Args) -> T:
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._lock = threading.RLock()  # another thread of the parent may hold the old lock forever
            self._reset_after_fork()
        try:
            if work != self._close:
                self._check_open()
            return work(*args)
        except PilothouseError:
            raise
        except Exception as error:
            text = self._describe_failure(error)
            if text is None and isinstance(error, (ValueError, LookupError)):
                text = f"the store has something else than pilothouse wrote, and is damaged: {error}"
            if text is None:
                raise
            failure = StoreError(remove_secrets(self._secrets, f"{self._display_name}: {text}"))
            raise failure from (None if any(secret in repr(error) for secret in self._secrets) else error)


class ConnectedBackend(BlockingBackend, Generic[T]):
    """A store with one connection, which is opened on first use."""

    def __init__(self, display_name: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(display_name, secrets)
        self._connection: T | None = None
        self._inherited: list[T | None] = []

    @abstractmethod
    def _connect(self) -> T: ...

    @abstractmethod
    def _disconnect(self, connection: T) -> None: ...

    def _ensure_connected(self) -> T:
        with self._lock:
            if self._connection is None:
                self._check_open()
                self._connection = self._connect()
            return self._connection

    def _close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._disconnect(connection)

    def _reset_after_fork(self) -> None:
        self._inherited.append(self._connection)
        self._connection = None


def _validate_ttl(ttl: float) -> float:
    if not 0 < ttl <= MAX_TTL:
        raise UsageError(f"a lease is given for more than 0 and at most {MAX_TTL:.0f} seconds, not {ttl}")
    return float(ttl)


# --- addresses ------------------------------------------------------------------------------------------------------

_MIN_SECRET_CHARS = 6  # shorter secrets are only replaced as whole words
_SETTING_PATTERN = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
_VISIBLE_SETTINGS = ("host", "hostaddr", "port", "dbname", "endpoint", "bucket", "container", "region")
_HARMLESS_SETTINGS = frozenset({
    *_VISIBLE_SETTINGS, "user", "username", "account", "sslmode", "application_name", "connect_timeout", "options",
    "db", "protocol", "scheme", "target_session_attrs", "service",
})  # fmt: skip


def redact_address(address: str) -> str:
    """Return the parts of an address that show where the store is, and nothing else."""
    if "://" not in address:
        found = dict(_SETTING_PATTERN.findall(address))
        return " ".join(f"{name}={found[name]}" for name in _VISIBLE_SETTINGS if name in found)
    scheme, rest = address.split("://", 1)
    where = re.split(r"[?#]", rest, maxsplit=1)[0]
    if "@" not in where and "@" in rest:  # a password with an unescaped question mark
        return f"{scheme}://"
    where = where.rpartition("@")[2]
    if where.startswith("/"):  # the socket directory is in the query
        where += "".join(f"?host={value}" for name, value in _parse_query(address) if name == "host")
    return f"{scheme}://{where}"


def _parse_query(address: str) -> list[tuple[str, str]]:
    return parse_qsl(address.partition("?")[2].partition("#")[0], keep_blank_values=True)


def find_address_secrets(address: str) -> frozenset[str]:
    """Return the secrets of an address: passwords, and values of settings not known to be harmless."""
    if "://" in address:
        password = address.split("://", 1)[1].rpartition("@")[0].partition(":")[2]
        found = [*_parse_query(address), ("password", password), ("password", unquote(password))]
    else:
        found = [(name, value.strip("'")) for name, value in _SETTING_PATTERN.findall(address)]
    return frozenset(value for name, value in found if value and name.lower() not in _HARMLESS_SETTINGS)


def remove_secrets(secrets: Iterable[str], text: str) -> str:
    """Remove the given secrets from a text, and everything that looks like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        found = re.escape(secret)
        # A short secret may occur inside other words by chance.
        text = re.sub(found if len(secret) >= _MIN_SECRET_CHARS else rf"(?<!\w){found}(?!\w)", MASK, text)
    return mask_text(text)


def find_setting_secrets(settings: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values of settings: all whose names are not known to be harmless."""
    names = {
        name: name.lower().removeprefix("aws_").removeprefix("azure_").removeprefix("google_") for name in settings
    }
    return frozenset(
        v for k, v in settings.items() if names[k] not in _HARMLESS_SETTINGS and v not in {"", "true", "false"}
    )
