"""The command line as data: flags made from the table, values by kind, mistakes in one line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from command_process import LIMIT_S, PATH, Command

from pilothouse.options import TABLE, Options, Plugin
from pilothouse_cli.arguments import COMMANDS, parse, parse_value
from pilothouse_cli.flags import AskRequest, DemoRequest, has_rare_flags
from pilothouse_cli.help_texts import get_flag

# One text for each type of options that a command line can set, and the value it must become.
VALUES = {
    "resume": ("0b9f6d1e", "0b9f6d1e"),
    "load_timeout": ("5", 5.0),
    "session_store_flush": ("eager", "eager"),
    "model": ("opus", "opus"),
    "fallback_model": ("sonnet", "sonnet"),
    "effort": ("low", "low"),
    "max_thinking_tokens": ("2000", 2000),
    "betas": ("a, b", ["a", "b"]),
    "autocompact": ("200000", 200_000),
    "inherit_env": ("PATH,AWS_*", ["PATH", "AWS_*"]),
    "worktree": ("fix", "fix"),
    "system_prompt": ("Be brief, @all.", "Be brief, @all."),
    "append_system_prompt": ("", ""),
    "verbatim_prompts": ("yes", True),
    "prompt_via": ("argv", "argv"),
    "tools": ("default", "default"),
    "permission_mode": ("plan", "plan"),
    "max_turns": ("3", 3),
    "max_budget_usd": ("0.25", 0.25),
    "timeout": ("1.5", 1.5),
    "cwd": ("sub", "sub"),
    "add_dirs": ("one,two", [str(Path.cwd() / "one"), str(Path.cwd() / "two")]),
    "cli": ("bundled", "bundled"),
    "settings": ('{"a": 1}', {"a": 1}),
    "setting_sources": ("user,local", ["user", "local"]),
    "mcp_servers": ("mcp.json", str(Path.cwd() / "mcp.json")),
    "wait_for_mcp": ("20", 20.0),
    "agents": ('{"reviewer": {"description": "d", "prompt": "p"}}', {"reviewer": {"description": "d", "prompt": "p"}}),
    "extra_args": ('{"chrome": null}', {"chrome": None}),
    "session_id": ("1b4e28ba-2fa1-11d2-883f-0016d3cca427", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
    "json_schema": ('{"type": "object"}', {"type": "object"}),
    "thinking": ("disabled", "disabled"),
    "task_budget": ("20000", 20000),
    "tool_aliases": ('{"Shell": "Bash"}', {"Shell": "Bash"}),
    "tool_config": ('{"askUserQuestion": {"previewFormat": "html"}}', {"askUserQuestion": {"previewFormat": "html"}}),
    "skills": ("pdf,xlsx", ["pdf", "xlsx"]),
    "tool_bridge": ("xml", "xml"),
    "permission_prompts": ("none", "none"),
    "sandbox": ('{"enabled": true}', {"enabled": True}),
    "retry": ('{"attempts": 2, "on": ["overloaded"]}', {"attempts": 2, "on": ["overloaded"]}),
    "on_usage_limit": ("wait", "wait"),
    "base_url": ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    "provider": ("bedrock", "bedrock"),
    "user": ("nobody", "nobody"),
    "plugins": ("one,two", [Plugin(path=str(Path.cwd() / "one")), Plugin(path=str(Path.cwd() / "two"))]),
    "debug": ("api,mcp", "api,mcp"),
    "restart": ("never", "never"),
    "isolation": ("strict", "strict"),
    "until": ("idle", "idle"),
}
REFUSED = {
    **dict.fromkeys(("api_key", "auth_token", "oauth_token", "env"), "environment"),
    **dict.fromkeys(
        ("asks", "can_use_tool", "confirm", "custom_tools", "hooks", "on_elicitation", "on_plan"), "Python"
    ),
    **dict.fromkeys(("on_question", "on_user_dialog", "session_store", "transport", "instrumentation"), "Python"),
    **dict.fromkeys(("callback_wrapper", "middleware", "stderr"), "Python"),
}


def ask(*args: str) -> AskRequest:
    request = parse(["ask", *args])
    assert isinstance(request, AskRequest)
    return request


def mistake(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that a mistake gives."""
    with pytest.raises(SystemExit) as ended:
        parse(list(args))
    reported = capsys.readouterr()
    assert ended.value.code == 2
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    return reported.err


def test_every_option_can_be_set_or_is_refused_with_a_reason() -> None:
    kinds = [TABLE[name].value_type for name in VALUES]
    assert not [name for name in TABLE.keys() - REFUSED.keys() if TABLE[name].value_type not in kinds]
    assert not set(VALUES) & set(REFUSED)


@pytest.mark.parametrize(("name", "text", "value"), [(n, *pair) for n, pair in VALUES.items()], ids=list(VALUES))
def test_set_reads_every_option_by_its_kind(name: str, text: str, value: object) -> None:
    settings = ask("hi", "--set", f"{name}={text}").settings
    assert settings == {name: value}
    assert name in Options.layer(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_set_refuses_keys_and_python_objects(name: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, "ask", "hi", "--set", f"{name}=sk-ant-secret")
    assert reason in line
    assert "sk-ant-secret" not in line


def test_flags_are_the_options_of_the_table() -> None:
    request = ask(
        "Why?", "--model", "opus", "--max-turns=4", "--max-budget-usd", "0.5", "--tools", "",
        "--allowed-tools=Read,Grep",
        "--permission-mode", "plan", "--continue", "--add-dir", "a", "--add-dir", "b", "--mcp-config", "m.json",
        "--timeout", "9", "--thinking", "--stream-json",
    )  # fmt: skip
    assert request.prompt == "Why?"
    assert request.thinking
    assert request.form == "stream-json"
    assert request.settings == {
        "model": "opus",
        "max_turns": 4,
        "max_budget_usd": 0.5,
        "tools": [],
        "allowed_tools": ["Read", "Grep"],
        "permission_mode": "plan",
        "continue_conversation": True,
        "add_dirs": [str(Path.cwd() / "a"), str(Path.cwd() / "b")],
        "mcp_servers": str(Path.cwd() / "m.json"),
        "timeout": 9.0,
    }


def test_a_prompt_may_start_with_a_dash() -> None:
    assert ask("--", "--why?").prompt == "--why?"


def test_a_schema_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "title": "Ä"}', "utf-8")
    assert ask("hi", "--json-schema", f"@{path}").settings == {"json_schema": {"type": "object", "title": "Ä"}}


@pytest.mark.parametrize(
    ("args", "output"),
    [
        ((), "which command"),
        (("ask", "hi", "--max-turns", "abc"), "--max-turns: expected a whole number"),
        (("ask", "hi", "--permission-mode", "accept_edits"), "got 'accept_edits'; did you mean 'acceptEdits'?"),
        (("ask", "hi", "--session-id", "7"), "a UUID"),
        (("ask", "hi", "--json-schema", "@/no/such/file"), "No such file"),
        (("ask", "hi", "--json-schema", "schema.json"), "for the content of a file write @FILE"),
        (("-p", "hi"), 'to ask a question: pilothouse ask "…" (see'),
        (("ask", "-p", "hi"), 'unrecognized arguments: -p; to ask a question: pilothouse ask "…"'),
        (("ask", "hi", "--output-format", "json"), "pilothouse ask has --json and --stream-json"),
        (("serve", "--port", "99999"), "--port: expected a port, a number from 0 to 65535, got '99999'"),
        (("serve", "--max-sessions", "many"), "--max-sessions: expected a whole number, got 'many'"),
        (("ask", "hi", "--json-schema", "[]"), "JSON object"),
        (("ask", "hi", "--json", "--stream-json"), "not allowed with"),
        (("ask", "hi", "--set", "bare"), "NAME=VALUE"),
        (("ask", "hi", "--set", "max-trns=3"), "did you mean 'max_turns'"),
        (("ask", "hi", "--max-tur", "3"), "--max-tur"),
        (("demo", "--local", "--scripted"), "not allowed with"),
        (
            ("ask", "--modle", "sonnet", "hi"),
            "unrecognized arguments: --modle; did you mean --model? (see `pilothouse ask",
        ),
        (("ask", "hello", "there"), "unrecognized arguments: there; put text with spaces in quotes"),
        (("ask", "hi", "--wibble-wobble"), "unrecognized arguments: --wibble-wobble (see"),
        (("asc",), "there is no command 'asc'; did you mean `pilothouse ask`?"),
        (("serve", "--prot", "9000"), "unrecognized arguments: --prot; did you mean --port?"),
        (("hello there",), "to ask a question: pilothouse ask 'hello there' (see"),
        (("xyz",), "there is no command 'xyz'; the commands are demo, doctor, install-cli"),
        (("--model", "opus", "hi"), "--model goes after a command, as in `pilothouse ask --model …`"),
        (("ask", "hi", "--set", "foo=1"), "unknown option 'foo'; `pilothouse options` lists them (see"),
        (("ask", "hi", "--set", "cli_path=x"), "unknown option 'cli_path': the name here is 'cli' (see"),
        (
            ("ask", "hi", "--json-schema", "{bad"),
            "expected a JSON object: a name in double quotes is missing, at character 2",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    args: tuple[str, ...], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = mistake(capsys, *args)
    assert output in line
    assert "--help`" in line


@pytest.mark.parametrize("args", [(), ("--all",), ("--limit", "3"), ("--json",)])
def test_sessions_alone_lists_them(args: tuple[str, ...]) -> None:
    assert parse(["sessions", *args]) == parse(["sessions", "list", *args])


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(ValueError, match="expected a whole number") as error:
        parse_value(TABLE["max_turns"], "x" * 10_000)
    assert len(str(error.value)) < 200


def test_demo_requests() -> None:
    assert parse(["demo"]) == DemoRequest()
    assert parse(["demo", "--scripted"]) == DemoRequest(scripted=True)


COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_pilothouse 2> errors
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["se"], {"serve", "sessions"}),
        (["ask", "--max-t"], {"--max-thinking-tokens", "--max-turns"}),
        (["sessions", "sho"], {"show"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["replay", "run"], {"run.jsonl", "runs"}),
        (["console", "--root", "run"], {"runs"}),
    ],
)
def test_bash_completes(pilothouse: Command, tmp_path: Path, words: list[str], completed: set[str]) -> None:
    (tmp_path / "run.jsonl").touch()
    (tmp_path / "runs").mkdir()
    script = tmp_path / "completion"
    script.write_text(pilothouse.run("completion", "bash").out)
    command = ["bash", "-c", COMPLETE, "bash", str(script), "pilothouse", *words]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": PATH}, capture_output=True, text=True, timeout=LIMIT_S)
    assert (set(done.stdout.split()), done.stderr) == (completed, "")


def read_help(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(list(args))
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    groups = dict.fromkeys(command.group for command in COMMANDS.values())
    assert [*groups] == ["start", "talk", "run many", "serve", "look up"]
    reported = read_help(capsys, "--help")
    sections = {section.partition(":\n")[0]: section for section in reported.split("\n\n")}
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", sections[command.group], re.MULTILINE)
    assert "Exit codes: 0 done" in reported


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_in_the_words_of_a_shell(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reported = read_help(capsys, command, "--help-all" if has_rare_flags(COMMANDS[command].request) else "--help")
    usage = f"{command} [ACTION]" if command in ("sessions", "policy") else command
    assert reported.startswith(f"usage: pilothouse {usage} [options]")
    python = re.findall(r"\[\]|\b[A-Z][a-z]+[A-Z]\w+|\b(?:None|True|False)\b|`\w+_\w*`", reported)
    assert set(python) <= {"JetBrains", "OpenAI", "WebSocket"}
    examples = reported.partition("Examples")[2]
    assert not [line for line in reported.removesuffix(examples).splitlines() if len(line) > 80]


def test_every_option_of_a_query_is_behind_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    usual, whole = read_help(capsys, "ask", "--help"), read_help(capsys, "ask", "--help-all")
    assert "--max-turns" in usual
    assert "--max-line-bytes" not in usual
    assert "--transport" not in usual
    for option in TABLE.values():
        flag = get_flag(option)
        assert flag is None or flag in whole or f"--no-{flag[2:]}" in whole


@pytest.mark.parametrize(
    ("command", "rare"),
    [
        ("serve", "--allow-flag --client --no-client-mcp --drain --fleet --max-requests --config"),
        ("console", "--allow-flag --client --no-client-mcp --drain --fleet --max-requests --config"),
        ("batch", "--enqueue --stop-after --tokens-per-minute --on-interrupted --max-budget-usd --config"),
        ("acp", "--resume --continue --json-schema --config"),
    ],
)
def test_rare_flags_are_behind_help_all(command: str, rare: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual, whole = read_help(capsys, command, "--help"), read_help(capsys, command, "--help-all")
    for flag in rare.split():
        assert f"  {flag} " not in usual, flag
        assert f"  {flag} " in whole, flag


@pytest.mark.parametrize("command", COMMANDS)
def test_usual_help_fits_on_a_screen(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(read_help(capsys, command, "--help").splitlines()) <= 45


@pytest.mark.parametrize(("action", "words"), [("show", "[options] session"), ("rename", "[options] session title")])
def test_sessions_have_flags_after_the_action(action: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_help(capsys, "sessions", action, "--help").startswith(f"usage: pilothouse sessions {action} {words}\n")


def test_help_says_that_a_session_has_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume ID " in read_help(capsys, "ask", "--help")
