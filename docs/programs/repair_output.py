"""Repair dates: the model gets the error and is asked again until its output fits.

python repair_output.py minutes.txt
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pilothouse as ph
from pilothouse.events import OutputRejected


@dataclass
class Task:
    what: str
    due: date


async def main() -> None:
    if not sys.argv[1:]:
        sys.exit("usage: python repair_output.py TEXT")
    text = Path(sys.argv[1]).read_text()
    query = ph.query(f"Which tasks come out of this?\n\n{text}", output_type=list[Task], output_repairs=3, tools=[])
    async for event in query.events():
        if isinstance(event, OutputRejected):
            print(f"attempt {event.attempt}: {event.error}", file=sys.stderr)
    result = await query.result()
    if isinstance(result.error, ph.StructuredOutputError):
        sys.exit(f"no tasks after {result.error.attempts} attempts; the last one was: {result.error.raw}")
    tasks: list[Task] = result.raise_for_error().output
    for task in sorted(tasks, key=lambda task: task.due):
        print(f"{task.due:%d %b %Y}  {task.what}")


asyncio.run(main())
