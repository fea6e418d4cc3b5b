"""Reads a session from a store and writes it to a private configuration directory, where the CLI resumes it."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import anyio

from pilothouse.callbacks import is_failure
from pilothouse.errors import MessageParseError, PilothouseError, StoreError
from pilothouse.support import encode_json
from pilothouse.transports.private_files import PrivateDirectory
from pilothouse_transcripts.paths import find_home, is_session_id, make_private_directory
from pilothouse_transcripts.stores.base import Entry, SessionStore, TranscriptKey, implements

log = logging.getLogger("pilothouse.stores")

T = TypeVar("T")


class RestoredSession(NamedTuple):
    """A session as a store has it.

    Attributes:
        transcript: the key of its main transcript.
        entries: entries of the main transcript.
        subpaths: entries of its sub-agents, by subpath.
    """

    transcript: TranscriptKey
    entries: list[Entry]
    subpaths: Mapping[str, list[Entry]]


class StoreReader:
    """Reads one store. Calls raise `StoreError` if the store fails, or gives no response within `timeout` seconds."""

    def __init__(self, store: SessionStore, timeout: float) -> None:
        self._store: Any = store
        self._timeout = timeout

    async def read_session(self, transcript: TranscriptKey) -> RestoredSession | None:
        """Return the whole session; None if the store does not have it."""
        entries = await self.read_entries(transcript)
        if not entries:
            return None
        subpaths: dict[str, list[Entry]] = {}
        if implements(self._store, "list_subkeys"):
            for subpath in await self.call(self._store.list_subkeys(transcript.session_key), "list_subkeys()"):
                if not is_safe_subpath(subpath):
                    log.warning(
                        "session %s: the store has a path outside of it, %r; it is left out", transcript[1], subpath
                    )
                elif found := await self.read_entries(transcript._replace(subpath=subpath)):
                    subpaths[subpath] = found
        return RestoredSession(transcript, entries, subpaths)

    async def find_latest(self, project: str) -> TranscriptKey | None:
        """Return the session of a project with the last write, without sub-agents."""
        for session_id in await self.list_sessions(project):
            entries = await self.read_entries(TranscriptKey(project, session_id))
            if entries and entries[0].get("isSidechain") is not True:
                return TranscriptKey(project, session_id)
        return None

    async def list_sessions(self, project: str) -> dict[str, int]:
        """Return the session ids of a project, newest first, with the time of each last write."""
        rows = await self.call(self._store.list_sessions(project), "list_sessions()")
        try:
            found = {str(row["session_id"]): int(row["mtime"]) for row in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the session store gave something else than rows in list_sessions(): {error!r}") from None
        return {name: found[name] for name in sorted(found, key=lambda name: -found[name]) if is_session_id(name)}

    async def read_entries(self, transcript: TranscriptKey) -> list[Entry]:
        """Return the entries of one transcript; empty if the store has none."""
        found = await self.call(self._store.load(transcript.session_key), f"load() of session {transcript.session}")
        if found is not None and not isinstance(found, list | tuple):
            raise StoreError(f"the session store gave {type(found).__name__} in load(); expected a list of entries")
        entries: list[Entry] = []
        for number, entry in enumerate(cast("list[object]", found or []), 1):
            if isinstance(entry, dict):
                entries.append(cast("Entry", entry))
            else:
                log.warning(
                    "session %s in the store: entry %d is not an object; it is left out", transcript.session, number
                )
        return entries

    async def call(self, awaitable: Awaitable[T], name: str) -> T:
        """Await a call of the store and return its result; `name` is the call's name in errors."""
        return await call_store(awaitable, name, self._timeout, " (option load_timeout)")


async def call_store(awaitable: Awaitable[T], name: str, seconds: float, hint: str = "") -> T:
    """Await a call of a store for at most `seconds` and return its result.

    Raises:
        StoreError: the store failed, or did not respond; `hint` follows the time.
    """
    try:
        with anyio.fail_after(seconds):
            return await awaitable
    except PilothouseError:
        raise
    except TimeoutError:
        raise StoreError(f"the session store did not answer {name} within {seconds:g} s{hint}") from None
    except BaseException as error:  # stores are user code
        if not is_failure(error):
            raise
        raise StoreError(f"the session store failed in {name}: {type(error).__name__}: {error}") from error


def is_safe_subpath(subpath: object) -> bool:
    """Whether a subpath stays inside the folder of its session, on every system."""
    if not isinstance(subpath, str) or any(c in subpath for c in "\\\0:") or not subpath.isprintable():
        return False
    return all(part not in ("", ".", "..") for part in subpath.split("/")) and not Path(subpath).is_absolute()


CREDENTIALS_FILE = ".credentials.json"
STATE_FILE = ".claude.json"
SETTINGS_FILES = ("cowork_settings.json", "settings.json")
LINKED_NAMES = ("CLAUDE.md", "agents", "commands", "output-styles", "plugins", "rules", "skills", "workflows")
"""User configuration that the CLI reads; it stays where it is and is linked."""
KEYCHAIN_SERVICE = "Claude Code-credentials"
"""The CLI's name for its login in the macOS keychain, with the default configuration directory."""
KEYCHAIN_SECONDS = 5.0
LOGIN_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
METADATA_TYPE = "agent_metadata"
"""Type of the entry with the content of the metadata file beside a sub-agent's transcript."""

_REFRESH_TOKEN_KEYS = frozenset({"refreshtoken", "refreshtokenexpiresat"})


class SessionConfigDirectory(PrivateDirectory):
    """The private directory. Removed by `remove`, with this object, or with this process."""

    def make(
        self, env: Mapping[str, str], session: RestoredSession, cwd: str, owner: tuple[int, int] | None = None
    ) -> str:
        """Create the directory and return its path; `env` locates the user's own configuration.

        Raises:
            OSError, StoreError: the directory, or an entry, cannot be written; nothing is left behind.
        """
        try:
            directory = Path(self.create("pilothouse-session-"))
            _copy_setup(env, directory, cwd)
            write_session(directory, session)
            if owner is not None:
                _change_owner(directory, owner)
        except BaseException:
            self.remove()
            raise
        return str(directory)


def write_session(config: Path, session: RestoredSession, owner: tuple[int, int] | None = None) -> None:
    """Write a session where the CLI looks for it, unless it exists; `owner` is the user and group of the files."""
    projects = config / "projects"
    folder = projects / session.transcript.project
    main = folder / f"{session.transcript.session}.jsonl"
    if main.exists():
        return
    make_private_directory(folder)
    _write_lines(main, session.entries)
    beside = folder / session.transcript.session
    for subpath, entries in session.subpaths.items():
        path = beside / f"{subpath}.jsonl"
        make_private_directory(path.parent)
        _write_lines(path, [entry for entry in entries if entry.get("type") != METADATA_TYPE])
        if notes := [entry for entry in entries if entry.get("type") == METADATA_TYPE]:
            note = {key: value for key, value in notes[-1].items() if key != "type"}
            _write_private_file(path.with_name(f"{path.stem}.meta.json"), encode_json(note))
    if owner is not None:
        _change_owner(projects, owner)


def _write_lines(path: Path, entries: Iterable[Entry]) -> None:
    try:
        with _create_private_file(path) as file:
            file.writelines(encode_json(entry) + b"\n" for entry in entries)
    except MessageParseError as error:
        raise StoreError(f"the session store returned an entry that JSON cannot represent: {error}") from error


def _create_private_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _write_private_file(path: Path, content: bytes) -> None:
    with _create_private_file(path) as file:
        file.write(content)


def _change_owner(directory: Path, owner: tuple[int, int]) -> None:
    for folder, _, files in os.walk(directory):
        for name in files:
            os.chown(Path(folder, name), *owner, follow_symlinks=False)
        os.chown(folder, *owner)


# User configuration.


def _copy_setup(env: Mapping[str, str], directory: Path, cwd: str) -> None:
    given = env.get("CLAUDE_CONFIG_DIR")
    home = env.get("USERPROFILE") or str(Path.home()) if sys.platform == "win32" else str(find_home(env))
    source = Path(cwd, given) if given is not None else Path(home, ".claude")
    login = _read_small_file(source / CREDENTIALS_FILE)
    if given is None and sys.platform == "darwin" and not any(env.get(name) for name in LOGIN_VARIABLES):
        login = _read_keychain(env) or login
    _copy_json(login, directory / CREDENTIALS_FILE, strip_refresh_tokens)
    state = source / STATE_FILE if given is not None else Path(home, STATE_FILE)
    _copy_json(
        _read_small_file(state),
        directory / STATE_FILE,
        lambda found: _keep_one_project(strip_refresh_tokens(found), cwd),
    )
    for name in SETTINGS_FILES:
        _copy_json(_read_small_file(source / name), directory / name, _drop_config_redirects)
    for name in LINKED_NAMES:
        if (source / name).exists():
            with suppress(OSError):  # on Windows few users may create links
                (directory / name).symlink_to((source / name).resolve(), target_is_directory=(source / name).is_dir())


def _read_small_file(path: Path) -> bytes | None:
    """Read a small file of the user; None if it does not exist or reading might block."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("not a regular file")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s is left out of the configuration of a resumed session: %s", path, error.strerror or error)
        return None


def _copy_json(content: bytes | None, path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if content is None:
        return
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except ValueError:  # also from decoding
        found = None
    if not isinstance(found, dict):
        log.warning("%s of the user is not a JSON object, and is left out of a resumed session", path.name)
        return
    _write_private_file(path, json.dumps(change(cast("dict[str, Any]", found))).encode("ascii"))


def strip_refresh_tokens(value: Any) -> Any:
    """Remove refresh tokens from JSON, at any depth and in any spelling."""
    if isinstance(value, list):
        return [strip_refresh_tokens(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value).items()
    plain = str.maketrans("", "", "_-")
    return {k: strip_refresh_tokens(v) for k, v in found if k.translate(plain).lower() not in _REFRESH_TOKEN_KEYS}


def _keep_one_project(state: dict[str, Any], cwd: str) -> dict[str, Any]:
    """Remove what was typed and allowed in other projects from the state."""
    projects = state.get("projects")
    if isinstance(projects, dict):
        here = {cwd, os.path.realpath(cwd)}
        found = cast("dict[str, Any]", projects)
        state["projects"] = {path: facts for path, facts in found.items() if path in here}
    return state


def _drop_config_redirects(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove settings that would send the process back to the original directory."""
    env = settings.get("env")
    if isinstance(env, dict):
        variables = cast("dict[str, Any]", env)
        settings["env"] = {name: value for name, value in variables.items() if name != "CLAUDE_CONFIG_DIR"}
    return settings


def _read_keychain(env: Mapping[str, str]) -> bytes | None:
    command = ["security", "find-generic-password", "-a", env.get("USER", ""), "-w", "-s", KEYCHAIN_SERVICE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=KEYCHAIN_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
