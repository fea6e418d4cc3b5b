"""Packages that depend on `claude-agent-sdk` run unmodified on pilothouse, with the real CLI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from downstream_packages import fetch_packages

from pilothouse_compat.alias import PATH
from pilothouse_testing import ToolUse

pytestmark = [pytest.mark.real_cli, pytest.mark.matrix]

# Without their dependencies: claude-agent-sdk is one of them, and the others that are used are in the group `dev`.
PACKAGES = (
    "ag-ui-claude-sdk==0.2.3", "agent-framework-claude==1.0.0b261015",
    "openinference-instrumentation-claude-agent-sdk==0.1.22", "ag-ui-protocol==1.0.0",
    "agent-framework-core==1.23.0", "annotated-doc==0.0.7", "fastapi==0.165.0",
    "openinference-instrumentation==0.1.72", "openinference-semantic-conventions==0.1.42",
    "opentelemetry-instrumentation==0.66b2", "opentelemetry-semantic-conventions==0.66b2", "wrapt==2.5.2",
)  # fmt: skip

HEAD = """
import asyncio, json, os, sys
import claude_agent_sdk
assert "pilothouse" in claude_agent_sdk.__file__
CLI, CWD = sys.argv[1:]
"""

AG_UI = """
from ag_ui.core import RunAgentInput, UserMessage
from ag_ui_claude_sdk import ClaudeAgentAdapter

async def main():
    adapter = ClaudeAgentAdapter(name="a", options={"cli_path": CLI, "cwd": CWD, "allowed_tools": ["Bash"]})
    asked = RunAgentInput(thread_id="t", run_id="r", state={}, tools=[], context=[], forwarded_props={},
                          messages=[UserMessage(id="1", role="user", content="go")])
    async for event in adapter.run(asked):
        print(json.dumps([event.type.value, getattr(event, "delta", None) or getattr(event, "content", None)]))
asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # its worker has no end
"""

AGENT_FRAMEWORK = """
from agent_framework_claude import ClaudeAgent

def add(a: int, b: int) -> str:
    "Adds two numbers."
    return f"sum {a + b}"

async def main():
    options = {"cli_path": CLI, "cwd": CWD, "permission_mode": "bypassPermissions"}
    async with ClaudeAgent(instructions="Add.", tools=[add], default_options=options) as agent:
        print(json.dumps((await agent.run("1 + 2?")).text))
        print(json.dumps([update.text async for update in agent.run("again", stream=True)]))
asyncio.run(main())
"""

OPENINFERENCE = """
from openinference.instrumentation.claude_agent_sdk import ClaudeAgentSDKInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
ClaudeAgentSDKInstrumentor().instrument(tracer_provider=provider)
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, query

async def main():
    options = ClaudeAgentOptions(cli_path=CLI, cwd=CWD, allowed_tools=["Bash"])
    async for _ in query(prompt="go", options=options):
        pass
    async with ClaudeSDKClient(options) as client:
        await client.query("again")
        async for _ in client.receive_response():
            pass
asyncio.run(main())
for span in spans.get_finished_spans():
    print(json.dumps([span.name, {k: str(v) for k, v in span.attributes.items()}]))
"""


def run(code: str, program: Any) -> list[Any]:
    env = {
        **program.model.env(max_retries=0),
        "PYTHONPATH": os.pathsep.join((str(PATH), str(fetch_packages("packages-1", PACKAGES)))),
    }
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, program.cli, str(program.cwd)],
        env=env, cwd=program.cwd, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ag_ui(program: Any) -> None:
    program.script(ToolUse("Bash", {"command": "echo ready"}), "Hello there.")
    events = run(AG_UI, program)
    names = [name for name, _ in events]
    assert (names[0], names[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert {"TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"} <= set(names)
    assert "".join(delta for name, delta in events if name == "TEXT_MESSAGE_CONTENT") == "Hello there."
    assert any("ready" in str(value) for name, value in events if name == "TOOL_CALL_RESULT")


def test_agent_framework(program: Any) -> None:
    program.script("The sum is 3.", "Again 3.")
    answer, updates = run(AGENT_FRAMEWORK, program)
    assert "The sum is 3." in answer
    assert "Again 3." in "".join(updates)
    assert any("Add." in json.dumps(request.body.get("system", "")) for request in program.model.requests)


def test_openinference(program: Any) -> None:
    program.script(ToolUse("Bash", {"command": "echo ready"}), "Hello there.", "Again.")
    spans = run(OPENINFERENCE, program)
    agents = [facts for _, facts in spans if facts.get("openinference.span.kind") == "AGENT"]
    tools = [facts for _, facts in spans if facts.get("openinference.span.kind") == "TOOL"]
    assert [facts.get("output.value") for facts in agents] == ["Hello there.", "Again."]
    assert [facts["input.value"] for facts in agents] == ["go", "again"]
    assert tools
    assert tools[0]["tool.name"] == "Bash"
