"""A web service: a conversation for each visitor, a tool, permissions, a budget, and the costs.

python 10_service.py 8000
curl -d "Where is the Fram?" http://127.0.0.1:8000/anna
curl http://127.0.0.1:8000/anna/costs
"""

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import pilothouse as ph
from pilothouse_testing import ScriptedModel, Steps, Text, ToolUse

PIERS = {"Fram": 3, "Gjoa": 7}
MOST_VISITORS = 50  # each has a child process of some 200 MB
sessions: dict[str, ph.Session] = {}


def find_pier(ship: str) -> int:
    """The pier at which a ship lies."""
    return PIERS[ship]


def decide(request: ph.PermissionRequest) -> bool:
    return request.tool_name == "mcp__tools__find_pier"


agent = ph.Agent(tools=[], custom_tools=[find_pier], can_use_tool=decide, max_budget_usd=1.00, timeout=120)


async def ask(request: Request) -> Response:
    visitor = request.path_params["visitor"]
    if visitor not in sessions:
        if len(sessions) >= MOST_VISITORS:
            return PlainTextResponse("All places are taken.\n", 503)
        sessions[visitor] = agent.session()
    pieces = sessions[visitor].query((await request.body()).decode()).text_stream()
    try:
        first = await anext(pieces, "")  # a run that fails at once gets a proper status
    except ph.PilothouseError as error:
        return PlainTextResponse(f"{error}\n", 502)

    async def answer() -> AsyncIterator[str]:
        yield first
        async for piece in pieces:
            yield piece
        yield "\n"

    return StreamingResponse(answer(), media_type="text/plain")


async def costs(request: Request) -> Response:
    if (session := sessions.get(request.path_params["visitor"])) is None:
        return PlainTextResponse("Nobody of this name has asked.\n", 404)
    return JSONResponse({"turns": len(session.costs.turns), "usd": round(session.costs.usd, 4)})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    yield
    for session in sessions.values():
        await session.close()


routes = [Route("/{visitor}", ask, methods=["POST"]), Route("/{visitor}/costs", costs)]
app = Starlette(routes=routes, lifespan=lifespan)

if __name__ == "__main__":
    with ScriptedModel() as model:
        if "ANTHROPIC_API_KEY" not in os.environ:
            print("no key: a script plays the model", flush=True)
            plan = Steps([ToolUse("mcp__tools__find_pier", {"ship": "Fram"})], Text("At pier 3.", chunks=3))
            model.on("Where is the Fram?", reply=plan)
            model.default = "Ask me where the Fram is."
            agent = agent.with_options(env=model.env(), inherit_env=False)
        port = int(sys.argv[1]) if sys.argv[1:] else 8000
        uvicorn.run(app, port=port, log_level="warning")
