"""The narrowest rule for one recorded call, or why none is proposed; and which calls such a rule matches.

Pure. Owns the tables of what never gets a rule: programs that run other text, files with secrets, files that run
programs. What is not certain gets no rule, so the call keeps asking. How Claude Code matches the rules that are built
here was measured; a test compares each kind with the real CLI.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from pilothouse.options.permission_facts import TOOLS
from pilothouse_policy.recorded_calls import RecordedCall


class Need(Struct, frozen=True):
    """What a call needs to run without a request.

    Args:
        kind: "nothing": it runs anyway; "rule": this rule; "request": no rule is proposed.
        tool: the tool in the rule: `Edit` also for Write and NotebookEdit.
        content: the content of the rule; "" for the whole tool.
        reason: why it needs nothing, or why no rule is proposed.
    """

    kind: Literal["nothing", "rule", "request"]
    tool: str = ""
    content: str = ""
    reason: str = ""


def _ask(reason: str) -> Need:
    return Need("request", reason=reason)


PATH_FIELDS = {
    **dict.fromkeys(("Read", "Edit", "Write"), "file_path"),
    **dict.fromkeys(("Glob", "Grep"), "path"),
    "NotebookEdit": "notebook_path",
}
_MCP_TOOL = re.compile(r"mcp__[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*__[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_TOOL_REASONS = {
    "AskUserQuestion": "it is a question to a person",
    "ExitPlanMode": "a person approves a plan",
    "WebSearch": "no rule limits what the model searches for, which may carry data out",
    "Monitor": "it starts a command in the background",
}


def find_need(call: RecordedCall, root: str) -> Need:
    """Return what a call needs; `root` is the absolute path of the project."""
    base = posixpath.normpath(call.cwd or root)
    if not _is_inside(base, root):
        return _ask("it was made outside of the project")
    if call.tool == "Bash":
        return _judge_command(call, root)
    if call.tool in PATH_FIELDS:
        return _judge_path(call, root, base)
    if call.tool == "WebFetch":
        return _judge_address(str(call.input.get("url", "")))
    if call.tool.startswith("mcp__"):
        is_plain = _MCP_TOOL.fullmatch(call.tool) is not None
        return Need("rule", call.tool) if is_plain else _ask("the name may be that of a tool of several servers")
    if TOOLS.get(call.tool) == "own":
        return Need("nothing", reason="it needs no permission")
    return _ask(_TOOL_REASONS.get(call.tool, "no rule for this tool limits what a call does"))


# Paths

_SECRET_NAME = re.compile(
    r"\.env([._-].*|rc)?|.*\.(env|pem|key|p12|pfx|jks|keystore|kdbx|ppk)|id_(rsa|dsa|ecdsa|ed25519)([._].*)?|"
    r"[._]?netrc|\.npmrc|\.pypirc|\.pgpass|\.htpasswd|\.git-credentials|\.?credentials(\..*)?|\.?secrets?(\..*)?|"
    r"\.(ssh|aws|gnupg|kube|azure|docker|config)|gcloud|authorized_keys|\.(ba|z)sh_history|\.claude\.json|\.my\.cnf|"
    r"\.vault-token|\.terraform\.d|.*\.tfstate|g?shadow",
    re.IGNORECASE,
)
_SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var")
_KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
_ODD_PATH = re.compile(r"[*?\[\]{}()\\!~$\"'`\x00]|^#|(?:^|/)\.\.(?:/|$)| $")
MAX_CHARS = 300
"""Length limit, in characters, of what a rule is made from."""
WHOLE_FOLDER = "/**"


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def get_call_path(call: RecordedCall, root: str) -> str:
    """Return the absolute path that a file tool is given, made plain; "" if it has none."""
    given = call.input.get(PATH_FIELDS.get(call.tool, ""))
    if not isinstance(given, str) or not given:
        return posixpath.normpath(call.cwd or root) if call.tool in ("Glob", "Grep") else ""
    return posixpath.normpath(posixpath.join(call.cwd or root, given))


def to_path_content(path: str, root: str) -> str:
    """Return the content of a rule for a path: from the root of the project, or absolute."""
    return f"/{posixpath.relpath(path, root)}" if _is_inside(path, root) else f"/{path}"


def _judge_path(call: RecordedCall, root: str, base: str) -> Need:
    given, path = call.input.get(PATH_FIELDS[call.tool]), get_call_path(call, root)
    tool = "Edit" if TOOLS[call.tool] == "edit" else "Read"
    pattern = call.input.get("pattern") if call.tool == "Glob" else None
    if not path or (isinstance(pattern, str) and (".." in pattern or pattern.startswith(("/", "~")))):
        return _ask("it names no plain path")
    # A rule is made from the whole path, so a working directory named like a wildcard counts, too.
    names = (to_path_content(path, root), given if isinstance(given, str) else "")
    if any(_ODD_PATH.search(name) or not name.isprintable() or len(name) > MAX_CHARS for name in names):
        return _ask("a path with `..`, `~`, wildcards or odd characters may mean another file")
    if has_secret_name(path):
        return _ask("the file may hold secrets")
    if tool == "Read":
        if _is_inside(path, root):
            return Need("nothing", reason="reading inside the project needs no permission")
        if any(_is_inside(path, folder) for folder in _KERNEL_FOLDERS):
            return _ask("the file shows what processes hold, such as their keys")
        return Need("rule", tool, to_path_content(path, root)) if call.tool == "Read" else _ask("it searches elsewhere")
    shown = posixpath.relpath(path, root) if _is_inside(path, root) else path
    if any(part.startswith(".") for part in shown.split("/")):
        return _ask("hidden files and folders often decide what programs run")
    if not _is_inside(path, root) and any(_is_inside(path, folder) for folder in _SYSTEM_FOLDERS):
        return _ask("the file belongs to the system")
    return Need("rule", tool, to_path_content(path, root))


def has_secret_name(path: str) -> bool:
    """Whether a part of a path is named like files and folders with secrets."""
    return any(_SECRET_NAME.fullmatch(part.rstrip(". ")) for part in path.split("/"))


# Addresses

_HOST = re.compile(r"(?=.*[a-z])[a-z0-9-]+(\.[a-z0-9-]+)+")
# The last ends like a number: clients take `0x7f.1` for 127.0.0.1.
_LOCAL_HOST = re.compile(r".*\.(local|localhost|internal|lan|home|corp|arpa|\d+|0x[0-9a-f]*)")


def _judge_address(url: str) -> Need:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return _ask("it names no plain address")
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or "\\" in url or not url.isprintable():
        return _ask("the address is written so that its host is easily misread")
    if not _HOST.fullmatch(host) or _LOCAL_HOST.fullmatch(host):
        return _ask("the host is a number, has no full name, or is on the local network")
    return Need("rule", "WebFetch", f"domain:{host}")


# Commands

READ_ONLY_PREFIXES = frozenset({
    "git describe", "git for-each-ref", "git ls-files", "git ls-tree", "git merge-base", "git name-rev",
    "git rev-parse", "git show-ref", "git status",
})  # fmt: skip
"""Beginnings that may become a rule with a wildcard: no option of theirs writes a file, or runs or sends something.

Not here, although they seem to read only: `git log`, `git diff` and `git show` (`--output` writes a file, `--ext-diff`
runs a program), `git branch`, `git grep` (`-O` opens a pager), `find` (`-exec`, `-delete`), `sort` (`-o`), `sed`
(`-i`), `tar` (`--to-command`), `rg` (`--pre`), `cat`, `ls` and `wc` (any file of the user)."""
MIN_DIFFERENT_CALLS = 3
"""Number of different commands with the same beginning that a rule with a wildcard needs."""

_OTHER_TEXT_PROGRAMS = (
    ". ansible at aws az batch bunx chroot crontab curl dash dd docker doas entr env eval exec expect fish ftp gcloud "
    "gh kubectl ksh launchctl nc ncat nsenter npx nohup osascript parallel pipx pnpx podman pwsh rsync runuser scp "
    "screen script setsid sftp socat source ssh stdbuf su sudo systemctl telnet time timeout tmux trap unshare uvx "
    "watch wget xargs"
)
_RUNS_OTHER_TEXT = frozenset(_OTHER_TEXT_PROGRAMS.split())
# What else runs the words behind it: syntax of the shell, its builtins, and programs that change how others run.
_BEFORE_OTHERS = (
    "if then elif else fi for while until do done case esac select function coproc builtin command busybox toybox "
    "bwrap caffeinate chrt fakeroot firejail flock gdb ionice linux32 linux64 ltrace nice prlimit setarch sg strace "
    "taskset unbuffer valgrind"
)
_BEFORE_A_COMMAND = frozenset(_BEFORE_OTHERS.split())
_CHANGES = "alias declare enable export hash local mapfile read readarray readonly set shopt typeset unalias unset"
_CHANGES_THE_SHELL = frozenset(_CHANGES.split())
_REMOVES = frozenset({"chgrp", "chmod", "chown", "kill", "killall", "mkfs", "pkill", "rm", "rmdir", "shred", "unlink"})
_FETCHES_AND_RUNS = frozenset({
    ("bun", "x"), ("npm", "exec"), ("npm", "x"), ("npm", "create"), ("npm", "init"), ("pnpm", "create"),
    ("pnpm", "dlx"), ("pnpm", "exec"), ("uv", "tool"), ("yarn", "create"), ("yarn", "dlx"), ("yarn", "exec"),
})  # fmt: skip
_FIND_ACTIONS = ("-delete", "-exec", "-fls", "-fprint", "-ok")
_INTERPRETER = re.compile(
    r"(?:ba|z)?sh|(?:python|pypy)[\d.]*|node|deno|bun|perl|ruby|php|lua|awk|gawk|mawk|tclsh|Rscript"
)
_SPECIAL: dict[str, str] = {
    "$`": "what it runs is known only when the shell has expanded it",
    "<>": "it is redirected to or from a file",
    "|": "Claude Code judges each side of a pipe alone",
    "*?[]{}~!": "the shell expands it, or a rule would take it for a wildcard",
    "()\\#^%": "it has characters that mean more to a shell or in a rule",
}
_KEY_LIKE = re.compile(
    r"(?i)(?:token|secret|passw(?:or)?d|api[-_]?key|bearer|authorization)\b|(?=[^\s/]*\d)(?=[^\s/]*[a-z])[\w+=-]{32,}"
)
_SEPARATORS = re.compile(r"&&|;")
_WORD_PARTS = re.compile(r"[=:,@'\"]")


def _judge_command(call: RecordedCall, root: str) -> Need:
    command = call.input.get("command")
    text = command.strip() if isinstance(command, str) else ""
    if not text or len(text) > MAX_CHARS or not text.isprintable():
        return _ask("it is empty, long, of several lines, or has characters that cannot be seen")
    if call.input.get("dangerouslyDisableSandbox"):
        return _ask("it was to run outside of the sandbox")
    for characters, reason in _SPECIAL.items():
        if any(char in text for char in characters):
            return _ask(reason)
    if "&" in text.replace("&&", "") or text.endswith((":", ";", "&")):
        return _ask("it runs in the background, or is not complete")
    if _KEY_LIKE.search(text):
        return _ask("it may contain a key")
    for part in _SEPARATORS.split(text):
        if reason := _find_danger(part, call, root):
            return _ask(reason)
    return Need("rule", "Bash", text)


def _find_danger(command: str, call: RecordedCall, root: str) -> str:
    """Return why a simple command gets no rule; "" if it may."""
    try:
        words = shlex.split(command)
    except ValueError:
        return "its quotes do not close"
    if not words or "=" in words[0]:
        return "it sets a variable, which can change what programs do"
    program, rest = posixpath.basename(words[0]), words[1:]
    if program in _RUNS_OTHER_TEXT:
        return f"{program} runs what it is given, as another user, or elsewhere"
    if program in _BEFORE_A_COMMAND:
        return f"{program} stands before another command"
    if program in _CHANGES_THE_SHELL:
        return f"{program} can change what the commands after it do"
    if (program, *rest[:1]) in _FETCHES_AND_RUNS:
        return f"{program} {rest[0]} loads programs and runs them"
    if program == "find" and any(word.startswith(_FIND_ACTIONS) for word in rest):
        return "find removes or writes files, or runs programs, with such an option"
    if program == "git" and rest[:1] == ["clean"]:
        return "git clean removes files"
    if program in _REMOVES:
        return f"{program} removes, ends or unlocks something"
    if _INTERPRETER.fullmatch(program) and (not rest or (rest[0].startswith("-") and rest[0] not in ("-m", "--test"))):
        return f"{program} runs a text, and not a file or module of the project"
    if program == "git" and rest[:1] and rest[0].startswith("-"):
        return "options before the command of git can make it run programs"
    for word in words:
        attached = re.match(r"-[A-Za-z](?=/)", word)  # as in `-o/tmp/x`
        for piece in (word, word[2:] if attached else "", *_WORD_PARTS.split(word)):
            if ".." in piece.split("/") or (piece.startswith("/") and not _is_inside(posixpath.normpath(piece), root)):
                return "it names a path outside of the project"
            if has_secret_name(piece):
                return "it names a file that may hold secrets"
    return ""


# What rules match

_CHAINED = re.compile(r"&&|\|\||[;|&\n]")
_COMPUTED = re.compile(r"\$\(|`|<\(|>\(")
# A model may write a command of any length, so these take time in proportion to it: they begin at no character inside
# of a run of spaces, digits or brackets.
# What Claude Code takes away before it compares a command with a rule.
_HARMLESS_TAIL = re.compile(
    r"(?<!\s)\s*(?:(?<!\d)\d*>\s*/dev/null|(?<!\d)\d*>&\d|<\s*(?![/~]|[\w./-]*\.\.)[\w./-]+)(?=\s|$)|\s#.*$",
    re.MULTILINE,
)
_WRAPPER = r"(?:nohup|time|command|nice(?:\s+-n\s+\d+)?|timeout\s+\d+[smhd]?)"
_WRAPPERS = re.compile(rf"^\s*(?:{_WRAPPER}\s+)*")
# What may stand around a command at most.
_PREFACE = re.compile(
    r"^\s*(?:(?:then|do|else|if|while|until|!|\{|\(|env|builtin|exec|noglob|stdbuf|timeout|nice|xargs"
    rf"|(?:-s|--signal)\s+\S+|-\S+|\d\S*|\w+=\S*|{_WRAPPER})\s*(?<=[\s({{]))*"
)
_TAIL = re.compile(r"(?<![\s)}])(?:\s*(?<!\d)\d*[<>].*|\s+#.*|\s*[)}])+$", re.DOTALL)
_QUOTES = str.maketrans("", "", "'\"\\")


def _unquote(command: str) -> str:
    return command.replace("\\\n", "").translate(_QUOTES)


def _simplify(command: str) -> str:
    """Return a command without quotes, and with single blanks.

    To Claude Code, `'git' push` and `g'i't push` are `git push`, and a line break between the two is a blank.
    """
    return " ".join(_unquote(command).split())


def split_command(command: str) -> Iterator[str]:
    """Yield the simple commands in a command, without what may stand around each; rather too many than too few."""
    command = command.replace("\\\n", "")
    for text in (command, _COMPUTED.sub(";", command)):
        for part in _CHAINED.split(text):
            yield part.strip()
            yield _TAIL.sub("", _PREFACE.sub("", part)).strip()


Rule: TypeAlias = tuple[str, str]
"""The tool and the content of a rule of this module."""


class CallIndex:
    """Which rules of this module may match one of some calls. Asking takes no longer for thousands of calls.

    Args:
        calls: the calls.
        root: the absolute path of the project.
    """

    def __init__(self, calls: Iterable[RecordedCall], root: str) -> None:
        self._root = root
        self._matched: set[Rule] = set()
        addresses: list[str] = []
        for call in calls:
            self._matched.update(_list_matched(call, root))
            if call.tool == "WebFetch":
                addresses.append(unicodedata.normalize("NFKC", unquote(str(call.input.get("url", "")))).casefold())
        self._addresses = "\n".join(addresses)

    def may_match(self, tool: str, content: str) -> bool:
        """Whether a rule may match one of the calls, also as a part of it. Says yes when in doubt."""
        if tool == "WebFetch":
            return content.removeprefix("domain:") in self._addresses
        if tool == "Bash":
            content = _simplify(content)
        return _normalize(tool, content, self._root) in self._matched


def _normalize(tool: str, content: str, root: str) -> Rule:
    """Return a rule with its path absolute and in small letters, as `_list_matched` yields it."""
    if tool not in ("Edit", "Read"):
        return tool, content
    return tool, (content[1:] if content.startswith("//") else posixpath.join(root, content[1:])).casefold()


def _list_matched(call: RecordedCall, root: str) -> Iterator[Rule]:
    """Yield every rule, normalized, that may match a call or a part of it; those for addresses aside."""
    if call.tool == "Bash":
        command = str(call.input.get("command", ""))
        for part in map(_simplify, (command, *split_command(_unquote(command)))):
            yield "Bash", part
            yield "Bash", _to_beginning(part)
    elif call.tool.startswith("mcp__"):
        yield call.tool, ""
    elif (group := TOOLS.get(call.tool)) in ("edit", "read"):
        tool = group.capitalize()
        path = get_call_path(call, root).casefold()
        yield tool, path
        # A model may write a path of any length; no rule is longer than this, which small letters at most triple.
        longest = 3 * (len(root) + MAX_CHARS)
        folder = path if len(path) <= longest else path[: longest + 1].rpartition("/")[0]
        while folder:
            yield tool, f"{folder}{WHOLE_FOLDER}"
            folder = folder.rpartition("/")[0]


def _to_beginning(command: str) -> str:
    """Return the content of the rule with a wildcard that matches a simple command: all have two words before it."""
    return f"{' '.join(command.split(maxsplit=2)[:2])}:*"


# A rule for a folder does not reach these: Claude Code asks about them in every mode but one.
_GUARDED_NAMES = frozenset({
    ".bash_profile", ".bashrc", ".claude", ".git", ".gitconfig", ".gitmodules", ".husky", ".idea", ".mcp.json",
    ".profile", ".ripgreprc", ".vscode", ".zprofile", ".zshrc",
})  # fmt: skip


class AllowRules:
    """Rules of this module, to ask which of them allow a call.

    Commands that Claude Code runs without a rule, because they only read, do not count.
    Links are not followed here; Claude Code follows them, and asks about a link that leads elsewhere.

    Args:
        rules: the rules.
        root: the absolute path of the project.
    """

    def __init__(self, rules: Iterable[Rule], root: str) -> None:
        self._root = root
        self._rules: dict[Rule, Rule] = {}
        for rule in rules:
            self._rules.setdefault(_normalize(*rule, root), rule)

    def find_allowing(self, call: RecordedCall) -> list[Rule]:
        """Return the rules that allow a call: several if each allows a part of it, none if the call asks."""
        if call.tool == "Bash":
            return self._find_for_command(call.input.get("command"))
        if TOOLS.get(call.tool) == "edit" and _GUARDED_NAMES & {*get_call_path(call, self._root).casefold().split("/")}:
            return []
        if call.tool == "WebFetch":
            need = _judge_address(str(call.input.get("url", "")))
            matched: Iterable[Rule] = [(need.tool, need.content)]
        else:
            matched = _list_matched(call, self._root)
        return [self._rules[rule] for rule in matched if rule in self._rules][:1]

    def _find_for_command(self, command: object) -> list[Rule]:
        if not isinstance(command, str):
            return []
        if (whole := ("Bash", command.strip())) in self._rules:
            return [whole]
        text = _HARMLESS_TAIL.sub("", command)
        if _COMPUTED.search(text) or any(char in text for char in "<>()") or re.search(r"(?<!&)&(?!&)", text):
            return []
        found: dict[Rule, None] = {}
        for part in filter(None, (_WRAPPERS.sub("", part).strip() for part in _CHAINED.split(text))):
            rules = (("Bash", content) for content in (part, _to_beginning(part)))
            if (rule := next((rule for rule in rules if rule in self._rules), None)) is None:
                return []
            found[rule] = None
        return [*found]
