"""The type checkers of users, both strict, over one program outside of the project that uses the installed package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 600


def pyright(directory: Path, *checks: str) -> dict[int, str]:
    """What pyright says against the program of a directory, by line; with `checks` that are not in strict mode."""
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", **dict.fromkeys(checks, "error")}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    found: Any = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, done.stdout
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found["generalDiagnostics"]}


def mypy(directory: Path, *checks: str) -> dict[int, str]:
    """What mypy says against the program of a directory, by line; with `checks` that are not in strict mode."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable, "program.py"]
    command += [f"--enable-error-code={check}" for check in checks]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert {path for path, _, _ in lines} <= {"program.py"}, done.stdout
    return {int(line): message for _, line, message in lines}
