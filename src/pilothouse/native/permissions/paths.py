"""Where a path really leads, and whether tools may go there without asking.

Owns the working directories, the names of guarded files and what is said about a path. Looks at the disk only to
resolve links; opens nothing. Knows no mode.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pilothouse.native.permissions.rules import Rule, Rules, covers_path
from pilothouse.native.tools.base import Workplace

Use = Literal["Read", "Edit"]

# What is in these can run later without anybody being asked, or holds secrets. Names in small letters.
_GUARDED_FOLDERS = (
    ".aws .azure .buildkite .cargo .circleci .claude .config .cursor .devcontainer .direnv .docker .forgejo .git "
    ".gitea .github .gnupg .hg .husky .idea .jj .kube .m2 .pilothouse .ssh .svn .vim .vscode .windsurf "
    ".woodpecker .zed"
)
GUARDED_FOLDERS = frozenset(_GUARDED_FOLDERS.split())
_GUARDED_FILES = (
    ".bash_aliases .bash_login .bash_logout .bash_profile .bashrc .claude.json .condarc .cshrc .curlrc .dockercfg "
    ".emacs .env .envrc .exrc .gdbinit .gitattributes .gitconfig .gitlab-ci.yml .gitmodules .hgrc .inputrc .irbrc "
    ".kshrc .lldbinit .login .mcp.json .mise.toml .netrc .npmrc .nvimrc .pam_environment .pgpass .pre-commit-"
    "config.yaml .profile .pryrc .psqlrc .pypirc .pythonrc .ripgreprc .rprofile .screenrc .tcshrc .tmux.conf "
    ".tool-versions .travis.yml .vimrc .wgetrc .xinitrc .xprofile .yarnrc .yarnrc.yml .zlogin .zlogout .zprofile "
    ".zshenv .zshrc authorized_keys azure-pipelines.yml bitbucket-pipelines.yml git-credentials hgrc id_dsa "
    "id_ecdsa id_ed25519 id_rsa jenkinsfile known_hosts lefthook.yml mise.toml pilothouse.toml pip.conf"
)
GUARDED_FILES = frozenset(_GUARDED_FILES.split())
GUARDED_BEGINNINGS = (".env.", ".lefthook.")
# The CLI's own place for working copies lies in a guarded folder but is meant for work.
OPEN_FOLDERS = ((".claude", "worktrees"),)


class Place(msgspec.Struct, frozen=True):
    """A path as it was `given`, made `plain` (absolute, without `..`), and `real` (through all links)."""

    given: str
    plain: Path
    real: Path

    @property
    def both(self) -> tuple[Path, ...]:
        """Under how many names it is known: one or two."""
        return (self.plain,) if self.plain == self.real else (self.plain, self.real)


def place(given: str, workplace: Workplace, base: Path | None = None) -> Place:
    """Find out where a path leads.

    Args:
        given: as a tool or a command has it; `~` is the home directory of the workplace's environment.
        workplace: where it starts.
        base: where a relative path starts, if not in the working directory.

    Raises:
        ValueError: no path: it has a null byte in it.
    """
    if "\0" in given:
        raise ValueError("a path cannot contain a null byte")
    start = workplace.path(given) if given.startswith("~") or base is None else base / given
    return Place(given, Path(os.path.normpath(start)), Path(os.path.realpath(start)))


def inside(path: Path, workplace: Workplace) -> bool:
    """Whether a resolved path lies in the directories of the work."""
    return any(path.is_relative_to(os.path.realpath(root)) for root in (workplace.root, *workplace.directories))


def guarded(spot: Place, workplace: Workplace) -> bool:
    """Whether a path is one that even an accepted edit must ask for."""
    return any(_guarded(path) for path in spot.both) or _is_program(spot.real, workplace)


def _is_program(path: Path, workplace: Workplace) -> bool:
    """Whether a file there would be run in place of a command: a tree may hold a directory of PATH, as `.venv/bin`."""
    folders = [folder for folder in workplace.env.get("PATH", "").split(os.pathsep) if folder]
    return any(path.is_relative_to(os.path.realpath(workplace.cwd / folder)) for folder in folders)


def _guarded(path: Path) -> bool:
    parts = [_same_name(part) for part in path.parts]
    for at, part in enumerate(parts):
        if part in GUARDED_FOLDERS and not any(tuple(parts[at : at + 2]) == opened for opened in OPEN_FOLDERS):
            return True
    return parts[-1] in GUARDED_FILES or parts[-1].startswith(GUARDED_BEGINNINGS)


def _same_name(part: str) -> str:
    """A name as some file systems read it: no capitals, trailing dots and spaces, streams or invisible letters."""
    seen = "".join(letter for letter in part if unicodedata.category(letter) != "Cf")
    return seen.casefold().split(":")[0].rstrip(". ")


class Matching(msgspec.Struct, frozen=True):
    """Rules, in the terms of one workplace. `accepting` edits inside it, or `planning`: no rule allows a change."""

    rules: Rules
    workplace: Workplace
    accepting: bool = False
    planning: bool = False

    def forbidding(self, behavior: Literal["deny", "ask"], tool: str, spot: Place) -> Rule | None:
        """The first rule that denies or asks about any name of this place."""
        for rule in self.rules.speaking(behavior, tool):
            if rule.content is None or any(self._covers(rule.content, path, loosely=True) for path in spot.both):
                return rule
        return None

    def allowing(self, tool: str, spot: Place, speaking: Sequence[Rule] | None = None) -> bool:
        """Whether rules (or only those `speaking`) allow every name of this place that lies outside the directories."""
        if speaking is None:
            speaking = self.rules.speaking("allow", tool)
        if any(rule.content is None for rule in speaking):
            return True
        contents = [rule.content for rule in speaking if rule.content is not None]
        return bool(contents) and all(
            (path != spot.real and inside(path, self.workplace)) or any(self._covers(text, path) for text in contents)
            for path in spot.both
        )

    def _covers(self, content: str, path: Path, *, loosely: bool = False) -> bool:
        where = self.workplace
        home = where.env.get("HOME", "~")
        roots = [where.root, *(where.directories if loosely else ())]
        return any(
            covers_path(content, path.as_posix(), root=root.as_posix(), home=home, loosely=loosely) for root in roots
        )
