"""The check of settings against what a CLI says: a fake one, which says what it is told to."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.client import settings_check
from pilothouse.errors import ControlTimeout, SettingsError
from pilothouse.options.table import TABLE
from pilothouse.transports import CliTransport
from pilothouse_testing import FakeCLI, frames, mock_transport
from pilothouse_testing.cassettes.recorder import Recorder
from pilothouse_testing.cassettes.replay import Player

pytestmark = pytest.mark.anyio

DENY = {"permissions": {"deny": ["Bash"]}}
OLD = {name: value for name, value in frames.server_info().items() if name != "claude_code_version"}


@pytest.fixture(autouse=True)
def _fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_check, "_said", set())
    monkeypatch.setattr(settings_check, "_silent_clis", set())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def order(fake: FakeCLI, at: int = -1) -> list[str]:
    """What a child was sent, in order."""
    return [frame.get("request", {}).get("subtype") or frame["type"] for frame in fake.calls[at].frames]


async def test_the_prompt_waits_for_the_check() -> None:
    with FakeCLI().text("done") as fake:
        assert (await ph.query("go", cli=fake.path, settings=DENY)).text == "done"
        assert order(fake) == ["initialize", "get_settings", "user"]
        assert (await ph.query("go", cli=fake.path)).text == "done"
        assert order(fake) == ["initialize", "user"]
        assert (await ph.query("go", cli=fake.path, extra_args={"brief": None})).text == "done"
        assert order(fake) == ["initialize", "user"]


async def test_what_is_not_taken_ends_the_query_before_its_prompt() -> None:
    with FakeCLI().text("done") as fake:
        fake.on_control("get_settings", {"sources": []})
        with pytest.raises(SettingsError, match=r"permissions\.deny\[0\]"):
            await ph.query("go", cli=fake.path, settings=DENY)
        assert order(fake) == ["initialize", "get_settings"]


async def test_a_cli_that_never_answers_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings_check, "UNANSWERED_SECONDS", 0.05)
    with FakeCLI().text("done") as fake:
        fake.on_control("initialize", OLD).on_control("get_settings", silent=True)
        for _ in range(2):
            assert (await ph.query("go", cli=fake.path, settings=DENY)).text == "done"
        assert ["get_settings" in order(fake, at) for at in (0, 1)] == [True, False]
    [warned] = warnings_of(caplog)
    assert "option 'settings': not checked" in warned
    assert "2.1.90 and later" in warned


async def test_a_new_cli_that_does_not_answer_ends_the_query() -> None:
    with FakeCLI().text("done") as fake:
        fake.on_control("get_settings", silent=True)
        with pytest.raises(ControlTimeout, match="get_settings"):
            await ph.query("go", cli=fake.path, settings=DENY, control_timeout=3)
        assert "user" not in order(fake)


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "Unsupported control request subtype: get_settings"},
        {"payload": {}},
        {"payload": {"sources": [], "withheld": True}},
    ],
)
async def test_a_cli_that_does_not_say_is_a_warning(answer: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with FakeCLI().text("done") as fake:
        fake.on_control("get_settings", **answer)
        assert (await ph.query("go", cli=fake.path, managed_settings=DENY, settings=DENY)).text == "done"
    [warned] = warnings_of(caplog)
    assert "option 'settings' and option 'managed_settings': not checked" in warned


def error(file: str) -> dict[str, str]:
    return {"file": file, "path": "model", "message": "Expected string"}


FILES: dict[str, tuple[str | dict[str, Any], str, bool]] = {
    "private file": (DENY, "/tmp/pilothouse-x/0.json", True),
    "temporary file of the CLI": (DENY, "/tmp/claude-0/claude-settings-0123.json", True),
    "user": (DENY, "/home/u/.claude/settings.json", False),
    "local": (DENY, "/w/.claude/settings.local.json", False),
    "managed": (DENY, "/etc/claude-code/managed-settings.json", False),
    "part of managed": (DENY, "/etc/claude-code/managed-settings.d/10-rules.json", False),
    "one of no known kind": (DENY, "/Library/Preferences/policy.plist", False),
    "named over there": ("conf/settings.json", "/work/conf/settings.json", True),
    "another one than was named": ("conf/own.json", "/home/u/.claude/settings.json", False),
}


@pytest.mark.parametrize("case", FILES)
async def test_whose_error_it_is_elsewhere(case: str, caplog: pytest.LogCaptureFixture) -> None:
    settings, file, is_ours = FILES[case]
    taken = [] if is_ours else [{"source": "flagSettings", "settings": DENY}]
    transport = mock_transport("done", get_settings={"sources": taken, "errors": [error(file)]})
    query = ph.query("go", transport=transport, settings=settings)
    if is_ours:
        with pytest.raises(SettingsError, match="takes none of these settings: model: Expected string"):
            await query
        assert not warnings_of(caplog)
    else:
        assert (await query).text == "done"
        [warned] = warnings_of(caplog)
        assert file in warned


async def test_a_named_file_is_read_where_the_child_is_here(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("\ufeff" + json.dumps(DENY))
    with FakeCLI().text("done") as fake:
        for transport in (None, CliTransport):
            given: dict[str, Any] = {"settings": "own.json", "cwd": tmp_path, "cli": fake.path, "transport": transport}
            fake.on_control("get_settings", {"sources": []})
            with pytest.raises(SettingsError, match=r"\(own\.json\): .*permissions\.deny\[0\]"):
                await ph.query("go", **given)
            fake.on_control("get_settings", {"sources": [{"source": "flagSettings", "settings": DENY}]})
            assert (await ph.query("go", **given)).text == "done"


async def test_a_recording_without_the_check_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with FakeCLI().text("done") as fake:
        await ph.query("go", cli=fake.path, settings=DENY, transport=Recorder(path))
        replayed = await ph.query("go", cli=fake.path, settings=DENY, transport=Player(path))
        assert replayed.text == "done"
        lines = [line for line in path.read_bytes().splitlines(True) if b"get_settings" not in line]
        kept = [line for line in lines if b"flagSettings" not in line]
        path.write_bytes(b"".join(kept))
        assert (await ph.query("go", cli=fake.path, settings=DENY, transport=Player(path))).text == "done"


async def test_errors_can_be_pickled_and_name_their_places() -> None:
    import pickle

    made = SettingsError("x", option="settings", problems=[("model", "y")])
    again = pickle.loads(pickle.dumps(made))
    assert (str(again), again.option, again.problems) == ("x", "settings", (("model", "y"),))


def test_the_options_take_the_typed_form() -> None:
    assert "CliSettings" in TABLE["settings"].accepted_type
    assert "CliSettings" in TABLE["managed_settings"].accepted_type


async def test_background_work_does_not_hold_the_end_of_the_input() -> None:
    """Only handlers need the input while background tasks run."""
    task = {"type": "system", "subtype": "task_started", "task_id": "t1", "task_type": "local_bash"}
    with FakeCLI().expect().emit(frames.init(), task, frames.assistant("done"), frames.result("done")) as fake:
        with anyio.fail_after(20):
            assert (await ph.query("go", cli=fake.path, settings=DENY)).text == "done"
        assert fake.calls[-1].saw_eof


async def test_a_passed_on_key_is_a_warning_without_any_answer(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCLI().text("done") as fake:
        for _ in range(2):
            assert (await ph.query("go", cli=fake.path, settings={"permisions": {"deny": []}})).text == "done"
    [warned] = warnings_of(caplog)
    assert "did you mean 'permissions'?" in warned
