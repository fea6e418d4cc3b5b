"""A process starts without the signals that this program blocks or ignores, and otherwise as `Popen` starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_checks import linux_only

from pilothouse.transports.process_start import UserAccount, start_process

BLOCKED = [signal.SIGTERM, signal.SIGINT, signal.SIGALRM]
INTERNAL = 0b11 << 31  # 32 and 33, which glibc keeps for itself
ODD = ["nothing", "blocked", "ignored"]


@pytest.fixture(params=ODD)
def signals(request: pytest.FixtureRequest) -> Iterator[str]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED if request.param == "blocked" else ())
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN) if request.param == "ignored" else None
    yield request.param
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if handler is not None:
        signal.signal(signal.SIGUSR1, handler)


def run(*argv: str, cwd: str | None = None, env: dict[str, str] | None = None) -> str:
    """What a process writes."""
    read_end, write_end = os.pipe()
    with open(os.devnull, "rb") as nothing, os.fdopen(read_end, "rb") as output:
        variables = {"PATH": os.environ["PATH"], **(env or {})}
        try:
            pid = start_process(
                argv, stdin=nothing.fileno(), stdout=write_end, stderr=write_end, env=variables, cwd=cwd
            )
        finally:
            os.close(write_end)
        text = output.read().decode()
    os.waitpid(pid, 0)
    return text


@linux_only
@pytest.mark.requirement("G9")
@pytest.mark.parametrize("cwd", [None, "/"])
def test_no_signal_is_blocked_or_ignored(signals: str, cwd: str | None) -> None:
    lines = dict(line.split(":\t") for line in run("/bin/cat", "/proc/self/status", cwd=cwd).splitlines())
    assert int(lines["SigBlk"], 16) == 0
    assert int(lines["SigIgn"], 16) & ~INTERNAL == 0


@pytest.mark.parametrize("own_directory", [False, True])
def test_arguments_directory_variables_and_session_are_as_given(
    signals: str, own_directory: bool, tmp_path: Path
) -> None:
    place = tmp_path / "with 'quotes' and\n newline"
    place.mkdir()
    found = "[sys.argv[1:], os.getcwd(), os.environ['A'], os.getsid(0) == os.getpid()]"
    code = f"import os, sys, json; print(json.dumps({found}))"
    arguments = ["", "a b", "$HOME", "-n", "'", "ä"]
    directory = str(place) if own_directory else None
    said = json.loads(run(sys.executable, "-S", "-c", code, *arguments, cwd=directory, env={"A": "1\n2"}))
    assert said == [arguments, directory or os.getcwd(), "1\n2", True]


@linux_only
@pytest.mark.parametrize("cwd", [None, "/"])
def test_only_the_three_streams_are_passed_on(signals: str, cwd: str | None) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        text = run("/bin/sh", "-c", f"[ -e /proc/$$/fd/{write_end} ] || echo closed", cwd=cwd)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert text == "closed\n"


@pytest.mark.parametrize(
    ("executable", "cwd", "error"),
    [
        ("/nonexistent/claude", None, FileNotFoundError),
        ("/nonexistent/claude", "/", FileNotFoundError),
        ("/bin/sh", "/nonexistent", FileNotFoundError),
        ("/bin/sh", "FILE", NotADirectoryError),
        ("FILE", None, PermissionError),
        ("FILE", "/", PermissionError),
    ],
)
def test_what_cannot_be_started_raises(
    signals: str, executable: str, cwd: str | None, error: type[OSError], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("#!/bin/sh\n")
    executable, cwd = executable.replace("FILE", str(file)), cwd and cwd.replace("FILE", str(file))
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(error):
        run(executable, cwd=cwd)
    assert set(os.listdir("/dev/fd")) <= before


PROGRAM = """
import os, signal, sys
from pilothouse.transports.process_start import start_process

for fd in map(int, sys.argv[1].split(",")):
    os.close(fd)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
read_end, stdin = os.pipe()
stdout, child_out = os.pipe()
errors, child_err = os.pipe()
start_process(
    ["/bin/sh", "-c", "cat; sh -c 'exit 7'; echo $?; echo no >&2"],
    stdin=read_end, stdout=child_out, stderr=child_err, env=dict(os.environ), cwd="/",
)
os.close(child_out); os.close(child_err)
os.write(stdin, b"hello\\n"); os.close(stdin); os.close(read_end)
with open(sys.argv[2], "wb") as file:
    file.write(os.read(stdout, 100) + os.read(stdout, 100) + os.read(errors, 100))
"""


@pytest.mark.parametrize("closed", ["0", "0,1,2"])
def test_streams_that_this_program_has_closed_are_no_obstacle(closed: str, tmp_path: Path) -> None:
    found = tmp_path / "found"
    subprocess.run([sys.executable, "-c", PROGRAM, closed, str(found)], check=True, timeout=60)
    assert found.read_text() == "hello\n7\nno\n"


def test_a_child_of_another_user_inherits_them_which_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    account = UserAccount("worker", os.getuid(), os.getgid(), [])
    monkeypatch.setattr(UserAccount, "make_arguments", lambda self: {})
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        pid = start_process(["/bin/sh", "-c", ":"], stdin=0, stdout=1, stderr=2, env={}, account=account)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.waitpid(pid, 0)
    assert "runs as worker inherits" in caplog.text
