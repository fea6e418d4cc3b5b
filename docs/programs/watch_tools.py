"""Watch which tools run, and what they return.

python watch_tools.py "How many lines has the longest file here?"
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse.events import ApiRetry, Started


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "How many lines has the longest file here?"
    query = ph.query(prompt, tools=["Bash", "Read"], allowed_tools=["Bash(wc:*)", "Bash(ls:*)", "Read"], max_turns=10)
    async for event in query.events():
        match event:
            case Started(message=init):
                print(f"[{init.model} in {init.cwd}]")
            case ph.ToolCallStarted(tool_use=call):
                print(f"> {call.name} {call.input}")
            case ph.ToolCallFinished(result=result, tool_use=call):
                name = call.name if call else "a tool"
                print(f"< {name} {'failed' if result.is_error else 'gave'}: {result.text.strip()}")
            case ph.TextDelta(text=text, agent=None):
                print(text, end="", flush=True)
            case ApiRetry(message=retry):
                print(f"[{retry.describe()}; trying again, {retry.attempt} of {retry.max_retries}]")
            case ph.Finished(error=None, message=closing):
                print(f"\n[{closing.num_turns} turns]")
            case ph.Finished(error=error):
                sys.exit(f"\n{error}")
            case _:
                pass


asyncio.run(main())
