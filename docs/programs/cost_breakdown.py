"""What a query cost, by sub-agent, tool and reply, and a budget that stops a sub-agent; no key, the model is scripted.

pip install 'pilothouse[usage,testing]'
python cost_breakdown.py
"""

import asyncio

import pilothouse as ph
from pilothouse_testing import Reply, ScriptedModel, Steps, ToolUse
from pilothouse_usage import TaskBudget, breakdown


def script(model: ScriptedModel) -> None:
    """The model starts two sub-agents; one of them goes in circles."""
    step = ToolUse("Bash", {"command": "sleep 0.2; echo found nothing", "description": "Look"})
    once = Reply("app.py is fine.", usage={"input_tokens": 900, "output_tokens": 120})
    model.on("Check app.py", reply=Steps(Reply(step, usage={"input_tokens": 800, "output_tokens": 60}), once))
    circles = [Reply(step, usage={"input_tokens": 9_000, "output_tokens": 300})] * 12
    model.on("Search all", reply=Steps(*circles, "Nothing."))
    tasks = [
        ToolUse("Agent", {"description": prompt, "prompt": prompt, "subagent_type": kind, "run_in_background": False})
        for kind, prompt in (("checker", "Check app.py"), ("searcher", "Search all"))
    ]
    plan = Reply(tasks, usage={"input_tokens": 20, "output_tokens": 200, "cache_creation_input_tokens": 7_000})
    end = Reply("app.py is fine.", usage={"input_tokens": 30, "output_tokens": 40, "cache_read_input_tokens": 7_000})
    model.on("review", reply=Steps(plan, end))


async def main() -> None:
    agents = {
        "checker": {"description": "checks a file", "prompt": "Check it.", "model": "haiku"},
        "searcher": {"description": "searches", "prompt": "Search.", "model": "haiku"},
    }
    with ScriptedModel() as model:
        script(model)
        agent = ph.Agent(
            agents=agents,
            tools=["Agent", "Bash"],
            permission_mode="bypassPermissions",
            middleware=[TaskBudget({"searcher": 0.005})],
            env=model.env(),
            inherit_env=False,
            cwd=model.home,
        )
        result = await agent.query("Please review this project")
    print(f"{result.text} ${result.cost_usd:.4f}\n")
    spent = breakdown(result)
    print(spent)
    for by in ("tool", "turn", "model"):
        print(f"\n{spent.table(by)}")


asyncio.run(main())
