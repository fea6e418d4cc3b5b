"""The commands in front of a child elsewhere, what travels behind them, and what is said when a start fails."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from far_side import PLAIN, peer
from process_checks import is_dead, linux_only, until

import pilothouse as ph
from pilothouse.options import Invocation, PrivateFile, render
from pilothouse_remote.command import HEARTBEAT_SECONDS, CommandTransport, in_container, in_pod, over_ssh
from pilothouse_remote.shell_supervisor import (
    SILENCE_SECONDS,
    ControlLines,
    encode_input,
    encode_start,
    map_path,
    read_answer,
)

pytestmark = pytest.mark.anyio


def prefix(factory: Callable[[], CommandTransport]) -> str:
    return shlex.join(factory().prefix)


def test_the_commands() -> None:
    assert prefix(over_ssh("user@box", flags=["-p", "22022"])).endswith(" -p 22022 -- user@box")
    container = in_container(
        "image:1",
        engine="docker",
        mounts={"/srv/a": "/work", "/srv/docs": "/docs:ro"},
        user="1000:1000",
        network="none",
        memory="2g",
        cpus=1.5,
        processes=300,
        read_only=True,
        flags=["--cap-drop=ALL"],
    )
    assert prefix(container) == (
        "docker run --rm --interactive --log-driver=none --security-opt=no-new-privileges --user=1000:1000 "
        "--network=none --memory=2g --cpus=1.5 --pids-limit=300 --read-only --tmpfs=/tmp --volume=/srv/a:/work "
        "--volume=/srv/docs:/docs:ro --cap-drop=ALL image:1"
    )
    pod = in_pod("claude-0", namespace="agents", container="main", context="prod")
    assert prefix(pod) == "kubectl exec --stdin --context=prod --namespace=agents --container=main claude-0 --"


async def test_a_command_has_the_directory_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "a:b"):
        (tmp_path / name).mkdir()
    log = tmp_path / "log"
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit 3\n')
    engine.chmod(0o755)
    factory = in_container("image", engine=[str(engine)], mounts={".": "/work", "/srv": "/srv:ro"})
    for cwd in (tmp_path / "one", str(tmp_path / "two"), None):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ph.CLIStartError, match=f"--volume={cwd or tmp_path}:/work --volume=/srv:/srv:ro"):
            await ph.query("go", cwd=cwd, transport=factory)
    volumes = [[word for word in line.split() if "volume" in word] for line in log.read_text().splitlines()]
    assert volumes == [
        [f"--volume={here}:/work", "--volume=/srv:/srv:ro"] for here in (tmp_path / "one", tmp_path / "two", tmp_path)
    ]
    assert factory().find_directory(f"{tmp_path}/one") == "/work"
    with pytest.raises(ph.UsageError, match="has a colon, so it cannot be mounted"):
        await ph.query("go", cwd=tmp_path / "a:b", transport=factory)


@pytest.mark.parametrize(
    "make",
    [
        lambda: over_ssh("-oProxyCommand=id"),
        lambda: in_container("--privileged"),
        lambda: in_container("image", mounts={"/a:/b": "/work"}),
        lambda: in_container("image", mounts={"/a": "work"}),
        lambda: in_pod(""),
        lambda: CommandTransport("ssh box"),
        lambda: CommandTransport(()),
    ],
)
def test_what_could_be_a_flag_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ph.UsageError):
        make()


def test_paths_are_mapped() -> None:
    mounts = {"/srv/a": "/work", "/srv/a/docs": "/docs", "/": "/host"}
    assert map_path("/srv/a/b/../c", mounts) == "/work/c"
    assert map_path("/srv/a/docs/x", mounts) == "/docs/x"
    assert map_path("/srv/ab", mounts) == "/host/srv/ab"
    assert map_path("/srv/a", {"/srv/a": "/"}) == "/"
    assert map_path("/elsewhere", {"/srv": "/work"}) == "/elsewhere"


def test_paths_in_options_are_mapped() -> None:
    options = ph.Options(
        add_dirs=["/srv/more", "/other"], project_config_root="/srv/a/b", debug_file="/srv/log", model="/srv/no-path"
    )
    invocation = render(options, {})
    sent = encode_start(invocation, "id", cli="claude", directory=None, mounts={"/srv": "/work"}).decode().split()
    for argument in (
        "--add-dir=/work/more",
        "--add-dir=/other",
        "--project-config-root=/work/a/b",
        "--debug-file=/work/log",
        "--model=/srv/no-path",
    ):
        assert argument in sent


@pytest.mark.parametrize("name", ["A B", "X;id", "", "1A", "A\n"])
def test_no_variable_becomes_a_command(name: str) -> None:
    invocation = Invocation(cli="auto", argv=(), env={}, explicit_env={name: "x"})
    with pytest.raises(ph.UsageError, match="cannot be sent"):
        encode_start(invocation, "id", cli="claude", directory=None, mounts={})


def test_long_input_travels_in_frames() -> None:
    data = bytes(range(256)) * 5000
    assert encode_input(b"") == b""
    frames = encode_input(data)
    found = b""
    while frames:
        head, _, rest = frames.partition(b"\n")
        size = int(head.removeprefix(b"d "))
        assert 0 < size <= 256 * 1024
        found, frames = found + rest[:size], rest[size:]
    assert found == data


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_lines_of_the_supervisor_are_taken_out_wherever_they_are_cut(size: int) -> None:
    text = b"one\n\x1eid beat\ntwo \x1eid beat\nthree\x1e\n\x1ei \n\x1eid exit 3\n"
    control = ControlLines("id")
    shown = b"".join(control.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert shown == b"one\ntwo three\x1e\n\x1ei \n"
    assert (control.exit_code, control.count) == (3, 3)


def test_a_line_that_broke_off_with_the_connection_is_no_exit() -> None:
    control = ControlLines("id")
    assert control.feed(b"\x1eid beat\n\x1eid exit 1client_loop: send disconnect: Broken pipe\r\nbye\n") == b"bye\n"
    assert control.exit_code is None


def test_the_answer_stands_behind_what_a_login_prints() -> None:
    assert read_answer("id", b"Welcome!\nid rea") is None
    assert read_answer("id", b"Welcome!\nid ready\nfirst output") == (b"ready", b"first output")


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"cli": "no-such-claude"}, ph.CLINotFoundError, "there is no no-such-claude over there"),
        ({"directory": "/no such place"}, ph.CLIStartError, "the directory /no such place does not exist over there"),
        ({"prefix": ("sh", "-c", "echo no route >&2; exit 255", "x")}, ph.CLIStartError, "no route"),
        ({"prefix": ("no-such-command",)}, ph.CLINotFoundError, "no command 'no-such-command' on this machine"),
        ({"prefix": ("sleep", "60"), "start_timeout": 0.5}, ph.CLIStartError, "ended with code|has not started claude"),
        ({"prefix": ("sh", "-c", "sleep 60", "x"), "start_timeout": 0.5}, ph.CLIStartError, "has not started claude"),
    ],
)
async def test_a_start_that_fails_says_why(settings: dict[str, Any], kind: type[Exception], words: str) -> None:
    defaults: dict[str, Any] = {"prefix": PLAIN, "cli": sys.executable}
    made = CommandTransport(**defaults | settings)
    with anyio.fail_after(30), pytest.raises(kind, match=words):
        await made.start(peer("echo"))
    await made.close()


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
async def test_any_posix_shell_does(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [shell, "sh"] if shell == "busybox" else [shell]
    if subprocess.run(["sh", "-c", f"command -v {shell}"], capture_output=True).returncode != 0:
        pytest.skip(f"no {shell} here")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    (folder / "sh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    program = (
        "import os, sys; print(open(sys.argv[1][4:]).read(), sys.argv[2], os.getcwd(), os.environ['A'], flush=True)"
    )
    invocation = Invocation(
        cli="auto",
        argv=("-c", program),
        env={},
        files=(PrivateFile("x", ".json", "'$(id)' é\n".encode()),),
        trailing_args=("a 'b' $c `d`\n\\e",),
        cwd=str(tmp_path),
        explicit_env={"A": "1 '2' \"3\" $4 \\5\n6", "HOME": None},
    )
    made = CommandTransport(PLAIN, cli=sys.executable)
    with anyio.fail_after(30):
        await made.start(invocation)
        output = b""
        while data := await made.receive():
            output += data
        await made.close()
    assert output.decode() == f"'$(id)' é\n a 'b' $c `d`\n\\e {tmp_path} 1 '2' \"3\" $4 \\5\n6\n"


DETACHING = """
import subprocess, sys
started = subprocess.Popen(["env", "-i", "/bin/sleep", "600"], start_new_session=True)
print(started.pid, flush=True)
sys.stdin.read()
"""


@linux_only
@pytest.mark.parametrize("way", ["it exits", "the command is killed", "it is kept"])
async def test_what_a_child_detaches_ends_with_it(way: str) -> None:
    made = CommandTransport(PLAIN, cli=sys.executable)
    kept = way == "it is kept"
    with anyio.fail_after(60):
        await made.start(Invocation(cli="auto", argv=("-c", DETACHING), env={}, keep_detached=kept))
        pid = int(await made.receive())
        assert not is_dead(pid)
        if way == "the command is killed":
            assert made.pid is not None
            os.kill(made.pid, signal.SIGKILL)
        await made.close()
        if kept:
            assert not is_dead(pid)
            os.kill(pid, signal.SIGKILL)
        else:
            await until(lambda: is_dead(pid), "the process is alive")


@pytest.mark.matrix
async def test_a_callback_that_blocks_the_loop_is_no_dead_network() -> None:
    made = CommandTransport(PLAIN, cli=sys.executable)
    await made.start(peer("echo"))
    async with anyio.create_task_group() as group:
        group.start_soon(made.serve)
        await anyio.wait_all_tasks_blocked()
        time.sleep(SILENCE_SECONDS + 3)
        await anyio.sleep(HEARTBEAT_SECONDS * 2)  # both sides look again
        assert made.health().state == "healthy"
        await made.send(b"still there\n")
        assert await made.receive() == b"still there\n"
        group.cancel_scope.cancel()
    await made.close()


KUBECTL = """#!/bin/sh
# Stands for kubectl and the pod: what is behind `--` runs as another session, and the exit code is passed on.
printf '%s\\n' "$*" >{log}
while [ "$1" != -- ]; do shift; done
shift
exec setsid --wait "$@"
"""


@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_query_through_kubectl(
    real_cli: str, scripted_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL.format(log=tmp_path / "log"))
    (tmp_path / "kubectl").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    scripted_model.default = "Aye."
    result = await ph.query(
        "Are you there?",
        transport=in_pod("claude-0", namespace="agents", directory=str(tmp_path), cli=real_cli),
        env=scripted_model.env(),
        api_key="sk-ant-pod-0123456789",
    )
    assert result.text == "Aye."
    words = (tmp_path / "log").read_text()
    assert words.startswith("exec --stdin --namespace=agents claude-0 -- sh -c ")
    assert "sk-ant-pod" not in words
