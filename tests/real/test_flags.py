"""Drift: every flag that can be emitted is one of the real CLI's, and every flag of its help is spoken for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from pilothouse.options import TABLE
from pilothouse.options.renderer import COMMON_ARGS, STDIN_ARGS
from pilothouse.options.table import Switch, SwitchOrFlag, Target, list_flags
from pilothouse.transports.discovery import parse_version
from pilothouse_testing import ScriptedModel

pytestmark = pytest.mark.real_cli

NO_SUCH_FLAG = "--pilothouse-has-no-such-flag"
SECONDS = 30

# Flags of the help that no option stands for, and why. `extra_args` reaches them.
ELSEWHERE = {
    "another face of the program, not a query": (
        "ax-screen-reader", "background", "bg", "brief", "chrome", "desktop", "help", "ide", "no-chrome",
        "remote-control", "remote-control-session-name-prefix", "tmux", "version",
    ),
    "sessions that run in the cloud": ("cloud", "environment", "teleport"),
    "does nothing without a screen (2.1.332)": ("from-pr",),
    "another option says the same": ("dangerously-skip-permissions",),
    "fetched from the network when it starts": ("plugin-url",),
}  # fmt: skip

# Values that are checked before the flags are.
VALUES = {
    "autocompact": "auto",
    "effort": "low",
    "mcp-config": '{"mcpServers":{}}',
    "permission-mode": "plan",
    "permission-prompts": "none",
    "setting-sources": "user",
    "settings": "{}",
    "system-prompt-snapshot": "on",
    "thinking": "adaptive",
    "thinking-display": "highlights",
}

Claude = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def claude(real_cli: str, model: ScriptedModel) -> Claude:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [real_cli, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=model.env(),
            cwd=model.home,
            timeout=SECONDS,
            check=False,
        )

    return run


def targets(version: str) -> list[Target]:
    """The destinations of the options that this version of the CLI knows."""
    found: list[Target] = []
    for option in TABLE.values():
        if (parse_version(option.min_cli_version) or ()) <= (parse_version(version) or ()):
            found += getattr(option.target, "targets", (option.target,))
    return found


def emitted(version: str) -> dict[str, str]:
    """Every flag that options can put on the command line of this version, as it would stand there."""
    found: dict[str, str] = {}
    for target in targets(version):
        for flag in list_flags(target):
            bare = isinstance(target, Switch) or flag in getattr(target, "switches", ())
            found[flag] = f"--{flag}" if bare else f"--{flag}={VALUES.get(flag, '5')}"
    return found


def in_help(text: str) -> set[str]:
    heads = re.findall(r"^  (?:-\w, )?(--[\w-]+(?:, --[\w-]+)*)", text, re.MULTILINE)
    return {flag.removeprefix("--") for head in heads for flag in head.split(", ")}


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.requirement("E77", "L15", "L23")
def test_every_flag_that_can_be_emitted_is_known_to_the_cli(claude: Claude) -> None:
    version = claude("--version").stdout
    flags = emitted(version)
    assert len(flags) > 50
    # It names the first flag that it does not know, so what it names tells about all before it.
    reported = refused(claude(*COMMON_ARGS, *STDIN_ARGS, *flags.values(), NO_SUCH_FLAG))
    assert f"unknown option '{NO_SUCH_FLAG}'" in reported
    reported = refused(claude(*COMMON_ARGS, *STDIN_ARGS, "--model=x", NO_SUCH_FLAG, *flags.values()))
    assert f"unknown option '{NO_SUCH_FLAG}'" in reported
    reported = refused(claude(*COMMON_ARGS, *STDIN_ARGS, f"{NO_SUCH_FLAG}-either", *flags.values(), NO_SUCH_FLAG))
    assert f"unknown option '{NO_SUCH_FLAG}-either'" in reported
    bare = [f"--{target.name}" for target in targets(version) if isinstance(target, SwitchOrFlag)]
    assert f"unknown option '{NO_SUCH_FLAG}'" in refused(claude(*COMMON_ARGS, *STDIN_ARGS, *bare, NO_SUCH_FLAG))


@pytest.mark.requirement("E77")
def test_every_flag_of_the_help_is_an_option_or_has_a_reason(claude: Claude) -> None:
    done, known = claude("--help"), emitted(claude("--version").stdout).keys()
    flags = in_help(done.stdout)
    assert {"print", "allowedTools", "allowed-tools", "continue", "tools", "worktree"} <= flags
    own = {argument.removeprefix("--") for argument in (*COMMON_ARGS, *STDIN_ARGS) if argument.startswith("--")}
    spellings = {"allowed-tools", "disallowed-tools"}
    reasons = {flag for group in ELSEWHERE.values() for flag in group}
    assert not flags - own - spellings - reasons - known, "a new flag: make an option of it, or say why not"
    assert not reasons - flags, "a flag is gone from the help"
    assert not reasons & known
