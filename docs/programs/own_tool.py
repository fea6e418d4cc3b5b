"""Give the model functions of this program, to look things up and write things down.

python own_tool.py "Which of the boats in harbour needs paint? Put it on the list."
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import pilothouse as ph
from pilothouse.tools import ToolAnnotations


@dataclass
class Boat:
    name: str
    metres: float
    painted: int


HARBOUR = {boat.name: boat for boat in (Boat("Fram", 39.0, 2019), Boat("Gjoa", 21.3, 2025))}
TO_DO: list[str] = []


@ph.tool(annotations=ToolAnnotations(read_only_hint=True))
async def boats(longer_than: Annotated[float, "in metres"] = 0) -> list[Boat]:
    """The boats in harbour, with the year in which they were painted."""
    return [boat for boat in HARBOUR.values() if boat.metres > longer_than]


def put_on_list(boat: str, work: str) -> str:
    """Put work on the list.

    Args:
        boat: the name of a boat in harbour.
        work: what is to be done.
    """
    if boat not in HARBOUR:
        raise ph.ToolError(f"There is no {boat} in harbour; there are {', '.join(HARBOUR)}.")
    TO_DO.append(f"{boat}: {work}")
    return f"{len(TO_DO)} on the list"


async def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "Which of the boats in harbour needs paint? Put it on the list."
    result = await ph.query(prompt, custom_tools=[boats, put_on_list], tools=[], max_turns=10)
    print(result.raise_for_error().text)
    print(*TO_DO, sep="\n")


asyncio.run(main())
