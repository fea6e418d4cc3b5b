"""Where the measured programs run: an environment of their own, a fake CLI built on the spot, a clean set of variables.

Owns `.venv-bench` and `benchmarks/build`, and which variables a measured process sees. Measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
BUILD = HERE / "build"
VENV = ROOT / ".venv-bench"
REPORTED = ("anyio", "claude-agent-sdk", "mcp", "msgspec", "pilothouse", "starlette", "uvicorn")
INSTALL_TIMEOUT, DRAW_TIMEOUT = 900.0, 120.0  # seconds
SHOWN_ERROR_CHARS = 600
# What reaches a measured process from outside; no key, no home, no configuration.
KEPT_VARIABLES = ("PATH", "SYSTEMROOT")


def prepare_python(*, with_incumbent: bool) -> Path:
    """The Python of the measured programs. Makes `.venv-bench` when it is not there or was made for other packages.

    Without the incumbent it is the Python that runs this, and nothing is installed.
    """
    if not with_incumbent:
        return Path(sys.executable)
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["dependency-groups"]["bench"]
    ours = [path.read_text() for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    needed = (*packages, platform.python_version(), *ours)
    wanted = hashlib.sha256("\n".join(needed).encode()).hexdigest()
    stamp = VENV / "made.stamp"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    print(
        f"making {VENV.name} with {', '.join(packages)}; the first has a CLI inside, so it takes a while",
        file=sys.stderr,
    )
    venv.create(VENV, with_pip=True, clear=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*install, *packages, "--requirement", "packages.txt"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=INSTALL_TIMEOUT, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python


def build_fake_cli(*, compiler: str | None = None) -> tuple[Path, str]:
    """The executable that plays the CLI, and what it is: "c" or "python".

    Args:
        compiler: the C compiler; the default is the first one found. "" stands for none.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "") if compiler is None else compiler
    source, target = HERE / "fake_cli.c", BUILD / "claude"
    if compiler:
        if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
            return target, "c"
        fresh = BUILD / f"claude.{os.getpid()}"  # another run may be using the old one
        done = subprocess.run([compiler, "-O2", "-o", fresh, source], capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            fresh.replace(target)
            return target, "c"
        print(f"{compiler} failed, so the fake CLI is the Python one:\n{done.stderr}", file=sys.stderr)
    script = BUILD / "claude-python"
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -SE '{HERE / 'fake_cli.py'}' \"$@\"\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, "python"


def draw(python: Path, kind: str, numbers: Path) -> None:
    """Draw the picture of a file of numbers beside it, if the Python of the measured programs can."""
    command = [python, "-m", "benchmarks.plot", kind, numbers, numbers.with_suffix(".svg")]
    with tempfile.TemporaryDirectory() as home:
        environment = clean_environment(Path(home))
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DRAW_TIMEOUT)
    if done.returncode != 0:
        print(f"no picture of {numbers.name}: {done.stderr.strip()[-SHOWN_ERROR_CHARS:]}", file=sys.stderr)


def clean_environment(home: Path, **parameters: str) -> dict[str, str]:
    """The complete environment of a measured process: a home of its own and nothing of the caller's settings."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", **parameters}


def machine_notes(python: Path, fake: str) -> dict[str, object]:
    """What a reader must know to judge the numbers. No names of hosts, users or directories."""
    code = (
        "import json, platform, sys; from importlib import metadata as m\n"
        "def version(name):\n"
        "    try: return m.version(name)\n"
        "    except m.PackageNotFoundError: return None\n"
        "print(json.dumps([platform.python_version(), {n: version(n) for n in sys.argv[1:]}]))"
    )
    done = subprocess.run([python, "-c", code, *REPORTED], capture_output=True, check=True, timeout=60)
    version, packages = json.loads(done.stdout)
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # at the end of the run
        "scheduling": "real-time" if _is_real_time() else "normal",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": version,
        "packages": {name: number for name, number in packages.items() if number},
        "fake_cli": fake,
    }


def _is_real_time() -> bool:
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def installed(package: str) -> bool:
    """Whether the Python that runs this has a package."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
