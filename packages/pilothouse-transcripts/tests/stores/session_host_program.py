"""One host of a distributed session: a process of its own, told by the first argument what to do.

Says what happens on standard output, one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio

import pilothouse as ph
from pilothouse_transcripts.stores.sqlite import SqliteStore


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def main(task: dict[str, Any]) -> None:
    async with SqliteStore(task["store"]) as store:
        settings: Any = {"cli": task["cli"], "env": task["env"], "inherit_env": False, "cwd": task["cwd"]}
        agent = ph.Agent(session_store=store, session_lease=task["lease"], **settings)
        which: Any = {"resume": task["id"]} if task["resume"] else {"session_id": task["id"]}
        try:
            async with agent.session(**which) as session:
                tell(event="ready")
                for prompt in task["prompts"]:
                    result = await session.query(prompt)
                    tell(event="answer", text=result.text, id=result.session_id)
        except ph.PilothouseError as error:
            tell(event="error", kind=type(error).__name__, holder=getattr(error, "holder", None), words=str(error))


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
