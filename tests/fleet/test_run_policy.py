"""What a worker takes of runs that another program put into the journal."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from scripted_runners import PlayedRunner

from pilothouse.client import Agent
from pilothouse.errors import OptionsError, UsageError
from pilothouse.fleet import Fleet, Run
from pilothouse.fleet.submission import _REQUEST_OPTIONS, _RESTRICTING_OPTIONS, RunOptionsPolicy  # pyright: ignore[reportPrivateUsage]
from pilothouse.options import TABLE, Options

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def enqueued(path: Path, options: dict[str, Any], key: str = "a") -> None:
    async with Fleet(runner=PlayedRunner(), journal=path, concurrency=0) as fleet:
        await fleet.enqueue([key], key=str, options=options)


async def worked(path: Path, agent: Agent | None = None, **settings: Any) -> tuple[list[Run], PlayedRunner]:
    runner = PlayedRunner(seconds=0)
    runner.agent = agent or Agent()  # type: ignore[attr-defined]
    async with Fleet(runner=runner, journal=path, stop_after=None, **settings) as fleet:
        return [run async for run in fleet.work(until_empty=True)], runner


OWN = {
    "cli": "/x/evil",
    "user": "root",
    "inherit_env": False,
    "config_dir": "/tmp",
    "settings": {"hooks": {}},
    "managed_settings": {"permissions": {"allow": ["Bash"]}},
    "setting_sources": ["project"],
    "mcp_servers": {"s": {"command": "evil"}},
    "plugins": ["/tmp/plugin"],
    "extra_args": {"settings": "/tmp/x"},
    "agents": {"a": {"description": "d", "prompt": "p"}},
    "allowed_tools": ["Bash"],
    "add_dirs": ["/"],
    "base_url": "http://127.0.0.1:9/",
    "provider": "bedrock",
    "sandbox": {"enabled": False},
    "permission_mode": "acceptEdits",
    "allow_dangerously_skip_permissions": True,
    "permission_prompt_tool_name": "mcp__s__t",
    "debug_file": "/tmp/x",
    "project_config_root": "/tmp",
}


@pytest.mark.parametrize("name", sorted(OWN))
async def test_what_runs_or_permits_is_the_workers_own(path: Path, name: str) -> None:
    await enqueued(path, {name: OWN[name]})
    [run], runner = await worked(path)
    assert (run.state, runner.attempts) == ("failed", [])
    assert isinstance(run.error, OptionsError)
    assert f"option {name!r} of run 'a' is not accepted here" in str(run.error)
    assert f"--accept {name}" in str(run.error)
    for accepts in ([name], "all"):
        await enqueued(path, {name: OWN[name]}, key=str(accepts))
        [run], runner = await worked(path, accepts=accepts)
        assert run.is_success
        assert runner.attempts[0].settings.keys() == {name}


async def test_no_program_of_the_journal_runs(path: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho $ANTHROPIC_API_KEY > {tmp_path}/pwned\n")
    evil.chmod(evil.stat().st_mode | stat.S_IXUSR)
    await enqueued(path, {"cli": str(evil)})
    agent = Agent(cli="/bin/false", env={"ANTHROPIC_API_KEY": "sk-ant-of-the-worker"})
    async with Fleet(agent, journal=path, stop_after=None) as fleet:
        [run] = [run async for run in fleet.work(until_empty=True)]
    assert isinstance(run.error, OptionsError)
    assert not (tmp_path / "pwned").exists()


async def test_what_a_run_asks_for_holds(path: Path) -> None:
    asked = {"model": "opus", "max_turns": 3, "system_prompt": "Be brief.", "cwd": "/tmp", "restricted": True}
    await enqueued(path, {**asked, "json_schema": {"type": "object"}, "permission_mode": "plan", "timeout": 5.0})
    [run], runner = await worked(path)
    assert run.is_success
    assert runner.attempts[0].settings["system_prompt"] == "Be brief."


@pytest.mark.parametrize(
    ("own", "given", "holds"),
    [
        ({"max_turns": 5}, {"max_turns": 6}, False),
        ({"max_turns": 5}, {"max_turns": 4}, True),
        ({"disallowed_tools": ["Bash"]}, {"disallowed_tools": []}, False),
        ({"disallowed_tools": ["Bash"]}, {"disallowed_tools": ["Bash", "Write"]}, True),
        ({"restricted": True}, {"restricted": False}, False),
        ({"permission_mode": "acceptEdits"}, {"permission_mode": "acceptEdits"}, True),
        ({"permission_mode": "acceptEdits"}, {"permission_mode": "auto"}, False),
        ({"allowed_tools": ["Read"]}, {"allowed_tools": ["Read"]}, True),
        ({"model": "opus"}, {"model": "haiku"}, True),
    ],
)
async def test_limits_of_the_worker_hold(path: Path, own: Any, given: Any, holds: bool) -> None:
    await enqueued(path, given)
    [run], _ = await worked(path, Agent(**own))
    assert run.is_success is holds, run.error


async def test_a_ceiling_for_the_permission_mode(path: Path) -> None:
    for mode, holds in (("plan", True), ("acceptEdits", True), ("bypassPermissions", False)):
        await enqueued(path, {"permission_mode": mode}, key=mode)
        [run], _ = await worked(path, max_permission_mode="acceptEdits")
        assert run.is_success is holds, run.error
    await enqueued(path, {"permission_mode": "plan"}, key="again")
    [run], _ = await worked(path, Agent(permission_mode="bypassPermissions"), max_permission_mode="dontAsk")
    assert run.is_success


async def test_a_process_that_runs_its_own_prompts_has_all_options(path: Path) -> None:
    options = {"cli": "/x/own", "permission_mode": "bypassPermissions"}
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path) as fleet:
        [run] = await fleet.gather(["own"], key=str, options=options)
        assert run.is_success
        assert (await fleet.wait(await fleet.submit("more", options=options))).is_success
    async with Fleet(runner=runner) as fleet:
        assert (await fleet.gather(["memory"], options=options))[0].is_success
    # What is left is resumed by who trusts the journal.
    await enqueued(path, options)
    async with Fleet(runner=runner, journal=path) as fleet:
        assert [run.is_success async for run in fleet.resume()] == [True]


async def test_a_repeated_request_has_the_current_options(path: Path) -> None:
    await enqueued(path, {"cli": "/x/evil"})
    runner = PlayedRunner(seconds=0)
    async with Fleet(runner=runner, journal=path) as fleet:
        [run] = await fleet.gather(["a"], key=str, options={"cli": "/x/own"})
    assert run.is_success
    assert [attempt.settings for attempt in runner.attempts] == [{"cli": "/x/own"}]


def test_unclassified_options_belong_to_the_worker() -> None:
    named = {*_REQUEST_OPTIONS, *_RESTRICTING_OPTIONS}
    assert named <= TABLE.keys()
    assert not [name for name in named if TABLE[name].untrusted is not None]  # those need no second word
    left = {name for name, row in TABLE.items() if row.untrusted is None and row.in_files} - named
    assert left == OWN.keys() | {"env", "nonessential_traffic", "tool_aliases"}
    assert RunOptionsPolicy().check(Run(key="a", prompt="p"), Options) is None


@pytest.mark.parametrize("wrong", [{"accepts": ["clj"]}, {"accepts": "clj"}, {"max_permission_mode": "root"}])
def test_limits_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"clj|root"):
        Fleet(**wrong)
