"""A worker over a journal that may be killed: `fault_worker_program.py <JSON>`.

Writes a line for each run that ended here. In the log each attempt notes its key when it starts. A run "poison" kills
the process; a run "slow" ends only when it is started for the second time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from scripted_runners import answer

from pilothouse.client import Agent, QueryResult
from pilothouse_fleet import AgentRunner, Attempt, Fleet

ASKED: dict[str, Any] = json.loads(sys.argv[1])
LOG = Path(ASKED["log"])


class FaultyRunner:
    """Answers at once, or as the key says; with a CLI by means of it."""

    def __init__(self) -> None:
        self._agent = AgentRunner(Agent(cli=ASKED["cli"])) if ASKED.get("cli") else None

    async def run(self, attempt: Attempt) -> QueryResult:
        earlier = LOG.read_text().split().count(attempt.key) if LOG.exists() else 0
        with LOG.open("a") as file:
            file.write(f"{attempt.key}\n")
        if attempt.key == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt.key == "slow" and not earlier:
            await anyio.sleep_forever()
        if self._agent is not None:
            return await self._agent.run(attempt)
        await anyio.sleep(0.01)
        return answer(f"{attempt.prompt}!", cost=0.01)


async def main() -> None:
    keys: list[str] = ASKED.get("keys", [])
    budget: float | None = ASKED.get("budget")
    async with Fleet(
        runner=FaultyRunner(),
        concurrency=ASKED.get("concurrency", 4),
        journal=ASKED["journal"],
        budget_usd=budget,
        run_budget_usd=None if budget is None else ASKED["run_budget"],
    ) as fleet:
        runs = fleet.map(keys, key=str, prompt=lambda key: f"prompt {key}") if keys else fleet.work(until_empty=True)
        async for run in runs:
            print(run.key, run.state, flush=True)


anyio.run(main)
