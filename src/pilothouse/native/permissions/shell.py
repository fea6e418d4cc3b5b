r"""What a shell command would run, as far as that can be told before it runs.

Owns the split of a command line into simple commands. It accepts a small part of the shell's language and says of the
rest that it cannot be checked: whoever decides then asks. Pure: knows no rule, no path and no file.

The tokens, and what becomes of each::

    word  'word'  "word"  \c            parts of a word; a `$` in it is an expansion that nobody can judge
    ;  &&  ||  |  |&  &  newline        end one simple command and begin the next
    >  >>  >|  <  &>  &>>  2>  2>&1     redirections, kept with the command they belong to
    # at the beginning of a word        a comment, to the end of the line
    `  $(  ${  $'  $"  <(  >(  <<  (  )  {  }  and reserved words       cannot be checked
"""

from __future__ import annotations

import re
import unicodedata

import msgspec

OPERATORS = ("&&", "||", "|&", ";;", ";", "|", "&", "\n")
# Longest first: `&>>` must not be read as `&`.
REDIRECTIONS = ("&>>", "<<<", "<<-", "&>", ">>", ">&", "<&", ">|", "<>", "<<", ">", "<")


def names(text: str) -> frozenset[str]:
    """The words of a text, for the tables of this room."""
    return frozenset(text.split())


HERE = frozenset({"<<<", "<<-", "<<"})
RESERVED = names("! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while")
SPACE = " \t"
GLOB = frozenset("*?[")
UNCLEAR_DOLLARS = {
    "(": "What a command inside this one does is not known before it runs",
    "{": "What `${...}` stands for is not known before this runs",
    "'": "Text with escapes in $'...' is not read here",
    '"': 'Text in $"..." is not read here',
    "[": "What `$[...]` stands for is not known before this runs",
}
UNCLEAR = {
    "`": "What a command inside this one does is not known before it runs",
    "(": "Subshells and functions are not read here",
    ")": "Subshells and functions are not read here",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=")
_DIGITS = re.compile(r"[0-9]+\Z")


class Unclear(Exception):  # noqa: N818 - a verdict, not a failure
    """The command cannot be told apart before it runs; the message says why."""


class Word(msgspec.Struct, frozen=True):
    """One word: `text` as the program gets it, `raw` as it was written.

    `expands` is True when the shell would put in something that is not known here, `glob` when it would look for files.
    """

    text: str
    raw: str
    expands: bool = False
    glob: bool = False
    home: bool = False


class Redirection(msgspec.Struct, frozen=True):
    """A redirection: its operator and the word behind it."""

    operator: str
    target: Word

    @property
    def writes(self) -> bool:
        """Whether it may create or change a file."""
        return ">" in self.operator

    @property
    def harmless(self) -> bool:
        """Whether it only copies a descriptor or throws output away."""
        if self.operator in {">&", "<&"} and re.fullmatch(r"[0-9]+-?|-", self.target.raw):
            return True
        return self.target.raw == "/dev/null"


class Simple(msgspec.Struct, frozen=True):
    """One simple command.

    `assignments` stand before it (`A=1 ls`), `text` is how it was written, without redirections and with one space
    between words: what rules are compared with. `background` is True when `&` ends it, `piped` when it is an end of a
    pipe: both run in a shell of their own.
    """

    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    background: bool = False
    piped: bool = False

    @property
    def text(self) -> str:
        """How it was written, without redirections."""
        return " ".join(word.raw for word in (*self.assignments, *self.words))


def split(command: str) -> tuple[Simple, ...]:
    """Split a command line into the simple commands that it runs.

    Raises:
        Unclear: something in it decides only when it runs what is run.
    """
    _refuse_hidden(command)
    return _Splitter(command).run()


def _refuse_hidden(command: str) -> None:
    for character in command:
        if character in "\n\t ":
            continue
        category = unicodedata.category(character)
        if category in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            raise Unclear("There are control characters or invisible ones in it")
        if category == "Zs":
            raise Unclear("There are spaces in it that the shell takes for letters")


class _Splitter:
    """Reads one command line from left to right, once."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.at = 0
        self.found: list[Simple] = []
        self.words: list[Word] = []
        self.redirections: list[Redirection] = []
        self.piped = False

    def run(self) -> tuple[Simple, ...]:
        while self.at < len(self.command):
            character = self.command[self.at]
            if character in SPACE:
                self.at += 1
            elif character == "#":
                end = self.command.find("\n", self.at)
                self.at = len(self.command) if end < 0 else end
            elif redirection := self._starting(REDIRECTIONS):
                self._redirect(redirection, "")
            elif operator := self._starting(OPERATORS):
                self._operate(operator)
            else:
                self._take()
        self._end("")
        return tuple(self.found)

    def _starting(self, table: tuple[str, ...]) -> str | None:
        return next((token for token in table if self.command.startswith(token, self.at)), None)

    def _take(self) -> None:
        word = self._word()
        # `2>file`: digits that touch a redirection are its descriptor, not a word.
        if _DIGITS.match(word.raw) and (redirection := self._starting(REDIRECTIONS)) and redirection[0] in "<>":
            self._redirect(redirection, word.raw)
            return
        self.words.append(word)

    def _redirect(self, operator: str, descriptor: str) -> None:
        if operator in HERE:
            raise Unclear("Here-documents and here-strings are not read here")
        self.at += len(operator)
        while self.at < len(self.command) and self.command[self.at] in SPACE:
            self.at += 1
        if self.at >= len(self.command) or self._starting(OPERATORS) or self._starting(REDIRECTIONS):
            raise Unclear("A redirection without a target")
        word = self._word()
        if word.expands or word.glob or word.home:
            raise Unclear("Where a redirection leads is not known before this runs")
        self.redirections.append(Redirection(operator, word))

    def _operate(self, operator: str) -> None:
        if operator == ";;":
            raise Unclear("`case` is not read here")
        self.at += len(operator)
        self._end(operator)
        self.piped = operator in {"|", "|&"}

    def _end(self, operator: str) -> None:
        words, redirections = tuple(self.words), tuple(self.redirections)
        self.words, self.redirections = [], []
        if not words and not redirections:
            return
        count = 0
        while count < len(words) and _ASSIGNMENT.match(words[count].raw):
            count += 1
        assignments, words = words[:count], words[count:]
        if words:
            _check_first(words[0])
        piped = self.piped or operator in {"|", "|&"}
        self.found.append(Simple(words, assignments, redirections, background=operator == "&", piped=piped))

    def _word(self) -> Word:
        start, text = self.at, list[str]()
        expands = glob = False
        home = self.command[start] == "~"
        while self.at < len(self.command):
            character = self.command[self.at]
            if character in SPACE or character in "\n;|&<>":
                break
            if character in UNCLEAR:
                raise Unclear(UNCLEAR[character])
            if character == "'":
                text.append(self._single())
            elif character == '"':
                piece, inside = self._double()
                text.append(piece)
                expands |= inside
            elif character == "\\":
                text.append(self._escaped())
            elif character == "$":
                expands |= self._dollar()
                text.append("$")
            else:
                if character in "{}" and self.command[start : self.at + 1] != "{}":
                    self._brace(start)
                glob |= character in GLOB
                text.append(character)
                self.at += 1
        raw = self.command[start : self.at]
        return Word("".join(text), raw, expands, glob and raw != "[", home)

    def _brace(self, start: int) -> None:
        # `{}` alone is what find and xargs put names into; every other brace may expand or group.
        if self.command[start : start + 2] == "{}" and self.command[start + 2 : start + 3] in {"", " ", "\n", ";"}:
            return
        raise Unclear("Braces are not read here")

    def _single(self) -> str:
        end = self.command.find("'", self.at + 1)
        if end < 0:
            raise Unclear("Unclosed quotes")
        text, self.at = self.command[self.at + 1 : end], end + 1
        return text

    def _double(self) -> tuple[str, bool]:
        text, expands = list[str](), False
        self.at += 1
        while self.at < len(self.command):
            character = self.command[self.at]
            if character == '"':
                self.at += 1
                return "".join(text), expands
            if character == "`":
                raise Unclear(UNCLEAR["`"])
            if character == "$":
                expands |= self._dollar(quoted=True)
                text.append("$")
                continue
            if character == "\\" and self.command[self.at + 1 : self.at + 2] in {"$", "`", '"', "\\", "\n"}:
                text.append(self._escaped())
                continue
            text.append(character)
            self.at += 1
        raise Unclear("Unclosed quotes")

    def _escaped(self) -> str:
        after = self.command[self.at + 1 : self.at + 2]
        if not after:
            raise Unclear("A backslash at the end")
        if after in " \t\n":
            raise Unclear("A backslash before a space or a line end is not read here")
        self.at += 2
        return after

    def _dollar(self, *, quoted: bool = False) -> bool:
        """Whether the `$` here expands; what begins a command or a program in it is refused."""
        after = self.command[self.at + 1 : self.at + 2]
        self.at += 1
        if quoted and after in {"'", '"'}:
            return False  # a plain dollar at the end of a quoted text
        if after in UNCLEAR_DOLLARS:
            raise Unclear(UNCLEAR_DOLLARS[after])
        return bool(after) and (after.isalnum() or after in "_@*#?-$!")


def _check_first(word: Word) -> None:
    if word.raw in RESERVED:
        raise Unclear(f"`{word.raw}` is not read here")
    if word.expands or word.glob or word.home:
        raise Unclear("Which program this is is not known before it runs")


_LOOSE = re.compile(r"[\n;|&(){}`\r]|\$\(|<\(|>\(")


def fragments(command: str) -> tuple[str, ...]:
    """Everything in `command` that could be a command of its own, quoted or not: for rules that forbid.

    Finds too much rather than too little: text in quotes counts too, because a shell may be told to run it.
    """
    return tuple(piece for piece in (part.strip() for part in _LOOSE.split(command)) if piece)
