"""`Artifacts`: saves files of runs to object storage or to a directory.

Owns which files are saved, under which names, and how many. Knows no journal. The workspace makes patches;
`stores.objects` writes objects.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname
from uuid import uuid4

import anyio

from pilothouse.errors import ArtifactsError, StoreError, UsageError
from pilothouse.support import run_blocking, run_cancellable
from pilothouse_fleet.limits import validate_count
from pilothouse_fleet.workspaces.base import CancelCheck, RunDirectory, Workspace, make_directory_name
from pilothouse_transcripts.stores.backend import (
    find_address_secrets,
    find_setting_secrets,
    redact_address,
    remove_secrets,
)
from pilothouse_transcripts.stores.objects import ObjectBucket, describe_object_failure, open_bucket

log = logging.getLogger("pilothouse.fleet")

PATCH_NAME = "changes.patch"
MAX_BYTES = 256 * 2**20
"""Maximum total size of the files of one run."""
MAX_FILES = 1000
"""Maximum number of files of one run."""
_CHUNK_BYTES = 1 << 20  # per read
_MAX_SINGLE_PUT_BYTES = 4 << 20  # objects up to this size take one request
_MAX_LISTED_NAMES = 5  # names of skipped files in a warning
_SCHEMES = ("az", "file", "gs", "s3")


class Artifacts:
    """Which files of the run directories are saved, and where; `Run.artifacts` lists what was saved.

    Files are saved when a run is about to succeed or fail, not before a retry. They are stored under `<prefix>/<name
    of its directory>`; if the run is executed again, they are overwritten. If they cannot be saved, the run fails
    with `ArtifactsError`: its answer and directory are kept, unless the workspace has `keep="never"`. `retry_failed`
    resumes its session there and saves again. Links are neither followed nor saved, and `.git` is skipped.

    Args:
        target: `s3://bucket/prefix`, `gs://…`, `az://…` (they need the extra `objects`), `file:///directory`, the
            path of a directory, or an obstore store.
        patterns: paths relative to the run's directory: `*` and `?` match characters of one name, `**` any
            directories: `"*.log"`, `"out/*.json"`, `"**/*.png"`.
        patch: whether to save all changes as `changes.patch` for `git apply`: commits, changes and new files, except
            those that `.gitignore` names. Needs a `GitWorktree`.
        prefix: the prefix of object names.
        max_bytes: maximum total size of the files of one run; files that do not fit, or exceed 1,000 files, are
            skipped with a warning.
        config: keys, region, endpoint and more, as obstore names them; it also reads the usual environment variables.
            Never shown.
        client_options: proxies, certificates and more, as obstore names them.

    Raises:
        UsageError: neither patterns nor a patch, a pattern or prefix that leads out of the directory, or an unknown
            kind of target.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Any,
        patterns: Collection[str] = (),
        *,
        patch: bool = False,
        prefix: str = "",
        max_bytes: int = MAX_BYTES,
        config: Mapping[str, str] | None = None,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(patterns, str):
            raise UsageError("artifacts: a list of patterns, not text")
        if not patterns and not patch:
            raise UsageError("artifacts: give patterns of the files to save, or patch=True")
        for one in (*patterns, *((prefix,) if prefix else ())):
            if not one.strip() or one.startswith("/") or {".", "..", ""} & set(one.split("/")):
                raise UsageError(f"artifacts: a path without '..' that does not begin with '/', not {one!r}")
        self.patch = patch
        self._patterns = [re.sub(r"\*\*$", "**/*", one.replace("[", "[[]")) for one in patterns]
        self._prefix = f"{prefix}/" if prefix else ""
        self._max_bytes = validate_count("max_bytes", max_bytes)
        text = str(target) if isinstance(target, str) else ""
        self._secrets = (
            find_address_secrets(text) | find_setting_secrets(config or {}) if "://" in text else frozenset[str]()
        )
        self._target = _make_target(target, config or {}, client_options or {})

    async def open(self) -> None:
        """Check that the target is writable.

        Raises:
            ArtifactsError: it is not.
        """
        await run_cancellable(self._check_writable)

    def _check_writable(self, check: CancelCheck) -> None:
        name = f"{self._prefix}.pilothouse-{uuid4().hex}"
        check()
        with _translate_errors(self._secrets):
            self._target.put(name, iter((b"",)), 0)
            self._target.delete(name)

    async def save(self, key: str, run_directory: RunDirectory, workspace: Workspace) -> tuple[str, ...]:
        """Save the files of a run.

        Returns:
            The addresses of the saved files.

        Raises:
            ArtifactsError: not all files could be saved.
            WorkspaceError: the patch cannot be made.
        """
        folder = f"{self._prefix}{make_directory_name(key)}/"
        directory = await run_blocking(lambda: tempfile.TemporaryDirectory(prefix="pilothouse-"))
        try:
            patch = Path(directory.name) / PATCH_NAME
            if self.patch:
                await workspace.patch(run_directory, patch)
            return await run_cancellable(lambda check: tuple(self._save(key, folder, run_directory.path, patch, check)))
        finally:
            with anyio.CancelScope(shield=True):
                await run_blocking(directory.cleanup)

    def _save(self, key: str, folder: str, path: Path, patch: Path, check: CancelCheck) -> Iterator[str]:
        left, count = self._max_bytes, 0
        left_out: list[str] = []
        for name, file in self._list_files(path, patch, check):
            try:
                fd = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
            except OSError as error:
                log.warning("run %r: %r cannot be read: %s", key, name, error.strerror)
                continue
            with os.fdopen(fd, "rb") as opened:
                size = os.fstat(fd).st_size
                if size > left or count >= MAX_FILES:
                    left_out.append(name)
                    continue
                left, count = left - size, count + 1
                with _translate_errors(self._secrets):
                    yield self._target.put(folder + _escape_name(name), _read_chunks(opened.read, size, check), size)
        if left_out:
            shown = ", ".join(map(repr, left_out[:_MAX_LISTED_NAMES]))
            shown += ", …" if len(left_out) > _MAX_LISTED_NAMES else ""
            log.warning("run %r: %d files are not saved, because they exceed the limits: %s", key, len(left_out), shown)

    def _list_files(self, path: Path, patch: Path, check: CancelCheck) -> Iterator[tuple[str, Path]]:
        """Yield names and paths of the files to save, sorted by name; nothing that lies behind a link."""
        if patch.exists():
            yield PATCH_NAME, patch
        whole = path.resolve()
        for file in sorted({file for pattern in self._patterns for file in whole.glob(pattern)}):
            check()
            name = file.relative_to(whole)
            is_taken = self.patch and name == Path(PATCH_NAME)  # the name is reserved for the patch
            if not is_taken and ".git" not in name.parts and file.is_file() and file.resolve() == file:
                yield name.as_posix(), file


def _read_chunks(read: Callable[[int], bytes], size: int, check: CancelCheck) -> Iterator[bytes]:
    """Yield the content of a file; a file that grows meanwhile is cut at its initial size."""
    while size > 0 and (piece := read(min(size, _CHUNK_BYTES))):
        check()
        size -= len(piece)
        yield piece


def _escape_name(name: str) -> str:
    """Make a name valid for every storage: non-printable characters are percent-encoded."""
    return "".join(c if c.isprintable() else quote(c.encode("utf-8", "surrogateescape")) for c in name)


# Targets: `put` writes an object atomically and returns its address; `delete` removes one, which may be missing.


class _DirectoryTarget:
    """A local directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, chunks: Iterator[bytes], size: int) -> str:
        target = self._path.joinpath(*PurePosixPath(name).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{uuid4().hex}.new")
        try:
            with fresh.open("xb") as file:
                file.writelines(chunks)
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        return str(target)

    def delete(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class _BucketTarget:
    """An object storage; connects on first use."""

    def __init__(self, connect: Callable[[], ObjectBucket], address: str) -> None:
        self._ensure_connected = cache(connect)
        self._address = address

    def put(self, name: str, chunks: Iterator[bytes], size: int) -> str:
        bucket = self._ensure_connected()
        if size <= _MAX_SINGLE_PUT_BYTES:
            bucket.put(name, b"".join(chunks))
        else:
            bucket.stream(name, chunks)
        return self._address + name

    def delete(self, name: str) -> None:
        with suppress(Exception):  # the right to write does not imply the right to delete
            self._ensure_connected().delete([name])


def _make_target(
    target: Any, config: Mapping[str, str], client_options: Mapping[str, Any]
) -> _DirectoryTarget | _BucketTarget:
    if hasattr(target, "put_async"):
        return _BucketTarget(lambda: ObjectBucket(target, None), "")
    if not isinstance(target, str | os.PathLike):
        raise UsageError(f"artifacts: a URL, a path, or a store of obstore, not {type(target).__name__}")
    text = str(target)  # pyright: ignore[reportUnknownArgumentType]
    if "://" not in text:
        return _DirectoryTarget(Path(text).absolute())
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES:
        raise UsageError(f"artifacts: one of {', '.join(f'{one}://' for one in _SCHEMES)}, not {parts.scheme}://")
    if parts.scheme == "file":
        return _DirectoryTarget(Path(url2pathname(parts.path)))
    return _BucketTarget(lambda: open_bucket(text, config, client_options), redact_address(text).rstrip("/") + "/")


@contextmanager
def _translate_errors(secrets: Collection[str]) -> Generator[None]:
    """Convert storage errors to `ArtifactsError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreError):
            text = str(error)
        elif isinstance(error, OSError) and error.filename:
            text = f"{error.filename}: {error.strerror}"
        else:
            text = str(error) if isinstance(error, OSError) else None
            with suppress(ImportError):
                text = describe_object_failure(error)
        if text is None:
            raise
        raise ArtifactsError(f"artefacts cannot be saved: {remove_secrets(secrets, text)}") from error
