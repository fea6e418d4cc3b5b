"""A program with a fleet over a journal, to be killed: `fleet_worker_program.py journal cli count`.

Writes a line for each run that it was given; every run of the fake CLI notes itself.
"""

from __future__ import annotations

import sys

import anyio

from pilothouse.client import Agent
from pilothouse_fleet import Fleet


async def main() -> None:
    journal, cli, count = sys.argv[1:]
    prompts = [f"prompt {n}" for n in range(int(count))]
    async with Fleet(Agent(cli=cli), concurrency=4, journal=journal) as fleet:
        async for run in fleet.map(prompts, key=lambda prompt: prompt.split()[-1]):
            print(run.key, run.state, run.text, flush=True)


anyio.run(main)
