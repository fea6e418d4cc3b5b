"""Start work in one request and read its result in a later one: a host does the work, whatever happens to this program.

pip install fastapi uvicorn "pilothouse[server]"
pilothouse serve                                             prints the address of the host and its token
PILOTHOUSE_HOST=http://127.0.0.1:8750 PILOTHOUSE_HOST_TOKEN=… python background_work.py 8000
curl -X POST "localhost:8000/jobs?q=Hello"; curl localhost:8000/jobs/ID
"""

import json
import os
import sys
import urllib.request
from http.client import HTTPResponse
from typing import Any

import uvicorn
from fastapi import FastAPI

HOST, TOKEN = os.environ["PILOTHOUSE_HOST"], os.environ["PILOTHOUSE_HOST_TOKEN"]
app = FastAPI()


def call_host(path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(HOST + path, data, {"authorization": f"Bearer {TOKEN}"})
    response: HTTPResponse = urllib.request.urlopen(asked, timeout=60)
    return response


@app.post("/jobs", status_code=202)
def start(q: str) -> dict[str, str]:
    with call_host("/v1/sessions", {"prompt": q, "options": {"tools": [], "max_turns": 1}}) as response:
        return {"job": json.load(response)["id"]}


@app.get("/jobs/{job}")
def read(job: str) -> dict[str, Any]:
    with call_host(f"/v1/sessions/{job}") as response:
        session = json.load(response)
    if session["state"] == "running" or session["last_result"] is None:
        return {"state": "failed", "text": session["error"]} if session["error"] else {"state": "running"}
    with call_host(f"/v1/sessions/{job}/events?from=0") as events:
        for line in events:
            if line.startswith(b"data: ") and (message := json.loads(line[6:])).get("type") == "result":
                return {"state": "failed" if message["is_error"] else "done", "text": message.get("result")}
    return {"state": "lost"}  # the host keeps sessions for some days


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]))
