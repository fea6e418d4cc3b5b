"""Judges the commands of the Bash tool without judging what they do.

A command asks unless a rule allows it to the letter, or with any plain words behind its beginning. Rules that deny or
ask look for their words anywhere in the text: too much rather than too little. No program counts as harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pilothouse.native.permissions.paths import Matching, guarded, inside, place
from pilothouse.native.permissions.rules import Rule, allows_command, is_plain, prefix_in, wildcard
from pilothouse.native.permissions.verdicts import ALLOW, JSON, Verdict, add_rule

NEEDS_APPROVAL = "No rule allows this command"
DENIED = "Permission to run this command is denied by a rule: {}"
PERHAPS = "A rule denies {}, and what this command runs is known only when it runs"
ASKED = "A rule asks about this command: {}"
ELSEWHERE = "{} leads out of the working directories, or to a guarded file: a rule has to name the whole command"
REMOVES = "This may remove the root, the home directory or the work"
LONGEST_SUGGESTION = 2000
"""Characters of a command that a rule is suggested for."""
MOST_PATHS = 200
"""Words of a command whose links are followed. A longer command asks where a rule speaks of paths."""

# What stands between words, for whoever looks for a word: the shell's operators (`<&-` is one), `=`, `,` and `:`.
_BETWEEN = re.compile(r"(?:[<>]&\s*[0-9]*-?|[\s;&|<>()=,:])+")
_BUILDING = re.compile(r"[$`]")
_GUESSING = re.compile(r"[*?\[\]{}]+")
_MADE_UP = re.compile(r"[$`{]")
_RECURSIVE = re.compile(r"-[a-z]*r|--r", re.IGNORECASE)
_UNQUOTED = str.maketrans("", "", "'\"\\")
_SPACED = str.maketrans("'\"\\", "   ")


def judge_bash(command: str, matching: Matching) -> Verdict:
    """Judge a command as the model gave it. While planning, no rule allows one."""
    texts = _Texts.read(command)
    denied, certain = _find("deny", texts, matching)
    if denied is not None and certain:
        return Verdict("deny", DENIED.format(_shown(denied)))
    if denied is not None:
        return Verdict.ask(PERHAPS.format(_shown(denied)), firm=True)
    asked, _ = _find("ask", texts, matching)
    if asked is not None:
        return Verdict.ask(ASKED.format(_shown(asked)), firm=True)
    allowing = () if matching.planning else matching.rules.speaking("allow", "Bash")
    if any(rule.content == command for rule in allowing if rule.content and prefix_in(rule.content) is None):
        return ALLOW
    if _removes(command, texts, matching):
        return Verdict.ask(REMOVES, firm=True)
    if any(rule.content is None for rule in allowing):
        return ALLOW
    reason, blocked = NEEDS_APPROVAL, None
    for rule in allowing:
        if rule.content is not None and allows_command(rule.content, command):
            blocked = _elsewhere(rule.content, command, matching)
            if blocked is None:
                return ALLOW
            reason = ELSEWHERE.format(blocked)
    return Verdict.ask(reason, *_suggestions(command), blocked=blocked)


def _elsewhere(content: str, command: str, matching: Matching) -> str | None:
    """The first word behind the beginning that a rule allows which, as a path, leads out of the work or is guarded."""
    for word in command.split()[len((prefix_in(content) or "").split()) :]:
        # `-I/usr/include`: a path may stand right behind an option.
        path = word[word.find("/") :] if word.startswith("-") and "/" in word else word
        spot = place(path, matching.workplace)
        climbs = "/.." in path.lstrip("./")  # up again behind a directory, which may be a link
        if climbs or not inside(spot.real, matching.workplace) or guarded(spot, matching.workplace):
            return word
    return None


def _shown(rule: Rule) -> str:
    return f"{rule.tool}({rule.content or '*'})"


def _suggestions(command: str) -> list[JSON]:
    """A rule for exactly this command, unless its text would mean more as a rule."""
    if not command.strip() or command.endswith("*") or len(command) > LONGEST_SUGGESTION:
        return []
    return [add_rule("Bash", command, "localSettings")]


class _Texts(msgspec.Struct, frozen=True):
    """The words of a command, as texts to hold against rules that forbid.

    `known` are the words as they stand there: once without quotes, once with blanks in the place of quotes. `guessed`
    are the same, where each part that the shell fills in is a `*`. `paths` are the words with their slashes.
    """

    known: tuple[Sequence[str], ...]
    guessed: tuple[Sequence[str], ...]
    paths: Sequence[str]

    @classmethod
    def read(cls, command: str) -> _Texts:
        command = command.replace("\\\n", "")
        forms = [command.translate(_UNQUOTED), command.translate(_SPACED)]
        plain = [_GUESSING.sub(" ", _BUILDING.sub(" ", form)) for form in forms]
        return cls(
            tuple([part for word in _BETWEEN.split(form) for part in _parts(word)] for form in plain),
            tuple([_pattern(part) for word in _BETWEEN.split(form) for part in _parts(word)] for form in forms),
            list(dict.fromkeys(word for form in plain for word in _BETWEEN.split(form) if word)),
        )


def _parts(word: str) -> Iterator[str]:
    return (part.casefold() for part in word.split("/") if part)


def _pattern(part: str) -> str:
    """What a part of a word may become: from `$` on anything, at `*`, `?`, brackets and braces anything too."""
    known = _BUILDING.split(part)[0]
    return _GUESSING.sub("*", known) + ("*" if known != part else "")


# to forbid


def _find(behavior: Literal["deny", "ask"], texts: _Texts, matching: Matching) -> tuple[Rule | None, bool]:
    """The rule that speaks of a command, and whether that is certain: one that is certain comes first."""
    perhaps: Rule | None = None
    for rule in matching.rules.speaking(behavior, "Bash"):
        words = _command_words(rule.content or "")
        if any(_holds(words, known) for known in texts.known):
            return rule, True
        if any(_may_hold(words, guessed) for guessed in texts.guessed):
            perhaps = perhaps or rule
    for rule in _path_rules(behavior, matching):
        words = _path_words(rule.content or "")
        if words and any(_holds(words, known) for known in texts.known):
            return rule, True
        if any(_may_hold(words, guessed) for guessed in texts.guessed) or len(texts.paths) > MOST_PATHS:
            perhaps = perhaps or rule
    found = _behind_links(behavior, texts, matching)
    return (found, True) if found is not None else (perhaps, False)


def _command_words(content: str) -> list[str]:
    """The words of a rule for commands: of a path its last part, so that a program is found wherever it lies."""
    words = _BETWEEN.split(content.removesuffix(":*").translate(_UNQUOTED))
    return _patterns(word.rstrip("/").rsplit("/", 1)[-1] for word in words)


def _path_rules(behavior: Literal["deny", "ask"], matching: Matching) -> list[Rule]:
    """The rules for files: what may not be read or changed may not be in a command either."""
    rules = (rule for tool in ("Read", "Edit") for rule in matching.rules.speaking(behavior, tool))
    return [rule for rule in rules if rule.content is not None]


def _path_words(content: str) -> list[str]:
    return _patterns(part for part in content.split("/") if part not in {"~", ".", ".."})


def _patterns(words: Iterable[str]) -> list[str]:
    """The words of a rule that say something."""
    return [pattern for word in words if (pattern := _pattern(word.casefold())).strip("*")]


def _holds(words: Sequence[str], known: Sequence[str]) -> bool:
    """Whether a text has these words, in this order."""
    at = 0
    for part in known:
        if at < len(words) and wildcard(words[at], part):
            at += 1
    return at == len(words)


def _may_hold(words: Sequence[str], guessed: Sequence[str]) -> bool:
    """Whether a text may have these words, in this order, once the shell has filled in what it makes up."""
    at = 0
    for part in guessed:
        if at == len(words):
            break
        word = words[at]
        if "*" in part and (wildcard(part, word.replace("*", "")) or wildcard(word, part.replace("*", ""))):
            return True  # and what it stands for may go on
        if wildcard(word, part):
            at += 1
    return at == len(words)


def _behind_links(behavior: Literal["deny", "ask"], texts: _Texts, matching: Matching) -> Rule | None:
    """The rule for files that speaks of what a word of the command leads to."""
    if not _path_rules(behavior, matching):
        return None
    for word in texts.paths[:MOST_PATHS]:
        if "\0" in word:
            continue
        spot = place(word, matching.workplace)
        for tool in ("Read", "Edit"):
            rule = matching.forbidding(behavior, tool, spot)
            if rule is not None and rule.content is not None:
                return rule
    return None


# what even bypassing permissions asks about


def _removes(command: str, texts: _Texts, matching: Matching) -> bool:
    """Whether it may remove what everything depends on: `rm -r` and `find -delete`, but for plain names in the work."""
    for known in texts.known:
        if "find" in known and ("-delete" in known or "rm" in known):
            return True
        if "rm" in known and (any(map(_RECURSIVE.match, known)) or _MADE_UP.search(command)):
            return not is_plain(command) or any(_is_kept(word, matching) for word in command.split())
    return False


def _is_kept(word: str, matching: Matching) -> bool:
    where = matching.workplace
    real = place(word, where).real
    home = where.env.get("HOME")
    kept = [where.root, where.cwd, *where.directories, *((Path(home),) if home else ())]
    if any(Path(os.path.realpath(folder)).is_relative_to(real) for folder in kept):
        return True
    return not any(real.is_relative_to(os.path.realpath(folder)) for folder in (where.root, *where.directories))
