"""Ask two questions in one conversation, with one child; the second builds on the first.

python two_questions.py "My name is Alice." "What is my name?"
"""

import asyncio
import sys

import pilothouse as ph

QUESTIONS = ["Which file of this project is the most important one?", "What is wrong with it?"]


async def main() -> None:
    async with ph.session(tools=["Read", "Glob", "Grep"], max_turns=20) as session:
        for question in sys.argv[1:] or QUESTIONS:
            print(f"> {question}")
            async for piece in session.query(question).text_stream():
                print(piece, end="", flush=True)
            print()
        print(f"session {session.id}", file=sys.stderr)


asyncio.run(main())
