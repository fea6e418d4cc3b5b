"""Record a question and its answer, and ask it again without any CLI.

python replay.py record run.jsonl "What is the capital of France?"
python replay.py play run.jsonl "What is the capital of France?"
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse_testing import Player, Recorder

if not sys.argv[3:]:
    sys.exit("usage: python replay.py record|replay FILE PROMPT")
how, path, prompt = sys.argv[1:]


async def main() -> None:
    transport = Recorder(path) if how == "record" else Player(path)
    result = await ph.query(prompt, tools=[], transport=transport)
    print(result.text)


asyncio.run(main())
