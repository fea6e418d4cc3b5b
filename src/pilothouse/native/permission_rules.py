"""What the content of a permission rule matches (commands, paths, hosts), and which paths may be read or changed.

Owns the working directories, the names of guarded files, the decisions from rules, and the updates that add rules.
Knows no mode. Reads the disk only to resolve links. `options.permission_rules` reads the rules.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from pilothouse.native.tools.base import Workplace
from pilothouse.native.tools.grep_program import covers_parts
from pilothouse.options.permission_rules import PermissionBehavior, PermissionRule, RuleSet, matches_wildcard

Use = Literal["Read", "Edit"]

# Files here can run commands later without a permission request, or hold secrets. Names in lower case.
_GUARDED_FOLDERS = (
    ".aws .azure .buildkite .cargo .circleci .claude .config .cursor .devcontainer .direnv .docker .forgejo .git "
    ".gitea .github .gnupg .hg .husky .idea .jj .kube .m2 .pilothouse .ssh .svn .vim .vscode .windsurf "
    ".woodpecker .zed"
)
GUARDED_FOLDERS = frozenset(_GUARDED_FOLDERS.split())
_GUARDED_FILES = (
    ".bash_aliases .bash_login .bash_logout .bash_profile .bashrc .claude.json .condarc .cshrc .curlrc .dockercfg "
    ".emacs .env .envrc .exrc .gdbinit .gitattributes .gitconfig .gitlab-ci.yml .gitmodules .hgrc .inputrc .irbrc "
    ".kshrc .lldbinit .login .mcp.json .mise.toml .netrc .npmrc .nvimrc .pam_environment .pgpass .pre-commit-"
    "config.yaml .profile .pryrc .psqlrc .pypirc .pythonrc .ripgreprc .rprofile .screenrc .tcshrc .tmux.conf "
    ".tool-versions .travis.yml .vimrc .wgetrc .xinitrc .xprofile .yarnrc .yarnrc.yml .zlogin .zlogout .zprofile "
    ".zshenv .zshrc authorized_keys azure-pipelines.yml bitbucket-pipelines.yml git-credentials hgrc id_dsa "
    "id_ecdsa id_ed25519 id_rsa jenkinsfile known_hosts lefthook.yml mise.toml pilothouse.toml pip.conf"
)
GUARDED_FILES = frozenset(_GUARDED_FILES.split())
GUARDED_PREFIXES = (".env.", ".lefthook.")
# The CLI's directory for working copies is inside a guarded folder, but is meant for work.
UNGUARDED_FOLDERS = ((".claude", "worktrees"),)


class ResolvedPath(msgspec.Struct, frozen=True):
    """A path as given (`original`), made absolute without `..` (`plain`), and with links resolved (`real`)."""

    original: str
    plain: Path
    real: Path

    @property
    def all_paths(self) -> tuple[Path, ...]:
        """The distinct absolute paths: one or two."""
        return (self.plain,) if self.plain == self.real else (self.plain, self.real)


def resolve_path(given: str, workplace: Workplace, base: Path | None = None) -> ResolvedPath:
    """Resolve a path.

    Args:
        given: the path from a tool or a command; `~` is the home directory of the workplace's environment.
        workplace: base of relative paths.
        base: base of relative paths, if not the working directory.

    Raises:
        ValueError: the path contains a null byte.
    """
    if "\0" in given:
        raise ValueError("a path cannot contain a null byte")
    start = workplace.resolve_path(given) if given.startswith("~") or base is None else base / given
    return ResolvedPath(given, Path(os.path.normpath(start)), Path(os.path.realpath(start)))


def is_inside(path: Path, workplace: Workplace) -> bool:
    """Whether a resolved path is inside the working directories."""
    return any(path.is_relative_to(os.path.realpath(root)) for root in (workplace.root, *workplace.directories))


def is_guarded(resolved: ResolvedPath, workplace: Workplace) -> bool:
    """Whether a path needs permission even when edits are accepted."""
    return any(_has_guarded_name(path) for path in resolved.all_paths) or _is_in_search_path(resolved.real, workplace)


def _is_in_search_path(path: Path, workplace: Workplace) -> bool:
    """Whether a file there would run as a command: a project may contain a directory of PATH, such as `.venv/bin`."""
    folders = [folder for folder in workplace.env.get("PATH", "").split(os.pathsep) if folder]
    return any(path.is_relative_to(os.path.realpath(workplace.cwd / folder)) for folder in folders)


def _has_guarded_name(path: Path) -> bool:
    parts = [_normalize_name(part) for part in path.parts]
    for at, part in enumerate(parts):
        if part in GUARDED_FOLDERS and not any(tuple(parts[at : at + 2]) == opened for opened in UNGUARDED_FOLDERS):
            return True
    return parts[-1] in GUARDED_FILES or parts[-1].startswith(GUARDED_PREFIXES)


def _normalize_name(part: str) -> str:
    """Normalize a name like lenient file systems: no capitals, trailing dots and spaces, streams, invisible letters."""
    seen = "".join(letter for letter in part if unicodedata.category(letter) != "Cf")
    return seen.casefold().split(":")[0].rstrip(". ")


class RuleContext(msgspec.Struct, frozen=True):
    """Rules applied to one workplace.

    Attributes:
        rules: rules of the session.
        workplace: base of the paths in the rules.
        accepts_edits: whether edits inside the workplace need no rule.
        is_planning: whether no rule allows a change.
    """

    rules: RuleSet
    workplace: Workplace
    accepts_edits: bool = False
    is_planning: bool = False

    def find_forbidding(
        self, behavior: Literal["deny", "ask"], tool: str, resolved: ResolvedPath
    ) -> PermissionRule | None:
        """Return the first rule that denies, or asks about, any name of this path."""
        for rule in self.rules.find_matching(behavior, tool):
            if rule.content is None or any(
                self._rule_matches(rule.content, path, is_loose=True) for path in resolved.all_paths
            ):
                return rule
        return None

    def is_allowed(self, tool: str, resolved: ResolvedPath, candidates: Sequence[PermissionRule] | None = None) -> bool:
        """Whether rules (or only the `candidates`) allow every name of this path that is outside the directories."""
        if candidates is None:
            candidates = self.rules.find_matching("allow", tool)
        if any(rule.content is None for rule in candidates):
            return True
        contents = [rule.content for rule in candidates if rule.content is not None]
        return bool(contents) and all(
            (path != resolved.real and is_inside(path, self.workplace))
            or any(self._rule_matches(text, path) for text in contents)
            for path in resolved.all_paths
        )

    def _rule_matches(self, content: str, path: Path, *, is_loose: bool = False) -> bool:
        where = self.workplace
        home = where.env.get("HOME", "~")
        roots = [where.root, *(where.directories if is_loose else ())]
        return any(
            matches_path(content, path.as_posix(), root=root.as_posix(), home=home, is_loose=is_loose) for root in roots
        )


OUTSIDE_DIRECTORIES = "This path lies outside the working directories"
THROUGH_LINK = "{} leads through a link to {}, which lies outside the working directories"
GUARDED = "{} is a file or in a folder that can run commands later or holds secrets"


def judge_read(resolved: ResolvedPath, context: RuleContext, tool: str = "Read") -> ProvisionalDecision:
    """Decide whether a path may be read."""
    verdict = _apply_rules(resolved, context, tool)
    if verdict is not None:
        return verdict
    where = context.workplace
    if is_inside(resolved.real, where) or (
        where.scratch_directory is not None and resolved.real.is_relative_to(where.scratch_directory)
    ):
        return ALLOW
    if context.is_allowed(tool, resolved):
        return ALLOW
    return ProvisionalDecision.ask(
        _explain_outside(resolved, context),
        *make_read_rules(*_find_outside(resolved, context)),
        blocked_path=resolved.real,
    )


def judge_edit(resolved: ResolvedPath, context: RuleContext, tool: str = "Edit") -> ProvisionalDecision:
    """Decide whether a path may be created or changed."""
    verdict = _apply_rules(resolved, context, tool)
    if verdict is not None:
        return verdict
    if is_guarded(resolved, context.workplace):
        if not context.is_planning and _is_named_by_rule(resolved, context, tool):
            return ALLOW
        return ProvisionalDecision.ask(GUARDED.format(resolved.plain), blocked_path=resolved.real)
    within = is_inside(resolved.real, context.workplace)
    if (context.accepts_edits and within) or (not context.is_planning and context.is_allowed(tool, resolved)):
        return ALLOW
    if within:
        return ProvisionalDecision.ask("", make_accept_edits())
    folders = [
        make_add_directory(path.parent)
        for path in _find_outside(resolved, context)[-1:]
        if path.parent != path.parent.parent
    ]
    return ProvisionalDecision.ask(
        _explain_outside(resolved, context), make_accept_edits(), *folders, blocked_path=resolved.real
    )


def _apply_rules(resolved: ResolvedPath, context: RuleContext, tool: str) -> ProvisionalDecision | None:
    if denied := context.find_forbidding("deny", tool, resolved):
        return ProvisionalDecision(
            "deny", f"{resolved.plain} is denied by a rule: {denied.tool_name}({denied.content or '*'})"
        )
    if asked := context.find_forbidding("ask", tool, resolved):
        return ProvisionalDecision.ask(
            f"A rule asks about this path: {asked.tool_name}({asked.content or '*'})", must_ask=True
        )
    return None


def _is_named_by_rule(resolved: ResolvedPath, context: RuleContext, tool: str) -> bool:
    """Whether a rule allows a guarded path and names the guarded part, so that the permission is explicit."""
    naming = [
        rule
        for rule in context.rules.find_matching("allow", tool)
        if rule.content and {*PurePosixPath(rule.content).parts} & (GUARDED_FOLDERS | GUARDED_FILES)
    ]
    return bool(naming) and context.is_allowed(tool, resolved, naming)


def _find_outside(resolved: ResolvedPath, context: RuleContext) -> list[Path]:
    return [path for path in resolved.all_paths if not is_inside(path, context.workplace)]


def _explain_outside(resolved: ResolvedPath, context: RuleContext) -> str:
    if resolved.plain != resolved.real and is_inside(resolved.plain, context.workplace):
        return THROUGH_LINK.format(resolved.plain, resolved.real)
    return OUTSIDE_DIRECTORIES


# The input field that the content of a rule is compared with, for tools without a syntax of their own.
NAME_FIELDS = {"Agent": "subagent_type", "Skill": "skill"}
# Characters without a special meaning to a shell, except the blank, which separates words.
_PLAIN = re.compile(r"[A-Za-z0-9_./,:@+ -]+")


def is_plain_command(command: str) -> bool:
    """Whether a shell only splits a command at blanks: one program, and its arguments as written."""
    return _PLAIN.fullmatch(command) is not None


def get_prefix(content: str) -> str | None:
    """Return the prefix that a rule such as `git:*` or `npm run *` allows; None for a rule with one exact command."""
    for ending in (":*", " *"):
        if content.endswith(ending):
            return content.removesuffix(ending)
    return None


def allows_command(content: str, command: str) -> bool:
    """Whether the content of a Bash rule allows a command.

    `git:*` and `git *` allow `git`, alone or followed by any plain words; any other content allows only that exact
    text. A command with a character that is special to a shell never consists of plain words.
    """
    prefix = get_prefix(content)
    if prefix is None:
        return command == content
    words = prefix.split()
    return bool(words) and is_plain_command(command) and command.split()[: len(words)] == words


def matches_path(content: str, path: str, *, root: str, home: str, is_loose: bool = False) -> bool:
    """Whether the content of a rule for a file tool matches an absolute path.

    As in `.gitignore`: `//etc/**` is absolute, `~/x` is in the home directory, and everything else in the directory
    in which the session started: `/x` and `a/x` right there, `x` without a slash anywhere below. A directory matches
    everything in it. The current directory of Bash makes no difference.

    Args:
        content: the pattern.
        path: absolute and normalized, with `/`.
        root: directory in which the session started.
        home: home directory.
        is_loose: for rules that forbid: letters that some file systems treat as equal are equal.
    """
    if content.startswith("//"):
        base, pattern = "", content[1:]
    elif content == "~" or content.startswith("~/"):
        base, pattern = home, content[1:] or "/"
    else:
        base, pattern = root, content.removeprefix("./")
        if "/" not in pattern.rstrip("/"):
            pattern = f"**/{pattern}"
    base, pattern = base.rstrip("/"), f"/{pattern.lstrip('/')}"
    if is_loose:
        base, pattern, path = (unicodedata.normalize("NFC", text).casefold() for text in (base, pattern, path))
    if not path.startswith(base + "/") and path != base:
        return False
    parts = [part for part in path[len(base) :].split("/") if part]
    return covers_parts(tuple(part for part in pattern.split("/") if part not in {"", "."}), parts)


def matches_host(content: str, host: str) -> bool:
    """Whether `domain:example.com` or `domain:*.example.com` matches a host name in any spelling."""
    kind, _, pattern = content.partition(":")
    return kind == "domain" and bool(host) and matches_wildcard(_ascii_host(pattern), _ascii_host(host))


def _ascii_host(host: str) -> str:
    """Normalize a host name as for a lookup: IDNA form, lower case, without the last dot."""
    try:
        host = host.encode("idna").decode()
    except UnicodeError:  # not a valid host name
        host = unicodedata.normalize("NFKC", host)
    return host.casefold().rstrip(".")


JsonObject = dict[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """The decision on a call.

    Attributes:
        behavior: "allow", "deny", or "ask" (a permission request is needed).
        reason: the reason as text; may be empty.
        suggestions: permission updates that would allow the call next time, in wire format.
        blocked_path: the path that caused the decision, if there is one.
        must_ask: whether neither a mode nor a hook may allow the call: a rule asks, or the danger is too great.
    """

    behavior: PermissionBehavior
    reason: str = ""
    suggestions: Sequence[JsonObject] = ()
    blocked_path: str | None = None
    must_ask: bool = False


class ProvisionalDecision(msgspec.Struct, frozen=True):
    """A decision before the mode is applied. `must_ask`: even bypassing permissions does not change it."""

    behavior: PermissionBehavior
    reason: str = ""
    suggestions: tuple[JsonObject, ...] = ()
    blocked_path: str | None = None
    must_ask: bool = False

    @classmethod
    def ask(
        cls, reason: str = "", *suggestions: JsonObject, blocked_path: Path | str | None = None, must_ask: bool = False
    ) -> ProvisionalDecision:
        """Make a decision that needs a permission request."""
        return cls("ask", reason, suggestions, None if blocked_path is None else str(blocked_path), must_ask)


ALLOW = ProvisionalDecision("allow")


def make_add_rule(tool: str, content: str | None, destination: str) -> JsonObject:
    """Make the update that adds an allow rule."""
    rule: JsonObject = {"toolName": tool} | ({} if content is None else {"ruleContent": content})
    return {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": destination}


def make_accept_edits() -> JsonObject:
    """Make the update that accepts edits."""
    return {"type": "setMode", "mode": "acceptEdits", "destination": "session"}


def make_add_directory(path: Path) -> JsonObject:
    """Make the update that adds a working directory."""
    return {"type": "addDirectories", "directories": [path.as_posix()], "destination": "session"}


def make_read_rules(*paths: Path) -> list[JsonObject]:
    """Make the updates that allow reading everything in or beside these paths. Never the whole disk."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [
        make_add_rule("Read", f"/{folder.as_posix()}/**", "session") for folder in folders if folder != folder.parent
    ]
