"""Settings with a mistake: the real CLI would go on without them, so nothing may be sent to the model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.client import settings_check
from pilothouse.errors import SettingsError
from pilothouse_pool import Pool
from pilothouse_remote import CommandTransport
from pilothouse_testing import ScriptedModel, Steps, ToolUse
from pilothouse_testing.cassettes.recorder import Recorder

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pilothouse.options.PolicyWarning"),  # a rule that allows what another denies
]

DENY = {"permissions": {"deny": ["Bash"]}}
BROKEN = {**DENY, "cleanupPeriodDays": "x"}
REFUSED_RULE = {"permissions": {"deny": ["Read", "Bash("]}}


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_check, "_said", set())


@pytest.fixture
def canary(claude: Any, model: ScriptedModel) -> Path:
    """A file that the model tries to make with Bash."""
    model.on("go", reply=Steps([ToolUse("Bash", {"command": "touch canary"})], "done"))
    model.default = "done"
    return claude.cwd / "canary"


def write_settings(claude: Any, content: Any) -> str:
    path = claude.home / "my-settings.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


WAYS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "mapping": lambda claude, content: {"settings": content},
    "JSON text": lambda claude, content: {"settings": json.dumps(content)},
    "path": lambda claude, content: {"settings": write_settings(claude, content)},
    "relative path": lambda claude, content: {"settings": write_settings(claude, content) and "../my-settings.json"},
    "extra_args, text": lambda claude, content: {"extra_args": {"settings": json.dumps(content)}},
    "extra_args, path": lambda claude, content: {"extra_args": {"settings": write_settings(claude, content)}},
    "beside a sandbox": lambda claude, content: {"settings": content, "sandbox": {"enabled": False}},
    "beside hooks": lambda claude, content: {"settings": content, "hooks": {"Stop": lambda event: None}},
    "beside wait_for_mcp": lambda claude, content: {"settings": content, "wait_for_mcp": True},
    "bare": lambda claude, content: {"settings": content, "bare": True},
    "isolated by sources": lambda claude, content: {"settings": content, "setting_sources": []},
}


@pytest.mark.parametrize("way", WAYS)
async def test_settings_with_a_mistake_end_the_query(claude: Any, model: ScriptedModel, canary: Path, way: str) -> None:
    with pytest.raises(SettingsError, match=r"cleanupPeriodDays: Expected number.*No prompt was sent") as caught:
        await claude.ask(allowed_tools=["Bash"], **WAYS[way](claude, BROKEN))
    assert caught.value.problems == (("cleanupPeriodDays", "Expected number, but received string"),)
    assert caught.value.option == ("extra_args" if way.startswith("extra") else "settings")
    with pytest.raises(SettingsError, match=r"permissions\.deny\[1\]: 'Bash\(' is not a permission rule") as caught:
        await claude.ask(allowed_tools=["Bash"], **WAYS[way](claude, REFUSED_RULE))
    assert [path for path, _ in caught.value.problems] == ["permissions.deny[1]"]
    assert (await claude.ask(allowed_tools=["Bash"], **WAYS[way](claude, DENY))).text
    assert not canary.exists()
    assert "Bash" not in model.requests[0].tools


LOST: dict[str, tuple[dict[str, Any], str]] = {
    "an event that there is not": (
        {"hooks": {"PreToolUs": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "exit 2"}]}]}},
        r"hooks\.PreToolUs: this Claude Code has no such event; did you mean 'PreToolUse'\?",
    ),
    "one hook of several": (
        {"hooks": {"Stop": [{"hooks": [{"type": "nope"}, {"type": "command", "command": "true"}]}]}},
        r"hooks\.Stop\[0\]\.hooks\[0\]",
    ),
    "a rule that asks": (
        {"permissions": {"ask": ["bash"]}},
        r"permissions\.ask\[0\]: .*does not accept the rule 'bash'",
    ),
    "rules that are none": (
        {"permissions": {"deny": ["Bash(curl", "WebFetch (*)", "Bash)"]}},
        r"deny\[0\]: .*; permissions\.deny\[2\]: .*; permissions\.deny\[1\]: ",
    ),
    "a rule as text": ({"permissions": {"deny": "Bash"}}, r"permissions\.deny: Expected array"),
    "a word of the sandbox": (
        {"sandbox": {"enabled": False, "filesystem": {"denyReads": ["/x"]}}},
        r"sandbox\.filesystem\.denyReads\[?",
    ),
}


@pytest.mark.parametrize("case", LOST)
async def test_a_restriction_that_the_cli_drops_ends_the_query(claude: Any, model: ScriptedModel, case: str) -> None:
    settings, message = LOST[case]
    with pytest.raises(SettingsError, match=message):
        await claude.ask(settings=settings)
    assert not model.requests


async def test_managed_settings_that_the_cli_drops_end_the_query(
    claude: Any, model: ScriptedModel, canary: Path
) -> None:
    for managed, message in (
        ({"permissions": {"deny": "Bash"}}, r"permissions\.deny: expected a list of rules"),
        (REFUSED_RULE, r"permissions\.deny\[1\]: 'Bash\(' is not"),
        ({**DENY, "hooks": LOST["one hook of several"][0]["hooks"]}, "takes no hooks from these settings"),
        ({"availableModels": "haiku"}, "availableModels: Claude Code does not accept"),
        ({"maxEffortLevel": "low"}, "maxEffortLevel: .*`settings` may take it"),
    ):
        with pytest.raises(SettingsError, match=message) as caught:
            await claude.ask(allowed_tools=["Bash"], managed_settings=managed)
        assert caught.value.option == "managed_settings"
    assert not model.requests
    kept = {**DENY, "disableAllHooks": True, "permissions": {"deny": ["Bash"], "allow": ["Read"]}}
    assert (await claude.ask(allowed_tools=["Bash"], managed_settings=kept)).text
    assert not canary.exists()


async def test_rules_that_managed_settings_overrule_are_a_warning(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.default = "done"
    locks = {"allowManagedPermissionRulesOnly": True, "allowManagedHooksOnly": True}
    hooks = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}
    await claude.ask(settings={**DENY, **hooks}, managed_settings=locks)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "permissions.deny has no effect, because managed settings have allowManagedPermissionRulesOnly" in warned[0]
    assert "hooks has no effect, because managed settings have allowManagedHooksOnly" in warned[1]


async def test_an_invalid_sandbox_ends_the_query(claude: Any, model: ScriptedModel) -> None:
    with pytest.raises(ph.PilothouseError, match=r"sandbox"):
        (await claude.ask(settings={"sandbox": {"enabled": "yes"}})).raise_for_error()
    assert not model.requests


async def test_a_session_with_broken_settings_does_not_start(claude: Any, model: ScriptedModel) -> None:
    with pytest.raises(SettingsError, match="cleanupPeriodDays"):
        async with claude.session(settings=BROKEN):
            pass
    session = claude.session(settings=BROKEN)
    for _ in range(2):
        with pytest.raises(SettingsError, match="cleanupPeriodDays"):
            await session.query("go")
    await session.close()
    assert not model.requests


async def test_a_new_child_of_a_session_is_checked_too(claude: Any, model: ScriptedModel, canary: Path) -> None:
    async with claude.session(settings=DENY, allowed_tools=["Bash"]) as session:
        assert (await session.query("go")).text
        asked = len(model.requests)
        with pytest.raises(SettingsError, match="cleanupPeriodDays"):
            await session.query("two", settings=BROKEN)
        assert len(model.requests) == asked
        assert (await session.query("go")).text  # with its own settings again
    assert not canary.exists()


async def test_prewarmed_children_are_checked_too(claude: Any, model: ScriptedModel, canary: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"booted": True}, {"any_directory": True}]
    for kind in kinds:
        async with Pool(**kind) as pool:
            agent = claude.agent(transport=pool, settings=REFUSED_RULE, allowed_tools=["Bash"])
            await agent.prewarm(1)
            with pytest.raises(SettingsError, match=r"permissions\.deny\[1\]"):
                await agent.query("go")
            assert (await agent.query("go", settings=DENY)).text
    assert not canary.exists()
    assert all("Bash" not in request.tools for request in model.requests)


async def test_a_child_behind_a_command_is_checked_too(claude: Any, model: ScriptedModel, canary: Path) -> None:
    def behind_a_command() -> CommandTransport:
        return CommandTransport(("env",), cli=claude.path)

    own = write_settings(claude, BROKEN)
    for content, message in ((BROKEN, "cleanupPeriodDays"), (REFUSED_RULE, r"deny\[1\]"), (own, "cleanupPeriodDays")):
        with pytest.raises(SettingsError, match=message):
            await claude.ask(transport=behind_a_command, settings=content, allowed_tools=["Bash"])
    assert (await claude.ask(transport=behind_a_command, settings=DENY, allowed_tools=["Bash"])).text
    assert not canary.exists()


async def test_errors_of_other_files_are_a_warning_once(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.default = "done"
    (claude.home / ".claude").mkdir(exist_ok=True)
    (claude.home / ".claude" / "settings.json").write_text(json.dumps(BROKEN))
    (claude.cwd / ".claude").mkdir()
    (claude.cwd / ".claude" / "settings.local.json").write_text("{not JSON")
    for _ in range(2):
        assert (await claude.ask(settings=DENY)).text == "done"
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert any("settings.json" in text and "cleanupPeriodDays: Expected number" in text for text in warned)
    assert any("settings.local.json" in text and "JSON" in text for text in warned)
    async with claude.session() as session:
        found = (await session.settings.get()).errors
    assert [(Path(each.file).name, each.path) for each in found] == [
        ("settings.json", "cleanupPeriodDays"),
        ("settings.local.json", ""),
    ]


async def test_without_settings_nothing_more_is_asked(claude: Any, model: ScriptedModel, tmp_path: Path) -> None:
    model.default = "done"
    for settings, asks in (({}, False), ({"settings": {}}, False), ({"settings": DENY}, True)):
        log = tmp_path / f"{len(settings)}-{asks}.jsonl"
        await claude.ask(transport=Recorder(log), **settings)
        assert (b"get_settings" in log.read_bytes()) is asks


async def test_unknown_keys_are_passed_on_with_a_warning(
    claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model.default = "done"
    settings = {"permisions": {"deny": ["Bash"]}, "permissions": {"denny": ["Bash"]}, "ofTomorrow": 1}
    for _ in range(2):
        assert (await claude.ask(settings=settings)).text == "done"
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 3
    assert "unknown setting 'permisions', which has no effect; did you mean 'permissions'?" in warned[0]
    assert "'ofTomorrow', which has no effect; a newer Claude Code may know it" in warned[1]
    assert "unknown setting 'permissions.denny', which has no effect; did you mean 'permissions.deny'?" in warned[2]


async def test_a_lost_detail_is_a_warning(claude: Any, model: ScriptedModel, caplog: pytest.LogCaptureFixture) -> None:
    model.default = "done"
    hook = {"type": "command", "command": "true", "timeou": 3}
    assert (await claude.ask(settings={"effortLevel": "nope", "hooks": {"Stop": [{"hooks": [hook]}]}})).text == "done"
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "Claude Code ignores effortLevel, hooks.Stop[0].hooks[0].timeou" in warned[0]


async def test_settings_applied_later_are_checked(claude: Any, model: ScriptedModel) -> None:
    async with claude.session(settings=DENY) as session:
        with pytest.raises(ph.ControlError, match="invalid settings and send it again: permissions"):
            await session.settings.apply({"permissions": {"deny": "Read"}})
        with pytest.raises(SettingsError, match=r"permissions\.deny\[1\]: 'Read\(' .*The rest is in effect"):
            await session.settings.apply({"permissions": {"deny": ["Write", "Read("]}})
        with pytest.raises(SettingsError, match=r"hooks\.PreToolUs"):
            await session.settings.apply(LOST["an event that there is not"][0])
        await session.settings.apply({"permissions": {"deny": ["Edit"]}, "model": "haiku"})
        kept = (await session.settings.get()).sources
        # Each call replaces what the ones before have said of a key; the rules of the launch stay.
        assert [each["settings"]["permissions"]["deny"] for each in kept] == [["Bash", "Edit"]]
        with pytest.raises(ph.ControlError, match="not allowed: permissions"):
            await session.settings.update({"permissions": {"deny": ["Read"]}}, "userSettings")


async def test_a_key_in_the_settings_is_not_in_the_error(claude: Any) -> None:
    key = "sk-ant-REDACTME-0123456789"
    with pytest.raises(SettingsError) as caught:
        await claude.ask(settings={"env": {"TOKEN": key}, "permissions": {"deny": [f"Bash({key}"]}})
    assert key not in str(caught.value) + repr(caught.value.problems)


async def test_interrupting_the_check_ends_the_query(claude: Any, model: ScriptedModel) -> None:
    query = claude.ask(settings=DENY, timeout=0.05)
    with pytest.raises(ph.QueryTimeout), anyio.fail_after(30):
        await query
    assert not model.requests
