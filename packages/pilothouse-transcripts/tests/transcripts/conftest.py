"""A disk of its own for each test, told to the library as the CLI is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade_transcripts import Disk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(disk.config))
    return disk
