"""Programs that die at random moments of a query: starts them, kills them, and prints what became of their children.

Each is a fork of this process, so that a thousand of them import the package once. Their children are shell scripts,
which start within milliseconds. Like the CLI, they exit at the end of their input unless they have a prompt. With one,
each starts a process, says a word, and works on; half of them ignore SIGTERM.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import anyio
from process_checks import find_processes

import pilothouse as ph

SIGNALS: Final = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
AT_ONCE: Final = 8
LONGEST_LIFE: Final = 0.5  # seconds
DEADLINE: Final = 30.0  # seconds until the last child has ended
WORD: Final = json.dumps({"type": "assistant", "message": {"id": "m", "role": "assistant", "content": "one"}})
CHILD: Final = f"""#!/bin/sh
[ $(($$ % 2)) = 0 ] || trap '' TERM
echo started >> "$PILOTHOUSE_DEATHS_LOG"
while read -r line; do
  case $line in
    *control_request*)
      id=${{line#*'"request_id":"'}}
      id=${{id%%'"'*}}
      echo '{{"type":"control_response","response":{{"subtype":"success","request_id":"'"$id"'","response":{{}}}}}}' ;;
    *'"user"'*)
      echo prompt >> "$PILOTHOUSE_DEATHS_LOG"
      sleep 600 &
      echo '{WORD}' ;;
  esac
done
wait
"""


def live(cli: Path) -> None:
    """Ask one question after another, until somebody ends this process."""

    async def ask() -> None:
        while True:
            with anyio.move_on_after(random.uniform(0.05, LONGEST_LIFE)):
                await ph.query("a question", cli=cli)

    anyio.run(ask)


def start(cli: Path, seed: int) -> tuple[float, int]:
    """Return when it shall die, and its process id."""
    pid = os.fork()
    if not pid:
        try:
            random.seed(seed)  # forks would be alike otherwise
            live(cli)
        finally:
            os._exit(1)
    return time.monotonic() + random.uniform(0, LONGEST_LIFE), pid


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cli, log = Path(directory, "claude"), Path(directory, "log")
        cli.write_text(CHILD)
        cli.chmod(0o755)
        log.touch()
        os.environ["PILOTHOUSE_DEATHS_LOG"] = str(log)
        running: list[tuple[float, int]] = []
        for number in range(count + AT_ONCE):
            if len(running) == AT_ONCE or number >= count:
                moment, pid = running.pop(0)
                time.sleep(max(0.0, moment - time.monotonic()))
                os.kill(pid, random.choice(SIGNALS))
                os.waitpid(pid, 0)
            if number < count:
                running = sorted([*running, start(cli, number)])
        deadline = time.monotonic() + DEADLINE
        while (left := find_processes(f"PILOTHOUSE_DEATHS_LOG={log}")) and time.monotonic() < deadline:
            time.sleep(0.05)
        written = log.read_text("utf-8").split()
    print(json.dumps({"children": written.count("started"), "asked": written.count("prompt"), "left": len(left)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
