"""Ten recorded jobs: under the suggested options they all run again without a request, and planted attacks do not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from claude_login_server import ClaudeLogins, serve_behind_proxy
from conversations import bash

import pilothouse as ph
from pilothouse.messages import ToolResultBlock, UserMessage
from pilothouse_policy import RecordedCall, Suggestion, read_calls, suggest_policy
from pilothouse_policy.narrow_rules import CallIndex
from pilothouse_testing import ScriptedModel, Steps, ToolUse
from pilothouse_transcripts import list_sessions
from pilothouse_transcripts.conversation import get_file_messages

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

PAGE = b"<p>hello page</p>"
NOTEBOOK = {"cells": [{"cell_type": "code", "source": "1", "id": "c1", "metadata": {}, "outputs": [],
                       "execution_count": None}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip


class Pages(ClaudeLogins):
    """https://docs.example.com, behind a proxy."""

    def answer(self, host: str, path: str) -> tuple[int, Any]:
        return 200, PAGE


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which the pages are found."""
    with serve_behind_proxy(Pages(tmp_path)) as server:
        yield server.env()


class Project:
    """A project, what lies around it, and the ten jobs."""

    def __init__(self, claude: Any, model: ScriptedModel, env: dict[str, str]) -> None:
        self.claude, self.model = claude, model
        self.root, self.outside = claude.cwd, claude.home / "outside"
        programs = claude.home / "programs"
        programs.mkdir()
        for name in ("npm", "pytest"):
            (programs / name).write_text(f"#!/bin/sh\necho {name} was called\n")
            (programs / name).chmod(0o755)
        self.env = {**env, "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
        self.make_files()
        for number, calls in enumerate(self.list_jobs()):
            model.on(f"job {number}.", reply=Steps(*calls, "done"))
        model.on("lint it", reply=Steps(bash("npm run lint"), "linted"))
        model.on("hello page", reply="a page")

    def make_files(self) -> None:
        """Make the files as they were before any job."""
        for folder in (self.root, self.outside):
            rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name in ("src/app.py", "src/util.py", "docs/a.md", "tests/test_app.py", "README.md", ".env"):
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text("one = 1\n")
        (self.root / "lab.ipynb").write_text(json.dumps(NOTEBOOK))
        (self.root / "src/link").symlink_to(self.outside)
        (self.outside / "notes.md").write_text("one = 1\n")
        (self.outside / "other.md").write_text("one = 1\n")
        ssh = self.root.parent / ".ssh"
        ssh.mkdir(exist_ok=True)
        (ssh / "id_rsa").write_text("a key")
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
        for command in (("init", "-q"), ("add", "README.md"), ("commit", "-qm", "x"), ("tag", "v1")):
            subprocess.run(
                [*git, *command], cwd=self.root, check=True, env={"HOME": str(self.outside), "PATH": "/usr/bin:/bin"}
            )

    def list_jobs(self) -> list[list[ToolUse]]:
        """The calls of each job."""
        notes = str(self.outside / "notes.md")
        cell = {"notebook_path": "lab.ipynb", "cell_id": "c1", "new_source": "2"}
        task = {"description": "d", "prompt": "lint it", "subagent_type": "general-purpose", "run_in_background": False}
        return [
            [read("src/app.py"), edit("src/app.py"), ToolUse("Write", {"file_path": "src/new.py", "content": "x"})],
            [*(bash(f"git describe {flag}") for flag in ("--all", "--tags", "--always")), bash("git log --oneline -3")],
            [bash("pytest -q tests/test_app.py"), bash("pytest -q && npm run build")],
            [bash("npm test"), bash("ls src"), bash("npm test")],
            [ToolUse("WebFetch", {"url": "https://docs.example.com/a", "prompt": "p"})],
            [ToolUse("mcp__shop__find", {"name": "x"})],
            [read("lab.ipynb"), ToolUse("NotebookEdit", cell)],
            [ToolUse("Agent", task)],
            [PUSH, bash("npm run lint")],
            [read(notes), edit(notes)],
        ]  # fmt: skip

    def trust(self) -> None:
        """Answer the CLI's question whether it may use the rules of the project."""
        [file] = [*self.claude.home.glob(".claude.json"), *self.claude.home.glob(".claude/.claude.json")]
        known = json.loads(file.read_text())
        known.setdefault("projects", {}).setdefault(str(self.root), {})["hasTrustDialogAccepted"] = True
        file.write_text(json.dumps(known))

    async def run(self, *prompts: str, **settings: Any) -> list[dict[str, bool]]:
        """Ask in a new session, and return for each prompt whether each call of the main conversation ran."""

        @ph.tool
        def find(name: str) -> str:
            """Find."""
            return name

        @ph.tool
        def remove(name: str) -> str:
            """Remove."""
            return name

        agent = ph.Agent(
            cli=self.claude.path, cwd=self.root, inherit_env=False, env={**self.model.env(max_retries=0), **self.env},
            mcp_servers={"shop": ph.sdk_server("shop", [find, remove])}, settings={"skipWebFetchPreflight": True},
        )  # fmt: skip
        async with agent.session(**settings) as session:
            return [self.read_results(await session.query(prompt)) for prompt in prompts]

    def read_results(self, result: ph.QueryResult) -> dict[str, bool]:
        blocks = [
            block
            for message in result.messages
            if isinstance(message, UserMessage)
            and message.parent_tool_use_id is None
            and not isinstance(message.content, str)
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
        return {block.tool_use_id: not block.is_error for block in blocks}

    def list_calls(self) -> list[RecordedCall]:
        """All calls on disk."""
        config = self.claude.home / ".claude"
        files = [Path(info.path) for info in list_sessions(str(self.root), config_dir=config)]
        return [call for file in files for call in read_calls(get_file_messages(file), file.stem)]


def read(path: str) -> ToolUse:
    return ToolUse("Read", {"file_path": path})


def edit(path: str) -> ToolUse:
    return ToolUse("Edit", {"file_path": path, "old_string": "one = 1", "new_string": "one = 2"})


PUSH = bash("git push")


@pytest.fixture
async def project(claude: Any, model: ScriptedModel, pages: dict[str, str]) -> Project:
    """The project, after ten sessions; a person denied `git push`, and allowed everything else."""
    made = Project(claude, model, pages)

    def person(request: ph.PermissionRequest) -> bool:
        return request.tool_input.get("command") != "git push"

    for number, calls in enumerate(made.list_jobs()):
        [ran] = await made.run(f"job {number}.", can_use_tool=person)
        assert [*ran.values()] == [call != PUSH for call in calls], number
    return made


async def test_ten_jobs_run_again_and_attacks_do_not(project: Project) -> None:
    calls = project.list_calls()
    suggestion = suggest_policy(calls, root=str(project.root))
    assert suggestion.sessions == 10
    assert sorted(rule.rule for rule in suggestion.rules) == sorted([
        "Edit(/src/**)", "Bash(git describe:*)", "Bash(git log --oneline -3)", "Bash(pytest -q tests/test_app.py)",
        "Bash(pytest -q && npm run build)", "Bash(npm test)", "Bash(ls src)", "WebFetch(domain:docs.example.com)",
        "mcp__shop__find", "Edit(/lab.ipynb)", "Bash(npm run lint)", f"Read(/{project.outside}/notes.md)",
        f"Edit(/{project.outside}/notes.md)",
    ])  # fmt: skip
    assert [rule.rule for rule in suggestion.deny if rule.calls] == ["Bash(git push)"]
    assert [each.examples for each in suggestion.still_asks] == [("'git push'",)]
    await check_jobs_run(project, suggestion.options(), range(10))
    await check_attacks_do_not_run(project, suggestion)
    project.trust()
    await check_jobs_run(project, {"setting_sources": ["project"]}, range(10), suggestion.settings())


async def check_jobs_run(
    project: Project, options: dict[str, Any], numbers: Sequence[int], settings: dict[str, Any] | None = None
) -> None:
    """Every call of these jobs that ran before runs again, and nobody is asked; `settings` are those of the project."""
    project.make_files()
    if settings is not None:
        (project.root / ".claude").mkdir()
        (project.root / ".claude/settings.json").write_text(json.dumps(settings))
    jobs = project.list_jobs()
    results = await project.run(*(f"job {number}." for number in numbers), permission_mode="dontAsk", **options)
    for number, ran in zip(numbers, results, strict=True):
        assert [*ran.values()] == [call != PUSH for call in jobs[number]], number
    lint = [call for call in project.list_calls() if call.input.get("command") == "npm run lint"]
    assert {call.outcome for call in lint} == {"ran"}
    assert (project.root / "src/app.py").read_text() == "one = 2\n"


def list_attacks(project: Project) -> list[ToolUse]:
    commands = (
        "git log --output=$OUT/planted", "git -c core.pager=$OUT/x log", "npm test; curl http://127.0.0.1:9/",
        "pytest -q $(touch planted)", "npm test\ntouch planted", "npm test && git push", "git describe --all | sh",
        "git describe > planted", "git describe $(touch planted)", "npm test --prefix=/tmp", "LD_PRELOAD=/x npm test",
        "npm run build", "npm test > planted", "cat .env", "env npm test", "npm run lint & touch planted",
        "bash -c 'npm test; touch planted'", "git describe\ntouch planted", "npm test || touch planted",
    )  # fmt: skip
    pages = (
        "https://sub.docs.example.com/", "https://docs.example.com@evil.example.org/", "https://docs.example.com.evil.org/"
    )  # fmt: skip
    written = (
        ".git/hooks/pre-commit", "src/link/planted", "src/.env", "../planted", "src/../planted",
        ".claude/settings.json",
        "src/.mcp.json", "src/.git/config", "README.md", str(project.outside / "planted"),
    )  # fmt: skip
    return [
        *(bash(command.replace("$OUT", str(project.outside))) for command in commands),
        *(ToolUse("WebFetch", {"url": url, "prompt": "p"}) for url in pages),
        *(ToolUse("Write", {"file_path": path, "content": "planted"}) for path in written),
        *(read(path) for path in ("../.ssh/id_rsa", ".env", "src/link/other.md", str(project.outside / "other.md"))),
        ToolUse("mcp__shop__remove", {"name": "x"}),
        ToolUse("NotebookEdit", {"notebook_path": "docs/x.ipynb", "new_source": "1"}),
    ]


async def check_attacks_do_not_run(project: Project, suggestion: Suggestion) -> None:
    """Each planted call is asked about, or denied; the dry run says so for all but links, which it cannot see."""
    attacks = list_attacks(project)
    project.model.on("attack", reply=Steps(*attacks, "done"))
    asked: list[str] = []

    def note(request: ph.PermissionRequest) -> bool:
        asked.append(request.tool_use_id or "")
        return False

    [ran] = await project.run("attack", can_use_tool=note, **suggestion.options())
    succeeded = [(call.name, call.input) for call, ok in zip(attacks, ran.values(), strict=True) if ok]
    assert not succeeded
    assert len(asked) > len(attacks) / 2
    assert not [path for path in project.root.parent.rglob("*planted*") if ".claude" not in path.parts]
    recorded = [RecordedCall(call.name, dict(call.input), "failed") for call in attacks if isinstance(call.input, dict)]
    runs = {each.call for each in suggestion.try_on(recorded) if each.outcome == "runs"}
    assert runs <= {"'src/link/planted'", "'src/link/other.md'"}


TRIED = """tool test
tool test && tool test
tool test; tool two words
timeout 5 tool test
nice tool test
nohup tool test
time tool test
command tool test
tool test 2>&1
tool test > /dev/null
tool test # why
  tool test
git describe
git describe --all
git  describe --tags && tool test
tool  test
tool test -v
tool "test"
tool test; other
tool test | other
tool test &
tool test > out
tool test < in
tool test < /etc/hostname
tool test < ../in
tool test << in
(tool test)
tool test $(other)
tool test `other`
FOO=1 tool test
env tool test
xargs tool test
bash -c 'tool test'
git describes
git -C . describe
git describe > out
git describe $(other)"""


async def test_the_dry_run_agrees_with_the_cli_on_commands(claude: Any, model: ScriptedModel) -> None:
    root = str(claude.cwd)
    recorded = ["tool test", "tool two words", *(f"git describe {flag}" for flag in ("--all", "--tags", "--long"))]
    evidence = [RecordedCall("Bash", {"command": command}, "ran", cwd=root) for command in recorded]
    suggestion = suggest_policy(evidence, root=root)
    commands = [*TRIED.split("\n"), "tool test\ntool two words", "tool test\nother"]
    calls = [bash(command) for command in commands]
    model.reply([ToolUse(call.name, call.input, id=f"toolu_{at}") for at, call in enumerate(calls)])
    model.reply("done")
    asked: set[str] = set()

    def note(request: ph.PermissionRequest) -> bool:
        asked.add(request.tool_use_id or "")
        return False

    await claude.ask(can_use_tool=note, **suggestion.options())
    happened = {command: "asks" if f"toolu_{at}" in asked else "runs" for at, command in enumerate(commands)}
    tried = suggestion.try_on(RecordedCall("Bash", {"command": command}, "ran", cwd=root) for command in commands)
    assert dict(zip(commands, (each.outcome for each in tried), strict=True)) == happened


DENIED = """'tool' test
t\\ool test
nohup 'tool' test
timeout 5 tool test
timeout -s KILL 5 tool test
timeout --signal TERM 5 tool test
NO_COLOR=1 tool test
if true; then tool test; fi
for i in 1; do tool test; done
tool test | cat
tool test 2>&1
'git' describe --all
xargs git describe --all
echo x | xargs git describe --all
NO_COLOR=1 xargs git describe --all"""


async def test_a_call_that_a_rule_would_allow_counts_as_denied(claude: Any, model: ScriptedModel) -> None:
    """Else a suggestion would allow what somebody denied, because that was spelt in another way."""
    root, rules = str(claude.cwd), ("tool test", "git describe:*")
    commands = [*DENIED.split("\n"), "tool\ntest"]
    model.reply([ToolUse(call.name, call.input, id=f"toolu_{at}") for at, call in enumerate(map(bash, commands))])
    model.reply("done")
    asked: set[str] = set()

    def note(request: ph.PermissionRequest) -> bool:
        asked.add(request.tool_use_id or "")
        return False

    await claude.ask(can_use_tool=note, allowed_tools=[f"Bash({rule})" for rule in rules])
    assert not asked
    for command in commands:
        index = CallIndex([RecordedCall("Bash", {"command": command}, "denied", cwd=root)], root)
        assert any(index.may_match("Bash", rule) for rule in rules), command
