"""The library `litellm` as a client of both endpoints: answers, streams, calls, and errors."""

import json
import sys

import litellm

URL, TOKEN = sys.argv[1:]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}]

found = {}
for model, base in (("openai/sonnet", f"{URL}/v1"), ("anthropic/sonnet", URL)):
    asked = {"model": model, "api_base": base, "api_key": TOKEN, "num_retries": 0, "max_retries": 0}
    messages = [{"role": "user", "content": "Is it warm in Oslo?"}]
    answer = litellm.completion(messages=messages, tools=TOOLS, **asked)
    said = answer.choices[0].message
    [call] = said.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "18"}
    stream = litellm.completion(messages=[*messages, said.model_dump(), result], tools=TOOLS, stream=True, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    try:
        litellm.completion(messages=messages, **asked)
    except litellm.RateLimitError as error:
        failure = type(error).__name__
    found[model] = [call.function.name, json.loads(call.function.arguments), answer.choices[0].finish_reason]
    found[model] += [answer.usage.completion_tokens, text, failure]
print(json.dumps(found))
