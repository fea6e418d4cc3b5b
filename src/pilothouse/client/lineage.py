"""Which conversation the next child of a session goes on with. Pure: from what has happened to changed settings.

Owns the id, and the three ways to begin: as it was asked for, with what was said so far, or afresh. Starts nothing.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal, cast

from pilothouse.errors import UsageError
from pilothouse.options import Options, Settings

NO_SNAPSHOT = {"system-prompt-snapshot": "off"}
"""The CLI (2.1.330) would give a resumed conversation the system prompt that it began with."""
# Sets back whatever the first child was told about its conversation.
_NOTHING = Options.layer(
    resume=None,
    session_id=None,
    fork_session=None,
    continue_conversation=None,
    resume_session_at=None,
    resume_drops_turn=None,
)


class Lineage:
    """The identity of a conversation over the children that have it.

    Args:
        options: those of the session.

    Attributes:
        id: of the conversation; None for `continue_conversation`, until the CLI has named it.
    """

    __slots__ = ("_asked", "_made_up", "_way", "id", "is_saved")

    def __init__(self, options: Options) -> None:
        makes_new = not options.continue_conversation and (options.resume is None or options.fork_session)
        self._made_up = makes_new and options.session_id is None and not options.fork_session
        if makes_new and options.session_id is None:
            options = options.with_(session_id=str(uuid.uuid4()))
        self.id = options.session_id or (None if options.fork_session else options.resume)
        self.is_saved = False
        self._asked = {name: value for name, value in options.as_dict().items() if name in _NOTHING}
        self._way: Literal["as asked", "resume"] = "as asked"

    @property
    def may_be_renamed(self) -> bool:
        """Whether nobody has asked for this id, and nothing was said under it."""
        return self._made_up and self._way == "as asked" and not self.is_saved

    def rename(self, session_id: str) -> None:
        """The child has another id, and always had."""
        self.id = session_id
        self._asked = {**self._asked, "session_id": session_id}

    def begin(self) -> None:
        """A prompt is about to be sent: from now on another child has to resume."""
        self._way = "resume"

    def save(self, session_id: str | None) -> None:
        """A turn has ended: there is something to resume, and losing it would be an error."""
        self.is_saved = True
        self.id = session_id or self.id

    def clear(self, session_id: str | None) -> None:
        """What was said is forgotten; the next child goes on with the new id, or begins afresh."""
        self.id = session_id or self.id
        self.is_saved = False
        self._asked = {}

    def fall_back(self) -> bool:
        """The CLI knows nothing to resume. True if nothing was lost by that, and beginning again will do."""
        if self.is_saved or self._way == "as asked":
            return False
        self._way = "as asked"
        if not self._asked:  # the id of a cleared conversation may be taken, although there is nothing in it
            self._take_new_id()
        return True

    def evade(self) -> bool:
        """The id is taken by what a child left that died early, which nobody can resume. True if another will do."""
        if not self.may_be_renamed:
            return False
        self._take_new_id()
        return True

    def _take_new_id(self) -> None:
        self.id = str(uuid.uuid4())
        self._asked = {"session_id": self.id}

    def child(self, options: Options) -> Options:
        """The settings of the next child, from those that the session has now."""
        options = options.merge(_NOTHING)
        if self._way == "resume":
            return options.with_(resume=self.id)
        return options.merge(_layer(self._asked))

    def fork(self, options: Options) -> Options:
        """The settings of a new session that begins with what was said in this one.

        Raises:
            UsageError: nothing was said, or none of it is kept.
        """
        options = options.merge(_NOTHING)
        if self._way == "resume" and (self.is_saved or self._asked):
            if not options.persist_session:
                raise UsageError("a session with persist_session=False cannot be forked: nothing of it is on disk")
            return options.with_(resume=self.id, fork_session=True)
        asked = {name: value for name, value in self._asked.items() if name != "session_id"}
        if asked.get("resume") is not None:
            return options.merge(_layer({**asked, "fork_session": True}))
        raise UsageError("there is nothing to fork yet: ask something first")


def _layer(values: dict[str, Any]) -> Options:
    return Options.layer(**cast("Settings", values))
