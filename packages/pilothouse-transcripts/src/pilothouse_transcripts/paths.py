"""The paths of transcripts: the configuration directory of the CLI, project directories and session files."""

from __future__ import annotations

import os
import re
import stat
import sys
import unicodedata
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from pilothouse.errors import SessionNotFoundError, UsageError

if sys.platform != "win32":
    import pwd

StrPath: TypeAlias = "str | os.PathLike[str]"

SUFFIX = ".jsonl"
MAX_KEY_CHARS = 200
"""Maximum length of a project's folder name; the rest of a longer path becomes a hash."""

_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_SESSION_NAME = re.compile(_ID.pattern + re.escape(SUFFIX), re.ASCII)
_AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
# CLAUDE_CODE_PROJECT_DIR_NAME only applies in this form, and only together with CLAUDE_CONFIG_DIR.
_EXPLICIT_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_DEVICE_NAME = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])", re.IGNORECASE)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

# A link may lead out of the folder, and opening a pipe would block forever. Some systems lack some of these flags.
_SAFE_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def find_home(env: Mapping[str, str] | None = None) -> Path:
    """Return the home directory: HOME of `env` or of this process, unless it is empty, else that of the user account.

    Args:
        env: the environment of a child.

    Raises:
        UsageError: HOME is not set, and the system does not know the user. Containers often run as such a user.
    """
    home = (env or {}).get("HOME") or os.environ.get("HOME")
    if home or sys.platform == "win32":
        return Path(home or Path.home())
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UsageError(
            f"there is no home directory: HOME is not set, and this system has no user with the id {os.getuid()};"
            " set HOME to a directory that this program can write"
        ) from None


def expand_home(path: StrPath) -> Path:
    """Return a path with the home directory in place of a leading `~`.

    Raises:
        UsageError: there is no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{os.fspath(path)!r}: there is no home directory; set HOME, or give a path without ~"
        ) from None


def get_config_directory(directory: StrPath | None = None) -> Path:
    """Return the CLI's configuration directory: `directory`, else CLAUDE_CONFIG_DIR unchanged, else `~/.claude`.

    As in the CLI, `~` in the variable is not expanded, a relative path starts at the working directory, and an empty
    one is the working directory.

    Raises:
        UsageError: there is no home directory.
    """
    found = os.environ.get("CLAUDE_CONFIG_DIR") if directory is None else os.fspath(directory)
    if found is None:
        found = str(find_home() / ".claude")
    return Path(unicodedata.normalize("NFC", found))


def get_projects_directory(directory: StrPath | None = None) -> Path:
    """Return the folder that contains one folder per project."""
    return get_config_directory(directory) / "projects"


def project_key(directory: StrPath = ".") -> str:
    """Return the name of the folder in which the CLI keeps the sessions of a working directory.

    Links are resolved; every character except ASCII letters and digits becomes a hyphen. Two directories whose paths
    differ only in such characters share a folder.
    """
    path = resolve_directory(directory)
    # JavaScript counts UTF-16 units: a character outside the basic plane becomes two hyphens.
    units = memoryview(path.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
    key = "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else "-" for unit in units)
    return key if len(key) <= MAX_KEY_CHARS else f"{key[:MAX_KEY_CHARS]}-{_hash_key(units)}"


def resolve_directory(directory: StrPath) -> str:
    """Return the real path of a directory, in the Unicode form that the CLI uses."""
    return unicodedata.normalize("NFC", os.path.realpath(directory))


def _hash_key(units: list[int]) -> str:
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    value = abs(value - 0x100000000 if value & 0x80000000 else value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def _explicit_project_key(given: StrPath | None) -> str | None:
    if given is None and "CLAUDE_CONFIG_DIR" not in os.environ:
        return None
    key = os.environ.get("CLAUDE_CODE_PROJECT_DIR_NAME", "")
    return key if _EXPLICIT_KEY.fullmatch(key) and not _DEVICE_NAME.fullmatch(key) else None


def is_session_id(text: object) -> bool:
    """Whether a value has the form of a session id; nothing else becomes part of a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def is_agent_id(text: str) -> bool:
    """Whether a text has the form of a sub-agent's id."""
    return _AGENT_ID.fullmatch(text) is not None


def find_project_directories(directory: StrPath, config_dir: StrPath | None = None) -> list[Path]:
    """Return the existing folders that may contain the sessions of a directory, the usual one first."""
    projects = get_projects_directory(config_dir)
    key = project_key(directory)
    given = _explicit_project_key(config_dir)
    found = [projects / name for name in dict.fromkeys((given or key, key)) if _is_project_directory(projects, name)]
    if len(key) > MAX_KEY_CHARS:
        # Other runtimes of the CLI hash long paths differently.
        found += [
            folder
            for folder in list_project_directories(config_dir)
            if folder.name.startswith(key[: MAX_KEY_CHARS + 1])
            and folder not in found
            and _belongs_to_project(folder, key)
        ]
    return found


def get_new_session_directory(directory: StrPath, config_dir: StrPath | None = None) -> Path:
    """Return the folder, which need not exist, in which the CLI looks for the sessions of a directory."""
    return get_projects_directory(config_dir) / (_explicit_project_key(config_dir) or project_key(directory))


def make_private_directory(folder: Path) -> None:
    """Make a folder and its parents, which only this user can read, unless they exist."""
    if not folder.exists():
        make_private_directory(folder.parent)  # `parents=True` would make the parents readable for others
        folder.mkdir(mode=0o700)


def _is_project_directory(projects: Path, name: str) -> bool:
    folder = projects / name
    if not folder.is_dir():
        return False
    # A linked folder would show the sessions of its target.
    return not folder.is_symlink() or folder.resolve().is_relative_to(projects.resolve())


def _belongs_to_project(folder: Path, key: str) -> bool:
    """Whether a session in the folder was started in a directory with this key."""
    for entry in list_session_entries(folder):
        try:
            descriptor, _ = open_file(entry.path)
        except OSError:
            continue
        try:
            found = re.search(rb'"cwd":"([^"\\]*)"', os.read(descriptor, 65536))
        finally:
            os.close(descriptor)
        if found is not None and project_key(found[1].decode("utf-8", "replace")) == key:
            return True
    return False


def list_project_directories(config_dir: StrPath | None = None) -> list[Path]:
    """Return the folders of all projects, without links, as in the CLI."""
    try:
        with os.scandir(get_projects_directory(config_dir)) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def list_session_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the session files in a folder: regular files named by a session id."""
    return [entry for entry in _list_entries(folder) if _is_session(entry)]


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_session(entry: os.DirEntry[str]) -> bool:
    return _SESSION_NAME.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)


def find_worktree_project_directories(
    directory: StrPath | None, config_dir: StrPath | None = None, *, worktrees: bool = True
) -> list[Path]:
    """Return the folders of a directory and of the other working trees of its repository; None: of all projects."""
    if directory is None:
        return list_project_directories(config_dir)
    found = find_project_directories(directory, config_dir)
    for tree in list_working_trees(directory) if worktrees else ():
        found += [folder for folder in find_project_directories(tree, config_dir) if folder not in found]
    return found


class SessionFile(Struct, frozen=True, gc=False):
    """A session file: path, id, last write in Unix seconds, size in bytes, and whether a folder lies beside it."""

    path: str
    session_id: str
    modified: float
    size: int
    has_folder: bool


def list_newest_files(
    directory: StrPath | None, config_dir: StrPath | None, *, worktrees: bool = True
) -> list[SessionFile]:
    """Return the session files of a directory, or of all, newest first. Two projects may have the same session."""
    found: list[SessionFile] = []
    for folder in find_worktree_project_directories(directory, config_dir, worktrees=worktrees):
        entries = _list_entries(folder)
        names = {entry.name for entry in entries}
        for entry in filter(_is_session, entries):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # deleted meanwhile
                continue
            session_id = entry.name[: -len(SUFFIX)]
            found.append(SessionFile(entry.path, session_id, status.st_mtime, status.st_size, session_id in names))
    return sorted(found, key=attrgetter("modified"), reverse=True)


def list_working_trees(directory: StrPath) -> list[str]:
    """Return the working trees of the git repository of a directory; empty outside a repository.

    Reads the repository's own files: git need not be installed, and nothing of an untrusted repository is executed.
    """
    here = Path(resolve_directory(directory))
    for folder in (here, *here.parents):
        common = _read_common_directory(folder / ".git")
        if common is not None:
            break
    else:
        return []
    found = [str(common.parent)] if common.name == ".git" else []
    try:
        marks = sorted((common / "worktrees").iterdir())
    except OSError:
        marks = []
    for mark in marks:
        git_file = _read_text(mark / "gitdir")
        if git_file:
            found.append(resolve_directory((mark / git_file).parent))
    return found


def _read_common_directory(git: Path) -> Path | None:
    """Return the directory shared by all working trees, from the `.git` of one of them."""
    if git.is_dir():
        return git if (git / "HEAD").exists() else None
    text = _read_text(git)
    if not text.startswith("gitdir:"):
        return None
    own = git.parent / text[len("gitdir:") :].strip()
    common = _read_text(own / "commondir")
    return (own / common).resolve() if common else own.resolve()


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def find_file(session_id: str, directory: StrPath | None, config_dir: StrPath | None = None) -> Path | None:
    """Return the file of a session, or None. If several projects have one, the newest, which is the listed one."""
    if not is_session_id(session_id):
        return None
    newest: tuple[int, Path] | None = None
    for folder in find_worktree_project_directories(directory, config_dir):
        path = folder / f"{session_id}{SUFFIX}"
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size and (newest is None or status.st_mtime_ns > newest[0]):
            newest = (status.st_mtime_ns, path)
    return newest[1] if newest else None


def require_file(session_id: str, directory: StrPath | None, config_dir: StrPath | None = None) -> Path:
    """Return the file of a session.

    Raises:
        UsageError: the id does not have the form of a session id.
        SessionNotFoundError: there is no such session.
    """
    if not is_session_id(session_id):
        raise UsageError(f"not a session id: {session_id!r:.80}")
    path = find_file(session_id, directory, config_dir)
    if path is None:
        where = get_projects_directory(config_dir) if directory is None else f"the project {os.fspath(directory)}"
        raise SessionNotFoundError(f"there is no session {session_id} in {where}")
    return path


def get_sidecar_directory(path: Path) -> Path:
    """Return the folder beside a session file, with sub-agents and the title."""
    return path.with_suffix("")


def open_file(path: StrPath, flags: int = os.O_RDONLY) -> tuple[int, int]:
    """Open a regular file, never through a link; return its descriptor and its size.

    Raises:
        OSError: the path cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, flags | _SAFE_OPEN_FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(f"not a regular file: {os.fspath(path)}")
    return descriptor, status.st_size
