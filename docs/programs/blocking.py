"""Ask without an event loop, and see the answer as it is written.

python blocking.py "What does this project do?"
"""

import sys

from pilothouse import sync as ph


def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "What does this project do?"
    query = ph.query(prompt, max_turns=20)
    try:
        for piece in query.text_stream():
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        sys.exit("\nstopped")  # the child is gone
    result = query.result()
    result.raise_for_error()
    print(f"\n{result.turns} turns, ${result.cost_usd or 0:.4f}, session {result.session_id}", file=sys.stderr)


main()
