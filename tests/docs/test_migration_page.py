"""Every right-hand side of "Coming from …" runs, needs no name that the page does not give it, and has an effect."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from markdown_pages import DOCS, blocks
from migration_sessions import ASKED, GIVES, check_model, check_session, running_session
from migration_sessions import PROMPTS as SESSION_PROMPTS
from migration_table import Call, calls, run, settings, used

import pilothouse as ph
from pilothouse import sync
from pilothouse.client.handlers import make_handlers
from pilothouse.messages import from_dict
from pilothouse.options import OptionsBuilder, render
from pilothouse.permissions import SetMode
from pilothouse_models import LanguageModel
from pilothouse_testing import FakeCall, FakeCLI, as_default, frames

PAGE = DOCS / "coming-from.md"
CALLS = calls(PAGE)
SYSTEMS = {"claude-agent-sdk, Python", "claude-agent-sdk, TypeScript", "Laravel, PHP", "The AI SDK, TypeScript"} | {
    "Ruby",
    "Elixir",
    "Go",
}

PROMPT = "Explain this project"
PROMPTS = ["My name is Alice.", "What is my name?"]
STRUCTURED = {"number": "7"}
SCHEMA = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}


@dataclass
class Invoice:
    number: str


ARGUMENTS: dict[str, str] = {
    "add_dirs=['../shared']": "--add-dir=../shared",
    "allowed_tools=['Read', 'Bash(git:*)']": "--allowedTools=Read,Bash(git:*)",
    "append_system_prompt='Be brief.'": "--append-system-prompt=Be brief.",
    "continue_conversation=True": "--continue",
    "debug=True": "--debug",
    "debug_file='debug.log'": "--debug-file=debug.log",
    "effort='low'": "--effort=low",
    "extra_args={'debug-to-stderr': None}": "--debug-to-stderr",
    "fork_session=True": "--fork-session",
    "json_schema=schema": (
        '--json-schema={"type":"object","properties":{"number":{"type":"string"}},"required":["number"]}'
    ),
    "max_budget_usd=2.0": "--max-budget-usd=2",
    "max_thinking_tokens=2000": "--max-thinking-tokens=2000",
    "max_turns=5": "--max-turns=5",
    "mcp_servers={'files': {'command': 'files-server'}}": "--mcp-config=<private file>",
    "model='opus'": "--model=opus",
    "partial_messages=True": "--include-partial-messages",
    "permission_mode='acceptEdits'": "--permission-mode=acceptEdits",
    "permission_mode='bypassPermissions'": "--permission-mode=bypassPermissions",
    "persist_session=False": "--no-session-persistence",
    "plugins=['plugin']": "--plugin-dir=plugin",
    "resume=result.session_id": f"--resume={frames.SESSION_ID}",
    "sandbox={'enabled': True}": "--settings=<private file>",
    "sandbox={'enabled': True, 'auto_allow_bash_if_sandboxed': True}": "--settings=<private file>",
    "setting_sources=[]": "--setting-sources=",
    "skills=['pdf']": "--allowedTools=Skill(pdf)",
    "system_prompt=''": "--system-prompt=",
    "system_prompt='Be brief.'": "--system-prompt=Be brief.",
    "system_prompt='You review code.'": "--system-prompt=You review code.",
    "task_budget=50000": "--task-budget=50000",
    "thinking='disabled'": "--thinking=disabled",
    "thinking={'type': 'enabled', 'budget_tokens': 2000}": "--max-thinking-tokens=2000",
    "allowed_tools=['Read', 'Grep']": "--allowedTools=Read,Grep",
    "tools=['Read', 'Grep']": "--tools=Read,Grep",
}
"""What is set in the code, and the argument of the child that it becomes."""

VARIABLES: dict[str, dict[str, str]] = {
    "api_key='sk-ant-…'": {"ANTHROPIC_API_KEY": "sk-ant-…"},
    "api_max_retries=2": {"CLAUDE_CODE_MAX_RETRIES": "2"},
    "env={'LANG': 'C'}": {"LANG": "C"},
    "env={'PATH': '/usr/bin:/bin', 'HOME': '/tmp'}": {"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
}
"""The same for variables of its environment."""

HANDSHAKE: dict[str, dict[str, object]] = {
    "agents={'reviewer': {'description': 'Reviews', 'prompt': 'Review.'}}": {
        "agents": {"reviewer": {"description": "Reviews", "prompt": "Review."}}
    },
    "custom_tools=[add]": {"sdkMcpServers": ["tools"]},
    "custom_tools=[ph.tool(add)]": {},  # the bridge that is set with it needs no server
    "hooks={'PostToolUse': check}": {"hooks": {"PostToolUse": [{"matcher": None, "hookCallbackIds": ["hook_0"]}]}},
    "hooks={'PreToolUse': [ph.HookMatcher('Bash', check)]}": {
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["hook_0"], "onFailure": "block"}]}
    },
    "mcp_servers={'calc': ph.sdk_server('calc', [add])}": {"sdkMcpServers": ["calc"]},
    "supported_dialog_kinds=['refusal_fallback_prompt']": {"supportedDialogKinds": ["refusal_fallback_prompt"]},
    "system_prompt={'type': 'custom', 'prompt': ['one', 'two']}": {"systemPrompt": ["one", "two"]},
}
"""The same for what the handshake carries."""

KEPT: dict[str, tuple[str, object]] = {
    "cli='bin/claude'": ("cli", "bin/claude"),
    "cli='bundled'": ("cli", "bundled"),
    "cli='global'": ("cli", "global"),
    "cwd='project'": ("cwd", "project"),
    "tool_bridge='xml'": ("tool_bridge", "xml"),
    "inherit_env=False": ("inherit_env", False),
    "max_line_bytes=10000000": ("max_line_bytes", 10_000_000),
    "max_line_bytes=1024 * 1024": ("max_line_bytes", 1024 * 1024),
    "timeout=120": ("timeout", 120),
    "timeout=180": ("timeout", 180),
    "timeout=60": ("timeout", 60),
    "user='nobody'": ("user", "nobody"),
    "verbatim_prompts=True": ("verbatim_prompts", True),
}
"""What pilothouse itself acts on: the option, and its value."""

GIVEN = {"stderr=show", "transport=mock_transport", "transport=mock_transport('Hello')"} | {
    "callback_wrapper=check",
    "can_use_tool=may",
    "confirm=check",
    "on_elicitation=check",
    "on_user_dialog=check",
}
"""Objects of the caller: they come back as they are."""

CHECKS: dict[str, Callable[[Any], bool]] = {
    "(await agent.query(prompt, output_type=Invoice)).output": lambda v: v == Invoice("7"),
    "(await ph.query(prompt, json_schema=schema)).structured": lambda v: v == STRUCTURED,
    "(await ph.query(prompt, output_type=Invoice)).output": lambda v: v == Invoice("7"),
    'FakeCLI().text("Mock response")': lambda v: Path(v.path).exists(),
    'FakeCLI.shell("exit 1")': lambda v: Path(v.path).exists(),
    'agent.with_options(model="opus").options.explain()': lambda v: v["model"].value == "'opus'",
    "[usage.cache_hit_rate for usage in result.model_usage.values()]": lambda v: v == [4 / 12],
    "anyio.get_cancelled_exc_class()": lambda v: issubclass(v, BaseException),
    'await ph.query(prompt, transport=mock_transport("Hello"))': lambda v: v.text == "Hello",
    "decode(line)": lambda v: v.text == "Running it.",
    "error.api_error_status": lambda v: v == 429,
    "from_dict(frame)": lambda v: v.text == "Running it.",
    'message.raw["tools"]': lambda v: "Bash" in v,
    'AddRules([PermissionRule.parse("Bash(git:*)")])': lambda v: str(v.rules[0]) == "Bash(git:*)",
    "ph.Allow()": lambda v: v.updated_input is None,
    'ph.Allow(updated_input={"command": "ls"})': lambda v: v.updated_input == {"command": "ls"},
    "ph.Allow(updated_permissions=request.suggestions)": lambda v: v.updated_permissions == (SetMode("plan"),),
    'ph.Confirm("Sure?")': lambda v: v.prompt == "Sure?",
    'ph.Deny("No.")': lambda v: (v.message, v.interrupt) == ("No.", False),
    'ph.Deny("No.", interrupt=True)': lambda v: (v.message, v.interrupt) == ("No.", True),
    'ph.HookOutput(permission_decision="defer")': lambda v: v.permission_decision == "defer",
    'ph.HookOutput.deny("No.")': lambda v: v.permission_decision == "deny",
    "ph.Options()": lambda v: v.to_cli_args() == [],
    'ph.Options(custom_tools=[ph.tool(add)], tool_bridge="xml")': lambda v: "sdkMcpServers" not in handshake(v),
    'model = LanguageModel("opus", max_thinking_tokens=2000)': lambda v: v.model == "opus",
    "ph.QueryResult(from_dict(frame) for frame in frames.sample_messages())": lambda v: v.text == "It printed hi.",
    'ph.create_tool("add", "Adds", {"a": float, "b": float}, add)': lambda v: v(1, 2) == 3 and takes(v, "number"),
    'ph.create_tool("add", "Adds", {"a": int, "b": int}, add)': lambda v: v(1, 2) == 3 and takes(v, "integer"),
    "ph.default_agent()": lambda v: v is ph.default_agent(),
    "ph.find_cause(error, TimeoutError)": lambda v: isinstance(v, ph.QueryTimeout),
    "ph.find_cause(error, ph.CLINotFoundError)": lambda v: isinstance(v, ph.CLINotFoundError),
    "ph.find_cause(error, ph.ProcessError)": lambda v: isinstance(v, ph.ProcessError),
    "ph.tool(add)": lambda v: v(1, 2) == 3 and takes(v, "integer"),
    "query.session_id": lambda v: v == frames.SESSION_ID,
    "request.suggestions": lambda v: v == (SetMode("plan"),),
    "result.assistant_messages": lambda v: len(v) == 4,
    "result.cache_creation_tokens": lambda v: v == 5,
    "result.cache_read_tokens": lambda v: v == 4,
    "result.cost_usd": lambda v: v == 0.25,
    "result.duration_ms": lambda v: v == 1234,
    "result.error": lambda v: v is None,
    "result.full_text": lambda v: v == "Running it.\nIt printed hi.",
    "result.is_success": lambda v: v is True,
    "result.model_usage": lambda v: list(v) == [frames.MODEL],
    "result.raise_for_error()": lambda v: v.is_success,
    "result.session_id": lambda v: v == frames.SESSION_ID,
    "result.structured": lambda v: v == STRUCTURED,
    "result.text": lambda v: v == "It printed hi.",
    "result.thinking": lambda v: v == "A command will do.",
    "result.tool_uses": lambda v: [call.name for call in v] == ["Bash"],
    "result.turns": lambda v: v == 2,
    "result.usage": lambda v: v.input_tokens == 3,
    "result.usage.input_tokens": lambda v: v == 3,
    "result.validate()": lambda v: v.fault_count == 0,
    "from pilothouse.hooks import EXIT_REASONS, HOOK_EVENTS": lambda v: v is None,  # there are such names
    "from pilothouse.options import SYSTEM_PROMPT_DYNAMIC_BOUNDARY": lambda v: v is None,
    "from pilothouse.tools.builtin import BUILTIN_TOOL_NAMES, LEGACY_TOOL_NAME_ALIASES": lambda v: v is None,
}  # fmt: skip
"""What the value of an expression must be like."""


def turn() -> list[dict[str, Any]]:
    *output, _ = frames.sample_messages()
    usage = {"inputTokens": 3, "outputTokens": 1, "cacheReadInputTokens": 4, "cacheCreationInputTokens": 5}
    closing = frames.result(
        "It printed hi.",
        num_turns=2,
        total_cost_usd=0.25,
        duration_ms=1234,
        usage={"input_tokens": 3, "output_tokens": 1},
        modelUsage={frames.MODEL: usage},
        structured_output=STRUCTURED,
    )
    return [*output, closing]


def asked() -> ph.PermissionRequest:
    raw = {"permission_suggestions": [{"type": "setMode", "mode": "plan", "destination": "session"}]}
    return ph.PermissionRequest(tool_name="Bash", tool_input={"command": "ls"}, raw=raw)


def check_nothing(*_: object) -> None:
    """Takes whatever a callback is called with."""


def add(a: int, b: int) -> int:
    return a + b


def takes(tool: ph.Tool[..., Any], kind: str) -> bool:
    properties: dict[str, Any] = tool.input_schema["properties"]
    return [properties[name]["type"] for name in ("a", "b")] == [kind, kind]


def failure() -> ph.RateLimitError:
    error = ph.RateLimitError("too many", api_error_status=429)
    error.__cause__ = ExceptionGroup("", [ph.CLINotFoundError("none"), ph.QueryTimeout("late")])
    return error


@dataclass
class RowContext:
    """The names of the page, and what the code of one row did."""

    fake: FakeCLI
    monkeypatch: pytest.MonkeyPatch
    names: dict[str, Any] = field(default_factory=dict[str, Any])
    shown: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        output = turn()
        self.names.update(
            prompt=PROMPT,
            prompts=(text for text in PROMPTS),
            options=ph.Options(model="haiku"),
            agent=ph.Agent(max_turns=7),
            result=ph.QueryResult(from_dict(frame) for frame in output),
            message=from_dict(output[0]),
            error=failure(),
            line=frames.lines([output[2]]).rstrip(b"\n"),
            frame=output[2],
            schema=SCHEMA,
            Invoice=Invoice,
            show=self.shown.append,
            request=asked(),
            may=check_nothing,
            check=check_nothing,
            add=add,
            model=LanguageModel("haiku"),
        )

    async def running(self, *, stops: bool) -> ph.Query:
        """A query that is being answered; the answer ends when it is interrupted, if `stops`."""
        if stops:
            endless = FakeCLI().expect("user").emit(frames.init(), frames.assistant("Once upon a time"))
            end = frames.result("", terminal_reason="aborted_streaming")
            endless.expect("control_request", "interrupt").reply({"still_queued": []}).emit(end)
            self.fake = endless
        query = await ph.query(PROMPT, cli=self.fake.path).start()
        if stops:
            await anext(aiter(query))
        return query


@pytest.fixture
def row_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RowContext]:
    (tmp_path / "chart.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.chdir(tmp_path)
    with FakeCLI().turn(*turn()).forever() as fake, as_default():
        monkeypatch.setenv("PILOTHOUSE_CLI", fake.path)
        yield RowContext(fake, monkeypatch)


def all_code() -> list[str]:
    return [code for call in CALLS for code in call.ours]


def test_every_system_has_a_table() -> None:
    assert {call.system for call in CALLS} == SYSTEMS
    assert all(call.ours for call in CALLS)


def test_what_is_expected_stands_on_the_page() -> None:
    expected = {*ARGUMENTS, *VARIABLES, *HANDSHAKE, *KEPT, *GIVEN}
    assert {item for code in all_code() for item in settings(code)} == expected
    assert {*CHECKS, *ASKED, *GIVES, *SESSION_PROMPTS} <= set(all_code())


def test_the_page_says_which_names_it_uses(row_context: RowContext) -> None:
    (preamble,) = blocks(PAGE, "python")
    imported: dict[str, Any] = {}
    exec(preamble.compiled(), imported)
    given = {name for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE) for name in names_in(row)}
    assert {*row_context.names, "query", "session"} <= given
    for code in all_code():
        unknown = used(code) - set(imported) - set(row_context.names) - {"query", "session"} - set(vars(builtins))
        assert not unknown, code


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_the_right_hand_side_does_what_the_left_did(call: Call, row_context: RowContext) -> None:
    anyio.run(run_all, call, row_context)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ph.no_such_name", AttributeError),
        ("no_such_name.text", NameError),
        ("await ph.query(prompt, maxTurns=5)", ph.OptionsError),
        ("ph.Options(model='sonnet').model", AssertionError),
        ("result.text == 'It printed hi.'", AssertionError),
    ],
)
def test_a_wrong_right_hand_side_is_found(code: str, expected: type[Exception], row_context: RowContext) -> None:
    with pytest.raises(expected):
        anyio.run(run_all, Call("nowhere", 0, "", (code,)), row_context)


async def run_all(call: Call, row_context: RowContext) -> None:
    (preamble,) = blocks(PAGE, "python")
    exec(preamble.compiled(), row_context.names)
    for code in call.ours:
        try:
            await run_one(code, row_context)
        except Exception as error:
            error.add_note(f"{call.name}: {code}")
            raise


async def run_one(code: str, row_context: RowContext) -> None:
    row_context.shown.clear()
    if "session" in used(code):
        await run_session(code, row_context)
        return
    if "model" in used(code):
        with FakeCLI().text("A fine project.").forever() as fake:
            row_context.monkeypatch.setenv("PILOTHOUSE_CLI", fake.path)
            check_model(code, await run(code, row_context.names), fake.calls[-1], row_context.shown)
        return
    if "query" not in used(code):
        check(code, await run(code, row_context.names), row_context)
        return
    async with AsyncExitStack() as stack:
        query = row_context.names["query"] = await row_context.running(stops="interrupt" in code or "aclose" in code)
        stack.push_async_callback(query.aclose)
        if code == "query.session_id":
            await query.result()
        value = await run(code, row_context.names)
        if "aclose" in code:
            with pytest.raises(ph.SessionClosedError):
                await query.result()
        if "interrupt" in code:
            assert (await query.result()).outcome == "interrupted"
    check(code, value, row_context)


async def run_session(code: str, row_context: RowContext) -> None:
    async with running_session(turn()) as (session, transport):
        names = row_context.names | {"session": session, "prompts": (text for text in PROMPTS)}
        value = await run(code, names)
        check_session(code, value, session, transport.sent_frames, {"prompt": [PROMPT], "prompts": PROMPTS})
        assert row_context.shown or "show" not in code


def check(code: str, value: Any, row_context: RowContext) -> None:
    """The effect of `code`: at least one of these."""
    seen = [
        checked_value(code, value),
        checked_settings(code, value, row_context.fake.calls),
        checked_child(code, row_context.fake.calls),
        checked_shown(code, row_context.shown),
        isinstance(value, type) or getattr(value, "__name__", "") == "QueryEvent",
    ]
    assert any(seen), f"no effect is known of {code}"


def checked_value(code: str, value: Any) -> bool:
    if code not in CHECKS:
        return False
    assert CHECKS[code](value), (code, value)
    return True


def checked_settings(code: str, value: Any, runs: list[FakeCall]) -> bool:
    items = set(settings(code))
    options = options_of(value)
    evident = bool(items) and (bool(runs) or options is not None or type(value) in (list, dict))
    if evident:
        arguments = runs[-1].argv if runs else arguments_of(value, options)
        variables = runs[-1].env if runs else variables_of(value, options)
        assert {ARGUMENTS[item] for item in items & set(ARGUMENTS)} <= set(arguments), arguments
        for item in items & set(VARIABLES):
            assert VARIABLES[item].items() <= variables.items(), item
    if options is not None:
        for name, kept in (KEPT[item] for item in items & set(KEPT)):
            assert getattr(options, name) == kept, name
        for expected in (HANDSHAKE[item] for item in items & set(HANDSHAKE)):
            assert expected.items() <= handshake(options).items()
        for name in (item.partition("=")[0] for item in items & GIVEN):
            assert callable(getattr(options, name)), name
    return evident


def handshake(options: ph.Options) -> dict[str, Any]:
    handlers, invocation = make_handlers(options), render(options, {})
    return dict((invocation if handlers is None else handlers.merge_initialize(invocation)).initialize or {})


def options_of(value: Any) -> ph.Options | None:
    if isinstance(value, OptionsBuilder):
        return value.build()
    if isinstance(value, ph.Agent | sync.Agent):
        return value.options
    return value if isinstance(value, ph.Options) else None


def arguments_of(value: Any, options: ph.Options | None) -> list[str]:
    return value if options is None and isinstance(value, list) else [] if options is None else options.to_cli_args()


def variables_of(value: Any, options: ph.Options | None) -> Mapping[str, str]:
    return value if options is None and isinstance(value, dict) else {} if options is None else options.to_env()


def checked_child(code: str, runs: list[FakeCall]) -> bool:
    if not runs:
        return False
    run = runs[-1]
    if "ph.image" in code:
        assert [block["type"] for block in run.prompts[0]] == ["image", "text"]
    else:
        assert run.prompts == (PROMPTS if "prompts" in used(code) else [PROMPT]), code
    if "options" in used(code):
        assert "--model=haiku" in run.argv
    if "agent" in used(code) and code not in CHECKS:
        assert "--max-turns=7" in run.argv
    if "interrupt" in code:
        assert run.control("interrupt")
    return True


def checked_shown(code: str, shown: list[Any]) -> bool:
    if "show" not in used(code) or "stderr=show" in code:
        return False
    assert shown, code
    return True
