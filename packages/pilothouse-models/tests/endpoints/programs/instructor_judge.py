"""The library `instructor` as a client: typed output by a call and by a schema, for both vendors."""

import json
import sys

import instructor
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel

URL, TOKEN = sys.argv[1:]


class City(BaseModel):
    name: str


asked = {"response_model": City, "messages": [{"role": "user", "content": "Which city?"}], "max_retries": 2}
openai = OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0)
anthropic = Anthropic(base_url=URL, api_key=TOKEN, max_retries=0)
found = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
    client = instructor.from_openai(openai, mode=mode)
    found[f"openai {mode.value}"] = client.chat.completions.create(model="sonnet", **asked).name
client = instructor.from_anthropic(anthropic)
found["anthropic"] = client.messages.create(model="sonnet", max_tokens=2_000, **asked).name
retried = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)
found["retried"] = retried.chat.completions.create(model="sonnet", **asked).name
print(json.dumps(found))
