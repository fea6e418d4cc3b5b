"""Settings files and CLAUDE.md, as far as the engine has a use for them. Blocking, short.

Owns which files there are and which keys of them count: permissions, environment, model. Command hooks, plugins and
the rest of the CLI's settings are not carried out; `unused` names what stood there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pilothouse.native.launch import Launch
from pilothouse.native.shapes import mapping

USED: Final = frozenset({"$schema", "permissions", "env", "model", "effortLevel"})
_LISTS: Final = ("allow", "ask", "deny", "additionalDirectories")
MEMORY: Final = ("CLAUDE.md", "CLAUDE.local.md")
MEMORY_BYTES: Final = 256 * 1024
"""Of one CLAUDE.md; more is cut."""


class Settings(Struct):
    """What settings come to, all sources together.

    Attributes:
        allow, ask, deny: permission rules.
        directories: additional directories.
        mode: the mode that a session begins with.
        env: variables for commands, over those of the process.
        unused: keys that have no effect here.
        problems: files that could not be read.
    """

    allow: list[str] = field(default_factory=list[str])
    ask: list[str] = field(default_factory=list[str])
    deny: list[str] = field(default_factory=list[str])
    directories: list[str] = field(default_factory=list[str])
    mode: str | None = None
    model: str | None = None
    effort: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    unused: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])

    def take(self, told: Mapping[str, Any], *, trusted: bool = True) -> None:
        """Add one source; later ones win. What a repository carries may not switch permissions off."""
        permissions: Mapping[str, Any] = mapping(told.get("permissions"))
        for name, into in zip(_LISTS, (self.allow, self.ask, self.deny, self.directories), strict=True):
            into += [str(rule) for rule in permissions.get(name) or ()]
        mode = permissions.get("defaultMode")
        if isinstance(mode, str) and (trusted or mode != "bypassPermissions"):
            self.mode = mode
        self.env |= {str(name): str(value) for name, value in mapping(told.get("env")).items()}
        self.model = told.get("model") or self.model
        self.effort = told.get("effortLevel") or self.effort
        self.unused |= set(told) - USED


def settings_of(launch: Launch, cwd: Path, config_dir: Path) -> Settings:
    """Read the settings that a launch asks for: user, project, local, and then those of the flags."""
    found = Settings()
    files = {
        "user": config_dir / "settings.json",
        "project": cwd / ".claude" / "settings.json",
        "local": cwd / ".claude" / "settings.local.json",
    }
    for source, path in files.items():
        if source in launch.setting_sources and not launch.bare:
            _read(path, found, trusted=source == "user")
    found.take(launch.settings)
    found.allow += launch.allowed
    found.deny += launch.disallowed
    found.directories += launch.add_dirs
    found.mode = launch.permission_mode or found.mode
    return found


def _read(path: Path, found: Settings, *, trusted: bool) -> None:
    try:
        told = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        found.problems.append(f"{path}: {error}")
        return
    found.take(mapping(told), trusted=trusted)


def memory(sources: Sequence[str], cwd: Path, config_dir: Path) -> list[tuple[Path, str]]:
    """The texts of CLAUDE.md: the user's, and those of the directory and of the ones above it, from the top down."""
    return [(path, text) for path in _memory_files(sources, cwd, config_dir) if (text := _text(path))]


def _memory_files(sources: Sequence[str], cwd: Path, config_dir: Path) -> Iterator[Path]:
    if "user" in sources:
        yield config_dir / MEMORY[0]
    for folder in reversed((cwd, *cwd.parents)) if "project" in sources else ():
        yield folder / MEMORY[0]
    if "local" in sources:
        yield cwd / MEMORY[1]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MEMORY_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
