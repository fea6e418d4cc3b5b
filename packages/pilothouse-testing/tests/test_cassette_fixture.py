"""The cassette of a test: recorded, replayed and verified, in pytest runs of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pilothouse_testing.cassette_fixture import get_default_path

# What a test says in a later run, other than when it was recorded.
TESTS = """
import pytest
import pilothouse as ph
from pilothouse_testing import FakeCLI

LATER = {"same": ("Hi", "Ho"), "other": ("Hi", "Hu"), "less": ("Hi",), "more": ("Hi", "Ho", "He")}

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def mode(pytestconfig):
    return pytestconfig.getoption("pilothouse_cassette")

async def talk(prompts, answer, cli=None):
    with FakeCLI() as fake:
        for _ in prompts:
            fake.text(answer)
        async with ph.session(cli=cli or fake.path) as session:
            return [(await session.query(prompt)).text for prompt in prompts]

@pytest.mark.anyio
@pytest.mark.cassette
@pytest.mark.parametrize("case", LATER)
async def test_talk(case, mode):
    prompts = LATER[case] if mode == "replay" else ("Hi", "Ho")
    cli = "/nowhere" if mode == "replay" else None
    assert await talk(prompts, "Hello", cli) == ["Hello"] * len(prompts)

@pytest.mark.anyio
async def test_answer(cassette, mode):
    await talk(["Hi"], "Good day" if mode == "verify" else "Hello")

@pytest.mark.anyio
async def test_fails(cassette):
    await talk(["Hi"], "Hello")
    assert cassette.mode != "record"

def test_starts_nothing(cassette):
    assert cassette.path.name == "test_starts_nothing.jsonl"

@pytest.mark.cassette("own/place.jsonl", strict=False)
def test_place(cassette):
    assert cassette.path.parent.name == "own"
"""


def run(directory: Path, mode: str, option: str = "--pilothouse-cassette") -> str:
    plugins = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "--strict-markers", option, mode]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, "."], cwd=directory, env=env, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_tests_are_recorded_replayed_and_verified(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    reported = run(tmp_path, "record")
    assert "3 failed, 5 passed" in reported
    assert reported.count("\nthe test started no transport: there is nothing to record\n") == 2
    place = tmp_path / "cassettes" / "test_it"
    # Only those that passed are kept, and nothing else is left.
    names = ["test_answer.jsonl", *(f"test_talk[{case}].jsonl" for case in ("less", "more", "other", "same"))]
    assert sorted(path.name for path in place.iterdir()) == names
    recorded = (place / "test_talk[same].jsonl").read_bytes()
    assert recorded.count(b'"type":"user"') == 2

    reported = run(tmp_path, "replay")
    assert "3 failed, 2 passed, 3 errors" in reported  # same and answer pass; three have no cassette
    assert reported.count("run this test once with --pilothouse-cassette=record") >= 3
    assert '-    "content": "Ho"' in reported
    assert '+    "content": "Hu"' in reported
    assert "the program has ended, but the recording continues with a prompt from it" in reported
    assert "the program sends a prompt, which was not recorded; the recording has 2 of its kind" in reported

    reported = run(tmp_path, "verify", "--cassette")
    assert "1 failed, 4 passed, 3 errors" in reported  # answer; three have no cassette
    assert "the real transport no longer does what was recorded; if that is right, record again" in reported
    assert '"text": "Hello"' in reported
    assert '"text": "Good day"' in reported
    assert (place / "test_talk[same].jsonl").read_bytes() == recorded
    assert sorted(path.name for path in place.iterdir()) == names


def test_names_of_cassettes() -> None:
    def item(name: str, identity: str | None) -> Any:
        callspec = None if identity is None else SimpleNamespace(id=identity)
        return SimpleNamespace(
            name=name, originalname=name, path=Path("/t/test_a.py"), callspec=callspec, listchain=list
        )

    assert get_default_path(item("test_x", None)) == Path("/t/cassettes/test_a/test_x.jsonl")
    assert get_default_path(item("test_x", "asyncio-a/b")) == Path("/t/cassettes/test_a/test_x[a_b].jsonl")
    assert get_default_path(item("test_x", "trio")) == get_default_path(item("test_x", "asyncio"))
