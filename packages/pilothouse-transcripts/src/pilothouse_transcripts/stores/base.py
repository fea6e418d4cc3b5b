"""The contract of a session store: keys, leases, `StoreBackend`; session summaries; and `ScopedStore`.

`backend.py` has the rules that the stores of this package share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, Self, TypedDict, cast

from pilothouse.errors import UsageError
from pilothouse_transcripts.rows import SPOKEN_TYPES
from pilothouse_transcripts.session_info import NO_PROMPT, describe_content, extract_prompt, parse_milliseconds

Entry = dict[str, Any]  # one line of a transcript: any JSON object
OptionalCall = Literal["delete", "list_session_summaries", "list_sessions", "list_subkeys"]

MAX_PART_CHARS = 1024  # characters of one part of a key, which every medium can store
RESERVED_NAMES = frozenset({".", ".."})


class SessionKey(TypedDict):
    """The key of a transcript. `project_key` is the CLI's folder name of a project, or any scope of your own.

    Without `subpath` it is the main transcript; with it another one of the session, such as `subagents/agent-a1b2`.
    """

    project_key: str
    session_id: str
    subpath: NotRequired[str]


class StoredSession(TypedDict):
    """A row of `list_sessions`. `mtime` is the time of the last write, in milliseconds since 1970."""

    session_id: str
    mtime: int


class StoredSummary(TypedDict):
    """A row of `list_session_summaries`. `data` is the result of `fold_summary`."""

    session_id: str
    mtime: int
    data: dict[str, Any]


class SessionStore(Protocol):
    """Keeps transcripts outside one machine: the two calls that every store has.

    Four optional methods are used if a store has them: `list_sessions(project_key)`,
    `list_session_summaries(project_key)`, `delete(key)`, `list_subkeys(key)`, with the signatures of `StoreBackend`.
    """

    async def append(self, key: SessionKey, entries: list[Entry]) -> Any:
        """Append entries to a transcript. Entries whose `uuid` is already stored may be skipped."""
        ...

    async def load(self, key: SessionKey) -> list[Entry] | None:
        """Return all entries of a transcript in order, deep-equal to those appended; None if there is none."""
        ...


class TranscriptKey(NamedTuple):
    """A validated key. `subpath` is empty for the main transcript."""

    project: str
    session: str
    subpath: str = ""

    @property
    def session_key(self) -> SessionKey:
        """The key as a `SessionKey`."""
        key: SessionKey = {"project_key": self.project, "session_id": self.session}
        if self.subpath:
            key["subpath"] = self.subpath
        return key

    @property
    def main(self) -> TranscriptKey:
        """The main transcript of the session."""
        return TranscriptKey(self.project, self.session)


class Lease(NamedTuple):
    """The right to write to a session. Only `StoreBackend.acquire` and `renew` make one.

    Attributes:
        transcript: the session; never with a subpath.
        owner: a readable name of the holder for error texts, such as `host-7:4711:3f2a`.
        token: the fencing token: a later lease of the session has a larger one.
        ttl: seconds until the lease expires.
    """

    transcript: TranscriptKey
    owner: str
    token: int
    ttl: float


def get_entry_uuid(entry: Entry) -> str | None:
    """Return the uuid of an entry, if it has one (titles, tags and modes have none)."""
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def parse_key(key: SessionKey) -> TranscriptKey:
    """Validate and split a key.

    Raises:
        UsageError: a part is missing, not text, empty, too long, contains NUL or a lone surrogate, or would as a path
            leave its folder.
    """
    parts = {"project_key": key.get("project_key"), "session_id": key.get("session_id"), "subpath": key.get("subpath")}
    if parts["subpath"] is None:
        del parts["subpath"]
    for name, part in parts.items():
        fault = _find_fault(part, may_have_folders=name == "subpath")
        if fault:
            raise UsageError(f"the {name} of a session key {fault}: {part!r:.80}")
    return TranscriptKey(
        cast("str", parts["project_key"]), cast("str", parts["session_id"]), parts.get("subpath") or ""
    )


def _find_fault(part: object, *, may_have_folders: bool) -> str | None:
    if not isinstance(part, str) or not part:
        return "must be text that is not empty"
    if len(part) > MAX_PART_CHARS:
        return f"is longer than {MAX_PART_CHARS} characters"
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in part):
        return "holds NUL or half a character"
    if "\\" in part or ("/" in part and not may_have_folders):
        return "holds a slash"
    if any(not segment or segment in RESERVED_NAMES for segment in part.split("/")):
        return "would leave its folder"
    return None


def implements(store: object, call: OptionalCall) -> bool:
    """Return whether a store has one of the optional methods.

    A method that is only inherited from a `Protocol` class is a placeholder, and counts as absent.
    """
    if not callable(getattr(store, call, None)):
        return False
    if call in getattr(store, "__dict__", {}):
        return True
    owner = next((c for c in type(store).__mro__ if call in c.__dict__), None)
    return owner is None or not getattr(owner, "_is_protocol", False)


class StoreBackend(ABC):
    """Base of the stores of this package: a `SessionStore` with all methods, compare-and-append, and leases.

    Stores are async context managers, connect on first use, and may be used by many sessions at once.
    """

    @abstractmethod
    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        """Append entries to a transcript, all or none.

        Args:
            key: the transcript.
            entries: JSON objects; those whose `uuid` is already stored are skipped.
            after: number of entries that the writer expects in the store; None: any. With a number, a repeated call
                is recognised and writes nothing twice, including entries without a `uuid`.
            lease: the lease of the writer.

        Returns:
            The number of entries now stored.

        Raises:
            StoreConflictError: the store has another number of entries than `after`.
            LeaseLostError: the lease is not the newest of the session.
            SessionLeasedError: no lease was given, while another writer holds one.
            StoreError: the medium failed.
            UsageError: the key or an entry is not valid.
        """

    @abstractmethod
    async def load(self, key: SessionKey) -> list[Entry] | None:
        """Return all entries in order; None if there are none.

        Raises:
            StoreError: the medium failed.
        """

    @abstractmethod
    async def count(self, key: SessionKey) -> int:
        """Return the number of entries of a key; 0 if there are none."""

    @abstractmethod
    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        """Return the sessions of a project, in any order."""

    @abstractmethod
    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        """Return the summaries of all sessions of a project, in any order."""

    @abstractmethod
    async def list_subkeys(self, key: SessionKey) -> list[str]:
        """Return the subpaths of a session, sorted; a subpath in the key is ignored."""

    @abstractmethod
    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript; without a subpath the whole session. A missing one is not an error.

        Raises:
            SessionLeasedError: another writer holds the lease of the session.
        """

    @abstractmethod
    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        """Take the lease of a session, which need not exist yet.

        Args:
            key: the session.
            owner: name of the holder, shown to others that request the lease.
            ttl: seconds after which others may take it, by the store's clock.

        Raises:
            SessionLeasedError: another owner holds it (`.holder`, `.seconds_left`).
        """

    @abstractmethod
    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        """Extend a lease by `ttl` seconds (None: as many as before). The token stays the same.

        Raises:
            LeaseLostError: another owner took it, or it was released.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release a lease. A lost lease is not an error."""

    async def aclose(self) -> None:
        """Close connections and files. Idempotent."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_LAST_VALUE_FIELDS = {
    "aiTitle": "ai_title",
    "customTitle": "custom_title",
    "gitBranch": "git_branch",
    "lastPrompt": "last_prompt",
    "summary": "summary_hint",
}
"""Fields of entries whose last value counts, and their names in a summary."""
_UNTYPED_FLAGS = ("isMeta", "isCompactSummary")


def fold_summary(data: Mapping[str, Any] | None, entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Update a summary with entries added to a main transcript.

    Args:
        data: the summary so far; None for a new session. It is not changed.
        entries: the added entries, in order.

    Returns:
        The new summary, of plain JSON values.
    """
    summary = dict(data or {})
    for entry in entries:
        _keep_first(summary, entry)
        for name, key in _LAST_VALUE_FIELDS.items():
            if isinstance(value := entry.get(name), str):
                summary[key] = value
        if entry.get("type") == "tag":
            _keep_tag(summary, entry.get("tag"))
        if not summary.get("first_prompt_locked"):
            _keep_prompt(summary, entry)
        if summary.get("first_prompt_locked"):
            summary.pop("content_hint", None)
        else:
            _keep_content(summary, entry)
    return summary


def _keep_first(summary: dict[str, Any], entry: Mapping[str, Any]) -> None:
    if "is_sidechain" not in summary:
        summary["is_sidechain"] = entry.get("isSidechain") is True
    timestamp, cwd = entry.get("timestamp"), entry.get("cwd")
    if (
        "created_at" not in summary
        and isinstance(timestamp, str)
        and (time := parse_milliseconds(timestamp)) is not None
    ):
        summary["created_at"] = time
    if "cwd" not in summary and isinstance(cwd, str) and cwd:
        summary["cwd"] = cwd


def _keep_tag(summary: dict[str, Any], tag: object) -> None:
    if isinstance(tag, str) and tag:
        summary["tag"] = tag
    else:
        summary.pop("tag", None)


def _keep_prompt(summary: dict[str, Any], entry: Mapping[str, Any]) -> None:
    if entry.get("type") != "user" or any(entry.get(mark) is True for mark in _UNTYPED_FLAGS):
        return
    for text in _iterate_texts(entry.get("message")):
        prompt, command = extract_prompt(text)
        if command:
            summary.setdefault("command_fallback", command)
        if prompt:
            summary.update(first_prompt=prompt, first_prompt_locked=True)
            return


def _keep_content(summary: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Keep what a list shows of a session without a typed prompt: its first pictures, or that it has messages."""
    hidden = entry.get("teamName") or any(entry.get(mark) is True for mark in ("isMeta", "isSidechain"))
    if hidden or entry.get("type") not in SPOKEN_TYPES or summary.get("content_hint", NO_PROMPT) != NO_PROMPT:
        return
    is_prompt = entry["type"] == "user" and entry.get("isCompactSummary") is not True
    parts = _list_parts(entry.get("message")) if is_prompt else []
    titles = [title if isinstance(title := part.get("title"), str) else None for part in parts]
    kinds = [str(part.get("type")) for part in parts]
    summary["content_hint"] = describe_content(zip(kinds, titles, strict=True)) or NO_PROMPT


def _iterate_texts(message: object) -> list[str]:
    parts = _list_parts(message)
    return [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]


def _list_parts(message: object) -> list[Mapping[str, Any]]:
    """Return the content blocks of a prompt; none for the result of a tool."""
    content = cast("Mapping[str, Any]", message).get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    parts = [cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, Mapping)]
    return [] if any(part.get("type") == "tool_result" for part in parts) else parts


# ruff: noqa: D102 - `StoreBackend` says what each call does


class ScopedStore(StoreBackend):
    """A part of another store, under a fixed name instead of the path of the working directory.

    Args:
        store: the inner store; `aclose` closes it too.
        project_key: the name of the part. The same name gives the same sessions, whatever the project's path.

    Raises:
        UsageError: the name is not valid.
    """

    def __init__(self, store: StoreBackend, project_key: str) -> None:
        self._store = store
        self._project = parse_key({"project_key": project_key, "session_id": "any"}).project

    def __repr__(self) -> str:
        return f"ScopedStore({self._store!r}, {self._project!r})"

    def _key(self, key: SessionKey) -> SessionKey:
        return parse_key(key)._replace(project=self._project).session_key

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        return await self._store.append(self._key(key), entries, after=after, lease=lease)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        return await self._store.load(self._key(key))

    async def count(self, key: SessionKey) -> int:
        return await self._store.count(self._key(key))

    async def list_sessions(self, project_key: str) -> list[StoredSession]:
        return await self._store.list_sessions(self._project)

    async def list_session_summaries(self, project_key: str) -> list[StoredSummary]:
        return await self._store.list_session_summaries(self._project)

    async def list_subkeys(self, key: SessionKey) -> list[str]:
        return await self._store.list_subkeys(self._key(key))

    async def delete(self, key: SessionKey) -> None:
        await self._store.delete(self._key(key))

    async def acquire(self, key: SessionKey, owner: str, ttl: float) -> Lease:
        return await self._store.acquire(self._key(key), owner, ttl)

    async def renew(self, lease: Lease, ttl: float | None = None) -> Lease:
        return await self._store.renew(lease, ttl)

    async def release(self, lease: Lease) -> None:
        await self._store.release(lease)

    async def aclose(self) -> None:
        await self._store.aclose()
