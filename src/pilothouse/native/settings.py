"""Settings files and CLAUDE.md, as far as the engine has a use for them. Blocking, short.

Owns which files there are and which keys of them count: permissions, variables for commands, model, effort. The files
of a repository may restrict, and permit nothing before the program trusts the directory. Command hooks, plugins and
the rest of the CLI's settings are not carried out, whoever says them; `unused` names what stood there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pilothouse.native.launch import Launch
from pilothouse.native.shapes import items, mapping
from pilothouse.trust_store import is_trusted_directory, is_trusted_here

USED: Final = frozenset({"$schema", "permissions", "env", "model", "effortLevel"})
_PERMITTING: Final = ("allow", "additionalDirectories", "defaultMode")
MEMORY: Final = ("CLAUDE.md", "CLAUDE.local.md")
MEMORY_BYTES: Final = 256 * 1024
"""Of one CLAUDE.md; more is cut."""


# Variables that decide what programs run, load or ask: from the environment of the program alone, never from settings.
_STEERING = (
    "ALL_PROXY BASH_ENV BROWSER CC CDPATH CXX EDITOR ENV GLOBIGNORE GOFLAGS GREP_OPTIONS HOME HTTPS_PROXY HTTP_PROXY "
    "IFS KUBECONFIG LESSCLOSE LESSOPEN MAKEFLAGS MAKEFILES MANPAGER NODE_OPTIONS NODE_PATH PAGER PATH PROMPT_COMMAND "
    "PS1 PS4 RUSTC_WRAPPER RUSTFLAGS SHELL SHELLOPTS SSH_ASKPASS SUDO_ASKPASS TMPDIR VISUAL ZDOTDIR"
)
_STEERING_NAMES: Final = frozenset(_STEERING.split())
_BEGINNINGS = (
    "ANTHROPIC_ BASH_FUNC_ BASHOPTS CARGO_ CLAUDE_ DOCKER_ DYLD_ GIT_ LD_ NPM_CONFIG_ PERL PILOTHOUSE_ PIP_ PYTHON "
    "RIPGREP_ RUBY UV_ XDG_"
)
_STEERING_BEGINNINGS: Final = tuple(_BEGINNINGS.split())
_STEERING_ENDINGS: Final = (
    "_BASE_URL",
    "_CA_BUNDLE",
    "_CERT_FILE",
    "_EXTRA_CA_CERTS",
    "_JAVA_OPTIONS",
    "_TOOL_OPTIONS",
)


class Settings(Struct):
    """What settings come to, all sources together.

    Attributes:
        allow, ask, deny: permission rules.
        directories: additional directories.
        mode: the mode that a session begins with.
        env: variables for commands, over those of the process. The client does not see them.
        unused: keys that have no effect here.
        problems: files that could not be read, and what of the others does not hold.
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

    def take(self, told: Mapping[str, Any], name: str, *, trusted: bool = True) -> None:
        """Add one source; later ones win.

        Args:
            told: what it says.
            name: what it is called, for `problems`.
            trusted: whether it may permit something. Otherwise it may deny, ask, and choose model and effort.
        """
        permissions: Mapping[str, Any] = mapping(told.get("permissions"))
        self.ask += _texts(permissions.get("ask"))
        self.deny += _texts(permissions.get("deny"))
        self.model = _text_in(told, "model") or self.model
        self.effort = _text_in(told, "effortLevel") or self.effort
        self.unused |= set(told) - USED
        if trusted:
            self._permit(permissions, mapping(told.get("env")), name)
            return
        without = [f"permissions.{key}" for key in _PERMITTING if permissions.get(key)]
        without += ["env"] if told.get("env") else []
        if without:
            self.problems.append(
                f"{name}: {', '.join(without)} without effect: the program does not trust the directory"
            )

    def _permit(self, permissions: Mapping[str, Any], env: Mapping[str, Any], name: str) -> None:
        self.allow += _texts(permissions.get("allow"))
        self.directories += _texts(permissions.get("additionalDirectories"))
        self.mode = _text_in(permissions, "defaultMode") or self.mode
        steering = [variable for variable in env if is_steering(variable)]
        self.env |= {variable: str(value) for variable, value in env.items() if variable not in steering}
        if steering:
            told = (
                f"{name}: env: {', '.join(sorted(steering))} without effect: give such variables to the program itself"
            )
            self.problems.append(told)


def is_steering(variable: str) -> bool:
    """Whether a variable decides what programs run or load, or where requests and keys go."""
    name = variable.upper()
    return (
        name in _STEERING_NAMES
        or name.startswith(_STEERING_BEGINNINGS)
        or name.endswith(_STEERING_ENDINGS)
        or not name.isidentifier()
    )


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [each for each in items(value) if isinstance(each, str)]


def _text_in(told: Mapping[str, Any], key: str) -> str | None:
    value = told.get(key)
    return value if isinstance(value, str) else None


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
            _read(path, found, trusted=path == files["user"] or is_trusted_directory(cwd) or is_trusted_here(str(path)))
    found.take(launch.settings, "--settings")
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
    found.take(mapping(told), str(path), trusted=trusted)


def memory(sources: Sequence[str], cwd: Path, config_dir: Path) -> list[tuple[Path, str]]:
    """The texts of CLAUDE.md: the user's, and those of the directory and of the ones above it, from the top down."""
    own = config_dir / MEMORY[0]
    return [
        (path, text)
        for path in _memory_files(sources, cwd, config_dir)
        if (path == own or _stays(path, cwd)) and (text := _text(path))
    ]


def _memory_files(sources: Sequence[str], cwd: Path, config_dir: Path) -> Iterator[Path]:
    if "user" in sources:
        yield config_dir / MEMORY[0]
    for folder in reversed((cwd, *cwd.parents)) if "project" in sources else ():
        yield folder / MEMORY[0]
    if "local" in sources:
        yield cwd / MEMORY[1]


def _stays(path: Path, cwd: Path) -> bool:
    """Whether a file is where it seems to be: a link of a repository must not hand another file to the model."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in (path.parent, cwd))


def _text(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe would wait for a writer
            return ""
        with path.open("rb") as file:
            return file.read(MEMORY_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
