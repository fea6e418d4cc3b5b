"""A real ssh server on loopback, and real containers without images. `make test-elsewhere` installs the programs."""

from __future__ import annotations

import functools
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 20.0
_SSHD = """\
ListenAddress 127.0.0.1:{port}
HostKey {place}/host
AuthorizedKeysFile {place}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
PermitRootLogin yes
MaxStartups 100
SetEnv HOME={place} TMPDIR={place}/tmp
"""


def find_program(name: str) -> str:
    """The path of a program; skips the test without it."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"no {name} here; `make test-elsewhere` installs it")
    return path


@contextmanager
def ssh_server(place: Path) -> Generator[list[str]]:
    """Run a server whose logins have `place` as HOME; gives the flags of `ssh`."""
    sshd = find_program("sshd")
    (place / "tmp").mkdir(parents=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (place / "config").write_text(_SSHD.format(port=port, place=place))
    server = subprocess.Popen([sshd, "-D", "-f", place / "config", "-E", place / "log"])
    try:
        until_listening(port, server)
        known = ("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={place}/known", "-o", "LogLevel=ERROR")
        yield ["-F", "none", "-i", str(place / "user"), "-p", str(port), *known]
    finally:
        server.terminate()
        server.wait(START_S)


def until_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)
        else:
            return


def make_root(place: Path) -> Path:
    """Make a root file system that takes its programs from this machine, read-only."""
    root = place / "root"
    for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "root", "work"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    shutil.copy("/etc/passwd", root / "etc")
    return root


@functools.cache
def find_engine_fault(root: Path) -> str:
    """Why no container can be started on this machine; empty: one can."""
    command = [*engine(), "run", "--rm", *run_flags(), str(root), "true"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip() if done.returncode else ""


def engine() -> list[str]:
    """The engine, as it runs on machines without systemd too."""
    find_program("runc")
    return [find_program("podman"), "--runtime", "runc", "--cgroup-manager", "cgroupfs"]


def run_flags(*read_only: str) -> list[str]:
    """Flags of its `run`: limits that the machine allows, the network of the host, and read-only directories."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    soft = {name: min(max(resource.getrlimit(kind)[1], 0) or 500, 4000) for name, kind in limits.items()}
    places = ("/usr", sys.base_prefix, *read_only)
    return [
        "--network=host",
        *(f"--ulimit={name}={value}:{value}" for name, value in soft.items()),
        *(f"--volume={path}:{path}:ro" for path in places),
        "--rootfs",
    ]
