"""Calls, what CLI 2.1.330 does with each in default mode, and what we do: the same or stricter.

Owns the table; the tests compare both columns with the two engines. `made` is the world the calls are made in.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A call: the tool, the one argument that matters, what the CLI does (None: not comparable) and what we do."""

    tool: str
    about: str
    cli: str | None
    ours: str


def made(cwd: Path, outside: Path) -> None:
    """Files for the calls; `cwd` and `outside` exist already."""
    for folder in (".git", "sub", ".claude", "sub/deep"):
        (cwd / folder).mkdir()
    for name in ("a.txt", "b.txt", ".env", "sub/c.txt"):
        (cwd / name).write_text("one\n")
    (outside / "o.txt").write_text("o\n")
    (cwd / "link").symlink_to(outside / "o.txt")
    (cwd / "away").symlink_to(outside)


def _bash(cli: str, ours: str, commands: str) -> list[Row]:
    return [Row("Bash", command, cli, ours) for command in commands.strip().split("\n")]


# The CLI reads these commands and finds them harmless; we ask about every command.
STRICTER = _bash(
    "allow",
    "ask",
    """ls
ls -la sub
cat a.txt
cat .env
echo hi > /dev/null
ls 2>/dev/null | wc -l
pwd && ls
grep -r one .
find . -name '*.txt'
cat < a.txt
echo '$(rm x)'
ls *.txt
echo $HOME
for i in 1 2; do ls; done
l"s"
X=1""",
)
BOTH_ASK = _bash(
    "ask",
    "ask",
    """ls /etc
cat $OUT/o.txt
cat link
cat away/o.txt
cat ~/.ssh/id_rsa
cat < /etc/passwd
cat sub/../a.txt
echo $(whoami)
echo hi > x.txt
echo hi >> $OUT/x.txt
ls > .git/hooks/x
git -C /tmp status
git commit -m x
git push
git -c core.pager=x log
find . -delete
sed -i s/a/b/ a.txt
touch made
rm a.txt
rm -rf /
cp a.txt b.txt
npm test
curl http://x.y
sudo ls
FOO=1 ls
ls; rm x
ls | xargs rm
cat a.txt | bash
$'ls'
bash -c ls
export X=1
touch $OUT/t
cd /tmp
cd /tmp && ls""",
)
PATHS = [
    Row("Read", "$CWD/a.txt", "allow", "allow"),
    Row("Read", "$CWD/.env", "allow", "allow"),
    Row("Read", "$CWD/sub/../a.txt", None, "allow"),
    Row("Read", "$OUT/o.txt", "ask", "ask"),
    Row("Read", "$CWD/link", "ask", "ask"),
    Row("Read", "$CWD/away/o.txt", "ask", "ask"),
    Row("Read", "$CWD/sub/../../outside/o.txt", "ask", "ask"),
    Row("Read", "/etc/passwd", "ask", "ask"),
    Row("Read", "~/x", "ask", "ask"),
    Row("Write", "$CWD/new.txt", "ask", "ask"),
    Row("Write", "$CWD/.git/config", "ask", "ask"),
    Row("Write", "$CWD/.claude/settings.json", "ask", "ask"),
    Row("Write", "/tmp/pilothouse-none", "ask", "ask"),
    Row("Write", "~/x", "ask", "ask"),
    Row("Glob", "$CWD/sub", "allow", "allow"),
    Row("Glob", "$OUT", "ask", "ask"),
    Row("Glob", "$CWD/away", "ask", "ask"),
    Row("Grep", "$CWD/sub", "allow", "allow"),
    Row("Grep", "/etc/hosts", "ask", "ask"),
]
ROWS = [*STRICTER, *BOTH_ASK, *PATHS]


def tool_input(row: Row, cwd: Path, outside: Path) -> dict[str, str]:
    """The arguments of the call."""
    about = row.about.replace("$CWD", str(cwd)).replace("$OUT", str(outside))
    match row.tool:
        case "Bash":
            return {"command": about}
        case "Read":
            return {"file_path": about}
        case "Write":
            return {"file_path": about, "content": "x"}
        case _:
            return {"path": about, "pattern": "*.txt" if row.tool == "Glob" else "one"}
