"""The settings of the children of a session. Starts no child.

`split_settings` tells which settings of one query the running child can change, and which need another child;
`RuntimeSettings` changes those of a running child; `ResumeState` says which conversation the next child continues: it
owns the id, and the three ways to begin: as requested, by resuming, or afresh.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from pilothouse.client.custom_tools import are_same_tools, make_custom_tools
from pilothouse.engine import ChildRun
from pilothouse.errors import CLIExitedError, ControlError, ControlTimeout, OptionsError, UsageError
from pilothouse.options import TABLE, Options
from pilothouse.options.options import NO_OPTIONS, make_layer
from pilothouse.options.table import Internal
from pilothouse.options.value_structs import AdaptiveThinking, EnabledThinking, ThinkingDisplay

# The control request of each option, and the key of its body.
CHANGEABLE_OPTIONS = {
    "model": ("set_model", "model"),
    "permission_mode": ("set_permission_mode", "mode"),
    "max_thinking_tokens": ("set_max_thinking_tokens", "max_thinking_tokens"),
}
_OTHER_CONVERSATION = "it chooses the conversation; make another session with it, or use session.fork()"
_SAME_PLACE = "every child of a session must find the conversation in the same place; make another session with it"
_SAME_WAY = "every child of a session has the same transport; make another session with it"
SESSION_ONLY_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("resume", "continue_conversation", "fork_session", "session_id"), _OTHER_CONVERSATION),
    **dict.fromkeys(("resume_session_at", "resume_drops_turn"), _OTHER_CONVERSATION),
    **dict.fromkeys(("session_store", "session_store_flush", "session_lease", "load_timeout"), _SAME_PLACE),
    **dict.fromkeys(("persist_session", "isolation", "config_dir", "user"), _SAME_PLACE),
    **dict.fromkeys(("cli", "transport", "prompt_via"), _SAME_WAY),
    "restart": "it applies to all children of a session; make another session with it",
    "title": "the conversation has one title; call session.rename(…)",
}
"""Settings that cannot differ for one query of a session, and why."""
_MODE_ALIASES: dict[Any, str] = {"manual": "default"}  # two names of one mode
UNKNOWN_VALUE = object()
"""A request was sent without a response: the child may have the old value, or the new one."""


def split_settings(call: Options, session: Options) -> tuple[dict[str, Any], Options]:
    """Split the settings of one query: those that the running child can change, and those that need another child.

    Args:
        call: the settings of the query.
        session: those of the session; what is the same in both is in neither part.

    Returns:
        The values to change, and the options of another child.

    Raises:
        OptionsError: one of them cannot differ for one query.
        ToolDefinitionError: a function that cannot be a tool.
    """
    given, usual = call.as_dict(), session.as_dict()
    changes = {name: value for name, value in given.items() if name in CHANGEABLE_OPTIONS}
    for name in [name for name, value in given.items() if not _needs_new_child(name, value, usual.get(name))]:
        del given[name]
    for name, value in given.items():
        if name in SESSION_ONLY_OPTIONS:
            raise OptionsError(
                f"option {name!r} cannot be set for one query of a session, got {TABLE[name].format_value(value)}: "
                f"{SESSION_ONLY_OPTIONS[name]}",
                option=name,
            )
    thinks = "max_thinking_tokens" in changes and "thinking" not in given
    if thinks and session.thinking is not None:
        raise OptionsError(
            "option 'max_thinking_tokens' cannot change in a session that was made with 'thinking', which overrides it",
            option="max_thinking_tokens",
        )
    return changes, make_custom_tools(Options.layer(**given)) if given else NO_OPTIONS


def _needs_new_child(name: str, value: Any, session_value: Any) -> bool:
    if name in CHANGEABLE_OPTIONS or name == "partial_messages" or value == session_value:
        return False
    if name == "custom_tools" and are_same_tools(value, session_value):
        return False
    return name in SESSION_ONLY_OPTIONS or not isinstance(TABLE[name].target, Internal)


def with_thinking_display(options: Options, display: ThinkingDisplay | None) -> Options:
    """Return `options` with this display of the thinking, if given, and without `thinking`.

    That would override `max_thinking_tokens`, which was set since; its display stays.
    """
    flags = dict(options.extra_args or {})
    if isinstance(options.thinking, AdaptiveThinking | EnabledThinking) and options.thinking.display is not None:
        flags.setdefault("thinking-display", options.thinking.display)
    if display is not None:
        flags["thinking-display"] = display
    return options.with_(thinking=None, extra_args=flags or None)


class RuntimeSettings:
    """The settings in `CHANGEABLE_OPTIONS` that one child has in effect.

    Args:
        options: those that the child was started with.
        child: sends control requests; knows the permission mode, which the CLI also changes by itself.
    """

    def __init__(self, options: Options, child: ChildRun) -> None:
        self._child = child
        self._default_mode = child.permission_mode or "default"
        self._current = self._requested(options)

    async def apply(self, options: Options, changes: Mapping[str, Any]) -> None:
        """Set the child to the values of `options` with `changes`; unchanged values are not sent again.

        A permission mode in `changes` is also compared with that of the child, which the CLI may have changed.

        Raises:
            ControlError, ControlTimeout: the CLI refused, or did not respond; after a timeout the child was ended.
        """
        for name, value in self._requested(options, changes).items():
            is_so = self._current[name] == value
            if name in changes and name == "permission_mode":
                is_so = self._child.permission_mode in (value, None) and is_so
            if is_so:
                continue
            try:
                await self.set(name, value)
            except ControlTimeout as error:  # an unresponsive child would fail every later query
                self._child.stop(CLIExitedError(f"the CLI was ended: {error}"))
                raise

    async def set(self, name: str, value: Any) -> Mapping[str, Any]:
        """Set one option, whatever its value is now; returns the response."""
        subtype, key = CHANGEABLE_OPTIONS[name]
        before, self._current[name] = self._current[name], UNKNOWN_VALUE
        try:
            answer = await self._child.request(subtype, {key: value})
        except ControlError:
            self._current[name] = before
            raise
        self._current[name] = value
        if name == "permission_mode":
            self._child.permission_mode = value
        return answer

    def _requested(self, options: Options, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        values = {name: getattr(options, name) for name in CHANGEABLE_OPTIONS} | dict(changes or {})
        mode = values["permission_mode"]
        return values | {"permission_mode": _MODE_ALIASES.get(mode, mode) or self._default_mode}


NO_SNAPSHOT = {"system-prompt-snapshot": "off"}
"""Without this the CLI gives a resumed conversation the system prompt that it began with."""
# Resets everything that chose the conversation of the first child.
_NO_CONVERSATION = Options.layer(
    resume=None,
    session_id=None,
    fork_session=None,
    continue_conversation=None,
    resume_session_at=None,
    resume_drops_turn=None,
)


class ResumeState:
    """The identity of a conversation over all of its children.

    Args:
        options: those of the session.

    Attributes:
        id: of the conversation; None for `continue_conversation`, until the CLI has named it.
        is_saved: whether a turn has ended, so that there is something to resume.
    """

    __slots__ = ("_given_options", "_is_generated_id", "_mode", "id", "is_saved")

    def __init__(self, options: Options) -> None:
        makes_new = not options.continue_conversation and (options.resume is None or options.fork_session)
        self._is_generated_id = makes_new and options.session_id is None and not options.fork_session
        if makes_new and options.session_id is None:
            options = options.with_(session_id=str(uuid.uuid4()))
        self.id = options.session_id or (None if options.fork_session else options.resume)
        self.is_saved = False
        self._given_options = {name: value for name, value in options.as_dict().items() if name in _NO_CONVERSATION}
        self._mode: Literal["initial", "resume"] = "initial"

    @property
    def is_id_replaceable(self) -> bool:
        """Whether the id was generated, and nothing was sent under it."""
        return self._is_generated_id and self._mode == "initial" and not self.is_saved

    def set_id(self, session_id: str) -> None:
        """Set the id that the child has had from its start."""
        self.id = session_id
        self._given_options = {**self._given_options, "session_id": session_id}

    def mark_prompt_sent(self) -> None:
        """Note that a prompt is about to be sent: from now on another child has to resume."""
        self._mode = "resume"

    def mark_turn_saved(self, session_id: str | None) -> None:
        """Note that a turn has ended: there is something to resume, and losing it would be an error."""
        self.is_saved = True
        self.id = session_id or self.id

    def mark_cleared(self, session_id: str | None) -> None:
        """Note that the conversation was cleared; the next child continues with the new id, or begins afresh."""
        self.id = session_id or self.id
        self.is_saved = False
        self._given_options = {}

    def discard_resume(self) -> bool:
        """Handle a CLI that has nothing to resume. True if nothing was lost, so that starting again works."""
        if self.is_saved or self._mode == "initial":
            return False
        self._mode = "initial"
        if not self._given_options:  # the id of a cleared conversation may be in use, although that is empty
            self._take_new_id()
        return True

    def choose_new_id(self) -> bool:
        """Handle an id that is in use by a child that died early. True if another id can be used."""
        if not self.is_id_replaceable:
            return False
        self._take_new_id()
        return True

    def _take_new_id(self) -> None:
        self.id = str(uuid.uuid4())
        self._given_options = {"session_id": self.id}

    def make_resume_options(self, options: Options) -> Options:
        """Make the settings of the next child from those that the session has now."""
        options = options.merge(_NO_CONVERSATION)
        if self._mode == "resume":
            return options.with_(resume=self.id)
        return options.merge(make_layer(self._given_options))

    def make_fork_options(self, options: Options) -> Options:
        """Make the settings of a new session that begins as a copy of this conversation.

        Raises:
            UsageError: the conversation is empty, or is not saved.
        """
        options = options.merge(_NO_CONVERSATION)
        if self._mode == "resume" and (self.is_saved or self._given_options):
            if not options.persist_session:
                raise UsageError("a session with persist_session=False cannot be forked: it is not on disk")
            return options.with_(resume=self.id, fork_session=True)
        given = {name: value for name, value in self._given_options.items() if name != "session_id"}
        if given.get("resume") is not None:
            return options.merge(make_layer({**given, "fork_session": True}))
        raise UsageError("there is nothing to fork yet: run a query first")
