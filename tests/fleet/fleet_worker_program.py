"""A program with a fleet over a journal, to be killed: `fleet_worker_program.py journal cli count [schema]`.

Writes a line for each run that it was given; every run of the fake CLI notes itself.
"""

from __future__ import annotations

import sys

import anyio

from pilothouse.client import Agent
from pilothouse.fleet import Fleet, PostgresJournal


async def main() -> None:
    address, cli, count, *schema = sys.argv[1:]
    journal = PostgresJournal(address, schema=schema[0]) if schema else address
    prompts = [f"prompt {n}" for n in range(int(count))]
    async with Fleet(Agent(cli=cli), concurrency=4, journal=journal) as fleet:
        async for run in fleet.map(prompts, key=lambda prompt: prompt.split()[-1]):
            print(run.key, run.state, run.text, flush=True)


anyio.run(main)
