"""Whether the CLI has taken the settings that it was given: asked after the handshake, before the first prompt.

The CLI goes on without a part of its settings that it cannot read, or without all of them, and says so only when asked.
A deny rule would be gone without a word. `SettingsCheck` asks, and raises; what it compares is in
`options.cli_settings`. Nothing is asked if no settings were sent.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from pilothouse.engine import HandlerSet, RequestControl
from pilothouse.errors import ControlError, ControlTimeout, SettingsError
from pilothouse.hints import find_similar_name
from pilothouse.hooks import HOOK_EVENTS
from pilothouse.messages.json_lines import as_mapping
from pilothouse.options import Invocation, Options
from pilothouse.options.cli_settings import (
    LostSetting,
    SettingPath,
    find_dead_rules,
    find_lost,
    find_similar_key,
    find_unknown_keys,
    format_path,
)
from pilothouse.options.permission_rules import has_blank_in_name, split_rule
from pilothouse.options.secrets import Redactor, invocation_secrets, mask
from pilothouse.transports.base import find_facts
from pilothouse.transports.concurrency import run_blocking
from pilothouse.transports.discovery import parse_version

log = logging.getLogger("pilothouse")

FLAG_SOURCE: Final = "flagSettings"
MANAGED_SOURCE: Final = "policySettings"
# The files that the CLI reads on its own account: errors in them are not about what was sent.
OWN_FILE_NAMES: Final = frozenset({"settings.json", "settings.local.json", "managed-settings.json"})
OWN_DIRECTORY: Final = "managed-settings.d"
CHECKED_KEYS: Final = frozenset({"permissions", "hooks", "sandbox"})
"""The keys of settings that restrict, of which the CLI may drop parts while it runs."""
ANSWERING_VERSION: Final = (2, 1, 90)
"""The oldest CLI in which `get_settings` was seen."""
UNANSWERED_SECONDS: Final = (
    5.0  # for a CLI that does not say its version: up to 2.1.30 it ignores what it does not know
)
SHOWN_CHARS: Final = 80
MAX_SHOWN: Final = 5  # problems in one message

_silent_clis: set[str] = set()  # those that do not answer
_said: set[str] = set()  # warnings, each of which is logged once


class SettingsFileError(Struct, frozen=True):
    """What is wrong in settings that the CLI has read. It skips the whole file, with every rule and hook in it.

    Args:
        file: the file. For settings that were sent, a private file, or a temporary one of the CLI.
        path: where in it, such as "permissions.deny"; "" for the file as a whole, which is then not JSON.
        message: what is wrong, in the words of the CLI, keys removed.
    """

    file: str = ""
    path: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SentSettings(Struct, frozen=True):
    """Settings that a child is started with.

    Args:
        option: the option that they come from.
        content: what was sent; None if it is in a file that was not read.
        file: the path of that file, as the caller gave it.
        outcome: what an error says at its end: what has become of the rest, and what to do.
    """

    option: str
    content: Any = None
    file: str | None = None
    outcome: str = "No prompt was sent; correct the settings, or leave this out"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.option!r}, file={self.file!r})"  # the content may have keys

    @property
    def source(self) -> str:
        """What the CLI calls them."""
        return MANAGED_SOURCE if self.option == "managed_settings" else FLAG_SOURCE

    @property
    def title(self) -> str:
        """How a message begins."""
        return f"option {self.option!r}" + ("" if self.file is None else f" ({self.file})")

    def find_option(self, problems: Sequence[tuple[str, str]]) -> str:
        """Return the option to blame."""
        is_sandbox = self.option == "settings" and all(path.startswith("sandbox") for path, _ in problems)
        return "sandbox" if is_sandbox else self.option


def read_errors(answer: Mapping[str, Any]) -> list[SettingsFileError]:
    """Read the errors in the CLI's answer to `get_settings`."""
    given: Any = answer.get("errors")
    found = map(as_mapping, cast("list[Any]", given) if isinstance(given, list) else [])
    texts = [{name: str(each.get(name) or "") for name in ("file", "path", "message")} for each in found]
    return [SettingsFileError(**{**each, "message": mask(each["message"])}) for each in texts]


def with_settings_check(handlers: HandlerSet | None, invocation: Invocation, options: Options) -> HandlerSet | None:
    """Return `handlers` with the check of the settings in `invocation`, if there are any."""
    sent = find_sent_settings(invocation, options)
    if not sent:
        return handlers
    check = SettingsCheck(sent, invocation, reads_files=is_on_this_machine(options.transport))
    if invocation.initialize is None:
        check.warn_unchecked("the argv form has no control protocol; prompt_via='stdin' has it")
        return handlers
    return check.wrap(handlers or HandlerSet.empty())


def is_on_this_machine(transport: Any) -> bool:
    """Whether the child certainly sees the same files as this process."""
    return transport is None or find_facts(transport).is_local


def find_sent_settings(invocation: Invocation, options: Options) -> list[SentSettings]:
    """Find the settings with which a child is started, however they came into its invocation."""
    found: list[SentSettings] = []
    option = "extra_args"
    if options.settings is not None or options.sandbox is not None:
        option = "sandbox" if options.settings is None else "settings"
    values = [file.content.decode("utf-8", "replace") for file in invocation.files if file.flag == "settings"]
    values = _find_arguments(invocation, "settings") + values
    if values:  # the CLI takes the last one
        is_json = values[-1].lstrip().startswith("{")
        found.append(SentSettings(option, _parse(values[-1])) if is_json else SentSettings(option, file=values[-1]))
    managed: Any = (invocation.initialize or {}).get("managedSettings")
    for text in _find_arguments(invocation, "managed-settings"):
        managed = _parse(text)
    if managed:
        found.append(SentSettings("managed_settings", managed))
    return [each for each in found if each.content != {}]


def _find_arguments(invocation: Invocation, flag: str) -> list[str]:
    head = f"--{flag}="
    return [argument.removeprefix(head) for argument in invocation.argv if argument.startswith(head)]


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class SettingsCheck:
    """Checks the settings of one child.

    Args:
        sent: what it is started with.
        invocation: how it is started.
        reads_files: whether a file that was named is the same for the child and for this process.
    """

    def __init__(self, sent: Sequence[SentSettings], invocation: Invocation, *, reads_files: bool) -> None:
        self._sent = sent
        self._invocation = invocation
        self._reads_files = reads_files
        self._version: tuple[int, int, int] | None = None

    def wrap(self, handlers: HandlerSet) -> HandlerSet:
        """Return `handlers` that run the check before the first prompt."""
        on_initialize = handlers.on_initialize

        def note_version(info: Mapping[str, Any]) -> None:
            self._version = parse_version(str(info.get("claude_code_version")))
            on_initialize(info)

        return replace(handlers, on_initialize=note_version).prepared_by(self.run)

    async def run(self, request: RequestControl) -> None:
        """Ask the CLI what it has taken.

        Raises:
            SettingsError: it has not taken what was sent.
            ControlTimeout: it did not answer.
        """
        sent = [await self._read_file(each) for each in self._sent]
        for each in sent:
            warn_unknown_keys(each.title, each.content)
        answer = await self._ask(request)
        if answer is None:
            return
        redact = Redactor(invocation_secrets(self._invocation)).redact
        errors = read_errors(answer)
        own = [each for each in errors if self._is_about_sent(each, answer)]
        for each in errors:
            if each not in own:
                warn_once(
                    f"Claude Code skips the settings file {each.file}, with every rule and hook in it: {each}. "
                    "Correct it; `pilothouse doctor` shows such errors."
                )
        if own:
            refused = next(each for each in sent if each.source == FLAG_SOURCE)
            clean = tuple((each.path, redact(each.message)) for each in own)
            raise SettingsError(
                f"{refused.title}: Claude Code takes none of these settings: {_join(clean)}. {refused.outcome}",
                option=refused.find_option(clean),
                problems=clean,
            )
        for each in sent:
            check_taken(each, answer, redact)
            if each.source == FLAG_SOURCE:
                _warn_overruled(each, get_source(answer, MANAGED_SOURCE))

    async def _read_file(self, sent: SentSettings) -> SentSettings:
        if sent.file is None or not self._reads_files:
            return sent
        try:
            text = await run_blocking(self._find_local(sent.file).read_text, "utf-8-sig")
        except (OSError, ValueError):  # the CLI says what is wrong with it
            return sent
        return replace(sent, content=_parse(text))

    async def _ask(self, request: RequestControl) -> Mapping[str, Any] | None:
        """Return the answer to `get_settings`; None from a CLI that gives none, after a warning."""
        is_known = self._version is not None and self._version >= ANSWERING_VERSION
        answer: Mapping[str, Any] = {}
        if is_known or self._invocation.cli not in _silent_clis:
            try:
                with anyio.move_on_after(None if is_known else UNANSWERED_SECONDS) as limit:
                    answer = await request("get_settings", {})
                if limit.cancelled_caught:
                    _silent_clis.add(self._invocation.cli)
            except ControlTimeout:
                if is_known:
                    raise
            except ControlError:
                answer = {}  # it does not know the request, or the connection has none
        if not isinstance(answer.get("sources"), list) or answer.get("withheld") is True:
            oldest = ".".join(map(str, ANSWERING_VERSION))
            self.warn_unchecked(f"this Claude Code does not say what it has taken, as {oldest} and later do; update it")
            return None
        return answer

    def warn_unchecked(self, reason: str) -> None:
        """Warn that the settings are not checked."""
        names = " and ".join(each.title for each in self._sent)
        warn_once(f"{names}: not checked; with a mistake in it, the CLI ignores all of it, deny rules too: {reason}")

    def _is_about_sent(self, error: SettingsFileError, answer: Mapping[str, Any]) -> bool:
        sent = next((each for each in self._sent if each.source == FLAG_SOURCE), None)
        if sent is None:
            return False
        if sent.file is not None and self._reads_files:
            return os.path.realpath(self._find_local(sent.file)) == os.path.realpath(error.file)
        if FLAG_SOURCE in _list_sources(answer):  # the CLI skips a file as a whole
            return False
        if sent.file is not None and error.file.endswith(sent.file.removeprefix(".")):
            return True
        path = Path(error.file)
        return path.name not in OWN_FILE_NAMES and path.parent.name != OWN_DIRECTORY

    def _find_local(self, file: str) -> Path:
        return Path(self._invocation.cwd or ".", file)


def check_taken(sent: SentSettings, answer: Mapping[str, Any], redact: Callable[[str], str] = mask) -> None:
    """Check that the CLI has taken what was sent; warn about what it ignores.

    Args:
        sent: the settings.
        answer: that of the CLI to `get_settings`.
        redact: removes keys from a text.

    Raises:
        SettingsError: it has dropped a restriction.
    """
    lost = list_lost(sent.content, answer, sent.source)
    if refused := [each for each in lost if each.is_restriction]:
        clean = tuple((format_path(each.path), redact(describe_lost(each, sent.source))) for each in refused)
        raise SettingsError(
            f"{sent.title}: Claude Code does not take all of these settings: {_join(clean)}. {sent.outcome}",
            option=sent.find_option(clean),
            problems=clean,
        )
    if ignored := [each.path for each in lost]:
        warn_once(f"{sent.title}: Claude Code ignores {_list_paths(ignored)}: it has no such setting, or no such value")


def _warn_overruled(sent: SentSettings, policy: Mapping[str, Any]) -> None:
    """Warn about rules and hooks that managed settings, of this machine or of the caller, put out of effect."""
    permissions = as_mapping(as_mapping(sent.content).get("permissions"))
    given = {
        "allowManagedPermissionRulesOnly": [f"permissions.{name}" for name in ("deny", "ask") if permissions.get(name)],
        "allowManagedHooksOnly": ["hooks"] if as_mapping(sent.content).get("hooks") else [],
    }
    for lock, places in given.items():
        if places and policy.get(lock) is True:
            warn_once(
                f"{sent.title}: {', '.join(places)} has no effect, because managed settings have {lock}; "
                "put it into `managed_settings`, or ask the administrator of this machine"
            )


def list_lost(content: Any, answer: Mapping[str, Any], source: str) -> list[LostSetting]:
    """List what the CLI has not taken of a source's settings, or never applies, by its answer to `get_settings`."""
    lost = [*find_lost(content, get_source(answer, source))]
    return lost + [each for each in find_dead_rules(content) if each not in lost]


def get_source(answer: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the settings of a source in the answer to `get_settings`; empty if it has none."""
    return as_mapping(_list_sources(answer).get(source))


def _list_sources(answer: Mapping[str, Any]) -> dict[str, Any]:
    found = [as_mapping(each) for each in cast("list[Any]", answer.get("sources") or [])]
    return {str(each.get("source")): each.get("settings") for each in found}


def describe_lost(lost: LostSetting, source: str) -> str:
    """Say why the CLI did not take a part of the settings, as far as that can be told, and what to do."""
    value, shown = lost.value, repr(lost.value)[:SHOWN_CHARS]
    match lost.path:
        case ("hooks", str(event)) if event not in HOOK_EVENTS:
            near = find_similar_name(event, HOOK_EVENTS)
            return "this Claude Code has no such event" + (f"; did you mean {near!r}?" if near else "")
        case ("hooks", *_) if source == MANAGED_SOURCE:
            return "Claude Code takes no hooks from these settings; put them into `settings`"
        case ("permissions", "deny" | "ask", int()) if not isinstance(value, str) or split_rule(value) is None:
            return f"{shown} is not a permission rule; write Tool or Tool(content)"
        case ("permissions", "deny" | "ask", int()) if has_blank_in_name(value):
            return f"the rule {shown} never applies; leave out the blank"
        case ("permissions", "deny" | "ask", int()):
            return f"this Claude Code does not accept the rule {shown}; write Tool or Tool(content), in its spelling"
        case ("permissions", "deny" | "ask"):
            return "expected a list of rules"
        case _ if source == MANAGED_SOURCE:
            return "Claude Code does not accept this value, or not from these settings; `settings` may take it"
        case _:
            return "this Claude Code does not accept it"


def warn_unknown_keys(title: str, settings: Any) -> None:
    """Warn once about each key that no setting has; a newer CLI may know it."""
    for path in find_unknown_keys(as_mapping(settings)):
        near = find_similar_key(path)
        hint = f"did you mean {near!r}?" if near else "a newer Claude Code may know it"
        warn_once(f"{title}: unknown setting {format_path(path)!r}, which has no effect; {hint}")


def warn_once(text: str) -> None:
    """Log a warning that was not logged before in this process."""
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)


def _join(problems: Sequence[tuple[str, str]]) -> str:
    texts = [f"{path}: {reason}" if path else reason for path, reason in problems]
    more = len(texts) - MAX_SHOWN
    return "; ".join([*texts[:MAX_SHOWN], f"and {more} more"] if more > 0 else texts)


def _list_paths(paths: Sequence[SettingPath]) -> str:
    return ", ".join(format_path(path) for path in paths[:MAX_SHOWN]) + (" …" if len(paths) > MAX_SHOWN else "")
