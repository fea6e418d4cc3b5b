"""Hold a conversation, and branch it.

python 04_session.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import RecordedRequest, ScriptedModel


def answer(request: RecordedRequest) -> str:
    """Stands for the model: it answers from what the conversation contains."""
    heard = str(request.messages)
    ships = [name for name in ("Fram", "Gjoa") if name in heard]
    return "You spoke of " + " and ".join(ships)


async def main() -> None:
    with ScriptedModel(default=answer) as model:
        agent = ph.Agent(env=model.env(), inherit_env=False)
        async with agent.session() as session:
            await session.query("I command the Fram.")
            async with session.fork() as branch:
                said = await branch.query("My friend commands the Gjoa. And I?")
                print("branch:  ", said.text)
            said = await session.query("Which ship is mine?")
            print("original:", said.text)
        async with agent.session(resume=session.id) as again:
            print("resumed: ", (await again.query("And now?")).text)


asyncio.run(main())
