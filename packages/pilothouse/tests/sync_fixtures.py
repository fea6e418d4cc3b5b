"""What the tests of the blocking twin share: programs in a process of their own, and who still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_cli_processes import running
from process_checks import eventually, is_dead

from pilothouse.sync.portal import INTERRUPT_WAIT
from pilothouse_testing import FakeCLI

DEADLINE = 60.0  # seconds that anything may take to end

HEAD = """
import asyncio, gc, os, signal, sys, threading, time
from pilothouse import sync as ph
from pilothouse.transports import CliTransport
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of some shells
fake = os.environ["FAKE"]
def ready(message=None):
    if message is None or message.type == "assistant":
        print("ready", flush=True)
def soon(message=None):
    if message is None or message.type == "assistant":
        threading.Timer(0.2, ready).start()  # by then the main thread waits again
def rest():
    for _ in range(600):
        time.sleep(0.1)  # not one of 60: a Ctrl-C in the instant before a sleep is noticed after it
def quick():
    return CliTransport(close_grace=0.02)
"""

# From Python 3.12 on a fork of a process with threads is warned about, whatever the threads do.
FORK = """
import warnings
warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
def fork(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def ended(fake: FakeCLI) -> bool:
    """Whether the children are gone now; what they started was killed with them, and goes in the next moment."""
    gone = all(is_dead(call.pid) for call in fake.calls if call.pid)
    eventually(lambda: not running(fake))
    return gone


def in_threads(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own, all at once; raises what one of them raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


ENDS = {
    "by itself": ("pass", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(3)", 3),
    "an error": ("raise LookupError('mine')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", -9),
}
"""The ends of a program: a statement, and the exit code."""


class Program:
    """A program in a process of its own, strict about warnings: text, which knows the names of `HEAD`, or a file."""

    def __init__(self, program: str | Path, fake: FakeCLI, *, keep_stdin: bool = False) -> None:
        what = [str(program)] if isinstance(program, Path) else ["-c", HEAD + textwrap.dedent(program)]
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", *what],
            start_new_session=True,
            env={**os.environ, "FAKE": fake.path},
            stdin=subprocess.PIPE if keep_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        watch = threading.Timer(DEADLINE, self.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        assert line.strip() == word, self.process.communicate()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # what it has forked too

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def press_ctrl_c(self) -> None:
        """Once it is ready; it has to say soon that it was interrupted."""
        self.wait_for("ready")
        began = time.monotonic()
        self.interrupt()
        self.wait_for("interrupted")
        assert time.monotonic() - began < INTERRUPT_WAIT

    def end_with_ctrl_c(self) -> None:
        """As Python ends a program, and with nothing else to say."""
        code, _, err = self.end()
        assert code in (1, -2, 130)
        assert err.rstrip().endswith("KeyboardInterrupt"), err
        assert "gnored" not in err
        assert "never" not in err

    def end_as(self, end: str) -> None:
        """After the statement that `ENDS` has under this name."""
        began = time.monotonic()
        code, _, err = self.end()
        assert code == ENDS[end][1], err
        if end == "an error":
            assert err.rstrip().endswith("LookupError: mine")
            assert err.count("Traceback") == 1
        else:
            assert err == ""
        assert time.monotonic() - began < DEADLINE / 2

    def end(self) -> tuple[int, str, str]:
        """Exit code, output, and what was said on standard error."""
        try:
            self.process.wait(DEADLINE)
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            # Not `communicate`: what `wait_for` has read ahead is in the buffer.
            out, err = self.process.stdout.read(), self.process.stderr.read()
            self.process.communicate()
        except BaseException:
            self.kill()
            print(self.process.communicate())
            raise
        # asyncio's debug mode tells of every first import that takes long.
        kept = [line for line in err.splitlines(keepends=True) if not line.startswith("Executing <")]
        return self.process.returncode, out, "".join(kept)


def talk(child: Any) -> None:
    """A CLI that talks on and on; runs in the child, so it sees nothing of this file.

    A prompt "slow" is answered when it is interrupted, "ask" with what the answer to a question was and how many
    seconds it took, "die" not at all, "big <n>" with n times 10 kB; any other with "re: <prompt>".
    """
    import os
    import signal
    import time

    def say(text: str) -> None:
        child.emit({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})

    def end(text: str, **more: Any) -> None:
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": text, **more})

    while True:
        text = child.expect("user")["message"]["content"]
        verb, _, rest = text.partition(" ")
        child.emit({"type": "system", "subtype": "init", "claude_code_version": "2.1.332"})
        if verb == "slow":
            child._manual["interrupt"] = 1
            say("part")
            child.expect("control_request", "interrupt")
            child.reply({})
            end("", subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")
            continue
        if verb == "ask":
            began = time.monotonic()
            got = child.ask("can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="t")
            text = f"{got['response']['behavior']} {time.monotonic() - began}"
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "big":
            child.repeat(
                int(rest), {"type": "assistant", "message": {"content": [{"type": "text", "text": "x" * 10_000}]}}
            )
        say(f"re: {text}")
        end(f"re: {text}")
