"""The pytest plugin: fixtures for a scripted model, a fake CLI and a real one.

pytest loads the plugin in every run of every project that has pilothouse installed, so the module imports only
pytest at the top, and nothing beyond the core comes with it; each fixture imports the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

if TYPE_CHECKING:
    from pilothouse_testing.cassette_fixture import CassetteUse, Mode
    from pilothouse_testing.fake_cli import FakeCLI
    from pilothouse_testing.scripted_model import ScriptedModel

CLI_VARIABLE = "PILOTHOUSE_CLI"
REQUIRE_VARIABLE = "PILOTHOUSE_REQUIRE_CLI"
MARKERS = {
    "cassette": "cassette(path=None, *, strict, ignore, speed, patience): queries are answered from a recording",
    "requirement": "requirement(*ids): ids of the requirements that this test proves",
    "real_cli": "real_cli: runs the real claude binary, hermetically",
    "local_model": "local_model: runs the embedded open model",
}
# Read when the plugin loads: fixtures of a hermetic suite may remove the variables for each test.
_SETTINGS = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that the project has not registered."""
    config.stash[_SETTINGS] = {n: os.environ[n] for n in (CLI_VARIABLE, REQUIRE_VARIABLE) if n in os.environ}
    known = {str(line).partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    for name, line in MARKERS.items():
        if name not in known:
            config.addinivalue_line("markers", line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--pilothouse-cassette`."""
    _add_option(parser, "--pilothouse-cassette")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None]:
    """Add the short form, unless the project or another plugin has an option of that name."""
    yield
    with suppress(pytest.UsageError):  # an option of that name takes other values
        _, unknown = parser.parse_known_and_unknown_args(["--cassette=replay"])
        if unknown:
            _add_option(parser, "--cassette")


def _add_option(parser: pytest.Parser, name: str) -> None:
    parser.getgroup("pilothouse").addoption(
        name,
        dest="pilothouse_cassette",
        choices=("replay", "record", "verify"),
        default="replay",
        help="tests with a recording: replay it (default), record it anew, or verify it against the real transport",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the fixture to tests marked `cassette`, and the marker to tests that use `real_cli`."""
    names = getattr(item, "fixturenames", None)
    if names is not None and "real_cli" in names:
        item.add_marker("real_cli")  # so that `-m "not real_cli"` excludes all of them
    if names is not None and "cassette" not in names and item.get_closest_marker("cassette") is not None:
        registered = {str(line) for line in item.config.getini("markers") if re.match(r"cassette\b", str(line))}
        if registered == {MARKERS["cassette"]}:  # else it is a marker of the project, or of another plugin
            names.append("cassette")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that did not do what its cassette recorded."""
    done = yield
    if (cassette := pyfuncitem.funcargs.get("cassette")) is not None:
        from pilothouse_testing.cassette_fixture import CassetteUse, finish_cassette

        if isinstance(cassette, CassetteUse):  # else the project defines its own fixture of this name
            finish_cassette(cassette)
    return done


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[CassetteUse]:
    """The recording of this test, and the default transport of its queries."""
    from pilothouse_testing.cassette_fixture import open_cassette

    with open_cassette(request, cast("Mode", request.config.getoption("pilothouse_cassette"))) as made:
        yield made


@pytest.fixture
def scripted_model() -> Iterator[ScriptedModel]:
    """A running `ScriptedModel` without replies; script it in the test."""
    from pilothouse_testing.scripted_model import ScriptedModel

    with ScriptedModel() as model:
        yield model


@pytest.fixture
def hermetic_env(scripted_model: ScriptedModel) -> dict[str, str]:
    """The complete environment of a child process that uses `scripted_model`, with its own home directory."""
    return scripted_model.env()


@pytest.fixture
def fake_cli() -> Iterator[Callable[..., FakeCLI]]:
    """A factory, `fake_cli().text("Hello")`, with the arguments of `FakeCLI`; removes the files after the test."""
    from pilothouse_testing.fake_cli import FakeCLI

    made: list[FakeCLI] = []

    def make(**settings: Any) -> FakeCLI:
        made.append(FakeCLI(**settings))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@pytest.fixture(scope="session")
def real_cli(pytestconfig: pytest.Config) -> str:
    """The path of a real `claude`: from PILOTHOUSE_CLI, or the managed copy.

    Without one the test is skipped; with PILOTHOUSE_REQUIRE_CLI=1 it fails. Tests that use it have the marker
    `real_cli`.
    """
    settings = pytestconfig.stash[_SETTINGS]
    path, reason = _find_cli(settings.get(CLI_VARIABLE))
    if path is not None:
        return str(path)
    return _skip_or_fail(reason, required=settings.get(REQUIRE_VARIABLE) == "1")


def _find_cli(given: str | None) -> tuple[Path | None, str]:
    """Return the CLI, or the reason why there is none."""
    if given:
        return (Path(given), "") if Path(given).is_file() else (None, f"{CLI_VARIABLE}={given} is not a file")
    from pilothouse.provision import managed_cli_path

    path = managed_cli_path()
    if path.is_file():
        return path, ""
    return None, f"there is no real claude: set {CLI_VARIABLE} to its path, or run `pilothouse install-cli`"


def _skip_or_fail(reason: str, *, required: bool) -> NoReturn:
    if required:
        pytest.fail(f"{reason} ({REQUIRE_VARIABLE}=1 demands it)", pytrace=False)
    pytest.skip(reason)
