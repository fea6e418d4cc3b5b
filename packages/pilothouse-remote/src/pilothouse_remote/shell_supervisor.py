r"""The supervisor of a child elsewhere: a script for any POSIX shell, and the stream that it reads. Pure.

`CommandTransport` starts `sh -c LOADER` over there, by ssh, a container engine or kubectl. All else travels by standard
input, so that no key is on a command line::

    SIZE \n SCRIPT                      the supervisor itself
    f SIZE NAME \n CONTENT              a private file
    s SIZE \n COMMANDS                  variables, directory and arguments of the child, as shell commands
    d SIZE \n BYTES                     input of the child
    e \n                                end of its input
    p \n                                a sign of life

A frame is read with `read` for its line and `dd` for its bytes: neither reads a byte too many.

The supervisor answers `ID ready` or `ID fail REASON WORDS` on standard output, which belongs to the child afterwards.
On standard error it writes lines of its own, `\x1e ID beat` each second and `\x1e ID exit CODE` at the end.

There are three shells, because each of them waits for something else, and each may be killed. The first one waits for
the child. The relay waits for frames; the end of the stream means that nobody needs the child any more. The watch ends
the child when neither frames nor signs of life arrive, as on a dead network, or when nobody reads its own.

On Linux, where the place has `grep`, the child has a mark by which each of them finds what it has detached: see
`marks`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping

from pilothouse.errors import CLINotFoundError, CLIStartError, ProcessError, UsageError
from pilothouse.options import TABLE, Invocation
from pilothouse.transports.marks import make_mark

FRAME_BYTES = 256 * 1024
"""Bytes of input in one frame."""
SILENCE_SECONDS = 7
"""Seconds without a frame after which the watch ends the child."""
BUSY_SECONDS = 30
"""The same while the child does not read its input: the frames behind that wait with it."""
LOADER = 'IFS= read -r n && ph_s=$(dd bs="$n" count=1 iflag=fullblock 2>/dev/null) && eval "$ph_s"'
"""Reads the script, and runs it. `ph_s` keeps its text for the other two shells."""
_SCRIPT = r"""
ph_mask=$(umask)
umask 077
ph_say() { printf '\036%s %s\n' "$ph_id" "$*" >&2; }
ph_remove() { trap '' HUP INT TERM; rm -rf -- "$ph_d"; } # a signal to the group must not end `rm`
ph_fail() { ph_remove; printf '%s fail %s\n' "$ph_id" "$*"; exit 1; }
ph_read() { dd bs="$ph_n" count=1 iflag=fullblock 2>/dev/null; }
ph_signal() { { kill -s "$1" -- "-$2" || kill -s "$1" "$2"; } 2>/dev/null; }
ph_sleep() { { sleep "$1" || sleep 1; } </dev/null >/dev/null 2>&1; }
ph_gone() {
  ph_i=0
  while kill -s 0 "$ph_c" 2>/dev/null; do
    [ "$ph_i" -lt "$1" ] || return 1
    ph_i=$((ph_i + 1))
    ph_sleep 0.1
  done
}
ph_marked() { # signals what has the mark of the child, and keeps what it found
  ph_found=$(grep -l "^Max resident set  *$ph_bytes " /proc/[0-9]*/limits 2>/dev/null)
  for ph_p in $ph_found; do
    ph_p=${ph_p#/proc/}
    kill -s "$1" "${ph_p%/limits}" 2>/dev/null
  done
}
ph_end_detached() {
  [ -n "$ph_bytes" ] || return 0
  ph_marked TERM
  ph_i=0
  while [ -n "$ph_found" ] && [ "$ph_i" -lt 10 ]; do
    ph_sleep 0.1
    ph_i=$((ph_i + 1))
    if [ "$ph_i" -lt 6 ]; then ph_marked 0; else ph_marked KILL; fi
  done
}
ph_end() {
  ph_gone 5 || { ph_signal TERM "$ph_c"; ph_gone 20; }
  ph_signal KILL "$ph_c"
  ph_end_detached
  ph_remove
}
ph_copy() {
  ph_p=${CLAUDE_CONFIG_DIR:-${HOME-}/.claude}/projects/$1
  ph_n=$(wc -l <"$ph_d/transcripts/$1")
  [ -e "$ph_p" ] && [ "$(wc -l <"$ph_p")" -ge "$ph_n" ] && return
  mkdir -p "${ph_p%/*}" && cp "$ph_d/transcripts/$1" "$ph_p" || ph_fail files "$ph_p"
}
ph_own=
if command -v setsid >/dev/null 2>&1; then ph_own=setsid; else set -m; fi 2>/dev/null

case ${1-} in
relay)
  ph_d=$2 ph_c=$3 ph_i=0
  trap '' HUP INT TERM QUIT PIPE
  while IFS=' ' read -r ph_op ph_n; do
    ph_i=$((ph_i + 1))
    case $ph_op in
      d) echo "busy $ph_i" >"$ph_d/beat"
         ph_read >&5 ;;
      e) exec 5>&- ;;
    esac
    echo "$ph_i" >"$ph_d/beat"
  done
  exec 5>&-
  ph_end
  exit ;;
watch)
  ph_d=$2 ph_c=$3 ph_last= ph_quiet=0
  trap '' HUP INT TERM QUIT PIPE
  while ph_sleep 1 && ph_say beat && [ -d "$ph_d" ]; do
    IFS= read -r ph_now <"$ph_d/beat"
    ph_quiet=$((ph_quiet + 1))
    [ "$ph_now" = "$ph_last" ] || ph_quiet=0
    ph_last=$ph_now
    case $ph_now in busy*) ph_limit=$ph_busy ;; *) ph_limit=$ph_silence ;; esac
    [ "$ph_quiet" -lt "$ph_limit" ] || break
  done
  ph_signal KILL "$4"
  ph_end
  exit ;;
esac

trap : HUP INT TERM
trap '' PIPE
ph_path=$PATH
ph_d=${TMPDIR:-/tmp}/pilothouse-$ph_id
mkdir -m 700 "$ph_d" 2>/dev/null && mkfifo "$ph_d/in" && echo 0 >"$ph_d/beat" || ph_fail files "$ph_d"
ph_t=
while [ -z "$ph_t" ]; do
  IFS=' ' read -r ph_op ph_n ph_name || { ph_remove; exit 1; }
  case $ph_op in
    f) case $ph_name in */*) mkdir -p "$ph_d/${ph_name%/*}" ;; esac
       : >"$ph_d/$ph_name"
       [ "$ph_n" = 0 ] || ph_read >"$ph_d/$ph_name" || ph_fail files "$ph_d" ;;
    s) ph_t=$(ph_read) && [ -n "$ph_t" ] || ph_fail files "$ph_d" ;;
  esac
done
eval "$ph_t"
umask "$ph_mask"
ph_x=$(command -v -- "$ph_cli") ||
  for ph_x in "${HOME-}/.local/bin/$ph_cli" "${HOME-}/.claude/local/$ph_cli" "/usr/local/bin/$ph_cli"; do
    [ ! -x "$ph_x" ] || break
  done
[ -x "$ph_x" ] || ph_fail cli "$ph_cli"
exec 3<&0 7<>"$ph_d/in"
exec 6<"$ph_d/in" 5>"$ph_d/in" 7>&-
printf '%s ready\n' "$ph_id"
(
  [ -z "$ph_kib" ] || ulimit -S -m "$ph_kib" 2>/dev/null
  exec $ph_own "$ph_x" "$@"
) <&6 3<&- 5>&- 6<&- &
ph_c=$!
exec >/dev/null 6<&- </dev/null
PATH=$ph_path
$ph_own sh -c "$ph_s" pilothouse relay "$ph_d" "$ph_c" <&3 3<&- 2>/dev/null &
ph_r=$!
exec 3<&- 5>&-
$ph_own sh -c "$ph_s" pilothouse watch "$ph_d" "$ph_c" "$ph_r" &
ph_w=$!
while wait "$ph_c"; ph_code=$?; kill -s 0 "$ph_c" 2>/dev/null; do
  ph_signal TERM "$ph_c"
done
ph_signal KILL "$ph_c"
ph_end_detached
ph_remove # before the others end, because they do it when this shell is killed
ph_signal KILL "$ph_r"
ph_signal KILL "$ph_w"
wait "$ph_r" "$ph_w" 2>/dev/null
ph_remove # again: the relay may have written a file meanwhile
ph_say "exit $ph_code"
exit "$ph_code"
"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE_SUFFIX = re.compile(r"[.A-Za-z0-9]*\Z")
_PATH_FLAGS = tuple(f"--{flag}=" for option in TABLE.values() for flag, use in option.flags.items() if use == "path")
_HOME_PLACES = {
    "HOME": "",
    "CLAUDE_CONFIG_DIR": "/.claude",
    "XDG_CACHE_HOME": "/.cache",
    "XDG_CONFIG_HOME": "/.config",
    "XDG_DATA_HOME": "/.local/share",
    "XDG_STATE_HOME": "/.local/state",
}

_FAILURES: Mapping[str, tuple[type[ProcessError], str]] = {
    "cli": (CLINotFoundError, "there is no {words} over there, on PATH or in its usual places; install it, or name it"),
    "directory": (CLIStartError, "the directory {words} does not exist over there, or may not be entered"),
    "files": (
        CLIStartError,
        "no private file could be written to {words} over there; look at TMPDIR and the space there",
    ),
}


def map_path(path: str, mounts: Mapping[str, str]) -> str:
    """Return where a path of this machine is over there.

    Args:
        path: an absolute path, or a path over there.
        mounts: absolute directories here, and where they are over there.
    """
    clean = os.path.normpath(path)
    for here in sorted(mounts, key=len, reverse=True):
        if clean == here or clean.startswith(here.rstrip("/") + "/"):
            return (mounts[here].rstrip("/") + clean[len(here.rstrip("/")) :]) or "/"
    return path


def encode_input(data: bytes) -> bytes:
    """Return the frames that carry input of the child."""
    if len(data) <= FRAME_BYTES:
        return b"d %d\n%b" % (len(data), data) if data else b""
    return b"".join(encode_input(data[at : at + FRAME_BYTES]) for at in range(0, len(data), FRAME_BYTES))


def encode_start(
    invocation: Invocation,
    ident: str,
    *,
    cli: str,
    directory: str | None,
    mounts: Mapping[str, str],
    transcripts: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return what the loader and the supervisor read before the input of the child.

    Args:
        invocation: how to start the child.
        ident: names the supervisor in its answers and its directory.
        cli: name or path of the executable over there.
        directory: the working directory over there, if the invocation has none.
        mounts: see `map_path`.
        transcripts: paths below the folder `projects` of the CLI's configuration, and their content; a file over
            there that has as many lines stays.

    Raises:
        UsageError: a variable or file has a name that a shell cannot hold, or a value contains a NUL character.
    """
    mark = None if invocation.keep_detached else make_mark()
    limits = f"ph_kib={mark.kib} ph_bytes={mark.limit}" if mark else "ph_kib= ph_bytes="
    script = f"ph_id={ident} ph_silence={SILENCE_SECONDS} ph_busy={BUSY_SECONDS} {limits}{_SCRIPT}".encode()
    frames = [b"%d\n%b" % (len(script), script)]
    flags: list[str] = []
    for number, file in enumerate(invocation.files):
        if not _FILE_SUFFIX.match(file.suffix):
            raise UsageError(f"a private file cannot end in {file.suffix!r}")
        name = f"{number}{file.suffix}"
        frames.append(b"f %d %b\n%b" % (len(file.content), name.encode(), file.content))
        flags.append(f'{shlex.quote("--" + file.flag)}="$ph_d"/{name}')
    lines = [*_make_environment(invocation), f"ph_cli={shlex.quote(cli)}"]
    place = directory if invocation.cwd is None else map_path(invocation.cwd, mounts)
    if place is not None:
        word = shlex.quote(place)
        lines.append(f"CDPATH= cd -- {word} 2>/dev/null || ph_fail directory {word}")
    for name, content in (transcripts or {}).items():
        frames.append(b"f %d transcripts/%b\n%b" % (len(content), os.fsencode(name), content))
        lines.append(f"ph_copy {shlex.quote(name)}")
    arguments = [shlex.quote(_map_argument(word, mounts)) for word in invocation.argv]
    lines.append(" ".join(["set --", *arguments, *flags, *map(shlex.quote, invocation.trailing_args)]))
    text = os.fsencode("\n".join(lines))
    if b"\0" in text:
        raise UsageError("an argument, a variable or the working directory contains a NUL character; remove it")
    return b"".join([*frames, b"s %d\n%b" % (len(text), text)])


# Those that every child of pilothouse gets.
_OWN_VARIABLES = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_STARTUP_FAILURE_RESULTS")


def _make_environment(invocation: Invocation) -> Iterable[str]:
    own = {"CLAUDECODE": None, **{name: invocation.env.get(name) for name in _OWN_VARIABLES}}
    if invocation.is_isolated:
        yield 'mkdir -p "$ph_d/home/.claude"'
        yield from (f'export {name}="$ph_d/home{place}"' for name, place in _HOME_PLACES.items())
    for name, value in {**own, **invocation.explicit_env}.items():
        if not _VARIABLE.match(name):
            raise UsageError(f"the variable {name!r} cannot be sent: a name has only letters, digits and '_'")
        yield f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"


def _map_argument(word: str, mounts: Mapping[str, str]) -> str:
    flag = next((flag for flag in _PATH_FLAGS if word.startswith(flag)), None)
    return word if flag is None else flag + map_path(word[len(flag) :], mounts)


class ControlLines:
    """Takes the supervisor's lines out of standard error.

    Args:
        ident: of the supervisor.

    Attributes:
        exit_code: of the child, once reported.
        count: lines so far; each is a sign of life.
    """

    def __init__(self, ident: str) -> None:
        self._mark = f"\x1e{ident} ".encode()
        self._rest = b""
        self.exit_code: int | None = None
        self.count = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns what the child wrote of them."""
        shown, *lines = (self._rest + data).split(self._mark)
        out = [shown]
        self._rest = b""
        for number, line in enumerate(lines, 1):
            words, newline, after = line.partition(b"\n")
            if not newline and number == len(lines):
                self._rest = self._mark + words
            self.count += bool(newline)
            # A line that broke off with the connection goes on with what ssh says about that.
            if newline and words.startswith(b"exit ") and words[5:].isdigit():
                self.exit_code = int(words[5:])
            out.append(after)
        if not self._rest:  # the last bytes may begin a mark
            cut = next((n for n in range(len(self._mark) - 1, 0, -1) if out[-1].endswith(self._mark[:n])), 0)
            out[-1], self._rest = out[-1][: len(out[-1]) - cut], out[-1][len(out[-1]) - cut :]
        return b"".join(out)


def read_answer(ident: str, output: bytes) -> tuple[bytes, bytes] | None:
    """Find the answer of the supervisor in its output, behind what a login script may have written.

    Returns:
        The answer and the bytes after it; None while there is no whole answer yet.
    """
    mark = ident.encode() + b" "
    at = output.find(mark)
    line, newline, rest = output[at + len(mark) :].partition(b"\n")
    return (line, rest) if at >= 0 and newline else None


def make_answer_error(answer: bytes, command: str) -> ProcessError:
    """Build the error for the answer `fail REASON WORDS`."""
    _, reason, words = (answer.decode("utf-8", "replace") + "  ").split(" ", 2)
    kind, text = _FAILURES.get(reason, (CLIStartError, "the supervisor failed: {words}"))
    return kind(f"through `{command}`: {text.format(words=words.strip())}")
