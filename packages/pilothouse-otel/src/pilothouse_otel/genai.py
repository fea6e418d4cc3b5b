"""The names of the GenAI semantic conventions, as the last numbered version has them. Imports no OpenTelemetry.

The conventions are in development. Since 1.41.0 they have a repository of their own, without releases: names that only
it has are not used.
"""

from __future__ import annotations

DURATION_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Histogram bounds in seconds, as the conventions advise."""
TOKEN_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""Histogram bounds in tokens, as the conventions advise."""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""Of the last numbered version of the conventions; these names hold in it."""

# Operations: values of `operation`, and the first words of span names.
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
INVOKE_WORKFLOW = "invoke_workflow"

# Attributes of both kinds of spans.
OPERATION = "gen_ai.operation.name"
CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

# Attributes of `invoke_agent`.
AGENT_NAME = "gen_ai.agent.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

# Attribute of `invoke_workflow`, the span of a fleet.
WORKFLOW_NAME = "gen_ai.workflow.name"

# Attributes of `execute_tool`.
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"

# Content, only if enabled.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Metrics, and their attribute.
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - a name
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105
OPERATION_DURATION = "gen_ai.client.operation.duration"

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
RETRY_ACTION = "pilothouse.retry.action"
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
