"""Know what a conversation costs, and stop a run that costs too much.

python 08_costs.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import Reply, ScriptedModel, Steps, ToolUse


def look(pier: int) -> str:
    """What lies at a pier."""
    return "nothing"


async def main() -> None:
    with ScriptedModel() as model:
        usage = {"input_tokens": 2000, "output_tokens": 100}
        model.on("Short", reply=Reply("Aye.", usage=usage))
        call = [ToolUse("mcp__tools__look", {"pier": 1})]
        costly = Reply(call, usage={"input_tokens": 900_000})
        model.on("Search", reply=Steps(costly, "Not found."))
        agent = ph.Agent(
            env=model.env(),
            inherit_env=False,
            tools=[],
            custom_tools=[look],
            model="claude-sonnet-4-5",
        )

        async with agent.session() as session:
            await session.query("Short question")
            await session.query("Short again")
            costs = session.costs
            print(f"{len(costs.turns)} turns, {costs.total_tokens} tokens")
            print(f"${costs.usd:.3f}")

        result = await agent.query("Search every pier", max_budget_usd=0.50)
        print("stopped:", type(result.error).__name__)
        print("the rest can follow with resume:", bool(result.session_id))


asyncio.run(main())
