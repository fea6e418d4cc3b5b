"""Stop an answer when it has said enough.

python stop_early.py 40 "Tell me a long story"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python stop_early.py CHARACTERS [PROMPT]")
    enough = int(sys.argv[1])
    prompt = " ".join(sys.argv[2:]) or "Tell me a long story"
    query = ph.query(prompt, tools=[], partial_messages=True)  # text while it is written, not in whole blocks
    said = 0
    async with query:  # owns the child, so the loop below may be left
        async for piece in query.text_stream():
            print(piece, end="", flush=True)
            said += len(piece)
            if said >= enough:
                break
        await query.interrupt()  # the CLI stops, and pays for no more text
        result = await query.result()
    print(f"\n[{result.outcome} after {said} characters]")


asyncio.run(main())
