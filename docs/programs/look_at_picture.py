"""Ask about a picture.

python look_at_picture.py chart.png "What does it show?"
"""

import asyncio
import sys

import pilothouse as ph


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python look_at_picture.py PICTURE [QUESTION]")
    picture = ph.image(sys.argv[1])
    question = " ".join(sys.argv[2:]) or "What is in this picture?"
    result = await ph.query([picture, question], tools=[])
    result.raise_for_error()
    print(result.text)


asyncio.run(main())
