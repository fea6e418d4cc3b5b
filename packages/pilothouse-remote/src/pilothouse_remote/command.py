"""`CommandTransport`: `claude` behind a command; `over_ssh`, `in_container` and `in_pod` build the usual commands.

Owns starting the command, waiting for the answer of the supervisor, and noticing that one side is lost. The supervisor
is in `supervisor`. `ssh`, `podman` or `docker`, and `kubectl` run as they stand on PATH, with their own configuration.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
from msgspec.structs import replace

from pilothouse.errors import CLINotFoundError, CLIStartError, UsageError
from pilothouse.options import Invocation
from pilothouse.support import Redactor, find_program, invocation_secrets
from pilothouse.transports import CliTransport, ExitInfo, Health, StderrLog, TransportFacts
from pilothouse.transports.child_process import ChildProcess, ExitStatus, make_exit_status, spawn
from pilothouse_remote.shell_supervisor import (
    LOADER,
    ControlLines,
    encode_input,
    encode_start,
    make_answer_error,
    map_path,
    read_answer,
)

START_SECONDS = 60.0
"""Seconds until the supervisor must have answered."""
HEARTBEAT_SECONDS = 2.0
"""Seconds between two signs of life that go over there."""
LOST_SECONDS = 8.0
"""Seconds without a sign of life from there after which the other side counts as lost."""
FAR_CLOSE_SECONDS = 4.5
"""Seconds for the other side to end the child, which it forces after 2.5 s, and to report that."""
MAX_NOISE_BYTES = 1024 * 1024
"""Bytes that login scripts may write before the answer of the supervisor."""


class CommandTransport(CliTransport):
    """Runs `claude` behind a command that passes on standard input, output and error.

    The command gets a short shell program as its last arguments. That program needs a POSIX shell, `dd` and `mkfifo`
    over there, and nothing else but `claude`. The variables that the settings name, private files and arguments travel
    by standard input; nothing is inherited. When this process, the command or the network dies, the other side ends
    `claude` and what it has started within 10 s.

    Args:
        prefix: the command, such as `("ssh", "user@box")`. `{cwd}` in a word is the working directory of the run.
        cli: name or path of `claude` over there.
        directory: working directory over there for runs without `cwd`; None: where the command begins.
        mounts: directories here, and where they are over there: `cwd` and the paths in options are mapped. `.` is the
            working directory of the run.
        joins_words: the command joins its last arguments for another shell, as ssh does.
        start_timeout: seconds until `claude` must have been started.

    Attributes:
        prefix: the command.

    Raises:
        UsageError: the command is empty.
    """

    facts = TransportFacts(session_files="sent")

    def __init__(
        self,
        prefix: Sequence[str],
        *,
        cli: str = "claude",
        directory: str | None = None,
        mounts: Mapping[str, str] | None = None,
        joins_words: bool = False,
        start_timeout: float = START_SECONDS,
    ) -> None:
        if not prefix or isinstance(prefix, str):
            raise UsageError(f"prefix: expected a list of words, such as ['ssh', 'user@box'], got {prefix!r}")
        super().__init__(close_grace=FAR_CLOSE_SECONDS)
        self.prefix = tuple(prefix)
        self._transcripts: Mapping[str, bytes] = {}
        self._shown = shlex.join(prefix)
        self._cli = cli
        self._directory = directory
        self._mounts = dict(mounts or {})
        self._joins_words = joins_words
        self._start_timeout = start_timeout
        self._ident = secrets.token_hex(8)
        self._control = ControlLines(self._ident)
        self._early = b""  # output of the child that came with the answer
        self._input_ended = False
        self._heard_at = self._beat_at = 0.0  # of `time.monotonic`
        self._lost = ""

    def __repr__(self) -> str:
        return f"CommandTransport({shlex.join(self.prefix)!r})"

    def find_directory(self, cwd: str | None) -> str | None:
        """Return the working directory over there of a run with this `cwd`; None: where the command begins."""
        return self._directory if cwd is None else map_path(cwd, self._resolve_mounts(cwd))

    def place_transcripts(self, files: Mapping[str, bytes]) -> None:
        """See `Transport`; a file that is over there with as many lines is left as it is."""
        self._transcripts = files

    def _resolve_mounts(self, cwd: str) -> dict[str, str]:
        return {os.path.abspath(cwd if here == "." else here): there for here, there in self._mounts.items()}  # noqa: PTH100

    def _make_command(self, cwd: str) -> list[str]:
        cwd = os.path.abspath(cwd)  # noqa: PTH100
        if ":" in cwd and any("{cwd}:" in word for word in self.prefix):
            raise UsageError(f"cwd: {cwd!r} has a colon, so it cannot be mounted; rename the directory")
        command = find_program(self.prefix[0])
        if command is None:
            raise CLINotFoundError(f"there is no command {self.prefix[0]!r} on this machine; install it")
        shell = ["sh", "-c", LOADER, "pilothouse"]
        if self._joins_words:
            shell = [shlex.quote(word) for word in shell]
        words = [word.replace("{cwd}", cwd) for word in self.prefix]
        self._shown = shlex.join(words)
        return [command, *words[1:], *shell]

    async def _launch(self, invocation: Invocation) -> ChildProcess:
        if invocation.user is not None:
            raise UsageError("option 'user': the command decides who runs claude over there; leave it out")
        cwd = invocation.cwd or os.getcwd()  # noqa: PTH109 - a string is wanted
        command = self._make_command(cwd)
        start = encode_start(
            invocation,
            self._ident,
            cli=self._cli,
            directory=self._directory,
            mounts=self._resolve_mounts(cwd),
            transcripts=self._transcripts,
        )
        self._stderr = _FarStderr(self._control, lambda: Redactor(invocation_secrets(invocation)), invocation.on_stderr)
        child = spawn(command, env=os.environ, cwd=None)
        try:
            with anyio.move_on_after(self._start_timeout):
                await self._wait_for_start(child, start)
                return child
            self._take_stderr(child)
            raise CLIStartError(self._explain(f"has not started claude after {self._start_timeout:g} s"))
        except BaseException:
            child.abandon()
            raise

    async def _wait_for_start(self, child: ChildProcess, start: bytes) -> None:
        output, answer = b"", None
        async with anyio.create_task_group() as group:
            group.start_soon(_write, child, start)
            while (answer := read_answer(self._ident, output)) is None:
                data = await child.stdout.read()
                if not data or len(output) > MAX_NOISE_BYTES:
                    break
                output += data
            group.cancel_scope.cancel()
        if answer is None:
            with anyio.move_on_after(1):
                status = await child.wait()
                self._take_stderr(child)
                raise CLIStartError(self._explain(f"ended {_describe(status)} before claude was started"))
            raise CLIStartError(self._explain("closed its output before claude was started"))
        line, self._early = answer
        if line != b"ready":
            raise make_answer_error(line, self._shown)
        self._heard_at = time.monotonic()

    def _explain(self, what: str) -> str:
        tail = self._stderr.tail().strip()
        said = f"; its standard error ends with:\n  {tail[-2000:]}" if tail else ""
        return f"`{self._shown}` {what}; run it by hand with `true` behind it{said}"

    async def serve(self) -> None:
        """Drain standard error, exchange signs of life, and watch for the exit."""
        if self._child is None or self._closed is not None:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._exchange_heartbeats, self._child)
            await super().serve()
            group.cancel_scope.cancel()

    async def _exchange_heartbeats(self, child: ChildProcess) -> None:
        heard, stop = self._control.count, threading.Event()
        self._beat_at = time.monotonic()
        thread = threading.Thread(target=self._beat_for_blocked_loop, args=(child, stop), daemon=True)
        thread.start()
        try:
            while not self._lost:
                child.stdin.try_write(b"p\n")  # while a frame is being written, that is a sign of life
                await anyio.sleep(HEARTBEAT_SECONDS)
                was_blocked = time.monotonic() - self._beat_at > LOST_SECONDS / 2
                self._beat_at = time.monotonic()
                if heard != self._control.count or was_blocked:  # what arrived meanwhile has not been read yet
                    heard, self._heard_at = self._control.count, self._beat_at
                elif self._beat_at - self._heard_at > LOST_SECONDS and child.poll() is None:
                    self._lost = f"the other side has given no sign of life for {LOST_SECONDS:g} s"
                    child.signal(signal.SIGKILL)
        finally:
            stop.set()

    def _beat_for_blocked_loop(self, child: ChildProcess, stop: threading.Event) -> None:
        """Send signs of life while a callback blocks the loop, so that nothing else writes at the same time."""
        while not stop.wait(HEARTBEAT_SECONDS / 2):
            if time.monotonic() - self._beat_at > HEARTBEAT_SECONDS * 1.5:
                child.stdin.try_write(b"p\n")

    async def send(self, data: bytes) -> None:
        """See `CliTransport`."""
        if self._input_ended:
            raise anyio.ClosedResourceError
        if self._control.exit_code is not None and self._closed is None:  # the command itself ends a moment later
            raise anyio.BrokenResourceError
        await super().send(encode_input(data))

    async def receive(self) -> bytes:
        """See `CliTransport`."""
        if self._early and self._closed is None:
            early, self._early = self._early, b""
            return early
        return await super().receive()

    async def end_input(self) -> None:
        """Tell the supervisor to end the child's input. The end of the stream itself would end the child."""
        child = self._require_child()
        if not self._input_ended:
            await _write(child, b"e\n")
            self._input_ended = True

    def _make_exit_info(self, status: ExitStatus | None) -> ExitInfo:
        code = self._control.exit_code
        if code is not None:
            far = make_exit_status(code if code <= 128 else 128 - code)
            return super()._make_exit_info(far)
        info = super()._make_exit_info(status)
        if status is None or self._ended_by_close:
            return info
        lost = self._lost or f"`{self.prefix[0]}` ended {_describe(status)}"
        detail = f"the connection to {self._shown} broke: {lost}; the other side ends claude by itself"
        return replace(info, exit_code=None, signal=None, detail=detail)

    def health(self) -> Health:
        """See `CliTransport`."""
        health = super().health()
        return Health("degraded", "input ended") if self._input_ended and health.state == "healthy" else health


class _FarStderr(StderrLog):
    """Standard error of the command, without the lines of the supervisor."""

    def __init__(
        self, control: ControlLines, redactor: Callable[[], Redactor], on_line: Callable[[str], object] | None
    ) -> None:
        super().__init__(redactor, on_line)
        self._control = control

    def feed(self, data: bytes) -> None:
        if shown := self._control.feed(data):
            super().feed(shown)


async def _write(child: ChildProcess, data: bytes) -> None:
    try:
        await child.stdin.write(data)
    except anyio.BrokenResourceError:
        return  # its output and exit say more


def _describe(status: ExitStatus) -> str:
    return f"with code {status.code}" if status.signal is None else f"by {status.signal}"


_SSH = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15",
    "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
_CONTAINER = ("run", "--rm", "--interactive", "--log-driver=none", "--security-opt=no-new-privileges")


def over_ssh(
    host: str,
    *,
    directory: str | None = None,
    cli: str = "claude",
    flags: Sequence[str] = (),
    start_timeout: float = START_SECONDS,
) -> Callable[[], CommandTransport]:
    """Return a factory of transports that run `claude` on another machine, over ssh.

    The login must ask for nothing: `ssh -o BatchMode=yes user@box true` works. ::

        agent = ph.Agent(transport=over_ssh("user@box", directory="/srv/project"))

    Args:
        host: as for `ssh`: `user@box`, or a name from its configuration.
        directory: working directory there for runs without `cwd`; default: that of the login.
        cli: name or path of `claude` there.
        flags: more flags of `ssh`, such as `["-p", "2222"]`.
        start_timeout: seconds until `claude` must have been started.

    Raises:
        UsageError: `host` is empty or looks like a flag.
    """
    words = ("ssh", *_SSH, *flags, "--", _require_name("host", host))
    return partial(CommandTransport, words, cli=cli, directory=directory, joins_words=True, start_timeout=start_timeout)


def in_container(
    image: str,
    *,
    engine: str | Sequence[str] = "podman",
    mounts: Mapping[str, str] | None = None,
    directory: str | None = None,
    cli: str = "claude",
    user: str | None = None,
    network: str | None = None,
    memory: str | None = None,
    cpus: float | None = None,
    processes: int | None = None,
    read_only: bool = False,
    flags: Sequence[str] = (),
    start_timeout: float = START_SECONDS,
) -> Callable[[], CommandTransport]:
    """Return a factory of transports that run `claude` in a container of its own, which is removed with it.

    The image has `claude` and a POSIX shell. Keys come from the settings, such as `api_key`; nothing is inherited. ::

        agent = ph.Agent(transport=in_container("claude-image", mounts={".": "/work"}, memory="2g", processes=300))

    Args:
        image: the image; pull it before, or raise `start_timeout`.
        engine: the command, "podman" or "docker", with its own flags if it is a list.
        mounts: directories here, and where they are in the container; `:ro` behind that makes one read-only. `.` is
            the working directory of the run. Options with paths in them, such as `cwd` and `add_dirs`, are mapped.
        directory: working directory in the container for runs without `cwd`; default: the first mount.
        cli: name or path of `claude` in the container.
        user: user in the container; default: that of the image.
        network: such as "none" or the name of a network with a proxy; default: that of the engine.
        memory: limit, such as "2g"; default: none.
        cpus: limit in processors; default: none.
        processes: limit of processes and threads; default: that of the engine.
        read_only: the file system of the image cannot be written; only mounts and `/tmp` can.
        flags: more flags of the engine's `run`.
        start_timeout: seconds until `claude` must have been started.

    Raises:
        UsageError: `image` is empty or looks like a flag, a mount is not absolute over there, or has a colon or comma.
    """
    if mounts is not None and not isinstance(mounts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"mounts: expected a mapping of directories here to those there, got {mounts!r}")
    places = {here if here == "." else str(Path(here).absolute()): there for here, there in (mounts or {}).items()}
    targets = {here: there.removesuffix(":ro") for here, there in places.items()}
    _check_mounts(targets)
    limits = {"user": user, "network": network, "memory": memory, "cpus": cpus, "pids-limit": processes}
    words = [
        *([engine] if isinstance(engine, str) else engine),
        *_CONTAINER,
        *(f"--{flag}={value}" for flag, value in limits.items() if value is not None),
        *(("--read-only", "--tmpfs=/tmp") if read_only else ()),
        *(f"--volume={'{cwd}' if here == '.' else here}:{there}" for here, there in places.items()),
        *flags,
        _require_name("image", image),
    ]
    if directory is None:
        directory = next(iter(targets.values()), None)
    return partial(CommandTransport, words, cli=cli, directory=directory, mounts=targets, start_timeout=start_timeout)


def in_pod(
    pod: str,
    *,
    namespace: str | None = None,
    container: str | None = None,
    context: str | None = None,
    directory: str | None = None,
    cli: str = "claude",
    flags: Sequence[str] = (),
    start_timeout: float = START_SECONDS,
) -> Callable[[], CommandTransport]:
    """Return a factory of transports that run `claude` in a pod that is running, through `kubectl exec`. ::

        agent = ph.Agent(transport=in_pod("claude-0", namespace="agents", directory="/work"))

    Args:
        pod: its name, or `deployment/NAME` and the like.
        namespace: its namespace; default: that of the context.
        container: which of its containers; default: the first.
        context: context of kubectl's configuration; default: the current one.
        directory: working directory there for runs without `cwd`; default: that of the image.
        cli: name or path of `claude` there.
        flags: more flags of `kubectl exec`.
        start_timeout: seconds until `claude` must have been started.

    Raises:
        UsageError: `pod` is empty or looks like a flag.
    """
    places = {"context": context, "namespace": namespace, "container": container}
    chosen = [f"--{flag}={value}" for flag, value in places.items() if value is not None]
    words = ("kubectl", "exec", "--stdin", *chosen, *flags, _require_name("pod", pod), "--")
    return partial(CommandTransport, words, cli=cli, directory=directory, start_timeout=start_timeout)


def _check_mounts(targets: Mapping[str, str]) -> None:
    for here, there in targets.items():
        if not there.startswith("/") or ":" in here + there:
            raise UsageError(f"mounts: expected a path here and an absolute one there, got {here!r}: {there!r}")


def _require_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not name or name.startswith("-") or any(letter.isspace() for letter in name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what}: {name!r} is not a name")
    return name
