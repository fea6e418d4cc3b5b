"""A configuration directory of the CLI for one child that goes on with a session from a store. Blocking.

Owns what lies in it: the transcripts, the login without what could renew it, the settings, and links to the rest of
what the user has set up. Only this user can read it, and it is gone with the child, or with this process.

A login is copied without its refresh tokens: such a token can be used once, and the child would use it up for everybody
else. What is no JSON is not copied at all, since a token may stand in it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pilothouse.errors import MessageParseError, StoreError
from pilothouse.messages.jsonline import dump_line
from pilothouse.stores.base import Entry
from pilothouse.stores.recalling import Recalled
from pilothouse.transports.private_directory import PrivateDirectory

log = logging.getLogger("pilothouse.stores")

CREDENTIALS = ".credentials.json"
STATE = ".claude.json"
SETTINGS = ("cowork_settings.json", "settings.json")
LINKED = ("CLAUDE.md", "agents", "commands", "output-styles", "plugins", "rules", "skills", "workflows")
"""What users set up and the CLI reads; it stays where it is."""
KEYCHAIN = "Claude Code-credentials"
"""Name under which the CLI keeps its login on macOS, as long as the configuration directory is the usual one."""
KEYCHAIN_SECONDS = 5.0
LOGIN_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
METADATA = "agent_metadata"
"""Type of the entry that says what stands beside the transcript of a sub-agent."""

_RENEWING = frozenset({"refreshtoken", "refreshtokenexpiresat"})


class PrivateConfig(PrivateDirectory):
    """The directory. Removed by `remove`, with this object, or with this process."""

    def make(self, env: Mapping[str, str], session: Recalled, cwd: str, owner: tuple[int, int] | None = None) -> str:
        """Make it; returns its path.

        Args:
            env: the environment of the child, which says where the user's own configuration is.
            session: what to put into it.
            cwd: the working directory of the child.
            owner: user and group that it belongs to instead of this process's own.

        Raises:
            OSError: it cannot be written; nothing is left behind.
            StoreError: an entry cannot be written as JSON; the same.
        """
        try:
            directory = Path(self._open("pilothouse-session-"))
            _copy_setup(env, directory, cwd)
            write_session(directory, session)
            if owner is not None:
                _give_to(directory, owner)
        except BaseException:
            self.remove()
            raise
        return str(directory)


def write_session(config: Path, session: Recalled, owner: tuple[int, int] | None = None) -> None:
    """Write a session where the CLI looks for it, unless it is there.

    Args:
        config: the configuration directory.
        session: what to write.
        owner: user and group that it belongs to instead of this process's own.
    """
    projects = config / "projects"
    folder = projects / session.place.project
    main = folder / f"{session.place.session}.jsonl"
    if main.exists():
        return
    _make_private(folder)
    _write_lines(main, session.entries)
    beside = folder / session.place.session
    for subpath, entries in session.subpaths.items():
        path = beside / f"{subpath}.jsonl"
        _make_private(path.parent)
        _write_lines(path, [entry for entry in entries if entry.get("type") != METADATA])
        if (told := [entry for entry in entries if entry.get("type") == METADATA]) != []:
            note = {key: value for key, value in told[-1].items() if key != "type"}
            _write(path.with_name(f"{path.stem}.meta.json"), dump_line(note))
    if owner is not None:
        _give_to(projects, owner)


def _make_private(folder: Path) -> None:
    if not folder.exists():
        _make_private(folder.parent)  # `parents=True` would let others read those
        folder.mkdir(mode=0o700)


def _write_lines(path: Path, entries: Iterable[Entry]) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for entry in entries:
                file.write(dump_line(entry) + b"\n")
    except MessageParseError as error:
        raise StoreError(f"the session store gave an entry that JSON cannot say: {error}") from error


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _give_to(directory: Path, owner: tuple[int, int]) -> None:
    for folder, _, files in os.walk(directory):
        for name in files:
            os.chown(Path(folder, name), *owner, follow_symlinks=False)
        os.chown(folder, *owner)


# What the user has set up.


def _copy_setup(env: Mapping[str, str], directory: Path, cwd: str) -> None:
    given = env.get("CLAUDE_CONFIG_DIR")
    home = env.get("USERPROFILE" if sys.platform == "win32" else "HOME") or str(Path.home())
    source = Path(cwd, given) if given is not None else Path(home, ".claude")
    login = _read(source / CREDENTIALS)
    if given is None and sys.platform == "darwin" and not any(env.get(name) for name in LOGIN_VARIABLES):
        login = _from_keychain(env) or login
    _copy_json(login, directory / CREDENTIALS, without_renewal)
    state = source / STATE if given is not None else Path(home, STATE)
    _copy_json(_read(state), directory / STATE, lambda found: _of_one_project(without_renewal(found), cwd))
    for name in SETTINGS:
        _copy_json(_read(source / name), directory / name, _for_another_place)
    for name in LINKED:
        if (source / name).exists():
            with suppress(OSError):  # Windows lets few users make links
                (directory / name).symlink_to((source / name).resolve(), target_is_directory=(source / name).is_dir())


def _read(path: Path) -> bytes | None:
    """A small file of the user; None if there is none, or if it cannot be read without waiting."""
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
    except ValueError:  # of decoding, too
        found = None
    if not isinstance(found, dict):
        log.warning("%s of the user is no JSON object, and is left out of a resumed session", path.name)
        return
    _write(path, json.dumps(change(cast("dict[str, Any]", found))).encode("ascii"))


def without_renewal(value: Any) -> Any:
    """JSON without refresh tokens, however deep they stand and however they are spelled."""
    if isinstance(value, list):
        return [without_renewal(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    return {key: without_renewal(item) for key, item in found.items() if not _renews(key)}


def _renews(key: str) -> bool:
    return key.replace("_", "").replace("-", "").lower() in _RENEWING


def _of_one_project(state: dict[str, Any], cwd: str) -> dict[str, Any]:
    """The state without what was typed and allowed in other projects."""
    projects = state.get("projects")
    if isinstance(projects, dict):
        here = {cwd, os.path.realpath(cwd)}
        found = cast("dict[str, Any]", projects)
        state["projects"] = {path: facts for path, facts in found.items() if path in here}
    return state


def _for_another_place(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings that do not send the child back to the directory that they come from."""
    env = settings.get("env")
    if isinstance(env, dict):
        variables = cast("dict[str, Any]", env)
        settings["env"] = {name: value for name, value in variables.items() if name != "CLAUDE_CONFIG_DIR"}
    return settings


def _from_keychain(env: Mapping[str, str]) -> bytes | None:
    command = ["security", "find-generic-password", "-a", env.get("USER", ""), "-w", "-s", KEYCHAIN]
    try:
        done = subprocess.run(command, capture_output=True, timeout=KEYCHAIN_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
