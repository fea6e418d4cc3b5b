"""Print an answer while the model writes it. A script plays the model.

python 02_stream.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Text


async def main() -> None:
    with ScriptedModel() as model:
        pieces = ["The Fram ", "was built ", "in 1892."]
        model.reply(Text("".join(pieces), chunks=pieces))
        agent = ph.Agent(env=model.env(), inherit_env=False)
        query = agent.query("When was the Fram built?")
        async for piece in query.text_stream():
            print(f"[{piece}]")


asyncio.run(main())
