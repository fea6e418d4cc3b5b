"""Which of a client's wishes a host takes: flags, files, variables, working directory. Decides; starts nothing.

The one who holds the token may have Claude Code run commands, so this is no sandbox: it keeps a session in the place
that the host was given, and keeps apart what the client may say from what only the host decides. It looks at the disk
only to follow symbolic links: call it off the event loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from pilothouse.errors import PilothouseError
from pilothouse.options import Invocation, PrivateFile
from pilothouse.options.invocation import ChildEnvironment
from pilothouse.options.secrets import secret_values

TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""Holds the token of the host; no child gets it."""
DEFAULT_ENV = ("ANTHROPIC_*", "CLAUDE_CODE_*")
NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", TOKEN_VARIABLE)
LONGEST = 128 * 1024
"""Characters of one argument or variable."""

_ELSEWHERE = "it starts or reaches something outside of this session"
_DENIED: dict[str, str] = {
    **dict.fromkeys(("background", "bg", "chrome", "cloud", "desktop", "environment", "from-pr", "ide"), _ELSEWHERE),
    **dict.fromkeys(("remote-control", "remote-control-session-name-prefix", "sdk-url", "teleport"), _ELSEWHERE),
    **dict.fromkeys(("tmux", "worktree"), _ELSEWHERE),
    **dict.fromkeys(("file", "plugin-url"), "it fetches files from elsewhere"),
    **dict.fromkeys(("help", "version"), "it starts no session"),
}
# Their values are paths; those marked True may be JSON instead.
_PATHS: dict[str, bool] = {
    "add-dir": False,
    "agents": True,
    "append-subagent-system-prompt-file": False,
    "append-system-prompt-file": False,
    "debug-file": False,
    "mcp-config": True,
    "plugin-dir": False,
    "plugin-dir-no-mcp": False,
    "project-config-root": False,
    "settings": True,
    "system-prompt-file": False,
}
# The only flags whose value may be an argument of its own: a bare word could be a command of the CLI.
_SEPARATE = frozenset({"--input-format", "--output-format"})
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?|-p", re.DOTALL)
_FILE_FLAG = re.compile(r"[a-z][a-z0-9-]*")
_SUFFIX = re.compile(r"(\.[a-z0-9]{1,8})?")
_RESUMED = re.compile(r"[^/\\\x00]*")
_WORD = re.compile(r"[A-Za-z-]+")
# Who says where the API is has to bring the key as well: else they could have that of the host sent there.
_REDIRECTING = "*_BASE_URL"


class Refusal(PilothouseError):  # noqa: N818 - it is an answer
    """The host does not do what a client asks for. Nothing was started. (E84)

    Args:
        code: why, for programs.
        message: why, and what would be taken.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wish(Struct, frozen=True):
    """What a client wants to have started; see `Invocation`.

    Args:
        argv: arguments, without those of `files`.
        tail: arguments that come last.
        files: values that travel in private files.
        env: the variables that the client set itself; None takes one away.
        cwd: the working directory on the host; None: the first root.
        isolated: whether the child has a HOME of its own.
    """

    argv: tuple[str, ...]
    tail: tuple[str, ...] = ()
    files: tuple[PrivateFile, ...] = ()
    env: Mapping[str, str | None] = {}
    cwd: str | None = None
    isolated: bool = False


class Policy(Struct, frozen=True):
    """What is taken.

    Args:
        cli: which CLI runs; clients have no say in it.
        roots: directories below which sessions may work; the first one is where they work unasked.
        env: patterns of the names of variables that clients may set.
        base: the environment that children start from, with the key.
    """

    cli: str
    roots: tuple[str, ...]
    env: tuple[str, ...]
    base: Mapping[str, str]

    def admit(self, wish: Wish) -> Invocation:
        """How a wish is carried out.

        Raises:
            Refusal: some of it is not taken; says what, and what would be.
        """
        cwd = self._directory(wish.cwd)
        if not {"--print", "-p"} & {*wish.argv, *wish.tail}:
            raise Refusal("forbidden", "the arguments have no --print: this host starts no interactive session")
        self._check_arguments(wish.argv, cwd)
        self._check_tail(wish.tail)
        for file in wish.files:
            _check_file(file)
        return Invocation(
            cli=self.cli,
            argv=wish.argv,
            tail=wish.tail,
            files=wish.files,
            env=self._environment(wish.env),
            cwd=cwd,
            isolated=wish.isolated,
        )

    def _directory(self, asked: str | None) -> str:
        if asked is None:
            return self.roots[0]
        if not self._is_below(asked, self.roots[0]):
            raise Refusal("forbidden", f"cwd: {asked!a} is not below {self._places()}")
        path = os.path.realpath(os.path.join(self.roots[0], asked))  # noqa: PTH118 - Path has no realpath of its own
        if not os.path.isdir(path):  # noqa: PTH112
            raise Refusal("bad_request", f"cwd: there is no directory {asked!a} on this host")
        return path

    def _is_below(self, path: str, cwd: str) -> bool:
        if "\0" in path:
            return False
        real = os.path.realpath(os.path.join(cwd, path))  # noqa: PTH118
        return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.roots)

    def _places(self) -> str:
        return " or ".join(self.roots)

    def _check_arguments(self, argv: Sequence[str], cwd: str) -> None:
        before = ""
        for argument in argv:
            if not _FLAG.fullmatch(argument) and before not in _SEPARATE:
                raise Refusal("forbidden", f"argument {argument[:80]!a}: this host takes --flag and --flag=value alone")
            if len(argument) > LONGEST or "\0" in argument:
                raise Refusal("bad_request", f"argument {argument[:80]!a}… is too long, or has a NUL in it")
            before = argument
            name, equals, value = argument.removeprefix("--").partition("=")
            self._check_flag(name, value if equals else None, cwd)

    def _check_flag(self, name: str, value: str | None, cwd: str) -> None:
        if reason := _DENIED.get(name):
            raise Refusal("forbidden", f"--{name}: this host does not take it: {reason}")
        if name == "resume" and not _RESUMED.fullmatch(value or ""):
            raise Refusal("forbidden", "--resume: this host takes the id of a conversation, and no path")
        if name not in _PATHS or value is None or (_PATHS[name] and value.lstrip().startswith(("{", "["))):
            return
        if not self._is_below(value, cwd):
            raise Refusal("forbidden", f"--{name}: {value[:200]!a} is not below {self._places()}")

    def _check_tail(self, tail: Sequence[str]) -> None:
        # The prompt of the argv form: `--print "…"`, or `--print -- "-…"`.
        words = [word for word in tail if word not in ("--print", "-p", "--")]
        guarded = "--" in tail
        if len(words) > 1 or (words and words[0].startswith("-") and not guarded) or any("\0" in w for w in words):
            raise Refusal("forbidden", "tail: this host takes --print and one prompt")
        if any(_WORD.fullmatch(word) for word in words):
            raise Refusal(
                "forbidden", "tail: a prompt of one word could be a command of the CLI; send it through stdin"
            )

    def _environment(self, asked: Mapping[str, str | None]) -> ChildEnvironment:
        for name, value in asked.items():
            if not any(fnmatchcase(name, pattern) for pattern in self.env) or name == TOKEN_VARIABLE:
                raise Refusal(
                    "forbidden", f"env: this host does not take {name[:80]!a}, but {', '.join(self.env) or 'none'}"
                )
            if not name or "=" in name or "\0" in name + (value or "") or len(value or "") > LONGEST:
                raise Refusal("bad_request", f"env: {name[:80]!a} cannot be set to that")
        base = {name: value for name, value in self.base.items() if name not in NOT_INHERITED}
        if any(fnmatchcase(name, _REDIRECTING) for name, value in asked.items() if value):
            base = {name: value for name, value in base.items() if not secret_values({name: value})}
        merged = {**base, **asked}
        return ChildEnvironment({name: value for name, value in merged.items() if value is not None})


def _check_file(file: PrivateFile) -> None:
    if not _FILE_FLAG.fullmatch(file.flag) or not _SUFFIX.fullmatch(file.suffix):
        raise Refusal("bad_request", f"files: {file.flag[:80]!a} with suffix {file.suffix[:20]!a} cannot be written")
    if file.flag in _DENIED:
        raise Refusal("forbidden", f"--{file.flag}: this host does not take it: {_DENIED[file.flag]}")
