"""Ask about many files, a few at a time, and print the answers in order.

python many_at_once.py *.py
"""

import sys
from pathlib import Path

import anyio

import pilothouse as ph

AT_ONCE = 4  # each question is a child process of some 200 MB

asker = ph.Agent(tools=[], max_turns=1, timeout=120)


async def main() -> None:
    paths = sys.argv[1:]
    answers: dict[str, str] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def ask(path: str) -> None:
        async with limit:
            try:
                result = await asker.query(f"What is this file for? One line.\n\n{Path(path).read_text()}")
            except (ph.PilothouseError, OSError) as error:  # one failure must not end the others
                answers[path] = f"no answer: {error}"
            else:
                answers[path] = result.text if result.is_success else f"failed: {result.error}"

    async with anyio.create_task_group() as group:
        for path in paths:
            group.start_soon(ask, path)
    for path in paths:
        print(f"{path}: {answers[path]}")


anyio.run(main)
