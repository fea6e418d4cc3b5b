"""`effective_policy` and the real CLI agree about rules for MCP servers and tools, however their names are written."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.options import PolicyWarning
from pilothouse.options.permission_rules import normalize_mcp_name
from pilothouse_policy import Policy, effective_policy
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]


@pytest.fixture(autouse=True)
def _unchecked_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query with rules that never apply would end: here they show what the CLI does with them."""
    monkeypatch.setattr("pilothouse.client.launch.SETTINGS_OPTIONS", frozenset[str]())


SERVERS = [
    "shop", "Upper", "with-hyphen", "with_underscore", "two__parts", "_first", "last_", "io.github.acme/shop",
    "@acme/shop", "my.shop", "a blank", "a\ttab", "läden", "Ⅷ", "🛒cart", "port:80", "what!?", "q(r)s", "one,two",
    "back\\slash", "claude.ai My  Shop",
]  # fmt: skip


class McpEndpoint(BaseHTTPRequestHandler):
    """An MCP server over HTTP that has the tools of its address, as in `/read,calendar.read`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the base class
        pass

    def do_GET(self) -> None:
        self.respond(405)

    def do_DELETE(self) -> None:
        self.respond(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            self.respond(202)
            return
        schema = {"type": "object", "properties": {}}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": message.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "test", "version": "1"},
            },
            "tools/list": {
                "tools": [
                    {"name": name, "description": "d", "inputSchema": schema} for name in self.path[1:].split(",")
                ]
            },
            "tools/call": {"content": [{"type": "text", "text": "ran"}]},
        }
        self.respond(200, {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})})

    def respond(self, status: int, body: Any = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def mcp_address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), McpEndpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


async def call_each(
    claude: Any, model: ScriptedModel, tools: dict[str, str], settings: dict[str, Any]
) -> tuple[dict[str, str], Policy]:
    """Let the model call each tool; return what became of each call, and the policy. `tools`: full name to server."""
    asked: set[str] = set()

    def can_use_tool(request: ph.PermissionRequest) -> bool:
        asked.add(request.tool_name)
        return False

    ids = {f"toolu_{number:04}": name for number, name in enumerate(tools)}
    model.reply(Steps([ToolUse(name, {}, id=key) for key, name in ids.items()], "done"))
    given: Any = {
        "tools": [],
        "can_use_tool": can_use_tool,
        "strict_mcp_config": True,
        "setting_sources": [],
    } | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyWarning)
        await claude.ask(env={"IS_SANDBOX": "1"}, wait_for_mcp=20, **given)
    happened: dict[str, str] = {}
    for result in model.requests[-1].tool_results:
        name = ids[result.tool_use_id]
        missing = "No such tool available" in result.text
        happened[name] = "asks" if name in asked else "unavailable" if missing else result.text.replace("ran", "runs")
    assert happened.keys() == tools.keys()
    return happened, effective_policy(ph.Options(**given))


def make_settings(behavior: str, rules: list[str], *, in_settings: bool) -> dict[str, Any]:
    mode = {"permission_mode": "default" if behavior == "allow" else "bypassPermissions"}
    if in_settings:
        return mode | {"settings": {"permissions": {behavior: rules}}}
    return mode | {"allowed_tools" if behavior == "allow" else "disallowed_tools": rules}


@pytest.mark.parametrize("as_given", [True, False], ids=["as given", "normalized"])
@pytest.mark.parametrize(
    ("behavior", "in_settings"),
    [
        ("deny", False),
        ("allow", False),
        pytest.param("deny", True, marks=pytest.mark.matrix),
        pytest.param("allow", True, marks=pytest.mark.matrix),
        pytest.param("ask", True, marks=pytest.mark.matrix),
    ],
)
async def test_rules_for_servers_with_unusual_names(
    claude: Any, model: ScriptedModel, mcp_address: str, behavior: str, in_settings: bool, as_given: bool
) -> None:
    if not claude.is_pinned:
        pytest.skip("other versions may spell names differently")
    names = {server: f"mcp__{normalize_mcp_name(server)}__f" for server in SERVERS}
    rules = [f"mcp__{server if as_given else normalize_mcp_name(server)}" for server in SERVERS]
    settings = make_settings(behavior, rules, in_settings=in_settings)
    settings["mcp_servers"] = {server: ph.HttpServer(url=f"{mcp_address}f") for server in SERVERS}
    tools = {name: server for server, name in names.items()}
    happened, policy = await call_each(claude, model, tools, settings)
    predicted = {names[server]: policy.outcome(f"mcp__{server}") for server in SERVERS}
    assert predicted == happened
    for server, rule in zip(SERVERS, rules, strict=True):
        warned = [text for text in policy.warnings if repr(rule) in text]
        is_effective = {"deny": "unavailable", "allow": "runs", "ask": "asks"}[behavior] == happened[names[server]]
        assert bool(warned) is not is_effective, (rule, warned)


FORMS = [
    "mcp__{}", "mcp__{}__*", "mcp__{}__", "mcp__{}*", "mcp__{}__calendar*", "mcp__{}__calendar.read",
    "mcp__{}__calendar_read", "mcp__{}__*read", "mcp__{}(x)", "mcp__{}(*)", "mcp__{}__f(x)", "mcp__{}__f(*)",
    "mcp__{}__f()", "mcp_{}", "mcp__*{}__f",
]  # fmt: skip


@pytest.mark.parametrize(
    ("behavior", "in_settings"),
    [
        ("deny", False),
        ("deny", True),
        pytest.param("allow", False, marks=pytest.mark.matrix),
        pytest.param("allow", True, marks=pytest.mark.matrix),
        pytest.param("ask", True, marks=pytest.mark.matrix),
    ],
)
async def test_forms_of_rules_for_mcp_tools(
    claude: Any, model: ScriptedModel, mcp_address: str, behavior: str, in_settings: bool
) -> None:
    if not claude.is_pinned:
        pytest.skip("other versions may read rules differently")
    servers = [f"s{number:02}.x" for number in range(len(FORMS))]
    rules = [form.format(normalize_mcp_name(server)) for form, server in zip(FORMS, servers, strict=True)]
    settings = make_settings(behavior, rules, in_settings=in_settings)
    settings["mcp_servers"] = {server: ph.HttpServer(url=f"{mcp_address}f,calendar.read") for server in servers}
    tools = {
        f"mcp__{normalize_mcp_name(server)}__{tool}": server for server in servers for tool in ("f", "calendar_read")
    }
    happened, policy = await call_each(claude, model, tools, settings)
    predicted = {name: policy.outcome(name, "its other tools") for name in tools}
    differ = {name: (predicted[name], happened[name]) for name in tools if predicted[name] != happened[name]}
    assert not differ, f"(predicted, happened): {differ}\n{policy}"
