"""Children elsewhere: over ssh, in a container, in a pod. Each is a command in front of `CommandTransport`. Pure.

The commands are `ssh`, `podman` or `docker`, and `kubectl`, as they stand on PATH, with their own configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pilothouse.errors import UsageError
from pilothouse.transports.command import START_SECONDS, CommandTransport

_SSH = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=2",
    "-o",
    "ServerAliveCountMax=4",
)
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
            the working directory of the run. `cwd`, `add_dirs` and `plugins` in them are mapped.
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
