"""Find out why the prompt cache was lost. Needs no key: a scripted model answers.

python cache_doctor.py
"""

import time

import anyio

import pilothouse as ph
from pilothouse_testing import ScriptedModel
from pilothouse_usage import CacheDoctor


async def main() -> None:
    # To look at your own program: your agent, and no scripted model.
    with ScriptedModel(default="It is fine.") as model:
        agent = ph.Agent(
            tools=["Read"],
            cwd=model.home,
            env=model.env(),
            inherit_env=False,
        )
        async with (
            CacheDoctor() as doctor,
            doctor.attach(agent).session() as session,
        ):
            await session.query("Is app.py fine?")
            await session.query("Are you sure?")
            clock = f"It is {time.ctime()}."
            await session.query("Really?", append_system_prompt=clock)
            await session.query("Look again.", tools=["Read", "Grep"])
    print(doctor.report())


anyio.run(main)
