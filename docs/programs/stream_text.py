"""Print the answer while it is written.

python stream_text.py "Write a haiku about the sea"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    query = ph.query(" ".join(sys.argv[1:]) or "Write a haiku about the sea", tools=[])
    async for piece in query.text_stream():
        print(piece, end="", flush=True)
    print()
    result = await query.result()  # reads nothing more: the loop came to the end
    result.raise_for_error()


asyncio.run(main())
