"""Start work in one request and read its result in a later one; a host does the work.

pip install fastapi uvicorn        and the extras `server` and `remote` of pilothouse
pilothouse serve                                             prints the address of the host and its token
PILOTHOUSE_HOST=http://127.0.0.1:8750 PILOTHOUSE_HOST_TOKEN=… python background_work.py 8000
curl -X POST "localhost:8000/jobs?q=Hello"; curl localhost:8000/jobs/ID
"""

import os
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from pilothouse.errors import RemoteError
from pilothouse_remote import HostClient

if "PILOTHOUSE_HOST" not in os.environ:
    sys.exit("set PILOTHOUSE_HOST, such as http://127.0.0.1:8750")
host = HostClient(os.environ["PILOTHOUSE_HOST"], token=os.environ["PILOTHOUSE_HOST_TOKEN"])
app = FastAPI()


@app.post("/jobs", status_code=202)
async def start(q: str) -> dict[str, str]:
    session = await host.start(q, tools=[], max_turns=1)
    return {"job": session.id}


@app.get("/jobs/{job}")
async def read(job: str) -> dict[str, Any]:
    session = host.session(job)
    if (await session.state()).waiting:
        return {"state": "running"}
    try:
        result = await session.result()
    except RemoteError as error:
        return {"state": "failed", "text": str(error)}
    return {"state": "done" if result.is_success else "failed", "text": result.text or result.error}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if sys.argv[1:] else 8000)
