"""`suggest_policy`: which recorded calls become rules, which never do, and that no rule matches a denied call."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilothouse import Options, UsageError
from pilothouse.messages import Message, decode
from pilothouse.support import encode_json
from pilothouse_policy import RecordedCall, Suggestion, effective_policy, read_calls, suggest_policy
from pilothouse_policy.narrow_rules import READ_ONLY_PREFIXES, find_need, split_command
from pilothouse_policy.recorded_calls import CallOutcome, Denier

ROOT = "/srv/shop"


def call(tool: str, outcome: CallOutcome = "ran", by: Denier = "person", cwd: str = ROOT, **given: Any) -> RecordedCall:
    return RecordedCall(tool, given, outcome, "s1", cwd, by)


def bash(command: str, outcome: CallOutcome = "ran", by: Denier = "person") -> RecordedCall:
    return call("Bash", outcome, by, command=command)


def edit(path: str, outcome: CallOutcome = "ran") -> RecordedCall:
    return call("Edit", outcome, file_path=path)


def rules(*calls: RecordedCall) -> list[str]:
    return suggest_policy(calls, root=ROOT).options()["allowed_tools"]


def reasons(*calls: RecordedCall) -> list[str]:
    return [each.reason for each in suggest_policy(calls, root=ROOT).still_asks]


@pytest.mark.parametrize(
    "command",
    ["npm test", "pytest -q tests/test_a.py", "git commit -m 'fix it'", "make test && make lint", "cd src; npm test",
     "python scripts/check.py", "python -m pytest", "ls -la /srv/shop/src", "git log --oneline -5"],
)  # fmt: skip
def test_a_command_that_ran_gets_exactly_its_text(command: str) -> None:
    assert rules(bash(command)) == [f"Bash({command})"]


NEVER = """python -c pass
python
bash -c ls
bash
sh x.sh; bash
node -e 1
node --eval 1
perl -e 1
npx eslint
uvx ruff
xargs ls
env FOO=1 ls
sudo ls
ssh host ls
curl https://example.com
timeout 5 npm test
eval ls
exec ls
. ./x
source x
docker run x
nohup npm test
find . -name '*.py'
git -c core.pager=x log
git -C /tmp status
git --exec-path=/x status
FOO=1 npm test
npm test && PATH=x ls
npm test | tail
npm test > out
npm test < in
npm test &
npm test; sudo ls
npm test &&
echo $(ls)
echo `ls`
echo $HOME
echo \\x
ls *.py
ls ?
ls ~
cat .env
cat src/.env.local
cat x/id_rsa
scp x y
cat --file=/etc/passwd
cat /etc/passwd
cat ../x
tool --config=../x
tool -o@../x
tool a:../../x
rm -rf src
chmod 777 src
kill 1
tool --token abc
tool sk_live_0123456789abcdefghijklmnopqrstuv
if true; then rm -rf src; fi
for i in a b; do rm src; done
command rm -rf src
nice rm -rf src
busybox rm -rf src
builtin eval ls
export PATH=bin && npm test
alias ls=sudo; ls
find src -delete
find src -name x -execdir rm x
git clean -fdx
npm exec cowsay
bun x cowsay
uv tool run cowsay
cc -o/etc/x a.c
cat prod.env
cat .envrc
cat .credentials.json
it's
x:
npm  test #x
!!
(ls)
{ ls; }
ls %1"""


@pytest.mark.parametrize(
    "command", [*NEVER.splitlines(), "npm test\ncurl x", "npm test\u202e", "\x1b[2Jls", "", "a" * 301]
)
def test_a_command_that_may_do_more_gets_no_rule(command: str) -> None:
    assert rules(bash(command)) == []
    [reason] = reasons(bash(command))
    assert reason


@pytest.mark.parametrize("given", [{"command": 1}, {}, {"command": None}])
def test_a_call_without_its_argument_gets_no_rule(given: dict[str, Any]) -> None:
    assert rules(*(RecordedCall(tool, given, "ran") for tool in ("Bash", "Edit", "Read", "WebFetch", "Write"))) == []


def test_a_call_outside_of_the_sandbox_gets_no_rule() -> None:
    assert rules(call("Bash", command="npm test", dangerouslyDisableSandbox=True)) == []


def test_a_wildcard_needs_a_beginning_that_only_reads() -> None:
    different = [bash(f"git status {flag}") for flag in ("-s", "-b", "-uno")]
    assert rules(*different) == ["Bash(git status:*)"]
    assert rules(*different[:2], different[0]) == ["Bash(git status -s)", "Bash(git status -b)"]
    for program in ("git log", "git diff", "npm run", "python -m", "git show", "make x", "cat src/a"):
        commands = [f"{program} {word}" for word in ("a", "b", "c", "d")]
        assert rules(*map(bash, commands)) == [f"Bash({command})" for command in commands]
    joined = [bash(f"git status {flag}; make x") for flag in ("-s", "-b", "-uno")]
    assert "Bash(git status:*)" not in rules(*joined)


def test_edits_get_the_narrowest_folder() -> None:
    assert rules(edit("/srv/shop/src/a.py")) == ["Edit(/src/a.py)"]
    assert rules(edit("/srv/shop/src/a.py"), edit("src/b.py")) == ["Edit(/src/**)"]
    assert rules(edit("src/a/x"), edit("src/b/y")) == ["Edit(/src/a/x)", "Edit(/src/b/y)"]
    assert rules(edit("src/x"), edit("src/y"), edit("src/a/z")) == ["Edit(/src/**)"]
    assert rules(edit("a.md"), edit("b.md")) == ["Edit(/a.md)", "Edit(/b.md)"]  # never the whole project
    kinds = (call("Write", file_path="nb/a.py"), call("NotebookEdit", notebook_path="nb/b.ipynb"))
    assert rules(*kinds) == ["Edit(/nb/**)"]
    assert rules(call("Edit", cwd="/srv/shop/src", file_path="a.py")) == ["Edit(/src/a.py)"]


@pytest.mark.parametrize(
    "path",
    ["../x", "src/../../x", "src/../a.py", "/srv/shopx/../etc/x", ".git/hooks/pre-commit", ".github/workflows/ci.yml",
     ".env", "src/.env", "src/ID_RSA", "src/x.pem", ".claude/settings.json", ".mcp.json", "/home/u/.bashrc", "~/x",
     "src/*", "src/[a]", "src/a)", "src/a\\b", "/etc/hosts", "/usr/bin/x", "src/\u202ea", "src/a\nb",
     "src/secrets.json"],
)  # fmt: skip
def test_a_path_that_may_mean_more_gets_no_rule(path: str) -> None:
    assert rules(edit(path)) == []


def test_reading_needs_a_rule_outside_of_the_project_only() -> None:
    inside = (call("Read", file_path="src/a.py"), call("Grep", pattern="x"), call("Glob", pattern="**/*.py"))
    assert rules(*inside) == []
    assert not suggest_policy(inside, root=ROOT).still_asks
    assert rules(call("Read", file_path="/srv/notes/a.md")) == ["Read(//srv/notes/a.md)"]
    assert rules(edit("/srv/notes/a.md")) == ["Edit(//srv/notes/a.md)"]
    for outside in (
        call("Grep", path="/srv/notes", pattern="x"),
        call("Glob", pattern="../*"),
        call("Glob", pattern="/*"),
    ):
        assert rules(outside) == []
        assert reasons(outside)


@pytest.mark.parametrize("folder", ["**", "app/[id]", "x\u202e"])
def test_a_directory_named_like_a_wildcard_gets_no_rule(folder: str) -> None:
    """The working directory of a call is a part of its rule: `cd '**'` would allow every file of the project."""
    calls = [call("Edit", cwd=f"{ROOT}/{folder}", file_path=name) for name in ("a", "b")]
    assert rules(*calls) == []


def test_a_root_with_odd_characters_is_no_part_of_a_rule() -> None:
    made = suggest_policy([call("Edit", cwd="/srv/[x]", file_path="src/a")], root="/srv/[x]")
    assert [rule.rule for rule in made.rules] == ["Edit(/src/a)"]


@pytest.mark.parametrize(
    "path",
    ["/home/u/.claude/.credentials.json", "/home/u/.claude.json", "/home/u/.config/gh/hosts.yml", "/proc/self/environ",
     "/etc/shadow", "/srv/x/terraform.tfstate"],
)  # fmt: skip
def test_reading_what_holds_keys_gets_no_rule(path: str) -> None:
    assert rules(call("Read", file_path=path)) == []


@pytest.mark.parametrize(
    "text", ["x" + " " * 50_000 + "y", "1" * 50_000, "x" + ")" * 50_000 + "x", "a " + "<" * 50_000]
)
def test_long_commands_are_compared_in_little_time(text: str) -> None:
    """With time in proportion to the square of the length, each took more than ten seconds."""
    begun = time.process_time()
    suggestion = suggest_policy([bash("npm test"), bash(text), bash(text, "denied")], root=ROOT)
    suggestion.try_on([bash(text)])
    assert time.process_time() - begun < 3


def test_thousands_of_different_calls_take_little_time() -> None:
    """With time in proportion to rules times calls, these took half a minute."""
    calls: list[RecordedCall] = []
    for number in range(1500):
        calls += [bash(f"make target{number}"), edit(f"src/{number % 200}/{number}.py")]
        calls += [call("Read", file_path=f"/srv/notes/{number}"), call("WebFetch", url=f"https://h{number}.com/")]
        if number % 4 == 0:
            calls += [bash(f"git push origin {number}", "denied"), edit(f"lib/{number}/x", "denied")]
    begun = time.process_time()
    suggestion = suggest_policy(calls, root=ROOT)
    assert time.process_time() - begun < 5
    assert len(suggestion.rules) == 1500 * 3 + 200


def test_pages_get_exactly_their_host() -> None:
    assert rules(call("WebFetch", url="https://Docs.example.com:8443/a?b")) == ["WebFetch(domain:docs.example.com)"]
    odd = """https://good.com@evil.com/ https://u:p@good.com/ https://evil.com\\@good.com/ ftp://a.com/ https://localhost/
        http://127.0.0.1/ http://169.254.169.254/ http://[::1]/ https://x/ https://a.internal/ https://*.a.com/
        http://0x7f.0.0.1/ http://0x7f.1/ https://a.com./ https://ä.com/ https://[ file:///x"""
    for url in odd.split():
        assert rules(call("WebFetch", url=url)) == [], url


def test_tools_of_servers_get_exactly_their_name() -> None:
    assert rules(call("mcp__shop__find", x=1)) == ["mcp__shop__find"]
    for name in ("mcp__shop", "mcp__*__x", "mcp__shop__*", "mcp__a__b__c", "mcp__a___b", "mcp__shop__f(x)", "mcp__a__"):
        assert rules(call(name)) == [], name


def test_tools_without_limits_keep_asking() -> None:
    for tool in ("WebSearch", "Monitor", "Workflow", "AskUserQuestion", "ExitPlanMode", "New", "Bash(*)", "*"):
        assert rules(call(tool)) == []
        assert reasons(call(tool))
    assert not reasons(call("Agent"), call("Skill", skill="x"), call("ToolSearch"))


def test_only_calls_that_ran_are_evidence() -> None:
    assert rules(bash("npm test", "failed")) == []
    assert rules(bash("npm test", "denied")) == []
    assert rules(RecordedCall("Bash", {"command": "npm test"}, "ran", "s", "/srv/other")) == []
    assert rules(RecordedCall("Bash", {"command": "npm test"}, "ran")) == ["Bash(npm test)"]


DENIED_FORMS = ["{}", "{} && ls", "ls; {}", "timeout 5 {}", "NODE_ENV=x {}", "({})", "{} | cat", "x $({})", "{} # x",
                "if true; then {}; fi", "{} 2>&1", "ls\n{}", "nice -n 5 {}", "time {}", "env A=1 {}",
                "! {}", "for i in 1; do {}; done", "xargs {}", "noglob {}", "timeout -s KILL 5 {}",
                "timeout --signal TERM 5 {}"]  # fmt: skip


@pytest.mark.parametrize("form", DENIED_FORMS)
def test_what_was_denied_in_any_form_gets_no_rule(form: str) -> None:
    for by in ("person", "hook", "rule"):
        assert rules(bash("npm test"), bash(form.format("npm test"), "denied", by)) == []
        calls = [bash(f"git status {flag}") for flag in ("-s", "-b", "-z")]
        assert rules(*calls, bash(form.format("git status -s"), "denied", by)) == [
            "Bash(git status -b)",
            "Bash(git status -z)",
        ]
        assert rules(*calls, bash(form.format("git status -v"), "denied", by)) == [
            f"Bash({c.input['command']})" for c in calls
        ]


@pytest.mark.parametrize("written", ["'npm' test", '"npm" test', "n\\pm test", "'timeout' 5 npm test", "npm\ntest"])
def test_what_was_denied_in_any_quotes_gets_no_rule(written: str) -> None:
    assert rules(bash("npm test"), bash(written, "denied")) == []
    assert rules(bash("npm test 'a b'"), bash(f"{written} 'a b'", "denied")) == []


def test_a_chain_with_a_denied_command_gets_no_rule() -> None:
    for chain in ("git add . && git push", "git push; ls", "ls && git push && ls"):
        assert rules(bash(chain), bash("git push", "denied")) == []
        assert reasons(bash(chain), bash("git push", "denied")) == ["a part of it was denied", "a person denied it"]
        assert rules(bash(chain), bash("git push -f", "denied")) == [f"Bash({chain})"]


def test_a_denied_edit_narrows_the_folder() -> None:
    assert rules(edit("src/a"), edit("src/b"), edit("src/c", "denied")) == ["Edit(/src/a)", "Edit(/src/b)"]
    assert rules(edit("src/a"), edit("src/b"), edit("SRC/x/../c", "denied")) == ["Edit(/src/a)", "Edit(/src/b)"]
    assert rules(edit("src/a"), edit("src/a", "denied")) == []
    deep = (edit("src/a"), edit("src/b"), edit("src/in/c"), edit("src/in/d"), edit("src/x", "denied"))
    assert rules(*deep) == ["Edit(/src/in/**)", "Edit(/src/a)", "Edit(/src/b)"]


def test_what_a_person_denied_is_denied() -> None:
    calls = [bash("git push", "denied"), edit("src/a", "denied"), call("Read", "denied", file_path="b.txt"),
             call("WebFetch", "denied", url="https://a.com/"), call("mcp__s__t", "denied"), bash("*", "denied"),
             bash("ls", "denied", "rule"), bash("x $(y)", "denied"), call("WebSearch", "denied"),
             edit("src/*", "denied")]  # fmt: skip
    denied = suggest_policy(calls, root=ROOT).options()["disallowed_tools"]
    assert denied[:5] == ["Bash(git push)", "Edit(/src/a)", "Read(/b.txt)", "WebFetch(domain:a.com)", "mcp__s__t"]
    assert denied[5] == "Read(**/.env)"


@pytest.mark.parametrize("path", ["/srv/notes/a.md", "/srv/shop/src/a.md"])
def test_a_file_that_nobody_may_read_is_no_file_to_change(path: str) -> None:
    """A rule that denies reading a file refuses its changes, so one that allows them would promise too much."""
    calls = [call("Read", "denied", file_path=path), edit(path), call("Write", file_path=path)]
    suggestion = suggest_policy(calls, root=ROOT)
    assert not suggestion.rules
    [rule] = [rule for rule in suggestion.deny if rule.calls]
    assert (rule.rule.split("(")[0], rule.calls, rule.refuses) == ("Read", 1, 2)
    assert f"1 call of 1 session: '{path}'; would have refused 2 calls that ran" in str(suggestion)
    assert {each.reason for each in suggestion.still_asks} == {"a person denied it", "reading the same file was denied"}
    assert [each.outcome for each in suggestion.try_on(calls)] == ["denied"] * 3


def test_a_denied_read_narrows_the_folder_of_an_edit() -> None:
    read = call("Read", file_path="src/key")
    for denied in (call("Read", "denied", "rule", file_path="src/key"), call("Read", "denied", file_path="src/key")):
        found = rules(denied, read, edit("src/a"), edit("src/b"), edit("src/key"))
        assert found == ["Edit(/src/a)", "Edit(/src/b)"]


@pytest.mark.parametrize("url", ["https://A.com", "https://%61.com/", "https://\uff41.com/", "https://x@a.com/"])
def test_a_denied_page_is_found_in_any_spelling(url: str) -> None:
    assert rules(call("WebFetch", url="https://a.com/"), call("WebFetch", "denied", url=url)) == []


def test_a_denied_command_is_found_over_two_lines() -> None:
    assert rules(bash("npm test"), bash("npm \\\ntest", "denied")) == []


def test_a_denial_that_would_refuse_what_ran_is_no_rule() -> None:
    calls = [call("WebFetch", url="https://a.com/x"), call("WebFetch", "denied", url="https://a.com/y"),
             bash("npm test"), bash("npm test", "denied")]  # fmt: skip
    suggestion = suggest_policy(calls, root=ROOT)
    assert not suggestion.rules
    assert not [rule for rule in suggestion.deny if rule.calls]
    assert {each.reason for each in suggestion.still_asks} == {
        "a person denied it", "the same, or a command that contains it, was also denied"
    }  # fmt: skip


def test_secrets_are_denied_and_what_that_refuses_is_counted() -> None:
    suggestion = suggest_policy([call("Read", file_path="/srv/shop/.env"), edit("src/.ENV")], root=ROOT)
    assert {rule.rule: rule.refuses for rule in suggestion.deny if rule.refuses} == {"Read(**/.env)": 2}
    assert suggestion.still_asks[0].reason == "the file may hold secrets"


@pytest.mark.parametrize("wrong", ["1f0c", ["x"], [bash("npm test"), "x"]])
def test_only_recorded_calls_are_taken(wrong: Any) -> None:
    text = "expected RecordedCall objects, got str; read_calls(messages) makes them"
    for name, function in (
        ("suggest_policy", partial(suggest_policy, root=ROOT)),
        ("try_on", suggest_policy([], root=ROOT).try_on),
    ):
        with pytest.raises(UsageError, match=re.escape(f"{name}: {text}")):
            function(wrong)


def test_a_sandbox_does_not_let_commands_run_by_itself() -> None:
    """Claude Code runs every sandboxed command without a request, unless the setting says otherwise."""
    suggestion = suggest_policy([bash("npm test"), call("WebFetch", url="https://b.com/")], root=ROOT)
    sandbox = suggestion.settings()["sandbox"]
    assert (sandbox["enabled"], sandbox["autoAllowBashIfSandboxed"]) == (True, False)
    assert sandbox["network"] == {"allowedDomains": ["b.com"]}
    assert "~/.ssh" in sandbox["filesystem"]["denyRead"]
    assert "Commands run in a sandbox; network: b.com only." in str(suggestion)
    assert "Commands run in a sandbox; network: none." in str(suggest_policy([bash("npm test")], root=ROOT))
    assert suggest_policy([edit("a")], root=ROOT).sandbox is None
    assert "sandbox" not in suggest_policy([edit("a")], root=ROOT).settings()


def test_a_suggestion_is_options_and_settings() -> None:
    suggestion = suggest_policy([bash("npm test"), edit("src/a.py")], root=ROOT)
    policy = effective_policy(Options(**suggestion.options()))
    assert not policy.warnings
    assert {row.tool: row.outcome for row in policy.rows if "(" in row.tool}.items() >= {
        "Bash(npm test)": "runs", "Edit(/src/a.py)": "runs", "Read(**/.env)": "denied"
    }.items()  # fmt: skip
    permissions = suggestion.settings()["permissions"]
    assert permissions == {
        "allow": suggestion.options()["allowed_tools"], "deny": suggestion.options()["disallowed_tools"]
    }  # fmt: skip


def test_each_rule_says_what_it_stands_on() -> None:
    calls = [RecordedCall("Bash", {"command": "npm test"}, "ran", name) for name in ("s1", "s2", "s2")]
    [rule] = suggest_policy(calls, root=ROOT).rules
    assert (rule.calls, rule.sessions, rule.examples) == (3, ("s1", "s2"), ("'npm test'",))
    text = str(suggest_policy([*calls, bash("sudo x"), call("Read", file_path="x")], root=ROOT))
    assert "3 calls of 2 sessions: 'npm test'" in text
    assert "Bash, 1 call: sudo runs" in text
    assert "Read, 1 call: reading inside the project needs no permission" in text


def test_text_of_a_model_is_escaped_and_bounded() -> None:
    odd = "\x1b[2J\u202enpm\n" + "x" * 500
    calls = [bash(odd), call(odd), RecordedCall("Read", {"file_path": odd}, "ran", odd, odd), bash("\ud800")]
    suggestion = suggest_policy(calls, root=ROOT)
    for text in (str(suggestion), *(str(each) for each in suggestion.try_on(calls))):
        assert all(char.isprintable() or char == "\n" for char in text)
        assert len(max(text.splitlines(), key=len)) < 700
    assert "\\x1b[2J\\u202enpm" in str(suggestion)


def test_the_dry_run_says_what_becomes_of_other_calls() -> None:
    suggestion = suggest_policy([bash("npm test"), bash("git push", "denied"), edit("src/a"), edit("src/b")], root=ROOT)
    tried = {
        "npm test": "runs", "timeout 5 npm test": "runs", "npm test && npm test": "runs", "npm test -v": "asks",
        "npm test; curl x": "asks", "npm test $(ls)": "asks", "npm test > x": "asks", "git push": "denied",
        "npm test&": "asks",
        "ls && git push": "denied", "FOO=1 npm test": "asks", "npm test 2>&1": "runs", "": "asks",
    }  # fmt: skip
    assert [each.outcome for each in suggestion.try_on(map(bash, tried))] == [*tried.values()]
    paths = {"src/new": "runs", "src/../x": "asks", "src/.env": "denied", "src/.git/config": "denied", "x": "asks",
             "/home/u/.bashrc": "denied", "src/.vscode/x": "asks", "src/.foo": "runs"}  # fmt: skip
    assert [each.outcome for each in suggestion.try_on(map(edit, paths))] == [*paths.values()]
    assert [
        each.outcome for each in suggestion.try_on([call("Read", file_path="a"), call("Read", file_path="/srv/a")])
    ] == ["runs", "asks"]


def test_the_root_is_the_absolute_path_of_a_project() -> None:
    for root in ("", "src", "/", "//", "/x/.."):
        with pytest.raises(UsageError, match="absolute path"):
            suggest_policy([], root=root)
    assert suggest_policy([call("Edit", cwd="", file_path="/a/b/src/x")], root="/a/b/").rules[0].rule == "Edit(/src/x)"


WORDS = ["npm", "test", "git", "status", "-s", "-b", "-z", "log", "ls", "x", "src/a", "&&", ";", "|", "timeout", "5",
         "A=1", "$(", ")", "#", ">", "\n", "'", "sudo", "{", "}", "&"]  # fmt: skip
commands = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
paths = st.lists(st.sampled_from(["src", "a", "b", "..", ".env", ".", "SRC", "*", "/etc"]), min_size=1, max_size=4).map(
    "/".join
)
urls = st.sampled_from(
    ["https://a.com/", "https://b.com/", "https://a.com@b.com/", "https://sub.a.com/", "http://A.com"]
)
outcomes = st.sampled_from(["ran", "ran", "failed", "denied"])
any_call = st.one_of(
    st.builds(lambda text, outcome: bash(text, outcome), commands, outcomes),
    st.builds(lambda text, outcome: edit(text, outcome), paths, outcomes),
    st.builds(lambda text, outcome: call("Read", outcome, file_path=text), paths, outcomes),
    st.builds(lambda text, outcome: call("WebFetch", outcome, url=text), urls, outcomes),
    st.builds(
        lambda text, outcome: call(text, outcome), st.sampled_from(["mcp__s__a", "mcp__s__b", "WebSearch"]), outcomes
    ),
)


@given(st.lists(any_call, max_size=12))
@example([bash("git status -s"), bash("git status -b"), bash("git status -z"), bash("ls; git status -v", "denied")])
def test_no_rule_ever_matches_a_denied_call(calls: list[RecordedCall]) -> None:
    suggestion = suggest_policy(calls, root=ROOT)
    denied = [each for each in calls if each.outcome == "denied"]
    for each, tried in zip(denied, suggestion.try_on(denied), strict=True):
        needs_nothing = find_need(each, ROOT).kind == "nothing"
        assert tried.outcome != "runs" or needs_nothing, (each, tried)
    ran = [each for each in calls if each.outcome == "ran"]
    for rule in suggestion.rules:
        assert "*" not in rule.rule.removesuffix(":*)").removesuffix("/**)")
        assert rule.rule != "Edit(/**)"
        assert rule.calls <= len(ran)


def check_rerun(suggestion: Suggestion, calls: list[RecordedCall]) -> None:
    evidence = [each for each in calls if each.outcome == "ran" and find_need(each, ROOT).kind == "rule"]
    reasons = {each.reason for each in suggestion.still_asks}
    for each, tried in zip(evidence, suggestion.try_on(evidence), strict=True):
        assert tried.outcome == "runs" or any("denied" in reason for reason in reasons), (each, tried)


@given(st.lists(any_call, max_size=12))
def test_all_that_ran_and_may_have_a_rule_runs_again(calls: list[RecordedCall]) -> None:
    check_rerun(suggest_policy(calls, root=ROOT), calls)


def test_beginnings_with_wildcards_are_of_git_alone() -> None:
    assert all(beginning.split()[0] == "git" for beginning in READ_ONLY_PREFIXES)
    assert {"git log", "git diff", "git show", "git grep", "git config", "git branch"}.isdisjoint(READ_ONLY_PREFIXES)


def test_parts_of_a_command_are_found_in_any_form() -> None:
    for form in DENIED_FORMS:
        assert "npm test" in split_command(form.format("npm test")), form


def said(role: str, *blocks: dict[str, Any], **row: Any) -> Message:
    body = {"role": role, "model": "m", "content": [*blocks]}
    return decode(encode_json({"type": role, "message": body, **row}))


ASKED = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}


def result(error: bool | None, text: str = "x", **row: Any) -> list[RecordedCall]:
    """What is read from a call and its result, in a row with further fields."""
    answer = {"type": "tool_result", "tool_use_id": "t", "content": text, "is_error": error}
    return [*read_calls([said("assistant", ASKED), said("user", answer, cwd="/srv/shop/src", session_id="s9", **row)])]


def test_what_ran_and_where() -> None:
    assert result(None) == [RecordedCall("Bash", {"command": "ls"}, "ran", "s9", "/srv/shop/src")]
    assert [each.outcome for each in result(True)] == ["failed"]
    lonely = said("user", {"type": "tool_result", "tool_use_id": "t", "content": "x"})
    assert [*read_calls([lonely, said("user", {"type": "text", "text": "hi"}), said("assistant", ASKED)])] == []


def reject(**given: str) -> dict[str, Any]:
    return {"permissionDecision": {"decision": "reject", **given}}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (reject(source="user_reject"), ("denied", "person")),
        (reject(source="new"), ("denied", "person")),
        (reject(source="hook", reasonType="hook"), ("denied", "hook")),
        (reject(source="config", ruleSource="cliArg"), ("denied", "rule")),
        (reject(source="config", reasonType="new"), ("denied", "rule")),
        (reject(source="config", reasonType="mode"), ("failed", "rule")),
        (reject(source="config", reasonType="asyncAgent"), ("failed", "rule")),
        (reject(source="config", reasonCode="unknown"), ("failed", "rule")),
        ({"permissionDecision": {"decision": "reject", "source": "config", "reasonType": ["x"]}}, ("denied", "rule")),
        ({"toolDenialKind": "user-rejected"}, ("denied", "person")),
    ],
)
def test_who_denied_a_call(row: dict[str, Any], expected: tuple[str, str]) -> None:
    [found] = result(True, **row)
    assert (found.outcome, found.denied_by) == expected
    if expected[0] == "denied":
        assert [each.outcome for each in result(False, **row)] == ["denied"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The user doesn't want to proceed with this tool use.", "denied"),
        ("Permission to use Bash with command ls has been denied.", "denied"),
        ("PreToolUse:Bash hook error: no", "denied"),
        ("Permission to use Bash has been denied because Claude Code is running in don't ask mode.", "failed"),
        ("Exit code 1", "failed"),
    ],
)
def test_older_versions_say_it_in_words(text: str, expected: str) -> None:
    assert [each.outcome for each in result(True, text)] == [expected]
    assert [each.outcome for each in result(False, text)] == ["ran"]
