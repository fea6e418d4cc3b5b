"""`user`: the child really runs as somebody else, and can read what is meant for it."""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from pilothouse.errors import CLIStartError, OptionsError
from pilothouse.options import Options, render
from pilothouse.transports import CliTransport

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may become another user"),
]

SCRIPT = """#!/bin/sh
for argument; do case "$argument" in --settings=*) settings="${argument#--settings=}";; esac; done
id -u; id -g; id -G; cat "$settings"
"""


@pytest.fixture
def open_place(tmp_path: Path) -> Iterator[Path]:
    """A directory that everybody may enter; the directories of pytest are private."""
    closed = [part for part in (tmp_path, *tmp_path.parents) if part.stat().st_mode & 0o005 != 0o005]
    modes = {part: part.stat().st_mode for part in closed}
    for part in closed:
        part.chmod(modes[part] | 0o005)
    yield tmp_path
    for part, mode in modes.items():
        part.chmod(mode)


def script(directory: Path) -> str:
    path = directory / "claude"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return str(path)


async def output(options: Options) -> list[str]:
    transport = CliTransport()
    await transport.start(render(options, {"PATH": os.defpath}))
    found = b""
    try:
        with anyio.fail_after(10):
            while data := await transport.receive():
                found += data
    finally:
        await transport.close()
    return found.decode().splitlines()


async def test_the_child_is_that_user_with_its_groups_and_reads_its_files(open_place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    options = Options(cli=script(open_place), cwd=open_place, settings={"a": "é"}, user="nobody")
    uid, gid, groups, settings = await output(options)
    assert (uid, gid) == (str(nobody.pw_uid), str(nobody.pw_gid))
    assert set(map(int, groups.split())) == set(os.getgrouplist("nobody", nobody.pw_gid))
    assert settings == '{"a":"é"}'
    assert (await output(options.with_(user=nobody.pw_uid)))[0] == str(nobody.pw_uid)
    assert (await output(options.with_(user="root")))[0] == "0"


async def test_impossible_settings_are_reported_first_and_leave_nothing(
    tmp_path: Path, open_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # others are at work in that of the machine
    options = Options(cli=script(open_place), cwd=open_place, settings={"a": 1})
    for user in ("no-such-user", 2**31):
        with pytest.raises(OptionsError, match="there is no user") as caught:
            await output(options.with_(user=user))
        assert caught.value.option == "user"
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(CLIStartError, match="as user nobody: that user may not run it"):
        await output(options.with_(user="nobody", cli=script(private)))
    assert not [path for path in temporary.iterdir() if "first" not in path.name]


async def test_only_root_may(monkeypatch: pytest.MonkeyPatch, open_place: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CLIStartError, match="only root may run a child as another user"):
        await output(Options(cli=script(open_place), user="nobody"))
