"""Judges the commands of the Bash tool: every part of one on its own, and all it reads and writes.

Owns how rules, tables and paths come together for a command line. One part that nobody allows makes the whole a
question; one that a rule denies, wherever it hides, denies the whole.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pilothouse.native.permissions import shell
from pilothouse.native.permissions.commands import (
    FIND_ACTING,
    FOLLOWING,
    MOVING,
    PATH_PROGRAMS,
    edits,
    looks,
    unwrapped,
)
from pilothouse.native.permissions.files import judge_edit, judge_read
from pilothouse.native.permissions.paths import Matching, Place, inside, place
from pilothouse.native.permissions.rules import Rule, covers_command
from pilothouse.native.permissions.shell import Redirection, Simple, Unclear, Word, names
from pilothouse.native.permissions.verdicts import ALLOW, JSON, Verdict, command_rule

# Commands that run what stands behind them. To forbid, every tail of such a command is looked at.
WRAPPERS = names(
    "! builtin chroot command do doas else env exec if ionice nice nohup nsenter setsid stdbuf strace sudo then time "
    "timeout unbuffer unshare until watch while xargs"
)
SHELLS = names("bash dash eval ksh sh zsh")
NEEDS_APPROVAL = "No rule allows this command"
CHANGED_THEN_GIT = (
    "This command changes the directory before git runs, which would use the hooks and the configuration found there"
)
TOUCHED_THEN_GIT = "This command may change files before git runs, which could give it other hooks and configuration"
THROUGH_FOLDERS = "A directory may hold links, and this command shows what they lead to: {}"
FOREIGN_REPOSITORY = "There is a bare repository here, and git would use its hooks and configuration"
MOVED_FIRST = "Files are moved before this part runs, so where its paths lead is not known"
BEHIND = "Files are changed in the background or in a pipe, so in which order is not known"
DANGEROUS = "This removes a directory that everything depends on: {}"
CLIMBS = "A path that goes up again behind a directory may follow a link: {}"
MOST_COMMAND = 50_000
"""Characters of the longest command that is judged."""
MOST_PARTS = 100
MOST_CANDIDATES = 2000
MOST_MATCHES = 1000
MOST_SUGGESTIONS = 5
_Question = Callable[[Place, Matching], Verdict]


def judge_bash(command: str, matching: Matching) -> Verdict:
    """Judge a command line as the model gave it. While planning, only looking is allowed, whatever rules allow."""
    if len(command) > MOST_COMMAND:
        reason = "This command is too long to be checked"
        return Verdict("deny", reason) if matching.rules.speaking("deny", "Bash") else Verdict.ask(reason)
    if denied := _spoken_of("deny", command, matching):
        return Verdict("deny", f"Permission to run this command is denied by a rule: Bash({denied.content or '*'})")
    if danger := _dangerous(command, matching):
        return Verdict.ask(danger, firm=True)
    if asked := _spoken_of("ask", command, matching):
        return Verdict.ask(f"A rule asks about this command: Bash({asked.content or '*'})", firm=True)
    allowing = () if matching.planning else matching.rules.speaking("allow", "Bash")
    contents = [rule.content for rule in allowing if rule.content is not None]
    verdict = _by_parts(command, matching, contents)
    if verdict.behavior == "ask" and not verdict.firm and len(contents) < len(allowing):
        return ALLOW
    return verdict


def _by_parts(command: str, matching: Matching, contents: Sequence[str]) -> Verdict:
    try:
        parts = shell.split(command)
    except Unclear as error:
        return ALLOW if command.strip() in contents and _pathless(command) else Verdict.ask(str(error))
    if len(parts) > MOST_PARTS:
        return Verdict.ask("This command has too many parts to be checked")
    judge = _Judge(matching, contents, alone=not any(part.background for part in parts))
    return _together([judge.part(part) for part in parts])


def _pathless(command: str) -> bool:
    """Whether nothing in a command that cannot be told apart is known to go where paths lead."""
    if any(character in command for character in "<>*"):
        return False
    programs = {word.text.rsplit("/", 1)[-1] for words in _loosely(command) for word in words}
    return not programs & PATH_PROGRAMS


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    for behavior in ("deny", "ask"):
        found = [verdict for verdict in verdicts if verdict.behavior == behavior]
        if found:
            suggestions: list[JSON] = []
            for verdict in found:
                suggestions += [each for each in verdict.suggestions if each not in suggestions]
            if len(suggestions) > MOST_SUGGESTIONS or any(not verdict.suggestions for verdict in found):
                suggestions = []  # half of what is needed would only look like enough
            return msgspec.structs.replace(
                found[0], suggestions=tuple(suggestions), firm=any(verdict.firm for verdict in found)
            )
    return ALLOW


class _Judge:
    """Judges the parts of one command line in order: a part may change what the next ones mean."""

    def __init__(self, matching: Matching, contents: Sequence[str], *, alone: bool) -> None:
        self.matching = matching
        self.contents = contents
        # Without `&` anywhere, so that one part has ended before the next begins.
        self.alone = alone
        # Where the part may run: after `cd x || y` that is one of several places.
        self.bases: list[Path] = [matching.workplace.cwd]
        self.changed = False
        self.moved = False
        self.touched = False

    def part(self, part: Simple) -> Verdict:
        verdict = self._words(part)
        if verdict.behavior == "allow":
            streams = [self._stream(each, part) for each in part.redirections if not each.harmless]
            verdict = _together([verdict, *streams])
        words = unwrapped(part.words)
        self.moved |= bool(words) and words[0].text in MOVING
        self.touched |= looks(words) is None or any(each.writes and not each.harmless for each in part.redirections)
        return verdict

    def _words(self, part: Simple) -> Verdict:
        name = unwrapped(part.words)[0].text if part.words else ""
        if name == "cd":
            return self._cd(part)
        verdict = None
        if not part.assignments and not any(word.expands for word in part.words):
            verdict = self._by_table(part, name)
            if verdict is not None and (verdict.behavior != "ask" or verdict.firm):
                return verdict
        if not part.words:
            # Redirections are judged on their own; a variable holds for all that comes behind it.
            return Verdict.ask(NEEDS_APPROVAL) if part.assignments else ALLOW
        ruled = self._by_rule(part, name)
        within = self._within(part, name, exactly=ruled == "exactly")
        if ruled and within.behavior == "allow":
            return ALLOW
        if within.behavior != "ask":
            return verdict or Verdict.ask(NEEDS_APPROVAL, command_rule(part.text))
        more = (command_rule(part.text), *within.suggestions) if within.suggestions else ()
        return msgspec.structs.replace(within, suggestions=more)

    def _by_rule(self, part: Simple, name: str) -> Literal["exactly", "broadly"] | None:
        """How a rule speaks of these words, if one does."""
        if part.text in (content for content in self.contents if "*" not in content):
            return "exactly"
        if name == "find" and any(word.text in FIND_ACTING for word in part.words):
            return None
        if any(word.expands for word in part.words):
            return None
        for content in self.contents:
            if part.assignments and not content.startswith(part.assignments[0].raw + " "):
                continue  # a variable can make another program of it
            if covers_command(content, part.text):
                return "broadly"
        return None

    def _within(self, part: Simple, name: str, *, exactly: bool) -> Verdict:
        """Whether a command whose paths are known stays where it may be: a rule for its words says nothing of them."""
        if name not in PATH_PROGRAMS:
            return ALLOW
        words = self._expanded(part.words)
        changed, seen = (edits(words), looks(words)) if words is not None else (None, None)
        if changed is not None:
            if not self.alone:
                return Verdict.ask(BEHIND)
            return self._paths(changed, part, _judge_accepted, blamed="")
        if seen is not None:
            return self._paths(seen, part, judge_read, blamed="")
        return ALLOW if exactly else Verdict.ask(NEEDS_APPROVAL)

    def _by_table(self, part: Simple, name: str) -> Verdict | None:
        """What the tables say, or None if they do not know the command."""
        words = self._expanded(part.words)
        if words is None:
            return None
        seen = looks(words)
        if seen is not None:
            if name == "git" and (reason := self._git()):
                return Verdict.ask(reason)
            folder = next((text for text in seen if name in FOLLOWING and self._is_folder(text)), None)
            if folder is not None:
                return Verdict.ask(THROUGH_FOLDERS.format(folder), command_rule(part.text))
            return self._paths(seen, part, judge_read, blamed=part.text)
        changed = edits(words) if self.matching.accepting else None
        if changed is None:
            return None
        if part.piped or not self.alone:
            return Verdict.ask(BEHIND)
        return self._paths(changed, part, judge_edit, blamed=part.text)

    def _paths(self, texts: Sequence[str], part: Simple, judge: _Question, *, blamed: str) -> Verdict:
        if texts and self.moved:
            return Verdict.ask(MOVED_FIRST)
        found: list[Verdict] = []
        for text in texts:
            if climbs(text):
                return Verdict.ask(CLIMBS.format(text), blocked=text)
            found += [judge(spot, self.matching) for spot in self._places(text)]
        together = _together(found)
        if blamed and together.behavior == "ask" and together.suggestions:
            return msgspec.structs.replace(together, suggestions=(command_rule(blamed), *together.suggestions))
        return together

    def _stream(self, stream: Redirection, part: Simple) -> Verdict:
        if stream.writes and (self.moved or not self.alone):
            return Verdict.ask(MOVED_FIRST if self.moved else NEEDS_APPROVAL)
        text = stream.target.text
        question = judge_edit if stream.writes else judge_read
        return self._paths([f"./{text}" if text.startswith("~") else text], part, question, blamed="")

    def _is_folder(self, text: str) -> bool:
        return any(spot.real.is_dir() for spot in self._places(text))

    def _places(self, text: str) -> Iterator[Place]:
        for base in self.bases:
            yield place(text, self.matching.workplace, base)

    def _cd(self, part: Simple) -> Verdict:
        words = self._expanded(part.words[1:]) if part.words[0].raw == "cd" else None
        if words is None or part.assignments or len(words) != 1 or words[0].text.startswith("-"):
            return Verdict.ask("Where this changes the directory to is not known before it runs")
        text = words[0].text
        if climbs(text) or self.moved:
            return Verdict.ask(CLIMBS.format(text), blocked=text)
        spots = list(self._places(text))
        if any(spot.plain != spot.real for spot in spots):
            return Verdict.ask(f"This changes the directory through a link: {text}", blocked=text)
        # CDPATH would take a plain name elsewhere.
        if self.matching.workplace.env.get("CDPATH") and not text.startswith((".", "/")):
            return Verdict.ask("CDPATH is set, so where this changes the directory to is not known")
        verdict = _together([judge_read(spot, self.matching) for spot in spots])
        self.changed = True
        self.bases = list(dict.fromkeys([*self.bases, *(spot.real for spot in spots)]))
        return verdict

    def _git(self) -> str | None:
        if self.changed:
            return CHANGED_THEN_GIT
        if self.touched:
            return TOUCHED_THEN_GIT
        where = self.matching.workplace
        for folder in (where.cwd, *where.cwd.parents):
            if (folder / "HEAD").exists() and (folder / "objects").exists():
                return FOREIGN_REPOSITORY
            if folder == where.root or (folder / ".git").exists():
                break
        return None

    def _expanded(self, words: Sequence[Word]) -> Sequence[Word] | None:
        """The words as the program gets them: file names in place of patterns; None if that is not known."""
        found: list[Word] = []
        for word in words:
            if word.expands or (word.home and word.raw != "~" and not word.raw.startswith("~/")):
                return None
            if word.glob:
                matches = self._matches(word.text) if not self.changed and not self.moved else None
                if matches is None:
                    return None
                found += [Word(name, name) for name in matches]
            elif word.text.startswith("~") and not word.home:
                found.append(Word(f"./{word.text}", word.raw))
            else:
                found.append(word)
        return found

    def _matches(self, pattern: str) -> list[str] | None:
        if any(character in pattern for character in "[]\\") or pattern.startswith(("~", "-")) or climbs(pattern):
            return None
        folder = os.path.dirname(pattern.split("*")[0].split("?")[0])  # noqa: PTH120 - a text, which may be empty
        if not inside(place(folder or ".", self.matching.workplace).real, self.matching.workplace):
            return None
        found: list[str] = []
        for name in glob.iglob(pattern, root_dir=self.matching.workplace.cwd):  # noqa: PTH207 - relative names
            found.append(name)
            if len(found) > MOST_MATCHES or name.startswith("-"):
                return None
        return found or [pattern]


def _judge_accepted(spot: Place, matching: Matching) -> Verdict:
    """May this be changed, when somebody allowed the command that does it?"""
    return judge_edit(spot, msgspec.structs.replace(matching, accepting=not matching.planning))


def climbs(path: str) -> bool:
    """Whether a path goes up again behind a directory, where a link may lead elsewhere."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    while parts and parts[0] == ".." and not path.startswith("/"):
        parts.pop(0)
    return ".." in parts


# to forbid


def _spoken_of(behavior: Literal["deny", "ask"], command: str, matching: Matching) -> Rule | None:
    speaking = matching.rules.speaking(behavior, "Bash")
    if not speaking:
        return None
    whole = next((rule for rule in speaking if rule.content is None), None)
    if whole:
        return whole
    candidates = _candidates(command)
    if candidates is None:
        return speaking[0]  # too much to look at is not a way past it
    found = (rule for rule in speaking if any(covers_command(rule.content or "", text) for text in candidates))
    return next(found, None)


def _candidates(command: str) -> list[str] | None:
    """All that the command might run, as texts to hold against rules that forbid. Too much rather than too little.

    None if there is more than can be looked at.
    """
    found = dict.fromkeys([command.strip()])
    pending = [[word.text for word in words] for words in _loosely(command)]
    looked_at = 0
    while pending:
        looked_at += 1
        if looked_at + len(pending) > MOST_CANDIDATES:
            return None
        words = pending.pop()
        while words and "=" in words[0] and words[0].split("=")[0].isidentifier():
            words = words[1:]
        if not words:
            continue
        words[0] = words[0].rsplit("/", 1)[-1]
        found.setdefault(" ".join(words))
        if words[0] in WRAPPERS:
            pending += [words[at:] for at in range(1, len(words))]
        if words[0] in SHELLS:
            pending += [[word.text for word in inner] for text in words[1:] for inner in _loosely(text)]
        if words[0] == "find":
            pending += [words[at + 1 :] for at, word in enumerate(words) if word.startswith(("-exec", "-ok"))]
    return list(found)


def _loosely(command: str) -> Iterator[tuple[Word, ...]]:
    """The commands in it: exactly, if it can be told apart, and otherwise whatever looks like one."""
    try:
        for part in shell.split(command):
            yield part.words
            yield tuple(word for word in (*part.assignments, *part.words))
    except Unclear:
        for piece in shell.fragments(command):
            plain = piece.translate(str.maketrans("", "", "'\"\\"))
            yield tuple(Word(text, text) for text in plain.split())


def _dangerous(command: str, matching: Matching) -> str | None:
    """Whether it removes the root, the home directory or a directory of the work."""
    where = matching.workplace
    home = where.env.get("HOME")
    kept = {where.root, where.cwd, *map(Path, (home,) if home else ()), *where.directories}
    candidates = _candidates(command)
    if candidates is None:
        return "This command has too many parts to be checked"
    for text in candidates:
        words = text.split()
        if words[:1] not in (["rm"], ["rmdir"]):
            continue
        for target in words[1:]:
            bare = target.removesuffix("/*").removesuffix("*") or "/"
            if target.startswith("-") or "\0" in bare:
                continue
            real = place(bare.replace("$HOME", "~", 1) if bare.startswith("$HOME") else bare, where).real
            if len(real.parts) <= 2 or any(folder == real or real in folder.parents for folder in kept):
                return DANGEROUS.format(target)
    return None
