"""How `Plugins` runs `claude plugin`: what ends with it, and what its callers get if it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_checks import is_dead, until

import pilothouse as ph
from pilothouse.errors import CLIStartError, ControlTimeout, PluginError
from pilothouse.plugins import Plugins

pytestmark = pytest.mark.anyio


def make_cli(directory: Path, script: str) -> Path:
    program = directory / "claude"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return program


@pytest.mark.parametrize("start", ["sleep 600", "sh -c 'trap \"\" TERM; sleep 600; sleep 600'"])
async def test_what_it_has_started_ends_with_it(tmp_path: Path, start: str) -> None:
    cli = make_cli(tmp_path, f'{start} & echo $! > "{tmp_path}/pid"; wait')
    with pytest.raises(ControlTimeout, match="`claude plugin update` took longer than 2 s"):
        await Plugins(ph.Options(cli=cli), timeout=2).update("a@b")
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: is_dead(pid), f"{pid} runs")


async def test_it_may_tidy_up_when_its_time_is_over(tmp_path: Path) -> None:
    cli = make_cli(tmp_path, f"trap 'echo > \"{tmp_path}/tidy\"; exit 0' TERM; sleep 600 & wait")
    with pytest.raises(ControlTimeout):
        await Plugins(ph.Options(cli=cli), timeout=2).list()
    assert (tmp_path / "tidy").exists()


async def test_why_it_does_not_start(tmp_path: Path) -> None:
    cli = make_cli(tmp_path, "echo '[]'")
    with pytest.raises(CLIStartError, match=r"the working directory .* does not exist"):
        await Plugins(ph.Options(cli=cli, cwd=tmp_path / "gone")).list()
    with pytest.raises(CLIStartError, match="NUL") as caught:
        await Plugins(ph.Options(cli=cli)).install("a\0b")
    assert caught.value.__cause__ is caught.value.__context__ is None


async def test_answers_of_another_form(tmp_path: Path) -> None:
    for answer in ("[]", "{}"):
        plugins = Plugins(ph.Options(cli=make_cli(tmp_path, f"echo '{answer}'")))
        assert await plugins.available() == await plugins.list() == []
    with pytest.raises(PluginError, match="failed with SIGKILL: no output"):
        await Plugins(ph.Options(cli=make_cli(tmp_path, "kill -9 $$"))).list()
