"""A program with a fleet over worktrees, to be killed: `worktree_worker_program.py journal cli repository root`.

Says when all runs are at work, and then how each of them has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from pilothouse.client import Agent
from pilothouse_fleet import Fleet, GitWorktree


async def main() -> None:
    journal, cli, repository, root = sys.argv[1:]
    workspace = GitWorktree(repository, root=root)
    async with Fleet(Agent(cli=cli), concurrency=4, journal=journal, workspace=workspace) as fleet:
        await fleet.enqueue([str(n) for n in range(4)], key=str)
        runs = fleet.resume()
        while len(list(Path(root).glob("*/again"))) < 4:  # which the child of each run makes
            await anyio.sleep(0.01)
        print("all run", flush=True)
        async for run in runs:
            print(run.key, run.state, run.text, flush=True)


anyio.run(main)
