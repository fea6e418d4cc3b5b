"""Inspect AI over both endpoints: an evaluation with a tool, and one without."""

import json
import os
import sys
import tempfile

URL, TOKEN = sys.argv[1:3]
os.environ |= {
    "PILOTHOUSE_BASE_URL": f"{URL}/v1",
    "PILOTHOUSE_API_KEY": TOKEN,
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_API_KEY": TOKEN,
}

from inspect_ai import Task, eval  # noqa: A004, E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import Tool, tool  # noqa: E402


@tool
def weather() -> Tool:
    async def execute(city: str) -> str:
        """Tell the weather.

        Args:
            city: the city
        """
        return f"18 degrees in {city}"

    return execute


task = Task(
    dataset=[Sample(input="Warm in Oslo?", target="18")], solver=[use_tools(weather()), generate()], scorer=includes()
)
found = {}
with tempfile.TemporaryDirectory() as logs:
    for model in ("openai-api/pilothouse/sonnet", "anthropic/sonnet"):
        [log] = eval(task, model=model, log_dir=logs, display="none", max_retries=0)
        accuracy = log.results.scores[0].metrics["accuracy"].value if log.results else str(log.error)
        found[model] = [log.status, accuracy, [message.role for message in log.samples[0].messages]]
print(json.dumps(found))
