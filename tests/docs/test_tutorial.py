"""The tutorial: each program runs as it stands and prints what its page says, in a clean environment, without a key."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from markdown_pages import DOCS, blocks
from process_checks import eventually

from pilothouse.provision.pinned_files import model_path

PAGES = sorted((DOCS / "tutorial").glob("[0-9]*.md"))
PROGRAMS = DOCS / "programs" / "tutorial"
SERVICE = "10_service.py"
LIMIT_S = 60

pytestmark = pytest.mark.real_cli


@pytest.fixture
def clean_env(real_cli: str, tmp_path: Path) -> dict[str, str]:
    """What a user without a key has: nothing but the CLI."""
    home = tmp_path / "home"
    home.mkdir()
    found = {"HOME": str(home), "PATH": os.environ["PATH"], "PILOTHOUSE_CLI": real_cli}
    return found | {"PILOTHOUSE_CACHE": str(model_path().parents[2])}


def program_of(page: Path) -> Path:
    (name,) = re.findall(r"<!-- program: (\S+) -->", page.read_text("utf-8"))
    return DOCS / "programs" / name


def printed_on(page: Path) -> str:
    (block,) = blocks(page, "text")
    return block.text


def start(command: list[str], env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_there_are_ten_steps_and_every_program_has_a_page() -> None:
    assert len(PAGES) == 10
    assert {program_of(page) for page in PAGES} == set(PROGRAMS.glob("*.py"))
    index = (DOCS / "tutorial" / "index.md").read_text("utf-8")
    assert re.findall(r"^\d+\. \[.*\]\((.*)\)", index, re.MULTILINE) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES[1:8], ids=[page.stem for page in PAGES[1:8]])
def test_a_program_prints_what_its_page_says(page: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    program = program_of(page)
    assert f"python {program.name}" in program.read_text("utf-8")
    assert start([sys.executable, str(program)], clean_env, tmp_path) == printed_on(page)


@pytest.mark.matrix
@pytest.mark.local_model
def test_the_first_answer_comes_from_the_local_model(clean_env: dict[str, str], tmp_path: Path) -> None:
    if not model_path().exists():
        pytest.skip("the local model is not fetched: python -m pilothouse.provision cli model")
    assert start([sys.executable, str(program_of(PAGES[0]))], clean_env, tmp_path) == printed_on(PAGES[0])


def test_the_tests_pass(clean_env: dict[str, str], tmp_path: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--import-mode=prepend", f"--rootdir={tmp_path}"]
    options += [f"--basetemp={tmp_path / 'base'}"]
    env = clean_env | {"PILOTHOUSE_REQUIRE_CLI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    output = start([sys.executable, "-m", "pytest", *options, str(program_of(PAGES[8]))], env, tmp_path)
    assert printed_on(PAGES[8]).strip() in output


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def fetch(address: str, body: str | None = None) -> str:
    with urllib.request.urlopen(address, body.encode() if body else None, LIMIT_S) as response:
        return response.read().decode()


def test_the_service_answers_as_its_page_says(clean_env: dict[str, str], tmp_path: Path) -> None:
    (session,) = blocks(PAGES[9], "console")
    port = free_port()
    command = [sys.executable, str(PROGRAMS / SERVICE), str(port)]
    with subprocess.Popen(command, cwd=tmp_path, env=clean_env, stdout=subprocess.PIPE, text=True) as server:
        try:
            eventually(lambda: is_listening(port))
            calls = re.findall(
                r'^\$ curl (?:-d "(.*)" )?http://127.0.0.1:8000/(\S+)\n(.*)$', session.text, re.MULTILINE
            )
            assert len(calls) == 3
            for body, path, expected in calls:
                answer = fetch(f"http://127.0.0.1:{port}/{path}", body or None).strip()
                assert re.sub(r"[\d.]+}$", "}", answer) == re.sub(r"[\d.]+}$", "}", expected)
        finally:
            server.send_signal(signal.SIGINT)
            output, _ = server.communicate(timeout=LIMIT_S)
    assert server.returncode == 0
    assert output in session.text
