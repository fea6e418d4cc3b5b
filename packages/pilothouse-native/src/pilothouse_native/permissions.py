"""`decide`: decides whether a tool call may run, by the CLI's modes and rules.

Owns the order (rules that deny, rules that ask, the mode, rules that allow), what the content of a rule matches
(commands, paths, hosts), which paths may be read or changed, and the updates that add rules. A Bash command needs
permission unless a rule allows its exact text; rules that deny or ask match their words anywhere in it. No program
counts as harmless. Where the CLI's own decision is unknown, this one is stricter. Requests no permission and runs
nothing; reads the disk only to resolve links. `options.permission_rules` reads the rules.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from pilothouse.options.permission_rules import matches_wildcard
from pilothouse.permissions import PermissionBehavior, PermissionRule, RuleSet
from pilothouse_native.tools.base import Workplace
from pilothouse_native.tools.grep_program import covers_parts
from pilothouse_native.wire import JsonObject

# These change only the session itself.
SESSION_TOOLS = frozenset({"StructuredOutput", "TaskStop", "TodoWrite", "ToolSearch"})
# These ask the user.
USER_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode"})
PATH_FIELDS = {"Read": "file_path", "Edit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}


class Decision(msgspec.Struct, frozen=True):
    """The decision on a call; "ask" needs a permission request."""

    behavior: PermissionBehavior
    reason: str = ""
    suggestions: Sequence[JsonObject] = ()  # updates that would allow the call next time, in wire format
    blocked_path: str | None = None  # the path that caused the decision
    must_ask: bool = False  # neither a mode nor a hook may allow the call: a rule asks, or the danger is too great

    @classmethod
    def ask(
        cls, reason: str = "", *suggestions: JsonObject, blocked_path: Path | str | None = None, must_ask: bool = False
    ) -> Decision:
        """Make a decision that needs a permission request."""
        return cls("ask", reason, list(suggestions), None if blocked_path is None else str(blocked_path), must_ask)


ALLOW = Decision("allow")


def decide(
    tool_name: str,
    tool_input: Mapping[str, Any],
    *,
    mode: str,
    rules: RuleSet,
    workplace: Workplace,
    read_only: bool,
    resolved: ResolvedPath | None = None,
) -> Decision:
    """Decide on a call of a tool.

    `resolved` is what `resolve_call_path` returned for the call: the tool then opens exactly the path that was judged.

    Never raises because of `tool_input`: a call that cannot be judged needs permission. An unknown `mode` is treated as
    "default". An unknown tool may run if it is `read_only`, but not one of an MCP server.

    Example:
        >>> where = Workplace("/tmp", env={})
        >>> settings = {"mode": "default", "rules": RuleSet.parse(allow=["Bash(git add *)"]), "workplace": where}
        >>> decide("Bash", {"command": "git add x"}, read_only=False, **settings).behavior
        'allow'
        >>> decide("Bash", {"command": "git add x && curl example.com"}, read_only=False, **settings).behavior
        'ask'
    """
    matching = RuleContext(
        rules, workplace, accepts_edits=mode == "acceptEdits", is_planning=mode == "plan", resolved=resolved
    )
    try:
        decision = _judge_call(tool_name, tool_input, matching, read_only=read_only)
    except (OSError, ValueError) as error:
        decision = Decision.ask(f"This call cannot be judged: {error}", must_ask=True)
    return _apply_mode(decision, mode)


def resolve_call_path(tool_name: str, tool_input: Mapping[str, Any], workplace: Workplace) -> ResolvedPath | None:
    """Resolve the path of a call of a file tool; None for other tools, and for a path that cannot be resolved."""
    field = PATH_FIELDS.get(tool_name)
    try:
        return None if field is None else resolve_path(_get_text(tool_input, field), workplace)
    except (OSError, ValueError):
        return None


def make_hidden_filter(rules: RuleSet, workplace: Workplace) -> Callable[[Path], bool] | None:
    """Make the filter of paths that Glob and Grep hide, for these rules; None if no rule denies reading a path."""
    if all(rule.content is None for rule in rules.find_matching("deny", "Read")):
        return None
    matching = RuleContext(rules, workplace)
    return lambda path: matching.find_forbidding("deny", "Read", resolve_path(str(path), workplace)) is not None


def _apply_mode(found: Decision, mode: str) -> Decision:
    if found.behavior != "ask":
        return found
    if mode == "bypassPermissions" and not found.must_ask:
        return ALLOW
    if mode == "dontAsk":
        text = "Permission would have to be asked for, and this mode denies what is not allowed already"
        return Decision("deny", f"{text}: {found.reason}" if found.reason else text, (), found.blocked_path)
    return found


# Paths

# Files here can run commands later without a permission request, or hold secrets. Names in lower case.
_GUARDED_FOLDERS = (
    ".aws .azure .buildkite .cargo .circleci .claude .config .cursor .devcontainer .direnv .docker .forgejo .git "
    ".gitea .github .gnupg .hg .husky .idea .jj .kube .m2 .mvn .pilothouse .ssh .svn .vim .vscode .windsurf "
    ".woodpecker .yarn .zed"
)
GUARDED_FOLDERS = frozenset(_GUARDED_FOLDERS.split())
_GUARDED_FILES = (
    ".bash_aliases .bash_login .bash_logout .bash_profile .bashrc .bazeliskrc .bazelrc .bazelversion .bunfig.toml "
    ".claude.json .condarc .cshrc .curlrc .devcontainer.json .dockercfg .emacs .env .envrc .exrc .gdbinit "
    ".gitattributes .gitconfig .gitlab-ci.yml .gitmodules .hgrc .inputrc .irbrc .kshrc .lldbinit .login .mcp.json "
    ".mise.toml .netrc .npmrc .nvimrc .pam_environment .pgpass .pnp.cjs .pnp.data.json .pnp.js .pnp.loader.mjs "
    ".pnpmfile.cjs .pre-commit-config.yaml .profile .pryrc .psqlrc .pypirc .pythonrc .ripgreprc .rprofile .screenrc "
    ".tcshrc .tmux.conf .tool-versions .travis.yml .vimrc .wgetrc .xinitrc .xprofile .yarnrc .yarnrc.yml .zlogin "
    ".zlogout .zprofile .zshenv .zshrc authorized_keys azure-pipelines.yml bitbucket-pipelines.yml bunfig.toml "
    "git-credentials gradle-wrapper.properties hgrc id_dsa id_ecdsa id_ed25519 id_rsa jenkinsfile known_hosts "
    "lefthook.yaml lefthook.yml maven-wrapper.properties mise.toml pilothouse.toml pip.conf pyrightconfig.json"
)
GUARDED_FILES = frozenset(_GUARDED_FILES.split())
GUARDED_PREFIXES = (".env.", ".lefthook.")
# The CLI's directory for working copies is inside a guarded folder, but is meant for work.
UNGUARDED_FOLDERS = ((".claude", "worktrees"),)


# Files that make a directory a bare repository, whose configuration and hooks name programs for git to run. Other
# projects have them too, but no file HEAD.
BARE_REPOSITORY_HEAD = "head"
BARE_REPOSITORY_PARTS = frozenset({"commondir", "config", "config.worktree", "hooks", "objects", "refs"})


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
    """Resolve a path from a tool or a command; `base` replaces the working directory. Raises ValueError for a null."""
    if "\0" in given:
        raise ValueError("a path cannot contain a null byte")
    start = workplace.resolve_path(given) if given.startswith("~") or base is None else base / given
    return ResolvedPath(given, Path(os.path.normpath(start)), Path(os.path.realpath(start)))


def is_inside(path: Path, workplace: Workplace) -> bool:
    """Whether a resolved path is inside the working directories."""
    return any(path.is_relative_to(os.path.realpath(root)) for root in (workplace.root, *workplace.directories))


def _is_guarded(resolved: ResolvedPath, workplace: Workplace) -> bool:
    """Whether a path needs permission even when edits are accepted."""
    return any(_has_guarded_name(path) for path in resolved.all_paths) or _is_in_search_path(resolved.real, workplace)


def _makes_bare_repository(path: Path) -> bool:
    """Whether a file there may complete a bare repository: a file HEAD, or another part beside one."""
    if _normalize_name(path.name) == BARE_REPOSITORY_HEAD:
        return True
    beside = (each.parent for each in (path, *path.parents) if _normalize_name(each.name) in BARE_REPOSITORY_PARTS)
    return any(os.path.lexists(folder / "HEAD") for folder in beside)


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
    """Rules applied to one workplace, which is the base of their paths."""

    rules: RuleSet
    workplace: Workplace
    accepts_edits: bool = False  # edits inside the workplace need no rule
    is_planning: bool = False  # no rule allows a change
    resolved: ResolvedPath | None = None  # the path of this call, if it was resolved before

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


ACCEPT_EDITS: JsonObject = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
OUTSIDE_DIRECTORIES = "This path lies outside the working directories"
THROUGH_LINK = "{} leads through a link to {}, which lies outside the working directories"
GUARDED = "{} is a file or in a folder that can run commands later or holds secrets"


def _judge_read(resolved: ResolvedPath, context: RuleContext, tool: str) -> Decision:
    decision = _apply_rules(resolved, context, tool)
    if decision is not None:
        return decision
    where = context.workplace
    is_scratch = where.scratch_directory is not None and resolved.real.is_relative_to(where.scratch_directory)
    if is_scratch or is_inside(resolved.real, where) or context.is_allowed(tool, resolved):
        return ALLOW
    updates = _make_read_rules(*_find_outside(resolved, context))
    return Decision.ask(_explain_outside(resolved, context), *updates, blocked_path=resolved.real)


def _judge_edit(resolved: ResolvedPath, context: RuleContext, tool: str) -> Decision:
    decision = _apply_rules(resolved, context, tool)
    if decision is not None:
        return decision
    if _is_guarded(resolved, context.workplace) or any(map(_makes_bare_repository, resolved.all_paths)):
        if not context.is_planning and _is_named_by_rule(resolved, context, tool):
            return ALLOW
        return Decision.ask(GUARDED.format(resolved.plain), blocked_path=resolved.real)
    within = is_inside(resolved.real, context.workplace)
    if (context.accepts_edits and within) or (not context.is_planning and context.is_allowed(tool, resolved)):
        return ALLOW
    if within:
        return Decision.ask("", ACCEPT_EDITS)
    folders = [path.parent for path in _find_outside(resolved, context)[-1:] if path.parent != path.parent.parent]
    updates = [
        {"type": "addDirectories", "directories": [folder.as_posix()], "destination": "session"} for folder in folders
    ]
    reason = _explain_outside(resolved, context)
    return Decision.ask(reason, ACCEPT_EDITS, *updates, blocked_path=resolved.real)


def _apply_rules(resolved: ResolvedPath, context: RuleContext, tool: str) -> Decision | None:
    if denied := context.find_forbidding("deny", tool, resolved):
        return Decision("deny", f"{resolved.plain} is denied by a rule: {_format_rule(denied)}")
    if asked := context.find_forbidding("ask", tool, resolved):
        return Decision.ask(f"A rule asks about this path: {_format_rule(asked)}", must_ask=True)
    return None


def _is_named_by_rule(resolved: ResolvedPath, context: RuleContext, tool: str) -> bool:
    """Whether a rule allows a guarded path and names the guarded part, so that the permission is explicit."""
    guarded = GUARDED_FOLDERS | GUARDED_FILES | BARE_REPOSITORY_PARTS | {"HEAD"}
    naming = [
        rule
        for rule in context.rules.find_matching("allow", tool)
        if rule.content and {*PurePosixPath(rule.content).parts} & guarded
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
MAX_PLAIN_CHARS = 8000
"""A longer command is not plain: resolving all paths that may be in it would take too long."""


def _is_plain_command(command: str) -> bool:
    """Whether a shell only splits a command at blanks: one program, and its arguments as written."""
    return len(command) <= MAX_PLAIN_CHARS and _PLAIN.fullmatch(command) is not None


def _get_prefix(content: str) -> str | None:
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
    prefix = _get_prefix(content)
    if prefix is None:
        return command == content
    words = prefix.split()
    return bool(words) and _is_plain_command(command) and command.split()[: len(words)] == words


def matches_path(content: str, path: str, *, root: str, home: str, is_loose: bool = False) -> bool:
    """Whether the content of a rule for a file tool matches an absolute path.

    As in `.gitignore`: `//etc/**` is absolute, `~/x` is in the home directory, and everything else in the directory
    in which the session started: `/x` and `a/x` right there, `x` without a slash anywhere below. A directory matches
    everything in it. With `is_loose`, for rules that forbid, letters that some file systems treat as equal are equal,
    and as in the CLI `x/**` is the same as `x`, and blanks at the end mean nothing.
    """
    if is_loose:
        content = content.rstrip(" ")
    if content.startswith("//"):
        base, pattern = "", content[1:]
    elif content == "~" or content.startswith("~/"):
        base, pattern = home, content[1:] or "/"
    else:
        base, pattern = root, content.removeprefix("./")
        if "/" not in (pattern.removesuffix("/**") if is_loose else pattern).rstrip("/"):
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


def _make_add_rule(tool: str, content: str | None, destination: str) -> JsonObject:
    rule: JsonObject = {"toolName": tool} | ({} if content is None else {"ruleContent": content})
    return {"type": "addRules", "rules": [rule], "behavior": "allow", "destination": destination}


def _make_read_rules(*paths: Path) -> list[JsonObject]:
    """Make the updates that allow reading everything in or beside these paths. Never the whole disk."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [
        _make_add_rule("Read", f"/{folder.as_posix()}/**", "session") for folder in folders if folder != folder.parent
    ]


NEEDS_APPROVAL = "No rule allows this command"
DENIED = "Permission to run this command is denied by a rule: {}"
MAYBE_DENIED = "A rule denies {}, and what this command runs is known only when it runs"
ASKED_BY_RULE = "A rule asks about this command: {}"
OUTSIDE_PATH = "{} leads out of the working directories, or to a guarded file: a rule has to name the whole command"
DANGEROUS_REMOVAL = "This may remove the root, the home directory or the work"
MAX_SUGGESTION_CHARS = 2000
"""Length limit, in characters, of commands for which a rule is suggested."""
MAX_BUNDLE_CHARS = 32
"""Characters at the start of an option after each of which a path may follow, as in `-xzfNAME`."""
MAX_PATHS = 200
"""Words of a command whose links are resolved. With path rules, a longer command needs permission."""

# The text between words: the shell's operators (`<&-` is one), `=`, `,` and `:`.
_WORD_SEPARATOR = re.compile(r"(?:[<>]&\s*[0-9]*-?|[\s;&|<>()=,:])+")
_REMOTE_URL = re.compile(r"(?:https?|ssh|git)://[A-Za-z0-9]")
_PATH_SEPARATOR = re.compile(r"[:@,+]")
_EXPANSION = re.compile(r"[$`]")
_GLOB_CHARS = re.compile(r"[*?\[\]{}]+")
_COMPUTED = re.compile(r"[$`{]")
_RECURSIVE = re.compile(r"-[a-z]*r|--r", re.IGNORECASE)
_UNQUOTED = str.maketrans("", "", "'\"\\")
_SPACED = str.maketrans("'\"\\", "   ")


def _judge_bash_call(_tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> Decision:
    """Decide on a command as the model wrote it. In plan mode, no rule allows one."""
    command = tool_input.get("command")
    if not isinstance(command, str):
        return Decision.ask("There is no command")
    texts = _CommandWords.parse(command)
    denied, certain = _find_rule("deny", texts, context)
    if denied is not None and certain:
        return Decision("deny", DENIED.format(_format_rule(denied)))
    if denied is not None:
        return Decision.ask(MAYBE_DENIED.format(_format_rule(denied)), must_ask=True)
    asked, _ = _find_rule("ask", texts, context)
    if asked is not None:
        return Decision.ask(ASKED_BY_RULE.format(_format_rule(asked)), must_ask=True)
    allowing = () if context.is_planning else context.rules.find_matching("allow", "Bash")
    if any(rule.content == command for rule in allowing if rule.content and _get_prefix(rule.content) is None):
        return ALLOW
    if _may_remove(command, texts, context):
        return Decision.ask(DANGEROUS_REMOVAL, must_ask=True)
    if any(rule.content is None for rule in allowing):
        return ALLOW
    reason, blocked = NEEDS_APPROVAL, None
    for rule in allowing:
        if rule.content is not None and allows_command(rule.content, command):
            blocked = _find_outside_word(rule.content, command, context)
            if blocked is None:
                return ALLOW
            reason = OUTSIDE_PATH.format(blocked)
    return Decision.ask(reason, *_make_suggestions(command), blocked_path=blocked)


def _find_outside_word(content: str, command: str, context: RuleContext) -> str | None:
    """Return the first word after the allowed prefix that, as a path, is guarded or outside the working directories."""
    for word in command.split()[len((_get_prefix(content) or "").split()) :]:
        for path in _find_paths(word):
            spot = resolve_path(path, context.workplace)
            climbs = "/.." in path.lstrip("./")  # `..` after a directory, which may be a link
            if climbs or not is_inside(spot.real, context.workplace) or _is_guarded(spot, context.workplace):
                return word
    return None


def _find_paths(word: str) -> Iterator[str]:
    """Yield what a program may read as a path: the word, and its parts, as in `-I/usr/include`, `-C..` and `host:x`."""
    yield word
    if _REMOTE_URL.match(word):
        return
    parts = _PATH_SEPARATOR.split(word)
    yield from filter(None, parts)
    for part in parts:
        if part.startswith("-"):  # a path may directly follow an option, or several of one letter
            yield from (part[at:] for at in map(part.find, "/.") if at > 0)
            yield from (part[at:] for at in range(2, min(len(part), MAX_BUNDLE_CHARS)))


def _format_rule(rule: PermissionRule) -> str:
    return f"{rule.tool_name}({rule.content or '*'})"


def _make_suggestions(command: str) -> list[JsonObject]:
    """Suggest a rule for exactly this command, unless its text would mean more as a rule."""
    if not command.strip() or command.endswith("*") or len(command) > MAX_SUGGESTION_CHARS:
        return []
    return [_make_add_rule("Bash", command, "localSettings")]


class _CommandWords(msgspec.Struct, frozen=True):
    """The words of a command, to be matched with rules that forbid.

    `words` are the literal words: once without quotes, once with blanks in place of quotes, and the same with blanks in
    place of `@`. `patterns` are the same, with `*` for each part that the shell expands. `paths` are the words with
    their slashes.
    """

    words: tuple[Sequence[str], ...]
    patterns: tuple[Sequence[str], ...]
    paths: Sequence[str]

    @classmethod
    def parse(cls, command: str) -> _CommandWords:
        command = command.replace("\\\n", "")
        forms = [command.translate(_UNQUOTED), command.translate(_SPACED)]
        if "@" in command:  # it may belong to a name, or stand before one, as in `curl -d @.env`
            forms += [text for form in forms for text in (form.replace("@", " "), re.sub(r"@(\S*)", r" \1", form))]
        plain = [_GLOB_CHARS.sub(" ", _EXPANSION.sub(" ", form)) for form in forms]
        return cls(
            tuple(list(_split_words(form)) for form in plain),
            tuple(list(map(_to_pattern, _split_words(form))) for form in forms),
            list(dict.fromkeys(word for form in plain for word in _WORD_SEPARATOR.split(form) if word)),
        )


def _split_words(text: str) -> Iterator[str]:
    """Yield the parts of paths in a text, in lower case."""
    return (part.casefold() for word in _WORD_SEPARATOR.split(text) for part in word.split("/") if part)


def _to_pattern(part: str) -> str:
    """Return the possible expansions of a part of a word: `*` from `$` on, and for `*`, `?`, brackets and braces."""
    known = _EXPANSION.split(part)[0]
    return _GLOB_CHARS.sub("*", known) + ("*" if known != part else "")


# Rules that forbid


def _find_rule(
    behavior: Literal["deny", "ask"], texts: _CommandWords, context: RuleContext
) -> tuple[PermissionRule | None, bool]:
    """Return the rule that matches a command, and whether the match is certain; a certain match comes first."""
    perhaps: PermissionRule | None = None
    rules = [(rule, _get_command_words(rule), False) for rule in context.rules.find_matching(behavior, "Bash")]
    rules += [(rule, words, True) for rule in _get_path_rules(behavior, context) for words in _get_path_words(rule)]
    for rule, words, is_path in rules:
        if (words or not is_path) and any(_contains_words(words, known) for known in texts.words):
            return rule, True
        too_long = is_path and len(texts.paths) > MAX_PATHS
        if too_long or any(_contains_words(words, guessed) for guessed in texts.patterns):
            perhaps = perhaps or rule
    found = _find_rule_behind_links(behavior, texts, context)
    return (found, True) if found is not None else (perhaps, False)


def _get_command_words(rule: PermissionRule) -> list[str]:
    """Return the words of a command rule; of a path only the last part, so that its directory does not matter."""
    words = _WORD_SEPARATOR.split((rule.content or "").removesuffix(":*").translate(_UNQUOTED))
    return _to_patterns(word.rstrip("/").rsplit("/", 1)[-1] for word in words)


def _get_path_rules(behavior: Literal["deny", "ask"], context: RuleContext) -> list[PermissionRule]:
    """Return the rules for files: paths that may not be read or changed may not be in a command either."""
    rules = (rule for tool in ("Read", "Edit") for rule in context.rules.find_matching(behavior, tool))
    return [rule for rule in rules if rule.content is not None]


def _get_path_words(rule: PermissionRule) -> list[list[str]]:
    """Return the parts of a rule's path, once as in a pattern for it, and once as a command has them as words."""
    content = rule.content or ""
    forms = content.split("/"), _split_words(content)
    return [_to_patterns(part for part in form if part not in {"~", ".", ".."}) for form in forms]


def _to_patterns(words: Iterable[str]) -> list[str]:
    """Return the patterns of a rule's words, without those that match everything."""
    return [pattern for word in words if (pattern := _to_pattern(word.casefold())).strip("*")]


def _contains_words(words: Sequence[str], text: Sequence[str]) -> bool:
    """Whether a text contains these words, in this order, or may after the shell's expansions: `*` in the text."""
    at = 0
    for part in text:
        if at == len(words):
            break
        word = words[at]
        if "*" in part and (
            matches_wildcard(part, word.replace("*", "")) or matches_wildcard(word, part.replace("*", ""))
        ):
            return True  # its expansion may contain the remaining words
        if matches_wildcard(word, part):
            at += 1
    return at == len(words)


def _find_rule_behind_links(
    behavior: Literal["deny", "ask"], texts: _CommandWords, context: RuleContext
) -> PermissionRule | None:
    """Return the file rule that matches the resolved path of a word in the command."""
    if not _get_path_rules(behavior, context):
        return None
    for word in texts.paths[:MAX_PATHS]:
        if "\0" in word:
            continue
        spot = resolve_path(word, context.workplace)
        for tool in ("Read", "Edit"):
            rule = context.find_forbidding(behavior, tool, spot)
            if rule is not None and rule.content is not None:
                return rule
    return None


# Commands that need permission even in mode bypassPermissions


def _may_remove(command: str, texts: _CommandWords, context: RuleContext) -> bool:
    """Whether a command may remove essential files: `rm -r` and `find -delete`, except of plain names in the work."""
    for known in texts.words:
        if "find" in known and ("-delete" in known or "rm" in known):
            return True
        if "rm" in known and (any(map(_RECURSIVE.match, known)) or _COMPUTED.search(command)):
            return not _is_plain_command(command) or any(_is_protected(word, context) for word in command.split())
    return False


def _is_protected(word: str, context: RuleContext) -> bool:
    where = context.workplace
    real = resolve_path(word, where).real
    work = [Path(os.path.realpath(folder)) for folder in (where.root, *where.directories)]
    kept = [*work, *(Path(os.path.realpath(folder)) for folder in (where.cwd, where.env.get("HOME")) if folder)]
    return any(folder.is_relative_to(real) for folder in kept) or not any(map(real.is_relative_to, work))


# The tools


def _judge_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext, *, read_only: bool) -> Decision:
    for behavior in ("deny", "ask"):
        if any(rule.content is None for rule in context.rules.find_matching(behavior, tool)):
            return _forbid(behavior, tool)
    if tool in _JUDGES:
        return _JUDGES[tool](tool, tool_input, context)
    return _judge_other_call(tool, tool_input, context, read_only=read_only)


def _forbid(behavior: PermissionBehavior, tool: str) -> Decision:
    if behavior == "deny":
        return Decision("deny", f"Permission to use {tool} is denied by a rule")
    return Decision.ask(f"A rule asks about {tool}", must_ask=True)


def _judge_file_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> Decision:
    judge = _judge_read if tool == "Read" else _judge_edit
    resolved = context.resolved or resolve_path(_get_text(tool_input, PATH_FIELDS[tool]), context.workplace)
    return judge(resolved, context, tool)


def _judge_search_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> Decision:
    where = context.workplace
    base = resolve_path(_get_text(tool_input, "path", "."), where)
    decision = _judge_read(base, context, tool)
    pattern = tool_input.get("pattern")
    if tool != "Glob" or decision.behavior != "allow" or not isinstance(pattern, str):
        return decision
    # A pattern may lead out of the start directory.
    fixed = _literal_prefix(pattern)
    return _judge_read(resolve_path(fixed, where, base.real), context, tool) if fixed else decision


def _literal_prefix(pattern: str) -> str:
    """Return the literal directory at the start of a pattern; the whole pattern if it contains `..`."""
    if ".." in pattern:
        return pattern
    at = min((found for found in map(pattern.find, "*?[{") if found >= 0), default=len(pattern))
    return os.path.dirname(pattern[:at]) if at < len(pattern) else pattern  # noqa: PTH120 - a text, which may be empty


def _judge_fetch_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext) -> Decision:
    host = urlsplit(_get_text(tool_input, "url").strip()).hostname or ""  # WebFetch strips it, too
    decision = _apply_content_rules(
        tool, context, lambda content, behavior: matches_host(content, host), read_only=True
    )
    return decision or Decision.ask("", *([_make_add_rule(tool, f"domain:{host}", "localSettings")] if host else ()))


def _judge_other_call(tool: str, tool_input: Mapping[str, Any], context: RuleContext, *, read_only: bool) -> Decision:
    about = tool_input.get(NAME_FIELDS.get(tool, ""))
    decision = _apply_content_rules(
        tool,
        context,
        lambda content, behavior: content == about or (about is None and behavior != "allow"),
        read_only=read_only,
    )
    if decision is not None:
        return decision
    if tool in USER_TOOLS:
        return Decision.ask("This needs a person", must_ask=True)
    if tool in SESSION_TOOLS or (read_only and not tool.startswith("mcp__")):
        return ALLOW
    return Decision.ask("", _make_add_rule(tool, None, "localSettings"))


def _apply_content_rules(
    tool: str, context: RuleContext, matches: Callable[[str, PermissionBehavior], bool], *, read_only: bool
) -> Decision | None:
    """Decide by the first rule without content, or whose content matches. In plan mode, none allows a change."""
    for behavior in RuleSet.BEHAVIORS if read_only or not context.is_planning else RuleSet.BEHAVIORS[:-1]:
        for rule in context.rules.find_matching(behavior, tool):
            if rule.content is None or matches(rule.content, behavior):
                return ALLOW if behavior == "allow" else _forbid(behavior, tool)
    return None


def _get_text(tool_input: Mapping[str, Any], key: str, default: str = "") -> str:
    value = tool_input.get(key)
    return value if isinstance(value, str) and value else default


_JUDGES: dict[str, Callable[[str, Mapping[str, Any], RuleContext], Decision]] = {
    "Bash": _judge_bash_call,
    "Edit": _judge_file_call,
    "Glob": _judge_search_call,
    "Grep": _judge_search_call,
    "NotebookEdit": _judge_file_call,
    "Read": _judge_file_call,
    "WebFetch": _judge_fetch_call,
    "Write": _judge_file_call,
}
