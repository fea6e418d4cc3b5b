"""The pytest plugin, in runs of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pilothouse_testing import FakeCLI, plugin

HEAVY = ("starlette", "uvicorn", "pilothouse_testing.fake_cli", "pilothouse_testing.scripted_model")


def run_pytest(directory: Path, source: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(source)
    plugins = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-rs", "--strict-markers", *args, "."]
    settings = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.run(command, cwd=directory, env=settings, capture_output=True, text=True, timeout=60)


def test_loading_the_plugin_imports_no_more_than_the_package():
    code = f"import pilothouse_testing.plugin, sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


def test_every_lazy_name_loads():
    import pilothouse_testing as testing

    names = [name for name in dir(testing) if not name.startswith("_")]
    assert {"FakeCLI", "ScriptedModel", "sample_messages", "mock_transport"} <= set(names)
    for name in names:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = testing.Nonsense  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.requirement("R39")
def test_the_fixtures_work_in_a_foreign_project(tmp_path: Path):
    source = """
import subprocess, urllib.request, pytest

@pytest.mark.real_cli
@pytest.mark.requirement("X1")
def test_model(scripted_model, hermetic_env):
    scripted_model.reply("Hello")
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    url = hermetic_env["ANTHROPIC_BASE_URL"] + "/v1/messages"
    with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
        assert b"Hello" in response.read()
    scripted_model.assert_done()

def test_fake(fake_cli):
    fake = fake_cli().text("Hello")
    assert b"Hello" in subprocess.run([fake.path, "-p", "x"], capture_output=True).stdout
    assert len(fake.calls) == 1
"""
    done = run_pytest(tmp_path, source, "-W", "error")
    assert "2 passed" in done.stdout, done.stdout


def test_markers_of_the_project_are_left_alone(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    real_cli: mine\n")
    done = run_pytest(tmp_path, "", "--markers")
    assert done.stdout.count("real_cli:") == 1
    assert "real_cli: mine" in done.stdout
    assert "local_model: runs" in done.stdout


@pytest.mark.parametrize("is_given", [False, True])
def test_an_option_of_the_project_is_left_alone(tmp_path: Path, is_given: bool):
    options = "def pytest_addoption(parser): parser.addoption('--cassette', default='mine')\n"
    (tmp_path / "conftest.py").write_text(options)
    source = "def test_a(pytestconfig): print('cassette:', pytestconfig.getoption('--cassette'))\n"
    done = run_pytest(tmp_path, source, "-s", *(["--cassette=given"] if is_given else []))
    assert f"cassette: {'given' if is_given else 'mine'}\n" in done.stdout, done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("where", ["ini", "conftest"])
def test_a_marker_cassette_of_the_project_is_left_alone(tmp_path: Path, where: str):
    line = "cassette(name): of another library"
    if where == "ini":
        (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    {line}\n")
    else:
        register = f"def pytest_configure(config): config.addinivalue_line('markers', {line!r})\n"
        (tmp_path / "conftest.py").write_text(register)
    source = "import pytest\n@pytest.mark.cassette('x')\ndef test_a(): pass\n"
    assert "1 passed" in run_pytest(tmp_path, source).stdout


def test_the_marker_cassette_is_enough(tmp_path: Path):
    done = run_pytest(tmp_path, "import pytest\n@pytest.mark.cassette\ndef test_a(): pass\n")
    assert "there is no recording" in done.stdout


CLI_TEST = """
import pytest
@pytest.mark.real_cli
def test_cli(real_cli):
    print("path:", real_cli)
"""


@pytest.mark.requirement("R38", "E82")
def test_without_a_real_cli_tests_are_skipped_and_say_why(tmp_path: Path):
    done = run_pytest(tmp_path, CLI_TEST, PILOTHOUSE_CACHE=str(tmp_path / "empty"))
    assert "1 skipped" in done.stdout, done.stdout
    assert "there is no real claude: set PILOTHOUSE_CLI" in done.stdout
    assert done.returncode == 0


@pytest.mark.requirement("R38", "E82")
def test_a_required_cli_that_is_absent_fails(tmp_path: Path):
    done = run_pytest(tmp_path, CLI_TEST, PILOTHOUSE_CACHE=str(tmp_path / "empty"), PILOTHOUSE_REQUIRE_CLI="1")
    assert done.returncode == 1
    assert "PILOTHOUSE_REQUIRE_CLI=1 demands it" in done.stdout


@pytest.mark.requirement("R38", "E82")
def test_a_given_cli_is_used(tmp_path: Path):
    fake = FakeCLI()
    done = run_pytest(tmp_path, CLI_TEST, "-s", PILOTHOUSE_CLI=fake.path)
    assert f"path: {fake.path}" in done.stdout
    wrong = run_pytest(tmp_path, CLI_TEST, PILOTHOUSE_CLI=str(tmp_path / "nothing"))
    assert "nothing is not a file" in wrong.stdout


@pytest.mark.requirement("R38")
def test_the_tests_of_the_real_cli_can_be_left_out(tmp_path: Path):
    source = "def test_unit(): pass\ndef test_cli(real_cli): pass\n"
    with FakeCLI() as fake:
        done = run_pytest(tmp_path, source, "-m", "not real_cli", PILOTHOUSE_CLI=fake.path)
        assert "1 passed, 1 deselected" in done.stdout
        done = run_pytest(tmp_path, source, "-m", "real_cli", PILOTHOUSE_CLI=fake.path)
        assert "1 passed, 1 deselected" in done.stdout
    assert "1 passed, 1 skipped" in run_pytest(tmp_path, source, PILOTHOUSE_CACHE=str(tmp_path / "empty")).stdout


def test_every_doctest_of_the_package_passes():
    package = Path(plugin.__file__).parent
    files = [str(p) for p in package.glob("*.py") if p.name not in ("fake_child.py", "transport_suite.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", *files]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
