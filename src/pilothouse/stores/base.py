"""What a session store is: the protocol, what our own backends promise beyond it, and the checks that they share.

This file must not know any backend, any event loop or the client. All of it is pure.

Two levels:

- `SessionStore` is a structural protocol, that of other Claude Code SDKs too: `append` and `load` are needed, the
  rest is optional and looked for (`implements`). A store that somebody wrote for those SDKs fits unchanged.
- `StoreBackend` is the base class of the stores of this package. On top of the protocol it promises:

**Keys.** `place_of(key)` takes a key apart and refuses one that no store may hold (`UsageError`): every method begins
with it. A backend encodes the parts for its own medium and never joins them with a character that may stand in them.

**Append** is atomic (all of its entries, or none), durable when it returns, and the only writer of entries. With a
`Batch` made from the arguments, in one transaction, in this order:

1. `check_writer(place, lease_state, lease)`. A lease that is not the newest, or was released, may not write
   (`LeaseLostError`); one that ran out may, as long as nobody took another. Without a lease, nobody may write while an
   unexpired lease is held (`SessionLeasedError`).
2. `batch.is_stored(place, count, last)`: `count` is how many entries this key (with its subpath) holds, `last` the
   `Batch.id` that the last append left at this key. True: this is a retry of a write whose answer got lost; nothing
   is written, `count` is returned. A count other than `after` raises `StoreConflictError`.
3. Entries whose uuid this key holds already are skipped; the others are added at the end, in order.
4. The key keeps `batch.id` as its `last`, the new count, and the time of the write; the summary of the session is
   folded (`summaries.fold_summary`) with the added entries unless the key has a subpath.

It returns the new count, which is the next `after` of this writer. An empty list writes nothing, creates nothing and
checks nothing; it returns the count. Entries come back deep-equal, in order; what has the same uuid twice in one batch
is stored once (the first).

**Leases** are per session: a subpath in the key is ignored. There is one lease record for a session: owner, token, and
when it runs out, judged by the store's clock alone (the server's `now()`; for files the clock of the machine that
holds them): no time of a client is ever compared. `acquire` is atomic: `check_taker` on the state, then the token of
the record plus one, the owner, the store's now plus `ttl`. The token of a session only grows, also over release and
over the deletion of the session: the record outlives both. The same owner may acquire again at any time, and gets a
new token. `renew` (`check_keeper`) sets now plus `ttl` and keeps the token; it succeeds after the expiry as long as
nobody took another. `release` sets the owner to none if the lease is still the newest one, and does nothing otherwise.

**The rest.** `delete` without a subpath removes the session with all its subpaths and its summary; it is refused while
an unexpired lease is held (`SessionLeasedError`), as a write without a lease is. `list_sessions` and
`list_session_summaries` know main transcripts only (no session that has subpaths alone); both carry the same `mtime`,
the time of the last write to the main transcript in milliseconds since 1970. A medium that fails raises `StoreError`,
whose text says what to do and carries no password; the next call connects again. A method after `aclose` raises
`StoreError`; `aclose` twice does nothing.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, Self, TypedDict, cast

from pilothouse.errors import LeaseLostError, SessionLeasedError, StoreConflictError, UsageError

Entry = dict[str, Any]  # one line of a transcript: any JSON object
OptionalCall = Literal["delete", "list_session_summaries", "list_sessions", "list_subkeys"]

LONGEST_PART = 1024  # characters of one part of a key: what every medium can hold
SPELLED_AS_PATHS = frozenset({".", ".."})


class SessionKey(TypedDict):
    """Which transcript. `project_key` is the folder of a project as the CLI names it, or any scope of your own.

    Without `subpath` the main transcript; with it one that belongs to the session, such as `subagents/agent-a1b2`.
    """

    project_key: str
    session_id: str
    subpath: NotRequired[str]


class StoredSession(TypedDict):
    """A row of `list_sessions`. `mtime` is the time of the last write, in milliseconds since 1970."""

    session_id: str
    mtime: int


class StoredSummary(TypedDict):
    """A row of `list_session_summaries`. `data` is what `fold_summary` made of the entries."""

    session_id: str
    mtime: int
    data: dict[str, Any]


class SessionStore(Protocol):
    """Where transcripts live beyond one machine: the two calls that every store has. (E85)

    Four more are used when a store has them, and looked for by name: `list_sessions(project_key)`,
    `list_session_summaries(project_key)`, `delete(key)`, `list_subkeys(key)`, shaped as in `StoreBackend`.
    """

    async def append(self, key: SessionKey, entries: list[Entry]) -> Any:
        """Add entries at the end of a transcript. Entries with a `uuid` that is there already may be skipped."""
        ...

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """Give all entries of a transcript in order, deep-equal to what was appended; None if there is none."""
        ...


class Place(NamedTuple):
    """A checked key. `subpath` is empty for the main transcript."""

    project: str
    session: str
    subpath: str = ""

    @property
    def key(self) -> SessionKey:
        """The same as a `SessionKey`."""
        key: SessionKey = {"project_key": self.project, "session_id": self.session}
        if self.subpath:
            key["subpath"] = self.subpath
        return key

    @property
    def main(self) -> Place:
        """The main transcript of the session."""
        return Place(self.project, self.session)


class Lease(NamedTuple):
    """The right to write to a session. Only `StoreBackend.acquire` and `renew` make one.

    Attributes:
        place: the session; never with a subpath.
        owner: who holds it, in words that help the one who is refused, such as `host-7:4711:3f2a`.
        token: the fencing token: a later lease of the session has a larger one.
        ttl: seconds for which it was given.
    """

    place: Place
    owner: str
    token: int
    ttl: float


class LeaseState(NamedTuple):
    """The lease record of a session as the store sees it now. The default is that of a session without a record."""

    owner: str | None = None  # none: released, or never taken
    token: int = 0
    seconds_left: float = 0.0  # by the store's clock; zero or less: it ran out

    @property
    def is_held(self) -> bool:
        """Whether somebody holds a lease that has not run out."""
        return self.owner is not None and self.seconds_left > 0


class Batch(NamedTuple):
    """The entries of one append, checked.

    Attributes:
        entries: without those whose uuid stood earlier in the same list.
        after: how many entries the writer believes the key to hold; None if it does not say.
        id: what tells this write from others at the same place; empty without `after`.
    """

    entries: list[Entry]
    after: int | None
    id: str

    @classmethod
    def of(cls, entries: Sequence[Any], after: int | None) -> Batch:
        """Check what was given to `append`.

        Raises:
            UsageError: an entry is no dict with string keys that JSON can say, or `after` is negative.
        """
        if after is not None and after < 0:
            raise UsageError(f"`after` is a number of entries, not {after}")
        seen: set[str] = set()
        kept: list[Entry] = []
        for entry in entries:
            if not isinstance(entry, dict):
                raise UsageError(f"an entry of a transcript is a dict, not {type(entry).__name__}")
            uuid = entry_uuid(cast("Entry", entry))
            if uuid is None or uuid not in seen:
                kept.append(cast("Entry", entry))
            if uuid is not None:
                seen.add(uuid)
        return cls(kept, after, _batch_id(kept, after))

    def is_stored(self, place: Place, count: int, last: str | None) -> bool:
        """Say whether this very batch is the last that was stored.

        Args:
            place: for the error.
            count: how many entries the key holds.
            last: the id of the last batch with `after` that it stored; None or empty if there was none.

        Raises:
            StoreConflictError: the key holds another number of entries than `after`.
        """
        if self.after is None:
            return False
        if self.id == last and count >= self.after:
            return True
        if count != self.after:
            raise StoreConflictError(
                f"session {place.session} holds {count} entries in the store where {self.after} were expected: "
                "somebody else wrote to it. Load it again before you write.",
                session_id=place.session,
                expected=self.after,
                found=count,
            )
        return False


def _batch_id(entries: list[Entry], after: int | None) -> str:
    if after is None:
        return ""
    try:
        text = json.dumps([after, entries], sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"an entry of a transcript is what JSON can say: {error}") from None
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def entry_uuid(entry: Entry) -> str | None:
    """Give the id by which an entry is known, if it has one (titles, tags and modes have none)."""
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def place_of(key: SessionKey) -> Place:
    """Take a key apart.

    Raises:
        UsageError: a part is missing, no text, empty, too long, holds NUL or half a character, or is spelled so that as
            a path it would leave its folder.
    """
    parts = {"project_key": key.get("project_key"), "session_id": key.get("session_id"), "subpath": key.get("subpath")}
    if parts["subpath"] is None:
        del parts["subpath"]
    for name, part in parts.items():
        fault = _fault(part, may_have_folders=name == "subpath")
        if fault:
            raise UsageError(f"the {name} of a session key {fault}: {part!r:.80}")
    return Place(cast("str", parts["project_key"]), cast("str", parts["session_id"]), parts.get("subpath") or "")


def _fault(part: object, *, may_have_folders: bool) -> str | None:
    if not isinstance(part, str) or not part:
        return "must be text that is not empty"
    if len(part) > LONGEST_PART:
        return f"is longer than {LONGEST_PART} characters"
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in part):
        return "holds NUL or half a character"
    if "\\" in part or ("/" in part and not may_have_folders):
        return "holds a slash"
    if any(not segment or segment in SPELLED_AS_PATHS for segment in part.split("/")):
        return "would leave its folder"
    return None


def check_writer(place: Place, state: LeaseState, lease: Lease | None) -> None:
    """Refuse a write, or the deletion of a session, to one who has no right to it. See the rules above.

    Raises:
        LeaseLostError: the lease is not the newest, was released, or is that of another session.
        SessionLeasedError: no lease was given, and somebody holds one.
    """
    if lease is not None:
        check_keeper(place, state, lease)
    elif state.is_held:
        raise _leased(place, state)


def check_taker(place: Place, state: LeaseState, owner: str) -> None:
    """Refuse a lease while another owner holds one.

    Raises:
        SessionLeasedError: somebody else holds it; the error says who, and for how long.
    """
    if state.is_held and state.owner != owner:
        raise _leased(place, state)


def check_keeper(place: Place, state: LeaseState, lease: Lease) -> None:
    """Refuse a lease that is not the newest of its session.

    Raises:
        LeaseLostError: another one was given out since, it was released, or it is that of another session.
    """
    if lease.place != place.main or lease.token != state.token or lease.owner != state.owner:
        taken = f"{state.owner} has taken it over" if state.owner and state.token > lease.token else "it was given back"
        raise LeaseLostError(
            f"session {place.session} is no longer leased to {lease.owner}: {taken}. Nothing was written.",
            session_id=place.session,
            holder=state.owner,
        )


def _leased(place: Place, state: LeaseState) -> SessionLeasedError:
    return SessionLeasedError(
        f"session {place.session} is in use by {state.owner}, for {state.seconds_left:.1f} s more, or longer if it is "
        "renewed. Close it there, or wait.",
        session_id=place.session,
        holder=state.owner or "",
        seconds_left=state.seconds_left,
    )


def implements(store: object, call: OptionalCall) -> bool:
    """Say whether a store has one of the optional calls.

    A method that was only inherited from a `Protocol` class is a placeholder, and counts as absent.
    """
    if not callable(getattr(store, call, None)):
        return False
    if call in getattr(store, "__dict__", {}):
        return True
    owner = next((c for c in type(store).__mro__ if call in c.__dict__), None)
    return owner is None or not getattr(owner, "_is_protocol", False)


class StoreBackend(ABC):
    """Base of the stores of this package: a `SessionStore` with every call, compare-and-append, and leases. (E85)

    The text at the top of this file says exactly what each method promises. Stores are async context managers, are
    created on first use, and may be used by many sessions at once.
    """

    @abstractmethod
    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """Add entries at the end of a transcript, all or none.

        Args:
            key: the transcript.
            entries: JSON objects; those whose `uuid` is there already are skipped.
            after: how many entries the writer believes to be there; None: whatever is there. With a number, a repeated
                call is recognised and writes nothing twice, entries without a `uuid` included.
            lease: the lease under which this is written.

        Returns:
            How many entries are there now.

        Raises:
            StoreConflictError: there is another number of entries than `after`.
            LeaseLostError: the lease is not the newest of the session.
            SessionLeasedError: without a lease, while somebody holds one.
            StoreError: the medium failed.
            UsageError: the key or an entry is impossible.
        """

    @abstractmethod
    async def load(self, key: SessionKey) -> list[Entry] | None:
        """Give all entries in order; None for a key that holds none.

        Raises:
            StoreError: the medium failed.
        """

    @abstractmethod
    async def count(self, key: SessionKey) -> int:
        """Say how many entries `load` would give; 0 for a key that holds none."""

    @abstractmethod
    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """Give the sessions of a project, in any order."""

    @abstractmethod
    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """Give what is told about the sessions of a project in one call, in any order."""

    @abstractmethod
    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """Give the subpaths of a session, sorted; a subpath in the key is ignored."""

    @abstractmethod
    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript; without a subpath the whole session. What is not there is no error.

        Raises:
            SessionLeasedError: somebody holds the lease of the session.
        """

    @abstractmethod
    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """Take the lease of a session, which need not exist yet.

        Args:
            key: the session.
            owner: who takes it; told to others who ask for it.
            ttl: seconds after which others may take it, by the clock of the store.

        Raises:
            SessionLeasedError: another owner holds it (`.holder`, `.seconds_left`).
        """

    @abstractmethod
    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """Hold on to a lease for another `ttl` seconds (None: as many as before). The token stays.

        Raises:
            LeaseLostError: somebody else took it, or it was given back.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Give a lease back. One that was lost already is no error."""

    async def aclose(self) -> None:
        """Let go of connections and files. More than once is harmless."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
