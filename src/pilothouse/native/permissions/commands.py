"""Which commands only look, and which do no more than edit files.

Owns tables: for each program the options that are known to be harmless, and which of its arguments are paths. A program
or an option that is not in a table is not judged harmless. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from pilothouse.native.permissions.shell import Word, names

Positional = Literal["paths", "text", "text paths", "format", "none"]


class Usage(msgspec.Struct, frozen=True):
    """How a harmless command is written.

    `flags` are short options without a value, `valued` those with one, `long` the names of long options (with or
    without `=value`); `numbers` allows `-5`. `positional` says what the other arguments are: paths, mere text, one text
    and then paths, texts that begin with `+`, or that there may be none.
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    positional: Positional = "paths"
    numbers: bool = False


def _usage(
    flags: str = "", valued: str = "", long: str = "", positional: Positional = "paths", numbers: bool = False
) -> Usage:
    return Usage(flags, valued, frozenset(long.split()), positional, numbers)


_GREP = (
    "color count extended-regexp files-with-matches fixed-strings ignore-case invert-match line-number no-filename "
    "only-matching perl-regexp quiet recursive word-regexp"
)
_SUM = _usage("bt", long="tag text binary")

LOOKING: dict[str, Usage] = {
    "[": _usage("abcdefghknoprstuwxzGLNOS", long="", positional="paths"),
    "base64": _usage("d", "w", "decode wrap"),
    "basename": _usage("az", "s", positional="text"),
    "cal": _usage("13jmy", positional="text"),
    "cat": _usage("AbeEnstTuv", long="number number-nonblank show-all show-ends show-tabs"),
    "cksum": _usage(),
    "cmp": _usage("bls", "n"),
    "comm": _usage("123"),
    "cut": _usage("sz", "bcdf", "complement delimiter fields characters bytes output-delimiter"),
    "date": _usage("uR", "dI", "date utc iso-8601 rfc-3339 universal", positional="format"),
    "df": _usage("ahHikTl", long="human-readable"),
    "diff": _usage("abBciqNtuwy", "U", "brief color unified side-by-side ignore-all-space ignore-case stat"),
    "dirname": _usage("z", positional="text"),
    "du": _usage("abchkms", "d", "max-depth human-readable summarize all total apparent-size"),
    "echo": _usage("neE", positional="text"),
    "false": _usage(positional="text"),
    "file": _usage("bhiLk", long="brief mime mime-type mime-encoding"),
    "grep": _usage("acEFGHhiIlLnoPqrsvwxz", "ABCem", f"{_GREP} after-context before-context context", "text paths"),
    "head": _usage("qvz", "cn", "bytes lines quiet verbose", numbers=True),
    "hexdump": _usage("bcCdovx", "ns"),
    "hostname": _usage("fisId", positional="none"),
    "id": _usage("gGnruz", positional="text"),
    "ls": _usage("aAbBcCdfFgGhiklmnNopqQrRsStuUvxXZ1", "ITw", "all almost-all color human-readable reverse sort time"),
    "md5sum": _SUM,
    "nl": _usage("p", "bdfhilnsvw"),
    "nproc": _usage(long="all", positional="none"),
    "od": _usage("abcdfhilosvx", "AjNtw"),
    "paste": _usage("sz", "d"),
    "printf": _usage(positional="text"),
    "ps": _usage("aAefFlux", "op", positional="none"),
    "pwd": _usage("LP", positional="none"),
    "readlink": _usage("efmnqsvz"),
    "realpath": _usage("eLmPqsz"),
    "rev": _usage(),
    "rg": _usage(
        "acFHhiIlnNopPqsSUvVwx",
        "ABCegmtTM",
        f"{_GREP} count-matches glob heading hidden iglob max-count multiline no-heading "
        "no-ignore no-line-number sort type type-not vimgrep",
        "text paths",
    ),
    "seq": _usage("w", "fs", positional="text"),
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "sha512sum": _SUM,
    "sleep": _usage(positional="text"),
    "sort": _usage(
        "bcCdfghiMnrRsuVz", "kt", "reverse numeric-sort unique version-sort ignore-case key field-separator"
    ),
    "stat": _usage("ft", "c", "format printf terse file-system"),
    "strings": _usage("a", "n"),
    "sum": _usage(),
    "tac": _usage(),
    "tail": _usage("fFqvz", "cns", "bytes lines follow quiet", numbers=True),
    "test": _usage("abcdefghknoprstuwxzGLNOS", positional="paths"),
    "tr": _usage("cdst", positional="text"),
    "tree": _usage("adfgiNpqsuDF", "LIP", "noreport dirsfirst"),
    "true": _usage(positional="text"),
    "tty": _usage(positional="none"),
    "type": _usage("apPt", positional="text"),
    "uname": _usage("amnoprsv", positional="none"),
    "uptime": _usage("ps", positional="none"),
    "wc": _usage("clLmw", long="bytes chars lines words max-line-length"),
    "which": _usage("a", positional="text"),
    "whoami": _usage(positional="none"),
}
"""Commands that only look, and how they are written when they do."""

_LOG = (
    "abbrev-commit after all author before branches color committer date decorate diff-filter first-parent follow "
    "format graph grep max-count merges minimal name-only name-status no-color no-decorate no-ext-diff no-merges "
    "no-patch no-renames numstat oneline patch pretty reverse shortstat since stat summary tags topo-order unified "
    "until word-diff"
)
_DIFF = f"{_LOG} cached check exit-code ignore-all-space ignore-space-change merge-base quiet staged"
GIT_LOOKING: dict[str, Usage] = {
    "blame": _usage("bcefklnpstw", "L", "date porcelain"),
    "branch": _usage("arv", long="all list remotes show-current verbose", positional="none"),
    "describe": _usage(long="abbrev all always dirty long tags", positional="text"),
    "diff": _usage("abiRuwpz", "GSU", _DIFF),
    "log": _usage("iguwpzc", "nGSU", _LOG, numbers=True),
    "ls-files": _usage("cdmosuzt", long="cached deleted exclude-standard modified others stage"),
    "reflog": _usage("n", long=_LOG, positional="none", numbers=True),
    "remote": _usage("v", long="verbose", positional="none"),
    "rev-parse": _usage(
        long="abbrev-ref git-dir is-inside-work-tree short show-prefix show-toplevel verify symbolic-full-name"
    ),
    "shortlog": _usage("ensc", long=_LOG),
    "show": _usage("iuwpzs", "U", _DIFF),
    "stash list": _usage(positional="none"),
    "status": _usage("bsuvz", long="branch ignored long porcelain short show-stash untracked-files"),
    "tag": _usage("ln", long="list", positional="none"),
}
"""Commands of git that only look. What looks like a path in them is judged as one."""

EDITING: dict[str, Usage] = {
    "cp": _usage("fiRrpnuv", long="force no-clobber recursive verbose"),
    "mkdir": _usage("pv", "m", "parents verbose"),
    "mv": _usage("finuv", long="force no-clobber verbose"),
    "rm": _usage("dfiIRrv", long="force recursive verbose dir"),
    "rmdir": _usage("pv", long="parents verbose"),
    "touch": _usage("acm", "dt", "date no-create"),
}
"""Commands that do no more to files than edits may, where edits are accepted."""

PATH_PROGRAMS = frozenset(
    {
        "cd",
        "find",
        "sed",
        *EDITING,
        *(name for name, usage in LOOKING.items() if usage.positional in {"paths", "text paths"}),
    }
)
"""Programs whose arguments are paths. A rule for such a command does not say where the paths may lead."""

FOLLOWING = frozenset({"diff"})
"""They follow the links in a directory they are given."""

MOVING = frozenset({"cp", "mv"})
"""They can put a link where none was, so that what comes behind them goes elsewhere."""

# `timeout 5 ls` and `command ls` are `ls`.
_TIMEOUT = re.compile(r"[0-9]+(\.[0-9]+)?[smhd]?\Z")
FIND_TESTS = names("-a -and -empty -executable -false -ls -not -o -or -print -print0 -prune -readable -true")
FIND_MORE = names("-writable ! ( ) -xdev -mount -depth -daystart")
FIND_VALUED = names(
    "-amin -atime -cmin -ctime -gid -group -iname -ipath -iregex -links -maxdepth -mindepth -mmin -mtime -name -path "
    "-perm -printf -regex -regextype -size -type -uid -user"
)
FIND_ACTING = names("-delete -exec -execdir -fls -fprint -fprint0 -fprintf -ok -okdir")
_SED_PRINT = re.compile(r"([0-9]+|\$)?(,([0-9]+|\$))?[pd=]\Z|\Z")
_SED_REPLACE = re.compile(
    r"([0-9]+|\$)?(,([0-9]+|\$))?s([/|#,:@])((?!\4)[^\\\n]|\\.)*\4((?!\4)[^\\\n]|\\.)*\4[gipI0-9]*\Z"
)


def unwrapped(words: Sequence[Word]) -> Sequence[Word]:
    """The command behind `timeout N` and `command`, which change nothing about what it does."""
    while len(words) > 1:
        if words[0].raw == "command" and not words[1].raw.startswith("-"):
            words = words[1:]
        elif words[0].raw == "timeout" and len(words) > 2 and _TIMEOUT.match(words[1].raw):
            words = words[2:]
        else:
            break
    return words


def looks(words: Sequence[Word]) -> list[str] | None:
    """The paths that a command which only looks would look at, or None if it may do more."""
    words = unwrapped(words)
    if not words:
        return None
    name, rest = words[0].text, list(words[1:])
    if name == "find":
        return _find_paths(rest)
    if name == "sed":
        return _sed_paths(rest)
    if name == "git":
        return _git_paths(rest)
    if name == "[" and (not rest or rest.pop().text != "]"):
        return None
    usage = LOOKING.get(name)
    return None if usage is None or words[0].raw != name else _paths(usage, rest)


def edits(words: Sequence[Word]) -> list[str] | None:
    """The paths that a command which only edits files would change, or None if it may do more."""
    words = unwrapped(words)
    if not words:
        return None
    if words[0].raw == "sed" and len(words) > 3 and words[1].raw == "-i" and _sed_safe(words[2].text):
        return None if any(word.text.startswith("-") for word in words[3:]) else [word.text for word in words[3:]]
    usage = EDITING.get(words[0].raw)
    found = None if usage is None else _paths(usage, words[1:])
    return found or None


def _paths(usage: Usage, words: Iterable[Word]) -> list[str] | None:
    positional, left, ended = list[str](), list(words), False
    text_given = False
    while left:
        word = left.pop(0)
        text = word.text
        if ended or not text.startswith("-") or text == "-":
            positional.append(text)
        elif text == "--":
            ended = True
        elif text.startswith("--"):
            if text[2:].partition("=")[0] not in usage.long:
                return None
        elif not (usage.numbers and text[1:].isdecimal()):
            taken = _cluster(usage, text[1:], left)
            if taken is None:
                return None
            text_given |= taken == "e"
    return _as_paths(usage.positional, positional, text_given=text_given)


def _cluster(usage: Usage, letters: str, left: list[Word]) -> str | None:
    """Take `-la` or `-n 5`; gives the option that took a value, "" if none did, None if one is not known."""
    for at, letter in enumerate(letters):
        if letter in usage.valued:
            if at == len(letters) - 1:
                if not left:
                    return None
                left.pop(0)
            return letter
        if letter not in usage.flags:
            return None
    return ""


def _as_paths(kind: Positional, positional: list[str], *, text_given: bool) -> list[str] | None:
    match kind:
        case "none":
            return None if positional else []
        case "text":
            return []
        case "format":
            return [] if all(text.startswith("+") for text in positional) else None
        case "text paths":
            return positional if text_given else positional[1:]
        case "paths":
            return [text for text in positional if text != "-"]


def _find_paths(words: Sequence[Word]) -> list[str] | None:
    left = [word.text for word in words]
    paths = list[str]()
    while left and not left[0].startswith(("-", "!", "(")):
        paths.append(left.pop(0))
    while left:
        word = left.pop(0)
        if word in FIND_VALUED and left:
            left.pop(0)
        elif word not in FIND_TESTS and word not in FIND_MORE:
            return None
    return paths


def _sed_paths(words: Sequence[Word]) -> list[str] | None:
    texts = [word.text for word in words]
    while texts and texts[0] in {"-n", "-E", "-r", "-nE", "-nr", "-En", "-rn"}:
        texts.pop(0)
    if not texts or not _sed_safe(texts[0]) or any(text.startswith("-") for text in texts[1:]):
        return None
    return texts[1:]


def _sed_safe(script: str) -> bool:
    return bool(_SED_PRINT.match(script) or _SED_REPLACE.match(script))


def _git_paths(words: Sequence[Word]) -> list[str] | None:
    if not words:
        return None
    name = words[0].raw
    if name == "stash" and len(words) == 2 and words[1].raw == "list":
        return []
    usage = GIT_LOOKING.get(name)
    return None if usage is None else _paths(usage, words[1:])
