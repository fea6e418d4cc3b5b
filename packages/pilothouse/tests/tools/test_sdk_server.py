"""The dispatcher answers what the CLI asks in-process servers: recorded questions, and the ones that it never asks."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tool_fixtures import TRANSCRIPTS, asked, call, error_of, notice, question, result_of

from pilothouse.errors import ControlError, ToolDefinitionError
from pilothouse.tools import (
    SdkServer,
    Tool,
    ToolAnnotations,
    ToolContext,
    ToolError,
    ToolFailure,
    ToolInputError,
    create_tool,
    prompt,
    resource,
    sdk_server,
    tool,
)
from pilothouse.tools.mcp_dispatcher import make_mcp_dispatcher

pytestmark = pytest.mark.anyio


@tool(annotations=ToolAnnotations(read_only_hint=True))
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(always_load=False)
async def boom() -> None:
    """Fail."""
    raise ToolError("kaboom")


@resource("config://app", mime_type="text/plain")
async def config() -> str:
    """The configuration."""
    return "debug=1"


@resource("users://{user_id}/{field}")
def user(user_id: int, field: str) -> dict[str, Any]:
    """One field of a user."""
    return {"id": user_id, "field": field}


@resource("files://{path*}")
def files(path: str) -> bytes:
    if path == "none":
        raise FileNotFoundError("no such file")
    return path.encode()


@prompt()
def review(language: Annotated[str, "which one"], strict: bool = False) -> str:
    """Review some code."""
    return f"Review this {language} code{' strictly' if strict else ''}."


@prompt("talk", description="A talk")
async def talk() -> list[Any]:
    return ["hi", {"role": "assistant", "content": "hello"}, {"role": "user", "content": {"type": "text", "text": "?"}}]


def calc(name: str = "calc") -> SdkServer:
    return sdk_server(name, [add, boom], version="1.0.0")


def full() -> SdkServer:
    static = resource("static://logo", content=b"\x89PNG\r\n\x1a\n", name="logo")
    return sdk_server("s", [add, boom], [config, user, files, static], [review, talk], instructions="Be kind.")


# What the CLI asked in recorded sessions.


@pytest.mark.requirement("R13", "R24")
@pytest.mark.parametrize(
    ("name", "servers"),
    [
        ("22_sdk_mcp_initialize_only", ["calc"]),
        ("24_sdk_mcp_set_servers", ["calc2"]),
        ("40g_eof_pending_mcp", ["calc"]),
        ("75_sdk_mcp_always_load", ["calc"]),
        ("75d_sdk_mcp_default_deferred", ["calc"]),
        ("79c_sdk_mcp_elicitation", ["calc"]),
    ],
)
async def test_every_recorded_request_gets_the_recorded_response(name: str, servers: list[str]) -> None:
    if not (TRANSCRIPTS / f"{name}.ndjson").exists():
        pytest.skip("not among the fixtures")
    dispatcher = make_mcp_dispatcher({server: calc(server) for server in servers})
    questions = asked(name)
    assert questions
    for body in questions:
        before = copy.deepcopy(body)
        response = (await dispatcher.handle(body))["mcp_response"]
        assert body == before
        message = body["message"]
        if "id" not in message or "method" not in message:
            assert response == {"jsonrpc": "2.0", "result": {}}
            continue
        assert response["id"] == message["id"]
        if message["method"] == "initialize":
            assert response["result"]["protocolVersion"] == "2025-11-25"
            assert response["result"]["capabilities"] == {"tools": {"listChanged": True}}
        elif message["method"] == "tools/list":
            assert [entry["name"] for entry in response["result"]["tools"]] == ["add", "boom"]
        elif message["params"]["name"] == "add":
            assert response["result"] == {"content": [{"type": "text", "text": str(sum_of(message))}]}
        else:
            assert response["result"] == {"content": [{"type": "text", "text": "kaboom"}], "isError": True}


def sum_of(message: dict[str, Any]) -> float:
    return float(sum(message["params"]["arguments"].values()))


@pytest.mark.requirement("R24")
async def test_the_list_of_tools_is_complete() -> None:
    tools = (await result_of(make_mcp_dispatcher({"s": full()}), question("tools/list")))["tools"]
    assert tools[0] == {
        "name": "add",
        "description": "Add two numbers.",
        "inputSchema": add.input_schema,
        "annotations": {"readOnlyHint": True},
        "_meta": {"anthropic/alwaysLoad": True},
    }
    assert "_meta" not in tools[1]


@pytest.mark.requirement("R21", "R27")
def test_the_cli_gets_names_and_timeouts_and_never_an_object() -> None:
    dispatcher = make_mcp_dispatcher({"one": sdk_server("x", timeout=1.5), "two": sdk_server("y", [add])})
    assert dispatcher.server_names == ("one", "two")
    assert dispatcher.initialize_fields == {
        "sdkMcpServers": ["one", "two"],
        "sdkMcpServerConfigs": {"one": {"timeout": 1500}},
    }
    assert make_mcp_dispatcher({}).initialize_fields == {}
    manifest = dispatcher.server_manifests["two"]
    assert manifest["initializeResult"]["serverInfo"]["name"] == "y"
    assert manifest["toolsListResult"]["tools"][0]["name"] == "add"


async def test_the_version_of_the_protocol_is_negotiated() -> None:
    dispatcher = make_mcp_dispatcher({"s": full()})
    for wanted, got in (("2024-11-05", "2024-11-05"), ("2099-01-01", "2025-11-25")):
        result = await result_of(dispatcher, question("initialize", {"protocolVersion": wanted}))
        assert result["protocolVersion"] == got
        assert result["instructions"] == "Be kind."
        assert result["capabilities"].keys() == {"tools", "resources", "prompts"}
    assert await result_of(dispatcher, question("ping")) == {}


@pytest.mark.requirement("R25")
async def test_resources_are_listed_and_read() -> None:
    dispatcher = make_mcp_dispatcher({"s": full()})
    listed = (await result_of(dispatcher, question("resources/list")))["resources"]
    assert [each["uri"] for each in listed] == ["config://app", "static://logo"]
    assert listed[0] == {
        "uri": "config://app", "name": "config", "description": "The configuration.", "mimeType": "text/plain",
    }  # fmt: skip
    templates = (await result_of(dispatcher, question("resources/templates/list")))["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == ["users://{user_id}/{field}", "files://{path*}"]

    async def read(uri: str) -> dict[str, Any]:
        return (await result_of(dispatcher, question("resources/read", {"uri": uri})))["contents"][0]

    assert await read("config://app") == {"uri": "config://app", "mimeType": "text/plain", "text": "debug=1"}
    assert (await read("users://7/first%20name"))["text"] == '{"id":7,"field":"first name"}'
    assert (await read("files://a/b"))["blob"] == "YS9i"
    assert (await read("static://logo"))["mimeType"] == "image/png"

    missing = await error_of(dispatcher, question("resources/read", {"uri": "nothing://here"}))
    assert missing["code"] == -32002
    assert missing["data"] == {"uri": "nothing://here"}
    failed = await error_of(dispatcher, question("resources/read", {"uri": "files://none"}))
    assert failed == {"code": -32603, "message": "FileNotFoundError: no such file"}
    assert "user_id" in (await error_of(dispatcher, question("resources/read", {"uri": "users://seven/x"})))["message"]


@pytest.mark.requirement("R26")
async def test_prompts_are_listed_and_filled_in() -> None:
    dispatcher = make_mcp_dispatcher({"s": full()})
    listed = (await result_of(dispatcher, question("prompts/list")))["prompts"]
    assert listed[0] == {
        "name": "review",
        "description": "Review some code.",
        "arguments": [
            {"name": "language", "required": True, "description": "which one"},
            {"name": "strict", "required": False},
        ],
    }
    values = {"name": "review", "arguments": {"language": "Python", "strict": "true"}}
    filled = await result_of(dispatcher, question("prompts/get", values))
    assert filled["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Review this Python code strictly."}}
    ]
    texts = (await result_of(dispatcher, question("prompts/get", {"name": "talk"})))["messages"]
    assert [(each["role"], each["content"]["text"]) for each in texts] == [
        ("user", "hi"), ("assistant", "hello"), ("user", "?"),
    ]  # fmt: skip
    assert (await error_of(dispatcher, question("prompts/get", {"name": "review"})))["code"] == -32602
    assert (await error_of(dispatcher, question("prompts/get", {"name": "none"})))["code"] == -32602


@pytest.mark.parametrize(
    "asked", [question("resources/read", {"uri": "exit://now"}), question("prompts/get", {"name": "leave"})]
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_a_resource_or_prompt_that_exits_ends_no_task(asked: Any, is_async: bool) -> None:
    def leave() -> str:
        raise SystemExit(3)

    async def leave_async() -> str:
        raise SystemExit(3)

    function: Any = leave_async if is_async else leave
    server = sdk_server("s", resources=[resource("exit://now")(function)], prompts=[prompt(name="leave")(function)])
    failed = await error_of(make_mcp_dispatcher({"s": server}), asked)
    assert failed["code"] == -32603
    assert failed["message"].endswith("raised SystemExit")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (question("tools/dance"), -32601),
        (question("tools/call", {"name": "nobody"}), -32602),
        (question("tools/call", {}), -32602),
        (question("tools/call"), -32602),
        (question("resources/read", {"uri": 3}), -32602),
        ({"server_name": "s", "message": {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}}, -32602),
        ({"server_name": "s", "message": {"jsonrpc": "2.0", "id": [1], "method": "ping"}}, -32600),
        (question("ping", server="other"), -32601),
        ({"message": {"jsonrpc": "2.0", "id": 1, "method": "ping"}}, -32601),
    ],
)
async def test_bad_questions_are_errors_of_json_rpc(body: dict[str, Any], code: int) -> None:
    assert (await error_of(make_mcp_dispatcher({"s": full()}), body))["code"] == code


@pytest.mark.parametrize("body", [{}, {"server_name": "s"}, {"server_name": "s", "message": "x"}])
async def test_a_question_without_a_message_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ControlError):
        await make_mcp_dispatcher({"s": full()}).handle(body)


async def test_what_needs_no_answer_is_acknowledged() -> None:
    dispatcher = make_mcp_dispatcher({"s": full()})
    answer_to_us = {"server_name": "s", "message": {"jsonrpc": "2.0", "id": "el1", "error": {"code": -32601}}}
    for body in (notice("notifications/initialized"), notice("notifications/cancelled"), answer_to_us):
        assert await dispatcher.handle(body) == {"mcp_response": {"jsonrpc": "2.0", "result": {}}}


# Calls.


@pytest.mark.requirement("S38", "S39")
async def test_failures_are_reported_to_the_model_and_to_listeners() -> None:
    dispatcher = make_mcp_dispatcher({"s": full()})
    received: list[ToolFailure] = []
    dispatcher.on_failure = received.append
    result = await result_of(dispatcher, call("add", {"a": "x", "b": 1}, key=7))
    assert result["isError"] is True
    assert "`a`" in result["content"][0]["text"]
    await result_of(dispatcher, call("boom", key=8))
    assert [(each.tool_name, each.server_name, each.tool_use_id, type(each.error)) for each in received] == [
        ("add", "s", "toolu_7", ToolInputError),
        ("boom", "s", "toolu_8", ToolError),
    ]
    assert isinstance(copied := pickle.loads(pickle.dumps(received[0].error)), ToolInputError)
    assert copied.problems[0].startswith("`a`")
    body = question("tools/call", {"name": "add", "arguments": [1]})
    assert (await result_of(dispatcher, body))["isError"] is True


async def test_a_tool_can_report_its_progress() -> None:
    output: list[tuple[str, dict[str, Any]]] = []
    session = object()

    @tool
    async def slow(context: ToolContext) -> str:
        context.progress(1, 2, "half")
        assert context.session is session
        assert context.server_name == "s"
        return str(context.tool_use_id)

    @tool
    def slow_too(context: ToolContext) -> None:
        context.progress(0.5)

    dispatcher = make_mcp_dispatcher({"s": sdk_server("s", [slow, slow_too])})
    dispatcher.session = session
    assert (await result_of(dispatcher, call("slow", key=1, token=5)))["content"][0]["text"] == "toolu_1"
    dispatcher.notify = lambda server, message: output.append((server, message))
    await result_of(dispatcher, call("slow", key=2, token=5))
    await result_of(dispatcher, call("slow_too", key=3, token="t"))
    await result_of(dispatcher, call("slow", key=4))
    params = [message.pop("params") for _, message in output]
    assert [each for each in output] == [("s", {"jsonrpc": "2.0", "method": "notifications/progress"})] * 2  # noqa: C416
    assert params == [
        {"progressToken": 5, "progress": 1, "total": 2, "message": "half"},
        {"progressToken": "t", "progress": 0.5},
    ]


async def test_a_call_that_the_cli_gives_up_is_cancelled_and_only_that() -> None:
    cancelled: list[int] = []
    started = 0
    both = anyio.Event()
    release = anyio.Event()

    @tool
    async def wait(n: int) -> int:
        nonlocal started
        started += 1
        if started == 2:
            both.set()
        try:
            await release.wait()
        except BaseException:
            cancelled.append(n)
            raise
        return n

    dispatcher = make_mcp_dispatcher({"s": sdk_server("s", [wait])})
    answers: dict[int, Any] = {}

    async def ask(n: int) -> None:
        answers[n] = (await dispatcher.handle(call("wait", {"n": n}, key=n)))["mcp_response"]

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 1)
            tasks.start_soon(ask, 2)
            await both.wait()
            await dispatcher.handle(notice("notifications/cancelled", {"requestId": 9}))
            await dispatcher.handle(notice("notifications/cancelled", {"requestId": [1]}))
            await dispatcher.handle(notice("notifications/cancelled", {"requestId": 1, "reason": "timed out"}))
            while 1 not in answers:
                await checkpoint()
            assert cancelled == [1]
            release.set()
    assert "error" in answers[1]
    assert answers[2]["result"]["content"][0]["text"] == "2"
    assert await result_of(dispatcher, call("wait", {"n": 1}, key=1))


async def test_tools_come_and_go_in_running_conversations() -> None:
    server = sdk_server("s", [add])
    one, two = make_mcp_dispatcher({"a": server}), make_mcp_dispatcher({"b": server})
    received: list[tuple[str, str]] = []
    for dispatcher in (one, two):
        dispatcher.notify = lambda name, message: received.append((name, message["method"]))
    server.add_tool(boom)
    assert sorted(received) == [("a", "notifications/tools/list_changed"), ("b", "notifications/tools/list_changed")]
    assert [each.name for each in server.tools] == ["add", "boom"]
    server.remove_tool("add")
    assert len(received) == 4
    listed = (await result_of(one, question("tools/list", server="a")))["tools"]
    assert [each["name"] for each in listed] == ["boom"]
    with pytest.raises(ToolDefinitionError, match="boom"):
        server.add_tool(boom)


async def test_one_server_in_two_conversations_keeps_their_calls_apart() -> None:
    started = anyio.Event()
    release = anyio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await release.wait()
        return "done"

    server = sdk_server("s", [wait])
    one, two = make_mcp_dispatcher({"s": server}), make_mcp_dispatcher({"s": server})
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await result_of(one, call("wait", key=1)))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await started.wait()
            await two.handle(notice("notifications/cancelled", {"requestId": 1}))
            release.set()
    assert answers[0]["content"][0]["text"] == "done"


# Definitions.


class Shop:
    @tool
    def total(self, count: int) -> int:
        return count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sdk_server("s", [add, add]), "two tools are called add"),
        (lambda: sdk_server("s", [add, create_tool("add", "", {}, lambda: 1)]), "two tools"),
        (lambda: sdk_server("my server"), "my server"),
        (lambda: sdk_server("constructor"), "CLI refuses"),
        (lambda: sdk_server("a__b"), "would be ambiguous"),
        (lambda: sdk_server("s", [3]), "expected a function"),
        (lambda: sdk_server("s", [Shop.total]), "without its object"),
        (lambda: sdk_server("s", resources=[add]), "expected a result of `resource`"),  # pyright: ignore[reportArgumentType]
        (lambda: sdk_server("s", resources=[config, config]), "two resources"),
        (lambda: sdk_server("s", prompts=[review, review]), "two prompts"),
        (lambda: resource("app")(lambda: 1), "scheme"),
        (lambda: resource("a://{b}", content="x"), "placeholders"),
        (lambda: resource("a://{b}")(lambda c: c), r"\['c'\]"),
        (lambda: resource("a://{b}/{b}")(lambda b: b), "twice"),
        (lambda: make_mcp_dispatcher({"a b": sdk_server("s")}), "a b"),
        (lambda: make_mcp_dispatcher({"s": object()}), "sdk_server"),
        (lambda: make_mcp_dispatcher({"x" * 70: sdk_server("s", [tool(name="y" * 70)(add)])}), "128"),
    ],
)
def test_an_invalid_server_is_reported_at_its_definition(make: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        make()


def test_functions_and_bound_methods_are_made_tools() -> None:
    def plain(a: int) -> int:
        """Take it."""
        return a

    server = sdk_server("s", [plain, Shop().total])
    assert [each.name for each in server.tools] == ["plain", "total"]
    assert isinstance(server.get_tool("plain"), Tool)


def test_importing_the_package_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = {"mcp", "pydantic", "docstring_parser", "fastjsonschema", "trio"}
    script = f"import sys, pilothouse.tools; print({{m.partition('.')[0] for m in sys.modules}} & {heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
