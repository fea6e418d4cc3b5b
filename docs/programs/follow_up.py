"""Ask, then ask again in the same conversation.

python follow_up.py "My name is Alice" "What is my name?"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    session: str | None = None
    for prompt in sys.argv[1:]:
        result = await ph.query(prompt, tools=[], resume=session)
        result.raise_for_error()
        print(f"> {prompt}\n{result.text}")
        session = result.session_id  # sessions belong to the working directory


asyncio.run(main())
