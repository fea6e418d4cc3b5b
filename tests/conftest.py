"""Fixtures shared by all tests: both event loops, and nothing of the machine's own configuration."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from pilothouse.client import defaults_kept

TRANSCRIPTS = Path(__file__).parent / "fixtures" / "transcripts"
PRIVATE_PREFIXES = ("ANTHROPIC_", "CLAUDE", "AWS_", "GOOGLE_", "AZURE_", "PILOTHOUSE_")
KEPT = ("PILOTHOUSE_CACHE",)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs with Ctrl-C ignored, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _hermetic(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """No test sees the machine's own keys, login or home, nor what another test configured."""
    for name in list(os.environ):
        if name.startswith(PRIVATE_PREFIXES) and name not in KEPT:
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PILOTHOUSE_INSTALL", "0")  # no test fetches 175 MB because it looks for a CLI
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    with defaults_kept():
        yield


@pytest.fixture(scope="session")
def transcripts() -> list[Path]:
    """Recordings of CLI 2.1.330, both directions, one JSON object a line."""
    return sorted(TRANSCRIPTS.glob("*.ndjson"))
