"""The same as `fake_cli.c` for machines without a C compiler. Slower to start, and says so in the notes of the run.

Runs alone, as an executable: it must import nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice

BATCH_BYTES = 1 << 20
NUMBER = b"10000000"
STAMP = b"0000000000000000"


def say(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def ask(questions: list[bytes], calls: int) -> Iterator[bytes]:
    """Every question once, the last one `calls` times, each with a number of its own."""
    for index in range(len(questions) - 1 + calls if questions else 0):
        number = b"%d" % (int(NUMBER) + (index + 1) % int(NUMBER))
        last = index >= len(questions) - 1
        yield questions[-1].replace(NUMBER, number) if last else questions[index]


def play_slowly(frame: bytes, count: int, pause: float) -> None:
    """Say the frame so many times, with the time at which it is written, and wait so many seconds after each."""
    for _ in range(count):
        say(frame.replace(STAMP, b"%016d" % (time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)))
        time.sleep(pause)


def main() -> None:
    if sys.argv[1:2] in (["--version"], ["-v"]):
        print("2.1.330 (Claude Code)")
        return
    parts: list[bytes] = []
    for name in ("hello", "frame", "question", "result"):
        with open(os.path.join(os.environ["BENCH_SCENARIO"], name), "rb") as file:  # noqa: PTH118, PTH123 - starts faster
            parts.append(file.read())
    hello, frame, question, result = parts
    count = int(os.environ.get("BENCH_COUNT", "1")) if frame else 0
    slowly = int(os.environ.get("BENCH_SLOWLY", count))
    in_batch = max(1, min(count, BATCH_BYTES // max(1, len(frame))))
    batch = frame * in_batch
    calls = int(os.environ.get("BENCH_CALLS", "1"))
    ahead = int(os.environ.get("BENCH_AHEAD", "1"))
    asking: Iterator[bytes] = iter(())
    waiting = 0
    for line in sys.stdin.buffer:
        if b'"control_request"' in line:
            body = {"subtype": "success", "request_id": json.loads(line)["request_id"], "response": {"mode": "default"}}
            say(json.dumps({"type": "control_response", "response": body}).encode() + b"\n")
        elif b'"control_response"' in line:
            if b'"success"' not in line:
                sys.exit(f"fake_cli: was refused an answer: {line[:400]!r}")
            asked = next(asking, b"")
            waiting -= not asked
            say(asked if waiting else asked + result)
        elif b'"user"' in line:
            asking = ask(question.splitlines(keepends=True), calls)
            say(hello)
            if b"slowly" in line:
                play_slowly(frame, slowly, int(os.environ.get("BENCH_PAUSE", "0")) / 1e6)
            else:
                for _ in range(count // in_batch):
                    say(batch)
                say(frame * (count % in_batch))
            first = list(islice(asking, ahead))
            waiting = len(first)
            say(b"".join(first) or result)


if __name__ == "__main__":
    main()
