"""A bucket: the few things that an object storage has to do for us, over obstore.

Owns compare-and-swap, also for a directory, which obstore cannot swap in, and the clock of the storage. The one file
that knows obstore, which is imported when a store connects. Knows nothing of sessions.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pilothouse.errors import StoreError, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Storage

CONNECT_LIMIT = 10  # seconds
ANSWER_LIMIT = 60
"""Seconds for one request, its repetitions included."""
_RETRIES = 4
_SWAP = "this service knows no conditional writes, so two hosts could overwrite each other's; use another"

_ADVICE = {
    "No space left on device": "the disk is full; nothing was written. Make room, then try again",
    "Read-only file system": "it can be read only; nothing was written",
    "Permission denied": "you are not allowed to write there; make the directory yours",
    "NoSuchBucket": "there is no such bucket; create it first",
    "SlowDown": "the service asks for fewer requests; try again later",
    "error sending request": "the service cannot be reached; look at the address and the network, then try again",
}
"""By what stands in the error."""


_first_used_in: dict[str, int] = {}  # the process in which obstore was first used here: its threads are there


class Found(NamedTuple):
    """An object, and which version of it this is."""

    data: bytes
    version: dict[str, str]


class Listed(NamedTuple):
    """A row of a list: the last part of the path, bytes, time of the last write in milliseconds since 1970, version."""

    name: str
    size: int
    mtime: int
    etag: str


class Bucket:
    """Objects by path.

    Args:
        storage: obstore's.
        lock: for a directory, the file by which its writers take turns.
    """

    def __init__(self, storage: Storage, lock: Path | None) -> None:
        self._storage = storage
        self._lock = lock

    def get(self, path: str) -> Found | None:
        """Give an object, None if there is none."""
        import obstore

        try:
            got = obstore.get(self._storage, path)
            return Found(bytes(got.bytes()), _version(got.meta))
        except FileNotFoundError:
            return None

    def beginning(self, path: str, size: int, wanted: int) -> bytes | None:
        """Give the first bytes of an object of this size; None if it is gone."""
        import obstore

        with suppress(FileNotFoundError):
            return bytes(obstore.get_range(self._storage, path, start=0, length=min(size, wanted)))
        return None

    def put(self, path: str, data: bytes) -> None:
        """Write an object, be there one or not."""
        import obstore

        obstore.put(self._storage, path, data, use_multipart=False)

    def stream(self, path: str, chunks: Iterator[bytes]) -> None:
        """Write an object piece by piece; if a piece raises, nothing is written."""
        import obstore

        obstore.put(self._storage, path, chunks)

    def swap(self, path: str, data: bytes, version: dict[str, str] | None) -> bool:
        """Write an object if it is still of this version, or if there is none (None); say whether it was written."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._lock is not None and version is not None:
            return self._swap_file(path, data, version)
        try:
            mode: Any = "create" if version is None else version
            obstore.put(self._storage, path, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError:
            if version is None:  # it is the bucket that is not there
                raise
            return False
        except NotImplementedError as error:
            raise StoreError(_SWAP) from error
        return True

    def _swap_file(self, path: str, data: bytes, version: dict[str, str]) -> bool:
        import obstore

        assert self._lock is not None
        with _locked(self._lock):
            try:
                if _version(obstore.head(self._storage, path)) != version:
                    return False
            except FileNotFoundError:
                return False
            self.put(path, data)
            return True

    def list(self, prefix: str) -> Iterator[Listed]:
        """Give what lies right below a path."""
        import obstore

        for rows in cast("Any", obstore).list(self._storage, prefix, chunk_size=1000):
            for row in rows:
                mtime = int(row["last_modified"].timestamp() * 1000)
                yield Listed(row["path"].rpartition("/")[2], row["size"], mtime, row["e_tag"] or "")

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; those that are not there are no error."""
        import obstore

        for path in paths:
            with suppress(FileNotFoundError):
                obstore.delete(self._storage, path)

    def now(self) -> float:
        """The time by the clock of the storage, in seconds since 1970: that of an object written just now.

        Services tell whole seconds, rounded down.
        """
        import obstore

        self.put("clock", b"")
        return obstore.head(self._storage, "clock")["last_modified"].timestamp()

    def check_swaps(self, path: str, data: bytes) -> bool:
        """Make an object if it is not there yet; say whether it was made.

        Raises:
            StoreError: the service ignores the conditions of a write.
        """
        was_made = self.swap(path, data, None)
        if (was_made and self.swap(path, data, None)) or self.swap(path, data, {"e_tag": '"another"', "version": "1"}):
            raise StoreError(_SWAP)
        return was_made


def open_bucket(url: str, config: Mapping[str, str], client_options: Mapping[str, Any]) -> Bucket:
    """Open the bucket, or make the directory, at a URL."""
    try:
        from obstore import store
    except ImportError as error:
        raise StoreError("an object storage needs obstore: pip install 'pilothouse[objects]'") from error
    if _first_used_in.setdefault("process", os.getpid()) != os.getpid():
        raise StoreError(
            "this process was forked from one that had used an ObjectStore, and obstore does not work in a fork. Start "
            "processes by `spawn` or `forkserver`."
        )
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return Bucket(store.MemoryStore(), None)
    if parts.scheme == "file":
        directory = Path(url2pathname(parts.path))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Bucket(store.LocalStore(directory), directory / "lock")
    limits = {"connect_timeout": f"{CONNECT_LIMIT}s", "timeout": f"{ANSWER_LIMIT}s"}
    if config.get("endpoint", config.get("aws_endpoint", "")).startswith("http://"):
        limits["allow_http"] = "true"
    opened = store.from_url(
        url,
        config=cast("Any", {**config}),
        client_options=cast("Any", {**limits, **client_options}),
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=ANSWER_LIMIT)},
    )
    return Bucket(opened, None)


def failure_of(error: Exception) -> str | None:
    """What to tell about an error of obstore, and what to do; None for an error that is none of its own."""
    from obstore import exceptions

    said = " ".join(str(error).partition("\n\nDebug source:")[0].split())
    advice = next((text for part, text in _ADVICE.items() if part in str(error)), None)
    if isinstance(error, exceptions.UnauthenticatedError | exceptions.PermissionDeniedError):
        advice = advice or "the service refused the login; check the keys and what they may do"
    if isinstance(error, FileNotFoundError):
        advice = advice or "there is no such bucket; create it first"
    if isinstance(error, exceptions.BaseError | OSError):
        return f"{advice} ({said})" if advice else said
    return None


def check_url(url: str) -> None:
    """Refuse what is no URL. Raises `UsageError`."""
    if not urlsplit(url).scheme or "://" not in url:
        raise UsageError("an ObjectStore needs a URL: s3://bucket/prefix, gs://…, az://…, file:///directory, memory://")


def _version(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Wait for our turn. The system gives the lock back when its holder dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            msvcrt.locking(fd, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
