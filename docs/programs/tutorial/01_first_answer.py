"""Ask one question. A small open model on this machine answers, without a key.

python 01_first_answer.py
"""

import asyncio

import pilothouse as ph
from pilothouse_models.local import LocalModel


async def main() -> None:
    async with LocalModel() as model:
        agent = ph.Agent(**model.options())
        result = await agent.query("What is the capital of France?")
    result.raise_for_error()
    print(result.text)


asyncio.run(main())
