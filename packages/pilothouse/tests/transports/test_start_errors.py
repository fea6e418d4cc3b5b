"""Finding and starting the executable: typed errors that say what to do, and nothing left behind."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from process_checks import eventually, few_descriptors, open_descriptors

from pilothouse.errors import CLINotFoundError, CLIStartError
from pilothouse.options import Invocation, PrivateFile
from pilothouse.provision.pinned_files import PINNED_VERSION, managed_cli_path
from pilothouse.transports import discovery
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.discovery import find_cli, parse_version, warn_if_old

pytestmark = pytest.mark.anyio

# Headers of a program for a processor that nobody has.
FOREIGN_ELF = (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0\x67\x12\x01\0\0\0").ljust(200, b"\0")
KEY = "sk-ant-very-secret-0123456789"


def make_cli(path: Path, body: str = "exit 0", mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return str(path)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which there is no CLI anywhere."""
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PILOTHOUSE_INSTALL", "0")
    monkeypatch.setattr(discovery, "USUAL_DIRECTORIES", ("~/.local/bin", "~/node_modules/.bin"))
    return {"PATH": str(tmp_path / "bin"), "ANTHROPIC_API_KEY": KEY}


async def start_error(invocation: Invocation) -> Any:
    transport = CliTransport()
    with pytest.raises((CLIStartError, CLINotFoundError)) as caught:
        await transport.start(invocation)
    assert transport.health().state == "unhealthy"
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value)
    await transport.close()
    return caught.value


@pytest.mark.requirement("E64", "G39")
@pytest.mark.parametrize("cli", ["auto", "global", "bundled", "/nowhere/claude", "~/nowhere/claude"])
def test_not_found_lists_what_was_tried_and_how_to_install(cli: str, env: dict[str, str]) -> None:
    with pytest.raises(CLINotFoundError) as caught:
        find_cli(cli, env)
    text = str(caught.value)
    assert "npm install -g @anthropic-ai/claude-code" in text
    assert text.index("pilothouse install-cli") < text.index("npm install")
    expected = {
        "auto": [env["PATH"], str(managed_cli_path()), str(Path.home() / ".local/bin/claude")],
        "global": [env["PATH"], str(Path.home() / ".local/bin/claude")],
        "bundled": [str(managed_cli_path())],
        "~/nowhere/claude": [str(Path.home() / "nowhere/claude")],
    }
    for place in expected.get(cli, [cli]):
        assert place in text
    assert KEY not in text


def test_a_named_file_that_is_missing_is_not_replaced_by_another(env: dict[str, str], tmp_path: Path) -> None:
    make_cli(tmp_path / "bin/claude")
    with pytest.raises(CLINotFoundError, match="PILOTHOUSE_CLI"):
        find_cli("auto", {**env, "PILOTHOUSE_CLI": "/nowhere/claude"})
    with pytest.raises(CLINotFoundError):
        find_cli("claude", env)


def test_home_and_relative_paths(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cli(Path.home() / "x/claude")
    assert find_cli("~/x/claude", env) == str(Path.home() / "x/claude")
    for name in ("one", "two"):
        make_cli(tmp_path / name / "claude")
        monkeypatch.chdir(tmp_path / name)
        assert find_cli("./claude", env) == str(tmp_path / name / "claude")


async def test_a_file_removed_after_it_was_found_is_noticed_by_start(env: dict[str, str], tmp_path: Path) -> None:
    first = make_cli(tmp_path / "bin/claude", "echo first")
    find_cli("global", env)
    Path(first).unlink()
    make_cli(Path.home() / ".local/bin/claude", "echo second")
    transport = CliTransport()
    await transport.start(Invocation(cli="global", argv=(), env=env))
    assert await transport.receive() == b"second\n"
    await transport.close()


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no cwd", ["{tmp}/nowhere", "does not exist", "cwd"]),
        ("cwd is a file", ["{tmp}/file", "not a directory"]),
        ("not executable", ["{tmp}/plain", "chmod +x"]),
        ("a directory", ["{tmp}/dir", "is a directory"]),
        ("no program", ["{tmp}/binary", "not a program for this system"]),
        ("another processor", ["{tmp}/arm", "install the one for this"]),
        ("no interpreter", ["{tmp}/script", "interpreter"]),
        ("too large", ["too large", "bytes in all"]),
        ("NUL", ["NUL"]),
        ("bad variable", ["environment variable"]),
    ],
)
async def test_start_errors_say_what_to_do(case: str, words: list[str], env: dict[str, str], tmp_path: Path) -> None:
    good = make_cli(tmp_path / "good")
    (tmp_path / "file").touch()
    (tmp_path / "dir").mkdir()
    (tmp_path / "binary").write_bytes(b"\0\1\2\3" * 100)
    (tmp_path / "binary").chmod(0o755)
    (tmp_path / "arm").write_bytes(FOREIGN_ELF)
    (tmp_path / "arm").chmod(0o755)
    (tmp_path / "script").write_text("#!/nowhere/node\n")
    (tmp_path / "script").chmod(0o755)
    make_cli(tmp_path / "plain", mode=0o644)
    cases: dict[str, dict[str, Any]] = {
        "no cwd": {"cli": good, "cwd": str(tmp_path / "nowhere")},
        "cwd is a file": {"cli": good, "cwd": str(tmp_path / "file")},
        "not executable": {"cli": str(tmp_path / "plain")},
        "a directory": {"cli": str(tmp_path / "dir")},
        "no program": {"cli": str(tmp_path / "binary")},
        "another processor": {"cli": str(tmp_path / "arm")},
        "no interpreter": {"cli": str(tmp_path / "script")},
        "too large": {"cli": good, "argv": ("x" * 3_000_000,)},
        "NUL": {"cli": good, "argv": (f"{KEY}\0",)},
        "bad variable": {"cli": good, "env": {"A=B": KEY}},
    }
    settings: dict[str, Any] = {"argv": (KEY,), "env": env, **cases[case]}
    error = await start_error(Invocation(**settings))
    assert isinstance(error, CLIStartError)
    for word in words:
        assert word.format(tmp=tmp_path) in str(error)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, 9999])
async def test_lack_of_resources(number: int, env: dict[str, str], tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, "refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        error = await start_error(Invocation(cli=make_cli(tmp_path / "good"), argv=(), env=env))
    assert isinstance(error, CLIStartError)
    assert str(tmp_path / "good") in str(error)


async def test_out_of_descriptors_leaves_none_behind(env: dict[str, str], tmp_path: Path) -> None:
    good = make_cli(tmp_path / "good")
    find_cli(good, env)
    await anyio.to_thread.run_sync(lambda: None)  # a thread for the diagnosis
    before = open_descriptors() if sys.platform == "linux" else set()
    with few_descriptors(5):
        error = await start_error(Invocation(cli=good, argv=(), env=env))
    assert "open files" in str(error)
    if sys.platform == "linux":
        eventually(lambda: open_descriptors() <= before)


@pytest.mark.requirement("L23", "L26", "E2", "E77")
async def test_arguments_and_environment_arrive_literally(env: dict[str, str], tmp_path: Path) -> None:
    cli = make_cli(
        tmp_path / "good", 'for a in "$@"; do printf "<%s>" "$a"; done; printf "%s" "$ANTHROPIC_API_KEY"; pwd'
    )
    arguments = ("--x=$HOME;`id`", "a 'quoted' \"word\"", "", "two\nlines", "*", "ünï ☃")
    transport = CliTransport()
    tail = ("-last",)
    await transport.start(Invocation(cli=cli, argv=arguments, env=env, cwd=str(tmp_path), trailing_args=tail))
    received = b""
    while data := await transport.receive():
        received += data
    await transport.close()
    expected = "".join(f"<{a}>" for a in (*arguments, *tail)) + KEY + str(tmp_path) + "\n"
    assert received.decode() == expected


async def test_private_files(env: dict[str, str], tmp_path: Path) -> None:
    cli = make_cli(tmp_path / "good", 'for a in "$@"; do echo "$a"; done; read -r line')
    files = (PrivateFile("settings", ".json", b'{"a": 1}'), PrivateFile("mcp-config", ".json", b"\xff\0"))
    transport = CliTransport()
    await transport.start(Invocation(cli=cli, argv=("--first",), env=env, files=files, trailing_args=("last",)))
    received = b""
    while received.count(b"\n") < 4:
        received += await transport.receive()
    first, settings, config, last = received.decode().split()
    assert (first, last) == ("--first", "last")
    paths = [Path(settings.removeprefix("--settings=")), Path(config.removeprefix("--mcp-config="))]
    assert [path.read_bytes() for path in paths] == [file.content for file in files]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (*paths, paths[0].parent)] == [0o600, 0o600, 0o700]
    await transport.close()
    assert not paths[0].parent.exists()


async def test_private_files_that_cannot_be_written(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    error = await start_error(
        Invocation(cli="/bin/sh", argv=(), env=env, files=(PrivateFile("x", ".json", KEY.encode()),))
    )
    assert "temporary directory" in str(error)


async def test_private_files_go_when_the_start_fails(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    await start_error(Invocation(cli="/nowhere/claude", argv=(), env=env, files=(PrivateFile("x", ".json", b"1"),)))
    assert not list((tmp_path / "private").iterdir())


@pytest.mark.requirement("R1")
def test_an_old_version_is_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_warned_of", set[str]())
    assert parse_version("2.1.330 (Claude Code)") == (2, 1, 330)
    assert parse_version("no") is None
    with caplog.at_level(logging.WARNING, logger="pilothouse.transports"):
        for version in ("10.0.0", "2.0.0", "odd"):
            warn_if_old(version, "/bin/claude")
        for version in ("", None):
            warn_if_old(version, None)  # it runs elsewhere, or in memory
        assert not caplog.records
        for _ in range(2):
            warn_if_old("1.9.87", "/bin/claude")
            warn_if_old(None, "/bin/claude")
    old, silent = (record.getMessage() for record in caplog.records)
    assert old.startswith("Claude Code 1.9.87 is older than 2.0.0")
    assert silent.startswith("/bin/claude does not report its version, so it may be older than 2.0.0")
    assert all("`claude update`" in text and "`pilothouse install-cli`" in text for text in (old, silent))


def test_a_version_newer_than_what_was_tested_is_noted_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_warned_of", set[str]())
    with caplog.at_level(logging.INFO, logger="pilothouse.transports"):
        for version in (PINNED_VERSION, "9.9.9", "9.9.9"):
            warn_if_old(version, "/bin/claude")
    (record,) = caplog.records
    assert (
        record.getMessage() == f"Claude Code 9.9.9 is newer than {PINNED_VERSION}, the newest version that was tested"
    )


@pytest.mark.requirement("R29")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only loop that blockbuster knows
async def test_nothing_blocks_the_loop(env: dict[str, str], tmp_path: Path) -> None:
    from blockbuster import BlockBuster, blockbuster_ctx

    cli = make_cli(tmp_path / "bin/claude", "cat; echo over >&2")

    def allow_exec(guard: BlockBuster) -> None:
        for name in ("os.read", "os.stat", "os.path.abspath"):
            if name in guard.functions:
                guard.functions[name].can_block_in("subprocess.py", "_execute_child")

    with blockbuster_ctx("pilothouse") as guard:
        allow_exec(guard)
        for files in ((), (PrivateFile("x", ".json", b"1"),)):
            transport = CliTransport()
            await transport.start(Invocation(cli=cli, argv=(), env={**env, "PATH": os.defpath}, files=files))
            async with anyio.create_task_group() as group:
                group.start_soon(transport.serve)
                await transport.send(b"x" * 100_000)
                await transport.end_input()
                while await transport.receive():
                    pass
                assert (await transport.exit_info()).stderr == "over\n"
                await transport.close()
        await start_error(Invocation(cli="/nowhere/claude", argv=(), env=env))
        await start_error(Invocation(cli=cli, argv=(), env=env, cwd="/nowhere"))


async def test_a_user_without_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(user_id: int) -> None:
        raise KeyError(user_id)

    monkeypatch.setattr("pwd.getpwuid", fail)
    cli, private = make_cli(tmp_path / "claude"), tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    file = PrivateFile("settings", ".json", b"{}")
    for env in ({}, {"HOME": ""}):
        error = await start_error(Invocation(cli=cli, argv=(), env=env, files=(file,)))
        assert "set HOME to a directory that this user can write" in str(error)
        assert str(os.geteuid()) in str(error)
    assert not list(private.iterdir())
    transport = CliTransport()
    await transport.start(Invocation(cli=cli, argv=(), env={"HOME": str(tmp_path)}))
    await transport.close()
