"""Send several prompts to one child as they come, from a file or standard input.

python many_prompts.py questions.txt
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pilothouse as ph


def prompts() -> Iterator[str]:
    lines = Path(sys.argv[1]).read_text().splitlines() if sys.argv[1:] else sys.stdin
    for line in lines:  # waiting here is fine: a plain iterable is read in a worker thread
        if line.strip():
            yield line.strip()


async def main() -> None:
    async for message in ph.query(prompts(), tools=[]):
        match message:
            case ph.AssistantMessage(text=text) if text:
                print(text)
            case ph.ResultMessage(is_error=True) as result:
                print("failed:", result.result, file=sys.stderr)
            case _:
                pass


asyncio.run(main())
