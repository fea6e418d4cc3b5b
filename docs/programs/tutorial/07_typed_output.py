"""Get a Python object instead of text.

python 07_typed_output.py
"""

import asyncio
from dataclasses import dataclass

import pilothouse as ph
from pilothouse_testing import ScriptedModel, ToolUse


@dataclass
class Arrival:
    ship: str
    pier: int


async def main() -> None:
    with ScriptedModel() as model:
        model.reply([ToolUse("StructuredOutput", {"ship": "Fram", "pier": 3})])
        model.reply("Done.")
        agent = ph.Agent(env=model.env(), inherit_env=False, tools=[])
        text = "Extract: 'The Fram came in at pier three.'"
        result = await agent.query(text, output_type=Arrival)
        arrival = result.raise_for_error().output
        print(arrival)
        print("next pier:", arrival.pier + 1)


asyncio.run(main())
