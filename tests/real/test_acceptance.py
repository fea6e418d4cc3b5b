"""What a session promises, on the real CLI, where the other files stop: servers of all kinds, files, kills, waiting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from conversations import kill_child

import pilothouse as ph
from pilothouse.permissions import Accept, ElicitationRequest
from pilothouse_models.bridges import LOST_CALL_MESSAGE
from pilothouse_testing import RecordedRequest, ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

SERVER = """
import socket, sys
import uvicorn
from mcp.server import MCPServer

ledger = MCPServer("ledger")

@ledger.tool()
def balance(account: str) -> str:
    "The balance of an account."
    return f"{account}: 7"

app = ledger.streamable_http_app() if sys.argv[1] == "http" else ledger.sse_app()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])
"""

ASKS = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
tool = {"name": "book", "description": "Book a berth.", "inputSchema": {"type": "object"}}
call = None
for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "harbour", "version": "1"}}
        say(id=key, result={"protocolVersion": version, **about})
    elif method == "tools/list":
        say(id=key, result={"tools": [tool]})
    elif method == "tools/call":
        call = key
        say(id="e1", method="elicitation/create", params={"message": "Your name?", "requestedSchema": form})
    elif key == "e1":
        say(id=call, result={"content": [{"type": "text", "text": json.dumps(message["result"])}]})
    elif method and key is not None:
        say(id=key, result={})
"""

Serve = Callable[[str], "ph.HttpServer | ph.SseServer"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts MCP servers of the official package, and says how to reach them."""
    running: list[subprocess.Popen[str]] = []

    def start(kind: str) -> ph.HttpServer | ph.SseServer:
        server = subprocess.Popen([sys.executable, "-c", SERVER, kind], stdout=subprocess.PIPE, text=True)
        running.append(server)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        if kind == "http":
            return ph.HttpServer(url=f"http://127.0.0.1:{port}/mcp")
        return ph.SseServer(url=f"http://127.0.0.1:{port}/sse")

    yield start
    for server in running:
        server.kill()
        server.communicate()


def reported(request: RecordedRequest) -> str:
    return request.tool_results[-1].text


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_servers_over_the_network(claude: Any, model: ScriptedModel, serve: Serve, kind: str) -> None:
    model.on("go", reply=Steps([ToolUse("mcp__ledger__balance", {"account": "Ann"})], reported))
    settings: dict[str, Any] = {"tools": [], "allowed_tools": ["mcp__ledger"], "strict_mcp_config": True}
    servers = {"ledger": serve(kind)}
    async with claude.session(mcp_servers=servers, wait_for_mcp=True, **settings) as session:
        result = await session.query("go")
        assert "Ann: 7" in result.text
        assert [(each.name, each.status) for each in await session.mcp.status()] == [("ledger", "connected")]
        init = next(m for m in result.messages if isinstance(m, ph.InitMessage))
        assert [(each.name, each.status) for each in init.mcp_servers] == [("ledger", "connected")]


def ann(request: ElicitationRequest) -> Accept:
    assert (request.mode, request.message, list((request.schema or {})["properties"])) == (
        "form",
        "Your name?",
        ["name"],
    )
    return Accept({"name": "Ann"})


def fails(_: ElicitationRequest) -> Accept:
    raise LookupError("no name")


@pytest.mark.parametrize(
    ("on_elicitation", "expected"),
    [
        (ann, {"action": "accept", "content": {"name": "Ann"}}),
        (lambda _: False, {"action": "decline"}),
        (fails, {"action": "cancel"}),
        (None, {"action": "cancel"}),
    ],
    ids=["answered", "declined", "failed", "nobody"],
)
async def test_a_server_asks_the_user(
    claude: Any, model: ScriptedModel, on_elicitation: Any, expected: dict[str, Any]
) -> None:
    model.on("go", reply=Steps([ToolUse("mcp__harbour__book", {})], reported))
    servers = {"harbour": ph.StdioServer(command=sys.executable, args=["-c", ASKS])}
    settings: dict[str, Any] = {"mcp_servers": servers, "tools": [], "allowed_tools": ["mcp__harbour"]}
    async with claude.session(wait_for_mcp=True, on_elicitation=on_elicitation, **settings) as session:
        assert json.loads((await session.query("go")).text) == expected


class CutOff:
    """A tool whose first call is in the middle of its work when the CLI is killed."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.begun = anyio.Event()

    async def weather(self, city: str) -> str:
        """The weather in a city."""
        self.ran.append(city)
        self.begun.set()
        await anyio.sleep_forever()
        raise AssertionError


async def cut_off(claude: Any, tools: CutOff) -> ph.Session:
    """A session whose child was killed while this process ran a call that the child had deferred."""
    session = await claude.session(custom_tools=[tools.weather], tool_bridge="deferred", tools=[]).start()
    query = session.query("go")
    await query.start()
    with anyio.fail_after(20):
        await tools.begun.wait()
    await kill_child(session)
    with pytest.raises(ph.CLIExitedError):
        await query
    return session


def assert_reported_as_lost(model: ScriptedModel) -> None:
    """Check that the model was told, once and as an error, that its call did not come back."""
    (result,) = model.requests[1].tool_results
    assert result.is_error
    # Once in some thousand runs, CLI 2.1.332 cancels the call before it has read the hook's answer.
    assert LOST_CALL_MESSAGE in result.text or "doesn't want to take this action" in result.text


def answering(model: ScriptedModel) -> None:
    model.reply([ToolUse("mcp__tools__weather", {"city": "Rome"})])
    for number in ("one", "two"):
        model.reply(lambda request, number=number: f"{number}: {request.last_user_text.splitlines()[-1]}")


@pytest.mark.requirement("E20", "E27", "E69")
@pytest.mark.parametrize("pause", [None, 0.0, 0.1], ids=["at once", "after the start", "later"])
async def test_after_a_kill_in_a_deferred_call_the_next_prompt_gets_its_own_answer(
    claude: Any, model: ScriptedModel, pause: float | None
) -> None:
    answering(model)
    tools = CutOff()
    async with await cut_off(claude, tools) as session:
        if pause is not None:
            await session.start()
            await anyio.sleep(pause)
        first, second = await session.query("alpha"), await session.query("beta")
        assert (first.text, first.full_text) == ("one: alpha", "one: alpha")
        assert (second.text, second.full_text) == ("two: beta", "two: beta")
        assert session.restarts == 1
    assert tools.ran == ["Rome"]
    assert_reported_as_lost(model)
    model.assert_done()


@pytest.mark.requirement("E20", "L60")
async def test_a_query_that_resumes_such_a_conversation(claude: Any, model: ScriptedModel) -> None:
    answering(model)
    tools = CutOff()
    session = await cut_off(claude, tools)
    await session.close()
    result = await claude.ask(
        "alpha", resume=session.id, custom_tools=[tools.weather], tool_bridge="deferred", tools=[]
    )
    assert (result.text, result.is_success, tools.ran) == ("one: alpha", True, ["Rome"])
    # The hook could still be asked: the CLI's own result, which comes first, is not taken for the answer.
    assert_reported_as_lost(model)


@pytest.mark.requirement("E20", "E27", "E69", "L60")
@pytest.mark.parametrize("anew", [False, True], ids=["same session", "another session"])
async def test_background_work_that_died_with_the_child_answers_no_prompt(
    claude: Any, model: ScriptedModel, anew: bool
) -> None:
    run = {"command": "sleep 3", "run_in_background": True}
    model.on("begin", reply=Steps([ToolUse("Bash", run)], "it runs"))
    model.default = lambda request: f"re: {request.last_user_text.splitlines()[-1]}"
    settings: dict[str, Any] = {"tools": ["Bash"], "permission_mode": "bypassPermissions"}
    async with claude.session(**settings) as session:
        assert (await session.query("begin")).text == "it runs"
        await kill_child(session)
        async with claude.session(resume=session.id, **settings) as another:
            # The CLI begins with a turn of its own, about the task that is gone.
            for prompt in ("alpha", "beta"):
                result = await (another if anew else session).query(prompt)
                assert (result.text, result.full_text) == (f"re: {prompt}", f"re: {prompt}")
    assert (session.restarts, another.restarts) == (int(not anew), 0)
    await claude.gone()  # the command survives a CLI that is killed from outside


@pytest.mark.requirement("L60", "E23")
@pytest.mark.parametrize("wrong", ["5e551017-0000-4000-8000-0000000000ff", "a title that nothing has"])
async def test_a_conversation_that_is_not_there(claude: Any, wrong: str) -> None:
    with pytest.raises(ph.SessionNotFoundError, match=r"check the id: `pilothouse sessions --all`"):
        await claude.session(resume=wrong).start()
    said = "^no session has the id or the title 'a title" if " " in wrong else f"^No conversation found .*{wrong}"
    with pytest.raises(ph.SessionNotFoundError, match=said):
        (await claude.ask("go", resume=wrong)).raise_for_error()
