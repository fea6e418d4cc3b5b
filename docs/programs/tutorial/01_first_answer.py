"""Ask one question. A small open model on this machine answers: no key, and no network after the download.

python 01_first_answer.py
"""

import asyncio

import pilothouse as ph
from pilothouse_models.local import LocalModel


async def main() -> None:
    async with LocalModel() as model:
        result = await ph.query("What is the capital of France?", **model.options())
    result.raise_for_error()
    print(result.text)


asyncio.run(main())
