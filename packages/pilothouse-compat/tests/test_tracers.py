"""Tracers for `claude-agent-sdk` record the same on the real package and on pilothouse."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from downstream_packages import fetch_packages

from pilothouse_compat.alias import PATH
from pilothouse_testing import ToolUse

pytestmark = [pytest.mark.real_cli, pytest.mark.matrix]

# With their dependencies, but for those that the group `dev` has.
PACKAGES = (
    "braintrust==0.48.1", "cachetools==7.3.3", "chevron==0.14.0", "cloudpickle==3.1.3", "databricks-sdk==0.162.0",
    "exceptiongroup==1.3.2", "executing==2.3.0", "gitdb==4.0.12", "gitpython==3.2.1", "google-auth==2.63.0",
    "googleapis-common-protos==1.76.0", "importlib-metadata==9.1.0", "logfire-sdk==5.4.0", "mlflow-skinny==3.17.2",
    "mlflow-tracing==3.17.2", "openinference-instrumentation==0.1.72",
    "openinference-instrumentation-claude-agent-sdk==0.1.22", "openinference-semantic-conventions==0.1.42",
    "opentelemetry-exporter-http-transport==0.66b2", "opentelemetry-exporter-otlp-common==0.66b2",
    "opentelemetry-exporter-otlp-proto-common==1.45.2", "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-instrumentation==0.66b2", "opentelemetry-proto==1.45.2", "protobuf==7.36.2", "pyasn1==0.6.5",
    "pyasn1-modules==0.4.2", "python-slugify==9.2.0", "smmap==5.0.3", "sqlparse==0.6.1", "sseclient-py==1.9.0",
    "text-unidecode==1.3", "tqdm==4.70.1", "wrapt==2.5.2", "zipp==4.1.2",
)  # fmt: skip

HEAD = """
import asyncio, os, sys
CLI, CWD = sys.argv[1:]

def show(*parts):
    print("SPAN", *parts, flush=True)
"""

OTEL_HEAD = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
"""

PROGRAM = """
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, create_sdk_mcp_server, query, tool

@tool("add", "Adds.", {"a": int, "b": int})
async def add(args):
    return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}

async def main():
    options = ClaudeAgentOptions(
        cli_path=CLI, cwd=CWD, mcp_servers={"t": create_sdk_mcp_server("t", tools=[add])},
        allowed_tools=["Bash", "mcp__t__add"],
    )
    async for _ in query(prompt="go", options=options):
        pass
    async with ClaudeSDKClient(options) as client:
        await client.query("again")
        async for _ in client.receive_response():
            pass

asyncio.run(main())
"""

OTEL_TAIL = """
for span in spans.get_finished_spans():
    # Where the span was made: pilothouse is user code here, as it is not in site-packages.
    show(span.name, span.kind, sorted(name for name in span.attributes if not name.startswith("code.")))
"""

OTEL = (
    OTEL_HEAD
    + """
from opentelemetry import trace
trace.set_tracer_provider(provider)
"""
    + PROGRAM
    + OTEL_TAIL
)

OPENINFERENCE = (
    OTEL_HEAD
    + """
from openinference.instrumentation.claude_agent_sdk import ClaudeAgentSDKInstrumentor
ClaudeAgentSDKInstrumentor().instrument(tracer_provider=provider)
"""
    + PROGRAM
    + OTEL_TAIL
)

LOGFIRE = (
    OTEL_HEAD
    + """
import logfire
logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(spans)])
logfire.instrument_claude_agent_sdk()
"""
    + PROGRAM
    + OTEL_TAIL
)

BRAINTRUST = (
    """
os.environ["BRAINTRUST_API_KEY"] = "x"
from braintrust.logger import _internal_with_memory_background_logger
from braintrust.test_helpers import init_test_logger, simulate_login
simulate_login()
context = _internal_with_memory_background_logger()
memory = context.__enter__()
from braintrust.integrations.claude_agent_sdk import setup_claude_agent_sdk
show(setup_claude_agent_sdk(project="p"))
init_test_logger("p")
"""
    + PROGRAM
    + """
for span in memory.pop():
    show(span.get("span_attributes", {}).get("type"), span.get("span_attributes", {}).get("name"), sorted(span))
os._exit(0)  # its threads wait for a server
"""
)

LANGSMITH = (
    """
os.environ["LANGSMITH_TRACING"], os.environ["LANGSMITH_API_KEY"] = "true", "x"
import langsmith
import langsmith.run_trees
from langsmith.client import Client

class Recorder(Client):
    def create_run(self, name, inputs, run_type, **kwargs):
        show(run_type, name, sorted(inputs))

    def update_run(self, *args, **kwargs):
        pass

recorder = Recorder(api_url="http://127.0.0.1:9", auto_batch_tracing=False)
langsmith.run_trees.get_cached_client = lambda **_: recorder
from langsmith.integrations.claude_agent_sdk import configure_claude_agent_sdk
show(configure_claude_agent_sdk())

async def warm_up():  # the first span takes so long to begin that a hook can come before
    async with langsmith.trace("warm-up"):
        pass

asyncio.run(warm_up())
"""
    + PROGRAM
    + "os._exit(0)"
)

MLFLOW = (
    """
os.environ |= {"MLFLOW_TRACKING_URI": f"file:{CWD}/{os.getpid()}", "MLFLOW_ALLOW_FILE_STORE": "true"}
os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"
import mlflow.anthropic
mlflow.set_experiment("x")
mlflow.anthropic.autolog()
"""
    + PROGRAM
    + """
for trace in mlflow.search_traces(return_type="list"):
    for span in trace.data.spans:
        show(span.span_type, span.name, sorted(span.attributes))
os._exit(0)
"""
)

TRACERS = {
    "OpenTelemetry": OTEL, "OpenInference": OPENINFERENCE, "Logfire": LOGFIRE, "Braintrust": BRAINTRUST,
    "LangSmith": LANGSMITH, "MLflow": MLFLOW,
}  # fmt: skip


def record(code: str, program: Any, *, ours: bool) -> list[str]:
    """What a tracer records, sorted: parallel parts of a trace have no order."""
    program.script(
        [ToolUse("Bash", {"command": "echo hi"}), ToolUse("mcp__t__add", {"a": 1, "b": 2})], "done",
        ToolUse("mcp__t__add", {"a": 3, "b": 4}), "done again",
    )  # fmt: skip
    paths = [*([str(PATH)] if ours else []), str(fetch_packages("tracers-1", PACKAGES))]
    env = {**program.model.env(max_retries=0), "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, program.cli, str(program.cwd)],
        env=env, cwd=program.cwd, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(line for line in done.stdout.splitlines() if line.startswith("SPAN"))


@pytest.mark.parametrize("code", TRACERS.values(), ids=TRACERS)
def test_a_tracer_records_the_same_on_both_packages(code: str, program: Any) -> None:
    theirs = record(code, program, ours=False)
    assert len(theirs) >= 3
    assert record(code, program, ours=True) == theirs
