"""Ask about several files at once, from plain threads.

python blocking_threads.py app.py README.md
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from pilothouse import sync as ph

agent = ph.Agent(tools=["Read"], max_turns=5)


def summary(name: str) -> str:
    try:
        result = agent.query(f"What is {name} for? One line.").result()
        return result.raise_for_error().text
    except ph.PilothouseError as error:
        return f"failed: {error}"


with ThreadPoolExecutor(4) as pool:
    for name, answer in zip(sys.argv[1:], pool.map(summary, sys.argv[1:]), strict=True):
        print(f"{name}: {answer}")
