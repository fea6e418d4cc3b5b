"""Ask one question and print the answer.

python ask_once.py "What does this project do?"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "What does this project do?"
    result = await ph.query(prompt, max_turns=20)
    result.raise_for_error()
    print(result.text)
    print(f"{result.turns} turns, ${result.cost_usd or 0:.4f}, session {result.session_id}", file=sys.stderr)


asyncio.run(main())
