"""`decide`: the table of calls here and on the real CLI, the modes, and what no rule may let through."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from permission_table import ROWS, Row, made, tool_input

import pilothouse as ph
from pilothouse.options.permission_rules import RuleSet
from pilothouse_native.permissions import Decision, decide, make_hidden_filter
from pilothouse_native.tools import BUILTIN_TOOLS
from pilothouse_native.tools.base import Workplace
from pilothouse_testing import ScriptedModel, ToolUse

RANK = {"allow": 0, "ask": 1, "deny": 2}
NONE = RuleSet()


@pytest.fixture
def project(tmp_path: Path) -> Workplace:
    """`work` with its files, `outside` beside it."""
    cwd, outside = tmp_path / "work", tmp_path / "outside"
    cwd.mkdir()
    outside.mkdir()
    made(cwd, outside)
    return Workplace(cwd, env={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"})


def judged(
    project: Workplace, tool: str, given: dict[str, Any] | str, *, mode: str = "default", rules: RuleSet = NONE
) -> Decision:
    if isinstance(given, str):
        key = {"Bash": "command", "WebFetch": "url", "Glob": "pattern", "Grep": "path"}.get(tool, "file_path")
        text = given.replace("$CWD", str(project.root)).replace("$OUT", str(project.root.parent / "outside"))
        given = {key: text}
    known = BUILTIN_TOOLS.get(tool)
    read_only = known.read_only if known else False
    return decide(tool, given, mode=mode, rules=rules, workplace=project, read_only=read_only)


@pytest.mark.requirement("E83")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.tool} {row.about}")
def test_table(row: Row, project: Workplace) -> None:
    given = tool_input(row, project.root, project.root.parent / "outside")
    found = judged(project, row.tool, given)
    assert found.behavior == row.ours, found
    assert row.cli is None or RANK[row.ours] >= RANK[row.cli]
    for mode in ("plan", "dontAsk", "auto"):
        assert RANK[judged(project, row.tool, given, mode=mode).behavior] >= RANK[row.ours]
    assert judged(project, row.tool, given, mode="dontAsk").behavior in {"allow", "deny"}


async def on_the_real_cli(cli: str, rows: Sequence[Row], **settings: Any) -> tuple[list[str], list[str]]:
    """What the CLI does with each row, and what we do in the same place: "ask", or "allow" for anything else."""
    asked: set[str] = set()

    async def note(request: ph.PermissionRequest) -> ph.Deny:
        asked.add(request.tool_use_id)
        return ph.Deny("no")

    with ScriptedModel() as model:
        cwd, outside = model.home / "work", model.home / "outside"
        cwd.mkdir()
        outside.mkdir()
        made(cwd, outside)
        rules = RuleSet.parse(allow=settings.get("allowed_tools", ()))
        where = Workplace(cwd, env={"HOME": str(model.home), "PATH": "/usr/bin:/bin"})
        mode = settings.get("permission_mode", "default")
        inputs = [tool_input(row, cwd, outside) for row in rows]
        ours = [
            judged(where, row.tool, given, mode=mode, rules=rules).behavior
            for row, given in zip(rows, inputs, strict=True)
        ]
        calls = [
            ToolUse(row.tool, given, id=f"toolu_{at}") for at, (row, given) in enumerate(zip(rows, inputs, strict=True))
        ]
        model.reply(calls)
        model.reply("done")
        tools = ["Bash", "Read", "Edit", "Write", "Glob", "Grep"]
        agent = ph.Agent(
            cli=cli, cwd=cwd, env=model.env(), inherit_env=False, can_use_tool=note, tools=tools, **settings
        )
        assert (await agent.query("go")).text == "done"
    return ["ask" if f"toolu_{at}" in asked else "allow" for at in range(len(rows))], ours


@pytest.mark.anyio
@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.requirement("E83")
async def test_table_on_the_real_cli(real_cli: str) -> None:
    rows = [row for row in ROWS if row.cli is not None]
    found, _ = await on_the_real_cli(real_cli, rows)
    assert dict(zip([row.about for row in rows], found, strict=True)) == {row.about: row.cli for row in rows}


# acceptEdits is about the tools for files: a command that edits asks like any other.
EDITING = """mkdir -p made/deep
touch made && rm made
sed -i s/a/b/ a.txt
echo hi > x.txt
cp a.txt c.txt
cp -r sub/. .
mv a.txt c.txt
rm -r sub
touch link
cp a.txt .claude/settings.json
tee x
chmod 777 a.txt"""
GUARDED = """.git/config .git/hooks/pre-commit .GIT/x .claude/settings.json .Claude/agents/x.md .vscode/tasks.json
.idea/x .husky/pre-push .bashrc .zshrc .profile .gitconfig .gitmodules .mcp.json .npmrc .envrc .env
.env.local .ssh/config .claude.json sub/.git/config .git. .bashrc::$DATA pilothouse.toml sub/Pilothouse.TOML .hg/hgrc
.cargo/config.toml .config/git/config .devcontainer/devcontainer.json .cursor/rules .github/workflows/ci.yml
.pre-commit-config.yaml .gitlab-ci.yml .MCP.json .g\u200bit/config Jenkinsfile .yarn/releases/yarn.cjs .mvn/jvm.config
.pnp.cjs .pnp.loader.mjs .pnp.js .pnp.data.json .pnpmfile.cjs bunfig.toml .bunfig.toml .bazelrc .bazelversion
.bazeliskrc lefthook.yml lefthook.yaml .lefthook.yaml .yarnrc .yarnrc.yml .zshenv .zlogin .zlogout .bash_login
.bash_aliases sub/gradle-wrapper.properties .devcontainer.json pyrightconfig.json .ripgreprc
sub/maven-wrapper.properties"""
RULED = [
    Row("Write", path, None, "")
    for path in [
        "$CWD/sub/new",
        "$CWD/sub/deep/new",
        "$CWD/deep/new",
        "$CWD/x.md",
        "$CWD/sub/x.md",
        "$CWD/x.txt",
        "$CWD/y.txt",
        "$OUT/x.md",
        "$OUT/y.txt",
        "~/notes/a",
        "$CWD/lib/a",
        "$CWD/sub/lib/a",
        "$CWD/away/x.md",
    ]
]
SETTINGS: list[dict[str, Any]] = [
    {"permission_mode": "acceptEdits"},
    {"allowed_tools": ["Edit(/sub/**)", "Edit(*.md)", "Edit(~/notes/**)", "Edit(lib/**)"]},
    {"allowed_tools": ["Edit", "Write(*)", "Read(*)", "Glob", "Bash(cat *)"]},
    {"allowed_tools": ["Bash(git *)", "Bash(ls:*)", "Bash(rm x)", "Bash(echo *)", "Bash(touch *)", "Bash(cat *)"]},
]


@pytest.mark.sample(1)
@pytest.mark.anyio
@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("settings", SETTINGS, ids=["acceptEdits", "paths", "tools", "commands"])
@pytest.mark.requirement("E83")
async def test_never_laxer_than_the_real_cli(real_cli: str, settings: dict[str, Any]) -> None:
    guarded = [Row("Write", f"$CWD/{name}", None, "") for name in GUARDED.split()]
    editing = [Row("Bash", command, None, "") for command in EDITING.splitlines()]
    rows = [*ROWS, *guarded, *editing, *RULED]
    # What goes into another directory would move the calls behind it.
    rows = [row for row in rows if not row.about.startswith("cd ")]
    found, ours = await on_the_real_cli(real_cli, rows, **settings)
    laxer = [row.about for row, cli, own in zip(rows, found, ours, strict=True) if cli == "ask" and own == "allow"]
    assert laxer == []
    assert ours.count("allow") > 6


@pytest.mark.anyio
@pytest.mark.real_cli
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("content", ["deep/**", "./deep/**", "/deep/**", "sub/deep/**", "deep/c.txt", "deep/c.txt "])
async def test_never_denies_less_than_the_real_cli(real_cli: str, content: str) -> None:
    with ScriptedModel() as model:
        cwd = model.home / "work"
        paths = [cwd / name for name in ("deep/c.txt", "sub/deep/c.txt", "sub/deep/in/c.txt", "sub/c.txt")]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("one")
        model.reply([ToolUse("Read", {"file_path": str(path)}) for path in paths])
        model.reply("done")
        agent = ph.Agent(
            cli=real_cli, cwd=cwd, env=model.env(), inherit_env=False, disallowed_tools=[f"Read({content})"]
        )
        result = await agent.query("go")
        rules = RuleSet.parse(deny=[f"Read({content})"])
        where = Workplace(cwd, env={"HOME": str(model.home), "PATH": "/usr/bin:/bin"})
        ours = {str(path) for path in paths if judged(where, "Read", str(path), rules=rules).behavior == "deny"}
    denied = {str(denial.tool_input["file_path"]) for denial in result.permission_denials}
    assert denied <= ours


@pytest.mark.requirement("E83")
@pytest.mark.parametrize("name", GUARDED.split())
def test_guarded_files_ask_even_where_edits_are_accepted(name: str, project: Workplace) -> None:
    path = f"$CWD/{name}"
    everything = RuleSet.parse(allow=["Edit", "Write"])
    for tool in ("Write", "Edit"):
        assert judged(project, tool, path, mode="acceptEdits").behavior == "ask"
        assert judged(project, tool, path, mode="acceptEdits", rules=everything).behavior == "ask"
        assert judged(project, tool, path, mode="bypassPermissions").behavior == "allow"
    assert judged(project, "Write", "$CWD/.claude/worktrees/a/x.txt", mode="acceptEdits").behavior == "allow"


BARE = ["HEAD", "config", "commondir", "objects/x", "refs/x", "hooks/pre-commit", "config.worktree"]


@pytest.mark.requirement("E83")
@pytest.mark.parametrize("folder", ["", "sub/deep/"])
@pytest.mark.parametrize("last", BARE)
def test_no_directory_becomes_a_bare_repository_unasked(project: Workplace, last: str, folder: str) -> None:
    """Whatever the order: without `HEAD` it is none, and beside a `HEAD` the other parts ask."""
    everything = RuleSet.parse(allow=["Edit", "Write"])
    unasked: list[str] = []
    for name in [*(each for each in BARE if each != last), last]:
        path = project.root / folder / name
        for rules in (everything, RuleSet()):
            found = judged(project, "Write", str(path), mode="acceptEdits", rules=rules).behavior
        if found == "allow":
            unasked.append(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert last not in unasked
    assert "HEAD" not in unasked
    rules = RuleSet.parse(allow=["Edit(HEAD)", "Edit(config)", "Edit(objects/**)"])
    for name in ("HEAD", "config", "objects/x"):
        assert judged(project, "Write", name, mode="acceptEdits", rules=rules).behavior == "allow", "a rule names it"


def test_names_of_a_bare_repository_alone_are_ordinary(project: Workplace) -> None:
    """Other projects use them too."""
    for name in ("src/hooks/useUser.ts", "src/config/a.py", "config", "objects/a", "refs/b", "src/HEAD/x", "ahead"):
        path = project.root / name
        assert judged(project, "Write", str(path), mode="acceptEdits").behavior == "allow", name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("HEAD", "head", "Head ", "src/HEAD"):  # some file systems treat them as equal
        assert judged(project, "Write", f"$CWD/{name}", mode="acceptEdits").behavior == "ask", name
    git_diff = RuleSet.parse(allow=["Bash(git diff:*)"])
    assert judged(project, "Bash", "git diff HEAD config", rules=git_diff).behavior == "allow"


def test_guarded_file_that_a_rule_names(project: Workplace) -> None:
    rules = RuleSet.parse(allow=["Edit(.claude/**)"])
    assert judged(project, "Write", "$CWD/.claude/x.md", rules=rules).behavior == "allow"
    assert judged(project, "Write", "$CWD/.git/x", rules=rules).behavior == "ask"
    assert judged(project, "Write", "$CWD/.claude/x.md", rules=rules, mode="plan").behavior == "ask"


def test_links_are_followed_before_anything_is_judged(project: Workplace) -> None:
    secret = project.root.parent / "outside" / "o.txt"
    (project.root / "innocent").symlink_to(project.root / ".git")
    assert judged(project, "Write", "$CWD/link", mode="acceptEdits").behavior == "ask"
    assert judged(project, "Write", "$CWD/innocent/config", mode="acceptEdits").behavior == "ask"
    assert judged(project, "Read", "$CWD/link", rules=RuleSet.parse(deny=[f"Read(/{secret})"])).behavior == "deny"
    assert judged(project, "Read", "$CWD/link", rules=RuleSet.parse(allow=[f"Read(/{secret})"])).behavior == "allow"
    assert judged(project, "Read", "$CWD/link", rules=RuleSet.parse(allow=["Read(link)"])).behavior == "ask"
    found = judged(project, "Read", "$CWD/link")
    assert found.blocked_path == str(secret)
    assert "link" in found.reason


def test_pattern_of_glob_may_not_lead_out(project: Workplace) -> None:
    for pattern in ("/etc/*", "../outside/*", "sub/../../outside/*", "~/*", "/etc/{a,b}"):
        assert judged(project, "Glob", pattern).behavior == "ask", pattern
    assert judged(project, "Glob", "sub/**/*.txt").behavior == "allow"


def test_plan_mode_allows_no_change(project: Workplace) -> None:
    rules = RuleSet.parse(allow=["Bash", "Edit", "Write", "mcp__x"])
    for tool, given in (("Bash", "touch x"), ("Write", "$CWD/x"), ("Edit", "$CWD/x"), ("mcp__x__y", {})):
        assert judged(project, tool, given, mode="plan", rules=rules).behavior == "ask"
        assert judged(project, tool, given, rules=rules).behavior == "allow"
    assert judged(project, "Read", "$CWD/a.txt", mode="plan").behavior == "allow"


def test_bypassing_stops_at_what_is_firm(project: Workplace) -> None:
    def bypassed(tool: str, given: dict[str, Any] | str, rules: RuleSet = NONE) -> str:
        return judged(project, tool, given, mode="bypassPermissions", rules=rules).behavior

    assert bypassed("Bash", "curl x | bash") == "allow"
    assert bypassed("Bash", "rm -rf ~") == "ask"
    assert bypassed("Bash", "ls; rm -rf /", RuleSet.parse(allow=["Bash"])) == "ask"
    assert bypassed("Write", "$CWD/x", RuleSet.parse(ask=["Edit(x)"])) == "ask"
    assert bypassed("ExitPlanMode", {}) == "ask"


@pytest.mark.parametrize(
    ("rules", "url", "behavior"),
    [
        ({"allow": ["WebFetch(domain:example.com)"]}, "https://example.com/x", "allow"),
        ({"allow": ["WebFetch(domain:example.com)"]}, "https://EXAMPLE.com./x", "allow"),
        ({"allow": ["WebFetch(domain:example.com)"]}, "https://example.com@evil.com/x", "ask"),
        ({"allow": ["WebFetch(domain:example.com)"]}, "https://example.com.evil.com/", "ask"),
        ({"allow": ["WebFetch(domain:*.example.com)"]}, "https://a.example.com/", "allow"),
        ({"allow": ["WebFetch"]}, "https://anything.org/", "allow"),
        ({"deny": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "https://evil.com/", "deny"),
        ({"deny": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "https://www.evil.com/", "allow"),
        ({"deny": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "https://\uff45vil.com/", "deny"),
        ({"deny": ["WebFetch(domain:*.evil.com)"], "allow": ["WebFetch"]}, "https://www.evil\u3002com/", "deny"),
        ({"deny": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "\xa0https://evil.com/", "deny"),
        ({"deny": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "\u3000https://evil.com/\x85", "deny"),
        ({"ask": ["WebFetch(domain:evil.com)"], "allow": ["WebFetch"]}, "https://evil.com/", "ask"),
        ({}, "https://example.com/", "ask"),
        ({"allow": ["WebFetch(domain:*)"]}, "http://[::1", "ask"),
    ],
)
def test_hosts(rules: dict[str, list[str]], url: str, behavior: str, project: Workplace) -> None:
    assert judged(project, "WebFetch", url, rules=RuleSet.parse(**rules)).behavior == behavior


def test_programs_that_are_found_first_are_guarded(project: Workplace) -> None:
    programs = project.root / "venv" / "bin"
    programs.mkdir(parents=True)
    project.env = {**project.env, "PATH": f"{programs}:/usr/bin"}
    assert judged(project, "Write", "$CWD/venv/bin/ls", mode="acceptEdits").behavior == "ask"
    assert judged(project, "Write", "$CWD/venv/lib/x", mode="acceptEdits").behavior == "allow"


@pytest.mark.requirement("E83")
def test_suggestions_are_enough(project: Workplace) -> None:
    calls = [("Bash", row.about) for row in ROWS if row.tool == "Bash" and row.ours == "ask"]
    calls += [("Read", "/etc/passwd"), ("Read", "$OUT/o.txt"), ("Read", "$CWD/away/o.txt"), ("mcp__x__y", "")]
    calls += [("WebFetch", "https://example.com/"), ("Glob", "$OUT/*")]
    tried = 0
    for tool, about in calls:
        found = judged(project, tool, about)
        json.dumps(list(found.suggestions))
        if not found.suggestions or any(each["type"] != "addRules" for each in found.suggestions):
            continue
        tried += 1
        rules = NONE.with_updates(found.suggestions)
        assert judged(project, tool, about, rules=rules).behavior == "allow", (about, found)
    assert tried > 15
    assert judged(project, "Bash", "rm *").suggestions == []
    assert judged(project, "Bash", "*").suggestions == []
    assert judged(project, "Bash", "x:*").suggestions == []
    where = judged(project, "Write", "$CWD/new.txt").suggestions
    assert where == [{"type": "setMode", "mode": "acceptEdits", "destination": "session"}]
    push = judged(project, "Bash", "git push").suggestions
    rule = {"toolName": "Bash", "ruleContent": "git push"}
    assert push == [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings"}]


@pytest.mark.parametrize(
    "given",
    [{}, {"command": 5}, {"command": None}, {"file_path": "a\0b"}, {"path": ["x"]}, {"file_path": "x" * 100_000}],
)
@pytest.mark.parametrize("tool", ["Bash", "Read", "Write", "Glob", "WebFetch", "Unheard"])
def test_odd_input_is_never_allowed_to_change_anything(tool: str, given: dict[str, Any], project: Workplace) -> None:
    found = judged(project, tool, given)
    assert found.behavior == "ask" or tool in {"Read", "Glob"}


def test_other_tools(project: Workplace) -> None:
    assert judged(project, "TodoWrite", {"todos": []}).behavior == "allow"
    assert judged(project, "mcp__x__y", {}).behavior == "ask"
    assert judged(project, "mcp__x__y", {}, rules=RuleSet.parse(allow=["mcp__x"])).behavior == "allow"
    assert judged(project, "mcp__xx__y", {}, rules=RuleSet.parse(allow=["mcp__x"])).behavior == "ask"
    assert judged(project, "Agent", {"subagent_type": "a"}, rules=RuleSet.parse(allow=["Task(a)"])).behavior == "allow"
    assert judged(project, "Agent", {"subagent_type": "b"}, rules=RuleSet.parse(allow=["Task(a)"])).behavior == "ask"


@pytest.mark.requirement("E83")
@pytest.mark.parametrize(
    "rule", [".env", "./.env", "**/.env", "/.env", "secrets/**", "./secrets", "/secrets/*", "*.key"]
)
def test_rules_count_from_the_root_wherever_bash_is(rule: str, project: Workplace) -> None:
    (project.root / "secrets").mkdir()
    inside = rule.strip("./*") in {"secrets", "key"}
    path = project.root / ("secrets/a.key" if inside else ".env")
    for behavior in ("deny", "ask"):
        rules = RuleSet.parse(**{behavior: [f"Read({rule})", f"Edit({rule})"]})
        for folder in ("", "sub", "sub/deep", ".."):
            project.cwd = project.root / folder
            for tool in ("Read", "Grep", "Write"):
                for mode in ("default", "acceptEdits", "bypassPermissions"):
                    assert judged(project, tool, str(path), rules=rules, mode=mode).behavior == behavior
            assert (
                judged(project, "Bash", f"cat {os.path.relpath(path, project.cwd)}", rules=rules).behavior == behavior
            )
            hides = make_hidden_filter(rules, project)
            assert behavior == "ask" or (hides is not None and hides(path))


def test_rule_that_allows_does_not_move_with_bash(project: Workplace) -> None:
    rules = RuleSet.parse(allow=["Edit(docs/**)", "Read(/x)"])
    project.cwd = project.root / "sub"
    assert judged(project, "Write", "$CWD/docs/x", rules=rules).behavior == "allow"
    assert judged(project, "Write", "$CWD/sub/docs/x", rules=rules).behavior == "ask"
    assert judged(project, "Write", "docs/x", rules=rules).behavior == "ask"


def test_rule_that_denies_holds_in_additional_directories(project: Workplace) -> None:
    more = project.root.parent / "outside"
    project.directories.append(more)
    assert judged(project, "Read", str(more / ".env"), rules=RuleSet.parse(deny=["Read(.env)"])).behavior == "deny"
    assert (
        judged(project, "Write", str(more / "docs/x"), rules=RuleSet.parse(allow=["Edit(docs/**)"])).behavior == "ask"
    )
