"""The local `claude` process as a transport: start, streams, exit, staged shutdown.

Knows processes and bytes; nothing of JSON, messages or queries. `discovery` finds the executable, `child_process` has
the pipes and signals, and `stderr` keeps what the process writes to standard error.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Mapping
from functools import cached_property, partial

import anyio
from msgspec.structs import replace

from pilothouse.errors import CLIStartError
from pilothouse.options import Invocation
from pilothouse.options.renderer import ChildEnvironment
from pilothouse.options.secrets import Redactor, invocation_secrets
from pilothouse.transports.base import ExitInfo, Health, Transport, TransportFacts
from pilothouse.transports.child_process import ChildProcess, ExitStatus, spawn
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.discovery import find_or_install_cli
from pilothouse.transports.private_files import (
    PrivateFiles,
    PrivateHome,
    find_account,
    make_account_error,
    make_home_variables,
)
from pilothouse.transports.process_start import UserAccount
from pilothouse.transports.start_errors import check_system, find_home_error, make_files_error, make_start_error
from pilothouse.transports.stderr import StderrLog
from pilothouse.transports.watchdog import KILL, watchdog

CLOSE_GRACE_SECONDS = 0.3
"""Seconds to exit after the end of input. An idle CLI takes 40 ms; a busy one first completes its turn."""
ENDED_GRACE_SECONDS = 1.0
"""Seconds to exit for a child that has closed its output: it is exiting already."""
TERM_GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""
KILL_GRACE_SECONDS = 5.0
"""Seconds after SIGKILL. A thread waits for a process that the kernel cannot end by then."""
DRAIN_INTERVAL_SECONDS = 0.05
"""Seconds between two reads that empty the pipes of a child that is being closed."""
MAX_DISCARD_READS = 16
"""Reads at each such interval, so that a child that never stops writing does not block the loop."""
LATE_OUTPUT_SECONDS = 0.25
"""Seconds after the exit during which output of processes that the child left behind is still read."""
START_SECONDS = 1.0
"""Seconds that a start waits for the watchdog, at most. It takes about 3 ms, once in a program."""
START_POLL_SECONDS = 0.001
"""Seconds between two looks whether it runs."""
EXIT_WAIT_SECONDS = 1.0
"""Seconds that `exit_info` waits for the exit."""

_SIGNAL_HINTS = {
    "SIGKILL": "killed from outside; most often by the kernel because memory ran out",
    "SIGTERM": "terminated from outside",
    "SIGSEGV": "crashed",
    "SIGABRT": "crashed",
    "SIGILL": "uses instructions that this processor does not have",
}
_CODE_HINTS = {
    126: "a program that it needs may not be executed",
    127: "a program that it needs was not found; is it on PATH of the child's environment?",
}

_HEALTHY = Health("healthy")
_HEALTH = (
    Health("unhealthy", "the child closed its input"),
    Health("unhealthy", "the child closed its output"),
    Health("degraded", "input ended"),
    Health("degraded", "the child is slow to read its input"),
)
"""Health of a running child: the entry of the first true condition in `CliTransport.health` counts."""


_log = logging.getLogger("pilothouse.transports")

_FILE_FLAGS = ("--mcp-config=", "--settings=", "--system-prompt-file=")
"""Flags whose value is a file, or JSON."""
_DIRECTORY_FLAGS = ("--add-dir=", "--plugin-dir=", "--plugin-dir-no-mcp=")


def _check_files(arguments: list[str], cwd: str | None) -> None:
    """Check that what these `arguments` name exists. A missing directory is logged, because the CLI ignores it.

    Raises:
        CLIStartError: there is no such file.
    """
    for argument in arguments:
        flag, _, value = argument.partition("=")
        path = os.path.join(cwd or "", value)  # noqa: PTH118
        if argument.startswith(_DIRECTORY_FLAGS):
            if not os.path.lexists(path):
                _log.warning("there is no directory %s, which the flag %s names; Claude Code ignores it", path, flag)
        elif not value.lstrip().startswith(("{", "~")) and not os.path.lexists(path):
            raise CLIStartError(f"could not start the CLI: there is no file {path}, which the flag {flag} names")


class CliTransport(Transport):
    """Runs the `claude` executable in a process group of its own.

    The group ends with this object: by `close`, when the object is garbage collected, when the interpreter exits, and
    when this process dies, even of SIGKILL.

    Args:
        close_grace: seconds that `close` waits for the exit after the end of input, before SIGTERM. Default 0.3; raise
            it for children that are known to be idle and slow to save their state.
        term_grace: seconds between SIGTERM and SIGKILL. Default 5.

    """

    facts = TransportFacts(is_local=True)

    def __init__(self, *, close_grace: float = CLOSE_GRACE_SECONDS, term_grace: float = TERM_GRACE_SECONDS) -> None:
        self.close_grace = close_grace
        self.term_grace = term_grace
        self._child: ChildProcess | None = None
        self._files: PrivateFiles | None = None
        self._home: PrivateHome | None = None
        self._invocation: Invocation  # set by `start`
        self._closed: anyio.Event | None = None
        self._ended_by_close = False
        self._is_lingering = False
        self._serving: anyio.abc.TaskGroup | None = None

    @cached_property
    def _stderr(self) -> StderrLog:
        return StderrLog(partial(make_redactor, self._invocation), self._invocation.on_stderr)

    @property
    def pid(self) -> int | None:
        """Process id of the child, once started; also the id of its process group."""
        return self.facts.pid

    @property
    def executable(self) -> str | None:
        """Path of the started executable; None before the start."""
        return self.facts.executable

    async def start(self, invocation: Invocation) -> None:
        """Start the child.

        Raises:
            CLINotFoundError: there is no executable and none could be installed; the message lists what was tried,
                why it failed, and how to install it.
            CLIStartError: the executable could not be started, or has no home directory; the message gives the reason
                and what to do.
            UsageError: this transport was started before, or `user` does not exist.
        """
        check_system()
        self._mark_started(is_closed=self._closed is not None)
        self._invocation = invocation
        reason = "unknown system error"
        if invocation.initialize is None:  # its prompt is an argument, so it works before it gets any input
            watchdog.start()
            await self._wait_for_watchdog()
        try:
            self._child = await self._launch(invocation)
            self.facts = replace(self.facts, pid=self._child.pid)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else reason
        finally:
            if self._child is None:
                self._remove_files()
        if self._child is None:
            raise CLIStartError(f"could not start the CLI: {reason}; run fewer children at once, or raise the limit")
        try:
            await self._wait_for_watchdog()
        except BaseException:  # cancelled: nobody else closes what has not started
            await self.close()
            raise

    async def _wait_for_watchdog(self) -> None:
        """Wait until this program may be killed without leaving the child behind with a prompt."""
        # Not in a thread of anyio's pool, which would keep a program whose loop was closed early from ending.
        with anyio.move_on_after(START_SECONDS):
            while watchdog.is_starting:  # noqa: ASYNC110 - it is set in a thread
                await anyio.sleep(START_POLL_SECONDS)

    async def _launch(self, invocation: Invocation) -> ChildProcess:
        """Start the process. A transport that starts it elsewhere, by a command, overrides this."""
        named = [argument for argument in invocation.argv if argument.startswith(_FILE_FLAGS + _DIRECTORY_FLAGS)]
        if named and invocation.user is None:  # another user may see other files
            await run_blocking(_check_files, named, invocation.cwd)
        account = None if invocation.user is None else await run_blocking(find_account, invocation.user)
        owner = None if account is None else (account.uid, account.gid)
        try:
            file_flags = await self._write_files(invocation, owner) if invocation.files else ()
            env = await self._make_isolated_env(invocation, owner) if invocation.is_isolated else invocation.env
        except OSError as error:
            raise make_files_error(error) from error
        if not env.get("HOME") and (problem := await run_blocking(_find_home_error, account)):
            raise problem
        arguments = [*invocation.argv, *file_flags, *invocation.trailing_args]
        executable = invocation.cli
        if not os.path.isabs(executable):  # noqa: PTH117
            executable = await find_or_install_cli(executable, invocation.env)
        argv = [executable, *arguments]
        ends_detached = not invocation.keep_detached
        try:
            child = spawn(argv, env=env, cwd=invocation.cwd, account=account, ends_detached=ends_detached)
            self.facts = replace(self.facts, executable=executable)
            return child
        except (OSError, ValueError) as error:
            typed = await run_blocking(make_start_error, error, argv, env, invocation.cwd)
            if account is not None and isinstance(error, PermissionError):
                typed = make_account_error(account, executable, invocation.cwd)
        # Raised outside of `except` and without a cause: the original error may contain arguments.
        raise typed

    async def _write_files(self, invocation: Invocation, owner: tuple[int, int] | None) -> list[str]:
        self._files = PrivateFiles()
        return await run_blocking(self._files.write, invocation.files, owner)

    async def _make_isolated_env(self, invocation: Invocation, owner: tuple[int, int] | None) -> Mapping[str, str]:
        if invocation.home is None:
            self._home = PrivateHome()
        home = invocation.home or self._home
        assert home is not None
        places = make_home_variables(await run_blocking(home.ensure, owner))
        return ChildEnvironment({**invocation.env, **places})

    async def serve(self) -> None:
        """Drain standard error and watch for the exit. Returns when the child has ended."""
        child = self._child
        if child is None or self._closed is not None:
            return
        child.end_with_loop()
        async with anyio.create_task_group() as group:
            self._serving = group
            try:
                group.start_soon(self._drain_stderr, child)
                self._resume_partial_write(child)
                await child.wait()
                await anyio.sleep(LATE_OUTPUT_SECONDS)
                child.finish_streams()
            finally:
                self._serving = None

    async def _drain_stderr(self, child: ChildProcess) -> None:
        try:
            while data := await child.stderr.read():
                self._stderr.feed(data)
        except anyio.ClosedResourceError:
            return
        self._stderr.finish()

    async def send(self, data: bytes) -> None:
        """Write all of `data` to the child's input. A cancelled call has sent nothing, or its rest is sent later."""
        child = self._require_child()
        try:
            await child.stdin.write(data)
        finally:
            self._resume_partial_write(child)

    def _resume_partial_write(self, child: ChildProcess) -> None:
        if child.stdin.has_partial_write and self._serving is not None:  # rare, so no permanent task waits for it
            self._serving.start_soon(child.stdin.finish_partial_writes)

    def receive(self) -> Awaitable[bytes]:
        """Return the next bytes of the child's output; b"" once the output has ended or the child has exited."""
        if self._child is None:
            raise anyio.ClosedResourceError
        return self._child.stdout.read()

    async def end_input(self) -> None:
        """Close the child's input once pending writes are complete."""
        await self._require_child().stdin.end()

    async def exit_info(self) -> ExitInfo:
        """Return how the child ended: exit code or signal, the tail of standard error, a hint."""
        child = self._child
        if child is None:
            return ExitInfo(detail="not started")
        with anyio.move_on_after(EXIT_WAIT_SECONDS):
            await child.wait()
        self._take_stderr(child)
        status = child.poll()
        self._is_lingering = status is None
        return self._make_exit_info(status)

    def _make_exit_info(self, status: ExitStatus | None) -> ExitInfo:
        tail = self._stderr.tail()
        if status is None:
            return ExitInfo(stderr=tail, detail="still running: it closed its output but did not exit")
        if self._ended_by_close:
            detail = "ended by close"
        elif status.signal is not None:
            detail = _SIGNAL_HINTS.get(status.signal, "")
        elif status.code is None:
            detail = "other code in this process collected its exit status (or SIGCHLD is ignored)"
        else:
            detail = _CODE_HINTS.get(status.code, "")
        return ExitInfo(exit_code=status.code, signal=status.signal, stderr=tail, detail=detail)

    async def close(self) -> None:
        """Shut the child down: end of input, `close_grace`, SIGTERM to its group, `term_grace`, SIGKILL."""
        if self._closed is not None:
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
            return
        self._closed = anyio.Event()
        child, files = self._child, self._files
        try:
            with anyio.CancelScope(shield=True):
                if child is not None:
                    await self._end_child(child)
                for place in (files, self._home):
                    if place is not None:
                        await run_blocking(place.remove)
        finally:
            # There is work left here only if a native cancellation got through the shield.
            if child is not None:
                child.abandon()
            self._remove_files()
            self._closed.set()

    async def _end_child(self, child: ChildProcess) -> None:
        has_ended = child.stdout.is_ended and not self._is_lingering
        child.stdin.close()
        child.stdout.stop()
        grace = ENDED_GRACE_SECONDS if has_ended else self.close_grace
        ladder = ((None, grace), (signal.SIGTERM, self.term_grace), (KILL, KILL_GRACE_SECONDS))
        for number, seconds in ladder:
            if number is not None:
                self._ended_by_close = True
                child.signal(number)
            if await self._exits_within(child, seconds):
                break
        await child.release()

    async def _exits_within(self, child: ChildProcess, seconds: float) -> bool:
        # A child blocked on a full pipe neither exits nor handles SIGTERM, and its reader may be gone.
        deadline = anyio.current_time() + seconds
        while True:
            self._take_stderr(child)
            for _ in range(MAX_DISCARD_READS):
                if child.stdout.is_closed or not child.stdout.read_available():
                    break
            if child.poll() is not None:
                self._take_stderr(child)
                return True
            remaining = deadline - anyio.current_time()
            if remaining <= 0:
                return False
            with anyio.move_on_after(min(remaining, DRAIN_INTERVAL_SECONDS)):
                await child.wait()

    def health(self) -> Health:
        """Return whether the child is healthy, or why it is not."""
        child = self._child
        if child is None or self._closed is not None:
            return Health("unhealthy", "closed" if self._closed is not None else "not started")
        status = child.exit_status
        if status is not None:
            how = f"by {status.signal}" if status.signal else f"with code {status.code}"
            return Health("unhealthy", f"the child exited {how}")
        state = child.stdin.is_broken, child.stdout.is_ended, child.stdin.is_closed, child.stdin.is_writing
        return _HEALTH[state.index(True)] if True in state else _HEALTHY

    def _require_child(self) -> ChildProcess:
        if self._child is None or self._closed is not None:
            raise anyio.ClosedResourceError
        return self._child

    def _take_stderr(self, child: ChildProcess) -> None:
        for _ in range(64):  # at most 4 MiB per call, so that other tasks can run
            data = b"" if child.stderr.is_closed else child.stderr.read_available()
            if not data:
                break
            self._stderr.feed(data)

    def _remove_files(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.remove()
        if self._home is not None:
            self._home.remove()


def make_redactor(invocation: Invocation) -> Redactor:
    """Make the object that removes the secrets of a child."""
    return Redactor(invocation_secrets(invocation))


def _find_home_error(account: UserAccount | None) -> CLIStartError | None:
    return find_home_error(os.geteuid()) if account is None else None
