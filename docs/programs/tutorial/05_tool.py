"""Give the model a function of this program.

python 05_tool.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, ToolUse

PIERS = {"Fram": 3, "Gjoa": 7}


def find_pier(ship: str) -> int:
    """The pier at which a ship lies.

    Args:
        ship: the name of the ship.
    """
    if ship not in PIERS:
        known = ", ".join(PIERS)
        raise ph.ToolError(f"There is no {ship} here; there are {known}.")
    return PIERS[ship]


# What a real model would do: call the tool, read the error, call it again.
SCRIPT = Steps(
    [ToolUse("mcp__tools__find_pier", {"ship": "Farm"})],
    [ToolUse("mcp__tools__find_pier", {"ship": "Fram"})],
    "The Fram lies at pier 3.",
)


async def main() -> None:
    with ScriptedModel() as model:
        model.on("Where is", reply=SCRIPT)
        agent = ph.Agent(
            env=model.env(),
            inherit_env=False,
            tools=[],
            custom_tools=[find_pier],
        )
        result = await agent.query("Where is the Farm?")
        for request in model.requests[1:]:
            print("the tool said:", request.tool_text)
        print(result.raise_for_error().text)


asyncio.run(main())
