"""Stream answers with Flask; Claude Code ends soon after the client leaves.

pip install flask
python flask_app.py 8000
curl -N "localhost:8000/ask?q=Hello"        in another terminal
"""

import sys
from collections.abc import Iterator

from flask import Flask, Response, request

from pilothouse import sync as ph

app = Flask(__name__)
agent = ph.Agent(tools=[], max_turns=1, timeout=120)


@app.get("/ask")
def ask() -> Response:
    query = agent.query(request.args["q"])

    def stream() -> Iterator[str]:
        with query:  # ends the query when the server closes the stream
            yield from query.text_stream()

    return Response(stream(), mimetype="text/plain")


@app.get("/answer")
def answer() -> tuple[dict[str, object], int]:
    result = agent.query(request.args["q"]).result()
    if result.error is not None:
        return {"error": str(result.error)}, 502
    return {"text": result.text, "cost_usd": result.cost_usd}, 200


if __name__ == "__main__":
    app.run(port=int(sys.argv[1]) if sys.argv[1:] else 8000)
