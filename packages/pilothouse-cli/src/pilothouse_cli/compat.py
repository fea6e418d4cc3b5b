"""`pilothouse compat`: programs that were written for `claude_agent_sdk`, unchanged."""

from __future__ import annotations

import os
import sys

from pilothouse_cli.flags import CompatRequest
from pilothouse_compat.alias import PATH


def run_compat(request: CompatRequest) -> int:  # noqa: RET503 - the end is another program
    """Print the directory, or become the program; returns the exit code if there is none to run."""
    if request.action == "path":
        sys.stdout.write(f"{PATH}\n")
        return 0
    if not request.arguments:
        sys.stderr.write("pilothouse: name a program, as in `pilothouse compat run app.py`\n")
        return 2
    paths = [str(PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *request.arguments], environ)  # noqa: S606 - the user's own program
