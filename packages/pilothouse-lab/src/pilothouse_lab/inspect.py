"""An adapter for Inspect AI: a task of Inspect uses pilothouse as its agent, with Inspect's scorers, logs and viewer.

Owns how the messages, tool calls and usage of a query become those of Inspect. The agent talks to the model itself, not
through the model of the task, so Inspect's limits of tokens and its cache do not see it; those of the agent hold
(`max_turns`, `max_budget_usd`, `timeout`). Needs the extra `inspect`.
"""

# Inspect AI is not in the environment of development: it needs other versions of libraries that are there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from inspect_ai.agent import Agent, AgentState, agent
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall, ToolCallError
from inspect_ai.util import sandbox

import pilothouse as ph
from pilothouse.support import run_blocking


@agent(name="pilothouse")
def pilothouse_agent(configured: ph.Agent | None = None) -> Agent:
    """Make an agent for an Inspect task: `Task(dataset=…, solver=pilothouse_agent(ph.Agent(…)), scorer=…)`.

    The prompt is the text of the user's messages of the sample. With `sandbox="local"` the agent works in the directory
    of the sample, where its files are; any other sandbox is refused, because the agent runs on this machine.

    Args:
        configured: the agent; None: the default agent.
    """

    async def execute(state: AgentState) -> AgentState:
        """Claude Code, steered by pilothouse."""
        prompt = "\n\n".join(message.text for message in state.messages if message.role == "user")
        cwd = await _find_directory()
        own: dict[str, Any] = {} if cwd is None else {"cwd": cwd}
        result = (await (configured or ph.default_agent()).query(prompt, **own)).raise_for_error()
        state.messages.extend(_convert(result.messages))
        state.output = _make_output(result)
        return state

    return execute


async def _find_directory() -> str | None:
    """Return the directory of the sandbox of this sample; None without a sandbox."""
    try:
        box = sandbox()
    except ProcessLookupError:
        return None
    cwd, probe = (await box.exec(["pwd"])).stdout.strip(), f".pilothouse-{secrets.token_hex(8)}"
    await box.write_file(probe, "")
    if not await run_blocking(Path(cwd, probe).is_file):
        raise ph.UsageError("the agent of pilothouse runs on this machine: use sandbox='local', or none")
    await box.exec(["rm", probe])
    return cwd


def _convert(messages: Iterable[ph.Message]) -> Iterator[ChatMessage]:
    """Convert the messages of a query; those of sub-agents stay out."""
    names: dict[str, str] = {}
    for message in messages:
        if isinstance(message, ph.AssistantMessage) and message.parent_tool_use_id is None:
            texts = [ContentText(text=one.text) for one in message.content if isinstance(one, ph.TextBlock)]
            thoughts = [one.thinking for one in message.content if isinstance(one, ph.ThinkingBlock)]
            content = [*(ContentReasoning(reasoning=one) for one in thoughts), *texts]
            names |= {call.id: call.name for call in message.tool_uses}
            calls = [ToolCall(id=call.id, function=call.name, arguments=dict(call.input)) for call in message.tool_uses]
            yield ChatMessageAssistant(content=content, tool_calls=calls or None, model=message.model)
        elif isinstance(message, ph.UserMessage) and message.parent_tool_use_id is None:
            for one in message.content:
                if isinstance(one, ph.ToolResultBlock):
                    error = ToolCallError("unknown", one.text) if one.is_error else None
                    own: dict[str, Any] = {"tool_call_id": one.tool_use_id, "function": names.get(one.tool_use_id)}
                    yield ChatMessageTool(content=one.text, error=error, **own)


def _make_output(result: ph.QueryResult[Any]) -> ModelOutput:
    def add(name: str) -> int:
        return sum(int(getattr(usage, name) or 0) for usage in result.model_usage.values())

    new, taken = add("input_tokens"), add("output_tokens")
    written, read = add("cache_creation_input_tokens"), add("cache_read_input_tokens")
    usage = ModelUsage(input_tokens=new, output_tokens=taken, total_tokens=new + taken + written + read)
    usage.input_tokens_cache_write, usage.input_tokens_cache_read, usage.total_cost = written, read, result.cost_usd
    choice = ChatCompletionChoice(message=ChatMessageAssistant(content=result.text))
    output = ModelOutput(model=", ".join(result.model_usage), choices=[choice], usage=usage)
    output.metadata = {"session_id": result.session_id, "turns": result.turns}
    return output
