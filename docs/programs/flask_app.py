"""Stream answers with Flask, in blocking code; when the client leaves, Claude Code ends with the next piece of text.

pip install flask
python flask_app.py 8000        and then, in another terminal: curl -N "localhost:8000/ask?q=Hello"
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
        with query:  # a server closes what it streams from when the client is gone, and that ends the query
            yield from query.text_stream()

    return Response(stream(), mimetype="text/plain")


@app.get("/answer")
def answer() -> tuple[dict[str, object], int]:
    result = agent.query(request.args["q"]).result()
    if result.error is not None:
        return {"error": str(result.error)}, 502
    return {"text": result.text, "cost_usd": result.cost_usd}, 200


if __name__ == "__main__":
    app.run(port=int(sys.argv[1]))
