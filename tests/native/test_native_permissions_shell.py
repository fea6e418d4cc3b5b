"""The splitter of command lines: what it tells apart is what bash would run, and the rest it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilothouse.native.permissions import Rules, decide
from pilothouse.native.permissions.shell import Unclear, split
from pilothouse.native.tools.base import Workplace


def texts(command: str) -> list[list[str]]:
    return [[word.text for word in part.words] for part in split(command)]


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("", []),
        ("# only words", []),
        ("ls -l", [["ls", "-l"]]),
        ("a;b", [["a"], ["b"]]),
        ("a && b || c | d |& e & f\ng", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("echo 'a;b' \"c|d\" e\\;f", [["echo", "a;b", "c|d", "e;f"]]),
        ("a#b #c; d", [["a#b"]]),
        ("a # 'b\nc", [["a"], ["c"]]),
        ("a 2>&1 >x 3<y z", [["a", "z"]]),
        ("a2>x", [["a2"]]),
        ("echo 2 >x", [["echo", "2"]]),
        ("X=1 Y=2 a b=3", [["a", "b=3"]]),
        ("a ''", [["a", ""]]),
        ('a "x\\"y\\z"', [["a", 'x"y\\z']]),
        ("find . -exec a {} +", [["find", ".", "-exec", "a", "{}", "+"]]),
        ("a $", [["a", "$"]]),
    ],
)
def test_split(command: str, parts: list[list[str]]) -> None:
    assert texts(command) == parts


REFUSING = r"""`a` $(a) ${a} $'a' $"a" a<<E a<<<b <(a) (a) a) {a;} a{b,c} 'a "a a\ a> $A *a ~/a a>$b a>* $[1] a;;b """
REFUSED = [*REFUSING.split(" ")[:-1], "a\\ b", "if a", "! a", "a; fi", "$A b", "{ a; }"]


@pytest.mark.parametrize("command", [*REFUSED, "a\\\nb", "\u00a0a", "a\rb", "a\x1bb", "a\u200bb", "a\0b", "a\ud800b"])
def test_refused(command: str) -> None:
    with pytest.raises(Unclear):
        split(command)


def test_redirections() -> None:
    (part,) = split("a > x 2>&1 < y &>> z >/dev/null")
    assert [(each.operator, each.target.text, each.harmless) for each in part.redirections] == [
        (">", "x", False),
        (">&", "1", True),
        ("<", "y", False),
        ("&>>", "z", False),
        (">", "/dev/null", True),
    ]
    assert part.text == "a"


TOKENS = """ls git rm x ; && || | & |& ' " \\ $ ( ) ` { } < > >> # = * ? ~ ! fi done 2 -v / é ,"""
PIECES = st.sampled_from([*TOKENS.split(" "), " ", "  ", "\n", "\t", "A=1 ", "if ", "then ", "do "])
GLUE = st.sampled_from([";", " && ", " || ", " | ", "&", "\n", " |& ", " ; ", "|", "&&", " #c\n", " >&2 ;"])
ALLOWED = st.sampled_from(["git status", "git log -1", "git 'a b'", 'git "x;y"', "git a\\;b", "git 2>&1", "git # c\n"])
FORBIDDEN = st.sampled_from(["rm x", "rm", "r\\m x", "'rm' x", "A=1 rm x", "/bin/rm x", "rm # git", "2>x rm", ">x rm"])


@pytest.mark.requirement("E83")
@given(
    st.lists(ALLOWED, max_size=4), FORBIDDEN, st.lists(ALLOWED, max_size=4), st.lists(GLUE, min_size=10, max_size=10)
)
@settings(max_examples=150)
def test_no_glue_lets_a_forbidden_part_through(before: list[str], bad: str, after: list[str], glue: list[str]) -> None:
    where = Workplace("/", env={})
    rules = Rules.of(allow=["Bash(git *)"])
    parts = [*before, bad, *after]
    command = "".join(part + glue[at] for at, part in enumerate(parts[:-1])) + parts[-1]
    found = decide("Bash", {"command": command}, mode="default", rules=rules, workplace=where, read_only=False)
    assert found.behavior == "ask"
    if before or after:
        good = [*before, *after]
        command = "".join(f"{part}\n" for part in good)
        found = decide("Bash", {"command": command}, mode="default", rules=rules, workplace=where, read_only=False)
        assert found.behavior == "allow"


BASH = shutil.which("bash")
# Each program writes its name and its arguments and does nothing else, so that whatever bash makes of a line is seen.
SPY = """command_not_found_handle() { local IFS=$'\\2'; printf '%s\\1' "$*" >&9; }
PATH=/nonexistent
for each in $(compgen -b); do case $each in enable|eval|printf|local) ;; *) enable -n $each;; esac; done
eval "$1"
"""


@pytest.mark.skipif(BASH is None or sys.platform == "win32", reason="needs bash")
@given(st.lists(PIECES, min_size=1, max_size=12).map("".join))
@settings(max_examples=60)
@example("ls;rm x|git")
@example("git 2>&1 x#y 'z' # rm\nls")
@example("git&rm")
def test_bash_runs_no_more_than_was_told(tmp_path_factory: pytest.TempPathFactory, command: str) -> None:
    try:
        parts = split(command)
    except Unclear:
        return
    if any(word.expands or word.glob or word.home for part in parts for word in part.words):
        return
    folder: Path = tmp_path_factory.mktemp("spy")
    seen = folder / "seen"
    assert BASH is not None
    script = f"exec 9>'{seen}'\n{SPY}"
    subprocess.run(
        [BASH, "--norc", "-c", script, "bash", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    ran = [run.split("\2") for run in seen.read_text().split("\1")[:-1]]
    told = [[word.text for word in part.words] for part in parts if part.words]
    for words in ran:
        assert words in told, (command, ran, told)
