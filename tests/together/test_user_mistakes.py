"""Mistakes of newcomers, and what is said to them before anything is started, or when the CLI has said its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.options import Plugin, PolicyWarning, SystemPromptFile
from pilothouse_fleet import Fleet
from pilothouse_pool import Pool
from pilothouse_remote import in_container, on_host
from pilothouse_testing import FakeCLI, ReplayTransport, frames, mock_transport

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")]


class Plain:
    def __init__(self, number: str) -> None:
        self.number = number


@dataclass
class Invoice:
    number: str


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def plain(value: Plain) -> None:
    """Take a value that has no JSON form."""


def old_style(tool_name: str, tool_input: dict[str, Any], context: object) -> bool:
    return True


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"permission_mode": "accept_edits"}, r"got 'accept_edits' \(str\); did you mean 'acceptEdits'\?"),
    "lambda": ({"custom_tools": [lambda a: a]}, r"name a lambda with ph\.tool\(name=…\)"),
    "builtin as own": ({"custom_tools": ["Read"]}, "names of built-in tools go into the option `tools`"),
    "own as builtin": ({"tools": [add]}, "functions of your own go into `custom_tools`"),
    "server key": ({"mcp_servers": {"x": {"comand": "npx"}}}, "'command' is missing, and there is no key 'comand'"),
    "env value": ({"env": {"A": 1}}, "the value of 'A' must be text, or None to remove it, not int"),
    "env name": ({"env": {"A=B": "1"}}, "'A=…' cannot be the name of a variable"),
    "schema type": (
        {"json_schema": {"type": "objekt"}},
        r"not a valid JSON Schema: 'type' is 'objekt', expected one of",
    ),
    "schema inside": (
        {"json_schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "str"}}}}},
        r"'type' is 'str', .* at `\$\.properties\.a\.items`",
    ),
    "schema required": ({"json_schema": {"required": "a"}}, "'required' is 'a', expected a list of names"),
    "schema of type": ({"output_type": {"anyOf": [{"type": "text"}]}}, r"at `\$\.anyOf\[0\]`"),
    "name of a type": ({"output_type": "Invoice"}, "pass the type itself, not its name 'Invoice'"),
    "plain class": ({"output_type": Plain}, "Plain is a plain class, .* make it a dataclass"),
    "one tool name": ({"allowed_tools": "Bash"}, r"got 'Bash' \(str\); put a single text into a list"),
    "duration": ({"timeout": timedelta(seconds=3)}, r"; write \.total_seconds\(\) behind it"),
    "result to resume": ({"resume": ph.QueryResult([])}, "pass its session_id"),
    "empty key": ({"api_key": ""}, "option 'api_key': expected non-empty text, got an empty text"),
    "result of a tool": ({"custom_tools": [3]}, "expected a function, got int; pass it, do not call it"),
    "address of a server": ({"mcp_servers": {"x": ph.HttpServer(url="localhost:1")}}, r"x\.url: expected an address"),
    "address in a mapping": (
        {"mcp_servers": {"x": {"type": "sse", "url": "localhost:1"}}},
        r"x\.url: expected an address such as 'https://…', got 'localhost:1'",
    ),
    "permission": (
        {"can_use_tool": old_style},
        r"one argument, the request: instead of \(tool_name, tool_input, context\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_before_anything_is_started(name: str) -> None:
    settings, reported = MISTAKES[name]
    with pytest.raises(ph.UsageError, match=reported) as caught:
        ph.query("x", **settings)
    assert caught.value.__cause__ is None  # a traceback opens at the line of the user


def test_the_value_of_a_variable_is_not_shown() -> None:
    with pytest.raises(ph.OptionsError) as caught:
        ph.query("x", env={"KEY": b"sk-secret"})  # pyright: ignore[reportArgumentType]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": ["string", "null"], "enum": ["a", None]},
        {"properties": {"type": {"type": "string"}, "required": {"type": "array", "items": False}}},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "items": [{"type": "integer"}], "minimum": 1.5, "x-mine": 3},
    ],
)
def test_valid_schemas_pass(schema: Any) -> None:
    from pilothouse.json_schema import find_schema_problem

    assert find_schema_problem(schema) is None


def test_a_message_of_the_api_is_no_prompt() -> None:
    with pytest.raises(ph.UsageError, match="not dict; pass the value of 'content'"):
        ph.query({"role": "user", "content": "hi"})


def test_a_path_of_ones_own_that_is_not_there() -> None:
    with pytest.raises(ph.CLINotFoundError, match=r"\(cli='/no/such/claude'\): there is no such file\. Tried"):
        sync.query("x", cli="/no/such/claude").result()


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"settings": "/no/such.json"}, "--settings"),
        ({"mcp_servers": "such.json", "cwd": "/"}, "--mcp-config"),
        ({"system_prompt": SystemPromptFile(path="/no/such.json")}, "--system-prompt-file"),
    ],
)
def test_a_file_that_is_not_there_starts_nothing(settings: dict[str, Any], flag: str) -> None:
    with FakeCLI().text("Hello") as fake:
        with pytest.raises(ph.CLIStartError, match=f"there is no file /.*such.json, which the flag {flag} names"):
            sync.query("x", cli=fake.path, **settings).result()
        assert fake.calls == []


def test_a_directory_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The real CLI starts without it, and says nothing."""
    with FakeCLI().text("Hello") as fake:
        plugins = ["no-plugin", tmp_path, Plugin(path="no-servers", skip_mcp_discovery=True)]
        sync.query("x", cli=fake.path, cwd=tmp_path, add_dirs=["no-such", tmp_path], plugins=plugins).result()
    assert [record.getMessage() for record in caplog.records if record.name == "pilothouse.transports"] == [
        f"there is no directory {tmp_path}/{name}, which the flag {flag} names; Claude Code ignores it"
        for name, flag in (
            ("no-such", "--add-dir"), ("no-plugin", "--plugin-dir"), ("no-servers", "--plugin-dir-no-mcp"),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("program", ["ls", "true", "false", "echo", "cat"])
def test_a_program_that_is_not_the_cli(program: str) -> None:
    cli = shutil.which(program)
    with pytest.raises(ph.CLIExitedError, match="so this is probably not Claude Code: check the option cli"):
        sync.query("x", cli=cli).result()
    with pytest.raises(ph.CLIExitedError, match="so this is probably not Claude Code: check the option cli"):
        sync.session(cli=cli).__enter__()


@pytest.mark.parametrize("code", [0, 1])
def test_a_cli_that_has_said_something_is_not_taken_for_another_program(code: int) -> None:
    fake = FakeCLI().turn(frames.init()).exit(code)
    with fake, pytest.raises(ph.CLIExitedError, match="before the answer was complete") as caught:
        sync.query("x", cli=fake.path).result()
    assert "probably not" not in str(caught.value)


async def test_the_refusal_for_root_gets_advice() -> None:
    refusal = "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons"
    with FakeCLI().stderr(refusal).exit(1) as fake, pytest.raises(ph.CLIExitedError, match=r"IS_SANDBOX"):
        await ph.query("x", cli=fake.path)


async def test_the_login_error_has_advice_for_programs() -> None:
    with FakeCLI() as fake:
        text = "Not logged in · Please run /login"
        fake.expect("user").emit(frames.init(), frames.result(text, is_error=True))
        result = await ph.query("x", cli=fake.path)
    assert isinstance(result.error, ph.AuthenticationError)
    assert str(result.error) == (
        "Not logged in (set ANTHROPIC_API_KEY, pass api_key=…, or use `/login` in `pilothouse chat`)"
    )


async def test_to_read_an_output_that_is_not_there_raises_why() -> None:
    with FakeCLI() as fake:
        fake.expect("user").emit(frames.init(), frames.result("API Error: 529", is_error=True, api_error_status=529))
        result = await ph.query("x", cli=fake.path, output_type=Invoice)
    with pytest.raises(ph.OverloadedError):
        _ = result.output.number
    assert ph.QueryResult([]).output is None


async def test_children_counts_in_words() -> None:
    for count in ("two", 0, True):
        with pytest.raises(ph.UsageError, match="count: expected a whole number of at least 1"):
            await ph.Agent(transport=Pool()).prewarm(count)  # pyright: ignore[reportArgumentType]


def test_a_tool_without_types_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    measure: Any = eval("lambda place, depth=3: None")
    ph.tool(name="measure", description="Measure.")(measure)
    assert "the tool measure has no types for place, depth" in caplog.text
    assert "no description" not in caplog.text
    caplog.clear()
    ph.tool(name="measure")(measure)
    assert "the tool measure has no description, so the model has to guess what it does" in caplog.text
    caplog.clear()
    ph.tool(add)
    assert caplog.text == ""


def test_a_misspelt_tool_is_named() -> None:
    with pytest.warns(PolicyWarning, match="there is no tool 'Bassh'.* 'Bash'"):
        ph.Agent(allowed_tools=["Bassh"])


@pytest.mark.parametrize("make", [ph.image, ph.document])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (0, "expected a path or bytes, got int"),
        ("a\0b", "null byte"),
        ("https://x/a.png", "; download it, and pass the file or its bytes"),
    ],
)
def test_a_source_that_is_no_path(make: Any, source: Any, text: str) -> None:
    with pytest.raises(ph.UsageError, match=text):
        make(source)


async def test_a_transport_object_for_a_second_query() -> None:
    agent = ph.Agent(transport=mock_transport("Hello"))
    assert (await agent.query("one")).text == "Hello"
    with pytest.raises(ph.UsageError, match="give `transport` a callable that makes one"):
        await agent.query("two")


class Hook:
    def __call__(self, event: object) -> None: ...


def factory(a: object) -> None: ...


def no_message() -> None: ...


WRONG_VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "class of hooks": (lambda: ph.query("x", hooks=cast("Any", {"PreToolUse": ph.HookMatcher})), "got the class Hook"),
    "class of a hook": (lambda: ph.query("x", hooks=cast("Any", {"PreToolUse": Hook})), "got the class Hook$"),
    "class of a decision": (lambda: ph.query("x", can_use_tool=cast("Any", ph.Allow)), "got the class Allow"),
    "class of asks": (lambda: ph.query("x", asks=cast("Any", ph.Asks)), "expected an Asks"),
    "on_message": (lambda: ph.query("x", on_message=cast("Any", no_message)), "cannot be called with 1 argument"),
    "factory": (
        lambda: sync.query("x", transport=factory).result(),
        r"transport: factory\(a: .*\) .* cannot be called without arguments",
    ),
    "class with arguments": (
        lambda: sync.query("x", transport=ReplayTransport).result(),
        "cannot be called without arguments",
    ),
    "async stderr": (lambda: ph.query("x", stderr=cast("Any", asyncio.sleep)), "expected a callable that is not async"),
    "pool of text": (lambda: Pool(transport=cast("Any", "x")), "expected a callable .* got str"),
    "pool size": (lambda: Pool(min_idle=cast("Any", "2")), "min_idle: expected a whole number"),
    "error text": (lambda: ph.tool(error_text=cast("Any", 3))(add), "error_text must be text or a function"),
    "result length": (lambda: ph.tool(max_result_chars=0)(add), "max_result_chars must be a number above 0"),
    "result size": (lambda: ph.tool(max_result_bytes=-1)(add), "max_result_bytes must be a number above 0"),
    "one tool": (lambda: ph.sdk_server("a", cast("Any", add)), "tools must be a list of functions"),
    "instructions": (lambda: ph.sdk_server("a", instructions=cast("Any", 3)), "instructions must be text"),
    "image": (lambda: in_container(cast("Any", 3)), "image: 3 is not a name"),
    "mounts": (lambda: in_container("x", mounts=cast("Any", "/x")), "mounts: expected a mapping"),
    "result of a hook": (lambda: ph.HookMatcher("Bash", [cast("Any", None)]), "pass the function itself, do not call"),
    "plain parameter": (lambda: ph.tool(plain), "its type has no JSON form: [^;]*Plain[^;]*; use a dataclass"),
    "address in a browser": (
        lambda: on_host("http://x:1/#token=abc"),
        "no user, query or fragment; give the token as token=$",
    ),
    "tool of claude_agent_sdk": (
        lambda: cast("Any", ph.tool)("add", "Add", {"a": int}),
        r"@tool takes keywords: .* create_tool\(name, description, schema, function\)",
    ),
    "chat messages": (
        lambda: ph.query([cast("Any", {"role": "user", "content": "x"})]),
        "of a chat message pass the content, and use a session",
    ),
    "agent of an agent": (lambda: sync.Agent(cast("Any", ph.Agent())), "got Agent; pass its .options"),
    "one prompt for a fleet": (lambda: Fleet().map("Say hi"), "items: expected a list, .* got str; put one into"),
    "blocking agent": (lambda: ph.set_default_agent(cast("Any", sync.Agent())), "pass its async_agent"),
    "blocking agent of a fleet": (lambda: Fleet(cast("Any", sync.Agent())), "pass its async_agent"),
    "text as options": (lambda: ph.Options().merge(cast("Any", "opus")), "expected pilothouse.Options, got str"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_reported_where_it_is_given(name: str) -> None:
    call, reported = WRONG_VALUES[name]
    with pytest.raises(ph.UsageError, match=reported):
        call()


def test_the_advice_of_pydantic_about_a_plain_class_is_left_out() -> None:
    pytest.importorskip("pydantic")  # from now on, it writes the schema
    with pytest.raises(ph.UsageError, match=r"its type has no JSON form: [^;`]*Plain[^;`]*; use a dataclass"):
        ph.tool(plain)


def test_options_of_a_query_in_a_session_may_be_a_mapping() -> None:
    with FakeCLI().text("Hello") as fake, sync.session(cli=fake.path) as session:
        query = session.query("x", cast("Any", {"timeout": 5}))
        assert query.options.timeout == 5
        assert query.result().text == "Hello"


async def test_settings_that_are_no_mapping() -> None:
    with FakeCLI() as fake:
        async with ph.session(cli=fake.path) as session:
            with pytest.raises(ph.UsageError, match="settings: expected a mapping, got str"):
                await session.settings.apply(cast("Any", "x"))
            with pytest.raises(ph.UsageError, match="servers: expected a mapping, got list"):
                await session.mcp.set_servers(cast("Any", [1]))
