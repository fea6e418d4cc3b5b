"""`ClaudeAgentOptions`: each option reaches the CLI, and what cannot work is refused as programs expect."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse_compat import claude_agent_sdk as sdk
from pilothouse_compat.claude_agent_sdk._options import make_initialize_fields, make_options

UUID = "11111111-2222-4333-8444-555555555555"


async def decide(*_: Any) -> Any: ...


SCHEMA: dict[str, Any] = {"type": "object"}
CASES: dict[str, tuple[Any, Any]] = {
    "tools": (["Read", "Grep"], "--tools=Read,Grep"),
    "allowed_tools": (["Read"], "--allowedTools=Read"),
    "system_prompt": ("Be brief.", "Be brief."),
    "strict_mcp_config": (True, "--strict-mcp-config"),
    "permission_mode": ("plan", "--permission-mode=plan"),
    "continue_conversation": (True, "--continue"),
    "resume": (UUID, f"--resume={UUID}"),
    "session_id": (UUID, f"--session-id={UUID}"),
    "max_turns": (3, "--max-turns=3"),
    "max_budget_usd": (1.5, "--max-budget-usd=1.5"),
    "disallowed_tools": (["Bash"], "--disallowedTools=Bash"),
    "model": ("opus", "--model=opus"),
    "fallback_model": ("haiku", "--fallback-model=haiku"),
    "betas": (["context-1m-2025-08-07"], "--betas=context-1m-2025-08-07"),
    "permission_prompt_tool_name": ("mcp__a__b", "--permission-prompt-tool=mcp__a__b"),
    "add_dirs": (["/tmp"], "--add-dir=/tmp"),
    "extra_args": ({"some-flag": "value"}, "--some-flag=value"),
    "include_partial_messages": (True, "--include-partial-messages"),
    "include_hook_events": (True, "--include-hook-events"),
    "setting_sources": (["user"], "--setting-sources=user"),
    "plugins": ([{"type": "local", "path": "/p"}], "--plugin-dir=/p"),
    "max_thinking_tokens": (2000, "--max-thinking-tokens=2000"),
    "thinking": ({"type": "disabled"}, "--thinking=disabled"),
    "effort": ("low", "--effort=low"),
    "task_budget": ({"total": 5000}, "--task-budget=5000"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_option_reaches_the_command_line(name: str) -> None:
    value, flag = CASES[name]
    settings: dict[str, Any] = {name: value}
    found = " ".join(make_options(sdk.ClaudeAgentOptions(**settings)).to_cli_args())
    plain = " ".join(make_options(sdk.ClaudeAgentOptions()).to_cli_args())
    assert flag in found
    assert flag not in plain


def test_options_that_are_no_flags() -> None:
    made = make_options(
        sdk.ClaudeAgentOptions(
            cli_path="/c", max_buffer_size=5_000_000, output_format={"type": "json_schema", "schema": SCHEMA},
            client_app="app/1",
            env={"A": "b"}, session_store=sdk.InMemorySessionStore(), session_store_flush="eager", load_timeout_ms=1500,
            max_turns=0, tools={"type": "preset", "preset": "claude_code"}, mcp_servers={"a": {"command": "x"}},
        )
    )  # fmt: skip
    assert (str(made.cli), made.max_line_bytes, made.json_schema, made.load_timeout) == ("/c", 5_000_000, SCHEMA, 1.5)
    assert (made.session_store_flush, made.max_turns, made.tools, made.restart) == ("eager", None, "default", "never")
    assert made.env is not None
    assert (made.env["A"], made.env["CLAUDE_AGENT_SDK_CLIENT_APP"]) == ("b", "app/1")
    assert made.env["CLAUDE_CODE_SDK_READS_SESSION_STATE"] == "1"
    assert list(made.mcp_servers or {}) == ["a"]
    assert make_options(sdk.ClaudeAgentOptions()).system_prompt == ""


def test_options_that_are_harmless_there_are_harmless_here(tmp_path: Path) -> None:
    """The handshake is a line of 18 KB; the CLI takes a fork without a session, and a limit below 1, for none."""
    made = make_options(sdk.ClaudeAgentOptions(max_buffer_size=10, fork_session=True, max_turns=-1))
    assert (made.max_line_bytes, made.fork_session, made.max_turns) == (1024 * 1024, False, None)
    assert make_options(sdk.ClaudeAgentOptions(fork_session=True, resume=UUID)).fork_session
    made = make_options(sdk.ClaudeAgentOptions(continue_conversation=True, resume=UUID))
    assert (made.continue_conversation, made.resume) == (True, None)  # the CLI lets the first one win
    assert made.env is not None
    assert "PWD" not in made.env
    made = make_options(sdk.ClaudeAgentOptions(cwd=tmp_path))
    assert made.env is not None
    assert made.env["PWD"] == str(tmp_path)
    (tmp_path / "settings.json").write_text('{"env": {"A": "b"}}')
    sandbox: Any = {"enabled": True}
    for settings in ("settings.json", str(tmp_path / "settings.json"), '{"env": {"A": "b"}}'):
        made = make_options(sdk.ClaudeAgentOptions(settings=settings, sandbox=sandbox, cwd=tmp_path))
        assert made.settings == {"env": {"A": "b"}}
        assert made.sandbox is not None


def test_flags_of_the_program() -> None:
    flags: Any = {"max-turns": 3, "flag": True, "print": None, "verbose": None, "output-format": "stream-json"}
    made = make_options(sdk.ClaudeAgentOptions(extra_args=flags))
    assert made.extra_args == {"max-turns": "3", "flag": "True"}
    made = make_options(sdk.ClaudeAgentOptions(extra_args={"continue": None, "include-partial-messages": None}))
    assert (made.continue_conversation, made.partial_messages, made.extra_args) == (True, True, None)
    made = make_options(sdk.ClaudeAgentOptions(extra_args={"resume": UUID, "fork-session": None}))
    assert (made.resume, made.fork_session) == (UUID, True)
    assert make_options(sdk.ClaudeAgentOptions(extra_args={"session-id": UUID})).session_id == UUID
    with pytest.raises(sdk.CLIConnectionError, match="output-format"):
        make_options(sdk.ClaudeAgentOptions(extra_args={"output-format": "json"}))


def test_the_handshake_of_a_transport_of_the_program() -> None:
    agent = sdk.AgentDefinition(description="d", prompt="p", maxTurns=2)
    prompt: Any = {"type": "preset", "preset": "claude_code", "exclude_dynamic_sections": True, "snapshot": False}
    given = sdk.ClaudeAgentOptions(agents={"a": agent}, system_prompt=prompt, skills=["x"], forward_subagent_text=True)
    assert make_initialize_fields(given) == {
        "agents": {"a": {"description": "d", "prompt": "p", "maxTurns": 2}},
        "excludeDynamicSections": True,
        "systemPromptSnapshot": False,
        "skills": ["x"],
        "forwardSubagentText": True,
    }
    assert make_initialize_fields(sdk.ClaudeAgentOptions()) == {}


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a text of skills": ({"skills": "pdf"}, TypeError, "must be a list of skill names"),
    "a wildcard": ({"skills": ["a*"]}, ValueError, "skill"),
    "a kind of plugin": ({"plugins": [{"type": "x", "path": "y"}]}, ValueError, "Unsupported plugin type: x"),
    "two ways to ask": (
        {"can_use_tool": decide, "permission_prompt_tool_name": "mcp__a__b"}, ValueError, "permission_prompt_tool_name",
    ),
    "a store and checkpoints": (
        {"session_store": sdk.InMemorySessionStore(), "enable_file_checkpointing": True}, ValueError,
        "cannot be combined with enable_file_checkpointing",
    ),
    "no such directory": ({"cwd": "/no/such"}, sdk.CLIConnectionError, "Working directory does not exist: /no"),
    "no such CLI": ({"cli_path": "/no/such/claude"}, sdk.CLINotFoundError, "Claude Code not found"),
    "no such mode": ({"permission_mode": "strange"}, ValueError, "permission_mode"),
    "no such mode, as their error": ({"permission_mode": "strange"}, sdk.CLIConnectionError, "permission_mode"),
    "a hook that is a dictionary": ({"hooks": {"Stop": [{"hooks": [decide]}]}}, TypeError, "HookMatcher, got dict"),
    "a hook without time": (
        {"hooks": {"Stop": [sdk.HookMatcher(hooks=[decide], timeout=-1)]}}, sdk.CLIConnectionError, "more than 0",
    ),
    "no such settings": ({"settings": "/no", "sandbox": {"enabled": True}}, sdk.CLIConnectionError, "load settings"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_work_is_refused(case: str, tmp_path: Path) -> None:
    settings, kind, text = REFUSED[case]
    values: dict[str, Any] = {"cli_path": tmp_path / "claude", **settings}
    options = sdk.ClaudeAgentOptions(**values)
    with anyio.fail_after(20), pytest.raises(kind, match=text):
        async for _ in sdk.query(prompt="go", options=options):
            pass
    with anyio.fail_after(20), pytest.raises(kind, match=text):
        await sdk.ClaudeSDKClient(options).connect()


@pytest.mark.anyio
@pytest.mark.parametrize("prompt", [None, ["a"]])
async def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with anyio.fail_after(20), pytest.raises(TypeError, match="expected a text or an async iterable"):
        async for _ in sdk.query(prompt=prompt):
            pass


def test_every_option_is_read() -> None:
    known = {field.name for field in dataclasses.fields(sdk.ClaudeAgentOptions)}
    assert len(known) == 50
    source = (
        Path(make_options.__code__.co_filename).read_text()
        + Path(sdk.query.__code__.co_filename).with_name("_internal").joinpath("query.py").read_text()
    )
    assert {name for name in known if name not in source} == {"debug_stderr"}  # nobody reads it there, either
