"""`ThreadedBackend`: base of the backends with blocking calls, and how they encode entries, keys and addresses.

Owns the worker threads, the decisions about appends and leases, and the conversion of errors to `StoreError`. Knows no
medium.
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast
from urllib.parse import parse_qsl, unquote

import anyio
import msgspec
from anyio import to_thread

from pilothouse.errors import PilothouseError, StoreError, UsageError
from pilothouse.options import RetryPolicy
from pilothouse.options.secrets import MASK, mask_text
from pilothouse.stores.base import (
    Entry,
    EntryBatch,
    Lease,
    LeaseState,
    SessionKey,
    StoreBackend,
    StoredSession,
    StoredSummary,
    TranscriptKey,
    check_lease_current,
    check_lease_free,
    check_write_allowed,
    fold_summary,
    get_entry_uuid,
    parse_key,
)

_MAX_UUID_CHARS = 128  # longer uuids are digested: PostgreSQL indexes at most 2,700 bytes
_PLAIN_UUID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{_MAX_UUID_CHARS}}}")
_MIN_SECRET_CHARS = 6  # shorter secrets are only replaced as whole words
_SETTING_PATTERN = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
_VISIBLE_SETTINGS = ("host", "hostaddr", "port", "dbname", "endpoint", "bucket", "container", "region")
_HARMLESS_SETTINGS = frozenset({
    *_VISIBLE_SETTINGS, "user", "username", "account", "sslmode", "application_name", "connect_timeout", "options",
    "db", "protocol", "scheme", "target_session_attrs", "service",
})  # fmt: skip


def encode_entry(value: object) -> str:
    r"""Encode a value as ASCII JSON: surrogates and NUL are escaped, so every medium can store it. NaN stays NaN.

    Raises:
        UsageError: JSON cannot represent the value.
    """
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an entry of a transcript cannot be represented as JSON: {error}") from None


def read_entry(text: str | bytes) -> Entry:
    """Decode the output of `encode_entry`.

    Raises:
        StoreError: the text is not a JSON object, or is nested too deeply.
    """
    try:
        return decode_entry(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"an entry of the session cannot be read: {error}; the store is damaged") from error


def decode_entry(text: str | bytes) -> Entry:
    """Decode the output of `encode_entry`; raise ValueError or RecursionError for anything else."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # lone surrogates, NaN, 1e400
        found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return cast("Entry", found)


def read_entries(texts: Iterable[str | bytes]) -> list[Entry]:
    """Decode many entries."""
    return [read_entry(text) for text in texts]


def encode_owner(owner: str | None) -> str | None:
    """Encode the owner of a lease as ASCII text; None stays None."""
    return None if owner is None else json.dumps(owner)


def decode_owner(text: str | bytes | None) -> str | None:
    """Decode the output of `encode_owner`."""
    return json.loads(text) if text else None


def digest_key(*parts: str) -> bytes:
    """Return a digest of 32 bytes for parts of any length; other parts or other boundaries give another digest."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).digest()


def encode_uuid(uuid: str) -> str:
    """Return a uuid in a form every medium can index: unchanged, or a digest if it is long or unusual."""
    return uuid if _PLAIN_UUID.fullmatch(uuid) else "#" + digest_key(uuid).hex()


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


MAX_TTL = 366 * 86_400.0  # seconds
FORMAT = 1
"""The version of the layout that these backends write. A newer store is rejected, an older one is migrated."""

CONTENTION_SECONDS = 60.0
"""Seconds for which a change is retried because others changed the session meanwhile."""
_RETRY_POLICY = RetryPolicy(first_delay=0.005, max_delay=0.5, jitter=1.0)

T = TypeVar("T")
Args = TypeVarTuple("Args")

LeaseDecision = Callable[[LeaseState], "tuple[str | None, int] | None"]
"""Checks a lease, and returns its new owner and token; None: it stays as it is. Raises the error of a refusal."""


class ConcurrentChangeError(Exception):
    """Another writer changed the session during the operation."""


class EntryRow(NamedTuple):
    """One entry in its stored form."""

    uuid: str | None
    text: str


@dataclass(slots=True)
class TranscriptState:
    """The stored state of one transcript before a write.

    Attributes:
        count: number of its entries.
        last_batch: the id of the last batch with `after`.
        uuids: uuids of the batch that are already stored, from `encode_uuid`.
        summary: the summary of the session.
        lease: the lease record of the session.
    """

    count: int
    last_batch: str
    uuids: frozenset[str]
    summary: Mapping[str, Any] | None
    lease: LeaseState


@dataclass(slots=True)
class AppendPlan:
    """What an append has to write: the new rows, the new count, the summary of a main transcript."""

    rows: list[EntryRow]
    count: int
    summary: dict[str, Any] | None


def describe_newer_format(version: int) -> str:
    """Return the error text for a store with an unknown newer format."""
    return (
        f"the store has format {version}, written by a newer pilothouse; this one knows formats up to {FORMAT}. "
        "Upgrade pilothouse here."
    )


def collect_uuids(batch: EntryBatch) -> list[str]:
    """Return the uuids of a batch in their stored form."""
    return [encode_uuid(uuid) for entry in batch.entries if (uuid := get_entry_uuid(entry)) is not None]


def plan_append(
    transcript: TranscriptKey, batch: EntryBatch, lease: Lease | None, state: TranscriptState
) -> AppendPlan | None:
    """Compute what an append writes; None if it is already stored. Raises as `StoreBackend.append` does."""
    check_write_allowed(transcript, state.lease, lease)
    if batch.is_stored(transcript, state.count, state.last_batch):
        return None
    rows: list[EntryRow] = []
    fresh: list[Entry] = []
    for entry in batch.entries:
        found = get_entry_uuid(entry)
        uuid = None if found is None else encode_uuid(found)
        if uuid is None or uuid not in state.uuids:
            rows.append(EntryRow(uuid, encode_entry(entry)))
            fresh.append(entry)
    summary = None if transcript.subpath else fold_summary(state.summary, fresh)
    return AppendPlan(rows, state.count + len(rows), summary)


class ThreadedBackend(StoreBackend):
    """A backend written as blocking methods, which are called from any thread.

    Args:
        display_name: address of the store, without secrets.
        secrets: texts that must not be shown.
    """

    def __init__(self, display_name: str, secrets: Iterable[str] = ()) -> None:
        self._display_name = display_name
        self._secrets = frozenset(secrets)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._display_name!r})"

    # --- the calls --------------------------------------------------------------------------------------------------

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """See `StoreBackend.append`."""
        return await self._run_in_thread(self._parse_and_append, parse_key(key), entries, after, lease)

    def _parse_and_append(
        self, transcript: TranscriptKey, entries: list[Entry], after: int | None, lease: Lease | None
    ) -> int:
        batch = EntryBatch.parse(entries, after)
        return self._append(transcript, batch, lease) if batch.entries else self._count(transcript)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """See `StoreBackend.load`."""
        return await self._run_in_thread(self._load, parse_key(key))

    async def count(self, key: SessionKey) -> int:
        """See `StoreBackend.count`."""
        return await self._run_in_thread(self._count, parse_key(key))

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """See `StoreBackend.list_sessions`."""
        return await self._run_in_thread(self._list_sessions, _parse_project(project_key))

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """See `StoreBackend.list_session_summaries`."""
        return await self._run_in_thread(self._list_summaries, _parse_project(project_key))

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """See `StoreBackend.list_subkeys`."""
        return sorted(await self._run_in_thread(self._list_subpaths, parse_key(key).main))

    async def delete(self, key: SessionKey) -> None:
        """See `StoreBackend.delete`."""
        await self._run_in_thread(self._delete, parse_key(key))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """See `StoreBackend.acquire`."""
        transcript = parse_key(key).main

        def take(state: LeaseState) -> tuple[str, int]:
            check_lease_free(transcript, state, owner)
            return owner, state.token + 1

        token = await self._run_in_thread(self._change_lease, transcript, take, _validate_ttl(ttl))
        return Lease(transcript, owner, token, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """See `StoreBackend.renew`."""
        lease = lease if ttl is None else lease._replace(ttl=ttl)

        def extend(state: LeaseState) -> tuple[str, int]:
            check_lease_current(lease.transcript, state, lease)
            return lease.owner, lease.token

        await self._run_in_thread(self._change_lease, lease.transcript, extend, _validate_ttl(lease.ttl))
        return lease

    async def release(self, lease: Lease) -> None:
        """See `StoreBackend.release`."""

        def give_up(state: LeaseState) -> tuple[None, int] | None:
            return (None, lease.token) if state[:2] == (lease.owner, lease.token) else None

        await self._run_in_thread(self._change_lease, lease.transcript, give_up, 0.0)

    async def aclose(self) -> None:
        """See `StoreBackend.aclose`."""
        if not self._closed:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._call_guarded, self._close, limiter=anyio.CapacityLimiter(1))

    # --- what a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _append(self, transcript_key: TranscriptKey, batch: EntryBatch, lease: Lease | None) -> int:
        """Append a batch with at least one entry."""

    @abstractmethod
    def _load(self, transcript_key: TranscriptKey) -> list[Entry] | None: ...

    @abstractmethod
    def _count(self, transcript_key: TranscriptKey) -> int: ...

    @abstractmethod
    def _list_sessions(self, project: str) -> list[StoredSession]: ...

    @abstractmethod
    def _list_summaries(self, project: str) -> list[StoredSummary]: ...

    @abstractmethod
    def _list_subpaths(self, main: TranscriptKey) -> list[str]: ...

    @abstractmethod
    def _delete(self, transcript_key: TranscriptKey) -> None: ...

    @abstractmethod
    def _change_lease(self, main: TranscriptKey, decide: LeaseDecision, ttl: float) -> int:
        """Change the lease of a session, atomically.

        Args:
            main: the session.
            decide: called with the lease; may be called again after another writer was faster.
            ttl: seconds until the new lease expires. 0: the lease is released; then `decide` does not look at the
                remaining time of the old one.

        Returns:
            The new token; 0 if nothing was changed.
        """

    @abstractmethod
    def _close(self) -> None:
        """Close everything; called once, possibly while another thread is in a call."""

    @abstractmethod
    def _reset_after_fork(self) -> None:
        """Drop connections without closing them: in a forked process they belong to the parent."""

    @abstractmethod
    def _describe_failure(self, error: Exception) -> str | None:
        """Explain an error of the medium and what to do; None for other errors."""

    def _retry_change(self, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` until it returns a result; None or `ConcurrentChangeError`: another writer was faster."""
        end = time.monotonic() + CONTENTION_SECONDS
        number = 0
        while True:
            with suppress(ConcurrentChangeError):
                if (done := attempt()) is not None:
                    return done
            if time.monotonic() > end:
                raise StoreError(
                    f"other writers changed the session without a pause for {CONTENTION_SECONDS:.0f} s; try again"
                )
            number += 1
            time.sleep(_RETRY_POLICY.delay(number, random.random()))  # noqa: S311 - not secret

    # --- threads ----------------------------------------------------------------------------------------------------

    async def _run_in_thread(self, work: Callable[[*Args], T], *args: *Args) -> T:
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
            if text is None:
                raise
            failure = StoreError(remove_secrets(self._secrets, f"{self._display_name}: {text}"))
            raise failure from (None if any(secret in repr(error) for secret in self._secrets) else error)


def _parse_project(project_key: str) -> str:
    return parse_key({"project_key": project_key, "session_id": "any"}).project


def _validate_ttl(ttl: float) -> float:
    if not 0 < ttl <= MAX_TTL:
        raise UsageError(f"a lease is given for more than 0 and at most {MAX_TTL:.0f} seconds, not {ttl}")
    return float(ttl)
