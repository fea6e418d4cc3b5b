"""Chat with Claude Code in a page that speaks the AI SDK's stream: permissions, a stop button, a reload.

python vercel_app.py 8000        and then open http://localhost:8000
"""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

import pilothouse as ph
from pilothouse_doors.ui import Threads, vercel_route

threads = Threads(ph.Agent(tools=["Read", "Bash"]), max_sessions=4)


async def page(request: Request) -> FileResponse:
    return FileResponse(Path(__file__).with_name("vercel_page.html"))


@asynccontextmanager
async def lifespan(app: Starlette):
    yield
    await threads.aclose()  # ends Claude Code of all conversations


app = Starlette(
    routes=[Route("/", page), vercel_route("/chat", threads, resumable=True)],
    lifespan=lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if sys.argv[1:] else 8000)
