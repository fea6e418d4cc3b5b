"""The library `openai-agents` as a client: runs, streams and typed output, over responses and over chat completions."""

import asyncio
import json
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

URL, TOKEN = sys.argv[1:]


class City(BaseModel):
    name: str


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


async def main():
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)
    found = {}
    for name, model in (("responses", "sonnet"), ("chat", OpenAIChatCompletionsModel("sonnet", client))):
        agent = Agent(name="Helper", instructions="Be brief.", tools=[weather], model=model)
        result = await Runner.run(agent, "Is it warm in Oslo?")
        usage = result.context_wrapper.usage
        streamed = Runner.run_streamed(agent, "Is it warm in Oslo?")
        deltas = ""
        async for event in streamed.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas += event.data.delta
        typed = await Runner.run(Agent(name="Typed", output_type=City, model=model), "Which city?")
        found[name] = [result.final_output, usage.requests, usage.total_tokens, deltas, typed.final_output.name]
        kinds = [item.type for item in result.new_items]
        found[name].append(kinds)
    second = await Runner.run(Agent(name="Chained", model="sonnet"), "And now?")
    third = await Runner.run(
        Agent(name="Chained", model="sonnet"), "More?", previous_response_id=second.last_response_id
    )
    found["chained"] = third.final_output
    print(json.dumps(found))


asyncio.run(main())
