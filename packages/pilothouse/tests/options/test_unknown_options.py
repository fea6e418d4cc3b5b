"""Names of other libraries: each is an option here, has another name, or an error that says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.errors import OptionsError
from pilothouse.options import TABLE, Options
from pilothouse.options.values import NOT_OPTIONS, OPTION_ALIASES, to_snake_case


def words(text: str) -> list[str]:
    return text.split()


# Every option of the other Python SDK (0.2.189), and of the TypeScript one (0.3.332).
PYTHON = words("""
    tools allowed_tools system_prompt mcp_servers strict_mcp_config permission_mode continue_conversation resume
    session_id max_turns max_budget_usd disallowed_tools model fallback_model betas permission_prompt_tool_name cwd
    cli_path settings add_dirs env extra_args max_buffer_size debug_stderr stderr can_use_tool hooks user
    include_partial_messages include_hook_events forward_subagent_text verbatim_prompts fork_session resume_session_at
    resume_drops_turn agents setting_sources skills sandbox plugins max_thinking_tokens thinking effort output_format
    enable_file_checkpointing session_store session_store_flush load_timeout_ms task_budget client_app
""")
TYPESCRIPT = words("""
    abortController additionalDirectories projectConfigRoot agent agents allowedTools canUseTool continue cwd
    disallowedTools toolAliases tools env executable executableArgs extraArgs fallbackModel enableFileCheckpointing
    toolConfig forkSession betas hooks onElicitation onUserDialog supportedDialogKinds perTaskStopAffordance
    persistSession sessionStore sessionStoreFlush loadTimeoutMs includeHookEvents includePartialMessages
    forwardSubagentText verbatimPrompts thinking effort maxThinkingTokens maxTurns maxBudgetUsd taskBudget mcpServers
    mcpServersDelivery model outputFormat pathToClaudeCodeExecutable permissionMode planModeInstructions
    allowDangerouslySkipPermissions permissionPromptToolName permissionPrompts plugins pluginDelivery promptSuggestions
    agentProgressSummaries resume sessionId resumeSessionAt resumeDropsTurn sandbox settings managedSettings
    settingSources skills debug debugFile stderr strictMcpConfig systemPrompt title spawnClaudeCodeProcess
""")


def refused(name: str) -> str:
    with pytest.raises(OptionsError) as caught:
        Options(**{name: "x"})  # type: ignore[misc]
    assert caught.value.option == name
    return str(caught.value)


@pytest.mark.parametrize("name", PYTHON)
def test_every_name_of_the_other_python_sdk_has_an_answer(name: str) -> None:
    answers = [name in TABLE, name in OPTION_ALIASES, name in NOT_OPTIONS]
    assert answers.count(True) == 1
    if name not in TABLE:
        assert "did you mean" not in refused(name)


@pytest.mark.parametrize("name", TYPESCRIPT)
def test_every_name_of_the_typescript_sdk_has_an_answer(name: str) -> None:
    plain = to_snake_case(name)
    answers = [plain in TABLE, name in OPTION_ALIASES or plain in OPTION_ALIASES, plain in NOT_OPTIONS]
    assert answers.count(True) == 1
    if name not in TABLE:
        assert "did you mean" not in refused(name)


def test_the_ledgers_are_whole_and_name_what_there_is() -> None:
    assert len(PYTHON) == 50
    assert len(TYPESCRIPT) == 70
    assert set(OPTION_ALIASES.values()) <= set(TABLE)
    for ledger in (OPTION_ALIASES, NOT_OPTIONS):
        assert not set(ledger) & set(TABLE)
    assert not set(OPTION_ALIASES) & set(NOT_OPTIONS)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("cli_path", "unknown option 'cli_path': the name here is 'cli'"),
        ("maxTurns", "unknown option 'maxTurns': the name here is 'max_turns'"),
        ("max-turns", "the name here is 'max_turns'"),
        ("output_format", "the name here is 'json_schema', and takes the schema itself"),
        ("noSessionPersistence", "the name here is 'persist_session', with the opposite meaning"),
        ("max_thinking", "the name here is 'max_thinking_tokens'"),
        ("sessionStore", "unknown option 'sessionStore': the name here is 'session_store'"),
        ("loadTimeoutMs", "there is no option 'loadTimeoutMs': use `load_timeout`, in seconds"),
        ("abortController", "there is no option 'abortController': cancel the task"),
        ("temperature", "Claude Code does not let it be set"),
        ("max_tursn", "unknown option 'max_tursn'; did you mean 'max_turns'?"),
        ("MaxTurns", "the name here is 'max_turns'"),
        ("additional_directories", "the name here is 'add_dirs'"),
        ("path_to_claude_code_executable", "the name here is 'cli'"),
        ("adapter", "the name here is 'transport'"),
        ("permission_handler", "the name here is 'can_use_tool'"),
        ("permissionHandler", "the name here is 'can_use_tool'"),
        ("modle", "did you mean 'model'?"),
        ("allowed_tool", "did you mean 'allowed_tools'?"),
        ("qqqqqqqq", "`pilothouse.options.TABLE` lists them"),
    ],
)
@pytest.mark.requirement("E45")
def test_an_unknown_name_gets_a_suggestion(name: str, reported: str) -> None:
    assert reported in refused(name)


TEXTS: list[tuple[str, str, Any]] = [
    ("model", "opus", "opus"),
    ("max_turns", "3", 3),
    ("max_thinking_tokens", "0", 0),
    ("max_budget_usd", "0.25", 0.25),
    ("bare", "yes", True),
    ("bare", "OFF", False),
    ("debug", "true", True),
    ("wait_for_mcp", "1", True),
    ("wait_for_mcp", "off", False),
    ("wait_for_mcp", "2.5", 2.5),
    ("debug", "api,mcp", "api,mcp"),
    ("user", "1000", 1000),
    ("user", "nobody", "nobody"),
    ("allowed_tools", "Read,Bash(git log:*,git diff:*), Edit", ["Read", "Bash(git log:*,git diff:*)", "Edit"]),
    ("tools", "default", "default"),
    ("tools", "", []),
    ("skills", "all", "all"),
    ("skills", "pdf", ["pdf"]),
    ("thinking", "adaptive", "adaptive"),
    ("thinking", '{"type": "disabled"}', {"type": "disabled"}),
    ("settings", '{"a": 1}', {"a": 1}),
    ("settings", "s.json", "s.json"),
    ("json_schema", '{"type": "object"}', {"type": "object"}),
    ("plugins", "a,b", ["a", "b"]),
    ("env", '{"A": null}', {"A": None}),
]


@pytest.mark.parametrize(("name", "text", "value"), TEXTS, ids=[f"{name}={text}" for name, text, _ in TEXTS])
def test_values_are_read_from_text(name: str, text: str, value: Any) -> None:
    kind = TABLE[name].value_type
    assert kind.parse is not None
    assert kind.parse(text) == value
    kind.clean(kind.parse(text))


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("max_turns", "x" * 1000, "expected a whole number of at least 1, got 'xxx"),
        ("bare", "maybe", "expected true or false, got 'maybe'"),
        ("timeout", "soon", "expected a number"),
        ("json_schema", "[]", "expected a JSON object"),
        ("json_schema", "{", "expected a JSON object"),
        ("allowed_tools", "[1", "expected a JSON list"),
    ],
)
def test_a_text_that_cannot_be_read_says_what_was_expected(name: str, text: str, reported: str) -> None:
    parse = TABLE[name].value_type.parse
    assert parse is not None
    with pytest.raises(ValueError, match=reported.replace("[", r"\[")) as caught:
        parse(text)
    assert len(str(caught.value)) < 150


def test_python_objects_have_no_text_and_everything_else_has() -> None:
    objects = {name for name, option in TABLE.items() if option.value_type.parse is None}
    assert objects == {
        "asks", "callback_wrapper", "can_use_tool", "confirm", "custom_tools", "hooks", "instrumentation", "middleware",
            "on_elicitation", "on_plan", "on_question", "on_user_dialog", "session_store", "stderr", "transport",
    }  # fmt: skip
    assert not any(TABLE[name].in_files for name in objects)
    for option in TABLE.values():
        assert bool(option.value_type.metavar) == (option.value_type.parse is not None)


PLACES: list[tuple[str, Any, Any]] = [
    ("cwd", "sub", "/etc/app/sub"),
    ("cwd", "../sub", "/etc/sub"),
    ("cwd", "/sub", "/sub"),
    ("cwd", "~/sub", "~/sub"),
    ("cli", "auto", "auto"),
    ("cli", "bundled", "bundled"),
    ("cli", "bin/claude", "/etc/app/bin/claude"),
    ("add_dirs", ["a", "/b"], ["/etc/app/a", "/b"]),
    ("settings", "s.json", "/etc/app/s.json"),
    ("settings", '{"a": 1}', '{"a": 1}'),
    ("settings", {"a": "b"}, {"a": "b"}),
    ("mcp_servers", "m.json", "/etc/app/m.json"),
    ("debug_file", "log", "/etc/app/log"),
    ("model", "opus", "opus"),
    ("system_prompt", "You are brief.", "You are brief."),
]


@pytest.mark.parametrize(("name", "value", "anchored"), PLACES)
def test_relative_paths_are_made_absolute_and_nothing_else(name: str, value: Any, anchored: Any) -> None:
    assert TABLE[name].value_type.resolve_paths(value, "/etc/app") == anchored


def test_paths_inside_nested_values_are_made_absolute() -> None:
    plugins = TABLE["plugins"].value_type.resolve_paths(["p", {"path": "/q"}], "/etc/app")
    assert [plugin.path for plugin in plugins] == ["/etc/app/p", "/q"]
    prompt = TABLE["system_prompt"].value_type.resolve_paths({"type": "file", "path": "p.md"}, "/etc/app")
    assert prompt.path == "/etc/app/p.md"


@pytest.mark.parametrize("name", ["retries_of_the_other_kind", "banana", "colour", "withWhatever"])
def test_no_name_is_suggested_that_is_not_alike(name: str) -> None:
    assert "did you mean" not in refused(name)


def test_a_builder_says_where_with_options_is() -> None:
    with pytest.raises(AttributeError, match="one option per call"):
        Options.make().withOptions  # noqa: B018
