"""Which conversation the next child of a session continues. Pure: turns what has happened into changed settings.

Owns the id, and the three ways to begin: as requested, by resuming, or afresh. Starts nothing.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal, cast

from pilothouse.errors import UsageError
from pilothouse.options import Options, Settings

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

    def make_child_options(self, options: Options) -> Options:
        """Make the settings of the next child from those that the session has now."""
        options = options.merge(_NO_CONVERSATION)
        if self._mode == "resume":
            return options.with_(resume=self.id)
        return options.merge(_make_resume_layer(self._given_options))

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
        asked = {name: value for name, value in self._given_options.items() if name != "session_id"}
        if asked.get("resume") is not None:
            return options.merge(_make_resume_layer({**asked, "fork_session": True}))
        raise UsageError("there is nothing to fork yet: run a query first")


def _make_resume_layer(values: dict[str, Any]) -> Options:
    return Options.layer(**cast("Settings", values))
