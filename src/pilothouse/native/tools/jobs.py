"""Commands as child processes: a process group of their own, output in a file, and an end that always comes.

Owns starting, waiting, limits and killing. The output goes to a file and not through a pipe: a grandchild that keeps it
open holds up nobody. Knows no tool and no shell.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from anyio import to_thread

MOST_BYTES = 1 << 30
"""Bytes of output at which a command is stopped, before it fills the disk."""
LOOK_EVERY = 0.25
"""Seconds between looks at the size of the output."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
REAP_WITHIN = 5.0
"""Seconds for the kernel to deliver the end of a killed process."""


class Job:
    """A command that runs.

    Attributes:
        output: the file with its standard output and standard error.
        returncode: exit status, negative for a signal; None while it runs.
        stopped_for: why it was stopped, or "".
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Path, *, limit: float, most_bytes: int) -> None:
        self.output = output
        self.returncode: int | None = None
        self.stopped_for = ""
        self._process = process
        self._ends_at = time.monotonic() + limit
        self._limit = limit
        self._most_bytes = most_bytes
        self._ended = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name=f"pilothouse job {process.pid}", daemon=True).start()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: Path,
        limit: float,
        most_bytes: int | None = None,
        errors: Path | None = None,
    ) -> Job:
        """Start a command with no standard input, as the leader of a new session.

        Args:
            argv: the program and its arguments.
            cwd: working directory.
            env: its whole environment.
            output: file for standard output and, without `errors`, standard error.
            limit: seconds after which it is stopped.
            most_bytes: of output, after which it is stopped; None: `MOST_BYTES`.
            errors: file for standard error.

        Raises:
            OSError: it cannot be started.
        """
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(output.open("ab"))
            err = stack.enter_context(errors.open("ab")) if errors else subprocess.STDOUT
            process = subprocess.Popen(
                argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        return cls(process, output, limit=limit, most_bytes=MOST_BYTES if most_bytes is None else most_bytes)

    @property
    def running(self) -> bool:
        """Whether its first process has not ended."""
        return not self._ended.is_set()

    async def ended(self) -> int:
        """Wait until it has ended, and give its exit status. Being cancelled stops it, with all it started."""
        try:
            # A thread of its own: the usual ones may all be waiting for longer commands.
            await to_thread.run_sync(self._ended.wait, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        assert self.returncode is not None
        return self.returncode

    async def close(self) -> None:
        """Stop it with all that is in its process group. Idempotent."""
        await to_thread.run_sync(self.stop, limiter=anyio.CapacityLimiter(1))

    def stop(self, why: str = "") -> None:
        """As `close`, blocking, for at most `GRACE` and `REAP_WITHIN` seconds."""
        self.stopped_for = self.stopped_for or why
        if self.running:
            self._signal(signal.SIGTERM)
            self._ended.wait(GRACE)
        self._signal(signal.SIGKILL)
        self._ended.wait(REAP_WITHIN)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.returncode is None or self.leaves_some:
                os.killpg(self._process.pid, number)

    @property
    def leaves_some(self) -> bool:
        """Whether others of its process group live on after its end. While they do, nobody else gets its number."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _watch(self) -> None:
        reason = ""
        while not self._wait(LOOK_EVERY):
            if time.monotonic() > self._ends_at:
                reason = f"timed out after {self._limit:g} s"
            elif self._size() > self._most_bytes:
                reason = f"its output is longer than {self._most_bytes} bytes"
            if reason:
                threading.Thread(target=self.stop, args=(reason,), daemon=True).start()
                while not self._wait(LOOK_EVERY):
                    pass
        with self._lock:
            self.returncode = self._process.wait()
        self._ended.set()

    def _wait(self, seconds: float) -> bool:
        """Wait for its end without reaping it: as long as it is not reaped, its number is its own."""
        seconds = max(0.0, min(seconds, self._ends_at - time.monotonic() + 0.001)) if not self.stopped_for else seconds
        if hasattr(os, "pidfd_open"):
            try:
                descriptor = os.pidfd_open(self._process.pid)
            except OSError:
                pass  # no descriptors left, or an old kernel
            else:
                try:
                    poll = select.poll()
                    poll.register(descriptor, select.POLLIN)
                    return bool(poll.poll(seconds * 1000))
                finally:
                    os.close(descriptor)
        ends = time.monotonic() + seconds
        while not self._exited():
            if time.monotonic() >= ends:
                return False
            time.sleep(0.01)
        return True

    def _exited(self) -> bool:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._process.poll() is not None  # macOS before Python 3.13: here it is reaped a moment too early

    def _size(self) -> int:
        try:
            return self.output.stat().st_size
        except OSError:
            return 0


class LastingJob:
    """A job that outlives its call, until the workplace closes; of an ended one, what it left running."""

    def __init__(self, job: Job, description: str) -> None:
        self.job = job
        self.description = description

    async def close(self) -> None:
        """Stop it."""
        await self.job.close()


def read_output(path: Path, most: int) -> tuple[str, int]:
    """The beginning of an output as text, at most `most` bytes of it, and how many bytes there are."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace"), path.stat().st_size
    except FileNotFoundError:
        return "", 0
