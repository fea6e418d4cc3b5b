"""What each option renders to: one typical value each, and where all of it goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from pilothouse.client import Middleware
from pilothouse.options import (
    TABLE,
    AgentDefinition,
    EnabledThinking,
    HttpServer,
    Invocation,
    Options,
    Plugin,
    QuestionConfig,
    Sandbox,
    StdioServer,
    SystemPromptPreset,
    ToolConfig,
    render,
)
from pilothouse.permissions import Asks

UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
HOME = "/home/me"


class Rendered(NamedTuple):
    """What an option adds to the invocation of no options at all."""

    argv: list[str] = []  # noqa: RUF012 - never changed
    env: dict[str, str] = {}  # noqa: RUF012
    initialize: dict[str, Any] = {}  # noqa: RUF012
    files: dict[str, Any] = {}  # noqa: RUF012
    other: dict[str, Any] = {}  # noqa: RUF012


def flag(*argv: str) -> Rendered:
    return Rendered(argv=list(argv))


class Watcher:
    def query_started(self, start: object) -> None: ...


class Store:
    async def append(self, key: object, entries: object) -> None: ...
    async def load(self, key: object) -> None: ...


def printer(line: str) -> None:
    print(line)


AGENT = AgentDefinition(description="Reads code", prompt="Review.", tools=[], max_turns=3)
AGENT_WIRE = {"description": "Reads code", "prompt": "Review.", "tools": [], "maxTurns": 3}
SERVERS = {"db": StdioServer(command="db", args=["-v"], env={"TOKEN": "x"}), "web": HttpServer(url="https://x.example")}
SERVERS_WIRE = {
    "db": {"type": "stdio", "command": "db", "args": ["-v"], "env": {"TOKEN": "x"}},
    "web": {"type": "http", "url": "https://x.example"},
}
MANAGED = {"permissions": {"deny": ["Bash"]}}
SANDBOX = Sandbox(enabled=True, auto_allow_bash_if_sandboxed=False)
PRESET = SystemPromptPreset(append="Be brief.", exclude_dynamic_sections=True, snapshot=False)
ASK = ToolConfig(ask_user_question=QuestionConfig(preview_format="html"))

# name: (value, what it adds)
ADDS_NOTHING = Rendered()  # what this process answers is offered in the handshake, by the client
RENDERINGS: dict[str, tuple[Any, Rendered]] = {
    "custom_tools": ([print], ADDS_NOTHING),
    "can_use_tool": (print, ADDS_NOTHING),
    "confirm": (print, ADDS_NOTHING),
    "on_question": (print, ADDS_NOTHING),
    "on_plan": (print, ADDS_NOTHING),
    "asks": (Asks(), ADDS_NOTHING),
    "hooks": ({"PreToolUse": [print]}, ADDS_NOTHING),
    "on_elicitation": (print, ADDS_NOTHING),
    "on_user_dialog": (print, ADDS_NOTHING),
    "supported_dialog_kinds": (["a"], Rendered(initialize={"supportedDialogKinds": ["a"]})),
    "restart": ("never", ADDS_NOTHING),
    "model": ("opus", flag("--model=opus")),
    "fallback_model": (["sonnet", "haiku"], flag("--fallback-model=sonnet,haiku")),
    "effort": ("high", flag("--effort=high")),
    "thinking": (
        EnabledThinking(budget_tokens=2000, display="summarized"),
        flag("--max-thinking-tokens=2000", "--thinking-display=summarized"),
    ),
    "max_thinking_tokens": (0, flag("--max-thinking-tokens=0")),
    "max_output_tokens": (4096, Rendered(env={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096"})),
    "task_budget": ({"total": 50_000}, flag("--task-budget=50000")),
    "betas": (["context-1m-2025-08-07"], flag("--betas=context-1m-2025-08-07")),
    "system_prompt": (
        PRESET,
        flag(
            "--append-system-prompt=Be brief.",
            "--exclude-dynamic-system-prompt-sections",
            "--system-prompt-snapshot=off",
        ),
    ),
    "append_system_prompt": ("-brief", flag("--append-system-prompt=-brief")),
    "append_subagent_system_prompt": ("Cite.", flag("--append-subagent-system-prompt=Cite.")),
    "plan_mode_instructions": ("Think first.", flag("--plan-mode-instructions=Think first.")),
    "verbatim_prompts": (True, Rendered()),
    "prompt_via": ("stdin", Rendered()),
    "tool_bridge": ("xml", Rendered()),
    "tools": (["Read", "Grep"], flag("--tools=Read,Grep")),
    "allowed_tools": (["View", "Bash(git:*)"], flag("--allowedTools=View,Bash(git:*)")),
    "disallowed_tools": (["Bash"], flag("--disallowedTools=Bash")),
    "tool_aliases": ({"Bash": "mcp__x__sh"}, Rendered(initialize={"toolAliases": {"Bash": "mcp__x__sh"}})),
    "tool_config": (ASK, Rendered(env={"CLAUDE_CODE_QUESTION_PREVIEW_FORMAT": "html"})),
    "skills": (
        ["pdf"],
        Rendered(["--allowedTools=Skill(pdf)", "--setting-sources=user,project"], initialize={"skills": ["pdf"]}),
    ),
    "disable_slash_commands": (True, flag("--disable-slash-commands")),
    "agent": ("reviewer", flag("--agent=reviewer")),
    "agents": ({"r": AGENT}, Rendered(initialize={"agents": {"r": AGENT_WIRE}})),
    "mcp_servers": (SERVERS, Rendered(files={"mcp-config": {"mcpServers": SERVERS_WIRE}})),
    "strict_mcp_config": (True, flag("--strict-mcp-config")),
    "wait_for_mcp": (True, ADDS_NOTHING),
    "permission_mode": ("acceptEdits", flag("--permission-mode=acceptEdits")),
    "allow_dangerously_skip_permissions": (True, flag("--allow-dangerously-skip-permissions")),
    "permission_prompt_tool_name": ("mcp__x__ask", flag("--permission-prompt-tool=mcp__x__ask")),
    "permission_prompts": ("none", flag("--permission-prompts=none")),
    "restricted": (True, flag("--restricted")),
    "sandbox": (
        SANDBOX,
        Rendered(files={"settings": {"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": False}}}),
    ),
    "max_turns": (5, flag("--max-turns=5")),
    "max_budget_usd": (2.0, flag("--max-budget-usd=2")),
    "max_budget_tokens": (100_000, Rendered()),
    "until": ("idle", Rendered()),
    "timeout": (5, Rendered()),
    "idle_timeout": (5, Rendered()),
    "startup_timeout": (5, Rendered()),
    "control_timeout": (5, Rendered()),
    "max_line_bytes": (1000, Rendered()),
    "api_max_retries": (0, Rendered(env={"CLAUDE_CODE_MAX_RETRIES": "0"})),
    "retry": (2, Rendered()),
    "on_usage_limit": ("wait", Rendered()),
    "usage_limit_ceiling": (60, Rendered()),
    "json_schema": ({"type": "object"}, flag('--json-schema={"type":"object"}')),
    "output_repairs": (0, Rendered()),
    "partial_messages": (True, flag("--include-partial-messages")),
    "include_hook_events": (True, flag("--include-hook-events")),
    "replay_user_messages": (True, flag("--replay-user-messages")),
    "forward_subagent_text": (True, flag("--forward-subagent-text")),
    "prompt_suggestions": (True, flag("--prompt-suggestions")),
    "agent_progress_summaries": (True, Rendered(initialize={"agentProgressSummaries": True})),
    "per_task_stop_affordance": (True, Rendered(initialize={"perTaskStopAffordance": True})),
    "resume": ("-id", flag("--resume=-id")),
    "continue_conversation": (True, flag("--continue")),
    "fork_session": (False, Rendered()),
    "session_id": (UUID, flag(f"--session-id={UUID}")),
    "resume_session_at": ("u", flag("--resume-session-at=u")),
    "resume_drops_turn": ("", flag("--resume-drops-turn=")),
    "title": ("My work", flag("--name=My work")),
    "persist_session": (False, flag("--no-session-persistence")),
    "session_store": (Store(), flag("--session-mirror")),
    "session_store_flush": ("eager", Rendered()),
    "load_timeout": (5, Rendered()),
    "session_lease": (5, Rendered()),
    "enable_file_checkpointing": (True, Rendered(env={"CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING": "true"})),
    "api_key": ("sk-1", Rendered(env={"ANTHROPIC_API_KEY": "sk-1"})),
    "auth_token": ("t-1", Rendered(env={"ANTHROPIC_AUTH_TOKEN": "t-1"})),
    "oauth_token": ("o-1", Rendered(env={"CLAUDE_CODE_OAUTH_TOKEN": "o-1"})),
    "base_url": ("https://x.example", Rendered(env={"ANTHROPIC_BASE_URL": "https://x.example"})),
    "provider": ("bedrock", Rendered(env={"CLAUDE_CODE_USE_BEDROCK": "1"})),
    "cwd": ("/srv", Rendered(other={"cwd": "/srv"})),
    "add_dirs": (["/a", "~/b"], flag("--add-dir=/a", f"--add-dir={HOME}/b")),
    "project_config_root": ("~/repo", flag(f"--project-config-root={HOME}/repo")),
    "cli": ("bundled", Rendered(other={"cli": "bundled"})),
    "user": ("nobody", Rendered(other={"user": "nobody"})),
    "env": ({"A": "b", "GONE": None}, Rendered(env={"A": "b"})),
    "inherit_env": (False, Rendered()),
    "isolation": (
        "strict",
        Rendered(
            argv=["--strict-mcp-config", "--no-session-persistence", "--setting-sources="], other={"is_isolated": True}
        ),
    ),
    "keep_detached": (True, Rendered(other={"keep_detached": True})),
    "config_dir": ("~/c", Rendered(env={"CLAUDE_CONFIG_DIR": f"{HOME}/c"})),
    "nonessential_traffic": (False, Rendered(env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"})),
    "client_app": ("app/1", Rendered(env={"CLAUDE_AGENT_SDK_CLIENT_APP": "app/1"})),
    "transport": (print, Rendered()),
    "settings": ({"a": 1}, Rendered(files={"settings": {"a": 1}})),
    "managed_settings": (
        MANAGED,
        Rendered(
            argv=["--managed-settings-in-initialize", "--await-initialize"], initialize={"managedSettings": MANAGED}
        ),
    ),
    "setting_sources": ([], flag("--setting-sources=")),
    "plugins": (
        ["/p", Plugin(path="-q", skip_mcp_discovery=True)],
        flag("--plugin-dir=/p", "--plugin-dir-no-mcp=-q"),
    ),
    "bare": (True, flag("--bare")),
    "safe_mode": (True, flag("--safe-mode")),
    "extra_args": ({"chrome": None, "brief": "x y"}, flag("--chrome", "--brief=x y")),
    "instrumentation": (Watcher(), Rendered()),
    "middleware": ([Middleware], Rendered()),
    "callback_wrapper": (print, ADDS_NOTHING),
    "stderr": (printer, Rendered(other={"on_stderr": printer})),
    "advisor": ("opus", flag("--advisor=opus")),
    "autocompact": (200_000, flag("--autocompact=200000")),
    "files": (["a:b", "c:d"], flag("--file=a:b", "--file=c:d")),
    "worktree": ("fix", flag("--worktree=fix")),
    "debug": ("api,mcp", flag("--debug=api,mcp")),
    "debug_file": ("~/log", flag(f"--debug-file={HOME}/log")),
}

NOTHING = render(Options(), {})
PLACES: dict[str, Callable[[Invocation], Any]] = {
    name: lambda invocation, name=name: getattr(invocation, name)
    for name in ("cli", "cwd", "is_isolated", "keep_detached", "on_stderr", "user")
}


def rendered(options: Options) -> Rendered:
    """What `options` add to an invocation."""
    invocation = render(options, {})
    assert invocation.argv[: len(NOTHING.argv)] == NOTHING.argv
    places = {name: read(invocation) for name, read in PLACES.items() if read(invocation) != read(NOTHING)}
    return Rendered(
        list(invocation.argv[len(NOTHING.argv) :]),
        {name: value for name, value in invocation.env.items() if name not in NOTHING.env},
        dict(invocation.initialize or {}),
        {file.flag: json.loads(file.content) for file in invocation.files},
        places,
    )


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)


def test_every_option_has_a_rendering() -> None:
    assert set(RENDERINGS) == set(TABLE)


@pytest.mark.requirement(
    "E4", "E5", "E6", "E7", "E9", "E11", "E65", "L7", "L8", "L9", "L10", "L11", "L12", "L13", "L14", "L15", "R36", "S27"
)
@pytest.mark.parametrize(("name", "value", "expected"), [(n, *pair) for n, pair in RENDERINGS.items()], ids=RENDERINGS)
def test_each_option_goes_where_it_should_and_nowhere_else(name: str, value: Any, expected: Rendered) -> None:
    options = Options.layer(**{name: value})  # type: ignore[misc]
    assert rendered(options) == expected
    assert options.to_cli_args() == [*expected.argv, *(f"--{flag}=<private file>" for flag in expected.files)]
    assert options.to_env() == expected.env


OTHER_FORMS: dict[str, tuple[dict[str, Any], Rendered]] = {
    "prompt": ({"system_prompt": "-X"}, flag("--system-prompt=-X")),
    "empty-prompt": ({"system_prompt": ""}, flag("--system-prompt=")),
    "custom": (
        {"system_prompt": {"type": "custom", "prompt": "X", "snapshot": True}},
        flag("--system-prompt=X", "--system-prompt-snapshot=on"),
    ),
    "blocks": ({"system_prompt": ["X", "Y"]}, Rendered(initialize={"systemPrompt": ["X", "Y"]})),
    "file": ({"system_prompt": {"type": "file", "path": "~/p.md"}}, flag(f"--system-prompt-file={HOME}/p.md")),
    "preset": ({"system_prompt": {"type": "preset", "preset": "claude_code"}}, Rendered()),
    "preset-in-camel-case": (
        {"system_prompt": {"type": "preset", "excludeDynamicSections": True}},
        flag("--exclude-dynamic-system-prompt-sections"),
    ),
    "adaptive": ({"thinking": "adaptive"}, flag("--thinking=adaptive")),
    "disabled": ({"thinking": "disabled"}, flag("--thinking=disabled")),
    "enabled": ({"thinking": {"type": "enabled"}}, flag("--thinking=enabled")),
    "display": (
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        flag("--thinking=adaptive", "--thinking-display=omitted"),
    ),
    "no-tools": ({"tools": []}, flag("--tools=")),
    "preset-tools": ({"tools": {"type": "preset", "preset": "claude_code"}}, flag("--tools=default")),
    "one-fallback": ({"fallback_model": "sonnet"}, flag("--fallback-model=sonnet")),
    "small-budget": ({"max_budget_usd": 0.001}, flag("--max-budget-usd=0.001")),
    "fork": ({"resume": "id", "fork_session": True}, flag("--resume=id", "--fork-session")),
    "resume-at": (
        {"resume": "id", "resume_session_at": "u", "resume_drops_turn": "v"},
        flag("--resume=id", "--resume-session-at=u", "--resume-drops-turn=v"),
    ),
    "fork-id": (
        {"resume": "id", "fork_session": True, "session_id": UUID},
        flag("--resume=id", "--fork-session", f"--session-id={UUID}"),
    ),
    "debug": ({"debug": True}, flag("--debug")),
    "off": ({"debug": False, "bare": False, "persist_session": True}, Rendered()),
    "off-in-handshake": ({"agent_progress_summaries": False}, Rendered()),
    "all-skills": (
        {"skills": "all", "allowed_tools": ["Read", "Skill"], "setting_sources": []},
        flag("--allowedTools=Read,Skill", "--setting-sources="),
    ),
    "some-skills": (
        {"skills": ["a", "b"], "allowed_tools": ["Skill(b)"]},
        Rendered(
            ["--allowedTools=Skill(b),Skill(a)", "--setting-sources=user,project"], initialize={"skills": ["a", "b"]}
        ),
    ),
    "sandbox-in-settings": (
        {"sandbox": {"enabled": True, "network": {"allowed_domains": ["x"]}}, "settings": '{"a": 1}'},
        Rendered(files={"settings": {"a": 1, "sandbox": {"enabled": True, "network": {"allowedDomains": ["x"]}}}}),
    ),
    "no-skills": ({"skills": []}, Rendered(["--setting-sources=user,project"], initialize={"skills": []})),
    "settings-path": ({"settings": "/etc/s.json"}, flag("--settings=/etc/s.json")),
    "wrapped-servers": (
        {"mcp_servers": {"mcpServers": {"a": {"command": "x"}}}},
        Rendered(files={"mcp-config": {"mcpServers": {"a": {"command": "x"}}}}),
    ),
    "no-servers": ({"mcp_servers": {}}, Rendered(files={"mcp-config": {"mcpServers": {}}})),
    "servers-of-this-process": ({"mcp_servers": {"mine": object()}}, ADDS_NOTHING),
    "servers-of-both-kinds": (
        {"mcp_servers": {"mine": object(), "a": {"command": "x"}}},
        Rendered(files={"mcp-config": {"mcpServers": {"a": {"command": "x"}}}}),
    ),
    "servers-path": ({"mcp_servers": "~/m.json"}, flag(f"--mcp-config={HOME}/m.json")),
    "extra-dash": ({"extra_args": {"x": "-y"}}, flag("--x=-y")),
    "a-set-has-an-order": ({"disallowed_tools": {"b", "a"}}, flag("--disallowedTools=a,b")),
}


@pytest.mark.parametrize(("settings", "expected"), OTHER_FORMS.values(), ids=OTHER_FORMS)
@pytest.mark.requirement("E12", "E77", "L7", "L11", "S27")
def test_other_forms_of_values(settings: dict[str, Any], expected: Rendered) -> None:
    assert rendered(Options(**settings)) == expected


@pytest.mark.requirement("E48")
def test_the_arguments_of_some_options_are_a_list_of_strings() -> None:
    options = Options(max_turns=20, allowed_tools=["View", "Bash(git:*)"], system_prompt="You are Y")
    assert options.to_cli_args() == [
        "--system-prompt=You are Y",
        "--allowedTools=View,Bash(git:*)",
        "--max-turns=20",
    ]
    assert Options().to_cli_args() == []
    assert Options().to_env() == {}


@pytest.mark.requirement("S27", "S28", "L17")
def test_thinking_tokens_of_the_call_win() -> None:
    model = Options(max_thinking_tokens=1000)
    assert model.merge(Options(max_thinking_tokens=2000)).to_cli_args() == ["--max-thinking-tokens=2000"]
    # What was said in general gives way to the more precise form.
    budget = model.merge(Options(thinking={"type": "enabled", "budget_tokens": 3000}))
    assert budget.to_cli_args() == ["--max-thinking-tokens=3000"]
    assert model.merge(Options(thinking="disabled")).to_cli_args() == ["--thinking=disabled"]
