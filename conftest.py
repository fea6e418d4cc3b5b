"""Fixtures shared by all tests: both event loops, and nothing of the machine's own configuration."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from places import ROOT, TEST_FOLDERS, TRANSCRIPTS
from split import PROVEN, is_whole, mark_the_rest
from store_servers import started
from virtual_time import virtual_time

from pilothouse.client.agent import restore_defaults
from pilothouse_testing import FakeCLI

PRIVATE_PREFIXES = ("ANTHROPIC_", "CLAUDE", "AWS_", "GOOGLE_", "AZURE_", "PILOTHOUSE_")
KEPT = ("PILOTHOUSE_CACHE",)

# Helper modules lie beside the tests that use them.
sys.path[:0] = [str(folder) for top in TEST_FOLDERS for folder in (top, *sorted(top.iterdir())) if folder.is_dir()]
sys.path.append(str(ROOT))  # for `benchmarks`

# How long one example takes says nothing: another worker, or another program, has the machine.
settings.register_profile("pilothouse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pilothouse")

# A shell starts its background jobs with Ctrl-C and SIGQUIT ignored, nohup starts what it runs with SIGHUP ignored, and
# their children inherit that.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_whole(config):
        mark_the_rest(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays: hundreds of tests collect garbage, and would look through all of it each time."""
    markers = [marker for item in session.items for marker in item.iter_markers("requirement")]
    session.config.stash[PROVEN] = {key for marker in markers for key in marker.args}
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, Mapping[str, Any]]:
    backend: str = request.param
    return virtual_time(backend) if request.node.get_closest_marker("virtual_time") else backend


@pytest.fixture(autouse=True)
def _collect_unused_queries(request: pytest.FixtureRequest) -> Generator[None]:
    """A test that may leave queries unused also collects them: in a later test their warning would be an error."""
    yield
    marks = request.node.iter_markers("filterwarnings")
    if any("was never" in text for mark in marks for text in mark.args):
        gc.collect()
        gc.freeze()  # what is left, such as imported modules: to look through it takes most of a second


@pytest.fixture(autouse=True)
def _hermetic(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """No test sees the machine's own keys, login or home, nor what another test configured."""
    for name in list(os.environ):
        if name.startswith(PRIVATE_PREFIXES) and name not in KEPT:
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    (home / ".claude.json").write_text("{}")  # a CLI has run here before: no child waits for the first start of another
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PILOTHOUSE_INSTALL", "0")  # no test fetches 175 MB because it looks for a CLI
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    with restore_defaults():
        yield


@pytest.fixture
def fake() -> Generator[FakeCLI]:
    """A CLI that does what its script says."""
    with FakeCLI() as fake:
        yield fake


@pytest.fixture(scope="session")
def postgres_server() -> Generator[dict[str, Any]]:
    """A PostgreSQL for this run of tests (for each worker of it); how to reach it."""
    with started("postgres") as how:
        yield how


@pytest.fixture(scope="session")
def transcripts() -> list[Path]:
    """Recordings of CLI 2.1.330, both directions, one JSON object a line."""
    return sorted(TRANSCRIPTS.glob("*.ndjson"))
