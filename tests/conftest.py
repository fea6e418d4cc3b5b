"""Fixtures shared by all tests: both event loops, and nothing of the machine's own configuration."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

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
def _hermetic(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the machine's own keys, login or home."""
    for name in list(os.environ):
        if name.startswith(PRIVATE_PREFIXES) and name not in KEPT:
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))


@pytest.fixture(scope="session")
def transcripts() -> list[Path]:
    """Recordings of CLI 2.1.330, both directions, one JSON object a line."""
    return sorted(TRANSCRIPTS.glob("*.ndjson"))
