"""Print the answer as it is written.

python stream_text.py "Write a haiku about the sea"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    query = ph.query(" ".join(sys.argv[1:]) or "Write a haiku about the sea", tools=[])
    async for piece in query.text_stream():  # raises at its end, if the run failed
        print(piece, end="", flush=True)
    print()


asyncio.run(main())
