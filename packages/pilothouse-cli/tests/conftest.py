"""Fixtures of the command's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_process import KEPT, Command

# Read when this file loads: each test runs without them.
_SETTINGS = {name: os.environ[name] for name in KEPT if name in os.environ}


@pytest.fixture
def pilothouse(tmp_path: Path) -> Command:
    return Command(tmp_path / "home", {k: v for k, v in _SETTINGS.items() if k == "PILOTHOUSE_CACHE"})
