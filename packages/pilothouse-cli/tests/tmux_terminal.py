"""tmux, for tests: the one on PATH, else one that is fetched, without root, into the cache of the tests.

Fetching goes through apt's own client, so that the mirrors of the machine hold; where there is none, there is no tmux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from command_process import LIMIT_S

PACKAGES = ("tmux", "libevent-core-2.1-7", "libevent-core-2.1-7t64", "libutempter0", "libtinfo6", "libjemalloc2")
FETCH_S = 60.0


class NoTmuxError(Exception):
    """Why there is none."""


def find_tmux(cache: Path) -> tuple[str, dict[str, str]]:
    """The path of tmux, and the environment that it needs.

    Raises:
        NoTmuxError: there is none, and it cannot be fetched.
    """
    if path := shutil.which("tmux"):
        return path, {}
    root = cache / "tmux"
    binary = root / "usr" / "bin" / "tmux"
    if not binary.exists():
        _fetch(root)
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    env = {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}
    if subprocess.run([binary, "-V"], env=env, capture_output=True).returncode != 0:
        raise NoTmuxError("the tmux that was fetched does not run here")
    return str(binary), env


def _fetch(root: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NoTmuxError("no tmux on PATH, and no apt to fetch it with")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        place = Path(name)
        for package in PACKAGES:  # each by itself: their names differ between releases
            command = ["apt-get", "-q", "download", package]
            try:
                subprocess.run(command, cwd=place, capture_output=True, timeout=FETCH_S)
            except subprocess.TimeoutExpired:
                raise NoTmuxError("no tmux on PATH, and apt does not answer") from None
        for archive in place.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive, place / "root"], check=True, capture_output=True)
        if not (place / "root" / "usr" / "bin" / "tmux").exists():
            raise NoTmuxError("no tmux on PATH, and apt cannot fetch it")
        try:
            (place / "root").rename(root)
        except OSError:
            if not root.exists():  # else another run was first
                raise


class Tmux:
    """One window of a server of its own."""

    def __init__(self, path: str, socket: Path, env: dict[str, str]) -> None:
        self.command = [path, "-S", str(socket), "-f", os.devnull]
        self.env = env

    def run(self, *args: str) -> str:
        done = subprocess.run([*self.command, *args], env=self.env, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, line: str) -> None:
        self.run("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until it is on the screen."""
        deadline = time.monotonic() + LIMIT_S
        while self.screen.count(text) < times:
            assert time.monotonic() < deadline, f"never saw {text!r}; the screen:\n{self.screen}"
            time.sleep(0.05)  # between two looks at a condition

    def at_prompt(self) -> None:
        """Wait until an empty prompt is the last line."""
        deadline = time.monotonic() + LIMIT_S
        while self.screen.rstrip().rpartition("\n")[2].rstrip() != ">":
            assert time.monotonic() < deadline, f"no prompt; the screen:\n{self.screen}"
            time.sleep(0.05)


@contextmanager
def in_tmux(argv: list[str], env: dict[str, str], place: Path, cache: Path) -> Generator[Tmux]:
    """Run a command in tmux; its exit code is shown when it has ended.

    Raises:
        NoTmuxError: there is none.
    """
    path, needed = find_tmux(cache)
    with tempfile.TemporaryDirectory(prefix="tmux-") as name:  # short: the path of a socket may not be long
        tmux = Tmux(path, Path(name) / "s", {**env, **needed, "TERM": "xterm-256color"})
        script = place / "run.sh"
        script.write_text('trap : INT\n"$@"\necho "exit code $?"\nexec tail -f /dev/null\n')
        tmux.run("new-session", "-d", "-x", "120", "-y", "50", "/bin/sh", str(script), *argv)
        try:
            yield tmux
        finally:
            subprocess.run([*tmux.command, "kill-server"], env=tmux.env, capture_output=True, timeout=LIMIT_S)
