"""Shell lines in the text of skills and commands: what stops them on the real CLI, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.hooks import PreSkillShellCommandEvent
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

TEXT = "---\nname: {0}\ndescription: says {0}\nallowed-tools: Bash(touch:*)\n---\nOutput: !`touch ran-{0}`\n"


@pytest.fixture
def ask(claude: Any, model: ScriptedModel) -> Callable[..., Any]:
    """Ask in a project with a command and a skill. Returns the names of those whose shell line ran."""
    if not claude.is_pinned:
        pytest.skip("the event came with Claude Code 2.1.332")
    folder = claude.cwd / ".claude"
    (folder / "skills" / "skill").mkdir(parents=True)
    (folder / "skills" / "skill" / "SKILL.md").write_text(TEXT.format("skill"))
    (folder / "commands").mkdir()
    (folder / "commands" / "command.md").write_text(TEXT.format("command"))
    model.on("use it", reply=Steps([ToolUse("Skill", {"skill": "skill"})], "done"))
    model.default = "done"

    async def run(prompt: str = "/command", **settings: Any) -> list[str]:
        given: dict[str, Any] = {"setting_sources": ["project"], "allowed_tools": ["Skill"], **settings}
        await claude.ask(prompt, **given)
        return sorted(path.name.removeprefix("ran-") for path in Path(claude.cwd).glob("ran-*"))

    return run


def deny(event: Any) -> ph.HookOutput:
    return ph.HookOutput.deny("no")


def fail(event: Any) -> None:
    raise LookupError("broken")


def return_nonsense(event: Any) -> Any:
    return "allow"


async def take_too_long(event: Any) -> None:
    await anyio.sleep_forever()


async def test_the_event_says_what_would_run(ask: Any) -> None:
    received: list[PreSkillShellCommandEvent] = []
    assert await ask(hooks={"PreSkillShellCommand": received.append}) == ["command"]
    (event,) = received
    assert type(event) is PreSkillShellCommandEvent
    assert (event.tool_name, event.tool_input) == ("Bash", {"command": "touch ran-command"})
    assert (event.command_name, event.command_source, event.invoked_by) == ("command", "projectSettings", "user")
    assert event.tool_use_id


@pytest.mark.parametrize("prompt", ["/command", "use it"])
async def test_nothing_but_its_own_hook_sees_a_shell_line(ask: Any, prompt: str) -> None:
    """If this fails, the CLI asks about these lines, and docs/permissions.md can say so."""
    received: list[str] = []

    def refuse(event: Any) -> ph.HookOutput:
        received.append(event.tool_name)
        return deny(event)

    def refuse_bash(request: ph.PermissionRequest) -> bool:
        return request.tool_name != "Bash"

    ran = await ask(prompt, hooks={"PreToolUse": ph.HookMatcher("Bash", refuse)}, can_use_tool=refuse_bash)
    assert (ran, received) == (["command" if prompt == "/command" else "skill"], [])


@pytest.mark.parametrize("prompt", ["/command", "use it"])
@pytest.mark.parametrize(
    "matcher",
    [
        pytest.param(ph.HookMatcher("Bash", deny), id="denies"),
        pytest.param(ph.HookMatcher(None, lambda event: ph.HookOutput(permission_decision="ask")), id="asks"),
        pytest.param(ph.HookMatcher(None, lambda event: ph.HookOutput.allow({"command": "true"})), id="changes"),
        pytest.param(ph.HookMatcher(None, fail), id="raises"),
        pytest.param(ph.HookMatcher(None, return_nonsense), id="nonsense"),
        pytest.param(ph.HookMatcher(None, take_too_long, timeout=0.5), id="too long"),
    ],
)
@pytest.mark.sample(6)
async def test_its_hook_stops_a_shell_line(ask: Any, prompt: str, matcher: Any) -> None:
    assert await ask(prompt, hooks={"PreSkillShellCommand": matcher}) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"settings": {"disableSkillShellExecution": True}},
        {"managed_settings": {"disableSkillShellExecution": True}},
        {"tools": ["Read", "Skill"]},
        {"disallowed_tools": ["Bash"]},
        {"setting_sources": []},
        {"restricted": True},
        {"disable_slash_commands": True},
        {"safe_mode": True},
        {"isolation": "strict"},
    ],
    ids=str,
)
@pytest.mark.sample(3)
async def test_options_that_stop_a_shell_line(ask: Any, claude: Any, settings: dict[str, Any]) -> None:
    env = {"HOME": None, "CLAUDE_CONFIG_DIR": None} if "isolation" in settings else {}
    sources = {"setting_sources": None} if "isolation" in settings else {}
    assert await ask(**settings, **sources, env=env) == []
