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
echo hi
echo hi > /dev/null
ls 2>&1
ls 2>/dev/null | wc -l
pwd && ls
pwd; ls | head -3
grep -r one .
find . -name '*.txt'
sed -n 1,2p a.txt
head -5 a.txt
wc -l a.txt
sort a.txt
cut -c1 a.txt
tr a b
diff a.txt b.txt
cat < a.txt
ls |& cat
echo '$(rm x)'
echo "a;b"
echo a\\;b
ls *.txt
which ls
type ls
whoami
date
uname -a
id
df -h
du -sh .
stat a.txt
test -f a.txt
[ -f a.txt ]
true
sleep 0
timeout 5 ls
command ls
ls # comment
printf %s x
basename /a/b
dirname /a/b
seq 3
nl a.txt
realpath a.txt
md5sum a.txt
echo $HOME
for i in 1 2; do ls; done
if true; then ls; fi
echo $((1+1))
ps aux
X=1
l"s"
\\ls
man ls
history""",
)
BOTH_ASK = _bash(
    "ask",
    "ask",
    """ls /etc
cat $OUT/o.txt
cat link
cat away/o.txt
cat ~/.ssh/id_rsa
cat /etc/passwd
cat < /etc/passwd
cat sub/../a.txt
echo $(whoami)
echo `whoami`
echo "$(rm x)"
echo ${X}
echo "$X"
echo hi > x.txt
echo hi >> $OUT/x.txt
ls > .git/hooks/x
git -C /tmp status
git branch -D x
git commit -m x
git push
git config user.name x
git log --output=x
git fetch
git -c core.pager=x log
git grep -O x
git stash
find . -delete
find . -exec rm {} +
sed -i s/a/b/ a.txt
sed 's/a/b/w x' a.txt
awk '{print}' a.txt
sort -o x a.txt
touch made
mkdir d1
rm a.txt
rm -rf /
mv a.txt b.txt
cp a.txt b.txt
chmod +x a.txt
python3 -c 'print(1)'
npm test
curl http://x.y
sudo ls
FOO=1 ls
PATH=/tmp ls
LD_PRELOAD=x ls
env ls
xargs ls
ls; rm x
ls & rm x
ls | xargs rm
cat a.txt | bash
(ls)
{ ls; }
ls $(rm x)
ls {a,b}
$'ls'
eval ls
source a.txt
exec ls
bash -c ls
tee x
dd if=/dev/zero of=x
kill 1
export X=1
date -s x
printenv
ln -s a b
touch $OUT/t
cp a.txt $OUT/
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
