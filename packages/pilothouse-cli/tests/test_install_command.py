"""`pilothouse install-cli`: its flags, what it prints, and what a person sees of an installation."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from pathlib import Path

import anyio
import msgspec
import pytest
from managed_cli import CONTENT, ManagedInstallation

from pilothouse.errors import CLINotFoundError, ProvisionError
from pilothouse.provision.pinned_files import PINNED_VERSION
from pilothouse.transports import discovery
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import InstallRequest
from pilothouse_cli.install import ensure_cli, install
from pilothouse_cli.screen import Screen

pytestmark = pytest.mark.anyio


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedInstallation:
    monkeypatch.setattr(discovery, "USUAL_DIRECTORIES", ())
    installation = ManagedInstallation(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{installation.bin}:/usr/bin:/bin")
    return installation


class Seen:
    """A screen for pipes, and what was written to it."""

    def __init__(self) -> None:
        self.out, self.notes = io.StringIO(), io.StringIO()
        self.screen = Screen(self.out, self.notes)

    async def run(self, *flags: str) -> int:
        return await install(request(*flags), self.screen)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def request(*flags: str) -> InstallRequest:
    return parse(["install-cli", *flags])


async def test_the_flags() -> None:
    assert request() == InstallRequest()
    assert request("--force", "--json") == InstallRequest(force=True, form="json")
    assert request("--check", "--path") == InstallRequest(action="check", form="path")
    assert request("--uninstall") == InstallRequest(action="uninstall")
    for clash in (("--check", "--force"), ("--check", "--uninstall"), ("--path", "--json")):
        with pytest.raises(SystemExit):
            request(*clash)


async def test_install_shows_its_steps_and_the_path(installation: ManagedInstallation, seen: Seen) -> None:
    assert await seen.run() == 0
    lines = seen.notes.getvalue().splitlines()
    assert [line.split(" (")[0] for line in lines[:3]] == [
        "Claude Code: downloading",
        "Claude Code: checking",
        "Claude Code: unpacking",
    ]
    assert lines[3].startswith(f"Claude Code {PINNED_VERSION}: installed in ")
    assert lines[4] == str(installation.path)
    assert installation.path.read_bytes() == CONTENT
    again = Seen()
    assert await again.run() == 0
    assert again.notes.getvalue() == f"Claude Code {PINNED_VERSION} is already installed\n{installation.path}\n"
    assert len(installation.runs()) == 1
    assert await again.run("--force") == 0
    assert len(installation.runs()) == 2


async def test_the_path_alone(
    installation: ManagedInstallation, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await seen.run("--path") == 0
    assert (seen.out.getvalue(), seen.notes.getvalue()) == (f"{installation.path}\n", "")
    captured = capsys.readouterr()
    assert (captured.out, "downloading" in captured.err) == ("", True), "progress goes to standard error"


async def test_json(installation: ManagedInstallation, seen: Seen) -> None:
    (installation.path.parent.parent / "2.0.0").mkdir(parents=True)
    assert await seen.run("--json") == 0
    reported = json.loads(seen.out.getvalue())
    assert reported.pop("seconds") > 0
    assert reported == {
        "action": "install", "error": None, "fetched": True, "ok": True, "others": ["2.0.0"],
        "path": str(installation.path), "removed": [], "version": PINNED_VERSION,
    }  # fmt: skip
    installation.npm("fail")
    failed = Seen()
    assert await failed.run("--json", "--force") == 1
    reported = json.loads(failed.out.getvalue())
    assert (reported["ok"], reported["fetched"]) == (False, False)
    assert "no way to the mirror" in reported["error"]


@pytest.mark.requirement("E58", "E59")
async def test_check_needs_no_network(installation: ManagedInstallation) -> None:
    missing = Seen()
    assert await missing.run("--check") == 1
    assert f"there is no {installation.path}; `pilothouse install-cli` installs it" in missing.notes.getvalue()
    await Seen().run()
    assert await Seen().run("--check") == 0
    installation.path.write_bytes(CONTENT[:-1])
    wrong = Seen()
    assert await wrong.run("--check", "--path") == 1
    assert wrong.out.getvalue() == ""
    assert len(installation.runs()) == 1


async def test_a_copy_that_does_not_run_here_is_reported(installation: ManagedInstallation, seen: Seen) -> None:
    await Seen().run()
    installation.path.write_text("#!/nowhere/loader\n")
    installation.artifact = msgspec.structs.replace(
        installation.artifact, sha256=hashlib.sha256(installation.path.read_bytes()).hexdigest()
    )
    assert await seen.run("--check") == 1
    assert "the interpreter in its first line" in seen.notes.getvalue()
    installation.path.write_text("#!/bin/sh\necho 2.0.7\n")
    installation.artifact = msgspec.structs.replace(
        installation.artifact, sha256=hashlib.sha256(installation.path.read_bytes()).hexdigest()
    )
    odd = Seen()
    assert await odd.run("--check") == 1
    assert f"says that it is version 2.0.7, and not {PINNED_VERSION}" in odd.notes.getvalue()


async def test_uninstall(installation: ManagedInstallation, seen: Seen) -> None:
    await Seen().run()
    assert await seen.run("--uninstall") == 0
    assert seen.notes.getvalue() == f"removed from the cache: Claude Code {PINNED_VERSION}\n"
    assert installation.files() == set()
    again = Seen()
    assert await again.run("--uninstall") == 0
    assert "there is no copy" in again.notes.getvalue()


async def test_a_failure_is_one_line_and_exit_code_1(installation: ManagedInstallation, seen: Seen) -> None:
    installation.npm("fail")
    assert await seen.run() == 1
    last = seen.notes.getvalue().splitlines()[-1]
    assert last.startswith("pilothouse: could not fetch claude with npm")


@pytest.mark.parametrize("way", ["the command", "on the way"])
async def test_cancelled_it_leaves_nothing(way: str, installation: ManagedInstallation, seen: Seen) -> None:
    installation.npm("hang")
    async with anyio.create_task_group() as group:
        if way == "the command":
            group.start_soon(seen.run)
        else:
            group.start_soon(ensure_cli, "auto", installation.env, seen.screen)
        with anyio.fail_after(10):
            while not any(installation.cache.rglob("part")):
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert installation.files() <= {str((installation.path.parent / ".lock").relative_to(installation.cache))}


@pytest.mark.requirement("E57")
async def test_on_the_way_to_another_command(
    installation: ManagedInstallation, seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await ensure_cli("auto", installation.env, seen.screen) == str(installation.path)
    assert not caplog.records, "the screen tells it"
    assert "Anthropic's software" in seen.notes.getvalue()
    assert await ensure_cli("auto", installation.env, seen.screen) == str(installation.path)
    assert len(installation.runs()) == 1
    for wanted, env in (("global", {}), ("/nowhere/claude", {}), ("bundled", {"PILOTHOUSE_INSTALL": "0"})):
        await Seen().run("--uninstall")
        with pytest.raises(CLINotFoundError):
            await ensure_cli(wanted, {**installation.env, **env}, seen.screen)
    installation.npm("fail")
    with pytest.raises(ProvisionError, match="no way to the mirror"):
        await ensure_cli("auto", installation.env, seen.screen)
