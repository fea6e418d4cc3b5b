"""Ask a small open model on this machine: no key, and no network once it is fetched.

Needs the extra `local` of pilothouse.
python local_model.py "What is the capital of France?"
"""

import asyncio
import sys

import pilothouse as ph
from pilothouse_models.local import LocalModel


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "What is the capital of France?"
    async with LocalModel() as model:
        async for piece in ph.query(prompt, **model.options()).text_stream():
            print(piece, end="", flush=True)
    print()


asyncio.run(main())
