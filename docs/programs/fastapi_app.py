"""Stream answers with FastAPI; when the client leaves, Claude Code ends.

pip install fastapi uvicorn
python fastapi_app.py 8000
curl -N "localhost:8000/ask?q=Hello"        in another terminal
"""

import sys

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import pilothouse as ph

app = FastAPI()
agent = ph.Agent(tools=[], max_turns=1, timeout=120)


@app.get("/ask")
async def ask(q: str) -> StreamingResponse:
    text = agent.query(q).text_stream()
    return StreamingResponse(text, media_type="text/plain")


@app.get("/answer")
async def answer(q: str) -> dict[str, object]:
    result = await agent.query(q)
    if result.error is not None:
        raise HTTPException(502, str(result.error))
    return {"text": result.text, "cost_usd": result.cost_usd}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if sys.argv[1:] else 8000)
