"""Print an answer while the model writes it. A script plays the model.

python 02_stream.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Text


async def main() -> None:
    with ScriptedModel() as model:
        model.reply(Text("The Fram was built in 1892.", chunks=["The Fram ", "was built ", "in 1892."]))
        agent = ph.Agent(env=model.env(), inherit_env=False)
        async for piece in agent.query("When was the Fram built?").text_stream():
            print(f"[{piece}]")


asyncio.run(main())
