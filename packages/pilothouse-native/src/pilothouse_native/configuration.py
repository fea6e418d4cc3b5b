"""The configuration of the engine: settings files and CLAUDE.md.

Owns the meaning of each key; `flags` has those of the command line. Files of a repository may
restrict, but grant nothing. Reads files, blocking.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pilothouse_native.flags import EngineArguments
from pilothouse_native.settings_mistakes import find_mistakes, find_unenforced, take_known
from pilothouse_native.wire import JsonObject, as_list, as_object

_GRANTING_KEYS: Final = ("allow", "additionalDirectories", "defaultMode")
MEMORY_BYTES: Final = 256 * 1024
"""Size limit of one CLAUDE.md; the rest is cut off."""
SETTINGS_BYTES: Final = 1024 * 1024
"""Size limit of a settings file; a larger one is not read."""


# Variables that decide what programs run, load or connect to: never taken from settings.
_STEERING = (
    "ALL_PROXY BASH_ENV BROWSER CC CDPATH CXX EDITOR ENV GLOBIGNORE GOFLAGS GREP_OPTIONS HOME HTTPS_PROXY HTTP_PROXY "
    "IFS KUBECONFIG LESSCLOSE LESSOPEN MAKEFLAGS MAKEFILES MANPAGER NODE_OPTIONS NODE_PATH PAGER PATH PROMPT_COMMAND "
    "PS1 PS4 RUSTC_WRAPPER RUSTFLAGS SHELL SHELLOPTS SSH_ASKPASS SUDO_ASKPASS TMPDIR VISUAL ZDOTDIR"
)
_STEERING_NAMES: Final = frozenset(_STEERING.split())
_PREFIXES = (
    "ANTHROPIC_ BASH_FUNC_ BASHOPTS CARGO_ CLAUDE_ DOCKER_ DYLD_ GIT_ LD_ NPM_CONFIG_ PERL PILOTHOUSE_ PIP_ PYTHON "
    "RIPGREP_ RUBY UV_ XDG_"
)
_STEERING_PREFIXES: Final = tuple(_PREFIXES.split())
_SUFFIXES = "_BASE_URL _CA_BUNDLE _CERT_FILE _EXTRA_CA_CERTS _JAVA_OPTIONS _TOOL_OPTIONS"
_STEERING_SUFFIXES: Final = tuple(_SUFFIXES.split())


class EngineSettings(Struct):
    """The merged settings of all sources. The API client does not use their `env`, which is for commands."""

    allow: list[str] = field(default_factory=list[str])
    ask: list[str] = field(default_factory=list[str])
    deny: list[str] = field(default_factory=list[str])
    directories: list[str] = field(default_factory=list[str])
    permission_mode: str | None = None
    model: str | None = None
    effort: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    sources: list[JsonObject] = field(default_factory=list[JsonObject])
    """The sources in the form of the CLI, with what the engine has of their settings."""
    errors: list[JsonObject] = field(default_factory=list[JsonObject])
    """What it cannot read in settings files, in the form of the CLI."""

    def add_error(self, file: str, place: str, message: str) -> None:
        """Add what is wrong in a settings file."""
        self.errors.append({"file": file, "path": place, "message": message})
        self.problems.append(f"{file}: {place}: {message}" if place else f"{file}: {message}")

    def add_source(self, values: Mapping[str, Any], name: str, source: str, *, grants: bool = True) -> None:
        """Add one source, which is `source` for the CLI; later ones override earlier ones.

        A source without `grants` may only deny, ask, and choose model and effort.
        """
        if values:
            self.sources.append({"source": source, "settings": take_known(values)})
        permissions: Mapping[str, Any] = as_object(values.get("permissions"))
        self.ask += _get_texts(permissions.get("ask"))
        self.deny += _get_texts(permissions.get("deny"))
        self.model = _get_text(values, "model") or self.model
        self.effort = _get_text(values, "effortLevel") or self.effort
        if grants:
            self._add_granted(permissions, as_object(values.get("env")), name)
            return
        without = [f"permissions.{key}" for key in _GRANTING_KEYS if permissions.get(key)]
        without += ["env"] if values.get("env") else []
        if without:
            names = ", ".join(without)
            self.problems.append(f"{name}: {names} without effect: a file of a repository grants nothing")

    def _add_granted(self, permissions: Mapping[str, Any], env: Mapping[str, Any], name: str) -> None:
        self.allow += _get_texts(permissions.get("allow"))
        self.directories += _get_texts(permissions.get("additionalDirectories"))
        self.permission_mode = _get_text(permissions, "defaultMode") or self.permission_mode
        steering = [variable for variable in env if is_steering_variable(variable)]
        self.env |= {variable: str(value) for variable, value in env.items() if variable not in steering}
        if steering:
            names = ", ".join(sorted(steering))
            self.problems.append(f"{name}: env: {names} without effect: give such variables to the program itself")


def is_steering_variable(variable: str) -> bool:
    """Whether a variable decides what programs run or load, or where requests and keys are sent."""
    name = variable.upper()
    return (
        name in _STEERING_NAMES
        or name.startswith(_STEERING_PREFIXES)
        or name.endswith(_STEERING_SUFFIXES)
        or not name.isidentifier()
    )


def _get_texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [each for each in as_list(value) if isinstance(each, str)]


def _get_text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def read_settings(arguments: EngineArguments, cwd: Path, config_dir: Path) -> EngineSettings:
    """Read the settings for a launch: user, project, local, and then those of the flags."""
    found = EngineSettings()
    files = {
        "user": config_dir / "settings.json",
        "project": cwd / ".claude" / "settings.json",
        "local": cwd / ".claude" / "settings.local.json",
    }
    for source, path in files.items():
        if source in arguments.setting_sources and not arguments.bare:
            try:
                values = json.loads(_read_settings_file(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError, RecursionError) as error:
                found.add_error(str(path), "", str(error))
                continue
            if not isinstance(values, dict):
                found.add_error(str(path), "", "not a JSON object")
            for place, message in find_mistakes(as_object(values)):
                found.add_error(str(path), place, message)
            if unenforced := ", ".join(find_unenforced(as_object(values))):
                found.problems.append(f"{path}: {unenforced} without effect: the native engine has nothing like it")
            found.add_source(as_object(values), str(path), f"{source}Settings", grants=source == "user")
    found.add_source(arguments.settings, "--settings", "flagSettings")
    found.allow += arguments.allowed_tools
    found.deny += arguments.disallowed_tools
    found.directories += arguments.add_dir
    found.permission_mode = arguments.mode or found.permission_mode
    return found


def _read_settings_file(path: Path) -> str:
    """Read a settings file. A repository may hold a link to a device that never ends."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > SETTINGS_BYTES:
        raise ValueError(f"not a file of at most {SETTINGS_BYTES:,} bytes")
    return path.read_text("utf-8")


def read_memory(sources: Sequence[str], cwd: Path, config_dir: Path) -> list[tuple[Path, str]]:
    """Read CLAUDE.md: the user's, and those of the directory and its parents, from the top down."""
    own = config_dir / "CLAUDE.md"
    paths = {
        "user": [own],
        "project": [folder / "CLAUDE.md" for folder in reversed((cwd, *cwd.parents))],
        "local": [cwd / "CLAUDE.local.md"],
    }
    return [
        (path, text)
        for source, found in paths.items()
        for path in found
        if source in sources and (path == own or _is_inside_tree(path, cwd)) and (text := _read_memory_file(path))
    ]


def _is_inside_tree(path: Path, cwd: Path) -> bool:
    """Whether a file is where it seems to be: a link in a repository must not expose another file to the model."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in (path.parent, cwd))


def _read_memory_file(path: Path) -> str:
    try:
        if not path.is_file():  # opening a pipe would block until there is a writer
            return ""
        with path.open("rb") as file:
            return file.read(MEMORY_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
