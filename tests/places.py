"""Where things are in the repository: tests name places here, and count no directories of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
DOCS: Final = ROOT / "docs"
PROGRAMS: Final = DOCS / "programs"
TRANSCRIPTS: Final = TESTS / "fixtures" / "transcripts"
"""Recordings of the real CLI, both directions."""
SOURCES: Final = tuple(sorted(ROOT.glob("packages/*/src/pilothouse*")))
"""The import packages of all distributions."""
TEST_FOLDERS: Final = (TESTS, *sorted(ROOT.glob("packages/*/tests")))
"""The tests of all together and of each package."""
CORE: Final = ROOT / "packages" / "pilothouse" / "src" / "pilothouse"
CONSOLE_FILES: Final = ROOT / "packages" / "pilothouse-host" / "src" / "pilothouse_host" / "static"


PYTHONPATH: Final = os.pathsep.join(str(source.parent) for source in SOURCES)
"""What a program of another environment needs to import them."""


def list_tests() -> list[Path]:
    """The tests of all together and of each package."""
    return sorted(path for folder in TEST_FOLDERS for path in folder.rglob("test_*.py"))


def source_files() -> list[Path]:
    """The Python files of all distributions."""
    return sorted(path for source in SOURCES for path in source.rglob("*.py"))


def source_of(path: Path) -> Path:
    """The one of `SOURCES` that a file is below."""
    [source] = [each for each in SOURCES if path.is_relative_to(each)]
    return source


def module_name(path: Path) -> str:
    """The full name of the module in a file below one of `SOURCES`."""
    return ".".join(path.relative_to(source_of(path).parent).with_suffix("").parts).removesuffix(".__init__")
