"""`effective_policy` says what the real CLI does: each cell that a scripted model can reach, in a table of settings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.messages import SystemMessage
from pilothouse.options import PolicyWarning
from pilothouse.permissions import QuestionRequest
from pilothouse_policy import effective_policy
from pilothouse_policy.outcomes import CALL_DESCRIPTIONS
from pilothouse_testing import ScriptedModel, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

SANDBOX = {"IS_SANDBOX": "1"}


def calls(cwd: Path, outside: Path) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Calls by name: the tool, the kind of call, the input."""

    def run(command: str) -> dict[str, Any]:
        return {"command": command, "description": "d"}

    page = {"url": "http://127.0.0.1:9/", "prompt": "p"}
    edit = {"file_path": f"{cwd}/a.txt", "old_string": "ahoy", "new_string": "hi"}
    return {
        "Read": ("Read", "read", {"file_path": f"{cwd}/a.txt"}),
        "Read elsewhere": ("Read", "read elsewhere", {"file_path": f"{outside}/b.txt"}),
        "Edit": ("Edit", "edit", edit),
        "Write": ("Write", "edit", {"file_path": f"{cwd}/new.txt", "content": "x"}),
        "Write guarded": ("Write", "edit guarded", {"file_path": f"{cwd}/.git/hooks/x", "content": "x"}),
        "Write elsewhere": ("Write", "edit elsewhere", {"file_path": f"{outside}/new.txt", "content": "x"}),
        "Bash look": ("Bash", "look", run("ls")),
        "Bash tidy": ("Bash", "tidy", run("touch made")),
        "Bash run": ("Bash", "run", run("curl -s http://127.0.0.1:9/")),
        "Glob": ("Glob", "read", {"pattern": "*.txt"}),
        "WebFetch": ("WebFetch", "reach", page),
        "mcp": ("mcp__own__f", "serve", {"x": "1"}),
        "CronList": ("CronList", "own", {}),
        "AskUserQuestion": ("AskUserQuestion", "ask", QUESTION),
    }


QUESTION = {
    "questions": [
        {
            "question": "Which?",
            "header": "h",
            "multiSelect": False,
            "options": [{"label": "a", "description": "d"}, {"label": "b", "description": "d"}],
        }
    ]
}

ASKED = {"can_use_tool": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "somebody": {**ASKED},
    "acceptEdits": {"permission_mode": "acceptEdits"},
    "acceptEdits, somebody": {**ASKED, "permission_mode": "acceptEdits"},
    "bypassPermissions": {"permission_mode": "bypassPermissions", "env": SANDBOX},
    "bypassPermissions, somebody": {**ASKED, "permission_mode": "bypassPermissions", "env": SANDBOX},
    "bypassPermissions, denied": {
        "permission_mode": "bypassPermissions",
        "env": SANDBOX,
        "disallowed_tools": ["WebFetch", "mcp__own"],
    },
    "bypassPermissions, forbidden": {
        **ASKED,
        "permission_mode": "bypassPermissions",
        "env": SANDBOX,
        "settings": {"permissions": {"disableBypassPermissionsMode": "disable"}},
    },
    "bypassPermissions, rules that ask": {
        **ASKED,
        "permission_mode": "bypassPermissions",
        "env": SANDBOX,
        "settings": {"permissions": {"ask": ["Bash", "WebFetch"]}},
    },
    "dontAsk": {**ASKED, "permission_mode": "dontAsk"},
    "dontAsk, allowed": {**ASKED, "permission_mode": "dontAsk", "allowed_tools": ["Bash", "Write", "mcp__own"]},
    "plan": {**ASKED, "permission_mode": "plan"},
    "plan, allowed": {**ASKED, "permission_mode": "plan", "allowed_tools": ["Bash", "Write", "WebFetch", "mcp__own"]},
    "auto": {**ASKED, "permission_mode": "auto"},
    "auto, allowed": {**ASKED, "permission_mode": "auto", "allowed_tools": ["Bash", "Write", "WebFetch", "mcp__own"]},
    "allowed": {**ASKED, "allowed_tools": ["Read", "Bash", "Write", "WebFetch", "mcp__own__f"]},
    "allowed and nobody": {"allowed_tools": ["Read", "Edit"]},
    "allowed, asks": {**ASKED, "allowed_tools": ["Bash"], "settings": {"permissions": {"ask": ["Bash"]}}},
    "allowed, rules passed over": {**ASKED, "allowed_tools": ["*", "mcp__*", "bash", "Bash(curl"]},
    "allowed, a blank in the rule": {**ASKED, "allowed_tools": ["WebFetch (domain:example.com)", "mcp__own__f(*)"]},
    "denied": {**ASKED, "disallowed_tools": ["Bash", "Edit"]},
    "denied, all": {**ASKED, "disallowed_tools": ["*"]},
    "denied, mcp": {**ASKED, "disallowed_tools": ["mcp__*"]},
    "tools": {**ASKED, "tools": ["Read", "Glob"]},
    "no tools": {**ASKED, "tools": []},
    "tools and a rule for another": {"tools": ["Read"], "allowed_tools": ["Bash"]},
    "restricted": {**ASKED, "restricted": True},
    "bare": {**ASKED, "bare": True},
    "settings": {**ASKED, "settings": {"permissions": {"defaultMode": "acceptEdits", "allow": ["WebFetch"]}}},
    "a mode over settings": {
        "permission_mode": "dontAsk",
        "settings": {"permissions": {"defaultMode": "acceptEdits"}},
    },
    "managed settings": {
        **ASKED,
        "allowed_tools": ["Write"],
        "managed_settings": {
            "allowManagedPermissionRulesOnly": True,
            "permissions": {"deny": ["WebFetch"], "allow": ["mcp__own"]},
        },
    },
    "managed rules alone": {
        **ASKED,
        "allowed_tools": ["WebFetch"],
        "settings": {"permissions": {"ask": ["Read"], "deny": ["Bash"]}},
        "managed_settings": {"allowManagedPermissionRulesOnly": True},
    },
    "nobody by permission_prompts": {"permission_prompts": "none"},
    "a hook for PermissionRequest": {"hooks": {"PermissionRequest": lambda event: ph.HookOutput.allow()}},  # pyright: ignore[reportUnknownLambdaType]
    "questions alone": {"on_question": lambda request: "a"},  # pyright: ignore[reportUnknownLambdaType]
    "read_only": {"preset": "read_only"},
    "read_only, somebody": {"preset": "read_only", **ASKED},
    "edit": {"preset": "edit"},
    "edit, somebody": {"preset": "edit", **ASKED},
    "full": {"preset": "full", "env": SANDBOX},
    "untrusted_repository": {"preset": "untrusted_repository", **ASKED},
}


def outcomes(query: ph.Query, asked: set[str], ids: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What became of each call, from the messages."""
    raw = [message.raw for message in query._received.kept]
    users = [r for r in raw if r.get("type") == "user" and isinstance(r["message"]["content"], list)]
    for name, tool_use_id in ids.items():
        for frame in users:
            for block in frame["message"]["content"]:
                if block.get("tool_use_id") != tool_use_id:
                    continue
                meta = [m for m in frame.get("tool_result_meta") or [] if m["id"] == tool_use_id]
                decision = (meta[0].get("permission_decision") or {}) if meta else {}
                if "No such tool available" in str(block["content"]):
                    yield name, "unavailable"
                elif decision.get("reason_type") == "classifier":
                    yield name, "judged"
                elif tool_use_id in asked or decision.get("reason_type") == "hook":
                    yield name, "asks"
                elif decision.get("decision") == "reject":
                    yield name, "denied"
                else:
                    yield name, "runs"


@pytest.mark.sample(3)
@pytest.mark.parametrize("title", SETTINGS)
async def test_the_policy_is_what_the_cli_does(claude: Any, model: ScriptedModel, title: str) -> None:
    if not claude.is_pinned:
        pytest.skip("other versions differ a little: 2.1.326 denies a call where 2.1.330 has no such tool")
    settings: dict[str, Any] = dict(SETTINGS[title])
    outside = claude.home / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("ahoy")
    (claude.cwd / "a.txt").write_text("ahoy")
    (claude.cwd / ".git" / "hooks").mkdir(parents=True)
    table = calls(claude.cwd, outside)
    if settings.get("permission_mode") in ("plan", "auto"):
        del table["AskUserQuestion"]  # the scripted model has no part for it there
    ids = {name: f"toolu_{number:04}" for number, name in enumerate(table)}
    for name, (tool, _, given) in table.items():
        model.reply(ToolUse(tool, given, id=ids[name]))
    model.reply("done")
    asked: set[str] = set()

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        asked.add(request.tool_use_id or "")
        return True

    def on_question(request: QuestionRequest) -> str:
        asked.add(request.request.tool_use_id or "")
        return "a"

    for name, function in (("can_use_tool", can_use_tool), ("on_question", on_question)):
        if name in settings:
            settings[name] = function

    @ph.tool
    def f(x: str) -> str:
        """F."""
        return x

    given = settings.pop("preset", None)
    env = settings.pop("env", {})
    settings |= {"mcp_servers": {"own": ph.sdk_server("own", [f])}, "setting_sources": []}
    options = ph.Options(**settings) if given is None else ph.Options.preset(given, **settings)
    policy = effective_policy(options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyWarning)  # some are contradictions on purpose
        query = claude.ask(env={"IS_SANDBOX": None, **env}, **options.as_dict())
    async for message in query:
        assert not isinstance(message, SystemMessage) or message.subtype != "api_error"
    happened = dict(outcomes(query, asked, ids))
    assert happened.keys() == table.keys()
    predicted = {name: _predicted(policy, tool, kind) for name, (tool, kind, _) in table.items()}
    differ = {name: (predicted[name], happened[name]) for name in table if predicted[name] != happened[name]}
    assert not differ, f"(predicted, happened): {differ}\n{policy}"


def _predicted(policy: Any, tool: str, kind: str) -> str:
    return policy.outcome(tool, CALL_DESCRIPTIONS[kind])
