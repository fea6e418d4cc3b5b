"""An installation on the way to a query: what the query sees of it, and what is left when it is cancelled or fails."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from managed_cli import CONTENT, ManagedInstallation
from process_checks import is_dead, linux_only, until

from pilothouse.errors import CLINotFoundError, ProvisionError, find_cause
from pilothouse.options import Invocation
from pilothouse.transports import discovery
from pilothouse.transports.cli import CliTransport
from pilothouse.transports.concurrency import run_cancellable
from pilothouse.transports.discovery import find_or_install_cli

pytestmark = pytest.mark.anyio


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedInstallation:
    monkeypatch.setattr(discovery, "USUAL_DIRECTORIES", ())
    monkeypatch.setattr("pilothouse.transports.discovery._failures", {})
    return ManagedInstallation(tmp_path, monkeypatch)


def nothing_but_the_lock(installation: ManagedInstallation) -> bool:
    return installation.files() <= {str((installation.path.parent / ".lock").relative_to(installation.cache))}


@pytest.mark.requirement("E57", "E59")
@pytest.mark.parametrize("cli", ["auto", "bundled"])
async def test_a_missing_cli_is_installed_then_used(
    cli: str, installation: ManagedInstallation, caplog: pytest.LogCaptureFixture
) -> None:
    transport = CliTransport()
    with caplog.at_level(logging.INFO, logger="pilothouse.transports"):
        await transport.start(Invocation(cli=cli, argv=(), env=installation.env))
    received = b""
    while data := await transport.receive():
        received += data
    await transport.close()
    assert received.endswith(b"(Claude Code)\n")
    assert installation.path.read_bytes() == CONTENT
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in logged] == ["WARNING", "INFO"], "without logging set up, warnings are shown"
    for word in (str(installation.path.parent), "MB", "pilothouse install-cli", "PILOTHOUSE_INSTALL=0"):
        assert word in logged[0][1]
    installation.npm("fail")
    assert await find_or_install_cli(cli, installation.env) == str(installation.path)
    assert len(installation.runs()) == 1, "what is there needs no network"


@pytest.mark.requirement("E58", "E59")
async def test_a_copy_that_is_not_the_pinned_one_is_replaced(installation: ManagedInstallation) -> None:
    installation.path.parent.mkdir(parents=True)
    installation.path.write_text("#!/bin/sh\necho '2.0.0 (Claude Code)'\n")
    installation.path.chmod(0o755)
    assert await find_or_install_cli("bundled", installation.env) == str(installation.path)
    assert installation.path.read_bytes() == CONTENT


@pytest.mark.requirement("E61", "E64")
@pytest.mark.parametrize(
    ("cli", "env"),
    [
        ("global", {}),
        ("/nowhere/claude", {}),
        ("auto", {"PILOTHOUSE_CLI": "/nowhere/claude"}),
        ("auto", {"PILOTHOUSE_INSTALL": "0"}),
        ("bundled", {"PILOTHOUSE_INSTALL": "0"}),
    ],
)
async def test_nothing_is_installed_unasked(cli: str, env: dict[str, str], installation: ManagedInstallation) -> None:
    with pytest.raises(CLINotFoundError, match="pilothouse install-cli"):
        await find_or_install_cli(cli, {**installation.env, **env})
    assert (installation.runs(), installation.files()) == ([], set())


@linux_only
@pytest.mark.requirement("E57")
@pytest.mark.parametrize("way", ["scope", "native"])
async def test_a_cancelled_query_ends_the_download(
    way: str, installation: ManagedInstallation, anyio_backend: str
) -> None:
    if way == "native" and anyio_backend != "asyncio":
        pytest.skip("only asyncio has it")
    installation.npm("hang")
    transport = CliTransport()
    start = transport.start(Invocation(cli="auto", argv=(), env=installation.env))
    if way == "native":
        task = asyncio.ensure_future(start)
        await until(lambda: any(installation.cache.rglob("part")), "the download did not begin")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: start)
            await until(lambda: any(installation.cache.rglob("part")), "the download did not begin")
            group.cancel_scope.cancel()
    # At once, and not within a moment: who cancelled may end the process next.
    assert nothing_but_the_lock(installation)
    assert all(is_dead(pid) for pid in installation.runs())
    await transport.close()
    installation.npm("ok")
    assert await find_or_install_cli("auto", installation.env) == str(installation.path)


@pytest.mark.requirement("L59", "G40", "E64")
async def test_what_failed_for_one_failed_for_all_that_waited(installation: ManagedInstallation) -> None:
    installation.npm("fail")
    errors: list[CLINotFoundError] = []

    async def ask() -> None:
        with pytest.raises(CLINotFoundError) as caught:
            await find_or_install_cli("auto", installation.env)
        errors.append(caught.value)

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(ask)
    assert len(errors) == 50
    # How many were late is up to the threads; what matters is that it is not one try a query.
    assert len(installation.runs()) < 10
    for error in errors:
        assert find_cause(error, ProvisionError) is not None
        for part in (
            "could not be installed: could not fetch",
            "npm: no way to the mirror",
            " Tried:\n",
            "npm install",
        ):
            assert part in str(error)
        assert str(error).count("could not fetch") == 1
    tries = len(installation.runs())
    installation.npm("ok")
    assert await find_or_install_cli("auto", installation.env) == str(installation.path), "a later query tries again"
    assert len(installation.runs()) == tries + 1


@pytest.mark.requirement("E57")
async def test_many_queries_share_one_download(installation: ManagedInstallation) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(find_or_install_cli, "auto", installation.env)
    assert len(installation.runs()) == 1


async def test_waiting_takes_no_thread_of_the_program(installation: ManagedInstallation) -> None:
    installation.npm("hang")
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(find_or_install_cli, "auto", installation.env)
        await until(lambda: any(installation.cache.rglob("part")), "the download did not begin")
        with anyio.fail_after(5):
            await until(lambda: threading.active_count() > 60, "not all of them wait")
            assert await anyio.to_thread.run_sync(lambda: "free") == "free"
        group.cancel_scope.cancel()
    assert nothing_but_the_lock(installation)


@pytest.mark.requirement("E57", "E76")
@pytest.mark.parametrize("damage", ["tampered", "in the way"])
async def test_nothing_is_half_installed_and_nothing_spawned(
    damage: str, installation: ManagedInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    if damage == "tampered":
        installation.pack(CONTENT + b"rm -rf /")
        words = "is not the pinned one"
    else:
        installation.cache.write_text("no directory")
        words = "Set PILOTHOUSE_CACHE to a directory that this program can write"
    transport = CliTransport()
    with pytest.raises(CLINotFoundError, match=f"could not be installed: .*{words}") as caught:
        await transport.start(Invocation(cli="auto", argv=(), env={**installation.env, "RUNS": str(tmp_path / "runs")}))
    assert isinstance(caught.value.__cause__, ProvisionError)
    assert transport.pid is None
    await transport.close()
    assert not (tmp_path / "runs").exists()
    if damage != "in the way":
        assert nothing_but_the_lock(installation)


async def test_a_background_call_cancelled_before_it_starts() -> None:
    ran: list[str] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_cancellable(lambda check: ran.append("yes"))
    assert scope.cancelled_caught
    assert not ran


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only loop that blockbuster knows
async def test_nothing_blocks_the_loop(installation: ManagedInstallation) -> None:
    from blockbuster import blockbuster_ctx

    with blockbuster_ctx("pilothouse"):
        assert await find_or_install_cli("auto", installation.env) == str(installation.path)


@linux_only
@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_while_it_installs(times: int, installation: ManagedInstallation, anyio_backend: str) -> None:
    installation.npm("hang")
    code = (
        "import sys, anyio, msgspec\n"
        "from pilothouse.provision import pinned_files\n"
        "from pilothouse.provision.artifacts import Artifact\n"
        "artifact = msgspec.json.decode(sys.argv[1], type=Artifact)\n"
        "pinned_files.find_cli_artifact = lambda: artifact\n"
        "from pilothouse.client import query\n"
        "async def main(): await query('Hello', cli='bundled')\n"
        "anyio.run(main, backend=sys.argv[2])\n"
    )
    import msgspec

    command = [sys.executable, "-c", code, msgspec.json.encode(installation.artifact).decode(), anyio_backend]
    env: dict[str, Any] = {**os.environ, **installation.env}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as child:
        await until(lambda: any(installation.cache.rglob("part")), "the download did not begin")
        for _ in range(times):
            child.send_signal(signal.SIGINT)
        _, stderr = await anyio.to_thread.run_sync(child.communicate, None, 20)
    assert b"KeyboardInterrupt" in stderr
    assert b"is fetched now" in stderr, "who has not set up logging sees why it takes so long"
    assert nothing_but_the_lock(installation)
    assert all(is_dead(pid) for pid in installation.runs())
