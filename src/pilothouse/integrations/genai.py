"""The names of the GenAI semantic conventions, in one table per version. Plain data; imports no OpenTelemetry.

The conventions are in development, and moved to a repository of their own after 1.41.0, the last version with a
number. `LATEST` has only what has changed since then.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

DURATION_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Histogram bounds in seconds, as the conventions advise."""
TOKEN_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Histogram bounds in tokens, as the conventions advise."""

OPT_IN_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""The environment variable with which users select another version."""
OPT_IN_LATEST_VALUE = "gen_ai_latest_experimental"
"""Its value for the latest version."""


class ConventionNames(Struct, frozen=True, kw_only=True):
    """Names of operations, attributes and metrics of one version; "" where that version has none."""

    version: str
    # Operations: values of `operation`, and the first words of span names.
    invoke_agent: str = "invoke_agent"
    execute_tool: str = "execute_tool"
    invoke_workflow: str = "invoke_workflow"
    # Attributes of both kinds of spans.
    operation: str = "gen_ai.operation.name"
    conversation_id: str = "gen_ai.conversation.id"
    error_type: str = "error.type"
    # Attributes of `invoke_agent`.
    agent_name: str = "gen_ai.agent.name"
    provider: str = "gen_ai.provider.name"
    request_model: str = "gen_ai.request.model"
    response_model: str = "gen_ai.response.model"
    finish_reasons: str = "gen_ai.response.finish_reasons"
    input_tokens: str = "gen_ai.usage.input_tokens"
    output_tokens: str = "gen_ai.usage.output_tokens"
    cache_read_tokens: str = "gen_ai.usage.cache_read.input_tokens"
    cache_write_tokens: str = "gen_ai.usage.cache_creation.input_tokens"
    server_address: str = "server.address"
    server_port: str = "server.port"
    # Attribute of `invoke_workflow`, the span of a fleet.
    workflow_name: str = "gen_ai.workflow.name"
    # Attributes of `execute_tool`.
    tool_name: str = "gen_ai.tool.name"
    tool_call_id: str = "gen_ai.tool.call.id"
    tool_type: str = "gen_ai.tool.type"
    # Content, only if enabled.
    input_messages: str = "gen_ai.input.messages"
    output_messages: str = "gen_ai.output.messages"
    tool_arguments: str = "gen_ai.tool.call.arguments"
    tool_result: str = "gen_ai.tool.call.result"
    # Metrics, and their attribute.
    token_type: str = "gen_ai.token.type"  # noqa: S105 - a name
    token_usage: str = "gen_ai.client.token.usage"  # noqa: S105
    operation_duration: str = "gen_ai.client.operation.duration"
    agent_duration: str = ""
    tool_duration: str = ""
    agent_tool_calls: str = ""
    agent_inference_calls: str = ""
    used_input_tokens: str = ""
    used_output_tokens: str = ""
    used_cache_read_tokens: str = ""
    used_cache_write_tokens: str = ""


V1_41 = ConventionNames(version="1.41.0")
LATEST = replace(
    V1_41,
    version="latest",
    cache_write_tokens="gen_ai.usage.cache_write.input_tokens",
    token_type="",
    token_usage="",
    operation_duration="",
    agent_duration="gen_ai.invoke_agent.duration",
    tool_duration="gen_ai.execute_tool.duration",
    agent_tool_calls="gen_ai.invoke_agent.tool_calls",
    agent_inference_calls="gen_ai.invoke_agent.inference_calls",
    used_input_tokens="gen_ai.client.inference.usage.input_tokens",
    used_output_tokens="gen_ai.client.inference.usage.output_tokens",
    used_cache_read_tokens="gen_ai.client.inference.usage.cache_read.input_tokens",
    used_cache_write_tokens="gen_ai.client.inference.usage.cache_write.input_tokens",
)
VERSIONS: dict[str, ConventionNames] = {names.version: names for names in (V1_41, LATEST)}

PROVIDERS = {
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "foundry": "azure.ai.inference",
    "vertex": "gcp.vertex_ai",
}
"""Value of the option `provider` → its name in the conventions."""

# Names of pilothouse, where the conventions have none.
COST = "pilothouse.cost_usd"
OUTCOME = "pilothouse.outcome"
TURNS = "pilothouse.turns"
RESTARTS = "pilothouse.restarts"
SELF_STARTED = "pilothouse.self_started"
RETRY_EVENT = "pilothouse.retry"
RETRY_SCHEDULED_EVENT = "pilothouse.retry_scheduled"
RESTART_EVENT = "pilothouse.restart"
RETRY_ATTEMPT = "pilothouse.retry.attempt"
RETRY_BY = "pilothouse.retry.by"
RETRY_DELAY = "pilothouse.retry.delay_ms"
RETRY_REASON = "pilothouse.retry.reason"
RETRY_WAY = "pilothouse.retry.way"
CALL_OUTCOME = "pilothouse.call.outcome"
COST_METRIC = "pilothouse.cost"
RETRIES_METRIC = "pilothouse.retries"
FLEET_ATTEMPT = "pilothouse.fleet.attempt"
FLEET_BUDGET = "pilothouse.fleet.budget_usd"
FLEET_CANCELLED = "pilothouse.fleet.cancelled"
FLEET_CONCURRENCY = "pilothouse.fleet.concurrency"
FLEET_FAILED = "pilothouse.fleet.failed"
FLEET_RUN_ATTEMPT = "pilothouse.fleet.run.attempt"
FLEET_RUN_KEY = "pilothouse.fleet.run.key"
FLEET_RUN_PRIORITY = "pilothouse.fleet.run.priority"
FLEET_RUN_STATE = "pilothouse.fleet.run.state"
FLEET_SUCCEEDED = "pilothouse.fleet.succeeded"
FLEET_COST_METRIC = "pilothouse.fleet.cost"
FLEET_DURATION_METRIC = "pilothouse.fleet.attempt.duration"
FLEET_ENDED_METRIC = "pilothouse.fleet.runs.ended"
FLEET_RUNNING_METRIC = "pilothouse.fleet.running"
FLEET_RUNS_METRIC = "pilothouse.fleet.runs.left"

# Names of other conventions.
HTTP_STATUS = "http.response.status_code"
EXIT_CODE = "process.exit.code"
