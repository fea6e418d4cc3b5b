"""A conversation that the CLI cannot save is logged once: the query succeeds, and only a later resume would fail."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.engine import diagnostics
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio

SESSION = "0b7e0f5e-0000-4000-8000-000000000001"
# Root may write everywhere, so a file takes the place of the directory.


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "pilothouse")
    return lambda: [record.getMessage() for record in caplog.records if "saved" in record.getMessage()]


@pytest.fixture
def fake(fake_cli: Callable[..., FakeCLI], tmp_path: Path) -> FakeCLI:
    named: dict[str, Any] = {"session_id": SESSION}
    init = frames.init(cwd=str(tmp_path), **named)
    return fake_cli().turn(init, frames.assistant("hi", **named), frames.result("hi", **named)).forever()


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    return made


async def ask(fake: FakeCLI, kind: str, config_dir: Path, **settings: Any) -> None:
    settings = {"cli": fake.path, "config_dir": str(config_dir), **settings}
    if kind == "alone":
        await ph.query("go", **settings)
        return
    async with ph.session(**settings) as session:
        await session.query("go")
        await session.query("on")


async def test_a_directory_that_cannot_be_written_is_logged_once(
    fake: FakeCLI, kind: str, config_dir: Path, warned: Any
) -> None:
    (config_dir / "projects").write_text("in the way")
    await ask(fake, kind, config_dir)
    (text,) = warned()
    assert text.startswith(f"the conversation {SESSION} was not saved, so it cannot be resumed: ")
    assert f"{config_dir / 'projects'} is not a directory" in text
    assert "config_dir" in text
    assert "persist_session=False" in text


async def test_a_directory_without_rights_is_named(
    fake: FakeCLI, kind: str, config_dir: Path, warned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.F_OK and real(path, mode))  # pyright: ignore[reportUnknownLambdaType]
    await ask(fake, kind, config_dir)
    (text,) = warned()
    assert f"{config_dir} is not writable" in text


async def test_the_home_is_looked_at_without_a_config_dir(fake: FakeCLI, tmp_path: Path, warned: Any) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".claude").write_text("in the way")
    await ph.query("go", cli=fake.path, env={"HOME": str(home)})
    (text,) = warned()
    assert f"{home / '.claude'} is not a directory" in text


async def test_a_saved_conversation_is_not_logged(
    fake: FakeCLI, kind: str, config_dir: Path, tmp_path: Path, warned: Any
) -> None:
    folder = config_dir / "projects" / re.sub(r"\W|_", "-", str(tmp_path))
    folder.mkdir(parents=True)
    (folder / f"{SESSION}.jsonl").write_text("{}\n")
    await ask(fake, kind, config_dir)
    assert warned() == []


async def test_a_file_that_can_be_written_in_a_closed_directory_is_enough(
    fake: FakeCLI, config_dir: Path, tmp_path: Path, warned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = config_dir / "projects" / re.sub(r"\W|_", "-", str(tmp_path))
    folder.mkdir(parents=True)
    (folder / f"{SESSION}.jsonl").write_text("{}\n")
    monkeypatch.setattr("os.access", lambda path, mode: str(path).endswith(".jsonl"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    await ask(fake, "alone", config_dir)
    assert warned() == []


@pytest.mark.parametrize(
    "settings", [{"persist_session": False}, {"isolation": "strict"}, {"extra_args": {"no-session-persistence": None}}]
)
async def test_a_conversation_that_is_not_meant_to_last_is_not_logged(
    fake: FakeCLI, kind: str, config_dir: Path, warned: Any, settings: dict[str, Any]
) -> None:
    (config_dir / "projects").write_text("in the way")
    if "isolation" not in settings:
        settings = {**settings, "config_dir": str(config_dir)}
    if kind == "alone":
        await ph.query("go", cli=fake.path, **settings)
    else:
        async with ph.session(cli=fake.path, **settings) as session:
            await session.query("go")
    assert warned() == []


async def test_a_child_elsewhere_is_not_looked_for_here(config_dir: Path, warned: Any) -> None:
    (config_dir / "projects").write_text("in the way")
    await ph.query("go", transport=mock_transport("hi"), config_dir=str(config_dir))
    assert warned() == []


async def test_a_full_disk_is_logged(
    fake_cli: Callable[..., FakeCLI], kind: str, config_dir: Path, warned: Any
) -> None:
    lost = {"type": "system", "subtype": "session_writes_lost", "error_code": "ENOSPC", "lost": ["transcript"]}
    fake = fake_cli().turn(frames.init(), lost, lost, frames.assistant("hi"), frames.result("hi")).forever()
    await ask(fake, kind, config_dir)
    (text,) = warned()
    assert "the disk is full" in text


async def test_a_writable_directory_is_looked_at_once_a_minute(
    fake: FakeCLI, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(diagnostics, "_find_save_problem", lambda projects, session_id: looks.append(projects))
    for _ in range(2):
        await ask(fake, "alone", config_dir)
    assert looks == [str(config_dir / "projects")]
    monkeypatch.setattr(diagnostics, "_SAVE_CHECK_SECONDS", 0.0)
    diagnostics._next_save_checks.clear()
    for _ in range(2):
        await ask(fake, "alone", config_dir)
    assert len(looks) == 3


async def test_a_session_that_another_has_looked_for_looks_later(fake: FakeCLI, config_dir: Path, warned: Any) -> None:
    await ask(fake, "alone", config_dir)
    async with ph.session(cli=fake.path, config_dir=str(config_dir)) as session:
        await session.query("go")
        (config_dir / "projects").write_text("in the way")
        assert not warned()
        diagnostics._next_save_checks.clear()  # a minute later
        await session.query("on")
    assert len(warned()) == 1
