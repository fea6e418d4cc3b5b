"""What the source knows of the CLI from observation: `cli_facts.toml`, and what of it to check on a new version."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "cli_facts.toml"


class CliFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fact.

    Attributes:
        file: the module that relies on it, below the `src` of a package.
        text: part of the comment or docstring that tells it; the file contains it exactly once.
        seen: the version of the CLI on which it was seen last.
        tests: the test that proves it on the real CLI; "" if none does.
    """

    file: str
    text: str
    seen: str
    tests: str = ""

    @property
    def source(self) -> Path:
        """The path of the file."""
        return ROOT / "packages" / self.file.partition("/")[0].replace("_", "-") / "src" / self.file


def read_facts() -> list[CliFact]:
    """Return the facts of the list."""
    return msgspec.convert(tomllib.loads(LIST.read_text("utf-8"))["fact"], list[CliFact])


def list_checks(version: str) -> list[str]:
    """Return lines that say which facts to check on a version: by hand, or with `make canary`."""
    older = [fact for fact in read_facts() if fact.seen != version]
    unproven = [fact for fact in older if not fact.tests]
    if not older:
        return []
    proven = f"{len(older) - len(unproven)} facts of {LIST.relative_to(ROOT)} have a test: `make canary` checks them."
    return [
        f"Look at these on Claude Code {version}; no test does. Then set `seen` in {LIST.relative_to(ROOT)}:",
        *(f"  {fact.file} (seen on {fact.seen}): {fact.text.removeprefix('# ')}" for fact in unproven),
        proven,
    ]
