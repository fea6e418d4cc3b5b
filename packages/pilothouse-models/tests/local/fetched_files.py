"""The model and the CLI that `make` fetches."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from places import ROOT

REQUIRED = os.environ.get("PILOTHOUSE_REQUIRE_CLI") == "1"
REPO_CACHE = ROOT / ".cache" / "pilothouse"
LOADED = importlib.util.find_spec("xllamacpp") is not None


def fetched(path: Path) -> Path:
    """The fetched file, or a skip: fetching takes minutes, and `make test` does it first."""
    if not path.exists():
        path = REPO_CACHE / path.relative_to(path.parents[2])
    if not (path.exists() and LOADED) and not REQUIRED:
        pytest.skip("not set up: pip install 'pilothouse[local]'; python -m pilothouse.provision cli model")
    return path
