"""The same as `fake_cli.c` for machines without a C compiler. Slower to start, and says so in the notes of the run.

Runs alone, as an executable: it must import nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys

BATCH_BYTES = 1 << 20


def say(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    if sys.argv[1:2] in (["--version"], ["-v"]):
        print("2.1.330 (Claude Code)")
        return
    parts: list[bytes] = []
    for name in ("hello", "frame", "result"):
        with open(os.path.join(os.environ["BENCH_SCENARIO"], name), "rb") as file:  # noqa: PTH118, PTH123 - starts faster
            parts.append(file.read())
    hello, frame, result = parts
    count = int(os.environ.get("BENCH_COUNT", "1")) if frame else 0
    in_batch = max(1, min(count, BATCH_BYTES // max(1, len(frame))))
    batch = frame * in_batch
    for line in sys.stdin.buffer:
        if b'"control_request"' in line:
            body = {"subtype": "success", "request_id": json.loads(line)["request_id"], "response": {"mode": "default"}}
            say(json.dumps({"type": "control_response", "response": body}).encode() + b"\n")
        elif b'"user"' in line:
            say(hello)
            for _ in range(count // in_batch):
                say(batch)
            say(frame * (count % in_batch))
            say(result)


if __name__ == "__main__":
    main()
